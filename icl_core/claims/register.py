"""The register: every record of the package, and the list of ids that must exist."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from importlib import resources

import icl_core.claims as package
from icl_core.claims.record import Claim


def modules() -> list[str]:
    """Names of the modules that hold records."""
    names = (module.name for module in pkgutil.iter_modules(package.__path__))
    return sorted(name for name in names if name.startswith(("ood_", "conv_")))


@cache
def claims() -> dict[str, Claim]:
    """All records by id, in the order of the required list.

    Raises
    ------
    ValueError
        If two records share an id, or a record's id does not belong to a required one.
    """
    found: dict[str, Claim] = {}
    for name in modules():
        for claim in importlib.import_module(f"icl_core.claims.{name}").CLAIMS:
            if claim.id in found:
                raise ValueError(f"two records have the id {claim.id}")
            found[claim.id] = claim
    order = {required: i for i, required in enumerate(required_ids())}
    owner = {claim_id: required_of(claim_id) for claim_id in found}
    strays = sorted(claim_id for claim_id, required in owner.items() if required is None)
    if strays:
        raise ValueError(f"records without a required id: {', '.join(strays)}")
    return {i: found[i] for i in sorted(found, key=lambda i: (order[owner[i] or ""], i))}


@cache
def required_ids() -> tuple[str, ...]:
    """Ids that must have a record, in the order of the papers."""
    text = resources.files("icl_core.claims").joinpath("required.txt").read_text(encoding="utf-8")
    return tuple(line for line in text.split() if line)


def required_of(claim_id: str) -> str | None:
    """Return the required id that a record belongs to: itself, or the longest one that its id extends."""
    required = set(required_ids())
    while claim_id and claim_id not in required:
        claim_id = claim_id.rpartition(".")[0]
    return claim_id or None


def same_as(claim: Claim) -> tuple[str, ...]:
    """Ids of the records that state the same as ``claim``: those that it names, then those that name it."""
    naming = (other.id for other in claims().values() if claim.id in other.same_as)
    return tuple(dict.fromkeys([*claim.same_as, *naming]))


def missing() -> list[str]:
    """Required ids without any record."""
    present = {required_of(claim_id) for claim_id in claims()}
    return [required for required in required_ids() if required not in present]

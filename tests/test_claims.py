"""The ledger as a whole, how verdicts follow from checks, and the procedures that records share."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from icl_core import population, prompts
from icl_core.claims import _tools, register, runner
from icl_core.claims.record import Check, Claim, Evidence, derive

STORED = Path(__file__).parent.parent / "_build" / "verify-fast.json"


@pytest.fixture(scope="session")
def ledger() -> dict:
    """The fast run of the whole ledger, shared with the book."""
    return runner.verify_cached(STORED, fast=True)


def test_every_required_id_has_a_record(ledger: dict) -> None:
    assert ledger["missing"] == []


def test_no_record_contradicts_its_checks(ledger: dict) -> None:
    faults = {entry["id"]: entry["faults"] for entry in ledger["claims"] if entry["faults"]}
    assert faults == {}


def test_every_check_finished_and_every_mutant_died(ledger: dict) -> None:
    errors = [(e["id"], c["name"], c["error"]) for e in ledger["claims"] for c in e["checks"] if c["error"]]
    survivors = [(e["id"], e["mutants"]["names_survived"]) for e in ledger["claims"] if e["mutants"]["survived"]]
    assert errors == []
    assert survivors == []


def test_what_a_check_called_is_declared(ledger: dict) -> None:
    undeclared = {e["id"]: sorted(set(e["uses_called"]) - set(e["uses"])) for e in ledger["claims"]}
    assert {claim: ids for claim, ids in undeclared.items() if ids} == {}


@pytest.mark.parametrize("field", ["uses", "same_as"])
def test_references_lead_somewhere(field: str) -> None:
    known = set(register.claims()) | {register.required_of(claim_id) for claim_id in register.claims()}
    broken = {i: [r for r in getattr(c, field) if r not in known] for i, c in register.claims().items()}
    assert {claim: refs for claim, refs in broken.items() if refs} == {}


def test_what_is_the_same_is_so_both_ways() -> None:
    ties = {i: register.same_as(claim) for i, claim in register.claims().items()}
    assert all(i not in others and len(others) == len(set(others)) for i, others in ties.items())
    assert [(i, other) for i, others in ties.items() for other in others if i not in ties[other]] == []
    # Named by the convergence paper's record alone.
    assert "conv.thm-E.17" in ties["conv.thm-3.2.attention"]
    one_way = [(o, i) for i, c in register.claims().items() for o in c.same_as if i not in register.claims()[o].same_as]
    assert ("ood.model", "conv.def-2.1") in one_way
    assert all(i in runner.run_claim(replace(register.claims()[o], checks=()))["same_as"] for o, i in one_way)


def test_no_claim_rests_on_itself() -> None:
    claims = register.claims()

    def parents(claim_id: str) -> list[str]:
        # An induction hypothesis and the lemmas that carry it from one step to the next rest on each other by design.
        return [] if claim_id.startswith("conv.ih-") else [r for r in claims[claim_id].uses if r in claims]

    done: set[str] = set()
    for start in claims:
        path: list[str] = []

        def visit(node: str, path: list[str] = path) -> None:
            assert node not in path, f"circular: {' -> '.join([*path, node])}"
            if node in done:
                return
            path.append(node)
            for parent in parents(node):
                visit(parent)
            path.pop()
            done.add(node)

        visit(start)


# Verdicts


def _claim(**fields: Any) -> Claim:
    return Claim(**{"id": "ood.model", "label": "x", "kind": "lemma", "title": "x", "statement": "x", **fields})


BROKEN = {"why": "it fails"}


@pytest.mark.parametrize(
    ("fields", "passed", "verdict"),
    [
        ({}, {"printed": [True]}, "holds"),
        ({"kind": "order"}, {"printed": [True]}, "order"),
        ({"kind": "definition"}, {"printed": [True]}, "definition"),
        (
            {"corrected": "c", **BROKEN},
            {"printed": [False], "counterexample": [True], "corrected": [True]},
            "holds-corrected",
        ),
        (
            {"added_hypothesis": "c", **BROKEN},
            {"printed": [False], "counterexample": [True], "conditional": [True]},
            "conditional",
        ),
        (
            {"strongest_true": "c", **BROKEN},
            {"printed": [False], "counterexample": [True], "strongest": [True]},
            "refuted",
        ),
        ({"kind": "step", **BROKEN}, {"printed": [False], "counterexample": [True]}, "proof-gap"),
        ({}, {"printed": [True, None]}, "inconclusive"),
        ({"kind": "figure"}, {"criterion": [True, True]}, "reproduced"),
        ({"kind": "figure"}, {"criterion": [True, False]}, "not-reproduced"),
        ({"kind": "figure"}, {"criterion": [True, None]}, "inconclusive"),
        ({"unchecked": "no data"}, {}, "unchecked"),
    ],
)
def test_verdict_follows_from_the_checks(fields: dict, passed: dict, verdict: str) -> None:
    assert derive(_claim(**fields), passed) == (verdict, [])


@pytest.mark.parametrize(
    ("fields", "passed", "fault"),
    [
        ({"corrected": "c"}, {"printed": [True], "corrected": [True]}, "passes, yet"),
        ({}, {"printed": [True], "counterexample": [True]}, "passes, yet"),
        ({"corrected": "c", **BROKEN}, {"printed": [False], "corrected": [True]}, "without a counterexample"),
        (
            {"corrected": "c", **BROKEN},
            {"printed": [False], "counterexample": [False], "corrected": [True]},
            "counterexample",
        ),
        (
            {"corrected": "c", **BROKEN},
            {"printed": [False], "counterexample": [True], "corrected": [False]},
            "fails its own",
        ),
        ({"corrected": "c", **BROKEN}, {"printed": [False], "counterexample": [True]}, "come together"),
        ({"corrected": "c"}, {"printed": [False], "counterexample": [True], "corrected": [True]}, "`why`"),
        (BROKEN, {"printed": [False], "counterexample": [True]}, "strongest true"),
        ({}, {}, "no check of the printed"),
        ({"kind": "figure"}, {}, "criterion"),
    ],
)
def test_an_inconsistent_record_is_a_fault(fields: dict, passed: dict, fault: str) -> None:
    assert any(fault in text for text in derive(_claim(**fields), passed)[1])


def _judge(subject: float, fast: bool) -> Evidence:
    return Evidence(abs(subject - 2) < 1e-9, "exact", 1, "one")


SOUND = Check("two", _judge, 2.0, mutants={"three": 3.0})


def test_a_sound_record_has_no_fault() -> None:
    entry = runner.run_claim(_claim(checks=(SOUND,)), fast=True)
    assert (entry["verdict"], entry["strength"], entry["faults"]) == ("holds", "exact", [])
    assert entry["mutants"]["killed"] == 1


def test_a_check_that_always_passes_leaves_its_mutant_alive() -> None:
    blind = replace(SOUND, run=lambda subject, fast: Evidence(True, "exact", 1, "one"))
    entry = runner.run_claim(_claim(checks=(blind,)), fast=True)
    assert entry["mutants"]["names_survived"] == ["two: three"]
    assert any("mutant survives" in fault for fault in entry["faults"])


def test_a_mutant_that_is_not_rejected_outright_survives() -> None:
    shy = replace(SOUND, run=lambda subject, fast: Evidence(True if subject == 2.0 else None, "exact", 1, "one"))
    assert runner.run_claim(_claim(checks=(shy,)), fast=True)["mutants"]["survived"] == 1


def test_a_statement_without_mutants_is_a_fault() -> None:
    entry = runner.run_claim(_claim(checks=(replace(SOUND, mutants={}),)), fast=True)
    assert any("no mutant" in fault for fault in entry["faults"])


def test_a_check_that_raises_is_a_fault_and_no_verdict() -> None:
    def raises(subject: float, fast: bool) -> Evidence:
        raise ArithmeticError("no")

    entry = runner.run_claim(_claim(checks=(replace(SOUND, run=raises),)), fast=True)
    assert entry["verdict"] == "inconclusive"
    assert any("did not finish: ArithmeticError" in fault for fault in entry["faults"])


def test_a_statement_is_as_strong_as_its_weakest_check() -> None:
    weak = replace(SOUND, run=lambda s, fast: replace(_judge(s, fast), strength="swept"))
    assert runner.run_claim(_claim(checks=(SOUND, weak)), fast=True)["strength"] == "swept"


def test_unknown_ids_are_named() -> None:
    with pytest.raises(ValueError, match=r"no-such"):
        runner.select(["ood.no-such"])


# Shared procedures


def test_exact_losses_and_descent_agree_with_the_engine() -> None:
    weights = _tools.fractions((3, 3), 5)
    law = prompts.PromptLaw(
        torch.tensor([[1.0, 2.0, 3.0]], dtype=torch.float64),
        torch.ones(1, dtype=torch.float64),
        torch.full((3,), 1 / 3, dtype=torch.float64),
    )
    S = torch.log(torch.tensor(weights.astype(float)))
    losses, delta = population.losses_and_descent(S, law)
    assert np.allclose(losses, [float(x) for x in _tools.exact_losses(weights, [1, 2, 3])], atol=1e-15)
    assert np.allclose(delta, _tools.exact_descent(weights, [1, 2, 3]).astype(float), atol=1e-15)


def test_quick_losses_agree_with_the_engine() -> None:
    S = 3 * torch.randn(4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    assert np.allclose(_tools.balanced_losses(S.numpy()), population.losses(S, prompts.balanced(4)), rtol=1e-13)


def test_rational_features_are_orthonormal() -> None:
    V = _tools.rational_features(5, 3, 7)
    assert (_tools.identity(3) == V.T @ V).all()


def test_exact_evidence_sees_the_smallest_difference() -> None:
    assert _tools.exactly([Fraction(0)], "x").passed is True
    assert _tools.exactly([Fraction(0), Fraction(1, 10**40)], "x").passed is False


def test_a_certificate_proves_refutes_or_abstains() -> None:
    square = [(-1.0, 1.0)]
    assert _tools.certify(lambda x: x * x + 0.01, square, "x").passed is True
    assert _tools.certify(lambda x: x * x - 0.01, square, "x").passed is False
    assert _tools.certify(lambda x: (x - 0.1) ** 2, square, "x", limit=200).passed is None


def test_a_search_finds_a_narrow_violation() -> None:
    found = _tools.hunted(lambda x: (x[0] - 0.3) ** 2 + (x[1] + 0.7) ** 2 - 1e-8, [(-1, 1), (-1, 1)], "square", seed=3)
    assert found.passed is False
    assert found.strength == "adversarial"


def test_nan_counts_as_a_failure() -> None:
    assert _tools.agree([math.nan], [0.0], "x", tolerance=1.0, source="x").passed is False
    assert _tools.at_least([math.nan], "x").passed is False
    assert _tools.hunted(lambda x: math.nan, [(0, 1)], "x", seed=1, budget=50).passed is False


def test_merged_evidence_is_the_weakest_of_its_parts() -> None:
    good, weak = Evidence(True, "exact", 2, "a"), Evidence(True, "swept", 3, "b")
    merged = _tools.merge([good, weak])
    assert (merged.passed, merged.strength, merged.cases) == (True, "swept", 5)
    assert _tools.merge([good, Evidence(None, "exact", 1, "c")]).passed is None
    assert _tools.merge([Evidence(None, "exact", 1, "c"), Evidence(False, "exact", 1, "d")]).passed is False

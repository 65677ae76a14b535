"""Run the ledger: checks, mutants, verdicts, one JSON document, and the table that a reader sees."""

from __future__ import annotations

import argparse
import fnmatch
import hashlib
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from icl_core import results
from icl_core.claims import register
from icl_core.claims.record import STRENGTHS, VERDICTS, Check, Claim, Evidence, Role, derive
from icl_core.theory._statement import recording

SCHEMA = 1
# A check that takes longer than this is stopped and counted as timed out.
TIME_LIMIT = {True: 60, False: 600}

# Kinds whose checks need no mutant: nothing there is asserted that an altered form could contradict.
_NO_MUTANTS = ("definition", "assumption", "figure")


def run_claim(claim: Claim, fast: bool = False) -> dict[str, Any]:
    """Run one record's checks and mutants.

    Returns
    -------
    dict
        The record as the JSON document holds it; see :func:`verify`.
    """
    started = time.perf_counter()
    passed: dict[Role, list[bool | None]] = {}
    checks, killed, survived, faults = [], 0, [], []
    with recording() as called:
        for check in claim.checks:
            entry, evidence = _attempt(check, check.subject, fast)
            checks.append(entry)
            passed.setdefault(check.role, []).append(None if evidence is None else evidence.passed)
            if entry["error"]:
                faults.append(f"check {check.name!r} did not finish: {entry['error']}")
            # A mutant of a statement that already fails shows nothing.
            if evidence is None or evidence.passed is not True:
                continue
            for name, mutant in check.mutants.items():
                _, outcome = _attempt(check, mutant, True)
                if outcome is None or outcome.passed is not False:
                    survived.append(f"{check.name}: {name}")
                else:
                    killed += 1
            needs = claim.kind not in _NO_MUTANTS and check.role not in ("counterexample", "reading", "criterion")
            if needs and not check.mutants:
                faults.append(f"check {check.name!r} has no mutant")
    verdict, contradictions = derive(claim, passed)
    faults += contradictions
    faults += [f"mutant survives: {name}" for name in survived]
    deciding = {
        "holds": "printed", "order": "printed", "definition": "printed", "holds-corrected": "corrected",
        "conditional": "conditional", "refuted": "counterexample", "proof-gap": "counterexample",
    }.get(verdict, "criterion")  # fmt: skip
    used = [c["strength"] for c in checks if c["role"] == deciding and c["strength"]]
    detail = {c["role"]: c["detail"] for c in checks if c["passed"]}
    return {
        "id": claim.id,
        "required": register.required_of(claim.id),
        "paper": claim.paper,
        "label": claim.label,
        "kind": claim.kind,
        "title": claim.title,
        "statement": claim.statement,
        "hypotheses": list(claim.hypotheses),
        "reconstruction": claim.reconstruction,
        "uses": list(claim.uses),
        "uses_called": sorted(called - {claim.id}),
        "chapter": claim.chapter,
        "same_as": list(register.same_as(claim)),
        "note": claim.note,
        "verdict": verdict,
        # A statement is only as well supported as the weakest of the checks that decide it.
        "strength": max(used, key=STRENGTHS.index) if used else None,
        "why": claim.why,
        "correction": claim.corrected,
        "added_hypothesis": claim.added_hypothesis,
        "strongest_true": claim.strongest_true,
        "counterexample": detail.get("counterexample"),
        "unchecked": claim.unchecked,
        "checks": checks,
        "mutants": {"killed": killed, "survived": len(survived), "names_survived": survived},
        "faults": faults,
        "seconds": round(time.perf_counter() - started, 3),
    }


class _Timeout(Exception):
    """A check ran past its limit."""


def _attempt(check: Check, subject: Any, fast: bool) -> tuple[dict[str, Any], Evidence | None]:
    started = time.perf_counter()
    evidence, error = None, None

    def stop(*_: object) -> None:
        raise _Timeout(f"timed out after {TIME_LIMIT[fast]} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(TIME_LIMIT[fast])
    try:
        evidence = check.run(subject, fast)
    except _Timeout as late:
        error = str(late)
    except Exception as problem:
        where = traceback.extract_tb(problem.__traceback__)[-1]
        error = f"{type(problem).__name__}: {problem} ({Path(where.filename).name}:{where.lineno})"
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    shown = {
        name: getattr(evidence, name, None)
        for name in (
            "passed", "strength", "cases", "region", "dtype", "residual", "margin", "tolerance", "tolerance_source",
            "seed", "detail", "data",
        )
    }  # fmt: skip
    entry = {"name": check.name, "role": check.role, **shown, "seconds": round(time.perf_counter() - started, 3)}
    return {**entry, "data": dict(evidence.data) if evidence else {}, "error": error}, evidence


def select(patterns: Sequence[str]) -> list[str]:
    """Ids that match any pattern: an id, a required id (all its parts), or a glob.

    Raises
    ------
    ValueError
        If a pattern matches nothing.
    """
    every = list(register.claims())
    if not patterns:
        return every
    chosen: set[str] = set()
    for pattern in patterns:
        hits = [i for i in every if i == pattern or i.startswith(pattern + ".") or fnmatch.fnmatchcase(i, pattern)]
        if not hits:
            raise ValueError(f"ids must match records of the ledger, got {pattern!r}; `icl-core verify` lists them all")
        chosen.update(hits)
    return [i for i in every if i in chosen]


def _work(claim_id: str, fast: bool) -> dict[str, Any]:
    import torch

    torch.set_num_threads(1)
    return run_claim(register.claims()[claim_id], fast)


def verify(
    ids: Sequence[str] = (), *, fast: bool = False, jobs: int | None = None, progress: bool = False
) -> dict[str, Any]:
    """Run records and return one JSON-ready document.

    Parameters
    ----------
    ids : sequence of str
        As in :func:`select`; all records by default.
    fast : bool
        Smaller regions; the whole ledger in under two minutes on two cores.
    jobs : int, optional
        Processes; by default one per core.
    progress : bool
        Write a line to standard error per finished record.

    Returns
    -------
    dict
        ``schema, commit, versions, fast, seconds, missing, claims``.
    """
    started = time.perf_counter()
    chosen = select(ids)
    jobs = min(len(chosen), jobs or os.cpu_count() or 1)
    found: dict[str, dict[str, Any]] = {}
    if jobs <= 1:
        for claim_id in chosen:
            found[claim_id] = run_claim(register.claims()[claim_id], fast)
            _say(progress, found, claim_id, len(chosen))
    else:
        # Spawned, not forked: a forked child would inherit the parent's thread pools in an unknown state.
        with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
            futures = {pool.submit(_work, claim_id, fast): claim_id for claim_id in chosen}
            for future in as_completed(futures):
                found[futures[future]] = future.result()
                _say(progress, found, futures[future], len(chosen))
    return {
        "schema": SCHEMA,
        "commit": results.commit(),
        "versions": results.versions(),
        "fast": fast,
        "seconds": round(time.perf_counter() - started, 1),
        "missing": register.missing(),
        "claims": [found[claim_id] for claim_id in chosen],
    }


def _say(progress: bool, found: dict[str, dict[str, Any]], claim_id: str, total: int) -> None:
    if progress:
        entry = found[claim_id]
        print(
            f"[{len(found)}/{total}] {claim_id}: {entry['verdict']} ({entry['seconds']} s)", file=sys.stderr, flush=True
        )


def fingerprint() -> str:
    """Hash of everything that decides the ledger's outcome: the package's code and the versions beneath it."""
    package = Path(results.__file__).parent
    digest = hashlib.sha256(json.dumps(results.versions(), sort_keys=True).encode())
    for path in sorted(package.rglob("*")):
        if path.suffix in (".py", ".txt"):
            digest.update(path.relative_to(package).as_posix().encode() + b"\0" + path.read_bytes())
    # Stored tables are evidence of some records; a stored document of the ledger is not.
    for path in sorted((package.parent / "book" / "results").glob("[!v]*")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def verify_cached(path: str | os.PathLike[str], *, fast: bool = True, progress: bool = False) -> dict[str, Any]:
    """Return the document at ``path`` if nothing it depends on has changed since, else run the ledger and store it."""
    target, key = Path(path), fingerprint()
    if target.is_file():
        try:
            document = json.loads(target.read_text(encoding="utf-8"))
        except json.JSONDecodeError:
            document = {}
        if document.get("fingerprint") == key and document.get("fast") == fast:
            if progress:
                print(f"ledger: unchanged since {target} was written", file=sys.stderr)
            return document
    document = {**verify(fast=fast, progress=progress), "fingerprint": key}
    write_json(target, document)
    return document


def write_json(path: str | os.PathLike[str], document: dict[str, Any]) -> None:
    """Write a document in one step."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(target.name + ".part")
    partial.write_text(json.dumps(document, indent=1, default=results._plain) + "\n", encoding="utf-8")
    partial.replace(target)


def table(document: dict[str, Any]) -> str:
    """The document as text: a line per record, then the counts."""
    lines = []
    for entry in document["claims"]:
        mark = "  FAULT: " + "; ".join(entry["faults"]) if entry["faults"] else ""
        lines.append(f"{entry['id']:<34} {entry['verdict']:<16} {entry['strength'] or '-':<12} {entry['label']}{mark}")
    counts = {v: sum(e["verdict"] == v for e in document["claims"]) for v in VERDICTS}
    killed = sum(e["mutants"]["killed"] for e in document["claims"])
    survived = sum(e["mutants"]["survived"] for e in document["claims"])
    lines.append("")
    lines.append(", ".join(f"{n} {v}" for v, n in counts.items() if n))
    lines.append(
        f"{len(document['claims'])} records, mutants {killed} killed / {survived} survived, "
        f"{len(document['missing'])} required ids without a record, {document['seconds']} s"
    )
    return "\n".join(lines)


def show(claim_id: str, document: dict[str, Any] | None = None) -> str:
    """One record in full, as text; runs it unless a document is given.

    Raises
    ------
    ValueError
        If there is no such record.
    """
    entries = (document or verify([claim_id], jobs=1))["claims"]
    blocks = []
    for entry in entries:
        rows = [
            f"{entry['id']}   {entry['label']}: {entry['title']}",
            f"verdict: {entry['verdict']}, strength: {entry['strength']}",
            "",
        ]
        rows.append(entry["statement"].strip())
        for name, text in (
            ("reconstruction", entry["reconstruction"]), ("why it fails", entry["why"]),
            ("counterexample", entry["counterexample"]), ("corrected", entry["correction"]),
            ("added hypothesis", entry["added_hypothesis"]), ("strongest true statement", entry["strongest_true"]),
            ("unchecked", entry["unchecked"]), ("note", entry["note"]),
            ("uses", ", ".join(entry["uses"])), ("uses called", ", ".join(entry["uses_called"])),
            ("same as", ", ".join(entry["same_as"])), ("chapter", entry["chapter"]),
        ):  # fmt: skip
            if text:
                rows.append(f"{name}: {text}")
        for check in entry["checks"]:
            outcome = check["error"] or {True: "passes", False: "FAILS", None: "undecided"}[check["passed"]]
            how = f"{check['strength']}, {check['cases']} cases, {check['seconds']} s"
            rows.append(f"- [{check['role']}] {check['name']}: {outcome} ({how})")
            facts = [f"region: {check['region']}"] if check["region"] else []
            facts += [f"{k}: {check[k]:.6g}" for k in ("residual", "margin", "tolerance") if check[k] is not None]
            facts += [f"tolerance from {check['tolerance_source']}"] if check["tolerance_source"] else []
            facts += [check["detail"]] if check["detail"] else []
            rows += [f"    {fact}" for fact in facts]
        killed, survived, names = entry["mutants"].values()
        rows.append(f"mutants: {killed} killed, {survived} survived {names or ''}")
        rows += [f"FAULT: {fault}" for fault in entry["faults"]]
        blocks.append("\n".join(rows))
    return "\n\n".join(blocks)


def main_verify(args: argparse.Namespace) -> int:
    """``icl-core verify``: print the table, write the JSON document; 1 if a record contradicts its checks."""
    document = verify(args.ids, fast=args.fast, progress=True)
    if args.json is not None:
        write_json(args.json, document)
    print(table(document))
    return 1 if any(entry["faults"] for entry in document["claims"]) else 0


def main_show(claim_id: str) -> int:
    """``icl-core show``: print one record, or all parts of a required id, in full."""
    print(show(claim_id))
    return 0

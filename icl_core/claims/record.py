"""What a claim record holds: the statement, its checks with their mutants, and the verdict that follows from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Strength = Literal["exact", "certified", "adversarial", "swept", "monte-carlo", "trend"]
STRENGTHS: tuple[Strength, ...] = ("exact", "certified", "adversarial", "swept", "monte-carlo", "trend")

Kind = Literal[
    "definition", "assumption", "lemma", "theorem", "corollary", "remark", "equation", "text", "hypothesis",
    "step", "order", "figure",
]  # fmt: skip

# printed: the statement as the paper has it.       reading: another plausible reading of an ambiguous text.
# counterexample: passes if the printed statement fails, far above rounding, at concrete small numbers.
# corrected: a small correction of the statement.   conditional: the statement under an added hypothesis.
# strongest: what remains true of a refuted one.    criterion: one thing a figure is said to show.
Role = Literal["printed", "reading", "counterexample", "corrected", "conditional", "strongest", "criterion"]
ROLES: tuple[Role, ...] = (
    "printed", "reading", "counterexample", "corrected", "conditional", "strongest", "criterion",
)  # fmt: skip

Verdict = Literal[
    "holds", "holds-corrected", "conditional", "refuted", "proof-gap", "order", "definition",
    "reproduced", "not-reproduced", "inconclusive", "unchecked",
]  # fmt: skip
VERDICTS: tuple[Verdict, ...] = (
    "holds", "holds-corrected", "conditional", "refuted", "proof-gap", "order", "definition",
    "reproduced", "not-reproduced", "inconclusive", "unchecked",
)  # fmt: skip


@dataclass(frozen=True)
class Evidence:
    """Outcome of one check.

    Parameters
    ----------
    passed : bool or None
        Whether the subject of the check stood; None where the check could not decide.
    strength : str
        One of :data:`STRENGTHS`.
    cases : int
        Number of instances tried.
    region : str
        The set they came from.
    residual : float, optional
        Largest deviation from an identity.
    margin : float, optional
        Smallest slack of an inequality, negative where it is violated.
    tolerance : float, optional
        What the residual or margin was held against.
    tolerance_source : str
        Where the tolerance comes from.
    dtype : str
        Arithmetic used.
    seed : int, optional
        Seed of the draws.
    detail : str
        The worst case or the measured numbers, computed, in a sentence.
    data : mapping
        The same, for programs.
    """

    passed: bool | None
    strength: Strength
    cases: int
    region: str
    residual: float | None = None
    margin: float | None = None
    tolerance: float | None = None
    tolerance_source: str = ""
    dtype: str = "float64"
    seed: int | None = None
    detail: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Check:
    """A function that can fail, applied to a statement that can be altered.

    Parameters
    ----------
    name : str
        What is checked, in a few words.
    run : callable
        ``run(subject, fast)`` returns :class:`Evidence`; the same function judges the subject and its mutants.
    subject : object
        The statement under test, as code: a formula, or a bound.
    role : str
        One of :data:`ROLES`.
    mutants : mapping of str to object
        Altered subjects, by what was altered, that ``run`` must reject.
    """

    name: str
    run: Callable[[Any, bool], Evidence]
    subject: Any
    role: Role = "printed"
    mutants: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Claim:
    """One assertion of a paper.

    Parameters
    ----------
    id : str
        ``ood.`` or ``conv.`` and the statement; a part of a split statement is ``required-id.suffix``.
    label : str
        As printed, for readers who have the paper.
    kind : str
        What sort of statement; ``step`` is a displayed proof step, ``order`` an O, Omega or Theta statement.
    title : str
        A few words.
    statement : str
        The assertion in our own words, MyST with formulas, with all its hypotheses.
    checks : tuple of Check
        Empty only with ``unchecked``.
    hypotheses : tuple of str
        The hypotheses again, one by one.
    corrected, added_hypothesis, strongest_true : str, optional
        In words, what the checks with role corrected, conditional and strongest test.
    why : str, optional
        Why the printed form fails, in a sentence or two.
    reconstruction : str, optional
        What was rebuilt where the text is damaged.
    uses : tuple of str
        Claims it rests on.
    chapter : str, optional
        Page of the book that derives it, without suffix.
    same_as : tuple of str
        The same statement elsewhere. One of the two names the other; the register derives the way back.
    note : str, optional
        Readings, scope, anything else a reader needs.
    unchecked : str, optional
        Why there are no checks, or why the checks could not use the printed model or data (then they are shown
        beside the verdict ``unchecked``).
    """

    id: str
    label: str
    kind: Kind
    title: str
    statement: str
    checks: tuple[Check, ...] = ()
    hypotheses: tuple[str, ...] = ()
    corrected: str | None = None
    added_hypothesis: str | None = None
    strongest_true: str | None = None
    why: str | None = None
    reconstruction: str | None = None
    uses: tuple[str, ...] = ()
    chapter: str | None = None
    same_as: tuple[str, ...] = ()
    note: str | None = None
    unchecked: str | None = None

    @property
    def paper(self) -> str:
        """``ood`` or ``conv``."""
        return self.id.split(".", 1)[0]


def derive(claim: Claim, passed: Mapping[Role, list[bool | None]]) -> tuple[Verdict, list[str]]:
    """Derive a verdict from what the checks found.

    Parameters
    ----------
    claim : Claim
        The record.
    passed : mapping
        Outcomes by role.

    Returns
    -------
    verdict : str
        One of :data:`VERDICTS`.
    faults : list of str
        Ways in which the record contradicts its checks or is incomplete; a sound record has none.
    """
    faults: list[str] = []

    def all_of(role: Role) -> bool:
        outcomes = passed.get(role, [])
        return bool(outcomes) and all(o is True for o in outcomes)

    texts: dict[Role, str | None] = {
        "corrected": claim.corrected,
        "conditional": claim.added_hypothesis,
        "strongest": claim.strongest_true,
    }
    for role, text in texts.items():
        present = bool(passed.get(role))
        if present != bool(text):
            faults.append(f"role {role!r} and its text must come together")
        elif present and not all_of(role):
            faults.append(f"the {role} statement fails its own check")
    if claim.unchecked:
        return "unchecked", faults
    if claim.kind == "figure":
        outcomes = passed.get("criterion", [])
        if not outcomes:
            return "unchecked", [*faults, "a figure needs at least one criterion"]
        if any(o is False for o in outcomes):
            return "not-reproduced", faults
        return ("inconclusive" if any(o is None for o in outcomes) else "reproduced"), faults
    if not passed.get("printed"):
        return "unchecked", [*faults, "no check of the printed statement"]
    if all_of("printed"):
        repairs: tuple[Role, ...] = ("counterexample", "corrected", "conditional", "strongest")
        faults += [f"the printed statement passes, yet the record has a {r} check" for r in repairs if passed.get(r)]
        if claim.kind in ("definition", "assumption"):
            return "definition", faults
        return ("order" if claim.kind == "order" else "holds"), faults
    if any(o is None for o in passed["printed"]) and not any(o is False for o in passed["printed"]):
        return "inconclusive", faults
    if not all_of("counterexample"):
        faults.append("the printed statement fails without a counterexample that reproduces")
    if not claim.why:
        faults.append("the printed statement fails without a reason in `why`")
    if claim.kind == "step":
        return "proof-gap", faults
    if all_of("corrected"):
        return "holds-corrected", faults
    if all_of("conditional"):
        return "conditional", faults
    if not all_of("strongest"):
        faults.append("a refuted statement needs the strongest true one, checked")
    return "refuted", faults

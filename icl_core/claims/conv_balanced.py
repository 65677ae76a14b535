"""Records of the convergence paper's balanced case: Theorem 3.2, Appendix C's remark, Appendix E."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
import torch

from icl_core import dynamics, population, prompts
from icl_core.claims import _tools
from icl_core.claims.conv_setup import exact_law
from icl_core.claims.record import Check, Claim, Evidence, Kind
from icl_core.theory import phases
from icl_core.theory._statement import remember

SEED = 20272
# Half of the features this many times as likely as the other half: p_k = Theta(1/K) without being equal.
RATIO = 3.0
LIKELY, UNLIKELY = 2 * RATIO / (1 + RATIO), 2 / (1 + RATIO)
EPS = 0.01
# A slope of log ratio against log K (or log 1/eps) below this over the largest sizes counts as none. A factor log K has
# a local slope above it up to K = 2^144, where the last of the slopes used begins.
FLAT = 0.01


@dataclass(frozen=True)
class State:
    """A stretch of the trajectory of one query of probability ``share``: arrays over time.

    Off-target features that are alike share a place in the last dimension of ``B``, ``c`` and ``beta``; ``many`` says
    how many they are. ``time`` counts from the start of the stage.
    """

    K: float
    eps: float
    share: float
    many: np.ndarray
    time: np.ndarray
    A: np.ndarray
    B: np.ndarray
    a: np.ndarray
    off: np.ndarray
    c: np.ndarray
    alpha: np.ndarray
    beta: np.ndarray
    loss: np.ndarray


def _stage_two(K: float, eps: float) -> float:
    """Length of stage II of phase II, with constant 1."""
    return K * math.log(K / math.sqrt(eps)) / eps


def _stage_one_end(share: float, eps: float) -> float:
    """Gap of the scores that ends stage I, with the counts at their expectation."""
    return math.log1p(-share) - math.log(share) + math.log(math.sqrt(3 / eps) - 1)


@remember
def equal(K: float, eps: float, stage: str) -> State:
    """Equal probabilities, long prompts: the closed form of a stage, up to K = 2^200.

    By the conserved sum every B is -A/(K-1), so the gap u = A - B decides everything.
    """
    first, end = K / (K - 1) * math.log(K), _stage_one_end(1 / K, eps)
    at = {"I": 0.0, "II.1": first, "II.2": end}[stage]

    def spent(gap: float) -> float:
        off = math.exp(-float(np.logaddexp(0.0, gap - math.log(K - 1))))
        start = None if at == 0.0 else math.exp(-float(np.logaddexp(0.0, at - math.log(K - 1))))
        return 0.0 if gap == at or off >= 1 - 1 / K else phases.alike_time(K, 1 / K, off, start=start)

    if stage == "I":
        gap = np.linspace(0, first, 200)
    elif stage == "II.1":
        gap = np.linspace(first, end, 200)
    else:
        low, high = end, end + 60.0
        for _ in range(80):
            middle = (low + high) / 2
            low, high = (middle, high) if spent(middle) < _stage_two(K, eps) else (low, middle)
        gap = np.linspace(end, low, 200)
    odds = np.exp(math.log(K - 1) - gap)
    off, a = odds / (1 + odds), 1 / (1 + odds)
    A = gap * (K - 1) / K
    alpha = a * off**2 / (K - 1)
    one = np.newaxis
    return State(
        K, eps, 1 / K, np.array([K - 1]), np.array([spent(float(u)) for u in gap]), A, -A[:, one] / (K - 1), a, off,
        off[:, one] / (K - 1), alpha, -alpha[:, one] / (K - 1), off**2 / (2 * (K - 1)),
    )  # fmt: skip


@remember
def kinds(
    K: float, eps: float, stage: str, own: int, shares: tuple[float, float], numbers: tuple[float, float],
    length: float | None = None,
) -> State:  # fmt: skip
    """Two kinds of features, long prompts: one stage of a query of kind ``own``, up to K = 2^200.

    Off-target features of a kind keep one common score, and A never falls: with A as the clock the scores solve
    ``dB/dA = beta / alpha``, whose right-hand side is of order 1/K throughout.

    Parameters
    ----------
    K, eps : float
        Number of features; target.
    stage : {"I", "II.1", "II.2"}
        Until ``A = log K``; until the gap of Appendix E.3; for ``length`` after that.
    own : {0, 1}
        Kind of the query.
    shares, numbers : tuple of float
        ``K p`` and number of features of either kind.
    length : float, optional
        Duration of stage II.2; that of the paper with constant 1 by default.
    """
    from scipy.integrate import solve_ivp

    share = shares[own] / K
    many = np.array(numbers, dtype=float)
    many[own] -= 1
    mass, many = np.array(shares)[many > 0], many[many > 0]

    def rates(A: float, x: np.ndarray) -> tuple[Any, ...]:
        """Attention and updates over the query's probability; ``x`` are the scores times K."""
        weight, target = mass * np.exp(x / K), shares[own] * math.exp(A)
        whole = target + float(many @ weight)
        a, c = target / whole, weight / whole
        off, squares = float(many @ weight) / whole, float(many @ c**2)
        return a, off, c, squares, a * (squares + off**2), c * (squares - c - a * off)

    # Time in units of which every stage lasts a moderate number.
    unit = K**2 if stage == "I" else K / eps

    def right(A: float, y: np.ndarray) -> np.ndarray:
        *_, alpha, beta = rates(A, y[:-1])
        return np.append(K * beta / alpha, 1 / (share * alpha * unit))

    first, level = math.log(K), _stage_one_end(share, eps)
    last = _stage_two(K, eps) if length is None else length
    if stage == "I":
        begin, start, finish, events = 0.0, np.zeros(len(many)), first, []
    else:
        before = kinds(K, eps, "I" if stage == "II.1" else "II.1", own, shares, numbers)
        begin, start, finish = float(before.A[-1]), before.B[-1] * K, float(before.A[-1]) + 80.0
        if stage == "II.1" and begin - before.B[-1].max() >= level:
            raise ValueError(f"eps must leave stage I of phase II room at K = {K:g}, got {eps!r}")
        events = [
            (lambda A, y: A - (y[:-1] / K).max() - level) if stage == "II.1" else (lambda A, y: y[-1] * unit - last)
        ]
        setattr(events[0], "terminal", True)  # noqa: B010  # the type checker does not know the attribute that solve_ivp reads
    path = solve_ivp(
        right, (begin, finish), np.append(start, 0.0), method="DOP853", rtol=1e-10, atol=1e-12, dense_output=True,
        events=events,
    )  # fmt: skip
    A = np.linspace(begin, path.t[-1], 200)
    values = path.sol(A)
    x, time = values[:-1].T, values[-1] * unit
    a, off, c, squares, alpha, beta = (np.array(part) for part in zip(*map(rates, A, x), strict=True))
    return State(
        K, eps, share, many, time, A, x / K, a, off, c, share * alpha, share * beta, share / 2 * (squares + off**2)
    )  # fmt: skip


def unequal(K: float, eps: float, stage: str) -> tuple[State, ...]:
    """A likely and an unlikely query where half of the features are RATIO times as likely."""
    return tuple(kinds(K, eps, stage, own, (LIKELY, UNLIKELY), (K / 2, K / 2)) for own in (0, 1))


Quantity = Callable[[State], np.ndarray]


@dataclass(frozen=True)
class Bound:
    """``quantity`` over its claimed order, on a stage; ``side`` says from which side the ratio must stay bounded.

    The claimed order is altered by ``K^tilt (log K)^log_tilt (1/eps)^eps_tilt``.
    """

    stage: str
    ratio: Quantity
    side: str
    tilt: float = 0.0
    log_tilt: float = 0.0
    eps_tilt: float = 0.0


def _extreme(values: np.ndarray, side: str) -> float:
    flat = np.asarray(values, dtype=float).ravel()
    return float(flat.min() if side == "Omega" else flat.max())


FAMILIES: dict[str, Callable[[float, float, str], State]] = {
    "equal p": equal,
    "likely query": lambda K, eps, stage: unequal(K, eps, stage)[0],
    "unlikely query": lambda K, eps, stage: unequal(K, eps, stage)[1],
}


def measured(bound: Bound, fast: bool) -> Evidence:
    """Worst ratio over the stage: does it drift with K up to 2^200, or with eps down to 1e-16 at K = 2^20?

    With equal probabilities and, for both kinds of query, with two kinds of features.
    """
    sides = {"O": ["O"], "Omega": ["Omega"], "Theta": ["Omega", "O"]}[bound.side]
    log2_K = [20, 60, 100, 150, 200] if fast else list(range(10, 201, 10))
    along = {"K": [(2.0**x, EPS) for x in log2_K]}
    if bound.stage != "I":
        along["eps"] = [(2.0**20, 10.0**-x) for x in ((2, 5, 8, 11, 14, 16) if fast else range(2, 17, 2))]
    passed, notes, worst, cases = True, [], 0.0, 0
    for family, state in FAMILIES.items():
        for side in sides:
            ranges = []
            for axis, points in along.items():
                logs = [
                    math.log(_extreme(bound.ratio(state(K, eps, bound.stage)), side)) - bound.tilt * math.log(K)
                    - bound.log_tilt * math.log(math.log(K)) + bound.eps_tilt * math.log(eps)
                    for K, eps in points
                ]  # fmt: skip
                scale = [math.log(K) if axis == "K" else -math.log(eps) for K, eps in points]
                fit = phases.exponent(scale, logs)
                # A ratio may fall towards 0 under an upper bound, and grow above a lower one.
                passed &= fit.low >= -FLAT if side == "Omega" else fit.high <= FLAT
                worst = max(worst, -fit.low if side == "Omega" else fit.high)
                cases += len(points)
                ranges.append(f"[{fit.low:.4f}, {fit.high:.4f}] along {axis}")
                if axis == "K":
                    ratio = math.exp(logs[-1])
            notes.append(
                f"{family}: {'smallest' if side == 'Omega' else 'largest'} ratio {ratio:.3g} at K = 2^{log2_K[-1]}, "
                f"local slopes in {' and '.join(ranges)}"
            )
    return Evidence(
        bool(passed), "trend", cases,
        f"K = 2^{log2_K[0]} to 2^{log2_K[-1]} at eps = {EPS}" + "; eps = 1e-2 to 1e-16 at K = 2^20" * (len(along) > 1)
        + f"; long prompts, equal p and p = {LIKELY:g}/K, {UNLIKELY:g}/K",
        residual=worst, tolerance=FLAT, tolerance_source="slope of the log ratio against log K and log 1/eps",
        detail="; ".join(notes),
    )  # fmt: skip


def tilted(bound: Bound, tilt: float) -> dict[str, Bound]:
    """Mutants of a bound: its order moved by K^tilt, log K and (after phase I) eps^tilt to the side where it must fail."""
    sides = {"O": {"lower": -1}, "Omega": {"higher": 1}, "Theta": {"lower": -1, "higher": 1}}[bound.side]
    found = {}
    for name, sign in sides.items():
        found[f"order {name} by K^{tilt}"] = replace(bound, tilt=sign * tilt)
        found[f"order {name} by log K"] = replace(bound, log_tilt=float(sign))
        if bound.stage != "I":
            found[f"order {name} by eps^{'-' * (sign > 0)}{tilt}"] = replace(bound, eps_tilt=sign * tilt)
    return found


LONG = ("$p_k=\\Theta(1/K)$", "$N\\gg K^3$: measured with counts $Np_k$")
STAGE_TWO = ("$\\log(1/\\epsilon)\\ll\\mathrm{polylog}(K)$", "small steps: see the record on step sizes")


def order(
    claim_id: str, label: str, title: str, statement: str, *bounds: Bound, tilt: float, uses: tuple[str, ...] = (),
    note: str | None = None, reconstruction: str | None = "Relation signs, minus signs and fractions restored.",
) -> Claim:  # fmt: skip
    """A record of an order statement; the mutants tilt the claimed order by K^tilt to the side it must not lie on."""
    return Claim(
        id=claim_id, label=label, kind="order", title=title, statement=statement,
        checks=tuple(
            Check(
                "drift of the worst ratio" + f", part {part + 1}" * (len(bounds) > 1), measured, bound,
                mutants=tilted(bound, tilt),
            )
            for part, bound in enumerate(bounds)
        ),
        hypotheses=(*LONG, *(STAGE_TWO if bounds[0].stage != "I" else ())),
        uses=uses, note=note, reconstruction=reconstruction, chapter="balanced",
    )  # fmt: skip


# Appendix C and Phase I


def _start(subject: Callable[[int], tuple[float, float]], fast: bool) -> Evidence:
    gaps = []
    for K in (2, 3, 4) if fast else (2, 3, 4, 5, 8):
        alpha, beta = subject(K)
        delta = population.descent(torch.zeros(K, K, dtype=torch.float64), prompts.mean_field([1 / K] * K, 1.0))
        gaps += [float(delta[0, 0]) / alpha - 1, float(delta[1, 0]) / beta - 1]
    return _tools.agree(gaps, np.zeros(len(gaps)), "K from 2 to 8, engine at Q = 0", tolerance=1e-12, source="rounding")


def _start_unequal(subject: tuple[float, float], fast: bool) -> Evidence:
    """Zero scores, half of the features RATIO times as likely: does alpha K^x stay above, below, and |beta| K^y below a constant?"""
    alphas, betas, sizes = [], [], (16, 32, 64)
    for K in sizes:
        low = 2 / (K * (1 + RATIO))
        law = prompts.mean_field([low * RATIO] * (K // 2) + [low] * (K // 2), 1.0)
        delta = population.descent(torch.zeros(K, K, dtype=torch.float64), law)
        off = delta - torch.diag(torch.diag(delta))
        alphas.append(
            [math.log(float(x)) + subject[0] * math.log(K) for x in (delta.diagonal().min(), delta.diagonal().max())]
        )
        betas.append(math.log(float(off.abs().max())) + subject[1] * math.log(K))
    drift = np.abs(np.diff(alphas, axis=0)[-1] / math.log(2)).max()
    rise = float(np.diff(betas)[-1] / math.log(2))
    return Evidence(
        bool(drift <= 0.06 and rise <= 0.06), "trend", len(sizes), "K = 16 to 64, long prompts, two kinds of features", residual=float(max(drift, rise)),
        tolerance=0.06, tolerance_source="slope of the log ratio at the largest sizes",
        detail=f"slope of alpha K^{subject[0]}: {drift:.3f} in size; of the largest |beta| K^{subject[1]}: {rise:.3f}",
    )  # fmt: skip


APP_C = Claim(
    id="conv.app-C.balanced",
    label="Appendix C, balanced scenarios",
    kind="text",
    title="Gradients at the start, balanced data",
    statement=r"""
At $t=0$ attention is $1/N$ per token and $\Theta(1/K)$ per feature, and $\alpha_k$ is of order $1/K^2$, $|\beta_{k,n}|$ of the smaller order $1/K^3$. With equal
probabilities and long prompts exactly $\alpha_k=(K-1)/K^3$ and $\beta_{k,n}=-1/K^3$.""",
    checks=(
        Check(
            "engine at zero scores", _start, lambda K: ((K - 1) / K**3, -1 / K**3),
            mutants={"alpha = 1/K^2": lambda K: (1 / K**2, -1 / K**3), "beta = +1/K^3": lambda K: ((K - 1) / K**3, 1 / K**3)},
        ),
        Check("unequal probabilities: orders 1/K^2 and, from above, 1/K^3", _start_unequal, (2.0, 3.0), mutants={"K^-2.1": (1.9, 3.0), "K^-3.2": (2.0, 3.2)}),
    ),
    hypotheses=("$p_k=\\Theta(1/K)$",),
    uses=("conv.lem-4.2.result",),
    reconstruction="Exponents restored; the relation before the second $\\Theta$ is lost, and is read as an upper order.",
    note=(
        "As a lower order $|\\beta_{k,n}|\\ge\\Omega(1/K^3)$ needs equal probabilities: with half of the features at $(2-\\sqrt2)/K$ and half at $\\sqrt2/K$ "
        "the leading term of $\\beta_{k,n}$ between two unlikely features vanishes. "
        "'Mirrors phase III' is true of the direction only: there $\\alpha_k$ is of order $K^{-1.5}$."
    ),
    chapter="balanced",
)  # fmt: skip

PHASE_ONE = (
    order(
        "conv.lem-E.1.attention", "Lemma E.1 (1)", "Attention on the target in phase I",
        r"While $A_k\le\log K$: $\mathrm{Attn}_k=\Omega(1/K)$ for a query $v_k$ and a prompt in $\mathcal E_{\mathrm{bal}}$.",
        Bound("I", lambda s: s.a * s.K, "Omega"), tilt=0.1, uses=("conv.ih-E.1",),
    ),
    order(
        "conv.lem-E.1.off", "Lemma E.1 (2)", "Attention off the target in phase I",
        r"While $A_k\le\log K$: $1-\mathrm{Attn}_k\ge\Omega(1)$; with equal probabilities it falls to about $1/2$ at the end.",
        Bound("I", lambda s: s.off, "Omega"), tilt=0.1, uses=("conv.ih-E.1",),
        note="The hypothesis writes $T_{k,1}$ for $T_{1,k}$.",
    ),
    order(
        "conv.lem-E.2", "Lemma E.2", "Attention on other features in phase I",
        r"While $A_k\le\log K$: $\mathrm{Attn}_n=\Theta((1-\mathrm{Attn}_k)/K)=\Theta(1/K)$ for $n\ne k$.",
        Bound("I", lambda s: s.c * s.K / s.off[:, None], "Theta"), Bound("I", lambda s: s.c * s.K, "Theta"), tilt=0.1, uses=("conv.lem-E.1.off",),
    ),
    order(
        "conv.lem-E.3", "Lemma E.3", "Growth of the target weight in phase I",
        r"While $A_k\le\log K$: $\alpha_k\ge\Omega(1/K^2)$. It is of that order at the start only and reaches order $1/K$ at the end.",
        Bound("I", lambda s: s.alpha * s.K**2, "Omega"), tilt=0.1, uses=("conv.lem-D.3", "conv.lem-E.1.off"),
    ),
    order(
        "conv.lem-E.4", "Lemma E.4", "Off-target updates in phase I",
        r"While $A_k\le\log K$: $|\beta_{k,n}|\le O(\alpha_k/K)$; exactly $\alpha_k/(K-1)$ with equal probabilities.",
        Bound("I", lambda s: np.abs(s.beta) * s.K / s.alpha[:, None], "O"), tilt=0.1,
        uses=("conv.lem-4.2.result.conserved",), note="The proof's last display writes $\\beta_{n,k}$ for $\\beta_{k,n}$.",
    ),
    order(
        "conv.ih-E.1", "Induction Hypothesis E.1", "Scores in phase I",
        r"While $A_k\le\log K$: $A_k$ increases within $[0,\log K]$ and $|B_{k,n}|=O(A_k/K)$; exactly $A_k/(K-1)$ with equal probabilities.",
        Bound("I", lambda s: np.abs(s.B[1:]) * s.K / s.A[1:, None], "O"), tilt=0.1,
        uses=("conv.lem-4.2.result.conserved", "conv.lem-4.2.result.sign"),
    ),
)  # fmt: skip


# Phase II


PHASE_TWO = (
    order(
        "conv.ih-E.2.scores", "Induction Hypothesis E.2", "Scores in stage I of phase II",
        r"For $T_{1,k}<t\le\tilde T_k$: $A_k$ increases within $[\log K,O(\log(K/\epsilon))]$, and every $B_{k,n}$ decreases with $|B_{k,n}|=O(A_k/K)$.",
        Bound("II.1", lambda s: np.abs(s.B) * s.K / s.A[:, None], "O"), Bound("II.1", lambda s: s.A / math.log(s.K / s.eps), "O"),
        tilt=0.1, uses=("conv.lem-E.8", "conv.lem-E.9.size", "conv.lem-E.9.sign"),
        note=(
            "Lemma E.10's proof bounds $A_k$ by $A_k-\\max_mB_{k,m}$ 'immediately'. For an unlikely query the largest $B_{k,m}$, that of another unlikely feature, is positive "
            "at $T_{1,k}$ as long as $\\log K<s/c-1$ with $c=K\\min p$, $s=K\\sum p_m^2$; then $A_k$ is larger by at most $O(A_k/K)$. For large $K$ the step holds."
        ),
    ),
    order(
        "conv.lem-E.6.attention", "Lemma E.6 (1)", "Attention on the target in stage I of phase II",
        r"For $T_{1,k}<t\le\tilde T_k$: $\mathrm{Attn}_k=\Omega(1)$.",
        Bound("II.1", lambda s: s.a, "Omega"), tilt=0.1, uses=("conv.ih-E.2.scores",),
    ),
    order(
        "conv.lem-E.6.off", "Lemma E.6 (2)", "Attention off the target in stage I of phase II",
        r"For $T_{1,k}<t\le\tilde T_k$: $(1-\mathrm{Attn}_k)^2\ge\Omega(\epsilon)$; with equal probabilities it is exactly $\epsilon/3$ at $\tilde T_k$.",
        Bound("II.1", lambda s: s.off**2 / s.eps, "Omega"), tilt=0.1, uses=("conv.ih-E.2.scores",),
        note="The proof writes $\\epsilon^{-1/2}-1$ where the definition of $\\tilde T_k$ has $(3/\\epsilon)^{1/2}-1$; only the constant changes.",
    ),
    order(
        "conv.lem-E.7", "Lemma E.7", "Attention on other features in stage I of phase II",
        r"For $T_{1,k}<t\le\tilde T_k$: $\mathrm{Attn}_n=\Theta((1-\mathrm{Attn}_k)/K)$.",
        Bound("II.1", lambda s: s.c * s.K / s.off[:, None], "Theta"), tilt=0.1, uses=("conv.ih-E.2.scores",),
    ),
    order(
        "conv.lem-E.8", "Lemma E.8", "Growth of the target weight in stage I of phase II",
        r"For $T_{1,k}<t\le\tilde T_k$: $\alpha_k\ge\Omega(\epsilon/K)$, an order it takes at the end of the stage.",
        Bound("II.1", lambda s: s.alpha * s.K / s.eps, "Omega"), tilt=0.1, uses=("conv.lem-E.6.off",),
    ),
    order(
        "conv.lem-E.9.size", "Lemma E.9", "Size of the off-target updates in stage I of phase II",
        r"For $T_{1,k}<t\le\tilde T_k$: $\beta_{k,n}\ge-O(\alpha_k/K)$.",
        Bound("II.1", lambda s: np.abs(s.beta) * s.K / s.alpha[:, None], "O"), tilt=0.1, uses=("conv.lem-4.2.result.conserved",),
    ),
    order(
        "conv.ih-E.3", "Induction Hypothesis E.3", "Scores in stage II of phase II",
        r"For $\tilde T_k<t\le T_{2,k}=\tilde T_k+O(K\log(K\epsilon^{-1/2})/(\epsilon\eta))$: $A_k$ increases and stays $O(\log(K/\epsilon))$.",
        Bound("II.2", lambda s: s.A / math.log(s.K / s.eps), "O"), tilt=0.1, uses=("conv.lem-E.13",),
    ),
    order(
        "conv.ih-E.3.off", "Induction Hypothesis E.3", "Off-target scores in stage II of phase II",
        r"For $\tilde T_k<t\le T_{2,k}$: every $B_{k,n}$ decreases with $|B_{k,n}|=O(A_k/K)$.",
        Bound("II.2", lambda s: np.abs(s.B) * s.K / s.A[:, None], "O"), tilt=0.1, uses=("conv.lem-E.14",),
    ),
    order(
        "conv.lem-E.11.attention", "Lemma E.11 (1)", "Attention on the target in stage II of phase II",
        r"For $\tilde T_k<t\le T_{2,k}$: $\mathrm{Attn}_k=\Omega(1)$.",
        Bound("II.2", lambda s: s.a, "Omega"), tilt=0.1, uses=("conv.ih-E.3",),
    ),
    order(
        "conv.lem-E.11.lower", "Lemma E.11 (2)", "Attention off the target in stage II of phase II, from below",
        r"""
For $\tilde T_k<t\le T_{2,k}$: $(1-\mathrm{Attn}_k)^2\ge\Omega(e^{-\mathrm{polylog}(K)})$. Measured: at least of order $\epsilon/\log(K\epsilon^{-1/2})$, which is of that kind as
$\log(1/\epsilon)\ll\mathrm{polylog}(K)$.""",
        Bound("II.2", lambda s: s.off**2 / s.eps * math.log(s.K / math.sqrt(s.eps)), "Omega"), tilt=0.1, uses=("conv.ih-E.3",),
    ),
    order(
        "conv.lem-E.12", "Lemma E.12", "Attention on other features in stage II of phase II",
        r"For $\tilde T_k<t\le T_{2,k}$: $\mathrm{Attn}_n=\Theta((1-\mathrm{Attn}_k)/K)$.",
        Bound("II.2", lambda s: s.c * s.K / s.off[:, None], "Theta"), tilt=0.1, uses=("conv.ih-E.3",),
    ),
    order(
        "conv.lem-E.13", "Lemma E.13", "Growth of the target weight in stage II of phase II",
        r"For $\tilde T_k<t\le T_{2,k}$: $0\le\alpha_k\le O(\epsilon/K)$, an order it takes at the start of the stage.",
        Bound("II.2", lambda s: s.alpha * s.K / s.eps, "O"), tilt=0.1, uses=("conv.lem-E.11.upper",),
    ),
    order(
        "conv.lem-E.14", "Lemma E.14", "Off-target updates in stage II of phase II",
        r"For $\tilde T_k<t\le T_{2,k}$: $-O(\alpha_k/K)\le\beta_{k,n}\le0$.",
        Bound("II.2", lambda s: np.where(s.beta <= 0, np.abs(s.beta) * s.K / s.alpha[:, None], np.inf), "O"), tilt=0.1,
        uses=("conv.lem-4.2.result.conserved",),
    ),
)  # fmt: skip


def _never(subject: tuple[str, Callable[[State], np.ndarray]], fast: bool) -> Evidence:
    """A margin that must not be negative anywhere on a stage."""
    stage, margin = subject
    values = [float(np.min(margin(equal(2.0**x, eps, stage)))) for x in (3, 10, 40, 100) for eps in (0.3, 0.01, 1e-4)]
    for x, eps in itertools.product((4, 10, 60) if fast else (3, 4, 10, 20, 60, 120), (0.01, 1e-4, 1e-8)):
        values += [float(np.min(margin(state))) for state in unequal(2.0**x, eps, stage)]
    return _tools.at_least(
        values, f"stage {stage}; equal p, K = 2^3 to 2^100, eps 0.3 to 1e-4; p = {LIKELY:g}/K and {UNLIKELY:g}/K, eps 1e-2 to 1e-8",
        tolerance=1e-9, source="rounding and integration; margins are relative",
    )  # fmt: skip


E9_SIGN = Claim(
    id="conv.lem-E.9.sign",
    label="Lemma E.9",
    kind="lemma",
    title="Off-target weights fall in phase II",
    statement=r"For $T_{1,k}<t\le\tilde T_k$: $\beta_{k,n}\le0$ for every $n\ne k$.",
    checks=(
        Check(
            "largest beta on the stage", _never, ("II.1", lambda s: -s.beta / s.alpha[:, None]),
            mutants={"the opposite sign": ("II.1", lambda s: s.beta / s.alpha[:, None])},
        ),
    ),
    hypotheses=(*LONG, *STAGE_TWO),
    uses=("conv.lem-E.9.eq-20",),
    chapter="balanced",
)  # fmt: skip


def _eq20(subject: Callable[[Any, int, int], Any], fast: bool) -> Evidence:
    """A lower bound on ``-(sum_{m != k} a_m^2 - a_n - a_k (1 - a_k))`` over the simplex, hunted for a violation."""
    worst = []
    for K in (3, 4) if fast else (2, 3, 4, 6, 10):

        def margin(x: np.ndarray, K: int = K) -> float:
            a = np.exp(6 * x)
            a = a / a.sum()
            bracket = float((a[1:] ** 2).sum() - a[1] - a[0] * (1 - a[0]))
            return -bracket - float(subject(a, 0, 1))

        worst.append(
            _tools.hunted(
                margin, [(-1, 1)] * K, f"attention on the simplex, K = {K}", seed=SEED, tolerance=1e-12,
                source="rounding", starts=1, budget=400 if fast else 3000,
            )
        )  # fmt: skip
    return _tools.merge(worst)


E9_STEP = Claim(
    id="conv.lem-E.9.eq-20",
    label="eq. (20), also (28)",
    kind="step",
    title="Bracket of the off-target update",
    statement=r"""
$\sum_{m\ne k}\mathrm{Attn}_m^2-\mathrm{Attn}_n-\mathrm{Attn}_k(1-\mathrm{Attn}_k)\le-(1-\mathrm{Attn}_k)(\mathrm{Attn}_k-\max_{m\ne k}\mathrm{Attn}_m)$ for every attention vector and $n\ne k$.""",
    checks=(
        Check(
            "slack of the inequality", _eq20, lambda a, k, n: (1 - a[k]) * (a[k] - max(np.delete(a, k))),
            mutants={
                "min instead of max": lambda a, k, n: (1 - a[k]) * (a[k] - min(np.delete(a, k))),
                "no max": lambda a, k, n: (1 - a[k]) * a[k] + a[n],
            },
        ),
    ),
    reconstruction="Minus signs restored.",
    uses=("conv.lem-D.3",),
    note="The slack is $\\mathrm{Attn}_n+\\sum_{m\\ne k}\\mathrm{Attn}_m(\\max-\\mathrm{Attn}_m)\\ge0$.",
    chapter="balanced",
)  # fmt: skip


def _event_off(odds: Callable[[float, float, float, float], float], fast: bool) -> Evidence:
    """``1 - 3 (1 - Attn_k)^2 / eps`` where ``exp(A_k - max B)`` is ``odds(K, L_k, U_k, eps)``: prompts and scores drawn.

    Counts within the window of V_k, its least included; other scores at most the largest one, equality included.
    """
    draw, margins = np.random.default_rng(SEED), []
    for trial in range(200 if fast else 2000):
        K, eps = int(draw.integers(2, 200)), 10.0 ** draw.uniform(-6, -0.05)
        mean = draw.uniform(0.3, min(3.0, 0.9 * K))
        c = draw.uniform(0.02, 0.98) * min(mean, 0.98 * K - mean)
        L, U = mean - c, mean + c
        held = (L if trial % 2 else draw.uniform(L, U)) / K
        others = draw.dirichlet(np.ones(K - 1)) * (1 - held)
        below = np.zeros(K - 1) if trial % 3 == 0 else -draw.exponential(1.0, K - 1)
        below[0] = 0.0
        rest = float(others @ np.exp(below)) / (held * odds(K, L, U, eps))
        margins.append(1 - 3 * (rest / (1 + rest)) ** 2 / eps)
    return _tools.at_least(
        margins,
        "K up to 200, random windows, counts and scores; eps from 1e-6 to 0.9",
        tolerance=1e-9,
        source="rounding",
        seed=SEED,
    )


E11_UPPER = Claim(
    id="conv.lem-E.11.upper",
    label="Lemma E.11 (2), E.10 (proof)",
    kind="lemma",
    title="Attention off the target in stage II of phase II",
    statement=r"For $\tilde T_k<t\le T_{2,k}$ and every prompt of $\mathcal E_{\mathrm{bal}}$: $(1-\mathrm{Attn}_k)^2\le\epsilon$, by the definition of $\tilde T_k$ even $\epsilon/3$.",
    checks=(
        Check(
            "largest 1 - Attn on the stage", _never, ("II.2", lambda s: 1 - s.off**2 / s.eps),
            mutants={"a tenth of eps": ("II.2", lambda s: 1 - 10 * s.off**2 / s.eps)},
        ),
        Check(
            "every prompt of the event, from the gap that ends stage I on", _event_off, lambda K, L, U, eps: (K / L - 1) * (math.sqrt(3 / eps) - 1),
            mutants={
                "U_k for L_k": lambda K, L, U, eps: (K / U - 1) * (math.sqrt(3 / eps) - 1),
                "eps for eps/3": lambda K, L, U, eps: (K / L - 1) * (math.sqrt(1 / eps) - 1),
            },
        ),
    ),
    hypotheses=(*LONG, *STAGE_TWO),
    uses=("conv.ih-E.3",),
    reconstruction="Brackets and the exponent restored. The lower end has its own record.",
    chapter="balanced",
)  # fmt: skip

E15 = Claim(
    id="conv.lem-E.15",
    label="Lemma E.15",
    kind="lemma",
    title="Loss on the good event in stage II",
    statement=r"For $\tilde T_k<t\le T_{2,k}$: $\tilde L_k<p_k\epsilon/2$ (joint with the query).",
    checks=(
        Check(
            "largest loss on the stage", _never,
            ("II.2", lambda s: 1 - s.loss / (s.share * s.eps / 2)),
            mutants={
                "an eighth": ("II.2", lambda s: 1 - s.loss / (s.share * s.eps / 8)),
                "p_k squared": ("II.2", lambda s: 1 - s.loss / (s.share**2 * s.eps / 2)),
            },
        ),
    ),
    hypotheses=(*LONG, *STAGE_TWO),
    reconstruction="The right-hand side lost its denominator; $p_k\\epsilon/2$ is the strongest plausible reading, and the proof of Theorem E.17 uses $2p_k\\epsilon/3$.",
    uses=("conv.lem-E.11.upper", "conv.lem-E.12"),
    chapter="balanced",
    note="With $(1-\\mathrm{Attn}_k)^2\\le\\epsilon$ of Lemma E.11 alone one gets $(1+O(1/K))p_k\\epsilon/2$; the strict bound needs $\\epsilon/3$, which Lemma E.10's proof has.",
)  # fmt: skip


# Times


@dataclass(frozen=True)
class Duration:
    """A time over its claimed order: ``log_time(K, eps)`` and ``log_order(K, eps)``."""

    log_time: Callable[[float, float], float]
    log_order: Callable[[float, float], float]


def duration(subject: Duration, fast: bool) -> Evidence:
    """Ratio of a time to its claimed upper order along K (eps fixed) and along 1/eps (K fixed): does it grow?"""
    log2_K = np.array([20, 50, 80, 120, 160, 200] if fast else list(range(10, 201, 10)), dtype=float)
    along_K = [subject.log_time(2.0**x, EPS) - subject.log_order(2.0**x, EPS) for x in log2_K]
    log10_eps = np.array([-2, -4, -6, -8, -10, -12, -14, -16], dtype=float)
    along_eps = [subject.log_time(64.0, 10.0**x) - subject.log_order(64.0, 10.0**x) for x in log10_eps]
    fits = [
        phases.exponent(list(log2_K * math.log(2)), along_K),
        phases.exponent(list(-log10_eps * math.log(10)), along_eps),
    ]
    growth = max(fit.high for fit in fits)
    plain = phases.exponent(list(log2_K * math.log(2)), [subject.log_time(2.0**x, EPS) for x in log2_K])
    return Evidence(
        growth <= FLAT, "trend", len(log2_K) + len(log10_eps), f"K = 2^{log2_K[0]:.0f} to 2^{log2_K[-1]:.0f} at eps = {EPS}; eps = 1e-2 to 1e-16 at K = 64; long prompts",
        residual=growth, tolerance=FLAT, tolerance_source="slope of the log ratio",
        detail=(
            f"time ~ K^{plain.power:.4f} (log K)^{plain.log_power:.3f} (+-{plain.power_error:.1g}, {plain.log_power_error:.1g}); "
            f"ratio to the claimed order at K = 2^{log2_K[-1]:.0f}: {math.exp(along_K[-1]):.3g}"
        ),
        data={"power": plain.power, "log_power": plain.log_power, "power_error": plain.power_error},
    )  # fmt: skip


def _log_phase_one(K: float, eps: float) -> float:
    return math.log(phases.balanced_phase_one(K)[0])


def _log_stage_one(K: float, eps: float) -> float:
    _, attention = phases.balanced_phase_one(K)
    return math.log(phases.alike_time(K, 1 / K, math.sqrt(eps / 3), start=1 - attention))


def _log_total(K: float, eps: float) -> float:
    return math.log(phases.balanced_loss_time(K, eps))


def _late_phase_one(K: float, eps: float) -> float:
    return math.log(unequal(K, eps, "I")[1].time[-1])


def _late_stage_one(K: float, eps: float) -> float:
    return math.log(unequal(K, eps, "II.1")[1].time[-1])


def _late_total(K: float, eps: float) -> float:
    """Log of the last feature's end of stage I, the proof's T, by which L - L* <= eps."""
    return float(np.logaddexp(_late_phase_one(K, eps), _late_stage_one(K, eps)))


def _first(K: float) -> float:
    return 2 * math.log(K) + math.log(math.log(K))


def _second(K: float, eps: float) -> float:
    return math.log(K) + math.log(math.log(K / math.sqrt(eps))) - math.log(eps)


def _both(K: float, eps: float) -> float:
    return float(np.logaddexp(_first(K), _second(K, eps)))


def timed(
    claim_id: str, label: str, title: str, statement: str, subject: Duration, mutants: dict[str, Duration],
    late: Callable[[float, float], float], *,
    uses: tuple[str, ...], note: str | None = None, kind: Kind = "order", same_as: tuple[str, ...] = (),
) -> Claim:  # fmt: skip
    """A record of an order statement on a time."""
    return Claim(
        id=claim_id, label=label, kind=kind, title=title, statement=statement,
        checks=(
            Check("ratio to the claimed order", duration, subject, mutants=mutants),
            Check(
                "the same with half of the features three times as likely, for the others", duration, replace(subject, log_time=late),
                mutants={name: replace(mutant, log_time=late) for name, mutant in mutants.items()},
            ),
        ),
        hypotheses=("$p_k=\\Theta(1/K)$", "$N\\gg K^3$: measured with counts $Np_k$", "small steps, or times rounded up to whole steps"),
        reconstruction="Fractions and exponents restored.", uses=uses, note=note, chapter="balanced", same_as=same_as,
    )  # fmt: skip


TIMES = (
    timed(
        "conv.lem-E.5.time", "Lemma E.5", "Length of phase I",
        r"$T_{1,k}=O(K^2\log K/\eta)$. Measured: $1/(p_k^2\eta)$ to leading order, $K^2/\eta$ with equal probabilities; the logarithm is not real.",
        Duration(_log_phase_one, lambda K, eps: _first(K)),
        {"K^1.9": Duration(_log_phase_one, lambda K, eps: 1.9 * math.log(K))}, _late_phase_one,
        uses=("conv.lem-E.3",),
        note="The logarithm appears because the smallest growth rate of the phase, that of its start, is used throughout.",
    ),
    timed(
        "conv.lem-E.10.time", "Lemma E.10", "Length of stage I of phase II",
        r"$\tilde T_k-T_{1,k}=O(K\log(K\epsilon^{-1/2})/(\eta\epsilon))$. Measured: $3/(2p_k\epsilon\eta)$ to leading order, without the logarithm.",
        Duration(_log_stage_one, _second),
        {
            "K^0.9": Duration(_log_stage_one, lambda K, eps: _second(K, eps) - 0.1 * math.log(K) - math.log(math.log(K))),
            "eps^-0.9": Duration(_log_stage_one, lambda K, eps: _second(K, eps) + 0.2 * math.log(eps)),
        },
        _late_stage_one,
        uses=("conv.lem-E.8",),
    ),
    timed(
        "conv.thm-3.2.loss", "Theorem 3.2 (1)", "The loss converges, and when",
        r"""
After at most $T=O\bigl(K^2\log K/\eta+K\log(K\epsilon^{-1/2})/(\epsilon\eta)\bigr)$ steps $L-L^*\le\epsilon$. Measured with equal probabilities:
$K^2/\eta+K/(4\epsilon\eta)$ to leading order, so that neither logarithm is real.""",
        Duration(_log_total, _both),
        {
            "without K^2": Duration(_log_total, lambda K, eps: _second(K, eps)),
            "without 1/eps": Duration(_log_total, lambda K, eps: _first(K)),
        },
        _late_total,
        uses=("conv.lem-D.8.lower", "conv.lem-E.5.time", "conv.lem-E.10.time"), same_as=("conv.thm-E.17",),
        note="$L^*=\\inf L$: see eq. (9). No bound on the step size is stated; with equal probabilities every step size converges.",
    ),
    timed(
        "conv.thm-3.2.text", "text after Theorem 3.2", "What the two terms measure",
        r"""
The first term is the length of phase I, in which $\mathrm{Attn}_k$ rises to a constant, the second that of phase II. Measured: $K^2/\eta$ until
$A_k=\log K$, where $\mathrm{Attn}_k\to\frac12$; phase II is the longer one only for $\epsilon\ll1/K$.""",
        Duration(_log_phase_one, lambda K, eps: _first(K)),
        {"the second term for phase I": Duration(_log_phase_one, lambda K, eps: _second(K, 0.5))}, _late_phase_one,
        uses=("conv.thm-3.2.loss", "conv.lem-E.5.time"),
    ),
)  # fmt: skip
TIMES = (
    *TIMES[:-1],
    replace(
        TIMES[-1],
        checks=(
            *TIMES[-1].checks,
            Check(
                "phase II over the second term", duration, Duration(_log_stage_one, _second),
                mutants={"the second term at K^0.9": Duration(_log_stage_one, lambda K, eps: _second(K, eps) - 0.1 * math.log(K) - math.log(math.log(K)))},
            ),
            Check(
                "attention after phase I", measured, Bound("II.1", lambda s: s.a[:1], "Omega"),
                mutants=tilted(Bound("II.1", lambda s: s.a[:1], "Omega"), 0.1),
            ),
        ),
    ),
)  # fmt: skip


def _reached(factor: float, fast: bool) -> Evidence:
    """Finite prompts, gradient descent, exact enumeration: steps until L - L_low <= eps against T with constant 1."""
    margins = []
    for p, N, eta in (
        (([1 / 3] * 3, 27, 3.0), ([1 / 3] * 3, 27, 30.0))
        if fast
        else (
            ([1 / 2] * 2, 8, 1.0), ([1 / 3] * 3, 27, 3.0), ([1 / 3] * 3, 27, 30.0), ([0.5, 0.3, 0.2], 27, 3.0), ([1 / 4] * 4, 64, 4.0),
        )
    ):  # fmt: skip
        K = len(p)
        law = prompts.multinomial(p, N)
        low = sum(x * y for x, y in zip(p, phases.unavoidable(K, p, N), strict=True))
        for eps in (0.1, 0.03):
            # All joint losses at most (eps + L_low) / K: L <= eps + L_low follows, and is the same for equal p.
            run = dynamics.gradient_descent(
                torch.zeros(K, K, dtype=torch.float64), law, eta=eta, threshold=(eps + low) / K, max_steps=100_000,
            )  # fmt: skip
            most = (K**2 * math.log(K) + K * math.log(K / math.sqrt(eps)) / eps) / eta + 1
            margins.append(1 - float(run.steps) / (factor * most))
    return _tools.at_least(
        margins,
        "K = 2 to 4, equal p and (.5, .3, .2), N from K^3, exact enumeration, steps up to 10 K",
        strength="swept",
    )


REACHED = Claim(
    id="conv.thm-3.2.loss.finite",
    label="Theorem 3.2 (1), finite prompts",
    kind="text",
    title="The bound with constant 1 at finite K and N",
    statement=r"""
For $K=2,3,4$ with equal probabilities, and for $p=(.5,.3,.2)$, prompts of $N\ge K^3$ tokens with all count vectors enumerated, $\eta\le10K$ and $\epsilon=0.1$ and $0.03$:
gradient descent reaches $L-L^{\mathrm{low}}\le\epsilon$ within $(K^2\log K+K\log(K\epsilon^{-1/2})/\epsilon)/\eta+1$ steps, the bound with constant 1.""",
    checks=(Check("steps against the bound", _reached, 1.0, mutants={"a tenth of the bound": 0.1}),),
    uses=("conv.thm-3.2.loss", "conv.eq-10-13"),
    note=(
        "So the theorem does not rest on the limit of long prompts. The constant depends on the spread of the probabilities, through $1/(Kp_k)^2$. For $\\epsilon$ below "
        "$L^*-L^{\\mathrm{low}}$, at most $L^{\\mathrm{low}}(K-2)/(KN)$ with equal probabilities, no number of steps is enough: the hypothesis $\\log(1/\\epsilon)\\ll\\mathrm{polylog}(K)$ excludes that."
    ),
    chapter="balanced",
)


def _concentrated(constant: float, fast: bool) -> Evidence:
    """``(1 - Attn_k)^2 <= constant * eps`` at the first step with L - L_low <= eps, on every prompt of a good event."""
    margins = []
    for K, N in ((2, 170),) if fast else ((2, 170), (3, 540)):
        law = prompts.multinomial([1 / K] * K, N)
        for eps in (0.1, 0.01):
            run = dynamics.gradient_descent(
                torch.zeros(K, K, dtype=torch.float64), law, eta=float(K), threshold=eps / K
            )
            weight = torch.exp(run.scores[:, 0] - run.scores[0, 0]) * law.counts
            off = 1 - weight[:, 0] / weight.sum(1)
            c = min(0.9, math.sqrt(20 * K**3 / N))
            good = ((law.counts - N / K).abs() <= c * N / K).all(1)
            margins.append(constant * eps - float((off[good] ** 2).max()))
    return _tools.at_least(margins, "K = 2 and 3, every prompt in the event, eps = 0.1 and 0.01")


def _concentrated_large(constant: float, fast: bool) -> Evidence:
    """``(1 - Attn_k)^2 <= constant * eps`` when L = eps, on the prompt of the event with the fewest v_k, c_bal = 1/2."""
    values = []
    for log2_K in (4, 20, 200) if fast else (4, 10, 20, 50, 100, 200):
        for eps in (0.1, 1e-2, 1e-4, 1e-8):
            K = 2.0**log2_K
            off = phases.alike_off(K, 1 / K, eps)
            odds = off / (1 - off) * (K / 0.5 - 1) / (K - 1)
            values.append(constant - (odds / (1 + odds)) ** 2 / eps)
    return _tools.at_least(
        values, "K = 2^4 to 2^200, eps = 0.1 to 1e-8, equal p, |V_k| = N/(2K): closed form",
        detail=f"largest (1 - Attn)^2 / eps: {constant - min(values):.4g}",
    )  # fmt: skip


def _at_time(when: str, fast: bool) -> Evidence:
    """``(1 - Attn_k)^2 / eps`` of every query at one time, eps = 1/sqrt(K): the proof's T, or the first time that L <= eps.

    Half of the features three times as likely as the others, and one feature half as likely as the others.
    """
    worst, where = 0.0, ""
    for log2_K in (10, 20, 40) if fast else (10, 20, 30, 40, 60):
        K, eps = 2.0**log2_K, 2.0 ** (-log2_K / 2)
        lone = ((K - 0.5) / (K - 1), 0.5), (K - 1, 1.0)
        for shares, numbers in (((LIKELY, UNLIKELY), (K / 2, K / 2)), lone):
            early, late = ([kinds(K, eps, stage, own, shares, numbers) for stage in ("I", "II.1")] for own in (0, 1))
            ends = [sum(float(stage.time[-1]) for stage in one) for one in (early, late)]
            if when == "proof":
                length = max(ends[1] - ends[0], 0.0)
                at_T = kinds(K, eps, "II.2", 0, shares, numbers, length=length) if length else early[1]
                offs = [float(at_T.off[-1]), float(late[1].off[-1])]
            elif numbers[1] != 1:
                # With half of the probability's order in each kind, L <= eps bounds every feature's loss by a multiple of eps.
                continue
            else:
                # The lone feature's loss is at most its value at zero; what is left of eps goes to the others.
                left = (eps - float(late[0].loss[0])) / numbers[0]
                when_low = float(early[0].time[-1] + np.interp(-left, -early[1].loss, early[1].time))
                offs = [float(np.interp(when_low, late[0].time, late[0].off))]
            if max(offs) ** 2 / eps > worst:
                worst = max(offs) ** 2 / eps
                where = (
                    f"K = 2^{log2_K}, K p_k down to {shares[1]}: (1 - Attn)^2 = {max(offs) ** 2:.3g} = {worst:.3g} eps"
                )
    return Evidence(
        worst <= 1, "swept", 6 if fast else 10, "K = 2^10 to 2^60, eps = K^-1/2, two kinds of features, counts at their expectation",
        margin=1 - worst, tolerance=0.0, tolerance_source="the proof's bound with constant 1", detail=where,
    )  # fmt: skip


CONCENTRATED = Claim(
    id="conv.thm-3.2.attention",
    label="Theorem 3.2 (2)",
    kind="order",
    title="Attention concentrates",
    statement=r"""
At the $T$ of the proof, the last feature's end of stage I, for a query $v_k$ and with probability at least $1-e^{-\Omega(\mathrm{poly}(K))}$ over the prompt,
$(1-\mathrm{Attn}_k)^2\le O(\epsilon)$. Measured: on every prompt of the good event with one constant, large because its windows are wide at small $K$; with equal probabilities
also when $L$ first is $\epsilon$, and a prompt with equal counts then has the constant $2(K-1)/K$.""",
    checks=(
        Check("worst prompt of the event", _concentrated, 60.0, mutants={"constant 0.1": 0.1}),
        Check("worst prompt of the event, large K", _concentrated_large, 10.0, mutants={"constant 4": 4.0}),
        Check(
            "unequal features, at the time of the proof", _at_time, "proof", mutants={"when L first is eps": "first"}
        ),
        Check("unequal features, when L first is eps", _at_time, "first", role="reading"),
    ),
    hypotheses=("$p_k=\\Theta(1/K)$", "prompt in $\\mathcal E_{\\mathrm{bal}}$"),
    note=(
        "Not at every $T$ with $L-L^*\\le\\epsilon$: a single feature of probability $1/(2K)$ adds at most $1/(2K)$ to $L$ and takes four times as long. When $L$ first is "
        "$\\epsilon=K^{-1/2}$ its attention has hardly moved."
    ),
    uses=("conv.thm-3.2.loss", "conv.lem-D.5.prob"),
    reconstruction="Minus sign and square restored.",
    chapter="balanced",
)

E10_END = Claim(
    id="conv.lem-E.10.end",
    label="Lemma E.10",
    kind="order",
    title="Target weight at the end of stage I",
    statement=r"At $\tilde T_k+1$: $A_k\ge\Omega(\log(K/\epsilon))$.",
    checks=(
        Check(
            "drift of the ratio at the start of stage II",
            measured,
            Bound("II.2", lambda s: s.A[:1] / math.log(s.K / s.eps), "Omega"),
            mutants=tilted(Bound("II.2", lambda s: s.A[:1] / math.log(s.K / s.eps), "Omega"), 0.1),
        ),
    ),
    hypotheses=(*LONG, *STAGE_TWO),
    uses=("conv.ih-E.2.scores",),
    chapter="balanced",
)

E5_END = Claim(
    id="conv.lem-E.5.end",
    label="Lemma E.5",
    kind="order",
    title="Attention at the end of phase I",
    statement=r"At $T_{1,k}+1$: $A_k\ge\log K$ and $\mathrm{Attn}_k=\Omega(1)$; with equal probabilities $\mathrm{Attn}_k\to\tfrac12$.",
    checks=(
        Check(
            "drift of the attention at the start of phase II",
            measured,
            Bound("II.1", lambda s: s.a[:1], "Omega"),
            mutants=tilted(Bound("II.1", lambda s: s.a[:1], "Omega"), 0.1),
        ),
    ),
    hypotheses=(*LONG,),
    uses=("conv.ih-E.1",),
    chapter="balanced",
)

E16 = Claim(
    id="conv.lem-E.16",
    label="Lemma E.16",
    kind="order",
    title="Induction Hypothesis E.3 lasts through stage II",
    statement=r"Induction Hypothesis E.3 holds for $\tilde T_k<t\le T_{2,k}$: $A_k$ increases there and stays $O(\log(K/\epsilon))$.",
    checks=(
        Check(
            "drift of A over log(K/eps)",
            measured,
            Bound("II.2", lambda s: s.A / math.log(s.K / s.eps), "O"),
            mutants=tilted(Bound("II.2", lambda s: s.A / math.log(s.K / s.eps), "O"), 0.1),
        ),
    ),
    hypotheses=(*LONG, *STAGE_TWO),
    uses=("conv.lem-E.13", "conv.lem-E.14"),
    chapter="balanced",
)


def _jumps(sizes: Callable[[float], list[float]], fast: bool) -> Evidence:
    """Largest ``A / log(K/eps)`` in stage II of phase II for gradient descent with given step sizes; eps = 1/K, equal p."""
    worst, where = 0.0, ""
    for log2_K in (8, 12) if fast else (8, 10, 12, 14):
        K = 2.0**log2_K
        for eta in sizes(K):
            A = _stage_two_scores(K, 1 / K, eta)
            if max(A) / (2 * math.log(K)) > worst:
                worst, where = max(A) / (2 * math.log(K)), f"K = 2^{log2_K}, eta = {eta:.4g}: A = {max(A):.4g}"
    return Evidence(
        worst <= 2, "swept", 1, "equal p, long prompts, eps = 1/K, K = 2^8 to 2^14", margin=2 - worst, tolerance=0.0,
        tolerance_source="constant 2 in O(log(K/eps))", detail=f"{where} = {worst:.3g} log(K/eps)",
    )  # fmt: skip


def _stage_two_scores(K: float, eps: float, eta: float) -> list[float]:
    """A at every step of stage II of phase II, from zero scores; equal probabilities, long prompts."""
    end, A, after = _stage_one_end(1 / K, eps), 0.0, 0
    found: list[float] = []
    while after <= _stage_two(K, eps) / eta:
        gap = A * K / (K - 1)
        if gap > end:
            after += 1
            if after <= _stage_two(K, eps) / eta:
                found.append(A)
        off = (K - 1) / (K - 1 + math.exp(min(gap, 700.0)))
        A += eta * (1 - off) * off**2 / (K - 1)
    return found


def _one_leap(_: Any, fast: bool) -> Evidence:
    K = 2.0**20
    eta = 1.1 * K**2 * math.log(K)
    A = _stage_two_scores(K, 1 / K, eta)[0]
    first = eta * (K - 1) / K**3
    return _tools.shows(
        A / (2 * math.log(K)), 100.0,
        f"K = 2^20, equal p, eps = 1/K, eta = 1.1 K^2 log K = {eta:.3g}: A = {first:.4g} after one step, between log K = {math.log(K):.4g} and the end of "
        f"stage I; after two A = {A:.4g} = {A / (2 * math.log(K)):.4g} log(K/eps), in stage II, which lasts {_stage_two(K, 1 / K) / eta:.3g} steps with constant 1.",
    )  # fmt: skip


STEP_SIZE = Claim(
    id="conv.ih-E.3.step-size",
    label="Induction Hypothesis E.3, Lemma E.16",
    kind="hypothesis",
    title="Stage II of phase II for every step size",
    statement=r"""
Induction Hypothesis E.3 (a), $A_k=O(\log(K/\epsilon))$ for $\tilde T_k<t\le T_{2,k}$, holds for every step size $\eta>0$: the paper states no bound on $\eta$.""",
    checks=(
        Check("eta up to 1.1 K^2 log K", _jumps, lambda K: [K * math.log(K), K**1.5, 1.1 * K**2 * math.log(K)]),
        Check("two steps", _one_leap, None, role="counterexample"),
        Check(
            "eta up to K log(K/eps)", _jumps, lambda K: [K, 2 * K * math.log(K)], role="conditional",
            mutants={"eta = 1.1 K^2 log K": lambda K: [1.1 * K**2 * math.log(K)]},
        ),
    ),
    why=(
        "Stage I ends with a step of size $\\eta\\alpha_k$, and $\\alpha_k$ can be of order $1/K$ there. The induction of Lemma E.16 starts at $A_k=O(\\log(K/\\epsilon))$ "
        "at $\\tilde T_k+1$, which is called easy to verify."
    ),
    added_hypothesis="$\\eta=O(K\\log(K/\\epsilon))$: as $\\alpha_k\\le p_k$, no step is then longer than $O(\\log(K/\\epsilon))$.",
    hypotheses=("$p_k=\\Theta(1/K)$", "$\\log(1/\\epsilon)\\ll\\mathrm{polylog}(K)$"),
    uses=("conv.ih-E.3", "conv.lem-E.13"),
    note=(
        "With unequal $p_k$ the spread of the $B_{k,n}$, of order $A_k/K$, is then no longer small, which Lemma E.12 uses. Theorem 3.2 does not need it, if $T$ is rounded up "
        "to whole steps: one step at least."
    ),
    chapter="balanced",
)  # fmt: skip


# Where the text needs care


def _stage_exists(least: Callable[[float], float], fast: bool) -> Evidence:
    """Stage I is not empty if its end, ``log((K/L - 1)(sqrt(3/eps) - 1))``, is not below the gap when A = log K.

    ``least(eps)`` is the largest L allowed; large K, where the gap at T_1 is log K (1 + O(1/K)).
    """
    slack = []
    for log2_K in (10, 30) if fast else (10, 20, 30, 50):
        K = 2.0**log2_K
        for eps in np.linspace(0.01, 0.99, 50):
            L = least(float(eps))
            slack.append(math.log((K / L - 1) * (math.sqrt(3 / eps) - 1)) - K / (K - 1) * math.log(K))
    return _tools.at_least(slack, "eps from 0.01 to 0.99, K = 2^10 to 2^50")


def _stage_empty(_: Any, fast: bool) -> Evidence:
    K, L, eps = 2.0**20, 1.8, 0.5
    end, gap = math.log((K / L - 1) * (math.sqrt(3 / eps) - 1)), K / (K - 1) * math.log(K)
    return _tools.shows(
        gap - end,
        0.05,
        f"K = 2^20, half of the features 1.9/K, half 0.1/K, so that c_bal < 0.1 and L_k > 1.8 for a likely one; eps = 0.5: the gap is already {gap:.4f} at T_1 "
        f"and the stage ends below {end:.4f}.",
    )


E2_EXISTS = Claim(
    id="conv.ih-E.2.exists",
    label="definition of the end of stage I",
    kind="text",
    title="Stage I of phase II is not empty",
    statement=r"""
For every $0<\epsilon<1$ and all $p_k=\Theta(1/K)$ there is an allowed $c_{\mathrm{bal}}$ (with every $L_k=p_kK-c_{\mathrm{bal}}>0$) for which the set whose maximum defines
$\tilde T_k=\max\{t>T_{1,k}:A_k-\max_mB_{k,m}\le\log((K/L_k-1)((3/\epsilon)^{1/2}-1))\}$ is not empty for any $k$.""",
    checks=(
        Check("a likely feature with L_k = 1.8", _stage_exists, lambda eps: 1.8),
        Check("an empty stage", _stage_empty, None, role="counterexample"),
        Check(
            "L_k below sqrt(3/eps) - 1",
            _stage_exists,
            lambda eps: min(1.8, 0.98 * (math.sqrt(3 / eps) - 1)),
            role="conditional",
            mutants={"L_k up to twice that": lambda eps: min(1.8, 2 * (math.sqrt(3 / eps) - 1))},
        ),
    ),
    why="For large $K$ the gap is about $\\log K$ when $A_k$ passes $\\log K$, and the stage's end is $\\log K+\\log((\\sqrt{3/\\epsilon}-1)/L_k)$.",
    added_hypothesis=(
        "$L_k<\\sqrt{3/\\epsilon}-1$ for every $k$. With equal probabilities a $c_{\\mathrm{bal}}\\ge0.27$ gives it for every $\\epsilon<1$; in general a choice of $c_{\\mathrm{bal}}$ exists if "
        "$K(\\max p-\\min p)<\\sqrt{3/\\epsilon}-1$."
    ),
    reconstruction="The stage's end is damaged; the proof of Lemma E.10 repeats it.",
    note="Harmless: where the stage is empty $(1-\\mathrm{Attn}_k)^2\\le\\epsilon/3$ holds from its beginning.",
    uses=("conv.lem-D.5.positive",),
    chapter="balanced",
)


def _oscillates(expected: bool, fast: bool) -> Evidence:
    """Whether any B of a balanced run with equal probabilities ever rises: exact short prompts and gradient descent."""
    rises = 0.0
    for K, N in ((2, 4), (3, 6)) if fast else ((2, 4), (3, 6), (3, 20), (4, 12)):
        law = prompts.multinomial([1 / K] * K, N)
        S = torch.zeros(K, K, dtype=torch.float64)
        for _ in range(300):
            delta = population.descent(S, law)
            rises = max(rises, float((delta * (1 - torch.eye(K, dtype=torch.float64))).max()))
            S = S + float(K) * delta
    return Evidence(
        (rises > 1e-12) == expected, "swept", 300, "equal p, K = 2 to 4, N from 4, 300 steps of size K", residual=rises,
        tolerance=1e-12, tolerance_source="rounding", detail=f"largest beta over the runs: {rises:.3g}",
    )  # fmt: skip


def _no_rise(_: Any, fast: bool) -> Evidence:
    law = exact_law([Fraction(1, 3)] * 3, 3)
    weights = _tools.fractions((3, 3), 1) * 0 + 1
    delta = sum(chance * _tools.exact_descent(weights, counts) for chance, counts in law)
    return _tools.shows(
        float(-delta[1, 0]),
        1e-3,
        f"K = 3, N = 3, Q = 0: alpha = {delta[0, 0]}, beta = {delta[1, 0]} = -alpha/2, and so at every later step.",
        strength="exact",
    )


def _turns(ratio: float, fast: bool) -> Evidence:
    """Long prompts, half of the features ``ratio`` times as likely: does a B of an unlikely query rise, then fall?"""
    K = 8
    low = 2 / (K * (1 + ratio))
    law = prompts.mean_field([low * ratio] * (K // 2) + [low] * (K // 2), 1.0)
    run = dynamics.gradient_descent(
        torch.zeros(K, K, dtype=torch.float64), law, eta=4.0, threshold=low * 0.2, record=30, max_steps=100_000
    )
    assert run.trajectory is not None
    moves = population.descent(run.trajectory.scores, law)[:, K - 2, K - 1]
    up, down = float(moves.max()), float(-moves.min())
    return Evidence(
        up > 1e-9 and down > 1e-9, "swept", len(moves), f"K = {K}, two kinds of features, query and key unlikely", margin=min(up, down),
        tolerance=1e-9, tolerance_source="above rounding", detail=f"largest beta {up:.3g}, smallest {-down:.3g}",
    )  # fmt: skip


SEC_E1 = (
    Claim(
        id="conv.sec-E.1.rate",
        label="Section E.1, phase I",
        kind="order",
        title="Rate of the target weight in phase I",
        statement=r"In phase I $A_k$ grows at a rate of at least $\Omega(\eta/K^2)$.",
        checks=(
            Check(
                "drift of the smallest rate", measured, Bound("I", lambda s: s.alpha * s.K**2, "Omega"),
                mutants=tilted(Bound("I", lambda s: s.alpha * s.K**2, "Omega"), 0.1),
            ),
        ),
        hypotheses=LONG,
        uses=("conv.lem-E.3",),
        chapter="balanced",
    ),
    Claim(
        id="conv.sec-E.1.off-rate",
        label="Section E.1, phase I",
        kind="order",
        title="Rate of the off-target weights in phase I",
        statement=r"""
At the start of phase I every $|\beta_{k,n}|$ is at most of order $1/K^3$, smaller than the rate of $A_k$. Measured: along the phase it grows with $\alpha_k$, to order $1/K^2$ at the end.""",
        checks=(
            Check(
                "at zero scores", measured, Bound("I", lambda s: np.abs(s.beta[:1]) * s.K**3, "O"),
                mutants=tilted(Bound("I", lambda s: np.abs(s.beta[:1]) * s.K**3, "O"), 0.1),
            ),
            Check("order at the end", measured, Bound("I", lambda s: np.abs(s.beta) * s.K**2, "O"), mutants=tilted(Bound("I", lambda s: np.abs(s.beta) * s.K**2, "O"), 0.1)),
            Check("order 1/K^3 along all of phase I", measured, Bound("I", lambda s: np.abs(s.beta) * s.K**3, "O"), role="reading"),
        ),
        hypotheses=LONG,
        uses=("conv.app-C.balanced", "conv.lem-E.4"),
        note=(
            "'At initialization' opens the sentence on both rates, so it is read as one on the start. As a rate along phase I, $1/K^3$ is false: with equal probabilities "
            "$|\\beta_{k,n}|=\\alpha_k/(K-1)$, which is about $1/(8K^2)$ when $A_k=\\log K$. The proof does not use it; Lemma E.4 has $O(\\alpha_k/K)$."
        ),
        chapter="balanced",
    ),
    Claim(
        id="conv.sec-E.1.oscillates",
        label="Section E.1, phase I",
        kind="text",
        title="The off-target weights oscillate in phase I",
        statement=r"For balanced data the $B_{k,n}$ oscillate in phase I: they do not move in one direction only.",
        checks=(
            Check("a rising B", _oscillates, True),
            Check("the first step, exactly", _no_rise, None, role="counterexample"),
            Check(
                "two kinds of features, ratio 3", _turns, RATIO, role="conditional",
                mutants={"equal probabilities": 1.0, "unequal, but only twice as likely": 2.0},
            ),
        ),
        why="The conserved sum makes $B_{k,n}=-A_k/(K-1)$ when all features are equally likely, and $A_k$ never falls.",
        added_hypothesis=(
            "$p_n+p_k(1-p_k)<\\sum_mp_m^2$ for some pair $n\\ne k$, so that $\\beta_{k,n}>0$ at the start: unequal $p_k=\\Theta(1/K)$ alone is not enough. With half of the features $r$ times "
            "as likely as the others it means $r>1+\\sqrt2$ for large $K$; the weight between two unlikely features then rises first and falls later."
        ),
        hypotheses=("$p_k=\\Theta(1/K)$",),
        uses=("conv.lem-4.2.result.conserved",),
        note="With equal probabilities every $B_{k,n}$ only falls, at $1/(K-1)$ times the rate of $A_k$. In the runs a weight turns once.",
        chapter="balanced",
    ),
    Claim(
        id="conv.sec-E.1.gap",
        label="Section E.1, stage I",
        kind="order",
        title="Gap of the scores in stage I",
        statement=r"In stage I of phase II the gap $A_k-\max_mB_{k,m}$ stays within $O(\log(K\epsilon^{-1/2}))$.",
        checks=(
            Check(
                "drift of the largest gap", measured,
                Bound("II.1", lambda s: (s.A - s.B.max(1)) / math.log(s.K / math.sqrt(s.eps)), "O"),
                mutants=tilted(Bound("II.1", lambda s: (s.A - s.B.max(1)) / math.log(s.K / math.sqrt(s.eps)), "O"), 0.1),
            ),
        ),
        hypotheses=(*LONG, *STAGE_TWO),
        uses=("conv.ih-E.2.scores",),
        chapter="balanced",
    ),
)  # fmt: skip


def _ends(K: float, eps: float) -> tuple[float, float, float]:
    """Flow times at which the likely and the unlikely features end stage I, and the likely one's loss at the later time."""
    ends = [
        sum(float(kinds(K, eps, stage, own, (LIKELY, UNLIKELY), (K / 2, K / 2)).time[-1]) for stage in ("I", "II.1"))
        for own in (0, 1)
    ]
    later = kinds(K, eps, "II.2", 0, (LIKELY, UNLIKELY), (K / 2, K / 2), length=ends[1] - ends[0])
    return ends[0], ends[1], float(later.loss[-1]) / (later.share * eps / 2)


def _common(power: float, fast: bool) -> Evidence:
    """Whether the spread of the ends of stage I over K^power log(K / sqrt eps) / eps stays bounded in K."""
    log2_K, eps = [5, 10, 20, 30, 40, 60] if fast else list(range(5, 61, 5)), 0.1
    logs = []
    for x in log2_K:
        K = 2.0**x
        early, late, _ = _ends(K, eps)
        logs.append(math.log(late - early) - math.log(_stage_two(K, eps)) - (power - 1) * math.log(K))
    fit = phases.exponent([x * math.log(2) for x in log2_K], logs)
    return Evidence(
        fit.high <= FLAT, "trend", len(log2_K), f"probabilities 1.5/K and 0.5/K, eps = {eps}, K = 2^5 to 2^60, long prompts",
        residual=fit.high, tolerance=FLAT, tolerance_source="slope of the log ratio",
        detail=f"ratio of the spread to the stage's length: {math.exp(logs[0]):.3g} at K = 32, {math.exp(logs[-1]):.3g} at K = 2^60",
    )  # fmt: skip


def _spread(_: Any, fast: bool) -> Evidence:
    K, eps = 32.0, 0.1
    early, late, _ = _ends(K, eps)
    stage = _stage_two(K, eps)
    return _tools.shows(
        (late - early) / stage - 1,
        0.5,
        f"K = 32, half of the features 1.5/K, half 0.5/K, eps = {eps}: stage I ends at flow times {early:.0f} and {late:.0f}; their distance is "
        f"{(late - early) / stage:.2f} times K log(K/sqrt eps)/eps and grows with K.",
    )


def _survives(factor: float, fast: bool) -> Evidence:
    ratios = [_ends(2.0**x, 0.1)[2] for x in ((3, 5, 20, 60) if fast else (3, 4, 5, 6, 10, 20, 40, 60))]
    return _tools.at_least(
        [factor - r for r in ratios], "K = 2^3 to 2^60: loss of the likely features at the common time over p_k eps / 2"
    )


THM_E17 = (
    Claim(
        id="conv.thm-E.17",
        label="Theorem E.17",
        kind="order",
        title="Restatement of Theorem 3.2",
        statement=r"""
For $p_k=\Theta(1/K)$, $N\ge\mathrm{poly}(K)$ and $\mathrm{polylog}(K)\gg\log(1/\epsilon)$: both parts of Theorem 3.2 with the same $T$.""",
        checks=(
            Check(
                "time to L = eps over the claimed order", duration, Duration(_log_total, _both),
                mutants={"without K^2": Duration(_log_total, lambda K, eps: _second(K, eps)), "without 1/eps": Duration(_log_total, lambda K, eps: _first(K))},
            ),
            Check("attention at that time", _concentrated, 60.0, mutants={"constant 0.1": 0.1}),
        ),
        uses=("conv.thm-3.2.loss", "conv.thm-3.2.attention"),
        same_as=("conv.thm-3.2.loss", "conv.thm-3.2.attention"),
        chapter="balanced",
    ),
    Claim(
        id="conv.thm-E.17.common-time",
        label="Theorem E.17, proof",
        kind="step",
        title="One time lies in stage II of every feature",
        statement=r"""
With $T=\max_k\tilde T_k+1$: $T\in(\tilde T_k,T_{2,k}]$ for every $k$, where stage II lasts $O(K\log(K\epsilon^{-1/2})/(\epsilon\eta))$.""",
        checks=(
            Check("spread of the ends of stage I over the length of stage II", _common, 1.0),
            Check("two kinds of features", _spread, None, role="counterexample"),
            Check("the losses at the common time", _survives, 1.0, role="corrected", mutants={"a hundredth of the bound": 0.01}),
        ),
        why=(
            "For $p_k=\\Theta(1/K)$ that differ by a constant factor the ends of stage I differ by $\\Theta(K^2/\\eta)$, which for fixed $\\epsilon$ exceeds the length of stage II for large $K$: "
            "likely features have left their stage II when the unlikely ones enter it."
        ),
        corrected="No upper end is needed: after $\\tilde T_k$ the weights keep moving the same way, so $\\tilde L_k$ stays below its bound, also at $T$.",
        uses=("conv.lem-E.10.time", "conv.lem-E.15"),
        note="The theorem stands.",
        chapter="balanced",
    ),
)  # fmt: skip

CLAIMS: tuple[Claim, ...] = (
    APP_C, *PHASE_ONE, *PHASE_TWO, STEP_SIZE, E9_SIGN, E9_STEP, E11_UPPER, E15, *TIMES, REACHED, CONCENTRATED, E10_END, E5_END,
    E16, E2_EXISTS, *SEC_E1, *THM_E17,
)  # fmt: skip

"""Records of the convergence paper's balanced case: Theorem 3.2, Appendix C's remark, Appendix E."""

from __future__ import annotations

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
EPS = 0.01
# A slope of log ratio against log K below this over the largest sizes counts as none; what it must tell apart is 0.1.
FLAT = 0.01


@dataclass(frozen=True)
class State:
    """A stretch of the trajectory of one query: arrays over time; off-target features in the last dimension."""

    K: float
    eps: float
    time: np.ndarray
    A: np.ndarray
    B: np.ndarray
    a: np.ndarray
    off: np.ndarray
    c: np.ndarray
    alpha: np.ndarray
    beta: np.ndarray
    loss: np.ndarray


@remember
def equal(K: float, eps: float, stage: str) -> State:
    """Equal probabilities, long prompts: the closed form of a stage, up to K = 2^200.

    By the conserved sum every B is -A/(K-1), so the gap u = A - B decides everything.
    """
    first = K / (K - 1) * math.log(K)
    end = math.log(K - 1) + math.log(math.sqrt(3 / eps) - 1)
    if stage == "I":
        gap = np.linspace(0, first, 200)
    elif stage == "II.1":
        gap = np.linspace(first, end, 200)[1:]
    else:
        # Stage II lasts K log(K / sqrt eps) / eps; its end is where the closed form has spent that time.
        spent = K * math.log(K / math.sqrt(eps)) / eps
        low, high = end, end + 60.0
        for _ in range(80):
            middle = (low + high) / 2
            off = 1 / (1 + math.exp(middle - math.log(K - 1)))
            late = phases.alike_time(K, 1 / K, off, start=math.sqrt(eps / 3))
            low, high = (middle, high) if late < spent else (low, middle)
        gap = np.linspace(end, low, 200)
    odds = np.exp(math.log(K - 1) - gap)
    off, a = odds / (1 + odds), 1 / (1 + odds)
    time = np.array([phases.alike_time(K, 1 / K, float(o)) if o < 1 - 1 / K else 0.0 for o in off])
    A = gap * (K - 1) / K
    alpha = a * off**2 / (K - 1)
    one = np.newaxis
    return State(
        K, eps, time, A, -A[:, one] / (K - 1), a, off, off[:, one] / (K - 1), alpha, -alpha[:, one] / (K - 1),
        off**2 / (2 * (K - 1)),
    )  # fmt: skip


@remember
def _unequal_run(K: int, eps: float) -> dynamics.Trajectory:
    """Gradient descent, long prompts, half of the features RATIO times as likely; until every (1 - a)^2 <= eps / 30."""
    low = 2 / (K * (1 + RATIO))
    p = [low * RATIO] * (K // 2) + [low] * (K // 2)
    law = prompts.mean_field(p, 1.0)
    run = dynamics.gradient_descent(
        torch.zeros(K, K, dtype=torch.float64), law, eta=float(K), threshold=low * eps / 60, record=60,
        max_steps=3_000_000,
    )  # fmt: skip
    assert run.trajectory is not None
    return run.trajectory


@remember
def unequal(K: int, eps: float, stage: str) -> tuple[State, ...]:
    """Both kinds of query in a run with unequal probabilities."""
    path = _unequal_run(K, eps)
    low = 2 / (K * (1 + RATIO))
    p = np.array([low * RATIO] * (K // 2) + [low] * (K // 2))
    law = prompts.mean_field(list(p), 1.0)
    attention = population.mean_attention(path.scores, law).numpy()
    delta = population.descent(path.scores, law).numpy()
    scores, losses = path.scores.numpy(), path.losses.numpy()
    found: list[State] = []
    for k in (0, K - 1):
        others = [n for n in range(K) if n != k]
        A, B = scores[:, k, k], scores[:, others, k]
        gap = A - B.max(1)
        end = math.log(1 / p[k] - 1) + math.log(math.sqrt(3 / eps) - 1)
        keep = {
            "I": math.log(K) >= A,
            "II.1": (math.log(K) < A) & (gap <= end),
            "II.2": (gap > end) & (losses[:, k] >= p[k] * eps / 60),
        }[stage]
        a = attention[:, k, k]
        c = attention[:, others, k]
        found.append(
            State(
                K, eps, path.times.numpy()[keep] * float(K), A[keep], B[keep], a[keep], c.sum(1)[keep], c[keep],
                delta[keep, k, k], delta[keep][:, others, k], losses[keep, k],
            )
        )  # fmt: skip
    return tuple(found)


Quantity = Callable[[State], np.ndarray]


@dataclass(frozen=True)
class Bound:
    """``quantity`` over its claimed order, on a stage; ``side`` says from which side the ratio must stay bounded."""

    stage: str
    ratio: Quantity
    side: str
    tilt: float = 0.0


def _extreme(values: np.ndarray, side: str) -> list[float]:
    flat = np.asarray(values, dtype=float).ravel()
    return [float(flat.min())] * (side != "O") + [float(flat.max())] * (side != "Omega")


def measured(bound: Bound, fast: bool) -> Evidence:
    """Worst ratio over the stage for K up to 2^200 (equal) and up to 64 (unequal): does it drift with K?

    ``tilt`` alters the claimed order by K^tilt.
    """
    sides = {"O": ["O"], "Omega": ["Omega"], "Theta": ["Omega", "O"]}[bound.side]
    log2_K = np.array([20, 60, 100, 150, 200] if fast else list(range(10, 201, 10)), dtype=float)
    passed, notes, worst = True, [], 0.0
    for side in sides:
        logs = []
        for x in log2_K:
            state = equal(2.0**x, EPS, bound.stage)
            logs.append(math.log(_extreme(bound.ratio(state), side)[0]) - bound.tilt * x * math.log(2))
        fit = phases.exponent(list(log2_K * math.log(2)), logs)
        drift = fit.low if side == "Omega" else fit.high
        # A ratio may fall towards 0 under an upper bound, and grow above a lower one.
        passed &= drift >= -FLAT if side == "Omega" else drift <= FLAT
        worst = max(worst, -drift if side == "Omega" else drift)
        notes.append(
            f"{'smallest' if side == 'Omega' else 'largest'} ratio {math.exp(logs[-1]):.3g} at K = 2^{log2_K[-1]:.0f}, "
            f"local slopes in [{fit.low:.4f}, {fit.high:.4f}]"
        )
        sizes = (8, 16) if fast else (8, 16, 32, 64)
        ends = [
            [
                math.log(max(1e-300, _extreme(bound.ratio(s), side)[0])) - bound.tilt * math.log(K)
                for s in unequal(K, EPS, bound.stage)
            ]
            for K in sizes
        ]
        last = np.array(ends)
        # Constants may depend on the spread of the probabilities: a factor RATIO^3 each way covers three such factors.
        room = 3 * math.log(RATIO) + 1
        reference = logs[0] if bound.tilt == 0 else last[0]
        gap = last - reference
        passed &= bool((gap >= -room).all()) if side == "Omega" else bool((gap <= room).all())
        notes.append(
            f"unequal p, K = {sizes[0]} to {sizes[-1]}: within a factor {math.exp(float(np.abs(gap).max())):.3g} of that"
        )
    return Evidence(
        passed, "trend", len(log2_K) + 2 * len(sizes), "K = 2^10 to 2^200 with equal p (closed form), 8 to 64 with unequal p",
        residual=worst, tolerance=FLAT, tolerance_source="slope of the log ratio against log K", detail="; ".join(notes),
    )  # fmt: skip


def tilted(bound: Bound, tilt: float) -> dict[str, Bound]:
    """Mutants of a bound: its order moved by K^tilt to the side where it must fail."""
    sides = {"O": {"lower": -tilt}, "Omega": {"higher": tilt}, "Theta": {"lower": -tilt, "higher": tilt}}[bound.side]
    return {
        f"order {name} by K^{tilt}": Bound(bound.stage, bound.ratio, bound.side, change)
        for name, change in sides.items()
    }


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
        hypotheses=("$p_k=\\Theta(1/K)$", "$N\\gg K^3$: measured with counts $Np_k$"),
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
        r"While $A_k\le\log K$: $\mathrm{Attn}_k=\Omega(1/K)$ for a query $v_k$ and a prompt in $\mathcal E_{bal}$.",
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
    for K in (8, 16) if fast else (8, 16, 32, 64):
        values += [float(np.min(margin(state))) for state in unequal(K, EPS, stage)]
    return _tools.at_least(
        values, f"stage {stage}; equal p, K = 2^3 to 2^100, eps 0.3 to 1e-4; unequal p, K up to 64", tolerance=1e-12,
        source="rounding; margins are relative",
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
    hypotheses=("$p_k=\\Theta(1/K)$, $N\\gg K^3$",),
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

E11_UPPER = Claim(
    id="conv.lem-E.11.upper",
    label="Lemma E.11 (2), E.10 (proof)",
    kind="lemma",
    title="Attention off the target in stage II of phase II",
    statement=r"For $\tilde T_k<t\le T_{2,k}$: $(1-\mathrm{Attn}_k)^2\le\epsilon$; it is at most $\epsilon/3$ up to the width of the event's windows.",
    checks=(
        Check(
            "largest 1 - Attn on the stage", _never, ("II.2", lambda s: 1 - s.off**2 / s.eps),
            mutants={"a tenth of eps": ("II.2", lambda s: 1 - 10 * s.off**2 / s.eps)},
        ),
    ),
    hypotheses=("$p_k=\\Theta(1/K)$, $N\\gg K^3$",),
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
            ("II.2", lambda s: 1 - s.loss / (_share(s) * s.eps / 2)),
            mutants={"an eighth": ("II.2", lambda s: 1 - s.loss / (_share(s) * s.eps / 8))},
        ),
    ),
    hypotheses=("$p_k=\\Theta(1/K)$, $N\\gg K^3$",),
    reconstruction="The right-hand side lost its denominator; $p_k\\epsilon/2$ is the strongest plausible reading, and the proof of Theorem E.17 uses $2p_k\\epsilon/3$.",
    uses=("conv.lem-E.11.upper", "conv.lem-E.12"),
    chapter="balanced",
    note="With $(1-\\mathrm{Attn}_k)^2\\le\\epsilon$ of Lemma E.11 alone one gets $(1+O(1/K))p_k\\epsilon/2$; the strict bound needs $\\epsilon/3$, which Lemma E.10's proof has.",
)  # fmt: skip


def _share(s: State) -> np.ndarray:
    """p_k, read off the state: loss = p_k / 2 (sum of squares + off^2)."""
    squares = (s.c**2).sum(1) if s.c.shape[1] > 1 else s.c[:, 0] ** 2 * (s.K - 1)
    return 2 * s.loss / (squares + s.off**2)


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
        growth <= FLAT, "trend", len(log2_K) + len(log10_eps), "K = 2^10 to 2^200 at eps = 0.01; eps = 1e-2 to 1e-16 at K = 64; closed form",
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


def _first(K: float) -> float:
    return 2 * math.log(K) + math.log(math.log(K))


def _second(K: float, eps: float) -> float:
    return math.log(K) + math.log(math.log(K / math.sqrt(eps))) - math.log(eps)


def _both(K: float, eps: float) -> float:
    return float(np.logaddexp(_first(K), _second(K, eps)))


def timed(
    claim_id: str, label: str, title: str, statement: str, subject: Duration, mutants: dict[str, Duration], *,
    uses: tuple[str, ...], note: str | None = None, kind: Kind = "order", same_as: tuple[str, ...] = (),
) -> Claim:  # fmt: skip
    """A record of an order statement on a time."""
    return Claim(
        id=claim_id, label=label, kind=kind, title=title, statement=statement,
        checks=(Check("ratio to the claimed order", duration, subject, mutants=mutants),),
        hypotheses=("$p_k=\\Theta(1/K)$", "$N\\gg K^3$: closed form for long prompts and equal $p_k$", "small steps"),
        reconstruction="Fractions and exponents restored.", uses=uses, note=note, chapter="balanced", same_as=same_as,
    )  # fmt: skip


TIMES = (
    timed(
        "conv.lem-E.5.time", "Lemma E.5", "Length of phase I",
        r"$T_{1,k}=O(K^2\log K/\eta)$. Measured: $K^2/\eta$ to leading order; the logarithm is not real.",
        Duration(_log_phase_one, lambda K, eps: _first(K)),
        {"K^1.9": Duration(_log_phase_one, lambda K, eps: 1.9 * math.log(K))},
        uses=("conv.lem-E.3",),
        note="The logarithm appears because the smallest growth rate of the phase, that of its start, is used throughout.",
    ),
    timed(
        "conv.lem-E.10.time", "Lemma E.10", "Length of stage I of phase II",
        r"$\tilde T_k-T_{1,k}=O(K\log(K\epsilon^{-1/2})/(\eta\epsilon))$. Measured: $3K/(2\epsilon\eta)$ to leading order, without the logarithm.",
        Duration(_log_stage_one, _second),
        {
            "K^0.9": Duration(_log_stage_one, lambda K, eps: _second(K, eps) - 0.1 * math.log(K) - math.log(math.log(K))),
            "eps^-0.9": Duration(_log_stage_one, lambda K, eps: _second(K, eps) + 0.2 * math.log(eps)),
        },
        uses=("conv.lem-E.8",),
    ),
    timed(
        "conv.thm-3.2.loss", "Theorem 3.2 (1)", "The loss converges, and when",
        r"""
After at most $T=O\bigl(K^2\log K/\eta+K\log(K\epsilon^{-1/2})/(\epsilon\eta)\bigr)$ steps $L-L^*\le\epsilon$. Measured: $K^2/\eta+K/(4\epsilon\eta)$ to leading
order, so that neither logarithm is real.""",
        Duration(_log_total, _both),
        {
            "without K^2": Duration(_log_total, lambda K, eps: _second(K, eps)),
            "without 1/eps": Duration(_log_total, lambda K, eps: _first(K)),
        },
        uses=("conv.lem-D.8.lower", "conv.lem-E.5.time", "conv.lem-E.10.time"), same_as=("conv.thm-E.17",),
        note="$L^*=\\inf L$: see eq. (9). No bound on the step size is stated; with equal probabilities every step size converges.",
    ),
    timed(
        "conv.thm-3.2.text", "text after Theorem 3.2", "What the two terms measure",
        r"""
The first term is the length of phase I, in which $\mathrm{Attn}_k$ rises to a constant, the second that of phase II. Measured: $K^2/\eta$ until
$A_k=\log K$, where $\mathrm{Attn}_k\to\frac12$; phase II is the longer one only for $\epsilon\ll1/K$.""",
        Duration(_log_phase_one, lambda K, eps: _first(K)),
        {"the second term for phase I": Duration(_log_phase_one, lambda K, eps: _second(K, 0.5))},
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
With prompts of finite length, all count vectors enumerated, gradient descent reaches $L-L^{low}\le\epsilon$ within
$(K^2\log K+K\log(K\epsilon^{-1/2})/\epsilon)/\eta+1$ steps: the bound holds with constant 1 there.""",
    checks=(Check("steps against the bound", _reached, 1.0, mutants={"a tenth of the bound": 0.1}),),
    uses=("conv.thm-3.2.loss", "conv.eq-10-13"),
    note="So the theorem does not rest on the limit of long prompts.",
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


CONCENTRATED = Claim(
    id="conv.thm-3.2.attention",
    label="Theorem 3.2 (2)",
    kind="order",
    title="Attention concentrates",
    statement=r"""
At that $T$, for a query $v_k$ and with probability at least $1-e^{-\Omega(\mathrm{poly}(K))}$ over the prompt, $(1-\mathrm{Attn}_k)^2\le O(\epsilon)$. Measured:
on every prompt of the good event with one constant, large because its windows are wide at small $K$; a prompt with equal counts has the
constant $2(K-1)/K$.""",
    checks=(
        Check("worst prompt of the event", _concentrated, 60.0, mutants={"constant 0.1": 0.1}),
        Check("worst prompt of the event, large K", _concentrated_large, 10.0, mutants={"constant 4": 4.0}),
    ),
    hypotheses=("prompt in $\\mathcal E_{bal}$",),
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
            mutants={"order higher by K^0.1": Bound("II.2", lambda s: s.A[:1] / math.log(s.K / s.eps), "Omega", 0.1)},
        ),
    ),
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
            mutants={"order higher by K^0.1": Bound("II.1", lambda s: s.a[:1], "Omega", 0.1)},
        ),
    ),
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
            mutants={"order lower by K^0.1": Bound("II.2", lambda s: s.A / math.log(s.K / s.eps), "O", -0.1)},
        ),
    ),
    uses=("conv.lem-E.13", "conv.lem-E.14"),
    chapter="balanced",
)


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
For every $0<\epsilon<1$ and all $p_k=\Theta(1/K)$ there is an allowed $c_{bal}$ (with every $L_k=p_kK-c_{bal}>0$) for which the set whose maximum defines
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
        "$L_k<\\sqrt{3/\\epsilon}-1$ for every $k$. With equal probabilities a $c_{bal}\\ge0.27$ gives it for every $\\epsilon<1$; in general a choice of $c_{bal}$ exists if "
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
        torch.zeros(K, K, dtype=torch.float64), law, eta=4.0, threshold=low * 0.01, record=30, max_steps=100_000
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
                mutants={"order higher by K^0.1": Bound("I", lambda s: s.alpha * s.K**2, "Omega", 0.1)},
            ),
        ),
        uses=("conv.lem-E.3",),
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
                "two kinds of features", _turns, RATIO, role="conditional", mutants={"equal probabilities": 1.0},
            ),
        ),
        why="The conserved sum makes $B_{k,n}=-A_k/(K-1)$ when all features are equally likely, and $A_k$ never falls.",
        added_hypothesis="Unequal $p_k=\\Theta(1/K)$: there the weight between two unlikely features rises first and falls later.",
        hypotheses=("$p_k=\\Theta(1/K)$",),
        uses=("conv.lem-4.2.result.conserved",),
        note="With equal probabilities every $B_{k,n}$ only falls, at $1/(K-1)$ times the rate of $A_k$.",
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
                mutants={
                    "order lower by K^0.1": Bound("II.1", lambda s: (s.A - s.B.max(1)) / math.log(s.K / math.sqrt(s.eps)), "O", -0.1)
                },
            ),
        ),
        uses=("conv.ih-E.2.scores",),
        chapter="balanced",
    ),
)  # fmt: skip


@remember
def _ends(K: int, eps: float) -> tuple[float, float, float]:
    """Flow times at which the likely and the unlikely features end stage I, and the likely one's loss at the later time."""
    early, late = (unequal(K, eps, "II.1")[i].time[-1] for i in (0, 1))
    path = _unequal_run(K, eps)
    at = int(np.searchsorted(path.times.numpy() * float(K), late))
    low = 2 / (K * (1 + RATIO))
    return float(early), float(late), float(path.losses[at, 0]) / (low * RATIO * eps / 2)


def _common(power: float, fast: bool) -> Evidence:
    """Whether the spread of the ends of stage I over K^power log(K / sqrt eps) / eps stays bounded in K."""
    sizes, eps = ((8, 16, 32) if fast else (8, 16, 32, 64)), 0.1
    logs = []
    for K in sizes:
        early, late, _ = _ends(K, eps)
        logs.append(math.log(late - early) - power * math.log(K) - math.log(math.log(K / math.sqrt(eps)) / eps))
    slope = float(np.diff(logs)[-1] / math.log(2))
    return Evidence(
        slope <= 0.1, "trend", len(sizes), f"probabilities 1.5/K and 0.5/K, eps = {eps}, K = {sizes[0]} to {sizes[-1]}, long prompts",
        residual=slope, tolerance=0.1, tolerance_source="slope of the log ratio at the largest sizes",
        detail=f"ratio of the spread to the stage's length: {', '.join(f'{math.exp(x):.3g}' for x in logs)}",
    )  # fmt: skip


def _spread(_: Any, fast: bool) -> Evidence:
    K, eps = 32, 0.1
    early, late, _ = _ends(K, eps)
    stage = K * math.log(K / math.sqrt(eps)) / eps
    return _tools.shows(
        (late - early) / stage - 1,
        0.5,
        f"K = 32, half of the features 1.5/K, half 0.5/K, eps = {eps}: stage I ends at flow times {early:.0f} and {late:.0f}; their distance is "
        f"{(late - early) / stage:.2f} times K log(K/sqrt eps)/eps and grows with K.",
    )


def _survives(factor: float, fast: bool) -> Evidence:
    ratios = [_ends(K, 0.1)[2] for K in ((8, 16, 32) if fast else (8, 16, 32, 64))]
    return _tools.at_least(
        [factor - r for r in ratios], "same runs: loss of the likely features at the common time over p_k eps / 2"
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
            Check("the losses at the common time", _survives, 1.0, role="corrected", mutants={"a thousandth of the bound": 0.001}),
        ),
        why=(
            "For unequal $p_k=\\Theta(1/K)$ the ends of stage I differ by $\\Theta(K^2/\\eta)$, which for fixed $\\epsilon$ exceeds the length of stage II for large $K$: "
            "likely features have left their stage II when the unlikely ones enter it."
        ),
        corrected="No upper end is needed: after $\\tilde T_k$ the weights keep moving the same way, so $\\tilde L_k$ stays below its bound, also at $T$.",
        uses=("conv.lem-E.10.time", "conv.lem-E.15"),
        note="The theorem stands.",
        chapter="balanced",
    ),
)  # fmt: skip

CLAIMS: tuple[Claim, ...] = (
    APP_C, *PHASE_ONE, *PHASE_TWO, E9_SIGN, E9_STEP, E11_UPPER, E15, *TIMES, REACHED, CONCENTRATED, E10_END, E5_END,
    E16, E2_EXISTS, *SEC_E1, *THM_E17,
)  # fmt: skip

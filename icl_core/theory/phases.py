"""Convergence paper: closed forms for the times and scores of every phase, the sizes its windows need, and a report.

Times are flow times, eta times steps, for prompts long enough that counts are N p.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from icl_core import _validate, mean_field
from icl_core.mean_field import Flow, log_minus, log_size
from icl_core.prompts import PromptLaw
from icl_core.theory._statement import statement

# The windows of the proofs: exponents of K, that is multiples of log K (Lemmas 4.3 and 4.4).
DOMINANT_HIGH, DOMINANT_LOW, GAP, TARGET = -0.49, -0.51, 1.01, 0.5


def _antiderivative(attention: float, off: float) -> float:
    """``int da / (a^2 (1-a)^3)``; ``off`` is 1 - a, given apart because it may be tiny."""
    return 3 * math.log(attention / off) - 1 / attention + 2 / off + 1 / (2 * off**2)


def alike_time(K: float, share: float, off: float, start: float | None = None) -> float:
    """Exact time at which ``1 - Attn`` has fallen to ``off``, when the off-target features are alike.

    Balanced data: ``share`` = 1/K. Dominant query: ``share`` = p1. With ``a = 1 - off`` the gap's equation
    integrates to ``((K-1)/K)^2 (F(a) - F(share)) / share``,
    ``F(a) = 3 log(a/(1-a)) - 1/a + 2/(1-a) + 1/(2 (1-a)^2)``.

    Parameters
    ----------
    K : float
        Number of features, at least 2.
    share : float
        Probability of the query's feature, in (0, 1).
    off : float
        Attention not on the target, in (0, 1 - share].
    start : float, optional
        Count the time from where ``1 - Attn`` was this; from zero scores, 1 - share, by default.

    Returns
    -------
    float
        For share = 1/K this is ``K^2 + K / (2 off^2)`` to leading order: neither logarithm of the paper's bound
        is in it. For share = p1 it is ``1 / (2 p1 off^2)``.

    Raises
    ------
    ValueError
        If an argument is out of range.

    Notes
    -----
    Sharpens the convergence paper's Theorems 3.2 (time) and 3.3 (dominant feature).
    """
    _validate.real("K", K, least=2)
    share = _validate.real("share", share, above=0.0, below=1.0)
    # The share itself, not 1 - (1 - share), which is 0 from K = 2^53 on.
    first = share if start is None else 1 - _validate.real("start", start, above=0.0, most=1 - share)
    start = 1 - share if start is None else start
    off = _validate.real("off", off, above=0.0, most=start)
    spent = _antiderivative(1 - off, off) - _antiderivative(first, start)
    return ((K - 1) / K) ** 2 * spent / share


def alike_off(K: float, share: float, loss: float) -> float:
    """``1 - Attn`` at which the conditional loss ``K (1-Attn)^2 / (2 (K-1))`` is ``loss`` (paper: Lemma D.7)."""
    _validate.real("K", K, least=2)
    _validate.real("share", share, above=0.0, below=1.0)
    return math.sqrt(2 * (K - 1) / K * _validate.real("loss", loss, above=0.0))


def balanced_loss_time(K: float, eps: float) -> float:
    """Exact time at which the balanced total loss is ``eps``; 0 if it starts there (Theorem 3.2 (1))."""
    off = alike_off(K, 1 / K, eps)
    return alike_time(K, 1 / K, off) if off < 1 - 1 / K else 0.0


def dominant_loss_time(K: float, p1: float, eps: float) -> float:
    """Exact time at which ``L_1 = eps``; 0 if it starts there (Theorem 3.3 (1), Lemma C.1)."""
    off = alike_off(K, p1, eps)
    return alike_time(K, p1, off) if off < 1 - p1 else 0.0


def balanced_phase_one(K: float) -> tuple[float, float]:
    """Time T_1 at which A = log K in the balanced case, and the attention there (Lemma E.5).

    The attention is ``1 / (1 + (K-1) K^(-K/(K-1)))``, close to 1/2.
    """
    _validate.real("K", K, least=2)
    odds = (K - 1) * math.exp(-K / (K - 1) * math.log(K))
    return alike_time(K, 1 / K, odds / (1 + odds)), 1 / (1 + odds)


def gradient_at_zero(log_K: float, p1: float) -> tuple[float, float, float]:
    """Exact ``(K beta_1, K^2 alpha, K^2 beta_n)`` of an under-represented query at zero scores (Section 4.2.1).

    The limits are ``-p1^2 (1-p1)^2``, ``(1-p1)^2 (1+p1^2)`` and ``p1^2 (1-p1)^2``.
    """
    p1 = _validate.real("p1", p1, above=0.0, below=1.0)
    inverse = math.exp(-log_K)
    scaled = (1 - p1) / (1 - inverse)  # K q
    q = scaled * inverse
    squares = p1**2 + scaled * (1 - p1) * inverse * (1 - 2 * inverse) / (1 - inverse)
    return (
        scaled * p1 * (squares - p1 - q * (1 - q)),
        scaled**2 * (squares + (1 - q) ** 2),
        scaled**2 * (squares - q - q * (1 - q)),
    )


def suppression(p1: float) -> float:
    """``r = sqrt(2) p1 / (1 - p1)``: B1 settles at ``-(1/2) log K - log r``; 1 at p1 = sqrt(2) - 1."""
    p1 = _validate.real("p1", p1, above=0.0, below=1.0)
    return math.sqrt(2) * p1 / (1 - p1)


def phase_curve(log_K: float, p1: float, A: float) -> float:
    """Score of the dominant feature on the limiting path, as a function of the target's.

    For large K the two scores of an under-represented query obey
    ``2 K (1 - exp(-A)) (p1/(1-p1))^2 exp(2 B1) = 1``, once ``|B1|`` is large.
    """
    A = _validate.real("A", A, above=0.0)
    return -0.5 * (log_K + math.log(-math.expm1(-A))) - math.log(suppression(p1))


def suppression_time(p1: float, b: float) -> float:
    """Leading order in K of ``T / K`` when Attn_1 of an under-represented query has fallen from p1 to ``b``.

    ``db/dt = -q b^3 (1-b)^2`` while A is small, so ``q T = G(p1) - G(b)``,
    ``G(b) = -1/(2b^2) - 2/b + 3 log(b/(1-b)) + 1/(1-b)`` (phase I, Lemma 4.3).
    """
    p1 = _validate.real("p1", p1, above=0.0, below=1.0)
    b = _validate.real("b", b, above=0.0, most=p1)

    def G(x: float) -> float:
        return -1 / (2 * x * x) - 2 / x + 3 * math.log(x / (1 - x)) + 1 / (1 - x)

    return (G(p1) - G(b)) / (1 - p1)


@dataclass(frozen=True)
class LeadingTimes:
    """Logarithms of the phase times of an under-represented query, to leading order in K.

    ``T1`` (B1 = -0.49 log K) is nan where A explodes first; ``T32`` is T3 - T2; ``T43`` is the paper's T4 - T3.
    """

    T1: float
    T2: float
    T32: float
    T43: float


def leading_times(log_K: float, p1: float, eps: float) -> LeadingTimes:
    """Logarithms of the phase times for large K, to leading order.

    T1 = ``(1-p1)/(2 p1^2) K^1.98``, T2 = ``K^2/(1-p1)``, T3 - T2 = ``r K^1.49/(1-p1)``,
    T4 - T3 = ``3 e^2 K/(2 (1-p1) eps)``. The bounds they sharpen carry a factor log K or
    log(K eps^-1/2) that is not there (Lemmas 4.3-4.6).
    """
    r = suppression(p1)
    eps = _validate.real("eps", eps, above=0.0, below=1.0)
    first = math.log((1 - p1) / (2 * p1**2)) - 2 * DOMINANT_HIGH * log_K + log_K
    exists = math.log(r) + 0.01 * log_K > 0
    return LeadingTimes(
        first if exists else math.nan,
        2 * log_K - math.log1p(-p1),
        1.49 * log_K + math.log(r / (1 - p1)),
        log_K + 2 + math.log(3 / (2 * (1 - p1) * eps)),
    )


def window_log2_K(p1: float) -> tuple[float, float]:
    """Leading-order log2 K from which B1 at T2 is at most -0.49 log K, and from which it is at least -0.51 log K.

    B1 settles at ``-log(K)/2 - log r``, so the two are ``-100 log2 r`` and ``100 log2 r`` (0 where that is negative):
    only at p1 = sqrt(2) - 1 do both hold at moderate K (Lemma 4.4, Induction Hypothesis F.2).
    """
    exponent = 100 * math.log2(suppression(p1))
    return max(0.0, -exponent), max(0.0, exponent)


def near_zero_log2_K(p1: float, bound: float) -> float:
    """Leading-order log2 K from which ``A(T1) <= bound``: "remains close to zero" (Lemma 4.3); 0 if always.

    ``1 - exp(-A(T1)) = (1-p1)^2 / (2 p1^2) K^-0.02``: the window closes like the fiftieth root of K.
    """
    r, bound = suppression(p1), _validate.real("bound", bound, above=0.0)
    return max(0.0, -50 * math.log2(r * r * -math.expm1(-bound)))


def proof_log2_K(p1: float) -> float:
    """log2 K from which the contradiction in the proof of Lemma F.12 works, to leading order.

    From B1 = -0.501 log K on it needs A to outgrow B1's fall of 0.009 log K up to 0.5 log K, that is a ratio
    ``alpha / |beta_1|`` above 500/9; the ratio is ``K^0.002 ((1-p1)/p1)^2``, taken with
    ``|beta_1| <= p_k Attn_1^2`` alone.
    """
    p1 = _validate.real("p1", p1, above=0.0, below=1.0)
    return max(0.0, 500 * math.log2(500 / 9 * (p1 / (1 - p1)) ** 2))


def target_end(log_K: float, p1: float, eps: float) -> float:
    """Level of A that ends phase IV, with the counts at their expectation (Appendix F.5).

    ``log( ((e (1-L1) K + U1 K^0.51) / L_k - e) ((3/eps)^(1/2) - 1) )``, L1 = U1 = p1 and L_k = K p_k.
    """
    eps = _validate.real("eps", eps, above=0.0, below=1.0)
    log_scaled = math.log1p(-p1) + log_K - log_minus(log_K, 1)
    log_sum = np.logaddexp(1 + math.log1p(-p1) + log_K, math.log(p1) + 0.51 * log_K)
    # The term -e is (K^-1) of the rest.
    log_ratio = float(log_sum) - log_scaled
    return log_ratio + math.log1p(-math.exp(1 - log_ratio)) + math.log(math.sqrt(3 / eps) - 1)


@dataclass(frozen=True)
class Window:
    """One stated window, and whether it holds.

    Parameters
    ----------
    claim : str
        Id in the ledger.
    text : str
        The statement.
    margin : float
        How far inside; negative outside, nan where the phase does not exist.
    """

    claim: str
    text: str
    margin: float

    @property
    def holds(self) -> bool:
        """Whether the window holds (a phase that does not exist fails)."""
        return self.margin >= 0


@dataclass(frozen=True)
class Report:
    """What the exact dynamics does with the phases of an under-represented query.

    Parameters
    ----------
    log_K, p1, eps : float
        The setting.
    clock : dict of str to float
        Values of ``s = A - B1`` at ``T1`` ... ``T4`` and ``loss`` (L_k = eps); nan where not reached.
    log_times : dict of str to float
        Logarithms of the times there, and of the lengths ``T2-T1``, ``T3-T2``, ``T4-T3``.
    rows : list of dict
        Scores, attention and log-rates at each boundary (and at ``start``).
    windows : list of Window
        The explicit windows.
    flow : Flow
        The path.
    """

    log_K: float
    p1: float
    eps: float
    clock: dict[str, float]
    log_times: dict[str, float]
    rows: list[dict[str, float | str]]
    windows: list[Window]
    flow: Flow


def run(log_K: float, p1: float, eps: float, law: PromptLaw | None = None) -> tuple[Flow, dict[str, float]]:
    """Integrate an under-represented query past its fourth phase; return the path and the clock at each boundary.

    Boundaries (Appendix F): T1 last time with ``B1 >= -0.49 log K``, T2 with ``A - B1 <= 1.01 log K``, T3 with
    ``A <= log K``, T4 with ``A`` at most :func:`target_end`; they are first crossings, since A and -B1 only grow.
    ``loss`` is where L_k = eps.
    """
    last = max(target_end(log_K, p1, eps), log_K) + 0.1
    end = max(last, log_K + 0.5 * math.log(1 / eps) + 1)
    path = mean_field.flow(log_K, p1, A_end=end, law=law, rtol=1e-11 if law is None else 1e-7)
    clock = {
        "T1": path.when_B1(DOMINANT_HIGH * log_K),
        "T2": path.when(lambda s: float(path.A(s) - path.B1(s)) - GAP * log_K),
        "T3": path.when_A(log_K),
        "T4": path.when_A(target_end(log_K, p1, eps)),
        "loss": path.when_loss(eps),
    }
    return path, clock


def report(
    K: float | None = None,
    p1: float = 0.5,
    eps: float = 0.1,
    *,
    log2_K: float | None = None,
    law: PromptLaw | None = None,
) -> Report:
    """Phase times, scores and rates of an under-represented query at each boundary, and which stated windows hold.

    Parameters
    ----------
    K, log2_K : float
        Number of features (at least 3), or its binary logarithm.
    p1 : float
        Probability of the dominant feature, between 1/K and 1.
    eps : float
        Target of the conditional loss, in (0, 1).
    law : PromptLaw, optional
        Finite prompts (enumerated or sampled counts) in place of the limit of long ones. Drift and loss are then
        averages over them; attention is that of the prompt with expected counts.

    Raises
    ------
    ValueError
        For arguments out of range.

    Notes
    -----
    Convergence paper, Lemmas 4.3-4.6 and Appendix F.
    """
    log_K = log_size(K, log2_K)
    path, clock = run(log_K, p1, eps, law)
    log_times = {name: float(path.log_time(s)) if s == s else math.nan for name, s in clock.items()}
    for a, b in (("T1", "T2"), ("T2", "T3"), ("T3", "T4")):
        forward = clock[a] < clock[b]
        log_times[f"{b}-{a}"] = path.log_elapsed(clock[a], clock[b]) if forward else math.nan
    rows: list[dict[str, float | str]] = [
        {"at": name, "log_time": log_times.get(name, -math.inf), **state(path, s)}
        for name, s in (("start", 0.0), *clock.items())
        if s == s
    ]
    return Report(log_K, p1, eps, clock, log_times, rows, windows(path, clock), path)


def state(path: Flow, s: float) -> dict[str, float]:
    """Scores, attention and logarithms of the rates at clock ``s``; ``beta_n`` keeps its sign apart."""
    at = path.rates(s)
    alpha, fall = float(at.alpha), float(at.minus_beta1)
    # (K-2) beta_n = |beta_1| - alpha, the conservation law.
    size = max(alpha, fall) + (math.log(-math.expm1(-abs(alpha - fall))) if alpha != fall else -math.inf)
    return {
        "A": float(path.A(s)),
        "B1": float(path.B1(s)),
        "Bn": float(path.Bn(s)),
        "log_attn_k": float(at.target),
        "log_attn_1": float(at.dominant),
        "log_attn_rest": float(at.rest),
        "log_alpha": alpha,
        "log_minus_beta_1": fall,
        "log_abs_beta_n": size - log_minus(path.log_K, 2),
        "sign_beta_n": float(np.sign(fall - alpha)),
        "log_loss": float(path.log_loss(s)),
    }


def windows(path: Flow, clock: dict[str, float]) -> list[Window]:
    """Margins of the stated windows along a path, in units of log K where the window is one of log K."""
    size = path.log_K
    T1, T2, T3, T4 = (clock[name] for name in ("T1", "T2", "T3", "T4"))

    def score(name: str, s: float) -> float:
        return float(getattr(path, name)(s)) / size if s == s else math.nan

    first = T1 if T1 <= T2 else math.nan
    table = [
        ("conv.lem-4.3.order", "phase I ends before phase II does: T1 < T2", (T2 - T1) / size),
        ("conv.lem-4.3.small", "A(T1) <= 0.1", 0.1 - score("A", first) * size),
        ("conv.lem-4.4.target", "A(T2) >= 0.5 log K", score("A", T2) - TARGET),
        ("conv.lem-4.4.window", "B1(T2) >= -0.51 log K", score("B1", T2) - DOMINANT_LOW),
        ("conv.lem-4.4.window", "B1(T2) <= -0.49 log K", DOMINANT_HIGH - score("B1", T2)),
        ("conv.ih-F.2", "A(T2) <= 0.52 log K", 0.52 - score("A", T2)),
        ("conv.ih-F.3", "A(T2) <= log K, so that phase III exists", 1 - score("A", T2)),
        ("conv.ih-F.3", "B1(T3) >= -0.51 log K - log K / K^0.48", score("B1", T3) + 0.51 + math.exp(-0.48 * size)),
        ("conv.ih-F.4", "T4 is after T3", (T4 - T3) / size),
        ("conv.ih-F.4", "B1(T4) <= -0.49 log K", DOMINANT_HIGH - score("B1", T4)),
        ("conv.lem-F.23", "alpha >= |beta_1| from T3 on, so that B_n falls", _lead(path, T3)),
    ]
    return [Window(claim, text, margin) for claim, text, margin in table]


def _lead(path: Flow, s: float) -> float:
    """Smallest ``log(alpha / |beta_1|)`` from ``s`` to the end."""
    if s != s:
        return math.nan
    at = path.rates(np.linspace(s, path.end, 200))
    return float((at.alpha - at.minus_beta1).min())


WINDOW_TEXTS = (
    "T1 < T2",
    "A(T1) <= 0.1",
    "A(T2) >= 0.5 log K",
    "B1(T2) <= -0.49 log K",
)


def window_margin(text: str, log_K: float, p1: float) -> float:
    """Margin of one window of ``WINDOW_TEXTS`` at one size (eps plays no part in it)."""
    _validate.choice("text", text, WINDOW_TEXTS)
    path = mean_field.flow(log_K, p1, A_end=1.02 * log_K + 1, rtol=1e-9)
    T1, T2 = path.when_B1(DOMINANT_HIGH * log_K), GAP * log_K
    if text == "A(T2) >= 0.5 log K":
        return float(path.A(T2)) / log_K - TARGET
    # T1 < T2 says the same as B1(T2) < -0.49 log K.
    if text != "A(T1) <= 0.1":
        return DOMINANT_HIGH - float(path.B1(T2)) / log_K
    # A(T2) stands in where T1 does not come first: A has exploded by then.
    return 0.1 - float(path.A(T1 if T1 <= T2 else T2))


def smallest_log2_K(text: str, p1: float, *, most: float = 900.0) -> float:
    """Size from which a window holds: log2 K above which it holds up to ``most``, by scan and root finding.

    Parameters
    ----------
    text : str
        One of ``WINDOW_TEXTS``.
    p1 : float
        Probability of the dominant feature.
    most : float
        Largest log2 K looked at.

    Returns
    -------
    float
        log2 of the threshold; the smallest size looked at (p1 just above 1/K, K >= 3) if the window holds throughout,
        inf if it fails at ``most``.
    """
    from scipy.optimize import brentq

    least = math.log2(max(3.0, 1.01 / p1))
    grid = [*np.arange(least, 8, 0.5).tolist(), *np.geomspace(max(8, 1.2 * least), most, 8).tolist()]

    def margin(log2_K: float) -> float:
        return window_margin(text, log2_K * math.log(2), p1)

    if margin(grid[-1]) < 0:
        return math.inf
    position = len(grid) - 1
    while position and margin(grid[position - 1]) >= 0:
        position -= 1
    return float(brentq(margin, grid[position - 1], grid[position], xtol=1e-3)) if position else grid[0]


@dataclass(frozen=True)
class Exponent:
    """A measured power law ``y ~ K^power (log K)^log_power``.

    Parameters
    ----------
    power, log_power : float
        Least squares on log y against log K and log log K.
    power_error, log_power_error : float
        Their 95 % half-widths, from the scatter of the residuals (deterministic data: a measure of misfit).
    slopes : list of float
        Local slopes d log y / d log K between neighbouring sizes: their drift.
    low, high : float
        Range of the local slopes over the upper half of the sizes.
    """

    power: float
    power_error: float
    log_power: float
    log_power_error: float
    slopes: list[float]
    low: float
    high: float


def exponent(log_K: Sequence[float], log_y: Sequence[float]) -> Exponent:
    """Fit a power law with a power of the logarithm, and keep the local slopes.

    Parameters
    ----------
    log_K, log_y : sequence of float, same length of at least 5
        Natural logarithms; nan pairs are dropped.

    Raises
    ------
    ValueError
        If fewer than 5 finite pairs are left.
    """
    from scipy import stats

    x, y = np.asarray(log_K, dtype=float), np.asarray(log_y, dtype=float)
    keep = np.isfinite(x) & np.isfinite(y)
    x, y = x[keep], y[keep]
    if len(x) < 5:
        raise ValueError(f"log_y must have at least 5 finite entries, got {len(x)}")
    design = np.stack([np.ones_like(x), x, np.log(x)], axis=1)
    coefficients, *_ = np.linalg.lstsq(design, y, rcond=None)
    residual = y - design @ coefficients
    variance = residual @ residual / (len(x) - 3)
    spread = np.sqrt(np.diag(variance * np.linalg.inv(design.T @ design))) * stats.t.ppf(0.975, len(x) - 3)
    slopes = np.diff(y) / np.diff(x)
    upper = slopes[len(slopes) // 2 :]
    return Exponent(
        float(coefficients[1]), float(spread[1]), float(coefficients[2]), float(spread[2]),
        slopes.tolist(), float(upper.min()), float(upper.max()),
    )  # fmt: skip


@statement("conv.lem-D.5")
def concentration_bound(K: int, N: float, c: float) -> float:
    """``1 - 3 exp(-c^2 N / (25 K^2))``, the paper's lower bound on P(E_bal) and P(E_imbal)."""
    return 1 - 3 * math.exp(-(c**2) * N / (25 * K**2))


def smallest_prompt(K: int, p: Sequence[float]) -> float:
    """N above which some c satisfies ``c >= sqrt(20 K^3/N)`` and ``K p_k - c > 0`` for every k (Lemma D.5).

    It is ``20 K^3 / (K min p)^2``, at least 20 K^3 since min p <= 1/K: the stated N >= K^3 never suffices.
    """
    return 20 * K**3 / (K * min(p)) ** 2


@statement("conv.eq-10-13")
def unavoidable(K: int, p: Sequence[float], N: int) -> list[float]:
    """``L_k^low = K/(2 (K-1)) P(|V_k| = 0)`` for every k, conditional on the query (eq. 13)."""
    return [K / (2 * (K - 1)) * (1 - x) ** N for x in p]


def balanced_infimum(K: int, N: int) -> tuple[float, float]:
    """Exact lower and upper bound on the infimum of the balanced loss (sharpens Lemma D.8).

    ``(1/2)(1-1/K)^(N-1) <= inf L <= (1/2)(1-1/K)^N (K/(K-1) + (K-2)/((K-1) N))``; the right side is the limit of
    ``Q = sigma I``. Their ratio is at most ``1 + (K-2)/(K N)``. The infimum is not attained.
    """
    miss = (1 - 1 / K) ** N
    return 0.5 * K / (K - 1) * miss, 0.5 * miss * (K / (K - 1) + (K - 2) / ((K - 1) * N))


def largest_first_step(log_K: float, p1: float) -> float:
    """eta above which the first step of descent carries B1 below -0.51 log K, at any K (Induction Hypothesis F.2)."""
    scaled, _, _ = gradient_at_zero(log_K, p1)
    return 0.51 * log_K * math.exp(log_K) / -scaled

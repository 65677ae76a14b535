"""Long prompts, one dominant feature: the scores of one query as two or three numbers, so that K = 2^700 costs nothing.

Feature 1 has probability p1, the other K - 1 share the rest equally. Two exact facts shrink the state of query k:

* features that the law treats alike keep equal scores, so query 1 has (A, B) and query k > 1 has (A, B1, Bn);
* for every prompt the gradient's columns sum to zero, so ``A + sum_n B_n = 0`` at all times, for descent and flow.

Hence query 1, and every query of the balanced case p1 = 1/K, is one number; query k > 1 is the pair (A, B1). Both A and
-B1 never fall, so their sum ``s = A - B1`` serves as the clock: the path is one scalar equation dA/ds, and time is
the integral of ds / (alpha - beta1). Rates are kept as logarithms, since K^-2 leaves the range of floats first.
With finite prompts those that lack the query's feature decide B1 in the end: for large K it goes on falling, else it
may turn; the clock ends there.

Time is flow time, eta times the number of steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from icl_core import _validate
from icl_core.prompts import PromptLaw

Array = np.ndarray


class Rates(NamedTuple):
    """Attention and drift of an under-represented query; logarithms, arrays of one shape.

    ``target`` is Attn_k, ``dominant`` is Attn_1, ``rest`` is the sum over the other features; ``alpha`` is the
    drift of A, ``minus_beta1`` that of -B1 (convergence paper, Lemma 4.2).
    """

    target: Array
    dominant: Array
    rest: Array
    alpha: Array
    minus_beta1: Array


def log_size(K: float | None = None, log2_K: float | None = None) -> float:
    """Return log K from K or from its binary logarithm (K need not be representable).

    Raises
    ------
    ValueError
        If not exactly one is given, or K < 3.
    """
    if (K is None) == (log2_K is None):
        raise ValueError(f"exactly one of K and log2_K must be given, got K = {K!r} and log2_K = {log2_K!r}")
    if log2_K is not None:
        return _validate.real("log2_K", log2_K, least=math.log2(3)) * math.log(2)
    return math.log(_validate.real("K", K, least=3))


def log_minus(log_K: float, m: int) -> float:
    """log(K - m) from log K."""
    return log_K + math.log1p(-m * math.exp(-log_K))


def others(log_K: float, A: Array | float, B1: Array | float) -> Array:
    """Score of a feature that is neither target nor dominant: ``-(A + B1) / (K - 2)``, by the conservation law."""
    return -(np.asarray(A, dtype=float) + B1) * math.exp(-log_minus(log_K, 2))


def rates(log_K: float, p1: float, A: Array | float, B1: Array | float) -> Rates:
    """Attention and drift of query k > 1 in the limit of long prompts (counts N p).

    Parameters
    ----------
    log_K : float
        Natural logarithm of the number of features, at least log 3.
    p1 : float
        Probability of the dominant feature, in (0, 1).
    A, B1 : array or float
        Scores of the target and of the dominant feature.

    Notes
    -----
    ``minus_beta1`` is nan where B1 would rise. That needs A < Bn, which never happens from zero scores: there
    a >= c, the attention on one other feature, so ``a C >= c C = C^2/(K-2)``, and A - Bn keeps growing.

    Convergence paper, Lemma 4.2 with ``|V_m| = N p_m``. Written without differences of close numbers:
    ``alpha = q a (S2 + (1-a)^2)`` and ``-beta1 = q b (b (a + C) + a (b + C) - C^2/(K-2))`` with a, b, C the attention
    on target, dominant and rest, and ``S2 = b^2 + C^2/(K-2)``.
    """
    p1 = _validate.real("p1", p1, above=0.0, below=1.0)
    A, B1 = np.asarray(A, dtype=float), np.asarray(B1, dtype=float)
    log_q = math.log1p(-p1) - log_minus(log_K, 1)
    weights = np.stack(np.broadcast_arrays(
        log_q + A, math.log(p1) + B1, log_q + log_minus(log_K, 2) + others(log_K, A, B1)
    ))  # fmt: skip
    target, dominant, rest = weights - np.logaddexp.reduce(weights, axis=0)
    # Both brackets are divided by b + C, which underflows last.
    log_off = np.logaddexp(dominant, rest)
    share, remain, each = np.exp(dominant - log_off), np.exp(rest - log_off), math.exp(-log_minus(log_K, 2))
    a, C = np.exp(target), np.exp(rest)
    alpha = log_q + target + 2 * log_off + np.log1p(share**2 + remain**2 * each)
    with np.errstate(invalid="ignore"):
        fall = log_q + dominant + log_off + np.log(share * (a + C) + a - remain * C * each)
    return Rates(target, dominant, rest, alpha, fall)


def _scalar_rates(log_K: float, p1: float) -> Callable[[float, float], tuple[float, float, float]]:
    """Return (A, B1) -> logarithms of alpha, -beta1 and L_k: :func:`rates` for one state, thirty times as fast."""
    log_p1, log_q, log_rest = math.log(p1), math.log1p(-p1) - log_minus(log_K, 1), log_minus(log_K, 2)
    each = math.exp(-log_rest)

    def at(A: float, B1: float) -> tuple[float, float, float]:
        own, head, rest = log_q + A, log_p1 + B1, log_q + log_rest - (A + B1) * each
        log_off = max(head, rest) + math.log1p(math.exp(-abs(head - rest)))
        log_total = max(own, log_off) + math.log1p(math.exp(-abs(own - log_off)))
        share, remain = math.exp(head - log_off), math.exp(rest - log_off)
        a, C = math.exp(own - log_total), math.exp(rest - log_total)
        spread = math.log1p(share**2 + remain**2 * each)
        error = 2 * (log_off - log_total) + spread
        fall = math.log(share * (a + C) + a - remain * C * each) + head + log_off - 2 * log_total
        return log_q + own - log_total + error, log_q + fall, error - math.log(2)

    return at


def count_rates(law: PromptLaw, A: float, B1: float) -> tuple[float, float, float]:
    """Drift (alpha, -beta1) and conditional loss of an under-represented query for prompts of finite length.

    Averages over the law's count vectors and, since features 2..K are alike, over every query k > 1.

    Parameters
    ----------
    law : PromptLaw
        Enumerated or sampled counts, feature 1 dominant, the others equally likely; K >= 3.
    A, B1 : float
        Scores of the target and of the dominant feature.

    Notes
    -----
    Convergence paper, Lemma 4.2 and D.7, prompts without feature k or 1 included.
    """
    K = law.K
    counts, weights = law.counts.numpy(), law.weights.numpy()
    Bn = -(A + B1) / (K - 2)
    top = max(A, B1, Bn)
    heads = counts[:, :1] * math.exp(B1 - top)
    tails = counts[:, 1:] * math.exp(Bn - top)
    own = counts[:, 1:] * math.exp(A - top)
    rest = tails.sum(1, keepdims=True) - tails
    off = heads + rest
    total = off + own
    squares = heads**2 + (tails**2).sum(1, keepdims=True) - tails**2
    alpha = own * (squares + off**2) / total**3
    fall = heads * (heads * (own + rest) + own * off - (squares - heads**2)) / total**3
    loss = (squares + off**2) / (2 * total**2)
    q = float(law.query[1:].mean())
    return q * float(weights @ alpha.mean(1)), q * float(weights @ fall.mean(1)), float(weights @ loss.mean(1))


@dataclass(frozen=True)
class Flow:
    """Gradient flow of an under-represented query, as functions of the clock ``s = A - B1``.

    Parameters
    ----------
    log_K, p1 : float
        The setting.
    end : float
        Last value of s.
    """

    log_K: float
    p1: float
    end: float
    _solution: Callable[[Any], Array] = field(repr=False)
    _law: PromptLaw | None = field(default=None, repr=False)

    def _at(self, s: Array | float) -> Array:
        """A, B1 and time / K^2; scipy's dense output takes one dimension only."""
        clock = np.asarray(s, dtype=float)
        return self._solution(clock.ravel()).reshape(3, *clock.shape)

    def A(self, s: Array | float) -> Array:
        """Score of the target feature."""
        return self._at(s)[0]

    def B1(self, s: Array | float) -> Array:
        """Score of the dominant feature."""
        return self._at(s)[1] if self._law is not None else self.A(s) - s

    def Bn(self, s: Array | float) -> Array:
        """Score of every other feature."""
        return others(self.log_K, self.A(s), self.B1(s))

    def log_time(self, s: Array | float) -> Array:
        """Logarithm of the flow time; -inf at s = 0."""
        with np.errstate(divide="ignore"):
            return np.log(self._at(s)[2]) + 2 * self.log_K

    def log_elapsed(self, first: float, last: float) -> float:
        """Logarithm of the time from ``first`` to ``last``, for stretches far shorter than the time before them."""
        points, weights = np.polynomial.legendre.leggauss(20)
        edges = np.linspace(first, last, max(2, math.ceil(last - first) + 1))
        half = np.diff(edges)[:, None] / 2
        clock = edges[:-1, None] + half * (points + 1)
        if self._law is None:
            at = self.rates(clock)
            log_speed = np.logaddexp(at.alpha, at.minus_beta1)
        else:
            alpha, fall, _ = self._counted(self._law, clock)
            log_speed = np.log(alpha + fall)
        return float(np.logaddexp.reduce((np.log(half * weights) - log_speed).ravel()))

    def rates(self, s: Array | float) -> Rates:
        """Attention (of a prompt with expected counts) and drift at ``s``; ``minus_beta1`` is nan where B1 rises."""
        found = rates(self.log_K, self.p1, self.A(s), self.B1(s))
        if self._law is None:
            return found
        alpha, fall, _ = self._counted(self._law, s)
        with np.errstate(invalid="ignore"):
            return found._replace(alpha=np.log(alpha), minus_beta1=np.log(fall))

    def _counted(self, law: PromptLaw, s: Array | float) -> Array:
        """:func:`count_rates` along the path, shape (3, *shape of s)."""
        states = zip(np.ravel(self.A(s)), np.ravel(self.B1(s)), strict=True)
        drift = np.array([count_rates(law, float(a), float(b)) for a, b in states])
        return drift.T.reshape(3, *np.shape(s))

    def log_loss(self, s: Array | float) -> Array:
        """Logarithm of the conditional loss L_k, averaged over the finite prompts if the flow has them."""
        return log_loss(self.log_K, self.rates(s)) if self._law is None else np.log(self._counted(self._law, s)[2])

    def when(self, value: Callable[[float], float]) -> float:
        """First s at which a function, negative before, is zero; nan if there is none."""
        from scipy.optimize import brentq

        if value(0.0) >= 0:
            return 0.0
        top = self.end
        if value(top) < 0:
            # Finite prompts: a score or a loss can pass a level and come back.
            reached = [] if self._law is None else [s for s in np.linspace(0, top, 201).tolist() if value(s) >= 0]
            if not reached:
                return math.nan
            top = reached[0]
        return float(brentq(value, 0.0, top, xtol=1e-13, rtol=1e-14))

    def when_A(self, level: float) -> float:
        """Clock at which A reaches ``level``."""
        return self.when(lambda s: float(self.A(s)) - level)

    def when_B1(self, level: float) -> float:
        """Clock at which B1 falls to ``level``."""
        return self.when(lambda s: level - float(self.B1(s)))

    def when_loss(self, loss: float) -> float:
        """Clock at which the conditional loss falls to ``loss``; nan if it does not before the end."""
        return self.when(lambda s: math.log(loss) - float(self.log_loss(s)))


def log_loss(log_K: float, at: Rates) -> Array:
    """Logarithm of ``L_k = ((1 - Attn_k)^2 + sum_{m != k} Attn_m^2) / 2`` (convergence paper, eq. 6, Lemma D.7)."""
    off = np.logaddexp(at.dominant, at.rest)
    squares = np.logaddexp(2 * at.dominant, 2 * at.rest - log_minus(log_K, 2))
    return np.logaddexp(2 * off, squares) - math.log(2)


def flow(
    log_K: float,
    p1: float,
    *,
    A_end: float,
    law: PromptLaw | None = None,
    rtol: float = 1e-11,
) -> Flow:
    """Follow the gradient flow from zero scores until the target's score is ``A_end``.

    Parameters
    ----------
    log_K : float
        Logarithm of the number of features.
    p1 : float
        Probability of the dominant feature, at least 1/K.
    A_end : float
        Where to stop.
    law : PromptLaw, optional
        Use these finite prompts in place of the limit of long ones.
    rtol : float
        Relative tolerance of the integrator.

    Returns
    -------
    Flow

    Raises
    ------
    ValueError
        For a setting out of range.
    RuntimeError
        If the integrator fails or A_end is out of reach (finite prompts keep some queries unseen).
    """
    from scipy.integrate import solve_ivp

    log_K = _validate.real("log_K", log_K, least=math.log(3) - 1e-12)
    p1 = _validate.real("p1", p1, least=math.exp(-log_K) * (1 - 1e-9), below=1.0)
    A_end = _validate.real("A_end", A_end, above=0.0)
    if law is not None:
        wanted, got = round(math.exp(log_K)), law.K
        if got != wanted:
            raise ValueError(f"law must have K = {wanted} features, got {got}")
    scalar = _scalar_rates(log_K, p1)

    def slope(s: float, y: Array) -> list[float]:
        A = float(y[0])
        if law is not None:
            alpha, fall, _ = count_rates(law, A, float(y[1]))
            if fall <= 0:
                raise RuntimeError(
                    f"B1 turned at A = {A:.6g}, before A = {A_end:g}: too many prompts lack the query's feature"
                )
            speed = alpha + fall
            return [alpha / speed, -fall / speed, math.exp(-math.log(speed) - 2 * log_K)]
        log_alpha, log_fall, _ = scalar(A, A - s)
        low, high = sorted((log_alpha, log_fall))
        log_speed = high + math.log1p(math.exp(low - high))
        # Time in units of K^2, the length of the first two phases.
        rise = math.exp(log_alpha - log_speed)
        return [rise, rise - 1, math.exp(-log_speed - 2 * log_K)]

    def reached(_: float, y: Array) -> float:
        return float(y[0]) - A_end

    reached.terminal = True  # type: ignore[attr-defined]  # where solve_ivp looks for it
    longest = 4 * (A_end + log_K) + 50
    solved = solve_ivp(
        slope, (0.0, longest), [0.0, 0.0, 0.0], method="DOP853", rtol=rtol, atol=1e-300, events=reached,
        dense_output=True, first_step=1e-6, max_step=max(1.0, log_K / 20),
    )  # fmt: skip
    if solved.status != 1:
        raise RuntimeError(f"A = {A_end:g} was not reached for log K = {log_K:.6g}, p1 = {p1:g}: {solved.message}")
    return Flow(log_K, p1, float(solved.t[-1]), solved.sol, law)


@dataclass(frozen=True)
class Steps:
    """Gradient descent in reduced coordinates: states at the recorded steps.

    Parameters
    ----------
    step : Array, shape (T,)
        Step numbers.
    A, B1, Bn : Array, shape (T,)
        Scores of the target, the dominant and every other feature. For query 1 the target is the dominant feature
        and ``B1`` equals ``Bn``.
    loss : Array, shape (T,)
        Conditional loss.
    """

    step: Array
    A: Array
    B1: Array
    Bn: Array
    loss: Array


def descend(K: float, p1: float, eta: float, steps: int, *, query: str = "under", every: int = 1) -> Steps:
    """Gradient descent with step ``eta`` in the limit of long prompts, from zero scores.

    Parameters
    ----------
    K : float
        Number of features, at least 3.
    p1 : float
        Probability of feature 1; 1/K gives the balanced case.
    eta : float
        Step size.
    steps : int
        Number of steps.
    query : {"under", "dominant"}
        Query k > 1, or query 1.
    every : int
        Record each such step, and the last.

    Returns
    -------
    Steps

    Raises
    ------
    ValueError
        For arguments out of range.

    Notes
    -----
    Convergence paper, Definition D.2 and Lemma 4.2.
    """
    K = _validate.real("K", K, least=3)
    p1 = _validate.real("p1", p1, above=0.0, below=1.0)
    eta = _validate.real("eta", eta, above=0.0)
    steps, every = _validate.integer("steps", steps, least=1), _validate.integer("every", every, least=1)
    _validate.choice("query", query, ("under", "dominant"))
    kept: list[tuple[float, ...]] = []
    A = B1 = 0.0
    scalar = _scalar_rates(math.log(K), p1)
    for step in range(steps + 1):
        if query == "under":
            Bn = -(A + B1) / (K - 2)
            log_alpha, log_fall, log_error = scalar(A, B1)
            alpha, beta1, loss = math.exp(log_alpha), -math.exp(log_fall), math.exp(log_error)
        else:
            Bn = B1 = -A / (K - 1)
            # A = gap (K-1)/K, so A moves by that share of the gap's slope.
            alpha, beta1 = (K - 1) / K * alike_slope(K, p1, A - Bn), 0.0
            loss = K / (2 * (K - 1)) / (1 + p1 / (1 - p1) * math.exp(A - Bn)) ** 2
        if step % every == 0 or step == steps:
            kept.append((step, A, B1, Bn, loss))
        A += eta * alpha
        B1 += eta * beta1
    columns = np.array(kept).T
    return Steps(columns[0].astype(np.int64), *columns[1:])


def alike_gap(K: float, share: float, attention: float) -> float:
    """Score gap ``u = A - B`` at which a feature of token share ``share`` draws ``attention`` if the rest are alike."""
    _validate.real("K", K, least=2)
    share = _validate.real("share", share, above=0.0, below=1.0)
    a = _validate.real("attention", attention, above=0.0, below=1.0)
    return math.log(a / (1 - a)) - math.log(share / (1 - share))


def alike_slope(K: float, share: float, gap: float) -> float:
    """du/dt for a query whose off-target features are alike (balanced case, or query 1): the gap is the whole state.

    ``u' = share (K/(K-1))^2 a (1-a)^2`` with ``a`` the attention at gap ``u``; balanced for ``share`` = 1/K.

    Notes
    -----
    Convergence paper, Lemma 4.2 with the conservation law ``B = -A/(K-1)``.
    """
    a = 1 / (1 + (1 - share) / share * math.exp(-gap))
    off = 1 / (1 + share / (1 - share) * math.exp(gap))
    return share * (K / (K - 1)) ** 2 * a * off * off

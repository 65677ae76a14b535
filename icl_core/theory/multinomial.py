"""Multinomial prompts of any length on the symmetric training trajectory (OOD paper, Appendix I), exact in O(N).

With scores ``alpha`` on the diagonal and ``beta`` elsewhere a prompt matters only through how often the query's feature
occurs in it, a binomial number, and through the second moment of the other counts, which is known in closed form.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from icl_core import _validate


class _Counts(NamedTuple):
    weight: np.ndarray
    own: np.ndarray
    rest: np.ndarray
    squares: np.ndarray


def _counts(K: int, N: int) -> _Counts:
    """Law of the query feature's count, of the others' total, and the mean sum of the others' squared counts."""
    from scipy.stats import binom

    K, N = _validate.integer("K", K, least=2), _validate.integer("N", N, least=1)
    own = np.arange(N + 1, dtype=float)
    weight = binom.pmf(own, N, 1 / K)
    rest = N - own
    squares = rest * (K - 2) / (K - 1) + rest**2 / (K - 1)
    keep = weight > 0
    return _Counts(weight[keep], own[keep], rest[keep], squares[keep])


def loss(K: int, N: int, gap: float) -> float:
    """Loss of one query feature on prompts of N tokens drawn uniformly, at scores with ``alpha - beta = gap``.

    Parameters
    ----------
    K, N : int
        Number of features and prompt length.
    gap : float
        Score of the query's feature less the score of any other.

    Returns
    -------
    float
        ``E[(M^2 + sum_n N_n^2) / (N_k e^gap + M)^2] / (2 K)`` with ``M = N - N_k``.
    """
    c = _counts(K, N)
    below = c.own + c.rest * math.exp(-gap)
    return float((c.weight * (c.rest**2 + c.squares) * math.exp(-2 * gap) / below**2).sum() / (2 * K))


def rise(K: int, N: int, gap: float) -> float:
    """``delta_alpha`` of Lemma D.3 for these prompts and scores: how fast alpha rises per unit of step size."""
    c = _counts(K, N)
    small = math.exp(-gap)
    below = c.own + c.rest * small
    own, rest, squares = c.own / below, c.rest * small / below, c.squares * small**2 / below**2
    return float((c.weight * own * (squares + rest**2)).sum() / K)


def floor(K: int, N: int) -> float:
    """Limit of :func:`loss` for infinite scores: what prompts without the query's feature cost, exactly.

    ``(1 - 1/K)^N (N^2 + E sum_n N_n^2) / (2 K N^2)`` with all N tokens drawn from the other K - 1 features.
    """
    K, N = _validate.integer("K", K, least=2), _validate.integer("N", N, least=1)
    square = (K - 2) / (K - 1) / N + 1 / (K - 1)
    return (1 - 1 / K) ** N * (1 + square) / (2 * K)


def length_for(K: int, eps0: float) -> int:
    """Least N that Lemma I.1 allows, ``ceil(20 K / eps0^2)``."""
    K = _validate.integer("K", K, least=2)
    return math.ceil(20 * K / _validate.real("eps0", eps0, above=0.0, below=1.0) ** 2)


def steps_to(K: int, N: int, alpha: float, eta: float, limit: int = 10_000_000) -> int:
    """Steps of gradient descent from Q = 0 until the alpha-type weight is at least ``alpha``.

    Raises
    ------
    ValueError
        For arguments out of range.
    RuntimeError
        If ``limit`` steps do not suffice.
    """
    alpha, eta = _validate.real("alpha", alpha, above=0.0), _validate.real("eta", eta, above=0.0)
    c = _counts(K, N)
    now, step = 0.0, 0
    while now < alpha:
        if step == limit:
            raise RuntimeError(f"alpha = {now:g} after {limit} steps, short of {alpha:g}")
        small = math.exp(-now * K / (K - 1))
        below = c.own + c.rest * small
        shares = c.weight * c.own * (c.squares + c.rest**2) / below**3
        now += eta * float(shares.sum()) * small**2 / K
        step += 1
    return step

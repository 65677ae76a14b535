"""Closed forms of forgetting (OOD paper, Appendix H): two features, as printed and as corrected, and K features.

For two features everything is a function of the score gap ``z_m = alpha_{u_m} - beta_{u_n,u_m}``: the loss of query m
is ``(1 + exp z_m)^-2 / 2``, and z_m alone drives itself. So the gradient flow has an implicit solution,
:func:`two_features`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from icl_core import _validate
from icl_core.theory._statement import statement

Array = Any


def g_eps(eps: float) -> float:
    """``(1 - sqrt eps) / sqrt eps``, the odds of the right feature at loss eps / 2 (OOD paper, Theorem H.5).

    Raises
    ------
    ValueError
        If eps is not in (0, 1/4), where training on two features would stop at its start.
    """
    eps = _validate.real("eps", eps, above=0.0, below=0.25, because="at 1/4 training would stop before its first step")
    return (1 - math.sqrt(eps)) / math.sqrt(eps)


class Constants(NamedTuple):
    """Exponents of ``g_eps`` in Theorem H.5."""

    c1: Array
    d1: Array
    c2: Array


def _exponent(p: Array, q: Array) -> Array:
    return 1 + p * (1 - q / 2) / 2


def constants_printed(gamma1: Array, gamma2: Array) -> Constants:
    """Return c1, d1, c2 as printed in Theorem H.5: d1 has ``gamma1^2 - gamma1 gamma2`` in its last factor."""
    p1, p2 = gamma1**2 + gamma1 * gamma2, gamma2**2 + gamma1 * gamma2
    return Constants(_exponent(p1, p2), _exponent(p1, gamma1**2 - gamma1 * gamma2), _exponent(p2, p2))


def constants(gamma1: Array, gamma2: Array) -> Constants:
    """Return c1, d1, c2 with d1 corrected to ``gamma1^2 + gamma1 gamma2``."""
    p1, p2 = gamma1**2 + gamma1 * gamma2, gamma2**2 + gamma1 * gamma2
    return Constants(_exponent(p1, p2), _exponent(p1, p1), _exponent(p2, p2))


class Rises(NamedTuple):
    """``Delta_{1,alpha}`` at t_1 and ``Delta_{2,alpha}`` at t_2."""

    first: Array
    second: Array


def rises_printed(gamma1: Array, gamma2: Array, eps: float) -> Rises:
    """Both updates as displayed in the proof of Theorem H.5."""
    scale = math.log(g_eps(eps)) / 2
    return Rises(
        scale * (1 - (gamma1**2 - gamma1 * gamma2) / 2),
        scale * (1 - (gamma1**2 + gamma1 * gamma2) / 2),
    )


def rises(gamma1: Array, gamma2: Array, eps: float) -> Rises:
    """Both updates: half of what the score gap has left to go, ``(1 - (gamma_m^2 + gamma1 gamma2) / 2) log(g) / 2``."""
    scale = math.log(g_eps(eps)) / 2
    return Rises(
        scale * (1 - (gamma1**2 + gamma1 * gamma2) / 2),
        scale * (1 - (gamma2**2 + gamma1 * gamma2) / 2),
    )


def loss_at(exponent: Array, eps: float) -> Array:
    """``(1 / (1 + g_eps^exponent))^2 / 2``, the form of both losses in Theorem H.1."""
    return 0.5 / (1 + g_eps(eps) ** exponent) ** 2


@statement("ood.cor-H.2.3")
def threshold_printed(exponent: Array, eps: float) -> Array:
    """``log_g(1 / sqrt(2 eps - (1 + g^exponent)^-2))`` of Corollary H.2 (3) and (4), as printed."""
    return -np.log(2 * eps - 2 * loss_at(exponent, eps)) / (2 * math.log(g_eps(eps)))


def threshold(exponent: Array, eps: float) -> Array:
    """``log_g(1 / sqrt(2 eps - (1 + g^exponent)^-2) - 1)``: at this c2 the second loss makes up the difference exactly.

    The printed form lacks the ``- 1`` that comes from solving ``(1 + g^c2)^-2 = 2 eps - (1 + g^exponent)^-2``.
    """
    return np.log(1 / np.sqrt(2 * eps - 2 * loss_at(exponent, eps)) - 1) / math.log(g_eps(eps))


class TwoFeatures(NamedTuple):
    """Outcome of the gradient flow for two features; arrays of the broadcast shape of gamma1, gamma2, eps.

    ``first`` and ``last`` are ``Delta_{m,alpha}`` (last axis: m) when its own loss meets the threshold and at the end;
    ``gaps`` are the score gaps on V at the end; ``forgetting`` is F_{v_m} (last axis), ``times`` the flow times.
    """

    first: np.ndarray
    last: np.ndarray
    gaps: np.ndarray
    forgetting: np.ndarray
    times: np.ndarray


def elapsed(z: Array) -> Array:
    """Flow time at which the score gap of two features is z, up to a constant: ``dz/dt = 2 e^z / (1 + e^z)^3``."""
    return np.exp(2 * z) / 4 + 1.5 * np.exp(z) + 1.5 * z - 0.5 * np.exp(-z)


def two_features(gamma1: Array, gamma2: Array, eps: Array) -> TwoFeatures:
    """Fine-tune two features along the gradient flow, exactly: both phases end with the last loss at eps / 2.

    Parameters
    ----------
    gamma1, gamma2 : array, broadcastable
        Correlations in [-1, 1], in any order of magnitude.
    eps : array, broadcastable
        Target of the total loss in (0, 1/4).

    Returns
    -------
    TwoFeatures

    Raises
    ------
    ValueError
        If an argument is out of range.

    Notes
    -----
    ``z_m`` starts at ``(gamma_m^2 + gamma1 gamma2) log(g) / 2`` and stops mattering at ``log g``; the feature that
    starts ahead goes on rising until the other arrives. On V the gap ends at
    ``log g + (gamma_m^2 + gamma1 gamma2) Delta_m`` (OOD paper, Theorem 5.6).
    """
    a, b, e = np.broadcast_arrays(*(np.asarray(x, dtype=float) for x in (gamma1, gamma2, eps)))
    if not bool((np.abs(a) <= 1).all() and (np.abs(b) <= 1).all()):
        raise ValueError("gamma1 and gamma2 must lie in [-1, 1]")
    if not bool(((e > 0) & (e < 0.25)).all()):
        raise ValueError("eps must lie in (0, 1/4)")
    root = np.sqrt(e)
    target = np.log((1 - root) / root)
    p = np.stack([a * (a + b), b * (a + b)], axis=-1)
    start = p * target[..., None] / 2
    clock = elapsed(target)[..., None] - elapsed(start)
    longest = clock.max(-1, keepdims=True)
    # Newton from the right on a convex increasing function: monotone once past the root.
    due = elapsed(start) + longest
    late = np.clip(due - elapsed(target)[..., None], 0, None)
    end = target[..., None] + late / (2 * (1 + np.exp(target)) ** 3 / (4 * np.exp(target)))[..., None]
    for _ in range(60):
        slope = (1 + np.exp(end)) ** 3 / (2 * np.exp(end))
        step = np.maximum(end - (elapsed(end) - due) / slope, target[..., None])
        done = bool((np.abs(step - end) <= 4e-16 * (1 + np.abs(end))).all())
        end = step
        if done:
            break
    first, last = (target[..., None] - start) / 2, (end - start) / 2
    gaps = target[..., None] + p * last
    odds = np.exp(target)[..., None]
    grown = np.expm1(p * last)
    # L_after - L_before with the common factors taken out, so that small forgetting keeps its digits.
    after, before = 1 / (1 + odds * (1 + grown)), 1 / (1 + odds)
    forgetting = -0.5 * odds * grown * after * before * (after + before)
    return TwoFeatures(first, last, gaps, forgetting, clock)


def edge_coefficient(eps: Array) -> Array:
    """Sign of the total forgetting next to gamma = (1, -1).

    It is ``(2 - 3 s) log((1 - s) / s) / 2 - 8 s^2 (1 - s)`` with ``s = sqrt eps``.

    With ``u = 1 + gamma2`` and ``gamma1 = 1`` the total forgetting is
    ``eps (1 - s) log(g) / 2 * edge_coefficient(eps) * u^2`` to second order in u.
    """
    s = np.sqrt(eps)
    return (2 - 3 * s) * np.log((1 - s) / s) / 2 - 8 * s**2 * (1 - s)


def critical_eps() -> float:
    """Return the eps at which :func:`edge_coefficient` changes sign; above it no two-feature shift forgets in total."""
    from scipy.optimize import brentq

    return float(brentq(edge_coefficient, 1e-3, 0.24, xtol=1e-15))


def _products(gamma: Sequence[float], k: int) -> tuple[float, list[float]]:
    values = _validate.reals("gamma", gamma, least=-1.0, most=1.0)
    k = _validate.integer("k", k, least=0, most=len(values) - 1)
    return values[k] ** 2, [values[k] * g for n, g in enumerate(values) if n != k]


@statement("ood.thm-H.3.1")
def worsens_printed(gamma: Sequence[float], k: int) -> bool:
    """Hypothesis of Theorem H.3 (1) as printed: ``-gamma_k gamma_m0 > gamma_k^2`` with m0 the largest product."""
    square, products = _products(gamma, k)
    return -max(products) > square


def worsens(gamma: Sequence[float], k: int) -> bool:
    """Hypothesis under which L_{v_k} rises: ``-gamma_k gamma_m0 > (K - 1) gamma_k^2``; K = 2 gives the printed one."""
    square, products = _products(gamma, k)
    return -max(products) > len(products) * square


@statement("ood.thm-H.3.2")
def improves(gamma: Sequence[float], k: int) -> bool:
    """Hypothesis of Theorem H.3 (2): ``-gamma_k gamma_m1 < gamma_k^2`` with m1 the smallest product."""
    square, products = _products(gamma, k)
    return -min(products) < square

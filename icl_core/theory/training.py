"""The training phase in one variable: the symmetric trajectory, how far discrete steps overshoot, how long it takes."""

from __future__ import annotations

import math

from icl_core import _validate
from icl_core.theory._statement import statement
from icl_core.theory.ood import alpha_star, eps_limit

# From Q = 0 on balanced prompts every alpha is the same number and every beta is -alpha / (K - 1) (Lemmas D.6, D.7), so
# that the query's attention a on its own feature, the loss and the update are functions of alpha alone.


def missing_attention(K: int, alpha: float) -> float:
    """Attention ``1 - a`` on the wrong features, ``(K - 1) / (exp(K alpha / (K - 1)) + K - 1)`` (OOD paper, eq. 13)."""
    return 1 / (1 + math.exp(min(700.0, K * alpha / (K - 1))) / (K - 1))


def symmetric_loss(K: int, alpha: float) -> float:
    """Loss per feature ``(1 - a)^2 / (2 (K - 1))`` (OOD paper, Lemma D.9 at symmetric scores)."""
    return missing_attention(K, alpha) ** 2 / (2 * (K - 1))


def symmetric_step(K: int, alpha: float) -> float:
    """Descent direction of alpha, ``a (1 - a)^2 / (K - 1)`` (OOD paper, Lemma D.3 at symmetric scores)."""
    wrong = missing_attention(K, alpha)
    return (1 - wrong) * wrong**2 / (K - 1)


def symmetric_training(K: int, eps: float, eta: float, max_steps: int = 1_000_000) -> tuple[float, int]:
    """Gradient descent on the symmetric trajectory until the loss per feature is at most eps / K.

    Parameters
    ----------
    K : int
        Number of features.
    eps : float
        Target of the total loss.
    eta : float
        Step size.
    max_steps : int
        Give up after so many steps.

    Returns
    -------
    alpha : float
        alpha-type weight at the stop.
    steps : int
        T_1.

    Raises
    ------
    ValueError
        If an argument is out of range.
    RuntimeError
        If ``max_steps`` is reached.
    """
    K = _validate.integer("K", K, least=2)
    eps = _validate.real("eps", eps, above=0.0)
    eta = _validate.real("eta", eta, above=0.0)
    alpha, steps, bound = 0.0, 0, eps / K
    # The largest loss is the one at Q = 0, which rounding must not push across a threshold equal to it.
    while symmetric_loss(K, alpha) > bound * (1 + 1e-14):
        if steps >= max_steps:
            raise RuntimeError(f"the rule was not met in {max_steps} steps, loss {symmetric_loss(K, alpha):.6g}")
        alpha += eta * symmetric_step(K, alpha)
        steps += 1
    return alpha, steps


def attention_at_rule(K: int, eps: float) -> float:
    """Attention ``1 - sqrt(2 (K - 1) eps / K)`` on the right feature when the loss per feature is exactly eps / K.

    Raises
    ------
    ValueError
        If eps is outside (0, (K - 1)/(2K)).
    """
    K = _validate.integer("K", K, least=2)
    eps = _validate.real(
        "eps", eps, above=0.0, below=eps_limit(K), because="the rule is met at Q = 0 from (K-1)/(2K) on"
    )
    return 1 - math.sqrt(2 * (K - 1) * eps / K)


def careful_eta(K: int) -> float:
    """Step size ``12 (K - 1)^2 / K`` up to which a step preserves the order of two values of alpha.

    The step map has the slope ``1 - eta K / (K - 1)^2 a (1 - a)^2 (3 a - 1)``, and the polynomial is below 1/12.
    """
    return 12 * (K - 1) ** 2 / K


@statement("ood.lem-E.1.scores")
def overshoot(K: int, eps: float, eta: float) -> float:
    """Bound on ``alpha(T_1) - alpha*``: how far the last step of gradient descent carries alpha past eq. 16.

    ``4 eta / (27 (K - 1))`` for every step size, and ``2 eta eps a / K`` with a from :func:`attention_at_rule` for
    step sizes up to :func:`careful_eta`.

    Raises
    ------
    ValueError
        If eps is outside (0, (K - 1)/(2K)).

    Notes
    -----
    OOD paper, Lemma E.1, corrected: printed as ``alpha(T_1) = alpha*``.
    """
    any_step = 4 * eta / (27 * (K - 1))
    careful = 2 * eta * eps * attention_at_rule(K, eps) / K
    return min(any_step, careful) if eta <= careful_eta(K) else any_step


@statement("ood.forgetting.equal")
def loss_shortfall(K: int, eps: float, eta: float) -> float:
    """Bound on ``log((eps / K) / L_v(T_1))``: how far below eps / K the training loss stops.

    ``-d log L / d alpha = 2 a K / (K - 1)`` is at most 2K / (K - 1), times :func:`overshoot`.
    """
    return 2 * K / (K - 1) * overshoot(K, eps, eta)


@statement("ood.lem-E.1.proof.eq-20")
def least_step(K: int, eps: float) -> float:
    """Smallest descent direction of alpha before the rule is met, ``min((K - 1)/K^3, 2 eps a / K)``.

    ``a (1 - a)^2`` rises, then falls, so that its least value is at an end of ``[1/K, a(T_1)]``.
    """
    return min((K - 1) / K**3, 2 * eps * attention_at_rule(K, eps) / K)


@statement("ood.lem-E.1.time.order")
def training_steps(K: int, eps: float, eta: float) -> float:
    """Upper bound on T_1: ``1 + alpha* / (eta least_step)``, of order ``(K^2 + K/eps) log(K/sqrt(eps)) / eta``.

    Notes
    -----
    OOD paper, Lemma E.1, corrected: printed as polynomial in eta instead of 1/eta.
    """
    return 1 + alpha_star(K, eps) / (eta * least_step(K, eps))


def training_time(K: int, eps: float) -> float:
    """Time to the rule of the gradient flow, the limit of ``eta T_1`` for small steps.

    ``(K - 1)^2 / K`` times the integral of ``1 / (a^2 (1 - a)^3)`` from 1/K to :func:`attention_at_rule`; it grows as
    ``K^2 + K / (4 eps)``.
    """

    def primitive(a: float) -> float:
        return -1 / a + 3 * math.log(a / (1 - a)) + 2 / (1 - a) + 1 / (2 * (1 - a) ** 2)

    return (K - 1) ** 2 / K * (primitive(attention_at_rule(K, eps)) - primitive(1 / K))


def shift_exponent(c: list[float], k: int) -> float:
    """Largest ``c_k (c_k - c_n)`` over n != k, for ``c_n = <u_n, mean feature>`` and span(U) = span(V).

    The gap between alpha and the largest beta for query k is ``K alpha / (K - 1)`` times one minus this number
    (OOD paper, Theorem 5.1).
    """
    return max(c[k] * (c[k] - c_n) for n, c_n in enumerate(c) if n != k)


@statement("ood.rem-3.small")
def shifted_loss_bound(K: int, eps: float, alpha: float, exponent: float) -> float:
    """Bound ``exp(2 K alpha m / (K - 1)) eps / K`` on an OOD loss where ``m = max(0, shift_exponent) <= 1``.

    Notes
    -----
    OOD paper, Remark (3) after Theorem 5.1, corrected: the loss is O(eps) only while ``m log(1/eps)`` is bounded.
    """
    return math.exp(2 * K * alpha / (K - 1) * max(0.0, exponent)) * eps / K


@statement("ood.thm-5.1.loss.closed")
def ood_loss_gap(K: int, eps: float, eta: float) -> float:
    """Bound on ``|log(L / L*)|`` between the OOD loss at T_1 and the value that Theorem 5.1 gives with alpha*.

    Both come from scores ``K alpha / (K - 1) A`` with A between 0 and the identity, so that a gap between two entries
    of A is below 1.21; the loss changes by at most four times the change of a log ratio of weights.
    """
    return 5 * K / (K - 1) * overshoot(K, eps, eta)

"""Closed forms with label noise (OOD paper, Appendix K): floor, attention at convergence, losses, and update bounds.

``s`` is the effective noise variance ``sigma_eff^2 = K sigma^2 / N``: label noise averaged over one feature's tokens.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from icl_core import _validate
from icl_core.theory._statement import statement


def _noise(K: int, s: float) -> tuple[int, float]:
    return _validate.integer("K", K, least=2), _validate.real("s", s, least=0.0)


def best_attention(K: int, s: float) -> float:
    """Attention on the query's feature that minimises the noisy loss, ``(K + s) / (K (1 + s))``.

    It is 1 without noise and falls to 1/K as the noise grows; the other K - 1 features share the rest equally.
    """
    K, s = _noise(K, s)
    return (K + s) / (K * (1 + s))


@statement("ood.app-K.floor")
def noise_floor(K: int, s: float, sigma: float) -> float:
    """Least total loss with label noise.

    Parameters
    ----------
    K : int
        Number of features.
    s : float
        Effective noise variance, at least 0.
    sigma : float
        Standard deviation of the label noise.

    Returns
    -------
    float
        ``(sigma^2 + s (K + s) / (K (1 + s))) / 2``, the paper's epsilon_0.

    Raises
    ------
    ValueError
        For arguments out of range.

    Notes
    -----
    OOD paper, Appendix K, after eq. 31.
    """
    return (_validate.real("sigma", sigma, least=0.0) ** 2 + s * best_attention(K, s)) / 2


def eps_limit(K: int, s: float) -> float:
    """Excess loss at Q = 0, ``(K - 1) / (2 K (1 + s))``: eq. 32 needs eps below it, else training stops at once."""
    K, s = _noise(K, s)
    return (K - 1) / (2 * K * (1 + s))


@statement("ood.eq-32")
def attention_at_end(K: int, eps: float, s: float) -> float:
    """Attention on the query's feature when the excess loss is eps and attention comes from below.

    Parameters
    ----------
    K : int
        Number of features.
    eps : float
        Excess of the total loss over the floor.
    s : float
        Effective noise variance.

    Raises
    ------
    ValueError
        For arguments out of range.

    Notes
    -----
    OOD paper, eq. 32: ``(K + s) / (K (1 + s)) - sqrt(2 (K - 1) eps / (K (1 + s)))``.
    """
    return best_attention(K, s) - math.sqrt(2 * (K - 1) * _validate.real("eps", eps, above=0.0) / (K * (1 + s)))


@statement("ood.thm-K.1.scores.level")
def alpha_hat(K: int, eps: float, s: float) -> float:
    """Score alpha of the symmetric trajectory at which the excess loss is eps (OOD paper, Theorem K.1).

    Raises
    ------
    ValueError
        If eps is not in (0, ``eps_limit(K, s)``).
    """
    eps = _validate.real(
        "eps", eps, above=0.0, below=eps_limit(K, s), because="from (K-1)/(2K(1+s)) on training stops at Q = 0"
    )
    # The sum of what the others get, computed directly: 1 - a would lose digits for small s and eps.
    rest = s * (K - 1) / (K * (1 + s)) + math.sqrt(2 * (K - 1) * eps / (K * (1 + s)))
    return (1 - 1 / K) * math.log((K - 1) * (1 - rest) / rest)


def careful_eta(K: int, s: float) -> float:
    """Step size ``12 (K - 1)^2 / (K (1 + s))`` up to which noisy training approaches the best attention from below.

    In ``g = K alpha / (K - 1)`` a step of the symmetric trajectory adds ``eta K (1 + s) / (K - 1)^2`` times
    ``a (1 - a) (best - a)``, whose slope by g is above -1/12: such a step preserves the order of two values of g.
    """
    K, s = _noise(K, s)
    return 12 * (K - 1) ** 2 / (K * (1 + s))


def overshoot(K: int, eps: float, s: float, eta: float) -> float:
    """Bound on how far discrete steps end past :func:`alpha_hat`: the update at the threshold, times eta.

    ``eta (1 + s) / (K - 1) a (1 - a) (best - a)`` with a from :func:`attention_at_end`, for step sizes up to
    :func:`careful_eta`; without noise it is the bound ``2 eta eps a / K`` of Lemma E.1.

    Raises
    ------
    ValueError
        If eps is not in (0, ``eps_limit(K, s)``).

    Notes
    -----
    OOD paper, Theorem K.1, corrected: printed as ``alpha = alpha_hat``.
    """
    eps = _validate.real(
        "eps", eps, above=0.0, below=eps_limit(K, s), because="from (K-1)/(2K(1+s)) on training stops at Q = 0"
    )
    a = attention_at_end(K, eps, s)
    return eta * (1 + s) / (K - 1) * a * (1 - a) * (best_attention(K, s) - a)


def rho_hat(K: int, eps: float, s: float) -> float:
    """Noisy logarithmic scale ``K / (K - 1) alpha_hat`` (OOD paper, Theorem K.2)."""
    return K / (K - 1) * alpha_hat(K, eps, s)


@statement("ood.thm-K.1.proof.loss")
def symmetric_total_loss(K: int, attention: float, s: float, sigma: float) -> float:
    """Total noisy loss when every query gives ``attention`` to its own feature and the rest equally to the others.

    OOD paper, proof of Theorem K.1: ``floor + K (1 + s) / (2 (K - 1)) (attention - best)^2``.
    """
    return noise_floor(K, s, sigma) + K * (1 + s) / (2 * (K - 1)) * (attention - best_attention(K, s)) ** 2


@statement("ood.eq-33")
def noisy_losses(scores: Tensor, s: float, sigma: float) -> Tensor:
    """Noisy loss per query feature from scores.

    Parameters
    ----------
    scores : Tensor, shape (..., K, K)
        Scores; row key, column query.
    s, sigma : float
        Effective noise variance and label noise.

    Returns
    -------
    Tensor, shape (..., K)

    Notes
    -----
    OOD paper, eq. 33; eq. 36 is the same without the factor 1/K, see :func:`noisy_losses_eq36`.
    """
    K = scores.shape[-1]
    weight = torch.exp(scores - scores.amax(-2, keepdim=True))
    own = torch.diagonal(weight, dim1=-2, dim2=-1)
    others = weight * (1 - torch.eye(K, dtype=scores.dtype, device=scores.device))
    rest, squares = others.sum(-2), (others**2).sum(-2)
    return ((rest**2 + squares + s * (own**2 + squares)) / (own + rest) ** 2 + sigma**2) / (2 * K)


def noisy_losses_eq36(scores: Tensor, s: float, sigma: float) -> Tensor:
    """Eq. 36 as printed, shape (..., K): K times the loss of one query feature, the probability 1/K being left out."""
    return scores.shape[-1] * noisy_losses(scores, s, sigma)


def rise_printed(K: int, gamma: float, gamma_alpha: float) -> float:
    """Bracket of eq. 34 as printed, ``1 - gamma^2 - gamma gamma_alpha / K``."""
    return 1 - gamma**2 - gamma * gamma_alpha / K


def rise_corrected(K: int, gamma: float, gamma_alpha: float) -> float:
    """Bracket of eq. 34 with the factor that it lacks, ``1 - (1 - 1/K) gamma^2 - gamma gamma_alpha / K``.

    The initial score is ``gamma^2 alpha_hat`` and ``alpha_hat = (1 - 1/K) rho_hat``; with it the bracket is never
    negative and vanishes where nothing is left to learn (all gamma equal to 1, or all to -1).
    """
    return 1 - (1 - 1 / K) * gamma**2 - gamma * gamma_alpha / K


def fall_printed(K: int, rise: float, gamma: float, gamma_beta: float, rho: float) -> float:
    """Argument of Theta in eq. 35 as printed, ``Delta / K + gamma gamma_beta rho / K``."""
    return rise / K + gamma * gamma_beta * rho / K


def fall_bounds(K: int, rise: float, gamma: float, spread: float, rho: float) -> tuple[float, float]:
    """Two-sided bound that replaces eq. 35: ``Delta / (K - 1) -+ |gamma| spread rho / K``.

    Parameters
    ----------
    K : int
        Number of features.
    rise : float
        ``Delta_{k,alpha}``.
    gamma : float
        ``gamma_k``.
    spread : float
        Largest less smallest gamma of the other features.
    rho : float
        ``rho_hat``.

    Returns
    -------
    (float, float)
        Lower and upper bound of ``Lambda_{n,k,beta}`` for every n != k.

    Notes
    -----
    Beta-type scores of one query start within ``|gamma| spread rho / K`` of each other and keep their order
    (OOD paper, Lemma F.3), so the amounts by which they fall differ by no more; their sum is ``Delta`` (Lemma 5.3).
    """
    slack = abs(gamma) * spread * rho / K
    return rise / (K - 1) - slack, rise / (K - 1) + slack

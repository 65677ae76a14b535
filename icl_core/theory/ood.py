"""Closed forms of the OOD paper's training phase and OOD generalisation (Section 5.1, Appendices D and E)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from icl_core import _validate, features
from icl_core.theory._statement import statement


def eps_limit(K: int) -> float:
    """Total loss at Q = 0, ``(K - 1) / (2 K)``: for eps at or above it training stops before its first step."""
    K = _validate.integer("K", K, least=2)
    return (K - 1) / (2 * K)


@statement("ood.eq-16")
def alpha_star(K: int, eps: float) -> float:
    """Score at which the symmetric training trajectory has loss eps / K per feature.

    Parameters
    ----------
    K : int
        Number of features.
    eps : float
        Total loss; defined below K / (2 (K - 1)), and positive exactly below :func:`eps_limit`.

    Raises
    ------
    ValueError
        If eps is outside (0, K / (2 (K - 1))).

    Notes
    -----
    OOD paper, eq. 16: ``(1 - 1/K) log((K - 1) (sqrt(K / (2 (K - 1))) - sqrt(eps)) / sqrt(eps))``.
    """
    K = _validate.integer("K", K, least=2)
    top = math.sqrt(K / (2 * (K - 1)))
    eps = _validate.real("eps", eps, above=0.0, below=top**2, because="the logarithm of eq. 16 needs eps < K/(2(K-1))")
    return (1 - 1 / K) * math.log((K - 1) * (top - math.sqrt(eps)) / math.sqrt(eps))


def symmetric_scores(K: int, alpha: float) -> Tensor:
    """Scores with ``alpha`` on the diagonal and ``-alpha / (K - 1)`` elsewhere, shape (K, K) (OOD paper, Lemma D.7)."""
    eye = torch.eye(K, dtype=torch.float64)
    return alpha * (eye - (1 - eye) / (K - 1))


@statement("ood.thm-5.1.scores")
def ood_scores(V: Tensor, U: Tensor, alpha: float) -> Tensor:
    """Scores on OOD features when those on the training features are symmetric.

    Parameters
    ----------
    V : Tensor, shape (..., d, K)
        Orthonormal training features.
    U : Tensor, shape (..., d, K)
        OOD features, orthonormal or not.
    alpha : float
        alpha-type weight on the training features: ``alpha_star``, or the value that discrete steps reached.

    Returns
    -------
    Tensor, shape (..., K, K)
        ``K alpha / (K - 1) (M'M - c c')`` with ``M = V'U`` and ``c_k = <u_k, mean feature>``.

    Notes
    -----
    OOD paper, Theorem 5.1 / E.2.
    """
    K = V.shape[-1]
    M = features.overlap(V, U)
    c = (U.mT @ features.mean_feature(V).unsqueeze(-1)).squeeze(-1)
    return K * alpha / (K - 1) * (M.mT @ M - c.unsqueeze(-1) * c.unsqueeze(-2))


@statement("ood.lem-D.9")
def loss_from_scores(scores: Tensor) -> Tensor:
    """Loss per query feature from scores, as the paper writes it.

    Parameters
    ----------
    scores : Tensor, shape (..., K, K)
        Scores; row key, column query.

    Returns
    -------
    Tensor, shape (..., K)

    Notes
    -----
    OOD paper, eq. 14 and 18 (Lemma D.9). ``population.losses`` is the same number from the attention.
    """
    K = scores.shape[-1]
    weight = torch.exp(scores)
    alpha = torch.diagonal(weight, dim1=-2, dim2=-1)
    others = weight * (1 - torch.eye(K, dtype=scores.dtype, device=scores.device))
    total, squares = others.sum(-2), (others**2).sum(-2)
    return (total**2 + squares) / (2 * K * (alpha + total) ** 2)


@statement("ood.thm-5.1.loss")
def ood_loss(V: Tensor, U: Tensor, alpha: float) -> Tensor:
    """OOD loss per feature after training, shape (..., K) (OOD paper, Theorem 5.1, eq. 14); arguments as ood_scores."""
    return loss_from_scores(ood_scores(V, U, alpha))


@statement("ood.cor-5.2.1")
def uniform_loss(K: int) -> float:
    """Loss per feature under uniform attention, ``(K - 1) / (2 K^2)``: the paper's random guessing (Corollary 5.2)."""
    return eps_limit(K) / K

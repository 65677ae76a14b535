"""Closed forms of the OOD paper's fine-tuning phase (Section 5.2, Appendices F and J), as printed and as corrected."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from icl_core import _validate
from icl_core.theory._statement import statement
from icl_core.theory.ood import alpha_star


class Bounds(NamedTuple):
    """A lower and an upper bound, tensors of the same shape."""

    lower: Tensor
    upper: Tensor


@statement("ood.thm-F.4.init")
def initial_scores(gamma: Tensor, alpha: float) -> Tensor:
    """Scores on U when fine-tuning starts, under Assumption 5.4.

    Parameters
    ----------
    gamma : Tensor, shape (..., K)
        Correlations ``<v_k, u_k>``.
    alpha : float
        alpha-type weight on the training features.

    Returns
    -------
    Tensor, shape (..., K, K)
        ``gamma_k^2 alpha`` on the diagonal, ``-gamma_n gamma_k alpha / (K - 1)`` at (n, k).

    Notes
    -----
    OOD paper, eq. 25.
    """
    K = gamma.shape[-1]
    eye = torch.eye(K, dtype=gamma.dtype)
    return gamma.unsqueeze(-1) * gamma.unsqueeze(-2) * alpha * (eye - (1 - eye) / (K - 1))


@statement("ood.thm-F.4.step")
def step_limit(start: Tensor) -> Tensor:
    """Largest step size that Lemma F.3 and Theorem F.4 allow, shape (...).

    Parameters
    ----------
    start : Tensor, shape (..., K, K)
        Scores on U at T_1.

    Notes
    -----
    OOD paper, Lemma F.3: the least ``exp(-beta)`` over all pairs.
    """
    K = start.shape[-1]
    beta = start.masked_fill(torch.eye(K, dtype=torch.bool), -math.inf)
    return torch.exp(-beta.amax((-2, -1)))


@statement("ood.lem-F.2.result")
def sign_condition(K: int) -> float:
    """The eps above which Lemma F.2 says that every beta falls, ``(K / exp((K - 1)^2))^2``."""
    K = _validate.integer("K", K, least=2)
    return (K / math.exp((K - 1) ** 2)) ** 2


@statement("ood.app-J.2")
def sign_condition_any(K: int) -> float:
    """An eps at and above which every beta falls for any orthonormal U.

    Notes
    -----
    OOD paper, Appendix J asks for "a stricter requirement" and names none. This one is ``K alpha* / (K - 1) <= 1``:
    scores on U at T_1 are ``c W'W`` with ``c = K alpha* / (K - 1)`` and a contraction W, so with ``p = c |w_k|`` every
    ``|beta|`` is at most p while ``alpha = p^2 / c >= p^2``, and ``2 sinh(p) < exp(p^2)`` does the rest as in eq. 23.
    """
    K = _validate.integer("K", K, least=2)
    return K / (2 * (K - 1)) * ((K - 1) / (K - 1 + math.e)) ** 2


def partners(gamma: Tensor) -> Bounds:
    """Least and largest ``gamma_m gamma_n`` over n != m, shape (..., K): at the paper's N(m) and M(m) (Theorem F.4)."""
    K = gamma.shape[-1]
    eye = torch.eye(K, dtype=torch.bool)
    product = gamma.unsqueeze(-1) * gamma.unsqueeze(-2)
    return Bounds(product.masked_fill(eye, math.inf).amin(-2), product.masked_fill(eye, -math.inf).amax(-2))


@statement("ood.eq-28")
def delta_upper_printed(gamma: Tensor, eps: float) -> Tensor:
    """Upper bound on ``Delta_{m,alpha}`` at t_m as printed, shape (..., K): eq. 28."""
    K, log = gamma.shape[-1], math.log
    root = math.sqrt(eps)
    inner = gamma**2 + partners(gamma).lower / (K - 1) * alpha_star(K, eps)
    return (1 - 1 / K) * (log((K - 1) * (1 - root) / root) - inner)


@statement("ood.eq-29")
def delta_lower_printed(gamma: Tensor, eps: float) -> Tensor:
    """Lower bound on ``Delta_{m,alpha}`` at t_m as printed, shape (..., K): eq. 29."""
    K, log = gamma.shape[-1], math.log
    root = math.sqrt(2 * K * eps / (K + 1))
    inner = gamma**2 + partners(gamma).upper / (K - 1) * alpha_star(K, eps)
    return (1 - 1 / K) * (log((K - 1) * (1 - root) / root) - inner)


def delta_bounds(gamma: Tensor, eps: float) -> Bounds:
    """Bounds on ``Delta_{m,alpha}`` at t_m, corrected, shape (..., K).

    Parameters
    ----------
    gamma : Tensor, shape (..., K)
        Correlations.
    eps : float
        Target of the total loss.

    Returns
    -------
    Bounds
        ``alpha* (1 - (1 - 1/K) gamma_m^2 - gamma_m gamma_x / K)`` with x = M(m) below and x = N(m) above.

    Notes
    -----
    OOD paper, eq. 28 and 29 with ``alpha*`` outside the bracket and the factor of eq. 16 in the logarithm. Equal where
    all ``gamma_m gamma_n`` are equal. Along the flow both hold at t_m; with steps of size eta the lower one holds at
    t_m and the upper one one step before.
    """
    K = gamma.shape[-1]
    least, largest = partners(gamma)
    own = 1 - (1 - 1 / K) * gamma**2
    scale = alpha_star(K, eps)
    return Bounds(scale * (own - largest / K), scale * (own - least / K))


def delta_bounds_any(start: Tensor, eps: float) -> Bounds:
    """The same for any orthonormal U, from the scores at T_1 alone, shape (..., K).

    ``alpha* - (1 - 1/K) (alpha_m - beta_m)`` with the least beta of the query below and its largest above (Appendix J).
    """
    K = start.shape[-1]
    eye = torch.eye(K, dtype=torch.bool)
    alpha = torch.diagonal(start, dim1=-2, dim2=-1)
    least = start.masked_fill(eye, math.inf).amin(-2)
    largest = start.masked_fill(eye, -math.inf).amax(-2)
    scale = alpha_star(K, eps)
    return Bounds(scale - (1 - 1 / K) * (alpha - least), scale - (1 - 1 / K) * (alpha - largest))


@statement("ood.thm-F.4.beta.upper")
def lambda_bounds(gamma: Tensor, alpha: float, delta: Tensor) -> Bounds:
    """Bounds on ``Lambda_{n,m,beta}``, the same for every n != m, shape (..., K).

    Parameters
    ----------
    gamma : Tensor, shape (..., K)
        Correlations.
    alpha : float
        ``alpha*``, the alpha-type weight on the training features.
    delta : Tensor, shape (..., K)
        ``Delta_{m,alpha}`` at the same time.

    Returns
    -------
    Bounds
        ``delta / (K - 1) -+ (gamma_M gamma_m - gamma_N gamma_m) alpha / (K - 1)``.

    Notes
    -----
    OOD paper, Theorem F.4.
    """
    K = gamma.shape[-1]
    least, largest = partners(gamma)
    spread = (largest - least) * alpha / (K - 1)
    return Bounds(delta / (K - 1) - spread, delta / (K - 1) + spread)


@statement("ood.thm-5.5.alpha")
def delta_scale_printed(gamma: float, gamma_alpha: float, K: int, eps: float) -> float:
    """What ``Delta_{k,alpha}`` is said to be of the order of: Theorem 5.5."""
    return (1 - gamma**2 - gamma * gamma_alpha / K) * math.log(K / math.sqrt(eps))


@statement("ood.thm-5.5.beta")
def lambda_scale_printed(delta: float, gamma: float, gamma_beta: float, K: int, eps: float) -> float:
    """What ``Lambda_{n,k,beta}`` is said to be of the order of: Theorem 5.5."""
    return delta / K + gamma * gamma_beta / K * math.log(K / math.sqrt(eps))


@statement("ood.thm-5.5.time")
def time_bound(start: Tensor, eps: float, eta: float | Tensor) -> Tensor:
    """A polynomial bound on every t_m, shape (..., K), for step sizes up to the limit of Theorem F.4.

    Parameters
    ----------
    start : Tensor, shape (..., K, K)
        Scores on U at T_1.
    eps : float
        Target of the total loss.
    eta : float or Tensor, shape (...)
        Step size.

    Returns
    -------
    Tensor
        ``1 + K B (1 + (K - 1) Y) / (2 eta eps)`` with B the upper bound on Delta and Y the largest ``exp(beta)`` of
        the query at T_1.

    Notes
    -----
    Until t_m each step adds ``eta * 2 Attn L >= 2 eta eps Attn / K`` to alpha, and ``Attn >= 1 / (1 + (K - 1) Y)``
    because alpha starts at 0 or above and the largest beta falls. Y is at most ``(K / sqrt(eps))^(1 / K)``.
    """
    K = start.shape[-1]
    rate = torch.as_tensor(eta, dtype=torch.float64).unsqueeze(-1)
    beta = start.masked_fill(torch.eye(K, dtype=torch.bool), -math.inf).amax(-2)
    upper = delta_bounds_any(start, eps).upper.clamp(min=0)
    return 1 + K * upper * (1 + (K - 1) * torch.exp(beta)) / (2 * rate * eps)

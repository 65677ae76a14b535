"""The population loss in score coordinates: attention, loss per feature, descent direction, a token-level reference.

Score coordinates are ``S = W' Q W``, shape (..., K, K): row n is the key feature, column k the query feature, so
``S[k, k]`` is the alpha-type and ``S[n, k]`` the beta-type weight. The gradient of the loss on a feature set W is
``-W delta W'`` with ``delta`` from :func:`descent`, whatever the dimension d and the prompt length N.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from icl_core import attention as attn
from icl_core.prompts import PromptLaw

# Largest number of elements of one block of count vectors; bounds the memory of an exact enumeration.
_BLOCK = 1 << 22


def attention_weights(scores: Tensor, counts: Tensor | None = None) -> Tensor:
    """Feature attention for every query.

    Parameters
    ----------
    scores : Tensor, shape (..., K, K)
        Score coordinates.
    counts : Tensor, shape (..., K), optional
        Occurrences of each feature in the prompt; equal by default.

    Returns
    -------
    Tensor, shape (..., K, K)
        Column k holds Attn_1 ... Attn_K for query k; columns sum to 1.

    Notes
    -----
    OOD paper, eq. 13; convergence paper, Definition 3.1.
    """
    logits = scores if counts is None else scores + torch.log(counts).unsqueeze(-1)
    weight = torch.exp(logits - logits.amax(-2, keepdim=True))
    return weight / weight.sum(-2, keepdim=True)


class _Step(NamedTuple):
    attention: Tensor
    losses: Tensor
    delta: Tensor


def _at_counts(
    scores: Tensor,
    counts: Tensor | None,
    noise: Tensor | None,
    query: Tensor,
    label_noise: float,
    covariance: Tensor | None,
    with_delta: bool,
) -> _Step:
    """Attention, losses (..., K) and descent direction (..., K, K) for one block of count vectors, not averaged."""
    a = attention_weights(scores, counts)
    diagonal = torch.eye(a.shape[-1], dtype=a.dtype, device=a.device)
    # The residual a - e_k; 1 - a_k is the sum of the others, since a subtraction would lose it near convergence.
    residual = a * (1 - diagonal)
    residual = residual - diagonal * residual.sum(-2, keepdim=True)
    slope = residual if covariance is None else covariance @ residual
    losses = (residual * slope).sum(-2)
    if noise is not None:
        slope = slope + noise.unsqueeze(-1) * a
        losses = losses + (noise.unsqueeze(-1) * a * a).sum(-2) + label_noise
    losses = 0.5 * query * losses
    delta = query * a * ((a * slope).sum(-2, keepdim=True) - slope) if with_delta else a
    return _Step(a, losses, delta)


def _average(scores: Tensor, law: PromptLaw, covariance: Tensor | None, with_delta: bool) -> _Step:
    if scores.ndim < 2 or scores.shape[-2:] != (law.K, law.K):
        raise ValueError(f"scores must have shape (..., {law.K}, {law.K}), got {tuple(scores.shape)}")
    # Where a feature is missing its attention is 0, so that its noise term is 0 whatever stands here.
    noise = law.sigma**2 / law.counts.clamp(min=1) if law.sigma else None
    if law.counts.shape[0] == 1:
        counts = None if law.uniform else law.counts[0]
        return _at_counts(
            scores, counts, None if noise is None else noise[0], law.query, law.sigma**2, covariance, with_delta
        )
    rows = max(1, _BLOCK // scores.numel())
    total: list[Tensor] = [torch.zeros_like(scores), torch.zeros_like(scores[..., 0, :]), torch.zeros_like(scores)]
    for start in range(0, law.counts.shape[0], rows):
        block = slice(start, start + rows)
        step = _at_counts(
            scores.unsqueeze(-3),
            law.counts[block],
            None if noise is None else noise[block],
            law.query,
            law.sigma**2,
            covariance,
            with_delta,
        )
        w = law.weights[block]
        total[0] += torch.einsum("m,...mnk->...nk", w, step.attention)
        total[1] += torch.einsum("m,...mk->...k", w, step.losses)
        total[2] += torch.einsum("m,...mnk->...nk", w, step.delta)
    return _Step(*total)


def losses(scores: Tensor, law: PromptLaw, covariance: Tensor | None = None) -> Tensor:
    """Population loss per query feature.

    Parameters
    ----------
    scores : Tensor, shape (..., K, K)
        Score coordinates.
    law : PromptLaw
        Distribution of prompts, with its label noise.
    covariance : Tensor, shape (K, K), optional
        ``W' Sigma W`` for task covariance Sigma and features W. Default: the identity, which is right for
        orthonormal features and standard Gaussian tasks.

    Returns
    -------
    Tensor, shape (..., K)
        ``q_k / 2 E[(a - e_k)' C (a - e_k)]``, plus with label noise ``q_k sigma^2 / 2 (1 + E sum_n a_n^2 / N_n)``.

    Raises
    ------
    ValueError
        If the shape of ``scores`` does not fit the law.

    Notes
    -----
    OOD paper, eq. 6, 8, Lemma D.8 and eq. 31; convergence paper, eq. 4 and 8.
    """
    return _average(scores, law, covariance, False).losses


def descent(scores: Tensor, law: PromptLaw, covariance: Tensor | None = None) -> Tensor:
    """Direction ``delta = -dL/dS`` of gradient descent, shape (..., K, K).

    Arguments and errors as in :func:`losses`. For orthonormal features a step of size eta is ``S + eta * delta``; in
    general it is ``S + eta * G @ delta @ G`` with the Gram matrix G.

    Notes
    -----
    OOD paper, Lemma D.3 (its delta_alpha is the diagonal, delta_beta the rest); convergence paper, Lemma 4.2.
    """
    return _average(scores, law, covariance, True).delta


def losses_and_descent(scores: Tensor, law: PromptLaw, covariance: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return :func:`losses` and :func:`descent` from one evaluation."""
    step = _average(scores, law, covariance, True)
    return step.losses, step.delta


def mean_attention(scores: Tensor, law: PromptLaw) -> Tensor:
    """Feature attention averaged over the law's prompts, shape (..., K, K)."""
    return _average(scores, law, None, False).attention


def loss_samples(scores: Tensor, law: PromptLaw, covariance: Tensor | None = None) -> Tensor:
    """Loss per count vector and query feature, shape (M, K), for ``scores`` of shape (K, K): what an interval needs."""
    noise = law.sigma**2 / law.counts.clamp(min=1) if law.sigma else None
    return _at_counts(scores.unsqueeze(-3), law.counts, noise, law.query, law.sigma**2, covariance, False).losses


def token_level_losses(Q: Tensor, features: Tensor, law: PromptLaw, covariance: Tensor | None = None) -> Tensor:
    """Reference for :func:`losses`: run the attention layer on tokens, differentiable in Q.

    The expectation over tasks and noise is exact although it is a finite sum: the squared error is quadratic in the
    Gaussian vector z = (task, noises), and the D points sqrt(D) e_i, equally weighted, have the same second moment.

    Parameters
    ----------
    Q : Tensor, shape (d, d)
        Attention parameter.
    features : Tensor, shape (d, K)
        Features, orthonormal or not.
    law : PromptLaw
        Its counts must be whole numbers.
    covariance : Tensor, shape (d, d), optional
        Task covariance Sigma.

    Returns
    -------
    Tensor, shape (K,)
    """
    d, K = features.shape
    root = torch.eye(d, dtype=Q.dtype) if covariance is None else torch.linalg.cholesky(covariance)
    total = torch.zeros(K, dtype=Q.dtype)
    for counts, weight in zip(law.counts, law.weights, strict=True):
        index = torch.repeat_interleave(torch.arange(K), counts.to(torch.int64))
        N = index.numel()
        design = (d + N + 1) ** 0.5 * torch.eye(d + N + 1, dtype=Q.dtype)
        task, context_noise, query_noise = design[:, :d] @ root.T, design[:, d:-1], design[:, -1]
        x = features.T[index].expand(d + N + 1, N, d)
        y = torch.einsum("bnd,bd->bn", x, task) + law.sigma * context_noise
        errors = []
        for k in range(K):
            query = features[:, k].expand(d + N + 1, d)
            target = task @ features[:, k] + law.sigma * query_noise
            errors.append(((attn.predict(Q, x, y, query) - target) ** 2).mean())
        total = total + weight * 0.5 * law.query * torch.stack(errors)
    return total

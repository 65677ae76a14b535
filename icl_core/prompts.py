"""Prompt distributions: the law of the feature counts in a prompt, and prompts drawn token by token."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from icl_core import _validate


@dataclass(frozen=True)
class PromptLaw:
    """A distribution of prompts, as far as the population loss can see it.

    A prompt enters the loss only through how often each feature occurs in it, so a law is a list of count vectors
    with probabilities, the distribution of the query, and the label noise.

    Parameters
    ----------
    counts : Tensor, shape (M, K)
        Occurrences of each feature, float64; a missing feature has 0.
    weights : Tensor, shape (M,)
        Probabilities of the count vectors; they sum to 1.
    query : Tensor, shape (K,)
        Probability that the query is feature k.
    sigma : float
        Standard deviation of the label noise, on context and query labels alike.
    sampled : bool
        Whether the counts are a random sample (then averages carry a sampling error) or the whole distribution.
    """

    counts: Tensor
    weights: Tensor
    query: Tensor
    sigma: float = 0.0
    sampled: bool = False

    @property
    def K(self) -> int:
        """Number of features."""
        return self.counts.shape[-1]

    @property
    def N(self) -> float:
        """Number of context tokens."""
        return float(self.counts[0].sum())

    @property
    def uniform(self) -> bool:
        """Whether every prompt holds every feature equally often (the OOD paper's assumption)."""
        return self.counts.shape[0] == 1 and bool((self.counts == self.counts[0, 0]).all())

    @property
    def sigma_eff2(self) -> float:
        """Variance of the averaged context noise per feature, ``K sigma^2 / N`` (OOD paper, Appendix K)."""
        return self.K * self.sigma**2 / self.N

    def to(self, device: str | torch.device, dtype: torch.dtype = torch.float64) -> PromptLaw:
        """Return the same law on another device."""
        counts, weights, query = (x.to(device=device, dtype=dtype) for x in (self.counts, self.weights, self.query))
        return PromptLaw(counts, weights, query, self.sigma, self.sampled)


def balanced(K: int, N: int | None = None, *, sigma: float = 0.0) -> PromptLaw:
    """Prompts with each of the K features exactly N/K times, query uniform.

    Parameters
    ----------
    K : int
        Number of features, at least 2.
    N : int, optional
        Prompt length, a multiple of K; only label noise makes it matter. Default K.
    sigma : float
        Standard deviation of the label noise.

    Raises
    ------
    ValueError
        If K < 2, N is not a positive multiple of K, or sigma is negative.

    Notes
    -----
    OOD paper, Section 4.
    """
    K = _validate.integer("K", K, least=2)
    N = K if N is None else _validate.integer("N", N, least=K)
    if N % K:
        raise ValueError(f"N must be a multiple of K = {K} for balanced prompts, got {N}")
    return _law(torch.full((1, K), N / K, dtype=torch.float64), None, [1 / K] * K, sigma)


def multinomial(p: Sequence[float], N: int, *, sigma: float = 0.0, limit: int = 2_000_000) -> PromptLaw:
    """All count vectors of N tokens drawn independently with probabilities ``p``, with their probabilities.

    Parameters
    ----------
    p : sequence of float, length K
        Probabilities of the features, for tokens and query.
    N : int
        Prompt length.
    sigma : float
        Standard deviation of the label noise.
    limit : int
        Largest number of count vectors to enumerate.

    Raises
    ------
    ValueError
        If ``p`` is not a distribution or the enumeration would exceed ``limit``; use :func:`multinomial_sample` then.

    Notes
    -----
    Convergence paper, Section 2.1; OOD paper, Appendix I.
    """
    p = _distribution(p)
    K, N = len(p), _validate.integer("N", N, least=1)
    size = math.comb(N + K - 1, K - 1)
    if size > limit:
        raise ValueError(f"N must give at most {limit} count vectors for K = {K}, got {size}; sample them instead")
    bars = torch.tensor(list(itertools.combinations(range(N + K - 1), K - 1)), dtype=torch.float64).reshape(size, K - 1)
    edge = torch.full((size, 1), -1.0, dtype=torch.float64)
    counts = torch.diff(torch.cat([edge, bars, -edge * (N + K - 1)], dim=1), dim=1) - 1
    log_p = torch.log(torch.tensor(p, dtype=torch.float64))
    log_weight = math.lgamma(N + 1) - torch.lgamma(counts + 1).sum(1) + (counts * log_p).sum(1)
    return _law(counts, torch.exp(log_weight), p, sigma)


def multinomial_sample(
    p: Sequence[float], N: int, samples: int, *, generator: torch.Generator, sigma: float = 0.0
) -> PromptLaw:
    """Draw ``samples`` count vectors of N tokens; averages over them carry a sampling error.

    Raises
    ------
    ValueError
        If ``p`` is not a distribution or ``samples`` < 2.
    """
    p = _distribution(p)
    N, samples = _validate.integer("N", N, least=1), _validate.integer("samples", samples, least=2)
    probabilities = torch.tensor(p, dtype=torch.float64, device=generator.device)
    # One binomial draw per feature, given what the earlier features left, costs O(K) whatever N is.
    left = torch.full((samples,), float(N), dtype=torch.float64, device=generator.device)
    mass = 1.0
    columns = []
    for probability in probabilities[:-1].tolist():
        share = torch.full_like(left, min(1.0, probability / mass) if mass > 0 else 0.0)
        drawn = torch.binomial(left, share, generator=generator)
        columns.append(drawn)
        left, mass = left - drawn, mass - probability
    counts = torch.stack([*columns, left], dim=1).cpu()
    law = _law(counts, None, p, sigma)
    return PromptLaw(law.counts, law.weights, law.query, law.sigma, sampled=True)


def mean_field(p: Sequence[float], N: float, *, sigma: float = 0.0) -> PromptLaw:
    """The limit of long prompts: every prompt holds exactly its expected counts ``N p``."""
    p = _distribution(p)
    return _law(torch.tensor([p], dtype=torch.float64) * _validate.real("N", N, above=0.0), None, p, sigma)


def _law(counts: Tensor, weights: Tensor | None, query: Sequence[float], sigma: float) -> PromptLaw:
    if weights is None:
        weights = torch.full((counts.shape[0],), 1 / counts.shape[0], dtype=torch.float64)
    q = torch.tensor(list(query), dtype=torch.float64)
    return PromptLaw(counts, weights, q, _validate.real("sigma", sigma, least=0.0))


def _distribution(p: Sequence[float]) -> list[float]:
    values = _validate.reals("p", p, above=0.0, most=1.0)
    if len(values) < 2:
        raise ValueError(f"p must have at least 2 entries, got {len(values)}")
    if abs(sum(values) - 1) > 1e-9:
        raise ValueError(f"p must sum to 1, got {sum(values):.12g}")
    return values


@dataclass(frozen=True)
class TokenPrompts:
    """A batch of prompts as tokens.

    Parameters
    ----------
    x : Tensor, shape (B, N, d)
        Context inputs.
    y : Tensor, shape (B, N)
        Context labels.
    query : Tensor, shape (B, d)
        Query inputs.
    target : Tensor, shape (B,)
        Query labels.
    index : Tensor, shape (B, N)
        Which feature each context token is.
    query_index : Tensor, shape (B,)
        Which feature the query is.
    """

    x: Tensor
    y: Tensor
    query: Tensor
    target: Tensor
    index: Tensor
    query_index: Tensor


def sample_tokens(
    features: Tensor,
    B: int,
    N: int,
    *,
    generator: torch.Generator,
    p: Sequence[float] | None = None,
    sigma: float = 0.0,
) -> TokenPrompts:
    """Draw prompts token by token, each with its own task ``w ~ N(0, I)``.

    Parameters
    ----------
    features : Tensor, shape (d, K)
        The feature set.
    B, N : int
        Number of prompts and context length.
    generator : torch.Generator
        Source of every draw.
    p : sequence of float, optional
        Draw tokens independently with these probabilities; by default prompts are balanced (N a multiple of K, each
        feature N/K times, in random order) and the query is uniform.
    sigma : float
        Standard deviation of the label noise.

    Raises
    ------
    ValueError
        If a number is out of range or N is not a multiple of K for balanced prompts.

    Notes
    -----
    OOD paper, Section 3 and eq. 31's model of noise; convergence paper, Section 2.1.
    """
    d, K = features.shape
    B, sigma = _validate.integer("B", B, least=1), _validate.real("sigma", sigma, least=0.0)
    device = generator.device
    if p is None:
        each = int(balanced(K, N).counts[0, 0])
        order = torch.rand(B, N, generator=generator, device=device).argsort(1)
        index = torch.arange(K, device=device).repeat_interleave(each)[order]
        query = torch.full((K,), 1 / K, device=device)
    else:
        query = torch.tensor(_distribution(p), device=device)
        if query.numel() != K:
            raise ValueError(f"p must have K = {K} entries, got {query.numel()}")
        N = _validate.integer("N", N, least=1)
        index = torch.multinomial(query.expand(B, K), N, replacement=True, generator=generator)
    query_index = torch.multinomial(query.expand(B, K), 1, replacement=True, generator=generator).squeeze(1)
    w = torch.randn(B, d, dtype=features.dtype, generator=generator, device=device)
    columns = features.T.to(device)
    x, q = columns[index], columns[query_index]
    y, target = torch.einsum("bnd,bd->bn", x, w), (q * w).sum(1)
    if sigma:
        y = y + sigma * torch.randn(y.shape, dtype=y.dtype, generator=generator, device=device)
        target = target + sigma * torch.randn(target.shape, dtype=y.dtype, generator=generator, device=device)
    return TokenPrompts(x, y, q, target, index, query_index)

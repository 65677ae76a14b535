"""Prompt laws: probabilities, moments, sampling against enumeration, and the errors that name the argument."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from icl_core import features, prompts

weights = st.lists(st.floats(0.05, 1), min_size=2, max_size=4)


@settings(max_examples=40, deadline=None)
@given(weights, st.integers(1, 7))
def test_enumeration_is_the_whole_multinomial(raw, N):
    p = [x / sum(raw) for x in raw]
    law = prompts.multinomial(p, N)
    assert law.counts.shape == (math.comb(N + len(p) - 1, N), len(p))
    assert torch.equal(law.counts.sum(1), torch.full((len(law.counts),), float(N), dtype=torch.float64))
    assert len({tuple(row) for row in law.counts.tolist()}) == len(law.counts)
    assert float(law.weights.sum()) == pytest.approx(1)
    expected = N * torch.tensor(p, dtype=torch.float64)
    mean = law.weights @ law.counts
    assert torch.allclose(mean, expected)
    covariance = (law.counts - mean).T @ torch.diag(law.weights) @ (law.counts - mean)
    assert torch.allclose(covariance, torch.diag(expected) - torch.outer(expected, expected) / N, atol=1e-9)


def test_sampled_counts_agree_with_the_enumeration():
    p, N, n = [0.5, 0.3, 0.2], 5, 40000
    sample = prompts.multinomial_sample(p, N, n, generator=features.generator(0))
    assert sample.sampled
    law = prompts.multinomial(p, N)
    exact = {tuple(row): weight for row, weight in zip(law.counts.tolist(), law.weights.tolist(), strict=True)}
    rows, found = torch.unique(sample.counts, dim=0, return_counts=True)
    for row, count in zip(rows.tolist(), found.tolist(), strict=True):
        w = exact[tuple(row)]
        assert abs(count / n - w) < 5 * math.sqrt(w * (1 - w) / n)


def test_balanced_law_is_one_uniform_count():
    law = prompts.balanced(4, 12, sigma=0.5)
    assert law.counts.tolist() == [[3.0] * 4]
    assert law.uniform
    assert law.N == 12
    assert law.sigma_eff2 == pytest.approx(4 * 0.25 / 12)
    assert not prompts.mean_field([0.7, 0.3], 10).uniform


@settings(max_examples=25, deadline=None)
@given(st.integers(2, 5), st.integers(1, 4), st.integers(0, 10**6))
def test_balanced_tokens_hold_each_feature_equally_often(K, each, seed):
    g = features.generator(seed)
    V = features.orthonormal(K + 1, K, generator=g)
    batch = prompts.sample_tokens(V, 6, each * K, generator=g)
    assert torch.equal(torch.sort(batch.index, dim=1).values, torch.arange(K).repeat_interleave(each).expand(6, -1))
    assert torch.equal(batch.x, V.T[batch.index])
    # Without noise, equal inputs of one prompt have equal labels, and so does the query.
    same = batch.index == batch.query_index.unsqueeze(1)
    gap = (batch.y - batch.target.unsqueeze(1)).masked_fill(~same, 0.0)
    assert float(gap.abs().max()) < 1e-12


def test_label_noise_has_the_asked_variance():
    g = features.generator(3)
    V = features.orthonormal(3, 2, generator=g)
    batch = prompts.sample_tokens(V, 20000, 4, generator=g, p=[0.5, 0.5], sigma=0.7)
    first = batch.index == batch.index[:, :1]
    second = first.clone()
    second[:, 0] = False
    rows = second.any(1)
    other = second[rows].double().argmax(1)
    difference = batch.y[rows, 0] - batch.y[rows].gather(1, other.unsqueeze(1)).squeeze(1)
    assert float(difference.var()) == pytest.approx(2 * 0.49, rel=0.05)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: prompts.balanced(1), "K must be an integer >= 2"),
        (lambda: prompts.balanced(4, 6), "N must be a multiple of K = 4"),
        (lambda: prompts.balanced(4, sigma=-1), "sigma must be a number"),
        (lambda: prompts.multinomial([0.5, 0.6], 3), "p must sum to 1"),
        (lambda: prompts.multinomial([1.0], 3), "p must have at least 2 entries"),
        (lambda: prompts.multinomial([0.5, 0.5], 0), "N must be an integer >= 1"),
        (lambda: prompts.multinomial([0.1] * 10, 60), "N must give at most 2000000 count vectors"),
        (lambda: prompts.multinomial_sample([0.5, 0.5], 3, 1, generator=features.generator(0)), "samples must be"),
        (lambda: prompts.mean_field([0.5, 0.5], 0), "N must be a number"),
    ],
)
def test_errors_name_the_argument(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_sampling_tokens_checks_its_arguments():
    g = features.generator(0)
    V = features.orthonormal(3, 2, generator=g)
    with pytest.raises(ValueError, match="N must be a multiple of K = 2"):
        prompts.sample_tokens(V, 1, 3, generator=g)
    with pytest.raises(ValueError, match="p must have K = 2 entries, got 3"):
        prompts.sample_tokens(V, 1, 3, generator=g, p=[0.2, 0.3, 0.5])
    with pytest.raises(ValueError, match="B must be an integer >= 1"):
        prompts.sample_tokens(V, 0, 2, generator=g)

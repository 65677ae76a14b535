"""The layer on tokens: the full masked layer is the reparametrised one, and attention sums as the papers say."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from icl_core import attention, features, population, prompts

shapes = st.tuples(st.integers(2, 4), st.integers(0, 3), st.integers(1, 3), st.integers(0, 10**6))


def _case(shape):
    K, more, each, seed = shape
    g = features.generator(seed)
    V = features.orthonormal(K + more, K, generator=g)
    Q = 2 * torch.randn(K + more, K + more, dtype=torch.float64, generator=g)
    return V, Q, prompts.sample_tokens(V, 5, each * K, generator=g, sigma=0.3)


@settings(max_examples=40, deadline=None)
@given(shapes)
def test_full_masked_layer_is_the_reparametrised_one(shape):
    _, Q, batch = _case(shape)
    E = attention.embed(batch.x, batch.y, batch.query)
    full = attention.self_attention(*attention.lift(Q), E)
    assert full.shape == E.shape
    assert torch.allclose(full[:, -1, -1], attention.predict(Q, batch.x, batch.y, batch.query), atol=1e-12)
    # The value matrix reads labels only.
    assert torch.equal(full[:, :-1], torch.zeros_like(full[:, :-1]))


def test_query_attends_to_no_query_and_its_label_slot_is_unread():
    _, Q, batch = _case((3, 1, 2, 7))
    E = attention.embed(batch.x, batch.y, batch.query)
    other = E.clone()
    other[:, -1, -1] = 100.0
    W = attention.lift(Q)
    assert torch.equal(attention.self_attention(*W, E)[:, -1, -1], attention.self_attention(*W, other)[:, -1, -1])


def test_full_layer_depends_on_keys_and_queries_through_their_product():
    _, Q, batch = _case((3, 1, 2, 8))
    W_K, W_Q, W_V = attention.lift(Q)
    E = attention.embed(batch.x, batch.y, batch.query)
    mixer = torch.randn(5, 5, dtype=torch.float64, generator=features.generator(9))
    mixed = attention.self_attention(mixer @ W_K, torch.linalg.inv(mixer).T @ W_Q, W_V, E)
    assert torch.allclose(mixed, attention.self_attention(W_K, W_Q, W_V, E), atol=1e-9)


@settings(max_examples=40, deadline=None)
@given(shapes)
def test_token_attention_summed_by_feature_is_the_attention_of_the_scores(shape):
    V, Q, batch = _case(shape)
    K = V.shape[1]
    attn = attention.token_attention(Q, batch.x, batch.query)
    assert torch.allclose(attn.sum(-1), torch.ones(5, dtype=torch.float64))
    summed = attention.feature_attention(attn, batch.index, K)
    by_scores = population.attention_weights(V.T @ Q @ V)[:, batch.query_index].T
    assert torch.allclose(summed, by_scores, atol=1e-12)


def test_zero_parameter_averages_the_labels():
    _, Q, batch = _case((4, 0, 2, 1))
    assert torch.allclose(
        attention.predict(torch.zeros_like(Q), batch.x, batch.y, batch.query), batch.y.mean(1), atol=1e-12
    )


def test_embed_refuses_shapes_that_do_not_fit():
    x, y, query = torch.zeros(2, 3, 4), torch.zeros(2, 3), torch.zeros(2, 4)
    assert attention.embed(x, y, query).shape == (2, 5, 4)
    with pytest.raises(ValueError, match=r"y must have shape \(2, 3\)"):
        attention.embed(x, y[:, :2], query)
    with pytest.raises(ValueError, match=r"query \(2, 4\)"):
        attention.embed(x, y, query[:, :3])

"""The population engine against autograd on tokens, and against facts that follow from the definition."""

import pytest
import torch

from icl_core import features, population, prompts

F64 = torch.float64


def laws():
    return {
        "balanced": prompts.balanced(3),
        "balanced, noisy": prompts.balanced(3, 6, sigma=0.3),
        "multinomial": prompts.multinomial([0.5, 0.3, 0.2], 4),
        "multinomial, noisy": prompts.multinomial([0.5, 0.3, 0.2], 4, sigma=0.2),
    }


@pytest.mark.parametrize("law", laws().values(), ids=laws())
@pytest.mark.parametrize("orthonormal", [True, False], ids=["orthonormal", "correlated"])
@pytest.mark.parametrize("task", ["identity", "general"])
def test_engine_is_token_level_autograd(law, orthonormal, task):
    g = features.generator(1)
    W = features.orthonormal(5, 3, generator=g)
    if not orthonormal:
        W = W + 0.3 * torch.randn(5, 3, generator=g, dtype=F64)
    root = torch.randn(5, 5, generator=g, dtype=F64)
    sigma = root @ root.T + 0.1 * torch.eye(5, dtype=F64) if task == "general" else None
    Q = torch.randn(5, 5, generator=g, dtype=F64, requires_grad=True)
    reference = population.token_level_losses(Q, W, law, sigma)
    reference.sum().backward()

    C = W.T @ W if sigma is None else W.T @ sigma @ W
    losses, delta = population.losses_and_descent(W.T @ Q.detach() @ W, law, C)
    torch.testing.assert_close(losses, reference.detach(), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(-W @ delta @ W.T, Q.grad, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("law", laws().values(), ids=laws())
def test_batches_are_independent(law):
    scores = torch.randn(4, 2, 3, 3, generator=features.generator(2), dtype=F64)
    together = population.losses_and_descent(scores, law)
    for i in range(4):
        for j in range(2):
            alone = population.losses_and_descent(scores[i, j], law)
            for batch, single in zip(together, alone, strict=True):
                torch.testing.assert_close(batch[i, j], single, rtol=1e-14, atol=1e-15)


def test_columns_of_the_descent_direction_sum_to_zero():
    scores = 3 * torch.randn(50, 5, 5, generator=features.generator(3), dtype=F64)
    for law in (prompts.balanced(5, 10, sigma=0.5), prompts.multinomial([0.2] * 5, 3)):
        assert float(population.descent(scores, law).sum(-2).abs().max()) < 1e-15


def test_missing_features_get_no_attention_and_leave_a_floor():
    law = prompts.multinomial([0.5, 0.5], 2)
    perfect = torch.tensor([[30.0, -30.0], [-30.0, 30.0]], dtype=F64)
    # With probability 1/4 the query's feature is absent; the error is then |v_1 - v_2|^2 / 2 = 1.
    torch.testing.assert_close(population.losses(perfect, law), torch.full((2,), 0.125, dtype=F64))


def test_loss_keeps_its_digits_near_convergence():
    scores = torch.tensor([[25.0, -25.0], [-25.0, 25.0]], dtype=F64)
    expected = 0.5 * torch.exp(torch.tensor(-100.0, dtype=F64))
    torch.testing.assert_close(population.losses(scores, prompts.balanced(2)), expected.expand(2), rtol=1e-12, atol=0)


def test_float32_stays_float32():
    law = prompts.balanced(3).to("cpu", torch.float32)
    assert population.descent(torch.zeros(3, 3), law).dtype == torch.float32


def test_loss_samples_average_to_the_loss():
    law = prompts.multinomial([0.6, 0.4], 3, sigma=0.1)
    scores = torch.randn(2, 2, generator=features.generator(4), dtype=F64)
    samples = population.loss_samples(scores, law)
    torch.testing.assert_close((law.weights @ samples), population.losses(scores, law))


def test_wrong_shape_names_the_argument():
    with pytest.raises(ValueError, match=r"scores must have shape \(\.\.\., 3, 3\), got \(2, 2\)"):
        population.losses(torch.zeros(2, 2), prompts.balanced(3))

"""Label noise: closed forms against the population engine, token-level reference and noisy training."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from icl_core import dynamics, features, population, prompts
from icl_core.theory import noise as theory
from icl_core.theory import ood, training


@pytest.mark.parametrize(("K", "N", "sigma"), [(2, 2, 0.3), (3, 6, 1.5)])
def test_losses_from_scores_are_the_engine_and_the_tokens(K, N, sigma):
    law = prompts.balanced(K, N, sigma=sigma)
    source = features.generator(0)
    W = features.orthonormal(K + 1, K, generator=source)
    Q = torch.randn(K + 1, K + 1, dtype=torch.float64, generator=source)
    scores = W.T @ Q @ W
    found = theory.noisy_losses(scores, law.sigma_eff2, sigma)
    np.testing.assert_allclose(found, population.losses(scores, law), rtol=1e-13)
    np.testing.assert_allclose(found, population.token_level_losses(Q, W, law), rtol=1e-12)
    np.testing.assert_allclose(theory.noisy_losses_eq36(scores, law.sigma_eff2, sigma), K * found)


@pytest.mark.parametrize(("K", "s"), [(2, 0.1), (4, 3.0)])
def test_floor_is_the_least_loss(K, s):
    sigma = math.sqrt(s)
    law = prompts.balanced(K, K, sigma=sigma)
    a = theory.best_attention(K, s)
    best = ood.symmetric_scores(K, (1 - 1 / K) * math.log((K - 1) * a / (1 - a)))
    floor = theory.noise_floor(K, s, sigma)
    assert float(population.losses(best, law).sum()) == pytest.approx(floor, rel=1e-13)
    assert float(population.descent(best, law).abs().max()) < 1e-15
    around = best + 0.3 * torch.randn(200, K, K, dtype=torch.float64, generator=features.generator(1))
    assert float(population.losses(around, law).sum(-1).min()) > floor


def test_training_ends_at_the_closed_form():
    K, s, eps, eta = 3, 0.4, 0.01, 1e-3
    sigma = math.sqrt(s)
    run = dynamics.gradient_descent(
        torch.zeros(K, K, dtype=torch.float64), prompts.balanced(K, K, sigma=sigma), eta=eta,
        threshold=(theory.noise_floor(K, s, sigma) + eps) / K,
    )  # fmt: skip
    assert eta < theory.careful_eta(K, s)
    assert 0 < float(run.alpha[0]) - theory.alpha_hat(K, eps, s) < theory.overshoot(K, eps, s, eta)
    attention = population.attention_weights(run.scores)[0, 0]
    assert float(attention) == pytest.approx(theory.attention_at_end(K, eps, s), abs=eta)


def test_no_noise_gives_the_noiseless_forms():
    assert theory.alpha_hat(4, 0.01, 0.0) == pytest.approx(ood.alpha_star(4, 0.01), rel=1e-12)
    assert theory.eps_limit(4, 0.0) == ood.eps_limit(4)
    assert theory.noise_floor(4, 0.0, 0.0) == 0
    assert theory.careful_eta(4, 0.0) == training.careful_eta(4)
    assert theory.overshoot(4, 0.01, 0.0, 0.1) == pytest.approx(training.overshoot(4, 0.01, 0.1), rel=1e-12)
    assert theory.rho_hat(4, 0.01, 0.0) == pytest.approx(4 / 3 * ood.alpha_star(4, 0.01), rel=1e-12)


def test_excess_at_zero_is_the_limit():
    K, s = 3, 0.5
    at_zero = theory.symmetric_total_loss(K, 1 / K, s, math.sqrt(s)) - theory.noise_floor(K, s, math.sqrt(s))
    assert at_zero == pytest.approx(theory.eps_limit(K, s), rel=1e-13)
    with pytest.raises(ValueError, match="eps must be"):
        theory.alpha_hat(K, theory.eps_limit(K, s), s)


def test_brackets_of_eq_34():
    # Nothing is left to learn if all correlations are 1; the printed bracket is negative there.
    assert theory.rise_corrected(4, 1.0, 1.0) == pytest.approx(0)
    assert theory.rise_printed(4, 1.0, 1.0) < 0
    assert theory.fall_printed(2, 0.0, 1.0, 1.0, 2.0) == 1.0
    assert theory.fall_bounds(2, 0.0, 1.0, 0.0, 2.0) == (0.0, 0.0)


@pytest.mark.parametrize("call", [
    lambda: theory.best_attention(1, 0.1),
    lambda: theory.noise_floor(2, -0.1, 0.1),
    lambda: theory.noise_floor(2, 0.1, -0.1),
    lambda: theory.attention_at_end(2, 0.0, 0.1),
    lambda: theory.alpha_hat(2, 0.3, 0.0),
])  # fmt: skip
def test_bad_input_is_refused(call):
    with pytest.raises(ValueError, match="must be"):
        call()

"""Closed forms of the training phase against the engine: what the ledger does not already decide exactly."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from icl_core import dynamics, population, prompts
from icl_core.theory import ood, training


@pytest.mark.parametrize("K", [2, 3, 10, 100])
@pytest.mark.parametrize("share", [1e-6, 0.01, 0.9])
def test_alpha_star_has_the_loss_of_the_rule(K: int, share: float) -> None:
    eps = share * ood.eps_limit(K)
    losses = population.losses(ood.symmetric_scores(K, ood.alpha_star(K, eps)), prompts.balanced(K))
    assert np.allclose(losses * K / eps, 1, rtol=1e-9)


def test_loss_from_scores_is_the_population_loss() -> None:
    S = 3 * torch.randn(20, 5, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    assert torch.allclose(ood.loss_from_scores(S), population.losses(S, prompts.balanced(5)), rtol=1e-12)


@pytest.mark.parametrize(("K", "eps", "eta"), [(2, 0.01, 0.1), (3, 0.01, 5.0), (7, 0.1, 200.0)])
def test_scores_stay_symmetric_in_training(K: int, eps: float, eta: float) -> None:
    run = dynamics.train(K, eps, eta, record=5)
    assert run.trajectory is not None
    for S in run.trajectory.scores:
        assert torch.allclose(S, ood.symmetric_scores(K, float(S[0, 0])), atol=1e-11)


@pytest.mark.parametrize(("K", "eps", "eta"), [(2, 0.01, 0.1), (4, 0.01, 0.1), (3, 0.1, 10.0), (5, 0.9, 1.0)])
def test_one_variable_stands_for_all(K: int, eps: float, eta: float) -> None:
    alpha, steps = training.symmetric_training(K, eps, eta)
    run = dynamics.train(K, eps, eta)
    assert steps == int(run.steps)
    assert np.allclose(run.alpha, alpha, atol=1e-11)


@pytest.mark.parametrize("K", [2, 3, 6])
def test_training_time_is_the_limit_of_small_steps(K: int) -> None:
    eps = 0.1
    steps = training.symmetric_training(K, eps, 0.002)[1]
    assert steps * 0.002 == pytest.approx(training.training_time(K, eps), rel=2e-3)
    assert steps <= training.training_steps(K, eps, 0.002)


def test_careful_steps_have_the_smaller_bound() -> None:
    small = training.overshoot(3, 0.01, 1.0)
    assert small < training.overshoot(3, 0.01, 2 * training.careful_eta(3))
    assert small == pytest.approx(2 * 0.01 * training.attention_at_rule(3, 0.01) / 3)


def test_shift_exponent_of_the_training_features_is_zero() -> None:
    c = [1 / math.sqrt(3)] * 3
    assert training.shift_exponent(c, 0) == pytest.approx(0, abs=1e-15)
    assert training.shift_exponent([1.0, 0.0, 0.0], 0) == 1.0


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: training.symmetric_training(1, 0.1, 1.0), "K"),
        (lambda: training.symmetric_training(2, 0.1, 0.0), "eta"),
        (lambda: training.attention_at_rule(2, 0.25), "eps"),
        (lambda: training.overshoot(2, 0.3, 1.0), "eps"),
    ],
)
def test_bad_arguments_are_named(call: Callable[[], object], name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be"):
        call()


def test_an_unmet_rule_is_reported() -> None:
    with pytest.raises(RuntimeError, match="not met in 3 steps"):
        training.symmetric_training(2, 0.01, 0.1, max_steps=3)

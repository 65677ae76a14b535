"""Fine-tuning phase: against autograd in R^d, known cases, Gram matrix, flow, closed forms, and bad input."""

import math

import pytest
import torch

from icl_core import dynamics, features, fine_tuning, population
from icl_core.prompts import balanced
from icl_core.theory import fine_tuning as theory
from icl_core.theory.ood import alpha_star, symmetric_scores


def _sets(K: int, gamma: tuple[float, ...], seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    draw = features.generator(seed)
    V = features.orthonormal(2 * K + 1, K, generator=draw)
    return V, features.correlated(V, gamma, generator=draw)


def _by_autograd(V: torch.Tensor, U: torch.Tensor, eps: float, eta: float) -> tuple[torch.Tensor, int]:
    """Q after fine-tuning by gradient descent on the d x d matrix, and the number of steps."""
    K = V.shape[1]
    law = balanced(K)
    Q = V @ symmetric_scores(K, alpha_star(K, eps)) @ V.T
    for step in range(10_000):
        Q = Q.detach().requires_grad_()
        losses = population.token_level_losses(Q, U, law)
        if bool((losses <= eps / K).all()):
            return Q.detach(), step
        (gradient,) = torch.autograd.grad(losses.sum(), Q)
        Q = Q - eta * gradient
    raise AssertionError("did not converge")


def test_matches_gradient_descent_on_the_full_matrix_under_the_assumption() -> None:
    V, U = _sets(3, (0.8, -0.5, 0.3), 0)
    run = fine_tuning.fine_tune(V, U, 0.1, 2.0)
    Q, steps = _by_autograd(V, U, 0.1, 2.0)
    assert int(run.end) == steps
    torch.testing.assert_close(run.scores_on_V, V.T @ Q @ V, atol=1e-11, rtol=0)
    torch.testing.assert_close(run.losses_on_V, population.token_level_losses(Q, V, balanced(3)), atol=1e-11, rtol=0)
    torch.testing.assert_close(run.losses_on_V_before, torch.full((3,), 0.1 / 3, dtype=torch.float64))


@pytest.mark.parametrize("independent", [True, False])
def test_matches_gradient_descent_for_features_that_are_not_orthonormal(independent: bool) -> None:
    draw = features.generator(1)
    V = features.orthonormal(5, 3, generator=draw)
    U = V + 0.3 * torch.randn(5, 3, dtype=torch.float64, generator=draw)
    if not independent:
        # Three features in a plane: the Gram matrix is singular.
        angles = torch.tensor([0.2, 2.2, 4.4], dtype=torch.float64)
        U = torch.zeros(5, 3, dtype=torch.float64)
        U[0], U[1] = torch.cos(angles), torch.sin(angles)
    run = fine_tuning.fine_tune(V, U, 0.25, 1.0, record=5)
    Q, steps = _by_autograd(V, U, 0.25, 1.0)
    assert int(run.end) == steps > 0
    torch.testing.assert_close(run.scores, U.T @ Q @ U, atol=1e-11, rtol=0)
    torch.testing.assert_close(run.scores_on_V, V.T @ Q @ V, atol=1e-11, rtol=0)
    path, losses = run.path_on_V()
    torch.testing.assert_close(path[-1], run.scores_on_V, atol=1e-10, rtol=0)
    torch.testing.assert_close(losses[-1], run.losses_on_V, atol=1e-10, rtol=0)


def test_training_features_that_are_not_orthonormal_are_trained_through_their_gram_matrix() -> None:
    draw = features.generator(2)
    V = torch.randn(4, 2, dtype=torch.float64, generator=draw)
    U = features.orthonormal(4, 2, generator=draw)
    run = fine_tuning.fine_tune(V, U, 0.1, 0.5, start="trained")
    alone = dynamics.gradient_descent(
        torch.zeros(2, 2, dtype=torch.float64), balanced(2), eta=0.5, threshold=0.05, gram=features.gram(V)
    )
    torch.testing.assert_close(run.scores_on_V_before, alone.scores)
    torch.testing.assert_close(run.losses_on_V_before, alone.losses)


def test_gamma_needs_no_vectors_and_batches() -> None:
    gamma = (0.9, -0.2, 0.4)
    V, U = _sets(3, gamma, 3)
    one = fine_tuning.fine_tune(V, U, 0.05, 0.5, record=4)
    two = fine_tuning.fine_tune_gamma([[1.0, 1.0, 1.0], list(gamma)], 0.05, 0.5)
    torch.testing.assert_close(one.scores, two.scores[1], atol=1e-12, rtol=0)
    torch.testing.assert_close(one.forgetting, two.forgetting[1], atol=1e-12, rtol=0)
    assert one.times.tolist() == two.times[1].tolist()
    assert one.order.tolist() == torch.argsort(one.times).tolist()
    torch.testing.assert_close(one.delta, torch.nansum(one.lam, 0))
    # U = V: nothing to do, nothing forgotten.
    assert two.end[0] == 0
    assert two.total_forgetting[0] == 0


def test_columns_stopped_at_their_own_times() -> None:
    run = fine_tuning.fine_tune_gamma((0.9, -0.2, 0.4), 0.05, 0.5, record=range(200))
    columns, times = fine_tuning.at_own_times(run.start, 0.05, 0.5)
    assert times.tolist() == run.times.tolist()
    assert run.trajectory is not None
    for k, t in enumerate(times.tolist()):
        torch.testing.assert_close(columns[:, k], run.trajectory.scores[t, :, k], atol=1e-13, rtol=0)


def test_a_larger_correlation_need_not_converge_first() -> None:
    times = fine_tuning.fine_tune_gamma((0.6, -0.59, -0.59), 0.05, 0.5).times
    assert times[0] > times[1] == times[2]


def test_discrete_start_stops_below_the_closed_form() -> None:
    run = fine_tuning.fine_tune_gamma((0.5, 0.5), 0.05, 0.5, start="trained")
    assert bool((run.losses_on_V_before <= 0.025).all())
    assert float(run.trained[0, 0]) >= alpha_star(2, 0.05)


def test_small_steps_approach_the_flow() -> None:
    gamma = torch.tensor([0.7, -0.3], dtype=torch.float64)
    run = fine_tuning.fine_tune_gamma(gamma, 0.02, 0.01)
    smooth = fine_tuning.flow(run.trained, run.overlap, 0.02)
    torch.testing.assert_close(run.times * 0.01, smooth.times, rtol=2e-3, atol=0.02)
    torch.testing.assert_close(run.forgetting, smooth.forgetting, atol=1e-4, rtol=0)


def test_bounds_on_delta_meet_for_equal_correlations() -> None:
    gamma = torch.full((3,), 0.6, dtype=torch.float64)
    low, high = theory.delta_bounds(gamma, 0.01)
    torch.testing.assert_close(low, high)
    run = fine_tuning.flow(symmetric_scores(3, alpha_star(3, 0.01)), torch.diag(gamma), 0.01)
    torch.testing.assert_close(run.delta, low, atol=1e-6, rtol=0)
    torch.testing.assert_close(theory.delta_bounds_any(run.start, 0.01).upper, high)
    torch.testing.assert_close(run.start, theory.initial_scores(gamma, alpha_star(3, 0.01)))


def test_stricter_condition_is_where_the_scale_is_one() -> None:
    for K in (2, 3, 7):
        assert math.isclose(alpha_star(K, theory.sign_condition_any(K)) * K / (K - 1), 1.0)


def test_step_limit_reads_no_diagonal() -> None:
    start = torch.tensor([[9.0, -1.0], [0.5, 9.0]], dtype=torch.float64)
    assert math.isclose(float(theory.step_limit(start)), math.exp(-0.5))


def test_least_dimension_is_the_one_that_correlated_asks_for() -> None:
    gamma = (1.0, 0.3, -1.0)
    assert fine_tuning.least_dimension(gamma) == 4
    V = features.orthonormal(3, 3, generator=features.generator(0))
    with pytest.raises(ValueError, match="d must be at least 4"):
        features.correlated(V, gamma, generator=features.generator(0))


def test_bad_input_is_refused() -> None:
    V, U = _sets(2, (0.5, 0.5), 4)
    with pytest.raises(ValueError, match="U must have shape"):
        fine_tuning.fine_tune(V, U[:, :1], 0.1, 0.5)
    with pytest.raises(ValueError, match="U must be finite"):
        fine_tuning.fine_tune(V, U * math.nan, 0.1, 0.5)
    with pytest.raises(ValueError, match="U must be one set"):
        fine_tuning.fine_tune(V, torch.stack([U, 2 * U]), 0.1, 0.5)
    with pytest.raises(ValueError, match="start must be 'trained'"):
        fine_tuning.fine_tune(2 * V, U, 0.1, 0.5)
    with pytest.raises(ValueError, match="start must be one of"):
        fine_tuning.fine_tune(V, U, 0.1, 0.5, start="none")  # type: ignore[arg-type]  # what is tested
    with pytest.raises(ValueError, match="start must be finite"):
        fine_tuning.fine_tune(V, U, 0.1, 0.5, start=torch.eye(3))
    with pytest.raises(ValueError, match="eps must be"):
        fine_tuning.fine_tune(V, U, 0.25, 0.5)
    for name in ("gram_V", "covariance"):
        with pytest.raises(TypeError, match=name):
            fine_tuning.fine_tune_gamma((0.5, 0.5), 0.1, 0.5, **{name: torch.eye(2)})
    with pytest.raises(ValueError, match="gamma must lie"):
        fine_tuning.fine_tune_gamma((1.1, 0.0), 0.1, 0.5)
    with pytest.raises(ValueError, match="gamma must have shape"):
        fine_tuning.fine_tune_gamma((1.0,), 0.1, 0.5)
    rates = torch.tensor([0.1, 0.2])
    with pytest.raises(ValueError, match="eta_train must be given"):
        fine_tuning.fine_tune_gamma([[0.5, 0.5]] * 2, 0.1, rates, start="trained")
    with pytest.raises(ValueError, match="record must have been given"):
        fine_tuning.fine_tune_gamma((0.5, 0.5), 0.1, 0.5).path_on_V()
    with pytest.raises(dynamics.ConvergenceError):
        fine_tuning.fine_tune_gamma((0.5, -0.5), 1e-4, 0.01, max_steps=10)

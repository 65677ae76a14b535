"""The reduced coordinates against the full engine, and their exact structure."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from icl_core import dynamics, mean_field, population, prompts
from icl_core.theory import phases


def _law(K: int, p1: float, N: float = 1.0) -> prompts.PromptLaw:
    return prompts.mean_field([p1] + [(1 - p1) / (K - 1)] * (K - 1), N)


def _scores(K: int, A: float, B1: float) -> torch.Tensor:
    """Full score matrix with every query k > 1 in the state (A, B1)."""
    S = torch.full((K, K), -(A + B1) / (K - 2), dtype=torch.float64)
    S[0, :] = B1
    return S.fill_diagonal_(A)


@pytest.mark.parametrize("K", [3, 4, 9])
@pytest.mark.parametrize("p1", [0.35, 0.5, 0.9])
@pytest.mark.parametrize(("A", "B1"), [(0.0, 0.0), (0.6, -1.1), (4.0, -2.0), (25.0, -3.0)])
def test_rates_are_the_population_gradient_at_expected_counts(K, p1, A, B1):
    delta = population.descent(_scores(K, A, B1), _law(K, p1))
    at = mean_field.rates(math.log(K), p1, A, B1)
    assert float(np.exp(at.alpha)) == pytest.approx(float(delta[1, 1]), rel=1e-11)
    assert float(np.exp(at.minus_beta1)) == pytest.approx(-float(delta[0, 1]), rel=1e-11)
    loss = population.losses(_scores(K, A, B1), _law(K, p1))[1] / ((1 - p1) / (K - 1))
    assert float(np.exp(mean_field.log_loss(math.log(K), at))) == pytest.approx(float(loss), rel=1e-11)


@pytest.mark.parametrize(("K", "N", "p1"), [(3, 7, 0.6), (4, 9, 0.7), (5, 5, 0.4)])
def test_count_rates_are_the_population_gradient_for_finite_prompts(K, N, p1):
    law = prompts.multinomial([p1] + [(1 - p1) / (K - 1)] * (K - 1), N)
    for A, B1 in ((0.0, 0.0), (0.7, -0.9), (3.0, -1.0)):
        delta = population.descent(_scores(K, A, B1), law)
        alpha, fall, loss = mean_field.count_rates(law, A, B1)
        assert alpha == pytest.approx(float(delta[1, 1]), rel=1e-11)
        assert fall == pytest.approx(-float(delta[0, 1]), rel=1e-10)
        share = (1 - p1) / (K - 1)
        assert loss == pytest.approx(float(population.losses(_scores(K, A, B1), law)[1]) / share, rel=1e-11)


def test_scores_of_a_query_sum_to_zero_for_ever_whatever_the_law():
    law = prompts.multinomial([0.55, 0.2, 0.15, 0.1], 6)
    run = dynamics.gradient_descent(
        torch.zeros(4, 4, dtype=torch.float64), law, eta=30.0, threshold=1e-9, max_steps=400, on_failure="return"
    )
    assert float(run.scores.abs().max()) > 1
    assert float(run.scores.sum(0).abs().max()) < 1e-11


def test_descent_in_reduced_coordinates_is_descent():
    K, p1, eta, steps = 5, 0.6, 8.0, 300
    full = dynamics.gradient_descent(
        torch.zeros(K, K, dtype=torch.float64), _law(K, p1), eta=eta, threshold=1e-12, max_steps=steps, record=[100],
        on_failure="return",
    ).trajectory  # fmt: skip
    under = mean_field.descend(K, p1, eta, steps, every=100)
    first = mean_field.descend(K, p1, eta, steps, query="dominant", every=100)
    for row, step in ((1, 100), (3, steps)):
        S = full.scores[full.times.tolist().index(step)]
        assert [under.A[row], under.B1[row], under.Bn[row]] == pytest.approx(S[[2, 0, 1], 2].tolist(), abs=1e-11)
        assert [first.A[row], first.Bn[row]] == pytest.approx(S[[0, 1], 0].tolist(), abs=1e-11)


def test_flow_is_the_full_flow():
    K, p1 = 5, 0.7
    path = mean_field.flow(math.log(K), p1, A_end=4.0)
    found = dynamics.gradient_flow(
        torch.zeros(K, K, dtype=torch.float64), _law(K, p1), threshold=1e-5,
        events={"A": lambda S, _: float(S[1, 1]) - 2, "B1": lambda S, _: float(S[0, 1]) + 1},
    )[1]  # fmt: skip
    assert math.exp(path.log_time(path.when_A(2.0))) == pytest.approx(found["A"], rel=1e-7)
    assert math.exp(path.log_time(path.when_B1(-1.0))) == pytest.approx(found["B1"], rel=1e-7)


def test_descent_with_small_steps_follows_the_flow():
    K, p1 = 200.0, 0.6
    path = mean_field.flow(math.log(K), p1, A_end=6.0)
    s = path.when(lambda s: float(path.log_time(s)) - math.log(8000))
    gaps = []
    for steps in (100, 200, 400):
        run = mean_field.descend(K, p1, 8000 / steps, steps, every=steps)
        gaps.append(abs(run.B1[-1] - float(path.B1(s))))
    # Euler's error halves with the step.
    assert gaps[0] / gaps[1] == pytest.approx(2, abs=0.2)
    assert gaps[1] / gaps[2] == pytest.approx(2, abs=0.1)


@pytest.mark.parametrize("K", [2, 3, 50, 10**6])
@pytest.mark.parametrize("share", [None, 0.1, 0.8])
def test_closed_form_time_is_the_integral_of_the_flow(K, share):
    from scipy.integrate import quad

    share = 1 / K if share is None else share
    for off in (0.5 * (1 - share), 0.05 * (1 - share)):
        gaps = [mean_field.alike_gap(K, share, a) for a in (share, 1 - off)]
        slow = quad(lambda u: 1 / mean_field.alike_slope(K, share, u), *gaps, epsrel=1e-12, limit=400)[0]
        assert phases.alike_time(K, share, off) == pytest.approx(slow, rel=1e-9)


def test_closed_form_time_is_what_descent_needs():
    K, eps = 10, 0.05
    eta = 0.5
    run = mean_field.descend(K, 1 / K, eta, 600, query="dominant")
    step = int(np.argmax(run.loss <= eps))
    assert step * eta == pytest.approx(phases.balanced_loss_time(K, eps), rel=2e-3)
    assert phases.balanced_loss_time(K, 0.46) == 0


@pytest.mark.parametrize("p1", [0.05, 0.4142, 0.9])
def test_no_digits_are_lost_at_two_to_the_seven_hundred(p1):
    log_K = mean_field.log_size(log2_K=700)
    path = mean_field.flow(log_K, p1, A_end=1.2 * log_K)
    s = np.linspace(0, path.end, 500)
    at = path.rates(s)
    assert all(np.isfinite(x).all() for x in at)
    assert np.logaddexp.reduce([at.target, at.dominant, at.rest]) == pytest.approx(0, abs=1e-12)
    # The limiting path and time, met to a few units in the last places.
    late = path.when_A(0.6 * log_K)
    assert float(path.B1(late)) == pytest.approx(phases.phase_curve(log_K, p1, 0.6 * log_K), rel=1e-10)
    assert float(path.log_time(late)) == pytest.approx(phases.leading_times(log_K, p1, 0.1).T2, rel=1e-11)


def test_both_scores_are_monotone_and_the_third_turns_once():
    path = mean_field.flow(math.log(1e4), 0.7, A_end=12.0)
    s = np.linspace(0, path.end, 4000)
    assert (np.diff(path.A(s)) > 0).all()
    assert (np.diff(path.B1(s)) < 0).all()
    turns = np.diff(np.sign(np.diff(path.Bn(s))))
    assert turns[turns != 0].tolist() == [-2]


def test_elapsed_time_is_exact_where_times_are_too_close_to_subtract():
    path = mean_field.flow(math.log(1e5), 0.6, A_end=12.0)
    a, b = path.when_A(3.0), path.when_A(5.0)
    direct = math.exp(path.log_time(b)) - math.exp(path.log_time(a))
    assert math.exp(path.log_elapsed(a, b)) == pytest.approx(direct, rel=1e-7)


def test_finite_prompts_approach_the_limit_of_long_ones():
    K, p1 = 3, 0.6
    limit = mean_field.flow(math.log(K), p1, A_end=2.0)
    gaps = []
    for N in (25, 50, 100):
        law = prompts.multinomial([p1, 0.2, 0.2], N)
        path = mean_field.flow(math.log(K), p1, A_end=2.0, law=law, rtol=1e-6)
        gaps.append(abs(float(path.log_time(path.end)) - float(limit.log_time(limit.end))))
    assert gaps[2] < gaps[1] < gaps[0]
    # The gap falls like 1/N.
    assert gaps[1] / gaps[2] == pytest.approx(2, abs=0.2)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: mean_field.log_size(), "exactly one of K and log2_K"),
        (lambda: mean_field.log_size(2), "K must be"),
        (lambda: mean_field.log_size(log2_K=1), "log2_K must be"),
        (lambda: mean_field.rates(3.0, 1.0, 0.0, 0.0), "p1 must be"),
        (lambda: mean_field.flow(math.log(10), 0.05, A_end=1.0), "p1 must be"),
        (lambda: mean_field.flow(math.log(10), 0.5, A_end=-1.0), "A_end must be"),
        (lambda: mean_field.flow(math.log(10), 0.5, A_end=1.0, law=_law(4, 0.5)), "law must have K = 10"),
        (lambda: mean_field.descend(10, 0.5, 0.0, 5), "eta must be"),
        (lambda: mean_field.descend(10, 0.5, 1.0, 5, query="other"), "query must be"),
    ],
)
def test_bad_arguments_are_named(call, text):
    with pytest.raises(ValueError, match=text):
        call()

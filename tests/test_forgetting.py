"""Forgetting: the exact two-feature flow against gradient descent, corrected and printed forms, maps, searches."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from icl_core import features, fine_tuning, population, prompts
from icl_core.experiments import forgetting_maps
from icl_core.theory import forgetting as theory
from icl_core.theory import multinomial, ood


@pytest.mark.parametrize(("gamma1", "gamma2", "eps"), [(1.0, -0.5, 0.01), (0.6, 0.9, 0.1), (0.3, -0.3, 0.02)])
def test_two_feature_flow_is_the_limit_of_small_steps(gamma1, gamma2, eps):
    eta = 2e-3
    run = fine_tuning.fine_tune_gamma([gamma1, gamma2], eps, eta)
    exact = theory.two_features(gamma1, gamma2, eps)
    np.testing.assert_allclose(run.forgetting.numpy(), exact.forgetting, atol=6 * eta * eps**2)
    np.testing.assert_allclose(run.delta.numpy(), exact.last, atol=2 * eta * eps)
    np.testing.assert_allclose(run.times.numpy() * eta, exact.times, rtol=5e-3)


def test_flow_agrees_with_the_adaptive_integrator():
    gamma, eps = torch.tensor([0.9, -0.7], dtype=torch.float64), 1e-3
    flow = fine_tuning.flow(ood.symmetric_scores(2, ood.alpha_star(2, eps)), torch.diag(gamma), eps)
    exact = theory.two_features(0.9, -0.7, eps)
    np.testing.assert_allclose(flow.forgetting.numpy(), exact.forgetting, rtol=1e-6)


def test_constants_differ_only_in_d1():
    printed, corrected = theory.constants_printed(0.8, -0.3), theory.constants(0.8, -0.3)
    assert (printed.c1, printed.c2) == (corrected.c1, corrected.c2)
    assert printed.d1 != corrected.d1
    end = theory.two_features(0.8, -0.3, 0.01)
    exponent = end.gaps / math.log(theory.g_eps(0.01))
    assert corrected.d1 < exponent[0] < corrected.c1
    assert exponent[1] == pytest.approx(corrected.c2, rel=1e-12)


def test_threshold_separates_the_signs_where_the_bounds_meet():
    eps, gamma1 = 1e-4, 1.0
    for gamma2 in np.linspace(-0.95, 0.95, 39):
        c = theory.constants(gamma1, gamma2)
        total = theory.two_features(gamma1, gamma2, eps).forgetting.sum()
        if c.c2 > theory.threshold(c.d1, eps):
            assert total < 0
        if c.c2 < theory.threshold(c.c1, eps):
            assert total > 0


def test_edge_coefficient_is_the_second_derivative_at_the_corner():
    for eps in (1e-4, 0.01, 0.08, 0.1):
        u, s = 1e-4, math.sqrt(eps)
        total = theory.two_features(1.0, -1 + u, eps).forgetting.sum()
        want = eps * (1 - s) * math.log(theory.g_eps(eps)) / 2 * theory.edge_coefficient(eps) * u**2
        assert total == pytest.approx(want, rel=2e-2)


def test_nothing_is_forgotten_at_the_ends():
    for gamma2 in (-1.0, 1.0):
        assert abs(theory.two_features(1.0, gamma2, 0.01).forgetting).max() < 1e-15


def test_no_total_forgetting_above_the_critical_eps():
    side = np.linspace(-1, 1, 201)
    a, b = np.meshgrid(side, side)
    critical = theory.critical_eps()
    above = theory.two_features(a, b, critical * 1.01).forgetting.sum(-1)
    below = theory.two_features(1.0, -1 + 1e-3, critical * 0.99).forgetting.sum()
    assert above.max() < 1e-14
    assert below > 0


@pytest.mark.parametrize("K", [2, 3, 5])
def test_region_of_growing_loss_is_sharp_for_equal_others(K):
    own = 0.1
    for factor, sign in ((0.95, -1), (1.05, 1)):
        gamma = [own, *[-own * (K - 1) * factor] * (K - 1)]
        assert theory.worsens(gamma, 0) == (factor > 1)
        lost = fine_tuning.fine_tune_gamma(gamma, 0.02, 0.3).forgetting[0]
        assert float(lost) * sign > 0


def test_hypotheses_read_the_right_products():
    assert theory.worsens_printed([0.5, -0.6, -0.6], 0)
    assert not theory.worsens([0.5, -0.6, -0.6], 0)
    assert not theory.worsens_printed([0.5, -0.6, 0.1], 0)
    assert theory.improves([0.5, -0.4, 0.9], 0)
    assert not theory.improves([0.5, -0.6, 0.9], 0)
    assert not theory.improves([0.0, 0.5], 0)


@pytest.mark.parametrize("call", [
    lambda: theory.g_eps(0.25),
    lambda: theory.two_features(1.1, 0.0, 0.01),
    lambda: theory.two_features(1.0, 0.0, 0.3),
    lambda: theory.worsens([0.5, 2.0], 0),
    lambda: theory.improves([0.5, 0.2], 2),
    lambda: multinomial.length_for(3, 1.0),
    lambda: forgetting_maps.figure_2b(points=1),
    lambda: forgetting_maps.extreme_shift("worst", 0.1),
    lambda: forgetting_maps.shift_of(1.5 * torch.eye(2, dtype=torch.float64)),
])  # fmt: skip
def test_bad_input_is_refused(call):
    with pytest.raises(ValueError, match="must"):
        call()


def test_figure_2b_shows_both_signs():
    frame = forgetting_maps.figure_2b(points=41).frame.set_index("gamma2")
    assert frame["F"].iloc[0] == pytest.approx(0, abs=1e-12)
    assert frame["F"].iloc[8] > 0
    assert (frame["F"].iloc[16:39] < 0).all()
    np.testing.assert_allclose(frame["F"], frame["F1"] + frame["F2"], atol=1e-15)


def test_maps_agree_where_they_overlap():
    two = forgetting_maps.two_feature_map((0.01,), points=5).frame
    many = forgetting_maps.many_feature_map((2,), eps=0.01, eta=0.01, points=5).frame
    np.testing.assert_allclose(two["F"], many["F"], atol=1e-5)
    assert list(two["gamma1"]) == list(many["own"])


def test_boundary_meets_the_figure():
    row = forgetting_maps.boundary((0.01, 0.1), points=201).frame
    assert -0.34 < row["zero"][0] < -0.32
    assert math.isnan(row["zero"][1])
    assert row["peak"][1] == 0


def test_figures_are_drawn():
    two = forgetting_maps.two_feature_map((0.05, 0.01), points=9)
    figure = forgetting_maps.draw_map(two, "eps")
    assert len(figure.axes) == 7
    assert forgetting_maps.draw_figure_2b(forgetting_maps.figure_2b(points=9)).axes[0].get_xlabel()
    assert forgetting_maps.draw_boundary(forgetting_maps.boundary((1e-4, 1e-2), points=51)).axes


def test_search_beats_random_shifts_and_reports_a_real_shift():
    table = forgetting_maps.extreme_shifts((0.4,), K=2, eps=0.05, starts=2, effort=25, random=30)
    row = table.frame.iloc[0]
    assert row["error"] >= row["random_error_max"] - 1e-9
    assert row["forgetting"] >= row["random_forgetting_max"] - 1e-9
    assert row["transfer"] <= row["random_forgetting_min"] + 1e-9
    assert forgetting_maps.draw_extreme_shifts(table).axes
    found = forgetting_maps.extreme_shift("forgetting", 0.4, K=2, eps=0.05, starts=2, effort=10)
    V, U = forgetting_maps.shift_of(torch.tensor(found["overlap"], dtype=torch.float64))
    features.require_orthonormal("U", U)
    np.testing.assert_allclose(features.principal_angles(V, U), [0.4, 0.4], atol=1e-9)
    run = fine_tuning.fine_tune(V, U, 0.05, 0.5)
    assert float(run.total_forgetting) == pytest.approx(found["value"], abs=1e-9)


def test_multinomial_closed_form_is_the_enumeration():
    K, N, gap = 3, 6, 1.3
    law = prompts.multinomial([1 / 3] * 3, N)
    scores = ood.symmetric_scores(K, gap * (K - 1) / K)
    assert multinomial.loss(K, N, gap) == pytest.approx(float(population.losses(scores, law)[0]), rel=1e-12)
    assert multinomial.rise(K, N, gap) == pytest.approx(float(population.descent(scores, law)[0, 0]), rel=1e-12)
    assert multinomial.loss(K, N, 80.0) == pytest.approx(multinomial.floor(K, N), rel=1e-10)
    steps = multinomial.steps_to(K, N, 0.5, 0.3)
    run = population.descent(torch.zeros(3, 3, dtype=torch.float64), law)
    assert steps > 0.5 / (0.3 * float(run[0, 0])) * 0.5

"""Closed forms of the phases against the exact dynamics and against enumeration."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from icl_core import mean_field, population, prompts
from icl_core.experiments import convergence_phases
from icl_core.theory import phases


def test_balanced_times_have_no_logarithm():
    for K in (1e3, 1e6, 1e9):
        time, attention = phases.balanced_phase_one(K)
        assert attention == pytest.approx(0.5, abs=math.log(K) / K)
        assert time == pytest.approx(K**2, rel=20 * math.log(K) / K)
        later = phases.balanced_loss_time(K, 1e-6) - phases.balanced_loss_time(K, 4e-6)
        assert later == pytest.approx(K / 4e-6 * 0.75, rel=0.01)
    assert phases.dominant_loss_time(1e6, 0.3, 1e-8) == pytest.approx(1 / (4 * 0.3 * 1e-8), rel=1e-3)


@pytest.mark.parametrize(("K", "p1"), [(3, 0.8), (7, 0.3), (40, 0.5)])
def test_gradient_at_zero_is_the_population_gradient(K, p1):
    law = prompts.mean_field([p1] + [(1 - p1) / (K - 1)] * (K - 1), 1.0)
    column = population.descent(torch.zeros(K, K, dtype=torch.float64), law)[:, 1]
    found = phases.gradient_at_zero(math.log(K), p1)
    expected = [float(column[0]) * K, float(column[1]) * K**2, float(column[2]) * K**2]
    assert list(found) == pytest.approx(expected, rel=1e-10)


def test_gradient_at_zero_at_huge_size_is_its_limit():
    p = 0.7
    limits = [-((p * (1 - p)) ** 2), (1 - p) ** 2 * (1 + p * p), (p * (1 - p)) ** 2]
    assert list(phases.gradient_at_zero(700 * math.log(2), p)) == pytest.approx(limits, rel=1e-12)


@pytest.mark.parametrize("p1", [0.3, 0.5, 0.8])
def test_leading_times_are_those_of_the_flow(p1):
    log_K = mean_field.log_size(log2_K=160)
    found = phases.report(p1=p1, eps=1e-4, log2_K=160)
    lead = phases.leading_times(log_K, p1, 1e-4)
    assert found.log_times["T1"] == pytest.approx(lead.T1, abs=1e-6)
    assert found.log_times["T2"] == pytest.approx(lead.T2, abs=1e-6)
    assert found.log_times["T3-T2"] == pytest.approx(lead.T32, abs=1e-6)
    assert found.log_times["T4-T3"] == pytest.approx(lead.T43, abs=1e-2)


def test_phase_one_time_at_constant_attention():
    p1, b, K = 0.7, 0.05, 1e8
    path = mean_field.flow(math.log(K), p1, A_end=3.0)
    s = path.when(lambda s: math.log(b) - float(path.rates(s).dominant))
    assert math.exp(path.log_time(s)) / K == pytest.approx(phases.suppression_time(p1, b), rel=1e-4)


@pytest.mark.parametrize(("p1", "text"), [(0.5, "A(T2) >= 0.5 log K"), (0.3, "B1(T2) <= -0.49 log K")])
def test_windows_open_where_the_formula_says(p1, text):
    threshold = max(phases.window_log2_K(p1))
    assert threshold > 40
    assert phases.window_margin(text, (threshold - 0.01) * math.log(2), p1) < 0
    assert phases.window_margin(text, (threshold + 0.01) * math.log(2), p1) > 0


def test_smallest_size_of_a_window():
    assert phases.smallest_log2_K("A(T2) >= 0.5 log K", 0.5, most=120) == pytest.approx(50, abs=0.01)
    assert phases.smallest_log2_K("A(T2) >= 0.5 log K", 0.8, most=120) == math.inf
    assert phases.smallest_log2_K("T1 < T2", 0.9, most=60) == math.log2(3)


def test_report_says_which_windows_hold():
    below, above = (phases.report(p1=0.5, eps=0.1, log2_K=x) for x in (20, 140))
    failing = {window.text for window in below.windows if not window.holds}
    assert {"A(T2) >= 0.5 log K", "A(T1) <= 0.1"} <= failing
    assert all(window.holds for window in above.windows)
    last = above.rows[-1]
    assert last["at"] == "loss"
    assert math.exp(last["log_loss"]) == pytest.approx(0.1, rel=1e-9)
    assert phases.report(1000, 0.1, 0.1).clock["T1"] != phases.report(1000, 0.1, 0.1).clock["T1"]


def test_report_on_finite_prompts():
    law = prompts.multinomial([0.6, 0.2, 0.2], 60)
    finite, limit = phases.report(3, 0.6, 0.1, law=law), phases.report(3, 0.6, 0.1)
    assert 0 < abs(finite.log_times["T2"] - limit.log_times["T2"]) < 0.1
    s = finite.clock["loss"]
    assert math.exp(finite.flow.log_loss(s)) == pytest.approx(0.1, rel=1e-6)
    assert [w.text for w in finite.windows] == [w.text for w in limit.windows]


def test_third_phase_rates_are_far_above_the_stated_ones():
    log_K = mean_field.log_size(log2_K=200)
    found = phases.report(p1=0.5, eps=0.1, log2_K=200)
    at = {row["at"]: row for row in found.rows}
    assert at["T2"]["log_abs_beta_n"] / log_K > -2.55
    assert at["T3"]["log_abs_beta_n"] / log_K > -2.05
    assert at["T3"]["log_minus_beta_1"] / log_K > -1.55


def test_exponent_recovers_a_power_and_a_power_of_the_logarithm():
    x = np.log(2.0) * np.arange(3, 21)
    fit = phases.exponent(x, 1.7 * x + 2 * np.log(x) + 0.3)
    assert (fit.power, fit.log_power) == pytest.approx((1.7, 2.0), abs=1e-9)
    assert fit.low > 1.7
    assert phases.exponent(x, 1.5 * x + math.log(3)).slopes == pytest.approx([1.5] * 17)
    with pytest.raises(ValueError, match="at least 5 finite"):
        phases.exponent(x, [math.nan] * 15 + [1.0, 2.0, 3.0])


@pytest.mark.parametrize(("K", "N"), [(2, 6), (3, 9), (4, 8)])
def test_infimum_is_squeezed_and_not_attained(K, N):
    low, high = phases.balanced_infimum(K, N)
    law = prompts.multinomial([1 / K] * K, N)
    eye = torch.eye(K, dtype=torch.float64)
    totals = [float(population.losses(sigma * eye, law).sum()) for sigma in (5.0, 10.0, 20.0, 60.0)]
    assert totals == sorted(totals, reverse=True)
    assert totals[-1] == pytest.approx(high, rel=1e-12)
    assert low * (1 - 1e-12) <= high <= low * (1 + (K - 2) / (K * N) + 1e-12)
    assert sum(phases.unavoidable(K, [1 / K] * K, N)) / K == pytest.approx(low, rel=1e-12)


def test_stated_prompt_length_is_too_short_for_a_positive_floor():
    for K, p in ((2, [0.5, 0.5]), (3, [0.2, 0.4, 0.4]), (100, [0.01] * 100)):
        N = phases.smallest_prompt(K, p)
        assert N >= 20 * K**3 * (1 - 1e-12)
        assert K * min(p) - math.sqrt(20 * K**3 / N) == pytest.approx(0, abs=1e-12)


def test_probability_bound_of_imbalanced_prompts_fails_for_small_K():
    from scipy.stats import binom

    K, p1, N, c = 3, 0.5, 1103, 0.7
    assert c >= math.sqrt(20 * K**3 / N)
    # The event asks |V_1 - p1 N| <= 0.01 c N, so its probability is at most that.
    inside = binom.cdf(math.floor((p1 + 0.01 * c) * N), N, p1) - binom.cdf(math.ceil((p1 - 0.01 * c) * N) - 1, N, p1)
    assert inside < phases.concentration_bound(K, N, c) - 0.3


def test_prompts_without_the_feature_pull_the_dominant_score_below_its_window():
    K, p1, N = 60, 0.5, 400
    law = prompts.multinomial_sample(
        [p1] + [(1 - p1) / (K - 1)] * (K - 1), N, 60, generator=torch.Generator().manual_seed(0)
    )
    # With A this large only prompts that lack the feature still move the scores.
    plateau, even = -0.5 * math.log(K) - math.log(phases.suppression(p1)), -math.log(K)
    for B1, sign in ((plateau, 1), (0.5 * (plateau + even), 1), (1.5 * even, -1)):
        assert sign * mean_field.count_rates(law, 30.0, B1)[1] > 0


def test_a_long_first_step_leaves_the_window():
    K, p1 = 1e6, 0.4
    eta = phases.largest_first_step(math.log(K), p1)
    assert mean_field.descend(K, p1, eta, 1).B1[-1] == pytest.approx(-0.51 * math.log(K), rel=1e-9)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: phases.alike_time(10, 0.1, 0.95), "off must be"),
        (lambda: phases.alike_time(10, 1.0, 0.1), "share must be"),
        (lambda: phases.report(100, 0.5, 1.0), "eps must be"),
        (lambda: phases.suppression(0.0), "p1 must be"),
        (lambda: phases.window_margin("T9", 3.0, 0.5), "text must be"),
    ],
)
def test_bad_arguments_are_named(call, text):
    with pytest.raises(ValueError, match=text):
        call()


def test_exponent_table_finds_the_orders_and_no_logarithm():
    frame = convergence_phases.exponents((0.5,), 0.01, small=range(3, 9), large=(20, 60, 90, 120, 150, 180)).frame
    large = frame[frame.range == "large"].set_index("quantity")
    for name, power in (("T1", 1.98), ("T2", 2.0), ("T3-T2", 1.49), ("T4-T3", 1.0), ("balanced T1", 2.0)):
        assert large.low[name] <= power + 1e-3
        assert large.high[name] >= power - 1e-3
        assert abs(large.log_power[name]) < 0.1
    # Lemma 4.5 as printed leaves T2 out: its bound on T3 falls short by half a power.
    assert large.low["T3"] > large.claimed_power["T3"] + 0.4
    assert large.low["|beta_n|(T2)"] > large.claimed_power["|beta_n|(T2)"] + 0.4


def test_trajectory_passes_through_the_phases_in_order():
    frame = convergence_phases.trajectory(1e4, 0.5, 0.05).frame
    assert frame.phase.is_monotonic_increasing
    assert set(frame.phase) == {1, 2, 3, 4, 5}
    assert (frame.attn_k + frame.attn_1 + frame.attn_rest).to_numpy() == pytest.approx(1)
    # Small p1: the target explodes before the dominant score is down, and phase I runs into phase III.
    assert set(convergence_phases.trajectory(1e4, 0.1, 0.05).frame.phase) == {1, 3, 4, 5}


def test_finite_prompts_table_brackets_the_limit_for_long_prompts():
    frame = convergence_phases.finite_prompts((3, 8), (1, 20), 0.5, 1.0, samples=40, repeats=4, seed=1).frame
    assert frame.method.tolist() == ["enumerated", "sampled", "sampled", "sampled"]
    last = frame.iloc[-1]
    assert abs(last.log_ratio) < 3 * last.log_ratio_error + 1e-3
    assert abs(frame.log_ratio[0]) > 0.02
    again = convergence_phases.finite_prompts((3, 8), (1, 20), 0.5, 1.0, samples=40, repeats=4, seed=1).frame
    assert again.equals(frame)


def test_features_of_unequal_share_do_not_finish_together():
    frame = convergence_phases.unequal_shares((8, 16)).frame
    assert frame.held.all()
    assert frame.gap_over_stage[1] > 1.2 * frame.gap_over_stage[0] > 1
    with pytest.raises(ValueError, match="even numbers"):
        convergence_phases.unequal_shares((5,))


def test_drivers_add_up_to_the_change_of_the_attention():
    frame = convergence_phases.drivers(3, 0.8, None).frame
    numeric = np.gradient(np.log(frame.attn_n), frame.s)
    assert frame.d_log_attn_n.to_numpy()[2:-2] == pytest.approx(numeric[2:-2], abs=5e-3)


@pytest.mark.parametrize("against", ["clock", "time"])
def test_figures_are_drawn(against):
    import matplotlib.pyplot as plt

    figure = convergence_phases.figure_trajectory(convergence_phases.trajectory(1e3, 0.6), against)
    assert len(figure.axes) == 2
    measured = convergence_phases.sizes_table((0.5,), small=range(3, 8), large=(20, 21, 22, 23, 24))
    slopes = convergence_phases.figure_slopes(measured, ("T2", "T1"))
    assert [axis.get_title() for axis in slopes.axes] == ["$T_2$", "$T_1$"]
    table = convergence_phases.thresholds((0.8,), most=30)
    assert table.frame.set_index("window").log2_K["A(T2) >= 0.5 log K"] == math.inf
    assert convergence_phases.figure_thresholds(table).axes
    plt.close("all")

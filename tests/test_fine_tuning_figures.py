"""Figures of fine-tuning and beyond: numbers against the engine, thresholds against a search, and error paths."""

import math

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
import torch

from icl_core import features, fine_tuning, population, prompts
from icl_core.experiments import fine_tuning_figures as figures
from icl_core.theory import fine_tuning as theory
from icl_core.theory import multinomial as counted
from icl_core.theory import ood

mpl.use("Agg")

SMALL = figures.Setting(gamma=(0.9, 0.3, -0.5), eps=0.05, eta=0.5, eps_least=0.01, draws=30, seed=2)
FEW = figures.Beyond(
    gamma=(0.9, -0.4, 0.2), eps=0.05, eta=0.5, lengths=(3, 10, 16), long_lengths=(400,), samples=40, repeats=3,
    draws=20, correlations=(0.0, 0.5), seed=2,
)  # fmt: skip


def explained(table):
    assert set(table.columns) == set(table.frame.columns)
    assert table.provenance["command"].startswith("icl-core run ")
    return table.frame


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ({"gamma": 0.5}, r"gamma must be a list of 2 to 8 correlations in \[-1, 1\], got 0.5"),
        ({"gamma": [0.1]}, "gamma must be a list of 2 to 8"),
        ({"gamma": [0.1, 1.2]}, "gamma.* 1.2"),
        ({"gamma": [0.1, float("nan")]}, "gamma.*nan"),
        ({"eps": 0.4}, "eps must be .*got 0.4"),
        ({"eps": 0.0}, "eps must be"),
        ({"eta": -1}, "eta must be"),
        ({"eps_least": 1e-9}, "eps_least must be"),
        ({"draws": 2}, "draws must be"),
        ({"seed": -1}, "seed must be"),
    ],
)
def test_bad_parameters_of_fine_tuning_are_named(given, fault):
    with pytest.raises(ValueError, match=fault):
        figures.Setting(**given)


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ({"gamma": [0.1] * 5}, "gamma must be a list of 2 to 4"),
        ({"lengths": 8}, "lengths must be a list of prompt lengths, got 8"),
        ({"lengths": [8, 200]}, "lengths must be"),
        ({"long_lengths": []}, "long_lengths must be a list"),
        ({"samples": 1}, "samples must be"),
        ({"repeats": 1}, "repeats must be"),
        ({"correlations": [0.95]}, "correlations.*0.95"),
        ({"correlations": []}, "correlations must hold"),
    ],
)
def test_bad_parameters_beyond_are_named(given, fault):
    with pytest.raises(ValueError, match=fault):
        figures.Beyond(**given)


def test_eps_of_inverts_alpha_star():
    for K, eps in ((2, 0.2), (5, 1e-9)):
        assert figures.eps_of(K, ood.alpha_star(K, eps)) == pytest.approx(eps, rel=1e-9)


@pytest.mark.parametrize("K", [3, 4, 5])
def test_the_sharp_threshold_is_where_the_engine_first_sees_a_beta_rise(K):
    first = figures.first_rise(K)
    gamma = torch.tensor(first.gamma, dtype=torch.float64)
    key, query = K - 1, 0
    slopes = [
        float(population.descent(theory.initial_scores(gamma, share * first.alpha), prompts.balanced(K))[key, query])
        for share in (0.999, 1.001)
    ]
    assert slopes[0] < 0 < slopes[1]
    assert theory.sign_condition(K) > first.eps
    # Below it no shift raises a beta at T_1.
    g = features.generator(5)
    drawn = 2 * torch.rand(4000, K, dtype=torch.float64, generator=g) - 1
    drawn[:2000, 1:] = torch.sign(drawn[:2000, 1:])
    delta = population.descent(theory.initial_scores(drawn, 0.999 * first.alpha), prompts.balanced(K))
    assert float(delta[:, ~torch.eye(K, dtype=torch.bool)].max()) <= 1e-16


def test_the_beta_in_question_rises_below_the_threshold_only():
    frame = explained(figures.around_threshold(SMALL))
    highest = frame.groupby("factor")["moved"].max()
    assert (highest[highest.index > 1] == 0).all()
    assert (highest[highest.index < 1] > 1e-8).all()
    assert (frame.groupby("factor")["largest"].max() <= 0).all()


def test_rank_one_raises_a_beta_under_the_printed_condition():
    frame = explained(figures.rank_one(SMALL, 0.004))
    assert theory.sign_condition(3) < 0.004
    assert frame["beta_3"].max() > 1e-5
    assert (frame["beta_2"].diff().dropna() < 0).all()
    assert np.allclose(frame["alpha"], -frame["beta_2"] - frame["beta_3"])


def test_signs_follow_from_who_is_ahead():
    frame = explained(figures.attention_signs(SMALL))
    assert (frame["D"] < frame["rival"]).all()
    assert (frame["own"] < frame["rival"])[frame["largest_slope"] > 0].all()
    assert (frame["largest_slope"] > 0).any()


def test_bounds_hold_corrected_and_fail_as_printed():
    table = figures.bounds(SMALL, points=4)
    f = explained(table)
    assert (f["delta"] >= f["lower"] - 1e-12).all()
    assert (f["delta_before"] <= f["upper"] + 1e-12).all()
    assert (f["delta_before"] < f["delta"]).all()
    assert (f["lam_least"] >= f["lam_lower"]).all()
    assert (f["lam_largest"] <= f["lam_upper"]).all()
    largest = f[f["eps"] == f["eps"].max()]
    assert (largest["upper_printed"] < largest["delta_before"]).any()
    clock = explained(figures.times(table, SMALL))
    assert (clock["T2"] <= clock["bound"]).all()
    single = fine_tuning.fine_tune_gamma(SMALL.gamma, float(clock["eps"].iloc[1]), SMALL.eta)
    assert float(single.end) == clock["T2"].iloc[1]


def test_one_step_before_is_undone_by_a_step():
    start = theory.initial_scores(SMALL.gammas, ood.alpha_star(3, 0.05))
    scores, times = fine_tuning.at_own_times(start, 0.05, 0.5)
    before = figures.one_step_before(scores, start, times, 0.5)
    again = before + 0.5 * population.descent(before, prompts.balanced(3))
    assert torch.allclose(again, scores, atol=1e-12)
    still = figures.one_step_before(start, start, torch.zeros(3), 0.5)
    assert torch.equal(still, start)


def test_order_is_not_that_of_the_correlations():
    made = figures.order(SMALL)
    example = explained(made)[lambda f: f["draw"] == -1]
    assert example["step"].iloc[0] > example["step"].iloc[1] == example["step"].iloc[2]
    by_hand = pd.DataFrame(
        [(0, 0.9, 5), (0, -0.5, 3), (0, 0.1, 9), (1, 0.2, 4), (1, 0.8, 4), (1, -0.9, 2), (-1, 0.5, 1)],
        columns=["draw", "gamma", "step"],
    )
    made = type(made)(by_hand, made.provenance, made.columns)
    assert figures.out_of_order(made) == pytest.approx(1 / 6)


def test_betas_change_order_only_far_beyond_the_limit():
    frame = explained(figures.step_sizes(SMALL))
    broken = frame.groupby("multiple")["pairs_out_of_order"].max()
    assert broken[1.0] == 0
    assert broken[60.0] > 0
    last = frame.groupby("multiple").last()["loss"]
    assert (last <= SMALL.eps).all()


def test_losses_on_drawn_prompts_end_on_their_floor():
    frame = explained(figures.loss_by_gap(FEW, lengths=(3, 30), points=5))
    end = frame[frame["gap"] == frame["gap"].max()].set_index("N")
    assert end.loc[3, "loss"] == pytest.approx(end.loc[3, "floor"], rel=1e-3)
    symmetric = 3.5 * torch.eye(3, dtype=torch.float64)
    row = frame[(frame["N"] == 3) & (frame["gap"] == 3.5)].iloc[0]
    for N, name in ((3, "loss"), (None, "balanced")):
        law = prompts.balanced(3) if N is None else prompts.multinomial([1 / 3] * 3, N)
        assert row[name] == pytest.approx(float(population.losses(symmetric, law)[0]), rel=1e-12)


def test_prompt_lengths_from_impossible_to_balanced():
    frame = explained(figures.prompt_lengths(FEW))
    assert frame["how"].tolist() == ["floor", "exact", "exact", "sampled", "balanced"]
    assert counted.floor(3, 3) > FEW.eps / 3
    assert math.isnan(frame["alpha"].iloc[0])
    exact, drawn, flat = frame.iloc[2], frame.iloc[3], frame.iloc[4]
    assert frame["alpha"].iloc[1] > exact["alpha"] > flat["alpha"]
    assert exact["beta_spread"] < 1e-12 < drawn["beta_spread"]
    assert abs(drawn["forgetting"] - flat["forgetting"]) < 0.05 * abs(flat["forgetting"])
    base = fine_tuning.fine_tune_gamma(FEW.gamma, FEW.eps, FEW.eta, start="trained")
    assert flat["forgetting"] == pytest.approx(float(base.total_forgetting), rel=1e-12)


def test_only_lengths_that_grow_with_the_target_reach_it():
    last = explained(figures.loss_at_star(FEW)).groupby("rule").last()["loss"]
    assert last["lemma"] > 100
    assert last["log"] < 1.5


def test_slopes_are_those_of_the_engine():
    frame = explained(figures.slope_sizes(FEW, Ks=(4, 8)))
    for row in frame.itertuples():
        K, a = int(row.K), row.attention
        gap = math.log(a / (1 - a) * (K - 1))
        delta = population.descent(gap * torch.eye(K, dtype=torch.float64), prompts.balanced(K))
        assert row.largest == pytest.approx(-float(delta[1, 0]), rel=1e-12)
        assert row.largest > row.at_start


def test_any_shift_respects_the_condition_and_the_bounds():
    frame = explained(figures.any_shift(FEW))
    assert (frame[frame["eps"] >= theory.sign_condition_any(3)]["share"] == 0).all()
    assert frame["share"].max() > 0
    f = explained(figures.any_bounds(FEW))
    f = f[f["step"] > 0]
    assert (f["delta"] >= f["lower"] - 1e-12).all()
    assert (f["delta_before"] <= f["upper"] + 1e-12).all()


def test_correlated_sets_and_their_orthonormal_limit():
    V, U = figures.correlated_sets(FEW, 0.5)
    G = torch.full((3, 3), 0.5, dtype=torch.float64).fill_diagonal_(1.0)
    assert torch.allclose(features.gram(V), G)
    assert torch.allclose(features.gram(U), G)
    frame = explained(figures.correlated(FEW))
    base = fine_tuning.fine_tune_gamma(FEW.gamma, FEW.eps, FEW.eta, start="trained")
    assert frame["forgetting"].iloc[0] == pytest.approx(float(base.total_forgetting), abs=1e-12)
    assert frame["T2"].iloc[0] == float(base.end)
    assert frame["T1"].iloc[1] > frame["T1"].iloc[0]


def test_every_figure_is_drawn():
    from matplotlib import pyplot as plt

    reach = figures.bounds(SMALL, points=3)
    limits, around, line = (
        figures.thresholds(SMALL, Ks=(3, 4)), figures.around_threshold(SMALL), figures.rank_one(SMALL),
    )  # fmt: skip
    drawn = [
        figures.draw_trajectories(figures.trajectories(SMALL), SMALL.eps),
        figures.draw_attention_signs(figures.attention_signs(SMALL)),
        figures.draw_thresholds(limits, around, line),
        figures.draw_bounds(reach),
        figures.draw_lambda(reach),
        figures.draw_times(figures.times(reach, SMALL)),
        figures.draw_order(figures.order(SMALL)),
        figures.draw_step_sizes(figures.step_sizes(SMALL), SMALL.eps),
        figures.draw_loss_by_gap(figures.loss_by_gap(FEW, (3, 6), 4), FEW.eps, 3),
        figures.draw_prompt_lengths(figures.prompt_lengths(FEW)),
        figures.draw_loss_at_star(figures.loss_at_star(FEW)),
        figures.draw_any_shift(figures.any_shift(FEW, points=3), 3),
        figures.draw_any_bounds(figures.any_bounds(FEW)),
        figures.draw_correlated(figures.correlated(FEW)),
    ]
    for figure in drawn:
        assert figure.axes[-1].get_xlabel()
        assert figure.axes[0].get_ylabel()
    plt.close("all")

"""The chapters on forgetting and noise: exact paths, maps, controls, noisy runs, and refused parameters."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from icl_core import chapters, fine_tuning, population
from icl_core.claims import register
from icl_core.experiments import forgetting_maps as maps
from icl_core.experiments import noise_figures as figures
from icl_core.theory import forgetting, noise, ood

BOOK = Path(__file__).resolve().parent.parent / "book"


@pytest.mark.parametrize("name", ["forgetting", "noise"])
def test_every_statement_of_the_chapter_is_on_its_page_once(name):
    text = (BOOK / f"{name}.md").read_text(encoding="utf-8")
    shown = re.findall(r"^```\{claim\} (\S+)$", text, flags=re.MULTILINE)
    wanted = [claim.id for claim in register.claims().values() if claim.chapter == name]
    assert sorted(shown) == sorted(wanted)


@pytest.mark.parametrize(
    ("name", "given", "fault"),
    [
        ("forgetting", {"eps": 0.25}, "eps must be .*0.25"),
        ("forgetting", {"gamma2": 1.0}, "gamma2 must be"),
        ("forgetting", {"sizes": [2]}, "sizes.* must be"),
        ("forgetting", {"eta": 7}, "eta must be"),
        ("noise", {"N": 6}, "N must be a multiple"),
        ("noise", {"noises": [-1.0]}, "noises.* must be"),
        ("noise", {"eps": 0.2}, "eps must be"),
        ("noise", {"d": 3}, "d must be"),
    ],
)
def test_bad_parameters_are_named(name, given, fault):
    chapter = chapters.load(BOOK / f"{name}.md")
    with pytest.raises(chapters.ChapterError, match=fault):
        chapters.check(chapter, chapters.values(chapter, "book", given))


@pytest.mark.parametrize("name", ["forgetting", "noise"])
@pytest.mark.parametrize("profile", chapters.PROFILES)
def test_profiles_are_valid(name, profile):
    chapter = chapters.load(BOOK / f"{name}.md")
    chapters.check(chapter, chapters.values(chapter, profile))


def test_paths_follow_gradient_descent():
    gamma, eps, eta = (0.9, -0.5), 0.02, 2e-3
    run = maps.paths(*gamma, eps, points=9)
    steps = sorted({round(t / eta) for t in run.times})
    done = fine_tuning.fine_tune_gamma(list(gamma), eps, eta, record=steps)
    assert done.trajectory is not None
    for time, rise in zip(run.times[1:-1], run.rise[1:-1], strict=True):
        at = int((done.trajectory.times - time / eta).abs().argmin())
        moved = torch.diagonal(done.trajectory.scores[at] - done.start)
        np.testing.assert_allclose(rise, moved.numpy(), atol=3e-3)
    np.testing.assert_allclose(run.rise[-1], forgetting.two_features(*gamma, eps).last, atol=1e-9)
    np.testing.assert_allclose(run.loss_V[0], eps / 2, rtol=1e-12)


def test_measured_exponents_lie_between_the_corrected_constants():
    frame = maps.exponents(0.9, 0.02, 0.01, points=9).frame
    assert (frame["exponent1"] > frame["d1"] - 1e-4).all()
    assert (frame["exponent1"] < frame["c1"] + 1e-4).all()
    assert (frame["exponent1"] < frame["d1_printed"] - 0.05).any()
    np.testing.assert_allclose(frame["exponent2"], frame["c2"], atol=5e-4)


def test_corrected_corollary_is_never_wrong_and_the_printed_one_often():
    frame = maps.corollary_map((0.01, 1e-4), points=31).frame
    assert (frame["gamma1"] > frame["gamma2"].abs()).all()
    assert not (frame["corrected"] == 2).any()
    assert (frame["corrected"] == 1).mean() > 0.8
    assert (frame["printed"] == 2).mean() > 0.5


def test_explorable_shows_the_forgetting_of_the_closed_form():
    figure = maps.explorable(5, (0.05, 0.01), points=5)
    values = figure.controls[0].values
    for i, a in enumerate(values):
        for j, b in enumerate(values):
            want = forgetting.two_features(a, b, 0.01).forgetting.sum()
            assert figure.tables["F_end"].values[1][i][j] == pytest.approx(float(want), abs=1e-9, rel=6e-3)
    assert figure.tables["loss_v1"].values[0][4][0][0] == pytest.approx(0.025)


def test_stability_limit_is_where_gradient_descent_starts_to_swing():
    K, s = 2, 20.0
    limit = figures.stable_step(K, s)
    frame = figures.stopping_map([s], [0.9 * limit, 1.5 * limit], share=1e-4).frame
    assert list(frame["stopped"]) == [True, False]
    with pytest.raises(ValueError, match="s must be"):
        figures.stable_step(2, 0.0)


def test_noisy_training_ends_at_eq_32():
    frame = figures.training_levels([0.01, 1.0], K=3, N=6, eps=0.01, eta=0.05).frame
    assert frame["stopped"].all()
    np.testing.assert_allclose(frame["attention"], frame["eq32"], atol=2e-3)
    assert (frame["attention"] >= frame["eq32"]).all()
    assert (frame["loss"] - frame["floor"] <= 0.01).all()


def test_theorem_k1_lies_on_the_simulation():
    frame = figures.rotation_error([0.0, 0.3], K=3, d=5, N=3, eps=0.02, eta=0.05, angles=5).frame
    np.testing.assert_allclose(frame["closed"], frame["simulated"], atol=1e-3)
    assert (frame["clean_part"] + frame["query_part"] <= frame["simulated"] + 1e-12).all()


def test_signs_break_only_for_unequal_rivals_and_large_noise():
    frame = figures.sign_radius([[1.0, 0.9, -0.9], [0.8, -0.5]], [0.005], [0.1, 1.0], max_steps=1500).frame
    assert frame["broken"][0] == pytest.approx(1.0)
    assert math.isnan(frame["broken"][1])


def test_rule_is_met_outside_the_assumption_though_scores_turn_back():
    frame = figures.random_shifts([0.001, 1.0], K=3, eps=5e-4, angle=0.0, draws=15).frame
    assert (frame["met"] == 1).all()
    assert frame["beta_rises"][0] == 0
    assert frame["beta_rises"][1] > 0.5


def test_updates_of_equal_rivals_are_the_corrected_forms():
    frame = figures.update_brackets((0.5,), points=5, eta=0.02).frame
    np.testing.assert_allclose(frame["rise"], 2 / 3 * frame["rise_corrected"], atol=1e-3)
    np.testing.assert_allclose(frame["fall"], frame["fall_corrected"], atol=1e-12)
    assert (frame["rise"] - 2 / 3 * frame["rise_printed"]).abs().max() > 0.05


def test_noiseless_curve_of_noisy_forgetting_is_the_figure():
    noisy = figures.noisy_forgetting([0.0, 0.1], points=9).frame
    clean = maps.figure_2b(points=9, start="alpha_star").frame
    np.testing.assert_allclose(noisy["F"][noisy["s"] == 0], clean["F"], atol=1e-12)
    with pytest.raises(ValueError, match="eps must be"):
        figures.noisy_forgetting([50.0], points=3)


def test_noise_changes_everything_in_proportion_when_it_is_small():
    frame = figures.small_noise([1e-5, 1e-4], eps=0.05).frame
    for column in ("alpha", "rise", "F"):
        assert frame[column][1] / frame[column][0] == pytest.approx(10, rel=0.02)


def test_law_has_the_noise_that_was_asked_for():
    prompts = figures.law(3, 6, 0.4)
    assert prompts.sigma_eff2 == pytest.approx(0.4)
    best = noise.best_attention(3, 0.4)
    scores = ood.symmetric_scores(3, 2 / 3 * math.log(2 * best / (1 - best)))
    floor = 3 * figures.threshold(prompts, 1e-12)
    assert float(population.losses(scores, prompts).sum()) == pytest.approx(floor, rel=1e-10)


def test_figures_are_drawn():
    drawn = [
        maps.draw_exponents(maps.exponents(points=5)), maps.draw_corollary_map(maps.corollary_map(points=11)),
        maps.draw_paths(maps.path_table(1.0, -0.5, 0.05, 9)),
        maps.draw_single_feature(maps.many_feature_map((3,), eta=0.5, points=5)),
        figures.draw_training_levels(figures.training_levels([0.1], eta=0.5)),
        figures.draw_rotation_error(figures.rotation_error([0.1], angles=3, eta=0.5)),
        figures.draw_stopping_map(figures.stopping_map([0.5, 2.0], [1.0, 100.0], max_steps=300)),
        figures.draw_update_brackets(figures.update_brackets((0.5,), points=3, eta=0.5)),
        figures.draw_noisy_forgetting(figures.noisy_forgetting([0.1], points=3, eta=0.5)),
        figures.draw_small_noise(figures.small_noise([1e-3], eps=0.05)),
    ]  # fmt: skip
    assert all(figure.axes for figure in drawn)

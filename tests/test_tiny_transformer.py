"""Experiments with TinyTransformers: shapes of curves, theory beside them, tables, refusals."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from icl_core import features, fine_tuning, networks, population, results
from icl_core.claims import ood_networks
from icl_core.experiments import tiny_transformer as tiny
from icl_core.networks import Architecture, Training
from icl_core.prompts import balanced
from icl_core.theory import ood

ARCH = Architecture()
QUICK = Training(steps=600, contexts=8, learning_rate=5e-3, eps=0.05, record_every=10, tests=8)
TUNE = Training(steps=20, contexts=4, learning_rate=2e-3, scope="last", record_every=10, tests=4)
TURN = np.linspace(0, 2 * np.pi, 49)


@pytest.mark.parametrize(
    ("curve", "half", "peaks_half", "peaks_turn"),
    [
        (1 - np.cos(TURN), "monotone", 0, 1),
        (1 - np.cos(TURN) ** 2, "one peak", 1, 2),
        (1 - np.cos(2 * TURN) ** 2, "double peak", 2, 4),
        (1 - np.cos(TURN) + 0.02 * np.sin(15 * TURN), "monotone", 0, 1),
    ],
)
def test_scenarios_are_told_apart(curve, half, peaks_half, peaks_turn):
    found = tiny.shape_of(TURN, curve)
    assert found == {"half": half, "peaks_half": peaks_half, "peaks_turn": peaks_turn}


def test_the_tolerance_decides_what_counts():
    curve = 1 - np.cos(TURN) + 0.8 * np.sin(TURN) ** 2 * (np.cos(TURN) < 0)
    dip = curve.max() - curve[24]
    assert 0 < dip < 0.1 * np.ptp(curve)
    assert tiny.shape_of(TURN, curve, tolerance=0.1)["half"] == "monotone"
    assert tiny.shape_of(TURN, curve, tolerance=0.5 * dip / np.ptp(curve))["half"] == "one peak"


@pytest.mark.parametrize("grid", [TURN[:-1], TURN[:25], np.sort(np.random.default_rng(0).uniform(0, 6.28, 49))])
def test_angles_that_do_not_suit_are_refused(grid):
    with pytest.raises(ValueError, match="theta must run"):
        tiny.shape_of(grid, np.ones(len(grid)))


@pytest.mark.parametrize(("K", "d"), [(2, 8), (3, 8), (4, 8)])
def test_embeddings_lie_as_named(K, d):
    for kind in tiny.EMBEDDINGS:
        V = tiny.embedding(kind, d, K, [0, 1])
        features.require_orthonormal("V", V)
        assert not torch.allclose(V[0], V[1])
        if kind == "one-in-span":
            assert torch.equal(V[:, 0, 0], torch.ones(2, dtype=torch.float64))
            assert V[:, :2, 1:].abs().max() == 0
        if kind == "two-in-span":
            # The plane of rotation lies in the span, so a turn keeps the span.
            U = tiny.rotate(V, torch.tensor([1.0], dtype=torch.float64))[0]
            inside = V @ (V.mT @ U)
            torch.testing.assert_close(inside, U, rtol=0, atol=1e-12)


def test_the_form_read_off_the_weights_is_the_attention_logit():
    arch = replace(ARCH, norm="none")
    seeds = [0, 1]
    V = tiny.embedding("random", 8, 3, seeds)
    flat = networks.initialise(arch, seeds, dtype=torch.float64)
    run = networks.Run(flat, torch.zeros(1), {}, torch.zeros(2))
    trained = tiny.Trained(arch, seeds, V, run)
    # Labels are symmetric and biases 0, so only the form in the features is left of the mean logit.
    expected = V.mT @ tiny.bilinear_form(trained) @ V
    torch.testing.assert_close(tiny.scores(trained, V), expected, rtol=0, atol=1e-12)


def test_alignment_tells_features_from_their_span():
    V = tiny.embedding("random", 8, 4, [0])
    by_feature = (V * torch.tensor([4.0, 3.0, 2.0, 1.0], dtype=torch.float64)) @ V.mT
    found = tiny.alignment(by_feature, V)
    assert float(found.span[0]) == pytest.approx(1)
    assert float(found.feature[0]) == pytest.approx(1)
    assert found.chance_span == 0.5
    assert 0.45 < found.chance_feature < 0.75
    outside = torch.eye(8, dtype=torch.float64) - V @ V.mT
    assert float(tiny.alignment(outside, V).span[0]) < 1e-12


def test_network_scale_is_exact_for_the_one_layer_model():
    covariance = torch.eye(2, dtype=torch.float64) * (1 - 1 / math.pi) + 1 / math.pi
    gammas, eps = [-0.8, 0.0, 0.6], 0.01
    start = ood.symmetric_scores(2, ood.alpha_star(2, eps))
    # Fine-tune by hand under the network class's covariance and compare.
    gamma = torch.tensor([[1.0, g] for g in gammas], dtype=torch.float64)
    M = torch.diag_embed(gamma)
    S = M.mT @ start @ M
    first = S.clone()
    for _ in range(100_000):
        losses, delta = population.losses_and_descent(S, balanced(2), covariance)[:2]
        going = (losses > eps / 2).any(-1)
        if not going.any():
            break
        S = S + 0.1 * delta * going[:, None, None]
    after = start + M @ (S - first) @ M.mT
    change = (population.losses(after, balanced(2)) - population.losses(start, balanced(2))).sum(-1)
    mine = tiny.theory_forgetting(gammas, eps, pair="linear to network")
    np.testing.assert_allclose(mine, change.numpy(), rtol=0, atol=1e-9)


def test_theory_beside_the_figures_is_the_engine_s():
    grid = torch.tensor([[1.0, -0.5], [1.0, 0.5]], dtype=torch.float64)
    direct = fine_tuning.fine_tune_gamma(grid, 0.01, 0.1).total_forgetting.numpy()
    np.testing.assert_allclose(tiny.theory_forgetting([-0.5, 0.5], 0.01), direct, rtol=0, atol=1e-12)
    track = tiny.theory_track(0.0, 0.01, 5)
    assert track.shape == (6,)
    assert track[0] == pytest.approx(0.01)
    share = tiny.theory_scenarios(4, 8, draws=60)
    assert sum(share[s] for s in tiny.SHAPES) == pytest.approx(1)
    with pytest.raises(ValueError, match="shift must be one of"):
        tiny.theory_forgetting([0.5], 0.01, shift="neither")


@pytest.fixture(scope="module")
def trained():
    return tiny.train_models(ARCH, QUICK, K=2, seeds=[0, 1, 2])


def test_fine_tuning_over_correlations(trained):
    out = tiny.fine_tune(trained, TUNE, [-1.0, 0.0, 1.0], eps=0.05)
    assert out.source.shape == (3, 3, 3)
    # At correlation 1 the domains are the same, the rule holds at once, and nothing is forgotten.
    assert (out.met[:, 2] == 0).all()
    np.testing.assert_array_equal(out.at_rule[:, 2], 0)
    np.testing.assert_allclose(out.source[:, :, 2], out.target[:, :, 2], rtol=0, atol=1e-7)
    # Before any step the training domain does not know the correlation.
    np.testing.assert_allclose(out.source[0, :, 0], out.source[0, :, 1], rtol=0, atol=1e-7)
    assert (out.target[0, :, 0] > 0.05).all()
    np.testing.assert_array_equal(out.at_end, out.source[-1] - out.source[0])
    with pytest.raises(ValueError, match=r"gammas\[0\]"):
        tiny.fine_tune(trained, TUNE, [1.5], eps=0.05)


def test_tables_hold_what_they_say(tmp_path):
    table = tiny.ood_table(ARCH, QUICK, seeds=[0, 1], layers=[1], kinds=["random"], count=9, store=tmp_path)
    assert len(table.frame) == 18
    assert set(table.columns) == set(table.frame.columns)
    assert table.frame.error.between(0, 10).all()
    again = tiny.ood_table(ARCH, QUICK, seeds=[0, 1], layers=[1], kinds=["random"], count=9, store=tmp_path)
    assert again.frame.equals(table.frame)
    # Another K in the same folder is another run, not a clash.
    other = tiny.ood_table(ARCH, QUICK, K=3, seeds=[0, 1], layers=[1], kinds=["random"], count=9, store=tmp_path)
    assert not other.frame.equals(table.frame)
    assert len(list(tmp_path.glob("train-*.pt"))) == 2
    start = table.frame[table.frame.theta == 0]
    assert (start.error <= 0.05).all()
    written = results.read_table(results.write_table(tmp_path / "t", table))
    assert written.provenance["parameters"]["training"]["eps"] == 0.05
    assert len(tiny.scenarios(table)) == 2

    forgetting, tracks = tiny.forgetting_tables(
        ARCH, QUICK, TUNE, seeds=[0, 1], layers=[1], gammas=[-1.0, 1.0], tracked=[0.0], pairs=["linear to network"]
    )
    assert len(forgetting.frame) == 6
    assert tracks.frame.empty
    assert set(forgetting.columns) == set(forgetting.frame.columns)


def test_models_that_do_not_get_there_are_reported():
    with pytest.raises(RuntimeError, match="2 of 2 models did not reach eps"):
        tiny.train_models(ARCH, replace(QUICK, steps=10), K=2, seeds=[0, 1])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: tiny.embedding("diagonal", 8, 4, [0]), "embedding must be one of"),
        (lambda: tiny.embedding("one-in-span", 4, 4, [0]), r"d must be at least K \+ 1"),
        (lambda: tiny.angles(8), "angles must be odd"),
        (lambda: tiny.train_models(ARCH, QUICK, K=9, seeds=[0]), "K must be"),
        (lambda: tiny.train_models(ARCH, QUICK, K=2, seeds=[-1]), "seeds must be"),
        (lambda: tiny.interval(np.ones((1, 3))), "at least 2 entries"),
        (lambda: tiny.variants_table(ARCH, names=["magic"]), "names must be one of"),
        (lambda: tiny.forgetting_tables(ARCH, pairs=["magic"]), "pairs must be one of"),
    ],
)
def test_bad_arguments_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize(
    ("turn", "spread", "passed"), [(1.0, 0.01, True), (-1.0, 0.01, False), (1.0, 5.0, None)], ids=str
)
def test_curves_are_alike_only_if_the_models_decide(monkeypatch, turn, spread, passed):
    draw = np.random.default_rng(3)
    line = np.linspace(-1, 1, len(ood_networks.GAMMAS))
    curves = {"ours": turn * line, ood_networks._LINEAR: line}
    models = {pair: curve + spread * draw.normal(size=(8, len(line))) for pair, curve in curves.items()}
    monkeypatch.setattr(ood_networks, "_depths", lambda fast, pair: (1,))
    monkeypatch.setattr(ood_networks, "_tuned", lambda depth, pair, fast: models[pair])
    assert ood_networks._alike(("ours", 0.7), True).passed is passed


def test_intervals():
    values = np.random.default_rng(1).normal(2.0, 1.0, (200, 3))
    mean, low, high = tiny.interval(values)
    assert ((low < mean) & (mean < high)).all()
    np.testing.assert_allclose(high - low, 2 * 1.972 * values.std(0, ddof=1) / math.sqrt(200), rtol=1e-3)
    assert tiny.sign(values[:, 0]) == "+"
    assert tiny.sign(-values[:, 0]) == "-"
    assert tiny.sign(np.array([-1.0, 1.0, 0.5, -0.6])) == "0"
    share, low, high = tiny.proportion(3, 10)
    assert low < share == 0.3 < high

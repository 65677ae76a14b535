"""Fig. 2(a), the overshoot, and the figure with controls: numbers against the token level, shapes, and error paths."""

import base64
import json
import math
import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from icl_core import features, population, prompts
from icl_core.experiments import captions, explorables, ood_rotation
from icl_core.theory import ood

SMALL = ood_rotation.Setting(
    K=3, d=5, eps=0.02, eta=0.5, theta=ood_rotation.full_turn(13), draws=4, seed=3, plane=(2, 4)
)


@pytest.fixture(scope="module")
def curves():
    return ood_rotation.run(SMALL)


def test_curves_are_those_of_the_layer_on_tokens(curves):
    V = features.orthonormal(5, 3, generator=features.generator(3), batch=(4,))
    for draw, step in ((0, 0), (1, 3), (3, 11)):
        Q = V[draw] @ curves.trained.scores @ V[draw].T
        U = features.rotation(5, SMALL.theta[step], (2, 4)) @ V[draw]
        by_tokens = population.token_level_losses(Q, U, prompts.balanced(3)).sum()
        assert float(curves.simulated[draw, step]) == pytest.approx(float(by_tokens), abs=1e-13)


def test_closed_form_differs_by_the_overshoot_only(curves):
    V = features.orthonormal(5, 3, generator=features.generator(3), batch=(4,))
    U = features.rotation(5, torch.tensor(SMALL.theta, dtype=torch.float64), (2, 4))[:, None] @ V
    reached = float(curves.trained.alpha[0])
    with_reached = ood.ood_loss(V.expand_as(U), U, reached).sum(-1).T
    assert torch.allclose(with_reached, curves.simulated, atol=1e-13)
    assert reached > ood.alpha_star(3, 0.02)
    assert float((curves.closed - curves.simulated).abs().max()) > 1e-9


def test_blocks_do_not_change_the_numbers(curves, monkeypatch):
    monkeypatch.setattr(ood_rotation, "_BLOCK", 100)
    assert torch.allclose(ood_rotation.run(SMALL).simulated, curves.simulated, atol=1e-15)


def test_summary_has_provenance_and_a_meaning_for_every_column(curves):
    for table in (curves.summary(), curves.single(2), curves.shapes()):
        assert set(table.columns) == set(table.frame.columns)
        assert table.provenance["parameters"]["plane"] == [2, 4]
        assert table.provenance["command"].startswith("icl-core run ood-generalisation -p K=3")
    summary = curves.summary().frame
    assert np.allclose(summary["mean"], curves.simulated.mean(0))
    assert (summary["q10"] <= summary["median"]).all()
    assert (summary["median"] <= summary["q90"]).all()
    # The mean over the draws comes back after a full turn, and starts at the training error.
    assert summary["mean"].iloc[0] == pytest.approx(summary["training"].iloc[0])
    assert summary["mean"].iloc[-1] == pytest.approx(summary["mean"].iloc[0])


def test_one_and_two_peaks_where_the_geometry_says_so():
    # V meets the turning plane in one direction, far from the mean feature: two peaks if its squared cosine is large.
    setting = ood_rotation.Setting(K=2, d=6, eps=0.01, draws=300, theta=ood_rotation.full_turn(121))
    shapes = ood_rotation.run(setting).shapes().frame
    assert (shapes.loc[shapes["a1"] < 0.5, "peaks"] == 1).all()
    lonely = shapes[(shapes["a2"] < 0.05) & (shapes["h"] < 0.1)]
    assert (lonely.loc[lonely["a1"] > 0.75, "peaks"] == 2).all()
    assert (lonely["a1"] > 0.75).sum() >= 3


def test_overshoot_shrinks_with_the_step_and_stays_below_the_last_slope():
    table = ood_rotation.overshoot(3, 0.01, [0.1, 1.0, 10.0, 1000.0], d=6, draws=5)
    f = table.frame
    assert f["met"].all()
    assert (f["excess"] >= 0).all()
    assert f["excess"].iloc[0] < f["excess"].iloc[1] < f["excess"].iloc[3]
    # One step adds less than 2 eta times the loss before it; the loss at Q = 0 is the largest.
    assert (f["excess"] < 2 * f["eta"] * ood.uniform_loss(3)).all()
    assert f["T1"].iloc[3] == 1


def test_in_span_shift_has_the_asked_projections():
    table = ood_rotation.in_span_shift(9, [0.1, 1e-6, 1e-7], [0.0, 1.0]).frame
    none, moved = table[table["shift"] == 0], table[table["shift"] == 1]
    assert np.allclose(none["ratio"], 1)
    slope = math.log(moved["loss"].iloc[1] / moved["loss"].iloc[2]) / math.log(10)
    assert slope == pytest.approx(moved["exponent"].iloc[0], abs=0.02)


BAD = [
    ({"K": 1}, "K must be an integer >= 2"),
    ({"K": 5, "d": 4}, "d must be at least K = 5"),
    ({"eps": 0.375}, r"eps must be a number in \(0, 0.375\)"),
    ({"eps": 0}, "eps must be a number"),
    ({"eps": "small"}, "eps must be a number"),
    ({"eta": -1}, "eta must be a number"),
    ({"theta": "pi"}, "theta must be a sequence of numbers"),
    ({"theta": (0.0, math.nan)}, r"theta\[1\] must be a number"),
    ({"theta": (0.0,)}, "theta must hold at least 2 angles"),
    ({"draws": 0}, "draws must be an integer >= 1"),
    ({"seed": -3}, "seed must be an integer"),
    ({"plane": (1, 1)}, "plane must name two different coordinates"),
    ({"plane": (1, 9)}, "plane must be an integer in"),
    ({"plane": 3}, "plane must be two coordinates"),
]


@pytest.mark.parametrize(("values", "message"), BAD)
def test_setting_names_what_is_wrong(values, message):
    with pytest.raises(ValueError, match=message):
        ood_rotation.Setting(**values)


def test_other_experiments_name_what_is_wrong():
    with pytest.raises(ValueError, match=r"etas\[0\] must be a number"):
        ood_rotation.overshoot(3, 0.01, [0.0], d=5)
    with pytest.raises(ValueError, match=r"shifts\[0\] must be a number"):
        ood_rotation.in_span_shift(4, [0.01], [3.0])
    with pytest.raises(ValueError, match="angles must be an integer >= 2"):
        ood_rotation.full_turn(1)


def test_explorable_shows_the_numbers_of_the_engine():
    figure = ood_rotation.explorable(K=(2, 3), eps=(0.05, 0.01), d=5, eta=0.5, angles=7, draws=2, seed=1)
    spec = figure.specification()
    run = ood_rotation.run(ood_rotation.Setting(3, 5, 0.01, 0.5, ood_rotation.full_turn(7), draws=2, seed=1))
    table = spec["tables"]["errors"]
    assert table["depends"] == ("K", "eps", "draw")
    assert table["values"][1][1][1] == pytest.approx(run.simulated[1].tolist(), rel=1e-3)
    scores = torch.tensor(spec["tables"]["scores"]["values"][1][1][1][2])
    attention = torch.tensor(spec["tables"]["attention"]["values"][1][1][1][2])
    assert torch.allclose(population.attention_weights(scores), attention, atol=2e-3)
    markup = figure._repr_html_()
    data = re.search(r'<script type="application/json">(.*?)</script>', markup, re.DOTALL).group(1)
    assert json.loads(data)["name"] == "ood-rotation"
    assert 'data-explorable="ood-rotation"' in markup


def _figure(**changes):
    given = {
        "name": "x",
        "title": "X",
        "controls": (explorables.Control("a", "A", (1, 2, 3)),),
        "panels": (explorables.Lines("p", "a", "x", "y", (explorables.Series("s", "t"),), marker="a"),),
        "tables": {"t": explorables.Lookup((), [1.0, 2.0, 3.0]), "n": explorables.Lookup(("a",), [1.0, 2.0, 3.0])},
        "sentence": "{a} gives {n}",
    }
    return explorables.Explorable(**{**given, **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tables": {"n": explorables.Lookup(("a",), [1, 2, 3])}}, "tables must hold 't'"),
        ({"tables": {"t": explorables.Lookup(("b",), [1])}}, "must name controls, got 'b'"),
        ({"tables": {"t": explorables.Lookup(("a",), [1, 2])}}, "one entry per value of its controls, 3, got 2"),
        ({"tables": {"t": explorables.Lookup((), [math.nan])}}, "must hold finite numbers"),
        ({"sentence": "{missing}"}, "sentence must name controls and tables"),
        ({"controls": (explorables.Control("a", "A", (1, 2, 3), start=3),)}, "start must be a position"),
        ({"controls": (explorables.Control("a", "A", (1, 2, 3), ("one",)),)}, "shown must have one text per value"),
        (
            {"panels": (explorables.Lines("p", "t", "x", "y", (), marker="a"),)},
            "marker must be the control on the axis",
        ),
    ],
)
def test_explorable_refuses_a_declaration_that_cannot_be_drawn(changes, message):
    assert _figure().specification()["schema"] == explorables.SCHEMA
    with pytest.raises(ValueError, match=message):
        _figure(**changes)


@settings(max_examples=50, deadline=None)
@given(st.floats(-1e6, 1e6), st.integers(2, 6))
def test_rounding_keeps_significant_digits(value, digits):
    assert explorables.rounded(value, digits) == pytest.approx(value, rel=10.0 ** (1 - digits), abs=1e-300)


def test_footer_carries_its_data(curves):
    table = curves.summary()
    markup = captions.footer(fig_2a=table)._repr_html_()
    body = re.search(r'download="fig-2a.csv" href="data:text/csv;base64,([^"]*)"', markup).group(1)
    assert base64.b64decode(body).decode() == table.frame.to_csv(index=False, lineterminator="\n")
    assert "icl-core run ood-generalisation" in markup
    with pytest.raises(ValueError, match="tables must name at least one"):
        captions.footer()


def test_figures_draw(curves):
    import matplotlib as mpl

    mpl.use("agg")
    import matplotlib.pyplot as plt

    figures = [
        ood_rotation.figure(curves.summary(), curves.single(2)),
        ood_rotation.figure_shapes(curves.shapes()),
        ood_rotation.figure_overshoot(ood_rotation.overshoot(3, 0.05, [1.0, 10.0], d=5, draws=2)),
        ood_rotation.figure_in_span_shift(ood_rotation.in_span_shift(4, [0.1, 0.01], [0.0, 0.5])),
    ]
    for figure in figures:
        for ax in figure.axes:
            assert ax.get_xlabel()
        figure.canvas.draw()
    plt.close("all")


@pytest.mark.parametrize(
    ("chapter", "given", "message"),
    [
        ("ood-generalisation", {"K": 1}, "K must be an integer >= 2"),
        ("ood-generalisation", {"d": 3}, "d must be at least K = 4"),
        ("ood-generalisation", {"eps": 0.375}, r"eps must be a number in \(0, 0.375\)"),
        ("ood-generalisation", {"theta": "pi"}, "theta must be a number"),
        ("ood-generalisation", {"plane": [1, 9]}, "plane must be an integer in"),
        ("training", {"eps": 0.5}, r"eps must be a number in \(0, 0.375\)"),
        ("training", {"N": 7}, "N must be a multiple of K = 4"),
        ("model", {"N": 10}, "N must be a multiple of K = 4"),
        ("model", {"K": 9}, "d must be at least K = 9"),
        ("model", {"gamma": 1}, "has no parameter 'gamma'"),
    ],
)
def test_chapters_refuse_bad_parameters_before_any_work(chapter, given, message):
    from icl_core import chapters

    loaded = chapters.load(chapters.find_root() / "book" / f"{chapter}.md")
    for profile in chapters.PROFILES:
        chapters.check(loaded, chapters.values(loaded, profile))
    with pytest.raises(chapters.ChapterError, match=message):
        chapters.check(loaded, chapters.values(loaded, "book", given))

"""The BERT figures: tables from sweeps that resume, statistics by hand, pictures that say what they show."""

import math

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
import torch

from icl_core import results
from icl_core.claims import ood_language
from icl_core.experiments import bert

mpl.use("Agg")


@pytest.fixture(autouse=True)
def _here(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("ICL_CORE_CACHE", str(tmp_path_factory.getbasetemp() / "language-cache"))
    monkeypatch.delenv("ICL_CORE_DATA", raising=False)


@pytest.fixture(scope="module")
def mrpc_tables(tmp_path_factory):
    store = tmp_path_factory.mktemp("store") / "mrpc.jsonl"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ICL_CORE_CACHE", str(tmp_path_factory.mktemp("cache")))
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        made = bert.mrpc_tables(
            range(2),
            "tiny",
            bert.GENERATED,
            zero_start=1,
            limit=48,
            epochs=1,
            angles=5,
            rates=(1e-5, 1e-3),
            store=store,
        )
        torch.set_num_threads(threads)
    return made, store


def test_tables_come_back_from_the_store_without_running(mrpc_tables, monkeypatch):
    made, store = mrpc_tables

    def never(**_):
        raise AssertionError("a finished run was made again")

    never.__module__, never.__qualname__ = bert.mrpc_point.__module__, bert.mrpc_point.__qualname__
    monkeypatch.setattr(bert, "mrpc_point", never)
    again = bert.mrpc_tables(
        range(2), "tiny", bert.GENERATED, zero_start=1, limit=48, epochs=1, angles=5, rates=(1e-5, 1e-3), store=store
    )
    for name, table in made.items():
        pd.testing.assert_frame_equal(table.frame, again[name].frame)


def test_every_figure_says_that_its_text_was_generated(mrpc_tables, tmp_path):
    made, _ = mrpc_tables
    drawn = [
        bert.draw_selections(made["sweep"]),
        bert.draw_selections(made["sweep"], "accuracy"),
        bert.draw_overlap(made["runs"]),
        bert.draw_pairings(made["sweep"]),
        bert.draw_heads(made["sweep"]),
        bert.draw_forgetting(made["forgetting"]),
    ]
    for figure in drawn:
        title = figure.get_suptitle()
        assert "generated sentences, not a corpus" in title
        assert "tiny random BERT" in title
        assert "2 runs · cpu" in title
        mpl.pyplot.close(figure)
    path = results.write_table(tmp_path / "x", made["runs"])
    assert results.read_table(path).provenance["generated"] is True


def test_natural_tables_and_their_figures(tmp_path):
    made = bert.natural_tables([0], "tiny", bert.GENERATED, limit=32, epochs=1, store=tmp_path / "n.jsonl")
    drawn = [
        bert.draw_groups(made["error"], "loss", ["telephone", "snli"], embeddings=["pretrained-mean", "source-cls"]),
        bert.draw_groups(
            made["forgetting"], "forgetting", ["snli"], embeddings=["source-cls"], which_rate="matched", toward="alike"
        ),
        bert.draw_trade(made["trade"]),
    ]
    for figure in drawn:
        assert "generated" in figure.get_suptitle()
        mpl.pyplot.close(figure)
    assert set(made["trade"].frame["rule"]) == {"nearest", "farthest", "random", "sampled", "weighted"}


def test_no_runs_is_refused():
    with pytest.raises(ValueError, match="runs must hold at least one"):
        bert.mrpc_tables([], "tiny", bert.GENERATED)


def test_interval_is_the_t_interval():
    frame = pd.DataFrame({"run": [0, 1, 2, 0], "x": [0, 0, 0, 1], "y": [1.0, 2.0, 6.0, 5.0]})
    out = bert.interval(frame, ["x"], "y")
    # t with 2 degrees of freedom: 4.3027
    half = 4.302653 * math.sqrt(7.0) / math.sqrt(3.0)
    assert out["mean"].tolist() == [3.0, 5.0]
    assert out["high"][0] == pytest.approx(3.0 + half, rel=1e-6)
    assert math.isnan(out["low"][1])


def test_trends_are_rank_correlations_run_by_run():
    frame = pd.DataFrame(
        {"run": [0] * 4 + [1] * 4, "domain": "a", "group": [0, 1, 2, 3] * 2, "v": [1, 2, 4, 9, 9, 4, 2, 1]}
    )
    out = bert.trends(frame, "v")
    assert out["rho"].tolist() == [1.0, -1.0]
    assert out["range"].tolist() == [8, 8]
    assert bert.trends(frame, "v", 2)["range"].tolist() == [5.0, 5.0]


def test_a_trend_by_chance_is_what_random_orders_give():
    from scipy.stats import spearmanr

    from icl_core.language import natural_shift

    # Disjoint groups without smoothing are an iid sequence.
    draws = np.random.default_rng(1).standard_normal((4000, 9))
    plain = np.quantile([abs(spearmanr(range(9), row).statistic) for row in draws], 0.95)
    assert natural_shift.chance_trend(9, 1, 1) == pytest.approx(plain, abs=0.03)
    # Means over pairs in random order: two groups of 100 pairs that share half of them, then their average.
    pairs = np.random.default_rng(2).standard_normal((4000, 150))
    smooth = (pairs[:, :100].mean(1) + pairs[:, 50:].mean(1)) / 2
    assert smooth.std() * 10 == pytest.approx(natural_shift.smoothed_spread(2, 2), rel=0.05)


def test_losses_are_compared_at_equal_gain():
    rows = [
        {"domain": "a", "run": run, "rule": rule, "rate": rate, "target_gain": gain, "source_loss": loss}
        for run in (0, 1)
        for rule, points in (("nearest", [(1, 0.1), (2, 0.3)]), ("random", [(2, 0.4), (4, 1.2)]))
        for rate, (gain, loss) in enumerate(points)
    ]
    out = bert.loss_at_equal_gain(results.Table(pd.DataFrame(rows), {}, {}), "a", "random", "nearest")
    assert out["gain"].tolist() == [2, 2]
    assert out["loss"].tolist() == pytest.approx([0.4, 0.4])
    assert out["other_loss"].tolist() == pytest.approx([0.3, 0.3])


@pytest.mark.parametrize(
    ("values", "expected"),
    [([0, 3, 1, 4], "+-+"), ([4, 1, 3, 0], "-+-"), ([0, 0.4, 0], ""), ([0, 0.4, 0.8, 1.2], "+"), ([2, 1.7, 0], "-")],
)
def test_turns(values, expected):
    assert bert.turns(values, 1.0 if expected != "+-+" else 0.9) == expected


def _sweep(shape):
    theta = [math.pi * i / 8 for i in range(17)]
    rows = [
        {"run": run, "theta": t, "loss": shape(t) + 0.001 * run, "selection": s, "pairing": "rank"}
        for run in range(3)
        for t in theta
        for s in ("largest", "smallest")
    ]
    frame = pd.DataFrame(rows).assign(ranked_by="trained head", head_std=0.02)
    return results.Table(frame, {"model": "m", "data": "d", "runs": [0, 1, 2], "device": "cpu", "date": "today"})


@pytest.mark.parametrize(
    ("shape", "rises", "peaks"),
    [
        (lambda t: 1 - math.cos(t), True, False),
        (lambda t: math.sin(t) ** 2, False, True),
        (lambda t: 1 + math.cos(t), False, False),
    ],
)
def test_criteria_tell_the_two_patterns_apart(monkeypatch, shape, rises, peaks):
    monkeypatch.setattr(bert, "stored", lambda name: _sweep(shape))
    assert ood_language._monotone({"selection": "largest", "pairing": "rank"}, True).passed is rises
    assert ood_language._double_peak({"selection": "smallest", "pairing": "rank"}, True).passed is peaks


def _groups_table(slopes, wiggle):
    noise = np.random.default_rng(3).standard_normal((6, len(slopes), 15))
    rows = [
        {
            "run": run,
            "domain": name,
            "embedding": "pretrained-mean",
            "group": g,
            "loss": slope * g + wiggle * noise[run, i, g],
        }
        for run in range(6)
        for i, (name, slope) in enumerate(slopes.items())
        for g in range(15)
    ]
    about = {"model": "m", "data": "d", "runs": list(range(6)), "device": "cpu", "date": "today"}
    return results.Table(pd.DataFrame(rows), about, {})


@pytest.mark.parametrize(
    ("slopes", "wiggle", "rises", "flat"),
    [
        ({"government": 1, "telephone": 1, "slate": 1, "travel": 0.1}, 0.5, True, True),
        ({"government": 1, "telephone": 1, "slate": -1, "travel": 3}, 0.5, False, False),
        # A slope that is lost in the noise is not called a trend.
        ({"government": 0.01, "telephone": 0.01, "slate": 0.01, "travel": 0.01}, 1.0, False, None),
    ],
)
def test_criteria_for_genres(monkeypatch, slopes, wiggle, rises, flat):
    monkeypatch.setattr(bert, "stored", lambda name: _groups_table(slopes, wiggle))
    assert ood_language._group_trend(ood_language.FIG_4A, True).passed is rises
    assert ood_language._flat(ood_language.FIG_4A, True).passed is flat


@pytest.mark.parametrize(("shape", "answer"), [(lambda x: 0.0, False), (lambda x: math.cos(3 * math.pi * x), None)])
def test_a_pattern_that_chance_shows_as_often_stays_undecided(monkeypatch, shape, answer):
    rows = [
        {"run": run, "domain": "snli", "embedding": "pretrained-mean", "group": g, "loss": shape(g / 53)}
        for run in range(6)
        for g in range(54)
    ]
    rows += [
        {"run": run, "domain": "snli", "embedding": "random groups", "group": g, "loss": 0.05 * (-1) ** g}
        for run in range(6)
        for g in range(8)
    ]
    about = {"model": "m", "data": "d", "runs": list(range(6)), "device": "cpu", "date": "today"}
    monkeypatch.setattr(bert, "stored", lambda name: results.Table(pd.DataFrame(rows), about, {}))
    assert ood_language._pattern(ood_language.FIG_4B, True).passed is answer


@pytest.mark.parametrize(("cost", "better"), [(0.1, True), (0.3, False), (0.2, None)])
def test_criterion_for_chosen_pairs(monkeypatch, cost, better):
    rows = [
        {
            "domain": "snli", "run": run, "rule": rule, "rate": 1.0, "target_gain": 1.0,
            "source_loss": (cost if rule == "nearest" else 0.2) + 0.01 * (-1) ** run * (rule == "nearest"),
        }
        for run in range(6)
        for rule in ("nearest", "random")
    ]  # fmt: skip
    about = {"model": "m", "data": "d", "runs": list(range(6)), "device": "cpu", "date": "today"}
    monkeypatch.setattr(bert, "stored", lambda name: results.Table(pd.DataFrame(rows), about, {}))
    assert ood_language._trade(("snli", "nearest", "random"), True).passed is better


def test_cost_estimates_are_near_those_known_for_bert_base():
    mrpc = bert.cost_mrpc(**bert.BERT_BASE, runs=1)
    assert mrpc["training"] == pytest.approx(0.30, rel=0.1)
    natural = bert.cost_natural(**bert.BERT_BASE)
    assert natural["training"] == pytest.approx(15.6, rel=0.1)
    assert natural["features and losses"] == pytest.approx(19, rel=0.15)

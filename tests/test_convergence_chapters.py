"""Chapters on balanced features, four phases and orders: parameters refused, ledger covered, tables right."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from icl_core import chapters, mean_field, results
from icl_core.claims import register
from icl_core.experiments import convergence_phases, explorables
from icl_core.theory import phases

BOOK = Path(__file__).resolve().parent.parent / "book"
NAMES = ("balanced", "phases", "orders")


@pytest.mark.parametrize(
    ("name", "parameter", "value"),
    [
        ("balanced", "K", 1),
        ("balanced", "eps", 0.6),
        ("balanced", "K_small", 9),
        ("balanced", "sizes", [5]),
        ("phases", "K", 1),
        ("phases", "p1", 1.0),
        ("phases", "p1", 1e-7),
        ("phases", "eps", 1.0),
        ("phases", "eps", 0),
        ("phases", "p1_in_figure", [0.1, 0.5]),
        ("orders", "check_p1", 0.4),
        ("orders", "at_p1", [0.001]),
        ("orders", "at_K", []),
        ("orders", "recompute", "maybe"),
    ],
)
def test_a_bad_parameter_is_named(name, parameter, value):
    chapter = chapters.load(BOOK / f"{name}.md")
    chosen = chapters.values(chapter, "book", {parameter: value})
    with pytest.raises(chapters.ChapterError, match=rf"{parameter}\S* must "):
        chapters.check(chapter, chosen)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("profile", chapters.PROFILES)
def test_every_profile_is_allowed(name, profile):
    chapter = chapters.load(BOOK / f"{name}.md")
    chapters.check(chapter, chapters.values(chapter, profile))


@pytest.mark.parametrize("name", NAMES)
def test_every_claim_of_the_chapter_is_shown(name):
    text = (BOOK / f"{name}.md").read_text(encoding="utf-8")
    shown = set(re.findall(r"\{claim\} (conv\.\S+)", text)) | set(re.findall(r"\{verdict\}`(conv\.[^`]+)`", text))
    owned = {i for i, claim in register.claims().items() if i.startswith("conv.") and claim.chapter == name}
    assert owned, "the ledger has claims of this chapter"
    assert owned <= shown


def test_fits_find_a_power_and_a_logarithm():
    log_K = np.arange(20, 301, 20) * math.log(2)
    rows = [
        {"quantity": name, "p1": 0.5, "range": "large", "log2_K": x / math.log(2), "log_value": y}
        for name, values in (("T2", 2 * log_K + 0.7), ("T1", 1.98 * log_K + np.log(log_K)))
        for x, y in zip(log_K, values, strict=True)
    ]
    found = convergence_phases.fits(results.Table(pd.DataFrame(rows), {})).frame.set_index("quantity")
    assert found.loc["T2", "power"] == pytest.approx(2, abs=1e-9)
    assert found.loc["T2", "log_power"] == pytest.approx(0, abs=1e-6)
    assert found.loc["T1", "log_power"] == pytest.approx(1, abs=1e-6)
    assert found.loc["T2", "constant"] == pytest.approx(0.7)


def test_too_few_sizes_are_refused():
    with pytest.raises(ValueError, match="small must hold at least 5 sizes, got 2"):
        convergence_phases.sizes_table((0.5,), small=(3, 4))


def test_stored_tables_are_what_the_code_computes():
    stored = results.read_table(BOOK / "results" / "orders-sizes").frame
    one = stored[(stored.p1 == 0.8) & (stored.log2_K == 40) & (stored.quantity == "T2")].log_value.item()
    assert one == pytest.approx(phases.report(log2_K=40, p1=0.8, eps=0.01).log_times["T2"], abs=1e-7)
    drift = results.read_table(BOOK / "results" / "orders-drift").frame
    again = convergence_phases.drift((0.8,), (40,)).frame.iloc[0]
    kept = drift[(drift.p1 == 0.8) & (drift.log2_K == 40)].iloc[0]
    assert abs(again.A - kept.A) < 1e-7
    assert abs(again.B1 - kept.B1) < 1e-7
    needed = results.read_table(BOOK / "results" / "orders-thresholds").frame
    lower = needed[(needed.p1 == 0.8) & (needed.window == "A(T2) >= 0.5 log K")].log2_K.item()
    above, below = (phases.window_margin("A(T2) >= 0.5 log K", x * math.log(2), 0.8) for x in (lower + 2, lower - 2))
    assert above > 0 > below


def test_scores_drift_to_their_leading_order():
    frame = convergence_phases.drift((0.2, 0.8), (2, 300)).frame
    # Sizes below 1/p1 are no such problem.
    assert set(zip(frame.p1, frame.log2_K, strict=True)) == {(0.2, 300), (0.8, 2), (0.8, 300)}
    large = frame[frame.log2_K == 300]
    assert np.allclose(large.B1, large.B1_leading, atol=1e-6)
    assert np.allclose(frame.A - frame.B1, 1.01)


def test_shares_cover_the_time_to_the_end():
    frame = convergence_phases.shares([(100, 0.8), (1e6, 0.2)]).frame
    assert np.allclose(frame[["I", "II", "III", "IV"]].sum(axis=1), 100, rtol=1e-4)
    # Below p1 = sqrt(2) - 1 the target takes off before phase I has ended.
    assert frame.II[1] == 0
    assert math.isnan(frame.A_T1[1])
    assert frame.B1_T2[0] < -0.51
    assert frame.B1_T2[1] > -0.49


def test_paths_collapse_on_the_limiting_curve():
    frame = convergence_phases.collapse((10, 40), 0.6, points=40).frame
    late = frame[frame.A > 0.5]
    distance = (late.moved - late.curve).abs().groupby(late.log2_K).max()
    assert distance[40] < 1e-4 < distance[10]


def test_balanced_times_lose_their_logarithms():
    frame = convergence_phases.balanced_times((4, 30), (0.01,)).frame.set_index("log2_K")
    assert frame.time[30] / frame.leading[30] == pytest.approx(1, abs=1e-5)
    assert frame.bound[30] / frame.leading[30] > 20


def test_figures_of_the_chapters():
    import matplotlib.pyplot as plt

    drift = results.read_table(BOOK / "results" / "orders-drift")
    assert len(convergence_phases.figure_drift(drift).axes[0].lines) == drift.frame.p1.nunique()
    sizes = results.read_table(BOOK / "results" / "orders-sizes")
    assert len(convergence_phases.figure_slopes(sizes, ("T1", "T2", "T3-T2")).axes) == 3
    with pytest.raises(ValueError, match="quantities must be one of"):
        convergence_phases.figure_slopes(sizes, ("T9",))
    plt.close("all")


def test_the_explorable_holds_the_trajectory():
    figure = convergence_phases.explorable((6, 1000), (0.3, 0.6), (0.1, 0.01), points=20)
    path, clock = phases.run(math.log(1000), 0.6, 0.01)
    gap = np.array(figure.tables["x"].values[1][1][1])
    # Four digits of a clock up to 15 are good to 0.005, and log Attn_k moves at most as fast as the clock.
    assert np.allclose(np.exp(path.rates(gap).target), figure.tables["target"].values[1][1], rtol=6e-3)
    assert np.allclose(path.log_time(gap) / math.log(10), figure.tables["x"].values[0][1][1], atol=2e-3)
    bands = np.array(figure.tables["bands"].values[1][1][1][1])
    assert np.allclose(bands[:, 1], [clock[f"T{i}"] for i in range(1, 5)], rtol=1e-3)
    total = sum(figure.tables[name].values[1][1][1] for name in ("I", "II", "III", "IV"))
    assert total == pytest.approx(100, abs=2)
    with pytest.raises(ValueError, match=r"p1\[0\] must be a number in"):
        convergence_phases.explorable((6,), (0.1,))


def test_bands_need_their_table():
    curve = explorables.Lines("t", "c", "x", "y", (explorables.Series("s", "v"),), bands="b")
    control = explorables.Control("c", "C", (0, 1))
    with pytest.raises(ValueError, match="tables must hold 'b'"):
        explorables.Explorable("n", "t", (control,), (curve,), {"v": explorables.Lookup((), [1, 2])})


def test_phases_end_in_order():
    assert convergence_phases.phase_ends({"T1": 9.0, "T2": 4.0, "T3": 6.0, "T4": 8.0}) == [4.0, 4.0, 6.0, 8.0]
    assert convergence_phases.phase_ends({"T1": math.nan, "T2": 4.0, "T3": 6.0, "T4": 8.0})[0] == 4.0


def test_the_state_of_the_balanced_case_is_one_number():
    # An under-represented query with p1 = 1/K is the balanced one: the two reductions have to agree.
    K = 12
    under = mean_field.descend(K, 1 / K, 1.0, 400)
    alike = mean_field.descend(K, 1 / K, 1.0, 400, query="dominant")
    assert np.allclose(under.A, alike.A, rtol=1e-10)
    assert np.allclose(under.B1, -under.A / (K - 1), rtol=1e-9)

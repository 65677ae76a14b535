"""Records of the OOD paper's experiments with BERT: Figures 3 and 4, section 6.3's suggestion, Appendix C."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from icl_core.claims.record import Check, Claim, Evidence
from icl_core.experiments import bert
from icl_core.language import data, natural_shift
from icl_core.results import Table
from icl_core.theory import forgetting

# Below this rank correlation with the shift, averaged over the runs, nobody would call a curve rising.
CLEAR = 0.5
# A pattern says nothing if pairs in random order show it more often than this.
CHANCE = 0.05
# A dip counts if it takes back this share of the curve's range.
DIP = 0.05
SUBSTITUTE = (
    "The paper's model, BERT-base, was not available: the checks ran on all-MiniLM-L6-v2 (6 layers, d = 384), whose "
    "card "
    "lists SNLI and MultiNLI among its training data."
)


def _from(name: str, judge: Callable[[Table], Evidence]) -> Evidence:
    try:
        table = bert.stored(name)
    except FileNotFoundError as error:
        return Evidence(None, "trend", 0, "no stored table", detail=str(error).rsplit("/", 1)[-1] + " is not there")
    return judge(table)


def _none(table: Table) -> Evidence:
    return Evidence(None, "trend", 0, _region(table), detail="fewer than two such runs among the stored ones")


def _region(table: Table, extra: str = "") -> str:
    return bert.subject(table) + (f"; {extra}" if extra else "")


def _over_runs(by_run: pd.Series) -> tuple[float, float, float]:
    """Mean and 95 % interval over the runs."""
    stats = bert.interval(by_run.rename("d").reset_index().assign(all=0), ["all"], "d").iloc[0]
    return float(stats["mean"]), float(stats["low"]), float(stats["high"])


# Figure 3 -------------------------------------------------------------------------------------------------------------


def _curve(
    table: Table, selection: str, pairing: str, ranked_by: str = "trained head", std: float | None = None
) -> pd.DataFrame:
    frame = bert.at_start(table, std)
    keep = (frame["selection"] == selection) & (frame["pairing"] == pairing) & (frame["ranked_by"] == "trained head")
    return frame[keep].pivot_table(index="theta", columns="run", values="loss")


def _difference(curve: pd.DataFrame, first: float, second: float) -> tuple[float, float, float]:
    """Mean and 95 % interval over the runs of the loss at one angle less that at another."""
    at = [curve.iloc[int(np.abs(curve.index.to_numpy() - theta).argmin())] for theta in (first, second)]
    return _over_runs(at[0] - at[1])


def _monotone(subject: Mapping[str, Any], fast: bool) -> Evidence:
    def judge(table: Table) -> Evidence:
        curve = _curve(table, **subject)
        if curve.shape[1] < 2:
            return _none(table)
        curve = curve[curve.index <= math.pi + 1e-6]
        mean = curve.mean(axis=1).to_numpy()
        back = float((np.maximum.accumulate(mean) - mean).max()) / float(np.ptp(mean))
        rise, low, _ = _difference(curve, math.pi, 0.0)
        passed = back < DIP and low > 0
        detail = (
            f"the loss rises by {rise:.3f} nats from 0 to pi (95 % interval from {low:.3f}); the mean curve takes "
            f"back at most "
            f"{back:.1%} of its range on the way"
        )
        return Evidence(
            passed, "monte-carlo", curve.size, _region(table, "theta in [0, pi]"), margin=DIP - back, tolerance=DIP,
            tolerance_source="share of the range that a dip must take back", dtype="float32", detail=detail,
        )  # fmt: skip

    return _from("mrpc-sweep", judge)


def _double_peak(subject: Mapping[str, Any], fast: bool) -> Evidence:
    def judge(table: Table) -> Evidence:
        curve = _curve(table, **subject)
        if curve.shape[1] < 2:
            return _none(table)
        mean = curve.mean(axis=1)
        half = mean[mean.index <= math.pi + 1e-6]
        peak = float(half.idxmax())
        fall, low, high = _difference(curve, peak, math.pi)
        # A peak stands above both of its ends.
        share = min(fall, float(half.max() - half.iloc[0])) / float(np.ptp(half.to_numpy()))
        passed = share >= DIP and (math.isnan(low) or low > 0)
        detail = (
            f"on [0, pi] the mean loss is largest at {peak / math.pi:.2f} pi, {fall:.4f} nats above that at pi "
            f"(95 % interval {low:.4f} to {high:.4f}), and the peak stands out by {share:.1%} of the range"
        )
        return Evidence(
            passed, "monte-carlo", curve.size, _region(table, "theta in [0, 2 pi]"), margin=share - DIP, tolerance=DIP,
            tolerance_source="share of the range that a dip must take back", dtype="float32", detail=detail,
        )  # fmt: skip

    return _from("mrpc-sweep", judge)


def _chosen(subject: str, fast: bool) -> Evidence:
    """Whether what the head learned decides the dimensions: overlap with those at the start well below one."""

    def judge(table: Table) -> Evidence:
        frame = bert.at_start(table)
        values = frame[f"overlap_{subject}"]
        change = float(frame["gap_change_rms"].mean() / frame["gap_rms_start"].mean())
        detail = (
            f"of the third of the dimensions chosen after training, {values.mean():.0%} (least {values.min():.0%}) "
            "was chosen by the untrained head as well; chance is a third. Training changes |W0 - W1| by "
            f"{change:.0%} of its size"
        )
        return Evidence(
            bool(values.mean() < 2 / 3), "monte-carlo", len(values), _region(table),
            margin=2 / 3 - float(values.mean()),
            tolerance=2 / 3, tolerance_source="midway between chance and all", dtype="float32", detail=detail,
        )  # fmt: skip

    return _from("mrpc-runs", judge)


def _forgets(subject: float, fast: bool) -> Evidence:
    def judge(table: Table) -> Evidence:
        curve = _forgetting_curve(table, subject)
        stats = _mean_at(curve, math.pi)
        passed = None if stats[1] < 0 < stats[2] else stats[0] > 0
        detail = (
            f"at pi it is {stats[0]:.5f} nats, 95 % interval {stats[1]:.5f} to {stats[2]:.5f}; learning rate "
            f"{subject:g}"
        )
        return Evidence(
            passed, "monte-carlo", curve.size, _region(table), margin=stats[1], dtype="float32", detail=detail
        )

    return _from("mrpc-forgetting", judge)


def _forgetting_curve(table: Table, rate: float) -> pd.DataFrame:
    frame = bert.at_start(table)
    return frame[np.isclose(frame["rate"], rate)].pivot_table(index="theta", columns="run", values="forgetting")


def _mean_at(curve: pd.DataFrame, theta: float) -> tuple[float, float, float]:
    return _over_runs(curve.iloc[int(np.abs(curve.index.to_numpy() - theta).argmin())])


def _least_near_right_angle(subject: float, fast: bool) -> Evidence:
    def judge(table: Table) -> Evidence:
        curve = _forgetting_curve(table, subject)
        least = float(curve.mean(axis=1).idxmin())
        ends = [_difference(curve, theta, math.pi / 2) for theta in (math.pi, 0.0)]
        near = math.pi / 3 - 1e-6 <= least <= 2 * math.pi / 3 + 1e-6
        passed: bool | None = None
        if all(low > 0 for _, low, _ in ends):
            passed = near
        elif any(high < 0 for _, _, high in ends):
            passed = False
        rise = [f"{mean:+.5f} nats ({low:+.5f} to {high:+.5f})" for mean, low, high in ends]
        detail = (
            f"from pi/2 forgetting changes by {rise[0]} to pi and by {rise[1]} to 0 (95 % intervals over the runs); "
            f"the mean curve is least at {least / math.pi:.2f} pi; learning rate {subject:g}"
        )
        return Evidence(
            passed, "monte-carlo", curve.size, _region(table), margin=min(low for _, low, _ in ends), dtype="float32",
            detail=detail,
        )  # fmt: skip

    return _from("mrpc-forgetting", judge)


# Figure 4 -------------------------------------------------------------------------------------------------------------


def _group_trend(subject: Mapping[str, Any], fast: bool) -> Evidence:
    """Rank correlation of the smoothed mean curve with the shift, for domains that should rise.

    Yes if each is beyond what pairs in random order give one time in twenty, and the runs' own correlations have a mean
    above zero; no if some is below ``CLEAR``.
    """

    def judge(table: Table) -> Evidence:
        frame = _groups(table, subject)
        value, domains = subject["value"], list(subject["domains"])
        curve = bert.mean_curve(frame, value)
        found = bert.trends(curve, value, subject["window"]).set_index("domain")
        wanted = found.loc[domains]
        by_run = bert.trends(frame, value, subject["window"])
        low = min(_over_runs(by_run[by_run["domain"] == name].set_index("run")["rho"])[1] for name in domains)
        passed: bool | None = None
        if (wanted["rho"] < CLEAR).any():
            passed = False
        elif (wanted["rho"] > wanted["chance"]).all() and not low <= 0:
            passed = True
        level = curve[curve["domain"].isin(domains)][value]
        detail = (
            "rank correlation of the runs' mean with the shift: "
            + ", ".join(f"{name} {rho:+.2f}" for name, rho in found["rho"].items())
            + f"; pairs in random order exceed {wanted['chance'].max():.2f} one time in twenty; "
            + f"{value} of a group, mean over the runs: {level.min():.4f} to {level.max():.4f}"
        )
        return Evidence(
            passed, "monte-carlo", len(frame), _region(table, subject["embedding"]),
            margin=float((wanted["rho"] - wanted["chance"]).min()), tolerance=CLEAR,
            tolerance_source="least rank correlation called a trend, and that of pairs in random order",
            dtype="float32", detail=detail,
        )  # fmt: skip

    return _from(subject["table"], judge)


def _groups(table: Table, subject: Mapping[str, Any]) -> pd.DataFrame:
    frame = table.frame[table.frame["embedding"] == subject["embedding"]]
    if "which_rate" in subject:
        frame = frame[frame["which_rate"] == subject["which_rate"]]
    return frame[frame["domain"].isin([*subject["domains"], *subject.get("flat", ())])]


def _flat(subject: Mapping[str, Any], fast: bool) -> Evidence:
    """The range of the smoothed curve of ``flat`` is below that of each other domain, over the runs."""

    def judge(table: Table) -> Evidence:
        frame = _groups(table, subject)
        found = bert.trends(frame, subject["value"], subject["window"])
        wide = found.pivot_table(index="run", columns="domain", values="range")
        (name,) = subject["flat"]
        apart = {other: _over_runs(wide[other] - wide[name]) for other in subject["domains"]}
        passed: bool | None = None
        if all(mean > 0 and not low <= 0 for mean, low, _ in apart.values()):
            passed = True
        elif any(mean < 0 and not high >= 0 for mean, _, high in apart.values()):
            passed = False
        detail = (
            "largest less smallest group, mean over the runs: "
            + ", ".join(f"{domain} {width:.4f}" for domain, width in wide.mean().items())
            + f"; less {name}'s, 95 % intervals: "
            + ", ".join(f"{other} {low:+.4f} to {high:+.4f}" for other, (_, low, high) in apart.items())
        )
        return Evidence(
            passed, "monte-carlo", len(frame), _region(table, subject["embedding"]),
            margin=min(low for _, low, _ in apart.values()), dtype="float32", detail=detail,
        )  # fmt: skip

    return _from(subject["table"], judge)


def _pattern(subject: Mapping[str, Any], fast: bool) -> Evidence:
    """Direction changes of the smoothed mean curve that stand out of what random groups do.

    Undecided if they are as wanted, but pairs in random order give the same more than one time in twenty.
    """

    def judge(table: Table) -> Evidence:
        frame = _groups(table, subject)
        value, window, (domain,) = subject["value"], subject["window"], subject["domains"]
        mean = bert.mean_curve(frame, value).sort_values("group")[value].tolist()
        smooth = natural_shift.moving_average(mean, window)
        chance = table.frame[(table.frame["embedding"] == "random groups") & (table.frame["domain"] == domain)]
        noise = 2 * bert.chance_spread(chance, value, domain, window)
        found = bert.turns(smooth, noise)
        random = natural_shift.chance_curves(len(mean), bert.overlap_of(value, domain), window)
        share = float(np.mean([bert.turns(curve, 2.0) == subject["pattern"] for curve in random.tolist()]))
        names = {"-": "falls", "+": "rises"}
        detail = (
            f"from low to high shift the smoothed curve {', '.join(names[c] for c in found) or 'does not move'} by "
            f"more than {noise:.4f}, twice the spread of random groups; it goes from {smooth[0]:.3f} to "
            f"{smooth[-1]:.3f}, between {min(smooth):.3f} and {max(smooth):.3f}. Pairs in random order show the "
            f"paper's pattern {share:.0%} of the time"
        )
        passed = None if found == subject["pattern"] and share > CHANCE else found == subject["pattern"]
        return Evidence(
            passed, "monte-carlo", len(frame), _region(table, subject["embedding"]), tolerance=noise,
            tolerance_source="2 sd of random groups, smoothed", dtype="float32", detail=detail,
        )  # fmt: skip

    return _from(subject["table"], judge)


RISING = ("government", "telephone", "slate")
FIG_4A = {
    "table": "natural-error",
    "value": "loss",
    "embedding": "pretrained-mean",
    "domains": RISING,
    "flat": ("travel",),
    "window": 2,
}
FIG_4B = {
    "table": "natural-error",
    "value": "loss",
    "embedding": "pretrained-mean",
    "domains": ("snli",),
    "window": 5,
    "pattern": "-+-",
}
FIG_4C = {
    "table": "natural-forgetting", "value": "forgetting", "embedding": "pretrained-mean", "which_rate": "printed",
    "domains": ("snli",), "window": 5,
}  # fmt: skip
FIG_4D = {**FIG_4C, "domains": RISING, "flat": ("travel",), "window": 2}
OTHER = {"embedding": "source-cls"}
MATCHED = {"which_rate": "matched"}


# What the one-layer theory says ---------------------------------------------------------------------------------------

EPS = (1e-4, 1e-3, 1e-2)
STEPS = 401


def _total(gamma: np.ndarray, eps: float) -> np.ndarray:
    """Total forgetting of two features with gamma_1 = 1, exactly along the gradient flow."""
    return np.asarray(forgetting.two_features(1.0, gamma, eps).forgetting.sum(-1))


def _direction(subject: tuple[float, float, int, Sequence[float]], fast: bool) -> Evidence:
    """Total forgetting moves in one direction (+1 up, -1 down) as gamma_2 grows over an interval."""
    start, stop, sign, targets = subject
    gamma = np.linspace(start, stop, STEPS)
    worst, where = math.inf, (0.0, 0.0)
    for eps in targets:
        steps = sign * np.diff(_total(gamma, eps))
        scale = float(np.abs(_total(np.linspace(-1, 1, STEPS), eps)).max())
        if float(steps.min()) / scale < worst:
            worst, where = float(steps.min()) / scale, (eps, float(gamma[int(steps.argmin())]))
    return Evidence(
        worst > 0, "swept", STEPS * len(targets), f"gamma_1 = 1, gamma_2 in [{start:g}, {stop:g}], eps in "
        f"{list(targets)}", margin=worst,
        tolerance=0.0, tolerance_source="exact flow solution; steps relative to the largest forgetting",
        detail=f"smallest step in the claimed direction {worst:.2e}, at eps = {where[0]:g}, gamma_2 = {where[1]:.3f}",
    )  # fmt: skip


def _compare(subject: tuple[float, float, float], fast: bool) -> Evidence:
    """Total forgetting at one gamma_2 exceeds that at another."""
    more, less, eps = subject
    a, b = (float(_total(np.asarray([g]), eps)[0]) for g in (more, less))
    return Evidence(
        a > b, "exact", 1, f"gamma_1 = 1, eps = {eps:g}", margin=a - b, tolerance=0.0, tolerance_source="a sign",
        detail=f"total forgetting is {a:.6f} at gamma_2 = {more:g} and {b:.6f} at gamma_2 = {less:g}",
    )  # fmt: skip


def _positive(subject: tuple[float, float, Sequence[float]], fast: bool) -> Evidence:
    """Total forgetting is positive on an open interval of gamma_2 above -1."""
    start, stop, targets = subject
    gamma = np.linspace(start, stop, STEPS)[1:]
    whole = np.linspace(-1, 1, STEPS)
    totals = [_total(whole, eps) for eps in targets]
    low = min(float((_total(gamma, eps) / np.abs(t).max()).min()) for eps, t in zip(targets, totals, strict=True))
    least = [float(whole[t.argmin()]) for t in totals]
    return Evidence(
        low > 0, "swept", len(gamma) * len(targets), f"gamma_1 = 1, gamma_2 in ({start:g}, {stop:g}], eps in "
        f"{list(targets)}", margin=low,
        tolerance=0.0, tolerance_source="a sign", detail=f"least total forgetting {low:.2e} of its largest size; over "
        f"all of [-1, 1] it is least at gamma_2 = {min(least):.3f} to {max(least):.3f}",
    )  # fmt: skip


# Section 6.3's suggestion ---------------------------------------------------------------------------------------------


def _trade(subject: tuple[str, str, str], fast: bool) -> Evidence:
    """At equal gain on the target, a rule loses less on the source than another, over the runs."""
    domain, rule, than = subject

    def judge(table: Table) -> Evidence:
        found = bert.loss_at_equal_gain(table, domain, rule, than).set_index("run")
        mean, low, high = _over_runs(found["loss"] - found["other_loss"])
        passed: bool | None = None
        if high < 0:
            passed = True
        elif low > 0:
            passed = False
        detail = (
            f"at a gain of {found['gain'].mean():.4f} nats on the target, {rule} changes the source's cross-entropy "
            f"by {found['loss'].mean():+.4f} and {than} by {found['other_loss'].mean():+.4f}, mean over the runs; "
            f"they differ by {mean:+.4f} (95 % interval {low:+.4f} to {high:+.4f})"
        )
        return Evidence(
            passed, "monte-carlo", len(found), _region(table, domain), margin=-high, dtype="float32", detail=detail
        )

    return _from("natural-trade", judge)


# Appendix C -----------------------------------------------------------------------------------------------------------


def _counts(subject: Mapping[str, int], fast: bool) -> Evidence:
    try:
        found = {name: len(pairs) for name, pairs in data.mrpc(counts=False).items()}
        region = "MRPC files as GLUE serves them"
    except FileNotFoundError:
        try:
            noted = bert.stored("mrpc-runs").provenance["pairs"]
        except FileNotFoundError:
            return Evidence(None, "exact", 0, "no MRPC files", detail="neither MRPC nor the stored counts are there")
        found = {name: entry["count"] for name, entry in noted.items()}
        region = "counts stored with the runs on MRPC"
    wrong = {name: (count, subject[name]) for name, count in found.items() if count != subject[name]}
    return Evidence(
        not wrong, "exact", len(found), region, residual=float(sum(abs(a - b) for a, b in wrong.values())),
        tolerance=0.0,
        tolerance_source="counts", dtype="int", detail=", ".join(f"{name} {count:,}" for name, count in found.items()),
    )  # fmt: skip


def _shares(subject: Mapping[str, float], fast: bool) -> Evidence:
    """The numbers of section 6.2 and Appendix C agree with one another: 256 of 768 is a third, six of twelve a half."""
    pairs = (
        (subject["turned"], subject["width"] / 3),
        (subject["forgetting"], subject["width"] / 2),
        (subject["trained"], subject["depth"] / 2),
    )
    gap = max(abs(a - b) for a, b in pairs)
    return Evidence(
        gap == 0,
        "exact",
        len(pairs),
        "the printed numbers",
        residual=gap,
        tolerance=0.0,
        tolerance_source="integers",
        dtype="int",
    )


CLAIMS = (
    Claim(
        "ood.fig-3a", "Figure 3(a)", "figure", "OOD loss of BERT, largest |W0 − W1| turned",
        "On MRPC, with the third of the dimensions with the largest $|W_0-W_1|$ turned by $\\theta$ before the last "
        "layer, the "
        "validation loss grows with $\\theta$ from 0 to $\\pi$: the pattern of Fig. 5(a).",
        (
            Check("the loss rises from 0 to pi", _monotone, {"selection": "largest", "pairing": "rank"}, "criterion"),
            *(
                Check(f"paired by {pairing}", _monotone, {"selection": "largest", "pairing": pairing}, "reading")
                for pairing in ("index", "shuffled", "folded")
            ),
            Check("random dimensions instead", _monotone, {"selection": "random", "pairing": "rank"}, "reading"),
            Check("a head that starts at zero", _monotone, {"selection": "largest", "pairing": "rank", "std": 0.0},
            "reading"),
            Check("training decides which dimensions", _chosen, "largest", "reading"),
        ),
        chapter="bert-rotation", unchecked=SUBSTITUTE,
        note="The text does not say which panel is which scenario, how the dimensions are paired, or the range of "
        "theta. We take panel (a) for the "
        "largest |W0 − W1| and Scenario 1, pair neighbours in the order of |W0 − W1|, and cover [0, 2 pi].",
    ),
    Claim(
        "ood.fig-3b", "Figure 3(b)", "figure", "OOD loss of BERT, smallest |W0 − W1| turned",
        "With the third of the dimensions with the smallest $|W_0-W_1|$ turned, the validation loss has the double "
        "peak of Fig. 5(b): it rises to "
        "about $\\pi/2$, falls to $\\pi$, and again on $[\\pi,2\\pi]$. The two selections behave differently.",
        (
            Check("the loss falls again before pi", _double_peak, {"selection": "smallest", "pairing": "rank"},
            "criterion"),
            *(
                Check(f"paired by {pairing}", _double_peak, {"selection": "smallest", "pairing": pairing}, "reading")
                for pairing in ("index", "shuffled", "folded")
            ),
            Check("random dimensions instead", _double_peak, {"selection": "random", "pairing": "rank"}, "reading"),
            Check("a head that starts at zero", _double_peak, {"selection": "smallest", "pairing": "rank", "std": 0.0},
            "reading"),
            Check("training decides which dimensions", _chosen, "smallest", "reading"),
        ),
        chapter="bert-rotation", unchecked=SUBSTITUTE,
    ),
    Claim(
        "ood.fig-3c", "Figure 3(c)", "figure", "Forgetting of BERT against the angle",
        "With a random half of the dimensions turned and only the last layer fine-tuned, forgetting on the source is "
        "positive near "
        "$\\theta=\\pi$ and least around $\\pi/2$, where it may be negative (10 runs).",
        (
            Check("positive near pi", _forgets, 1e-5, "criterion"),
            Check("least around pi/2", _least_near_right_angle, 1e-5, "criterion"),
            Check("positive near pi, ten times the rate", _forgets, 1e-4, "reading"),
            Check("least around pi/2, ten times the rate", _least_near_right_angle, 1e-4, "reading"),
        ),
        chapter="bert-rotation", unchecked=SUBSTITUTE,
    ),
    Claim(
        "ood.fig-3c.theory", "Section 6.2, on Figure 3(c)", "text", "Positive forgetting near pi, as the theory "
        "predicts",
        "For two features with $\\gamma_1=1$ and $\\gamma_2=\\cos\\theta$, the total forgetting is positive as "
        "$\\theta\\to\\pi$.",
        (
            Check("positive next to -1", _positive, (-1.0, -0.6, (1e-3, 1e-2, 0.1)),
            mutants={"below zero instead": (0.0, 0.4, (1e-3,))}),
            Check("negative at eps = 0.1", _compare, (-1.0, -0.9, 0.1), "counterexample"),
            Check(
                "positive for small eps", _positive, (-1.0, -0.6, EPS), "conditional",
                mutants={"eps = 0.1 as well": (-1.0, -0.6, (*EPS, 0.1)), "up to gamma_2 = 0": (-1.0, 0.0, EPS)},
            ),
        ),
        added_hypothesis="eps at most 0.01 (the sign next to gamma = (1, -1) changes at a critical eps)",
        why="At eps = 0.1 the total forgetting is negative for gamma_2 just above -1.",
        hypotheses=("two features", "gradient flow", "gamma_1 = 1"), chapter="bert-rotation",
        note="At gamma_2 = -1 itself the total forgetting is zero, and it is not least at theta = pi/2 but at a positive "
        "gamma_2, which the checks give.",
    ),
    Claim(
        "ood.fig-4a", "Figure 4(a)", "figure", "OOD error on the other genres",
        "With groups in order of decreasing cosine to the fiction centre, the OOD error rises for government, "
        "telephone and slate, and stays in a "
        "narrow range for travel.",
        (
            Check("three genres rise", _group_trend, FIG_4A, "criterion"),
            Check("travel has the smallest range", _flat, FIG_4A, "criterion"),
            Check("three genres rise, source [CLS] embedding", _group_trend, FIG_4A | OTHER, "reading"),
            Check("travel, source [CLS] embedding", _flat, FIG_4A | OTHER, "reading"),
            Check("error rate instead of cross-entropy", _group_trend, FIG_4A | {"value": "error"}, "reading"),
        ),
        chapter="natural-shift", unchecked=SUBSTITUTE + " It trained on a sample of the fiction pairs.",
    ),
    Claim(
        "ood.fig-4b", "Figure 4(b)", "figure", "OOD error on SNLI",
        "On SNLI the OOD error falls, rises and falls as the cosine to the fiction centre decreases.",
        (
            Check("falls, rises, falls", _pattern, FIG_4B, "criterion"),
            Check("source [CLS] embedding", _pattern, FIG_4B | OTHER, "reading"),
            Check("error rate instead of cross-entropy", _pattern, FIG_4B | {"value": "error"}, "reading"),
        ),
        chapter="natural-shift", unchecked=SUBSTITUTE + " SNLI here is taken from its development and test sets.",
    ),
    Claim(
        "ood.fig-4c", "Figure 4(c)", "figure", "Forgetting after fine-tuning on SNLI groups",
        "Forgetting on the source falls clearly as the shift goes from high to low.",
        (
            Check("forgetting rises with the shift", _group_trend, FIG_4C, "criterion"),
            Check("rate matched to the group size", _group_trend, FIG_4C | MATCHED, "reading"),
            Check("source [CLS] embedding, matched rate", _group_trend, FIG_4C | MATCHED | OTHER, "reading"),
        ),
        chapter="natural-shift", unchecked=SUBSTITUTE + " Groups are far smaller than the paper's.",
    ),
    Claim(
        "ood.fig-4c.theory", "Section 6.3, on Figure 4(c)", "text", "The same trend as Fig. 2(b) at negative "
        "correlation",
        "For two features with $\\gamma_1=1$, the total forgetting falls as $\\gamma_2$ grows over the negative "
        "values.",
        (
            Check("falls on [-1, 0]", _direction, (-1.0, 0.0, -1, EPS), mutants={"rises": (-1.0, 0.0, 1, EPS)}),
            Check("more at -1/2 than at -1", _compare, (-0.5, -1.0, 1e-2), "counterexample"),
            Check(
                "falls on [-1/2, 0]", _direction, (-0.5, 0.0, -1, EPS), "corrected",
                mutants={"from -0.7": (-0.7, 0.0, -1, EPS), "up to 0.7": (-0.5, 0.7, -1, EPS), "rises": (-0.5, 0.0, 1,
                EPS)},
            ),
        ),
        corrected="It falls as gamma_2 grows over [-1/2, 0] (eps between 1e-4 and 1e-2); from -1 to about -1/2 it "
        "rises, from zero.",
        why="At gamma_2 = -1 the total forgetting is zero: both of its terms vanish there.",
        hypotheses=("two features", "gradient flow", "gamma_1 = 1"), chapter="natural-shift",
    ),
    Claim(
        "ood.fig-4d", "Figure 4(d)", "figure", "Forgetting after fine-tuning on groups of the other genres",
        "Forgetting on the source rises with the shift for government, telephone and slate, and stays stable for "
        "travel.",
        (
            Check("three genres rise", _group_trend, FIG_4D, "criterion"),
            Check("travel has the smallest range", _flat, FIG_4D, "criterion"),
            Check("rate matched to the group size", _group_trend, FIG_4D | MATCHED, "reading"),
            Check("travel, matched rate", _flat, FIG_4D | MATCHED, "reading"),
            Check("source [CLS] embedding, matched rate", _group_trend, FIG_4D | MATCHED | OTHER, "reading"),
        ),
        chapter="natural-shift", unchecked=SUBSTITUTE + " Groups are far smaller than the paper's.",
    ),
    Claim(
        "ood.fig-4d.theory", "Section 6.3, on Figure 4(d)", "text", "The same trend as Fig. 2(b) near correlation one",
        "For two features with $\\gamma_1=1$, the total forgetting rises as $\\gamma_2$ moves down from 1.",
        (
            Check("falls as gamma_2 grows to 1", _direction, (0.6, 1.0, -1, EPS), mutants={"rises": (0.6, 1.0, 1,
            EPS)}),
            Check("more at 1 than at 0.9", _compare, (1.0, 0.9, 1e-2), "counterexample"),
            Check(
                "rises as gamma_2 grows to 1", _direction, (0.6, 1.0, 1, EPS), "strongest",
                mutants={"from 0.4": (0.4, 1.0, 1, EPS), "falls": (0.6, 1.0, -1, EPS)},
            ),
        ),
        strongest_true="Over [0.6, 1] it rises with gamma_2 up to zero at 1 (eps between 1e-4 and 1e-2): a small "
        "shift makes it negative.",
        why="Without shift fine-tuning hardly moves the model and forgetting is zero; a small shift makes the source "
        "better, so forgetting falls.",
        hypotheses=("two features", "gradient flow", "gamma_1 = 1"), chapter="natural-shift",
        note="Section 6.3 says at its end that a small shift can improve the source, which agrees with the theory "
        "and not with this comparison.",
    ),
    Claim(
        "ood.sec-6.3.implication", "Section 6.3, last paragraph", "text", "Fine-tuning data chosen by the size of "
        "the shift",
        "Choosing or weighting fine-tuning pairs by their likeness to the source keeps more of the source for the "
        "same adaptation.",
        (
            *(
                Check(f"{domain}: nearest pairs lose less on the source than random ones", _trade, (domain, "nearest",
                "random"), "criterion")
                for domain in ("telephone", "snli")
            ),
            Check("telephone: farthest pairs lose less than random ones", _trade, ("telephone", "farthest", "random"),
            "reading"),
            Check("snli: farthest pairs lose less than random ones", _trade, ("snli", "farthest", "random"), "reading"),
            Check("snli: weighted losses lose less than random ones", _trade, ("snli", "weighted", "random"),
            "reading"),
            Check("snli: pairs drawn by their likeness lose less than random ones", _trade, ("snli", "sampled",
            "random"), "reading"),
        ),
        chapter="natural-shift",
        unchecked="The paper suggests it without a statement that could be tested or an experiment; what our "
        "measurement of it shows stands beside.",
    ),
    Claim(
        "ood.app-C", "Appendix C", "text", "Set-up of the BERT experiments",
        "MRPC has 3,668 training, 408 validation and 1,725 test pairs; BERT-base has 12 layers and 768 dimensions, "
        "of which 256 (a third) are turned "
        "for Figs. 3(a), 3(b) and 384 (a half) for Fig. 3(c); the last six layers train.",
        (
            Check(
                "MRPC's counts", _counts, {"train": 3668, "dev": 408, "test": 1725},
                mutants={"the official split": {"train": 4076, "dev": 0, "test": 1725}, "one more": {"train": 3669,
                "dev": 408, "test": 1725}},
            ),
            Check(
                "thirds and halves", _shares, {"width": 768, "turned": 256, "forgetting": 384, "depth": 12,
                "trained": 6},
                mutants={"BERT-large": {"width": 1024, "turned": 256, "forgetting": 384, "depth": 24, "trained": 6}},
            ),
        ),
        chapter="bert-rotation",
        note="Left open: pooler or not, how the chosen dimensions are paired, range and grid of theta, what varies "
        "over the runs, whether embeddings and "
        "head train, dropout, schedule and weight decay, which embedding the cosine uses, the stride of the windows, "
        "cross-entropy or error rate, "
        "the source's validation set in section 6.3, and which split of SNLI.",
    ),
)  # fmt: skip

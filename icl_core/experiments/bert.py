"""Figures 3 and 4: BERT-type encoders on MRPC, MultiNLI and SNLI; sweeps that resume, tables and pictures.

``python -m icl_core.experiments.bert mrpc --out book/results`` makes the stored tables of figure 3, ``natural`` those
of figure 4.
"""

from __future__ import annotations

import argparse
import functools
import math
import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from icl_core import _validate, plotting
from icl_core.language import data, encoders, mrpc, natural_shift, rotation, shift_aware, training
from icl_core.language.data import Pairs
from icl_core.results import Table, provenance, read_table, sweep, write_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

GENERATED = "generated"
ZERO_START_RUNS = 3
# With fewer runs an interval over them says little, and the runs themselves are shown.
RUNS_FOR_BAND = 5


def cache_folder() -> Path:
    """Where hidden states and trained models are kept: ``$ICL_CORE_CACHE``, else a folder in the user's cache."""
    root = os.environ.get("ICL_CORE_CACHE")
    return Path(root) if root else Path.home() / ".cache" / "icl_core"


# --- points of the sweeps ---------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=2)
def _encoder(model: str, device: str = "cpu") -> encoders.Encoder:
    return encoders.load(model, device=device)


@functools.lru_cache(maxsize=2)
def _mrpc(folder: str) -> tuple[Pairs, Pairs]:
    if folder == GENERATED:
        return data.generated(400, seed=1), data.generated(120, seed=2)
    found = data.mrpc(folder or None)
    return found["train"], found["dev"]


def _at_least(**values: int) -> None:
    for name, value in values.items():
        _validate.integer(name, value, least=0)


def mrpc_point(
    number: int,
    model: str,
    folder: str,
    head_std: float = encoders.HEAD_STD,
    fixed: Sequence[str] = (),
    limit: int = 0,
    epochs: int = 0,
    angles: int = 0,
    rates: Sequence[float] = (1e-5, 1e-4),
    pairings: Sequence[str] = rotation.PAIRINGS,
    device: str = "cpu",
) -> dict[str, Any]:
    """Run number ``number`` of figure 3, for :func:`icl_core.results.sweep`; see :func:`icl_core.language.mrpc.run`.

    Parameters
    ----------
    model : str
        See :func:`icl_core.language.encoders.load`.
    folder : str
        MRPC folder, ``""`` for ``$ICL_CORE_DATA/mrpc``, ``"hub"`` or ``"generated"``.
    limit : int
        Use only the first so many training pairs and half as many validation pairs; 0 for all.
    epochs : int
        Of training; 0 for the paper's 2.
    angles : int
        Angles in [0, pi] of the sweep, and half as many of the forgetting; 0 for the stored tables' grids.
    device : str
        A torch device.
    """
    began = time.process_time()
    _at_least(limit=limit, epochs=epochs, angles=angles)
    if 0 < limit < 8:
        raise ValueError(f"limit must be 0 or at least 8, got {limit}")
    train, dev = _mrpc(folder)
    if limit:
        train, dev = train.take(range(min(limit, len(train)))), dev.take(range(min(max(limit // 2, 8), len(dev))))
    grids: dict[str, Any] = {}
    if angles:
        grids["thetas"] = tuple(np.linspace(0, math.pi, angles).tolist())
        grids["forget_thetas"] = tuple(np.linspace(math.pi, 0, max(2, angles // 2)).tolist())
    found = mrpc.run(
        _encoder(model, device),
        train,
        dev,
        number,
        head_std=head_std,
        fixed=fixed,
        schedule=replace(training.TRAIN_MRPC, epochs=epochs) if epochs else training.TRAIN_MRPC,
        rates=rates,
        pairings=pairings,
        cache=cache_folder(),
        **grids,
    )
    return found | {"cpu_seconds": time.process_time() - began}


@functools.lru_cache(maxsize=2)
def _natural(folder: str, limit: int = 0) -> dict[str, Pairs]:
    if folder == GENERATED:
        styles = {
            "train": 0.2,
            "dev": 0.2,
            "government": 0.3,
            "slate": 0.4,
            "telephone": 0.5,
            "travel": 0.6,
            "snli": 0.9,
        }
        counts = {"train": 192, "snli": 300}
        found = {
            name: data.generated(counts.get(name, 96), seed=i, style=style)
            for i, (name, style) in enumerate(styles.items(), 11)
        }
    else:
        found = data.natural(folder or None)
    if limit:
        # Every so many-th pair: files may be sorted.
        found = {
            name: pairs.take(range(0, len(pairs), max(1, len(pairs) // (limit * (4 if name == "snli" else 1)))))
            for name, pairs in found.items()
        }
    return found


TRADE_RATES = (2e-5, 6e-5, 2e-4)


def natural_point(
    number: int,
    model: str,
    folder: str,
    trade: Sequence[str] = ("telephone", "snli"),
    limit: int = 0,
    epochs: int = 0,
    device: str = "cpu",
) -> dict[str, Any]:
    """Run number ``number`` of figure 4 with the trade-off of shift-aware fine-tuning, for a sweep.

    Parameters
    ----------
    model : str
        See :func:`icl_core.language.encoders.load`.
    folder : str
        Folder with ``multinli/`` and ``snli/``, ``""`` for ``$ICL_CORE_DATA``, ``"hub"`` or ``"generated"``.
    trade : sequence of str
        Domains on which choice and weighting of fine-tuning pairs are measured.
    limit : int
        Use about so many pairs of a domain, four times as many of SNLI; 0 for all.
    epochs : int
        Of training; 0 for the paper's 3.
    device : str
        A torch device.
    """
    began = time.process_time()
    _at_least(limit=limit, epochs=epochs)
    domains = _natural(folder, limit)
    for name in trade:
        _validate.choice("trade", name, sorted(domains))
    encoder = _encoder(model, device)
    schedule = replace(training.TRAIN_NATURAL, epochs=epochs) if epochs else training.TRAIN_NATURAL
    classifier = natural_shift.train_source(encoder, domains["train"], number, schedule=schedule, cache=cache_folder())
    seen = natural_shift.observe(encoder, classifier, domains, cache=cache_folder())
    found = natural_shift.measure(classifier, seen, number)
    rows: list[dict[str, Any]] = []
    for name in trade:
        size = natural_shift.scaled(name, len(seen[name].labels))[0]
        rows += [
            {"run": number, "domain": name, "size": size} | row
            for row in shift_aware.trade_off(
                classifier,
                seen["dev"],
                seen[name],
                "pretrained-mean",
                size=size,
                rates=TRADE_RATES,
                hold_out=0.1 if name == "snli" else 0.3,
                seed=1000 * number + 8,
            )
        ]
    return found | {"trade": rows, "cpu_seconds": time.process_time() - began}


# --- tables -----------------------------------------------------------------------------------------------------------


def _facts(model: str, pairs: Mapping[str, Pairs], runs: Sequence[int]) -> dict[str, Any]:
    encoder = _encoder(model)
    first = next(iter(pairs.values()))
    names = {part.name.split("/")[0].rsplit(" ", 1)[0] for part in pairs.values()}
    return {
        "model": encoder.name,
        "model_note": encoder.note,
        "data": data.NOTE if first.generated else ", ".join(sorted(names)),
        "generated": first.generated,
        "pairs": {
            name: {"count": len(part), "dropped": part.dropped, "sha256": part.digest()} for name, part in pairs.items()
        },
        "majority": {name: part.majority() for name, part in pairs.items()},
        "prior_loss": {name: part.prior_loss() for name, part in pairs.items()},
        "runs": list(runs),
        "threads": _threads(),
    }


def _threads() -> int:
    import torch

    return torch.get_num_threads()


def _rows(found: Sequence[Mapping[str, Any]], points: Sequence[Mapping[str, Any]], key: str) -> pd.DataFrame:
    parts = [
        pd.DataFrame(result[key]).assign(head_std=point.get("head_std", encoders.HEAD_STD))
        for result, point in zip(found, points, strict=True)
    ]
    return pd.concat(parts, ignore_index=True).round(6)


def mrpc_tables(
    runs: Sequence[int],
    model: str = encoders.PACKAGED,
    folder: str = "",
    *,
    zero_start: int = ZERO_START_RUNS,
    store: str | os.PathLike[str] | None = None,
    executor: Executor | None = None,
    command: str | None = None,
    **reduced: Any,
) -> dict[str, Table]:
    """Figure 3 with its controls, as tables ``sweep``, ``forgetting`` and ``runs``.

    Parameters
    ----------
    runs : sequence of int
        Numbers of the runs; each has a split, head, order, dropout and random dimensions of its own.
    model, folder
        See :func:`mrpc_point`.
    zero_start : int
        Control: so many further runs whose head starts at zero, so that all of W_0 - W_1 is learned.
    store : path, optional
        JSON-lines file of finished runs, to resume from.
    executor : concurrent.futures.Executor, optional
        Where the runs go.
    command : str, optional
        Shell command that makes the tables again.
    **reduced
        ``limit``, ``epochs``, ``angles``, ``rates``, ``pairings``, ``device`` of :func:`mrpc_point`.
    """
    if not runs:
        raise ValueError("runs must hold at least one run number, got none")
    _validate.integer("zero_start", zero_start, least=0)
    started = time.perf_counter()
    points: list[dict[str, Any]] = [{"number": i, "model": model, "folder": folder, **reduced} for i in runs]
    points += [point | {"head_std": 0.0} for point in points[:zero_start]]
    found = sweep(mrpc_point, points, store=store, executor=executor)
    train, dev = _mrpc(folder)
    about = provenance(
        {"model": model, "zero_start": zero_start, **reduced},
        command=command,
        device=reduced.get("device", "cpu"),
        started=None if store is not None else started,
        cpu_seconds=[round(result["cpu_seconds"], 1) for result in found],
        varies="split, head, order of the pairs, dropout and random dimensions, by run",
        **_facts(model, {"train": train, "dev": dev}, runs),
    )
    own = [
        {
            "run": point["number"],
            "head_std": point.get("head_std", encoders.HEAD_STD),
            **{
                name: result[name]
                for name in ("dev_loss", "dev_accuracy", "gap_rms_start", "gap_rms_trained", "gap_change_rms")
            },
            **{f"overlap_{row['selection']}": row["overlap_with_start"] for row in result["head"]},
            **{f"dims_{name}": " ".join(map(str, dims)) for name, dims in result["dims"].items()},
        }
        for point, result in zip(points, found, strict=True)
    ]
    shared = {
        "run": "number of the run",
        "head_std": "standard deviation of the head's start",
        "theta": "angle, radians",
    }
    return {
        "sweep": Table(
            _rows(found, points, "sweep"),
            about,
            shared
            | {
                "selection": "dimensions by |W0 - W1|, or random",
                "pairing": "how they are paired",
                "ranked_by": "head that |W0 - W1| is taken from",
                "loss": "cross-entropy on the validation pairs, nats",
                "accuracy": "accuracy on them",
                "positive": "share called paraphrases",
            },
        ),
        "forgetting": Table(
            _rows(found, points, "forgetting"),
            about,
            shared
            | {
                "rate": "learning rate of the fine-tuning",
                "forgetting": "rise of the cross-entropy on the unturned validation pairs, nats",
                "accuracy_change": "change of the accuracy on them",
                "target_before": "cross-entropy on the turned validation pairs before fine-tuning",
                "target_after": "and after",
            },
        ),
        "runs": Table(
            pd.DataFrame(own).round(
                {"dev_loss": 6, "dev_accuracy": 6, "gap_rms_start": 6, "gap_rms_trained": 6, "gap_change_rms": 6}
            ),
            about,
            shared
            | {
                "dev_loss": "cross-entropy without rotation",
                "dev_accuracy": "accuracy without rotation",
                "gap_rms_start": "root mean square of |W0 - W1| before training",
                "gap_rms_trained": "after",
                "gap_change_rms": "of the change of |W0 - W1|",
                "overlap_largest": "share of the third with the largest |W0 - W1| that was in it before training",
                "overlap_smallest": "the same for the smallest",
                "dims_largest": "chosen dimensions",
                "dims_smallest": "chosen dimensions",
            },
        ),
    }


def natural_tables(
    runs: Sequence[int],
    model: str = encoders.PACKAGED,
    folder: str = "",
    *,
    store: str | os.PathLike[str] | None = None,
    executor: Executor | None = None,
    command: str | None = None,
    **reduced: Any,
) -> dict[str, Table]:
    """Figure 4 with its controls and the trade-off, as tables ``error``, ``forgetting``, ``trade`` and ``runs``.

    Parameters are those of :func:`mrpc_tables`; ``reduced`` takes ``limit``, ``epochs`` and ``device`` of
    :func:`natural_point`.
    """
    if not runs:
        raise ValueError("runs must hold at least one run number, got none")
    started = time.perf_counter()
    points: list[dict[str, Any]] = [{"number": i, "model": model, "folder": folder, **reduced} for i in runs]
    found = sweep(natural_point, points, store=store, executor=executor)
    about = provenance(
        {"model": model, **reduced},
        command=command,
        device=reduced.get("device", "cpu"),
        started=None if store is not None else started,
        cpu_seconds=[round(result["cpu_seconds"], 1) for result in found],
        varies="head, order of the pairs and dropout, by run; random groups",
        **_facts(model, _natural(folder, reduced.get("limit", 0)), runs),
    )
    shared = {
        "run": "number of the run",
        "domain": "where the pairs come from",
        "embedding": "what the cosine to the fiction centre is taken of",
        "group": "number of the group, 0 the most alike",
        "size": "pairs in a group",
        "cosine": "mean cosine of a group",
    }
    own = [
        {"run": point["number"], "dev_loss": result["dev_loss"], "dev_error": result["dev_error"]}
        for point, result in zip(points, found, strict=True)
    ]
    return {
        "error": Table(
            _rows(found, points, "error").drop(columns="head_std"),
            about,
            shared
            | {
                "loss": "cross-entropy of the source model, nats",
                "error": "its error rate",
                "tokens": "mean length of the pairs",
                "majority": "share of the group's commonest label",
            },
        ),
        "forgetting": Table(
            _rows(found, points, "forgetting").drop(columns="head_std"),
            about,
            shared
            | {
                "which_rate": "2e-6 as printed, or matched to the paper's rate times steps",
                "rate": "learning rate",
                "forgetting": "rise of the cross-entropy on the fiction validation pairs, nats",
                "error_change": "rise of the error rate on them",
            },
        ),
        "trade": Table(
            _rows(found, points, "trade").drop(columns="head_std"),
            about,
            shared
            | {
                "rule": "how the fine-tuning pairs are chosen",
                "rate": "learning rate",
                "draw": "number of the draw",
                "target_gain": "drop of the cross-entropy on held-out target pairs, nats",
                "source_loss": "rise of the cross-entropy on the fiction validation pairs, nats",
                "target_error_drop": "drop of the error rate on the target",
                "source_error_rise": "rise of the error rate on the source",
            },
        ),
        "runs": Table(
            pd.DataFrame(own).round(6),
            about,
            {
                "run": "number of the run",
                "dev_loss": "cross-entropy on the fiction validation pairs",
                "dev_error": "error rate on them",
            },
        ),
    }


def stored(name: str) -> Table:
    """Table ``book/results/bert-<name>`` of the clone that holds the package.

    Raises
    ------
    FileNotFoundError
        Outside a clone.
    """
    return read_table(Path(__file__).resolve().parents[2] / "book" / "results" / f"bert-{name}")


# --- statistics -------------------------------------------------------------------------------------------------------


def interval(frame: pd.DataFrame, by: Sequence[str], value: str) -> pd.DataFrame:
    """Mean over the runs with a 95 % t-interval, for each combination of ``by``.

    Returns
    -------
    pandas.DataFrame
        Columns ``by``, ``mean``, ``sd``, ``low``, ``high``, ``runs``; no interval (NaN) from a single run.
    """
    from scipy.stats import t

    out = frame.groupby(list(by), sort=False)[value].agg(["mean", "std", "count"]).reset_index()
    out = out.rename(columns={"std": "sd", "count": "runs"})
    more = out["runs"].to_numpy() > 1
    half = np.full(len(out), np.nan)
    count = out["runs"].to_numpy()[more]
    half[more] = t.ppf(0.975, count - 1) * out["sd"].to_numpy()[more] / np.sqrt(count)
    out["low"], out["high"] = out["mean"] - half, out["mean"] + half
    return out


def trends(frame: pd.DataFrame, value: str, window: int = 1) -> pd.DataFrame:
    """Spearman correlation of ``value`` with the group's number (0 the most alike), run by run.

    Parameters
    ----------
    frame : pandas.DataFrame
        Rows of one embedding and rate, with ``run``, ``domain``, ``group``.
    window : int
        Moving average before.

    Returns
    -------
    pandas.DataFrame
        ``run``, ``domain``, ``rho``, ``chance`` (the size of ``rho`` that pairs in random order exceed one time in
        twenty) and ``range`` (largest less smallest).
    """
    from scipy.stats import spearmanr

    rows = []
    for (run, domain), part in frame.groupby(["run", "domain"], sort=False):
        values = natural_shift.moving_average(part.sort_values("group")[value].tolist(), min(window, len(part)))
        rho = float(spearmanr(range(len(values)), values).statistic) if len(set(values)) > 1 else 0.0
        chance = 1.0
        if len(values) > 1:
            chance = natural_shift.chance_trend(len(part), overlap_of(value, str(domain)), min(window, len(part)))
        rows.append({"run": run, "domain": domain, "rho": rho, "chance": chance, "range": max(values) - min(values)})
    return pd.DataFrame(rows)


def mean_curve(frame: pd.DataFrame, value: str) -> pd.DataFrame:
    """The runs' mean of ``value`` by domain and group, as the rows of a single run that :func:`trends` takes."""
    return frame.groupby(["domain", "group"], sort=False, as_index=False)[value].mean().assign(run="mean")


def overlap_of(value: str, domain: str) -> int:
    """How many sliding groups of ``domain`` hold a pair, in the table that has the column ``value``."""
    table = "forgetting" if value == "forgetting" else "error"
    return natural_shift.OVERLAP[table][natural_shift.kind(domain)]


def chance_spread(random_groups: pd.DataFrame, value: str, domain: str, window: int) -> float:
    """Standard deviation of a moving average over ``window`` groups, were the pairs of ``domain`` in random order.

    Parameters
    ----------
    random_groups : pandas.DataFrame
        The domain's rows for random groups, which show how much one group varies within a run.
    """
    one = float(random_groups.groupby("run")[value].std().mean())
    return one * natural_shift.smoothed_spread(window, overlap_of(value, domain))


def turns(values: Sequence[float], least: float) -> str:
    """Directions of the moves of a curve that are larger than ``least``: ``"-+-"`` falls, rises and falls.

    >>> turns([5, 1, 4, 2], 0.5), turns([5, 1, 1.2, 0], 0.5), turns([1, 1.1], 0.5)
    ('-+-', '-', '')
    """
    pattern, low, high = "", values[0], values[0]
    for value in values:
        low, high = min(low, value), max(high, value)
        if value - low > least and not pattern.endswith("+"):
            pattern, high = pattern + "+", value
        elif high - value > least and not pattern.endswith("-"):
            pattern, low = pattern + "-", value
        if pattern.endswith("+"):
            low = high
        elif pattern.endswith("-"):
            high = low
    return pattern


def loss_at_equal_gain(table: Table, domain: str, rule: str, than: str) -> pd.DataFrame:
    """What two rules of shift-aware fine-tuning cost the source at the largest gain on the target that both reach.

    Each rule's points, one for each learning rate, and that of no gain and no loss are joined by straight lines.

    Returns
    -------
    pandas.DataFrame
        ``run``, ``gain``, ``loss`` of ``rule`` and ``other_loss`` of ``than`` (nats), for runs in which both gain.
    """
    frame = table.frame[table.frame["domain"] == domain]
    points = frame.groupby(["run", "rule", "rate"])[["target_gain", "source_loss"]].mean()
    rows = []
    for run in sorted(set(frame["run"])):
        curves = [
            np.vstack([[0.0, 0.0], points.loc[(run, name)][["target_gain", "source_loss"]]]) for name in (rule, than)
        ]
        gain = min(float(curve[:, 0].max()) for curve in curves)
        if gain <= 0:
            continue
        losses = [float(np.interp(gain, *curve[curve[:, 0].argsort()].T)) for curve in curves]
        rows.append({"run": run, "gain": gain, "loss": losses[0], "other_loss": losses[1]})
    return pd.DataFrame(rows)


# --- pictures ---------------------------------------------------------------------------------------------------------


def subject(table: Table) -> str:
    """Model, data, runs, device and date of a table, for its figure."""
    facts = table.provenance
    count = len(facts["runs"])
    return f"{facts['model']} · {facts['data']} · {count} run{'s' * (count != 1)} · {facts['device']} · {facts['date']}"


def _titled(figure: Figure, table: Table) -> Figure:
    figure.suptitle(subject(table), fontsize=8, color="#555555", x=0.01, ha="left")
    return figure


def _legend_below(figure: Figure, axes: Axes) -> None:
    """One legend for all panels, out of the way of the curves."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 5), fontsize=8)


def _band(axes: Axes, x: Any, stats: pd.DataFrame, label: str, color: str, line: Any = "-") -> None:
    axes.plot(x, stats["mean"], color=color, linestyle=line, label=label)
    axes.fill_between(
        x, stats["low"].fillna(stats["mean"]), stats["high"].fillna(stats["mean"]), color=color, alpha=0.18, linewidth=0
    )


def _angles(axes: Axes, most: float) -> None:
    names = {0: "0", 0.5: "π/2", 1: "π", 1.5: "3π/2", 2: "2π"}
    shown = [share for share in names if share * math.pi <= most + 1e-6]
    axes.set_xticks([share * math.pi for share in shown], [names[share] for share in shown])
    axes.set_xlabel("rotation angle θ")


def draw_selections(table: Table, value: str = "loss", *, pairing: str = "rank") -> Figure:
    """Figures 3(a) and 3(b): ``value`` against theta for the three selections, with 95 % intervals over the runs."""
    import matplotlib.pyplot as plt

    frame = at_start(table)
    frame = frame[(frame["pairing"] == pairing) & (frame["ranked_by"] == "trained head")]
    figure, axes = plt.subplots()
    names = {"largest": "largest |W₀−W₁| (a)", "smallest": "smallest |W₀−W₁| (b)", "random": "random (control)"}
    for i, (selection, label) in enumerate(names.items()):
        stats = interval(frame[frame["selection"] == selection], ["theta"], value)
        _band(axes, stats["theta"], stats, label, plotting.COLORS[i], plotting.LINES[i])
    facts = table.provenance
    level = facts["prior_loss"]["dev"] if value == "loss" else facts["majority"]["dev"]
    axes.axhline(level, color="#777777", linewidth=1, linestyle=":")
    axes.annotate(
        "label frequencies only" if value == "loss" else "majority class",
        (0, level),
        fontsize=8,
        va="bottom",
        color="#555555",
    )
    axes.set_ylabel("validation cross-entropy (nats)" if value == "loss" else "validation accuracy")
    _angles(axes, float(frame["theta"].max()))
    axes.legend(loc="best", fontsize=8)
    return _titled(figure, table)


def at_start(table: Table, std: float | None = None) -> pd.DataFrame:
    """Rows of the runs whose head started with standard deviation ``std``, BERT's own by default."""
    frame = table.frame
    return frame[np.isclose(frame["head_std"], encoders.HEAD_STD if std is None else std)]


def draw_overlap(table: Table) -> Figure:
    """How many of the chosen dimensions the head had already chosen before it saw any data, run by run."""
    import matplotlib.pyplot as plt

    frame = at_start(table)
    figure, axes = plt.subplots(figsize=(6.4, 3.0))
    for i, selection in enumerate(("largest", "smallest")):
        axes.plot(
            frame["run"], frame[f"overlap_{selection}"], "os"[i], color=plotting.COLORS[i], label=f"{selection} |W₀−W₁|"
        )
    axes.axhline(1 / 3, color="#777777", linewidth=1, linestyle=":")
    axes.annotate("chance", (frame["run"].min(), 1 / 3), fontsize=8, va="bottom", color="#555555")
    axes.set_ylim(0, 1.05)
    axes.set_xticks(sorted(frame["run"]))
    axes.set_xlabel("run")
    axes.set_ylabel("share chosen already\nbefore training")
    axes.legend(fontsize=8, loc="center right")
    return _titled(figure, table)


def shared_dimensions(table: Table, selection: str, std: float | None = None) -> float:
    """Mean overlap between the dimensions that different runs choose; chance is a third, nan for a single run."""
    chosen = [set(dims.split()) for dims in at_start(table, std)[f"dims_{selection}"]]
    pairs = [len(one & two) / len(one) for i, one in enumerate(chosen) for two in chosen[:i]]
    return float(np.mean(pairs)) if pairs else math.nan


def draw_pairings(table: Table) -> Figure:
    """Control: the four pairings of the same dimensions, for the largest and the smallest ``|W0 - W1|``."""
    import matplotlib.pyplot as plt

    frame = at_start(table)
    frame = frame[frame["ranked_by"] == "trained head"]
    figure, both = plt.subplots(1, 2, sharey=True, figsize=(6.4, 3.4))
    for axes, selection in zip(both, ("largest", "smallest"), strict=True):
        for i, pairing in enumerate(dict.fromkeys(frame["pairing"])):
            stats = interval(
                frame[(frame["selection"] == selection) & (frame["pairing"] == pairing)], ["theta"], "loss"
            )
            _band(axes, stats["theta"], stats, pairing, plotting.COLORS[i], plotting.LINES[i])
        axes.set_title(f"{selection} |W₀−W₁|", fontsize=10)
        _angles(axes, float(frame["theta"].max()))
    both[0].set_ylabel("validation cross-entropy (nats)")
    both[0].legend(title="paired by", fontsize=8, title_fontsize=8)
    return _titled(figure, table)


def draw_heads(table: Table) -> Figure:
    """Control: dimensions ranked by the head after training, before training, and after training from zero."""
    import matplotlib.pyplot as plt

    figure, both = plt.subplots(1, 2, sharey=True, figsize=(6.4, 3.4))
    kinds = (
        ("after training", encoders.HEAD_STD, "trained head"),
        ("before training", encoders.HEAD_STD, "untrained head"),
        ("after training from zero", 0.0, "trained head"),
    )
    for axes, selection in zip(both, ("largest", "smallest"), strict=True):
        for i, (label, std, ranked) in enumerate(kinds):
            frame = at_start(table, std)
            frame = frame[
                (frame["selection"] == selection) & (frame["ranked_by"] == ranked) & (frame["pairing"] == "rank")
            ]
            if frame.empty:
                continue
            stats = interval(frame, ["theta"], "loss")
            _band(axes, stats["theta"], stats, label, plotting.COLORS[i], plotting.LINES[i])
        axes.set_title(f"{selection} |W₀−W₁|", fontsize=10)
        _angles(axes, float(table.frame["theta"].max()))
    both[0].set_ylabel("validation cross-entropy (nats)")
    both[0].legend(title="ranked by the head", fontsize=8, title_fontsize=8)
    return _titled(figure, table)


def draw_forgetting(table: Table) -> Figure:
    """Figure 3(c): forgetting against the angle from pi down to 0, one panel for each learning rate."""
    import matplotlib.pyplot as plt

    frame = at_start(table)
    rates = sorted(set(frame["rate"]))
    figure, panels = plt.subplots(1, len(rates), figsize=(6.4, 3.4), squeeze=False)
    for axes, rate in zip(panels[0], rates, strict=True):
        part = frame[frame["rate"] == rate]
        stats = interval(part, ["theta"], "forgetting")
        axes.errorbar(
            stats["theta"],
            stats["mean"],
            yerr=stats["sd"].fillna(0),
            color=plotting.COLORS[0],
            elinewidth=0.8,
            capsize=2,
            label="mean, bar: 1 sd of the runs",
        )
        axes.fill_between(
            stats["theta"],
            stats["low"].fillna(stats["mean"]),
            stats["high"].fillna(stats["mean"]),
            color=plotting.COLORS[0],
            alpha=0.2,
            linewidth=0,
            label="95 % interval of the mean",
        )
        axes.axhline(0, color="#777777", linewidth=1)
        axes.set_title(
            f"learning rate {rate:g}" + (" (printed)" if math.isclose(rate, training.TUNE_MRPC.rate) else ""),
            fontsize=10,
        )
        _angles(axes, float(frame["theta"].max()))
        axes.invert_xaxis()
    panels[0][0].set_ylabel("forgetting (nats)")
    _legend_below(figure, panels[0][0])
    return _titled(figure, table)


def draw_groups(
    table: Table,
    value: str,
    domains: Sequence[str],
    *,
    embeddings: Sequence[str],
    which_rate: str | None = None,
    toward: str = "unlike",
) -> Figure:
    """Figure 4: a value by group, smoothed as in the paper, a panel for each embedding.

    Bands are 95 % intervals over the runs of the curve's shape: each run's curve is moved to the runs' mean level. With
    few runs, thin lines are single runs. Random groups were fine-tuned on at the matched rate only.

    Parameters
    ----------
    value : str
        ``loss``, ``error`` or ``forgetting``.
    domains : sequence of str
        One curve each.
    embeddings : sequence of str
        One panel each.
    which_rate : str, optional
        Of the forgetting.
    toward : {"unlike", "alike"}
        Direction of the x axis: shift from low to high (4a, 4b) or from high to low (4c, 4d).
    """
    import matplotlib.pyplot as plt

    _validate.choice("toward", toward, ("unlike", "alike"))
    figure, panels = plt.subplots(1, len(embeddings), sharey=True, figsize=(6.4, 3.6), squeeze=False)
    frame = table.frame if which_rate is None else table.frame[table.frame["which_rate"] == which_rate]
    chance = table.frame[table.frame["embedding"] == "random groups"]
    for axes, how in zip(panels[0], embeddings, strict=True):
        for i, domain in enumerate(domains):
            part = frame[(frame["embedding"] == how) & (frame["domain"] == domain)]
            if part.empty:
                continue
            window = min(natural_shift.SMOOTHING[natural_shift.kind(domain)], part["group"].nunique())
            smooth = pd.concat(
                [
                    pd.DataFrame(
                        {"value": natural_shift.moving_average(one.sort_values("group")[value].tolist(), window)}
                    )
                    .assign(run=run)
                    .rename_axis("group")
                    .reset_index()
                    for run, one in part.groupby("run")
                ]
            )
            steps = max(1, int(smooth["group"].max()))
            # Runs differ in their level; what counts here is the shape, so each run's level is put to the common one.
            level = smooth.groupby("run")["value"].transform("mean")
            stats = interval(
                smooth.assign(value=smooth["value"] - level + level.mean()), ["group"], "value"
            ).sort_values("group")
            x = stats["group"] / steps if toward == "unlike" else 1 - stats["group"] / steps
            if smooth["run"].nunique() >= RUNS_FOR_BAND:
                _band(axes, x, stats, domain, plotting.COLORS[i], plotting.LINES[i])
            else:
                axes.plot(x, stats["mean"], color=plotting.COLORS[i], linestyle=plotting.LINES[i], label=domain)
                for _, one in smooth.groupby("run"):
                    axes.plot(x, one["value"], color=plotting.COLORS[i], linewidth=0.7, alpha=0.5)
            usual = chance[chance["domain"] == domain]
            if len(domains) == 1 and not usual.empty and which_rate != "printed":
                middle, spread = usual[value].mean(), 2 * chance_spread(usual, value, domain, window)
                axes.axhspan(
                    middle - spread,
                    middle + spread,
                    color="#999999",
                    alpha=0.2,
                    linewidth=0,
                    label="random groups, ± 2 sd",
                )
        axes.set_title(how, fontsize=10)
        axes.set_xticks([0, 1], ["most alike", "least alike"] if toward == "unlike" else ["least alike", "most alike"])
        for label, side in zip(axes.get_xticklabels(), ("left", "right"), strict=True):
            label.set_horizontalalignment(side)
        axes.set_xlabel("groups, by their likeness to fiction")
    names = {"loss": "cross-entropy (nats)", "error": "error rate", "forgetting": "forgetting (nats)"}
    panels[0][0].set_ylabel(names[value])
    _legend_below(figure, panels[0][0])
    return _titled(figure, table)


def draw_trade(table: Table) -> Figure:
    """Trade-off of shift-aware fine-tuning: source loss against target gain, one curve for each rule."""
    import matplotlib.pyplot as plt

    frame = table.frame
    domains = list(dict.fromkeys(frame["domain"]))
    figure, panels = plt.subplots(1, len(domains), figsize=(6.4, 3.8), squeeze=False)
    marks = "osD^v"
    for axes, domain in zip(panels[0], domains, strict=True):
        part = frame[frame["domain"] == domain]
        for i, rule in enumerate(dict.fromkeys(part["rule"])):
            runs = (
                part[part["rule"] == rule]
                .groupby(["run", "rate"], as_index=False)[["target_gain", "source_loss"]]
                .mean()
            )
            x, y = interval(runs, ["rate"], "target_gain"), interval(runs, ["rate"], "source_loss")
            axes.errorbar(
                x["mean"], y["mean"], xerr=x["sd"].fillna(0), yerr=y["sd"].fillna(0), color=plotting.COLORS[i],
                linestyle=plotting.LINES[i], marker=marks[i], markersize=4, elinewidth=0.6, label=rule,
            )  # fmt: skip
        axes.axhline(0, color="#777777", linewidth=1)
        axes.set_title(domain, fontsize=10)
        axes.set_xlabel("gain on the target (nats)")
    panels[0][0].set_ylabel("loss on the source (nats)")
    _legend_below(figure, panels[0][0])
    return _titled(figure, table)


# --- cost -------------------------------------------------------------------------------------------------------------

BERT_BASE = {"width": 768, "depth": 12}


def petaflops(width: int, depth: int, trained: int, tokens: int) -> float:
    """Rough work of ``tokens`` forward through ``depth`` layers and back through the last ``trained``, 1e15 operations.

    Dense layers only, 24 d^2 operations a token and layer forward and twice that back: an estimate.
    """
    return 24.0 * width**2 * (depth + 2 * trained) * tokens / 1e15


def cost_mrpc(width: int, depth: int, *, runs: int = 10, angles: int = 13, length: int = 128) -> dict[str, float]:
    """Estimate of figure 3 the plain way, every pair padded to ``length`` tokens, in 1e15 operations."""
    train, dev = data.MRPC_COUNTS["train"], data.MRPC_COUNTS["dev"]
    use = round(0.9 * train)
    tune = petaflops(width, depth, 1, (train - use) * length) + petaflops(width, depth, 0, dev * length)
    return {
        "training": runs * petaflops(width, depth, depth // 2, 2 * use * length),
        "theta sweeps (3a, 3b)": runs * 2 * petaflops(width, depth, 0, len(mrpc.SWEEP_THETAS) * dev * length),
        "forgetting (3c)": runs * angles * tune,
    }


def cost_natural(width: int, depth: int, *, length: int = 128) -> dict[str, float]:
    """Estimate of figure 4 at the paper's sizes, one run the plain way, every pair padded, in 1e15 operations."""
    fiction, genre, snli = 77_000, 80_000, 549_367
    groups = 4 * (2 * genre // 10_000 - 1) * 10_000 + (snli // 20_000) * 20_000
    return {
        "training": petaflops(width, depth, depth, 3 * fiction * length),
        "features and losses": petaflops(width, depth, 0, (fiction + 4 * genre + snli) * length),
        "fine-tuning on groups, last layer on cached states": petaflops(width, 1, 1, groups * length),
    }


# --- command line -----------------------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the stored tables of figure 3 (``mrpc``) or 4 (``natural``)."""
    parser = argparse.ArgumentParser(prog="python -m icl_core.experiments.bert", description=main.__doc__)
    parser.add_argument("figure", choices=("mrpc", "natural"))
    parser.add_argument("--model", default=encoders.PACKAGED, help="minilm, tiny, a folder or a model's name")
    parser.add_argument("--data", default="", help="folder of the data, hub, or generated; default $ICL_CORE_DATA")
    parser.add_argument("--runs", type=int, default=10, help="how many runs")
    parser.add_argument("--zero-start", type=int, default=ZERO_START_RUNS, help="further MRPC runs with a zero head")
    parser.add_argument("--limit", type=int, default=0, help="about so many pairs a domain, four times as many of SNLI")
    parser.add_argument("--store", default=None, help="file of finished runs, to resume from")
    parser.add_argument("--device", default="cpu", help="a torch device")
    parser.add_argument("--threads", type=int, default=1, help="threads of a run")
    parser.add_argument("--out", default=".", help="folder for the tables")
    given = parser.parse_args(arguments)
    import torch

    torch.set_num_threads(_validate.integer("threads", given.threads, least=1))
    runs = range(_validate.integer("runs", given.runs, least=1))
    # Only what differs from the defaults is part of a point, so that stores stay valid as options are added.
    fewer: dict[str, Any] = {"limit": given.limit} if given.limit else {}
    if given.device != "cpu":
        fewer["device"] = given.device
    command = f"python -m icl_core.experiments.bert {given.figure} --model {given.model} --runs {given.runs}"
    command += "".join(f" --{name} {value}" for name, value in fewer.items()) + f" --threads {given.threads}"
    if given.data in (GENERATED, "hub"):
        command += f" --data {given.data}"
    store = Path(given.store) if given.store else cache_folder() / f"{given.figure}-runs.jsonl"
    if given.figure == "mrpc":
        command += f" --zero-start {given.zero_start}"
        tables = mrpc_tables(
            runs, given.model, given.data, zero_start=given.zero_start, store=store, command=command, **fewer
        )
    else:
        tables = natural_tables(runs, given.model, given.data, store=store, command=command, **fewer)
    for name, table in tables.items():
        print(write_table(Path(given.out) / f"bert-{given.figure}-{name}", table))
    return 0


if __name__ == "__main__":
    # A sweep's keys hold the name of the module: under "__main__" no finished run would be found again.
    from icl_core.experiments import bert

    raise SystemExit(bert.main())

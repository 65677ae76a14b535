"""Where fine-tuning forgets: Fig. 2(b) of the OOD paper, sign maps over the correlations, worst and best shifts."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from icl_core import _validate, features, fine_tuning, population
from icl_core.experiments import explorables
from icl_core.prompts import balanced
from icl_core.results import Table, provenance
from icl_core.theory import forgetting, ood

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CHAPTER = "forgetting"
COMMAND = f"icl-core run {CHAPTER}"

Objective = Literal["error", "forgetting", "transfer"]

# Random shifts from which each start takes the best, and the longest fine-tuning that a search follows.
_POOL, _LONGEST = 64, 100_000
# Forgetting this small beside eps counts as none in a map of signs.
_NEUTRAL = 1e-9


def _table(
    frame: pd.DataFrame, columns: dict[str, str], parameters: dict[str, Any], started: float, **extra: Any
) -> Table:
    return Table(frame, provenance(parameters, started=started, command=COMMAND, **extra), columns)


def figure_2b(
    eps: float = 0.01, eta: float = 0.1, points: int = 401, gamma1: float = 1.0, start: fine_tuning.Start = "trained"
) -> Table:
    """Forgetting of two features while the second correlation goes from -1 to 1.

    Parameters
    ----------
    eps, eta : float
        Target of the total loss and step size; the paper's values by default.
    points : int
        Number of values of gamma2, ends included.
    gamma1 : float
        The other correlation.
    start : {"trained", "alpha_star"}
        As in :func:`icl_core.fine_tuning.trained_matrix`.

    Returns
    -------
    Table
        One row per gamma2.

    Raises
    ------
    ValueError
        If an argument is out of range.

    Notes
    -----
    OOD paper, Section 6.1, Fig. 2(b).
    """
    began = time.perf_counter()
    points = _validate.integer("points", points, least=2)
    gamma2 = torch.linspace(-1, 1, points, dtype=torch.float64)
    gamma = torch.stack([torch.full_like(gamma2, _validate.real("gamma1", gamma1, least=-1, most=1)), gamma2], -1)
    run = fine_tuning.fine_tune_gamma(gamma, eps, eta, start=start)
    lost = run.forgetting
    frame = pd.DataFrame(
        {
            "gamma2": gamma2.numpy(), "F1": lost[:, 0].numpy(), "F2": lost[:, 1].numpy(),
            "F": run.total_forgetting.numpy(), "steps1": run.times[:, 0].numpy(), "steps2": run.times[:, 1].numpy(),
        }
    )  # fmt: skip
    columns = {
        "gamma2": "correlation of the second feature", "F1": "forgetting of v_1", "F2": "forgetting of v_2",
        "F": "total forgetting", "steps1": "steps until u_1 converged", "steps2": "steps until u_2 converged",
    }  # fmt: skip
    return _table(frame, columns, {"eps": eps, "eta": eta, "points": points, "gamma1": gamma1, "start": start}, began)


def draw_figure_2b(table: Table) -> Figure:
    """Draw total and per-feature forgetting over gamma2."""
    from matplotlib.figure import Figure

    frame = table.frame
    figure = Figure(layout="constrained")
    axes = figure.subplots()
    axes.axhline(0, color="0.5", linewidth=0.8)
    for column, label in (("F", r"total $F$"), ("F1", r"$F_{v_1}$"), ("F2", r"$F_{v_2}$")):
        axes.plot(frame["gamma2"], frame[column], label=label)
    total = frame["F"].to_numpy()
    x = frame["gamma2"].to_numpy()
    axes.fill_between(x, 0, total, where=total > 0, alpha=0.2, linewidth=0, interpolate=True)
    axes.set(xlabel=r"$\gamma_2$", ylabel="forgetting", xlim=(-1, 1))
    axes.legend()
    return figure


def two_feature_map(eps: Sequence[float] = (0.1, 0.05, 0.01, 1e-4), points: int = 201) -> Table:
    """Forgetting of two features over the square of correlations, from the exact gradient flow.

    Parameters
    ----------
    eps : sequence of float
        Targets of the total loss, each in (0, 1/4).
    points : int
        Grid points per side, ends included.

    Returns
    -------
    Table
        One row per (eps, gamma1, gamma2).

    Raises
    ------
    ValueError
        If an argument is out of range.
    """
    began = time.perf_counter()
    targets = _validate.reals("eps", eps, above=0.0, below=0.25)
    side = np.linspace(-1, 1, _validate.integer("points", points, least=2))
    e, a, b = np.meshgrid(targets, side, side, indexing="ij")
    lost = forgetting.two_features(a, b, e).forgetting
    frame = pd.DataFrame(
        {
            "eps": e.ravel(), "gamma1": a.ravel(), "gamma2": b.ravel(), "F1": lost[..., 0].ravel(),
            "F2": lost[..., 1].ravel(), "F": lost.sum(-1).ravel(),
        }
    )  # fmt: skip
    columns = {
        "eps": "target of the total loss", "gamma1": "correlation of the first feature",
        "gamma2": "correlation of the second feature", "F1": "forgetting of v_1", "F2": "forgetting of v_2",
        "F": "total forgetting",
    }  # fmt: skip
    return _table(frame, columns, {"eps": targets, "points": points}, began)


def boundary(eps: Sequence[float] | None = None, points: int = 1001, gamma1: float = 1.0) -> Table:
    """Where the total forgetting of two features changes sign, and its largest value, as eps goes down.

    Parameters
    ----------
    eps : sequence of float, optional
        Targets; by default 60 from 1e-8 to 0.2.
    points : int
        Grid points of gamma2 on [-1, 0], where the change lies; the change is then located by bisection.
    gamma1 : float
        The other correlation.

    Returns
    -------
    Table
        One row per eps: ``zero`` is the gamma2 above which the total forgetting is negative (nan where it is never
        positive), ``peak`` the largest F / eps and ``at`` its place.

    Raises
    ------
    ValueError
        If an argument is out of range.
    """
    began = time.perf_counter()
    targets = list(np.geomspace(1e-8, 0.2, 60)) if eps is None else _validate.reals("eps", eps, above=0.0, below=0.25)
    side = np.linspace(-1, 0, _validate.integer("points", points, least=3))
    rows = []
    for target in targets:
        total = forgetting.two_features(gamma1, side, target).forgetting.sum(-1)
        positive = np.nonzero(total > 1e-13 * target)[0]
        zero = math.nan
        if positive.size:
            low, high = side[positive[-1]], side[min(positive[-1] + 1, side.size - 1)]
            for _ in range(50):
                middle = (low + high) / 2
                inside = forgetting.two_features(gamma1, middle, target).forgetting.sum() > 0
                low, high = (middle, high) if inside else (low, middle)
            zero = low
        best = int(total.argmax())
        rows.append(
            {
                "eps": target, "zero": zero, "peak": total[best] / target if positive.size else 0.0,
                "at": side[best] if positive.size else math.nan, "edge": float(forgetting.edge_coefficient(target)),
            }
        )  # fmt: skip
    columns = {
        "eps": "target of the total loss", "zero": "gamma2 at which total forgetting turns negative",
        "peak": "largest total forgetting over eps", "at": "gamma2 of that largest value",
        "edge": "sign of total forgetting next to gamma2 = -1",
    }  # fmt: skip
    parameters = {"eps": targets, "points": points, "gamma1": gamma1}
    return _table(pd.DataFrame(rows), columns, parameters, began)


def draw_boundary(table: Table) -> Figure:
    """Draw the sign change and the place of the largest forgetting over eps."""
    from matplotlib.figure import Figure

    frame = table.frame
    figure = Figure(layout="constrained")
    axes = figure.subplots()
    axes.plot(frame["eps"], frame["zero"], label="total forgetting changes sign")
    axes.plot(frame["eps"], frame["at"], label="total forgetting is largest")
    axes.fill_between(frame["eps"], -1, frame["zero"], alpha=0.15, linewidth=0)
    axes.axvline(forgetting.critical_eps(), color="0.4", linewidth=0.8)
    axes.text(forgetting.critical_eps(), -0.05, r"$\epsilon_c$ ", ha="right", va="top")
    axes.set(xscale="log", xlabel=r"$\epsilon$", ylabel=r"$\gamma_2$", ylim=(-1.02, 0))
    axes.legend(loc="lower left")
    return figure


def many_feature_map(K: Sequence[int] = (3, 4, 6), eps: float = 0.01, eta: float = 0.1, points: int = 61) -> Table:
    """Forgetting for K features when one has correlation ``own`` and all others ``rest``.

    Parameters
    ----------
    K : sequence of int
        Numbers of features.
    eps, eta : float
        Target of the total loss and step size.
    points : int
        Grid points per side, ends included.

    Returns
    -------
    Table
        One row per (K, own, rest): forgetting of the odd feature, of one of the others, and in total.

    Raises
    ------
    ValueError
        If an argument is out of range.
    """
    began = time.perf_counter()
    side = torch.linspace(-1, 1, _validate.integer("points", points, least=2), dtype=torch.float64)
    own, rest = (x.reshape(-1) for x in torch.meshgrid(side, side, indexing="ij"))
    frames = []
    for size in K:
        size = _validate.integer("K", size, least=2)
        gamma = torch.cat([own.unsqueeze(-1), rest.unsqueeze(-1).expand(-1, size - 1)], -1)
        run = fine_tuning.fine_tune_gamma(gamma, eps, eta)
        lost = run.forgetting
        frames.append(
            pd.DataFrame(
                {
                    "K": size, "own": own.numpy(), "rest": rest.numpy(), "F1": lost[:, 0].numpy(),
                    "F2": lost[:, 1].numpy(), "F": run.total_forgetting.numpy(),
                }
            )
        )  # fmt: skip
    columns = {
        "K": "number of features", "own": "correlation of the first feature", "rest": "correlation of all others",
        "F1": "forgetting of the first feature", "F2": "forgetting of each other feature", "F": "total forgetting",
    }  # fmt: skip
    parameters = {"K": list(K), "eps": eps, "eta": eta, "points": points}
    return _table(pd.concat(frames, ignore_index=True), columns, parameters, began)


def draw_map(
    table: Table, panel: Literal["eps", "K"], values: Sequence[str] = ("F", "F1", "F2"), clip: float = 1.0
) -> Figure:
    """Draw a map as one row per panel value and one column per quantity, coloured by forgetting over eps.

    Parameters
    ----------
    table : Table
        From :func:`two_feature_map` (``panel="eps"``) or :func:`many_feature_map` (``panel="K"``).
    panel : {"eps", "K"}
        Column whose values make the rows.
    values : sequence of str
        Columns to draw.
    clip : float
        Forgetting over eps at which the colours saturate.

    Returns
    -------
    Figure
        The black line is where forgetting is zero; dotted lines are gamma = 0.
    """
    from matplotlib.figure import Figure

    _validate.choice("panel", panel, ("eps", "K"))
    frame = table.frame
    x, y = ("gamma1", "gamma2") if panel == "eps" else ("own", "rest")
    names = {"F": "total", "F1": "first feature", "F2": "second feature" if panel == "eps" else "each other feature"}
    levels = list(dict.fromkeys(frame[panel]))
    figure = Figure(figsize=(2.15 * len(values) + 0.9, 2.05 * len(levels) + 0.3), layout="constrained")
    grid = np.atleast_2d(figure.subplots(len(levels), len(values), sharex=True, sharey=True, squeeze=False))
    mesh: Any = None
    for row, level in enumerate(levels):
        part = frame[frame[panel] == level]
        eps = level if panel == "eps" else table.provenance["parameters"]["eps"]
        for column, value in enumerate(values):
            axes = grid[row, column]
            sheet = part.pivot(index=y, columns=x, values=value) / eps
            z = sheet.to_numpy()
            mesh = axes.pcolormesh(
                sheet.columns, sheet.index, np.clip(z, -clip, clip), cmap="PuOr_r", vmin=-clip, vmax=clip,
                shading="nearest", rasterized=True,
            )  # fmt: skip
            shown = np.where(np.abs(z) < _NEUTRAL, 0.0, z)
            if shown.min() < 0 < shown.max():
                axes.contour(sheet.columns, sheet.index, shown, levels=[0], colors="k", linewidths=0.9)
            axes.grid(False)
            axes.axhline(0, color="0.4", linewidth=0.5, linestyle=":")
            axes.axvline(0, color="0.4", linewidth=0.5, linestyle=":")
            axes.set_aspect("equal")
            if row == 0:
                axes.set_title(names[value], fontsize=10)
        label = rf"$\epsilon = {level:g}$" if panel == "eps" else rf"$K = {level:g}$"
        second = r"$\gamma_2$" if panel == "eps" else r"$\gamma_{n \neq 1}$"
        grid[row, 0].set_ylabel(f"{label}\n{second}")
    for axes in grid[-1]:
        axes.set_xlabel(r"$\gamma_1$")
    figure.colorbar(mesh, ax=grid, label=r"forgetting / $\epsilon$", shrink=0.7, extend="both")
    return figure


class Paths(NamedTuple):
    """Two features along the gradient flow of fine-tuning; last axes: time, then feature.

    ``times`` has no feature axis. ``rise`` is ``Delta_{m,alpha}`` so far, ``gap_U`` and ``gap_V`` are score gaps
    ``alpha_m - beta_{n,m}``.
    """

    times: np.ndarray
    rise: np.ndarray
    gap_U: np.ndarray
    gap_V: np.ndarray

    @property
    def loss_U(self) -> np.ndarray:
        """Loss on the features U."""
        return 0.5 / (1 + np.exp(self.gap_U)) ** 2

    @property
    def loss_V(self) -> np.ndarray:
        """Loss on the features V."""
        return 0.5 / (1 + np.exp(self.gap_V)) ** 2


def paths(gamma1: Any, gamma2: Any, eps: Any, points: int = 41) -> Paths:
    """Follow two features through fine-tuning, exactly.

    Parameters
    ----------
    gamma1, gamma2, eps : array, broadcastable
        As in :func:`icl_core.theory.forgetting.two_features`.
    points : int
        Times per instance, from 0 to the end, evenly spaced in log(1 + time).

    Returns
    -------
    Paths
        Arrays of the broadcast shape followed by (points,) and (points, 2).

    Raises
    ------
    ValueError
        If an argument is out of range.

    Notes
    -----
    The flow time at a score gap is known in closed form (:func:`icl_core.theory.forgetting.elapsed`); it is inverted by
    bisection.
    """
    points = _validate.integer("points", points, least=2)
    end = forgetting.two_features(gamma1, gamma2, eps)
    a, b, e = np.broadcast_arrays(*(np.asarray(x, dtype=float) for x in (gamma1, gamma2, eps)))
    target = np.log((1 - np.sqrt(e)) / np.sqrt(e))[..., None, None]
    p = np.stack([a * (a + b), b * (a + b)], axis=-1)[..., None, :]
    start = p * target / 2
    longest = np.clip(end.times.max(-1), 0, None)
    times = np.expm1(np.linspace(0, 1, points) * np.log1p(longest)[..., None])
    due = forgetting.elapsed(start) + times[..., None]
    low = np.broadcast_to(start, due.shape).copy()
    high = np.broadcast_to(start + 2 * end.last[..., None, :], due.shape) + 1e-12
    for _ in range(60):
        middle = (low + high) / 2
        late = forgetting.elapsed(middle) > due
        low, high = np.where(late, low, middle), np.where(late, middle, high)
    rise = (low - start) / 2
    return Paths(times, rise, low, target + p * rise)


def exponents(gamma1: float = 1.0, eps: float = 0.01, eta: float = 0.01, points: int = 81) -> Table:
    """Measure the exponents of Theorem H.1 by gradient descent, beside c1, d1 and c2 of Theorem H.5.

    Parameters
    ----------
    gamma1 : float
        The larger correlation.
    eps, eta : float
        Target of the total loss, and step size.
    points : int
        Values of gamma2 strictly between ``-|gamma1|`` and ``|gamma1|``.

    Returns
    -------
    Table
        One row per gamma2; a measured exponent is ``log_g(1 / sqrt(2 L) - 1)``.

    Raises
    ------
    ValueError
        If an argument is out of range.
    """
    began = time.perf_counter()
    gamma1 = _validate.real("gamma1", gamma1, least=-1.0, most=1.0)
    g = forgetting.g_eps(eps)
    points = _validate.integer("points", points, least=2)
    gamma2 = torch.linspace(-abs(gamma1), abs(gamma1), points + 2, dtype=torch.float64)[1:-1]
    run = fine_tuning.fine_tune_gamma(torch.stack([torch.full_like(gamma2, gamma1), gamma2], -1), eps, eta)
    measured = torch.log(1 / torch.sqrt(2 * run.losses_on_V) - 1).numpy() / math.log(g)
    x = gamma2.numpy()
    right, printed = forgetting.constants(gamma1, x), forgetting.constants_printed(gamma1, x)
    frame = pd.DataFrame(
        {
            "gamma2": x, "exponent1": measured[:, 0], "exponent2": measured[:, 1], "c1": right.c1, "d1": right.d1,
            "d1_printed": printed.d1, "c2": right.c2,
        }
    )  # fmt: skip
    columns = {
        "gamma2": "correlation of the second feature", "exponent1": "measured exponent of L_v1",
        "exponent2": "measured exponent of L_v2", "c1": "c1 of Theorem H.5", "d1": "d1, corrected",
        "d1_printed": "d1 of Theorem H.5 as printed", "c2": "c2 of Theorem H.5",
    }  # fmt: skip
    return _table(frame, columns, {"gamma1": gamma1, "eps": eps, "eta": eta, "points": points}, began)


def draw_exponents(table: Table) -> Figure:
    """Draw measured exponents over gamma2 with the constants of Theorem H.5."""
    from matplotlib.figure import Figure

    frame = table.frame
    x = frame["gamma2"]
    figure = Figure(figsize=(7.2, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2, sharex=True)
    left.fill_between(x, frame["d1"], frame["c1"], color="#0072B2", alpha=0.15, linewidth=0)
    left.plot(x, frame["c1"], color="#0072B2", ls="--", label="$c_1$")
    left.plot(x, frame["d1"], color="#0072B2", ls=":", label="$d_1$, corrected")
    left.plot(x, frame["d1_printed"], color="#D55E00", ls="-.", label="$d_1$, printed")
    left.plot(x, frame["exponent1"], color="#000000", ls="-", lw=1.2, label="gradient descent")
    right.plot(x, frame["c2"], color="#0072B2", ls="--", label="$c_2$")
    right.plot(x, frame["exponent2"], color="#000000", ls=":", lw=1.8, label="gradient descent")
    for axes, name in ((left, "$L_{v_1}$"), (right, "$L_{v_2}$")):
        axes.axhline(1, color="0.5", linewidth=0.8, linestyle="-")
        axes.set(xlabel=r"$\gamma_2$", ylabel=f"exponent of {name}")
        axes.legend(fontsize=8)
    return figure


def corollary_map(eps: Sequence[float] = (0.05, 0.01, 1e-4), points: int = 121) -> Table:
    """Judge Corollary H.2 (3) and (4), printed and corrected, over the correlations with ``gamma1 > |gamma2|``.

    Parameters
    ----------
    eps : sequence of float
        Targets of the total loss, each in (0, 1/4).
    points : int
        Grid points of gamma2 on [-1, 1]; gamma1 has half as many on (0, 1].

    Returns
    -------
    Table
        One row per (eps, gamma1, gamma2). A judgement is 0 where the corollary is silent, 1 where what it says is
        true, 2 where it is false (or where both of its items apply, which contradict each other).

    Raises
    ------
    ValueError
        If an argument is out of range.

    Notes
    -----
    Only products of correlations matter, so gamma1 > 0 loses nothing.
    """
    began = time.perf_counter()
    targets = _validate.reals("eps", eps, above=0.0, below=0.25)
    points = _validate.integer("points", points, least=5)
    frames = []
    for target in targets:
        a, b = np.meshgrid(np.linspace(0, 1, points // 2 + 1)[1:], np.linspace(-1, 1, points), indexing="ij")
        keep = np.abs(b) < a - 1e-9
        a, b = a[keep], b[keep]
        total = forgetting.two_features(a, b, target).forgetting.sum(-1)
        as_printed, right = forgetting.constants_printed(a, b), forgetting.constants(a, b)
        says = {
            "printed": (
                as_printed.c2 < forgetting.threshold_printed(as_printed.c1, target),
                as_printed.c2 > forgetting.threshold_printed(as_printed.d1, target),
            ),
            "corrected": (
                right.c2 > forgetting.threshold(right.d1, target),
                right.c2 < forgetting.threshold(right.c1, target),
            ),
        }
        columns = {"eps": target, "gamma1": a, "gamma2": b, "F": total}
        for name, (negative, positive) in says.items():
            wrong = (negative & (total >= 0)) | (positive & (total <= 0))
            columns[name] = np.where(negative | positive, np.where(wrong, 2, 1), 0)
        frames.append(pd.DataFrame(columns))
    meaning = {
        "eps": "target of the total loss", "gamma1": "larger correlation", "gamma2": "smaller correlation",
        "F": "total forgetting", "printed": "printed items (3), (4): 0 silent, 1 true, 2 false",
        "corrected": "corrected items: 0 silent, 1 true, 2 false",
    }  # fmt: skip
    parameters = {"eps": targets, "points": points}
    return _table(pd.concat(frames, ignore_index=True), meaning, parameters, began)


def draw_corollary_map(table: Table) -> Figure:
    """Draw where Corollary H.2 (3) and (4) speak and where they are wrong: one column per eps."""
    from matplotlib.colors import ListedColormap
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    colors = ("#F2F2F2", "#8CC4E8", "#D55E00")
    frame = table.frame
    levels = list(dict.fromkeys(frame["eps"]))
    figure = Figure(figsize=(1.9 * len(levels) + 0.9, 6.2), layout="constrained")
    grid = figure.subplots(2, len(levels), sharex=True, sharey=True, squeeze=False)
    for column, level in enumerate(levels):
        part = frame[frame["eps"] == level]
        truth = part.pivot(index="gamma2", columns="gamma1", values="F")
        for row, name in enumerate(("printed", "corrected")):
            axes = grid[row, column]
            sheet = part.pivot(index="gamma2", columns="gamma1", values=name)
            axes.pcolormesh(sheet.columns, sheet.index, np.ma.masked_invalid(sheet), cmap=ListedColormap(colors),
                            vmin=-0.5, vmax=2.5, shading="nearest", rasterized=True)  # fmt: skip
            axes.contour(truth.columns, truth.index, np.ma.masked_invalid(truth), levels=[0], colors="k",
                         linewidths=0.9)  # fmt: skip
            axes.grid(False)
            axes.set_title(rf"{name}, $\epsilon={level:g}$", fontsize=9)
    for axes in grid[-1]:
        axes.set_xlabel(r"$\gamma_1$")
    for axes in grid[:, 0]:
        axes.set_ylabel(r"$\gamma_2$")
    names = ("says nothing", "says the sign of $F$", "says the wrong sign")
    handles = [Patch(facecolor=c, edgecolor="0.6", label=n) for c, n in zip(colors, names, strict=True)]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, fontsize=8, frameon=False)
    return figure


def draw_single_feature(table: Table) -> Figure:
    """Draw forgetting of one feature among K, with the printed and the corrected border of Theorem H.3 (1)."""
    from matplotlib.figure import Figure

    frame, eps = table.frame, table.provenance["parameters"]["eps"]
    sizes = list(dict.fromkeys(frame["K"]))
    figure = Figure(figsize=(2.3 * len(sizes) + 0.7, 3.4), layout="constrained")
    grid = figure.subplots(1, len(sizes), sharey=True, squeeze=False)[0]
    mesh: Any = None
    for axes, K in zip(grid, sizes, strict=True):
        sheet = frame[frame["K"] == K].pivot(index="rest", columns="own", values="F1") / eps
        mesh = axes.pcolormesh(sheet.columns, sheet.index, np.clip(sheet, -0.4, 0.4), cmap="PuOr_r", vmin=-0.4,
                               vmax=0.4, shading="nearest", rasterized=True)  # fmt: skip
        x = np.array([-1.0, 1.0])
        axes.plot(x, -x, color="#D55E00", ls="--", lw=1.4, label="printed border")
        axes.plot(x, -(K - 1) * x, color="#000000", ls="-", lw=1.4, label="corrected border")
        axes.set(xlim=(-1, 1), ylim=(-1, 1), xlabel=r"$\gamma_k$", title=f"$K={K}$")
        axes.set_aspect("equal")
        axes.grid(False)
    grid[0].set_ylabel(r"$\gamma_n$, all $n\neq k$")
    handles, labels = grid[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, fontsize=8, frameon=False)
    figure.colorbar(mesh, ax=list(grid), label=r"$F_{v_k}/\epsilon$", shrink=0.7, extend="both")
    return figure


def draw_paths(table: Table) -> Figure:
    """Draw losses on both domains and forgetting over the flow time of one fine-tuning run of two features."""
    from matplotlib.figure import Figure

    frame, eps = table.frame, table.provenance["parameters"]["eps"]
    figure = Figure(figsize=(7.6, 3.2), layout="constrained")
    first, second = figure.subplots(1, 2, sharex=True)
    x = 1 + frame["time"]
    for m, color in ((1, "#0072B2"), (2, "#D55E00")):
        first.plot(x, frame[f"loss_U{m}"], color=color, ls="-", label=f"$L_{{u_{m}}}$")
        first.plot(x, frame[f"loss_V{m}"], color=color, ls="--", label=f"$L_{{v_{m}}}$")
        second.plot(x, frame[f"F{m}"] / eps, color=color, ls="--", label=f"$F_{{v_{m}}}$")
    first.axhline(eps / 2, color="#000000", ls=":", lw=1)
    second.plot(x, (frame["F1"] + frame["F2"]) / eps, color="#000000", ls="-", label="total $F$")
    second.axhline(0, color="0.5", lw=0.8, ls="-")
    first.set(xscale="log", yscale="log", xlabel=r"1 + steps $\times\,\eta$", ylabel="loss")
    second.set(xlabel=r"1 + steps $\times\,\eta$", ylabel=r"forgetting / $\epsilon$")
    for axes in (first, second):
        axes.legend(fontsize=8)
    return figure


def path_table(gamma1: float, gamma2: float, eps: float, points: int = 121) -> Table:
    """Tabulate one run of :func:`paths`: losses on both domains and forgetting over time."""
    began = time.perf_counter()
    run = paths(gamma1, gamma2, eps, points)
    columns = {"time": run.times}
    for m in (0, 1):
        columns[f"loss_U{m + 1}"], columns[f"loss_V{m + 1}"] = run.loss_U[:, m], run.loss_V[:, m]
        columns[f"F{m + 1}"] = run.loss_V[:, m] - eps / 2
    meaning = {"time": "flow time, steps times eta"}
    for m in (1, 2):
        meaning |= {
            f"loss_U{m}": f"loss on u_{m}", f"loss_V{m}": f"loss on v_{m}", f"F{m}": f"forgetting of v_{m} so far",
        }  # fmt: skip
    parameters = {"gamma1": gamma1, "gamma2": gamma2, "eps": eps, "points": points}
    return _table(pd.DataFrame(columns), meaning, parameters, began)


def explorable(
    steps: int = 11, eps: Sequence[float] = (0.1, 0.01, 0.001), points: int = 21, command: str = COMMAND
) -> explorables.Explorable:
    """Compute the tables behind the figure with controls for both correlations and eps.

    Parameters
    ----------
    steps : int
        Values of each correlation between -1 and 1.
    eps : sequence of float
        Targets to choose from, each in (0, 1/4).
    points : int
        Times per curve.
    command : str
        Shell command that makes the tables again.

    Returns
    -------
    Explorable

    Raises
    ------
    ValueError
        If an argument is out of range.
    """
    began = time.perf_counter()
    targets = _validate.reals("eps", eps, above=0.0, below=0.25)
    side = np.linspace(-1, 1, _validate.integer("steps", steps, least=3, most=41))
    e, a, b = np.meshgrid(targets, side, side, indexing="ij")
    run = paths(a, b, e, points)
    scale = np.log((1 - np.sqrt(e)) / np.sqrt(e))[..., None] / 2
    first, second = run.rise[..., 0], run.rise[..., 1]
    product = (a * b)[..., None]
    lost = (run.loss_V - e[..., None, None] / 2) / e[..., None, None]
    curves = {
        "time": 1 + run.times,
        "alpha_u1": (a**2)[..., None] * scale + first, "alpha_u2": (b**2)[..., None] * scale + second,
        "beta_u1": -product * scale - first, "beta_u2": -product * scale - second,
        "alpha_v1": scale + (a**2)[..., None] * first, "alpha_v2": scale + (b**2)[..., None] * second,
        "beta_v1": -scale - product * first, "beta_v2": -scale - product * second,
        "loss_u1": run.loss_U[..., 0], "loss_u2": run.loss_U[..., 1],
        "loss_v1": run.loss_V[..., 0], "loss_v2": run.loss_V[..., 1],
        "F1": lost[..., 0], "F2": lost[..., 1], "F": lost.sum(-1),
    }  # fmt: skip
    where = ("eps", "gamma1", "gamma2")
    tables = {
        name: explorables.Lookup(where, explorables.rounded(torch.from_numpy(np.ascontiguousarray(x)), 3))
        for name, x in curves.items()
    }
    for name in ("F1", "F2", "F"):
        last = torch.from_numpy(np.ascontiguousarray(curves[name][..., -1] * e))
        last = torch.where(last.abs() < _NEUTRAL * torch.from_numpy(e), 0.0, last)
        tables[f"{name}_end"] = explorables.Lookup(where, explorables.rounded(last, 3))
    shown = tuple(f"{x:.2g}" for x in side)
    pairs = (("u", "Scores on the new features U"), ("v", "Scores on the training features V"))
    time_axis = "1 + steps × η"

    def lines(title: str, y: str, series: dict[str, str], log_y: bool = False) -> explorables.Lines:
        drawn = tuple(explorables.Series(label, table) for table, label in series.items())
        return explorables.Lines(title, "time", time_axis, y, drawn, log_x=True, log_y=log_y)

    return explorables.Explorable(
        name="forgetting-two-features",
        title="Fine-tune two features and watch what the old ones lose",
        controls=(
            explorables.Control("gamma1", "Correlation γ₁", tuple(side.tolist()), shown, start=steps - 1),
            explorables.Control("gamma2", "Correlation γ₂", tuple(side.tolist()), shown, start=steps // 5),
            explorables.Control("eps", "Target ε", tuple(targets), start=min(1, len(targets) - 1), kind="choice"),
        ),
        panels=(
            *(
                lines(
                    title, "score", {
                        f"alpha_{w}1": f"α of {w}₁", f"alpha_{w}2": f"α of {w}₂", f"beta_{w}1": f"β for query {w}₁",
                        f"beta_{w}2": f"β for query {w}₂",
                    },
                )
                for w, title in pairs
            ),
            lines("Losses on both domains", "loss",
                  {"loss_u1": "u₁", "loss_u2": "u₂", "loss_v1": "v₁", "loss_v2": "v₂"}, log_y=True),
            lines("Forgetting, divided by ε", "forgetting / ε", {"F1": "v₁", "F2": "v₂", "F": "total"}),
        ),
        tables=tables,
        sentence="γ₁ = {gamma1}, γ₂ = {gamma2}, ε = {eps}: fine-tuning changes the loss on v₁ by {F1_end}, on v₂ by "
        "{F2_end}, in total by {F_end}.",
        provenance=provenance({"steps": steps, "eps": targets, "points": points}, started=began, command=command),
    )  # fmt: skip


def shift_of(overlap: Tensor, outside: Tensor | None = None, d: int | None = None) -> tuple[Tensor, Tensor]:
    """Return sets V, U (d, K) with the given overlap ``M = V'U``, V being the first K unit vectors.

    Parameters
    ----------
    overlap : Tensor, shape (K, K)
        Any matrix with singular values at most 1.
    outside : Tensor, shape (K, K), optional
        Rotation of the part of U outside span(V).
    d : int, optional
        Dimension, at least 2 K; the default.

    Raises
    ------
    ValueError
        If the overlap has a singular value above 1 or d is too small.
    """
    K = overlap.shape[-1]
    d = _validate.integer("d", 2 * K if d is None else d, least=2 * K)
    values, vectors = torch.linalg.eigh(torch.eye(K, dtype=overlap.dtype) - overlap.mT @ overlap)
    if float(values.min()) < -1e-9:
        raise ValueError(f"overlap must have singular values at most 1, got {1 - float(values.min()):.6g} squared")
    root = vectors @ torch.diag(values.clamp(min=0).sqrt()) @ vectors.mT
    U = torch.zeros(d, K, dtype=overlap.dtype)
    U[:K], U[K : 2 * K] = overlap, root if outside is None else outside @ root
    return torch.eye(d, K, dtype=overlap.dtype), U


def ood_error(overlap: Tensor, alpha: float) -> Tensor:
    """Total OOD error after training, from ``M = V'U`` (..., K, K) alone (OOD paper, Theorem 5.1)."""
    scores = overlap.mT @ ood.symmetric_scores(overlap.shape[-1], alpha) @ overlap
    return population.losses(scores, balanced(overlap.shape[-1])).sum(-1)


def extreme_shift(
    objective: Objective,
    angle: float,
    K: int = 3,
    eps: float = 0.01,
    eta: float = 0.5,
    starts: int = 4,
    seed: int = 0,
    effort: int = 60,
) -> dict[str, Any]:
    """Look for the worst or best shift among all U whose principal angles with span(V) all equal ``angle``.

    Then ``M = V'U`` is ``cos(angle)`` times an orthogonal matrix, and every such M occurs for d >= 2 K. The search runs
    over orthogonal matrices (the square Stiefel manifold), both determinants.

    Parameters
    ----------
    objective : {"error", "forgetting", "transfer"}
        Largest OOD error after training; largest or most negative total forgetting after fine-tuning.
    angle : float
        Principal angle in radians, in [0, pi/2].
    K : int
        Number of features.
    eps, eta : float
        Target of the total loss and step size.
    starts : int
        Restarts, half of them per determinant.
    seed : int
        Seed of the random starts.
    effort : int
        Iterations per start.

    Returns
    -------
    dict
        ``value``, ``overlap`` (nested lists), ``start_values`` (the best of each start), the arguments.

    Raises
    ------
    ValueError
        If an argument is out of range.

    Notes
    -----
    Each start begins at the best of a random pool. The error is then climbed by pymanopt's conjugate gradients with
    torch derivatives, forgetting by a simplex in the group's tangent coordinates.
    """
    _validate.choice("objective", objective, ("error", "forgetting", "transfer"))
    angle = _validate.real("angle", angle, least=0.0, most=math.pi / 2)
    K, starts = _validate.integer("K", K, least=2), _validate.integer("starts", starts, least=1)
    alpha = ood.alpha_star(K, eps)
    trained = ood.symmetric_scores(K, alpha)
    sign = -1.0 if objective == "transfer" else 1.0
    source = features.generator(seed)
    found: list[tuple[float, Tensor]] = []
    for start in range(starts):
        # The orthogonal group has two parts; the second is the first, mirrored.
        pool = math.cos(angle) * features.orthonormal(K, K, generator=source, batch=(_POOL,))
        turned = torch.linalg.det(pool) * (1 if start % 2 == 0 else -1) < 0
        pool[turned, :, 0] *= -1
        if objective == "error":
            begin = pool[int(ood_error(pool, alpha).argmax())]
            found.append(_ascend_error(begin, alpha, effort))
        else:
            lost = fine_tuning.from_overlap(trained, pool, eps, eta, max_steps=_LONGEST, on_failure="return")
            begin = pool[int((sign * lost.total_forgetting).argmax())]
            found.append(_ascend_forgetting(begin, trained, eps, eta, sign, effort))
    best, overlap = max(found, key=lambda entry: entry[0])
    return {
        "objective": objective, "angle": angle, "K": K, "eps": eps, "eta": eta, "seed": seed,
        "value": sign * best, "overlap": overlap.tolist(), "start_values": [sign * value for value, _ in found],
    }  # fmt: skip


def _ascend_error(begin: Tensor, alpha: float, effort: int) -> tuple[float, Tensor]:
    """Climb the OOD error from one overlap over ``begin @ R``, R on the Stiefel manifold (K, K)."""
    import pymanopt

    K = begin.shape[-1]
    manifold = pymanopt.manifolds.Stiefel(K, K)

    @pymanopt.function.pytorch(manifold)
    def cost(point: Tensor) -> Tensor:
        return -ood_error(begin @ point, alpha)

    solver = pymanopt.optimizers.ConjugateGradient(max_iterations=effort, verbosity=0)
    result = solver.run(pymanopt.Problem(manifold, cost), initial_point=np.eye(K))
    return -float(result.cost), begin @ torch.from_numpy(np.array(result.point))


def _ascend_forgetting(
    begin: Tensor, trained: Tensor, eps: float, eta: float, sign: float, effort: int
) -> tuple[float, Tensor]:
    """Climb signed forgetting from one overlap; its stopping rule makes it only piecewise smooth, so by simplex."""
    from scipy.optimize import minimize

    K = begin.shape[-1]
    upper = torch.triu_indices(K, K, 1)

    def turned(x: np.ndarray) -> Tensor:
        skew = torch.zeros(K, K, dtype=torch.float64)
        skew[upper[0], upper[1]] = torch.from_numpy(x)
        return begin @ torch.linalg.matrix_exp(skew - skew.T)

    def cost(x: np.ndarray) -> float:
        run = fine_tuning.from_overlap(trained, turned(x), eps, eta, max_steps=_LONGEST, on_failure="return")
        return -sign * float(run.total_forgetting)

    size = upper.shape[1]
    simplex = np.vstack([np.zeros(size), 0.2 * np.eye(size)])
    options = {"initial_simplex": simplex, "maxfev": effort, "xatol": 1e-6, "fatol": 1e-12}
    result = minimize(cost, np.zeros(size), method="Nelder-Mead", options=options)
    return -float(result.fun), turned(result.x)


def extreme_shifts(
    angles: Sequence[float] = tuple(np.linspace(0, 0.5, 11)[:-1] * math.pi),
    K: int = 3,
    eps: float = 0.01,
    eta: float = 0.5,
    starts: int = 4,
    seed: int = 0,
    effort: int = 40,
    random: int = 200,
) -> Table:
    """Worst and best shifts over the principal angle, beside random shifts at the same angle.

    Parameters
    ----------
    angles : sequence of float
        Principal angles in radians.
    K, eps, eta, starts, seed, effort
        As in :func:`extreme_shift`.
    random : int
        Random shifts per angle.

    Returns
    -------
    Table
        One row per angle: extremes found, and quantiles and means over random shifts.

    Raises
    ------
    ValueError
        If an argument is out of range.
    """
    began = time.perf_counter()
    trained = ood.symmetric_scores(K, ood.alpha_star(K, eps))
    source = features.generator(seed)
    draws = features.orthonormal(K, K, generator=source, batch=(_validate.integer("random", random, least=1),))
    rows = []
    for angle in angles:
        row: dict[str, Any] = {"angle": angle}
        for objective in ("error", "forgetting", "transfer"):
            row[objective] = extreme_shift(objective, angle, K, eps, eta, starts, seed, effort)["value"]
        run = fine_tuning.from_overlap(trained, math.cos(angle) * draws, eps, eta, on_failure="return")
        errors = ood_error(math.cos(angle) * draws, ood.alpha_star(K, eps))
        row.update(
            {
                "random_error": float(errors.mean()), "random_error_max": float(errors.max()),
                "random_forgetting": float(run.total_forgetting.mean()),
                "random_forgetting_max": float(run.total_forgetting.max()),
                "random_forgetting_min": float(run.total_forgetting.min()),
            }
        )  # fmt: skip
        rows.append(row)
    columns = {
        "angle": "all principal angles between span(V) and span(U), radians", "error": "largest OOD error found",
        "forgetting": "largest total forgetting found", "transfer": "most negative total forgetting found",
        "random_error": "mean OOD error of random shifts", "random_error_max": "its largest value",
        "random_forgetting": "mean total forgetting of random shifts",
        "random_forgetting_max": "its largest value", "random_forgetting_min": "its smallest value",
    }  # fmt: skip
    parameters = {
        "angles": list(angles), "K": K, "eps": eps, "eta": eta, "starts": starts, "effort": effort, "random": random,
    }  # fmt: skip
    return _table(pd.DataFrame(rows), columns, parameters, began, optimiser="pymanopt")


def draw_extreme_shifts(table: Table) -> Figure:
    """Draw OOD error and forgetting over the principal angle: what the search found beside random shifts."""
    from matplotlib.figure import Figure

    frame, given = table.frame, table.provenance["parameters"]
    figure = Figure(figsize=(6.4, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    degrees = np.degrees(frame["angle"])
    left.plot(degrees, frame["error"], label="largest found")
    left.plot(degrees, frame["random_error"], label="random, mean")
    left.axhline(ood.eps_limit(given["K"]), color="0.4", linewidth=0.8, linestyle=":")
    left.text(0, ood.eps_limit(given["K"]), "uniform attention", va="bottom", fontsize=8)
    left.set(xlabel="principal angle (degrees)", ylabel="OOD error")
    right.axhline(0, color="0.5", linewidth=0.8)
    right.plot(degrees, frame["forgetting"], label="largest found")
    right.plot(degrees, frame["random_forgetting"], label="random, mean")
    right.plot(degrees, frame["transfer"], label="most negative found")
    right.set(xlabel="principal angle (degrees)", ylabel="total forgetting")
    for axes in (left, right):
        axes.legend(fontsize=8)
    return figure

"""Fig. 2(a) of the OOD paper: the error of a trained layer on features turned in one coordinate plane."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from icl_core import _validate, dynamics, features, population, prompts
from icl_core.experiments import captions, explorables
from icl_core.results import Table, provenance
from icl_core.theory import ood

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CHAPTER = "ood-generalisation"

# Largest number of score entries held at once.
_BLOCK = 1 << 23
# A bump counts as a peak if it stands out by this share of its curve's range.
_PROMINENCE = 0.01


@dataclass(frozen=True)
class Setting:
    """What Fig. 2(a) depends on; checked when made.

    Parameters
    ----------
    K, d : int
        Number of features and dimension, ``2 <= K <= d``.
    eps : float
        Target of the total training loss, below its value ``(K - 1) / (2 K)`` at the start.
    eta : float
        Step size of training.
    theta : tuple of float
        Rotation angles in radians; at least two.
    draws : int
        Number of random training sets V.
    seed : int
        Seed of their generator.
    plane : (int, int)
        Coordinates that turn, counted from 1.

    Raises
    ------
    ValueError
        Naming the first argument out of range.
    """

    K: int = 4
    d: int = 8
    eps: float = 0.01
    eta: float = 0.1
    theta: tuple[float, ...] = ()
    draws: int = 200
    seed: int = 0
    plane: tuple[int, int] = (1, 2)

    def __post_init__(self) -> None:
        check_training(self.K, self.eps, self.eta)
        if _validate.integer("d", self.d, least=2) < self.K:
            raise ValueError(f"d must be at least K = {self.K} to hold K orthonormal features, got {self.d}")
        if not self.theta:
            object.__setattr__(self, "theta", full_turn(181))
        object.__setattr__(self, "theta", tuple(_validate.reals("theta", self.theta)))
        if len(self.theta) < 2:
            raise ValueError(f"theta must hold at least 2 angles, got {len(self.theta)}")
        _validate.integer("draws", self.draws, least=1)
        features.generator(self.seed)
        object.__setattr__(self, "plane", check_plane(self.plane, self.d))

    def parameters(self) -> dict[str, Any]:
        """Return the values that a chapter's run takes on the command line."""
        return {
            "K": self.K, "d": self.d, "eps": self.eps, "eta": self.eta, "angles": len(self.theta),
            "draws": self.draws, "seed": self.seed, "plane": list(self.plane),
        }  # fmt: skip


def check_training(K: Any, eps: Any, eta: Any) -> None:
    """Raise ``ValueError`` unless training from Q = 0 with these values takes at least one step."""
    limit = ood.eps_limit(_validate.integer("K", K, least=2))
    _validate.real("eps", eps, above=0.0, below=limit, because="(K - 1)/(2K) is the loss before training")
    _validate.real("eta", eta, above=0.0)


def check_plane(plane: Any, d: int) -> tuple[int, int]:
    """Return ``plane`` as two different coordinates in 1..d."""
    if isinstance(plane, str) or not hasattr(plane, "__len__") or len(plane) != 2:
        raise ValueError(f"plane must be two coordinates in 1..{d}, got {plane!r}")
    i, j = (_validate.integer("plane", index, least=1, most=d) for index in plane)
    if i == j:
        raise ValueError(f"plane must name two different coordinates, got {plane!r}")
    return i, j


def full_turn(angles: int) -> tuple[float, ...]:
    """Return ``angles`` equally spaced angles from 0 to 2 pi, both included."""
    angles = _validate.integer("angles", angles, least=2)
    return tuple(float(x) for x in np.linspace(0, 2 * math.pi, angles))


@dataclass(frozen=True)
class Curves:
    """OOD error of every draw at every angle.

    Parameters
    ----------
    setting : Setting
    trained : Descent
        The training run.
    simulated : Tensor, shape (draws, T)
        Total OOD error with the scores that gradient descent reached.
    closed : Tensor, shape (draws, T)
        Total OOD error by Theorem 5.1, that is with ``alpha_star``.
    tilt : Tensor, shape (draws, 2)
        Squared cosines a1 >= a2 of the principal angles between the plane that turns and span(V).
    toward_mean : Tensor, shape (draws,)
        Squared cosine between the direction of span(V) that belongs to a1, in the coordinates ``V'x``, and the mean.
    provenance : dict
    """

    setting: Setting
    trained: dynamics.Descent
    simulated: Tensor
    closed: Tensor
    tilt: Tensor
    toward_mean: Tensor
    provenance: dict[str, Any]

    def summary(self) -> Table:
        """One row per angle: mean and spread over the draws, and how far the closed form is away."""
        x, c = self.simulated.numpy(), self.closed.numpy()
        low, median, high = np.quantile(x, (0.1, 0.5, 0.9), axis=0)
        spread = x.std(axis=0, ddof=1) if len(x) > 1 else np.zeros(x.shape[1])
        frame = pd.DataFrame({
            "theta": self.setting.theta, "mean": x.mean(0), "sd": spread, "q10": low, "median": median, "q90": high,
            "closed_mean": c.mean(0), "worst_gap": np.abs(x - c).max(0),
            "training": float(self.trained.losses.sum()),
        })  # fmt: skip
        return Table(frame, self.provenance, {
            "theta": "rotation angle in radians", "mean": "total OOD error, mean over the draws",
            "sd": "its standard deviation over the draws", "q10": "10 % quantile", "median": "median",
            "q90": "90 % quantile", "closed_mean": "mean of Theorem 5.1's closed form",
            "worst_gap": "largest |simulation - closed form| over the draws", "training": "total training error at T1",
        })  # fmt: skip

    def single(self, count: int) -> Table:
        """Curves of the first ``count`` draws, one row per draw and angle."""
        n = min(_validate.integer("count", count, least=1), self.setting.draws)
        T = len(self.setting.theta)
        frame = pd.DataFrame({
            "draw": np.repeat(np.arange(n), T), "theta": np.tile(self.setting.theta, n),
            "error": self.simulated[:n].reshape(-1).numpy(), "closed": self.closed[:n].reshape(-1).numpy(),
        })  # fmt: skip
        return Table(frame, self.provenance, {
            "draw": "number of the random V", "theta": "rotation angle in radians",
            "error": "total OOD error", "closed": "the same by Theorem 5.1",
        })  # fmt: skip

    def shapes(self) -> Table:
        """One row per draw: how many peaks its curve has, how high they are, and how the plane lies to span(V)."""
        from scipy.signal import find_peaks

        x = self.simulated.numpy()
        theta = np.asarray(self.setting.theta)
        rows = []
        for curve, (a1, a2), h in zip(x, self.tilt.tolist(), self.toward_mean.tolist(), strict=True):
            at, _ = find_peaks(curve, prominence=_PROMINENCE * max(float(np.ptp(curve)), 1e-300))
            top = int(curve.argmax())
            rows.append(
                (a1, a2, h, len(at), float(curve[top]), float(theta[top]), float(np.interp(math.pi, theta, curve)))
            )
        frame = pd.DataFrame(rows, columns=["a1", "a2", "h", "peaks", "highest", "highest_at", "at_pi"])
        return Table(frame, self.provenance, {
            "a1": "larger squared cosine of the principal angles between the turning plane and span(V)",
            "a2": "the smaller one", "h": "squared cosine between the direction of a1 and the mean feature",
            "peaks": f"peaks that stand out by {_PROMINENCE:.0%} of the curve's range",
            "highest": "largest total OOD error", "highest_at": "its angle in radians", "at_pi": "error at pi",
        })  # fmt: skip


def run(setting: Setting) -> Curves:
    """Train once, turn every draw by every angle, and measure the OOD error both ways.

    Parameters
    ----------
    setting : Setting

    Returns
    -------
    Curves

    Notes
    -----
    OOD paper, Section 6.1, eq. 15 and Theorem 5.1. Training from Q = 0 on orthonormal features looks the same in score
    coordinates for every V, so one run serves all draws; ``Q = V S V'`` gives scores ``M' S M`` on U, ``M = V'U``.
    """
    started = time.perf_counter()
    s = setting
    trained = dynamics.train(s.K, s.eps, s.eta)
    V = features.orthonormal(s.d, s.K, generator=features.generator(s.seed), batch=(s.draws,))
    law, star = prompts.balanced(s.K), ood.alpha_star(s.K, s.eps)
    simulated, closed = [], []
    step = max(1, _BLOCK // (s.draws * s.d * s.K))
    for begin in range(0, len(s.theta), step):
        angle = torch.tensor(s.theta[begin : begin + step], dtype=torch.float64)
        U = features.rotation(s.d, angle, s.plane).unsqueeze(1) @ V
        scores = dynamics.project(trained.scores, features.overlap(U, V.expand_as(U)))
        simulated.append(population.losses(scores, law).sum(-1))
        closed.append(ood.ood_loss(V.expand_as(U), U, star).sum(-1))
    rows = V[:, [i - 1 for i in s.plane], :]
    values, vectors = torch.linalg.eigh(rows.mT @ rows)
    tilt, toward_mean = values[..., -2:].flip(-1).clamp(0, 1), vectors[..., -1].sum(-1) ** 2 / s.K
    about = provenance(
        s.parameters(), seed=s.seed, started=started, command=captions.command(CHAPTER, **s.parameters())
    )
    simulated_all, closed_all = (torch.cat(parts).T.contiguous() for parts in (simulated, closed))
    return Curves(s, trained, simulated_all, closed_all, tilt, toward_mean, about)


def overshoot(K: int, eps: float, etas: Sequence[float], *, d: int, draws: int = 50, seed: int = 0) -> Table:
    """How far past ``alpha_star`` gradient descent stops, per step size, and what that does to the OOD error.

    Parameters
    ----------
    K, eps
        As in :class:`Setting`.
    etas : sequence of float
        Step sizes; all runs are one batch.
    d, draws, seed : int
        Random V turned by pi/2 in the plane (1, 2), on which Theorem 5.1 is compared with the run.

    Returns
    -------
    Table

    Raises
    ------
    ValueError
        For arguments out of range.

    Notes
    -----
    OOD paper, Lemma E.1: its proof shows ``alpha >= alpha_star`` at the first step that meets the rule. By Lemmas D.3
    and D.8 a step adds ``eta * 2 * Attn * L``, so the excess is below ``2 eta`` times the loss one step earlier.
    """
    started = time.perf_counter()
    steps = _validate.reals("etas", etas, above=0.0)
    setting = Setting(K=K, d=d, eps=eps, eta=steps[0], draws=draws, seed=seed)
    done = dynamics.gradient_descent(
        torch.zeros(len(steps), K, K, dtype=torch.float64),
        prompts.balanced(K),
        eta=torch.tensor(steps, dtype=torch.float64),
        threshold=eps / K,
        on_failure="return",
    )
    star = ood.alpha_star(K, eps)
    V = features.orthonormal(d, K, generator=features.generator(seed), batch=(draws,))
    U = features.rotation(d, math.pi / 2) @ V
    closed = ood.ood_loss(V, U, star).sum(-1)
    reached = dynamics.project(done.scores.unsqueeze(1), features.overlap(U, V))
    error = population.losses(reached, prompts.balanced(K)).sum(-1)
    gap = ((error - closed) / closed).abs()
    alpha = done.alpha[:, 0]
    own = float(population.attention_weights(ood.symmetric_scores(K, star))[0, 0])
    frame = pd.DataFrame({
        "eta": steps, "met": done.converged.numpy(), "T1": done.steps.numpy(), "alpha": alpha.numpy(),
        "alpha_star": star, "excess": (alpha - star).numpy(),
        "last_step": [2 * eta * own * eps / K for eta in steps], "training": done.losses.sum(-1).numpy(),
        "ood_gap_mean": gap.mean(1).numpy(), "ood_gap_max": gap.amax(1).numpy(),
    })  # fmt: skip
    about = provenance(
        {"K": K, "eps": eps, "etas": steps, "d": d, "draws": draws}, seed=seed, started=started,
        command=captions.command(CHAPTER, **{k: v for k, v in setting.parameters().items() if k in ("K", "d", "eps")}),
    )  # fmt: skip
    return Table(frame, about, {
        "eta": "step size", "met": "whether the rule was met", "T1": "steps until it was", "alpha": "alpha at T1",
        "alpha_star": "its closed form (eq. 16)", "excess": "alpha - alpha_star",
        "last_step": "step that gradient descent would take at alpha_star",
        "training": "total training error",
        "ood_gap_mean": "mean relative gap of the OOD error at pi/2 to Theorem 5.1", "ood_gap_max": "the largest one",
    })  # fmt: skip


def in_span_shift(K: int, eps: Sequence[float], shifts: Sequence[float]) -> Table:
    """Error of a feature inside span(V) whose projection on the mean feature is ``(1 + shift) / sqrt(K)``.

    Parameters
    ----------
    K : int
        Number of features.
    eps : sequence of float
        Targets of the training loss.
    shifts : sequence of float
        Shift of feature 1 in units of ``1 / sqrt(K)``, between 0 and ``sqrt(K) - 1``; the other projections stay equal.

    Returns
    -------
    Table

    Raises
    ------
    ValueError
        For arguments out of range.

    Notes
    -----
    OOD paper, remark (3) after Theorem 5.1. The mean feature is a unit vector of the span, so the others give way:
    ``c_n = sqrt((1 - c_1^2) / (K - 1))``.
    """
    started = time.perf_counter()
    K = _validate.integer("K", K, least=2)
    below = ood.eps_limit(K)
    targets = _validate.reals("eps", eps, above=0.0, below=below)
    moved = _validate.reals("shifts", shifts, least=0.0, most=math.sqrt(K) - 1)
    V = torch.eye(K, dtype=torch.float64)
    mean = features.mean_feature(V)
    rows = []
    for shift in moved:
        c = torch.full((K,), math.sqrt(max(0.0, 1 - (1 + shift) ** 2 / K) / (K - 1)), dtype=torch.float64)
        c[0] = (1 + shift) / math.sqrt(K)
        normal = mean - c
        # The reflection that exchanges c and the mean feature: its columns project on the mean feature as c does.
        U = V - 2 * torch.outer(normal, normal) / (normal @ normal) if shift else V
        for target in targets:
            loss = float(ood.ood_loss(V, U, ood.alpha_star(K, target))[0])
            rows.append((shift, target, loss, loss * K / target, float(1 - c[0] * (c[0] - c[1]))))
    frame = pd.DataFrame(rows, columns=["shift", "eps", "loss", "ratio", "exponent"])
    about = provenance({"K": K, "eps": targets, "shifts": moved}, started=started, command=captions.command(CHAPTER))
    return Table(frame, about, {
        "shift": "shift of feature 1 in units of 1/sqrt(K)", "eps": "target of the training loss",
        "loss": "error of feature 1", "ratio": "the same divided by eps / K",
        "exponent": "1 - c_1 (c_1 - c_n), the predicted exponent of eps",
    })  # fmt: skip


def figure_in_span_shift(table: Table) -> Figure:
    """Draw the error of the moved feature, in units of eps / K, against eps."""
    import matplotlib.pyplot as plt

    fig, ax = plt.subplots()
    for marker, (shift, part) in zip("os^Dv<>", table.frame.groupby("shift")):
        exponent = part["exponent"].iloc[0]
        ax.loglog(part["eps"], part["ratio"], marker=marker, ms=4,
                  label=rf"shift {shift:g}$/\sqrt{{K}}$, exponent {exponent:.2f}")  # fmt: skip
    ax.set_xlabel(r"target of the total training loss $\epsilon$")
    ax.set_ylabel(r"error of the moved feature, in $\epsilon/K$")
    ax.invert_xaxis()
    ax.legend()
    return fig


def figure(summary: Table, single: Table | None = None) -> Figure:
    """Draw Fig. 2(a): mean, spread and single draws of the OOD error, with the closed form over the simulation."""
    import matplotlib.pyplot as plt

    f = summary.frame
    fig, ax = plt.subplots()
    if single is not None:
        for _, one in single.frame.groupby("draw"):
            ax.plot(one["theta"], one["error"], color="#999999", lw=0.7, ls="-", alpha=0.7)
        ax.plot([], [], color="#999999", lw=0.7, ls="-", label="single draws of V")
    ax.fill_between(f["theta"], f["q10"], f["q90"], color="#0072B2", alpha=0.18, lw=0, label="middle 80 % of draws")
    ax.plot(f["theta"], f["mean"], color="#0072B2", ls="-", lw=2.4, label="mean, simulated")
    ax.plot(f["theta"], f["closed_mean"], color="#D55E00", ls=(0, (2, 2)), label="mean, Theorem 5.1")
    ax.plot(f["theta"], f["training"], color="#000000", ls=":", lw=1.2, label="training error")
    _angle_axis(ax, f["theta"].to_numpy())
    ax.set_ylabel("total OOD error (squared error)")
    ax.set_ylim(bottom=0)
    ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, fontsize=8)
    return fig


def figure_shapes(shapes: Table) -> Figure:
    """Draw how many peaks a draw's curve has against how the turning plane lies to span(V) and its mean feature."""
    import matplotlib.pyplot as plt

    f = shapes.frame
    fig, axes = plt.subplots(1, 2, figsize=(8.0, 4.0), sharex=True, sharey=True)
    looks = {0: ("^", "#000000", "no peak"), 1: ("o", "#0072B2", "one peak"), 2: ("s", "#D55E00", "two peaks")}
    for ax, other in zip(axes, ("a2", "h"), strict=True):
        for peaks in sorted(f["peaks"].unique()):
            marker, color, label = looks.get(peaks, ("D", "#009E73", "more peaks"))
            part = f[f["peaks"] == peaks]
            ax.scatter(part["a1"], part[other], s=16, marker=marker, facecolors="none", edgecolors=color, label=label)
        ax.axvline(0.5, color="#000000", ls=":", lw=1)
        ax.set_xlabel(r"$a_1$, larger $\cos^2$ of plane and span$(V)$")
        ax.set_xlim(0, 1.02)
        ax.set_ylim(0, 1.02)
    axes[0].set_ylabel(r"$a_2$, smaller $\cos^2$")
    axes[1].set_ylabel(r"$h$, $\cos^2$ to the mean feature")
    axes[0].legend(loc="upper left")
    return fig


def figure_overshoot(table: Table) -> Figure:
    """Draw the excess of alpha over its closed form, and the relative gap of the OOD error, against the step size."""
    import matplotlib.pyplot as plt

    f = table.frame[table.frame["met"]]
    fig, axes = plt.subplots(1, 2, figsize=(7.6, 3.4))
    axes[0].loglog(f["eta"], f["excess"], "o-", color="#0072B2", ms=4)
    axes[0].loglog(f["eta"], f["last_step"], ":", color="#000000", lw=1.2, label=r"one step at $\alpha^*$")
    axes[0].legend()
    axes[0].set_ylabel(r"$\alpha^{(T_1)} - \alpha^*$ (score units)")
    axes[1].loglog(f["eta"], f["ood_gap_mean"], "o-", color="#0072B2", ms=4, label="mean over draws")
    axes[1].loglog(f["eta"], f["ood_gap_max"], "s--", color="#D55E00", ms=4, label="largest")
    axes[1].set_ylabel("relative gap of the OOD error")
    axes[1].legend()
    for ax in axes:
        ax.set_xlabel(r"step size $\eta$")
    return fig


def _angle_axis(ax: Any, theta: np.ndarray) -> None:
    ax.set_xlabel(r"rotation angle $\theta$ (rad)")
    if abs(theta[0]) < 1e-9 and abs(theta[-1] - 2 * math.pi) < 1e-9:
        ax.set_xticks([0, math.pi / 2, math.pi, 3 * math.pi / 2, 2 * math.pi])
        ax.set_xticklabels(["0", r"$\pi/2$", r"$\pi$", r"$3\pi/2$", r"$2\pi$"])
    ax.set_xlim(theta[0], theta[-1])


def explorable(
    K: Sequence[int] = (2, 4, 6),
    eps: Sequence[float] = (0.1, 0.01, 0.001),
    *,
    d: int = 8,
    eta: float = 0.1,
    angles: int = 61,
    draws: int = 2,
    seed: int = 0,
    plane: tuple[int, int] = (1, 2),
) -> explorables.Explorable:
    """Compute the tables behind the figure with controls for the angle, K, eps and the draw of V.

    Parameters
    ----------
    K, eps : sequences
        Values to choose from; see :class:`Setting` for their ranges.
    d, eta, angles, draws, seed, plane
        As in :class:`Setting`; ``angles`` from 0 to 2 pi.

    Returns
    -------
    Explorable

    Raises
    ------
    ValueError
        As from :class:`Setting`.
    """
    started = time.perf_counter()
    settings = [[Setting(k, d, e, eta, full_turn(angles), draws, seed, plane) for e in eps] for k in K]
    tables: dict[str, list[Any]] = {name: [] for name in ("scores", "attention", "errors", "closed", "error", "least")}
    for row in settings:
        V = features.orthonormal(d, row[0].K, generator=features.generator(seed), batch=(draws, 1))
        U = features.rotation(d, torch.tensor(row[0].theta, dtype=torch.float64), plane) @ V
        V = V.expand_as(U)
        law = prompts.balanced(row[0].K)
        columns: dict[str, list[Any]] = {name: [] for name in tables}
        for s in row:
            trained = dynamics.train(s.K, s.eps, s.eta)
            scores = dynamics.project(trained.scores, features.overlap(U, V))
            attention = population.attention_weights(scores)
            error = population.losses(scores, law).sum(-1)
            columns["scores"].append(scores)
            columns["attention"].append(attention)
            columns["errors"].append(error)
            columns["error"].append(error)
            columns["closed"].append(ood.ood_loss(V, U, ood.alpha_star(s.K, s.eps)).sum(-1))
            columns["least"].append(torch.diagonal(attention, dim1=-2, dim2=-1).amin(-1))
        for name, values in columns.items():
            tables[name].append([explorables.rounded(value) for value in values])
    largest = max(abs(x) for x in explorables.numbers(tables["scores"]))
    degrees = tuple(round(math.degrees(x), 2) for x in settings[0][0].theta)
    where = ("K", "eps", "draw")
    return explorables.Explorable(
        name="ood-rotation",
        title="Turn the features and watch scores, attention and error",
        controls=(
            explorables.Control("theta", "Rotation angle", degrees, tuple(f"{x:g}°" for x in degrees),
                                start=(angles - 1) // 6),
            explorables.Control("K", "Features K", tuple(K), start=len(K) // 2, kind="choice"),
            explorables.Control("eps", "Training target ε", tuple(eps), start=len(eps) // 2, kind="choice"),
            explorables.Control("draw", "Training set V", tuple(range(1, draws + 1)),
                                tuple(f"draw {i}" for i in range(1, draws + 1)), kind="choice"),
        ),
        panels=(
            explorables.Heatmap("Scores on the turned features", "scores", "key feature", "query feature",
                                palette="diverging", low=-largest, high=largest),
            explorables.Heatmap("Attention", "attention", "key feature", "query feature",
                                palette="sequential", low=0.0, high=1.0),
            explorables.Lines(
                "OOD error",
                x="theta",
                x_label="rotation angle (degrees)",
                x_ticks=(0, 90, 180, 270, 360),
                y_label="total OOD error",
                series=(
                    explorables.Series("simulated", "errors"),
                    explorables.Series("Theorem 5.1", "closed"),
                    explorables.Series("training error", "training"),
                    explorables.Series("uniform attention", "uniform"),
                ),
                marker="theta",
            ),
        ),
        tables={
            "scores": explorables.Lookup((*where, "theta"), tables["scores"]),
            "attention": explorables.Lookup((*where, "theta"), tables["attention"]),
            "errors": explorables.Lookup(where, tables["errors"]),
            "closed": explorables.Lookup(where, tables["closed"]),
            "error": explorables.Lookup((*where, "theta"), tables["error"]),
            "least": explorables.Lookup((*where, "theta"), tables["least"]),
            "training": explorables.Lookup(("K", "eps"), [[[s.eps] * angles for s in row] for row in settings]),
            "uniform": explorables.Lookup(("K",), [[explorables.rounded(ood.eps_limit(k))] * angles for k in K]),
        },
        sentence="Turned by {theta}, K = {K}, ε = {eps}, {draw}: the OOD error is {error}; "
        "the least attention that a query pays to its own feature is {least}.",
        provenance=provenance(
            {
                "K": list(K), "eps": list(eps), "d": d, "eta": eta,
                "angles": angles, "draws": draws, "plane": list(plane),
            },
            seed=seed, started=started, command=captions.command(CHAPTER, d=d, eta=eta, seed=seed, plane=list(plane)),
        ),
    )  # fmt: skip

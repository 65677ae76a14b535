"""Figures of fine-tuning and of what lies beyond its assumptions: tables, and the pictures drawn from them."""

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

from icl_core import _validate, dynamics, features, fine_tuning, population
from icl_core.experiments import captions
from icl_core.plotting import COLORS, LINES
from icl_core.prompts import PromptLaw, balanced, multinomial, multinomial_sample
from icl_core.results import Table, provenance
from icl_core.theory import fine_tuning as theory
from icl_core.theory import multinomial as counted
from icl_core.theory import ood

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# A number of the score coordinates below which a slope counts as zero.
_ROUNDING = 1e-13
# Overlap of rank one, V'U = h w', that breaks Lemma F.2 where its condition on eps holds (K = 3).
RANK_ONE = (0.48, 0.84, -0.25)


@dataclass(frozen=True)
class Setting:
    """What the chapter on fine-tuning depends on; checked when made.

    Parameters
    ----------
    gamma : tuple of float
        Correlations ``<v_k, u_k>``, from 2 to 8 of them, in [-1, 1].
    eps : float
        Target of the total loss, below its value ``(K - 1) / (2 K)`` at the start.
    eta : float
        Step size.
    eps_least : float
        Smallest target of the sweeps, in [1e-7, 0.01].
    draws : int
        Random shifts and random score matrices.
    seed : int
        Seed of their generator.

    Raises
    ------
    ValueError
        Naming the first argument out of range.
    """

    gamma: tuple[float, ...] = (0.9, 0.3, -0.5)
    eps: float = 0.01
    eta: float = 0.1
    eps_least: float = 1e-6
    draws: int = 300
    seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "gamma", check_gamma(self.gamma))
        _target(len(self.gamma), self.eps)
        _validate.real("eta", self.eta, above=0.0)
        _validate.real("eps_least", self.eps_least, least=1e-7, most=0.01)
        _validate.integer("draws", self.draws, least=10)
        features.generator(self.seed)

    @property
    def K(self) -> int:
        """Number of features."""
        return len(self.gamma)

    @property
    def gammas(self) -> Tensor:
        """Correlations, shape (K,)."""
        return torch.tensor(self.gamma, dtype=torch.float64)

    def targets(self, points: int = 12) -> list[float]:
        """Targets from just below the largest possible to ``eps_least``, evenly spaced in the logarithm."""
        return [float(e) for e in np.geomspace(0.95 * ood.eps_limit(self.K), self.eps_least, points)]

    def parameters(self) -> dict[str, Any]:
        """Return the values that a chapter's run takes on the command line."""
        return {
            "gamma": list(self.gamma), "eps": self.eps, "eta": self.eta, "eps_least": self.eps_least,
            "draws": self.draws, "seed": self.seed,
        }  # fmt: skip

    def table(self, frame: pd.DataFrame, columns: dict[str, str], started: float) -> Table:
        """Table with the provenance of this setting."""
        chosen = self.parameters()
        command = captions.command("fine-tuning", **chosen)
        return Table(frame, provenance(chosen, seed=self.seed, started=started, command=command), columns)


@dataclass(frozen=True)
class Beyond:
    """What the chapter beyond the assumptions depends on; checked when made.

    Parameters
    ----------
    gamma : tuple of float
        Correlations ``<v_k, u_k>``, from 2 to 4 of them (count vectors are enumerated), in [-1, 1].
    eps : float
        Target of the total loss, below its value ``(K - 1) / (2 K)`` at the start.
    eta : float
        Step size of both phases.
    lengths : tuple of int
        Prompt lengths whose count vectors are all enumerated.
    long_lengths : tuple of int
        Prompt lengths whose count vectors are sampled.
    samples, repeats : int
        Count vectors per sample, and independent samples behind an interval.
    draws : int
        Random shifts.
    correlations : tuple of float
        Inner products between features of one set, in [0, 0.9].
    seed : int
        Seed of every draw.

    Raises
    ------
    ValueError
        Naming the first argument out of range.
    """

    gamma: tuple[float, ...] = (0.9, -0.4, 0.2)
    eps: float = 0.02
    eta: float = 0.5
    lengths: tuple[int, ...] = (4, 8, 10, 12, 16, 24, 32, 48, 64)
    long_lengths: tuple[int, ...] = (128, 512, 2048)
    samples: int = 200
    repeats: int = 6
    draws: int = 300
    correlations: tuple[float, ...] = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6)
    seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "gamma", check_gamma(self.gamma, most=4))
        _target(len(self.gamma), self.eps)
        _validate.real("eta", self.eta, above=0.0)
        for name in ("lengths", "long_lengths"):
            values = getattr(self, name)
            if isinstance(values, (str, int, float)) or not len(values):
                raise ValueError(f"{name} must be a list of prompt lengths, got {values!r}")
            most = 96 if name == "lengths" else 10**6
            checked = tuple(_validate.integer(name, N, least=1, most=most) for N in values)
            object.__setattr__(self, name, checked)
        _validate.integer("samples", self.samples, least=10)
        _validate.integer("repeats", self.repeats, least=3)
        _validate.integer("draws", self.draws, least=10)
        object.__setattr__(
            self, "correlations", tuple(_validate.reals("correlations", self.correlations, least=0.0, most=0.9))
        )
        features.generator(self.seed)

    @property
    def K(self) -> int:
        """Number of features."""
        return len(self.gamma)

    def parameters(self) -> dict[str, Any]:
        """Return the values that a chapter's run takes on the command line."""
        return {
            "gamma": list(self.gamma), "eps": self.eps, "eta": self.eta, "lengths": list(self.lengths),
            "long_lengths": list(self.long_lengths), "samples": self.samples, "repeats": self.repeats,
            "draws": self.draws, "correlations": list(self.correlations), "seed": self.seed,
        }  # fmt: skip

    def table(self, frame: pd.DataFrame, columns: dict[str, str], started: float) -> Table:
        """Table with the provenance of this setting."""
        chosen = self.parameters()
        command = captions.command("beyond", **chosen)
        return Table(frame, provenance(chosen, seed=self.seed, started=started, command=command), columns)


def check_gamma(gamma: Any, most: int = 8) -> tuple[float, ...]:
    """Return correlations as a tuple; refuses fewer than 2, more than ``most``, or values outside [-1, 1]."""
    if isinstance(gamma, (str, int, float)) or not 2 <= len(gamma) <= most:
        raise ValueError(f"gamma must be a list of 2 to {most} correlations in [-1, 1], got {gamma!r}")
    return tuple(_validate.reals("gamma", gamma, least=-1.0, most=1.0))


def _target(K: int, eps: Any) -> float:
    limit = ood.eps_limit(K)
    return _validate.real(
        "eps", eps, above=0.0, below=limit, because=f"(K - 1)/(2K) is the loss before training, K = {K}"
    )


def eps_of(K: int, alpha: float) -> float:
    """Target at which training ends at ``alpha``: the inverse of eq. 16."""
    return K / (2 * (K - 1)) * ((K - 1) / (math.exp(alpha * K / (K - 1)) + K - 1)) ** 2


def _off(K: int) -> Tensor:
    return ~torch.eye(K, dtype=torch.bool)


def _starts(gamma: Tensor, eps: Sequence[float]) -> Tensor:
    """Scores on U at T_1 under Assumption 5.4 (eq. 25), one instance per target, shape (len(eps), K, K)."""
    K = gamma.shape[-1]
    return torch.stack([theory.initial_scores(gamma, ood.alpha_star(K, e)) for e in eps])


# ---------------------------------------------------------------------------------------------------------------------
# Fine-tuning under Assumption 5.4.


def trajectories(setting: Setting) -> Table:
    """alpha, the range of beta and the loss of every OOD feature along fine-tuning, one row per step and feature."""
    started = time.perf_counter()
    run = fine_tuning.fine_tune_gamma(setting.gamma, setting.eps, setting.eta, record=30)
    path = run.trajectory
    assert path is not None
    K, off = setting.K, _off(setting.K)
    frame = pd.DataFrame({
        "step": np.repeat(path.times.numpy(), K), "feature": np.tile(np.arange(1, K + 1), len(path.times)),
        "alpha": path.alpha.reshape(-1).numpy(),
        "beta_least": path.scores.masked_fill(~off, math.inf).amin(-2).reshape(-1).numpy(),
        "beta_largest": path.scores.masked_fill(~off, -math.inf).amax(-2).reshape(-1).numpy(),
        "loss": path.losses.reshape(-1).numpy(), "converged": np.tile(run.times.numpy(), len(path.times)),
    })  # fmt: skip
    return setting.table(frame, {
        "step": "steps since T_1", "feature": "k, from 1", "alpha": "alpha-type weight",
        "beta_least": "least beta-type weight of the query", "beta_largest": "largest of them", "loss": "loss of u_k",
        "converged": "t at which the loss of u_k first is at most eps/K",
    }, started)  # fmt: skip


def draw_trajectories(table: Table, eps: float) -> Figure:
    """Scores above, losses below, one colour per feature."""
    from matplotlib import pyplot as plt

    figure, (top, bottom) = plt.subplots(2, 1, figsize=(6.4, 5.6), sharex=True)
    K = int(table.frame["feature"].max())
    for k, part in table.frame.groupby("feature"):
        color = COLORS[(int(k) - 1) % len(COLORS)]
        x = part["step"] + 1
        top.plot(x, part["alpha"], color=color, ls="-", label=rf"$\alpha_{k}$")
        top.fill_between(x, part["beta_least"], part["beta_largest"], color=color, alpha=0.25, lw=0)
        top.plot(x, part["beta_largest"], color=color, ls="--", lw=1, label=rf"largest $\beta_{{n,{k}}}$")
        bottom.plot(x, part["loss"], color=color, ls=LINES[(int(k) - 1) % 4], label=f"$u_{k}$")
        bottom.axvline(part["converged"].iloc[0] + 1, color=color, ls=":", lw=0.9)
    top.set_ylabel("score (nats)")
    top.legend(fontsize=8, ncols=2)
    bottom.axhline(eps / K, color="#000000", ls=":", lw=1.2, label=r"$\epsilon/K$")
    bottom.set(xscale="log", yscale="log", xlabel="fine-tuning steps + 1", ylabel="loss per feature")
    bottom.legend(fontsize=8)
    return figure


def attention_signs(setting: Setting) -> Table:
    """Attention of random score columns: the query's own, the largest rival's, and ``D`` of Lemma F.3's proof."""
    started = time.perf_counter()
    g = features.generator(setting.seed)
    scores = 3 * torch.randn(setting.draws, setting.K, setting.K, dtype=torch.float64, generator=g)
    a = population.attention_weights(scores)
    rest = a * _off(setting.K)
    own = torch.diagonal(a, dim1=-2, dim2=-1)
    D = (rest**2).sum(-2) - own * rest.sum(-2)
    slopes = population.descent(scores, balanced(setting.K)).masked_fill(~_off(setting.K), -math.inf)
    frame = pd.DataFrame({
        "own": own.reshape(-1).numpy(), "rival": rest.amax(-2).reshape(-1).numpy(), "D": D.reshape(-1).numpy(),
        "largest_slope": slopes.amax(-2).reshape(-1).numpy(),
    })  # fmt: skip
    return setting.table(frame, {
        "own": "attention on the query's own feature", "rival": "largest attention on another feature",
        "D": "sum over rivals of Attn^2, less Attn_k (1 - Attn_k)",
        "largest_slope": "largest delta_beta of the query: positive if some beta rises",
    }, started)  # fmt: skip


def draw_attention_signs(table: Table) -> Figure:
    """D over the largest rival's attention, against how far the own attention leads."""
    from matplotlib import pyplot as plt

    f = table.frame
    figure, axes = plt.subplots()
    rises = f["largest_slope"] > _ROUNDING
    lead, height = f["own"] - f["rival"], f["D"] / f["rival"]
    axes.plot(lead[~rises], height[~rises], ".", ms=4, ls="none", color=COLORS[0], label="every beta falls")
    axes.plot(lead[rises], height[rises], "x", ms=5, ls="none", color=COLORS[1], label="some beta rises")
    axes.axhline(0, color="#000000", lw=0.8)
    axes.axhline(1, color="#000000", lw=1.2, ls=":")
    axes.axvline(0, color="#000000", lw=0.8)
    axes.set(xlabel="own attention less the largest rival's", ylabel="$D$ over the largest rival's attention")
    axes.legend()
    return figure


@dataclass(frozen=True)
class FirstRise:
    """Where, as eps falls, some beta first rises at T_1 under Assumption 5.4.

    Parameters
    ----------
    K : int
        Number of features.
    alpha, eps : float
        ``alpha*`` and the target there.
    gamma : tuple of float
        A shift at which it happens; the query is the first feature, the rising beta belongs to the last.
    """

    K: int
    alpha: float
    eps: float
    gamma: tuple[float, ...]

    @property
    def share(self) -> float:
        """``alpha* / (K - 1)^2``: Lemma F.2's condition keeps it below 1."""
        return self.alpha / (self.K - 1) ** 2


def first_rise(K: int) -> FirstRise:
    """Find the sharp form, at T_1, of Lemma F.2's condition on eps.

    With ``x = exp(alpha)`` and ``y = exp(beta)``, beta_n rises where
    ``sum_m y_m^2 - (x + y_n) sum_m y_m - 2 x y_n > 0``, sums over m other than k and n. This is convex in every ``y_m``
    and falls in ``y_n``, so it is largest with every other gamma at 1 or -1 and ``y_n`` the least; what is left is how
    many are -1, and ``gamma_k``.

    Parameters
    ----------
    K : int
        Number of features, at least 3.

    Returns
    -------
    FirstRise

    Notes
    -----
    OOD paper, Lemma F.2.
    """
    K = _validate.integer("K", K, least=3, most=40)
    own = np.linspace(0, 1, 4001)[1:, None]
    flipped = np.arange(1, K - 1)

    def excess(alpha: float) -> np.ndarray:
        shift = own**2 * alpha
        # Everything divided by exp(2 shift), lest it overflow.
        Y, y = np.exp(own * alpha / (K - 1) - shift), np.exp(-own * alpha / (K - 1) - shift)
        total = flipped * Y + (K - 2 - flipped) * y
        return flipped * Y**2 + (K - 2 - flipped) * y**2 - (1 + y) * total - 2 * y

    low, high = 0.5 * (K - 1) ** 2, 6.0 * (K - 1) ** 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if (excess(middle) > 0).any() else (middle, high)
    row, column = np.unravel_index(int(excess(high).argmax()), (len(own), len(flipped)))
    signs = (-1.0,) * int(flipped[column]) + (1.0,) * (K - 1 - int(flipped[column]))
    return FirstRise(K, high, eps_of(K, high), (float(own[row, 0]), *signs))


def thresholds(setting: Setting, Ks: Sequence[int] = (3, 4, 5, 6, 7, 8)) -> Table:
    """Lemma F.2's condition and the sharp one at T_1, for several K."""
    started = time.perf_counter()
    rows = []
    for K in Ks:
        first = first_rise(K)
        printed = theory.sign_condition(K)
        rows.append(
            (K, first.alpha, first.share, first.eps, printed, ood.alpha_star(K, printed) / (K - 1) ** 2, first.gamma[0])
        )
    frame = pd.DataFrame(rows, columns=["K", "alpha", "share", "eps", "eps_printed", "share_printed", "gamma_query"])
    return setting.table(frame, {
        "K": "features", "alpha": "alpha* at which some beta first rises at T_1", "share": "the same over (K - 1)^2",
        "eps": "the target there", "eps_printed": "Lemma F.2's condition: eps above this",
        "share_printed": "alpha* there over (K - 1)^2", "gamma_query": "correlation of the query at the first rise",
    }, started)  # fmt: skip


def around_threshold(setting: Setting, factors: Sequence[float] = (100.0, 1.5, 0.67, 0.01)) -> Table:
    """First part of fine-tuning from the worst shift of K = 3, at targets that are the sharp one times ``factors``.

    Steps are small (0.01) and end long before the rule is met, which takes of the order of 1/eps.
    """
    started = time.perf_counter()
    first, eta = first_rise(3), 0.01
    targets = [factor * first.eps for factor in factors]
    start = _starts(torch.tensor(first.gamma, dtype=torch.float64), targets)
    run = dynamics.gradient_descent(
        start, balanced(3), eta=eta, threshold=torch.tensor(targets, dtype=torch.float64) / 3, record=12,
        max_steps=100_000, on_failure="return",
    )  # fmt: skip
    path = run.trajectory
    assert path is not None
    moved = path.scores - start
    parts = [
        pd.DataFrame({
            "factor": factor, "eps": eps, "time": eta * path.times.numpy(), "moved": moved[:, i, 2, 0].numpy(),
            "largest": moved[:, i, 1, 0].numpy(),
        })
        for i, (factor, eps) in enumerate(zip(factors, targets, strict=True))
    ]  # fmt: skip
    return setting.table(pd.concat(parts, ignore_index=True), {
        "factor": "eps over the sharp one", "eps": "target", "time": "steps since T_1 times the step size",
        "moved": "change of the least beta of the query since T_1", "largest": "change of the largest beta",
    }, started)  # fmt: skip


def rank_one(setting: Setting, eps: float = 0.004) -> Table:
    """Fine-tuning for an overlap of rank one, ``V'U = h w'`` with h orthogonal to (1, 1, 1), K = 3: query 1."""
    started = time.perf_counter()
    h = torch.tensor([0.5**0.5, -(0.5**0.5), 0.0], dtype=torch.float64)
    M = torch.outer(h, torch.tensor(RANK_ONE, dtype=torch.float64))
    run = fine_tuning.from_overlap(ood.symmetric_scores(3, ood.alpha_star(3, eps)), M, eps, setting.eta, record=30)
    path = run.trajectory
    assert path is not None
    moved = path.scores[..., 0] - run.start[:, 0]
    frame = pd.DataFrame({
        "step": path.times.numpy(), "alpha": moved[:, 0].numpy(), "beta_2": moved[:, 1].numpy(),
        "beta_3": moved[:, 2].numpy(), "loss": path.losses[:, 0].numpy(),
    })  # fmt: skip
    return setting.table(frame, {
        "step": "steps since T_1", "alpha": "change of alpha_1", "beta_2": "change of beta_(2,1)",
        "beta_3": "change of beta_(3,1)", "loss": "loss of u_1",
    }, started)  # fmt: skip


def draw_thresholds(table: Table, around: Table, line: Table) -> Figure:
    """Thresholds over K; the beta in question around the sharp one; the same for the overlap of rank one."""
    from matplotlib import pyplot as plt

    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(8.4, 3.4))
    f = table.frame
    left.plot(f["K"], f["share"], "o-", color=COLORS[0], label="sharp at $T_1$")
    left.plot(f["K"], f["share_printed"], "s--", color=COLORS[1], label="Lemma F.2")
    left.set(xlabel="number of features K", ylabel=r"$\alpha^*/(K-1)^2$", ylim=(0, None))
    left.set_title("Largest allowed", fontsize=10)
    left.legend(fontsize=8)
    for i, (factor, part) in enumerate(around.frame.groupby("factor", sort=False)):
        moving = part[part["time"] > 0]
        middle.plot(moving["time"], moving["moved"], color=COLORS[i], ls=LINES[i], label=f"{factor:g} times")
    # Rises are tiny beside the falls that follow: a scale that is linear around zero and logarithmic beyond.
    middle.set_yscale("symlog", linthresh=1e-8)
    middle.set(xscale="log", xlabel=r"$\eta\,\times$ steps", ylabel=r"change of $\beta_{3,1}$")
    middle.set_title(r"$\epsilon$ around the sharp one", fontsize=10)
    middle.set_yticks([-1, -1e-4, 0, 1e-4])
    middle.legend(fontsize=8)
    g = line.frame
    right.plot(g["step"] + 1, g["beta_3"], color=COLORS[1], label=r"$\beta_{3,1}$")
    right.plot(g["step"] + 1, g["beta_2"], color=COLORS[0], ls="--", label=r"$\beta_{2,1}$")
    right.set_yscale("symlog", linthresh=1e-6)
    right.set_yticks([-1, -1e-3, 0, 1e-4])
    right.set(xscale="log", xlabel="fine-tuning steps + 1", ylabel="change since $T_1$")
    right.set_title("Rank one", fontsize=10)
    right.legend(fontsize=8)
    for axes in (middle, right):
        axes.axhline(0, color="#000000", lw=0.8)
    return figure


def one_step_before(scores: Tensor, start: Tensor, times: Tensor, eta: float) -> Tensor:
    """Undo the last step of every column that has moved: solve ``s = scores - eta delta(s)`` by iteration.

    Parameters
    ----------
    scores, start : Tensor, shape (..., K, K)
        Column k at its own t_k, and at T_1.
    times : Tensor, shape (..., K)
        t_k; columns with 0 keep ``start``.
    eta : float
        Step size, small enough for the iteration to contract.
    """
    law = balanced(scores.shape[-1])
    previous = scores
    for _ in range(200):
        previous = scores - eta * population.descent(previous, law)
    return torch.where((times == 0).unsqueeze(-2), start, previous)


def bounds(setting: Setting, points: int = 12) -> Table:
    """Delta and Lambda of every feature at its own t_m over eps, with the printed and the corrected bounds."""
    started = time.perf_counter()
    gamma, K, targets = setting.gammas, setting.K, setting.targets(points)
    start = _starts(gamma, targets)
    eps = torch.tensor(targets, dtype=torch.float64)
    scores, times = fine_tuning.at_own_times(start, 1.0, setting.eta, threshold=eps / K, max_steps=500_000_000)
    moved = scores - start
    earlier = torch.diagonal(one_step_before(scores, start, times, setting.eta) - start, dim1=-2, dim2=-1)
    delta = torch.diagonal(moved, dim1=-2, dim2=-1)
    off = _off(K)
    falls = -moved
    rows = []
    for i, e in enumerate(targets):
        alpha = ood.alpha_star(K, e)
        corrected, lam = theory.delta_bounds(gamma, e), theory.lambda_bounds(gamma, alpha, delta[i])
        low, high = theory.delta_lower_printed(gamma, e), theory.delta_upper_printed(gamma, e)
        for k in range(K):
            column = falls[i, :, k][off[:, k]]
            rows.append((
                e, k + 1, gamma[k], alpha, times[i, k], delta[i, k], earlier[i, k], corrected.lower[k],
                corrected.upper[k],
                low[k], high[k], column.min(), column.max(), lam.lower[k], lam.upper[k],
            ))  # fmt: skip
    names = {
        "eps": "target", "feature": "m, from 1", "gamma": "its correlation", "alpha_star": "alpha* at this target",
        "step": "t_m", "delta": "Delta_m at t_m", "delta_before": "the same one step before",
        "lower": "eq. 29, corrected",
        "upper": "eq. 28, corrected", "lower_printed": "eq. 29 as printed", "upper_printed": "eq. 28 as printed",
        "lam_least": "least Lambda_(n,m) at t_m", "lam_largest": "largest of them",
        "lam_lower": "Theorem F.4's lower bound",
        "lam_upper": "its upper bound",
    }  # fmt: skip
    return setting.table(pd.DataFrame([[float(x) for x in row] for row in rows], columns=list(names)), names, started)


def draw_bounds(table: Table) -> Figure:
    """Delta between its bounds, one panel per feature; logarithmic in eps."""
    from matplotlib import pyplot as plt

    parts = list(table.frame.groupby("feature"))[:3]
    figure, panels = plt.subplots(1, len(parts), figsize=(8.4, 3.4), sharey=True)
    for axes, (k, part) in zip(np.atleast_1d(panels), parts, strict=True):
        axes.fill_between(
            part["eps"], part["lower"], part["upper"], color=COLORS[5], alpha=0.5, lw=0, label="corrected"
        )
        axes.plot(part["eps"], part["delta"], "o", ms=4, ls="none", color=COLORS[0], label=r"simulated $\Delta_m$")
        axes.plot(part["eps"], part["upper_printed"], color=COLORS[1], ls="--", lw=1.2, label="eq. 28 as printed")
        axes.plot(part["eps"], part["lower_printed"], color=COLORS[1], ls=":", lw=1.4, label="eq. 29 as printed")
        where = part[part["alpha_star"] < 1]["eps"].min()
        if math.isfinite(where):
            axes.axvspan(where, part["eps"].max(), color="#DDDDDD", alpha=0.6, lw=0)
        axes.axhline(0, color="#000000", lw=0.7)
        axes.set(
            xscale="log", xlabel=r"target $\epsilon$", title=rf"$m={int(k)}$, $\gamma_m={part['gamma'].iloc[0]:g}$"
        )
    first = np.atleast_1d(panels)[0]
    first.set_ylabel(r"$\Delta_m$ at $t_m$ (nats)")
    np.atleast_1d(panels)[-1].legend(fontsize=7, loc="upper right")
    return figure


def draw_lambda(table: Table) -> Figure:
    """Range of Lambda over the keys between the bounds of Theorem F.4, one panel per feature."""
    from matplotlib import pyplot as plt

    parts = list(table.frame.groupby("feature"))[:3]
    figure, panels = plt.subplots(1, len(parts), figsize=(8.4, 3.2), sharey=True)
    for axes, (k, part) in zip(np.atleast_1d(panels), parts, strict=True):
        axes.fill_between(
            part["eps"], part["lam_lower"], part["lam_upper"], color=COLORS[5], alpha=0.45, lw=0, label="Theorem F.4"
        )
        axes.plot(part["eps"], part["lam_largest"], "^-", ms=4, color=COLORS[0], label=r"largest $\Lambda_{n,m}$")
        axes.plot(part["eps"], part["lam_least"], "v--", ms=4, color=COLORS[1], label=r"least $\Lambda_{n,m}$")
        axes.set(
            xscale="log", xlabel=r"target $\epsilon$", title=rf"$m={int(k)}$, $\gamma_m={part['gamma'].iloc[0]:g}$"
        )
    np.atleast_1d(panels)[0].set_ylabel(r"$\Lambda_{n,m}$ at $t_m$ (nats)")
    np.atleast_1d(panels)[-1].legend(fontsize=8)
    return figure


def times(table: Table, setting: Setting) -> Table:
    """T_2 over eps with its local slope and the explicit bound, from the table of :func:`bounds`."""
    started = time.perf_counter()
    rows = []
    for e, part in table.frame.groupby("eps", sort=False):
        start = theory.initial_scores(setting.gammas, ood.alpha_star(setting.K, float(e)))
        rows.append(
            (
                e,
                part["step"].max(),
                float(theory.time_bound(start, float(e), setting.eta).max()),
                float(theory.step_limit(start)),
            )
        )
    frame = pd.DataFrame(rows, columns=["eps", "T2", "bound", "step_limit"])
    frame["slope"] = np.gradient(np.log(frame["T2"].clip(lower=1)), -np.log(frame["eps"]))
    made = setting.table(frame, {
        "eps": "target", "T2": "fine-tuning steps until every loss is at most eps/K", "bound": "explicit bound on them",
        "step_limit": "largest step size that Theorem F.4 allows", "slope": "local exponent of T2 in 1/eps",
    }, started)  # fmt: skip
    # The steps themselves were counted with the other table.
    made.provenance["seconds"] = table.provenance["seconds"]
    return made


def draw_times(table: Table) -> Figure:
    """T_2 and its bound over eps; the local exponent."""
    from matplotlib import pyplot as plt

    f = table.frame
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.4, 3.5))
    left.loglog(f["eps"], f["T2"], "o-", color=COLORS[0], label=r"$T_2$ of gradient descent")
    left.loglog(f["eps"], f["bound"], color=COLORS[1], ls="--", label="bound")
    left.set(xlabel=r"target $\epsilon$", ylabel="fine-tuning steps")
    left.legend()
    right.semilogx(f["eps"], f["slope"], "s-", color=COLORS[2])
    right.axhline(1, color="#000000", ls=":", lw=1.2)
    right.set(xlabel=r"target $\epsilon$", ylabel=r"local exponent of $T_2$ in $1/\epsilon$", ylim=(0, None))
    return figure


def order(setting: Setting) -> Table:
    """Times of convergence for random correlations, and for the counterexample (0.6, -0.59, -0.59) as draw -1."""
    started = time.perf_counter()
    K = setting.K
    g = features.generator(setting.seed + 1)
    gamma = 2 * torch.rand(setting.draws, K, dtype=torch.float64, generator=g) - 1
    eps = min(setting.eps, 0.1)
    drawn = fine_tuning.fine_tune_gamma(gamma, eps, setting.eta)
    example = fine_tuning.fine_tune_gamma([0.6, -0.59, -0.59], eps, setting.eta)
    frame = pd.DataFrame({
        "draw": np.append(np.repeat(np.arange(setting.draws), K), [-1] * 3),
        "gamma": torch.cat([gamma.reshape(-1), torch.tensor([0.6, -0.59, -0.59], dtype=torch.float64)]).numpy(),
        "step": torch.cat([drawn.times.reshape(-1), example.times]).numpy(),
    })  # fmt: skip
    return setting.table(frame, {
        "draw": "number of the random shift, -1 for the counterexample", "gamma": "correlation of the feature",
        "step": "its time of convergence",
    }, started)  # fmt: skip


def out_of_order(table: Table) -> float:
    """Share of pairs within a draw where the feature with the larger ``|gamma|`` converges strictly later."""
    wrong = total = 0
    for draw, part in table.frame.groupby("draw"):
        if draw == -1:
            continue
        size, step = part["gamma"].abs().to_numpy(), part["step"].to_numpy()
        later = (size[:, None] > size) & (step[:, None] > step)
        wrong += int(later.sum())
        total += len(size) * (len(size) - 1) // 2
    return wrong / total


def draw_order(table: Table) -> Figure:
    """Time of convergence against the correlation, with the counterexample on top."""
    from matplotlib import pyplot as plt

    f = table.frame
    drawn, example = f[f["draw"] >= 0], f[f["draw"] < 0]
    figure, axes = plt.subplots()
    axes.plot(
        drawn["gamma"].abs(), drawn["step"], ".", ms=3, ls="none", color=COLORS[5], label="features of random shifts"
    )
    axes.plot(
        example["gamma"].abs(),
        example["step"],
        "X",
        ms=8,
        ls="none",
        color=COLORS[1],
        label=r"$\gamma=(0.6,-0.59,-0.59)$",
    )
    axes.set(xlabel=r"$|\gamma_m|$", ylabel="steps until the loss is met, $t_m$")
    axes.legend()
    return figure


def step_sizes(setting: Setting, multiples: Sequence[float] = (1.0, 5.0, 60.0)) -> Table:
    """Fine-tuning at multiples of Theorem F.4's limit on the step size."""
    started = time.perf_counter()
    K = setting.K
    start = theory.initial_scores(setting.gammas, ood.alpha_star(K, setting.eps))
    limit = float(theory.step_limit(start))
    off = _off(K)
    parts = []
    for multiple in multiples:
        run = dynamics.gradient_descent(
            start,
            balanced(K),
            eta=multiple * limit,
            threshold=setting.eps / K,
            record=range(2000),
            max_steps=10_000_000,
        )
        path = run.trajectory
        assert path is not None
        one, two = torch.triu_indices(K, K, 1)
        ranked = start.masked_fill(~off, math.nan)
        broken = torch.zeros(len(path.times))
        for n, m in zip(one.tolist(), two.tolist(), strict=True):
            before, now = ranked[n] - ranked[m], path.scores[:, n] - path.scores[:, m]
            flips = (torch.sign(before) * torch.sign(now) < 0) & torch.isfinite(before)
            broken += flips.sum(-1)
        parts.append(pd.DataFrame({
            "multiple": multiple, "eta": multiple * limit, "step": path.times.numpy(),
            "loss": path.losses.sum(-1).numpy(), "pairs_out_of_order": broken.numpy(), "T2": int(run.steps),
        }))  # fmt: skip
    return setting.table(pd.concat(parts, ignore_index=True), {
        "multiple": "step size over the limit of Theorem F.4", "eta": "step size", "step": "steps since T_1",
        "loss": "total loss on U", "pairs_out_of_order": "pairs of rivals whose betas have changed order since T_1",
        "T2": "steps until every loss is at most eps/K",
    }, started)  # fmt: skip


def draw_step_sizes(table: Table, eps: float) -> Figure:
    """Total loss against time, and the pairs of betas that changed order."""
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(8.4, 3.4))
    for i, (multiple, part) in enumerate(table.frame.groupby("multiple")):
        x = part["eta"] * part["step"]
        style: dict[str, Any] = {"color": COLORS[i], "ls": LINES[i], "marker": "." if len(part) < 60 else None}
        left.plot(x, part["loss"], label=f"{multiple:g} times the limit", **style)
        right.plot(x, part["pairs_out_of_order"], label=f"{multiple:g} times the limit", **style)
    left.axhline(eps, color="#000000", ls=":", lw=1.2)
    left.set(xlabel=r"$\eta\,\times$ steps", ylabel="total loss on U", yscale="log")
    right.set(xlabel=r"$\eta\,\times$ steps", ylabel="pairs of betas out of order")
    right.yaxis.get_major_locator().set_params(integer=True)
    left.legend(fontsize=8)
    return figure


# ---------------------------------------------------------------------------------------------------------------------
# Beyond the assumptions.


def loss_by_gap(setting: Beyond, lengths: Sequence[int] = (3, 6, 12, 24, 96), points: int = 60) -> Table:
    """Loss on drawn prompts against the score gap, for several prompt lengths, exact; with each length's floor."""
    started = time.perf_counter()
    K = setting.K
    rows = []
    for N in lengths:
        least = counted.floor(K, N)
        rows += [(N, gap, counted.loss(K, N, gap), least) for gap in np.linspace(0, 14, points)]
    frame = pd.DataFrame(rows, columns=["N", "gap", "loss", "floor"])
    frame["balanced"] = [ood_loss_at(K, gap) for gap in frame["gap"]]
    return setting.table(frame, {
        "N": "prompt length", "gap": "score of the query's feature less any other",
        "loss": "loss of one feature, drawn prompts",
        "floor": "its limit for an infinite gap", "balanced": "loss with balanced prompts",
    }, started)  # fmt: skip


def ood_loss_at(K: int, gap: float) -> float:
    """Loss of one feature at symmetric scores with balanced prompts."""
    missing = (K - 1) / (math.exp(gap) + K - 1)
    return missing**2 / (2 * (K - 1))


def draw_loss_by_gap(table: Table, eps: float, K: int) -> Figure:
    """One line per prompt length, its floor dotted; the balanced loss in black."""
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots()
    for i, (N, part) in enumerate(table.frame.groupby("N")):
        axes.plot(part["gap"], part["loss"], color=COLORS[i], ls=LINES[i], label=f"N = {N}")
        axes.axhline(part["floor"].iloc[0], color=COLORS[i], ls=":", lw=0.9)
    first = next(iter(table.frame.groupby("N")))[1]
    axes.plot(first["gap"], first["balanced"], color="#000000", ls="-", lw=1, label="balanced")
    axes.axhline(eps / K, color="0.4", ls=(0, (6, 2)), lw=1.2)
    axes.annotate(r"$\epsilon/K$", (13.9, eps / K), xytext=(0, 3), textcoords="offset points", ha="right")
    axes.set(yscale="log", xlabel=r"score gap $\alpha-\beta$ (nats)", ylabel="loss of one feature")
    axes.set_ylim(bottom=float(first["balanced"].min()) / 2)
    axes.legend(fontsize=8)
    return figure


def _both_phases(setting: Beyond, law: PromptLaw) -> tuple[float, float, float, float, float]:
    """Mean alpha at the stop, spread of beta there, T_1, T_2, total forgetting."""
    K = setting.K
    trained = dynamics.gradient_descent(
        torch.zeros(K, K, dtype=torch.float64), law, eta=setting.eta, threshold=setting.eps / K, max_steps=300_000
    )
    tuned = fine_tuning.from_overlap(
        trained.update, torch.diag(torch.tensor(setting.gamma, dtype=torch.float64)), setting.eps, setting.eta, law=law,
        max_steps=300_000,
    )  # fmt: skip
    off = trained.scores[_off(K)]
    return (
        float(trained.alpha.mean()), float(off.max() - off.min()), float(trained.steps), float(tuned.end),
        float(tuned.total_forgetting),
    )  # fmt: skip


_PHASES = ("alpha", "beta_spread", "T1", "T2", "forgetting")


def prompt_lengths(setting: Beyond) -> Table:
    """Both phases on drawn prompts from short to long: exact while enumeration is small, else means over samples.

    A row says how it was made: ``exact``, ``sampled`` (with a 95 % interval over independent samples), ``balanced``
    (the limit of long prompts), or ``floor`` where no parameter meets the rule.
    """
    from scipy.stats import t as student

    started = time.perf_counter()
    K = setting.K
    g = features.generator(setting.seed)
    rows: list[dict[str, Any]] = []
    for N in setting.lengths:
        least = counted.floor(K, N)
        row: dict[str, Any] = {"N": N, "how": "exact", "floor": least}
        try:
            if least >= setting.eps / K:
                raise ValueError
            row.update(zip(_PHASES, _both_phases(setting, multinomial([1 / K] * K, N)), strict=True))
        except (ValueError, dynamics.ConvergenceError):
            row["how"] = "floor"
        rows.append(row)
    for N in setting.long_lengths:
        runs = np.array([
            _both_phases(setting, multinomial_sample([1 / K] * K, N, setting.samples, generator=g))
            for _ in range(setting.repeats)
        ])  # fmt: skip
        half = student.ppf(0.975, setting.repeats - 1) * runs.std(0, ddof=1) / math.sqrt(setting.repeats)
        row = {"N": N, "how": "sampled", "floor": counted.floor(K, N)}
        row.update(zip(_PHASES, runs.mean(0), strict=True))
        row.update({f"{name}_half": h for name, h in zip(_PHASES, half, strict=True)})
        rows.append(row)
    last = {"N": math.inf, "how": "balanced", "floor": 0.0}
    last.update(zip(_PHASES, _both_phases(setting, balanced(K)), strict=True))
    names = ["N", "how", "floor", *_PHASES, *(f"{name}_half" for name in _PHASES)]
    return setting.table(pd.DataFrame([*rows, last], columns=names), {
        "N": "prompt length", "how": "exact, sampled, balanced, or floor: the rule cannot be met",
        "floor": "least loss of one feature", "alpha": "mean alpha when training stops",
        "beta_spread": "largest less least beta there", "T1": "training steps", "T2": "fine-tuning steps",
        "forgetting": "total forgetting",
        **{f"{name}_half": f"half width of the 95 % interval of {name}" for name in _PHASES},
    }, started)  # fmt: skip


def draw_prompt_lengths(table: Table) -> Figure:
    """alpha at the stop, forgetting and the spread of beta over the prompt length."""
    from matplotlib import pyplot as plt

    f = table.frame
    limit = f[f["how"] == "balanced"].iloc[0]
    figure, panels = plt.subplots(1, 3, figsize=(8.4, 3.2))
    for axes, name, label in zip(
        panels, ("alpha", "forgetting", "T2"),
        (r"$\alpha$ when training stops", "total forgetting", "fine-tuning steps $T_2$"),
        strict=True,
    ):  # fmt: skip
        exact, drawn = f[f["how"] == "exact"], f[f["how"] == "sampled"]
        axes.plot(exact["N"], exact[name], "o-", ms=4, color=COLORS[0], label="exact")
        axes.errorbar(
            drawn["N"],
            drawn[name],
            drawn[f"{name}_half"],
            fmt="s",
            ms=4,
            color=COLORS[1],
            capsize=3,
            label="sampled, 95 %",
        )
        axes.axhline(limit[name], color="#000000", ls=":", lw=1.2, label="balanced")
        missed = f[f["how"] == "floor"]["N"]
        if len(missed):
            axes.axvspan(f["N"].min() * 0.9, missed.max() * 1.05, color="#DDDDDD", alpha=0.7, lw=0)
        axes.set(xscale="log", xlabel="prompt length N", ylabel=label)
    panels[0].legend(fontsize=8)
    return figure


def loss_at_star(setting: Beyond, least: float = 1e-16) -> Table:
    """Loss at alpha* on drawn prompts over eps, in units of eps/K, for three rules that choose the prompt length."""
    started = time.perf_counter()
    K = setting.K
    rules = {
        "lemma": lambda e: counted.length_for(K, 0.9),
        "fourth": lambda e: K**4,
        "log": lambda e: max(K**4, math.ceil(3 * K * math.log(K / e))),
    }
    rows = []
    for e in np.geomspace(0.9 * ood.eps_limit(K), least, 34):
        for name, rule in rules.items():
            N = rule(e)
            rows.append(
                (
                    e,
                    name,
                    N,
                    counted.loss(K, N, ood.alpha_star(K, float(e)) * K / (K - 1)) * K / e,
                    counted.floor(K, N) * K / e,
                )
            )
    frame = pd.DataFrame(rows, columns=["eps", "rule", "N", "loss", "floor"])
    return setting.table(frame, {
        "eps": "target", "rule": "how N is chosen: Lemma I.1 with eps0 = 0.9; K^4; or at least 3 K log(K/eps)",
        "N": "prompt length", "loss": "loss of one feature at alpha*, over eps/K", "floor": "least loss, over eps/K",
    }, started)  # fmt: skip


def draw_loss_at_star(table: Table) -> Figure:
    """Loss over eps/K for the three rules."""
    from matplotlib import pyplot as plt

    names = {"lemma": r"$N=20K/0.9^2$ (Lemma I.1)", "fourth": "$N=K^4$", "log": r"$N\geq 3K\log(K/\epsilon)$"}
    figure, axes = plt.subplots()
    for i, (rule, part) in enumerate(table.frame.groupby("rule", sort=False)):
        axes.loglog(part["eps"], part["loss"], color=COLORS[i], ls=LINES[i], label=names[str(rule)])
    axes.set(xlabel=r"target $\epsilon$", ylabel=r"loss at $\alpha^*$, over $\epsilon/K$")
    axes.legend()
    return figure


def slope_sizes(setting: Beyond, Ks: Sequence[int] = (4, 8, 16, 32, 64, 128, 256)) -> Table:
    """Largest fall of a beta per unit of step size while attention goes from 1/K to 1, over K."""
    started = time.perf_counter()
    rows = []
    for K in Ks:
        a = np.linspace(1 / K, 1, 8001)
        b = (1 - a) / (K - 1)
        size = b * (a * (1 - a) + b - (K - 1) * b**2) / K
        at = int(size.argmax())
        rows.append((K, size[0], size[at], a[at]))
    return setting.table(pd.DataFrame(rows, columns=["K", "at_start", "largest", "attention"]), {
        "K": "features", "at_start": "-delta_beta at uniform attention", "largest": "largest -delta_beta on the way",
        "attention": "attention on the query's feature there",
    }, started)  # fmt: skip


def any_shift(setting: Beyond, dimensions: Sequence[int] | None = None, points: int = 17) -> Table:
    """Share of random shifts for which some beta rises at T_1, over eps, for U drawn in several dimensions."""
    started = time.perf_counter()
    K = setting.K
    dimensions = (K, K + 1, 2 * K) if dimensions is None else dimensions
    rows = []
    for d in dimensions:
        g = features.generator(setting.seed + d)
        M = features.orthonormal(d, K, generator=g, batch=(setting.draws,))[:, :K]
        for e in np.geomspace(0.9 * ood.eps_limit(K), 1e-6, points):
            start = M.mT @ ood.symmetric_scores(K, ood.alpha_star(K, float(e))) @ M
            a = population.attention_weights(start)
            rest = a * _off(K)
            own = torch.diagonal(a, dim1=-2, dim2=-1).unsqueeze(-2)
            # The sign of delta_beta is that of D - Attn_n.
            D = (rest**2).sum(-2, keepdim=True) - own * rest.sum(-2, keepdim=True)
            rises = ((rest < D) & _off(K)).flatten(1).any(1)
            rows.append((d, e, float(rises.double().mean())))
    return setting.table(pd.DataFrame(rows, columns=["d", "eps", "share"]), {
        "d": "dimension of the inputs", "eps": "target",
        "share": "share of the random shifts with some beta rising at T_1",
    }, started)  # fmt: skip


def draw_any_shift(table: Table, K: int) -> Figure:
    """Share of shifts with a rising beta over eps, with the two conditions."""
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots()
    for i, (d, part) in enumerate(table.frame.groupby("d")):
        axes.semilogx(
            part["eps"], 100 * part["share"], color=COLORS[i], ls=LINES[i], marker="o", ms=3, label=f"d = {d}"
        )
    for value, text, height in (
        (theory.sign_condition_any(K), "any U", 0.9), (theory.sign_condition(K) if K > 2 else None, "Lemma F.2", 0.75),
    ):  # fmt: skip
        if value is not None and value > table.frame["eps"].min():
            axes.axvline(value, color="#000000", ls=":", lw=1.1)
            axes.annotate(
                text,
                (value, height),
                xycoords=("data", "axes fraction"),
                xytext=(-4, 0),
                textcoords="offset points",
                ha="right",
            )
    axes.set(xlabel=r"target $\epsilon$", ylabel="shifts with a rising beta at $T_1$ (%)")
    axes.legend()
    return figure


def any_bounds(setting: Beyond) -> Table:
    """Delta of every feature at its own time for random shifts, d = 2 K, with bounds from the scores at T_1."""
    started = time.perf_counter()
    K = setting.K
    g = features.generator(setting.seed + 7)
    M = features.orthonormal(2 * K, K, generator=g, batch=(setting.draws,))[:, :K]
    start = M.mT @ ood.symmetric_scores(K, ood.alpha_star(K, setting.eps)) @ M
    scores, times_ = fine_tuning.at_own_times(start, setting.eps, setting.eta)
    low, high = theory.delta_bounds_any(start, setting.eps)
    delta = torch.diagonal(scores - start, dim1=-2, dim2=-1)
    earlier = one_step_before(scores, start, times_, setting.eta)
    before = torch.diagonal(earlier - start, dim1=-2, dim2=-1)
    frame = pd.DataFrame({
        "draw": np.repeat(np.arange(setting.draws), K), "step": times_.reshape(-1).numpy(),
        "delta": delta.reshape(-1).numpy(), "delta_before": before.reshape(-1).numpy(),
        "lower": low.reshape(-1).numpy(), "upper": high.reshape(-1).numpy(),
    })  # fmt: skip
    return setting.table(frame, {
        "draw": "number of the random shift", "step": "t_m", "delta": "Delta_m at t_m",
        "delta_before": "the same one step before", "lower": "bound from below",
        "upper": "bound from above",
    }, started)  # fmt: skip


def draw_any_bounds(table: Table) -> Figure:
    """Delta against the middle of its bounds, the bounds as bars."""
    from matplotlib import pyplot as plt

    f = table.frame[table.frame["step"] > 0].sort_values("upper").iloc[::3]
    x = np.arange(len(f))
    figure, axes = plt.subplots()
    axes.vlines(x, f["lower"], f["upper"], color=COLORS[5], lw=1.2, label="bounds from the scores at $T_1$")
    axes.plot(x, f["delta"], ".", ms=4, ls="none", color=COLORS[0], label=r"simulated $\Delta_m$")
    axes.set(xlabel="feature of a random shift, by its upper bound", ylabel=r"$\Delta_m$ at $t_m$ (nats)")
    axes.legend()
    return figure


def correlated_sets(setting: Beyond, c: float) -> tuple[Tensor, Tensor]:
    """Sets V and U, shape (2 K, K), of unit features with inner products c inside each set, shifted by gamma.

    Both are orthonormal sets under Assumption 5.4 times the root of ``G = (1 - c) I + c 1 1'``.
    """
    K = setting.K
    V = torch.eye(2 * K, K, dtype=torch.float64)
    gamma = torch.tensor(setting.gamma, dtype=torch.float64)
    U = torch.zeros_like(V)
    U[:K], U[K:] = torch.diag(gamma), torch.diag((1 - gamma**2).sqrt())
    values, vectors = torch.linalg.eigh((1 - c) * torch.eye(K, dtype=torch.float64) + c)
    root = vectors @ torch.diag(values.sqrt()) @ vectors.T
    return V @ root, U @ root


def correlated(setting: Beyond) -> Table:
    """Both phases for features that are not orthogonal, over their inner product."""
    started = time.perf_counter()
    K, law = setting.K, balanced(setting.K)
    rows = []
    for c in setting.correlations:
        V, U = correlated_sets(setting, c)
        gram = features.gram(V)
        trained = dynamics.gradient_descent(
            torch.zeros(K, K, dtype=torch.float64), law, eta=setting.eta, threshold=setting.eps / K, gram=gram
        )
        run = fine_tuning.fine_tune(V, U, setting.eps, setting.eta, start=trained.update)
        error = population.losses(run.start, law, features.gram(U)).sum()
        rows.append((
            c, float(trained.alpha.mean()), float(trained.scores[_off(K)].mean()), int(trained.steps), float(error),
            float(population.losses(torch.zeros_like(run.start), law, gram).sum()),
            float(run.end), float(run.total_forgetting),
        ))  # fmt: skip
    names = {
        "c": "inner product between features of one set", "alpha": "score of the own feature when training stops",
        "beta": "mean score of a rival there", "T1": "training steps", "ood_error": "total OOD error after training",
        "uniform": "total error with uniform attention", "T2": "fine-tuning steps", "forgetting": "total forgetting",
    }  # fmt: skip
    return setting.table(pd.DataFrame(rows, columns=list(names)), names, started)


def draw_correlated(table: Table) -> Figure:
    """Scores, steps, and errors over the inner product."""
    from matplotlib import pyplot as plt

    f = table.frame
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(8.4, 3.2))
    left.plot(f["c"], f["alpha"], "o-", color=COLORS[0], label=r"$\alpha$")
    left.plot(f["c"], f["beta"], "s--", color=COLORS[1], label=r"$\beta$")
    left.set_ylabel("scores when training stops (nats)")
    middle.plot(f["c"], f["T1"], "o-", color=COLORS[0], label="training $T_1$")
    middle.plot(f["c"], f["T2"], "s--", color=COLORS[1], label="fine-tuning $T_2$")
    middle.set(ylabel="steps", ylim=(0, None))
    right.plot(f["c"], f["ood_error"] / f["uniform"], "o-", color=COLORS[0], label="OOD error over uniform attention's")
    right.plot(
        f["c"],
        f["forgetting"] / table.provenance["parameters"]["eps"],
        "s--",
        color=COLORS[1],
        label=r"forgetting over $\epsilon$",
    )
    right.axhline(0, color="#000000", lw=0.7)
    right.set(ylabel="ratio", ylim=(None, 1.2))
    for axes in (left, middle, right):
        axes.set_xlabel("inner product c within a set")
        axes.legend(fontsize=7, loc="center" if axes is right else "best")
    return figure

"""What label noise changes (OOD paper, Appendix K): training, OOD error, the stopping rule, updates, forgetting.

``s`` is the effective noise variance ``K sigma^2 / N`` throughout.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from icl_core import _validate, dynamics, features, fine_tuning, population
from icl_core.plotting import COLORS, LINES
from icl_core.prompts import PromptLaw, balanced
from icl_core.results import Table, provenance
from icl_core.theory import noise, ood

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COMMAND = "icl-core run noise"

# A change of a score smaller than this is rounding, not a sign.
_ROUNDING = 1e-14


def _table(frame: pd.DataFrame, columns: dict[str, str], parameters: dict[str, Any], began: float) -> Table:
    return Table(frame, provenance(parameters, started=began, command=COMMAND), columns)


def _noises(noises: Sequence[float]) -> list[float]:
    return _validate.reals("noises", noises, least=0.0)


def law(K: int, N: int, s: float) -> PromptLaw:
    """Balanced prompts of N tokens whose label noise has effective variance ``s``.

    Raises
    ------
    ValueError
        If an argument is out of range.
    """
    s = _validate.real("s", s, least=0.0)
    return balanced(K, N, sigma=math.sqrt(s * N / _validate.integer("K", K, least=2)))


def threshold(prompts: PromptLaw, eps: float) -> float:
    """Bound on every noisy loss, ``(epsilon_0 + eps) / K`` (OOD paper, Appendix K)."""
    return (noise.noise_floor(prompts.K, prompts.sigma_eff2, prompts.sigma) + eps) / prompts.K


def stable_step(K: int, s: float) -> float:
    """Step size above which gradient descent cannot settle in the minimum of the noisy loss.

    Raises
    ------
    ValueError
        If an argument is out of range; without noise there is no finite minimum and no limit.

    Notes
    -----
    At the minimum the Hessian of a query's loss in its scores is ``(1 + s) / K J^2`` with ``J = diag(a) - a a'``, whose
    largest eigenvalue is ``K a b``, a and b being the attention on the own and on another feature. The step limit is 2
    over the Hessian's, ``2 / ((1 + s) K (a b)^2)``.
    """
    a = noise.best_attention(K, _validate.real("s", s, above=0.0))
    return 2 / ((1 + s) * K * (a * (1 - a) / (K - 1)) ** 2)


def training_levels(
    noises: Sequence[float], K: int = 4, N: int = 8, eps: float = 0.01, eta: float = 0.1, max_steps: int = 1_000_000
) -> Table:
    """Train from Q = 0 with label noise and compare the attention reached with eq. 32.

    Parameters
    ----------
    noises : sequence of float
        Effective noise variances.
    K, N, eps, eta
        Features, tokens, target of the excess loss, step size.
    max_steps : int
        Give up after so many steps.

    Returns
    -------
    Table
        One row per noise.

    Raises
    ------
    ValueError
        If an argument is out of range.
    """
    began = time.perf_counter()
    rows = []
    for s in _noises(noises):
        prompts = law(K, N, s)
        run = dynamics.gradient_descent(
            torch.zeros(K, K, dtype=torch.float64), prompts, eta=eta, threshold=threshold(prompts, eps),
            max_steps=max_steps, on_failure="return",
        )  # fmt: skip
        rows.append(
            {
                "s": s, "attention": float(population.attention_weights(run.scores)[0, 0]),
                "eq32": noise.attention_at_end(K, eps, s), "best": noise.best_attention(K, s),
                "loss": float(run.losses.sum()), "floor": noise.noise_floor(K, s, prompts.sigma),
                "limit": noise.eps_limit(K, s), "steps": int(run.steps), "stopped": bool(run.converged),
            }
        )  # fmt: skip
    columns = {
        "s": "effective noise variance", "attention": "attention on the own feature at the end of training",
        "eq32": "eq. 32", "best": "attention that minimises the noisy loss", "loss": "total noisy loss at the end",
        "floor": "noise floor", "limit": "excess loss at Q = 0", "steps": "steps of training",
        "stopped": "whether the rule was met",
    }  # fmt: skip
    parameters = {"noises": list(noises), "K": K, "N": N, "eps": eps, "eta": eta}
    return _table(pd.DataFrame(rows), columns, parameters, began)


def draw_training_levels(table: Table) -> Figure:
    """Draw attention at the end of training, and the loss with its floor, over the noise."""
    from matplotlib.figure import Figure

    frame, given = table.frame, table.provenance["parameters"]
    figure = Figure(figsize=(7.4, 3.3), layout="constrained")
    left, right = figure.subplots(1, 2, sharex=True)
    left.plot(frame["s"], frame["best"], color=COLORS[2], ls="-.", label="least loss")
    left.plot(frame["s"], frame["eq32"], color=COLORS[1], ls="--", label="eq. 32")
    left.plot(frame["s"], frame["attention"], color=COLORS[0], ls="none", marker="o", ms=3.5, label="training")
    left.axhline(1 / given["K"], color="0.3", ls=":", lw=1)
    left.set(xscale="log", ylim=(0, 1), xlabel=r"noise $\sigma_{\mathrm{eff}}^2$", ylabel="attention on own feature")
    right.plot(frame["s"], frame["loss"], color=COLORS[0], ls="none", marker="o", ms=3.5, label="training")
    right.plot(frame["s"], frame["floor"], color=COLORS[2], ls="-.", label=r"floor $\epsilon_0$")
    right.set(xscale="log", yscale="log", xlabel=r"noise $\sigma_{\mathrm{eff}}^2$", ylabel="total noisy loss")
    for axes in (left, right):
        axes.legend(fontsize=8)
    return figure


def rotation_error(
    noises: Sequence[float],
    K: int = 4,
    d: int = 8,
    N: int = 8,
    eps: float = 0.01,
    eta: float = 0.1,
    angles: int = 61,
    seed: int = 0,
) -> Table:
    """Fig. 2(a) with label noise: error on turned features after noisy training, beside Theorem K.1.

    Parameters
    ----------
    noises : sequence of float
        Effective noise variances; eps must be below the excess loss at Q = 0 for each.
    K, d, N, eps, eta
        Features, dimension, tokens, target of the excess loss, step size.
    angles : int
        Rotation angles from 0 to 2 pi.
    seed : int
        Seed of the training features.

    Returns
    -------
    Table
        One row per (s, theta).

    Raises
    ------
    ValueError
        If an argument is out of range.
    """
    began = time.perf_counter()
    noises = _noises(noises)
    theta = torch.linspace(0, 2 * math.pi, _validate.integer("angles", angles, least=2), dtype=torch.float64)
    V = features.orthonormal(d, K, generator=features.generator(seed))
    U = features.rotation(d, theta, (1, 2)) @ V
    overlap = features.overlap(V.expand_as(U), U)
    frames = []
    for s in noises:
        prompts = law(K, N, s)
        alpha = noise.alpha_hat(K, eps, s)
        trained = dynamics.gradient_descent(
            torch.zeros(K, K, dtype=torch.float64), prompts, eta=eta, threshold=threshold(prompts, eps)
        )
        scores = overlap.mT @ trained.scores @ overlap
        closed = ood.ood_scores(V.expand_as(U), U, alpha)
        frames.append(
            pd.DataFrame(
                {
                    "s": s, "theta": theta.numpy(), "simulated": population.losses(scores, prompts).sum(-1).numpy(),
                    "closed": noise.noisy_losses(closed, s, prompts.sigma).sum(-1).numpy(),
                    "clean_part": population.losses(scores, balanced(K)).sum(-1).numpy(),
                    "query_part": prompts.sigma**2 / 2,
                }
            )
        )  # fmt: skip
    columns = {
        "s": "effective noise variance", "theta": "rotation angle, radians", "simulated": "total noisy OOD error",
        "closed": "the same by Theorem K.1", "clean_part": "noiseless expression at the noisy scores",
        "query_part": "noise of the query label, sigma^2 / 2",
    }  # fmt: skip
    parameters = {
        "noises": noises, "K": K, "d": d, "N": N, "eps": eps, "eta": eta, "angles": angles, "seed": seed,
    }  # fmt: skip
    return _table(pd.concat(frames, ignore_index=True), columns, parameters, began)


def draw_rotation_error(table: Table) -> Figure:
    """Draw the OOD error less the query noise over the angle, and its noiseless part, for every noise."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.4, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2, sharex=True)
    for (s, part), color, line in zip(table.frame.groupby("s"), COLORS, LINES, strict=False):
        degrees = np.degrees(part["theta"])
        label = rf"$\sigma_{{\mathrm{{eff}}}}^2={s:g}$"
        left.plot(degrees, part["simulated"] - part["query_part"], color=color, ls=line, label=label)
        right.plot(degrees, part["clean_part"], color=color, ls=line)
    left.set(ylabel=r"OOD error less $\sigma^2/2$")
    right.set(ylabel="its noiseless expression")
    for axes in (left, right):
        axes.set(xlabel="rotation angle (degrees)", xticks=(0, 90, 180, 270, 360))
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=8, frameon=False)
    return figure


def stopping_map(
    noises: Sequence[float],
    etas: Sequence[float],
    gamma: Sequence[float] = (0.9, -0.6),
    N: int | None = None,
    share: float = 1e-3,
    max_steps: int = 5_000,
) -> Table:
    """Fine-tune over a grid of noises and step sizes: is the stopping rule met?

    Parameters
    ----------
    noises, etas : sequence of float
        Effective noise variances (positive) and step sizes.
    gamma : sequence of float
        Correlations of Assumption 5.4.
    N : int, optional
        Tokens; K by default.
    share : float
        Target eps as a part of the excess loss at Q = 0.
    max_steps : int
        Longest run; what has not stopped by then counts as not stopping.

    Returns
    -------
    Table
        One row per (s, eta), with the step limit of the minimum.

    Raises
    ------
    ValueError
        If an argument is out of range.
    """
    began = time.perf_counter()
    noises = _validate.reals("noises", noises, above=0.0)
    rates = torch.tensor(_validate.reals("etas", etas, above=0.0), dtype=torch.float64)
    share = _validate.real("share", share, above=0.0, below=1.0)
    g = torch.tensor(_validate.reals("gamma", gamma, least=-1.0, most=1.0), dtype=torch.float64)
    K = len(g)
    rows = []
    for s in noises:
        prompts = law(K, K if N is None else N, s)
        eps = share * noise.eps_limit(K, s)
        start = torch.outer(g, g) * ood.symmetric_scores(K, noise.alpha_hat(K, eps, s))
        run = dynamics.gradient_descent(
            start.expand(len(rates), K, K), prompts, eta=rates, threshold=threshold(prompts, eps), max_steps=max_steps,
            on_failure="return",
        )  # fmt: skip
        rows += [
            {"s": s, "eta": float(e), "stopped": bool(c), "steps": int(n), "limit": stable_step(K, s)}
            for e, c, n in zip(rates, run.converged, run.steps, strict=True)
        ]
    columns = {
        "s": "effective noise variance", "eta": "step size", "stopped": "whether the rule was met",
        "steps": "steps done", "limit": "largest step size at which the minimum is stable",
    }  # fmt: skip
    parameters = {
        "noises": noises, "etas": list(etas), "gamma": list(gamma), "N": N, "share": share, "max_steps": max_steps,
    }  # fmt: skip
    return _table(pd.DataFrame(rows), columns, parameters, began)


def draw_stopping_map(table: Table) -> Figure:
    """Draw where fine-tuning stops, with the limit above which the minimum is unstable."""
    from matplotlib.colors import ListedColormap
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    frame = table.frame
    sheet = frame.pivot(index="eta", columns="s", values="stopped").astype(float)
    limit = frame.groupby("s")["limit"].first()
    figure = Figure(figsize=(6.2, 3.8), layout="constrained")
    axes = figure.subplots()
    colors = ("#E8B08C", "#CFE5F5")
    axes.pcolormesh(sheet.columns, sheet.index, sheet, cmap=ListedColormap(colors), vmin=0, vmax=1, shading="nearest",
                    rasterized=True)  # fmt: skip
    axes.plot(limit.index, limit, color="#000000", ls="--", label="stability limit")
    axes.grid(False)
    axes.set(xscale="log", yscale="log", xlabel=r"noise $\sigma_{\mathrm{eff}}^2$", ylabel=r"step size $\eta$",
             ylim=(sheet.index.min(), sheet.index.max()))  # fmt: skip
    handles = [Patch(facecolor=c, label=n) for c, n in zip(colors, ("rule not met", "rule met"), strict=True)]
    figure.legend(handles=[*handles, axes.lines[0]], loc="outside lower center", ncols=3, fontsize=8, frameon=False)
    return figure


def random_shifts(
    noises: Sequence[float],
    K: int = 3,
    N: int | None = None,
    eps: float = 0.01,
    eta: float = 0.3,
    angle: float = 0.3,
    draws: int = 200,
    seed: int = 0,
    max_steps: int = 20_000,
) -> Table:
    """Fine-tune on random sets U outside Assumption 5.4: is the rule met, and which scores moved the wrong way?

    Parameters
    ----------
    noises : sequence of float
        Effective noise variances; eps must be below the excess loss at Q = 0 for each.
    K, N, eps, eta
        Features, tokens (K by default), target of the excess loss, step size.
    angle : float
        All principal angles between span(U) and span(V), in radians.
    draws : int
        Random sets.
    seed : int
        Seed of the draws.
    max_steps : int
        Give up after so many steps.

    Returns
    -------
    Table
        One row per noise: shares of the draws.

    Raises
    ------
    ValueError
        If an argument is out of range.
    """
    began = time.perf_counter()
    angle = _validate.real("angle", angle, least=0.0, most=math.pi / 2)
    draws = _validate.integer("draws", draws, least=1)
    M = math.cos(angle) * features.orthonormal(K, K, generator=features.generator(seed), batch=(draws,))
    off = ~torch.eye(K, dtype=torch.bool)
    rows = []
    for s in _noises(noises):
        prompts = law(K, K if N is None else N, s)
        A = ood.symmetric_scores(K, noise.alpha_hat(K, eps, s))
        run = fine_tuning.from_overlap(
            A, M, eps, eta, law=prompts, threshold=threshold(prompts, eps), max_steps=max_steps, on_failure="return"
        )
        moved = run.scores - run.start
        met = (run.losses <= threshold(prompts, eps)).all(-1)
        rows.append(
            {
                "s": s, "met": float(met.double().mean()), "longest": int(run.end.max()),
                "alpha_falls": float((run.delta < -_ROUNDING).any(-1).double().mean()),
                "beta_rises": float((moved[:, off] > _ROUNDING).any(-1).double().mean()),
                "ahead": float((population.attention_weights(run.start).diagonal(dim1=-2, dim2=-1)
                                > noise.best_attention(K, s)).any(-1).double().mean()),
            }
        )  # fmt: skip
    columns = {
        "s": "effective noise variance", "met": "share of shifts on which the rule was met",
        "longest": "largest number of steps", "alpha_falls": "share on which an alpha-type score fell",
        "beta_rises": "share on which a beta-type score rose",
        "ahead": "share where some attention starts above the best",
    }  # fmt: skip
    parameters = {
        "noises": list(noises), "K": K, "N": N, "eps": eps, "eta": eta, "angle": angle, "draws": draws, "seed": seed,
    }  # fmt: skip
    return _table(pd.DataFrame(rows), columns, parameters, began)


def _signs_kept(gamma: Tensor, eps: float, s: Tensor, eta: float, max_steps: int) -> Tensor:
    """Whether every alpha rises and every beta falls in every step of noisy fine-tuning, for each noise in ``s``."""
    K = len(gamma)
    clean, sign = balanced(K), 1 - 2 * torch.eye(K, dtype=torch.float64)
    alpha = torch.tensor([noise.alpha_hat(K, eps, x) for x in s.tolist()], dtype=torch.float64)
    scores = torch.outer(gamma, gamma) * alpha[:, None, None] * ood.symmetric_scores(K, 1.0)
    floor = torch.tensor([noise.noise_floor(K, x, 0.0) for x in s.tolist()], dtype=torch.float64)
    bound = ((floor + eps) / K).unsqueeze(-1)
    kept = torch.ones(len(s), dtype=torch.bool)
    open_ = torch.ones(len(s), dtype=torch.bool)
    for _ in range(max_steps):
        a = population.attention_weights(scores)
        squares = (a**2).sum(-2)
        losses, delta = population.losses_and_descent(scores, clean)
        losses = losses + s.unsqueeze(-1) * squares / (2 * K)
        delta = delta + s[:, None, None] / K * a * (squares.unsqueeze(-2) - a)
        open_ = (losses > bound).any(-1)
        # A query that has met the rule goes on moving, but no longer has to keep its signs.
        wrong = ((sign * delta).amax(-2) > 0) & (losses > bound)
        kept &= ~wrong.any(-1)
        if not bool((open_ & kept).any()):
            break
        scores = scores + eta * delta
    return kept & ~(open_ & kept)


def sign_radius(
    gammas: Sequence[Sequence[float]],
    eps: Sequence[float],
    noises: Sequence[float] = tuple(np.geomspace(1e-3, 10, 81)),
    eta: float = 0.5,
    max_steps: int = 6_000,
) -> Table:
    """Smallest noise of a list at which a sign breaks in fine-tuning.

    Parameters
    ----------
    gammas : sequence of sequences of float
        Instances of Assumption 5.4.
    eps : sequence of float
        Targets of the excess loss.
    noises : sequence of float
        Effective noise variances to try, rising; those at which eps is not below the excess loss at Q = 0 are left out.
    eta : float
        Step size.
    max_steps : int
        Give up after so many steps; a run that is not over by then counts as broken.

    Returns
    -------
    Table
        One row per (instance, eps): ``broken`` is that noise, nan if there is none; ``tried`` the largest one tried.

    Raises
    ------
    ValueError
        If an argument is out of range.
    """
    began = time.perf_counter()
    targets = _validate.reals("eps", eps, above=0.0, below=0.25)
    s = torch.tensor(_validate.reals("noises", noises, above=0.0), dtype=torch.float64)
    rows = []
    for values in gammas:
        gamma = torch.tensor(_validate.reals("gamma", values, least=-1.0, most=1.0), dtype=torch.float64)
        K = len(gamma)
        for target in targets:
            tried = s[target < 0.999 * (K - 1) / (2 * K * (1 + s))]
            kept = _signs_kept(gamma, target, tried, eta, max_steps)
            rows.append(
                {
                    "gamma": ", ".join(f"{x:g}" for x in values), "eps": target,
                    "broken": math.nan if bool(kept.all()) else float(tried[~kept].min()), "tried": float(tried.max()),
                }
            )  # fmt: skip
    columns = {
        "gamma": "correlations", "eps": "target of the excess loss", "broken": "smallest noise at which a sign breaks",
        "tried": "largest noise tried",
    }  # fmt: skip
    parameters = {
        "gammas": [list(g) for g in gammas], "eps": targets, "noises": list(noises), "eta": eta, "max_steps": max_steps,
    }  # fmt: skip
    return _table(pd.DataFrame(rows), columns, parameters, began)


def update_brackets(
    rest: Sequence[float] = (0.8, -0.5),
    K: int = 3,
    eps: float = 0.01,
    s: float = 5e-4,
    eta: float = 0.05,
    points: int = 41,
) -> Table:
    """Measure Delta and Lambda of one feature at its own time, beside the arguments of Theta in eq. 34 and eq. 35.

    Parameters
    ----------
    rest : sequence of float
        Common correlation of the other features, one curve each.
    K, eps, s, eta
        Features, target of the excess loss, effective noise variance, step size.
    points : int
        Values of the feature's own correlation on [-1, 1].

    Returns
    -------
    Table
        One row per (rest, own); Delta and Lambda in units of rho_hat.

    Raises
    ------
    ValueError
        If an argument is out of range.
    """
    began = time.perf_counter()
    rest = _validate.reals("rest", rest, least=-1.0, most=1.0)
    own = torch.linspace(-1, 1, _validate.integer("points", points, least=3), dtype=torch.float64)
    prompts = law(K, K, s)
    rho = noise.rho_hat(K, eps, s)
    frames = []
    for other in rest:
        gamma = torch.cat([own.unsqueeze(-1), torch.full((len(own), K - 1), other, dtype=torch.float64)], -1)
        start = gamma.unsqueeze(-1) * gamma.unsqueeze(-2) * ood.symmetric_scores(K, noise.alpha_hat(K, eps, s))
        bound = threshold(prompts, eps) * (1 + 1e-12)
        first = dynamics.gradient_descent(start, prompts, eta=eta, threshold=bound)
        # Every instance again up to the time at which its first feature arrived.
        ends = sorted(set(first.feature_steps[:, 0].tolist()))
        path = dynamics.gradient_descent(start, prompts, eta=eta, threshold=bound, record=ends).trajectory
        if path is None:
            raise RuntimeError("no trajectory was recorded")
        place = torch.searchsorted(path.times, first.feature_steps[:, 0].contiguous())
        scores = path.scores[place, torch.arange(len(own))]
        rise = (scores - start)[:, 0, 0] / rho
        fall = (start - scores)[:, 1, 0] / rho
        x = own.numpy()
        frames.append(
            pd.DataFrame(
                {
                    "rest": other, "own": x, "rise": rise.numpy(), "fall": fall.numpy(),
                    "rise_printed": [noise.rise_printed(K, g, other) for g in x],
                    "rise_corrected": [noise.rise_corrected(K, g, other) for g in x],
                    "fall_printed": [
                        noise.fall_printed(K, float(r), g, other, 1.0) for r, g in zip(rise, x, strict=True)
                    ],
                    "fall_corrected": rise.numpy() / (K - 1),
                }
            )
        )  # fmt: skip
    columns = {
        "rest": "correlation of the other features", "own": "correlation of the feature", "rise": "Delta / rho_hat",
        "fall": "Lambda / rho_hat", "rise_printed": "bracket of eq. 34 as printed",
        "rise_corrected": "the bracket, corrected", "fall_printed": "argument of Theta in eq. 35 / rho_hat as printed",
        "fall_corrected": "Delta / ((K - 1) rho_hat)",
    }  # fmt: skip
    parameters = {"rest": rest, "K": K, "eps": eps, "s": s, "eta": eta, "points": points}
    return _table(pd.concat(frames, ignore_index=True), columns, parameters, began)


def draw_update_brackets(table: Table) -> Figure:
    """Draw measured updates over the own correlation, with printed and corrected forms."""
    from matplotlib.figure import Figure

    given = table.provenance["parameters"]
    figure = Figure(figsize=(7.6, 5.4), layout="constrained")
    grid = figure.subplots(2, len(given["rest"]), sharex=True, sharey="row", squeeze=False)
    K = given["K"]
    for column, (rest, part) in enumerate(table.frame.groupby("rest", sort=False)):
        for row, (name, factor) in enumerate((("rise", 1 - 1 / K), ("fall", 1.0))):
            axes = grid[row, column]
            axes.axhline(0, color="0.5", lw=0.8, ls="-")
            axes.plot(part["own"], factor * part[f"{name}_corrected"], color=COLORS[1], ls="--", label="corrected")
            axes.plot(part["own"], factor * part[f"{name}_printed"], color=COLORS[2], ls="-.", label="as printed")
            axes.plot(part["own"], part[name], color="#000000", ls="none", marker="o", ms=2.5, label="gradient descent")
        grid[0, column].set_title(rf"other $\gamma_n={rest:g}$", fontsize=10)
        grid[1, column].set_xlabel(r"$\gamma_k$")
    grid[0, 0].set_ylabel(r"$\Delta_{k,\alpha}\,/\,\hat\rho$")
    grid[1, 0].set_ylabel(r"$\Lambda_{n,k,\beta}\,/\,\hat\rho$")
    grid[0, 0].legend(fontsize=8)
    return figure


def noisy_forgetting(
    noises: Sequence[float], eps: float = 0.01, eta: float = 0.1, points: int = 101, gamma1: float = 1.0
) -> Table:
    """Fig. 2(b) with label noise: forgetting of two features over gamma2.

    Parameters
    ----------
    noises : sequence of float
        Effective noise variances; eps must be below the excess loss at Q = 0 for each.
    eps, eta : float
        Target of the excess loss and step size.
    points : int
        Values of gamma2 on [-1, 1].
    gamma1 : float
        The other correlation.

    Returns
    -------
    Table
        One row per (s, gamma2): forgetting, its noiseless part, and the steps taken.

    Raises
    ------
    ValueError
        If an argument is out of range.
    """
    began = time.perf_counter()
    noises = _noises(noises)
    gamma2 = torch.linspace(-1, 1, _validate.integer("points", points, least=2), dtype=torch.float64)
    gamma = torch.stack([torch.full_like(gamma2, _validate.real("gamma1", gamma1, least=-1, most=1)), gamma2], -1)
    frames = []
    for s in noises:
        prompts = law(2, 2, s)
        A = ood.symmetric_scores(2, noise.alpha_hat(2, eps, s))
        run = fine_tuning.from_overlap(
            A, torch.diag_embed(gamma), eps, eta, law=prompts, threshold=threshold(prompts, eps)
        )
        after, before = (population.losses(x, balanced(2)).sum(-1) for x in (run.scores_on_V, run.scores_on_V_before))
        frames.append(
            pd.DataFrame(
                {
                    "s": s, "gamma2": gamma2.numpy(), "F": run.total_forgetting.numpy(),
                    "clean_part": (after - before).numpy(), "steps": run.end.numpy(),
                }
            )
        )  # fmt: skip
    columns = {
        "s": "effective noise variance", "gamma2": "correlation of the second feature", "F": "total forgetting",
        "clean_part": "its part from the noiseless loss", "steps": "steps of fine-tuning",
    }  # fmt: skip
    parameters = {"noises": noises, "eps": eps, "eta": eta, "points": points, "gamma1": gamma1}
    return _table(pd.concat(frames, ignore_index=True), columns, parameters, began)


def draw_noisy_forgetting(table: Table) -> Figure:
    """Draw total forgetting over gamma2 for every noise, and the steps that fine-tuning takes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.4, 3.5), layout="constrained")
    left, right = figure.subplots(1, 2, sharex=True)
    left.axhline(0, color="0.5", lw=0.8, ls="-")
    for (s, part), color, line in zip(table.frame.groupby("s", sort=False), COLORS, LINES, strict=False):
        left.plot(part["gamma2"], part["F"], color=color, ls=line, label=rf"$\sigma_{{\mathrm{{eff}}}}^2={s:g}$")
        right.plot(part["gamma2"], part["steps"], color=color, ls=line)
    left.set(xlabel=r"$\gamma_2$", ylabel="total forgetting")
    right.set(xlabel=r"$\gamma_2$", ylabel="steps of fine-tuning")
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=8, frameon=False)
    return figure


def small_noise(noises: Sequence[float], eps: float = 0.01, gamma: Sequence[float] = (1.0, -0.6)) -> Table:
    """Compare noisy with noiseless quantities as the noise vanishes, along the gradient flow.

    Parameters
    ----------
    noises : sequence of float
        Effective noise variances, positive.
    eps : float
        Target of the excess loss.
    gamma : sequence of float
        Correlations of Assumption 5.4.

    Returns
    -------
    Table
        One row per noise: differences from the noiseless values of alpha at the end of training, the rise of the first
        feature at the end of fine-tuning, and total forgetting.

    Raises
    ------
    ValueError
        If an argument is out of range.
    """
    began = time.perf_counter()
    noises = _validate.reals("noises", noises, above=0.0)
    g = torch.tensor(_validate.reals("gamma", gamma, least=-1.0, most=1.0), dtype=torch.float64)
    K = len(g)

    def outcome(s: float) -> np.ndarray:
        prompts = law(K, K, s)
        alpha = noise.alpha_hat(K, eps, s)
        run = fine_tuning.flow(
            ood.symmetric_scores(K, alpha), torch.diag(g), eps, law=prompts, threshold=threshold(prompts, eps)
        )
        return np.array([alpha, float(run.delta[0]), float(run.total_forgetting)])

    clean = outcome(0.0)
    rows = [dict(zip(("alpha", "rise", "F"), np.abs(outcome(s) - clean), strict=True), s=s) for s in noises]
    columns = {
        "s": "effective noise variance", "alpha": "change of alpha at the end of training",
        "rise": "change of Delta_1 at the end of fine-tuning", "F": "change of total forgetting",
    }  # fmt: skip
    frame = pd.DataFrame(rows)[["s", "alpha", "rise", "F"]]
    return _table(frame, columns, {"noises": noises, "eps": eps, "gamma": list(gamma)}, began)


def draw_small_noise(table: Table) -> Figure:
    """Draw the differences from the noiseless values over the noise."""
    from matplotlib.figure import Figure

    frame, eps = table.frame, table.provenance["parameters"]["eps"]
    figure = Figure(layout="constrained")
    axes = figure.subplots()
    names = (("alpha", r"$\hat\alpha^*$"), ("rise", r"$\Delta_{1,\alpha}$"), ("F", "total forgetting"))
    for (column, label), mark in zip(names, "os^", strict=True):
        axes.plot(frame["s"], frame[column], marker=mark, ms=4, label=label)
    axes.axvline(math.sqrt(eps), color="0.4", lw=1, ls=":")
    axes.set(xscale="log", yscale="log", xlabel=r"noise $\sigma_{\mathrm{eff}}^2$",
             ylabel="difference from the noiseless value")  # fmt: skip
    axes.legend()
    return figure

"""TinyTransformers beyond one layer: OOD error over rotations (Fig. 5), forgetting (Fig. 6, 7), attention (Appendix A).

Tables hold one row per model and point, so that every number and interval in the chapter is computed from them.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from icl_core import _validate, features, fine_tuning, networks, results
from icl_core.networks import Architecture, Domain, Training, derive_seed
from icl_core.theory import ood

EMBEDDINGS = ("random", "one-in-span", "two-in-span")
SHIFTS = ("one", "both")
PAIRS = {"linear to linear": ("linear", "linear"), "linear to network": ("linear", "network"),
         "network to network": ("network", "network")}  # fmt: skip
SHAPES = ("monotone", "one peak", "double peak")
# Loss of the network class in units of the linear class, see :func:`network_scale`.
_NETWORK_SCALE = 1 - 1 / math.pi

TRAINING = Training(steps=3000, learning_rate=2e-3, eps=0.01, record_every=10)
TUNING = Training(steps=200, learning_rate=2e-3, scope="last", record_every=10)


def network_scale() -> float:
    """``1 - 1/pi``: what the network class does to the one-layer model.

    The one-layer model's error on query k is ``sum_n a_n y_n - y_k``, a combination of labels whose coefficients sum
    to 0. Labels of the network class at orthonormal features have variance 1 and correlation ``1/pi`` (the arc-cosine
    kernel at a right angle), so their common part cancels and every loss and gradient is ``1 - 1/pi`` times that of
    the linear class. For one layer and networks in both phases Fig. 7 is thus Fig. 2(b) at another eps, scaled.
    """
    return _NETWORK_SCALE


def embedding(kind: str, d: int, K: int, seeds: Sequence[int]) -> Tensor:
    """Draw training features, shape (M, d, K); rotations act in the plane of the first two coordinates.

    Parameters
    ----------
    kind : {"random", "one-in-span", "two-in-span"}
        Uniform; or the first feature along e_1 and the others orthogonal to the plane (Appendix A's example: a
        rotation within span(v_1, v_o)); or the plane inside span(V), at random to the features.
    d, K : int
    seeds : sequence of int

    Raises
    ------
    ValueError
        If ``kind`` is unknown or d leaves no room.
    """
    _validate.choice("embedding", kind, EMBEDDINGS)
    if kind == "one-in-span" and d < K + 1:
        raise ValueError(f"d must be at least K + 1 = {K + 1} for a plane half outside span(V), got {d}")
    sets = []
    for seed in seeds:
        random = features.generator(derive_seed(seed, "features", kind))
        if kind == "random":
            sets.append(features.orthonormal(d, K, generator=random))
            continue
        V = torch.zeros(d, K, dtype=torch.float64)
        if kind == "one-in-span":
            V[0, 0] = 1
            if K > 2:
                V[2:, 1:] = features.orthonormal(d - 2, K - 1, generator=random)
            else:
                column = torch.randn(d - 2, dtype=torch.float64, generator=random)
                V[2:, 1] = column / column.norm()
        else:
            V[0, 0] = V[1, 1] = 1
            if K > 3:
                V[2:, 2:] = features.orthonormal(d - 2, K - 2, generator=random)
            elif K == 3:
                column = torch.randn(d - 2, dtype=torch.float64, generator=random)
                V[2:, 2] = column / column.norm()
            V = V @ features.orthonormal(K, K, generator=random)
        sets.append(V)
    return torch.stack(sets)


@dataclass(frozen=True)
class Trained:
    """Models at the end of the training phase.

    Parameters
    ----------
    arch : Architecture
    seeds : list of int
    V : Tensor, shape (M, d, K)
    run : networks.Run
    """

    arch: Architecture
    seeds: list[int]
    V: Tensor
    run: networks.Run


def train_models(
    arch: Architecture,
    training: Training,
    *,
    K: int,
    seeds: Sequence[int],
    kind: str = "random",
    device: str = "cpu",
    store: str | os.PathLike[str] | None = None,
    progress: bool = False,
    workers: int = 1,
    insist: bool = True,
) -> Trained:
    """Train one model per seed on features of its own until every feature's loss is at most eps / K.

    Parameters
    ----------
    arch, training
        As in :mod:`icl_core.networks`.
    K : int
        Number of features.
    seeds : sequence of int
        A seed decides a model's features, start and prompts.
    kind : str
        As in :func:`embedding`.
    device : str
    store : path, optional
        Folder for checkpoints; an interrupted run goes on from there.
    insist : bool
        Whether a model that does not get there is an error.

    Raises
    ------
    RuntimeError
        If ``insist`` and a model does not meet the rule in ``training.steps`` steps; says how many and how far they
        came.
    """
    K = _validate.integer("K", K, least=2, most=arch.d)
    seeds = [_validate.integer("seeds", seed, least=0) for seed in seeds]
    V = embedding(kind, arch.d, K, seeds)
    start = networks.initialise(arch, seeds, device=device)
    name = _file("train", arch, training, kind, V.shape, seeds)
    run = networks.train(
        arch, start, V, training, seeds=seeds, progress=progress, workers=workers,
        checkpoint=None if store is None else Path(store) / name,
    )  # fmt: skip
    late = run.stopped < 0
    if insist and training.eps is not None and bool(late.any()):
        worst = float(run.losses["train"][-1, late].amax() * K)
        raise RuntimeError(
            f"{int(late.sum())} of {len(seeds)} models did not reach eps = {training.eps:g} in {training.steps} steps; "
            f"the worst feature's K L_k is {worst:.3g}: raise steps or eps"
        )
    return Trained(arch, seeds, V, run)


def _file(phase: str, *options: Any) -> str:
    """Name of a checkpoint: one per set of options, so that runs can share a folder."""
    return f"{phase}-{derive_seed(phase, *options):012x}.pt"


def rotate(V: Tensor, theta: Tensor) -> Tensor:
    """Return ``R_{1,2}(theta) V``, shape (T, M, d, K), for angles (T,) and sets (M, d, K) (OOD paper, eq. 15)."""
    return features.rotation(V.shape[-2], theta).unsqueeze(1) @ V


def rotation_errors(trained: Trained, theta: Tensor, *, tests: int = 64, labels: str = "linear") -> Tensor:
    """OOD loss per feature on the rotated features, shape (T, M, K): ``L_u^(ft)`` of OOD paper, eq. 8."""
    K = trained.V.shape[-1]
    drawn = networks.evaluation_labels(labels, tests, K)
    flat = trained.run.parameters
    return torch.stack(
        [
            networks.feature_losses(trained.arch, flat, U.to(flat), drawn).cpu()
            for U in rotate(trained.V, theta).unbind(0)
        ]
    )


def scores(trained: Trained, sets: Tensor, *, layer: int = -1, tests: int = 64) -> Tensor:
    """Attention logits of a layer between features, averaged over tasks: rows keys, columns queries, (M, K, K)."""
    K = sets.shape[-1]
    flat = trained.run.parameters
    M = flat.shape[0]
    drawn = networks.evaluation_labels("linear", tests, K).to(flat)
    seen = networks.attention(trained.arch, flat, sets.to(flat), networks.Prompts(drawn.expand(M, -1, -1)))
    return seen[layer]["logits"].double().mean(1).mT.cpu()


def bilinear_form(trained: Trained) -> Tensor:
    """The first layer's ``Q`` (d, d) per model, shape (M, d, d): logits are ``x' Q u`` up to norms and labels.

    Keys, queries and read-in are composed, the norm's gain included and its division left out: with ``norm="none"``
    and no label this is the model's own quadratic form (OOD paper, eq. 3).
    """
    arch = trained.arch
    p = networks.views(arch, trained.run.parameters.double().cpu())
    w = arch.width
    weight = p["0.qkv.weight"]
    if arch.norm == "pre":
        weight = weight * p["0.norm1.weight"].unsqueeze(1)
        # Without its mean a token is what the norm sees.
        weight = weight - weight.mean(2, keepdim=True)
    x = p["in.weight"][:, :, :-1] if arch.read_in == "linear" else torch.eye(w, arch.d, dtype=torch.float64)
    query, key = weight[:, :w] @ x, weight[:, w : 2 * w] @ x
    return key.mT @ query / math.sqrt(w)


@dataclass(frozen=True)
class Alignment:
    """How the eigenvectors of trained forms lie to the training features; every entry has shape (M,).

    Parameters
    ----------
    span : Tensor
        Mean share of a leading eigenvector inside span(V); K - 1 leading ones, weighted equally.
    feature : Tensor
        Mean over the same eigenvectors of ``max_k <x, v_k>^2`` with x the unit vector along their part inside span(V).
    chance_span, chance_feature : float
        The same for a random basis of the space, and of span(V) without the mean feature, which is where the
        one-layer theory puts the eigenvectors.
    """

    span: Tensor
    feature: Tensor
    chance_span: float
    chance_feature: float


def alignment(Q: Tensor, V: Tensor, *, seed: int = 0, draws: int = 400) -> Alignment:
    """Measure Appendix A's "the eigenvectors of Q are trained to align with training features".

    Parameters
    ----------
    Q : Tensor, shape (M, d, d)
        Forms; their symmetric parts decide every ``u'Qu``.
    V : Tensor, shape (M, d, K)
    seed, draws : int
        For the chance levels.
    """
    d, K = V.shape[-2:]
    values, vectors = torch.linalg.eigh((Q + Q.mT) / 2)
    leading = values.abs().argsort(1, descending=True)[:, : K - 1]
    vectors = vectors.gather(2, leading.unsqueeze(1).expand(-1, d, -1))
    squares = (V.mT @ vectors) ** 2

    random = features.generator(seed)
    # Inside span(V) without the mean feature, in coordinates along the features.
    basis, _ = torch.linalg.qr(torch.eye(K, dtype=torch.float64) - 1 / K)
    turned = basis[:, : K - 1] @ features.orthonormal(K - 1, K - 1, generator=random, batch=(draws,)) if K > 2 else (
        basis[:, :1].expand(draws, K, 1)
    )  # fmt: skip
    chance = float((turned**2).amax(1).mean())
    return Alignment(squares.sum(1).mean(1), (squares.amax(1) / squares.sum(1)).mean(1), K / d, chance)


def shape_of(theta: np.ndarray, curve: np.ndarray, *, tolerance: float = 0.1) -> dict[str, Any]:
    """Tell the scenarios of Fig. 5 apart.

    Parameters
    ----------
    theta : ndarray, shape (T,)
        Equally spaced angles from 0 to 2 pi, both included, with pi among them.
    curve : ndarray, shape (T,)
        Errors.
    tolerance : float
        Smallest rise or fall that counts, as a share of the curve's range over the half turn (or the whole turn).

    Returns
    -------
    dict
        ``half``: one of ``SHAPES`` on [0, pi], where "monotone" means that the error never falls below its
        running maximum by more than the tolerance; ``peaks_half``: interior peaks on [0, pi]; ``peaks_turn``: peaks
        on the circle [0, 2 pi).

    Raises
    ------
    ValueError
        If the angles are not as described.

    Notes
    -----
    OOD paper, Appendix A: "increases monotonically as the rotation angle ranges from 0 to pi" (scenario 1) and a
    "double-peak" phenomenon (scenario 2). The text does not say whether the two peaks lie within half a turn or a
    whole one, so both are counted.
    """
    from scipy.signal import find_peaks

    theta, curve = np.asarray(theta, float), np.asarray(curve, float)
    steps = len(theta) - 1
    if (
        steps < 4
        or steps % 2
        or curve.shape != theta.shape
        or not np.allclose(theta, np.linspace(0, 2 * np.pi, steps + 1))
    ):
        raise ValueError("theta must run from 0 to 2 pi in an even number of equal steps, with one error per angle")
    tolerance = _validate.real("tolerance", tolerance, above=0.0, below=1.0)
    half = curve[: steps // 2 + 1]
    # Ends count as valleys at their own height: a peak is a rise and a fall inside the interval.
    peaks, _ = find_peaks(half, prominence=tolerance * max(np.ptp(half), 1e-300))
    drop = float((np.maximum.accumulate(half) - half).max())
    ring = curve[:-1]
    ring = np.roll(ring, -int(ring.argmin()))
    around, _ = find_peaks(np.append(ring, ring[0]), prominence=tolerance * max(np.ptp(ring), 1e-300))
    if len(peaks) >= 2:
        shape = "double peak"
    elif drop <= tolerance * np.ptp(half):
        shape = "monotone"
    else:
        shape = "one peak"
    return {"half": shape, "peaks_half": len(peaks), "peaks_turn": len(around)}


def angles(count: int) -> Tensor:
    """Return ``count`` angles from 0 to 2 pi, shape (count,); ``count`` is odd so that pi is among them."""
    count = _validate.integer("angles", count, least=5)
    if count % 2 == 0:
        raise ValueError(f"angles must be odd so that pi is one of them, got {count}")
    return torch.linspace(0, 2 * math.pi, count, dtype=torch.float64)


def ood_table(
    arch: Architecture,
    training: Training = TRAINING,
    *,
    K: int = 4,
    seeds: Sequence[int] = tuple(range(10)),
    layers: Sequence[int] = (1, 2, 3),
    kinds: Sequence[str] = EMBEDDINGS,
    count: int = 49,
    device: str = "cpu",
    store: str | os.PathLike[str] | None = None,
    progress: bool = False,
    command: str | None = None,
) -> results.Table:
    """Errors over rotations of trained models, with Theorem 5.1 for the same features.

    Parameters
    ----------
    arch, training
        As in :mod:`icl_core.networks`; ``arch.layers`` is replaced by each of ``layers``.
    K : int
        Number of features; 4 as in Section 6.1.
    seeds, layers, kinds
        Models: all combinations.
    count : int
        Angles over the whole turn.
    device, store, progress
        As in :func:`train_models`.
    command : str, optional
        What to run to get the table again.

    Returns
    -------
    results.Table
        One row per model and angle; errors are total losses over the features.

    Notes
    -----
    OOD paper, Appendix A, Fig. 5.
    """
    theta = angles(count)
    started = time.perf_counter()
    alpha = ood.alpha_star(K, training.eps or 0.01)
    frames = []
    for kind in kinds:
        for depth in layers:
            trained = train_models(
                replace(arch, layers=_validate.integer("layers", depth, least=1)), training,
                K=K, seeds=seeds, kind=kind, device=device, store=store, progress=progress,
            )  # fmt: skip
            errors = rotation_errors(trained, theta).sum(-1)
            predicted = ood.ood_loss(trained.V, rotate(trained.V, theta), alpha).sum(-1)
            M = len(trained.seeds)
            frames.append(
                pd.DataFrame(
                    {
                        "embedding": kind,
                        "layers": depth,
                        "seed": np.repeat(trained.seeds, count),
                        "theta": np.tile(theta.numpy(), M),
                        "error": errors.mT.reshape(-1).numpy(),
                        "theory": predicted.mT.reshape(-1).numpy(),
                    }
                )
            )
    frame = pd.concat(frames, ignore_index=True).round({"theta": 6, "error": 7, "theory": 7})
    columns = {
        "embedding": "how the features lie to the plane of rotation", "layers": "depth",
        "seed": "decides features, start and prompts", "theta": "rotation angle in radians",
        "error": "OOD loss, sum over features", "theory": "Theorem 5.1 for the same features, one layer",
    }  # fmt: skip
    note = _note(arch, training, None, K=K, seeds=list(seeds), layers=list(layers), kinds=list(kinds), angles=count)
    return results.Table(
        frame,
        results.provenance(note, seed=min(seeds), device=_device(device), started=started, command=command),
        columns,
    )


def scenarios(table: results.Table, *, tolerance: float = 0.1, column: str = "error") -> pd.DataFrame:
    """Classify every curve of :func:`ood_table`; one row per model with the entries of :func:`shape_of`."""
    rows = []
    for (kind, depth, seed), part in table.frame.groupby(["embedding", "layers", "seed"], sort=True):
        grid = np.linspace(0, 2 * np.pi, len(part))
        shape = shape_of(grid, part[column].to_numpy(), tolerance=tolerance)
        rows.append({"embedding": kind, "layers": depth, "seed": seed, **shape})
    return pd.DataFrame(rows)


def theory_scenarios(
    K: int, d: int, *, eps: float = 0.01, draws: int = 2000, seed: int = 0, count: int = 49, tolerance: float = 0.1
) -> dict[str, float]:
    """How often each half-turn shape occurs for uniform features by Theorem 5.1; shares over ``draws``."""
    draws = _validate.integer("draws", draws, least=1)
    V = features.orthonormal(d, K, generator=features.generator(seed), batch=(draws,))
    theta = angles(count)
    curves = ood.ood_loss(V, rotate(V, theta), ood.alpha_star(K, eps)).sum(-1).mT.numpy()
    grid = theta.numpy()
    found = [shape_of(grid, curve, tolerance=tolerance) for curve in curves]
    share: dict[str, float] = {shape: sum(f["half"] == shape for f in found) / draws for shape in SHAPES}
    share["two peaks in a turn"] = sum(f["peaks_turn"] == 2 for f in found) / draws
    return share


def correlations(gamma: float, shift: str) -> tuple[float, float]:
    """The pair (gamma_1, gamma_2): only the second feature moves, as in Fig. 2(b) ("one"), or both do ("both")."""
    _validate.choice("shift", shift, SHIFTS)
    return (1.0, gamma) if shift == "one" else (gamma, gamma)


@dataclass(frozen=True)
class Forgetting:
    """Fine-tuning tracks of all models and correlations.

    Parameters
    ----------
    gammas : list of float, length G
    steps : ndarray, shape (T,)
    source, target : ndarray, shape (T, M, G)
        Total loss on the training domain and on the OOD domain.
    met : ndarray, shape (M, G)
        Index into ``steps`` at which the paper's rule first holds on the OOD domain; -1 if never.
    """

    gammas: list[float]
    steps: np.ndarray
    source: np.ndarray
    target: np.ndarray
    met: np.ndarray

    @property
    def at_rule(self) -> np.ndarray:
        """Forgetting when the paper's rule stops fine-tuning (or at the last step if it never holds), (M, G)."""
        index = np.where(self.met < 0, len(self.steps) - 1, self.met)
        return np.take_along_axis(self.source, index[None], axis=0)[0] - self.source[0]

    @property
    def at_end(self) -> np.ndarray:
        """Forgetting after all steps, (M, G)."""
        return self.source[-1] - self.source[0]


def fine_tune(
    trained: Trained,
    tuning: Training,
    gammas: Sequence[float],
    *,
    eps: float,
    source: str = "linear",
    shift: str = "one",
    store: str | os.PathLike[str] | None = None,
    progress: bool = False,
    workers: int = 1,
) -> Forgetting:
    """Fine-tune every model for every correlation, all of them in one batch.

    Parameters
    ----------
    trained : Trained
        Models on two features.
    tuning : Training
        ``labels`` is the OOD domain's function class; ``scope="last"`` is the paper's choice.
    gammas : sequence of float
        Correlations in [-1, 1].
    eps : float
        Target of the rule ``L_k <= eps / K`` that ends fine-tuning (OOD paper, Section 4).
    source : {"linear", "network"}
        The training domain's function class, on which forgetting is measured.
    shift : {"one", "both"}
        As in :func:`correlations`.

    Notes
    -----
    OOD paper, Section 4 (forgetting) and Appendices A and B.
    """
    gammas = _validate.reals("gammas", gammas, least=-1.0, most=1.0)
    V = trained.V
    if V.shape[-1] != 2:
        raise ValueError(f"trained must be on K = 2 features for the two-feature case, got {V.shape[-1]}")
    M, G = V.shape[0], len(gammas)
    U = torch.stack(
        [
            features.correlated(
                V[m], correlations(gamma, shift), generator=features.generator(derive_seed(seed, "outside"))
            )
            for m, seed in enumerate(trained.seeds)
            for gamma in gammas
        ]
    )
    start = trained.run.parameters.repeat_interleave(G, 0)
    watch = {"target": Domain(U, tuning.labels), "source": Domain(V.repeat_interleave(G, 0), source)}
    name = _file("tune", trained.arch, tuning, source, shift, gammas, eps, trained.seeds)
    run = networks.train(
        trained.arch, start, U, replace(tuning, eps=None), seeds=[s for s in trained.seeds for _ in gammas],
        watch=watch, progress=progress, workers=workers, checkpoint=None if store is None else Path(store) / name,
    )  # fmt: skip
    good = (run.losses["target"] <= eps / 2).all(-1).reshape(-1, M, G).numpy()
    met = np.where(good.any(0), good.argmax(0), -1)
    totals = {key: value.sum(-1).reshape(-1, M, G).numpy() for key, value in run.losses.items()}
    return Forgetting(gammas, run.steps.numpy(), totals["source"], totals["target"], met)


def theory_forgetting(
    gammas: Sequence[float], eps: float, *, pair: str = "linear to linear", shift: str = "one", eta: float = 0.1
) -> np.ndarray:
    """The one-layer model's forgetting over ``gammas``, shape (G,), for any pair of function classes.

    Exact by :func:`network_scale`: the network class rescales losses, so it moves the thresholds and the step size.
    """
    source, target = PAIRS[_validate.choice("pair", pair, tuple(PAIRS))]
    scale = {"linear": 1.0, "network": _NETWORK_SCALE}
    start = ood.symmetric_scores(2, ood.alpha_star(2, eps / scale[source]))
    grid = torch.tensor([correlations(gamma, shift) for gamma in gammas], dtype=torch.float64)
    tuned = fine_tuning.fine_tune_gamma(grid, eps, eta * scale[target], start=start, threshold=eps / scale[target] / 2)
    return scale[source] * tuned.total_forgetting.numpy()


def theory_track(gamma: float, eps: float, steps: int, *, shift: str = "one", eta: float = 0.1) -> np.ndarray:
    """The one-layer model's loss on the training domain over fine-tuning, shape (steps + 1,), without stopping."""
    tuned = fine_tuning.fine_tune_gamma(
        torch.tensor(correlations(gamma, shift), dtype=torch.float64), eps, eta, threshold=1e-12,
        record=range(steps), max_steps=steps, on_failure="return",
    )  # fmt: skip
    return tuned.path_on_V()[1].sum(-1).numpy()


def forgetting_tables(
    arch: Architecture,
    training: Training = TRAINING,
    tuning: Training = TUNING,
    *,
    seeds: Sequence[int] = tuple(range(10)),
    layers: Sequence[int] = (1, 2, 3),
    gammas: Sequence[float] = tuple(np.linspace(-1, 1, 17)),
    tracked: Sequence[float] = (-0.75, 0.0, 0.75),
    pairs: Sequence[str] = tuple(PAIRS),
    shift: str = "one",
    device: str = "cpu",
    store: str | os.PathLike[str] | None = None,
    progress: bool = False,
    command: str | None = None,
) -> tuple[results.Table, results.Table]:
    """Forgetting against correlation, and the tracks of a few correlations.

    Parameters
    ----------
    arch, training, tuning
        As in :mod:`icl_core.networks`; layers and labels are replaced.
    seeds, layers, gammas, pairs
        All combinations are run; ``pairs`` from ``PAIRS``.
    tracked : sequence of float
        Correlations whose tracks are kept, for linear to linear.
    shift : {"one", "both"}
    device, store, progress, command
        As in :func:`ood_table`.

    Returns
    -------
    forgetting, tracks : results.Table

    Notes
    -----
    OOD paper, Fig. 6 and Fig. 7.
    """
    started = time.perf_counter()
    eps = training.eps or 0.01
    every = sorted({*map(float, gammas), *map(float, tracked)})
    rows, tracks = [], []
    for depth in layers:
        trained: dict[str, Trained] = {}
        for pair in pairs:
            source, target = PAIRS[_validate.choice("pairs", pair, tuple(PAIRS))]
            if source not in trained:
                trained[source] = train_models(
                    replace(arch, layers=depth), replace(training, labels=source),
                    K=2, seeds=seeds, device=device, store=store, progress=progress,
                )  # fmt: skip
            out = fine_tune(
                trained[source], replace(tuning, labels=target), every,
                eps=eps, source=source, shift=shift, store=store, progress=progress,
            )  # fmt: skip
            predicted = theory_forgetting(every, eps, pair=pair, shift=shift)
            at_rule, at_end = out.at_rule, out.at_end
            for m, seed in enumerate(seeds):
                for j, gamma in enumerate(every):
                    rows.append(
                        {
                            "pair": pair, "layers": depth, "seed": seed, "gamma": gamma,
                            "forgetting": at_rule[m, j], "forgetting_end": at_end[m, j],
                            "steps": int(out.steps[out.met[m, j]]) if out.met[m, j] >= 0 else -1,
                            "theory": predicted[j],
                        }
                    )  # fmt: skip
                    if pair == "linear to linear" and gamma in tracked:
                        for t, step in enumerate(out.steps):
                            tracks.append(
                                {
                                    "layers": depth, "seed": seed, "gamma": gamma, "step": int(step),
                                    "source": out.source[t, m, j], "target": out.target[t, m, j],
                                }
                            )  # fmt: skip
    note = _note(
        arch, training, tuning, seeds=list(seeds), layers=list(layers), gammas=every, pairs=list(pairs), shift=shift
    )
    told = results.provenance(note, seed=min(seeds), device=_device(device), started=started, command=command)
    forgetting = results.Table(
        pd.DataFrame(rows).round({"forgetting": 8, "forgetting_end": 8, "theory": 8}),
        told,
        {
            "pair": "function classes of training and fine-tuning", "layers": "depth", "seed": "model",
            "gamma": "correlation of the second feature" if shift == "one" else "correlation of both features",
            "forgetting": "change of the training domain's loss when the rule on the OOD domain is met",
            "forgetting_end": "the same after all steps", "steps": "steps to the rule, -1 if not met",
            "theory": "the one-layer model's forgetting",
        },
    )  # fmt: skip
    followed = results.Table(
        pd.DataFrame(tracks).round({"source": 8, "target": 8}),
        told,
        {
            "layers": "depth", "seed": "model", "gamma": "correlation", "step": "fine-tuning step",
            "source": "loss on the training domain", "target": "loss on the OOD domain",
        },
    )  # fmt: skip
    return forgetting, followed


# What the text leaves open, one change each from the default: (architecture, training, tuning, eps, shift).
VARIANTS: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any], float, str]] = {
    "default": ({}, {}, {}, 0.01, "one"),
    "no LayerNorm": ({"norm": "none"}, {}, {}, 0.01, "one"),
    "LayerNorm after": ({"norm": "post"}, {}, {}, 0.01, "one"),
    "no MLP": ({"mlp": "none"}, {}, {}, 0.01, "one"),
    "attention only": ({"norm": "none", "mlp": "none"}, {}, {}, 0.01, "one"),
    "attention only, small start": ({"norm": "none", "mlp": "none", "init_scale": 0.2}, {}, {}, 0.01, "one"),
    "small start": ({"init_scale": 0.2}, {}, {}, 0.01, "one"),
    "no residual": ({"residual": False}, {}, {}, 0.01, "one"),
    "every token a key": ({"mask": "full"}, {"queries": "one"}, {"queries": "one"}, 0.01, "one"),
    "fine-tune everything": ({}, {}, {"scope": "all"}, 0.01, "one"),
    "gradient descent": ({}, {}, {"optimiser": "sgd", "learning_rate": 0.1}, 0.01, "one"),
    "both features move": ({}, {}, {}, 0.01, "both"),
    "eps = 0.05": ({}, {}, {}, 0.05, "one"),
    "eps = 0.002": ({}, {}, {}, 0.002, "one"),
}


def variants_table(
    arch: Architecture,
    training: Training = TRAINING,
    tuning: Training = TUNING,
    *,
    seeds: Sequence[int] = tuple(range(10)),
    gammas: Sequence[float] = (-0.75, 0.0, 0.75),
    names: Sequence[str] = tuple(VARIANTS),
    device: str = "cpu",
    progress: bool = False,
    command: str | None = None,
) -> results.Table:
    """Forgetting of one-layer models under each choice that the text leaves open.

    Parameters
    ----------
    arch, training, tuning, seeds, gammas, device, progress, command
        As in :func:`forgetting_tables`.
    names : sequence of str
        Variants, from ``VARIANTS``.

    Returns
    -------
    results.Table
        One row per variant, model and correlation.
    """
    started = time.perf_counter()
    rows = []
    for name in names:
        change, train_change, tune_change, eps, shift = VARIANTS[_validate.choice("names", name, tuple(VARIANTS))]
        trained = train_models(
            replace(arch, layers=1, **change), replace(training, eps=eps, **train_change),
            K=2, seeds=seeds, device=device, progress=progress, insist=False,
        )  # fmt: skip
        out = fine_tune(trained, replace(tuning, **tune_change), gammas, eps=eps, shift=shift, progress=progress)
        predicted = theory_forgetting(gammas, eps, shift=shift)
        for m, seed in enumerate(seeds):
            rows += [
                {
                    "variant": name, "seed": seed, "gamma": gamma,
                    "trained": int(trained.run.stopped[m]), "before": out.source[0, m, j],
                    "forgetting": out.at_rule[m, j], "forgetting_end": out.at_end[m, j], "theory": predicted[j],
                }
                for j, gamma in enumerate(gammas)
            ]  # fmt: skip
    note = _note(arch, training, tuning, seeds=list(seeds), gammas=list(gammas), names=list(names))
    return results.Table(
        pd.DataFrame(rows).round({"before": 8, "forgetting": 8, "forgetting_end": 8, "theory": 8}),
        results.provenance(note, seed=min(seeds), device=_device(device), started=started, command=command),
        {
            "variant": "what differs from the default", "seed": "model", "gamma": "correlation",
            "trained": "training steps to the rule, -1 if it was not met",
            "before": "loss on the training domain before fine-tuning",
            "forgetting": "its change when the rule on the OOD domain is met",
            "forgetting_end": "its change after all steps", "theory": "the one-layer model's forgetting",
        },
    )  # fmt: skip


def sign(values: np.ndarray) -> str:
    """Read a sign off repeated values: "+" or "-" if the 95% interval of the mean leaves 0 out, else "0"."""
    _, low, high = interval(values)
    return "+" if low > 0 else "-" if high < 0 else "0"


def attention_table(
    arch: Architecture,
    training: Training = TRAINING,
    *,
    K: int = 4,
    seeds: Sequence[int] = tuple(range(10)),
    count: int = 49,
    draws: int = 200,
    device: str = "cpu",
    store: str | os.PathLike[str] | None = None,
    command: str | None = None,
) -> tuple[results.Table, results.Table]:
    """Put Appendix A's explanation to the test on one-layer models whose first feature rotates out of the span.

    Parameters
    ----------
    arch, training, K, seeds, count, device, store, command
        As in :func:`ood_table`; one layer.
    draws : int
        Random orthonormal sets behind the fit of ``u'Qu``.

    Returns
    -------
    tracks : results.Table
        Over the angle: alpha, the mean beta, and the first feature's error, measured and by Theorem 5.1.
    models : results.Table
        Per model: alignment of the eigenvectors; shares of the variance of ``u'Qu`` (and of the measured logits)
        explained by the printed form ``sum_k lambda_k (v_k'u)^2`` and by Theorem 5.1's; fit of alpha to cos^2.
    """
    started = time.perf_counter()
    theta = angles(count)
    arch = replace(arch, layers=1)
    trained = train_models(arch, training, K=K, seeds=seeds, kind="one-in-span", device=device, store=store)
    V = trained.V
    alpha_star = ood.alpha_star(K, training.eps or 0.01)
    sets = rotate(V, theta)
    logits = torch.stack([scores(trained, U) for U in sets.unbind(0)])
    predicted = ood.ood_scores(V, sets, alpha_star)
    errors = rotation_errors(trained, theta)[..., 0]
    theory_error = ood.ood_loss(V, sets, alpha_star)[..., 0]
    centred = logits - logits.mean(-2, keepdim=True)
    M = len(trained.seeds)

    def column(x: Tensor) -> np.ndarray:
        return x.mT.reshape(-1).numpy()

    def mean_beta(x: Tensor) -> Tensor:
        return x[..., 1:, 0].mean(-1)

    tracks = pd.DataFrame(
        {
            "seed": np.repeat(trained.seeds, count),
            "theta": np.tile(theta.numpy(), M),
            "alpha": column(centred[..., 0, 0]),
            "beta": column(mean_beta(centred)),
            "error": column(errors),
            "theory_alpha": column(predicted[..., 0, 0]),
            "theory_beta": column(mean_beta(predicted)),
            "theory_error": column(theory_error),
        }
    ).round(7)

    Q = bilinear_form(trained)
    align = alignment(Q, V)
    U = features.orthonormal(arch.d, K, generator=features.generator(derive_seed("alignment")), batch=(draws,))
    rows = []
    half = theta <= math.pi + 1e-9
    for m, seed in enumerate(trained.seeds):
        u = U.permute(0, 2, 1).reshape(-1, arch.d)
        form = ((u @ Q[m]) * u).sum(1)
        squares = (u @ V[m]) ** 2
        toward = (u @ features.mean_feature(V[m])) ** 2
        cos2 = torch.cos(theta) ** 2
        rows.append(
            {
                "seed": seed,
                "span": float(align.span[m]), "feature": float(align.feature[m]),
                "chance_span": align.chance_span, "chance_feature": align.chance_feature,
                "printed_fit": _explained(form, squares),
                "theorem_fit": _explained(form, (squares.sum(1) - toward).unsqueeze(1)),
                "alpha_cos2": _explained(centred[:, m, 0, 0], cos2.unsqueeze(1)),
                "alpha_rank": _rank_correlation(centred[half, m, 0, 0], cos2[half]),
                "error_cos2": _rank_correlation(errors[half, m], cos2[half]),
                "peak": float(theta[half][errors[half, m].argmax()]),
                "at_pi": float(errors[count // 2, m]), "at_0": float(errors[0, m]),
            }
        )  # fmt: skip
    note = _note(arch, training, None, K=K, seeds=list(seeds), angles=count, draws=draws)
    told = results.provenance(note, seed=min(seeds), device=_device(device), started=started, command=command)
    return (
        results.Table(
            tracks,
            told,
            {
                "seed": "model", "theta": "rotation angle in radians",
                "alpha": "mean logit of the query's own feature, less the mean over keys", "beta": "mean of the others",
                "error": "first feature's loss", "theory_alpha": "Theorem 5.1", "theory_beta": "Theorem 5.1",
                "theory_error": "Theorem 5.1",
            },
        ),
        results.Table(
            pd.DataFrame(rows).round(7),
            told,
            {
                "seed": "model", "span": "share of the leading eigenvectors inside span(V)",
                "feature": "largest squared cosine of their part inside span(V) with a feature, mean",
                "chance_span": "the same for a random basis", "chance_feature": "for a random basis of the span",
                "printed_fit": "R^2 of sum_k lambda_k (v_k'u)^2", "theorem_fit": "R^2 of Theorem 5.1's form",
                "alpha_cos2": "R^2 of alpha on cos^2", "alpha_rank": "rank correlation of alpha and cos^2 on [0, pi]",
                "error_cos2": "rank correlation of error and cos^2 on [0, pi]",
                "peak": "angle of the largest error on [0, pi]", "at_pi": "error at pi", "at_0": "error at 0",
            },
        ),
    )  # fmt: skip


def _explained(y: Tensor, x: Tensor) -> float:
    """R^2 of the least-squares fit of ``y`` (n,) on ``x`` (n, p) with a constant."""
    design = torch.cat([x, torch.ones_like(x[:, :1])], dim=1).numpy()
    target = y.numpy()
    fit, *_ = np.linalg.lstsq(design, target, rcond=None)
    return float(1 - ((target - design @ fit) ** 2).sum() / ((target - target.mean()) ** 2).sum())


def _rank_correlation(a: Tensor, b: Tensor) -> float:
    from scipy.stats import spearmanr

    # Rounding makes mirror angles tie, as they should.
    return float(spearmanr(a.numpy(), b.numpy().round(9)).statistic)


def interval(values: np.ndarray, axis: int = 0, level: float = 0.95) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean over ``axis`` with its Student interval: (mean, low, high)."""
    from scipy.stats import t

    values = np.asarray(values, float)
    n = values.shape[axis]
    if n < 2:
        raise ValueError(f"values must have at least 2 entries along axis {axis} for an interval, got {n}")
    mean = values.mean(axis)
    reach = t.ppf((1 + level) / 2, n - 1) * values.std(axis, ddof=1) / math.sqrt(n)
    return mean, mean - reach, mean + reach


def proportion(hits: int, total: int) -> tuple[float, float, float]:
    """Share with its 95% Wilson interval: (share, low, high)."""
    from scipy.stats import binomtest

    bounds = binomtest(int(hits), int(total)).proportion_ci(method="wilson")
    return hits / total, float(bounds.low), float(bounds.high)


def _device(device: str) -> str:
    return torch.cuda.get_device_name(device) if device.startswith("cuda") else device


def _note(arch: Architecture, training: Training, tuning: Training | None, **more: Any) -> dict[str, Any]:
    note: dict[str, Any] = {"architecture": asdict(arch), "training": asdict(training), **more}
    return note if tuning is None else note | {"tuning": asdict(tuning)}


def figure_5(table: results.Table, *, layers: int, tolerance: float = 0.1) -> Any:
    """Draw OOD error over the angle, one panel per kind of embedding, with Theorem 5.1's mean beside it."""
    import matplotlib.pyplot as plt

    from icl_core import plotting

    plotting.use_style()
    kinds = [k for k in EMBEDDINGS if (table.frame.embedding == k).any()]
    figure, axes = plt.subplots(1, len(kinds), figsize=(8.4, 3.1), sharey=True, squeeze=False)
    shapes = scenarios(table, tolerance=tolerance).set_index(["embedding", "layers", "seed"])
    color = dict(zip(SHAPES, plotting.COLORS, strict=False))
    for axis, kind in zip(axes[0], kinds, strict=True):
        part = table.frame[(table.frame.embedding == kind) & (table.frame.layers == layers)]
        for seed, curve in part.groupby("seed"):
            shape = shapes.loc[(kind, layers, seed), "half"]
            axis.plot(curve.theta, curve.error, color=color[shape], lw=0.9, alpha=0.65, ls="-")
        mean = part.groupby("theta").theory.mean()
        axis.plot(mean.index, mean, color="black", ls="--", lw=1.8)
        axis.axvline(math.pi, color="#999999", lw=0.8, ls=":")
        axis.set(title=kind, xlabel=r"rotation angle $\theta$")
        axis.set_xticks([0, math.pi, 2 * math.pi], ["0", r"$\pi$", r"$2\pi$"])
    axes[0, 0].set_ylabel("OOD error")
    handles = [plt.Line2D([], [], color=color[s], label=f"{s} on $[0,\\pi]$") for s in SHAPES]
    handles.append(plt.Line2D([], [], color="black", ls="--", label="one-layer theory, mean"))
    figure.legend(handles=handles, loc="outside lower center", ncol=4, fontsize=8)
    return figure


def figure_forgetting(table: results.Table, pair: str, *, column: str = "forgetting") -> Any:
    """Draw forgetting against correlation for every depth, with 95% intervals and the one-layer theory."""
    import matplotlib.pyplot as plt

    from icl_core import plotting

    plotting.use_style()
    figure, axis = plt.subplots(figsize=(6.4, 3.6))
    part = table.frame[table.frame.pair == pair]
    for (depth, rows), color, marker in zip(part.groupby("layers"), plotting.COLORS, "os^Dv", strict=False):
        wide = rows.pivot(index="seed", columns="gamma", values=column)
        mean, low, high = interval(wide.to_numpy())
        axis.plot(
            wide.columns, mean, color=color, marker=marker, ms=3.5, ls="-", label=f"{depth} layer{'s' * (depth > 1)}"
        )
        axis.fill_between(wide.columns, low, high, color=color, alpha=0.18, lw=0)
    theory = part.drop_duplicates("gamma").sort_values("gamma")
    axis.plot(theory.gamma, theory.theory, color="black", ls="--", label="one-layer theory")
    axis.axhline(0, color="#666666", lw=0.8)
    axis.set(xlabel=r"correlation $\gamma$", ylabel="forgetting")
    axis.legend(fontsize=9)
    return figure


def figure_6b(table: results.Table, *, layers: int = 1, theory: Mapping[float, np.ndarray] | None = None) -> Any:
    """Draw the training domain's loss during fine-tuning; ``theory`` maps gamma to a track (drawn below)."""
    import matplotlib.pyplot as plt

    from icl_core import plotting

    plotting.use_style()
    count = 1 if theory is None else 2
    figure, axes = plt.subplots(1, count, figsize=(3.2 + 2.6 * count, 3.4), squeeze=False)
    part = table.frame[table.frame.layers == layers]
    for (gamma, rows), color, line in zip(part.groupby("gamma"), plotting.COLORS, plotting.LINES, strict=False):
        wide = rows.pivot(index="seed", columns="step", values="source")
        mean, low, high = interval(wide.to_numpy())
        axes[0, 0].plot(wide.columns, mean, color=color, ls=line, label=rf"$\gamma = {gamma:g}$")
        axes[0, 0].fill_between(wide.columns, low, high, color=color, alpha=0.18, lw=0)
        if theory is not None:
            axes[0, 1].plot(theory[gamma], color=color, ls=line, label=rf"$\gamma = {gamma:g}$")
    axes[0, 0].set(title="TinyTransformer", xlabel="fine-tuning step", ylabel="loss on the training domain")
    if theory is not None:
        axes[0, 1].set(title="one-layer theory", xlabel="gradient step")
    for axis in axes[0]:
        axis.set_yscale("log")
    axes[0, 0].legend(fontsize=9)
    return figure


def figure_attention(tracks: results.Table) -> Any:
    """Draw alpha, beta and error over the angle when the first feature rotates out of the span; theory dashed."""
    import matplotlib.pyplot as plt

    from icl_core import plotting

    plotting.use_style()
    figure, axes = plt.subplots(1, 2, figsize=(8.0, 3.6))
    wide = {name: tracks.frame.pivot(index="seed", columns="theta", values=name) for name in ("alpha", "beta", "error")}
    theta = wide["alpha"].columns.to_numpy()
    theory = tracks.frame.groupby("theta")[["theory_alpha", "theory_beta", "theory_error"]].mean()
    for name, color, text in (
        ("alpha", plotting.COLORS[0], r"$\alpha$"),
        ("beta", plotting.COLORS[1], r"mean $\beta$"),
    ):
        mean, low, high = interval(wide[name].to_numpy())
        scale = mean.max() if name == "alpha" else wide["alpha"].to_numpy().mean(0).max()
        axes[0].plot(theta, mean / scale, color=color, ls="-", label=f"{text}, trained")
        axes[0].fill_between(theta, low / scale, high / scale, color=color, alpha=0.18, lw=0)
        reference = theory[f"theory_{name}"] / theory.theory_alpha.max()
        axes[0].plot(theta, reference, color=color, ls="--", label=f"{text}, theory")
    axes[0].set(ylabel=r"score over largest $\alpha$")
    mean, low, high = interval(wide["error"].to_numpy())
    axes[1].plot(theta, mean, color=plotting.COLORS[2], ls="-", label="trained")
    axes[1].fill_between(theta, low, high, color=plotting.COLORS[2], alpha=0.18, lw=0)
    axes[1].plot(theta, theory.theory_error, color="black", ls="--", label="theory")
    axes[1].set(ylabel="error on the rotated feature")
    for axis in axes:
        axis.set(xlabel=r"rotation angle $\theta$")
        axis.set_xticks([0, math.pi, 2 * math.pi], ["0", r"$\pi$", r"$2\pi$"])
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower left", ncol=2, fontsize=8)
    figure.legend(*axes[1].get_legend_handles_labels(), loc="outside lower right", ncol=2, fontsize=8)
    return figure


def main(arguments: Sequence[str] | None = None) -> None:
    """Compute and store every table of the chapter: ``python -m icl_core.experiments.tiny_transformer``."""
    import argparse

    parser = argparse.ArgumentParser(prog="python -m icl_core.experiments.tiny_transformer", description=main.__doc__)
    parser.add_argument("--out", type=Path, default=Path("book/results"))
    parser.add_argument("--seeds", type=int, default=30)
    parser.add_argument("--store", type=Path, help="folder for checkpoints; an interrupted run goes on from there")
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args(arguments)
    seeds = range(_validate.integer("seeds", given.seeds, least=2))
    command = f"python -m icl_core.experiments.tiny_transformer --seeds {given.seeds} --device {given.device}"
    more: dict[str, Any] = {"seeds": seeds, "device": given.device, "command": command}
    arch = Architecture()

    def keep(*named: tuple[str, results.Table]) -> None:
        for name, table in named:
            print(results.write_table(given.out / name, table), flush=True)

    forgetting, followed = forgetting_tables(arch, store=given.store, **more)
    keep(("tiny-forgetting", forgetting), ("tiny-tracks", followed))
    keep(("tiny-ood", ood_table(arch, store=given.store, **more)))
    tracks, models = attention_table(arch, store=given.store, **more)
    keep(("tiny-attention", tracks), ("tiny-alignment", models))
    tracks, models = attention_table(replace(arch, **VARIANTS["attention only, small start"][0]), **more)
    keep(("tiny-attention-bare", tracks), ("tiny-alignment-bare", models))
    keep(("tiny-variants", variants_table(arch, replace(TRAINING, steps=1000), **more)))


if __name__ == "__main__":
    main()

"""Bring your own shift: what the one-layer theory says about two feature sets given as arrays or files."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from icl_core import _validate, features, fine_tuning, population, results
from icl_core.theory import ood

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Shift:
    """A shift from V to U, measured.

    Parameters
    ----------
    table : results.Table
        One row per feature: overlap, scores, losses, time of fine-tuning, forgetting.
    overlap : Tensor, shape (K, K)
        ``M = V'U``.
    angles : ndarray, shape (K,)
        Principal angles between the spans, in radians, largest first.
    fine_tuning : fine_tuning.FineTuning
        The run behind the table.
    deviation : dict of str to float
        Largest entry of ``|W'W - I|`` for V and U; sets beyond ``tolerance`` went through their Gram matrix.
    """

    table: results.Table
    overlap: Tensor
    angles: np.ndarray
    fine_tuning: fine_tuning.FineTuning
    deviation: dict[str, float]


def load_features(path: str | os.PathLike[str]) -> Tensor:
    """Read a feature set from a NumPy ``.npy`` file.

    Returns
    -------
    Tensor, shape (d, K)
        Features as columns, float64.

    Raises
    ------
    ValueError
        If the file is not such an array; names the file and the fault.
    """
    source = Path(path)
    try:
        array = np.load(source, allow_pickle=False)
    except FileNotFoundError:
        raise ValueError(f"{source}: there is no such file") from None
    except (OSError, ValueError, EOFError) as problem:
        raise ValueError(f"{source}: not a NumPy .npy file of numbers ({problem})") from None
    if not isinstance(array, np.ndarray):
        array.close()
        raise ValueError(f"{source}: must hold one array (.npy), got an archive of several (.npz)")
    if array.dtype.kind not in "fiu":
        raise ValueError(f"{source}: must hold real numbers, got dtype {array.dtype}")
    return _features(str(source), torch.from_numpy(array.astype(np.float64)))


def _features(name: str, W: Tensor) -> Tensor:
    if W.ndim != 2:
        raise ValueError(f"{name}: must have shape (d, K), features as columns, got {tuple(W.shape)}")
    d, K = W.shape
    if not bool(torch.isfinite(W).all()):
        row, column = (int(i) for i in torch.nonzero(~torch.isfinite(W))[0])
        raise ValueError(f"{name}: must be finite, got {float(W[row, column])} at row {row}, column {column}")
    if K < 2 or d < K:
        hint = " (are the features rows? pass the transpose)" if d < K and d >= 2 else ""
        raise ValueError(f"{name}: must have at least 2 features and as many dimensions, got d = {d}, K = {K}{hint}")
    zero = torch.nonzero(W.norm(dim=0) == 0)
    if zero.numel():
        raise ValueError(f"{name}: every feature must be nonzero, got zeros in column {int(zero[0])}")
    return W.to(torch.float64)


def shift(
    V: Tensor | np.ndarray | str | os.PathLike[str],
    U: Tensor | np.ndarray | str | os.PathLike[str],
    *,
    eps: float = 0.01,
    eta: float = 0.1,
    require_orthonormal: bool = False,
    max_steps: int = 10_000_000,
    record: int | None = 20,
) -> Shift:
    """Measure a shift: overlap, scores, OOD error, fine-tuning times and forgetting.

    Parameters
    ----------
    V, U : Tensor, ndarray or path of a .npy file; shape (d, K)
        Training and OOD features as columns. Sets that are not orthonormal are handled through their Gram matrix.
    eps : float
        Target of the total loss in both phases, in (0, (K - 1) / (2 K)).
    eta : float
        Step size of both phases.
    require_orthonormal : bool
        Refuse sets that are not orthonormal.
    max_steps : int
        Give up after so many steps in either phase.
    record : int, optional
        States recorded per decade of fine-tuning steps.

    Returns
    -------
    Shift

    Raises
    ------
    ValueError
        For bad files or arguments, naming the file and the fault, before any work.
    dynamics.ConvergenceError
        If a phase does not meet its rule.

    Notes
    -----
    OOD paper, Theorem 5.1, Section 5.2, Appendix J. The model is trained by gradient descent from Q = 0.
    """
    named = {
        name: (str(W), load_features(W))
        if isinstance(W, (str, os.PathLike))
        else (name, _features(name, torch.as_tensor(W)))
        for name, W in (("V", V), ("U", U))
    }
    (v_name, v), (u_name, u) = named["V"], named["U"]
    if v.shape[1] != u.shape[1]:
        raise ValueError(f"{u_name}: must have as many features as {v_name}, K = {v.shape[1]}, got {u.shape[1]}")
    if v.shape[0] != u.shape[0]:
        raise ValueError(f"{u_name}: must have the dimension of {v_name}, d = {v.shape[0]}, got {u.shape[0]}")
    K = v.shape[1]
    eps = _validate.real("eps", eps, above=0.0, below=ood.eps_limit(K), because=f"(K-1)/(2K) for K = {K}")
    eta = _validate.real("eta", eta, above=0.0)
    deviation = {}
    for name, label, W in (("V", v_name, v), ("U", u_name, u)):
        deviation[name] = float((features.gram(W) - torch.eye(K, dtype=torch.float64)).abs().max())
        if require_orthonormal:
            features.require_orthonormal(label, W)
    started = time.perf_counter()
    run = fine_tuning.fine_tune(v, u, eps, eta, start="trained", record=record, max_steps=max_steps)
    ood_losses = population.losses(run.start, run.law, run.gram_U)
    off = ~torch.eye(K, dtype=torch.bool)
    frame = pd.DataFrame(
        {
            "feature": np.arange(1, K + 1),
            "overlap_own": torch.diagonal(run.overlap).numpy(),
            "overlap_others": [float(run.overlap[:, k][off[:, k]].abs().max()) for k in range(K)],
            "alpha_u": torch.diagonal(run.start).numpy(),
            "beta_u_max": [float(run.start[:, k][off[:, k]].max()) for k in range(K)],
            "loss_u": ood_losses.numpy(),
            "loss_uniform": population.losses(torch.zeros_like(run.start), run.law, run.gram_U).numpy(),
            "step_converged": run.times.numpy(),
            "loss_v_before": run.losses_on_V_before.numpy(),
            "loss_v_after": run.losses_on_V.numpy(),
            "forgetting": run.forgetting.numpy(),
        }
    )
    columns = {
        "feature": "index k, from 1",
        "overlap_own": "<v_k, u_k>",
        "overlap_others": "largest |<v_n, u_k>|, n != k",
        "alpha_u": "u_k' Q u_k after training",
        "beta_u_max": "largest u_n' Q u_k, n != k, after training",
        "loss_u": "OOD loss of u_k after training",
        "loss_uniform": "the same under uniform attention",
        "step_converged": "fine-tuning steps until the loss of u_k is at most eps/K",
        "loss_v_before": "loss of v_k after training",
        "loss_v_after": "loss of v_k after fine-tuning",
        "forgetting": "loss_v_after - loss_v_before",
    }
    note = results.provenance(
        {"K": K, "d": v.shape[0], "eps": eps, "eta": eta, "V": v_name, "U": u_name}, started=started
    )
    angles = features.principal_angles(v, u)
    return Shift(results.Table(frame, note, columns), run.overlap, angles, run, deviation)


def report(found: Shift) -> str:
    """The measurements as text."""
    run, frame = found.fine_tuning, found.table.frame
    lines = [
        f"K = {len(frame)}, principal angles (degrees): " + ", ".join(f"{a:.1f}" for a in np.degrees(found.angles)),
        "deviation from orthonormal: " + ", ".join(f"{name} {value:.2g}" for name, value in found.deviation.items()),
        "",
        frame.set_index("feature").to_string(float_format=lambda x: f"{x:.4g}", line_width=80),
        "",
        (
            f"OOD loss {frame.loss_u.sum():.4g} (uniform attention {frame.loss_uniform.sum():.4g}, "
            f"training loss {frame.loss_v_before.sum():.4g})"
        ),
        f"fine-tuning ends after {int(run.end)} steps; total forgetting {float(run.total_forgetting):+.4g}",
    ]
    return "\n".join(lines)


def figure(found: Shift) -> Figure:
    """Overlap matrix, losses per feature before and after, and the losses on both sets along fine-tuning."""
    from matplotlib.figure import Figure

    run, frame = found.fine_tuning, found.table.frame
    canvas = Figure(figsize=(10, 3.4), layout="constrained")
    left, middle, right = canvas.subplots(1, 3)
    image = left.imshow(found.overlap.numpy(), vmin=-1, vmax=1, cmap="PuOr")
    ticks = np.arange(len(frame))
    left.set(xlabel="OOD feature $u_n$", ylabel="training feature $v_k$", title="Overlap $M = V^\\top U$")
    left.set_xticks(ticks, frame.feature)
    left.set_yticks(ticks, frame.feature)
    left.grid(False)
    canvas.colorbar(image, ax=left, label="$\\langle v_k, u_n \\rangle$")
    for offset, (column, label, hatch) in enumerate(
        (
            ("loss_u", "on U, trained", ""),
            ("loss_v_before", "on V, trained", "//"),
            ("loss_v_after", "on V, fine-tuned", ".."),
        )
    ):
        middle.bar(ticks + 0.27 * (offset - 1), frame[column], 0.27, label=label, hatch=hatch, edgecolor="white")
    middle.axhline(frame.loss_uniform.mean(), color="black", linestyle=":", linewidth=1, label="uniform attention")
    middle.set(xlabel="feature", ylabel="loss per feature", yscale="log", title="Losses")
    middle.set_xticks(ticks, frame.feature)
    # Room for the legend above the bars.
    middle.set_ylim(top=25 * float(frame[["loss_u", "loss_uniform"]].to_numpy().max()))
    middle.legend(fontsize=8, loc="upper right")
    if run.trajectory is not None:
        steps = run.trajectory.times.numpy() + 1
        right.plot(steps, run.trajectory.losses.sum(-1).numpy(), label="on U")
        right.plot(steps, run.path_on_V()[1].sum(-1).numpy(), linestyle="--", label="on V")
        right.set(
            xscale="log", yscale="log", xlabel="fine-tuning step + 1", ylabel="total loss", title="Along fine-tuning"
        )
        right.legend(fontsize=8)
    return canvas

"""Training and fine-tuning dynamics: batched gradient descent to a per-feature rule, and adaptive gradient flow."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from icl_core import _validate, population
from icl_core.prompts import PromptLaw, balanced

# Steps between two looks at whether the losses still fall.
_PATIENCE = 50_000


@dataclass(frozen=True)
class Trajectory:
    """States along a run.

    Parameters
    ----------
    times : Tensor, shape (T,)
        Steps of gradient descent, or flow time (steps times eta).
    scores : Tensor, shape (T, ..., K, K)
        Score coordinates; an instance that has stopped keeps its last ones.
    losses : Tensor, shape (T, ..., K)
        Loss per feature.
    """

    times: Tensor
    scores: Tensor
    losses: Tensor

    @property
    def alpha(self) -> Tensor:
        """alpha-type weights, shape (T, ..., K) (OOD paper, eq. 12)."""
        return torch.diagonal(self.scores, dim1=-2, dim2=-1)

    @property
    def beta(self) -> Tensor:
        """beta-type weights, shape (T, ..., K, K), entry (n, k) for key n and query k; nan on the diagonal."""
        return beta(self.scores)


@dataclass(frozen=True)
class Descent:
    """What gradient descent reached, for every instance of the batch.

    Parameters
    ----------
    scores : Tensor, shape (..., K, K)
        Scores on the features trained on, when the rule was met or the run ended.
    update : Tensor, shape (..., K, K)
        Cumulative ``sum_t eta_t delta_t``: the parameter moved by ``W update W'``; see :func:`project`.
    losses : Tensor, shape (..., K)
        Losses there.
    steps : Tensor, shape (...)
        Steps done.
    feature_steps : Tensor, shape (..., K)
        First step at which each feature's loss met the threshold, -1 if none.
    converged : Tensor, shape (...)
        Whether all features met the threshold at the same step.
    trajectory : Trajectory or None
        Recorded states, if asked for.
    """

    scores: Tensor
    update: Tensor
    losses: Tensor
    steps: Tensor
    feature_steps: Tensor
    converged: Tensor
    trajectory: Trajectory | None = None

    @property
    def alpha(self) -> Tensor:
        """alpha-type weights, shape (..., K) (OOD paper, eq. 12)."""
        return torch.diagonal(self.scores, dim1=-2, dim2=-1)

    @property
    def beta(self) -> Tensor:
        """beta-type weights, shape (..., K, K); nan on the diagonal."""
        return beta(self.scores)


class ConvergenceError(RuntimeError):
    """The rule was not met; ``result`` holds what was reached."""

    def __init__(self, message: str, result: Descent) -> None:
        super().__init__(message)
        self.result = result


def beta(scores: Tensor) -> Tensor:
    """Return ``scores`` with nan on the diagonal, which holds alpha-type weights."""
    nan = torch.full_like(scores[..., 0, :], math.nan)
    return scores.diagonal_scatter(nan, dim1=-2, dim2=-1)


def resolve_device(device: str, dtype: torch.dtype = torch.float64) -> torch.device:
    """Turn ``auto``, ``cpu``, ``cuda`` or ``mps`` into a device that is there.

    ``auto`` takes cuda if present, else the cpu; it never takes mps, which has no float64.

    Raises
    ------
    ValueError
        If the device is unknown or absent, or mps is asked for in float64.
    """
    _validate.choice("device", device, ("auto", "cpu", "cuda", "mps"))
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device must be present on this machine, got 'cuda', which is not")
    if device == "mps":
        if dtype == torch.float64:
            raise ValueError("dtype must be torch.float32 on device 'mps', which has no float64, got torch.float64")
        if not torch.backends.mps.is_available():
            raise ValueError("device must be present on this machine, got 'mps', which is not")
    return torch.device(device)


def gradient_descent(
    scores: Tensor,
    law: PromptLaw,
    *,
    eta: float | Tensor,
    threshold: float | Tensor,
    gram: Tensor | None = None,
    covariance: Tensor | None = None,
    max_steps: int = 10_000_000,
    record: int | Sequence[int] | None = None,
    device: str = "cpu",
    dtype: torch.dtype = torch.float64,
    engine: Literal["auto", "compiled", "tensor"] = "auto",
    on_failure: Literal["raise", "return"] = "raise",
) -> Descent:
    """Descend the population loss until every feature's loss is at most ``threshold``.

    Parameters
    ----------
    scores : Tensor, shape (..., K, K)
        Scores ``W' Q W`` to start from; leading dimensions are independent instances.
    law : PromptLaw
        Distribution of prompts.
    eta : float or Tensor, shape (...)
        Step size, per instance if a tensor.
    threshold : float or Tensor, shape (...)
        Bound on every ``L_k``; the papers' rule is eps / K.
    gram : Tensor, shape (K, K), optional
        ``W' W`` for features that are not orthonormal.
    covariance : Tensor, shape (K, K), optional
        ``W' Sigma W``; for features that are not orthonormal and standard Gaussian tasks this is the Gram matrix,
        which is then the default.
    max_steps : int
        Give up after so many steps.
    record : int or sequence of int, optional
        Record states: at about so many steps per decade, or at the given steps.
    device : {"cpu", "auto", "cuda", "mps"}
        Where to run.
    dtype : torch.dtype
        float64, or float32 on request.
    engine : {"auto", "compiled", "tensor"}
        ``compiled`` is the CPU loop for orthonormal features in float64, taken where it applies; ``tensor`` runs
        everything, on any device.
    on_failure : {"raise", "return"}
        What to do if an instance does not meet the rule.

    Returns
    -------
    Descent

    Raises
    ------
    ValueError
        For arguments out of range, before any work.
    ConvergenceError
        If the rule was not met (``max_steps``, losses that stopped falling above the threshold, or a step size so
        large that scores are no longer finite); carries what was reached.

    Notes
    -----
    OOD paper, eq. 7, 9, 17 and the rule after eq. 7.
    """
    K = law.K
    if scores.ndim < 2 or scores.shape[-2:] != (K, K):
        raise ValueError(f"scores must have shape (..., {K}, {K}), got {tuple(scores.shape)}")
    if not bool(torch.isfinite(scores).all()):
        raise ValueError("scores must be finite, got an infinity or nan")
    max_steps = _validate.integer("max_steps", max_steps, least=1)
    _validate.choice("engine", engine, ("auto", "compiled", "tensor"))
    _validate.choice("on_failure", on_failure, ("raise", "return"))
    target = resolve_device(device, dtype)
    shape = scores.shape[:-2]
    rate = _per_instance("eta", eta, shape)
    bound = _per_instance("threshold", threshold, shape)
    plain = gram is None and covariance is None and target.type == "cpu" and dtype == torch.float64
    if engine == "compiled" and not plain:
        raise ValueError("engine must be 'tensor' for a Gram matrix, a covariance, another device or another dtype")
    start = scores.reshape(-1, K, K).to(device=target, dtype=dtype)
    run = _Compiled(law) if plain and engine != "tensor" else _Tensor(law, gram, covariance, target, dtype)
    state = run.begin(start, rate.to(target, dtype), bound.to(target, dtype))

    times, kept_scores, kept_losses = [], [], []
    for stop in _stops(record, max_steps):
        run.advance(state, stop)
        if record is not None:
            times.append(stop)
            kept_scores.append(run.scores(state))
            kept_losses.append(state.losses.clone())
        if bool(state.finished().all()):
            break
    final = run.scores(state)
    trajectory = None
    if record is not None:
        last = int(state.step.max())
        if times[-1] > last:
            times[-1] = last
        trajectory = Trajectory(
            torch.tensor(times),
            torch.stack(kept_scores).reshape(len(times), *scores.shape).cpu(),
            torch.stack(kept_losses).reshape(len(times), *shape, K).cpu(),
        )
    met = state.losses <= bound.to(target, dtype).unsqueeze(-1)
    result = Descent(
        final.reshape(scores.shape).cpu(),
        run.update(state, start).reshape(scores.shape).cpu(),
        state.losses.reshape(*shape, K).cpu(),
        state.step.reshape(shape).cpu(),
        state.hit.reshape(*shape, K).cpu(),
        met.all(-1).reshape(shape).cpu(),
        trajectory,
    )
    if on_failure == "raise" and not bool(result.converged.all()):
        raise ConvergenceError(_why(result, bound.reshape(shape), max_steps), result)
    return result


@dataclass
class _State:
    """Mutable state of a batch of B runs; ``stalled`` marks the ones whose losses stopped falling."""

    scores: Tensor
    eta: Tensor
    threshold: Tensor
    step: Tensor
    hit: Tensor
    stalled: Tensor
    losses: Tensor

    def finished(self) -> Tensor:
        met = (self.losses <= self.threshold.unsqueeze(-1)).all(-1)
        return met | (self.stalled > 0) | ~torch.isfinite(self.losses).all(-1)


def _fresh(scores: Tensor, eta: Tensor, threshold: Tensor) -> _State:
    B, K, _ = scores.shape
    none_yet = torch.zeros(B, dtype=torch.int64, device=scores.device)
    return _State(
        scores.clone(),
        eta,
        threshold,
        none_yet.clone(),
        none_yet.unsqueeze(-1).repeat(1, K) - 1,
        none_yet.clone(),
        torch.full((B, K), math.inf, dtype=scores.dtype, device=scores.device),
    )


class _Compiled:
    """The compiled CPU loop."""

    def __init__(self, law: PromptLaw) -> None:
        noise = law.sigma**2 / law.counts.clamp(min=1)
        self._law = [x.contiguous().numpy() for x in (law.counts, law.weights, law.query, noise)]
        self._label_noise = law.sigma**2

    def begin(self, scores: Tensor, eta: Tensor, threshold: Tensor) -> _State:
        return _fresh(scores.contiguous(), eta, threshold)

    def advance(self, state: _State, limit: int) -> None:
        from icl_core._kernels import advance

        step = [x.numpy() for x in (state.eta, state.threshold, state.step, state.hit, state.stalled)]
        found = advance(state.scores.numpy(), *self._law, self._label_noise, *step, limit, _PATIENCE)
        state.losses = torch.from_numpy(found)

    def scores(self, state: _State) -> Tensor:
        return state.scores.clone()

    def update(self, state: _State, start: Tensor) -> Tensor:
        return state.scores - start


class _Tensor:
    """The tensor engine: any device, Gram matrix and covariance.

    The batch is the last dimension in memory, so that sums over features run over contiguous blocks, and instances
    that have stopped leave the arrays.
    """

    def __init__(
        self, law: PromptLaw, gram: Tensor | None, covariance: Tensor | None, device: torch.device, dtype: torch.dtype
    ) -> None:
        self._law = law.to(device, dtype)
        self._gram = None if gram is None else gram.to(device, dtype)
        covariance = gram if covariance is None else covariance
        self._covariance = None if covariance is None else covariance.to(device, dtype)

    def begin(self, scores: Tensor, eta: Tensor, threshold: Tensor) -> _State:
        self._start = scores
        self._moved = torch.zeros_like(scores)
        return _fresh(scores, eta, threshold)

    def _now(self, start: Tensor, moved: Tensor) -> Tensor:
        return start + (moved if self._gram is None else self._gram @ moved @ self._gram)

    def advance(self, state: _State, limit: int) -> None:
        live = torch.nonzero(~state.finished() & (state.step < limit)).squeeze(1)
        fresh = torch.isinf(state.losses).any(-1)
        live = torch.unique(torch.cat([live, torch.nonzero(fresh).squeeze(1)]))
        if live.numel() == 0:
            return
        step = int(state.step[live[0]])
        mark = torch.full((live.numel(),), math.inf, dtype=state.losses.dtype, device=live.device)
        start, moved = (_batch_last(x[live]) for x in (self._start, self._moved))
        eta, threshold, hit = state.eta[live], state.threshold[live], state.hit[live]
        while True:
            losses, delta = population.losses_and_descent(self._now(start, moved), self._law, self._covariance)
            below = losses <= threshold.unsqueeze(-1)
            hit = torch.where(below & (hit < 0), step, hit)
            stop = below.all(-1) | ~torch.isfinite(losses).all(-1)
            if step % _PATIENCE == 0:
                worst = losses.amax(-1)
                stuck = (worst >= mark * (1 - 1e-9)) & ~stop
                state.stalled[live[stuck]] = 1
                stop, mark = stop | stuck, worst
            if step >= limit:
                stop = torch.ones_like(stop)
            if bool(stop.any()):
                gone = live[stop]
                self._moved[gone] = moved[stop]
                state.losses[gone], state.hit[gone], state.step[gone] = losses[stop], hit[stop], step
                keep = ~stop
                live, eta, threshold, hit, mark = live[keep], eta[keep], threshold[keep], hit[keep], mark[keep]
                if live.numel() == 0:
                    break
                start, moved, delta = (_batch_last(x[keep]) for x in (start, moved, delta))
            moved = moved + eta[:, None, None] * delta
            step += 1

    def scores(self, state: _State) -> Tensor:
        return self._now(self._start, self._moved)

    def update(self, state: _State, start: Tensor) -> Tensor:
        return self._moved.clone()


def _batch_last(x: Tensor) -> Tensor:
    """Same tensor (B, K, K), stored with the batch dimension fastest."""
    return x.movedim(0, -1).contiguous().movedim(-1, 0)


def _per_instance(name: str, value: float | Tensor, shape: torch.Size) -> Tensor:
    if isinstance(value, Tensor) and value.ndim:
        try:
            spread = value.to(torch.float64).broadcast_to(shape)
        except RuntimeError:
            raise ValueError(
                f"{name} must broadcast to the batch shape {tuple(shape)}, got {tuple(value.shape)}"
            ) from None
        if not bool(((spread > 0) & torch.isfinite(spread)).all()):
            raise ValueError(f"{name} must be positive and finite, got {value.tolist()!r}")
        return spread.reshape(-1).contiguous()
    number = _validate.real(name, value, above=0.0)
    return torch.full((math.prod(shape),), number, dtype=torch.float64)


def _stops(record: int | Sequence[int] | None, max_steps: int) -> list[int]:
    """Steps at which to pause and record, the last one being ``max_steps``."""
    if record is None:
        return [max_steps]
    if isinstance(record, int):
        per_decade = _validate.integer("record", record, least=1)
        count = int(per_decade * math.log10(max_steps)) + 1
        points = {round(10 ** (i / per_decade)) for i in range(count)}
    else:
        points = {_validate.integer("record", step, least=0) for step in record}
    return sorted({0, max_steps} | {point for point in points if point < max_steps})


def _why(result: Descent, threshold: Tensor, max_steps: int) -> str:
    worst = result.losses.amax(-1)
    bad = ~result.converged
    first = tuple(int(i) for i in torch.nonzero(bad)[0]) if bad.ndim else ()
    where = f" (first: instance {first})" if first else ""
    if not bool(torch.isfinite(worst[bad]).all()):
        reason = "the scores are no longer finite, so the step size eta is too large"
    elif bool((result.steps[bad] >= max_steps).any()):
        reason = f"max_steps = {max_steps} steps were done"
    else:
        reason = "the losses stopped falling above the threshold"
    return (
        f"{int(bad.sum())} of {bad.numel()} runs did not meet the rule{where}: {reason}. "
        f"Largest loss per feature reached {float(worst[first]):.6g} after {int(result.steps[first])} steps, "
        f"threshold {float(threshold[first]):.6g}."
    )


def train(
    K: int,
    eps: float,
    eta: float,
    *,
    law: PromptLaw | None = None,
    batch: Sequence[int] = (),
    record: int | Sequence[int] | None = None,
    device: str = "cpu",
    max_steps: int = 10_000_000,
) -> Descent:
    """Train from Q = 0 on orthonormal features until every ``L_k <= eps / K``.

    Parameters
    ----------
    K : int
        Number of features.
    eps : float
        Target of the total loss.
    eta : float
        Step size.
    law : PromptLaw, optional
        Distribution of prompts; balanced by default.
    batch, record, device, max_steps
        As in :func:`gradient_descent`; ``batch`` is the leading shape.

    Returns
    -------
    Descent

    Raises
    ------
    ValueError, ConvergenceError
        As in :func:`gradient_descent`.

    Notes
    -----
    OOD paper, Section 4 and Lemma E.1.
    """
    K = _validate.integer("K", K, least=2)
    eps = _validate.real("eps", eps, above=0.0)
    law = balanced(K) if law is None else law
    return gradient_descent(
        torch.zeros(*batch, K, K, dtype=torch.float64),
        law,
        eta=eta,
        threshold=eps / K,
        record=record,
        device=device,
        max_steps=max_steps,
    )


def project(update: Tensor, overlap: Tensor) -> Tensor:
    """Change of the scores on V caused by training on U: ``M update M'`` with ``M = V' U``, shape (..., K, K).

    Holds for any two sets. OOD paper, Theorem 5.6 and Appendix J.
    """
    return overlap @ update @ overlap.mT


def gradient_flow(
    scores: Tensor,
    law: PromptLaw,
    *,
    threshold: float,
    gram: Tensor | None = None,
    covariance: Tensor | None = None,
    events: dict[str, Callable[[Tensor, Tensor], float]] | None = None,
    end: float = 1e12,
    rtol: float = 1e-10,
    atol: float = 1e-12,
    method: str = "DOP853",
) -> tuple[Trajectory, dict[str, float]]:
    """Follow the gradient flow dS/dt = delta (the limit of small steps, t = steps * eta) to the per-feature rule.

    Parameters
    ----------
    scores : Tensor, shape (K, K)
        Where to start.
    law, gram, covariance
        As in :func:`gradient_descent`.
    threshold : float
        Stop when every ``L_k`` is at most this.
    events : dict of str to callable, optional
        Functions of (scores, losses) whose zeros are to be timed.
    end : float
        Give up at this time.
    rtol, atol, method
        For ``scipy.integrate.solve_ivp``.

    Returns
    -------
    trajectory : Trajectory
        At the integrator's own times.
    times : dict of str to float
        First zero of every event that has one; ``L_1`` ... ``L_K`` and ``all`` for the rule.

    Raises
    ------
    ConvergenceError
        If the rule is not met by ``end``.
    """
    from scipy.integrate import solve_ivp

    K = law.K
    bound = _validate.real("threshold", threshold, above=0.0)
    if scores.shape != (K, K):
        raise ValueError(f"scores must have shape ({K}, {K}), got {tuple(scores.shape)}")
    covariance = gram if covariance is None else covariance

    def at(y: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(y)).reshape(K, K)

    def slope(_: float, y: np.ndarray) -> np.ndarray:
        delta = population.descent(at(y), law, covariance)
        if gram is not None:
            delta = gram @ delta @ gram
        return delta.reshape(-1).numpy()

    names, functions = [], []

    def watch(name: str, value: Callable[[Tensor, Tensor], float], *, terminal: bool = False) -> None:
        def event(_: float, y: np.ndarray) -> float:
            s = at(y)
            return value(s, population.losses(s, law, covariance))

        event.terminal = terminal  # type: ignore[attr-defined]  # where solve_ivp looks for it
        names.append(name)
        functions.append(event)

    def met(k: int) -> Callable[[Tensor, Tensor], float]:
        return lambda _, losses: float(torch.log(losses[k] / bound))

    for k in range(K):
        watch(f"L_{k + 1}", met(k))
    watch("all", lambda _, losses: float(torch.log(losses.max() / bound)), terminal=True)
    for name, value in (events or {}).items():
        watch(name, value)

    begin = scores.to(torch.float64).reshape(-1).numpy()
    initially = population.losses(at(begin), law, covariance)
    if bool((initially <= bound).all()):
        still = Trajectory(torch.zeros(1), at(begin).unsqueeze(0), initially.unsqueeze(0))
        return still, {"all": 0.0, **{f"L_{k + 1}": 0.0 for k in range(K)}}
    solved = solve_ivp(slope, (0.0, end), begin, method=method, rtol=rtol, atol=atol, events=functions)
    path = torch.from_numpy(solved.y.T.copy()).reshape(-1, K, K)
    trajectory = Trajectory(torch.from_numpy(solved.t), path, population.losses(path, law, covariance))
    found = {name: float(when[0]) for name, when in zip(names, solved.t_events, strict=True) if when.size}
    found.update({f"L_{k + 1}": 0.0 for k in range(K) if initially[k] <= bound})
    if "all" not in found:
        last = trajectory
        reached = Descent(
            last.scores[-1], last.scores[-1] - at(begin), last.losses[-1], torch.tensor(-1),
            torch.full((K,), -1), torch.tensor(False), trajectory,
        )  # fmt: skip
        raise ConvergenceError(
            f"the flow did not meet the rule by time {end:g}: largest loss {float(last.losses[-1].max()):.6g}, "
            f"threshold {bound:.6g} ({solved.message})",
            reached,
        )
    return trajectory, found

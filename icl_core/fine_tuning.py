"""Fine-tuning on OOD features after training: times and order of convergence, updates, and forgetting, for any U.

The trained parameter is ``Q = V A V'`` with ``A`` (K, K) from the training phase, so the scores on U start at
``M' A M`` with ``M = V'U``. Fine-tuning adds ``U D U'`` with the cumulative descent ``D`` = ``update``; the scores on V
move by ``M D M'`` whatever U is. Under Assumption 5.4 ``M = diag(gamma)``, so gamma and K decide everything and no
vectors are needed: :func:`fine_tune_gamma`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypedDict, Unpack

import torch
from torch import Tensor

from icl_core import _validate, dynamics, features, population
from icl_core.dynamics import Trajectory
from icl_core.prompts import PromptLaw, balanced
from icl_core.theory.ood import alpha_star, eps_limit, symmetric_scores

Start = Literal["alpha_star", "trained"]


class _Descent(TypedDict, total=False):
    """What the shorter ways in hand on to :func:`from_overlap`, whose defaults hold."""

    threshold: float | None
    record: int | Sequence[int] | None
    device: str
    engine: Literal["auto", "compiled", "tensor"]
    on_failure: Literal["raise", "return"]


@dataclass(frozen=True)
class FineTuning:
    """Outcome of a fine-tuning phase; leading dimensions are independent instances.

    Parameters
    ----------
    trained : Tensor, shape (..., K, K)
        ``A`` with ``Q = V A V'`` at the end of training; for orthonormal V these are the scores on V.
    overlap : Tensor, shape (..., K, K)
        ``M = V'U``.
    start, scores : Tensor, shape (..., K, K)
        Scores ``U'QU`` when fine-tuning starts and ends.
    update : Tensor, shape (..., K, K)
        ``D``: fine-tuning changes Q by ``U D U'``. For orthonormal U it is ``scores - start``.
    losses : Tensor, shape (..., K)
        Losses on U at the end.
    times : Tensor, shape (..., K)
        When each feature's loss first met the threshold: steps of gradient descent counted from T_1, or flow time
        (steps times eta); nan where it never did.
    end : Tensor, shape (...)
        When fine-tuning ended, the paper's T_2.
    law : PromptLaw
        Distribution of prompts.
    gram_V, gram_U : Tensor, shape (K, K), or None
        Gram matrices of sets that are not orthonormal.
    trajectory : Trajectory or None
        Recorded states on U.
    """

    trained: Tensor
    overlap: Tensor
    start: Tensor
    scores: Tensor
    update: Tensor
    losses: Tensor
    times: Tensor
    end: Tensor
    law: PromptLaw
    gram_V: Tensor | None = None
    gram_U: Tensor | None = None
    trajectory: Trajectory | None = None

    @property
    def order(self) -> Tensor:
        """Features in the order in which they converge, shape (..., K).

        The paper's k(1), ..., k(K), counted from 0; first the first.
        """
        return torch.argsort(self.times, dim=-1, stable=True)

    @property
    def delta(self) -> Tensor:
        """``Delta_{k,alpha}`` at the end, shape (..., K): how much each alpha-type weight rose (Lemma 5.3)."""
        return torch.diagonal(self.scores - self.start, dim1=-2, dim2=-1)

    @property
    def lam(self) -> Tensor:
        """``Lambda_{n,k,beta}`` at the end, shape (..., K, K), nan on the diagonal: how much each beta fell."""
        return dynamics.beta(self.start - self.scores)

    @property
    def scores_on_V_before(self) -> Tensor:
        """Scores on V at the end of training, shape (..., K, K)."""
        return self.trained if self.gram_V is None else self.gram_V @ self.trained @ self.gram_V

    @property
    def scores_on_V(self) -> Tensor:
        """Scores on V at the end of fine-tuning, shape (..., K, K) (Theorem 5.6; for any U, Appendix J)."""
        return self.scores_on_V_before + dynamics.project(self.update, self.overlap)

    @property
    def losses_on_V_before(self) -> Tensor:
        """Losses on V at the end of training, shape (..., K)."""
        return population.losses(self.scores_on_V_before, self.law, self.gram_V)

    @property
    def losses_on_V(self) -> Tensor:
        """Losses on V at the end of fine-tuning, shape (..., K)."""
        return population.losses(self.scores_on_V, self.law, self.gram_V)

    @property
    def forgetting(self) -> Tensor:
        """``F_v`` per feature, shape (..., K): loss on V after fine-tuning less that before (Section 4)."""
        return self.losses_on_V - self.losses_on_V_before

    @property
    def total_forgetting(self) -> Tensor:
        """``F = sum_v F_v``, shape (...)."""
        return self.forgetting.sum(-1)

    def path_on_V(self) -> tuple[Tensor, Tensor]:
        """Scores (T, ..., K, K) and losses (T, ..., K) on V along the recorded trajectory.

        Raises
        ------
        ValueError
            If no trajectory was recorded.
        """
        if self.trajectory is None:
            raise ValueError("record must have been given to follow the scores on V, got no trajectory")
        update = self.trajectory.scores - self.start
        if self.gram_U is not None:
            # M vanishes on the null space of the Gram matrix, so the pseudo-inverse loses nothing.
            inverse = torch.linalg.pinv(self.gram_U, hermitian=True)
            update = inverse @ update @ inverse
        scores = self.scores_on_V_before + dynamics.project(update, self.overlap)
        return scores, population.losses(scores, self.law, self.gram_V)


def trained_matrix(
    K: int,
    eps: float,
    eta: float,
    *,
    start: Start | Tensor = "alpha_star",
    law: PromptLaw | None = None,
    gram_V: Tensor | None = None,
    threshold: float | None = None,
    max_steps: int = 10_000_000,
) -> Tensor:
    """``A`` with ``Q = V A V'`` at the end of training, shape (K, K).

    Parameters
    ----------
    K : int
        Number of features.
    eps : float
        Target of the total loss, in (0, (K - 1) / (2 K)).
    eta : float
        Step size of training; unused with ``start="alpha_star"``.
    start : {"alpha_star", "trained"} or Tensor, shape (..., K, K)
        ``"alpha_star"`` (default): the paper's closed form, eq. 16, at which every loss is exactly eps / K.
        ``"trained"``: gradient descent from Q = 0, which stops a little below eps / K. A tensor is taken as it is.
    law : PromptLaw, optional
        Distribution of training prompts; balanced by default.
    gram_V : Tensor, shape (K, K), optional
        Gram matrix of V if V is not orthonormal; only with ``start="trained"`` or a tensor.
    threshold : float, optional
        Bound on every loss in training; eps / K by default.
    max_steps : int
        Give up after so many steps.

    Raises
    ------
    ValueError, dynamics.ConvergenceError

    Notes
    -----
    OOD paper, Lemma E.1.
    """
    K = _validate.integer("K", K, least=2)
    if isinstance(start, Tensor):
        if start.ndim < 2 or start.shape[-2:] != (K, K) or not bool(torch.isfinite(start).all()):
            raise ValueError(f"start must be finite with shape (..., {K}, {K}), got shape {tuple(start.shape)}")
        return start.to(torch.float64)
    _validate.choice("start", start, ("alpha_star", "trained"))
    eps = _validate.real(
        "eps", eps, above=0.0, below=eps_limit(K), because="at (K-1)/(2K) training would stop before its first step"
    )
    if start == "alpha_star":
        if gram_V is not None:
            raise ValueError("start must be 'trained' for training features that are not orthonormal, got 'alpha_star'")
        return symmetric_scores(K, alpha_star(K, eps))
    return dynamics.gradient_descent(
        torch.zeros(K, K, dtype=torch.float64),
        balanced(K) if law is None else law,
        eta=eta,
        threshold=eps / K if threshold is None else threshold,
        gram=gram_V,
        max_steps=max_steps,
    ).update


def fine_tune(
    V: Tensor,
    U: Tensor,
    eps: float,
    eta: float | Tensor,
    *,
    start: Start | Tensor = "alpha_star",
    eta_train: float | None = None,
    law: PromptLaw | None = None,
    max_steps: int = 10_000_000,
    **descent: Unpack[_Descent],
) -> FineTuning:
    """Train on V (or start from its closed form), then descend the loss on U until every loss meets the threshold.

    Parameters
    ----------
    V : Tensor, shape (d, K)
        Training features; if not orthonormal, ``start`` must not be ``"alpha_star"``.
    U : Tensor, shape (..., d, K)
        OOD features. Orthonormal sets may be batched; a set that is not orthonormal (then through its Gram matrix)
        comes alone, shape (d, K).
    eps : float
        Target of the total loss, in both phases; in (0, (K - 1) / (2 K)).
    eta : float or Tensor, shape (...)
        Step size of fine-tuning.
    start : {"alpha_star", "trained"} or Tensor, shape (K, K)
        As in :func:`trained_matrix`.
    eta_train : float, optional
        Step size of training; by default that of fine-tuning.
    law : PromptLaw, optional
        Distribution of prompts in both phases; balanced by default.
    max_steps : int
        Give up after so many steps, in either phase.
    **descent
        ``threshold``, ``record``, ``device``, ``engine``, ``on_failure`` of fine-tuning, as in :func:`from_overlap`.

    Returns
    -------
    FineTuning

    Raises
    ------
    ValueError
        For arguments out of range, before any work.
    dynamics.ConvergenceError
        If a phase does not meet its rule.

    Notes
    -----
    OOD paper, Sections 4 and 5.2, Appendices F, G and J.
    """
    if V.ndim != 2 or U.ndim < 2 or V.shape != U.shape[-2:]:
        raise ValueError(
            f"U must have shape (..., d, K) with d and K of V, V has shape {tuple(V.shape)}, got {tuple(U.shape)}"
        )
    for name, W in (("V", V), ("U", U)):
        if not bool(torch.isfinite(W).all()):
            raise ValueError(f"{name} must be finite, got an infinity or nan")
    V, U = V.to(torch.float64), U.to(torch.float64)
    gram_V, gram_U = (None if _orthonormal(W) else features.gram(W) for W in (V, U))
    if gram_U is not None and U.ndim > 2:
        raise ValueError(f"U must be one set, shape (d, K), when it is not orthonormal, got shape {tuple(U.shape)}")
    rate = _training_rate(eta, eta_train, start)
    A = trained_matrix(V.shape[-1], eps, rate, start=start, law=law, gram_V=gram_V, max_steps=max_steps)
    M = features.overlap(V, U)
    return from_overlap(A, M, eps, eta, law=law, gram_V=gram_V, gram_U=gram_U, max_steps=max_steps, **descent)


def fine_tune_gamma(
    gamma: Tensor | Sequence[float],
    eps: float,
    eta: float | Tensor,
    *,
    start: Start | Tensor = "alpha_star",
    eta_train: float | None = None,
    law: PromptLaw | None = None,
    max_steps: int = 10_000_000,
    **descent: Unpack[_Descent],
) -> FineTuning:
    """Fine-tune under Assumption 5.4, for one gamma or a grid of them.

    Parameters
    ----------
    gamma : Tensor or sequence, shape (..., K)
        Correlations in [-1, 1]. Leading dimensions are independent instances.
    eps, eta, start, eta_train, law, max_steps, **descent
        As in :func:`fine_tune`.

    Returns
    -------
    FineTuning

    Raises
    ------
    ValueError, dynamics.ConvergenceError

    Notes
    -----
    OOD paper, Assumption 5.4 and Theorem 5.5: ``V'U = diag(gamma)`` and both sets are orthonormal, so the scores on U
    start at ``gamma_n gamma_k A_{n,k}`` (eq. 25).
    """
    g = torch.as_tensor(gamma, dtype=torch.float64)
    if g.ndim < 1 or g.shape[-1] < 2:
        raise ValueError(f"gamma must have shape (..., K) with K >= 2, got {tuple(g.shape)}")
    if not bool((g.abs() <= 1).all()):
        raise ValueError(f"gamma must lie in [-1, 1], got a largest magnitude of {float(g.abs().max())}")
    rate = _training_rate(eta, eta_train, start)
    A = trained_matrix(g.shape[-1], eps, rate, start=start, law=law, max_steps=max_steps)
    M = torch.diag_embed(g)
    return from_overlap(A, M, eps, eta, law=law, gram_V=None, gram_U=None, max_steps=max_steps, **descent)


def from_overlap(
    trained: Tensor,
    overlap: Tensor,
    eps: float,
    eta: float | Tensor,
    *,
    law: PromptLaw | None = None,
    threshold: float | None = None,
    gram_V: Tensor | None = None,
    gram_U: Tensor | None = None,
    record: int | Sequence[int] | None = None,
    max_steps: int = 10_000_000,
    device: str = "cpu",
    engine: Literal["auto", "compiled", "tensor"] = "auto",
    on_failure: Literal["raise", "return"] = "raise",
) -> FineTuning:
    """Fine-tune from ``Q = V A V'``, given only ``A = trained`` and ``M = V'U``.

    Parameters
    ----------
    trained : Tensor, shape (..., K, K)
        ``A``.
    overlap : Tensor, shape (..., K, K)
        ``M``; row n is the training feature, column k the OOD feature.
    eps, eta, law
        As in :func:`fine_tune`.
    threshold : float, optional
        Bound on every loss; eps / K by default (with label noise add the floor).
    gram_V, gram_U : Tensor, shape (K, K), optional
        Gram matrices of sets that are not orthonormal.
    record, max_steps, device, engine, on_failure
        As in :func:`icl_core.dynamics.gradient_descent`.

    Returns
    -------
    FineTuning
    """
    K = overlap.shape[-1]
    law = balanced(K) if law is None else law
    start = overlap.mT @ trained @ overlap
    run = dynamics.gradient_descent(
        start, law, eta=eta, threshold=_threshold(eps, K, threshold), gram=gram_U, record=record,
        max_steps=max_steps, device=device, engine=engine, on_failure=on_failure,
    )  # fmt: skip
    times = run.feature_steps.to(torch.float64)
    times = torch.where(times < 0, torch.nan, times)
    return FineTuning(
        trained.expand_as(start), overlap, start, run.scores, run.update, run.losses, times,
        run.steps.to(torch.float64), law, gram_V, gram_U, run.trajectory,
    )  # fmt: skip


def flow(
    trained: Tensor,
    overlap: Tensor,
    eps: float,
    *,
    law: PromptLaw | None = None,
    threshold: float | None = None,
    gram_V: Tensor | None = None,
    gram_U: Tensor | None = None,
    events: dict[str, Callable[[Tensor, Tensor], float]] | None = None,
    end: float = 1e12,
) -> FineTuning:
    """Fine-tune along the gradient flow, one instance: the limit of small steps, which has no overshoot.

    Parameters
    ----------
    trained, overlap : Tensor, shape (K, K)
        As in :func:`from_overlap`.
    eps, law, threshold, gram_V, gram_U
        As in :func:`from_overlap`.
    events : dict, optional
        As in :func:`icl_core.dynamics.gradient_flow`.
    end : float
        Give up at this time.

    Returns
    -------
    FineTuning
        Times are flow times (steps times eta); the trajectory is recorded at the integrator's own times.
    """
    K = overlap.shape[-1]
    law = balanced(K) if law is None else law
    start = overlap.mT @ trained @ overlap
    path, times = dynamics.gradient_flow(
        start, law, threshold=float(_threshold(eps, K, threshold)), gram=gram_U, events=events, end=end
    )
    final = path.scores[-1]
    update = final - start
    if gram_U is not None:
        inverse = torch.linalg.pinv(gram_U, hermitian=True)
        update = inverse @ update @ inverse
    when = torch.tensor([times.get(f"L_{k + 1}", times["all"]) for k in range(K)], dtype=torch.float64)
    return FineTuning(
        trained, overlap, start, final, update, path.losses[-1], when,
        torch.tensor(times["all"], dtype=torch.float64), law, gram_V, gram_U, path,
    )  # fmt: skip


def at_own_times(
    start: Tensor,
    eps: float,
    eta: float | Tensor,
    *,
    threshold: float | Tensor | None = None,
    max_steps: int = 10_000_000,
    on_failure: Literal["raise", "return"] = "raise",
) -> tuple[Tensor, Tensor]:
    """Scores of every query feature at the step where its own loss first meets the threshold (orthonormal U).

    With orthonormal features a query's column of scores moves by itself, so each column can be stopped alone.

    Parameters
    ----------
    start : Tensor, shape (..., K, K)
        Scores on U at T_1.
    eps : float
        Target of the total loss.
    eta : float or Tensor, shape (...)
        Step size.
    threshold : float or Tensor, shape (...), optional
        Bound on every loss; eps / K by default.
    max_steps, on_failure
        As in :func:`fine_tune`.

    Returns
    -------
    scores : Tensor, shape (..., K, K)
        Column k holds the scores of query k at its own t_k.
    times : Tensor, shape (..., K)
        Those steps.
    """
    K = start.shape[-1]
    eye = torch.eye(K, dtype=start.dtype)
    # The other queries are given attention 1 on themselves: their loss is 0 and they stop at once.
    alone = torch.where(eye.bool().unsqueeze(-2), start.unsqueeze(-3), 800.0 * eye)
    bound = _threshold(eps, K, threshold)
    rate, bound = (
        x.unsqueeze(-1).expand(start.shape[:-1]) if isinstance(x, Tensor) and x.ndim else x for x in (eta, bound)
    )
    run = dynamics.gradient_descent(
        alone, balanced(K), eta=rate, threshold=bound, max_steps=max_steps, on_failure=on_failure
    )
    columns = torch.diagonal(run.scores, dim1=-3, dim2=-1)
    return columns, run.steps


def least_dimension(gamma: Sequence[float] | Tensor) -> int:
    """Least d in which Assumption 5.4 can hold with these correlations: K plus the number of ``|gamma_k| < 1``.

    OOD paper, Assumption 5.4: ``u_k = gamma_k v_k + sqrt(1 - gamma_k^2) w_k`` with orthonormal ``w_k`` outside span(V).

    Raises
    ------
    ValueError
        If an entry is outside [-1, 1].
    """
    values = _validate.reals("gamma", gamma, least=-1.0, most=1.0)
    return len(values) + sum(abs(g) < 1 for g in values)


def _orthonormal(W: Tensor) -> bool:
    try:
        features.require_orthonormal("W", W)
    except ValueError:
        return False
    return True


def _training_rate(eta: float | Tensor, eta_train: float | None, start: Start | Tensor) -> float:
    if eta_train is not None:
        return eta_train
    if isinstance(eta, Tensor) and eta.ndim:
        if isinstance(start, str) and start == "trained":
            raise ValueError("eta_train must be given when eta differs between instances, got None")
        return 1.0
    return float(eta)


def _threshold(eps: float, K: int, threshold: float | Tensor | None) -> float | Tensor:
    return _validate.real("eps", eps, above=0.0) / K if threshold is None else threshold

"""Check procedures for the records of the fine-tuning phase: searched simulations, exact arithmetic, examples."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from icl_core import dynamics, features, fine_tuning, population
from icl_core.claims import _tools as tools
from icl_core.claims.record import Check, Evidence
from icl_core.prompts import balanced
from icl_core.theory import fine_tuning as theory
from icl_core.theory._statement import remember
from icl_core.theory.ood import alpha_star, eps_limit, symmetric_scores

# ---------------------------------------------------------------------------------------------------------------------
# Instances of the fine-tuning phase, drawn from a region and searched for a violation.


@dataclass(frozen=True)
class Region:
    """A set of instances: how many features, which shifts, which eps and which step sizes.

    Parameters
    ----------
    Ks : tuple of int
        Numbers of features.
    shift : str
        ``gamma`` for Assumption 5.4, ``any`` for every orthonormal U.
    condition : callable or None
        eps must exceed ``condition(K)``.
    eta : tuple of float
        Least and largest step size, as multiples of the limit of Theorem F.4.
    """

    Ks: tuple[int, ...]
    shift: str = "gamma"
    condition: Callable[[int], float] | None = None
    eta: tuple[float, float] = (0.2, 1.0)


# Smallest eps of simulated runs: quick, and thorough.
_EPS = {True: 1e-2, False: 1e-3}
# Range of eps of the few long runs of a thorough search.
_DEEP = (1e-7, 1e-5)
_LONGEST = 100_000_000


class Runs:
    """A batch of simulated fine-tuning phases.

    Attributes have shapes (B,) for instances, (T, B, ...) along the recorded trajectory.
    """

    def __init__(self, x: np.ndarray, K: int, region: Region, range_of_eps: tuple[float, float]) -> None:
        self.K = K
        self.M, tail = _shift(x, K, region.shift)
        low, high = (math.log(end) for end in range_of_eps)
        self.eps = torch.exp(low + (high - low) * tail[:, 0])
        self.alpha = _alphas(K, self.eps)
        A = self.alpha[:, None, None] * symmetric_scores(K, 1.0)
        self.start = self.M.mT @ A @ self.M
        low, high = (math.log(factor) for factor in region.eta)
        largest = self.start.masked_fill(~_off(K), -math.inf).amax((-2, -1))
        self.eta = torch.exp(-largest) * torch.exp(low + (high - low) * tail[:, 1])
        self.law = balanced(K)
        run = dynamics.gradient_descent(
            self.start, self.law, eta=self.eta, threshold=self.eps / K, record=5, max_steps=_LONGEST,
            on_failure="return",
        )  # fmt: skip
        assert run.trajectory is not None
        self.run, self.scores, self.losses = run, run.trajectory.scores, run.trajectory.losses

    @property
    def gamma(self) -> Tensor:
        """Correlations (B, K), under Assumption 5.4."""
        return torch.diagonal(self.M, dim1=-2, dim2=-1)

    @cached_property
    def descent(self) -> Tensor:
        """delta (T, B, K, K) along the trajectory."""
        return population.descent(self.scores, self.law)

    @cached_property
    def own(self) -> tuple[Tensor, Tensor]:
        """Scores with column k at its own t_k (B, K, K), and the t_k (B, K)."""
        return fine_tuning.at_own_times(
            self.start, 1.0, self.eta, threshold=self.eps / self.K, max_steps=_LONGEST, on_failure="return"
        )

    @cached_property
    def before(self) -> Tensor:
        """Scores with column k one step before its own t_k (B, K, K); where t_k = 0, those at T_1.

        The last step is undone by iterating ``s = s(t_k) - eta delta(s)``; nan where that does not settle on a state
        whose step leads to s(t_k).
        """
        final, times = self.own
        rate = self.eta[:, None, None]
        scores = final
        for _ in range(200):
            scores = final - rate * population.descent(scores, self.law)
        gap = (scores + rate * population.descent(scores, self.law) - final).abs().amax(-2)
        scores = torch.where((gap < 1e-11).unsqueeze(-2), scores, torch.nan)
        return torch.where((times == 0).unsqueeze(-2), self.start, scores)

    def describe(self, b: int) -> str:
        """Instance b in words."""
        shift = ", ".join(f"{g:.4g}" for g in self.gamma[b].tolist())
        return f"K = {self.K}, diagonal of V'U = ({shift}), eps = {self.eps[b]:.4g}, eta = {self.eta[b]:.4g}"


def _alphas(K: int, eps: Tensor) -> Tensor:
    """alpha* of eq. 16 for many eps."""
    top, root = math.sqrt(K / (2 * (K - 1))), torch.sqrt(eps)
    return (1 - 1 / K) * torch.log((K - 1) * (top - root) / root)


def _shift(x: np.ndarray, K: int, kind: str) -> tuple[Tensor, Tensor]:
    """Turn points of a unit box into overlaps V'U (B, K, K) and the coordinates left over (B, 2)."""
    unit = torch.from_numpy(x)
    if kind == "gamma":
        # Stretching the box past [-1, 1] gives the corners gamma = +-1 a share of every draw.
        gamma = (2.6 * unit[:, :K] - 1.3).clamp(-1, 1)
        return torch.diag_embed(torch.where(gamma.abs() < 0.03, 0.0, gamma)), unit[:, K:]
    # V'U can be any contraction once d >= 2K.
    M = (2 * unit[:, : K * K] - 1).reshape(-1, K, K)
    return M / torch.linalg.matrix_norm(M, 2)[:, None, None].clamp(min=1), unit[:, K * K :]


def _draw(K: int, kind: str, count: int, tail: int, draw: np.random.Generator) -> np.ndarray:
    """Points of the unit box for :func:`_shift`; half of the general overlaps have rank one, the hard ones."""
    size = K if kind == "gamma" else K * K
    x = draw.random((count, size + tail))
    if kind == "any":
        for row in x[: count // 2]:
            line, weight = draw.normal(size=K), draw.normal(size=K)
            line -= line.mean()
            block = np.outer(line / np.linalg.norm(line), weight / np.linalg.norm(weight))
            row[:size] = ((block + 1) / 2).ravel()
    return x


def _offspring(x: np.ndarray, values: np.ndarray, share: int, spread: float, draw: np.random.Generator) -> np.ndarray:
    """The next generation of an evolution strategy: copies of the worst points, moved at random."""
    keep = x[np.argsort(values)[: max(4, len(x) // share)]]
    moved = keep[draw.integers(len(keep), size=len(x))] + spread * draw.normal(size=x.shape)
    return np.asarray(np.clip(moved, 0, 1))


@remember
def _first(K: int, region: Region, fast: bool, count: int) -> tuple[np.ndarray, Runs]:
    """The first draw for a region; statements about the same region share it."""
    x = _draw(K, region.shift, count, 2, np.random.default_rng(1000 + K))
    return x, Runs(x, K, region, _range(K, region, fast))


@remember
def _deep(K: int, region: Region) -> Runs | None:
    """A few long runs at small eps, unless the region's condition excludes them."""
    least = max(_DEEP[0] if K == 2 else 10 * _DEEP[0], region.condition(K) * 1.0001 if region.condition else 0.0)
    if least >= _DEEP[1] or K > 4:
        return None
    x = _draw(K, region.shift, 4, 2, np.random.default_rng(2000 + K))
    # Step sizes near the upper end of the region keep these runs short.
    x[:, -1] = 1 - 0.1 * x[:, -1]
    return Runs(x, K, region, (least, _DEEP[1]))


def _range(K: int, region: Region, fast: bool) -> tuple[float, float]:
    """Range of eps that a search simulates; the paper's conditions are strict, so their ends are left out."""
    return max(_EPS[fast], region.condition(K) * 1.0001 if region.condition else 0.0), 0.97 * eps_limit(K)


def _hunt(
    margin: Callable[[Runs], Tensor], region: Region, fast: bool, *, tolerance: float, source: str = "rounding"
) -> Evidence:
    """Search a region for the smallest margin by a random draw and an evolution strategy from its worst instances.

    ``margin`` gives one number per instance; nan counts as a violation. The search stops at the first violation.
    """
    count, rounds = (24, 2) if fast else (60, 6)
    draw = np.random.default_rng(7)
    cases, worst, where = 0, math.inf, ""
    sizes = region.Ks[:3] if fast else region.Ks
    for K in sizes:
        x, runs = _first(K, replace(region, Ks=(K,)), fast, count)
        spread = 0.15
        for turn in range(rounds + 1):
            values = torch.nan_to_num(margin(runs), nan=-math.inf).numpy()
            cases += len(values)
            b = int(values.argmin())
            if values[b] < worst:
                worst, where = float(values[b]), runs.describe(b)
            if worst < -tolerance or turn == rounds:
                break
            x = _offspring(x, values, 6, spread, draw)
            runs = Runs(x, K, region, _range(K, region, fast))
            spread *= 0.6
        deep = None if fast or worst < -tolerance else _deep(K, replace(region, Ks=(K,)))
        if deep is not None:
            values = torch.nan_to_num(margin(deep), nan=-math.inf).numpy()
            cases, b = cases + len(values), int(values.argmin())
            if values[b] < worst:
                worst, where = float(values[b]), deep.describe(b)
        if worst < -tolerance:
            break
    text = (
        f"K in {sizes}, {'Assumption 5.4' if region.shift == 'gamma' else 'any orthonormal U'}, eps from "
        f"{_EPS[fast]:g}{' or the stated condition' if region.condition else ''} to 0.97 of its largest value, step "
        f"sizes {region.eta[0]:g} to {region.eta[1]:g} of the limit; random draw and evolution "
        f"strategy{'' if fast else f'; for K up to 4 long runs with eps from {_DEEP[0]:g}'}"
    )
    return Evidence(
        worst >= -tolerance, "adversarial", cases, text, margin=worst, tolerance=tolerance, tolerance_source=source,
        seed=7, detail=f"smallest margin {worst:.4g} at {where}",
    )  # fmt: skip


def _off(K: int) -> Tensor:
    return ~torch.eye(K, dtype=torch.bool)


def _least(x: Tensor, mask: Tensor) -> Tensor:
    """Smallest entry per instance (B,) of x (T, B, ...), where mask (broadcast) holds; infinity if nowhere."""
    kept = torch.where(mask, x, math.inf)
    return kept.movedim(1, 0).flatten(1).amin(1)


def _keys(x: Tensor) -> tuple[Tensor, Tensor]:
    """Entries (..., n, k) spread over pairs of keys (..., n, n', k): of the first key, and of the second."""
    K = x.shape[-1]
    return x.unsqueeze(-2).expand(*x.shape[:-1], K, K), x.unsqueeze(-3).expand(*x.shape[:-2], K, K, K)


def _ordered(start: Tensor) -> Tensor:
    """Pairs of keys (B, n, n', k), neither of them the query, with beta_n < beta_n' at T_1."""
    K = start.shape[-1]
    one, two = _keys(start)
    index = torch.arange(K)
    distinct = (index[:, None, None] != index) & (index[None, :, None] != index)
    return (two - one > 1e-6) & distinct


def _columns(K: int, gamma: tuple[float, ...], eps: float) -> Tensor:
    """Scores on U at T_1 under Assumption 5.4, from V'QV and V'U alone."""
    M = torch.diag(torch.tensor(gamma, dtype=torch.float64))
    return M.mT @ symmetric_scores(K, alpha_star(K, eps)) @ M


def _line(weights: tuple[float, ...], eps: float) -> tuple[Tensor, Tensor]:
    """Overlap of rank one, ``V'U = h w'`` with h a unit vector orthogonal to (1, ..., 1), and the scores at T_1."""
    K = len(weights)
    h = torch.zeros(K, dtype=torch.float64)
    h[0], h[1] = 0.5**0.5, -(0.5**0.5)
    M = torch.outer(h, torch.tensor(weights, dtype=torch.float64))
    return M, M.mT @ symmetric_scores(K, alpha_star(K, eps)) @ M


# ---------------------------------------------------------------------------------------------------------------------
# Exact arithmetic: random states, derivatives of the token-level loss along directions of R^d.


@dataclass(frozen=True)
class Exact:
    """A rational instance: sets V, U (d, K) and exponentials of the scores on U."""

    V: np.ndarray
    U: np.ndarray
    gamma: tuple[Fraction, ...]
    weights: np.ndarray

    def slope(self, left: np.ndarray, right: np.ndarray) -> Fraction:
        """``left' (gradient of the fine-tuning loss by Q) right``: exact derivative along ``Q + t left right'``."""
        K = self.U.shape[1]
        step = np.outer(self.U.T @ left, self.U.T @ right)
        moved = np.empty((K, K), dtype=object)
        for n, k in itertools.product(range(K), repeat=2):
            moved[n, k] = tools.Dual(self.weights[n, k], self.weights[n, k] * step[n, k])
        return sum(loss.slope for loss in tools.exact_losses(moved, [1] * K))


_LEGS = ((3, 4, 5), (-5, 12, 13), (8, 15, 17), (1, 0, 1), (-1, 0, 1), (0, 1, 1), (-20, 21, 29))


def _parallel(K: int, seed: int) -> Exact:
    """An instance of Assumption 5.4 in rational numbers, d = 2K."""
    frame = tools.rational_rotation(2 * K, seed)
    V, outside = frame[:, :K], frame[:, K:]
    legs = [_LEGS[(seed + 3 * k) % len(_LEGS)] for k in range(K)]
    gamma = tuple(Fraction(a, c) for a, _, c in legs)
    U = np.stack([V[:, k] * gamma[k] + outside[:, k] * Fraction(legs[k][1], legs[k][2]) for k in range(K)], axis=1)
    return Exact(V, U, gamma, tools.fractions((K, K), seed + 100))


def _unrelated(K: int, seed: int) -> Exact:
    """Two unrelated rational sets, d = K + 2."""
    V, U = (tools.rational_features(K + 2, K, seed + offset) for offset in (0, 50))
    return Exact(V, U, (), tools.fractions((K, K), seed + 100))


def _instances(make: Callable[[int, int], Exact], fast: bool) -> list[Exact]:
    return [make(K, seed) for K in (2, 3) + (() if fast else (4,)) for seed in range(2 if fast else 4)]


def _columns_balance(subject: Callable[[np.ndarray, int], Any], fast: bool) -> Evidence:
    """Sum steps eta_t delta^(t) at random states; ``subject(Lambda, k)`` must equal Delta_k."""
    gaps = []
    for K, seed in itertools.product((2, 3, 4) + (() if fast else (5, 6)), range(2)):
        moved = sum(
            (
                tools.exact_descent(tools.fractions((K, K), seed + 10 * t), [1] * K) * Fraction(t + 1, 7)
                for t in range(3)
            ),
            start=tools.fractions((K, K), 0) * 0,
        )
        gaps += [moved[k, k] - subject(-moved, k) for k in range(K)]
    return tools.exactly(
        gaps, "cumulative updates over 3 steps of different size at random rational states, K from 2", seed=0
    )


def others(K: int, k: int) -> list[int]:
    return [n for n in range(K) if n != k]


BALANCE = Check(
    "Delta against the sum of Lambda",
    _columns_balance,
    lambda Lam, k: sum(Lam[n, k] for n in others(len(Lam), k)),
    mutants={
        "indices of Lambda swapped": lambda Lam, k: sum(Lam[k, n] for n in others(len(Lam), k)),
        "sign flipped": lambda Lam, k: -sum(Lam[n, k] for n in others(len(Lam), k)),
        "one feature left out": lambda Lam, k: sum(Lam[n, k] for n in others(len(Lam), k)[1:]),
    },
)


def index_range(subject: Callable[[int], range], fast: bool) -> Evidence:
    """Compare the true updates of a run with sums of eta delta over a range of steps counted from T_1."""
    gaps = []
    for gamma, eta in (((0.8, -0.4), 0.7), ((0.9, 0.3, -0.6), 0.4)):
        K = len(gamma)
        scores = [_columns(K, gamma, 0.05)]
        for _ in range(6):
            scores.append(scores[-1] + eta * population.descent(scores[-1], balanced(K)))
        for t in (1, 2, 5):
            total = sum(eta * population.descent(scores[s], balanced(K)) for s in subject(t))
            gaps.append(float((scores[t] - scores[0] - total).abs().max()))
    return tools.agree(
        gaps, [0.0] * len(gaps), "two instances, K = 2 and 3, after 1, 2 and 5 steps", tolerance=1e-12,
        source="rounding of a few float64 steps",
    )  # fmt: skip


def index_example(_: object, fast: bool) -> Evidence:
    scores = _columns(2, (0.8, -0.4), 0.05)
    first = population.descent(scores, balanced(2))
    second = population.descent(scores + 0.7 * first, balanced(2))
    true, printed = 0.7 * float(first[0, 0]), 0.7 * float(second[0, 0])
    return tools.shows(
        abs(true - printed), 1e-6,
        f"K = 2, gamma = (0.8, -0.4), eps = 0.05, eta = 0.7, one step: Delta_1 = {true:.6f}, the sum over t' = 1 is "
        f"{printed:.6f}",
    )  # fmt: skip


# ---------------------------------------------------------------------------------------------------------------------
# Signs (Lemmas 5.3 and F.2).


def alpha_rises(subject: Callable[[Tensor], Tensor], fast: bool) -> Evidence:
    def margin(runs: Runs) -> Tensor:
        moved = runs.scores[1:] - runs.start
        return _least(subject(moved), torch.tensor(True))

    return _hunt(margin, Region((2, 3, 5), "any", eta=(0.2, 10.0)), fast, tolerance=-1e-12, source="strict")


@remember
def beta_falls(subject: Region, fast: bool) -> Evidence:
    """In every instance of the region every beta falls at every step: at T_1 down to the least eps, then on runs."""
    first = _hunt_start(_rates, subject, fast, tolerance=-1e-12, source="strict")
    if first.passed is not True:
        return first

    def margin(runs: Runs) -> Tensor:
        a = population.attention_weights(runs.scores)
        return _least(-runs.descent / a, _off(runs.K))

    ks = tuple(K for K in subject.Ks if K == 2 or subject.shift == "gamma" or K <= 5)
    found = tools.merge([first, _hunt(margin, replace(subject, Ks=ks), fast, tolerance=-1e-12, source="strict")])
    if subject.condition is theory.sign_condition:
        return replace(found, detail=f"{found.detail}; {_where_it_fails((3, 4, 5, 8), 1)}")
    return replace(found, detail=f"{found.detail}; {_line_failure()}")


def _hunt_start(
    margin: Callable[[Tensor], Tensor], region: Region, fast: bool, *, tolerance: float, source: str
) -> Evidence:
    """Search the scores at T_1 (B, K, K), which need no simulation, down to the region's least eps or 1e-60."""
    draw = np.random.default_rng(3)
    worst, where, cases = math.inf, "", 0
    for K in region.Ks:
        low = math.log(max(1e-60, region.condition(K) * 1.0001 if region.condition else 0.0))
        high = math.log(0.97 * eps_limit(K))
        count, rounds = (300, 8) if fast else (4000, 25)
        x = _draw(K, region.shift, count, 1, draw)
        spread = 0.2
        for _ in range(rounds):
            M, tail = _shift(x, K, region.shift)
            eps = torch.exp(low + (high - low) * tail[:, 0])
            start = M.mT @ (_alphas(K, eps)[:, None, None] * symmetric_scores(K, 1.0)) @ M
            values = margin(start).numpy()
            cases += count
            b = int(values.argmin())
            if values[b] < worst:
                worst = float(values[b])
                shift = ", ".join(f"{g:.3g}" for g in torch.diagonal(M[b]).tolist())
                where = f"K = {K}, eps = {eps[b]:.3g}, diagonal of V'U ({shift})"
            x = _offspring(x, values, 10, spread, draw)
            spread *= 0.8
            if worst < -tolerance:
                break
        if worst < -tolerance:
            break
    return Evidence(
        worst >= -tolerance, "adversarial", cases, f"scores at T_1, K in {region.Ks}, evolution strategy", margin=worst,
        tolerance=tolerance, tolerance_source=source, seed=3, detail=f"at T_1 smallest margin {worst:.4g}, {where}",
    )  # fmt: skip


def _shares(start: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Attention on the other keys (B, K, K; 0 on the diagonal), -D and Attn_k sum_n Attn_n (B, 1, K) per query.

    1 - Attn_k is summed from the others: a subtraction would lose it where they are tiny.
    """
    a = population.attention_weights(start)
    rest = a * _off(start.shape[-1])
    scale = (torch.diagonal(a, dim1=-2, dim2=-1) * rest.sum(-2)).unsqueeze(-2)
    return rest, scale - (rest**2).sum(-2, keepdim=True), scale


def _rates(start: Tensor) -> Tensor:
    """Least (Attn_n - D) / (Attn_k (1 - Attn_k)) per instance: the sign of -delta_n, of order one everywhere."""
    rest, minus_D, scale = _shares(start)
    return _least(((rest + minus_D) / scale).unsqueeze(0), _off(start.shape[-1]))


def _pair_rates(start: Tensor) -> Tensor:
    """Least (Attn_n + Attn_n' - D) / (Attn_k (1 - Attn_k)) over pairs of keys with beta_n < beta_n', per instance."""
    rest, minus_D, scale = _shares(start)
    one, two = _keys(rest)
    return _least(((one + two + minus_D.unsqueeze(-2)) / scale.unsqueeze(-2)).unsqueeze(0), _ordered(start))


@remember
def _first_failure(K: int, keys: int) -> tuple[float, float]:
    """alpha* and eps from which D exceeds the attention on ``keys`` features with gamma = 1 (1 or 2), by bisection.

    The query has any gamma_k, the other features gamma = 1 or -1.
    """
    own = np.linspace(0, 1, 1001)[1:, None]
    flipped = np.arange(1, K - keys)

    def fails(alpha: float) -> bool:
        x, Y = np.exp(own**2 * alpha), np.exp(own * alpha / (K - 1))
        total = flipped * Y + (K - 1 - flipped) / Y
        square = flipped * Y**2 + (K - 1 - flipped) / Y**2
        return bool((square - x * total > keys / Y * (x + total)).any())

    low, high = 0.5 * (K - 1) ** 2, 6.0 * (K - 1) ** 2
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if fails(middle) else (middle, high)
    ratio = math.exp(high * K / (K - 1))
    return high, (math.sqrt(K / (2 * (K - 1))) * (K - 1) / (ratio + K - 1)) ** 2


def _where_it_fails(Ks: tuple[int, ...], keys: int) -> str:
    found = [(K, *_first_failure(K, keys)) for K in Ks]
    return "without the condition it fails, among shifts with gamma = +-1 off the query, from " + ", ".join(
        f"eps = {eps:.2g} (alpha* = {alpha / (K - 1) ** 2:.2f} (K - 1)^2) for K = {K}" for K, alpha, eps in found
    )


@remember
def _line_failure() -> str:
    """Where the sign first fails for K = 3 among overlaps of rank one, ``V'U = h w'`` with a unit vector w."""
    one, two = np.meshgrid(np.linspace(0.02, 1.55, 120), np.linspace(-1.5, 0, 120))
    w = np.stack([np.cos(one) * np.cos(two), np.sin(one) * np.cos(two), np.sin(two)])

    def fails(scale: float) -> bool:
        x, y, z = np.exp(scale * w[0] * w)
        return bool((y * y - x * (y + z) > z * (x + y)).any())

    low, high = 1.0, 8.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if fails(middle) else (middle, high)
    ratio = math.exp(high)
    eps = (math.sqrt(3 / 4) * 2 / (ratio + 2)) ** 2
    return (
        f"the condition is eps >= {theory.sign_condition_any(3):.3f} for K = 3; overlaps of rank one break the sign "
        f"from eps = {eps:.4f} down, where Lemma F.2 allows eps > {theory.sign_condition(3):.4f}"
    )


_RANK_ONE = (0.48, 0.84, -0.25)
UNDER_F2 = Region((3, 4, 5, 8), "gamma", theory.sign_condition, eta=(0.2, 30.0))
GENERAL = Region((3, 4), "any", theory.sign_condition_any, eta=(0.2, 30.0))


def beta_rises_any(_: object, fast: bool) -> Evidence:
    _, start = _line(_RANK_ONE, 0.004)
    delta = float(population.descent(start, balanced(3))[2, 0])
    return tools.shows(
        delta, 1e-4,
        f"K = 3, eps = 0.004 (the condition asks for more than {theory.sign_condition(3):.5f}), V'U = h w' with w = "
        f"{_RANK_ONE}: at T_1 beta_(3,1) rises, delta = {delta:.5f}",
    )  # fmt: skip


def beta_rises_gamma(_: object, fast: bool) -> Evidence:
    gamma, eps = (0.33, -1.0, 1.0), 1e-9
    delta = float(population.descent(_columns(3, gamma, eps), balanced(3))[2, 0])
    return tools.shows(
        delta,
        1e-4,
        f"K = 3, gamma = {gamma}, eps = {eps:g}, under Assumption 5.4: at T_1 beta_(3,1) rises, delta = {delta:.6f}",
    )


def sinh(subject: Callable[[Any], Any], fast: bool) -> Evidence:
    """exp(p) - exp(-p) below ``subject(p)``."""
    part = tools.certify(lambda p: subject(p) - (p.exp() - (-p).exp()), [(0.0, 1.0)], "p in [0, 1]")
    p = np.linspace(0.5, 2, 100_001)
    room = float((p**2 / np.log(2 * np.sinh(p))).min())
    return replace(
        part, region="p in [0, 1] in ball arithmetic; for p >= 1 exp(p) <= exp(p^2), for p < 0 the left side is "
                     "negative",
        detail=f"{part.detail}; 2 sinh p < exp(p^2 / c) for all p up to c = {room:.4f}, which is how far the "
        "condition of Lemma F.2 is from sharp for large K",
    )  # fmt: skip


def eq23_first(subject: str, fast: bool) -> Evidence:
    """The first inequality of eq. 23, at T_1, with the exponentials of the scores."""

    def margin(runs: Runs) -> Tensor:
        K, y = runs.K, torch.exp(runs.start)
        least = torch.full((len(y),), math.inf, dtype=torch.float64)
        for k, n in itertools.permutations(range(K), 2):
            rest = [m for m in range(K) if m not in (k, n)]
            x, S, s2 = y[:, k, k], y[:, rest, k].sum(1), (y[:, rest, k] ** 2).sum(1)
            Y = torch.exp(runs.gamma[:, k].abs() * runs.alpha / (K - 1))
            right = (K - 2) * (Y**2 - (x + 1 / Y) * Y)
            if subject == "either end":
                right = torch.maximum(right, (K - 2) / Y * (1 / Y - x - 1 / Y))
            elif subject == "far end only":
                right = (K - 2) / Y * (1 / Y - x - 1 / Y)
            least = torch.minimum(least, (right - (s2 - (x + y[:, n, k]) * S)) / (x * S))
        return least

    strict = -1e-9 if subject == "printed" else 1e-9
    return _hunt(margin, Region((3, 4, 5)), fast, tolerance=strict)


def eq23_example(_: object, fast: bool) -> Evidence:
    a = alpha_star(3, 0.004)
    y, x, Y = math.exp(-a / 2), math.exp(a), math.exp(a / 2)
    left, right = y * y - (x + y) * y, Y * Y - (x + 1 / Y) * Y
    return tools.shows(
        left - right,
        0.1,
        f"K = 3, gamma = (1, 1, 1), eps = 0.004: left side {left:.3f}, claimed to be below {right:.3f}",
    )


def eq22(subject: Callable[..., Any], fast: bool) -> Evidence:
    """g_t from attention against its rewriting in exponentials, exact; and the sign of the dropped term."""
    gaps = []
    for K, seed in itertools.product((3, 4, 5), range(2 if fast else 6)):
        w = tools.fractions((K, K), seed)
        a = tools.exact_attention(w)
        for k, n in itertools.permutations(range(K), 2):
            rest = [m for m in range(K) if m not in (k, n)]
            g = sum(a[m, k] ** 2 for m in rest) - a[n, k] * (1 - a[n, k]) - a[k, k] * (1 - a[k, k])
            C = sum(w[:, k])
            gaps.append(g * C**2 - subject(w[k, k], w[n, k], [w[m, k] for m in rest]))
    return tools.exactly(gaps, "random rational scores, K = 3, 4, 5", seed=0)


def eq21(subject: Callable[..., Any], fast: bool) -> Evidence:
    """delta from exact differentiation of the token loss against Attn times the bracket of eq. 21."""
    gaps = []
    for K, seed in itertools.product((3, 4), range(2 if fast else 6)):
        w = tools.fractions((K, K), seed)
        a, delta = tools.exact_attention(w), tools.exact_descent(w, [1] * K)
        for k, n in itertools.permutations(range(K), 2):
            rest = [a[m, k] for m in range(K) if m not in (k, n)]
            gaps.append(delta[n, k] - a[n, k] * subject(a[k, k], a[n, k], rest) / K)
    return tools.exactly(gaps, "random rational scores, K = 3 and 4; truth by exact differentiation", seed=0)


def range_at_start(subject: Callable[[float, float, int], tuple[float, float]], fast: bool) -> Evidence:
    def margin(runs: Runs) -> Tensor:
        ends = [
            [subject(float(runs.gamma[b, k]), float(runs.alpha[b]), runs.K) for k in range(runs.K)]
            for b in range(len(runs.alpha))
        ]
        low, high = torch.tensor(ends, dtype=torch.float64).unbind(-1)
        inside = torch.minimum(runs.start - low.unsqueeze(-2), high.unsqueeze(-2) - runs.start)
        return _least(inside.unsqueeze(0), _off(runs.K))

    return _hunt(margin, Region((2, 3, 5)), fast, tolerance=1e-12)


def range_example(_: object, fast: bool) -> Evidence:
    a = alpha_star(3, 0.01)
    beta = float(_columns(3, (-0.8, 0.5, 0.5), 0.01)[1, 0])
    return tools.shows(
        beta + 0.8 * a / 2 + 0.8 * a, 0.1,
        f"K = 3, gamma = (-0.8, 0.5, 0.5), eps = 0.01: the interval for query 1 runs from {0.8 * a / 2:.3f} down to "
        f"{-0.8 * a / 2:.3f}, so it is empty; beta_(2,1) = {beta:.3f}",
    )  # fmt: skip


def eps_step(subject: tuple[Callable[[float, float, int], float], tuple[float, ...]], fast: bool) -> Evidence:
    """Log of the gap that eps beyond its condition is said to open, and alpha* < log(K / sqrt eps)."""
    gap, gammas = subject
    margins = []
    for K in range(3, 9):
        low = math.log(theory.sign_condition(K) * 1.0000001)
        for u, gamma in itertools.product(np.linspace(0, 1, 40), gammas):
            eps = math.exp(low + u * (math.log(0.999 * eps_limit(K)) - low))
            a = alpha_star(K, eps)
            margins.append(min(gap(gamma, a, K), math.log(K / math.sqrt(eps)) - a))
    return tools.at_least(
        margins, "K = 3..8, eps from the condition to its limit, gamma in [-1, 1]", tolerance=-1e-14, source="strict"
    )


def exponents(gamma: float, a: float, K: int, power: int = 2) -> float:
    return gamma**2 * a - gamma**2 * a**2 / (K - 1) ** power


def zero_example(_: object, fast: bool) -> Evidence:
    left = math.exp(0.0) - math.exp(0.0)
    return tools.shows(1.0 + left, 0.5, f"gamma_k = 0: the strict inequality reads {left:.0f} < 0")


def iterate(subject: str, fast: bool) -> Evidence:
    """What a step must preserve for the argument to repeat, checked after one step of any size from any such state."""
    draw = np.random.default_rng(11)
    count, worst, cases = (4000 if fast else 40000), math.inf, 0
    for K in (3, 4, 5, 8):
        x = 1 + draw.exponential(1.0, size=count)
        eta = 10 ** draw.uniform(-2, 3, size=count)
        low = np.exp(draw.uniform(-4, 1.5, size=count))
        gap = x * draw.random(count) ** 0.2 * (1 - 1e-9)
        y = low[:, None] + gap[:, None] * draw.beta(0.3, 0.3, size=(count, K - 1))
        keep = (y.max(1) - y.min(1) < x) & (y.max(1) <= 2 * x)
        x, y, eta = x[keep], y[keep], eta[keep]
        C = x + y.sum(1)
        a, own = y / C[:, None], x / C
        square = (a**2).sum(1)
        fall = eta[:, None] / K * a * (a - square[:, None] + (own * (1 - own))[:, None])
        x2, y2 = x * np.exp(fall.sum(1)), y * np.exp(-fall)
        if subject == "gap":
            margin = np.minimum(fall.min(1) / (eta * a.min(1)), 1 - (y2.max(1) - y2.min(1)) / x2)
        elif subject == "range":
            margin = y2.min(1) * y.max(1) - 1
        else:
            margin = 1 - 2 * (y2.max(1) - y2.min(1)) / x2
        cases += len(x)
        worst = min(worst, float(margin.min()))
    return Evidence(
        worst > 0, "swept", cases, "states with max y - min y < x, max y <= 2x, x >= 1; K = 3, 4, 5, 8; eta from 0.01 "
                                   "to 1000",
        margin=worst, tolerance=0.0, tolerance_source="strict", seed=11, detail=f"smallest margin {worst:.3g}",
    )  # fmt: skip


def iterate_example(_: object, fast: bool) -> Evidence:
    K, gamma = 3, (0.0, 0.5, 0.5)
    start = _columns(K, gamma, 0.05)
    after = start + 1.0 * population.descent(start, balanced(K))
    return tools.shows(
        -float(after[1, 0]), 1e-3,
        f"K = 3, gamma = {gamma}, eps = 0.05, eta = 1: at T_1 beta_(2,1) lies in [0, 0] as eq. 23 uses, one step "
        f"later it is {float(after[1, 0]):.4f}",
    )  # fmt: skip


def condition_for_two(subject: Callable[[float, float], bool], fast: bool) -> Evidence:
    """Whether the condition on eps of Lemma F.2 holds for K = 2, over the eps for which training happens at all."""
    limit = theory.sign_condition(2)
    answers = [subject(float(eps), limit) for eps in np.linspace(1e-6, eps_limit(2), 200)]
    return Evidence(
        all(answers), "exact", len(answers), "eps from 1e-6 to (K - 1)/(2K) = 1/4", margin=limit - eps_limit(2),
        detail=f"the condition asks for eps > {limit:.4f}, training for eps < {eps_limit(2):.4f}",
    )  # fmt: skip


def two_features(subject: Callable[[Any], Any], fast: bool) -> Evidence:
    """K = 2: delta_beta by exact differentiation, as a fraction of an expression that is positive term by term."""
    gaps = []
    for seed in range(6 if fast else 40):
        w = tools.fractions((2, 2), seed)
        a, delta = tools.exact_attention(w), tools.exact_descent(w, [1] * 2)
        gaps += [delta[1 - k, k] - subject(a[k, k]) for k in range(2)]
    return tools.exactly(gaps, "random rational scores, K = 2", seed=0)


# ---------------------------------------------------------------------------------------------------------------------
# Order of the beta (Lemma F.3) and the bounds of Theorem F.4.


@dataclass(frozen=True)
class StepRule:
    """Hypothesis of Lemma F.3: instances, and the multiple of the query's own limit that eta may reach."""

    region: Region
    multiple: float = 1.0


def order_kept(subject: StepRule, fast: bool) -> Evidence:
    """Ordered pairs of keys stay in order, for the queries whose own limit on the step size allows eta."""

    def margin(runs: Runs) -> Tensor:
        one, two = _keys(runs.scores)
        first, second = _keys(runs.start)
        beta = runs.start.masked_fill(~_off(runs.K), -math.inf).amax(-2)
        allowed = runs.eta[:, None] <= subject.multiple * torch.exp(-beta)
        return _least((two - one) / (second - first), _ordered(runs.start) & allowed[:, None, None, :])

    return _hunt(margin, subject.region, fast, tolerance=-1e-9, source="strict")


def delta_order(subject: Region, fast: bool) -> Evidence:
    """delta_n >= delta_n' wherever beta_n < beta_n': at T_1 down to the least eps, then along runs."""
    first = _hunt_start(_pair_rates, subject, fast, tolerance=1e-12, source="rounding")
    if not first.passed:
        return first

    def margin(runs: Runs) -> Tensor:
        one, two = _keys(runs.descent)
        return _least(one - two, _ordered(runs.start))

    found = tools.merge([first, _hunt(margin, subject, fast, tolerance=1e-12)])
    return replace(found, detail=f"{found.detail}; {_where_it_fails((4, 5), 2)}")


_DELTA_LINE = (0.5, 0.83, -0.1, -0.2)


def delta_example(_: object, fast: bool) -> Evidence:
    _, start = _line(_DELTA_LINE, 3e-4)
    delta = population.descent(start, balanced(4))
    # Rows 2 and 3 (from 0) are the third and fourth feature.
    low, high = (3, 2) if start[3, 0] < start[2, 0] else (2, 3)
    gap = float(delta[high, 0] - delta[low, 0])
    return tools.shows(
        gap, 1e-5,
        f"K = 4, eps = 3e-4, V'U = h w' with w = {_DELTA_LINE}, query 1, t = 0: beta_{low + 1} = "
        f"{float(start[low, 0]):.4f} < beta_{high + 1} = {float(start[high, 0]):.4f}, yet delta_{low + 1} = "
        f"{float(delta[low, 0]):.6f} < delta_{high + 1} = {float(delta[high, 0]):.6f}",
    )  # fmt: skip


def delta_sign_step(subject: Callable[[Any], Any], fast: bool) -> Evidence:
    """Sign of delta_n - delta_n' where beta_n < beta_n', K = 3, exact: ``subject`` of it must be positive."""
    values = []
    for seed in range(20 if fast else 200):
        w = tools.fractions((3, 3), seed)
        delta = tools.exact_descent(w, [1] * 3)
        for k in range(3):
            n, m = sorted(others(3, k), key=lambda row: w[row, k])
            if w[n, k] < w[m, k]:
                values.append(subject(delta[n, k] - delta[m, k]))
    return Evidence(
        min(values) > 0, "exact", len(values), "random rational scores, K = 3, where D - Attn_n - Attn_n' < 0 always",
        margin=float(min(values)), tolerance=0.0, tolerance_source="rational arithmetic", dtype="rational", seed=0,
    )  # fmt: skip


def delta_sign_example(_: object, fast: bool) -> Evidence:
    w = np.array([[Fraction(4), 1, 1], [Fraction(1), 1, 1], [Fraction(2), 1, 1]], dtype=object)
    delta = tools.exact_descent(w, [1] * 3)
    gap = delta[1, 0] - delta[2, 0]
    return tools.shows(
        float(gap), 0.0, f"K = 3, exp(scores) of query 1 = (4, 1, 2): delta_2 - delta_3 = {gap} > 0 although beta_2 < "
                         "beta_3",
        strength="exact",
    )  # fmt: skip


def eq24(subject: Callable[..., list[Any]], fast: bool) -> Evidence:
    """Prove inequalities between deltas, attention and exp(beta) for a pair beta_n < beta_n', symbolically.

    ``subject(gap, a, a', y, y', K)`` lists expressions said to be nonnegative; ``gap = delta_n - delta_n'`` comes from
    differentiating the loss. With ``y' = y + h`` and ``x = exp(alpha) = 1 + z`` each must be a quotient of polynomials
    with nonnegative coefficients in positive z, h and y; what is not is tried at random points for a violation.
    """
    import sympy

    cases, undecided = 0, ""
    for K in (3,) if fast else (3, 4, 5):
        x, z, h = sympy.symbols("x z h", positive=True)
        y = sympy.symbols(f"y1:{K}", positive=True)
        C = x + sum(y)
        loss = (sum(v**2 for v in y) + sum(y) ** 2) / (2 * K * C**2)
        gap = -y[0] * sympy.diff(loss, y[0]) + y[1] * sympy.diff(loss, y[1])
        for expression in subject(gap, y[0] / C, y[1] / C, y[0], y[1], K):
            cases += 1
            quotient = sympy.together(expression.subs({y[1]: y[0] + h, x: 1 + z}))
            parts = [sympy.Poly(sympy.expand(part), z, h, y[0], *y[2:]) for part in sympy.fraction(quotient)]
            if all(c >= 0 for part in parts for c in part.coeffs()):
                continue
            value = sympy.lambdify((z, h, y[0], *y[2:]), quotient)
            draw = np.random.default_rng(K)
            least = min(float(value(*np.exp(draw.normal(0, 2, size=K)))) for _ in range(300))
            if least < -1e-9:
                return Evidence(
                    False, "swept", cases, f"K = {K}, random states", margin=least, tolerance=1e-9,
                    tolerance_source="rounding", seed=K, detail=f"violated by {-least:.3g}",
                )  # fmt: skip
            undecided = f"K = {K}: a coefficient is negative, no violation found"
    sizes = "3" if fast else "3, 4, 5"
    return Evidence(
        None if undecided else True, "exact", cases, f"every state with alpha >= 0 and beta_n < beta_n', K = {sizes}",
        margin=0.0, tolerance=0.0, tolerance_source="all coefficients nonnegative", dtype="symbolic", detail=undecided,
    )  # fmt: skip


_CLOSE = ((0.48, 0.8, -0.25, -0.2501), 5e-4)


def _closing() -> tuple[float, float, int]:
    """beta_(3,1) at T_1, the largest xi of the pair (4, 3) of query 1 along 40 steps at the limit, and its step."""
    _, scores = _line(*_CLOSE)
    start = float(scores[2, 0])
    eta = float(theory.step_limit(scores))
    best, when = -math.inf, 0
    for t in range(40):
        low, gap = float(scores[3, 0]), float(scores[2, 0] - scores[3, 0])
        xi = low + math.log(math.expm1(gap) / gap)
        best, when = (xi, t) if xi > best else (best, when)
        scores = scores + eta * population.descent(scores, balanced(4))
    return start, best, when


def contraction(subject: Region, fast: bool) -> Evidence:
    """exp(xi) of the mean value theorem below exp(beta_n') at T_1, all along; the region's instances and an example."""
    if subject.condition is None:
        start, xi, _ = _closing()
        if xi > start:
            return Evidence(
                False, "adversarial", 1, f"K = 4, V'U = h w' with w = {_CLOSE[0]}", margin=start - xi, tolerance=1e-9,
                tolerance_source="rounding", detail=f"violated by {xi - start:.3g}",
            )  # fmt: skip

    def margin(runs: Runs) -> Tensor:
        one, two = _keys(runs.scores)
        gap = (two - one).clamp(min=1e-300)
        xi = one + torch.log(torch.expm1(gap) / gap)
        return _least(_keys(runs.start)[1] - xi, _ordered(runs.start))

    return _hunt(margin, subject, fast, tolerance=1e-9)


def contraction_example(_: object, fast: bool) -> Evidence:
    start, xi, when = _closing()
    return tools.shows(
        xi - start, 1e-4,
        f"K = 4, eps = {_CLOSE[1]:g}, V'U = h w' with w = {_CLOSE[0]}, query 1, eta at the limit: beta_(3,1) = "
        f"{start:.5f} at T_1, after {when} steps xi = {xi:.5f} for the pair (4, 3), so exp(xi) is the larger and (iii) "
        "fails",
    )  # fmt: skip


def start_alpha(subject: float, fast: bool) -> Evidence:
    """Every beta falls at T_1 for alpha-type weights on V up to ``subject`` (K - 1)^2.

    C^2 (Attn_n - D) is concave in the exponentials of the other betas and grows with that of n, so the correlations
    off the query may be taken to be 1 or -1, that of n of the query's sign. It grows with ``x = exp(gamma_k^2 alpha)``,
    at given ``p = |gamma_k| alpha / (K - 1)`` at least ``exp(p^2 / subject)``: one variable is left.
    """
    parts = []
    for K in (3, 4, 5, 8):
        for flipped in range(K - 1):

            def slack(p: Any, f: int = flipped, rest: int = K - 1 - flipped) -> Any:
                up, x = p.exp(), (p * p / subject).exp()
                total, square = f * up + rest / up, f * up**2 + rest / up**2
                return ((x + total) / up + x * total - square) / (x * up)

            parts.append(tools.certify(slack, [(0.0, subject * (K - 1))], f"K = {K}"))
            if parts[-1].passed is not True:
                return parts[-1]
    return replace(
        tools.merge(parts, "K = 3, 4, 5, 8; every gamma_k, the other correlations 1 and -1 in any number"),
        detail=f"proved on {sum(part.cases for part in parts)} boxes",
    )


def _largest_beta(runs: Runs) -> tuple[Tensor, Tensor]:
    """Rows N(m) and M(m) (B, K): the least and the largest gamma_m gamma_n."""
    product = runs.gamma.unsqueeze(-1) * runs.gamma.unsqueeze(-2)
    eye = ~_off(runs.K)
    return product.masked_fill(eye, math.inf).argmin(-2), product.masked_fill(eye, -math.inf).argmax(-2)


def _row(x: Tensor, rows: Tensor) -> Tensor:
    """Entry (rows[b, k], k) of x (T, B, K, K): shape (T, B, K)."""
    index = rows.unsqueeze(0).unsqueeze(-2).expand(x.shape[0], *rows.shape[:-1], 1, rows.shape[-1])
    return torch.gather(x, -2, index).squeeze(-2)


def eq26(subject: Callable[[Tensor, Tensor, Tensor, int], Tensor], fast: bool) -> Evidence:
    def margin(runs: Runs) -> Tensor:
        N, M = _largest_beta(runs)
        fall = runs.start - runs.scores
        rise = -torch.diagonal(fall, dim1=-2, dim2=-1)
        return _least(subject(_row(fall, N), _row(fall, M), rise, runs.K), torch.tensor(True))

    return _hunt(margin, Region((2, 3, 5)), fast, tolerance=1e-9, source="rounding over thousands of steps")


def _all_equal_loss(x: Tensor, y: Tensor, K: int) -> Tensor:
    return ((K - 1) ** 2 + K - 1) * y**2 / (2 * K * (x + (K - 1) * y) ** 2)


def eq27(subject: tuple[int, ...], fast: bool) -> Evidence:
    """L <= loss with every beta at that of N <= the same with its update replaced by Delta / (K - 1), at t_m.

    ``subject`` is (sign of the inequalities, which of N and M).
    """
    sign, who = subject

    def margin(runs: Runs) -> Tensor:
        K, columns = runs.K, runs.own[0]
        row = _largest_beta(runs)[who]
        x = torch.exp(torch.diagonal(columns, dim1=-2, dim2=-1))
        rise = torch.diagonal(columns - runs.start, dim1=-2, dim2=-1)
        now = torch.exp(_row(columns.unsqueeze(0), row)[0])
        mean = torch.exp(_row(runs.start.unsqueeze(0), row)[0] - rise / (K - 1))
        loss = population.losses(columns, runs.law)
        first, second = _all_equal_loss(x, now, K), _all_equal_loss(x, mean, K)
        return torch.minimum(sign * (first - loss), sign * (second - first)).amin(-1)

    return _hunt(margin, Region((2, 3, 5)), fast, tolerance=1e-10)


@dataclass(frozen=True)
class Bound:
    """A bound on Delta: a function of (gamma, eps), the step at which it is claimed, and its direction."""

    of: Callable[[Tensor, float], Tensor]
    upper: bool
    when: str = "at"


def delta_bound(subject: Bound, fast: bool) -> Evidence:
    def margin(runs: Runs) -> Tensor:
        columns = runs.own[0] if subject.when == "at" else runs.before
        rise = torch.diagonal(columns - runs.start, dim1=-2, dim2=-1)
        bound = torch.stack([subject.of(g, float(e)) for g, e in zip(runs.gamma, runs.eps, strict=True)])
        gap = bound - rise if subject.upper else rise - bound
        return gap.amin(-1)

    return _hunt(margin, Region((2, 3, 5)), fast, tolerance=1e-9)


def _delta_values(gamma: tuple[float, ...], eps: float) -> float:
    """Delta_1 at t_1 along small steps (eta = 0.01)."""
    start = _columns(len(gamma), gamma, eps)
    columns, _ = fine_tuning.at_own_times(start, eps, 0.01)
    return float((columns - start)[0, 0])


def eq28_example(_: object, fast: bool) -> Evidence:
    g, eps = (0.9, 0.9), 0.2
    rise = _delta_values(g, eps)
    bound = float(theory.delta_upper_printed(torch.tensor(g, dtype=torch.float64), eps)[0])
    return tools.shows(
        rise - bound, 0.05, f"K = 2, gamma = {g}, eps = {eps}: Delta_1 = {rise:.4f}, printed upper bound {bound:.4f}"
    )


def eq29_example(_: object, fast: bool) -> Evidence:
    g, eps = (0.95, 0.95), 1e-3
    rise = _delta_values(g, eps)
    bound = float(theory.delta_lower_printed(torch.tensor(g, dtype=torch.float64), eps)[0])
    return tools.shows(
        bound - rise, 0.05, f"K = 2, gamma = {g}, eps = {eps}: Delta_1 = {rise:.4f}, printed lower bound {bound:.4f}"
    )


def upper(gamma: Tensor, eps: float) -> Tensor:
    return theory.delta_bounds(gamma, eps).upper


def lower(gamma: Tensor, eps: float) -> Tensor:
    return theory.delta_bounds(gamma, eps).lower


def lambda_bound(subject: Callable[[Tensor, Tensor, Tensor], Tensor], fast: bool, side: int) -> Evidence:
    """Lambda of every n against ``subject(gamma, alpha, Delta)`` at each t_m and all along the run."""

    def margin(runs: Runs) -> Tensor:
        fall = runs.start - torch.cat([runs.scores, runs.own[0].unsqueeze(0)])
        rise = -torch.diagonal(fall, dim1=-2, dim2=-1)
        bound = torch.stack(
            [subject(g, a, rise[:, b]) for b, (g, a) in enumerate(zip(runs.gamma, runs.alpha, strict=True))], dim=1
        )
        return _least(side * (bound.unsqueeze(-2) - fall), _off(runs.K))

    return _hunt(margin, Region((2, 3, 5)), fast, tolerance=1e-9, source="rounding over thousands of steps")


def spread(gamma: Tensor, alpha: Tensor, rise: Tensor, *, width: float, share: float) -> Tensor:
    K = gamma.shape[-1]
    least, largest = theory.partners(gamma)
    return share * rise / (K - 1) + width * (largest - least) * alpha / (K - 1)


def printed_lambda(side: str) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    return lambda gamma, alpha, rise: getattr(theory.lambda_bounds(gamma, float(alpha), rise), side)


def chain_lambda(subject: Region, fast: bool) -> Evidence:
    """Lambda_M <= Lambda_n <= Lambda_N for every n, at T_1 for the first step and along runs."""

    def margin(runs: Runs) -> Tensor:
        N, M = _largest_beta(runs)
        fall = runs.start - runs.scores
        low, high = _row(fall, M).unsqueeze(-2), _row(fall, N).unsqueeze(-2)
        return torch.minimum(_least(fall - low, _off(runs.K)), _least(high - fall, _off(runs.K)))

    found = _hunt(margin, subject, fast, tolerance=1e-9, source="rounding over thousands of steps")
    if subject.condition is None:
        first = _chain_first_step()
        if first < 0:
            return replace(
                found, passed=False, margin=first, detail=f"at T_1 of the example below eps 1e-19: {first:.4g}"
            )
    return found


_CHAIN = ((0.25, -1.0, 1.0, 0.8), 1e-26)


def _chain_first_step() -> float:
    gamma, eps = _CHAIN
    delta = population.descent(_columns(4, gamma, eps), balanced(4))
    return float(delta[2, 0] - delta[3, 0])


def chain_example(_: object, fast: bool) -> Evidence:
    gamma, eps = _CHAIN
    start = _columns(4, gamma, eps)
    delta = population.descent(start, balanced(4))
    return tools.shows(
        -_chain_first_step(), 1e-6,
        f"K = 4, gamma = {gamma}, eps = {eps:g}, query 1, first step with eta = 1: M = 3 (the largest product) has "
        f"Lambda = {-float(delta[2, 0]):.3e}, n = 4 has {-float(delta[3, 0]):.3e}, which is less",
    )  # fmt: skip


def chain_beta(subject: int, fast: bool) -> Evidence:
    """sign * (beta_N - beta_n) >= 0 and sign * (beta_n - beta_M) >= 0 all along; +1 is beta_M <= beta_n <= beta_N."""

    def margin(runs: Runs) -> Tensor:
        N, M = _largest_beta(runs)
        low, high = _row(runs.scores, M).unsqueeze(-2), _row(runs.scores, N).unsqueeze(-2)
        off = _off(runs.K)
        return torch.minimum(_least(subject * (high - runs.scores), off), _least(subject * (runs.scores - low), off))

    return _hunt(margin, Region((3, 5)), fast, tolerance=1e-9, source="rounding over thousands of steps")


def chain_beta_example(_: object, fast: bool) -> Evidence:
    start = _columns(3, (0.5, -1.0, 1.0), 0.01)
    return tools.shows(
        float(start[1, 0] - start[2, 0]), 0.1,
        f"K = 3, gamma = (0.5, -1, 1), eps = 0.01, query 1, t = 0: M = 3 and N = 2; beta_M = {float(start[2, 0]):.3f} "
        f"< beta_N = {float(start[1, 0]):.3f}",
    )  # fmt: skip


def shifted(subject: Callable[[Tensor, Tensor, Tensor], Tensor], fast: bool) -> Evidence:
    """The chain with beta(T_1) - Lambda inserted; ``subject(before, now, Lambda)`` is what stands for beta."""

    def margin(runs: Runs) -> Tensor:
        N, M = _largest_beta(runs)
        fall = runs.start - runs.scores
        value = subject(runs.start.expand_as(fall), runs.scores, fall)
        low, high = _row(runs.start - fall, M).unsqueeze(-2), _row(runs.start - fall, N).unsqueeze(-2)
        off = _off(runs.K)
        return torch.minimum(_least(high - value, off), _least(value - low, off))

    return _hunt(margin, Region((3, 5)), fast, tolerance=1e-9, source="rounding over thousands of steps")


def shifted_example(_: object, fast: bool) -> Evidence:
    g = (0.5, -1.0, 1.0)
    r = fine_tuning.fine_tune_gamma(g, 0.01, 0.1)
    wrong = float(r.scores[2, 0] - (r.start - r.scores)[2, 0])
    right = float(r.scores[2, 0])
    return tools.shows(
        right - wrong, 0.1,
        f"K = 3, gamma = {g}, eps = 0.01, at T_2: beta_(3,1) = {right:.3f}, while beta_(3,1) at T_1 + t less Lambda "
        f"is {wrong:.3f}: the update is subtracted twice",
    )  # fmt: skip


# ---------------------------------------------------------------------------------------------------------------------
# Times, orders, step size (Theorems 5.5 and F.4).


def times(subject: Callable[[Runs, Tensor], Tensor], fast: bool) -> Evidence:
    """Every t_m exists and is at most ``subject(runs, bound)`` (B, K), made from the bound of the theory module."""

    def margin(runs: Runs) -> Tensor:
        reached = runs.own[1]
        bound = torch.stack(
            [theory.time_bound(s, float(e), float(h)) for s, e, h in zip(runs.start, runs.eps, runs.eta, strict=True)]
        )
        slack = subject(runs, bound) / reached.clamp(min=1)
        return torch.where(runs.run.converged, slack.amin(-1), -1.0) - 1

    found = _hunt(margin, Region((2, 3, 5), eta=(0.2, 1000.0)), fast, tolerance=1e-9)
    slopes = _slopes(fast)
    return replace(found, detail=f"{found.detail}; {slopes}")


@remember
def _slopes(fast: bool) -> str:
    """Measured exponents of T_2 in 1/eps and 1/eta over the last decade, for two shifts."""
    grid = [10**-e for e in ((2, 3, 4) if fast else (2, 3, 4, 5))]
    words = []
    for gamma in ((0.5, -0.5), (0.9, 0.2, -0.4)):
        ends = [float(fine_tuning.fine_tune_gamma(gamma, eps, 0.5).end) for eps in grid]
        slopes = np.diff(np.log10(ends))
        slow = float(fine_tuning.fine_tune_gamma(gamma, 1e-3, 0.05).end)
        words.append(
            f"gamma = {gamma}: exponent of 1/eps per decade {', '.join(f'{v:.3f}' for v in slopes)}, of 1/eta "
            f"{math.log10(slow / ends[1]):.3f}"
        )
    return "; ".join(words)


def all_met(subject: Callable[[Runs], Tensor], fast: bool) -> Evidence:
    """At T_2 every loss is at most eps / K, and no loss comes back above it before; ``subject`` gives that level."""

    def margin(runs: Runs) -> Tensor:
        level = subject(runs)[:, None]
        met = torch.where(runs.run.converged, 1.0, -1.0)
        over = (level - runs.losses[-1]) / level
        again = torch.where(runs.losses[:-1] <= level, (level - runs.losses[1:]) / level, math.inf)
        return torch.minimum(met, torch.minimum(over.amin(-1), again.amin((0, -1))))

    return _hunt(margin, Region((2, 3, 5), eta=(0.2, 1000.0)), fast, tolerance=1e-12)


def sorted_times(subject: Callable[[Tensor, Tensor], Tensor], fast: bool) -> Evidence:
    """``subject(times, losses at own times / threshold)`` is a margin per instance."""

    def margin(runs: Runs) -> Tensor:
        columns, times = runs.own
        ratio = population.losses(columns, runs.law) / (runs.eps / runs.K)[:, None]
        # A feature alone and the same feature among the others must stop at the same step.
        same = -(times - runs.run.feature_steps).abs().amax(-1).to(torch.float64)
        return torch.minimum(same, subject(times.to(torch.float64), ratio))

    return _hunt(margin, Region((2, 3, 5)), fast, tolerance=1e-12)


def rate(subject: Callable[[Runs], Tensor], fast: bool) -> Evidence:
    """delta_alpha before and at t_m against ``subject`` (B, K)."""

    def margin(runs: Runs) -> Tensor:
        least = subject(runs)
        rate = torch.diagonal(runs.descent, dim1=-2, dim2=-1) / least
        before = torch.where(runs.losses > (runs.eps / runs.K)[:, None], rate, math.inf).amin((0, -1))
        stop = torch.diagonal(population.descent(runs.own[0], runs.law), dim1=-2, dim2=-1) / least
        return torch.minimum(before, stop.amin(-1)) - 1

    return _hunt(margin, Region((2, 3, 5)), fast, tolerance=1e-9)


def first_attention(runs: Runs) -> Tensor:
    return torch.diagonal(population.attention_weights(runs.start), dim1=-2, dim2=-1)


def monotone(subject: int, fast: bool) -> Evidence:
    """subject * (change of Attn on the query) per step stays >= 0, whatever the step size."""

    def margin(runs: Runs) -> Tensor:
        own = torch.diagonal(population.attention_weights(runs.scores), dim1=-2, dim2=-1)
        return (subject * (own[1:] - own[:-1])).amin((0, -1))

    return _hunt(margin, Region((2, 3, 5), eta=(0.2, 10.0)), fast, tolerance=1e-12)


def enough(subject: Callable[[Tensor, float], Tensor], fast: bool) -> Evidence:
    """Where Delta exceeds ``subject(gamma, eps)`` the loss is at most eps / K."""

    def margin(runs: Runs) -> Tensor:
        bound = torch.stack([subject(g, float(e)) for g, e in zip(runs.gamma, runs.eps, strict=True)])
        scores = torch.cat([runs.scores, runs.own[0].unsqueeze(0), runs.before.unsqueeze(0)])
        rise = torch.diagonal(scores - runs.start, dim1=-2, dim2=-1)
        level = (runs.eps / runs.K)[:, None]
        slack = (level - population.losses(scores, runs.law)) / level
        return torch.where(rise > bound, slack, math.inf).amin((0, -1))

    return _hunt(margin, Region((2, 3, 5)), fast, tolerance=1e-9)


def enough_example(_: object, fast: bool) -> Evidence:
    g, eps = (0.9, 0.9), 0.2
    bound = float(theory.delta_upper_printed(torch.tensor(g, dtype=torch.float64), eps)[0])
    loss = float(population.losses(_columns(2, g, eps), balanced(2))[0])
    return tools.shows(
        loss / (eps / 2) - 1, 1e-3,
        f"K = 2, gamma = {g}, eps = {eps}: at T_1 Delta = 0 exceeds the printed bound {bound:.4f}, yet the loss is "
        f"{loss:.4f} > eps/K = {eps / 2}",
    )  # fmt: skip


@dataclass(frozen=True)
class Scale:
    """What Delta or Lambda is said to be of the order of, at the two ends of the free constant."""

    ends: Callable[[Runs], tuple[Tensor, Tensor]]
    factors: tuple[float, float]


def delta_scale(subject: Scale, fast: bool) -> Evidence:
    """Delta between fixed multiples of the scale at some value of its free constant.

    The scale is monotone in that constant, so that is: above the smaller multiple of its lower end at t_m, and below
    the larger multiple of its upper end one step before.
    """

    def margin(runs: Runs) -> Tensor:
        one, two = subject.ends(runs)
        low, high = torch.minimum(one, two), torch.maximum(one, two)
        at = torch.diagonal(runs.own[0] - runs.start, dim1=-2, dim2=-1)
        before = torch.diagonal(runs.before - runs.start, dim1=-2, dim2=-1)
        gap = torch.minimum(at - subject.factors[0] * low, subject.factors[1] * high - before).amin(-1)
        return torch.where(runs.eps <= 0.05, gap, math.inf)

    return _hunt(margin, Region((2, 3, 5)), fast, tolerance=1e-9)


def _logarithm(runs: Runs) -> Tensor:
    return torch.log(runs.K / torch.sqrt(runs.eps))[:, None]


def delta_ends(runs: Runs, own: float = 1.0, sign: float = 1.0, printed: bool = False) -> tuple[Tensor, Tensor]:
    """Scale of Delta with gamma_alpha at gamma_min and at gamma_max; ``own`` is the factor of gamma^2 / K added."""
    g, K = runs.gamma, runs.K
    ends = (g.amin(-1, keepdim=True), g.amax(-1, keepdim=True))
    if printed:
        rows = [
            torch.tensor(
                [
                    [theory.delta_scale_printed(float(x), float(end[b]), K, float(runs.eps[b])) for x in g[b]]
                    for b in range(len(g))
                ],
                dtype=torch.float64,
            )
            for end in ends
        ]
        return rows[0], rows[1]
    low, high = ((1 - g**2 + own * g**2 / K - sign * g * end / K) * _logarithm(runs) for end in ends)
    return low, high


def delta_scale_example(_: object, fast: bool) -> Evidence:
    g, eps = (0.9, 0.9), 1e-3
    scale = theory.delta_scale_printed(0.9, 0.9, 2, eps)
    rise = _delta_values(g, eps)
    return tools.shows(
        min(rise, -scale), 0.05,
        f"K = 2, gamma = {g}, so gamma_alpha = 0.9: 1 - gamma^2 - gamma gamma_alpha / 2 = {1 - 0.81 - 0.405:.3f} < 0 "
        f"for every eps, while Delta > 0; at eps = {eps:g} the scale is {scale:.3f} and Delta = {rise:.3f}",
    )  # fmt: skip


def lambda_scale(subject: Callable[[Runs, Tensor], tuple[Tensor, Tensor, float, float]], fast: bool) -> Evidence:
    """Lambda at t_m between multiples of its scale; ``subject(runs, Delta)`` gives its two ends (B, K) and factors."""

    def margin(runs: Runs) -> Tensor:
        fall = runs.start - runs.own[0]
        one, two, least, most = subject(runs, -torch.diagonal(fall, dim1=-2, dim2=-1))
        low, high = torch.minimum(one, two).unsqueeze(-2), torch.maximum(one, two).unsqueeze(-2)
        off = _off(runs.K)
        gap = torch.minimum(
            _least((fall - least * low).unsqueeze(0), off), _least((most * high - fall).unsqueeze(0), off)
        )
        return torch.where(runs.eps <= 0.05, gap, math.inf)

    return _hunt(margin, Region((2, 3, 5)), fast, tolerance=1e-9)


def lambda_ends_printed(runs: Runs, rise: Tensor) -> tuple[Tensor, Tensor, float, float]:
    """The printed scale with gamma_beta at gamma_min and gamma_max; factors so far apart that any Theta would fit."""
    g = runs.gamma
    low, high = (rise / runs.K + g * end / runs.K * _logarithm(runs) for end in (g.amin(-1, True), g.amax(-1, True)))
    return low, high, 1e-3, 1e3


def lambda_ends(
    runs: Runs, rise: Tensor, width: float = 1.0, delta: float = 1.0
) -> tuple[Tensor, Tensor, float, float]:
    """The corrected scale: gamma_beta runs over differences of correlations."""
    g, K = runs.gamma, runs.K
    spread = width * g.abs() * (g.amax(-1, True) - g.amin(-1, True)) * runs.alpha[:, None]
    return (delta * rise - spread) / (K - 1), (delta * rise + spread) / (K - 1), 1.0, 1.0


def lambda_scale_example(_: object, fast: bool) -> Evidence:
    eps = 1e-3
    run = fine_tuning.fine_tune_gamma((1.0, 1.0), eps, 0.1)
    scale = theory.lambda_scale_printed(float(run.delta[0]), 1.0, 1.0, 2, eps)
    return tools.shows(
        scale - float(run.lam[1, 0]), 1.0,
        f"K = 2, gamma = (1, 1), so gamma_beta = 1, eps = {eps:g}: Delta = Lambda = {float(run.lam[1, 0]):.1f} since "
        f"U = V, the scale is {scale:.3f} and grows without bound as eps falls",
    )  # fmt: skip


def step_order(subject: Callable[[int, float], float], fast: bool) -> Evidence:
    """log of the allowed step size against ``subject(K, eps)``, both ways, over gamma, K and eps down to 1e-30."""

    def margin(x: np.ndarray) -> float:
        K = int(x[0])
        eps = 0.97 * eps_limit(K) * 10 ** -x[1]
        gamma = np.clip(x[2:5], -1, 1)
        # Only extreme products matter; three features hold any of them, the rest sit at gamma = 0.
        pairs = gamma[[0, 0, 1]] * gamma[[1, 2, 2]] if K >= 3 else gamma[:1] * gamma[1:2]
        least = min(float(pairs.min()), 0.0) if K > 3 else float(pairs.min())
        limit = least * alpha_star(K, eps) / (K - 1)
        return subject(K, eps) - abs(limit)

    box = [(2, 1e6), (0, 30), (-1.3, 1.3), (-1.3, 1.3), (-1.3, 1.3)]
    small = [(2, 9), *box[1:]]
    parts = [
        tools.hunted(margin, side, "K, eps, three gammas", seed=2, tolerance=0.0, budget=400 if fast else 4000)
        for side in (small, box)
    ]
    return tools.merge(parts, "K from 2 to 1e6, eps from its largest value down 30 decades, any gamma")


def step_limit(subject: float, fast: bool) -> Evidence:
    """The allowed step size at fixed eps and the two extreme shifts, K up to 1e6, against its claimed limit."""
    gaps = []
    for eps, sign in itertools.product((0.1, 1e-3, 1e-6), (-1, 1)):
        values = [math.exp(sign * alpha_star(10**e, eps) / (10**e - 1)) for e in (2, 4, 6)]
        shrinking = all(abs(b - subject) < abs(a - subject) / 10 for a, b in itertools.pairwise(values))
        gaps.append(abs(values[-1] - subject) if shrinking else math.inf)
    return tools.agree(
        gaps, [0.0] * len(gaps), "eps = 0.1, 1e-3, 1e-6; gamma_n gamma_k = -1 and 1; K = 1e2, 1e4, 1e6", tolerance=1e-4,
        source="the gap at K = 1e6, having fallen tenfold or more per step",
    )  # fmt: skip


def init(subject: Callable[[Any, int, int, list[Any]], Any], fast: bool) -> Evidence:
    """Scores on U at T_1 in rational numbers from vectors: Q = V A V' with alpha = 1, then U'QU."""
    gaps = []
    for case in _instances(_parallel, fast):
        K = len(case.gamma)
        A = np.array(
            [[Fraction(1) if i == j else Fraction(-1, K - 1) for j in range(K)] for i in range(K)], dtype=object
        )
        scores = case.U.T @ (case.V @ A @ case.V.T) @ case.U
        gaps += [scores[n, k] - subject(n, k, K, list(case.gamma)) for n, k in itertools.product(range(K), repeat=2)]
    return tools.exactly(
        gaps, "rational V and U of Assumption 5.4 with d = 2K, alpha* = 1 (both sides are linear in it)"
    )


# ---------------------------------------------------------------------------------------------------------------------
# Projection on the training features (Lemma D.10, Theorems 5.6 and G.1, Appendix J).


def _projected(make: Callable[[int, int], Exact]) -> Callable[[Callable[..., Any], bool], Evidence]:
    """Check ``v_n' grad v_k`` against ``subject(V'U, D, n, k)`` with ``D[i, j] = u_i' grad u_j``; all exact."""

    def run(subject: Callable[..., Any], fast: bool) -> Evidence:
        gaps = []
        for case in _instances(make, fast):
            K = case.U.shape[1]
            pairs = list(itertools.product(range(K), repeat=2))
            D = np.empty((K, K), dtype=object)
            for i, j in pairs:
                D[i, j] = case.slope(case.U[:, i], case.U[:, j])
            M = case.V.T @ case.U
            gaps += [case.slope(case.V[:, n], case.V[:, k]) - subject(M, D, n, k) for n, k in pairs]
        return tools.exactly(gaps, "rational sets in R^d and scores, K from 2; derivatives of the token-level loss")

    return run


on_parallel, on_any = _projected(_parallel), _projected(_unrelated)


def span(subject: str, fast: bool) -> Evidence:
    """w' grad w' for a w outside span(U) in the sense of ``subject``, the other vector arbitrary, both places."""
    gaps = []
    for case in _instances(_unrelated, fast):
        d = case.U.shape[0]
        x, other = tools.fractions(d, 5, signed=True), tools.fractions(d, 6, signed=True)
        inside = case.U @ (case.U.T @ x)
        w = {"orthogonal": x - inside, "not in the span": x, "in the span": inside}[subject]
        gaps += [case.slope(w, other), case.slope(other, w), case.slope(w, w)]
    return tools.exactly(gaps, "rational sets with d = K + 2 and vectors; derivatives of the token-level loss")


def span_example(_: object, fast: bool) -> Evidence:
    one = Fraction(1)
    U = np.array([[one, 0 * one], [0 * one, one], [0 * one, 0 * one]], dtype=object)
    weights = np.array([[2 * one, one], [one, 2 * one]], dtype=object)
    w = np.array([one, 0 * one, one], dtype=object)
    value = Exact(U, U, (), weights).slope(w, w)
    return tools.shows(
        float(abs(value)), 1e-9, "K = 2, d = 3, U = (e1, e2), w = e1 + e3 is not in span(U), exp(scores) (2, 1; 1, "
                                 f"2): w' grad w = {value}", strength="exact",
    )  # fmt: skip


def expansion(subject: Callable[[Exact, int], np.ndarray], fast: bool) -> Evidence:
    """Whether the vector that the proof puts in place of v_k gives the same projections of the gradient."""
    gaps = []
    for case in _instances(_parallel, fast):
        K = case.U.shape[1]
        for n, k in itertools.product(range(K), repeat=2):
            gaps.append(case.slope(case.V[:, n], case.V[:, k]) - case.slope(subject(case, n), subject(case, k)))
    return tools.exactly(gaps, "rational instances of Assumption 5.4, d = 2K")


def expansion_example(_: object, fast: bool) -> Evidence:
    f = Fraction
    V = np.array([[f(int(i == k)) for k in range(2)] for i in range(4)], dtype=object)
    U = np.array([[f(3, 5), f(0)], [f(0), f(3, 5)], [f(4, 5), f(0)], [f(0), f(4, 5)]], dtype=object)
    case = Exact(V, U, (f(3, 5), f(3, 5)), np.array([[f(2), f(1)], [f(1), f(2)]], dtype=object))
    first, second, last = (case.slope(x, x) for x in (V[:, 0], U[:, 0], V[:, 0] * f(3, 5)))
    return tools.shows(
        float(abs(first - second)), 1e-9,
        f"K = 2, d = 4, gamma = (3/5, 3/5), exp(scores) (2, 1; 1, 2): v_1' grad v_1 = {first}, the first line's right "
        f"side (which is u_1' grad u_1) = {second}, the last line = {last}", strength="exact",
    )  # fmt: skip


def loss_on_V(subject: Callable[[np.ndarray, int, int], Any], fast: bool) -> Evidence:
    gaps = []
    for K, seed in itertools.product((2, 3, 4), range(2 if fast else 6)):
        w = tools.fractions((K, K), seed)
        losses = tools.exact_losses(w, [2] * K)
        gaps += [losses[k] - subject(w, k, K) for k in range(K)]
    return tools.exactly(gaps, "random rational exponentials of scores, K = 2, 3, 4, two tokens per feature", seed=0)


def summation(subject: Callable[[int, int], range], fast: bool) -> Evidence:
    """Scores on V after fine-tuning against start plus eta times the sum of -v' grad v over ``subject(T_1, T_2)``."""
    gaps = []
    for gamma, eta in (((0.8, -0.4), 0.7), ((0.9, 0.3, -0.6), 0.4)):
        K = len(gamma)
        M = torch.diag(torch.tensor(gamma, dtype=torch.float64))
        law = balanced(K)
        run = fine_tuning.fine_tune_gamma(gamma, 0.05, eta)
        first, steps = 9, int(run.end)
        scores = [run.start]
        for _ in range(steps + first):
            scores.append(scores[-1] + eta * population.descent(scores[-1], law))
        total = sum(
            (eta * M @ population.descent(scores[t - first], law) @ M for t in subject(first, steps) if t >= first),
            start=torch.zeros(K, K, dtype=torch.float64),
        )
        gaps.append(float((run.scores_on_V - run.scores_on_V_before - total).abs().max()))
    return tools.agree(
        gaps, [0.0] * len(gaps), "K = 2 and 3, T_1 = 9", tolerance=1e-12, source="rounding of some tens of steps"
    )


def summation_example(_: object, fast: bool) -> Evidence:
    run = fine_tuning.fine_tune_gamma((0.8, -0.4), 0.05, 0.7)
    law = balanced(2)
    scores, total = run.start, 0.0
    T1, T2 = 9, int(run.end)
    for _ in range(T1, T2 + 1):
        step = population.descent(scores, law)
        total += 0.7 * 0.64 * float(step[0, 0])
        scores = scores + 0.7 * step
    true = float(run.scores_on_V[0, 0] - run.scores_on_V_before[0, 0])
    return tools.shows(
        abs(true - total), 1e-3,
        f"K = 2, gamma = (0.8, -0.4), eps = 0.05, eta = 0.7, T_1 = {T1}, T_2 = {T2}: alpha_(v_1) rises by {true:.4f}, "
        f"the sum from T_1 to T_2 holds {T2 + 1 - T1} terms and is {total:.4f}",
    )  # fmt: skip


def both_ways(subject: Callable[[list[float]], bool], fast: bool) -> Evidence:
    """Total forgetting of three shifts, K = 2 and 3."""
    runs = [
        (gamma, float(fine_tuning.fine_tune_gamma(gamma, 0.01, 0.1).total_forgetting))
        for gamma in ((0.9, 0.9), (1.0, -0.6), (0.3, -1.0, 0.8), (0.7, 0.5, 0.6))
    ]
    shown = ", ".join(f"gamma = {gamma}: F = {value:.5f}" for gamma, value in runs)
    values = [value for _, value in runs]
    return Evidence(
        subject(values), "swept", len(values), "eps = 0.01, eta = 0.1", margin=min(max(values), -min(values)),
        detail=shown,
    )  # fmt: skip


# ---------------------------------------------------------------------------------------------------------------------
# Lemma D.11.


@dataclass(frozen=True)
class Replacement:
    """Hypotheses of Lemma D.11 as a search box, and the derivative it displays."""

    least_b: float = 0.0
    least_a0: float = 1.0
    strict: bool = False

    def numerator(self, a: Any, j: int) -> Any:
        """Half the displayed numerator, with a[0] = a_0."""
        S, s2 = sum(a[1:]), sum(x**2 for x in a[1:])
        return (a[j] + S) * (a[0] + S) - S**2 - s2


def replacement(subject: Replacement, fast: bool) -> Evidence:
    """Search for a violation under the subject's hypotheses; if there is none, prove it by symbolic algebra."""

    def margin(x: np.ndarray) -> float:
        n = len(x) // 2
        a = np.maximum(x[:n], 1e-6)
        a0 = max(subject.least_a0 * a.max(), 1e-9)
        b = np.minimum(subject.least_b * a + (1 - subject.least_b) * a * x[n : 2 * n], a * (1 - 1e-9))
        bottom = a0 + b.sum()
        if abs(bottom) < 1e-3:
            return 0.0
        left = ((a**2).sum() + a.sum() ** 2) / (a0 + a.sum()) ** 2
        return float(left - ((b**2).sum() + b.sum() ** 2) / bottom**2)

    for n in (1, 2, 4) if fast else (1, 2, 4, 6):
        worst, _, calls = tools.search(margin, [(0, 1)] * (2 * n), seed=n, budget=200 if fast else 3000, starts=1)
        if worst < -1e-9:
            return Evidence(
                False, "adversarial", calls, f"n = {n}", margin=worst, tolerance=1e-9, tolerance_source="rounding",
                detail=f"violated by {-worst:.4g}",
            )  # fmt: skip
    return _path_proof(subject.numerator, 2 if fast else 5)


def _path_proof(numerator: Callable[[Any, int], Any], most: int) -> Evidence:
    """Symbolic: d/da_j of the quotient is 2 numerator / T^3, and the numerator a sum of terms with known signs."""
    import sympy

    expressions: list[Any] = []
    for n in range(1, most + 1):
        a = sympy.symbols(f"a0:{n + 1}", positive=True)
        S, s2, T = sum(a[1:]), sum(x**2 for x in a[1:]), sum(a)
        for j in range(1, n + 1):
            expressions.append(sympy.diff((s2 + S**2) / T**2, a[j]) - 2 * numerator(a, j) / T**3)
            # a_j T > 0 and a_i (a_0 - a_i) >= 0; both survive while the a_i fall to the b_i >= 0.
            expressions.append(numerator(a, j) - (a[j] * T + sum(x * (a[0] - x) for x in a[1:])))
    return tools.symbolically(
        expressions, f"n = 1..{most}, symbolic; quotient and its partial derivatives",
        detail="numerator = a_j T + sum_i a_i (a_0 - a_i), every term nonnegative on the way from a to b",
    )  # fmt: skip


def derivative(subject: Callable[[Any, int], Any], fast: bool) -> Evidence:
    return _path_proof(subject, 2 if fast else 5)


def replacement_example(_: object, fast: bool) -> Evidence:
    left, right = Fraction(2, 4), Fraction(2) * Fraction(1, 4) / Fraction(1, 4)
    return tools.shows(
        float(right - left),
        0.1,
        f"n = 1, a_0 = a_1 = 1, b_1 = -1/2: left side {left}, right side {right}",
        strength="exact",
    )


# ---------------------------------------------------------------------------------------------------------------------
# Assumption 5.4 and what remains without it (Appendix J).


def realised(subject: Callable[[tuple[float, ...]], int], fast: bool) -> Evidence:
    """Build U in the claimed least dimension; in one dimension less the residuals would not fit."""
    gaps, short = [], []
    for gamma in ((0.5, -0.3), (1.0, 0.2), (-1.0, 1.0), (0.0, 0.9, 1.0), (0.0, 0.0, 0.0, 0.0), (-0.7, 0.7, 1.0, -1.0)):
        K, d = len(gamma), subject(gamma)
        draw = features.generator(K)
        try:
            V = features.orthonormal(d, K, generator=draw)
            U = features.correlated(V, gamma, generator=draw)
        except ValueError as refused:
            return Evidence(False, "exact", 1, "six choices of gamma", detail=f"gamma = {gamma}, d = {d}: {refused}")
        want = torch.diag(torch.tensor(gamma, dtype=torch.float64))
        gaps += [float((features.overlap(V, U) - want).abs().max())]
        gaps += [float((features.gram(U) - torch.eye(K, dtype=torch.float64)).abs().max())]
        # The parts of U outside span(V) are orthogonal to each other, so their rank is the dimension they need.
        rank = int(torch.linalg.matrix_rank(U - V @ features.overlap(V, U), tol=1e-8))
        short.append(d - K - rank)
    worst = max(gaps)
    return Evidence(
        worst < 1e-12 and not any(short), "swept", len(short), "six choices of gamma with K = 2, 3, 4", residual=worst,
        tolerance=1e-12, tolerance_source="rounding of a QR factorisation",
        detail="U built in d = K + #{|gamma_k| < 1}; the parts outside span(V) are nonzero, pairwise orthogonal and "
               "use up every further dimension, so no smaller d will do",
    )  # fmt: skip


def rotated(subject: Callable[[Tensor], Tensor], fast: bool) -> Evidence:
    """Size of ``<v_k, u_n>``, n != k, for U = R_{1,2}(theta) V; ``subject`` of V'U must exceed 0.01 in every draw."""
    margins: list[float] = []
    for seed in range(20 if fast else 200):
        V = features.orthonormal(8, 4, generator=features.generator(seed))
        turned = (features.rotation(8, theta) @ V for theta in (0.3, 1.0, 2.0, 3.0))
        margins += [float(subject(features.overlap(V, U))) for U in turned]
    return tools.at_least(
        margins, "random V with K = 4, d = 8 as in Section 6.1; theta = 0.3, 1, 2, 3", tolerance=-1e-4,
        source="far above rounding", seed=0,
    )  # fmt: skip


def largest_cross(M: Tensor) -> Tensor:
    return M[_off(M.shape[-1])].abs().max()


def any_balance(subject: Callable[[np.ndarray, int], Any], fast: bool) -> Evidence:
    """Lemma F.1 on unrelated sets: derivatives of the token-level loss along u_k u_k' and u_n u_k' of R^d."""
    gaps = []
    for case in _instances(_unrelated, fast):
        K = case.U.shape[1]
        D = np.empty((K, K), dtype=object)
        for i, j in itertools.product(range(K), repeat=2):
            D[i, j] = -case.slope(case.U[:, i], case.U[:, j])
        gaps += [D[k, k] - subject(-D, k) for k in range(K)]
    return tools.exactly(gaps, "unrelated rational V and U with d = K + 2, K from 2")


def any_bounds(subject: Callable[[Tensor, float], theory.Bounds], fast: bool) -> Evidence:
    """Theorem F.4 for any U: times exist, Delta within bounds that need only the scores at T_1."""

    def margin(runs: Runs) -> Tensor:
        ends = [subject(s, float(e)) for s, e in zip(runs.start, runs.eps, strict=True)]
        low, high = (torch.stack([end[i] for end in ends]) for i in range(2))
        at = torch.diagonal(runs.own[0] - runs.start, dim1=-2, dim2=-1)
        before = torch.diagonal(runs.before - runs.start, dim1=-2, dim2=-1)
        gap = torch.minimum(at - low.clamp(max=0).maximum(low), high.clamp(min=0) - before).amin(-1)
        return torch.where(runs.run.converged, gap, -1.0)

    return _hunt(margin, Region((2, 3, 4), "any", theory.sign_condition_any), fast, tolerance=1e-9)


def extra_example(_: object, fast: bool) -> Evidence:
    """One step too many in a sum of steps."""
    scores = _columns(2, (0.8, -0.4), 0.05)
    first = population.descent(scores, balanced(2))
    second = population.descent(scores + 0.7 * first, balanced(2))
    true = 0.7 * float(first[0, 0])
    return tools.shows(
        0.7 * float(second[0, 0]), 1e-6,
        f"K = 2, gamma = (0.8, -0.4), eps = 0.05, eta = 0.7, one step: Delta_1 = {true:.6f}, the sum over t = 0, 1 is "
        f"{true + 0.7 * float(second[0, 0]):.6f}",
    )  # fmt: skip


def condition_example(_: object, fast: bool) -> Evidence:
    """The condition of Lemma F.2 for K = 2 against the largest eps with training."""
    value = theory.sign_condition(2)
    return tools.shows(
        value - eps_limit(2),
        0.1,
        f"K = 2: the condition is eps > (2/e)^2 = {value:.4f}, training needs eps < {eps_limit(2)}",
    )


def projection(M: np.ndarray, D: np.ndarray, n: int, k: int) -> Any:
    """Entry (n, k) of M D M'."""
    return M[n, :] @ D @ M[k, :]


def loss_formula(squares: int, factor: Any) -> Callable[[np.ndarray, int, int], Any]:
    """The loss formula of eq. 14 with ``factor * K`` below and the sum of squares taken ``squares`` times."""

    def formula(w: np.ndarray, k: int, K: int) -> Any:
        y = [w[n, k] for n in others(K, k)]
        return (sum(y) ** 2 + squares * sum(v * v for v in y)) / (factor * K * (w[k, k] + sum(y)) ** 2)

    return formula


def looser_any(start: Tensor, eps: float) -> theory.Bounds:
    """Bounds for any U with the factor (1 - 1/K) dropped."""
    K = start.shape[-1]
    low, high = theory.delta_bounds_any(start, eps)
    a = alpha_star(K, eps)
    return theory.Bounds(a - (a - low) * K / (K - 1), a - (a - high) * K / (K - 1))

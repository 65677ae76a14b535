"""Procedures that records share: exact arithmetic, ball-arithmetic certificates, searches for a violation."""

from __future__ import annotations

import collections
import itertools
import math
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from icl_core.claims.record import Evidence, Strength

Box = Sequence[tuple[float, float]]


# Exact arithmetic. Scores enter the model only through their exponentials, so drawing those as rational numbers makes
# attention, losses and gradients rational numbers too.


@dataclass(frozen=True)
class Dual:
    """A number ``value + slope * t`` to first order in t: exact derivatives without a formula for them."""

    value: Any
    slope: Any = Fraction(0)

    def __add__(self, other: Any) -> Dual:
        other = _dual(other)
        return Dual(self.value + other.value, self.slope + other.slope)

    def __mul__(self, other: Any) -> Dual:
        other = _dual(other)
        return Dual(self.value * other.value, self.slope * other.value + self.value * other.slope)

    def __truediv__(self, other: Any) -> Dual:
        other = _dual(other)
        ratio = self.value / other.value
        return Dual(ratio, (self.slope - ratio * other.slope) / other.value)

    def __neg__(self) -> Dual:
        return Dual(-self.value, -self.slope)

    def __sub__(self, other: Any) -> Dual:
        return self + (-_dual(other))

    def __rsub__(self, other: Any) -> Dual:
        return _dual(other) - self

    def __rtruediv__(self, other: Any) -> Dual:
        return _dual(other) / self

    __radd__ = __add__
    __rmul__ = __mul__


def _dual(x: Any) -> Dual:
    return x if isinstance(x, Dual) else Dual(Fraction(x))


def fractions(shape: int | tuple[int, ...], seed: int, *, signed: bool = False, most: int = 9) -> np.ndarray:
    """Draw an object array of random fractions, positive unless ``signed``."""
    draw = random.Random(seed)
    size = (shape,) if isinstance(shape, int) else shape
    cells = [
        Fraction(draw.choice((-1, 1)) if signed else 1) * Fraction(draw.randint(1, most), draw.randint(1, most))
        for _ in range(math.prod(size))
    ]
    return _objects(cells).reshape(size)


def _objects(values: Iterable[Any]) -> np.ndarray:
    values = list(values)
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array


def identity(n: int) -> np.ndarray:
    """Identity matrix of fractions."""
    return _objects([Fraction(int(i == j)) for i in range(n) for j in range(n)]).reshape(n, n)


def rational_rotation(d: int, seed: int) -> np.ndarray:
    """Random orthogonal matrix of fractions, shape (d, d): a product of two reflections along whole vectors."""
    draw = random.Random(seed)
    matrix = identity(d)
    for _ in range(2):
        v = _objects(Fraction(draw.choice((-3, -2, -1, 1, 2, 3))) for _ in range(d))
        matrix = matrix - np.outer(matrix @ v, v) * (Fraction(2) / (v @ v))
    return matrix


def rational_features(d: int, K: int, seed: int) -> np.ndarray:
    """Random orthonormal features of fractions, shape (d, K)."""
    return rational_rotation(d, seed)[:, :K]


def exact_attention(weights: np.ndarray, counts: Sequence[Any] | None = None) -> np.ndarray:
    """Feature attention (K, K), column per query, from ``weights = exp(scores)``; entries may be :class:`Dual`."""
    K = weights.shape[0]
    held = [Fraction(1)] * K if counts is None else [Fraction(c) for c in counts]
    mass = np.array([[weights[n, k] * held[n] for k in range(K)] for n in range(K)], dtype=object)
    return np.array([[mass[n, k] / sum(mass[:, k]) for k in range(K)] for n in range(K)], dtype=object)


def exact_losses(weights: np.ndarray, counts: Sequence[int], query: Any = None) -> list[Any]:
    """Loss per query feature, straight from tokens, exact.

    The prediction's error is ``<w, g>`` with ``g = sum_i attn_i x_i - x_query``; for a standard Gaussian task its
    mean square is ``|g|^2``. Every token is treated by itself, so that counts enter only through repetition.

    Parameters
    ----------
    weights : ndarray, shape (K, K)
        ``exp(scores)``, fractions or :class:`Dual`; row key, column query.
    counts : sequence of int, length K
        How often each feature stands in the prompt.
    query : sequence of fractions, optional
        Probability of each query; uniform by default.
    """
    K = weights.shape[0]
    tokens = [n for n in range(K) for _ in range(int(counts[n]))]
    chance = [Fraction(1, K)] * K if query is None else [Fraction(q) for q in query]
    found = []
    for k in range(K):
        mass = [weights[n, k] for n in tokens]
        whole = sum(mass)
        error = [Fraction(-int(n == k)) for n in range(K)]
        for n, m in zip(tokens, mass, strict=True):
            error[n] = error[n] + m / whole
        found.append(chance[k] / 2 * sum(e * e for e in error))
    return found


def exact_descent(weights: np.ndarray, counts: Sequence[int], query: Any = None) -> np.ndarray:
    """Minus the derivative of the total loss by the scores, shape (K, K): exact differentiation of the token form."""
    K = weights.shape[0]
    found = np.empty((K, K), dtype=object)
    for n, k in itertools.product(range(K), repeat=2):
        moved = _objects(Dual(w) for w in weights.ravel()).reshape(K, K)
        # Raising a score by t multiplies its exponential by 1 + t to first order.
        moved[n, k] = Dual(weights[n, k], weights[n, k])
        found[n, k] = -sum(_dual(loss).slope for loss in exact_losses(moved, counts, query))
    return found


def vanishes(expression: Any) -> bool:
    """Whether a sympy expression, rational in its symbols and radicals, is identically zero."""
    import sympy

    top, _ = sympy.fraction(sympy.together(expression))
    return sympy.simplify(sympy.expand(top)) == 0


# Small and quick, for searches that evaluate thousands of instances.


def orthonormal_columns(x: np.ndarray) -> np.ndarray:
    """Orthonormalise the columns of x (d, K) by Gram-Schmidt, twice for accuracy."""
    found = np.array(x, dtype=float)
    for k in range(found.shape[1]):
        for _ in range(2):
            found[:, k] -= found[:, :k] @ (found[:, :k].T @ found[:, k])
            size = np.linalg.norm(found[:, k])
            # A column that depends on earlier ones is replaced, so that a search never meets nan.
            found[:, k] = found[:, k] / size if size > 1e-12 else np.eye(len(found))[k]
    return found


def balanced_losses(scores: np.ndarray) -> np.ndarray:
    """Loss per query feature for balanced prompts, ``|a - e_k|^2 / (2K)``, from scores (K, K)."""
    K = len(scores)
    weight = np.exp(scores - scores.max(0))
    wrong = weight / weight.sum(0) * (1 - np.eye(K))
    return ((wrong**2).sum(0) + wrong.sum(0) ** 2) / (2 * K)


# Evidence from numbers.


def exactly(differences: Iterable[Any], region: str, *, detail: str = "", seed: int | None = None) -> Evidence:
    """Evidence of an identity from differences in exact arithmetic, all of which must be zero."""
    gaps = [abs(gap) for gap in differences]
    if not gaps:
        raise ValueError("differences must hold at least one case, got none")
    worst = max(gaps)
    return Evidence(
        worst == 0, "exact", len(gaps), region, residual=float(worst), tolerance=0.0,
        tolerance_source="exact arithmetic", dtype="rational", seed=seed, detail=detail,
    )  # fmt: skip


def symbolically(expressions: Sequence[Any], region: str, *, detail: str = "") -> Evidence:
    """Evidence of an identity from sympy expressions, all of which must vanish identically."""
    bad = sum(not vanishes(expression) for expression in expressions)
    return Evidence(
        bad == 0, "exact", len(expressions), region, residual=float(bad), tolerance=0.0,
        tolerance_source="symbolic; the residual counts expressions that do not vanish", dtype="symbolic",
        detail=detail,
    )  # fmt: skip


def agree(
    got: Any, want: Any, region: str, *, tolerance: float, source: str, seed: int | None = None,
    strength: Strength = "swept", cases: int | None = None, detail: str = "", relative: bool = False,
) -> Evidence:  # fmt: skip
    """Evidence of an equality in floating point: largest deviation against a tolerance.

    nan anywhere counts as a deviation without bound.
    """
    a, b = np.asarray(got, dtype=float), np.asarray(want, dtype=float)
    gap = np.abs(a - b) / (np.maximum(np.abs(b), 1e-300) if relative else 1.0)
    worst = math.inf if np.isnan(gap).any() else float(gap.max())
    return Evidence(
        worst <= tolerance, strength, cases or int(gap.size), region, residual=worst, tolerance=tolerance,
        tolerance_source=source, seed=seed, detail=detail,
    )  # fmt: skip


def at_least(
    margins: Any, region: str, *, tolerance: float = 0.0, source: str = "", seed: int | None = None,
    strength: Strength = "swept", cases: int | None = None, detail: str = "",
) -> Evidence:  # fmt: skip
    """Evidence of an inequality: the smallest margin must not fall below ``-tolerance``; nan counts as a violation."""
    values = np.asarray(margins, dtype=float)
    worst = -math.inf if np.isnan(values).any() else float(values.min())
    return Evidence(
        worst >= -tolerance, strength, cases or int(values.size), region, margin=worst, tolerance=tolerance,
        tolerance_source=source or "none: a strict comparison", seed=seed, detail=detail,
    )  # fmt: skip


# Certificates and searches.


def certify(
    margin: Callable[..., Any], box: Box, region: str, *, limit: int = 20_000, precision: int = 80, detail: str = ""
) -> Evidence:
    """Prove ``margin > 0`` on a box with ball arithmetic, halving the widest side where one ball does not decide.

    Parameters
    ----------
    margin : callable
        Takes one ``flint.arb`` per variable, returns an ``arb``.
    box : sequence of (float, float)
        Closed range of each variable.
    region : str
        The box in words.
    limit : int
        Largest number of boxes; if it is reached the outcome is undecided.
    precision : int
        Bits.

    Returns
    -------
    Evidence
        Passed if proved, failed if a point with a negative margin was found, undecided else.
    """
    import flint

    before, flint.ctx.prec = flint.ctx.prec, precision
    try:
        # First in, first out, so that a violation anywhere is met before one corner is cut to pieces.
        queue = collections.deque([tuple((float(low), float(high)) for low, high in box)])
        cases, least = 0, math.inf
        while queue:
            cell = queue.popleft()
            cases += 1
            balls = [flint.arb((low + high) / 2, (high - low) / 2 * (1 + 2**-50)) for low, high in cell]
            value = margin(*balls)
            if value > 0:
                least = min(least, float(value.lower()))
                continue
            centre = margin(*[flint.arb((low + high) / 2) for low, high in cell])
            if centre < 0:
                where = ", ".join(f"{(low + high) / 2:.6g}" for low, high in cell)
                return Evidence(
                    False, "certified", cases, region, margin=float(centre.mid()), dtype=f"ball, {precision} bits",
                    detail=f"violated at ({where}): margin {float(centre.mid()):.4g}",
                )  # fmt: skip
            if cases >= limit:
                return Evidence(
                    None, "certified", cases, region, dtype=f"ball, {precision} bits",
                    detail=f"undecided after {cases} boxes",
                )  # fmt: skip
            widths = [high - low for low, high in cell]
            i = widths.index(max(widths))
            low, high = cell[i]
            halves = ((low, (low + high) / 2), ((low + high) / 2, high))
            queue.extend((*cell[:i], half, *cell[i + 1 :]) for half in halves)
        return Evidence(
            True, "certified", cases, region, margin=least, tolerance=0.0, tolerance_source="ball arithmetic",
            dtype=f"ball, {precision} bits", detail=detail or f"proved on {cases} boxes",
        )  # fmt: skip
    finally:
        flint.ctx.prec = before


def search(
    margin: Callable[[np.ndarray], float], box: Box, *, seed: int, starts: int = 2, budget: int = 2000
) -> tuple[float, np.ndarray, int]:
    """Look for the smallest ``margin`` in a box: differential evolution, then Nelder-Mead from its best point.

    Returns
    -------
    worst : float
        Smallest value found; ``-inf`` if the margin was nan anywhere.
    where : ndarray
        Its argument.
    calls : int
        Evaluations done.
    """
    from scipy.optimize import differential_evolution, minimize

    low, high = (np.array(side, dtype=float) for side in zip(*box, strict=True))
    calls = 0
    best, where = math.inf, (low + high) / 2

    def value(x: np.ndarray) -> float:
        nonlocal calls, best, where
        calls += 1
        inside = np.clip(x, low, high)
        found = float(margin(inside))
        found = -math.inf if math.isnan(found) else found
        if found < best:
            best, where = found, inside
        # The optimiser squares what it gets.
        return max(found, -1e100)

    population = max(5, min(15, budget // (starts * 10 * len(low)) + 1))
    for start in range(starts):
        generations = max(2, budget // (2 * starts * population * len(low)))
        differential_evolution(
            value, list(zip(low, high, strict=True)), seed=seed + start, popsize=population, maxiter=generations,
            polish=False, tol=1e-10, init="sobol" if population * len(low) >= 8 else "latinhypercube",
        )  # fmt: skip
        options = {"maxfev": budget // (2 * starts), "xatol": 1e-9, "fatol": 1e-14}
        minimize(value, where, method="Nelder-Mead", options=options)
    return best, where, calls


def hunted(
    margin: Callable[[np.ndarray], float], box: Box, region: str, *, seed: int, tolerance: float = 0.0,
    source: str = "", names: Sequence[str] = (), starts: int = 2, budget: int = 2000,
) -> Evidence:  # fmt: skip
    """Evidence of an inequality from :func:`search`; the detail names the worst point."""
    worst, where, calls = search(margin, box, seed=seed, starts=starts, budget=budget)
    labels = names or [f"x{i + 1}" for i in range(min(6, len(where)))]
    shown = ", ".join(f"{label} = {x:.6g}" for label, x in zip(labels, where, strict=False))
    return at_least(
        [worst], f"{region}; {starts} starts of differential evolution and Nelder-Mead", tolerance=tolerance,
        source=source, seed=seed, strength="adversarial", cases=calls, detail=f"smallest margin {worst:.4g} at {shown}",
    )  # fmt: skip


def shows(
    gap: float, least: float, detail: str, *, strength: Strength = "swept", region: str = "one instance"
) -> Evidence:
    """Evidence that a printed statement fails: it does if ``gap``, the size of the failure, exceeds ``least``."""
    return Evidence(
        bool(gap > least), strength, 1, region, margin=float(gap), tolerance=least,
        tolerance_source="the failure must exceed this, far above rounding", detail=detail,
    )  # fmt: skip


def merge(parts: Sequence[Evidence], region: str | None = None) -> Evidence:
    """One outcome from several: passed if all passed, failed if one failed, the weakest strength."""
    from icl_core.claims.record import STRENGTHS

    outcomes = [part.passed for part in parts]
    passed = False if False in outcomes else (None if None in outcomes else True)
    residuals = [p.residual for p in parts if p.residual is not None]
    margins = [p.margin for p in parts if p.margin is not None]
    deciding = next((p for p in parts if p.passed is not True), parts[0])
    return Evidence(
        passed, max((p.strength for p in parts), key=STRENGTHS.index), sum(p.cases for p in parts),
        region or "; ".join(dict.fromkeys(p.region for p in parts)), residual=max(residuals, default=None),
        margin=min(margins, default=None), tolerance=deciding.tolerance, tolerance_source=deciding.tolerance_source,
        dtype=deciding.dtype, seed=deciding.seed, detail="; ".join(dict.fromkeys(p.detail for p in parts if p.detail)),
    )  # fmt: skip

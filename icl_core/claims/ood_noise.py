"""Records of the OOD paper's Appendix K: label noise in training, OOD evaluation, fine-tuning and forgetting."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from icl_core import dynamics, population, prompts
from icl_core.claims import _tools
from icl_core.claims.ood_model import trained
from icl_core.claims.record import Check, Claim, Evidence
from icl_core.theory import noise as theory
from icl_core.theory import training
from icl_core.theory._statement import remember
from icl_core.theory.ood import alpha_star, eps_limit, symmetric_scores

PAGE = "noise"
MODEL = r"balanced prompts of $N$ tokens, independent label noise of variance $\sigma^2$ on context and query, $\sigma_{\mathrm{eff}}^2 = K\sigma^2/N$"

# Exact arithmetic: K features, copies of each feature in the prompt, sigma^2.
CASES = ((2, 1, Fraction(1, 3)), (2, 3, Fraction(5, 2)), (3, 2, Fraction(1, 2)))


def _noisy_tokens(weights: np.ndarray, copies: int, variance: Fraction) -> list[Any]:
    """Noisy loss per query, token by token: the noises of tokens and query are independent of each other."""
    K = weights.shape[0]
    clean = _tools.exact_losses(weights, [copies] * K)
    found = []
    for k in range(K):
        total = sum(copies * weights[n, k] for n in range(K))
        tokens = [weights[n, k] / total for n in range(K) for _ in range(copies)]
        found.append(clean[k] + Fraction(1, 2 * K) * variance * (1 + sum(a * a for a in tokens)))
    return found


def _eq_31(half: Fraction, per_feature: bool, query: Fraction) -> Callable[..., Any]:
    """Total loss by eq. 31: clean loss, ``half`` times the context term, ``query`` times sigma^2 / 2."""

    def total(weights: np.ndarray, copies: int, variance: Fraction) -> Any:
        K = weights.shape[0]
        a = _tools.exact_attention(weights)
        effective = variance / copies if per_feature else variance
        context = sum(a[n, k] ** 2 for n, k in itertools.product(range(K), repeat=2)) / K
        return sum(_tools.exact_losses(weights, [1] * K)) + half * effective * context + query * variance / 2

    return total


def _total(subject: Callable[..., Any], fast: bool) -> Evidence:
    gaps = []
    for i, (K, copies, variance) in enumerate(CASES):
        weights = _tools.fractions((K, K), 20 + i)
        gaps.append(subject(weights, copies, variance) - sum(_noisy_tokens(weights, copies, variance)))
    return _tools.exactly(
        gaps, "K = 2, 3, one to three tokens per feature, random rational exp(scores), token by token"
    )


def _eq_33(factor: Callable[[int], Fraction], per_feature: bool = True, query: int = 1) -> Callable[..., list[Any]]:
    """Eq. 33 from exponentials of scores; ``factor`` of K stands before all three terms."""

    def losses(weights: np.ndarray, copies: int, variance: Fraction) -> list[Any]:
        K = weights.shape[0]
        effective = variance / copies if per_feature else variance
        found = []
        for k in range(K):
            rest = sum(weights[n, k] for n in range(K) if n != k)
            squares = sum(weights[n, k] ** 2 for n in range(K) if n != k)
            own = weights[k, k]
            top = rest**2 + squares + effective * (own**2 + squares)
            found.append(factor(K) * (top / (own + rest) ** 2 + query * variance))
        return found

    return losses


_EQ_33 = _eq_33(lambda K: Fraction(1, 2 * K))
_EQ_36 = _eq_33(lambda K: Fraction(1, 2))


def _per_feature(subject: Callable[..., list[Any]], fast: bool) -> Evidence:
    gaps: list[Any] = []
    for i, (K, copies, variance) in enumerate(CASES):
        weights = _tools.fractions((K, K), 30 + i)
        pairs = zip(subject(weights, copies, variance), _noisy_tokens(weights, copies, variance), strict=True)
        gaps += [a - b for a, b in pairs]
    return _tools.exactly(
        gaps, "K = 2, 3, one to three tokens per feature, random rational exp(scores), token by token"
    )


def _components(subject: tuple[int, int, int], fast: bool) -> Evidence:
    """Loss = clean expression + context variance + query variance, weighted by the subject."""
    gaps: list[Any] = []
    for i, (K, copies, variance) in enumerate(CASES):
        weights = _tools.fractions((K, K), 40 + i)
        clean = _eq_33(lambda K: Fraction(1, 2 * K))(weights, copies, Fraction(0))
        context = [
            x - c
            for x, c in zip(
                _eq_33(lambda K: Fraction(1, 2 * K), query=0)(weights, copies, variance), clean, strict=True
            )
        ]
        want = _noisy_tokens(weights, copies, variance)
        for c, v, w in zip(clean, context, want, strict=True):
            gaps.append(subject[0] * c + subject[1] * v + subject[2] * variance / (2 * K) - w)
    return _tools.exactly(gaps, "K = 2, 3, random rational exp(scores)")


def _scaled_fails() -> Evidence:
    K, sigma = 3, 0.5
    law = prompts.balanced(K, 6, sigma=sigma)
    scores = symmetric_scores(K, 1.0)
    got = float(population.losses(scores, law)[0])
    printed = float(theory.noisy_losses_eq36(scores, law.sigma_eff2, sigma)[0])
    return _tools.shows(
        printed / got - 1,
        1.0,
        f"K = 3, N = 6, sigma = 0.5, alpha = 1: L_v1 = {got:.5g}, eq. 36 gives {printed:.5g}, K times as much",
    )


# Floor.


def _floor(subject: Callable[[Any, Any, Any], Any], fast: bool) -> Evidence:
    """Least value over all attentions on the simplex: stationary there, and the loss is strictly convex."""
    import sympy

    K, s, v, a, b = sympy.symbols("K s v a b", positive=True)
    value = ((1 - a) ** 2 + (K - 1) * b**2 + s * (a**2 + (K - 1) * b**2) + v) / 2
    best = (K + s) / (K * (1 + s))
    point = {a: best, b: (1 - best) / (K - 1)}
    # Lagrange: the slopes by a_k and by every a_n agree at the point.
    slope = (sympy.diff(value, a) - sympy.diff(value, b) / (K - 1)).subs(point)
    return _tools.symbolically(
        [value.subs(point) - subject(K, s, v), slope],
        "every K, sigma_eff^2, sigma^2; strictly convex on the simplex, so the minimum",
    )


def _floor_printed(K: Any, s: Any, v: Any) -> Any:
    return (v + s * (K + s) / (K * (1 + s))) / 2


# Training.


def _train(K: int, eps: float, s: float, eta: float, max_steps: int) -> dynamics.Descent:
    sigma = math.sqrt(s)
    law = prompts.balanced(K, K, sigma=sigma)
    bound = (theory.noise_floor(K, s, sigma) + eps) / K
    return dynamics.gradient_descent(
        torch.zeros(K, K, dtype=torch.float64), law, eta=eta, threshold=bound, max_steps=max_steps, on_failure="return"
    )


def _converges(subject: Callable[[int, float], float], fast: bool) -> Evidence:
    """Whether training meets the rule, for eps small beside the initial excess, at the step size of the subject."""
    missed, cases, where = 0, 0, ""
    sizes, noises = ((2, 3), (0.01, 20.0, 300.0)) if fast else ((2, 3, 6), (0.01, 1.0, 20.0, 300.0))
    for K, s, share in itertools.product(sizes, noises, (0.1, 1e-4)):
        eps = share * theory.eps_limit(K, s)
        done = bool(_train(K, eps, s, subject(K, s), 60_000).converged)
        cases += 1
        if not done:
            missed += 1
            where = where or f"K = {K}, sigma_eff^2 = {s:g}, eps = {eps:.3g}, eta = {subject(K, s):g}"
    return _tools.at_least(
        [-missed], f"K in {sizes}, sigma_eff^2 from 0.01 to 300, eps 1e-1 and 1e-4 of the initial excess", cases=cases,
        detail=f"{missed} runs do not stop" + (f", first {where}" if where else ""),
    )  # fmt: skip


def _careful_polynomial(limit: Fraction, fast: bool) -> Evidence:
    """``a (1 - a) (a (1 - a) - (1 - 2a)(best - a)) < limit`` for 0 <= a <= best <= 1: a step preserves order."""

    def margin(a: Any, t: Any) -> Any:
        best = a + t * (1 - a)
        return limit.numerator - limit.denominator * a * (1 - a) * (a * (1 - a) - (1 - 2 * a) * (best - a))

    return _tools.certify(margin, [(0.0, 1.0), (0.0, 1.0)], "0 <= a <= best <= 1")


def _oscillates() -> Evidence:
    K, s, eta, eps = 2, 20.0, 1.0, 1e-3
    run = _train(K, eps, s, eta, 200_000)
    floor = theory.noise_floor(K, s, math.sqrt(s))
    excess = float(run.losses.sum()) - floor
    return _tools.shows(
        excess / eps if not bool(run.converged) else 0.0, 2.0,
        f"K = N = 2, sigma^2 = 20, eta = 1: after {int(run.steps)} steps the excess loss swings about {excess:.3g}, eps = 0.001",
    )  # fmt: skip


def _time(K: int, eps: float, s: float) -> float:
    """Training time (steps times eta) in the limit of small steps."""
    from scipy.integrate import quad

    best, end = theory.best_attention(K, s), theory.attention_at_end(K, eps, s)
    scale = (K - 1) ** 2 / (K * (1 + s))
    # With y = log(1/(best - a)) the integrand has no peak.
    low, high = -math.log(best - 1 / K), -math.log(best - end)

    def rate(y: float) -> float:
        a = best - math.exp(-y)
        return float(scale / (a * (1 - a)) ** 2)

    return float(quad(rate, low, high, limit=200)[0])


def _time_exponents(subject: tuple[float, float, float], fast: bool) -> Evidence:
    by_eps = [
        np.diff(np.log([_time(3, e, s) for e in (1e-2, 1e-4, 1e-6, 1e-8)])) / math.log(100) for s in (1e-6, 1e-3, 0.1)
    ]
    by_K = [np.diff(np.log([_time(K, 1e-3, s) for K in (4, 16, 64, 256)])) / math.log(4) for s in (1e-3, 0.1)]
    by_s = [np.diff(np.log([_time(3, 1e-5, s) for s in (1e-4, 1e-2, 1.0, 100.0)])) / math.log(100)]
    tops = [max(float(x.max()) for x in xs) for xs in (by_eps, by_K, by_s)]
    return _tools.at_least(
        np.array(subject) - tops, "flow time; eps from 1e-8 to 1e-2, K from 4 to 256, sigma_eff^2 from 1e-6 to 100",
        cases=sum(len(x) for xs in (by_eps, by_K, by_s) for x in xs), strength="trend",
        detail=f"largest local exponents: 1/eps {tops[0]:.3f}, K {tops[1]:.2f}, sigma_eff^2 {tops[2]:.2f}; in 1/eta exactly 1",
    )  # fmt: skip


# Theorem K.1.


class _Sets(NamedTuple):
    """Rational orthonormal sets in general position."""

    V: np.ndarray
    U: np.ndarray


@remember
def _sets(K: int) -> _Sets:
    return _Sets(_tools.rational_features(2 * K, K, K), _tools.rational_features(2 * K, K, K + 50))


def _geometry(subject: Callable[[Any, Any, Any, int], Any], fast: bool) -> Evidence:
    """U'QU for Q = V(alpha-symmetric)V' against the closed form, entry by entry."""
    gaps: list[Any] = []
    alpha = Fraction(7, 5)
    for K in (2, 3):
        V, U = _sets(K)
        inner = np.array([[alpha if i == j else -alpha / (K - 1) for j in range(K)] for i in range(K)], dtype=object)
        Q = V @ inner @ V.T
        scores, M = U.T @ Q @ U, V.T @ U
        sums = M.sum(0)
        gaps += [
            scores[i, j] - subject(alpha, (M.T @ M)[i, j], sums[i] * sums[j] / K, K)
            for i, j in itertools.product(range(K), repeat=2)
        ]
    return _tools.exactly(gaps, "K = 2, 3, d = 2 K, random rational orthonormal V and U")


def _noisy_symmetry(subject: Callable[[Any, int, int], Any], fast: bool) -> Evidence:
    """One noisy step from symmetric scores, exact: the subject's combination of updates vanishes for every wrong key."""
    gaps: list[Any] = []
    for K in (2, 3) if fast else (2, 3, 4, 5):
        for own, variance in itertools.product(
            (Fraction(1), Fraction(7, 2), Fraction(40)), (Fraction(1, 3), Fraction(9))
        ):
            D = _noisy_descent(_tools.identity(K) * (own - 1) + Fraction(1), variance)
            gaps += [subject(D, n, k) for n, k in itertools.product(range(K), repeat=2) if n != k]
            gaps += [D[k, k] - D[0, 0] for k in range(K)]
    return _tools.exactly(gaps, "K from 2 up, Q = 0 and symmetric rational exp(scores), sigma_eff^2 = 1/3 and 9")


SETTINGS = tuple(
    (K, s, share) for K in (2, 3, 5, 8) for s in (1e-8, 1e-3, 0.1, 1.0, 30.0) for share in (0.9, 0.1, 1e-4, 1e-10)
)


def _level(subject: Callable[[int, float, float], float], fast: bool) -> Evidence:
    """At alpha = subject the excess is eps, and it was larger at every smaller alpha >= 0."""
    worst = 0.0
    for K, s, share in SETTINGS:
        eps, sigma = share * theory.eps_limit(K, s), math.sqrt(s)
        law = prompts.balanced(K, K, sigma=sigma)
        end = subject(K, eps, s)
        if not end > 0:
            worst = math.inf
            continue
        scores = torch.stack([symmetric_scores(K, end * x) for x in np.linspace(0, 1, 40)])
        excess = population.losses(scores, law).sum(-1) - theory.noise_floor(K, s, sigma)
        # Differences of losses of order floor carry its rounding.
        slack = 1e-13 * (theory.noise_floor(K, s, sigma) + 1)
        worst = max(worst, float((excess[-1] - eps).abs()) / (1e-8 * eps + slack))
        worst = max(worst, float((excess[1:] - excess[:-1]).max()) / (slack + 1e-12 * eps))
    return _tools.agree(
        worst, 0.0, "K in (2, 3, 5, 8), sigma_eff^2 from 1e-8 to 30, eps from 1e-10 to 0.9 of its limit", tolerance=1.0,
        source="rounding of the losses; the residual counts multiples of it", cases=len(SETTINGS),
    )  # fmt: skip


def _level_printed(subject: Callable[[int, float, float], float], fast: bool) -> Evidence:
    """Gradient descent under the printed rule, any eps: is alpha at the end the subject's?"""
    gaps = []
    for K, s, eps, eta in ((2, 0.2, 0.01, 0.5), (3, 0.5, 0.02, 0.3), (3, 0.5, 0.3, 0.3), (4, 1.0, 0.05, 0.2)):
        run = _train(K, eps, s, eta, 100_000)
        gaps.append(abs(float(run.alpha[0]) - subject(K, eps, s)))
    return _tools.agree(gaps, np.zeros(4), "four runs of gradient descent", tolerance=1e-9, source="rounding")


def _alpha_formula(K: int, eps: float, s: float) -> float:
    """Theorem K.1's alpha from eq. 32 without restriction on eps; nan where the logarithm has no argument."""
    a = theory.attention_at_end(K, eps, s)
    return (1 - 1 / K) * math.log((K - 1) * a / (1 - a)) if 0 < a < 1 else math.nan


def _past(subject: Callable[[int, float, float, float], float], fast: bool, of_attention: bool = False) -> Evidence:
    """Gradient descent with careful steps ends past the threshold by at most the subject (alpha, or attention)."""
    worst, cases, where = math.inf, 0, ""
    for K, s, share in itertools.product(
        (2, 3) if fast else (2, 3, 5), (1e-3, 0.3, 30.0), (0.9, 0.1) if fast else (0.9, 0.1, 1e-3)
    ):
        eps = share * theory.eps_limit(K, s)
        for part in (1.0, 0.1):
            eta = part * theory.careful_eta(K, s)
            run = _train(K, eps, s, eta, 60_000)
            if of_attention:
                over = float(population.attention_weights(run.scores)[0, 0]) - theory.attention_at_end(K, eps, s)
            else:
                over = float(run.alpha[0]) - theory.alpha_hat(K, eps, s)
            # In units of the step at the threshold, with a share for rounding.
            unit = theory.overshoot(K, eps, s, eta)
            margin = min(over, subject(K, eps, s, eta) - over) / unit + 1e-6 if bool(run.converged) else -1.0
            cases += 1
            if margin < worst:
                worst, where = (
                    margin,
                    f"K = {K}, sigma_eff^2 = {s:g}, eps = {eps:.3g}, eta = {eta:.3g}: {over:.4g} past",
                )
    return _tools.at_least(
        [worst], "K = 2, 3, 5, sigma_eff^2 from 0.001 to 30, eps from 0.001 to 0.9 of its limit, eta to the careful step", cases=cases,
        detail=f"tightest at {where}", source="1e-6 of the step at the threshold for rounding",
    )  # fmt: skip


def _past_attention(subject: Callable[[int, float, float, float], float], fast: bool) -> Evidence:
    return _past(subject, fast, of_attention=True)


def _attention_bound(K: int, eps: float, s: float, eta: float) -> float:
    """The attention's slope in alpha, ``K/(K - 1) a (1 - a)``, is at most ``K / (4 (K - 1))``."""
    return K / (4 * (K - 1)) * theory.overshoot(K, eps, s, eta)


def _level_fails() -> Evidence:
    K, s, eps = 3, 0.5, 0.3
    run = _train(K, eps, s, 0.3, 1000)
    printed = _alpha_formula(K, eps, s)
    return _tools.shows(
        abs(float(run.alpha[0]) - printed), 0.1,
        f"K = 3, sigma_eff^2 = 0.5, eps = 0.3 (initial excess {theory.eps_limit(K, s):.4g}): training stops at step {int(run.steps)} "
        f"with alpha = {float(run.alpha[0]):g}, printed alpha = {printed:.4g}",
    )  # fmt: skip


def _attention(subject: Callable[[int, float, float], float], fast: bool) -> Evidence:
    def alpha(K: int, eps: float, s: float) -> float:
        a = subject(K, eps, s)
        return (1 - 1 / K) * math.log((K - 1) * a / (1 - a)) if 0 < a < 1 else math.nan

    return _level(alpha, fast)


def _attention_fails() -> Evidence:
    K, s, eps = 3, 0.5, 0.3
    return _tools.shows(
        1 / K - theory.attention_at_end(K, eps, s),
        0.01,
        f"K = 3, sigma_eff^2 = 0.5, eps = 0.3: eq. 32 gives {theory.attention_at_end(K, eps, s):.4g}, training stops at once with Attn = 1/3",
    )


def _attention_printed(subject: Callable[[int, float, float], float], fast: bool) -> Evidence:
    gaps = []
    for K, s, eps, eta in ((2, 0.2, 0.01, 0.5), (3, 0.5, 0.3, 0.3), (4, 1.0, 0.05, 0.2)):
        run = _train(K, eps, s, eta, 100_000)
        gaps.append(abs(float(population.attention_weights(run.scores)[0, 0]) - subject(K, eps, s)))
    return _tools.agree(gaps, np.zeros(3), "three runs of gradient descent", tolerance=1e-9, source="rounding")


def _same_geometry(subject: Callable[[Tensor, float], Tensor], fast: bool) -> Evidence:
    """Scores on U after noisy training from those after clean training and the ratio of the two alphas."""
    K, eps, s = 3, 0.02, 0.3
    V, U = (torch.tensor(x.astype(float)) for x in _sets(K))
    M = V.T @ U
    noisy = _train(K, eps, s, 0.2, 100_000).update
    clean = dynamics.train(K, eps, 0.2).update
    ratio = float(noisy[0, 0] / clean[0, 0])
    want = subject(M.T @ clean @ M, ratio)
    return _tools.agree(
        (M.T @ noisy @ M).numpy(), want.numpy(), "K = 3, d = 6, gradient descent", tolerance=1e-12, source="rounding"
    )


def _noiseless(subject: tuple[int, int], fast: bool) -> Evidence:
    """Eq. 16 gives 1 - sqrt(2(K-1) eps/K); eq. 32 shifts it and divides the root by sqrt(1+s); s -> 0 gives it back."""
    import sympy

    K, e, s = sympy.symbols("K e s", positive=True)
    root = sympy.Symbol("root", positive=True)
    # root stands for sqrt(2 (K - 1) / K), e for sqrt(eps).
    odds = (K - 1) * (1 / root - e) / e
    clean = 1 - subject[0] * root * e
    from_eq_16 = odds / (odds + K - 1) - clean
    noisy = (K + s) / (K * (1 + s)) - root * e / sympy.sqrt(1 + s)
    shifted = noisy - ((clean - 1) / sympy.sqrt(1 + s) + 1 - subject[1] * s * (K - 1) / (K * (1 + s)))
    return _tools.symbolically(
        [from_eq_16, shifted, sympy.limit(noisy, s, 0) - (1 - root * e)], "every K, eps, sigma_eff^2"
    )


def _noiseless_end(subject: Callable[[int, float, float], float], fast: bool) -> Evidence:
    """Noiseless gradient descent ends with attention in [1 - root, 1 - root + subject], root = sqrt(2 (K - 1) eps / K)."""
    slack = []
    for K, eps, eta in ((4, 0.01, 0.1), (2, 0.1, 6.0), (2, 0.24, 20.0), (3, 0.05, 4.0), (5, 0.3, 40.0), (3, 0.33, 1.0)):
        over = float(population.attention_weights(trained(K, eps, eta).scores)[0, 0]) - training.attention_at_rule(
            K, eps
        )
        slack.append(min(over, subject(K, eps, eta) - over) + 1e-11)
    return _tools.at_least(slack, "six runs, K = 2 to 5", source="1e-11 for rounding")


def _noiseless_end_bound(K: int, eps: float, eta: float) -> float:
    return K / (4 * (K - 1)) * training.overshoot(K, eps, eta)


def _noiseless_end_fails() -> Evidence:
    lines, gaps = [], []
    for K, eps, eta in ((4, 0.01, 0.1), (2, 0.1, 6.0)):
        found = float(population.attention_weights(trained(K, eps, eta).scores)[0, 0])
        printed = training.attention_at_rule(K, eps)
        gaps.append(found - printed)
        lines.append(f"K = {K}, eps = {eps}, eta = {eta}: Attn = {found:.6f}, the formula gives {printed:.6f}")
    return _tools.shows(min(gaps), 1e-6, "; ".join(lines))


def _rule_holds(subject: Callable[[Fraction, Fraction, Fraction], bool], fast: bool) -> Evidence:
    """Whether the noisy rule holds at an attention, exact, against ``subject(a, lower root, upper root)``."""
    wrong, cases = 0, 0
    for K, s, r in (
        (2, Fraction(1), Fraction(1, 10)),
        (3, Fraction(1, 2), Fraction(1, 20)),
        (3, Fraction(1, 9), Fraction(1, 4)),
    ):
        best, eps = (K + s) / (K * (1 + s)), K * (1 + s) * r * r / (2 * (K - 1))
        grid = [Fraction(1, K) + Fraction(j, 60) * (1 - Fraction(1, K)) for j in range(60)]
        for a in (*grid, best - r, *([best + r] if best + r < 1 else [])):
            b = (1 - a) / (K - 1)
            # Loss without the query's noise, less its least value, on the symmetric trajectory.
            excess = ((1 - a) ** 2 + (K - 1) * b**2 + s * (a**2 + (K - 1) * b**2) - s * best) / 2
            wrong += bool(excess < eps) != bool(subject(a, best - r, best + r))
            cases += 1
    return Evidence(
        wrong == 0, "exact", cases, "K = 2, 3, attention from 1/K to 1, both roots", residual=float(wrong), tolerance=0.0,
        tolerance_source="exact arithmetic; the residual counts attentions judged wrongly", dtype="rational",
    )  # fmt: skip


def _two_roots() -> Evidence:
    K, s, r = 2, Fraction(1), Fraction(1, 10)
    eps, best = K * (1 + s) * r * r / (2 * (K - 1)), (K + s) / (K * (1 + s))
    found = [((1 - a) ** 2 * 2 + s * (a**2 + (1 - a) ** 2) - s * best) / 2 - eps for a in (best - r, best + r)]
    return _tools.shows(
        2 * float(r) if found == [0, 0] else 0.0, 0.1,
        f"K = 2, sigma_eff^2 = 1, eps = {eps}: at Attn = {best - r} and at Attn = {best + r} the excess is exactly eps, which is not below eps",
        strength="exact",
    )  # fmt: skip


def _proof_attention(subject: Callable[[Any, Any], Any], fast: bool) -> Evidence:
    import sympy

    x, K = sympy.symbols("x K", positive=True)
    a, b = x / (x + K - 1), 1 / (x + K - 1)
    return _tools.symbolically([a**2 + (K - 1) * b**2 - subject(x, K)], "every K, x = exp(K alpha / (K - 1))")


def _proof_loss(subject: Callable[..., Any], fast: bool) -> Evidence:
    import sympy

    K, s, v, a = sympy.symbols("K s v a", positive=True)
    b = (1 - a) / (K - 1)
    total = ((1 - a) ** 2 + (K - 1) * b**2 + s * (a**2 + (K - 1) * b**2) + v) / 2
    return _tools.symbolically(
        [total - subject(K, s, v, a)], "every K, noise and attention on the symmetric trajectory"
    )


def _completed(K: Any, s: Any, v: Any, a: Any) -> Any:
    return _floor_printed(K, s, v) + K * (1 + s) / (2 * (K - 1)) * (a - (K + s) / (K * (1 + s))) ** 2


# Theorem K.2.


class Instance(NamedTuple):
    """A fine-tuning problem of Theorem K.2."""

    gamma: tuple[float, ...]
    eps: float
    eta: float


INSTANCES = (
    Instance((1.0, -0.5), 0.05, 0.5),
    Instance((1.0, 0.9, -0.9), 0.005, 0.5),
    Instance((0.7, 0.2), 0.02, 0.8),
    Instance((0.9, -0.6, 0.3), 0.005, 0.6),
    Instance((0.5, 0.0, -0.8), 0.01, 0.5),
    Instance((0.8, 0.75, -0.2, 0.1), 0.05, 0.7),
    Instance((-1.0, 0.4, 0.9, 0.6), 0.1, 0.4),
)


class Path(NamedTuple):
    """What one noisy fine-tuning run shows."""

    rising: float
    falling: float
    ordered: float
    steps: int
    stopped: bool
    rises: Tensor
    falls: Tensor


def _path(case: Instance, s: float, limit: int = 20_000) -> Path:
    """Fine-tune from the exact end of training; smallest margins of the sign and order properties on the way."""
    K = len(case.gamma)
    sigma = math.sqrt(s)
    law = prompts.balanced(K, K, sigma=sigma)
    gamma = torch.tensor(case.gamma, dtype=torch.float64)
    alpha = theory.alpha_hat(K, case.eps, s) if s else alpha_star(K, case.eps)
    start = torch.outer(gamma, gamma) * symmetric_scores(K, alpha)
    bound = ((theory.noise_floor(K, s, sigma) if s else 0.0) + case.eps) / K * (1 + 1e-12)
    off = ~torch.eye(K, dtype=torch.bool)
    # Pairs (n, n') of one query with beta_n < beta_n' at the start.
    gaps = start.unsqueeze(0) - start.unsqueeze(1)
    pairs = (gaps > 1e-9) & off.unsqueeze(0) & off.unsqueeze(1)
    S, rising, falling, ordered = start.clone(), math.inf, math.inf, math.inf
    rises, falls = torch.full((K,), math.nan, dtype=torch.float64), torch.full((K, K), math.nan, dtype=torch.float64)
    for step in range(limit):
        lost, delta = population.losses_and_descent(S, law)
        for k in range(K):
            if lost[k] <= bound and bool(torch.isnan(rises[k])):
                rises[k], falls[:, k] = S[k, k] - start[k, k], start[:, k] - S[:, k]
        if bool((lost <= bound).all()):
            return Path(rising, falling, ordered, step, True, rises, falls)
        rising = min(rising, float(torch.diagonal(delta).min()))
        falling = min(falling, float((-delta[off]).min()))
        S = S + case.eta * delta
        if bool(pairs.any()):
            ordered = min(ordered, float((S.unsqueeze(0) - S.unsqueeze(1))[pairs].min()))
    return Path(rising, falling, ordered, limit, False, rises, falls)


# Assumption 5.4, a step size within the limit of Lemma F.3, and an eps below the condition of Lemma F.2.
TINY = Instance((0.33, -1.0, 1.0), 1e-9, 0.02)


def _first_updates(case: Instance, s: float) -> Tensor:
    """Noisy descent direction at the start of fine-tuning."""
    K = len(case.gamma)
    gamma = torch.tensor(case.gamma, dtype=torch.float64)
    start = torch.outer(gamma, gamma) * symmetric_scores(K, theory.alpha_hat(K, case.eps, s))
    return population.descent(start, prompts.balanced(K, K, sigma=math.sqrt(s)))


def _signs(subject: Sequence[Instance], fast: bool) -> Evidence:
    """Some noise radius gives every first update its sign, alpha up and beta down: the subject's instances, ever less noise."""
    worst, where = math.inf, ""
    for case in subject:
        off = ~torch.eye(len(case.gamma), dtype=torch.bool)
        margins = []
        for share in (1.0, 1e-3, 1e-6, 1e-9):
            delta = _first_updates(case, _small_radius(case) * share)
            margins.append(min(float(torch.diagonal(delta).min()), float((-delta[off]).min())))
        # The radius exists if from some noise on all smaller ones have a positive margin; the last one decides.
        if margins[-1] < worst:
            worst, where = margins[-1], f"gamma = {case.gamma}, eps = {case.eps:g}"
    return _tools.at_least(
        [worst],
        "first step, sigma_eff^2 from eps / 20 down to 5e-11 eps",
        cases=4 * len(subject),
        detail=f"smallest margin {worst:.3g} at {where}",
    )


def _sign_fails() -> Evidence:
    case = TINY
    K = len(case.gamma)
    start = torch.tensor(case.gamma, dtype=torch.float64)
    beta = torch.outer(start, start) * symmetric_scores(K, alpha_star(K, case.eps))
    limit = math.exp(-float(beta[~torch.eye(K, dtype=torch.bool)].max()))
    rises = {s: float(_first_updates(case, s)[2, 0]) for s in (_small_radius(case), 1e-20)}
    bound = (K / math.exp((K - 1) ** 2)) ** 2
    shown = ", ".join(f"{rise:.3g} at sigma_eff^2 = {s:.2g}" for s, rise in rises.items())
    return _tools.shows(
        min(rises.values()) if case.eta < limit else 0.0, 1e-5,
        f"K = 3, gamma = {case.gamma}, eps = {case.eps:g} (Lemma F.2 asks for more than {bound:.2g}), eta = {case.eta} below the limit"
        f" {limit:.3g}: at the first step beta_(3,1) rises, delta = {shown}",
    )  # fmt: skip


@remember
def _clean_path(case: Instance) -> Path:
    return _path(case, 0.0)


def _radius(subject: Callable[[Instance], float], fast: bool) -> Evidence:
    """Within the subject's radius: signs and order strict at every step, and the rule met about as soon as without noise."""
    worst, cases, where = math.inf, 0, ""
    for case in INSTANCES[: 4 if fast else None]:
        clean = _clean_path(case)
        for share in (0.99, 0.3) if fast else (0.99, 0.5, 0.1, 1e-3):
            found = _path(case, subject(case) * share, 4 * clean.steps + 50)
            margin = min(found.rising, found.falling, found.ordered) if found.stopped else -1.0
            cases += 1
            if margin < worst:
                worst, where = margin, f"gamma = {case.gamma}, sigma_eff^2 = {subject(case) * share:.3g}"
    return _tools.at_least(
        [worst - 1e-15], "seven instances, K = 2 to 4, mixed signs, fine-tuned within four times the clean number of steps", cases=cases,
        detail=f"smallest strict margin {worst:.3g} at {where}",
    )  # fmt: skip


def _small_radius(case: Instance) -> float:
    return 0.05 * case.eps


def _margin_kept(subject: Callable[[int, float, float], float], fast: bool) -> Evidence:
    """eta_max - delta <= noisy eta_max for all noise below the subject's radius."""
    worst, cases = math.inf, 0
    for K, eps, delta in itertools.product((2, 3, 6), (1e-3, 0.05), (0.3, 0.03, 1e-3)):
        for product in (-1.0, -0.3, 0.2, 1.0):
            clean = math.exp(product * alpha_star(K, eps) / (K - 1))
            for share in (0.999, 0.1, 1e-4):
                s = subject(K, eps, delta) * share
                noisy = math.exp(product * theory.alpha_hat(K, eps, s) / (K - 1))
                worst = min(worst, noisy - (clean - delta * clean))
                cases += 1
    return _tools.at_least(
        [worst], "K in (2, 3, 6), gamma_k gamma_n from -1 to 1, margins of 0.1 to 30 per cent of eta_max", cases=cases,
        detail=f"smallest room left {worst:.3g}",
    )  # fmt: skip


def _margin_radius(K: int, eps: float, delta: float) -> float:
    return 0.5 * delta * math.sqrt(eps)


def _theta(subject: Callable[[int, float], float], fast: bool) -> Evidence:
    """Ratio of rho_hat to the subject's scale as sigma -> 0: bounded above and below over K and eps?"""
    ratios = [
        theory.rho_hat(K, share * eps_limit(K), 1e-9 * share) / subject(K, share * eps_limit(K))
        for K in (2, 3, 10, 100, 10**4, 10**6)
        for share in (0.1, 1e-2, 1e-4, 1e-8, 1e-12)
    ]
    spread = max(ratios) / min(ratios)
    return _tools.at_least(
        [6.0 - spread], "K from 2 to 1e6, eps from 1e-12 to 0.1 of its limit, sigma_eff^2 = 1e-9 eps / limit", cases=len(ratios),
        strength="trend", detail=f"ratio from {min(ratios):.3f} to {max(ratios):.3f}",
    )  # fmt: skip


def _same_scale(subject: Callable[[float], float], fast: bool) -> Evidence:
    """rho_hat within a factor 2 of rho for noise below the subject's radius."""
    worst, cases = math.inf, 0
    for K, share in itertools.product((2, 3, 10, 1000), (0.5, 0.1, 1e-3, 1e-8, 1e-13)):
        eps = share * eps_limit(K)
        clean = K / (K - 1) * alpha_star(K, eps)
        for part in (1.0, 0.1, 1e-3):
            s = subject(eps) * part
            ratio = theory.rho_hat(K, eps, s) / clean if eps < theory.eps_limit(K, s) else math.nan
            worst = min(worst, 2 - ratio, ratio - 0.5) if math.isfinite(ratio) else -math.inf
            cases += 1
    return _tools.at_least([worst], "K in (2, 3, 10, 1000), eps from 1e-13 to 0.5 of its limit", cases=cases)


def _rises(subject: Callable[[int, float, float], float], fast: bool) -> Evidence:
    """Delta at its own time over rho_hat: within a factor 3 of subject(K, gamma_k, g) for some g in [min, max] gamma."""
    worst, where, cases = math.inf, "", 0
    for case in (
        *INSTANCES[: 4 if fast else None],
        Instance((1.0, 0.5), 0.01, 0.5),
        Instance((0.95, 0.95, 0.95), 0.01, 0.5),
    ):
        s = _small_radius(case)
        K = len(case.gamma)
        found = _path(case, s)
        rho = theory.rho_hat(K, case.eps, s)
        for k, own in enumerate(case.gamma):
            ends = [subject(K, own, g) for g in (min(case.gamma), max(case.gamma))]
            rise = float(found.rises[k]) / rho
            # The last step overshoots; allow its size.
            margin = min(3 * max(ends) - rise, rise - min(ends) / 3) + 0.02
            cases += 1
            if margin < worst:
                worst, where = (
                    margin,
                    f"gamma = {case.gamma}, k = {k + 1}: Delta/rho = {rise:.3g}, bracket from {min(ends):.3g} to {max(ends):.3g}",
                )
    return _tools.at_least(
        [worst], "nine instances, K = 2 to 4, sigma_eff^2 = eps / 20", cases=cases, detail=f"tightest at {where}"
    )


def _rises_fail() -> Evidence:
    case = Instance((1.0, 0.5), 0.01, 0.5)
    s = _small_radius(case)
    found = _path(case, s)
    top = max(theory.rise_printed(2, 1.0, g) for g in (0.5, 1.0))
    rise = float(found.rises[0]) / theory.rho_hat(2, case.eps, s)
    return _tools.shows(
        min(rise, -top),
        0.02,
        f"K = 2, gamma = (1, 0.5), eps = 0.01, sigma_eff^2 = {s:g}: Delta_1 = {rise:.3g} rho_hat > 0, the printed bracket is at most {top:.3g} < 0",
    )


def _falls(subject: Callable[..., tuple[float, float]], fast: bool) -> Evidence:
    """Lambda at its own time between the subject's bounds."""
    worst, where, cases = math.inf, "", 0
    for case in (
        *INSTANCES[: 4 if fast else None],
        Instance((0.99, 0.98), 0.01, 0.5),
        Instance((0.95, 0.95, 0.95), 0.01, 0.5),
    ):
        s = _small_radius(case)
        K = len(case.gamma)
        found = _path(case, s)
        rho = theory.rho_hat(K, case.eps, s)
        for k, own in enumerate(case.gamma):
            low, high = subject(K, float(found.rises[k]), own, case.gamma, k, rho)
            for n in range(K):
                if n != k:
                    fall = float(found.falls[n, k])
                    margin = min(fall - low, high - fall) + 1e-9
                    cases += 1
                    if margin < worst:
                        worst, where = (
                            margin,
                            f"gamma = {case.gamma}, k = {k + 1}: Lambda = {fall:.3g}, bounds {low:.3g} and {high:.3g}",
                        )
    return _tools.at_least(
        [worst], "instances with K = 2 to 4, sigma_eff^2 = eps / 20", cases=cases, detail=f"tightest at {where}"
    )


def _falls_theta(factor: float) -> Callable[..., tuple[float, float]]:
    """Eq. 35 with constants 1/factor and factor, over gamma_beta in [min, max] of all gammas."""

    def bounds(K: int, rise: float, own: float, gamma: Sequence[float], k: int, rho: float) -> tuple[float, float]:
        ends = [theory.fall_printed(K, rise, own, g, rho) for g in (min(gamma), max(gamma))]
        return min(ends) / factor, max(ends) * factor

    return bounds


def _falls_two_sided(share: float) -> Callable[..., tuple[float, float]]:
    def bounds(K: int, rise: float, own: float, gamma: Sequence[float], k: int, rho: float) -> tuple[float, float]:
        others = [g for n, g in enumerate(gamma) if n != k]
        return theory.fall_bounds(K, rise, own, share * (max(others) - min(others)), rho)

    return bounds


def _falls_fail() -> Evidence:
    case = Instance((0.99, 0.98), 1e-4, 0.5)
    s = _small_radius(case)
    found = _path(case, s)
    rho = theory.rho_hat(2, case.eps, s)
    fall = float(found.falls[1, 0])
    low = min(theory.fall_printed(2, float(found.rises[0]), 0.99, g, rho) for g in (0.98, 0.99))
    return _tools.shows(
        low / max(fall, 1e-12), 10.0,
        f"K = 2, gamma = (0.99, 0.98), eps = 1e-4: Lambda = {fall:.3g}, the printed argument at least {low:.3g}; for gamma = (1, 1) they"
        f" are 0 and {rho / 2:.3g}, so no constant helps",
    )  # fmt: skip


def _perturbation(subject: float, fast: bool) -> Evidence:
    """|noisy delta - clean delta| at the same scores is at most subject s / K."""
    draw = np.random.default_rng(2)
    worst, cases = 0.0, 0
    for K, s in itertools.product((2, 3, 6), (1e-3, 0.5, 10.0)):
        scores = torch.tensor(draw.normal(0, 3, (200 if fast else 5000, K, K)))
        noisy = population.descent(scores, prompts.balanced(K, K, sigma=math.sqrt(s)))
        clean = population.descent(scores, prompts.balanced(K))
        worst = max(worst, float((noisy - clean).abs().max()) * K / s)
        cases += scores.shape[0]
    return _tools.at_least(
        [subject - worst], "random scores, K in (2, 3, 6), sigma_eff^2 from 1e-3 to 10", cases=cases, seed=2,
        detail=f"largest {worst:.4g} sigma_eff^2 / K",
    )  # fmt: skip


def _tolerances(subject: float, fast: bool) -> Evidence:
    """Smallest of the strict margins over all steps before stopping, without noise, must exceed the subject."""
    found = [_clean_path(case) for case in INSTANCES[: 4 if fast else None]]
    least = min(min(p.rising, p.falling, p.ordered) for p in found)
    return _tools.at_least(
        [least - subject if all(p.stopped for p in found) else -1.0], "instances with K = 2 to 4", cases=len(found),
        detail=f"smallest margin {least:.3g} over {sum(p.steps for p in found)} steps",
    )  # fmt: skip


def _slack(subject: Callable[[float], float], fast: bool) -> Evidence:
    """Any attention with clean loss at most eps/K has noisy excess at most eps/K, for s below subject(xi), eps >= xi."""
    draw = np.random.default_rng(3)
    worst, cases = math.inf, 0
    for K, xi in itertools.product((2, 3, 6), (1e-6, 1e-3, 0.05)):
        s = subject(xi) * 0.999
        for eps in (xi, 3 * xi):
            n = 300 if fast else 5000
            shares = draw.dirichlet(np.full(K - 1, 0.4), n)
            shape = 1 + (shares**2).sum(1)
            # 1 - a up to the value at which the clean loss is eps/K.
            rest = np.sqrt(2 * eps / shape) * np.concatenate([[0.0, 1.0], draw.uniform(0, 1, n - 2)])
            rest = np.minimum(rest, 1.0)
            clean = rest**2 * shape
            squares = (1 - rest) ** 2 + rest**2 * (shape - 1)
            excess = (clean + s * (squares - theory.best_attention(K, s))) / 2
            worst = min(worst, float((eps - excess).min()) / eps)
            cases += n
    return _tools.at_least(
        [worst], "K in (2, 3, 6), xi from 1e-6 to 0.05, eps in (xi, 3 xi), drawn attention with L_k <= eps/K", cases=cases, seed=3,
        tolerance=1e-12, source="rounding",
    )  # fmt: skip


# Theorem K.3.

TRIPLES = ((Fraction(3, 5), Fraction(4, 5)), (Fraction(-5, 13), Fraction(12, 13)), (Fraction(8, 17), Fraction(15, 17)))


def _projected(entry: str, noisy: Sequence[Fraction]) -> Callable[[Any, bool], Evidence]:
    """Change of scores on V caused by U D U', D an exact noisy descent direction, against the subject."""

    def run(subject: Callable[..., Any], fast: bool) -> Evidence:
        gaps: list[Any] = []
        K = 3
        W = _tools.rational_features(2 * K, 2 * K, 77)
        V, outside = W[:, :K], W[:, K:]
        gamma, sine = zip(*TRIPLES, strict=True)
        U = np.array(V) * np.array(gamma, dtype=object) + outside * np.array(sine, dtype=object)
        for variance in noisy:
            D = _noisy_descent(_tools.fractions((K, K), 60), variance)
            moved = V.T @ (U @ D @ U.T) @ V
            for n, k in itertools.product(range(K), repeat=2):
                if (n == k) == (entry == "alpha"):
                    # Delta is D_kk, Lambda is -D_nk.
                    gaps.append(moved[n, k] - subject(gamma[n], gamma[k], D[n, k] if n == k else -D[n, k]))
        return _tools.exactly(gaps, "K = 3, d = 6, rational orthonormal V and U with gamma = (3/5, -5/13, 8/17)")

    return run


def _noisy_descent(weights: np.ndarray, variance: Fraction) -> np.ndarray:
    """Exact descent direction of the noisy loss with one token per feature."""
    K = weights.shape[0]
    found = _tools.exact_descent(weights, [1] * K)
    a = _tools.exact_attention(weights)
    for n, k in itertools.product(range(K), repeat=2):
        square = sum(a[m, k] ** 2 for m in range(K))
        found[n, k] = found[n, k] + variance * Fraction(1, K) * a[n, k] * (square - a[n, k])
    return found


def _claim(claim_id: str, label: str, kind: Any, title: str, statement: str, **rest: Any) -> Claim:
    return Claim(id=claim_id, label=label, kind=kind, title=title, statement=statement, chapter=PAGE, **rest)


_SMALL_EPS = (
    r"$\epsilon < (K-1)/(2K(1+s))$, $s=\sigma_{\mathrm{eff}}^2$, the excess at $Q=0$, and small steps: it is the limit $\eta\to0$, and for"
    r" $\eta\le12(K-1)^2/(K(1+s))$ training ends past it by at most "
)
_OVERSHOOT = r"\tfrac{\eta(1+s)}{K-1}\,a\,(1-a)\,\big(\tfrac{K+s}{K(1+s)}-a\big)"
_ENDED = r"training ended at $\hat\alpha^*_{K,\epsilon}$"
_K2 = (
    MODEL,
    "Assumption 5.4",
    r"a fixed instance $(U,V,K,\epsilon,\hat\eta)$, $\hat\eta\le\eta_{\max}-\delta$",
    _ENDED,
)
_WITHIN = (*_K2, r"$\sigma_{\mathrm{eff}}^2<s^\star$, the radius of Theorem K.2")

CLAIMS: tuple[Claim, ...] = (
    _claim(
        "ood.eq-31", "eq. 31", "equation", "Noisy training loss",
        r"$\hat L = L + \tfrac{\sigma_{\mathrm{eff}}^2}{2}\mathbb{E}[\sum_k 1_{x=v_k}\sum_j\mathrm{Attn}_{v_j}^2] + \tfrac{\sigma^2}{2}$.",
        hypotheses=(MODEL,),
        checks=(Check("exact tokens", _total, _eq_31(Fraction(1, 2), True, Fraction(1)), mutants={
            "context term doubled": _eq_31(Fraction(1), True, Fraction(1)), "sigma for sigma_eff": _eq_31(Fraction(1, 2), False, Fraction(1)),
            "query term doubled": _eq_31(Fraction(1, 2), True, Fraction(2)),
        }),),
        uses=("ood.lem-D.8",),
    ),
    _claim(
        "ood.app-K.floor", "Appendix K, noise floor", "equation", "Irreducible error",
        r"The least total loss is $\epsilon_0 = \tfrac12\big[\sigma^2+\tfrac{\sigma_{\mathrm{eff}}^2(K+\sigma_{\mathrm{eff}}^2)}{K(1+\sigma_{\mathrm{eff}}^2)}\big]$.",
        hypotheses=(MODEL,),
        checks=(Check("symbolic minimum", _floor, _floor_printed, mutants={
            "K in place of K + s": lambda K, s, v: (v + s / (1 + s)) / 2, "1 + s dropped": lambda K, s, v: (v + s * (K + s) / K) / 2,
            "1/2 dropped": lambda K, s, v: 2 * _floor_printed(K, s, v),
        }),),
        uses=("ood.eq-31",),
        note=r"Attained at finite scores for $\sigma>0$, at $\mathrm{Attn}=(K+s)/(K(1+s))$ with equal attention on the others, $s=\sigma_{\mathrm{eff}}^2$.",
    ),
    _claim(
        "ood.app-K.time.exists", "Appendix K, convergence time", "text", "Noisy training stops",
        r"For every $\epsilon>0$ training reaches $\hat L_{v_k}-\epsilon_0/K<\epsilon/K$ for all $k$.",
        hypotheses=(MODEL, r"constant step size $\eta$"),
        checks=(
            Check("eta = 1", _converges, lambda K, s: 1.0),
            Check("instance", lambda s, fast: _oscillates(), None, "counterexample"),
            Check("small steps", _converges, theory.careful_eta, "conditional", {
                "eta = 30": lambda K, s: 30.0, "without noise in the bound": lambda K, s: theory.careful_eta(K, 0.0),
            }),
            Check("polynomial behind the careful step size", _careful_polynomial, Fraction(1, 12), "conditional", {"1/14": Fraction(1, 14)}),
        ),
        why=r"The noisy loss has its minimum at finite scores: steps large beside $2K^3/(1+\sigma_{\mathrm{eff}}^2)$ swing about it.",
        added_hypothesis=r"$\eta\le 12(K-1)^2/(K(1+\sigma_{\mathrm{eff}}^2))$.",
        uses=("ood.app-K.floor",),
        note="With such steps the attention rises to its best value and never passes it. Without noise any step size stops; the argument of the cited work does not see this.",
    ),
    _claim(
        "ood.app-K.time.order", "Appendix K, convergence time", "order", "Order of the noisy training time",
        r"$\hat T_1 = \mathrm{poly}(1/\epsilon, K, 1/\eta, \sigma)$.",
        hypotheses=(MODEL, "steps small enough to converge"),
        checks=(Check("local exponents", _time_exponents, (1.1, 3.2, 0.1), mutants={
            "square root of 1/eps": (0.5, 3.2, 0.1), "square root of K": (1.1, 0.5, 0.1),
        }),),
        uses=("ood.app-K.time.exists", "ood.eq-32"),
        note=r"For $\epsilon$ well below $\sigma_{\mathrm{eff}}^4$ the time grows only like $\log(1/\epsilon)$; it falls with $\sigma$.",
    ),
    _claim(
        "ood.thm-K.1.scores.geometry", "Theorem K.1", "theorem", "Scores on OOD features after noisy training",
        r"$\hat\alpha_{u_k}, \hat\beta_{u_{k'},u_k} = \tfrac{K\hat\alpha}{K-1}\big([M^\top M]_{k',k}-\langle u_k,\bar v\rangle\langle u_{k'},\bar v\rangle\big)$"
        r" with $\hat\alpha$ the $\alpha$-type weight that training reached.",
        hypotheses=(MODEL,),
        checks=(Check("exact", _geometry, lambda alpha, mm, cc, K: Fraction(K, K - 1) * alpha * (mm - cc), mutants={
            "plus": lambda alpha, mm, cc, K: Fraction(K, K - 1) * alpha * (mm + cc), "factor K/(K-1) dropped": lambda alpha, mm, cc, K: alpha * (mm - cc),
        }), Check("noisy steps keep the scores symmetric", _noisy_symmetry, lambda D, n, k: D[n, k] * (len(D) - 1) + D[k, k], mutants={
            "K for K - 1": lambda D, n, k: D[n, k] * len(D) + D[k, k], "sign": lambda D, n, k: D[n, k] * (len(D) - 1) - D[k, k],
        })),
        uses=("ood.lem-D.7", "ood.thm-5.1.scores"),
    ),
    _claim(
        "ood.thm-K.1.scores.level", "Theorem K.1", "theorem", "Level of the scores after noisy training",
        r"For every $\epsilon>0$ training ends with $\alpha = \hat\alpha^*_{K,\epsilon} = (1-\tfrac1K)\log\tfrac{(K-1)\mathrm{Attn}}{1-\mathrm{Attn}}$, Attn from eq. 32.",
        hypotheses=(MODEL,),
        checks=(
            Check("gradient descent", _level_printed, _alpha_formula),
            Check("instance", lambda s, fast: _level_fails(), None, "counterexample"),
            Check("first crossing of the threshold", _level, theory.alpha_hat, "conditional", {
                "noiseless level": lambda K, eps, s: alpha_star(K, eps), "factor 1 - 1/K dropped": theory.rho_hat,
            }),
            Check("distance with discrete steps", _past, theory.overshoot, "conditional", {
                "a third of the bound": lambda K, eps, s, eta: theory.overshoot(K, eps, s, eta) / 3,
                "noiseless bound": lambda K, eps, s, eta: 2 * eta * eps * theory.attention_at_end(K, eps, s) / K,
            }),
        ),
        why=r"For $\epsilon$ at or above the initial excess training stops at $Q=0$; and discrete steps end a little past the threshold,"
        r" where the rule, a strict inequality, does not hold yet.",
        added_hypothesis=_SMALL_EPS + "$" + _OVERSHOOT + "$, $a$ from eq. 32.",
        uses=("ood.eq-16", "ood.eq-32", "ood.app-K.floor"),
    ),
    _claim(
        "ood.eq-32", "eq. 32", "equation", "Attention when noisy training ends",
        r"$\mathrm{Attn}_v = \tfrac{K+s}{K(1+s)}-\sqrt{\tfrac{2(K-1)}{K(1+s)}\epsilon}$ with $s=\sigma_{\mathrm{eff}}^2$, for every $\epsilon>0$.",
        hypotheses=(MODEL,),
        checks=(
            Check("gradient descent", _attention_printed, theory.attention_at_end),
            Check("instance", lambda s, fast: _attention_fails(), None, "counterexample"),
            Check("first crossing of the threshold", _attention, theory.attention_at_end, "conditional", {
                "plus": lambda K, eps, s: 2 * theory.best_attention(K, s) - theory.attention_at_end(K, eps, s),
                "1 + s dropped in the root": lambda K, eps, s: theory.best_attention(K, s) - math.sqrt(2 * (K - 1) * eps / K),
            }),
            Check("distance with discrete steps", _past_attention, _attention_bound, "conditional", {
                "a third of the bound": lambda K, eps, s, eta: _attention_bound(K, eps, s, eta) / 3,
            }),
        ),
        why=r"It needs $\mathrm{Attn} > 1/K$, that is $\epsilon$ below the initial excess; and it holds up to the last step.",
        added_hypothesis=_SMALL_EPS + r"$\tfrac{K}{4(K-1)}\cdot" + _OVERSHOOT + "$, $a$ from the formula.",
        uses=("ood.app-K.floor", "ood.thm-K.1.proof.loss"),
        note="The excess has two roots; training from below meets the lower one first.",
    ),
    _claim(
        "ood.eq-33", "eq. 33", "equation", "Noisy OOD loss",
        r"$\hat L_{u_k}$ is the noiseless expression at the noisy scores, plus $\tfrac{\sigma_{\mathrm{eff}}^2}{2K}\sum_n\mathrm{Attn}_{u_n}^2$, plus $\tfrac{\sigma^2}{2K}$.",
        hypotheses=(MODEL,),
        checks=(Check("exact tokens", _per_feature, _EQ_33, mutants={
            "without 1/K": _EQ_36, "sigma for sigma_eff": _eq_33(lambda K: Fraction(1, 2 * K), False), "no query noise": _eq_33(lambda K: Fraction(1, 2 * K), query=0),
        }),),
        uses=("ood.lem-D.9", "ood.eq-31"),
    ),
    _claim(
        "ood.thm-K.1.compare.geometry", "comparison after Theorem K.1, item 1", "text", "Same geometric structure",
        r"The scores on $U$ depend on $M^\top M$ and $\bar v$ as without noise: they are the noiseless scores times the ratio of the $\alpha$-type weights that"
        r" training reached, which the formulas give as $\hat\alpha^*/\alpha^*$.",
        checks=(Check("gradient descent", _same_geometry, lambda scores, ratio: ratio * scores, mutants={
            "no factor": lambda scores, ratio: scores, "squared": lambda scores, ratio: ratio**2 * scores,
        }),),
        uses=("ood.app-K.floor", "ood.thm-K.1.scores.geometry"),
    ),
    _claim(
        "ood.thm-K.1.compare.attention", "comparison after Theorem K.1, item 2", "text", "Shift and rescaling of attention",
        r"Eq. 32 is the attention $1-\sqrt{2(K-1)\epsilon/K}$ that goes with eq. 16, shifted by $-\tfrac{(K-1)s}{K(1+s)}$ and with the root divided by"
        r" $\sqrt{1+s}$.",
        checks=(Check("symbolic", _noiseless, (1, 1), mutants={"root doubled": (2, 1), "shift reversed": (1, -1)}),),
        uses=("ood.eq-32", "ood.eq-16"),
        note="A relation of the two formulas; where training really ends, with and without noise, is said in the records beside this one and of eq. 32.",
    ),
    _claim(
        "ood.thm-K.1.compare.attention.noiseless", "comparison after Theorem K.1, item 2", "text", "Attention when noiseless training ends",
        r"Without noise $\mathrm{Attn}_v^{(T_1)} = 1-\sqrt{2(K-1)\epsilon/K}$.",
        hypotheses=("training from $Q^{(0)}=0$ on balanced prompts with a constant step size", r"$0<\epsilon<(K-1)/(2K)$"),
        checks=(
            Check("runs of gradient descent", _noiseless_end, lambda K, eps, eta: 0.0),
            Check("two runs", lambda s, fast: _noiseless_end_fails(), None, "counterexample"),
            Check("runs of gradient descent", _noiseless_end, _noiseless_end_bound, "corrected", {
                "a third of the bound": lambda K, eps, eta: _noiseless_end_bound(K, eps, eta) / 3,
            }),
        ),
        why="Discrete steps end past the threshold (Lemma E.1).",
        corrected=r"$1-\sqrt{2(K-1)\epsilon/K}\le\mathrm{Attn}_v^{(T_1)}\le1-\sqrt{2(K-1)\epsilon/K}+\tfrac{K}{4(K-1)}r$ with the bound $r$ of Lemma E.1 on the"
        r" overshoot of $\alpha$; equality is the limit $\eta\to0$.",
        uses=("ood.lem-E.1.scores", "ood.eq-16"),
    ),
    _claim(
        "ood.thm-K.1.compare.parts", "comparison after Theorem K.1, item 3", "text", "Three components of the noisy OOD loss",
        "Eq. 33 is the noiseless expression, an attention-dependent term proportional to $\\sigma_{\\mathrm{eff}}^2$, and $\\sigma^2/(2K)$.",
        checks=(Check("exact tokens", _components, (1, 1, 1), mutants={"no context term": (1, 0, 1), "query term doubled": (1, 1, 2)}),),
        uses=("ood.eq-33",),
    ),
    _claim(
        "ood.thm-K.1.proof.attention", "proof of Theorem K.1", "step", "Sum of squared attention",
        r"$\mathbb{E}[\sum_j 1_{x=v_j}\sum_n\mathrm{Attn}_{v_n}^2] = \tfrac{e^{2K\hat\alpha/(K-1)}+K-1}{(e^{K\hat\alpha/(K-1)}+K-1)^2}$ on the symmetric trajectory.",
        checks=(Check("symbolic", _proof_attention, lambda x, K: (x**2 + K - 1) / (x + K - 1) ** 2, mutants={
            "K for K - 1": lambda x, K: (x**2 + K) / (x + K - 1) ** 2, "x for x^2": lambda x, K: (x + K - 1) / (x + K - 1) ** 2,
        }),),
        uses=("ood.lem-D.7",),
    ),
    _claim(
        "ood.thm-K.1.proof.loss", "proof of Theorem K.1", "step", "Total loss by completing the square",
        r"$\hat L = \epsilon_0+\tfrac{K(1+s)}{2(K-1)}\big(\mathrm{Attn}-\tfrac{K+s}{K(1+s)}\big)^2$ on the symmetric trajectory.",
        checks=(Check("symbolic", _proof_loss, _completed, mutants={
            "1 + s dropped": lambda K, s, v, a: _floor_printed(K, s, v) + K / (2 * (K - 1)) * (a - (K + s) / (K * (1 + s))) ** 2,
            "factor 2": lambda K, s, v, a: 2 * _completed(K, s, v, a) - _floor_printed(K, s, v),
        }),),
        uses=("ood.app-K.floor", "ood.thm-K.1.proof.attention"),
    ),
    _claim(
        "ood.thm-K.1.proof.solve", "proof of Theorem K.1", "step", "Where the rule holds",
        r"An excess of $\epsilon$ meets the convergence condition, and solving for it determines $\hat\alpha^*$: the rule holds from $a^\circ-r$ on,"
        r" $a^\circ=\tfrac{K+s}{K(1+s)}$, $r=\sqrt{\tfrac{2(K-1)\epsilon}{K(1+s)}}$.",
        checks=(
            Check("rule at each attention", _rule_holds, lambda a, low, high: a >= low),
            Check("instance", lambda s, fast: _two_roots(), None, "counterexample"),
            Check("rule at each attention", _rule_holds, lambda a, low, high: low < a < high, "corrected", {
                "root included": lambda a, low, high: low <= a < high, "no upper end": lambda a, low, high: a > low,
            }),
        ),
        why=r"The rule is printed as a strict inequality, which an excess of exactly $\epsilon$ does not meet; and with noise the excess is $\epsilon$ at two"
        r" attentions, where the upper one is below 1.",
        corrected=r"The rule holds exactly for $a^\circ-r<a<a^\circ+r$. Training starts below and comes to the lower end first, which gives $\hat\alpha^*$ in the limit"
        " of small steps.",
        uses=("ood.thm-K.1.proof.loss",),
        note="Theorem K.1 takes the lower root without saying so. Large steps can jump over the whole interval (record of the convergence time).",
    ),
    _claim(
        "ood.thm-K.1.proof.ood", "proof of Theorem K.1", "step", "Noisy OOD loss",
        r"$\hat L_{u_k} = L_{u_k}+\tfrac{\sigma_{\mathrm{eff}}^2}{2}\mathbb{E}[1_{x=u_k}\sum_n\mathrm{Attn}_{u_n}^2]+\tfrac{\sigma^2}{2K}$.",
        checks=(Check("exact tokens", _components, (1, 1, 1), mutants={"no context term": (1, 0, 1), "query term doubled": (1, 1, 2)}),),
        uses=("ood.eq-33",),
    ),
    _claim(
        "ood.thm-K.2.radius", "Theorem K.2", "theorem", "A noise radius that preserves the dynamics",
        r"For a fixed instance there is $s^\star>0$ such that for $\sigma_{\mathrm{eff}}^2<s^\star$ the noisy run has the properties that the noiseless proof uses: until"
        r" it stops all $\alpha$-type weights rise, all $\beta$-type weights fall and keep their order, and every $\hat L_{u_k}-\epsilon_0/K\le\epsilon/K$ is"
        r" reached in polynomially many steps.",
        hypotheses=_K2,
        checks=(
            Check("signs at the first step, any eps", _signs, (*INSTANCES, TINY)),
            Check("an eps below the condition of Lemma F.2", lambda s, fast: _sign_fails(), None, "counterexample"),
            Check("signs at the first step", _signs, INSTANCES, "conditional", {"any eps": (*INSTANCES, TINY)}),
            Check("runs within a radius of eps/20", _radius, _small_radius, "conditional", {
                "radius 1 for all": lambda case: 1.0, "radius 3": lambda case: 3.0,
            }),
        ),
        why=r"The proof takes the signs from Lemma F.2, whose condition on $\epsilon$ the theorem does not state. Far below it a $\beta$ can rise without noise, by a"
        " strict margin, and then it does for every small noise.",
        added_hypothesis=r"the noiseless run has the signs: $\epsilon>(K/\exp((K-1)^2))^2$ is enough (Lemma F.2; nothing is needed for $K=2$).",
        uses=("ood.thm-K.1.scores.level", "ood.eq-16", "ood.lem-F.2.result", "ood.lem-F.3.order", "ood.thm-5.5.time", "ood.app-K.floor", "ood.eq-32"),
        note=r"Read as 'what the noiseless run has, a run with little noise has too', nothing is to be added. The order of the $\beta$-type weights and the stopping"
        r" need no condition on $\epsilon$. Existence, by continuity over finitely many steps; the radius shown is $\epsilon/20$, and the rule is met within four times"
        r" the noiseless number of steps. The stopping part needs no small noise: each query's"
        r" loss is strictly convex in its attention, and small steps reach its floor $\epsilon_0/K$, which asks for equal attention on the others, for"
        r" any $U$. With large noise a sign does change: at $\gamma=(1, 0.9, -0.9)$, $\epsilon=0.005$ and $\sigma_{\mathrm{eff}}^2=1$ one $\beta$ rises.",
    ),
    _claim(
        "ood.thm-K.2.step", "before Theorem K.2", "text", "Step-size margin",
        r"If $\hat\eta\le\eta_{\max}-\delta$, $\hat\eta$ stays within the noisy limit $\min_n e^{-\hat\beta_{u_n,u_k}^{(\hat T_1)}}$ for small noise.",
        hypotheses=(MODEL, "Assumption 5.4", r"$\delta>0$ fixed"),
        checks=(Check("room left", _margin_kept, _margin_radius, mutants={
            "radius sqrt(eps)": lambda K, eps, delta: math.sqrt(eps), "radius 0.5": lambda K, eps, delta: 0.5,
        }),),
        uses=("ood.thm-K.1.scores.level", "ood.lem-F.3.order", "ood.eq-16"),
        note=r"A radius of $\tfrac12\,\delta\sqrt\epsilon$, with $\delta$ measured in units of $\eta_{\max}$, is enough.",
    ),
    _claim(
        "ood.eq-34", "eq. 34", "equation", "Rise of alpha-type weights with noise",
        r"$\Delta_{k,\alpha}=\Theta\big([1-\gamma_k^2-\gamma_k\hat\gamma_\alpha/K]\hat\rho\big)$ at $\hat t_m$, for some $\hat\gamma_\alpha\in[\gamma_{\min},\gamma_{\max}]$.",
        hypotheses=_WITHIN,
        checks=(
            Check("as printed", _rises, theory.rise_printed),
            Check("instance", lambda s, fast: _rises_fail(), None, "counterexample"),
            Check("with 1 - 1/K", _rises, theory.rise_corrected, "corrected", {
                "printed": theory.rise_printed, "sign of the square": lambda K, g, h: 1 + (1 - 1 / K) * g**2 - g * h / K,
                "constant 0.05": lambda K, g, h: 0.05,
            }),
        ),
        why=r"The initial score is $\gamma_k^2\hat\alpha^*$ and $\hat\alpha^*=(1-1/K)\hat\rho$; without that factor the bracket can be negative.",
        corrected=r"$\Delta_{k,\alpha}=\Theta\big([1-(1-\tfrac1K)\gamma_k^2-\gamma_k\hat\gamma_\alpha/K]\hat\rho\big)$, up to the last step: where the bracket is smaller"
        r" than that step (correlations near 1 at fixed $\epsilon$ and $\eta$), $\Delta$ may be one step.",
        uses=("ood.thm-K.1.scores.level", "ood.app-K.floor", "ood.thm-5.5.alpha", "ood.thm-K.2.radius"),
        note="Judged with constants 1/3 and 3, with 0.02 of the scale for the last step; the counterexample fails for all constants, by its sign.",
    ),
    _claim(
        "ood.eq-35", "eq. 35", "equation", "Fall of beta-type weights with noise",
        r"$\Lambda_{n,k,\beta}=\Theta\big(\Delta_{k,\alpha}/K+\gamma_k\hat\gamma_\beta\hat\rho/K\big)$, for some $\hat\gamma_\beta\in[\gamma_{\min},\gamma_{\max}]$.",
        hypotheses=_WITHIN,
        checks=(
            Check("as printed, constants 1/5 and 5", _falls, _falls_theta(5.0)),
            Check("instance", lambda s, fast: _falls_fail(), None, "counterexample"),
            Check("two-sided bound", _falls, _falls_two_sided(1.0), "corrected", {
                "no spread": _falls_two_sided(0.0), "a quarter of the spread": _falls_two_sided(0.25),
            }),
        ),
        why=r"For equal correlations $\Lambda=\Delta/(K-1)$ goes to 0 as they go to 1, while the printed second term stays: it is a *difference* of correlations that belongs there.",
        corrected=r"$\big|\Lambda_{n,k,\beta}-\tfrac{\Delta_{k,\alpha}}{K-1}\big|\le\tfrac{|\gamma_k|}{K}\big(\max_{n\ne k}\gamma_n-\min_{n\ne k}\gamma_n\big)\hat\rho$.",
        uses=("ood.thm-K.1.scores.level", "ood.app-K.floor", "ood.thm-5.5.beta", "ood.lem-F.3.order", "ood.lem-5.3.result"),
    ),
    _claim(
        "ood.thm-K.2.rho.limit", "comparison after Theorem K.2, item 3", "order", "Noisy logarithmic scale as the noise vanishes",
        r"$\hat\rho_{K,\epsilon,\sigma}=\Theta(\log(K/\epsilon))$ as $\sigma\to0$.",
        checks=(Check("ratio", _theta, lambda K, eps: math.log(K / eps), mutants={
            "log K": lambda K, eps: math.log(K), "root": lambda K, eps: eps**-0.5, "squared": lambda K, eps: math.log(K / eps) ** 2,
        }),),
        uses=("ood.thm-K.1.scores.level", "ood.eq-16", "ood.eq-32"),
        note=r"$\log(K/\sqrt\epsilon)$, used elsewhere, is the same order: between one half and all of $\log(K/\epsilon)$. Near $\epsilon=(K-1)/(2K)$ the scale goes to 0.",
    ),
    _claim(
        "ood.thm-K.2.rho.scale", "comparison after Theorem K.2, item 3", "text", "Same scale as without noise",
        "Within a noise radius $\\hat\\rho$ stays within constant factors of its noiseless counterpart.",
        checks=(Check("factor 2 within a radius of sqrt(eps)/4", _same_scale, lambda eps: math.sqrt(eps) / 4, mutants={
            "radius 0.3": lambda eps: 0.3, "radius eps^(1/8)": lambda eps: eps**0.125,
        }),),
        uses=("ood.thm-K.1.scores.level", "ood.eq-16", "ood.eq-32"),
    ),
    _claim(
        "ood.thm-K.2.rho.items", "comparison after Theorem K.2, items 1 and 2", "text", "What the margins are for",
        r"Small noise keeps the strict inequalities of the noiseless dynamics (item 2), and a tolerance $\epsilon\ge\xi$ absorbs the noise terms (item 1).",
        checks=(
            Check("strict margins remain", _radius, _small_radius, mutants={"radius 1": lambda case: 1.0}),
            Check("noise terms absorbed", _slack, math.sqrt, mutants={"radius 10 sqrt(xi)": lambda xi: 10 * math.sqrt(xi)}),
        ),
        uses=("ood.thm-K.1.scores.level", "ood.thm-K.2.radius", "ood.thm-K.2.proof.slack", "ood.app-K.floor", "ood.eq-16", "ood.eq-32"),
    ),
    _claim(
        "ood.thm-K.2.proof.perturbation", "proof of Theorem K.2", "step", "One-step perturbation",
        r"From the same parameters the noisy and the noiseless update differ by $O(\hat\eta\sigma_{\mathrm{eff}}^2)$: by at most $\tfrac{4}{27}\hat\eta\sigma_{\mathrm{eff}}^2/K$.",
        checks=(Check("random scores", _perturbation, 4 / 27, mutants={"1/40": 0.025, "0": 0.0}),),
        uses=("ood.eq-31",),
        note=r"The difference is $\tfrac{\sigma_{\mathrm{eff}}^2}{K}a_n(\sum_m a_m^2-a_n)$, at least $-a_n^2(1-a_n)\ge-\tfrac{4}{27}$ and at most $a_n(1-a_n)(1-2a_n)<0.1$.",
    ),
    _claim(
        "ood.thm-K.2.proof.tolerance", "proof of Theorem K.2", "step", "Positive tolerances over a finite horizon",
        "At every step before stopping the strict inequalities of the noiseless proof hold with a positive margin, so that the least of them is positive.",
        hypotheses=("the noiseless run has these properties (Lemmas F.2 and F.3)",),
        checks=(Check("noiseless runs", _tolerances, 0.0, mutants={"margin 1": 1.0}),),
        uses=("ood.eq-16", "ood.lem-F.2.result", "ood.lem-F.3.order"),
        note=r"The text takes the minimum along the noisy run, which itself depends on $\sigma$; along the noiseless run, together with continuity, it is sound."
        " Equal correlations give equal weights, not strict order; noise keeps them equal.",
    ),
    _claim(
        "ood.thm-K.2.proof.slack", "proof of Theorem K.2", "step", "Role of xi",
        r"For $\epsilon\ge\xi$ and noise small in terms of $\xi$, a clean loss of at most $\epsilon/K$ gives a noisy excess of at most $\epsilon/K$.",
        checks=(Check("radius sqrt(xi)", _slack, math.sqrt, mutants={"radius 10 sqrt(xi)": lambda xi: 10 * math.sqrt(xi), "radius 1": lambda xi: 1.0}),),
        uses=("ood.app-K.floor", "ood.eq-31"),
        note=r"The radius depends on the instance, $\epsilon$ included, so $\xi$ adds nothing to the theorem; it gives a radius uniform in $\epsilon\ge\xi$.",
    ),
    _claim(
        "ood.thm-K.3.result", "Theorem K.3, eq. 36", "theorem", "Noisy loss on the training features",
        r"$\hat L_{v_k} = \tfrac12\cdot\tfrac{(\sum_n e^{\hat\beta})^2+\sum_n e^{2\hat\beta}+\sigma_{\mathrm{eff}}^2(e^{2\hat\alpha}+\sum_n e^{2\hat\beta})}{(e^{\hat\alpha}+\sum_n e^{\hat\beta})^2}+\tfrac{\sigma^2}{2}$.",
        hypotheses=(MODEL,),
        checks=(
            Check("exact tokens", _per_feature, _EQ_36),
            Check("instance", lambda s, fast: _scaled_fails(), None, "counterexample"),
            Check("divided by K", _per_feature, _EQ_33, "corrected", {"as printed": _EQ_36, "no query noise": _eq_33(lambda K: Fraction(1, 2 * K), query=0)}),
        ),
        why="The query is $v_k$ with probability $1/K$; eq. 33 and Theorem 5.6 have that factor in all terms.",
        corrected=r"All three terms divided by $K$: $2K$ in both denominators and $\sigma^2/(2K)$.",
        uses=("ood.eq-33", "ood.thm-5.6.result.loss"),
    ),
    _claim(
        "ood.eq-37-38.alpha", "eq. 37", "equation", "alpha-type weight on the training features",
        r"$\hat\alpha_{v_k}^{(\hat T_1+\hat T_2)} = \hat\alpha_{v_k}^{(\hat T_1)}+\gamma_k^2\Delta_{k,\alpha}$.",
        hypotheses=(MODEL, "Assumption 5.4"),
        checks=(Check("exact projection", _projected("alpha", (Fraction(1, 2),)), lambda gn, gk, d: gk**2 * d, mutants={
            "gamma": lambda gn, gk, d: gk * d, "sign": lambda gn, gk, d: -(gk**2) * d,
        }),),
        uses=("ood.lem-D.10", "ood.thm-5.6.result.scores"),
    ),
    _claim(
        "ood.eq-37-38.beta", "eq. 38", "equation", "beta-type weights on the training features",
        r"$\hat\beta_{v_n,v_k}^{(\hat T_1+\hat T_2)} = \hat\beta_{v_n,v_k}^{(\hat T_1)}-\gamma_k\gamma_n\Lambda_{n,k,\beta}$.",
        hypotheses=(MODEL, "Assumption 5.4"),
        checks=(Check("exact projection", _projected("beta", (Fraction(1, 2),)), lambda gn, gk, d: -gn * gk * d, mutants={
            "sign": lambda gn, gk, d: gn * gk * d, "gamma_k squared": lambda gn, gk, d: -(gk**2) * d,
        }),),
        uses=("ood.lem-D.10", "ood.thm-5.6.result.scores"),
    ),
    _claim(
        "ood.thm-K.3.compare.form", "comparison after Theorem K.3, item 1", "text", "Form of the weights unchanged",
        "Eq. 37 and 38 have the form of Theorem 5.6, with and without noise.",
        checks=(Check("exact projection", _projected("beta", (Fraction(0), Fraction(1, 2), Fraction(9))), lambda gn, gk, d: -gn * gk * d, mutants={
            "sign": lambda gn, gk, d: gn * gk * d, "one gamma": lambda gn, gk, d: -gn * d,
        }),),
        uses=("ood.eq-37-38.beta", "ood.lem-D.10"),
    ),
    _claim(
        "ood.thm-K.3.compare.terms", "comparison after Theorem K.3, item 2", "text", "Two additional noise terms",
        "The loss on a training feature is the noiseless expression at the noisy weights plus the two noise terms of eq. 31, for its query.",
        checks=(Check("exact tokens", _components, (1, 1, 1), mutants={"no context term": (1, 0, 1), "query term doubled": (1, 1, 2)}),),
        uses=("ood.eq-31", "ood.eq-33"),
        note="With the normalisation of eq. 33; eq. 36 as printed is K times as large.",
    ),
)  # fmt: skip

"""Records of the OOD paper's Appendix I: tokens drawn independently, so that prompts hold the features unequally often."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from torch import Tensor

from icl_core import dynamics, features, fine_tuning, population, prompts
from icl_core.claims import _tools
from icl_core.claims.record import Check, Claim, Evidence
from icl_core.theory import fine_tuning as fine_tuning_theory
from icl_core.theory import multinomial
from icl_core.theory._statement import remember
from icl_core.theory.ood import alpha_star, eps_limit

PAGE = "beyond"
DRAWN = r"each of the $N$ tokens and the query drawn independently and uniformly from the $K$ features"

# Prompts that lack features are among these: K features and N tokens.
SIZES = ((2, 1), (2, 3), (3, 2), (3, 4))


@remember
def _prompts(K: int, N: int, p: tuple[Fraction, ...] | None = None) -> tuple[tuple[tuple[int, ...], Fraction], ...]:
    """All count vectors with their exact probabilities; uniform tokens by default."""
    chance = p or (Fraction(1, K),) * K
    found = []
    for counts in itertools.product(range(N + 1), repeat=K):
        if sum(counts) == N:
            weight = Fraction(math.factorial(N))
            for c, q in zip(counts, chance, strict=True):
                weight *= q**c / Fraction(math.factorial(c))
            found.append((counts, weight))
    return tuple(found)


@remember
def _case(K: int, N: int) -> tuple[np.ndarray, np.ndarray]:
    """Rational weights exp(scores) and the exact descent direction averaged over prompts."""
    weights = _tools.fractions((K, K), 10 * K + N)
    delta = sum(w * _tools.exact_descent(weights, counts) for counts, w in _prompts(K, N))
    return weights, np.asarray(delta)


def _average(K: int, N: int, value: Callable[[np.ndarray, Sequence[int]], Any]) -> np.ndarray:
    weights, _ = _case(K, N)
    return np.asarray(sum(w * np.asarray(value(weights, counts)) for counts, w in _prompts(K, N)))


_REGION = "K = 2, 3 with 1 to 4 tokens, every count vector, random rational exp(scores)"


def _predictions(subject: Callable[..., np.ndarray], fast: bool) -> Evidence:
    """Token-level prediction for a rational task against sum_v Attn_v <w, v>."""
    gaps = []
    for K, N in SIZES:
        weights, _ = _case(K, N)
        task = _tools.fractions(K, 7 + K, signed=True)
        for counts, _ in _prompts(K, N):
            tokens = [n for n in range(K) for _ in range(counts[n])]
            attn = subject(weights, counts)
            for k in range(K):
                mass = [weights[n, k] for n in tokens]
                got = sum(m * task[n] for m, n in zip(mass, tokens, strict=True)) / sum(mass)
                gaps.append(got - sum(attn[n, k] * task[n] for n in range(K)))
    return _tools.exactly(gaps, _REGION)


def _token_gradient(both: bool, sign: int, feature: bool = False) -> Callable[[np.ndarray, Sequence[int]], np.ndarray]:
    """Lemma D.2 projected on the features, with one attention score per token, or that of the token's feature."""

    def gradient(weights: np.ndarray, counts: Sequence[int]) -> np.ndarray:
        K = weights.shape[0]
        tokens = [n for n in range(K) for _ in range(counts[n])]
        found = np.full((K, K), Fraction(0), dtype=object)
        for k in range(K):
            total = sum(weights[n, k] for n in tokens)
            attn = [weights[n, k] / total for n in tokens]
            error = [Fraction(-int(n == k)) for n in range(K)]
            for a, n in zip(attn, tokens, strict=True):
                error[n] += a
            factor = [a * counts[n] for a, n in zip(attn, tokens, strict=True)] if feature else attn
            for (a, i), (b, other) in itertools.product(zip(factor, tokens, strict=True), repeat=2):
                term = Fraction(1, K) * a * (b if both else Fraction(1, len(tokens))) * error[i]
                found[i, k] += sign * term
                found[other, k] -= sign * term
        return found

    return gradient


def _feature_gradient_fails() -> Evidence:
    K, N = 2, 3
    true, printed = -_case(K, N)[1], _average(K, N, _token_gradient(True, 1, True))
    return _tools.shows(
        float(abs(printed[0, 0] - true[0, 0])), 1e-3,
        f"K = 2, N = 3: u_1' grad u_1 = {float(true[0, 0]):.4f} over all prompts, the printed sum gives {float(printed[0, 0]):.4f}",
        strength="exact",
    )  # fmt: skip


def _gradients(subject: Callable[[np.ndarray, Sequence[int]], np.ndarray], fast: bool) -> Evidence:
    gaps: list[Any] = []
    for K, N in SIZES:
        gaps += list((_average(K, N, subject) + _case(K, N)[1]).ravel())
    return _tools.exactly(gaps, _REGION)


def _lemma_d3(own: int, with_counts: bool = True) -> Callable[[np.ndarray, Sequence[int]], np.ndarray]:
    """Lemma D.3 for given counts; ``own`` multiplies (1 - Attn_u)^2 and Attn_u (1 - Attn_u)."""

    def delta(weights: np.ndarray, counts: Sequence[int]) -> np.ndarray:
        K = weights.shape[0]
        a = _tools.exact_attention(weights, counts if with_counts else None)
        found = np.empty((K, K), dtype=object)
        for n, k in itertools.product(range(K), repeat=2):
            squares = sum(a[m, k] ** 2 for m in range(K) if m != k)
            if n == k:
                found[n, k] = Fraction(1, K) * a[k, k] * (squares + own * (1 - a[k, k]) ** 2)
            else:
                found[n, k] = Fraction(1, K) * a[n, k] * (squares - a[n, k] - own * a[k, k] * (1 - a[k, k]))
        return found

    return delta


def _descents(subject: Callable[[np.ndarray, Sequence[int]], np.ndarray], fast: bool) -> Evidence:
    gaps: list[Any] = []
    for K, N in SIZES:
        gaps += list((_average(K, N, subject) - _case(K, N)[1]).ravel())
    return _tools.exactly(gaps, _REGION)


def _cancels(subject: Fraction, fast: bool) -> Evidence:
    """delta_alpha + subject * sum of delta_beta, per query."""
    gaps = []
    for K, N in SIZES:
        delta = _case(K, N)[1]
        gaps += [delta[k, k] + subject * (sum(delta[:, k]) - delta[k, k]) for k in range(K)]
    return _tools.exactly(gaps, _REGION)


def _symmetric_step(K: int, N: int, p: tuple[Fraction, ...] | None, x: Fraction, y: Fraction) -> np.ndarray:
    weights = np.full((K, K), y, dtype=object)
    np.fill_diagonal(weights, x)
    return np.asarray(sum(w * _tools.exact_descent(weights, c) for c, w in _prompts(K, N, p)))


def _equal_betas(subject: tuple[Fraction, ...] | None, fast: bool) -> Evidence:
    """From equal beta-type weights a step keeps them equal: the induction step of Lemma D.6."""
    gaps: list[Any] = []
    for N in (2, 3):
        for x, y in ((Fraction(1), Fraction(1)), (Fraction(7, 2), Fraction(3, 5))):
            delta = _symmetric_step(3, N, subject, x, y)
            gaps += [delta[1, 0] - delta[2, 0], delta[0, 1] - delta[2, 1], delta[0, 2] - delta[1, 2]]
    return _tools.exactly(gaps, "K = 3, N in (2, 3), every count vector, start and a later symmetric state")


def _ratio(subject: Fraction, fast: bool) -> Evidence:
    """delta_alpha = -(K - 1) delta_beta times the subject, at symmetric states."""
    gaps: list[Any] = []
    for K, N in ((2, 3), (3, 2), (3, 3)):
        for x, y in ((Fraction(1), Fraction(1)), (Fraction(7, 2), Fraction(3, 5))):
            delta = _symmetric_step(K, N, None, x, y)
            gaps += [delta[k, k] + subject * (K - 1) * delta[(k + 1) % K, k] for k in range(K)]
    return _tools.exactly(gaps, "K = 2, 3, every count vector, start and a later symmetric state")


def _loss_form(own: int, with_counts: bool = True) -> Callable[[np.ndarray, Sequence[int]], np.ndarray]:
    """Lemma D.8 for given counts."""

    def lost(weights: np.ndarray, counts: Sequence[int]) -> np.ndarray:
        K = weights.shape[0]
        a = _tools.exact_attention(weights, counts if with_counts else None)
        return np.array(
            [
                Fraction(1, 2 * K) * (sum(a[m, k] ** 2 for m in range(K) if m != k) + own * (1 - a[k, k]) ** 2)
                for k in range(K)
            ],
            dtype=object,
        )

    return lost


def _losses(subject: Callable[[np.ndarray, Sequence[int]], np.ndarray], fast: bool) -> Evidence:
    gaps: list[Any] = []
    for K, N in SIZES:
        want = _average(K, N, lambda w, c: np.array(_tools.exact_losses(w, c), dtype=object))
        gaps += list((_average(K, N, subject) - want).ravel())
    return _tools.exactly(gaps, _REGION)


def _projects(subject: Callable[[Tensor], Tensor], fast: bool) -> Evidence:
    """Lemma D.10: gradients projected on V and on U, from token-level autograd on drawn prompts."""
    source = features.generator(3)
    gamma = [0.8, -0.5]
    V = features.orthonormal(5, 2, generator=source)
    U = features.correlated(V, gamma, generator=source)
    Q = torch.randn(5, 5, dtype=torch.float64, generator=source, requires_grad=True)
    law = prompts.multinomial([0.5, 0.5], 3)
    (slope,) = torch.autograd.grad(population.token_level_losses(Q, U, law).sum(), Q)
    on_v, on_u = V.T @ slope @ V, U.T @ slope @ U
    want = subject(torch.tensor(gamma, dtype=torch.float64)) * on_u
    return _tools.agree(
        on_v.numpy(), want.numpy(), "K = 2, d = 5, N = 3, gamma = (0.8, -0.5), token-level gradient", tolerance=1e-13,
        source="rounding", seed=3,
    )  # fmt: skip


# Lemma I.1.

# Ranges of log K and of log(N eps0^2 / (20 K)).
_LOGS = ((math.log(2), math.log(1e6)), (0.0, math.log(1e6)))


def _log_failure_two(N: int, deviation: float) -> float:
    """log P(|N_1/N - 1/2| > deviation) for two features, exact."""
    from scipy.stats import binom

    low = math.ceil(N * (0.5 - deviation) - 1e-9) - 1
    return math.log(2) + float(binom.logcdf(low, N, 0.5)) if low >= 0 else -math.inf


def _log_failure_three(N: int, eps0: float) -> float:
    """log P(sum_k |N_k/N - 1/3| > eps0) for three features, by enumeration."""
    from scipy.special import gammaln

    i, j = np.meshgrid(np.arange(N + 1), np.arange(N + 1), indexing="ij")
    keep = i + j <= N
    counts = np.stack([i[keep], j[keep], N - i[keep] - j[keep]])
    far = np.abs(counts / N - 1 / 3).sum(0) > eps0 + 1e-12
    if not far.any():
        return -math.inf
    log_p = gammaln(N + 1) - gammaln(counts + 1).sum(0) - N * math.log(3)
    return float(np.logaddexp.reduce(log_p[far]))


def _concentrates(subject: tuple[float, float], fast: bool) -> Evidence:
    """P(not E_0) <= 3 exp(-rate N eps0^2), E_0 with deviations up to share * eps0: proved, or a violation found.

    Hoeffding and a union bound give P(not E_0) <= 2 K exp(-2 (share eps0)^2 N); with x = N eps0^2 >= 20 K the claim
    follows if log 3 - rate x >= log(2 K) - 2 share^2 x.
    """
    rate, share = subject

    def slack(K: Any, times: Any) -> Any:
        from flint import arb

        x = 20 * (K + times).exp()
        return arb(3).log() - arb(2).log() - K + (2 * arb(share) ** 2 - arb(rate)) * x

    proof = _tools.certify(slack, _LOGS, "every K in [2, 1e6], N eps0^2 / (20 K) in [1, 1e6]", limit=4000)
    if proof.passed:
        return proof
    worst, where, cases = math.inf, "", 0
    for eps0 in (0.9, 0.5, 0.3, 0.15):
        for times in (1, 2, 4, 10, 25):
            N = math.ceil(40 / eps0**2 * times)
            slack_here = math.log(3) - rate * N * eps0**2 - _log_failure_two(N, share * eps0)
            cases += 1
            if slack_here < worst:
                worst, where = slack_here, f"K = 2, N = {N}, eps0 = {eps0}"
    return _tools.at_least(
        [worst], "K = 2, exact binomial tails", cases=cases, detail=f"smallest log margin at {where}"
    )


def _devroye(subject: float, fast: bool) -> Evidence:
    """The displayed tail of sum_k |N_k/N - 1/K|, by the bound 2^K exp(-N eps0^2 / 2), or a violation found."""
    rate = subject

    def slack(K: Any, times: Any) -> Any:
        from flint import arb

        return arb(3).log() / K.exp() - arb(2).log() + (arb(1) / 2 - arb(rate)) * 20 * times.exp()

    proof = _tools.certify(slack, _LOGS, "every K in [2, 1e6], N eps0^2 / (20 K) in [1, 1e6]", limit=4000)
    cases, worst = 0, math.inf
    for eps0 in (0.95, 0.7, 0.5):
        for times in (1, 2) if fast else (1, 2, 4):
            N = math.ceil(40 / eps0**2 * times)
            worst = min(worst, math.log(3) - rate * N * eps0**2 - _log_failure_two(N, eps0 / 2))
            N = math.ceil(60 / eps0**2 * times)
            worst = min(worst, math.log(3) - rate * N * eps0**2 - _log_failure_three(N, eps0))
            cases += 2
    found = _tools.at_least([worst], "K = 2, 3, exact tails", cases=cases)
    return proof if proof.passed and found.passed else found


def _contained(subject: Callable[[np.ndarray], np.ndarray], fast: bool) -> Evidence:
    """The union over k of {|N_k/N - 1/K| > e} lies in {subject(deviations) > e}."""
    worst, cases = math.inf, 0
    for K, N in ((2, 9), (3, 8), (4, 6)):
        counts = prompts.multinomial([1 / K] * K, N).counts.numpy()
        deviation = np.abs(counts / N - 1 / K)
        worst = min(worst, float((subject(deviation) - deviation.max(1)).min()))
        cases += len(counts)
    return _tools.at_least(
        [worst], "every count vector of K = 2, 3, 4", cases=cases, tolerance=1e-15, source="rounding"
    )


# Training and fine-tuning lists.


def _flow_time(K: int, N: int, eps: float) -> float:
    """Steps times eta until alpha* is reached on drawn prompts, in the limit of small steps."""
    nodes, weights = np.polynomial.legendre.leggauss(40)
    top = alpha_star(K, eps)
    alpha = (nodes + 1) / 2 * top
    return float(
        top / 2 * sum(w / multinomial.rise(K, N, a * K / (K - 1)) for a, w in zip(alpha, weights, strict=True))
    )


def _time_order(subject: tuple[float, float], fast: bool) -> Evidence:
    """Local exponents of the training time in 1/eps and in K, against the largest that the subject allows."""
    by_eps = [_flow_time(3, 240, e) for e in (1e-2, 1e-3, 1e-4, 1e-5)]
    slopes = np.diff(np.log(by_eps)) / math.log(10)
    sizes = (2, 3, 4) if fast else (2, 4, 8)
    by_K = [_flow_time(K, multinomial.length_for(K, 1 / (2 * K)), 1e-2) for K in sizes]
    growth = np.diff(np.log(by_K)) / np.diff(np.log(sizes))
    return _tools.at_least(
        [subject[0] - slopes.max(), subject[1] - growth.max()],
        f"eps from 1e-5 to 1e-2 at K = 3, N = 240; K in {sizes} at N = 80 K^3", cases=len(by_eps) + len(by_K), strength="trend",
        detail=f"exponent of 1/eps {slopes[0]:.3f} to {slopes[-1]:.3f}, of K {growth[0]:.2f} to {growth[-1]:.2f}; 1/eta exactly 1",
    )  # fmt: skip


def _stops_elsewhere(subject: float, fast: bool) -> Evidence:
    """If T_1 is where the rule L <= eps/K stops training on drawn prompts: is alpha(T_1) = alpha*, up to subject?"""
    gaps = []
    for K, N, eps in ((2, 20, 0.01), (3, 12, 0.02)):
        done = dynamics.train(K, eps, 0.3, law=prompts.multinomial([1 / K] * K, N))
        gaps.append(abs(float(done.alpha[0]) - alpha_star(K, eps)))
    return _tools.at_least(
        subject - np.array(gaps), "K = 2, N = 20 and K = 3, N = 12, eta = 0.3",
        detail=f"alpha at the stop differs from alpha* by {gaps[0]:.3g} and {gaps[1]:.3g}",
    )  # fmt: skip


def _betas_of_training(subject: float, fast: bool) -> Evidence:
    done = dynamics.train(3, 0.05, 0.3, law=prompts.multinomial([1 / 3] * 3, 8), record=10)
    assert done.trajectory is not None
    scores = done.trajectory.scores
    want = -subject * torch.diagonal(scores, dim1=1, dim2=2).unsqueeze(1) / 2
    off = ~torch.eye(3, dtype=torch.bool)
    return _tools.agree(
        scores[:, off].numpy(), want.expand_as(scores)[:, off].numpy(), "K = 3, N = 8, gradient descent, recorded states",
        tolerance=1e-12, source="rounding over the steps",
    )  # fmt: skip


def _long_enough(K: int, eps: float, eps0: float) -> int:
    """Lemma I.1's length, and long enough that prompts without the query's feature do not matter at eps."""
    return max(multinomial.length_for(K, eps0), math.ceil(3 * K * math.log(K / eps)))


def _loss_order(subject: Callable[[int, float, float], int], fast: bool) -> Evidence:
    """Largest K L / eps at alpha* over eps, for the N that the subject prescribes."""
    worst, where = 0.0, ""
    for K in (2, 3, 4):
        for eps in (0.5 * eps_limit(K), 1e-2, 1e-5, 1e-10, 1e-16):
            for eps0 in (0.9, 1 / (2 * K)):
                N = subject(K, eps, eps0)
                ratio = multinomial.loss(K, N, alpha_star(K, eps) * K / (K - 1)) * K / eps
                if ratio > worst:
                    worst, where = ratio, f"K = {K}, N = {N}, eps = {eps:.3g}"
    return _tools.at_least(
        [3.0 - worst], "K = 2, 3, 4, eps from 1e-16, eps0 = 0.9 and 1/(2K), loss at alpha* at most 3 eps/K", cases=30,
        detail=f"largest K L / eps {worst:.4g} at {where}",
    )  # fmt: skip


def _loss_floor() -> Evidence:
    K, eps, eps0 = 2, 1e-20, 0.9
    N = multinomial.length_for(K, eps0)
    lost = multinomial.loss(K, N, alpha_star(K, eps) * 2)
    return _tools.shows(
        lost * K / eps,
        100.0,
        f"K = 2, eps0 = 0.9, N = {N}, eps = 1e-20: L = {lost:.3g} at alpha*, eps/K = {eps / K:.3g}; no Q gets below {multinomial.floor(K, N):.3g}",
    )


def _worst_in_event(subject: Callable[[int], float], fast: bool) -> Evidence:
    """Largest K L / eps at alpha* over prompts of E_0, with eps0 = subject(K) and real-valued shares."""
    worst, where = 0.0, ""
    for K in (2, 3, 4):
        eps0 = subject(K)
        own, most = max(1 / K - eps0, 0.0), min(1 / K + eps0, 1.0)
        # The least own share; the others as unequal as the event allows.
        rest, left = [], 1 - own
        for place in range(K - 1):
            low = own * (K - 2 - place)
            rest.append(min(most, left - low))
            left -= rest[-1]
        for eps in (0.5 * eps_limit(K), 1e-2, 1e-6, 1e-12):
            y = np.array(rest) * math.exp(-alpha_star(K, eps) * K / (K - 1))
            ratio = float((y.sum() ** 2 + (y**2).sum()) / (2 * (own + y.sum()) ** 2)) / eps
            if ratio > worst:
                worst, where = ratio, f"K = {K}, eps0 = {eps0:.3g}, eps = {eps:.3g}"
    return _tools.at_least(
        [9.0 - worst], "K = 2, 3, 4, eps from 1e-12, the prompt of E_0 with the least share of the query's feature", cases=12,
        detail=f"largest K L / eps {worst:.4g} at {where}",
    )  # fmt: skip


def _event_fails() -> Evidence:
    eps = 1e-6
    lost = float(_tools.exact_losses(_tools.fractions((2, 2), 1), (0, 2))[0])
    return _tools.shows(
        lost * 2 / eps,
        100.0,
        f"K = 2, eps0 = 1/2: the prompt without the query's feature is in E_0; its loss is {lost:.3g} at every Q, eps/K = {eps / 2:.3g}",
    )


def _outside(subject: str, fast: bool) -> Evidence:
    """K = 2, eps0 = 1/4, exact binomial sums: log of the bound less log of the loss outside E_0 at alpha*."""
    from scipy.special import logsumexp
    from scipy.stats import binom

    worst, seen = math.inf, []
    eps = 1e-2
    for N in (640, 1280, 2560):
        own = np.arange(N + 1)
        log_p = binom.logpmf(own, N, 0.5)
        y = (N - own) * math.exp(-2 * alpha_star(2, eps))
        out = np.abs(own / N - 0.5) > 0.25
        with np.errstate(divide="ignore"):
            log_loss = np.log(y**2 / (2 * (own + y) ** 2))
        part, rest = logsumexp((log_p + log_loss)[out]), logsumexp(log_p[out])
        seen.append(math.exp(part - rest) * 2 / eps)
        bound = math.log(3) - N / 16 / 25
        worst = min(
            worst,
            {
                "given": bound - (part - rest),
                "share": bound - math.log(2) - part,
                "three times": math.log(1.5) - 3 * N / 16 - part,
            }[subject],
        )
    return _tools.at_least(
        [worst], "K = 2, eps0 = 1/4, eps = 0.01, N = 640, 1280, 2560, exact", cases=3,
        detail=f"conditional loss outside E_0 over eps/K: {', '.join(f'{x:.3g}' for x in seen)}",
    )  # fmt: skip


def _outside_fails() -> Evidence:
    found = _outside("given", True)
    return _tools.shows(
        -(found.margin or 0.0), 1.0, f"K = 2, eps0 = 1/4, eps = 0.01, N = 640, 1280, 2560: {found.detail}"
    )


def _initial(subject: Callable[[Tensor, Tensor, int], Tensor], fast: bool) -> Evidence:
    """Scores on U at T_1 after training on drawn prompts, from eq. 25 with the alpha that training reached."""
    K, gamma = 3, torch.tensor([0.9, -0.4, 0.2], dtype=torch.float64)
    law = prompts.multinomial([1 / 3] * 3, 9)
    trained = fine_tuning.trained_matrix(K, 0.05, 0.3, start="trained", law=law)
    got = torch.outer(gamma, gamma) * trained
    want = subject(trained[0, 0], gamma, K)
    return _tools.agree(
        got.numpy(), want.numpy(), "K = 3, N = 9, gamma = (0.9, -0.4, 0.2)", tolerance=1e-12, source="rounding"
    )


def _eq_25(alpha: Tensor, gamma: Tensor, K: int) -> Tensor:
    scores = -torch.outer(gamma, gamma) * alpha / (K - 1)
    return scores.diagonal_scatter(gamma**2 * alpha)


def _beta_size(subject: float, fast: bool) -> Evidence:
    """Largest |delta_beta| met while attention goes from 1/K to 1, times K^subject, must stay bounded as K grows."""
    found = []
    for K in (4, 16, 64, 256):
        a = np.linspace(1 / K, 1, 4001)
        b = (1 - a) / (K - 1)
        size = np.abs(b * ((K - 1) * b**2 - b - a * (1 - a)) / K).max()
        found.append(size * K**subject)
    return _tools.at_least(
        [1.0 - max(found)], "gamma = 0, balanced prompts (the event's centre), K in (4, 16, 64, 256)", cases=4, strength="trend",
        detail=f"K^{subject:g} max|delta_beta| from {found[0]:.3g} to {found[-1]:.3g}",
    )  # fmt: skip


def _beta_size_shifted(subject: Callable[[int], float], fast: bool) -> Evidence:
    """Largest K^2 |delta_beta| at T_1 over gamma_k and shifts off the query of 1 and -1, log(1 / eps) = subject(K)."""
    found = []
    own = np.linspace(0, 1, 400 if fast else 4000)[:, None]
    for K in (4, 16, 64, 256):
        root = subject(K) / 2
        alpha = (1 - 1 / K) * (math.log(K - 1) + math.log(math.sqrt(K / (2 * (K - 1))) - math.exp(-root)) + root)
        # In units of the query's own weight, so that nothing overflows.
        up, down = (np.exp(s * own * alpha / (K - 1) - own**2 * alpha) for s in (1, -1))
        flipped = np.array([1, 2, K // 2, K - 1])
        total = 1 + flipped * up + (K - 1 - flipped) * down
        a, c, k = up / total, down / total, 1 / total
        D = flipped * a**2 + (K - 1 - flipped) * c**2 - k * (1 - k)
        found.append(float(np.abs(a * (a - D)).max()) * K)
    return _tools.at_least(
        [3.0 - max(found)], "balanced prompts (the event's centre), T_1, any gamma_k, others 1 and -1, K in (4, 16, 64, 256)",
        cases=4, strength="trend", detail=f"K^2 max|delta_beta| from {found[0]:.3g} to {found[-1]:.3g}",
    )  # fmt: skip


def _beta_at_the_end(subject: float, fast: bool) -> Evidence:
    """The other reading, a bound from below: K^subject |delta_beta| where the loss meets eps / K, gamma = 0."""
    found = []
    for K in (4, 16, 64, 256):
        b = math.sqrt(2 * (K - 1) * 1e-6 / K) / (K - 1)
        a = 1 - (K - 1) * b
        found.append(abs(b * ((K - 1) * b**2 - b - a * (1 - a)) / K) * K**subject)
    return _tools.at_least(
        [min(found) - 0.1], "gamma = 0, balanced prompts, eps = 1e-6 reached, K in (4, 16, 64, 256)", cases=4, strength="trend",
        detail=f"K^{subject:g} |delta_beta| from {found[0]:.3g} to {found[-1]:.3g}",
    )  # fmt: skip


def _beta_size_fails() -> Evidence:
    K = 64
    start = torch.zeros(K, K, dtype=torch.float64)
    law = prompts.balanced(K)
    at_start = -float(population.descent(start, law)[1, 0])
    half = start + math.log((K - 1) / 2) * torch.eye(K, dtype=torch.float64)
    later = -float(population.descent(half, law)[1, 0])
    return _tools.shows(
        later * K**3,
        5.0,
        f"K = 64, gamma = 0: K^3 |delta_beta| is {at_start * K**3:.3g} at uniform attention but {later * K**3:.3g} at Attn = 1/3",
    )


def _betas_fall(subject: Callable[[int], int], fast: bool) -> Evidence:
    """delta_beta <= 0 along fine-tuning on drawn prompts, for eps above Lemma F.2's bound."""
    draw = np.random.default_rng(4)
    worst, cases, where = math.inf, 0, ""
    for K in (2, 3):
        law = prompts.multinomial([1 / K] * K, subject(K))
        least = (K / math.exp((K - 1) ** 2)) ** 2 if K > 2 else 1e-4
        count = 4 if fast else 8
        gamma = torch.tensor(draw.uniform(-1, 1, (count, K)), dtype=torch.float64)
        gamma[0], gamma[1] = torch.tensor([1.0, -1.0, -1.0][:K]), torch.tensor([0.25, -1.0, 1.0][:K])
        for eps in (0.2, 1.05 * least):
            A = alpha_star(K, eps) * (torch.eye(K, dtype=torch.float64) * K / (K - 1) - 1 / (K - 1))
            S = gamma.unsqueeze(-1) * gamma.unsqueeze(-2) * A
            for _ in range(3 if fast else 10):
                lost, delta = population.losses_and_descent(S, law)
                off = delta[:, ~torch.eye(K, dtype=torch.bool)]
                margin = float((-off).min())
                cases += off.numel()
                if margin < worst:
                    worst, where = margin, f"K = {K}, N = {subject(K)}, eps = {eps:.3g}"
                S = S + torch.where((lost > eps / K).any(-1)[:, None, None], 8.0 * delta, 0.0)
    return _tools.at_least(
        [worst], "K = 2, 3, drawn and extreme gamma, along fine-tuning with eta = 8", cases=cases, seed=4, tolerance=1e-15,
        source="rounding", detail=f"smallest -delta_beta {worst:.3g} at {where}",
    )  # fmt: skip


def _tuned_loss(subject: Callable[[int, float], int], fast: bool) -> Evidence:
    """Can fine-tuning reach L_u <= 2 eps/K? The floor of drawn prompts decides for small eps, runs for moderate eps."""
    worst, where = -math.inf, ""
    for K in (2, 3, 4):
        for eps in (1e-2, 1e-6, 1e-12, 1e-18):
            N = subject(K, eps)
            ratio = multinomial.floor(K, N) * K / eps
            if ratio > worst:
                worst, where = ratio, f"K = {K}, N = {N}, eps = {eps:g}"
    margins = [2.0 - worst]
    for eps in (0.05, 0.01):
        law = prompts.multinomial([0.5, 0.5], subject(2, eps))
        gamma = torch.tensor([[1.0, -0.5], [0.3, 0.2], [0.0, -1.0]], dtype=torch.float64)
        run = fine_tuning.fine_tune_gamma(
            gamma, eps, 1.0, law=law, threshold=eps, max_steps=20_000, on_failure="return"
        )
        margins.append(float(2 * eps / 2 - run.losses.max()) / eps)
    return _tools.at_least(
        margins, "floor for K = 2, 3, 4 and eps down to 1e-18; gradient descent for K = 2", cases=14, tolerance=1e-9,
        source="rounding", detail=f"largest floor / (eps/K) {worst:.3g} at {where}",
    )  # fmt: skip


def _tuned_fails() -> Evidence:
    K, eps = 2, 1e-9
    least = multinomial.floor(K, K**4)
    return _tools.shows(
        least * K / eps,
        100.0,
        f"K = 2, N = K^4 = 16, eps = 1e-9: prompts without the query's feature alone cost {least:.3g}, eps/K = {eps / K:.3g}",
    )


def _sums(subject: float, fast: bool) -> Evidence:
    """Delta = subject * sum of Lambda for unequal gamma on drawn prompts, at recorded times."""
    law = prompts.multinomial([1 / 3] * 3, 7)
    run = fine_tuning.fine_tune_gamma([0.9, -0.6, 0.1], 0.1, 0.5, law=law, record=8)
    assert run.trajectory is not None
    moved = run.trajectory.scores - run.start
    own = torch.diagonal(moved, dim1=1, dim2=2)
    return _tools.agree(
        own.numpy(), -subject * (moved.sum(1) - own).numpy(), "K = 3, N = 7, gamma = (0.9, -0.6, 0.1), recorded states",
        tolerance=1e-12, source="rounding over the steps",
    )  # fmt: skip


@remember
def _drawn_run(fast: bool) -> tuple[Tensor, float, Tensor, Tensor]:
    """gamma (B, 3), alpha*, falls (T, B, 3, 3) of the betas and rises (T, B, 3) of the alphas, K = 3, N = K^4."""
    K, eps = 3, 0.05
    gamma = torch.tensor([[0.25, -1.0, 1.0], [1.0, 0.5, -1.0], [0.5, 0.4, -0.9], [0.0, 0.7, -0.3]], dtype=torch.float64)
    gamma = gamma[:2] if fast else gamma
    alpha = alpha_star(K, eps)
    start = fine_tuning_theory.initial_scores(gamma, alpha)
    eta = fine_tuning_theory.step_limit(start)
    law = prompts.multinomial([1 / K] * K, K**4)
    run = dynamics.gradient_descent(start, law, eta=eta, threshold=eps / K, record=6)
    assert run.trajectory is not None
    fall = start - run.trajectory.scores
    return gamma, alpha, fall, -torch.diagonal(fall, dim1=-2, dim2=-1)


def _drawn_bounds(subject: float, fast: bool) -> Evidence:
    """Theorem F.4's bounds on Lambda with subject times the spread, along fine-tuning on drawn prompts."""
    gamma, alpha, fall, rise = _drawn_run(fast)
    low, high = fine_tuning_theory.lambda_bounds(gamma, subject * alpha, rise)
    inside = torch.minimum(fall - low.unsqueeze(-2), high.unsqueeze(-2) - fall)
    off = ~torch.eye(3, dtype=torch.bool)
    return _tools.at_least(
        [float(inside[..., off].min())], "K = 3, N = 81, eps = 0.05, eta at the limit, recorded states", cases=int(fall.numel()),
        tolerance=1e-12, source="rounding over the steps",
    )  # fmt: skip


def _extra(subject: Callable[[int, float], int], fast: bool) -> Evidence:
    """Largest K^2 / eps times what drawn prompts add to the loss at alpha*."""
    worst, where = -math.inf, ""
    for K in (2, 3, 4, 6):
        for eps in (1e-1, 1e-2, 1e-4, 1e-8, 1e-14):
            N = subject(K, eps)
            more = (multinomial.loss(K, N, alpha_star(K, eps) * K / (K - 1)) - eps / K) * K**2 / eps
            if more > worst:
                worst, where = more, f"K = {K}, N = {N}, eps = {eps:g}"
    return _tools.at_least(
        [2.0 - worst], "K = 2, 3, 4, 6, eps from 1e-14 to 0.1, extra loss at most 2 eps / K^2", cases=20,
        detail=f"largest {worst:.3g} at {where}",
    )  # fmt: skip


def _extra_fails() -> Evidence:
    K, eps = 2, 1e-8
    more = multinomial.loss(K, K**4, alpha_star(K, eps) * 2) - eps / K
    return _tools.shows(
        more * K**2 / eps,
        100.0,
        f"K = 2, N = K^4 = 16, eps = 1e-8: drawn prompts add {more:.3g}, eps/K^2 = {eps / K**2:.3g}",
    )


def _unchanged(subject: Callable[[int], float], fast: bool) -> Evidence:
    """Forgetting on drawn prompts less that on balanced ones, over eps, against subject(N)."""
    eps, eta = 0.02, 0.05
    worst, seen = math.inf, []
    for gamma in ((1.0, -0.5), (0.8, 0.5)):
        base = fine_tuning.fine_tune_gamma(gamma, eps, eta, start="trained").forgetting
        for N in (20, 80, 160) if fast else (20, 40, 80, 160, 320, 640):
            law = prompts.multinomial([0.5, 0.5], N)
            drawn = fine_tuning.fine_tune_gamma(gamma, eps, eta, start="trained", law=law).forgetting
            gap = float((drawn - base).abs().max()) / eps
            seen.append(gap)
            worst = min(worst, subject(N) - gap)
    return _tools.at_least(
        [worst], "K = 2, gamma = (1, -0.5) and (0.8, 0.5), eps = 0.02, eta = 0.05, exact enumeration", cases=len(seen),
        detail=f"largest change of F_v / eps: {seen[0]:.3g} at N = 20, {seen[len(seen) // 2 - 1]:.3g} at the longest prompts",
    )  # fmt: skip


def _claim(claim_id: str, label: str, kind: Any, title: str, statement: str, **rest: Any) -> Claim:
    return Claim(id=claim_id, label=label, kind=kind, title=title, statement=statement, chapter=PAGE, **rest)


def _still(lemma: str, title: str, statement: str, check: Check, **rest: Any) -> Claim:
    return _claim(
        f"ood.app-I.lemmas.{lemma.replace('.', '')}", "Appendix I, list of lemmas", "text", f"Lemma {lemma}: {title}",
        statement, hypotheses=(DRAWN,), checks=(check,), uses=rest.pop("uses", (f"ood.lem-{lemma}",)), **rest,
    )  # fmt: skip


CLAIMS: tuple[Claim, ...] = (
    _still("D.1", "prediction", r"For every drawn prompt $\hat y = \sum_v \mathrm{Attn}_v \langle w, v\rangle$.",
           Check("exact tokens", _predictions, _tools.exact_attention, mutants={"counts left out": lambda w, c: _tools.exact_attention(w)})),
    _claim(
        "ood.app-I.lemmas.D2", "Appendix I, list of lemmas", "text", "Lemma D.2: gradient",
        r"The gradient is $\mathbb{E}[(\hat y-y)\sum_{i,l\in[N]}\mathrm{Attn}_{u_i}\mathrm{Attn}_{u_l}(x_i-x_l)x_{query}^\top y_i]$, with the attention of the feature"
        r" that token $i$ holds.",
        hypotheses=(DRAWN,),
        checks=(
            Check("exact differentiation", _gradients, _token_gradient(True, 1, True)),
            Check("instance", lambda s, fast: _feature_gradient_fails(), None, "counterexample"),
            Check("attention per token", _gradients, _token_gradient(True, 1), "corrected", {
                "sign": _token_gradient(True, -1), "one attention replaced by 1/N": _token_gradient(False, 1),
                "attention per feature": _token_gradient(True, 1, True)}),
        ),
        why="A feature that several tokens hold is counted several times over, as with balanced prompts.",
        corrected=r"$\mathrm{attn}_i\,\mathrm{attn}_l$ in place of $\mathrm{Attn}_{u_i}\mathrm{Attn}_{u_l}$: Lemma D.2 as corrected still holds.",
        uses=("ood.lem-D.2",),
    ),
    _still("D.3", "projected gradients", r"$\delta_\alpha$ and $\delta_\beta$ are the expectations of Lemma D.3, now over the counts too.",
           Check("exact differentiation", _descents, _lemma_d3(1), mutants={"own term dropped": _lemma_d3(0), "counts left out": _lemma_d3(1, False)}),
           uses=("ood.lem-D.3.alpha", "ood.lem-D.3.beta")),
    _still("D.4", "updates cancel", r"$\delta_{u,\alpha} = -\sum_{u'\ne u}\delta_{u',u,\beta}$.",
           Check("exact differentiation", _cancels, Fraction(1), mutants={"half": Fraction(1, 2), "sign": Fraction(-1)})),
    _still("D.5", "updates cancel in training", r"$v^\top\nabla L\,v = -\sum_{v'\ne v} v'^\top\nabla L\,v$.",
           Check("exact differentiation", _cancels, Fraction(1), mutants={"half": Fraction(1, 2), "sign": Fraction(-1)})),
    _still("D.6", "equal beta-type weights", r"During training $\beta_{v',v}^{(t)} = \beta_{v'',v}^{(t)}$.",
           Check("exact induction step", _equal_betas, None, mutants={
               "unequal token probabilities": (Fraction(1, 2), Fraction(1, 3), Fraction(1, 6))}),
           note="By exchangeability of the features; the printed proof uses equal counts, but the statement does not need them."),
    _still("D.7", "beta from alpha", r"During training $\beta_{v',v}^{(t)} = -\alpha_v^{(t)}/(K-1)$.",
           Check("exact step", _ratio, Fraction(1), mutants={"K for K - 1": Fraction(3, 2), "sign": Fraction(-1)})),
    _still("D.8", "loss", r"$L_u = \tfrac12\mathbb{E}[1_{x=u}(\sum_{u'\ne u}\mathrm{Attn}_{u'}^2+(1-\mathrm{Attn}_u)^2)]$.",
           Check("exact tokens", _losses, _loss_form(1), mutants={"own term dropped": _loss_form(0), "counts left out": _loss_form(1, False)}),
           note="Lemma D.9 and eq. 13 need equal counts and are rightly not on the list."),
    _still("D.10", "projection", r"Under Assumption 5.4 $v_k^\top\nabla L^{(ft)}v_{k'} = \gamma_k\gamma_{k'}u_k^\top\nabla L^{(ft)}u_{k'}$.",
           Check("token-level gradient", _projects, lambda g: torch.outer(g, g), mutants={
               "one gamma": lambda g: g.unsqueeze(0).expand(2, 2), "squares": lambda g: torch.outer(g**2, g**2)})),
    _claim(
        "ood.lem-I.1.result", "Lemma I.1", "lemma", "Counts concentrate",
        r"For $\epsilon_0\in(0,1)$ and $N\ge 20K/\epsilon_0^2$, with probability at least $1-3\exp(-N\epsilon_0^2/25)$ every $N_k/N$ lies within"
        r" $\epsilon_0$ of $1/K$.",
        hypotheses=(DRAWN,),
        checks=(Check("proof by ball arithmetic, or exact tails", _concentrates, (1 / 25, 1.0), mutants={
            "rate 5": (5.0, 1.0), "a tenth of the deviation": (1 / 25, 0.1),
        }),),
        uses=("ood.lem-I.1.proof.tail", "ood.lem-I.1.proof.union"),
        note=r"Far from sharp: Hoeffding's inequality gives $2K\exp(-2N\epsilon_0^2)$. The index $j\in\{1,2\}$ and $P^{(j)}$ are not defined in the"
        r" paper. For $\epsilon_0 \ge 1/K$ the event allows missing features.",
    ),
    _claim(
        "ood.lem-I.1.proof.tail", "proof of Lemma I.1", "step", "Tail of the multinomial distribution",
        r"$P(\sum_k|N_k/N-1/K|>\epsilon_0)\le 3\exp(-N\epsilon_0^2/25)$ for $N\ge 20K/\epsilon_0^2$.",
        hypotheses=(DRAWN,),
        checks=(Check("proof by ball arithmetic, and exact tails", _devroye, 1 / 25, mutants={"rate 2": 2.0, "rate 1": 1.0}),),
        note=r"A known inequality (Devroye 1983); it also follows from $2^K\exp(-N\epsilon_0^2/2)$.",
    ),
    _claim(
        "ood.lem-I.1.proof.union", "proof of Lemma I.1", "step", "Union of the single deviations",
        r"$\bigcup_k\{|N_k/N-1/K|>\epsilon_0\}\subseteq\{\sum_k|N_k/N-1/K|>\epsilon_0\}$.",
        checks=(Check("every count vector", _contained, lambda d: d.sum(1), mutants={
            "mean": lambda d: d.mean(1), "Euclidean over 2": lambda d: np.sqrt((d**2).sum(1)) / 2,
        }),),
    ),
    _claim(
        "ood.app-I.train.1.time", "Appendix I, training, item 1", "order", "alpha* is reached in polynomial time",
        r"With tokens drawn uniformly there is $T_1=\mathrm{poly}(1/\epsilon,K,1/\eta)$ with $\alpha_{v_k}^{(T_1)}=\alpha^*_{K,\epsilon}$.",
        hypotheses=(DRAWN, r"$N\ge 20K/\epsilon_0^2$, $\epsilon_0 = 1/(2K)$"),
        checks=(
            Check("exponents", _time_order, (1.2, 3.5), mutants={"square root of 1/eps": (0.5, 3.5), "linear in K": (1.2, 1.0)}),
            Check("T_1 read as the end of training", _stops_elsewhere, 0.01, "reading"),
        ),
        uses=("ood.lem-E.1.time.order", "ood.lem-I.1.result", "ood.eq-16"),
        note=r"$\alpha$ passes every level, so such a time exists for every $N$ (exactly in the flow, within a step otherwise). It is not the time at"
        r" which the rule $L\le\epsilon/K$ stops training: that comes at another $\alpha$, equal to $\alpha^*$ only as $N\to\infty$.",
    ),
    _claim(
        "ood.app-I.train.1.beta", "Appendix I, training, item 1", "text", "beta-type weights",
        r"With tokens drawn uniformly $\beta_{v_n,v_k} = -\alpha_{v_k}/(K-1)$ during training.",
        hypotheses=(DRAWN,),
        checks=(Check("gradient descent", _betas_of_training, 1.0, mutants={"K for K - 1": 2 / 3, "sign": -1.0}),),
        uses=("ood.lem-D.7",),
        note="The text cites Lemma D.6; Lemma D.7 is the one that says it.",
    ),
    _claim(
        "ood.app-I.train.2", "Appendix I, training, item 2", "text", "Loss at the end of training",
        r"With tokens drawn uniformly the loss at $\alpha^*_{K,\epsilon}$ is $O(\epsilon/K)$.",
        hypotheses=(DRAWN, r"$N\ge 20K/\epsilon_0^2$ for some $\epsilon_0\in(0,1)$"),
        checks=(
            Check("N of Lemma I.1", _loss_order, lambda K, eps, eps0: multinomial.length_for(K, eps0)),
            Check("instance", lambda s, fast: _loss_floor(), None, "counterexample"),
            Check("N growing with log(K/eps)", _loss_order, _long_enough, "conditional", {
                "a tenth of it": lambda K, eps, eps0: max(multinomial.length_for(K, eps0) // 10, math.ceil(0.3 * K * math.log(K / eps))),
                "no log": lambda K, eps, eps0: multinomial.length_for(K, eps0),
            }),
        ),
        why=r"Prompts without the query's feature have probability $(1-1/K)^N$ and loss of order 1: exponentially small in $N$, but not in $\epsilon$.",
        added_hypothesis=r"$N \ge 3K\log(K/\epsilon)$ besides Lemma I.1's bound.",
        uses=("ood.eq-16", "ood.lem-I.1.result", "ood.lem-D.8"),
    ),
    _claim(
        "ood.app-I.train.2.event", "Appendix I, training, item 2", "text", "Loss given the event",
        r"Given $\mathcal E_0$ the loss at $\alpha^*_{K,\epsilon}$ is $O(\epsilon/K)$.",
        hypotheses=(DRAWN, r"$N\ge20K/\epsilon_0^2$ for some $\epsilon_0\in(0,1)$"),
        checks=(
            Check("eps0 = 1/K", _worst_in_event, lambda K: 1 / K),
            Check("instance", lambda s, fast: _event_fails(), None, "counterexample"),
            Check("eps0 = 1/(2K)", _worst_in_event, lambda K: 1 / (2 * K), "conditional", {
                "eps0 = 3/(4K)": lambda K: 3 / (4 * K), "eps0 = 1/K": lambda K: 1 / K,
            }),
        ),
        why=r"For $\epsilon_0\ge1/K$ the event holds prompts without the query's feature, whose loss no $Q$ makes small.",
        added_hypothesis=r"$\epsilon_0\le1/(2K)$, so that $N\ge80K^3$; then every prompt of the event has a loss of at most $9\epsilon/K$.",
        uses=("ood.eq-16", "ood.lem-D.8"),
        note=r"Any $\epsilon_0 = c/K$ with $c<1$ will do, with $((1+c)/(1-c))^2$ for 9.",
    ),
    _claim(
        "ood.app-I.train.2.rest", "Appendix I, training, item 2", "text", "Loss given the remaining event",
        r"Given that a prompt is not in $\mathcal E_0$ the loss at $\alpha^*_{K,\epsilon}$ is exponentially small in $N\epsilon_0^2$.",
        hypotheses=(DRAWN, r"$N\ge20K/\epsilon_0^2$"),
        checks=(
            Check("conditional loss", _outside, "given"),
            Check("instance", lambda s, fast: _outside_fails(), None, "counterexample"),
            Check("its share of the mean", _outside, "share", "strongest", {
                "conditional loss": "given", "rate 3": "three times",
            }),
        ),
        why="Outside the event the counts are further from even, so the loss is larger than inside, not smaller.",
        strongest_true=r"Prompts outside $\mathcal E_0$ add at most $\frac3K\exp(-N\epsilon_0^2/25)$ to the mean loss, since no prompt has a loss above $1/K$.",
        uses=("ood.eq-16", "ood.lem-I.1.result", "ood.lem-D.8"),
    ),
    _claim(
        "ood.app-I.ft.1", "Appendix I, fine-tuning, item 1", "text", "Scores when fine-tuning starts",
        r"With tokens drawn uniformly $\alpha_{u_m}^{(T_1)}=\gamma_m^2\alpha_v^{(T_1)}$, $\beta_{u_n,u_m}^{(T_1)}=-\gamma_n\gamma_m\alpha_v^{(T_1)}/(K-1)$.",
        hypotheses=(DRAWN, "Assumption 5.4"),
        checks=(Check("gradient descent", _initial, _eq_25, mutants={
            "sign of beta": lambda a, g, K: torch.outer(g, g) * a / (K - 1) + torch.diag(g**2 * a * (1 - 1 / (K - 1))),
            "K for K - 1": lambda a, g, K: _eq_25(a, g, K + 1),
        }),),
        uses=("ood.thm-F.4.init", "ood.lem-D.7"),
    ),
    _claim(
        "ood.app-I.ft.2.size", "Appendix I, fine-tuning, item 2", "order", "Size of the beta-type updates",
        r"Given the event, $\delta_{u_n,u_k,\beta}^{(t)} = -O(1/K^3)$ during fine-tuning.",
        hypotheses=(DRAWN, r"$N\ge O(K^4)$"),
        checks=(
            Check("bounded times K^3", _beta_size, 3.0),
            Check("instance", lambda s, fast: _beta_size_fails(), None, "counterexample"),
            Check("at least of that size, up to the end", _beta_at_the_end, 3.0, "reading"),
            Check("bounded times K^2", _beta_size, 2.0, "strongest", {"K^2.5": 2.5, "K^3": 3.0}),
            Check("bounded times K^2 for any shift, eps = K^-4", _beta_size_shifted, lambda K: 4 * math.log(K), "strongest", {
                "eps = exp(-2 K^2 log K)": lambda K: 2 * K**2 * math.log(K),
            }),
        ),
        why=r"$1/K^3$ is its size at uniform attention; when attention on the right feature is of order 1 it is of order $1/K^2$, and"
        r" near convergence of order $\epsilon/K^2$.",
        strongest_true=r"$-\delta_{u_n,u_k,\beta}^{(t)} = O(1/K^2)$ for $\epsilon$ at least a fixed power of $1/K$, and this order is attained while"
        r" $\mathrm{Attn}_{u_k}$ passes 1/3.",
        uses=("ood.lem-D.3.beta",),
        note=r"For such $\epsilon$ all $\beta$ at $T_1$ are $O(\log K/K)$ and their spread shrinks, so that $\mathrm{Attn}_{u_n} = O(1/K)$. For $\epsilon$ exponentially small"
        r" in $K^2$ one wrong feature can hold attention of order 1, and $-\delta$ is of order $1/K$. Read as a bound from below, which the argument would need,"
        r" $1/K^3$ fails towards the end.",
    ),
    _claim(
        "ood.app-I.ft.2.sign", "Appendix I, fine-tuning, item 2", "text", "beta-type weights still fall",
        r"$\delta_{u_n,u_k,\beta}^{(t)}\le0$ still holds with tokens drawn uniformly.",
        hypotheses=(DRAWN, r"$N\ge K^4$", "Assumption 5.4", r"$\epsilon$ above the bound of Lemma F.2"),
        checks=(Check("along fine-tuning", _betas_fall, lambda K: K**4, mutants={"N = K": lambda K: K, "N = 2": lambda K: 2}),),
        uses=("ood.eq-16", "ood.lem-F.2.result", "ood.lem-I.1.result"),
        note=r"The size argument given for it does not work (see the record of the size), and the remaining event contributes"
        r" $3\exp(-N\epsilon_0^2/25)$ rather than being $O(\exp(-K))$ when conditioned on.",
    ),
    _claim(
        "ood.app-I.ft.3", "Appendix I, fine-tuning, item 3", "text", "Fine-tuning reaches O(eps/K)",
        r"With tokens drawn uniformly there is $T_2=\mathrm{poly}(K,1/\epsilon,\gamma)$ with $L_{u_k}\le O(\epsilon/K)$ for all $k$.",
        hypotheses=(DRAWN, r"$N\ge O(K^4)$", "Assumption 5.4"),
        checks=(
            Check("N = K^4", _tuned_loss, lambda K, eps: K**4),
            Check("instance", lambda s, fast: _tuned_fails(), None, "counterexample"),
            Check("N growing with log(K/eps)", _tuned_loss, lambda K, eps: max(K**4, math.ceil(3 * K * math.log(K / eps))), "conditional", {
                "no log": lambda K, eps: K**4, "a tenth of it": lambda K, eps: max(K, math.ceil(0.3 * K * math.log(K / eps))),
            }),
        ),
        why="Prompts without the query's feature leave a loss that no parameter removes.",
        added_hypothesis=r"$N\ge 3K\log(K/\epsilon)$ besides $N\ge K^4$.",
        uses=("ood.eq-16", "ood.lem-D.8",),
        note=r"Checked is that the loss can be met. $T_2$ is printed without $1/\eta$, in which it is linear for small steps (Theorem 5.5 has it), and with $\gamma$.",
    ),
    _claim(
        "ood.app-I.ft.4", "Appendix I, fine-tuning, item 4", "text", "Lemma F.1 still holds",
        r"$\Delta_{k,\alpha}^{(t)}=\sum_{n\ne k}\Lambda_{n,k,\beta}^{(t)}$ with tokens drawn uniformly.",
        hypotheses=(DRAWN,),
        checks=(
            Check("exact step", _cancels, Fraction(1), mutants={"half": Fraction(1, 2), "sign": Fraction(-1)}),
            Check("along fine-tuning", _sums, 1.0, mutants={"half": 0.5, "1/(K - 1) more": 1.5}),
        ),
        uses=("ood.eq-16", "ood.lem-F.1", "ood.lem-D.4"),
    ),
    _claim(
        "ood.app-I.ft.5", "Appendix I, fine-tuning, item 5", "text", "Additional error",
        r"For $N\ge O(K^4)$ drawn tokens add an error of only $O(\epsilon/K^2)$ to the loss of order $\epsilon/K$.",
        hypotheses=(DRAWN,),
        checks=(
            Check("N = K^4", _extra, lambda K, eps: K**4),
            Check("instance", lambda s, fast: _extra_fails(), None, "counterexample"),
            Check("N growing with log(K/eps)", _extra, lambda K, eps: max(K**4, math.ceil(3 * K * math.log(K / eps))), "conditional", {
                "N = K^2": lambda K, eps: max(K**2, math.ceil(K * math.log(K / eps))), "no log": lambda K, eps: K**4,
            }),
        ),
        why=r"The probability of a prompt without the query's feature depends on $N$ and $K$, not on $\epsilon$.",
        added_hypothesis=r"$N\ge 3K\log(K/\epsilon)$ besides $N\ge K^4$.",
        uses=("ood.eq-16", "ood.lem-I.1.result",),
        note=r"Measured on the symmetric scores at $\alpha^*$; Theorem F.4's own bounds have their own records. The text speaks of the bound on the"
        " forgetting, while Theorem F.4 bounds the fine-tuning updates.",
    ),
    _claim(
        "ood.app-I.ft.5.bounds", "Appendix I, fine-tuning, item 5", "text", "Theorem F.4's bounds on Lambda",
        r"With tokens drawn uniformly $\Lambda_{n,m,\beta}^{(t)}$ still lies within $\frac{(\gamma_{M(m)}-\gamma_{N(m)})\gamma_m\alpha^*}{K-1}$ of"
        r" $\frac{\Delta_{m,\alpha}^{(t)}}{K-1}$.",
        hypotheses=(DRAWN, r"$N\ge K^4$", "Assumption 5.4, step sizes within the limit of Theorem F.4", r"fine-tuning starts from $\alpha^*_{K,\epsilon}$"),
        checks=(Check("along fine-tuning", _drawn_bounds, 1.0, mutants={"a tenth of the spread": 0.1, "no spread": 0.0}),),
        uses=("ood.eq-16", "ood.thm-F.4.beta.upper", "ood.thm-F.4.beta.lower", "ood.thm-F.4.init", "ood.thm-F.4.step", "ood.app-I.ft.4"),
        note=r"What was true of Theorem F.4. Its bounds on $\Delta$ need correction for balanced prompts already (eq. 28, 29), and on drawn prompts the stop comes at another"
        r" score gap.",
    ),
    _claim(
        "ood.app-I.text", "Appendix I, text", "text", "Forgetting is nearly unchanged for long prompts",
        r"With tokens drawn uniformly forgetting is nearly that of balanced prompts when $N$ is large.",
        hypotheses=(DRAWN, r"the rule $L\le\epsilon/K$ can be met, that is $N$ large compared with $K\log(K/\epsilon)$"),
        checks=(Check("change at most 2/N, over eps", _unchanged, lambda N: 2 / N, mutants={
            "1/(10 N)": lambda N: 0.1 / N, "1/N^2": lambda N: 1 / N**2,
        }),),
        uses=("ood.eq-16", "ood.lem-I.1.result",),
    ),
)  # fmt: skip

"""Records of the convergence paper's set-up: Sections 2 and 3, Definition 4.1, Lemma 4.2, Appendix D."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import torch

from icl_core import population, prompts
from icl_core.claims import _tools
from icl_core.claims.ood_model import ATTENTION, MODEL, prediction_check
from icl_core.claims.ood_training import LEM_D2
from icl_core.claims.record import Check, Claim, Evidence
from icl_core.theory import phases

SEED = 20271
Law = list[tuple[Fraction, tuple[int, ...]]]


def counts_of(K: int, N: int) -> Iterator[tuple[int, ...]]:
    """All count vectors of N tokens over K features."""
    for bars in itertools.combinations(range(N + K - 1), K - 1):
        edges = (-1, *bars, N + K - 1)
        yield tuple(b - a - 1 for a, b in itertools.pairwise(edges))


def exact_law(p: Sequence[Fraction], N: int) -> Law:
    """Multinomial law in rational arithmetic, missing features included."""
    found = []
    for counts in counts_of(len(p), N):
        ways = math.factorial(N)
        chance = Fraction(1)
        for n, q in zip(counts, p, strict=True):
            ways //= math.factorial(n)
            chance *= Fraction(q) ** n
        found.append((ways * chance, counts))
    return found


def laws(fast: bool) -> list[tuple[list[Fraction], Law]]:
    """Query probabilities with the exact law of short prompts: K from 2, imbalanced and balanced."""
    cases = [([Fraction(3, 4), Fraction(1, 4)], 2), ([Fraction(1, 2), Fraction(1, 3), Fraction(1, 6)], 2)]
    if not fast:
        cases += [([Fraction(1, 3)] * 3, 3), ([Fraction(2, 3), Fraction(1, 9), Fraction(1, 9), Fraction(1, 9)], 3)]
    return [(p, exact_law(p, N)) for p, N in cases]


LAWS = "rational exp(scores), exact multinomial law incl. missing features, K up to 4"


def _losses(weights: np.ndarray, law: Law, p: Sequence[Fraction]) -> list[Fraction]:
    """Joint loss per query feature, from tokens."""
    total = [Fraction(0)] * len(p)
    for chance, counts in law:
        total = [t + chance * x for t, x in zip(total, _tools.exact_losses(weights, counts, p), strict=True)]
    return total


def _per_prompt(a: Any, k: int) -> Any:
    """``sum_{m != k} Attn_m^2 + (1 - Attn_k)^2``."""
    return sum(x * x for m, x in enumerate(a) if m != k) + (1 - a[k]) ** 2


def positive(expressions: Sequence[Any], region: str, *, strictly: bool = False, detail: str = "") -> Evidence:
    """Evidence that polynomials in nonnegative symbols are nowhere negative: no coefficient is.

    With ``strictly`` none may vanish identically either, so that they are positive at positive values. A polynomial
    with a negative coefficient fails if a point with a negative value is found, and is undecided if not.
    """
    import sympy

    outcomes: list[bool | None] = []
    draw = random.Random(SEED)
    for expression in expressions:
        if not expression.free_symbols:
            outcomes.append(bool(expression > 0 or (expression == 0 and not strictly)))
            continue
        terms = sympy.Poly(expression).terms()
        if all(c >= 0 for _, c in terms):
            outcomes.append(True)
            continue
        # Plain fractions: quick.
        plain = [(powers, Fraction(int(c.p), int(c.q))) for powers, c in terms]
        points = (
            [Fraction(draw.choice((1, 1, 3, 10, 100)), draw.choice((1, 7, 50))) for _ in plain[0][0]]
            for _ in range(300)
        )
        found = any(
            sum(c * math.prod(x**k for x, k in zip(point, powers, strict=True)) for powers, c in plain) < 0
            for point in points
        )
        outcomes.append(False if found else None)
    passed = False if False in outcomes else (None if None in outcomes else True)
    return Evidence(
        passed, "exact", len(outcomes), region, tolerance=0.0, tolerance_source="no coefficient is negative", dtype="symbolic",
        detail=detail or f"{sum(o is True for o in outcomes)} of {len(outcomes)} polynomials have no negative coefficient",
    )  # fmt: skip


# Section 2


DEF_21 = replace(
    MODEL,
    id="conv.def-2.1",
    label="Definition 2.1, eqs. (1)-(2)",
    title="Self-attention, embedding, masking and reparametrisation",
    statement=r"""
$F_{SA}(E)=W^VE\,\mathrm{softmax}((W^{Key}E)^\top W^QE)$ with a column-wise softmax; a prompt is embedded as inputs above
labels, the query last with label 0; keys and values are masked, that is, built from the first $N$ columns; and
$W^V=\begin{pmatrix}0&0\\0^\top&\nu\end{pmatrix}$, $W^{KQ}=\begin{pmatrix}Q&0\\0^\top&0\end{pmatrix}$ with $\nu=1$ fixed.""",
    reconstruction="Transposes and the minus in the masked range are lost in the text; rebuilt from the shapes.",
    same_as=("ood.model",),
    uses=(),
    chapter="model",
)

EQ_3 = replace(
    MODEL,
    id="conv.eq-3",
    label="eq. (3)",
    kind="equation",
    title="The layer in Q",
    statement=r"""
With that form of the weights $F_{SA}(E;\theta)=M(E^y)\,\mathrm{softmax}(M(E^x)^\top QE^x)$, the only row of the full layer that
is not zero, and the prediction is its last entry.""",
    reconstruction="Transposes restored.",
    same_as=("ood.model",),
    uses=("conv.def-2.1",),
    chapter="model",
)

DEF_31 = replace(
    ATTENTION,
    id="conv.def-3.1",
    label="Definition 3.1",
    title="Attention scores of tokens and features",
    statement=r"""
$\mathrm{attn}_i=e^{x_i^\top Qx_q}/\sum_{j\in[N]}e^{x_j^\top Qx_q}$ and
$\mathrm{Attn}_k=\sum_{i:\,x_i=v_k}\mathrm{attn}_i$; the latter sum to 1 over $k$ and depend on the prompt through the counts $|V_k|$.""",
    reconstruction="Transposes restored.",
    same_as=("ood.attention.definition",),
    uses=("conv.eq-3",),
)

EQ_5 = Claim(
    id="conv.eq-5",
    label="eq. (5)",
    kind="equation",
    title="The prediction as a sum over tokens and over features",
    statement=r"""
$\hat y_{\mathrm{query}}=\sum_{i\in[N]}\mathrm{attn}_iy_i=\sum_{k\in[K]}\mathrm{Attn}_k\langle w,v_k\rangle$.""",
    checks=(prediction_check(),),
    hypotheses=("$y_i=\\langle w,x_i\\rangle$",),
    uses=("conv.def-3.1",),
    same_as=("ood.attention.prediction", "ood.lem-D.1"),
    chapter="model",
)


def _whole(factor: Fraction, fast: bool) -> Evidence:
    """``factor`` times the mean squared error against the sum of the joint losses per query."""
    gaps = []
    for index, (p, law) in enumerate(laws(fast)):
        K = len(p)
        weights = _tools.fractions((K, K), SEED + index)
        mean_square = Fraction(0)
        for chance, counts in law:
            a = _tools.exact_attention(weights, counts)
            for k in range(K):
                error = a[:, k] - _tools.identity(K)[k]
                mean_square += chance * p[k] * (error @ error)
        gaps.append(factor * mean_square - sum(_losses(weights, law, p)))
    return _tools.exactly(gaps, LAWS, seed=SEED)


EQ_4 = Claim(
    id="conv.eq-4",
    label="eqs. (4), (8)",
    kind="definition",
    title="Population loss",
    statement=r"""
$L(\theta)=\tfrac12\mathbb E[(\hat y_{\mathrm{query}}-\langle w,x_{\mathrm{query}}\rangle)^2]$ over prompt, query and task; only
$\mathbb E[ww^\top]=I$ is used of the task.""",
    checks=(Check("half the mean squared error", _whole, Fraction(1, 2), mutants={"no half": Fraction(1)}),),
    reconstruction="The factor 1/2 is damaged in the text ('2E').",
    same_as=("ood.loss-train.definition",),
    chapter="model",
)


def _conditional(share: Callable[[Fraction], Fraction], fast: bool) -> Evidence:
    gaps = []
    for index, (p, law) in enumerate(laws(fast)):
        K = len(p)
        weights = _tools.fractions((K, K), SEED + index)
        joint = _losses(weights, law, p)
        for k in range(K):
            held = sum(c * _per_prompt(_tools.exact_attention(weights, counts)[:, k], k) for c, counts in law) / 2
            gaps.append(share(p[k]) * held - joint[k])
    return _tools.exactly(gaps, LAWS, seed=SEED)


EQ_6 = Claim(
    id="conv.eq-6",
    label="eqs. (6), (11)",
    kind="definition",
    title="Prediction error of one feature",
    statement=r"""
$L_k(\theta)=\tfrac12\mathbb E[(\hat y_{\mathrm{query}}-\langle w,x_{\mathrm{query}}\rangle)^2\mid x_{\mathrm{query}}=v_k]$, so that
$L=\sum_kp_kL_k$.""",
    checks=(
        Check(
            "conditional times probability is joint",
            _conditional,
            lambda p: p,
            mutants={"no p_k": lambda p: Fraction(1)},
        ),
    ),
    note=(
        "The appendix on balanced data uses the same symbol for the joint error, with the indicator inside the expectation "
        "and no conditioning: there $L=\\sum_kL_k$. The OOD paper's $L_v$ is the joint one."
    ),
    reconstruction="The factor 1/2 and the conditioning bar are damaged in the text.",
    chapter="notation",
)


def _unseen_task(subject: tuple[Callable[..., Fraction], Callable[..., Fraction]], fast: bool) -> Evidence:
    """Exact error of the prediction and its bound, for arbitrary tasks."""
    error_of, bound = subject
    gaps, slack = [], []
    for index, (p, law) in enumerate(laws(fast)):
        K = len(p)
        weights = _tools.fractions((K, K), SEED + index)
        w = [x * 10 ** (i % 3) for i, x in enumerate(_tools.fractions(K, SEED + index, signed=True))]
        for _, counts in law:
            a = _tools.exact_attention(weights, counts)
            tokens = [n for n in range(K) for _ in range(counts[n])]
            for k in range(K):
                mass = [weights[n, k] for n in tokens]
                predicted = sum(m * w[n] for m, n in zip(mass, tokens, strict=True)) / sum(mass)
                gaps.append(predicted - w[k] - error_of(a[:, k], w, k))
                slack.append(bound(a[:, k], w, k) - abs(predicted - w[k]))
    identity = _tools.exactly(gaps, LAWS + ", arbitrary tasks", seed=SEED)
    worst = float(min(slack))
    bounded = Evidence(
        worst >= 0, "exact", len(slack), identity.region, margin=worst, tolerance=0.0,
        tolerance_source="exact arithmetic", dtype="rational", seed=SEED,
    )  # fmt: skip
    return _tools.merge([identity, bounded])


def _error(a: Any, w: Any, k: int) -> Any:
    return sum(x * (w[m] - w[k]) for m, x in enumerate(a) if m != k)


SEC_31 = Claim(
    id="conv.sec-3.1.text",
    label="Section 3.1, after Theorem 3.2",
    kind="text",
    title="Prediction for a task that training never saw",
    statement=r"""
For any $w$, also one outside the support of the task distribution, and a query $v_k$,
$\hat y_{\mathrm{query}}=\mathrm{Attn}_k\langle w,v_k\rangle+\sum_{m\ne k}\mathrm{Attn}_m\langle w,v_m\rangle$, which differs from
$\langle w,v_k\rangle$ by at most $(1-\mathrm{Attn}_k)\max_{m\ne k}|\langle w,v_m-v_k\rangle|$: small where attention is concentrated.""",
    checks=(
        Check(
            "error of the prediction, and its bound", _unseen_task,
            (_error, lambda a, w, k: (1 - a[k]) * max(abs(x - w[k]) for m, x in enumerate(w) if m != k)),
            mutants={
                "error without the own term": (
                    lambda a, w, k: sum(x * w[m] for m, x in enumerate(a) if m != k),
                    lambda a, w, k: (1 - a[k]) * max(abs(x - w[k]) for x in w),
                ),
                "bound with (1 - Attn_k)^2": (_error, lambda a, w, k: (1 - a[k]) ** 2 * max(abs(x - w[k]) for x in w)),
            },
        ),
    ),
    hypotheses=("test inputs drawn from the same feature set", "attention on $v_k$ near 1, as after training"),
    uses=("conv.eq-5",),
    chapter="balanced",
    note="The error is small in absolute terms; relative to $\\langle w,v_k\\rangle$ it is unbounded where that vanishes.",
)  # fmt: skip


def _restriction(bound: Callable[[int, int], Fraction], fast: bool) -> Evidence:
    """Limit of the loss along Q = sigma I, exact by enumeration, against a bound; the loss is never negative."""
    slack = []
    for K, N in ((2, 3), (3, 4)) if fast else ((2, 3), (2, 9), (3, 4), (3, 8), (4, 6), (5, 5)):
        p = [Fraction(1, K)] * K
        total = Fraction(0)
        for chance, counts in exact_law(p, N):
            # As sigma grows all attention goes to the query's feature if it is there; if not, attention is |V_m| / N.
            missing = [k for k in range(K) if counts[k] == 0]
            total += chance * sum(p[k] * (sum(Fraction(n, N) ** 2 for n in counts) + 1) / 2 for k in missing)
        slack.append(bound(K, N) - total)
    return Evidence(
        min(slack) >= 0, "exact", len(slack), "Q = sigma I, sigma to infinity, balanced, K up to 5",
        margin=float(min(slack)), tolerance=0.0, tolerance_source="exact arithmetic", dtype="rational",
    )  # fmt: skip


def _miss(K: int, N: int) -> Fraction:
    return (1 - Fraction(1, K)) ** N / 2 * (Fraction(K, K - 1) + Fraction(K - 2, (K - 1) * N))


REM_22 = Claim(
    id="conv.rem-2.2",
    label="Remark 2.2",
    kind="remark",
    title="The form of the weights costs at most an exponentially small loss",
    statement=r"""
Restricting the weights to $\nu=1$ and $Q$ costs at most $\inf L$, since no loss is negative; and for balanced data, with equal probabilities,
$\inf L\le\tfrac12(1-\tfrac1K)^N\bigl(\tfrac K{K-1}+\tfrac{K-2}{(K-1)N}\bigr)$, which vanishes exponentially in $N/K$.""",
    checks=(
        Check(
            "limit of Q = sigma I", _restriction, _miss,
            mutants={
                "one token more": lambda K, N: _miss(K, N + 1),
                "unavoidable part only": lambda K, N: (1 - Fraction(1, K)) ** N / 2 * Fraction(K, K - 1) * Fraction(99, 100),
            },
        ),
    ),
    hypotheses=("balanced features", "prompts without label noise"),
    uses=("conv.lem-D.8.order",),
    chapter="balanced",
    note=(
        "'Exponentially with K' in the paper stands for $N\\ge\\mathrm{poly}(K)$; the exponent is $N/K$. For unequal $p_k=\\Theta(1/K)$ no prompt without the feature costs more than 1, "
        "so that $\\inf L\\le\\sum_kp_k(1-p_k)^N$."
    ),
)  # fmt: skip


# Definition 4.1, Lemma 4.2, Lemmas D.1, D.3, D.7


def _projections(formula: Callable[[Any, int, int], Any], fast: bool) -> Evidence:
    """``p_k E formula(Attn, n, k)`` against exact differentiation of the token loss, for every pair (n, k)."""
    gaps = []
    for index, (p, law) in enumerate(laws(fast)):
        K = len(p)
        weights = _tools.fractions((K, K), SEED + 7 * index)
        truth = sum(chance * _tools.exact_descent(weights, counts, p) for chance, counts in law)
        found = [(chance, _tools.exact_attention(weights, counts)) for chance, counts in law]
        for n, k in itertools.product(range(K), repeat=2):
            gaps.append(p[k] * sum(chance * formula(a[:, k], n, k) for chance, a in found) - truth[n, k])
    return _tools.exactly(gaps, LAWS, seed=SEED)


def _update(a: Any, n: int, k: int) -> Any:
    if n == k:
        return a[k] * _per_prompt(a, k)
    return a[n] * (sum(x * x for m, x in enumerate(a) if m != k) - a[n] - a[k] * (1 - a[k]))


def _mutated(change: Callable[[Any, int, int], Any]) -> Callable[[Any, int, int], Any]:
    return lambda a, n, k: _update(a, n, k) + change(a, n, k)


UPDATE_MUTANTS = {
    "Attn_n left out of beta": _mutated(lambda a, n, k: a[n] * a[n] if n != k else 0),
    "sign of Attn_k (1 - Attn_k)": _mutated(lambda a, n, k: 2 * a[n] * a[k] * (1 - a[k]) if n != k else 0),
    "alpha without the other squares": _mutated(
        lambda a, n, k: -a[k] * sum(x * x for m, x in enumerate(a) if m != k) if n == k else 0
    ),
}

DEF_41 = Claim(
    id="conv.def-4.1",
    label="Definitions 4.1, D.2",
    kind="definition",
    title="Bilinear attention weights and their updates",
    statement=r"""
$A_k=v_k^\top Qv_k$ and $B_{k,n}=v_n^\top Qv_k$ for $n\ne k$, both 0 at the start; their updates under gradient descent are
$\eta\alpha_k=-\eta v_k^\top\nabla L\,v_k$ and $\eta\beta_{k,n}=-\eta v_n^\top\nabla L\,v_k$.""",
    checks=(Check("projections of the gradient", _projections, _update, mutants=UPDATE_MUTANTS),),
    reconstruction="The minus signs of the updates are lost in the text; gradient descent fixes them.",
    same_as=("ood.weights.definition", "ood.eq-17"),
    note="The first index of $B_{k,n}$ is the query, the second the key: the other way round than the OOD paper's $\\beta_{v',v}$.",
    chapter="notation",
)

LEM_42 = Claim(
    id="conv.lem-4.2.result",
    label="Lemma 4.2",
    kind="lemma",
    title="Updates of the bilinear weights",
    statement=r"""
$\alpha_k=\mathbb E[\mathbf 1\{x_{\mathrm{query}}=v_k\}\mathrm{Attn}_k(\sum_{m\ne k}\mathrm{Attn}_m^2+(1-\mathrm{Attn}_k)^2)]$ and
$\beta_{k,n}=\mathbb E[\mathbf 1\{x_{\mathrm{query}}=v_k\}\mathrm{Attn}_n(\sum_{m\ne k}\mathrm{Attn}_m^2-\mathrm{Attn}_n-\mathrm{Attn}_k(1-\mathrm{Attn}_k))]$,
for every prompt length and every feature distribution.""",
    checks=(Check("projections of the gradient", _projections, _update, mutants=UPDATE_MUTANTS),),
    hypotheses=("orthonormal features", "$\\mathbb E[ww^\\top]=I$", "query independent of the prompt"),
    reconstruction="Minus signs, sums and squares restored; the only signs that exact differentiation accepts.",
    uses=("conv.def-4.1", "conv.lem-D.1"),
    same_as=("conv.lem-D.3", "ood.lem-D.3.alpha", "ood.lem-D.3.beta"),
    chapter="balanced",
)

LEM_D3 = replace(
    LEM_42,
    id="conv.lem-D.3",
    label="Lemma D.3",
    statement=r"""
For $k\ne k'$: $\alpha_k=\mathbb E[\mathbf 1\{x_{\mathrm{query}}=v_k\}\mathrm{Attn}_k(\sum_{m\ne k}\mathrm{Attn}_m^2+(1-\mathrm{Attn}_k)^2)]$ and
$\beta_{k,k'}=\mathbb E[\mathbf 1\{x_{\mathrm{query}}=v_k\}\mathrm{Attn}_{k'}(\sum_{m\ne k}\mathrm{Attn}_m^2-\mathrm{Attn}_{k'}-\mathrm{Attn}_k(1-\mathrm{Attn}_k))]$.""",
    uses=("conv.def-4.1", "conv.lem-D.1"),
    same_as=("conv.lem-4.2.result", "ood.lem-D.3.alpha", "ood.lem-D.3.beta"),
)


def _sums(combine: Callable[[Any], Any], fast: bool) -> Evidence:
    """A linear combination of a column of the descent direction, which must vanish exactly."""
    values = []
    for index, (p, law) in enumerate(laws(fast)):
        K = len(p)
        for trial in range(3):
            weights = _tools.fractions((K, K), SEED + 11 * index + trial)
            delta = sum(chance * _tools.exact_descent(weights, counts, p) for chance, counts in law)
            values += [combine([delta[k, k], *[delta[n, k] for n in range(K) if n != k]]) for k in range(K)]
    return _tools.exactly(values, LAWS, seed=SEED)


def _own_descent(own: bool, fast: bool, strictly: bool = False) -> Evidence:
    """Minus the derivative of the token loss by the score of the query's own (or another) feature, for all scores."""
    import sympy

    found = []
    for K, N in ((2, 2), (3, 2)) if fast else ((2, 2), (2, 3), (3, 2), (3, 3), (4, 3)):
        w = sympy.symbols(f"w1:{K + 1}")
        for counts in counts_of(K, N):
            whole = sum(n * x for n, x in zip(counts, w, strict=True))
            # The loss is squares / (2 whole^2); its derivative by a score, that is by the logarithm of a weight, has whole^3 below.
            squares = sum((n * x - int(m == 0) * whole) ** 2 for m, (n, x) in enumerate(zip(counts, w, strict=True)))
            m = 0 if own else 1
            drop = sympy.expand(squares * counts[m] * w[m] - w[m] * sympy.diff(squares, w[m]) * whole / 2)
            # Strictly: only prompts that hold the feature beside another one move it.
            if not strictly or 0 < counts[0] < N:
                found.append(drop)
    return positive(found, "all scores; every count vector, K up to 4, N up to 3, query v_1", strictly=strictly)


LEM_42_SIGN = Claim(
    id="conv.lem-4.2.result.sign",
    label="Lemma 4.2, text",
    kind="text",
    title="The own weight never falls",
    statement=r"""$\alpha_k\ge0$ at every $Q$, so that $A_k$ never decreases under gradient descent, whatever the step size.""",
    checks=(
        Check(
            "coefficients of the derivative of the token loss", _own_descent, True,
            mutants={"another feature's weight": False},
        ),
    ),
    uses=("conv.lem-4.2.result",),
    note=(
        "The derivative is a ratio of polynomials in the exponentials of the scores without a negative coefficient. By Lemma 4.2 $\\alpha_k$ is the mean of "
        "attention times a sum of squares, for every K and N."
    ),
    chapter="balanced",
)  # fmt: skip

LEM_42_CONSERVED = Claim(
    id="conv.lem-4.2.result.conserved",
    label="Lemma 4.2 (not in the paper)",
    kind="text",
    title="A conserved quantity",
    statement=r"""
$\alpha_k+\sum_{n\ne k}\beta_{k,n}=0$ at every $Q$, so $A_k+\sum_{n\ne k}B_{k,n}=0$ for all time, every prompt length,
feature distribution and step size. Hence $B_{k,n}=-A_k/(K-1)$ exactly in the balanced case with equal probabilities.""",
    checks=(
        Check(
            "sum of a column of the descent direction", _sums, sum,
            mutants={"difference": lambda c: c[0] - sum(c[1:]), "own weight twice": lambda c: sum(c) + c[0]},
        ),
    ),
    uses=("conv.lem-4.2.result",),
    same_as=("ood.lem-D.4",),
    note="The paper does not state it. It replaces several of its induction arguments by an identity.",
    chapter="balanced",
)  # fmt: skip


def _monotone(subject: tuple[list[Fraction], bool], fast: bool) -> Evidence:
    """Whether some B rises and later falls (True) or all B only fall (False) along gradient descent."""
    p, expected = subject
    law = prompts.multinomial([float(x) for x in p], 12)
    S = torch.zeros(len(p), len(p), dtype=torch.float64)
    steps = []
    for _ in range(300 if fast else 3000):
        delta = population.descent(S, law)
        steps.append(delta[:, 1].clone())
        S = S + 2.0 * delta
    moves = torch.stack(steps)
    own = moves[:, 1].min()
    beta = torch.cat([moves[:, :1], moves[:, 2:]], dim=1)
    turns = bool(((beta > 1e-12).any(0) & (beta < -1e-12).any(0)).any())
    return Evidence(
        bool(own >= 0) and turns == expected, "swept", len(steps), f"query v_2, p = {[str(x) for x in p]}, N = 12, eta = 2",
        margin=float(own), detail=f"smallest alpha {float(own):.3g}; a beta changes sign: {turns}",
    )  # fmt: skip


IMBALANCED = [Fraction(4, 5), Fraction(1, 10), Fraction(1, 10)]
LEM_42_TEXT = Claim(
    id="conv.lem-4.2.text",
    label="text after Lemma 4.2",
    kind="text",
    title="The off-target weights need not be monotone",
    statement=r"""$A_k$ increases at all times, while $B_{k,n}$ need not be monotone: on imbalanced data $B_{2,3}$ rises first and falls later.""",
    checks=(
        Check(
            "a run on imbalanced data", _monotone, (IMBALANCED, True),
            mutants={"monotone there too": (IMBALANCED, False), "balanced data": ([Fraction(1, 3)] * 3, True)},
        ),
    ),
    uses=("conv.lem-4.2.result", "conv.lem-4.2.result.conserved"),
    note="With equal probabilities every $B_{k,n}=-A_k/(K-1)$ does fall at all times: the remark is about imbalanced data.",
    chapter="phases",
)  # fmt: skip

LEM_D1 = replace(
    LEM_D2,
    id="conv.lem-D.1",
    label="Lemma D.1",
    title="Gradient of the loss as a double sum over tokens",
    statement=r"""
$\nabla_QL=\mathbb E[(\hat y_{\mathrm{query}}-\langle w,x_{\mathrm{query}}\rangle)\sum_{i,j\in[N]}\mathrm{attn}_i\,\mathrm{attn}_j(x_i-x_j)x_{\mathrm{query}}^\top y_i]$.""",
    checks=tuple(replace(check, role="printed") for check in LEM_D2.checks if check.role == "corrected"),
    why=None,
    corrected=None,
    hypotheses=("labels without noise",),
    reconstruction="Expectation, transposes and lower-case attention (of tokens) restored.",
    uses=("conv.def-3.1", "conv.eq-4"),
    same_as=(),
    chapter="balanced",
    note="The OOD paper quotes this lemma as its Lemma D.2 with the attention of features instead of tokens, which is wrong there.",
)

LEM_D7 = Claim(
    id="conv.lem-D.7",
    label="Lemma D.7",
    kind="lemma",
    title="The loss in terms of attention",
    statement=r"""
$L(\theta)=\tfrac12\sum_k\mathbb E[\mathbf 1\{x_{\mathrm{query}}=v_k\}(\sum_{m\ne k}\mathrm{Attn}_m^2+(1-\mathrm{Attn}_k)^2)]$.""",
    checks=(
        Check(
            "token loss against the formula",
            lambda formula, fast: _formula(formula, fast),
            _per_prompt,
            mutants={
                "other squares dropped": lambda a, k: (1 - a[k]) ** 2,
                "square of the sum": lambda a, k: 2 * (1 - a[k]) ** 2,
            },
        ),
    ),
    hypotheses=("orthonormal features", "$\\mathbb E[ww^\\top]=I$"),
    uses=("conv.eq-4", "conv.eq-5"),
    same_as=("ood.lem-D.8",),
    chapter="balanced",
)


def _formula(formula: Callable[[Any, int], Any], fast: bool) -> Evidence:
    gaps = []
    for index, (p, law) in enumerate(laws(fast)):
        K = len(p)
        weights = _tools.fractions((K, K), SEED + 3 * index)
        truth = _losses(weights, law, p)
        for k in range(K):
            mean = sum(c * formula(_tools.exact_attention(weights, counts)[:, k], k) for c, counts in law)
            gaps.append(p[k] * mean / 2 - truth[k])
    return _tools.exactly(gaps, LAWS, seed=SEED)


# Lemmas D.4 to D.6


def _log(chance: float) -> float:
    return math.log(chance) if chance > 0 else -math.inf


def _divergence(a: float, b: float) -> float:
    """Kullback-Leibler divergence of coin tosses with chances a and b."""
    from scipy.special import rel_entr

    return float(rel_entr(a, b) + rel_entr(1 - a, 1 - b))


def _log_outside(N: int, windows: Sequence[tuple[float, float, int]]) -> float:
    """Log of a bound on P(some count outside its window); a window is (share, half width, how many alike)."""
    from scipy.special import logsumexp
    from scipy.stats import binom

    tails = []
    for share, half, number in windows:
        # A relative 1e-9 keeps the comparison off ties between a count and a window's end.
        low, high = math.ceil(share * N - half * (1 + 1e-9)) - 1, math.floor(share * N + half * (1 + 1e-9))
        with np.errstate(divide="ignore"):
            both = (float(binom.logcdf(low, N, share)), float(binom.logsf(high, N, share)))
        for exact, edge in zip(both, (low / N, (high + 1) / N), strict=True):
            if 0 <= edge <= 1:
                # Where the exact tail underflows, Chernoff's bound on it stands in.
                tail = exact if math.isfinite(exact) else -N * _divergence(edge, share)
                tails.append(math.log(number) + tail)
    return float(logsumexp(tails))


def _tail(subject: tuple[float, float], fast: bool) -> Evidence:
    """Exact tail of ``sum_i |X_i - N p_i| > N width eps`` against ``3 exp(-N eps^2 / rate)``, where K/N <= eps^2/20."""
    rate, width = subject
    margins, where = [], ""
    for K, N in ((2, 60), (2, 400), (3, 90)) if fast else ((2, 50), (2, 400), (2, 3000), (3, 80), (3, 150), (4, 90)):
        shares = [[1 / K] * K, [0.8] + [0.2 / (K - 1)] * (K - 1)]
        for p in shares:
            law = prompts.multinomial(p, N)
            spread = (law.counts - N * law.query).abs().sum(1)
            for eps in np.linspace(math.sqrt(20 * K / N), 1, 12, endpoint=False):
                chance = float(law.weights[spread > N * width * eps].sum())
                margins.append(math.log(3) - N * eps**2 / rate - _log(chance))
                if margins[-1] == min(margins):
                    where = f"K = {K}, N = {N}, p_1 = {p[0]:.2f}, eps = {eps:.3f}: probability {chance:.3g}"
    return _tools.at_least(
        margins, "exact multinomial probabilities, K up to 4, N up to 3000, eps from its least value to 1",
        tolerance=1e-9, source="rounding of log probabilities", detail=where,
    )  # fmt: skip


LEM_D4 = Claim(
    id="conv.lem-D.4",
    label="Lemma D.4",
    kind="lemma",
    title="Tail bound of the multinomial distribution (Devroye)",
    statement=r"""
For $(X_1,\dots,X_K)$ multinomial with $N$ trials and probabilities $p_i$, every $\varepsilon\in(0,1)$ and $K/N\le\varepsilon^2/20$:
$\mathbb P(\sum_i|X_i-\mathbb EX_i|>N\varepsilon)\le3e^{-N\varepsilon^2/25}$.""",
    checks=(
        Check(
            "exact tails",
            _tail,
            (25.0, 1.0),
            mutants={"rate 1 for 25": (1.0, 1.0), "deviations N eps / 16": (25.0, 1 / 16)},
        ),
    ),
    hypotheses=("$K/N\\le\\varepsilon^2/20$", "$\\varepsilon\\in(0,1)$"),
    reconstruction="Relation signs restored; the bound is Devroye's of 1983.",
    same_as=("ood.lem-I.1.result",),
    chapter="balanced",
    note="A known theorem, checked by enumeration where that is possible; it is far from tight in that range.",
)


def _window(subject: tuple[float, float], fast: bool) -> Evidence:
    """P(all counts within ``width c N / K``) against ``1 - 3 exp(-c^2 N / (rate K^2))``, least c and up."""
    width, rate = subject
    margins, where = [], ""
    for K, N in ((2, 170), (3, 60)) if fast else ((2, 8), (2, 170), (2, 1000), (3, 27), (3, 60), (3, 150), (4, 64)):
        for p in ([1 / K] * K, [1.4 / K] + [(1 - 1.4 / K) / (K - 1)] * (K - 1)):
            law = prompts.multinomial(p, N)
            gap = (law.counts - N * law.query).abs().amax(1)
            least = math.sqrt(20 * K**3 / N)
            for c in least * np.array([1.0, 1.1, 1.5, 2.0]):
                missed = float(law.weights[gap > width * c * N / K].sum())
                margins.append(math.log(3) - c**2 * N / (rate * K**2) - _log(missed))
                if margins[-1] == min(margins):
                    where = f"K = {K}, N = {N}, c = {c:.3f}: P(outside) = {missed:.3g}"
    return _tools.at_least(
        margins, "exact multinomial probabilities, K up to 4, N from K^3 up, c from sqrt(20 K^3/N) up",
        tolerance=1e-9, source="rounding of log probabilities", detail=where,
    )  # fmt: skip


LEM_D5_PROB = Claim(
    id="conv.lem-D.5.prob",
    label="Lemma D.5",
    kind="lemma",
    title="Balanced counts with high probability",
    statement=r"""
For $p_k=\Theta(1/K)$, $N\gg K^3$ and $c_{\mathrm{bal}}\ge\sqrt{20K^3/N}$, the event
$\mathcal E_{\mathrm{bal}}=\{|V_k|\in[p_kN-c_{\mathrm{bal}}N/K,\;p_kN+c_{\mathrm{bal}}N/K]\text{ for all }k\}$ has probability at least $1-3e^{-c_{\mathrm{bal}}^2N/(25K^2)}$.""",
    checks=(
        Check(
            "exact probabilities",
            _window,
            (1.0, 25.0),
            mutants={"a window 16 times narrower": (1 / 16, 25.0), "rate 0.3 for 25": (1.0, 0.3)},
        ),
    ),
    hypotheses=("$c_{\\mathrm{bal}}\\ge\\sqrt{20K^3/N}$",),
    reconstruction="The relation between K^3 and N is lost; $\\gg$ and $\\ge$ are both plausible, and this part holds under both.",
    uses=("conv.lem-D.4",),
    chapter="balanced",
)


def _room(least: Callable[[int, list[Fraction]], Fraction], fast: bool) -> Evidence:
    """At N = least(K, p): is there a c with c^2 >= 20 K^3 / N and 0 < c < K p_k for every k? Exact, worst over p."""
    slack, where = [], ""
    for K in range(2, 12 if fast else 60):
        for tilt in (Fraction(0), Fraction(1, 4), Fraction(3, 4)):
            # Half of the features above 1/K, half below, in balance.
            low = (1 - tilt) / K
            p = [low] * (K // 2) + [Fraction(1, K)] * (K % 2) + [(1 + tilt) / K] * (K // 2)
            N = least(K, p)
            slack.append((K * min(p)) ** 2 - 20 * K**3 / N)
            if slack[-1] == min(slack):
                where = f"K = {K}, min p = {min(p)}, N = {N}: (K min p)^2 - 20 K^3/N = {float(slack[-1]):.4g}"
    return Evidence(
        min(slack) > 0, "exact", len(slack), "K up to 60, probabilities between 1/(4K) and 7/(4K)",
        margin=float(min(slack)), tolerance=0.0, tolerance_source="exact arithmetic", dtype="rational", detail=where,
    )  # fmt: skip


LEM_D5_POSITIVE = Claim(
    id="conv.lem-D.5.positive",
    label="Lemma D.5, last sentence",
    kind="text",
    title="The lower ends of the windows can be made positive",
    statement=r"""
For $p_k=\Theta(1/K)$ and $N\gg K^3$ one can choose $c_{\mathrm{bal}}\ge\sqrt{20K^3/N}$ with $L_k=p_kK-c_{\mathrm{bal}}>0$ for every $k$: it is
enough that $N>20K^3/(K\min_kp_k)^2$.""",
    checks=(
        Check(
            "room for c when N exceeds 20 K^3 / (K min p)^2",
            _room,
            lambda K, p: 20 * K**3 / (K * min(p)) ** 2 + 1,
            mutants={
                "20 halved": lambda K, p: 10 * K**3 / (K * min(p)) ** 2,
                "min p replaced by 1/K": lambda K, p: Fraction(20 * K**3 + 1),
            },
        ),
        Check("N = K^3", _room, lambda K, p: Fraction(K**3), role="reading"),
    ),
    reconstruction="The relation between K^3 and N is lost. Read as $N\\gg K^3$ the sentence holds, with the constant given here.",
    uses=("conv.lem-D.5.prob",),
    chapter="balanced",
    note=(
        "Read as $N\\ge K^3$ it is false: $c_{\\mathrm{bal}}\\ge\\sqrt{20}$ is then allowed to be the only choice, while $K\\min p\\le1$. The interval $[L_kN/K,U_kN/K)$ for $|V_k|$ "
        "reads half open in the text; its upper end belongs to the event too."
    ),
)


def _imbalanced(subject: tuple[float, int], fast: bool) -> Evidence:
    """Union bound on P(outside E_imbal) from exact binomial tails against ``3 exp(-c^2 N / (25 K^2))``."""
    width, K_least = subject
    margins, where = [], ""
    sizes = [K for K in (3, 10, 100, 300) if K_least <= K]
    for K, p1, times in itertools.product(sizes, (0.3, 0.5, 0.8), (1, 20) if fast else (1, 2, 20)):
        N = max(times * K**3, K**3)
        c = math.sqrt(20 * K**3 / N)
        outside = _log_outside(N, ((p1, width * c * N, 1), ((1 - p1) / (K - 1), c * N / K, K - 1)))
        margins.append(math.log(3) - c**2 * N / (25 * K**2) - outside)
        if margins[-1] == min(margins):
            where = f"K = {K}, p_1 = {p1}, N = {N}, c = {c:.3f}: log P(outside) <= {outside:.3g}"
    return _tools.at_least(
        margins, f"K from {K_least} to 300, p_1 from 0.3 to 0.8, N from K^3 up, the least c",
        tolerance=1e-9, source="rounding of log probabilities", detail=where,
    )  # fmt: skip


LEM_D6_PROB = Claim(
    id="conv.lem-D.6.prob",
    label="Lemma D.6",
    kind="lemma",
    title="Imbalanced counts with high probability",
    statement=r"""
For $p_1=\Theta(1)$, $p_k=\Theta(1/K)$ and $c_{\mathrm{im}}\ge\sqrt{20K^3/N}$, with $L_1,U_1=p_1\mp0.01c_{\mathrm{im}}$ and $L_k,U_k=p_kK\mp c_{\mathrm{im}}$, the event
$\mathcal E_{\mathrm{imbal}}=\{|V_1|\in[L_1N,U_1N],\ |V_k|\in[L_kN/K,U_kN/K]\text{ for }k\ge2\}$ has probability at least
$1-3e^{-c_{\mathrm{im}}^2N/(25K^2)}$ for sufficiently large $K$.""",
    checks=(
        Check(
            "exact binomial tails from K = 100",
            _imbalanced,
            (0.01, 100),
            mutants={"window 0.00001 c": (1e-5, 100), "K from 3 up": (0.01, 3)},
        ),
        Check("K from 3 up", _imbalanced, (0.01, 3), role="reading"),
    ),
    hypotheses=("$K\\ge100$: then $c_{\\mathrm{im}}/K\\le0.01c_{\\mathrm{im}}$",),
    reconstruction=(
        "The event's ends and the relation between K^3 and N are damaged. 'Sufficiently large K' is the proof's; it means "
        "$K\\ge100$, where the window of $V_1$ contains the one that the tail bound controls."
    ),
    uses=("conv.lem-D.4",),
    chapter="phases",
    note=(
        r"The lemma only claims that constants exist; these are the proof's. For small K they fail: with $K=3$ the window $0.01c_{\mathrm{im}}N$ of $|V_1|$ is narrower than a standard deviation. The proof's display "
        r"has a stray factor: $(p_1+c_{\mathrm{im}}/K)p_1N$ should be $(p_1+c_{\mathrm{im}}/K)N$."
    ),
)


def _room_imbalanced(least: Callable[[int, Fraction], Fraction], fast: bool) -> Evidence:
    slack = []
    for K in (100, 150) if fast else (100, 150, 400, 1000):
        for p1 in (Fraction(1, 10), Fraction(1, 2), Fraction(9, 10)):
            q = (1 - p1) / (K - 1)
            c2 = 20 * K**3 / least(K, p1)
            slack.append(min((K * q) ** 2 - c2, p1**2 - Fraction(1, 10000) * c2))
    return Evidence(
        min(slack) > 0, "exact", len(slack), "K from 100 to 1000, p_1 from 0.1 to 0.9, other features alike",
        margin=float(min(slack)), tolerance=0.0, tolerance_source="exact arithmetic", dtype="rational",
    )  # fmt: skip


LEM_D6_POSITIVE = Claim(
    id="conv.lem-D.6.positive",
    label="Lemma D.6",
    kind="lemma",
    title="Positive ends of the windows",
    statement=r"""
For $N\gg K^3$ there is a $c_{\mathrm{im}}\ge\sqrt{20K^3/N}$ with $0<L_k<U_k$ for all $k$: with the other features alike it is enough that
$N>20K^3/(K\min_{k\ge2}p_k)^2$.""",
    checks=(
        Check(
            "room for c",
            _room_imbalanced,
            lambda K, p1: 20 * K**3 / (K * (1 - p1) / (K - 1)) ** 2 + 1,
            mutants={"N = 20 K^3": lambda K, p1: Fraction(20 * K**3), "half": lambda K, p1: 10 * K**3 / (1 - p1) ** 2},
        ),
        Check("N = K^3", _room_imbalanced, lambda K, p1: Fraction(K**3), role="reading"),
    ),
    hypotheses=("$K\\ge100$", "$p_1\\ge1/10$ in the check"),
    reconstruction="The relation between K^3 and N is lost; under $N\\ge K^3$ the statement is false, under $N\\gg K^3$ it holds.",
    uses=("conv.lem-D.6.prob",),
    chapter="phases",
)


# Lemmas D.8 to D.11


def _not_attained(own: bool, fast: bool) -> Evidence:
    """Whether raising A_k lowers the loss at every Q: prompts with the query's feature beside another one."""
    return _own_descent(own, fast, strictly=True)


def _minimiser(_: Any, fast: bool) -> Evidence:
    """A minimiser would be stationary: is the derivative by A_k zero anywhere? It never is."""
    found = _not_attained(True, fast)
    return replace(found, passed=not found.passed, detail="every derivative of the loss by A_k is strictly negative")


def _no_minimiser(_: Any, fast: bool) -> Evidence:
    p = [Fraction(1, 2), Fraction(1, 2)]
    law = exact_law(p, 2)
    values = []
    for power in (1, 10, 100):
        weights = np.array([[Fraction(power), Fraction(1)], [Fraction(1), Fraction(power)]], dtype=object)
        values.append(sum(_losses(weights, law, p)))
    return _tools.shows(
        float(values[1] - values[2]), 1e-6,
        f"K = 2, N = 2, p = 1/2, e^A = 1, 10, 100: L = {', '.join(str(v) for v in values)}, falling towards 1/4, never there.",
        strength="exact",
    )  # fmt: skip


EQ_9_12 = Claim(
    id="conv.eq-9-12",
    label="eqs. (9), (12)",
    kind="definition",
    title="Least loss",
    statement=r"""
$L^*=\min_\theta L(\theta)$ and $L_k^*=\min_\theta L_k(\theta)$ over $\theta=\{1,Q\}$; along $A_k$ the loss falls strictly for
$N\ge2$, so that the value is approached as weights grow.""",
    checks=(Check("descent along A", _not_attained, True, mutants={"along another weight": False}),),
    reconstruction="Definitions rebuilt from eqs. (4) and (6).",
    uses=("conv.eq-4", "conv.eq-6"),
    chapter="balanced",
)

EQ_9_12_MIN = Claim(
    id="conv.eq-9-12.attained",
    label="eqs. (9), (12); 'global minimum' in Theorems 3.2, 3.3",
    kind="text",
    title="Whether the minimum exists",
    statement=r"""There is a $\theta$ at which $L$, or $L_k$, takes its least value.""",
    checks=(
        Check("a stationary point", _minimiser, None),
        Check("losses along a ray", _no_minimiser, None, role="counterexample"),
        Check(
            "no stationary point: an infimum",
            _not_attained,
            True,
            role="corrected",
            mutants={"along another weight": False},
        ),
    ),
    why=(
        "Some prompts hold the query's feature beside another one; there finite weights leave attention on the other, so that "
        "$\\alpha_k>0$ at every $Q$ and raising $A_k$ always lowers the loss."
    ),
    corrected="$\\inf$ in place of $\\min$ throughout; the theorems, which compare with the value only, stand with it.",
    hypotheses=("$N\\ge2$, $K\\ge2$, every $p_k\\in(0,1)$",),
    uses=("conv.lem-4.2.result",),
    chapter="balanced",
)


def _low(factor: Callable[[int], Fraction], fast: bool) -> Evidence:
    """``L_low`` with a trial factor must be the least loss over prompts that miss the query's feature: exact."""
    gaps = []
    for p, law in laws(fast):
        K = len(p)
        for k in range(K):
            # The least of sum Attn_m^2 + 1 over attentions on the other K - 1 features is at equal attention.
            least = sum(Fraction(1, K - 1) ** 2 for m in range(K) if m != k) + 1
            missing = sum(chance for chance, counts in law if counts[k] == 0)
            gaps.append(factor(K) / 2 * missing - least / 2 * (1 - p[k]) ** sum(law[0][1]))
    return _tools.exactly(gaps, LAWS)


EQ_10_13 = Claim(
    id="conv.eq-10-13",
    label="eqs. (10), (13)",
    kind="definition",
    title="Unavoidable loss",
    statement=r"""
$L_k^{\mathrm{low}}=\tfrac12\tfrac K{K-1}\mathbb P(|V_k|=0)$ conditional on the query (eq. 13), and
$L^{\mathrm{low}}=\tfrac12\tfrac K{K-1}\sum_k\mathbb P(x_{\mathrm{query}}=v_k\cap|V_k|=0)$ (eq. 10): what prompts without the query's feature cost at least.
With equal probabilities $L^{\mathrm{low}}=\tfrac12(1-\tfrac1K)^{N-1}$.""",
    checks=(
        Check(
            "probability and least loss of prompts without the feature",
            _low,
            lambda K: Fraction(K, K - 1),
            mutants={"K/(K-1) dropped": lambda K: Fraction(1), "K/(K+1)": lambda K: Fraction(K, K + 1)},
        ),
    ),
    reconstruction="The factors are damaged; the proof of Lemma D.8 fixes them.",
    chapter="balanced",
)


def _below(factor: Callable[[int], Fraction], fast: bool) -> Evidence:
    """``L(theta) - factor(K)/2 sum_k p_k P(|V_k| = 0)`` over theta, exact, with theta near its best too."""
    slack = []
    for index, (p, law) in enumerate(laws(fast)):
        K, N = len(p), sum(law[0][1])
        low = factor(K) / 2 * sum(q * (1 - q) ** N for q in p)
        trials = [_tools.fractions((K, K), SEED + index + t) for t in range(3)]
        for power in (10**3, 10**9):
            eye = _tools.identity(K)
            trials.append(np.array([[1 + power * eye[i, j] for j in range(K)] for i in range(K)], dtype=object))
        slack += [sum(_losses(weights, law, p)) - low for weights in trials]
    return Evidence(
        min(slack) >= 0, "swept", len(slack), LAWS + "; random and nearly optimal weights", margin=float(min(slack)),
        tolerance=0.0, tolerance_source="exact arithmetic", dtype="rational", seed=SEED,
    )  # fmt: skip


def _missing_cost(least: Callable[[int], Fraction], fast: bool) -> Evidence:
    """``sum_{m != k} Attn_m^2 >= least(K)`` where Attn_k = 0, for all attention vectors."""
    import sympy

    slack = []
    for K in (2, 3, 4) if fast else (2, 3, 4, 5, 6):
        steps = sympy.symbols(f"e1:{K}")
        c = [sum(steps[: i + 1]) for i in range(K - 1)]
        slack.append(sum(x**2 for x in c) - sympy.Rational(least(K).numerator, least(K).denominator) * sum(c) ** 2)
    return positive([sympy.expand(x) for x in slack], "all attention vectors, K up to 6")


LEM_D8_LOWER = Claim(
    id="conv.lem-D.8.lower",
    label="Lemma D.8",
    kind="lemma",
    title="The unavoidable loss is a lower bound",
    statement=r"""$L^{\mathrm{low}}\le L^*$, and in the same way $L_k^{\mathrm{low}}\le L_k^*$ (Lemma D.10), for every feature distribution.""",
    checks=(
        Check(
            "Cauchy-Schwarz where the feature is missing",
            _missing_cost,
            lambda K: Fraction(1, K - 1),
            mutants={"1/(K-2)": lambda K: Fraction(1, K - 2) if K > 2 else Fraction(2)},
        ),
        Check(
            "loss less its lower bound",
            _below,
            lambda K: Fraction(K, K - 1),
            mutants={
                "K/(K-2) for K/(K-1)": lambda K: Fraction(K, K - 2) if K > 2 else Fraction(4),
                "factor 3": lambda K: Fraction(3),
            },
        ),
    ),
    hypotheses=("query independent of the prompt",),
    uses=("conv.eq-9-12", "conv.eq-10-13", "conv.lem-D.7"),
    chapter="balanced",
    note="Proof by $\\sum_{m\\ne k}\\mathrm{Attn}_m^2\\ge1/(K-1)$ where $\\mathrm{Attn}_k=0$ (Cauchy-Schwarz).",
)


def _sandwich(subject: Callable[[int, int], tuple[float, float]], fast: bool) -> Evidence:
    """Bounds on inf L for balanced data: the lower one proved by D.8, the upper one the limit of sigma I, exact."""
    slack = []
    for K, N in ((2, 8), (3, 9)) if fast else ((2, 8), (2, 20), (3, 9), (3, 27), (4, 12), (5, 10)):
        lower, upper = subject(K, N)
        p = [Fraction(1, K)] * K
        truth_low, truth_up = Fraction(0), Fraction(0)
        for chance, counts in exact_law(p, N):
            missing = counts.count(0)
            truth_low += chance * missing * Fraction(1, K) / 2 * Fraction(K, K - 1)
            truth_up += chance * missing * Fraction(1, K) / 2 * (1 + sum(Fraction(n, N) ** 2 for n in counts))
        slack += [abs(lower / float(truth_low) - 1), abs(upper / float(truth_up) - 1)]
        # Theta(e^{-poly}): both ends within a factor 1 + (K-2)/(K N) of each other.
        slack.append(max(0.0, upper / lower - 1 - (K - 2) / (K * N) - 1e-12))
    return _tools.agree(
        slack, np.zeros(len(slack)), "exact enumeration, balanced, K up to 5", tolerance=1e-12, source="rounding",
    )  # fmt: skip


def _mutant_bounds(lower: float, upper: float) -> Callable[[int, int], tuple[float, float]]:
    def bounds(K: int, N: int) -> tuple[float, float]:
        low, up = phases.balanced_infimum(K, N)
        return low * lower, up * upper

    return bounds


LEM_D8_ORDER = Claim(
    id="conv.lem-D.8.order",
    label="Lemma D.8",
    kind="order",
    title="Order of the least loss",
    statement=r"""
$L^{\mathrm{low}}$ and $L^*$ are both $\Theta(e^{-\mathrm{poly}(K)})$ for balanced data with $N\ge K^3$. Measured with equal probabilities: both lie between
$\tfrac12(1-\tfrac1K)^{N-1}$ and $1+\tfrac{K-2}{KN}$ times that, so that $-\log L^*=(N/K)(1+O(1/K))$: the polynomial is $N/K$.""",
    checks=(
        Check(
            "both ends of the sandwich by enumeration",
            _sandwich,
            phases.balanced_infimum,
            mutants={
                "lower end doubled": _mutant_bounds(2.0, 1.0),
                "upper end one per mille less": _mutant_bounds(1.0, 0.999),
            },
        ),
    ),
    uses=("conv.lem-D.8.lower", "conv.eq-10-13"),
    chapter="balanced",
    note=(
        "An order statement about $e^{-\\mathrm{poly}(K)}$ says little; the two-sided bound here is exact for every K and N. For unequal $p_k=\\Theta(1/K)$ the bounds of Lemma D.10, "
        "summed with weights $p_k$, are within a factor 2, and the rarest feature decides: the polynomial is $N\\min_kp_k$."
    ),
)


def _sigma(constant: int, fast: bool) -> Evidence:
    """Q = sigma I, query present: ``sum Attn_m^2 + (1 - Attn)^2 <= constant (N / (N + e^sigma))^2``, exact."""
    slack = []
    for K, N in ((2, 4), (3, 5)) if fast else ((2, 4), (2, 12), (3, 5), (3, 9), (4, 8)):
        for weight in (Fraction(1), Fraction(3), Fraction(50)):
            for counts in counts_of(K, N):
                for k in range(K):
                    if counts[k]:
                        whole = sum(counts) - counts[k] + counts[k] * weight
                        a = [Fraction(n) * (weight if m == k else 1) / whole for m, n in enumerate(counts)]
                        off = constant * (1 - a[k]) ** 2
                        slack += [off - _per_prompt(a, k), constant * (Fraction(N) / (N + weight)) ** 2 - off]
    return Evidence(
        min(slack) >= 0, "swept", len(slack), "Q = sigma I, e^sigma = 1, 3, 50, all count vectors, K up to 4", margin=float(min(slack)),
        tolerance=0.0, tolerance_source="exact arithmetic", dtype="rational",
    )  # fmt: skip


LEM_D8_STEP = Claim(
    id="conv.lem-D.8.sigma",
    label="Lemma D.8, proof",
    kind="step",
    title="Loss of Q = sigma I where the query's feature is present",
    statement=r"""
If $Q=\sigma I$, $\sigma\ge0$ and $|V_k|>0$, then $\sum_{m\ne k}\mathrm{Attn}_m^2+(1-\mathrm{Attn}_k)^2\le2(1-\mathrm{Attn}_k)^2\le2(N/(N+e^\sigma))^2$.""",
    checks=(Check("all count vectors", _sigma, 2, mutants={"constant 1": 1}),),
    reconstruction="Fractions restored.",
    uses=("conv.lem-D.7",),
    chapter="balanced",
)


def _tilde(subject: tuple[str, Callable[[float, float, float, int], float]], fast: bool) -> Evidence:
    """The part of the loss outside E_bal against its bounds, hunted over scores, c and p; K = 2 by enumeration.

    subject: which side ("lower": at least the unavoidable loss; "upper": at most the bound), and the bound as a
    function of (p_k, c, N, K).
    """
    side, bound = subject
    K = 2
    lengths = (170, 400) if fast else (170, 200, 250, 300, 400)

    def margin(x: np.ndarray) -> float:
        N = lengths[int(min(x[0], len(lengths) - 1))]
        p = [x[1], 1 - x[1]]
        least = math.sqrt(20 * K**3 / N)
        most = K * min(p)
        if least >= most:
            return 1.0
        c = least + x[2] * (most * 0.999 - least)
        law = prompts.multinomial(p, N)
        outside = ((law.counts - N * law.query).abs() > c * N / K).any(1)
        scores = torch.tensor([[0.0, x[4]], [x[3], 0.0]], dtype=torch.float64)
        loss = population.loss_samples(scores, law)[:, 0]
        part = float((law.weights * loss)[outside].sum())
        reference = float(bound(p[0], c, N, K))
        return part / reference - 1 if side == "lower" else 1 - part / reference

    box = [(0, len(lengths) - 1e-9), (0.36, 0.64), (0, 1), (-8, 8), (-8, 8)]
    return _tools.hunted(
        margin, box, "K = 2, N from 170 to 400, N > 20 K^3/(K min p)^2, c between its least value and K min p",
        seed=SEED, tolerance=1e-9, source="rounding of summed probabilities", names=("N index", "p_1", "c share", "B", "B'"),
        starts=1, budget=300 if fast else 2500,
    )  # fmt: skip


def _unavoidable(p: float, c: float, N: float, K: int) -> float:
    """Joint unavoidable loss of query v_1: p_1/2 K/(K-1) P(|V_1| = 0)."""
    return p * phases.unavoidable(K, [p, 1 - p], int(N))[0]


LEM_D9_LOWER = Claim(
    id="conv.lem-D.9.lower",
    label="Lemma D.9",
    kind="lemma",
    title="Loss on the good event below the excess loss",
    statement=r"""
For balanced data and any $\theta$: $\tilde L_k(\theta)\le L_k(\theta)-L_k^{\mathrm{low}}$, where $\tilde L_k$ is the joint loss restricted to
$\mathcal E_{\mathrm{bal}}$ with $L_k>0$ there.""",
    checks=(
        Check(
            "loss outside the event against the unavoidable loss", _tilde, ("lower", _unavoidable),
            mutants={"twice the unavoidable loss": ("lower", lambda p, c, N, K: 4 * _unavoidable(p, c, N, K) / p)},
        ),
    ),
    hypotheses=("the lower end of the window of $|V_k|$ is positive (Lemma D.5), so that $|V_k|=0$ lies outside the event",),
    uses=("conv.eq-10-13", "conv.lem-D.5.positive", "conv.lem-D.8.lower"),
    chapter="balanced",
    note=(
        "It needs a window that excludes $|V_k|=0$. Under the reading $N\\ge K^3$ no such window need exist ($K=2$, $N=8$: the event is "
        "everything and $\\tilde L_k=L_k$)."
    ),
)  # fmt: skip


def _three(p: float, c: float, N: float, K: int) -> float:
    return 3 * p * math.exp(-(c**2) * N / (25 * K**2))


LEM_D9_UPPER = Claim(
    id="conv.lem-D.9.upper",
    label="Lemma D.9",
    kind="lemma",
    title="Excess loss at most the loss on the good event plus an exponentially small term",
    statement=r"""
For balanced data and any $\theta$: $L_k(\theta)-L_k^{\mathrm{low}}\le\tilde L_k(\theta)+3p_ke^{-c_{\mathrm{bal}}^2N/(25K^2)}$.""",
    checks=(
        Check(
            "loss outside the event against its bound",
            _tilde,
            ("upper", _three),
            mutants={"rate 0.2 for 25": ("upper", lambda p, c, N, K: 3 * p * math.exp(-(c**2) * N / (0.2 * K**2)))},
        ),
    ),
    hypotheses=("$c_{\\mathrm{bal}}\\ge\\sqrt{20K^3/N}$",),
    uses=("conv.lem-D.5.prob",),
    chapter="balanced",
)


def _misses(K: int, p: Sequence[Fraction], N: int, k: int) -> tuple[Fraction, Fraction]:
    """Conditional unavoidable loss of query k and the limit of Q = sigma I, exact."""
    low, up = Fraction(0), Fraction(0)
    for chance, counts in exact_law(p, N):
        if counts[k] == 0:
            low += chance * Fraction(K, 2 * (K - 1))
            up += chance * (1 + sum(Fraction(n, N) ** 2 for n in counts)) / 2
    return low, up


def _order_imbalanced(
    subject: Callable[[int, Sequence[Fraction], int, int], tuple[Fraction, Fraction]], fast: bool
) -> Evidence:
    gaps = []
    for K, N in ((2, 6), (3, 6)) if fast else ((2, 6), (2, 15), (3, 6), (3, 12), (4, 9)):
        p = [Fraction(3, 5)] + [Fraction(2, 5) / (K - 1)] * (K - 1)
        for k in range(K):
            low, up = subject(K, p, N, k)
            truth_low, truth_up = _misses(K, p, N, k)
            gaps += [low - truth_low, up - truth_up, max(Fraction(0), up / low - 2)]
    return _tools.exactly(gaps, "exact enumeration, p_1 = 3/5, K up to 4; both ends within a factor 2")


def _closed(K: int, p: Sequence[Fraction], N: int, k: int) -> tuple[Fraction, Fraction]:
    miss = (1 - p[k]) ** N
    squares = sum(((q / (1 - p[k])) ** 2 for m, q in enumerate(p) if m != k), Fraction(0))
    return Fraction(K, 2 * (K - 1)) * miss, miss / 2 * (1 + squares + (1 - squares) / N)


LEM_D10 = Claim(
    id="conv.lem-D.10",
    label="Lemma D.10",
    kind="order",
    title="Order of the least error of one feature, imbalanced data",
    statement=r"""
$L_k^{\mathrm{low}}\le L_k^*$, both $\Theta(e^{-\mathrm{poly}(K)})$. Measured: $L_k^{\mathrm{low}}=\tfrac K{2(K-1)}(1-p_k)^N$ and
$L_k^*\le\tfrac12(1-p_k)^N(1+s+(1-s)/N)$ with $s=\sum_{m\ne k}(p_m/(1-p_k))^2$, at most twice as much; so $-\log L_1^*\sim N\log\tfrac1{1-p_1}$ and
$-\log L_k^*\sim Np_k$ for $k\ge2$.""",
    checks=(
        Check(
            "closed forms against enumeration", _order_imbalanced, _closed,
            mutants={
                "exponent N - 1": lambda K, p, N, k: tuple(x / (1 - p[k]) for x in _closed(K, p, N, k)),
                "s dropped": lambda K, p, N, k: (_closed(K, p, N, k)[0], (1 - p[k]) ** N / 2),
            },
        ),
    ),
    uses=("conv.eq-10-13", "conv.lem-D.8.lower"),
    chapter="phases",
)  # fmt: skip


def _tilde_imbalanced(subject: tuple[str, float], fast: bool) -> Evidence:
    """Both sides of Lemma D.11 for large K through exact tails and the extreme losses per prompt.

    Per prompt the error is between K/(K-1) (feature absent) and 2, halved; so the part outside E_imbal lies between
    the unavoidable loss and P(outside), and it is enough to compare those with the bounds.
    """
    side, factor = subject
    margins = []
    for K, p1, times in itertools.product((100, 300), (0.3, 0.5, 0.8), (1.001, 10)):
        q = (1 - p1) / (K - 1)
        N = int(times * 20 * K**3 / (K * min(q, p1)) ** 2) + 1
        c = math.sqrt(20 * K**3 / N)
        for share in (p1, q):
            if side == "lower":
                half = 0.01 * c * N if share == p1 else c * N / K
                margins.append((share * N - half * factor) / N)
            else:
                outside = _log_outside(N, ((p1, 0.01 * c * N, 1), (q, c * N / K, K - 1)))
                margins.append(math.log(3) - c**2 * N / (25 * K**2) * factor - outside)
    return _tools.at_least(
        margins, "K = 100 and 300, p_1 from 0.3 to 0.8, N > 20 K^3/(K min p_k)^2, the least c",
        source="exact tails", detail="lower: distance of the window from 0 over N; upper: log of bound over P(outside)",
    )  # fmt: skip


def _lower_finite(factor: Fraction, fast: bool) -> Evidence:
    """Exact part of the conditional loss outside the event, less ``factor`` times the unavoidable loss; windows vary.

    The weights include some at which prompts without the feature cost least and the others nearly nothing.
    """
    slack = []
    for p, N in (
        (([Fraction(3, 5), Fraction(1, 5), Fraction(1, 5)], 6),)
        if fast
        else (([Fraction(3, 5), Fraction(1, 5), Fraction(1, 5)], 9), ([Fraction(1, 2), Fraction(1, 2)], 12))
    ):
        K, law = len(p), exact_law(p, N)
        trials = [_tools.fractions((K, K), SEED + t) for t in range(2)]
        trials.append(np.array([[Fraction(10**9 if i == j else 1) for j in range(K)] for i in range(K)], dtype=object))
        for share in (Fraction(1, 3), Fraction(99, 100)):
            c = share * min(K * x for x in p)
            outside = [(w, n) for w, n in law if any(abs(m - N * x) > c * N / K for m, x in zip(n, p, strict=True))]
            for weights, k in itertools.product(trials, range(K)):
                part = sum(w * _per_prompt(_tools.exact_attention(weights, n)[:, k], k) for w, n in outside) / 2
                slack.append(part / ((1 - p[k]) ** N * Fraction(K, 2 * (K - 1))) - factor)
    return Evidence(
        min(slack) >= 0, "swept", len(slack), "exact enumeration, K = 2 and 3, N up to 12, windows of two widths", margin=float(min(slack)),
        tolerance=0.0, tolerance_source="exact arithmetic", dtype="rational", seed=SEED,
    )  # fmt: skip


LEM_D11_LOWER = Claim(
    id="conv.lem-D.11.lower",
    label="Lemma D.11",
    kind="lemma",
    title="Error on the good event below the excess error, imbalanced data",
    statement=r"""
For imbalanced data and any $\theta$: $\tilde L_k(\theta)\le L_k(\theta)-L_k^{\mathrm{low}}$, all three conditional on the query: because a prompt
without $v_k$ is outside $\mathcal E_{\mathrm{imbal}}$ and costs at least $\tfrac K{2(K-1)}$.""",
    checks=(
        Check(
            "the event excludes prompts without the feature",
            _tilde_imbalanced,
            ("lower", 1.0),
            mutants={"windows 30 times wider": ("lower", 30.0)},
        ),
        Check(
            "finite prompts, any window that excludes a missing feature",
            _lower_finite,
            Fraction(1),
            mutants={"twice the unavoidable loss": Fraction(2)},
        ),
    ),
    hypotheses=("positive lower ends of the windows (Lemma D.6)",),
    uses=("conv.lem-D.6.positive", "conv.lem-D.8.lower"),
    chapter="phases",
)


LEM_D11_UPPER = Claim(
    id="conv.lem-D.11.upper",
    label="Lemma D.11",
    kind="lemma",
    title="Excess error at most the error on the good event plus an exponentially small term, imbalanced data",
    statement=r"""
For imbalanced data, sufficiently large $K$ and any $\theta$: $L_k(\theta)-L_k^{\mathrm{low}}\le\tilde L_k(\theta)+3e^{-c_{\mathrm{im}}^2N/(25K^2)}$, because the error per
prompt is at most 2, halved.""",
    checks=(
        Check(
            "probability outside the event",
            _tilde_imbalanced,
            ("upper", 1.0),
            mutants={"exponent times 1000": ("upper", 1000.0)},
        ),
    ),
    hypotheses=("$K\\ge100$", "$c_{\\mathrm{im}}\\ge\\sqrt{20K^3/N}$"),
    uses=("conv.lem-D.6.prob",),
    chapter="phases",
    note="The printed display drops the factor 1/2 and the bound 2 of the error at once; they cancel.",
)


def _table(order: int, fast: bool) -> Evidence:
    """The table's symbols as used: weights start at 0 and move by eta times the update."""
    law = prompts.multinomial([0.6, 0.4], 4)
    S = torch.zeros(2, 2, dtype=torch.float64)
    delta = population.descent(S, law)
    moved = S + 0.3 * delta
    exponentials = torch.exp(moved)
    value = exponentials if order else moved
    gap = float((value - 0.3 * delta).abs().max())
    return _tools.agree([gap], [0.0], "one step from Q = 0, K = 2, N = 4", tolerance=1e-15, source="rounding")


TABLE_1 = Claim(
    id="conv.table-1",
    label="Table 1, Section D.4",
    kind="definition",
    title="Notation",
    statement=r"""
$\mathrm{attn}_i$, $\mathrm{Attn}_k$: attention of tokens and features; $A_k=v_k^\top Qv_k$, $B_{k,n}=v_n^\top Qv_k$ for $n\ne k$ with updates
$\alpha_k$, $\beta_{k,n}$; $\mathcal E_{\mathrm{bal}},\mathcal E_{\mathrm{imbal}}$ the high-probability events; $L^*,L^{\mathrm{low}},\tilde L_k,L_k^{\mathrm{low}}$ the losses; throughout
$N=\mathrm{poly}(K)\gg K^3$ and $K$ sufficiently large.""",
    checks=(Check("weights are bilinear, not their exponentials", _table, 0, mutants={"exponentials": 1}),),
    reconstruction=(
        "In the text an 'e' stands before $v_k^\\top Qv_k$ and $v_n^\\top Qv_k$, as where the proofs have exponentials. Read as in Definitions 4.1 and D.2, which the dynamics uses; "
        "if the table has exponentials it is a slip, since they are 1 at the start and move by a factor. The relation between K^3 and N is lost."
    ),
    note="$L_k$ is joint in the balanced part and conditional in the imbalanced part.",
    chapter="notation",
)

CLAIMS: tuple[Claim, ...] = (
    DEF_21, REM_22, EQ_3, EQ_4, DEF_31, EQ_5, SEC_31, EQ_6, DEF_41, LEM_42, LEM_42_SIGN, LEM_42_CONSERVED, LEM_42_TEXT,
    LEM_D1, LEM_D3, LEM_D4, LEM_D5_PROB, LEM_D5_POSITIVE, LEM_D6_PROB, LEM_D6_POSITIVE, LEM_D7, EQ_9_12, EQ_9_12_MIN,
    EQ_10_13, LEM_D8_LOWER, LEM_D8_ORDER, LEM_D8_STEP, LEM_D9_LOWER, LEM_D9_UPPER, LEM_D10, LEM_D11_LOWER,
    LEM_D11_UPPER, TABLE_1,
)  # fmt: skip

"""Records of the OOD paper's supporting lemmas and training phase: eq. 16, 17, Lemmas D.1 to D.9 and E.1."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import torch

from icl_core import dynamics, population, prompts
from icl_core.claims import _tools
from icl_core.claims.ood_model import instances, prediction_check, trained
from icl_core.claims.record import Check, Claim, Evidence
from icl_core.theory import ood, training

SEED = 20262
NEARLY = 1 - 1e-3  # eps is searched up to this share of the value at which training stops before it starts


# eq. 16


def _star_solves(exponential: Callable[[Any, Any, Any], Any], fast: bool) -> Evidence:
    """``exponential(K, root, top)`` is exp(K alpha* / (K - 1)), with root^2 = eps and top^2 = K / (2 (K - 1))."""
    import sympy

    K, root, top = sympy.symbols("K root top", positive=True)
    odds = exponential(K, root, top)
    wrong = (K - 1) / (odds + K - 1)
    # Loss per feature of symmetric scores: (sum of wrong)^2 + sum of squares, over 2K; K is traded for top.
    loss = (wrong**2 + wrong**2 / (K - 1)) / (2 * K)
    gap = (loss - root**2 / K).subs(K, 2 * top**2 / (2 * top**2 - 1))
    return _tools.symbolically([gap], "symbolic K and eps")


EQ_16 = Claim(
    id="ood.eq-16",
    label="eq. (16)",
    kind="equation",
    title="The score at which the symmetric trajectory meets the rule",
    statement=r"""
With $\alpha^*_{K,\epsilon}=(1-\tfrac1K)\log\frac{(K-1)(\sqrt{K/(2(K-1))}-\sqrt\epsilon)}{\sqrt\epsilon}$, scores
$\alpha^*$ on the diagonal and $-\alpha^*/(K-1)$ elsewhere have the loss $\epsilon/K$ for every query feature.""",
    checks=(
        Check(
            "loss of symmetric scores",
            _star_solves,
            lambda K, root, top: (K - 1) * (top - root) / root,
            mutants={
                "root of K/(K-1)": lambda K, root, top: (K - 1) * (top * 2 - root) / root,
                "factor K - 1 dropped": lambda K, root, top: (top - root) / root,
            },
        ),
    ),
    hypotheses=("$0<\\epsilon<K/(2(K-1))$",),
    uses=("ood.lem-D.9",),
    chapter="training",
    note="Printed as a definition; the property is what the paper uses it for. Written $\\alpha^{(*)}$ in eq. (16).",
)


def _star_defined(limit: Callable[[int], Fraction], fast: bool) -> Evidence:
    """Whether alpha* is real for every eps below limit(K): its logarithm needs ``eps < K / (2 (K - 1))``."""
    slack = {K: Fraction(K, 2 * (K - 1)) - limit(K) for K in range(2, 20 if fast else 500)}
    K = min(slack, key=lambda key: slack[key])
    return Evidence(
        slack[K] >= 0,
        "exact",
        len(slack),
        "every eps below the claimed limit, K from 2 up",
        margin=float(slack[K]),
        tolerance=0.0,
        tolerance_source="exact arithmetic",
        dtype="rational",
        detail=f"smallest K/(2(K-1)) minus the claimed limit: {slack[K]} at K = {K}",
    )


def _star_positive(limit: Callable[[int], float], fast: bool) -> Evidence:
    """alpha* > 0 exactly below limit(K): the argument of its logarithm against 1, exactly."""
    import sympy

    gaps = []
    for K in range(2, 8 if fast else 30):
        eps = sympy.nsimplify(limit(K), rational=True)
        gaps.append((K - 1) * (sympy.sqrt(sympy.Rational(K, 2 * (K - 1))) - sympy.sqrt(eps)) / sympy.sqrt(eps) - 1)
    return _tools.symbolically(gaps, "K from 2 up")


def _star_undefined(_: Any, fast: bool) -> Evidence:
    K, eps = 3, 0.9
    argument = math.sqrt(K / (2 * (K - 1))) - math.sqrt(eps)
    at_half = 0.5 * math.log((1 - math.sqrt(0.5)) / math.sqrt(0.5))
    return _tools.shows(
        -argument,
        1e-3,
        f"K = {K}, eps = {eps}: sqrt(K/(2(K-1))) - sqrt(eps) = {argument:.4f}, so alpha* is the logarithm of a "
        f"negative "
        f"number. K = 2, eps = 1/2: alpha* = {at_half:.4f} is negative, yet training starts and stops at alpha = 0.",
        strength="exact",
    )


EQ_16_RANGE = Claim(
    id="ood.eq-16.range",
    label="eq. (16), Lemma E.1",
    kind="text",
    title="Range of eps for which alpha* makes sense",
    statement=r"""
$\alpha^*_{K,\epsilon}$ is a real number for every $K\ge2$ and every $\epsilon\in(0,1)$.""",
    checks=(
        Check("argument of the logarithm", _star_defined, lambda K: Fraction(1)),
        Check("outside the range", _star_undefined, None, role="counterexample"),
        Check(
            "argument of the logarithm",
            _star_defined,
            lambda K: Fraction(K, 2 * (K - 1)),
            role="conditional",
            mutants={"range (0, K/(K-1))": lambda K: Fraction(K, K - 1)},
        ),
        Check(
            "where alpha* changes sign",
            _star_positive,
            lambda K: Fraction(K - 1, 2 * K),
            role="conditional",
            mutants={
                "sign change at 1/2": lambda K: Fraction(1, 2),
                "at K/(2(K-1))": lambda K: Fraction(K, 2 * (K - 1)),
            },
        ),
    ),
    hypotheses=("$K\\ge2$", "$\\epsilon\\in(0,1)$, the range of Lemma E.1"),
    why=(
        "The logarithm's argument is not positive from $\\epsilon=K/(2(K-1))$ on, which is below 1 for $K\\ge3$. The "
        "loss at "
        "$Q=0$ is already $(K-1)/(2K)$ in total, so that no training takes place for larger $\\epsilon$."
    ),
    added_hypothesis=(
        "$\\epsilon<K/(2(K-1))$ for $\\alpha^*$ to exist; it is positive, and reached by training from $Q=0$, "
        "exactly for "
        "$\\epsilon<(K-1)/(2K)$."
    ),
    uses=("ood.eq-16",),
    chapter="training",
)


# Lemmas D.1, D.2, eq. 17


LEM_D1 = Claim(
    id="ood.lem-D.1",
    label="Lemma D.1",
    kind="lemma",
    title="The prediction as a sum over features",
    statement=r"""
For every $Q$ and every prompt built on $W$ ($W=V$ or $W=U$) with task $w$,
$\hat y(Q;E)=\sum_{v\in W}\mathrm{Attn}_v(Q;E)\langle w,v\rangle$.""",
    checks=(prediction_check(),),
    hypotheses=("labels $y_i=\\langle w,x_i\\rangle$ without noise",),
    uses=("ood.attention.definition",),
    same_as=("ood.attention.prediction",),
    chapter="training",
    note="The sum is printed with an upper limit K over $v\\in W$; it runs over the K features.",
)


def _gradient(subject: tuple[str, Callable[[Any, Any], Any]], fast: bool) -> Evidence:
    """Gradient by every entry of Q: exact differentiation against the double sum over tokens.

    subject: which attention stands in the double sum ("feature" or "token", or "features" for a sum over features
    instead of tokens), and the difference of inputs for the pair (i, l).
    """
    kind, difference = subject
    gaps = []
    cases = [(2, 3, [2, 2]), (3, 4, [2, 2, 2]), (2, 2, [1, 3])]
    for index, (K, d, counts) in enumerate(cases if not fast else cases[::2]):
        U = _tools.rational_features(d, K, SEED + index)
        weights = _tools.fractions((K, K), SEED + index)
        # Q enters through U'QU alone, so the gradient is U (dL/dS) U'.
        truth = -U @ _tools.exact_descent(weights, counts) @ U.T
        found = truth * 0
        tokens = [n for n in range(K) for _ in range(counts[n])]
        for k in range(K):
            mass = [weights[n, k] for n in tokens]
            attn = [m / sum(mass) for m in mass]
            whole = [sum(a for a, n in zip(attn, tokens, strict=True) if n == m) for m in range(K)]
            error = sum(a * U[:, n] for a, n in zip(attn, tokens, strict=True)) - U[:, k]
            members = list(range(K)) if kind == "features" else tokens
            share = attn if kind == "token" else [whole[n] for n in members]
            for (i, n), (j, m) in itertools.product(enumerate(members), repeat=2):
                # E[(yhat - <w, x_query>) y_i] over the standard Gaussian task is <error, x_i>.
                step = np.outer(difference(U[:, n], U[:, m]), U[:, k])
                found = found + Fraction(1, K) * share[i] * share[j] * (error @ U[:, n]) * step
        gaps += list((found - truth).ravel())
    return _tools.exactly(gaps, "rational orthonormal features, exp(scores); repeated tokens", seed=SEED)


def _gradient_factor(_: Any, fast: bool) -> Evidence:
    weights, counts = _tools.fractions((2, 2), SEED), [2, 2]
    truth = _tools.exact_descent(weights, counts)[0, 0]
    # Each ordered pair of features appears (N/K)^2 times in the sum over tokens, each time with the whole attention.
    a = _tools.exact_attention(weights)[:, 0]
    printed = -Fraction(1, 2) * 4 * a[0] * a[1] * ((a[0] - 1) - a[1])
    return _tools.shows(
        float(abs(printed / truth - 1)),
        1.0,
        f"K = 2, N = 4, each feature twice, exp(scores) = ({'; '.join(', '.join(map(str, row)) for row in weights)}): "
        f"-u_1' grad u_1 = {truth}, the printed sum gives {printed}, {printed / truth} times as much.",
        strength="exact",
    )


LEM_D2 = Claim(
    id="ood.lem-D.2",
    label="Lemma D.2",
    kind="lemma",
    title="Gradient of the losses as a double sum over tokens",
    statement=r"""
$\nabla L(Q)=\mathbb E\bigl[(\hat y_{\mathrm{query}}-\langle w,x_{\mathrm{query}}\rangle)\sum_{i,l\in[N]}
\mathrm{Attn}_{u_i}\mathrm{Attn}_{u_l}(E_{x,i}-E_{x,l})E_{x,N+1}^\top y_i\bigr]$ for the fine-tuning loss, and the
same with $v_i$ for the training loss, where $\mathrm{Attn}_{u_i}$ is the attention of the feature that token $i$
holds.""",
    checks=(
        Check("feature attention in the sum over tokens", _gradient, ("feature", lambda x, z: x - z)),
        Check("sum over features instead of tokens", _gradient, ("features", lambda x, z: x - z), role="reading"),
        Check("a feature held by two tokens", _gradient_factor, None, role="counterexample"),
        Check(
            "token attention in the sum over tokens",
            _gradient,
            ("token", lambda x, z: x - z),
            role="corrected",
            mutants={
                "x_l - x_i": ("token", lambda x, z: z - x),
                "x_i + x_l": ("token", lambda x, z: x + z),
                "x_l left out": ("token", lambda x, z: x),
            },
        ),
    ),
    hypotheses=("labels without noise", "prompts in which features repeat, $N>K$"),
    why=(
        "$\\mathrm{Attn}$ sums the attention of all tokens with the same feature, so that the double sum over "
        "tokens counts "
        "every pair of features $N_uN_{u'}$ times: $(N/K)^2$ times too much for balanced prompts."
    ),
    corrected=(
        r"$\mathrm{attn}_i\,\mathrm{attn}_l$ (attention of single tokens) in place of $\mathrm{Attn}_{u_i}\mathrm{Attn}_{u_l}$; "
        r"equivalently, "
        r"the printed attention with $i,l\in[K]$ running over features. The two agree with the printed form only "
        r"for $N=K$."
    ),
    uses=("ood.attention.definition", "ood.lem-D.1"),
    chapter="training",
    note="Lemmas D.3 to D.5 do not inherit the factor: they follow from the corrected form.",
)


def _updates(step: Callable[[Any, Any], Any], fast: bool) -> Evidence:
    gaps = []
    for K, d in ((2, 3), (3, 5)):
        U = _tools.rational_features(d, K, SEED + K)
        Q = _tools.fractions((d, d), SEED + K, signed=True)
        eta = Fraction(3, 7)
        delta = _tools.exact_descent(_tools.fractions((K, K), SEED + K), [2] * K)
        gradient = -U @ delta @ U.T
        # delta as defined: minus the projections of the gradient.
        projected = -(U.T @ gradient @ U)
        moved = U.T @ (Q - eta * gradient) @ U
        gaps += list((moved - step(U.T @ Q @ U, eta * projected)).ravel())
    return _tools.exactly(gaps, "rational features, Q and gradient", seed=SEED)


EQ_17 = Claim(
    id="ood.eq-17",
    label="eq. (17)",
    kind="equation",
    title="Updates of the weights",
    statement=r"""
With $\delta_{u,\alpha}=-u^\top\nabla Lu$ and $\delta_{u',u,\beta}=-u'^\top\nabla Lu$, a step of gradient descent gives
$\alpha_u^{(t+1)}=\alpha_u^{(t)}+\eta_t\delta_{u,\alpha}^{(t)}$ and
$\beta_{u',u}^{(t+1)}=\beta_{u',u}^{(t)}+\eta_t\delta_{u',u,\beta}^{(t)}$.""",
    checks=(
        Check(
            "projections of a step",
            _updates,
            lambda S, moved: S + moved,
            mutants={"opposite sign": lambda S, moved: S - moved, "indices exchanged": lambda S, moved: S + moved.T},
        ),
    ),
    uses=("ood.gd", "ood.weights.definition"),
    chapter="training",
    note="The text derives it from eq. (7), which is the training step; the fine-tuning step is eq. (9).",
)


# Lemmas D.3, D.4, D.5


def _projection(subject: tuple[str, Callable[[Any, int, int], Any]], fast: bool) -> Evidence:
    """``formula(a, n, k)`` averaged over prompts, against exact differentiation; over the diagonal or off it."""
    which, formula = subject
    gaps = []
    for K in (2, 3) if fast else (2, 3, 4, 5):
        weights = _tools.fractions((K, K), SEED + 3 * K)
        # A law of two count vectors, so that the expectation over prompts is one.
        law = [(Fraction(1, 3), [1] * K), (Fraction(2, 3), [1 + (2 * n) % 3 for n in range(K)])]
        truth = sum(p * _tools.exact_descent(weights, counts) for p, counts in law)
        means = [(p, _tools.exact_attention(weights, counts)) for p, counts in law]
        for n, k in itertools.product(range(K), repeat=2):
            if (n == k) == (which == "alpha"):
                gaps.append(sum(p * formula(a[:, k], n, k) for p, a in means) / K - truth[n, k])
    return _tools.exactly(gaps, "rational exp(scores), K up to 5, random prompts", seed=SEED)


def _others(a: Any, k: int) -> Any:
    return sum(x * x for n, x in enumerate(a) if n != k)


LEM_D3_ALPHA = Claim(
    id="ood.lem-D.3.alpha",
    label="Lemma D.3",
    kind="lemma",
    title="Update of an alpha-type weight",
    statement=r"""
$\delta_{u,\alpha}=\mathbb E\bigl[\mathbf 1\{x_{\mathrm{query}}=u\}\,\mathrm{Attn}_u\bigl(\sum_{w\ne
u}\mathrm{Attn}_w^2+(1-\mathrm{Attn}_u)^2\bigr)\bigr]$, for every $Q$ and in either phase.""",
    checks=(
        Check(
            "projection of the gradient",
            _projection,
            ("alpha", lambda a, n, k: a[k] * (_others(a, k) + (1 - a[k]) ** 2)),
            mutants={
                "squares dropped": ("alpha", lambda a, n, k: a[k] * (1 - a[k]) ** 2),
                "1 - Attn instead of its square": ("alpha", lambda a, n, k: a[k] * (_others(a, k) + 1 - a[k])),
                "factor Attn_u dropped": ("alpha", lambda a, n, k: _others(a, k) + (1 - a[k]) ** 2),
            },
        ),
    ),
    hypotheses=("orthonormal features", "standard Gaussian task, no label noise", "query independent of the prompt"),
    uses=("ood.eq-17", "ood.lem-D.2"),
    chapter="training",
    note="Stated for $t\\ge T_1$; nothing in it depends on time, and the training phase uses it with $V$ for $U$.",
)

LEM_D3_BETA = Claim(
    id="ood.lem-D.3.beta",
    label="Lemma D.3",
    kind="lemma",
    title="Update of a beta-type weight",
    statement=r"""
$\delta_{u',u,\beta}=\mathbb E\bigl[\mathbf 1\{x_{\mathrm{query}}=u\}\,\mathrm{Attn}_{u'}\bigl(\sum_{w\ne
u}\mathrm{Attn}_w^2-\mathrm{Attn}_{u'} -\mathrm{Attn}_u(1-\mathrm{Attn}_u)\bigr)\bigr]$ for $u'\ne u$, for every
$Q$ and in either phase.""",
    checks=(
        Check(
            "projection of the gradient",
            _projection,
            ("beta", lambda a, n, k: a[n] * (_others(a, k) - a[n] - a[k] * (1 - a[k]))),
            mutants={
                "sum over all w": (
                    "beta",
                    lambda a, n, k: a[n] * (_others(a, k) + a[k] ** 2 - a[n] - a[k] * (1 - a[k])),
                ),
                "Attn_u' dropped": ("beta", lambda a, n, k: a[n] * (_others(a, k) - a[k] * (1 - a[k]))),
                "opposite sign of the last term": (
                    "beta",
                    lambda a, n, k: a[n] * (_others(a, k) - a[n] + a[k] * (1 - a[k])),
                ),
            },
        ),
    ),
    hypotheses=LEM_D3_ALPHA.hypotheses,
    uses=("ood.eq-17", "ood.lem-D.2"),
    chapter="training",
    note="As for the alpha-type weight: stated for $t\\ge T_1$, true at any time.",
)


def _balance(subject: tuple[Callable[[Any, int], Any], int], fast: bool) -> Evidence:
    """subject: what the sum of the beta updates is said to be, from the projected gradient, and the sign of it."""
    claim, sign = subject
    gaps = []
    for weights, counts in instances(fast):
        K = len(counts)
        values = sign * _tools.exact_descent(weights, counts, query=_tools.fractions(K, SEED + K))
        gaps += [claim(values, k) for k in range(K)]
    return _tools.exactly(
        gaps, "rational exp(scores) and query probabilities, K up to 5, unequal counts too", seed=SEED
    )


def _balance_check(sign: int) -> Check:
    """Diagonal plus the rest of the column vanishes; with the updates (sign 1) or the gradient itself (sign -1)."""
    return Check(
        "diagonal against the rest of its column",
        _balance,
        (lambda x, k: x[k, k] + sum(x[n, k] for n in range(len(x)) if n != k), sign),
        mutants={
            "without the minus sign": (lambda x, k: x[k, k] - sum(x[n, k] for n in range(len(x)) if n != k), sign),
            "sum over queries": (lambda x, k: x[k, k] + sum(x[k, n] for n in range(len(x)) if n != k), sign),
        },
    )


LEM_D4 = Claim(
    id="ood.lem-D.4",
    label="Lemma D.4",
    kind="lemma",
    title="The update of alpha balances those of beta",
    statement=r"""
$\delta_{u,\alpha}^{(t)}=-\sum_{u'\ne u}\delta_{u',u,\beta}^{(t)}$ for every $u\in U$ and any time.""",
    checks=(_balance_check(1),),
    hypotheses=("orthonormal features",),
    uses=("ood.lem-D.3.alpha", "ood.lem-D.3.beta"),
    chapter="training",
    note="It is the statement that a softmax does not change when a constant is added to all its inputs.",
)


def _chain(lines: Callable[[Any, Any, Any], list[Any]], fast: bool) -> Evidence:
    """The displayed lines must be equal for all attention vectors, with Attn_u = 1 - sum of the others."""
    import sympy

    gaps = []
    for size in (1, 2, 3):
        others = sympy.symbols(f"p1:{size + 1}", positive=True)
        own = 1 - sum(others)
        values = lines(own, others, sum(p**2 for p in others))
        gaps += [a - b for a, b in itertools.pairwise(values)]
    return _tools.symbolically(gaps, "symbolic attention, K up to 4")


def _lines_d4(own: Any, others: Any, squares: Any, last: int = -1) -> list[Any]:
    bracket = squares - own * (1 - own)
    return [
        sum(p * (squares - p - own * (1 - own)) for p in others),
        sum(others) * bracket - squares,
        (1 - own) * bracket - squares,
        -own * squares + last * own * (1 - own) ** 2,
        -own * (squares + (1 - own) ** 2),
    ]


LEM_D4_PROOF = Claim(
    id="ood.lem-D.4.proof",
    label="proof of Lemma D.4",
    kind="step",
    title="Displayed chain of equalities",
    statement=r"""
Summing Lemma D.3's beta updates and using $\sum_{u'\ne u}\mathrm{Attn}_{u'}=1-\mathrm{Attn}_u$ leads, line by line, to
$-\mathrm{Attn}_u\bigl(\sum_{w\ne u}\mathrm{Attn}_w^2+(1-\mathrm{Attn}_u)^2\bigr)$.""",
    checks=(
        Check(
            "each line against the next",
            _chain,
            _lines_d4,
            mutants={"sign of one term": lambda own, others, squares: _lines_d4(own, others, squares, last=1)},
        ),
    ),
    uses=("ood.lem-D.3.alpha", "ood.lem-D.3.beta"),
    chapter="training",
)

LEM_D5 = Claim(
    id="ood.lem-D.5",
    label="Lemma D.5",
    kind="lemma",
    title="The same balance in the training phase",
    statement=r"""
$v^\top\nabla L^{(\mathrm{tr})}v=-\sum_{v'\ne v}v'^\top\nabla L^{(\mathrm{tr})}v$ for every $v\in V$ and any time.""",
    checks=(_balance_check(-1),),
    hypotheses=("orthonormal features",),
    uses=("ood.lem-D.2",),
    same_as=("ood.lem-D.4",),
    chapter="training",
)


# Lemmas D.6, D.7


def _symmetric_weights(K: int) -> np.ndarray:
    """exp(scores) with one value on all wrong features of a query; values differ between queries."""
    own, wrong = _tools.fractions(K, SEED + K), _tools.fractions(K, SEED + 2 * K)
    return np.array([[own[k] if n == k else wrong[k] for k in range(K)] for n in range(K)], dtype=object)


def _symmetry(subject: tuple[Callable[[Any, int], list[Any]], Callable[[int], list[int]]], fast: bool) -> Evidence:
    """Induction step: where the claim holds, the update keeps it; and its start, Q = 0.

    subject: differences claimed to vanish, as a function of the updates and the query, and the counts of a prompt.
    """
    claim, counts = subject
    gaps = []
    for K in (2, 3, 4) if fast else (2, 3, 4, 5, 7):
        start = _tools.fractions((K, K), 0, most=1)
        for weights in (start, _symmetric_weights(K)):
            delta = _tools.exact_descent(weights, counts(K))
            gaps += [gap for k in range(K) for gap in claim(delta, k)]
    return _tools.exactly(gaps, "K from 2 up, rational exp(scores) that satisfy the claim, and Q = 0", seed=SEED)


def _equal_betas(x: Any, k: int) -> list[Any]:
    rest = [x[n, k] for n in range(len(x)) if n != k]
    return [value - rest[0] for value in rest]


def _equal_all(x: Any, k: int) -> list[Any]:
    return [x[n, k] - x[0, k] for n in range(len(x))]


def _even(K: int) -> list[int]:
    return [2] * K


def _uneven(K: int) -> list[int]:
    return [1 + n for n in range(K)]


LEM_D6 = Claim(
    id="ood.lem-D.6",
    label="Lemma D.6",
    kind="lemma",
    title="All beta-type weights of a query are equal in training",
    statement=r"""
In the training phase, from $Q^{(0)}=0$ on balanced prompts, $\beta_{v',v}^{(t)}=\beta_{v'',v}^{(t)}$ for all
$v',v''\ne v$ and all $t$ (empty for $K=2$).""",
    checks=(
        Check(
            "induction step in exact arithmetic",
            _symmetry,
            (_equal_betas, _even),
            mutants={"alpha included": (_equal_all, _even), "prompts not balanced": (_equal_betas, _uneven)},
        ),
    ),
    hypotheses=("$Q^{(0)}=0$", "balanced prompts", "any step sizes"),
    uses=("ood.lem-D.3.beta", "ood.weights.attention"),
    chapter="training",
    reconstruction=(
        "The index sets below the denominators in the proof are read as $v'\\in V,\\ v'\\ne v$; they are printed as "
        "$v'\\in v',\\ v\\ne v$. $\\delta_{v',v,\\beta}$ is the projection of $\\nabla L^{(\\mathrm{tr})}$ here; Appendix D defines it by "
        "$\\nabla L^{(\\mathrm{ft})}$ for features of both sets, whose projection on $V$ is not what moves the scores in training."
    ),
)


def _ratio(x: Any, k: int, size: int = 1) -> list[Any]:
    K = len(x)
    return [x[n, k] * (K - size) + x[k, k] for n in range(K) if n != k]


LEM_D7 = Claim(
    id="ood.lem-D.7",
    label="Lemma D.7",
    kind="lemma",
    title="beta is minus alpha over K - 1 in training",
    statement=r"""
In the training phase, from $Q^{(0)}=0$ on balanced prompts, $\beta_{v',v}^{(t)}=-\alpha_v^{(t)}/(K-1)$ for all
$v'\ne v$ and all $t$.""",
    checks=(
        Check(
            "induction step in exact arithmetic",
            _symmetry,
            (_ratio, _even),
            mutants={
                "K in place of K - 1": (lambda x, k: _ratio(x, k, 0), _even),
                "prompts not balanced": (_ratio, _uneven),
                "opposite sign": (lambda x, k: [(len(x) - 1) * x[k - 1, k] - x[k, k]], _even),
            },
        ),
    ),
    hypotheses=("$Q^{(0)}=0$", "balanced prompts", "any step sizes"),
    uses=("ood.lem-D.5", "ood.lem-D.6"),
    chapter="training",
)


def _row_sums(query: Callable[[int], list[Fraction]], fast: bool) -> Evidence:
    """Induction step for ``alpha_v = -sum beta_{v, v'}``: the updates at Q = 0 and at symmetric scores."""
    gaps = []
    for K in (2, 3, 4) if fast else (2, 3, 4, 5, 7):
        for own in (Fraction(1), Fraction(7, 2), Fraction(40)):
            weights = _tools.identity(K) * (own - Fraction(1)) + Fraction(1)
            gaps += list(_tools.exact_descent(weights, _even(K), query(K)).sum(1))
    return _tools.exactly(gaps, "K from 2 up, rational symmetric exp(scores)")


LEM_D7_PROOF = Claim(
    id="ood.lem-D.7.proof",
    label="proof of Lemma D.7",
    kind="step",
    title="Sum of beta over the second index",
    statement=r"""
$\alpha_v^{(t)}=-\sum_{v'\ne v}\beta_{v,v'}^{(t)}$ in the training phase, where the sum runs over queries $v'$.""",
    checks=(
        Check(
            "row sums of the updates in training",
            _row_sums,
            lambda K: [Fraction(1, K)] * K,
            mutants={"queries not uniform": lambda K: [Fraction(2 * (n + 1), K * (K + 1)) for n in range(K)]},
        ),
    ),
    hypotheses=("queries uniform", "$Q^{(0)}=0$", "balanced prompts"),
    uses=("ood.lem-D.5", "ood.lem-D.6"),
    chapter="training",
    note=(
        "Lemma D.5, from which the text draws it, gives the sum over keys, $\\beta_{v',v}$, and that is what the "
        "lemma needs. "
        "The printed order is true as well, but only because queries are uniform, which makes the scores symmetric."
    ),
)


# Lemmas D.8, D.9


def _loss_attention(formula: Callable[[Any, int], Any], fast: bool) -> Evidence:
    gaps = []
    for K in (2, 3) if fast else (2, 3, 4, 5):
        weights = _tools.fractions((K, K), SEED + 5 * K)
        law = [(Fraction(1, 4), [1] * K), (Fraction(3, 4), [1 + (2 * n) % 3 for n in range(K)])]
        query = _tools.fractions(K, SEED)
        losses = [(p, _tools.exact_losses(weights, counts, query)) for p, counts in law]
        means = [(p, _tools.exact_attention(weights, counts)) for p, counts in law]
        for k in range(K):
            truth = sum(p * loss[k] for p, loss in losses)
            gaps.append(query[k] * sum(p * formula(a[:, k], k) for p, a in means) - truth)
    return _tools.exactly(gaps, "rational exp(scores) and query probabilities, random prompts, K up to 5", seed=SEED)


LEM_D8 = Claim(
    id="ood.lem-D.8",
    label="Lemma D.8",
    kind="lemma",
    title="Loss of a query feature from its attention",
    statement=r"""
$L_u(Q)=\tfrac12\mathbb E\bigl[\mathbf 1\{x_{\mathrm{query}}=u\}\bigl(\sum_{u'\ne
u}\mathrm{Attn}_{u'}^2+(1-\mathrm{Attn}_u)^2\bigr)\bigr]$ for every $Q$ and any time.""",
    checks=(
        Check(
            "mean square error of the token form",
            _loss_attention,
            lambda a, k: (_others(a, k) + (1 - a[k]) ** 2) / 2,
            mutants={
                "factor 1/2 dropped": lambda a, k: _others(a, k) + (1 - a[k]) ** 2,
                "Attn_u among the squares": lambda a, k: (sum(x * x for x in a) + (1 - a[k]) ** 2) / 2,
                "squares dropped": lambda a, k: (1 - a[k]) ** 2 / 2,
            },
        ),
    ),
    hypotheses=("orthonormal features", "standard Gaussian task independent of the prompt's inputs", "no label noise"),
    uses=("ood.lem-D.1",),
    chapter="training",
)


def _loss_chain(index: Callable[[int, int], int], fast: bool) -> Evidence:
    """The displayed lines in exact arithmetic; ``index(u', u)`` is the feature whose attention weighs the term u'."""
    gaps = []
    for K, d in ((2, 3), (3, 4)):
        U = _tools.rational_features(d, K, SEED + K)
        a = _tools.exact_attention(_tools.fractions((K, K), SEED + K))
        for k in range(K):
            mean = sum(a[n, k] * U[:, n] for n in range(K))
            # Over the standard Gaussian task, E<w, g>^2 = |g|^2 for the vector g in each line.
            first = mean - U[:, k]
            second = sum(a[index(n, k), k] * (U[:, n] - U[:, k]) for n in range(K))
            double = sum(
                a[n, k] * a[m, k] * ((U[:, k] - U[:, n]) @ (U[:, k] - U[:, m]))
                for n, m in itertools.product(range(K), repeat=2)
            )
            lines = [first @ first, second @ second, double, first @ first, _others(a[:, k], k) + (1 - a[k, k]) ** 2]
            gaps += [x - y for x, y in itertools.pairwise(lines)]
    return _tools.exactly(gaps, "rational features and exp(scores), K = 2 and 3", seed=SEED)


LEM_D8_PROOF = Claim(
    id="ood.lem-D.8.proof",
    label="proof of Lemma D.8",
    kind="step",
    title="Displayed chain of equalities",
    statement=r"""
With $\sum_{u'}\mathrm{Attn}_{u'}=1$ the error is $\sum_{u'\in U}\mathrm{Attn}_{u'}\langle w,u'-u\rangle$;
squaring it and averaging over the Gaussian task leaves $\|u-\sum_{u'}\mathrm{Attn}_{u'}u'\|^2$, and
orthonormality the lemma.""",
    checks=(
        Check(
            "each line against the next",
            _loss_chain,
            lambda n, k: n,
            mutants={"attention of one fixed feature": lambda n, k: 0, "attention of the query": lambda n, k: k},
        ),
    ),
    reconstruction=(
        "Step (i) is printed with $\\mathrm{Attn}_n$ under a sum over $u'$; $n$ is bound nowhere and is read as $u'$."
    ),
    uses=("ood.lem-D.1",),
    chapter="training",
)


def _loss_weights(subject: tuple[Callable[[Any, int], Any], Callable[[int], list[int]]], fast: bool) -> Evidence:
    formula, counts = subject
    gaps = []
    for K in (2, 3) if fast else (2, 3, 4, 5, 7):
        weights = _tools.fractions((K, K), SEED + 11 * K)
        losses = _tools.exact_losses(weights, counts(K))
        gaps += [formula(weights, k) - losses[k] for k in range(K)]
    return _tools.exactly(gaps, "rational exp(scores), K up to 7, N = 2K", seed=SEED)


def loss_formula(w: Any, k: int, *, squares: int = 1, factor: Any = None) -> Any:
    """Eq. 14 and 18 from exponentials of scores."""
    K = len(w)
    rest = [w[n, k] for n in range(K) if n != k]
    top = sum(rest) ** 2 + squares * sum(x * x for x in rest)
    return top / (2 * (K if factor is None else factor) * (w[k, k] + sum(rest)) ** 2)


def loss_formula_check(region: str = "eq. 18 against the token form") -> Check:
    """The check that eq. 14 and Lemma D.9 share."""
    return Check(
        region,
        _loss_weights,
        (loss_formula, _even),
        mutants={
            "factor 1/K dropped": (lambda w, k: loss_formula(w, k, factor=1), _even),
            "squares dropped": (lambda w, k: loss_formula(w, k, squares=0), _even),
            "beta with its indices exchanged": (lambda w, k: loss_formula(w.T, k), _even),
            "prompts not balanced": (loss_formula, _uneven),
        },
    )


LEM_D9 = Claim(
    id="ood.lem-D.9",
    label="Lemma D.9, eq. (18)",
    kind="lemma",
    title="Loss of a query feature from its weights",
    statement=r"""
$L_{u_k}(Q)=\dfrac{(\sum_{n\ne k}e^{\beta_{u_n,u_k}})^2+\sum_{n\ne
k}e^{2\beta_{u_n,u_k}}}{2K(e^{\alpha_{u_k}}+\sum_{n\ne k}e^{\beta_{u_n,u_k}})^2}$ for balanced prompts, every $Q$
and any time.""",
    checks=(loss_formula_check(),),
    hypotheses=("balanced prompts on $U$", "query uniform on $U$", "orthonormal features"),
    uses=("ood.lem-D.8", "ood.weights.attention"),
    chapter="training",
    note="Stated for $t\\ge T_1$; it holds for every $Q$. Balanced prompts are assumed in Section 4 for both sets.",
)


# Lemma E.1


def _exists(bound: Callable[[int, float, float], float], fast: bool) -> Evidence:
    """Training stops, within ``bound`` steps, wherever the search looks; eps may be anywhere in (0, 1)."""

    def margin(x: np.ndarray) -> float:
        K = int(2 ** x[0])
        eps, eta = 10 ** x[1], 10 ** x[2] * K
        limit = bound(K, eps, eta)
        _, steps = training.symmetric_training(K, eps, eta, max_steps=3_000_000)
        return math.log((limit + 1e-9) / max(steps, 1)) if steps else 0.0

    box = [(1, 6), (-2, -1e-3), (0, 3)] if fast else [(1, 9), (-3, -1e-3), (-0.5, 6)]
    return _tools.hunted(
        margin,
        box,
        "K from 2 to 500, eps from 0.001 to 0.998, eta/K from 0.3 to 1e6",
        seed=SEED,
        names=("log2 K", "log10 eps", "log10 eta/K"),
        starts=1,
        budget=60 if fast else 300,
    )


def _steps_bound(K: int, eps: float, eta: float, share: float = 1.0) -> float:
    """Steps to the rule: none if it holds at Q = 0, else 1 + share of ``alpha* / (eta least_step)``."""
    if eps >= ood.eps_limit(K):
        return 0.0
    return 1 + share * (training.training_steps(K, eps, eta) - 1)


def _steps_max(K: int, eps: float, eta: float) -> float:
    if eps >= ood.eps_limit(K):
        return 0.0
    largest = max((K - 1) / K**3, 2 * eps * training.attention_at_rule(K, eps) / K)
    return 1 + ood.alpha_star(K, eps) / (eta * largest)


def _stops(rule: float, fast: bool) -> Evidence:
    """Full gradient descent stops with every loss at most ``rule * eps / K``."""

    def margin(x: np.ndarray) -> float:
        K, eps, eta = int(x[0]), 10 ** x[1], 10 ** x[2]
        return float(rule - trained(K, eps, eta).losses.max() * K / eps)

    return _tools.hunted(
        margin,
        [(2, 5.99), (-2, -1e-3), (0, 5)],
        "full gradient descent, K from 2 to 5, eps from 0.01 to 0.998, eta from 1 to 10^5",
        seed=SEED,
        names=("K", "log10 eps", "log10 eta"),
        starts=1,
        budget=40 if fast else 300,
    )


TIME_EXISTS = Claim(
    id="ood.lem-E.1.time.exists",
    label="Lemma E.1",
    kind="lemma",
    title="Training reaches the rule, whatever the step size",
    statement=r"""
For every $\epsilon\in(0,1)$ and every constant step size $\eta>0$ there is a finite $T_1$ with
$L_v^{(\mathrm{tr})}(Q^{(T_1)})\le\epsilon/K$ for all $v\in V$ ($T_1=0$ if $\epsilon\ge(K-1)/(2K)$).""",
    checks=(
        Check(
            "steps of the symmetric trajectory",
            _exists,
            _steps_bound,
            mutants={
                "a quarter of the bound": lambda K, eps, eta: _steps_bound(K, eps, eta, 0.25),
                "max in the bound": _steps_max,
            },
        ),
        Check("full gradient descent", _stops, 1.0, mutants={"half of eps/K": 0.5}),
    ),
    hypotheses=("$Q^{(0)}=0$", "balanced prompts", "constant $\\eta>0$"),
    uses=("ood.lem-D.7", "ood.lem-D.3.alpha", "ood.eq-16", "ood.lem-E.1.proof.eq-20", "ood.lem-E.1.time.order"),
    chapter="training",
    note=(
        "On the symmetric trajectory every update of $\\alpha$ is positive and the loss falls in $\\alpha$, so "
        "that large steps "
        "overshoot but never diverge. The proof cites Lemma D.9, which is about the OOD loss; Lemmas D.3 and D.7 "
        "carry it."
    ),
)


def _eta_power(power: float, fast: bool) -> Evidence:
    """Whether ``T_1 / eta^power`` stays bounded as eta falls, at fixed K and eps: its local exponents."""
    exponents = []
    for K, eps in ((2, 0.1), (3, 0.05)):
        etas = [2.0**-j for j in range(8 if fast else 12)]
        steps = [training.symmetric_training(K, eps, eta)[1] for eta in etas]
        slopes = [
            (math.log(s2 / s1) / math.log(e2 / e1), e2)
            for (s1, e1), (s2, e2) in itertools.pairwise(zip(steps, etas, strict=True))
        ]
        exponents += [slope for slope, eta in slopes[-3:]]
    low, high = min(exponents), max(exponents)
    # Bounded as eta -> 0 means that T_1 grows no faster than eta^power does.
    return Evidence(
        bool(low >= power - 0.05),
        "swept",
        len(exponents),
        "K = 2, eps = 0.1 and K = 3, eps = 0.05; eta down to 2^-11",
        margin=low - power,
        tolerance=0.05,
        tolerance_source="T_1 is a whole number",
        detail=f"local exponents of T_1 in eta: {low:.4f} to {high:.4f}",
        data={"exponent": [low, high]},
    )


def _grows(_: Any, fast: bool) -> Evidence:
    steps = {eta: training.symmetric_training(2, 0.1, eta)[1] for eta in (1.0, 0.1, 0.01, 0.001)}
    shown = ", ".join(f"{count} steps at eta = {eta:g}" for eta, count in steps.items())
    return _tools.shows(
        steps[0.001] / steps[1.0],
        100.0,
        f"K = 2, eps = 0.1: {shown}. A polynomial in (1/eps, K, eta) is bounded as eta falls to 0.",
    )


def _orders(powers: tuple[float, float], fast: bool) -> Evidence:
    """Exponents of ``eta T_1`` in K and in 1/eps, from the flow's closed time over many decades."""
    in_K = [
        math.log(training.training_time(2 * K, 0.1) / training.training_time(K, 0.1)) / math.log(2)
        for K in (2**j for j in range(6, 20))
    ]
    in_eps = [
        math.log(training.training_time(4, eps / 10) / training.training_time(4, eps)) / math.log(10)
        for eps in (10.0**-j for j in range(2, 12))
    ]
    fine = training.symmetric_training(3, 0.02, 0.01)[1] * 0.01 / training.training_time(3, 0.02)
    gap = max(abs(in_K[-1] - powers[0]), abs(in_eps[-1] - powers[1]), abs(fine - 1) / 2)
    return Evidence(
        bool(gap < 0.01),
        "swept",
        len(in_K) + len(in_eps),
        "eps = 0.1, K from 64 to 10^6; K = 4, eps from 0.01 to 10^-12",
        residual=gap,
        tolerance=0.01,
        tolerance_source="drift of the local exponents",
        detail=f"exponent in K: {in_K[0]:.3f} rising to {in_K[-1]:.4f}; in 1/eps: {in_eps[0]:.3f} to "
        f"{in_eps[-1]:.5f}; "
        f"eta T_1 over the flow's time at eta = 0.01: {fine:.4f}",
        data={"K": in_K, "eps": in_eps},
    )


TIME_ORDER = Claim(
    id="ood.lem-E.1.time.order",
    label="Lemma E.1",
    kind="order",
    title="Order of the training time",
    statement=r"""
$T_1=\mathrm{poly}(1/\epsilon,K,\eta)$: $T_1$ is bounded by a polynomial in $1/\epsilon$, $K$ and $\eta$.""",
    checks=(
        Check("growth as the step size falls", _eta_power, 0.0),
        Check("small step sizes", _grows, None, role="counterexample"),
        Check(
            "growth as the step size falls",
            _eta_power,
            -1.0,
            role="corrected",
            mutants={"1/sqrt(eta)": -0.5, "independent of eta": 0.0},
        ),
        Check(
            "exponents in K and 1/eps",
            _orders,
            (2.0, 1.0),
            role="corrected",
            mutants={"linear in K": (1.0, 1.0), "square in 1/eps": (2.0, 2.0)},
        ),
    ),
    hypotheses=("$Q^{(0)}=0$", "balanced prompts", "constant step size", "$\\epsilon<(K-1)/(2K)$"),
    why="$T_1$ grows as $1/\\eta$ for small steps, which no polynomial in $\\eta$ bounds.",
    corrected=(
        r"$T_1=\mathrm{poly}(1/\epsilon,K,1/\eta)$, as Section 5.1 has it: "
        r"$T_1\le1+\alpha^*/(\eta\min\{(K-1)/K^3,2\epsilon a/K\})$ with "
        r"$a=1-\sqrt{2(K-1)\epsilon/K}$, and $\eta T_1\to\tau(K,\epsilon)$ of order $K^2+K/(4\epsilon)$ as $\eta\to0$."
    ),
    uses=("ood.lem-E.1.proof.eq-20", "ood.eq-16"),
    chapter="training",
    note="The same sentence in Section 5.1 is printed with $1/\\eta$.",
)


def _overshoot(bound: Callable[[int, float, float], float], fast: bool) -> Evidence:
    """``0 <= alpha(T_1) - alpha* <= bound`` wherever the search looks."""

    def margin(x: np.ndarray) -> float:
        K = int(2 ** x[0])
        eps, eta = 10 ** x[1] * ood.eps_limit(K), 10 ** x[2] * K
        alpha, _ = training.symmetric_training(K, eps, eta)
        over = alpha - ood.alpha_star(K, eps)
        # Relative to eta times the largest possible step, so that all step sizes weigh the same.
        return min(over + 1e-11, bound(K, eps, eta) + 1e-11 - over) / (eta / (K - 1))

    box = [(1, 6), (-1.5, math.log10(NEARLY)), (0, 3)] if fast else [(1, 8), (-3, math.log10(NEARLY)), (-0.3, 5)]
    return _tools.hunted(
        margin,
        box,
        "K from 2 to 256, eps from 0.001 to 0.999 of (K-1)/(2K), eta/K from 0.5 to 10^5",
        seed=SEED,
        names=("log2 K", "log10 eps 2K/(K-1)", "log10 eta/K"),
        starts=1 if fast else 2,
        budget=120 if fast else 800,
        source="1e-11 on alpha for rounding",
    )


def _slope_polynomial(limit: Fraction, fast: bool) -> Evidence:
    """``a (1 - a)^2 (3 a - 1) < limit`` on [0, 1], the fact behind the step size that preserves order."""
    return _tools.certify(
        lambda a: limit.numerator - limit.denominator * a * (1 - a) ** 2 * (3 * a - 1), [(0.0, 1.0)], "a in [0, 1]"
    )


def _engine_agrees(factor: float, fast: bool) -> Evidence:
    """The one-variable trajectory against full gradient descent."""

    def margin(x: np.ndarray) -> float:
        K = int(x[0])
        eps, eta = 10 ** x[1] * ood.eps_limit(K), 10 ** x[2]
        alpha, steps = training.symmetric_training(K, eps, eta * factor)
        run = trained(K, eps, eta)
        # A loss within rounding of eps / K may stop one of the two a step later.
        late = abs(steps - int(run.steps)) <= 1
        return 1e-9 - float((run.alpha - alpha).abs().max()) if steps == int(run.steps) else float(late) - 1

    return _tools.hunted(
        margin,
        [(2, 5.99), (-2, -0.01), (0, 3)],
        "full gradient descent, K from 2 to 5, eta from 1 to 1000",
        seed=SEED,
        names=("K", "log10 eps 2K/(K-1)", "log10 eta"),
        starts=1,
        budget=40 if fast else 300,
        source="1e-9 for rounding",
    )


def _alpha_gap(_: Any, fast: bool) -> Evidence:
    lines, gaps = [], []
    for K, eps, eta in ((4, 0.01, 0.1), (2, 0.1, 6.0)):
        alpha, star = float(trained(K, eps, eta).alpha[0]), ood.alpha_star(K, eps)
        gaps.append(alpha - star)
        lines.append(f"K = {K}, eps = {eps}, eta = {eta}: alpha(T_1) = {alpha:.7f}, alpha* = {star:.7f}")
    return _tools.shows(min(gaps), 1e-5, "; ".join(lines) + ".")


def _flow_reaches(formula: Callable[[int, float], float], fast: bool) -> Evidence:
    got, want = [], []
    for K, eps in ((2, 0.01), (3, 0.1)):
        law = prompts.balanced(K)
        path, _ = dynamics.gradient_flow(torch.zeros(K, K, dtype=torch.float64), law, threshold=eps / K)
        got.append(float(path.alpha[-1, 0]))
        want.append(formula(K, eps))
    return _tools.agree(got, want, "gradient flow, K = 2 and 3", tolerance=1e-6, source="the integrator's tolerance")


SCORES = Claim(
    id="ood.lem-E.1.scores",
    label="Lemma E.1",
    kind="lemma",
    title="Weights when training stops",
    statement=r"""
At the time $T_1$ at which training with a constant step size first meets $L_v\le\epsilon/K$ for all $v$,
$\alpha_v^{(T_1)}=\alpha^*_{K,\epsilon}$ and $\beta_{v',v}^{(T_1)}=-\alpha^*_{K,\epsilon}/(K-1)$ for all $v'\ne v$.""",
    checks=(
        Check("distance from alpha*, discrete steps", _overshoot, lambda K, eps, eta: 0.0),
        Check(
            "limit of small steps",
            _flow_reaches,
            ood.alpha_star,
            role="reading",
            mutants={"alpha* for eps/4": lambda K, eps: ood.alpha_star(K, eps / 4)},
        ),
        Check("two runs", _alpha_gap, None, role="counterexample"),
        Check(
            "distance from alpha*, discrete steps",
            _overshoot,
            training.overshoot,
            role="corrected",
            mutants={
                "a third of the bound": lambda K, eps, eta: training.overshoot(K, eps, eta) / 3,
                "the bound for careful steps at every step size": lambda K, eps, eta: (
                    2 * eta * eps * training.attention_at_rule(K, eps) / K
                ),
            },
        ),
        Check(
            "polynomial behind the careful step size",
            _slope_polynomial,
            Fraction(1, 12),
            role="corrected",
            mutants={"1/14": Fraction(1, 14)},
        ),
        Check(
            "one variable stands for all", _engine_agrees, 1.0, role="corrected", mutants={"twice the step size": 2.0}
        ),
    ),
    hypotheses=("$Q^{(0)}=0$", "balanced prompts", "constant $\\eta>0$", "$0<\\epsilon<(K-1)/(2K)$"),
    why=(
        "$\\alpha$ moves in steps and passes $\\alpha^*$ between two of them. The proof shows "
        "$\\alpha\\ge\\alpha^*$ at some time, "
        "not equality."
    ),
    corrected=(
        r"$\alpha^*\le\alpha_v^{(T_1)}\le\alpha^*+\tfrac{4\eta}{27(K-1)}$ for every step size, and "
        r"$\alpha_v^{(T_1)}\le\alpha^*+\tfrac{2\eta\epsilon}K\bigl(1-\sqrt{2(K-1)\epsilon/K}\bigr)$ for "
        r"$\eta\le12(K-1)^2/K$; "
        r"$\beta_{v',v}^{(T_1)}=-\alpha_v^{(T_1)}/(K-1)$ exactly. Equality with $\alpha^*$ is the limit $\eta\to0$."
    ),
    uses=("ood.eq-16", "ood.lem-D.6", "ood.lem-D.7", "ood.lem-D.3.alpha"),
    chapter="training",
    note="Printed with a superscript $(1,T_1)$ that is defined nowhere and is read as $(T_1)$.",
)


def _stop_value(limit: Callable[[int], float], fast: bool) -> Evidence:
    """|alpha(T_1) - alpha*| at small steps, for eps up to ``limit(K)``."""

    def margin(x: np.ndarray) -> float:
        K = int(x[0])
        eps, eta = x[1] * limit(K), 1e-3 * K
        inside = math.sqrt(K / (2 * (K - 1))) - math.sqrt(eps)
        if inside <= 0:
            return -math.inf
        star = (1 - 1 / K) * math.log((K - 1) * inside / math.sqrt(eps))
        # The overshoot of a single step is at most this (Lemma E.1 as corrected).
        return 4 * eta / (27 * (K - 1)) - abs(training.symmetric_training(K, eps, eta)[0] - star)

    return _tools.hunted(
        margin,
        [(2, 6.99), (0.2, NEARLY)],
        "K from 2 to 6, eps from 0.2 to 0.999 of the claimed range, eta = K/1000",
        seed=SEED,
        names=("K", "share"),
        starts=1,
        budget=40 if fast else 200,
        source="overshoot of one step",
    )


def _no_training(_: Any, fast: bool) -> Evidence:
    K, eps = 2, 0.5
    run = trained(K, eps, 0.1)
    star = (1 - 1 / K) * math.log((K - 1) * (math.sqrt(K / (2 * (K - 1))) - math.sqrt(eps)) / math.sqrt(eps))
    return _tools.shows(
        abs(float(run.alpha[0]) - star),
        0.1,
        f"K = {K}, eps = {eps}: the loss at Q = 0 is {float(run.losses[0]):.4f} <= eps/K = {eps / K:.4f}, T_1 = "
        f"{int(run.steps)} and alpha = {float(run.alpha[0]):.4f}, but alpha* = {star:.4f}.",
    )


SCORES_RANGE = Claim(
    id="ood.lem-E.1.scores.range",
    label="Lemma E.1",
    kind="lemma",
    title="Range of eps for the weights at the stop",
    statement=r"""
For every $\epsilon\in(0,1)$ training stops with $\alpha_v=\alpha^*_{K,\epsilon}$ (in the limit of small steps).""",
    checks=(
        Check("alpha at the stop", _stop_value, lambda K: 1.0),
        Check("a loss below eps/K at the start", _no_training, None, role="counterexample"),
        Check(
            "alpha at the stop",
            _stop_value,
            ood.eps_limit,
            role="conditional",
            mutants={"range (0, 1/2)": lambda K: 0.5, "range (0, K/(2(K-1)))": lambda K: K / (2 * (K - 1))},
        ),
    ),
    hypotheses=("$\\epsilon\\in(0,1)$",),
    why="For $\\epsilon\\ge(K-1)/(2K)$ the rule holds at $Q=0$, where $\\alpha=0$ while $\\alpha^*\\le0$ or does "
    "not exist.",
    added_hypothesis="$\\epsilon<(K-1)/(2K)$, or $\\epsilon\\le(K-1)/(2K)$ with $T_1=0$ allowed.",
    uses=("ood.eq-16.range",),
    chapter="training",
)


# Steps of the proof of Lemma E.1


def _attention_range(bound: Callable[[Any, Any], Any], fast: bool) -> Evidence:
    """``bound(x, K)`` on the odds of the right feature at alpha = log x, x = K / sqrt(eps), against the true odds.

    Odds a/(1 - a) order as attention does; for K = 2 the bound K^2/(K^2 + eps) is an equality.
    """
    import sympy

    x = sympy.symbols("x", positive=True)
    # At K = 2 the difference is zero identically, or it must not be negative anywhere (it is a power of x).
    at_two = bound(x, 2) - x * x
    parts = [Evidence(bool(at_two.subs(x, 3) >= 0), "exact", 1, "K = 2", residual=float(at_two.subs(x, 3)))]
    sizes = (3, 4, 10) if fast else (3, 4, 5, 10, 100, 1000)
    for K in sizes:
        # In y = log x, where the odds of symmetric scores with alpha = y are exp(y + y/(K-1)) / (K - 1).
        def margin(y: Any, K: int = K) -> Any:
            return bound(y.exp(), K).log() - y * K / (K - 1) + type(y)(K - 1).log()

        low = math.log(K)
        parts.append(_tools.certify(margin, [(low, low + 30)], f"K = {K}, eps from e^-60 to 1"))
    return _tools.merge(parts, f"K = 2 (an equality) and K = {', '.join(str(K) for K in sizes)}, eps from e^-60 to 1")


PROOF_RANGE = Claim(
    id="ood.lem-E.1.proof.range",
    label="proof of Lemma E.1",
    kind="step",
    title="Range of the attention before the score is large",
    statement=r"""
On the training trajectory, while $\alpha_v\le\log(K/\sqrt\epsilon)$ the attention satisfies
$1/K\le\mathrm{Attn}_v\le K^2/(K^2+\epsilon)$.""",
    checks=(
        Check(
            "upper end, in odds",
            _attention_range,
            lambda x, K: x**2,
            mutants={"x instead of x^2": lambda x, K: x, "half of x^2/(K-1)^2": lambda x, K: x**2 / (K - 1) ** 2 / 2},
        ),
    ),
    hypotheses=("$\\alpha_v\\ge0$ and $\\beta=-\\alpha/(K-1)$", "$\\epsilon\\in(0,1)$"),
    uses=("ood.lem-D.7",),
    chapter="training",
    note="For every K it is $K/(K-1)\\le2$. Attention rises with $\\alpha$ along symmetric scores, so that the ends of the range are those of "
    "$\\alpha\\in[0,\\log(K/\\sqrt\\epsilon)]$.",
)


def _rises(rate: Callable[[Any, Any], Any], fast: bool) -> Evidence:
    """Derivative of the attention by alpha along symmetric scores, against ``rate(a, K)``, which is positive."""
    import sympy

    K, alpha = sympy.symbols("K alpha", positive=True)
    a = 1 / (1 + (K - 1) * sympy.exp(-K * alpha / (K - 1)))
    return _tools.symbolically([sympy.simplify(sympy.diff(a, alpha) - rate(a, K))], "symbolic K and alpha")


def _positive_update(sign: int, fast: bool) -> Evidence:
    """The update ``a (1 - a)^2 / (K - 1)`` in the attention, without its positive factor, and a (1 - a)."""
    return _tools.certify(lambda a: sign * a * (1 - a) ** 2, [(1e-6, 1 - 1e-6)], "attention in [1e-6, 1 - 1e-6]")


PROOF_MONOTONE = Claim(
    id="ood.lem-E.1.proof.monotone",
    label="proof of Lemma E.1",
    kind="step",
    title="The attention on the query's feature rises in training",
    statement=r"""
$\delta_{v,\alpha}^{(t)}\ge0$ for all $t$, so that $\alpha_v^{(t)}\ge0$ and $\mathrm{Attn}_v^{(t)}\ge1/K$ rise
monotonically.""",
    checks=(
        Check("sign of the update", _positive_update, 1, mutants={"opposite sign": -1}),
        Check(
            "slope a (1 - a) K/(K - 1) of the attention in alpha",
            _rises,
            lambda a, K: a * (1 - a) * K / (K - 1),
            mutants={"opposite sign": lambda a, K: -a * (1 - a) * K / (K - 1)},
        ),
    ),
    uses=("ood.lem-D.3.alpha", "ood.lem-D.7", "ood.weights.attention"),
    chapter="training",
    reconstruction=(
        "$\\delta_{v,\\alpha}$ is read as $-v^\\top\\nabla L^{(\\mathrm{tr})}v$; Appendix D defines it by "
        "$\\nabla L^{(\\mathrm{ft})}$, for $v\\in V$ too."
    ),
)


def _eq20_terms(K: int, eps: Fraction) -> tuple[Fraction, Fraction]:
    """The two terms of eq. 20."""
    return Fraction(1, K**2) * (1 - Fraction(1, K)) ** 2, K * eps**2 / (K**2 + eps) ** 3


def _eq20(bound: Callable[[int, Fraction], Fraction], fast: bool) -> Evidence:
    """``a (1 - a)^2 / K``, part of the update, against ``bound(K, eps)`` for a in [1/K, K^2/(K^2 + eps)]."""
    worst, where, cases = Fraction(10**9), "", 0
    for K in (2, 3, 10) if fast else (2, 3, 4, 10, 100):
        for eps in (Fraction(1, 1000), Fraction(1, 10), Fraction(9, 10)):
            low, high = Fraction(1, K), Fraction(K * K) / (K * K + eps)
            # a (1 - a)^2 rises to a = 1/3 and then falls: its least value is at an end, so the ends decide.
            for j in range(11):
                a = low + (high - low) * Fraction(j, 10)
                margin = Fraction(1, K) * a * (1 - a) ** 2 / bound(K, eps) - 1
                cases += 1
                if margin < worst:
                    worst, where = margin, f"K = {K}, eps = {eps}, Attn = {float(a):.6g}"
    return Evidence(
        worst >= 0,
        "exact",
        cases,
        "K from 2 to 100, eps from 0.001 to 0.9, both ends and nine points between",
        margin=float(worst),
        tolerance=0.0,
        tolerance_source="exact arithmetic",
        dtype="rational",
        detail=f"smallest relative margin {float(worst):.4g} at {where}",
    )


def _eq20_path(_: Any, fast: bool) -> Evidence:
    K, eps, a = 2, Fraction(1, 100), Fraction(9, 10)
    loss, update, printed = (1 - a) ** 2 / (2 * (K - 1)), a * (1 - a) ** 2 / (K - 1), max(_eq20_terms(K, eps))
    return _tools.shows(
        float(printed / update),
        2.0,
        f"K = {K}, eps = {eps}: at Attn = {a} the loss is {loss} = eps/K, where training stops; the whole update "
        f"there is "
        f"{update}, the printed lower bound {printed}.",
        strength="exact",
    )


PROOF_EQ20 = Claim(
    id="ood.lem-E.1.proof.eq-20",
    label="eq. (20)",
    kind="step",
    title="Lower bound on the update of alpha",
    statement=r"""
While $\mathrm{Attn}_v\in[1/K,K^2/(K^2+\epsilon)]$, $-v^\top\nabla L^{(\mathrm{tr})}v\ge\mathbb E[\mathbf
1\{x_{\mathrm{query}}=v\}\mathrm{Attn}_v(1-\mathrm{Attn}_v)^2]
\ge\max\bigl\{\tfrac1{K^2}(1-\tfrac1K)^2,\tfrac{K\epsilon^2}{(K^2+\epsilon)^3}\bigr\}$.""",
    checks=(
        Check("both ends of the range", _eq20, lambda K, eps: max(_eq20_terms(K, eps))),
        Check("where training stops", _eq20_path, None, role="counterexample"),
        Check(
            "both ends of the range",
            _eq20,
            lambda K, eps: min(_eq20_terms(K, eps)),
            role="corrected",
            mutants={
                "query probability dropped": lambda K, eps: K * min(_eq20_terms(K, eps)),
                "second term, K + 1 for K": lambda K, eps: _eq20_terms(K, eps)[1] * Fraction(K + 1, K),
                "first term alone": lambda K, eps: _eq20_terms(K, eps)[0],
            },
        ),
    ),
    hypotheses=("symmetric scores",),
    why=(
        "$a(1-a)^2$ takes its least value at one of the two ends of the range; the printed terms are its values "
        "there, and the "
        "smaller one bounds it. Both factors $1/K$ of the query probability are in place."
    ),
    corrected=r"The same with $\min$ in place of $\max$.",
    uses=("ood.lem-E.1.proof.range", "ood.lem-D.3.alpha", "ood.eq-16"),
    chapter="training",
    note="The lemma survives: a positive lower bound, however small, suffices for a polynomial time.",
)


def _partial_sums(last: Callable[[int], int], fast: bool) -> Evidence:
    """alpha(T) against eta times the sum of updates up to and including ``last(T)``, on recorded runs."""
    got, want = [], []
    for K, eta in ((2, 0.7), (3, 5.0)):
        S = torch.zeros(K, K, dtype=torch.float64)
        law = prompts.balanced(K)
        alphas, deltas = [], []
        for _ in range(12):
            delta = population.descent(S, law)
            alphas.append(float(S[0, 0]))
            deltas.append(float(delta[0, 0]))
            S = S + eta * delta
        for T in range(10):
            got.append(alphas[T])
            want.append(eta * sum(deltas[: last(T) + 1]))
    return _tools.agree(got, want, "first ten steps, K = 2 and 3", tolerance=1e-13, source="rounding")


def _first_term(_: Any, fast: bool) -> Evidence:
    update = _tools.exact_descent(_tools.fractions((2, 2), 0, most=1), [1, 1])[0, 0]
    return _tools.shows(
        float(update),
        1e-3,
        f"T = 0, K = 2, eta = 1: alpha(0) = 0, the printed sum is one update, {update}.",
        strength="exact",
    )


PROOF_SUM = Claim(
    id="ood.lem-E.1.proof.sum",
    label="proof of Lemma E.1",
    kind="step",
    title="alpha as a sum of updates",
    statement=r"""
$\alpha_v^{(T)}=\alpha_v^{(0)}-\sum_{t=0}^{T}\eta\,v^\top\nabla L^{(\mathrm{tr})}(Q^{(t)})v$.""",
    checks=(
        Check("upper limit T", _partial_sums, lambda T: T),
        Check("T = 0", _first_term, None, role="counterexample"),
        Check(
            "upper limit T - 1",
            _partial_sums,
            lambda T: T - 1,
            role="corrected",
            mutants={"upper limit T - 2": lambda T: T - 2, "upper limit T": lambda T: T},
        ),
    ),
    why="The sum has one term too many: $T$ steps add the updates of times $0$ to $T-1$.",
    corrected=r"$\sum_{t=0}^{T-1}$, as in the proof of Lemma D.7; the bound $\eta T\min\{\cdot\}$ then has the "
    r"right number of terms.",
    uses=("ood.eq-17",),
    chapter="training",
)


def _linear_growth(combine: Callable[[float, float], float], fast: bool) -> Evidence:
    """``alpha(T) >= eta T combine(...)`` for all T with alpha(T) <= log(K / sqrt(eps))."""
    slack = []
    for K, eps, eta in ((2, 0.1, 0.5), (3, 0.2, 2.0), (5, 0.3, 10.0)):
        first, second = (1 - 1 / K) ** 2 / K**2, K * eps**2 / (K**2 + eps) ** 3
        alpha = 0.0
        for T in range(1, 3000 if fast else 20000):
            alpha += eta * training.symmetric_step(K, alpha)
            if alpha > math.log(K / math.sqrt(eps)):
                break
            slack.append(alpha / (eta * T * combine(first, second)) - 1)
    return _tools.at_least(slack, "K = 2, 3, 5; every step until alpha exceeds log(K/sqrt(eps))")


def _linear_fails(_: Any, fast: bool) -> Evidence:
    import flint

    K, eps, eta, T = 2, 0.01, flint.arb(1) / 10, 350
    alpha = flint.arb(0)
    for _step in range(T):
        wrong = (K - 1) / ((K * alpha / (K - 1)).exp() + K - 1)
        alpha += eta * (1 - wrong) * wrong**2 / (K - 1)
    claimed = eta * T * (1 - flint.arb(1) / K) ** 2 / K**2
    return _tools.shows(
        float((claimed / alpha).lower()),
        1.2,
        f"K = {K}, eps = {eps}, eta = 1/10: alpha({T}) = {float(alpha.mid()):.4f}, below alpha* = "
        f"{ood.alpha_star(K, eps):.4f}, but the printed bound is {float(claimed.mid()):.4f}.",
        strength="certified",
    )


PROOF_LINEAR = Claim(
    id="ood.lem-E.1.proof.linear",
    label="proof of Lemma E.1",
    kind="step",
    title="Linear growth of alpha",
    statement=r"""
While $\alpha_v\le\log(K/\sqrt\epsilon)$,
$\alpha_v^{(T)}\ge\eta T\max\bigl\{\tfrac1{K^2}(1-\tfrac1K)^2,\tfrac{K\epsilon^2}{(K^2+\epsilon)^3}\bigr\}$.""",
    checks=(
        Check("every step of the trajectory", _linear_growth, max),
        Check("before the stop", _linear_fails, None, role="counterexample"),
        Check(
            "every step of the trajectory",
            _linear_growth,
            min,
            role="corrected",
            mutants={"maximum": max, "half of the first term": lambda first, second: first / 2},
        ),
    ),
    why="It adds up eq. (20), which bounds the update by the larger of two numbers instead of the smaller.",
    corrected=r"The same with $\min$ in place of $\max$.",
    uses=("ood.lem-E.1.proof.eq-20", "ood.lem-E.1.proof.sum", "ood.eq-16"),
    chapter="training",
)


def _star_bound(subject: tuple[float, int], fast: bool) -> Evidence:
    """``log(factor K^power / sqrt(eps)) - alpha*`` in k = 1/K and r = sqrt(2 (K - 1) eps / K), proved by balls.

    In these alpha* is ``(1 - k) log((1 - k)(1 - r)/(k r))`` and ``K / sqrt(eps)`` is ``sqrt(2 (1 - k)) / (k r)``; terms
    are collected so that a variable stands as rarely as possible.
    """
    factor, power = subject

    def margin(k: Any, log_r: Any) -> Any:
        extra = type(k)(factor).log() + (1 - power) * k.log()
        rest = (type(k)(2).log() + (2 * k - 1) * (1 - k).log()) / 2
        return extra - k * k.log() + rest - k * log_r - (1 - k) * (1 - log_r.exp()).log()

    return _tools.certify(
        margin, [(1e-6, 0.5), (-40.0, -1e-6)], "K from 2 to 10^6; sqrt(eps) from e^-40 to 1 - 1e-6 of its range's end"
    )


PROOF_STAR = Claim(
    id="ood.lem-E.1.proof.alpha-star",
    label="proof of Lemma E.1",
    kind="step",
    title="alpha* lies below log(K / sqrt(eps))",
    statement=r"""
$\alpha^*_{K,\epsilon}\le\log(K/\sqrt\epsilon)$ wherever $\alpha^*$ is defined.""",
    checks=(
        Check(
            "difference, by ball arithmetic",
            _star_bound,
            (1.0, 1),
            mutants={"1 in place of K": (1.0, 0), "K/3 in place of K": (1 / 3, 1)},
        ),
    ),
    hypotheses=("$0<\\epsilon<K/(2(K-1))$",),
    uses=("ood.eq-16",),
    chapter="training",
    note="Towards the end of that range $\\alpha^*$ falls to $-\\infty$.",
)

CLAIMS: tuple[Claim, ...] = (
    EQ_16, EQ_16_RANGE, LEM_D1, LEM_D2, EQ_17, LEM_D3_ALPHA, LEM_D3_BETA, LEM_D4, LEM_D4_PROOF, LEM_D5, LEM_D6, LEM_D7,
    LEM_D7_PROOF, LEM_D8, LEM_D8_PROOF, LEM_D9, TIME_EXISTS, TIME_ORDER, SCORES, SCORES_RANGE, PROOF_RANGE,
    PROOF_MONOTONE, PROOF_EQ20, PROOF_SUM, PROOF_LINEAR, PROOF_STAR,
)  # fmt: skip

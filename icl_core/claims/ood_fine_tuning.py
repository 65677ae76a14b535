"""Records of the OOD paper's fine-tuning analysis: Section 5.2, Lemmas D.10 and D.11, Appendices F, G and J."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import partial
from typing import Any

import torch

from icl_core import fine_tuning
from icl_core.claims import _fine_tuning as ft
from icl_core.claims._fine_tuning import Bound, Region, Replacement, Scale
from icl_core.claims.record import Check, Claim, Evidence
from icl_core.theory import fine_tuning as theory
from icl_core.theory.ood import alpha_star

_SETTING = (
    "orthonormal V and U, balanced prompts, training from $Q=0$ to $L_{v}\\le\\epsilon/K$, then gradient descent on U"
)
_AT_STAR = "training ended at $\\alpha^*_{K,\\epsilon}$ exactly"
_F4 = (
    "Assumption 5.4: $\\langle v_k,u_k\\rangle=\\gamma_k$, $\\langle v_k,u_n\\rangle=0$ for $n\\ne k$",
    "constant step size $\\eta\\le\\min_{n\\ne k}\\exp(-\\beta^{(T_1)}_{u_n,u_k})$",
    _AT_STAR,
)
_EPS_F2 = "$\\epsilon>(K/\\exp((K-1)^2))^2$"


def _example(name: str, run: Callable[[Any, bool], Evidence]) -> Check:
    return Check(name, run, None, "counterexample")


_BALANCE_TEXT = (
    "Along fine-tuning write $\\alpha_{u_k}^{(T_1+t)}=\\alpha_{u_k}^{(T_1)}+\\Delta_{k,\\alpha}^{(t)}$ and "
    "$\\beta_{u_n,u_k}^{(T_1+t)}=\\beta_{u_n,u_k}^{(T_1)}-\\Lambda_{n,k,\\beta}^{(t)}$. Then "
    "$\\Delta_{k,\\alpha}^{(t)}=\\sum_{n\\ne k}\\Lambda_{n,k,\\beta}^{(t)}$ at every t."
)
_CHAPTER = "fine-tuning"

_INTERVAL_NOTE = (
    "The interval [gamma_min, gamma_max] is read as the tightest that Assumption 5.4 allows, from the least to the "
    "largest correlation: the theorem speaks of any that holds them. "
)
_DELTA_NOTE = _INTERVAL_NOTE + (
    "alpha* is at most (1 - 1/K) log(K / sqrt eps), and at least a quarter of log(K / sqrt eps) for eps <= 0.05; at "
    "eps close to (K - 1)/(2K) it vanishes while the logarithm does not, so no constant serves all eps."
)


def _shape(own: float, sign: float = 1.0, printed: bool = False, factors: tuple[float, float] = (0.25, 1.0)) -> Scale:
    return Scale(partial(ft.delta_ends, own=own, sign=sign, printed=printed), factors)


def _wrong_bracket(gamma: torch.Tensor, eps: float) -> torch.Tensor:
    return theory.delta_bounds(gamma, eps).lower + alpha_star(gamma.shape[-1], eps) * gamma**2 / gamma.shape[-1]


def _no_own_factor(gamma: torch.Tensor, eps: float) -> torch.Tensor:
    return theory.delta_bounds(gamma, eps).upper - alpha_star(gamma.shape[-1], eps) * gamma**2 / gamma.shape[-1]


CLAIMS: tuple[Claim, ...] = (
    # Lemma 5.3 and F.1
    Claim(
        "ood.lem-5.3.result",
        "Lemma 5.3",
        "lemma",
        "The rise of alpha is the total fall of the betas",
        _BALANCE_TEXT,
        (ft.BALANCE,),
        (_SETTING,),
        uses=("ood.lem-D.4", "ood.eq-17"),
        chapter=_CHAPTER,
        same_as=("ood.lem-F.1",),
        note="The text before the formula names the update Lambda_{k,n}; the formulas use Lambda_{n,k} with the key "
        "first, and with the indices swapped the statement is false (a mutant).",
    ),
    Claim(
        "ood.lem-F.1",
        "Lemma F.1",
        "lemma",
        "The rise of alpha is the total fall of the betas",
        _BALANCE_TEXT,
        (ft.BALANCE,),
        (_SETTING,),
        uses=("ood.lem-D.4", "ood.eq-17"),
        chapter=_CHAPTER,
        same_as=("ood.lem-5.3.result",),
    ),
    Claim(
        "ood.lem-F.1.proof",
        "Proof of Lemma F.1",
        "step",
        "Updates as sums over steps",
        "$\\Delta_{k,\\alpha}^{(t)}=\\sum_{t'=1}^{t}\\eta_{t'}\\delta_{u_k,\\alpha}^{(t')}$ and "
        "$\\Lambda_{n,k,\\beta}^{(t)}=-\\sum_{t'=1}^{t}\\eta_{t'}\\delta_{u_n,u_k}^{(t')}$, times counted from $T_1$.",
        (
            Check("updates of short runs against the sums", ft.index_range, lambda t: range(1, t + 1)),
            _example("one step", ft.index_example),
            Check(
                "the sums from the first step on",
                ft.index_range,
                lambda t: range(t),
                "corrected",
                {"one step more": lambda t: range(t + 1), "the first step left out": lambda t: range(1, t)},
            ),
        ),
        (_SETTING,),
        corrected="The sums run over $t'=T_1,\\dots,T_1+t-1$ (from 0 to t - 1 if counted from $T_1$).",
        why="By eq. 17 step t' turns the weights at t' into those at t' + 1, so the first step uses delta at T_1 and "
        "the last one at T_1 + t - 1. The lemma is not affected.",
        uses=("ood.eq-17", "ood.eq-16"),
        chapter=_CHAPTER,
        note="The second sum is printed with index alpha for beta; it is read as beta. Read as absolute times, 1 to t "
        "would be steps of the training phase.",
    ),
    Claim(
        "ood.lem-5.3.sign.alpha",
        "Text after Lemma 5.3",
        "text",
        "alpha-type weights rise",
        "$\\Delta_{k,\\alpha}^{(t)}>0$ for every feature and every $t\\ge1$: alpha-type weights rise at each step.",
        (
            Check(
                "smallest rise of any alpha",
                ft.alpha_rises,
                lambda moved: torch.diagonal(moved, dim1=-2, dim2=-1),
                mutants={
                    "alpha falls": lambda moved: -torch.diagonal(moved, dim1=-2, dim2=-1),
                    "every weight rises": lambda moved: moved,
                },
            ),
        ),
        (_SETTING,),
        uses=("ood.lem-D.3.alpha",),
        chapter=_CHAPTER,
        note="At t = 0 the update is 0. By Lemma D.3 delta_alpha = 2 Attn L, positive for every U and step size.",
    ),
    Claim(
        "ood.lem-5.3.sign.beta",
        "Text after Lemma 5.3",
        "text",
        "beta-type weights fall",
        "$\\Lambda_{n,k,\\beta}^{(t)}>0$ for all $n\\ne k$ and every $t\\ge1$: beta-type weights fall steadily. The "
        "text names Lemma F.2 as the reason but no condition.",
        (
            Check("every beta falls, any orthonormal U, any eps", ft.beta_falls, Region((3, 4), "any")),
            _example("three features that project on one direction", ft.beta_rises_any),
            Check(
                "every beta falls under Assumption 5.4 and the condition on eps",
                ft.beta_falls,
                ft.UNDER_F2,
                "conditional",
                {
                    "no condition on eps": replace(ft.UNDER_F2, condition=None),
                    "no Assumption 5.4": replace(ft.UNDER_F2, shift="any", Ks=(3, 4)),
                },
            ),
        ),
        (_SETTING, _AT_STAR),
        added_hypothesis=f"Assumption 5.4 and {_EPS_F2}, as in Lemma F.2 (for K = 2 nothing is needed).",
        why="delta_n = Attn_n (D - Attn_n)/K is positive where another feature already holds more attention than the "
        "query; that happens when the query's own alpha at T_1 is small and one beta is large.",
        uses=("ood.lem-F.2.result", "ood.eq-16"),
        chapter=_CHAPTER,
        note="Always true: the largest beta of each query falls, since D <= sum of squares of the others < the "
        "largest Attn_n (eq. 26). Where the sign first fails under Assumption 5.4 alone is computed in the last "
        "check.",
    ),
    # Assumption 5.4
    Claim(
        "ood.ass-5.4",
        "Assumption 5.4",
        "assumption",
        "Parallel shifts, and the dimension they need",
        "$\\langle v_k,u_k\\rangle=\\gamma_k\\in[\\gamma_{\\min},\\gamma_{\\max}]$ and $\\langle v_k,u_n\\rangle=0$ "
        "for $n\\ne k$. It can be realised exactly when $d\\ge K+\\#\\{k:|\\gamma_k|<1\\}$.",
        (
            Check(
                "built in the least dimension",
                ft.realised,
                fine_tuning.least_dimension,
                mutants={"d = K": len, "one dimension less": lambda g: fine_tuning.least_dimension(g) - 1},
            ),
        ),
        chapter=_CHAPTER,
        note="u_k = gamma_k v_k + sqrt(1 - gamma_k^2) w_k with w_k orthonormal outside span(V). With d = K only "
        "gamma_k = +-1 is possible: reflections of single features.",
    ),
    Claim(
        "ood.ass-5.4.rotation",
        "Assumption 5.4 and eq. 15",
        "text",
        "The simulated rotation is not of this kind",
        "For random V, as in Section 6.1, $U=R_{1,2}(\\theta)V$ does not satisfy Assumption 5.4: $\\langle "
        "v_k,u_n\\rangle\\ne0$ for some $n\\ne k$.",
        (Check("largest cross product", ft.rotated, ft.largest_cross, mutants={"zero": lambda M: 0 * M[0, 0]}),),
        uses=("ood.ass-5.4", "ood.eq-15"),
        chapter=_CHAPTER,
        note="Fig. 2(a) thus shows Theorem 5.1, not the fine-tuning results. The rotation does satisfy the assumption "
        "where the plane is spanned by one training feature and a direction orthogonal to all of them.",
    ),
    # Theorem 5.5 and F.4: times
    Claim(
        "ood.thm-5.5.time",
        "Theorem 5.5",
        "order",
        "Every t_m is polynomial",
        "Under Assumption 5.4 and $\\eta=\\mathcal O(1)$ there are $t_1\\le\\dots\\le t_K$ with "
        "$L_{u_{k(m)}}(Q^{(T_1+t_m)})\\le\\epsilon/K$ and $t_m=\\mathcal O(\\mathrm{poly}(K,1/\\epsilon,1/\\eta))$.",
        (
            Check(
                "t_m against an explicit bound",
                ft.times,
                lambda runs, bound: bound,
                mutants={
                    "a bound of order 1/sqrt(eps)": lambda runs, bound: (
                        1 + (bound - 1) * torch.sqrt(runs.eps)[:, None] / 2
                    ),
                    "a bound without 1/eta and K": lambda runs, bound: 1 + (bound - 1) * runs.eta[:, None] / 5 / runs.K,
                },
            ),
        ),
        _F4,
        uses=("ood.lem-D.3.alpha", "ood.lem-D.8", "ood.lem-F.3.order", "ood.eq-16"),
        chapter=_CHAPTER,
        note="Checked: t_m <= 1 + K B (1 + (K-1) Y)/(2 eta eps), with B the upper bound on Delta and Y the largest "
        "exp(beta) of the query at T_1, at most (K/sqrt eps)^(1/K). Step sizes to far beyond the limit of Theorem F.4 "
        "are searched. Measured exponents of T_2 in 1/eps and 1/eta approach 1.",
    ),
    Claim(
        "ood.thm-5.5.time.order",
        "Theorem 5.5",
        "theorem",
        "The times can be put in order",
        "Every feature has a step at which its loss first is at most $\\epsilon/K$; sorted, these are "
        "$t_1\\le\\dots\\le t_K$, and $k(m)$ is the feature of $t_m$.",
        (
            Check(
                "each loss at its own time",
                ft.sorted_times,
                lambda times, ratio: (1 - ratio).amin(-1),
                mutants={
                    "half the loss": lambda times, ratio: (0.5 - ratio).amin(-1),
                    "in the order of the index": lambda times, ratio: torch.diff(times).amin(-1),
                },
            ),
        ),
        _F4,
        uses=("ood.thm-5.5.time",),
        chapter=_CHAPTER,
        note="The order asserts nothing beyond existence. With orthonormal U the columns of the scores move "
        "independently, so a feature stops at the same step alone or among others; the order is not that of |gamma_k| "
        "in general.",
    ),
    Claim(
        "ood.thm-5.5.all",
        "Text after Theorem 5.5",
        "text",
        "At T_2 = t_K every loss is met",
        "At $T_2:=t_K$ every fine-tuning loss is at most $\\epsilon/K$: none that has fallen to it comes back.",
        (
            Check(
                "losses at T_2 and after each t_m",
                ft.all_met,
                lambda runs: runs.eps / runs.K,
                mutants={"half of eps / K": lambda runs: runs.eps / runs.K / 2},
            ),
        ),
        _F4,
        uses=("ood.lem-D.11", "ood.thm-5.5.time"),
        chapter=_CHAPTER,
        note="From t_m on exp(alpha) exceeds every exp(beta) of the query, then every beta falls (Lemma F.2's sign "
        "needs nothing else) and the loss falls by Lemma D.11, whatever the step size; checked far beyond the limit. "
        "'Converges to eps/K' in the text means 'is at most': discrete steps stop below.",
    ),
    Claim(
        "ood.thm-F.4.time",
        "Theorem F.4",
        "theorem",
        "Existence of t_m",
        "For step sizes within the limit every feature's loss falls to $\\epsilon/K$ after finitely many steps, at "
        "most "
        "$1+\\frac{KB(1+(K-1)Y)}{2\\eta\\epsilon}$ of them with B the corrected bound of eq. 28 and "
        "$Y=\\max_n e^{\\beta_{n,m}^{(T_1)}}$.",
        (
            Check(
                "t_m against the bound",
                ft.times,
                lambda runs, bound: bound,
                mutants={"a twentieth of the bound": lambda runs, bound: bound / 20},
            ),
        ),
        _F4,
        uses=("ood.thm-F.4.time.rate", "ood.thm-F.4.time.final", "ood.lem-F.3.order", "ood.eq-16", "ood.thm-5.5.time"),
        chapter=_CHAPTER,
        note="The argument of the proof, with its bound corrected: each step before t_m adds at least 2 eta eps Attn "
        "/ K to "
        "alpha, Attn is at least 1/(1 + (K-1) Y), and once Delta reaches B the loss is met.",
    ),
    Claim(
        "ood.thm-F.4.time.final",
        "Theorem F.4, end of the proof",
        "step",
        "Reaching the bound of eq. 28 is enough",
        "Once $\\Delta_{m,\\alpha}$ has reached the upper bound of eq. 28, $L_{u_m}\\le\\epsilon/K$.",
        (
            Check("the loss wherever Delta exceeds the printed bound", ft.enough, theory.delta_upper_printed),
            _example("printed bound below 0", ft.enough_example),
            Check(
                "the loss wherever Delta exceeds the corrected bound",
                ft.enough,
                ft.upper,
                "corrected",
                {"the lower bound": ft.lower, "nine tenths of it": lambda g, eps: 0.9 * ft.upper(g, eps) - 1e-3},
            ),
        ),
        _F4,
        corrected="The bound is $\\alpha^*(1-(1-\\frac1K)\\gamma_m^2-\\frac{\\gamma_m\\gamma_{N(m)}}K)$ (eq. 28 with "
        "alpha* outside the bracket).",
        why="Printed, alpha* multiplies only the last product; where alpha* < 1 (eps near its largest value) the "
        "bound is too small, even negative, so reaching it does not imply the loss.",
        uses=("ood.eq-28", "ood.eq-27", "ood.eq-16"),
        chapter=_CHAPTER,
    ),
    Claim(
        "ood.thm-F.4.time.rate",
        "Theorem F.4, end of the proof",
        "step",
        "Least rate of alpha",
        "For $t\\in[T_1,T_1+t_m]$: $\\delta_{u,\\alpha}^{(t)}\\ge\\mathbf{Attn}_u^{(T_1)}\\,\\epsilon/K$.",
        (
            Check(
                "rate before and at t_m",
                ft.rate,
                lambda runs: ft.first_attention(runs) * (runs.eps / runs.K)[:, None],
                mutants={
                    "ten times as fast": lambda runs: 10 * ft.first_attention(runs) * (runs.eps / runs.K)[:, None],
                    "without 1/K": lambda runs: 10 * ft.first_attention(runs) * runs.eps[:, None],
                },
            ),
        ),
        _F4,
        uses=("ood.lem-D.3.alpha", "ood.lem-D.8"),
        chapter=_CHAPTER,
        note="Printed with an indicator outside the expectation; read as 1. delta_alpha = 2 Attn L leaves a factor 2 "
        "before t_m, which also covers the loss at t_m within the step-size limit; far beyond the limit the last step "
        "can overshoot.",
    ),
    Claim(
        "ood.thm-F.4.time.monotone",
        "Theorem F.4, end of the proof",
        "step",
        "Attn_u rises",
        "$\\mathbf{Attn}_u^{(t)}$ on the query's own feature never falls during fine-tuning.",
        (Check("change of Attn per recorded stretch", ft.monotone, 1, mutants={"falls": -1}),),
        _F4,
        uses=(
            "ood.lem-D.3.alpha",
            "ood.lem-D.3.beta",
        ),
        chapter=_CHAPTER,
        note="Holds without the condition of Lemma F.2: along the flow d log Attn_k = delta_alpha + sum Attn_n "
        "lambda_n, and the sum is nonnegative by Cauchy-Schwarz.",
    ),
    Claim(
        "ood.thm-F.4.time.sum",
        "Theorem F.4, end of the proof",
        "step",
        "Delta as a sum over steps",
        "$\\Delta^{(t_m)}=\\sum_{t=0}^{t_m}\\eta_t\\delta^{(t)}$.",
        (
            Check("updates of short runs against the sums", ft.index_range, lambda t: range(t + 1)),
            _example("one step", ft.extra_example),
            Check(
                "the sum to t_m - 1",
                ft.index_range,
                lambda t: range(t),
                "corrected",
                {"from 1": lambda t: range(1, t + 1), "the first step left out": lambda t: range(1, t)},
            ),
        ),
        _F4,
        corrected="The sum ends at $t_m-1$.",
        why="It has one term too many (Lemma F.1's proof has the other shift).",
        uses=("ood.eq-17", "ood.eq-16"),
        chapter=_CHAPTER,
    ),
    Claim(
        "ood.thm-5.5.alpha",
        "Theorem 5.5",
        "order",
        "Order of Delta",
        "$\\Delta_{k(m),\\alpha}^{(t_m)}=\\Theta\\big((1-\\gamma_{k(m)}^2-\\gamma_{k(m)}\\gamma_\\alpha/K)\\log(K/"
        "\\sqrt\\epsilon)\\big)$ for some constant "
        "$\\gamma_\\alpha\\in[\\gamma_{\\min},\\gamma_{\\max}]$.",
        (
            Check(
                "Delta within 1/1000 and 1000 times the printed scale",
                ft.delta_scale,
                _shape(0, printed=True, factors=(1e-3, 1e3)),
            ),
            _example("a negative scale", ft.delta_scale_example),
            Check(
                "Delta within 1/4 and 1 times the corrected scale",
                ft.delta_scale,
                _shape(1.0),
                "corrected",
                {"the last sign flipped": _shape(1.0, -1.0), "gamma^2 / K twice": _shape(-1.0)},
            ),
        ),
        _F4,
        corrected="$\\Delta=\\Theta\\big((1-(1-\\frac1K)\\gamma^2-\\frac{\\gamma\\gamma_\\alpha}K)\\log(K/\\sqrt"
        "\\epsilon)\\big)$ as "
        "$\\epsilon\\to0$, with $\\gamma_\\alpha$ between the least and the largest correlation; along the flow even "
        "$\\Delta=(\\dots)\\,\\alpha^*$ exactly for some such $\\gamma_\\alpha$.",
        why="The factor (1 - 1/K) of gamma^2 in eq. 28 and 29 is lost. With equal correlations gamma > sqrt(K/(K+1)) "
        "the printed scale is negative while Delta is positive, so no constants help.",
        uses=("ood.eq-28", "ood.eq-29", "ood.eq-16"),
        chapter=_CHAPTER,
        note=_DELTA_NOTE,
    ),
    Claim(
        "ood.thm-5.5.beta",
        "Theorem 5.5",
        "order",
        "Order of Lambda",
        "$\\Lambda_{n,k(m),\\beta}^{(t_m)}=\\Theta\\big(\\Delta_{k(m),\\alpha}^{(t_m)}/K+\\gamma_{k(m)}\\gamma_\\beta"
        "\\log(K/\\sqrt\\epsilon)/K\\big)$ for some "
        "constant $\\gamma_\\beta\\in[\\gamma_{\\min},\\gamma_{\\max}]$.",
        (
            Check("Lambda within 1/1000 and 1000 times the printed scale", ft.lambda_scale, ft.lambda_ends_printed),
            _example("no update at all", ft.lambda_scale_example),
            Check(
                "Lambda at the corrected scale",
                ft.lambda_scale,
                ft.lambda_ends,
                "corrected",
                {"no spread": partial(ft.lambda_ends, width=0.0), "half of Delta": partial(ft.lambda_ends, delta=0.5)},
            ),
        ),
        _F4,
        corrected="$\\Lambda=(\\Delta+\\gamma_{k(m)}\\gamma_\\beta\\,\\alpha^*)/(K-1)$ for some $\\gamma_\\beta$ with "
        "$|\\gamma_\\beta|\\le\\gamma_{\\max}-\\gamma_{\\min}$: a difference of correlations, not a correlation.",
        why="The bounds of Theorem F.4 hold gamma_M - gamma_N, which vanishes for equal correlations; the printed "
        "range [gamma_min, gamma_max] then excludes it. With U = V nothing moves, while the printed scale grows.",
        uses=("ood.thm-F.4.beta.lower", "ood.thm-F.4.beta.upper", "ood.eq-16"),
        chapter=_CHAPTER,
        note=_DELTA_NOTE,
    ),
    # Theorem 5.6, G.1, D.10
    Claim(
        "ood.thm-5.6.result.scores",
        "Theorem 5.6",
        "theorem",
        "Scores on V after fine-tuning",
        "Under Assumption 5.4 "
        "$\\alpha_{v_k}^{(T_1+T_2)}=\\alpha_{v_k}^{(T_1)}+\\gamma_k^2\\Delta_{k,\\alpha}^{(T_2)}$ and "
        "$\\beta_{v_n,v_k}^{(T_1+T_2)}=\\beta_{v_n,v_k}^{(T_1)}-\\gamma_k\\gamma_n\\Lambda_{n,k,\\beta}^{(T_2)}$.",
        (
            Check(
                "each step's change on V",
                ft.on_parallel,
                lambda M, D, n, k: M[n, n] * M[k, k] * D[n, k],
                mutants={
                    "gamma_k squared for beta": lambda M, D, n, k: M[k, k] ** 2 * D[n, k],
                    "indices of Lambda swapped": lambda M, D, n, k: M[n, n] * M[k, k] * D[k, n],
                    "one gamma": lambda M, D, n, k: M[k, k] * D[n, k],
                },
            ),
        ),
        (_F4[0],),
        uses=("ood.lem-D.10", "ood.eq-17"),
        chapter="forgetting",
        note="Exact step by step, hence for the sum of any steps of any sizes; the tests follow whole runs in R^d.",
    ),
    Claim(
        "ood.thm-5.6.result.loss",
        "Theorem 5.6",
        "theorem",
        "Loss on V from its scores",
        "$L_{v_k}=\\dfrac{(\\sum_{n\\ne k}e^{\\beta_{v_n,v_k}})^2+\\sum_{n\\ne "
        "k}e^{2\\beta_{v_n,v_k}}}{2K\\,(e^{\\alpha_{v_k}}+\\sum_{n\\ne k}e^{\\beta_{v_n,v_k}})^2}$ at $T_1+T_2$.",
        (
            Check(
                "the formula against the token-level loss",
                ft.loss_on_V,
                ft.loss_formula(1, 2),
                mutants={
                    "without the squares": ft.loss_formula(0, 2),
                    "without 1/K": ft.loss_formula(1, Fraction(1, 2)),
                },
            ),
        ),
        (_F4[0],),
        uses=("ood.lem-D.8",),
        chapter="forgetting",
        same_as=("ood.lem-D.9",),
    ),
    Claim(
        "ood.thm-5.6.text",
        "Text after Theorem 5.6",
        "text",
        "The same updates seen from V",
        "The change of the scores on V is the accumulated change on U, projected: with "
        "$D=\\sum_t\\eta_t\\delta^{(t)}$ on U, $V^\\top Q V$ changes by $MDM^\\top$, $M=V^\\top U$; under Assumption "
        "5.4 entrywise by $\\gamma_n\\gamma_kD_{n,k}$.",
        (
            Check(
                "projection for unrelated sets",
                ft.on_any,
                ft.projection,
                mutants={
                    "entrywise for any U": lambda M, D, n, k: M[n, n] * M[k, k] * D[n, k],
                    "transposed overlap": lambda M, D, n, k: ft.projection(M.T, D, n, k),
                },
            ),
            Check(
                "entrywise under Assumption 5.4",
                ft.on_parallel,
                lambda M, D, n, k: M[n, n] * M[k, k] * D[n, k],
                mutants={"one gamma": lambda M, D, n, k: M[k, k] * D[n, k]},
            ),
        ),
        (_SETTING,),
        uses=("ood.lem-D.10",),
        chapter="forgetting",
        same_as=("ood.app-J.3",),
    ),
    Claim(
        "ood.sec-5.text",
        "Text after Theorem 5.6",
        "text",
        "Fine-tuning can help or harm the training domain",
        "Depending on the shift, the loss on the training domain falls or rises: there are shifts with $F<0$ and "
        "shifts with $F>0$.",
        (
            Check(
                "total forgetting of four shifts",
                ft.both_ways,
                lambda F: min(F) < -5e-4 and max(F) > 5e-4,
                mutants={"always helps": lambda F: max(F) < -1e-4, "always harms": lambda F: min(F) > 1e-4},
            ),
        ),
        (_F4[0],),
        uses=("ood.thm-5.6.result.scores", "ood.thm-5.6.result.loss", "ood.eq-16"),
        chapter="forgetting",
        note="Which regions, is the subject of Appendix H.",
    ),
    Claim(
        "ood.lem-D.10",
        "Lemma D.10",
        "lemma",
        "Gradient seen from the training features",
        "Under Assumption 5.4, $v_k^\\top\\nabla L^{(ft)}v_{k'}=\\gamma_k\\gamma_{k'}\\,u_k^\\top\\nabla "
        "L^{(ft)}u_{k'}$ for all $k,k'$ and any Q.",
        (
            Check(
                "derivatives along v_n v_k'",
                ft.on_parallel,
                lambda M, D, n, k: M[n, n] * M[k, k] * D[n, k],
                mutants={
                    "no gamma": lambda M, D, n, k: D[n, k],
                    "gamma_k only": lambda M, D, n, k: M[k, k] ** 2 * D[n, k],
                },
            ),
        ),
        (_F4[0],),
        uses=("ood.lem-D.2", "ood.eq-19"),
        chapter=_CHAPTER,
        note="The gradient is -U delta U' and V'U = diag(gamma).",
    ),
    Claim(
        "ood.lem-D.10.proof",
        "Proof of Lemma D.10",
        "step",
        "Expansion of v_k",
        "$v_k^\\top\\nabla L\\,v_{k'}=(\\sum_ia_{k,i}v_i)^\\top\\nabla L(\\sum_ia_{k',i}v_i)$ with "
        "$u_k=\\sum_ia_{k,i}v_i$, then the sums are cut at $i\\le K$ by eq. 19, then equal "
        "$(\\gamma_kv_k)^\\top\\nabla L(\\gamma_{k'}v_{k'})$.",
        (
            Check("u_k in place of v_k", ft.expansion, lambda case, k: case.U[:, k]),
            _example("first line", ft.expansion_example),
            Check(
                "gamma_k u_k in place of v_k",
                ft.expansion,
                lambda case, k: case.U[:, k] * case.gamma[k],
                "corrected",
                {"u_k": lambda case, k: case.U[:, k], "gamma_k v_k": lambda case, k: case.V[:, k] * case.gamma[k]},
            ),
        ),
        (_F4[0],),
        corrected="Expand v instead of u: $v_k=\\gamma_ku_k+r_k$ with $r_k\\perp\\mathrm{span}(U)$, and drop $r_k$ by "
        "the corrected eq. 19.",
        why="The sum with coefficients a_k is u_k, not v_k, so the first line equates two numbers that differ by the "
        "factor gamma_k gamma_k'; the last line again has v on both sides. The lemma itself holds.",
        uses=("ood.eq-19",),
        chapter=_CHAPTER,
    ),
    Claim(
        "ood.eq-19",
        "eq. 19",
        "equation",
        "Directions in which the gradient vanishes",
        "$w^\\top\\nabla L^{(ft)}(Q)\\,w'=0$ if $w\\notin\\mathrm{span}(U)$ or $w'\\notin\\mathrm{span}(U)$.",
        (
            Check("w outside the span", ft.span, "not in the span"),
            _example("three dimensions", ft.span_example),
            Check("w orthogonal to the span", ft.span, "orthogonal", "corrected", {"w in the span": "in the span"}),
        ),
        (_SETTING,),
        corrected="It vanishes if $w\\perp\\mathrm{span}(U)$ or $w'\\perp\\mathrm{span}(U)$.",
        why="A vector outside the span may have a part inside it; v_k itself does, unless gamma_k = 0.",
        uses=("ood.lem-D.2",),
        chapter=_CHAPTER,
    ),
    Claim(
        "ood.thm-G.1.proof",
        "Proof of Theorem G.1",
        "step",
        "Range of the sum",
        "$\\alpha_{v_k}^{(T_1+T_2)}=\\alpha_{v_k}^{(T_1)}-\\sum_{t=T_1}^{T_2}\\eta_t\\,v_k^\\top\\nabla "
        "L^{(ft)}(Q^{(t)})v_{k'}$, and likewise for beta.",
        (
            Check("scores on V against the sum", ft.summation, lambda T1, T2: range(T1, T2 + 1)),
            _example("a short run", ft.summation_example),
            Check(
                "the sum over the fine-tuning steps",
                ft.summation,
                lambda T1, T2: range(T1, T1 + T2),
                "corrected",
                {
                    "one step more": lambda T1, T2: range(T1, T1 + T2 + 1),
                    "the last step left out": lambda T1, T2: range(T1, T1 + T2 - 1),
                },
            ),
        ),
        (_F4[0],),
        corrected="The sums run over $t=T_1,\\dots,T_1+T_2-1$; in the one for alpha k' is k.",
        why="T_2 is the length of fine-tuning, which ends at T_1 + T_2, and step t leads to t + 1. The theorem holds.",
        uses=("ood.lem-D.10", "ood.eq-17", "ood.eq-16"),
        chapter="forgetting",
        note="k' in the sum for alpha is not defined; read as k. With T_2 < T_1 the printed sum is empty.",
    ),
    # Lemma D.11
    Claim(
        "ood.lem-D.11",
        "Lemma D.11",
        "lemma",
        "The loss falls with every beta",
        "Let $a_0,\\dots,a_n>0$, $a_0\\ge\\max_{i\\ge1}a_i$ and $b_i<a_i$. Then $\\dfrac{\\sum a_i^2+(\\sum "
        "a_i)^2}{(a_0+\\sum a_i)^2}\\ge\\dfrac{\\sum b_i^2+(\\sum b_i)^2}{(a_0+\\sum b_i)^2}$, sums over $i\\ge1$.",
        (
            Check("for every b_i < a_i", ft.replacement, Replacement(least_b=-3.0)),
            _example("a negative b", ft.replacement_example),
            Check(
                "for 0 <= b_i < a_i",
                ft.replacement,
                Replacement(),
                "conditional",
                {
                    "a_0 half the largest a_i or less": Replacement(least_a0=0.05),
                    "negative b": Replacement(least_b=-3.0),
                },
            ),
        ),
        ("$a_i>0$, $a_0\\ge\\max_{i\\ge1}a_i$", "$b_i<a_i$"),
        added_hypothesis="$b_i\\ge0$; then the inequality is strict.",
        why="Nothing keeps b_i from being negative, where the right side can exceed 2 or lose its denominator. All "
        "uses have exponentials, so they are not affected.",
        uses=(),
        chapter=_CHAPTER,
        note="The proof is complete for b_i >= 0: the partial derivatives stay nonnegative on the way from a to b "
        "because a_0 stays the largest. b_i = a_i is allowed as well (eq. 27 needs it).",
    ),
    Claim(
        "ood.lem-D.11.proof",
        "Proof of Lemma D.11",
        "step",
        "Partial derivative",
        "$\\partial_{a_j}$ of the left side is $2[(a_j+S)(a_0+S)-S^2-\\sum a_i^2]/(a_0+S)^3$ with "
        "$S=\\sum_{i\\ge1}a_i$, at least $2[S^2+a_0S-S^2-\\sum a_i^2]/(a_0+S)^3\\ge0$.",
        (
            Check(
                "symbolic derivative and its terms",
                ft.derivative,
                Replacement().numerator,
                mutants={
                    "a_j left out": lambda a, j: sum(a[1:]) * sum(a) - sum(a[1:]) ** 2 - sum(x**2 for x in a[1:]),
                    "factor 2 on the squares": lambda a, j: Replacement().numerator(a, j) - sum(x**2 for x in a[1:]),
                },
            ),
        ),
        ("$a_i>0$, $a_0\\ge\\max_{i\\ge1}a_i$",),
        chapter=_CHAPTER,
    ),
    # Lemma F.2
    Claim(
        "ood.lem-F.2.result",
        "Lemma F.2",
        "lemma",
        "alpha rises and every beta falls",
        "If $\\epsilon>(K/\\exp((K-1)^2))^2$ then $\\Delta_{k,\\alpha}^{(t)}>0$ and $\\Lambda_{n,k,\\beta}^{(t)}>0$ "
        "at all times of fine-tuning after its start. The lemma does not state Assumption 5.4.",
        (
            Check("every beta falls, any orthonormal U", ft.beta_falls, replace(ft.UNDER_F2, shift="any", Ks=(3, 4))),
            _example("three features that project on one direction", ft.beta_rises_any),
            Check(
                "every beta falls under Assumption 5.4",
                ft.beta_falls,
                ft.UNDER_F2,
                "conditional",
                {
                    "no condition on eps": replace(ft.UNDER_F2, condition=None),
                    "the square left out of the exponent": replace(
                        ft.UNDER_F2, condition=lambda K: math.exp(-6.0 * (K - 1) ** 2)
                    ),
                },
            ),
            Check(
                "at T_1, for any alpha-type weight up to (K - 1)^2",
                ft.start_alpha,
                1.0,
                "conditional",
                {"four times that": 4.0},
            ),
        ),
        (_SETTING, _AT_STAR, _EPS_F2),
        added_hypothesis="Assumption 5.4, which the proof uses and Appendix J says the lemma relies on.",
        why="Without Assumption 5.4 the query's beta with one feature can exceed its alpha at T_1 although eps meets "
        "the condition; then some other beta rises.",
        uses=("ood.thm-F.4.init", "ood.lem-D.3.alpha", "ood.lem-D.3.beta", "ood.eq-16"),
        chapter=_CHAPTER,
        note="'t >= T_1' is read as all times after the first step (at T_1 itself both updates are 0). Under "
        "Assumption 5.4 no limit on the step size is needed: the states with max y - min y < x and max y <= 2x, where "
        "x = exp(alpha), y_n = exp(beta_n), are kept by every step, and every beta falls in them. The condition is "
        "sufficient and near sharp: it asks for log(K/sqrt eps) < (K - 1)^2, and the last check computes the alpha* "
        "at which the sign first fails. K = 2 never meets the condition and never needs it. "
        "The condition on eps stands for $\\alpha_v^{(T_1)}<(K-1)^2$, with which the proof works: where a last training step "
        "overshoots $\\alpha^*$ (Lemma E.1), that is what has to hold.",
    ),
    Claim(
        "ood.lem-F.2.result.gamma",
        "Lemma F.2",
        "lemma",
        "The condition on eps cannot be dropped",
        "Under Assumption 5.4 the signs of Lemma F.2 hold for every eps in $(0,(K-1)/(2K))$, that is, without its "
        "condition (as the text after Lemma 5.3 and Theorem F.4 use it).",
        (
            Check("every beta falls, any eps", ft.beta_falls, replace(ft.UNDER_F2, condition=None)),
            _example("three features", ft.beta_rises_gamma),
            Check(
                "every beta falls under the condition",
                ft.beta_falls,
                ft.UNDER_F2,
                "conditional",
                {"no condition on eps": replace(ft.UNDER_F2, condition=None)},
            ),
        ),
        (_SETTING, _F4[0], _AT_STAR),
        added_hypothesis=_EPS_F2 + ".",
        why="Theorem F.4 and Lemma F.3 cite Lemma F.2 without its condition. For gamma_k small and the others at -1 "
        "and 1, exp(beta) at T_1 exceeds exp(alpha) once alpha* is large enough.",
        uses=("ood.lem-F.2.result", "ood.eq-16"),
        chapter=_CHAPTER,
    ),
    Claim(
        "ood.lem-F.2.K2",
        "Remark after Lemma F.2",
        "remark",
        "The condition for K = 2",
        "The lemma's condition on eps holds for K = 2.",
        (
            Check("over all eps with training", ft.condition_for_two, lambda eps, limit: eps > limit),
            _example("its value", ft.condition_example),
            Check(
                "it does not",
                ft.condition_for_two,
                lambda eps, limit: not eps > limit,
                "corrected",
                {"it holds for eps above 0.2": lambda eps, limit: eps <= 0.2},
            ),
        ),
        ("K = 2", "$0<\\epsilon<1/4$"),
        corrected="It does not hold for K = 2, for any eps at which training takes a step.",
        why="(2/e)^2 = 0.54 exceeds 1/4. The next sentence of the text (\"However\") shows that 'not' is missing.",
        uses=("ood.lem-F.2.result",),
        chapter=_CHAPTER,
    ),
    Claim(
        "ood.lem-F.2.K2.sign",
        "Remark after Lemma F.2",
        "remark",
        "For K = 2 the beta falls anyway",
        "For K = 2, $\\delta_{u_n,u_k,\\beta}=-\\delta_{u_k,\\alpha}=-a(1-a)^2<0$ with $a=\\mathbf{Attn}_{u_k}$ (each "
        "query has probability 1/2).",
        (
            Check(
                "exact derivative",
                ft.two_features,
                lambda a: -a * (1 - a) ** 2,
                mutants={"sign": lambda a: a * (1 - a) ** 2, "without the square": lambda a: -a * (1 - a)},
            ),
        ),
        ("K = 2",),
        uses=("ood.lem-F.1", "ood.lem-D.3.alpha", "ood.lem-D.3.beta"),
        chapter=_CHAPTER,
    ),
    Claim(
        "ood.lem-F.2.proof.eq-21",
        "eq. 21",
        "step",
        "Rewriting of delta_beta",
        "$\\delta_{u_n,u_k,\\beta}=\\mathbb E[\\mathbf 1\\,a_n g]$ with $g=\\sum_{m\\ne "
        "k,n}a_m^2-a_n(1-a_n)-a_k(1-a_k)$.",
        (
            Check(
                "exact derivative",
                ft.eq21,
                lambda own, a, rest: sum(x * x for x in rest) - a * (1 - a) - own * (1 - own),
                mutants={
                    "a_n among the squares": lambda own, a, rest: sum(x * x for x in rest) - a - own * (1 - own),
                    "last sign": lambda own, a, rest: sum(x * x for x in rest) - a * (1 - a) + own * (1 - own),
                },
            ),
        ),
        uses=("ood.lem-D.3.beta",),
        chapter=_CHAPTER,
    ),
    Claim(
        "ood.lem-F.2.proof.eq-22",
        "eq. 22",
        "step",
        "g in exponentials",
        "With $x=e^{\\alpha}$, $y_m=e^{\\beta_m}$: $C^2g=\\sum_{m\\ne k,n}y_m^2-(x+y_n)\\sum_{m\\ne k,n}y_m-2xy_n$, "
        "which is below the same without the last term.",
        (
            Check(
                "exact identity",
                ft.eq22,
                lambda x, y, rest: sum(v * v for v in rest) - (x + y) * sum(rest) - 2 * x * y,
                mutants={
                    "one xy": lambda x, y, rest: sum(v * v for v in rest) - (x + y) * sum(rest) - x * y,
                    "x only": lambda x, y, rest: sum(v * v for v in rest) - x * sum(rest) - 2 * x * y,
                },
            ),
        ),
        uses=("ood.lem-F.2.proof.eq-21",),
        chapter=_CHAPTER,
        note="The text calls the term c_1 once for g_t.",
    ),
    Claim(
        "ood.lem-F.2.proof.range",
        "Proof of Lemma F.2",
        "step",
        "Range of beta at T_1",
        "$\\beta_{u',u_k}^{(T_1)}\\in[-\\frac{\\gamma_k\\alpha^*}{K-1},\\frac{\\gamma_k\\alpha^*}{K-1}]$ for all "
        "$u'\\ne u_k$.",
        (
            Check("all betas at T_1", ft.range_at_start, lambda g, a, K: (-g * a / (K - 1), g * a / (K - 1))),
            _example("a negative gamma_k", ft.range_example),
            Check(
                "with the magnitude",
                ft.range_at_start,
                lambda g, a, K: (-abs(g) * a / (K - 1), abs(g) * a / (K - 1)),
                "corrected",
                {
                    "1/K": lambda g, a, K: (-abs(g) * a / K, abs(g) * a / K),
                    "one-sided": lambda g, a, K: (0.0, abs(g) * a / (K - 1)),
                },
            ),
        ),
        (_F4[0], _AT_STAR),
        corrected="With $|\\gamma_k|$ for $\\gamma_k$, here and in eq. 23.",
        why="For gamma_k < 0 the interval is empty.",
        uses=("ood.thm-F.4.init", "ood.eq-16"),
        chapter=_CHAPTER,
    ),
    Claim(
        "ood.lem-F.2.proof.eq-23",
        "eq. 23, first line",
        "step",
        "All betas replaced by the largest possible one",
        "With $Y=\\exp(|\\gamma_k|\\alpha^*/(K-1))$: $\\sum_{m\\ne k,n}y_m^2-(x+y_n)\\sum_{m\\ne "
        "k,n}y_m<(K-2)\\,(Y^2-(x+1/Y)Y)$ at $T_1$.",
        (
            Check("both sides over the region", ft.eq23_first, "printed"),
            _example("all correlations 1", ft.eq23_example),
            Check(
                "with the larger of both ends",
                ft.eq23_first,
                "either end",
                "corrected",
                {"the lower end alone": "far end only"},
            ),
        ),
        (_F4[0], _AT_STAR),
        corrected="The left side is at most $(K-2)\\max\\{Y(Y-x-\\frac1Y),\\frac1Y(\\frac1Y-x-\\frac1Y)\\}$; the "
        "second is always negative, so the rest of the proof stands.",
        why="y(y - c) is convex, so its maximum over [1/Y, Y] can be at 1/Y; it is when x + 1/Y > Y + 1/Y. The "
        "conclusion (negative) survives.",
        uses=("ood.lem-F.2.proof.range", "ood.eq-16"),
        chapter=_CHAPTER,
    ),
    Claim(
        "ood.lem-F.2.proof.sinh",
        "eq. 23, last line",
        "step",
        "Difference of exponentials",
        "$e^{p}-e^{-p}<e^{p^2}$ for $p=\\gamma_k\\alpha^*/(K-1)$.",
        (
            Check(
                "certificate",
                ft.sinh,
                lambda p: (p * p).exp(),
                mutants={"half of p^2": lambda p: (p * p / 2).exp(), "0.89 p^2": lambda p: (p * p * 0.89).exp()},
            ),
        ),
        chapter=_CHAPTER,
        note="Holds for every real p with room: the largest c with 2 sinh p < exp(p^2 / c) everywhere is computed in "
        "the check; the lemma's condition is that far from sharp for large K.",
    ),
    Claim(
        "ood.lem-F.2.proof.eps",
        "Proof of Lemma F.2",
        "step",
        "What the condition on eps gives",
        "$\\alpha^*<\\log(K/\\sqrt\\epsilon)$, and $\\epsilon>(K/\\exp((K-1)^2))^2$ implies "
        "$\\exp(\\gamma_k^2\\alpha^{*2}/(K-1)^2)-\\exp(\\gamma_k^2\\alpha^*)<0$.",
        (
            Check("any gamma_k", ft.eps_step, (ft.exponents, (-1.0, -0.5, -0.01, 0.0, 0.3, 1.0))),
            _example("gamma_k = 0", ft.zero_example),
            Check(
                "gamma_k not 0",
                ft.eps_step,
                (ft.exponents, (-1.0, -0.5, -0.01, 0.3, 1.0)),
                "corrected",
                {"K - 1 not squared": (partial(ft.exponents, power=1), (-1.0, -0.5, 0.3, 1.0))},
            ),
        ),
        (_EPS_F2,),
        corrected="For $\\gamma_k\\ne0$; at $\\gamma_k=0$ both sides are equal.",
        why="At gamma_k = 0 the strict inequality is 0 < 0. The conclusion is not affected: there the first form, Y - "
        "x - 1/Y = -1, is negative.",
        uses=("ood.eq-16", "ood.lem-F.2.result"),
        chapter=_CHAPTER,
        note="Harmless; the direction of the condition and its sufficiency are right.",
    ),
    Claim(
        "ood.lem-F.2.proof.iteration",
        "Proof of Lemma F.2",
        "step",
        "Repeating the argument",
        "The argument at $T_1$ can be applied again at each later step: its hypothesis, all betas of a query in an "
        "interval $[-b,b]$ with $b=|\\gamma_k|\\alpha^*/(K-1)$, still holds.",
        (
            Check("range after a step", ft.iterate, "range"),
            _example("a beta that leaves its interval", ft.iterate_example),
            Check(
                "max y - min y < x after a step of any size", ft.iterate, "gap", "corrected", {"half of x": "half gap"}
            ),
        ),
        (_F4[0], _AT_STAR, _EPS_F2),
        corrected="What is kept, for every step size: $\\max_ny_n-\\min_ny_n<x$ and $\\max_ny_n\\le2x$; it holds at "
        "$T_1$ under the condition and makes every $g<0$.",
        why="Betas fall, so they leave the interval on the first step, and eq. 23 used both ends of it. The lemma's "
        "conclusion holds by another invariant.",
        uses=("ood.lem-F.2.proof.eq-22", "ood.lem-F.2.proof.sinh", "ood.eq-16"),
        chapter=_CHAPTER,
    ),
    # Lemma F.3
    Claim(
        "ood.lem-F.3.order",
        "Lemma F.3",
        "lemma",
        "The betas of a query keep their order",
        "If $\\eta_t\\le\\min_{n\\ne k}\\exp(-\\beta^{(T_1)}_{u_n,u_k})$ and "
        "$\\beta^{(T_1)}_{u_n,u_k}<\\beta^{(T_1)}_{u_{n'},u_k}$, then "
        "$\\beta^{(T_1+t)}_{u_n,u_k}<\\beta^{(T_1+t)}_{u_{n'},u_k}$ for all $t\\ge0$.",
        (
            Check(
                "gap of every ordered pair, any orthonormal U",
                ft.order_kept,
                ft.StepRule(Region((3, 4, 5), "any", eta=(0.2, 20.0))),
                mutants={"sixty times the step size": ft.StepRule(Region((3, 4, 5), "any", eta=(50.0, 60.0)), 60.0)},
            ),
            Check(
                "the same under Assumption 5.4",
                ft.order_kept,
                ft.StepRule(Region((3, 5, 8), eta=(0.2, 20.0))),
                mutants={"sixty times the step size": ft.StepRule(Region((3, 5), eta=(50.0, 60.0)), 60.0)},
            ),
        ),
        (_SETTING, "step size as stated"),
        uses=("ood.lem-D.3.beta",),
        chapter=_CHAPTER,
        note="Checked with the limit of each query by itself. Needs neither Assumption 5.4 nor the condition of "
        "Lemma F.2: the gap shrinks per step by at most the "
        "factor 1 - eta Attn_n' (Attn_n + Attn_n' - D)/K, and eta Attn_n' <= 1 under the limit. The 1/K leaves room "
        "beyond the limit; the mutants show that the order does break in the end. Empty for K = 2.",
    ),
    Claim(
        "ood.lem-F.3.delta",
        "Lemma F.3",
        "lemma",
        "The larger beta falls faster",
        "Under the same hypotheses $\\delta_{u_n,u_k,\\beta}^{(T_1+t)}\\ge\\delta_{u_{n'},u_k,\\beta}^{(T_1+t)}$ for "
        "all $t\\ge0$.",
        (
            Check("any orthonormal U, any eps", ft.delta_order, Region((3, 4), "any")),
            _example("four features that project on one direction", ft.delta_example),
            Check(
                "under Assumption 5.4 and the condition on eps",
                ft.delta_order,
                Region((3, 4, 5), "gamma", theory.sign_condition),
                "conditional",
                {
                    "no condition on eps": Region((4, 5), "gamma"),
                    "no Assumption 5.4": Region((4,), "any", theory.sign_condition),
                },
            ),
        ),
        (_SETTING, _AT_STAR, "step size as stated"),
        added_hypothesis=f"Assumption 5.4 and {_EPS_F2}: the hypotheses of Lemma F.2.",
        why="The proof takes D - Attn_n - Attn_n' < 0 from Lemma F.2, whose hypotheses the lemma does not state. For "
        "K = 3 it always holds; from K = 4 on a third feature can hold so much attention that D exceeds the sum.",
        uses=("ood.lem-F.2.result", "ood.eq-16"),
        chapter=_CHAPTER,
        note="For K = 3, or while every beta of the query falls, nothing is needed. Where it first fails under "
        "Assumption 5.4 alone is computed in the last check.",
    ),
    Claim(
        "ood.lem-F.3.proof.sign",
        "Proof of Lemma F.3",
        "step",
        "Sign of delta_n - delta_n'",
        "$\\delta_{u_n,u_k}-\\delta_{u_{n'},u_k}=\\mathbb E[\\mathbf 1(D-a_n-a_{n'})(a_n-a_{n'})]<0$ where "
        "$\\beta_n<\\beta_{n'}$.",
        (
            Check("sign as displayed", ft.delta_sign_step, lambda gap: -gap),
            _example("whole numbers", ft.delta_sign_example),
            Check(
                "the opposite sign",
                ft.delta_sign_step,
                lambda gap: gap,
                "corrected",
                {"as displayed": lambda gap: -gap},
            ),
        ),
        (_EPS_F2,),
        corrected="The product of two negative factors is positive: $>0$, which is what the lemma states ($\\ge$).",
        why="Both factors are negative: D - a_n - a_n' by Lemma F.2's argument, a_n - a_n' by the order of the betas. "
        "The display contradicts the lemma that it is to prove.",
        uses=("ood.lem-D.3.beta",),
        chapter=_CHAPTER,
    ),
    Claim(
        "ood.lem-F.3.proof.eq-24",
        "eq. 24",
        "step",
        "Lower bounds on delta_n - delta_n'",
        "Where $\\beta_n<\\beta_{n'}$: $\\delta_n-\\delta_{n'}\\ge\\mathbb E[\\mathbf 1(a_n-a_{n'})]\\ge "
        "e^{\\beta_n}-e^{\\beta_{n'}}$.",
        (
            Check(
                "both inequalities",
                ft.eq24,
                lambda gap, a, b, y, w, K: [gap - (a - b) / K, (a - b) / K - (y - w)],
                mutants={
                    "first one reversed": lambda gap, a, b, y, w, K: [(a - b) / K - gap],
                    "second one reversed": lambda gap, a, b, y, w, K: [(y - w) - (a - b) / K],
                    "the attention the other way round": lambda gap, a, b, y, w, K: [gap - 3 * (b - a) / K],
                },
            ),
        ),
        (_SETTING,),
        uses=("ood.lem-D.3.beta",),
        chapter=_CHAPTER,
        note="True, the second since C >= 1 (alpha >= 0), not 'by definition of the attention score'. But it bounds "
        "delta_n' - delta_n from above, where the induction needs a bound from below: see the next record.",
    ),
    Claim(
        "ood.lem-F.3.proof.induction",
        "Proof of Lemma F.3",
        "step",
        "What the induction takes from eq. 24",
        "$\\delta_{u_{n'},u_k}-\\delta_{u_n,u_k}>e^{\\beta_n}-e^{\\beta_{n'}}$ where $\\beta_n<\\beta_{n'}$.",
        (
            Check(
                "the inequality",
                ft.eq24,
                lambda gap, a, b, y, w, K: [w - y - gap],
                mutants={
                    "the gap negative": lambda gap, a, b, y, w, K: [-gap],
                    "a hundredth of the bound": lambda gap, a, b, y, w, K: [(w - y) / 100 - gap],
                },
            ),
        ),
        (_SETTING,),
        uses=("ood.lem-D.3.beta",),
        chapter=_CHAPTER,
        note="True, but not by eq. 24 (which has the other direction): it follows from |D - a_n - a_n'| <= 2 <= K, C "
        ">= 1. The steps after it use that betas fall: see the next record.",
    ),
    Claim(
        "ood.lem-F.3.proof.contraction",
        "Proof of Lemma F.3",
        "step",
        "Steps (iii) and (iv) of the induction",
        "With $\\xi$ between $\\beta_{u_n,u_k}^{(T_1+t)}$ and $\\beta_{u_{n'},u_k}^{(T_1+t)}$ from the mean value theorem, "
        "$\\eta_te^{\\xi}<\\eta_te^{\\beta_{u_{n'},u_k}^{(T_1)}}\\le1$ at every t, so that the gap of the two betas stays positive.",
        (
            Check("any orthonormal U, any eps", ft.contraction, Region((3, 4), "any")),
            _example("two betas that rise together", ft.contraction_example),
            Check(
                "under Assumption 5.4 and the condition on eps",
                ft.contraction,
                Region((3, 4, 5), "gamma", theory.sign_condition),
                "corrected",
                {"neither": Region((4,), "any")},
            ),
        ),
        (_SETTING, _AT_STAR, "step size as stated", "$\\beta^{(T_1)}_{u_n,u_k}<\\beta^{(T_1)}_{u_{n'},u_k}$"),
        corrected=f"Under Assumption 5.4 and {_EPS_F2} in addition; without them by $\\eta_t\\mathbf{{Attn}}_{{u_{{n'}}}}\\le1$ "
        "instead, which needs only that the query's largest beta falls.",
        why="Lemma F.2 is used without its hypotheses: from K = 4 on a pair of betas below the largest can rise above its "
        "values at T_1. The lemma's first part is not affected.",
        uses=("ood.lem-F.2.result", "ood.lem-F.3.order", "ood.thm-F.4.step", "ood.eq-16"),
        chapter=_CHAPTER,
    ),
    # Theorem F.4
    Claim(
        "ood.thm-F.4.init",
        "eq. 25",
        "equation",
        "Scores on U when fine-tuning starts",
        "Under Assumption 5.4 $\\alpha_{u_m}^{(T_1)}=\\gamma_m^2\\alpha^*$ and "
        "$\\beta_{u_n,u_m}^{(T_1)}=-\\gamma_n\\gamma_m\\alpha^*/(K-1)$.",
        (
            Check(
                "U'QU from vectors",
                ft.init,
                lambda n, k, K, g: g[n] * g[k] * (Fraction(1) if n == k else Fraction(-1, K - 1)),
                mutants={
                    "1/K": lambda n, k, K, g: g[n] * g[k] * (Fraction(1) if n == k else Fraction(-1, K)),
                    "sign of beta": lambda n, k, K, g: g[n] * g[k] * (Fraction(1) if n == k else Fraction(1, K - 1)),
                    "gamma, not squared": lambda n, k, K, g: g[n] * (1 if n == k else g[k] * Fraction(-1, K - 1)),
                },
            ),
        ),
        (_F4[0], _AT_STAR),
        uses=("ood.thm-5.1.scores",),
        chapter=_CHAPTER,
    ),
    Claim(
        "ood.eq-26",
        "eq. 26",
        "equation",
        "The extreme updates against their mean",
        "$\\Lambda_{N(m),m}^{(t)}\\ge\\Delta_m^{(t)}/(K-1)\\ge\\Lambda_{M(m),m}^{(t)}$ with N, M the least and "
        "largest $\\gamma_m\\gamma_n$.",
        (
            Check(
                "all along runs",
                ft.eq26,
                lambda N, M, rise, K: torch.minimum(N - rise / (K - 1), rise / (K - 1) - M),
                mutants={
                    "N and M swapped": lambda N, M, rise, K: torch.minimum(M - rise / (K - 1), rise / (K - 1) - N),
                    "1/K for N and M": lambda N, M, rise, K: torch.minimum(N - rise / (K - 1), rise / K - M),
                },
            ),
        ),
        _F4,
        uses=("ood.lem-F.3.order", "ood.lem-D.4"),
        chapter=_CHAPTER,
        note="Derived in the paper from Lemma F.3's second part, which needs more hypotheses; it holds without them: "
        "the largest Attn_n always exceeds D, so it falls fastest, and lambda(a) = a(a - D) at the smallest is either "
        "negative or the least.",
    ),
    Claim(
        "ood.eq-27",
        "eq. 27",
        "equation",
        "Loss at t_m bounded by that of equal betas",
        "At $t_m$ the loss is at most that with every beta at the largest one, $\\beta_{N(m)}$, and this at most that "
        "with $\\Lambda_{N(m)}$ replaced by $\\Delta/(K-1)$. (Likewise from below with M(m).)",
        (
            Check("from above, with N", ft.eq27, (1, 0), mutants={"reversed": (-1, 0), "with M": (1, 1)}),
            Check("from below, with M", ft.eq27, (-1, 1), mutants={"reversed": (1, 1), "with N": (-1, 0)}),
        ),
        _F4,
        uses=("ood.lem-D.9", "ood.lem-D.11", "ood.eq-26"),
        chapter=_CHAPTER,
        note="Lemma D.11 needs exp(alpha) >= every exp(beta): it may fail at T_1 but not at t_m. One factor is "
        "printed with t for t_m.",
    ),
    Claim(
        "ood.eq-28",
        "eq. 28",
        "equation",
        "Upper bound on Delta",
        "$\\Delta_m^{(t_m)}\\le(1-\\frac1K)\\Big[\\log\\frac{(K-1)(1-\\sqrt\\epsilon)}{\\sqrt\\epsilon}-\\Big("
        "\\gamma_m^2+\\frac{\\gamma_m\\gamma_{N(m)}}{K-1}\\cdot"
        "\\alpha^*\\Big)\\Big]$.",
        (
            Check("Delta at t_m", ft.delta_bound, Bound(theory.delta_upper_printed, True)),
            _example("eps near its largest value", ft.eq28_example),
            Check(
                "Delta one step before t_m",
                ft.delta_bound,
                Bound(ft.upper, True, "before"),
                "corrected",
                {
                    "M for N": Bound(ft.lower, True, "before"),
                    "gamma^2 without (1 - 1/K)": Bound(_no_own_factor, True, "before"),
                    "at t_m itself": Bound(ft.upper, True),
                },
            ),
        ),
        _F4,
        corrected="$\\Delta_m\\le\\alpha^*\\big(1-(1-\\frac1K)\\gamma_m^2-\\frac{\\gamma_m\\gamma_{N(m)}}K\\big)$ "
        "along the flow at $t_m$, and with discrete steps one step before $t_m$: alpha* multiplies the whole bracket, "
        "and $\\sqrt{K/(2(K-1))}-\\sqrt\\epsilon$ stands for $1-\\sqrt\\epsilon$.",
        why="alpha* multiplies only the last product. Where alpha* < 1 the bound is too small; where alpha* > 1 it "
        "holds but is far too large (and grows apart from Delta as eps falls).",
        uses=("ood.eq-27", "ood.thm-F.4.init", "ood.eq-16"),
        chapter=_CHAPTER,
        note="With alpha* moved out, 1 - sqrt eps instead of the factor of eq. 16 leaves a valid, looser bound (equal "
        "at K = 2). Equality where all gamma_m gamma_n are equal. The last discrete step can exceed the bound by eta "
        "delta.",
    ),
    Claim(
        "ood.eq-29",
        "eq. 29",
        "equation",
        "Lower bound on Delta",
        "$\\Delta_m^{(t_m)}\\ge(1-\\frac1K)\\Big[\\log\\frac{(K-1)(1-\\sqrt{2K\\epsilon/(K+1)})}{\\sqrt{2K"
        "\\epsilon/(K+1)}}-\\Big(\\gamma_m^2+"
        "\\frac{\\gamma_m\\gamma_{M(m)}}{K-1}\\cdot\\alpha^*\\Big)\\Big]$.",
        (
            Check("Delta at t_m", ft.delta_bound, Bound(theory.delta_lower_printed, False)),
            _example("two features", ft.eq29_example),
            Check(
                "corrected, at t_m",
                ft.delta_bound,
                Bound(ft.lower, False),
                "corrected",
                {
                    "N for M": Bound(ft.upper, False),
                    "gamma^2 without (1 - 1/K)": Bound(_wrong_bracket, False),
                    "one step before t_m": Bound(ft.lower, False, "before"),
                },
            ),
        ),
        _F4,
        corrected="$\\Delta_m^{(t_m)}\\ge\\alpha^*\\big(1-(1-\\frac1K)\\gamma_m^2-\\frac{\\gamma_m\\gamma_{M(m)}}K"
        "\\big)$, for discrete steps too.",
        why="alpha* multiplies only the last product, so gamma_m^2 stands where gamma_m^2 alpha* belongs; for alpha* "
        "> 1, the usual case, the bound is too large by about gamma_m^2 (alpha* - 1).",
        uses=("ood.eq-27", "ood.thm-F.4.init", "ood.eq-16"),
        chapter=_CHAPTER,
        note="With alpha* moved out, the printed logarithm (2K eps/(K+1) for 2(K-1) eps/K) leaves a valid, slightly "
        "looser bound.",
    ),
    *(
        Claim(
            f"ood.thm-F.4.beta.{name}",
            "Theorem F.4",
            "theorem",
            f"{title} bound on Lambda",
            "For all $n\\ne m$: "
            f"$\\Lambda_{{n,m}}^{{(t_m)}}{sign}\\frac{{({first}\\gamma_m-{second}\\gamma_m)\\alpha^*}}{{K-1}}+"
            "\\frac{\\Delta_m^{(t_m)}}{K-1}$.",
            (
                Check(
                    "every Lambda, at t_m and all along",
                    partial(ft.lambda_bound, side=side),
                    ft.printed_lambda(name),
                    mutants={
                        "a tenth of the spread": partial(ft.spread, width=side * 0.1, share=1.0),
                        "no spread": partial(ft.spread, width=0.0, share=1.0),
                        "Delta / K": partial(ft.spread, width=side * 0.98, share=1 - side * 0.3),
                    },
                ),
            ),
            _F4,
            uses=(
                "ood.eq-26",
                "ood.lem-F.3.order",
                "ood.thm-F.4.init",
                *(("ood.thm-F.4.beta.upper",) if name == "lower" else ()),
            ),
            chapter=_CHAPTER,
            note="Holds at every t, and without the condition of Lemma F.2, because it follows from the order of the "
            "betas and from Lambda_N being the largest update. For K = 2 it is Lambda = Delta.",
        )
        for name, title, sign, first, second, side in (
            ("upper", "Upper", "\\le", "\\gamma_{M(m)}", "\\gamma_{N(m)}", 1),
            ("lower", "Lower", "\\ge", "\\gamma_{N(m)}", "\\gamma_{M(m)}", -1),
        )
    ),
    Claim(
        "ood.thm-F.4.chain.lambda",
        "Theorem F.4, chain in the proof",
        "step",
        "Order of the updates",
        "$\\Lambda_{M(m),m}^{(t)}\\le\\Lambda_{n,m}^{(t)}\\le\\Lambda_{N(m),m}^{(t)}$ for all $n\\ne m$ and all t.",
        (
            Check("under the hypotheses of Theorem F.4", ft.chain_lambda, Region((3, 4, 5))),
            _example("four features, tiny eps", ft.chain_example),
            Check(
                "with the condition on eps",
                ft.chain_lambda,
                Region((3, 4, 5), condition=theory.sign_condition),
                "corrected",
                {
                    "no condition": Region((4,)),
                },
            ),
        ),
        _F4,
        corrected=f"Under {_EPS_F2} in addition, or for K at most 3; the right inequality always holds.",
        why="Lemma F.3's second part is used without Lemma F.2's condition; for tiny eps and K = 4 an intermediate "
        "update can be below that of M. The bounds of the theorem do not need it.",
        uses=("ood.lem-F.3.delta", "ood.eq-16", "ood.lem-F.2.result"),
        chapter=_CHAPTER,
    ),
    Claim(
        "ood.thm-F.4.chain.beta",
        "Theorem F.4, chain in the proof",
        "step",
        "Order of the betas",
        "$\\beta_{u_{M(m)},u_m}^{(T_1+t)}\\ge\\beta_{u_n,u_m}^{(T_1+t)}\\ge\\beta_{u_{N(m)},u_m}^{(T_1+t)}$ for all "
        "$n\\ne m$.",
        (
            Check("as printed", ft.chain_beta, -1),
            _example("at T_1", ft.chain_beta_example),
            Check("reversed", ft.chain_beta, 1, "corrected", {"as printed": -1}),
        ),
        _F4,
        corrected="$\\beta_{M(m)}\\le\\beta_n\\le\\beta_{N(m)}$.",
        why="beta at T_1 is minus gamma_n gamma_m alpha*/(K - 1), so N(m), with the least product, has the largest "
        "beta. The final bounds on Lambda have the right direction.",
        uses=("ood.thm-F.4.init", "ood.lem-F.3.order", "ood.eq-16"),
        chapter=_CHAPTER,
    ),
    Claim(
        "ood.thm-F.4.chain.shifted",
        "Theorem F.4, chain in the proof",
        "step",
        "The chain with its updates inserted",
        "The chain of betas is equivalent to "
        "$\\beta_M^{(T_1)}-\\Lambda_M\\ge\\beta_n^{(T_1+t)}-\\Lambda_n\\ge\\beta_N^{(T_1+t)}-\\Lambda_N$; checked "
        "here in its corrected direction, with M and N swapped.",
        (
            Check("beta at T_1 + t, less Lambda", ft.shifted, lambda before, now, fall: now - fall),
            _example("subtracted twice", ft.shifted_example),
            Check(
                "beta at T_1, less Lambda",
                ft.shifted,
                lambda before, now, fall: before - fall,
                "corrected",
                {
                    "plus Lambda": lambda before, now, fall: before + fall,
                    "beta at T_1 + t": lambda before, now, fall: now - fall,
                },
            ),
        ),
        _F4,
        corrected="All three betas are taken at $T_1$.",
        why="The last two betas are printed at T_1 + t, so that their updates are subtracted twice.",
        uses=("ood.thm-F.4.chain.beta", "ood.eq-16"),
        chapter=_CHAPTER,
    ),
    Claim(
        "ood.thm-F.4.step",
        "Text after Theorem F.4",
        "order",
        "Order of the allowed step size",
        "Under Assumption 5.4 the limit on the step size is $\\mathcal O(\\exp(\\log(K/\\sqrt\\epsilon)/K))$.",
        (
            Check(
                "logarithm of the limit, from above and below",
                ft.step_order,
                lambda K, eps: math.log(K / math.sqrt(eps)) / K,
                mutants={
                    "1/K^2": lambda K, eps: math.log(K / math.sqrt(eps)) / K**2,
                    "without eps": lambda K, eps: math.log(K) / K,
                },
            ),
        ),
        (_F4[0], _AT_STAR),
        uses=("ood.thm-F.4.init", "ood.eq-16"),
        chapter=_CHAPTER,
        note="With constant 1, and from below by the inverse: exp(-log(K/sqrt eps)/K) <= limit <= exp(log(K/sqrt "
        "eps)/K). The lower one is what 'constant order' needs; for small K and eps the limit does go to 0 (K = 2: "
        "like eps^(1/4)).",
    ),
    Claim(
        "ood.thm-F.4.step.limit",
        "Text after Theorem F.4",
        "text",
        "The limit on the step size tends to 1",
        "For fixed eps the limit on the step size converges to 1 as K grows, whatever the shift.",
        (Check("K up to 1e6", ft.step_limit, 1.0, mutants={"1.1": 1.1, "0": 0.0}),),
        (_F4[0], _AT_STAR, "fixed $\\epsilon$"),
        uses=("ood.thm-F.4.step", "ood.eq-16"),
        chapter=_CHAPTER,
        note="If eps falls faster than exp(-K) the limit does not tend to 1. Since the gradient carries the query's "
        "probability 1/K, steps well beyond the limit still keep the order of the betas.",
    ),
    # Appendix J
    Claim(
        "ood.app-J.1",
        "Appendix J",
        "text",
        "Lemma F.1 without Assumption 5.4",
        "For any orthonormal U, $\\Delta_{k,\\alpha}^{(t)}=\\sum_{n\\ne k}\\Lambda_{n,k,\\beta}^{(t)}$.",
        (
            Check(
                "unrelated sets",
                ft.any_balance,
                lambda Lam, k: sum(Lam[n, k] for n in ft.others(len(Lam), k)),
                mutants={
                    "indices swapped": lambda Lam, k: sum(Lam[k, n] for n in ft.others(len(Lam), k)),
                    "sign flipped": lambda Lam, k: -sum(Lam[n, k] for n in ft.others(len(Lam), k)),
                },
            ),
        ),
        (_SETTING,),
        uses=("ood.lem-F.1",),
        chapter="beyond",
    ),
    Claim(
        "ood.app-J.2",
        "Appendix J",
        "text",
        "Lemma F.2 without Assumption 5.4 under a stricter condition on eps",
        "For any orthonormal U there is a condition on eps, stricter than that of Lemma F.2, under which every beta "
        "falls and every alpha rises throughout fine-tuning. Checked with the explicit condition "
        "$\\epsilon\\ge\\frac{K}{2(K-1)}\\big(\\frac{K-1}{K-1+e}\\big)^2$, that is $K\\alpha^*/(K-1)\\le1$.",
        (
            Check(
                "every beta falls, any orthonormal U",
                ft.beta_falls,
                ft.GENERAL,
                mutants={
                    "only the condition of Lemma F.2": replace(ft.GENERAL, condition=theory.sign_condition),
                    "no condition": replace(ft.GENERAL, condition=None),
                },
            ),
        ),
        (_SETTING, _AT_STAR),
        uses=("ood.lem-F.2.result", "ood.lem-F.2.proof.iteration", "ood.lem-F.2.proof.sinh"),
        chapter="beyond",
        note="The appendix names no condition. This one is sufficient: |beta| <= p and alpha >= p^2 at T_1. It is not "
        "sharp (eps of order 1), but some such condition is needed at small K too: the sign fails where all of U "
        "projects on one direction orthogonal to the mean feature, at an eps that the check computes for K = 3. Lemma "
        "F.2's own condition, which falls like exp(-2 (K - 1)^2), is far too weak without Assumption 5.4.",
    ),
    Claim(
        "ood.app-J.2.F3",
        "Appendix J",
        "text",
        "Lemma F.3 without Assumption 5.4",
        "Under the same stricter condition on eps Lemma F.3 holds for any orthonormal U: the betas keep their order "
        "and the larger falls faster, for step sizes within the limit.",
        (
            Check(
                "order of the falls",
                ft.delta_order,
                replace(ft.GENERAL, eta=(0.2, 1.0)),
                mutants={"no condition": Region((4,), "any")},
            ),
            Check(
                "order of the betas",
                ft.order_kept,
                ft.StepRule(replace(ft.GENERAL, eta=(0.2, 5.0))),
                mutants={"far larger steps": ft.StepRule(replace(ft.GENERAL, eta=(100.0, 120.0)), 120.0)},
            ),
        ),
        (_SETTING, _AT_STAR),
        uses=("ood.app-J.2", "ood.lem-F.3.order"),
        chapter="beyond",
        note="The order of the betas needs no condition on eps (lem-F.3.order); the order of the falls does.",
    ),
    Claim(
        "ood.app-J.2.F4",
        "Appendix J",
        "text",
        "Theorem F.4 without Assumption 5.4",
        "Under the same condition fine-tuning on any orthonormal U meets every loss, and $\\Delta_m$ lies between "
        "$\\alpha^*-(1-\\frac1K)(\\alpha_m-\\min_n\\beta_{n,m})$ at $t_m$ and "
        "$\\alpha^*-(1-\\frac1K)(\\alpha_m-\\max_n\\beta_{n,m})$ one step before, scores taken at $T_1$.",
        (
            Check(
                "times and bounds",
                ft.any_bounds,
                theory.delta_bounds_any,
                mutants={
                    "least and largest swapped": lambda s, eps: theory.Bounds(
                        *reversed(theory.delta_bounds_any(s, eps))
                    ),
                    "without (1 - 1/K)": ft.looser_any,
                },
            ),
        ),
        (_SETTING, _AT_STAR),
        uses=("ood.app-J.2.F3", "ood.eq-28", "ood.eq-29", "ood.app-J.2", "ood.eq-16"),
        chapter="beyond",
        note="The appendix states no formulas; these are eq. 28 and 29, corrected, with the shift left inside the "
        "scores at T_1.",
    ),
    Claim(
        "ood.app-J.3",
        "Appendix J",
        "text",
        "Forgetting without Assumption 5.4",
        "For any orthonormal U the change of the scores on V is $MDM^\\top$ with $M=V^\\top U$ and D the accumulated "
        "change on U; entry (n, k) mixes all entries of D, so Theorem 5.6's formula no longer holds.",
        (
            Check(
                "unrelated sets",
                ft.on_any,
                ft.projection,
                mutants={
                    "Theorem 5.6's formula": lambda M, D, n, k: M[n, n] * M[k, k] * D[n, k],
                    "transposed overlap": lambda M, D, n, k: ft.projection(M.T, D, n, k),
                },
            ),
        ),
        (_SETTING,),
        uses=("ood.thm-5.6.text",),
        chapter="beyond",
        same_as=("ood.thm-5.6.text",),
    ),
)

"""Records of the OOD paper's Appendices A and B: what TinyTransformers show, and the explanation given for it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from icl_core import dynamics, features, fine_tuning, population, results
from icl_core.claims.record import Check, Claim, Evidence
from icl_core.experiments import tiny_transformer as tiny
from icl_core.networks import Architecture
from icl_core.prompts import balanced
from icl_core.theory import ood
from icl_core.theory._statement import remember

PAGE = "tiny-transformer"
# As many models as in the stored tables, of other seeds, so that the two are independent. Forgetting differs between
# models by about as much as its mean, so that with ten of them one model could turn a verdict.
SEEDS = tuple(range(1000, 1030))
GAMMAS = (-1.0, -0.75, -0.5, 0.0, 0.5, 0.75, 1.0)
_ARCH = Architecture()
_OPEN = (
    "The text names neither norm, feed-forward layer, optimiser, initial weights nor stopping; all are options of "
    "`icl_core.networks` with stated defaults, and the chapter shows what each changes. The fast form judges the stored tables, the full form trains anew."
)


@remember
def _stored(name: str) -> Any:
    """The stored table ``book/results/tiny-<name>``, or None outside a clone."""
    try:
        return results.read_table(Path(__file__).resolve().parents[2] / "book" / "results" / f"tiny-{name}")
    except FileNotFoundError:
        return None


def _depths(fast: bool, pair: str | None = None) -> tuple[int, ...]:
    """Depths to check: all live; in the fast form those that the stored table holds, or one layer."""
    if not fast:
        return (1, 2, 3)
    table = _stored("ood" if pair is None else "forgetting")
    if table is None:
        return (1,)
    frame = table.frame if pair is None else table.frame[table.frame.pair == pair]
    return tuple(sorted(int(depth) for depth in frame.layers.unique())) or (1,)


# Appendix A's explanation, for the one-layer model it is about.


@remember
def _trained(K: int) -> Tensor:
    return dynamics.train(K, 0.01, 0.1).scores


def _instances(fast: bool) -> list[tuple[Tensor, Tensor]]:
    """Features and the trained Q = V S V' for several K."""
    found = []
    for K in (2, 3, 4, 6):
        for seed in range(3 if fast else 20):
            V = features.orthonormal(2 * K, K, generator=features.generator(seed))
            found.append((V, V @ _trained(K) @ V.mT))
    return found


_REGION = "K = 2, 3, 4, 6, d = 2 K, random V, Q from gradient descent at eps = 0.01"


def _below(worst: float, cases: int, *, tolerance: float = 1e-9, detail: str = "", region: str = _REGION) -> Evidence:
    return Evidence(
        worst <= tolerance, "swept", cases, region, residual=worst, tolerance=tolerance,
        tolerance_source="rounding", detail=detail,
    )  # fmt: skip


def _span(space: Callable[[Tensor], Tensor], fast: bool) -> Evidence:
    """Largest part, outside the span of ``space(V)``, of an eigenvector with an eigenvalue that is not 0."""
    worst, cases = 0.0, 0
    for V, Q in _instances(fast):
        values, vectors = torch.linalg.eigh(Q)
        live = vectors[:, values.abs() > 1e-6 * values.abs().max()]
        W = space(V)
        worst = max(worst, float((live - W @ (W.mT @ live)).norm(dim=0).max()))
        cases += live.shape[1]
    return _below(worst, cases, detail=f"largest part outside {worst:.3g}")


EIGEN_SPAN = Claim(
    id="ood.app-A.eigen.span",
    label="Appendix A, eigenvectors of Q",
    kind="text",
    title="Eigenvectors lie in the span of the training features",
    statement=r"""
After training the one-layer model from $Q=0$ on orthonormal features, every eigenvector of $Q$ with an eigenvalue other
than 0 lies in $\operatorname{span}(V)$.""",
    hypotheses=("$V$ orthonormal", "balanced prompts", "$Q^{(0)}=0$"),
    checks=(
        Check(
            "eigenvectors of the trained Q",
            _span,
            lambda V: V,
            mutants={"a span without one feature": lambda V: V[:, 1:], "another span": lambda V: V.flip(0)},
        ),
    ),
    uses=("ood.lem-E.1.scores",),
    chapter=PAGE,
)


def _directions(basis: Callable[[Tensor], Tensor], fast: bool) -> Evidence:
    """Largest angle between ``Q b`` and ``b`` for the claimed eigenvectors ``b``, as the sine."""
    worst, cases = 0.0, 0
    for V, Q in _instances(fast):
        b = basis(V)
        image = Q @ b
        along = (image * b).sum(0) / b.norm(dim=0) ** 2
        worst = max(worst, float((image - along * b).norm(dim=0).max() / Q.norm()))
        cases += b.shape[1]
    return _below(worst, cases, detail=f"largest |Q b - lambda b| / |Q| is {worst:.3g}")


def _between(V: Tensor) -> Tensor:
    """The mean feature, and differences of features: bases of the eigenspaces."""
    return torch.cat([features.mean_feature(V).unsqueeze(1), V[:, 1:] - V[:, :1]], dim=1)


def _two_features(angle: float, fast: bool) -> Evidence:
    """For K = 2, the angle between a feature and the nearest eigenvector with a non-zero eigenvalue."""
    V = torch.eye(4, dtype=torch.float64)[:, :2]
    Q = V @ _trained(2) @ V.mT
    leading = torch.linalg.eigh(Q).eigenvectors[:, -1]
    found = math.degrees(math.acos(min(1.0, float((V.mT @ leading).abs().max()))))
    return Evidence(
        abs(found - angle) < 1e-6, "exact", 1, "K = 2", residual=abs(found - angle), tolerance=1e-6,
        tolerance_source="rounding of an angle in degrees",
        detail=f"Q = c (v1 - v2)(v1 - v2)': its one eigenvector is {found:.1f} degrees from both features",
    )  # fmt: skip


EIGEN_FEATURES = Claim(
    id="ood.app-A.eigen.features",
    label="Appendix A, eigenvectors of Q",
    kind="text",
    title="Eigenvectors align with the training features",
    statement=r"""
The eigenvectors of the trained $Q$ are the training features $v_k$.""",
    hypotheses=("$V$ orthonormal", "balanced prompts", "$Q^{(0)}=0$"),
    checks=(
        Check("features as eigenvectors", _directions, lambda V: V),
        Check("two features", _two_features, 45.0, role="counterexample", mutants={"aligned": 0.0}),
        Check(
            "mean feature and differences",
            _directions,
            _between,
            role="corrected",
            mutants={"sums instead of differences": lambda V: V[:, 1:] + 0.5 * V[:, :1]},
        ),
    ),
    corrected=r"""
$Q=\lambda(VV^\top-\bar v\bar v^\top)$ has two eigenspaces: $\bar v$ and everything outside $\operatorname{span}(V)$ with
eigenvalue 0, and the differences of features with eigenvalue $\lambda=\frac{K\alpha}{K-1}$. A feature makes an angle with its image of
cosine $\sqrt{1-1/K}$, so the printed statement becomes true as $K$ grows.""",
    why=(
        "The scores are symmetric in the features, so the differences of features form one eigenspace, and the mean feature has "
        "eigenvalue 0. A single feature has a part $1/\\sqrt K$ along the mean feature, which $Q$ removes."
    ),
    uses=("ood.lem-E.1.scores",),
    chapter=PAGE,
)


def _form(alpha_of: Callable[[float, int, Tensor, Tensor], Tensor], fast: bool) -> Evidence:
    """``u'Qu`` against a formula, for random unit vectors and for the mean feature, relative to alpha."""
    worst, cases = 0.0, 0
    for V, Q in _instances(fast):
        d, K = V.shape
        alpha = float(_trained(K)[0, 0])
        u = torch.randn(50, d, dtype=torch.float64, generator=features.generator(7 + K))
        u = torch.cat([u / u.norm(dim=1, keepdim=True), features.mean_feature(V).unsqueeze(0)])
        expected = ((u @ Q) * u).sum(1)
        worst = max(worst, float((alpha_of(alpha, K, V, u) - expected).abs().max()) / alpha)
        cases += u.shape[0]
    return _below(worst, cases, detail=f"largest deviation {worst:.3g} times alpha", region=_REGION + ", unit u")


def _printed_form(alpha: float, K: int, V: Tensor, u: Tensor) -> Tensor:
    # At u = v_k the printed form gives lambda_k, so lambda_k is the trained alpha.
    return alpha * ((u @ V) ** 2).sum(1)


def _theorem_form(alpha: float, K: int, V: Tensor, u: Tensor, sign: float = -1.0, factor: bool = True) -> Tensor:
    inside = ((u @ V) ** 2).sum(1) + sign * (u @ features.mean_feature(V)) ** 2
    return alpha * (K / (K - 1) if factor else 1.0) * inside


def _at_mean(expected: float, fast: bool) -> Evidence:
    """``u'Qu`` at the mean feature, over what the printed sum gives there."""
    ratios = []
    for V, Q in _instances(fast):
        u = features.mean_feature(V)
        printed = _printed_form(float(_trained(V.shape[1])[0, 0]), V.shape[1], V, u.unsqueeze(0))
        ratios.append(float(u @ Q @ u / printed))
    worst = max(abs(r - expected) for r in ratios)
    return _below(
        worst, len(ratios), detail=f"true over printed at u = mean feature: at most {max(map(abs, ratios)):.2g}"
    )


EIGEN_FORM = Claim(
    id="ood.app-A.eigen.form",
    label="Appendix A, approximation of the alpha-type weight",
    kind="text",
    title="Alpha as a sum of squared projections on the features",
    statement=r"""
$\alpha_u=u^\top Qu=\sum_k\lambda_k(v_k^\top u)^2$ with the eigenvalues $\lambda_k$.""",
    hypotheses=("$V$ orthonormal", "balanced prompts", "$Q^{(0)}=0$"),
    checks=(
        Check("unit vectors", _form, _printed_form),
        Check("the mean feature", _at_mean, 0.0, role="counterexample", mutants={"as printed": 1.0}),
        Check(
            "unit vectors",
            _form,
            _theorem_form,
            role="corrected",
            mutants={
                "mean feature added": lambda a, K, V, u: _theorem_form(a, K, V, u, sign=1.0),
                "without K/(K - 1)": lambda a, K, V, u: _theorem_form(a, K, V, u, factor=False),
            },
        ),
    ),
    corrected=r"""
$\alpha_u=\frac{K\alpha}{K-1}\big(\sum_k(v_k^\top u)^2-\langle u,\bar v\rangle^2\big)$, as in Theorem 5.1.""",
    why=(
        "The sum leaves out the mean feature: at $u=\\bar v$ it gives the full $\\alpha$, the true value is 0 (Corollary 5.2 rests on that)."
    ),
    note="The text says 'approximated'; the error is of order 1/K for features and everything for the mean feature.",
    uses=("ood.thm-5.1.scores",),
    chapter=PAGE,
)  # fmt: skip


@remember
def _rotated(K: int, fast: bool) -> tuple[Tensor, Tensor]:
    """Angles and the scores when v_1 turns towards a direction outside the span and the others stay."""
    theta = torch.linspace(0, 2 * math.pi, 61 if fast else 721, dtype=torch.float64)
    V = tiny.embedding("one-in-span", 2 * K, K, range(3 if fast else 10))
    U = V.expand(theta.numel(), *V.shape).clone()
    U[..., 0] = torch.cos(theta)[:, None, None] * V[..., 0]
    U[..., 1, 0] = torch.sin(theta)[:, None]
    return theta, ood.ood_scores(V, U, float(_trained(K)[0, 0]))


_TURN = "K = 2, 3, 4, 6, random V, angles from 0 to 2 pi"


def _alpha_turn(shape: Callable[[Tensor], Tensor], fast: bool) -> Evidence:
    worst, cases = 0.0, 0
    for K in (2, 3, 4, 6):
        theta, scores = _rotated(K, fast)
        ratio = scores[..., 0, 0] / float(_trained(K)[0, 0])
        worst, cases = max(worst, float((ratio - shape(theta)[:, None]).abs().max())), cases + ratio.numel()
    return _below(worst, cases, detail=f"largest deviation {worst:.3g} times alpha", region=_TURN)


COS2_ALPHA = Claim(
    id="ood.app-A.cos2.alpha",
    label="Appendix A, scenario 2",
    kind="text",
    title="Alpha follows the squared cosine",
    statement=r"""
If $u_1=v_1\cos\theta+v_{\mathrm o}\sin\theta$ with a unit vector $v_{\mathrm o}\perp\operatorname{span}(V)$ then
$\alpha_{u_1}=\alpha\cos^2\theta$ for the trained one-layer model.""",
    hypotheses=("$V$ orthonormal", "balanced prompts", "$Q^{(0)}=0$"),
    checks=(
        Check(
            "scores over the turn",
            _alpha_turn,
            lambda t: torch.cos(t) ** 2,
            mutants={"absolute cosine": lambda t: torch.cos(t).abs(), "cosine": torch.cos},
        ),
    ),
    uses=("ood.thm-5.1.scores",),
    chapter=PAGE,
    note=(
        r"The text asks only for $v_{\mathrm o}\notin V$; that all projections on the other features vanish, as it goes on, needs $v_{\mathrm o}$ "
        r"orthogonal to them, and that $\langle u_1,v_1\rangle=\cos\theta$ needs it orthogonal to $v_1$. It is read as a vector of an orthonormal basis that extends $V$."
    ),
)


def _order(signal: Callable[[Tensor, int], Tensor], fast: bool) -> Evidence:
    """Whether the rotated feature's loss falls as ``signal`` rises, over all pairs of angles."""
    worst, cases = -math.inf, 0
    for K in (2, 3, 4, 6):
        theta, scores = _rotated(K, fast)
        loss = ood.loss_from_scores(scores)[..., 0]
        s = signal(theta, K)
        gap = s[:, None] - s[None, :]
        rise = loss[:, None] - loss[None, :]
        worst = max(worst, float(rise[gap > 1e-6].max()) / float(loss.max()))
        cases += int((gap > 1e-6).sum()) * loss.shape[1]
    return Evidence(
        worst <= 1e-12, "swept", cases, _TURN + ", all pairs", margin=-worst, tolerance=1e-12, tolerance_source="rounding",
        detail=f"largest rise of the error while the signal rises: {worst:.3g} of the largest error",
    )  # fmt: skip


def _gap_signal(theta: Tensor, K: int) -> Tensor:
    return torch.cos(theta) ** 2 + torch.cos(theta) / (K - 1)


def _at_pi(share: float, fast: bool) -> Evidence:
    """For K = 2 at half a turn: the error over that of even attention."""
    V = torch.eye(4, dtype=torch.float64)[:, :2]
    U = V.clone()
    U[:, 0] = -U[:, 0]
    loss = float(ood.ood_loss(V, U, float(_trained(2)[0, 0]))[0])
    found = loss / ood.uniform_loss(2)
    return Evidence(
        abs(found - share) < 1e-9, "exact", 1, "K = 2, theta = pi", residual=abs(found - share), tolerance=1e-9,
        tolerance_source="rounding",
        detail=f"at theta = pi, where the squared cosine is 1 again, the error is {found:.3g} times that of even attention",
    )  # fmt: skip


COS2_ERROR = Claim(
    id="ood.app-A.cos2.error",
    label="Appendix A, scenario 2",
    kind="text",
    title="The error runs opposite to the squared cosine",
    statement=r"""
If $u_1$ turns as above and the other features stay, the error on $u_1$ is smaller where $\cos^2\theta$ is larger.""",
    hypotheses=("$V$ orthonormal", "balanced prompts", "$Q^{(0)}=0$"),
    checks=(
        Check("pairs of angles", _order, lambda t, K: torch.cos(t) ** 2),
        Check("half a turn, two features", _at_pi, 1.0, role="counterexample", mutants={"half of that": 0.5}),
        Check(
            "pairs of angles",
            _order,
            _gap_signal,
            role="corrected",
            mutants={
                "sign of the second term": lambda t, K: torch.cos(t) ** 2 - torch.cos(t) / (K - 1),
                "K for K - 1": lambda t, K: torch.cos(t) ** 2 + torch.cos(t) / K,
            },
        ),
    ),
    corrected=r"""
The error on $u_1$ is a decreasing function of $\cos^2\theta+\frac{\cos\theta}{K-1}$. It is largest at $\cos\theta=-\frac{1}{2(K-1)}$, past a
quarter turn, and at half a turn it is larger than at none.""",
    why=(
        "Not alpha alone decides but its lead over beta. $\\beta_{n,1}=-\\frac{\\alpha}{K-1}\\cos\\theta$ follows the cosine, not its square: beyond a quarter "
        "turn the wrong features gain. For $K=2$ they have caught up at half a turn: the model guesses."
    ),
    uses=("ood.thm-5.1.scores", "ood.thm-5.1.loss", "ood.cor-5.2.1", "ood.lem-D.9"),
    chapter=PAGE,
)  # fmt: skip


# What trained TinyTransformers show.


@remember
def _models(fast: bool) -> Any:
    """One row per one-layer model with what Appendix A says of attention; the fast form reads the stored table."""
    table = _stored("alignment") if fast else None
    if table is None:
        _, table = tiny.attention_table(_ARCH, seeds=SEEDS, count=25, draws=50)
    return table.frame


def _exceeds(values: np.ndarray, level: float, name: str, *, below: bool = False) -> Evidence:
    """Whether a mean lies beyond ``level``: undecided where the 95% interval holds it."""
    mean, low, high = (float(x) for x in tiny.interval(values))
    hit, miss = (high < level, low > level) if below else (low > level, high < level)
    return Evidence(
        True if hit else False if miss else None, "monte-carlo", len(values),
        f"{len(values)} one-layer TinyTransformers, K = 4, d = 8", dtype="float32",
        margin=(level - high) if below else (low - level),
        tolerance_source="Student interval over models",
        detail=f"{name}: {mean:.3g}, 95% interval {low:.3g} to {high:.3g}, against {level:.3g}",
    )  # fmt: skip


def _aligned(column: str, fast: bool) -> Evidence:
    frame = _models(fast)
    return _exceeds(frame[column].to_numpy(), float(frame[f"chance_{column}"].iloc[0]), column)


EIGEN_TRAINED = Claim(
    id="ood.app-A.eigen.trained",
    label="Appendix A, eigenvectors of Q",
    kind="figure",
    title="Eigenvectors of trained TinyTransformers",
    statement=r"""
In a trained one-layer TinyTransformer the leading eigenvectors of $Q$ lie in $\operatorname{span}(V)$ and along single features more
closely than chance has it (a random basis of the space; a random basis of the span without $\bar v$).""",
    checks=(
        Check("share inside the span", _aligned, "span", role="criterion"),
        Check("along single features", _aligned, "feature", role="criterion"),
    ),
    chapter=PAGE,
    note=_OPEN + " Q is read off the weights: keys, queries and read-in composed.",
)


def _trend(case: tuple[str, bool], fast: bool) -> Evidence:
    column, below = case
    return _exceeds(_models(fast)[column].to_numpy(), 0.0, f"rank correlation ({column})", below=below)


COS2_TRAINED = Claim(
    id="ood.app-A.cos2.trained",
    label="Appendix A, scenario 2",
    kind="figure",
    title="Alpha and error of trained TinyTransformers out of the span",
    statement=r"""
When the first feature of a trained one-layer TinyTransformer turns towards a direction outside the span, then on $[0,\pi]$ its mean attention
logit is positively and its error negatively rank-correlated with $\cos^2\theta$.""",
    checks=(
        Check("logit", _trend, ("alpha_rank", False), role="criterion"),
        Check("error", _trend, ("error_cos2", True), role="criterion"),
    ),
    chapter=PAGE,
    note=_OPEN,
)


@remember
def _shapes(depth: int, fast: bool) -> Any:
    stored = _stored("ood") if fast else None
    if stored is not None:
        frame = stored.frame
        return tiny.scenarios(
            replace(stored, frame=frame[(frame.layers == depth) & (frame.embedding != "two-in-span")])
        )
    table = tiny.ood_table(_ARCH, seeds=SEEDS, layers=(depth,), kinds=("random", "one-in-span"), count=37)
    return tiny.scenarios(table)


def _occurs(case: tuple[str, Callable[[Any], Any]], fast: bool) -> Evidence:
    """Whether a pattern occurs: in how many of the models, over both kinds of embedding and the depths."""
    name, matches = case
    hits = total = 0
    for depth in _depths(fast):
        frame = _shapes(depth, fast)
        hits, total = hits + int(matches(frame).sum()), total + len(frame)
    share, low, high = tiny.proportion(hits, total)
    # One curve in twenty is what "a pattern" should mean at least.
    passed = True if low > 0.05 else False if high < 0.05 else None
    return Evidence(
        passed, "monte-carlo", total,
        f"{total} TinyTransformers, layers {', '.join(map(str, _depths(fast)))}, random features and Appendix A's example",
        dtype="float32", seed=None if fast else SEEDS[0], margin=low - 0.05,
        tolerance_source="95% Wilson interval; a pattern is at least one curve in twenty",
        detail=f"{name}: {hits} of {total} curves, share {share:.2f}, 95% interval {low:.2f} to {high:.2f}",
    )  # fmt: skip


FIG_5_ONE = Claim(
    id="ood.fig-5.scenario-1",
    label="Fig. 5(a)",
    kind="figure",
    title="Scenario 1: monotone error",
    statement=r"""
For some directions the OOD error of TinyTransformers grows monotonically as the angle goes from 0 to $\pi$.""",
    checks=(
        Check("monotone curves", _occurs, ("monotone on [0, pi]", lambda f: f.half == "monotone"), role="criterion"),
    ),
    chapter=PAGE,
    note=_OPEN + " A curve is monotone if it never falls by more than a tenth of its range.",
)

FIG_5_TWO = Claim(
    id="ood.fig-5.scenario-2",
    label="Fig. 5(b)",
    kind="figure",
    title="Scenario 2: two peaks",
    statement=r"""
For some directions the OOD error of TinyTransformers has two peaks over a whole turn.""",
    checks=(
        Check("peaks over the turn", _occurs, ("two peaks on [0, 2 pi)", lambda f: f.peaks_turn == 2), role="criterion"),
        Check("peaks over half the turn", _occurs, ("two peaks on [0, pi]", lambda f: f.peaks_half >= 2), role="reading"),
    ),
    chapter=PAGE,
    note=(
        _OPEN + " The explanation by $\\cos^2\\theta$ gives one peak on $[0,\\pi]$ and two on $[0,2\\pi]$, so the whole turn is the reading "
        "checked; two peaks within half a turn is the other."
    ),
)  # fmt: skip


@remember
def _tuned(depth: int, pair: str, fast: bool) -> np.ndarray:
    """Forgetting at the paper's rule, shape (models, gammas); the fast form reads the stored table."""
    stored = _stored("forgetting") if fast else None
    if stored is None:
        stored, _ = tiny.forgetting_tables(
            _ARCH, seeds=SEEDS, layers=(depth,), gammas=GAMMAS, tracked=(), pairs=(pair,)
        )
    frame = stored.frame[(stored.frame.layers == depth) & (stored.frame.pair == pair)]
    return frame.pivot(index="seed", columns="gamma", values="forgetting")[list(GAMMAS)].to_numpy()


def _signed(case: tuple[str, tuple[float, ...], str], fast: bool) -> Evidence:
    """Whether the mean forgetting has the sign claimed, at every correlation and depth."""
    pair, gammas, wanted = case
    parts, signs, models = [], [], 0
    depths = (1,) if wanted.endswith("1") else _depths(fast, pair)
    for depth in depths:
        values = _tuned(depth, pair, fast)
        models = len(values)
        for gamma in gammas:
            column = values[:, GAMMAS.index(gamma)]
            mean, low, high = (float(x) for x in tiny.interval(column))
            signs.append(tiny.sign(column))
            parts.append(f"{depth} layers, gamma = {gamma:g}: {mean:.3g} ({low:.3g} to {high:.3g})")
    passed = (
        True if all(s == wanted[0] for s in signs) else None if all(s in (wanted[0], "0") for s in signs) else False
    )
    return Evidence(
        passed, "monte-carlo", models * len(signs), f"{models} models per depth, K = 2, d = 8, eps = 0.01",
        dtype="float32", seed=None if fast else SEEDS[0], tolerance_source="95% Student interval over models", detail="; ".join(parts),
    )  # fmt: skip


def _vanishes(case: tuple[str, float], fast: bool) -> Evidence:
    """Forgetting at gamma = 1 as a share of the largest mean forgetting."""
    pair, most = case
    shares, models = [], 0
    for depth in _depths(fast, pair):
        values = _tuned(depth, pair, fast)
        models, mean = len(values), values.mean(0)
        shares.append(abs(mean[-1]) / np.abs(mean).max())
    return Evidence(
        max(shares) <= most, "monte-carlo", models * len(shares), f"{models} models per depth, gamma = 1",
        dtype="float32", seed=None if fast else SEEDS[0], residual=float(max(shares)), tolerance=most, tolerance_source="criterion",
        detail=f"at most {max(shares):.2g} of the largest mean forgetting",
    )  # fmt: skip


def _ranks_agree(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Spearman's correlation along the last axis."""
    from scipy.stats import rankdata

    a, b = (ranks - ranks.mean(-1, keepdims=True) for ranks in (rankdata(one, axis=-1), rankdata(other, axis=-1)))
    return np.asarray((a * b).sum(-1) / np.sqrt((a * a).sum(-1) * (b * b).sum(-1)))


def _alike(case: tuple[str, float], fast: bool) -> Evidence:
    """Rank correlation between a pair's mean curve and the linear pair's, of the same seeds."""
    pair, least = case
    parts, lows, highs, models = [], [], [], 0
    for depth in _depths(fast, pair):
        curves, linear = _tuned(depth, pair, fast), _tuned(depth, _LINEAR, fast)
        models = len(curves)
        again = np.random.default_rng(SEEDS[0]).integers(models, size=(2000, models))
        found = float(_ranks_agree(curves.mean(0), linear.mean(0)))
        low, high = np.quantile(_ranks_agree(curves[again].mean(1), linear[again].mean(1)), (0.025, 0.975))
        parts.append(f"{depth} layers: {found:.2f} ({low:.2f} to {high:.2f})")
        lows.append(float(low))
        highs.append(float(high))
    return Evidence(
        True if min(lows) >= least else False if min(highs) < least else None,
        "monte-carlo", models * len(parts), f"{len(GAMMAS)} correlations, {models} models per depth",
        dtype="float32", seed=SEEDS[0], margin=min(lows) - least, tolerance=least,
        tolerance_source="criterion; 95% bootstrap interval over models",
        detail="rank correlation of the mean curves, " + "; ".join(parts),
    )  # fmt: skip


_LINEAR = "linear to linear"

FIG_6A_DEGRADES = Claim(
    id="ood.fig-6a.degrades",
    label="Fig. 6(a)",
    kind="figure",
    title="Forgetting when the correlation is near -1",
    statement=r"""
As in Fig. 2(b), fine-tuning the last layer makes the training domain worse when the correlation is close to $-1$, for 1, 2 and 3 layers.""",
    checks=(Check("sign at -1 and -0.75", _signed, (_LINEAR, (-1.0, -0.75), "+"), role="criterion"),),
    chapter=PAGE,
    note=_OPEN,
)

FIG_6A_IMPROVES = Claim(
    id="ood.fig-6a.improves",
    label="Fig. 6(a)",
    kind="figure",
    title="Improvement at moderate correlations",
    statement=r"""
As in Fig. 2(b), fine-tuning improves the training domain when the correlation is moderate ($-0.5$, 0 and $0.5$), for 1, 2 and 3 layers.""",
    checks=(Check("sign at -0.5, 0 and 0.5", _signed, (_LINEAR, (-0.5, 0.0, 0.5), "-"), role="criterion"),),
    chapter=PAGE,
    note=_OPEN + " Moderate is read as -0.5 to 0.5, where the one-layer theory has negative forgetting or nearly none.",
)

FIG_6A_ONE = Claim(
    id="ood.fig-6a.near-one",
    label="Fig. 6(a)",
    kind="figure",
    title="No forgetting at correlation 1",
    statement=r"""
As the correlation approaches 1 the forgetting is near 0.""",
    checks=(Check("share of the largest", _vanishes, (_LINEAR, 0.05), role="criterion"),),
    chapter=PAGE,
    note=_OPEN + " At correlation 1 the domains are equal and the rule holds before the first step.",
)

FIG_6B_SIDES = Claim(
    id="ood.fig-6b.sides",
    label="Fig. 6(b)",
    kind="figure",
    title="Positive forgetting at correlations of 0.75 either way",
    statement=r"""
For one layer, forgetting is positive at $\gamma=-0.75$ and $\gamma=0.75$.""",
    checks=(Check("sign at both", _signed, (_LINEAR, (-0.75, 0.75), "+1"), role="criterion"),),
    chapter=PAGE,
    note=_OPEN + " The one-layer theory has negative forgetting at +0.75: the text's own figure departs from it there.",
)

FIG_6B_MIDDLE = Claim(
    id="ood.fig-6b.middle",
    label="Fig. 6(b)",
    kind="figure",
    title="Negative forgetting without correlation",
    statement=r"""
For one layer, forgetting is negative at $\gamma=0$.""",
    checks=(Check("sign at 0", _signed, (_LINEAR, (0.0,), "-1"), role="criterion"),),
    chapter=PAGE,
    note=_OPEN,
)


def _figure_7(suffix: str, label: str, pair: str) -> Claim:
    return Claim(
        id=f"ood.fig-7.{suffix}",
        label=label,
        kind="figure",
        title=f"Forgetting, {pair} class",
        statement=rf"""
With function classes {pair}, forgetting depends on the correlation as it does between two linear classes: positive near $-1$, and
with mean curves ordered alike (rank correlation at least 0.7), for 1, 2 and 3 layers.""",
        checks=(
            Check("sign at -1 and -0.75", _signed, (pair, (-1.0, -0.75), "+"), role="criterion"),
            Check("order of the curves", _alike, (pair, 0.7), role="criterion"),
        ),
        chapter=PAGE,
        note=_OPEN + " The network class is a random two-layer ReLU network with 20 hidden units.",
    )


def _scaled(factor: float, fast: bool) -> Evidence:
    """One-layer losses under the network class's label covariance over those under the linear class's."""
    worst, cases = 0.0, 0
    for K in (2, 3, 5):
        covariance = torch.eye(K, dtype=torch.float64) * (1 - 1 / math.pi) + 1 / math.pi
        scores = 3 * torch.randn(20, K, K, dtype=torch.float64, generator=features.generator(K))
        law = balanced(K)
        linear = population.losses_and_descent(scores, law)
        network = population.losses_and_descent(scores, law, covariance)
        for a, b in zip(network[:2], linear[:2], strict=True):
            worst = max(worst, float((a - factor * b).abs().max()))
            cases += a.numel()
    return _below(worst, cases, tolerance=1e-12, region="K = 2, 3, 5, random scores, losses and gradients")


def _both_phases(subject: tuple[float, float, float], fast: bool) -> Evidence:
    """Forgetting with networks in both phases against that of the linear class, times factors of F, eps and eta."""
    size, at_eps, at_eta = subject
    law, K = balanced(2), 2
    covariance = torch.eye(K, dtype=torch.float64) * (1 - 1 / math.pi) + 1 / math.pi
    worst, gammas = 0.0, ((1.0, -0.75), (1.0, -0.3), (1.0, 0.5), (0.6, -0.4))
    for eps, eta in ((0.05, 0.5), (0.01, 0.1)):
        descend = partial(
            dynamics.gradient_descent, law=law, eta=eta, threshold=eps / K, covariance=covariance, engine="tensor"
        )
        trained = descend(torch.zeros(K, K, dtype=torch.float64)).scores
        before = population.losses_and_descent(trained, law, covariance)[0]
        for gamma in gammas:
            g = torch.tensor(gamma, dtype=torch.float64)
            M = torch.outer(g, g)
            tuned = descend(M * trained).scores
            after = population.losses_and_descent(trained + M * (tuned - M * trained), law, covariance)[0]
            linear = fine_tuning.fine_tune_gamma(gamma, at_eps * eps, at_eta * eta, start="trained").forgetting
            worst = max(worst, float((after - before - size * linear).abs().max()) / eps)
    return _below(worst, 2 * len(gammas), region="K = 2, four pairs, eps = 0.05 and 0.01, gradient descent in both phases",
                  detail=f"largest difference of F_v {worst:.3g} times eps")  # fmt: skip


def _kernel(value: float, fast: bool) -> Evidence:
    """E[max(0, g) max(0, h)] for independent standard normals, by quadrature of each factor."""
    from scipy.integrate import quad

    one = quad(lambda g: g * math.exp(-g * g / 2) / math.sqrt(2 * math.pi), 0, math.inf)[0]
    found = 2 * one * one
    return Evidence(
        abs(found - value) < 1e-9, "exact", 1, "two orthonormal features", residual=abs(found - value), tolerance=1e-9,
        tolerance_source="quadrature", detail=f"correlation of labels at two features {found:.10f}",
    )  # fmt: skip


FIG_7_THEORY = Claim(
    id="ood.fig-7.one-layer",
    label="Appendix B, for one layer of the theory's model",
    kind="text",
    title="For the one-layer model the network class only rescales the loss",
    statement=r"""
Labels of random two-layer ReLU networks at orthonormal features, scaled to variance 1, have correlation $1/\pi$; hence every loss and gradient of the
one-layer model is $s=1-1/\pi$ times that of the linear class. With networks in both phases its forgetting is $s$ times that of Fig. 2(b) at $\epsilon/s$ and
step size $s\eta$.""",
    hypotheses=("orthonormal features", "balanced prompts", "one-layer model (eq. 4)"),
    checks=(
        Check("losses and gradients", _scaled, tiny.network_scale(), mutants={"1 - 2/pi": 1 - 2 / math.pi, "no change": 1.0}),
        Check("forgetting", _both_phases, (tiny.network_scale(), 1 / tiny.network_scale(), tiny.network_scale()), mutants={
            "at the same eps": (tiny.network_scale(), 1.0, tiny.network_scale()), "not scaled": (1.0, 1 / tiny.network_scale(), tiny.network_scale()),
        }),
        Check("correlation of labels", _kernel, 1 / math.pi, mutants={"1/(2 pi)": 1 / (2 * math.pi)}),
    ),
    chapter=PAGE,
    note=(
        "The paper observes the likeness; for its own model it is an identity. With networks in fine-tuning alone only that phase's $\\epsilon$ and $\\eta$ change."
    ),
)  # fmt: skip

CLAIMS: tuple[Claim, ...] = (
    EIGEN_SPAN, EIGEN_FEATURES, EIGEN_FORM, EIGEN_TRAINED, COS2_ALPHA, COS2_ERROR, COS2_TRAINED, FIG_5_ONE, FIG_5_TWO,
    FIG_6A_DEGRADES, FIG_6A_IMPROVES, FIG_6A_ONE, FIG_6B_SIDES, FIG_6B_MIDDLE,
    _figure_7("linear-network", "Fig. 7(a)", "linear to network"),
    _figure_7("network-network", "Fig. 7(b)", "network to network"),
    FIG_7_THEORY,
)  # fmt: skip

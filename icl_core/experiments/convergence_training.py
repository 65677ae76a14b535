"""Section 5 of the convergence paper: one-block transformers in every plausible wiring, beside the one-layer model.

Appendix B names the parts of the network and leaves the wiring open. Each choice is a field of :class:`Wiring`. Choices
enter the forward pass as one number per model, so that all wirings of one width train in one batched computation.
Parameters, their layout and their initial values are those of :mod:`icl_core.networks`, whose networks are the special
cases ``norm="pre"``, ``"post"`` and ``"none"``. As there, a prompt of N tokens is computed on its K distinct tokens,
with the logarithms of their counts added to the logits.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from icl_core import _validate, features, networks, population, prompts, results
from icl_core.networks import Architecture
from icl_core.results import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NORMS = ("pre", "post", "feed-forward", "none")
SCORES = ("tokens", "inputs")
DISTRIBUTIONS: dict[str, tuple[float, ...]] = {"imbalanced": (0.8, 0.1, 0.1), "balanced": (1 / 3, 1 / 3, 1 / 3)}


@dataclass(frozen=True)
class Wiring:
    """What Appendix B leaves open about the network and its data.

    Parameters
    ----------
    residual : bool
        Whether attention and feed-forward network add to their input, as in a standard transformer.
    norm : {"pre", "post", "feed-forward", "none"}
        LayerNorm before each sublayer and the read-out; after each sublayer; on the input of the feed-forward network
        alone, as the sentence of Appendix B can be read; nowhere.
    self_key : bool
        Whether the query token is attended to as well; the theory masks it (Section 2.2).
    scores : {"tokens", "inputs"}
        Keys and queries see whole tokens, as in a standard transformer; or inputs only, with values that see labels
        only, as in the theory (eq. 3).
    projected : bool
        A trained linear map before the block; otherwise the block works on the d + 1 entries of a token.
    width : int, optional
        Dimension of the hidden states, d + 1 by default; another one needs ``projected``.
    ratio : int
        Hidden units of the feed-forward network over the width.
    start : float
        Weights start normal with standard deviation ``start / sqrt(fan in)``; the default is the spread of PyTorch's
        linear layers.
    fresh : bool
        Draw the M prompts anew in every epoch, instead of once as Appendix B says.

    Raises
    ------
    ValueError
        If an option is unknown or out of range.

    Notes
    -----
    Convergence paper, Appendix B.
    """

    residual: bool = True
    norm: str = "pre"
    self_key: bool = False
    scores: str = "tokens"
    projected: bool = False
    width: int | None = None
    ratio: int = 4
    start: float = 3**-0.5
    fresh: bool = False

    def __post_init__(self) -> None:
        _validate.choice("norm", self.norm, NORMS)
        _validate.choice("scores", self.scores, SCORES)
        _validate.integer("ratio", self.ratio, least=1)
        _validate.real("start", self.start, above=0.0)
        if self.width is not None:
            _validate.integer("width", self.width, least=2)
            if not self.projected:
                raise ValueError(f"width must be left out unless projected is True, got {self.width}")
        if self.scores == "inputs" and self.projected:
            raise ValueError("scores must be 'tokens' for a projected input, where labels and inputs are mixed")


def _name(wiring: Wiring) -> str:
    parts = ["residual" if wiring.residual else "no residual", f"norm {wiring.norm}"]
    parts += ["query attended"] if wiring.self_key else []
    parts += ["scores from inputs"] if wiring.scores == "inputs" else []
    return ", ".join(parts)


# Every combination of the four choices that change what the block can compute.
GRID: dict[str, Wiring] = {
    _name(wiring): wiring
    for wiring in (
        Wiring(residual, norm, self_key, scores)
        for residual, norm, self_key, scores in itertools.product((True, False), NORMS, (False, True), SCORES)
    )
}
# The literal sentence of Appendix B with the masking and the parameters of Section 2.2, and the usual transformer.
LITERAL = Wiring(residual=False, norm="feed-forward", scores="inputs")
USUAL = Wiring()
_CHANGES: dict[str, dict[str, Any]] = {
    "input projection": {"projected": True, "scores": "tokens"},
    "input projection to 32": {"projected": True, "width": 32, "scores": "tokens"},
    "feed-forward 1x": {"ratio": 1},
    "start x 0.1": {"start": 0.1 * 3**-0.5},
    "start x 1.7": {"start": 1.0},
    "fresh prompts": {"fresh": True},
}
# The other choices, one at a time.
SINGLE: dict[str, Wiring] = {
    f"{_name(base)}; {label}": replace(base, **change)
    for base in (USUAL, LITERAL)
    for label, change in _CHANGES.items()
    if not (base.scores == "inputs" and "projected" in change)
}
WIRINGS: dict[str, Wiring] = {**GRID, **SINGLE}


@dataclass(frozen=True)
class Setting:
    """The sizes of Section 5 and Appendix B.

    Parameters
    ----------
    d : int
        Dimension of the inputs.
    N : int
        Context tokens per prompt.
    M : int
        Prompts.
    epochs : int
        Full-batch steps.
    rate : float
        Learning rate of Adam.
    every : int
        Epochs between two evaluations on fresh prompts.

    Raises
    ------
    ValueError
        If a number is out of range.
    """

    d: int = 16
    N: int = 60
    M: int = 300
    epochs: int = 400
    rate: float = 0.002
    every: int = 20

    def __post_init__(self) -> None:
        for name, least in (("d", 3), ("N", 1), ("M", 2), ("epochs", 1), ("every", 1)):
            _validate.integer(name, getattr(self, name), least=least)
        _validate.real("rate", self.rate, above=0.0)


@dataclass(frozen=True)
class Data:
    """Prompts of several models. Labels stand for tasks: at orthonormal features ``w'v_k`` are independent normals.

    Parameters
    ----------
    labels : Tensor, shape (R, M, K)
        Value of the task at every feature.
    query : Tensor, shape (R, M)
        Feature of the query.
    counts : Tensor, shape (R, M, K)
        Context tokens of each feature.
    """

    labels: Tensor
    query: Tensor
    counts: Tensor

    @property
    def target(self) -> Tensor:
        """Label of the query, shape (R, M)."""
        return self.labels.gather(2, self.query.unsqueeze(2)).squeeze(2)


def draw(p: Sequence[float], N: int, M: int, seed: int, *, query: Tensor | None = None) -> Data:
    """Draw M prompts as Section 2.1 does, for one model (R = 1); ``query`` (M,) fixes the queries.

    Parameters
    ----------
    p : sequence of float, length K
        Probabilities of the features, for tokens and query.
    N, M, seed : int
        Context tokens, prompts, seed of every draw.
    """
    random = features.generator(seed)
    counts = prompts.multinomial_sample(p, N, M, generator=random).counts
    drawn = torch.multinomial(torch.tensor(list(p)), M, replacement=True, generator=random)
    labels = torch.randn(M, len(p), generator=random)
    return Data(labels[None], (drawn if query is None else query)[None], counts.float()[None])


def _stack(parts: Sequence[Data]) -> Data:
    return Data(
        torch.cat([x.labels for x in parts]), torch.cat([x.query for x in parts]), torch.cat([x.counts for x in parts])
    )


@dataclass(frozen=True)
class Models:
    """Wirings of one width as a batch: trained values, masks of what is trained, and one number per choice.

    Parameters
    ----------
    values : dict of str to Tensor, each (R, ...)
        Parameters by the names of :func:`icl_core.networks.layout`.
    trained : dict of str to Tensor
        0 where a parameter keeps its first value.
    gates : dict of str to Tensor, each (R, 1, 1)
        ``residual``; ``before1``, ``before2``, ``before3``, ``after1``, ``after2`` for the norms; ``self`` is what is
        added to the logit of the query's own token, 0 or minus infinity.
    """

    values: dict[str, Tensor]
    trained: dict[str, Tensor]
    gates: dict[str, Tensor]


def build(wirings: Sequence[Wiring], d: int, seeds: Sequence[int]) -> Models:
    """Draw one model per wiring and seed; a model depends on its own wiring and seed only.

    Raises
    ------
    ValueError
        If the wirings differ in width.
    """
    widths = {wiring.width or d + 1 for wiring in wirings}
    if len(widths) != 1:
        raise ValueError(f"wirings must have one width, got {sorted(widths)}")
    w = widths.pop()
    ratio = max(wiring.ratio for wiring in wirings)
    whole = Architecture(d=d, width=w, mlp_ratio=ratio, norm="pre", read_in="linear")
    shapes = networks.layout(whole)
    values = {name: torch.zeros(len(wirings), *shape) for name, (_, shape) in shapes.items()}
    trained = {name: torch.ones_like(value) for name, value in values.items()}
    for row, (wiring, seed) in enumerate(zip(wirings, seeds, strict=True)):
        mine = replace(whole, mlp_ratio=wiring.ratio, init_scale=wiring.start)
        for name, value in networks.views(mine, networks.initialise(mine, [seed])).items():
            # Hidden units beyond the wiring's own stay at zero by themselves: neither side passes a gradient.
            place: tuple[Any, ...] = (row, *(slice(n) for n in value.shape[1:]))
            values[name][place] = value[0]
        if not wiring.projected:
            values["in.weight"][row] = torch.eye(w, d + 1)
            trained["in.weight"][row] = trained["in.bias"][row] = 0
        if wiring.scores == "inputs":
            for part, kept in ((slice(2 * w), slice(d, w)), (slice(2 * w, 3 * w), slice(d))):
                values["0.qkv.weight"][row, part, kept] = trained["0.qkv.weight"][row, part, kept] = 0
    gates = {
        "residual": [wiring.residual for wiring in wirings],
        "before1": [wiring.norm == "pre" for wiring in wirings],
        "before2": [wiring.norm in ("pre", "feed-forward") for wiring in wirings],
        "before3": [wiring.norm == "pre" for wiring in wirings],
        "after1": [wiring.norm == "post" for wiring in wirings],
        "after2": [wiring.norm == "post" for wiring in wirings],
        "self": [0.0 if wiring.self_key else -math.inf for wiring in wirings],
    }
    return Models(values, trained, {name: torch.tensor(g).float().view(-1, 1, 1) for name, g in gates.items()})


def predict(models: Models, values: Mapping[str, Tensor], V: Tensor, data: Data) -> tuple[Tensor, Tensor]:
    """Predictions (R, M) and attention on each feature's tokens and on the query's own, (R, M, K + 1).

    Parameters
    ----------
    models : Models
    values : mapping of str to Tensor
        Parameters to use.
    V : Tensor, shape (R, d, K)
        Features.
    data : Data
    """
    p, gates = values, models.gates
    R, M, K = data.labels.shape
    w = p["head.weight"].shape[-1]

    def linear(name: str, x: Tensor, rows: slice = slice(None)) -> Tensor:
        return torch.baddbmm(p[f"{name}.bias"][:, None, rows], x, p[f"{name}.weight"][:, rows].mT)

    def norm(name: str, place: str, x: Tensor) -> Tensor:
        gate = gates[place]
        if not gate.any():
            return x
        y = torch.nn.functional.layer_norm(x, x.shape[-1:])
        y = y * p[f"{name}.weight"].unsqueeze(1) + p[f"{name}.bias"].unsqueeze(1)
        return y if gate.all() else torch.where(gate.bool(), y, x)

    # Read-in: what a token's input contributes, and what its label does.
    base = torch.baddbmm(p["in.bias"].unsqueeze(1), V.mT, p["in.weight"][:, :, :-1].mT)
    context = (base.unsqueeze(1) + data.labels.unsqueeze(3) * p["in.weight"][:, None, None, :, -1]).view(R, M * K, w)
    query = base.gather(1, data.query.unsqueeze(2).expand(-1, -1, w))
    # The query's token is a key as well, masked or not, so that both maskings share one computation.
    tokens = torch.cat([context.view(R, M, K, w), query.unsqueeze(2)], dim=2).view(R, M * (K + 1), w)
    keyed = linear("0.qkv", norm("0.norm1", "before1", tokens), slice(w, 3 * w)).view(R, M, K + 1, 2 * w)
    asked = linear("0.qkv", norm("0.norm1", "before1", query), slice(w))
    logits = (keyed[..., :w] * asked.unsqueeze(2)).sum(3) / math.sqrt(w)
    own = gates["self"].expand(R, M, 1)
    weights = torch.softmax(logits + torch.cat([data.counts.log(), own], dim=2), dim=2)
    mixed = (weights.unsqueeze(3) * keyed[..., w:]).sum(2)
    h = norm("0.norm1", "after1", gates["residual"] * query + linear("0.out", mixed))
    inner = torch.relu(linear("0.up", norm("0.norm2", "before2", h)))
    h = norm("0.norm2", "after2", gates["residual"] * h + linear("0.down", inner))
    return linear("head", norm("norm", "before3", h)).squeeze(2), weights


@dataclass(frozen=True)
class Curves:
    """What :func:`train` records, per epoch from 0 to the last.

    Parameters
    ----------
    loss : array, shape (R, T, K)
        ``L_k`` on the training prompts whose query is ``v_k``: half the mean squared error.
    fresh : array, shape (R, T', K)
        The same on prompts that are never trained on, at the epochs ``fresh_epochs``.
    attention : array, shape (R, T, K, K)
        Row k: mean attention on each feature over the training prompts with query ``v_k``.
    fresh_epochs : array, shape (T',)
    """

    loss: np.ndarray
    fresh: np.ndarray
    attention: np.ndarray
    fresh_epochs: np.ndarray


def _by_query(values: Tensor, query: Tensor, K: int) -> Tensor:
    """Means of ``values`` (R, M, ...) over the prompts of each query, shape (R, K, ...); nan without a prompt."""
    chosen = torch.nn.functional.one_hot(query, K).to(values.dtype)
    total = torch.einsum("rmk,rm...->rk...", chosen, values)
    held = chosen.sum(1)
    return total / held.view(*held.shape, *[1] * (values.ndim - 2))


def _jobs(names: Sequence[str], kinds: Sequence[str], seeds: Sequence[int]) -> list[tuple[str, str, int]]:
    return list(itertools.product(names, kinds, seeds))


# Models stepped together: their activations stay near the processor.
_GROUP = 24


def train(
    setting: Setting,
    jobs: Sequence[tuple[Wiring, Sequence[float], int]],
    *,
    group: int = _GROUP,
    progress: bool = False,
) -> Curves:
    """Train one model per (wiring, probabilities, seed) with Adam on the full batch.

    The seed decides features, prompts and first weights, so that wirings meet the same data.

    Parameters
    ----------
    setting : Setting
    jobs : sequence of (Wiring, probabilities, int)
        All with the same number of features.
    group : int
        Models stepped together; only the speed depends on it.
    progress : bool
        Write a line per group to standard error.

    Returns
    -------
    Curves
        In the order of ``jobs``.
    """
    import sys

    order = sorted(range(len(jobs)), key=lambda i: (jobs[i][0].width or setting.d + 1, jobs[i][0].norm, i))
    found: list[tuple[int, list[np.ndarray]]] = []
    by_width = [list(part) for _, part in itertools.groupby(order, key=lambda i: jobs[i][0].width or setting.d + 1)]
    chunks = [part[i : i + group] for part in by_width for i in range(0, len(part), group)]
    for done, chunk in enumerate(chunks):
        arrays = _train(setting, [jobs[i] for i in chunk])
        found += [(i, [a[row] for a in arrays]) for row, i in enumerate(chunk)]
        if progress:
            print(f"[{done + 1}/{len(chunks)}] groups of models trained", file=sys.stderr, flush=True)
    found.sort(key=lambda item: item[0])
    loss, fresh, attention = (np.stack([arrays[i] for _, arrays in found]) for i in range(3))
    return Curves(loss, fresh, attention, _fresh_epochs(setting))


def _fresh_epochs(setting: Setting) -> np.ndarray:
    return np.unique([*range(0, setting.epochs, setting.every), setting.epochs])


def _train(setting: Setting, jobs: Sequence[tuple[Wiring, Sequence[float], int]]) -> list[np.ndarray]:
    K = len(jobs[0][1])
    models = build([job[0] for job in jobs], setting.d, [job[2] for job in jobs])
    V = torch.stack([_features(setting.d, K, seed) for _, _, seed in jobs])

    def drawn(epoch: int, M: int, query: Tensor | None = None) -> Data:
        parts: dict[tuple[Any, ...], Data] = {}
        keys = [(tuple(p), seed, epoch if wiring.fresh else 0) for wiring, p, seed in jobs]
        for key in keys:
            if key not in parts:
                p, seed, at = key
                name = "training" if query is None else "evaluation"
                parts[key] = draw(p, setting.N, M, networks.derive_seed(seed, name, at), query=query)
        return _stack([parts[key] for key in keys])

    data = drawn(0, setting.M)
    test = drawn(0, 50 * K, torch.arange(K).repeat(50))
    redraw = any(job[0].fresh for job in jobs)
    values = {name: value.clone().requires_grad_() for name, value in models.values.items()}
    frozen = {name: mask for name, mask in models.trained.items() if not mask.all()}
    optimiser = torch.optim.Adam(values.values(), lr=setting.rate, foreach=True)
    tests = set(_fresh_epochs(setting).tolist())
    losses, fresh, attention = [], [], []
    for epoch in range(setting.epochs + 1):
        if epoch in tests:
            with torch.no_grad():
                guess, _ = predict(models, values, V, test)
                fresh.append(_by_query((guess - test.target) ** 2 / 2, test.query, K))
        if redraw and epoch:
            data = drawn(epoch, setting.M)
        guess, weights = predict(models, values, V, data)
        error = (guess - data.target) ** 2 / 2
        with torch.no_grad():
            losses.append(_by_query(error, data.query, K))
            attention.append(_by_query(weights[..., :K], data.query, K))
        if epoch == setting.epochs:
            break
        optimiser.zero_grad()
        # A sum over models of each one's mean: gradients of different models do not mix.
        error.mean(1).sum().backward()
        for name, mask in frozen.items():
            gradient = values[name].grad
            assert gradient is not None
            gradient.mul_(mask)
        optimiser.step()
    return [torch.stack(x, dim=1).numpy() for x in (losses, fresh, attention)]


def _features(d: int, K: int, seed: int) -> Tensor:
    return features.orthonormal(d, K, generator=features.generator(networks.derive_seed(seed, "features"))).float()


OPTIMISERS = ("adam, features at random", "adam, features along the axes", "gradient descent")


def one_layer(
    setting: Setting, p: Sequence[float], seeds: Sequence[int], optimiser: str = OPTIMISERS[0], eta: float = 1.0
) -> Curves:
    """The theory's one-layer model from Q = 0 on the same M sampled prompts, all seeds at once.

    Parameters
    ----------
    setting : Setting
    p : sequence of float
        Probabilities of the features.
    seeds : sequence of int
        Their features and prompts are those that :func:`train` draws.
    optimiser : str
        One of ``OPTIMISERS``. Adam moves every entry of Q at its own pace, so it sees the basis; gradient descent
        does not.
    eta : float
        Step size of gradient descent; Adam uses ``setting.rate``.

    Returns
    -------
    Curves
        ``fresh`` is the population loss, enumerated.
    """
    _validate.choice("optimiser", optimiser, OPTIMISERS)
    K = len(p)
    data = _stack([draw(p, setting.N, setting.M, networks.derive_seed(seed, "training", 0)) for seed in seeds])
    if optimiser == OPTIMISERS[1]:
        V = torch.eye(setting.d, K, dtype=torch.float64).expand(len(seeds), -1, -1)
    else:
        V = torch.stack([_features(setting.d, K, seed) for seed in seeds]).double()
    Q = torch.zeros(len(seeds), setting.d, setting.d, dtype=torch.float64, requires_grad=True)
    rule: torch.optim.Optimizer = (
        torch.optim.SGD([Q], lr=eta) if optimiser == OPTIMISERS[2] else torch.optim.Adam([Q], lr=setting.rate)
    )
    law = prompts.multinomial(p, setting.N)
    labels, log_counts = data.labels.double(), data.counts.double().log()
    losses, fresh, attention = [], [], []
    tests = set(_fresh_epochs(setting).tolist())
    for epoch in range(setting.epochs + 1):
        S = V.mT @ Q @ V
        logits = S.mT.gather(1, data.query.unsqueeze(2).expand(-1, -1, K)) + log_counts
        weights = torch.softmax(logits, dim=2)
        error = ((weights * labels).sum(2) - data.target.double()) ** 2 / 2
        with torch.no_grad():
            losses.append(_by_query(error, data.query, K))
            attention.append(_by_query(weights, data.query, K))
            if epoch in tests:
                fresh.append(population.losses(S, law) / law.query)
        if epoch < setting.epochs:
            rule.zero_grad()
            error.mean(1).sum().backward()
            rule.step()
    loss, outside, attn = (torch.stack(x, dim=1).detach().numpy() for x in (losses, fresh, attention))
    return Curves(loss, outside, attn, _fresh_epochs(setting))


@dataclass(frozen=True)
class Criteria:
    """What the words of Section 5 are taken to mean.

    Parameters
    ----------
    vanish : float
        "Nearly vanishing", "converge to zero": a loss below this share of that of the prediction 0, which is 1/2.
    quick : int
        "Quickly": within this many epochs.
    longer : float
        "A considerably longer period": this many times as long as the dominant feature's.
    fluctuate : float
        "Fluctuate": a rise by this share of 1/2 above an earlier value, before convergence.
    alike : float
        "In a similar manner": the longest time to convergence over the shortest is at most this.
    close : float
        "Close to 1": attention of at least this; "diminishes": what is left to the others.
    setback : float
        "Progressively increases": never this far below an earlier value.
    moves : float
        A "decrease" or "increase" of attention is at least this.
    """

    vanish: float = 0.05
    quick: int = 100
    longer: float = 2.0
    fluctuate: float = 0.05
    alike: float = 1.5
    close: float = 0.9
    setback: float = 0.1
    moves: float = 0.01


def _reached(loss: np.ndarray, level: float) -> float:
    """First epoch at which a curve (T,) is at most ``level``; inf if never."""
    hit = np.flatnonzero(loss <= level)
    return float(hit[0]) if hit.size else math.inf


def judge(loss: np.ndarray, attention: np.ndarray, kind: str, criteria: Criteria | None = None) -> dict[str, Any]:
    """Hold one run against the text of Section 5.

    Parameters
    ----------
    loss : array, shape (T, K)
        ``L_k`` per epoch.
    attention : array, shape (T, K, K)
        Row k: attention on each feature for query k.
    kind : {"imbalanced", "balanced"}
    criteria : Criteria, optional

    Returns
    -------
    dict
        Times and, as bools, the criteria. ``phases_printed`` uses the epochs of the text, ``phases_shape`` looks
        for the same pattern at any epochs.
    """
    c = criteria or Criteria()
    T, K = loss.shape
    when = [_reached(loss[:, k], c.vanish / 2) for k in range(K)]
    found: dict[str, Any] = {f"reached_{k + 1}": when[k] for k in range(K)}
    rises = []
    for k in range(K):
        curve = loss[: int(min(when[k], T - 1)) + 1, k]
        rises.append(float((curve - np.minimum.accumulate(curve)).max()))
    found |= {f"rise_{k + 1}": rises[k] for k in range(K)}
    own = np.stack([attention[:, k, k] for k in range(K)])
    setback = (np.maximum.accumulate(own, axis=1) - own).max()
    others = attention[-1] - np.diag(np.diagonal(attention[-1]))
    found["end_attention"] = float(own[:, -1].min())
    found["concentrates"] = bool(
        own[:, -1].min() >= c.close
        and others.max() <= 1 - c.close
        and setback <= c.setback
        and (own[:, -1] > own[:, 0]).all()
    )
    if kind == "balanced":
        found["all_converge"] = bool(max(when) < math.inf)
        found["alike"] = bool(max(when) < math.inf and max(when) <= c.alike * max(1.0, min(when)))
        return found
    found["dominant_quick"] = bool(when[0] <= c.quick)
    found["rare_converge"] = bool(max(when[1:]) < math.inf)
    found["rare_later"] = bool(max(when[1:]) < math.inf and min(when[1:]) >= c.longer * max(1.0, when[0]))
    found["rare_fluctuate"] = bool(min(rises[1:]) >= c.fluctuate / 2)
    row = attention[:, 1]
    found["phases_printed"] = bool(T > 150 and _falls_then_rises(row[10], row[100], row[150], c.moves))
    found["phases_shape"] = _pattern(row, c.moves)
    return found


def _falls_then_rises(start: np.ndarray, peak: np.ndarray, end: np.ndarray, moves: float) -> bool:
    """Whether Attn_1 falls while Attn_3 rises from ``start`` to ``peak``, and then Attn_2 rises while both fall."""
    first, second = peak - start, end - peak
    return bool(first[0] <= -moves and first[2] >= moves and second[1] >= moves and max(second[0], second[2]) <= -moves)


def _pattern(row: np.ndarray, moves: float) -> bool:
    """The same between some epoch, some later one and the last."""
    lowest = np.minimum.accumulate(row[:, 2])
    for peak in np.flatnonzero(row[:, 2] - lowest >= moves):
        start = int(np.argmin(row[: peak + 1, 2]))
        if _falls_then_rises(row[start], row[peak], row[-1], moves):
            return True
    return False


# Names of the criteria by distribution, in the order of the text.
TESTED: dict[str, tuple[str, ...]] = {
    "imbalanced": (
        "dominant_quick", "rare_converge", "rare_later", "rare_fluctuate", "concentrates", "phases_shape",
        "phases_printed",
    ),
    "balanced": ("all_converge", "alike", "concentrates"),
}  # fmt: skip


def tables(
    setting: Setting | None = None,
    wirings: Mapping[str, Wiring] | None = None,
    seeds: Sequence[int] = (0, 1, 2),
    *,
    criteria: Criteria | None = None,
    curve_every: int = 10,
    command: str | None = None,
    progress: bool = False,
) -> tuple[Table, Table]:
    """Train all wirings and the one-layer model, and hold every run against the text.

    Parameters
    ----------
    setting : Setting, optional
    wirings : mapping of str to Wiring, optional
        ``WIRINGS`` by default.
    seeds : sequence of int
    criteria : Criteria, optional
    curve_every : int
        Epochs between the points of the second table.
    command : str, optional
        Shell command that makes the tables again.
    progress : bool
        Write progress to standard error.

    Returns
    -------
    runs : Table
        One row per model and distribution: times, criteria, last losses on training and fresh prompts.
    curves : Table
        Medians over seeds: losses, attention, losses on fresh prompts (nan where not evaluated).
    """
    started = time.perf_counter()
    setting, criteria = setting or Setting(), criteria or Criteria()
    wirings = WIRINGS if wirings is None else wirings
    jobs = _jobs(list(wirings), list(DISTRIBUTIONS), seeds)
    trained = train(setting, [(wirings[n], DISTRIBUTIONS[kind], s) for n, kind, s in jobs], progress=progress)
    options = {name: asdict(wiring) for name, wiring in wirings.items()}
    rows, curves = _rows(jobs, trained, criteria, options), _medians(jobs, trained, curve_every)
    for optimiser in OPTIMISERS:
        name = f"one-layer model; {optimiser}"
        for kind, p in DISTRIBUTIONS.items():
            mine = _jobs([name], [kind], seeds)
            exact = one_layer(setting, p, seeds, optimiser)
            rows += _rows(mine, exact, criteria, {})
            curves += _medians(mine, exact, curve_every)
    about = results.provenance(
        {"setting": asdict(setting), "seeds": list(seeds), "criteria": asdict(criteria), "wirings": options},
        started=started, command=command,
    )  # fmt: skip
    columns = {
        "model": "wiring, or the one-layer model", "kind": "distribution of the features",
        "reached_k": "epoch at which L_k is nearly zero (inf: never)", "rise_k": "largest rise of L_k before that",
        "end_attention": "smallest Attn_k for query k at the end", "loss_k": "last L_k on the training prompts",
        "fresh_k": "last L_k on fresh prompts",
    }  # fmt: skip
    meaning = {
        "loss_k": "median L_k",
        "fresh_k": "median L_k on fresh prompts",
        "attn_kn": "median attention of query k on n",
    }
    return Table(pd.DataFrame(rows), about, columns), Table(pd.DataFrame(curves), about, meaning)


def _rows(
    jobs: Sequence[tuple[str, str, int]], found: Curves, criteria: Criteria, options: Mapping[str, Mapping[str, Any]]
) -> list[dict[str, Any]]:
    rows = []
    for i, (name, kind, seed) in enumerate(jobs):
        row = {"model": name, "kind": kind, "seed": seed, **options.get(name, {})}
        row |= judge(found.loss[i], found.attention[i], kind, criteria)
        row |= {f"loss_{k + 1}": float(x) for k, x in enumerate(found.loss[i, -1])}
        row |= {f"fresh_{k + 1}": float(x) for k, x in enumerate(found.fresh[i, -1])}
        rows.append({name: float(f"{x:.5g}") if isinstance(x, float) else x for name, x in row.items()})
    return rows


def _medians(jobs: Sequence[tuple[str, str, int]], found: Curves, every: int) -> list[dict[str, Any]]:
    rows = []
    K = found.loss.shape[-1]
    epochs = range(0, found.loss.shape[1], every)
    place = {int(epoch): i for i, epoch in enumerate(found.fresh_epochs)}
    for name, kind in dict.fromkeys((job[0], job[1]) for job in jobs):
        mine = [i for i, job in enumerate(jobs) if job[:2] == (name, kind)]
        loss, attention = np.median(found.loss[mine], axis=0), np.median(found.attention[mine], axis=0)
        fresh = np.median(found.fresh[mine], axis=0)
        for epoch in epochs:
            row: dict[str, Any] = {"model": name, "kind": kind, "epoch": epoch}
            row |= {f"loss_{k + 1}": loss[epoch, k] for k in range(K)}
            row |= {f"fresh_{k + 1}": fresh[place[epoch], k] if epoch in place else math.nan for k in range(K)}
            row |= {f"attn_{k + 1}{n + 1}": attention[epoch, k, n] for k in range(K) for n in range(K)}
            rows.append({key: float(f"{x:.4g}") if isinstance(x, np.floating) else x for key, x in row.items()})
    return rows


def shares(runs: pd.DataFrame) -> pd.DataFrame:
    """Share of seeds in which each model meets each criterion; columns are (kind, criterion)."""
    parts = {}
    for kind, names in TESTED.items():
        mine = runs[runs.kind == kind]
        parts[kind] = mine.groupby("model", sort=False)[list(names)].agg(lambda x: float(np.mean(x.astype(float))))
    return pd.concat(parts, axis=1)


INTERVENTIONS = ("none", "B1 held", "A held", "only A moves", "only B1 moves")


def interventions(
    p: Sequence[float] = (0.8, 0.1, 0.1), N: int = 60, eta: float = 1.0, steps: int = 400, every: int = 1
) -> Table:
    """Exact one-layer dynamics of query 2 with some scores held at zero (which weight drives which phase of Fig. 3).

    Parameters
    ----------
    p : sequence of 3 floats
        Probabilities of the features.
    N : int
        Context tokens; counts are enumerated.
    eta, steps, every : float, int, int
        Step size of gradient descent, number of steps, distance of records.

    Returns
    -------
    Table
        Scores A, B1, B3 of query 2 and its mean attention, per step and intervention.

    Notes
    -----
    Convergence paper, Section 5, "Multi-Phase Transition", and Definition D.2 for the scores.
    """
    started = time.perf_counter()
    law = prompts.multinomial(_validate.reals("p", p, above=0.0, below=1.0), N)
    if law.K != 3:
        raise ValueError(f"p must have 3 entries, got {law.K}")
    # Rows are keys: B1, A, B3.
    free = torch.tensor([[1, 1, 1], [0, 1, 1], [1, 0, 1], [0, 1, 0], [1, 0, 0]], dtype=torch.float64)
    hold = torch.zeros(len(free), 3, 3, dtype=torch.float64)
    hold[:, :, 1] = free
    scores = torch.zeros_like(hold)
    rows = []
    for step in range(steps + 1):
        if step % every == 0 or step == steps:
            attention = population.mean_attention(scores, law)[:, :, 1]
            for name, s, a in zip(INTERVENTIONS, scores[:, :, 1].tolist(), attention.tolist(), strict=True):
                rows.append({
                    "held": name, "step": step, "A": s[1], "B1": s[0], "B3": s[2],
                    "attn_1": a[0], "attn_2": a[1], "attn_3": a[2],
                })  # fmt: skip
        if step < steps:
            scores = scores + eta * hold * population.descent(scores, law)
    columns = {
        "held": "intervention", "step": "gradient steps", "A": "score of the query's feature", "B1": "of the dominant",
        "B3": "of the third", "attn_n": "mean attention on feature n",
    }  # fmt: skip
    parameters = {"p": list(p), "N": N, "eta": eta, "steps": steps}
    return Table(pd.DataFrame(rows), results.provenance(parameters, started=started), columns)


def exact(setting: Setting, kind: str, eta: float = 1.0) -> Table:
    """Gradient descent on the population loss (counts enumerated): L_k and attention per step, no sampling at all."""
    started = time.perf_counter()
    law = prompts.multinomial(DISTRIBUTIONS[kind], setting.N)
    times = list(range(0, setting.epochs + 1, max(1, setting.epochs // 80)))
    scores = torch.zeros(law.K, law.K, dtype=torch.float64)
    rows = []
    for step in range(times[-1] + 1):
        if step in times:
            loss, attention = population.losses(scores, law) / law.query, population.mean_attention(scores, law)
            row = {"epoch": step, **{f"loss_{k + 1}": x for k, x in enumerate(loss.tolist())}}
            row |= {f"attn_{k + 1}{n + 1}": float(attention[n, k]) for k in range(law.K) for n in range(law.K)}
            rows.append(row)
        scores = scores + eta * population.descent(scores, law)
    columns = {"epoch": "gradient steps", "loss_k": "L_k", "attn_kn": "mean attention of query k on feature n"}
    parameters = {"setting": asdict(setting), "kind": kind, "eta": eta}
    return Table(pd.DataFrame(rows), results.provenance(parameters, started=started), columns)


STORED = ("convergence-runs", "convergence-curves")


def store(folder: str, seeds: Sequence[int] = (0, 1, 2)) -> None:
    """Make the stored tables anew: all wirings at the sizes of the paper, about four minutes of one core."""
    command = "python -m icl_core.experiments.convergence_training"
    for name, table in zip(STORED, tables(seeds=seeds, command=command, progress=True), strict=True):
        results.write_table(f"{folder}/{name}", table)


# Short names of the criteria in pictures.
WORDS = {
    "dominant_quick": "L1 quickly near 0",
    "rare_converge": "L2, L3 converge",
    "rare_later": "... and much later",
    "rare_fluctuate": "L2, L3 fluctuate first",
    "concentrates": "attention concentrates",
    "phases_shape": "Attn 1, 3, 2 in turn",
    "phases_printed": "... at printed epochs",
    "all_converge": "all L converge",
    "alike": "in a similar manner",
}


def effects(runs: pd.DataFrame) -> pd.DataFrame:
    """Share of runs on ``GRID`` that meet each criterion, by the value of each choice alone.

    Returns
    -------
    DataFrame
        Index (choice, value), columns (kind, criterion).
    """
    grid = runs[runs.model.isin(list(GRID))]
    parts = []
    for choice in ("residual", "norm", "self_key", "scores"):
        by_kind = {
            kind: grid[grid.kind == kind].groupby(choice)[list(names)].agg(lambda x: float(np.mean(x.astype(float))))
            for kind, names in TESTED.items()
        }
        part = pd.concat(by_kind, axis=1)
        part.index = pd.MultiIndex.from_tuples(
            [(choice, str(value)) for value in part.index], names=["choice", "value"]
        )
        parts.append(part)
    return pd.concat(parts)


def figure_shares(table: pd.DataFrame) -> Figure:
    """Draw the share of seeds per model (row) and criterion (column), from :func:`shares`."""
    import matplotlib.pyplot as plt

    fig, ax = plt.subplots(figsize=(7.6, 1.8 + 0.21 * len(table)))
    image = ax.imshow(table.to_numpy(), vmin=0, vmax=1, aspect="auto", cmap="cividis")
    ax.set_xticks(range(table.shape[1]), [WORDS[name] for _, name in table.columns], rotation=60, ha="left", fontsize=9)
    ax.xaxis.tick_top()
    ax.set_yticks(range(len(table)), list(table.index), fontsize=8)
    ax.grid(visible=False)
    # The balanced columns stand apart from the imbalanced ones.
    ax.axvline(len(TESTED["imbalanced"]) - 0.5, color="white", lw=3)
    fig.colorbar(image, ax=ax, location="bottom", shrink=0.5, pad=0.01, label="share of seeds (left: imbalanced)")
    return fig


def figure_curves(curves: pd.DataFrame, models: Mapping[str, str], kind: str) -> Figure:
    """Draw losses (top) and attention of query 2 (bottom) over the epochs, one column per model (name -> title)."""
    import matplotlib.pyplot as plt

    fig, axes = plt.subplots(2, len(models), figsize=(7.6, 4.8), sharex=True, sharey="row", squeeze=False)
    for column, (model, title) in zip(axes.T, models.items(), strict=True):
        mine = curves[(curves.model == model) & (curves.kind == kind)]
        for k in (1, 2, 3):
            column[0].plot(mine.epoch, mine[f"loss_{k}"], label=f"$L_{k}$")
            column[1].plot(mine.epoch, mine[f"attn_2{k}"], label=f"Attn$_{k}$")
        column[0].set_title(title, fontsize=9)
        column[1].set_xlabel("epoch")
        column[1].set_ylim(0, 1)
    axes[0, 0].set_yscale("log")
    axes[0, 0].set_ylim(1e-3, 3)
    axes[0, 0].set_ylabel("loss on training prompts")
    axes[1, 0].set_ylabel("attention, query 2")
    for ax in axes[:, 0]:
        ax.legend(fontsize=8)
    return fig


def figure_interventions(table: Table) -> Figure:
    """Draw attention on features 1, 2, 3 over the steps, one line per intervention, from :func:`interventions`."""
    import matplotlib.pyplot as plt

    fig, axes = plt.subplots(1, 3, figsize=(7.6, 3.4), sharex=True)
    for n, ax in zip((1, 2, 3), axes, strict=True):
        for name, part in table.frame.groupby("held", sort=False):
            ax.plot(part.step, part[f"attn_{n}"], label=name)
        ax.set_title(f"attention on feature {n}", fontsize=9)
        ax.set_xlabel("gradient steps")
    axes[0].set_ylabel("attention of query 2")
    axes[1].legend(fontsize=8)
    return fig


if __name__ == "__main__":
    torch.set_num_threads(1)
    store("book/results")

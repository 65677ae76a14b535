"""TinyTransformer: a standard transformer on in-context regression prompts, many copies trained at once.

All models live in one flat tensor of shape (M, P): a row is a model. Forward and backward passes are written by hand
as batched matrix products with the model as leading dimension, so that a step costs the same few dozen calls for one
model as for hundreds, and the optimiser works on the flat tensor as a whole. Two exact identities save work:

* without positions and label noise the tokens of one feature are equal, so a prompt of N tokens is a prompt of its K
  distinct tokens whose attention logits are raised by the logarithm of their counts;
* if only context tokens are keys, the context does not see the query, so that one pass over it serves all K queries,
  and in the last layer nothing but the query's row is needed.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from icl_core import _validate
from icl_core.features import generator

NORMS = ("pre", "post", "none")
ACTIVATIONS = ("relu", "gelu", "none")
MASKS = ("context", "causal", "full")
READ_INS = ("linear", "identity")
CLASSES = ("linear", "network")
SCOPES = ("all", "last")
OPTIMISERS = ("adam", "sgd")
QUERIES = ("all", "one")
TOKENS = ("distinct", "all")
_NORM_EPS = 1e-5


@dataclass(frozen=True)
class Architecture:
    """What the OOD paper calls a standard one-head TinyTransformer, with what it leaves open as options.

    Parameters
    ----------
    d : int
        Dimension of the features; a token is (x, y) with d + 1 entries.
    width : int
        Dimension of the hidden states; the paper says 16.
    layers : int
        Number of blocks.
    norm : {"pre", "post", "none"}
        LayerNorm before each sublayer and before the read-out (as in GPT-2, what "standard" means today), after each
        residual sum (as in the first transformers), or nowhere (as in the theory).
    residual : bool
        Whether a sublayer's output is added to its input; standard transformers do.
    mlp : {"relu", "gelu", "none"}
        Activation of the feed-forward sublayer, or no such sublayer (as in the theory).
    mlp_ratio : int
        Hidden units of that sublayer over ``width``; 4 is the usual choice.
    positions : bool
        Learned position vectors. Off by default: the paper's prompts are sets, and its theory has none.
    length : int
        Number of context tokens N. Only positions, ``mask="full"`` and ``tokens="all"`` make it matter.
    mask : {"context", "causal", "full"}
        Who is attended to: context tokens only (the masking that the paper describes after eq. 2), each token's past
        and itself (GPT-2), or every token.
    read_in : {"linear", "identity"}
        A trained linear map from d + 1 to ``width`` (the paper's data have d = 8 and its model has width 16, so
        something must map them), or none, which needs ``width = d + 1``.
    init_scale : float
        Weights start as normal with standard deviation ``init_scale / sqrt(fan in)``, biases at 0. The default has
        the spread of PyTorch's linear layers, ``1 / sqrt(3)``; the theory starts at 0.

    Raises
    ------
    ValueError
        If an option is unknown or out of range, or ``read_in="identity"`` does not fit the width.

    Notes
    -----
    OOD paper, Appendices A and B.
    """

    d: int = 8
    width: int = 16
    layers: int = 1
    norm: str = "pre"
    residual: bool = True
    mlp: str = "relu"
    mlp_ratio: int = 4
    positions: bool = False
    length: int = 20
    mask: str = "context"
    read_in: str = "linear"
    init_scale: float = 3**-0.5

    def __post_init__(self) -> None:
        for name, least in (("d", 2), ("width", 2), ("layers", 1), ("mlp_ratio", 1), ("length", 1)):
            _validate.integer(name, getattr(self, name), least=least)
        for name, options in (("norm", NORMS), ("mlp", ACTIVATIONS), ("mask", MASKS), ("read_in", READ_INS)):
            _validate.choice(name, getattr(self, name), options)
        for name in ("residual", "positions"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name} must be True or False, got {getattr(self, name)!r}")
        _validate.real("init_scale", self.init_scale, above=0.0)
        if self.read_in == "identity" and self.width != self.d + 1:
            raise ValueError(f"width must be d + 1 = {self.d + 1} for read_in='identity', got {self.width}")


@dataclass(frozen=True)
class Training:
    """How models are trained; every number that, with the seeds, decides the result.

    Parameters
    ----------
    steps : int
        Largest number of optimiser steps.
    contexts : int
        Contexts drawn per step and model, each with a task of its own; all fresh, as the theory trains on the
        population loss.
    optimiser : {"adam", "sgd"}
        The paper names none for these experiments. Adam is what transformers are usually trained with; plain
        gradient steps are what the theory follows.
    learning_rate, beta1, beta2 : float
        The optimiser's; the last two are Adam's.
    labels : {"linear", "network"}
        Function class of the tasks: ``w'x``, or a random two-layer ReLU network (:func:`draw_labels`).
    hidden : int
        Hidden units of the network class.
    queries : {"all", "one"}
        Ask every feature of each context, or one drawn uniformly. The expected gradient is the same and the first
        has less noise, so it is the default; it needs ``mask="context"``.
    tokens : {"distinct", "all"}
        Compute on the K distinct tokens of a prompt, or on all N; the same function, so the quick one is the default.
        Positions and the causal mask need "all".
    scope : {"all", "last"}
        Train everything, or the last block only (OOD paper, Appendix A: "fine-tune on their last layer"); the
        read-out and the norm before it stay as they are then.
    eps : float or None
        Stop a model when every feature's loss on the first watched domain is at most eps / K (the paper's rule,
        Section 4), looked at every ``record_every`` steps. None trains for ``steps``.
    record_every : int
        Steps between records of the watched losses.
    tests : int
        Contexts, common to all models, behind each watched loss (:func:`evaluation_labels`).

    Raises
    ------
    ValueError
        If an option is unknown or out of range.
    """

    steps: int = 2000
    contexts: int = 16
    optimiser: str = "adam"
    learning_rate: float = 3e-3
    beta1: float = 0.9
    beta2: float = 0.999
    labels: str = "linear"
    hidden: int = 20
    queries: str = "all"
    tokens: str = "distinct"
    scope: str = "all"
    eps: float | None = None
    record_every: int = 50
    tests: int = 64

    def __post_init__(self) -> None:
        for name, least in (("steps", 0), ("contexts", 1), ("hidden", 1), ("record_every", 1), ("tests", 1)):
            _validate.integer(name, getattr(self, name), least=least)
        _validate.real("learning_rate", self.learning_rate, above=0.0)
        for name in ("beta1", "beta2"):
            _validate.real(name, getattr(self, name), least=0.0, below=1.0)
        if self.eps is not None:
            _validate.real("eps", self.eps, above=0.0)
        for name, options in (("labels", CLASSES), ("queries", QUERIES), ("tokens", TOKENS), ("scope", SCOPES)):
            _validate.choice(name, getattr(self, name), options)
        _validate.choice("optimiser", self.optimiser, OPTIMISERS)


@dataclass(frozen=True)
class Prompts:
    """A batch of prompts for M models.

    Parameters
    ----------
    labels : Tensor, shape (M, B, K)
        The task's value at each feature.
    query : Tensor, shape (M, B, R), optional
        Features asked for; None asks for every feature (R = K).
    order : Tensor, shape (M, B, N), optional
        The feature of each context token. None computes on the K distinct tokens instead.
    counts : Tensor, shape (B, K) or (M, B, K), optional
        How often each feature occurs, for distinct tokens; None means equally often.
    query_weights : Tensor, shape (R,), optional
        Probabilities of the queries; None means equal.
    """

    labels: Tensor
    query: Tensor | None = None
    order: Tensor | None = None
    counts: Tensor | None = None
    query_weights: Tensor | None = None


def derive_seed(*parts: Any) -> int:
    """Derive a seed from a seed and names, the same on every machine."""
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:6], "big")


def layout(arch: Architecture) -> dict[str, tuple[int, tuple[int, ...]]]:
    """Return where each parameter lies in a model's flat row: name -> (start, shape); a block's lie together."""
    w, hidden = arch.width, arch.width * arch.mlp_ratio
    shapes: dict[str, tuple[int, ...]] = {}
    if arch.read_in == "linear":
        shapes |= {"in.weight": (w, arch.d + 1), "in.bias": (w,)}
    if arch.positions:
        shapes["positions"] = (arch.length + 1, w)
    for i in range(arch.layers):
        block: dict[str, tuple[int, ...]] = {"qkv.weight": (3 * w, w), "qkv.bias": (3 * w,)}
        block |= {"out.weight": (w, w), "out.bias": (w,)}
        if arch.norm != "none":
            block |= {"norm1.weight": (w,), "norm1.bias": (w,)}
        if arch.mlp != "none":
            block |= {"up.weight": (hidden, w), "up.bias": (hidden,), "down.weight": (w, hidden), "down.bias": (w,)}
            if arch.norm != "none":
                block |= {"norm2.weight": (w,), "norm2.bias": (w,)}
        shapes |= {f"{i}.{name}": shape for name, shape in block.items()}
    if arch.norm == "pre":
        shapes |= {"norm.weight": (w,), "norm.bias": (w,)}
    shapes |= {"head.weight": (1, w), "head.bias": (1,)}
    places, start = {}, 0
    for name, shape in shapes.items():
        places[name] = (start, shape)
        start += math.prod(shape)
    return places


def size(arch: Architecture) -> int:
    """Return the number of parameters P of one model."""
    start, shape = list(layout(arch).values())[-1]
    return start + math.prod(shape)


def scope_range(arch: Architecture, scope: str) -> tuple[int, int]:
    """Return the slice ``[a, b)`` of a model's row that ``scope`` ("all" or "last") trains."""
    _validate.choice("scope", scope, SCOPES)
    if scope == "all":
        return 0, size(arch)
    mine = [place for name, place in layout(arch).items() if name.startswith(f"{arch.layers - 1}.")]
    return mine[0][0], mine[-1][0] + math.prod(mine[-1][1])


def views(arch: Architecture, flat: Tensor) -> dict[str, Tensor]:
    """Return the parameters inside ``flat`` (M, P) as views of shape (M, ...)."""
    if flat.ndim != 2 or flat.shape[1] != size(arch):
        raise ValueError(f"parameters must have shape (M, {size(arch)}) for this architecture, got {tuple(flat.shape)}")
    return {
        name: flat[:, start : start + math.prod(shape)].view(flat.shape[0], *shape)
        for name, (start, shape) in layout(arch).items()
    }


def initialise(
    arch: Architecture,
    seeds: Sequence[int],
    *,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Draw one model per seed, shape (M, P); a model depends on its own seed only."""
    flat = torch.zeros(len(seeds), size(arch), dtype=torch.float64)
    named = views(arch, flat)
    for row, seed in enumerate(seeds):
        random = generator(derive_seed(seed, "init"))
        for name, view in named.items():
            if "norm" in name and name.endswith("weight"):
                view[row] = 1.0
            elif not name.endswith("bias"):
                shape = view.shape[1:]
                scale = arch.init_scale / math.sqrt(arch.width if name == "positions" else shape[-1])
                view[row] = scale * torch.randn(shape, dtype=torch.float64, generator=random)
    return flat.to(device=device, dtype=dtype)


def draw_labels(
    kind: str, seed: int, shape: tuple[int, ...], K: int, *, hidden: int = 20, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Draw tasks and return their values at K orthonormal features, shape (..., K).

    For ``w ~ N(0, I)`` the values ``w'v_k`` at orthonormal features are independent standard normals whatever the
    features are, and so are the inputs ``g_i'v_k`` of a random network's hidden units. Labels can therefore be drawn
    without the features.

    Parameters
    ----------
    kind : {"linear", "network"}
        ``w'x``; or ``sqrt(2 / hidden) sum_i a_i max(0, g_i'x)`` with ``a_i ~ N(0, 1)`` and ``g_i ~ N(0, I)``, the
        two-layer networks usual in this literature, scaled so that labels have variance 1. Its labels at two
        orthonormal features have correlation 1/pi.
    seed : int
        Seed of the draw.

    Raises
    ------
    ValueError
        If ``kind`` is unknown.

    Notes
    -----
    OOD paper, Section 3 (w) and Appendix B (the two classes).
    """
    _validate.choice("kind", kind, CLASSES)
    random = generator(seed)
    if kind == "linear":
        return torch.randn(*shape, K, generator=random, dtype=dtype)
    units = torch.randn(*shape, hidden, K, generator=random, dtype=dtype).relu_()
    outer = torch.randn(*shape, 1, hidden, generator=random, dtype=dtype)
    return (outer @ units).squeeze(-2) * math.sqrt(2 / hidden)


def evaluation_labels(kind: str, tests: int, K: int, *, hidden: int = 20) -> Tensor:
    """Draw tasks for measuring losses, shape (tests, K), with the class's exact mean and second moments.

    The draw is made symmetric and then whitened. The loss of a model whose prediction is linear in the labels, such as
    the theory's, then has no sampling error at all, and a trained transformer's has little.

    Parameters
    ----------
    kind, hidden
        As in :func:`draw_labels`.
    tests : int
        Number of tasks; at least 2 K are drawn, an even number.
    """
    half = max(-(-_validate.integer("tests", tests, least=1) // 2), 2 * K)
    drawn = draw_labels(kind, derive_seed("tests", kind), (half,), K, hidden=hidden, dtype=torch.float64)
    covariance = torch.eye(K, dtype=torch.float64)
    if kind == "network":
        covariance = covariance * (1 - 1 / math.pi) + 1 / math.pi
    sample = torch.linalg.cholesky(drawn.mT @ drawn / half)
    exact = torch.linalg.solve_triangular(sample, drawn.mT, upper=False)
    drawn = (torch.linalg.cholesky(covariance) @ exact).mT
    return torch.cat([drawn, -drawn])


def forward(arch: Architecture, flat: Tensor, features: Tensor, prompts: Prompts) -> Tensor:
    """Predict the queries' labels.

    Parameters
    ----------
    arch : Architecture
    flat : Tensor, shape (M, P)
        Models.
    features : Tensor, shape (M, d, K)
        Feature set of each model.
    prompts : Prompts
        Prompts of each model.

    Returns
    -------
    Tensor, shape (M, B, R)

    Raises
    ------
    ValueError
        If shapes do not fit or the prompts' form does not suit the architecture.
    """
    _check(arch, flat, features, prompts)
    return _forward(arch, views(arch, flat), features, prompts, keep_from=arch.layers)[0]


def attention(arch: Architecture, flat: Tensor, features: Tensor, prompts: Prompts) -> list[dict[str, Tensor]]:
    """Return each layer's attention of the queries: ``logits`` and ``weights``, each (M, B, R, keys)."""
    _check(arch, flat, features, prompts)
    seen: list[dict[str, Tensor]] = []
    _forward(arch, views(arch, flat), features, prompts, keep_from=arch.layers, seen=seen)
    return seen


def loss_and_gradient(
    arch: Architecture, flat: Tensor, features: Tensor, prompts: Prompts, *, scope: str = "all"
) -> tuple[Tensor, Tensor]:
    """Return half the mean squared error of each model, shape (M,), and its gradient, shape (M, P).

    With ``scope="last"`` the gradient is filled in for the last block only and 0 elsewhere.

    Notes
    -----
    The loss is OOD paper, eq. 6, with the expectation replaced by the mean over the batch.
    """
    _check(arch, flat, features, prompts)
    _validate.choice("scope", scope, SCOPES)
    gradient = torch.zeros_like(flat)
    loss = _step(arch, views(arch, flat), views(arch, gradient), features, prompts, scope)
    return loss, gradient


def feature_losses(arch: Architecture, flat: Tensor, features: Tensor, labels: Tensor) -> Tensor:
    """Return ``L_k = (1/K) E[(prediction - y_k)^2 / 2 | query k]`` per model and feature, shape (M, K), float64.

    Parameters
    ----------
    arch, flat, features
        As in :func:`forward`.
    labels : Tensor, shape (B, K)
        Tasks, the same for every model, so that differences between models carry no sampling noise of their own.

    Notes
    -----
    OOD paper, Section 4: ``L_v^(tr)`` and, on other features, ``L_u^(ft)``; balanced prompts.
    """
    M, _, K = features.shape
    total = torch.zeros(M, K, dtype=torch.float64, device=flat.device)
    # Blocks bound the memory; every block has the same prompts for all models.
    block = max(1, 200_000 // max(1, M * K))
    labels = labels.to(device=flat.device, dtype=flat.dtype)
    for part in labels.split(block):
        shared = part.expand(M, *part.shape)
        if arch.mask == "context" and not arch.positions:
            predicted = forward(arch, flat, features, Prompts(shared))
        else:
            columns = []
            for k in range(K):
                asked = torch.full((M, part.shape[0], 1), k, device=flat.device)
                columns.append(forward(arch, flat, features, prompts_for(arch, shared, asked, "all", seeds=[k])))
            predicted = torch.cat(columns, dim=2)
        total += ((predicted - shared).double() ** 2).sum(1)
    return total / (2 * K * labels.shape[0])


def prompts_for(
    arch: Architecture, labels: Tensor, query: Tensor | None, tokens: str, *, seeds: Sequence[int]
) -> Prompts:
    """Complete ``labels`` (M, B, K) to balanced prompts of ``arch.length`` tokens.

    Where order matters it is drawn from ``seeds``, one per model or one for all.

    Raises
    ------
    ValueError
        If ``arch.length`` is not a multiple of K, or the form of the prompts does not suit the architecture.
    """
    M, B, K = labels.shape
    if tokens == "distinct":
        counts = torch.full((B, K), arch.length / K, dtype=labels.dtype, device=labels.device)
        return Prompts(labels, query, counts=counts if arch.mask == "full" else None)
    if arch.length % K:
        raise ValueError(f"length must be a multiple of K = {K} for balanced prompts, got {arch.length}")
    order = torch.arange(K).repeat_interleave(arch.length // K).expand(M, B, arch.length)
    if arch.positions or arch.mask == "causal":
        draws = [torch.rand(B, arch.length, generator=generator(seed)) for seed in seeds]
        order = order.gather(2, torch.stack(draws).argsort(-1).expand(M, -1, -1))
    return Prompts(labels, query, order=order.to(labels.device))


def _check(arch: Architecture, flat: Tensor, features: Tensor, prompts: Prompts) -> None:
    M = flat.shape[0]
    if features.ndim != 3 or features.shape[0] != M or features.shape[1] != arch.d:
        raise ValueError(f"features must have shape ({M}, {arch.d}, K), got {tuple(features.shape)}")
    K = features.shape[2]
    if prompts.labels.ndim != 3 or prompts.labels.shape[::2] != (M, K):
        raise ValueError(f"labels must have shape ({M}, B, {K}), got {tuple(prompts.labels.shape)}")
    B = prompts.labels.shape[1]
    for name, value in (("query", prompts.query), ("order", prompts.order)):
        if value is not None and value.shape[:2] != (M, B):
            raise ValueError(f"{name} must have shape ({M}, {B}, ...), got {tuple(value.shape)}")
    if prompts.order is not None and prompts.order.shape[2] != arch.length:
        raise ValueError(f"order must name length = {arch.length} tokens, got {prompts.order.shape[2]}")
    if arch.mask != "context" and (prompts.query is None or prompts.query.shape[2] != 1):
        raise ValueError(f"queries must be 'one' for mask={arch.mask!r}, whose queries are keys too")
    if prompts.order is None and (arch.positions or arch.mask == "causal"):
        raise ValueError("tokens must be 'all' for positions and the causal mask, which tell equal tokens apart")
    if prompts.order is None and arch.mask == "full" and prompts.counts is None:
        raise ValueError("counts must be given for distinct tokens with mask='full'")


def _linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Apply each model's affine map to (M, B, T, i)."""
    M, B, T, i = x.shape
    return torch.baddbmm(bias.unsqueeze(1), x.reshape(M, B * T, i), weight.mT).view(M, B, T, -1)


def _rows(x: Tensor) -> Tensor:
    return x.reshape(x.shape[0], -1, x.shape[-1])


def _accumulate(gy: Tensor, x: Tensor, gweight: Tensor, gbias: Tensor) -> None:
    """Add an affine map's parameter gradients to ``gweight`` and ``gbias``."""
    flat = _rows(gy)
    # Not baddbmm_: into a strided view it falls back to one small product per model.
    gweight += torch.bmm(flat.mT, _rows(x))
    gbias += flat.sum(1)


def _linear_back(gy: Tensor, x: Tensor, weight: Tensor, gweight: Tensor, gbias: Tensor) -> Tensor:
    """Add the map's parameter gradients; return the gradient of its input."""
    _accumulate(gy, x, gweight, gbias)
    return torch.bmm(_rows(gy), weight).view(x.shape)


def _norm(x: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
    y, mean, rstd = torch.native_layer_norm(x, x.shape[-1:], None, None, _NORM_EPS)
    return y, (x, mean, rstd)


def _norm_back(gy: Tensor, saved: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    x, mean, rstd = saved
    return torch.ops.aten.native_layer_norm_backward(
        gy.contiguous(), x, x.shape[-1:], mean, rstd, None, None, [True, False, False]
    )[0]


def _fold(weight: Tensor, bias: Tensor, gain: Tensor | None, shift: Tensor | None) -> tuple[Tensor, Tensor]:
    """Absorb a norm's gain and shift into the affine map after it: exact, and it saves passes over activations."""
    if gain is None or shift is None:
        return weight, bias
    return weight * gain.unsqueeze(1), torch.baddbmm(bias.unsqueeze(2), weight, shift.unsqueeze(2)).squeeze(2)


def _unfold(
    gw: Tensor, gb: Tensor, weight: Tensor, gain: Tensor, shift: Tensor, into: tuple[Tensor, Tensor, Tensor, Tensor]
) -> None:
    """Turn the gradients of a folded map into those of the map and the norm."""
    gweight, gbias, ggain, gshift = into
    gweight += torch.baddbmm(gw * gain.unsqueeze(1), gb.unsqueeze(2), shift.unsqueeze(1))
    gbias += gb
    ggain += (gw * weight).sum(1)
    gshift += torch.bmm(gb.unsqueeze(1), weight).squeeze(1)


def _attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Return the output (M, B, T, w), the weights (M * B, T, keys), and the logits, for ``q`` (M, B, T, w)."""
    M, B, T, w = q.shape
    keys = k.shape[2]
    logits = torch.bmm(q.reshape(M * B, T, w), k.reshape(M * B, keys, w).mT)
    if bias is not None:
        logits = (logits.view(M, B, T, keys) + bias).view(M * B, T, keys)
    weights = torch.softmax(logits, dim=-1)
    return torch.bmm(weights, v.reshape(M * B, keys, w)).view(M, B, T, w), weights, logits


def _attend_back(go: Tensor, q: Tensor, k: Tensor, v: Tensor, weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of q, k and v."""
    M, B, T, w = q.shape
    keys = k.shape[2]
    flat = go.reshape(M * B, T, w)
    gv = torch.bmm(weights.mT, flat)
    gweights = torch.bmm(flat, v.reshape(M * B, keys, w).mT)
    glogits = torch.ops.aten._softmax_backward_data(gweights, weights, -1, weights.dtype)
    gq = torch.bmm(glogits, k.reshape(M * B, keys, w))
    gk = torch.bmm(glogits.mT, q.reshape(M * B, T, w))
    return gq.view(M, B, T, w), gk.view(M, B, keys, w), gv.view(M, B, keys, w)


def _tokens(arch: Architecture, p: Mapping[str, Tensor], features: Tensor, prompts: Prompts) -> dict[str, Any]:
    """Read the prompts in: context (M, B, C, w) and query (M, B or 1, R, w) hidden states, and what made them."""
    M, _, K = features.shape
    labels = prompts.labels
    if arch.read_in == "linear":
        weight = p["in.weight"]
        base = torch.baddbmm(p["in.bias"].unsqueeze(1), features.mT, weight[:, :, :-1].mT)
        by_label = weight[:, :, -1]
    else:
        base = torch.cat([features.mT, features.new_zeros(M, K, 1)], dim=2)
        by_label = features.new_zeros(M, arch.width)
        by_label[:, -1] = 1
    w = arch.width
    if prompts.order is None:
        values = labels
        context = base.unsqueeze(1) + labels.unsqueeze(3) * by_label[:, None, None]
    else:
        B, N = prompts.order.shape[1:]
        values = labels.gather(2, prompts.order)
        context = base.gather(1, prompts.order.reshape(M, B * N, 1).expand(-1, -1, w)).view(M, B, N, w)
        context = context + values.unsqueeze(3) * by_label[:, None, None]
    if prompts.query is None:
        # The query's token does not depend on the task: one copy serves all prompts up to the first attention.
        query = base.unsqueeze(1)
    else:
        B, R = prompts.query.shape[1:]
        query = base.gather(1, prompts.query.reshape(M, B * R, 1).expand(-1, -1, w)).view(M, B, R, w)
    if arch.positions:
        places = p["positions"]
        context = context + places[:, None, :-1]
        query = query + places[:, None, -1:]
    return {"context": context, "query": query, "values": values}


def _tokens_back(
    arch: Architecture,
    g: Mapping[str, Tensor],
    features: Tensor,
    prompts: Prompts,
    values: Tensor,
    gcontext: Tensor,
    gquery: Tensor,
) -> None:
    M, _, K = features.shape
    w = arch.width
    if arch.positions:
        g["positions"][:, :-1] += gcontext.sum(1)
        g["positions"][:, -1] += gquery.sum((1, 2))
    if arch.read_in == "identity":
        return
    gbase = torch.zeros(M, K, w, dtype=gcontext.dtype, device=gcontext.device)
    for index, part in ((prompts.order, gcontext), (prompts.query, gquery)):
        if index is None:
            gbase += part.sum(1)
        else:
            gbase.scatter_add_(1, index.reshape(M, -1, 1).expand(-1, -1, w), _rows(part))
    g["in.weight"][:, :, :-1] += torch.bmm(gbase.mT, features.mT)
    g["in.weight"][:, :, -1] += torch.bmm(values.reshape(M, 1, -1), _rows(gcontext)).squeeze(1)
    g["in.bias"] += gbase.sum(1)


def _biases(arch: Architecture, prompts: Prompts, dtype: torch.dtype) -> tuple[Tensor | None, Tensor | None]:
    """Return what is added to the logits of context rows and of query rows: masks and logarithms of counts."""
    device = prompts.labels.device
    if arch.mask == "causal":
        return torch.full((arch.length, arch.length), -math.inf, dtype=dtype, device=device).triu_(1), None
    if prompts.counts is None:
        return None, None
    counts = prompts.counts.to(dtype)
    counts = (counts if counts.ndim == 3 else counts.unsqueeze(0)).unsqueeze(2)
    if arch.mask == "full":
        counts = torch.cat([counts, torch.ones_like(counts[..., :1])], dim=3)
    return counts.log(), counts.log()


def _act(arch: Architecture, x: Tensor) -> Tensor:
    return torch.relu(x) if arch.mlp == "relu" else torch.nn.functional.gelu(x)


def _act_back(arch: Architecture, gy: Tensor, x: Tensor) -> Tensor:
    if arch.mlp == "relu":
        return torch.ops.aten.threshold_backward(gy, x, 0)
    return torch.ops.aten.gelu_backward(gy, x)


def _folded(arch: Architecture, p: Mapping[str, Tensor], i: int) -> dict[str, Tensor]:
    """Return block i's maps after the norms, with the norms' parameters and the attention's scale folded in."""
    pre = arch.norm == "pre"
    qkv = _fold(
        p[f"{i}.qkv.weight"],
        p[f"{i}.qkv.bias"],
        p[f"{i}.norm1.weight"] if pre else None,
        p[f"{i}.norm1.bias"] if pre else None,
    )
    weight, bias = (qkv[0], qkv[1]) if pre else (qkv[0].clone(), qkv[1].clone())
    weight[:, : arch.width] *= arch.width**-0.5
    bias[:, : arch.width] *= arch.width**-0.5
    maps = {"qkv.weight": weight, "qkv.bias": bias}
    if arch.mlp != "none":
        maps["up.weight"], maps["up.bias"] = _fold(
            p[f"{i}.up.weight"],
            p[f"{i}.up.bias"],
            p[f"{i}.norm2.weight"] if pre else None,
            p[f"{i}.norm2.bias"] if pre else None,
        )
    return maps


def _after(arch: Architecture, p: Mapping[str, Tensor], name: str, x: Tensor, update: Tensor) -> tuple[Tensor, Any]:
    """Close a sublayer: residual sum, and the norm after it where there is one."""
    total = x + update if arch.residual else update
    if arch.norm != "post":
        return total, None
    y, saved = _norm(total)
    return y * p[f"{name}.weight"][:, None, None] + p[f"{name}.bias"][:, None, None], (y, saved)


def _after_back(
    arch: Architecture, p: Mapping[str, Tensor], g: Mapping[str, Tensor], name: str, gy: Tensor, saved: Any
) -> Tensor:
    if arch.norm != "post":
        return gy
    y, norm = saved
    g[f"{name}.weight"].add_((gy * y).sum((1, 2)))
    g[f"{name}.bias"].add_(gy.sum((1, 2)))
    return _norm_back(gy * p[f"{name}.weight"][:, None, None], norm)


def _before(arch: Architecture, x: Tensor) -> tuple[Tensor, Any]:
    return _norm(x) if arch.norm == "pre" else (x, None)


def _before_back(arch: Architecture, gy: Tensor, saved: Any) -> Tensor:
    return _norm_back(gy, saved) if arch.norm == "pre" else gy


def _forward(
    arch: Architecture,
    p: Mapping[str, Tensor],
    features: Tensor,
    prompts: Prompts,
    *,
    keep_from: int,
    seen: list[dict[str, Tensor]] | None = None,
) -> tuple[Tensor, dict[str, Any]]:
    """Predictions (M, B, R), and what the backward pass needs of the blocks from ``keep_from`` on."""
    w = arch.width
    start = _tokens(arch, p, features, prompts)
    context, query = start["context"], start["query"]
    B = context.shape[1]
    bias_c, bias_q = _biases(arch, prompts, context.dtype)
    tape: list[dict[str, Any]] = []
    for i in range(arch.layers):
        last = i == arch.layers - 1
        maps = _folded(arch, p, i)
        weight, bias = maps["qkv.weight"], maps["qkv.bias"]
        save: dict[str, Any] = {"maps": maps, "streams": {}}
        nc, save["nc"] = _before(arch, context)
        nq, save["nq"] = _before(arch, query)
        # The last block's context is needed as keys and values only.
        first = w if last else 0
        pc = _linear(nc, weight[:, first:], bias[:, first:])
        kc, vc = pc[..., w - first : 2 * w - first], pc[..., 2 * w - first :]
        keys, values = kc, vc
        if arch.mask == "context":
            qq = _linear(nq, weight[:, :w], bias[:, :w])
        else:
            pq = _linear(nq, weight, bias)
            qq = pq[..., :w]
            keys, values = torch.cat([kc, pq[..., w : 2 * w]], 2), torch.cat([vc, pq[..., 2 * w :]], 2)
        save |= {"x_c": nc, "x_q": nq}
        streams = {"q": (query, qq.expand(-1, B, -1, -1), keys, values, bias_q)}
        if not last:
            own = (keys, values) if arch.mask == "full" else (kc, vc)
            streams["c"] = (context, pc[..., :w], *own, bias_c)
        outcome = {}
        for name, (x, q, k, v, logit_bias) in streams.items():
            o, a, logits = _attend(q, k, v, logit_bias)
            if seen is not None and name == "q":
                shape = (x.shape[0], B, *a.shape[1:])
                seen.append({"logits": logits.view(shape), "weights": a.view(shape)})
            update = _linear(o, p[f"{i}.out.weight"], p[f"{i}.out.bias"])
            h, after1 = _after(arch, p, f"{i}.norm1", x, update)
            kept: dict[str, Any] = {"attend": (q, k, v, a), "o": o, "after1": after1}
            if arch.mlp != "none":
                n, kept["before2"] = _before(arch, h)
                u = _linear(n, maps["up.weight"], maps["up.bias"])
                r = _act(arch, u)
                h, kept["after2"] = _after(
                    arch, p, f"{i}.norm2", h, _linear(r, p[f"{i}.down.weight"], p[f"{i}.down.bias"])
                )
                kept |= {"n": n, "u": u, "r": r}
            outcome[name] = h
            save["streams"][name] = kept
        query = outcome["q"]
        context = outcome.get("c", context)
        tape.append(save if i >= keep_from else {})
    n, final = _before(arch, query)
    pre = arch.norm == "pre"
    head, head_bias = _fold(
        p["head.weight"], p["head.bias"], p["norm.weight"] if pre else None, p["norm.bias"] if pre else None
    )
    predicted = _linear(n, head, head_bias).squeeze(3)
    return predicted, {"tape": tape, "start": start, "n": n, "final": final, "head": head}


def _step(
    arch: Architecture,
    p: Mapping[str, Tensor],
    g: Mapping[str, Tensor],
    features: Tensor,
    prompts: Prompts,
    scope: str,
) -> Tensor:
    """Add the loss's gradient to the views ``g`` and return the loss of each model, shape (M,)."""
    w, everything = arch.width, scope == "all"
    lowest = 0 if everything else arch.layers - 1
    predicted, saved = _forward(arch, p, features, prompts, keep_from=lowest)
    target = prompts.labels if prompts.query is None else prompts.labels.gather(2, prompts.query)
    error = predicted - target
    B, R = error.shape[1:]
    if prompts.query_weights is None:
        gy = error / (B * R)
    else:
        gy = error * (prompts.query_weights / B)
    loss = 0.5 * (gy * error).sum((1, 2))

    gy = gy.unsqueeze(3)
    pre = arch.norm == "pre"
    if everything:
        if pre:
            gw, gb = torch.zeros_like(p["head.weight"]), torch.zeros_like(p["head.bias"])
            _accumulate(gy, saved["n"], gw, gb)
            into = (g["head.weight"], g["head.bias"], g["norm.weight"], g["norm.bias"])
            _unfold(gw, gb, p["head.weight"], p["norm.weight"], p["norm.bias"], into)
        else:
            _accumulate(gy, saved["n"], g["head.weight"], g["head.bias"])
    gquery = _before_back(arch, gy * saved["head"][:, None], saved["final"])
    gcontext: Tensor | None = None

    for i in range(arch.layers - 1, lowest - 1, -1):
        last = i == arch.layers - 1
        save = saved["tape"][i]
        maps = save["maps"]
        incoming = {"q": gquery} if last else {"q": gquery, "c": gcontext}
        g_up = (torch.zeros_like(maps["up.weight"]), torch.zeros_like(maps["up.bias"])) if arch.mlp != "none" else None
        gqkv, gqkv_bias = torch.zeros_like(maps["qkv.weight"]), torch.zeros_like(maps["qkv.bias"])
        through: dict[str, Tensor] = {}
        gparts: dict[str, tuple[Tensor, Tensor, Tensor]] = {}
        for name, gh in incoming.items():
            kept = save["streams"][name]
            assert gh is not None
            if g_up is not None:
                gtotal = _after_back(arch, p, g, f"{i}.norm2", gh, kept["after2"])
                gr = _linear_back(gtotal, kept["r"], p[f"{i}.down.weight"], g[f"{i}.down.weight"], g[f"{i}.down.bias"])
                gu = _act_back(arch, gr, kept["u"])
                gn = _linear_back(gu, kept["n"], maps["up.weight"], *g_up)
                gh = _before_back(arch, gn, kept["before2"])
                gh = gh + gtotal if arch.residual else gh
            gtotal = _after_back(arch, p, g, f"{i}.norm1", gh, kept["after1"])
            go = _linear_back(gtotal, kept["o"], p[f"{i}.out.weight"], g[f"{i}.out.weight"], g[f"{i}.out.bias"])
            gparts[name] = _attend_back(go, *kept["attend"])
            through[name] = gtotal

        # Collect what reached each stream's projections: rows are (q, k, v).
        C = save["x_c"].shape[2]
        _, gk, gv = gparts["q"]
        gqq = gparts["q"][0]
        if save["x_q"].shape[1] == 1 and gqq.shape[1] > 1:
            gqq = gqq.sum(1, keepdim=True)
        gk_c, gv_c = gk[:, :, :C], gv[:, :, :C]
        gkv_q = None if arch.mask == "context" else [gk[:, :, C:], gv[:, :, C:]]
        if not last:
            gq_c, gk2, gv2 = gparts["c"]
            gk_c, gv_c = gk_c + gk2[:, :, :C], gv_c + gv2[:, :, :C]
            if arch.mask == "full" and gkv_q is not None:
                gkv_q = [gkv_q[0] + gk2[:, :, C:], gkv_q[1] + gv2[:, :, C:]]
        first = w if last else 0
        gpc = torch.cat([gk_c, gv_c] if last else [gq_c, gk_c, gv_c], dim=3)
        weight = maps["qkv.weight"]
        rows = w if gkv_q is None else 3 * w
        gpq = gqq if gkv_q is None else torch.cat([gqq, *gkv_q], dim=3)
        into_c = (gpc, save["x_c"], gqkv[:, first:], gqkv_bias[:, first:])
        into_q = (gpq, save["x_q"], gqkv[:, :rows], gqkv_bias[:, :rows])
        for into in (into_c, into_q):
            _accumulate(*into)

        for part in (gqkv, gqkv_bias):
            part[:, :w] *= w**-0.5
        for name, gw, gb, norm in (("qkv", gqkv, gqkv_bias, "norm1"), *((("up", *g_up, "norm2"),) if g_up else ())):
            gweight, gbias = g[f"{i}.{name}.weight"], g[f"{i}.{name}.bias"]
            if pre:
                into = (gweight, gbias, g[f"{i}.{norm}.weight"], g[f"{i}.{norm}.bias"])
                plain = p[f"{i}.{name}.weight"]
                _unfold(gw, gb, plain, p[f"{i}.{norm}.weight"], p[f"{i}.{norm}.bias"], into)
            else:
                gweight += gw
                gbias += gb
        if i > lowest or everything:
            gnc = torch.bmm(_rows(gpc), weight[:, first:]).view(save["x_c"].shape)
            gnq = torch.bmm(_rows(gpq), weight[:, :rows]).view(save["x_q"].shape)
            gcontext, gquery = _before_back(arch, gnc, save["nc"]), _before_back(arch, gnq, save["nq"])
            if arch.residual:
                direct = through["q"]
                if gquery.shape[1] == 1 and direct.shape[1] > 1:
                    direct = direct.sum(1, keepdim=True)
                gquery = gquery + direct
                if not last:
                    gcontext = gcontext + through["c"]
    if everything:
        assert gcontext is not None
        _tokens_back(arch, g, features, prompts, saved["start"]["values"], gcontext, gquery)
    return loss


@dataclass(frozen=True)
class Domain:
    """A feature set per model and a function class, on which losses are watched.

    Parameters
    ----------
    features : Tensor, shape (M, d, K)
    labels : {"linear", "network"}
    """

    features: Tensor
    labels: str = "linear"


@dataclass
class Run:
    """What :func:`train` returns.

    Parameters
    ----------
    parameters : Tensor, shape (M, P)
        The models at their stopping time.
    steps : Tensor, shape (T,)
        Steps at which losses were recorded, from 0 on.
    losses : dict of str to Tensor, shape (T, M, K)
        Loss per feature on each watched domain; a stopped model keeps its last one.
    stopped : Tensor, shape (M,)
        Step at which a model met the rule; -1 if it did not, or no rule was set.
    seconds : float
        Time spent, over all interrupted parts.
    """

    parameters: Tensor
    steps: Tensor
    losses: dict[str, Tensor]
    stopped: Tensor
    seconds: float = 0.0


@dataclass
class _Group:
    """Models that are stepped together, with their optimiser state."""

    flat: Tensor
    first: Tensor
    second: Tensor
    gradient: Tensor
    p: dict[str, Tensor] = field(default_factory=dict)
    g: dict[str, Tensor] = field(default_factory=dict)


def train(
    arch: Architecture,
    flat: Tensor,
    features: Tensor,
    training: Training,
    *,
    seeds: Sequence[int],
    watch: Mapping[str, Domain] | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_seconds: float = 30.0,
    progress: bool | Callable[[int, int, float], None] = False,
    group: int | None = None,
    workers: int = 1,
) -> Run:
    """Train many models at once.

    A model's prompts come from its own seed and the step's number alone, so that a model's numbers depend neither on
    its company nor on interruptions. Models with equal seeds see equal labels.

    Parameters
    ----------
    arch : Architecture
    flat : Tensor, shape (M, P)
        Models to start from; not changed. Its device and dtype are used throughout.
    features : Tensor, shape (M, d, K)
        Orthonormal features that each model is trained on.
    training : Training
    seeds : sequence of int, length M
        Seeds of the prompts.
    watch : mapping of str to Domain, optional
        Domains whose losses are recorded; the first one is the one that ``training.eps`` refers to. By default the
        training domain.
    checkpoint : path, optional
        File to resume from and to write to. It is refused if it belongs to another run.
    checkpoint_seconds : float
        Least time between two writes; the end is always written.
    progress : bool or callable
        True writes to standard error; a callable gets (step, steps, seconds).
    group : int, optional
        Models stepped together. By default as many as keep the activations near the processor (CPU) or all (GPU).
    workers : int
        Threads, each with groups of its own.

    Returns
    -------
    Run

    Raises
    ------
    ValueError
        If shapes or options do not fit, or the checkpoint belongs to another run.
    """
    M = flat.shape[0]
    K = features.shape[-1]
    features = features.to(device=flat.device, dtype=flat.dtype)
    workers = _validate.integer("workers", workers, least=1)
    if len(seeds) != M:
        raise ValueError(f"seeds must have one entry per model, M = {M}, got {len(seeds)}")
    watch = {"train": Domain(features, training.labels)} if watch is None else watch
    if not watch:
        raise ValueError("watch must hold at least one domain")
    for name, domain in watch.items():
        if domain.features.shape != features.shape:
            expected = tuple(features.shape)
            raise ValueError(f"watch[{name!r}] must have features {expected}, got {tuple(domain.features.shape)}")
        _validate.choice(f"watch[{name!r}].labels", domain.labels, CLASSES)
    probe = _batches(arch, training, [seeds[0]], 0, 1, K, flat)[0]
    _check(arch, flat[:1], features[:1], probe)

    device_is_cpu = flat.device.type == "cpu"
    if group is None:
        per_model = K * training.contexts * (2 if training.tokens == "distinct" else arch.length // K + 1)
        group = max(1, round(8_192 / per_model)) if device_is_cpu else M
        group = min(group, -(-M // workers))
    group = _validate.integer("group", group, least=1)
    bounds = [(a, min(a + group, M)) for a in range(0, M, group)]
    a, b = scope_range(arch, training.scope)

    key = _fingerprint(arch, flat, features, training, seeds, watch, bounds)
    state = _load(checkpoint, key)
    flat = flat.clone() if state is None else state["flat"].to(flat)
    first = torch.zeros_like(flat[:, a:b]) if state is None else state["first"].to(flat)
    second = torch.zeros_like(first) if state is None else state["second"].to(flat)
    groups = []
    for lo, hi in bounds:
        mine = flat[lo:hi].contiguous()
        # A cloned tensor per group keeps what a worker writes apart from what the others do.
        mine = mine.clone()
        gradient = torch.zeros_like(mine)
        groups.append(_Group(mine, first[lo:hi].clone(), second[lo:hi].clone(), gradient))
        groups[-1].p, groups[-1].g = views(arch, mine), views(arch, gradient)

    tests = {
        name: evaluation_labels(domain.labels, training.tests, K, hidden=training.hidden)
        for name, domain in watch.items()
    }

    def measure() -> dict[str, Tensor]:
        return {
            name: torch.cat(
                [
                    feature_losses(arch, g.flat, domain.features[lo:hi].to(flat), tests[name]).cpu()
                    for g, (lo, hi) in zip(groups, bounds, strict=True)
                ]
            )
            for name, domain in watch.items()
        }

    if state is None:
        start = measure()
        recorded, history = [0], {name: [value] for name, value in start.items()}
        stopped = torch.full((M,), -1, dtype=torch.long)
        if training.eps is not None:
            stopped[(start[next(iter(watch))] <= training.eps / K).all(1)] = 0
        step, spent = 0, 0.0
    else:
        recorded, history = list(state["steps"]), {name: list(value) for name, value in state["losses"].items()}
        stopped, step, spent = state["stopped"], state["step"], state["seconds"]

    def advance(index: int, begin: int, end: int, active: Tensor) -> None:
        lo, hi = bounds[index]
        if not active[lo:hi].any():
            return
        mine = groups[index]
        batches = _batches(arch, training, seeds[lo:hi], begin, end, K, flat)
        alive = None if active[lo:hi].all() else active[lo:hi].to(flat).unsqueeze(1)
        for offset, prompts in enumerate(batches):
            mine.gradient.zero_()
            _step(arch, mine.p, mine.g, features[lo:hi], prompts, training.scope)
            _update(mine, a, b, begin + offset + 1, training, alive)

    began, written = time.perf_counter(), time.perf_counter()
    pool = ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,)) if workers > 1 else None
    try:
        while step < training.steps and (training.eps is None or bool((stopped < 0).any())):
            until = min((step // training.record_every + 1) * training.record_every, training.steps)
            active = stopped < 0
            if pool is None:
                for index in range(len(groups)):
                    advance(index, step, until, active)
            else:
                for future in [pool.submit(advance, i, step, until, active) for i in range(len(groups))]:
                    future.result()
            step = until
            now = measure()
            recorded.append(step)
            for name, value in now.items():
                history[name].append(value)
            if training.eps is not None:
                met = (now[next(iter(watch))] <= training.eps / K).all(1)
                stopped[met & (stopped < 0)] = step
            seconds = spent + time.perf_counter() - began
            if progress is True:
                worst = float(now[next(iter(watch))].sum(1).median())
                text = f"step {step}/{training.steps}, {seconds:.0f} s, median loss {worst:.2g}"
                print(text, file=sys.stderr, flush=True)
            elif callable(progress):
                progress(step, training.steps, seconds)
            if checkpoint is not None and time.perf_counter() - written >= checkpoint_seconds:
                _save(checkpoint, key, groups, recorded, history, stopped, step, seconds)
                written = time.perf_counter()
    finally:
        if pool is not None:
            pool.shutdown()
    seconds = spent + time.perf_counter() - began
    if checkpoint is not None:
        _save(checkpoint, key, groups, recorded, history, stopped, step, seconds)
    return Run(
        torch.cat([g.flat for g in groups]),
        torch.tensor(recorded),
        {name: torch.stack(value) for name, value in history.items()},
        stopped,
        seconds,
    )


def _batches(
    arch: Architecture,
    training: Training,
    seeds: Sequence[int],
    begin: int,
    end: int,
    K: int,
    like: Tensor,
) -> list[Prompts]:
    """Draw the prompts of steps ``begin`` to ``end``; a step's prompts do not depend on where the range begins."""
    blocks = []
    B = training.contexts
    drawn: dict[int, Tensor] = {}
    for seed in seeds:
        if seed not in drawn:
            # One draw per block of steps, not per step: the calls would cost more than the numbers.
            parts = []
            for block in range(begin // _BLOCK, (end - 1) // _BLOCK + 1):
                part = draw_labels(
                    training.labels, derive_seed(seed, "labels", block), (_BLOCK, B), K, hidden=training.hidden
                )
                lo, hi = max(begin - block * _BLOCK, 0), min(end - block * _BLOCK, _BLOCK)
                parts.append(part[lo:hi])
            drawn[seed] = torch.cat(parts)
        blocks.append(drawn[seed])
    labels = torch.stack(blocks, dim=1).to(like)
    prompts = []
    shuffled = training.tokens == "all" and (arch.positions or arch.mask == "causal")
    for step in range(begin, end):
        mine = labels[step - begin]
        query = None
        if training.queries == "one":
            asked = [torch.randint(K, (B, 1), generator=generator(derive_seed(seed, "query", step))) for seed in seeds]
            query = torch.stack(asked).to(like.device)
        orders = [derive_seed(seed, "order", step) for seed in seeds] if shuffled else []
        prompts.append(prompts_for(arch, mine, query, training.tokens, seeds=orders))
    return prompts


_BLOCK = 50


def _update(mine: _Group, a: int, b: int, step: int, training: Training, alive: Tensor | None) -> None:
    """One optimiser step on the flat tensor: a handful of calls for all parameters of all models."""
    gradient = mine.gradient[:, a:b]
    rate = -training.learning_rate
    if training.optimiser == "sgd":
        mine.flat[:, a:b].add_(gradient if alive is None else gradient * alive, alpha=rate)
        return
    mine.first.lerp_(gradient, 1 - training.beta1)
    mine.second.mul_(training.beta2).addcmul_(gradient, gradient, value=1 - training.beta2)
    spread = mine.second.sqrt().div_(math.sqrt(1 - training.beta2**step)).add_(1e-8)
    rate /= 1 - training.beta1**step
    if alive is None:
        mine.flat[:, a:b].addcdiv_(mine.first, spread, value=rate)
    else:
        mine.flat[:, a:b].addcmul_(mine.first / spread, alive, value=rate)


def _fingerprint(
    arch: Architecture,
    flat: Tensor,
    features: Tensor,
    training: Training,
    seeds: Sequence[int],
    watch: Mapping[str, Domain],
    bounds: list[tuple[int, int]],
) -> str:
    digest = hashlib.sha256()
    # More steps continue the same run, so their number is left out.
    options = [asdict(arch), asdict(replace(training, steps=0)), list(seeds), bounds, [*watch], str(flat.dtype)]
    digest.update(json.dumps(options, default=str).encode())
    for tensor in (flat, features, *(domain.features for domain in watch.values())):
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def _save(
    path: str | os.PathLike[str],
    key: str,
    groups: list[_Group],
    recorded: list[int],
    history: dict[str, list[Tensor]],
    stopped: Tensor,
    step: int,
    seconds: float,
) -> None:
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    state = {
        "key": key,
        "flat": torch.cat([g.flat for g in groups]).cpu(),
        "first": torch.cat([g.first for g in groups]).cpu(),
        "second": torch.cat([g.second for g in groups]).cpu(),
        "steps": recorded,
        "losses": history,
        "stopped": stopped,
        "step": step,
        "seconds": seconds,
    }
    partial = target.with_name(target.name + ".part")
    torch.save(state, partial)
    partial.replace(target)


def _load(path: str | os.PathLike[str] | None, key: str) -> dict[str, Any] | None:
    if path is None or not Path(path).is_file():
        return None
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise ValueError(
            f"checkpoint {path} cannot be read ({type(error).__name__}); delete it to start anew"
        ) from error
    if not isinstance(state, dict) or state.get("key") != key:
        raise ValueError(f"checkpoint {path} belongs to a run with other models, data or options; name another file")
    return state

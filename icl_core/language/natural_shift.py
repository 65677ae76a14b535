"""Natural shift: train on one genre, group other text by likeness to it, fine-tune on a group (section 6.3, Fig. 4)."""

from __future__ import annotations

import functools
import hashlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from icl_core import _validate
from icl_core.language import training
from icl_core.language.cache import MAX_LENGTH, Ragged, by_length, encode, hidden_states, read_states, write_states
from icl_core.language.cache import folder as cache_folder
from icl_core.language.data import Pairs
from icl_core.language.encoders import Classifier, Encoder, embed, fingerprint, full_layer
from icl_core.language.training import TRAIN_NATURAL, TUNE_NATURAL, Schedule

EMBEDDINGS = ("pretrained-mean", "pretrained-cls", "source-cls")
# Groups of 10,000 out of about 80,000 in a genre, of 20,000 out of SNLI's 549,367 labelled training pairs.
GROUP_SHARE = {"genre": 10_000 / 80_000, "snli": 20_000 / 549_367}
SMOOTHING = {"genre": 2, "snli": 5}
# Groups that hold a pair, on average: the stride is the group size over it. Fine-tuning on SNLI takes disjoint groups.
OVERLAP = {"error": {"genre": 2, "snli": 2}, "forgetting": {"genre": 2, "snli": 1}}


def kind(domain: str) -> str:
    """Return ``"snli"`` for the large shift, ``"genre"`` for the small ones."""
    return "snli" if domain == "snli" else "genre"


# --- the source model and the cosine ----------------------------------------------------------------------------------


def train_source(
    encoder: Encoder,
    train: Pairs,
    number: int,
    *,
    schedule: Schedule = TRAIN_NATURAL,
    pooler: bool = False,
    cache: str | os.PathLike[str] | None = None,
) -> Classifier:
    """Train all layers and the head on the source genre; the token embeddings stay as they are.

    Parameters
    ----------
    number : int
        Number of the run: seeds of the head, the order and dropout follow from it.
    cache : path, optional
        Folder for the checkpoint; an interrupted training resumes from there.
    """
    classifier = Classifier(encoder, 0, len(train.names), head_seed=1000 * number + 2, pooler=pooler)
    checkpoint = None
    if cache is not None:
        key = json.dumps([fingerprint(encoder.model), train.digest(), number, asdict(schedule), pooler])
        checkpoint = cache_folder(cache) / f"natural-{hashlib.sha256(key.encode()).hexdigest()[:24]}.pt"
    return training.train(
        classifier,
        hidden_states(encoder, train, 0),
        torch.tensor(train.labels),
        schedule,
        shuffle_seed=1000 * number + 3,
        dropout_seed=1000 * number + 4,
        checkpoint=checkpoint,
        every=60,
    )


@torch.inference_mode()
def pretrained_embeddings(
    encoder: Encoder, pairs: Pairs, *, cache: str | os.PathLike[str] | None = None, batch: int = 64
) -> dict[str, Tensor]:
    """Embeddings of each pair by the encoder before any training, each (n, d).

    Parameters
    ----------
    cache : path, optional
        Folder to keep them in.

    Returns
    -------
    dict
        ``"pretrained-mean"``, the mean over the tokens of the last hidden state, and ``"pretrained-cls"``, its first
        token.
    """
    path = None
    if cache is not None:
        key = f"{fingerprint(encoder.model)} {pairs.digest()} {MAX_LENGTH}"
        path = Path(cache) / f"embedding-{hashlib.sha256(key.encode()).hexdigest()[:24]}.bin"
        found = read_states(path)
        if found is not None:
            return dict(zip(EMBEDDINGS[:2], found.flat.unbind(1), strict=True))
    ids, kinds = encode(encoder, pairs)
    device = next(encoder.model.parameters()).device
    out = torch.empty(len(pairs), 2, encoder.width, device=device)
    for index in by_length(ids.lengths, batch):
        tokens, mask = ids.padded(index)
        mask = mask.to(device)
        hidden = embed(encoder, tokens.to(device), kinds.padded(index)[0].to(device))
        for layer in encoder.model.encoder.layer:
            hidden = full_layer(layer, hidden, mask)
        kept = hidden * mask[..., None]
        out[index.to(device)] = torch.stack([kept.sum(1) / mask.sum(1, keepdim=True), hidden[:, 0]], 1)
    if path is not None:
        write_states(path, Ragged(out, torch.ones(len(pairs), dtype=torch.int64)))
    return dict(zip(EMBEDDINGS[:2], out.clone().cpu().unbind(1), strict=True))


def likeness(embeddings: Tensor, centre: Tensor) -> Tensor:
    """Cosine of each row of (n, d) with the centre (d,): the average embedding of the source genre."""
    return torch.nn.functional.cosine_similarity(embeddings.double(), centre.double()[None], dim=-1).cpu()


def windows(similarity: Tensor, size: int, stride: int) -> list[Tensor]:
    """Sliding windows over the pairs in decreasing order of similarity: the first group is the most alike.

    Parameters
    ----------
    similarity : Tensor
        (n,).
    size, stride : int
        Pairs in a group, and from the start of one group to that of the next. The paper gives no stride.
    """
    count = similarity.numel()
    _validate.integer("size", size, least=1, most=count)
    _validate.integer("stride", stride, least=1)
    order = similarity.argsort(descending=True, stable=True)
    return [order[start : start + size] for start in range(0, count - size + 1, stride)]


def scaled(domain: str, count: int, overlap: int = 2) -> tuple[int, int]:
    """Group size and stride for ``count`` pairs: the paper's share of the domain, ``overlap`` groups over each pair."""
    size = max(1, round(GROUP_SHARE[kind(domain)] * count))
    return size, max(1, size // overlap)


def moving_average(values: Sequence[float], window: int) -> list[float]:
    """Means of ``window`` neighbours; ``len(values) - window + 1`` of them."""
    _validate.integer("window", window, least=1, most=len(values))
    return [sum(values[i : i + window]) / window for i in range(len(values) - window + 1)]


def smoothed_spread(window: int, overlap: int) -> float:
    """Standard deviation of a moving average over ``window`` sliding groups, for pairs in random order; a group's is 1.

    Groups that overlap hold pairs in common, so averaging them takes away less than averaging disjoint ones.

    >>> smoothed_spread(4, 1)
    0.5
    """
    return float(np.linalg.norm(_smoothing(window, overlap)) * math.sqrt(overlap))


@functools.lru_cache
def chance_curves(groups: int, overlap: int, window: int, *, draws: int = 4000, seed: int = 0) -> np.ndarray:
    """Smoothed curves over sliding groups of pairs in random order, (draws, groups - window + 1), of unit spread.

    Neighbouring groups hold pairs in common and are averaged, so such a curve wanders although the order means nothing.

    Parameters
    ----------
    groups : int
        Groups on the curve before smoothing.
    overlap : int
        Groups that hold a pair.
    window : int
        Of the moving average.
    draws, seed : int
        Random orders, and their seed.
    """
    _validate.integer("window", window, least=1, most=groups)
    stretches = torch.randn(draws, groups + overlap - 1, generator=torch.Generator().manual_seed(seed)).numpy()
    weights = _smoothing(window, overlap)
    curves = np.stack([np.convolve(row, weights, "valid") for row in stretches])
    return np.asarray(curves / np.linalg.norm(weights))


@functools.lru_cache
def chance_trend(groups: int, overlap: int, window: int) -> float:
    """Rank correlation with the group's number that one in twenty of :func:`chance_curves` exceeds in size."""
    from scipy.stats import rankdata

    ranks = rankdata(chance_curves(groups, overlap, window), axis=1)
    place = np.arange(ranks.shape[1]) - (ranks.shape[1] - 1) / 2
    rho = (ranks - ranks.mean(1, keepdims=True)) @ place / np.square(place).sum()
    return float(np.quantile(np.abs(rho), 0.95))


def _smoothing(window: int, overlap: int) -> np.ndarray:
    """Weights of stretches of one stride each in a moving average over ``window`` groups."""
    return np.convolve(np.full(window, 1 / window), np.full(overlap, 1 / overlap))


# --- one run ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Domain:
    """One domain as the source model sees it.

    Parameters
    ----------
    states : Ragged
        States before the last layer.
    labels : Tensor
        (n,).
    loss, right : Tensor
        (n,) cross-entropy and correctness of the source model.
    similarity : mapping of str to Tensor
        (n,) cosine to the source centre, by embedding.
    """

    states: Ragged
    labels: Tensor
    loss: Tensor
    right: Tensor
    similarity: Mapping[str, Tensor]


def observe(
    encoder: Encoder,
    classifier: Classifier,
    domains: Mapping[str, Pairs],
    *,
    cache: str | os.PathLike[str] | None = None,
) -> dict[str, Domain]:
    """Run the source model once over every domain; ``domains["train"]`` gives the centres.

    Sliding groups share most of their pairs, so losses are kept pair by pair.
    """
    states, cls, vectors = {}, {}, {}
    for name, pairs in domains.items():
        states[name] = training.before_last(classifier, hidden_states(encoder, pairs, 0))
        cls[name] = training.cls_states(classifier, states[name])
        vectors[name] = pretrained_embeddings(encoder, pairs, cache=cache) | {"source-cls": cls[name].cpu()}
    found = {}
    for name, pairs in domains.items():
        labels = torch.tensor(pairs.labels)
        with torch.inference_mode():
            logits = classifier.classify(cls[name]).cpu()
        found[name] = Domain(
            states[name],
            labels,
            torch.nn.functional.cross_entropy(logits, labels, reduction="none").double(),
            logits.argmax(-1) == labels,
            {how: likeness(vectors[name][how], vectors["train"][how].mean(0)) for how in EMBEDDINGS},
        )
    return found


def group_rows(domain: Domain, groups: Sequence[Tensor], similarity: Tensor) -> list[dict[str, float]]:
    """Loss and error of the source model on each group, with what else differs between groups.

    Returns
    -------
    list of dict
        ``group`` (0 is the most alike), ``size``, ``cosine`` (mean), ``loss``, ``error``, ``tokens`` (mean length), and
        ``majority`` (share of the group's commonest label).
    """
    return [
        {
            "group": i,
            "size": index.numel(),
            "cosine": float(similarity[index].mean()),
            "loss": float(domain.loss[index].mean()),
            "error": 1.0 - float(domain.right[index].double().mean()),
            "tokens": float(domain.states.lengths[index].double().mean()),
            "majority": float(domain.labels[index].bincount().max()) / index.numel(),
        }
        for i, index in enumerate(groups)
    ]


def forget_group(
    classifier: Classifier, domain: Domain, index: Tensor, home: Domain, schedule: Schedule, *, seed: int
) -> dict[str, float]:
    """Fine-tune the last layer on one group; the rise of loss and error on the source genre's validation pairs."""
    states, labels = domain.states.take(index), domain.labels[index]
    tuned = training.tune_last_layer(classifier, states, labels, schedule, shuffle_seed=seed, dropout_seed=seed + 1)
    loss, right = training.losses(tuned, home.states, home.labels)
    return {
        "forgetting": float((loss - home.loss).mean()),
        "error_change": float(home.right.double().mean() - right.double().mean()),
    }


def matched_rate(domain: str, size: int, schedule: Schedule = TUNE_NATURAL) -> float:
    """Learning rate at which a group of ``size`` pairs takes the paper's rate times its number of steps.

    The paper's groups have 10,000 or 20,000 pairs; on groups of hundreds, 2e-6 moves the weights far less.
    """
    paper = {"genre": 10_000, "snli": 20_000}[kind(domain)]
    return schedule.rate * max(1.0, (paper / schedule.batch) / -(-size // schedule.batch))


def measure(
    classifier: Classifier,
    seen: Mapping[str, Domain],
    number: int,
    *,
    tune: Sequence[tuple[str, str]] = (
        ("pretrained-mean", "printed"),
        ("pretrained-mean", "matched"),
        ("source-cls", "matched"),
    ),
    random_groups: int = 8,
) -> dict[str, Any]:
    """Everything figure 4 shows for one source model, with its controls.

    Parameters
    ----------
    classifier : Classifier
        From :func:`train_source`.
    seen : mapping
        From :func:`observe`: ``train`` and ``dev`` of the source genre, and the other domains.
    number : int
        Number of the run: seeds of fine-tuning and of the random groups.
    tune : sequence of (str, str)
        For which embedding, and at which rate, groups are fine-tuned on: ``"printed"`` is 2e-6, ``"matched"`` that of
        :func:`matched_rate`.
    random_groups : int
        Control: so many random groups of each domain, to show what varies without any shift.

    Returns
    -------
    dict
        ``error`` and ``forgetting``: lists of rows; ``dev_loss``, ``dev_error``.
    """
    home = seen["dev"]
    errors: list[dict[str, Any]] = []
    forgot: list[dict[str, Any]] = []
    for name, domain in seen.items():
        if name == "train":
            continue
        size, stride = scaled(name, len(domain.labels), OVERLAP["error"][kind(name)])
        for how, similarity in domain.similarity.items():
            label = {"run": number, "domain": name, "embedding": how}
            errors += [label | row for row in group_rows(domain, windows(similarity, size, stride), similarity)]
        draws = torch.Generator().manual_seed(1000 * number + 6)
        chance = [torch.randperm(len(domain.labels), generator=draws)[:size] for _ in range(random_groups)]
        label = {"run": number, "domain": name, "embedding": "random groups"}
        errors += [label | row for row in group_rows(domain, chance, domain.similarity[EMBEDDINGS[0]])]
        if name == "dev":
            continue
        stride = scaled(name, len(domain.labels), OVERLAP["forgetting"][kind(name)])[1]
        plans = [(how, rate, windows(domain.similarity[how], size, stride)) for how, rate in tune]
        for how, which, groups in [*plans, ("random groups", "matched", chance)]:
            rate = TUNE_NATURAL.rate if which == "printed" else matched_rate(name, size)
            similarity = domain.similarity[how if how in EMBEDDINGS else EMBEDDINGS[0]]
            for i, index in enumerate(groups):
                row = forget_group(
                    classifier, domain, index, home, replace(TUNE_NATURAL, rate=rate), seed=1000 * number + 7
                )
                label = {"run": number, "domain": name, "embedding": how, "which_rate": which, "rate": rate}
                forgot.append(label | {"group": i, "cosine": float(similarity[index].mean()), "size": size} | row)
    return {
        "error": errors,
        "forgetting": forgot,
        "dev_loss": float(home.loss.mean()),
        "dev_error": 1.0 - float(home.right.double().mean()),
    }

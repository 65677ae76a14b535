"""MRPC: train the last half of the layers, rotate the states before the last, fine-tune it (section 6.2, Fig. 3)."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from icl_core import _validate
from icl_core.language import rotation, training
from icl_core.language.cache import Ragged, by_length, hidden_states
from icl_core.language.data import Pairs
from icl_core.language.encoders import HEAD_STD, Classifier, Encoder, cls_layer, fingerprint, head_gap
from icl_core.language.training import TRAIN_MRPC, TUNE_MRPC, Schedule


@dataclass(frozen=True)
class Seeds:
    """One seed for each thing that varies from run to run."""

    split: int
    head: int
    shuffle: int
    dropout: int
    dims: int

    @classmethod
    def of_run(cls, run: int, *, fixed: Sequence[str] = ()) -> Seeds:
        """Seeds of run number ``run``; those named in ``fixed`` are those of run 0."""
        names = ("split", "head", "shuffle", "dropout", "dims")
        for name in fixed:
            _validate.choice("fixed", name, names)
        return cls(**{name: 1000 * (0 if name in fixed else run) + i for i, name in enumerate(names, 1)})


@dataclass(frozen=True)
class Source:
    """A trained source model with what the sweeps need.

    Parameters
    ----------
    classifier : Classifier
        Trained layers and head, in ``eval()`` mode.
    gap_at_start : Tensor
        (d,) ``|W_0 - W_1|`` of the head before training.
    tune, dev : Ragged
        States before the last layer of the held-out fine-tuning pairs and of the validation pairs.
    tune_labels, dev_labels : Tensor
    """

    classifier: Classifier
    gap_at_start: Tensor
    tune: Ragged
    tune_labels: Tensor
    dev: Ragged
    dev_labels: Tensor


def split(count: int, share: float, seed: int) -> tuple[Tensor, Tensor]:
    """Random split of ``count`` pairs into a ``share`` for training and the rest for fine-tuning."""
    _validate.real("share", share, above=0.0, below=1.0)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    cut = round(share * count)
    if not 0 < cut < count:
        raise ValueError(f"share must leave pairs on both sides of {count}, got {share!r}")
    return order[:cut], order[cut:]


def source(
    encoder: Encoder,
    train: Pairs,
    dev: Pairs,
    seeds: Seeds,
    *,
    schedule: Schedule = TRAIN_MRPC,
    share: float = 0.9,
    trained_layers: int | None = None,
    head_std: float = HEAD_STD,
    pooler: bool = False,
    cache: str | os.PathLike[str] | None = None,
) -> Source:
    """Train a source model on ``share`` of ``train``, or load it from ``cache``.

    Parameters
    ----------
    encoder : Encoder
    train, dev : Pairs
    seeds : Seeds
    schedule : Schedule
    share : float
        Part of ``train`` used here; the rest is for fine-tuning.
    trained_layers : int, optional
        How many of the last layers train; the default is half of them (six of BERT-base's twelve).
    head_std, pooler
        See :class:`icl_core.language.encoders.Classifier`.
    cache : path, optional
        Folder for hidden states and checkpoints; an interrupted training resumes from there.
    """
    count = encoder.depth // 2 if trained_layers is None else trained_layers
    _validate.integer("trained_layers", count, least=1, most=encoder.depth)
    first = encoder.depth - count
    use, hold = split(len(train), share, seeds.split)
    classifier = Classifier(encoder, first, len(train.names), head_seed=seeds.head, head_std=head_std, pooler=pooler)
    start = head_gap(classifier)
    states, held = (hidden_states(encoder, pairs, first, cache=cache) for pairs in (train, dev))
    labels = torch.tensor(train.labels)
    checkpoint = None
    if cache is not None:
        facts = [fingerprint(encoder.model), train.digest(), asdict(seeds) | {"dims": 0}, asdict(schedule)]
        key = json.dumps([*facts, share, count, head_std, pooler])
        checkpoint = Path(cache) / f"source-{hashlib.sha256(key.encode()).hexdigest()[:24]}.pt"
    training.train(
        classifier,
        states.take(use),
        labels[use],
        schedule,
        shuffle_seed=seeds.shuffle,
        dropout_seed=seeds.dropout,
        checkpoint=checkpoint,
    )
    return Source(
        classifier,
        start,
        training.before_last(classifier, states.take(hold)),
        labels[hold],
        training.before_last(classifier, held),
        torch.tensor(dev.labels),
    )


# --- figures 3(a) and 3(b) --------------------------------------------------------------------------------------------


@torch.inference_mode()
def theta_sweep(
    model: Source, planes: rotation.Planes, thetas: Sequence[float], *, batch: int = 128
) -> list[dict[str, float]]:
    """Loss and accuracy on the validation pairs with the states before the last layer turned by R(theta).

    Returns
    -------
    list of dict
        ``theta``, ``loss`` (cross-entropy, nats), ``accuracy``, ``positive`` (share of pairs called paraphrases).
    """
    total = torch.zeros(len(thetas), 3, dtype=torch.float64)
    for index in by_length(model.dev.lengths, batch):
        states, mask = model.dev.padded(index)
        labels = model.dev_labels[index].to(states.device)
        for i, theta in enumerate(thetas):
            logits = model.classifier.classify(cls_layer(model.classifier.last, states, mask, planes, theta))
            loss = torch.nn.functional.cross_entropy(logits, labels, reduction="none")
            answer = logits.argmax(-1)
            total[i] += torch.stack([loss.double().sum(), (answer == labels).sum(), (answer == 1).sum()]).cpu()
    total /= len(model.dev)
    return [
        {"theta": float(theta), "loss": loss, "accuracy": accuracy, "positive": positive}
        for theta, (loss, accuracy, positive) in zip(thetas, total.tolist(), strict=True)
    ]


def planes_for(
    model: Source, selection: str, seed: int, *, parts: int = 3, pairing: str = "rank", at_start: bool = False
) -> rotation.Planes:
    """Planes on one ``parts``-th of the dimensions, ranked by the trained or, ``at_start``, the untrained head."""
    gap = model.gap_at_start if at_start else head_gap(model.classifier)
    width = gap.numel()
    return rotation.choose(
        selection, rotation.even_share(width, parts), width=width, gap=gap, pairing=pairing, seed=seed
    )


def overlap(one: rotation.Planes, two: rotation.Planes) -> float:
    """Share of ``one``'s dimensions that are also in ``two``."""
    return float(torch.isin(one.pairs, two.pairs).double().mean())


# --- figure 3(c) ------------------------------------------------------------------------------------------------------


def forgetting(
    model: Source,
    planes: rotation.Planes,
    thetas: Sequence[float],
    seeds: Seeds,
    *,
    schedule: Schedule = TUNE_MRPC,
    head: bool = False,
) -> list[dict[str, float]]:
    """Fine-tune the last layer on turned states, and measure what the source loses.

    Forgetting is the cross-entropy on the unturned validation pairs after fine-tuning less that before it; the gain is
    the drop on the turned ones.

    Returns
    -------
    list of dict
        ``theta``, ``forgetting``, ``accuracy_change`` (source), ``target_before``, ``target_after`` (cross-entropy).
    """
    before = training.last_only(model.classifier)
    loss0, right0 = training.losses(before, model.dev, model.dev_labels)
    rows = []
    for theta in thetas:
        turned = Ragged(planes.rotate(model.tune.flat, theta), model.tune.lengths)
        tuned = training.tune_last_layer(
            model.classifier,
            turned,
            model.tune_labels,
            schedule,
            shuffle_seed=seeds.shuffle + 500,
            dropout_seed=seeds.dropout + 500,
            head=head,
        )
        loss, right = training.losses(tuned, model.dev, model.dev_labels)
        target = Ragged(planes.rotate(model.dev.flat, theta), model.dev.lengths)
        rows.append(
            {
                "theta": float(theta),
                "forgetting": float((loss - loss0).mean()),
                "accuracy_change": float(right.double().mean() - right0.double().mean()),
                "target_before": float(training.losses(before, target, model.dev_labels)[0].mean()),
                "target_after": float(training.losses(tuned, target, model.dev_labels)[0].mean()),
            }
        )
    return rows


# --- one run ----------------------------------------------------------------------------------------------------------

SWEEP_THETAS = tuple(math.pi * i / 24 for i in range(49))
FORGET_THETAS = tuple(math.pi * i / 12 for i in range(12, -1, -1))


def run(
    encoder: Encoder,
    train: Pairs,
    dev: Pairs,
    number: int,
    *,
    fixed: Sequence[str] = (),
    head_std: float = HEAD_STD,
    thetas: Sequence[float] = SWEEP_THETAS,
    forget_thetas: Sequence[float] = FORGET_THETAS,
    rates: Sequence[float] = (1e-5, 1e-4),
    schedule: Schedule = TRAIN_MRPC,
    pairings: Sequence[str] = rotation.PAIRINGS,
    cache: str | os.PathLike[str] | None = None,
) -> dict[str, Any]:
    """One run of everything figure 3 shows, with its controls.

    Parameters
    ----------
    number : int
        Number of the run. It decides the split, the head's start, the order, dropout and the random dimensions, except
        for those in ``fixed``, which are those of run 0.
    rates : sequence of float
        Learning rates of the fine-tuning; the paper's is 1e-5.
    pairings : sequence of str
        For the dimensions by ``|W_0 - W_1|``; the first is used for random dimensions.

    Returns
    -------
    dict
        ``sweep`` and ``forgetting``: lists of rows; ``head``: overlaps of the chosen dimensions with those at the
        start, and the size of W_0 - W_1 before and after; ``dev``: loss and accuracy without rotation.
    """
    _validate.reals("thetas", thetas)
    _validate.reals("forget_thetas", forget_thetas)
    _validate.reals("rates", rates, above=0.0)
    if not pairings:
        raise ValueError("pairings must hold at least one pairing, got none")
    for pairing in pairings:
        _validate.choice("pairings", pairing, rotation.PAIRINGS)
    if len(train.names) != 2 or dev.names != train.names:
        raise ValueError(f"train and dev must share two labels, got {train.names} and {dev.names}")
    seeds = Seeds.of_run(number, fixed=fixed)
    model = source(encoder, train, dev, seeds, head_std=head_std, schedule=schedule, cache=cache)
    sweep: list[dict[str, Any]] = []
    for selection in rotation.SELECTIONS:
        for pairing in pairings if selection != "random" else pairings[:1]:
            planes = planes_for(model, selection, seeds.dims, pairing=pairing)
            label = {"run": number, "selection": selection, "pairing": pairing, "ranked_by": "trained head"}
            sweep += [label | row for row in theta_sweep(model, planes, thetas)]
    head: list[dict[str, Any]] = []
    for selection in ("largest", "smallest"):
        trained = planes_for(model, selection, seeds.dims)
        untrained = planes_for(model, selection, seeds.dims, at_start=True)
        head.append({"run": number, "selection": selection, "overlap_with_start": overlap(trained, untrained)})
        # Ranking by the head before it saw any data asks whether what the head learned matters.
        label = {"run": number, "selection": selection, "pairing": "rank", "ranked_by": "untrained head"}
        sweep += [label | row for row in theta_sweep(model, untrained, thetas)]
    gap = head_gap(model.classifier)
    chosen = {
        name: planes_for(model, name, seeds.dims).pairs.reshape(-1).sort().values.tolist()
        for name in ("largest", "smallest")
    }
    planes = rotation.choose(
        "random", rotation.even_share(gap.numel(), 2), width=gap.numel(), pairing="rank", seed=seeds.dims + 500
    )
    forgot: list[dict[str, Any]] = []
    for rate in rates:
        label = {"run": number, "rate": rate}
        rows = forgetting(model, planes, forget_thetas, seeds, schedule=replace(TUNE_MRPC, rate=rate))
        forgot += [label | row for row in rows]
    loss, right = training.losses(training.last_only(model.classifier), model.dev, model.dev_labels)
    return {
        "sweep": sweep,
        "forgetting": forgot,
        "head": head,
        "dims": chosen,
        "gap_rms_start": float(model.gap_at_start.square().mean().sqrt()),
        "gap_rms_trained": float(gap.square().mean().sqrt()),
        "gap_change_rms": float((gap - model.gap_at_start).square().mean().sqrt()),
        "dev_loss": float(loss.mean()),
        "dev_accuracy": float(right.double().mean()),
    }

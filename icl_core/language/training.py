"""Training the layers above a cached prefix, with checkpoints; evaluation pair by pair."""

from __future__ import annotations

import copy
import os
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from icl_core import _validate
from icl_core.language.cache import Ragged, by_length
from icl_core.language.encoders import Classifier, cls_layer

PART = 4  # pairs in one pass of a training step through whole layers
Forward = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Schedule:
    """AdamW at a constant rate (Appendix C names no schedule, warm-up or weight decay; torch's default decay is kept).

    Parameters
    ----------
    rate : float
        Learning rate.
    batch : int
        Pairs in a step.
    epochs : int
        Passes over the data.
    """

    rate: float
    batch: int
    epochs: int

    def __post_init__(self) -> None:
        _validate.real("rate", self.rate, above=0.0)
        _validate.integer("batch", self.batch, least=1)
        _validate.integer("epochs", self.epochs, least=1)


TRAIN_MRPC = Schedule(5e-5, 8, 2)
TUNE_MRPC = Schedule(1e-5, 32, 1)
TRAIN_NATURAL = Schedule(5e-5, 32, 3)
TUNE_NATURAL = Schedule(2e-6, 32, 1)


def train(
    classifier: Classifier,
    hidden: Ragged,
    labels: Tensor,
    schedule: Schedule,
    *,
    parameters: list[nn.Parameter] | None = None,
    weights: Tensor | None = None,
    shuffle_seed: int,
    dropout_seed: int,
    checkpoint: str | os.PathLike[str] | None = None,
    every: int = 100,
    stop_after: int | None = None,
    forward: Forward | None = None,
) -> Classifier:
    """Train in place with cross-entropy on the states that enter the classifier's first layer.

    Parameters
    ----------
    classifier : Classifier
    hidden : Ragged
        (n, L_i, d) input states.
    labels : Tensor
        (n,) int64.
    schedule : Schedule
    parameters : list of Parameter, optional
        What to train; the default is everything the classifier holds.
    weights : Tensor, optional
        (n,) weights of the pairs' losses, used as they are.
    shuffle_seed, dropout_seed : int
        Seeds of the order of the pairs and of dropout. Dropout draws from torch's global generator, which is put back.
    checkpoint : path, optional
        File to resume from and to write to, every ``every`` steps and at the end; a file cut short starts over.
    every : int
        Steps between checkpoints.
    stop_after : int, optional
        Stop after so many steps in this call, as an interruption would.
    forward : callable, optional
        (states, mask) to logits; the default is the classifier itself.
    """
    chosen = list(classifier.parameters()) if parameters is None else parameters
    for parameter in classifier.parameters():
        parameter.requires_grad_(False)
    for parameter in chosen:
        parameter.requires_grad_(True)
    optimiser = torch.optim.AdamW(chosen, lr=schedule.rate, fused=True)
    order = _order(len(hidden), schedule, shuffle_seed)
    path = None if checkpoint is None else Path(checkpoint)
    step = 0
    run = classifier if forward is None else forward
    # The mean over a batch is a sum over parts of it: parts of like length need little padding. A last layer alone
    # works on one token of each pair, so padding costs it less than passing over its weights once more.
    size = PART if len(classifier.layers) > 1 else schedule.batch
    cuda = [p.device for p in chosen if p.device.type == "cuda"][:1]
    with torch.random.fork_rng(devices=cuda):
        torch.manual_seed(dropout_seed)
        saved = None if path is None else _load(path)
        if saved is not None:
            classifier.load_state_dict(saved["model"])
            optimiser.load_state_dict(saved["optimiser"])
            torch.set_rng_state(saved["rng"])
            for device in cuda:
                torch.cuda.set_rng_state(saved["cuda_rng"].cpu(), device)
            step = saved["step"]
        classifier.train()
        begin = step
        for index in order[step:]:
            if stop_after is not None and step - begin >= stop_after:
                break
            optimiser.zero_grad()
            for part in index[hidden.lengths[index].argsort(stable=True)].split(size):
                states, mask = hidden.padded(part)
                loss = functional.cross_entropy(run(states, mask), labels[part].to(states.device), reduction="none")
                loss = (loss if weights is None else weights[part].to(loss) * loss).sum() / len(index)
                loss.backward()
            optimiser.step()
            step += 1
            if path is not None and step % every == 0 and step < len(order):
                _save(path, classifier, optimiser, step, cuda)
        if path is not None and step > begin:
            _save(path, classifier, optimiser, step, cuda)
    for parameter in classifier.parameters():
        parameter.requires_grad_(False)
    return classifier.eval()


def _order(count: int, schedule: Schedule, seed: int) -> list[Tensor]:
    draws = torch.Generator().manual_seed(seed)
    return [
        index for _ in range(schedule.epochs) for index in torch.randperm(count, generator=draws).split(schedule.batch)
    ]


def _save(
    path: Path, classifier: Classifier, optimiser: torch.optim.Optimizer, step: int, cuda: list[torch.device]
) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    # A name of its own for each process: two may train the same model at once.
    partial = path.with_name(f"{path.name}.{os.getpid()}.part")
    torch.save(
        {
            "model": classifier.state_dict(),
            "optimiser": optimiser.state_dict(),
            "rng": torch.get_rng_state(),
            "cuda_rng": torch.cuda.get_rng_state(cuda[0]) if cuda else None,
            "step": step,
        },
        partial,
    )
    partial.replace(path)


def _load(path: Path) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    try:
        found: Any = torch.load(path, weights_only=True, map_location="cpu")
    except (RuntimeError, EOFError, OSError, ValueError, LookupError, pickle.UnpicklingError):
        return None
    whole = isinstance(found, dict) and {"model", "optimiser", "rng", "step"} <= found.keys()
    return found if whole else None


def tune_last_layer(
    source: Classifier,
    hidden: Ragged,
    labels: Tensor,
    schedule: Schedule,
    *,
    shuffle_seed: int,
    dropout_seed: int,
    weights: Tensor | None = None,
    head: bool = False,
) -> Classifier:
    """Copy ``source``'s last layer and head, and fine-tune the layer on states that enter it.

    Parameters
    ----------
    source : Classifier
        Left as it is.
    hidden : Ragged
        (n, L_i, d) states before the last layer, already rotated where they should be.
    weights : Tensor, optional
        (n,) weights of the pairs' losses.
    head : bool
        Section 6.2 fine-tunes "only the last layer", which leaves the head as it is; True trains it as well.

    Returns
    -------
    Classifier
        Holding the last layer only.
    """
    tuned = last_only(source)
    parameters = [*tuned.last.parameters(), *(tuned.head.parameters() if head else ())]
    return train(
        tuned,
        hidden,
        labels,
        schedule,
        parameters=parameters,
        weights=weights,
        shuffle_seed=shuffle_seed,
        dropout_seed=dropout_seed,
    )


def last_only(source: Classifier) -> Classifier:
    """Copy of ``source`` that starts at its last layer."""
    kept = source.layers
    source.layers = nn.ModuleList([kept[-1]])
    try:
        copied = copy.deepcopy(source)
    finally:
        source.layers = kept
    copied.first = source.first + len(kept) - 1
    return copied


@torch.inference_mode()
def cls_states(classifier: Classifier, hidden: Ragged, *, batch: int = 128) -> Tensor:
    """Last hidden states at [CLS], (n, d), from states that enter the last layer."""
    out = torch.empty(len(hidden), hidden.flat.shape[-1], dtype=hidden.flat.dtype, device=hidden.flat.device)
    for index in by_length(hidden.lengths, batch):
        states, mask = hidden.padded(index)
        out[index.to(out.device)] = cls_layer(classifier.last, states, mask)
    return out


@torch.inference_mode()
def losses(forward: Forward, hidden: Ragged, labels: Tensor, *, batch: int = 128) -> tuple[Tensor, Tensor]:
    """Cross-entropy (n,) and correctness (n,) of every pair."""
    loss = torch.empty(len(hidden), dtype=torch.float64)
    right = torch.empty(len(hidden), dtype=torch.bool)
    for index in by_length(hidden.lengths, batch):
        states, mask = hidden.padded(index)
        logits = forward(states, mask).cpu()
        loss[index] = functional.cross_entropy(logits, labels[index], reduction="none").double()
        right[index] = logits.argmax(-1) == labels[index]
    return loss, right


@torch.inference_mode()
def before_last(classifier: Classifier, hidden: Ragged, *, batch: int = 64) -> Ragged:
    """States that enter the last layer, unpadded, from those that enter the classifier's first layer."""
    starts = hidden.lengths.cumsum(0) - hidden.lengths
    flat = torch.empty_like(hidden.flat)
    for index in by_length(hidden.lengths, batch):
        states, mask = hidden.padded(index)
        where = torch.cat([torch.arange(int(starts[i]), int(starts[i] + hidden.lengths[i])) for i in index])
        flat[where.to(flat.device)] = classifier.before_last(states, mask)[mask]
    return Ragged(flat, hidden.lengths)

"""Shift-aware fine-tuning: choose or weight target pairs by their likeness to the source (suggested in section 6.3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from icl_core import _validate
from icl_core.language import training
from icl_core.language.encoders import Classifier
from icl_core.language.natural_shift import Domain
from icl_core.language.training import TUNE_NATURAL, Schedule

RULES = ("nearest", "farthest", "random", "sampled", "weighted")


def weights(similarity: Tensor, temperature: float = 1.0) -> Tensor:
    """Weights proportional to exp(z / temperature), of mean 1; z is the similarity in standard deviations.

    Parameters
    ----------
    similarity : Tensor
        (n,) likeness of each pair to the source.
    temperature : float
        Small is strict; a negative one prefers unlike pairs.
    """
    _check(similarity, least=2)
    _validate.real("temperature", temperature)
    if temperature == 0:
        raise ValueError("temperature must not be 0, got 0")
    values = similarity.double()
    share = ((values - values.mean()) / values.std().clamp_min(1e-12) / temperature).softmax(0)
    return share * values.numel()


def _check(similarity: Tensor, *, least: int) -> None:
    if not isinstance(similarity, Tensor) or similarity.ndim != 1 or similarity.numel() < least:
        came = tuple(similarity.shape) if isinstance(similarity, Tensor) else type(similarity).__name__
        raise ValueError(f"similarity must be a vector (tensor) of at least {least} numbers, got {came}")
    if not similarity.isfinite().all():
        bad = int((~similarity.isfinite()).sum())
        raise ValueError(f"similarity must hold finite numbers, got {bad} that are not")


def choose(similarity: Tensor, size: int, rule: str, *, temperature: float = 1.0, seed: int = 0) -> Tensor:
    """Choose ``size`` fine-tuning pairs; returns their indices.

    Parameters
    ----------
    similarity : Tensor
        (n,) likeness of each pair to the source.
    size : int
        In [1, n].
    rule : {"nearest", "farthest", "random", "sampled", "weighted"}
        The most or least alike, a uniform draw, or a draw without replacement with :func:`weights`. ``"weighted"`` is
        a uniform draw, to be trained on with :func:`weights` as loss weights.
    temperature : float
        Of the weights.
    seed : int
        Seed of the draw.
    """
    _validate.choice("rule", rule, RULES)
    _check(similarity, least=1)
    _validate.integer("size", size, least=1, most=similarity.numel())
    draws = torch.Generator().manual_seed(seed)
    if rule in ("nearest", "farthest"):
        return similarity.argsort(descending=rule == "nearest", stable=True)[:size]
    if rule == "sampled":
        return torch.multinomial(weights(similarity, temperature), size, replacement=False, generator=draws)
    return torch.randperm(similarity.numel(), generator=draws)[:size]


def trade_off(
    classifier: Classifier,
    home: Domain,
    target: Domain,
    embedding: str,
    *,
    size: int,
    rates: Sequence[float],
    rules: Sequence[str] = RULES,
    draws: int = 3,
    hold_out: float = 0.3,
    schedule: Schedule = TUNE_NATURAL,
    seed: int = 0,
) -> list[dict[str, Any]]:
    """Measure what each rule gains on the target and costs on the source.

    A random part of the target is held out and used for the gain alone, so that every rule is judged on the same pairs.

    Parameters
    ----------
    home, target : Domain
        Source validation pairs, target pairs.
    embedding : str
        Key of ``target.similarity``.
    size : int
        Pairs to fine-tune on, the same for every rule.
    rates : sequence of float
        Learning rates: one point of the curve each.
    draws : int
        Repetitions (other fine-tuning draws, orders and dropout).
    hold_out : float
        Share of the target held out, in (0, 1).

    Returns
    -------
    list of dict
        ``rule``, ``rate``, ``draw``, ``target_gain`` (drop of the cross-entropy on the held-out target pairs),
        ``source_loss`` (rise on the source's), and both as changes of the error rate.
    """
    _validate.integer("draws", draws, least=1)
    _validate.real("hold_out", hold_out, above=0.0, below=1.0)
    _validate.reals("rates", rates, above=0.0)
    for rule in rules:
        _validate.choice("rules", rule, RULES)
    _validate.choice("embedding", embedding, sorted(target.similarity))
    pairs = len(target.labels)
    _validate.integer("size", size, least=1, most=pairs - round(hold_out * pairs))
    if not round(hold_out * pairs):
        raise ValueError(f"hold_out must leave at least one of {pairs} target pairs, got {hold_out!r}")
    order = torch.randperm(len(target.labels), generator=torch.Generator().manual_seed(seed))
    cut = round(hold_out * order.numel())
    test, pool = order[:cut], order[cut:]
    similarity = target.similarity[embedding][pool]
    test_states = target.states.take(test)
    rows: list[dict[str, Any]] = []
    for rule in rules:
        for draw in range(draws):
            picked = choose(similarity, size, rule, seed=seed + 10 * draw + 1)
            index = pool[picked]
            loss_weights = weights(similarity[picked]) if rule == "weighted" else None
            for rate in rates:
                tuned = training.tune_last_layer(
                    classifier,
                    target.states.take(index),
                    target.labels[index],
                    replace(schedule, rate=rate),
                    shuffle_seed=seed + 10 * draw + 2,
                    dropout_seed=seed + 10 * draw + 3,
                    weights=loss_weights,
                )
                away, right_away = training.losses(tuned, test_states, target.labels[test])
                back, right_back = training.losses(tuned, home.states, home.labels)
                rows.append(
                    {
                        "rule": rule,
                        "rate": rate,
                        "draw": draw,
                        "target_gain": float((target.loss[test] - away).mean()),
                        "source_loss": float((back - home.loss).mean()),
                        "target_error_drop": float(right_away.double().mean() - target.right[test].double().mean()),
                        "source_error_rise": float(home.right.double().mean() - right_back.double().mean()),
                    }
                )
    return rows

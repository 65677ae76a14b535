"""Figures 3 and 4: BERT-type encoders on MRPC, MultiNLI and SNLI; sweeps that resume, tables and pictures."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from icl_core.language import data, encoders, mrpc, natural_shift, shift_aware
from icl_core.language.data import Pairs

GENERATED = "generated"


def cache_folder() -> Path:
    """Where hidden states and trained models are kept: ``$ICL_CORE_CACHE``, else a folder in the user's cache."""
    root = os.environ.get("ICL_CORE_CACHE")
    return Path(root) if root else Path.home() / ".cache" / "icl_core"


@functools.lru_cache(maxsize=2)
def _encoder(model: str) -> encoders.Encoder:
    return encoders.load(model)


@functools.lru_cache(maxsize=2)
def _mrpc(folder: str) -> tuple[Pairs, Pairs]:
    if folder == GENERATED:
        return data.generated(400, seed=1), data.generated(120, seed=2)
    found = data.mrpc(folder or None)
    return found["train"], found["dev"]


def mrpc_point(
    number: int, model: str, folder: str, head_std: float = encoders.HEAD_STD, fixed: Sequence[str] = ()
) -> dict[str, Any]:
    """Run number ``number`` of figure 3, for :func:`icl_core.results.sweep`; see :func:`icl_core.language.mrpc.run`.

    Parameters
    ----------
    model : str
        See :func:`icl_core.language.encoders.load`.
    folder : str
        MRPC folder, ``""`` for ``$ICL_CORE_DATA/mrpc``, or ``"generated"``.
    """
    train, dev = _mrpc(folder)
    return mrpc.run(_encoder(model), train, dev, number, head_std=head_std, fixed=fixed, cache=cache_folder())


@functools.lru_cache(maxsize=2)
def _natural(folder: str) -> dict[str, Pairs]:
    if folder == GENERATED:
        styles = {"train": 0.2, "dev": 0.2, "telephone": 0.5, "snli": 0.9}
        counts = {"train": 192, "dev": 96, "telephone": 192, "snli": 400}
        return {
            name: data.generated(counts[name], seed=i, style=style)
            for i, (name, style) in enumerate(styles.items(), 11)
        }
    return data.natural(folder or None)


TRADE_RATES = (2e-5, 6e-5, 2e-4)


def natural_point(number: int, model: str, folder: str, trade: Sequence[str] = ("telephone", "snli")) -> dict[str, Any]:
    """Run number ``number`` of figure 4 with the trade-off of shift-aware fine-tuning, for a sweep.

    Parameters
    ----------
    model : str
        See :func:`icl_core.language.encoders.load`.
    folder : str
        Folder with ``multinli/`` and ``snli/``, ``""`` for ``$ICL_CORE_DATA``, or ``"generated"``.
    trade : sequence of str
        Domains on which choice and weighting of fine-tuning pairs are measured.
    """
    domains = _natural(folder)
    encoder = _encoder(model)
    classifier = natural_shift.train_source(encoder, domains["train"], number, cache=cache_folder())
    seen = natural_shift.observe(encoder, classifier, domains, cache=cache_folder())
    found = natural_shift.measure(classifier, seen, number)
    rows: list[dict[str, Any]] = []
    for name in trade:
        size = natural_shift.scaled(name, len(seen[name].labels))[0]
        rows += [
            {"run": number, "domain": name, "size": size} | row
            for row in shift_aware.trade_off(
                classifier,
                seen["dev"],
                seen[name],
                "pretrained-mean",
                size=size,
                rates=TRADE_RATES,
                hold_out=0.1 if name == "snli" else 0.3,
                seed=1000 * number + 8,
            )
        ]
    return found | {"trade": rows}

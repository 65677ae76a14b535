"""Text-pair data sets: MRPC, MultiNLI, SNLI, any JSON-lines file of labelled pairs, and a small generated set.

Text stays where it is: these readers take a folder, a file or the hub, and the environment variable
``ICL_CORE_DATA`` names a default folder with ``mrpc/``, ``multinli/`` and ``snli/`` inside. Nothing here is downloaded
unless ``hub`` is asked for.
"""

from __future__ import annotations

import csv
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from icl_core import _validate

MRPC_COUNTS = {"train": 3668, "dev": 408, "test": 1725}  # Appendix C
MRPC_COLUMNS = ["Quality", "#1 ID", "#2 ID", "#1 String", "#2 String"]
MRPC_LABELS = ("not_equivalent", "equivalent")
NLI_LABELS = ("entailment", "neutral", "contradiction")
UNLABELLED = ("-", "", None, -1)
SOURCE_GENRE = "fiction"
GENRES = ("government", "slate", "telephone", "travel")


@dataclass(frozen=True)
class Pairs:
    """Labelled pairs of sentences.

    Parameters
    ----------
    name : str
        Data set and split, for every output.
    first, second : tuple of str
        The two sentences of every pair.
    labels : tuple of int
        Indices into ``names``.
    names : tuple of str
        The labels.
    dropped : int
        How many rows without a label were left out.
    generated : bool
        Whether the text was made by :func:`generated`.
    genre : tuple of str
        Genre of every pair, empty strings where there is none.
    """

    name: str
    first: tuple[str, ...]
    second: tuple[str, ...]
    labels: tuple[int, ...]
    names: tuple[str, ...]
    dropped: int = 0
    generated: bool = False
    genre: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        if not self.labels:
            raise ValueError(
                f"{self.name} must hold at least one labelled pair, got none ({self.dropped} without label)"
            )
        if not len(self.first) == len(self.second) == len(self.labels):
            raise ValueError(f"{self.name} must have as many labels as pairs, got {len(self.labels)}")
        for label in set(self.labels):
            _validate.integer(f"labels of {self.name}", label, least=0, most=len(self.names) - 1)
        for text in (*self.first, *self.second):
            if not isinstance(text, str):
                raise ValueError(f"texts of {self.name} must be strings, got {text!r}")

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, index: Sequence[int], name: str | None = None) -> Pairs:
        """The pairs at ``index``, in that order."""
        return Pairs(
            self.name if name is None else name,
            tuple(self.first[i] for i in index),
            tuple(self.second[i] for i in index),
            tuple(self.labels[i] for i in index),
            self.names,
            0,
            self.generated,
            tuple(self.genre[i] for i in index) if self.genre else (),
        )

    def of_genre(self, genre: str) -> Pairs:
        """The pairs of one genre.

        Raises
        ------
        ValueError
            If there is no such genre; names those there are.
        """
        index = [i for i, found in enumerate(self.genre) if found == genre]
        if not index:
            raise ValueError(f"genre must be one of {sorted(set(self.genre))}, got {genre!r}")
        return self.take(index, f"{self.name}/{genre}")

    def majority(self) -> float:
        """Accuracy of always answering with the commonest label."""
        return max(self.labels.count(k) for k in set(self.labels)) / len(self)

    def prior_loss(self) -> float:
        """Cross-entropy, in nats, of answering every pair with the label frequencies: the entropy of the labels."""
        share = torch.tensor([self.labels.count(k) / len(self) for k in set(self.labels)], dtype=torch.float64)
        return float(-(share * share.log()).sum())

    def digest(self) -> str:
        """Hash of texts and labels."""
        text = json.dumps([self.first, self.second, self.labels, self.names])
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def together(name: str, parts: Sequence[Pairs]) -> Pairs:
    """Join sets that have the same labels."""
    if len({part.names for part in parts}) != 1:
        raise ValueError(f"parts must share one list of labels, got {sorted({part.names for part in parts})}")
    return Pairs(
        name,
        tuple(text for part in parts for text in part.first),
        tuple(text for part in parts for text in part.second),
        tuple(label for part in parts for label in part.labels),
        parts[0].names,
        sum(part.dropped for part in parts),
        any(part.generated for part in parts),
        tuple(genre for part in parts for genre in (part.genre or ("",) * len(part))),
    )


def folder(name: str) -> Path | None:
    """``$ICL_CORE_DATA/name`` if it is there, else None."""
    root = os.environ.get("ICL_CORE_DATA")
    path = None if not root else Path(root) / name
    return path if path is not None and path.is_dir() else None


# --- MRPC -------------------------------------------------------------------------------------------------------------


def mrpc(source: str | os.PathLike[str] | None = None, *, counts: bool = True) -> dict[str, Pairs]:
    """Read MRPC as {"train", "dev"} and, where there is one with labels, "test".

    Parameters
    ----------
    source : path, optional
        A folder with the official files ``msr_paraphrase_train.txt``, ``msr_paraphrase_test.txt`` and GLUE's
        ``dev_ids.tsv``, or a GLUE folder with ``train.tsv`` and ``dev.tsv``, or ``"hub"`` (needs the package
        ``datasets`` and a network). The default is ``$ICL_CORE_DATA/mrpc``.
    counts : bool
        Require the paper's counts (Appendix C): 3,668 / 408 / 1,725.

    Raises
    ------
    FileNotFoundError
        If a file is missing.
    ValueError
        On wrong columns, an unknown label, an empty file, a dev id that is not there, or wrong counts.
    """
    if source is None:
        source = folder("mrpc")
        if source is None:
            raise FileNotFoundError("no MRPC folder: pass one, or set ICL_CORE_DATA to a folder that holds mrpc/")
    if str(source) == "hub":
        found = _mrpc_hub()
    else:
        root = Path(source)
        if (root / "msr_paraphrase_train.txt").is_file():
            found = _mrpc_official(root)
        elif (root / "train.tsv").is_file() and (root / "dev.tsv").is_file():
            found = {split: _mrpc_pairs(_tsv(root / f"{split}.tsv"), split) for split in ("train", "dev")}
        else:
            raise FileNotFoundError(
                f"{root} must hold msr_paraphrase_train.txt with dev_ids.tsv, or train.tsv and dev.tsv"
            )
    if counts:
        for split, pairs in found.items():
            if len(pairs) != MRPC_COUNTS[split]:
                raise ValueError(f"MRPC {split} must hold {MRPC_COUNTS[split]} pairs, got {len(pairs)}")
    return found


def _tsv(path: Path) -> list[dict[str, str]]:
    # Quotation marks are text in this file, and it starts with a byte-order mark.
    try:
        with path.open(encoding="utf-8-sig", newline="") as lines:
            rows = list(csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE))
    except UnicodeDecodeError as error:
        raise ValueError(f"{path.name} must be UTF-8 text: {error}") from error
    if not rows:
        raise ValueError(f"{path.name} must hold a header and rows, got an empty file")
    if rows[0] != MRPC_COLUMNS:
        raise ValueError(f"{path.name} must have columns {MRPC_COLUMNS}, got {rows[0]}")
    for number, row in enumerate(rows[1:], 2):
        if len(row) != len(MRPC_COLUMNS):
            raise ValueError(f"{path.name} line {number} must have {len(MRPC_COLUMNS)} columns, got {len(row)}")
    return [dict(zip(MRPC_COLUMNS, row, strict=True)) for row in rows[1:]]


def _mrpc_pairs(rows: Sequence[Mapping[str, str]], split: str) -> Pairs:
    for row in rows:
        if row["Quality"] not in ("0", "1"):
            raise ValueError(f"MRPC {split}: Quality must be '0' or '1', got {row['Quality']!r}")
    return Pairs(
        f"MRPC {split}",
        tuple(row["#1 String"].strip() for row in rows),
        tuple(row["#2 String"].strip() for row in rows),
        tuple(int(row["Quality"]) for row in rows),
        MRPC_LABELS,
    )


def _mrpc_official(root: Path) -> dict[str, Pairs]:
    rows = _tsv(root / "msr_paraphrase_train.txt")
    listing = root / "dev_ids.tsv"
    if not listing.is_file():
        raise FileNotFoundError(f"{root} must hold dev_ids.tsv, GLUE's list of the validation pairs")
    try:
        ids = [tuple(line.split("\t")) for line in listing.read_text(encoding="utf-8").splitlines() if line.strip()]
    except UnicodeDecodeError as error:
        raise ValueError(f"{listing.name} must be UTF-8 text: {error}") from error
    wanted = set(ids)
    known = {(row["#1 ID"], row["#2 ID"]) for row in rows}
    if not wanted <= known:
        raise ValueError(
            f"dev_ids.tsv names {len(wanted - known)} pairs that are not there, such as {min(wanted - known)}"
        )
    dev = [row for row in rows if (row["#1 ID"], row["#2 ID"]) in wanted]
    train = [row for row in rows if (row["#1 ID"], row["#2 ID"]) not in wanted]
    found = {"train": _mrpc_pairs(train, "train"), "dev": _mrpc_pairs(dev, "dev")}
    if (root / "msr_paraphrase_test.txt").is_file():
        found["test"] = _mrpc_pairs(_tsv(root / "msr_paraphrase_test.txt"), "test")
    return found


def _datasets() -> Any:
    try:
        import datasets  # type: ignore[import-not-found, unused-ignore]  # optional
    except ImportError as error:
        raise ValueError("source 'hub' needs the package datasets: pip install datasets") from error
    return datasets


def _hub_labels(rows: Any, expected: Sequence[str]) -> tuple[str, ...]:
    names = tuple(rows.features["label"].names)
    if names != tuple(expected):
        raise ValueError(f"the hub's labels must be {tuple(expected)}, got {names}")
    return names


def _mrpc_hub() -> dict[str, Pairs]:
    loaded = _datasets().load_dataset("nyu-mll/glue", "mrpc")
    found = {}
    for split, theirs in (("train", "train"), ("dev", "validation"), ("test", "test")):
        rows = loaded[theirs]
        names = _hub_labels(rows, MRPC_LABELS)
        found[split] = Pairs(
            f"MRPC {split}", tuple(rows["sentence1"]), tuple(rows["sentence2"]), tuple(map(int, rows["label"])), names
        )
    return found


# --- MultiNLI, SNLI, any JSON lines -----------------------------------------------------------------------------------


def jsonl(
    path: str | os.PathLike[str],
    *,
    names: Sequence[str] = NLI_LABELS,
    first: str = "sentence1",
    second: str = "sentence2",
    label: str = "gold_label",
    genre: str = "genre",
) -> Pairs:
    """Read labelled pairs from a JSON-lines file; the defaults are the field names of the MultiNLI and SNLI corpora.

    Rows whose label is ``"-"`` or missing (no majority among the annotators) are left out and counted.

    Parameters
    ----------
    path : path
        UTF-8, one object a line.
    names : sequence of str
        The labels that may occur, in the order of their indices.
    first, second, label, genre : str
        Field names; ``genre`` may be absent.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        On a line that is not an object, a missing field, an unknown label or an empty file; names the line.
    """
    file = Path(path)
    if not file.is_file():
        raise FileNotFoundError(f"no such file: {file}")
    rows: list[tuple[str, str, int, str]] = []
    dropped = 0
    try:
        # Not splitlines: a JSON string may hold other line separators, such as U+2028, as they are.
        lines = file.read_text(encoding="utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{file.name} must be UTF-8 text: {error}") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"{file.name} line {number} must be a JSON object: {error}") from error
        if not isinstance(row, dict) or not {first, second} <= row.keys():
            raise ValueError(f"{file.name} line {number} must have the fields {first!r} and {second!r}")
        if row.get(label) in UNLABELLED:
            dropped += 1
            continue
        if row[label] not in names:
            raise ValueError(f"{file.name} line {number}: {label} must be one of {list(names)}, got {row[label]!r}")
        for key in (first, second):
            if not isinstance(row[key], str):
                raise ValueError(f"{file.name} line {number}: {key} must be a string, got {row[key]!r}")
        rows.append((row[first], row[second], list(names).index(row[label]), row.get(genre) or ""))
    if not rows:
        raise ValueError(f"{file.name} must hold at least one labelled pair, got none ({dropped} without label)")
    one, two, labels, genres = zip(*rows, strict=True)
    return Pairs(file.stem, one, two, labels, tuple(names), dropped, False, genres)


def natural(source: str | os.PathLike[str] | None = None) -> dict[str, Pairs]:
    """Read what the natural-shift runs need: source training and validation pairs, and one set for each domain.

    Parameters
    ----------
    source : path, optional
        A folder with ``multinli/*.jsonl`` and ``snli/*.jsonl`` or ``"hub"``; the default is ``$ICL_CORE_DATA``. A file
        with ``dev`` or ``test`` in its name gives the source's validation pairs, any other its training pairs; the
        other domains take all rows of all files.

    Returns
    -------
    dict
        ``train`` and ``dev`` (fiction), ``government``, ``slate``, ``telephone``, ``travel``, ``snli``.
    """
    if str(source) == "hub":
        train, dev, other = _natural_hub()
    else:
        root = Path(source if source is not None else os.environ.get("ICL_CORE_DATA", ""))
        if not (root / "multinli").is_dir() or not (root / "snli").is_dir():
            raise FileNotFoundError("no folder with multinli/ and snli/: pass one, or set ICL_CORE_DATA")
        files = {part: [jsonl(path) for path in sorted((root / part).glob("*.jsonl"))] for part in ("multinli", "snli")}
        for part, read in files.items():
            if not read:
                raise FileNotFoundError(f"{root / part} must hold .jsonl files")
        held = [pairs for pairs in files["multinli"] if "dev" in pairs.name or "test" in pairs.name]
        rest = [pairs for pairs in files["multinli"] if pairs not in held]
        if not held or not rest:
            raise FileNotFoundError(
                f"{root / 'multinli'} must hold a training file and one with 'dev' or 'test' in its name"
            )
        train, dev, other = (
            together("MultiNLI train", rest),
            together("MultiNLI dev", held),
            together("SNLI", files["snli"]),
        )
    both = together("MultiNLI", [train, dev])
    domains = {"train": train.of_genre(SOURCE_GENRE), "dev": dev.of_genre(SOURCE_GENRE)}
    domains |= {genre: both.of_genre(genre) for genre in GENRES}
    return domains | {"snli": other}


def _natural_hub() -> tuple[Pairs, Pairs, Pairs]:
    def read(name: str, split: str) -> Pairs:
        rows = _datasets().load_dataset(name, split=split)
        names = _hub_labels(rows, NLI_LABELS)
        keep = [i for i, label in enumerate(rows["label"]) if label in range(len(names))]
        one, two, labels = list(rows["premise"]), list(rows["hypothesis"]), list(rows["label"])
        genres = list(rows["genre"]) if "genre" in rows.features else [""] * len(labels)
        return Pairs(
            f"{name} {split}",
            tuple(one[i] for i in keep),
            tuple(two[i] for i in keep),
            tuple(int(labels[i]) for i in keep),
            names,
            len(labels) - len(keep),
            False,
            tuple(genres[i] for i in keep),
        )

    train, dev = read("nyu-mll/multi_nli", "train"), read("nyu-mll/multi_nli", "validation_matched")
    return train, dev, read("stanfordnlp/snli", "train")


# --- generated text ---------------------------------------------------------------------------------------------------

_SYNONYMS = {
    "people": (("man", "fellow"), ("woman", "lady"), ("child", "kid"), ("doctor", "physician"), ("lawyer", "attorney")),
    "acts": (
        ("bought", "purchased"),
        ("sold", "traded"),
        ("fixed", "repaired"),
        ("hid", "concealed"),
        ("found", "located"),
    ),
    "things": (
        ("car", "automobile"),
        ("house", "home"),
        ("picture", "painting"),
        ("gift", "present"),
        ("stone", "rock"),
    ),
    "times": (("today", "now"), ("often", "frequently"), ("quickly", "rapidly"), ("later", "afterwards")),
}
_FILLERS = ("the", "a", "it", "was", "who", "that", "by")
GENERATED_WORDS = (*_FILLERS, *(word for group in _SYNONYMS.values() for pair in group for word in pair))
NOTE = "generated sentences, not a corpus"


def generated(count: int, *, seed: int = 0, style: float = 0.5) -> Pairs:
    """Make paraphrase pairs from a small grammar with synonyms, labelled as generated.

    A positive pair says the same thing twice with words exchanged for synonyms; a negative one changes who did it or
    what was done.

    Parameters
    ----------
    count : int
        Number of pairs.
    seed : int
        Seed of the draws.
    style : float
        Probability of the rarer synonym, in [0, 1]: another value gives another domain.
    """
    _validate.integer("count", count, least=1)
    _validate.real("style", style, least=0.0, most=1.0)
    draws = torch.Generator().manual_seed(seed)

    def draw(n: int) -> int:
        return int(torch.randint(n, (1,), generator=draws))

    def say(meaning: dict[str, int]) -> str:
        words = {
            group: _SYNONYMS[group][k][int(torch.rand(1, generator=draws).item() < style)]
            for group, k in meaning.items()
        }
        if draw(2):
            return f"the {words['people']} {words['acts']} a {words['things']} {words['times']}"
        return f"{words['times']} the {words['things']} was {words['acts']} by the {words['people']}"

    first, second, labels = [], [], []
    for _ in range(count):
        meaning = {group: draw(len(options)) for group, options in _SYNONYMS.items()}
        other = dict(meaning)
        label = draw(2)
        if not label:
            group = ("people", "acts")[draw(2)]
            other[group] = (meaning[group] + 1 + draw(len(_SYNONYMS[group]) - 1)) % len(_SYNONYMS[group])
        first.append(say(meaning))
        second.append(say(other))
        labels.append(label)
    return Pairs(NOTE, tuple(first), tuple(second), tuple(labels), MRPC_LABELS, 0, True)

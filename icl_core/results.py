"""Result tables: CSV for the numbers beside JSON for their provenance, and sweeps that resume where they stopped."""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor, as_completed
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import pandas as pd

SCHEMA = 1
_VERSIONED = ("icl-core", "torch", "numpy", "scipy", "numba", "transformers")


@dataclass(frozen=True)
class Table:
    """Numbers with the story of how they were made.

    Parameters
    ----------
    frame : pandas.DataFrame
        One row per result.
    provenance : dict
        As returned by :func:`provenance`.
    columns : dict of str to str, optional
        Meaning and unit of each column.
    """

    frame: pd.DataFrame
    provenance: dict[str, Any]
    columns: dict[str, str] = field(default_factory=dict)


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=Path(__file__).parent, capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def commit() -> str | None:
    """Commit of the clone that holds the package, ``+changes`` appended if dirty; None outside a clone."""
    package = Path(__file__).resolve().parent
    top = _git("rev-parse", "--show-toplevel")
    # An installed copy inside someone else's repository is not a clone of this project.
    if top is None or Path(top).resolve() != package.parent:
        return None
    head = _git("rev-parse", "HEAD")
    if head is None:
        return None
    return head + ("+changes" if _git("status", "--porcelain", "--", "icl_core") else "")


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that can change a number."""
    found = {"python": platform.python_version()}
    for name in _VERSIONED:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def provenance(
    parameters: Mapping[str, Any],
    *,
    seed: int | None = None,
    device: str = "cpu",
    started: float | None = None,
    command: str | None = None,
    **extra: Any,
) -> dict[str, Any]:
    """Describe how a result was made.

    Parameters
    ----------
    parameters : mapping
        Everything that, with the seed, decides the numbers.
    seed : int, optional
        Seed of the ``torch.Generator`` behind every draw.
    device : str
        Where it ran.
    started : float, optional
        ``time.perf_counter()`` when the work began; gives ``seconds``.
    command : str, optional
        Shell command that makes the table again.
    **extra
        Further facts, such as the model or the data set.

    Returns
    -------
    dict
        JSON-ready record.
    """
    record: dict[str, Any] = {
        "schema": SCHEMA,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "commit": commit(),
        "parameters": json.loads(json.dumps(dict(parameters), default=_plain)),
        "seed": seed,
        "device": device,
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs",
        "versions": versions(),
        "seconds": None if started is None else round(time.perf_counter() - started, 3),
        "command": command,
    }
    record.update(extra)
    return record


def _plain(value: Any) -> Any:
    """Turn numpy and torch scalars and arrays into what JSON knows."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    if isinstance(value, Path):
        return value.name
    raise TypeError(f"cannot store {type(value).__name__} in a result: {value!r}")


def write_table(path: str | os.PathLike[str], table: Table) -> Path:
    """Write ``path``.csv and ``path``.json, each in one step so that an interrupted write leaves no half file."""
    base = Path(path).with_suffix("")
    base.parent.mkdir(parents=True, exist_ok=True)
    note = {"provenance": table.provenance, "columns": table.columns}
    for suffix, text in (
        (".csv", table.frame.to_csv(index=False, lineterminator="\n")),
        (".json", json.dumps(note, indent=1, default=_plain) + "\n"),
    ):
        partial = base.with_suffix(suffix + ".part")
        partial.write_text(text, encoding="utf-8")
        partial.replace(base.with_suffix(suffix))
    return base.with_suffix(".csv")


def read_table(path: str | os.PathLike[str]) -> Table:
    """Read a table written by :func:`write_table`.

    Raises
    ------
    FileNotFoundError
        If either file is missing; names it.
    ValueError
        If the schema is newer than this version reads.
    """
    base = Path(path).with_suffix("")
    for suffix in (".csv", ".json"):
        if not base.with_suffix(suffix).is_file():
            raise FileNotFoundError(f"no result table at {base.with_suffix(suffix)}")
    note = json.loads(base.with_suffix(".json").read_text(encoding="utf-8"))
    found = note["provenance"].get("schema")
    if found != SCHEMA:
        raise ValueError(f"{base.with_suffix('.json')} has schema {found!r}, expected {SCHEMA}")
    return Table(pd.read_csv(base.with_suffix(".csv")), note["provenance"], note["columns"])


def sweep(
    function: Callable[..., Mapping[str, Any]],
    points: Iterable[Mapping[str, Any]],
    *,
    store: str | os.PathLike[str] | None = None,
    executor: Executor | None = None,
    progress: bool = False,
) -> list[dict[str, Any]]:
    """Call ``function(**point)`` for every point, keeping each result as soon as it is there.

    Parameters
    ----------
    function : callable
        Takes a point's entries as keywords, returns a JSON-ready mapping. Any randomness must come from the point.
    points : iterable of mapping
        JSON-ready keyword arguments; points are independent.
    store : path, optional
        A JSON-lines file, appended to as results arrive. Points already there are not computed again, and a line
        cut short by an interruption is dropped.
    executor : concurrent.futures.Executor, optional
        Where to run; the default runs in this process. Any standard executor serves.
    progress : bool
        Write one line to standard error per finished point.

    Returns
    -------
    list of dict
        The results in the order of ``points``.
    """
    wanted = [dict(point) for point in points]
    keys = [_key(function, point) for point in wanted]
    path = None if store is None else Path(store)
    done = {} if path is None else _read_lines(path)
    missing = {key: point for key, point in zip(keys, wanted, strict=True) if key not in done}

    def keep(key: str, result: Mapping[str, Any]) -> None:
        done[key] = json.loads(json.dumps(dict(result), default=_plain))
        if path is not None:
            with path.open("a", encoding="utf-8") as lines:
                lines.write(json.dumps({"key": key, "point": missing[key], "result": done[key]}, default=_plain) + "\n")
        if progress:
            print(f"[{sum(k in done for k in set(keys))}/{len(set(keys))}] {missing[key]}", file=sys.stderr, flush=True)

    if executor is None:
        for key, point in missing.items():
            keep(key, function(**point))
    else:
        futures = {executor.submit(function, **point): key for key, point in missing.items()}
        for future in as_completed(futures):
            keep(futures[future], future.result())
    return [done[key] for key in keys]


def _key(function: Callable[..., Any], point: Mapping[str, Any]) -> str:
    text = json.dumps([function.__module__, function.__qualname__, point], sort_keys=True, default=_plain)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _read_lines(path: Path) -> dict[str, dict[str, Any]]:
    """Read a sweep's store; a torn last line is cut off so that the next append starts on a line of its own."""
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        return {}
    done: dict[str, dict[str, Any]] = {}
    good: list[str] = []
    torn = False
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            entry = json.loads(line)
            done[entry["key"]] = entry["result"]
        except (json.JSONDecodeError, KeyError, TypeError):
            torn = True
            continue
        good.append(line)
    if torn:
        path.write_text("".join(line + "\n" for line in good), encoding="utf-8")
    return done

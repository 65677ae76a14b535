"""Figures with controls: tables computed here, looked up and drawn by ``book/_static/explorable.js``.

A figure is a declaration: controls (each a list of values), panels (what is drawn), and tables (nested lists indexed by
the positions of the controls they depend on). The script in the page knows how to look up and how to draw, no formula;
a new figure needs no new script.
"""

from __future__ import annotations

import html
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from torch import Tensor

SCHEMA = 1


@dataclass(frozen=True)
class Control:
    """Something to set.

    Parameters
    ----------
    name : str
        What tables and sentences call it.
    label : str
        What the reader sees.
    values : tuple
        Its values in order.
    shown : tuple of str
        How they are written; by default as they are.
    start : int
        Position of the first value shown.
    kind : {"slider", "choice"}
    """

    name: str
    label: str
    values: tuple[float | str, ...]
    shown: tuple[str, ...] = ()
    start: int = 0
    kind: Literal["slider", "choice"] = "slider"


@dataclass(frozen=True)
class Heatmap:
    """A matrix as coloured cells with their numbers; ``table`` holds one matrix per setting."""

    title: str
    table: str
    rows: str
    columns: str
    palette: Literal["diverging", "sequential"] = "sequential"
    low: float = 0.0
    high: float = 1.0
    kind: Literal["heatmap"] = "heatmap"


@dataclass(frozen=True)
class Series:
    """A line; ``table`` holds one list of numbers per setting."""

    label: str
    table: str


@dataclass(frozen=True)
class Lines:
    """Curves over a common axis.

    Parameters
    ----------
    title, x_label, y_label : str
    x : str
        A control, whose values are the axis, or a table with one list of numbers per setting.
    series : tuple of Series
    marker : str, optional
        A control that the axis shows; a vertical line and dots stand at its value.
    log_x, log_y : bool
        Logarithmic axes; what is not positive is left out.
    x_ticks : tuple of float
        Where to write numbers on the axis; by default at round ones.
    bands : str, optional
        A table with one list of pairs (from, to) per setting, shaded behind the curves; an empty pair, from = to, is
        left out.
    band_labels : tuple of str
        What to write at the top of each band, where there is room.
    """

    title: str
    x: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    marker: str | None = None
    log_x: bool = False
    log_y: bool = False
    x_ticks: tuple[float, ...] = ()
    bands: str | None = None
    band_labels: tuple[str, ...] = ()
    kind: Literal["lines"] = "lines"


@dataclass(frozen=True)
class Lookup:
    """A table: ``values[i][j]...`` for positions i, j, ... of the controls in ``depends``."""

    depends: tuple[str, ...]
    values: Any


@dataclass(frozen=True)
class Explorable:
    """A figure with controls; a notebook shows it as HTML.

    Parameters
    ----------
    name : str
        Identifier, also of the file that the reader can download.
    title : str
        What it shows.
    controls, panels, tables
        See the module.
    sentence : str
        What the figure says in words; ``{name}`` stands for a control's value or a table's number.
    provenance : dict
        As from :func:`icl_core.results.provenance`.

    Raises
    ------
    ValueError
        If a panel, sentence or table names what is not there, or a table's shape does not fit its controls.
    """

    name: str
    title: str
    controls: tuple[Control, ...]
    panels: tuple[Heatmap | Lines, ...]
    tables: dict[str, Lookup]
    sentence: str = ""
    provenance: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        lengths = {control.name: len(control.values) for control in self.controls}
        for control in self.controls:
            if control.shown and len(control.shown) != len(control.values):
                raise ValueError(
                    f"shown must have one text per value of {control.name}, "
                    f"{len(control.values)}, got {len(control.shown)}"
                )
            if not 0 <= control.start < len(control.values):
                raise ValueError(f"start must be a position in the values of {control.name}, got {control.start}")
        for name, table in self.tables.items():
            unknown = [c for c in table.depends if c not in lengths]
            if unknown:
                raise ValueError(f"depends of table {name} must name controls, got {unknown[0]!r}")
            _fits(name, table.values, [lengths[c] for c in table.depends])
            for number in numbers(table.values):
                if not math.isfinite(number):
                    raise ValueError(f"table {name} must hold finite numbers, got {number!r}")
        wanted = []
        for panel in self.panels:
            if isinstance(panel, Heatmap):
                wanted.append(panel.table)
                continue
            wanted += [series.table for series in panel.series]
            if panel.x not in lengths:
                wanted.append(panel.x)
            if panel.bands is not None:
                wanted.append(panel.bands)
            if panel.marker is not None and panel.marker != panel.x:
                raise ValueError(f"marker must be the control on the axis, {panel.x!r}, got {panel.marker!r}")
        missing = [name for name in wanted if name not in self.tables]
        if missing:
            raise ValueError(f"tables must hold {missing[0]!r}, which a panel shows, got {', '.join(self.tables)}")
        try:
            self.sentence.format(**lengths, **dict.fromkeys(self.tables, ""))
        except (KeyError, IndexError, ValueError):
            raise ValueError(f"sentence must name controls and tables in braces, got {self.sentence!r}") from None

    def specification(self) -> dict[str, Any]:
        """Return what the script reads."""
        return {"schema": SCHEMA, **asdict(self)}

    def __repr__(self) -> str:
        return f"{self.title} (a figure with controls; it works in the built book)"

    def _repr_html_(self) -> str:
        # A "</" would end the script element that holds the data.
        data = json.dumps(self.specification(), separators=(",", ":"), allow_nan=False).replace("</", "<\\/")
        return (
            f'<div class="explorable" data-explorable="{html.escape(self.name)}">'
            f'<p class="explorable-title">{html.escape(self.title)}</p>'
            "<p>This figure has controls in the built book, with JavaScript on. "
            "The figures above show the same numbers without it.</p>"
            f'<script type="application/json">{data}</script></div>'
        )


def rounded(value: Tensor | float, digits: int = 4) -> Any:
    """Return numbers as nested lists with so many significant digits: what a picture needs, at a small size."""
    if isinstance(value, Tensor):
        return _each(value.tolist(), digits)
    return float(f"{value:.{digits}g}")


def _each(value: Any, digits: int) -> Any:
    return [_each(v, digits) for v in value] if isinstance(value, list) else float(f"{value:.{digits}g}")


def numbers(values: Any) -> Iterator[float]:
    """Yield every number in nested lists."""
    if isinstance(values, (list, tuple)):
        for value in values:
            yield from numbers(value)
    else:
        yield values


def _fits(name: str, values: Any, lengths: Sequence[int]) -> None:
    if not lengths:
        return
    if not isinstance(values, (list, tuple)) or len(values) != lengths[0]:
        found = len(values) if isinstance(values, (list, tuple)) else "a number"
        raise ValueError(f"table {name} must have one entry per value of its controls, {lengths[0]}, got {found}")
    for value in values:
        _fits(name, value, lengths[1:])

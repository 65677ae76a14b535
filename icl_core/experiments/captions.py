"""What stands under every figure of the book: how long it took, how to make it again, and its data to download."""

from __future__ import annotations

import base64
import html
import json
from dataclasses import dataclass

from icl_core.results import Table


@dataclass(frozen=True)
class Footer:
    """The line under a figure; a notebook shows it as HTML.

    The data travel inside the links, so that they need neither a server nor a file beside the page.

    Parameters
    ----------
    tables : dict of str to Table
        File name without suffix -> the table drawn.
    """

    tables: dict[str, Table]

    def __repr__(self) -> str:
        return f"{self._facts()} Data: {', '.join(self.tables)}."

    def _facts(self) -> str:
        first = next(iter(self.tables.values())).provenance
        seconds = [t.provenance["seconds"] for t in self.tables.values() if t.provenance.get("seconds") is not None]
        spent = f"{_duration(max(seconds))}" if seconds else ""
        # A table put together from a store of finished runs knows the CPU time of each, not the time by the clock.
        if not seconds and first.get("cpu_seconds"):
            spent = f"{_duration(sum(first['cpu_seconds']))} of CPU time"
        return f"Computed in {spent} on {first['device']}, {first['date']}." if spent else ""

    def _repr_html_(self) -> str:
        first = next(iter(self.tables.values())).provenance
        again = f" Again: <code>{html.escape(first['command'])}</code>." if first.get("command") else ""
        links = []
        for name, table in self.tables.items():
            note = {"provenance": table.provenance, "columns": table.columns}
            links.append(_link(f"{name}.csv", "text/csv", table.frame.to_csv(index=False, lineterminator="\n")))
            links.append(_link(f"{name}.json", "application/json", json.dumps(note, indent=1, default=str) + "\n"))
        return f'<p class="figure-footer">{html.escape(self._facts())}{again} Data: {", ".join(links)}.</p>'


def footer(**tables: Table) -> Footer:
    """Return the line under a figure that shows ``tables``; a keyword names the files, ``_`` becoming ``-``.

    Raises
    ------
    ValueError
        Without a table.
    """
    if not tables:
        raise ValueError("tables must name at least one result table, got none")
    return Footer({name.replace("_", "-"): table for name, table in tables.items()})


def command(chapter: str, **parameters: object) -> str:
    """Shell command that runs a chapter with these values.

    >>> command("ood-generalisation", K=5, plane=[1, 2])
    "icl-core run ood-generalisation -p K=5 -p 'plane=[1, 2]'"
    """
    import shlex

    return " ".join(["icl-core run", chapter, *(f"-p {shlex.quote(f'{k}={v}')}" for k, v in parameters.items())])


def _duration(seconds: float) -> str:
    return f"{seconds:.2g} s" if seconds < 99.5 else f"{seconds / 60:.0f} min"


def _link(name: str, kind: str, text: str) -> str:
    body = base64.b64encode(text.encode()).decode()
    return f'<a download="{name}" href="data:{kind};base64,{body}">{name}</a>'

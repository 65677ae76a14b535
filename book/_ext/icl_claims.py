"""Sphinx extension: the ledger of claims in the book. Every verdict comes from the document of ``icl-core verify``.

Directives ``claim``, ``claim-list``, ``claim-index``, ``claim-graph``, ``claims-at-a-glance``, ``errata`` and
``reliability``; role ``verdict``. The document is ``$ICL_CORE_VERIFY_JSON``, else ``_build/verify-fast.json``.
"""

from __future__ import annotations

import difflib
import html
import json
import os
import re
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import networkx as nx
from docutils import nodes
from docutils.parsers.rst import directives
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.errors import ExtensionError
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective, SphinxRole

LOGGER = logging.getLogger(__name__)
SCHEMA = 1
PAPERS = {"ood": "OOD paper", "conv": "Convergence paper"}
# Glyph and words: a badge must be read without its colour.
VERDICTS = {
    "holds": ("✓", "holds"),
    "holds-corrected": ("✎", "holds, corrected"),
    "conditional": ("◐", "conditional"),
    "refuted": ("✗", "refuted"),
    "proof-gap": ("△", "proof gap"),
    "order": ("∝", "order measured"),
    "definition": ("≔", "definition"),
    "reproduced": ("◉", "reproduced"),
    "not-reproduced": ("⊘", "not reproduced"),
    "inconclusive": ("?", "inconclusive"),
    "unchecked": ("○", "unchecked"),
}
STRENGTHS = ("exact", "certified", "adversarial", "swept", "monte-carlo", "trend")
# Border of a graph node: width and dashes, the strongest evidence drawn the firmest.
BORDERS = {
    "exact": (3.0, ""),
    "certified": (1.6, ""),
    "adversarial": (1.6, "9 3"),
    "swept": (1.6, "5 3"),
    "monte-carlo": (1.6, "2 3"),
    "trend": (1.6, "9 3 2 3"),
    None: (0.6, ""),
}
WRONG = ("holds-corrected", "conditional", "refuted", "proof-gap")
# What is kept on the application (the ledger), and with the pages between builds (page and fragment of each statement
# and record; the page of the index): Sphinx has its extensions set attributes for this.
LEDGER, STATED, RECORDS, INDEX = "icl_ledger", "icl_claims", "icl_records", "icl_index"


class pending_claim(nodes.Inline, nodes.Element):
    """Becomes a link once every page has been read and it is known where each claim stands."""


class pending_graph(nodes.General, nodes.Element):
    """Becomes an inline SVG at the same time."""


class Ledger:
    """The verify document, by id."""

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise ExtensionError(
                f"no verdicts at {path}: run `icl-core verify --fast --json {path.name}`, or build with `make book`"
            )
        document = json.loads(path.read_text(encoding="utf-8"))
        if document.get("schema") != SCHEMA:
            raise ExtensionError(f"{path} has schema {document.get('schema')!r}, this extension reads {SCHEMA}")
        self.document = document
        self.claims: dict[str, dict[str, Any]] = {claim["id"]: claim for claim in document["claims"]}

    def of(self, paper: str | None) -> list[dict[str, Any]]:
        """Claims of one paper, or of both."""
        return [claim for claim in self.claims.values() if paper in (None, claim["paper"])]

    def edges(self) -> Iterator[tuple[str, str, bool]]:
        """Yield (used, user, declared); a use of a whole split statement counts as one of each of its parts."""
        for user, claim in self.claims.items():
            declared = {part for used in claim["uses"] for part in self.parts(used)}
            called = {part for used in claim.get("uses_called") or () for part in self.parts(used)}
            for used in sorted((declared | called) - {user}):
                yield used, user, used in declared

    def parts(self, claim_id: str) -> list[str]:
        """Ids meant by ``claim_id``: itself, or the records it was split into."""
        if claim_id in self.claims:
            return [claim_id]
        return [other for other in self.claims if other.startswith(f"{claim_id}.")]


def slug(claim_id: str) -> str:
    """Fragment for an id; its dots would need escapes in style sheets."""
    return claim_id.replace(".", "-")


def badge(claim: dict[str, Any]) -> nodes.inline:
    """Verdict and strength as text."""
    glyph, words = VERDICTS[claim["verdict"]]
    node = nodes.inline(classes=["claim-badge", f"verdict-{claim['verdict']}"])
    text = f"{glyph} {words}" + (f" · {claim['strength']}" if claim.get("strength") else "")
    node += nodes.Text(text)
    return node


def verdict_badge(verdict: str) -> nodes.inline:
    """A badge of a verdict alone."""
    return badge({"verdict": verdict, "strength": None})


# How the ledger writes formulas in plain text, for a terminal, and how a page shows them.
GREEK = {
    "alpha": "α", "beta": "β", "gamma": "γ", "delta": "δ", "eps": "ε", "eta": "η", "theta": "θ", "lambda": "λ",
    "xi": "ξ", "pi": "π", "rho": "ρ", "sigma": "σ", "Delta": "Δ", "Lambda": "Λ",
}  # fmt: skip
SIGNS = {
    "<=": "≤", ">=": "≥", "+-": "±", " - ": " − ", " x ": " × ", "sqrt(": "√(", "sqrt ": "√", "vbar": "v̄",
    "rho_hat": "ρ̂", "grad": "∇",
}  # fmt: skip
FORMULA = re.compile(
    r"(?P<sign><=|>=|\+-(?=\d)| - |(?<=[\dK]) x (?=[\dK])|\bsqrt(?:\(| (?=eps))"
    r"|\bvbar\b|\brho_hat\b|\bgrad\b(?= [uvw]))"
    rf"|(?P<greek>(?<![A-Za-z])(?:{'|'.join(GREEK)})(?![A-Za-z]))(?P<index>\d?)"
    r"|(?<=[A-Za-z)|\]])_(?P<sub>\{[^}]*\}|\([^)]*\)|[a-z]'(?=[\s)(|,;]|$)|[A-Za-z0-9]+)"
    r"|(?<=[A-Za-z0-9)])\^(?P<sup>\{[^}]*\}|\([^()]*\)|-?[0-9]+(?:\.[0-9]+)?|[A-Za-z])"
    r"|(?P<transposed>(?<![A-Za-z])(?:[MUVW]|[uvw](?:_?\d)?)|(?<=\)))'(?=[A-Z ,;:.)]|[uvw](?:_?\d)?\b|$)"
    r"|(?P<mantissa>\b\d+(?:\.\d+)?)e(?P<power>[+-]?\d+)\b"
    r"|(?P<minus>(?<![\w)])-(?=[\d.]|[a-zA-Z]\b|[a-zA-Z]_|(?:alpha|beta|gamma|sin|sqrt|log)))"
    r"|<(?P<product>[a-z]\w*, [a-z]\w*)>"
)


def typeset(text: str) -> list[nodes.Node]:
    """Inline nodes of a text with formulas in plain characters: Greek letters, sub- and superscripts, minus signs.

    >>> [str(node) for node in typeset("eps <= 1")]
    ['ε ≤ 1']
    """
    found: list[nodes.Node] = []

    def add(words: str) -> None:
        if found and isinstance(found[-1], nodes.Text):
            words = str(found.pop()) + words
        found.append(nodes.Text(words))

    def inner(words: str) -> str:
        plain = re.sub(r"[A-Za-z]+", lambda m: GREEK.get(m[0], m[0]), words.strip("{}()"))
        return plain.replace("-", "−").replace("'", "′")

    end = 0
    for match in FORMULA.finditer(text):
        if match.start() > end:
            add(text[end : match.start()])
        end = match.end()
        if match["sign"]:
            add(SIGNS[match["sign"]])
        elif match["greek"]:
            add(GREEK[match["greek"]])
            if match["index"]:
                found.append(nodes.subscript("", match["index"]))
        elif match["sub"]:
            found.append(nodes.subscript("", inner(match["sub"])))
        elif match["sup"]:
            found.append(nodes.superscript("", inner(match["sup"])))
        elif match["transposed"] is not None:
            found.extend(typeset(match["transposed"]))
            found.append(nodes.superscript("", "⊤"))
        elif match["mantissa"]:
            add("10" if match["mantissa"] == "1" else f"{match['mantissa']}·10")
            found.append(nodes.superscript("", str(int(match["power"])).replace("-", "−")))
        elif match["product"]:
            found.extend([nodes.Text("⟨"), *typeset(match["product"]), nodes.Text("⟩")])
        else:
            add("−")
    if end < len(text):
        add(text[end:])
    return found


def ledger_of(app: Sphinx) -> Ledger:
    """The ledger of this build."""
    found: Ledger = vars(app)[LEDGER]
    return found


def places_of(env: BuildEnvironment, name: str) -> dict[str, tuple[str, str]]:
    """Page and fragment by claim: of the chapters' statements, or of the records."""
    found: dict[str, tuple[str, str]] = vars(env).setdefault(name, {})
    return found


class ClaimDirective(SphinxDirective):
    """What the directives share: the ledger and parsing of MyST text that came from it."""

    @property
    def ledger(self) -> Ledger:
        return ledger_of(self.env.app)

    def claim(self, claim_id: str) -> dict[str, Any]:
        """Record of an id; an unknown one is an error that names the nearest."""
        if claim_id not in self.ledger.claims:
            near = difflib.get_close_matches(claim_id, self.ledger.claims, n=3, cutoff=0.5)
            hint = f"; near it: {', '.join(near)}" if near else ""
            raise self.error(f"no claim {claim_id!r} in the verify document{hint}")
        return self.ledger.claims[claim_id]

    def myst(self, text: str) -> list[nodes.Node]:
        """Blocks of a MyST text."""
        holder = nodes.container()
        self.state.nested_parse(StringList(text.strip().splitlines(), self.get_source_info()[0]), 0, holder)
        return list(holder.children)

    def words(self, text: str) -> list[nodes.Node]:
        """Inline nodes of a one-paragraph text: MyST where it has formulas or code, else as it is."""
        if "$" not in text and "`" not in text:
            return [nodes.Text(text)]
        blocks = self.myst(text)
        if len(blocks) == 1 and isinstance(blocks[0], nodes.paragraph):
            return list(blocks[0].children)
        return [nodes.Text(text)]

    def link(self, claim_id: str, *content: nodes.Node, record: bool = False) -> pending_claim:
        """A link to where a claim stands."""
        node = pending_claim(claim_id=claim_id, record=record)
        node.extend(content or (nodes.Text(claim_id),))
        return node

    def links(self, ids: Iterable[str]) -> list[nodes.Node]:
        """Links to several claims, with commas."""
        found: list[nodes.Node] = []
        for claim_id in (part for given in ids for part in self.ledger.parts(given)):
            if found:
                found.append(nodes.Text(", "))
            found.append(self.link(claim_id))
        return found

    def head(self, claim: dict[str, Any], *, linked: bool = False, record: bool = False) -> nodes.paragraph:
        """Label, title and badge."""
        name = nodes.strong("", claim["label"])
        line = nodes.paragraph(classes=["claim-head"])
        line += self.link(claim["id"], name, record=record) if linked else name
        line += nodes.Text(" ")
        marked = "$" in claim["title"] or "`" in claim["title"]
        title = self.words(claim["title"]) if marked else typeset(claim["title"])
        line += nodes.inline("", "", nodes.Text("("), *title, nodes.Text(")"))
        line += nodes.Text(" ")
        line += badge(claim)
        return line

    def part(self, name: str, text: str | None) -> list[nodes.Node]:
        """A named passage, or nothing."""
        if not text:
            return []
        marked = "$" in text or "`" in text or "\n" in text.strip()
        blocks = self.myst(text) if marked else [nodes.paragraph("", "", *typeset(text))]
        title = nodes.strong(classes=["claim-part"])
        title += nodes.Text(f"{name}: ")
        if isinstance(blocks[0], nodes.paragraph):
            blocks[0].insert(0, title)
        else:
            blocks.insert(0, nodes.paragraph("", "", title))
        return blocks

    def findings(self, claim: dict[str, Any]) -> list[nodes.Node]:
        """Say what is wrong and what is right instead."""
        return [
            *self.part("Why the printed form fails", claim.get("why")),
            *self.part("Counterexample", claim.get("counterexample")),
            *self.part("Corrected", claim.get("correction")),
            *self.part("Holds if also", claim.get("added_hypothesis")),
            *self.part("Strongest true statement", claim.get("strongest_true")),
            *self.part("Unchecked because", claim.get("unchecked")),
        ]

    def command(self, claim: dict[str, Any]) -> nodes.literal:
        return nodes.literal("", f"icl-core show {claim['id']}")

    def evidence(self, check: dict[str, Any]) -> nodes.paragraph:
        """One check in a line or two."""
        if check["error"]:
            outcome = f"! {check['error']}"
        else:
            outcome = {True: "✓ passes", False: "✗ fails", None: "? undecided"}[check["passed"]]
        line = nodes.paragraph(classes=["claim-check"])
        line += nodes.strong("", f"{outcome} ")
        line += nodes.Text(f"[{check['role']}] ")
        line.extend(self.words(check["name"]))
        facts = [check["strength"], f"{check['cases']} cases" if check["cases"] else None, check["dtype"]]
        facts += [f"{name} {check[name]:.3g}" for name in ("residual", "margin") if check.get(name) is not None]
        if check.get("tolerance") is not None:
            source = f" ({check['tolerance_source']})" if check.get("tolerance_source") else ""
            facts.append(f"tolerance {check['tolerance']:.3g}{source}")
        facts += [f"seed {check['seed']}"] if check.get("seed") is not None else []
        facts.append(f"{check['seconds']:.2g} s")
        for text in ("; ".join(str(fact) for fact in facts if fact), check.get("region"), check.get("detail")):
            if text:
                line += nodes.Text(". " if line.astext()[-1:] not in ".:" else " ")
                line.extend(self.words(text))
        return line


class Claim(ClaimDirective):
    """A statement in our own words with its badge, and what is wrong with the printed form."""

    required_arguments = 1
    has_content = True

    def run(self) -> list[nodes.Node]:
        claim = self.claim(self.arguments[0])
        anchor = f"claim-{slug(claim['id'])}"
        places = places_of(self.env, STATED)
        block = nodes.container(classes=["claim", f"claim-{claim['verdict']}"])
        if places.setdefault(claim["id"], (self.env.docname, anchor)) == (self.env.docname, anchor):
            block["ids"] = [anchor]
        block += self.head(claim)
        block.extend(self.myst(claim["statement"]))
        if self.content:
            self.state.nested_parse(self.content, self.content_offset, block)
        block.extend(self.findings(claim))
        foot = nodes.paragraph(classes=["claim-foot"])
        foot += nodes.Text(f"{PAPERS[claim['paper']]} · ")
        foot += self.command(claim)
        foot += nodes.Text(" · ")
        foot += self.link(claim["id"], nodes.Text("full record"), record=True)
        block += foot
        return [block]


class ClaimList(ClaimDirective):
    """Every record in full."""

    option_spec: ClassVar = {"paper": directives.unchanged}

    def run(self) -> list[nodes.Node]:
        users: dict[str, list[str]] = {}
        for used, user, _ in self.ledger.edges():
            users.setdefault(used, []).append(user)
        blocks: list[nodes.Node] = []
        for claim in self.ledger.of(self.options.get("paper")):
            anchor = f"record-{slug(claim['id'])}"
            places_of(self.env, RECORDS)[claim["id"]] = (self.env.docname, anchor)
            block = nodes.container(classes=["claim", f"claim-{claim['verdict']}"], ids=[anchor])
            block += self.head(claim, linked=True)
            block.extend(self.myst(claim["statement"]))
            if claim["hypotheses"]:
                block.extend(self.myst("\n".join(f"- {text}" for text in claim["hypotheses"])))
            block.extend(self.part("Rebuilt from damaged text", claim.get("reconstruction")))
            block.extend(self.findings(claim))
            block.extend(self.part("Note", claim.get("note")))
            ties = (("Uses", claim["uses"]), ("Used by", users.get(claim["id"], ())), ("The same as", claim["same_as"]))
            for name, ids in ties:
                links = self.links(ids)
                if links:
                    block += nodes.paragraph("", "", nodes.strong("", f"{name}: "), *links)
            mutants = claim["mutants"]
            count = (
                f"{len(claim['checks'])} check{'s' if len(claim['checks']) != 1 else ''}; "
                f"mutants: {mutants['killed']} killed, {mutants['survived']} survived"
            )
            block += nodes.raw("", f"<details><summary>{count}</summary>", format="html")
            block.extend(self.evidence(check) for check in claim["checks"])
            block += nodes.raw("", "</details>", format="html")
            block += nodes.paragraph("", "", self.command(claim), classes=["claim-foot"])
            blocks.append(block)
        return blocks


class ClaimIndex(ClaimDirective):
    """One line a claim, with a filter that needs no network."""

    def run(self) -> list[nodes.Node]:
        vars(self.env)[INDEX] = self.env.docname
        claims = self.ledger.of(None)

        def menu(name: str, options: list[tuple[str, str]], counts: Counter[str]) -> str:
            entries = "".join(
                f'<option value="{value}">{html.escape(words)} ({counts[value]})</option>'
                for value, words in options
                if counts[value]
            )
            return f'<label>{name} <select data-filter="{name}"><option value="">all</option>{entries}</select></label>'

        strength = Counter(claim["strength"] or "none" for claim in claims)
        form = [
            menu("paper", list(PAPERS.items()), Counter(claim["paper"] for claim in claims)),
            menu("verdict", [(v, f"{g} {w}") for v, (g, w) in VERDICTS.items()], Counter(c["verdict"] for c in claims)),
            menu("strength", [(s, s) for s in (*STRENGTHS, "none")], strength),
            '<label>text <input type="search" data-filter="text"></label>',
            '<output aria-live="polite"></output>',
        ]
        rows = nodes.container(classes=["claim-rows"])
        for claim in claims:
            kinds = [
                f"paper-{claim['paper']}",
                f"verdict-is-{claim['verdict']}",
                f"strength-{claim['strength'] or 'none'}",
            ]
            row = nodes.container(classes=["claim-row", *kinds])
            row += nodes.paragraph("", "", self.link(claim["id"], nodes.Text(claim["id"])), classes=["claim-id"])
            title = nodes.paragraph(
                "", "", nodes.strong("", claim["label"]), nodes.Text(" "), *self.words(claim["title"])
            )
            row += title
            row += nodes.paragraph("", "", badge(claim))
            rows += row
        control = f'<form class="claim-filter" hidden onsubmit="return false">{"".join(form)}</form>'
        return [nodes.raw("", control, format="html"), rows]


class Glance(ClaimDirective):
    """Counts per paper and verdict."""

    def run(self) -> list[nodes.Node]:
        papers = [paper for paper in PAPERS if self.ledger.of(paper)]
        count = Counter((claim["paper"], claim["verdict"]) for claim in self.ledger.of(None))

        def query(verdict: str, paper: str | None, content: nodes.Node) -> pending_claim:
            wanted = f"verdict={verdict}" + (f"&paper={paper}" if paper else "")
            return pending_claim("", content, query=wanted)

        rows: list[list[nodes.Node]] = []
        for verdict in VERDICTS:
            cells = [count[paper, verdict] for paper in papers]
            if not sum(cells):
                continue
            row: list[nodes.Node] = [query(verdict, None, verdict_badge(verdict))]
            for paper, number in zip(papers, cells, strict=True):
                row.append(query(verdict, paper, nodes.Text(str(number))) if number else nodes.Text("0"))
            rows.append([*row, nodes.Text(str(sum(cells)))])
        totals = [len(self.ledger.of(paper)) for paper in papers]
        rows.append([nodes.Text(str(text)) for text in ("all", *totals, sum(totals))])
        return [table(["verdict", *(PAPERS[paper].removesuffix(" paper") for paper in papers), "both"], rows)]


class Errata(ClaimDirective):
    """What is wrong in print, why, what is right, and how to see it."""

    option_spec: ClassVar = {"paper": directives.unchanged}

    def run(self) -> list[nodes.Node]:
        found = [claim for claim in self.ledger.of(self.options.get("paper")) if claim["verdict"] in WRONG]
        if not found:
            return [nodes.paragraph("", "None found.")]
        blocks: list[nodes.Node] = []
        for claim in found:
            block = nodes.container(classes=["claim", "erratum", f"claim-{claim['verdict']}"])
            block["ids"] = [f"erratum-{slug(claim['id'])}"]
            block += self.head(claim, linked=True)
            block.extend(self.part("As printed", claim["statement"]))
            block.extend(self.part("Rebuilt from damaged text", claim.get("reconstruction")))
            block.extend(self.findings(claim))
            block.extend(self.part("Note", claim.get("note")))
            shown = [c for c in claim["checks"] if c["passed"] and c["role"] not in ("printed", "reading")]
            block += nodes.raw("", "<details><summary>evidence</summary>", format="html")
            block.extend(self.evidence(check) for check in shown)
            block += nodes.raw("", "</details>", format="html")
            block += nodes.paragraph("", "", nodes.Text("To reproduce: "), self.command(claim), classes=["claim-foot"])
            blocks.append(block)
        return blocks


class Reliability(ClaimDirective):
    """What ran and what did not."""

    def run(self) -> list[nodes.Node]:
        document, claims = self.ledger.document, self.ledger.of(None)
        checks = [(claim, check) for claim in claims for check in claim["checks"]]
        late = [pair for pair in checks if "timed out" in (pair[1]["error"] or "")]
        broken = [pair for pair in checks if pair[1]["error"] and pair not in late]
        undecided = [pair for pair in checks if pair[1]["passed"] is None and not pair[1]["error"]]
        # A printed statement that fails is a finding, not a failure of the ledger.
        failed = [
            pair
            for pair in checks
            if pair[1]["passed"] is False and pair[1]["role"] not in ("printed", "reading", "criterion")
        ]
        refusing = [
            p for p in checks if p[1]["passed"] is False and p[1]["role"] in ("printed", "reading", "criterion")
        ]
        disabled = [claim for claim in claims if claim["verdict"] == "unchecked"]
        killed = sum(claim["mutants"]["killed"] for claim in claims)
        survivors = [(claim, name) for claim in claims for name in claim["mutants"].get("names_survived", ())]
        faults = [(claim, fault) for claim in claims for fault in claim.get("faults", ())]
        missing = document.get("missing") or []
        form = "fast" if document["fast"] else "full"
        rows: list[tuple[str, Any]] = [
            ("records", len(claims)),
            ("required statements without a record", len(missing)),
            ("checks run", len(checks)),
            ("of these, passed", sum(check["passed"] is True for _, check in checks)),
            ("rejected a printed form, another reading, or a figure's criterion", len(refusing)),
            ("failed otherwise", len(failed)),
            ("undecided", len(undecided)),
            ("timed out", len(late)),
            ("stopped with an error", len(broken)),
            ("records that stay unchecked, with the reason", len(disabled)),
            ("mutants killed", killed),
            ("mutants survived", len(survivors)),
            ("form of this run", form),
            ("seconds", document["seconds"]),
            ("commit", (document.get("commit") or "")[:12] or "none: not a clone"),
            *document["versions"].items(),
        ]
        shown: list[nodes.Node] = [table(["what", "count"], [[nodes.Text(n), nodes.Text(str(v))] for n, v in rows])]

        def listing(title: str, entries: list[tuple[dict[str, Any], str]]) -> None:
            if entries:
                shown.append(nodes.rubric("", title))
                items = nodes.bullet_list()
                for claim, text in entries:
                    line = nodes.paragraph("", "", self.link(claim["id"]), nodes.Text(": "), *self.words(text))
                    items += nodes.list_item("", line)
                shown.append(items)

        listing("Failed, timed out, undecided", [
            (claim, f"{check['name']}: {check['error'] or ('failed' if check['passed'] is False else 'undecided')}")
            for claim, check in (*failed, *late, *broken, *undecided)
        ])  # fmt: skip
        listing("Surviving mutants", survivors)
        listing("Faults of the records themselves", faults)
        listing(
            "Unchecked", [(claim, claim.get("unchecked") or claim.get("note") or "no check yet") for claim in disabled]
        )
        if missing:
            shown.append(nodes.rubric("", "Required statements without a record"))
            shown.append(nodes.paragraph("", ", ".join(missing)))
        return shown


class Graph(ClaimDirective):
    """Who rests on whom, as a picture whose nodes are links."""

    option_spec: ClassVar = {"paper": directives.unchanged}

    def run(self) -> list[nodes.Node]:
        return [pending_graph(paper=self.options.get("paper"))]


class VerdictRole(SphinxRole):
    """An inline badge that links to its claim."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        ledger = ledger_of(self.env.app)
        claim = ledger.claims.get(self.text)
        if claim is None:
            near = difflib.get_close_matches(self.text, ledger.claims, n=3, cutoff=0.5)
            hint = f"; near it: {', '.join(near)}" if near else ""
            message = self.inliner.reporter.error(
                f"no claim {self.text!r} in the verify document{hint}", line=self.lineno
            )
            return [self.inliner.problematic(self.rawtext, self.rawtext, message)], [message]
        label = nodes.Text(f"{claim['label']} ")
        return [pending_claim("", label, badge(claim), claim_id=self.text, record=False)], []


def table(heads: list[str], rows: list[list[nodes.Node]]) -> nodes.table:
    """A plain table."""
    group = nodes.tgroup(cols=len(heads))
    group.extend(nodes.colspec(colwidth=1) for _ in heads)
    body = nodes.tbody()
    for cells in rows:
        body += nodes.row("", *(nodes.entry("", nodes.paragraph("", "", cell)) for cell in cells))
    first = nodes.row("", *(nodes.entry("", nodes.paragraph("", head)) for head in heads))
    group += nodes.thead("", first)
    group += body
    return nodes.table("", group, classes=["claim-table"])


# ---------------------------------------------------------------------------------------- resolving


def place(env: BuildEnvironment, claim_id: str, record: bool) -> tuple[str, str] | None:
    """Page and fragment of a claim: the chapter that states it, else its record."""
    stated = None if record else places_of(env, STATED).get(claim_id)
    return stated or places_of(env, RECORDS).get(claim_id)


def resolve(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Turn what waits for the places of claims into links and pictures."""

    def uri(claim_id: str, record: bool = False) -> str | None:
        found = place(app.env, claim_id, record)
        if found is None:
            return None
        page = "" if found[0] == docname else app.builder.get_relative_uri(docname, found[0])
        return f"{page}#{found[1]}"

    for node in list(doctree.findall(pending_claim)):
        if "query" in node:
            index = vars(app.env).get(INDEX)
            target = f"{app.builder.get_relative_uri(docname, index)}?{node['query']}" if index else None
        else:
            target = uri(node["claim_id"], node["record"])
            if target is None:
                LOGGER.warning("no page shows claim %s: a page needs a claim-list", node["claim_id"], location=docname)
        if target is None:
            node.replace_self(node.children)
        else:
            node.replace_self(nodes.reference("", "", *node.children, internal=True, refuri=target))
    for number, node in enumerate(list(doctree.findall(pending_graph))):
        picture = draw(ledger_of(app), node["paper"], uri)
        node.replace_self(nodes.raw("", (legend() if number == 0 else "") + picture, format="html"))


# ------------------------------------------------------------------------------------------- graph

# Five columns fill the text's width at 1280 px; a phone scrolls the picture in its own box.
NODE, ROW, COLUMNS, GAP = (124, 38), 76, 5, 8


def weakest(ledger: Ledger, graph: nx.DiGraph, claim_id: str) -> str:
    """Weakest evidence among all that a claim rests on; definitions carry none and do not count."""
    scale = (*STRENGTHS, "unchecked")
    found = []
    for other in nx.ancestors(graph, claim_id):
        claim = ledger.claims[other]
        if claim["strength"] or claim["verdict"] != "definition":
            found.append(claim["strength"] or "unchecked")
    return max(found, key=scale.index, default="")


def draw(ledger: Ledger, paper: str | None, uri: Any) -> str:
    """The graph as inline SVG: what is used stands above what uses it."""
    whole = nx.DiGraph()
    whole.add_nodes_from(ledger.claims)
    declared = set()
    for used, user, said in sorted(ledger.edges(), key=lambda edge: not edge[2]):
        # A call that would close a circle (two records checked by one another's formula) is no support.
        if not nx.has_path(whole, user, used):
            whole.add_edge(used, user)
            if said:
                declared.add((used, user))
    shown = [c["id"] for c in ledger.of(paper) if whole.degree(c["id"])]
    loose = [c["id"] for c in ledger.of(paper) if not whole.degree(c["id"])]
    graph = whole.subgraph(shown)
    reduced = nx.transitive_reduction(graph)
    spots: dict[str, tuple[int, int]] = {}
    line = 0
    for generation in nx.topological_generations(graph):
        # Near the mean column of what it uses, so that fewer lines cross.
        order = sorted(
            generation,
            key=lambda n: (
                sum(spots[p][0] for p in graph.predecessors(n)) / max(1, graph.in_degree(n)),
                shown.index(n),
            ),
        )
        for start in range(0, len(order), COLUMNS):
            group = order[start : start + COLUMNS]
            shift = (COLUMNS - len(group)) * (NODE[0] + GAP) // 2
            for column, name in enumerate(group):
                spots[name] = (8 + shift + column * (NODE[0] + GAP), 8 + line * ROW)
            line += 1
    width, height = 16 + COLUMNS * (NODE[0] + GAP), 16 + max(line, 1) * ROW
    parts = []
    for used, user in reduced.edges:
        x, y = spots[used][0] + NODE[0] / 2, spots[used][1] + NODE[1]
        u, v = spots[user][0] + NODE[0] / 2, spots[user][1]
        bend = max(16, (v - y) / 2)
        kind = "" if (used, user) in declared else " called"
        parts.append(
            f'<path class="edge{kind}" data-from="{slug(used)}" data-to="{slug(user)}" '
            f'd="M{x:g} {y:g}C{x:g} {y + bend:g} {u:g} {v - bend:g} {u:g} {v:g}"/>'
        )
    for name, (x, y) in spots.items():
        claim = ledger.claims[name]
        glyph, words = VERDICTS[claim["verdict"]]
        thick, dash = BORDERS[claim["strength"]]
        below = weakest(ledger, whole, name)
        short = name.split(".", 1)[1].replace(".proof.", "·")
        # A long name is set smaller, a very long one squeezed as well: cut off, many would look the same.
        fit = ' class="long"' if len(short) > 15 else ""
        fit += f' textLength="{NODE[0] - 12}" lengthAdjust="spacingAndGlyphs"' if len(short) > 19 else ""
        second = (claim["strength"] or "–") + (f" ↑ {below}" if below else "")
        own = f"own evidence: {claim['strength'] or 'none'}; weakest it rests on: {below or 'nothing'}"
        hint = html.escape(f"{name}: {claim['label']}, {words}; {own}")
        kind, box = f"node verdict-{claim['verdict']}", f'x="{x}" y="{y}" width="{NODE[0]}" height="{NODE[1]}"'
        target = uri(name)
        link = f' href="{html.escape(target)}"' if target else ""
        parts.append(
            f'<a{link} class="{kind}" data-id="{slug(name)}"><title>{hint}</title>'
            f'<rect {box} rx="5" stroke-width="{thick}" stroke-dasharray="{dash}"/>'
            f'<text{fit} x="{x + 6}" y="{y + 16}">{glyph} {html.escape(short)}</text>'
            f'<text class="second" x="{x + 6}" y="{y + 31}">{html.escape(second)}</text></a>'
        )
    svg = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="group" '
        f'style="width:{width}px" aria-label="which claim rests on which">{"".join(parts)}</svg>'
    )
    rest = ", ".join(f'<a href="{html.escape(uri(name) or "")}">{name}</a>' for name in loose)
    alone = f"<p>Tied to no other: {rest}.</p>" if rest else ""
    return f'<div class="claim-graph"><div class="claim-canvas" tabindex="0">{svg}</div>{alone}</div>'


def legend() -> str:
    """Key to glyphs, borders and arrows."""
    glyphs = "".join(
        f'<li><span class="claim-badge verdict-{name}">{glyph} {words}</span></li>'
        for name, (glyph, words) in VERDICTS.items()
    )
    borders = "".join(
        f'<li><svg width="34" height="14" aria-hidden="true"><rect x="2" y="2" width="30" height="10" rx="3" '
        f'fill="none" stroke="#333" stroke-width="{thick}" stroke-dasharray="{dash}"/></svg> {name or "none"}</li>'
        for name, (thick, dash) in BORDERS.items()
    )
    return (
        '<details class="claim-legend" open><summary>How to read it</summary>'
        f"<p>Glyph and colour: the verdict.</p><ul>{glyphs}</ul>"
        f"<p>Border, and the word at the lower left: the claim's own evidence.</p><ul>{borders}</ul>"
        "<p>After the ↑: the weakest evidence among all that the claim rests on. What is used stands above what "
        "uses it; a dashed line is a use that the check made and the record does not declare. Point at a claim, or "
        "reach it with the tab key, to see what it rests on and what rests on it; follow it to its statement.</p>"
        "</details>"
    )


# ------------------------------------------------------------------------------------------- set-up


def begin(app: Sphinx) -> None:
    """Load the ledger; refuse a build that would show chapters without their results."""
    source = Path(app.srcdir)
    if app.builder.format == "html" and (source / "icl_core").is_dir() and not (source / ".icl-core-staged").is_file():
        raise ExtensionError(
            "this book's pages are made from executed chapters: build it with `make book`, or `icl-core book`, "
            "which runs the chapters and then Jupyter Book on _build/staged"
        )
    path = os.environ.get("ICL_CORE_VERIFY_JSON") or source.parent / "verify-fast.json"
    vars(app)[LEDGER] = Ledger(Path(path))


def purge(_app: Sphinx, env: BuildEnvironment, docname: str) -> None:
    """Forget the claims of a page that is read again."""
    for name in (STATED, RECORDS):
        vars(env)[name] = {key: spot for key, spot in places_of(env, name).items() if spot[0] != docname}


def plotly(app: Sphinx, fault: Exception | None) -> None:
    """Give pages that use plotly the one script of the installed package."""
    if fault is not None or app.builder.format != "html":
        return
    out = Path(app.outdir)
    if any("_static/plotly.min.js" in page.read_text(encoding="utf-8") for page in out.rglob("*.html")):
        import plotly as package

        shutil.copy(Path(package.__file__).parent / "package_data" / "plotly.min.js", out / "_static" / "plotly.min.js")


def setup(app: Sphinx) -> dict[str, Any]:
    """Register everything."""
    app.add_node(pending_claim)
    app.add_node(pending_graph)
    for name, kind in {
        "claim": Claim, "claim-list": ClaimList, "claim-index": ClaimIndex, "claim-graph": Graph,
        "claims-at-a-glance": Glance, "errata": Errata, "reliability": Reliability,
    }.items():  # fmt: skip
        app.add_directive(name, kind)
    app.add_role("verdict", VerdictRole())
    app.connect("builder-inited", begin)
    app.connect("env-purge-doc", purge)
    app.connect("doctree-resolved", resolve)
    app.connect("build-finished", plotly)
    return {"version": "1", "parallel_read_safe": False, "parallel_write_safe": True}

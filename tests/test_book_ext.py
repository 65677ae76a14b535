"""The Sphinx extension for claims: a tiny site is built from a small verify document."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SAMPLE = ROOT / "tests" / "data" / "verify-sample.json"
PAGES = {
    "index": "# Begin\n\nSee {verdict}`ood.thm-5.1.scores`.\n\n```{claims-at-a-glance}\n```\n\n"
    "```{toctree}\none\nlists\nmore\n```\n",
    "one": "# One\n\n```{claim} ood.lem-D.1\nMore words.\n```\n",
    "lists": "# Lists\n\n```{claim-index}\n```\n\n```{claim-graph}\n```\n\n```{claim-list}\n```\n",
    "more": "# More\n\n## Errata\n\n```{errata}\n:paper: ood\n```\n\n## None\n\n```{errata}\n:paper: conv\n```\n\n"
    "```{reliability}\n```\n",
}


def build(folder: Path, pages: dict[str, str], document: Path) -> subprocess.CompletedProcess[str]:
    source = folder / "source"
    source.mkdir()
    for name, text in pages.items():
        (source / f"{name}.md").write_text(text, encoding="utf-8")
    (source / "conf.py").write_text(
        f"import sys\nsys.path.insert(0, {str(ROOT / 'book' / '_ext')!r})\n"
        'extensions = ["myst_parser", "icl_claims"]\nmyst_enable_extensions = ["dollarmath"]\nhtml_theme = "basic"\n',
        encoding="utf-8",
    )
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "-q",
        "-W",
        "-n",
        "--keep-going",
        "-b",
        "html",
        str(source),
        str(folder / "out"),
    ]
    environment = {**os.environ, "ICL_CORE_VERIFY_JSON": str(document)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("site")
    done = build(folder, PAGES, SAMPLE)
    assert done.returncode == 0, done.stderr
    return {name: (folder / "out" / f"{name}.html").read_text(encoding="utf-8") for name in PAGES}


def test_badges_are_words_and_link_to_the_record(site: dict[str, str]) -> None:
    assert "✓ holds · exact" in site["index"]
    assert 'href="lists.html#record-ood-thm-5-1-scores"' in site["index"]


def test_a_claim_block_shows_what_fails_and_what_holds(site: dict[str, str]) -> None:
    for text in (
        'id="claim-ood-lem-D-1"',
        "Counterexample",
        "left 1.5 &gt; right 1.2",
        "Corrected",
        "More words.",
        "ood.lem-D.1",
    ):
        assert text in site["one"]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("eps = 1e-20, alpha* <= -0.5", "ε = 10^{−20}, α* ≤ −0.5"),
        ("-u_1' grad u_1 = 2/27 for V'U", "−u_{1}^{⊤} ∇ u_{1} = 2/27 for V^{⊤}U"),
        ("<u_n, vbar> < 0, yet B_{k,n} > 1 - a", "⟨u_{n}, v̄⟩ < 0, yet B_{k,n} > 1 − a"),
        ("the query's share: 't >= T_1' means K^-2.5", "the query's share: 't ≥ T_{1}' means K^{−2.5}"),
        ("well-known, from 3 to 5", "well-known, from 3 to 5"),
    ],
)
def test_formulas_in_plain_text_are_typeset(monkeypatch: pytest.MonkeyPatch, text: str, shown: str) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "book" / "_ext"))
    found = importlib.import_module("icl_claims").typeset(text)
    marks = {"subscript": "_{%s}", "superscript": "^{%s}"}
    assert "".join(marks.get(node.tagname, "%s") % node.astext() for node in found) == shown


def test_the_chapter_is_preferred_to_the_record(site: dict[str, str]) -> None:
    assert 'href="one.html#claim-ood-lem-D-1"' in site["lists"]
    assert 'href="#record-ood-model"' in site["lists"]


def test_index_rows_carry_what_the_filter_asks_for(site: dict[str, str]) -> None:
    assert site["lists"].count("claim-row ") == 5
    assert "claim-row paper-conv verdict-is-order strength-trend" in site["lists"]
    assert '<option value="holds">✓ holds (1)</option>' in site["lists"]


def test_graph_expands_split_statements_and_knows_the_weakest_ancestor(site: dict[str, str]) -> None:
    assert 'class="edge" data-from="ood-thm-5-1-scores" data-to="ood-lem-D-1"' in site["lists"]
    assert "swept ↑ exact" in site["lists"]
    assert 'class="edge called" data-from="ood-thm-5-1-scores" data-to="conv-lem-4-5"' in site["lists"]


def test_glance_counts(site: dict[str, str]) -> None:
    assert "lists.html?verdict=holds-corrected&amp;paper=ood" in site["index"]


def test_errata_and_reliability(site: dict[str, str]) -> None:
    assert "As printed" in site["more"]
    assert "To reproduce: icl-core show ood.lem-D.1" in re.sub(r"<[^>]*>", "", site["more"])
    assert "None found." in site["more"]
    assert "Required statements without a record" in site["more"]


def test_an_unknown_id_fails_and_names_the_nearest(tmp_path: Path) -> None:
    pages = {"index": "# Begin\n\n```{claim} ood.lem-D.2\n```\n\n{verdict}`ood.modell`\n"}
    done = build(tmp_path, pages, SAMPLE)
    assert done.returncode != 0
    assert "no claim 'ood.lem-D.2' in the verify document; near it: ood.lem-D.1" in done.stderr
    assert "no claim 'ood.modell'" in done.stderr


@pytest.mark.parametrize(("content", "fault"), [(None, "icl-core verify --fast"), ({"schema": 99}, "schema 99")])
def test_a_missing_or_foreign_document_fails(tmp_path: Path, content: dict[str, int] | None, fault: str) -> None:
    document = tmp_path / "verify.json"
    if content is not None:
        document.write_text(json.dumps(content), encoding="utf-8")
    done = build(tmp_path, {"index": "# Begin\n"}, document)
    assert done.returncode != 0
    assert fault in done.stderr

"""Chapters: parameters, keys, runs, merging, staging."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import nbformat
import pytest
from conftest import CHAPTER

from icl_core import chapters

Book = Callable[..., Path]


def test_find_root_from_inside_and_its_error(small_book: Book, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = small_book()
    assert chapters.find_root(root / "book") == root.resolve()
    monkeypatch.setattr(chapters, "_PACKAGE", tmp_path / "site" / "icl_core")
    with pytest.raises(chapters.ChapterError, match="clone"):
        chapters.find_root(tmp_path)


def test_contents_must_exist(small_book: Book) -> None:
    root = small_book()
    (root / "book" / "one.md").unlink()
    with pytest.raises(chapters.ChapterError, match="book/one"):
        chapters.pages(root)


def test_only_pages_with_a_kernel_are_chapters(small_book: Book) -> None:
    assert list(chapters.chapter_paths(small_book(one=CHAPTER, plain="# Plain\n"))) == ["one"]


def test_unknown_chapter_names_the_nearest(small_book: Book) -> None:
    with pytest.raises(chapters.ChapterError, match="did you mean one"):
        chapters.find(small_book(), "onee")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3), ("1e-3", 1e-3), ("-0.5", -0.5), ("true", True), ("False", False), ("null", None), ("None", None),
        ("[1, 2.5]", [1, 2.5]), ("'4'", "4"), ("auto", "auto"), ("a=b", "a=b"), ("inf", float("inf")), ("", ""),
    ],
)  # fmt: skip
def test_literals(text: str, value: object) -> None:
    assert chapters.literal(text) == value
    assert type(chapters.literal(text)) is type(value)


@pytest.mark.parametrize(("pairs", "fault"), [(["n"], "name=value"), (["=3"], "name=value"), (["n=1", "n=2"], "twice")])
def test_assignments_refuse(pairs: list[str], fault: str) -> None:
    with pytest.raises(chapters.ChapterError, match=fault):
        chapters.assignments(pairs)


def test_values_layer_cell_profile_and_command(small_book: Book) -> None:
    chapter = chapters.find(small_book(), "one")
    assert chapters.values(chapter) == {"n": 5, "theta": 0.5}
    assert chapters.values(chapter, "smoke") == {"n": 3, "theta": 0.5}
    assert chapters.values(chapter, "smoke", {"n": 9}) == {"n": 9, "theta": 0.5}


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ({"m": 1}, "no parameter 'm'; it has n, theta"),
        ({"thet": 1}, "did you mean theta"),
        ({"n": 1}, "n must be an integer >= 2, got 1"),
        ({"theta": "abc"}, r"theta must be a number in \[0, 3\), got 'abc'"),
        ({"theta": float("nan")}, "theta must be a number"),
    ],
)
def test_bad_parameters_fail_before_any_work(small_book: Book, given: dict[str, object], fault: str) -> None:
    root = small_book()
    with pytest.raises(chapters.ChapterError, match=fault):
        chapters.plan(root, chapters.find(root, "one"), "book", given)
    assert not (root / "_build").exists()


def test_a_profile_may_not_name_an_unknown_parameter(small_book: Book) -> None:
    chapter = chapters.find(small_book(one=CHAPTER.replace("{n: 3}", "{m: 3}")), "one")
    with pytest.raises(chapters.ChapterError, match=r"no parameter 'm'.*profile smoke"):
        chapters.values(chapter, "smoke")


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("n = 5  # points", "n = 2 + 3", "line 1 of its parameters cell"),
        ("profiles:", "profile:", "got 'profile'"),
        ("{smoke:", "{tiny:", "got 'tiny'"),
    ],
)
def test_malformed_chapters(small_book: Book, old: str, new: str, fault: str) -> None:
    root = small_book(one=CHAPTER.replace(old, new))
    with pytest.raises(chapters.ChapterError, match=fault):
        chapters.values(chapters.find(root, "one"))


def test_kinds_are_compared_where_no_validator_looks(small_book: Book) -> None:
    root = small_book(one=CHAPTER.replace('_validate.real("theta", theta, least=0, below=3)\n', ""))
    with pytest.raises(chapters.ChapterError, match=r"theta must be a number .*got 'x'"):
        chapters.plan(root, chapters.find(root, "one"), "book", {"theta": "x"})


def test_modules_are_followed_through_one_another() -> None:
    found = chapters.modules(["def f():\n    from icl_core import population"])
    assert {"icl_core", "icl_core.population", "icl_core.attention", "icl_core.prompts", "icl_core._validate"} <= set(
        found
    )
    assert "icl_core.cli" not in found


def test_key_names_every_part_and_each_change(
    small_book: Book, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    source = CHAPTER.replace("profiles:", "data: words\n  profiles:").replace(
        'print("sum"', 'open("results/table.csv")\nprint("sum"'
    )
    root = small_book(one=source)
    (root / "book" / "results").mkdir()
    (root / "book" / "results" / "table.csv").write_text("a\n1\n", encoding="utf-8")
    monkeypatch.setenv("ICL_CORE_DATA", str(tmp_path / "data"))
    (tmp_path / "data" / "words").mkdir(parents=True)
    (tmp_path / "data" / "words" / "x.txt").write_text("x", encoding="utf-8")

    def key() -> dict[str, str]:
        chapter = chapters.find(root, "one")
        return chapters.key(root, chapter, chapters.values(chapter))

    before = key()
    assert key() == before

    def change(path: Path, text: str) -> list[str]:
        old = path.read_text(encoding="utf-8")
        path.write_text(text, encoding="utf-8")
        said = chapters.differences(before, key())
        path.write_text(old, encoding="utf-8")
        return said

    page = root / "book" / "one.md"
    assert change(page, source.replace("Words.", "Other words.")) == []
    assert change(page, source.replace("range(n)", "range(n + 1)")) == ["cell 3 changed"]
    assert change(page, source.replace("n = 5", "n = 6")) == ["cell 1 changed", "parameter n 5 -> 6"]
    assert change(root / "requirements.txt", "numpy==3\n") == ["lock file changed"]
    assert change(root / "book" / "results" / "table.csv", "a\n2\n") == ["file book/results/table.csv changed"]
    assert change(tmp_path / "data" / "words" / "x.txt", "y") == ["data words changed"]
    monkeypatch.setattr(chapters, "device", lambda: "cuda H")
    assert chapters.differences(before, key()) == [f"device {before['device']} -> cuda H"]


def test_a_missing_file_of_the_front_matter_is_named(small_book: Book) -> None:
    root = small_book(one=CHAPTER.replace("profiles:", "files: [results/none.csv]\n  profiles:"))
    chapter = chapters.find(root, "one")
    with pytest.raises(chapters.ChapterError, match=r"results/none\.csv"):
        chapters.key(root, chapter, chapters.values(chapter))


def test_run_keep_merge_and_stage(small_book: Book) -> None:
    broken = CHAPTER.replace('print("sum"', 'raise RuntimeError("too bad")\nprint("sum"')
    root = small_book(one=CHAPTER.replace("below=3)\n", "below=3)\ntheta\n"), two=broken)
    source = (root / "book" / "one.md").read_text(encoding="utf-8")
    said: list[str] = []
    jobs = [chapters.plan(root, chapters.load(p), "smoke") for p in chapters.chapter_paths(root).values()]
    assert not chapters.run(root, jobs, workers=2, say=said.append)
    assert [job.state for job in jobs] == ["done", "failed"]
    assert any("RuntimeError: too bad" in line and "two" in line for line in said)

    # The one that succeeded is kept; the other is tried again, and changed text needs no run.
    page = root / "book" / "one.md"
    page.write_text(source.replace("Words.", "Better words."), encoding="utf-8")
    again = [chapters.plan(root, chapters.load(p), "smoke") for p in chapters.chapter_paths(root).values()]
    assert [job.state for job in again] == ["hit", "waiting"]
    assert "nothing it depends on has changed" in again[0].reason

    (root / "_config.yml").write_text("title: x\n", encoding="utf-8")
    (root / "book" / "index.md").write_text("# Begin\n\n[a](one.md) [b](one.md#words)\n", encoding="utf-8")
    staged = chapters.stage(root, again[:1])
    assert "[a](one.ipynb) [b](one.ipynb#words)" in (staged / "book" / "index.md").read_text(encoding="utf-8")
    notebook = nbformat.read(staged / "book" / "one.ipynb", as_version=4)
    text = json.dumps(notebook)
    assert "Better words." in text
    assert "sum 3" in text
    assert "n = 3" in text
    assert str(root) not in text
    assert "icl_core" not in notebook.metadata
    assert not (staged / "book" / "one.md").exists()
    assert not next(cell for cell in notebook.cells if "validate" in cell.metadata.get("tags", ())).outputs
    nbformat.validate(notebook)


def test_own_values_do_not_touch_the_books_run(small_book: Book) -> None:
    root = small_book()
    chapter = chapters.find(root, "one")
    usual, own = chapters.plan(root, chapter, "book"), chapters.plan(root, chapter, "book", {"n": 7})
    assert usual.output != own.output
    assert own.output != chapters.plan(root, chapter, "book", {"n": 8}).output


def test_verdicts_from_a_given_document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ICL_CORE_VERIFY_JSON", str(tmp_path / "none.json"))
    with pytest.raises(chapters.ChapterError, match="not there"):
        chapters.verdicts(tmp_path)

"""The command line: what it prints, and how it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from conftest import CHAPTER

from icl_core import cli, features

Book = Callable[..., Path]


@pytest.fixture
def inside(small_book: Book, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = small_book()
    monkeypatch.chdir(root)
    return root


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    for command in ("run", "book", "list", "stage", "verify", "show", "shift"):
        assert f"\n    {command} " in shown


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (["run", "none"], "no chapter 'none'; the chapters are one"),
        (["run", "one", "-p", "m=2"], "no parameter 'm'"),
        (["run", "one", "-p", "n=1"], "n must be an integer >= 2, got 1"),
        (["run", "one", "-p", "n"], "name=value"),
        (["run", "one", "--m", "2"], "no parameter 'm'"),
        (["run", "one", "--n=1"], "n must be an integer >= 2, got 1"),
        (["run", "one", "--n"], "--name value"),
        (["run", "one", "-p", "n=3", "--n", "4"], "given twice"),
        (["run", "one", "--profile", "big"], "profile must be one of smoke, book, full, got 'big'"),
        (["book", "--jobs", "0"], "--jobs must be an integer >= 1"),
        (["book", "--force", "none"], "no chapter 'none'"),
        (["show", "ood.nonsense"], "ood.nonsense"),
        (["shift", "none.npy", "none.npy"], "none.npy: there is no such file"),
    ],
)
def test_wrong_arguments_are_one_line_and_2(
    inside: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], fault: str
) -> None:
    assert cli.main(arguments) == 2
    said = capsys.readouterr().err
    assert fault in said
    assert said.count("\n") == 1


def test_list_and_stage(inside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["list", "--profile", "smoke"]) == 0
    assert capsys.readouterr().out == "one  n=3  theta=0.5\n"
    assert cli.main(["stage", "one"]) == 0
    assert (inside / "_build" / "notebooks" / "one.ipynb").is_file()


def test_run_twice(inside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", "one", "-p", "n=4", "-o", "out/x.ipynb"]) == 0
    assert "not run before" in capsys.readouterr().out
    assert "sum 6" in Path("out/x.ipynb").read_text(encoding="utf-8")
    assert cli.main(["run", "one", "-p", "n=4"]) == 0
    assert "kept" in capsys.readouterr().out


def test_shift_reports_and_draws(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    V = features.orthonormal(4, 2, generator=features.generator(0))
    np.save("V.npy", V.numpy())
    np.save("U.npy", (features.rotation(4, 0.5) @ V).numpy())
    assert cli.main(["shift", "V.npy", "U.npy", "--eps", "0.1", "-o", "mine"]) == 0
    assert "total forgetting" in capsys.readouterr().out
    assert {path.name for path in tmp_path.glob("mine.*")} == {"mine.svg", "mine.csv", "mine.json"}


def test_interrupt_ends_with_130_and_leaves_no_process(small_book: Book, tmp_path: Path) -> None:
    mark = tmp_path / "started"
    sleepy = f'import os, time\nopen({str(mark)!r}, "w").write(str(os.getpid()))\ntime.sleep(600)\nprint("sum"'
    root = small_book(one=CHAPTER.replace('print("sum"', sleepy))
    started = subprocess.Popen(
        [sys.executable, "-m", "icl_core.cli", "run", "one"],
        cwd=root,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        # A shell that starts this run in the background makes its children ignore the interrupt.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        deadline = time.monotonic() + 60
        while not (mark.is_file() and mark.read_text()) and time.monotonic() < deadline:
            time.sleep(0.1)
        kernel = int(mark.read_text())
        started.send_signal(signal.SIGINT)
        _, said = started.communicate(timeout=60)
    finally:
        started.kill()
        started.communicate()
    assert started.returncode == 130
    assert said == b"interrupted\n"
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            os.kill(kernel, 0)
        except ProcessLookupError:
            break
        time.sleep(0.1)
    else:
        pytest.fail("the chapter's kernel outlived the command")

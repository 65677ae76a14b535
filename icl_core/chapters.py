"""Chapters: MyST notebooks run by papermill, kept while nothing they depend on has changed, and rendered as the book.

One path: ``book/<name>.md`` -> papermill with parameters -> ``_build/chapters/<profile>/<name>.ipynb`` -> a
staging folder of executed notebooks and plain pages -> Jupyter Book with its own execution off -> ``_build/html``.
"""

from __future__ import annotations

import ast
import datetime
import difflib
import hashlib
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

#: Sizes of a run, for tests, for the book, and as large as in the papers.
PROFILES = ("smoke", "book", "full")
_SETTINGS = ("profiles", "data", "files")
_MARK = ".icl-core-staged"
_PACKAGE = Path(__file__).resolve().parent


class ChapterError(ValueError):
    """A chapter, a parameter or the book's set-up is at fault; the message is one line for the user."""


class BuildError(RuntimeError):
    """The pages did not come out; the message names the log."""


@dataclass(frozen=True)
class Cell:
    """One cell of a chapter: ``kind`` is "code" or "markdown"."""

    kind: str
    source: str
    tags: tuple[str, ...] = ()


@dataclass(frozen=True)
class Chapter:
    """A chapter's source, read.

    Attributes
    ----------
    name : str
        File name without ``.md``.
    path : Path
        The MyST source.
    cells : tuple of Cell
        In order.
    profiles : dict
        Parameter overrides per profile, from the front matter.
    data : tuple of str
        Folders of ``$ICL_CORE_DATA`` that the chapter reads; ``"."`` for all of it.
    files : tuple of str
        Further files it reads, as patterns relative to its folder.
    """

    name: str
    path: Path
    cells: tuple[Cell, ...]
    profiles: dict[str, dict[str, Any]] = field(default_factory=dict)
    data: tuple[str, ...] = ()
    files: tuple[str, ...] = ()

    def tagged(self, tag: str) -> str | None:
        """Source of the first code cell with ``tag``, or None."""
        return next((cell.source for cell in self.cells if cell.kind == "code" and tag in cell.tags), None)

    def code(self) -> list[Cell]:
        """Return the code cells."""
        return [cell for cell in self.cells if cell.kind == "code"]


# --------------------------------------------------------------------------------------------- reading


def find_root(start: str | os.PathLike[str] | None = None) -> Path:
    """Folder that holds ``_toc.yml`` and ``book/``: ``start`` or a parent of it, else the clone that holds the package.

    Raises
    ------
    ChapterError
        Outside a clone: an installed package has no chapters.
    """
    here = Path(start or Path.cwd()).resolve()
    for folder in (here, *here.parents, _PACKAGE.parent):
        if (folder / "_toc.yml").is_file() and (folder / "book").is_dir():
            return folder
    raise ChapterError("no book here: the chapters live in a clone of the project; change into it and try again")


def _front_matter(path: Path) -> dict[str, Any]:
    import yaml

    match = re.match(r"\A---\s*\n(.*?)\n---\s*(\n|\Z)", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    found = yaml.safe_load(match.group(1)) if match else None
    return found if isinstance(found, dict) else {}


def pages(root: Path) -> list[Path]:
    """Sources of the pages that ``_toc.yml`` names, in order; refuses a name without a file."""
    import yaml

    toc = yaml.safe_load((root / "_toc.yml").read_text(encoding="utf-8"))
    names: list[str] = []

    def walk(node: Any) -> None:
        if isinstance(node, dict):
            names.extend(str(node[key]) for key in ("root", "file") if key in node)
            for key in ("parts", "chapters", "sections", "subtrees", "entries"):
                walk(node.get(key))
        elif isinstance(node, list):
            for item in node:
                walk(item)

    walk(toc)
    found = []
    for name in names:
        path = root / name if name.endswith(".md") else root / f"{name}.md"
        if not path.is_file():
            raise ChapterError(f"_toc.yml names {name}, but there is no {path.relative_to(root)}")
        found.append(path)
    return found


def chapter_paths(root: Path) -> dict[str, Path]:
    """Sources of the chapters (pages with a kernel) by name, in the order of the contents."""
    return {path.stem: path for path in pages(root) if "kernelspec" in _front_matter(path)}


def load(path: str | os.PathLike[str]) -> Chapter:
    """Read a chapter.

    Raises
    ------
    ChapterError
        If its ``icl_core`` front matter has entries that mean nothing here.
    """
    import jupytext

    path = Path(path)
    settings = _front_matter(path).get("icl_core") or {}
    unknown = sorted(set(settings) - set(_SETTINGS))
    if unknown:
        raise ChapterError(f"{path.name}: icl_core front matter may hold {', '.join(_SETTINGS)}, got {unknown[0]!r}")
    profiles = {name: dict(values or {}) for name, values in (settings.get("profiles") or {}).items()}
    strange = sorted(set(profiles) - set(PROFILES))
    if strange:
        raise ChapterError(f"{path.name}: profiles are {', '.join(PROFILES)}, got {strange[0]!r}")
    data = settings.get("data") or []
    notebook = jupytext.read(path)
    cells = tuple(
        Cell(cell.cell_type, cell.source, tuple(cell.metadata.get("tags", ())))
        for cell in notebook.cells
        if cell.cell_type in ("code", "markdown")
    )
    return Chapter(
        path.stem,
        path,
        cells,
        profiles,
        ("." if data is True else data,) if data is True or isinstance(data, str) else tuple(data),
        tuple(settings.get("files") or ()),
    )


def find(root: Path, name: str) -> Chapter:
    """Load the chapter called ``name``; a wrong name lists the right ones."""
    paths = chapter_paths(root)
    stem = Path(name).stem if name.endswith(".md") else name
    if stem not in paths:
        raise ChapterError(
            f"no chapter {name!r}; the chapters are {', '.join(paths) or 'none so far'}{_near(stem, paths)}"
        )
    return load(paths[stem])


def _near(name: str, options: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(options), n=1)
    return f" (did you mean {close[0]}?)" if close else ""


# ------------------------------------------------------------------------------------------ parameters


def literal(text: str) -> Any:
    """Read a value given on the command line: a Python or YAML scalar, a bracketed list, else the text itself.

    >>> literal("1e-3"), literal("[0.5, 1]"), literal("true"), literal("null"), literal("auto")
    (0.001, [0.5, 1], True, None, 'auto')
    """
    words = {"true": True, "yes": True, "false": False, "no": False, "null": None, "~": None}
    if text.strip().lower() in words:
        return words[text.strip().lower()]
    if text.strip().lower().lstrip("+-") in ("nan", "inf", "infinity"):
        return float(text)
    try:
        return ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text


def assignments(pairs: Iterable[str]) -> dict[str, Any]:
    """Read ``name=value`` pairs; refuses a missing ``=`` and a name given twice."""
    values: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        name = name.strip()
        if not equals or not name:
            raise ChapterError(f"a parameter is given as name=value, got {pair!r}")
        if name in values:
            raise ChapterError(f"parameter {name} is given twice")
        values[name] = literal(text)
    return values


def defaults(chapter: Chapter) -> dict[str, Any]:
    """Names and values of the ``parameters`` cell, read without running it.

    Raises
    ------
    ChapterError
        If the cell holds anything but assignments of literals to names.
    """
    source = chapter.tagged("parameters")
    found: dict[str, Any] = {}
    for statement in ast.parse(source or "").body:
        target = statement.targets[0] if isinstance(statement, ast.Assign) and len(statement.targets) == 1 else None
        if isinstance(statement, ast.AnnAssign):
            target = statement.target
        value = statement.value if isinstance(statement, (ast.Assign, ast.AnnAssign)) else None
        try:
            if not isinstance(target, ast.Name) or value is None:
                raise ValueError
            found[target.id] = ast.literal_eval(value)
        except ValueError:
            raise ChapterError(
                f"{chapter.path.name}: line {statement.lineno} of its parameters cell is not `name = literal`"
            ) from None
    return found


def values(chapter: Chapter, profile: str = "book", overrides: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Every parameter's value: the cell's, then the profile's, then ``overrides``.

    Raises
    ------
    ChapterError
        For an unknown profile or parameter name.
    """
    if profile not in PROFILES:
        raise ChapterError(f"profile must be one of {', '.join(PROFILES)}, got {profile!r}")
    known = defaults(chapter)
    for origin, given in (
        (f"profile {profile} of {chapter.path.name}", chapter.profiles.get(profile, {})),
        ("", overrides or {}),
    ):
        for name in given:
            if name not in known:
                allowed = ", ".join(known) if known else "none"
                where = f" (in {origin})" if origin else ""
                raise ChapterError(
                    f"chapter {chapter.name} has no parameter {name!r}{where}; it has {allowed}{_near(name, known)}"
                )
    return {**known, **chapter.profiles.get(profile, {}), **(overrides or {})}


def check(chapter: Chapter, chosen: Mapping[str, Any]) -> None:
    """Run the ``parameters`` and ``validate`` cells in this process, so that a bad value fails before any work.

    Raises
    ------
    ChapterError
        With the validator's message, which names the parameter and its range.
    """
    space: dict[str, Any] = {"__name__": f"chapter_{chapter.name}", **chosen}
    validators = chapter.tagged("validate")
    if validators is not None:
        try:
            exec(compile(validators, f"{chapter.path.name}: validate cell", "exec"), space)
        except (ValueError, TypeError) as fault:
            raise ChapterError(f"chapter {chapter.name}: {fault}") from fault
        except Exception as fault:
            raise ChapterError(
                f"{chapter.path.name}: its validate cell failed with {type(fault).__name__}: {fault}"
            ) from fault
    for name, usual in defaults(chapter).items():
        if usual is not None and chosen[name] is not None and _sort(usual) != _sort(chosen[name]):
            expected = f"{_sort(usual)} (it is {usual!r} by default)"
            raise ChapterError(f"chapter {chapter.name}: {name} must be {expected}, got {chosen[name]!r}")


def _sort(value: Any) -> str:
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, (int, float)):
        return "a number"
    if isinstance(value, str):
        return "text"
    return "a list" if isinstance(value, (list, tuple)) else f"a {type(value).__name__}"


# ------------------------------------------------------------------------------------------------ keys


def digest(*parts: str | bytes) -> str:
    """Hash of texts, 16 hex digits."""
    total = hashlib.sha256()
    for part in parts:
        total.update(part.encode() if isinstance(part, str) else part)
        total.update(b"\0")
    return total.hexdigest()[:16]


def digest_files(paths: Iterable[Path], base: Path) -> str:
    """Hash of files: their names relative to ``base`` and what they hold."""
    total = hashlib.sha256()
    for path in sorted(set(paths)):
        total.update(os.path.relpath(path, base).encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()[:16]


def _module_file(name: str) -> Path | None:
    base = _PACKAGE.parent.joinpath(*name.split("."))
    return next((path for path in (base / "__init__.py", base.with_suffix(".py")) if path.is_file()), None)


def _imported(source: str, module: str | None) -> set[str]:
    """Dotted names under ``icl_core`` that a source imports, wherever in it; ``module`` resolves relative imports."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level and module is not None:
                parent = module.split(".")
                base = ".".join([*parent[: len(parent) - node.level], *([base] if base else [])])
            found.add(base)
            found.update(f"{base}.{alias.name}" for alias in node.names)
    return {name for name in found if name.split(".")[0] == "icl_core"}


def modules(sources: Iterable[str]) -> dict[str, Path]:
    """Modules of ``icl_core`` that Python sources import, directly or through one another, with their files."""
    found: dict[str, Path] = {}
    todo = [name for source in sources for name in _imported(source, None)]
    while todo:
        parts = todo.pop().split(".")
        for depth in range(1, len(parts) + 1):
            name = ".".join(parts[:depth])
            path = _module_file(name)
            if path is None or name in found:
                continue
            found[name] = path
            inner = name if path.name != "__init__.py" else f"{name}.__init__"
            todo.extend(_imported(path.read_text(encoding="utf-8"), inner))
    return found


def _code(cell: Cell) -> str:
    # Jupyter magics are no Python; what they import is not ours.
    return "\n".join(line for line in cell.source.splitlines() if not line.lstrip().startswith(("%", "!")))


def device() -> str:
    """Name what ``device="auto"`` means here, without importing torch where its build settles it."""
    try:
        build = metadata.version("torch")
    except metadata.PackageNotFoundError:
        return "none"
    if sys.platform == "darwin" or build.endswith("+cpu"):
        return "cpu"
    import torch

    return f"cuda {torch.cuda.get_device_name()}" if torch.cuda.is_available() else "cpu"


def key(root: Path, chapter: Chapter, chosen: Mapping[str, Any]) -> dict[str, str]:
    """Everything that decides a chapter's outputs, part by part, so that a difference can be named.

    Returns
    -------
    dict of str to str
        ``"cell 3"``, ``"parameter K"``, ``"module icl_core.population"``, ``"file ..."``, ``"lock file"``,
        ``"data ..."``, ``"Python"``, ``"device"`` -> value or hash.
    """
    parts = {f"cell {i}": digest(cell.source, *cell.tags) for i, cell in enumerate(chapter.code(), 1)}
    parts.update({f"parameter {name}": repr(value) for name, value in chosen.items()})
    sources = [_code(cell) for cell in chapter.code()]
    try:
        used = modules(sources)
        trees = [ast.parse(source) for source in sources]
    except SyntaxError as fault:
        raise ChapterError(f"{chapter.path.name}: a code cell is not Python: {fault}") from fault
    parts.update({f"module {name}": digest(path.read_bytes()) for name, path in used.items()})
    folders = {path.parent for path in used.values()}
    tables = {
        p for f in folders for p in f.glob("*") if p.is_file() and p.suffix not in (".py", ".pyc", ".nbc", ".nbi")
    }
    base = chapter.path.parent
    for pattern in chapter.files:
        matched = [path for path in base.glob(pattern) if path.is_file()]
        if not matched and "*" not in pattern:
            raise ChapterError(f"{chapter.path.name}: its front matter names {pattern}, but no such file is there")
        tables.update(matched)
    for tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and 0 < len(node.value) < 200:
                tables.update(_stored(base, node.value))
    parts.update({f"file {os.path.relpath(path, root)}": digest(path.read_bytes()) for path in tables})
    lock = root / "requirements.txt"
    parts["lock file"] = digest(lock.read_bytes()) if lock.is_file() else "none"
    for folder in chapter.data:
        parts[f"data {folder}"] = _data(folder)
    parts["Python"] = ".".join(platform.python_version_tuple()[:2])
    parts["device"] = device()
    return parts


def _stored(base: Path, text: str) -> list[Path]:
    """Files that a string in a chapter's code points to: stored tables go by their name without an ending."""
    if any(letter in text for letter in "\n*?<>|\0") or text.strip(" ./") == "":
        return []
    path = base / text
    return [p for p in (path, Path(f"{path}.csv"), Path(f"{path}.json")) if p.is_file()]


def _data(folder: str) -> str:
    place = os.environ.get("ICL_CORE_DATA")
    if not place:
        return "ICL_CORE_DATA is not set"
    base = Path(place) / folder
    files = [path for path in base.rglob("*") if path.is_file()] if base.is_dir() else []
    return digest_files(files, base) if files else "absent"


def differences(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    """Say in words how two keys differ.

    >>> differences({"parameter K": "2", "device": "cpu"}, {"parameter K": "3", "device": "cpu", "module a": "f"})
    ['parameter K 2 -> 3', 'module a is new']
    """
    said = []
    for name in [*new, *(name for name in old if name not in new)]:
        before, after = old.get(name), new.get(name)
        if before == after:
            continue
        if before is None:
            said.append(f"{name} is new")
        elif after is None:
            said.append(f"{name} is gone")
        elif name.startswith(("parameter", "device", "Python")):
            said.append(f"{name} {before} -> {after}")
        else:
            said.append(f"{name} changed")
    return said


# --------------------------------------------------------------------------------------------- running


@dataclass
class Job:
    """One chapter to be run, and what came of it: ``state`` is "hit", "waiting", "done" or "failed"."""

    chapter: Chapter
    chosen: dict[str, Any]
    key: dict[str, str]
    output: Path
    state: str = "waiting"
    reason: str = ""
    seconds: float = 0.0


def plan(
    root: Path, chapter: Chapter, profile: str, overrides: Mapping[str, Any] | None = None, *, force: bool = False
) -> Job:
    """Check a chapter's parameters and say whether its last run still stands.

    Runs with ``overrides`` are kept apart from the book's, one file per set of values.
    """
    chosen = values(chapter, profile, overrides)
    check(chapter, chosen)
    folder = root / "_build" / "chapters" / profile
    output = folder / f"{chapter.name}.ipynb"
    if overrides:
        output = (
            root / "_build" / "chapters" / "own" / f"{chapter.name}-{digest(repr(sorted(chosen.items())))[:8]}.ipynb"
        )
    job = Job(chapter, chosen, key(root, chapter, chosen), output)
    record = output.with_suffix(".json")
    if force:
        job.reason = "asked for"
    elif not (output.is_file() and record.is_file()):
        job.reason = "not run before"
    else:
        last = json.loads(record.read_text(encoding="utf-8"))
        changes = differences(last["key"], job.key)
        job.seconds = last["seconds"]
        if not changes:
            job.state, job.reason = "hit", f"nothing it depends on has changed since {last['date']}"
        else:
            more = f" and {len(changes) - 3} more" if len(changes) > 3 else ""
            job.reason = "; ".join(changes[:3]) + more
    return job


def run(root: Path, jobs: Sequence[Job], *, workers: int = 1, say: Callable[[str], None] = print) -> bool:
    """Run what has to be run, ``workers`` chapters at a time, and keep whatever succeeds.

    Returns
    -------
    bool
        True if no chapter failed.
    """
    width = max((len(job.chapter.name) for job in jobs), default=0)
    for job in jobs:
        if job.state == "hit":
            say(f"  {job.chapter.name:<{width}}  kept    {job.reason} (took {job.seconds:.1f} s)")
    todo = [job for job in jobs if job.state == "waiting"]
    for job in todo:
        say(f"  {job.chapter.name:<{width}}  to run  {job.reason}")
    running: list[tuple[Job, subprocess.Popen[str], float]] = []
    try:
        while todo or running:
            while todo and len(running) < workers:
                job = todo.pop(0)
                running.append((job, _start(root, job, workers), time.perf_counter()))
            for entry in list(running):
                job, process, began = entry
                if process.poll() is None:
                    continue
                running.remove(entry)
                job.seconds = time.perf_counter() - began
                _finish(root, job, process.returncode)
                if job.state == "done":
                    say(f"  {job.chapter.name:<{width}}  done    {job.seconds:.1f} s{job.reason}")
                else:
                    say(f"  {job.chapter.name:<{width}}  FAILED  {job.reason}")
            time.sleep(0.05)
    finally:
        for _, process, _ in running:
            process.send_signal(signal.SIGINT)
        for _, process, _ in running:
            try:
                process.wait(timeout=15)
            except subprocess.TimeoutExpired:
                process.kill()
    return all(job.state in ("hit", "done") for job in jobs)


def _start(root: Path, job: Job, workers: int) -> subprocess.Popen[str]:
    job.output.parent.mkdir(parents=True, exist_ok=True)
    known = defaults(job.chapter)
    task = {
        "source": str(job.chapter.path),
        "output": str(job.output.with_suffix(".part.ipynb")),
        # Only what differs: papermill would show every value that it is handed in a cell of its own.
        "parameters": {name: value for name, value in job.chosen.items() if repr(value) != repr(known[name])},
        "cwd": str(job.chapter.path.parent),
    }
    spec = job.output.with_suffix(".task.json")
    spec.write_text(json.dumps(task), encoding="utf-8")
    environment = dict(os.environ)
    if workers > 1:
        environment.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // workers)))
    with job.output.with_suffix(".log").open("w", encoding="utf-8") as log:
        return subprocess.Popen(
            [sys.executable, "-c", "from icl_core.chapters import _work; _work()", str(spec)],
            stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True, env=environment, cwd=root,
        )  # fmt: skip


def _finish(root: Path, job: Job, code: int) -> None:
    part, log = job.output.with_suffix(".part.ipynb"), job.output.with_suffix(".log")
    job.output.with_suffix(".task.json").unlink(missing_ok=True)
    if code != 0:
        lines = [line for line in log.read_text(encoding="utf-8").splitlines() if line.strip()]
        where = os.path.relpath(log, root)
        job.state, job.reason = "failed", f"{lines[-1] if lines else f'exit status {code}'} (all of it: {where})"
        part.unlink(missing_ok=True)
        return
    noise = _standard_error(json.loads(part.read_text(encoding="utf-8")))
    part.replace(job.output)
    log.unlink()
    record = {"key": job.key, "seconds": round(job.seconds, 2), "date": f"{datetime.datetime.now():%Y-%m-%d %H:%M}"}
    job.output.with_suffix(".json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    job.state, job.reason = "done", f"; it wrote to standard error: {noise}" if noise else ""


def _standard_error(notebook: Mapping[str, Any]) -> str | None:
    for cell in notebook["cells"]:
        for output in cell.get("outputs", ()):
            if output.get("name") == "stderr":
                text = output["text"]
                return ("".join(text) if isinstance(text, list) else text).strip().splitlines()[0][:100]
    return None


def _work() -> None:
    """Run one notebook; the body of the process that :func:`run` starts."""
    import jupytext
    import nbformat
    import papermill
    from traitlets.config import Config

    task = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    notebook = _prepare(jupytext.read(task["source"]))
    try:
        # Sockets that are files, in a folder of their own: two kernels that start at once can pick the same TCP port,
        # and one of them then hangs.
        with tempfile.TemporaryDirectory(prefix="icl-") as folder:
            done = papermill.execute_notebook(
                notebook, None, parameters=task["parameters"], cwd=task["cwd"], kernel_name="python3",
                language="python", progress_bar=False,
                config=Config({"KernelManager": {"transport": "ipc", "ip": f"{folder}/kernel"}}),
            )  # fmt: skip
    except papermill.exceptions.PapermillExecutionError as fault:
        print("\n".join(fault.traceback))
        print(f"cell {fault.exec_count}: {fault.ename}: {fault.evalue}".splitlines()[0])
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
    for cell in done.cells:
        if cell.cell_type == "code":
            # The first import of matplotlib on a machine says so; that belongs to no chapter.
            cell.outputs = [o for o in cell.outputs if not (o.get("name") == "stderr" and "font cache" in o.text)]
    nbformat.write(done, task["output"])


def _prepare(notebook: Any) -> Any:
    """Drop what is ours or jupytext's from a notebook's front matter."""
    for name in ("icl_core", "jupytext"):
        notebook.metadata.pop(name, None)
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    for number, cell in enumerate(notebook.cells):
        cell["id"] = f"cell-{number}"
    return notebook


def plain_notebook(chapter: Chapter, path: Path) -> Path:
    """Write a chapter as an unexecuted notebook, which ``papermill`` or Jupyter can run by themselves."""
    import jupytext
    import nbformat

    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(_prepare(jupytext.read(chapter.path)), path)
    return path


# -------------------------------------------------------------------------------------------- the book


def merged(chapter: Chapter, executed: Path) -> Any:
    """Today's text of a chapter with the outputs of its last run (whose code was the same)."""
    import jupytext
    import nbformat

    notebook = _prepare(jupytext.read(chapter.path))
    ran = [cell for cell in nbformat.read(executed, as_version=4).cells if cell.cell_type == "code"]
    cells = []
    for cell in notebook.cells:
        cells.append(cell)
        if cell.cell_type != "code":
            continue
        same = ran.pop(0)
        cell.outputs, cell.execution_count = same.outputs, same.execution_count
        if "validate" in cell.metadata.get("tags", ()):
            # A validator hands its value back; a last line that is such a call would show it.
            cell.outputs = []
        while ran and "injected-parameters" in ran[0].metadata.get("tags", ()):
            given = ran.pop(0)
            given.metadata = nbformat.from_dict({"tags": given.metadata["tags"]})
            given["id"] = "cell-given"
            cells.append(given)
    notebook.cells = cells
    return notebook


def stage(root: Path, jobs: Iterable[Job]) -> Path:
    """Lay out ``_build/staged``: the book's pages as they are, with every chapter as its executed notebook."""
    import nbformat

    staged = root / "_build" / "staged"
    shutil.rmtree(staged, ignore_errors=True)
    staged.mkdir(parents=True)
    for name in ("_config.yml", "_toc.yml"):
        shutil.copy(root / name, staged / name)
    ran = {job.chapter.path.resolve(): job for job in jobs}
    # Sources link to one another by the names that they have in book/; there, a chapter is Markdown.
    link = re.compile(rf"\]\((?:\./)?({'|'.join(re.escape(path.stem) for path in ran)})\.md(?=[#)])")

    def relinked(text: str) -> str:
        return link.sub(r"](\1.ipynb", text) if ran else text

    hidden = shutil.ignore_patterns(".*", "__pycache__", "*.md")
    shutil.copytree(root / "book", staged / "book", ignore=hidden)
    for path in pages(root):
        target = staged / path.relative_to(root)
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.resolve() in ran:
            job = ran[path.resolve()]
            notebook = merged(job.chapter, job.output)
            for cell in notebook.cells:
                if cell.cell_type == "markdown":
                    cell.source = relinked(cell.source)
            nbformat.write(notebook, target.with_suffix(".ipynb"))
        else:
            target.write_text(relinked(path.read_text(encoding="utf-8")), encoding="utf-8")
    (staged / _MARK).write_text("written by icl-core book\n", encoding="utf-8")
    return staged


def verdicts(root: Path, *, say: Callable[[str], None] = print) -> Path:
    """Path of the fast run of the claims, made again only if something it depends on has changed.

    ``ICL_CORE_VERIFY_JSON`` names a document to use as it is.

    Raises
    ------
    ChapterError
        If the document that it names is not there.
    """
    given = os.environ.get("ICL_CORE_VERIFY_JSON")
    if given:
        if not Path(given).is_file():
            raise ChapterError(f"ICL_CORE_VERIFY_JSON names {given}, which is not there")
        return Path(given).resolve()
    from icl_core.claims import runner

    target = root / "_build" / "verify-fast.json"
    before = target.stat().st_mtime_ns if target.is_file() else None
    began = time.perf_counter()
    say("claims (icl-core verify --fast):")
    document = runner.verify_cached(target, fast=True)
    count = f"{len(document['claims'])} records"
    if target.stat().st_mtime_ns == before:
        say(f"  kept, {count}: neither the package nor its stored results have changed since the last run")
    else:
        say(f"  done, {count} in {time.perf_counter() - began:.1f} s")
    return target


def build(root: Path, staged: Path, verify: Path, *, force: bool = False, say: Callable[[str], None] = print) -> Path:
    """Render the staged folder as HTML in ``_build/html``, warnings being errors; keeps the last good book on failure.

    Returns
    -------
    Path
        The book's first page.

    Raises
    ------
    BuildError
        If Sphinx warns; the message repeats its warnings.
    """
    html, stamp = root / "_build" / "html", root / "_build" / "html.key"
    inputs = [path for path in staged.rglob("*") if path.is_file()]
    inputs += _PACKAGE.rglob("*.py")
    lock = root / "requirements.txt"
    now = digest(
        digest_files(inputs, root), verify.read_bytes(), lock.read_bytes() if lock.is_file() else b"", sys.version
    )
    index = html / "index.html"
    if not force and index.is_file() and stamp.is_file() and stamp.read_text(encoding="utf-8").strip() == now:
        say("pages: kept, they were built from just these sources (to build them anyway: make book FORCE=1)")
        return index
    work = root / "_build" / "sphinx"
    shutil.rmtree(work, ignore_errors=True)
    began = time.perf_counter()
    command = [
        sys.executable, "-c", "from jupyter_book.cli.main import main; main()", "build", str(staged),
        "--path-output", str(work), "--all", "-W", "-n", "--keep-going",
    ]  # fmt: skip
    environment = {**os.environ, "ICL_CORE_VERIFY_JSON": str(verify)}
    done = subprocess.run(
        command, cwd=root, env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False
    )
    log = root / "_build" / "book.log"
    log.write_text(done.stdout + done.stderr, encoding="utf-8")
    made = work / "_build" / "html"
    if done.returncode != 0 or not (made / "index.html").is_file():
        colour = re.compile(r"\x1b\[[0-9;]*m")
        lines = [colour.sub("", line).replace(f"{staged}{os.sep}", "") for line in done.stderr.splitlines()]
        faults = [line for line in lines if re.search(r"WARNING|ERROR|[Ee]rror:|CRITICAL", line)]
        shown = "\n  ".join(dict.fromkeys(faults or lines[-5:]))
        raise BuildError(f"the pages did not build (all of it: {os.path.relpath(log, root)}):\n  {shown}")
    shutil.rmtree(html, ignore_errors=True)
    made.replace(html)
    stamp.write_text(now + "\n", encoding="utf-8")
    say(f"pages: built in {time.perf_counter() - began:.1f} s")
    return index


def book(
    root: Path,
    profile: str = "book",
    *,
    workers: int | None = None,
    force: Sequence[str] | None = None,
    say: Callable[[str], None] = print,
) -> Path | None:
    """Run every chapter of a profile, the claims, and build the pages.

    Parameters
    ----------
    root : Path
        As from :func:`find_root`.
    profile : str
        One of :data:`PROFILES`.
    workers : int, optional
        Chapters run at a time; by default two where there are two cores.
    force : sequence of str, optional
        Chapters to run again whatever their key says; empty for all of them.
    say : callable
        Takes each line of the report.

    Returns
    -------
    Path or None
        The first page, or None if a chapter failed.
    """
    if profile not in PROFILES:
        raise ChapterError(f"profile must be one of {', '.join(PROFILES)}, got {profile!r}")
    workers = workers or min(2, os.cpu_count() or 1)
    paths = chapter_paths(root)
    for name in force or ():
        find(root, name)
    outside = sorted(set((root / "book").glob("*.md")) - set(pages(root)))
    if outside:
        say(f"not in _toc.yml, so not in the book: {', '.join(path.name for path in outside)}")
    say(f"chapters (profile {profile}, {workers} at a time):")
    began = time.perf_counter()
    jobs = []
    for name, path in paths.items():
        jobs.append(plan(root, load(path), profile, force=force is not None and (not force or name in force)))
    if not run(root, jobs, workers=workers, say=say):
        failed = [job.chapter.name for job in jobs if job.state == "failed"]
        say(f"{len(failed)} of {len(jobs)} chapters failed ({', '.join(failed)}); the others are kept for the next run")
        return None
    verify = verdicts(root, say=say)
    index = build(root, stage(root, jobs), verify, force=force is not None, say=say)
    spent = sum(job.seconds for job in jobs if job.state == "done")
    kept = sum(job.state == "hit" for job in jobs)
    say(f"{len(jobs)} chapters, {kept} kept, {spent:.0f} s of chapter time, {time.perf_counter() - began:.0f} s in all")
    return index

"""The package's shape: light imports, fixed layers, one version, a lock that names no machine."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import icl_core
from icl_core.claims import register

ROOT = Path(__file__).resolve().parent.parent
HEAVY = ("transformers", "matplotlib", "plotly", "numba", "sympy.core", "flint", "pymanopt", "papermill", "sphinx")


def test_importing_the_package_is_light() -> None:
    # torch brings sympy in by itself, but only when it compiles; importing it here must not.
    code = f"import sys, icl_core; print([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_command_line_is_light_until_it_works() -> None:
    code = f"import sys, icl_core.cli as c; c.parser(); print([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_layers() -> None:
    code = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_one_version() -> None:
    stated = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    assert icl_core.__version__ == stated
    assert f"version: {stated}" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")


def test_every_module_says_what_lives_there() -> None:
    for path in (ROOT / "icl_core").rglob("*.py"):
        assert path.read_text(encoding="utf-8").startswith('"""'), path


def test_the_api_page_lists_every_public_module() -> None:
    listed = re.findall(r"automodule:: (\S+)", (ROOT / "book" / "api.md").read_text(encoding="utf-8"))
    assert len(listed) == len(set(listed))
    paths = [path.relative_to(ROOT).with_suffix("").parts for path in (ROOT / "icl_core").rglob("*.py")]
    public = {".".join(parts) for parts in paths if not any(part.startswith("_") for part in parts)}
    # The command line says itself what it takes; records are shown by the pages of the ledger.
    records = {f"icl_core.claims.{name}" for name in register.modules()}
    assert public - records - {"icl_core.cli"} == set(listed)


def test_the_lock_pins_and_names_no_place() -> None:
    lines = (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[A-Za-z0-9_.\-]+==[A-Za-z0-9.]+", line) for line in pins)
    locked = {re.split("==", line)[0].lower().replace("_", "-") for line in pins}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [
        *project["dependencies"],
        *project["optional-dependencies"]["book"],
        *project["optional-dependencies"]["test"],
    ]
    names = {re.split(r"[<>=!\[ ]", line)[0].lower().replace("_", "-") for line in wanted}
    assert names <= locked

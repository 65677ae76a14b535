"""Run a Python command unless it succeeded before on just these files; says which, and how to run it anyway."""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WATCHED = (
    "icl_core",
    "tests",
    "book",
    "benchmarks",
    "scripts",
    "pyproject.toml",
    "requirements.txt",
    "_toc.yml",
    "_config.yml",
)
LEFT_OUT = ("__pycache__", ".ipynb_checkpoints")


def fingerprint() -> str:
    """Hash of Python's version and of every watched file."""
    total = hashlib.sha256(sys.version.encode())
    for name in WATCHED:
        top = ROOT / name
        for path in sorted([top] if top.is_file() else top.rglob("*")):
            if path.is_file() and not set(LEFT_OUT) & set(path.parts) and path.suffix != ".pyc":
                total.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes())
    return total.hexdigest()[:12]


def main() -> int:
    """Run ``python ARGUMENTS`` and remember a success."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--force", action="store_true")
    parser.add_argument("name")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    args = parser.parse_args()
    arguments = args.arguments[1:] if args.arguments[:1] == ["--"] else args.arguments
    stamp = ROOT / "_build" / "stamps" / f"{args.name}.json"
    now = fingerprint()
    if not args.force and stamp.is_file():
        last = json.loads(stamp.read_text(encoding="utf-8"))
        if last["fingerprint"] == now and last["arguments"] == arguments:
            print(f"{args.name}: passed on {last['date']} with just these files ({now}), so nothing to do")
            print("to run them anyway: make test FORCE=1")
            return 0
    try:
        code = subprocess.run([sys.executable, *arguments], cwd=ROOT, check=False).returncode
    except KeyboardInterrupt:
        return 130
    if code == 0:
        stamp.parent.mkdir(parents=True, exist_ok=True)
        record = {"fingerprint": now, "arguments": arguments, "date": f"{datetime.datetime.now():%Y-%m-%d %H:%M}"}
        stamp.write_text(json.dumps(record) + "\n", encoding="utf-8")
    return code


if __name__ == "__main__":
    sys.exit(main())

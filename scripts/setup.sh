#!/bin/sh
# Make or renew .venv: from the lock on Python 3.11, from the loose ranges of pyproject.toml on later ones.
set -eu
cd "$(dirname "$0")/.."

usable() { "$1" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }

# A clone that was moved, or whose Python is gone, needs its environment made again.
wanted() {
    { pwd; cat requirements.txt requirements-bert.txt pyproject.toml; .venv/bin/python -c 'import sys; print(sys.version)'; } | cksum
}
if [ -x .venv/bin/python ] && usable .venv/bin/python; then
    if [ -f .venv/.installed ] && [ "$(cat .venv/.installed)" = "$(wanted)" ]; then exit 0; fi
else
    rm -rf .venv
    chosen=
    for candidate in ${PYTHON:+"$PYTHON"} python3.11 python3 python3.12 python3.13 python3.14 python; do
        if usable "$candidate"; then chosen=$candidate; break; fi
    done
    if [ -z "$chosen" ]; then
        echo "This needs Python 3.11 or later with its venv module, and none of python3.11, python3, python3.12, python3.13," >&2
        echo "python3.14 is that. Install it (on Debian: python3 python3-venv) or name it: PYTHON=/path/to/python make ..." >&2
        exit 1
    fi
    echo "setting up .venv with $("$chosen" --version)"
    "$chosen" -m venv .venv
fi

pip() { .venv/bin/python -m pip --disable-pip-version-check "$@"; }
if .venv/bin/python -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))'; then
    echo "installing the tested versions (requirements.txt); the first time this takes some minutes"
    pip install --quiet -r requirements.txt
    pip install --quiet --no-deps --no-build-isolation -e .
else
    echo "this is not Python 3.11, which requirements.txt was tested with: installing the newest versions pyproject.toml allows"
    pip install --quiet "setuptools>=77"
    pip install --quiet --no-build-isolation -e ".[book,test]" "transformers>=4.44"
fi
pip install --quiet --no-deps -r requirements-bert.txt
wanted > .venv/.installed

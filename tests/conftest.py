"""Shared by the tests: one thread, one fast run of the ledger, a small book to run chapters of."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent

# Small problems: more threads would cost more than they bring, and sums would depend on the machine.
torch.set_num_threads(1)


@pytest.fixture(scope="session")
def ledger() -> dict[str, Any]:
    """Document of the fast run of all claims, shared with `make book` through _build."""
    from icl_core.claims import runner

    return runner.verify_cached(ROOT / "_build" / "verify-fast.json", fast=True)


CHAPTER = """---
kernelspec:
  name: python3
  display_name: Python 3
icl_core:
  profiles: {smoke: {n: 3}}
---

# A chapter

Words.

```{code-cell} ipython3
:tags: [parameters]

n = 5  # points
theta = 0.5  # angle
```

```{code-cell} ipython3
:tags: [validate]

from icl_core import _validate

_validate.integer("n", n, least=2)
_validate.real("theta", theta, least=0, below=3)
```

```{code-cell} ipython3
print("sum", sum(range(n)))
```
"""


@pytest.fixture
def small_book(tmp_path: Path) -> Callable[..., Path]:
    """Write a book of given chapters (name=source) into a folder whose name holds a space; returns the folder."""

    def write(**chapters: str) -> Path:
        root = tmp_path / "a book"
        (root / "book").mkdir(parents=True, exist_ok=True)
        chosen = chapters or {"one": CHAPTER}
        entries = "".join(f"  - file: book/{name}\n" for name in chosen)
        (root / "_toc.yml").write_text(f"format: jb-book\nroot: book/index\nchapters:\n{entries}", encoding="utf-8")
        (root / "book" / "index.md").write_text("# Begin\n", encoding="utf-8")
        (root / "requirements.txt").write_text("numpy==2\n", encoding="utf-8")
        for name, source in chosen.items():
            (root / "book" / f"{name}.md").write_text(source, encoding="utf-8")
        return root

    return write

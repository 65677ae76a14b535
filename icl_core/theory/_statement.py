"""Which statements a piece of code used: a decorator for closed forms, and a recorder for the claims runner."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

_called: ContextVar[set[str] | None] = ContextVar("called", default=None)


def statement(claim_id: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Mark a function as the closed form of one statement of the ledger."""

    def mark(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            seen = _called.get()
            if seen is not None:
                seen.add(claim_id)
            return function(*args, **kwargs)

        call.__statement__ = claim_id  # type: ignore[attr-defined]
        return call

    return mark


@contextmanager
def recording() -> Iterator[set[str]]:
    """Collect the ids of all marked functions called inside the block."""
    seen: set[str] = set()
    token = _called.set(seen)
    try:
        yield seen
    finally:
        _called.reset(token)

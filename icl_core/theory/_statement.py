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

        return call

    return mark


def remember(function: Callable[P, R]) -> Callable[P, R]:
    """Cache results without limit, like ``functools.cache``, and the statements used with them.

    A hit counts as having used what the first call used, so that what a check rests on does not depend on which
    check ran first.
    """
    stored: dict[object, tuple[R, frozenset[str]]] = {}

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        key = (args, tuple(sorted(kwargs.items())))
        if key not in stored:
            with recording() as seen:
                result = function(*args, **kwargs)
            stored[key] = result, frozenset(seen)
        result, used = stored[key]
        outer = _called.get()
        if outer is not None:
            outer |= used
        return result

    return call


@contextmanager
def recording() -> Iterator[set[str]]:
    """Collect the ids of all marked functions called inside the block."""
    seen: set[str] = set()
    token = _called.set(seen)
    try:
        yield seen
    finally:
        _called.reset(token)

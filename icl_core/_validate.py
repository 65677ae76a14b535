"""Argument checks shared by every stage: an error names the argument, what was expected and what came."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any


def integer(name: str, value: Any, *, least: int, most: int | None = None) -> int:
    """Return ``value`` as an int in ``[least, most]`` or raise ``ValueError`` naming it."""
    limits = f"an integer >= {least}" if most is None else f"an integer in [{least}, {most}]"
    whole = isinstance(value, int) and not isinstance(value, bool)
    if not whole and not isinstance(value, (bool, str)):
        try:
            whole = float(value).is_integer()
        except (TypeError, ValueError, OverflowError):
            whole = False
    if not whole or value < least or (most is not None and value > most):
        raise ValueError(f"{name} must be {limits}, got {value!r}")
    return int(value)


def real(
    name: str,
    value: Any,
    *,
    above: float = -math.inf,
    least: float = -math.inf,
    below: float = math.inf,
    most: float = math.inf,
    because: str = "",
) -> float:
    """Return ``value`` as a finite float with ``above < value < below`` and ``least <= value <= most``."""
    low = f"({above:g}" if above >= least else f"[{least:g}"
    high = f"{below:g})" if below <= most else f"{most:g}]"
    expected = f"{name} must be a number in {low}, {high}" + (f" ({because})" if because else "")
    try:
        number = float("nan") if isinstance(value, (str, bool)) else float(value)
    except (TypeError, ValueError):
        number = float("nan")
    if not math.isfinite(number) or not (above < number < below) or not (least <= number <= most):
        raise ValueError(f"{expected}, got {value!r}")
    return number


def reals(name: str, values: Any, **limits: Any) -> list[float]:
    """Return a non-empty sequence of numbers as floats; every entry obeys :func:`real`'s limits."""
    if isinstance(values, (str, bytes)) or not hasattr(values, "__len__"):
        raise ValueError(f"{name} must be a sequence of numbers, got {values!r}")
    if len(values) == 0:
        raise ValueError(f"{name} must hold at least one number, got an empty sequence")
    return [real(f"{name}[{i}]", value, **limits) for i, value in enumerate(values)]


def choice(name: str, value: Any, options: Sequence[str]) -> str:
    """Return ``value`` if it is one of ``options``."""
    if value not in options:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, options))}, got {value!r}")
    return str(value)

"""Rotations of hidden states: which dimensions turn, how they are paired, and R(theta) of section 6.2 (eq. 15)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from icl_core import _validate

SELECTIONS = ("largest", "smallest", "random")
PAIRINGS = ("rank", "index", "shuffled", "folded")


@dataclass(frozen=True)
class Planes:
    """Disjoint coordinate planes (i_m, j_m) of R = prod_m R_{i_m, j_m}(theta).

    Parameters
    ----------
    pairs : Tensor
        (n, 2) distinct indices.
    """

    pairs: Tensor

    def __post_init__(self) -> None:
        if self.pairs.ndim != 2 or self.pairs.shape[1] != 2 or self.pairs.dtype != torch.int64:
            raise ValueError(f"pairs must be an (n, 2) int64 tensor, got {tuple(self.pairs.shape)} {self.pairs.dtype}")
        if self.pairs.unique().numel() != self.pairs.numel():
            raise ValueError("pairs must be distinct indices: planes that share a dimension do not commute")

    def split(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Split (..., d) into (h0, h1, h2) with R(theta) h = h0 + cos(theta) h1 + sin(theta) h2 (eq. 15 row by row)."""
        one, two = self.pairs.to(hidden.device).unbind(1)
        chosen = torch.zeros_like(hidden)
        turned = torch.zeros_like(hidden)
        chosen[..., one], chosen[..., two] = hidden[..., one], hidden[..., two]
        turned[..., one], turned[..., two] = hidden[..., two], -hidden[..., one]
        return hidden - chosen, chosen, turned

    def rotate(self, hidden: Tensor, theta: float) -> Tensor:
        """Apply R(theta) to the last axis of (..., d)."""
        angle = torch.tensor(_validate.real("theta", theta), dtype=torch.float64)
        cos, sin = angle.cos().to(hidden), angle.sin().to(hidden)
        one, two = self.pairs.to(hidden.device).unbind(1)
        first, second = hidden[..., one], hidden[..., two]
        out = hidden.clone()
        out[..., one] = cos * first + sin * second
        out[..., two] = cos * second - sin * first
        return out

    def matrix(self, width: int, theta: float) -> Tensor:
        """Return R(theta) as a (width, width) float64 matrix."""
        return self.rotate(torch.eye(width, dtype=torch.float64), theta).T


def choose(
    selection: str,
    count: int,
    *,
    width: int,
    gap: Tensor | None = None,
    pairing: str = "rank",
    seed: int = 0,
) -> Planes:
    """Choose the dimensions to rotate and pair them.

    Parameters
    ----------
    selection : {"largest", "smallest", "random"}
        By ``|W_0 - W_1|`` (Scenario 1, Scenario 2 of section 6.2) or uniformly.
    count : int
        How many dimensions, even, in [2, width].
    width : int
        Hidden dimension d.
    gap : Tensor, optional
        (d,) values ``|W_0 - W_1|``; not used by ``random``.
    pairing : {"rank", "index", "shuffled", "folded"}
        The paper does not say how the chosen dimensions are paired: neighbours in the order of ``gap`` (the default;
        the order of the draw for ``random``), neighbours by index, a random matching, or first with last in the order.
    seed : int
        Seed of the random selection and matching.
    """
    _validate.choice("selection", selection, SELECTIONS)
    _validate.choice("pairing", pairing, PAIRINGS)
    _validate.integer("count", count, least=2, most=width)
    if count % 2:
        raise ValueError(f"count must be even, got {count}")
    draws = torch.Generator().manual_seed(seed)
    if selection == "random":
        order = torch.randperm(width, generator=draws)
    elif gap is None or gap.shape != (width,):
        raise ValueError(f"gap must be a ({width},) tensor for selection {selection!r}, got {gap!r}")
    elif not gap.isfinite().all():
        raise ValueError(f"gap must hold finite numbers, got {gap!r}")
    else:
        order = gap.cpu().argsort(descending=selection == "largest", stable=True)
    dims = order[:count]
    if pairing == "index":
        dims = dims.sort().values
    elif pairing == "shuffled":
        dims = dims[torch.randperm(count, generator=draws)]
    elif pairing == "folded":
        dims = torch.stack([dims[: count // 2], dims.flip(0)[: count // 2]], 1).reshape(-1)
    return Planes(dims.reshape(-1, 2).clone())


def even_share(width: int, parts: int) -> int:
    """Largest even number of dimensions that is at most ``width / parts`` (256 of 768 for a third)."""
    _validate.integer("width", width, least=2)
    _validate.integer("parts", parts, least=1, most=width // 2)
    return 2 * (width // parts // 2)

"""Feature sets: random orthonormal sets, planar rotations, sets correlated with a given one, how two sets relate."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from icl_core import _validate


def generator(seed: int, device: str = "cpu") -> torch.Generator:
    """Return a ``torch.Generator`` seeded with ``seed``, the only source of randomness in the package."""
    return torch.Generator(device).manual_seed(_validate.integer("seed", seed, least=0, most=2**63 - 1))


def orthonormal(d: int, K: int, *, generator: torch.Generator, batch: Sequence[int] = ()) -> Tensor:
    """Draw orthonormal feature sets from the uniform (Haar) distribution.

    Parameters
    ----------
    d, K : int
        Dimension and number of features, ``2 <= K <= d``.
    generator : torch.Generator
        Source of the draw.
    batch : sequence of int
        Leading shape.

    Returns
    -------
    Tensor, shape (\\*batch, d, K)
        Features as columns, float64.

    Raises
    ------
    ValueError
        If ``K < 2`` or ``d < K``.

    Notes
    -----
    OOD paper, Section 3 (the feature set V).
    """
    K = _validate.integer("K", K, least=2)
    d = _validate.integer("d", d, least=2)
    if d < K:
        raise ValueError(f"d must be at least K = {K} to hold K orthonormal features, got {d}")
    normal = torch.randn(*batch, d, K, dtype=torch.float64, generator=generator, device=generator.device)
    q, r = torch.linalg.qr(normal)
    # QR's sign convention would bias the draw; fixing diag(R) > 0 makes it uniform.
    return q * torch.sign(torch.diagonal(r, dim1=-2, dim2=-1)).unsqueeze(-2)


def rotation(d: int, theta: float | Tensor, plane: tuple[int, int] = (1, 2)) -> Tensor:
    """Rotation by ``theta`` in one coordinate plane.

    Parameters
    ----------
    d : int
        Dimension.
    theta : float or Tensor, shape (...)
        Angle in radians.
    plane : (int, int)
        The coordinates i, j, counted from 1 as in the paper.

    Returns
    -------
    Tensor, shape (..., d, d)
        ``I + (cos - 1)(e_i e_i' + e_j e_j') + sin (e_i e_j' - e_j e_i')``.

    Raises
    ------
    ValueError
        If the plane's coordinates are equal or outside ``1..d``.

    Notes
    -----
    OOD paper, eq. 15.
    """
    d = _validate.integer("d", d, least=2)
    i, j = (_validate.integer("plane", index, least=1, most=d) - 1 for index in plane)
    if i == j:
        raise ValueError(f"plane must name two different coordinates, got {plane}")
    angle = torch.as_tensor(theta, dtype=torch.float64)
    matrix = torch.eye(d, dtype=torch.float64, device=angle.device).repeat(*angle.shape, 1, 1)
    matrix[..., i, i] = matrix[..., j, j] = torch.cos(angle)
    matrix[..., i, j] = torch.sin(angle)
    matrix[..., j, i] = -torch.sin(angle)
    return matrix


def correlated(V: Tensor, gamma: Sequence[float] | Tensor, *, generator: torch.Generator) -> Tensor:
    """Draw an orthonormal set U with ``<v_k, u_k> = gamma_k`` and ``<v_k, u_n> = 0`` for n != k.

    Parameters
    ----------
    V : Tensor, shape (d, K)
        Orthonormal training features.
    gamma : sequence of float or Tensor, shape (K,)
        Correlations in [-1, 1].
    generator : torch.Generator
        Source of the directions outside span(V).

    Returns
    -------
    Tensor, shape (d, K)

    Raises
    ------
    ValueError
        If ``V`` is not orthonormal, ``gamma`` is outside its range, or ``d`` is too small: each feature with
        ``|gamma_k| < 1`` needs a direction of its own outside span(V), so the least d is K plus their number.

    Notes
    -----
    OOD paper, Assumption 5.4.
    """
    require_orthonormal("V", V)
    d, K = V.shape
    g = torch.tensor(_validate.reals("gamma", gamma, least=-1.0, most=1.0), dtype=V.dtype, device=V.device)
    if g.numel() != K:
        raise ValueError(f"gamma must have one entry per feature, K = {K}, got {g.numel()}")
    free = g.abs() < 1
    least = K + int(free.sum())
    if d < least:
        raise ValueError(f"d must be at least {least} for K = {K} with these gamma, got {d}")
    U = V * g
    if least > K:
        outside = torch.randn(d, least - K, dtype=V.dtype, generator=generator, device=V.device)
        # Projecting twice removes what rounding leaves of V after the first time.
        for _ in range(2):
            outside = outside - V @ (V.T @ outside)
        directions, _ = torch.linalg.qr(outside)
        U[:, free] += directions * torch.sqrt((1 - g[free]) * (1 + g[free]))
    return U


def require_orthonormal(name: str, W: Tensor, tolerance: float = 1e-9) -> None:
    """Raise ``ValueError`` unless the columns of ``W`` (..., d, K) are orthonormal within ``tolerance``."""
    if W.ndim < 2 or W.shape[-2] < W.shape[-1]:
        raise ValueError(f"{name} must have shape (..., d, K) with d >= K, got {tuple(W.shape)}")
    worst = float((gram(W) - torch.eye(W.shape[-1], dtype=W.dtype, device=W.device)).abs().max())
    if not worst <= tolerance:
        raise ValueError(f"{name} must have orthonormal columns within {tolerance:g}, got a deviation of {worst:.3g}")


def gram(W: Tensor) -> Tensor:
    """Return the Gram matrix ``W' W``, shape (..., K, K)."""
    return W.mT @ W


def mean_feature(V: Tensor) -> Tensor:
    """Return ``sum_k v_k / sqrt(K)``, shape (..., d): a unit vector (OOD paper, Theorem 5.1)."""
    return V.sum(-1) / V.shape[-1] ** 0.5


def overlap(V: Tensor, U: Tensor) -> Tensor:
    """Return ``M = V' U``, shape (..., K, K), M[k, n] = <v_k, u_n> (OOD paper, Theorem 5.1)."""
    return V.mT @ U


def principal_angles(V: Tensor, U: Tensor) -> np.ndarray:
    """Return the principal angles between span(V) and span(U) in radians, largest first, shape (K,)."""
    from scipy.linalg import subspace_angles

    return np.asarray(subspace_angles(V.detach().cpu().numpy(), U.detach().cpu().numpy()))

"""The one-layer softmax attention model on tokens: the full masked layer, the one reparametrised by Q, and scores."""

from __future__ import annotations

import torch
from torch import Tensor


def embed(x: Tensor, y: Tensor, query: Tensor) -> Tensor:
    """Arrange prompts as embedding matrices.

    Parameters
    ----------
    x : Tensor, shape (B, N, d)
        Context inputs.
    y : Tensor, shape (B, N)
        Context labels.
    query : Tensor, shape (B, d)
        Query inputs.

    Returns
    -------
    Tensor, shape (B, d + 1, N + 1)
        Inputs above labels, the query last with label 0.

    Raises
    ------
    ValueError
        If the shapes do not fit together.

    Notes
    -----
    OOD paper, eq. 1; convergence paper, Section 2.2.
    """
    B, N, d = x.shape
    if y.shape != (B, N) or query.shape != (B, d):
        raise ValueError(
            f"y must have shape {(B, N)} and query {(B, d)} for x of shape {tuple(x.shape)}, "
            f"got {tuple(y.shape)} and {tuple(query.shape)}"
        )
    top = torch.cat([x, query.unsqueeze(1)], dim=1)
    bottom = torch.cat([y, torch.zeros_like(y[:, :1])], dim=1).unsqueeze(2)
    return torch.cat([top, bottom], dim=2).mT


def self_attention(W_K: Tensor, W_Q: Tensor, W_V: Tensor, E: Tensor) -> Tensor:
    """Softmax self-attention whose keys and values leave out the query's column.

    Parameters
    ----------
    W_K, W_Q, W_V : Tensor, shape (d + 1, d + 1)
        Key, query and value matrices.
    E : Tensor, shape (B, d + 1, N + 1)
        Embedded prompts.

    Returns
    -------
    Tensor, shape (B, d + 1, N + 1)

    Notes
    -----
    OOD paper, eq. 2 with the masking described after it; convergence paper, eq. 1.
    """
    masked = E[..., :-1]
    return W_V @ masked @ torch.softmax((W_K @ masked).mT @ (W_Q @ E), dim=-2)


def lift(Q: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return ``(W_K, W_Q, W_V)``, each (d + 1, d + 1), for which the full layer is the layer with parameter Q (d, d).

    OOD paper, eq. 3: the key matrix is the identity, so that ``W_K' W_Q`` is Q bordered by zeros; the value matrix
    reads the label.
    """
    d = Q.shape[0]
    W_Q = torch.zeros(d + 1, d + 1, dtype=Q.dtype, device=Q.device)
    W_Q[:d, :d] = Q
    W_V = torch.zeros_like(W_Q)
    W_V[d, d] = 1
    return torch.eye(d + 1, dtype=Q.dtype, device=Q.device), W_Q, W_V


def token_attention(Q: Tensor, x: Tensor, query: Tensor) -> Tensor:
    """Attention of the query on each context token, shape (..., N).

    Parameters
    ----------
    Q : Tensor, shape (d, d)
        Attention parameter.
    x : Tensor, shape (..., N, d)
        Context inputs.
    query : Tensor, shape (..., d)
        Query inputs.

    Notes
    -----
    OOD paper, Section 5, definition of attn_i; convergence paper, Definition 3.1.
    """
    return torch.softmax((x @ Q @ query.unsqueeze(-1)).squeeze(-1), dim=-1)


def feature_attention(attn: Tensor, index: Tensor, K: int) -> Tensor:
    """Sum token attention (..., N) over the tokens of each feature, ``index`` (..., N) -> shape (..., K).

    OOD paper, eq. 10; convergence paper, Definition 3.1.
    """
    total = torch.zeros(*attn.shape[:-1], K, dtype=attn.dtype, device=attn.device)
    return total.scatter_add(-1, index, attn)


def predict(Q: Tensor, x: Tensor, y: Tensor, query: Tensor) -> Tensor:
    """Prediction for the query, the attention-weighted sum of the context labels, shape (...).

    OOD paper, eq. 4 and 5; convergence paper, eq. 3.
    """
    return (token_attention(Q, x, query) * y).sum(-1)

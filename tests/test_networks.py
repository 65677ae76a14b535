"""TinyTransformer: the batched hand-written passes against plain autograd, training, resuming, refusals."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from icl_core import features, networks
from icl_core.networks import Architecture, Domain, Prompts, Training

K = 3


def _sets(M: int, d: int, seed: int = 3) -> Tensor:
    return features.orthonormal(d, K, generator=features.generator(seed), batch=(M,))


class Plain(nn.Module):
    """One model, written as a textbook would, on all N tokens of one prompt at a time."""

    def __init__(self, arch: Architecture, row: Tensor) -> None:
        super().__init__()
        self.arch = arch
        self.p = nn.ParameterDict(
            {
                name.replace(".", "_"): nn.Parameter(row[start : start + math.prod(shape)].reshape(shape).clone())
                for name, (start, shape) in networks.layout(arch).items()
            }
        )

    def norm(self, name: str, x: Tensor) -> Tensor:
        return nn.functional.layer_norm(x, x.shape[-1:], self.p[f"{name}_weight"], self.p[f"{name}_bias"])

    def linear(self, name: str, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.p[f"{name}_weight"], self.p[f"{name}_bias"])

    def sublayer(self, norm: str, x: Tensor, update) -> Tensor:
        arch = self.arch
        y = update(self.norm(norm, x) if arch.norm == "pre" else x)
        y = x + y if arch.residual else y
        return self.norm(norm, y) if arch.norm == "post" else y

    def forward(self, x: Tensor, y: Tensor, query: Tensor) -> Tensor:
        """Predict for context x (N, d), y (N,) and query (d,)."""
        arch, w, N = self.arch, self.arch.width, x.shape[0]
        tokens = torch.cat([torch.cat([x, query[None]]), torch.cat([y, y.new_zeros(1)])[:, None]], dim=1)
        h = self.linear("in", tokens) if arch.read_in == "linear" else tokens
        if arch.positions:
            h = h + self.p["positions"]
        allowed = torch.ones(N + 1, N + 1, dtype=torch.bool)
        if arch.mask == "context":
            allowed[:, N] = False
        if arch.mask == "causal":
            allowed = allowed.tril()

        for i in range(arch.layers):

            def attend(z: Tensor, i: int = i) -> Tensor:
                q, k, v = self.linear(f"{i}_qkv", z).split(w, dim=-1)
                logits = (q @ k.T / math.sqrt(w)).masked_fill(~allowed, -math.inf)
                return self.linear(f"{i}_out", torch.softmax(logits, dim=-1) @ v)

            def feed(z: Tensor, i: int = i) -> Tensor:
                act = torch.relu if arch.mlp == "relu" else nn.functional.gelu
                return self.linear(f"{i}_down", act(self.linear(f"{i}_up", z)))

            h = self.sublayer(f"{i}_norm1", h, attend)
            if arch.mlp != "none":
                h = self.sublayer(f"{i}_norm2", h, feed)
        last = self.norm("norm", h[-1]) if arch.norm == "pre" else h[-1]
        return self.linear("head", last)[0]


def _plain(arch: Architecture, flat: Tensor, V: Tensor, prompts: Prompts) -> tuple[Tensor, Tensor, Tensor]:
    """Predictions, losses and gradients of every model, one prompt at a time, on all tokens."""
    M, B, _ = prompts.labels.shape
    predictions, losses, gradients = [], [], []
    for m in range(M):
        model = Plain(arch, flat[m])
        mine = []
        for b in range(B):
            if prompts.order is not None:
                index = prompts.order[m, b]
            elif prompts.counts is not None:
                counts = prompts.counts if prompts.counts.ndim == 3 else prompts.counts.expand(M, -1, -1)
                index = torch.arange(K).repeat_interleave(counts[m, b].long())
            else:
                index = torch.arange(K).repeat_interleave(arch.length // K)
            asked = range(K) if prompts.query is None else prompts.query[m, b].tolist()
            label = prompts.labels[m, b]
            mine.append(torch.stack([model(V[m].T[index], label[index], V[m][:, q]) for q in asked]))
        predicted = torch.stack(mine)
        target = prompts.labels[m] if prompts.query is None else prompts.labels[m].gather(1, prompts.query[m])
        loss = 0.5 * ((predicted - target) ** 2).mean()
        loss.backward()
        predictions.append(predicted.detach())
        losses.append(loss.detach())
        rows = [p.grad if p.grad is not None else torch.zeros_like(p) for p in model.p.values()]
        named = dict(zip(model.p.keys(), rows, strict=True))
        gradients.append(torch.cat([named[name.replace(".", "_")].flatten() for name in networks.layout(arch)]))
    return torch.stack(predictions), torch.stack(losses), torch.stack(gradients)


CASES = [
    (Architecture(layers=1), "all", "distinct"),
    (Architecture(layers=3), "all", "distinct"),
    (Architecture(layers=2), "one", "all"),
    (Architecture(layers=2, norm="post"), "all", "distinct"),
    (Architecture(layers=2, norm="none", mlp="gelu"), "all", "distinct"),
    (Architecture(layers=2, mlp="none", residual=False), "one", "distinct"),
    (Architecture(layers=2, mask="full"), "one", "distinct"),
    (Architecture(layers=2, mask="full", norm="post", residual=False), "one", "all"),
    (Architecture(layers=2, mask="causal", positions=True), "one", "all"),
    (Architecture(layers=1, mask="causal", norm="none"), "one", "all"),
    (Architecture(layers=2, positions=True), "all", "all"),
    (Architecture(layers=2, d=4, width=5, read_in="identity", mlp_ratio=2), "all", "distinct"),
]


def _case(arch: Architecture, queries: str, tokens: str, M: int = 2, B: int = 3):
    arch = replace(arch, length=6)
    flat = networks.initialise(arch, range(M), dtype=torch.float64)
    # Biases and gains off their starting values, or their gradients would be tested at a special point.
    flat += 0.1 * torch.randn(flat.shape, generator=features.generator(11), dtype=torch.float64)
    V = _sets(M, arch.d)
    labels = torch.randn(M, B, K, generator=features.generator(5), dtype=torch.float64)
    query = torch.randint(K, (M, B, 1), generator=features.generator(6)) if queries == "one" else None
    return arch, flat, V, networks.prompts_for(arch, labels, query, tokens, seeds=range(M))


@pytest.mark.parametrize(("arch", "queries", "tokens"), CASES)
def test_batched_equals_plain_autograd(arch, queries, tokens):
    arch, flat, V, prompts = _case(arch, queries, tokens)
    predicted, loss, gradient = _plain(arch, flat, V, prompts)
    torch.testing.assert_close(networks.forward(arch, flat, V, prompts), predicted, rtol=0, atol=1e-11)
    mine_loss, mine = networks.loss_and_gradient(arch, flat, V, prompts)
    torch.testing.assert_close(mine_loss, loss, rtol=0, atol=1e-11)
    torch.testing.assert_close(mine, gradient, rtol=0, atol=1e-10)
    assert gradient.abs().max() > 1e-2

    a, b = networks.scope_range(arch, "last")
    _, last = networks.loss_and_gradient(arch, flat, V, prompts, scope="last")
    torch.testing.assert_close(last[:, a:b], gradient[:, a:b], rtol=0, atol=1e-10)
    assert last[:, :a].abs().max() == 0 if a else True
    assert last[:, b:].abs().max() == 0

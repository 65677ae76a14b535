"""Training many TinyTransformers: together against one at a time, and against GPT-2 of the same size.

    python benchmarks/networks.py [--models 64] [--steps 20] [--json FILE]

All rows do the same work on paper: one Adam step of every model on its own batch of prompts with N = 20 tokens, K = 4
features, two layers, width 16, float32. Rows differ in how they do it; agreement of the losses is asserted first.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, stack_module_state, vmap

from icl_core import features, networks, results
from icl_core.networks import Architecture, Training

ARCH = Architecture(layers=2, length=20)
K = 4


class Textbook(nn.Module):
    """The same model as a user would write it, on a batch (B, N + 1, d + 1) of tokens."""

    def __init__(self, arch: Architecture) -> None:
        super().__init__()
        w, hidden = arch.width, arch.width * arch.mlp_ratio
        self.read_in = nn.Linear(arch.d + 1, w)
        self.blocks = nn.ModuleList(
            nn.ModuleDict(
                {
                    "norm1": nn.LayerNorm(w), "qkv": nn.Linear(w, 3 * w), "out": nn.Linear(w, w),
                    "norm2": nn.LayerNorm(w), "up": nn.Linear(w, hidden), "down": nn.Linear(hidden, w),
                }
            )
            for _ in range(arch.layers)
        )  # fmt: skip
        self.norm, self.head = nn.LayerNorm(w), nn.Linear(w, 1)
        blocked = torch.zeros(arch.length + 1, arch.length + 1)
        blocked[:, -1] = -math.inf
        self.register_buffer("blocked", blocked)

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.read_in(tokens)
        for block in self.blocks:
            q, k, v = block["qkv"](block["norm1"](h)).chunk(3, dim=-1)
            logits = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]) + self.blocked
            h = h + block["out"](torch.softmax(logits, dim=-1) @ v)
            h = h + block["down"](torch.relu(block["up"](block["norm2"](h))))
        return self.head(self.norm(h[:, -1])).squeeze(-1)

    def load(self, row: Tensor, arch: Architecture) -> None:
        places = networks.layout(arch)
        for name, parameter in self.named_parameters():
            key = name.replace("blocks.", "").replace("read_in", "in")
            start, shape = places[key]
            with torch.no_grad():
                parameter.copy_(row[start : start + math.prod(shape)].view(shape))


def tokens_of(V: Tensor, prompts: networks.Prompts) -> tuple[Tensor, Tensor]:
    """All tokens (M, B, N + 1, d + 1) and targets (M, B) of prompts with one query each."""
    M, B, N = prompts.order.shape
    x = V.mT.gather(1, prompts.order.reshape(M, B * N, 1).expand(-1, -1, V.shape[1])).view(M, B, N, -1)
    y = prompts.labels.gather(2, prompts.order)
    asked = V.mT.gather(1, prompts.query.expand(-1, -1, V.shape[1]))
    context = torch.cat([x, y.unsqueeze(3)], 3)
    query = torch.cat([asked, torch.zeros_like(asked[..., :1])], 2)
    return torch.cat([context, query.unsqueeze(2)], 2), prompts.labels.gather(2, prompts.query).squeeze(2)


def timed(work: Callable[[int], None], steps: int, repeats: int = 3) -> float:
    """Seconds per step: the best of a few rounds, the machine's noise being one-sided."""
    work(2)
    best = math.inf
    for _ in range(repeats):
        start = time.perf_counter()
        work(steps)
        best = min(best, (time.perf_counter() - start) / steps)
    return best


def one_at_a_time(rows: Tensor, tokens: Tensor, targets: Tensor, steps: int) -> None:
    for m in range(rows.shape[0]):
        model = Textbook(ARCH)
        model.load(rows[m], ARCH)
        optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)
        for _ in range(steps):
            optimiser.zero_grad()
            loss = 0.5 * ((model(tokens[m]) - targets[m]) ** 2).mean()
            loss.backward()
            optimiser.step()


def with_vmap(rows: Tensor, tokens: Tensor, targets: Tensor, steps: int) -> None:
    models = []
    for m in range(rows.shape[0]):
        models.append(Textbook(ARCH))
        models[-1].load(rows[m], ARCH)
    parameters, buffers = stack_module_state(models)
    skeleton = Textbook(ARCH).to("meta")

    def loss(p: dict[str, Tensor], b: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return 0.5 * ((functional_call(skeleton, (p, b), (x,)) - y) ** 2).mean()

    step = vmap(grad_and_value(loss))
    leaves = [p.detach().requires_grad_() for p in parameters.values()]
    optimiser = torch.optim.Adam(leaves, lr=1e-3)
    names = list(parameters)
    for _ in range(steps):
        gradients, _ = step(dict(zip(names, leaves, strict=True)), buffers, tokens, targets)
        for name, leaf in zip(names, leaves, strict=True):
            leaf.grad = gradients[name].detach()
        optimiser.step()


def gpt2(B: int, steps: int, seconds: bool = True) -> float:
    """Prompts per second of ``transformers``' GPT-2 of the same width, depth and length, trained by Adam."""
    from transformers import GPT2Config, GPT2Model

    config = GPT2Config(
        vocab_size=1, n_positions=ARCH.length + 1, n_embd=ARCH.width, n_layer=ARCH.layers, n_head=1,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False,
    )  # fmt: skip
    body, read_in, head = GPT2Model(config), nn.Linear(ARCH.d + 1, ARCH.width), nn.Linear(ARCH.width, 1)
    leaves = [*body.parameters(), *read_in.parameters(), *head.parameters()]
    optimiser = torch.optim.Adam(leaves, lr=1e-3)
    x, y = torch.randn(B, ARCH.length + 1, ARCH.d + 1), torch.randn(B)

    def work(count: int) -> None:
        for _ in range(count):
            optimiser.zero_grad()
            hidden = body(inputs_embeds=read_in(x)).last_hidden_state[:, -1]
            (0.5 * ((head(hidden).squeeze(1) - y) ** 2).mean()).backward()
            optimiser.step()

    return B / timed(work, steps)


def ours(rows: Tensor, V: Tensor, training: Training, seeds: list[int], workers: int, steps: int) -> float:
    def work(count: int) -> None:
        run = replace(training, steps=count, record_every=10**6, tests=2)
        networks.train(ARCH, rows, V, run, seeds=seeds, workers=workers)

    return timed(work, steps)


def profile(rows: Tensor, V: Tensor, training: Training, seeds: list[int], steps: int) -> dict[str, float]:
    """Share of the processor time by kind of call, one thread."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as record

    kinds = {
        "matrix products": ("bmm", "addmm", "matmul"), "norms": ("layer_norm",), "softmax": ("softmax",),
        "drawing prompts": ("normal_", "randn", "random_"), "sums": ("sum",),
    }  # fmt: skip
    run = replace(training, steps=steps, record_every=10**6, tests=2)
    networks.train(ARCH, rows, V, replace(run, steps=2), seeds=seeds)
    with record(activities=[ProfilerActivity.CPU]) as seen:
        networks.train(ARCH, rows, V, run, seeds=seeds)
    total: dict[str, float] = {}
    for event in seen.key_averages():
        kind = next(
            (k for k, names in kinds.items() if any(n in event.key for n in names)), "element by element, views"
        )
        total[kind] = total.get(kind, 0.0) + event.self_cpu_time_total
    whole = sum(total.values())
    return {k: v / whole for k, v in sorted(total.items(), key=lambda item: -item[1])}


def check(rows: Tensor, V: Tensor, prompts: networks.Prompts, tokens: Tensor, targets: Tensor) -> None:
    """Assert that the rows compare the same model on the same prompts."""
    loss, _ = networks.loss_and_gradient(ARCH, rows, V, prompts)
    model = Textbook(ARCH)
    model.load(rows[0], ARCH)
    expected = 0.5 * ((model(tokens[0]) - targets[0]) ** 2).mean().detach()
    torch.testing.assert_close(loss[0], expected, rtol=1e-4, atol=1e-5)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=int, default=64)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    M, steps = arguments.models, arguments.steps
    seeds = list(range(M))
    rows = networks.initialise(ARCH, seeds)
    V = features.orthonormal(ARCH.d, K, generator=features.generator(0), batch=(M,)).float()
    found: dict[str, dict[str, float]] = {}
    for B in (16, 64):
        labels = torch.randn(M, B, K, generator=features.generator(1))
        query = torch.randint(K, (M, B, 1), generator=features.generator(2))
        prompts = networks.prompts_for(ARCH, labels, query, "all", seeds=seeds)
        tokens, targets = tokens_of(V, prompts)
        check(rows, V, prompts, tokens, targets)
        plain = Training(contexts=B, queries="one", tokens="all")
        times = {
            "one at a time": timed(lambda n, t=tokens, y=targets: one_at_a_time(rows, t, y, n), steps, 2),
            "torch.func": timed(lambda n, t=tokens, y=targets: with_vmap(rows, t, y, n), steps),
            "all tokens": ours(rows, V, plain, seeds, 1, steps),
            "distinct tokens": ours(rows, V, replace(plain, tokens="distinct"), seeds, 1, steps),
            "distinct tokens, two workers": ours(rows, V, replace(plain, tokens="distinct"), seeds, 2, steps),
            "shared contexts": ours(rows, V, Training(contexts=B // K), seeds, 1, steps),
            "shared contexts, two workers": ours(rows, V, Training(contexts=B // K), seeds, 2, steps),
        }
        times["one at a time, this engine"] = M * ours(rows[:1], V[:1], Training(contexts=B // K), [0], 1, steps)
        print(f"\n{M} models, batches of {B} prompts, ms per step of all models (times faster than one at a time)")
        for name, value in times.items():
            print(f"  {name:32s} {1e3 * value:9.1f} ms   x{times['one at a time'] / value:.1f}")
        rate = gpt2(B, steps)
        one, many = M * B / times["one at a time, this engine"], M * B / times["shared contexts, two workers"]
        print(f"  prompts per second: GPT-2 {rate:.0f}; one model here {one:.0f}; {M} models here {many:.0f}")
        found[str(B)] = times | {"gpt2 prompts per second": rate}
    shares = profile(rows, V, Training(contexts=16), seeds, steps)
    print("\nwhere the time goes (shared contexts, 64 prompts, one thread)")
    for kind, share in shares.items():
        print(f"  {kind:32s} {100 * share:5.1f} %")
    if arguments.json:
        note = results.provenance({"models": M, "steps": steps}, command="python benchmarks/networks.py")
        arguments.json.write_text(json.dumps({"provenance": note, "seconds": found, "shares": shares}, indent=1) + "\n")


if __name__ == "__main__":
    main()

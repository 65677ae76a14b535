"""Score updates of the one-layer engine: against token-level autograd, and against the raw speed of torch.exp.

Run ``python -m benchmarks.engine``. All figures of one run come from the same process, alternating with the baseline;
quote the ratios, not the times.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

from icl_core import dynamics, features, population, prompts, results

F64 = torch.float64


def seconds(work: Callable[[], object], repeats: int) -> list[float]:
    """Wall-clock seconds of ``repeats`` calls after one warm-up."""
    work()
    taken = []
    for _ in range(repeats):
        started = time.perf_counter()
        work()
        taken.append(time.perf_counter() - started)
    return taken


def gamma_grid(side: int) -> torch.Tensor:
    """Scores at the start of fine-tuning for K = 2 on a grid of (gamma1, gamma2): shape (side^2, 2, 2)."""
    gamma = torch.linspace(-1, 1, side, dtype=F64)
    pair = torch.cartesian_prod(gamma, gamma)
    symmetric = torch.tensor([[1.0, -1.0], [-1.0, 1.0]], dtype=F64)
    return pair.unsqueeze(-1) * pair.unsqueeze(-2) * symmetric


def autograd_updates(instances: int, steps: int, K: int, N: int, d: int) -> Callable[[], object]:
    """The obvious way: one instance at a time, tokens through the layer, autograd, a step on Q."""
    law = prompts.balanced(K, N)
    U = features.orthonormal(d, K, generator=features.generator(0))

    def work() -> None:
        for _ in range(instances):
            Q = torch.zeros(d, d, dtype=F64, requires_grad=True)
            for _ in range(steps):
                (slope,) = torch.autograd.grad(population.token_level_losses(Q, U, law).sum(), Q)
                Q = (Q - 0.1 * slope).detach().requires_grad_()

    return work


def engine_updates(start: torch.Tensor, steps: int, engine: str, device: str) -> Callable[[], object]:
    """``steps`` updates of every instance; the threshold is out of reach, so that none stops early."""
    law = prompts.balanced(start.shape[-1])

    def work() -> None:
        dynamics.gradient_descent(
            start, law, eta=0.1, threshold=1e-300, max_steps=steps, engine=engine, device=device, on_failure="return"
        )

    return work


def raw_exp(shape: torch.Size, times: int, device: str) -> Callable[[], object]:
    """torch.exp on an array of the same size, output reused."""
    x = torch.rand(shape, dtype=F64, device=device)
    out = torch.empty_like(x)

    def work() -> None:
        for _ in range(times):
            torch.exp(x, out=out)
        if device == "cuda":
            torch.cuda.synchronize()

    return work


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--side", type=int, default=401, help="grid points per gamma")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--json", help="write the figures here")
    options = parser.parse_args()
    started = time.perf_counter()
    start, K = gamma_grid(options.side), 2
    updates = options.steps * start.shape[0]

    slow_instances, slow_steps = 2, 20
    slow = seconds(autograd_updates(slow_instances, slow_steps, K, N=2, d=4), options.repeats)
    slow_rate = slow_instances * slow_steps / statistics.median(slow)
    exp_times = 50
    rows = {}
    for engine in ["tensor"] if options.device != "cpu" else ["compiled", "tensor"]:
        work, exp = (
            engine_updates(start, options.steps, engine, options.device),
            raw_exp(start.shape, exp_times, options.device),
        )
        pairs = [(seconds(work, 1)[0], seconds(exp, 1)[0]) for _ in range(options.repeats)]
        rate = [updates / t for t, _ in pairs]
        fraction = [updates * K**2 / t / (exp_times * start.numel() / e) for t, e in pairs]
        rows[engine] = {
            "updates_per_s": statistics.median(rate),
            "times_autograd": statistics.median(rate) / slow_rate,
            "fraction_of_exp": statistics.median(fraction),
            "fraction_min": min(fraction),
            "fraction_max": max(fraction),
        }
        row = rows[engine]
        print(
            f"{engine:>9}: {row['updates_per_s']:.3g} updates/s, {row['times_autograd']:.0f} x autograd loop, "
            f"{100 * row['fraction_of_exp']:.0f} % of raw exp "
            f"({100 * row['fraction_min']:.0f}-{100 * row['fraction_max']:.0f})"
        )
    print(f" autograd: {slow_rate:.3g} updates/s, one instance at a time on tokens (K=2, N=2, d=4)")
    if options.json:
        note = results.provenance(
            {k: v for k, v in vars(options).items() if k != "json"}, device=options.device, started=started,
            command="python -m benchmarks.engine", threads=torch.get_num_threads(),
        )  # fmt: skip
        figures = {"provenance": note, "autograd_updates_per_s": slow_rate, "engines": rows}
        Path(options.json).write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

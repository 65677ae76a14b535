"""Time the savings on a BERT-type encoder against the plain way, in one process, given one trained source model.

``python benchmarks/language.py --threads 2`` with ``ICL_CORE_DATA`` set, or with ``--data generated``. The plain way
runs every layer on every token for each angle, and fine-tunes and evaluates from the token ids on. It pads each batch
to its longest pair; ``--pad 128`` pads all to 128 tokens, as the paper does.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from icl_core.experiments import bert
from icl_core.language import cache, encoders, mrpc, training
from icl_core.results import Table, provenance, write_table

R = TypeVar("R")
Turn = Callable[[Tensor], Tensor]
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


def timed(work: Callable[[], R]) -> tuple[R, np.ndarray]:
    """Result of ``work``, and its wall-clock and CPU seconds; the latter hold on a machine that others use too."""
    started = [clock() for clock in CLOCKS.values()]
    result = work()
    return result, np.array([clock() - begun for clock, begun in zip(CLOCKS.values(), started, strict=True)])


class Plain:
    """The plain way: token ids in, every layer on every token, padded batches."""

    def __init__(self, encoder: encoders.Encoder, classifier: encoders.Classifier, pad: int) -> None:
        self.encoder, self.classifier, self.pad = encoder, classifier, pad

    def batch(self, tokens: tuple[cache.Ragged, cache.Ragged], index: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        ids, mask = tokens[0].padded(index)
        kinds = tokens[1].padded(index)[0]
        extra = max(0, self.pad - ids.shape[1])
        padded = [nn.functional.pad(x, (0, extra)) for x in (ids, kinds, mask)]
        return padded[0], padded[1], padded[2]

    def logits(self, tokens: tuple[cache.Ragged, cache.Ragged], index: Tensor, rotate: Turn | None = None) -> Tensor:
        return encoders.plain_logits(self.encoder, self.classifier, *self.batch(tokens, index), rotate)

    @torch.inference_mode()
    def loss(self, tokens: tuple[cache.Ragged, cache.Ragged], labels: Tensor, rotate: Turn | None = None) -> float:
        total = 0.0
        for index in torch.arange(len(labels)).split(32):
            logits = self.logits(tokens, index, rotate)
            total += float(nn.functional.cross_entropy(logits, labels[index], reduction="sum"))
        return total / len(labels)

    def step(
        self,
        tokens: tuple[cache.Ragged, cache.Ragged],
        labels: Tensor,
        index: Tensor,
        optimiser: torch.optim.Optimizer,
        rotate: Turn | None = None,
    ) -> None:
        loss = nn.functional.cross_entropy(self.logits(tokens, index, rotate), labels[index])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", default=encoders.PACKAGED)
    parser.add_argument("--data", default="", help="MRPC folder, or generated; default $ICL_CORE_DATA/mrpc")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--angles", type=int, default=25, help="angles of the sweep")
    parser.add_argument("--slice", type=int, default=5, help="angles of the forgetting curve")
    parser.add_argument("--steps", type=int, default=20, help="training steps that are timed")
    parser.add_argument("--pad", type=int, default=0, help="pad the plain way to so many tokens")
    parser.add_argument("--out", default=None, help="write the table there")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    encoder = encoders.load(given.model)
    train, dev = bert._mrpc(given.data)
    folder = bert.cache_folder()
    seeds = mrpc.Seeds.of_run(0)
    model, spent = timed(lambda: mrpc.source(encoder, train, dev, seeds, cache=folder))
    print(f"source model trained or loaded in {spent[0]:.1f} s")
    planes = mrpc.planes_for(model, "largest", seeds.dims)
    angles = np.linspace(0, math.pi, given.angles).tolist()
    few = np.linspace(math.pi, 0, given.slice).tolist()
    first = model.classifier.first
    _, hold = mrpc.split(len(train), 0.9, seeds.split)
    rest = train.take(hold.tolist())

    # With the savings, from the trained weights on: the states before the last layer are made here too.
    def set_up() -> mrpc.Source:
        states = {name: cache.hidden_states(encoder, pairs, first) for name, pairs in (("tune", rest), ("dev", dev))}
        before = {name: training.before_last(model.classifier, part) for name, part in states.items()}
        return mrpc.Source(
            model.classifier,
            model.gap_at_start,
            before["tune"],
            torch.tensor(rest.labels),
            before["dev"],
            torch.tensor(dev.labels),
        )

    fresh, setting = timed(set_up)
    quick, sweep_quick = timed(lambda: [row["loss"] for row in mrpc.theta_sweep(fresh, planes, angles)])
    forgot, forget_quick = timed(lambda: [row["forgetting"] for row in mrpc.forgetting(fresh, planes, few, seeds)])

    def three_terms() -> None:
        with torch.inference_mode():
            for index in cache.by_length(fresh.dev.lengths, 128):
                last = encoders.ThreeTerm(fresh.classifier.last, *fresh.dev.padded(index), planes)
                for theta in angles:
                    last(theta)

    _, sweep_terms = timed(three_terms)

    # The plain way.
    plain = Plain(encoder, model.classifier, given.pad)
    tokens = {"tune": cache.encode(encoder, rest), "dev": cache.encode(encoder, dev)}
    labels = {"tune": torch.tensor(rest.labels), "dev": torch.tensor(dev.labels)}

    def turn(theta: float) -> Turn:
        return lambda hidden: planes.rotate(hidden, theta)

    slow, sweep_slow = timed(lambda: [plain.loss(tokens["dev"], labels["dev"], turn(theta)) for theta in angles])

    def forgetting() -> list[float]:
        before = plain.loss(tokens["dev"], labels["dev"])
        out = []
        for theta in few:
            tuned = copy.deepcopy(model.classifier)
            tuned.last.requires_grad_(True)
            optimiser = torch.optim.AdamW(tuned.last.parameters(), lr=training.TUNE_MRPC.rate)
            tuned.train()
            way = Plain(encoder, tuned, given.pad)
            for index in training._order(len(rest), training.TUNE_MRPC, seeds.shuffle + 500):
                way.step(tokens["tune"], labels["tune"], index, optimiser, turn(theta))
            tuned.eval()
            # The paper's curve needs the source's loss; ours measures the target's before and after as well.
            out.append(way.loss(tokens["dev"], labels["dev"]) - before)
            way.loss(tokens["dev"], labels["dev"], turn(theta))
            plain.loss(tokens["dev"], labels["dev"], turn(theta))
        return out

    _, forget_slow = timed(forgetting)
    gap = max(abs(a - b) for a, b in zip(quick, slow, strict=True))
    print(f"largest difference of the sweep's losses between the two ways: {gap:.1e}")

    # One training step of the source model.
    head = encoders.Classifier(encoder, first, len(train.names), head_seed=1)
    states, use = cache.hidden_states(encoder, train, first, cache=folder), torch.arange(8 * given.steps)
    target, plan = torch.tensor(train.labels), training.TRAIN_MRPC
    _, step_quick = timed(
        lambda: training.train(
            head,
            states.take(use),
            target[use],
            training.Schedule(plan.rate, plan.batch, 1),
            shuffle_seed=1,
            dropout_seed=1,
        )
    )
    other = encoders.Classifier(encoder, first, len(train.names), head_seed=1).train()
    way, ids = Plain(encoder, other, given.pad), cache.encode(encoder, train.take(use.tolist()))
    optimiser = torch.optim.AdamW(other.parameters(), lr=plan.rate)

    def slow_steps() -> None:
        for index in training._order(len(use), training.Schedule(plan.rate, plan.batch, 1), 1):
            way.step(ids, target[use], index, optimiser)

    _, step_slow = timed(slow_steps)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2
    saved, usual = setting + sweep_quick + forget_quick, sweep_slow + forget_slow
    nothing = np.full(len(CLOCKS), math.nan)
    rows = [
        (f"sweep over {given.angles} angles", sweep_slow, sweep_quick),
        ("the same by the three-term form", sweep_slow, sweep_terms),
        (f"forgetting at {given.slice} angles", forget_slow, forget_quick),
        ("states before the last layer (set-up)", nothing, setting),
        ("sweep, forgetting and set-up", usual, saved),
        ("one training step", step_slow / given.steps, step_quick / given.steps),
    ]
    frame = pd.DataFrame({"what": [what for what, _, _ in rows]})
    for i, name in enumerate(CLOCKS):
        frame[f"plain_{name}"] = [plain_way[i] for _, plain_way, _ in rows]
        frame[f"saved_{name}"] = [short_way[i] for _, _, short_way in rows]
    for name in CLOCKS:
        frame[f"ratio_{name}"] = frame[f"plain_{name}"] / frame[f"saved_{name}"]
    frame = frame.round(4)
    print(frame.to_string(index=False))
    print(f"peak memory of the whole process {peak:.2f} GiB; mean forgetting {np.mean(forgot):.1e}")
    if given.out:
        command = f"python benchmarks/language.py --threads {given.threads} --angles {given.angles}"
        command += f" --slice {given.slice} --pad {given.pad}"
        load = Path("/proc/loadavg")
        about = provenance(
            {"threads": given.threads, "angles": given.angles, "slice": given.slice, "pad": given.pad},
            seed=0,
            command=command,
            model=encoder.name,
            data=dev.name,
            peak_gib=round(peak, 3),
            largest_difference=gap,
            load_average=load.read_text().split()[:3] if load.exists() else None,
        )
        meaning = {
            "what": "what is timed",
            "plain_wall": "seconds by the clock, plain way",
            "saved_wall": "seconds by the clock, with the savings",
            "plain_cpu": "CPU seconds, plain way",
            "saved_cpu": "CPU seconds, with the savings",
            "ratio_wall": "plain / saved, by the clock",
            "ratio_cpu": "plain / saved, CPU",
        }
        print(write_table(given.out, Table(frame, about, meaning)))
    print(json.dumps({"ratio": dict(zip(CLOCKS, usual / saved, strict=True)), "peak_gib": peak}))


if __name__ == "__main__":
    main()

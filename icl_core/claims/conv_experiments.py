"""Records of the convergence paper's Section 5 and Appendix B: what trained transformers show, and the reading of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from icl_core import population, prompts, results
from icl_core.claims import _tools
from icl_core.claims.record import Check, Claim, Evidence
from icl_core.experiments import convergence_phases, tiny_transformer
from icl_core.experiments import convergence_training as training
from icl_core.features import generator
from icl_core.theory._statement import remember

PAGE = "convergence-experiments"
# Other seeds than the stored tables', so that the two are independent.
SEEDS = (1000, 1001)
_OPEN = (
    "The text leaves the wiring of the network open; a criterion counts as reproduced if at least one plausible wiring meets "
    "it in at least half of its seeds, and the detail says how many do. The pictures were not at hand: criteria and thresholds "
    "(`convergence_training.Criteria`) are made from the words."
)
# Trained anew when the ledger runs in full.
LIVE = {"literal": training.LITERAL, "usual": training.USUAL}


@remember
def _runs(kind: str, fast: bool) -> tuple[pd.DataFrame, str]:
    """One row per trained model, and where they come from: the stored table, or runs with other seeds."""
    stored = Path(results.__file__).parent.parent / "book" / "results" / training.STORED[0]
    if fast and stored.with_suffix(".csv").is_file():
        frame = results.read_table(stored).frame
        frame = frame[(frame.kind == kind) & ~frame.model.str.startswith("one-layer")]
        return frame, f"stored runs: {frame.model.nunique()} wirings, {frame.seed.nunique()} seeds, {kind}"
    jobs = [(name, kind, seed) for name in LIVE for seed in SEEDS]
    setting = training.Setting()
    found = training.train(setting, [(LIVE[name], training.DISTRIBUTIONS[kind], seed) for name, _, seed in jobs])
    frame = pd.DataFrame(training._rows(jobs, found, training.Criteria(), {}))
    return frame, f"new runs: {', '.join(LIVE)} wiring, seeds {SEEDS}, {kind}"


def _shown(case: tuple[str, tuple[str, ...]], fast: bool) -> Evidence:
    """Whether some wiring meets all the named criteria in at least half of its seeds."""
    kind, names = case
    frame, region = _runs(kind, fast)
    met = frame[list(names)].astype(bool).all(axis=1)
    by_model = met.groupby(frame.model).mean()
    hits = int((by_model >= 0.5).sum())
    share, low, high = tiny_transformer.proportion(int(met.sum()), len(met))
    return Evidence(
        hits > 0, "monte-carlo", len(frame), region, dtype="float32", seed=int(frame.seed.min()),
        margin=float(by_model.max() - 0.5), tolerance=0.0, tolerance_source="criterion: half of a wiring's seeds",
        detail=f"{hits} of {len(by_model)} wirings; {int(met.sum())} of {len(met)} runs "
        f"({share:.2f}, 95% interval {low:.2f} to {high:.2f})",
    )  # fmt: skip


def _criterion(name: str, kind: str, *criteria: str, role: Any = "criterion") -> Check:
    return Check(name, _shown, (kind, criteria), role=role)


FIG_2 = (
    Claim(
        id="conv.fig-2.imbalanced",
        label="Fig. 2(a), stage-wise convergence",
        kind="figure",
        title="The dominant feature is learnt first, the others much later",
        statement=r"""
With $p=(0.8,0.1,0.1)$ the error $L_1$ quickly nearly vanishes, and $L_2$, $L_3$ converge to zero after a considerably longer
time.""",
        checks=(
            _criterion("L_1 within 100 epochs", "imbalanced", "dominant_quick"),
            _criterion("then L_2 and L_3", "imbalanced", "dominant_quick", "rare_converge", "rare_later"),
        ),
        uses=("conv.app-B",),
        chapter=PAGE,
        note=_OPEN,
    ),
    Claim(
        id="conv.fig-2.fluctuation",
        label="Fig. 2(a), stage-wise convergence",
        kind="figure",
        title="The errors of rare features fluctuate first",
        statement=r"""
With $p=(0.8,0.1,0.1)$ the errors $L_2$ and $L_3$ fluctuate at first, before they converge.""",
        checks=(
            _criterion("both rise before they converge", "imbalanced", "rare_fluctuate", "rare_converge"),
            Check("in the one-layer model", lambda optimiser, fast: _one_layer(optimiser, fast), training.OPTIMISERS[0],
                  role="reading"),
        ),
        uses=("conv.app-B",),
        chapter=PAGE,
        note=_OPEN + " In the exact dynamics no $L_k$ ever rises, so a fluctuation says nothing about the theory.",
    ),
    Claim(
        id="conv.fig-2.balanced",
        label="Fig. 2(b), balanced case",
        kind="figure",
        title="Balanced features are learnt alike",
        statement=r"""
With $p_k=\frac13$ all errors decrease in a similar manner throughout the training.""",
        checks=(_criterion("equal times within a factor 1.5", "balanced", "all_converge", "alike"),),
        uses=("conv.app-B",),
        chapter=PAGE,
        note=_OPEN,
    ),
)  # fmt: skip


def _one_layer(optimiser: str, fast: bool) -> Evidence:
    """Whether L_2 or L_3 of the one-layer model rises by the criterion's size on the sampled prompts."""
    setting = training.Setting(epochs=60 if fast else 400, every=400)
    found = training.one_layer(setting, training.DISTRIBUTIONS["imbalanced"], SEEDS, optimiser)
    curves = found.loss[..., 1:]
    rise = float((curves - np.minimum.accumulate(curves, axis=1)).max())
    level = training.Criteria().fluctuate / 2
    return Evidence(
        rise >= level, "monte-carlo", len(SEEDS), f"one-layer model, {optimiser}, M = 300 prompts, {setting.epochs} epochs",
        seed=SEEDS[0], margin=rise - level, tolerance=0.0, tolerance_source="criterion",
        detail=f"largest rise of L_2 or L_3: {rise:.2g}",
    )  # fmt: skip


FIG_3 = tuple(
    Claim(
        id=f"conv.fig-3.{kind}",
        label=f"Fig. 3({panel}), attention score concentration",
        kind="figure",
        title=f"Attention concentrates on the query's own feature, {kind}",
        statement=rf"""
For every $k$ and query $v_k$, ${{\rm Attn}}_k$ rises progressively to nearly 1 and the other scores fall away; ${law}$.""",
        checks=(_criterion("at least 0.9 at the end, never 0.1 below an earlier value", kind, "concentrates"),),
        uses=("conv.app-B",),
        chapter=PAGE,
        note=_OPEN,
    )
    for kind, panel, law in (("imbalanced", "a", r"p=(0.8,0.1,0.1)"), ("balanced", "b", r"p_k=\frac13"))
)


def _softmax_falls(moved: int, fast: bool) -> Evidence:
    """Rise score ``moved`` of query 2 alone and look at every attention score but that of feature 2."""
    random = generator(11)
    cases = 200 if fast else 5000
    S = 3 * torch.randn(cases, 3, 3, dtype=torch.float64, generator=random)
    counts = torch.randint(1, 50, (cases, 3), generator=random).double()
    step = torch.zeros(3, 3, dtype=torch.float64)
    step[moved, 1] = 0.1
    before, after = (population.attention_weights(x, counts)[:, :, 1] for x in (S, S + step))
    others = [0, 2]
    return _tools.at_least(
        -(after - before)[:, others].numpy() / before[:, others].numpy(), "random scores and counts, one score raised",
        seed=11, detail="smallest relative fall of Attn_1 and Attn_3",
    )  # fmt: skip


@remember
def _held(fast: bool) -> pd.DataFrame:
    return training.interventions(N=20 if fast else 60, steps=50 if fast else 400).frame


def _driver(moving: Callable[[pd.DataFrame], tuple[str, str]], fast: bool) -> Evidence:
    """Compare the rise of Attn_3 with a score held against the free dynamics: without the driver there is none.

    ``moving`` names the intervention that should stop the rise and the one that should leave it.
    """
    frame = _held(fast)
    stops, leaves = moving(frame)
    rise = {name: float(part.attn_3.max() - part.attn_3.iloc[0]) for name, part in frame.groupby("held")}
    margin = min(0.25 * rise["none"] - rise[stops], rise[leaves] - 0.5 * rise["none"])
    return Evidence(
        margin > 0, "swept", len(rise), f"exact one-layer dynamics, K = 3, N = {20 if fast else 60}, p = (0.8, 0.1, 0.1), counts enumerated",
        margin=margin, tolerance=0.0,
        tolerance_source="a driver held leaves less than a quarter of the rise, another score held at least half",
        detail="rise of Attn_3: " + ", ".join(f"{name} {value:.3f}" for name, value in rise.items()),
    )  # fmt: skip


@remember
def _parts(fast: bool) -> pd.DataFrame:
    return convergence_phases.drivers(N=None if fast else 60).frame


def _contributions(driver: str, fast: bool) -> Evidence:
    """While Attn_3 rises, the share of its rise that each score gives, summed over the clock."""
    frame = _parts(fast)
    first = frame[frame.d_log_attn_n > 0]
    total = {name: float(np.trapezoid(first[name], first.s)) for name in ("by_A", "by_B1", "by_Bn")}
    other = max(abs(value) for name, value in total.items() if name != driver)
    return Evidence(
        total[driver] > other, "swept", len(first), "exact one-layer dynamics, K = 3, p = (0.8, 0.1, 0.1), "
        + ("long prompts" if fast else "N = 60"),
        margin=total[driver] - other, tolerance=0.0, tolerance_source="none: a comparison",
        detail="parts of the rise of log Attn_3: " + ", ".join(f"{k[3:]} {v:+.3f}" for k, v in total.items())
        + f"; alpha/|beta_1| is {frame.alpha_over_beta_1.iloc[0]:.2f} at the start",
    )  # fmt: skip


def _after(ratio_least: float, fast: bool) -> Evidence:
    """alpha / |beta_1| from the peak of Attn_3 on."""
    frame = _parts(fast)
    later = frame[frame.d_log_attn_n <= 0]
    values = later.alpha_over_beta_1.to_numpy()
    return _tools.at_least(
        values - ratio_least, "exact one-layer dynamics from the peak of Attn_3 to A = 5, K = 3, p = (0.8, 0.1, 0.1)",
        detail=f"alpha/|beta_1| is {values[0]:.2f} at the peak and {frame.alpha_over_beta_1.iloc[0]:.2f} at the start",
    )  # fmt: skip


PHASES = (
    Claim(
        id="conv.sec-5.phases.pattern",
        label="Section 5, multi-phase transition",
        kind="figure",
        title="Attn_1 falls while Attn_3 rises, then Attn_2 rises and both fall",
        statement=r"""
For query $v_2$ and $p=(0.8,0.1,0.1)$: from epoch 10 to 100 ${\rm Attn}_1$ decreases and ${\rm Attn}_3$ increases; moving on to epoch 150,
${\rm Attn}_2$ increases and both others decrease; at epoch 400 attention has concentrated.""",
        checks=(
            _criterion("the pattern at some epochs", "imbalanced", "phases_shape"),
            _criterion("and attention concentrates", "imbalanced", "phases_shape", "concentrates"),
            _criterion("at the printed epochs", "imbalanced", "phases_printed", role="reading"),
        ),
        uses=("conv.app-B",),
        chapter=PAGE,
        note=_OPEN + " Printed epochs belong to one run of one wiring, so they are a reading, not a criterion.",
    ),
    Claim(
        id="conv.sec-5.phases.implication",
        label="Section 5, multi-phase transition",
        kind="text",
        title="A rise of A_2 alone lowers all other attention scores",
        statement=r"""
If only $A_2$ grows, ${\rm Attn}_1$ and ${\rm Attn}_3$ fall for query $v_2$; so a rise of ${\rm Attn}_3$ needs the movement of another
weight.""",
        checks=(
            Check("one score raised", _softmax_falls, 1, mutants={"raise B_1 instead": 0, "raise B_3 instead": 2}),
        ),
        uses=("conv.def-3.1",),
        chapter=PAGE,
        note=(
            "What follows is that some $B$ moves, not which: a rise of $B_{2,3}$ lifts ${\\rm Attn}_3$ too. Which one it is, is the next record."
        ),
    ),
    Claim(
        id="conv.sec-5.phases.driver",
        label="Section 5, multi-phase transition",
        kind="text",
        title="The fall of B_{2,1} is the main factor of phase I",
        statement=r"""
In the one-layer model with $K=3$, $p=(0.8,0.1,0.1)$, the fall of $B_{2,1}$ is the main factor behind the rise of ${\rm Attn}_3$ for query $v_2$: it
contributes more than the other scores, and without it most of the rise is gone.""",
        checks=(
            Check(
                "contributions to log Attn_3", _contributions, "by_B1",
                mutants={"A_2 as the driver": "by_A", "B_3 as the driver": "by_Bn"},
            ),
            Check(
                "scores held at zero", _driver, lambda frame: ("B1 held", "A held"),
                mutants={"A_2 as the driver": lambda frame: ("A held", "B1 held")},
            ),
        ),
        uses=("conv.lem-4.2.result", "conv.sec-5.phases.implication"),
        chapter=PAGE,
        note=(
            "Checked on the exact dynamics with the sizes of the experiment. $A_2$ is never negligible: the first check gives its slope "
            "over that of $-B_{2,1}$ at the start, and ${\\rm Attn}_2$ rises from the first step on, so at $K=3$ phases I and II are not apart."
        ),
    ),
    Claim(
        id="conv.sec-5.phases.shift",
        label="Section 5, multi-phase transition",
        kind="text",
        title="Later the rise of A_2 is the main factor",
        statement=r"""
In the one-layer model with $K=3$, $p=(0.8,0.1,0.1)$, from the time on at which ${\rm Attn}_3$ starts to fall for query $v_2$, $A_2$ moves faster than
$B_{2,1}$.""",
        checks=(
            Check("slopes from the peak on", _after, 1.0, mutants={"twice as fast from the peak on": 2.0}),
        ),
        uses=("conv.lem-4.2.result",),
        chapter=PAGE,
    ),
)  # fmt: skip


def _estimator(half: float, fast: bool) -> Evidence:
    """Appendix B's estimate of L_k on sampled prompts against the exact value of eq. (6), in standard errors."""
    p, N = training.DISTRIBUTIONS["imbalanced"], 60
    draws = 4000 if fast else 40_000
    S = torch.tensor([[1.0, -0.5, -0.4], [-0.6, 0.9, 0.2], [-0.4, -0.4, 0.2]], dtype=torch.float64)
    law = prompts.multinomial(p, N)
    exact = population.losses(S, law) / law.query
    data = training.draw(p, N, draws, 5)
    attention = population.attention_weights(S, data.counts[0].double())
    rows = torch.arange(draws)
    guess = (attention[rows, :, data.query[0]] * data.labels[0].double()).sum(1)
    squared = half * (guess - data.target[0].double()) ** 2
    worst, text = 0.0, []
    for k in range(3):
        mine = squared[data.query[0] == k]
        error = float(mine.std()) / len(mine) ** 0.5
        worst = max(worst, abs(float(mine.mean() - exact[k])) / error)
        text.append(f"L_{k + 1}: {float(mine.mean()):.3f} against {float(exact[k]):.3f} ({len(mine)} prompts)")
    return Evidence(
        worst <= 4, "monte-carlo", draws, "one-layer model at fixed scores, N = 60, p = (0.8, 0.1, 0.1)", residual=worst,
        tolerance=4.0, tolerance_source="standard errors", seed=5, detail="; ".join(text),
    )  # fmt: skip


def _rare(expected: float, fast: bool) -> Evidence:
    """Mean number of prompts with a rare query among M = 300."""
    held = torch.stack([
        (training.draw(training.DISTRIBUTIONS["imbalanced"], 60, 300, seed).query[0] == 1).double().sum()
        for seed in range(40 if fast else 400)
    ])  # fmt: skip
    error = float(held.std()) / len(held) ** 0.5
    gap = abs(float(held.mean()) - expected) / error
    return Evidence(
        gap <= 4, "monte-carlo", len(held), "M = 300, p = (0.8, 0.1, 0.1)", residual=gap, tolerance=4.0, seed=0,
        tolerance_source="standard errors",
        detail=f"{float(held.mean()):.1f} prompts with query v_2 on average, from {int(held.min())} to {int(held.max())}",
    )  # fmt: skip


APP_B = Claim(
    id="conv.app-B",
    label="Section 5 and Appendix B",
    kind="definition",
    title="Set-up of the experiments, and what it leaves open",
    statement=r"""
$d=16$, $N=60$, $K=3$, orthonormal features, $w\sim N(0,I)$, no noise, $p_k=\frac13$ or $p=(0.8,0.1,0.1)$; $M=300$ prompts; one block of single-head
self-attention and a feed-forward network with LayerNorm and ReLU, then a linear read-out; 400 epochs of Adam on the full batch with rate 0.002. $L_k$ is estimated by half the mean
squared error on the prompts whose query is $v_k$, ${\rm Attn}_k$ by its mean over them.""",
    checks=(
        Check("estimate of L_k", _estimator, 0.5, mutants={"without the half of eq. (6)": 1.0}),
        Check("30 prompts per rare query", _rare, 30.0, mutants={"a third of all prompts": 100.0}),
    ),
    uses=("conv.eq-6", "conv.def-3.1"),
    chapter=PAGE,
    note=(
        "Left open: residual connections; where LayerNorm stands; whether the query is attended to; whether scores see labels; width and a map "
        "before the block; size of the feed-forward network; which token is read out (here the query's); first weights; whether prompts are "
        "drawn once or every epoch. Each is an option of `convergence_training.Wiring`. The text says 'the squared loss' for $L_k$, which eq. (6) "
        "halves; the measured errors are those on the training prompts, about thirty per rare query."
    ),
)

CLAIMS: tuple[Claim, ...] = (*FIG_2, *FIG_3, *PHASES, APP_B)

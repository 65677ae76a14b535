"""Reduction to two kinds of features behind the balanced records, against the engine."""

import math

import numpy as np
import pytest
import torch
from scipy.interpolate import CubicSpline

from icl_core import dynamics, population, prompts
from icl_core.claims import conv_balanced as records

K, EPS = 6, 0.1


@pytest.fixture(scope="module")
def path():
    """Gradient flow of the whole score matrix, three likely and three unlikely features."""
    p = [records.LIKELY / K] * 3 + [records.UNLIKELY / K] * 3
    law = prompts.mean_field(p, 1.0)
    run, _ = dynamics.gradient_flow(
        torch.zeros(K, K, dtype=torch.float64), law, threshold=p[-1] * EPS / 30, rtol=1e-8, atol=1e-10
    )
    return run, law


@pytest.mark.parametrize("own", [0, 1])
@pytest.mark.parametrize("stage", ["I", "II.1"])
def test_two_kinds_follow_the_engine(path, own, stage):
    run, law = path
    state = records.unequal(K, EPS, stage)[own]
    k, others = (0, [1, 5]) if own == 0 else (5, [0, 4])
    scores, times = run.scores.numpy(), run.times.numpy()
    start = 0.0 if stage == "I" else records.unequal(K, EPS, "I")[own].time[-1]
    inside = (times >= start) & (times <= start + state.time[-1])
    assert inside.sum() >= 3
    at = scores[inside]
    # Cubic interpolation of 200 points is as good as the flow itself.
    for found, wanted in (
        (state.time, times[inside] - start),
        (state.B[:, 0], at[:, others[0], k]),
        (state.B[:, 1], at[:, others[1], k]),
        (state.off, 1 - population.attention_weights(run.scores, law.query).numpy()[inside][:, k, k]),
        (state.alpha, population.descent(run.scores, law).numpy()[inside][:, k, k]),
        (state.loss, population.losses(run.scores, law).numpy()[inside][:, k]),
    ):
        assert np.allclose(CubicSpline(state.A, found)(at[:, k, k]), wanted, rtol=2e-5, atol=1e-6 * abs(wanted).max())


def test_one_kind_is_the_closed_form():
    for stage in ("I", "II.1", "II.2"):
        closed = records.equal(64.0, 0.01, stage)
        solved = records.kinds(64.0, 0.01, stage, 0, (1.0, 1.0), (32.0, 32.0))
        for name in ("A", "off", "loss", "time"):
            ours, theirs = getattr(solved, name), getattr(closed, name)
            # The end of a stage is where a gap or a time is reached, and in stage I where A is.
            assert ours[-1] == pytest.approx(theirs[-1], rel=1e-6)
        assert np.allclose(closed.B, -closed.A[:, None] / 63)


def test_stage_one_needs_room():
    with pytest.raises(ValueError, match="eps must leave stage I"):
        records.kinds(64.0, 0.99, "II.1", 0, (1.0, 1.0), (32.0, 32.0))


def test_positive_weight_at_the_end_of_phase_one():
    # What the note of Induction Hypothesis E.2 says: up to log K = s/c - 1 an unlikely query prefers unlikely features.
    c, s = 0.05, (1.95**2 + 0.05**2) / 2
    for log2_K in (20, 70):
        K = 2.0**log2_K
        B = records.kinds(K, 0.01, "I", 1, (1.95, c), (K / 2, K / 2)).B[-1]
        assert (B.max() > 0) == (math.log(K) < s / c - 1)

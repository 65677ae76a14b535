"""Gradient descent against plain autograd steps, its two engines against each other, the flow, and honest failures."""

import math

import pytest
import torch

from icl_core import dynamics, features, population, prompts
from icl_core.theory import ood

F64 = torch.float64


def test_steps_are_autograd_steps_on_the_full_parameter():
    g = features.generator(0)
    W = features.orthonormal(5, 3, generator=g)
    law = prompts.balanced(3, 6, sigma=0.2)
    Q = torch.zeros(5, 5, dtype=F64, requires_grad=True)
    for _ in range(10):
        (gradient,) = torch.autograd.grad(population.token_level_losses(Q, W, law).sum(), Q)
        Q = (Q - 0.7 * gradient).detach().requires_grad_()
    run = dynamics.gradient_descent(
        torch.zeros(3, 3, dtype=F64), law, eta=0.7, threshold=1e-9, max_steps=10, on_failure="return"
    )
    torch.testing.assert_close(run.scores, W.T @ Q.detach() @ W, rtol=1e-12, atol=1e-13)


def test_gram_matrix_gives_autograd_steps_for_correlated_features_and_projects_on_others():
    g = features.generator(1)
    V, U = features.orthonormal(6, 3, generator=g), torch.randn(6, 3, generator=g, dtype=F64) / 2
    law, Q = prompts.balanced(3), torch.zeros(6, 6, dtype=F64, requires_grad=True)
    for _ in range(10):
        (gradient,) = torch.autograd.grad(population.token_level_losses(Q, U, law).sum(), Q)
        Q = (Q - 0.5 * gradient).detach().requires_grad_()
    run = dynamics.gradient_descent(
        torch.zeros(3, 3, dtype=F64), law, eta=0.5, threshold=1e-9, gram=features.gram(U), max_steps=10,
        on_failure="return",
    )  # fmt: skip
    torch.testing.assert_close(run.scores, U.T @ Q.detach() @ U, rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(
        dynamics.project(run.update, features.overlap(V, U)), V.T @ Q.detach() @ V, rtol=1e-12, atol=1e-13
    )


@pytest.mark.parametrize(
    "law",
    [
        prompts.balanced(3, 6, sigma=0.1),
        prompts.multinomial([0.5, 0.3, 0.2], 6),
        prompts.mean_field([0.6, 0.2, 0.2], 9),
    ],
    ids=["balanced", "multinomial", "mean field"],
)
def test_both_engines_agree(law):
    start = torch.randn(7, 3, 3, generator=features.generator(2), dtype=F64)
    options = {"eta": 0.5, "threshold": 0.03, "max_steps": 400, "record": 5, "on_failure": "return"}
    fast = dynamics.gradient_descent(start, law, engine="compiled", **options)
    slow = dynamics.gradient_descent(start, law, engine="tensor", **options)
    assert torch.equal(fast.steps, slow.steps)
    assert torch.equal(fast.feature_steps, slow.feature_steps)
    for name in ("scores", "update", "losses"):
        torch.testing.assert_close(getattr(fast, name), getattr(slow, name), rtol=1e-12, atol=1e-12)
    assert torch.equal(fast.trajectory.times, slow.trajectory.times)
    torch.testing.assert_close(fast.trajectory.losses, slow.trajectory.losses, rtol=1e-12, atol=1e-12)


def test_the_rule_holds_at_the_stop_and_not_one_step_before():
    run = dynamics.train(4, 0.01, 0.1)
    assert bool((run.losses <= 0.01 / 4).all())
    before = dynamics.gradient_descent(
        torch.zeros(4, 4, dtype=F64), prompts.balanced(4), eta=0.1, threshold=0.01 / 4,
        max_steps=int(run.steps) - 1, on_failure="return",
    )  # fmt: skip
    assert not bool((before.losses <= 0.01 / 4).any())
    assert float(run.alpha[0]) >= ood.alpha_star(4, 0.01) > float(before.alpha[0])


def test_instances_of_a_batch_have_their_own_step_size_and_threshold():
    eta, threshold = torch.tensor([0.1, 1.0]), torch.tensor([0.01, 0.001])
    both = dynamics.gradient_descent(torch.zeros(2, 3, 3, dtype=F64), prompts.balanced(3), eta=eta, threshold=threshold)
    for i in range(2):
        alone = dynamics.gradient_descent(
            torch.zeros(3, 3, dtype=F64), prompts.balanced(3), eta=float(eta[i]), threshold=float(threshold[i])
        )
        assert int(both.steps[i]) == int(alone.steps)
        torch.testing.assert_close(both.scores[i], alone.scores, rtol=1e-13, atol=1e-13)


def test_recording_does_not_change_the_run():
    plain, recorded = dynamics.train(3, 0.001, 0.5), dynamics.train(3, 0.001, 0.5, record=10)
    assert torch.equal(plain.scores, recorded.scores)
    path = recorded.trajectory
    assert int(path.times[0]) == 0
    assert int(path.times[-1]) == int(plain.steps)
    assert bool((path.times.diff() > 0).all())
    assert torch.equal(path.scores[-1], plain.scores)
    assert bool(torch.isnan(torch.diagonal(path.beta, dim1=-2, dim2=-1)).all())


def test_small_steps_approach_the_flow():
    start, law = torch.zeros(3, 3, dtype=F64), prompts.multinomial([0.6, 0.2, 0.2], 8)
    threshold = 1.5 * float(population.losses(40 * torch.eye(3, dtype=F64), law).max())
    _, times = dynamics.gradient_flow(start, law, threshold=threshold)
    gaps = []
    for eta in (0.5, 0.05):
        steps = dynamics.gradient_descent(start, law, eta=eta, threshold=threshold).steps
        gaps.append(abs(float(steps) * eta - times["all"]))
    assert gaps[1] < gaps[0] / 3 or gaps[1] < 0.05


def test_flow_times_its_events():
    _, times = dynamics.gradient_flow(
        torch.zeros(3, 3, dtype=F64),
        prompts.balanced(3),
        threshold=1e-4,
        events={"alpha = 1": lambda s, _: float(s[0, 0] - 1)},
    )
    assert 0 < times["alpha = 1"] < times["L_1"]
    path, again = dynamics.gradient_flow(torch.zeros(3, 3, dtype=F64), prompts.balanced(3), threshold=1.0)
    assert again["all"] == 0.0
    assert len(path.times) == 1


@pytest.mark.parametrize("engine", ["compiled", "tensor"])
def test_rule_that_cannot_be_met_is_an_honest_error(engine, monkeypatch):
    monkeypatch.setattr(dynamics, "_PATIENCE", 2000)
    law = prompts.balanced(2, 4, sigma=1.0)
    with pytest.raises(
        dynamics.ConvergenceError, match="1 of 1 runs did not meet the rule: the losses stopped"
    ) as stop:
        dynamics.gradient_descent(torch.zeros(2, 2, dtype=F64), law, eta=5.0, threshold=1e-3, engine=engine)
    assert float(stop.value.result.losses.max()) > 1e-3


def test_running_out_of_steps_says_what_was_reached():
    with pytest.raises(dynamics.ConvergenceError, match=r"max_steps = 50 .* after 50 steps, threshold 0\.0005"):
        dynamics.train(2, 1e-3, 0.1, max_steps=50)


@pytest.mark.parametrize("engine", ["compiled", "tensor"])
def test_absurd_step_size_does_not_hang(engine):
    run = dynamics.gradient_descent(
        torch.zeros(3, 3, dtype=F64), prompts.balanced(3), eta=1e308, threshold=1e-9, engine=engine, max_steps=100,
        on_failure="return",
    )  # fmt: skip
    assert int(run.steps) <= 100


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"eta": 0}, r"eta must be a number in \(0, inf\), got 0"),
        ({"eta": math.nan}, "eta must be a number"),
        ({"threshold": -1}, "threshold must be a number"),
        ({"eta": torch.tensor([1.0, -1.0])}, "eta must be positive and finite"),
        ({"eta": torch.ones(3)}, r"eta must broadcast to the batch shape \(2,\), got \(3,\)"),
        ({"max_steps": 0}, "max_steps must be an integer >= 1, got 0"),
        ({"record": 0}, "record must be an integer >= 1, got 0"),
        ({"device": "tpu"}, "device must be one of 'auto', 'cpu', 'cuda', 'mps', got 'tpu'"),
        ({"engine": "magic"}, "engine must be one of"),
        ({"engine": "compiled", "gram": torch.eye(3, dtype=F64)}, "engine must be 'tensor'"),
        ({"device": "mps"}, "dtype must be torch.float32 on device 'mps'"),
        ({"scores": torch.zeros(2, 2, 2)}, r"scores must have shape \(\.\.\., 3, 3\)"),
        ({"scores": torch.full((2, 3, 3), math.nan)}, "scores must be finite"),
    ],
)
def test_bad_arguments_name_themselves(change, message):
    options = {"scores": torch.zeros(2, 3, 3, dtype=F64), "eta": 0.1, "threshold": 0.01, **change}
    with pytest.raises(ValueError, match=message):
        dynamics.gradient_descent(options.pop("scores"), prompts.balanced(3), **options)


def test_auto_never_takes_mps():
    assert dynamics.resolve_device("auto").type in ("cpu", "cuda")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_agrees_with_the_cpu():
    start = torch.randn(50, 3, 3, generator=features.generator(5), dtype=F64)
    options = {"eta": 0.5, "threshold": 1e-3}
    here = dynamics.gradient_descent(start, prompts.balanced(3), **options)
    there = dynamics.gradient_descent(start, prompts.balanced(3), device="cuda", **options)
    assert torch.equal(here.steps, there.steps)
    torch.testing.assert_close(here.scores, there.scores, rtol=1e-10, atol=1e-10)

"""Training runs of Section 5: the batched wirings against the networks module, criteria, one-layer model, tables."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from icl_core import networks, population, prompts
from icl_core.experiments import convergence_training as training

P = training.DISTRIBUTIONS["imbalanced"]
SMALL = training.Setting(d=5, N=12, M=40, epochs=6, every=3)


def _batch(d=5, R=3, M=7):
    data = training._stack([training.draw(P, 12, M, seed) for seed in range(R)])
    V = torch.stack([training._features(d, 3, seed) for seed in range(R)])
    return V, data


@pytest.mark.parametrize("norm", ["pre", "post", "none"])
@pytest.mark.parametrize("residual", [True, False])
@pytest.mark.parametrize(("self_key", "projected"), [(False, False), (True, True)])
def test_predictions_and_gradients_are_those_of_the_networks_module(norm, residual, self_key, projected):
    wiring = training.Wiring(residual, norm, self_key, projected=projected, width=8 if projected else None)
    arch = networks.Architecture(
        d=5, width=8 if projected else 6, norm=norm, residual=residual, mask="full" if self_key else "context",
        read_in="linear" if projected else "identity",
    )  # fmt: skip
    V, data = _batch()
    models = training.build([wiring] * 3, 5, [4, 5, 6])
    values = {name: value.clone().requires_grad_() for name, value in models.values.items()}
    flat = torch.zeros(3, networks.size(arch))
    for name, view in networks.views(arch, flat).items():
        view.copy_(values[name].detach())
    asked = networks.Prompts(data.labels, data.query.unsqueeze(2), counts=data.counts)
    guess, weights = training.predict(models, values, V, data)
    torch.testing.assert_close(guess, networks.forward(arch, flat, V, asked).squeeze(2), rtol=1e-4, atol=1e-5)
    seen = networks.attention(arch, flat, V, asked)[0]["weights"].squeeze(2)
    torch.testing.assert_close(weights[..., : seen.shape[-1]], seen, rtol=1e-4, atol=1e-5)
    _, expected = networks.loss_and_gradient(arch, flat, V, asked)
    ((guess - data.target) ** 2 / 2).mean(1).sum().backward()
    for name, view in networks.views(arch, expected).items():
        torch.testing.assert_close(values[name].grad, view, rtol=1e-3, atol=1e-5)


def test_a_model_does_not_depend_on_its_company():
    wirings = [training.LITERAL, training.USUAL, replace(training.USUAL, ratio=1), replace(training.USUAL, fresh=True)]
    jobs = [(wiring, P, seed) for wiring in wirings for seed in (0, 1)]
    together = training.train(SMALL, jobs, group=8)
    for i, job in enumerate(jobs):
        alone = training.train(SMALL, [job])
        np.testing.assert_allclose(alone.loss[0], together.loss[i], rtol=2e-4, atol=1e-6)
        np.testing.assert_allclose(alone.attention[0], together.attention[i], rtol=2e-4, atol=1e-6)


def test_scores_from_inputs_do_not_see_the_labels():
    V, data = _batch()
    wiring = training.Wiring(norm="none", scores="inputs")
    models = training.build([wiring] * 3, 5, [0, 1, 2])
    other = replace(data, labels=2 * data.labels)
    first, second = (training.predict(models, models.values, V, x) for x in (data, other))
    torch.testing.assert_close(first[1], second[1])
    assert not torch.allclose(first[0], second[0])
    whole = training.build([replace(wiring, scores="tokens")] * 3, 5, [0, 1, 2])
    assert not torch.allclose(*(training.predict(whole, whole.values, V, x)[1] for x in (data, other)))


def test_what_is_not_trained_stays():
    setting = replace(SMALL, epochs=3)
    wiring = training.Wiring(scores="inputs")
    models = training.build([wiring], 5, [0])
    assert set(models.gates) == {"residual", "before1", "before2", "before3", "after1", "after2", "self"}
    masked = models.trained["0.qkv.weight"][0]
    assert masked[:12, -1].sum() == 0
    assert masked[12:, :-1].sum() == 0
    assert masked[12:, -1].all()
    assert models.trained["in.weight"].sum() == 0
    assert training.train(setting, [(wiring, P, 0)]).loss.shape == (1, 4, 3)


def test_fresh_prompts_change_with_the_epoch_and_fixed_ones_do_not():
    # Without learning, losses move only if prompts do.
    setting = replace(SMALL, rate=1e-12)
    fixed, fresh = (training.train(setting, [(replace(training.USUAL, fresh=f), P, 0)]).loss[0] for f in (False, True))
    assert np.ptp(fixed[:, 0]) < 1e-5
    assert np.ptp(fresh[:, 0]) > 1e-3


def test_one_layer_descent_follows_the_empirical_gradient_and_nears_the_population():
    setting = training.Setting(d=4, N=60, M=6000, epochs=40, every=40)
    run = training.one_layer(setting, P, [0], training.OPTIMISERS[2])
    exact = training.exact(replace(setting), "imbalanced").frame
    last = exact[exact.epoch == 40].iloc[0]
    for k in range(3):
        for n in range(3):
            assert run.attention[0, -1, k, n] == pytest.approx(last[f"attn_{k + 1}{n + 1}"], abs=0.04)
    # Half the mean squared error over prompts with query k is L_k without further factors (Appendix B, eq. 6).
    law = prompts.multinomial(P, 60)
    expected = (population.losses(torch.zeros(3, 3, dtype=torch.float64), law) / law.query).numpy()
    np.testing.assert_allclose(run.loss[0, 0], expected, rtol=0.15)


def test_adam_on_the_one_layer_model_sees_the_basis():
    setting = training.Setting(d=16, epochs=20, M=100, every=20)
    by_axes, random = (
        np.abs(run.attention[0, -1] - run.attention[0, 0]).max()
        for run in (training.one_layer(setting, P, [0], training.OPTIMISERS[i]) for i in (1, 0))
    )
    # A score moves by the rate per epoch along the axes, by up to its |v|_1^2 times otherwise.
    assert random > 3 * by_axes


def _ideal():
    """A run that does exactly what the text says."""
    t = np.arange(401)
    attention = np.zeros((401, 3, 3))
    attention[:, 0] = np.stack([0.8 + 0.19 * t / 400, 0.1 - 0.095 * t / 400, 0.1 - 0.095 * t / 400], 1)
    third = np.interp(t, [0, 10, 100, 150, 400], [0.1, 0.1, 0.3, 0.2, 0.0])
    second = np.interp(t, [0, 100, 150, 400], [0.1, 0.1, 0.5, 0.99])
    attention[:, 1] = np.stack([1 - second - third, second, third], 1)
    attention[:, 2] = attention[:, 1][:, [0, 2, 1]]
    loss = np.stack([0.5 * np.exp(-t / 10), *[0.5 * np.exp(-t / 60) + 0.1 * np.exp(-((t - 30) ** 2) / 20)] * 2], 1)
    return loss, attention


def test_judge_accepts_the_text_and_notices_each_departure():
    loss, attention = _ideal()
    found = training.judge(loss, attention, "imbalanced")
    assert all(found[name] for name in training.TESTED["imbalanced"])
    slow = loss.copy()
    slow[:, 0] = 0.5
    assert not training.judge(slow, attention, "imbalanced")["dominant_quick"]
    smooth = loss.copy()
    smooth[:, 1] = 0.5 * np.exp(-np.arange(401) / 60)
    assert not training.judge(smooth, attention, "imbalanced")["rare_fluctuate"]
    together = np.repeat(loss[:, :1], 3, axis=1)
    assert not training.judge(together, attention, "imbalanced")["rare_later"]
    direct = attention.copy()
    direct[:, 1] = np.linspace([0.8, 0.1, 0.1], [0.005, 0.99, 0.005], 401)
    judged = training.judge(loss, direct, "imbalanced")
    assert not judged["phases_printed"]
    assert not judged["phases_shape"]
    assert judged["concentrates"]
    late = attention[np.minimum(np.arange(401) // 2, 400)]
    judged = training.judge(loss, late, "imbalanced")
    assert judged["phases_shape"]
    assert not judged["phases_printed"]
    assert not judged["concentrates"]
    alike = training.judge(together, attention, "balanced")
    assert alike["all_converge"]
    assert alike["alike"]
    assert not training.judge(loss, attention, "balanced")["alike"]


def test_tables_hold_every_model_and_criterion():
    wirings = {"a": training.USUAL, "b": training.LITERAL}
    runs, curves = training.tables(SMALL, wirings, seeds=(0, 1), curve_every=3)
    models = {"a", "b", *(f"one-layer model; {name}" for name in training.OPTIMISERS)}
    assert set(runs.frame.model) == models == set(curves.frame.model)
    assert len(runs.frame) == len(models) * 2 * 2
    shares = training.shares(runs.frame)
    assert set(shares.columns) == {(kind, name) for kind, names in training.TESTED.items() for name in names}
    assert shares.to_numpy().min() >= 0
    assert shares.to_numpy().max() <= 1
    assert set(curves.frame.epoch) == {0, 3, 6}


def test_interventions_hold_what_they_say():
    frame = training.interventions(N=12, steps=20).frame
    last = frame[frame.step == 20].set_index("held")
    assert last.loc["B1 held", "B1"] == 0
    assert last.loc["A held", "A"] == 0
    assert last.loc["only A moves", ["B1", "B3"]].abs().sum() == 0
    free = last.loc["none"]
    assert pytest.approx(0, abs=1e-12) == free.A + free.B1 + free.B3
    assert free.A > 0 > free.B1


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: training.Wiring(norm="batch"), "norm"),
        (lambda: training.Wiring(width=32), "width"),
        (lambda: training.Wiring(scores="inputs", projected=True), "scores"),
        (lambda: training.Wiring(start=0.0), "start"),
        (lambda: training.Setting(M=1), "M"),
        (lambda: training.Setting(rate=-1.0), "rate"),
        (lambda: training.one_layer(SMALL, P, [0], "lion"), "optimiser"),
        (lambda: training.interventions(p=(0.5, 0.5)), "p"),
        (lambda: training.build([training.USUAL, training.Wiring(projected=True, width=9)], 5, [0, 1]), "wirings"),
    ],
)
def test_bad_options_are_named(make, text):
    with pytest.raises(ValueError, match=text):
        make()


def test_wirings_have_distinct_settings():
    assert len(set(training.WIRINGS.values())) == len(training.WIRINGS)
    assert training.LITERAL in training.GRID.values()
    assert training.USUAL in training.GRID.values()
    assert math.isclose(sum(P), 1)

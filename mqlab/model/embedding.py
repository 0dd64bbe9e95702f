"""The two ends of a decoder: token embedding and output projection, which may be one matrix."""

from __future__ import annotations

import logging

import torch
from torch import Tensor

from mqlab.model.architecture import Architecture
from mqlab.model.making import PLAIN, Making
from mqlab.model.parallel.shares import share_of
from mqlab.model.weights import TensorSource

logger = logging.getLogger("mqlab.model")


def read_ends(arch: Architecture, source: TensorSource, making: Making = PLAIN) -> tuple[Tensor, Tensor]:
    """Embedding [vocab, hidden], and this rank's rows [rows, hidden] of the output projection; alone, the same tensor where they are tied.

    A checkpoint may state both for a model that config.json ties: where they differ both are used, as transformers does, because
    the weights were trained and the config was written by hand. It may also hold either of the two alone.

    Raises:
        ModelError: one that is called for is missing or of another shape.
    """
    embedding, head = _read_whole(arch, source)
    if making.group.size == 1:
        return embedding, head
    own = head[share_of(arch, making.group).vocab]
    # A view of an embedding that stays anyway costs nothing, one of a whole projection would keep it.
    return embedding, own if head is embedding else own.clone()


def _read_whole(arch: Architecture, source: TensorSource) -> tuple[Tensor, Tensor]:
    names = arch.family.names
    embedding_name = f"{names.embedding}.weight"
    stated = [f"{name}.weight" for name in names.head if f"{name}.weight" in source]
    head_name = stated[0] if stated else f"{names.head[0]}.weight"
    shape = (arch.vocab, arch.hidden)
    if arch.tied and (not stated or embedding_name not in source):
        only = source.read(head_name if stated else embedding_name, *shape)
        return only, only
    embedding, head = source.read(embedding_name, *shape), source.read(head_name, *shape)
    if not arch.tied:
        return embedding, head
    if torch.equal(embedding, head):
        return embedding, embedding
    logger.warning("config.json ties %s to %s, but the weights hold both and they differ: both are used", head_name, embedding_name)
    return embedding, head

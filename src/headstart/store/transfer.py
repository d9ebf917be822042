"""Load a pretrained backbone into a model, and record every tensor with its hash in a TransferReceipt.

A wrong folder, another tokenizer, a missing or an extra tensor raises an error; a partial load never happens.
"""

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import nn

from headstart.errors import StoreError, TransferError
from headstart.model.heads import Model
from headstart.progress import pluralize
from headstart.store.bundle import Bundle, load_bundle
from headstart.store.tensors import load_into, load_packed, tensor_sha256
from headstart.tokenization.base import Tokenizer


@dataclass(frozen=True)
class TensorLine:
    """One tensor of a receipt, with the hash of its fp32 bytes."""

    name: str
    shape: tuple[int, ...]
    sha256: str


@dataclass(frozen=True)
class TransferReceipt:
    """The tensors that were loaded from a source, and those that are newly initialized."""

    source: str
    tokenizer: str
    moved: tuple[TensorLine, ...]
    new: tuple[TensorLine, ...]

    def as_dict(self) -> dict[str, Any]:
        """The receipt as JSON values."""
        return asdict(self)

    def summary(self) -> str:
        """The receipt in one line."""
        moved = sum(math.prod(line.shape) for line in self.moved)
        new = sum(math.prod(line.shape) for line in self.new)
        return (
            f"transfer receipt: {pluralize(len(self.moved), 'tensor')} ({moved:,} parameters) moved from {self.source}, "
            f"{len(self.new)} ({new:,}) new"
        )


def transfer(
    source: str, model: Model[Any], tokenizer: Tokenizer, bundle: Bundle | None = None, *, head: bool = False
) -> TransferReceipt:
    """Load the backbone of a bundle into a model with a new head, and return the receipt.

    Args:
        head: load the head as well, to continue the same task on other text.
    """
    bundle = bundle or load_bundle(Path(source))
    if bundle.tokenizer.digest != tokenizer.digest:
        raise TransferError(
            f"{source} was pretrained with another tokenizer ({bundle.tokenizer.digest[:12]}, not {tokenizer.digest[:12]});"
            " remove --tokenizer to use its own"
        )
    moved = _move(source, bundle.path, model.backbone, "backbone")
    if head:
        return TransferReceipt(source, tokenizer.digest, (*moved, *_move(source, bundle.path, model.head, "head")), ())
    return TransferReceipt(source, tokenizer.digest, moved, new_tensor_lines(model.head, "head"))


def new_tensor_lines(module: nn.Module, name: str) -> tuple[TensorLine, ...]:
    """The receipt's lines for the tensors of a newly initialized module."""
    state = module.state_dict()
    return tuple(
        TensorLine(f"{name}.{key}", tuple(state[key].shape), tensor_sha256(state[key])) for key in sorted(state)
    )


def _move(source: str, folder: Path, module: nn.Module, name: str) -> tuple[TensorLine, ...]:
    """Load one file into one module, and check the hash of every tensor."""
    path = folder / f"{name}.safetensors"
    saved = load_packed(path)  # hashes are of the fp32 values, whatever the storage type
    try:
        load_into(module, saved, str(path))
    except StoreError as error:
        raise TransferError(f"{error}; nothing was transferred") from None
    lines = []
    for key, tensor in sorted(module.state_dict().items()):
        digest = tensor_sha256(tensor)
        if digest != tensor_sha256(saved[key]):
            raise TransferError(f"{key} of {source} was not loaded as it was saved; the model cannot be trusted")
        lines.append(TensorLine(f"{name}.{key}", tuple(tensor.shape), digest))
    return tuple(lines)

"""Proof that a backbone moved: which tensors, byte for byte, and which were born new. It fails closed.

A wrong folder, another tokenizer, a missing or an extra tensor each stop with one sentence; nothing is ever loaded in part.
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
    """One tensor of a receipt."""

    name: str
    shape: tuple[int, ...]
    sha256: str


@dataclass(frozen=True)
class TransferReceipt:
    """What moved from where."""

    source: str
    tokenizer: str
    moved: tuple[TensorLine, ...]
    new: tuple[TensorLine, ...]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    def summary(self) -> str:
        """One line for a person."""
        moved = sum(math.prod(line.shape) for line in self.moved)
        new = sum(math.prod(line.shape) for line in self.new)
        return (
            f"transfer receipt: {pluralize(len(self.moved), 'tensor')} ({moved:,} parameters) moved from {self.source}, "
            f"{len(self.new)} ({new:,}) new"
        )


def transfer(
    source: str, model: Model[Any], tokenizer: Tokenizer, bundle: Bundle | None = None, *, head: bool = False
) -> TransferReceipt:
    """Move the backbone of a folder into a model whose head is new, and prove it.

    Args:
        head: move the head as well, to go on with the same task on other text.
    """
    bundle = bundle or load_bundle(Path(source))
    if bundle.tokenizer.digest != tokenizer.digest:
        raise TransferError(
            f"{source} was pretrained with another tokenizer ({bundle.tokenizer.digest[:12]}, not {tokenizer.digest[:12]});"
            " leave --tokenizer out to use its own"
        )
    moved = _move(source, bundle.path, model.backbone, "backbone")
    if head:
        return TransferReceipt(source, tokenizer.digest, (*moved, *_move(source, bundle.path, model.head, "head")), ())
    return TransferReceipt(source, tokenizer.digest, moved, new_tensor_lines(model.head, "head"))


def new_tensor_lines(module: nn.Module, name: str) -> tuple[TensorLine, ...]:
    """The tensors of a module that was born new, for a receipt."""
    own = module.state_dict()
    return tuple(TensorLine(f"{name}.{key}", tuple(own[key].shape), tensor_sha256(own[key])) for key in sorted(own))


def _move(source: str, folder: Path, module: nn.Module, name: str) -> tuple[TensorLine, ...]:
    """Load one file into one module, whole, and hash what arrived."""
    path = folder / f"{name}.safetensors"
    saved = load_packed(path)  # hashes are of fp32, in whatever the file keeps them
    try:
        load_into(module, saved, str(path))
    except StoreError as error:
        raise TransferError(f"{error}; nothing was transferred") from None
    lines = []
    for key, tensor in sorted(module.state_dict().items()):
        digest = tensor_sha256(tensor)
        if digest != tensor_sha256(saved[key]):
            raise TransferError(f"{key} of {source} did not arrive as it was saved; nothing can be trusted")
        lines.append(TensorLine(f"{name}.{key}", tuple(tensor.shape), digest))
    return tuple(lines)

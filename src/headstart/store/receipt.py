"""Proof that a backbone moved: which tensors, byte for byte, and which were born new. It fails closed.

A wrong folder, another tokenizer, a missing or an extra tensor each stop with one sentence; nothing is ever loaded in part.
"""

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from headstart.errors import StoreError, TransferError
from headstart.model.heads import Model
from headstart.store.bundle import Bundle, load_bundle
from headstart.store.tensors import load_into, load_tensors, tensor_sha256
from headstart.text.tokenizer import Tokenizer


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
            f"transfer receipt: {len(self.moved)} tensors ({moved:,} parameters) moved from {self.source}, "
            f"{len(self.new)} ({new:,}) new"
        )


def transfer(source: str, model: Model[Any], tokenizer: Tokenizer, bundle: Bundle | None = None) -> TransferReceipt:
    """Move the backbone of a folder into a model whose head is new, and prove it."""
    bundle = bundle or load_bundle(Path(source))
    if bundle.tokenizer.digest != tokenizer.digest:
        raise TransferError(
            f"{source} was pretrained with another tokenizer ({bundle.tokenizer.digest[:12]}, not {tokenizer.digest[:12]});"
            " leave --tokenizer out to use its own"
        )
    path = bundle.path / "backbone.safetensors"
    saved = load_tensors(path)
    try:
        load_into(model.backbone, saved, str(path))
    except StoreError as error:
        raise TransferError(f"{error}; nothing was transferred") from None
    own = model.backbone.state_dict()
    moved = []
    for name, tensor in sorted(own.items()):
        digest = tensor_sha256(tensor)
        if digest != tensor_sha256(saved[name]):
            raise TransferError(f"{name} of {source} did not arrive as it was saved; nothing can be trusted")
        moved.append(TensorLine(f"backbone.{name}", tuple(tensor.shape), digest))
    new = [
        TensorLine(f"head.{name}", tuple(tensor.shape), tensor_sha256(tensor))
        for name, tensor in sorted(model.head.state_dict().items())
    ]
    return TransferReceipt(source, tokenizer.digest, tuple(moved), tuple(new))

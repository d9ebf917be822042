"""Import weights with the tensor names of the published course as a language model, with a receipt for every tensor.

    base.transformer_encoder.layers.0.self_attn.in_proj_weight   becomes   backbone.layers.0.attention.qkv_proj.weight

The prefixes `module.` (of DataParallel) and `base.` are optional. The table of positions, `pos_encoder.pe`, is computed
here: it is checked, named in the receipt and not loaded. A partial load never happens, and a pickled file, which may run
code, is never opened.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headstart.config.merge import merge_config
from headstart.config.schema import ModelConfig
from headstart.errors import ConfigError, TransferError, UsageError
from headstart.files import pickled_weights, sha256_of, write_json
from headstart.model.heads import LanguageHead, Model
from headstart.model.transformer import Backbone, sinusoids
from headstart.progress import Progress, SilentProgress
from headstart.store.bundle import Bundle, save_bundle
from headstart.store.run_folder import RunFolder
from headstart.store.tensors import load_into, load_tensors, tensor_sha256
from headstart.tokenization.tokenizer import load_tokenizer

CONTEXT = 512
"""The course's maximum sequence length: the start token and 511 pieces. No tensor has this size."""
HEADS = 2
"""The course's number of attention heads. It cannot be read from a tensor, because qkv is one matrix for all heads."""
PICKLED_SUFFIXES = (".pt", ".pth", ".bin")
POSITIONS = "pos_encoder.pe"
_LAYERS = "transformer_encoder.layers."
_EMBEDDING = "encoder.weight"
_LAYER_TENSORS = {
    "self_attn.in_proj_weight": "attention.qkv_proj.weight",
    "self_attn.in_proj_bias": "attention.qkv_proj.bias",
    "self_attn.out_proj.weight": "attention.out_proj.weight",
    "self_attn.out_proj.bias": "attention.out_proj.bias",
    "linear1.weight": "up.weight",
    "linear1.bias": "up.bias",
    "linear2.weight": "down.weight",
    "linear2.bias": "down.bias",
    "norm1.weight": "norm1.weight",
    "norm1.bias": "norm1.bias",
    "norm2.weight": "norm2.weight",
    "norm2.bias": "norm2.bias",
}
_HEAD_TENSORS = {"classifier.decoder.weight": "linear.weight", "classifier.decoder.bias": "linear.bias"}


@dataclass(frozen=True)
class ImportedTensor:
    """One tensor: its name here, its name in the file, and its hash, which is the same in both."""

    name: str
    course: str
    shape: tuple[int, ...]
    sha256: str


@dataclass(frozen=True)
class ImportReceipt:
    """The tensors that were imported from a file."""

    source: str
    sha256: str
    tokenizer: str
    moved: tuple[ImportedTensor, ...]
    computed: tuple[str, ...]
    """Tensors of the file that are computed here instead of loaded."""
    new: tuple[ImportedTensor, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """The receipt as JSON values."""
        return asdict(self)

    def summary(self) -> str:
        """The receipt in one line."""
        parameters = sum(math.prod(line.shape) for line in self.moved)
        computed = f"; computed, not loaded: {', '.join(self.computed)}" if self.computed else ""
        return f"import receipt: {len(self.moved)} tensors ({parameters:,} parameters) from {self.source}{computed}"


def import_course(
    path: Path,
    tokenizer_path: Path,
    out: Path,
    *,
    heads: int = HEADS,
    context: int = CONTEXT,
    command: str = "",
    progress: Progress | None = None,
) -> Path:
    """Import a safetensors file of the course as the run folder of a language model; return the folder.

    Args:
        heads: the number of attention heads, which no tensor shows.
        context: the maximum sequence length in tokens, which no tensor shows.
    """
    _check_file(path)
    named = _strip_prefixes(load_tensors(path), path)
    tokenizer = load_tokenizer(tokenizer_path)
    config, vocab_size = _read_shape(named, path, heads, context)
    if tokenizer.vocab_size != vocab_size:
        raise TransferError(
            f"{path} has a vocabulary of {vocab_size:,}, {tokenizer_path} has {tokenizer.vocab_size:,} entries; "
            "nothing was imported"
        )
    _check_positions(named, path, config.width)
    model = Model(Backbone(config, vocab_size), LanguageHead(config, vocab_size))
    moved = _load(model, named, path)
    computed = tuple(full_name for name, (full_name, _) in named.items() if name == POSITIONS)
    receipt = ImportReceipt(str(path), sha256_of(path), tokenizer.digest, moved, computed)
    inputs = {"weights": str(path), "tokenizer": str(tokenizer_path)}
    run = RunFolder.create(out, kind="import", command=command, config=config, inputs=inputs)
    with run.remove_on_error(new=True):
        about = {"source": str(path), "sha256": receipt.sha256, "tokenizer": tokenizer.digest}
        save_bundle(out / "bundle", Bundle(model, tokenizer, objective="causal", about=about))
        write_json(out / "receipt.json", receipt.as_dict())
        write_json(out / "result.json", about)
    (progress or SilentProgress()).say(f"{receipt.summary()}; model in {out}")
    return out


def _check_file(path: Path) -> None:
    if path.suffix in PICKLED_SUFFIXES:
        raise UsageError(pickled_weights(path))
    if path.suffix != ".safetensors":
        raise UsageError(
            f"{path} is not a .safetensors file; the weights of the course can be imported in this format only"
        )
    if not path.is_file():
        raise UsageError(f"no such file: {path}")


Named = Mapping[str, tuple[str, Tensor]]
"""By name without prefix: the name in the file, and the tensor."""


def _strip_prefixes(tensors: Mapping[str, Tensor], path: Path) -> Named:
    named: dict[str, tuple[str, Tensor]] = {}
    for full_name, tensor in sorted(tensors.items()):
        name = full_name.removeprefix("module.").removeprefix("base.")
        if name in named:
            raise _mismatch_error(path, [f"{full_name} and {named[name][0]} are two copies of the same tensor"])
        named[name] = full_name, tensor
    return named


def _read_shape(named: Named, path: Path, heads: int, context: int) -> tuple[ModelConfig, int]:
    """Check all names and shapes, and return the configuration and the vocabulary size that they imply."""
    # layers are counted, so that a gap in their numbers shows as a missing name
    layers = {name.removeprefix(_LAYERS).split(".")[0] for name in named if name.startswith(_LAYERS)}
    first = f"{_LAYERS}0.linear1.weight"
    for name in (_EMBEDDING, first):
        if name not in named:
            raise _mismatch_error(path, [f"{name} is missing"])
        if named[name][1].ndim != 2:
            raise _mismatch_error(path, [f"{name} is {tuple(named[name][1].shape)}, not a matrix"])
    (vocab_size, width), feedforward = named[_EMBEDDING][1].shape, named[first][1].shape[0]
    expected = _expected_shapes(vocab_size, width, feedforward, len(layers))
    if faults := _faults(named, expected):
        raise _mismatch_error(path, faults)
    if heads < 1 or width % heads:
        raise UsageError(f"--heads must divide the width of {path}, which is {width}, got {heads}")
    sizes = {
        "block": "classic",
        "width": width,
        "depth": len(layers),
        "heads": heads,
        "feedforward": feedforward,
        "context": context,
    }
    try:
        return merge_config(ModelConfig, sizes), vocab_size
    except ConfigError as error:
        raise TransferError(f"{path} is not a supported network: {error}; nothing was imported") from None


def _faults(named: Named, expected: Mapping[str, tuple[int, ...]]) -> list[str]:
    """Messages about missing and unexpected tensors, and those of another shape or dtype."""
    faults = [f"{name} is missing" for name in expected if name not in named]
    if len(faults) == len(_HEAD_TENSORS) and not any(name in named for name in _HEAD_TENSORS):
        faults = ["the head is missing: save the state dict of the whole Model, not of its base alone"]
    faults += [
        f"{named[name][0]} is not part of the model" for name in named if name not in expected and name != POSITIONS
    ]
    for name, shape in expected.items():
        if name not in named:
            continue
        full_name, tensor = named[name]
        if tuple(tensor.shape) != shape:
            faults.append(f"{full_name} is {tuple(tensor.shape)} for {shape}")
        elif tensor.dtype != torch.float32:
            faults.append(f"{full_name} is {str(tensor.dtype).removeprefix('torch.')} for float32")
    return faults


def _expected_shapes(vocab_size: int, width: int, feedforward: int, depth: int) -> dict[str, tuple[int, ...]]:
    """Every tensor of the course's language model by name, with its shape."""
    layer_shapes = {
        "self_attn.in_proj_weight": (3 * width, width),
        "self_attn.in_proj_bias": (3 * width,),
        "self_attn.out_proj.weight": (width, width),
        "linear1.weight": (feedforward, width),
        "linear1.bias": (feedforward,),
        "linear2.weight": (width, feedforward),
    }
    shapes: dict[str, tuple[int, ...]] = {_EMBEDDING: (vocab_size, width)}
    for layer in range(depth):
        shapes |= {f"{_LAYERS}{layer}.{name}": layer_shapes.get(name, (width,)) for name in _LAYER_TENSORS}
    shapes["classifier.decoder.weight"] = vocab_size, width
    shapes["classifier.decoder.bias"] = (vocab_size,)
    return shapes


def _check_positions(named: Named, path: Path, width: int) -> None:
    """Check that a saved position table holds the sinusoids, which are computed and not loaded."""
    if POSITIONS not in named:
        return
    full_name, table = named[POSITIONS]
    if table.numel() % width or not torch.allclose(
        table.float().reshape(-1, width), sinusoids(torch.arange(table.numel() // width), width), rtol=0, atol=1e-2
    ):
        raise _mismatch_error(path, [f"{full_name} is not the table of sinusoidal positions"])


def _load(model: Model[LanguageHead], named: Named, path: Path) -> tuple[ImportedTensor, ...]:
    """Load every tensor, and check its hash afterwards."""
    names = {_EMBEDDING: "backbone.embedding.weight"}
    names |= {
        f"{_LAYERS}{layer}.{course}": f"backbone.layers.{layer}.{ours}"
        for layer in range(model.backbone.config.depth)
        for course, ours in _LAYER_TENSORS.items()
    }
    names |= {course: f"head.{ours}" for course, ours in _HEAD_TENSORS.items()}
    load_into(model, {ours: named[course][1] for course, ours in names.items()}, str(path))
    loaded = model.state_dict()
    lines = []
    for course, ours in names.items():
        full_name, tensor = named[course]
        digest = tensor_sha256(loaded[ours])
        if digest != tensor_sha256(tensor):
            raise TransferError(f"{full_name} of {path} was not loaded as it was saved; nothing was imported")
        lines.append(ImportedTensor(ours, full_name, tuple(tensor.shape), digest))
    return tuple(lines)


def _mismatch_error(path: Path, faults: list[str]) -> TransferError:
    others = f" (and {len(faults) - 1} more errors)" if len(faults) > 1 else ""
    return TransferError(
        f"{path} does not match the course's language model: {faults[0]}{others}; nothing was imported"
    )

"""Weights saved under the published course's names become a language model of ours, with a receipt for every tensor.

    base.transformer_encoder.layers.0.self_attn.in_proj_weight   becomes   backbone.layers.0.attention.qkv_proj.weight

A leading `module.` (a network wrapped for several GPUs) and `base.` may be there or not. The table of positions,
`pos_encoder.pe`, is a formula here: it is compared with it, named in the receipt and not loaded. Nothing is loaded in
part, and a pickled file is never opened: opening it may run code.
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
"""The course's longest sequence: the start token and 511 pieces. No tensor tells it."""
HEADS = 2
"""The course's attention heads. No tensor tells them either: query, key and value are one matrix for all heads."""
PICKLED = (".pt", ".pth", ".bin")
POSITIONS = "pos_encoder.pe"
_LAYERS = "transformer_encoder.layers."
_EMBEDDING = "encoder.weight"
_IN_A_LAYER = {
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
_HEAD = {"classifier.decoder.weight": "linear.weight", "classifier.decoder.bias": "linear.bias"}


@dataclass(frozen=True)
class ImportedTensor:
    """One tensor: where it stands now, what the file calls it, and the hash of its bytes on both sides."""

    name: str
    course: str
    shape: tuple[int, ...]
    sha256: str


@dataclass(frozen=True)
class ImportReceipt:
    """What came out of which file."""

    source: str
    sha256: str
    tokenizer: str
    moved: tuple[ImportedTensor, ...]
    computed: tuple[str, ...]
    """Tensors of the file that are computed here, not loaded."""
    new: tuple[ImportedTensor, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    def summary(self) -> str:
        """One line for a person."""
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
    """Turn a safetensors file of the course into a language model's run folder, and return the folder.

    Args:
        heads: attention heads, which no tensor tells.
        context: longest sequence in tokens, which no tensor tells.
    """
    _check_kind(path)
    named = _without_prefixes(load_tensors(path), path)
    tokenizer = load_tokenizer(tokenizer_path)
    config, vocab_size = _shape(named, path, heads, context)
    if tokenizer.vocab_size != vocab_size:
        raise TransferError(
            f"{path} has a vocabulary of {vocab_size:,}, {tokenizer_path} has {tokenizer.vocab_size:,} entries; "
            "nothing was imported"
        )
    _check_positions(named, path, config.width)
    model = Model(Backbone(config, vocab_size), LanguageHead(config, vocab_size))
    moved = _load(model, named, path)
    computed = tuple(given for name, (given, _) in named.items() if name == POSITIONS)
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


def _check_kind(path: Path) -> None:
    if path.suffix in PICKLED:
        raise UsageError(pickled_weights(path))
    if path.suffix != ".safetensors":
        raise UsageError(f"{path} is not a .safetensors file; import reads the course's weights in that form only")
    if not path.is_file():
        raise UsageError(f"no such file: {path}")


Named = Mapping[str, tuple[str, Tensor]]
"""By the course's name without prefix: the name as it stands in the file, and the tensor."""


def _without_prefixes(tensors: Mapping[str, Tensor], path: Path) -> Named:
    named: dict[str, tuple[str, Tensor]] = {}
    for given, tensor in sorted(tensors.items()):
        name = given.removeprefix("module.").removeprefix("base.")
        if name in named:
            raise _mismatch_error(path, [f"{given} and {named[name][0]} are the same tensor twice"])
        named[name] = given, tensor
    return named


def _shape(named: Named, path: Path, heads: int, context: int) -> tuple[ModelConfig, int]:
    """Read width, depth, feed-forward width and vocabulary off the tensors, once every name and shape is right."""
    # layers are counted, not trusted by their numbers: a gap in them shows as a name that is missing
    layers = {name.removeprefix(_LAYERS).split(".")[0] for name in named if name.startswith(_LAYERS)}
    first = f"{_LAYERS}0.linear1.weight"
    for name in (_EMBEDDING, first):
        if name not in named:
            raise _mismatch_error(path, [f"{name} is missing"])
        if named[name][1].ndim != 2:
            raise _mismatch_error(path, [f"{name} is {tuple(named[name][1].shape)}, not a matrix"])
    (vocab_size, width), feedforward = named[_EMBEDDING][1].shape, named[first][1].shape[0]
    wanted = _expected(vocab_size, width, feedforward, len(layers))
    if faults := _faults(named, wanted):
        raise _mismatch_error(path, faults)
    if heads < 1 or width % heads:
        raise UsageError(f"--heads must divide the width of {path}, which is {width}, got {heads}")
    shape_of = {
        "block": "classic",
        "width": width,
        "depth": len(layers),
        "heads": heads,
        "feedforward": feedforward,
        "context": context,
    }
    try:
        return merge_config(ModelConfig, shape_of), vocab_size
    except ConfigError as error:
        raise TransferError(f"{path} is not a network of ours: {error}; nothing was imported") from None


def _faults(named: Named, wanted: Mapping[str, tuple[int, ...]]) -> list[str]:
    """What is missing, what is too much, and what is of another shape or kind, in words."""
    faults = [f"{name} is missing" for name in wanted if name not in named]
    if len(faults) == len(_HEAD) and not any(name in named for name in _HEAD):
        faults = ["the head is missing: save the state dict of the whole Model, not of its base alone"]
    faults += [f"{named[name][0]} is not part of it" for name in named if name not in wanted and name != POSITIONS]
    for name, shape in wanted.items():
        if name not in named:
            continue
        given, tensor = named[name]
        if tuple(tensor.shape) != shape:
            faults.append(f"{given} is {tuple(tensor.shape)} for {shape}")
        elif tensor.dtype != torch.float32:
            faults.append(f"{given} is {str(tensor.dtype).removeprefix('torch.')} for float32")
    return faults


def _expected(vocab_size: int, width: int, feedforward: int, depth: int) -> dict[str, tuple[int, ...]]:
    """Every tensor of the course's language model by name, with its shape."""
    inside = {
        "self_attn.in_proj_weight": (3 * width, width),
        "self_attn.in_proj_bias": (3 * width,),
        "self_attn.out_proj.weight": (width, width),
        "linear1.weight": (feedforward, width),
        "linear1.bias": (feedforward,),
        "linear2.weight": (width, feedforward),
    }
    shapes: dict[str, tuple[int, ...]] = {_EMBEDDING: (vocab_size, width)}
    for layer in range(depth):
        shapes |= {f"{_LAYERS}{layer}.{part}": inside.get(part, (width,)) for part in _IN_A_LAYER}
    shapes["classifier.decoder.weight"] = vocab_size, width
    shapes["classifier.decoder.bias"] = (vocab_size,)
    return shapes


def _check_positions(named: Named, path: Path, width: int) -> None:
    """A table that is not the formula's would be lost in silence: the network would read other positions."""
    if POSITIONS not in named:
        return
    given, table = named[POSITIONS]
    if table.numel() % width or not torch.allclose(
        table.float().reshape(-1, width), sinusoids(torch.arange(table.numel() // width), width), rtol=0, atol=1e-2
    ):
        raise _mismatch_error(path, [f"{given} is not the table of sines and cosines that the formula gives"])


def _load(model: Model[LanguageHead], named: Named, path: Path) -> tuple[ImportedTensor, ...]:
    """Put every tensor in its place, and prove by its hash that it arrived."""
    names = {_EMBEDDING: "backbone.embedding.weight"}
    names |= {
        f"{_LAYERS}{layer}.{theirs}": f"backbone.layers.{layer}.{ours}"
        for layer in range(model.backbone.config.depth)
        for theirs, ours in _IN_A_LAYER.items()
    }
    names |= {theirs: f"head.{ours}" for theirs, ours in _HEAD.items()}
    load_into(model, {ours: named[theirs][1] for theirs, ours in names.items()}, str(path))
    arrived = model.state_dict()
    lines = []
    for theirs, ours in names.items():
        given, tensor = named[theirs]
        digest = tensor_sha256(arrived[ours])
        if digest != tensor_sha256(tensor):
            raise TransferError(f"{given} of {path} did not arrive as it was saved; nothing was imported")
        lines.append(ImportedTensor(ours, given, tuple(tensor.shape), digest))
    return tuple(lines)


def _mismatch_error(path: Path, faults: list[str]) -> TransferError:
    more = f" (and {len(faults) - 1} more faults)" if len(faults) > 1 else ""
    return TransferError(f"{path} does not fit the course's language model: {faults[0]}{more}; nothing was imported")

"""A model's folder as transformers saves it: where it is, what its config.json says, and its weights."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from headstart.config import ModelConfig, Visibility
from headstart.errors import StoreError, TransferError, UsageError
from headstart.files import read_json
from headstart.store.tensors import load_tensors

LONGEST = 1024
"""Where positions have no table, the context is ours to choose: what the model allows, up to this many tokens."""
_FETCHED = ("config.json", "*.safetensors", "*.safetensors.index.json", "tokenizer*.json", "special_tokens_map.json")


@dataclass(frozen=True)
class Found:
    """A model's folder, and what its config.json says."""

    name: str
    folder: Path
    facts: Mapping[str, Any]

    @property
    def kind(self) -> str:
        """The name of the architecture, as config.json spells it."""
        return str(self.facts.get("model_type"))

    @property
    def architecture(self) -> str:
        """The class that it was saved from."""
        return str((self.facts.get("architectures") or ["model"])[0])

    @property
    def classifies(self) -> bool:
        """Whether it was saved as a classifier of texts."""
        return self.architecture.endswith("ForSequenceClassification")

    def refused(self, what: str) -> TransferError:
        return TransferError(f"{self.name} {what}; nothing was imported")

    def check(self, fixed: Mapping[str, tuple[Any, ...]], block: str) -> None:
        """Refuse settings that would change a number here."""
        for name, allowed in fixed.items():
            if name in self.facts and self.facts[name] not in allowed:
                raise self.refused(f"has {name} {json.dumps(self.facts[name])}, which {block} has not")


@dataclass(frozen=True)
class Brought:
    """A network as ours: its shape, its tensors by our names, and how it reads."""

    config: ModelConfig
    tensors: Mapping[str, Tensor]
    visibility: Visibility
    objective: str


def find_model(source: str) -> Path:
    """The folder that `hf:FOLDER` or `hf:OWNER/NAME` means; the latter is fetched from the Hub, weights and JSON only."""
    name = source.removeprefix("hf:")
    if Path(name).is_dir():
        return Path(name)
    if name.count("/") != 1 or name.startswith((".", "/", "~")):
        raise UsageError(f"{source}: no such folder, and not a name on the Hub, which is OWNER/NAME")
    import huggingface_hub

    try:
        return Path(huggingface_hub.snapshot_download(name, allow_patterns=list(_FETCHED)))
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UsageError(f"{source}: no such folder, and the Hub did not give it: {reason}") from None


def read_facts(source: str, folder: Path) -> Found:
    """What config.json says."""
    path = folder / "config.json"
    if not path.is_file():
        raise UsageError(f"{source} has no {path.name}; expected a folder that save_pretrained wrote")
    facts = read_json(path)
    if not isinstance(facts, dict):
        raise StoreError(f"{path} is damaged: it is not an object")
    return Found(source, folder, facts)


def read_weights(found: Found) -> dict[str, Tensor]:
    """All tensors in fp32."""
    files = sorted(found.folder.glob("*.safetensors"))
    if not files:
        pickled = [path.name for path in sorted(found.folder.glob("*.bin"))]
        if pickled:
            raise UsageError(
                f"{found.name} has its weights in {pickled[0]}, a pickled file, which may run code when it is opened; "
                "convert it once where you trust it: AutoModel.from_pretrained(FOLDER, use_safetensors=False)"
                ".save_pretrained(FOLDER), with the Auto class that its config.json names"
            )
        raise UsageError(f"{found.name} has no .safetensors file; expected a folder that save_pretrained wrote")
    tensors: dict[str, Tensor] = {}
    for path in files:
        tensors |= {name: tensor.float() for name, tensor in load_tensors(path).items()}
    return tensors

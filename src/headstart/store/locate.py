"""Resolve a path or `starter:NAME` to the folder of a bundle, without torch.

Starters are small pretrained backbones in a separate package, `headstart_starters`, which is located and never imported;
`starter:en` may be used wherever a model folder is expected.
"""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from headstart.errors import StoreError, UsageError
from headstart.files import FORMAT, MANIFEST, is_pickled, pickled_weights, read_json
from headstart.store.run_folder import RunFolder

STARTER_SCHEME = "starter:"
HF_SCHEME = "hf:"
"""The prefix of models in the format of transformers."""
STARTER_AUTO = "starter:auto"
"""The starter of the language of a table; recipes that read texts replace it."""
STARTERS_PACKAGE = "headstart_starters"
INSTALL_STARTERS = 'pip install "headstart-starters", or in a clone of Headstart: pip install ./starters'


def is_starter(source: Path | str) -> bool:
    """Whether a name refers to a starter rather than to a folder.

    >>> is_starter("starter:en"), is_starter("runs/base")
    (True, False)
    """
    return str(source).startswith(STARTER_SCHEME)


def starters_folder() -> Path | None:
    """Return the folder of the installed starters; None where their package is not installed."""
    spec = find_spec(STARTERS_PACKAGE)
    locations = list(spec.submodule_search_locations or ()) if spec else []
    return Path(locations[0]) if locations else None


def display_name(folder: Path) -> str:
    """The name of a model folder as users type it: `starter:NAME` for a starter, else its path."""
    return STARTER_SCHEME + folder.name if folder.parent == starters_folder() else str(folder)


def starters() -> tuple[str, ...]:
    """The names of the installed starters."""
    home = starters_folder()
    manifests = home.glob(f"*/{MANIFEST}") if home else ()
    return tuple(sorted(path.parent.name for path in manifests if not path.parent.name.startswith(".")))


def starter_languages(name: str) -> tuple[str, ...]:
    """The languages (ISO 639-1 codes) of an installed starter; a starter that does not record them has none."""
    return tuple(_starter_facts(name).get("languages", ()))


def starter_order(name: str) -> tuple[bool, int, str]:
    """A sort key of installed starters: general ones before those of one kind of text, then by size."""
    weights = (starters_folder() or Path()) / name / "backbone.safetensors"
    size = weights.stat().st_size if weights.is_file() else 0
    return _starter_facts(name).get("domain") is not None, size, name


def _starter_facts(name: str) -> dict[str, Any]:
    bundle = (starters_folder() or Path()) / name / "bundle.json"
    return read_json(bundle).get("about", {}).get("starter") or {}


def starter_folder(source: Path | str) -> Path:
    """Return the folder of a starter such as `starter:en`, whose format this version of Headstart reads."""
    name = str(source).removeprefix(STARTER_SCHEME)
    home, installed = starters_folder(), starters()
    if home is None or not installed:
        raise UsageError(f"{source}: the starters are not installed; {INSTALL_STARTERS}")
    names = ", ".join(STARTER_SCHEME + name for name in installed)
    if STARTER_SCHEME + name == STARTER_AUTO:
        raise UsageError(
            f"{STARTER_AUTO} needs a training file, whose language selects the starter; use one of {names}"
        )
    if name not in installed:
        raise UsageError(f"no such starter: {source}; available: {names}")
    _check_format(home / name)
    return home / name


def _check_format(folder: Path) -> None:
    """Raise an error for a starter that was written by an incompatible version of Headstart."""
    manifest = read_json(folder / MANIFEST)
    version = manifest.get("format") if isinstance(manifest, dict) else None
    if type(version) is int and version != FORMAT:
        package = "headstart" if version > FORMAT else "headstart-starters"
        raise StoreError(
            f"{STARTER_SCHEME}{folder.name} has format {version}, this version of Headstart reads {FORMAT}; "
            f"pip install --upgrade {package}"
        )


def find_bundle(folder: Path) -> Path:
    """Return the bundle that a path refers to: the folder itself, the `bundle` of a run folder, or a starter."""
    if is_starter(folder):
        return starter_folder(folder)
    if not folder.exists():
        raise UsageError(f"no such folder: {folder}{_suggest_starter(folder)}")
    bundle = folder / "bundle"
    if (bundle / MANIFEST).is_file():
        return bundle
    if (folder / "run.json").is_file():
        kind = str(RunFolder(folder).facts.get("kind"))
        if kind == "compare":
            raise UsageError(
                f"{folder} is a comparison, which contains no model; use the folder of the pretraining run"
            )
        raise UsageError(f"{folder} has no finished model yet; continue with: headstart {kind} --resume --out {folder}")
    if (folder / "model.onnx").is_file():
        raise UsageError(
            f"{folder} is an export for onnxruntime, which only headstart predict accepts; use the model that it "
            f"was exported from"
        )
    if (folder / MANIFEST).is_file():
        return folder
    entries = sorted(folder.iterdir()) if folder.is_dir() else [folder]
    if pickled := next((path for path in entries if is_pickled(path)), None):
        raise UsageError(pickled_weights(pickled))
    listing = ", ".join(path.name for path in entries[:5]) if folder.is_dir() else "a file"
    raise UsageError(f"{folder} contains no Headstart model; found: {listing or 'nothing'}")


def _suggest_starter(folder: Path) -> str:
    """Return a hint for names close to that of a starter, such as `starter`, `en` and `starter-en`; else an empty string."""
    word, _, language = str(folder).lower().replace("/", "-").replace("_", "-").partition("-")
    for name in starters():
        if (word in ("starter", "starters") and language in ("", name)) or (word == name and not language):
            return f"; did you mean {STARTER_SCHEME}{name}?"
    return ""

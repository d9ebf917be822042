"""Resolve a path or `starter:NAME` to the folder of a bundle, without torch.

Starters are small pretrained backbones that are shipped with the package; `starter:en` may be given wherever a model
folder is expected.
"""

from pathlib import Path

from headstart.errors import UsageError
from headstart.files import MANIFEST, is_pickled, pickled_weights
from headstart.store.run_folder import RunFolder

STARTER_SCHEME = "starter:"
STARTERS_FOLDER = Path(__file__).parent.parent / "starters"
"""Package data: one folder per language."""


def is_starter(source: Path | str) -> bool:
    """Whether a name refers to a starter rather than to a folder.

    >>> is_starter("starter:en"), is_starter("runs/base")
    (True, False)
    """
    return str(source).startswith(STARTER_SCHEME)


def display_name(folder: Path) -> str:
    """The name of a model folder as users type it: `starter:NAME` for a starter, else its path."""
    return STARTER_SCHEME + folder.name if folder.parent == STARTERS_FOLDER else str(folder)


def starters(home: Path | None = None) -> tuple[str, ...]:
    """The names of the installed starters."""
    manifests = (home or STARTERS_FOLDER).glob(f"*/{MANIFEST}")
    return tuple(sorted(path.parent.name for path in manifests if not path.parent.name.startswith(".")))


def starter_folder(source: Path | str, home: Path | None = None) -> Path:
    """Return the folder of a starter such as `starter:en`.

    Args:
        home: the folder of the starters; that of the package by default.
    """
    name = str(source).removeprefix(STARTER_SCHEME)
    installed = starters(home)
    if name in installed:
        return (home or STARTERS_FOLDER) / name
    if not installed:
        raise UsageError(
            f"{source} is not there: this installation has no starters; "
            "make one (docs/starters.md), or name a pretrained folder"
        )
    raise UsageError(f"no such starter: {source}; there are {', '.join(STARTER_SCHEME + name for name in installed)}")


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
            raise UsageError(f"{folder} is a comparison, which keeps no model; give the folder it was pretrained in")
        raise UsageError(f"{folder} has no finished model yet; go on with: headstart {kind} --resume --out {folder}")
    if (folder / MANIFEST).is_file():
        return folder
    entries = sorted(folder.iterdir()) if folder.is_dir() else [folder]
    if pickled := next((path for path in entries if is_pickled(path)), None):
        raise UsageError(pickled_weights(pickled))
    listing = ", ".join(path.name for path in entries[:5]) if folder.is_dir() else "a file"
    raise UsageError(f"{folder} holds no model of Headstart's; found: {listing or 'nothing'}")


def _suggest_starter(folder: Path) -> str:
    """Return a hint for names close to that of a starter, such as `starter`, `en` and `starter-en`; else an empty string."""
    word, _, language = str(folder).lower().replace("/", "-").replace("_", "-").partition("-")
    for name in starters():
        if (word in ("starter", "starters") and language in ("", name)) or (word == name and not language):
            return f"; did you mean {STARTER_SCHEME}{name}?"
    return ""

"""From a path or starter:NAME to the folder of a bundle, without torch.

The starters: small pretrained backbones inside the package, named `starter:en` wherever a folder may stand.

Which folder a person means by a model. No torch.
"""

from pathlib import Path

from headstart.errors import UsageError
from headstart.files import MANIFEST, is_pickled, pickled_weights
from headstart.store.run_folder import RunFolder

STARTER_SCHEME = "starter:"
STARTERS_FOLDER = Path(__file__).parent.parent / "starters"
"""Where they lie: package data, one folder a language."""


def is_starter(source: Path | str) -> bool:
    """Whether a name means a starter, whatever folders there are.

    >>> is_starter("starter:en"), is_starter("runs/base")
    (True, False)
    """
    return str(source).startswith(STARTER_SCHEME)


def display_name(folder: Path) -> str:
    """A folder as a person knows it: a starter by its name."""
    return STARTER_SCHEME + folder.name if folder.parent == STARTERS_FOLDER else str(folder)


def starters(home: Path | None = None) -> tuple[str, ...]:
    """The names of those there are."""
    found = (home or STARTERS_FOLDER).glob(f"*/{MANIFEST}")
    return tuple(sorted(path.parent.name for path in found if not path.parent.name.startswith(".")))


def starter_folder(source: Path | str, home: Path | None = None) -> Path:
    """The folder of a starter by its name, `starter:en`.

    Args:
        home: where to look, if not in the package.
    """
    name = str(source).removeprefix(STARTER_SCHEME)
    there = starters(home)
    if name in there:
        return (home or STARTERS_FOLDER) / name
    if not there:
        raise UsageError(
            f"{source} is not there: this installation has no starters; "
            "make one (docs/starters.md), or name a pretrained folder"
        )
    raise UsageError(f"no such starter: {source}; there are {', '.join(STARTER_SCHEME + each for each in there)}")


def find_bundle(folder: Path) -> Path:
    """The bundle a person means: the folder itself, the `bundle` inside a run folder, or a starter by name."""
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
    inside = sorted(folder.iterdir()) if folder.is_dir() else [folder]
    if pickled := next((path for path in inside if is_pickled(path)), None):
        raise UsageError(pickled_weights(pickled))
    found = ", ".join(path.name for path in inside[:5]) if folder.is_dir() else "a file"
    raise UsageError(f"{folder} holds no model of Headstart's; found: {found or 'nothing'}")


def _suggest_starter(folder: Path) -> str:
    """A question to add where a name is almost that of a starter: `starter`, `en`, `starter-en`."""
    word, _, language = str(folder).lower().replace("/", "-").replace("_", "-").partition("-")
    for name in starters():
        if (word in ("starter", "starters") and language in ("", name)) or (word == name and not language):
            return f"; did you mean {STARTER_SCHEME}{name}?"
    return ""

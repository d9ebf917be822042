"""The starters: small pretrained backbones inside the package, named `starter:en` wherever a folder may stand."""

from pathlib import Path

from headstart.errors import UsageError
from headstart.files import MANIFEST

SCHEME = "starter:"
HOME = Path(__file__).parent.parent / "starters"
"""Where they lie: package data, one folder a language."""


def is_starter(source: Path | str) -> bool:
    """Whether a name means a starter, whatever folders there are.

    >>> is_starter("starter:en"), is_starter("runs/base")
    (True, False)
    """
    return str(source).startswith(SCHEME)


def named(folder: Path) -> str:
    """A folder as a person knows it: a starter by its name."""
    return SCHEME + folder.name if folder.parent == HOME else str(folder)


def starters(home: Path | None = None) -> tuple[str, ...]:
    """The names of those there are."""
    found = (home or HOME).glob(f"*/{MANIFEST}")
    return tuple(sorted(path.parent.name for path in found if not path.parent.name.startswith(".")))


def starter_folder(source: Path | str, home: Path | None = None) -> Path:
    """The folder of a starter by its name, `starter:en`.

    Args:
        home: where to look, if not in the package.
    """
    name = str(source).removeprefix(SCHEME)
    there = starters(home)
    if name in there:
        return (home or HOME) / name
    if not there:
        raise UsageError(
            f"{source} is not there: this installation has no starters; "
            "make one (docs/starters.md), or name a pretrained folder"
        )
    raise UsageError(f"no such starter: {source}; there are {', '.join(SCHEME + each for each in there)}")

"""Where a model comes from, as others may read it: files by their names, without a person's folders. No torch.

A bundle is made to be handed on. The run folder around it (run.json, result.json) keeps names as they were typed.
"""

from collections.abc import Mapping
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any
from urllib.parse import urlsplit

HELD_OUT = "held-out rows of "
_HUB = "hf:"
_NAMES = frozenset({"name", "source", "texts", "imported_from", "backbone"})
"""The keys of what is known about a model under which names of files and folders stand."""


def handed_on(about: Mapping[str, Any]) -> dict[str, Any]:
    """What is known about a model, every file in it without its folder."""
    full = sorted({name for name in _named(about) if name}, key=len, reverse=True)

    def told(value: Any, key: str) -> Any:
        if isinstance(value, Mapping):
            return {name: told(one, str(name)) for name, one in value.items()}
        if isinstance(value, (list, tuple)):
            return [told(one, key) for one in value]
        if isinstance(value, str) and key in _NAMES:
            return without_folders(value)
        if isinstance(value, str) and key == "notes":
            return renamed(value, full)
        return value

    found: dict[str, Any] = told(about, "")
    return found


def renamed(words: str, full: list[str]) -> str:
    """A sentence in which these files, the longest names first, stand without their folders."""
    for name in full:
        words = words.replace(name, without_folders(name))
    return words


def _named(value: Any, key: str = "") -> list[str]:
    """All names of files, those behind `held-out rows of` too."""
    if isinstance(value, Mapping):
        return [name for inner, one in value.items() for name in _named(one, str(inner))]
    if isinstance(value, (list, tuple)):
        return [name for one in value for name in _named(one, key)]
    return [value, value.removeprefix(HELD_OUT)] if isinstance(value, str) and key in _NAMES else []


def without_folders(name: str) -> str:
    """The last part of a path or an address; a name on the Hub, which is nobody's folder, stays.

    >>> without_folders("/home/jane/data/train.csv"), without_folders("hf:jane/tiny"), without_folders("hf:/home/jane/tiny")
    ('train.csv', 'hf:jane/tiny', 'hf:tiny')
    """
    if name.startswith(HELD_OUT):
        return HELD_OUT + without_folders(name.removeprefix(HELD_OUT))
    if name.startswith(_HUB):
        there = name.removeprefix(_HUB)
        on_the_hub = there.count("/") == 1 and not there.startswith((".", "/", "~")) and not Path(there).exists()
        return name if on_the_hub else _HUB + without_folders(there)
    path = urlsplit(name).path if "://" in name else name  # behind an address's question mark may stand a key
    return PureWindowsPath(PurePosixPath(path.rstrip("/\\")).name).name

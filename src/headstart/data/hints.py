"""Labels that are probably read in another way than they are meant: a remark each, where it is plain."""

import re

from headstart.config import LabelledConfig
from headstart.data.labelled import LabelledTexts
from headstart.data.opening import one_line

_SEPARATORS = ("|", ";", ",", "/", "+")
_SHARE = 0.05
"""The part of the rows that must hold a separator between known labels."""
_NUMBERED = ("rating", "stars", "score")
_SCALE = 4
"""Whole numbers from which on they are a scale, and no names of two or three classes."""


def hints_on(texts: LabelledTexts, config: LabelledConfig) -> list[str]:
    """What to try, where nothing was said about the labels."""
    if config.task != "auto" or texts.kind != "classes" or not texts.label_name:  # shards have no columns
        return []
    return [hint for hint in (_several(texts), _numbers(texts)) if hint]


def _several(texts: LabelledTexts) -> str | None:
    """Labels such as complaint|loan, where complaint and loan stand alone too."""
    known = set(texts.labels)
    for separator in _SEPARATORS:
        joined = [label for label in texts.labels if separator in label and _parts_are_known(label, separator, known)]
        if joined and len(joined) >= _SHARE * len(texts):
            return (
                f"{len(joined):,} of {len(texts):,} rows of {texts.name} have labels such as '{one_line(joined[0])}', whose "
                f"parts are labels too; if a text may have several, add labelled.separator '{separator}'"
            )
    return None


def _parts_are_known(label: str, separator: str, known: set[str]) -> bool:
    return all(part.strip() in known for part in label.split(separator))


def _numbers(texts: LabelledTexts) -> str | None:
    """Stars that are read as names."""
    names = texts.counts()
    is_scale = len(names) >= _SCALE and all(re.fullmatch(r"-?\d+", name) for name in names)
    if not is_scale or texts.label_name.lower() not in _NUMBERED:
        return None
    return (
        f"the labels of {texts.name} are {len(names)} whole numbers ({one_line(texts.label_name)}), read as names without an "
        "order; labelled.task rating reads them as numbers"
    )

"""The arms of a comparison by name, and the pretrained folders behind some of them.

majority  tfidf  naive_bayes  nbsvm      need no network
scratch                                  random weights
pretrained  frozen                       the backbone of --from, moving or not; with several folders, an arm each:
                                         pretrained:NAME after the folder
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from headstart.data.joined import encode_questions
from headstart.errors import ConfigError, UsageError
from headstart.interop.sources import load_from
from headstart.recipes.finetune import SCRATCH
from headstart.recipes.labelled_data import LabelledData, Part
from headstart.recipes.prepare import is_shards
from headstart.store.bundle import Bundle
from headstart.store.cells import kind_of
from headstart.text.tokenizer import Tokenizer, load_tokenizer

PRETRAINED = ("pretrained", "frozen")
NETWORKS = ("scratch", *PRETRAINED)
ARMS = ("majority", "tfidf", "naive_bayes", "nbsvm", *NETWORKS)
DEFAULT_ARMS = ("majority", "tfidf", "scratch", "pretrained")


@dataclass(frozen=True)
class Source:
    """A pretrained folder of a comparison."""

    path: str
    """As the person wrote it."""
    name: str
    bundle: Bundle


def is_network(arm: str) -> bool:
    """Whether an arm is trained by gradient, and so by seed."""
    return kind_of(arm) in NETWORKS


def folders(source: str | Sequence[str] | None) -> tuple[str, ...]:
    """The pretrained folders that were named; the word scratch is none.

    >>> folders("runs/base"), folders(["a", "b"]), folders("scratch"), folders(None)
    (('runs/base',), ('a', 'b'), (), ())
    """
    given = (source,) if isinstance(source, str) else tuple(source or ())
    return tuple(path for path in given if path != SCRATCH)


def names_of(paths: Sequence[str]) -> tuple[str, ...]:
    """What folders are called: their last part, and as many parts before it as tell them apart.

    >>> names_of(["runs/base", "runs/large/bundle"]), names_of(["a/base", "b/base"])
    (('base', 'large'), ('a-base', 'b-base'))
    """
    if len({Path(path).resolve() for path in paths}) < len(paths):
        twice = next(path for path in paths if paths.count(path) > 1 or _same(path, paths))
        raise UsageError(f"--from names {twice} twice; once is enough")
    parts = [Path(path).resolve().parts for path in paths]
    parts = [one[:-1] if one[-1] == "bundle" else one for one in parts]
    depth = 1
    while len(names := {_name(one[-depth:]) for one in parts}) < len(parts) and depth < max(map(len, parts)):
        depth += 1
    if len(names) < len(parts):
        raise UsageError("the folders of --from cannot be told apart by name; rename one")
    return tuple(_name(one[-depth:]) for one in parts)


def _name(parts: Sequence[str]) -> str:
    return re.sub(r"[^A-Za-z0-9_.+-]+", "_", "-".join(part.strip("/\\:") for part in parts)).lstrip("_.+-") or "model"


def _same(path: str, paths: Sequence[str]) -> bool:
    return sum(Path(other).resolve() == Path(path).resolve() for other in paths) > 1


def expanded(arms: Sequence[str], paths: Sequence[str]) -> tuple[str, ...]:
    """The arms that run: with several folders, one a folder where a folder is needed.

    >>> expanded(("scratch", "pretrained"), ["runs/a", "runs/b"])
    ('scratch', 'pretrained:a', 'pretrained:b')
    """
    for arm in arms:
        if arm not in ARMS:
            raise ConfigError(f"--arms knows {', '.join(ARMS)}, got {arm!r}")
        if arm in PRETRAINED and not paths:
            raise UsageError(
                f"compare needs --from with a pretrained folder or a starter such as starter:en, or --arms without {arm}"
            )
    names = names_of(paths)
    found = [
        [f"{arm}:{name}" for name in names] if arm in PRETRAINED and len(names) > 1 else [arm]
        for arm in dict.fromkeys(arms)
    ]
    return tuple(arm for group in found for arm in group)


def load_sources(paths: Sequence[str], tokenizer: str | Path | None) -> tuple[Source, ...]:
    """The language models to compare; a classifier has seen labels, and would make the comparison void."""
    found = []
    for path, name in zip(paths, names_of(paths), strict=True):
        bundle = load_from(path, task="language")
        if tokenizer is not None and load_tokenizer(Path(tokenizer)).digest != bundle.tokenizer.digest:
            raise UsageError(
                f"{path} was pretrained with another tokenizer than {tokenizer}; leave --tokenizer out to use its own"
            )
        found.append(Source(path, name, bundle))
    return tuple(found)


def differences(sources: Sequence[Source]) -> list[str]:
    """What a reader must know of folders that are not alike: there is one arm from scratch."""
    notes = []
    for source in sources[1:]:
        first = sources[0]
        other = [
            *(["shape"] if source.bundle.config != first.bundle.config else []),
            *(["tokenizer"] if source.bundle.tokenizer.digest != first.bundle.tokenizer.digest else []),
        ]
        if other:
            notes.append(
                f"{source.path} has another {' and '.join(other)} than {first.path}, whose network scratch is: "
                "their difference is not pretraining alone"
            )
    return notes


def encoded_by(data: LabelledData, tokenizer: Tokenizer, path: str) -> LabelledData:
    """The same rows in the tokens of another model."""
    if tokenizer.digest == data.tokenizer.digest:
        return data
    parts = (data.train, data.valid, data.test)
    for part in parts:
        if part is not None and is_shards(part.name):
            raise UsageError(f"{part.name} was prepared with another tokenizer than {path}'s; give the file itself")

    def encode(part: Part) -> Part:
        ids = (np.asarray(row, dtype=np.int32) for row in encode_questions(tokenizer, part.questions))
        return replace(part, ids=tuple(ids))

    train, valid = encode(data.train), encode(data.valid)
    return replace(data, tokenizer=tokenizer, train=train, valid=valid, test=encode(data.test) if data.test else None)

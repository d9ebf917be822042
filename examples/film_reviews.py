"""Write train.csv, test.csv and reviews.txt into the working folder: film reviews of the `demo` extra.

    python film_reviews.py

train.csv and test.csv have 1,000 short labelled reviews each. reviews.txt has the texts of all other reviews without
labels, one per line. The rows of the tables were excluded when the starters of the package were pretrained.
"""

import csv
import random
from pathlib import Path

from headstart.data.corpus import Review, read_reviews


def is_labelled(review: Review) -> bool:
    """Return whether a review may be a row of a table: it is short, and no starter was pretrained on it."""
    return review.source == "rotten_tomatoes" and review.set_aside


def write_files(folder: Path, *, train: int = 1000, test: int = 1000, texts: int | None = None) -> None:
    """Write the three files into a folder.

    Args:
        train: rows of train.csv.
        test: rows of test.csv.
        texts: lines of reviews.txt; None writes all reviews that are in neither table.
    """
    reviews = read_reviews()
    random.Random(0).shuffle(reviews)
    labelled = [review for review in reviews if is_labelled(review)]
    others = [review for review in reviews if not is_labelled(review)]
    for name, part in (("test.csv", labelled[:test]), ("train.csv", labelled[1000 : 1000 + train])):
        with (folder / name).open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([("text", "label"), *((review.text, review.label) for review in part)])
    unlabelled = [*labelled[2000:], *others]
    if texts is not None:
        unlabelled = unlabelled[-texts:]
    with (folder / "reviews.txt").open("w", encoding="utf-8") as file:
        file.writelines(" ".join(review.text.split()) + "\n" for review in unlabelled)


if __name__ == "__main__":
    write_files(Path())

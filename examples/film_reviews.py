"""Writes train.csv, test.csv and reviews.txt into the working folder: film reviews of the `demo` extra, to try things on.

python film_reviews.py

Short reviews with labels go into the tables, a thousand to learn from and a thousand to be judged on; the texts of all
others, one a line and without labels, into reviews.txt. The rows of the tables were set aside before the package's own
starters were made: none of them has read one.
"""

import csv
import random

from headstart.data.corpus import Review, read_reviews


def labelled(review: Review) -> bool:
    """Whether a review may stand in the tables."""
    return review.source == "rotten_tomatoes" and review.set_aside


def main() -> None:
    reviews = read_reviews()
    random.Random(0).shuffle(reviews)
    short = [review for review in reviews if labelled(review)]
    others = [review for review in reviews if not labelled(review)]
    for name, part in (("test.csv", short[:1000]), ("train.csv", short[1000:2000])):
        with open(name, "w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([("text", "label"), *((review.text, review.label) for review in part)])
    with open("reviews.txt", "w", encoding="utf-8") as file:
        file.writelines(" ".join(review.text.split()) + "\n" for review in [*short[2000:], *others])


if __name__ == "__main__":
    main()

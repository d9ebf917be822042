"""Writes train.csv, test.csv and reviews.txt into the working folder: film reviews of the `demo` extra, to try things on.

python film_reviews.py

Short reviews with labels go into the tables, a thousand to learn from and 1,500 to be judged on; the texts of all
others, one a line and without labels, into reviews.txt.
"""

import csv
import random

from headstart.data.builtin import builtin_reviews

LABELS = ("negative", "positive")


def main() -> None:
    with builtin_reviews().open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    short = [(row["text"], LABELS[int(row["label"])]) for row in rows if row["source"] == "rotten_tomatoes"]
    long = [row["text"] for row in rows if row["source"] != "rotten_tomatoes"]
    random.Random(0).shuffle(short)
    random.Random(0).shuffle(long)
    for name, part in (("test.csv", short[:1500]), ("train.csv", short[1500:2500])):
        with open(name, "w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([("text", "label"), *part])
    with open("reviews.txt", "w", encoding="utf-8") as file:
        file.writelines(" ".join(text.split()) + "\n" for text in [*(text for text, _ in short[2500:]), *long])


if __name__ == "__main__":
    main()

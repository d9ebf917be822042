"""Writes the part of the pretraining text of the starters that `headstart prepare` cannot select.

python benchmarks/starter_texts.py --data FOLDER --out FOLDER

The script writes en/judged.jsonl (the validation and test rows of the demo, to be excluded) and fr/novels.jsonl (every second
block of 200 paragraphs of the novels). docs/starters.md has the commands that follow.
"""

import argparse
import json
from collections.abc import Iterable
from pathlib import Path

import pyarrow.parquet as parquet

from headstart.data.corpus import read_reviews

RUN = 200
"""Paragraphs that stand together in the novels' file."""


def write_lines(path: Path, texts: Iterable[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for text in texts:
            file.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder with french-novels/ in it")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    judged = [review.text for review in read_reviews() if review.set_aside]
    write_lines(arguments.out / "en" / "judged.jsonl", judged)
    novels = parquet.read_table(arguments.data / "french-novels" / "paragraphs.parquet", columns=["text"])
    paragraphs = novels.column("text").to_pylist()
    kept = [text for row, text in enumerate(paragraphs) if row // RUN % 2 == 0]
    write_lines(arguments.out / "fr" / "novels.jsonl", kept)
    print(f"{len(judged):,} evaluation rows; {len(kept):,} of {len(paragraphs):,} paragraphs of novels")


if __name__ == "__main__":
    main()

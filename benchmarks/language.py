"""Accuracy of the language detection on short passages; the record is docs/results/language.json.

python benchmarks/language.py --data DATA [--passages 300]

The script cuts passages of 20 words (Chinese and Japanese: 40 characters) from every source of the corpora and from labelled
datasets. It detects the language of each passage alone, and of all passages of a source as one table. Only training parts are
read. It needs no GPU and takes about a minute.
"""

import argparse
import json
import random
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from headstart.config.schema import CorpusConfig
from headstart.data.corpus import read_file_documents
from headstart.data.sources import read_rows
from headstart.language import detect_languages

KEPT = Path(__file__).resolve().parent.parent / "docs" / "results" / "language.json"
WORDS, CHARACTERS = 20, 40
WITHOUT_SPACES = ("ja", "zh")
MIN_PASSAGES = 20
SETS = {
    "french-novels/paragraphs.parquet": "fr",
    "french-reviews/reviews.parquet": "fr",
    "cls-books/train.jsonl": "fr",
    "imdb/train.parquet": "en",
    "suite/agnews/train.jsonl.gz": "en",
    "suite/complaints/train.jsonl.gz": "en",
    "suite/cr/train.jsonl.gz": "en",
    "suite/tweet-emotion/train.jsonl.gz": "en",
    "suite/cls-de-books/train.jsonl.gz": "de",
    "suite/zh-shop/train.jsonl.gz": "zh",
}


def cut(text: str, language: str, rng: random.Random) -> str | None:
    """Return a random passage of a text; None if the text is shorter."""
    if language in WITHOUT_SPACES:
        units, length, joint = list(" ".join(text.split())), CHARACTERS, ""
    else:
        units, length, joint = text.split(), WORDS, " "
    if len(units) < length:
        return None
    start = rng.randrange(len(units) - length + 1)
    return joint.join(units[start : start + length])


def passages(texts: Iterable[str], language: str, count: int) -> list[str]:
    rng, texts = random.Random(0), list(texts)
    rng.shuffle(texts)
    return [passage for text in texts[: 4 * count] if (passage := cut(text, language, rng))][:count]


def sources(data: Path) -> Iterable[tuple[str, str, list[str]]]:
    """Yield the name, the language and the texts of every source."""
    for path in sorted((data / "corpora").glob("*.parquet")):
        rows: dict[str, list[str]] = {}
        for row in read_rows(str(path)):
            rows.setdefault(str(row.values["source"]), []).append(str(row.values["text"]))
        for name, texts in sorted(rows.items()):
            yield f"{path.stem}: {name}", path.stem, texts
    for file, language in SETS.items():
        yield file, language, [one.text for one in read_file_documents(str(data / file), CorpusConfig())]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--passages", type=int, default=300, help="of a source, at most")
    arguments = parser.parse_args()
    detect_languages(["The first call loads the model, and is not timed."])
    confusion: dict[str, Counter[str]] = {}
    tables, seconds = [], 0.0
    for name, language, texts in sources(arguments.data):
        sample = passages(texts, language, arguments.passages)
        if len(sample) < MIN_PASSAGES:
            continue
        start = time.process_time()
        answers = [next(iter(detect_languages([passage]).fractions), "too little") for passage in sample]
        seconds += time.process_time() - start
        confusion.setdefault(language, Counter()).update(answers)
        tables.append({"source": name, "language": language, "passages": len(sample), "right": answers.count(language)})
        tables[-1]["detected"] = list(detect_languages(sample).main)
        print(tables[-1])
    count = sum(table["passages"] for table in tables)
    record = {
        "words": WORDS,
        "characters": CHARACTERS,
        "milliseconds": 1000 * seconds / count,
        "confusion": {language: dict(answers.most_common()) for language, answers in sorted(confusion.items())},
        "sources": tables,
    }
    KEPT.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

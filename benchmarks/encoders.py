"""Compares the token ids of Headstart's encoder with those of `tokenizers`, and measures the speed of each on one core.

python benchmarks/encoders.py FILES... [--strings 1200000] [--megabytes 30] [--turns 5] --out docs/results/encoders.json

FILES are Parquet with a column `text`. A tokenizer of the default size is trained on them. Half of the strings are sentences of
FILES, half are generated edge cases, and there is one string for every Unicode code point. Every side encodes each string, and
the ids are compared with those of tokenizers, the reference. The sides are Headstart's encoder with the extra `fast`, the same
without it, gigatoken without Headstart's check, and kitoken if it is installed. The process is pinned to one core.
"""

import argparse
import json
import os
import platform
import random
import re
import statistics
import time
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path

os.environ |= {"RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}  # read when the libraries are loaded

import numpy as np
import pyarrow.parquet
import tokenizers
from corpus import about, installed

from headstart.config.schema import TokenizerConfig
from headstart.tokenization.bpe import BPETokenizer, train_tokenizer
from headstart.tokenization.bulk import WordEncoder, gigatoken_encoder, is_plain_batch

CODE = "<u2"
BATCH = 1000
Encode = Callable[[list[str]], list]
LETTERS = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000]
BY_CATEGORY = {kind: [c for c in LETTERS if unicodedata.category(c)[0] == kind] for kind in "LMNPSZC"}
BLANKS = [c for c in LETTERS if c.isspace()]
EMOJI = [chr(code) for code in [*range(0x1F300, 0x1FB00), *range(0x2600, 0x27C0)]]
JOINERS = ["\u200d", "\ufe0f", "\U0001f3fd", "\U0001f3ff", "\u20e3", ""]
EAST = [
    chr(code)
    for first, last in ((0x3000, 0x3100), (0x4E00, 0xA000), (0xAC00, 0xD7A4), (0xFF00, 0xFFF0))
    for code in range(first, last)
]
CONTROLS = [chr(code) for code in [*range(32), *range(0x7F, 0xA0), *range(0x200B, 0x2010), 0x2028, 0x2029, 0xFEFF]]
ENDINGS = ["'s", "'t", "'re", "'ve", "'m", "'ll", "'d", "'S", "'T", "'LL", "\u2019s", "''s", "' s", "'", "'x", "n't"]
WORDS = [
    "the",
    "film",
    "été",
    "don",
    "1984",
    "l",
    "I",
    "naïve",
    "3.14",
    "<eos>",
    "<mask>",
    "a",
    "http://x.y/z?q=1",
    "...",
]


def emoji(chance: random.Random) -> str:
    return "".join(
        chance.choice(EMOJI) + chance.choice(JOINERS) + chance.choice(("", " ", "a", "\n")) for _ in range(6)
    )


def east(chance: random.Random) -> str:
    return "".join(chance.choice(EAST) + chance.choice(("", "", "", " ", "a", "1", "\u3002")) for _ in range(20))


def controls(chance: random.Random) -> str:
    return "".join(chance.choice(CONTROLS) + chance.choice(("", " ", *WORDS)) for _ in range(8))


def runs(chance: random.Random) -> str:
    """Generate repetitions around the limit of 64 bytes, and far beyond it."""
    often = chance.choice((15, 16, 31, 32, 33, 62, 63, 64, 65, 128, 500))
    return (
        chance.choice(("", "x ", " "))
        + chance.choice(["a", "é", "電", "😀", " ", "\n", "\t", "\u3000", "!", "1", "ab", "a "]) * often
        + chance.choice(("", " y", "\n"))
    )


def contractions(chance: random.Random) -> str:
    return "".join(chance.choice(WORDS) + chance.choice(ENDINGS) + chance.choice(("", " ", "  ")) for _ in range(6))


def spaces(chance: random.Random) -> str:
    """Generate whitespace of all kinds, between words and at the end."""
    return "".join(
        chance.choice(WORDS) + "".join(chance.choices((" ", *BLANKS), k=chance.randint(0, 4))) for _ in range(6)
    )


def anything(chance: random.Random) -> str:
    """Generate characters of every category, mostly at boundaries between categories."""
    pools = [BLANKS, WORDS, ENDINGS, [" "], *BY_CATEGORY.values()]
    return "".join(chance.choice(chance.choice(pools)) for _ in range(chance.randint(0, 14)))


def bordered(c: str) -> str:
    """Generate a character next to letters, digits, signs, blanks, itself and a contraction."""
    return f"a{c}b 1{c}2 !{c}! {c}{c}  {c}\n{c}'s{c} {c}\t {c}"


GENERATED = {
    "emoji": emoji,
    "Chinese, Japanese and Korean characters": east,
    "control characters": controls,
    "long runs": runs,
    "contractions": contractions,
    "blanks of all kinds, trailing ones too": spaces,
    "characters of every category": anything,
}


def read(files: list[str]) -> list[str]:
    return [
        text for file in files for text in pyarrow.parquet.read_table(file, columns=["text"]).column("text").to_pylist()
    ]


def sentences(texts: list[str]) -> Iterator[str]:
    """Split texts after the ends of sentences and lines, with the following whitespace."""
    for text in texts:
        yield from filter(None, re.split(r"(?<=[.!?\n]\s)", text))


def kinds(texts: list[str], count: int) -> Iterator[tuple[str, Iterator[str]]]:
    """Return the strings: half real, half generated, and one for every Unicode code point."""
    yield "sentences of the files", (sentence for _, sentence in zip(range(count // 2), sentences(texts), strict=False))
    each = count // 2 // len(GENERATED)
    for index, (name, make) in enumerate(GENERATED.items()):
        chance = random.Random(index)
        yield name, (make(chance) for _ in range(each))
    yield "every code point, at every kind of border", map(bordered, LETTERS)


def in_batches(strings: Iterator[str], size: int) -> Iterator[list[str]]:
    batch: list[str] = []
    for string in strings:
        batch.append(string)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch


def reference(tokenizer: BPETokenizer) -> Encode:
    engine = tokenizers.Tokenizer.from_str(tokenizer.content.decode())
    engine.encode_special_tokens = True
    return lambda texts: [result.ids for result in engine.encode_batch_fast(texts, add_special_tokens=False)]


def unbounded(tokenizer: BPETokenizer) -> Encode:
    """The reference without the limit on word length, which few tokenizers have."""
    engine = tokenizers.Tokenizer.from_str(json.dumps(without_bound(tokenizer)))
    return lambda texts: [result.ids for result in engine.encode_batch_fast(texts, add_special_tokens=False)]


def without_bound(tokenizer: BPETokenizer) -> dict:
    """Return the tokenizer file without the limit, and without added tokens, which are ordinary characters in a text."""
    settings = json.loads(tokenizer.content)
    return settings | {"added_tokens": [], "pre_tokenizer": settings["pre_tokenizer"]["pretokenizers"][0]}


def fast(tokenizer: BPETokenizer) -> Encode:
    encoder = WordEncoder(tokenizer, CODE)
    assert encoder._gigatoken is not None
    return encoder.encode_to_bytes


def without_fast(tokenizer: BPETokenizer) -> Encode:
    encoder = WordEncoder(tokenizer, CODE)
    encoder._gigatoken = None
    return encoder.encode_to_bytes


def alone(tokenizer: BPETokenizer) -> Encode:
    engine = gigatoken_encoder(tokenizer.content, CODE)
    assert engine is not None
    return engine.encode_to_bytes


def kitoken(tokenizer: BPETokenizer) -> Encode:
    """kitoken, which does not support the limit."""
    from kitoken import Kitoken

    return Kitoken.from_tokenizers(json.dumps(without_bound(tokenizer)).encode()).encode_all


SIDES = {
    "tokenizers": reference,
    "tokenizers, unbounded": unbounded,
    "headstart, fast": fast,
    "headstart": without_fast,
    "gigatoken": alone,
    "kitoken": kitoken,
}


def listed(row: bytes | list[int]) -> list[int]:
    return np.frombuffer(row, CODE).tolist() if isinstance(row, bytes) else row


def parity(tokenizer: BPETokenizer, texts: list[str], count: int, sides: list[str]) -> list[dict]:
    """Return by kind of string: the number of strings, the number that the check passes to gigatoken, and the number of
    different ids per side.
    """
    encoders = {side: SIDES[side](tokenizer) for side in sides}
    rows = []
    for name, strings in kinds(texts, count):
        row = {"kind": name, "strings": 0, "bytes": 0, "to_gigatoken": 0, "differ": dict.fromkeys(sides[1:], 0)}
        for batch in in_batches(strings, BATCH):
            row["strings"] += len(batch)
            row["bytes"] += sum(len(text.encode()) for text in batch)
            row["to_gigatoken"] += sum(is_plain_batch(batch))
            truth = encoders[sides[0]](batch)
            for side in sides[1:]:
                result = encoders[side](batch)
                row["differ"][side] += sum(listed(ids) != right for ids, right in zip(result, truth, strict=True))
        rows.append(row)
        print(json.dumps(row), flush=True)
    return rows


def speed(tokenizer: BPETokenizer, texts: list[str], turns: int, sides: list[str]) -> dict:
    """Return megabytes per second on one core, all sides in turn, each with an empty cache."""
    size = sum(len(text.encode()) for text in texts)
    rates: dict[str, dict[str, list[float]]] = {side: {"cpu": [], "clock": []} for side in sides}
    for turn in range(turns):
        first = turn % len(sides)
        for side in sides[first:] + sides[:first]:
            encode = SIDES[side](tokenizer)
            clock, spent = time.perf_counter(), time.process_time()
            for start in range(0, len(texts), BATCH):
                encode(texts[start : start + BATCH])
            rates[side]["cpu"].append(round(size / 1e6 / (time.process_time() - spent), 2))
            rates[side]["clock"].append(round(size / 1e6 / (time.perf_counter() - clock), 2))
        print(turn, {side: rates[side]["cpu"][-1] for side in sides}, flush=True)
    middle = {side: {what: statistics.median(result) for what, result in rate.items()} for side, rate in rates.items()}
    against = {side: round(middle[side]["cpu"] / middle["tokenizers"]["cpu"], 2) for side in sides[1:]}
    return {
        "bytes": size,
        "texts": len(texts),
        "turns": turns,
        "mb_per_second": rates,
        "median": middle,
        "times": against,
    }


def some(texts: list[str], size: int) -> list[str]:
    """Sample texts of this many bytes in total."""
    result, left = [], size
    for text in random.Random(0).sample(texts, len(texts)):
        if left <= 0:
            break
        result.append(text)
        left -= len(text.encode())
    return result


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("files", nargs="+")
    parser.add_argument("--strings", type=int, default=1_200_000)
    parser.add_argument("--megabytes", type=float, default=30)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--only", choices=["speed", "parity"], help="the other part stays as it is in the record")
    parser.add_argument("--commit", default="", help="the measured commit, if it is not that of git")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    here = about(arguments.commit)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    here["versions"]["kitoken"] = installed("kitoken")
    sides = [side for side in SIDES if side != "kitoken" or here["versions"]["kitoken"]]
    texts = read(arguments.files)
    tokenizer = train_tokenizer(iter(texts), TokenizerConfig())
    result = here | {
        "files": ["/".join(Path(file).parts[-2:]) for file in arguments.files],
        "vocabulary": tokenizer.vocab_size,
        "unicode": unicodedata.unidata_version,
        "processor": platform.machine(),
    }
    whole = json.loads(arguments.out.read_text(encoding="utf-8")) if arguments.out.exists() else {}
    if arguments.only != "parity":
        result["speed"] = speed(tokenizer, some(texts, int(arguments.megabytes * 1e6)), arguments.turns, sides)
    if arguments.only != "speed":
        result["parity"] = parity(
            tokenizer, texts, arguments.strings, [side for side in sides if side != "tokenizers, unbounded"]
        )
    result = whole | result
    arguments.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

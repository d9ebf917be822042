"""Small files of every kind of label: several a text, ratings, pairs, twenty classes. Imported by tests of several rooms."""

import csv
import json
import random
from pathlib import Path

from tiny import FILLING

WORDS = {
    "crime": ("murder", "police", "thief"),
    "love": ("kiss", "heart", "wedding"),
    "war": ("battle", "army", "flag"),
}
SETTINGS = """
[tokenizer]
vocab_size = 320
[model]
width = 16
depth = 1
feedforward = 16
context = 40
[runtime]
threads = 1
device = "cpu"
[finetune.loop]
epochs = 4
[finetune.optim]
lr = 0.01
"""


def story(chance: random.Random, names) -> str:
    words = [chance.choice(FILLING) for _ in range(chance.randint(4, 9))]
    for name in names:
        for _ in range(2):
            words.insert(chance.randrange(len(words)), chance.choice(WORDS[name]))
    return " ".join(words)


def write_all(folder: Path) -> Path:
    """`labels.jsonl` (lists), `labels.csv` (semicolons), `ratings.csv`, `pairs.csv`, `twenty.csv`, each with a test file."""
    chance = random.Random(3)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "headstart.toml").write_text(SETTINGS)
    for suffix, rows in (("", 160), ("-test", 60)):
        several = []
        for _ in range(rows):
            names = [name for name, share in (("crime", 0.15), ("love", 0.4), ("war", 0.5)) if chance.random() < share]
            several.append((story(chance, names), names))
        lines = [json.dumps({"text": text, "label": names}) for text, names in several]
        (folder / f"labels{suffix}.jsonl").write_text("\n".join(lines) + "\n")
        table(folder / f"labels{suffix}.csv", ("text", "label"), [(text, "; ".join(names)) for text, names in several])
        rated = []
        for _ in range(rows):
            stars = chance.randint(1, 5)
            words = ["great"] * (stars - 1) + ["awful"] * (5 - stars) + [chance.choice(FILLING) for _ in range(3)]
            rated.append((" ".join(chance.sample(words, len(words))), stars))
        table(folder / f"ratings{suffix}.csv", ("text", "stars"), rated)
        pairs = []
        for _ in range(rows):
            one, other = chance.choice(list(WORDS)), chance.choice(list(WORDS))
            pairs.append((story(chance, [one]), story(chance, [other]), "same" if one == other else "other"))
        table(folder / f"pairs{suffix}.csv", ("premise", "hypothesis", "label"), pairs)
        classes = [
            (f"the word{number} is {chance.choice(FILLING)} with word{number} {chance.random():.3f}", f"class {number}")
            for number in list(range(20)) * (2 if suffix else 8)
        ]
        table(folder / f"twenty{suffix}.csv", ("text", "label"), classes)
    return folder


def table(path: Path, header, rows) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows(rows)

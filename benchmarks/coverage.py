"""How often a report's intervals hold the truth, and what they miss: on made-up result tables, and on real trainings.

python benchmarks/coverage.py                 result tables with a known truth (a minute or two on one core)
python benchmarks/coverage.py --trainings     tiny real trainings with a known truth (ten minutes on one core)

Both write into docs/results/coverage.json; python benchmarks/results.py makes the page from it.
"""

import argparse
import csv
import json
import math
import random
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import cache
from itertools import product
from pathlib import Path

import numpy as np
from scipy.special import betaincinv, stdtrit

from headstart.report.intervals import components, half_width, macro_f1_values
from headstart.report.worth import read_off

OUT = Path(__file__).resolve().parent.parent / "docs" / "results" / "coverage.json"
TABLES = 2000
NOMINAL = 0.95
CHUNK = 4_000_000  # values of one arm in memory at a time
METHODS = ("headstart", "satterthwaite", "seeds t", "seeds bootstrap", "texts")
"""Ours, and what one might do instead: one t with Satterthwaite's degrees of freedom, t over seeds alone, a bootstrap
over seeds alone, and the binomial interval over texts alone."""


@dataclass(frozen=True)
class Setting:
    """A world to draw result tables from.

    kind        networks: both arms train; linear: one answers alike whatever the seed; twins: neither leaves anything
                to chance, and they answer alike but for a text in a thousand; rare: both train, a tenth of the texts has the rare label, macro-F1 is measured
    difference  how much better the first arm is, in points: the truth that an interval should hold
    luck        standard deviation of an arm's accuracy over seeds, in points; half its variance is shared by the arms
    hardness    how alike seeds answer: the texts' chances to be answered rightly are Beta distributed with mean .75 and
                this sum of parameters; 1 is most texts easy or hopeless, 4 is most in between
    shared      the share of texts that are as hard for one arm as for the other
    """

    kind: str
    seeds: int
    texts: int
    difference: float = 0.0
    luck: float = 1.0
    hardness: float = 1.0
    shared: float = 0.5


def settings() -> Iterator[Setting]:
    for seeds, texts in product((3, 5, 10), (200, 2000)):
        for difference, luck, hardness in product((0.0, 1.0, 3.0), (0.0, 1.0, 3.0), (1.0, 4.0)):
            yield Setting("networks", seeds, texts, difference, luck, hardness)
        for shared in (0.0, 0.9):
            yield Setting("networks", seeds, texts, shared=shared)
        for difference, luck in product((0.0, 3.0), (0.0, 1.0, 3.0)):
            yield Setting("linear", seeds, texts, difference, luck)
        yield Setting("twins", seeds, texts, difference=0.1, luck=0.0)
        yield Setting("rare", seeds, texts)
    for seeds, difference in product((3, 5), (0.0, 1.0)):
        yield Setting("networks", seeds, 25_000, difference)


@cache
def chances(mean: float, hardness: float) -> np.ndarray:
    """65,536 equally likely values of a Beta distribution, whose mean is `mean` to five digits."""
    places = (np.arange(65_536) + 0.5) / 65_536
    return betaincinv(mean * hardness, (1 - mean) * hardness, places).astype(np.float32)


def pulled(chances_BN: np.ndarray, luck_BS: np.ndarray, mean: float) -> np.ndarray:
    """Chances of every seed, moved up or down so that their mean moves by exactly that seed's luck."""
    up, down = np.maximum(luck_BS, 0) / (1 - mean), np.maximum(-luck_BS, 0) / mean
    return (1 - up - down)[..., None] * chances_BN[:, None, :] + up[..., None]


def lucks(rng: np.random.Generator, setting: Setting, tables: int) -> np.ndarray:
    """By arm, table and seed; symmetric about 0 and never beyond a tenth."""
    shared, own = rng.normal(size=(1, tables, setting.seeds)), rng.normal(size=(2, tables, setting.seeds))
    found = setting.luck / 100 * (math.sqrt(0.5) * shared + math.sqrt(0.5) * own)
    return np.clip(found, -0.1, 0.1).astype(np.float32)


def answers(rng: np.random.Generator, setting: Setting, tables: int, means: tuple[float, float]) -> list[np.ndarray]:
    """Two arms' rights and wrongs (tables, seeds, texts), with these expected shares of rights."""
    size = (tables, setting.texts)
    draw = rng.integers(65_536, size=size, dtype=np.uint16)
    other = np.where(rng.random(size, dtype=np.float32) < setting.shared, draw, rng.integers(65_536, size=size))
    luck = lucks(rng, setting, tables)
    found = []
    for arm, (mean, place) in enumerate(zip(means, (draw, other), strict=True)):
        chance = chances(round(mean, 6), setting.hardness)[place]
        if setting.kind == "linear" and arm == 1:
            right = (rng.random(size, dtype=np.float32) < chance)[:, None, :]
            found.append(np.broadcast_to(right, (tables, setting.seeds, setting.texts)))
            continue
        shape = (tables, setting.seeds, setting.texts)
        found.append(rng.random(shape, dtype=np.float32) < pulled(chance, luck[arm], mean))
    return found


def differences(rng: np.random.Generator, setting: Setting, tables: int) -> np.ndarray:
    """Tables (tables, seeds, texts) of what the first arm has more than the second."""
    if setting.kind == "twins":
        better = (rng.random((tables, 1, setting.texts)) < setting.difference / 100).astype(np.float64)
        return np.repeat(better, setting.seeds, axis=1)
    if setting.kind == "rare":
        return rare(rng, setting, tables)
    first, second = answers(rng, setting, tables, (0.75 + setting.difference / 100, 0.75))
    return first.astype(np.float64) - second


def rare(rng: np.random.Generator, setting: Setting, tables: int) -> np.ndarray:
    """Contributions to macro-F1, of two arms that find about 60 % of a rare label and rarely mistake the other for it."""
    gold = (rng.random((tables, setting.texts)) < 0.1).astype(np.int64)
    found, wrong = (answers(rng, setting, tables, (mean, mean)) for mean in (0.6, 0.95))
    values = []
    for arm in (0, 1):
        right = np.where(gold[:, None, :] == 1, found[arm], wrong[arm])
        predictions = np.where(right, gold[:, None, :], 1 - gold[:, None, :])
        rows = [[macro_f1_values(gold[table], row, 2) for row in predictions[table]] for table in range(tables)]
        values.append(np.array(rows))
    return values[0] - values[1]


def intervals(values: np.ndarray, rng: np.random.Generator) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Low and high of every table, by method."""
    seeds, texts = values.shape[-2:]
    by_seed = values.mean(axis=-1)
    centre = by_seed.mean(axis=-1)
    from_seeds, text_variance = components(values)
    variance = from_seeds + text_variance / texts
    freedom = np.minimum(1e6, variance**2 * (seeds - 1) / np.maximum(1e-30, from_seeds**2))
    drawn = rng.multinomial(seeds, np.full(seeds, 1 / seeds), size=400) / seeds
    low, high = np.quantile(by_seed @ drawn.T, (0.025, 0.975), axis=-1)
    halves = {
        "headstart": half_width(values),
        "satterthwaite": stdtrit(np.maximum(1, freedom), 0.975) * np.sqrt(variance),
        "seeds t": stdtrit(seeds - 1, 0.975) * np.sqrt(from_seeds),
        "texts": 1.96 * np.sqrt(values.mean(axis=-2).var(axis=-1, ddof=1) / texts),
    }
    return {name: (centre - half, centre + half) for name, half in halves.items()} | {"seeds bootstrap": (low, high)}


def measured(setting: Setting, tables: int, seed: int = 0) -> dict:
    """Coverage, claims (intervals without 0), claims with the right sign, and mean width in points, by method."""
    rng = np.random.default_rng([seed, zlib.crc32(repr(setting).encode())])
    truth = setting.difference / 100
    bounds: dict[str, list] = {name: [] for name in METHODS}
    chunk = max(1, min(tables, CHUNK // (setting.seeds * setting.texts)))
    for start in range(0, tables, chunk):
        for name, pair in intervals(differences(rng, setting, min(chunk, tables - start)), rng).items():
            bounds[name].append(pair)
    methods = {}
    for name, pairs in bounds.items():
        low, high = (np.concatenate(side) for side in zip(*pairs, strict=True))
        claims = (low > 0) | (high < 0)
        methods[name] = {
            "coverage": round(float(((low <= truth) & (truth <= high)).mean()), 4),
            "claims": round(float(claims.mean()), 4),
            "right_claims": round(float((low > 0).mean()), 4) if truth else 0.0,
            "width": round(float(100 * (high - low).mean()), 2),
        }
    return {**asdict(setting), "methods": methods}


SIZES, LEVELS = (50, 200, 800, 3200), (0.60, 0.66, 0.72, 0.78)
"""A curve that gains 6 points whenever labels grow fourfold; 70 % with 200 labels is worth 200 * 4^(2/3) of them."""
LABELS_TABLES = 500


def labels_measured(seeds: int, texts: int, luck: float, tables: int) -> dict:
    """How often the interval of "worth so many labels" holds the truth, and whether it has an upper end."""
    setting = Setting("networks", seeds, texts, luck=luck)
    rng = np.random.default_rng([1, zlib.crc32(repr(setting).encode())])
    truth, held, ended = 200 * 4 ** (2 / 3), 0, 0
    for _ in range(tables):
        draw, runs = rng.integers(65_536, size=texts), []
        for level in (0.70, *LEVELS):
            place = np.where(rng.random(texts) < setting.shared, draw, rng.integers(65_536, size=texts))
            shift = np.clip(rng.normal(0, luck / 100, (1, seeds)), -0.1, 0.1)
            chance = pulled(chances(level, setting.hardness)[place][None], shift, level)[0]
            runs.append((rng.random((seeds, texts)) < chance).astype(np.float64))
        found = read_off(runs[0], np.stack(runs[1:]), SIZES)
        held += found.low is not None and found.low <= truth <= (found.high or math.inf)
        ended += found.high is not None
    return {
        "seeds": seeds,
        "texts": texts,
        "luck": luck,
        "coverage": round(held / tables, 4),
        "has_upper_end": round(ended / tables, 4),
    }


def tolerance(tables: int, share: float = NOMINAL) -> float:
    """How far a measured share may lie from a true one by chance: three standard errors."""
    return 3 * math.sqrt(share * (1 - share) / tables)


def simulate(tables: int) -> dict:
    started = time.perf_counter()
    rows = []
    for setting in settings():
        rows.append(measured(setting, tables))
        ours = rows[-1]["methods"]["headstart"]
        flag = "  <- below" if ours["coverage"] < NOMINAL - tolerance(tables) else ""
        told = "false alarms" if setting.difference == 0 else "power"
        print(
            f"{setting}: coverage {ours['coverage']:.3f}, {told} {ours['claims']:.3f}, width {ours['width']:.1f}{flag}"
        )
    for name in METHODS:
        found = [row["methods"][name]["coverage"] for row in rows]
        below = sum(share < NOMINAL - tolerance(tables) for share in found)
        print(
            f"{name}: coverage {min(found):.3f} to {max(found):.3f}, {below} of {len(rows)} settings below .95 - {tolerance(tables):.3f}"
        )
    few = min(tables, LABELS_TABLES)
    labels = [labels_measured(*world, few) for world in product((3, 5, 10), (200, 2000), (1.0, 3.0))]
    for found in labels:
        print(f"worth in labels: {found}")
    print(f"{time.perf_counter() - started:.0f} seconds")
    return {
        "tables": tables,
        "tolerance": round(tolerance(tables), 4),
        "settings": rows,
        "labels_tables": few,
        "labels": labels,
    }


# Real trainings. Words are of two families, and a text has words of one family only.
#   coin    the labels of valid and test are tossed: nothing can help, the truth is 0 exactly
#   noise   pretrained on the same texts with their letters shuffled: there is nothing to learn from them
#   must    a text's label is its family; 12 labelled texts show few of the words, and that words go together can be
#           learned from the unlabelled texts alone

KINDS = ("coin", "noise", "must")
WORDS, WORDS_A_TEXT, LABELLED = 60, 4, 12
MODEL = {"model.width": 32, "model.depth": 1, "model.heads": 2, "model.feedforward": 64, "model.context": 24}
ONE_CORE = {"runtime.threads": 1, "runtime.device": "cpu"}


def write_world(folder: Path, kind: str, seed: int) -> None:
    """Unlabelled texts, and three labelled files."""
    chance = random.Random(seed)
    syllables = [consonant + vowel for consonant in "bdfgklmnprst" for vowel in "aeiou"]
    words = chance.sample([one + other for one in syllables for other in syllables], 2 * WORDS)
    families = words[:WORDS], words[WORDS:]

    def text(family: int) -> str:
        return " ".join(chance.choice(families[family]) for _ in range(WORDS_A_TEXT))

    texts = [text(place % 2) for place in range(2000)]
    if kind == "noise":
        texts = ["".join(chance.sample(each, len(each))) for each in texts]
    (folder / "texts.txt").write_text("\n".join(texts) + "\n", encoding="utf-8")
    for name, rows in (("train", LABELLED), ("valid", 100), ("test", 300)):
        with (folder / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["text", "label"])
            for place in range(rows):
                label = chance.randrange(2) if kind == "coin" and name != "train" else place % 2
                writer.writerow([text(chance.randrange(2) if kind == "coin" else label), "ab"[label]])


def train_and_judge(folder: Path, kind: str, seed: int) -> dict:
    """Pretrain, compare over five seeds, and say what the report claims: of all five, and of the first three."""
    import headstart
    from headstart.report.collect import collect
    from headstart.report.worth import worth

    write_world(folder, kind, seed)
    pretraining = {"tokenizer.vocab_size": 400, "loop.steps": 300, "loop.batch_size": 32, "optim.lr": 5e-3}
    headstart.pretrain(
        folder / "texts.txt",
        out=folder / "base",
        settings={**MODEL, **ONE_CORE, **pretraining, "corpus.held_out": 0.02},
    )
    headstart.compare(
        folder / "train.csv",
        valid=folder / "valid.csv",
        test=folder / "test.csv",
        source=folder / "base",
        out=folder / "comparison",
        arms=("scratch", "pretrained"),
        settings={**ONE_CORE, "loop.epochs": 4, "loop.batch_size": 4, "optim.lr": 3e-3},
    )
    whole = collect(folder / "comparison")
    found: dict = {"kind": kind, "seed": seed}
    for seeds in (3, 5):
        part = replace(whole, cells=tuple(cell for cell in whole.cells if cell.seed < seeds))
        points = worth(part, "all").points
        found[str(seeds)] = [round(value, 4) for value in (points.mean, points.low, points.high)]
    return found


def train(count: int) -> dict:
    started = time.perf_counter()
    rows = []
    for kind, seed in product(KINDS, range(count)):
        with tempfile.TemporaryDirectory() as folder:
            rows.append(train_and_judge(Path(folder), kind, seed))
        print(rows[-1], flush=True)
    print(f"{time.perf_counter() - started:.0f} seconds")
    counts = [counted(rows, kind, seeds) for kind, seeds in product(KINDS, (3, 5))]
    return {"each": count, "counts": counts, "runs": rows}


def counted(rows: list[dict], kind: str, seeds: int) -> dict:
    """How many of the trainings of a kind a report would call a gain, a loss, or neither."""
    found = [row[str(seeds)] for row in rows if row["kind"] == kind]
    gains, losses = sum(low > 0 for _, low, _ in found), sum(high < 0 for _, _, high in found)
    held = sum(low <= 0 <= high for _, low, high in found)
    return {"kind": kind, "seeds": seeds, "gain": gains, "loss": losses, "neither": held}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trainings", action="store_true", help="run real trainings instead of drawing tables")
    parser.add_argument("--tables", type=int, default=TABLES, help="result tables a setting")
    parser.add_argument("--count", type=int, default=30, help="trainings of each kind")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    known = json.loads(options.out.read_text(encoding="utf-8")) if options.out.is_file() else {"format": 1}
    known |= {"trainings": train(options.count)} if options.trainings else {"simulation": simulate(options.tables)}
    options.out.write_text(json.dumps(known).replace("}, {", "},\n{") + "\n", encoding="utf-8")  # a line a row
    sys.stdout.write(f"wrote {options.out}\n")


if __name__ == "__main__":
    main()

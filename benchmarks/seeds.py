"""Wall time of five seeds of a comparison at once (`headstart compare --jobs 5`), compared with one seed.

python benchmarks/seeds.py [--rows 2400] [--preset modern | --from starter:en-reviews] [--seeds 5] [--out docs/results/seeds.json]

Texts and labels are made up, the network is pretrained for three steps, and the commands are run as a person would, start of
the processes included. On a GPU the processes share it in turns, unless NVIDIA's multi-process service (MPS) is on, which
lets them run side by side: `nvidia-cuda-mps-control -d`. The record keeps one measurement with it and one without.
"""

import argparse
import csv
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch

WORDS = 12000
TEXT = 110
"""Mean words per text, about 135 tokens."""


def words() -> list[str]:
    """Generate enough words for a vocabulary of the usual size."""
    chance = np.random.default_rng(0)
    syllables = [a + b for a in "bcdfghjklmnprstvwz" for b in ("a", "e", "i", "o", "u", "ai", "on", "er")]
    return sorted({"".join(chance.choice(syllables, size)) for size in chance.integers(1, 5, 3 * WORDS)})[:WORDS]


def texts(count: int, seed: int) -> list[tuple[str, str]]:
    """Generate labelled texts of log-normal lengths with a Zipf distribution of words; a twentieth of the words depends on
    the label.
    """
    chance, known = np.random.default_rng(seed), np.array(words())
    chance_of = 1 / np.arange(2, len(known) + 2)
    order = np.random.default_rng(1).permutation(len(known))  # short words are not the rare ones
    rows = []
    for _ in range(count):
        label = int(chance.integers(2))
        size = int(np.clip(chance.lognormal(np.log(TEXT) - 0.32, 0.8), 5, 900))
        drawn = order[chance.choice(len(known), size, p=chance_of / chance_of.sum())]
        message = chance.random(size) < 0.05
        drawn[message] = order[200 + 100 * label + chance.integers(0, 100, int(message.sum()))]
        rows.append((" ".join(known[drawn]), ("bad", "good")[label]))
    return rows


def write(path: Path, rows: list[tuple[str, str]]) -> str:
    """Write rows as a file with a header."""
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("text", "label"), *rows])
    return str(path)


def timed(*arguments: str) -> float:
    """Return the seconds of a command; its output is shown if it fails."""
    started = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "headstart", *arguments], capture_output=True, text=True, check=False, env=os.environ
    )
    seconds = time.perf_counter() - started
    if done.returncode:
        sys.exit(f"headstart {' '.join(arguments)}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
    print(f"{seconds:7.1f} s  headstart {' '.join(arguments)}", flush=True)
    return seconds


def has_service() -> bool:
    """Return True if NVIDIA's multi-process service is running."""
    result = False
    for name in Path("/proc").glob("[0-9]*/comm"):
        with suppress(OSError):  # a process that has just ended
            result = result or name.read_text(encoding="utf-8").startswith("nvidia-cuda-mps")
    return result


def main() -> None:
    """Run the commands and return the ratio of their seconds."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=2400, help="number of labelled training texts")
    parser.add_argument("--preset", default="modern")
    parser.add_argument(
        "--from", dest="source", help="a folder or a starter, in place of a network pretrained for three steps"
    )
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--commit", default="", help="what is measured, for the record")
    parser.add_argument("--out", type=Path)
    parser.add_argument("options", nargs="*", help="handed on to `headstart compare`, after --")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        train, valid, test = (
            write(folder / f"{part}.csv", texts(count, seed))
            for seed, (part, count) in enumerate({"train": args.rows, "valid": 200, "test": 1000}.items())
        )
        (folder / "texts.txt").write_text("\n".join(text for text, _ in texts(3000, 9)), encoding="utf-8")
        base = args.source or str(folder / "base")
        if args.source is None:
            texts_to_read = str(folder / "texts.txt")
            timed("pretrain", texts_to_read, "--preset", args.preset, "--loop.steps", "3", "--out", base, "-q")

        def compared(seeds: int) -> float:
            settings = ["--from", base, "--valid", valid, "--test", test, "--arms", "pretrained", "--no-texts", "-q"]
            out = ["--seeds", str(seeds), "--jobs", str(seeds), "--out", str(folder / str(seeds))]
            return timed("compare", train, *settings, *out, *args.options)

        seconds = {str(count): round(compared(count), 2) for count in (1, args.seeds)}
    ratio = seconds[str(args.seeds)] / seconds["1"]
    print(f"{args.seeds} seeds at the same time take {ratio:.2f} times as long as one")
    if args.out:
        record = {
            "from": args.source or f"{args.preset}, pretrained for three steps",
            "rows": args.rows,
            "seconds": seconds,
            "ratio": round(ratio, 3),
            "device": torch.cuda.get_device_name() if torch.cuda.is_available() else platform.machine(),
            "torch": torch.__version__,
            "commit": args.commit,
            "date": time.strftime("%Y-%m-%d", time.gmtime()),
            "service": has_service(),
        }
        records = json.loads(args.out.read_text(encoding="utf-8")) if args.out.exists() else []
        records = [other for other in records if other["service"] != record["service"]]
        records = sorted([*records, record], key=lambda one: one["service"])
        args.out.write_text(json.dumps(records, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

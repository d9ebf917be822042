"""Speed and memory of preparing a corpus, compared with datasets + tokenizers: on real text, and by size on generated text.

python benchmarks/corpus.py speed FILES... [--turns 5] --out docs/results/corpus.json
python benchmarks/corpus.py sizes [--gigabytes 0.1 0.5 2] [--peer-up-to 0.5] --out docs/results/corpus.json

Both need `pip install datasets gigatoken`. Three sides take turns, each in a separate command, timed from the start of its
processes: `headstart prepare` with the extra `fast`, the same without gigatoken, and `load_dataset`, `map` and `save_to_disk`
of datasets with a tokenizer of tokenizers. All have `--jobs` processes. FILES are JSON lines or Parquet with a column `text`;
Parquet is converted to JSON lines first, so that all sides read the same files. Wall time depends on the load of the machine;
the processor time of all processes depends on it much less.
"""

import argparse
import json
import os
import platform
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.metadata import PackageNotFoundError, version
from itertools import product
from pathlib import Path

import numpy as np

PEER = """
import json, sys, time
started = time.perf_counter()
from datasets import load_dataset
from tokenizers import Tokenizer
kind, tokenizer, jobs, out, files = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4], sys.argv[5:]
engine = Tokenizer.from_file(tokenizer)
engine.encode_special_tokens = True
def encode(rows):
    return {"input_ids": [each.ids for each in engine.encode_batch_fast(rows["text"], add_special_tokens=False)]}
texts = load_dataset(kind, data_files=files, split="train", cache_dir=out + "-cache", num_proc=jobs)
loaded = time.perf_counter()
rows = texts.map(encode, batched=True, num_proc=jobs, remove_columns=texts.column_names)
mapped = time.perf_counter()
rows.save_to_disk(out, num_proc=jobs)
parts = {"load": loaded - started, "map": mapped - loaded, "save": time.perf_counter() - mapped}
open(out + ".json", "w").write(json.dumps(parts))
"""
QUIET = {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1", "HF_DATASETS_DISABLE_PROGRESS_BARS": "1"}
SAME = """
import sys
import numpy as np
from datasets import load_from_disk
from headstart.data.shards import Shards
from pathlib import Path
shards, rows = Shards.open(Path(sys.argv[1])), load_from_disk(sys.argv[2])
assert len(rows) == shards.num_documents, (len(rows), shards.num_documents)
flat = shards.flat
for start in range(0, len(rows), 1000):
    ids = [id for row in rows[start : start + 1000]["input_ids"] for id in row]
    first, last = int(shards.offsets[start]), int(shards.offsets[min(start + 1000, len(rows))])
    assert np.array_equal(np.array(ids), flat[first:last]), start
print(len(flat))
"""
SIDES = ("fast", "plain", "datasets")
KEPT = ("commit", "date", "load", "turns", "times")
"""The fields of a measurement on real text that are kept when there is a newer one."""


def about(commit: str) -> dict:
    """Return the environment of a measurement."""
    if not commit and shutil.which("git"):
        command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
        commit = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    return {
        "commit": commit,
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "versions": {name: installed(name) for name in ("tokenizers", "gigatoken", "datasets", "pyarrow", "numpy")},
    }


def installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def timed(words: list[str], environment: dict[str, str] | None = None) -> dict:
    """Wall time and processor time in seconds, peak memory of a process in bytes, number of processes, and the fraction of
    the machine's cores that other processes used.
    """
    before, busy_before = resource.getrusage(resource.RUSAGE_CHILDREN), busy()
    started = time.perf_counter()
    process = subprocess.Popen(words, env=os.environ | (environment or {}), stdout=subprocess.DEVNULL)
    peaks: dict[int, int] = {}
    while process.poll() is None:
        for number in family(process.pid):
            peaks[number] = max(peaks.get(number, 0), most_memory(number))
        time.sleep(0.05)
    clock = time.perf_counter() - started
    assert process.returncode == 0, words
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    others = (busy() - busy_before - spent) / clock / (os.cpu_count() or 1)
    return {
        "seconds": round(clock, 2),
        "cpu": round(spent, 2),
        "peak": max(peaks.values(), default=0),
        "processes": len(peaks),
        "others": round(max(0.0, others), 3),
    }


def busy() -> float:
    """Return the busy seconds of all cores since the machine was started."""
    user, nice, system, _, _, irq, softirq, steal = map(int, Path("/proc/stat").read_text().split()[1:9])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def family(root: int) -> list[int]:
    """Return a process and all of its descendants."""
    try:
        below = Path(f"/proc/{root}/task/{root}/children").read_text().split()
    except OSError:
        return []
    return [root, *(number for child in below for number in family(int(child)))]


def most_memory(number: int) -> int:
    try:
        lines = Path(f"/proc/{number}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM")), 0)


def headstart(*words: str) -> list[str]:
    return [sys.executable, "-m", "headstart", *words]


def without_fast(work: Path) -> dict[str, str]:
    """Return an environment in which Python and its subprocesses do not find gigatoken."""
    folder = work / "hidden"
    folder.mkdir(exist_ok=True)
    (folder / "sitecustomize.py").write_text('import sys\nsys.modules["gigatoken"] = None\n')
    result = {"PYTHONPATH": os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))}
    command = 'import importlib.util; assert importlib.util.find_spec("gigatoken") is None'
    subprocess.run([sys.executable, "-c", command], env=os.environ | result, check=True)
    return result


class Bench:
    """Prepare one corpus with each side in turn."""

    def __init__(self, files: list[str], work: Path, jobs: int) -> None:
        self.files, self.work, self.jobs = files, work, jobs
        self.kind = "json" if files[0].endswith(".jsonl") else "text"
        self.hidden = without_fast(work)

    def run(self, side: str, name: str) -> dict:
        """Prepare the corpus in the folder of that name."""
        out = str(self.work / name)
        if side == "datasets":
            words = [sys.executable, "-c", PEER, self.kind, str(self.work / "tok" / "tokenizer.json"), str(self.jobs)]
            result = timed([*words, out, *self.files], QUIET)
            parts = json.loads(Path(f"{out}.json").read_text())
            return result | {"parts": {part: round(seconds, 2) for part, seconds in parts.items()}}
        words = headstart("prepare", *self.files, "--tokenizer", str(self.work / "tok"), "--jobs", str(self.jobs), "-q")
        return timed([*words, "--out", out], self.hidden if side == "plain" else None)

    def same(self, sides: dict[str, str]) -> int:
        """Return the number of tokens, which must be the same for all sides."""
        ours = [self.work / sides[side] for side in ("fast", "plain") if side in sides]
        manifests = {(folder / "manifest.json").read_bytes() for folder in ours}  # it lists every file with its sha256
        assert len(manifests) == 1
        command = [sys.executable, "-c", SAME, str(ours[0]), str(self.work / sides["datasets"])]
        return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)

    def clear(self, name: str) -> None:
        for folder in (self.work / name, self.work / f"{name}-cache"):
            shutil.rmtree(folder, ignore_errors=True)


def ratios(sides: dict[str, list[dict]]) -> dict:
    """Return the ratio of the time of datasets: of medians, and the minimum and maximum over turns."""
    result: dict[str, dict[str, float]] = {side: {} for side in sides if side != "datasets"}
    for side, what in product(result, ("seconds", "cpu")):
        theirs, ours = ([each[what] for each in sides[who]] for who in ("datasets", side))
        turns = [them / us for them, us in zip(theirs, ours, strict=True)]
        result[side][what] = round(statistics.median(theirs) / statistics.median(ours), 2)
        result[side] |= {f"{what}_min": round(min(turns), 2), f"{what}_max": round(max(turns), 2)}
    return result


def json_lines(files: list[str], work: Path) -> list[str]:
    """Convert Parquet files to JSON lines with the column `text` only."""
    import pyarrow.parquet

    result = []
    for index, file in enumerate(files):
        if file.endswith(".parquet"):
            texts = pyarrow.parquet.read_table(file, columns=["text"]).column("text").to_pylist()
            result.append(str(work / f"real-{index}.jsonl"))
            with open(result[-1], "w", encoding="utf-8") as out:
                out.writelines(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts)
        else:
            result.append(file)
    return result


def train_tokenizer(work: Path, *words: str) -> None:
    subprocess.run(
        headstart("tokenizer", *words, "--out", str(work / "tok"), "-q"), check=True, stdout=subprocess.DEVNULL
    )


def speed(arguments: argparse.Namespace, work: Path) -> dict:
    """Measure all sides on real text, in rotating order."""
    files = json_lines(arguments.files, work)
    train_tokenizer(work, *files)
    bench = Bench(files, work, arguments.jobs)
    result: dict[str, list[dict]] = {side: [] for side in SIDES}
    for turn in range(arguments.turns):
        first = turn % len(SIDES)
        for side in SIDES[first:] + SIDES[:first]:
            result[side].append(bench.run(side, f"{side}-{turn}"))
            print(turn, side, result[side][-1], flush=True)
        if turn:
            for side in SIDES:
                bench.clear(f"{side}-{turn}")
    return {
        "files": ["/".join(Path(file).parts[-2:]) for file in arguments.files],
        "bytes": sum(os.path.getsize(file) for file in files),
        "jobs": arguments.jobs,
        "turns": arguments.turns,
        "tokens": bench.same({side: f"{side}-0" for side in SIDES}),
        "same_ids": True,
        "sides": result,
        "times": ratios(result),
    }


def write_text(path: Path, size: int, seed: int) -> None:
    """Generate lines of words with a Zipf distribution."""
    chance = np.random.default_rng(seed)
    letters = np.random.default_rng(0).integers(97, 123, (200_000, 12), dtype=np.uint8)
    lengths = np.random.default_rng(1).integers(2, 12, 200_000)
    words = np.array([letters[index, : lengths[index]].tobytes().decode() for index in range(200_000)])
    odds = np.cumsum(1 / np.arange(1, 200_001))
    with path.open("w", encoding="utf-8") as file:
        while file.tell() < size:
            drawn = words[np.searchsorted(odds, chance.random(200_000) * odds[-1])]
            file.writelines(" ".join(line) + ".\n" for line in drawn.reshape(-1, 100).tolist())


def sizes(arguments: argparse.Namespace, work: Path) -> dict:
    """Measure generated text of several sizes, eight files each; the peak memory must not depend on the size. Then merge
    two halves.
    """
    rows = []
    for index, gigabytes in enumerate(sorted(arguments.gigabytes)):
        files = [str(work / f"{number}.txt") for number in range(8)]
        for number, file in enumerate(files):
            write_text(Path(file), int(gigabytes * 1e9 / 8), number)
        if not index:
            train_tokenizer(work, files[0], "--megabytes", "20")
        bench = Bench(files, work, arguments.jobs)
        chosen = SIDES if gigabytes <= arguments.peer_up_to else ("fast",)
        row = {"bytes": sum(os.path.getsize(file) for file in files), "load": round(os.getloadavg()[0], 2)}
        row["sides"] = {side: [bench.run(side, side)] for side in chosen}
        if "datasets" in chosen:
            row |= {
                "tokens": bench.same({side: side for side in chosen}),
                "same_ids": True,
                "times": ratios(row["sides"]),
            }
        if not index:
            row["merge"] = merge(bench, files)
        rows.append(row)
        print(json.dumps(row), flush=True)
        for side in chosen:
            bench.clear(side)
    return {"files": 8, "jobs": arguments.jobs, "turns": 1, "rows": rows}


def merge(bench: Bench, files: list[str]) -> dict:
    """Check that two halves that were prepared separately and merged equal the whole, byte for byte."""
    halves = [Bench(files[:4], bench.work, bench.jobs), Bench(files[4:], bench.work, bench.jobs)]
    for name, half in zip(("one", "two"), halves, strict=True):
        half.run("fast", name)
    folders = [str(bench.work / name) for name in ("one", "two", "merged")]
    result = timed(headstart("merge", *folders[:2], "--out", folders[2], "-q"))
    manifests = [(bench.work / name / "manifest.json").read_bytes() for name in ("merged", "fast")]
    for name in ("one", "two", "merged"):
        bench.clear(name)
    return result | {"identical": manifests[0] == manifests[1]}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["speed", "sizes"])
    parser.add_argument("files", nargs="*")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--gigabytes", type=float, nargs="+", default=[0.1, 0.5, 2.0])
    parser.add_argument("--peer-up-to", type=float, default=0.5, help="gigabytes beyond which datasets is left out")
    parser.add_argument("--commit", default="", help="the measured commit, if it is not that of git")
    parser.add_argument("--work", type=Path, help="where to put corpora and shards meanwhile")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    here = about(arguments.commit)
    missing = [name for name in ("gigatoken", "datasets") if here["versions"][name] is None]
    if missing or (arguments.what == "speed" and not arguments.files):
        parser.error(f"install {' and '.join(missing)}" if missing else "speed needs files")
    work = Path(tempfile.mkdtemp(prefix="corpus-", dir=arguments.work))
    try:
        result = here | (speed(arguments, work) if arguments.what == "speed" else sizes(arguments, work))
    finally:
        shutil.rmtree(work, ignore_errors=True)
    whole = json.loads(arguments.out.read_text()) if arguments.out.exists() else {}
    before = whole.get(arguments.what, {})
    if "times" in before:  # another run takes nothing back
        result["earlier"] = [*before.get("earlier", []), {key: before[key] for key in KEPT}]
    arguments.out.write_text(json.dumps(whole | {arguments.what: result}, indent=1) + "\n")


if __name__ == "__main__":
    main()

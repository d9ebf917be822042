"""How fast text becomes shards and in how much memory, beside datasets + tokenizers; and 2 GB of generated text in flat memory.

python benchmarks/corpus.py speed FILES... [--jobs 2] [--peer] --out docs/results/corpus.json      (--peer needs: pip install datasets)
python benchmarks/corpus.py memory [--gigabytes 2] [--jobs 2] --out docs/results/corpus.json

Seconds by the clock depend on who else is at work; seconds of processor time of all processes together much less.
"""

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

import numpy as np

PEER = """
import sys
from datasets import load_dataset
from tokenizers import Tokenizer
tokenizer, jobs, out, files = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4:]
engine = Tokenizer.from_file(tokenizer)
engine.encode_special_tokens = True
def encode(rows):
    return {"ids": [each.ids for each in engine.encode_batch_fast(rows["text"], add_special_tokens=False)]}
texts = load_dataset("json", data_files=files, split="train", cache_dir=out + "-cache", num_proc=jobs)
texts.map(encode, batched=True, num_proc=jobs, remove_columns=texts.column_names).save_to_disk(out, num_proc=jobs)
"""
SAME = """
import sys
import numpy as np
from datasets import load_from_disk
from headstart.data.shards import Shards
from pathlib import Path
shards, rows = Shards.open(Path(sys.argv[1])), load_from_disk(sys.argv[2])
assert len(rows) == shards.documents, (len(rows), shards.documents)
flat = shards.flat
for start in range(0, len(rows), 1000):
    ids = [id for row in rows[start : start + 1000]["ids"] for id in row]
    first, last = int(shards.offsets[start]), int(shards.offsets[min(start + 1000, len(rows))])
    assert np.array_equal(np.array(ids), flat[first:last]), start
"""


def timed(words: list[str], environment: dict[str, str] | None = None) -> tuple[float, float, dict[int, int]]:
    """Seconds by the clock, seconds of processor time, and the most memory of each process, in bytes."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.perf_counter()
    process = subprocess.Popen(words, env=os.environ | (environment or {}), stdout=subprocess.DEVNULL)
    peaks: dict[int, int] = {}
    while process.poll() is None:
        for number in family(process.pid):
            peaks[number] = max(peaks.get(number, 0), most_memory(number))
        time.sleep(0.1)
    assert process.returncode == 0, words
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.perf_counter() - started, spent, peaks


def family(root: int) -> list[int]:
    """A process and all below it."""
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


def speed(given: argparse.Namespace, work: Path) -> dict:
    files, size = given.files, sum(os.path.getsize(file) for file in given.files)
    subprocess.run(
        headstart("tokenizer", *files, "--out", str(work / "tok"), "-q"), check=True, stdout=subprocess.DEVNULL
    )
    found = {"files": len(files), "bytes": size, "jobs": given.jobs, "gigatoken": bool(find_spec("gigatoken"))}
    words = headstart("prepare", *files, "--tokenizer", str(work / "tok"), "--jobs", str(given.jobs), "-q")
    for turn in range(given.turns):
        clock, spent, peaks = timed([*words, "--out", str(work / f"shards-{turn}")])
        found.setdefault("headstart", []).append({"seconds": clock, "cpu": spent, "peak": max(peaks.values())})
        if given.peer:
            peer = [
                sys.executable,
                "-c",
                PEER,
                str(work / "tok" / "tokenizer.json"),
                str(given.jobs),
                str(work / f"peer-{turn}"),
                *files,
            ]
            quiet = {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1", "HF_DATASETS_DISABLE_PROGRESS_BARS": "1"}
            clock, spent, peaks = timed(peer, quiet)
            found.setdefault("datasets", []).append({"seconds": clock, "cpu": spent, "peak": max(peaks.values())})
    if given.peer:
        subprocess.run([sys.executable, "-c", SAME, str(work / "shards-0"), str(work / "peer-0")], check=True)
        found["same_ids"] = True
        for name in ("seconds", "cpu"):
            ours, theirs = (np.median([each[name] for each in found[who]]) for who in ("headstart", "datasets"))
            found[f"times_{name}"] = round(float(theirs / ours), 2)
    return found


def write_text(path: Path, size: int, seed: int) -> None:
    """Lines of words that are as frequent as words are: the n-th once for n times the first."""
    chance = np.random.default_rng(seed)
    letters = np.random.default_rng(0).integers(97, 123, (200_000, 12), dtype=np.uint8)
    lengths = np.random.default_rng(1).integers(2, 12, 200_000)
    words = np.array([letters[place, : lengths[place]].tobytes().decode() for place in range(200_000)])
    odds = np.cumsum(1 / np.arange(1, 200_001))
    with path.open("w", encoding="utf-8") as file:
        while file.tell() < size:
            drawn = words[np.searchsorted(odds, chance.random(200_000) * odds[-1])]
            file.writelines(" ".join(line) + ".\n" for line in drawn.reshape(-1, 100).tolist())


def memory(given: argparse.Namespace, work: Path) -> dict:
    """Prepare a quarter and the whole: the peak of a process must not follow. Then merge two halves of the quarter."""
    files = []
    for number in range(8):
        files.append(str(work / f"{number}.txt"))
        write_text(Path(files[-1]), int(given.gigabytes * 1e9 / 8), number)
    subprocess.run(
        headstart("tokenizer", files[0], "--out", str(work / "tok"), "--megabytes", "20", "-q"),
        check=True,
        stdout=subprocess.DEVNULL,
    )
    found = {"bytes": sum(os.path.getsize(file) for file in files), "files": len(files), "jobs": given.jobs}
    found["gigatoken"] = bool(find_spec("gigatoken"))
    for name, some in (("quarter", files[:2]), ("whole", files)):
        words = headstart("prepare", *some, "--tokenizer", str(work / "tok"), "--jobs", str(given.jobs), "-q")
        clock, spent, peaks = timed([*words, "--out", str(work / name)])
        found[name] = {
            "seconds": clock,
            "cpu": spent,
            "peak_of_a_process": max(peaks.values()),
            "processes": len(peaks),
        }
    for name, some in (("one", files[:1]), ("two", files[1:2])):
        words = headstart("prepare", *some, "--tokenizer", str(work / "tok"), "--jobs", str(given.jobs), "-q")
        timed([*words, "--out", str(work / name)])
    _, _, peaks = timed(headstart("merge", str(work / "one"), str(work / "two"), "--out", str(work / "merged"), "-q"))
    found["merge_peak"] = max(peaks.values())
    manifests = [(work / name / "manifest.json").read_bytes() for name in ("merged", "quarter")]
    found["merged_is_whole"] = manifests[0] == manifests[1]  # it lists every file with its sha256
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["speed", "memory"])
    parser.add_argument("files", nargs="*")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--peer", action="store_true")
    parser.add_argument("--gigabytes", type=float, default=2.0)
    parser.add_argument("--work", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    work = Path(tempfile.mkdtemp(prefix="corpus-", dir=given.work))
    try:
        found = speed(given, work) if given.what == "speed" else memory(given, work)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    whole = json.loads(given.out.read_text()) if given.out.exists() else {}
    given.out.write_text(json.dumps(whole | {given.what: found}, indent=1) + "\n")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()

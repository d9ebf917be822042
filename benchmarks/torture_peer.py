"""The same robustness cases for transformers' Trainer: a tiny model that is killed, resumed, and has damaged checkpoints.

python benchmarks/torture_peer.py docs/results/torture_peer.json

It needs transformers and accelerate, which Headstart does not. A child process is forked for every attempt.
"""

# ruff: noqa: E402  (threads are set before torch is imported)
import os
import sys

for name, value in {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}.items():
    os.environ.setdefault(name, value)

import json
import random
import shutil
import signal
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path

import accelerate
import torch
import transformers
from torch.utils.data import Dataset
from transformers import BertConfig, BertForMaskedLM, GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

torch.set_num_threads(1)
transformers.logging.set_verbosity_error()
ROWS, LENGTH, VOCABULARY, EPOCHS, SAVE = 64, 16, 60, 3, 4
KILLS = 40


class Rows(Dataset):
    def __init__(self) -> None:
        self.ids = torch.randint(5, VOCABULARY, (ROWS, LENGTH), generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> dict:
        return {"input_ids": self.ids[index]}


def causal(batch: list[dict]) -> dict:
    ids = torch.stack([row["input_ids"] for row in batch])
    return {"input_ids": ids, "labels": ids.clone()}


def masked(batch: list[dict]) -> dict:
    """Mask tokens like transformers' collator, from torch's random state."""
    ids = torch.stack([row["input_ids"] for row in batch])
    hidden = torch.bernoulli(torch.full(ids.shape, 0.3)).bool()
    return {"input_ids": ids.masked_fill(hidden, 3), "labels": ids.masked_fill(~hidden, -100)}


def train(kind: str, out: Path, resume: bool) -> None:
    set_seed(0)
    size = {"vocab_size": VOCABULARY}
    if kind == "masked":
        shape = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
        model = BertForMaskedLM(BertConfig(**size, **shape, max_position_embeddings=LENGTH))
    else:
        model = GPT2LMHeadModel(GPT2Config(**size, n_embd=16, n_layer=2, n_head=2, n_positions=LENGTH))
    settings = TrainingArguments(
        output_dir=str(out), num_train_epochs=EPOCHS, per_device_train_batch_size=8, save_steps=SAVE, save_total_limit=4,
        learning_rate=1e-2, logging_steps=1, report_to=[], use_cpu=True, disable_tqdm=True, seed=0, dataloader_num_workers=0,
    )  # fmt: skip
    collate = masked if kind == "masked" else causal
    trainer = Trainer(model=model, args=settings, train_dataset=Rows(), data_collator=collate)
    trainer.train(resume_from_checkpoint=resume and any(out.glob("checkpoint-*")))
    torch.save({name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}, out / "final.bin")


def attempt(kind: str, out: Path, resume: bool, kill_after: float | None = None) -> tuple[int, str]:
    log = out.parent / "log.txt"
    child = os.fork()
    if child == 0:
        code = 70
        try:
            handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(handle, 1)
            os.dup2(handle, 2)
            train(kind, out, resume)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    deadline = time.monotonic() + (90 if kill_after is None else kill_after)
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            lines = log.read_text().strip().splitlines() if log.exists() else []
            return os.waitstatus_to_exitcode(status), lines[-1][:160] if lines else ""
        time.sleep(0.001)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return -signal.SIGKILL, ""


def weights(out: Path) -> dict | None:
    path = out / "final.bin"
    return torch.load(path, weights_only=True) if path.exists() else None


def max_difference(one: dict, two: dict) -> float:
    return max((one[name] - two[name]).abs().max().item() for name in one)


def verdict(code: int, output: str, out: Path, whole: dict) -> str:
    if code == -signal.SIGKILL:
        return "hangs"
    if code:
        return f"stops: {output.split(':')[0].split('.')[-1]}"
    difference = max_difference(weights(out), whole)
    return "goes on, same weights" if difference == 0 else "goes on, other weights"


def interrupted(kind: str, work: Path, stop: int) -> Path:
    """Return a run whose newest checkpoint is that of step `stop`."""
    out = work / f"stopped-{kind}-{stop}"
    shutil.copytree(work / f"whole-{kind}", out)
    for path in out.glob("checkpoint-*"):
        if int(path.name.split("-")[1]) > stop:
            shutil.rmtree(path)
    (out / "final.bin").unlink()
    return out


def resumed(work: Path, kinds: list[str], names: list[int], whole: dict) -> list[dict]:
    """Resume each objective from each checkpoint that was kept."""
    rows = []
    for kind in kinds:
        for stop in names[:-1]:
            out = interrupted(kind, work, stop)
            where = "between epochs" if stop % (ROWS // 8) == 0 else "within an epoch"
            result = verdict(*attempt(kind, out, True), out, whole[kind])
            rows.append({"objective": kind, "step": stop, "where": where, "found": result})
            shutil.rmtree(out)
    return rows


def damaged(work: Path, names: list[int], whole: dict) -> list[dict]:
    """Damage each file of the newest checkpoint; an older valid checkpoint exists."""
    rows = []
    original, newest = interrupted("causal", work, names[-2]), f"checkpoint-{names[-2]}"
    for path in sorted((original / newest).iterdir()):
        content = path.read_bytes()
        middle = len(content) // 2
        flipped = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
        for wound, now in (("cut in half", content[:middle]), ("a bit flipped", flipped), ("missing", None)):
            out = work / "damaged"
            shutil.copytree(original, out)
            if now is None:
                (out / newest / path.name).unlink()
            else:
                (out / newest / path.name).write_bytes(now)
            result = verdict(*attempt("causal", out, True), out, whole["causal"])
            rows.append({"file": path.name, "wound": wound, "found": result})
            shutil.rmtree(out)
    return rows


def killed(work: Path, duration: float, whole: dict) -> dict[str, int]:
    """Kill the run once at a random moment, then resume it."""
    chance, result = random.Random(0), Counter()
    for _ in range(KILLS):
        out = work / "killed"
        code, output = attempt("causal", out, False, chance.uniform(0.1, duration))
        if code == -signal.SIGKILL:
            code, output = attempt("causal", out, True)
        result[verdict(code, output, out, whole["causal"])] += 1
        shutil.rmtree(out, ignore_errors=True)
    return dict(sorted(result.items()))


def main(target: Path) -> None:
    work = Path(tempfile.mkdtemp(prefix="peer-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None))
    versions = {module.__name__: module.__version__ for module in (transformers, accelerate, torch)}
    durations = {}
    for kind in ("causal", "masked"):
        started = time.monotonic()
        code, output = attempt(kind, work / f"whole-{kind}", False)
        assert code == 0, output
        durations[kind] = time.monotonic() - started
    whole = {kind: weights(work / f"whole-{kind}") for kind in durations}
    names = sorted(int(path.name.split("-")[1]) for path in (work / "whole-causal").glob("checkpoint-*"))
    table = {
        "versions": versions,
        "steps": EPOCHS * ROWS // 8,
        "resumed": resumed(work, list(durations), names, whole),
        "damage": damaged(work, names, whole),
        "kills": killed(work, durations["causal"], whole),
    }
    shutil.rmtree(work)
    target.write_text(json.dumps(table, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))

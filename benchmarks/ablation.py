"""Ablation of pretraining: compares objectives, blocks and texts at equal tokens and size (the last question of the course).

    python benchmarks/ablation.py --general novels --own reviews --mixture novels-and-reviews --out ablation --jobs 4

The three arguments are prepared folders with the same tokenizer. The script writes one pretrained folder per arm;
benchmarks/crossvalidate.py then fine-tunes all of them with the same settings.
"""

import argparse
import json
import shlex
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

TOKENS_A_STEP = 32_768

CLASSIC = "--model.block classic --model.feedforward 1056"
BOTH, GENERAL, OWN = "MIXTURE", "GENERAL", "OWN"
ARMS = {
    "causal": (BOTH, "--objective causal"),
    "masked": (BOTH, "--objective masked"),
    "hybrid": (BOTH, "--objective hybrid"),
    "masked-pairs": (BOTH, "--objective masked --next-sentence.weight 1 --loop.batch-size PAIRS"),
    "classic-causal": (BOTH, f"--objective causal {CLASSIC}"),
    "classic-masked": (BOTH, f"--objective masked {CLASSIC}"),
    "general-only": (GENERAL, "--objective masked"),
    "own-only": (OWN, "--objective masked"),
    "general-then-own": ("--stage 'GENERAL fraction=1' --stage 'OWN fraction=1'", "--objective masked"),
    "both-then-own": ("--stage 'MIXTURE fraction=1' --stage 'OWN fraction=1'", "--objective masked"),
    "adamw": (BOTH, "--objective masked --optim.optimizer adamw --optim.lr 1e-3"),
    "cosine": (BOTH, "--objective masked --optim.schedule cosine"),
    "no-dropout": (BOTH, "--objective masked --model.dropout 0"),
    "no-decay": (BOTH, "--objective masked --optim.weight-decay 0"),
    "ema": (BOTH, "--objective masked --optim.ema-decay 0.998"),
    "rate-15": (BOTH, "--objective masked --masking.rate 0.15"),
    "rate-40": (BOTH, "--objective masked --masking.rate 0.4"),
    "short-first": ("--stage 'MIXTURE fraction=7 context=128' --stage 'MIXTURE fraction=3'", "--objective masked"),
}


def command(arm: str, arguments: argparse.Namespace) -> list[str]:
    texts, flags = ARMS[arm]
    words = (
        f"{texts} {flags}".replace("GENERAL", arguments.general)
        .replace("MIXTURE", arguments.mixture)
        .replace("OWN", arguments.own)
        .replace("PAIRS", str(arguments.pairs_a_step))
    )
    usual = (
        f"--preset modern-micro --model.context 512 --model.dropout 0.1 --optim.optimizer muon "
        f"--optim.lr 2e-3 --optim.weight-decay 0.1 --optim.schedule wsd --optim.warmup 0.03 --loop.batch-size {TOKENS_A_STEP // 512} "
        f"--loop.steps {arguments.steps} --loop.save-every 1000000 --loop.evaluate-every 1000000 {arguments.flags}"
    )
    first = shlex.split(usual)
    own = shlex.split(words)
    # a flag of the arm replaces the usual one
    kept = []
    for name, value in zip(first[::2], first[1::2], strict=True):
        if name not in own:
            kept += [name, value]
    return [
        "pretrain",
        *own,
        *kept,
        *(["--runtime.compile"] if arguments.compile else []),
        "--out",
        f"{arguments.out}/{arm}",
    ]


def run(arm: str, arguments: argparse.Namespace) -> dict:
    started = time.time()
    words = command(arm, arguments)
    with open(f"{arguments.out}/{arm}.log", "w") as log:
        code = subprocess.run(
            [sys.executable, "-m", "headstart", *words, "-q"], stdout=log, stderr=log, check=False
        ).returncode
    line = {
        "arm": arm,
        "command": shlex.join(["headstart", *words]),
        "seconds": round(time.time() - started, 1),
        "code": code,
    }
    result = Path(arguments.out) / arm / "result.json"
    if result.is_file():
        outcome = json.loads(result.read_text())
        line |= {
            "tokens_seen": outcome["tokens_seen"],
            "held_out_loss": outcome["held_out"]["loss"],
            "pairs": outcome.get("pairs"),
        }
    print(json.dumps({k: v for k, v in line.items() if k != "command"}), flush=True)
    return line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("general", "own", "mixture", "out"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--steps", type=int, default=1200)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--pairs-a-step", type=int, default=TOKENS_A_STEP // 104, help="rows that hold as many tokens")
    parser.add_argument("--arms", default=",".join(ARMS))
    parser.add_argument("--flags", default="")
    parser.add_argument("--compile", action="store_true")
    arguments = parser.parse_args()
    Path(arguments.out).mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(arguments.jobs) as pool:
        lines = list(pool.map(lambda arm: run(arm, arguments), arguments.arms.split(",")))
    (Path(arguments.out) / "pretraining.json").write_text(json.dumps(lines, indent=1))


if __name__ == "__main__":
    main()

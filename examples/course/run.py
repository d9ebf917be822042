"""The course experiment in one command: pretrain, compare over seeds, generate, report.

    python examples/course/run.py DATA --out runs/course

DATA is a folder with the files that `minidata.py` describes. If the script is started again, it continues where it
stopped. It prints every `headstart` command before running it.
"""

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as the `headstart` command itself does

from minidata import MODEL, cut

from headstart.cli.main import run
from headstart.files import write_json
from headstart.predict.generate import Sampling, run_generate
from headstart.report.page import write_report

CONFIG = Path(__file__).with_name("course.toml")
PROMPT = "Bonjour les"
ARMS = "majority,naive_bayes,linear,scratch,pretrained"
TINY_PRETRAIN = (
    "--model.width 16 --model.depth 1 --model.feedforward 16 --model.context 64 --corpus.held-out 0.1 "
    "--loop.batch-size 8 --loop.steps 20 --loop.evaluate-every 10 --optim.lr 0.01 --runtime.threads 1"
)
TINY_COMPARE = "--loop.epochs 2 --optim.lr 0.01 --runtime.threads 1"


def main(arguments: Sequence[str]) -> None:
    """Run the experiment with the options of the command line."""
    options = parse(arguments)
    data, out = options.data, options.out
    if options.tiny:
        data = cut(options.data, out / "data") if not (out / "data").is_dir() else out / "data"
    books = data / "cls-books"
    texts = [data / "french-novels" / "paragraphs.parquet", data / "french-reviews" / "reviews.parquet"]
    extra = {
        "pretrain": shlex.split((TINY_PRETRAIN + " " if options.tiny else "") + options.pretrain),
        "compare": shlex.split((TINY_COMPARE + " " if options.tiny else "") + options.compare),
    }
    seeds = options.seeds or (2 if options.tiny else 5)
    settings = ["--preset", "classic", "--config", CONFIG]

    start_or_resume(
        *("pretrain", *texts, "--tokenizer", books / MODEL, *settings, *extra["pretrain"]), out=out / "language-model"
    )
    start_or_resume(
        *("compare", books / "train.review.spm", "--valid", books / "valid.review.spm"),
        *("--test", books / "test.review.spm", "--from", out / "language-model"),
        *("--seeds", seeds, "--arms", ARMS, *settings, *extra["compare"]),
        out=out / "comparison",
    )
    headstart("generate", out / "language-model", PROMPT, "--tokens", 50)
    written = run_generate(out / "language-model", PROMPT, sampling=Sampling(tokens=50))
    write_json(out / "comparison" / "samples.json", [{"prompt": PROMPT, "text": text} for text in written])
    print(f"\nreport: {write_report(out / 'comparison')}")


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="run.py", description="The course experiment in one command.")
    parser.add_argument("data", type=Path, help="the data folder")
    parser.add_argument("--out", type=Path, default=Path("runs/course"), help="the folder to write")
    parser.add_argument("--seeds", type=int, help="runs of each network: 5, or 2 with --tiny")
    parser.add_argument("--pretrain", default="", metavar="OPTIONS", help="more options for headstart pretrain")
    parser.add_argument("--compare", default="", metavar="OPTIONS", help="more options for headstart compare")
    parser.add_argument("--tiny", action="store_true", help="few documents and a tiny network: seconds on one core")
    options = parser.parse_args(arguments)
    wanted = options.data / "cls-books" / MODEL
    if not wanted.is_file():
        parser.error(f"{options.data} is not the course's data folder: {wanted} is not there")
    return options


def start_or_resume(command: str, *words: object, out: Path) -> None:
    """Run a command that writes a run folder, or resume the existing run."""
    if (out / "run.json").is_file():
        headstart(command, "--resume", "--out", out)
    else:
        headstart(command, *words, "--out", out)


def headstart(*words: object) -> None:
    """Run one headstart command; a failure ends the experiment with the exit code of the command."""
    typed = [str(word) for word in words]
    print(f"\n$ {shlex.join(['headstart', *typed])}", flush=True)
    sys.argv = ["headstart", *typed]  # what run folders record as their command
    if code := run(typed):
        sys.exit(code)


if __name__ == "__main__":
    main(sys.argv[1:])

"""The linear probe by which `headstart auto` chooses a starter, and the linear model, on the samples of recipes.py.

python benchmarks/starter_probes.py --data DATA --backbone en=starter:en --backbone en-large=starter:en-large --out probes.json

For each dataset and number of labels, the log-loss of the probe is cross-validated within the training rows of the sample.
The accuracy of the linear model is that on the rows that recipes.py predicts. No test file is read.
"""

import argparse
import json
from pathlib import Path

import numpy as np
from suite import ENGLISH

from headstart.config.schema import LabelledConfig, RuntimeConfig
from headstart.linear.classifier import fit_linear
from headstart.progress import SilentProgress
from headstart.recipes.auto.linear_probe import probe_starters
from headstart.recipes.auto.table import Table, load_table
from headstart.runtime import setup_runtime
from recipes import EQUIVALENT, SIZES, draw, load


def sample_table(folder: Path, texts: list[str], gold: np.ndarray, rows: np.ndarray) -> Table:
    """Return the rows of a sample as the table of a run."""
    path = folder / "train.jsonl"
    lines = (json.dumps({"text": texts[row], "label": f"label {gold[row]:03d}"}) + "\n" for row in rows)
    path.write_text("".join(lines), encoding="utf-8")
    return load_table(str(path), (), str(path), LabelledConfig(), 0, SilentProgress())


def main() -> None:
    import tempfile

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--backbone", action="append", default=[], metavar="NAME=FOLDER", required=True)
    parser.add_argument("--sets", nargs="+", default=list(ENGLISH))
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    backbones = dict(pair.split("=", 1) for pair in options.backbone)
    named = {folder: name for name, folder in backbones.items()}
    runtime, cells = setup_runtime(RuntimeConfig()), []
    for name in options.sets:
        texts, gold = load(options.data, name)
        for size in SIZES.get(name, ("100", "1000")):
            rows, evaluated = draw(gold, size, 0)
            with tempfile.TemporaryDirectory() as folder:
                table = sample_table(Path(folder), texts, gold, rows)
            probes = probe_starters(list(named), table, LabelledConfig(), runtime, 0, lambda: None)
            fit = fit_linear([texts[row] for row in rows], gold[rows], int(gold.max()) + 1, seed=0)
            correct = fit.classifier.logits([texts[row] for row in evaluated]).argmax(axis=1) == gold[evaluated]
            cell = {
                "set": name,
                "size": EQUIVALENT.get(size, size),
                "linear": float(correct.mean()),
                "log_loss": {named[probe.name]: round(probe.log_loss or 0.0, 4) for probe in probes.starters},
            }
            cells.append(cell)
            options.out.write_text(json.dumps(cells, indent=1) + "\n")
            print(cell, flush=True)


if __name__ == "__main__":
    main()

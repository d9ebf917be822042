"""What the starters are worth: tables for docs/results/starters.md, kept in docs/results/starters.json.

python benchmarks/starters.py demo   --work runs/starters                 200 and 1,000 labels of the demo's data, 5 seeds
python benchmarks/starters.py books  --work runs/starters --data DATA     cls-books from starter:fr, 4 epochs, 2 seeds
python benchmarks/starters.py ways   --work runs/starters --way runs/small --way runs/taught --way runs/int8
python benchmarks/starters.py folds  --work runs/starters --data DATA --way runs/small --way runs/taught    which French one is kept

Each part is a comparison folder under --work, goes on where it was stopped, and prints its table. `--device cuda --jobs 4` where there is a GPU.
"""

import argparse
import json
import random
import statistics
import subprocess
from pathlib import Path

from scipy.stats import t as student

from headstart.config.merge import merge_config
from headstart.config.presets import preset_values
from headstart.config.schema import FinetuneConfig
from headstart.files import read_json
from headstart.interop.model_source import load_model_source
from headstart.progress import Progress, SilentProgress
from headstart.recipes import demo
from headstart.recipes.compare.run import CompareRequest, run_compare
from headstart.recipes.executors import Executor
from headstart.report.load import load_comparison
from headstart.report.statistics import paired_difference, summaries
from headstart.store.locate import starter_folder, starters

FOLDS, FOLD = 5, (340, 50)
"""Of cls-books without its test part: how many, and rows of each to learn and to choose from."""
KEPT = Path(__file__).resolve().parent.parent / "docs" / "results" / "starters.json"


class Aloud(SilentProgress):
    """Says what is said."""

    def say(self, line: str) -> None:
        print(line, flush=True)


def demo_data(work: Path) -> dict[str, str]:
    folder = work / "data"
    if not (folder / "train.jsonl").is_file():
        folder.mkdir(parents=True, exist_ok=True)
        demo.write_splits(demo.split_reviews(), folder)
    return {name: str(folder / f"{name}.jsonl") for name in ("train", "valid", "test")}


def compare(
    files: dict[str, str], out: Path, arguments: argparse.Namespace, progress: Progress, settings: dict, **others
) -> dict:
    """Run a comparison, or go on with it; returns its figures."""
    device = {"runtime": {"device": arguments.device}} if arguments.device else {}
    config = merge_config(FinetuneConfig, preset_values("modern", "finetune"), settings, device)
    resume = (out / "run.json").is_file()
    request = CompareRequest(
        **files, out=out, executor=Executor(jobs=arguments.jobs), quote_texts=False, resume=resume, **others
    )
    run_compare(request, config, progress)
    return figures(out)


def figures(folder: Path) -> dict:
    comparison = load_comparison(folder)
    arms, differences = [], []
    for budget in comparison.budgets:
        for one in summaries(comparison, budget):
            accuracy = one.accuracy
            arms.append(
                {"arm": one.arm, "labels": budget, "mean": accuracy.mean, "low": accuracy.low, "high": accuracy.high}
                | {"seeds": len(one.runs), "seconds": round(one.seconds, 1), "worst": min(one.accuracies)}
            )
        networks = [arm for arm in comparison.arms if arm.startswith("pretrained")]
        for arm in networks:
            for other in (
                name for name in comparison.arms if name != arm and name not in networks[: networks.index(arm)]
            ):
                result = paired_difference(comparison, arm, other, budget)
                if result:
                    differences.append(
                        {
                            "arm": arm,
                            "other": other,
                            "labels": budget,
                            "mean": result.mean,
                            "low": result.low,
                            "high": result.high,
                        }
                    )
    environment = read_json(folder / "environment.json")
    kept = {key: environment[key] for key in ("gpu", "threads", "torch", "python") if environment.get(key)}
    data = comparison.data
    rows = {"train": data.train.rows, "valid": data.valid.rows, "test": data.test.rows}
    return {"rows": rows, "arms": arms, "differences": differences, "environment": kept}


def fold_files(data: Path, folder: Path, fold: int) -> dict[str, str]:
    """A fifth of what cls-books has to learn and to choose from (a text once), to learn from; the others are what is judged by."""
    rows = {}
    for part in ("train", "valid"):
        for line in (data / "cls-books" / f"{part}.jsonl").read_text(encoding="utf-8").splitlines():
            rows.setdefault(json.loads(line)["text"], line)
    every = list(rows.values())
    random.Random(7).shuffle(every)
    first, size = fold * sum(FOLD), sum(FOLD)
    learnt, judged = every[first : first + size], every[:first] + every[first + size :]
    parts = {"train": learnt[: FOLD[0]], "valid": learnt[FOLD[0] :], "test": judged}
    folder.mkdir(parents=True, exist_ok=True)
    for name, lines in parts.items():
        (folder / f"{name}.jsonl").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return {name: str(folder / f"{name}.jsonl") for name in parts}


def interval(values: list[float]) -> dict[str, float]:
    """The mean over folds, and how sure it is; folds share most of the rows they are judged by, so it is somewhat too sure."""
    mean = statistics.mean(values)
    reach = float(student.ppf(0.975, len(values) - 1)) * statistics.stdev(values) / len(values) ** 0.5
    return {"mean": mean, "low": mean - reach, "high": mean + reach}


def pooled(folders: list[Path]) -> dict:
    """The figures of several folds as one."""
    every = [figures(folder) for folder in folders]
    names = sorted((one["arm"] for one in every[0]["arms"]), key=lambda arm: not arm.startswith("pretrained"))
    means = {arm: [one["mean"] for result in every for one in result["arms"] if one["arm"] == arm] for arm in names}
    arms = []
    for arm in names:
        runs = [one for result in every for one in result["arms"] if one["arm"] == arm]
        seconds = round(statistics.mean(one["seconds"] for one in runs), 1)
        message = {"arm": arm, "labels": FOLD[0], "worst": min(means[arm]), "seeds": sum(one["seeds"] for one in runs)}
        arms.append(message | interval(means[arm]) | {"seconds": seconds})
    differences = [
        {"arm": arm, "other": other, "labels": FOLD[0]}
        | interval([a - b for a, b in zip(means[arm], means[other], strict=True)])
        for position, arm in enumerate(names)
        for other in names[position + 1 :]
    ]
    return every[0] | {"arms": arms, "differences": differences, "folds": len(folders)}


def about() -> list[dict]:
    """The starters themselves."""
    result = []
    for name in starters():
        folder = starter_folder(f"starter:{name}")
        facts = read_json(folder / "bundle.json")
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        message = facts["about"]
        bundle = load_model_source(f"starter:{name}")
        result.append(
            {
                "name": name,
                "bytes": size,
                "parameters": sum(parameter.numel() for parameter in bundle.model.parameters()),
                "steps": message["steps"],
                "tokens_seen": message["tokens_seen"],
                "held_out": message["held_out"],
                "stages": [stage["held_out"] for stage in message.get("stages", [])],
                "command": message["starter"]["command"],
                "environment": message["starter"].get("environment", {}),
            }
        )
    return result


def table(result: dict) -> str:
    lines = [f"{'arm':24} {'labels':>7} {'accuracy':>9}  95 % interval   seeds  seconds a run"]
    for one in result["arms"]:
        lines.append(
            f"{one['arm']:24} {one['labels']!s:>7} {100 * one['mean']:8.1f}%  {100 * one['low']:.1f} to {100 * one['high']:.1f}"
            f"    {one['seeds']}      {one['seconds']:.0f}"
        )
    for one in result["differences"]:
        lines.append(
            f"{one['arm']} - {one['other']}, {one['labels']} labels: {100 * one['mean']:+.1f} points "
            f"({100 * one['low']:+.1f} to {100 * one['high']:+.1f})"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["demo", "books", "ways", "folds", "about"])
    parser.add_argument("--work", type=Path, default=Path("runs/starters"))
    parser.add_argument("--data", type=Path, help="the folder with cls-books/ in it")
    parser.add_argument(
        "--way", action="append", default=[], metavar="FOLDER", help="a pretrained folder; its arm has its name"
    )
    parser.add_argument("--device")
    parser.add_argument("--jobs", type=int, default=1)
    arguments = parser.parse_args()
    arms, few = ("linear", "scratch", "pretrained"), demo.FINETUNE_SETTINGS
    if arguments.part == "about":
        result: dict | list = about()
    elif arguments.part == "demo":
        files, labels = demo_data(arguments.work), (200, 1000)
        result = compare(
            files,
            arguments.work / "demo",
            arguments,
            Aloud(),
            few,
            backbones=("starter:en-reviews",),
            label_budgets=labels,
            arms=arms,
            seeds=5,
        )
    elif arguments.part == "books":
        files = {name: str(arguments.data / "cls-books" / f"{name}.jsonl") for name in ("train", "valid", "test")}
        quick = {"loop": {"epochs": 4}}  # chosen on validation
        arms = ("linear", "pretrained")
        result = compare(
            files, arguments.work / "books", arguments, Aloud(), quick, backbones=("starter:fr",), arms=arms, seeds=2
        )
    elif arguments.part == "folds":
        folders = [arguments.work / "folds" / str(fold) for fold in range(FOLDS)]
        for fold, folder in enumerate(folders):
            files = fold_files(arguments.data, folder / "rows", fold)
            ways = {"backbones": tuple(arguments.way), "arms": ("linear", "pretrained"), "seeds": 3}
            compare(files, folder / "compared", arguments, Aloud(), {}, **ways)
        result = pooled([folder / "compared" for folder in folders])
    else:
        files, arms = demo_data(arguments.work), ("linear", "pretrained")
        ways = {"backbones": tuple(arguments.way), "label_budgets": (200,), "arms": arms, "seeds": 5}
        result = compare(files, arguments.work / "ways", arguments, Aloud(), few, **ways)
    kept = json.loads(KEPT.read_text(encoding="utf-8")) if KEPT.is_file() else {}
    if isinstance(result, dict):
        result["commit"] = subprocess.check_output(["git", "rev-parse", "--short", "HEAD"], text=True).strip()
    kept[arguments.part] = result
    kept["about"] = about()
    KEPT.write_text(json.dumps(kept, indent=1, ensure_ascii=False, sort_keys=True) + "\n", encoding="utf-8")
    if isinstance(result, dict):
        print(table(result))


if __name__ == "__main__":
    main()

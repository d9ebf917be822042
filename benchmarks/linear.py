"""The linear classifier, compared with common scikit-learn pipelines and with its own parts, on training rows only.

    HEADSTART_DATA=DATA python benchmarks/linear.py --out docs/results/linear.json

Of each dataset, stratified samples of 100 and 1,000 training rows (of clinc150 5, 8 and 10 rows per label) are fitted and up to
1,000 other training rows are predicted; no test file is read. The script prints the mean accuracy over the samples of each
dataset and size, and records every accuracy, log-loss and time in the file, from which an interrupted measurement continues.
"""

import argparse
import gzip
import json
import os
import platform
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

DATA = Path(os.environ.get("HEADSTART_DATA", "data"))
SUITE = ("agnews", "clinc150", "cls-de-books", "complaints", "cr", "trec6", "tweet-emotion", "zh-shop")
SETS = (*SUITE, "cls-books", "imdb")
EVALUATED, UNLABELLED, VALIDATION = 1_000, 3_000, 200
REGULARIZATION = (1, 10, 100)

Rows = tuple[list[str], np.ndarray]
Classifier = Callable[[Sequence[str]], np.ndarray]


def load(name: str) -> tuple[list[str], np.ndarray]:
    """Return the texts of a set's training rows and their labels, without duplicates."""
    if name == "imdb":
        import pyarrow.parquet as pq

        rows = pq.read_table(DATA / "imdb" / "train.parquet").to_pylist()
    elif name == "cls-books":
        rows = [json.loads(line) for line in (DATA / name / "train.jsonl").read_text("utf-8").splitlines()]
    else:
        with gzip.open(DATA / "suite" / name / "train.jsonl.gz", "rt", encoding="utf-8") as lines:
            rows = [json.loads(line) for line in lines]
    labels = {row["text"]: row["label"] for row in reversed(rows)}
    names = sorted(set(labels.values()))
    return list(labels), np.array([names.index(label) for label in labels.values()])


def draw(gold: np.ndarray, size: str, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return training rows, rows to predict, and the rest; `size` is a number of rows or, as in 5x, of rows per label."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(gold))
    counts = np.bincount(gold)
    if size.endswith("x"):
        wanted = np.full(len(counts), int(size[:-1]))
    else:
        exact = counts / len(gold) * int(size)
        wanted = np.maximum(1, np.floor(exact)).astype(int)
        for label in np.argsort(wanted - exact, kind="stable")[: max(0, int(size) - wanted.sum())]:
            wanted[label] += 1
    train = rng.permutation(np.concatenate([order[gold[order] == label][:n] for label, n in enumerate(wanted)]))
    others = order[~np.isin(order, train)]
    evaluated = min(EVALUATED, len(others) * 2 // 3)
    return train, others[:evaluated], others[evaluated:]


def old_arm(train: Rows, rest: Rows) -> Classifier:
    """Fit the arm tfidf of earlier versions: words and pairs of words, C chosen on 200 further labelled rows."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression

    vectorizer = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
    features = vectorizer.fit_transform(train[0])
    valid_features, valid_gold = vectorizer.transform(rest[0][:VALIDATION]), rest[1][:VALIDATION]
    fits = [LogisticRegression(C=strength, max_iter=1000).fit(features, train[1]) for strength in REGULARIZATION]
    best = max(fits, key=lambda fit: fit.score(valid_features, valid_gold))
    return lambda texts: _full(best.classes_, best.predict_log_proba(vectorizer.transform(texts)))


def union_of(make: Callable[[], Any]) -> Callable[[Rows, Rows], Classifier]:
    """Return a common pipeline: TF-IDF of 1 and 2 words and of 2 to 5 characters within words."""

    def fit(train: Rows, rest: Rows) -> Classifier:
        from sklearn.feature_extraction.text import TfidfVectorizer
        from sklearn.pipeline import FeatureUnion

        del rest
        words = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
        characters = TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 5), sublinear_tf=True)
        union = FeatureUnion([("words", words), ("characters", characters)])
        model = make().fit(union.fit_transform(train[0]), train[1])
        score = getattr(model, "predict_log_proba", model.decision_function)

        def classify(texts: Sequence[str]) -> np.ndarray:
            scores = score(union.transform(texts))
            return _full(model.classes_, np.stack([-scores, scores], 1) if scores.ndim == 1 else scores)

        return classify

    return fit


def _full(classes: np.ndarray, scores: np.ndarray) -> np.ndarray:
    full = np.full((len(scores), classes.max() + 1), -1e6)
    full[:, classes] = scores
    return full


def logistic() -> Any:
    """A logistic regression with C 10."""
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression(C=10, max_iter=1000)


def support_vectors() -> Any:
    """A linear support vector machine with C 1."""
    from sklearn.svm import LinearSVC

    return LinearSVC()


def ours(*, unlabelled: bool = False, **changed: Any) -> Callable[[Rows, Rows], Classifier]:
    """The linear classifier, with some constants of its modules changed (`module_NAME`)."""

    def fit(train: Rows, rest: Rows) -> Classifier:
        from headstart.linear.classifier import fit_linear

        with patched(changed):
            further = rest[0][:UNLABELLED] if unlabelled else ()
            return fit_linear(*train, int(train[1].max()) + 1, unlabelled=further).classifier.logits

    return fit


@contextmanager
def patched(changed: dict[str, Any]) -> Iterator[None]:
    """Change constants of the modules of the linear classifier temporarily."""
    import importlib

    constants = [
        (importlib.import_module(f"headstart.linear.{name.split('_')[0]}"), name.split("_", 1)[1]) for name in changed
    ]
    before = [getattr(module, name) for module, name in constants]
    for (module, name), value in zip(constants, changed.values(), strict=True):
        setattr(module, name, value)
    try:
        yield
    finally:
        for (module, name), value in zip(constants, before, strict=True):
            setattr(module, name, value)


CANDIDATES: dict[str, Callable[[Rows, Rows], Classifier]] = {
    "old arm": old_arm,
    "union, LR": union_of(logistic),
    "union, SVM": union_of(support_vectors),
    "linear": ours(),
    "linear, unlabelled": ours(unlabelled=True),
    "- naive Bayes": ours(solver_BAYES=(0.0,)),
    "- balance": ours(solver_CLASS_WEIGHT=None),
    "- characters": ours(features_LENGTHS={"words": (1, 2)}),
    "- words": ours(features_LENGTHS={"characters": (2, 5)}),
    "C 1 alone": ours(classifier_STRENGTHS=(1.0,)),
}


def measure(kept: dict[str, Any], path: Path, candidates: Sequence[str], sets: Sequence[str], draws: int) -> None:
    """Fit and predict the candidates that the file does not contain yet."""
    from headstart.metrics import log_loss

    for name in sets:
        texts, gold = load(name)
        for size in ("5x", "8x", "10x") if name == "clinc150" else ("100", "1000"):
            for seed in range(draws if size != "1000" else max(1, (draws + 1) // 2)):
                train, evaluated, rest = draw(gold, size, seed)
                parts = [([texts[row] for row in rows], gold[rows]) for rows in (train, evaluated, rest)]
                for candidate in candidates:
                    cell = kept["runs"].setdefault(candidate, {}).setdefault(f"{name} {size}", {})
                    if str(seed) in cell or ("unlabelled" in candidate and not parts[2][0]):
                        continue
                    start = time.process_time()
                    classify = CANDIDATES[candidate](parts[0], parts[2])
                    seconds = time.process_time() - start
                    logits = classify(parts[1][0])
                    cell[str(seed)] = {
                        "accuracy": float((logits.argmax(axis=1) == parts[1][1]).mean()),
                        "log_loss": log_loss(logits, parts[1][1]),
                        "cpu_seconds": seconds,
                    }
                path.write_text(json.dumps(kept, indent=1) + "\n")


def table(kept: dict[str, Any]) -> str:
    """Return mean accuracies in percent: a row per set and size, a column per candidate."""
    runs = kept["runs"]
    cells = list(dict.fromkeys(cell for runs_of in runs.values() for cell in runs_of))
    lines = ["| set | draws | " + " | ".join(runs) + " |", "|---|---|" + "---|" * len(runs)]

    def mean_of(candidate: str, cell: str, what: str) -> float | None:
        values = [run[what] for run in runs[candidate].get(cell, {}).values()]
        return mean(values) if values else None

    def line(name: str, draws: str, values: list[float | None], digits: int = 1) -> str:
        shown = ("–" if value is None else f"{value:.{digits}f}" for value in values)
        return f"| {name} | {draws} | " + " | ".join(shown) + " |"

    for cell in cells:
        accuracies = [mean_of(candidate, cell, "accuracy") for candidate in runs]
        draws = max(len(runs_of.get(cell, {})) for runs_of in runs.values())
        lines.append(line(cell, str(draws), [None if value is None else 100 * value for value in accuracies]))
    for title, chosen in (("few", ("100", "5x")), ("many", ("1000", "10x"))):
        group = [cell for cell in cells if cell.split()[1] in chosen]
        everywhere = [
            cell for cell in group if all(mean_of(candidate, cell, "accuracy") is not None for candidate in runs)
        ]
        for what, digits in (("accuracy", 1), ("log_loss", 3), ("cpu_seconds", 2)):
            means = [mean(mean_of(candidate, cell, what) or 0.0 for cell in everywhere) for candidate in runs]
            factor = 100 if what == "accuracy" else 1
            lines.append(
                line(f"mean {what} of {len(everywhere)} sets, {title}", "", [factor * value for value in means], digits)
            )
    return "\n".join(lines)


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("linear.json"))
    parser.add_argument("--only", action="append", choices=list(CANDIDATES), help="a candidate; all by default")
    parser.add_argument("--set", action="append", choices=SETS, dest="sets", help="a set; all by default")
    parser.add_argument(
        "--draws", type=int, default=5, help="draws of 100 rows, and of 5, 8 and 10 per label; half of 1,000"
    )
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    about = {
        "command": "python benchmarks/linear.py",
        "python": platform.python_version(),
        "machine": platform.machine(),
    }
    kept = json.loads(arguments.out.read_text()) if arguments.out.is_file() else {"about": about, "runs": {}}
    measure(kept, arguments.out, arguments.only or list(CANDIDATES), arguments.sets or SETS, arguments.draws)
    print(table(kept))


if __name__ == "__main__":
    main()

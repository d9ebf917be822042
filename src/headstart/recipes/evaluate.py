"""Measuring a finished classifier on a labelled file."""

from pathlib import Path

from headstart.config import LabelledConfig, RuntimeConfig
from headstart.data.labelled import LabelSet, check_split, read_labelled
from headstart.predict.predictor import Predictor
from headstart.progress import Progress, Quiet
from headstart.train.evaluate import Evaluation, evaluate_scores, score_texts


def run_evaluate(
    folder: Path,
    file: str,
    config: LabelledConfig | None = None,
    runtime: RuntimeConfig | None = None,
    progress: Progress | None = None,
) -> Evaluation:
    """Accuracy, macro-F1, per class and confusion of the classifier in `folder` on the rows of `file`."""
    progress = progress or Quiet()
    texts = read_labelled(file, config or LabelledConfig())
    predictor = Predictor.load(folder, runtime)
    labels = LabelSet(predictor.labels)
    check_split(labels, texts, f"the training data of {folder}")
    gold = [labels.index(label) for label in texts.labels]
    rows = predictor.rows(texts.texts, gold)
    with progress.task(f"evaluating {file}", len(texts), "texts") as bar:
        scores = score_texts(predictor.bundle.model, rows, predictor.runtime, lambda: None, bar.advance)
    return evaluate_scores(scores, rows.labels, predictor.labels, 0 if rows.windows else rows.long)

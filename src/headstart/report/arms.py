"""What the arms of a comparison are, whatever their names: linear ones, networks, and the two that the question is about.

An arm is a kind, or a kind and the name of the folder it starts from: `scratch`, `pretrained`, `pretrained:books`.
"""

from headstart.report.collect import Comparison
from headstart.report.intervals import mean
from headstart.store.cells import kind_of

NAMES = {
    "majority": "the majority class",
    "naive_bayes": "naive Bayes",
    "tfidf": "TF-IDF + logistic regression",
    "nbsvm": "NB-SVM",
    "scratch": "the from-scratch network",
    "pretrained": "the pretrained network",
    "frozen": "the frozen pretrained network",
}
LINEAR = ("majority", "tfidf", "naive_bayes", "nbsvm")
"""The arms that are no network."""
SCRATCH, PRETRAINED = "scratch", "pretrained"


def is_network(arm: str) -> bool:
    """Whether an arm is anything but one of the linear ones.

    >>> [is_network(arm) for arm in ("nbsvm", "scratch", "pretrained:books")]
    [False, True, True]
    """
    return kind_of(arm) not in LINEAR


def name_of(arm: str) -> str:
    """An arm in words.

    >>> name_of("tfidf"), name_of("distilled"), name_of("pretrained:books")
    ('TF-IDF + logistic regression', 'distilled', 'the pretrained network books')
    """
    first, _, folder = arm.partition(":")
    return f"{NAMES.get(first, first)} {folder}".rstrip()


def networks(comparison: Comparison) -> list[str]:
    """The arms that are networks, in the order of arms."""
    return [arm for arm in comparison.arms if is_network(arm)]


def pair(comparison: Comparison) -> tuple[str, str]:
    """The head start and what it is measured against: `pretrained` and `scratch`.

    Of several pretrained folders, the one that validation likes best: test must not choose whom it judges.
    """
    if comparison.of(PRETRAINED, comparison.main):
        return PRETRAINED, SCRATCH
    others = [arm for arm in comparison.arms if kind_of(arm) == PRETRAINED]
    return best_on_validation(comparison, others) or PRETRAINED, SCRATCH


def best_linear(comparison: Comparison) -> str | None:
    """The linear arm that validation likes best, the majority class aside; None where there is none."""
    others = [arm for arm in comparison.arms if not is_network(arm) and arm != "majority"]
    return best_on_validation(comparison, others)


def best_on_validation(comparison: Comparison, arms: list[str]) -> str | None:
    """Of some arms the best on validation with the most labels; of equals the first, None where none has a run."""
    cells = {arm: comparison.of(arm, comparison.main) for arm in arms}
    found = {arm: mean([cell.valid.accuracy for cell in runs]) for arm, runs in cells.items() if runs}
    return max(found, key=lambda arm: found[arm]) if found else None

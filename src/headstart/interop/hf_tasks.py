"""The task of a classifier in the config.json of transformers: `problem_type`, `id2label`, and what only Headstart knows.

Thresholds, the bounds of a rating and pairs of texts are in `headstart`, a key that transformers keeps and ignores.
"""

from collections.abc import Mapping
from typing import Any

from headstart.tasks import UNBOUNDED, MultiLabel, Regression, SingleLabel, Task, task_from

TASK_KEY = "headstart"
RATING_NAME = "rating"
PROBLEM_TYPES = {
    "classes": "single_label_classification",
    "labels": "multi_label_classification",
    "rating": "regression",
}
"""The problem_type of each task."""


def task_settings(task: Task) -> dict[str, Any]:
    """Return the settings of config.json that describe a task."""
    names = task.labels or (RATING_NAME,)
    settings: dict[str, Any] = {
        "id2label": {str(index): label for index, label in enumerate(names)},
        "label2id": {label: index for index, label in enumerate(names)},
        "problem_type": PROBLEM_TYPES[task.kind],
    }
    if task.kind != "classes" or task.pair:
        settings[TASK_KEY] = task.facts()
    return settings


def read_task(facts: Mapping[str, Any]) -> Task:
    """Return the task that a config.json describes; a ValueError says what is wrong with it.

    Without `headstart`, a label of several is given from one half on, and a rating has no bounds. Without `problem_type`,
    one output is a rating and several are classes, as in transformers.
    """
    id2label = facts.get("id2label") or {"0": "LABEL_0", "1": "LABEL_1"}  # transformers omits this default
    try:
        labels = tuple(str(id2label[str(index)]) for index in range(len(id2label)))
    except (KeyError, TypeError):
        raise ValueError("id2label does not number its labels from 0") from None
    problem_type = facts.get("problem_type") or PROBLEM_TYPES["rating" if len(labels) == 1 else "classes"]
    kinds = {name: kind for kind, name in PROBLEM_TYPES.items()}
    if problem_type not in kinds:
        raise ValueError(f"problem_type is {problem_type!r}, expected one of {', '.join(kinds)}")
    kind = kinds[problem_type]
    if kind == "rating" and len(labels) != 1:
        raise ValueError(f"problem_type is {problem_type} with {len(labels)} outputs, and a rating has one output")
    known = facts.get(TASK_KEY)
    if known is None:
        return _plain_task(kind, labels)
    try:
        task = task_from(known, () if kind == "rating" else labels)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{TASK_KEY} is incomplete: {error}") from None
    if task.kind != kind:
        raise ValueError(f"problem_type is {problem_type}, and {TASK_KEY} describes {PROBLEM_TYPES[task.kind]}")
    return task


def _plain_task(kind: str, labels: tuple[str, ...]) -> Task:
    if kind == "rating":
        return Regression((), lowest=-UNBOUNDED, highest=UNBOUNDED)
    return MultiLabel(labels) if kind == "labels" else SingleLabel(labels)

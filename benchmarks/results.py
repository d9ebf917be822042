"""Generates RESULTS.md and the pages docs/results/*.md from the records under docs/results, so that no number is typed.

python benchmarks/results.py

A page is one module of benchmarks/result_pages, and a section one function of it that returns the lines of a heading, a
paragraph (what was measured, on what data, by which protocol), a table, what did not help, and the commands. To add
- a table: write the function and add its name to the tuple of its page in PAGES below;
- a page: add one line to PAGES, and one to the navigation in mkdocs.yml (a test compares the two);
- a headline: add a row to a function of benchmarks/result_pages/headline.py;
- a generated part of another page: add one line to PARTS, and `<!-- RESULTS:name -->` and `<!-- /RESULTS:name -->` there.
A function returns [] if its record does not exist. `result_pages/markdown.py` has what tables have in common.
"""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from result_pages import (
    auto,
    corpus,
    course,
    cpu,
    distributed,
    gpu,
    headline,
    intervals,
    linear,
    pretraining,
    reviews,
    robustness,
    serving,
    starters,
)
from result_pages.markdown import ROOT

Section = Callable[[], list[str]]
PAGES: dict[str, tuple[str, Sequence[Section]]] = {
    "auto": (
        "Accuracy of `headstart auto`",
        (auto.accuracy, auto.two_cores, auto.blend_weight, linear.candidates, auto.recipe),
    ),
    "reviews-french": ("French book reviews", (reviews.french_all_labels, reviews.french_label_curve)),
    "reviews-english": ("English film reviews", (reviews.english_label_curve,)),
    "starters": (
        "Starters",
        (starters.models, starters.general, starters.english, starters.measured, starters.languages),
    ),
    "course": ("The course experiment", (course.experiment, course.protocols)),
    "pretraining": ("Choice of pretraining and fine-tuning", (pretraining.objectives, pretraining.stability)),
    "intervals": (
        "Coverage of the intervals",
        (intervals.accuracy, intervals.epochs, intervals.calibration, intervals.trainings),
    ),
    "robustness": (
        "Robustness",
        (
            robustness.kills,
            robustness.files,
            robustness.mutations,
            robustness.endings,
            robustness.edges,
            robustness.hostile,
            robustness.peer,
            robustness.unreached,
        ),
    ),
    "gpu": ("Speed on a GPU", (gpu.pretraining_step, gpu.by_size, gpu.finetuning, gpu.seeds)),
    "cpu": (
        "Speed on a CPU",
        (
            cpu.training_step,
            cpu.training_in_bf16,
            cpu.accuracy_in_bf16,
            cpu.prediction,
            cpu.many_predictions,
            cpu.first_prediction,
            cpu.by_size,
        ),
    ),
    "serving": ("Speed of the server", (serving.throughput,)),
    "corpus": ("Speed of preparing a corpus", (corpus.prepare, corpus.encoders)),
    "distributed": ("Several processes", (distributed.processes,)),
}
"""The pages under docs/results: title and sections."""
HEADLINES: Sequence[Section] = (headline.accuracy, headline.reliability, headline.speed, headline.not_measured)
"""The sections of RESULTS.md."""
PARTS: dict[str, dict[str, Callable[[], str]]] = {
    "course.md": {"course": course.course_table, "course-lm": course.language_table},
    "performance.md": {"profile": cpu.profile_table, "gpu": gpu.kernel_table},
    "reports.md": {
        "books": lambda: reviews.verdict_list("cls-books"),
        "films": lambda: reviews.verdict_list("imdb"),
    },
    "scaling.md": {"corpus": corpus.scaling_table, "terabyte": corpus.terabyte},
}
"""Generated parts of other pages of docs: by page, the name of the marker and the function."""


def join_sections(introduction: str, sections: Sequence[Section]) -> str:
    """Return a page: its introduction and the sections that have been measured."""
    parts = ["\n".join(lines) for section in sections if (lines := section())]
    return "\n\n".join([introduction.rstrip("\n"), *parts]) + "\n"


def fill_section(text: str, marker: str, content: str) -> str:
    """Replace the text between two markers of a document."""
    before, _, rest = text.partition(f"<!-- RESULTS:{marker} -->\n")
    _, _, after = rest.partition(f"<!-- /RESULTS:{marker} -->")
    return f"{before}<!-- RESULTS:{marker} -->\n{content}\n<!-- /RESULTS:{marker} -->{after}"


def pages() -> dict[Path, str]:
    """Return every file with results and the text that it should have."""
    docs = ROOT / "docs"
    made = {ROOT / "RESULTS.md": join_sections(headline.INTRODUCTION, HEADLINES)}
    for name, (title, sections) in PAGES.items():
        made[docs / "results" / f"{name}.md"] = join_sections(f"# {title}\n", sections)
    for name, markers in PARTS.items():
        text = (docs / name).read_text(encoding="utf-8")
        for marker, content in markers.items():
            text = fill_section(text, marker, content())
        made[docs / name] = text
    return made


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
        sys.stdout.write(f"wrote {path.relative_to(ROOT)}\n")

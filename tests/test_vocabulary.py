"""Identifiers and prose use the field's words: retired words stay retired."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
RETIRED = {
    "anew",
    "apart",
    "asked",
    "bite",
    "bites",
    "brought",
    "carried",
    "debt",
    "doubles",
    "fewest",
    "flattery",
    "foreign",
    "found",
    "given",
    "glance",
    "halt",
    "inward",
    "knob",
    "knobs",
    "least",
    "merit",
    "oddities",
    "onlooker",
    "outward",
    "owed",
    "owes",
    "place",
    "places",
    "questions",
    "said",
    "settle",
    "settled",
    "shares",
    "slope",
    "slopes",
    "steady",
    "steep",
    "stock",
    "summands",
    "tape",
    "tell",
    "thought",
    "told",
    "visibility",
    "worth",
}
"""Words that an identifier does not contain, as one of its parts."""
RETIRED_IN_PROSE = ("bites", "slopes", "doubles", "near-doubles", "near-double", "summands", "flattery", "knobs")
"""Words that are never right, in comments, docstrings, messages and documentation either."""
RETIRED_PHRASES = (
    "almost stand",
    "also stand in",
    "begin again",
    "compare anew",
    "for company",
    "go on with:",
    "left without an answer",
    "not measurably",
    "some will miss",
    "that almost do",
    "what pretraining is worth",
    "what pretraining was worth",
    "with another method",
    "wrong question",
)
"""Phrases of earlier messages that were replaced by standard terms."""
CODE = sorted(path for folder in ("src", "tests", "benchmarks", "examples") for path in (ROOT / folder).rglob("*.py"))
LISTS = (Path(__file__), ROOT / "benchmarks" / "golden.py")
"""Files that name retired words: this one, and the mapping of old keys to new ones."""
PROSE = sorted([*CODE, *(ROOT / "docs").rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"])


def identifiers(source: str) -> set[str]:
    """Return every name that the source defines: functions, classes, parameters, variables, attributes and aliases."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.arg):
            names.add(node.arg)
        elif isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Store):
            names.add(node.id if isinstance(node, ast.Name) else node.attr)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names.update(alias.asname for alias in node.names if alias.asname)
    return names


def words(name: str) -> set[str]:
    """Split an identifier into its lower-case words.

    >>> sorted(words("_maxBites_perStep"))
    ['bites', 'max', 'per', 'step']
    """
    name = re.sub(r"in(to)?_place", "", name)  # a term of torch
    return {part.lower() for part in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)}


def retired_identifiers(source: str) -> list[str]:
    """Return the identifiers of the source that contain a retired word; names of tests are sentences and may."""
    return sorted(name for name in identifiers(source) if not name.startswith("test_") and words(name) & RETIRED)


def retired_prose(text: str) -> list[str]:
    """Return the retired words in a text."""
    pattern = "|".join(re.escape(word) for word in sorted(RETIRED_IN_PROSE, key=len, reverse=True))
    return sorted(set(re.findall(rf"(?<![\w-])(?:{pattern})(?![\w-])", text.lower().replace("_", " "))))


def test_every_folder_was_read():
    assert {path.relative_to(ROOT).parts[0] for path in CODE} == {"src", "tests", "benchmarks", "examples"}
    assert len(CODE) > 300


@pytest.mark.parametrize("path", CODE, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_identifier_contains_a_retired_word(path):
    assert retired_identifiers(path.read_text("utf-8")) == []


@pytest.mark.parametrize("path", PROSE, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_text_contains_a_word_that_is_never_right(path):
    if path in LISTS:
        pytest.skip("this file lists the words")
    assert retired_prose(path.read_text("utf-8")) == []


MESSAGES = sorted(
    path
    for path in [*PROSE, *(ROOT / "src").rglob("*.html"), *(ROOT / "src").rglob("*.js")]
    if "results" not in path.relative_to(ROOT).parts and "tests" not in path.relative_to(ROOT).parts
)
"""Files with messages and documentation; records of measurements and tests may quote earlier messages."""


@pytest.mark.parametrize("path", MESSAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_message_contains_a_retired_phrase(path):
    text = " ".join(path.read_text("utf-8").lower().split())
    assert [phrase for phrase in RETIRED_PHRASES if phrase in text] == []


@pytest.mark.parametrize(
    "source",
    [
        "found = 1",
        "def _bites(): ...",
        "def f(*, asked): ...",
        "class KnobSpace: ...",
        "self.owed = 1",
        "import a as tape",
    ],
)
def test_a_retired_identifier_is_noticed(source):
    assert retired_identifiers(source)


def test_a_standard_identifier_passes():
    assert retired_identifiers("from hypothesis import given\ndef test_what_was_found(result): chunks = result") == []


def test_a_retired_word_in_prose_is_noticed():
    assert retired_prose("the Slopes of near-doubles, in two bites") == ["bites", "near-doubles", "slopes"]
    assert retired_prose("gradients of duplicates, in two chunks; it redoubles") == []

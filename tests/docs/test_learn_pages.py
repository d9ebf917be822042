"""The pages under docs/learn have the same parts, and the source files that they name define the names that they mention."""

import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
LEARN = REPOSITORY / "docs" / "learn"
TOPICS = sorted(path.name for path in LEARN.glob("*.md") if path.name != "index.md")


def sections(page: str) -> dict[str, str]:
    """Return the text of a page by the headings of its second level; the part before the first one is named ''."""
    parts = re.split(r"^## (.+)$", (LEARN / page).read_text("utf-8"), flags=re.MULTILINE)
    return {"": parts[0], **dict(zip(parts[1::2], parts[2::2], strict=True))}


@pytest.mark.parametrize("page", TOPICS)
def test_a_topic_has_a_picture_an_example_and_a_section_on_the_code(page):
    text = (LEARN / page).read_text("utf-8")
    assert re.search(r"^!\[.+\]\(\.\./pictures/[\w-]+\.svg\)$", text, re.MULTILINE)
    assert "```python\n" in text
    assert list(sections(page))[-1] == "In the code"


@pytest.mark.parametrize("page", TOPICS)
def test_the_names_of_a_topic_are_defined_in_the_file_beside_them(page):
    lines = sections(page)["In the code"].strip().splitlines()
    assert lines
    for line in lines:
        path, names = re.fullmatch(r"- `(src/headstart/[\w/]+\.py)`: (.+)\.", line).groups()
        source = (REPOSITORY / path).read_text("utf-8")
        for name in re.findall(r"`(\w+)`", names):
            assert re.search(rf"^\s*(def|class) {name}\b", source, re.MULTILINE), f"{name} is not in {path}"


def test_the_index_links_every_topic():
    assert sorted(re.findall(r"\]\(([\w-]+\.md)\)", (LEARN / "index.md").read_text("utf-8"))) == TOPICS

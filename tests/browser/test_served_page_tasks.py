"""The page of servers of multi-label, regression and text-pair models."""

import csv

import pytest

pytest.importorskip("fastapi", reason="the extra `serve` is not installed")
pytest.importorskip("uvicorn", reason="the extra `serve` is not installed")
pytest.importorskip("playwright", reason="playwright is not installed")

from fixtures.predictions import write_all
from fixtures.recipes import finetune_run
from fixtures.serving import Server, open_page
from fixtures.tiny import finetune_config
from headstart.cli.main import run

TASKS = {
    "several": ("labels", ".jsonl", {}),
    "rating": ("ratings", ".csv", {"labelled__task": "rating"}),
    "pair": ("pairs", ".csv", {"labelled__text_column": "premise", "labelled__second_column": "hypothesis"}),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = write_all(tmp_path_factory.mktemp("page"))
    for name, (stem, suffix, settings) in TASKS.items():
        config = finetune_config(**{"loop__epochs": 2, "model__context": 40, **settings})
        finetune_run(str(folder / f"{stem}{suffix}"), folder / name, config, backbone="scratch")
    return folder


@pytest.fixture(scope="module")
def servers(folder, browser):
    with Server(folder / "several") as several, Server(folder / "rating") as rating, Server(folder / "pair") as pair:
        yield {"several": several, "rating": rating, "pair": pair}


def type_texts(page, server, *texts):
    open_page(page, server.url)
    page.wait_for_selector("#classify:not([hidden])")
    for box, text in zip(("#text", "#second"), texts, strict=False):
        page.locator(box).fill(text)
    page.wait_for_selector("#why:not([hidden])")
    assert page.errors == []
    return page.locator("#answer").inner_text()


def test_a_multi_label_answer_has_a_bar_and_a_threshold_per_label(servers, browser_page):
    page = browser_page(360, 800)
    answer = type_texts(page, servers["several"], "the battle army of a battle")
    bars = page.locator("#probabilities li").all_inner_texts()
    assert len(bars) == 3
    assert all("(threshold " in bar for bar in bars)
    ticked = [bar.split("\n")[0].strip() for bar in bars if "✓" in bar]
    assert answer == (", ".join(ticked) or "No label")
    assert not page.locator("#second").is_visible()
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


def test_a_rating_is_shown_as_a_number_on_a_bar(servers, browser_page):
    page = browser_page()
    answer = type_texts(page, servers["rating"], "great great great great")
    assert 1 <= float(answer) <= 5
    assert page.locator("#probabilities li").all_inner_texts()[0].split()[:3] == ["1", "to", "5"]
    assert page.locator("#why-title").inner_text() == "Words that influenced “rating”"


def test_a_text_pair_is_typed_into_two_boxes(servers, browser_page):
    page = browser_page()
    answer = type_texts(page, servers["pair"], "the battle", "the army")
    assert answer.split(",")[0] in ("other", "same")
    page.locator("#second").fill("")
    page.wait_for_selector("#why", state="hidden")
    assert page.locator("#answer").inner_text() == "No text yet."


@pytest.mark.parametrize("name", TASKS)
def test_a_csv_of_every_task_equals_the_output_of_predict(servers, browser_page, folder, tmp_path, name):
    source, out = folder / f"{TASKS[name][0]}-test.csv", tmp_path / "out.csv"
    page = browser_page()
    open_page(page, servers[name].url)
    page.wait_for_selector("#file:not([hidden])")
    page.locator("#csv").set_input_files(source)
    page.wait_for_selector("#columns:not([hidden])")
    with page.expect_download() as download:
        page.locator("#label-rows").click()
        page.wait_for_selector("#download:not([hidden])")
        page.locator("#download").click()
    assert run(["predict", str(folder / name), "--input", str(source), "--out", str(out), "--quiet"]) == 0
    expected, downloaded = (
        list(csv.reader(path.read_text(encoding="utf-8").splitlines())) for path in (out, download.value.path())
    )
    assert downloaded[0] == expected[0]
    for expected_row, row in zip(expected[1:], downloaded[1:], strict=True):
        for a, b in zip(expected_row, row, strict=True):
            assert a == b or float(a) == pytest.approx(float(b), abs=2e-6)

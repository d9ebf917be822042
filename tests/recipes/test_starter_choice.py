"""`starter:auto` takes the starter for the language of the texts, the most specific one, or says why none fits."""

import json
import sys

import pytest

from fixtures.tiny import Listener
from headstart.cli.main import run
from headstart.config.schema import PretrainConfig
from headstart.errors import UsageError
from headstart.files import FORMAT
from headstart.recipes.starter_choice import corpus_texts, find_starter, fitting_starters, resolve_starter
from headstart.store.locate import STARTERS_PACKAGE

ENGLISH = "The delivery was late and the box was damaged, so I would like to have my money back."
FRENCH = "La livraison était en retard et le carton abîmé, je voudrais donc être remboursé."
GERMAN = "Die Lieferung kam zu spät und der Karton war beschädigt, daher möchte ich mein Geld zurück."


def install(folder, monkeypatch, **languages):
    """Install a package of starters that have these languages and no weights."""
    for name, codes in languages.items():
        starter = folder / STARTERS_PACKAGE / name
        starter.mkdir(parents=True)
        (starter / "manifest.json").write_text(json.dumps({"format": FORMAT, "kind": "bundle", "files": {}}))
        (starter / "bundle.json").write_text(json.dumps({"about": {"starter": {"languages": codes}}}))
    (folder / STARTERS_PACKAGE / "__init__.py").touch()
    monkeypatch.syspath_prepend(folder)


@pytest.fixture
def two(tmp_path, monkeypatch):
    install(tmp_path, monkeypatch, en=["en"], fr=["fr"])


@pytest.fixture
def three(tmp_path, monkeypatch):
    install(tmp_path, monkeypatch, en=["en"], fr=["fr"], multi=["de", "en", "fr", "ru"])


@pytest.mark.usefixtures("two")
@pytest.mark.parametrize(
    ("text", "name"),
    [
        (ENGLISH, "starter:en"),
        (FRENCH, "starter:fr"),
        (GERMAN, None),
        ("快递太慢了，盒子也坏了，我想退货，客服也不理人。", None),
        ("Доставка опоздала, коробка была повреждена, верните деньги.", None),
        ("Leveringen var forsinket, og kassen var ødelagt, så jeg vil gerne have mine penge tilbage.", None),
    ],
)
def test_a_starter_is_for_texts_of_its_own_language_only(text, name):
    assert find_starter([text] * 3).name == name


@pytest.mark.usefixtures("three")
@pytest.mark.parametrize(
    ("texts", "name"), [([ENGLISH], "starter:en"), ([GERMAN], "starter:multi"), ([ENGLISH, GERMAN], "starter:multi")]
)
def test_the_starter_with_the_fewest_other_languages_is_taken(texts, name):
    assert find_starter(texts * 5).name == name


def test_general_starters_come_first_then_smaller_ones(tmp_path, monkeypatch):
    install(tmp_path, monkeypatch, big=["en"], small=["en"], films=["en"], multi=["de", "en"])
    sizes = {"big": 30, "small": 20, "films": 10, "multi": 5}
    for name, size in sizes.items():
        (tmp_path / STARTERS_PACKAGE / name / "backbone.safetensors").write_bytes(bytes(size))
    facts = {"about": {"starter": {"languages": ["en"], "domain": "film reviews"}}}
    (tmp_path / STARTERS_PACKAGE / "films" / "bundle.json").write_text(json.dumps(facts))
    assert fitting_starters([ENGLISH] * 3).names == ("starter:small", "starter:big", "starter:films")
    assert find_starter([ENGLISH] * 3).name == "starter:small"
    assert fitting_starters([GERMAN] * 3).names == ("starter:multi",)


@pytest.mark.usefixtures("two")
def test_a_language_without_a_starter_is_named_in_one_line():
    with pytest.raises(UsageError) as caught:
        resolve_starter("starter:auto", lambda: [GERMAN] * 3, Listener())
    assert str(caught.value) == (
        "starter:auto: the texts are German (100 %), Latin script, and there is no starter for German; use one of "
        "starter:en (English), starter:fr (French), or pretrain on your own text (headstart pretrain) and use that folder"
    )


@pytest.mark.usefixtures("two")
def test_too_little_text_is_named_in_one_line():
    with pytest.raises(UsageError) as caught:
        resolve_starter("starter:auto", lambda: ["great"], Listener())
    assert str(caught.value) == (
        "starter:auto: too little text to tell the language (5 letters); use one of starter:en (English), starter:fr "
        "(French), or pretrain on your own text (headstart pretrain) and use that folder"
    )


def test_without_starters_the_line_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, STARTERS_PACKAGE, None)
    with pytest.raises(UsageError) as caught:
        resolve_starter("starter:auto", lambda: [ENGLISH], Listener())
    assert str(caught.value) == (
        'starter:auto: the starters are not installed (pip install "headstart-starters", or in a clone of Headstart: pip '
        "install ./starters); pretrain on your own text (headstart pretrain) and use that folder"
    )


def test_texts_are_not_read_for_another_backbone():
    assert resolve_starter("runs/base", lambda: pytest.fail("read"), Listener()) == "runs/base"


def test_the_sample_of_a_corpus_has_texts_of_every_file(tmp_path):
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    (tmp_path / "b.txt").write_text("three\n")
    assert corpus_texts([str(tmp_path)], PretrainConfig()) == ["one", "two", "three"]


def test_prepared_shards_have_no_text_to_tell_a_language_from(tmp_path):
    (tmp_path / "manifest.json").write_text(json.dumps({"format": FORMAT, "kind": "shards", "files": {}}))
    with pytest.raises(UsageError) as caught:
        corpus_texts([str(tmp_path)], PretrainConfig())
    assert str(caught.value) == (
        f"starter:auto: {tmp_path} is a prepared folder without text; use the name of the starter whose tokenizer prepared it"
    )


@pytest.mark.usefixtures("two")
@pytest.mark.parametrize(
    "line",
    [
        "finetune t.csv --label-column kind --from starter:auto --out x",
        "compare t.csv --test t.csv --label-column kind --from starter:auto --out x",
        "tune t.csv --label-column kind --trials 1 --from starter:auto --out x",
        "pretrain t.csv --from starter:auto --out x",
        "pretrain --stage t.csv --from starter:auto --out x",
    ],
)
def test_every_command_that_trains_refuses_a_language_without_a_starter(line, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.csv").write_text(f'text,kind\n"{GERMAN}",a\n"{GERMAN} Danke.",b\n', encoding="utf-8")
    assert run(line.split()) == 2
    assert capsys.readouterr().err.startswith("headstart: starter:auto: the texts are German (100 %), Latin script, ")
    assert not (tmp_path / "x").exists()

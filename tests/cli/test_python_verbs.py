"""The verbs in Python take settings as a person may write them, and say what is wrong with the rest."""

import pytest

import headstart
from headstart import api
from headstart.config.merge import resolve_settings
from headstart.config.schema import FinetuneConfig, PretrainConfig
from headstart.errors import ConfigError


def settings(given) -> PretrainConfig:
    return resolve_settings(PretrainConfig, "classic", "pretrain", given)


def message_of(call) -> str:
    with pytest.raises(ConfigError) as caught:
        call()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_the_verbs_can_be_listed_before_they_are_used():
    assert {"compare", "evaluate", "finetune", "generate", "load", "prepare", "pretrain"} <= set(dir(headstart))
    assert "__version__" in dir(headstart)


@pytest.mark.parametrize(
    "given",
    [
        {"model.width": 64, "loop.batch_size": 4},
        {"model": {"width": 64}, "loop": {"batch_size": 4}},
        {"model": {"width": 64}, "loop.batch-size": 4},
    ],
    ids=["dotted", "nested", "both, with a hyphen"],
)
def test_settings_may_be_dotted_or_nested(given):
    config = settings(given)
    assert (config.model.width, config.loop.batch_size) == (64, 4)
    assert config.model.depth == 4  # control: the preset is there below


def test_a_section_given_twice_is_put_together_and_left_as_it_was():
    given = {"model": {"width": 64}, "model.depth": 2}
    config = settings(given)
    assert (config.model.width, config.model.depth) == (64, 2)
    assert given == {"model": {"width": 64}, "model.depth": 2}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([("model.width", 64)], "settings must be a mapping such as {'model.width': 64}, got [('model.width', 64)]"),
        ("model.width", "settings must be a mapping such as {'model.width': 64}, got 'model.width'"),
        ({3: 64}, "the name of a setting is text such as 'model.width', got 3"),
        ({"model": 64}, "model is a group of settings; give a mapping of them, got 64"),
        ({"model": {"widht": 64}}, "unknown setting model.widht; did you mean model.width?"),
        ({"model.widht": 64}, "unknown setting model.widht; did you mean model.width?"),
        ({"model.width": [64]}, "model.width must be a whole number, got [64]"),
    ],
)
def test_wrong_settings_are_told_in_one_line(given, message):
    assert message_of(lambda: settings(given)) == message


@pytest.mark.parametrize("given", [{"model.depth": 3}, {"model": {"depth": 3}}])
def test_a_shape_beside_a_pretrained_folder_is_seen_however_it_is_written(tmp_path, given):
    assert message_of(lambda: headstart.finetune("a.csv", out=tmp_path, source="runs/base", settings=given)) == (
        "model.depth is set, but runs/base brings its own; leave it out, or use backbone='scratch'"
    )


def test_names_of_classes_are_no_sections():
    config = resolve_settings(FinetuneConfig, "classic", "finetune", {"transfer": {"class_weights": {"a-b": 2.0}}})
    assert config.transfer.class_weights == {"a-b": 2.0}


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (None, (None,)),
        ("all", (None,)),
        (50, (50,)),
        ((50, None), (50, None)),
        ([50, "all", 50], (50, None)),
    ],
)
def test_numbers_of_labels_may_be_one_or_several(given, found):
    assert api._budgets(given) == found


@pytest.mark.parametrize("wrong", ["50", 0.5, True])
def test_what_is_no_number_of_labels_is_told(wrong):
    assert message_of(lambda: api._budgets((50, wrong))) == (
        f"labels must be whole numbers or 'all', as in (50, 200, 'all'), got {wrong!r}"
    )


def test_text_is_read_with_the_settings_of_the_commands(tmp_path):
    (tmp_path / "a.csv").write_text("words,id\nun livre,1\nun film,2\n")
    given = {"corpus.text_column": "words", "tokenizer.vocab_size": 262}
    card = headstart.train_tokenizer(tmp_path / "a.csv", out=tmp_path / "tok", settings=given)
    shards = headstart.prepare(tmp_path / "a.csv", out=tmp_path / "tokens", settings=given)
    assert (card.words, shards.num_documents) == (4, 2)


def test_the_columns_of_an_evaluation_can_be_named(tmp_path, trained):
    (tmp_path / "t.csv").write_text("words,mark\nthe film is dull,negative\n")
    found = headstart.evaluate(trained / "clf", tmp_path / "t.csv", text_column="words", label_column="mark")
    assert found.rows == 1

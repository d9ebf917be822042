"""The verbs in Python take settings as a person may write them, and say what is wrong with the rest."""

import pytest

import headstart
from headstart import api
from headstart.config.merge import resolve_settings
from headstart.config.schema import FinetuneConfig, PretrainConfig
from headstart.errors import ConfigError


def settings(values) -> PretrainConfig:
    return resolve_settings(PretrainConfig, "classic", "pretrain", values)


def message_of(call) -> str:
    with pytest.raises(ConfigError) as caught:
        call()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_the_public_functions_are_listed_before_they_are_imported():
    assert {"compare", "evaluate", "finetune", "generate", "load", "prepare", "pretrain"} <= set(dir(headstart))
    assert "__version__" in dir(headstart)


@pytest.mark.parametrize(
    "values",
    [
        {"model.width": 64, "loop.batch_size": 4},
        {"model": {"width": 64}, "loop": {"batch_size": 4}},
        {"model": {"width": 64}, "loop.batch-size": 4},
    ],
    ids=["dotted", "nested", "both, with a hyphen"],
)
def test_settings_may_be_dotted_or_nested(values):
    config = settings(values)
    assert (config.model.width, config.loop.batch_size) == (64, 4)
    assert config.model.depth == 4  # control: the preset is there below


def test_nested_and_dotted_settings_of_a_section_are_merged():
    values = {"model": {"width": 64}, "model.depth": 2}
    config = settings(values)
    assert (config.model.width, config.model.depth) == (64, 2)
    assert values == {"model": {"width": 64}, "model.depth": 2}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([("model.width", 64)], "settings must be a mapping such as {'model.width': 64}, got [('model.width', 64)]"),
        ("model.width", "settings must be a mapping such as {'model.width': 64}, got 'model.width'"),
        ({3: 64}, "the name of a setting must be a string such as 'model.width', got 3"),
        ({"model": 64}, "model is a group of settings and must be a mapping, got 64"),
        ({"model": {"widht": 64}}, "unknown setting model.widht; did you mean model.width?"),
        ({"model.widht": 64}, "unknown setting model.widht; did you mean model.width?"),
        ({"model.width": [64]}, "model.width must be an integer, got [64]"),
    ],
)
def test_wrong_settings_in_python_give_one_line(values, message):
    assert message_of(lambda: settings(values)) == message


@pytest.mark.parametrize("values", [{"model.depth": 3}, {"model": {"depth": 3}}])
def test_model_settings_beside_a_backbone_are_refused_nested_or_dotted(tmp_path, values):
    assert message_of(lambda: headstart.finetune("a.csv", out=tmp_path, backbone="runs/base", settings=values)) == (
        "model.depth cannot be used with runs/base, which has its own model; remove it, or use backbone='scratch'"
    )


def test_names_of_classes_are_no_sections():
    config = resolve_settings(FinetuneConfig, "classic", "finetune", {"transfer": {"class_weights": {"a-b": 2.0}}})
    assert config.transfer.class_weights == {"a-b": 2.0}


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (None, (None,)),
        ("all", (None,)),
        (50, (50,)),
        ((50, None), (50, None)),
        ([50, "all", 50], (50, None)),
    ],
)
def test_numbers_of_labels_may_be_one_or_several(values, expected):
    assert api._budgets(values) == expected


@pytest.mark.parametrize("wrong", ["50", 0.5, True])
def test_an_invalid_label_budget_is_refused(wrong):
    assert message_of(lambda: api._budgets((50, wrong))) == (
        f"label_budgets must be whole numbers or 'all', as in (50, 200, 'all'), got {wrong!r}"
    )


def test_text_is_read_with_the_settings_of_the_commands(tmp_path):
    (tmp_path / "a.csv").write_text("words,id\nun livre,1\nun film,2\n")
    values = {"corpus.text_column": "words", "tokenizer.vocab_size": 262}
    card = headstart.train_tokenizer(tmp_path / "a.csv", out=tmp_path / "tok", settings=values)
    shards = headstart.prepare(tmp_path / "a.csv", out=tmp_path / "tokens", settings=values)
    assert (card.words, shards.num_documents) == (4, 2)


def test_the_columns_of_an_evaluation_can_be_named(tmp_path, trained):
    (tmp_path / "t.csv").write_text("words,mark\nthe film is dull,negative\n")
    evaluation = headstart.evaluate(trained / "clf", tmp_path / "t.csv", text_column="words", label_column="mark")
    assert evaluation.rows == 1

"""The scikit-learn estimators fit in memory what the commands fit from files, and pass scikit-learn's checks."""

import random
import warnings

import numpy as np
import pytest
from joblib.externals.loky import get_reusable_executor
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import check_estimator

import headstart
from fixtures.tiny import review, write_reviews
from headstart import TextClassifier, api
from headstart.errors import ConfigError, DataError, UsageError
from headstart.estimator import InputError
from headstart.store.bundle import load_bundle

CHANCE = random.Random(5)
TEXTS = [review(CHANCE, bool(index % 2)) for index in range(80)]
LABELS = ["good" if index % 2 else "bad" for index in range(80)]
NETWORK = {"tokenizer.vocab_size": 300, "model.width": 16, "model.depth": 1, "model.feedforward": 16}
SMALL = {**NETWORK, "model.context": 24, "runtime.threads": 1}


def small(**settings) -> TextClassifier:
    return TextClassifier(**{"backbone": "scratch", "settings": SMALL, "epochs": 6, "lr": 0.01, **settings})


@pytest.fixture(scope="module")
def fitted():
    return small().fit(TEXTS[:60], LABELS[:60])


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = tmp_path_factory.mktemp("base")
    (folder / "texts.txt").write_text("\n".join(TEXTS) + "\n")
    api.pretrain(folder / "texts.txt", out=folder / "run", settings=SMALL | {"loop.steps": 2})
    return folder / "run"


def test_a_classifier_learns_and_predicts_its_labels(fitted):
    assert fitted.score(TEXTS[60:], LABELS[60:]) > 0.8
    assert fitted.classes_.tolist() == ["bad", "good"]
    probabilities = fitted.predict_proba(TEXTS[60:])
    assert probabilities.shape == (20, 2)
    assert np.allclose(probabilities.sum(axis=1), 1)
    assert (fitted.classes_[probabilities.argmax(axis=1)] == fitted.predict(TEXTS[60:])).all()


@pytest.mark.parametrize("names", [[10, 9], [True, False], [2.0, -1.0]], ids=str)
def test_labels_keep_their_type_and_order(names):
    labels = [names[index % 2] for index in range(40)]
    classifier = small(epochs=1).fit(TEXTS[:40], labels)
    assert classifier.classes_.tolist() == sorted(names)
    assert classifier.predict(TEXTS[:3]).dtype == np.array(labels).dtype


@pytest.mark.parametrize("start", ["scratch", "pretrained"])
def test_an_estimator_fits_the_same_model_as_the_command(base, tmp_path, start):
    """The same rows, settings and seed: not a bit differs."""
    rows = "".join(f"{text},{label}\n" for text, label in zip(TEXTS, LABELS, strict=True))
    (tmp_path / "train.csv").write_text(f"text,label\n{rows}")
    backbone, settings = ("scratch", SMALL) if start == "scratch" else (base, {"runtime.threads": 1})
    steps = {"loop.epochs": 2, "optim.lr": 0.01}
    api.finetune(tmp_path / "train.csv", out=tmp_path / "run", backbone=backbone, settings=settings | steps)
    estimator = TextClassifier(backbone, epochs=2, lr=0.01, settings=settings).fit(TEXTS, LABELS)
    by_command = [list(answer.probabilities.values()) for answer in headstart.load(tmp_path / "run").predict(TEXTS)]
    assert (estimator.predict_proba(TEXTS) == np.array(by_command)).all()
    other = TextClassifier(backbone, epochs=2, lr=0.01, settings=settings, seed=1).fit(TEXTS, LABELS)
    assert (other.predict_proba(TEXTS) != np.array(by_command)).any()  # control


def test_unlabelled_texts_are_pretrained_on(base):
    pretraining = {"loop.steps": 2}
    first = small(unlabelled=TEXTS, pretraining=pretraining, epochs=1).fit(TEXTS, LABELS)
    again = small(unlabelled=TEXTS, pretraining=pretraining, epochs=1).fit(TEXTS, LABELS)
    more = small(unlabelled=TEXTS, pretraining={"loop.steps": 6}, epochs=1).fit(TEXTS, LABELS)
    assert (first.predict_proba(TEXTS) == again.predict_proba(TEXTS)).all()
    assert (first.predict_proba(TEXTS) != more.predict_proba(TEXTS)).any()
    settings = {"runtime.threads": 1}
    onward = TextClassifier(base, unlabelled=TEXTS, pretraining=pretraining, settings=settings, epochs=1)
    assert len(onward.fit(TEXTS, LABELS).predict(TEXTS[:2])) == 2


def test_an_estimator_works_in_a_pipeline_and_under_cross_validation():
    pipeline = make_pipeline(FunctionTransformer(lambda texts: [text.upper() for text in texts]), small())
    scores = cross_val_score(pipeline, TEXTS, LABELS, cv=2)
    assert scores.shape == (2,)
    assert scores.min() > 0.5


@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_grid_search_finds_the_better_learning_rate(processes):
    search = GridSearchCV(small(), {"lr": [1e-6, 0.01]}, cv=2, n_jobs=processes)
    try:
        search.fit(TEXTS, LABELS)
    finally:
        if processes > 1:  # joblib keeps its processes for minutes
            get_reusable_executor().shutdown(wait=True)
    assert search.best_params_ == {"lr": 0.01}
    assert search.predict(TEXTS[:3]).shape == (3,)


def test_the_state_of_an_estimator_is_parameters_classes_and_bytes(fitted):
    state = fitted.__getstate__()
    assert {type(content) for content in state["files_"].values()} == {bytes}
    assert set(state) == {*fitted.get_params(), "backbone_", "files_", "classes_"}
    copy = TextClassifier()
    copy.__setstate__(state)
    assert (copy.predict_proba(TEXTS) == fitted.predict_proba(TEXTS)).all()


def test_a_saved_folder_answers_the_same_here_and_on_the_command_line(fitted, tmp_path):
    folder = fitted.save(tmp_path / "saved")
    loaded = TextClassifier.load(folder)
    assert (loaded.predict_proba(TEXTS) == fitted.predict_proba(TEXTS)).all()
    assert loaded.get_params() == fitted.get_params()
    answers = headstart.load(folder).predict(TEXTS)
    assert [answer.label for answer in answers] == fitted.predict(TEXTS).tolist()
    with pytest.raises(UsageError) as caught:
        fitted.save(folder)
    assert str(caught.value) == f"{folder} already exists and is not empty; choose another folder"


def test_a_run_folder_of_the_command_can_be_loaded(base, tmp_path):
    rows = "".join(f"{text},{label}\n" for text, label in zip(TEXTS, LABELS, strict=True))
    (tmp_path / "train.csv").write_text(f"text,label\n{rows}")
    api.finetune(tmp_path / "train.csv", out=tmp_path / "run", backbone=base, settings={"loop.epochs": 1})
    assert TextClassifier.load(tmp_path / "run").classes_.tolist() == ["bad", "good"]


class Numbers(TextClassifier):
    """Rows of numbers written out as text, so that scikit-learn's checks, which know nothing but numbers, can run."""

    def fit(self, X, y=None):
        return super().fit(_written(X), y)

    def predict_proba(self, X):
        return super().predict_proba(_written(X))

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array, tags.input_tags.one_d_array, tags.input_tags.string = True, False, False
        return tags


def _written(X):
    return [" ".join(f"{number:.1f}" for number in np.ravel(row)) for row in np.asarray(X)]


TABLE, DENSE = (
    "about columns of a table; a text has none",
    "about what is inside a table of numbers; texts hold none of it",
)
NOT_FOR_TEXT = {
    "check_n_features_in_after_fitting": TABLE,
    "check_n_features_in": TABLE,
    "check_fit1d": TABLE,
    "check_fit2d_predict1d": TABLE,
    "check_estimators_empty_data_messages": TABLE,
    "check_dtype_object": DENSE,
    "check_estimators_nan_inf": DENSE,
    "check_estimator_sparse_tag": DENSE,
    "check_estimator_sparse_array": DENSE,
    "check_estimator_sparse_matrix": DENSE,
    "check_classifiers_train": "wants 83 % right on Gaussian blobs, which digits read as text do not give in one epoch",
}


def test_an_estimator_passes_the_checks_of_scikit_learn_that_suit_text():
    settings = SMALL | {"model.width": 8, "tokenizer.vocab_size": 260}
    estimator = Numbers("scratch", settings=settings, epochs=1, batch_size=64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = check_estimator(estimator, expected_failed_checks=NOT_FOR_TEXT, on_skip=None)
    statuses = {result["check_name"]: result["status"] for result in results}
    assert {name for name, status in statuses.items() if status == "xfail"} == set(NOT_FOR_TEXT)
    assert sum(status == "passed" for status in statuses.values()) >= 38


def test_a_clone_is_not_fitted(fitted):
    copy = clone(fitted)
    assert copy.get_params() == fitted.get_params()
    with pytest.raises(NotFittedError):
        copy.predict(TEXTS)


@pytest.mark.parametrize(
    ("texts", "labels", "message"),
    [
        ("one text", ["a"], "X must be a sequence of texts, got 'one text'"),
        (["a", 3], ["x", "y"], "X[1] is 3, expected a text"),
        (["a", "  "], ["x", "y"], "X[1] is empty"),
        ([], [], "X contains no texts"),
        ([["a"], ["b"]], ["x", "y"], "X[0] is ['a'], expected a text"),
        (
            np.array([["a"], ["b"]]),
            ["x", "y"],
            "X must be a sequence of texts, got an array of 2 dimensions; give one column",
        ),
        (TEXTS[:4], ["x"] * 3, "X has 4 texts and y 3 labels; expected one each"),
        (TEXTS[:4], ["x"] * 4, "y has one class only, 'x'; a classifier needs at least two labels"),
        (TEXTS[:2], [1.0, float("nan")], "y[1] is nan, expected a label"),
        (TEXTS[:2], np.array(["x", None], dtype=object), "y[1] is None, expected a label"),
        (TEXTS[:2], ["x", "y"], "2 texts are too few to hold out 0.2 of each label for validation"),
        (TEXTS[:2], None, "TextClassifier requires y to be passed, but the target y is None"),
    ],
)
def test_wrong_texts_or_labels_get_one_line(texts, labels, message):
    with pytest.raises(InputError) as caught:
        small().fit(texts, labels)
    assert str(caught.value) == message
    assert isinstance(caught.value, DataError)
    assert isinstance(caught.value, ValueError)


def test_a_setting_that_has_a_parameter_of_its_own_is_refused():
    with pytest.raises(ConfigError) as caught:
        small(settings=SMALL | {"loop.epochs": 3}).fit(TEXTS, LABELS)
    assert str(caught.value) == "settings has loop.epochs, which is a separate parameter: epochs"


def test_a_shape_beside_a_backbone_is_refused(base):
    with pytest.raises(ConfigError) as caught:
        TextClassifier(base, settings={"model.width": 8}).fit(TEXTS, LABELS)
    assert (
        str(caught.value)
        == f"model.width cannot be used with {base}, which has its own model; remove it, or use backbone='scratch'"
    )


def test_a_classifier_learns_twenty_classes_from_eight_texts_each():
    chance = random.Random(2)
    topics = [f"topic{chr(97 + number)}" for number in range(20)]
    texts = [f"the {topic} {chance.choice(TEXTS)[:30]}" for topic in topics for _ in range(8)]
    labels = np.repeat(topics, 8)
    classifier = small(epochs=30, batch_size=16).fit(texts, labels)
    assert classifier.classes_.tolist() == topics
    assert classifier.score(texts, labels) > 0.9
    assert classifier.predict_proba(texts[:2]).shape == (2, 20)


def test_the_preset_follows_the_backbone_unless_one_is_named(tmp_path):
    folder = write_reviews(tmp_path / "data")
    modern = {
        "model.block": "modern",
        "model.width": 16,
        "model.heads": 2,
        "model.depth": 1,
        "tokenizer.vocab_size": 300,
    }
    headstart.pretrain(
        folder / "texts.txt", out=tmp_path / "base", settings={**modern, "model.feedforward": 24, "loop.steps": 2}
    )
    source = load_bundle(tmp_path / "base")
    assert TextClassifier(tmp_path / "base")._config(source).loop.select == "last"  # the modern preset's
    assert TextClassifier(tmp_path / "base", preset="classic")._config(source).loop.select == "best"
    assert TextClassifier()._config(None).loop.select == "best"


def test_several_labels_are_lists_of_names_or_an_indicator_matrix():
    names = [["good"] if index % 2 else ["bad", "dull"] for index in range(len(TEXTS))]
    listed = small().fit(TEXTS, names)
    assert listed.classes_.tolist() == ["bad", "dull", "good"]
    table = np.array([["bad" in row, "dull" in row, "good" in row] for row in names]).astype(int)
    tabled = small().fit(TEXTS, table)
    assert tabled.classes_.tolist() == [0, 1, 2]
    assert listed.predict_proba(TEXTS) == pytest.approx(tabled.predict_proba(TEXTS), abs=1e-6)
    predicted = listed.predict(TEXTS)
    assert predicted.shape == (len(TEXTS), 3)
    assert set(predicted.ravel().tolist()) <= {0, 1}
    assert (predicted == table).mean() > 0.6


def test_a_regressor_predicts_the_same_numbers_after_loading(tmp_path):
    numbers = [float(index % 2) for index in range(len(TEXTS))]
    settings = small().get_params()
    regressor = headstart.TextRegressor(**settings).fit(TEXTS, numbers)
    predicted = regressor.predict(TEXTS)
    assert ((predicted >= 0) & (predicted <= 1)).all()
    assert regressor.score(TEXTS, numbers) > 0  # better than always predicting the mean
    regressor.save(tmp_path / "saved")
    assert headstart.TextRegressor.load(tmp_path / "saved").predict(TEXTS).tolist() == predicted.tolist()


def test_pairs_of_texts_are_tuples():
    pairs = [(text, TEXTS[0]) for text in TEXTS]
    fitted = small().fit(pairs, [index % 2 for index in range(len(TEXTS))])
    assert fitted.predict(pairs[:3]).shape == (3,)
    with pytest.raises(InputError) as caught:
        fitted.predict(TEXTS[:3])
    assert str(caught.value) == "X contains texts, but the model was fitted on pairs"


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([["a"], "b", ["a"], []], "y[1] is 'b', expected a list of label names"),
        ([["a"], [1], ["a"], []], "y[1] is [1], expected a list of label names"),
        ([[], [], [], []], "y has no label in any row; a classifier needs at least two labels"),
        (np.array([[0, 1], [2, 0], [1, 0], [0, 0]]), "y has one column per label and must contain 0 and 1 only"),
        ([["a"], ["b"]], "X has 4 texts and y 2 labels; expected one each"),
    ],
)
def test_wrong_lists_of_labels_get_one_line(labels, message):
    with pytest.raises(InputError) as caught:
        small().fit(TEXTS[:4], labels)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ([1.0, float("inf"), 2.0, 3.0], "y[1] is inf, expected a finite number"),
        (["a", "b", "c", "d"], "y must be a number for each text"),
        ([2, 2, 2, 2], "y has one number only, 2; a model cannot be trained on it"),
        (None, "TextRegressor requires y to be passed, but the target y is None"),
    ],
)
def test_wrong_numbers_get_one_line(numbers, message):
    with pytest.raises(InputError) as caught:
        headstart.TextRegressor(**small().get_params()).fit(TEXTS[:4], numbers)
    assert str(caught.value) == message

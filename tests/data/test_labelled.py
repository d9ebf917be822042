import io
from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headstart.config.schema import LabelledConfig
from headstart.data.labelled import LabelledTexts, LabelSet, label_subset, read_labelled, split_validation
from headstart.errors import DataError


@pytest.fixture(autouse=True)
def _in_temporary_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def rows_of(texts: list[str], labels: list[str], name: str = "train.csv") -> LabelledTexts:
    where = tuple(f"{name}, row {number}" for number in range(1, len(texts) + 1))
    return LabelledTexts(name, tuple(texts), tuple(labels), where)


def test_rows_preserve_their_order_and_location(tmp_path):
    (tmp_path / "r.csv").write_text("text,label\nfine, positive \n dull,negative\nfine,positive\n")
    rows = read_labelled("r.csv", LabelledConfig())
    assert rows == rows_of(["fine", " dull", "fine"], ["positive", "negative", "positive"], "r.csv")
    assert (len(rows), rows.counts()) == (3, {"negative": 1, "positive": 2})
    assert rows.take([2, 1]) == LabelledTexts(
        "r.csv", ("fine", " dull"), ("positive", "negative"), ("r.csv, row 3", "r.csv, row 2")
    )


@pytest.mark.parametrize(
    ("values", "labels"),
    [
        ([1, 0], ("1", "0")),
        ([1.0, 4.5], ("1", "4.5")),
        ([True, False], ("True", "False")),
        (["1.0", " b "], ("1.0", "b")),
    ],
)
def test_labels_of_any_type_become_strings(tmp_path, values, labels):
    sink = io.BytesIO()
    pq.write_table(pa.table({"text": ["a", "b"], "label": values}), sink)
    (tmp_path / "r.parquet").write_bytes(sink.getvalue())
    assert read_labelled("r.parquet", LabelledConfig()).labels == labels


def test_columns_can_be_named(tmp_path):
    (tmp_path / "r.csv").write_text("label,text,mark\nwords,other words,5\n")
    rows = read_labelled("r.csv", LabelledConfig(text_column="label", label_column="mark"))
    assert (rows.texts, rows.labels) == (("words",), ("5",))
    with pytest.raises(DataError) as caught:  # the column of the text is not also the one of the label
        read_labelled("r.csv", LabelledConfig(text_column="label"))
    assert str(caught.value) == (
        "r.csv has no column with a common name for the label; "
        "its columns are label, text, mark; name one with labelled.label_column"
    )


def test_a_pattern_is_read_as_one_file(tmp_path):
    for number, text in enumerate(["fine", "dull"]):
        (tmp_path / f"train-{number}.csv").write_text(f"text,label\n{text},{number}\n")
    rows = read_labelled("train-*.csv", LabelledConfig())
    assert (rows.name, rows.texts) == ("train-*.csv", ("fine", "dull"))
    assert rows.where == ("train-0.csv, row 1", "train-1.csv, row 1")


def test_the_hash_is_of_the_rows_and_not_of_the_file(tmp_path):
    (tmp_path / "a.csv").write_text("text,label\nfine,1\ndull,0\n")
    (tmp_path / "b.jsonl").write_text('{"label": 1, "text": "fine"}\n{"label": 0, "text": "dull"}\n')
    a, b = (read_labelled(name, LabelledConfig()) for name in ("a.csv", "b.jsonl"))
    assert a.sha256 == b.sha256
    assert len({a.sha256, a.take([0]).sha256, a.take([1, 0]).sha256, rows_of(["fine", "dull"], ["0", "1"]).sha256}) == 4


def test_labels_are_counted_in_sorted_order():
    labels = LabelSet.from_training(rows_of(["a", "b", "c"], ["pos", "neg", "pos"]))
    assert (labels.names, len(labels), labels.index("neg"), labels.index("pos")) == (("neg", "pos"), 2, 0, 1)
    assert "pos" in labels
    assert "so so" not in labels


def test_nearly_as_many_labels_as_rows_are_taken_for_a_wrong_column():
    texts = [f"text {number}" for number in range(20)]
    with pytest.raises(DataError) as caught:
        LabelSet.from_training(rows_of(texts, [str(number // 2 if number < 18 else number) for number in range(20)]))
    assert str(caught.value) == (
        "train.csv: 11 different labels in 20 rows; is this the label column? select another with labelled.label_column"
    )


@pytest.mark.parametrize(("rows", "labels"), [(19, 19), (20, 10)])
def test_few_rows_or_half_as_many_labels_are_accepted(rows, labels):
    names = [str(number % labels) for number in range(rows)]
    assert len(LabelSet.from_training(rows_of([f"text {number}" for number in range(rows)], names))) == labels


labels_strategy = st.lists(st.sampled_from("abcde"), min_size=2, max_size=60)


@st.composite
def labelled_rows(draw: st.DrawFn) -> LabelledTexts:
    labels = draw(labels_strategy)
    texts = draw(st.lists(st.integers(0, 40), min_size=len(labels), max_size=len(labels)))
    return rows_of([f"text {number}" for number in texts], labels)


@given(rows=labelled_rows(), fraction=st.floats(0.05, 0.95), seed=st.integers(0, 5))
def test_a_validation_split_is_stratified_and_loses_nothing(rows, fraction, seed):
    try:
        train, valid = split_validation(rows, fraction, seed)
    except DataError:
        # only when no class has room for even one of its rows
        groups = Counter(zip(rows.labels, rows.texts, strict=True))
        for label, count in rows.counts().items():
            room = min(int(fraction * count + 0.5), count - 1)
            assert all(size > room for (row_label, _), size in groups.items() if row_label == label)
        return
    assert sorted(train.where + valid.where) == sorted(rows.where)
    for label, count in rows.counts().items():
        num_kept, num_held_out = train.counts().get(label, 0), valid.counts().get(label, 0)
        assert num_kept >= 1
        assert num_held_out <= fraction * count + 0.5
        if count == len({text for text, row_label in zip(rows.texts, rows.labels, strict=True) if row_label == label}):
            assert num_held_out == min(int(fraction * count + 0.5), count - 1)  # without duplicates the fraction is met
    sides = [set(zip(side.texts, side.labels, strict=True)) for side in (train, valid)]
    assert not sides[0] & sides[1]


def test_a_validation_split_depends_on_rows_and_seed_only():
    rows = rows_of([f"text {number}" for number in range(40)], ["a", "b"] * 20)
    first, again, other = (split_validation(rows, 0.2, seed)[1] for seed in (0, 0, 1))
    assert first == again
    assert first != other
    backwards = split_validation(rows.take(range(39, -1, -1)), 0.2, 0)[1]
    assert set(backwards.texts) == set(first.texts)  # the order of the rows does not matter


def test_a_class_of_one_row_stays_in_train():
    rows = rows_of([f"text {number}" for number in range(11)], ["a"] * 10 + ["rare"])
    train, valid = split_validation(rows, 0.5, 0)
    assert (train.counts(), valid.counts()) == ({"a": 5, "rare": 1}, {"a": 5})


def test_too_few_rows_for_a_validation_split_are_refused():
    with pytest.raises(DataError) as caught:
        split_validation(rows_of(["x", "y"], ["a", "b"]), 0.2, 0)
    assert str(caught.value) == (
        "train.csv: 2 rows are too few to hold out 0.2 of each label for validation; use a validation file"
    )


@settings(max_examples=200)
@given(labels=labels_strategy, seed=st.integers(0, 5), data=st.data())
def test_subsets_are_nested_and_stratified(labels, seed, data):
    small, large = sorted(data.draw(st.tuples(*[st.integers(1, len(labels))] * 2)))
    inner, outer = label_subset(labels, small, seed), label_subset(labels, large, seed)
    assert len(set(outer)) == large
    assert set(inner) <= set(outer) <= set(range(len(labels)))
    assert outer == sorted(outer)
    expected = {label: large * count / len(labels) for label, count in Counter(labels).items()}
    chosen = Counter(labels[index] for index in outer)
    if large >= len(expected):
        assert set(chosen) == set(expected)
    if min(expected.values()) >= 1:
        assert all(abs(chosen[label] - count) < 1 for label, count in expected.items())


def test_many_uneven_classes_are_within_a_row_at_every_size():
    """The greedy choice of the class that is furthest behind would deviate here."""
    sizes = [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 10, 30, 50]
    labels = [chr(97 + index) for index, size in enumerate(sizes) for _ in range(size * 10)]
    for count in range(100, len(labels) + 1, 7):
        chosen = Counter(labels[index] for index in label_subset(labels, count, 0))
        assert all(abs(chosen[chr(97 + index)] - count * size / 100) < 1 for index, size in enumerate(sizes))


def test_a_subset_depends_on_the_seed():
    labels = ["a", "b"] * 50
    assert label_subset(labels, 10, 0) == label_subset(labels, 10, 0)
    assert label_subset(labels, 10, 0) != label_subset(labels, 10, 1)
    assert label_subset(labels, 10, 0) != list(range(10))  # files are often ordered


@settings(max_examples=100)
@given(rows=labelled_rows(), seed=st.integers(0, 5), rng=st.randoms(use_true_random=False), data=st.data())
def test_a_subset_by_text_does_not_depend_on_the_order_of_the_rows(rows, seed, rng, data):
    count = data.draw(st.integers(1, len(rows)))
    order = list(range(len(rows)))
    rng.shuffle(order)
    moved = rows.take(order)
    original, shuffled = (texts.take(label_subset(texts.labels, count, seed, texts.digests)) for texts in (rows, moved))
    assert Counter(zip(original.texts, original.labels, strict=True)) == Counter(
        zip(shuffled.texts, shuffled.labels, strict=True)
    )


@settings(max_examples=100)
@given(rows=labelled_rows(), seed=st.integers(0, 5), data=st.data())
def test_a_subset_by_text_is_nested_and_stratified(rows, seed, data):
    small, large = sorted(data.draw(st.tuples(*[st.integers(1, len(rows))] * 2)))
    inner, outer = (label_subset(rows.labels, count, seed, rows.digests) for count in (small, large))
    assert set(inner) <= set(outer)
    assert outer == label_subset(rows.labels, large, seed, rows.digests)
    # the keys decide which rows of a class are chosen, but not how many
    by_index = label_subset(rows.labels, large, seed)
    assert Counter(rows.labels[row] for row in outer) == Counter(rows.labels[row] for row in by_index)


def test_a_subset_by_text_depends_on_the_seed():
    rows = rows_of([f"text {number}" for number in range(100)], ["a", "b"] * 50)
    chosen = [label_subset(rows.labels, 10, seed, rows.digests) for seed in (0, 1)]
    assert chosen[0] != chosen[1]
    assert chosen[0] != label_subset(rows.labels, 10, 0)  # control: the texts do decide


@pytest.mark.parametrize("count", [0, 5])
def test_a_subset_of_an_impossible_size_is_refused(count):
    with pytest.raises(DataError) as caught:
        label_subset(["a", "b", "a", "b"], count, 0)
    assert str(caught.value) == f"cannot choose {count} labelled rows out of 4"

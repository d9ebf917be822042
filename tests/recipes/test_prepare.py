import os

import pytest

from headstart.config.schema import CorpusConfig, LabelledConfig, TokenizerConfig
from headstart.data.labelled import LabelSet
from headstart.data.shards import is_shards
from headstart.errors import DataError, UsageError
from headstart.progress import SilentProgress
from headstart.recipes.prepare import PrepareRequest, run_prepare, run_prepare_labelled, run_tokenizer
from headstart.tokenization.tokenizer import load_tokenizer

SMALL = TokenizerConfig(vocab_size=300)
TEXT = "un roman inoubliable\na dull book that goes on and on\n" * 5


class Notebook(SilentProgress):
    """Keeps what was said."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, line: str) -> None:
        self.lines.append(line)


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text(TEXT)


def prepare(tmp_path, *paths: str, corpus: CorpusConfig | None = None, tokenizer=None, config=SMALL):
    messages = Notebook()
    request = PrepareRequest(paths or ("a.txt",), tmp_path / "out", corpus or CorpusConfig(), config, tokenizer)
    return run_prepare(request, messages), messages.lines


def test_a_tokenizer_is_trained_saved_and_measured(tmp_path):
    card = run_tokenizer(["a.txt"], tmp_path / "tok", SMALL, CorpusConfig(), SilentProgress())
    tokenizer = load_tokenizer(tmp_path / "tok")
    assert card.documents == 10
    assert card.tokens == sum(len(tokenizer.encode(line)) for line in TEXT.splitlines())


def test_a_tokenizer_is_not_replaced(tmp_path):
    run_tokenizer(["a.txt"], tmp_path / "tok", SMALL, CorpusConfig(), SilentProgress())
    before = (tmp_path / "tok" / "tokenizer.json").read_bytes()
    with pytest.raises(UsageError) as caught:
        run_tokenizer(["a.txt"], tmp_path / "tok", TokenizerConfig(vocab_size=270), CorpusConfig(), SilentProgress())
    assert str(caught.value) == f"{tmp_path / 'tok'} already contains a tokenizer; choose another --out"
    assert (tmp_path / "tok" / "tokenizer.json").read_bytes() == before


def test_text_becomes_shards_with_a_tokenizer_of_its_own(tmp_path):
    shards, _ = prepare(tmp_path)
    tokenizer = load_tokenizer(shards.tokenizer_folder)
    assert tokenizer.digest == shards.tokenizer_digest
    assert [tokenizer.decode(shards.ids(index).tolist()) for index in range(10)] == TEXT.splitlines()
    assert [source["name"] for source in shards.about["sources"]] == ["a.txt"]


def test_a_tokenizer_can_be_an_object_or_a_path(tmp_path):
    run_tokenizer(["a.txt"], tmp_path / "tok", SMALL, CorpusConfig(), SilentProgress())
    by_name, _ = prepare(tmp_path, tokenizer=tmp_path / "tok")
    in_hand, messages = prepare(tmp_path, tokenizer=load_tokenizer(tmp_path / "tok"))
    assert by_name.fingerprint == in_hand.fingerprint
    assert messages == [f"{tmp_path / 'out'} is up to date: 10 documents, {in_hand.num_tokens} tokens; reused"]


def test_unchanged_text_is_not_prepared_twice(tmp_path):
    first, messages = prepare(tmp_path)
    assert messages == []
    written = (tmp_path / "out" / "manifest.json").stat().st_ino
    again, messages = prepare(tmp_path)
    assert messages == [f"{tmp_path / 'out'} is up to date: 10 documents, {first.num_tokens} tokens; reused"]
    assert (tmp_path / "out" / "manifest.json").stat().st_ino == written
    # what does not change the tokens does not matter
    _, messages = prepare(tmp_path, corpus=CorpusConfig(held_out=0.5, layout="documents"))
    assert messages == [f"{tmp_path / 'out'} is up to date: 10 documents, {again.num_tokens} tokens; reused"]


@pytest.mark.parametrize("change", ["text", "time", "settings", "tokenizer", "files"])
def test_any_change_of_text_or_settings_repeats_the_preparation(tmp_path, change):
    first, _ = prepare(tmp_path)
    old, more = first.fingerprint, {}
    if change == "text":
        (tmp_path / "a.txt").write_text(TEXT + "one more\n")
    if change == "time":
        os.utime("a.txt", ns=(1, 1))
    if change == "settings":
        more["corpus"] = CorpusConfig(documents="file")
    if change == "tokenizer":
        more["config"] = TokenizerConfig(vocab_size=280)
    if change == "files":
        (tmp_path / "b.txt").write_text("other\n")
    second, messages = prepare(tmp_path, *(["*.txt"] if change == "files" else []), **more)
    assert messages == [f"{tmp_path / 'out'} was prepared from other text or with other settings; preparing it again"]
    assert second.fingerprint != old


def test_damaged_shards_are_prepared_anew(tmp_path):
    first, _ = prepare(tmp_path)
    tokens = first.flat.tolist()
    path = tmp_path / "out" / "tokens.bin"
    content = path.read_bytes()
    path.write_bytes(bytes(len(content)))
    second, messages = prepare(tmp_path)
    assert messages == [
        f"{path} is damaged: its bytes are not those that were written (sha256); preparing it again",
    ]
    assert second.flat.tolist() == tokens


@pytest.mark.parametrize("kind", ["tokenizer", "shards"])
def test_something_else_at_the_output_is_left_alone(tmp_path, kind):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.doc").write_text("years of work")
    runs = {
        "tokenizer": lambda: run_tokenizer(["a.txt"], tmp_path / "out", SMALL, CorpusConfig(), SilentProgress()),
        "shards": lambda: prepare(tmp_path),
    }
    with pytest.raises(UsageError) as caught:
        runs[kind]()
    assert str(caught.value) == (
        f"{tmp_path / 'out'} is not empty and is not a Headstart {kind} folder; choose another --out"
    )
    assert (tmp_path / "out" / "thesis.doc").read_text() == "years of work"


def test_an_empty_folder_is_accepted_as_output(tmp_path):
    (tmp_path / "out").mkdir()
    assert prepare(tmp_path)[0].num_documents == 10


def test_a_broken_file_is_reported_and_leaves_no_output(tmp_path):
    """The line is met inside the tokenizer's training, which is not in Python: its words must come through."""
    (tmp_path / "b.txt").write_bytes(b"fine\n\xff\n")
    with pytest.raises(DataError) as caught:
        prepare(tmp_path, "a.txt", "b.txt")
    assert str(caught.value) == (
        "b.txt, line 2: not UTF-8 (byte 1 is 0xff); it does not match any common encoding: save it as UTF-8, or "
        "set its encoding with corpus.encoding"
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.txt", "b.txt"]


def test_shards_are_not_text(tmp_path):
    prepare(tmp_path)
    assert is_shards("out")
    with pytest.raises(DataError) as caught:
        prepare(tmp_path, "a.txt", "out")
    assert str(caught.value) == (
        "out is a prepared folder, which contains tokens and no text; use the text files that it was prepared from"
    )


def labelled(tmp_path, path: str, out: str, **more):
    messages = Notebook()
    if not (tmp_path / "tok").exists():
        run_tokenizer(["a.txt"], tmp_path / "tok", SMALL, CorpusConfig(), SilentProgress())
    return run_prepare_labelled(
        path, tmp_path / out, LabelledConfig(), tokenizer=tmp_path / "tok", progress=messages, **more
    ), messages.lines


def test_labelled_text_becomes_shards_with_labels(tmp_path):
    (tmp_path / "train.csv").write_text("text,label\nfine,pos\ndull,neg\nso fine,pos\n")
    (tmp_path / "test.csv").write_text("text,label\nvery dull,neg\n")
    train, _ = labelled(tmp_path, "train.csv", "train")
    assert (train.labels, train.label_indices.tolist()) == (("neg", "pos"), [1, 0, 1])
    labels = LabelSet(train.labels)
    test, _ = labelled(tmp_path, "test.csv", "test", labels=labels, train_name="train.csv")
    assert (test.labels, test.label_indices.tolist()) == (("neg", "pos"), [0])
    _, messages = labelled(tmp_path, "train.csv", "train")
    assert messages == [f"{tmp_path / 'train'} is up to date: 3 documents, {train.num_tokens} tokens; reused"]


def test_a_label_that_train_does_not_have_stops_the_preparation(tmp_path):
    (tmp_path / "test.csv").write_text("text,label\nvery dull,ngative\n")
    with pytest.raises(DataError) as caught:
        labelled(tmp_path, "test.csv", "test", labels=LabelSet(("negative", "positive")), train_name="train.csv")
    assert str(caught.value) == (
        "test.csv, row 1: label 'ngative' does not occur in train.csv; did you mean 'negative'?"
    )
    assert not (tmp_path / "test").exists()


def test_changed_labels_beside_pieces_are_noticed(tmp_path):
    (tmp_path / "t.review.spm").write_text("▁fine\n▁dull\n", encoding="utf-8")
    (tmp_path / "t.label").write_text("1\n0\n")
    first, _ = labelled(tmp_path, "t.review.spm", "train")
    assert first.label_indices.tolist() == [1, 0]
    (tmp_path / "t.label").write_text("0\n1\n")
    os.utime("t.label", ns=(1, 1))
    second, _ = labelled(tmp_path, "t.review.spm", "train")
    assert second.label_indices.tolist() == [0, 1]


def test_a_tokenizer_learns_nothing_from_what_is_left_out(tmp_path):
    secret = "xylophonist " * 40
    (tmp_path / "texts.txt").write_text("\n".join(["a plain text of plain words"] * 5 + [secret]), encoding="utf-8")
    (tmp_path / "test.txt").write_text(secret, encoding="utf-8")
    learnt = {}
    for name, left_out in (("all", None), ("without", str(tmp_path / "test.txt"))):
        corpus = CorpusConfig(exclude=left_out)
        config = TokenizerConfig(vocab_size=400)
        run_tokenizer([str(tmp_path / "texts.txt")], tmp_path / name, config, corpus, SilentProgress())
        learnt[name] = len(load_tokenizer(tmp_path / name).encode("xylophonist"))
    assert learnt["all"] < 3 < learnt["without"]

"""Excluded texts are not trained on, a bundle lists the texts it was trained on, and comparisons count leaks."""

import csv
from pathlib import Path

import pytest

from fixtures.planted_copies import edited, reviews
from fixtures.recipes import finetune_run, pretrain_run
from fixtures.tiny import Listener, finetune_config, pretrain_config
from headstart.config.schema import LabelledConfig
from headstart.data.decontamination import MEMBERSHIP_FILE, Membership
from headstart.data.hashing import text_digest
from headstart.data.shards import Shards
from headstart.errors import DataError, UsageError
from headstart.files import read_json
from headstart.recipes.compare.run import CompareRequest, run_compare
from headstart.recipes.inspect import InspectRequest, run_inspect
from headstart.recipes.prepare import PrepareRequest, run_prepare
from headstart.report.load import load_comparison
from headstart.report.statistics import summarise
from headstart.store.bundle import Bundle, load_bundle, save_bundle

TEXTS = reviews(40, shortest=15, longest=30)
TEST = TEXTS[:4]
LINES = [*TEXTS, edited(TEXTS[0], 0.05, "changed"), " ".join(TEXTS[1].split()[:16]), f"{TEXTS[30]} {TEXTS[2]}"]


def table(path, texts):
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("text", "label"), *((text, "ab"[i % 2]) for i, text in enumerate(texts))])
    return str(path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """`base` was pretrained on the test rows, `clean` without them."""
    folder = tmp_path_factory.mktemp("leaks")
    (folder / "texts.txt").write_text("\n".join(LINES) + "\n", encoding="utf-8")
    test = table(folder / "test.csv", TEST)
    for name, excluded in (("base", None), ("clean", test)):
        config = pretrain_config(loop__steps=1, corpus__exclude=excluded)
        pretrain_run([str(folder / "texts.txt")], folder / name, config)
    return folder


def test_excluded_texts_and_their_near_duplicates_are_not_in_the_shards(folder):
    everything, kept = (set(Shards.open(folder / name / "tokens").digests.tolist()) for name in ("base", "clean"))
    assert everything == {text_digest(line) for line in LINES}
    assert kept == {text_digest(line) for line in TEXTS[4:]}


def test_excluded_texts_are_recorded(folder):
    excluded = read_json(folder / "clean" / "result.json")["excluded"]
    assert (excluded["exact"], excluded["near"], excluded["kept"]) == (4, 3, 36)
    (file,) = excluded["files"]
    assert (file["name"], len(file["sha256"])) == (str(folder / "test.csv"), 64)
    assert read_json(folder / "clean" / "inputs.json")["the excluded texts"] == excluded
    assert read_json(folder / "base" / "result.json")["excluded"] is None  # control


def test_the_tokenizer_is_not_trained_on_excluded_texts(folder):
    made = [read_json(folder / name / "result.json")["tokenizer"] for name in ("base", "clean")]
    assert made[0] != made[1]


def test_shards_are_prepared_again_if_other_texts_are_excluded(folder, tmp_path):
    config = pretrain_config(corpus__exclude=table(tmp_path / "out.csv", TEST))
    listener = Listener()

    def prepare(settings):
        del listener.lines[:]
        texts = [str(folder / "texts.txt")]
        return run_prepare(PrepareRequest(texts, tmp_path / "tokens", settings.corpus, settings.tokenizer), listener)

    assert prepare(config).num_documents == 36
    assert listener.lines == [
        f"excluded 4 exact duplicates and 3 near-duplicates of texts in {tmp_path / 'out.csv'}; 36 documents kept"
    ]
    prepare(config)
    assert listener.lines[0].startswith(f"{tmp_path / 'tokens'} is up to date")
    table(tmp_path / "out.csv", TEXTS[:7])
    assert prepare(config).num_documents == 33
    assert prepare(pretrain_config()).num_documents == len(LINES)


def test_several_files_to_exclude_are_separated_by_commas(folder, tmp_path):
    names = [table(tmp_path / "a.csv", TEXTS[:2]), table(tmp_path / "b.csv", TEXTS[2:4])]
    config = pretrain_config(loop__steps=1, corpus__exclude=", ".join(names))
    run = pretrain_run([str(folder / "texts.txt")], tmp_path / "run", config)
    assert read_json(run.path / "result.json")["excluded"]["kept"] == 36


def test_texts_cannot_be_excluded_from_prepared_tokens(folder, tmp_path):
    config = pretrain_config(loop__steps=1, corpus__exclude=str(folder / "test.csv"))
    with pytest.raises(UsageError) as caught:
        pretrain_run([str(folder / "base" / "tokens")], tmp_path / "run", config)
    assert str(caught.value) == (
        f"{folder / 'base' / 'tokens'} is already prepared; run headstart prepare again with corpus.exclude"
    )
    pretrain_run([str(folder / "clean" / "tokens")], tmp_path / "run", config)  # these have left it out already


def test_excluding_every_document_is_refused(folder, tmp_path):
    texts = str(folder / "texts.txt")
    with pytest.raises(DataError) as caught:
        pretrain_run([texts], tmp_path / "run", pretrain_config(corpus__exclude=texts))
    assert str(caught.value) == (f"corpus.exclude {texts} excludes every document; no text is left for training")


def test_a_bundle_knows_what_it_was_pretrained_on(folder):
    for name, rows in (("base", [0, 1, 2, 3]), ("clean", [])):
        members = Membership.load(folder / name / "bundle")
        assert members.rows_in(TEST) == rows
        assert members.rows_in(TEXTS[4:]) == list(range(36))
    load_bundle(folder / "clean")  # the file is one of the manifest's


def test_a_continued_model_remembers_both_texts(folder, tmp_path):
    (tmp_path / "more.txt").write_text("\n".join(reviews(20, seed=8)) + "\n", encoding="utf-8")
    config = pretrain_config(loop__steps=1)
    run = pretrain_run([str(tmp_path / "more.txt")], tmp_path / "on", config, backbone=str(folder / "clean"))
    members = Membership.load(run.path / "bundle")
    assert members.rows_in([*TEXTS[4:], *reviews(20, seed=8)]) == list(range(56))
    assert members.rows_in(TEST) == []


def test_a_model_continued_from_an_unknown_text_has_no_membership_file(folder, tmp_path):
    old = load_bundle(folder / "base")
    save_bundle(tmp_path / "old", Bundle(old.model, old.tokenizer, objective="causal"))
    run = pretrain_run(
        [str(folder / "texts.txt")], tmp_path / "on", pretrain_config(loop__steps=1), backbone=str(tmp_path / "old")
    )
    assert not (run.path / "bundle" / MEMBERSHIP_FILE).exists()
    inspection = run_inspect(
        InspectRequest(table(tmp_path / "t.csv", TEXTS[4:8]), backbone=str(run.path)), LabelledConfig()
    )
    assert (inspection.pretraining, inspection.notes) == (
        (),
        (f"{run.path} has no record of its pretraining text (no digests were saved)",),
    )


@pytest.mark.parametrize(("name", "seen"), [("base", 4), ("clean", 0)])
def test_inspect_counts_rows_that_the_model_was_pretrained_on(folder, tmp_path, name, seen):
    train = table(tmp_path / "train.csv", TEXTS[4:10])
    inspection = run_inspect(
        InspectRequest(train, test=str(folder / "test.csv"), backbone=str(folder / name)), LabelledConfig()
    )
    members = len(Membership.load(folder / name / "bundle"))
    assert [(one.rows, one.exact, one.near, one.documents) for one in inspection.pretraining] == [
        (6, 6, None, members),
        (4, seen, None, members),
    ]
    assert inspection.pretraining[0].false_positives == members / 2**40
    assert (inspection.files[0].context, inspection.files[0].lengths[1].unit) == (24, "tokens")


def test_fine_tuning_reports_test_rows_in_the_pretraining_text(folder, tmp_path):
    train, test = table(tmp_path / "train.csv", TEXTS[4:30]), str(folder / "test.csv")
    for name, words in (("base", "4 of the 4 texts of {} have"), ("clean", "none of the 4 texts of {} has")):
        listener, source = Listener(), str(folder / name)
        config = finetune_config(loop__epochs=1)
        run = finetune_run(train, tmp_path / name, config, backbone=source, test=test, progress=listener)
        note = f"{words.format(test)} an exact duplicate in the pretraining text of {source}"
        assert note in listener.lines
        assert note in read_json(run.path / "result.json")["notes"]


def test_a_comparison_counts_near_duplicates_like_exact_ones(folder, tmp_path):
    train = table(tmp_path / "train.csv", TEXTS[4:34])
    valid = table(tmp_path / "valid.csv", TEXTS[34:40])
    copies = [TEXTS[5], edited(TEXTS[6], 0.05, "changed"), *TEXTS[:3], f"{TEXTS[0]} {TEXTS[7]}"]
    test = table(tmp_path / "test.csv", copies)
    request = CompareRequest(
        train=train,
        out=tmp_path / "cmp",
        backbones=(str(folder / "clean"),),
        valid=valid,
        test=test,
        seeds=1,
        arms=("majority", "pretrained"),
    )
    page = run_compare(request, finetune_config(loop__epochs=1))
    data = read_json(tmp_path / "cmp" / "data.json")
    assert (data["test"]["overlap"], data["test"]["near"]) == ([0], [1, 5])
    assert f"1 of 6 texts of {test} has an exact duplicate in {train}" in data["notes"]
    assert (
        f"2 more of 6 texts of {test} have a near-duplicate in {train}: some words differ, or the text is "
        f"part of a longer one" in data["notes"]
    )
    seen = f"1 of the 6 texts of {test} has an exact duplicate in the pretraining text of {folder / 'clean'}"
    assert seen in data["notes"]
    comparison = load_comparison(Path(page).parent)
    (record,) = comparison.runs_of("majority", "all")
    right = [record.predictions[row] == data["test"]["gold"][row] for row in (2, 3, 4)]
    assert summarise(comparison, "majority", "all").without_overlap == pytest.approx(sum(right) / 3)
    assert (
        "without the 1 test text with an exact duplicate in train and the 2 with a near-duplicate."
        in Path(page).read_text()
    )

"""Every bundle has a model card that hubs can read, without quoted texts and without names of folders."""

import hashlib
import json
import re

import pytest

from fixtures.recipes import finetune_run, pretrain_run
from fixtures.tiny import finetune_config, pretrain_config, write_reviews
from headstart.errors import StoreError
from headstart.files import _canonical_json, read_json, write_json
from headstart.store.bundle import load_bundle
from headstart.store.model_card import base_name, model_card, redact_paths, strip_markup


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A language model and two classifiers, with and without a test file, in folders with telling names."""
    folder = write_reviews(tmp_path_factory.mktemp("jane's secret plans"), valid=60)
    texts = {"valid": str(folder / "valid.csv")}
    pretrain_run([str(folder / "texts.txt")], folder / "base", pretrain_config(loop__steps=2))
    config = finetune_config(loop__epochs=1)
    train = str(folder / "train.csv")
    finetune_run(train, folder / "clf", config, backbone=str(folder / "base"), test=str(folder / "test.csv"), **texts)
    finetune_run(train, folder / "untested", config, backbone="scratch")
    return folder


def card(folder, name):
    return (folder / name / "bundle" / "README.md").read_text("utf-8")


def metadata(text):
    """The metadata and the text of a card, as the library of the Hub reads them."""
    hub = pytest.importorskip("huggingface_hub")
    parsed = hub.ModelCard(text)
    return parsed.data, parsed.text


def test_a_language_models_card_says_what_it_is_and_what_it_was_measured_at(folder):
    result = read_json(folder / "base" / "result.json")
    data, text = metadata(card(folder, "base"))
    assert (data.library_name, data.license, data.pipeline_tag) == ("headstart", "unknown", "text-generation")
    assert data.tags == ["headstart", "pytorch", "safetensors", "text-generation"]
    (evaluation,) = data.eval_results
    assert (evaluation.dataset_name, evaluation.metric_type) == ("held-out documents of texts.txt", "perplexity")
    assert evaluation.metric_value == pytest.approx(result["held_out"]["perplexity"], abs=1e-3)
    assert f"| `texts.txt` | {(folder / 'texts.txt').stat().st_size:,} | `{result['sources'][0]['sha256']}` |" in text
    assert 'headstart generate path/to/this/folder "The film is"' in text
    assert "## Limits" in text


def test_a_card_names_the_teacher_and_the_weight_of_its_loss(folder):
    facts = read_json(folder / "base" / "bundle" / "bundle.json")
    taught = facts | {"about": facts["about"] | {"teacher": {"name": "/home/jane/large", "weight": 0.25}}}
    sentence = (
        " It was trained by knowledge distillation from `large`: the loss on the teacher's probabilities had a weight "
        "of 0.25, and the loss on the text a weight of 0.75. "
    )
    assert sentence in model_card(taught, 1)
    assert "distillation" not in model_card(facts, 1)  # control


def test_a_classifiers_card_has_figures_with_intervals_data_with_hashes_and_calibration(folder):
    result = read_json(folder / "clf" / "result.json")
    data, text = metadata(card(folder, "clf"))
    assert (data.pipeline_tag, data.metrics) == ("text-classification", ["accuracy", "f1"])
    metrics = {
        (evaluation.dataset_name, evaluation.metric_type): evaluation.metric_value for evaluation in data.eval_results
    }
    assert metrics["test.csv", "accuracy"] == round(result["test"]["accuracy"], 4)
    assert metrics["valid.csv", "f1"] == round(result["valid"]["macro_f1"], 4)
    assert re.search(r"\| test \(read once\) \| [\d.]+ % \| [\d.]+ to [\d.]+ \| 0\.\d{3} \| 24 \|", text)
    for split in result["data"].values():
        assert f"`{split['sha256']}`" in text
    error = result["calibration"]["test"]
    assert f"Calibration error on test: {100 * error['ece']:.1f} points (95 % interval " in text
    assert "from the pretrained model `base`" in text


def test_a_classifier_that_met_no_test_set_says_so(folder):
    _, text = metadata(card(folder, "untested"))
    assert "from random weights" in text
    assert (
        "It was not evaluated on a test set: the metrics on validation were used to choose it and are optimistic."
        in text
    )
    assert "held-out rows of train.csv" in text


def test_a_card_says_how_the_epoch_was_chosen_and_how_the_model_compares(folder):
    facts = read_json(folder / "clf" / "bundle" / "bundle.json")
    about = facts["about"]
    best = model_card(facts, 1)
    sentence = about["quality"]["sentence"].replace("`", "")
    assert f"; the epoch was chosen on validation.\n\n{sentence[0].upper()}{sentence[1:]}.\n" in best
    assert "| validation (it chose the epoch) |" in best
    last = model_card(facts | {"about": about | {"select": "last", "test": None}}, 1)
    assert "; the last epoch was kept.\n" in last
    assert "| validation |" in last
    assert "It was not evaluated on a test set: the metrics on validation are the only ones available." in last
    assert "chose" not in last


def test_a_card_says_that_a_temperature_is_at_its_bound(folder):
    facts = read_json(folder / "clf" / "bundle" / "bundle.json")
    for bound, end in (
        (None, ""),
        ("the highest that is tried: it says little", " It is the highest that is tried: it says little."),
    ):
        calibration = facts["about"]["calibration"] | {"reason": None, "temperature": 20.0, "rows": 60, "bound": bound}
        text = model_card(facts | {"about": facts["about"] | {"calibration": calibration}}, 1)
        assert f"Logits were divided by a temperature of 20.00, fitted on 60 validation rows.{end}\n" in text


def test_a_card_says_that_a_temperature_made_the_calibration_error_worse(folder):
    facts = read_json(folder / "clf" / "bundle" / "bundle.json")
    calibration = facts["about"]["calibration"]
    for change, is_worse in ((0.01, False), (-0.01, True)):
        before = calibration["after"] | {"ece": calibration["after"]["ece"] + change}
        text = model_card(facts | {"about": facts["about"] | {"calibration": calibration | {"before": before}}}, 1)
        sentence = (
            f"Without the temperature it was {100 * before['ece']:.1f} points on validation: only the "
            f"log-loss decreased.\n"
        )
        assert (sentence in text) is is_worse


def test_a_note_on_a_placeholder_with_a_slash_is_kept(folder):
    facts = read_json(folder / "clf" / "bundle" / "bundle.json")
    facts["about"]["notes"] = ["2 rows have the label 'N/A'", "see a/b.csv"]
    text = model_card(facts, 1)
    assert "- 2 rows have the label 'N/A'" in text
    assert "b.csv" not in text


@pytest.mark.parametrize("name", ["base", "clf", "untested"])
def test_no_folder_is_named_and_no_text_is_quoted(folder, name):
    text = card(folder, name)
    assert "secret" not in text
    assert str(folder) not in text
    assert str(folder) in json.dumps(read_json(folder / name / "run.json"))  # control: the run knows where it was
    texts = (folder / "texts.txt").read_text().splitlines() + (folder / "test.csv").read_text().splitlines()[1:]
    assert not [line for line in texts if line.split(",")[0] in text]


@pytest.mark.parametrize("name", ["base", "clf", "untested"])
def test_no_folder_is_named_in_the_file_that_goes_with_the_weights(folder, name):
    content = json.dumps(read_json(folder / name / "bundle" / "bundle.json"))
    assert "secret" not in content
    assert ".csv" in content or ".txt" in content  # files are named
    assert str(folder) in json.dumps(read_json(folder / name / "run.json"))  # control


def test_a_run_keeps_its_files_as_they_were_typed_and_its_bundle_by_name(folder):
    result, about = read_json(folder / "clf" / "result.json"), load_bundle(folder / "clf").about
    assert result["source"] == str(folder / "base")
    assert about["source"] == "base"
    assert result["data"]["test"]["name"] == str(folder / "test.csv")
    assert about["data"]["test"] == result["data"]["test"] | {"name": "test.csv"}
    assert {name for name in result if result[name] != about[name]} == {"source", "data", "notes"}


def test_names_in_sentences_stages_and_imports_lose_their_folders():
    about = {
        "notes": ["12 of 24 texts of /home/jane/a/test.csv also stand in /home/jane/a/train.csv"],
        "data": {
            "test": {"name": "/home/jane/a/test.csv"},
            "valid": {"name": "held-out rows of /home/jane/a/train.csv"},
        },
        "stages": [{"texts": ["/home/jane/a/*.txt"], "excluded": {"files": [{"name": "a/test.csv", "size": 3}]}}],
        "imported_from": "hf:/home/jane/tiny",
        "parameters": {"backbone": r"C:\Users\jane\base", "epochs": 3},
    }
    assert redact_paths(about) == {
        "notes": ["12 of 24 texts of test.csv also stand in train.csv"],
        "data": {"test": {"name": "test.csv"}, "valid": {"name": "held-out rows of train.csv"}},
        "stages": [{"texts": ["*.txt"], "excluded": {"files": [{"name": "test.csv", "size": 3}]}}],
        "imported_from": "hf:tiny",
        "parameters": {"backbone": "base", "epochs": 3},
    }


def test_a_card_may_be_edited_or_taken_away_and_nothing_else_may(folder):
    bundle = folder / "untested" / "bundle"
    path = bundle / "README.md"
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b'license: "unknown"', b"license: mit"))
    assert path.read_bytes() != whole
    load_bundle(folder / "untested")
    path.unlink()
    load_bundle(folder / "untested")
    path.write_bytes(whole)
    assert "README.md" not in read_json(bundle / "manifest.json")["files"]
    facts = bundle / "bundle.json"
    content = facts.read_bytes()
    facts.write_bytes(content + b"\n")
    with pytest.raises(StoreError) as error:
        load_bundle(folder / "untested")
    assert str(error.value) == f"{facts} is damaged: {len(content) + 1} bytes where {len(content)} were written"
    facts.write_bytes(content)


def test_a_card_that_an_older_list_names_may_be_edited_too(folder):
    bundle = folder / "untested" / "bundle"
    manifest, path = read_json(bundle / "manifest.json"), bundle / "manifest.json"
    content = path.read_bytes()
    manifest.pop("seal")
    manifest["files"]["README.md"] = {"size": 1, "sha256": "0" * 64}
    write_json(path, manifest | {"seal": hashlib.sha256(_canonical_json(manifest)).hexdigest()})
    load_bundle(folder / "untested")
    manifest["files"]["readme.md"] = manifest["files"].pop("README.md")  # control: another name is looked at
    write_json(path, manifest | {"seal": hashlib.sha256(_canonical_json(manifest)).hexdigest()})
    with pytest.raises(StoreError):
        load_bundle(folder / "untested")
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("/home/jane/train.csv", "train.csv"),
        (r"C:\Users\jane\train.csv", "train.csv"),
        ("runs/base/", "base"),
        ("held-out rows of /home/jane/my data/train.csv", "held-out rows of train.csv"),
        ("https://jane:key@example.org/a/texts.txt?token=abc", "texts.txt"),
        ("/", "(unnamed)"),
        ("a`b|c\n---.csv", "a b c ---.csv"),
    ],
)
def test_a_file_is_named_without_its_folders(name, shown):
    assert base_name(name) == shown


def test_a_name_can_end_neither_the_metadata_nor_a_table(folder):
    facts = read_json(folder / "clf" / "bundle" / "bundle.json")
    facts["labels"] = ['"]\n---\n# evil', "<script>|"]
    facts["about"]["data"]["test"]["name"] = 'x/"\n---\nlicense: mit\n|`.csv'
    facts["about"]["notes"] = ["see /home/jane/notes.txt", "a fine | note"]
    text = model_card(facts, 1000)
    data, words = metadata(text)
    assert data.license == "unknown"
    assert text.count("\n---\n") == 1
    assert "<script" not in words
    assert "jane" not in text
    assert "- a fine note" in words


def test_stripping_markup_keeps_letters_and_punctuation():
    assert strip_markup("très bien — 10 %") == "très bien — 10 %"

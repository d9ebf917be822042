"""Every bundle carries a card that hubs can read, which quotes nobody and names no folder of anybody's."""

import json
import re

import pytest

from headstart.errors import StoreError
from headstart.files import read_json
from headstart.recipes.finetune import run_finetune
from headstart.recipes.pretrain import run_pretrain
from headstart.store.bundle import load_bundle
from headstart.store.card import bare, model_card, plain
from tiny import finetune_config, pretrain_config, write_reviews


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A language model and two classifiers, with and without a test file, in folders with telling names."""
    folder = write_reviews(tmp_path_factory.mktemp("jane's secret plans"), valid=60)
    texts = {"valid": str(folder / "valid.csv")}
    run_pretrain([str(folder / "texts.txt")], folder / "base", pretrain_config(loop__steps=2))
    config = finetune_config(loop__epochs=1)
    train = str(folder / "train.csv")
    run_finetune(train, folder / "clf", config, source=str(folder / "base"), test=str(folder / "test.csv"), **texts)
    run_finetune(train, folder / "untested", config, source="scratch")
    return folder


def card(folder, name):
    return (folder / name / "bundle" / "README.md").read_text("utf-8")


def metadata(text):
    """What a hub reads: the lines between the dashes, as the hub's own library reads them."""
    hub = pytest.importorskip("huggingface_hub")
    found = hub.ModelCard(text)
    return found.data, found.text


def test_a_language_models_card_says_what_it_is_and_what_it_was_measured_at(folder):
    result = read_json(folder / "base" / "result.json")
    data, text = metadata(card(folder, "base"))
    assert (data.library_name, data.license, data.pipeline_tag) == ("headstart", "unknown", "text-generation")
    assert data.tags == ["headstart", "pytorch", "safetensors", "text-generation"]
    (found,) = data.eval_results
    assert (found.dataset_name, found.metric_type) == ("held-out documents of texts.txt", "perplexity")
    assert found.metric_value == pytest.approx(result["held_out"]["perplexity"], abs=1e-3)
    assert f"| `texts.txt` | {(folder / 'texts.txt').stat().st_size:,} | `{result['sources'][0]['sha256']}` |" in text
    assert 'headstart generate path/to/this/folder "The film is"' in text
    assert "## Limits" in text


def test_a_classifiers_card_has_figures_with_intervals_data_with_hashes_and_calibration(folder):
    result = read_json(folder / "clf" / "result.json")
    data, text = metadata(card(folder, "clf"))
    assert (data.pipeline_tag, data.metrics) == ("text-classification", ["accuracy", "f1"])
    found = {(each.dataset_name, each.metric_type): each.metric_value for each in data.eval_results}
    assert found["test.csv", "accuracy"] == round(result["test"]["accuracy"], 4)
    assert found["valid.csv", "f1"] == round(result["valid"]["macro_f1"], 4)
    assert re.search(r"\| test \(read once\) \| [\d.]+ % \| [\d.]+ to [\d.]+ \| 0\.\d{3} \| 24 \|", text)
    for split in result["data"].values():
        assert f"`{split['sha256']}`" in text
    error = result["calibration"]["test"]
    assert f"Calibration error on test: {100 * error['ece']:.1f} points (95 % interval " in text
    assert "from the pretrained model `base`" in text


def test_a_classifier_that_met_no_test_set_says_so(folder):
    _, text = metadata(card(folder, "untested"))
    assert "from random weights" in text
    assert "It was not measured on a test set: the figures on validation chose it and flatter it." in text
    assert "held-out rows of train.csv" in text


@pytest.mark.parametrize("name", ["base", "clf", "untested"])
def test_no_folder_is_named_and_no_text_is_quoted(folder, name):
    text = card(folder, name)
    assert "secret" not in text
    assert str(folder) not in text
    assert str(folder) in json.dumps(read_json(folder / name / "run.json"))  # control: the run knows where it was
    texts = (folder / "texts.txt").read_text().splitlines() + (folder / "test.csv").read_text().splitlines()[1:]
    assert not [line for line in texts if line.split(",")[0] in text]


def test_a_changed_card_is_noticed_like_any_other_file(folder):
    path = folder / "untested" / "bundle" / "README.md"
    whole = path.read_bytes()
    path.write_bytes(whole + b"!")
    with pytest.raises(StoreError) as error:
        load_bundle(folder / "untested")
    assert str(error.value) == f"{path} is damaged: {len(whole) + 1} bytes where {len(whole)} were written"
    path.write_bytes(whole)
    load_bundle(folder / "untested")  # control


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
    assert bare(name) == shown


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


def test_words_keep_their_letters():
    assert plain("très bien — 10 %") == "très bien — 10 %"

"""Run folders: removal on error, rewound metrics, and refused files."""

import errno

import pytest

from fixtures.tiny import SHAPE, finetune_config
from headstart.config.schema import TokenizerConfig
from headstart.errors import DataError, StoreError, UsageError
from headstart.files import _checksum, atomic_folder, read_json, sha256_of, write_json
from headstart.model.heads import LanguageHead, Model
from headstart.model.transformer import Backbone
from headstart.store.bundle import Bundle, load_bundle, save_bundle
from headstart.store.run_folder import RunFolder
from headstart.tokenization.bpe import train_tokenizer


@pytest.fixture
def run(tmp_path):
    return RunFolder.create(tmp_path / "run", kind="finetune", command="", config=finetune_config(), inputs={})


@pytest.mark.parametrize("new", [True, False])
def test_wrong_inputs_take_a_new_folder_away_and_never_an_old_one(run, new):
    with pytest.raises(DataError), run.remove_on_error(new=new):
        raise DataError("train.csv has no rows")
    assert run.path.exists() is not new


def test_buffered_metrics_are_rewound_too(run):
    run.metrics.flush()
    run.metrics.write("step", step=1)
    assert not run.metrics.path.exists()  # control: it does wait
    run.metrics.rewind(0)
    assert run.metrics.read() == []


def test_buffered_metrics_are_written_when_the_run_ends(run):
    with run.locked():
        run.metrics.flush()
        run.metrics.write("step", step=1)
    assert RunFolder(run.path).metrics.read() == [{"kind": "step", "step": 1}]


def test_metrics_shorter_than_a_checkpoint_remembers_are_damaged(run):
    run.metrics.write("epoch", epoch=1)
    size = run.metrics.size()
    with pytest.raises(StoreError) as caught:
        run.metrics.rewind(size + 5)
    assert str(caught.value) == f"{run.metrics.path} is damaged: {size} bytes where {size + 5} were written"


def test_a_run_of_another_format_is_refused(run):
    write_json(run.path / "run.json", run.facts | {"format": 99})
    with pytest.raises(StoreError) as caught:
        RunFolder.open(run.path, kind="finetune")
    assert (
        str(caught.value)
        == f"{run.path} has format 99, this version of Headstart reads 2; update Headstart, or start another run"
    )


def test_a_full_disk_is_reported_and_leaves_no_draft(tmp_path):
    with pytest.raises(StoreError) as caught, atomic_folder(tmp_path / "x", kind="bundle") as draft:
        (draft / "half.bin").write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")
    assert str(caught.value) == f"cannot write {tmp_path / 'x'}: No space left on device; nothing was changed"
    assert list(tmp_path.iterdir()) == []


def bundle(folder, tokenizer):
    size = tokenizer.vocab_size
    model = Model(Backbone(SHAPE, size), LanguageHead(SHAPE, size))
    save_bundle(folder, Bundle(model, tokenizer, objective="causal"))
    return folder


def test_a_file_where_a_folder_should_be_is_named(tmp_path):
    (tmp_path / "a.csv").write_text("text\n")
    reason = f"{tmp_path / 'a.csv'} is a file, not a folder"
    target = tmp_path / "a.csv" / "x"
    with pytest.raises(StoreError) as caught, atomic_folder(target, kind="bundle"):
        pass
    assert str(caught.value) == f"cannot write {target}: {reason}; nothing was changed"
    with pytest.raises(UsageError) as refused:
        RunFolder.create(target / "y", kind="finetune", command="", config=finetune_config(), inputs={})
    assert str(refused.value) == f"cannot create the folder {target / 'y'}: {reason}"
    assert (tmp_path / "a.csv").read_text() == "text\n"


@pytest.mark.parametrize("name", ["backbone.safetensors", "head.safetensors", "bundle.json"])
def test_a_changed_byte_of_a_model_is_refused_by_name(tmp_path, name):
    """A changed weight is still a valid weight, so only the manifest can show the damage."""
    folder = bundle(tmp_path / "b", train_tokenizer(["le livre est beau"] * 9, TokenizerConfig(vocab_size=265)))
    path = folder / name
    content = path.read_bytes()
    path.write_bytes(
        content[:-1] + bytes([content[-1] ^ 1]) if name != "bundle.json" else content.replace(b"12", b"13")
    )
    with pytest.raises(StoreError) as caught:
        load_bundle(folder)
    assert str(caught.value) == f"{path} is damaged: its bytes are not those that were written (sha256)"


def test_a_bundle_with_the_tokenizer_of_another_is_refused(tmp_path):
    """The manifest is rewritten after the exchange, as by a faulty program."""
    one, other = (
        train_tokenizer([text] * 9, TokenizerConfig(vocab_size=265)) for text in ("le livre est beau", "quite another")
    )
    assert one.vocab_size == other.vocab_size  # control: only the digest can tell
    folder = bundle(tmp_path / "b", one)
    other.save(folder / "tokenizer")
    manifest = read_json(folder / "manifest.json")
    manifest.pop("seal")
    path = folder / "tokenizer" / "tokenizer.json"
    manifest["files"]["tokenizer/tokenizer.json"] = {"size": path.stat().st_size, "sha256": sha256_of(path)}
    write_json(folder / "manifest.json", manifest | {"seal": _checksum(manifest)})
    with pytest.raises(StoreError) as caught:
        load_bundle(folder)
    assert str(caught.value) == f"{folder / 'tokenizer'} is not the tokenizer that this model was trained with"

"""Nothing that a file says is ever run, and no file takes more of the machine than it is worth."""

import gzip
import json
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fixtures.tiny import VOCABULARY, language_model
from headstart.config.schema import CorpusConfig, ModelConfig, TokenizerConfig
from headstart.data import io as opening
from headstart.data.corpus import read_documents
from headstart.errors import DataError, StoreError, UsageError
from headstart.files import atomic_folder, read_checksummed, read_json, read_manifest, write_checksummed
from headstart.model.parameter_count import count_parameters
from headstart.recipes.finetune.run import load_backbone
from headstart.store.bundle import Bundle, load_bundle, save_bundle
from headstart.store.tensors import load_tensors
from headstart.tokenization.bpe import train_tokenizer
from headstart.tokenization.tokenizer import load_tokenizer


@pytest.fixture(scope="module")
def heard(once):
    return json.loads(once("audit.py", "{folder}"))


@pytest.mark.slow
def test_no_command_runs_loads_or_calls_anything_that_a_file_names(heard):
    assert heard["heard"] == []
    assert heard["canaries"] == []


@pytest.mark.slow
def test_every_command_ran_and_the_hook_does_hear(heard):
    assert [row for row in heard["codes"] if row[2]] == []
    assert len({row[1] for row in heard["codes"]}) == 11
    assert heard["count"] > 1000
    assert heard["control"] == ["compile", "pickle.find_class"]


PICKLES = {
    "archive": lambda path: torch.save({"a": torch.zeros(2)}, path),
    "legacy": lambda path: torch.save({"a": torch.zeros(2)}, path, _use_new_zipfile_serialization=False),
    "pickle": lambda path: path.write_bytes(pickle.dumps({"a": 1})),
}
WORDS = "is a pickle, which may run code when it is opened; Headstart does not open pickles."


def refused(kind, work, *arguments):
    with pytest.raises(kind) as caught:
        work(*arguments)
    return str(caught.value)


@pytest.mark.parametrize("kind", PICKLES)
def test_a_pickle_is_refused_wherever_it_is_given(kind, tmp_path):
    path = tmp_path / "weights.pt"
    PICKLES[kind](path)
    convert = (
        'If you trust it, convert it once: python -c "import torch, safetensors.torch as s; '
        "d = torch.load('weights.pt', map_location='cpu', weights_only=True); "
        "s.save_file({k: v.contiguous() for k, v in d.get('model_state_dict', d).items()}, 'weights.safetensors')\", "
        "then see headstart import --help"
    )
    assert refused(UsageError, load_bundle, path) == f"{path} {WORDS} {convert}"
    assert refused(UsageError, load_backbone, str(tmp_path)) == f"{path} {WORDS} {convert}"
    assert refused(StoreError, load_tensors, path) == f"{path} {WORDS} {convert}"
    assert refused(UsageError, load_tokenizer, path).startswith(f"{path} {WORDS} Expected tokenizer.json")
    for name in ("weights.pt", "texts.txt", "table.csv", "rows.jsonl", "list.json"):
        target_folder = path.rename(tmp_path / name)
        assert refused(DataError, texts, target_folder) == (
            f"{target_folder} {WORDS} If you trust it, save its texts as .jsonl or .csv"
        )
        path = target_folder


def texts(path):
    from headstart.data.sources import expand_paths

    return list(read_documents(expand_paths([str(path)]), CorpusConfig()))


def test_the_lines_that_convert_do_convert(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save({"a": torch.arange(3)}, "weights.pt")
    command = refused(StoreError, load_tensors, Path("weights.pt")).partition('python -c "')[2].partition('"')[0]
    subprocess.run([sys.executable, "-c", command], check=True)
    assert load_tensors(Path("weights.safetensors"))["a"].tolist() == [0, 1, 2]


def test_a_gzip_bomb_is_not_unpacked(tmp_path, monkeypatch):
    monkeypatch.setattr(opening, "MAX_LINE_BYTES", 1 << 16)
    bomb, text = tmp_path / "bomb.txt.gz", tmp_path / "text.txt.gz"
    bomb.write_bytes(gzip.compress(b"a line\n" * 1_000_000))
    text.write_bytes(gzip.compress("".join(f"line {number}\n" for number in range(20_000)).encode()))
    assert refused(DataError, texts, bomb) == (
        f"{bomb} unpacks to more than 200 times its size, which text does not; decompress it yourself to read it"
    )
    assert len(texts(text)) == 20_000  # control


def test_a_gzipped_parquet_bomb_fills_no_disk(tmp_path, monkeypatch):
    monkeypatch.setattr(opening, "MAX_LINE_BYTES", 1 << 16)
    path = tmp_path / "bomb.parquet.gz"
    path.write_bytes(gzip.compress(bytes(20_000_000)))
    assert refused(DataError, texts, path).startswith(f"{path} unpacks to more than 200 times its size")


def made(folder):
    with atomic_folder(folder, kind="bundle") as draft:
        (draft / "inner").mkdir()
        (draft / "inner" / "a.bin").write_bytes(b"weights")
    return folder


def test_a_folder_that_is_a_link_out_is_refused(tmp_path):
    folder = made(tmp_path / "x")
    (folder / "inner").rename(tmp_path / "elsewhere")
    (folder / "inner").symlink_to(tmp_path / "elsewhere")
    message = f"{folder / 'inner' / 'a.bin'} is missing; {folder} is damaged"
    assert refused(StoreError, lambda: read_manifest(folder, kind="bundle")) == message


def test_a_device_in_the_place_of_a_file_is_refused(tmp_path):
    (tmp_path / "run.json").symlink_to("/dev/zero")
    message = f"{tmp_path / 'run.json'} is not a file; expected a JSON file of Headstart"
    assert refused(StoreError, read_json, tmp_path / "run.json") == message


def test_a_shape_that_asks_for_all_memory_is_refused_before_it_is_built(tmp_path):
    from faults.readers import seal

    tokenizer = train_tokenizer(["le livre est beau"] * 9, TokenizerConfig(vocab_size=265))
    folder = tmp_path / "b"
    save_bundle(folder, Bundle(language_model(), tokenizer, objective="causal"))
    facts = read_json(folder / "bundle.json")
    facts["vocab_size"] = 10**12
    (folder / "bundle.json").write_text(json.dumps(facts))
    seal(folder, ("bundle.json",))
    summary = count_parameters(ModelConfig(**facts["model"]), 10**12, None).total
    saved = count_parameters(ModelConfig(**facts["model"]), VOCABULARY, None).total
    assert refused(StoreError, load_bundle, folder) == (
        f"{folder / 'bundle.json'} is damaged: it describes {summary:,} parameters, and the files contain {saved:,}"
    )


def test_a_seal_under_a_damaged_name_is_a_damaged_seal(tmp_path):
    path = tmp_path / "plan.json"
    write_checksummed(path, {"steps": 7})
    assert read_checksummed(path) == {"steps": 7}
    path.write_text(path.read_text().replace('"seal"', '"seam"'))
    assert refused(StoreError, read_checksummed, path) == f"{path} is damaged: it is not what was written (sha256)"
    path.write_text('{"steps": 8}')
    assert read_checksummed(path) == {"steps": 8}  # written by hand, or before there were seals

"""What gave under torture once, kept so that it does not give again."""

import errno
import json
import os
import shutil
import signal
from importlib.util import find_spec

import pytest
import torch

from faults.asking import Desk, request
from faults.damage import save_step, started
from faults.disk import Disk, broken, full
from faults.readers import seal
from faults.runs import write_data
from fixtures.recipes import finetune_run, pretrain_run
from fixtures.tiny import SPECIAL, Listener, finetune_config, language_model, pretrain_config
from headstart.config.merge import read_toml
from headstart.config.schema import PretrainConfig
from headstart.data.shards import Shards
from headstart.errors import ConfigError, Interrupted, StoreError
from headstart.files import atomic_folder, read_json
from headstart.interrupts import StopRequested, StopSignal
from headstart.predict.generate import Sampling, sample_token
from headstart.recipes.finetune.trainer import FinetuneTrainer
from headstart.store.bundle import load_bundle
from headstart.store.checkpoint import best_folder, checkpoint_steps, newest_valid, resume_from
from headstart.store.records import read_excerpts
from headstart.store.run_folder import RunFolder
from headstart.tokenization.hf import read_engine


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_data(tmp_path_factory.mktemp("data"))


def refused(kind, work, *arguments, **named):
    with pytest.raises(kind) as caught:
        work(*arguments, **named)
    return str(caught.value)


def create(out):
    return RunFolder.create(out, kind="pretrain", command="", config=pretrain_config(), inputs={})


def test_a_run_killed_before_it_began_can_be_begun_again(tmp_path):
    out = tmp_path / "run"
    for number in range(20):
        child = os.fork()
        if child == 0:
            with Disk(out, number, lambda: os.kill(os.getpid(), signal.SIGKILL)):
                create(out)
            os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code == 0:
            break
        if not (out / "run.json").exists():
            create(out)
        assert RunFolder.open(out, kind="pretrain").settings
        shutil.rmtree(out)
    assert number > 5  # control: it was killed before


def test_a_folder_with_anything_else_in_it_is_not_taken_for_a_beginning(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(Exception, match="is not empty; choose another --out"):
        create(tmp_path)


@pytest.mark.parametrize("act", [full, broken])
def test_a_disk_that_takes_no_new_folder_is_told_in_one_line(tmp_path, act):
    words = os.strerror(errno.ENOSPC if act is full else errno.EIO)
    with Disk(tmp_path, 1, act), pytest.raises(StoreError) as caught, atomic_folder(tmp_path / "x", kind="bundle"):
        pass
    assert str(caught.value) == f"cannot write {tmp_path / 'x'}: {words}; nothing was changed"


def test_a_flush_that_fails_at_the_very_end_leaves_what_was_there(tmp_path):
    for content in (b"old", b"new"):
        with Disk(tmp_path) as disk, atomic_folder(tmp_path / "x", kind="bundle") as draft:
            (draft / "a").write_bytes(content)
    last = max(number for number, operation in enumerate(disk.log) if operation.startswith("flush"))
    with Disk(tmp_path, last, broken), pytest.raises(StoreError), atomic_folder(tmp_path / "x", kind="bundle") as draft:
        (draft / "a").write_bytes(b"newest")
    assert (tmp_path / "x" / "a").read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["x"]


def test_the_draft_of_another_process_is_left_alone_while_it_lives(tmp_path):
    living, dead = (tmp_path / f".x.writing-{number}" for number in (os.getppid(), 2**22 + 1))
    for draft in (living, dead):
        draft.mkdir()
    with atomic_folder(tmp_path / "x", kind="bundle"):
        pass
    assert sorted(path.name for path in tmp_path.iterdir()) == [living.name, "x"]


def test_a_checkpoint_may_be_damaged_twice(tmp_path):
    run = started(tmp_path / "run")
    for _ in range(2):
        save_step(run, 2, keep=2)
        (checkpoint_steps(run)[-1] / "state.json").write_text("{}")
        assert resume_from(run, language_model(), lambda _: None)[1]["step"] == 1


def test_a_disk_that_cannot_read_a_checkpoint_gives_the_one_before(tmp_path, monkeypatch):
    run = started(tmp_path / "run")
    bad = checkpoint_steps(run)[-1] / "head.safetensors"
    from headstart import files

    hashed = files.sha256_of

    def worn(path):
        if path == bad:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return hashed(path)

    monkeypatch.setattr(files, "sha256_of", worn)
    output = []
    assert newest_valid(run, output.append) == checkpoint_steps(run)[0]
    assert output == [f"cannot read {bad}: Input/output error; trying the previous checkpoint"]


class StopAt(StopSignal):
    def __init__(self, moment):
        super().__init__()
        self.left = moment

    def check(self):
        self.left -= 1
        if not self.left:
            self.reason = "SIGTERM"
            raise StopRequested


def test_a_run_whose_best_epoch_is_damaged_starts_over_and_ends_the_same(data, tmp_path, monkeypatch):
    files = {name: str(data / f"{name}.csv") for name in ("valid", "test")}
    settings = {"backbone": str(data / "base"), **files}
    whole = finetune_run(str(data / "train.csv"), tmp_path / "whole", finetune_config(), **settings)
    go = FinetuneTrainer.train

    def stopped(own, *, resume):
        own.stop = StopAt(15)
        return go(own, resume=resume)

    monkeypatch.setattr(FinetuneTrainer, "train", stopped)
    with pytest.raises(Interrupted):
        finetune_run(str(data / "train.csv"), tmp_path / "run", finetune_config(), **settings)
    monkeypatch.undo()
    (best,) = (tmp_path / "run").glob("best-0*")
    (best / "head.safetensors").write_bytes(b"")
    output = Listener()
    finetune_run(None, tmp_path / "run", None, resume=True, progress=output)
    assert any(line.startswith(f"{best / 'head.safetensors'} is damaged: 0 bytes where") for line in output.lines)
    assert f"no complete checkpoint is left in {tmp_path / 'run'}: starting from step 0" in output.lines
    assert (tmp_path / "run" / "result.json").read_bytes() == (whole.path / "result.json").read_bytes()


def test_a_checkpoint_keeps_the_best_epoch_that_it_speaks_of(data, tmp_path, monkeypatch):
    """With several checkpoints kept, the older ones may speak of an earlier epoch."""
    files = {name: str(data / f"{name}.csv") for name in ("valid", "test")}
    config = finetune_config(loop__keep=4, loop__select="last", loop__epochs=4)
    checked = []
    save = FinetuneTrainer._save

    def saving(own):
        save(own)
        spoken = {read_json(step / "state.json")["best"][0] for step in checkpoint_steps(own.run)} - {0}
        checked.append(len(spoken))
        assert all(best_folder(own.run, epoch).is_dir() for epoch in spoken)

    monkeypatch.setattr(FinetuneTrainer, "_save", saving)
    finetune_run(str(data / "train.csv"), tmp_path / "run", config, backbone=str(data / "base"), **files)
    assert max(checked) > 1  # control


def test_settings_nested_without_end_are_one_line(tmp_path):
    path = tmp_path / "headstart.toml"
    path.write_text("a = " + "[" * 3000)
    assert refused(ConfigError, read_toml, path, PretrainConfig).startswith(f"{path} is not valid TOML: ")


def test_a_setting_of_a_model_that_cannot_be_is_one_line(data, tmp_path):
    folder = tmp_path / "bundle"
    shutil.copytree(data / "base" / "bundle", folder)
    facts = read_json(folder / "bundle.json")
    facts["model"]["width"] = 17
    (folder / "bundle.json").write_text(json.dumps(facts))
    seal(folder, ("bundle.json",))
    assert refused(StoreError, load_bundle, folder) == (
        f"{folder / 'bundle.json'} is damaged: model.width must be a multiple of model.heads, got 17 and 2"
    )


def test_a_token_beyond_the_vocabulary_is_refused(data, tmp_path):
    folder = tmp_path / "tokens"
    shutil.copytree(data / "base" / "tokens", folder)
    content = bytearray((folder / "tokens.bin").read_bytes())
    content[1] = 255
    (folder / "tokens.bin").write_bytes(bytes(content))
    seal(folder, ("tokens.bin",))
    size = read_json(folder / "manifest.json")["about"]["vocab_size"]
    expected = f"{folder / 'tokens.bin'} is damaged: a token beyond the {size} entries"
    assert refused(StoreError, Shards.open, folder) == expected


def test_settings_changed_under_a_run_are_noticed(tmp_path):
    run = create(tmp_path / "run")
    path = run.path / "config.json"
    path.write_text(path.read_text().replace('"steps": 14', '"steps": 15'))
    assert refused(StoreError, lambda: run.settings) == (
        f"{path} is not what {run.path} was started with; restore it, or start another run"
    )


@pytest.mark.parametrize("line", ['{"a": "\udcff"}'.encode("utf-8", "surrogateescape"), b"[1]", b"[" * 100_000])
def test_metrics_of_other_bytes_are_damaged(tmp_path, line):
    run = create(tmp_path / "run")
    run.metrics.path.write_bytes(line + b"\n")
    assert refused(StoreError, run.metrics.read, "step").startswith(f"{run.metrics.path} is damaged: ")


@pytest.mark.parametrize("about", [None, [], "shards", 3])
def test_a_manifest_that_says_nothing_about_its_folder_is_damaged(data, tmp_path, about):
    """Mutations 199, 699 and 989 of the shards, sealed again."""
    folder = tmp_path / "tokens"
    shutil.copytree(data / "base" / "tokens", folder)
    content = read_json(folder / "manifest.json") | {"about": about}
    (folder / "manifest.json").write_text(json.dumps(content))
    seal(folder, ("manifest.json",))
    expected = f"{folder / 'manifest.json'} is damaged: what it says about the shards is not an object"
    assert refused(StoreError, Shards.open, folder) == expected


def test_a_vocabulary_without_end_is_damaged(data, tmp_path):
    """Mutation 1987 of the bundle, sealed again."""
    folder = tmp_path / "bundle"
    shutil.copytree(data / "base" / "bundle", folder)
    facts = read_json(folder / "bundle.json") | {"vocab_size": float("inf")}
    (folder / "bundle.json").write_text(json.dumps(facts))
    seal(folder, ("bundle.json",))
    expected = f"{folder / 'bundle.json'} is damaged: cannot convert float infinity to integer"
    assert refused(StoreError, load_bundle, folder) == expected


def test_a_row_of_thousands_of_digits_is_no_row(tmp_path):
    """Mutations 126 and 429 of quotes.json."""
    path = tmp_path / "quotes.json"
    path.write_text(json.dumps({"format": 1, "texts": {"9" * 5000: "a text"}}))
    assert refused(StoreError, read_excerpts, tmp_path) == f"{path} is damaged: it does not list texts by row"
    path.write_text(json.dumps({"format": 1, "texts": {"17": "a text"}}))
    assert read_excerpts(tmp_path) == {17: "a text"}  # control


@pytest.mark.parametrize("how", [{"temperature": 1e-320}, {"temperature": 1e-30}, {"temperature": 1, "top_p": 1e-320}])
def test_choosing_among_next_to_nothing_takes_the_likeliest(how):
    """Mutation 782 of the body of /generate, which the server failed on."""
    scores, special = torch.tensor([9.0, 9.0, 0.0, 9.0, 3.0, 2.0, -4.0]), SPECIAL
    chance = torch.Generator().manual_seed(0)
    result = {sample_token(scores.clone(), special, Sampling(tokens=1, **how), chance) for _ in range(20)}
    assert result == {4}
    warm = {sample_token(scores.clone(), special, Sampling(tokens=1, temperature=9), chance) for _ in range(20)}
    assert len(warm) > 1  # control


@pytest.mark.skipif(not find_spec("h11"), reason="the extra `serve` is not installed")
def test_a_server_answers_whatever_the_share_and_the_temperature(data):
    desk = Desk(data / "base")
    for how in ({"temperature": 1e-320}, {"temperature": 0.8, "top_p": 1e-320}, {"temperature": 5e-324, "top_k": 1}):
        body = {"prompt": "the film", "tokens": 3, "stream": False} | how
        status, answer = desk.ask(request("generate", json.dumps(body).encode()))
        assert (status, answer["done"]) == (200, "length")
    desk.service.stop()
    desk.loop.close()


def test_a_tokenizer_whose_steps_multiply_a_text_is_refused(tmp_path):
    """Thirty times the bytes as letters: a few words became more than there is memory for."""
    steps = [{"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}] * 30
    settings = {"version": "1.0", "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps}}
    with pytest.raises(StoreError) as caught:
        read_engine(settings, "imported.json")
    assert str(caught.value) == (
        "imported.json is not a safe tokenizer: its steps may make a text 1,073,741,824 times "
        "as long, and the limit is 64"
    )


@pytest.mark.parametrize("steps", [255, 0.5, "ByteLevel", {}, [3]])
def test_a_tokenizer_whose_steps_are_none_is_refused_in_a_line(steps):
    with pytest.raises(StoreError, match=r"^imported\.json is not a tokenizer that the tokenizers library can read: "):
        read_engine({"version": "1.0", "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps}}, "imported.json")


def test_a_step_in_which_no_token_is_masked_is_a_step(data, tmp_path):
    config = pretrain_config(loop__steps=2, objective="masked", masking__rate=5e-324)
    run = pretrain_run([str(data / "texts.txt")], tmp_path / "out", config)
    assert [line["loss"] for line in run.metrics.read("step")] == [0, 0]


@pytest.mark.parametrize("temperature", [5e-324, 1e308])
def test_a_temperature_at_the_edge_of_floating_point_draws_a_token(temperature):
    scores, chance = torch.tensor([0.0, 0.0, 0.0, 0.0, 3.0, 1.0]), torch.Generator().manual_seed(0)
    drawn = {
        sample_token(scores.clone(), SPECIAL, Sampling(tokens=1, temperature=temperature), chance) for _ in range(50)
    }
    assert drawn == ({4} if temperature < 1 else {2, 4, 5})

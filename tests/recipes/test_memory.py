"""Settings that cannot fit into memory are refused before anything is built, and no others."""

import numpy as np
import pytest

from fixtures.recipes import finetune_run, pretrain_run
from fixtures.tiny import SPECIAL, finetune_config, pretrain_config, write_reviews
from headstart.config.merge import merge_config
from headstart.config.presets import PRESET_NAMES, preset_values
from headstart.config.schema import FinetuneConfig, PretrainConfig
from headstart.data.datasets import LabelledDataset
from headstart.errors import ConfigError
from headstart.recipes import memory
from headstart.recipes.bench import run_bench
from headstart.recipes.compare.run import CompareRequest, run_compare
from headstart.recipes.memory import (
    check_finetune_memory,
    check_pretrain_memory,
    finetune_bound,
    max_micro_batch_tokens,
    pretrain_bound,
)
from headstart.recipes.tune import TuneRequest, run_tune
from headstart.runtime import MemoryLimit, machine_memory

HUGE = {"model__width": 20_000, "model__heads": 2, "model__depth": 12}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_reviews(tmp_path_factory.mktemp("data"))


@pytest.fixture(autouse=True)
def _of_eight_gibibytes(monkeypatch):
    monkeypatch.setattr(memory, "machine_memory", lambda: MemoryLimit(8 * 2**30, "this machine has"))
    monkeypatch.setattr(memory, "gpu_memory", lambda _: None)


def message_of(work) -> str:
    with pytest.raises(ConfigError) as caught:
        work()
    return str(caught.value)


def test_pretraining_that_cannot_fit_is_refused_before_a_folder_is_made(data, tmp_path):
    texts = [str(data / "texts.txt")]
    assert message_of(lambda: pretrain_run(texts, tmp_path / "out", pretrain_config(**HUGE))) == (
        "training this network of 19,224,080,548 parameters needs at least 286.5 GiB of memory for its weights, gradients "
        "and optimizer state, and this machine has 8.0 GiB; reduce model.width or model.depth"
    )
    batch = message_of(lambda: pretrain_run(texts, tmp_path / "out", pretrain_config(loop__batch_size=10**9)))
    assert batch.endswith("and this machine has 8.0 GiB; reduce loop.batch_size or model.context")
    steps = message_of(lambda: pretrain_run(texts, tmp_path / "out", pretrain_config(loop__accumulate=10**9)))
    assert steps.endswith("; reduce loop.accumulate or model.context")
    wide = message_of(
        lambda: pretrain_run(texts, tmp_path / "out", pretrain_config(model__feedforward=2**24, model__depth=100))
    )
    assert wide.endswith("; reduce model.feedforward or model.depth")
    assert not (tmp_path / "out").exists()


def test_every_command_that_trains_a_classifier_refuses_what_cannot_fit(data, tmp_path):
    train, config, out = str(data / "train.csv"), finetune_config(**HUGE), tmp_path / "out"
    tune = TuneRequest(train=train, out=out, backbone="scratch", trials=1)
    compare = CompareRequest(train=train, test=str(data / "test.csv"), out=out, arms=("linear", "scratch"))
    for work in (
        lambda: finetune_run(train, out, config, backbone="scratch"),
        lambda: run_tune(tune, config),
        lambda: run_compare(compare, config),
    ):
        message = message_of(work)
        assert message.endswith("and this machine has 8.0 GiB; reduce model.width or model.depth")
        assert not out.exists()


def test_a_comparison_without_networks_is_not_asked_for_their_memory(data, tmp_path):
    files = {"train": str(data / "train.csv"), "test": str(data / "test.csv")}
    request = CompareRequest(**files, out=tmp_path / "out", arms=("majority",), seeds=1)
    assert run_compare(request, finetune_config(**HUGE)).is_file()


def test_a_benchmark_that_cannot_fit_is_refused():
    settings = {"model.width": 20_000, "model.depth": 12, "runtime.threads": 1}
    assert message_of(lambda: run_bench("classic", settings)).endswith("reduce model.width or model.depth")


def test_a_batch_of_a_classifier_has_no_more_rows_than_there_are(data, tmp_path):
    config = finetune_config(loop__batch_size=10**9, loop__epochs=1)
    assert (
        finetune_run(str(data / "train.csv"), tmp_path / "out", config, backbone="scratch").path / "bundle"
    ).is_dir()


def test_the_rows_of_a_batch_count_once_they_are_known(monkeypatch):
    texts = [np.full(200, 5)] * 2000
    rows = LabelledDataset(texts, [0] * 2000, SPECIAL, context=512)
    settings = {"model": {"width": 1024, "depth": 12, "heads": 8, "feedforward": 4096}, "loop": {"batch_size": 10**6}}
    config = merge_config(FinetuneConfig, settings)
    check_finetune_memory(config, 1000, rows)  # a CPU divides the batch
    monkeypatch.setattr(memory, "gpu_memory", lambda _: MemoryLimit(8 * 2**30, "this GPU has"))
    check_finetune_memory(config, 1000)  # control: the network alone fits
    assert message_of(lambda: check_finetune_memory(config, 1000, rows)).endswith(
        "reduce loop.batch_size or model.context"
    )
    assert message_of(lambda: check_finetune_memory(config, 1000, rows, backbone=True)).endswith(
        "reduce loop.batch_size or transfer.context"
    )
    check_finetune_memory(config, 1000, rows, max_rows=50)  # a comparison with few labels
    check_finetune_memory(config, 1000, rows, frozen=True)


def test_a_pretrained_network_that_is_too_large_is_to_be_replaced():
    config = merge_config(FinetuneConfig, {"model": {"width": 20_000, "depth": 12}})
    assert message_of(lambda: check_finetune_memory(config, backbone=True)).endswith("; choose a smaller model")


@pytest.mark.parametrize("preset", PRESET_NAMES)
def test_the_presets_fit_into_eight_gibibytes(preset):
    check_finetune_memory(merge_config(FinetuneConfig, preset_values(preset, "finetune")), 16_384)
    config = merge_config(PretrainConfig, preset_values(preset, "pretrain"), {"loop": {"batch_size": 4}})
    check_pretrain_memory(config, 16_384)


def test_long_rows_need_a_mask_on_a_cpu_and_none_as_documents():
    config = merge_config(
        PretrainConfig, {"model": {"context": 2**17, "width": 16, "depth": 1}, "loop": {"batch_size": 1}}
    )
    assert message_of(lambda: check_pretrain_memory(config)).endswith("reduce model.context or loop.batch_size")
    check_pretrain_memory(merge_config(PretrainConfig, config.model_dump(), {"corpus": {"layout": "documents"}}))
    assert pretrain_bound(config, 300, on_gpu=True).step < 2**27


def test_shorter_rows_of_all_stages_need_a_smaller_mask():
    settings = {"model": {"context": 2**17, "width": 16, "depth": 1}, "loop": {"batch_size": 1}}
    stages = {"stages": [{"texts": ["a"], "context": 128}, {"texts": ["b"], "context": 1024}]}
    check_pretrain_memory(merge_config(PretrainConfig, settings, stages))


def test_averages_and_optimizers_count_and_a_frozen_network_is_its_weights():
    config = merge_config(FinetuneConfig, {"optim": {"optimizer": "adamw"}})
    parameters = finetune_bound(config, 300).parameters
    changed = lambda **optim: finetune_bound(merge_config(FinetuneConfig, {"optim": optim}), 300).state  # noqa: E731
    assert changed(optimizer="adamw") == 16 * parameters
    assert changed(optimizer="muon") == 12 * parameters
    assert changed(optimizer="adam", ema_decay=0.9) == 20 * parameters
    assert finetune_bound(config, 300, frozen=True).state == 4 * parameters


def test_the_memory_of_this_machine_is_known():
    limit = machine_memory()
    assert limit is not None
    assert 2**28 < limit.bytes < 2**50


MEMINFO = "MemTotal:       16000 kB\nMemFree:  1 kB\nSwapTotal:      4000 kB\n"


@pytest.mark.parametrize(
    ("groups", "files", "size", "owner"),
    [
        ("", {}, 20_000 * 1024, "this machine has"),
        ("0::/\n", {"sys/fs/cgroup/memory.max": "max\n"}, 20_000 * 1024, "this machine has"),
        ("0::/\n", {"sys/fs/cgroup/memory.max": "1024000\n"}, 1_024_000 + 4000 * 1024, "this container may use"),
        (
            "0::/a/b\n",
            {"sys/fs/cgroup/a/memory.max": "1024000", "sys/fs/cgroup/a/memory.swap.max": "0"},
            1_024_000,
            "this container may use",
        ),
        (
            "5:cpu:/x\n4:memory:/docker/1\n0::/\n",
            {"sys/fs/cgroup/memory/docker/1/memory.limit_in_bytes": "2048000"},
            2_048_000 + 4000 * 1024,
            "this container may use",
        ),
        (  # a container sees its own group at the root
            "4:memory:/docker/1\n",
            {"sys/fs/cgroup/memory/memory.limit_in_bytes": "2048000"},
            2_048_000 + 4000 * 1024,
            "this container may use",
        ),
        (  # the largest number that version 1 has means no limit
            "4:memory:/\n",
            {"sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712"},
            20_000 * 1024,
            "this machine has",
        ),
    ],
)
def test_a_container_is_limited_by_its_control_group(tmp_path, groups, files, size, owner):
    for name, content in {"proc/meminfo": MEMINFO, "proc/self/cgroup": groups, **files}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    limit = machine_memory(tmp_path)
    assert (limit.bytes, limit.owner) == (size, owner)


def test_a_larger_network_has_smaller_micro_batches_on_a_cpu():
    small, large = (preset_values(name, "finetune")["model"] for name in ("modern-micro", "modern"))
    limits = [max_micro_batch_tokens(merge_config(FinetuneConfig, {"model": model}).model) for model in (small, large)]
    assert limits[0] > 2 * limits[1] > 1000

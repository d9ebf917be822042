"""The rank of a process: its device, its run folder, restarts, and settings that several processes refuse."""

import pytest
import torch

from fixtures.tiny import CPU, SHAPE, SPECIAL, corpus, language_model, pretrain_config
from headstart.cli.distributed import launcher_exit_code
from headstart.config.merge import merge_config, nest
from headstart.config.schema import FinetuneConfig, OptimConfig, PretrainConfig
from headstart.data.datasets import PackedDataset
from headstart.errors import ConfigError, Interrupted
from headstart.files import write_json
from headstart.recipes.trainer import check_fsdp, is_restarted_run
from headstart.runtime import RankInfo, rank_info, setup_runtime
from headstart.store.run_folder import ReadOnlyRunFolder, RunFolder
from headstart.train.distributed import SINGLE_PROCESS
from headstart.train.loop import TrainState, fit
from headstart.train.objectives import language_model_loss
from headstart.train.optimizers import build_optimizer

SECOND_OF_TWO = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}


@pytest.fixture
def second_of_two(monkeypatch):
    for name, value in SECOND_OF_TWO.items():
        monkeypatch.setenv(name, value)
    return monkeypatch


def settings(config_class, **values):
    return merge_config(config_class, nest({name.replace("__", "."): value for name, value in values.items()}))


def test_a_process_is_alone_unless_a_launcher_sets_all_ranks(monkeypatch):
    assert rank_info() == RankInfo(0, 1, 0, 1, 0)
    monkeypatch.setenv("WORLD_SIZE", "4")  # some platforms count machines by it
    assert rank_info().world_size == 1
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert rank_info() == RankInfo(rank=3, world_size=4, local_rank=1, local_world_size=1, restarts=0)


def test_ranks_accept_auto_cpu_or_cuda_and_need_one_gpu_each(second_of_two):
    runtime = setup_runtime(settings(PretrainConfig, runtime__device="cpu", runtime__threads=1).runtime)
    assert runtime.device == torch.device("cpu")
    with pytest.raises(ConfigError) as wrong:
        setup_runtime(settings(PretrainConfig, runtime__device="cuda:1", runtime__threads=1).runtime)
    assert str(wrong.value) == (
        "runtime.device must be auto, cpu or cuda where torchrun starts several processes, got 'cuda:1'"
    )
    if not torch.cuda.is_available():
        with pytest.raises(ConfigError) as few:
            setup_runtime(settings(PretrainConfig, runtime__device="cuda", runtime__threads=1).runtime)
        assert str(few.value) == (
            "2 processes were started here and there are 0 GPUs; try torchrun --nproc-per-node 1, or runtime.device cpu"
        )


REFUSED = [
    (
        PretrainConfig,
        {"objective": "hybrid", "next_sentence__weight": 1.0},
        "next_sentence.weight with objective hybrid needs runtime.parallel ddp, got fsdp",
    ),
    (FinetuneConfig, {"transfer__unfreeze_every": 1}, "transfer.unfreeze_every needs runtime.parallel ddp, got fsdp"),
]


@pytest.mark.parametrize(("config_class", "values", "message"), REFUSED)
def test_fsdp_refuses_settings_that_one_process_accepts(config_class, values, message, second_of_two):
    config = settings(config_class, runtime__parallel="fsdp", **values)
    with pytest.raises(ConfigError) as wrong:
        check_fsdp(config)
    assert str(wrong.value) == message
    check_fsdp(settings(config_class, **values))
    second_of_two.setenv("WORLD_SIZE", "1")
    check_fsdp(config)


def test_a_run_resumes_when_its_launcher_restarts_it(tmp_path, second_of_two):
    RunFolder.create(tmp_path / "run", kind="pretrain", command="headstart a", config=pretrain_config(), inputs={})
    write_json(tmp_path / "run" / "environment.json", {"launch": "night"})
    assert not is_restarted_run(tmp_path / "run", "headstart a")
    second_of_two.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert is_restarted_run(tmp_path / "run", "headstart a")
    assert not is_restarted_run(tmp_path / "run", "headstart b")
    assert not is_restarted_run(tmp_path / "none", "headstart a")


@pytest.mark.parametrize(("count", "resumes"), [("2", True), ("0", False)])
def test_a_run_resumes_when_slurm_requeues_its_job(count, resumes, tmp_path, monkeypatch):
    RunFolder.create(tmp_path / "run", kind="pretrain", command="headstart a", config=pretrain_config(), inputs={})
    monkeypatch.setenv("SLURM_RESTART_COUNT", count)
    assert is_restarted_run(tmp_path / "run", "headstart a") == resumes


def test_a_run_resumes_in_the_same_launch_on_other_machines(tmp_path, second_of_two):
    RunFolder.create(tmp_path / "run", kind="pretrain", command="headstart a", config=pretrain_config(), inputs={})
    write_json(tmp_path / "run" / "environment.json", {"launch": "night"})
    second_of_two.setenv("TORCHELASTIC_RUN_ID", "night")
    assert is_restarted_run(tmp_path / "run", "headstart a")
    second_of_two.setenv("TORCHELASTIC_RUN_ID", "day")
    assert not is_restarted_run(tmp_path / "run", "headstart a")


def test_a_time_limit_has_exit_code_zero_only_where_a_failure_would_be_restarted(second_of_two):
    over, stopped = Interrupted("", "time limit reached"), Interrupted("", "SIGTERM")
    assert launcher_exit_code(over, over.exit_code) == 75
    second_of_two.setenv("TORCHELASTIC_MAX_RESTARTS", "3")
    assert launcher_exit_code(over, over.exit_code) == 0
    assert launcher_exit_code(stopped, stopped.exit_code) == 143
    second_of_two.delenv("RANK")
    second_of_two.setenv("WORLD_SIZE", "1")
    assert launcher_exit_code(over, over.exit_code) == 75


def test_a_read_only_run_folder_writes_nothing(tmp_path):
    run = ReadOnlyRunFolder(tmp_path)
    with run.locked(), run.remove_on_error(new=True):
        run.write_json("result.json", {})
        run.metrics.write("step", loss=1.0)
        run.metrics.flush()
        run.check_inputs_unchanged({"a": 1})
        run.remove_checkpoints()
    assert list(tmp_path.iterdir()) == []
    RunFolder(tmp_path).write_json("result.json", {})  # control
    assert [path.name for path in tmp_path.iterdir()] == ["result.json"]


def test_a_single_process_returns_its_own_values():
    assert SINGLE_PROCESS.sum([1.5, 2.0]) == [1.5, 2.0]
    assert (SINGLE_PROCESS.any(True), SINGLE_PROCESS.any(False)) == (True, False)
    assert (SINGLE_PROCESS.consensus("SIGINT"), SINGLE_PROCESS.consensus(None)) == ("SIGINT", None)
    assert SINGLE_PROCESS.broadcast(lambda: 3) == 3


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("block", ["classic", "modern"])
def test_recomputed_activations_give_the_same_bits(block, dropout):
    def losses(recompute):
        shape = merge_config(type(SHAPE), {**SHAPE.model_dump(), "block": block, "dropout": dropout})
        model = language_model(shape=shape)
        model.backbone.recompute = recompute
        rows = PackedDataset(corpus([9, 30, 14]), torch.arange(3).numpy(), SPECIAL, context=12, layout="packed", seed=0)
        config = OptimConfig(lr=1e-2)
        state = TrainState(model, build_optimizer(model, config), 0)
        reports = fit(
            state, lambda step: [rows.batch(step, 2)], lambda b: language_model_loss(model, b), config, 6, CPU
        )
        return [report.loss for report in reports]

    assert losses(True) == losses(False)
    assert losses(True)[-1] < losses(True)[0]

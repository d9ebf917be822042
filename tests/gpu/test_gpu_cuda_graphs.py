"""On a CUDA device, captured pretraining steps equal the eager ones, and no step waits for the device twice."""

import threading
import warnings
from contextlib import contextmanager

import numpy as np
import pytest
import torch

from fixtures.linear_loss import linear_loss_inputs, reference_loss, relative_errors
from fixtures.tiny import SPECIAL, VOCABULARY, Listener, corpus, language_model, pretrain_config
from headstart.config.schema import IGNORE_INDEX, MaskingConfig, ModelConfig, OptimConfig
from headstart.data.datasets import PackedDataset
from headstart.data.masking import mask_tokens
from headstart.recipes.pretrain import preset_search
from headstart.recipes.pretrain.preset_search import choose_preset
from headstart.runtime import Runtime
from headstart.train.cuda_graphs import token_graphs
from headstart.train.loop import TrainState, fit
from headstart.train.objectives import language_model_loss
from headstart.train.optimizers import build_optimizer
from headstart.train.parallel import SINGLE

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore::DeprecationWarning:torch"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"),
]

CONTEXT = 48
LENGTHS = {"packed": [3, 40, 7, 61, 9, 5, 33, 12, 80, 21, 100, 17], "full": [CONTEXT - 1] * 12}
SHAPES = {
    "classic": ModelConfig(width=40, depth=2, heads=2, feedforward=40, context=CONTEXT),
    "modern": ModelConfig(block="modern", width=32, depth=2, heads=2, feedforward=48, context=CONTEXT),
}


class Pretraining:
    """A small pretraining run; the number of masked tokens varies, and every third batch is causal."""

    def __init__(self, block, lengths, *, bf16, captured, compiled=False, dropout=0.0, seed=0, optimizer="adamw"):
        self.runtime = Runtime(torch.device("cuda"), bf16=bf16, threads=1)
        self.model = language_model(shape=SHAPES[block].model_copy(update={"dropout": dropout})).cuda()
        if compiled:
            self.model.backbone.compile_layers()
        self.config = OptimConfig(lr=3e-3, clip=1.0, optimizer=optimizer)
        self.state = TrainState(self.model, build_optimizer(self.model, self.config), seed)
        self.messages, self.objective = [], language_model_loss
        self.graphs = self.new_graphs() if captured else None
        self.dataset = PackedDataset(
            corpus(LENGTHS[lengths]),
            np.arange(len(LENGTHS[lengths])),
            SPECIAL,
            context=CONTEXT,
            layout="packed",
            seed=1,
        )

    def new_graphs(self):
        return token_graphs(self.model, self.runtime, SINGLE, self.messages.append)

    def fetch(self, step):
        if step % 3 == 0:
            return [self.dataset.batch(4 * step, 4)]
        batch = self.dataset.batch(4 * step, 4, segments_always=True)
        return [mask_tokens(batch, 4 * step, MaskingConfig(rate=0.3), SPECIAL, VOCABULARY, 0, next_token=True)]

    def losses(self, steps=30, last_step=None):
        """Train from the current step, and return the loss of every step."""
        step_losses = []
        reports = fit(
            self.state,
            self.fetch,
            lambda batch: self.objective(self.model, batch),
            self.config,
            steps,
            self.runtime,
            graphs=self.graphs,
        )
        for report in reports:
            step_losses.append(report.loss)
            if report.step == last_step:
                break
        return step_losses


@pytest.mark.parametrize("bf16", [False, True], ids=["fp32", "bf16"])
@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("block", SHAPES)
def test_captured_pretraining_on_a_gpu_follows_the_eager_one(block, lengths, bf16):
    eager = Pretraining(block, lengths, bf16=bf16, captured=False).losses()
    captured = Pretraining(block, lengths, bf16=bf16, captured=True)
    assert captured.losses() == pytest.approx(eager, rel=0.05 if bf16 else 5e-3)
    assert captured.messages == []
    assert captured.graphs.num_graphs >= 2  # masked and causal batches
    assert captured.graphs.update is not None
    assert eager[-1] < 0.97 * eager[0]  # control: something is learnt


def test_compiled_layers_are_captured():
    eager = Pretraining("modern", "packed", bf16=True, captured=False).losses()
    captured = Pretraining("modern", "packed", bf16=True, captured=True, compiled=True)
    assert captured.losses() == pytest.approx(eager, rel=0.05)
    assert captured.messages == []
    assert captured.graphs.num_graphs >= 2


def test_pretraining_with_muon_captures_the_passes_alone():
    eager = Pretraining("modern", "packed", bf16=False, captured=False, optimizer="muon").losses()
    captured = Pretraining("modern", "packed", bf16=False, captured=True, optimizer="muon")
    assert captured.losses() == pytest.approx(eager, rel=1e-2)
    assert captured.graphs.num_graphs >= 2
    assert captured.graphs.update is None


@contextmanager
def recorded_syncs():
    """Record where an operation waits for the device, with the thread that called it.

    torch's debug mode holds for all threads and warns when it is set for the first time, also as an error under pytest:
    so warnings are caught here, whatever the filters, and the mode is reset after any failure.
    It reports operations that synchronize a stream, such as `item` and blocking copies, not `Event.synchronize`.
    """
    syncs = []

    def record(message, category, filename, lineno, file=None, line=None):
        if "called a synchronizing CUDA operation" in str(message):
            syncs.append((threading.get_ident(), f"{filename}:{lineno}"))

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = record
        try:
            torch.cuda.set_sync_debug_mode("warn")
            yield syncs
        finally:
            torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("captured", [False, True], ids=["eager", "captured"])
def test_a_step_waits_for_the_device_once(captured, monkeypatch):
    """The loop waits for an event behind the loss; the prefetch thread may wait, since it delays no step."""
    run = Pretraining("modern", "full", bf16=True, captured=captured)
    run.losses(30, last_step=20)  # by then kernels are loaded and graphs are captured
    event_waits, synchronize = [], torch.cuda.Event.synchronize

    def counted_synchronize(event):
        event_waits.append(threading.get_ident())
        synchronize(event)

    monkeypatch.setattr(torch.cuda.Event, "synchronize", counted_synchronize)
    with recorded_syncs() as syncs:
        assert len(run.losses(30)) == 10
    this_thread = threading.get_ident()
    assert [line for thread, line in syncs if thread == this_thread] == []
    assert event_waits.count(this_thread) == 10
    if captured:
        assert run.graphs.update is not None
        assert run.graphs.num_graphs >= 2
    with recorded_syncs() as syncs:
        torch.ones(1, device="cuda").item()
    assert [thread for thread, _ in syncs] == [this_thread]  # control
    assert torch.cuda.get_sync_debug_mode() == 0


@pytest.mark.filterwarnings("ignore:TensorFloat32:UserWarning")  # the compiler's hint about products in fp32
@pytest.mark.parametrize("compiled", [False, True])
def test_dropout_in_pretraining_depends_on_seed_and_step_captured_or_not(compiled):
    settings = {"bf16": False, "dropout": 0.3, "compiled": compiled}
    uninterrupted = Pretraining("modern", "packed", captured=True, **settings).losses(steps=20)
    resumed = Pretraining("modern", "packed", captured=True, **settings)
    first_losses = resumed.losses(steps=20, last_step=13)
    resumed.graphs = resumed.new_graphs()
    assert first_losses + resumed.losses(steps=20) == pytest.approx(uninterrupted, rel=1e-3)
    other_seed = Pretraining("modern", "packed", captured=True, seed=1, **settings).losses(steps=20)
    assert other_seed != pytest.approx(uninterrupted, rel=1e-3)  # control


@pytest.mark.filterwarnings("ignore::UserWarning")  # torch's warnings about a capture that was broken off
def test_a_capture_that_runs_out_of_memory_costs_the_graphs_alone():
    def greedy(model, batch):
        loss = language_model_loss(model, batch)
        if torch.cuda.is_current_stream_capturing():
            torch.empty(1 << 50, dtype=torch.uint8, device="cuda")
        return loss

    eager = Pretraining("modern", "packed", bf16=False, captured=False).losses()
    failing = Pretraining("modern", "packed", bf16=False, captured=True)
    failing.objective = greedy
    assert failing.losses() == pytest.approx(eager, rel=5e-3)
    assert len(failing.messages) == 1
    assert failing.messages[0].startswith("CUDA graphs are not used, so steps take longer: CUDA out of memory")
    assert failing.graphs.slots == {}
    assert all(parameter.grad is None for parameter in failing.model.parameters())
    after = Pretraining("modern", "packed", bf16=False, captured=True)  # another model can still be captured
    assert after.losses() == pytest.approx(eager, rel=5e-3)
    assert after.graphs.num_graphs >= 2


def test_reset_frees_the_memory_of_the_graphs():
    captured = Pretraining("modern", "packed", bf16=False, captured=True)
    captured.losses()
    assert captured.graphs.num_graphs >= 2
    torch.cuda.empty_cache()
    reserved = torch.cuda.memory_reserved()
    captured.graphs.reset()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() < reserved


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_with_an_ignored_target_have_no_loss_and_no_gradient(dtype):
    from headstart.kernels.cross_entropy import chunked_loss_cuda

    hidden, weight, bias, targets = linear_loss_inputs(700, 100, 1001, has_bias=True, scale=0.25, device="cuda")
    targets[::7] = IGNORE_INDEX
    inputs = hidden, weight, bias, targets
    result = chunked_loss_cuda(*inputs, dtype, ignore_index=IGNORE_INDEX)
    assert max(relative_errors(result, reference_loss(*inputs))) < (1e-5 if dtype == torch.float32 else 0.005)
    assert not result[1][::7].any()


def test_preset_auto_times_captured_steps_on_a_gpu(monkeypatch):
    replays, wrap = [], preset_search.token_graphs

    def token_graphs(*arguments):
        graphs = wrap(*arguments)
        replays.append(graphs)
        return graphs

    monkeypatch.setattr(preset_search, "token_graphs", token_graphs)
    config = pretrain_config(loop__steps=None, loop__minutes=0.001, runtime__device="cuda", tokenizer__vocab_size=300)
    listener = Listener()
    assert choose_preset(config, listener) == "modern-nano"
    assert listener.lines[0] == "timing sizes for 0.001 minutes on cuda"
    assert [graphs is not None for graphs in replays] == [True]

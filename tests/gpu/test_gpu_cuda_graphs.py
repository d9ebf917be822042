"""On a CUDA device, pretraining steps that were recorded are the steps they were."""

import numpy as np
import pytest
import torch

from fixtures.linear_loss import linear_loss_inputs, reference_loss, relative_errors
from fixtures.tiny import SPECIAL, VOCABULARY, corpus, language_model
from headstart.config.schema import IGNORE_INDEX, MaskingConfig, ModelConfig, OptimConfig
from headstart.data.datasets import PackedDataset
from headstart.data.masking import mask_tokens
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
SIZES = {"packed": [3, 40, 7, 61, 9, 5, 33, 12, 80, 21, 100, 17], "full": [CONTEXT - 1] * 12}
SHAPES = {
    "classic": ModelConfig(width=40, depth=2, heads=2, feedforward=40, context=CONTEXT),
    "modern": ModelConfig(block="modern", width=32, depth=2, heads=2, feedforward=48, context=CONTEXT),
}


class Pretraining:
    """A small one; hidden tokens vary in number, and every third batch is read left to right."""

    def __init__(self, kind, sizes, *, bf16, captured, compiled=False, dropout=0.0, seed=0, optimizer="adamw"):
        self.runtime = Runtime(torch.device("cuda"), bf16=bf16, threads=1)
        self.model = language_model(shape=SHAPES[kind].model_copy(update={"dropout": dropout})).cuda()
        if compiled:
            self.model.backbone.compile_layers()
        self.config = OptimConfig(lr=3e-3, clip=1.0, optimizer=optimizer)
        self.state = TrainState(self.model, build_optimizer(self.model, self.config), seed)
        self.said, self.ask = [], language_model_loss
        self.graphs = token_graphs(self.model, self.runtime, SINGLE, self.said.append) if captured else None
        sizes = SIZES[sizes]
        self.rows = PackedDataset(
            corpus(sizes), np.arange(len(sizes)), SPECIAL, context=CONTEXT, layout="packed", seed=1
        )

    def fetch(self, step):
        if step % 3 == 0:
            return [self.rows.batch(4 * step, 4)]
        batch = self.rows.batch(4 * step, 4, segments_always=True)
        return [mask_tokens(batch, 4 * step, MaskingConfig(rate=0.3), SPECIAL, VOCABULARY, 0, next_token=True)]

    def losses(self, steps=30, until=None):
        found = []
        reports = fit(
            self.state,
            self.fetch,
            lambda batch: self.ask(self.model, batch),
            self.config,
            steps,
            self.runtime,
            graphs=self.graphs,
        )
        for report in reports:
            found.append(report.loss)
            if report.step == until:
                break
        return found


@pytest.mark.parametrize("bf16", [False, True], ids=["fp32", "bf16"])
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("kind", SHAPES)
def test_recorded_pretraining_follows_the_plain_one(kind, sizes, bf16):
    plain = Pretraining(kind, sizes, bf16=bf16, captured=False).losses()
    recorded = Pretraining(kind, sizes, bf16=bf16, captured=True)
    assert recorded.losses() == pytest.approx(plain, rel=0.05 if bf16 else 5e-3)
    assert recorded.said == []
    assert recorded.graphs.num_graphs >= 2  # hidden tokens, and left to right
    assert recorded.graphs.update is not None
    assert plain[-1] < 0.97 * plain[0]  # control: something is learnt


def test_compiled_layers_are_recorded_too():
    plain = Pretraining("modern", "packed", bf16=True, captured=False).losses()
    recorded = Pretraining("modern", "packed", bf16=True, captured=True, compiled=True)
    assert recorded.losses() == pytest.approx(plain, rel=0.05)
    assert recorded.said == []
    assert recorded.graphs.num_graphs >= 2


def test_with_muon_the_passes_alone_are_recorded():
    plain = Pretraining("modern", "packed", bf16=False, captured=False, optimizer="muon").losses()
    recorded = Pretraining("modern", "packed", bf16=False, captured=True, optimizer="muon")
    assert recorded.losses() == pytest.approx(plain, rel=1e-2)
    assert recorded.graphs.num_graphs >= 2
    assert recorded.graphs.update is None


@pytest.mark.filterwarnings("ignore:TensorFloat32:UserWarning")  # what the compiler says of products in fp32
@pytest.mark.parametrize("compiled", [False, True])
def test_what_is_dropped_follows_from_seed_and_step_recorded_or_not(compiled):
    settings = {"bf16": False, "dropout": 0.3, "compiled": compiled}
    whole = Pretraining("modern", "packed", captured=True, **settings).losses(steps=20)
    cut = Pretraining("modern", "packed", captured=True, **settings)
    first = cut.losses(steps=20, until=13)
    cut.graphs = token_graphs(cut.model, cut.runtime, SINGLE, cut.said.append)
    assert first + cut.losses(steps=20) == pytest.approx(whole, rel=1e-3)
    other = Pretraining("modern", "packed", captured=True, seed=1, **settings).losses(steps=20)
    assert other != pytest.approx(whole, rel=1e-3)  # control


@pytest.mark.filterwarnings("ignore::UserWarning")  # what torch says of a capture that was broken off
def test_memory_that_runs_out_while_recording_costs_the_recording_alone():
    def greedy(model, batch):
        part = language_model_loss(model, batch)
        if torch.cuda.is_current_stream_capturing():
            torch.empty(1 << 50, dtype=torch.uint8, device="cuda")
        return part

    plain = Pretraining("modern", "packed", bf16=False, captured=False).losses()
    short = Pretraining("modern", "packed", bf16=False, captured=True)
    short.ask = greedy
    assert short.losses() == pytest.approx(plain, rel=5e-3)
    assert len(short.said) == 1
    assert short.said[0].startswith("steps are not recorded as CUDA graphs here, and take longer: CUDA out of memory")
    assert short.graphs.slots == {}
    assert all(parameter.grad is None for parameter in short.model.parameters())
    after = Pretraining("modern", "packed", bf16=False, captured=True)  # others can still be recorded
    assert after.losses() == pytest.approx(plain, rel=5e-3)
    assert after.graphs.num_graphs >= 2


def test_what_was_recorded_gives_its_memory_back():
    recorded = Pretraining("modern", "packed", bf16=False, captured=True)
    recorded.losses()
    assert recorded.graphs.num_graphs >= 2
    torch.cuda.empty_cache()
    held = torch.cuda.memory_reserved()
    recorded.graphs.reset()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() < held


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_rows_without_a_target_have_no_loss_and_no_slopes(kind):
    from headstart.kernels.cross_entropy import chunked_loss_cuda

    hidden, weight, bias, targets = linear_loss_inputs(700, 100, 1001, has_bias=True, scale=0.25, device="cuda")
    targets[::7] = IGNORE_INDEX
    asked = hidden, weight, bias, targets
    found = chunked_loss_cuda(*asked, kind, ignore_index=IGNORE_INDEX)
    assert max(relative_errors(found, reference_loss(*asked))) < (1e-5 if kind == torch.float32 else 0.005)
    assert not found[1][::7].any()

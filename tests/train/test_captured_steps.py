"""Captured steps rely on memory alone: replayed operator by operator, they equal the eager ones."""

import time
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fixtures.recorded_capture import OperatorCapture
from fixtures.tiny import CPU, SPECIAL, VOCABULARY, corpus, language_model
from headstart.config.schema import MaskingConfig, ModelConfig, OptimConfig
from headstart.data.datasets import LabelledDataset, PackedDataset
from headstart.data.masking import mask_tokens
from headstart.data.next_sentence import NextSentenceDataset, weight_pairs
from headstart.interrupts import StopRequested
from headstart.model.heads import Model, NextSentenceHead, build_classifier_head
from headstart.model.transformer import build_backbone
from headstart.train import cuda_graphs, objectives
from headstart.train.cuda_graphs import GraphCache, token_graphs
from headstart.train.loop import Prefetcher, TrainState, _prepare_step, fit
from headstart.train.objectives import LossSum, classification_loss, language_model_loss, next_sentence_loss
from headstart.train.optimizers import build_optimizer
from headstart.train.parallel import SINGLE
from headstart.train.plan import Plan
from headstart.train.static_batch import static_texts, static_tokens
from headstart.train.step import EagerStep

CONTEXT = 96
TEXT_LENGTHS = [3, 40, 7, 61, 9, 5, 33, 12, 80, 21, 50, 2]
DOCUMENT_LENGTHS = [3, 11, 7, 2, 9, 5, 8, 12, 4, 30, 6, 10]
CONFIG = OptimConfig(lr=1e-2, clip=0.5, warmup=0.5, schedule="linear")


@pytest.fixture(autouse=True)
def _as_on_a_gpu(monkeypatch):
    """Use a loss and a classifier that never ask the device for a number, as on a GPU."""

    def cross_entropy(hidden, weight, bias, targets, *, compiled, sharded, ignore_index):
        ignore_index = -1 if ignore_index is None else ignore_index  # without it, an ignored target is an error
        return F.cross_entropy(F.linear(hidden, weight, bias), targets, ignore_index=ignore_index, reduction="sum")

    monkeypatch.setattr(objectives, "linear_cross_entropy", cross_entropy)
    monkeypatch.setattr(objectives, "_text_lengths", lambda *_, **__: ())


def classifier(attention, dropout=0.0):
    shape = ModelConfig(block="modern", width=16, depth=2, heads=2, feedforward=24, context=CONTEXT, dropout=dropout)
    model = Model(build_backbone(shape, VOCABULARY, 0), build_classifier_head(shape, 2, 0, attention))
    return model, static_texts(model.backbone.layers[0], CONTEXT), partial(classification_loss, model)


def text_batches(step):
    """Two batches of three texts."""
    dataset = LabelledDataset(
        [(np.arange(size) * 7 + size) % 13 + 4 for size in TEXT_LENGTHS],
        [size % 2 for size in TEXT_LENGTHS],
        SPECIAL,
        context=CONTEXT,
    )
    first = 3 * (step % 4)
    return [dataset.batch(range(first, first + 3)), dataset.batch([first % 12, (first + 5) % 12, (first + 7) % 12])]


def language(dropout=0.0):
    model = language_model()
    model.backbone.config = model.backbone.config.model_copy(update={"dropout": dropout})
    return model, static_tokens, partial(language_model_loss, model)


def token_batches(step):
    """One batch with a random number of masked tokens and packed documents; every third one is causal."""
    dataset = PackedDataset(
        corpus(DOCUMENT_LENGTHS), np.arange(len(DOCUMENT_LENGTHS)), SPECIAL, context=12, layout="packed", seed=1
    )
    batch = dataset.batch(4 * step, 4, segments_always=True)
    if step % 3 == 0:
        return [batch]
    return [mask_tokens(batch, 4 * step, MaskingConfig(rate=0.4), SPECIAL, VOCABULARY, 0, next_token=step % 3 == 1)]


CASES = {
    "causal": (partial(classifier, "causal"), text_batches),
    "bidirectional": (partial(classifier, "bidirectional"), text_batches),
    "tokens": (language, token_batches),
}


def new_state(model, seed=0):
    return TrainState(model, build_optimizer(model, CONFIG), seed)


def train(case, dropout=0.0, steps=16, *, backend=None, seed=0):
    build, fetch = CASES[case]
    model, layout, objective = build(dropout)
    messages = []
    graphs = backend and GraphCache(model, backend, messages.append, layout)
    reports = list(fit(new_state(model, seed), fetch, objective, CONFIG, steps, CPU, graphs=graphs))
    assert messages == []
    return reports, model, graphs


def losses(reports):
    return [report.loss for report in reports]


@pytest.mark.parametrize("case", CASES)
def test_captured_steps_need_nothing_but_their_memory(case):
    eager, eager_model, _ = train(case)
    captured, model, graphs = train(case, backend=(backend := OperatorCapture()))
    assert losses(captured) == pytest.approx(losses(eager), rel=1e-4)
    assert [report.norm for report in captured] == pytest.approx([report.norm for report in eager], rel=1e-3)
    assert [report.num_targets for report in captured] == [report.num_targets for report in eager]
    for parameter, expected in zip(model.parameters(), eager_model.parameters(), strict=True):
        if parameter.ndim > 1:  # the bias of keys has no gradient but rounding, and Adam makes steps of it
            torch.testing.assert_close(parameter, expected, rtol=1e-3, atol=1e-4)
    assert graphs.update is not None
    assert backend.num_replays > 2 * 12  # control: passes and updates
    assert max(losses(eager)) - min(losses(eager)) > 0.05  # control: batches and weights differ from step to step


def test_a_replay_draws_new_random_numbers_from_seed_and_step():
    captured, eager, other_seed = (
        losses(train("tokens", 0.3, backend=backend, seed=seed)[0])
        for backend, seed in ((OperatorCapture(), 0), (None, 0), (OperatorCapture(), 1))
    )
    assert captured == pytest.approx(eager, rel=1e-4)
    assert captured != pytest.approx(other_seed, rel=1e-3)  # control


@pytest.mark.parametrize("case", CASES)
def test_graphs_captured_in_trial_steps_are_replayed_after_the_weights_were_restored(case):
    """As `--minutes` runs some trial steps: the weights are restored, the optimizer is new, the graphs stay."""
    build, fetch = CASES[case]
    model, layout, objective = build()
    graphs = GraphCache(model, backend := OperatorCapture(), print, layout)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    list(fit(new_state(model), fetch, objective, CONFIG, 7, CPU, graphs=graphs))
    trial_replays = backend.num_replays
    assert graphs.num_graphs
    model.load_state_dict(before)
    state = new_state(model)
    after_trial = losses(fit(state, fetch, objective, CONFIG, 16, CPU, graphs=graphs))
    assert after_trial == pytest.approx(losses(train(case)[0]), rel=1e-4)
    assert backend.num_replays - trial_replays > 2 * 14  # control: from the first step on
    assert all(type(group["lr"]) is float and not group["capturable"] for group in state.optimizer.param_groups)


def test_a_resumed_run_updates_eagerly_once_before_the_update_is_captured():
    """In a new process the kernels are not loaded yet, although the optimizer has its state."""
    model, layout, objective = language()
    state = new_state(model)
    list(
        fit(state, token_batches, objective, CONFIG, 5, CPU, graphs=GraphCache(model, OperatorCapture(), print, layout))
    )
    graphs = GraphCache(model, OperatorCapture(), print, layout)
    reports = fit(state, token_batches, objective, CONFIG, 8, CPU, graphs=graphs)
    assert [graphs.update is not None for _ in reports] == [False, True, True]


@pytest.mark.parametrize("changed", ["clip", "moments"])
def test_an_update_uses_the_rates_the_clipping_and_the_moments_of_the_current_call(changed):
    """Layers have learning rates of their own; after six steps the clipping changes, or the memory of the moments."""
    results = []
    for backend in (None, OperatorCapture()):
        model, layout, objective = classifier("causal")
        state = TrainState(model, build_optimizer(model, CONFIG, layer_decay=0.3), 0)
        graphs = backend and GraphCache(model, backend, print, layout)
        step_losses = []
        for last_step, clip in ((6, 0.5), (12, 1e-3 if changed == "clip" else 0.5)):
            config = CONFIG.model_copy(update={"clip": clip})
            for report in fit(state, text_batches, objective, config, 12, CPU, graphs=graphs):
                step_losses.append(report.loss)
                if report.step == last_step:
                    break
            moments = [moments["exp_avg"] for moments in state.optimizer.state.values()]
            if last_step == 6 and changed == "moments":
                for parameter_state in state.optimizer.state.values():
                    parameter_state["exp_avg"] = parameter_state["exp_avg"].clone()
        results.append((step_losses, [moment.norm().item() for moment in moments]))
    (eager_losses, eager_moments), (captured_losses, captured_moments) = results
    assert captured_losses == pytest.approx(eager_losses, rel=1e-4)
    assert captured_moments == pytest.approx(eager_moments, rel=1e-2, abs=1e-5)


def test_an_interrupted_step_leaves_no_gradient_to_the_next():
    model, layout, objective = classifier("causal")
    graphs, state, seen = GraphCache(model, OperatorCapture(), print, layout), new_state(model), []

    def interrupted(batch):
        seen.append(batch)
        if len(seen) == 2:  # of the first step
            raise StopRequested
        return objective(batch)

    with pytest.raises(StopRequested):
        list(fit(state, text_batches, interrupted, CONFIG, 16, CPU, graphs=graphs))
    assert any(parameter.grad is not None and parameter.grad.any() for parameter in model.parameters())  # control
    resumed = losses(fit(state, text_batches, objective, CONFIG, 16, CPU, graphs=graphs))
    assert resumed == pytest.approx(losses(train("causal")[0]), rel=1e-4)


def test_shapes_beyond_the_limit_of_slots_run_eagerly(monkeypatch):
    eager = losses(train("tokens")[0])
    monkeypatch.setattr("headstart.train.cuda_graphs._MAX_SHAPES", 1)
    reports, _, graphs = train("tokens", backend=OperatorCapture())
    assert losses(reports) == pytest.approx(eager, rel=1e-4)
    assert len(graphs.slots) == graphs.num_graphs == 1


def test_shapes_beyond_the_limit_of_graphs_run_eagerly(monkeypatch):
    eager = losses(train("tokens")[0])
    monkeypatch.setattr("headstart.train.cuda_graphs._MAX_GRAPHS", 1)
    reports, _, graphs = train("tokens", backend=OperatorCapture())
    assert losses(reports) == pytest.approx(eager, rel=1e-4)
    assert graphs.num_graphs == 1 < len(graphs.slots)


class OutOfMemory(OperatorCapture):
    """Runs out of memory after some eager runs, or at every capture."""

    def __init__(self, eager_runs=None, at_capture=False):
        super().__init__()
        self.eager_runs, self.at_capture = eager_runs, at_capture

    def run_eager(self, work):
        if self.eager_runs is not None:
            self.eager_runs -= 1
            if self.eager_runs < 0:
                work()  # what it has added by then must not count
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.\nand more")
        return super().run_eager(work)

    def capture(self, work):
        if self.at_capture:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.\nand more")
        return super().capture(work)


@pytest.mark.parametrize(
    "backend", [OutOfMemory(eager_runs=2), OutOfMemory(at_capture=True)], ids=["warm-up", "capture"]
)
def test_a_run_that_has_no_memory_for_graphs_continues_eagerly(backend):
    model, layout, objective = language()
    messages = []
    graphs = GraphCache(model, backend, messages.append, layout)
    step_losses = losses(fit(new_state(model), token_batches, objective, CONFIG, 16, CPU, graphs=graphs))
    assert step_losses == pytest.approx(losses(train("tokens")[0]), rel=1e-4)
    assert messages == [
        "CUDA graphs are not used, so steps take longer: CUDA out of memory. Tried to allocate 20.00 MiB."
    ]
    # no graph holds memory that the eager steps may need
    assert graphs.slots == {}
    assert graphs.update is None
    assert all(parameter.grad is None for parameter in model.parameters())


class LimitedCapture(OperatorCapture):
    """Fails after some captures."""

    def __init__(self, num_captures):
        super().__init__()
        self.remaining = num_captures

    def capture(self, work):
        self.remaining -= 1
        if self.remaining < 0:
            raise RuntimeError("no more")
        return super().capture(work)


@pytest.mark.parametrize("num_captures", [0, 1, 2, 3, 4])
def test_a_capture_that_fails_in_the_middle_of_a_step_costs_no_gradient(num_captures):
    """With four captures it fails at the second batch of a step, where the gradients of the first exist already."""
    model, layout, objective = classifier("causal")
    graphs = GraphCache(model, backend := LimitedCapture(num_captures), lambda _: None, layout)
    reports = list(fit(new_state(model), text_batches, objective, CONFIG, 5, CPU, graphs=graphs))
    eager = train("causal", steps=5)[0]
    assert [report.norm for report in reports] == pytest.approx([report.norm for report in eager], rel=1e-3)
    assert (backend.remaining, graphs.failed) == (-1, True)


def test_memory_that_runs_out_in_the_middle_of_a_step_is_an_error():
    model, layout, objective = classifier("causal")
    graphs = GraphCache(model, OutOfMemory(eager_runs=1), print, layout)
    with pytest.raises(torch.OutOfMemoryError):
        list(fit(new_state(model), text_batches, objective, CONFIG, 16, CPU, graphs=graphs))


def next_sentence_model():
    model = language_model()
    model.head = NextSentenceHead(model.head, model.backbone.config.width, 0)
    return model


def test_a_weight_whose_first_gradient_comes_late_is_updated():
    """Clipping and update were captured without it."""
    model = next_sentence_model()
    pairs = NextSentenceDataset(corpus(DOCUMENT_LENGTHS), np.arange(len(DOCUMENT_LENGTHS)), SPECIAL, context=12, seed=1)

    def fetch(step):
        if step < 6:
            return token_batches(step)
        masked = mask_tokens(pairs.batch(0, 4), 0, MaskingConfig(rate=0.4), SPECIAL, VOCABULARY, 0, next_token=True)
        return weight_pairs([masked], 1.0)

    graphs, norms, grads = GraphCache(model, OperatorCapture(), print, static_tokens), [], []
    for report in fit(new_state(model), fetch, partial(next_sentence_loss, model), CONFIG, 12, CPU, graphs=graphs):
        norms.append(model.head.pair.weight.detach().norm().item())
        grads.append(model.backbone.embedding.weight.grad)
        assert (graphs.update is not None) == (report.step not in (1, 7))
    assert len(set(norms[:6])) == 1
    assert len(set(norms[6:])) == 6
    assert grads[5] is grads[4]  # control
    assert grads[6] is not grads[5]  # no gradient stays in the memory of graphs that were dropped


@pytest.mark.parametrize("first", [1, 7])
def test_a_gradient_that_only_some_steps_have_is_zero_in_the_others(first):
    """Also where causal batches were captured before that gradient existed."""
    model = next_sentence_model()

    def objective(batch):
        loss = language_model_loss(model, batch)
        bidirectional = batch.attention == "bidirectional"
        return LossSum(loss.total + model.head.pair.weight.sum(), loss.count) if bidirectional else loss

    def fetch(step):
        return token_batches(step if step >= first else 3 * step)

    graphs, has_grad = GraphCache(model, backend := OperatorCapture(), print, static_tokens), []
    for report in fit(new_state(model), fetch, objective, CONFIG, 16, CPU, graphs=graphs):
        grad = model.head.pair.weight.grad
        has_grad.append(grad is not None and bool(grad.any()))
        if report.step == 7:
            assert graphs.num_graphs  # control
    assert has_grad == [step >= first and step % 3 > 0 for step in range(16)]
    assert backend.num_replays > 2 * 6  # control


def test_captured_steps_go_on_with_a_changed_plan():
    def step_losses(*, captured):
        model, layout, objective = classifier("causal")
        state, plan = new_state(model), Plan(16)
        graphs = GraphCache(model, backend := OperatorCapture(), print, layout) if captured else None
        done = []
        for end in (7, 12):
            for report in fit(state, text_batches, objective, CONFIG, plan, CPU, graphs=graphs):
                done.append(report.loss)
                if report.step == end:
                    break
            plan = plan.replanned(7, 12)
        assert not captured or backend.num_replays
        return done

    assert step_losses(captured=True) == pytest.approx(step_losses(captured=False), rel=1e-5)


def test_prefetched_batches_are_run_in_their_turn():
    """With the order of calls that `fit` has on a GPU."""
    model, layout, objective = classifier("causal")
    state, step_losses = new_state(model), []
    graphs = GraphCache(model, backend := OperatorCapture(), print, layout)
    runner = graphs.wrap(EagerStep(model, objective, CPU, SINGLE), state.optimizer, CONFIG.clip)
    with Prefetcher(text_batches, 0, 16, runner.to_device, threaded=True) as prefetcher:
        for batches in prefetcher:
            _prepare_step(state, Plan(16), CONFIG)
            micro_losses = [runner.forward_backward(batch, last=batch is batches[-1]) for batch in batches]
            runner.clip_grad_norm(1 / 6, CONFIG.clip, state.optimizer)
            runner.step(state.optimizer)
            state.step += 1
            while state.step < 16 and not prefetcher.peek():
                time.sleep(0.001)
            runner.prefetch(prefetcher.peek())
            step_losses.append(sum(loss.total.item() for loss in micro_losses) / 6)
            runner.zero_grad(state.optimizer)
    assert step_losses == pytest.approx(losses(train("causal")[0]), rel=1e-4)
    assert backend.num_replays > 2 * 12  # control


def test_a_next_sentence_head_is_not_captured(monkeypatch):
    """A step without pairs has no gradient for it; a gradient of zero would still move it."""
    monkeypatch.setattr(cuda_graphs, "_can_capture", lambda *_: True)
    monkeypatch.setattr(cuda_graphs, "CudaGraphCapture", lambda _: OperatorCapture())
    assert token_graphs(next_sentence_model(), CPU, SINGLE, print) is None
    assert token_graphs(language_model(), CPU, SINGLE, print) is not None  # control

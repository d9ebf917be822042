"""Recorded steps rely on memory alone: on a tape that remembers no more than a CUDA graph does they are the plain ones."""

import time
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fixtures.recorded_capture import Frozen
from fixtures.tiny import CPU, SPECIAL, VOCABULARY, corpus, language_model
from headstart.config.schema import MaskingConfig, ModelConfig, OptimConfig
from headstart.data.datasets import LabelledDataset, PackedDataset
from headstart.data.masking import mask_tokens
from headstart.data.next_sentence import NextSentenceDataset, weight_pairs
from headstart.interrupts import StopRequested
from headstart.model.heads import Model, NextSentenceHead, build_classifier_head
from headstart.model.transformer import build_backbone
from headstart.train import cuda_graphs as graphs_module
from headstart.train import objectives
from headstart.train.cuda_graphs import GraphCache, token_graphs
from headstart.train.loop import Prefetcher, TrainState, _prepare_training, fit
from headstart.train.objectives import LossSum, classification_loss, language_model_loss, next_sentence_loss
from headstart.train.optimizers import build_optimizer
from headstart.train.parallel import SINGLE
from headstart.train.static_batch import static_texts, static_tokens
from headstart.train.step import EagerStep

CONTEXT = 96
TEXTS = [3, 40, 7, 61, 9, 5, 33, 12, 80, 21, 50, 2]
DOCUMENTS = [3, 11, 7, 2, 9, 5, 8, 12, 4, 30, 6, 10]
CONFIG = OptimConfig(lr=1e-2, clip=0.5, warmup=0.5, schedule="linear")


@pytest.fixture(autouse=True)
def _as_on_a_gpu(monkeypatch):
    """Where rows without a target are not counted first, since that would have to be asked of the device."""

    def whole(hidden, weight, bias, targets, *, compiled, ignore_index):
        none = -1 if ignore_index is None else ignore_index  # an ignored target is refused where none is announced
        return F.cross_entropy(F.linear(hidden, weight, bias), targets, ignore_index=none, reduction="sum")

    monkeypatch.setattr(objectives, "linear_cross_entropy", whole)
    monkeypatch.setattr(objectives, "_text_lengths", lambda *_: ())


def classifier(reading, dropout=0.0):
    shape = ModelConfig(block="modern", width=16, depth=2, heads=2, feedforward=24, context=CONTEXT, dropout=dropout)
    model = Model(build_backbone(shape, VOCABULARY, 0), build_classifier_head(shape, 2, 0, reading))
    return model, static_texts(model.backbone.layers[0], CONTEXT), partial(classification_loss, model)


def three_texts(step):
    rows = LabelledDataset(
        [(np.arange(size) * 7 + size) % 13 + 4 for size in TEXTS],
        [size % 2 for size in TEXTS],
        SPECIAL,
        context=CONTEXT,
    )
    first = 3 * (step % 4)
    return [rows.batch(range(first, first + 3)), rows.batch([first % 12, (first + 5) % 12, (first + 7) % 12])]


def language(dropout=0.0):
    model = language_model()
    model.backbone.config = model.backbone.config.model_copy(update={"dropout": dropout})
    return model, static_tokens, partial(language_model_loss, model)


def some_rows(step):
    """Hidden tokens in number as chance has it, seams anywhere, and every third time left to right."""
    rows = PackedDataset(corpus(DOCUMENTS), np.arange(len(DOCUMENTS)), SPECIAL, context=12, layout="packed", seed=1)
    batch = rows.batch(4 * step, 4, segments_always=True)
    if step % 3 == 0:
        return [batch]
    return [mask_tokens(batch, 4 * step, MaskingConfig(rate=0.4), SPECIAL, VOCABULARY, 0, next_token=step % 3 == 1)]


CASES = {
    "causal": (partial(classifier, "causal"), three_texts),
    "bidirectional": (partial(classifier, "bidirectional"), three_texts),
    "tokens": (language, some_rows),
}


def fresh(model, seed=0):
    return TrainState(model, build_optimizer(model, CONFIG), seed)


def trained(case, dropout=0.0, steps=16, *, tape=None, seed=0):
    make, fetch = CASES[case]
    model, lay_out, ask = make(dropout)
    said = []
    graphs = tape and GraphCache(model, tape, said.append, lay_out)
    reports = list(fit(fresh(model, seed), fetch, ask, CONFIG, steps, CPU, graphs=graphs))
    assert said == []
    return reports, model, graphs


@pytest.mark.parametrize("case", CASES)
def test_what_was_recorded_needs_nothing_but_its_memory(case):
    (plain, plain_model, _), (recorded, model, graphs) = trained(case), trained(case, tape=(tape := Frozen()))
    assert [report.loss for report in recorded] == pytest.approx([report.loss for report in plain], rel=1e-4)
    assert [report.norm for report in recorded] == pytest.approx([report.norm for report in plain], rel=1e-3)
    assert [report.num_targets for report in recorded] == [report.num_targets for report in plain]
    for own, other in zip(model.parameters(), plain_model.parameters(), strict=True):
        if own.ndim > 1:  # the bias of keys has no gradient but rounding, and Adam makes steps of it
            torch.testing.assert_close(own, other, rtol=1e-3, atol=1e-4)
    assert graphs.update is not None
    assert tape.replayed > 2 * 12  # control: passes, and what follows them
    losses = [report.loss for report in plain]
    assert max(losses) - min(losses) > 0.05  # control: batches and weights differ from step to step


def test_a_replay_draws_new_random_numbers_from_seed_and_step():
    one, two, other = (
        [report.loss for report in trained("tokens", 0.3, tape=tape, seed=seed)[0]]
        for tape, seed in ((Frozen(), 0), (None, 0), (Frozen(), 1))
    )
    assert one == pytest.approx(two, rel=1e-4)
    assert one != pytest.approx(other, rel=1e-3)  # control


@pytest.mark.parametrize("case", CASES)
def test_steps_that_were_tried_beforehand_leave_nothing_behind(case):
    """As `--minutes` tries some: the weights are put back, the optimizer is another, what was recorded stays."""
    make, fetch = CASES[case]
    model, lay_out, ask = make()
    graphs = GraphCache(model, tape := Frozen(), print, lay_out)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    list(fit(fresh(model), fetch, ask, CONFIG, 7, CPU, graphs=graphs))
    recorded, tried = graphs.recorded, tape.replayed
    assert recorded
    model.load_state_dict(before)
    state = fresh(model)
    found = [report.loss for report in fit(state, fetch, ask, CONFIG, 16, CPU, graphs=graphs)]
    assert found == pytest.approx([report.loss for report in trained(case)[0]], rel=1e-4)
    assert tape.replayed - tried > 2 * 14  # control: from the first step on
    assert all(type(group["lr"]) is float and not group["capturable"] for group in state.optimizer.param_groups)


def test_a_run_that_goes_on_moves_its_weights_once_before_that_is_recorded():
    """In a new process the kernels are not loaded yet, although the optimizer has its moments."""
    model, lay_out, ask = language()
    state = fresh(model)
    list(fit(state, some_rows, ask, CONFIG, 5, CPU, graphs=GraphCache(model, Frozen(), print, lay_out)))
    graphs = GraphCache(model, Frozen(), print, lay_out)
    reports = fit(state, some_rows, ask, CONFIG, 8, CPU, graphs=graphs)
    assert [graphs.update is not None for _ in reports] == [False, True, True]


@pytest.mark.parametrize("other", ["bound", "moments"])
def test_weights_move_by_the_rates_the_bound_and_the_moments_of_the_call_in_hand(other):
    """Layers have rates of their own; from the seventh step on the bound is another, or the memory of the moments."""
    found = []
    for tape in (None, Frozen()):
        model, lay_out, ask = classifier("causal")
        state = TrainState(model, build_optimizer(model, CONFIG, layer_decay=0.3), 0)
        graphs = tape and GraphCache(model, tape, print, lay_out)
        losses = []
        for until, clip in ((6, 0.5), (12, 1e-3 if other == "bound" else 0.5)):
            config = CONFIG.model_copy(update={"clip": clip})
            for report in fit(state, three_texts, ask, config, 12, CPU, graphs=graphs):
                losses.append(report.loss)
                if report.step == until:
                    break
            moments = [each["exp_avg"] for each in state.optimizer.state.values()]
            if until == 6 and other == "moments":
                for each in state.optimizer.state.values():
                    each["exp_avg"] = each["exp_avg"].clone()
        found.append((losses, [moment.norm().item() for moment in moments]))
    (losses, moments), (recorded, recorded_moments) = found
    assert recorded == pytest.approx(losses, rel=1e-4)
    assert recorded_moments == pytest.approx(moments, rel=1e-2, abs=1e-5)


def test_a_step_that_was_left_in_the_middle_leaves_no_gradient_behind():
    model, lay_out, ask = classifier("causal")
    graphs, state, asked = GraphCache(model, Frozen(), print, lay_out), fresh(model), []

    def leaving(batch):
        asked.append(batch)
        if len(asked) == 2:  # of the first step
            raise StopRequested
        return ask(batch)

    with pytest.raises(StopRequested):
        list(fit(state, three_texts, leaving, CONFIG, 16, CPU, graphs=graphs))
    assert any(parameter.grad is not None and parameter.grad.any() for parameter in model.parameters())  # control
    found = [report.loss for report in fit(state, three_texts, ask, CONFIG, 16, CPU, graphs=graphs)]
    assert found == pytest.approx([report.loss for report in trained("causal")[0]], rel=1e-4)


def test_more_shapes_than_are_kept_are_read_all_the_same(monkeypatch):
    plain = [report.loss for report in trained("tokens")[0]]
    monkeypatch.setattr("headstart.train.cuda_graphs._MOST_SHAPES", 1)
    reports, _, graphs = trained("tokens", tape=Frozen())
    assert [report.loss for report in reports] == pytest.approx(plain, rel=1e-4)
    assert len(graphs.slots) == graphs.recorded == 1


def test_more_shapes_than_are_recorded_go_on_unrecorded(monkeypatch):
    plain = [report.loss for report in trained("tokens")[0]]
    monkeypatch.setattr("headstart.train.cuda_graphs._MOST_GRAPHS", 1)
    reports, _, graphs = trained("tokens", tape=Frozen())
    assert [report.loss for report in reports] == pytest.approx(plain, rel=1e-4)
    assert graphs.recorded == 1 < len(graphs.slots)


class Full(Frozen):
    """A device without room for the passes of the third shape that is new, or for recording anything."""

    def __init__(self, once=None, record=False):
        super().__init__()
        self.left, self.refuse = once, record

    def once(self, work):
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                work()  # what it had added by then must not count
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.\nand more")
        return super().once(work)

    def record(self, work):
        if self.refuse:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.\nand more")
        return super().record(work)


@pytest.mark.parametrize("tape", [Full(once=2), Full(record=True)], ids=["first time", "recording"])
def test_where_memory_is_short_the_run_goes_on_the_plain_way(tape):
    model, lay_out, ask = language()
    said = []
    graphs = GraphCache(model, tape, said.append, lay_out)
    found = [report.loss for report in fit(fresh(model), some_rows, ask, CONFIG, 16, CPU, graphs=graphs)]
    assert found == pytest.approx([report.loss for report in trained("tokens")[0]], rel=1e-4)
    assert said == [
        "steps are not recorded as CUDA graphs here, and take longer: CUDA out of memory. Tried to allocate 20.00 MiB."
    ]
    # nothing of what was recorded keeps memory from it
    assert graphs.slots == {}
    assert graphs.update is None
    assert all(parameter.grad is None for parameter in model.parameters())


class Tired(Frozen):
    """What records so often, and then no more."""

    def __init__(self, left):
        super().__init__()
        self.left = left

    def record(self, work):
        self.left -= 1
        if self.left < 0:
            raise RuntimeError("no more")
        return super().record(work)


@pytest.mark.parametrize("left", [0, 1, 2, 3, 4])
def test_a_step_in_whose_middle_nothing_can_be_recorded_any_more_is_whole(left):
    """The last of them fails at the second batch of a step, where the gradients of the first are there already."""
    model, lay_out, ask = classifier("causal")
    graphs = GraphCache(model, tape := Tired(left), lambda _: None, lay_out)
    reports = list(fit(fresh(model), three_texts, ask, CONFIG, 5, CPU, graphs=graphs))
    plain = trained("causal", steps=5)[0]
    assert [report.norm for report in reports] == pytest.approx([report.norm for report in plain], rel=1e-3)
    assert (tape.left, graphs.failed) == (-1, True)


def test_memory_that_runs_out_in_the_middle_of_a_step_is_an_error():
    model, lay_out, ask = classifier("causal")
    with pytest.raises(torch.OutOfMemoryError):
        list(
            fit(fresh(model), three_texts, ask, CONFIG, 16, CPU, graphs=GraphCache(model, Full(once=1), print, lay_out))
        )


def paired():
    model = language_model()
    model.head = NextSentenceHead(model.head, model.backbone.config.width, 0)
    return model


def test_a_weight_that_gets_its_first_gradient_late_is_moved():
    """What scales gradients and moves weights was recorded without it."""
    model = paired()
    pairs = NextSentenceDataset(corpus(DOCUMENTS), np.arange(len(DOCUMENTS)), SPECIAL, context=12, seed=1)

    def fetch(step):
        if step < 6:
            return some_rows(step)
        asked = mask_tokens(pairs.batch(0, 4), 0, MaskingConfig(rate=0.4), SPECIAL, VOCABULARY, 0, next_token=True)
        return weight_pairs([asked], 1.0)

    graphs, norms, places = GraphCache(model, Frozen(), print, static_tokens), [], []
    for report in fit(fresh(model), fetch, partial(next_sentence_loss, model), CONFIG, 12, CPU, graphs=graphs):
        norms.append(model.head.pair.weight.detach().norm().item())
        places.append(model.backbone.embedding.weight.grad)
        assert (graphs.update is not None) == (report.step not in (1, 7))
    assert len(set(norms[:6])) == 1
    assert len(set(norms[6:])) == 6
    assert places[5] is places[4]  # control
    assert places[6] is not places[5]  # recordings that were dropped keep no gradient in their memory


@pytest.mark.parametrize("first", [1, 7])
def test_no_gradient_is_left_of_a_step_that_asked_more(first):
    """Also where left to right was recorded before there was any: it knew of none to replace."""
    model = paired()

    def ask(batch):
        part = language_model_loss(model, batch)
        more = batch.attention == "bidirectional"
        return LossSum(part.total + model.head.pair.weight.sum(), part.count) if more else part

    def fetch(step):
        return some_rows(step if step >= first else 3 * step)

    graphs, seen = GraphCache(model, tape := Frozen(), print, static_tokens), []
    for report in fit(fresh(model), fetch, ask, CONFIG, 16, CPU, graphs=graphs):
        grad = model.head.pair.weight.grad
        seen.append(grad is not None and bool(grad.any()))
        if report.step == 7:
            assert graphs.recorded  # control
    assert seen == [step >= first and step % 3 > 0 for step in range(16)]
    assert tape.replayed > 2 * 6  # control


def test_rows_that_are_told_ahead_are_read_in_their_turn():
    """As the loop has it on a GPU."""
    model, lay_out, ask = classifier("causal")
    state, losses = fresh(model), []
    graphs = GraphCache(model, tape := Frozen(), print, lay_out)
    passes = graphs.around(EagerStep(model, ask, CPU, SINGLE), state.optimizer, CONFIG.clip)
    with Prefetcher(three_texts, 0, 16, passes.ready, ahead=True) as feed:
        for batches in feed:
            _prepare_training(state, 16, CONFIG)
            parts = [passes.run(batch, last=number == len(batches)) for number, batch in enumerate(batches, start=1)]
            passes.length(1 / 6, CONFIG.clip, state.optimizer)
            passes.step(state.optimizer)
            state.step += 1
            while state.step < 16 and not feed.ahead():
                time.sleep(0.001)
            passes.expect(feed.ahead())
            losses.append(sum(part.total.item() for part in parts) / 6)
            passes.clear(state.optimizer)
    assert losses == pytest.approx([report.loss for report in trained("causal")[0]], rel=1e-4)
    assert tape.replayed > 2 * 12  # control


def test_pairs_are_not_recorded(monkeypatch):
    """A step without pairs has no gradient for their head; one that is zero would move it."""
    monkeypatch.setattr(graphs_module, "_can_capture", lambda *_: True)
    monkeypatch.setattr(graphs_module, "CudaGraphCapture", lambda _: Frozen())
    assert token_graphs(paired(), CPU, SINGLE, print) is None
    assert token_graphs(language_model(), CPU, SINGLE, print) is not None  # control

"""The trainer of language models: setup, training with held-out evaluation and samples, and the bundle at the end."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import nn

from headstart.config.schema import PretrainConfig
from headstart.data.batch import FULL_BATCH, Batch, RankSlice
from headstart.data.decontamination import MEMBERSHIP_FILE, Membership
from headstart.data.masking import mask_token
from headstart.data.provenance import source_names
from headstart.data.shards import Shards
from headstart.errors import ConfigError, UsageError
from headstart.interrupts import StopSignal
from headstart.kernels.dispatch import supports_compiled_training
from headstart.model.heads import LanguageHead, Model, NextSentenceHead, build_language_head
from headstart.model.transformer import build_backbone
from headstart.predict.generate import Sampling, generate_text
from headstart.progress import Progress, ProgressTask, pluralize
from headstart.recipes.memory import check_pretrain_memory
from headstart.recipes.pretrain.measuring import (
    BestStep,
    describe_too_little,
    evaluation_fractions,
    final_tokens,
    is_evaluated,
    tokens_to_measure,
)
from headstart.recipes.pretrain.stages import (
    Stage,
    assign_steps,
    build_stages,
    describe_stages,
    end_stages,
    stage_at,
    total_steps,
)
from headstart.recipes.trainer import Trainer, describe_processes
from headstart.runtime import Runtime
from headstart.store.bundle import Bundle, save_bundle
from headstart.store.checkpoint import (
    ModelWeights,
    best_folder,
    check_best,
    copy_weights,
    load_best,
    remove_best,
    save_best,
)
from headstart.store.model_card import base_name
from headstart.store.run_folder import RunFolder
from headstart.store.tensors import load_into
from headstart.store.transfer import TransferReceipt, new_tensor_lines, transfer
from headstart.tokenization.base import Tokenizer
from headstart.tokenization.tokenizer import load_tokenizer
from headstart.train.cuda_graphs import GraphCache, token_graphs
from headstart.train.ema import ema_weights
from headstart.train.loop import StepReport
from headstart.train.objectives import LossSum, Teacher, distillation_loss, next_sentence_loss
from headstart.train.parallel import SINGLE, ParallelStrategy
from headstart.train.plan import Plan
from headstart.train.scoring import (
    LanguageScore,
    NextSentenceScore,
    score_language,
    score_next_sentence,
    without_compile,
)

MIN_COMPILE_FLOPS = 4e16
"""Minimum operations of a run (six per parameter and token) for compilation: two minutes of an H200 at two fifths of
its peak. Compiling takes 20 to 40 seconds the first time, and a few seconds once torch has cached it."""
_MIN_COMPILE_MINUTES = 3.0
TEACHER_WEIGHT = 0.5
"""The default weight of the teacher's loss, equal to that of the text."""
_PROMPT_TOKENS = 6
_SAMPLE_TOKENS = 40


@dataclass(frozen=True)
class HeldOutScore:
    """The scores on the held-out documents of one stage."""

    text: LanguageScore
    pairs: NextSentenceScore | None

    def pairs_record(self) -> dict[str, Any]:
        """Return the entry about pairs for JSON; empty without next-sentence prediction."""
        return {"pairs": asdict(self.pairs)} if self.pairs else {}

    def summary(self, *, tokens: bool = False, held_out_tokens: int | None = None) -> str:
        """Format the scores as one line.

        Args:
            tokens: say on how many tokens.
            held_out_tokens: the number of all held-out tokens, if these are only a part.
        """
        text, pairs = self.text, self.pairs
        part = f" of {held_out_tokens:,}" if held_out_tokens is not None else ""
        over = f" over {text.tokens:,}{part} tokens" if tokens else ""
        bits = "" if text.bits_per_byte is None else f", {text.bits_per_byte:.3f} bits per byte"
        right = f", {100 * pairs.accuracy:.1f} % of {pairs.pairs:,} pairs correct" if pairs else ""
        return f"held-out loss {text.loss:.3f}, perplexity {text.perplexity:.1f}{bits}{over}{right}"


def should_compile(
    config: PretrainConfig,
    model: nn.Module,
    stages: list[Stage],
    device: torch.device,
    say: Callable[[str], None],
    *,
    single_process: bool,
) -> bool:
    """Return `runtime.compile` if it is set; else compile long runs on a GPU, if a compiler is installed.

    The length of a run follows from its settings alone, so that a resumed run decides as it did before.
    """
    runtime = config.runtime
    if runtime.compile is not None:
        return runtime.compile
    plain_run = single_process and not runtime.deterministic and not runtime.recompute
    if not (supports_compiled_training(device) and plain_run and compile_pays(config, model, stages)):
        return False
    error = compiler_error(device)
    if error:
        say(f"layers are not compiled, which would be faster: {error}")
    return error is None


def compile_pays(config: PretrainConfig, model: nn.Module, stages: list[Stage]) -> bool:
    """Return whether a run is long enough to be compiled: by its minutes, or by its operations."""
    if config.loop.minutes is not None:
        return config.loop.minutes >= _MIN_COMPILE_MINUTES
    parameters = sum(parameter.numel() for parameter in model.parameters())
    rows = total_steps(stages, config.loop) * max(stage.rows_per_step for stage in stages)
    return 6.0 * parameters * rows * config.model.context >= MIN_COMPILE_FLOPS


def compiler_error(device: torch.device) -> str | None:
    """Compile a small function and return the first line of its error; None if compilation succeeds."""
    try:
        torch.compile(lambda x: x.sin() + 1)(torch.ones(8, device=device))
    except (RuntimeError, OSError, ImportError) as error:  # no C compiler, no code generator, an old GPU
        return (str(error).strip().splitlines() or [type(error).__name__])[0]
    return None


def check_teacher_weight(teacher: str | None, weight: float | None) -> float:
    """Return the weight of the teacher, the default filled in; 0 without a teacher."""
    if teacher is None:
        if weight is not None:
            raise UsageError("--teacher-weight needs --teacher")
        return 0.0
    weight = TEACHER_WEIGHT if weight is None else weight
    if not 0 <= weight <= 1:
        raise ConfigError(f"--teacher-weight must be between 0 and 1, got {weight:g}")
    return weight


@dataclass(frozen=True)
class Distillation:
    """The teacher of a run and its weight."""

    name: str
    """As the user wrote it."""
    bundle: Bundle
    weight: float

    def load_teacher(self, config: PretrainConfig, tokenizer: Tokenizer, runtime: Runtime) -> Teacher | None:
        """Check that the teacher fits the run and move it to the device; None if its weight is 0."""
        _check_teacher(self.name, self.bundle, config, tokenizer)
        if not self.weight:
            return None
        return Teacher(self.bundle.model.to(runtime.device).requires_grad_(False), self.weight)

    def as_dict(self) -> dict[str, Any]:
        """Return the entry of result.json."""
        return {"name": base_name(self.name), "weight": self.weight}


def _check_teacher(name: str, teacher: Bundle, config: PretrainConfig, tokenizer: Tokenizer) -> None:
    """Refuse a teacher with another tokenizer, another objective or a shorter context."""
    if teacher.tokenizer.digest != tokenizer.digest:
        raise UsageError(
            f"--teacher {name} has another tokenizer ({teacher.tokenizer.digest[:12]}, not {tokenizer.digest[:12]}); "
            "prepare the text with that of the teacher"
        )
    if teacher.objective not in (config.objective, "hybrid"):
        raise UsageError(
            f"--teacher {name} was trained with {teacher.objective}, which does not match the objective {config.objective}"
        )
    if config.next_sentence.weight:
        raise UsageError("--teacher does not support next-sentence prediction; set next_sentence.weight to 0")
    if teacher.config.context < config.model.context:
        raise UsageError(
            f"--teacher {name} has a context of {teacher.config.context} tokens, but rows have {config.model.context}; "
            f"set model.context to {teacher.config.context}"
        )


def membership_file(shards: Iterable[Shards], *models: Bundle | None) -> dict[str, bytes]:
    """Return the digests of all documents that a model has learnt from, as a file of its bundle.

    Args:
        models: the model it continues and its teacher. If one of them has no such file, none is written, because
            an incomplete list could be mistaken for a complete one.
    """
    members = Membership.from_digests([])
    for model in filter(None, models):
        earlier = Membership.load(model.path)
        if earlier is None:
            return {}
        members |= earlier
    for corpus in shards:
        members |= Membership.from_digests(corpus.digests)
    return {MEMBERSHIP_FILE: members.to_bytes()}


@dataclass(frozen=True)
class PretrainSetup:
    """The data and the model of a pretraining run."""

    tokenizer: Tokenizer
    stages: list[Stage]
    model: Model[LanguageHead]
    backbone: Bundle | None
    """The model that the run continues, if any."""
    receipt: TransferReceipt | None


def prepare_pretraining(
    config: PretrainConfig,
    shards: Sequence[Shards],
    runtime: Runtime,
    backbone: Bundle | None = None,
    rank_slice: RankSlice = FULL_BATCH,
) -> PretrainSetup:
    """Build the datasets of every stage and the model; raises where the text does not suffice.

    Args:
        shards: one per stage; a run without stages has one.
        backbone: the model to continue, in place of random weights.
    """
    seed = config.runtime.seed
    vocab_size = backbone.model.backbone.vocab_size if backbone else shards[0].vocab_size
    tokenizer = load_tokenizer(shards[0].tokenizer_folder)
    if config.objective != "causal":
        mask_token(tokenizer.special)  # raises if there is none
    stages = build_stages(config, shards, tokenizer.special, rank_slice)
    check_pretrain_memory(config, vocab_size, backbone=backbone is not None)
    model: Model[LanguageHead] = Model(
        build_backbone(config.model, vocab_size, seed), build_language_head(config.model, vocab_size, seed)
    ).to(runtime.device)
    receipt = transfer(backbone.name, model, tokenizer, backbone, head=True) if backbone else None
    if config.next_sentence.weight:
        head = NextSentenceHead(model.head, config.model.width, seed).to(runtime.device)
        model.head = head
        receipt = receipt and replace(receipt, new=new_tensor_lines(head.pair, "head.pair"))
    return PretrainSetup(tokenizer, stages, model, backbone, receipt)


class PretrainTrainer(Trainer[PretrainConfig]):
    """Trains a language model in a run folder."""

    def __init__(
        self,
        run: RunFolder,
        config: PretrainConfig,
        setup: PretrainSetup,
        runtime: Runtime,
        stop: StopSignal,
        progress: Progress,
        *,
        distillation: Distillation | None = None,
        teacher: Teacher | None = None,
        began: float | None = None,
        strategy: ParallelStrategy = SINGLE,
    ) -> None:
        """Build the trainer of a prepared run; for the other arguments see `Trainer`.

        Args:
            teacher: the model that `distillation` loaded.
        """
        self.tokenizer, self.stages, self.backbone = setup.tokenizer, setup.stages, setup.backbone
        self.distillation, self.teacher = distillation, teacher
        compile_layers = should_compile(
            config, setup.model, setup.stages, runtime.device, progress.say, single_process=strategy is SINGLE
        )
        super().__init__(
            run,
            config,
            setup.model,
            runtime,
            stop,
            progress,
            compile_layers=compile_layers,
            began=began,
            strategy=strategy,
        )
        if compile_layers and teacher:
            teacher.model.backbone.compile_layers()
        self.evaluated_step = 0
        """The step of the last evaluation, which a resumed run does not repeat."""
        self.best = BestStep()
        """The lowest held-out loss so far; only with `loop.patience`."""
        self._best_weights: ModelWeights | None = None  # in memory until a checkpoint is written
        self._fractions: tuple[float, ...] = ()
        if self._selects_best:
            self._first_weights = copy_weights(setup.model.backbone), copy_weights(setup.model.head)

    @property
    def _selects_best(self) -> bool:
        return self.config.loop.patience is not None

    def train(self, *, resume: bool) -> None:
        """Train to the end and write the bundle; on a stop, save the state and raise StopRequested."""
        if self.backbone and not resume:  # the baseline of continued pretraining
            self._report_scores()
        self._plan_steps()
        self._report_start()
        if resume:
            self._resume(partial(check_best, self.run) if self._selects_best else None)
            if self.backbone and not self.state.step:
                self._report_scores()
        with self._saved_on_stop():
            self._run_steps()
            self._release_graphs()
            end_stages(self.stages, self.state.step)
            with ema_weights(self.model, self.state.ema), self.strategy.full_model(self.model) as model:
                self._finish(model)

    def _build_graphs(self) -> GraphCache | None:
        return None if self.teacher else token_graphs(self.model, self.runtime, self.strategy, self.progress.say)

    def _configured_steps(self) -> int:
        return total_steps(self.stages, self.config.loop)

    def _checkpoint_extra(self) -> dict[str, Any]:
        return {"evaluated": self.evaluated_step} | ({"best": list(self.best)} if self._selects_best else {})

    def _restore_extra(self, values: Mapping[str, Any]) -> None:
        self.evaluated_step = values.get("evaluated", 0)
        self.best = BestStep(*values.get("best", ()))

    def _plan_steps(self) -> None:
        """Plan the steps and the stages, and record what was timed; a resumed run keeps its recorded plan."""
        minutes = self.config.loop.minutes
        recorded = self._read_plan() if minutes is not None else {}
        if recorded:
            self._set_plan(Plan.from_dict(recorded))
        elif minutes is not None:
            self._time_steps(60 * minutes)
        elif len(self.stages) > 1:
            self._record_plan(self.plan)
        else:
            self._set_plan(self.plan)
        self._fractions = evaluation_fractions(self.config.loop, self.stages, self.plan)

    def _set_plan(self, plan: Plan) -> None:
        super()._set_plan(plan)
        assign_steps(self.stages, plan)

    def _plan_facts(self) -> dict[str, Any]:
        stages = {"stages": [stage.plan() for stage in self.stages]} if len(self.stages) > 1 else {}
        return super()._plan_facts() | stages

    def _time_steps(self, budget: float) -> None:
        """Time a few steps of each stage, whose updates are discarded, and record the steps that fit."""
        seconds, count = 0.0, len(self.stages)
        with self._discarded_steps():
            for stage in self.stages:
                state = replace(self._new_state(), ema=None)
                seconds += stage.fraction * self._seconds_per_step(state, stage.fetch, 2**31, budget / count)
        pace = self._begin_pace(budget, seconds)
        # until something was measured: a token takes about a third of the time of training
        estimate = seconds / max(stage.tokens_per_step for stage in self.stages) / 3
        self._note_measuring(self._measuring_seconds or estimate)
        assign_steps(self.stages, Plan(count))
        steps = pace.fitting_steps(0, self._elapsed, self._other_seconds, minimum=count, limit=self._max_steps())
        self._record_plan(Plan(self.group.broadcast(lambda: steps)))

    def _min_steps_left(self) -> int:
        return sum(stage.first_step + stage.steps > self.state.step for stage in self.stages)

    def _other_seconds(self, steps: int) -> float:
        """Add the measurements: those during the run that are left, and the one at its end."""
        left = 1 - self.plan.position(self.state.step) / self.plan.first
        tokens = tokens_to_measure(self.config.loop, self.stages, steps, left)
        return super()._other_seconds(steps) + tokens * self._measuring_seconds

    def _report_start(self) -> None:
        parameters = sum(parameter.numel() for parameter in self.model.parameters())
        threads = pluralize(self.runtime.threads, "thread") + describe_processes(self.config.runtime, self.group)
        stages = self.stages
        self.progress.say(
            f"{pluralize(sum(len(stage.packed.documents) for stage in stages), 'document')} for training, "
            f"{sum(len(stage.held_out) for stage in stages):,} held out; "
            f"{pluralize(sum(stage.epoch_dataset.num_tokens for stage in stages), 'token')} per epoch; "
            f"{parameters:,} parameters; {pluralize(self.steps, 'step')} on {self.runtime.device}, {threads}"
        )
        for line in describe_stages(stages, self.config.model.context):
            self.progress.say(line)
        tokens = sum(stage.tokens_seen for stage in stages)
        too_little = describe_too_little(tokens, parameters, self.steps, continued=self.backbone is not None)
        if too_little:
            self.progress.say(too_little)

    def _run_steps(self) -> None:
        total = sum(stage.tokens_seen for stage in self.stages)
        with self.progress.task("pretraining", total, "tokens") as bar:
            bar.advance(self.state.step / self.steps * total)
            self._evaluate_if_due(bar)
            while self.state.step < self.steps and not self._out_of_patience():
                self._run_planned_steps(bar)

    def _run_planned_steps(self, bar: ProgressTask) -> None:
        """Train until the run ends or its plan changes."""
        with closing(self._fit(self.state, self._fetch, self.plan)) as reports:
            for report in reports:
                bar.advance(stage_at(self.stages, report.step - 1).tokens_per_step, f"loss {report.loss:.3f}")
                self._log_step(report)
                self._evaluate_if_due(bar)
                replanned = self._replan(report.seconds)
                if report.step % self.config.loop.save_every == 0:
                    self._save()
                self.stop.check()
                if replanned:
                    bar.advance(0, total=sum(stage.tokens_seen for stage in self.stages))
                if replanned or self._out_of_patience():
                    return

    def _out_of_patience(self) -> bool:
        patience = self.config.loop.patience
        return patience is not None and self.best.worse >= patience

    def _evaluate_if_due(self, bar: ProgressTask) -> None:
        """Evaluate and sample, unless that was done before an interruption."""
        step = self.state.step
        if self.evaluated_step >= step or not is_evaluated(step, self.config.loop, self.plan, self._fractions):
            return
        with ema_weights(self.model, self.state.ema):
            loss = self._report_scores()
        bar.advance(0, f"held-out {loss:.3f}")
        if step < self.steps:  # a separate sample is generated at the end of the run
            with self.strategy.full_model(self.model) as model:
                self._sample(model)

    def _report_scores(self) -> float:
        """Score some of the held-out text and report it; returns the loss of the last stage."""
        started, step = time.monotonic(), self.state.step
        tokens = max(1, self.config.loop.evaluate_tokens // len(self.stages))
        with self.strategy.full_model(self.model) as model:
            scores = self._score(model, tokens)
            loss = scores[-1].text.loss
            if self._selects_best:
                self.best = self.best.after(step, loss)
                if step and self.best.step == step:
                    self._best_weights = copy_weights(model.backbone), copy_weights(model.head)
        self.evaluated_step = step
        measured = sum(min(tokens, stage.held_out_tokens) for stage in self.stages)
        self._note_measuring((time.monotonic() - started) / max(1, measured))
        for stage, score in zip(self.stages, scores, strict=True):
            self.progress.say(f"step {step:,}: {self._stage_prefix(stage)}{score.summary()}")
        return loss

    def _save(self) -> None:
        """Write a checkpoint with the best weights that it refers to."""
        if self.state.step == self.saved_step:
            return
        if self._selects_best:
            self.group.broadcast(lambda: save_best(self.run, self.best.step, self._best_weights))
        super()._save()
        if self._selects_best:
            self.group.broadcast(lambda: remove_best(self.run))

    def _fetch(self, step: int) -> list[Batch]:
        stage = stage_at(self.stages, step)
        return stage.fetch(step - stage.first_step)

    def _objective(self, batch: Batch) -> LossSum:
        if self.teacher:
            return distillation_loss(self.model, self.teacher, batch)
        return next_sentence_loss(self.model, batch)

    def _log_step(self, report: StepReport) -> None:
        values = asdict(report)
        values.pop("seconds")  # a resumed run must write the same lines
        self.run.metrics.write("step", **values, **self._stage_entry(stage_at(self.stages, report.step - 1)))

    def _stage_entry(self, stage: Stage) -> dict[str, int]:
        """Return the entry of a metrics line that names its stage; empty in a run without stages."""
        return {"stage": stage.number} if len(self.stages) > 1 else {}

    def _stage_prefix(self, stage: Stage) -> str:
        return f"stage {stage.number}: " if len(self.stages) > 1 else ""

    def _score(self, model: Model[LanguageHead], tokens: int | None) -> list[HeldOutScore]:
        """Score the held-out documents of each stage, all or as many as reach `tokens`, and log the scores."""
        scores = []
        for stage in self.stages:
            dataset, num_bytes = stage.held_out_dataset(tokens)
            masked_batch = partial(stage.make_batch, dataset) if self.config.objective == "masked" else None
            text = score_language(model, dataset, num_bytes, self.runtime, self.stop.check, masked_batch, self.group)
            pairs = stage.held_out_pairs(tokens) if stage.pairs else None
            pair_score = score_next_sentence(model, pairs, self.runtime, self.stop.check, self.group) if pairs else None
            scores.append(HeldOutScore(text, pair_score))
        # all at once: a stop during scoring must leave none of these lines behind
        for stage, score in zip(self.stages, scores, strict=True):
            self.run.metrics.write(
                "evaluation",
                step=self.state.step,
                **asdict(score.text),
                **score.pairs_record(),
                **self._stage_entry(stage),
            )
        return scores

    def _sample(self, model: Model[LanguageHead]) -> None:
        """Generate from the prompt, or from the beginning of a held-out document; a masked model cannot."""
        if self.config.objective == "masked" or not self.group.is_main:
            return
        stage = self.stages[-1]
        opening = [int(token) for token in stage.shards.ids(int(stage.held_out[0]))[:_PROMPT_TOKENS]]
        prompt = self.config.loop.prompt or self.tokenizer.decode(opening)
        with without_compile(model):
            text = generate_text(model, self.tokenizer, prompt, Sampling(tokens=_SAMPLE_TOKENS), self.runtime)
        self.run.metrics.write("sample", step=self.state.step, prompt=prompt, text=text)
        self.progress.say(f"  {prompt} | {text.strip()}")

    def _finish(self, model: Model[LanguageHead]) -> None:
        if self._selects_best:
            self._load_best_weights(model)
        tokens, held_out = final_tokens(self.config.loop, self.stages), self.stages[-1].held_out_tokens
        part = "all held-out text" if tokens is None else f"about {tokens:,} of {held_out:,} held-out tokens"
        self.progress.say(f"measuring on {part}")
        scores = self._score(model, tokens)
        self._sample(model)
        self.group.broadcast(lambda: self._write_result(model, scores))

    @property
    def _measures_part(self) -> bool:
        """True if the end of the run measures a part of the held-out text."""
        return final_tokens(self.config.loop, self.stages) is not None

    def _load_best_weights(self, model: Model[LanguageHead]) -> None:
        """Load the weights with the lowest held-out loss, and say which they are."""
        step, last = self.best.step, self.state.step
        if self._out_of_patience() and last < self.steps:
            times = pluralize(self.best.worse, "measurement")
            self.progress.say(f"stopped at step {last:,} of {self.steps:,}: no lower held-out loss in {times}")
        if step == last:
            return
        if step == 0 and self.backbone:
            self.progress.say(
                f"the held-out loss never fell below that of {self.backbone.name}: its weights are unchanged"
            )
        else:
            self.progress.say(f"keeping the weights of step {step:,}, which had the lowest held-out loss")
        weights = self._first_weights if step == 0 else self._best_weights or load_best(self.run, step)
        name = str(best_folder(self.run, step))
        load_into(model.backbone, weights[0], name)
        load_into(model.head, weights[1], name)

    def _write_result(self, model: Model[LanguageHead], scores: list[HeldOutScore]) -> None:
        result = self._result(scores)
        # the pair head served this run only
        head = model.head.plain() if isinstance(model.head, NextSentenceHead) else model.head
        bundle = Bundle(
            Model(model.backbone, head),
            self.tokenizer,
            objective=self.config.objective,
            attention="causal" if self.config.objective == "causal" else "bidirectional",
            about=result,
        )
        teacher = self.distillation.bundle if self.distillation else None
        members = membership_file([stage.shards for stage in self.stages], self.backbone, teacher)
        save_bundle(self.run.path / "bundle", bundle, extra=members)
        self.run.write_json("result.json", result)
        self.run.remove_checkpoints()
        for stage, score in zip(self.stages, scores, strict=True):
            end = f"; model in {self.run.path}" if stage is self.stages[-1] else ""
            # of a masked model only the masked tokens count
            is_part = self._measures_part and self.config.objective != "masked"
            summary = score.summary(tokens=True, held_out_tokens=stage.held_out_tokens if is_part else None)
            self.progress.say(f"{self._stage_prefix(stage)}{summary}{end}")

    def _result(self, scores: list[HeldOutScore]) -> dict[str, Any]:
        """Return the content of result.json; the last stage is the headline."""
        last, score = self.stages[-1], scores[-1]
        result = {
            "steps": self.state.step,
            "tokens_seen": round(sum(stage.tokens_seen for stage in self.stages)),
            "held_out": asdict(score.text),
            **({"held_out_tokens": last.held_out_tokens} if self._measures_part else {}),
            **({"best_step": self.best.step} if self._selects_best else {}),
            "tokenizer": self.tokenizer.digest,
            "corpus": last.shards.about.get("fingerprint"),
            "excluded": last.shards.excluded,
            "sources": source_names(stage.shards.about for stage in self.stages),
        }
        if len(self.stages) > 1:
            result["stages"] = [
                stage.result() | {"held_out": asdict(stage_score.text), **stage_score.pairs_record()}
                for stage, stage_score in zip(self.stages, scores, strict=True)
            ]
        if self.distillation:
            result["teacher"] = self.distillation.as_dict()
        if self.config.next_sentence.weight:
            pairs = {
                "weight": self.config.next_sentence.weight,
                "head": "trained with the language-model head, not part of the bundle",
            }
            result["pairs"] = pairs | score.pairs_record().get("pairs", {})
        return result

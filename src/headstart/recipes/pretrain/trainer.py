"""PretrainTrainer.

What a pretraining run measured on held-out text, in words and for its record.

Whether torch compiles a network before it is pretrained: what that takes must be earned back.

A larger model that a smaller one learns from beside the text: whether it can, and what is kept of it.

What a model remembers of its pretraining text, and what that says about labelled rows.

One pretraining under way: its plan, its steps, its measures and its end, whatever it reads and wherever it began.
"""

import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import nn

from headstart.config.schema import PretrainConfig
from headstart.data.batch import Batch
from headstart.data.decontamination import MEMBERSHIP_FILE, Membership
from headstart.data.masking import mask_token
from headstart.data.provenance import source_names
from headstart.data.shards import Shards
from headstart.errors import ConfigError, Interrupted, UsageError
from headstart.files import read_checksummed
from headstart.interrupts import StopRequested, StopSignal, step_context
from headstart.model.heads import LanguageHead, Model, NextSentenceHead, build_language_head
from headstart.model.transformer import build_backbone
from headstart.predict.generate import Sampling, generate_text
from headstart.progress import Progress, ProgressTask, pluralize
from headstart.recipes.pretrain.stages import Stage, assign_steps, build_stages, describe_stages, stage_at, total_steps
from headstart.recipes.trainer import describe_processes, resume_state, save_state
from headstart.runtime import Runtime
from headstart.store.bundle import Bundle, save_bundle
from headstart.store.model_card import base_name
from headstart.store.run_folder import RunFolder
from headstart.store.transfer import new_tensor_lines, transfer
from headstart.tokenization.base import Tokenizer
from headstart.tokenization.tokenizer import load_tokenizer
from headstart.train.cuda_graphs import GraphCache, token_graphs
from headstart.train.ema import EMA, ema_weights
from headstart.train.loop import TRAINING_FRACTION, StepReport, TrainState, fit, seconds_per_step
from headstart.train.objectives import LossSum, Teacher, distillation_loss, next_sentence_loss
from headstart.train.optimizers import build_optimizer
from headstart.train.parallel import SINGLE, ParallelStrategy
from headstart.train.scoring import (
    LanguageScore,
    NextSentenceScore,
    score_language,
    score_next_sentence,
    without_compile,
)


@dataclass(frozen=True)
class HeldOutScore:
    """What was measured on the held-out documents of one stage."""

    text: LanguageScore
    pairs: NextSentenceScore | None

    def about_pairs(self) -> dict[str, Any]:
        """For JSON; empty where the second question was not asked."""
        return {"pairs": asdict(self.pairs)} if self.pairs else {}

    def words(self, *, tokens: bool = False) -> str:
        """One line for a person."""
        text, pairs = self.text, self.pairs
        over = f" over {text.tokens:,} tokens" if tokens else ""
        bits = "" if text.bits_per_byte is None else f", {text.bits_per_byte:.3f} bits per byte"
        told = f", pairs {100 * pairs.accuracy:.1f} % right of {pairs.pairs:,}" if pairs else ""
        return f"held-out loss {text.loss:.3f}, perplexity {text.perplexity:.1f}{bits}{over}{told}"


MIN_GAIN = 4e16
"""Operations of a run, six a parameter and token, that earn it back: two minutes of an H200 at two fifths of its peak, where
compiling takes 20 to 40 seconds the first time (a few once torch has it in its cache)."""
_MINUTES = 3.0


def should_compile(
    config: PretrainConfig,
    model: nn.Module,
    stages: list[Stage],
    device: torch.device,
    say: Callable[[str], None],
    *,
    alone: bool,
) -> bool:
    """What was asked for; unasked a long run on a GPU is compiled, if a compiler is there.

    How long it is follows from its settings alone, so that a run that is resumed decides alike.

    Args:
        alone: whether one process trains.
    """
    asked = config.runtime
    if asked.compile is not None:
        return asked.compile
    usual = device.type == "cuda" and alone and not asked.deterministic and not asked.recompute
    if not (usual and compile_pays(config, model, stages)):
        return False
    fault = compiler_error(device)
    if fault:
        say(f"layers are not compiled, which would be faster: {fault}")
    return fault is None


def compile_pays(config: PretrainConfig, model: nn.Module, stages: list[Stage]) -> bool:
    """Whether a run is long enough: by its minutes, or by what it has to compute."""
    if config.loop.minutes is not None:
        return config.loop.minutes >= _MINUTES
    parameters = sum(parameter.numel() for parameter in model.parameters())
    rows = total_steps(stages, config.loop) * max(stage.rows_per_step for stage in stages)
    return 6.0 * parameters * rows * config.model.context >= MIN_GAIN


def compiler_error(device: torch.device) -> str | None:
    """Why nothing can be compiled here, in one line; None where all is well. Tried on a few numbers."""
    try:
        torch.compile(lambda x: x.sin() + 1)(torch.ones(8, device=device))
    except (RuntimeError, OSError, ImportError) as error:  # no C compiler, no triton, an old GPU
        return (str(error).strip().splitlines() or [type(error).__name__])[0]
    return None


TEACHER_WEIGHT = 0.5
"""How much a teacher's opinion counts unless told: as much as the text."""


def check_teacher_weight(teacher: str | None, weight: float | None) -> float:
    """The weight that will be used: 0 without a teacher."""
    if teacher is None:
        if weight is not None:
            raise UsageError("--teacher-weight says how much --teacher counts; name one")
        return 0.0
    weight = TEACHER_WEIGHT if weight is None else weight
    if not 0 <= weight <= 1:
        raise ConfigError(f"--teacher-weight must lie between 0 and 1, got {weight:g}")
    return weight


@dataclass(frozen=True)
class Distillation:
    """The teacher of a run."""

    name: str
    """As the person wrote it."""
    bundle: Bundle
    weight: float

    def begin(self, config: PretrainConfig, tokenizer: Tokenizer, runtime: Runtime) -> Teacher | None:
        """The teacher at its place, if it can teach this; None where it has nothing to say."""
        _refuse(self.name, self.bundle, config, tokenizer)
        if not self.weight:
            return None
        return Teacher(self.bundle.model.to(runtime.device).requires_grad_(False), self.weight)

    def about(self) -> dict[str, Any]:
        """For the record of what was learnt."""
        return {"name": base_name(self.name), "weight": self.weight}


def _refuse(name: str, teacher: Bundle, config: PretrainConfig, tokenizer: Tokenizer) -> None:
    """Refuse one that speaks of other tokens, was asked other questions, or reads less."""
    if teacher.tokenizer.digest != tokenizer.digest:
        raise UsageError(
            f"--teacher {name} has another tokenizer ({teacher.tokenizer.digest[:12]}, not {tokenizer.digest[:12]}); "
            "prepare the text with the teacher's"
        )
    if teacher.objective not in (config.objective, "hybrid"):
        raise UsageError(f"--teacher {name} learnt {teacher.objective}, which does not teach {config.objective}")
    if config.next_sentence.weight:
        raise UsageError("--teacher has no opinion on pairs; leave next_sentence.weight at 0")
    if teacher.config.context < config.model.context:
        raise UsageError(
            f"--teacher {name} reads {teacher.config.context} tokens, the rows have {config.model.context}; "
            f"set model.context to {teacher.config.context}"
        )


def membership_file(shards: Iterable[Shards], *sources: Bundle | None) -> dict[str, bytes]:
    """The digests of all that a model learnt from, as a file of its bundle.

    Args:
        sources: the models it went on from or was taught by; where one does not know its own text, nothing is carried:
            half of the truth would pass for the whole.
    """
    known = Membership.from_digests([])
    for source in filter(None, sources):
        before = Membership.load(source.path)
        if before is None:
            return {}
        known |= before
    for part in shards:
        known |= Membership.from_digests(part.digests)
    return {MEMBERSHIP_FILE: known.to_bytes()}


_PROMPT_TOKENS = 6
_SAMPLE_TOKENS = 40


@dataclass
class PretrainTrainer:
    """One run under way."""

    run: RunFolder
    config: PretrainConfig
    shards: Sequence[Shards]
    """Of each stage; a run without stages has one."""
    runtime: Runtime
    progress: Progress
    source: Bundle | None = None
    teaching: Distillation | None = None
    stop: StopSignal = field(default_factory=StopSignal)
    began: float = field(default_factory=time.monotonic)
    """When the clock of `loop.minutes` started."""
    way: ParallelStrategy = SINGLE

    def prepare(self) -> None:
        """Lay out the rows and build the model; whatever is wrong with the text shows here."""
        config, seed = self.config, self.config.runtime.seed
        vocab_size = self.source.model.backbone.vocab_size if self.source else self.shards[0].vocab_size
        self.tokenizer: Tokenizer = load_tokenizer(self.shards[0].tokenizer_folder)
        if config.objective != "causal":
            mask_token(self.tokenizer.special)  # refuse now what could not be done later
        self.stages = build_stages(config, self.shards, self.tokenizer.special, self.way.portion)
        self.model: Model[LanguageHead] = Model(
            build_backbone(config.model, vocab_size, seed), build_language_head(config.model, vocab_size, seed)
        ).to(self.runtime.device)
        receipt = None
        if self.source:
            receipt = transfer(self.source.name, self.model, self.tokenizer, self.source, head=True)
        if config.next_sentence.weight:
            head = NextSentenceHead(self.model.head, config.model.width, seed).to(self.runtime.device)
            self.model.head = head
            receipt = receipt and replace(receipt, new=new_tensor_lines(head.pair, "head.pair"))
        if receipt:
            self.run.write_json("receipt.json", receipt.as_dict())
            self.progress.say(receipt.summary())
        self.model.backbone.recompute = config.runtime.recompute
        if not self.way.sharded:
            self.state = self._fresh_state()
        self.evaluated, self.saved = 0, 0
        self._graphs: GraphCache | None = None
        self.teacher = self.teaching.begin(config, self.tokenizer, self.runtime) if self.teaching else None

    def _fresh_state(self) -> TrainState:
        config = self.config.optim
        ema = EMA(self.model, config.ema_decay) if config.ema_decay else None
        optimizer = build_optimizer(self.model, config)
        return TrainState(self.model, optimizer, self.config.runtime.seed, ema=ema, strategy=self.way)

    def go(self, stop: StopSignal, *, resume: bool) -> None:
        """Train to the end, or to a stop."""
        self.stop = stop
        if should_compile(
            self.config, self.model, self.stages, self.runtime.device, self.progress.say, alone=self.way is SINGLE
        ):
            self.model.backbone.compile_layers()
            if self.teacher:
                self.teacher.model.backbone.compile_layers()
        if self.way.sharded:
            self.way.shard(self.model, self.runtime)
            self.state = self._fresh_state()
        self._graphs = None if self.teacher else token_graphs(self.model, self.runtime, self.way, self.progress.say)
        if self.source and not resume:  # what this text will have brought is the way from here
            self._report(self.model)
        self.steps = self._plan()
        self._tell()
        if resume:
            self.evaluated = resume_state(self.run, self.state, self.progress.say).get("evaluated", 0)
            self.saved = self.state.step
        try:
            self._train()
            if self._graphs:
                self._graphs.reset()  # measuring all held-out text may need the memory
            with ema_weights(self.model, self.state.ema), self.way.full_model(self.model) as model:
                self._finish(model)
        except StopRequested:
            self._save()
            raise Interrupted(
                f"{self.stop.why} at step {self.state.step} of {self.steps}; saved. Go on with: "
                f"headstart pretrain --resume --out {self.run.path}",
                self.stop.reason or "",
            ) from None

    def _plan(self) -> int:
        """How many steps: as set, or as many as the minutes allow. What was timed is written down: resuming keeps it."""
        loop, path, several = self.config.loop, self.run.path / "plan.json", len(self.stages) > 1
        plan: dict[str, Any] = self.way.ranks.broadcast(lambda: read_checksummed(path) if path.is_file() else {})
        if loop.minutes is not None:
            plan = plan or self._time()
        else:
            plan["steps"] = total_steps(self.stages, loop)
        steps = int(plan["steps"])
        assign_steps(self.stages, steps)
        if several:
            plan["stages"] = [stage.plan() for stage in self.stages]
        if several or loop.minutes is not None:
            self.run.write_json(path.name, plan, checksummed=True)
        return steps

    def _time(self) -> dict[str, Any]:
        """Steps for the minutes, by the time that steps of each stage's shape take."""
        self.progress.say("timing a few steps")
        before = {name: tensor.clone() for name, tensor in self.model.state_dict().items()}
        a_step, budget = 0.0, 60 * (self.config.loop.minutes or 0)
        for stage in self.stages:
            trial = replace(self._fresh_state(), ema=None)
            with closing(self._fit(trial, stage.fetch, 2**31)) as reports:
                part, compiled = budget / len(self.stages), self.model.backbone.compiled
                a_step += stage.fraction * seconds_per_step(reports, part, self.way.ranks, compiled=compiled)
        self.model.load_state_dict(before)
        affordable = int(max(0.0, TRAINING_FRACTION * budget - (time.monotonic() - self.began)) / a_step)
        plan = {"steps": max(len(self.stages), affordable), "seconds_a_step": a_step}
        return self.way.ranks.broadcast(lambda: plan)

    def _tell(self) -> None:
        parameters = sum(parameter.numel() for parameter in self.model.parameters())
        threads = pluralize(self.runtime.threads, "thread")
        threads += describe_processes(self.config.runtime, self.way.ranks)
        stages, rows = self.stages, [stage.rows for stage in self.stages]
        self.progress.say(
            f"{pluralize(sum(len(part.documents) for part in rows), 'document')} to learn from, "
            f"{sum(len(stage.held_out) for stage in stages):,} held out; "
            f"{pluralize(sum(stage.reads.num_tokens for stage in stages), 'token')} an epoch; {parameters:,} parameters; "
            f"{pluralize(self.steps, 'step')} on {self.runtime.device}, {threads}"
        )
        for line in describe_stages(stages, self.config.model.context):
            self.progress.say(line)

    def _train(self) -> None:
        loop = self.config.loop
        total = sum(stage.tokens_seen for stage in self.stages)
        with self.progress.task("pretraining", total, "tokens") as bar:
            bar.advance(self.state.step / self.steps * total)
            self._look_up(bar)
            for report in self._fit(self.state, self._fetch, self.steps):
                bar.advance(total / self.steps, f"loss {report.loss:.3f}")
                self._log(report)
                self._look_up(bar)
                if report.step % loop.save_every == 0:
                    self._save()
                self.stop.check()

    def _look_up(self, bar: ProgressTask) -> None:
        """Measure and sample when it is time and was not done before an interruption."""
        step = self.state.step
        if step == 0 or step % self.config.loop.evaluate_every or self.evaluated >= step or step == self.steps:
            return
        with ema_weights(self.model, self.state.ema):
            loss = self._report(self.model)
        self.evaluated = step
        bar.advance(0, f"held-out {loss:.3f}")
        with self.way.full_model(self.model) as model:
            self._sample(model)

    def _fit(
        self, state: TrainState, fetch: Callable[[int], list[Batch]], steps: int
    ) -> Generator[StepReport, None, None]:
        optim, interruptible = self.config.optim, step_context(self.stop, compiled=self.model.backbone.compiled)
        return fit(state, fetch, self._objective, optim, steps, self.runtime, interruptible, self._graphs)

    def _report(self, model: Model[LanguageHead]) -> float:
        """Measure on some of the held-out text and say what was found; gives the loss of the last stage."""
        with self.way.full_model(model) as whole:
            scores = self._measure(whole, self.config.loop.evaluate_tokens // len(self.stages))
        for stage, score in zip(self.stages, scores, strict=True):
            self.progress.say(f"step {self.state.step:,}: {self._of(stage)}{score.words()}")
        return scores[-1].text.loss

    def _fetch(self, step: int) -> list[Batch]:
        stage = stage_at(self.stages, step)
        return stage.fetch(step - stage.first)

    def _objective(self, batch: Batch) -> LossSum:
        if self.teacher:
            return distillation_loss(self.model, self.teacher, batch)
        return next_sentence_loss(self.model, batch)

    def _log(self, report: StepReport) -> None:
        figures = asdict(report)
        figures.pop("seconds")  # time is not part of what must be the same on resuming
        self.run.metrics.write("step", **figures, **self._mark(stage_at(self.stages, report.step - 1)))

    def _mark(self, stage: Stage) -> dict[str, int]:
        """The stage of a line of the metrics, where there are several."""
        return {"stage": stage.number} if len(self.stages) > 1 else {}

    def _of(self, stage: Stage) -> str:
        return f"stage {stage.number}: " if len(self.stages) > 1 else ""

    def _measure(self, model: Model[LanguageHead], tokens: int | None) -> list[HeldOutScore]:
        """Score the held-out documents of each stage, all or as many as reach `tokens`, and write the scores down."""
        scores = []
        for stage in self.stages:
            rows, size = stage.measured(tokens)
            gaps = partial(stage.ask, rows) if self.config.objective == "masked" else None
            ranks, check = self.way.ranks, self.stop.check
            text = score_language(model, rows, size, self.runtime, check, gaps, ranks)
            pairs = stage.measured_pairs(tokens) if stage.pairs else None
            scores.append(
                HeldOutScore(text, score_next_sentence(model, pairs, self.runtime, check, ranks) if pairs else None)
            )
        # together, once a stop can no longer come between them
        for stage, score in zip(self.stages, scores, strict=True):
            self.run.metrics.write(
                "evaluation", step=self.state.step, **asdict(score.text), **score.about_pairs(), **self._mark(stage)
            )
        return scores

    def _sample(self, model: Model[LanguageHead]) -> None:
        """Let the model go on from the prompt, or from how a held-out document begins."""
        if self.config.objective == "masked" or not self.way.ranks.is_main:
            return  # it fills gaps and cannot go on; and one continuation is enough
        last = self.stages[-1]
        opening = [int(token) for token in last.shards.ids(int(last.held_out[0]))[:_PROMPT_TOKENS]]
        prompt = self.config.loop.prompt or self.tokenizer.decode(opening)
        with without_compile(model):
            text = generate_text(model, self.tokenizer, prompt, Sampling(tokens=_SAMPLE_TOKENS), self.runtime)
        self.run.metrics.write("sample", step=self.state.step, prompt=prompt, text=text)
        self.progress.say(f"  {prompt} | {text.strip()}")

    def _save(self) -> None:
        if self.state.step == self.saved:
            return
        save_state(self.run, self.state, {"evaluated": self.evaluated}, self.config.loop.keep)
        self.saved = self.state.step

    def _finish(self, model: Model[LanguageHead]) -> None:
        self.progress.say("measuring on all held-out text")
        scores = self._measure(model, None)
        self._sample(model)
        self.way.ranks.broadcast(lambda: self._write(model, scores))

    def _write(self, model: Model[LanguageHead], scores: list[HeldOutScore]) -> None:
        last, score = self.stages[-1], scores[-1]
        result = {
            "steps": self.state.step,
            "tokens_seen": round(sum(stage.tokens_seen for stage in self.stages)),
            "held_out": asdict(score.text),
            "tokenizer": self.tokenizer.digest,
            "corpus": last.shards.about.get("fingerprint"),
            "excluded": last.shards.excluded,
            "sources": source_names(stage.shards.about for stage in self.stages),
        }
        if len(self.stages) > 1:
            result["stages"] = [
                stage.result() | {"held_out": asdict(part.text), **part.about_pairs()}
                for stage, part in zip(self.stages, scores, strict=True)
            ]
        taught = self.teaching.bundle if self.teaching else None
        if self.teaching:
            result["teacher"] = self.teaching.about()
        if self.config.next_sentence.weight:
            about = {
                "weight": self.config.next_sentence.weight,
                "head": "learnt beside the language head, left out of the bundle",
            }
            result["pairs"] = about | score.about_pairs().get("pairs", {})
        head = (
            model.head.plain() if isinstance(model.head, NextSentenceHead) else model.head
        )  # pairs were for this run alone
        bundle = Bundle(
            Model(model.backbone, head),
            self.tokenizer,
            objective=self.config.objective,
            attention="causal" if self.config.objective == "causal" else "bidirectional",
            about=result,
        )
        seen = membership_file([stage.shards for stage in self.stages], self.source, taught)
        save_bundle(self.run.path / "bundle", bundle, extra=seen)
        self.run.write_json("result.json", result)
        self.run.remove_checkpoints()
        for stage, part in zip(self.stages, scores, strict=True):
            end = f"; model in {self.run.path}" if stage is last else ""
            self.progress.say(f"{self._of(stage)}{part.words(tokens=True)}{end}")

"""One pretraining under way: its plan, its steps, its measures and its end, whatever it reads and wherever it began."""

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

from headstart.config import PretrainConfig
from headstart.data.batches import Batch
from headstart.data.masking import mask_token
from headstart.data.provenance import origins
from headstart.data.shards import Shards
from headstart.errors import Interrupted
from headstart.files import read_sealed
from headstart.model.backbone import build_backbone
from headstart.model.heads import LanguageHead, Model, build_language_head
from headstart.model.pair_head import PairedHead
from headstart.predict.generate import Sampling, continue_text
from headstart.progress import Progress, Task, counted
from headstart.recipes.compiling import compiles
from headstart.recipes.leaks import carried
from headstart.recipes.measured import HeldOutScore
from headstart.recipes.stages import Stage, in_words, lay_out, spread, stage_at, wanted
from headstart.recipes.teaching import Teaching
from headstart.recipes.together import resume_state, save_state, several_words
from headstart.runtime import Halt, Runtime, Stop, cuts
from headstart.store.bundle import Bundle, save_bundle
from headstart.store.receipt import new_lines, transfer
from headstart.store.rundir import RunFolder
from headstart.text.tokenizer import Tokenizer, load_tokenizer
from headstart.train.average import Average, averaged
from headstart.train.distil import predict_like
from headstart.train.evaluate import score_language, uncompiled
from headstart.train.graphs import Graphs, token_graphs_for
from headstart.train.loop import StepReport, TrainState, fit
from headstart.train.objectives import LossSum
from headstart.train.optim import build_optimizer
from headstart.train.pace import TRAINING_SHARE, seconds_a_step
from headstart.train.pairs import predict_tokens_and_pairs, score_pairs
from headstart.train.parallel import ONE, Way

_PROMPT_TOKENS = 6
_SAMPLE_TOKENS = 40


@dataclass
class Pretraining:
    """One run under way."""

    run: RunFolder
    config: PretrainConfig
    shards: Sequence[Shards]
    """Of each stage; a run without stages has one."""
    runtime: Runtime
    progress: Progress
    source: Bundle | None = None
    teaching: Teaching | None = None
    stop: Stop = field(default_factory=Stop)
    began: float = field(default_factory=time.monotonic)
    """When the clock of `loop.minutes` started."""
    way: Way = ONE

    def prepare(self) -> None:
        """Lay out the rows and build the model; whatever is wrong with the text shows here."""
        config, seed = self.config, self.config.runtime.seed
        vocab_size = self.source.model.backbone.vocab_size if self.source else self.shards[0].vocab_size
        self.tokenizer: Tokenizer = load_tokenizer(self.shards[0].tokenizer_folder)
        if config.objective != "causal":
            mask_token(self.tokenizer.special)  # refuse now what could not be done later
        self.stages = lay_out(config, self.shards, self.tokenizer.special, self.way.portion)
        self.model: Model[LanguageHead] = Model(
            build_backbone(config.model, vocab_size, seed), build_language_head(config.model, vocab_size, seed)
        ).to(self.runtime.device)
        receipt = None
        if self.source:
            receipt = transfer(self.source.name, self.model, self.tokenizer, self.source, head=True)
        if config.pairs.weight:
            head = PairedHead(self.model.head, config.model.width, seed).to(self.runtime.device)
            self.model.head = head
            receipt = receipt and replace(receipt, new=new_lines(head.pair, "head.pair"))
        if receipt:
            self.run.note("receipt.json", receipt.as_dict())
            self.progress.say(receipt.summary())
        self.model.backbone.recompute = config.runtime.recompute
        if not self.way.sharded:
            self.state = self._fresh_state()
        self.evaluated, self.saved = 0, 0
        self._graphs: Graphs | None = None
        self.teacher = self.teaching.begin(config, self.tokenizer, self.runtime) if self.teaching else None

    def _fresh_state(self) -> TrainState:
        config = self.config.optim
        average = Average(self.model, config.average) if config.average else None
        optimizer = build_optimizer(self.model, config)
        return TrainState(self.model, optimizer, self.config.runtime.seed, average=average, way=self.way)

    def go(self, stop: Stop, *, resume: bool) -> None:
        """Train to the end, or to a stop."""
        self.stop = stop
        if compiles(
            self.config, self.model, self.stages, self.runtime.device, self.progress.say, alone=self.way is ONE
        ):
            self.model.backbone.compile_layers()
            if self.teacher:
                self.teacher.model.backbone.compile_layers()
        if self.way.sharded:
            self.way.spread(self.model, self.runtime)
            self.state = self._fresh_state()
        self._graphs = None if self.teacher else token_graphs_for(self.model, self.runtime, self.way, self.progress.say)
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
                self._graphs.forget()  # measuring all held-out text may need the memory
            with averaged(self.model, self.state.average), self.way.whole(self.model) as model:
                self._finish(model)
        except Halt:
            self._save()
            raise Interrupted(
                f"{self.stop.why} at step {self.state.step} of {self.steps}; saved. Go on with: "
                f"headstart pretrain --resume --out {self.run.path}",
                self.stop.reason or "",
            ) from None

    def _plan(self) -> int:
        """How many steps: as set, or as many as the minutes allow. What was timed is written down: resuming keeps it."""
        loop, path, several = self.config.loop, self.run.path / "plan.json", len(self.stages) > 1
        plan: dict[str, Any] = self.way.ranks.tell(lambda: read_sealed(path) if path.is_file() else {})
        if loop.minutes is not None:
            plan = plan or self._time()
        else:
            plan["steps"] = wanted(self.stages, loop)
        steps = int(plan["steps"])
        spread(self.stages, steps)
        if several:
            plan["stages"] = [stage.plan() for stage in self.stages]
        if several or loop.minutes is not None:
            self.run.note(path.name, plan, sealed=True)
        return steps

    def _time(self) -> dict[str, Any]:
        """Steps for the minutes, by the time that steps of each stage's shape take."""
        self.progress.say("timing a few steps")
        before = {name: tensor.clone() for name, tensor in self.model.state_dict().items()}
        a_step, budget = 0.0, 60 * (self.config.loop.minutes or 0)
        for stage in self.stages:
            trial = replace(self._fresh_state(), average=None)
            with closing(self._fit(trial, stage.fetch, 2**31)) as reports:
                part, compiled = budget / len(self.stages), self.model.backbone.compiled
                a_step += stage.share * seconds_a_step(reports, part, self.way.ranks, compiled=compiled)
        self.model.load_state_dict(before)
        affordable = int(max(0.0, TRAINING_SHARE * budget - (time.monotonic() - self.began)) / a_step)
        plan = {"steps": max(len(self.stages), affordable), "seconds_a_step": a_step}
        return self.way.ranks.tell(lambda: plan)

    def _tell(self) -> None:
        parameters = sum(parameter.numel() for parameter in self.model.parameters())
        threads = counted(self.runtime.threads, "thread")
        threads += several_words(self.config.runtime, self.way.ranks)
        stages, rows = self.stages, [stage.rows for stage in self.stages]
        self.progress.say(
            f"{counted(sum(len(part.documents) for part in rows), 'document')} to learn from, "
            f"{sum(len(stage.held_out) for stage in stages):,} held out; "
            f"{counted(sum(stage.reads.inputs for stage in stages), 'token')} an epoch; {parameters:,} parameters; "
            f"{counted(self.steps, 'step')} on {self.runtime.device}, {threads}"
        )
        for line in in_words(stages, self.config.model.context):
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

    def _look_up(self, bar: Task) -> None:
        """Measure and sample when it is time and was not done before an interruption."""
        step = self.state.step
        if step == 0 or step % self.config.loop.evaluate_every or self.evaluated >= step or step == self.steps:
            return
        with averaged(self.model, self.state.average):
            loss = self._report(self.model)
        self.evaluated = step
        bar.advance(0, f"held-out {loss:.3f}")
        with self.way.whole(self.model) as model:
            self._sample(model)

    def _fit(
        self, state: TrainState, fetch: Callable[[int], list[Batch]], steps: int
    ) -> Generator[StepReport, None, None]:
        optim, cutting = self.config.optim, cuts(self.stop, compiled=self.model.backbone.compiled)
        return fit(state, fetch, self._objective, optim, steps, self.runtime, cutting, self._graphs)

    def _report(self, model: Model[LanguageHead]) -> float:
        """Measure on some of the held-out text and say what was found; gives the loss of the last stage."""
        with self.way.whole(model) as whole:
            scores = self._measure(whole, self.config.loop.evaluate_tokens // len(self.stages))
        for stage, score in zip(self.stages, scores, strict=True):
            self.progress.say(f"step {self.state.step:,}: {self._of(stage)}{score.words()}")
        return scores[-1].text.loss

    def _fetch(self, step: int) -> list[Batch]:
        stage = stage_at(self.stages, step)
        return stage.fetch(step - stage.first)

    def _objective(self, batch: Batch) -> LossSum:
        if self.teacher:
            return predict_like(self.model, self.teacher, batch)
        return predict_tokens_and_pairs(self.model, batch)

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
            scores.append(HeldOutScore(text, score_pairs(model, pairs, self.runtime, check, ranks) if pairs else None))
        # together, once a stop can no longer come between them
        for stage, score in zip(self.stages, scores, strict=True):
            self.run.metrics.write(
                "evaluation", step=self.state.step, **asdict(score.text), **score.about_pairs(), **self._mark(stage)
            )
        return scores

    def _sample(self, model: Model[LanguageHead]) -> None:
        """Let the model go on from the prompt, or from how a held-out document begins."""
        if self.config.objective == "masked" or not self.way.ranks.first:
            return  # it fills gaps and cannot go on; and one continuation is enough
        last = self.stages[-1]
        opening = [int(token) for token in last.shards.ids(int(last.held_out[0]))[:_PROMPT_TOKENS]]
        prompt = self.config.loop.prompt or self.tokenizer.decode(opening)
        with uncompiled(model):
            text = continue_text(model, self.tokenizer, prompt, Sampling(tokens=_SAMPLE_TOKENS), self.runtime)
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
        self.way.ranks.tell(lambda: self._write(model, scores))

    def _write(self, model: Model[LanguageHead], scores: list[HeldOutScore]) -> None:
        last, score = self.stages[-1], scores[-1]
        result = {
            "steps": self.state.step,
            "tokens_seen": round(sum(stage.tokens_seen for stage in self.stages)),
            "held_out": asdict(score.text),
            "tokenizer": self.tokenizer.digest,
            "corpus": last.shards.about.get("fingerprint"),
            "left_out": last.shards.about.get("left_out"),
            "sources": origins(stage.shards.about for stage in self.stages),
        }
        if len(self.stages) > 1:
            result["stages"] = [
                stage.result() | {"held_out": asdict(part.text), **part.about_pairs()}
                for stage, part in zip(self.stages, scores, strict=True)
            ]
        taught = self.teaching.bundle if self.teaching else None
        if self.teaching:
            result["teacher"] = self.teaching.about()
        if self.config.pairs.weight:
            about = {
                "weight": self.config.pairs.weight,
                "head": "learnt beside the language head, left out of the bundle",
            }
            result["pairs"] = about | score.about_pairs().get("pairs", {})
        head = model.head.plain() if isinstance(model.head, PairedHead) else model.head  # pairs were for this run alone
        bundle = Bundle(
            Model(model.backbone, head),
            self.tokenizer,
            objective=self.config.objective,
            visibility="causal" if self.config.objective == "causal" else "both",
            about=result,
        )
        seen = carried([stage.shards for stage in self.stages], self.source, taught)
        save_bundle(self.run.path / "bundle", bundle, extra=seen)
        self.run.note("result.json", result)
        self.run.tidy()
        for stage, part in zip(self.stages, scores, strict=True):
            end = f"; model in {self.run.path}" if stage is last else ""
            self.progress.say(f"{self._of(stage)}{part.words(tokens=True)}{end}")

"""Pretraining: text in, a language model and its measure on held-out text out."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headstart.config import PretrainConfig
from headstart.data.batches import Batch, CausalRows
from headstart.data.leaveout import refuse_prepared
from headstart.data.masking import ask, mask_token
from headstart.data.shards import Shards
from headstart.errors import DataError, Interrupted, UsageError
from headstart.files import MANIFEST, read_json, write_json
from headstart.layering import layered
from headstart.model.backbone import build_backbone
from headstart.model.heads import LanguageHead, Model, build_language_head
from headstart.predict.generate import Sampling, continue_text
from headstart.progress import Progress, Quiet, Task
from headstart.recipes.leaks import carried
from headstart.recipes.prepare import is_shards, run_prepare
from headstart.runtime import Halt, Runtime, Stop, environment, start, stopping
from headstart.store.bundle import Bundle, load_bundle, save_bundle
from headstart.store.checkpoint import resume_from, save_checkpoint
from headstart.store.receipt import transfer
from headstart.store.rundir import RunFolder
from headstart.text.tokenizer import Tokenizer, load_tokenizer
from headstart.train.evaluate import LanguageScore, score_language
from headstart.train.loop import StepReport, TrainState, fit
from headstart.train.objectives import LossSum, predict_tokens
from headstart.train.optim import build_optimizer, optimizer_tensors, restore_optimizer

_PROMPT_TOKENS = 6
_SAMPLE_TOKENS = 40
_WARM_STEPS, _TIMED_STEPS, _TRAINING_SHARE = 5, 40, 0.93


def run_pretrain(
    texts: Sequence[str],
    out: Path,
    config: PretrainConfig | None,
    *,
    source: str | None = None,
    tokenizer: Path | None = None,
    resume: bool = False,
    command: str = "",
    progress: Progress | None = None,
) -> RunFolder:
    """Pretrain on text files or on one folder of prepared shards; with `resume`, go on with the run in `out`.

    Args:
        source: a language model to start from in place of random weights: general text first, one's own text next.
    """
    progress = progress or Quiet()
    if resume:
        run = RunFolder.open(out, kind="pretrain")
        if run.finished:
            progress.say(f"{out} is finished already; its result is in {out / 'result.json'}")
            return run
        config = layered(PretrainConfig, read_json(out / "config.json"))
        inputs = run.facts["inputs"]
        texts, source = inputs["texts"], inputs["source"]
        tokenizer = Path(inputs["tokenizer"]) if inputs["tokenizer"] else None
        start_from = load_bundle(Path(source), task="language") if source else None
    else:
        if config is None or not texts:
            raise UsageError("pretrain needs at least one text file or a folder of prepared shards")
        # the thread count is part of the run: other threads add in another order
        threads = start(config.runtime).threads
        start_from = load_bundle(Path(source), task="language") if source else None
        used: dict[str, Any] = {"runtime": {"threads": threads}}
        if start_from:
            used["model"] = start_from.config.model_dump()
        config = layered(PretrainConfig, config.model_dump(), used)
        inputs = {"texts": list(texts), "tokenizer": str(tokenizer) if tokenizer else None, "source": source}
        run = RunFolder.create(out, kind="pretrain", command=command, config=config, inputs=inputs)
    with run.locked():
        runtime = start(config.runtime)
        write_json(out / "environment.json", environment(runtime))
        with run.discarded_on_error(new=not resume):
            own = start_from.tokenizer if start_from and tokenizer is None else tokenizer
            shards = _shards(texts, out, config, own, progress)
            facts = {" ".join(texts): read_json(shards.folder / MANIFEST)["files"]}
            run.same_inputs(facts | {"what was left out": shards.about.get("left_out")})
            pretraining = _Pretraining(run, config, shards, runtime, progress, start_from)
            pretraining.prepare()
        with stopping(config.runtime.time_limit) as stop:
            pretraining.go(stop, resume=resume)
    return run


def _shards(
    texts: Sequence[str], out: Path, config: PretrainConfig, tokenizer: Tokenizer | Path | None, progress: Progress
) -> Shards:
    """Open the shards given, or prepare the texts given."""
    if len(texts) == 1 and is_shards(texts[0]):
        shards = Shards.open(Path(texts[0]))
        given = load_tokenizer(tokenizer) if isinstance(tokenizer, Path) else tokenizer
        if given is not None and given.digest != shards.tokenizer_digest:
            asked = tokenizer if isinstance(tokenizer, Path) else "the model it should continue"
            raise UsageError(
                f"{texts[0]} was prepared with another tokenizer than {asked}; prepare it again with that one"
            )
        refuse_prepared(texts[0], shards, config.corpus)
        return shards
    return run_prepare(
        texts, out / "tokens", config.corpus, tokenizer=tokenizer, tokenizer_config=config.tokenizer, progress=progress
    )


@dataclass
class _Pretraining:
    """One run under way."""

    run: RunFolder
    config: PretrainConfig
    shards: Shards
    runtime: Runtime
    progress: Progress
    source: Bundle | None = None
    stop: Stop = field(default_factory=Stop)

    def prepare(self) -> None:
        """Lay out the rows and build the model; whatever is wrong with the text shows here."""
        config, seed = self.config, self.config.runtime.seed
        self.tokenizer: Tokenizer = load_tokenizer(self.shards.folder / "tokenizer")
        if config.objective != "causal":
            mask_token(self.tokenizer.special)  # refuse now what could not be done later
        train, held_out = self.shards.split(config.corpus.held_out, seed)
        self.rows = self._rows(train, config.corpus.layout, seed)
        self.held_out = held_out
        self.model: Model[LanguageHead] = Model(
            build_backbone(config.model, self.shards.vocab_size, seed),
            build_language_head(config.model, self.shards.vocab_size, seed),
        ).to(self.runtime.device)
        if self.source:
            receipt = transfer(str(self.source.path), self.model, self.tokenizer, self.source, head=True)
            write_json(self.run.path / "receipt.json", receipt.as_dict())
            self.progress.say(receipt.summary())
        self.state = TrainState(self.model, build_optimizer(self.model, config.optim), seed)
        self.evaluated, self.saved = 0, 0
        self._check(train)

    def go(self, stop: Stop, *, resume: bool) -> None:
        """Train to the end, or to a stop."""
        self.stop = stop
        if self.config.runtime.compile:
            # in place: the module keeps its names, and what is saved is the plain one
            self.model.backbone.compile()
        self.steps = self._plan()
        self._tell()
        if resume:
            moments, state = resume_from(self.run, self.model, self.progress.say)
            restore_optimizer(self.state.optimizer, self.model, moments)
            self.state.step, self.evaluated = state["step"], state.get("evaluated", 0)
            self.saved = self.state.step
        try:
            self._train()
            self._finish()
        except Halt:
            self._save()
            raise Interrupted(
                f"{self.stop.reason} at step {self.state.step} of {self.steps}; saved. Go on with: "
                f"headstart pretrain --resume --out {self.run.path}",
                self.stop.reason or "",
            ) from None

    def _plan(self) -> int:
        """How many steps: as set, or as many as the minutes allow. What was timed is written down: resuming keeps it."""
        loop, path = self.config.loop, self.run.path / "plan.json"
        if loop.minutes is None:
            return loop.steps or max(1, round(loop.epochs * self.rows.rows / self._rows_a_step))
        if not path.is_file():
            self.progress.say("timing a few steps")
            before = {name: tensor.clone() for name, tensor in self.model.state_dict().items()}
            trial = TrainState(self.model, build_optimizer(self.model, self.config.optim), self.config.runtime.seed)
            steps = _WARM_STEPS + _TIMED_STEPS
            reports = fit(trial, self._fetch, self._objective, self.config.optim, steps, self.runtime)
            seconds = [report.seconds for report in reports][_WARM_STEPS:]
            self.model.load_state_dict(before)
            # measuring, saving and sampling take their part too
            steps = max(1, int(60 * loop.minutes * _TRAINING_SHARE / (sum(seconds) / len(seconds))))
            write_json(path, {"steps": steps, "seconds_a_step": sum(seconds) / len(seconds)})
        return int(read_json(path)["steps"])

    @property
    def _rows_a_step(self) -> int:
        return self.config.loop.batch_size * self.config.loop.accumulate

    def _rows(self, documents: NDArray[np.int64], layout: Any, seed: int | None) -> CausalRows:
        return CausalRows(
            self.shards, documents, self.tokenizer.special, context=self.config.model.context, layout=layout, seed=seed
        )

    def _check(self, train: NDArray[np.int64]) -> None:
        self.documents = len(train)
        if self.rows.inputs < self.config.model.context:
            raise DataError(
                f"the training text holds {self.rows.inputs} tokens, less than one row of {self.config.model.context}; "
                "give more text or a smaller model.context"
            )

    def _tell(self) -> None:
        parameters = sum(parameter.numel() for parameter in self.model.parameters())
        threads = f"{self.runtime.threads} thread{'s' if self.runtime.threads > 1 else ''}"
        self.progress.say(
            f"{self.documents:,} documents to learn from, {len(self.held_out):,} held out; "
            f"{self.rows.inputs:,} tokens an epoch; {parameters:,} parameters; "
            f"{self.steps:,} steps on {self.runtime.device}, {threads}"
        )
        if self.rows.truncated:
            self.progress.say(
                f"{self.rows.truncated:,} documents are longer than the context of {self.config.model.context} tokens "
                "and are cut there; corpus.layout packed would read all of them"
            )

    def _train(self) -> None:
        loop = self.config.loop
        total = self.steps * self._rows_a_step * (self.rows.inputs / max(1, self.rows.rows))
        with self.progress.task("pretraining", total, "tokens") as bar:
            bar.advance(self.state.step / self.steps * total)
            self._look_up(bar)
            reports = fit(self.state, self._fetch, self._objective, self.config.optim, self.steps, self.runtime)
            for report in reports:
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
        score = self._measure(self.config.loop.evaluate_tokens)
        self.run.metrics.write("evaluation", step=step, **asdict(score))
        self.evaluated = step
        bar.advance(0, f"held-out {score.loss:.3f}")
        self.progress.say(f"step {step:,}: {_words(score)}")
        self._sample()

    def _fetch(self, step: int) -> list[Batch]:
        first, size = step * self._rows_a_step, self.config.loop.batch_size
        return [self._ask(self.rows, first + part * size, size) for part in range(self.config.loop.accumulate)]

    def _ask(self, rows: CausalRows, first: int, count: int) -> Batch:
        return ask(rows, first, count, self.config, self.tokenizer.special, self.shards.vocab_size)

    def _objective(self, batch: Batch) -> LossSum:
        return predict_tokens(self.model, batch)

    def _log(self, report: StepReport) -> None:
        figures = asdict(report)
        figures.pop("seconds")  # time is not part of what must be the same on resuming
        self.run.metrics.write("step", **figures)

    def _measure(self, tokens: int | None) -> LanguageScore:
        """Score held-out documents, all or as many as reach `tokens`."""
        lengths = self.shards.lengths[self.held_out] + 1
        count = len(lengths) if tokens is None else int(np.searchsorted(np.cumsum(lengths), tokens)) + 1
        chosen = self.held_out[:count]
        rows = self._rows(chosen, "packed", None)
        size = int(self.shards.text_bytes[chosen].sum())
        gaps = partial(self._ask, rows) if self.config.objective == "masked" else None
        return score_language(self.model, rows, size, self.runtime, self.stop.check, gaps)

    def _sample(self) -> None:
        """Let the model go on from the prompt, or from how a held-out document begins."""
        if self.config.objective == "masked":
            return  # it fills gaps and cannot go on
        opening = [int(token) for token in self.shards.ids(int(self.held_out[0]))[:_PROMPT_TOKENS]]
        prompt = self.config.loop.prompt or self.tokenizer.decode(opening)
        text = continue_text(self.model, self.tokenizer, prompt, Sampling(tokens=_SAMPLE_TOKENS), self.runtime)
        self.run.metrics.write("sample", step=self.state.step, prompt=prompt, text=text)
        self.progress.say(f"  {prompt} | {text.strip()}")

    def _save(self) -> None:
        if self.state.step == self.saved:
            return
        moments = optimizer_tensors(self.state.optimizer, self.model)
        state = {"evaluated": self.evaluated}
        save_checkpoint(self.run, self.state.step, self.model, moments, state, self.config.loop.keep)
        self.saved = self.state.step

    def _finish(self) -> None:
        self.progress.say("measuring on all held-out text")
        score = self._measure(None)
        self.run.metrics.write("evaluation", step=self.state.step, **asdict(score))
        self._sample()
        result = {
            "steps": self.state.step,
            "tokens_seen": round(self.state.step * self._rows_a_step * self.rows.inputs / self.rows.rows),
            "held_out": asdict(score),
            "tokenizer": self.tokenizer.digest,
            "corpus": self.shards.about.get("fingerprint"),
            "left_out": self.shards.about.get("left_out"),
        }
        save_bundle(
            self.run.path / "bundle",
            self.model,
            self.tokenizer,
            objective=self.config.objective,
            visibility="causal" if self.config.objective == "causal" else "both",
            about=result,
            extra=carried([self.shards], self.source.path if self.source else None),
        )
        write_json(self.run.path / "result.json", result)
        self.run.tidy()
        self.progress.say(f"{_words(score)} over {score.tokens:,} tokens; model in {self.run.path}")


def _words(score: LanguageScore) -> str:
    bits = "" if score.bits_per_byte is None else f", {score.bits_per_byte:.3f} bits per byte"
    return f"held-out loss {score.loss:.3f}, perplexity {score.perplexity:.1f}{bits}"

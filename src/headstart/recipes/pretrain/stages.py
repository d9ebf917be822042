"""The stages of a pretraining run: the text of each, the length of its rows, and its part of the steps.

A run without stages has one. The position in the data is a single integer: the first step of a stage follows from the
settings and the recorded plan, and the stage counts its rows from there.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headstart.config.schema import PretrainConfig, PretrainLoop, StageConfig
from headstart.data.batch import FULL_BATCH, Batch, RankSlice, dummy_batch, slice_batch
from headstart.data.datasets import PackedDataset
from headstart.data.decontamination import refuse_prepared_corpus
from headstart.data.masking import make_batch
from headstart.data.next_sentence import NextSentenceDataset, weight_pairs
from headstart.data.shards import Shards, is_shards
from headstart.errors import DataError, UsageError
from headstart.progress import Progress, pluralize
from headstart.recipes.prepare import PrepareRequest, run_prepare, run_shared_tokenizer
from headstart.tokenization.base import SpecialIds, Tokenizer
from headstart.tokenization.tokenizer import load_tokenizer
from headstart.train.plan import Plan

_SEED_STRIDE = 2**32
"""Between the seeds of two stages: a text in two stages has another order and other masked tokens in each."""


@dataclass
class Stage:
    """One stage with its datasets. `first_step` and `steps` are set when the run is planned."""

    number: int
    fraction: float
    """The stage's part of the steps; the fractions of all stages sum to 1."""
    config: PretrainConfig
    shards: Shards
    held_out: NDArray[np.int64]
    """Documents that are evaluated on and never trained on."""
    packed: PackedDataset
    special: SpecialIds
    batch_size: int
    seed: int
    pairs: NextSentenceDataset | None = None
    """Read in place of `packed` in masked batches, if next-sentence prediction is on."""
    first_step: int = 0
    steps: int = 0
    rank_slice: RankSlice = FULL_BATCH
    """The rows of each step that this process reads."""

    @property
    def rows_per_step(self) -> int:
        """Rows of one optimizer step."""
        return self.batch_size * self.config.loop.accumulate

    @property
    def epoch_dataset(self) -> PackedDataset | NextSentenceDataset:
        """The dataset whose rows make up an epoch."""
        return self.pairs or self.packed

    @property
    def tokens_per_step(self) -> float:
        """Tokens of one optimizer step, at the average length of a row."""
        return self.rows_per_step * self.epoch_dataset.num_tokens / max(1, self.epoch_dataset.num_rows)

    @property
    def tokens_seen(self) -> float:
        """Tokens that the steps of this stage read."""
        return self.steps * self.tokens_per_step

    @property
    def held_out_tokens(self) -> int:
        """Tokens of all held-out documents, the end of each document included."""
        return int(self.shards.lengths[self.held_out].sum()) + len(self.held_out)

    def fetch(self, step: int) -> list[Batch]:
        """Return the batches of a step, counted from the first of this stage."""
        begin, size = step * self.rows_per_step, self.batch_size
        slices = self.rank_slice.micro_batches(self.rows_per_step, size)
        if not self.pairs:
            return [self._packed_batch(begin, first, last) for first, last in slices]
        # the weight of a pair depends on all rows of the step, so that every process builds all of them
        batches = weight_pairs(
            [
                self.make_batch(self.packed, begin + index * size, size, self.pairs)
                for index in range(self.config.loop.accumulate)
            ],
            self.config.next_sentence.weight,
        )
        return [_slice_of_step(batches, size, first, last) for first, last in slices]

    def _packed_batch(self, begin: int, first: int, last: int) -> Batch:
        batch = self.make_batch(self.packed, begin + first, max(1, last - first), size=self.batch_size)
        return batch if first < last else dummy_batch(batch)

    def make_batch(
        self,
        dataset: PackedDataset,
        first: int,
        count: int,
        pairs: NextSentenceDataset | None = None,
        *,
        size: int | None = None,
    ) -> Batch:
        """Build a batch of rows with the targets of the objective."""
        vocab_size = self.shards.vocab_size
        return make_batch(dataset, first, count, self.config, self.special, vocab_size, self.seed, pairs, size=size)

    def held_out_dataset(self, tokens: int | None) -> tuple[PackedDataset, int]:
        """Return held-out rows and the bytes of their text: of all documents, or of the first that reach `tokens`."""
        documents = self._held_out_documents(tokens)
        dataset = PackedDataset(
            self.shards, documents, self.special, context=self.packed.context, layout="packed", seed=None
        )
        return dataset, int(self.shards.text_bytes[documents].sum())

    def held_out_pairs(self, tokens: int | None) -> NextSentenceDataset | None:
        """Return held-out pairs; None if fewer than two of the documents can be split."""
        documents = self._held_out_documents(tokens)
        if (self.shards.lengths[documents] >= 2).sum() < 2:
            return None
        return NextSentenceDataset(self.shards, documents, self.special, context=self.packed.context, seed=None)

    def _held_out_documents(self, tokens: int | None) -> NDArray[np.int64]:
        lengths = self.shards.lengths[self.held_out] + self.special.num_special_tokens
        count = len(lengths) if tokens is None else int(np.searchsorted(np.cumsum(lengths), tokens)) + 1
        return self.held_out[:count]

    def plan(self) -> dict[str, Any]:
        """Return the stage's entry of plan.json."""
        return {
            "stage": self.number,
            "first_step": self.first_step + 1,
            "steps": self.steps,
            "context": self.packed.context,
            "batch_size": self.batch_size,
        }

    def result(self) -> dict[str, Any]:
        """Return the stage's entry of result.json, without its scores."""
        texts = self.config.stages[self.number - 1].texts
        tokens = round(self.tokens_seen)
        return {
            **self.plan(),
            "texts": texts,
            "tokens_seen": tokens,
            "corpus": self.shards.about.get("fingerprint"),
            "excluded": self.shards.excluded,
        }

    def summary(self) -> str:
        """Describe the stage in one line."""
        first, last = self.first_step + 1, self.first_step + self.steps
        steps = f"step {first:,}" if first == last else f"steps {first:,} to {last:,}"
        return (
            f"stage {self.number}: {steps}, {pluralize(self.batch_size, 'row')} of {self.packed.context} tokens, "
            f"{pluralize(len(self.packed.documents), 'document')}, "
            f"{pluralize(self.epoch_dataset.num_tokens, 'token')} per epoch"
        )


def _describe_pairs(pairs: NextSentenceDataset) -> str:
    verb = "is" if pairs.num_short == 1 else "are"
    short = f"; {pluralize(pairs.num_short, 'document')} of one token {verb} skipped" if pairs.num_short else ""
    return f"{pluralize(pairs.num_rows, 'pair')} of pieces per epoch from {pluralize(len(pairs.documents), 'document')}{short}"


def describe_stages(stages: Sequence[Stage], context: int) -> Iterator[str]:
    """Yield the lines about the stages that a run reports before it trains a model of this context."""
    for stage in stages:
        if len(stages) > 1:
            yield stage.summary()
        if stage.pairs:
            yield _describe_pairs(stage.pairs)
        elif stage.packed.num_truncated:
            is_longer, are = ("is longer", "is") if stage.packed.num_truncated == 1 else ("are longer", "are")
            yield (
                f"{pluralize(stage.packed.num_truncated, 'document')} {is_longer} than the context of "
                f"{stage.packed.context} tokens and {are} truncated; corpus.layout packed reads them completely"
            )
    longest = max(stage.packed.context for stage in stages)
    if longest < context:
        yield (
            f"no stage has rows beyond {longest} tokens: the model is not trained on longer texts, although its "
            f"context is {context}"
        )


def _slice_of_step(batches: Sequence[Batch], size: int, first: int, last: int) -> Batch:
    """Return rows of a step that lie within one of its batches; a dummy batch for an empty slice."""
    batch, start = batches[first // size], first % size
    if first == last:
        return dummy_batch(slice_batch(batch, 0, 1))
    return batch if last - first == size else slice_batch(batch, start, start + last - first)


def open_shards(
    texts: Sequence[str], out: Path, config: PretrainConfig, tokenizer: Tokenizer | Path | None, progress: Progress
) -> list[Shards]:
    """Open the shards of each stage, or prepare them in `out`; all of them with one tokenizer."""
    stage_texts = [stage.texts for stage in config.stages] or [list(texts)]
    shared = load_tokenizer(tokenizer) if isinstance(tokenizer, Path) else tokenizer
    tokenizer_name = str(tokenizer) if isinstance(tokenizer, Path) else "the model to continue from"
    opened: dict[tuple[str, ...], Shards] = {}
    for paths in stage_texts:
        if len(paths) > 1 or not is_shards(paths[0]):
            continue
        shards = opened[tuple(paths)] = Shards.open(Path(paths[0]))
        refuse_prepared_corpus(paths[0], shards, config.corpus)
        if shared is None:
            shared, tokenizer_name = load_tokenizer(shards.tokenizer_folder), paths[0]
        if shared.digest != shards.tokenizer_digest:
            raise UsageError(
                f"{paths[0]} was prepared with another tokenizer than {tokenizer_name}; prepare it again with that tokenizer"
            )
    if shared is None and len(stage_texts) > 1:
        shared = run_shared_tokenizer(stage_texts, out / "tokenizer", config.tokenizer, config.corpus, progress)
    for number, paths in enumerate(stage_texts, start=1):
        if tuple(paths) not in opened:  # a text that several stages read is prepared once
            folder = out / (f"tokens-{number}" if len(stage_texts) > 1 else "tokens")
            opened[tuple(paths)] = run_prepare(
                PrepareRequest(paths, folder, config.corpus, config.tokenizer, tokenizer=shared), progress
            )
    return [opened[tuple(paths)] for paths in stage_texts]


def build_stages(
    config: PretrainConfig, shards: Sequence[Shards], special: SpecialIds, rank_slice: RankSlice = FULL_BATCH
) -> list[Stage]:
    """Build the stages with their datasets. No document that any stage holds out is trained on in another."""
    stage_configs = config.stages or [StageConfig(texts=["TEXTS"])]
    seed, total = config.runtime.seed, sum(stage.fraction for stage in stage_configs)
    splits = [corpus.split(config.corpus.held_out, seed) for corpus in shards]
    held_out_digests = np.concatenate(
        [corpus.digests[held_out] for corpus, (_, held_out) in zip(shards, splits, strict=True)]
    )
    stages = []
    for index, (stage, corpus, (train, held_out)) in enumerate(zip(stage_configs, shards, splits, strict=True)):
        context = stage.context or config.model.context
        stage_seed = seed + index * _SEED_STRIDE
        documents = train[~np.isin(corpus.digests[train], held_out_digests)]
        packed = PackedDataset(
            corpus, documents, special, context=context, layout=config.corpus.layout, seed=stage_seed
        )
        _check_length(packed, f" of stage {index + 1}" if len(stage_configs) > 1 else "")
        pairs = None
        if config.next_sentence.weight:
            pairs = NextSentenceDataset(corpus, documents, special, context=context, seed=stage_seed)
        stages.append(
            Stage(
                number=index + 1,
                fraction=stage.fraction / total,
                config=config,
                shards=corpus,
                held_out=held_out,
                packed=packed,
                special=special,
                batch_size=config.loop.batch_size * config.model.context // context,
                seed=stage_seed,
                pairs=pairs,
                rank_slice=rank_slice,
            )
        )
    return stages


def _check_length(packed: PackedDataset, stage_name: str) -> None:
    if packed.num_tokens < packed.context:
        raise DataError(
            f"the training text{stage_name} has {packed.num_tokens} tokens, less than one row of {packed.context}; "
            "use more text or a smaller model.context"
        )


def assign_steps(stages: Sequence[Stage], plan: Plan) -> None:
    """Divide the steps of a run among its stages."""
    ends = stage_ends(plan, [stage.fraction for stage in stages])
    for stage, (first, end) in zip(stages, pairwise([0, *ends]), strict=True):
        stage.first_step, stage.steps = first, end - first


def stage_borders(steps: int, fractions: Sequence[float]) -> list[int]:
    """Return the number of steps after which each stage ends; each has at least one (`steps` must allow that).

    >>> stage_borders(100, [0.6, 0.3, 0.1]), stage_borders(4, [0.98, 0.01, 0.01])
    ([60, 90, 100], [2, 3, 4])
    """
    ends: list[int] = []
    for index, fraction in enumerate(np.cumsum(fractions) / sum(fractions)):
        min_end, max_end = (ends[-1] if ends else 0) + 1, steps - (len(fractions) - 1 - index)
        ends.append(min(max(round(steps * float(fraction)), min_end), max_end))
    return ends


def stage_ends(plan: Plan, fractions: Sequence[float]) -> list[int]:
    """Return the number of steps after which each stage ends; a change of the plan moves the ends of unfinished stages.

    >>> stage_ends(Plan(100), [0.5, 0.5]), stage_ends(Plan(100).replanned(40, 70), [0.5, 0.5])
    ([50, 100], [45, 70])
    """
    ends = stage_borders(plan.first, fractions)
    for step, steps in plan.replans:
        unfinished = [end for end in ends if end > step]
        remaining = [end - begin for begin, end in pairwise([step, *unfinished])]
        new_ends = [step + end for end in stage_borders(steps - step, remaining)]
        ends = [*ends[: len(ends) - len(unfinished)], *new_ends]
    return ends


def end_stages(stages: Sequence[Stage], step: int) -> None:
    """Let the stages of a run that has stopped early end at this step."""
    for stage in stages:
        stage.steps = max(0, min(stage.steps, step - stage.first_step))


def stage_at(stages: Sequence[Stage], step: int) -> Stage:
    """Return the stage that a step, counted from 0, belongs to; the last one beyond the end."""
    return next((stage for stage in stages if step < stage.first_step + stage.steps), stages[-1])


def total_steps(stages: list[Stage], loop: PretrainLoop) -> int:
    """Return the steps of a run without `loop.minutes`: as set, or those of its epochs."""
    epochs = [loop.epochs * stage.epoch_dataset.num_rows / stage.rows_per_step for stage in stages]
    return loop.steps or max(len(stages), round(sum(epochs)))

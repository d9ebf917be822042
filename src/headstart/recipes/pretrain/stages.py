"""The stages of a pretraining run: what each reads, in rows of what length, and for which of the steps.

A run without stages is a run of one. The data position stays one integer: a stage begins at a step that follows from the
settings, and counts its rows from there.
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

_HELD_OUT_SEED = 2**32
"""Between the seeds of two stages: the same text read twice is read in another order, with other tokens hidden."""


@dataclass
class Stage:
    """One stage, ready to be read. `first` and `steps` are known once the run is planned."""

    number: int
    fraction: float
    config: PretrainConfig
    shards: Shards
    held_out: NDArray[np.int64]
    rows: PackedDataset
    special: SpecialIds
    batch_size: int
    seed: int
    pairs: NextSentenceDataset | None = None
    """Read in place of `rows` wherever tokens are hidden, if the second question is asked."""
    first: int = 0
    steps: int = 0
    portion: RankSlice = FULL_BATCH
    """The rows of each step that this process reads."""

    @property
    def rows_per_step(self) -> int:
        """Rows of one optimizer step."""
        return self.batch_size * self.config.loop.accumulate

    @property
    def reads(self) -> PackedDataset | NextSentenceDataset:
        """The rows that an epoch is counted in."""
        return self.pairs or self.rows

    @property
    def tokens_seen(self) -> float:
        """Tokens that the steps of this stage read, as rows go on average."""
        return self.steps * self.rows_per_step * self.reads.num_tokens / max(1, self.reads.num_rows)

    def fetch(self, step: int) -> list[Batch]:
        """The batches of a step, counted from the first of this stage."""
        begin, size = step * self.rows_per_step, self.batch_size
        pieces = self.portion.micro_batches(self.rows_per_step, size)
        if not self.pairs:
            return [self._plain(begin, piece) for piece in pieces]
        # what a pair weighs depends on all rows of the step: they are laid out by every process
        parts = range(self.config.loop.accumulate)
        batches = weight_pairs(
            [self.ask(self.rows, begin + part * size, size, self.pairs) for part in parts],
            self.config.next_sentence.weight,
        )
        return [_slice_batches(batches, size, *piece) for piece in pieces]

    def _plain(self, begin: int, piece: tuple[int, int]) -> Batch:
        first, last = piece
        batch = self.ask(self.rows, begin + first, max(1, last - first), size=self.batch_size)
        return batch if first < last else dummy_batch(batch)

    def ask(
        self,
        rows: PackedDataset,
        first: int,
        count: int,
        pairs: NextSentenceDataset | None = None,
        *,
        size: int | None = None,
    ) -> Batch:
        """Some rows as the objective asks about them."""
        vocab_size = self.shards.vocab_size
        return make_batch(rows, first, count, self.config, self.special, vocab_size, self.seed, pairs, size=size)

    def measured(self, tokens: int | None) -> tuple[PackedDataset, int]:
        """Held-out rows, of all documents or of as many as reach `tokens`, and the bytes of their text."""
        chosen = self._held_out(tokens)
        rows = PackedDataset(self.shards, chosen, self.special, context=self.rows.context, layout="packed", seed=None)
        return rows, int(self.shards.text_bytes[chosen].sum())

    def measured_pairs(self, tokens: int | None) -> NextSentenceDataset | None:
        """Held-out pairs; None where fewer than two of the documents can be split."""
        chosen = self._held_out(tokens)
        if (self.shards.lengths[chosen] >= 2).sum() < 2:
            return None
        return NextSentenceDataset(self.shards, chosen, self.special, context=self.rows.context, seed=None)

    def _held_out(self, tokens: int | None) -> NDArray[np.int64]:
        """Whole documents."""
        lengths = self.shards.lengths[self.held_out] + self.special.num_special_tokens
        count = len(lengths) if tokens is None else int(np.searchsorted(np.cumsum(lengths), tokens)) + 1
        return self.held_out[:count]

    def plan(self) -> dict[str, Any]:
        """What of the run this stage is, for the record."""
        return {
            "stage": self.number,
            "first_step": self.first + 1,
            "steps": self.steps,
            "context": self.rows.context,
            "batch_size": self.batch_size,
        }

    def result(self) -> dict[str, Any]:
        """The same with what it read, for the end."""
        texts = self.config.stages[self.number - 1].texts
        tokens = round(self.tokens_seen)
        return {
            **self.plan(),
            "texts": texts,
            "tokens_seen": tokens,
            "corpus": self.shards.about.get("fingerprint"),
            "excluded": self.shards.excluded,
        }

    def words(self) -> str:
        """One line for a person."""
        first, last = self.first + 1, self.first + self.steps
        where = f"step {first:,}" if first == last else f"steps {first:,} to {last:,}"
        return (
            f"stage {self.number}: {where}, {pluralize(self.batch_size, 'row')} of {self.rows.context} tokens, "
            f"{pluralize(len(self.rows.documents), 'document')}, {pluralize(self.reads.num_tokens, 'token')} an epoch"
        )

    def words_about_pairs(self, pairs: NextSentenceDataset) -> str:
        """One line for a person: what was paired, and what could not be."""
        verb = "is" if pairs.num_short == 1 else "are"
        short = f"; {pluralize(pairs.num_short, 'document')} of one token {verb} left out" if pairs.num_short else ""
        documents = pluralize(len(pairs.documents), "document")
        return f"{pluralize(pairs.num_rows, 'pair')} of pieces an epoch from {documents}{short}"


def describe_stages(stages: Sequence[Stage], context: int) -> Iterator[str]:
    """What a person should know of the stages before they begin, for a model of this context."""
    for stage in stages:
        if len(stages) > 1:
            yield stage.words()
        if stage.pairs:
            yield stage.words_about_pairs(stage.pairs)
        elif stage.rows.num_truncated:
            is_longer, are = ("is longer", "is") if stage.rows.num_truncated == 1 else ("are longer", "are")
            yield (
                f"{pluralize(stage.rows.num_truncated, 'document')} {is_longer} than the context of "
                f"{stage.rows.context} tokens and {are} cut there; corpus.layout packed would read all"
            )
    longest = max(stage.rows.context for stage in stages)
    if longest < context:
        yield (
            f"no stage has rows beyond {longest} tokens: the model will not have learnt to read longer texts, "
            f"though its context is {context}"
        )


def _slice_batches(batches: Sequence[Batch], size: int, first: int, last: int) -> Batch:
    """Some rows of a step whose batches are all laid out; a piece lies in one of them."""
    batch, start = batches[first // size], first % size
    if first == last:
        return dummy_batch(slice_batch(batch, 0, 1))
    return batch if last - first == size else slice_batch(batch, start, start + last - first)


def open_shards(
    texts: Sequence[str], out: Path, config: PretrainConfig, tokenizer: Tokenizer | Path | None, progress: Progress
) -> list[Shards]:
    """The shards of each stage, opened as they are given or prepared in `out`; all with one tokenizer."""
    wanted = [stage.texts for stage in config.stages] or [list(texts)]
    given = load_tokenizer(tokenizer) if isinstance(tokenizer, Path) else tokenizer
    asked = str(tokenizer) if isinstance(tokenizer, Path) else "the model it should continue"
    opened: dict[tuple[str, ...], Shards] = {}
    for paths in wanted:
        if len(paths) > 1 or not is_shards(paths[0]):
            continue
        shards = opened[tuple(paths)] = Shards.open(Path(paths[0]))
        refuse_prepared_corpus(paths[0], shards, config.corpus)
        if given is None:
            given, asked = load_tokenizer(shards.tokenizer_folder), paths[0]
        if given.digest != shards.tokenizer_digest:
            raise UsageError(
                f"{paths[0]} was prepared with another tokenizer than {asked}; prepare it again with that one"
            )
    if given is None and len(wanted) > 1:
        given = run_shared_tokenizer(wanted, out / "tokenizer", config.tokenizer, config.corpus, progress)
    for number, paths in enumerate(wanted, start=1):
        if tuple(paths) not in opened:  # the same text in rows of another length is prepared once
            folder = out / (f"tokens-{number}" if len(wanted) > 1 else "tokens")
            opened[tuple(paths)] = run_prepare(
                PrepareRequest(paths, folder, config.corpus, config.tokenizer, tokenizer=given), progress
            )
    return [opened[tuple(paths)] for paths in wanted]


def build_stages(
    config: PretrainConfig, shards: Sequence[Shards], special: SpecialIds, portion: RankSlice = FULL_BATCH
) -> list[Stage]:
    """The stages with their rows. No document that any stage holds out is learnt from in another."""
    wanted = config.stages or [StageConfig(texts=["TEXTS"])]
    seed, total = config.runtime.seed, sum(stage.fraction for stage in wanted)
    sides = [part.split(config.corpus.held_out, seed) for part in shards]
    kept = np.concatenate([part.digests[held] for part, (_, held) in zip(shards, sides, strict=True)])
    stages = []
    for index, (stage, part, (train, held)) in enumerate(zip(wanted, shards, sides, strict=True)):
        context = stage.context or config.model.context
        own = seed + index * _HELD_OUT_SEED
        documents = train[~np.isin(part.digests[train], kept)]
        rows = PackedDataset(part, documents, special, context=context, layout=config.corpus.layout, seed=own)
        batch_size = config.loop.batch_size * config.model.context // context
        stages.append(Stage(index + 1, stage.fraction / total, config, part, held, rows, special, batch_size, own))
        stages[-1].portion = portion
        _check(stages[-1], one_of=len(wanted))
        if config.next_sentence.weight:
            stages[-1].pairs = NextSentenceDataset(part, documents, special, context=context, seed=own)
    return stages


def _check(stage: Stage, *, one_of: int) -> None:
    if stage.rows.num_tokens < stage.rows.context:
        where = f" of stage {stage.number}" if one_of > 1 else ""
        raise DataError(
            f"the training text{where} holds {stage.rows.num_tokens} tokens, less than one row of {stage.rows.context}; "
            "give more text or a smaller model.context"
        )


def assign_steps(stages: Sequence[Stage], steps: int) -> None:
    """Give each stage its part of the steps."""
    ends = stage_borders(steps, [stage.fraction for stage in stages])
    for stage, (first, end) in zip(stages, pairwise([0, *ends]), strict=True):
        stage.first, stage.steps = first, end - first


def stage_borders(steps: int, shares: Sequence[float]) -> list[int]:
    """After how many steps each stage ends: by its share, and no stage without a step (there must be one for each).

    >>> stage_borders(100, [0.6, 0.3, 0.1]), stage_borders(4, [0.98, 0.01, 0.01])
    ([60, 90, 100], [2, 3, 4])
    """
    ends: list[int] = []
    for index, part in enumerate(np.cumsum(shares) / sum(shares)):
        least, most = (ends[-1] if ends else 0) + 1, steps - (len(shares) - 1 - index)
        ends.append(min(max(round(steps * float(part)), least), most))
    return ends


def stage_at(stages: Sequence[Stage], step: int) -> Stage:
    """The stage that step `step`, counted from 0, belongs to; the last one beyond the end."""
    return next((stage for stage in stages if step < stage.first + stage.steps), stages[-1])


def total_steps(stages: list[Stage], loop: PretrainLoop) -> int:
    """Steps of a run that is given no minutes: as set, or what its epochs come to."""
    epochs = [loop.epochs * stage.reads.num_rows / stage.rows_per_step for stage in stages]
    return loop.steps or max(len(stages), round(sum(epochs)))

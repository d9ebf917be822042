"""The schedule and the sample size of the evaluations of a pretraining run, which depend on its length.

Everything follows from the settings and the recorded plan, so that a resumed run measures the same rows at the same steps.
"""

from collections.abc import Sequence
from typing import NamedTuple

from headstart.config.schema import PretrainLoop
from headstart.progress import pluralize
from headstart.recipes.pretrain.stages import Stage
from headstart.train.plan import Plan

_MAX_EVALUATIONS, _MIN_EVALUATIONS = 10, 4
"""Measurements per run, the last one included, if `loop.evaluate_every` is unset; the fewest are for `loop.patience`."""
_SCORED_FRACTION = 0.3
"""Tokens measured during a run, as a fraction of those trained on; measuring takes about a third of the time of training."""
_FINAL_FRACTION = 0.1
"""Tokens measured at the end of a run, as a fraction of those trained on."""
_MIN_TOKENS_PER_PARAMETER = 1.0
_MIN_CONTINUED_STEPS = 5


class BestStep(NamedTuple):
    """The measurement with the lowest held-out loss so far."""

    step: int = 0
    loss: float | None = None
    """None before the first measurement."""
    worse: int = 0
    """Measurements since then."""

    def after(self, step: int, loss: float) -> "BestStep":
        """Return the best measurement after another one."""
        is_better = self.loss is None or loss < self.loss
        return BestStep(step, loss) if is_better else self._replace(worse=self.worse + 1)


def evaluation_fractions(loop: PretrainLoop, stages: Sequence[Stage], plan: Plan) -> tuple[float, ...]:
    """Return the fractions of the run after which it is measured, if `loop.evaluate_every` is unset."""
    trained = plan.first * max(stage.tokens_per_step for stage in stages)
    tokens = min(loop.evaluate_tokens, sum(stage.held_out_tokens for stage in stages))
    count = min(_MAX_EVALUATIONS, int(_SCORED_FRACTION * trained / max(1, tokens)))
    if loop.patience is not None:
        count = max(_MIN_EVALUATIONS, count)
    return tuple(number / count for number in range(1, count))


def is_evaluated(step: int, loop: PretrainLoop, plan: Plan, fractions: Sequence[float]) -> bool:
    """Return whether the run is measured after `step` steps; the measurement at its end is another one."""
    if step == 0 or (step == plan.steps and loop.patience is None):
        return False
    if step == plan.steps:
        return True
    return step % loop.evaluate_every == 0 if loop.evaluate_every is not None else plan.passes(step, fractions)


def final_tokens(loop: PretrainLoop, stages: Sequence[Stage]) -> int | None:
    """Return the held-out tokens of a stage that are measured at the end of the run; None for all of them.

    A tenth of the tokens that were trained on, at least `loop.evaluate_tokens`, and these times a power of two, so that
    runs of similar length are measured on the same rows.
    """
    bound = max(loop.evaluate_tokens, 1)
    while 2 * bound <= _FINAL_FRACTION * sum(stage.tokens_seen for stage in stages):
        bound *= 2
    bound = max(1, bound // len(stages))
    return None if bound >= max(stage.held_out_tokens for stage in stages) else bound


def tokens_to_measure(loop: PretrainLoop, stages: Sequence[Stage], steps: int, left: float) -> float:
    """Estimate the tokens that a run of `steps` steps measures in its last `left` (a fraction), the end included."""
    trained, held_out = steps * max(stage.tokens_per_step for stage in stages), sum(s.held_out_tokens for s in stages)
    tokens = min(loop.evaluate_tokens, held_out)
    if loop.evaluate_every is None:
        during = left * min(_MAX_EVALUATIONS * tokens, _SCORED_FRACTION * trained)
    else:
        during = left * steps / loop.evaluate_every * tokens
    return during + min(held_out, max(loop.evaluate_tokens, _FINAL_FRACTION * trained))


def describe_too_little(tokens: float, parameters: int, steps: int, *, continued: bool) -> str | None:
    """Return a note if a run is too short to be useful, or else None."""
    read = f"{pluralize(steps, 'step')} will read {round(tokens):,} tokens"
    if continued:
        if steps >= _MIN_CONTINUED_STEPS:
            return None
        return f"{read}: too few to change the model noticeably; use more time or more text"
    if tokens >= _MIN_TOKENS_PER_PARAMETER * parameters:
        return None
    return (
        f"{read}, fewer than the network has parameters ({parameters:,}): too few to learn a language; use more "
        "time and text, or continue from a starter (--from starter:en)"
    )

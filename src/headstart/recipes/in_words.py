"""What a fine-tuning came to, in lines for people."""

from collections.abc import Iterator

from headstart.evaluations import RatingEvaluation
from headstart.kinds import AnyEvaluation, Rating
from headstart.train.calibrate import Calibration
from headstart.train.settle import Settled

_MOST = 8
"""Labels whose thresholds are named."""
_MANY_CLASSES = 3
"""Labels from which on the weakest is worth a word."""


def told(settled: Settled, last: AnyEvaluation) -> Iterator[str]:
    """What validation settled, and how the labels fared that a single figure hides.

    Args:
        last: on test, or on validation where there is none.
    """
    if settled.calibration is not None:
        yield _calibrated(settled.calibration)
    if settled.thresholds:
        yield _thresholds(settled)
    if isinstance(last, RatingEvaluation):
        assert isinstance(settled.target, Rating)
        yield (
            f"MAE {last.mae:.4f}, RMSE {last.rmse:.4f} (always answering the mean of train: {last.baseline_mae:.4f} and "
            f"{last.baseline_rmse:.4f}), Spearman {last.spearman:.3f}; answers stay within "
            f"{settled.target.lowest:g} and {settled.target.highest:g}"
        )
        return
    rest = ", ".join(f"{words} {getattr(last, name):.4f}" for name, words in list(last.FIGURES.items())[1:])
    seen = [one for one in last.per_class if one.rows]
    weak = min(seen, key=lambda one: one.f1) if len(seen) >= _MANY_CLASSES else None
    yield rest + (f"; weakest label {weak.label}: F1 {weak.f1:.3f} on {weak.rows:,} rows" if weak else "")


def _calibrated(found: Calibration) -> str:
    """What was done to the probabilities, in a line."""
    if found.reason is not None:
        return f"probabilities as they came (temperature 1): {found.reason}"
    before, after = (f"{100 * one.ece:.1f}" for one in (found.before, found.after))
    return (
        f"probabilities calibrated on {found.rows:,} validation rows: temperature {found.temperature:.2f}, "
        f"calibration error {before} -> {after} points"
    )


def _thresholds(settled: Settled) -> str:
    chosen = [one for one in settled.thresholds if one.reason is None]
    kept = [one for one in settled.thresholds if one.reason is not None]
    shown = ", ".join(f"{one.label} {one.threshold:.2f}" for one in chosen[:_MOST])
    more = f", and {len(chosen) - _MOST:,} more" if len(chosen) > _MOST else ""
    parts = [f"thresholds of best F1 on validation: {shown}{more}"] if chosen else []
    if kept:
        names = ", ".join(one.label for one in kept[:_MOST]) + (", ..." if len(kept) > _MOST else "")
        parts.append(f"threshold 0.5 kept for {names}: {kept[0].reason}")
    return "; ".join(parts)

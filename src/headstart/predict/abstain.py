"""How sure an answer must be: the table that fine-tuning left in a bundle, read for a wanted precision."""

import math

from headstart.errors import ConfigError, UsageError
from headstart.predict.answers import ABSTAIN as ABSTAIN
from headstart.store.bundle import Bundle
from headstart.store.origins import HELD_OUT
from headstart.train.calibrate import FEWEST, Threshold

_MOST = 0.5
"""The share of labelled rows that may be held out: with less than half of them to learn from, more labels help more."""

_GIVES = {"labels": "any number of labels", "rating": "a rating"}


def threshold_for(bundle: Bundle, wanted: float) -> Threshold:
    """The lowest threshold whose answers were right often enough on validation; refused where none was."""
    if not 0 < wanted < 1:
        raise ConfigError(f"--abstain is a wanted precision between 0 and 1, such as 0.95, got {wanted:g}")
    if bundle.target.kind != "classes":
        raise UsageError(f"--abstain is for one class a text, and {bundle.path} gives {_GIVES[bundle.target.kind]}")
    if ABSTAIN in bundle.labels:
        raise UsageError(f"{bundle.path} has a label called {ABSTAIN}: a text left without an answer could not be told")
    calibration = bundle.about.get("calibration")
    if not calibration:
        raise UsageError(f"{bundle.path} has no table of thresholds; fine-tune it again with this version")
    table = [Threshold(**row) for row in calibration["thresholds"]]
    rows = calibration["rows"]
    if rows < FEWEST:
        raise UsageError(
            f"{bundle.path} was chosen on {rows} validation rows, too few to say how sure is sure enough; "
            f"{_how_to_get_more(bundle)}"
        )
    for row in table:
        if row.wanted >= wanted - 1e-9:
            return row
    best = f"the most was {table[-1].wanted:g}" if table else "not even half of the answers were right"
    raise UsageError(
        f"no threshold gave a precision of {wanted:g} on the {rows:,} validation rows of {bundle.path}; {best}"
    )


def _how_to_get_more(bundle: Bundle) -> str:
    """What to do for enough validation rows: a file of them, or a larger share where they were held out of the others."""
    data = bundle.about.get("data")
    parts = {name: part for name, part in data.items() if isinstance(part, dict)} if isinstance(data, dict) else {}
    valid, train = parts.get("valid", {}), parts.get("train", {})
    if not str(valid.get("name", "")).startswith(HELD_OUT) or not isinstance(train.get("rows"), int):
        return f"fine-tune with a validation file of at least {FEWEST}"
    rows = train["rows"] + valid["rows"]
    # each label's part is rounded, which may take half a row of it
    share = math.ceil(100 * (FEWEST + len(bundle.labels) / 2) / rows) / 100
    if share > _MOST:
        return f"there are {rows} labelled rows: label more, so that {FEWEST} can be held out"
    return f"fine-tune with labelled.valid_share {share:g}, which holds out {FEWEST} of the {rows} labelled rows"


def in_words(found: Threshold, rows: int) -> str:
    """What a threshold can be trusted with.

    >>> print(in_words(Threshold(0.95, 0.81, 0.956, 0.92, 0.976, 0.62, 248), 400).replace(": ", "\\n"))
    answers below 0.810 are withheld
    of 400 validation rows 62 % were answered, 95.6 % of those rightly (95 % interval 92.0 to 97.6)
    """
    interval = f"95 % interval {100 * found.low:.1f} to {100 * found.high:.1f}"
    return (
        f"answers below {found.threshold:.3f} are withheld: of {rows:,} validation rows {100 * found.coverage:.0f} % were "
        f"answered, {100 * found.precision:.1f} % of those rightly ({interval})"
    )

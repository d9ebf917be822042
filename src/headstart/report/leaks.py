"""The figures with and without the test texts that training may have known: those that stand in train, or almost do."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from headstart.report.arms import pair
from headstart.report.collect import Comparison
from headstart.report.intervals import Estimate, estimate
from headstart.report.statistics import aligned, rows, unvarying


@dataclass(frozen=True)
class Clean:
    """A figure on all of test, and on the texts that are new to training."""

    arm: str
    other: str | None
    """Where it is a difference: from which arm."""
    every: Estimate
    clean: Estimate

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def with_and_without(comparison: Comparison) -> list[Clean]:
    """Every arm with the most labels, then what pretraining brought; empty where nothing leaked, or everything did."""
    leaked = set(comparison.data.test.leaked)
    kept = np.array([row for row in range(comparison.data.test.rows) if row not in leaked], dtype=np.int64)
    if not leaked or not len(kept):
        return []
    found = []
    for arm in comparison.arms:
        table = rows(comparison, arm, comparison.main)
        if not table:
            continue
        values_SN = np.stack(list(table.values()))
        once = len(values_SN) == 1 and not unvarying(comparison, arm, comparison.main)
        both = (estimate(each, bounds=(0.0, 1.0), one_run=once) for each in (values_SN, values_SN[:, kept]))
        found.append(Clean(arm, None, *both))
    arm, other = pair(comparison)
    shared = aligned(comparison, [(arm, comparison.main), (other, comparison.main)])
    if shared is not None:
        (ours_SN, theirs_SN), once = shared
        gain_SN = ours_SN - theirs_SN
        found.append(Clean(arm, other, *(estimate(each, one_run=once) for each in (gain_SN, gain_SN[:, kept]))))
    return found

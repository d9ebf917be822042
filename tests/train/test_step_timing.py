"""`seconds_per_step` estimates the time of a step from a few of them."""

from types import SimpleNamespace

from headstart.train import loop


def estimate(monkeypatch, durations, budget=1e9, timed=None, **options):
    """Return the estimate for steps of these durations; `timed` collects the durations of the steps that were run."""
    clock = [0.0]
    monkeypatch.setattr(loop, "time", SimpleNamespace(monotonic=lambda: clock[0]))

    def reports():
        for duration in durations:
            clock[0] += duration
            if timed is not None:
                timed.append(duration)
            yield None

    return loop.seconds_per_step(reports(), budget=budget, **options)


def test_warm_up_steps_do_not_count(monkeypatch):
    assert abs(estimate(monkeypatch, [30.0, 5.0, *[0.5] * 60]) - 0.5) < 1e-9


def test_steps_of_two_durations_are_averaged(monkeypatch):
    assert abs(estimate(monkeypatch, [1.0, 1.0, *[0.5, 1.0] * 30]) - 0.75) < 1e-9


def test_a_step_in_which_something_was_compiled_does_not_count(monkeypatch):
    assert abs(estimate(monkeypatch, [30.0, 5.0, *[0.5] * 9, 20.0, *[0.5] * 50]) - 0.5) < 1e-9


def test_two_slow_steps_suffice(monkeypatch):
    timed = []
    assert estimate(monkeypatch, [8.5, 8.0, *[8.0] * 60], budget=120, timed=timed) == 8.0
    assert timed == [8.5, 8.0]


def test_two_steps_do_not_suffice_where_the_first_one_compiles(monkeypatch):
    timed = []
    assert estimate(monkeypatch, [30.0, 5.0, *[0.5] * 60], budget=120, timed=timed) == 0.5
    assert timed == [30.0, 5.0, *[0.5] * 13]


def test_a_late_compilation_neither_counts_nor_ends_the_timing(monkeypatch):
    """A new shape after the warm-up, in a run of few minutes."""
    timed = []
    durations = [15.0, 8.0, 10.0, 0.04, 9.0, *[0.04] * 60]
    assert abs(estimate(monkeypatch, durations, budget=120, timed=timed, compiled=True) - 0.04) < 1e-9
    assert len(timed) == 42


def test_endless_compilation_ends_the_timing(monkeypatch):
    timed = []
    estimate(monkeypatch, [5.0] * 60, budget=120, timed=timed, compiled=True)
    assert len(timed) == 4
    timed.clear()
    estimate(monkeypatch, [20.0, 1.0, 0.1, *[9.0] * 60], budget=120, timed=timed, compiled=True)
    assert len(timed) == 6

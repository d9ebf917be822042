"""How long a step takes, from a few that are timed."""

from types import SimpleNamespace

from headstart.train import loop as pace


def timed(monkeypatch, seconds, budget=1e9, made=None, **how):
    """What `seconds_per_step` says of steps that take so long; `made` collects how long those took that it asked for."""
    clock = [0.0]
    monkeypatch.setattr(pace, "time", SimpleNamespace(monotonic=lambda: clock[0]))

    def reports():
        for each in seconds:
            clock[0] += each
            if made is not None:
                made.append(each)
            yield None

    return pace.seconds_per_step(reports(), budget=budget, **how)


def test_the_first_steps_do_not_count(monkeypatch):
    assert abs(timed(monkeypatch, [30.0, 5.0, *[0.5] * 60]) - 0.5) < 1e-9


def test_steps_of_two_kinds_count_by_their_shares(monkeypatch):
    assert abs(timed(monkeypatch, [1.0, 1.0, *[0.5, 1.0] * 30]) - 0.75) < 1e-9


def test_a_step_in_which_something_was_compiled_does_not_count(monkeypatch):
    assert abs(timed(monkeypatch, [30.0, 5.0, *[0.5] * 9, 20.0, *[0.5] * 50]) - 0.5) < 1e-9


def test_two_steps_are_enough_where_they_take_long(monkeypatch):
    made = []
    assert timed(monkeypatch, [8.5, 8.0, *[8.0] * 60], budget=120, made=made) == 8.0
    assert made == [8.5, 8.0]


def test_but_not_where_the_first_one_compiles(monkeypatch):
    made = []
    assert timed(monkeypatch, [30.0, 5.0, *[0.5] * 60], budget=120, made=made) == 0.5
    assert made == [30.0, 5.0, *[0.5] * 13]


def test_what_is_compiled_late_neither_counts_nor_ends_the_timing(monkeypatch):
    """A third kind of row, met behind the steps that warm up, in a run of few minutes."""
    made = []
    late = [15.0, 8.0, 10.0, 0.04, 9.0, *[0.04] * 60]
    assert abs(timed(monkeypatch, late, budget=120, made=made, compiled=True) - 0.04) < 1e-9
    assert len(made) == 42


def test_a_compiler_that_never_ends_does_end_the_timing(monkeypatch):
    made = []
    timed(monkeypatch, [5.0] * 60, budget=120, made=made, compiled=True)
    assert len(made) == 4
    made.clear()
    timed(monkeypatch, [20.0, 1.0, 0.1, *[9.0] * 60], budget=120, made=made, compiled=True)
    assert len(made) == 6

"""Progress as lines, as a bar, and not at all."""

from __future__ import annotations

from io import StringIO
from types import SimpleNamespace

import pytest

from pfedhgp import progress as module
from pfedhgp.progress import progress


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def _records(rounds: int, *, attempt: int = 0, first: int = 0):
    for i in range(rounds + 1):
        yield {"round": first + i, "attempt": attempt, "bound": -100.0 + i, "kind": "round"}


@pytest.fixture
def clock(monkeypatch):
    """Ten seconds pass between any two looks at the clock."""
    times = iter(range(0, 10_000, 10))
    monkeypatch.setattr(module.time, "monotonic", lambda: float(next(times)))


def test_lines_count_rounds_and_the_time_left(clock):
    out = StringIO()
    with progress(rounds=4, stream=out) as show:
        for record in _records(4):
            show(record)
    lines = out.getvalue().splitlines()
    assert [line.split(",")[0] for line in lines] == [f"round {i} of at most 4" for i in range(5)]
    assert [line.split(", ")[1] for line in lines] == [f"bound {-100 + i}.0" for i in range(5)]
    # A record takes two looks, 20 s; the first two rounds compile and are no measure.
    left = [line.split(", ")[-1] for line in lines]
    assert left == [
        *["time left unknown"] * 2,
        "rounds for at most 40 s more",
        "rounds for at most 20 s more",
        "rounds for at most 0 s more",
    ]


def test_restarts_and_mean_field_count_their_own_way():
    out = StringIO()
    with progress(rounds=2, restarts=2, stream=out) as show:
        for record in (*_records(2), *_records(2, attempt=1, first=3)):
            show(record)
    done = [line.split()[1] for line in out.getvalue().splitlines()]
    assert done == ["0", "1", "2", "2", "3", "4"]
    out = StringIO()
    with progress(rounds=2, start_is_round=True, stream=out) as show:
        for i in range(2):
            show({"round": i, "attempt": 0, "bound": None})
    assert [line.split(",")[:2] for line in out.getvalue().splitlines()] == [
        [f"round {i} of at most 2", " bound unknown"] for i in (1, 2)
    ]


def test_a_terminal_gets_a_bar():
    out = Terminal()
    with progress(rounds=4, stream=out) as show:
        for record in _records(3):
            show(record)
    assert "preparing" in out.getvalue()
    assert "round 3 of at most 4" in out.getvalue()
    assert "bound -97.0" in out.getvalue()


def _a_fit(show) -> None:
    for kind in ("census", "extent", "start"):
        show.phase(kind)
    for record in _records(2):
        show.phase("round")
        show(record)
    show.phase("finish")
    show.phase("scoring 7 held-out rows")


def test_phases_are_lines_each_once():
    out = StringIO()
    with progress(rounds=2, stream=out) as show:
        _a_fit(show)
    assert [line.partition(",")[0] for line in out.getvalue().splitlines()] == [
        "preparing: scales",
        *(f"round {i} of at most 2" for i in range(3)),
        "averaging over clients' parameters",
        "scoring 7 held-out rows",
    ]
    out = StringIO()
    with progress(rounds=2, finishing="finishing", stream=out) as show:
        _a_fit(show)
    assert "finishing" in out.getvalue()
    assert "averaging" not in out.getvalue()


def test_phases_are_the_bars_description():
    out = Terminal()
    with progress(rounds=2, stream=out) as show:
        _a_fit(show)
    assert "scoring 7 held-out rows" in out.getvalue()
    assert "bound -98.0" in out.getvalue()


def test_a_fit_tells_its_phases():
    """The engine's kinds of requests, in their order, to callbacks that listen."""
    from pfedhgp.federation import inprocess

    class Server:
        phase, kinds = None, iter(["census", "round", "finish"])

        def request(self):
            kind = next(self.kinds, None)
            return kind and SimpleNamespace(kind=kind)

        def gather(self, replies):
            assert list(replies) == []

    heard = []
    listening = SimpleNamespace(phase=heard.append)
    inprocess.run(Server(), [], callbacks=[lambda record: None, listening])
    assert heard == ["census", "round", "finish"]


@pytest.mark.parametrize("out", [StringIO(), Terminal()])
def test_quiet_is_quiet(out):
    with progress(rounds=4, stream=out, quiet=True) as show:
        _a_fit(show)
    assert out.getvalue() == ""

"""Progress as lines, as a bar, and not at all."""

from __future__ import annotations

import builtins
import re
import sys
import time
from importlib.machinery import ModuleSpec
from io import StringIO
from types import ModuleType, SimpleNamespace
from typing import ClassVar

import pytest

from pfedhgp.base import progress as module
from pfedhgp.base.progress import progress


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
    left = [line.split(" s, ", 1)[1] for line in lines]
    assert left == [
        *["time left unknown"] * 2,
        "rounds for at most 40 s more, then averaging",
        "rounds for at most 20 s more, then averaging",
        "then averaging",
    ]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"after": ["averaging", "scoring", "the report"]},
            "then averaging, scoring and the report",
        ),
        ({"after": ["averaging", "scoring"]}, "then averaging and scoring"),
        ({"after": []}, "rounds done"),
        ({"finishing": "finishing"}, "rounds done"),
    ],
)
def test_what_comes_after_rounds_is_named(settings, said, clock):
    out = StringIO()
    with progress(rounds=4, stream=out, **settings) as show:
        for record in _records(4):
            show(record)
    *_, before, last = out.getvalue().splitlines()
    assert last.endswith(f" s, {said}")
    assert ("then" in before) == ("then" in said)


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        (80, r"at most 1 s, then averaging\b(?! and)"),
        (150, "rounds for at most 1 s more, then averaging and scoring"),
    ],
)
def test_a_bar_has_room_for_all_its_words(columns, said, monkeypatch):
    """Nothing is cut off, the description, the bound and the clock neither."""
    monkeypatch.setenv("COLUMNS", str(columns))
    out = Terminal()
    with progress(rounds=4, stream=out, after=["averaging", "scoring"]) as show:
        for record in list(_records(4))[:4]:
            show({**record, "bound": -12345.6})
    shown = out.getvalue()
    assert re.search(said, shown)
    assert "round 3 of at most 4" in shown
    assert "bound -12345.6" in shown
    assert "…" not in shown.split("round 3 of at most 4")[-1]


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
        "averaging over clients' parameters: one more search",
        "scoring 7 held-out rows",
    ]
    out = StringIO()
    with progress(rounds=2, finishing="finishing", stream=out) as show:
        _a_fit(show)
    assert "finishing" in out.getvalue()
    assert "averaging" not in out.getvalue()


def test_a_run_that_goes_on_says_so_before_its_first_round():
    out = StringIO()
    with progress(rounds=2, stream=out) as show:
        for record in list(_records(2))[1:]:
            show.phase("round")
            show(record)
    assert [line.partition(",")[0] for line in out.getvalue().splitlines()] == [
        "going on with the run that stopped",
        "round 1 of at most 2",
        "round 2 of at most 2",
    ]


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
        plan, attempt, unable = SimpleNamespace(masks=False, robust="off"), 0, ()

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


def _waited(said: StringIO, text: str) -> bool:
    """Whether a text is printed in the next seconds: it comes from another thread."""
    until = time.monotonic() + 20.0
    while text not in said.getvalue() and time.monotonic() < until:
        time.sleep(0.01)
    return text in said.getvalue()


def test_a_silent_phase_says_that_it_is_at_work_and_how_far():
    out = StringIO()
    with progress(rounds=2, stream=out, beat=0.05) as show:
        show.phase("finish")
        assert _waited(out, "still averaging over clients' parameters, ")
        show.phase("scoring 90 held-out rows")
        show.step(1, 3)
        assert _waited(out, "still scoring 90 held-out rows, 1 of 3 done, ")
    after = out.getvalue()
    time.sleep(0.2)
    assert out.getvalue() == after  # nobody talks when all is done


def test_a_bar_pulses_where_the_length_is_not_known_and_counts_where_it_is():
    out = Terminal()
    with progress(rounds=2, stream=out) as show:
        _a_fit(show)
        show.step(2, 3)
    assert "2 of 3" in out.getvalue()


def _notebook(monkeypatch, widgets: bool) -> list:
    """As in Jupyter's kernel: IPython is there, and ipywidgets or not; gives what was displayed."""

    class ZMQInteractiveShell:
        config: ClassVar = {}

    class Output:
        def __init__(self, **_):
            self.shown = []

        def clear_output(self, wait=False):
            pass

        def close(self):
            pass

        def __enter__(self):
            return self

        def __exit__(self, *_):
            return None

    displayed: list = []

    def modules(**names):
        for name, content in names.items():
            made = ModuleType(name.replace("__", "."))
            vars(made).update(content)
            made.__spec__ = ModuleSpec(made.__name__, None)
            monkeypatch.setitem(sys.modules, made.__name__, made)

    shell = ZMQInteractiveShell()
    monkeypatch.setattr(builtins, "get_ipython", lambda: shell, raising=False)
    modules(
        IPython={"get_ipython": lambda: shell},
        IPython__display={"display": lambda *things, **_: displayed.extend(things)},
    )
    if widgets:
        modules(ipywidgets={"Output": Output})
    else:
        monkeypatch.setitem(sys.modules, "ipywidgets", None)
        usual = module.find_spec
        monkeypatch.setattr(
            module, "find_spec", lambda name: None if name == "ipywidgets" else usual(name)
        )
    return displayed


def test_a_notebook_gets_a_bar(monkeypatch):
    displayed = _notebook(monkeypatch, widgets=True)
    out = StringIO()
    with progress(rounds=2, stream=out) as show:
        _a_fit(show)
    assert out.getvalue() == ""  # the bar is the notebook's own, not text in a log
    pages = "".join(getattr(each, "html", "") for each in displayed)
    assert "scoring 7 held-out rows" in pages
    assert "bound -98.0" in pages


def test_a_notebook_without_widgets_gets_lines(monkeypatch):
    """rich would show nothing there but a warning."""
    displayed = _notebook(monkeypatch, widgets=False)
    out = StringIO()
    with progress(rounds=2, stream=out) as show:
        _a_fit(show)
    assert "round 2 of at most 2, bound -98.0" in out.getvalue()
    assert displayed == []

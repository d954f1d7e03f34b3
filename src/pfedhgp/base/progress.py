"""What a fit is doing: phases, rounds, bound, time left. A bar, or lines in a log.

    with progress(rounds=10) as show:
        FederatedGP(rounds=10, callbacks=[show]).fit(sites)

A fit tells the callback its phases too (`show.phase`): census, start, round, finish. Who does more, such as
scoring, says so with `show.phase("scoring")`, and how far it is with `show.step(3, 12)`. A phase that has
nothing new to say for a while says that it is still at work. A fit that has to compile, or that will take
more than half a minute, says so before it begins.
"""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any, TextIO

PREPARING = "preparing: scales, starting values"
RESUMING = "going on with the run that stopped"
AVERAGING = "averaging over clients' parameters: one more search, curvatures"
"""What `finish` is for `structured`; the other inference just finishes."""
BEAT = 15.0
"""Seconds of silence after which a phase says that it is still at work."""
LONG = 30.0
"""Seconds: a fit that will take longer says so."""
ROOM = 140
"""Columns that a terminal needs to show everything that comes after the rounds."""


class Progress:
    """A callback of `FederatedGP` that shows records, phases, steps and notes by four functions."""

    def __init__(
        self,
        show_record: Callable[[dict[str, Any]], None],
        show_phase: Callable[[str], None],
        finishing: str,
        show_step: Callable[[int, int], None] = lambda done, total: None,
        show_note: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._record, self._show, self._finishing = show_record, show_phase, finishing
        self._step, self._note = show_step, show_note
        self._last: str | None = None
        self._begun = False

    def __call__(self, record: dict[str, Any]) -> None:
        self._last, self._begun = None, True  # with restarts the same phase comes again
        self._record(record)

    def phase(self, name: str) -> None:
        """What begins now: a kind of request of the server's, or words of the caller's."""
        text = {"finish": self._finishing, "round": None}.get(name, name)
        if name in ("census", "extent", "cycles", "start"):
            text = PREPARING
        if name == "round" and not self._begun:
            text = RESUMING
        self._begun = True
        if text is not None and text != self._last:
            self._last = text
            self._show(text)

    def expect(self, what: str, seconds: float) -> None:
        """What begins now and may take long: "compiling", or "fitting", which is not said of short fits."""
        if what == "compiling":
            self._note(f"compiling, about {duration(seconds)} the first time")
        elif seconds > LONG:
            self._note(f"this fit may take about {duration(seconds)}")

    def step(self, done: int, total: int) -> None:
        """How far the current phase is. Preparing has several phases, and does not show each."""
        if self._last not in (None, PREPARING) and total > 1:
            self._step(done, total)


@contextmanager
def progress(
    *,
    rounds: int,
    restarts: int = 1,
    start_is_round: bool = False,
    finishing: str = AVERAGING,
    after: Sequence[str] | None = None,
    quiet: bool = False,
    stream: TextIO | None = None,
    beat: float = BEAT,
) -> Iterator[Progress]:
    """A callback of `FederatedGP`; `rounds` is the most that one training can take.

    The time left is that of rounds. `after` names what comes then, in order: by default what `finishing` is.
    """
    out = sys.stderr if stream is None else stream
    if after is None:
        after = ["averaging"] if finishing == AVERAGING else []
    clock = _Clock(rounds * restarts, start_is_round, after)
    if quiet:
        yield Progress(lambda record: None, lambda text: None, finishing)
    elif out.isatty() or (_in_notebook() and find_spec("ipywidgets")):
        with _bar(clock, out, finishing) as bar:
            yield bar
    else:
        lines = _Lines(clock, out)
        with lines.beating(beat):
            yield Progress(lines.record, lines.phase, finishing, lines.step, lines.say)


class _Lines:
    """A line for each record and phase, and one now and then while a phase is silent."""

    def __init__(self, clock: _Clock, out: TextIO) -> None:
        self.clock, self.out = clock, out
        self.news = threading.Event()
        self.about = "preparing"
        self.done = ""

    def say(self, text: str) -> None:
        print(text, file=self.out, flush=True)
        self.news.set()

    def record(self, record: dict[str, Any]) -> None:
        done, left = self.clock.tick(record)
        self.about, self.done = f"round {done + 1}", ""
        self.say(
            f"round {done} of at most {self.clock.total}, bound {_bound(record)}, "
            f"{self.clock.elapsed:.0f} s, {self.clock.words(left)}"
        )

    def phase(self, text: str) -> None:
        self.about, self.done = text.partition(":")[0], ""
        self.say(text)

    def step(self, done: int, total: int) -> None:
        self.done = f", {done} of {total} done"

    @contextmanager
    def beating(self, beat: float) -> Iterator[None]:
        """Says "still …" after `beat` seconds without news, and less and less often after that."""
        over = threading.Event()

        def watch() -> None:
            wait = beat
            while not over.is_set():
                self.news.clear()
                if self.news.wait(wait):
                    wait = beat
                elif not over.is_set():
                    wait = min(2.0 * wait, 8.0 * beat)
                    text = f"still {self.about}{self.done}, {self.clock.elapsed:.0f} s"
                    print(text, file=self.out, flush=True)

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        try:
            yield
        finally:
            over.set()
            self.news.set()
            watcher.join()


class _Clock:
    """Rounds done and seconds left for rounds; the first record includes compilation and does not count."""

    def __init__(self, total: int, start_is_round: bool, after: Sequence[str] = ()) -> None:
        self.total, self.start_is_round, self.after = total, start_is_round, after
        self.began = time.monotonic()
        self.first: tuple[int, float] | None = None

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self.began

    def tick(self, record: dict[str, Any]) -> tuple[int, float | None]:
        """(rounds done, most seconds left, or None while that is unknown)"""
        done = record["round"] + 1 if self.start_is_round else record["round"] - record["attempt"]
        now = time.monotonic()
        if self.first is None:
            # The next round compiles the training step, so it does not count either.
            self.first = (done + 1, now)
            return done, None
        if done <= self.first[0]:
            self.first = (done, now)
            return done, None
        pace = (now - self.first[1]) / (done - self.first[0])
        return done, pace * max(self.total - done, 0)

    def words(self, left: float | None, *, short: bool = False) -> str:
        """The time left for rounds, and what comes after them; if `short`, only the next step."""
        if left is None:
            return "time left unknown"
        most = f"at most {math.ceil(left)} s"
        rounds = [most if short else f"rounds for {most} more"] if left > 0 else []
        then = [f"then {_listed(self.after[:1] if short else self.after)}"] if self.after else []
        return ", ".join([*rounds, *then]) or "rounds done"


@contextmanager
def _bar(clock: _Clock, out: TextIO, finishing: str) -> Iterator[Progress]:
    from rich.console import Console
    from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    # No file= in a notebook: rich has its own way to show things there, by ipywidgets.
    console = Console(file=out) if out.isatty() else Console()
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=min(max(console.width - 77, 3), 20)),  # words go before it
        TextColumn("bound {task.fields[bound]}"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[left]}"),
    )
    with Bars(*columns, console=console, transient=True) as bars:
        rounds = bars.add_task("", total=clock.total, bound="…", left="", visible=False)
        shown = [rounds, bars.add_task("preparing", total=None, bound="…", left="")]

        def phase(text: str) -> None:
            # Without a total the bar pulses: how long this takes is not known. Its clock is its own.
            name, _, more = text.partition(": ")
            bound = bars.tasks[0].fields["bound"]
            if len(shown) > 1:
                bars.remove_task(shown.pop())
            shown.append(bars.add_task(name, total=None, bound=bound, left=more))
            bars.update(rounds, visible=False)

        def step(done: int, total: int) -> None:
            bars.update(shown[-1], completed=done, total=total, left=f"{done} of {total}")

        def record(found: dict[str, Any]) -> None:
            done, left = clock.tick(found)
            if len(shown) > 1:
                bars.remove_task(shown.pop())
            bars.update(
                rounds,
                visible=True,
                completed=done,
                description=f"round {done} of at most {clock.total}",
                bound=_bound(found),
                left=clock.words(left, short=console.width < ROOM),
            )

        def note(text: str) -> None:
            bars.console.print(text, highlight=False)  # above the bar, and there to stay

        yield Progress(record, phase, finishing, step, note)


def duration(seconds: float) -> str:
    """ "20 s", "3 min", "2 h": a rough figure."""
    for unit, size, most in (("s", 1.0, 90.0), ("min", 60.0, 90.0 * 60.0)):
        if seconds < most:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds / 3600.0:.0f} h"


def _bound(record: dict[str, Any]) -> str:
    return "unknown" if record["bound"] is None else f"{record['bound']:.1f}"


def _listed(words: Sequence[str]) -> str:
    """ "a, b and c" """
    return " and ".join(part for part in (", ".join(words[:-1]), *words[-1:]) if part)


def _in_notebook() -> bool:
    shell = sys.modules.get("IPython")
    found = shell.get_ipython() if shell is not None else None
    return found is not None and type(found).__name__ == "ZMQInteractiveShell"

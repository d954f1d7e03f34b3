"""What a fit is doing: phases, rounds, bound, time left. A bar on a terminal or in a notebook, else lines.

    with progress(rounds=10) as show:
        FederatedGP(rounds=10, callbacks=[show]).fit(sites)

A fit tells the callback its phases too (`show.phase`): census, start, round, finish. Who does more, such as
scoring, says so with `show.phase("scoring")`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO

PREPARING = "preparing: scales, starting values, compilation"
AVERAGING = "averaging over clients' parameters"
"""What `finish` is for `structured`; the other inference just finishes."""


class Progress:
    """A callback of `FederatedGP` that shows records and phases by two functions."""

    def __init__(
        self,
        show_record: Callable[[dict[str, Any]], None],
        show_phase: Callable[[str], None],
        finishing: str,
    ) -> None:
        self._record, self._show, self._finishing = show_record, show_phase, finishing
        self._last: str | None = None

    def __call__(self, record: dict[str, Any]) -> None:
        self._last = None  # with restarts the same phase comes again
        self._record(record)

    def phase(self, name: str) -> None:
        """What begins now: a kind of request of the server's, or words of the caller's."""
        text = {"finish": self._finishing, "round": None}.get(name, name)
        if name in ("census", "extent", "cycles", "start"):
            text = PREPARING
        if text is not None and text != self._last:
            self._last = text
            self._show(text)


@contextmanager
def progress(
    *,
    rounds: int,
    restarts: int = 1,
    start_is_round: bool = False,
    finishing: str = AVERAGING,
    quiet: bool = False,
    stream: TextIO | None = None,
) -> Iterator[Progress]:
    """A callback of `FederatedGP`; `rounds` is the most that one training can take."""
    out = sys.stderr if stream is None else stream
    clock = _Clock(rounds * restarts, start_is_round)
    if quiet:
        yield Progress(lambda record: None, lambda text: None, finishing)
    elif out.isatty() or _in_notebook():
        with _bar(clock, out) as (record, phase):
            yield Progress(record, phase, finishing)
    else:

        def line(record: dict[str, Any]) -> None:
            done, left = clock.tick(record)
            print(
                f"round {done} of at most {clock.total}, bound {_bound(record)}, "
                f"{clock.elapsed:.0f} s, {_left(left)}",
                file=out,
                flush=True,
            )

        yield Progress(line, lambda text: print(text, file=out, flush=True), finishing)


class _Clock:
    """Rounds done and seconds left for rounds; the first record came after compilation, and is no measure."""

    def __init__(self, total: int, start_is_round: bool) -> None:
        self.total, self.start_is_round = total, start_is_round
        self.began = time.monotonic()
        self.first: tuple[int, float] | None = None

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self.began

    def tick(self, record: dict[str, Any]) -> tuple[int, float | None]:
        """(rounds done, seconds left at most or None while there is no telling)"""
        done = record["round"] + 1 if self.start_is_round else record["round"] - record["attempt"]
        now = time.monotonic()
        if self.first is None:
            # The next round compiles the training step: it is no measure either.
            self.first = (done + 1, now)
            return done, None
        if done <= self.first[0]:
            self.first = (done, now)
            return done, None
        pace = (now - self.first[1]) / (done - self.first[0])
        return done, pace * max(self.total - done, 0)


@contextmanager
def _bar(
    clock: _Clock, out: TextIO
) -> Iterator[tuple[Callable[[dict[str, Any]], None], Callable[[str], None]]]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("bound {task.fields[bound]}"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[left]}"),
    )
    # No file= in a notebook: rich has its own way to show things there.
    console = Console(file=out) if out.isatty() else Console()
    with Progress(*columns, console=console, transient=True) as bars:
        task = bars.add_task("preparing", total=clock.total, bound="…", left="")

        def phase(text: str) -> None:
            bars.update(task, description=text.partition(":")[0], left="")

        def callback(record: dict[str, Any]) -> None:
            done, left = clock.tick(record)
            bars.update(
                task,
                completed=done,
                description=f"round {done} of at most {clock.total}",
                bound=_bound(record),
                left=_left(left),
            )

        yield callback, phase


def _bound(record: dict[str, Any]) -> str:
    return "unknown" if record["bound"] is None else f"{record['bound']:.1f}"


def _left(seconds: float | None) -> str:
    """Of the rounds alone: what comes after them has no measure."""
    if seconds is None:
        return "time left unknown"
    return f"rounds for at most {seconds:.0f} s more"


def _in_notebook() -> bool:
    shell = sys.modules.get("IPython")
    found = shell.get_ipython() if shell is not None else None
    return found is not None and type(found).__name__ == "ZMQInteractiveShell"

"""The order of work: on a CPU run by run in a few threads, on a GPU all runs of a model together."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import jax

from pfedhgp.base.batching import run_batched
from pfedhgp.base.numerics import one_blas_thread
from pfedhgp.base.signals import AT_WORK, raise_pending_signal
from pfedhgp.errors import InputError

Task = TypeVar("Task", bound=Hashable)
Work = Callable[[Task], None]

COMPILING: dict[str, str] = {"phase": "compiling …"}
"""What `progress` gets before the first task ends, which may take a minute."""


def run_tasks(
    tasks: Sequence[Task],
    work: Work[Task],
    *,
    kind: Callable[[Task], Hashable],
    device: str = "cpu",
    workers: int | None = None,
) -> None:
    """Does all tasks; those of one `kind` share their compiled functions.

    On a CPU a task at a time is fastest (a federation's clients fill the cache already), in as many threads
    as there are cores. On a GPU all tasks of a kind run in lockstep, one batch, and the kinds side by side,
    because each of them spends much of its time compiling.
    """
    if not tasks:
        return
    with one_blas_thread():
        if device == "gpu":
            _kinds_together(tasks, work, kind, first_gpu())
        else:
            _Pool(tasks, work, kind).run(workers or min(cores(), 8))


def cores() -> int:
    """Cores that this process may use: fewer than the machine has in a container or under `taskset`."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def check_least(settings: Any, least: Mapping[str, int], *, runs: int) -> None:
    """Refuses numbers that are too small: the settings named in `least`, rounds (if given) and runs."""
    rounds = settings.rounds
    limits = {**least, **({} if rounds is None else {"rounds": 1})}
    for name, value in (*((n, getattr(settings, n)) for n in limits), ("runs", runs)):
        if value < limits.get(name, 1):
            raise InputError(f"`{name}` must be at least {limits.get(name, 1)}, got {value}")


def check_device(device: str) -> None:
    """Raises an error if a GPU is wanted and there is none, before anything is written."""
    if device == "gpu":
        # A study has several processes, of which none may take most of the memory when it starts.
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
        first_gpu()


def first_gpu() -> jax.Device:
    """The GPU that a study runs on."""
    try:
        return jax.devices("gpu")[0]
    except RuntimeError:
        raise InputError(
            "no gpu was found by JAX: use --device cpu, or install JAX's CUDA build (jax[cuda13]) here"
        ) from None


def _thread(number: int, target: Callable[..., None], *given: object) -> threading.Thread:
    """A started thread; its name tells whoever ends the process that it may be compiling."""
    name = f"{AT_WORK} {number}"
    thread = threading.Thread(target=target, args=given, daemon=True, name=name)
    thread.start()
    return thread


def _wait(threads: Sequence[threading.Thread]) -> None:
    for thread in threads:
        while thread.is_alive():  # a join without limit would not notice Ctrl-C
            thread.join(0.2)
            raise_pending_signal()


class _Pool(Generic[Task]):
    """Threads that take tasks; a kind's first task runs alone, so that nothing is compiled twice."""

    def __init__(
        self, tasks: Sequence[Task], work: Work[Task], kind: Callable[[Task], Hashable]
    ) -> None:
        self.work, self.kind = work, kind
        self.waiting = list(tasks)
        self.cold = {kind(task) for task in tasks}
        self.warming: set[Hashable] = set()
        self.error: BaseException | None = None
        self.change = threading.Condition()

    def run(self, workers: int) -> None:
        threads = [_thread(i, self._work) for i in range(workers)]
        try:
            _wait(threads)
        except BaseException as error:
            self._stop(error)
            raise
        if self.error is not None:
            raise self.error

    def _stop(self, error: BaseException) -> None:
        with self.change:
            self.error = self.error or error
            self.waiting.clear()
            self.change.notify_all()

    def _work(self) -> None:
        while (task := self._take()) is not None:
            kind = self.kind(task)
            try:
                self.work(task)
            except BaseException as error:
                self._stop(error)
            with self.change:
                self.warming.discard(kind)
                self.cold.discard(kind)
                self.change.notify_all()

    def _take(self) -> Task | None:
        """The next task. Kinds that nobody has opened come first, from the last of the list. Otherwise what
        is slow to compile and waits for nothing would be left for the end, with one thread busy."""
        with self.change:
            while self.waiting:
                for wanted_cold in (True, False):
                    numbered = list(enumerate(self.waiting))
                    for i, task in reversed(numbered) if wanted_cold else numbered:
                        kind = self.kind(task)
                        if kind in self.warming or (kind in self.cold) != wanted_cold:
                            continue
                        if wanted_cold:
                            self.warming.add(kind)
                        return self.waiting.pop(i)
                self.change.wait()
            return None


def _kinds_together(
    tasks: Sequence[Task],
    work: Work[Task],
    kind: Callable[[Task], Hashable],
    device: jax.Device,
) -> None:
    groups: dict[Hashable, list[Task]] = {}
    for task in tasks:
        groups.setdefault(kind(task), []).append(task)

    def lockstep(group: list[Task]) -> None:
        with jax.default_device(jax.devices("cpu")[0]):
            run_batched([lambda task=task: work(task) for task in group], device=device)  # type: ignore[misc]

    errors: list[BaseException] = []

    def guarded(group: list[Task]) -> None:
        try:
            lockstep(group)
        except BaseException as error:
            errors.append(error)

    _wait([_thread(i, guarded, group) for i, group in enumerate(groups.values())])
    if errors:
        raise errors[0]

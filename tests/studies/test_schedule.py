"""Every task is done once; the first of a kind alone, since it compiles for the others."""

from __future__ import annotations

import threading
import time

import jax
import pytest

from pfedhgp.errors import InputError
from pfedhgp.studies.schedule import _kinds_together, run_tasks

TASKS = [(kind, i) for kind in "abc" for i in range(4)]


def test_tasks_are_done_once_and_kinds_are_opened_alone():
    active, seen, lock, crowded = [], [], threading.Lock(), []

    def work(task):
        with lock:
            first = not any(done[0] == task[0] for done in seen)
            crowded.append(first and any(other[0] == task[0] for other in active))
            active.append(task)
        time.sleep(0.01)
        with lock:
            active.remove(task)
            seen.append(task)

    run_tasks(TASKS, work, kind=lambda task: task[0], workers=3)
    assert sorted(seen) == TASKS
    assert not any(crowded)


def test_an_error_ends_the_study():
    done = []

    def work(task):
        if task == ("b", 0):
            raise RuntimeError("broken")
        time.sleep(0.01)
        done.append(task)

    with pytest.raises(RuntimeError, match="broken"):
        run_tasks(TASKS, work, kind=lambda task: task[0], workers=2)
    assert len(done) < len(TASKS)


def test_lockstep_does_all_tasks_of_all_kinds():
    done = []
    _kinds_together(TASKS, done.append, lambda task: task[0], jax.devices("cpu")[0])
    assert sorted(done) == TASKS


def test_a_missing_gpu_is_said():
    try:
        jax.devices("gpu")
    except RuntimeError:
        with pytest.raises(InputError, match="no gpu was found"):
            run_tasks(TASKS, print, kind=lambda task: task[0], device="gpu")
    else:
        pytest.skip("there is a GPU on this machine")

"""Every task is done once; the first of a kind alone, since it compiles for the others."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time

import jax
import pytest

from pfedhgp.base.numerics import has_device
from pfedhgp.cli.main import main as command_line
from pfedhgp.errors import InputError
from pfedhgp.studies.__main__ import main as bare
from pfedhgp.studies.common import schedule
from pfedhgp.studies.common.schedule import run_tasks

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


def test_lockstep_does_all_tasks_of_all_kinds(monkeypatch):
    monkeypatch.setattr(schedule, "first_gpu", lambda: jax.devices("cpu")[0])
    done = []
    run_tasks(TASKS, done.append, kind=lambda task: task[0], device="gpu")
    assert sorted(done) == TASKS


def test_a_missing_gpu_is_said_before_anything_is_written(tmp_path, capsys):
    if has_device("gpu"):
        pytest.skip("there is a GPU on this machine")
    with pytest.raises(InputError, match="no gpu was found"):
        run_tasks(TASKS, print, kind=lambda task: task[0], device="gpu")
    out = tmp_path / "out"
    given = ["--device", "gpu", "--out", str(out)]
    for call, arguments in (
        (command_line, ["reproduce", "synthetic", *given]),
        (command_line, ["reproduce", "stability", *given]),
        (bare, given),
    ):
        assert call(arguments) == 2
        error = capsys.readouterr().err
        assert "no gpu was found by JAX: use --device cpu" in error
        assert error.count("\n") == 1
        assert not out.exists()


# Tasks that sleep stand for those that compile. Python's usual end aborts here, as it does where it takes
# threads away that are inside XLA.
STOPPED = """
import atexit, os, sys, time
from pfedhgp.studies.synthetic import study as synthetic

def run_cell(study, cell):
    print("at work", flush=True)
    time.sleep(60)

synthetic.run_cell = run_cell
atexit.register(os.abort)
if sys.argv.pop(1) == "bare":
    from pfedhgp.base.signals import leave
    from pfedhgp.studies.__main__ import main
    sys.exit(leave(main()))
from pfedhgp.cli.entry import run
sys.argv[1:1] = ["reproduce", "synthetic"]
sys.exit(run())
"""


def test_a_signal_ends_a_study_with_its_own_code_while_threads_work(tmp_path):
    started = {}
    for way, number in (("command", signal.SIGINT), ("bare", signal.SIGTERM)):
        given = [way, "--models", "oracle", "--out", str(tmp_path / way)]
        started[number] = subprocess.Popen(
            [sys.executable, "-c", STOPPED, *given],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    for number, process in started.items():
        while (line := process.stdout.readline()) != "at work\n":
            assert "compiling" in line
        process.send_signal(number)
    for number, process in started.items():
        _, error = process.communicate(timeout=30)
        assert process.returncode == 128 + number, error
        assert "the same command goes on from what is done" in error

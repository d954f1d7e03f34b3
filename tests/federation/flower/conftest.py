"""What federations of real processes share: compiled code, and an end with the test."""

from __future__ import annotations

import jax
import pytest

CONFIG = {
    "data": {"inputs": ["x"], "outputs": ["y"]},
    "model": {"inducing": 5, "local_inducing": 5},
    "inference": {"rounds": 5, "tolerance": 0.0, "averaging": False},
}
"""Small models; averaging, which is half of what a process has to trace, is in `federate`'s test."""


@pytest.fixture(scope="session")
def cache(tmp_path_factory):
    """Compiled code that all processes of all tests share; `make test-flower` keeps it between runs."""
    given = jax.config.jax_compilation_cache_dir
    return given or tmp_path_factory.mktemp("compiled")


@pytest.fixture
def deployment(tmp_path, cache):
    from pfedhgp.federation.flower.processes import free_port
    from support.flower_processes import Deployment

    made = []

    def make(rows, **tables):
        config = {n: {**CONFIG.get(n, {}), **tables.get(n, {})} for n in {**CONFIG, **tables}}
        made.append(Deployment(tmp_path, cache, rows, config, free_port()))
        return made[-1]

    yield make
    for each in made:
        each.stop()


@pytest.fixture
def in_a_flower_task(monkeypatch):
    """Flower makes messages only in the process of one of its tasks."""
    from flwr.supercore.task_identity import TaskIdentity

    for name in ("task_id", "run_id", "node_id"):
        monkeypatch.setattr(TaskIdentity, f"_{name}", 1)

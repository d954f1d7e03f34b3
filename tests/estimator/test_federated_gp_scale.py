"""One machine: a million rows in one client, thousands of clients in one process."""

from __future__ import annotations

import subprocess
import sys

import pytest

MILLION_ROWS = """
from pathlib import Path
import numpy as np
from pfedhgp import FederatedGP
from pfedhgp.inference.structured.settings import Structured
rng = np.random.default_rng(0)
x = np.sort(rng.uniform(0.0, 100.0, 1_000_000))
y = np.sin(x) + 0.3 * np.sin(9.0 * x) + 0.1 * rng.normal(size=len(x))
short = Structured(rounds=1, first_evaluations=3, frozen_rounds=1)
model = FederatedGP(
    inference=short, inducing=100, local_inducing=100, domain=[(0.0, 100.0)]
).fit({"long": (x, y), "short": (x[::20_000], y[::20_000])})
p = model.predict("long", x[::50_000])
assert np.isfinite(p.sd).all()
assert model.model_.shared.block.inputs.shape == (100, 1)
status = Path("/proc/self/status").read_text()  # ru_maxrss would start at the parent's
print(float(status.split("VmHWM:")[1].split()[0]) / 2**20)
"""

MANY_CLIENTS = """
from pathlib import Path
import numpy as np
from pfedhgp import FederatedGP
rng = np.random.default_rng(0)
data = {}
for i in range(2000):
    x = np.sort(rng.uniform(0.0, 10.0, 50))
    data[f"c{i}"] = (x, np.sin(x) + 0.3 * np.sin(0.7 * x + i) + 0.1 * rng.normal(size=50))
model = FederatedGP(rounds=2, inducing=20, local_inducing=20).fit(data)
grid = np.linspace(1.0, 9.0, 33)
truth = np.sin(grid) + 0.3 * np.sin(0.7 * grid + 77)
error = np.sqrt(np.mean((model.predict("c77", grid).mean - truth) ** 2))
assert len(model.clients_) == 2000 and error < 0.08, error
status = Path("/proc/self/status").read_text()  # ru_maxrss would start at the parent's
print(float(status.split("VmHWM:")[1].split()[0]) / 2**20)
"""


def peak_gib(code: str, seconds: int) -> float:
    """Runs `code` in a process of its own and returns the peak memory that it printed."""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=seconds
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return float(done.stdout.split()[-1])


def test_a_million_rows_in_one_client_stay_under_one_gib():
    assert peak_gib(MILLION_ROWS, 300) < 1.0


@pytest.mark.slow
def test_a_million_rows_that_cannot_be_merged_stay_under_two_gib():
    """As rows of many inputs: all of them go through, in chunks."""
    as_they_are = "from pfedhgp.inference import merged_rows\nmerged_rows.FEW = 10**9\n"
    assert peak_gib(as_they_are + MILLION_ROWS, 1200) < 2.0


@pytest.mark.slow
def test_two_thousand_clients_fit_in_one_process():
    assert peak_gib(MANY_CLIENTS, 900) < 4.0

"""Three sites with some runs of some classes, as processes: one classifier, with which each goes on alone."""

from __future__ import annotations

import json

import numpy as np
import polars as pl
import pytest

from pfedhgp.data.rows import ClientRows
from pfedhgp.diagnosis.of_model import classifier_of
from pfedhgp.federation.labelled_cycles import terms_of
from pfedhgp.model import files
from pfedhgp.settings import config as configs
from support.flower_processes import needs_flower
from support.runs_at_sites import CLASSES, WAYS, simulated, trained

needs_flower()
pytestmark = pytest.mark.flower
DATA = {
    "outputs": ["force", "speed"],
    "cycle": "stroke",
    "label": "condition",
    "block": "shift",
    "classes": list(CLASSES),
}
DEAL = WAYS["uneven"]


def table(data, at) -> pl.DataFrame:
    """Cycles as rows of a long table."""
    grid, cycles, names, numbers = data
    parts = [
        pl.DataFrame(
            {
                "x": grid[:, 0],
                "force": cycles[c, 0],
                "speed": cycles[c, 1],
                "stroke": str(c),
                "condition": names[c],
                "shift": str(numbers[c]),
            }
        )
        for c in at
    ]
    return pl.concat(parts)


def test_three_sites_train_one_classifier_and_classify_alone(deployment, run):
    data = simulated()
    homes = np.array([DEAL(*pair) for pair in zip(data[2], data[3], strict=True)])
    names = [f"site {name}" for name in "ABC"]
    nothing = [ClientRows(name, np.zeros((1, 1)), np.zeros((1, 1))) for name in names]
    config = {"model": {"diagnose": True}, "inference": {"rounds": 1}, "data": DATA}
    here = deployment(nothing, **config)
    for i, site in enumerate("ABC"):
        table(data, np.flatnonzero(homes == site)).write_parquet(here.data(i))
    server, clients = here.server(), [here.client(i) for i in range(3)]
    assert here.wait(server, "server") == 0, here.out("server")
    for i, client in enumerate(clients):
        assert here.wait(client, f"client-{i}") == 0, here.out(f"client-{i}")

    terms = terms_of(configs.check(here.config), DATA["outputs"])
    expected = trained(terms, data, DEAL).classifier
    new = simulated(1)
    table(new, range(len(new[1]))).write_csv(here.folder / "new.csv")
    for folder in (here.run, *(here.home(i) / "model" for i in range(3))):
        found = classifier_of(files.load(folder))
        for name, array in expected.to_arrays().items():
            np.testing.assert_allclose(found.to_arrays()[name], array, rtol=1e-9, atol=1e-9)
        assert [e.candidate for e in found.judged] == [e.candidate for e in expected.judged]
        assert found.calibration.thresholds == pytest.approx(expected.calibration.thresholds)
    done = run(
        *("classify", here.home(2) / "model", here.folder / "new.csv", "--cycle", "stroke"),
        *("--label", "condition", "--out", here.folder / "classes.csv", "--json"),
    )
    assert json.loads(done.out)["scores"]["accuracy"] > 0.9
    kinds = [entry["kind"] for entry in here.participation()]
    assert sum(kind.startswith("diagnosis-") for kind in kinds) == 8
    assert kinds.index("diagnosis-limits") < kinds.index("start")
    assert run("audit", here.run).code == 0

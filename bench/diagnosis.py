"""How long it takes to classify whole cycles: 501 of 4 × 1201 samples against 5 classes, after training.
And how long it takes to train: 300 cycles of 17 × 60 samples in 30 runs of 3 classes.

    python -m bench.diagnosis

The model is the study's, on the simulated press with the paper's split. A second figure has "none of these"
in it: directions towards other classes, and each channel given the others.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from bench.timing import in_turns, summarise, timed
from pfedhgp.diagnosis.of_model import evidence_of
from pfedhgp.estimator.diagnosis_training import train_diagnosis
from pfedhgp.studies.tonnage import data as sources
from pfedhgp.studies.tonnage.models import ours

AIM = 5.0
"""Seconds, on two cores."""


def classifying(seconds: float) -> dict[str, Any]:
    """Wall and processor seconds of one call, with and without what "none of these" needs."""
    source = sources.source_of("simulated")
    data = sources.first_normal(sources.load(source, 0), source)
    train = sources.training_mask(data, source, 0)
    model = ours(data.take(train), 0).model_
    cycles = np.moveaxis(data.take(~train).cycles, 1, 2)
    grid = data.grid[:, None]
    calls = {
        "labels": lambda: evidence_of(model, grid, cycles),
        "labels, none of these": lambda: evidence_of(model, grid, cycles, novelty=True),
    }
    found = summarise(in_turns({n: timed(f) for n, f in calls.items()}, seconds=seconds, least=3))
    C, n, Q = cycles.shape
    print(f"\n(d) {C} cycles of {Q} × {n} samples against {len(model.clients)} classes")
    out: dict[str, Any] = {"cycles": C, "samples": n, "channels": Q, "aim": AIM, "seconds": {}}
    for name, call in calls.items():
        began = time.process_time()
        call()
        spent = time.process_time() - began
        print(
            f"    {name:28s}{found[name].median:8.2f} s median"
            f"{found[name].quiet:8.2f} s 10th percentile{spent:8.2f} s of processor (aim {AIM:g} s)"
        )
        out["seconds"][name] = {**found[name]._asdict(), "processor": spent}
    return out


TRAINING_AIM = 20.0
"""Seconds, on two cores."""


def training() -> dict[str, float]:
    """Wall and processor seconds of `train_diagnosis` on 300 cycles of 17 channels with 60 samples."""
    rng, grid = np.random.default_rng(0), np.arange(60.0)
    data, block = {}, {}
    for k in range(3):
        level = np.repeat(rng.normal(size=(10, 17, 1)), 10, axis=0)
        waves = np.sin(0.1 * (k + 1) * grid) + level + 0.2 * rng.normal(size=(100, 17, 60))
        data[f"class {k}"] = (grid, waves)
        block[f"class {k}"] = np.repeat(np.arange(10), 10).tolist()
    wall, spent = time.perf_counter(), time.process_time()
    train_diagnosis(data, block=block)
    found = {"wall": time.perf_counter() - wall, "processor": time.process_time() - spent}
    print(
        f"(e) training on 300 cycles of 17 × 60: {found['wall']:.1f} s, {found['processor']:.1f} s of "
        f"processor (aim {TRAINING_AIM:g} s)"
    )
    return found


if __name__ == "__main__":
    classifying(8.0)
    training()

"""`pfedhgp reproduce tonnage`: fault diagnosis of cycles, beside other classifiers on the same split."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pfedhgp.data.cycle_files import CycleSet
from pfedhgp.errors import InputError
from pfedhgp.studies.common.records import record_of
from pfedhgp.studies.common.store import Store
from pfedhgp.studies.tonnage import data as sources
from pfedhgp.studies.tonnage.models import MODELS, OURS, PAPER, chosen_in_words, ours, run_model

NONE_SHARE = 0.5
"""Share of blocks (or cycles) to train "none of these" on. Thresholds need held-out blocks of every kind."""
NONE_ALARMS = 0.005
"""Share of known runs in which a cycle may then be called none of these."""
PAPER_SAMPLES = 2000
"""With more samples in all channels together, the paper's row takes many minutes per split."""
SHARES = (0.02, 0.05, 0.1377, 0.25, 0.5)
SUBTLETIES = (0.5, 1.0, 2.0, 4.0, 8.0)
PUBLISHED = (
    ("pFedHGP", 1.0, 0.0, 0.1377),
    ("perTucker", 1.0, None, 0.1549),
    ("PCA+Classifier", 0.9988, 0.0027, 0.75),
    ("UMDA", 0.9981, None, 0.90),
    ("CNN", 0.9985, 0.0049, 0.90),
    ("Recurrent plot", 0.9733, None, 0.80),
    ("Multi-linear PCA", 0.9672, None, 0.20),
)
"""The paper's table on the real press data: method, accuracy, sd where printed, share of training cycles."""


@dataclass(frozen=True)
class Tonnage:
    """Settings of the study."""

    data: str
    seed: int = 0
    share: float = sources.SHARE
    subtlety: float = 1.0
    small: bool = False
    """Fewer and shorter simulated cycles, for a quick trial."""


def run_tonnage(
    study: Tonnage,
    *,
    runs: int,
    folder: Path,
    models: Sequence[str] | None = None,
    none: bool = False,
    full: bool = False,
    progress: Callable[[int, int, dict[str, Any]], None] | None = None,
) -> Store:
    """Runs what is not in the folder yet; without `models` the rows of `usual_rows`."""
    unknown = [name for name in models or () if name not in MODELS]
    if unknown:
        raise InputError(f"no model {unknown[0]!r}; there are {', '.join(MODELS)}")
    if runs < 1 or not 0.0 < study.share < 1.0 or study.subtlety <= 0:
        raise InputError("`runs` must be at least 1, `share` between 0 and 1, `subtlety` above 0")
    source = sources.source_of(study.data)
    if models is None:
        cycles = sources.load(source, study.seed, small=study.small).cycles
        models = usual_rows(cycles.shape[1] * cycles.shape[2], full=full)
    store = Store(folder, asdict(study), key=("part", "model", "value", "run"))
    jobs = [("main", model, "", run) for run in range(runs) for model in models]
    if none or full:
        jobs += [("none", OURS, name, 0) for name in classes_of(study)]
    if full:
        curve = [name for name in (OURS, "lda", "1-nn") if name in models]
        jobs += [("share", m, str(v), r) for v in SHARES for r in range(runs) for m in curve]
        if source.kind == "simulated":
            jobs += [
                ("subtlety", m, str(v), r) for v in SUBTLETIES for r in range(runs) for m in curve
            ]
    for done, (part, model, value, run) in enumerate(jobs, 1):
        if (part, model, value, run) in store.records:
            continue
        record = {"scenario": study.data, "part": part, "model": model, "value": value, "run": run}
        store.add({**record, **_job(study, source, part, model, value, run)})
        if progress is not None:
            progress(done, len(jobs), store.records[part, model, value, run])
    return store


def usual_rows(samples: int, *, full: bool = False) -> tuple[str, ...]:
    """All rows, but the paper's row only with `full` if cycles are long.

    >>> "paper" in usual_rows(4 * 60), "paper" in usual_rows(4 * 1201)
    (True, False)
    """
    return tuple(name for name in MODELS if name != PAPER or full or samples <= PAPER_SAMPLES)


def classes_of(study: Tonnage) -> list[str]:
    """The classes of the data, in their order."""
    data = sources.load(sources.source_of(study.data), study.seed, small=study.small)
    return list(dict.fromkeys(data.label or ()))


def _job(
    study: Tonnage, source: sources.Source, part: str, model: str, value: str, run: int
) -> dict[str, Any]:
    seed = study.seed + run
    subtlety = float(value) if part == "subtlety" else study.subtlety
    data = sources.load(source, seed, subtlety=subtlety, small=study.small)
    data = sources.first_normal(data, source)
    if part == "none":
        return none_of_these(data, source, seed, value)
    share = float(value) if part == "share" else study.share
    train = sources.training_mask(data, source, seed, share=share)
    explain = part == "main" and model == OURS and run == 0
    return run_model(model, data, train, seed, explain=explain)


def none_of_these(
    data: CycleSet, source: sources.Source, seed: int, left_out: str
) -> dict[str, Any]:
    """Leaves one class out of training, and counts how often it is flagged, and how often known cycles are.

    Thresholds come from held-out blocks of the training cycles. Both rates are measured on new cycles.
    """
    assert data.label is not None
    labels = np.asarray(data.label)
    known, stranger = data.take(labels != left_out), data.take(labels == left_out)
    train = sources.training_mask(known, source, seed, share=NONE_SHARE)
    model = ours(known.take(train), seed, false_alarms=NONE_ALARMS)
    new = known.take(~train)
    flagged = {
        name: model.classify(part.cycles, grid=part.grid).none
        for name, part in (("known", new), ("stranger", stranger))
    }
    settings = model.model_.settings["diagnosis"]
    runs = np.asarray(range(len(new.cycles)) if new.block is None else new.block)
    alarmed = [bool(flagged["known"][runs == run].any()) for run in np.unique(runs)]
    return {
        "left_out": left_out,
        "false_alarms": float(np.mean(flagged["known"])),
        "false_alarms_a_run": float(np.mean(alarmed)),
        "known_runs": len(alarmed),
        "flagged": float(np.mean(flagged["stranger"])),
        "chosen_rate": NONE_ALARMS,
        "known_cycles": len(flagged["known"]),
        "stranger_cycles": len(flagged["stranger"]),
        "chosen": chosen_in_words(settings),
    }


def summarise(store: Store, study: Tonnage, *, runs: int) -> dict[str, Any]:
    """records, curves and tables of results.json."""
    found = list(store.records.values())
    main = [r for r in found if r["part"] == "main" and r["run"] < runs]
    order = [name for name in MODELS if any(r["model"] == name for r in main)]
    records: list[dict[str, Any]] = []
    tables: dict[str, Any] = {}
    for model in order:
        mine = [r for r in main if r["model"] == model]
        for metric in mine[0]["metrics"]:
            values = [r["metrics"][metric] for r in mine]
            sd = float(np.std(values, ddof=1)) if len(values) > 1 else None
            records.append({**record_of(study.data, model, metric, values), "sd": sd})
        names = sorted(mine[0]["classes"])
        tables[f"confusion: {model}"] = {
            "classes": names,
            "counts": np.sum([_in_order(r, names) for r in mine], axis=0).tolist(),
        }
        tables[f"f1: {model}"] = {
            name: float(np.mean([r["f1"][name] for r in mine])) for name in names
        }
    tables["covariance chosen"] = [
        {"run": r["run"], "chosen": r["chosen"]} for r in main if r["model"] == OURS
    ]
    tables["why"] = [r["why"] for r in main if "why" in r]
    rates = ("left_out", "false_alarms", "false_alarms_a_run", "flagged")
    shown = (*rates, "known_cycles", "known_runs", "stranger_cycles", "chosen")
    tables["none of these"] = [
        {name: r[name] for name in shown} for r in found if r["part"] == "none"
    ]
    tables["published"] = [
        {"method": name, "accuracy": accuracy, "sd": sd, "training": share, "data": "tonnage.mat"}
        for name, accuracy, sd, share in PUBLISHED
    ]
    return {
        "records": records,
        "tables": tables,
        "curves": {part: _curve(found, part, runs) for part in ("share", "subtlety")},
    }


def _in_order(record: Mapping[str, Any], names: Sequence[str]) -> np.ndarray:
    """A run's confusion matrix with its classes in this order, which differs between splits."""
    place = [record["classes"].index(name) for name in names]
    return np.asarray(record["confusion"])[np.ix_(place, place)]


def _curve(found: Sequence[Mapping[str, Any]], part: str, runs: int) -> list[dict[str, Any]]:
    values: dict[tuple[str, float], list[float]] = {}
    for r in found:
        if r["part"] == part and r["run"] < runs:
            key = (r["model"], float(r["value"]))
            values.setdefault(key, []).append(r["metrics"]["accuracy"])
    return [
        {"model": model, part: value, "accuracy": float(np.mean(each))}
        for (model, value), each in values.items()
    ]

"""Trains a model for diagnosis: the classifier of runs, and the federated model of the class means.

The classifier (`pfedhgp.diagnosis.training`) goes into the model's arrays and settings ("diagnosis"), so
that a RUN folder has it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from pfedhgp.diagnosis.candidates import Candidate
from pfedhgp.diagnosis.decision import FALSE_ALARMS
from pfedhgp.diagnosis.federated.party import Party
from pfedhgp.diagnosis.federated.terms import SiteCycles, Terms
from pfedhgp.diagnosis.held_out_runs import FOLDS
from pfedhgp.diagnosis.of_model import with_classifier
from pfedhgp.diagnosis.training import How, Training, train
from pfedhgp.errors import InputError
from pfedhgp.estimator import FederatedGP
from pfedhgp.estimator.classes import Classes, classes_of, sites_of
from pfedhgp.federation.diagnosing import train_with
from pfedhgp.federation.planning import check_diagnosis, make_plan
from pfedhgp.model.fitted import FittedModel
from pfedhgp.settings.table import ModelSettings

CYCLES = "white"
"""How the federated model takes cycles, unless told otherwise: replicates, which needs no compiling."""


def train_diagnosis(
    data: Mapping[str, tuple[Any, Any]],
    *,
    block: Mapping[str, Sequence[object]] | None = None,
    inputs: str | Sequence[str] | None = None,
    outputs: str | Sequence[str] | None = None,
    candidates: Sequence[Candidate] | None = None,
    folds: int = FOLDS,
    false_alarms: float = FALSE_ALARMS,
    thresholds: bool = True,
    make: Callable[..., FederatedGP] = FederatedGP,
    **settings: Any,
) -> FederatedGP:
    """A `FederatedGP` of classes {name: (grid, cycles (C, Q, n))}, ready to `classify`.

    `block` gives the run of each cycle of each class: cycles of one run are never on both sides of a split,
    and how runs differ is a layer of its own. Without it every cycle is a run, and a warning says if
    neighbouring cycles look as if they were not. `inputs` and `outputs` name the
    grid's columns and the channels. `candidates` are the covariances to average over; by default many are
    judged by held-out runs. `false_alarms` is the share of known runs in which a cycle may be called "none
    of these"; without `thresholds` none is. `settings` are those of `FederatedGP`; `cycle_basis` is the
    number of coordinates of each channel, by default one a sample and at most 81. `site={class: the site of
    each cycle}` trains the classifier as a federation of these sites does, from sums alone. `blocks` is the
    older name of `block`.

    Example:
        >>> import numpy as np
        >>> from pfedhgp.estimator.diagnosis_training import train_diagnosis
        >>> rng, grid = np.random.default_rng(0), np.linspace(0, 1, 12)
        >>> def cycles(shift):
        ...     wave = np.sin(6 * grid + shift) + 0.3 * rng.normal(size=(8, 1, 1))
        ...     return wave + 0.05 * rng.normal(size=(8, 1, 12))
        >>> data = {"normal": (grid, cycles(0.0)), "worn": (grid, cycles(0.6))}
        >>> model = train_diagnosis(data, rounds=2)
        >>> model.classify(cycles(0.6)[:2], grid=grid).labels
        ('worn', 'worn')
    """
    check_diagnosis(bool(settings.get("masks")))
    if "blocks" in settings:
        older = settings.pop("blocks")
        block = older if block is None else block
    site = settings.pop("site", None)
    how = how_to_train(
        candidates,
        folds=folds,
        false_alarms=false_alarms,
        thresholds=thresholds,
        rank=settings.pop("cycle_basis", None),
        seed=settings.get("seed", 0),
    )
    classes = classes_of(data, block)
    domain = [(float(x.min()), float(x.max())) for x in classes.grid.T]
    common = {"cycles": CYCLES, "domain": domain, "seed": 0, **settings}
    rows = {name: (classes.grid, Y) for name, Y in classes.cycles.items()}
    names = [outputs] if isinstance(outputs, str) else outputs
    channels = tuple(names or _numbered(classes))
    sent: list[dict[str, Any]] = []
    if site is None:
        trained = train(classes.grid, classes.cycles, classes.runs, channels=channels, how=how)
    else:
        trained, sent = train_at_sites(classes, sites_of(site, classes), channels, how)
    model = make(**common).fit(rows, inputs=inputs, outputs=outputs)
    found = with_classifier(model.model_, trained.classifier, trained.facts)
    model.model_ = replace(found, messages=[*sent, *found.messages])
    return model


def train_at_sites(
    classes: Classes, sites: Sequence[str], channels: tuple[str, ...], how: How
) -> tuple[Training, list[dict[str, Any]]]:
    """The classifier as sites train it together, and the log of their messages.

    `sites` names the site of each cycle, class by class. A run lies at one site: the same name at two sites
    is two runs.
    """
    terms = Terms(
        classes=tuple(classes.cycles),
        channels=channels,
        blocks=classes.runs is not None,
        rank=how.rank,
        folds=how.folds,
        false_alarms=how.false_alarms,
        thresholds=how.thresholds,
        candidates=how.candidates,
        seed=how.seed,
    )
    every = np.concatenate(list(classes.cycles.values()))
    names = [name for name, cycles in classes.cycles.items() for _ in cycles]
    runs = (
        None if classes.runs is None else [r for name in terms.classes for r in classes.runs[name]]
    )
    parties = {}
    for one in dict.fromkeys(sites):
        at = [c for c, each in enumerate(sites) if each == one]
        own_runs = None if runs is None else [runs[c] for c in at]
        own = SiteCycles.of(terms, classes.grid, every[at], [names[c] for c in at], own_runs)
        parties[one] = Party(terms, own)
    plan = make_plan(ModelSettings(), classes.grid.shape[1], every.shape[1])
    sent: list[dict[str, Any]] = []
    trained = train_with(
        replace(plan, diagnosis=terms),
        parties,
        lambda message, receiver: sent.append(message.log_entry(receiver)),
    )
    return trained, sent


def diagnosed(model: FittedModel, classes: Classes, seed: int) -> FittedModel:
    """A fitted model with the classifier of the cycles that it was fitted to."""
    trained = train(
        classes.grid,
        classes.cycles,
        classes.runs,
        channels=model.output_names,
        how=How(seed=seed),
    )
    return with_classifier(model, trained.classifier, trained.facts)


def how_to_train(
    candidates: Sequence[Candidate] | None,
    *,
    folds: int,
    false_alarms: float,
    thresholds: bool,
    rank: Any,
    seed: int,
) -> How:
    """The arguments of `train_diagnosis`, checked."""
    if not 0.0 < false_alarms < 1.0:
        raise InputError(f"`false_alarms` must be between 0 and 1, got {false_alarms!r}")
    if folds < 2:
        raise InputError(f"`folds` must be at least 2, got {folds}")
    if rank in (None, "auto"):
        rank = None
    elif isinstance(rank, bool) or not isinstance(rank, int) or rank < 2:
        raise InputError(f"`cycle_basis` must be a whole number of at least 2, got {rank!r}")
    return How(_candidates(candidates), folds, false_alarms, thresholds, rank, seed)


def _numbered(classes: Classes) -> list[str]:
    Q = next(iter(classes.cycles.values())).shape[1]
    return ["y"] if Q == 1 else [f"y{q}" for q in range(Q)]


def _candidates(given: Sequence[Candidate] | None) -> tuple[Candidate, ...] | None:
    if given is None:
        return None
    if isinstance(given, str | Candidate) or not isinstance(given, Sequence):
        raise InputError(f"`candidates` must be a list of `Candidate`, got {given!r:.60}")
    if not given:
        raise InputError("`candidates` is empty: name at least one covariance")
    for each in given:
        if not isinstance(each, Candidate):
            raise InputError(
                f"`candidates` must be a list of `Candidate`, such as Candidate('cell', 0.1), got "
                f"{each!r:.60}"
            )
    return tuple(given)

"""What `FederatedGP` does with whole cycles: their classes, the reasons, and classes that are new."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from pfedhgp.base import checks
from pfedhgp.data.cycle_files import as_cycles, on_outputs
from pfedhgp.data.run_names import run_names
from pfedhgp.errors import InputError, warn
from pfedhgp.estimator.inputs import cycles_on, inputs_of
from pfedhgp.model.fitted import FittedModel

if TYPE_CHECKING:
    from pfedhgp.diagnosis.decision import Calibration, Diagnosis, Why
    from pfedhgp.diagnosis.proposals import Proposal
    from pfedhgp.diagnosis.run_classifier import RunClassifier


ENOUGH_RUNS = 3
"""A class that is added from fewer runs is warned of."""


class CycleMethods:
    """The methods of a fitted model for whole cycles."""

    model_: FittedModel

    def _fitted(self) -> FittedModel:
        raise NotImplementedError

    def adopt(self, client: str, X: Any, y: Any) -> Any:
        raise NotImplementedError

    def classify(
        self,
        cycles: Any,
        *,
        grid: Any,
        channels: Sequence[str] | None = None,
        classes: Sequence[str] | None = None,
        priors: Mapping[str, float] | None = None,
        calibration: Calibration | None = None,
    ) -> Diagnosis:
        """Which client each cycle (C, Q, n) on the grid of n samples is of, by predictive log-likelihood.

        Any grid will do; NaN is a missing sample. With `channels`, which outputs the cycles have, in their
        order: others count as missing. `priors` are class weights, by default equal. Temperature and
        thresholds of "none of these" are those that `train_diagnosis` left in the model, or `calibration`.
        """
        from pfedhgp.diagnosis import decision
        from pfedhgp.diagnosis.of_model import evidence_of

        X, Y = cycles_on(self._fitted(), cycles, grid, channels)
        known = calibration or self.calibration_
        found = evidence_of(self._fitted(), X, Y, classes, novelty=known.thresholds is not None)
        return decision.diagnose(found, priors=priors, calibration=known)

    def why(
        self,
        cycle: Any,
        *,
        grid: Any,
        chosen: str,
        other: str,
        channels: Sequence[str] | None = None,
    ) -> Why:
        """What of one cycle (Q, n) speaks for `chosen` rather than `other`, by channel and along the axis."""
        from pfedhgp.diagnosis.of_model import why_of
        from pfedhgp.model.words import axes_of

        model = self._fitted()
        X, Y = cycles_on(model, [cycle], grid, channels)
        found = why_of(model, (str(chosen), str(other)), X=X, cycle=Y[0])
        return replace(found, axis=axes_of(model)[0])

    @property
    def calibration_(self) -> Calibration:
        """Temperature and thresholds of the model; neutral where it was not trained for diagnosis."""
        from pfedhgp.diagnosis.decision import Calibration

        tree = self._fitted().settings.get("diagnosis")
        return Calibration() if tree is None else Calibration.from_json(tree["calibration"])

    def propose(
        self,
        cycles: Any,
        *,
        grid: Any,
        block: Sequence[object] | None = None,
        channels: Sequence[str] | None = None,
    ) -> tuple[Proposal, ...]:
        """Candidate new classes among those of the cycles (C, Q, n) that are "none of these".

        `block` gives the run of each cycle; those of a run stay together. Of no cycle flagged, there is no
        proposal. A proposal's `cycles` are positions in what was given: `add_class` takes them from there.
        """
        from pfedhgp.diagnosis.proposals import Flagged, propose

        classifier = self._classifier("propose")
        if classifier.calibration.thresholds is None:
            raise InputError(
                "`propose` groups cycles that are none of these, but this model has no thresholds and cannot "
                "tell them: train with more than a few runs, and with `thresholds`"
            )
        X, Y = cycles_on(self._fitted(), cycles, grid, channels)
        runs = None if block is None else runs_of(block, len(Y), "cycles")
        flagged = np.flatnonzero(self.classify(cycles, grid=grid, channels=channels).none)
        given = Flagged(
            grids=(X,) * len(flagged),
            cycles=tuple(Y[c] for c in flagged),
            runs=None if runs is None else tuple(runs[c] for c in flagged),
        )
        found = propose(classifier, given, self._fitted().output_names)
        return tuple(each.at(flagged.tolist()) for each in found)

    def add_class(
        self,
        name: str,
        cycles: Any,
        *,
        grid: Any = None,
        block: Sequence[object] | None = None,
        channels: Sequence[str] | None = None,
    ) -> Any:
        """Adds a class of cycles (C, Q, n) to a model trained for diagnosis, from sums over its runs.

        The other classes stay as they are, to the last bit, and so do the covariance, the candidates'
        weights, the temperatures and the thresholds: they know nothing of the new class. `grid` has places
        of the training grid, by default all of them. `block` gives the run of each cycle; without it every
        cycle is a run. The model also adopts the class as a client, for `predict` and the report.
        """
        from pfedhgp.diagnosis.added_class import added
        from pfedhgp.diagnosis.of_model import with_added

        classifier = self._classifier("add_class")
        model = self._fitted()
        from pfedhgp.diagnosis.decision import check_class_name

        label = checks.client_name(name, {})
        check_class_name(label)
        if label in classifier.classes:
            raise InputError(f"there is a class {label!r} already: choose another name")
        where = classifier.coordinates.grid
        X = where if grid is None else inputs_of(model, grid)
        plain = on_outputs(as_cycles(cycles, len(X)), channels, model.output_names)
        whole = on_training_grid(plain, X, where)
        runs = None if block is None else runs_of(block, len(whole), f"class {label!r}")
        _check_channels(whole, [model.output_names[q] for q in classifier.used], classifier.used)
        found = added(classifier, label, whole, runs)
        if label not in model.clients:
            self.adopt(label, where, whole)
        self.model_ = with_added(self._fitted(), found)
        _say(found.facts)
        return self

    def _classifier(self, what: str) -> RunClassifier:
        from pfedhgp.diagnosis.of_model import classifier_of

        found = classifier_of(self._fitted())
        if found is None:
            raise InputError(
                f"`{what}` needs a model that was trained for diagnosis: `train_diagnosis`, or "
                "`pfedhgp fit --diagnose`"
            )
        return found


def runs_of(block: Any, count: int, what: str) -> list[str]:
    """The run of each cycle, as text."""
    if isinstance(block, str | Mapping) or not hasattr(block, "__len__") or len(block) != count:
        raise InputError(f"`block` must give the run of each of the {count} cycles of {what}")
    return run_names(block, what)


def on_training_grid(cycles: np.ndarray, X: np.ndarray, grid: np.ndarray) -> np.ndarray:
    """Cycles (C, Q, n') at places X of the grid (n, d), on all of it; missing elsewhere."""
    if X.shape == grid.shape and np.array_equal(X, grid):
        return cycles
    place = {tuple(x): i for i, x in enumerate(grid.tolist())}
    strange = next((x for x in X.tolist() if tuple(x) not in place), None)
    if strange is not None:
        raise InputError(
            f"a new class must be on the training grid, but there is a sample at "
            f"{', '.join(f'{v:g}' for v in strange)}: interpolate the cycles first"
        )
    out = np.full((*cycles.shape[:2], len(grid)), np.nan)
    out[:, :, [place[tuple(x)] for x in X.tolist()]] = cycles
    return out


def _check_channels(cycles: np.ndarray, names: Sequence[str], used: Sequence[int]) -> None:
    """A new class has values in every channel that decides."""
    for name, q in zip(names, used, strict=True):
        if not np.isfinite(cycles[:, q]).any():
            raise InputError(
                f"no cycle has a value in channel {name!r}: a new class needs every channel that decides"
            )


def _say(facts: Mapping[str, Any]) -> None:
    """What the user should know about a class that was added."""
    runs = int(facts["runs"])
    if runs < ENOUGH_RUNS:
        warn(
            f"class {facts['name']!r} has {'one run' if runs == 1 else f'{runs} runs'}: what those runs have "
            "in common counts as the class's, so new runs may be called another class, surely and wrongly, "
            "and so may runs of other classes; add it again from more runs, or train with all cycles",
            stacklevel=4,
        )
    elif facts["strange"] is not None and facts["strange"] > 0.2 * facts["runs"]:
        warn(
            f"class {facts['name']!r} varies more than the classes of training: if left out of it, "
            f"{facts['strange']} of its {facts['runs']} runs are none of these; train again with all cycles",
            stacklevel=4,
        )

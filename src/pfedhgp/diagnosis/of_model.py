"""A fitted model as a classifier: by its classifier of runs if it was trained for diagnosis.

If not, or if an older version trained it, by the predictive distribution of each client.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from pfedhgp.diagnosis import decision, evidence
from pfedhgp.diagnosis.added_class import Added
from pfedhgp.diagnosis.gaussians_of_model import class_gaussian_of
from pfedhgp.diagnosis.reasons import why_of_runs
from pfedhgp.diagnosis.run_classifier import RunClassifier
from pfedhgp.errors import ModelFileError
from pfedhgp.model.fitted import FittedModel

FloatArray = npt.NDArray[np.float64]
KEY = "diagnosis"
_known: WeakKeyDictionary[FittedModel, RunClassifier] = WeakKeyDictionary()


def with_classifier(
    model: FittedModel, classifier: RunClassifier, facts: Mapping[str, Any]
) -> FittedModel:
    """The model with this classifier; `facts` go into its settings for the report."""
    settings = {**model.settings, KEY: {**facts, **classifier.to_json()}}
    return replace(model, settings=settings, diagnosis=classifier.to_arrays())


def with_added(model: FittedModel, found: Added) -> FittedModel:
    """The model with a classifier to which a class was added."""
    before = model.settings[KEY]
    facts = {**before, "added_classes": [*before.get("added_classes", ()), found.facts]}
    return with_classifier(model, found.classifier, facts)


def classifier_of(model: FittedModel) -> RunClassifier | None:
    """The model's classifier of runs, if it has one."""
    if not model.diagnosis:
        return None
    if model not in _known:
        try:
            _known[model] = RunClassifier.read(model.diagnosis, model.settings[KEY])
        except (KeyError, TypeError, ValueError) as error:
            text = " ".join(str(error).split())
            raise ModelFileError(f"the model's diagnosis cannot be read: {text}") from None
    return _known[model]


def evidence_of(
    model: FittedModel,
    X: FloatArray,
    cycles: FloatArray,
    classes: Sequence[str] | None = None,
    *,
    novelty: bool = False,
) -> evidence.Evidence:
    """The evidence of cycles (C, n, Q) on the grid X (n, d) under each class."""
    classifier = classifier_of(model)
    if classifier is None:
        return evidence.evidence(model, X, cycles, classes, novelty=novelty)
    return classifier.evidence(X, cycles, classes, novelty=novelty)


def why_of(
    model: FittedModel, names: tuple[str, str], *, X: FloatArray, cycle: FloatArray
) -> decision.Why:
    """What of one cycle (n, Q) speaks for the first class rather than the second."""
    classifier = classifier_of(model)
    if classifier is not None:
        return why_of_runs(classifier, names, X=X, channels=model.output_names, cycle=cycle)
    one, two = evidence.check_classes(model, names)
    gaussians = (class_gaussian_of(model, one, X), class_gaussian_of(model, two, X))
    return decision.why(gaussians, (one, two), grid=X, channels=model.output_names, cycle=cycle)

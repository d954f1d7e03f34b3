"""The rows of the diagnosis study: ours, ours with white cycles, the paper's, and other classifiers."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from pfedhgp.data.cycle_files import CycleSet
from pfedhgp.diagnosis.candidates import Judged
from pfedhgp.diagnosis.decision import FALSE_ALARMS, Diagnosis, scores
from pfedhgp.diagnosis.files import close_calls
from pfedhgp.diagnosis.of_model import KEY
from pfedhgp.estimator import FederatedGP
from pfedhgp.estimator.diagnosis_training import train_diagnosis
from pfedhgp.gp.kernels import RBF, Kernel
from pfedhgp.inference.meanfield.training import MeanField, MeanFieldClients, MeanFieldServer
from pfedhgp.inference.structured.settings import Structured
from pfedhgp.model.blocks import ClientBlock, GlobalBlock, Rows
from pfedhgp.model.spec import Spec
from pfedhgp.studies.tonnage.baselines import BASELINES, LABELS_ONLY, thinned

FloatArray = npt.NDArray[np.float64]
OURS, WHITE, PAPER = "pfedhgp", "pfedhgp-white", "paper"
MODELS = (OURS, WHITE, PAPER, *BASELINES)
LONG = 200
"""Cycles with more samples are long: they get the paper's inducing inputs and few evaluations."""
STRETCHES = 60
NOT_JUDGED = "not judged: too few runs"
PAPER_VARIANCES = (1.0, 0.5)
"""Where the paper's global and local layers start."""


def settings_of(data: CycleSet) -> dict[str, Any]:
    """Our settings, which depend only on the shape of the cycles.

    They are of the federated model of the class means. Long cycles get the paper's M = 81 and M_i = 41, and
    short ones are resolved at every sample.
    """
    _, Q, n = data.cycles.shape
    found: dict[str, Any] = {"averaging": False, "rounds": 2}
    if n > LONG:
        # Kernels are held in the first rounds, and a fault is a short stretch: start where the inducing
        # inputs can just carry it (spacing 0.6 and 0.7 lengthscales), not at the pulse's own scale.
        extent = float(data.grid.max() - data.grid.min())
        return {
            **found,
            "kernel": RBF(extent / 48.0),
            "local_kernel": RBF(extent / 27.0),
            "inducing": 81,
            "local_inducing": 41,
            "inference": Structured(first_evaluations=12, evaluations=12),
        }
    return {
        **found,
        "inducing": min(24, n),
        "local_inducing": min(60 if Q <= 4 else 30, n),
        "latents": min(Q, 2 if Q <= 4 else 4),
        "local_latents": min(Q, 8),
        "local_kernel": "matern32",
    }


def run_model(
    model: str,
    data: CycleSet,
    train: npt.NDArray[np.bool_],
    seed: int,
    *,
    paper_rounds: int = 10,
    explain: bool = False,
) -> dict[str, Any]:
    """Metrics of one row on one split, and what it chose; `explain` adds the reasons for its closest call."""
    assert data.label is not None
    began = time.perf_counter()
    seen, new = data.take(train), data.take(~train)
    extra: dict[str, Any] = {}
    if model in BASELINES:
        labels = np.asarray(seen.label)
        classes = tuple(np.unique(labels).tolist())
        probability = BASELINES[model](thinned(seen.cycles), labels, thinned(new.cycles))
    else:
        if model == PAPER:
            fitted, new = as_the_paper(seen, rounds=paper_rounds), new.concatenated()
        elif model == WHITE:
            fitted = FederatedGP(seed=seed, cycles="white", **settings_of(seen)).fit(
                seen.by_class()
            )
        else:
            fitted = ours(seen, seed)
            chosen = fitted.model_.settings[KEY]
            extra = {"chosen": chosen_in_words(chosen), "judged": judged_in_short(chosen)}
        trained = time.perf_counter()
        found = fitted.classify(new.cycles, grid=new.grid)
        extra["seconds_to_classify"] = time.perf_counter() - trained
        classes, probability = found.classes, found.probability
        if explain:
            extra["why"] = closest_call(fitted, new, found)
    assert new.label is not None
    metrics = scores(classes, new.label, probability)
    by_class, confusion = metrics.pop("f1"), metrics.pop("confusion")
    if model in LABELS_ONLY:
        del metrics["log_loss"], metrics["ece"]
    metrics |= {"f1": float(np.mean(list(by_class.values())))}
    metrics |= {"seconds": time.perf_counter() - began}
    return {
        "metrics": metrics,
        "classes": list(classes),
        "f1": by_class,
        "confusion": confusion,
        "training": int(train.sum()),
        "test": int((~train).sum()),
        **extra,
    }


def closest_call(model: FederatedGP, new: CycleSet, found: Diagnosis) -> dict[str, Any]:
    """The cycle whose two best classes are closest, and what decided between them.

    It holds log-likelihood differences over at most `STRETCHES` stretches per channel, and no samples.
    """
    (cycle,) = close_calls(found, 1)
    one, two = (found.classes[k] for k in np.argsort(-found.log_density[cycle])[:2])
    reason = model.why(new.cycles[cycle], grid=new.grid, chosen=one, other=two)
    assert new.label is not None
    return {**reason.condensed(STRETCHES), "truth": new.label[cycle]}


def chosen_in_words(choice: Mapping[str, Any]) -> str:
    """The candidate that weighs most, with a remark if runs were too few to judge it."""
    best = Judged.from_json(choice["candidates"][0])
    return (
        f"{best.candidate} ({best.weight:.0%})"
        if choice["judged"]
        else f"{best.candidate} ({NOT_JUDGED})"
    )


def judged_in_short(choice: Mapping[str, Any]) -> dict[str, Any]:
    """What held-out training runs said about the model and about LDA."""
    return {name: choice[name] for name in ("runs", "held_out", "lda")}


def ours(
    seen: CycleSet,
    seed: int,
    *,
    false_alarms: float = FALSE_ALARMS,
) -> FederatedGP:
    """Our model with default settings, trained on these cycles."""
    assert seen.label is not None
    labels = np.asarray(seen.label)
    block = None
    if seen.block is not None:
        owner = np.asarray(seen.block)
        block = {name: owner[labels == name].tolist() for name in dict.fromkeys(seen.label)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return train_diagnosis(
            seen.by_class(),
            block=block,
            inputs=["sample"],
            outputs=list(seen.channels),
            false_alarms=false_alarms,
            seed=seed,
            **settings_of(seen),
        )


@dataclass(frozen=True)
class PaperStart(MeanField):
    """`mean-field` from the paper's variances, 1 and .5, in units of the outputs' own variance.

    The paper does not name the units. In raw units 1,000 steps of 0.1 could not reach a pulse of 150.
    """

    def server(self, spec: Spec, block: GlobalBlock) -> MeanFieldServer:
        start = eqx.tree_at(lambda b: b.loadings, block, _like(block.loadings, PAPER_VARIANCES[0]))
        return super().server(spec, start)

    def clients(
        self, spec: Spec, like: Kernel, blocks: ClientBlock, rows: Rows
    ) -> MeanFieldClients:
        start = eqx.tree_at(
            lambda b: b.loadings, blocks, _like(blocks.loadings, PAPER_VARIANCES[1])
        )
        return super().clients(spec, like, start, rows)


def _like(loadings: jax.Array, variance: float) -> jax.Array:
    return jnp.full_like(loadings, np.sqrt(variance))


def as_the_paper(seen: CycleSet, *, rounds: int = 10) -> FederatedGP:
    """The paper's configuration: channels on one axis, Algorithm 1, white residuals.

    M = 81, M_i = 41, lengthscales 50 and 10, variances 1 and .5, 10 rounds of 100 local steps at 0.1.
    """
    flat = seen.concatenated()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return FederatedGP(
            kernel=RBF(50.0),
            local_kernel=RBF(10.0),
            inducing=min(81, len(flat.grid)),
            local_inducing=min(41, len(flat.grid)),
            # One chunk: cutting 4,804 samples in two pads them to 8,192, and computes features twice.
            inference=PaperStart(rounds=rounds, local_steps=100, chunk=max(len(flat.grid), 1)),
        ).fit(flat.by_class())

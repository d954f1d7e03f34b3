"""Chooses the cycle layer that tells classes apart best, by the class evidence of held-out training blocks.

The evidence of cycles around their own mean (`choose_form`) measures how cycles vary, not what tells classes
apart: a form can be far more probable and classify worse. So each candidate is judged by the log-loss of
held-out blocks, at its best temperature. For this choice a class's mean function is simply the mean of its
cycles, with uncertainty Σ_e/C: nothing is trained, and it takes seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from pfedhgp.base.choices import FORMS, SHARINGS
from pfedhgp.base.numerics import with_numerics
from pfedhgp.diagnosis.class_gaussian import ClassGaussian
from pfedhgp.diagnosis.decision import Calibration, calibrate, margin, numbered
from pfedhgp.diagnosis.evidence import Evidence, concatenated, evidence_under
from pfedhgp.errors import InputError, warn
from pfedhgp.inference.cycles.forms import MARGIN, Halves, estimate, mixed
from pfedhgp.inference.cycles.scatter import halves_of
from pfedhgp.model.cycle_layer import CycleBasis, CycleLayer

FloatArray = npt.NDArray[np.float64]
NOISE = "output"
"""White noise of each output's own."""
FINE = 3
"""With more samples per basis function than this, a grid is far finer than the basis."""
MISSED = 0.05
"""Share of unknown cycles that may go unnoticed: the margin is what the others reach."""
AS_WIDE = 0.9
"""Candidates with at least this share of the widest margin flag unknown cycles equally well."""
SIMPLER = 0.01
"""Candidates within this log-loss (nats per held-out cycle) tell classes apart equally well."""


@dataclass(frozen=True)
class Candidate:
    """A form of the cycle layer, and which classes share it."""

    form: str
    sharing: str = "shared"

    def __post_init__(self) -> None:
        if self.form not in FORMS or self.sharing not in SHARINGS:
            raise InputError(f"no cycle layer {self.form!r}, {self.sharing!r}")

    def __str__(self) -> str:
        return f"{self.form}, {self.sharing}"

    @property
    def settings(self) -> dict[str, str]:
        """The settings of `FederatedGP`, in which plain white cycles have a noise of each client's own."""
        if self.form == "white":
            return {"cycles": "white-shared" if self.sharing == "shared" else "white"}
        return {"cycles": self.form, "cycle_sharing": self.sharing}


SHARED_LAYERS = tuple(Candidate(form) for form in FORMS)
"""One layer for all classes: all that few or long cycles can determine."""
ALL_LAYERS = tuple(
    Candidate(form, sharing)
    for form in FORMS
    for sharing in SHARINGS
    if (form, sharing) != ("white", "mixed")
)
"""Also layers of a class's own. Replicates have their client's own noise or all the same, never mixed."""
LEAST = 4
"""Complete cycles that a choice needs of each class."""
SHORT, MANY = 200, 20
"""A class tries layers of its own if cycles have at most SHORT samples and it has MANY complete ones."""


def complete(cycles: FloatArray) -> npt.NDArray[np.bool_]:
    """Which of the cycles (C, ., .) have no missing samples."""
    return np.asarray(np.isfinite(cycles).all(axis=(1, 2)))


def candidates_for(cycles: Mapping[str, FloatArray], samples: int) -> tuple[Candidate, ...]:
    """Every form and sharing if cycles are short and each class has many; if not, one layer for all.

    A class's own covariance needs many cycles of the class; with long cycles it takes minutes per class.
    """
    many = all(complete(Y).sum() >= MANY for Y in cycles.values())
    return ALL_LAYERS if many and samples <= SHORT else SHARED_LAYERS


def folds_of(
    labels: Sequence[str], blocks: Sequence[object] | None, *, folds: int, seed: int
) -> npt.NDArray[np.int64]:
    """The fold of each cycle: the blocks of each class are dealt out in random order, each as a whole.

    Without blocks a class is cut into contiguous stretches. So is a class with only one block, with a
    warning, because its held-out cycles then come from the block that was trained on.
    """
    if folds < 2:
        raise InputError(f"`folds` must be at least 2, got {folds}")
    names = np.asarray([str(label) for label in labels])
    rng = np.random.default_rng(seed)
    found = np.zeros(len(names), np.int64)
    for name in dict.fromkeys(names.tolist()):
        mine = np.flatnonzero(names == name)
        if len(mine) < folds:
            raise InputError(
                f"class {name!r} has {len(mine)} cycles: {folds} folds need at least {folds}"
            )
        own = [str(blocks[int(c)]) for c in mine] if blocks is not None else []
        different = list(dict.fromkeys(own))
        if len(different) == 1:
            warn(
                f"class {name!r} has only one block: it is cut into stretches, so its held-out cycles come "
                "from the block that was trained on"
            )
        if len(different) < 2:
            found[mine] = np.arange(len(mine)) * folds // len(mine)
            continue
        order = rng.permutation(len(different))
        place = {different[b]: i % folds for i, b in enumerate(order)}
        found[mine] = [place[block] for block in own]
    return found


@with_numerics
def choose(
    grid: FloatArray,
    cycles: Mapping[str, FloatArray],
    folds: Mapping[str, npt.NDArray[np.int64]],
    basis: CycleBasis,
    *,
    candidates: Sequence[Candidate] = SHARED_LAYERS,
    false_alarms: float | None = None,
) -> tuple[Candidate, dict[str, Calibration]]:
    """The best candidate, and the score of each.

    Among those within `SIMPLER` of the best held-out log-loss it is the simplest within `MARGIN` nats of the
    best density of held-out cycles under their own class. With few cycles several candidates make no
    mistake at all, and the log-loss cannot say which of them describes cycles best.

    With `false_alarms` (the rate of "none of these"), candidates that tell known classes apart equally well
    are first compared on unknown cycles: each class in turn is left out, and the `margin` by which its cycles
    pass the thresholds decides, for the class where it is smallest.

    `cycles` has each class's (C, n, Q) in scaled units on the grid (n, d) in the unit box; `candidates` are
    sorted by simplicity. Only complete cycles count.
    """
    usable = {name: complete(Y) for name, Y in cycles.items()}
    for name, there in usable.items():
        if there.sum() < LEAST:
            raise InputError(
                f"class {name!r} has {there.sum()} complete cycles, but choosing the cycle layer needs "
                f"{LEAST}: give one candidate instead"
            )
    whole = {name: cycles[name][there] for name, there in usable.items()}
    where = {name: folds[name][there] for name, there in usable.items()}
    truth: list[str] = []
    found: dict[str, list[Evidence]] = {str(each): [] for each in candidates}
    for fold in sorted(set(np.concatenate(list(where.values())).tolist())):
        seen = {name: Y[where[name] != fold] for name, Y in whole.items()}
        new = [Y[where[name] == fold] for name, Y in whole.items()]
        truth += [name for name, Y in zip(whole, new, strict=True) for _ in Y]
        fits = _Fits(grid, seen, basis)
        for each in candidates:
            gaussians = fits.gaussians(each)
            found[str(each)].append(evidence_under(tuple(seen), gaussians, np.concatenate(new)))
    scores = {name: calibrate(concatenated(parts), truth) for name, parts in found.items()}
    losses = {each: scores[str(each)].log_loss or 0.0 for each in candidates}
    enough = min(losses.values()) + SIMPLER
    level = [each for each in candidates if losses[each] <= enough]
    if false_alarms is not None and len(level) > 1:
        margins = _margins(grid, whole, where, basis, level, false_alarms)
        scores |= {str(each): replace(scores[str(each)], margin=margins[each]) for each in level}
        widest = max(margins.values())
        level = [each for each in level if margins[each] >= AS_WIDE * widest]
    density = {each: own_density(concatenated(found[str(each)]), truth) for each in level}
    best = max(density.values()) - MARGIN
    return next(each for each in level if density[each] >= best), scores


def _margins(
    grid: FloatArray,
    cycles: Mapping[str, FloatArray],
    folds: Mapping[str, npt.NDArray[np.int64]],
    basis: CycleBasis,
    candidates: Sequence[Candidate],
    false_alarms: float,
) -> dict[Candidate, float]:
    """The smallest `margin` over the classes, each left out in turn."""
    found: dict[Candidate, list[float]] = {each: [] for each in candidates}
    for stranger in cycles:
        known = {name: Y for name, Y in cycles.items() if name != stranger}
        held: dict[Candidate, list[Evidence]] = {each: [] for each in candidates}
        strange: dict[Candidate, list[Evidence]] = {each: [] for each in candidates}
        truth: list[str] = []
        for fold in sorted(set(np.concatenate([folds[name] for name in known]).tolist())):
            seen = {name: Y[folds[name] != fold] for name, Y in known.items()}
            new = {name: Y[folds[name] == fold] for name, Y in known.items()}
            truth += [name for name, Y in new.items() for _ in Y]
            fits = _Fits(grid, seen, basis)
            for each in candidates:
                gaussians = fits.gaussians(each)
                fresh = np.concatenate(list(new.values()))
                held[each].append(evidence_under(tuple(seen), gaussians, fresh, novelty=True))
                own = cycles[stranger][folds[stranger] == fold]
                if len(own):
                    strange[each].append(evidence_under(tuple(seen), gaussians, own, novelty=True))
        for each in candidates:
            limits = calibrate(concatenated(held[each]), truth, false_alarms=false_alarms)
            found[each].append(margin(concatenated(strange[each]), limits, share=MISSED))
    return {each: min(values) for each, values in found.items()}


def own_density(found: Evidence, truth: Sequence[str]) -> float:
    """Σ ℓ of held-out cycles under their own class."""
    place = numbered(found.classes, truth)
    return float(np.sum(found.log_density[np.arange(len(place)), place]))


class _Fits:
    """The layers of one set of cycles; sums are computed once, and shared layers once per form."""

    def __init__(
        self, grid: FloatArray, cycles: Mapping[str, FloatArray], basis: CycleBasis
    ) -> None:
        self.grid, self.cycles, self.basis = grid, cycles, basis
        self.halves: dict[str, Halves] = {
            name: halves_of(grid, Y, basis) for name, Y in cycles.items()
        }
        first, rest = zip(*self.halves.values(), strict=True)
        self.total: Halves = (sum(first[1:], first[0]), sum(rest[1:], rest[0]))
        self.known: dict[str, CycleLayer] = {}

    def shared(self, form: str) -> CycleLayer:
        if form not in self.known:
            self.known[form] = estimate(self.total, self.basis, form=form, noise=NOISE)
        return self.known[form]

    def gaussians(self, candidate: Candidate) -> list[ClassGaussian]:
        """The predictive distribution of each class."""
        layers = self.layers(candidate)
        return [gaussian_of_cycles(self.grid, self.cycles[n], each) for n, each in layers.items()]

    def layers(self, candidate: Candidate) -> dict[str, CycleLayer]:
        form = candidate.form
        if candidate.sharing == "shared":
            return dict.fromkeys(self.halves, self.shared(form))
        if candidate.sharing == "client":
            return {
                n: estimate(h, self.basis, form=form, noise=NOISE) for n, h in self.halves.items()
            }
        shared = self.shared(form)
        return {n: mixed(h, shared, form=form, noise=NOISE)[0] for n, h in self.halves.items()}


def gaussian_of_cycles(grid: FloatArray, cycles: FloatArray, layer: CycleLayer) -> ClassGaussian:
    """N(ȳ, (1 + 1/C) Σ_e): a new cycle if only C cycles of the class are known.

    On a grid far finer than the basis the mean is projected on the basis, and is uncertain only there. Else
    each of thousands of samples would cost a class with few cycles ½ log(1 + 1/C), and it would never win.
    """
    C, mean = len(cycles), cycles.mean(axis=0)
    A, Q = layer.basis.features(grid), layer.outputs
    fine = len(grid) > FINE * len(A)
    span = np.linalg.qr(A.T)[0] if fine else None
    inside = A.T if span is None else span.T @ A.T
    F = np.sqrt(1.0 + 1.0 / C) * layer.factor.reshape(Q, len(A), layer.factor.shape[1])
    smooth = np.einsum("am,qmk->aqk", inside, F, optimize=True)
    smooth = smooth.reshape(len(inside) * Q, F.shape[2])
    if span is None:
        return ClassGaussian(mean, smooth, (1.0 + 1.0 / C) * layer.noise)
    own = np.kron(np.eye(len(inside)), np.linalg.cholesky(layer.noise / C))
    core = np.concatenate([smooth, own], axis=1)
    return ClassGaussian(span @ (span.T @ mean), core, layer.noise, span)

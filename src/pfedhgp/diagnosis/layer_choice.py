"""Which cycle layer tells classes apart: chosen by the class evidence of held-out blocks in training.

The evidence of cycles around their own mean (`choose_form`) is about how cycles vary, not about what tells
classes apart: a form can be far more probable and classify worse. So each candidate is judged by the log-loss
of held-out blocks, at the temperature that suits it best. For the choice alone a class's mean function is the
plain mean of its cycles, with the uncertainty Σ_e/C of a mean: nothing is trained, and it takes seconds.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from pfedhgp.base.numerics import with_numerics
from pfedhgp.diagnosis.decision import Calibration, calibrate, margin, numbered
from pfedhgp.diagnosis.evidence import Evidence, Law, of_laws, stacked
from pfedhgp.errors import InputError, PFedHGPWarning
from pfedhgp.inference.cycles.forms import MARGIN, Halves, estimate, mixed
from pfedhgp.inference.cycles.scatter import halves_of
from pfedhgp.model.cycle_layer import FORMS, SHARINGS, CycleBasis, CycleLayer

FloatArray = npt.NDArray[np.float64]
FINE = 3
"""Samples a basis function beyond which a grid is far finer than the basis."""
MISSED = 0.05
"""Of strangers that may go unnoticed: the margin is what the others reach."""
AS_WIDE = 0.9
"""Of the widest margin: candidates from there on flag strangers equally well."""
SIMPLER = 0.01
"""Nats of log-loss a held-out cycle within which candidates tell classes apart equally well."""


@dataclass(frozen=True)
class Candidate:
    """A form of the cycle layer, and who shares it."""

    form: str
    sharing: str = "shared"

    def __post_init__(self) -> None:
        if self.form not in FORMS or self.sharing not in SHARINGS:
            raise InputError(f"no cycle layer {self.form!r}, {self.sharing!r}")

    def __str__(self) -> str:
        return f"{self.form}, {self.sharing}"

    @property
    def settings(self) -> dict[str, str]:
        """Of `FederatedGP`, where plain white cycles have a noise of each client's own."""
        if self.form == "white":
            return {"cycles": "white-shared" if self.sharing == "shared" else "white"}
        return {"cycles": self.form, "cycle_sharing": self.sharing}


USUAL = tuple(Candidate(form) for form in FORMS)
"""One layer for all classes: what few or long cycles can say."""
EVERY = tuple(
    Candidate(form, sharing)
    for form in FORMS
    for sharing in SHARINGS
    if (form, sharing)
    != ("white", "mixed")  # replicates have their client's own noise, or all the same
)
LEAST = 4
"""Complete cycles of each class that a choice needs."""
SHORT, MANY = 200, 20
"""Samples up to which, and complete cycles of each class from which on, layers of a class's own take part."""


def complete(cycles: FloatArray) -> npt.NDArray[np.bool_]:
    """Which of the cycles (C, ., .) lack nothing."""
    return np.asarray(np.isfinite(cycles).all(axis=(1, 2)))


def candidates_for(cycles: Mapping[str, FloatArray], samples: int) -> tuple[Candidate, ...]:
    """Every form and sharing where cycles are short and each class has many; else one layer for all.

    A class's own covariance needs cycles of its own; of long cycles it costs minutes a class.
    """
    many = all(complete(Y).sum() >= MANY for Y in cycles.values())
    return EVERY if many and samples <= SHORT else USUAL


def folds_of(
    labels: Sequence[str], blocks: Sequence[object] | None, *, folds: int, seed: int
) -> npt.NDArray[np.int64]:
    """The fold of each cycle: whole blocks of each class are dealt out in turn, in random order.

    Without blocks a class is cut into contiguous stretches instead; so is a class that has only one block,
    with a warning, for its held-out cycles are then of the block that was trained on.
    """
    if folds < 2:
        raise InputError(f"`folds` must be at least 2, got {folds}")
    names = np.asarray([str(label) for label in labels])
    rng = np.random.default_rng(seed)
    found = np.zeros(len(names), np.int64)
    for name in dict.fromkeys(names.tolist()):
        mine = np.flatnonzero(names == name)
        if len(mine) < folds:
            raise InputError(f"class {name!r} has {len(mine)} cycles: {folds} folds need as many")
        own = [str(blocks[int(c)]) for c in mine] if blocks is not None else []
        different = list(dict.fromkeys(own))
        if len(different) == 1:
            warnings.warn(
                f"class {name!r} has one block: it is cut into stretches, and held-out cycles of it are of "
                "the block that was trained on",
                PFedHGPWarning,
                stacklevel=2,
            )
        if len(different) < 2:
            found[mine] = np.arange(len(mine)) * folds // len(mine)
            continue
        order = rng.permutation(len(different))
        place = {different[b]: turn % folds for turn, b in enumerate(order)}
        found[mine] = [place[block] for block in own]
    return found


@with_numerics
def choose(
    grid: FloatArray,
    cycles: Mapping[str, FloatArray],
    folds: Mapping[str, npt.NDArray[np.int64]],
    basis: CycleBasis,
    *,
    candidates: Sequence[Candidate] = USUAL,
    noise: str = "output",
    false_alarms: float | None = None,
) -> tuple[Candidate, dict[str, Calibration]]:
    """(the candidate, what each one scored).

    Of those within `SIMPLER` of the best held-out log-loss, the simplest within `MARGIN` nats of the best
    density of held-out cycles under their own class. With few cycles several candidates make no mistake
    at all, and the log-loss then does not say which of them describes cycles best.

    Where "none of these" is wanted, at a rate of `false_alarms`, candidates that tell known classes apart
    equally well are first judged by strangers: each class in turn is left out, and how far its cycles are
    beyond the thresholds (`margin`), for the class that fares worst, decides.

    `cycles` has each class's (C, n, Q) in scaled units on the grid (n, d) in the unit box; `candidates` come
    in order of simplicity. Only complete cycles take part.
    """
    usable = {name: complete(Y) for name, Y in cycles.items()}
    for name, there in usable.items():
        if there.sum() < LEAST:
            raise InputError(
                f"class {name!r} has {there.sum()} complete cycles, a choice of the cycle layer needs "
                f"{LEAST}: name the layer instead"
            )
    whole = {name: cycles[name][there] for name, there in usable.items()}
    where = {name: folds[name][there] for name, there in usable.items()}
    truth: list[str] = []
    found: dict[str, list[Evidence]] = {str(each): [] for each in candidates}
    for fold in sorted(set(np.concatenate(list(where.values())).tolist())):
        seen = {name: Y[where[name] != fold] for name, Y in whole.items()}
        new = [Y[where[name] == fold] for name, Y in whole.items()]
        truth += [name for name, Y in zip(whole, new, strict=True) for _ in Y]
        fits = _Fits(grid, seen, basis, noise)
        for each in candidates:
            laws = [plain_law(grid, seen[name], layer) for name, layer in fits.layers(each).items()]
            found[str(each)].append(of_laws(tuple(seen), laws, np.concatenate(new)))
    scores = {name: calibrate(stacked(parts), truth) for name, parts in found.items()}
    losses = {each: scores[str(each)].log_loss or 0.0 for each in candidates}
    enough = min(losses.values()) + SIMPLER
    level = [each for each in candidates if losses[each] <= enough]
    if false_alarms is not None and len(level) > 1:
        margins = _margins(grid, whole, where, basis, level, noise=noise, false_alarms=false_alarms)
        scores |= {str(each): replace(scores[str(each)], margin=margins[each]) for each in level}
        widest = max(margins.values())
        level = [each for each in level if margins[each] >= AS_WIDE * widest]
    density = {each: own_density(stacked(found[str(each)]), truth) for each in level}
    best = max(density.values()) - MARGIN
    return next(each for each in level if density[each] >= best), scores


def _margins(
    grid: FloatArray,
    cycles: Mapping[str, FloatArray],
    folds: Mapping[str, npt.NDArray[np.int64]],
    basis: CycleBasis,
    candidates: Sequence[Candidate],
    *,
    noise: str,
    false_alarms: float,
) -> dict[Candidate, float]:
    """The smallest `margin` over the classes, each left out of everything in turn."""
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
            fits = _Fits(grid, seen, basis, noise)
            for each in candidates:
                laws = [plain_law(grid, seen[n], layer) for n, layer in fits.layers(each).items()]
                fresh = np.concatenate(list(new.values()))
                held[each].append(of_laws(tuple(seen), laws, fresh, novelty=True))
                own = cycles[stranger][folds[stranger] == fold]
                if len(own):
                    strange[each].append(of_laws(tuple(seen), laws, own, novelty=True))
        for each in candidates:
            limits = calibrate(stacked(held[each]), truth, false_alarms=false_alarms)
            found[each].append(margin(stacked(strange[each]), limits, share=MISSED))
    return {each: min(values) for each, values in found.items()}


def own_density(found: Evidence, truth: Sequence[str]) -> float:
    """Σ ℓ of held-out cycles under their own class: what is left to tell candidates apart by."""
    place = numbered(found.classes, truth)
    return float(np.sum(found.log_density[np.arange(len(place)), place]))


class _Fits:
    """Layers of one set of cycles; sums are made once, and shared layers once a form."""

    def __init__(
        self, grid: FloatArray, cycles: Mapping[str, FloatArray], basis: CycleBasis, noise: str
    ) -> None:
        self.basis, self.noise = basis, noise
        self.halves: dict[str, Halves] = {
            name: halves_of(grid, Y, basis) for name, Y in cycles.items()
        }
        first, rest = zip(*self.halves.values(), strict=True)
        self.total: Halves = (sum(first[1:], first[0]), sum(rest[1:], rest[0]))
        self.known: dict[str, CycleLayer] = {}

    def shared(self, form: str) -> CycleLayer:
        if form not in self.known:
            self.known[form] = estimate(self.total, self.basis, form=form, noise=self.noise)
        return self.known[form]

    def layers(self, candidate: Candidate) -> dict[str, CycleLayer]:
        form, noise = candidate.form, self.noise
        if candidate.sharing == "shared":
            return dict.fromkeys(self.halves, self.shared(form))
        if candidate.sharing == "client":
            return {
                n: estimate(h, self.basis, form=form, noise=noise) for n, h in self.halves.items()
            }
        shared = self.shared(form)
        return {n: mixed(h, shared, form=form, noise=noise)[0] for n, h in self.halves.items()}


def plain_law(grid: FloatArray, cycles: FloatArray, layer: CycleLayer) -> Law:
    """N(ȳ, (1 + 1/C) Σ_e): a new cycle when nothing is known of the mean but C cycles.

    On a grid far finer than the basis the mean is taken on the basis, and only there it is uncertain. Else
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
        return Law(mean, smooth, (1.0 + 1.0 / C) * layer.noise)
    own = np.kron(np.eye(len(inside)), np.linalg.cholesky(layer.noise / C))
    core = np.concatenate([smooth, own], axis=1)
    return Law(span @ (span.T @ mean), core, layer.noise, span)

"""A site of a federated diagnosis: answers each request with sums over its own runs. No cycle leaves it.

Requests say all that is needed (grid, scales, folds), but for one thing: what the models without its runs
say about them (`Held`) is kept from one request to the next. A site that was away then has nothing to add.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace

import numpy as np
import numpy.typing as npt

from pfedhgp.base.numerics import one_blas_thread
from pfedhgp.diagnosis import beside
from pfedhgp.diagnosis.candidates import (
    Candidate,
    log_posterior,
    losses,
    metrics,
    probabilities,
)
from pfedhgp.diagnosis.coordinates import Coordinates
from pfedhgp.diagnosis.decision import less_certain
from pfedhgp.diagnosis.federated import messages as sent
from pfedhgp.diagnosis.federated.folds import BINS, bins_of_runs, run_keys
from pfedhgp.diagnosis.federated.tails import COARSE, FINE
from pfedhgp.diagnosis.federated.terms import SiteCycles, Terms
from pfedhgp.diagnosis.filling import guessed_from
from pfedhgp.diagnosis.held_out_runs import Cycles, Held, write_fold
from pfedhgp.diagnosis.run_layers import TARGETS, Layers
from pfedhgp.diagnosis.run_sums import RunSums
from pfedhgp.diagnosis.strangers import ratios, ratios_of_runs
from pfedhgp.diagnosis.thresholds import largest_of_runs
from pfedhgp.diagnosis.training import PRIOR
from pfedhgp.errors import MessageError
from pfedhgp.inference.messages import pack, unpack

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
Arrays = Mapping[str, np.ndarray]
Reply = dict[str, np.ndarray]


class Party:
    """One site."""

    def __init__(self, terms: Terms, own: SiteCycles) -> None:
        self.terms, self.own = terms, own
        self.data: Cycles | None = None
        self.held: dict[Candidate, Held] = {}
        self._bins: dict[bool, IntArray] = {}

    # ------------------------------------------------------------------------- before the folds

    def runs(self, a: Arrays) -> Reply:
        """How many runs and cycles of each class."""
        alone, own = bool(a["alone"]), self.own
        K = len(self.terms.classes)
        counts = np.zeros((K, BINS))
        keys = run_keys(own.labels, self._names(alone))
        first = np.unique(keys, return_index=True)[1]
        np.add.at(counts, (own.labels[first], self.bins(alone)[first]), 1.0)
        return {
            "samples": np.asarray(float(len(own.grid))),
            "runs": counts,
            "cycles": np.bincount(own.labels, minlength=K).astype(np.float64),
        }

    def curves(self, a: Arrays) -> Reply:
        """Sums of the values at each sample."""
        Y, K = self.own.cycles, len(self.terms.classes)
        seen = np.isfinite(Y)
        total = np.zeros((2, K, *Y.shape[1:]))
        np.add.at(total[0], self.own.labels, seen.astype(np.float64))
        np.add.at(total[1], self.own.labels, np.where(seen, Y, 0.0))
        return {"grid": self.own.grid, "seen": total[0], "total": total[1]}

    def spread(self, a: Arrays) -> Reply:
        """How far values are from the class's mean, and how alike neighbouring cycles are."""
        Y, labels = self.own.cycles, self.own.labels
        seen = np.isfinite(Y)
        gaps = np.where(seen, Y - a["curves"][labels], 0.0)
        neighbours, alike, pairs = np.zeros(Y.shape[1]), np.zeros(Y.shape[1]), 0
        for k in np.unique(labels):
            mine = gaps[labels == k]
            mine = mine - mine.mean(axis=0)
            neighbours += np.sum(mine[1:] * mine[:-1], axis=(0, 2))
            alike += np.sum(mine**2, axis=(0, 2)) * (len(mine) - 1) / len(mine)
            pairs += len(mine) - 1
        return {
            "gaps": np.sum(gaps**2, axis=(0, 2)),
            "squares": np.sum(np.where(seen, Y, 0.0) ** 2, axis=(0, 2)),
            "neighbours": neighbours,
            "alike": alike,
            "pairs": np.asarray(float(pairs)),
        }

    def bins(self, alone: bool) -> IntArray:
        """The bin of each cycle's run."""
        if alone not in self._bins:
            own, seed = self.own, self.terms.seed
            self._bins[alone] = bins_of_runs(own.cycles, self._names(alone), own.labels, seed)
        return self._bins[alone]

    def _names(self, alone: bool) -> Sequence[str]:
        runs = self.own.runs
        return [str(c) for c in range(len(self.own.labels))] if alone or runs is None else runs

    # ------------------------------------------------------------------------------- the folds

    def place(self, a: Arrays) -> Cycles:
        """This site's cycles in the agreed coordinates, with their folds.

        A sample that is missing is what the means of class, run and cycle say.
        """
        used, own, alone = a["used"] > 0, self.own, bool(a["alone"])
        if own.grid.shape != a["grid"].shape or not np.array_equal(own.grid, a["grid"]):
            raise MessageError("the grid is another than this site's")
        space = space_of(a)
        Y, names = own.cycles[:, used], self._names(alone)
        complete = np.isfinite(Y).all(axis=(1, 2))
        if not complete.all():
            number = np.unique(run_keys(own.labels, names), return_inverse=True)[1].reshape(-1)
            Y = guessed_from(a["curves"][own.labels][:, used], Y, (number,), own.grid)
        found = space.of(Y)
        outside = space.outside(Y, found)
        if complete.any():
            outside[~complete] = outside[complete].mean(axis=0)
        folds = a["fold"][own.labels, self.bins(alone)].astype(np.int64)
        K = len(self.terms.classes)
        return Cycles(
            found,
            outside,
            own.labels,
            tuple(names),
            folds,
            K,
            space.channels,
            own=bool(a["own"]),
        )

    def sums(self, a: Arrays) -> Reply:
        """Sums over the runs of each fold."""
        data = self.place(a)
        return packed([data.sums(data.folds == fold) for fold in a["folds"]])

    # ------------------------------------------------------------------------ after the judgement

    def average(self, a: Arrays) -> Reply:
        """How the averaged classifier does on the held-out runs, and how surprising these are."""
        K, found, data = len(self.terms.classes), candidates_from(a["candidates"]), self.data
        compared = _shapes(found, a["compared"])
        largest = np.zeros((len(compared), K, _kinds(a), len(COARSE)))
        if data is None or not np.any(data.folds >= 0):
            return {"scores": np.zeros(3), "largest": largest}
        member = data.folds >= 0
        probability = np.zeros((int(member.sum()), K))
        for at in np.flatnonzero(a["weights"]):
            density = self.held[found[at].shape].density(heavy=found[at].heavy)[member]
            own = probabilities(density, float(a["temperatures"][at]), float(a["even"][at]))
            probability += a["weights"][at] * own
        careful = np.log(less_certain(probability, int(a["cycles"]), PRIOR))
        for i, shape in enumerate(compared):
            for k in range(K):
                known = member & (data.labels != k)
                if known.any():
                    own = _views(ratios(self.held[shape], k)[known, data.labels[known]])
                    keys = np.asarray(data.run_keys)[known]
                    largest[i, k] = COARSE.count(largest_of_runs(own, keys.tolist()))
        return {"scores": _scores(data, careful, np.flatnonzero(member)), "largest": largest}

    def strangers(self, a: Arrays) -> Reply:
        """How far held-out cycles of each class are beyond the limits of the others."""
        K, data = len(self.terms.classes), self.data
        compared = _shapes(candidates_from(a["candidates"]), a["compared"])
        beyond = np.zeros((len(compared), K, len(COARSE)))
        for i, shape in enumerate(compared):
            for k in range(K):
                if data is None or not np.any(strange := (data.folds >= 0) & (data.labels == k)):
                    continue
                rest = [j for j in range(K) if j != k]
                ratio = _views(ratios(self.held[shape], k)[strange][:, rest])
                most = np.nanmax(ratio / a["limits"][i, k], axis=2).min(axis=1)
                beyond[i, k] = COARSE.count(most[:, None])[0]
        return {"beyond": beyond}

    def limits(self, a: Arrays) -> Reply:
        """How surprising the most surprising cycle of each held-out run is."""
        data, shapes = self.data, _shapes(candidates_from(a["candidates"]), a["references"])
        largest = np.zeros((len(shapes), _kinds(a), len(FINE)))
        directions, typical = np.zeros((len(shapes), 2)), np.zeros((2, len(FINE)))
        if data is not None and shapes and np.any(member := data.folds >= 0):
            outside = None
            if np.any(a["noise"] > 0):
                outside = np.mean(data.outside / np.maximum(a["noise"], 1e-300), axis=1)
            for i, shape in enumerate(shapes):
                largest[i] = FINE.count(ratios_of_runs(data, self.held[shape], outside)[0])
                directions[i] = self.held[shape].directions[0], 1.0
            first = self.held[shapes[0]]
            own = first.square[np.arange(len(member)), data.labels]
            far = np.stack([own, first.of_run], axis=1)[member] / first.lengths.sum()
            typical = FINE.count(far, data.weights[member])
        self.data, self.held = None, {}  # it was the last request
        return {"largest": largest, "directions": directions, "typical": typical}

    # ------------------------------------------------------------------------------ checkpoints

    def state(self) -> dict[str, np.ndarray]:
        """What is kept between requests: of cycles, how far they are from models without their run."""
        if self.data is None:
            return {}
        alone = self.own.runs is None or self.data.runs != self.own.runs
        out = {"folds": self.data.folds.astype(np.float64), "outside": self.data.outside}
        out |= {"alone": np.asarray(float(alone)), "candidates": table_of(list(self.held))}
        for i, held in enumerate(self.held.values()):
            out |= {f"{i}.{f.name}": getattr(held, f.name) for f in fields(held)}
        return out

    def restore(self, arrays: Arrays) -> None:
        """Puts `state` back."""
        self.data, self.held = None, {}
        if not arrays:
            return
        labels, K = self.own.labels, len(self.terms.classes)
        names = tuple(self._names(bool(arrays["alone"])))
        folds, outside = arrays["folds"].astype(np.int64), arrays["outside"]
        nothing = np.zeros((len(labels), 0))
        self.data = Cycles(nothing, outside, labels, names, folds, K, outside.shape[1], own=False)
        for i, shape in enumerate(candidates_from(arrays["candidates"])):
            self.held[shape] = Held(*(arrays[f"{i}.{f.name}"] for f in fields(Held)))


def answers(parties: Sequence[Party], kind: str, a: Arrays) -> list[Reply]:
    """The reply of each site. Sites in one process share the factors of the covariances."""
    with one_blas_thread():
        if kind == sent.JUDGE:
            return judged_by(parties, a)
        name = kind.removeprefix("diagnosis-")
        return [getattr(party, name)(a) for party in parties]


def judged_by(parties: Sequence[Party], a: Arrays) -> list[Reply]:
    """The log-loss of held-out runs under each candidate; the request has the sums of all other runs."""
    found = candidates_from(a["candidates"])
    shapes = list(dict.fromkeys(each.shape for each in found))
    every = [party.place(a) for party in parties]
    for party, data in zip(parties, every, strict=True):
        told = np.zeros(0) if party.data is None else party.data.folds[party.data.folds >= 0]
        if list(party.held) != shapes:
            lengths = np.full(data.channels, float(a["rank"]))
            party.held = {s: Held.nothing(len(data.labels), data.classes, lengths) for s in shapes}
        known = np.isin(data.folds, [*told, *a["folds"]])  # a site that was away misses some
        party.data = replace(data, folds=np.where(known, data.folds, -1))
    lda = [np.zeros(3) for _ in parties]
    for fold, rest in zip(a["folds"], unpacked(a), strict=True):
        layers = Layers.of(rest, every[0].channels)
        members = [np.flatnonzero(data.folds == fold) for data in every]
        for shape in shapes if any(len(own) for own in members) else ():
            each = list(metrics(shape, layers, rest))
            for party, data, own in zip(parties, every, members, strict=True):
                if len(own):
                    write_fold(party.held[shape], each, data, layers.means, own)
        for i, (data, own) in enumerate(zip(every, members, strict=True)):
            if len(own):
                density = beside.lda_densities(layers, data.found[own])
                lda[i] += _scores(data, log_posterior(density, 1.0), own)
    return [
        {**_losses(party, found, a["folds"]), "lda": own}
        for party, own in zip(parties, lda, strict=True)
    ]


def _losses(party: Party, found: Sequence[Candidate], folds: FloatArray) -> Reply:
    data = party.data
    assert data is not None
    member = np.isin(data.folds, folds)
    truth, weights = data.labels[member], data.weights[member]
    densities = (party.held[each.shape].density(heavy=each.heavy)[member] for each in found)
    sums = [losses(density, truth, weights) for density in densities]
    return {"losses": np.stack(sums)}


def _scores(data: Cycles, log_probability: FloatArray, which: IntArray) -> FloatArray:
    """Runs that are right, the log-loss, and how many runs there are; log-probabilities are of `which`."""
    truth, weights = data.labels[which], data.weights[which]
    right = np.sum(weights * (np.argmax(log_probability, axis=1) == truth))
    sure = np.maximum(log_probability[np.arange(len(truth)), truth], np.log(1e-300))
    return np.asarray([right, -np.sum(weights * sure), weights.sum()])


def _views(ratio: FloatArray) -> FloatArray:
    """Ratios (…, 2 + Q) with a place for what lies outside of the coordinates, which has none here."""
    gap = np.full((*ratio.shape[:-1], 1), np.nan)
    return np.concatenate([ratio[..., :2], gap, ratio[..., 2:]], axis=-1)


def _kinds(a: Arrays) -> int:
    return 3 + int(a["used"].sum())


def _shapes(found: Sequence[Candidate], numbers: FloatArray) -> list[Candidate]:
    if not np.all(np.isin(numbers, np.arange(len(found)))):
        raise MessageError("a request is about candidates that it does not list")
    return [found[int(at)].shape for at in numbers]


# -------------------------------------------------------------------------- to arrays and back


def space_of(a: Arrays) -> Coordinates:
    """The agreed coordinates."""
    return Coordinates(a["grid"], a["centre"], a["unit"], int(a["rank"]))


def packed(sums: Sequence[RunSums]) -> dict[str, np.ndarray]:
    """Sums of several folds as they are sent."""
    stacked = {f.name: np.stack([getattr(each, f.name) for each in sums]) for f in fields(RunSums)}
    return pack(sent.RUN_SUMS, stacked)


def unpacked(a: Arrays) -> list[RunSums]:
    """The inverse."""
    names = [f.name for f in fields(RunSums)]
    found = unpack(sent.RUN_SUMS, {name: a[name] for name in names})
    return [RunSums(*(found[name][i] for name in names)) for i in range(len(a["runs"]))]


def table_of(found: Sequence[Candidate]) -> FloatArray:
    """Candidates as numbers, (c, 4)."""
    rows = [(TARGETS.index(e.target), e.shrinkage, e.own, e.heavy) for e in found]
    return np.asarray(rows, np.float64).reshape(-1, 4)


def candidates_from(table: FloatArray) -> list[Candidate]:
    """The inverse."""
    try:
        return [
            Candidate(TARGETS[int(target)], float(delta), bool(own), bool(heavy))
            for target, delta, own, heavy in table
        ]
    except (IndexError, ValueError):
        raise MessageError(
            "`candidates` has a covariance that this version does not know"
        ) from None

"""The server of a federated diagnosis: asks for sums, and makes the classifier of them.

    runs → curves → spread → sums (some folds at a time) → judge (the same) → average → strangers → limits

`request` says what to broadcast, `take` takes the sum of the replies. If runs are too few to hold any out, it
ends after the sums. `see` looks at each reply, for what all sites must have in common.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pfedhgp.diagnosis.candidates import (
    OWN_RUNS,
    OWN_SIZE,
    Candidate,
    Judged,
    candidates_for,
    judged,
    kept,
)
from pfedhgp.diagnosis.coordinates import coordinates_per_channel
from pfedhgp.diagnosis.decision import Calibration
from pfedhgp.diagnosis.federated import messages as sent
from pfedhgp.diagnosis.federated.folds import folds_of_bins
from pfedhgp.diagnosis.federated.party import (
    candidates_from,
    packed,
    space_of,
    table_of,
    unpacked,
)
from pfedhgp.diagnosis.federated.scales import (
    curves_of,
    units_of,
    warn_of_neighbours,
    warn_of_still,
)
from pfedhgp.diagnosis.federated.tails import COARSE, FINE, typical_of_bins
from pfedhgp.diagnosis.federated.terms import LARGEST_SAMPLES, LARGEST_SIZE, Terms
from pfedhgp.diagnosis.odd_channels import warn_of_absent_channels, warn_of_other_grids
from pfedhgp.diagnosis.run_classifier import RunClassifier
from pfedhgp.diagnosis.run_sums import RunSums
from pfedhgp.diagnosis.strangers import MISSED, REFERENCES, widest
from pfedhgp.diagnosis.thresholds import limits_of_ratios, limits_of_runs
from pfedhgp.diagnosis.training import (
    PRIOR,
    TOO_FEW,
    Training,
    behind,
    for_strangers,
    unjudged,
)
from pfedhgp.diagnosis.typical import Typical
from pfedhgp.errors import InputError, warn

FloatArray = npt.NDArray[np.float64]
Arrays = Mapping[str, np.ndarray]
LARGEST_MESSAGE = 16 * 1024 * 1024
"""Bytes of matrices up to which several folds share a message."""
NEVER = 1e300
"""A limit for what has none."""


class DiagnosisServer:
    """`step` is the kind of the next request; None when `training` is there."""

    def __init__(self, terms: Terms) -> None:
        self.terms = terms
        self.step: str | None = sent.RUNS
        self.kept: dict[str, np.ndarray] = {"alone": np.asarray(float(not terms.blocks))}
        """All that is known so far: a checkpoint has this, and `step`."""
        self.training: Training | None = None

    def request(self) -> dict[str, np.ndarray]:
        """The arrays of the next broadcast."""
        k = self.kept
        if self.step == sent.SUMS:
            return {**self._space(), "folds": self._next_folds()}
        if self.step == sent.JUDGE:
            total, own = self._total(), self._by_fold()
            folds = self._next_folds()
            rest = packed([total - own[float(fold)] for fold in folds])
            return {**self._space(), "folds": folds, **rest, "candidates": k["candidates"]}
        names = {
            sent.RUNS: ("alone",),
            sent.CURVES: ("samples",),
            sent.SPREAD: ("grid", "curves"),
            sent.AVERAGE: tuple(each.name for each in sent.AVERAGED),
            sent.STRANGERS: ("used", "candidates", "compared", "limits"),
            sent.LIMITS: ("used", "candidates", "references", "noise"),
        }[str(self.step)]
        found = {name: k[name] for name in names}
        if self.step == sent.AVERAGE:
            found["cycles"] = np.asarray(float(k["cycles"].sum()))
        return found

    def see(self, sender: str, a: Arrays) -> None:
        """Refuses a site whose cycles are on another grid than those before it."""
        k = self.kept
        if self.step == sent.RUNS:
            n = int(a["samples"])
            if not 2 <= n <= LARGEST_SAMPLES:
                raise InputError(
                    f"site {sender!r} has cycles of {n} samples: from 2 to {LARGEST_SAMPLES} are possible"
                )
            if "samples" in k and n != int(k["samples"]):
                raise InputError(
                    f"site {sender!r} has cycles of {n} samples, a site before it {int(k['samples'])}: "
                    "use one grid at all sites"
                )
            k["samples"] = np.asarray(float(n))
        if self.step == sent.CURVES:
            if "grid" in k and not np.array_equal(k["grid"], a["grid"]):
                raise InputError(
                    f"site {sender!r} has its samples at other places than a site before it: use one "
                    "grid at all sites"
                )
            k["grid"] = np.asarray(a["grid"])

    def take(self, sums: Arrays) -> None:
        """Takes the sum of all replies, and goes on."""
        steps = {
            sent.RUNS: self._take_runs,
            sent.CURVES: self._take_curves,
            sent.SPREAD: self._take_spread,
            sent.SUMS: self._take_sums,
            sent.JUDGE: self._take_losses,
            sent.AVERAGE: self._take_scores,
            sent.STRANGERS: self._take_strangers,
            sent.LIMITS: self._take_limits,
        }
        steps[str(self.step)](sums)

    # ------------------------------------------------------------------------- before the folds

    def _take_runs(self, sums: Arrays) -> None:
        k, names = self.kept, self.terms.classes
        runs, cycles = sums["runs"].sum(axis=1), sums["cycles"]
        for name, count in zip(names, cycles, strict=True):
            if not count:
                raise InputError(
                    f"class {name!r} has no cycle at any site: leave it out of `classes`"
                )
        if cycles.max() == 1:
            raise InputError(
                "every class has one cycle: how cycles of a class differ cannot be told; give more cycles"
            )
        if runs.max() == 1 and not k["alone"]:
            warn(
                "every class has one run: how runs differ cannot be estimated, so each cycle counts as a "
                "run; about new runs the model will be too sure",
                stacklevel=5,
            )
            k["alone"] = np.asarray(1.0)
            return  # the same question again, about cycles
        what = "cycle" if k["alone"] else "run"
        for name, count in zip(names, runs, strict=True):
            if count == 1:
                warn(
                    f"class {name!r} has one {what}: how its {what}s differ is taken from the other "
                    "classes, and it cannot be held out",
                    stacklevel=5,
                )
        k["counts"], k["cycles"] = sums["runs"], cycles
        k["fold"] = folds_of_bins(sums["runs"], names, self.terms.folds)
        self.step = sent.CURVES

    def _take_curves(self, sums: Arrays) -> None:
        k = self.kept
        k["seen"] = sums["seen"]
        warn_of_other_grids(self.terms.classes, sums["seen"] > 0.0, stacklevel=5)
        warn_of_absent_channels(
            self.terms.classes, sums["seen"] > 0.0, self.terms.channels, stacklevel=5
        )
        k["curves"] = curves_of(sums["seen"], sums["total"], k["grid"])
        self.step = sent.SPREAD

    def _take_spread(self, sums: Arrays) -> None:
        k, terms = self.kept, self.terms
        unit, used = units_of(k["seen"], k["curves"], sums["gaps"], sums["squares"])
        warn_of_still(used, k["seen"], self.terms.channels)
        if not terms.blocks:
            warn_of_neighbours(sums, unit, used)
        n, moves = len(k["grid"]), used > 0
        rank = coordinates_per_channel(n) if terms.rank is None else min(terms.rank, n)
        size = int(used.sum()) * rank
        if size > LARGEST_SIZE:
            raise InputError(
                f"{int(used.sum())} channels with {rank} coordinates each are {size}, too many for a "
                f"message (at most {LARGEST_SIZE}): give a smaller `cycle_basis`"
            )
        runs = k["counts"].sum(axis=1)
        wanted = terms.candidates is None or any(each.own for each in terms.candidates)
        own = wanted and size <= OWN_SIZE and bool(np.all(runs >= OWN_RUNS))
        k["used"], k["unit"], k["centre"] = used, unit[moves], k["curves"].mean(axis=0)[moves]
        k["rank"], k["own"] = np.asarray(float(rank)), np.asarray(float(own))
        del k["seen"]
        self.step = sent.SUMS

    # ------------------------------------------------------------------------------- the folds

    def _space(self) -> dict[str, np.ndarray]:
        names = ("grid", "used", "centre", "unit", "rank", "curves", "fold", "alone", "own")
        return {name: self.kept[name] for name in names}

    def _groups(self) -> list[float]:
        """The folds that have runs; −1 for runs that are never held out, if there are any."""
        there = np.unique(self.kept["fold"][self.kept["counts"] > 0])
        return [float(f) for f in there if f >= 0 or self.step != sent.JUDGE]

    def _next_folds(self) -> FloatArray:
        done = len(self.kept.get("asked" if self.step == sent.SUMS else "judged_folds", ()))
        k, groups = self.kept, self._groups()
        size = len(k["unit"]) * int(k["rank"])
        matrices = len(self.terms.classes) if k["own"] else 1
        most = max(1, LARGEST_MESSAGE // (8 * matrices * size * (size + 1)))
        return np.asarray(groups[done : done + most])

    def _take_sums(self, sums: Arrays) -> None:
        k, folds = self.kept, self._next_folds()
        for name in (each.name for each in sent.RUN_SUMS):
            before = k.get(f"sums.{name}")
            k[f"sums.{name}"] = (
                sums[name] if before is None else np.concatenate([before, sums[name]])
            )
        k["asked"] = np.append(k.get("asked", np.zeros(0)), folds)
        if len(k["asked"]) < len(self._groups()):
            return
        found = self.terms.candidates or candidates_for(self._total(), self._total().means.shape[1])
        k["candidates"] = table_of(found)
        if self._enough():
            self.step = sent.JUDGE
            return
        warn(TOO_FEW, stacklevel=5)
        only = unjudged(self.terms.candidates, len(self.terms.classes))
        self._finish((only,), [only.candidate.shape], None)

    def _by_fold(self) -> dict[float, RunSums]:
        found = unpacked({f.name: self.kept[f"sums.{f.name}"] for f in sent.RUN_SUMS})
        return dict(zip(self.kept["asked"].tolist(), found, strict=True))

    def _total(self) -> RunSums:
        first, *more = self._by_fold().values()
        for each in more:
            first = first + each
        return first

    def _enough(self) -> bool:
        """Whether without any fold there is still something that says how runs differ."""
        counts, fold = self.kept["counts"], self.kept["fold"]
        held = np.unique(fold[fold >= 0])
        for each in held:
            rest = np.where(fold == each, 0.0, counts).sum(axis=1)
            if rest.sum() <= np.count_nonzero(rest):
                return False
        return bool(len(held))

    def _take_losses(self, sums: Arrays) -> None:
        k, folds = self.kept, self._next_folds()
        for name in ("losses", "lda"):
            k[name] = k.get(name, 0.0) + sums[name]
        k["judged_folds"] = np.append(k.get("judged_folds", np.zeros(0)), folds)
        if len(k["judged_folds"]) < len(self._groups()):
            return
        found, every = self._found(), self._candidates()
        k["weights"], k["temperatures"] = np.zeros(len(every)), np.ones(len(every))
        k["even"] = np.zeros(len(every))
        for each in found:
            at = every.index(each.candidate)
            k["weights"][at], k["temperatures"][at] = each.weight, each.temperature
            k["even"][at] = each.even
        shapes = [_first(every, shape) for shape in for_strangers(found)]
        k["references"] = np.asarray(shapes[:1], np.float64)
        k["compared"] = np.asarray(shapes if len(shapes) > 1 else [], np.float64)
        self.step = sent.AVERAGE

    def _candidates(self) -> list[Candidate]:
        return candidates_from(self.kept["candidates"])

    def _found(self) -> tuple[Judged, ...]:
        """The candidates that are averaged."""
        rows = dict(zip(self._candidates(), self.kept["losses"], strict=True))
        return kept(judged(rows, float(self.kept["lda"][2])))

    # ------------------------------------------------------------------------------- thresholds

    def _take_scores(self, sums: Arrays) -> None:
        k = self.kept
        k["scores"] = sums["scores"]
        k["limits"] = np.full((*sums["largest"].shape[:2], sums["largest"].shape[2]), NEVER)
        for at in np.ndindex(*sums["largest"].shape[:2]):
            ratio = COARSE.values(sums["largest"][at])
            if len(ratio):
                found = limits_of_ratios(ratio, self.terms.false_alarms / REFERENCES)
                k["limits"][at] = np.where(np.isfinite(found), found, NEVER)
        if len(k["compared"]):
            self.step = sent.STRANGERS
        else:
            self._after_reference()

    def _take_strangers(self, sums: Arrays) -> None:
        """The covariances under which strangers are furthest beyond the limits."""
        k, margins = self.kept, []
        for own, limits in zip(sums["beyond"], k["limits"], strict=True):
            there = [
                b for b, known in zip(own, limits[:, 1], strict=True) if b.any() and known < NEVER
            ]
            found = [float(np.quantile(COARSE.values(b[None])[:, 0], MISSED)) for b in there]
            margins.append(min(found, default=1.0))
        k["references"] = k["compared"][widest(margins)]
        self._after_reference()

    def _after_reference(self) -> None:
        k, total = self.kept, self._total()
        freedom = len(k["grid"]) - int(k["rank"])
        k["noise"] = total.outside / total.cycles.sum() if freedom else 0.0 * total.outside
        if self.terms.thresholds:
            self.step = sent.LIMITS
        else:
            self._finish(self._found(), self._references(), None)

    def _references(self) -> list[Candidate]:
        found = self._candidates()
        return [found[int(at)].shape for at in self.kept["references"]]

    def _take_limits(self, sums: Arrays) -> None:
        k = self.kept
        lengths = np.full(len(k["unit"]), float(k["rank"]))
        freedom = float(len(k["grid"]) - int(k["rank"])) * len(lengths)
        rate = self.terms.false_alarms / len(sums["largest"])
        limits: list[float] = []
        for largest, (count, sites) in zip(sums["largest"], sums["directions"], strict=True):
            counts = np.asarray([count / max(sites, 1.0), lengths.sum(), freedom, *lengths])
            ratio = FINE.values(largest)
            limits += limits_of_runs(ratio, counts, rate) if len(ratio) else ()
        known = typical_of_bins(sums["typical"], lengths.sum()) if limits else None
        self._finish(self._found(), self._references(), tuple(limits) or None, known)

    # -------------------------------------------------------------------------------- the result

    def _finish(
        self,
        found: tuple[Judged, ...],
        references: Sequence[Candidate],
        limits: tuple[float, ...] | None,
        typical: Typical | None = None,
    ) -> None:
        k, total = self.kept, self._total()
        facts: dict[str, Any] = {
            "runs": int(total.runs.sum()),
            "cycles": int(total.cycles.sum()),
            "judged": "scores" in k,
            "held_out": {},
            "lda": None,
        }
        if facts["judged"]:
            own, lda = (k[name][:2] / k[name][2] for name in ("scores", "lda"))
            facts["held_out"] = {"accuracy": float(own[0]), "log_loss": float(own[1])}
            facts["lda"] = {"accuracy": float(lda[0]), "log_loss": float(lda[1])}
        some_own = any(each.candidate.own for each in found)
        classifier = RunClassifier(
            classes=self.terms.classes,
            used=tuple(int(q) for q in np.flatnonzero(k["used"])),
            coordinates=space_of(k),
            sums=total if some_own else total.pooled(),
            judged=found,
            reference=references[0],
            second=references[1] if len(references) > 1 else None,
            typical=typical,
            calibration=Calibration(
                thresholds=limits,
                false_alarms=None if limits is None else self.terms.false_alarms,
                cycles=facts["cycles"],
                prior=PRIOR,
                **facts["held_out"],
            ),
        )
        said = behind(facts)
        if said is not None:
            warn(said, stacklevel=6)
        self.step, self.training = None, Training(classifier, facts)


def _first(every: Sequence[Candidate], shape: Candidate) -> int:
    return next(i for i, each in enumerate(every) if each.shape == shape)

"""Admissible replies before training: counts that fit each other, and moments that rows can have.

    0 ≤ pairs_qp ≤ pairs_qq ≤ rows,   |cross_qp|² ≤ cross_qq cross_pp,   Σ_pairs ½(y − y′)² ≤ ½ n cross_qq

The second holds with missing cells too: a sum of squares is least about its own mean and over fewer rows.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from pfedhgp.federation.plan import Plan
from pfedhgp.federation.robust.declared import Declared
from pfedhgp.federation.robust.limits import SLACK, Inadmissible, expect, expect_psd
from pfedhgp.inference.messages import CYCLE_SUMS, unpack

Arrays = Mapping[str, np.ndarray]
LEVELS = 1e-9
"""Relative rounding of sums of rows."""
MOST_EVIDENCE = 1e3
"""Nats a cell that waves or a kernel's form can add, at most: logarithms of variances, all of them."""


def census(plan: Plan, a: Arrays) -> Declared:
    """What the site declares; refused if no rows can have these moments."""
    rows, pairs, cross = float(a["rows"][0]), a["y_pairs"], a["y_cross"]
    expect(rows >= 1.0, "`rows` is 0")
    own = np.diagonal(pairs)
    expect(np.array_equal(pairs, pairs.T), "`y_pairs` is not symmetric")
    least = np.minimum(own[:, None], own[None, :])
    expect(np.all(pairs <= least), "`y_pairs` are more than the cells of an output")
    expect(np.all(own <= rows), "`y_pairs` are more than `rows`")
    expect(np.array_equal(a["y_clients"] > 0, own > 0), "`y_clients` does not fit `y_pairs`")
    expect(np.all(a["observations"] >= own), "`observations` are fewer than cells")
    squares = np.diagonal(cross)
    spare = LEVELS * own * np.diagonal(a["y_mean"]) ** 2
    expect(np.all(squares >= -spare), "`y_cross` has a negative variance")
    most = np.sqrt(np.maximum(squares, 0.0) + spare)
    expect(
        np.all(np.abs(cross) <= SLACK * np.outer(most, most) + 1e-300),
        "`y_cross` has a covariance larger than its variances allow",
    )
    means = rows * (a["x_sum"] / rows) ** 2
    close = np.abs(a["x_means"] - means) <= 1e-6 * (np.abs(means) + a["x_within"] + 1e-300)
    expect(np.all(close), "`x_means` does not fit `x_sum`")
    if plan.domain is not None:
        lower, upper = (np.asarray(side, np.float64) for side in plan.domain)
        mean, width = a["x_sum"] / rows, upper - lower
        inside = (mean >= lower - 1e-6 * width) & (mean <= upper + 1e-6 * width)
        expect(np.all(inside), "the mean of an input is outside the agreed domain")
        narrow = a["x_within"] <= SLACK * rows * width**2 / 4.0
        expect(np.all(narrow), "an input varies more than the agreed domain allows")
    found = Declared.of(a)
    if plan.domain is not None:
        by_distance(a, found)
    return found


def extent(a: Arrays, declared: Declared | None) -> None:
    """The histogram has every row once along each input."""
    counts = a["histogram"].sum(axis=1)
    expect(np.all(counts == counts[0]), "`histogram` has other rows along another input")
    if declared is not None:
        expect(counts[0] == declared.rows, "`histogram` has other rows than the census")
    if "bin_rows" in a and declared is not None:
        expect(np.all(a["bin_rows"].sum(axis=1) <= declared.rows), "`bin_rows` are more than rows")
    by_distance(a, declared)


def by_distance(a: Arrays, declared: Declared | None) -> None:
    """Sums over pairs of rows: no more pairs than rows make, and no larger than the outputs' variance."""
    expect(np.all((a["lag_sum"] == 0.0) | (a["lag_pairs"] > 0)), "`lag_sum` has sums without pairs")
    if declared is None:
        return
    n, told = declared.observations, declared.cells > 0
    pairs, sums = a["lag_pairs"].sum(axis=0), a["lag_sum"].sum(axis=0)
    expect(np.all(pairs <= 0.5 * n * (n - 1.0)), "`lag_pairs` are more than rows make")
    rounding = LEVELS * n**2 * declared.mean**2
    most = SLACK * 0.5 * n * np.maximum(declared.squares, 0.0) + rounding
    expect(
        np.all((sums <= most) | ~told), "`lag_sum` is larger than the variance of the census allows"
    )
    for name in ("waves", "forms"):
        if name in a:
            high = MOST_EVIDENCE * max(float(n.sum()), 1.0)
            expect(np.all(np.abs(a[name]) <= high), f"`{name}` is more than rows can say")


def cycles(a: Arrays, declared: Declared | None) -> None:
    """Sums over cycles: positive semi-definite, and of no more cycles than there are."""
    count = float(a["cycles"])
    expect(count >= 1.0, "`cycles` is 0")
    expect(float(a["incomplete"]) <= count, "`incomplete` is more than `cycles`")
    freedom = 0.0
    for half in ("first.", "rest."):
        found = unpack(CYCLE_SUMS, {f.name: a[half + f.name] for f in CYCLE_SUMS})
        own, rows = float(found["freedom"]), float(found["rows"])
        freedom += own
        for name in ("gram", "T", "scatter"):
            expect_psd(half + name, found[name])
        if declared is not None:
            expect(rows <= own * declared.rows, f"`{half}rows` are more than the census has")
        if own == 0.0:
            nothing = all(not np.any(found[name]) for name in ("gram", "T", "scatter"))
            expect(nothing, f"`{half}scatter` of a single cycle")
    expect(freedom <= count, "`freedom` is more than `cycles`")


def diagnosis(kind: str, a: Arrays) -> None:
    """Sums over runs of a diagnosis: positive semi-definite, and none where there are no runs."""
    from pfedhgp.diagnosis.federated import messages as sent

    if kind == sent.RUNS:
        runs = a["runs"].sum(axis=1)
        expect(np.all(runs <= a["cycles"]), "`runs` are more than `cycles`")
        expect(np.array_equal(runs > 0, a["cycles"] > 0), "`cycles` of a class without runs")
    if kind == sent.CURVES:
        there = a["seen"] > 0
        expect(np.all(there | (a["total"] == 0.0)), "`total` has values that were not seen")
    if kind == sent.SUMS:
        found = unpack(sent.RUN_SUMS, a)
        for name in ("between", "within"):
            expect_psd(name, found[name])
        runs = found["runs"]
        expect(np.all(found["cycles"] >= runs), "`runs` are more than `cycles`")
        expect(np.all(found["inverse"] <= SLACK * runs), "`inverse` is more than `runs`")
        empty = ~np.any(found["means"], axis=-1)
        expect(np.all(empty | (runs > 0)), "`means` of a class without runs")
    if kind == sent.JUDGE:
        expect(np.all(a["losses"][:, :-1] >= -1e-9), "a log-loss is negative")
    for name in ("lda", "scores"):
        if name in a:
            right, loss, runs = a[name]
            fits = 0.0 <= right <= runs * (1.0 + LEVELS) and loss >= -1e-9
            expect(fits, f"`{name}` does not fit its number of runs")


__all__ = ["Inadmissible", "census", "cycles", "diagnosis", "extent"]

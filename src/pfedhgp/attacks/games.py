"""Attacks on messages as games with known answers: was a row in it, what is its output, whose is it?

    membership   the attacker knows all rows of a client but one, and says whether that one was there
    attribute    the attacker knows all but one output of a client, and says what it is
    property     is a client's mean in a region above the other clients' mean?
    linkage      of two messages, each of half of the clients' rows: which are of the same client?

Each is played on the run's own rows, with messages that the clients' own code makes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from pfedhgp.attacks.channels import Channel, others_of
from pfedhgp.attacks.intervals import Measured, area, beyond, bootstrapped, share
from pfedhgp.data.rows import ClientRows
from pfedhgp.inference.starts.budget import box_points

REGIONS = 5
LEAST_IN_REGION = 5
POINTS = 200
FALSE = 0.01
"""Share of false positives at which true positives are counted."""


def some_rows(rows: Sequence[ClientRows], trials: int, seed: int) -> list[tuple[ClientRows, int]]:
    """Rows of all clients in turn, each drawn at random; only rows whose cells were all observed."""
    rng, found = np.random.default_rng(seed), []
    for k in range(trials):
        client = rows[k % len(rows)]
        whole = np.flatnonzero(np.isfinite(client.Y).all(axis=1))
        if len(whole):
            found.append((client, int(rng.choice(whole))))
    return found


def without(rows: ClientRows, row: int) -> ClientRows:
    return replace(rows, X=np.delete(rows.X, row, 0), Y=np.delete(rows.Y, row, 0))


@dataclass(frozen=True)
class Membership:
    """How well rows that were there are told from those that were not."""

    area: Measured
    true_positives: Measured
    """At 1% false positives"""


def membership(channel: Channel, rows: Sequence[ClientRows], trials: int, seed: int) -> Membership:
    """By the likelihood ratio, in units of its own sd: no test is better."""
    there: list[float] = []
    absent: list[float] = []
    for client, row in some_rows(rows, trials, seed):
        less = without(client, row)
        for found, own in ((there, client), (absent, less)):
            seen = channel.sent(own)
            with_it, without_it = channel.expected(client, seen), channel.expected(less, seen)
            step = with_it - without_it
            weights = channel.precision(seen)
            size = np.sqrt(weights @ step**2) or 1.0
            found.append(weights * step @ (seen - 0.5 * (with_it + without_it)) / size)
    one, two = np.array(there), np.array(absent)
    return Membership(
        bootstrapped(len(one), lambda some: area(one[some], two[some]), seed),
        beyond(one, two, FALSE, seed),
    )


def attribute(channel: Channel, rows: Sequence[ClientRows], trials: int, seed: int) -> Measured:
    """R² of one unknown output, beyond the mean of the client's other outputs."""
    errors, usual = [], []
    for k, (client, row) in enumerate(some_rows(rows, trials, seed)):
        q = k % client.Y.shape[1]
        found = channel.output(client, row, q, channel.sent(client))
        errors.append((found - client.Y[row, q]) ** 2)
        usual.append((others_of(client, row, q)[0] - client.Y[row, q]) ** 2)
    one, two = np.array(errors), np.array(usual)
    return bootstrapped(len(one), lambda some: 1.0 - float(one[some].sum() / two[some].sum()), seed)


def property_of_sites(channel: Channel, rows: Sequence[ClientRows], seed: int) -> Measured | None:
    """Share of the signs of clients' means, region by region along the first input, that are right."""
    probe = box_points(POINTS, rows[0].X.shape[1])
    scaled = [channel.scaling.rows(client) for client in rows]
    shown = np.stack([channel.function(channel.sent(client), probe) for client in rows])
    right = trials = 0
    for low in np.arange(REGIONS) / REGIONS:
        high = low + 1.0 / REGIONS
        at = (probe[:, 0] >= low) & (probe[:, 0] <= high)
        inside = [(c.X[:, 0] >= low) & (c.X[:, 0] <= high) for c in scaled]
        enough = [i for i, rows_in in enumerate(inside) if rows_in.sum() >= LEAST_IN_REGION]
        if len(enough) < 2:
            continue
        truth = np.stack([np.nanmean(scaled[i].Y[inside[i]], axis=0) for i in enough])
        guess = np.stack([shown[i][at].mean(axis=0) for i in enough])
        same = np.sign(truth - truth.mean(axis=0)) == np.sign(guess - guess.mean(axis=0))
        right, trials = right + int(same.sum()), trials + same.size
    return share(right, trials) if trials else None


def linkage(channel: Channel, rows: Sequence[ClientRows], repeats: int, seed: int) -> Measured:
    """Share of halves whose nearest other half, by the function that it shows, is the same client's."""
    rng, probe = np.random.default_rng(seed), box_points(POINTS, rows[0].X.shape[1])
    right = 0
    for _ in range(repeats):
        shown: list[list[np.ndarray]] = [[], []]
        for client in rows:
            order = rng.permutation(len(client.X))
            for half, some in enumerate(np.array_split(order, 2)):
                part = replace(client, X=client.X[some], Y=client.Y[some])
                shown[half].append(channel.function(channel.sent(part), probe).ravel())
        one, two = (np.stack(half) - np.mean(half, axis=0) for half in shown)
        gaps = ((one[:, None] - two[None]) ** 2).sum(axis=2)
        right += int(np.sum(gaps.argmin(axis=1) == np.arange(len(rows))))
    return share(right, repeats * len(rows))

"""Reconstruction of a run's rows: how many are found, and how many the histogram shows already.

From each client's own sums, from totals over all clients (masks), or from a noisy release.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import least_squares

from pfedhgp.attacks import reconstruction
from pfedhgp.attacks.captured import Captured
from pfedhgp.attacks.channels import Releases
from pfedhgp.attacks.intervals import Measured, share
from pfedhgp.attacks.noisy_totals import NoisyTotals
from pfedhgp.attacks.reconstruction import CLOSE, Answered, answers_at_start, score
from pfedhgp.data.rows import ClientRows
from pfedhgp.inference.arrays import statistics_from_arrays
from pfedhgp.privacy.release import PublicBasis

MOST_CELLS = 700
"""Rows times outputs of a client, or of all clients together, from which the attack takes too long."""


@dataclass(frozen=True)
class RowsFound:
    """Shares of the rows whose input was found to a thousandth of the domain, and R² of the outputs."""

    found: Measured
    before: Measured
    """By the histogram alone"""
    explained: float | None = None
    """R² of the outputs over all rows; None if they were not looked for"""


def why_not(captured: Captured, rows: Sequence[ClientRows]) -> str:
    """Why the attack does not know this run, or nothing."""
    spec = captured.spec
    if spec.inputs != 1 or spec.client_loadings or spec.state_space or spec.own_deviation_kernel:
        return "this attack knows one input, inducing-point layers and shared loadings only"
    if any(not np.isfinite(client.Y).all() for client in rows):
        return "this attack knows no missing cells"
    return ""


def _places(captured: Captured, rows: ClientRows) -> np.ndarray:
    """Where the client's histogram has its rows; with a public domain, evenly over it."""
    scaling, n = captured.scaling, len(rows.X)
    if "extent" not in captured.requests:
        return (np.arange(n) + 0.5) / n
    counts = captured.replies["extent"][rows.name].arrays["histogram"]
    box = (float(scaling.lower[0]), float(scaling.upper[0]))
    asked = captured.requests["extent"].arrays
    return reconstruction.places_of_histogram(counts, asked, *box)


def _answers(captured: Captured, name: str) -> list[Answered]:
    reply = captured.replies["start"][name].arrays
    extent = captured.scaling.extent
    found = answers_at_start(captured.plan, captured.spec, captured.start.arrays, reply, extent)
    return found[:1] if captured.plan.specs else found


def from_sums(captured: Captured, rows: Sequence[ClientRows], most: int) -> RowsFound | None:
    """Of up to `most` clients, the smallest that answered and are not too long."""
    told = captured.replies["start"]
    able = [c for c in rows if c.name in told and c.Y.size <= MOST_CELLS]
    hits = before = trials = 0
    left = spread = 0.0
    for client in sorted(able, key=lambda each: len(each.X))[:most]:
        scaled, places = captured.scaling.rows(client), _places(captured, client)
        x, y = reconstruction.reconstructed(_answers(captured, client.name), places)
        truth, n = (scaled.X[:, 0], scaled.Y), len(places)
        hits += round(score(truth, x).close * n)
        before += round(score(truth, places).close * n)
        trials += n
        around = np.sum((scaled.Y - scaled.Y.mean(axis=0)) ** 2)
        left += (1.0 - score(truth, x, y).explained) * around
        spread += around
    if not trials:
        return None
    return RowsFound(share(hits, trials), share(before, trials), 1.0 - left / spread)


def from_totals(captured: Captured, rows: Sequence[ClientRows], seed: int) -> RowsFound | None:
    """All clients' rows from totals. The attacker knows the histogram of all rows and the clients' numbers of
    rows, and deals the rows out to them at random.
    """
    told = [client for client in rows if client.name in captured.replies["start"]]
    if sum(client.Y.size for client in told) > MOST_CELLS:
        return None
    replies = [captured.replies["start"][client.name].arrays for client in told]
    first = _answers(captured, told[0].name)
    totals = {name: np.sum([r[name] for r in replies], axis=0) for name in replies[0]}
    sums = statistics_from_arrays(totals, 0)
    one = replace(
        first[0],
        U=np.asarray(sums.U),
        y=np.asarray(sums.y),
        noise=np.asarray(sums.noise) / len(told),
    )
    guess = np.sort(np.concatenate([_places(captured, client) for client in told]))
    order = np.random.default_rng(seed).permutation(len(guess))
    ends = np.cumsum([len(client.X) for client in told])[:-1]
    x = reconstruction.inputs_of([one], guess, 30, clients=np.split(order, ends))
    scaled = [captured.scaling.rows(client) for client in told]
    truth = (np.concatenate([c.X[:, 0] for c in scaled]), np.concatenate([c.Y for c in scaled]))
    hits, before = (round(score(truth, at).close * len(guess)) for at in (x, guess))
    return RowsFound(share(hits, len(guess)), share(before, len(guess)))


def from_release(
    channel: Releases | NoisyTotals, rows: Sequence[ClientRows], most: int
) -> RowsFound | None:
    """The inputs whose Σ a aᵀ is nearest to what a message tells of it, beginning evenly over the domain."""
    if rows[0].X.shape[1] != 1:
        return None
    able = [client for client in rows if len(client.X) <= MOST_CELLS]
    able = sorted(able, key=lambda each: len(each.X))[:most]
    pairs = [(channel.gram(channel.sent(each)).mean(axis=0), [each]) for each in able]
    return _near_grams(channel, pairs)


def from_noisy_totals(channel: NoisyTotals, rows: Sequence[ClientRows]) -> RowsFound | None:
    """All clients' inputs from Σ W_iS_i and its noise, as if all had the mean W, which the server knows."""
    if rows[0].X.shape[1] != 1 or sum(len(client.X) for client in rows) > MOST_CELLS:
        return None
    exact = replace(channel, terms=replace(channel.terms, at_server=True))
    seen = [exact.parts(exact.sent(client)) for client in rows]
    grams = [exact.grams(each.own) for each in seen]
    known = np.sum([[own.weight @ own.gram for own in each] for each in grams], axis=0)
    missing = {"missing": np.sum([each.missing for each in seen], axis=0)}
    missing = channel.terms.with_servers_noise(missing, channel.mu, channel.below)  # once
    weight = np.mean([[own.weight for own in each] for each in grams], axis=0)
    total = np.linalg.solve(weight, known + missing["missing"]).mean(axis=0)
    return _near_grams(channel, [(0.5 * (total + total.T), list(rows))])


def _near_grams(
    channel: Releases | NoisyTotals, pairs: Sequence[tuple[np.ndarray, Sequence[ClientRows]]]
) -> RowsFound | None:
    """For each matrix, the inputs of these clients together."""
    hits = before = trials = 0
    for gram, clients in pairs:
        scaled = [channel.scaling.rows(client) for client in clients]
        truth = (np.concatenate([c.X[:, 0] for c in scaled]), np.concatenate([c.Y for c in scaled]))
        n = len(truth[0])
        guess = (np.arange(n) + 0.5) / n
        x = _inputs_of_gram(channel.public, gram, guess)
        hits += round(score(truth, x).close * n)
        before += round(score(truth, guess).close * n)
        trials += n
    return RowsFound(share(hits, trials), share(before, trials)) if trials else None


def _inputs_of_gram(public: PublicBasis, gram: np.ndarray, guess: np.ndarray) -> np.ndarray:
    lower = np.tril_indices(len(gram))

    def misfit(x: np.ndarray) -> np.ndarray:
        A = public.features(x[:, None])
        return np.concatenate([(A @ A.T - gram)[lower], CLOSE * (x - guess)])

    found = least_squares(misfit, guess, method="trf", bounds=(-0.1, 1.1), max_nfev=15)
    return np.asarray(found.x)


__all__ = ["RowsFound", "from_noisy_totals", "from_release", "from_sums", "from_totals", "why_not"]

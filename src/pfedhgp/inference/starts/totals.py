"""The census in totals alone: sums about a public centre, in public units. Masks can hide these.

Clients' means merge by a formula that needs each client's own; a sum about a centre that all know only adds.
The centre comes first, by `magnitudes`: each client says in which class 2^k its largest number is, and what
its mean is in units of 2^k. Asked once about zero and once about the centre that follows, totals give the
centre and the unit of each column:

    c = Σ_k 2^k Σ_i m_ik / clients,   unit = 2^k of the highest class with a client in it.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from pfedhgp.errors import InputError

LOWEST, HIGHEST = -63, 64
CLASSES = HIGHEST - LOWEST + 1
"""Classes 2^k of numbers; what is smaller than the lowest counts there."""

Sums = dict[str, np.ndarray]


def magnitudes(X: np.ndarray, Y: np.ndarray, known: Mapping[str, np.ndarray]) -> Sums:
    """The class of each column's largest distance from the centre, and the mean distance in its units."""
    found: Sums = {}
    for name, columns in (("x", X), ("y", Y)):
        away = columns - known[f"{name}_centre"]
        seen = np.isfinite(away)
        largest = np.max(np.abs(away), axis=0, where=seen, initial=0.0)
        if np.any(largest > 2.0**HIGHEST):
            raise InputError("masks: numbers above 2⁶⁴ do not fit: rescale the columns")
        exponent = np.clip(np.ceil(np.log2(np.maximum(largest, 2.0**LOWEST))), LOWEST, HIGHEST)
        rows = seen.sum(axis=0)
        mean = np.sum(np.where(seen, away, 0.0), axis=0) / np.maximum(rows, 1)
        place = (exponent - LOWEST).astype(int)[:, None] == np.arange(CLASSES)
        here = place & (rows > 0)[:, None]
        found[f"{name}_magnitude"] = here.astype(np.float64)
        found[f"{name}_mantissa"] = np.where(
            here, np.ldexp(mean, -exponent.astype(int))[:, None], 0.0
        )
    return found


def centres_of(totals: Mapping[str, np.ndarray], known: Mapping[str, np.ndarray]) -> Sums:
    """The mean of clients' means, by column."""
    powers = 2.0 ** np.arange(LOWEST, HIGHEST + 1)
    found = {}
    for name in ("x", "y"):
        clients = np.maximum(totals[f"{name}_magnitude"].sum(axis=1), 1.0)
        found[f"{name}_centre"] = (
            known[f"{name}_centre"] + totals[f"{name}_mantissa"] @ powers / clients
        )
    return found


def units_of(totals: Mapping[str, np.ndarray]) -> Sums:
    """The power of two that no number of a column exceeds."""
    found = {}
    for name in ("x", "y"):
        counts = totals[f"{name}_magnitude"]
        highest = CLASSES - 1 - np.argmax(counts[:, ::-1] > 0.5, axis=1)
        used = counts.sum(axis=1) > 0.5
        found[f"{name}_unit"] = 2.0 ** np.where(used, highest + LOWEST, 0)
    return found


def moments(X: np.ndarray, Y: np.ndarray, known: Mapping[str, np.ndarray]) -> Sums:
    """Counts and sums of a client's rows about the centre, in the units of each column."""
    x = (X - known["x_centre"]) / known["x_unit"]
    seen = np.isfinite(Y)
    y = np.where(seen, (Y - known["y_centre"]) / known["y_unit"], 0.0)
    weight = seen.astype(np.float64)
    return {
        "rows": np.array([float(len(X))]),
        "y_clients": seen.any(axis=0).astype(np.float64),
        "y_pairs": weight.T @ weight,
        "x_total": x.sum(axis=0),
        "x_squares": (x**2).sum(axis=0),
        "y_total": y.T @ weight,
        "y_products": y.T @ y,
    }


def whole(totals: Mapping[str, np.ndarray], known: Mapping[str, np.ndarray]) -> Sums:
    """The totals as `census.merged` would have them, in the data's units, about the means of all rows."""
    rows, pairs = totals["rows"], totals["y_pairs"]
    safe = np.maximum(pairs, 1.0)
    x_unit, y_unit = known["x_unit"], known["y_unit"]
    x_mean = known["x_centre"] + x_unit * totals["x_total"] / rows
    within = x_unit**2 * (totals["x_squares"] - totals["x_total"] ** 2 / rows)
    y_mean = known["y_centre"][:, None] + y_unit[:, None] * totals["y_total"] / safe
    apart = totals["y_products"] - totals["y_total"] * totals["y_total"].T / safe
    diagonal = np.diag_indices_from(apart)
    apart[diagonal] = np.maximum(apart[diagonal], 0.0)
    found = {
        "rows": rows,
        "x_sum": rows * x_mean,
        "x_within": np.maximum(within, 0.0),
        "x_means": rows * x_mean**2,
        "y_clients": totals["y_clients"],
        "y_pairs": pairs,
        "y_mean": np.where(pairs > 0, y_mean, 0.0),
        "y_cross": np.outer(y_unit, y_unit) * apart,
    }
    others = {n: a for n, a in totals.items() if n not in found and n not in MOMENTS}
    return found | in_data_units(others, known)


def in_units(sums: Sums, known: Mapping[str, np.ndarray]) -> Sums:
    """Sums by lag in the units of the outputs; others have no unit."""
    return _scaled(sums, 1.0 / known["y_unit"] ** 2)


def in_data_units(sums: Sums, known: Mapping[str, np.ndarray]) -> Sums:
    """The inverse of `in_units`."""
    return _scaled(sums, known["y_unit"] ** 2)


def _scaled(sums: Sums, by: np.ndarray) -> Sums:
    return {name: array * by if name == "lag_sum" else array for name, array in sums.items()}


MOMENTS = ("x_total", "x_squares", "y_total", "y_products")
"""What `moments` has instead of means."""

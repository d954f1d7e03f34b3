"""Scales that clients have in common, so that figures compare, unless that would hide one of them.

One site in other units would flatten all others, and a layer that is small everywhere would be a straight
line. So what most clients need is the common scale. What is far larger, or far smaller, is drawn at its own,
and says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from pfedhgp.model.prediction import Layer
from pfedhgp.model.words import number

FAR = 4.0
"""This many times more than others need, or less than the scale shows, is worth a scale of its own."""
NOTHING = 0.01
"""A layer below this part of the prediction's height is nearly zero."""


class Scale(NamedTuple):
    """How high a figure is, in the data's units, and what its title says of that."""

    height: float
    words: str = ""


def common(heights: Sequence[float]) -> float:
    """The tallest of these heights that is not far from the typical one (the median)."""
    known = np.asarray([h for h in heights if np.isfinite(h) and h > 0])
    if not len(known):
        return 0.0
    return float(known[known <= FAR * np.median(known)].max())


def height_of(layer: Layer, output: int) -> float:
    """A height about zero that holds the layer, up to a hundredth of its 95% band."""
    mean, reach = layer.mean[:, output], 2.0 * layer.sd[:, output]
    low, high = np.quantile(mean - reach, 0.01), np.quantile(mean + reach, 0.99)
    return 2.1 * max(abs(float(low)), abs(float(high)))


def scale(own: float, shared: float, whole: float) -> Scale:
    """The common scale, or `own` where that is far from it; `whole` is the prediction's height.

    >>> scale(3.0, 4.0, 10.0), scale(0.5, 4.0, 10.0)
    (Scale(height=4.0, words=''), Scale(height=0.5, words='drawn 8.0 times larger'))
    >>> scale(400.0, 4.0, 500.0), scale(0.01, 4.0, 10.0)
    (Scale(height=400.0, words='drawn 100 times smaller'), Scale(height=4.0, words='nearly zero'))
    """
    if own <= NOTHING * whole or own <= 0 or shared <= 0:
        return Scale(max(shared, own), "nearly zero")
    if own > shared:
        few = own < 1.2 * shared
        return Scale(own, "" if few else f"drawn {number(own / shared, 2)} times smaller")
    if own * FAR < shared:
        return Scale(own, f"drawn {number(shared / own, 2)} times larger")
    return Scale(shared)


def beside(mean: np.ndarray, low: np.ndarray, high: np.ndarray) -> tuple[float, float] | None:
    """Limits by the mean where a band is so wide that the mean would be a straight line; else None.

    >>> beside(np.array([0.0, 1.0]), np.array([-50.0, -49.0]), np.array([50.0, 51.0]))
    (-1.5, 2.5)
    """
    least, most = float(mean.min()), float(mean.max())
    reach = 1.5 * (most - least)
    flat = reach <= 1e-6 * max(abs(least), abs(most))
    if flat or float(np.quantile(high, 0.98) - np.quantile(low, 0.02)) < 4.0 / 1.5 * 2.0 * reach:
        return None
    return least - reach, most + reach

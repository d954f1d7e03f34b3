"""Names on a map: beside their points, and not on each other."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from pfedhgp import plot
from pfedhgp.plot import labels
from support.grouped import kept_of


def boxes(figure, axes) -> list:
    figure.draw_without_rendering()
    return [Text.get_window_extent(text) for text in axes.texts]  # without lines to points


def touching(found) -> int:
    return sum(one.overlaps(two) for i, one in enumerate(found) for two in found[i + 1 :])


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("size", [(4, 3), (9, 6)])
def test_names_do_not_overlap(seed, size):
    """Thirty points, half of them in one corner."""
    rng = np.random.default_rng(seed)
    names = [f"Station {i}" for i in range(30)]
    spread = np.where(np.arange(30) < 15, 3.0, 30.0)[:, None]
    at = rng.uniform(size=(30, 2)) * spread + 30
    kept = kept_of(names, [i % 2 for i in range(30)])
    figure = Figure(figsize=size)
    axes = plot.zones_map(
        kept.zones, dict(zip(names, at.tolist(), strict=True)), ax=figure.add_subplot()
    )
    found = boxes(figure, axes)
    assert touching(found) == 0
    shown = [t.get_text() for t in axes.texts if t.get_text().startswith("Station")]
    assert len(shown) > (8 if size == (4, 3) else 20)
    missing = 30 - len(shown)
    words = f" · {missing} name{' has' if missing == 1 else 's have'} no room" if missing else ""
    assert axes.get_xlabel() == f"longitude, degrees{words}"


def test_a_free_name_is_above_and_to_the_right():
    (spot,) = labels.spots(np.array([[50.0, 50.0]]), [30.0], 10.0, (0, 0, 200, 200))
    assert spot.side == (1, 1)
    assert not spot.far


def test_at_the_edge_it_goes_to_the_other_side():
    (spot,) = labels.spots(np.array([[190.0, 195.0]]), [30.0], 10.0, (0, 0, 200, 200))
    assert spot.side == (-1, -1)


def test_in_a_crowd_names_move_away_or_are_left_out():
    points = np.full((30, 2), 100.0) + np.arange(30)[:, None] * 0.5
    found = labels.spots(points, [40.0] * 30, 10.0, (0, 0, 200, 200))
    assert any(spot is not None and spot.far for spot in found)
    assert any(spot is None for spot in found)
    again = labels.spots(points, [40.0] * 30, 10.0, (0, 0, 200, 200))
    assert found == again

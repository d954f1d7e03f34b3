"""Figures of models and of what their methods return, on matplotlib axes. The report draws the same ones.

Every function draws on `ax`, or on the axes of a new figure, and returns the axes. Labels are the names of
inputs and outputs, and datetimes have an axis of dates. Colours suit light and dark figures. rcParams stay
as they are.
"""

from pfedhgp.plot.of_model import (
    calibration,
    clients,
    convergence,
    layer,
    layers,
    prediction,
    shares,
    traffic,
)
from pfedhgp.plot.of_results import (
    backtest,
    diagnosis,
    distances,
    forecast,
    tree,
    why,
    zones_map,
)

__all__ = [  # noqa: RUF022 (in the order of the reference)
    "prediction",
    "layer",
    "layers",
    "clients",
    "shares",
    "forecast",
    "backtest",
    "calibration",
    "convergence",
    "traffic",
    "zones_map",
    "tree",
    "distances",
    "diagnosis",
    "why",
]

"""A new site gets the population's prediction; with a day of rows of its own you can adopt it."""

import warnings

import numpy as np

from pfedhgp import FederatedGP
from pfedhgp.errors import PFedHGPWarning

rng = np.random.default_rng(1)


def signal(own: float, hours: np.ndarray) -> np.ndarray:
    """A wave that all sites share, and one of the site's own."""
    return 40 + 10 * np.sin(hours / 3) + own * np.cos(hours / 4)


def readings(own: float, hours: np.ndarray) -> np.ndarray:
    return signal(own, hours) + rng.normal(size=len(hours))


hours = np.linspace(0, 24, 30)
model = FederatedGP().fit(
    {f"site {i}": (hours, readings(own, hours)) for i, own in enumerate([-4.0, -1.0, 2.0, 5.0])}
)

truth = signal(6.0, hours)
with warnings.catch_warnings():
    warnings.simplefilter("ignore", PFedHGPWarning)  # it says that the model does not know the site
    stranger = model.predict("new site", hours)

day = np.arange(0.5, 24.0, 1.0)
model.adopt("new site", day, readings(6.0, day))  # the global layer stays; nothing is sent
adopted = model.predict("new site", hours)

for name, p in (("stranger", stranger), ("adopted", adopted)):
    error = np.sqrt(np.mean((p.mean - truth) ** 2))
    print(f"{name}: known {p.known}, error {error:.1f}, typical sd {p.sd.mean():.1f}")

"""A site that was not there gets the population's prediction; with six rows of its own it can be adopted."""

import warnings

import numpy as np

from pfedhgp import FederatedGP
from pfedhgp.errors import PFedHGPWarning

rng = np.random.default_rng(1)


def readings(own: float, hours: np.ndarray) -> np.ndarray:
    """What a site reads: a wave that all share, and a shift of its own."""
    return 40 + 10 * np.sin(hours / 3) + own + rng.normal(size=len(hours))


hours = np.linspace(0, 24, 30)
model = FederatedGP(rounds=6).fit(
    {f"site {i}": (hours, readings(own, hours)) for i, own in enumerate([-4.0, -1.0, 2.0, 5.0])}
)

truth = 40 + 10 * np.sin(hours / 3) + 6.0
with warnings.catch_warnings():
    warnings.simplefilter("ignore", PFedHGPWarning)  # it would say that the site is not known
    stranger = model.predict("new site", hours)

few = np.array([1.0, 5.0, 9.0, 13.0, 17.0, 21.0])
model.adopt("new site", few, readings(6.0, few))  # the shared layer stays as it is; nothing is sent
adopted = model.predict("new site", hours)

for name, p in (("stranger", stranger), ("adopted", adopted)):
    error = np.sqrt(np.mean((p.mean[:, 0] - truth) ** 2))
    print(f"{name}: known {p.known}, error {error:.1f}, typical sd {p.sd.mean():.1f}")

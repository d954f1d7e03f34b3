"""The study's simulator and oracle, under the names that tests have for them."""

from pfedhgp.studies.synthetic.oracle import covariance, exact, given_global, oracle
from pfedhgp.studies.synthetic.simulator import (
    Scenario,
    Simulation,
    deviation_kernel,
    rbf,
    simulate,
)

__all__ = [
    "Scenario",
    "Simulation",
    "covariance",
    "deviation_kernel",
    "exact",
    "given_global",
    "oracle",
    "rbf",
    "simulate",
]

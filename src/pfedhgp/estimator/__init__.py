"""The estimator: `FederatedGP`, and what it needs around a fit."""

from pfedhgp.estimator.federated_gp import FederatedGP
from pfedhgp.gp.kernels import KERNELS

__all__ = ["KERNELS", "FederatedGP"]

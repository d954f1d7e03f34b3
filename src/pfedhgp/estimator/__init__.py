"""The estimator: `FederatedGP`, and what it needs around a fit."""

from pfedhgp.estimator.federated_gp import KERNELS, FederatedGP

__all__ = ["KERNELS", "FederatedGP"]

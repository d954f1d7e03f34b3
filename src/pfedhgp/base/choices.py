"""The words that settings choose from. No JAX: the command line's help lists them."""

from __future__ import annotations

LAYERS = ("global", "deviation", "local")
NOISES = ("scalar", "output", "full", "level")
LOCALS = ("inducing", "state-space")
FORMS = ("white", "stationary", "free")
"""Forms of the cycle layer."""
NO_PRIVACY = "none"
SUMS_PRIVACY = "sums"
"""Clients answer no sums from which their rows could be solved for."""
LOCAL_PRIVACY = "local"
"""Differential privacy: each client adds all the noise itself."""
DISTRIBUTED_PRIVACY = "distributed"
"""Differential privacy: each client adds a share of the noise, and the server gets totals alone."""
CENTRAL_PRIVACY = "central"
"""Differential privacy: one noise in totals, at a server that is trusted."""
DIFFERENTIAL = (LOCAL_PRIVACY, DISTRIBUTED_PRIVACY, CENTRAL_PRIVACY)
PRIVACY_UNITS = ("row", "client")
"""What differential privacy hides."""
ROBUST = ("test", "clip", "off")
"""What becomes of replies that do not fit the other clients'."""
PRIVACIES = (NO_PRIVACY, SUMS_PRIVACY, *DIFFERENTIAL)
SHARED_WHITE = "white-shared"
"""White noise that is estimated from all clients' cycles before training, as another form would be."""
SHARINGS = ("shared", "client", "mixed")
INFERENCES = ("structured", "mean-field", "markov")
DEVICES = ("cpu", "gpu")
AUTO = "auto"
KERNELS = ("rbf", "matern12", "matern32", "matern52", "periodic", "rational_quadratic")

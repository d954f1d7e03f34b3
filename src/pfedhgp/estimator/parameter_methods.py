"""What `FederatedGP` says about itself after a fit: its parameters in the data's units."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pfedhgp.model.fitted import FittedModel

if TYPE_CHECKING:
    from pfedhgp.estimator.summary import Summary
    from pfedhgp.model.parameters import AllLoadings, Kernels, Noises, Phis


class ParameterMethods:
    """Fitted parameters: each is what all clients share, and `[client]` is the client's own."""

    exchanges_: int
    bound_: float | None

    def _fitted(self) -> FittedModel:
        raise NotImplementedError

    def summary(self) -> Summary:
        """The fitted model on one screen: clients, layers, kernel, noise, φ, training, and what was sent.

        It prints as text; in a notebook it is a table, and `rich.print` shows it in colour.

        Example:
            >>> import numpy as np
            >>> from pfedhgp import FederatedGP
            >>> x = np.linspace(0, 1, 20)
            >>> sites = {name: (x, np.sin(6 * x) + shift) for name, shift in [("a", 0), ("b", 1)]}
            >>> print(FederatedGP().fit(sites).summary()["clients"])
            2, 40 rows (20 each)
        """
        from pfedhgp.estimator.summary import summary_of

        return summary_of(self._fitted(), exchanges=self.exchanges_, bound=self.bound_)

    @property
    def kernel_(self) -> Kernels:
        """The shared kernel in the data's units; `kernel_[client]` is the client's local kernel.

        Example:
            >>> import numpy as np
            >>> from pfedhgp import FederatedGP
            >>> x = np.linspace(0, 1000, 20)
            >>> sites = {name: (x, np.sin(x / 150) + shift) for name, shift in [("a", 0), ("b", 1)]}
            >>> model = FederatedGP(rounds=4).fit(sites)
            >>> 50 < model.kernel_.lengthscale < 1000
            True
        """
        from pfedhgp.model import parameters

        return parameters.kernels(self._fitted())

    @property
    def noise_(self) -> Noises:
        """`noise_[client]`: standard deviation of the client's noise, with a 95% interval if known."""
        from pfedhgp.model import parameters

        return parameters.noises(self._fitted())

    @property
    def phi_(self) -> Phis:
        """`phi_[client]`: variance of the client's deviation over the global layer's; `float(phi_)`: φ."""
        from pfedhgp.model import parameters

        return parameters.phis(self._fitted())

    @property
    def loadings_(self) -> AllLoadings:
        """How much of each global latent the outputs have; `loadings_[client]` has all of a client's."""
        from pfedhgp.model import parameters

        return parameters.loadings(self._fitted())

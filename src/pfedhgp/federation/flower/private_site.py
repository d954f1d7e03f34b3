"""A site of a private run, with its own ledger and ceiling: one release, or answers to questions (totals).

    HOME/ledger/        what was released of this site's rows, in all runs, and what it cost

Only the release depends on rows. The same request gets the same release again, at no cost. No Flower in here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from pfedhgp.base.choices import LOCAL_PRIVACY
from pfedhgp.data.rows import ClientRows
from pfedhgp.errors import InputError
from pfedhgp.federation import message_checks
from pfedhgp.federation.agreement import Agreement
from pfedhgp.federation.envelope import Envelope, Refused
from pfedhgp.federation.flower.totals_site import TotalsSite
from pfedhgp.federation.private_fit import frame, own_layers, public_scaling, released
from pfedhgp.federation.private_messages import (
    Shapes,
    read_delivery,
    release_arrays,
)
from pfedhgp.federation.schema import DELIVER, RELEASE
from pfedhgp.model.fitted import FittedModel
from pfedhgp.privacy.ledger import Ledger, Limit

FOLDER = "ledger"
CEILING = 1.0
"""ε of all releases of a site, if its owner says nothing."""


@dataclass(frozen=True)
class PrivateSite:
    """What a site does in a private run; `ceiling` is the ε that its rows may cost in all."""

    home: Path
    ceiling: float = CEILING

    def release(
        self, agreement: Agreement, rows: ClientRows, request: Envelope
    ) -> Mapping[str, np.ndarray]:
        """The release of these terms: new, or as it was."""
        if request.kind != RELEASE or request.arrays or request.exchange != 1:
            raise Refused("malformed", "a private run asks for one release")
        promise, public = agreement.promise, agreement.public
        assert promise is not None
        self.check_ceiling(agreement)
        try:
            found = released(
                promise,
                public,
                public_scaling(promise).rows(rows),
                ledger=Ledger(self.home / FOLDER),
                limit=Limit(self.ceiling, promise.delta),
            )
        except InputError as error:  # it names the ledger and what it cost, and no value
            raise Refused("budget", str(error)) from None
        return release_arrays(found)

    def check_ceiling(self, agreement: Agreement) -> None:
        """Refuses terms that may cost more than this site's owner allows."""
        assert agreement.promise is not None
        epsilon = agreement.promise.epsilon
        if epsilon > self.ceiling:
            why = f"ε = {epsilon:g} is above this site's --epsilon-ceiling {self.ceiling:g}"
            raise Refused("budget", why)

    def by_totals(self, agreement: Agreement, rows: ClientRows, folder: Path) -> TotalsSite | None:
        """The same site in a run by totals, whose files are in `folder`; None in another run."""
        assert agreement.promise is not None
        if agreement.model_settings.privacy == LOCAL_PRIVACY:
            return None
        return TotalsSite(agreement, rows, folder, Ledger(self.home / FOLDER), self.ceiling)

    def model(self, agreement: Agreement, rows: ClientRows, request: Envelope) -> FittedModel:
        """The delivered shared function, with this site's own layers."""
        promise, public, columns = agreement.promise, agreement.public, agreement.columns
        assert promise is not None
        if request.kind != DELIVER or request.exchange != 2:
            raise Refused("malformed")
        expected = Shapes(public, len(columns.outputs)).of_delivery()
        message_checks.check_arrays(request.arrays, expected)
        settings = agreement.model_settings
        names = (columns.input_names, columns.outputs)
        shared = read_delivery(public, request.arrays)
        others = read_delivery(public, request.arrays, "others.").posterior()
        model = frame(settings, promise, names, shared, int(request.arrays["clients"]))
        posterior, jitter = own_layers(settings, model, others, rows)
        return replace(
            model,
            settings={**model.settings, **agreement.settings()},
            clients={rows.name: posterior},
            client_jitter={rows.name: float(jitter)},
        )

"""Does the delivered model serve this site? Its own rows say so, before it is used.

Some rows are held out. What all other sites know of the shared functions (the totals without this site's own
sums) and the rest of the rows predict them; so does a model of the rest of the rows alone. If the second is
better, by more than chance, the shared model may be wrong here, or somebody sent false sums: an alarm. No row
and no error leaves the site, only whether there is an alarm.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

import numpy as np

from pfedhgp.data.rows import ClientRows
from pfedhgp.errors import PFedHGPError
from pfedhgp.federation import inprocess
from pfedhgp.federation.clients import ClientGroup
from pfedhgp.federation.envelope import Envelope
from pfedhgp.federation.grouping import group_clients
from pfedhgp.federation.plan import Plan
from pfedhgp.federation.planning import fitted_model
from pfedhgp.federation.server import Server
from pfedhgp.gp import linalg
from pfedhgp.inference.adoption import adopt
from pfedhgp.inference.structured.bound import GlobalEvidence
from pfedhgp.inference.structured.final_posteriors import final_others
from pfedhgp.inference.structured.posterior import evidence_of
from pfedhgp.inference.structured.settings import Structured, StructuredClients
from pfedhgp.model.fitted import FittedModel
from pfedhgp.model.posterior import GlobalPosterior
from pfedhgp.model.prediction import predict

log = logging.getLogger("pfedhgp.site")
LEAST_ROWS, MOST_ROWS = 30, 300
"""With fewer rows nothing is held out. Of more, evenly spaced ones are used: it takes a second or two."""
STRETCHES, HELD = 5, (1, 3)
"""Rows are cut into stretches along the first input, of which these are held out, one after the other: in a
gap the shared functions count, and next to the site's own rows they do not."""
MUCH, SURE = 1.25, 2.0
"""An alarm: an error larger than alone by this factor, and by so many standard errors of the difference."""


@dataclass(frozen=True)
class OwnCheck:
    """`ratio` is the error (RMSE) on `rows` held-out rows, over that of the site's model alone."""

    rows: int
    ratio: float
    alarm: bool

    @property
    def line(self) -> str:
        """For the site's terminal."""
        found = (
            f"on {self.rows} of this site's rows, held out for a check, the shared model's error is "
            f"{self.ratio:.2f} times that of a model of this site alone"
        )
        if not self.alarm:
            return found
        return f"{found}: an alarm is sent. Compare both before you use home/model"


def can_check(plan: Plan, rows: ClientRows) -> bool:
    """Models without cycles, by `structured`, of sites with enough rows and different inputs."""
    usual = plan.inference.name == "structured" and plan.cycles is None and rows.counts is None
    return (
        usual and bool(plan.spec.latents) and len(rows.X) >= LEAST_ROWS and np.ptp(rows.X[:, 0]) > 0
    )


def splits(rows: ClientRows) -> list[tuple[ClientRows, ClientRows]]:
    """(kept, held out) for each stretch that is held out, of at most `MOST_ROWS` rows."""
    order = np.argsort(rows.X[:, 0], kind="stable")
    order = order[:: -(-len(order) // MOST_ROWS)]
    stretch = np.arange(len(order)) * STRETCHES // len(order)
    return [(_take(rows, order[stretch != k]), _take(rows, order[stretch == k])) for k in HELD]


def _take(rows: ClientRows, which: np.ndarray) -> ClientRows:
    return replace(rows, X=rows.X[which], Y=rows.Y[which])


def check_delivery(
    plan: Plan, rows: ClientRows, group: ClientGroup, request: Envelope, model: FittedModel
) -> OwnCheck | None:
    """Of `model`, which a site has made of its group and of the delivery. None: nothing could be checked.

    An error ends the check, not the delivery: the model is there.
    """
    if not can_check(plan, rows):
        return None
    if any(missed.kind == "start" for missed in request.missed()):  # it did not train
        J, h = evidence_of(model.shared)
        others = GlobalEvidence(J[None], h[None])
    else:
        party = group.parties[int(request.arrays["attempt"])]
        assert isinstance(party, StructuredClients)
        others = final_others(party, model.shared, model.jitter)
    try:
        return check_own_rows(plan, model, rows, others)
    except (PFedHGPError, ValueError, ArithmeticError, np.linalg.LinAlgError) as error:
        log.warning("the model could not be checked on held-out rows: %s", type(error).__name__)
        return None


def check_own_rows(
    plan: Plan, model: FittedModel, rows: ClientRows, others: GlobalEvidence
) -> OwnCheck | None:
    """`others` is what the other sites know. None: too few cells are observed."""
    together: list[np.ndarray] = []
    alone: list[np.ndarray] = []
    count = 0
    for kept, held in splits(rows):
        seen = np.isfinite(held.Y)
        if np.isfinite(kept.Y).sum(axis=0).min() < 2 or seen.sum() < 2:
            return None
        count += int(seen.any(axis=1).sum())
        unit = np.nanstd(kept.Y, axis=0) + 1e-300
        for found, fitted in (
            (together, _beside(plan, model, kept, others)),
            (alone, _alone(plan, kept)),
        ):
            mean = np.asarray(predict(fitted, kept.name, held.X).mean)
            found.append((((mean - held.Y) / unit) ** 2)[seen])
    return compare(np.concatenate(together), np.concatenate(alone), count)


def compare(together: np.ndarray, alone: np.ndarray, rows: int) -> OwnCheck:
    """From squared errors at the same cells."""
    ratio = float(np.sqrt(together.mean() / max(float(alone.mean()), 1e-300)))
    worse = together - alone
    error = float(worse.std(ddof=1)) / np.sqrt(len(worse))
    return OwnCheck(rows, ratio, bool(ratio > MUCH and float(worse.mean()) > SURE * error))


def _beside(
    plan: Plan, model: FittedModel, kept: ClientRows, others: GlobalEvidence
) -> FittedModel:
    """The site's kept rows next to what the others know."""
    J, h = (np.asarray(each).reshape(np.asarray(each).shape[1:]) for each in others)
    shared = GlobalPosterior(model.shared.block, *linalg.posterior_moments(J, h))
    model = replace(model, shared=shared, clients={}, client_jitter={}, sums={})
    own = adopt(
        model,
        kept,
        noise=plan.spec.noise,
        settings=Structured(averaging=None),
        local_inducing=plan.local_inducing,
        local_latents=plan.spec.local_latents,
    )
    return own.into(model, kept.name)


def _alone(plan: Plan, kept: ClientRows) -> FittedModel:
    """A model of the kept rows and of nobody else's, by the same settings; nothing leaves this process."""
    own = replace(plan, masks=False, robust="off", privacy="none")
    server, groups = Server(own), group_clients(own, [kept], batch=True)
    inprocess.run(server, groups)
    names = [
        tuple(f"{n}{i}" for i in range(k))
        for n, k in (("x", kept.X.shape[1]), ("y", kept.Y.shape[1]))
    ]
    return fitted_model(
        own,
        server,
        groups,
        [kept],
        input_names=names[0],
        output_names=names[1],
        settings={},
        messages=[],
    )

"""[federation] of a settings file: what the server may see, and whom it believes."""

from __future__ import annotations

from pfedhgp.base.choices import AUTO, ROBUST
from pfedhgp.settings import kinds
from pfedhgp.settings.setting import setting, table


@table("federation")
class FederationSection:
    """[federation] of a settings file: what the server may see, and whom it believes."""

    masks: bool = setting(
        default=False,
        kind=kinds.FLAG,
        option="--masks/--no-masks",
        agreed=True,
        help="Whether the server gets totals over clients alone, by secure aggregation (3 to 100 clients).",
        python="Clients mask their replies, and only the sum of all can be read. Needs `cryptography`, "
        "which the extra `flower` brings.",
    )
    robust: str = setting(
        default=AUTO,
        kind=kinds.word(AUTO, *ROBUST),
        help="What to do with replies that do not fit the other clients': test (leave them out, from four "
        "clients on), clip (shorten them, for mean-field), off, or auto (test between machines, off in one "
        "process).",
        python="In one process all clients are yours, so auto is off there. See docs/deploy.md.",
    )

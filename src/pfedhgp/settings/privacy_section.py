"""[run] of a settings file: what protects rows, and what differential privacy may cost."""

from __future__ import annotations

from typing import Any

from pfedhgp.base.choices import DIFFERENTIAL, NO_PRIVACY, PRIVACIES, PRIVACY_UNITS
from pfedhgp.errors import InputError
from pfedhgp.settings import kinds
from pfedhgp.settings.setting import setting, settings_of, table

AT_SITES = "in a federation every site has its ledger in its own home: leave it out"


@table("run")
class PrivacySection:
    """[run] of a settings file: what each client's rows may cost."""

    privacy: str | None = setting(
        default=None,
        kind=kinds.word(*PRIVACIES),
        agreed=True,
        help="What protects rows: none (rows can be computed from the sums of a small client), sums "
        "(clients answer nothing from which their rows could be computed), or differential privacy (see "
        "--epsilon): local (one noisy release a client), distributed (totals alone, to which each client "
        "adds a share of the noise) or central (one noise in totals; the server must be trusted).",
        python="Differential privacy needs `epsilon`, `domain` and `output_bounds`.",
        unset="none in one process, sums between machines",
        example="sums",
    )
    epsilon: float | None = setting(
        default=None,
        kind=kinds.number(above=0.0),
        agreed=True,
        help="With --privacy local, distributed or central: ε of differential privacy for each row of a "
        "client. Smaller is more private, and less accurate.",
        unset="must be given for a private fit",
        example=1.0,
    )
    delta: float = setting(
        default=1e-6,
        kind=kinds.number(above=0.0, below=1.0),
        agreed=True,
        help="With --epsilon: δ of differential privacy. It should be far below one over the rows of "
        "a client.",
    )
    output_bounds: Any = setting(
        default=None,
        kind=kinds.PAIRS,
        metavar="LOW..HIGH",
        agreed=True,
        help="With --epsilon: public range of each output, in order. Values beyond it are clipped.",
        python="A pair (lower, upper) for each output.",
        unset="must be given for a private fit",
        example=("0..500",),
    )
    privacy_unit: str = setting(
        default="row",
        kind=kinds.word(*PRIVACY_UNITS),
        agreed=True,
        help="With --epsilon: what is hidden, each row or all rows of a client together (client). A whole "
        "client needs so much noise that below 100 clients the shared function is next to useless.",
    )
    rows_per_client: int | None = setting(
        default=None,
        kind=kinds.whole(1),
        agreed=True,
        help="With --privacy-unit client: most rows that a client uses for what it sends. One that has more "
        "draws so many. Its own layers use all of them.",
        unset="must be given for --privacy-unit client",
        example=50,
    )
    tolerated: int | None = setting(
        default=None,
        kind=kinds.whole(0),
        agreed=True,
        help="With --privacy distributed: how many clients may drop out, or tell the server their part of "
        "the noise, before ε is not kept any more. More tolerated clients mean more noise.",
        unset="a third of the clients",
        example=2,
    )
    ledger: str | None = setting(
        default=None,
        kind=kinds.PATH,
        metavar="FOLDER",
        refused=AT_SITES,
        help="With --epsilon: folder that keeps what was released of each client's rows, and what it "
        "cost in all. The same fit again uses the same releases, and costs nothing.",
        unset="nothing is kept, and every fit costs ε anew",
        example="ledger",
    )


def refuse_idle_privacy(settings: PrivacySection) -> None:
    """Refuses by name what is of differential privacy if there is none: it would promise nothing."""
    if settings.privacy in DIFFERENTIAL:
        return
    for each in settings_of(PrivacySection):
        if each.name != "privacy" and getattr(settings, each.name) != each.default:
            modes = ", ".join(DIFFERENTIAL[:-1])
            raise InputError(
                f"`{each.name}` is for `privacy` {modes} or {DIFFERENTIAL[-1]}, and `privacy` is "
                f"{settings.privacy or NO_PRIVACY}: rows would have no differential privacy. Choose one, or "
                f"leave `{each.name}` out"
            )

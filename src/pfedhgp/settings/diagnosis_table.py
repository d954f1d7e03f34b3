"""The settings of a diagnosis: see `pfedhgp.settings.table`."""

from __future__ import annotations

from pfedhgp.settings import kinds
from pfedhgp.settings.setting import setting, table


@table("model")
class DiagnosisSection:
    """[model] of a settings file: fault diagnosis."""

    diagnose: bool = setting(
        default=False,
        kind=kinds.FLAG,
        option="--diagnose/--no-diagnose",
        help="Learn how runs and cycles of a class differ, for `classify`, and set thresholds for "
        '"none of these", by held-out runs. Clients are the classes; in a federation --label names them.',
    )
    false_alarms: float = setting(
        default=0.01,
        kind=kinds.number(above=0.0, below=1.0),
        metavar="RATE",
        only_with="diagnose",
        help='With --diagnose: share of known runs that may have a cycle called "none of these".',
    )

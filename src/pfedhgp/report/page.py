"""From a fitted model to the page: gathers what the template shows, and writes it whole or not at all."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from markupsafe import Markup

from pfedhgp.base import atomic_files
from pfedhgp.base.numerics import with_numerics
from pfedhgp.errors import InputError
from pfedhgp.model import departures as departing
from pfedhgp.model import traffic
from pfedhgp.model.layers import layer_sizes
from pfedhgp.report import (
    attack_section,
    diagnosis_section,
    forecast_section,
    mixing_section,
    scores,
    sections,
    since,
    words,
    zone_section,
)
from pfedhgp.report.alarms import alarms
from pfedhgp.report.compact import shorter_names
from pfedhgp.report.gathered import LARGEST, ClientTables, Gathered, gather
from pfedhgp.report.theme import style
from pfedhgp.report.tiles import tiles
from pfedhgp.version import __version__

if TYPE_CHECKING:
    from pfedhgp.estimator import FederatedGP
    from pfedhgp.zones.result import KeptZones

_TABLE = re.compile(r"<table>.*?</table>", flags=re.DOTALL)
_ROW = re.compile(r"<tr>.*?</tr>", flags=re.DOTALL)


class Shown(TypedDict, total=False):
    """What a report may show besides the model; without rows of any kind it holds no data points."""

    rows: ClientTables
    """rows that were fitted to"""
    held_out: ClientTables
    """rows that the fit never saw"""
    others: ClientTables
    """rows of which neither is known"""
    metrics: Mapping[str, Any] | None
    """a RUN folder's metrics.json"""
    zones: KeptZones | None
    """what clustering found"""
    classified: Mapping[str, Any] | None
    """what classifying cycles left in a RUN folder"""
    attacks: Sequence[Mapping[str, Any]] | None
    """what an audit's attacks found"""
    backtest: Mapping[str, Any] | None
    """what `FederatedGP.backtest` found"""


def write(path: Path, model: FederatedGP, **shown: Unpack[Shown]) -> Path:
    """Writes the report of `model` to the file `path` and returns it; `Shown` lists what it may show.

    An older file stays as it was until the new one is complete.
    """
    path = Path(path)
    if path.is_dir():
        raise InputError(f"{path} is a folder: name the file that the report goes to")
    if not path.parent.is_dir():
        raise InputError(f"{path.parent}: no such folder; make it before the report is written")
    atomic_files.write_bytes(path, render(model, **shown).encode("utf-8", "replace"))
    return path


@with_numerics
def render(model: FederatedGP, **shown: Unpack[Shown]) -> str:
    """The page as text; `shown` as in `write`."""
    rows = [shown.get("rows"), shown.get("held_out"), shown.get("others")]
    found = gather(model, rows, shown.get("metrics") or {})
    zones, classified = shown.get("zones"), shown.get("classified")
    own = zone_section.section(zones) if zones is not None else None
    mixing = mixing_section.section(found, None if zones is None else zones.zones.labels)
    trained, cycles = diagnosis_section.trained_by_runs(found.model.settings), None
    if classified or trained:
        cycles = diagnosis_section.section(classified, axis=found.axes[0], trained=trained)
    page = words.template("template.html").render(
        _context(found),
        mixing=mixing,
        zones=own,
        diagnosis=cycles,
        past=forecast_section.section(shown.get("backtest")),
        attacks=attack_section.lines(shown.get("attacks") or ()),
        css=Markup(style()),
        version=__version__,
    )
    return _with_script(shorter_names(_TABLE.sub(_labelled, page)))


def _with_script(page: str) -> str:
    """The page with its script, which sorts tables, and no other is allowed: the policy has its hash."""
    text = (resources.files("pfedhgp.report") / "sort.js").read_text("utf-8")
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    page = page.replace("@script-hash@", f"'sha256-{digest}'", 1)
    before, _, after = page.rpartition("@script@")
    return f"{before}<script>{text}</script>{after}"


def _labelled(table: re.Match[str]) -> str:
    """The table with its columns' names at every cell: on a phone each row is a card, without a head."""
    head, body = table.group().split("</thead>", 1)
    names = re.findall(r"<th>(.*?)</th>", head, flags=re.DOTALL)[1:]

    def named(row: re.Match[str]) -> str:
        left = iter(names)
        return re.sub("<td>", lambda _: f'<td data-label="{next(left)}">', row.group())

    return f"{head}</thead>{_ROW.sub(named, body)}"


def _context(found: Gathered) -> dict[str, Any]:
    """What the template asks for, section by section."""
    model = found.model
    layer_shares = sections.layer_shares(found)
    sent = traffic.traffic(model.messages)
    return {
        "title": ", ".join(words.shown(n, 24) for n in model.output_names[:3]),
        "outputs": model.output_names,
        "axes": found.axes,
        "layers": found.layers,
        "clients": list(model.clients),
        "shown_rows": bool(found.rows),
        "shown_held_out": bool(found.held_out),
        "shown_others": bool(found.others),
        "holdout": found.metrics.get("holdout"),
        "alarms": alarms(found),
        "since": since.section(found.metrics),
        "tiles": tiles(found, layer_shares["shared"], sent),
        "overviews": sections.overviews(found),
        "all_clients": sections.all_clients(found),
        "fitted": sections.fitted(found),
        "sizes": list(zip(model.output_names, layer_sizes(model), strict=True)),
        "convergence": sections.convergence(found),
        "chosen": [sections.client_section(found, i, name) for i, name in enumerate(found.chosen)],
        "selection": len(model.clients) > LARGEST,
        "by_error": found.by_error,
        "slices": model.inputs > 1,
        "table": sections.client_table(found),
        "spent": model.settings.get("privacy_spent"),
        "closed": model.settings.get("told"),
        "masked": bool(model.settings.get("masks")),
        "departing": departing.in_words(departing.departures(model)),
        "shares": layer_shares,
        "scores": scores.lines(found.metrics),
        "sharpness": scores.sharpness(found),
        "calibration": scores.calibration(found.metrics),
        "baselines": scores.baselines(found.metrics),
        "several": sections.outputs_together(found),
        "traffic": sent,
    }

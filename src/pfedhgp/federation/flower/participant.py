"""A site of files: rows from a table, the model into HOME/model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from pfedhgp.errors import InputError
from pfedhgp.federation.clients import Cohort
from pfedhgp.federation.flower.envelope import Envelope, Refused
from pfedhgp.federation.flower.model import site_model
from pfedhgp.federation.flower.site import Site, Terms

MODEL = "model"


def make_site(
    *,
    home: Path,
    name: str,
    data: Sequence[Path],
    delimiter: str | None = None,
    least_rows: int = 5,
    expected: str | None = None,
) -> Site:
    """A site that reads `data` by the server's columns; by `expected` alone where it is given."""
    from pfedhgp.federation.agreement import Agreement, difference

    def read(text: str) -> Terms:
        try:
            agreed = Agreement.from_json(text)
            plan = agreed.plan()
        except InputError:
            raise Refused("config") from None
        if expected is not None and text != expected:
            raise Refused("config", difference(expected, text))
        rows = agreed.rows(data, name, delimiter=delimiter, least_rows=least_rows)
        return Terms(plan, rows)

    def keep(terms: Terms, cohort: Cohort, request: Envelope) -> None:
        from pfedhgp.model import files

        agreed = Agreement.from_json(request.agreement)
        try:
            summary = json.loads(request.summary)
            told = {key: summary[key] for key in ("exchanges", "bound", "starting_scales")}
        except (ValueError, KeyError, TypeError):
            raise Refused("malformed") from None
        late = any(missed.kind == "start" for missed in request.missed())
        model = site_model(
            terms.plan,
            terms.rows,
            cohort,
            request.message(),
            trained=not late,
            names=(agreed.columns.input_names, agreed.columns.outputs),
            settings={**agreed.settings(), **told},
        )
        files.save(model, home / MODEL, overwrite=True)

    return Site(home, name, read, keep)

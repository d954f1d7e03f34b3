"""`pfedhgp audit RUN --attack --data FILE`: attacks on a run's own messages, as a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pfedhgp.base.choices import DIFFERENTIAL, DISTRIBUTED_PRIVACY, LOCAL_PRIVACY
from pfedhgp.base.compilation_cache import use_compilation_cache
from pfedhgp.cli.terminal import result, say, warnings_as_lines
from pfedhgp.errors import InputError

if TYPE_CHECKING:
    from pfedhgp.attacks.audit import Finding
    from pfedhgp.data.rows import ClientRows
    from pfedhgp.estimator import FederatedGP
    from pfedhgp.federation.private_fit import Promise
    from pfedhgp.settings.table import ModelSettings


def attack_run(run: Path, data: Sequence[Path], *, delimiter: str | None, as_json: bool) -> None:
    """Repeats the messages from the rows, attacks them, shows what was found and keeps it for the report."""
    if not data:
        raise InputError(
            "--attack needs --data, the rows of the run: RUN keeps no contents of messages"
        )
    if (run / "site.json").is_file():
        _attack_home(run, data, delimiter=delimiter, as_json=as_json)
        return
    from pfedhgp.cli.saved import columns_of, open_run
    from pfedhgp.data.readers import read_observations
    from pfedhgp.data.text_tables import delimiter_of

    with warnings_as_lines() as told:
        spec = open_run(run)
        columns = columns_of(spec)
        given = read_observations(data, columns, delimiter=delimiter_of(delimiter))
        use_compilation_cache()
        from pfedhgp.attacks import kept
        from pfedhgp.cli.resplit import parts_of, warn_of
        from pfedhgp.estimator import FederatedGP

        model = FederatedGP.load(run)
        parts = parts_of(given, columns, model.model_)
        strangers = [*parts.strangers, *(each.name for each in parts.others)]
        warn_of(strangers, "not clients or rows of the fit, and left out")
        if not parts.rows:
            raise InputError("--data: no rows of the fit are in it")
        findings = findings_of(model, parts.rows)
        kept.write(run, str(spec["sha256"]), findings)
    if as_json:
        result({"run": str(run), "attacks": [_plain(f) for f in findings], "warnings": told})
        return
    _show(findings)
    say(f"kept for the report: `pfedhgp report {run} --overwrite`")


def _attack_home(home: Path, data: Sequence[Path], *, delimiter: str | None, as_json: bool) -> None:
    """What one site sent in its last run: the request is in its home, the rows are given."""
    import json

    from pfedhgp.attacks.audit import audit_site
    from pfedhgp.attacks.captured import captured_at_home
    from pfedhgp.data.readers import find_files
    from pfedhgp.federation.agreement import Agreement
    from pfedhgp.federation.flower.state import RunStore

    with warnings_as_lines() as told:
        name = str(json.loads((home / "site.json").read_bytes())["name"])
        runs = sorted((home / "runs").glob("*"), key=lambda path: path.stat().st_mtime)
        store = RunStore(runs[-1]) if runs else None
        text = None if store is None else store.agreement()
        if store is None or text is None:
            raise InputError(f"{home}: this site took part in no run: there is nothing to attack")
        agreement = Agreement.from_json(text)
        files = find_files(list(data))
        rows, _ = agreement.read(files, name, delimiter=delimiter, least_rows=1)
        settings, promise = agreement.model_settings, agreement.promise
        if promise is not None:
            findings = _private(settings, promise, [rows], at_server=True)
        else:
            last = store.newest()
            parts = {} if last is None else last.state.part(f"start {last.state.plain['attempt']}")
            if not parts:
                raise InputError(
                    f"{home}: this site answered no start request: there is nothing to attack"
                )
            findings = audit_site(captured_at_home(agreement.plan, rows, parts), rows)
    if as_json:
        result({"home": str(home), "attacks": [_plain(f) for f in findings], "warnings": told})
    else:
        _show(findings)


def findings_of(model: FederatedGP, rows: Sequence[ClientRows]) -> list[Finding]:
    """By the settings of the fit: attacks on sums, on totals, or on releases."""
    from pfedhgp.attacks.audit import audit_sums
    from pfedhgp.federation.private_fit import promise_of
    from pfedhgp.settings.config import checked

    settings, fitted = checked(model), model.model_
    if settings.privacy in DIFFERENTIAL:
        if settings.domain is None:  # of a run between machines the model's scales are the domain
            domain = tuple(zip(fitted.scaling.lower, fitted.scaling.upper, strict=True))
            settings = replace(settings, domain=domain)
        promise = promise_of(settings, fitted.inputs, fitted.outputs)
        at_server = bool(fitted.settings["privacy_spent"].get("noise_at_server", False))
        clients = len(fitted.clients)
        return _private(settings, promise, rows, at_server=at_server, clients=clients)
    plan = model.make_plan(settings, fitted.inputs, fitted.outputs)
    return audit_sums(plan, rows, seed=settings.seed)


def _private(
    settings: ModelSettings,
    promise: Promise,
    rows: Sequence[ClientRows],
    *,
    at_server: bool,
    clients: int = 3,
) -> list[Finding]:
    """Attacks on what left of these rows in a private run. `at_server`: the server drew central's noise."""
    from pfedhgp.attacks.audit import audit_releases, audit_totals
    from pfedhgp.attacks.channels import Releases
    from pfedhgp.federation.private_fit import BOUND, public_basis, public_scaling
    from pfedhgp.federation.totals_fit import Terms
    from pfedhgp.privacy.accounting import mu_for
    from pfedhgp.privacy.client_unit import of_a_row

    scaling, mu = public_scaling(promise), mu_for(promise.epsilon, promise.delta)
    public = public_basis(settings.kernel, scaling)
    if settings.privacy == LOCAL_PRIVACY:
        each = of_a_row(mu, promise.rows_per_client)
        channel = Releases(public, scaling, BOUND, each)
        return audit_releases(channel, rows, promise.epsilon, seed=settings.seed)
    hidden = settings.privacy == DISTRIBUTED_PRIVACY
    terms = Terms(promise, public, clients, 0, at_server=at_server)
    return audit_totals(terms, scaling, mu, rows, hidden=hidden, seed=settings.seed)


def _plain(finding: Finding) -> dict[str, Any]:
    from pfedhgp.model.run_notes import plain

    found: dict[str, Any] = plain(finding.as_json())
    return found


def _show(findings: Sequence[Finding]) -> None:
    from rich.console import Console
    from rich.table import Table

    from pfedhgp.report.attack_section import lines

    table = Table(
        "attack", "counted", "found", "chance", "promised", title="What an attacker learns"
    )
    for line in lines([_plain(each) for each in findings]):
        table.add_row(*line.values())
    Console(width=None).print(table)

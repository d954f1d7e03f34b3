"""`pfedhgp audit RUN --attack --data FILE`: attacks on a run's own messages, as a table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pfedhgp.base.choices import DIFFERENTIAL, LOCAL_PRIVACY
from pfedhgp.base.compilation_cache import use_compilation_cache
from pfedhgp.cli.terminal import result, say, warnings_as_lines
from pfedhgp.errors import InputError

if TYPE_CHECKING:
    from pfedhgp.attacks.audit import Finding
    from pfedhgp.data.rows import ClientRows
    from pfedhgp.estimator import FederatedGP


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
        text, last = (None, None) if store is None else (store.agreement(), store.newest())
        parts = {} if last is None else last.state.part(f"start {last.state.plain['attempt']}")
        if text is None or not parts:
            raise InputError(
                f"{home}: this site answered no start request: there is nothing to attack"
            )
        agreement = Agreement.from_json(text)
        files = find_files(list(data))
        rows, _ = agreement.read(files, name, delimiter=delimiter, least_rows=1)
        findings = audit_site(captured_at_home(agreement.plan, rows, parts), rows)
    if as_json:
        result({"home": str(home), "attacks": [_plain(f) for f in findings], "warnings": told})
    else:
        _show(findings)


def findings_of(model: FederatedGP, rows: Sequence[ClientRows]) -> list[Finding]:
    """By the settings of the fit: attacks on sums, on totals, or on releases."""
    from pfedhgp.attacks.audit import audit_releases, audit_sums
    from pfedhgp.attacks.channels import Releases
    from pfedhgp.federation.private_fit import BOUND, promise_of, public_basis, public_scaling
    from pfedhgp.privacy.accounting import mu_for
    from pfedhgp.settings.config import checked

    settings, fitted = checked(model), model.model_
    if settings.privacy == LOCAL_PRIVACY:
        promise = promise_of(settings, fitted.inputs, fitted.outputs)
        scaling = public_scaling(promise)
        mu = mu_for(promise.epsilon, promise.delta)
        channel = Releases(public_basis(settings.kernel, scaling), scaling, BOUND, mu)
        return audit_releases(channel, rows, promise.epsilon, seed=settings.seed)
    if settings.privacy in DIFFERENTIAL:
        raise InputError(
            f"--attack has no attack on the totals of privacy={settings.privacy!r}: it knows sums, masked "
            "totals and the releases of privacy='local'"
        )
    plan = model.make_plan(settings, fitted.inputs, fitted.outputs)
    return audit_sums(plan, rows, seed=settings.seed)


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

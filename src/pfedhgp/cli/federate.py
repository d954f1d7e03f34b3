"""`pfedhgp federate DATA… --client C …`: the options of `fit`, with a real process for each client.

For a trial on one machine: a server and a site for every client, with TLS and keys of their own; each site
has its own rows and nothing else. RUN is what `fit` writes; RUN/sites/<hash>/ is each site's home.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from pfedhgp.base.atomic_files import write_bytes
from pfedhgp.base.choices import NO_PRIVACY
from pfedhgp.cli.commands import require_flower
from pfedhgp.cli.federated_zones import ZoneGroups, check_groups
from pfedhgp.cli.fit import fit_options, run_command, with_option
from pfedhgp.cli.terminal import say
from pfedhgp.errors import InputError, warn
from pfedhgp.settings.config import SETTINGS, to_toml

if TYPE_CHECKING:
    from pfedhgp.cli.fit_from_files import FitJob
    from pfedhgp.data.ingest import Ingested
    from pfedhgp.data.readers import Observations
    from pfedhgp.estimator import FederatedGP
    from pfedhgp.settings.config import Config
    from pfedhgp.zones.result import KeptZones


PRIVATE, PREFIX = "private", "pfedhgp-"
"""Where the checkpoint says in which folder the sites' rows and keys are while they run."""


@with_option("zones", ZoneGroups)
@fit_options
def federate(**options: Any) -> None:
    """Fit with one process for each client; the processes exchange only sums.

    A whole federation on this machine, for a trial. Everything else is as in `fit`.

    RUN/sites/ has each site's home: its audit log and its own model.
    """
    require_flower()
    from pfedhgp.federation.flower.processes import FlowerError

    _check_device(options["device"])
    zones = options.pop("zones")
    found: list[FoundZones] = []

    def train_and_group(job: FitJob, show: Any) -> FederatedGP:
        check_groups(zones, len(job.data.training))
        model = train(job, show, zones)
        if zones is not None:
            found.extend(_zones_of(job.checkpoint.parent))
        return model

    try:
        run_command(options, train=train_and_group)
        for each in found:
            each.write(quiet=options["quiet"] or options["as_json"])
    except FlowerError as error:
        say(f"pfedhgp: error: {error}; `--resume` goes on from the last round")
        raise typer.Exit(1) from None


def _check_device(device: str | None) -> None:
    if device == "gpu":
        raise InputError(
            "--device gpu: server and sites of `federate` compute on the CPU: leave it out"
        )


@dataclass(frozen=True)
class FoundZones:
    """The groups that the server found; RUN is written once more, with all clients in it."""

    run: Path
    kept: KeptZones

    def write(self, *, quiet: bool) -> None:
        """Into RUN/zones and the report, as zones of the model that RUN has now."""
        from pfedhgp.cli.cluster import FOLDER, add_to_report, write
        from pfedhgp.cli.saved import open_run

        shutil.rmtree(self.run / FOLDER, ignore_errors=True)
        write(self.kept, self.run / FOLDER, open_run(self.run)["sha256"])
        add_to_report(self.run / "report.html", self.kept)
        say(f"zones   {self.run / FOLDER / 'zones.html'}", quiet=quiet)


def _zones_of(run: Path) -> list[FoundZones]:
    """What the server wrote; nothing if it found none."""
    from pfedhgp.cli.cluster import FOLDER
    from pfedhgp.cli.saved import open_run
    from pfedhgp.zones import result

    kept = result.read(run / FOLDER, open_run(run)["sha256"])
    return [] if kept is None else [FoundZones(run, kept)]


def train(job: FitJob, show: Any, zones: int | None = None) -> FederatedGP:
    """Writes each client's rows where only its site reads them, and runs the federation."""
    from pfedhgp.cli.child import COMMAND
    from pfedhgp.federation.flower.certificates import make_certificates
    from pfedhgp.federation.flower.processes import LocalFederation, LocalSite
    from pfedhgp.federation.flower.state import SITES, site_hash

    config, data, checkpoint = job.config, job.data, job.checkpoint
    _check_device(config.device)
    if not config.batch:
        warn("--one-by-one changes nothing here: every client is a process of its own")
    run, names = checkpoint.parent, [client.name for client in data.training]
    _remove_left_over(checkpoint / PRIVATE)
    # Rows: readable by the user alone, and not in RUN.
    private = Path(tempfile.mkdtemp(prefix=PREFIX))
    try:
        write_bytes(checkpoint / PRIVATE, str(private).encode("utf-8", "surrogateescape"))
        certificates = private / "certs"
        if config.masks:  # sites sign with their keys, which must stay the same if the run goes on
            certificates = checkpoint / "certs"
            if not job.resume:
                shutil.rmtree(certificates, ignore_errors=True)
        if certificates.is_dir():
            keys = {n: certificates / SITES / f"{site_hash(n)}.key" for n in names}
        else:
            keys = make_certificates(certificates, names, ["127.0.0.1"])
        (private / "run.toml").write_text(_settings(config, data), encoding="utf-8")
        _write_policy(private)
        members = []
        for client in data.training:
            rows = private / f"{site_hash(client.name)}.parquet"
            _write_rows(rows, client, data, config)
            home = run / SITES / site_hash(client.name)
            members.append(LocalSite(client.name, rows, keys[client.name], home))
        LocalFederation(
            command=COMMAND,
            config=private / "run.toml",
            certificates=certificates,
            out=run,
            sites=tuple(members),
            policy=private / "policy.toml",
            overwrite=not job.resume,
            masks=config.masks,
            i_know=config.privacy == NO_PRIVACY,  # here the sites are the user's own
            epsilon=config.epsilon,
            delta=config.delta,
            zones=zones,
        ).run(quiet=job.quiet)
    finally:
        shutil.rmtree(private)
    return _assembled(job, run, members)


def _remove_left_over(note: Path) -> None:
    """Removes the rows that a killed `federate` left behind."""
    if not note.is_file():
        return
    left = Path(note.read_bytes().decode("utf-8", "surrogateescape"))
    if left.name.startswith(PREFIX) and left.parent == Path(tempfile.gettempdir()):
        shutil.rmtree(left, ignore_errors=True)


def _settings(config: Config, data: Ingested) -> str:
    """The server's settings: columns as they were found, nothing of files."""
    columns, domain = data.columns, config.domain
    if domain is not None:
        kept = [name not in data.dropped for name in config.inputs]
        domain = tuple(text for text, keep in zip(domain, kept, strict=True) if keep)
    dated = tuple(column.name for column in columns.inputs if column.kind == "datetime")
    usual = {each.name: each.default for each in SETTINGS if each.unused}
    found = replace(
        config,
        **usual,
        inputs=columns.input_names,
        outputs=columns.outputs,
        datetimes=dated or None,
        datetime_format=None,
        domain=domain,
    )
    if data.labels is not None and not config.classes:
        found = replace(found, classes=tuple(sorted(set(data.labels.tolist()))))
    return to_toml(found)


def _write_policy(folder: Path) -> None:
    """What the trial's sites allow its server: all that its terms need."""
    from pfedhgp.federation.agreement import Agreement
    from pfedhgp.federation.policy.settings import of_a_trial, to_toml
    from pfedhgp.settings import config as configs

    plan = Agreement.of(configs.read(folder / "run.toml")).plan
    (folder / "policy.toml").write_text(to_toml(of_a_trial(plan)), encoding="utf-8")


def _write_rows(path: Path, client: Observations, data: Ingested, config: Config) -> None:
    import numpy as np
    import polars as pl

    inputs = zip(data.columns.inputs, client.X.T, strict=True)
    series = [column.series(values, column.name) for column, values in inputs]
    for q, name in enumerate(data.columns.outputs):
        cells = client.Y[:, q]
        series.append(pl.Series(name, np.where(np.isfinite(cells), cells, np.nan)).fill_nan(None))
    if data.columns.cycle is not None:
        assert client.cycle is not None
        series.append(pl.Series(data.columns.cycle, client.cycle.tolist(), dtype=pl.String))
    for column, texts in ((config.label, data.labels), (config.block, data.blocks)):
        if column is not None and texts is not None:
            series.append(pl.Series(column, texts[client.order].tolist(), dtype=pl.String))
    pl.DataFrame(series).write_parquet(path)
    os.chmod(path, 0o600)


def _assembled(job: FitJob, run: Path, members: list[Any]) -> FederatedGP:
    """What the sites and the server found, as one model: for a trial, everything is on one machine."""
    from pfedhgp.base.checks import short
    from pfedhgp.cli.fit_from_files import settings_of, words_of
    from pfedhgp.estimator import FederatedGP
    from pfedhgp.federation.flower.site import MODEL
    from pfedhgp.model import files

    found = files.load(run)
    clients: dict[str, Any] = {}
    jitter: dict[str, float] = {}
    layers: dict[str, Any] = {}
    for member in members:
        if not (member.home / MODEL).is_dir():
            warn(f"client {short(member.name)!r} has no model")
            continue
        own = files.load(member.home / MODEL)
        clients |= dict(own.clients)
        jitter |= dict(own.client_jitter)
        layers |= dict(own.client_layers)
    settings = {**found.settings, **words_of(job)}
    model = FederatedGP(**vars(settings_of(job)))
    model.model_ = replace(
        found, clients=clients, client_jitter=jitter, client_layers=layers, settings=settings
    )
    model.exchanges_, model.bound_ = int(settings["exchanges"]), settings["bound"]
    return model

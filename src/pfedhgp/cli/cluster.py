"""`pfedhgp cluster RUN`: which clients of a fitted model behave alike."""

from __future__ import annotations

import csv
import json
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pfedhgp.base import atomic_files
from pfedhgp.base.checks import listed
from pfedhgp.base.compilation_cache import use_compilation_cache
from pfedhgp.base.option_names import naming
from pfedhgp.cli.options import AsJson, Quiet, RunFolder
from pfedhgp.cli.targets import writing_to
from pfedhgp.cli.terminal import result, say, warnings_as_lines
from pfedhgp.errors import InputError

if TYPE_CHECKING:
    from pfedhgp.data.columns import Columns
    from pfedhgp.data.readers import Observations
    from pfedhgp.model.fitted import FittedModel
    from pfedhgp.zones.loadings import InputsAndOutputs
    from pfedhgp.zones.result import KeptZones, Zones

FOLDER, LOG = "zones", "messages.jsonl"
OF_FIT = {"client_loadings": "--client-loadings"}
MUCH = 0.7
"""R² above which `lines` warns."""


def cluster(
    run: RunFolder,
    groups: Annotated[
        int | None, typer.Option(help="Number of groups. Default: as many as --choose finds.")
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(
            help="agglomerative (Ward), average or spectral. Default: average by loadings, agglomerative by "
            "sketches, spectral with --distance operator."
        ),
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(
            help="loadings (how clients mix the shared functions) or sketch (of their own functions). "
            "Default: loadings if the model was fitted with --client-loadings."
        ),
    ] = None,
    distance: Annotated[
        str, typer.Option(help="function, or operator (the paper's, needs --data).")
    ] = "function",
    choose: Annotated[
        str, typer.Option(help="How to choose the number of groups: eigengap or silhouette.")
    ] = "eigengap",
    size: Annotated[
        int | None, typer.Option(help="Numbers in each client's sketch. Default: 240 per output.")
    ] = None,
    seed: Annotated[
        int,
        typer.Option(help="Public seed of the sketch. A second seed reveals more about the rows."),
    ] = 0,
    data: Annotated[
        list[Path] | None,
        typer.Option(
            "--data",
            help="The rows of the fit again, to measure how well sketches reproduce them. Rows that the fit "
            "held out are not used.",
        ),
    ] = None,
    places: Annotated[
        Path | None,
        typer.Option("--places", help="CSV file with client,latitude,longitude, for a map."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder for the results. Default: RUN/zones.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace existing zones.")] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Find groups of clients that behave alike, without pooling rows.

    Each client sends its loadings on the shared functions, if it has its own, or else a random sketch of its
    own fitted function. The result says how well what was sent reproduces the client's rows (with --data) or
    its fitted function.

    Without --out the groups are also added to RUN/report.html, if there is one.
    """
    from pfedhgp.cli.saved import clients_of, columns_of, open_run

    with warnings_as_lines():
        spec = open_run(run)
        columns = columns_of(spec)
        target = run / FOLDER if out is None else out
        if (target / "zones.json").exists() and not overwrite:
            raise InputError(
                f"{target} already holds zones: choose another --out, or give --overwrite"
            )
        coordinates = None if places is None else read_places(places, clients_of(spec))
        given = None
        if data:
            from pfedhgp.data.readers import read_observations

            given = read_observations(data, columns)
        use_compilation_cache()
        from pfedhgp.estimator import FederatedGP
        from pfedhgp.zones.clustering import ClusterSettings, discover
        from pfedhgp.zones.result import KeptZones

        model = FederatedGP.load(run)
        rows = None if given is None else fitted_rows(given, columns, model.model_)
        say("comparing the clients' functions", quiet=quiet)
        sent = read_log(run / FOLDER / LOG)
        arguments = {"groups", "method", "by", "distance", "choose", "size", "seed", "data"}
        with naming({**{name: f"--{name}" for name in arguments}, **OF_FIT}):
            how = ClusterSettings(
                groups=groups,
                method=method,
                distance=distance,
                by=by,
                choose=choose,
                size=size,
                seed=seed,
            )
            found = discover(model.model_, how, rows=rows, log=[*model.messages_, *sent])
        kept = KeptZones(found, coordinates)
        write(kept, target, spec["sha256"])
        if target.resolve() != (run / FOLDER).resolve():
            try:  # RUN keeps a record of what clients sent, even with --out
                add_to_log(run / FOLDER / LOG, found)
            except (OSError, InputError) as error:
                say(f"{run / FOLDER / LOG}: cannot add what clients sent to this log ({error})")
        shown = None if out is not None else add_to_report(run / "report.html", kept)
    if as_json:
        report = None if shown is None else str(shown)
        result({"run": str(run), "out": str(target), "report": report, **found.to_json()})
    elif not quiet:
        for line in lines(found):
            print(line)
        print(target / "zones.html")
        if shown is not None:
            print(shown)


def lines(zones: Zones) -> list[str]:
    """The result as text for the terminal."""
    from pfedhgp.zones.result import DRAWN

    said = [f"group {i + 1}: {', '.join(names)}" for i, names in enumerate(zones.members())]
    if zones.r2:
        said += _revealed(zones)
    if zones.scores:
        said.append(f"the number of groups, {zones.groups}, was chosen from the distances")
    if DRAWN in zones.stability:
        said.append(
            "stability: draws from the loadings' posteriors agree with these groups by "
            f"{zones.stability[DRAWN]:.2f} (ARI)"
        )
    elif zones.stability:
        said.append(
            f"stability: halves of the sketches agree with these groups by {zones.stability['halves']:.2f} "
            f"(ARI), bootstraps by {zones.stability['bootstraps']:.2f}"
        )
    if zones.sparse and zones.distance == "loadings":
        said.append(
            "clients with few rows, each compared with what its rows would show of a group: "
            + ", ".join(zones.sparse)
        )
    elif zones.sparse:
        few = ", ".join(zones.sparse)
        said.append(
            f"clients with few rows, compared only near them; all clients know where: {few}"
        )
    if zones.distance == "operator":
        said.append(
            "operators depend only on input times and kernels, not on what a client's function looks like"
        )
    return said


def _revealed(zones: Zones) -> list[str]:
    """What clients sent, and how much it reveals."""
    values = list(zones.r2.values())
    both = f"R² {sum(values) / len(values):.2f} on average, {max(values):.2f} at most"
    if zones.distance == "loadings":
        alone = list(zones.r2_shared.values())
        earlier = " and earlier sketches" if zones.earlier else ""
        return [
            f"each client sent {'its loading' if zones.size == 1 else f'its {zones.size} loadings'} and how "
            "sure they are; an attacker who knows everything except the outputs can reconstruct a client's "
            f"{zones.r2_of} from them{earlier} with {both} (without them, from the global layer alone: "
            f"{sum(alone) / max(len(alone), 1):.2f} and {max(alone, default=0.0):.2f})"
        ]
    more = zones.numbers - zones.size - 2
    count = "1 number" if more == 1 else f"{more} numbers"
    near = f", {count} about where clients with few rows have theirs" if more > 0 else ""
    said = [
        f"each client sent a sketch of {zones.size} numbers{near}, its variance and its coverage; an "
        "attacker who knows everything except the outputs can reconstruct a client's "
        f"{zones.r2_of} from {'this and earlier sketches' if zones.earlier else 'that'} with {both}"
    ]
    if max(values) > MUCH:
        said.append(
            "that is a lot: a smaller sketch (--size) reveals less, down to what the global layer says"
        )
    return said


def write(kept: KeptZones, folder: Path, model: str) -> None:
    """Writes zones.json, figures and zones.html, and adds what was sent to messages.jsonl.

    `model` is the SHA-256 of the spec that was clustered.
    """
    from pfedhgp.report import zone_figures, zone_section
    from pfedhgp.report.theme import standalone
    from pfedhgp.zones import result as files

    zones, places = kept.zones, kept.places
    pictures = {
        "dendrogram.svg": standalone(zone_figures.tree(zones)),
        "heat-map.svg": standalone(zone_figures.heat_map(zones)),
    }
    if places is not None:
        pictures["map.svg"] = standalone(zone_figures.site_map(zones.labels, places))
    pictures["zones.html"] = zone_section.page(kept)
    with writing_to(folder):
        for name, text in pictures.items():
            atomic_files.write_bytes(folder / name, text.encode("utf-8", "replace"))
        add_to_log(folder / LOG, zones)
        files.write(folder, kept, model)  # last: it says that the folder holds zones


def add_to_log(path: Path, zones: Zones) -> None:
    """Adds what was sent to a message log."""
    with writing_to(path):
        before = path.read_bytes() if path.exists() else b""
        sent = "".join(json.dumps(entry) + "\n" for entry in zones.messages)
        atomic_files.write_bytes(path, before + sent.encode())


def read_log(path: Path) -> list[dict[str, Any]]:
    """The messages of earlier calls."""
    if not path.exists():
        return []
    try:
        found = [json.loads(line) for line in path.read_bytes().splitlines()]
        if not all(isinstance(entry, dict) for entry in found):
            raise ValueError
    except (OSError, ValueError):
        raise InputError(
            f"{path}: not a message log; move it away to continue without it"
        ) from None
    return found


def add_to_report(path: Path, kept: KeptZones) -> Path | None:
    """Adds the groups to an existing report; the rest of it, with any rows, stays as it is."""
    from pfedhgp.report import zone_section

    if not path.is_file():
        return None
    text = zone_section.inserted(path.read_text("utf-8", errors="replace"), kept)
    if text is None:
        say(f"{path} has no place for zones: write a new one with `pfedhgp report --overwrite`")
        return None
    atomic_files.write_bytes(path, text.encode("utf-8"))
    return path


def fitted_rows(
    given: Sequence[Observations], columns: Columns, model: FittedModel
) -> InputsAndOutputs:
    """{client: (X, Y)} of the rows of the fit: Cov(y, s) = K_xg Ω holds for no others."""
    from pfedhgp.cli.resplit import parts_of, warn_of

    parts = parts_of(given, columns, model)
    warn_of(parts.strangers, "not in the model, and left out")
    if parts.others:
        raise InputError(
            f"--data: the rows of client {parts.others[0].name!r} are not those of the fit: give the same "
            "rows, held-out ones too, or leave --data out"
        )
    return {each.name: (each.X, each.Y) for each in parts.rows}


PLACES = ("client", "latitude", "longitude")


def read_places(path: Path, clients: Collection[str]) -> dict[str, tuple[float, float]]:
    """{client: (latitude, longitude)} from a CSV file with these three columns and a row for every client."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            table, header = list(reader), reader.fieldnames or []
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read ({error})") from None
    absent = [name for name in PLACES if name not in header]
    if absent:
        raise InputError(
            f"{path}, line 1: no column {absent[0]!r}; the header must have {', '.join(PLACES)}, it has "
            f"{listed([str(name) for name in header], 5) or 'nothing'}"
        )
    found = {}
    for number, row in enumerate(table, 2):
        try:
            place = float(row["latitude"]), float(row["longitude"])
            found[row["client"]] = place
        except (KeyError, TypeError, ValueError):
            raise InputError(
                f"{path}, line {number}: expected client,latitude,longitude with two numbers"
            ) from None
        if not (abs(place[0]) <= 90.0 and abs(place[1]) <= 360.0):
            raise InputError(f"{path}, line {number}: latitude or longitude out of range")
    missing = sorted(name for name in clients if name not in found)
    if missing:
        raise InputError(f"{path}: no row for client {missing[0]!r}")
    return found

"""`pfedhgp cluster RUN`: which clients of a fitted model behave alike."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from pfedhgp.zones import Zones


def cluster(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A folder that fit wrote.")],
    groups: Annotated[
        int | None, typer.Option(help="How many groups; by default as many as --choose finds.")
    ] = None,
    method: Annotated[
        str, typer.Option(help="agglomerative (Ward's), average or spectral.")
    ] = "agglomerative",
    distance: Annotated[
        str, typer.Option(help="function, or operator: the paper's, which needs --data.")
    ] = "function",
    choose: Annotated[
        str, typer.Option(help="How groups are counted: eigengap or silhouette.")
    ] = "eigengap",
    size: Annotated[int | None, typer.Option(help="Numbers in each client's sketch.")] = None,
    seed: Annotated[int, typer.Option(help="Of the sketch; public.")] = 0,
    data: Annotated[
        list[Path] | None,
        typer.Option("--data", help="The rows again, to measure what sketches reproduce of them."),
    ] = None,
    places: Annotated[
        Path | None,
        typer.Option("--places", help="CSV of client,latitude,longitude, for a map."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder for the results; by default RUN/zones.")
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace zones that are there.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing but warnings.")] = False,
) -> None:
    """Find groups of clients that behave alike, without pooling rows.

    Each client sends a random sketch of its own fitted function; the result says how well that sketch
    reproduces the client's rows (with --data) or its fitted function.
    """
    from pfedhgp.cli.saved import columns_of, open_run
    from pfedhgp.cli.terminal import result, use_compilation_cache, warnings_as_lines
    from pfedhgp.errors import InputError

    with warnings_as_lines():
        columns = columns_of(open_run(run))
        target = run / "zones" if out is None else out
        if (target / "zones.json").exists() and not overwrite:
            raise InputError(
                f"{target} holds zones already: choose another --out, or give --overwrite"
            )
        coordinates = None if places is None else read_places(places)
        rows = None
        if data:
            from pfedhgp.data.readers import read_clients

            rows = {each.name: (each.X, each.Y) for each in read_clients(data, columns)}
        use_compilation_cache()
        from pfedhgp.estimator import FederatedGP
        from pfedhgp.zones import discover

        model = FederatedGP.load(run)
        found = discover(
            model.model_,
            groups,
            method=method,
            distance=distance,
            choose=choose,
            size=size,
            seed=seed,
            rows=rows,
        )
        write(found, target, coordinates)
    if as_json:
        result({"run": str(run), "out": str(target), **found.to_json()})
    elif not quiet:
        for line in lines(found):
            print(line)
        print(target / "zones.html")


def lines(zones: Zones) -> list[str]:
    """What the terminal shows."""
    said = [f"group {i + 1}: {', '.join(names)}" for i, names in enumerate(zones.members())]
    if zones.r2:
        values = list(zones.r2.values())
        said.append(
            f"each client sent {zones.size} numbers; they reproduce its {zones.r2_of} with R² "
            f"{sum(values) / len(values):.2f} on average, {max(values):.2f} at most"
        )
    if zones.stability:
        said.append(
            f"agreement (ARI) over other sketches {zones.stability['sketches']:.2f}, "
            f"over bootstraps {zones.stability['bootstraps']:.2f}"
        )
    if zones.sparse:
        said.append(f"few rows, compared where they are: {', '.join(zones.sparse)}")
    if zones.distance == "operator":
        said.append(
            "operators see input times and kernels, never what a client's function looks like"
        )
    return said


def write(zones: Zones, folder: Path, coordinates: dict[str, tuple[float, float]] | None) -> None:
    """zones.json, figures and zones.html; and in messages.jsonl what was sent, after what was sent before."""
    import html

    from pfedhgp import zone_figures
    from pfedhgp.errors import InputError
    from pfedhgp.studies.report import STYLE
    from pfedhgp.studies.store import write_whole

    pictures = {
        "dendrogram.svg": zone_figures.dendrogram(zones),
        "heat-map.svg": zone_figures.heat_map(zones),
    }
    if coordinates is not None:
        missing = [name for name in zones.clients if name not in coordinates]
        if missing:
            raise InputError(f"--places has no row of client {missing[0]!r}")
        pictures["map.svg"] = zone_figures.site_map(zones.labels, coordinates, "Zones")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder}: cannot write there ({error.strerror})") from None
    for name, svg in pictures.items():
        write_whole(folder / name, svg)
    body = "".join(f"<p>{html.escape(line)}</p>" for line in lines(zones))
    body += "".join(svg[svg.index("<svg") :] for svg in pictures.values())
    write_whole(
        folder / "zones.html",
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Zones</title>'
        f"<style>{STYLE}</style></head><body><h1>Zones</h1>{body}</body></html>\n",
    )
    log = folder / "messages.jsonl"
    before = log.read_text() if log.exists() else ""
    write_whole(log, before + "".join(json.dumps(entry) + "\n" for entry in zones.messages))
    write_whole(folder / "zones.json", json.dumps(zones.to_json(), allow_nan=False) + "\n")


def read_places(path: Path) -> dict[str, tuple[float, float]]:
    """{client: (latitude, longitude)} of a CSV with these three columns."""
    import csv

    from pfedhgp.errors import InputError

    try:
        with path.open(newline="", encoding="utf-8") as file:
            table = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read ({error})") from None
    found = {}
    for number, row in enumerate(table, 2):
        try:
            place = float(row["latitude"]), float(row["longitude"])
            found[row["client"]] = place
        except (KeyError, TypeError, ValueError):
            raise InputError(
                f"{path}, line {number}: a row is client,latitude,longitude (two numbers)"
            ) from None
        if not (abs(place[0]) <= 90.0 and abs(place[1]) <= 360.0):
            raise InputError(f"{path}, line {number}: latitude or longitude out of range")
    return found

"""The sections of the page: overview, fit, convergence, layers, outputs, clients."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from markupsafe import Markup

from pfedhgp.gp.kernels import Stacks
from pfedhgp.inference.ending import in_words
from pfedhgp.inference.starts import contest
from pfedhgp.model import departures
from pfedhgp.model.kernel_words import kernels_of
from pfedhgp.model.layers import PARTS, layer_sizes, shares
from pfedhgp.model.posterior import limits_in_words
from pfedhgp.report import carpet, charts, figures, multiples, scores, spans, words
from pfedhgp.report.gathered import Gathered
from pfedhgp.report.shares import evidence, signs_of_uncertainty
from pfedhgp.report.theme import NARROW, both

FEW_LINES = 5
"""So many clients' lines can be told apart in one figure."""
MOST_OUTPUTS = 4
"""Outputs with an overview."""
MOST_PANELS = 8
"""Figures a client: one for each output and input, up to this."""


def overviews(found: Gathered) -> list[dict[str, Any]]:
    """An output of all clients shown, for each of the first: lines if they are few and smooth, or strips."""
    if "global" not in found.layers:
        return []
    slices = {name: own[0] for name, own in found.slices.items()}
    draw: Any = carpet.carpet
    if len(slices) <= FEW_LINES and found.since[0] == 0.0:
        draw = figures.overview
    thin = draw is carpet.carpet and carpet.with_rows(slices, carpet.COLUMNS) is not None
    return [
        {
            "output": q,
            "figure": both(
                partial(_overview, draw, slices, q, found.model.output_names[q]),
                "overview" if q == 0 else f"overview-{q}",
            ),
            "lines": draw is figures.overview,
            "largest": carpet.own_parts(slices, q)[1],
            "beyond": carpet.beyond(slices, q),
            "thin": thin,
        }
        for q in range(min(found.model.outputs, MOST_OUTPUTS))
    ]


def _overview(draw: Any, slices: Any, output: int, output_name: str, width: int, name: str) -> str:
    text: str = draw(slices, output, output_name=output_name, width=width, name=name)
    return text


def all_clients(found: Gathered) -> list[dict[str, Any]]:
    """Small figures of every client, by output; none if all have figures of their own, or are too many."""
    names = found.in_order
    if len(found.chosen) == len(names) or len(names) > multiples.MOST:
        return []
    views = found.small()
    return [
        {
            "output": q,
            "figure": both(
                partial(_overview, multiples.multiples, views, q, found.model.output_names[q]),
                f"all-{q}",
            ),
            "ranges": len(next(iter(views.values())).x) > 2 * multiples.COLUMNS,
            "apart": [n for n, (*_, times) in multiples.limits_of(views, q).items() if times != 1],
        }
        for q in range(min(found.model.outputs, MOST_OUTPUTS, 1 + multiples.MOST // len(names)))
    ]


def fitted(found: Gathered) -> list[tuple[str, Any]]:
    """What was fitted, as terms and values."""
    model = found.model
    rounds = sum(h.get("kind") == "round" for h in model.history)
    own = [int(np.asarray(c.block.active).sum()) for c in model.clients.values()]
    facts_: list[tuple[str, Any]] = [
        ("Layers", ", ".join(found.layers)),
        ("Inference", model.inference),
        ("Clients", f"{len(model.clients):,}".replace(",", "\u202f")),
    ]
    if found.counts:
        observed = f"{sum(found.counts.values()):,}".replace(",", "\u202f")
        term = "Observed cells in the model" if found.changed else "Observed cells fitted to"
        facts_.append((term, observed if found.counts_exact else f"about {observed}"))
    kernels = kernels_of(model)
    if isinstance(model.shared.block.kernels, Stacks):
        half = len(kernels) // 2
        facts_ += _by_latent("Kernel of global", kernels[:half])
        facts_ += _by_latent("Kernel of deviation", kernels[half:])
    else:
        also = " and deviation" if "deviation" in found.layers else ""
        facts_ += _by_latent(f"Kernel of global{also}", kernels)
    if "deviation" in found.layers:
        facts_.append(("φ, scale of the deviations", words.number(model.shared.block.phi)))
    if "local" in found.layers:
        name = found.chosen[0]
        kernels = kernels_of(model, name)
        facts_ += _by_latent(f"Local kernel of {words.shown(name)}", kernels)
        if len(model.clients) > 1:
            facts_.append(("Local kernels of the others", "under each client's figures"))
    if (choice := contest.in_words(model.settings.get("choice", ()))) is not None:
        subject = contest.subject(model.settings["choice"])
        facts_.append((f"Choice of {subject}", choice))
    if "global" in found.layers:
        facts_.append(("Inducing inputs, global", str(len(model.shared.block.inputs))))
    if "local" in found.layers:
        facts_.append(("Inducing inputs, local", _range(own)))
    if rounds:
        facts_.append(("Rounds and exchanges", f"{rounds} and {found.exchanges}"))
    if found.metrics.get("seconds") is not None:
        facts_.append(("Time to fit", words.duration(float(found.metrics["seconds"]))))
    return facts_


def _by_latent(term: str, texts: Sequence[str]) -> list[tuple[str, Any]]:
    several = len(texts) > 1
    return [(f"{term}, latent {r + 1}" if several else term, text) for r, text in enumerate(texts)]


def _range(values: Sequence[int]) -> str:
    low, high = min(values, default=0), max(values, default=0)
    return str(low) if low == high else f"{low} to {high} a client"


def convergence(found: Gathered) -> dict[str, Any]:
    """The bound and the bytes by round, how training ended, and where averaging was limited."""
    history = found.model.history
    known = any(h.get("bound") is not None for h in history)
    if not history:
        return {"figure": None, "known": known, "ended": None, "limited": None}
    figure = both(lambda w, key: charts.convergence(history, width=w, name=key), "convergence")
    return {
        "figure": figure,
        "known": known,
        "ended": words.plain(in_words(history) or "") or None,
        "limited": limits_in_words(found.model.clients),
    }


def layer_shares(found: Gathered) -> dict[str, Any]:
    """What each layer explains, and how far to trust it."""
    model, population = found.model, found.model.population
    centre = np.broadcast_to(model.scaling.centre, (model.outputs,))
    predictions = {n: [s.prediction for s in own] for n, own in found.slices.items()}
    each = {name: shares(several, centre) for name, several in predictions.items()}
    by_output = np.stack([each[name] for name in found.chosen])
    drawn = by_output.mean(axis=1)
    shared = by_output[:, :, 0].mean(axis=0)
    split = {"global", "deviation"} <= set(found.layers)
    sizes = layer_sizes(model)
    known = evidence(
        predictions,
        each,
        clients=len(model.clients),
        rows=found.counts,
        heterogeneity=float(np.mean(sizes[:, 1] ** 2 / np.maximum(sizes[:, 0] ** 2, 1e-300))),
    )
    return {
        "figure": both(
            lambda w, key: charts.variance_shares(found.chosen, drawn, width=w, name=key), "shares"
        ),
        "shared": shared if "global" in found.layers else np.zeros(model.outputs),
        "mean": dict(zip(PARTS, drawn.mean(axis=0).tolist(), strict=True)),
        "signs": signs_of_uncertainty(known) if split else [],
        "correlation": known.correlation if split else None,
        "divided": int(population.clients) if np.any(np.asarray(population.division)) else 0,
        "counted": bool(found.counts),
    }


def outputs_together(found: Gathered) -> dict[str, Any] | None:
    """Loadings and correlations, where there are several outputs."""
    model = found.model
    Q, names = model.outputs, model.output_names
    if Q == 1:
        return None
    spread = np.broadcast_to(model.scaling.spread, (Q,))
    # In units of each output's own spread, so that rows compare: the outputs' units may be 10¹² apart.
    loadings = np.asarray(model.shared.block.loadings)
    correlations = charts.heatmap(
        _output_correlation(found),
        rows=names,
        columns=names,
        title="Correlation of the outputs",
        name="correlation",
        largest=1.0,
    )
    drawn = None
    if loadings.shape[1]:
        drawn = charts.heatmap(
            loadings,
            rows=names,
            columns=[f"latent {r + 1}" for r in range(loadings.shape[1])],
            title="Loadings of the global layer",
            name="loadings",
        )
    scales = [(name, float(s)) for name, s in zip(names, spread, strict=True)]
    return {
        "correlation": Markup(correlations),
        "loadings": drawn and Markup(drawn),
        "scales": scales,
    }


def _output_correlation(found: Gathered) -> np.ndarray:
    """Correlations of Cov_x{mean} + mean_x Cov (noise included), averaged over the clients shown."""
    every = []
    for own in found.slices.values():
        mean = np.concatenate([s.prediction.mean for s in own])
        cov = np.concatenate([s.prediction.covariance("outputs") for s in own])
        every.append(np.cov(mean.T, bias=True) + cov.mean(axis=0))
    sd = [np.sqrt(np.diagonal(c)) for c in every]
    return np.mean([c / np.outer(s, s) for c, s in zip(every, sd, strict=True)], axis=0)


# ------------------------------------------------------------------------------- one client


def client_section(found: Gathered, index: int, name: str) -> dict[str, Any]:
    """A client's figures and what stands beside them."""
    model, slices = found.model, found.slices[name]
    wanted = [(j, q) for q in range(model.outputs) for j in range(len(slices))]
    panels = [
        {"figure": _panel(found, index, name, j, q), "slice": slices[j], "output": q}
        for j, q in wanted[:MOST_PANELS]
    ]
    first = model.output_names[0]
    return {
        "name": name,
        "observed": found.counts.get(name),
        "score": scores.of_client(found.metrics, name, first),
        "panels": panels,
        "left_out": max(len(wanted) - MOST_PANELS, 0),
        "local": kernels_of(model, name) if "local" in found.layers else [],
        "noise": layer_sizes(model, name)[:, 3],
    }


def _panel(found: Gathered, index: int, name: str, j: int, q: int) -> Markup:
    span = spans.common(
        [
            max(
                spans.height_of(own[j].prediction.layers[name], q)
                for name in ("deviation", "local")
            )
            for own in found.slices.values()
        ]
    )
    extent = float(found.model.scaling.extent[j]) * (1.0 - found.since[j])
    return both(
        lambda width, key: figures.client_panels(
            found.slices[name][j],
            q,
            output_name=found.model.output_names[q],
            layers=found.layers,
            width=width,
            name=key,
            span=span,
            since=found.since[j] if width <= NARROW else 0.0,
            last=found.axes[j].length(extent),
        ),
        f"client-{index}-{j}-{q}",
    )


def client_table(found: Gathered) -> list[dict[str, Any]]:
    """A line for each client and output: noise, departure, and held-out scores in that output's units."""
    lines = []
    wanted = ("rows", "rmse", "nll", "crps", "coverage", "width")
    known = departures.departures(found.model)
    for name in found.model.clients:
        noise = layer_sizes(found.model, name)[:, 3]
        for q, output in enumerate(found.model.output_names):
            score = scores.of_client(found.metrics, name, output)
            lines.append(
                {
                    "name": name,
                    "output": output,
                    "observed": found.counts.get(name),
                    "noise": noise[q],
                    "first": q == 0,
                    "departure": known.get(name),
                    **{key: score.get(key) for key in wanted},
                }
            )
    return lines

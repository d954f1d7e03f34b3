"""From a fitted model to the page: gathers what the template shows, and writes it whole or not at all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2
import numpy as np
from markupsafe import Markup

from pfedhgp import __version__, atomic
from pfedhgp.data.rows import ClientRows
from pfedhgp.errors import InputError
from pfedhgp.report import charts, facts, figures, words
from pfedhgp.report.shares import PARTS, evidence, shares, signs_of_shakiness
from pfedhgp.report.theme import NARROW, WIDE
from pfedhgp.report.views import (
    LARGEST,
    MOST_POINTS,
    ClientView,
    choose,
    finest_scale,
    grid_size,
    view_client,
)
from pfedhgp.runtime import with_numerics

if TYPE_CHECKING:
    from pfedhgp.estimator import FederatedGP

__all__ = ["render", "write"]

MOST_PANELS = 8
"""Figures a client: one for each output and input, up to this."""

NARROW_SCALES = 18.0
"""A narrow figure shows the last so many of the finest scale, where the whole would be a blur."""

Rows = Sequence[ClientRows] | None


def write(
    path: Path,
    model: FederatedGP,
    *,
    rows: Rows = None,
    metrics: Mapping[str, Any] | None = None,
    held_out: Rows = None,
) -> Path:
    """Writes the report of `model` to the file `path` and returns it.

    Without `rows` and `held_out` the file holds no data points. `metrics` is a RUN folder's metrics.json.
    An older file stays as it was until the new one is complete.
    """
    path = Path(path)
    if path.is_dir():
        raise InputError(f"{path} is a folder: name the file that the report goes to")
    if not path.parent.is_dir():
        raise InputError(f"{path.parent}: no such folder; make it before the report is written")
    text = render(model, rows=rows, metrics=metrics, held_out=held_out)
    atomic.write_bytes(path, text.encode("utf-8", "replace"))
    return path


@with_numerics
def render(
    model: FederatedGP,
    *,
    rows: Rows = None,
    metrics: Mapping[str, Any] | None = None,
    held_out: Rows = None,
) -> str:
    """The page as text."""
    page = _Page(model, rows, metrics or {}, held_out)
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    environment.filters |= {
        "number": words.number,
        "percent": words.percent,
        "bytes": words.byte_size,
        "duration": words.duration,
        "shown": words.shown,
    }
    folder = resources.files("pfedhgp.report")
    template = environment.from_string((folder / "template.html").read_text("utf-8"))
    css = (folder / "style.css").read_text("utf-8")
    return template.render(page.context(), css=Markup(css), version=__version__)


class _Page:
    """What the template asks for, section by section."""

    def __init__(
        self, model: FederatedGP, rows: Rows, metrics: Mapping[str, Any], held_out: Rows
    ) -> None:
        self.estimator, self.model = model, model._fitted()
        self.metrics = metrics
        self.axes = words.axes_of(self.model)
        self.layers = facts.layers_of(self.model)
        self.rows = {r.name: r for r in rows or ()}
        self.held_out = {r.name: r for r in held_out or ()}
        scores = metrics.get("clients") or {}
        self.scores: Mapping[str, Mapping[str, Any]] = scores
        errors = {n: s["rmse"] for n, s in scores.items() if s.get("rmse") is not None}
        self.chosen = choose(list(self.model.clients), errors)
        self.by_error = all(name in errors for name in self.model.clients)
        self.views = self._views()

    def _views(self) -> dict[str, ClientView]:
        finest = [finest_scale(self.model, self.chosen, j) for j in range(self.model.inputs)]
        points = [grid_size(scale) for scale in finest]
        self.since = [max(1.0 - NARROW_SCALES * scale, 0.0) for scale in finest]
        given = [r.X for r in self.rows.values() if len(r.X)]
        centre = np.median(np.concatenate(given), axis=0) if given else None
        return {
            name: view_client(
                self.model,
                name,
                points=points,
                centre=centre,
                rows=self.rows.get(name),
                held_out=self.held_out.get(name),
            )
            for name in self.chosen
        }

    def context(self) -> dict[str, Any]:
        layer_shares = self._shares()
        traffic = facts.traffic(self.model.messages)
        return {
            "title": ", ".join(words.shown(n, 24) for n in self.model.output_names[:3]),
            "outputs": self.model.output_names,
            "axes": self.axes,
            "layers": self.layers,
            "clients": list(self.model.clients),
            "shown_rows": bool(self.rows),
            "shown_held_out": bool(self.held_out),
            "metrics": self.metrics,
            "overall": self.metrics.get("overall") or {},
            "tiles": self._tiles(layer_shares, traffic),
            "overview": self._overview(),
            "fitted": self._fitted(),
            "sizes": list(zip(self.model.output_names, facts.layer_sizes(self.model), strict=True)),
            "convergence": self._convergence(),
            "chosen": [self._client(i, name) for i, name in enumerate(self.chosen)],
            "selection": len(self.model.clients) > LARGEST,
            "by_error": self.by_error,
            "slices": self.model.inputs > 1,
            "table": [self._line(name) for name in self.model.clients],
            "shares": layer_shares,
            "calibration": self._calibration(),
            "baselines": self._baselines(),
            "several": self._several(),
            "traffic": traffic,
            "points": MOST_POINTS,
        }

    # the sections -----------------------------------------------------------------------------

    def _tiles(self, layer_shares: dict[str, Any], traffic: facts.Traffic) -> list[dict[str, str]]:
        """The four numbers that matter, with what they mean."""
        overall = self.metrics.get("overall") or {}
        first = self.model.output_names[0]
        unit = words.shown(first, 20) if self.model.outputs == 1 else "all outputs"
        tiles = []
        if overall.get("rmse") is not None:
            tiles.append(
                _tile(words.number(overall["rmse"]), "error", f"RMSE on held-out rows, {unit}")
            )
            tiles.append(
                _tile(
                    words.percent(overall.get("coverage")),
                    "coverage",
                    "held-out cells in their 95% intervals",
                )
            )
        else:
            each = [s.prediction.sd.mean() for v in self.views.values() for s in v.slices]
            sd = float(np.mean(each))  # slices along different inputs differ in length
            noise = float(np.mean(facts.layer_sizes(self.model)[:, 3]))
            tiles.append(_tile(words.number(sd), "uncertainty", f"typical predictive sd, {unit}"))
            tiles.append(_tile(words.number(noise), "noise", f"of it, sd of the noise, {unit}"))
        share = layer_shares["mean"]["global"] if "global" in self.layers else 0.0
        tiles.append(_tile(words.percent(share), "shared", "of the variation, by the global layer"))
        crossed = words.byte_size(traffic.per_client) if traffic.clients else words.DASH
        tiles.append(_tile(crossed, "traffic", "to and from a client in all; no rows"))
        return tiles

    def _overview(self) -> Markup | None:
        if "global" not in self.layers:
            return None
        slices = {name: view.slices[0] for name, view in self.views.items()}
        name = self.model.output_names[0]
        return _both(
            lambda width, key: figures.overview(
                slices, 0, output_name=name, width=width, name=key, since=self._since(0, width)
            ),
            "overview",
            self._narrow_note(0),
        )

    def _fitted(self) -> list[tuple[str, Any]]:
        model, history = self.model, self.model.history
        rounds = sum(h.get("kind") == "round" for h in history)
        own = [int(np.asarray(c.block.active).sum()) for c in model.clients.values()]
        found: list[tuple[str, Any]] = [
            ("Layers", ", ".join(self.layers)),
            ("Inference", model.inference),
            ("Clients", f"{len(model.clients):,}".replace(",", "\u202f")),
        ]
        if self.rows:
            observed = sum(int(np.isfinite(r.Y).sum()) for r in self.rows.values())
            found.append(("Observed cells shown", f"{observed:,}".replace(",", "\u202f")))
        shared = facts.shared_kernels(model)
        for r, text in enumerate(shared):
            latent = f", latent {r + 1}" if len(shared) > 1 else ""
            also = " and deviation" if "deviation" in self.layers else ""
            found.append((f"Kernel of global{also}{latent}", text))
        if "deviation" in self.layers:
            found.append(("φ, scale of the deviations", words.number(model.shared.block.phi)))
        if "local" in self.layers:
            name = self.chosen[0]
            for text in facts.local_kernel(model, name)[:3]:
                found.append((f"Local kernel of {words.shown(name)}", text))
        if "global" in self.layers:
            found.append(("Inducing inputs, global", str(len(model.shared.block.inputs))))
        if "local" in self.layers:
            found.append(("Inducing inputs, local", _range(own)))
        if rounds:
            found.append(("Rounds and exchanges", f"{rounds} and {self.estimator.exchanges_}"))
        if self.metrics.get("seconds") is not None:
            found.append(("Time to fit", words.duration(float(self.metrics["seconds"]))))
        return found

    def _convergence(self) -> dict[str, Any]:
        history = self.model.history
        known = any(h.get("bound") is not None for h in history)
        if not history:
            return {"figure": None, "known": known}
        figure = _both(lambda w, key: charts.convergence(history, width=w, name=key), "convergence")
        return {"figure": figure, "known": known}

    def _client(self, index: int, name: str) -> dict[str, Any]:
        view, panels = self.views[name], []
        wanted = [(j, q) for q in range(self.model.outputs) for j in range(len(view.slices))]
        for j, q in wanted[:MOST_PANELS]:
            panels.append(
                {"figure": self._panel(index, name, j, q), "slice": view.slices[j], "output": q}
            )
        return {
            "name": name,
            "observed": view.observed,
            "score": self.scores.get(name) or {},
            "panels": panels,
            "left_out": max(len(wanted) - MOST_PANELS, 0),
            "local": facts.local_kernel(self.model, name) if "local" in self.layers else [],
            "noise": facts.layer_sizes(self.model, name)[:, 3],
        }

    def _panel(self, index: int, name: str, j: int, q: int) -> Markup:
        span = self._span(j, q)
        return _both(
            lambda width, key: figures.client_panels(
                self.views[name].slices[j],
                q,
                output_name=self.model.output_names[q],
                layers=self.layers,
                width=width,
                name=key,
                span=span,
                since=self._since(j, width),
            ),
            f"client-{index}-{j}-{q}",
            self._narrow_note(j),
        )

    def _since(self, j: int, width: int) -> float:
        return self.since[j] if width <= NARROW else 0.0

    def _narrow_note(self, j: int) -> str:
        """What a narrow figure says about the part that it leaves out."""
        if not self.since[j]:
            return ""
        extent = float(self.model.scaling.extent[j]) * (1.0 - self.since[j])
        return f"The last {self.axes[j].length(extent)}; a wider screen shows all."

    def _span(self, j: int, q: int) -> float:
        """A height that holds every client's deviation and local layer, up to a hundredth of their bands."""
        tallest = 0.0
        for view in self.views.values():
            for name in ("deviation", "local"):
                layer = view.slices[j].prediction.layers[name]
                mean, reach = layer.mean[:, q], 2.0 * layer.sd[:, q]
                low, high = np.quantile(mean - reach, 0.01), np.quantile(mean + reach, 0.99)
                tallest = max(tallest, 2.0 * abs(float(low)), 2.0 * abs(float(high)))
        return 1.05 * tallest

    def _line(self, name: str) -> dict[str, Any]:
        rows = self.rows.get(name)
        return {
            "name": name,
            "observed": None if rows is None else int(np.isfinite(rows.Y).sum()),
            "noise": ", ".join(words.number(v) for v in facts.layer_sizes(self.model, name)[:, 3]),
            **{
                k: (self.scores.get(name) or {}).get(k)
                for k in ("rmse", "crps", "coverage", "width")
            },
        }

    def _shares(self) -> dict[str, Any]:
        centre = np.broadcast_to(self.model.scaling.centre, (self.model.outputs,))
        predictions = {n: [s.prediction for s in v.slices] for n, v in self.views.items()}
        found = {name: shares(several, centre) for name, several in predictions.items()}
        drawn = np.stack([found[name].mean(axis=0) for name in self.chosen])
        counts = {n: int(np.isfinite(r.Y).sum()) for n, r in self.rows.items()}
        split = {"global", "deviation"} <= set(self.layers)
        known = evidence(predictions, found, clients=len(self.model.clients), rows=counts)
        return {
            "figure": _both(
                lambda width, key: charts.variance_shares(
                    self.chosen, drawn, width=width, name=key
                ),
                "shares",
            ),
            "mean": dict(zip(PARTS, drawn.mean(axis=0).tolist(), strict=True)),
            "signs": signs_of_shakiness(known) if split else [],
            "correlation": known.correlation if split else None,
        }

    def _calibration(self) -> dict[str, Any] | None:
        found = self.metrics.get("calibration") or {}
        if not found.get("levels"):
            return None
        pit = found.get("pit") or {}
        curve = charts.coverage_curve(found["levels"], found["coverage"], name="coverage")
        drawn = None
        if pit.get("counts"):
            drawn = Markup(charts.pit_histogram(pit["edges"], pit["counts"], name="pit"))
        spread = float(np.mean(np.broadcast_to(self.model.scaling.spread, (self.model.outputs,))))
        return {"coverage": Markup(curve), "pit": drawn, "spread": spread}

    def _baselines(self) -> dict[str, Any] | None:
        others = self.metrics.get("baselines") or {}
        overall = self.metrics.get("overall") or {}
        if not others or overall.get("rmse") is None:
            return None
        scores = {"this model": overall, **others}
        best = {
            metric: min(
                (v for s in scores.values() if (v := s.get(metric)) is not None), default=None
            )
            for metric in ("rmse", "nll", "crps", "ece")
        }
        figure = None
        if all(s.get("rmse") is not None for s in scores.values()):
            figure = _both(lambda w, key: charts.baselines(scores, width=w, name=key), "baselines")
        return {"scores": scores, "best": best, "figure": figure}

    def _several(self) -> dict[str, Any] | None:
        """Loadings and correlations, where there are several outputs."""
        Q, names = self.model.outputs, self.model.output_names
        if Q == 1:
            return None
        spread = np.broadcast_to(self.model.scaling.spread, (Q,))
        loadings = np.asarray(self.model.shared.block.loadings) * spread[:, None]
        correlations = charts.heatmap(
            self._output_correlation(),
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
        return {"correlation": Markup(correlations), "loadings": drawn and Markup(drawn)}

    def _output_correlation(self) -> np.ndarray:
        """Correlations of Cov_x{mean} + mean_x Cov (noise included), averaged over the clients shown."""
        found = []
        for view in self.views.values():
            mean = np.concatenate([s.prediction.mean for s in view.slices])
            cov = np.concatenate([s.prediction.covariance("outputs") for s in view.slices])
            found.append(np.cov(mean.T, bias=True) + cov.mean(axis=0))
        sd = [np.sqrt(np.diagonal(c)) for c in found]
        return np.mean([c / np.outer(s, s) for c, s in zip(found, sd, strict=True)], axis=0)


def _tile(value: str, key: str, label: str) -> dict[str, str]:
    return {"value": value, "key": key, "label": label}


def _range(values: Sequence[int]) -> str:
    low, high = min(values, default=0), max(values, default=0)
    return str(low) if low == high else f"{low} to {high} a client"


def _both(draw: Callable[[int, str], str], key: str, narrow_note: str = "") -> Markup:
    """The figure for desktops and the one for phones; the page shows one of them."""
    wide, narrow = (Markup(draw(w, f"{key}-{w}")) for w in (WIDE, NARROW))
    note = Markup('<p class="quiet">{}</p>').format(narrow_note) if narrow_note else ""
    frame = Markup('<div class="wide">{}</div><div class="narrow">{}{}</div>')
    return frame.format(wide, narrow, note)

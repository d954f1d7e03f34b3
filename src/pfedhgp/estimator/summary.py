"""`model.summary()`: a fitted model on one screen, as text, by rich in a terminal, as HTML in a notebook."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pfedhgp.inference import ending
from pfedhgp.model import departures, parameters
from pfedhgp.model.fitted import FittedModel
from pfedhgp.model.layers import PARTS, layers_of, shares
from pfedhgp.model.prediction import predict
from pfedhgp.model.traffic import traffic
from pfedhgp.model.words import axes_of, byte_size, number, percent, shown

if TYPE_CHECKING:
    from rich.table import Table

MOST_CLIENTS, POINTS = 24, 64
"""Shares of layers are means over at most so many clients, each at so many points of the domain."""
MOST_NAMED = 4
TINY = 0.01
"""A client whose φ is smaller, a tenth of the global layer in sd, does not stand out, however sure it is."""
LOUD = 3.0
"""A client stands out if its noise is more than so many times the median, or that much less."""


@dataclass(frozen=True, repr=False)
class Summary(Mapping[str, str]):
    """Lines by name: `print(summary)`, or `summary["noise"]` for one of them."""

    title: str
    lines: tuple[tuple[str, str], ...]
    settled: bool | None
    """whether training had settled; None if that is not known"""

    def __getitem__(self, name: str) -> str:
        return dict(self.lines)[name]

    def __iter__(self) -> Iterator[str]:
        return (name for name, _ in self.lines)

    def __len__(self) -> int:
        return len(self.lines)

    def __str__(self) -> str:
        wide = max(len(name) for name, _ in self.lines)
        every = [self.title]
        for name, text in self.lines:
            first, *rest = text.split("\n")
            every += [f"  {name:{wide}}  {first}", *(f"  {'':{wide}}  {more}" for more in rest)]
        return "\n".join(every)

    __repr__ = __str__

    def __rich__(self) -> Table:
        from rich.table import Table
        from rich.text import Text

        table = Table(title=Text(self.title), title_justify="left", show_header=False, box=None)
        table.add_column(style="bold", no_wrap=True)
        table.add_column()
        for name, text in self.lines:
            warned = name == "training" and self.settled is False
            table.add_row(name, Text(text, style="yellow" if warned else ""))
        return table

    def _repr_html_(self) -> str:
        """Colours are the notebook's own, light or dark."""
        cell = "text-align:left;vertical-align:top;padding:.15em .8em .15em 0;white-space:pre-line"
        rows = "".join(
            f'<tr style="background:none"><th scope="row" style="{cell}">{html.escape(name)}</th>'
            f'<td style="{cell}">{html.escape(text)}</td></tr>'
            for name, text in self.lines
        )
        return (
            '<table style="border:0;color:inherit;background:none"><caption style="color:inherit;'
            f'text-align:left;font-weight:bold">{html.escape(self.title)}</caption>'
            f"<tbody>{rows}</tbody></table>"
        )


def summary_of(model: FittedModel, *, exchanges: int, bound: float | None) -> Summary:
    """What there is to say of a fitted model."""
    inputs = ", ".join(axis.label for axis in axes_of(model))
    outputs = ", ".join(shown(name) for name in model.output_names)
    found: dict[str, str | None] = {
        "clients": _clients(model),
        "layers": _layers(model),
        "kernel": repr(parameters.kernels(model)),
        "noise": _noise(model),
        "φ": _phi(model),
        "bound": _bound(model, exchanges, bound),
        "training": _training(model),
        "stand out": _standing_out(model),
        "sent": _sent(model),
    }
    lines = tuple((name, text) for name, text in found.items() if text is not None)
    title = f"FederatedGP ({model.inference}): {outputs} by {inputs}"
    return Summary(title, lines, ending.settled(model.history))


def _clients(model: FittedModel) -> str:
    names = list(model.clients)
    text = f"{len(names)}"
    counts = [len(model.sums[name].rows) for name in names if name in model.sums]
    if not counts or len(counts) != len(names):
        return text
    each = (
        f"{min(counts)} each" if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"
    )
    return f"{text}, {sum(counts)} rows ({each})"


def _layers(model: FittedModel) -> str:
    """Shares of the variation over the domain, about the outputs' centre; they add up to one."""
    names = list(model.clients)
    some = [names[i] for i in np.linspace(0, len(names) - 1, MOST_CLIENTS).round().astype(int)]
    kept = list(dict.fromkeys(some if len(names) > MOST_CLIENTS else names))
    if not kept:
        return "no clients"
    X = model.scaling.lower + model.scaling.extent * _points(model.inputs)
    found = [shares([predict(model, name, X)], np.asarray(model.scaling.centre)) for name in kept]
    mean = np.mean(found, axis=(0, 1))
    there = {*layers_of(model), "noise"}
    said = [f"{n} {percent(v)}" for n, v in zip(PARTS, mean, strict=True) if n in there]
    of = f" (of {len(kept)} clients)" if len(kept) < len(names) else ""
    return f"{', '.join(said)} of the variation{of}"


def _points(inputs: int) -> np.ndarray:
    """Points (n, d) all over the unit box, always the same ones."""
    if inputs == 1:
        return np.linspace(0.0, 1.0, POINTS)[:, None]
    return np.random.default_rng(0).uniform(size=(2 * POINTS, inputs))


def _noise(model: FittedModel) -> str | None:
    sd = parameters.noises(model).sd
    if not len(sd):
        return None
    said = []
    for name, own in zip(model.output_names, sd.T, strict=True):
        low, high = number(own.min()), number(own.max())
        ends = low if low == high else f"{low} to {high}"
        said.append(f"sd {ends}" if len(sd.T) == 1 else f"{shown(name, 24)} {ends}")
    return f"{', '.join(said)}{' over clients' if len(sd) > 1 else ''}"


def _phi(model: FittedModel) -> str | None:
    if not model.structure.deviation:
        return None
    shared = (
        f"{number(float(parameters.phis(model)))}, variance of deviations over the global layer's"
    )
    known = departures.in_words(departures.departures(model))
    return shared if known is None else f"{shared}\n{known}"


def _bound(model: FittedModel, exchanges: int, bound: float | None) -> str:
    rounds = sum(record.get("kind", "round") == "round" for record in model.history)
    value = "not known" if bound is None else f"{bound:.2f}"
    return f"{value}, after {rounds} rounds and {exchanges} exchanges"


def _training(model: FittedModel) -> str | None:
    words = ending.in_words(model.history)
    if words is None:
        return None
    more = ending.unsettled(model.history)
    advice = "" if more is None else f"\nnot settled: {more.split('; ', 1)[1]}"
    return f"{words}{advice}"


def _standing_out(model: FittedModel) -> str | None:
    """Clients that surely depart, by how far, and those whose noise is unlike the others'."""
    known = departures.departures(model)
    far = sorted(
        (each for each in known.items() if each[1].verdict == "departs" and each[1].phi >= TINY),
        key=lambda each: -each[1].phi,
    )
    said = [f"{shown(name, 30)} (φ {number(each.phi)})" for name, each in far[:MOST_NAMED]]
    sd = parameters.noises(model).sd
    if len(sd) > 2:
        off = np.max(np.abs(np.log(sd / np.median(sd, axis=0))), axis=1)
        names = list(model.clients)
        for i in np.argsort(-off)[:MOST_NAMED]:
            if off[i] > np.log(LOUD):
                q = int(np.argmax(np.abs(np.log(sd[i] / np.median(sd, axis=0)))))
                times = sd[i, q] / np.median(sd[:, q])
                said.append(f"{shown(names[i], 30)} (noise {number(times)} times the median)")
    return ", ".join(said) or None


def _sent(model: FittedModel) -> str | None:
    if not model.messages:
        return None
    total = traffic(model.messages)
    return f"{byte_size(total.up)} by clients, {byte_size(total.down)} by the server"

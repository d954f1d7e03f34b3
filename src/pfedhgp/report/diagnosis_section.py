"""The report's section on classified cycles: what they were taken for, and which stretch decided."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from markupsafe import Markup

from pfedhgp.diagnosis.training import behind
from pfedhgp.plot import reasons
from pfedhgp.plot.axes import plain_legend
from pfedhgp.report import words
from pfedhgp.report.theme import COLOURS, NARROW, both, drawing, new_figure, to_svg


def section(
    content: Mapping[str, Any] | None,
    *,
    axis: words.InputAxis,
    trained: Mapping[str, Any] | None = None,
) -> Markup:
    """The block that the page includes: `trained` is how the model was, `content` that of classified.json."""
    calls = [
        {
            **call,
            "figure": both(partial(why_chart, call, axis), f"why-{place}"),
            "stretches": [
                {**each, "start": axis.point(each["start"]), "end": axis.point(each["end"])}
                for each in call["stretches"]
            ],
        }
        for place, call in enumerate(content["calls"] if content is not None else ())
    ]
    proposals = [
        {
            **group,
            "stretches": [
                {**each, "start": axis.point(each["start"]), "end": axis.point(each["end"])}
                for each in group["stretches"]
            ],
        }
        for group in (content or {}).get("proposals", ())
    ]
    said = None if trained is None else behind(trained)
    shown = {"cycles": 0, **(content or {}), "calls": calls, "proposals": proposals}
    shown |= {"trained": trained, "behind": said}
    return Markup(words.template("diagnosis.html").render(shown))


def trained_by_runs(settings: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """What the model's settings have on its diagnosis by runs; None if there is none."""
    found = settings.get("diagnosis")
    return found if found and "held_out" in found else None


def why_chart(call: Mapping[str, Any], axis: words.InputAxis, width: int, name: str) -> str:
    """Nats for the class chosen, stretch by stretch: the strongest channels, and the sum of all so far."""
    places = axis.values(call["places"])
    with drawing():
        figure, (top, bottom) = new_figure(
            width, 380 if width > NARROW else 420, gap=52, ratios=(1.6, 1.0), share_x=True
        )
        reasons.by_stretch(top, call, places, tints=COLOURS)
        top.set_title("For it, by stretch (nats)" if width > NARROW else "By stretch (nats)")
        plain_legend(top, COLOURS, ncols=2 if width <= NARROW else reasons.SHOWN)
        reasons.so_far(bottom, call, places, tints=COLOURS)
        bottom.set_title("All channels, so far (nats)")
        bottom.set_xlabel(axis.label)
        label = f"Why {call['chosen']} rather than {call['other']}, along {axis.label}"
        return to_svg(figure, name=name, label=label)

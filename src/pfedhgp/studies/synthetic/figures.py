"""The three figures of the numerical study, as SVG text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pfedhgp.studies.common.pages import pyplot, to_svg
from pfedhgp.studies.synthetic.printed import competes

Results = dict[str, Any]
# Okabe and Ito's colours, which people with colour blindness can tell apart, and grey for the limit.
COLOURS = {
    "full": "#0072B2",
    "full-kernels": "#56B4E9",
    "no-deviation": "#009E73",
    "no-local": "#E69F00",
    "global-only": "#D55E00",
    "local-only": "#CC79A7",
    "pfedgp": "#F0E442",
    "algorithm1": "#7F5539",
    "oracle": "#999999",
}
TITLES = {"rmse": "RMSE", "nll": "NLL", "crps": "CRPS", "coverr": "CovErr"}


def robustness(results: Results) -> str:
    """Bars of RMSE, NLL, CRPS and CovErr with 95% intervals; those beyond the range are cut and annotated."""
    plt = pyplot()
    scenarios, models = _axes(results)
    figure, panels = plt.subplots(2, 2, figsize=(11, 7), constrained_layout=True)
    width = 0.8 / max(len(models), 1)
    for panel, (metric, title) in zip(panels.flat, TITLES.items(), strict=True):
        cells = {
            (r["scenario"], r["model"]): r for r in results["records"] if r["metric"] == metric
        }
        low, high = limits([cells[key]["mean"] for key in cells if key[1] in models])
        ends = [0.0, 1.1 * low, 1.1 * high]
        panel.grid(visible=False, axis="x")
        for j, model in enumerate(models):
            for i, scenario in enumerate(scenarios):
                if (scenario, model) not in cells:
                    continue
                record = cells[scenario, model]
                x = i + (j - 0.5 * (len(models) - 1)) * width
                shown = float(np.clip(record["mean"], low, high))
                panel.bar(x, shown, width, color=COLOURS[model], label=model if i == 0 else None)
                ci95 = record["ci95"]
                if shown != record["mean"]:
                    panel.annotate(
                        f"{record['mean']:.2f}",
                        (x, shown),
                        xytext=(0, 3 if shown > 0 else -3),
                        textcoords="offset points",
                        ha="center",
                        va="bottom" if shown > 0 else "top",
                        fontsize=8,
                        color=COLOURS[model],
                    )
                elif ci95[0] is not None:
                    ends += ci95
                    reach = [[shown - ci95[0]], [ci95[1] - shown]]
                    panel.errorbar(x, shown, reach, color="#333333", lw=0.8, capsize=1.5)
        panel.set_ylim(1.05 * min(ends), 1.05 * max(ends))
        panel.axhline(0.0, color="#666666", lw=0.8)
        panel.set_xticks(range(len(scenarios)), [f"scenario {name}" for name in scenarios])
        panel.tick_params(axis="x", length=0)
        panel.set_title(f"{title}, lower is better")
    figure.legend(*panels.flat[0].get_legend_handles_labels(), loc="outside lower center", ncols=5)
    return to_svg(plt, figure)


def limits(values: Sequence[float]) -> tuple[float, float]:
    """The range to draw; values beyond the quartiles by 2.5 times their distance are cut off."""
    array = np.asarray(values, np.float64)
    if len(array) == 0:
        return 0.0, 1.0
    first, third = np.quantile(array, [0.25, 0.75])
    reach = 2.5 * (third - first) if third > first else np.inf
    return float(max(array.min(), first - reach)), float(min(array.max(), third + reach))


def prediction(example: Mapping[str, Any], title: str = "") -> str:
    """The outputs of one client: truth, training rows, predictive mean and 95% band."""
    plt = pyplot()
    grid, x = np.array(example["grid"]), np.array(example["x"])
    mean, sd, clean, y = (np.array(example[name]) for name in ("mean", "sd", "clean", "y"))
    outputs = mean.shape[1]
    figure, panels = plt.subplots(
        -(-outputs // 2), min(outputs, 2), figsize=(11, 6), squeeze=False, constrained_layout=True
    )
    for q, panel in enumerate(list(panels.flat)[:outputs]):
        low, high = mean[:, q] - 1.96 * sd[:, q], mean[:, q] + 1.96 * sd[:, q]
        panel.fill_between(
            grid, low, high, color=COLOURS["full"], alpha=0.25, lw=0, label="95% band"
        )
        panel.plot(grid, mean[:, q], color=COLOURS["full"], lw=1.2, label="mean")
        panel.plot(grid, clean[:, q], color="#222222", lw=0.9, ls="--", label="truth")
        panel.plot(x, y[:, q], ".", color="#222222", ms=4, label="training rows")
        panel.set_title(f"channel {q + 1}")
        panel.margins(x=0.01)
        panel.set_xlabel("input")
    figure.suptitle(title, fontsize=11)
    figure.legend(*panels.flat[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return to_svg(plt, figure)


def calibration(results: Results) -> str:
    """Coverage less its nominal level, averaged over scenarios; ECE; and the 95% intervals' width."""
    plt = pyplot()
    scenarios, models = _axes(results)
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(12, 4), constrained_layout=True)
    for model in models:
        found = [c for c in results["curves"]["coverage"] if c["model"] == model]
        if not found:
            continue
        level = np.array(found[0]["level"])
        gap = np.mean([c["coverage"] for c in found], axis=0) - level
        left.plot(level, gap, color=COLOURS[model], lw=1.6, label=model)
    left.axhline(0.0, color="#222222", ls="--", lw=0.9)
    left.set_title("coverage less nominal")
    left.set_xlabel("nominal level")
    several = "mean over scenarios" if len(scenarios) > 1 else "scenario"
    figure.suptitle(f"{several} {', '.join(scenarios)}", fontsize=11)
    for panel, metric, title in ((middle, "ece", "ECE"), (right, "width", "95% width")):
        values = [_mean_over(results, scenarios, model, metric) for model in models]
        panel.barh(range(len(models)), values, color=[COLOURS[m] for m in models])
        panel.set_yticks(range(len(models)), models if panel is middle else [])
        panel.tick_params(axis="y", length=0)
        panel.grid(visible=False, axis="y")
        panel.invert_yaxis()
        panel.set_title(title)
        for place, value in enumerate(values):
            panel.annotate(
                f"{value:.3f}" if metric == "ece" else f"{value:.2f}",
                (value, place),
                xytext=(4, 0),
                textcoords="offset points",
                va="center",
                fontsize=9,
            )
        panel.margins(x=0.15)
    return to_svg(plt, figure)


def _mean_over(results: Results, scenarios: Sequence[str], model: str, metric: str) -> float:
    found = [
        r["mean"]
        for r in results["records"]
        if (r["model"], r["metric"]) == (model, metric) and r["scenario"] in scenarios
    ]
    return float(np.mean(found)) if found else 0.0


def _axes(results: Results) -> tuple[list[str], list[str]]:
    ours = [r for r in results["records"] if competes(r["model"]) or r["model"] == "oracle"]
    scenarios = sorted({r["scenario"] for r in ours})
    there = {r["model"] for r in ours}
    return scenarios, [model for model in COLOURS if model in there]

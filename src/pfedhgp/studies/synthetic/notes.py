"""The notes in the study's report: how each row is made, and what these runs show.

Counts come from the settings and findings from the records, so the notes are true of every run. Findings
from elsewhere are marked as such, with their date.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pfedhgp.inference.structured.settings import Structured
from pfedhgp.studies.synthetic.models import CANDIDATE_INDUCING, INDUCING, SHORT_INDUCING
from pfedhgp.studies.synthetic.personal import Personal
from pfedhgp.studies.synthetic.printed import MARK

PAPERS = {"clients": 6, "rows": 50}
"""The sizes behind the printed figures."""
ABLATIONS = ("no-deviation", "no-local", "global-only", "local-only")
AVERAGED = ("pfedgp", "algorithm1")
"""Methods that keep the paper's rounds."""


def synthetic_notes(
    results: Mapping[str, Any], config: Mapping[str, Any], models: Sequence[str]
) -> list[str]:
    """One paragraph per note, without notes on rows that were not run."""
    notes = [
        "Mean over runs; brackets are 95% confidence intervals. Bold is the best of the fitted models.",
        _exchanges(config, models),
    ]
    by_row = {
        "full": f'full: the default solver with inducing={INDUCING}, noise="scalar" and the domain given. '
        f"Its ablations too, with inducing={SHORT_INDUCING} where there is no local layer to carry what is "
        "short.",
        "oracle": "oracle: the exact posterior under the true kernels, loadings and noise. In C, which is "
        "not Gaussian, it is also told the global function: then C is Gaussian, and since knowing more "
        "cannot worsen an expected log score, no method's expected NLL is below it.",
        "full-kernels": "full-kernels: three trainings apart (RBF, Matérn 5/2, RBF + periodic), the highest "
        f"bound kept. RBF is full's own, with inducing={INDUCING}; the other two have "
        f"inducing={CANDIDATE_INDUCING}. They do not depend on each other: exchanges are those of the "
        "longest, as if they travelled side by side, and MB those of all three. Nothing here runs them side "
        "by side; one after another they take the exchanges of the table below.",
        "pfedgp": "pfedgp: clients predict with the averaged kernel, which the last round holds."
        f"{_last_round(results)}",
        "algorithm1": "algorithm1: the paper does not say where loadings start; here they start at "
        "0.5 N(0, 1), which is our choice and matters. In a trial apart (2026-11-15, ten seeds of A) its NLL "
        "was +2.96 from a scale of 1.0, +1.46 from 0.5 and -0.27 from 0.1.",
    }
    notes += [note for row, note in by_row.items() if row in models]
    printed = [f"Rows marked{MARK} are the paper's figures.", *_below_the_oracle(results, config)]
    return [*notes, *_near(results), " ".join(printed)]


def _near(results: Mapping[str, Any]) -> list[str]:
    """How exchanges until near the best are counted."""
    tables = results.get("tables", {}).items()
    rows = [row for name, found in tables if name.startswith("within") for row in found]
    if not rows:
        return []
    counts = max(row["runs"] for row in rows)
    which = "the first run" if counts == 1 else f"the first {counts} runs"
    return [
        f"Within 0.2 nats ({which}): a run is scored after each round, at its best parameters and not "
        "averaged over them but for the last point, so the first figure that there can be is 3 exchanges "
        "(4 for pfedgp and algorithm1, whose delivery is answered): read these as at most. Bytes of "
        "full-kernels are those of the training that was kept, times what all three cost."
    ]


def _exchanges(config: Mapping[str, Any], models: Sequence[str]) -> str:
    given = config.get("rounds")
    parts = ["An exchange is one broadcast and one gather."]
    if {"full", "full-kernels", *ABLATIONS} & set(models):
        parts.append(
            "full and its ablations take one for the census (sums for scaling), one to start and one a "
            f"round, of which there are at most {given or Structured().rounds}; and one last broadcast, the "
            "delivery to clients, which needs no reply and is no exchange by that definition."
        )
    if there := [name for name in AVERAGED if name in models]:
        parts.append(
            f"{' and '.join(there)}: one for the census, one for each of "
            f"{max(given or Personal().rounds, 2)} rounds, of which the start is the first, and a delivery "
            "that clients answer."
        )
    return " ".join([*parts, "MB are those of all of it, the last broadcast included."])


def _last_round(results: Mapping[str, Any]) -> str:
    """What the last round does to pfedgp's NLL, from the curves of these runs."""
    curves = [c for c in results["curves"]["nll"] if c["model"] == "pfedgp" and len(c["nll"]) > 1]
    if not curves:
        return ""
    steps = [curve["nll"][-1] - curve["nll"][-2] for curve in curves]
    runs = sum(curve["runs"] for curve in curves)
    step = float(np.average(steps, weights=[curve["runs"] for curve in curves]))
    where = f"by {abs(step):.2f} nats on average ({runs} runs)"
    if step <= 0.0:
        return f" It lowers the NLL of the point before it {where}."
    return (
        " With the kernels of their own that the round before it leaves them with they score better, "
        f"{where}; each run's best point, not its last, is what it has to come near below."
    )


def _below_the_oracle(results: Mapping[str, Any], config: Mapping[str, Any]) -> list[str]:
    """Where the printed full model's RMSE is below the oracle's of these runs, intervals apart."""
    if any(config.get(name, size) != size for name, size in PAPERS.items()):
        return ["They are of six clients with 50 rows, and do not compare with these."]
    rmse = {(r["scenario"], r["model"]): r for r in results["records"] if r["metric"] == "rmse"}
    found = []
    for (scenario, model), limit in rmse.items():
        printed = rmse.get((scenario, f"full{MARK}"))
        if model != "oracle" or printed is None or limit["ci95"][0] is None:
            continue
        if printed["ci95"][1] < limit["ci95"][0]:
            found.append(f"{printed['mean']:.3f} against {limit['mean']:.3f} in {scenario}")
    if not found:
        return []
    return [
        f"The RMSE of its full model is below that of the oracle on these runs ({', '.join(found)}), with "
        "intervals that do not touch: no method can be expected to do so on the printed simulator."
    ]

"""One cell of the study's table against GPyTorch's framework: a client's searches, model and steps alike.

    python -m bench cell

Six clients of 50 rows and four outputs; the search of a whole fit (440 evaluations of the bound and its
gradient by L-BFGS). Ours is a search for each client, torch's one for their sum, which is its faster way; the
kernel is checked against GPyTorch's. Ours on the host also ends when it has settled, and has the priors of a
fit; compiled, it takes all evaluations. Prints the times, the ratio, and how far each search came.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import numpy as np
import torch

from bench import ours, torch_peer
from bench.problem import Sizes, make_problem
from bench.timing import Summary, Timed, in_turns, ratio, summarise, timed
from pfedhgp.base.kept_memory import kept_memory
from pfedhgp.base.numerics import numerics

EVALUATIONS = 2 * 60 + 8 * 40
THREADS = (1, 2)


def against_torch(seconds: float, *, evaluations: int = EVALUATIONS) -> dict[str, Any]:
    """Seconds of either, their ratio, and the sum of the clients' bounds that each search reached."""
    sizes = replace(Sizes(), shared=24, clients=6)
    problem = make_problem(sizes)
    gap = torch_peer.check_kernel()
    print(
        f"\none cell's searches, {evaluations} evaluations; kernel differs from GPyTorch's by {gap:.1e}"
    )
    with numerics(), kept_memory():
        searches = {
            "pfedhgp": ours.search_on_host(problem, evaluations=evaluations),
            "pfedhgp, compiled": ours.search(problem, evaluations=evaluations),
        }
        reached = {"start": float(np.sum(ours.search(problem, evaluations=1)()))}
        reached |= {name: float(np.sum(search())) for name, search in searches.items()}
        competitors: dict[str, Timed] = {n: timed(search) for n, search in searches.items()}
        for way in torch_peer.WAYS:
            search = torch_peer.search(problem, way=way, evaluations=evaluations)
            for threads in THREADS:
                torch.set_num_threads(threads)
                name = f"torch {way}, {threads} thread(s)"
                reached[name] = float(np.sum(search()))
                competitors[name] = timed(
                    search, lambda threads=threads: torch.set_num_threads(threads)
                )
        found = summarise(in_turns(competitors, seconds=seconds, least=3))
    for name, summary in found.items():
        print(f"    {name:28s}{summary.median:8.2f} s median, bound {reached[name]:.2f}")
    torches = [summary for name, summary in found.items() if name.startswith("torch")]
    best = Summary(min(s.median for s in torches), min(s.quiet for s in torches))
    times = ratio(best, found["pfedhgp"])
    print(f"  = best torch / pfedhgp        {times.median:8.2f} of medians")
    return {
        "sizes": asdict(sizes),
        "evaluations": evaluations,
        "kernel_gap_to_gpytorch": gap,
        "bounds": reached,
        "seconds": {name: summary._asdict() for name, summary in found.items()},
        "ratio": times._asdict(),
    }

"""One cell of the study's table against GPyTorch's framework: a client's searches, model and steps alike.

    python -m bench.cell

Six clients of 50 rows and four outputs; the search of a whole fit (440 evaluations of the bound and its
gradient by L-BFGS). Ours is a search for each client, torch's one for their sum, which is its faster way; the
kernel is checked against GPyTorch's. Prints both times, the ratio, and how far each search came.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

import numpy as np
import torch

from bench import ours, torch_peer
from bench.problem import Sizes, make_problem
from bench.timing import Summary, in_turns, ratio, summarise, timed
from pfedhgp.runtime import numerics

EVALUATIONS = 2 * 60 + 8 * 40


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=30.0, help="to spend on timing (30)")
    parser.add_argument("--evaluations", type=int, default=EVALUATIONS)
    options = parser.parse_args()
    problem = make_problem(replace(Sizes(), shared=24, clients=6))
    print(f"kernel differs from GPyTorch's by {torch_peer.check_kernel():.1e}")
    with numerics():
        mine = ours.search(problem, evaluations=options.evaluations)
        peers = {
            f"torch {way}, {threads} thread(s)": (
                torch_peer.search(problem, way=way, evaluations=options.evaluations),
                threads,
            )
            for way in torch_peer.WAYS
            for threads in (1, 2)
        }
        start = ours.search(problem, evaluations=1)()
        print(f"pfedhgp: bound {np.sum(start):.2f} to {np.sum(mine()):.2f}")
        competitors = {"pfedhgp": timed(mine)}
        for name, (search, threads) in peers.items():
            torch.set_num_threads(threads)
            print(f"{name}: bound to {np.sum(search()):.2f}")
            competitors[name] = timed(
                search, lambda threads=threads: torch.set_num_threads(threads)
            )
        found = summarise(in_turns(competitors, seconds=options.seconds, least=1))
    for name, summary in found.items():
        print(f"{name:28s}{summary.median:8.2f} s median")
    torches = [summary for name, summary in found.items() if name.startswith("torch")]
    best = Summary(min(s.median for s in torches), min(s.quiet for s in torches))
    print(f"best torch / pfedhgp: {ratio(best, found['pfedhgp']).median:.2f} of medians")


if __name__ == "__main__":
    main()

"""`python -m bench`: against bare LAPACK, against PyTorch, how time grows, whether budgets are enough, and
whole fits beside their goals and other libraries.

Ratios are of one run. Results go to bench/results.json; parts that were not run again stay, with their date.
Those that compare with PyTorch (torch, cell) are skipped, with a line, where it is missing.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import os
import platform
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import scipy

from bench import budgets, gpu, lapack, ours, whole_fits
from bench.diagnosis import classifying
from bench.problem import Problem, Sizes, make_problem
from bench.timing import Summary, Timed, by_processor, in_turns, ratio, slope, summarise, timed
from pfedhgp.base.kept_memory import kept_memory
from pfedhgp.base.numerics import numerics

TOLERANCE = 1e-8
THREADS = (1, 2)
GROUP = 8
COMPILED = "pfedhgp, compiled"
RESULTS = Path(__file__).with_name("results.json")
PARTS = ("lapack", "torch", "growth", "cell", "classifying", "budgets", "fits", "gpu")
NEED_TORCH = ("torch", "cell")


def against_lapack(sizes: Sizes, seconds: float) -> dict[str, Any]:
    """One client's bound and gradient, and the calls that they cannot do without."""
    calls, parts, work = lapack.timed_calls(sizes)
    competitors = {**_of_ours(make_problem(sizes), batched=False), "LAPACK": calls}
    found = summarise(in_turns(competitors, seconds=seconds))
    print(f"\n(a) one client, {_words(sizes)}: bound and gradient")
    for name, summary in found.items():
        _line(name, summary)
    _ratio("pfedhgp / LAPACK", ratio(found["pfedhgp"], found["LAPACK"]), "aim at most 2.5")
    print("    the calls: median microseconds, Mflop")
    for name, spent in parts.items():
        print(f"      {name:28s}{1e6 * np.median(spent):9.1f}{work[name]:9.2f}")
    return {
        "sizes": asdict(sizes),
        "seconds": {name: summary._asdict() for name, summary in found.items()},
        "ratio": ratio(found["pfedhgp"], found["LAPACK"])._asdict(),
        "calls": {
            name: {"median": float(np.median(spent)), "mflop": work[name]}
            for name, spent in parts.items()
        },
    }


def against_torch(
    sizes: Sizes, clients: int, seconds: float, most_threads: int
) -> tuple[dict[str, Any], bool]:
    """The same bound in PyTorch, its best way and number of threads; and whether gradients agree."""
    from bench import torch_peer

    problem, batched = make_problem(replace(sizes, clients=clients)), clients > 1
    competitors = _of_ours(problem, batched=batched)
    if clients > GROUP:
        groups = ours.compiled(problem, batched=True, groups_of=GROUP)
        competitors[f"{COMPILED}, groups of {GROUP}"] = timed(groups)
    expected = ours.host_gradient(problem, batched=batched)
    twin = ours.as_numpy(ours.compiled(problem, batched=batched)()[1])
    worst = max(_gap(twin[name], value) for name, value in expected.items())
    for way in torch_peer.WAYS:
        peer = torch_peer.compiled(problem, batched=batched, way=way)
        gradient = peer()[1]
        gaps = [_gap(gradient[name].numpy(), value) for name, value in expected.items()]
        worst = max(worst, *gaps)
        for threads in THREADS[:most_threads]:
            before = _threads(threads)
            competitors[f"torch {way}, {threads} thread(s)"] = timed(peer, before)
    found = summarise(in_turns(competitors, seconds=seconds))
    torches = {name: summary for name, summary in found.items() if name.startswith("torch")}
    best = min(torches, key=lambda name: torches[name].median)
    quietest = min(summary.quiet for summary in torches.values())
    rival = Summary(torches[best].median, quietest)
    print(f"\n(b) {clients} client(s): gradients differ by {worst:.1e} (may by {TOLERANCE:.0e})")
    for name, summary in found.items():
        _line(name, summary, clients)
    ratios = {name: ratio(rival, summary) for name, summary in found.items() if name not in torches}
    for name, value in ratios.items():
        _ratio(f"best torch / {name}", value, "aim at least 4")
    return {
        "clients": clients,
        "gradient_gap": worst,
        "seconds": {name: summary._asdict() for name, summary in found.items()},
        "best_torch": best,
        "ratio": {name: value._asdict() for name, value in ratios.items()},
    }, worst <= TOLERANCE


def _of_ours(problem: Problem, *, batched: bool) -> dict[str, Timed]:
    """What a fit on a CPU calls, and the compiled program of the same (GPUs, rarer structures)."""
    return {
        "pfedhgp": timed(ours.on_host(problem, batched=batched)),
        COMPILED: timed(ours.compiled(problem, batched=batched)),
    }


def growth(sizes: Sizes, seconds: float, *, quick: bool) -> dict[str, Any]:
    """Time on the host against rows, inducing inputs and clients, with the slope on log-log paper."""
    print("\n(c) growth of bound and gradient")
    top = 3 if quick else 5
    rows = [500 * 2**i for i in range(top)]
    scale = [2**i for i in range(top - 1)]
    clients = [2**i for i in range(0, 5 if quick else 7)]
    return {
        "rows": _sweep("rows", rows, [replace(sizes, rows=n) for n in rows], seconds),
        "inducing": _sweep(
            "inducing inputs (times 20 and 50, at 200 rows)",
            scale,
            [replace(sizes, rows=200, shared=20 * k, local=50 * k) for k in scale],
            seconds,
        ),
        "clients": _sweep(
            "clients", clients, [replace(sizes, clients=c) for c in clients], seconds
        ),
    }


def _sweep(name: str, values: list[int], sizes: list[Sizes], seconds: float) -> dict[str, Any]:
    competitors = {
        str(value): timed(ours.on_host(make_problem(size), batched=size.clients > 1))
        for value, size in zip(values, sizes, strict=True)
    }
    found = summarise(in_turns(competitors, seconds=seconds))
    quiet = [found[str(value)].quiet for value in values]
    exponent = slope(values, quiet)
    last = slope(values[-2:], quiet[-2:])
    print(f"    {name}: slope {exponent:.2f}, between the last two {last:.2f}")
    print(
        "      " + "  ".join(f"{v}: {1e3 * t:.2f} ms" for v, t in zip(values, quiet, strict=True))
    )
    return {"values": values, "seconds": quiet, "slope": exponent, "last_slope": last}


def _threads(count: int) -> Any:
    import torch

    return lambda: torch.set_num_threads(count)


def _gap(found: np.ndarray, expected: np.ndarray) -> float:
    """The largest difference, relative to the largest entry."""
    return float(np.max(np.abs(found - expected)) / np.max(np.abs(expected)))


def _words(sizes: Sizes) -> str:
    return (
        f"n={sizes.rows}, Q={sizes.outputs}, M={sizes.shared}, M_i={sizes.local}, R={sizes.latents}"
    )


def _line(name: str, summary: Summary, clients: int = 1) -> None:
    each = f"{1e6 * summary.median / clients:9.0f} us a client" if clients > 1 else ""
    print(
        f"    {name:28s}{1e6 * summary.median:11.0f} us median"
        f"{1e6 * summary.quiet:11.0f} us 10th percentile{each}"
    )


def _ratio(name: str, value: Summary, aim: str) -> None:
    print(f"  = {name:28s}{value.median:11.2f} of medians{value.quiet:8.2f} of percentiles ({aim})")


def torch_part(sizes: Sizes, seconds: float, *, quick: bool, most_threads: int) -> dict[str, Any]:
    """One client, six, and many; `agree` says whether all gradients do."""
    from bench import torch_peer

    found = [
        against_torch(sizes, clients, seconds, most_threads)
        for clients in ((1, 6) if quick else (1, 6, 64))
    ]
    return {
        "by_clients": [results for results, _ in found],
        "agree": all(good for _, good in found),
        "kernel_gap_to_gpytorch": torch_peer.check_kernel(),
    }


def torch_version() -> str | None:
    """None where torch or GPyTorch is not installed."""
    try:
        return importlib.metadata.version("gpytorch") and importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return None


def run_part(
    name: str, seconds: float, *, quick: bool, full: bool, processor: bool
) -> dict[str, Any]:
    """One part's results, with when and on what they were measured."""
    about = {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "seconds are": "of processor time" if processor else "by the clock",
        "python": platform.python_version(),
        "jax": jax.__version__,
        "numpy": np.__version__,
        "torch": torch_version(),
        "scipy": scipy.__version__,
    }
    print(f"\n{name}: " + "  ".join(f"{word} {value}" for word, value in about.items()))
    sizes = Sizes()
    if name == "budgets":
        return {**about, "cases": budgets.table()}
    if name == "gpu":
        return {**about, **gpu.table(quick=quick)}
    if name == "fits":
        return {**about, **whole_fits.table(full=full, torch=torch_version() is not None)}
    if name == "classifying":
        return {**about, "found": classifying(seconds)}
    if name == "cell":
        from bench.cell import against_torch as cell

        return {**about, **cell(seconds)}
    with numerics(), kept_memory():  # as a fit runs
        if name == "lapack":
            return {**about, **against_lapack(sizes, seconds)}
        if name == "torch":
            return {
                **about,
                **torch_part(sizes, seconds, quick=quick, most_threads=1 if processor else 2),
            }
        return {**about, **growth(sizes, seconds, quick=quick)}


def main() -> int:
    """Runs the parts, prints them, writes results.json; 1 if gradients disagree with PyTorch's."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--seconds", type=float, default=8.0, help="for each comparison (8)")
    parser.add_argument("--quick", action="store_true", help="fewer sizes and 2 seconds each")
    parser.add_argument("--full", action="store_true", help="also fits that take minutes")
    parser.add_argument(
        "--processor", action="store_true", help="processor time, one thread: for busy machines"
    )
    parser.add_argument("parts", nargs="*", help=f"some of {', '.join(PARTS)} (all)")
    options = parser.parse_args()
    if set(options.parts) - set(PARTS):
        parser.error(f"parts are {', '.join(PARTS)}")
    seconds = 2.0 if options.quick else options.seconds
    if options.processor:
        by_processor()
    usual = PARTS[:3] if options.quick else PARTS
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    wrote = False
    for name in options.parts or usual:
        if name in NEED_TORCH and torch_version() is None:
            print(f"\n{name}: skipped, torch and gpytorch are not installed (make bench has them)")
            continue
        results[name] = run_part(
            name, seconds, quick=options.quick, full=options.full, processor=options.processor
        )
        RESULTS.write_text(json.dumps(results, indent=2) + "\n")
        wrote = True
    end = f"wrote {RESULTS}" if wrote else "nothing was run"
    print(f"\nload {os.getloadavg()[0]:.1f} at the end; {end}")
    if not results.get("torch", {}).get("agree", True):
        print("gradients disagree", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

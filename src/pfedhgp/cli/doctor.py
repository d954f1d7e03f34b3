"""`pfedhgp doctor`: what is installed, what is missing, and what to do about it."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import asdict
from itertools import groupby
from pathlib import Path

import typer

from pfedhgp.base import installation
from pfedhgp.base.installation import FLOWER, IN_A_CHECKOUT, Finding
from pfedhgp.cli.options import AsJson
from pfedhgp.cli.terminal import result

MARKS = {"ok": "ok", "missing": "--", "warning": "!!", "error": "XX"}
CUDA = "python3 -m pip install 'jax[cuda12]', as JAX's own instructions say"


def doctor(as_json: AsJson = False) -> None:
    """Say what is installed, what is missing, and what to do about it.

    Nothing is changed. The exit code is 0 unless pfedhgp cannot fit a model here; then it is 1.
    """
    findings = list(examined())
    broken = installation.errors_in(findings)
    if as_json:
        result({"works": not broken, "findings": [asdict(each) for each in findings]})
    else:
        for line in lines(findings):
            typer.echo(line)
    if broken:
        raise typer.Exit(1)


def examined() -> Iterator[Finding]:
    """Every finding, core first. A part that cannot be loaded is a finding, not an error of ours."""
    sound = [installation.python(), installation.package(), installation.dependencies()]
    yield from sound
    yield installation.linear_algebra()
    if installation.errors_in(sound):
        found = "not tried, because of the line above"
        yield Finding("core", "a small fit", "missing", found, "mend that first")
    else:
        yield small_fit()
        yield gpu()
    yield installation.cores()
    yield installation.memory()
    yield installation.cache()
    yield installation.optional(
        "federations",
        "Flower",
        packages=("flwr", "starlette", "uvicorn"),
        extra="flower",
        purpose="server, client, certs and federate",
        install=FLOWER,
    )
    yield installation.optional(
        "federations",
        "cryptography",
        packages=("cryptography",),
        extra="flower",
        purpose="masks, and it comes with Flower",
        install=FLOWER,
    )
    yield installation.optional(
        "tables",
        "pandas",
        packages=("pandas",),
        extra="test",
        purpose="pandas tables in Python; files and polars tables work without",
        install="python3 -m pip install pandas",
    )
    yield installation.browser()
    yield installation.optional(
        "development",
        "torch",
        packages=("torch", "gpytorch"),
        extra="bench",
        purpose="make bench, which makes an environment of its own",
        install=f"make bench {IN_A_CHECKOUT}",
    )
    yield installation.optional(
        "development",
        "mkdocs",
        packages=("mkdocs", "mkdocs-material"),
        extra="docs",
        purpose="make docs, which makes an environment of its own",
        install=f"make docs {IN_A_CHECKOUT}",
    )


def small_fit() -> Finding:
    """Two clients, one round: the proof that everything the core needs can be loaded and computes."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # XLA's lines to stderr
    start = time.perf_counter()
    try:
        bound = _fitted_bound()
    except Exception as error:
        advice = "install pfedhgp again in a new environment: python3 -m venv NEW"
        return Finding("core", "a small fit", "error", installation.one_line(error), advice)
    took = time.perf_counter() - start
    return Finding("core", "a small fit", "ok", f"bound {bound:.2f} in {took:.1f} s")


def _fitted_bound() -> float | None:
    import warnings

    import numpy as np

    from pfedhgp import FederatedGP

    x = np.linspace(0.0, 6.0, 9)
    sites = {"north": (x, np.sin(x)), "south": (x, np.sin(x) + 0.2 * x)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # one round is too few, and meant to be
        model = FederatedGP(rounds=1, inducing=5, local_inducing=5).fit(sites)
    return model.bound_


def gpu(driver: Path = Path("/proc/driver/nvidia/version")) -> Finding:
    """What JAX computes on, and whether there is a GPU that it does not see."""
    import jax

    with contextlib.suppress(RuntimeError):
        seen = jax.devices("gpu")
        return Finding("machine", "GPU", "ok", f"{len(seen)}: {seen[0].device_kind}")
    if wanted := os.environ.get("JAX_PLATFORMS"):
        found = f"JAX_PLATFORMS={wanted} hides any other device"
        return Finding("machine", "GPU", "missing", found, "unset JAX_PLATFORMS to use a GPU")
    if driver.exists():
        found = "an NVIDIA driver is here, but JAX sees no GPU"
        return Finding("machine", "GPU", "warning", found, CUDA)
    found = "none; --device gpu needs one, and everything else runs on the processor"
    return Finding("machine", "GPU", "missing", found, f"with an NVIDIA GPU: {CUDA}")


def lines(findings: list[Finding]) -> Iterator[str]:
    """The findings as text: a heading for each group, a line each, and below it what to do."""
    width = max(len(each.name) for each in findings)
    for group, members in groupby(findings, key=lambda each: each.group):
        yield group
        for each in members:
            yield f"  {MARKS[each.status]}  {each.name:<{width}}  {each.found}"
            if each.advice:
                yield f"      {'':<{width}}  -> {each.advice}"
    yield ""
    yield summary(findings)


def summary(findings: list[Finding]) -> str:
    """One sentence: whether pfedhgp works, and how much it could have besides."""
    count = {status: sum(each.status == status for each in findings) for status in MARKS}
    if count["error"]:
        return "pfedhgp does not work here: see the lines marked XX"
    words = "pfedhgp works here"
    if count["warning"]:
        words += f"; {count['warning']} to look at (!!)"
    if count["missing"]:
        words += f"; {count['missing']} that only some tasks need are not there (--)"
    return words

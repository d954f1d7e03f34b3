# %% [markdown]
# # Privacy, and what it costs
#
# Rows never leave a client. Sums over rows do, and sums can tell a lot. You will attack a fit, see
# what the attacker gets, and then pay for protection: closed sums, and differential privacy with
# several budgets. What it costs is error on rows that nobody has seen.

# %%
import json
import os
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import polars as pl

from pfedhgp import RBF, FederatedGP, plot

SMALL = bool(os.environ.get("PFEDHGP_SMALL"))  # a quick version, for tests
warnings.simplefilter("ignore")  # they say what this page says in words
rng = np.random.default_rng(1)


def signal(x, i):
    """What all clients share, and a little of their own."""
    return np.sin(x) + 0.5 * np.sin(2.3 * x) + 0.15 * np.cos(x + i)


def clients(count, rows):
    found = {}
    for i in range(count):
        x = np.sort(rng.uniform(0, 10, rows))
        found[f"client {i}"] = (x, signal(x, i) + 0.3 * rng.normal(size=rows))
    return found


# %% [markdown]
# ## An attack on small clients
#
# Five clients with 40 rows each. `pfedhgp audit --attack` makes the run's messages again and plays
# a curious server: how many rows can it compute?

# %%
work = Path(tempfile.mkdtemp())
small = clients(3 if SMALL else 5, 32 if SMALL else 40)
parts = [pl.DataFrame({"client": n, "x": x, "y": y}) for n, (x, y) in small.items()]
pl.concat(parts).write_csv(work / "rows.csv")


def pfedhgp(*words):
    command = [sys.executable, "-m", "pfedhgp", *words]
    done = subprocess.run(command, cwd=work, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return done.stdout


def attacked(privacy):
    """What an attacker finds in the messages of a fit."""
    columns = (
        "--client",
        "client",
        "--input",
        "x",
        "--output",
        "y",
        "--privacy",
        privacy,
    )
    quick = ("--rounds", "2", "--inducing", "8", "--no-report", "--quiet")
    pfedhgp("fit", "rows.csv", *columns, *quick, "--out", privacy)
    told = json.loads(
        pfedhgp("audit", privacy, "--attack", "--data", "rows.csv", "--json")
    )
    return {each["measure"]: each for each in told["attacks"] if each["found"]}


def chance(finding):
    """What somebody finds who has no message of the client, where that is known."""
    return "" if finding["chance"] is None else f"{finding['chance']:.2f}"


found = {privacy: attacked(privacy) for privacy in ("none", "sums")}
measures = [m for m in found["none"] if m in found["sums"]]
pl.DataFrame(
    {
        "what the attacker is after": measures,
        "by chance": [chance(found["none"][m]) for m in measures],
        **{
            p: [round(found[p][m]["found"]["value"], 2) for m in measures]
            for p in found
        },
    }
)

# %% [markdown]
# Without protection (`none`) rows can be computed. With closed sums (`sums`, the default between
# machines) clients answer only what their rows cannot be solved from. That is a rule, not a
# proof: an attacker who knows all rows but one still learns about that one.
#
# ## Differential privacy
#
# With `privacy="local"` each client sends one noisy release. ε says how much a row may show:
# smaller is more private. It needs public facts: the domain, bounds of the outputs, and the
# shortest lengthscale.

# %%
many = clients(6 if SMALL else 12, 200 if SMALL else 500)
public = {
    "domain": (0, 10),
    "output_bounds": (-3, 3),
    "kernel": RBF(lengthscale=1.0),
}
budgets = (1.0, 8.0) if SMALL else (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
grid = np.linspace(0, 10, 101)
truth = np.mean([signal(grid, i) for i in range(len(many))], axis=0)


def error(model):
    """RMSE of the shared layer against the mean over clients, and how often its 95% band holds it."""
    layer = model.predict("client 0", grid).layers["global"]
    gap = layer.mean - truth
    return np.sqrt(np.mean(gap**2)), np.mean(np.abs(gap) < 1.96 * layer.sd)


private = {}
for epsilon in budgets:
    private[epsilon] = FederatedGP(privacy="local", epsilon=epsilon, **public).fit(
        many, inputs="x", outputs="y"
    )
plain = FederatedGP(kernel=public["kernel"], domain=public["domain"]).fit(
    many, inputs="x", outputs="y"
)
table = pl.DataFrame(
    [
        {"ε": name, "error": round(e, 3), "band holds": round(c, 2)}
        for name, fitted in [
            *((f"{k:g}", m) for k, m in private.items()),
            ("none", plain),
        ]
        for e, c in [error(fitted)]
    ]
)
table

# %% [markdown]
# Less privacy, less error. The dashed line is the fit without noise.

# %%
figure, axes = plt.subplots(figsize=(6.4, 3.2), layout="constrained")
axes.loglog(budgets, [error(private[e])[0] for e in budgets], "o-", color="#5a3e9b")
axes.axhline(error(plain)[0], color="#68707a", ls="--", lw=1)
axes.set(xlabel="ε: what a row may show", ylabel="error of the shared layer")
axes.set_xticks(budgets, [f"{e:g}" for e in budgets])
axes.minorticks_off()
axes.spines[["top", "right"]].set_visible(False)

# %% [markdown]
# The bands know about the noise: with a small budget they are wide.

# %%
figure, axes = plt.subplots(
    1, 2, figsize=(8.4, 2.8), sharey=True, layout="constrained"
)
for each, epsilon in zip(axes, (budgets[0], budgets[-1]), strict=True):
    plot.layer(private[epsilon], "client 0", "global", ax=each)
    each.plot(grid, truth, color="#1b1f24", lw=1, ls=":")
    each.set_title(f"shared layer at ε = {epsilon:g}", loc="left")

"""The table of settings: each is written once, with its type, default, allowed values, help, option and key.

To add a setting, add an entry and use it. From the entries are made: the arguments of `FederatedGP` with
their checks and docstring, the options of `fit` and `federate`, TOML files and `--write-config`, and the
terms of a federation. First the settings of a model, then what a fit from files needs beside them.
No JAX here: `pfedhgp fit --help` must not wait for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from pfedhgp.base.choices import (
    AUTO,
    DEVICES,
    FORMS,
    INFERENCES,
    LAYERS,
    LOCALS,
    NOISES,
    SHARED_WHITE,
    SHARINGS,
)
from pfedhgp.settings import kinds
from pfedhgp.settings.federation_section import FederationSection
from pfedhgp.settings.privacy_section import PrivacySection
from pfedhgp.settings.setting import Setting, setting, settings_of, table

if TYPE_CHECKING:
    from pfedhgp.gp.kernels import Kernel
    from pfedhgp.inference.protocols import Inference

STRUCTURED = INFERENCES[0]


@table("model")
class ModelSection:
    """[model] of a settings file: what is fitted."""

    kernel: Kernel | str | Sequence[Kernel | str] = setting(
        default="rbf",
        kind=kinds.KERNEL,
        help="Kernel of the global and deviation layers.",
        python='A kernel, a name such as "rbf" or "matern52", or text such as "rbf(3 days) + periodic(1 '
        'day)". A lengthscale that you give is a '
        "starting value, in the units of the data. A variance is not: variances start from the data, "
        'and in a sum only their ratios count. "auto": training chooses among RBF, Matérn 3/2 and 5/2 and '
        "rational quadratic, each with and without a periodic part. A list: among these kernels.",
        words="rbf, matern12, matern32, matern52, periodic, rational_quadratic, or sums and products "
        "such as 'rbf + periodic(1 day)'; auto (training chooses), or 'auto: rbf, matern32' (among these).",
    )
    deviation_kernel: Kernel | str | None = setting(
        default=None,
        kind=kinds.KERNEL,
        help="Kernel of the deviation layer alone (structured only).",
        python="Its parameters are shared, as those of the kernel are. With it messages are four times as "
        "long.",
        unset="the kernel of the global layer, scaled by φ",
        example="matern32",
    )
    local_kernel: Kernel | str | Sequence[Kernel | str] | None = setting(
        default=None,
        kind=kinds.KERNEL,
        help="Kernel of the local layers, with lengthscales of its own.",
        unset="the form of the kernel, chosen if that is auto; matern32 with state-space",
        example="matern32",
    )
    layers: Sequence[str] = setting(
        default=LAYERS,
        kind=kinds.words(*LAYERS),
        help="Which layers there are. Fewer than three are ablations.",
    )
    latents: int | str | None = setting(
        default=None,
        kind=kinds.budget(1),
        help="Number of latent functions of the global and deviation layers: a number, or auto (chosen "
        "from sums over clients, from three outputs on, or with client loadings).",
        unset="1 for one output, else 2",
        example=2,
    )
    local_latents: int | str | None = setting(
        default=None,
        kind=kinds.budget(1),
        help="Number of latent functions of the local layers: a number or auto.",
        unset="1 for one output, else 2",
        example=2,
    )
    client_loadings: bool = setting(
        default=False,
        kind=kinds.FLAG,
        option="--client-loadings/--no-client-loadings",
        help="Whether each client mixes the shared functions with loadings of its own (not with mean-field).",
        python="They are the client's own, and their mean and spread over clients are learned. With them "
        "the model sees which clients are alike. False is the model of the paper.",
    )
    noise: str = setting(
        default=AUTO,
        kind=kinds.word(AUTO, *NOISES),
        help="Form of the noise: scalar (one variance), output (one for each output), full (a "
        "covariance of outputs), level (one for each output, and it depends on the level: for inference "
        "markov), or auto (the same as output).",
    )
    local: str = setting(
        default="inducing",
        kind=kinds.word(*LOCALS),
        help="How local layers are computed: inducing (any kernel, approximate), or state-space (exact "
        "and fast, for one input and Matérn kernels).",
        python="state-space takes time O(n) at any resolution; each output has one local function.",
    )
    inducing: int | str = setting(
        default=AUTO,
        kind=kinds.budget(1),
        help="Number of global inducing inputs: auto or a number.",
    )
    local_inducing: int | str = setting(
        default=AUTO,
        kind=kinds.budget(1),
        help="Number of local inducing inputs of each client: auto or a number.",
    )
    learn_inducing: bool | str | None = setting(
        default=None,
        kind=kinds.FLAG_OR_AUTO,
        option="--learn-inducing/--fixed-inducing",
        help="Whether inducing inputs move during training.",
        python='"auto": only if the number that you gave is much too small for the lengthscales.',
        unset="fixed for structured, learned for mean-field",
        example=False,
    )
    largest_inducing: int | None = setting(
        default=None,
        kind=kinds.whole(2),
        help="The most global inducing inputs that auto may take. A warning says if it is too low.",
        unset="256, or 128 if there are many outputs",
        example=256,
    )
    largest_local_inducing: int = setting(
        default=200,
        kind=kinds.whole(2),
        help="The most local inducing inputs that auto may take for a client.",
    )
    cycles: str = setting(
        default="white",
        kind=kinds.word(*FORMS, AUTO, SHARED_WHITE),
        help="How cycles vary around the function of their client: white (independent noise in every "
        "value), stationary (a smooth function for each cycle), free (any covariance on a basis, shrunk "
        "towards the stationary one), auto (the form with which one half of the cycles predicts the other "
        "best), or white-shared (as white, with one noise for all clients, found before training).",
        python="Cycles come as `fit(..., cycle=...)` or as arrays (C, Q, n). If the form is not white, "
        "the noise is found with it before training, and predictions are those of a new cycle.",
    )
    cycle_sharing: str = setting(
        default="shared",
        kind=kinds.word(*SHARINGS),
        help="Who has a cycle layer: shared (one for all clients), client (one for each), or mixed (one "
        "for each, shrunk towards the shared one).",
        python="Clients with one cycle, and clients that are not in the data, have the shared layer.",
    )
    cycle_basis: int | str = setting(
        default=AUTO,
        kind=kinds.budget(2),
        help="Number of basis functions of the cycle layer for each channel: auto or a number.",
    )
    domain: Any = setting(
        default=None,
        kind=kinds.PAIRS,
        metavar="LOW..HIGH",
        help="Known range of each input, in order. Saves one exchange.",
        python="A pair (lower, upper) for each input: numbers, or datetimes.",
        unset="the range of the data",
        example=("0..10",),
    )


@table("inference")
class InferenceSection:
    """[inference] of a settings file: how it is trained."""

    inference: Inference | str = setting(
        default=STRUCTURED,
        kind=kinds.INFERENCE,
        key="name",
        help="How the model is trained: structured, or mean-field (the paper's Algorithm 1).",
        python="Or an object with settings of either, such as `Structured(evaluations=80)`.",
    )
    rounds: int | None = setting(
        default=None,
        kind=kinds.whole(1),
        help="The most rounds of training.",
        unset="until it has settled, 40 at most (10 between machines, with masks or closed sums); 20 for "
        "mean-field",
        example=10,
    )
    tolerance: float = setting(
        default=0.02,
        kind=kinds.number(least=0.0),
        help="Training has converged when two rounds in a row gain less than this, in nats per client.",
    )
    restarts: int = setting(
        default=1,
        kind=kinds.whole(1),
        help="Number of trainings from different starting values. The one with the best bound is kept.",
    )
    batch: bool = setting(
        default=True,
        kind=kinds.FLAG,
        option="--batch/--one-by-one",
        unused=True,
        help="Whether clients of similar size are computed together.",
    )
    averaging: bool = setting(
        default=True,
        kind=kinds.FLAG,
        option="--averaging/--best-parameters",
        help="Whether predictions average over the parameters of a client that has few rows (structured "
        "only).",
        python="These parameters are its loadings, local kernels and noise. False: only their best values "
        "count.",
    )


@table("run")
class ComputingSection:
    """[run] of a settings file: on what, and with which random numbers."""

    device: str = setting(
        default=DEVICES[0],
        kind=kinds.word(*DEVICES),
        unused=True,
        help="Where to compute, in fitting and predicting: cpu or gpu.",
    )
    seed: int = setting(
        default=0,
        kind=kinds.whole(0),
        agreed=True,
        help="Seed of everything random.",
    )


@table()
class ModelSettings(
    PrivacySection, ComputingSection, FederationSection, InferenceSection, ModelSection
):
    """All settings of a model and of its training: the arguments of `FederatedGP`."""

    callbacks: Sequence[Callable[[dict[str, Any]], bool | None]] = setting(
        default=(),
        kind=kinds.FUNCTIONS,
        help="Functions that get the record of each round. Training ends when one returns True.",
    )


MODEL_SETTINGS: tuple[Setting, ...] = settings_of(ModelSettings)
"""The arguments of `FederatedGP`, in order."""


# ------------------------------------------------------------------------------- a fit from files


@table("data")
class DataSection:
    """[data] of a settings file: what is read."""

    files: Sequence[str] = setting(
        default=(),
        kind=kinds.PATHS,
        option="DATA...",
        required=True,
        unused=True,
        help="CSV (gz too), Parquet or Feather: files, or a folder with one file per client.",
    )
    client: str | None = setting(
        default=None,
        kind=kinds.TEXT,
        unused=True,
        help="Column that names the client.",
        unset="each file is a client",
        example="station",
    )
    inputs: Sequence[str] = setting(
        default=(),
        kind=kinds.TEXTS,
        option="--input",
        required=True,
        help="An input column. Repeat the option for several.",
    )
    outputs: Sequence[str] = setting(
        default=(),
        kind=kinds.TEXTS,
        option="--output",
        required=True,
        help="An output column. Repeat the option for several.",
    )
    cycle: str | None = setting(
        default=None,
        kind=kinds.TEXT,
        help="Column that numbers cycles: whole repetitions of the input grid.",
        unset="there are no cycles",
        example="stroke",
    )
    label: str | None = setting(
        default=None,
        kind=kinds.TEXT,
        only_with="diagnose",
        agreed=True,
        help="With --diagnose in a federation: column that names the class of each cycle.",
        unset="clients are the classes",
        example="condition",
    )
    classes: Sequence[str] | None = setting(
        default=None,
        kind=kinds.TEXTS,
        option=None,
        only_with="diagnose",
        agreed=True,
        help="All classes that sites have cycles of. Only in a server's settings, which has no file.",
        unset="as in the files",
        example=("normal", "worn"),
    )
    block: str | None = setting(
        default=None,
        kind=kinds.TEXT,
        only_with="diagnose",
        agreed=True,
        help="With --diagnose: column that names the run (batch, shift) that each cycle is of.",
        unset="every cycle counts as a run of its own",
        example="shift",
    )
    delimiter: str | None = setting(
        default=None,
        kind=kinds.TEXT,
        unused=True,
        help="Delimiter of CSV files, such as ';' or tab.",
        unset="a comma; tab in .tsv files",
        example=";",
    )
    datetimes: Sequence[str] | None = setting(
        default=None,
        kind=kinds.TEXTS,
        option=None,
        help="Inputs that are datetimes, for a federation's server: it has no file to see them in.",
        unset="as the files show; only a federation's server needs it",
        example=("time",),
    )
    datetime_format: str | None = setting(
        default=None,
        kind=kinds.TEXT,
        help="Format of datetime inputs that are not ISO 8601, such as %d/%m/%Y.",
        unset="ISO 8601",
        example="%d/%m/%Y",
    )


@table("run")
class OutputSection:
    """[run] of a settings file: what is written, and what is kept for testing."""

    out: str | None = setting(
        default=None,
        kind=kinds.PATH,
        metavar="RUN",
        required=True,
        unused=True,
        help="Folder for the model.",
        unset="must be given, here or as --out",
        example="RUN",
    )
    holdout: str | None = setting(
        default=None,
        kind=kinds.TEXT,
        panel="Data",
        metavar="KIND:PART",
        unused=True,
        help="Rows of each client to keep for testing: random:0.2, last:0.2 or blocks:0.2.",
        unset="no rows",
        example="blocks:0.2",
    )
    report: bool = setting(
        default=True,
        kind=kinds.FLAG,
        option="--report/--no-report",
        unused=True,
        help="Whether to write RUN/report.html.",
    )

"""The table of settings: each is written once, with its type, default, allowed values, help, option and key.

To add a setting, add an entry and use it. From the entries are made: the arguments of `FederatedGP` with
their checks and docstring, the options of `fit` and `federate`, TOML files and `--write-config`, and the
terms of a federation. Here are the settings of a model; `file_table` has those of a fit from files.
No JAX in either: `pfedhgp fit --help` must not wait for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from pfedhgp.base.choices import (
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
from pfedhgp.settings.setting import Setting, setting, settings_of, table

if TYPE_CHECKING:
    from pfedhgp.gp.kernels import Kernel
    from pfedhgp.inference.protocols import Inference

AUTO = "auto"
STRUCTURED = INFERENCES[0]


@table("model")
class ModelSection:
    """[model] of a settings file: what is fitted."""

    kernel: Kernel | str = setting(
        default="rbf",
        kind=kinds.KERNEL,
        help="Kernel of the global and deviation layers.",
        python='A kernel, or a name such as "rbf" or "matern52". A lengthscale that you give is a '
        "starting value, in the units of the data. A variance is not: variances start from the data, "
        "and in a sum only their ratios count.",
        words="rbf, matern12, matern32, matern52, periodic, rational_quadratic, or sums and products "
        "such as 'rbf + periodic(1 day)'.",
    )
    local_kernel: Kernel | str | None = setting(
        default=None,
        kind=kinds.KERNEL,
        help="Kernel of the local layers, with lengthscales of its own.",
        unset="the form of the kernel; matern32 with state-space",
        example="matern32",
    )
    layers: Sequence[str] = setting(
        default=LAYERS,
        kind=kinds.words(*LAYERS),
        help="Which layers there are. Fewer than three are ablations.",
    )
    latents: int | None = setting(
        default=None,
        kind=kinds.whole(1),
        help="Number of latent functions of the global and deviation layers.",
        unset="1 for one output, else 2",
        example=2,
    )
    local_latents: int | None = setting(
        default=None,
        kind=kinds.whole(1),
        help="Number of latent functions of the local layers.",
        unset="1 for one output, else 2",
        example=2,
    )
    noise: str = setting(
        default=AUTO,
        kind=kinds.word(AUTO, *NOISES),
        help="Form of the noise: scalar (one variance), output (one for each output), full (a "
        "covariance of outputs), or auto (the same as output).",
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
        python="A pair (lower, upper) for each input.",
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
        unset="10 for structured, 20 for mean-field",
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
class ModelSettings(ComputingSection, InferenceSection, ModelSection):
    """All settings of a model and of its training: the arguments of `FederatedGP`."""

    callbacks: Sequence[Callable[[dict[str, Any]], bool | None]] = setting(
        default=(),
        kind=kinds.FUNCTIONS,
        help="Functions that get the record of each round. Training ends when one returns True.",
    )


MODEL_SETTINGS: tuple[Setting, ...] = settings_of(ModelSettings)
"""The arguments of `FederatedGP`, in order."""

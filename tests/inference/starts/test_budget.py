"""Automatic inducing inputs: enough and no more over lengthscales and domains of many sizes; they grow."""

from __future__ import annotations

import warnings
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from pfedhgp.data.scaling import Scaling
from pfedhgp.errors import BudgetWarning
from pfedhgp.federation.opening import too_few
from pfedhgp.federation.phases import Counted, Prepared
from pfedhgp.federation.plan import Plan
from pfedhgp.federation.training import more_inputs, warn_of_cap
from pfedhgp.gp.kernels import RBF, Matern32
from pfedhgp.inference.protocols import ServerParty
from pfedhgp.inference.starts import budget
from pfedhgp.inference.starts.candidates import Start
from pfedhgp.inference.starts.census import Scales
from pfedhgp.inference.structured.settings import Structured
from pfedhgp.model.spec import build_spec, starting_kernels

JITTER, TOLERANCE = 1e-8, 1e-3


@pytest.mark.parametrize(
    ("kernel", "lengthscale", "width", "inputs"),
    [
        (RBF, 0.02, 1.0, 1),
        (RBF, 3.0, 1.0, 1),
        (RBF, 3.0, 300.0, 1),
        (RBF, 0.5, 12.0, 1),
        (Matern32, 3.0, 10.0, 1),
        (RBF, 4.0, 10.0, 2),
    ],
)
def test_the_smallest_set_that_is_enough(kernel, lengthscale, width, inputs):
    """A lengthscale in the data's units over a domain of `width`: the budget depends on their ratio alone."""
    extent = np.full(inputs, width)
    kernels = starting_kernels(kernel(lengthscale), scale=0.2, count=1, extent=extent)
    Z = budget.domain_budget(kernels, inputs, TOLERANCE, 256, JITTER)
    assert budget.box_residual(kernels, Z, JITTER) <= TOLERANCE
    smaller = [size for size in budget.SIZES if size < len(Z)]
    if smaller:
        fewer = budget.box_points(smaller[-1], inputs)
        assert budget.box_residual(kernels, fewer, JITTER) > TOLERANCE


def test_a_domain_of_300_lengthscales_is_cut_at_the_cap():
    kernels = starting_kernels(RBF(1.0), scale=0.2, count=1, extent=np.array([300.0]))
    Z = budget.domain_budget(kernels, 1, TOLERANCE, 128, JITTER)
    assert len(Z) == 128
    assert budget.box_residual(kernels, Z, JITTER) > 0.1


def in_training(size: int, lost: float, **kwargs) -> tuple[Prepared, ServerParty]:
    """In training with `size` global inducing inputs that cost `lost` nats a client."""
    spec = build_spec(
        inputs=1,
        outputs=1,
        kernel=RBF(),
        local_kernel=RBF(),
        layers=("global", "local"),
        latents=None,
        local_latents=None,
        noise="auto",
    )
    plan, counted = Plan(spec, Structured(), **kwargs), Counted({"rows": np.array([900.0])}, 3)
    unit = Scaling(np.zeros(1), np.ones(1), np.zeros(1), np.ones(1))
    prepared = Prepared(plan, counted, spec, unit, Scales(0.02, 0.2, 0.4, 0.5, 0.1))
    block = SimpleNamespace(inputs=np.zeros((size, 1)))
    return prepared, SimpleNamespace(block=block, shared_nats=lambda: lost)


def test_global_inputs_grow_while_they_are_short():
    size, path = 12, []
    while (more := more_inputs(*in_training(size, lost=2.0 * budget.NATS))) is not None:
        size = len(more)
        path.append(size)
    assert path == [20, 32, 48, 72, 100, 150, 200, 256]
    assert more_inputs(*in_training(12, lost=0.5 * budget.NATS)) is None


def test_global_inputs_stop_at_the_cap_that_was_given_and_at_the_rows():
    assert len(more_inputs(*in_training(32, lost=9.0, largest_inducing=40))) == 40
    assert more_inputs(*in_training(40, lost=9.0, largest_inducing=40)) is None
    assert more_inputs(*in_training(900, lost=9.0, largest_inducing=5000)) is None


@pytest.mark.parametrize(("shared", "local", "short"), [(25, 25, True), (40, 40, False)])
def test_given_budgets_that_are_much_too_small_are_known(shared, local, short):
    """The study's scales: a local lengthscale of a fortieth of the domain, 50 rows."""
    prepared, _ = in_training(12, lost=0.0, inducing=shared, local_inducing=local)
    counted = Counted({"rows": np.array([300.0]), "y_pairs": np.array([[300.0]])}, clients=6)
    start = Start(0.2, 0.025, 0.6, 0.35, 1e-4)
    assert too_few(replace(prepared, counted=counted), start) is short


def test_a_global_cap_that_is_too_low_is_said():
    with pytest.warns(BudgetWarning, match=r"40 global inducing inputs.*raise `largest_inducing`"):
        warn_of_cap(*in_training(40, lost=9.0, largest_inducing=40))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_cap(*in_training(40, lost=0.1, largest_inducing=40))
        warn_of_cap(*in_training(32, lost=9.0, largest_inducing=40))
        warn_of_cap(*in_training(40, lost=9.0, inducing=40))


def test_numbers_that_were_given_do_not_grow():
    assert more_inputs(*in_training(12, lost=9.0, inducing=12)) is None


def test_rows_are_spread_over_a_clients_own_inputs():
    kernels = starting_kernels(RBF(), scale=0.1, count=1, extent=np.ones(1))
    X = np.concatenate([np.linspace(0.6, 0.9, 40), np.full(5, 0.7)])[:, None]
    Z = budget.spread_rows(kernels, X, 10)
    assert len(Z) == 10
    assert Z.min() == 0.6
    assert Z.max() == 0.9
    assert np.diff(Z[:, 0]).max() < 2.0 * 0.3 / 9


def test_spacing_is_that_of_distinct_rows_in_their_own_box():
    x = np.array([0.2, 0.4, 0.4, 0.6, 0.3])[:, None]
    np.testing.assert_allclose(budget.spacing(x), 0.5 * 0.4 / 3)
    np.testing.assert_allclose(budget.spacing(x[:1]), budget.CLOSEST)
    square = np.stack(np.meshgrid(np.arange(4.0), np.arange(4.0)), -1).reshape(-1, 2)
    np.testing.assert_allclose(budget.spacing(square), 0.5 * 3.0 / np.sqrt(15), rtol=1e-12)

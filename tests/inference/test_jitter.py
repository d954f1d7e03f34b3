"""Where a factorisation fails jitter rises, and says so; what is not finite is an error that says where."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace

import jax.numpy as jnp
import numpy as np
import pytest

from pfedhgp import RBF, FederatedGP, Periodic
from pfedhgp.base.arrays_of import namespace
from pfedhgp.base.trees import stack_trees
from pfedhgp.errors import (
    InputError,
    MessageError,
    NonFiniteError,
    NonFiniteMessageError,
    NumericsError,
    NumericsWarning,
)
from pfedhgp.gp import kernels
from pfedhgp.gp.noise import DiagonalNoise
from pfedhgp.inference import jitter as jitters
from pfedhgp.inference.meanfield.training import MeanField
from pfedhgp.inference.structured.settings import Structured, StructuredClients
from pfedhgp.model.blocks import ClientBlock, GlobalBlock

T = np.linspace(0.0, 1.0, 8)
SITES = {"a": (T, np.sin(6 * T)), "b": (T, np.cos(6 * T))}
SMALL = {"rounds": 1, "averaging": False, "inducing": 4, "local_inducing": 3}


class Box(RBF):
    """1 within ℓ and 0 beyond: symmetric, and not positive definite by far."""

    def of_squared(self, squared):
        return namespace(squared).where(squared < 1.0, 1.0, 0.0)


class Coarse(RBF):
    """An RBF of five digits, which is indefinite by about 1e-5."""

    def of_squared(self, squared):
        return (1e5 * super().of_squared(squared)).round() / 1e5


class Torn(RBF):
    """An RBF with NaN at one input, which no inducing input is at."""

    def __call__(self, X, Z, *, stacked=None):
        X, Z = (namespace(A).where(abs(A - 0.37) < 1e-9, np.nan, A) for A in (X, Z))
        return super().__call__(X, Z, stacked=stacked)


def stacked(kernel: kernels.Kernel) -> kernels.Kernel:
    return kernels.stack([kernel])


def shared_block(kernel: kernels.Kernel, size: int = 12) -> GlobalBlock:
    Z = jnp.linspace(0.0, 1.0, size)[:, None]
    return GlobalBlock(stacked(kernel), Z, jnp.ones((1, 1)), jnp.ones(()))


def smallest_that_factorises(matrix: np.ndarray, start: float) -> float:
    """By NumPy, one power of ten after the other."""
    jitter = start
    while True:
        try:
            np.linalg.cholesky(matrix + jitter * np.mean(np.diag(matrix)) * np.eye(len(matrix)))
            return jitter
        except np.linalg.LinAlgError:
            jitter *= 10.0


def test_a_matrix_that_factorises_keeps_its_jitter_and_says_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert jitters.sufficient_jitter(shared_block(RBF(np.array([0.3]))), 1e-8) == 1e-8


def test_jitter_rises_tenfold_to_the_smallest_that_serves_and_warns_each_time():
    block = shared_block(Coarse(np.array([1.0])))
    K = np.asarray(kernels.unstack(block.kernels, 0)(block.inputs, block.inputs))
    expected = smallest_that_factorises(K, 1e-8)
    assert 1e-7 < expected < 1e-2
    with pytest.warns(NumericsWarning, match=r"^k\(Z_g, Z_g\) could not be factorised") as caught:
        found = jitters.sufficient_jitter(block, 1e-8)
    assert found == pytest.approx(expected, rel=1e-12)
    assert len(caught) == round(np.log10(expected / 1e-8))
    assert f"{expected:.0e}" in str(caught[-1].message)


def test_beyond_the_largest_jitter_is_an_error_that_names_the_matrix():
    with (
        pytest.warns(NumericsWarning, match="1e-02"),
        pytest.raises(NumericsError, match=r"largest jitter, 0\.01") as caught,
    ):
        jitters.sufficient_jitter(shared_block(Box(np.array([0.45]))), 1e-8)
    assert (caught.value.client, caught.value.matrix) == (None, "k(Z_g, Z_g)")
    assert not isinstance(caught.value, NonFiniteError)


def test_more_jitter_is_not_tried_where_the_kernel_is_not_finite():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(NonFiniteError, match="kernel is not finite") as caught:
            jitters.sufficient_jitter(
                shared_block(Periodic(np.array([1.0]), period=[1e-310])), 1e-8
            )
    assert caught.value.matrix == "k(Z_g, Z_g)"


def client_block(kernel: kernels.Kernel) -> ClientBlock:
    Z = jnp.linspace(0.0, 1.0, 9)[:, None]
    noise = DiagonalNoise(jnp.zeros(1))
    return ClientBlock(stacked(kernel), Z, jnp.ones(9), jnp.ones((1, 0)), jnp.ones((1, 1)), noise)


def test_only_failing_clients_have_their_jitter_raised_and_are_named():
    blocks = stack_trees([client_block(Box(np.array([scale]))) for scale in (0.1, 0.45, 0.45)])
    names, failed = ("fine", "wide", "wider"), np.array([False, True, True])
    start = np.array([1e-8, 1e-8, 1e-6])
    with pytest.warns(NumericsWarning, match=r"k\(Z_i, Z_i\) of clients 'wide', 'wider'"):
        found = jitters.with_more_jitter(start, failed, blocks, names)
    np.testing.assert_allclose(found, [1e-8, 1e-7, 1e-5])
    np.testing.assert_array_equal(start, [1e-8, 1e-8, 1e-6])
    with pytest.raises(
        NonFiniteError
    ) as caught:  # its factor is there: jitter is not what it lacks
        jitters.with_more_jitter(start, ~failed, blocks, names)
    assert (caught.value.client, caught.value.matrix) == ("fine", "I + HᵀΣ⁻¹H")


# Through FederatedGP.fit -----------------------------------------------------------------------


@pytest.mark.slow
def test_a_clients_near_duplicates_raise_its_own_jitter_alone():
    """Rows a thousandth of a lengthscale apart: their RBF matrix has rank two or so in float64."""
    near = 0.5 + np.arange(12) / 2000.0
    data = {"far": ([0.0, 0.5, 1.0], [0.0, 1.0, 0.0]), "near": (near, np.sin(np.arange(12.0)))}
    model = FederatedGP(
        inference=Structured(jitter=1e-17),
        kernel="matern12",
        local_kernel=RBF(0.5),
        **{**SMALL, "local_inducing": "auto"},
    )
    with pytest.warns(NumericsWarning, match=r"k\(Z_i, Z_i\) of client 'near'") as caught:
        model.fit(data)
    raised = [w for w in caught if issubclass(w.category, NumericsWarning)]
    assert not any("'far'" in str(w.message) for w in raised)
    own = model.model_.client_jitter
    assert own["far"] == model.model_.jitter == 1e-17
    assert 1e-17 < own["near"] < 1e-12
    assert np.isfinite(model.predict("near", near).sd).all()


@pytest.mark.parametrize(
    ("kernel", "kind", "words", "matrix"),
    [
        (Box(0.45), NumericsError, "largest jitter", "k(Z_i, Z_i)"),
        pytest.param(
            Periodic(period=1e-310),
            NonFiniteError,
            "kernel is not finite",
            "k(Z_i, Z_i)",
            marks=pytest.mark.slow,
        ),
        (Torn(0.3), NonFiniteError, "bound is not finite", "I + HᵀΣ⁻¹H"),
    ],
    ids=["indefinite", "not finite", "not finite at a row"],
)
@pytest.mark.filterwarnings("ignore::pfedhgp.errors.NumericsWarning")
def test_a_clients_trouble_is_an_error_with_its_name(kernel, kind, words, matrix):
    data = {"a": SITES["a"], "b": (np.array([0.0, 0.37, 1.0]), np.array([0.0, 1.0, 0.0]))}
    own = 8 if isinstance(kernel, Box) else 2 if isinstance(kernel, Torn) else 3
    model = FederatedGP(
        local_kernel=kernel, domain=[(0.0, 1.0)], **{**SMALL, "local_inducing": own}
    )
    with pytest.raises(NumericsError, match=words) as caught:
        model.fit(data if isinstance(kernel, Torn) else SITES)
    assert type(caught.value) is kind
    assert caught.value.client == ("b" if isinstance(kernel, Torn) else "a")
    assert caught.value.matrix == matrix
    assert not hasattr(model, "model_")


@dataclass(frozen=True)
class Lying(Structured):
    """Clients whose second reply has a NaN in its array `y`."""

    def clients(self, spec, like, blocks, rows):
        party = Structured.clients(self, spec, like, blocks, rows)

        class Liar(StructuredClients):
            def answer(self, arrays, kind, names):
                replies = StructuredClients.answer(self, arrays, kind, names)
                if kind == "round":
                    replies[-1]["y"] = np.full_like(replies[-1]["y"], np.nan)
                return replies

        party.__class__ = Liar
        return party


def test_a_message_with_nan_is_refused_by_client_and_array():
    with pytest.raises(NonFiniteMessageError, match="round message of round 1") as caught:
        FederatedGP(**SMALL, inference=Lying()).fit(SITES)
    assert (caught.value.client, caught.value.matrix) == ("b", "y")
    assert isinstance(caught.value, MessageError)
    assert isinstance(caught.value, NonFiniteError)


@dataclass(frozen=True)
class Contrary(Lying):
    """Clients whose replies are finite, and whose sum is the evidence of nobody: J ≪ 0."""

    def clients(self, spec, like, blocks, rows):
        party = Structured.clients(self, spec, like, blocks, rows)

        class Liar(StructuredClients):
            def answer(self, arrays, kind, names):
                replies = StructuredClients.answer(self, arrays, kind, names)
                size = len(replies[0]["y"])
                packed = (-1e9 * np.eye(size))[np.triu_indices(size)]
                return [{**reply, "U": packed} for reply in replies]

        party.__class__ = Liar
        return party


def test_a_bound_that_is_not_finite_is_an_error_of_the_server():
    with pytest.raises(NonFiniteError, match="the bound is not finite") as caught:
        FederatedGP(**SMALL, inference=Contrary()).fit(SITES)
    assert (caught.value.client, caught.value.matrix) == (None, "I + ΣJ")


@pytest.mark.parametrize("which", ["inputs", "outputs"])
def test_values_that_cannot_be_squared_are_refused_before_anything_is_sent(which):
    data = {**SITES, "huge": (1e200 * T, T) if which == "inputs" else (T, 1e200 * T)}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(InputError, match=f"client 'huge': {which} beyond"):
            FederatedGP(**SMALL).fit(data)
    cycles = np.random.default_rng(0).choice([-1e200, 1e200], size=(4, 1, 8))
    with pytest.raises(InputError, match="client 'a': outputs beyond"):
        FederatedGP(**SMALL).fit({"a": (T, cycles), "b": (T, cycles)})


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pfedhgp.errors.NumericsWarning")
@pytest.mark.parametrize(
    ("settings", "kind", "client", "matrix"),
    [
        ({"kernel": Box(0.45), "inducing": 8}, NumericsError, None, "k(Z_g, Z_g)"),
        ({"local_kernel": Box(0.45), "local_inducing": 8}, NumericsError, "a", "k(Z_i, Z_i)"),
        ({"inference": MeanField(local_rate=1e200)}, NonFiniteError, "a", "k(Z_i, Z_i)"),
    ],
    ids=["shared", "local", "runs away"],
)
def test_mean_field_names_client_and_matrix_too(settings, kind, client, matrix):
    settings = {**SMALL, "inference": MeanField(), **settings}
    settings["inference"] = replace(settings["inference"], local_steps=3)
    with pytest.raises(NumericsError) as caught:
        FederatedGP(**settings).fit(SITES)
    assert type(caught.value) is kind
    assert (caught.value.client, caught.value.matrix) == (client, matrix)

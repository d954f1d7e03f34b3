"""deviation_kernel: deviations that are rougher, or have waves, where the global layer has not."""

from __future__ import annotations

import numpy as np
import pytest

from pfedhgp import RBF, FederatedGP, Matern32, Periodic, Structured
from pfedhgp.base.numerics import numerics
from pfedhgp.data.rows import ClientRows
from pfedhgp.errors import InputError
from pfedhgp.federation.grouping import group_clients
from pfedhgp.federation.message_checks import check_arrays, of_reply, of_request
from pfedhgp.federation.planning import make_plan
from pfedhgp.federation.server import Server
from pfedhgp.gp.kernels import Stacks
from pfedhgp.model import spec
from pfedhgp.settings.config import checked

QUICK = Structured(rounds=4, evaluations=15, first_evaluations=20)
X = np.linspace(0.0, 10.0, 9)


def federation(outputs: int = 2, clients: int = 3, n: int = 30):
    """A smooth common function, and a random walk at each client."""
    rng = np.random.default_rng(0)
    B, found = rng.normal(size=outputs), {}
    for i in range(clients):
        x = np.sort(rng.uniform(0.0, 10.0, n))
        walk = np.cumsum(rng.normal(size=n) * np.sqrt(np.diff(x, prepend=0.0)))
        own = 0.5 * walk[:, None] * rng.normal(size=outputs)
        y = np.sin(x)[:, None] * B + own + 0.05 * rng.normal(size=(n, outputs))
        found[f"c{i}"] = (x, y if outputs > 1 else y[:, 0])
    return found


@pytest.fixture(scope="module")
def fitted():
    return FederatedGP(kernel="rbf", deviation_kernel="matern32", inference=QUICK, inducing=12).fit(
        federation()
    )


def test_each_layer_keeps_to_its_own_latents(fitted):
    """Averaging moves the others' loadings by 10⁻³ of φ's sd at most: see `UNUSED`."""
    block = fitted.model_.shared.block
    assert isinstance(block.kernels, Stacks)
    assert [type(kernel) for kernel in block.kernels.kernels] == [RBF, Matern32]
    B_g = np.asarray(block.loadings)
    assert B_g.shape == (2, 4)
    assert np.all(B_g[:, 2:] == 0.0)
    assert np.all(B_g[:, :2] != 0.0)
    own = np.stack([np.asarray(p.block.deviation) for p in fitted.model_.clients.values()])
    assert np.abs(own[..., :2]).max() < 1e-3 * np.sqrt(float(block.phi))
    assert np.abs(own[..., 2:]).max() > 0.1


def test_files_adoption_and_unseen_clients(fitted, tmp_path):
    fitted.save(tmp_path / "M")
    again = FederatedGP.load(tmp_path / "M")
    assert spec.name_of(again.deviation_kernel) == "matern32"
    assert spec.name_of(again.kernel) == "rbf"
    for client in ("c0", "unseen"):
        found, expected = again.predict(client, X), fitted.predict(client, X)
        np.testing.assert_allclose(found.mean, expected.mean)
        np.testing.assert_allclose(found.sd, expected.sd)
    x, y = federation()["c1"]
    again.adopt("new", x, y)
    error = np.abs(again.predict("new", x).mean - y)
    assert np.sqrt(np.mean(error**2)) < 0.3
    plan = make_plan(checked(again), 1, 2)
    assert plan.spec.own_deviation_kernel


def test_deviations_of_an_unseen_client_have_their_kernel(fitted):
    """Corr(f(x), f(x')) of a new client's deviation is the mean of the Matérn kernels, of no RBF."""
    from pfedhgp.model.predictor import Predictor, prior_covariance

    with numerics():
        predictor = Predictor.build(fitted.model_, "unseen")
        z = np.linspace(0.0, 1.0, 5)[:, None]
        own = fitted.model_.shared.block.kernels.kernels[1]
        r = np.sqrt(3.0) * np.abs(z - z.T) / np.asarray(own.lengthscale).reshape(-1, 1, 1)
        expected = ((1.0 + r) * np.exp(-r)).mean(0)
        np.testing.assert_allclose(prior_covariance(predictor, z, z)[0], expected, rtol=1e-10)


def test_one_output_and_messages_of_the_schema():
    plan = make_plan(
        checked(FederatedGP(deviation_kernel="matern32", inference=QUICK, inducing=6)), 1, 1
    )
    assert (plan.spec.latents, plan.spec.tied) == (2, False)
    rows = [ClientRows(k, x[:, None], y[:, None]) for k, (x, y) in federation(outputs=1).items()]
    server, groups = Server(plan), group_clients(plan, rows, batch=True)
    with numerics():
        while (request := server.request()) is not None:
            check_arrays(request.arrays, of_request(plan, request.kind, request.arrays))
            replies = [reply for group in groups for reply in group.answer(request)]
            for reply in replies:
                check_arrays(reply.arrays, of_reply(plan, request.kind, request.arrays))
            server.gather(replies)
    assert np.isfinite(server.best.bound)


def test_waves_of_the_deviations_need_their_own_kernel():
    """Without a local layer: waves of different phases around a smooth common function."""
    rng, data = np.random.default_rng(1), {}
    for i in range(3):
        x = np.sort(rng.uniform(0.0, 10.0, 30))
        data[f"c{i}"] = (x, np.sin(0.5 * x) + np.sin(2 * np.pi * (x / 1.7 + i / 3)))
    given = {"layers": ("global", "deviation"), "inference": QUICK, "inducing": 24}
    smooth = FederatedGP(**given).fit(data)
    waves = FederatedGP(**given, deviation_kernel=Periodic(period=1.7)).fit(data)
    assert waves.bound_ > smooth.bound_ + 20.0
    common = waves.predict("c0", X).layers["global"].mean
    np.testing.assert_allclose(common, np.sin(0.5 * X), atol=0.3)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"deviation_kernel": "auto"}, "cannot be chosen"),
        ({"kernel": "auto"}, "choice of `kernel`"),
        ({"latents": "auto"}, "choice of `latents`"),
        ({"inference": "mean-field"}, "structured"),
        ({"client_loadings": True}, "client_loadings"),
        ({"local": "state-space"}, "state-space"),
        ({"cycles": "stationary"}, "cycle layer"),
        ({"layers": ("global", "local")}, "deviation layer"),
    ],
)
def test_what_it_cannot_be_combined_with_is_refused_in_one_line(settings, message):
    given = {"deviation_kernel": "matern32", **settings}
    with pytest.raises(InputError, match=message) as error:
        make_plan(checked(FederatedGP(**given)), 1, 2)
    assert "\n" not in str(error.value)

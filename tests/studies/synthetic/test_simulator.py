"""The simulator against its equations, and its oracle against a naive twin and calibration."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

import reference as ref
from pfedhgp.errors import InputError
from pfedhgp.gp import metrics
from support import scenarios
from support.scenarios import covariance, oracle, simulate

SMALL = {"clients": 2, "outputs": 2, "n": 3, "n_test": 4}


def cells_and_covariance(s: scenarios.Simulation) -> tuple[np.ndarray, np.ndarray]:
    """All cells, train and test, and their covariance given this run's loadings and inputs."""
    X = [np.concatenate([x, s.X_test]) for x in s.X]
    y = np.concatenate([np.concatenate([a, b]).ravel() for a, b in zip(s.Y, s.Y_test, strict=True)])
    blocks = [[covariance(s, i, X[i], j, X[j]) for j in range(2)] for i in range(2)]
    return y, np.block(blocks) + s.noise_sd**2 * np.eye(len(y))


RUNS = 1500
LIMIT = 5.5 / np.sqrt(RUNS)  # an entry's standard error is 1/√RUNS, on the diagonal √2 times that


def departure(drawn: scenarios.Scenario, formula: scenarios.Scenario) -> float:
    """max |mean over runs of L⁻¹y (L⁻¹y)ᵀ − I|: given its own B and X, each run's L⁻¹y is white."""
    white = np.empty((RUNS, 28))
    for seed in range(RUNS):
        y, K = cells_and_covariance(simulate(drawn, seed, **SMALL))
        if formula != drawn:
            K = cells_and_covariance(simulate(formula, seed, **SMALL))[1]
        white[seed] = np.linalg.solve(np.linalg.cholesky(K), y)
    return float(np.abs(white.T @ white / RUNS - np.eye(28)).max())


@pytest.mark.parametrize("scenario", ["A", "B", "D"])
def test_many_draws_have_the_covariance_of_the_equations(scenario):
    assert departure(scenario, scenario) < LIMIT


@pytest.mark.parametrize("drawn", ["B", "D"])
def test_the_same_check_notices_another_scenarios_covariance(drawn):
    assert departure(drawn, "A") > 2 * LIMIT


def test_deviation_kernels_are_the_papers():
    x, z = np.linspace(0, 10, 7)[:, None], np.array([[0.3], [4.4]])
    smooth = ref.rbf(x, z, lengthscale=1.8)
    waves = ref.periodic(x, z, lengthscale=0.8, period=3.0)
    np.testing.assert_allclose(scenarios.deviation_kernel("A", x, z, 1.8), smooth, rtol=1e-13)
    mixed = scenarios.deviation_kernel("B", x, z, 1.8)
    np.testing.assert_allclose(mixed, 0.65 * smooth + 0.35 * waves, rtol=1e-13)


def test_the_same_seed_gives_the_same_run_and_another_does_not():
    one, two, other = (simulate("A", seed, **SMALL) for seed in (3, 3, 4))
    for i in range(2):
        np.testing.assert_array_equal(one.X[i], two.X[i])
        np.testing.assert_array_equal(one.Y[i], two.Y[i])
        np.testing.assert_array_equal(one.Y_test[i], two.Y_test[i])
        assert np.all(one.Y[i] != other.Y[i])


def test_sizes_and_grid_are_the_papers():
    s = simulate("A", 0)
    assert [Y.shape for Y in s.Y] == [(50, 4)] * 6
    assert [Y.shape for Y in s.Y_test] == [(150, 4)] * 6
    np.testing.assert_array_equal(s.X_test[:, 0], np.linspace(0, 10, 150))
    assert all(x.min() >= 0 and x.max() <= 10 for x in s.X)
    noise = np.concatenate([a - b for a, b in zip(s.Y_test, s.clean_test, strict=True)])
    assert np.std(noise) == pytest.approx(0.05, rel=0.05)


def test_loadings_have_the_papers_scales():
    runs = [simulate("A", seed, n=1, n_test=1) for seed in range(300)]
    for matrices, scale in (
        ([s.B_g for s in runs], (1.0, 0.7)),
        ([B for s in runs for B in s.B_dev], np.sqrt(1.2) * np.array([1.0, 0.7])),
        ([B for s in runs for B in s.B_l], (1.0, 0.8)),
    ):
        entries = np.concatenate(matrices)
        four_errors = 4 / np.sqrt(2 * len(entries))
        np.testing.assert_allclose(np.std(entries, axis=0), scale, rtol=four_errors)


@pytest.mark.parametrize("scenario", ["A", "B", "C", "D"])
def test_layers_add_up_to_the_clean_signal(scenario):
    s = simulate(scenario, 5, **SMALL)
    for i, layers in enumerate(s.layers_test):
        clean = sum(layers.values()) + s.gamma[i] * layers["global"] * layers["deviation"]
        np.testing.assert_allclose(s.clean_test[i], clean, rtol=1e-12)
        assert (0.35 < s.gamma[i] < 0.60) if scenario == "C" else s.gamma[i] == 0.0


def test_scenarios_of_one_seed_share_their_latents():
    a, c, d = (simulate(name, 5, **SMALL) for name in "ACD")
    for i in range(2):
        np.testing.assert_array_equal(a.X[i], d.X[i])
        for name in ("global", "deviation"):
            np.testing.assert_array_equal(a.layers_test[i][name], c.layers_test[i][name])
            np.testing.assert_array_equal(a.layers_test[i][name], d.layers_test[i][name])
        mixed = 0.5 * a.layers_test[i]["deviation"] + np.sqrt(0.75) * a.layers_test[i]["local"]
        np.testing.assert_allclose(d.layers_test[i]["local"], mixed, rtol=1e-12)


def test_local_and_deviation_are_correlated_in_d_alone():
    """corr(f_i, f_δ) = ρ σ_δ/√(ρ²σ_δ² + (1−ρ²)σ_f̃²) cell by cell, σ² = row sums of B²."""
    products = {"A": [], "D": []}
    wanted = []
    for name, values in products.items():
        for seed in range(1500):
            s = simulate(name, seed, clients=1, outputs=1, n=1, n_test=2)
            v_dev, v_l = np.sum(s.B_dev[0] ** 2), np.sum(s.B_l[0] ** 2)
            total = 0.25 * v_dev + 0.75 * v_l if name == "D" else v_l
            dev, local = s.layers_test[0]["deviation"][0, 0], s.layers_test[0]["local"][0, 0]
            values.append(dev * local / np.sqrt(v_dev * total))
            if name == "D":
                wanted.append(0.5 * np.sqrt(v_dev / total))
    assert np.mean(products["A"]) == pytest.approx(0.0, abs=0.1)
    assert np.mean(products["D"]) == pytest.approx(np.mean(wanted), abs=0.1)
    assert np.mean(wanted) > 0.4


def test_oracle_equals_the_naive_exact_posterior():
    s = simulate("A", 2, clients=3, outputs=2, n=8, n_test=5)
    model = ref.Model(
        k_g=[partial(ref.rbf, lengthscale=l) for l in s.lengthscales_g],
        k_l=[[partial(ref.rbf, lengthscale=l) for l in s.lengthscales_l]] * 3,
        B_g=s.B_g,
        B_dev=s.B_dev,
        B_l=s.B_l,
        noise=[0.05**2 * np.eye(2)] * 3,
    )
    for i, (mean, cov) in enumerate(oracle(s)):
        twin = ref.exact_posterior(i, s.X_test, s.X, s.Y, model)
        np.testing.assert_allclose(mean, twin.mean["total"], rtol=1e-7, atol=1e-9)
        full = twin.cov["total", "total"].reshape(5, 2, 5, 2)
        blocks = np.stack([full[j, :, j, :] for j in range(5)]) + 0.05**2 * np.eye(2)
        np.testing.assert_allclose(cov, blocks, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("scenario", ["A", "B", "C", "D"])
def test_oracle_is_calibrated(scenario):
    """The right model covers what it says, at every level, and its distances average Q."""
    cases, distances = [], []
    for seed in range(12):
        s = simulate(scenario, seed, clients=3, n=25, n_test=40)
        for y, (mean, cov) in zip(s.Y_test, oracle(s), strict=True):
            e = (y - mean)[:, :, None]
            distances.append(np.mean(np.sum(e * np.linalg.solve(cov, e), axis=1)))
            cases.append(metrics.Scored(y=y, mean=mean, cov=cov))
    scores = metrics.evaluate(cases)
    assert np.mean(distances) == pytest.approx(4.0, rel=0.1)
    assert scores["coverage"] == pytest.approx(0.95, abs=0.015)
    assert scores["ece"] < 0.02


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scenario", "wanted"),
    [
        ("A", {"rmse": 0.265, "nll": -4.365, "crps": 0.094, "coverr": 0.057, "width": 0.660}),
        ("B", {"rmse": 0.267, "nll": -4.126, "crps": 0.096, "coverr": 0.060}),
        ("D", {"rmse": 0.235, "nll": -4.437, "crps": 0.086, "coverr": 0.046}),
    ],
)
def test_oracle_has_the_figures_of_an_independent_simulator(scenario, wanted):
    """Design 6: 30 runs there and 30 here, so means differ by √2 standard errors."""
    runs = []
    for seed in range(30):
        s = simulate(scenario, seed)
        runs.append(
            metrics.evaluate(
                metrics.Scored(y=y, mean=mean, cov=cov, clean=clean, noise=s.noise_sd**2)
                for y, clean, (mean, cov) in zip(s.Y_test, s.clean_test, oracle(s), strict=True)
            )
        )
    for name, value in wanted.items():
        ours = np.array([run[name] for run in runs])
        error = np.sqrt(2) * ours.std(ddof=1) / np.sqrt(30)
        assert ours.mean() == pytest.approx(value, abs=3 * error), name


def naive_given_global(s: scenarios.Simulation, i: int):
    """Cell by cell: Cov(y_q(x), y_p(z)) given f_g, and the textbook conditional."""
    X = np.concatenate([s.X[i], s.X_test])[:, 0]
    f_g = np.concatenate([s.global_train[i], s.layers_test[i]["global"]])
    Q, cells = 2, [(j, q) for j in range(len(X)) for q in range(2)]
    K = np.zeros((len(cells), len(cells)))
    for a, (j, q) in enumerate(cells):
        for b, (k, p) in enumerate(cells):
            gap = X[j] - X[k]
            for r, l in enumerate((1.8, 2.5)):
                both = (1 + s.gamma[i] * f_g[j, q]) * (1 + s.gamma[i] * f_g[k, p])
                both *= s.B_dev[i][q, r] * s.B_dev[i][p, r]
                K[a, b] += both * np.exp(-0.5 * (gap / l) ** 2)
            for r, l in enumerate((0.25, 0.45)):
                K[a, b] += s.B_l[i][q, r] * s.B_l[i][p, r] * np.exp(-0.5 * (gap / l) ** 2)
            K[a, b] += 0.05**2 * (a == b)
    n = Q * len(s.X[i])
    gain = K[n:, :n] @ np.linalg.inv(K[:n, :n])
    mean = f_g.ravel()[n:] + gain @ (s.Y[i].ravel() - f_g.ravel()[:n])
    return mean, K[n:, n:] - gain @ K[:n, n:]


def test_oracle_of_c_is_the_exact_posterior_given_the_global_function():
    s = simulate("C", 3, clients=2, outputs=2, n=5, n_test=4)
    for i, (mean, cov) in enumerate(oracle(s)):
        want_mean, want_cov = naive_given_global(s, i)
        np.testing.assert_allclose(mean.ravel(), want_mean, rtol=1e-7, atol=1e-9)
        for j in range(4):
            block = want_cov[2 * j : 2 * j + 2, 2 * j : 2 * j + 2]
            np.testing.assert_allclose(cov[j], block, rtol=1e-6, atol=1e-9)


def test_being_told_the_global_function_is_never_a_disadvantage_on_average():
    gains = []
    for seed in range(8):
        s = simulate("A", seed, clients=3, n=25, n_test=40)
        told, exact = (
            np.mean([metrics.nll(y, *p) for y, p in zip(s.Y_test, found, strict=True)])
            for found in (scenarios.given_global(s), scenarios.exact(s))
        )
        gains.append(exact - told)
    assert np.mean(gains) > 0.0


def test_rows_and_heterogeneity_can_be_chosen():
    s = simulate("A", 1, clients=3, n=[4, 9, 2], n_test=5, phi=0.05)
    assert [len(y) for y in s.Y] == [4, 9, 2]
    same = simulate("A", 1, clients=3, n=[4, 9, 2], n_test=5, phi=0.2)
    np.testing.assert_allclose(same.B_dev[1], 2.0 * s.B_dev[1], rtol=1e-12)
    np.testing.assert_array_equal(same.layers_test[2]["global"], s.layers_test[2]["global"])


def test_what_cannot_be_simulated_is_refused():
    with pytest.raises(InputError, match="not Gaussian"):
        scenarios.exact(simulate("C", 0, **SMALL))
    with pytest.raises(InputError, match="`scenario` must be one of A, B, C, D, got 'E'"):
        simulate("E", 0)
    with pytest.raises(InputError, match="3 positive numbers of rows"):
        simulate("A", 0, clients=3, n=[4, 9])

"""scikit-learn's manners: clone, set_params, cross-validation by client, copies, and no pickles."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.model_selection import GroupKFold, LeaveOneGroupOut, cross_val_score

from pfedhgp import FederatedGP
from pfedhgp.errors import InputError, PFedHGPWarning

COLUMNS = {"client": "site", "inputs": "x", "outputs": "y"}
SMALL = {"rounds": 2, "inducing": 8, "local_inducing": 5, "averaging": False}


def table(sites: int = 4) -> pd.DataFrame:
    """Sites that share a wave, and have levels of their own."""
    rng, x = np.random.default_rng(0), np.linspace(0.0, 6.0, 15)
    parts = [
        pd.DataFrame(
            {"site": f"s{i}", "x": x, "y": 3 * np.sin(x) + 0.3 * i + 0.2 * rng.normal(size=15)}
        )
        for i in range(sites)
    ]
    return pd.concat(parts, ignore_index=True)


@pytest.fixture(scope="module")
def model() -> FederatedGP:
    return FederatedGP(**SMALL).fit(table(), **COLUMNS)


def test_clone_and_set_params(model):
    again = clone(model).set_params(kernel="matern52", rounds=1)
    assert not hasattr(again, "model_")
    assert again.get_params() == {**model.get_params(), "kernel": "matern52", "rounds": 1}
    assert again.fit(table(), **COLUMNS).kernel_.name == "Matérn 5/2"


def test_a_client_is_left_out_and_predicted_by_the_population():
    """`score` of the clients that a fold left out is what `predict` says of strangers."""
    given = table()
    with pytest.warns(PFedHGPWarning):
        scores = cross_val_score(
            FederatedGP(**SMALL),
            given,
            groups=given["site"],
            cv=LeaveOneGroupOut(),
            params=COLUMNS,
        )
    assert len(scores) == 4
    left_out = given["site"] == "s1"
    own = FederatedGP(**SMALL).fit(given[~left_out], **COLUMNS)
    with pytest.warns(PFedHGPWarning, match="population's"):
        p = own.predict(given[left_out])
    z = (p["observed"] - p["mean"]) / p["sd"]
    expected = np.mean(-0.5 * z**2 - np.log(p["sd"]) - 0.5 * np.log(2 * np.pi))
    assert scores[1] == pytest.approx(expected, rel=1e-9)
    wave = np.var(3 * np.sin(given["x"]))  # a guess that knows the outputs' spread alone
    assert scores.min() > -0.5 * np.log(2 * np.pi * np.e * wave)


def test_folds_by_group():
    given = table()
    with pytest.warns(PFedHGPWarning):
        scores = cross_val_score(
            FederatedGP(**SMALL), given, groups=given["site"], cv=GroupKFold(2), params=COLUMNS
        )
    assert np.isfinite(scores).all()


def test_scores(model):
    given = table()
    p = model.predict(given)
    gap = np.sum((p["observed"] - p["mean"]) ** 2)
    whole = np.sum((given["y"] - given["y"].mean()) ** 2)
    assert model.score(given, metric="r2") == pytest.approx(1 - gap / whole, rel=1e-9)
    mapping = {name: (own[["x"]], own["y"]) for name, own in given.groupby("site")}
    assert model.score(mapping) == pytest.approx(model.score(given), rel=1e-12)
    worse = given.assign(y=given["y"] + 1.0)
    assert model.score(worse) < model.score(given)
    assert model.score(given.assign(y=given["y"].where(given["x"] > 1))) != model.score(given)
    with pytest.raises(InputError, match="`metric` must be one of log-density, r2"):
        model.score(given, metric="mse")
    with pytest.raises(InputError, match="nothing to score"):
        model.score(given.assign(y=np.nan))


def test_fitted_models_are_not_pickled_but_copied(model):
    with pytest.raises(InputError, match=r"not pickled: use `save\(folder\)`"):
        pickle.dumps(model)
    again = pickle.loads(pickle.dumps(FederatedGP(rounds=3)))
    assert again.rounds == 3
    for other in (copy.copy(model), copy.deepcopy(model)):
        np.testing.assert_array_equal(
            other.predict("s0", [1.0]).mean, model.predict("s0", [1.0]).mean
        )
        other.adopt("new", [0.0, 1.0], [0.0, 1.0])
        assert "new" not in model.clients_

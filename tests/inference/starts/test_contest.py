"""Which models are trained side by side."""

from __future__ import annotations

import numpy as np

from pfedhgp.federation.planning import make_plan
from pfedhgp.gp.kernels import RBF, Matern12, Periodic
from pfedhgp.inference.starts import contest
from pfedhgp.inference.starts.forms import FORMS
from pfedhgp.settings.table import ModelSettings


def names(kept, specs):
    return [tuple(contest.label(specs[n]).values()) for n in kept]


def test_auto_has_each_form_with_and_without_waves_and_each_local_form():
    specs = make_plan(ModelSettings(kernel="auto"), 1, 2).specs
    assert len(specs) == 8 * 4
    found = names(range(32), specs)
    assert found[0] == ("rbf", "rbf")
    assert len(set(found)) == 32
    assert {shared for shared, _ in found} == {
        name for form in FORMS for name in (form, f"{form} + periodic")
    }


def test_evidences_leave_the_best_another_form_and_the_other_with_waves():
    specs = make_plan(ModelSettings(kernel="auto"), 1, 2).specs
    evidence = np.full((4, 4), -50.0)
    evidence[:, 1] = (0.0, -2.0, -30.0, -1.0)  # the local form is Matérn 5/2
    kept = names(contest.shortlist(specs, evidence, 1.0, cells=1000.0, clients=3), specs)
    assert kept == [
        ("rbf + periodic", "matern52"),
        ("rational_quadratic + periodic", "matern52"),
        ("rbf", "matern52"),
    ]
    clear = names(contest.shortlist(specs, evidence, -20.0, cells=1000.0, clients=3), specs)
    assert clear == [("rbf", "matern52"), ("rational_quadratic", "matern52")]
    evidence[1:, 1] = -20.0
    assert names(contest.shortlist(specs, evidence, -20.0, cells=1000.0, clients=3), specs) == [
        ("rbf", "matern52")
    ]


def test_a_local_rational_quadratic_pays_for_its_alphas():
    specs = make_plan(ModelSettings(kernel="rbf", local_kernel="auto"), 1, 1).specs
    evidence = np.zeros((4, 4))
    evidence[0, 3] = 5.0
    for clients, best in ((4, "rational_quadratic"), (6, "rbf")):
        kept = contest.shortlist(specs, evidence, 0.0, cells=100.0, clients=clients)
        assert contest.label(specs[kept[0]])["local_kernel"] == best


def test_models_that_evidences_do_not_know_are_all_trained():
    settings = ModelSettings(kernel=("rbf", Matern12(), RBF(2.0), RBF() * Periodic()))
    specs = make_plan(settings, 1, 1).specs
    assert contest.shortlist(specs, np.zeros((4, 4)), 0.0, cells=100.0, clients=3) == (0, 1, 2, 3)


def test_margins_shrink_until_one_is_left():
    allowed = [contest.margin(number, 1000.0) for number in range(1, 7)]
    assert allowed == [250.0, 50.0, 20.0, 10.0, 0.0, 0.0]
    assert contest.margin(0, 1000.0) == np.inf  # bounds do not compare yet
    assert contest.behind([3.0, 5.0, 4.5]) == [2.0, 0.0, 0.5]

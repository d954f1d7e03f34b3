"""Settings of differential privacy without a mode that has it: refused by name, in one line."""

from __future__ import annotations

import numpy as np
import pytest

from pfedhgp import FederatedGP
from pfedhgp.errors import InputError
from support.reference_federation import agreement

ROWS = {f"s{i}": (np.linspace(0.0, 1.0, 9), np.zeros(9)) for i in range(3)}
GIVEN = {
    "epsilon": 1.0,
    "delta": 1e-7,
    "output_bounds": (-3.0, 3.0),
    "tolerated": 1,
    "ledger": "ledger",
    "rows_per_client": 20,
    "privacy_unit": "client",
}


@pytest.mark.parametrize("privacy", [None, "none", "sums"])
@pytest.mark.parametrize("name", GIVEN)
def test_a_fit_that_would_have_no_differential_privacy_says_so(name, privacy, tmp_path):
    """Somebody who gives ε believes that it is kept."""
    model = FederatedGP(privacy=privacy, **{name: GIVEN[name]})
    with pytest.raises(InputError) as info:
        model.fit(ROWS)
    assert f"`{name}` is for `privacy` local, distributed or central" in str(info.value)
    assert f"`privacy` is {privacy or 'none'}" in str(info.value)


@pytest.mark.parametrize("privacy", [{}, {"privacy": "none"}, {"privacy": "sums"}])
@pytest.mark.parametrize(
    ("name", "value"), [("epsilon", 1.0), ("output_bounds", ["-3..3"]), ("tolerated", 2)]
)
def test_a_servers_settings_say_so_too(name, value, privacy):
    with pytest.raises(
        InputError, match=f"`{name}` is for `privacy` local, distributed or central"
    ):
        agreement(run={"privacy": None, **privacy, name: value})


def test_the_command_line_refuses_before_it_reads_the_data(run, tmp_path):
    (tmp_path / "d.csv").write_text("no table")
    words = ["fit", tmp_path / "d.csv", "--input", "x", "--output", "y", "--out", tmp_path / "RUN"]
    for option, value in (
        ("--epsilon", 1),
        ("--output-bounds", "0..5"),
        ("--delta", 1e-7),
        ("--tolerated", 1),
        ("--ledger", "here"),
    ):
        done = run(*words, option, value)
        assert done.code == 2
        assert f"{option} is for --privacy local, distributed or central" in done.complaint
        assert len(done.complaint.splitlines()) == 1
    assert not (tmp_path / "RUN").exists()


def test_rows_outside_a_domain_that_is_needed_are_to_be_dropped(tmp_path):
    private = {"privacy": "local", "epsilon": 1.0, "output_bounds": (-3, 3)}
    with pytest.raises(InputError, match=r"drop these rows, or widen it$"):
        FederatedGP(domain=(0, 0.5), **private).fit(ROWS)
    with pytest.raises(InputError, match=r"widen it, or leave it out$"):
        FederatedGP(domain=(0, 0.5)).fit(ROWS)


def test_two_clients_with_masks_are_told_that_masks_need_three():
    """And not first to install a package that would not help."""
    two = {name: ROWS[name] for name in ("s0", "s1")}
    for settings in ({}, {"privacy": "sums"}):
        with pytest.raises(InputError, match="masks need at least 3 sites, there are 2"):
            FederatedGP(masks=True, **settings).fit(two)

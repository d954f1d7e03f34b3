"""What requests ask about the rows in all, and what a client with so many rows answers."""

from __future__ import annotations

import numpy as np
import pytest

from pfedhgp.gp.kernels import RBF
from pfedhgp.inference.starts import told
from pfedhgp.inference.starts.budget import box_points
from pfedhgp.inference.starts.told import Question, allowance, counted, most_told, usable_rows
from pfedhgp.model.spec import starting_kernels


def question(scale, size, *, latents=1, slopes=False, inputs=1):
    extent = np.ones(inputs)
    kernels = starting_kernels(RBF(), scale=scale, count=latents, extent=extent)
    return Question(kernels, box_points(size, inputs), 1e-8, slopes)


def asked(*requests):
    """c after each request in turn."""
    directions, found = told.nothing(requests[0].inputs.shape[1]), []
    for each in requests:
        c, directions = counted(directions, [each])
        found.append(c)
    return found


def test_a_client_tells_half_as_many_numbers_as_it_has_rows_and_never_a_third_of_them():
    for rows in range(2000):
        for outputs in (1, 3):
            c = most_told(rows, outputs)
            assert outputs * c * (c + 1) <= rows
            assert 3 * c <= rows
            if rows >= told.TELLS_FROM:
                assert outputs * (c + 1) * (c + 2) > rows or 3 * (c + 1) > rows, "and no less"
            else:
                assert c == 0


def test_a_question_counts_once_and_another_one_counts_too():
    short = question(0.05, 7)
    assert asked(short, short, short) == [7, 7, 7]
    assert asked(short, question(0.05, 9)) == [7, 13], "three inputs are in both"
    assert asked(short, question(0.1, 7))[-1] == 14
    both, directions = counted(told.nothing(1), [short, question(0.05, 9)])
    assert (both, directions.shape[1]) == (16, 13), "in one request, all that is sent counts"


def test_slopes_ask_about_more_than_values():
    assert asked(question(0.05, 7, slopes=True)) == [14]


def test_smooth_functions_are_few_whatever_is_asked():
    """Kernels of nearly the same long scale span nearly the same functions: no more than the grid tells."""
    requests = [question(scale, 12, slopes=True) for scale in (0.35, 0.36, 0.38, 0.4)]
    c = asked(*requests)[-1]
    functions = np.concatenate([each.functions() for each in requests], axis=1)
    sizes = np.linalg.svd(functions / np.sqrt(len(functions)), compute_uv=False)
    assert c <= 12
    assert np.sum(sizes > 5 * told.TINY) <= c <= np.sum(sizes > told.TINY / 5) + 12


def test_a_slow_drift_is_noticed():
    """Each step is nearly what was asked before, and all together are not."""
    drift = [question(0.05 * 1.002**k, 6) for k in range(60)]
    found = asked(*drift)
    assert found[0] == found[1] == 6
    assert found[-1] >= 12


def test_latents_and_several_inputs_count():
    assert asked(question(0.05, 6, latents=2)) == [12]
    assert asked(question(0.1, 10, inputs=2)) == [10]


def test_the_server_asks_for_what_all_but_the_smallest_answer():
    assert allowance([60, 60, 60, 40], 1) == most_told(40)
    assert allowance([600, 600, 600, 40], 1) == most_told(600), "40 rows are few of 1840"
    assert allowance([600, 600, 600, 40], 1, asked=5) == most_told(40), "and can answer this"
    assert allowance([600, 600, 600, 40], 1, asked=8) == most_told(600)
    assert allowance([], 1) == 0


def test_the_least_observed_output_counts():
    Y = np.ones((50, 3))
    Y[:10, 0] = Y[:, 2] = np.nan
    assert usable_rows(Y) == 40
    assert usable_rows(np.full((5, 1), np.nan)) == 5


@pytest.mark.parametrize("size", [1, 5])
def test_no_shared_function_is_no_question(size):
    empty = Question(
        starting_kernels(RBF(), scale=0.2, count=1, extent=np.ones(1)), np.zeros((0, 1)), 1e-8
    )
    assert counted(told.nothing(1), [empty] * size)[0] == 0

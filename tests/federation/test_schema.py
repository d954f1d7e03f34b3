"""The schema of messages: its page, symbols and packing, and that every party's arrays are declared in it."""

from __future__ import annotations

import dataclasses
import runpy
import typing

import numpy as np
import pytest

from pfedhgp.errors import MessageError
from pfedhgp.federation import message_checks
from pfedhgp.federation.envelope import Envelope, Refused
from pfedhgp.federation.message_checks import FIXED
from pfedhgp.federation.messages import Message, bytes_of, layout_of
from pfedhgp.federation.plan import LARGEST_INDUCING
from pfedhgp.federation.schema import EXCHANGES, KINDS, OTHER, SYMBOLS, Content
from pfedhgp.inference.cycles.scatter import CycleSums
from pfedhgp.inference.messages import CYCLE_SUMS, STATISTICS, Field, pack, unpack
from pfedhgp.inference.structured.bound import Statistics
from pfedhgp.inference.structured.settings import Structured
from pfedhgp.model.posterior import Population
from pfedhgp.zones import comparison
from pfedhgp.zones.sketches import OwnFunction
from support.documents import ROOT
from support.recorded_runs import plan


def all_fields(content: Content) -> list[Field]:
    found = []
    for item in content:
        found += [item] if isinstance(item, Field) else all_fields(item.content)
    return found


FIELDS = [f for e in EXCHANGES.values() for f in (*all_fields(e.request), *all_fields(e.reply))]


def test_the_page_is_what_the_schema_says():
    page = (ROOT / "docs" / "messages.md").read_text(encoding="utf-8")
    made = runpy.run_path(str(ROOT / "docs" / "make_messages.py"))["page"]()
    assert page == made, "run `make messages`"


def test_the_page_has_every_plain_field_and_every_limit():
    page = (ROOT / "docs" / "messages.md").read_text(encoding="utf-8")
    section = page.partition("## Around every message")[2].partition("\n## ")[0]
    rows = [line.split(" | ") for line in section.splitlines() if line.startswith("| `")]
    names = [field.name for field in dataclasses.fields(Envelope) if field.name != "arrays"]
    assert [row[0] for row in rows] == [f"| `{name}`" for name in names]
    assert all(len(row[2]) > len("x |") for row in rows)
    assert f"`largest_inducing`, or {LARGEST_INDUCING} if" in page
    assert f"`cycle_basis`, or {message_checks.LARGEST_BASIS} if" in page
    assert "| `bins` | one number | whole, 16 to 4096 |" in page


@pytest.mark.parametrize("bins", [0.0, 15.0, 16.5, 4097.0])
def test_bins_beyond_their_limits_are_refused_before_anything_is_summed(bins):
    arrays = {"centre": np.zeros(1), "spread": np.ones(1), "bins": np.asarray(16.0)}
    expected = message_checks.of_request(plan(Structured(rounds=1)), "extent", arrays)
    for good in (16.0, 4096.0):
        message_checks.check_arrays(arrays | {"bins": np.asarray(good)}, expected)
    with pytest.raises(Refused, match="a count, a flag") as refused:
        message_checks.check_arrays(arrays | {"bins": np.asarray(bins)}, expected)
    assert (refused.value.code, refused.value.why) == (
        "out-of-range",
        "`bins` must be: whole, 16 to 4096",
    )


def test_every_field_has_a_meaning_and_every_symbol_is_explained_and_used():
    used = {symbol for field in FIELDS for symbol in field.shape if symbol not in " 12345"}
    assert used == set(SYMBOLS)
    assert set(FIXED) < used
    assert all(field.meaning for field in FIELDS)
    assert all(field.triangle == "" or len(field.shape.split()) >= 2 for field in FIELDS)


def test_messages_and_exchanges_have_the_same_kinds():
    trained = ("runs", "curves", "spread", "sums", "judge", "average", "strangers", "limits")
    diagnosis = tuple(f"diagnosis-{name}" for name in trained)
    before = ("magnitude", "census", "extent", "cycles")
    assert (*before, *diagnosis, "start", "round", "finish", "release", "zones") == KINDS
    for kind in KINDS:
        assert Message(kind, 0, "server", {}).kind == kind
    assert set(EXCHANGES) - set(KINDS) == {
        *("deliver", "hello", "zones: coverage", "zones: few rows", "zones: groups"),
        "zones: loadings",
    }


def _shape(annotation) -> str:
    """What jaxtyping says of an array; a bare one is a number."""
    options = [each for each in typing.get_args(annotation) if each is not type(None)]
    found = options[0] if options else annotation
    return getattr(found, "dim_str", "").strip()


def test_what_the_arithmetic_calls_its_arrays_is_what_the_schema_calls_them():
    hints = typing.get_type_hints(Statistics)
    assert {field.name: field.shape for field in STATISTICS} == {
        field.name: _shape(hints[field.name]) for field in dataclasses.fields(Statistics)
    }
    assert [f.name for f in CYCLE_SUMS] == [f.name for f in dataclasses.fields(CycleSums)]
    given = message_checks.of_request(
        plan(Structured(rounds=1, averaging=None)), "deliver", {"inputs": np.zeros((8, 1))}
    )
    sent = {n.removeprefix("population.") for n in given if n.startswith("population.")}
    of_series = {"tails"}  # of the Markov solver alone
    assert sent | of_series == {field.name for field in dataclasses.fields(Population)}


@pytest.mark.parametrize("size", [0, 1, 2, 5])
def test_triangles_are_packed_row_by_row_and_come_back(size):
    rng = np.random.default_rng(size)
    square = rng.normal(size=(3, size, size))
    symmetric, lower = square + square.swapaxes(1, 2), np.tril(square)
    both = (
        Field("s", "3 n n", "", triangle="symmetric"),
        Field("t", "3 n n", "", triangle="lower"),
    )
    sent = pack(both, {"s": symmetric, "t": lower})
    for k in range(3):
        above = [symmetric[k, i, j] for i in range(size) for j in range(i, size)]
        below = [lower[k, i, j] for i in range(size) for j in range(i + 1)]
        np.testing.assert_array_equal(sent["s"][k], above)
        np.testing.assert_array_equal(sent["t"][k], below)
    assert sent["s"].shape == sent["t"].shape == both[0].sent_shape({"n": size})
    back = unpack(both, sent)
    np.testing.assert_array_equal(back["s"], symmetric)
    np.testing.assert_array_equal(back["t"], lower)
    assert back["t"].shape == both[1].whole_shape({"n": size})


def test_what_is_not_declared_is_not_sent():
    stars = (Field("kernels.*", "", ""),)
    assert set(pack(stars, {"kernels.lengthscale": np.ones(2)})) == {"kernels.lengthscale"}
    with pytest.raises(KeyError, match="'rows' is not declared"):
        pack(stars, {"rows": np.ones(2)})


def test_a_shape_is_products_of_symbols():
    sizes = {"R": 2, "Q": 3, "M": 5, "P": 7}
    assert Field("a", "", "").sent_shape(sizes) == ()
    assert Field("a", "2 RQM", "").sent_shape(sizes) == (2, 30)
    assert Field("a", "P RM RM", "", triangle="symmetric").sent_shape(sizes) == (7, 55)


def test_sketches_for_zones_are_as_the_schema_says():
    """A client with few rows publishes its coverage, and all send a second sketch next to its rows."""
    rng = np.random.default_rng(0)
    names, cells, size = ("a", "b", "c"), 12, 5
    near = np.stack([np.r_[0, : cells - 1], np.r_[1:cells, cells - 1]], axis=1)
    variance = {"a": np.full((cells, 1), 0.1), "b": np.full((cells, 1), 0.1)}
    variance["c"] = np.where(np.arange(cells) < 2, 0.1, 0.99)[:, None]
    own = {
        name: OwnFunction(rng.normal(size=(cells, 1)), variance[name], np.ones((cells, 1)), near)
        for name in names
    }
    said = comparison.SketchLog(names)
    comparison.Comparison(own, names, size=size, seed=3, grid="g", log=said)
    few = {"G": cells, "S": int(own["c"].peaks.sum())}
    assert 0 < few["S"] < size
    exchanges = [("zones", 3, {"G": cells, "S": size}), ("zones: coverage", 1, few)]
    exchanges.append(("zones: few rows", 3, few))
    expected = []
    for name, replies, sizes in exchanges:
        request, reply = (
            {f.name: list(f.sent_shape(sizes)) for f in content if isinstance(f, Field)}
            for content in (EXCHANGES[name].request, EXCHANGES[name].reply)
        )
        expected += ([request] if request else []) + replies * [reply]
    assert [line["arrays"] for line in said.entries] == expected
    assert {line["kind"] for line in said.entries} == {"zones"}


def test_log_lines_have_names_shapes_and_bytes():
    arrays = {"U": np.zeros((2, 3)), "y": np.zeros(())}
    assert (layout_of(arrays), bytes_of(arrays)) == ({"U": [2, 3], "y": []}, 56)
    entry = Message("round", 3, "a", arrays).log_entry("server")
    assert entry == {
        **{"round": 3, "kind": "round", "from": "a", "to": "server", "bytes": 56},
        "arrays": {"U": [2, 3], "y": []},
    }


def test_other_starts_are_numbered_from_one():
    case = message_checks.Case(plan(Structured(rounds=1)), {"other 2.inputs": np.zeros((8, 1))})
    with pytest.raises(MessageError, match="numbered from 1, and at most 2"):
        case.others()
    names = [OTHER.format(k) + "inputs" for k in (1, 2)]
    case = message_checks.Case(case.plan, {name: np.zeros((k, 1)) for k, name in enumerate(names)})
    assert [(prefix, other["M"]) for prefix, other in case.others().items()] == [
        ("other 1.", 0),
        ("other 2.", 1),
    ]

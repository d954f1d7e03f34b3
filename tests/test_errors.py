"""Typed errors: what callers may catch them as, and what they say."""

from __future__ import annotations

import pickle

import pytest

from pfedhgp import errors


def test_every_error_and_warning_has_its_base_and_a_docstring():
    for name in errors.__all__:
        kind = getattr(errors, name)
        base = errors.PFedHGPWarning if name.endswith("Warning") else errors.PFedHGPError
        assert issubclass(kind, base)
        assert kind.__dict__.get("__doc__")


def test_callers_catch_them_as_the_usual_builtins():
    assert issubclass(errors.InputError, ValueError)
    assert issubclass(errors.ModelFileError, errors.InputError)
    assert issubclass(errors.NotFittedError, AttributeError)
    assert issubclass(errors.NonFiniteError, errors.NumericsError)
    assert not issubclass(errors.NumericsError, ValueError)
    assert not issubclass(errors.MessageError, ValueError)


def test_hasattr_is_false_for_what_is_not_fitted():
    class Model:
        @property
        def bound_(self):
            raise errors.NotFittedError("call `fit` first")

    assert not hasattr(Model(), "bound_")


@pytest.mark.parametrize("kind", [errors.NumericsError, errors.NonFiniteError])
def test_numerics_errors_name_client_and_matrix_and_survive_pickling(kind):
    error = kind("not positive definite", client="Dongsi", matrix="W")
    for copy in (error, pickle.loads(pickle.dumps(error))):
        assert (copy.client, copy.matrix) == ("Dongsi", "W")
        assert str(copy) == "not positive definite (client 'Dongsi', matrix 'W')"
    assert str(kind("NaN in the bound")) == "NaN in the bound"

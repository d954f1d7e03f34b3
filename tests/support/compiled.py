"""How often JAX has compiled a batchable function."""

from __future__ import annotations

from pfedhgp.base.batching import Batchable


def times_compiled(function: Batchable) -> int:
    """How often the function was compiled outside `run_batched`."""
    other = vars(function).get("small", function.alone)
    return sum(int(each._cache_size()) for each in {function.alone, other})

"""Jitter grows tenfold, with a warning, if a factorisation fails; numbers that are not finite are an error.

Both messages name the matrix, and the client if it is a client's. More jitter only mends a matrix that
rounding has made indefinite. NaN in a kernel matrix, or in a bound whose matrices could be factorised, is
refused at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Array

from pfedhgp.base.arrays_of import namespace
from pfedhgp.base.batching import batchable
from pfedhgp.errors import NonFiniteError, NumericsError, NumericsWarning, warn
from pfedhgp.model.blocks import ClientBlock, GlobalBlock

LARGEST_JITTER = 1e-2
SHARED, LOCAL, WEIGHTS = "k(Z_g, Z_g)", "k(Z_i, Z_i)", "I + HᵀΣ⁻¹H"
NO_KERNEL = "a kernel is not finite at the inducing inputs"


def sufficient_jitter(block: GlobalBlock, jitter: float) -> float:
    """The smallest tenfold multiple of `jitter` at which the shared kernels factorise."""
    while True:
        gram, factor = (bool(found) for found in _shared_factor(block, np.float64(jitter)))
        if factor:
            return jitter
        if not gram:
            raise NonFiniteError(NO_KERNEL, matrix=SHARED)
        jitter = next_jitter(jitter, None, SHARED)
        warn_of_jitter(SHARED, (), jitter)


def with_more_jitter(
    jitter: np.ndarray, failed: np.ndarray, blocks: ClientBlock, names: Sequence[str]
) -> np.ndarray:
    """The clients' jitters, tenfold for those whose bound failed because k(Z_i, Z_i) has no factor."""
    gram, factor = (np.asarray(found) for found in _local_factors(blocks, np.asarray(jitter)))
    more, who = np.array(jitter), [int(index) for index in np.flatnonzero(failed)]
    for i in who:
        if not gram[i]:
            raise NonFiniteError(NO_KERNEL, client=names[i], matrix=LOCAL)
        if factor[i]:
            raise NonFiniteError("the bound is not finite", client=names[i], matrix=WEIGHTS)
        more[i] = next_jitter(float(jitter[i]), names[i], LOCAL)
    warn_of_jitter(LOCAL, [names[i] for i in who], float(more[who].max()))
    return more


def next_jitter(jitter: float, client: str | None, matrix: str) -> float:
    """Ten times as much; an error beyond the largest."""
    if jitter >= LARGEST_JITTER:
        raise NumericsError(
            f"a factorisation failed at the largest jitter, {jitter:g}: the kernel is not positive "
            "definite there",
            client=client,
            matrix=matrix,
        )
    return min(10.0 * jitter, LARGEST_JITTER)


def warn_of_jitter(matrix: str, clients: Sequence[str], jitter: float) -> None:
    """The warning: which matrix, whose, and what its jitter is now."""
    shown = ", ".join(repr(name) for name in clients[:3])
    shown += f" and {len(clients) - 3} more" if len(clients) > 3 else ""
    whose = f" of client{'s' if len(clients) > 1 else ''} {shown}" if clients else ""
    text = f"{matrix}{whose} could not be factorised: the relative jitter is now {jitter:.0e}"
    warn(text, NumericsWarning, stacklevel=3)


def expect_finite(what: str, value: Any, *, matrix: str, client: str | None = None) -> None:
    """Refuses NaN and infinities in any array of `value`."""
    if not all(np.all(np.isfinite(np.asarray(leaf))) for leaf in jax.tree.leaves(value)):
        raise NonFiniteError(f"{what} is not finite", client=client, matrix=matrix)


def not_finite(tree: Any, count: int) -> np.ndarray:
    """Which of `count` clients, the leading axis of `tree`'s arrays, have NaN or an infinity in one."""
    bad = np.zeros(count, bool)
    for leaf in jax.tree.leaves(tree):
        bad |= ~np.isfinite(np.asarray(leaf)).reshape(count, -1).all(axis=1)
    return bad


@batchable(host=True)
def _shared_factor(block: GlobalBlock, jitter: Array) -> tuple[Array, Array]:
    return _finite(block, jitter)


@batchable(host=True)
def _local_factors(blocks: ClientBlock, jitter: Any) -> tuple[Any, Any]:
    if namespace(jitter) is not np:
        return jax.vmap(_finite)(blocks, jitter)
    each = [jax.tree.map(lambda leaf, i=i: leaf[i], blocks) for i in range(len(jitter))]
    gram, factor = zip(*map(_finite, each, jitter), strict=True)
    return np.array(gram), np.array(factor)


def _finite(block: GlobalBlock | ClientBlock, jitter: Array) -> tuple[Array, Array]:
    """Whether the kernel matrix, and its factor, are finite."""
    basis = block.basis(jitter)
    isfinite = namespace(basis.gram).isfinite
    return isfinite(basis.gram).all(), isfinite(basis.factor).all()

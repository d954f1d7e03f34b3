"""The paper's Algorithm 1 as pure functions: the client's steps, the server's step, and what is sent.

One round: every client takes `local_steps` Adam steps on its terms of the bound with Θ_global fixed, then
sends S̃_i, its gradient in Θ_global (eq. Si_def); the server adds them up, subtracts ∇KL(q(u_g)‖p(u_g)),
which it alone holds, and takes one step (eqs. global_gradient and global_update).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from pfedhgp.base.batching import batchable
from pfedhgp.inference.arrays import leaf_name, tree_to_arrays
from pfedhgp.inference.meanfield.bound import (
    JITTER,
    ClientCoordinates,
    GlobalState,
    MeanFieldOptions,
    client_bound,
    client_coordinates,
    elbo,
    global_coordinates,
    open_global,
)
from pfedhgp.inference.messages import COORDINATES, pack, unpack
from pfedhgp.model.blocks import ClientBlock, GlobalBlock, Rows

if TYPE_CHECKING:
    import optax

Gradient = GlobalState
"""S̃_i, or a sum of them: ∂/∂Θ_global, coordinate by coordinate."""

Tree = TypeVar("Tree")


class ClientState(eqx.Module):
    """Θ_i,local and the moments of its Adam, which go on from round to round."""

    free: ClientCoordinates
    optimizer: Any


class ServerState(eqx.Module):
    """Θ_global, which is broadcast, and the server's optimiser, which is not."""

    free: GlobalState
    optimizer: Any


class Info(NamedTuple):
    """The client's terms of the bound at the broadcast Θ_global: before and after its steps."""

    before: Array
    after: Array


def client_init(options: MeanFieldOptions, block: ClientBlock, shared: GlobalBlock) -> ClientState:
    """The client before its first round: its factors are their priors."""
    free = client_coordinates(options, block, shared)
    return ClientState(free, _optimizer("adam", options.local_rate).init(free))


def client_update(
    options: MeanFieldOptions,
    broadcast: GlobalState,
    state: ClientState,
    rows: Rows,
    jitter: Array | float = JITTER,
) -> tuple[ClientState, Gradient, Info]:
    """One round at the client: Adam on its own block, then S̃_i = ∇_{Θ_global} [L_i^global − KL_δ,i].

    S̃_i is the gradient of all the client's terms: those that eq. Li_global leaves out do not depend on
    Θ_global. It is all that is sent. `Info` stays; NaN in it says that a factorisation failed, and
    then the same call with the old state and a larger jitter is the way on.
    """
    optimizer = _optimizer("adam", options.local_rate)
    shared = open_global(options, broadcast, jitter)

    def own(free: ClientCoordinates) -> Array:
        return client_bound(options, shared, free, rows, jitter)

    def adam_step(state: ClientState, _: None) -> tuple[ClientState, Array]:
        value, gradient = jax.value_and_grad(own)(state.free)
        return ClientState(*_ascend(optimizer, gradient, state.free, state.optimizer)), value

    new, values = jax.lax.scan(adam_step, state, None, length=options.local_steps)

    def seen_by_server(free: GlobalState) -> Array:
        return client_bound(options, open_global(options, free, jitter), new.free, rows, jitter)

    after, gradient = jax.value_and_grad(seen_by_server)(broadcast)
    return new, gradient, Info(values[0] if options.local_steps else after, after)


@batchable(static=1, order=1)
def batched_client_update(
    options: MeanFieldOptions,
    broadcast: GlobalState,
    states: ClientState,
    rows: Rows,
    jitter: Array | float = JITTER,
) -> tuple[ClientState, Gradient, Info]:
    """`client_update` of all clients at once; all but the broadcast have a leading axis."""
    return jax.vmap(lambda s, r: client_update(options, broadcast, s, r, jitter))(states, rows)


def server_init(options: MeanFieldOptions, block: GlobalBlock) -> ServerState:
    """The server before its first round: q(v_g) is the prior."""
    free = global_coordinates(options, block)
    return ServerState(free, _server_optimizer(options).init(free))


@batchable(static=1)
def server_update(
    options: MeanFieldOptions, state: ServerState, gradient_sum: Gradient
) -> ServerState:
    """Θ_global + η ∇L with ∇L = Σ S̃_i − ∇KL(q(u_g) ‖ p(u_g)), eqs. global_gradient and global_update."""
    gradient = global_gradient(state.free, gradient_sum)
    return ServerState(*_ascend(_server_optimizer(options), gradient, state.free, state.optimizer))


def global_gradient(state: GlobalState, gradient_sum: Gradient) -> Gradient:
    """∇ELBO = Σ S̃_i − ∇KL(q(u_g) ‖ p(u_g)), eq. global_gradient: clients' terms by their gradients."""

    def linearised(free: GlobalState) -> Array:
        slopes = jax.tree.map(jnp.vdot, gradient_sum, free)
        return elbo(jnp.stack(jax.tree.leaves(slopes)), free.q)

    return jax.grad(linearised)(state)


def _server_optimizer(options: MeanFieldOptions) -> optax.GradientTransformation:
    return _optimizer(options.server_optimizer, options.server_rate)


def _optimizer(name: str, rate: float) -> optax.GradientTransformation:
    import optax  # a tenth of a second to import, and only this inference needs it

    return {"adam": optax.adam, "sgd": optax.sgd}[name](rate)


def _ascend(
    optimizer: optax.GradientTransformation, gradient: Tree, values: Tree, state: Any
) -> tuple[Tree, Any]:
    """One step uphill. Optax raises a float to an integer power, which strict promotion refuses."""
    with jax.numpy_dtype_promotion("standard"):
        change, state = optimizer.update(jax.tree.map(jnp.negative, gradient), state, values)
    return jax.tree.map(jnp.add, values, change), state


def gradient_to_arrays(gradient: Gradient) -> dict[str, np.ndarray]:
    """Named arrays to send, of a gradient or of a broadcast."""
    return pack(COORDINATES, tree_to_arrays(gradient))


def gradient_from_arrays(arrays: Mapping[str, Any], like: GlobalState) -> Gradient:
    """The inverse of `gradient_to_arrays` for a model like `like`."""
    named = unpack(COORDINATES, arrays)
    leaves, form = jax.tree_util.tree_flatten_with_path(like)
    return jax.tree.unflatten(form, [jnp.asarray(named[leaf_name(path)]) for path, _ in leaves])

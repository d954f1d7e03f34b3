"""Covariance functions of unit variance, their sums and products, and a scale around them.

A kernel is one small frozen module; calling it with two sets of points gives the matrix, in NumPy or in
JAX, as the arrays are. Parameters may have leading axes (the latents of a layer; clients and latents), and
the matrix has them too. Every kernel has k(x, x) = 1 except `Scaled`, which the algebra always keeps
outermost, so that the one variance of a layer can be told from its shape:

    0.65 * RBF(2.0) + 0.35 * Periodic(0.8, period=3.0)   is   Scaled(Sum((RBF, Periodic)), 1.0)

All array leaves of a kernel are positive numbers. `None` as a lengthscale means "start from the
data", and so does `None` as a period; the model fills it in before anything is computed.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Float

from pfedhgp.base import choices
from pfedhgp.base.arrays_of import Array, namespace
from pfedhgp.base.checks import refusal, shown
from pfedhgp.errors import InputError
from pfedhgp.gp.kernel_columns import checked_columns

Inputs = Float[Array, "*b n d"]
Matrix = Float[Array, "*b n m"]
Parameter = Any  # a positive float, a sequence of them, or None: "start from the data"


def _positive(value: Parameter, name: str) -> Any:
    """Returns `value` as float64, or None; refuses what is not positive and finite."""
    if value is None or isinstance(value, jax.core.Tracer):
        return value  # a traced array's numbers are not known yet
    if isinstance(value, jax.Array):
        _positive(np.asarray(value), name)
        return value
    wanted = "a positive number, or one for each input"
    if isinstance(value, Kernel):
        raise refusal(name, wanted, value)
    try:
        array = np.asarray(value)
    except (TypeError, ValueError):
        raise refusal(name, wanted, value) from None
    if array.dtype.kind not in "fiu" or (array.size == 0 and not isinstance(value, np.ndarray)):
        raise refusal(name, wanted, value)
    array = array.astype(np.float64)
    if not np.all(np.isfinite(array)) or np.any(array <= 0):
        raise InputError(f"`{name}` must be positive and finite, got {shown(value)}")
    return array


def _given(value: Parameter, name: str) -> Any:
    """As `_positive`, for parameters that have no start in the data."""
    if value is None:
        raise InputError(f"`{name}` must be a positive number: None stands for a lengthscale alone")
    return _positive(value, name)


def _safe_sqrt(squared: Matrix) -> Matrix:
    """sqrt with gradient zero at zero (a plain sqrt makes NaN on a kernel's diagonal)."""
    xp = namespace(squared)
    if xp is np:
        return xp.sqrt(squared)
    zero = squared == 0.0
    return xp.where(zero, 0.0, xp.sqrt(xp.where(zero, 1.0, squared)))


def over_matrix(parameter: Any) -> Any:
    """A parameter with leading axes b, one number each, as (*b, 1, 1): it goes over whole matrices."""
    return parameter[..., None, None] if np.ndim(parameter) else parameter


def aligned(*arrays: Any) -> list[Any]:
    """The arrays with equally many axes, ones in front; single numbers stay."""
    rank = max(np.ndim(a) for a in arrays)
    return [
        a if np.ndim(a) in (0, rank) else a.reshape((1,) * (rank - a.ndim) + a.shape)
        for a in arrays
    ]


class Kernel(eqx.Module):
    """k(x, z): subclasses say what the matrix of two sets of points is."""

    __array_ufunc__ = None  # or an array times a kernel would be an array of kernels

    @abstractmethod
    def __call__(self, X: Inputs, Z: Inputs, *, stacked: int | None = None) -> Matrix:
        """k(X, Z) of shape (*b, n, m), from X (..., n, d), Z (..., m, d) and parameters (*b, ...).

        `stacked` is how many leading axes every parameter has. Without it a lengthscale's last axis goes
        over the columns, so one number for all columns cannot be told from one for each column if it is
        stacked.
        """

    def diagonal(self, X: Inputs) -> Float[Array, "*b n"]:
        """k(x, x) for each row; one for all kernels but `Scaled`."""
        return namespace(X).ones(X.shape[:-1], X.dtype)

    def __add__(self, other: Kernel) -> Kernel:
        if not isinstance(other, Kernel):
            return NotImplemented
        (a, k), (b, j) = split_scale(self), split_scale(other)
        return Scaled(Sum.of([k, j], [a, b]), a + b)

    def __mul__(self, other: Kernel | float) -> Kernel:
        if isinstance(other, Kernel):
            (a, k), (b, j) = split_scale(self), split_scale(other)
            product = Product((*_factors(k), *_factors(j)))
            plain = not isinstance(self, Scaled) and not isinstance(other, Scaled)
            return product if plain else Scaled(product, a * b)
        variance = _positive(other, "variance")
        if variance is None or np.ndim(variance) != 0:
            raise InputError(
                f"`variance`: a kernel is scaled by one positive number, got {shown(other)}"
            )
        a, k = split_scale(self)
        return Scaled(k, a * variance)

    __rmul__ = __mul__


class Stationary(Kernel):
    """A kernel of x − z with one lengthscale per dimension."""

    lengthscale: Any = eqx.field(default=None, converter=lambda v: _positive(v, "lengthscale"))
    dims: tuple[int, ...] | None = eqx.field(
        default=None, static=True, kw_only=True, converter=checked_columns
    )

    @abstractmethod
    def of_squared(self, squared: Matrix) -> Matrix:
        """The kernel as a function of r² (a periodic one: of the wave's r²)."""

    def __call__(self, X: Inputs, Z: Inputs, *, stacked: int | None = None) -> Matrix:
        X, Z = aligned(X, Z)
        gaps = [X[..., :, None, j] - Z[..., None, :, j] for j in columns_of(self, X.shape[-1])]
        if isinstance(self, Periodic):
            turns = _over(gaps, self, "period", stacked)
            gaps = [namespace(turn).sin(math.pi * turn) for turn in turns]
        first, *others = _over(gaps, self, "lengthscale", stacked)
        squared = first * first
        for other in others:
            squared = squared + other * other
        return type(self).of_squared(self, squared)  # binding a module's method takes 20 µs


def columns_of(kernel: Stationary, count: int) -> tuple[int, ...]:
    """The columns that the kernel sees, of so many."""
    if kernel.dims is None:
        return tuple(range(count))
    if max(kernel.dims) >= count:  # jax would clamp the index, and say nothing
        raise InputError(f"`dims` is {kernel.dims}, but the inputs have {count} columns")
    return kernel.dims


def each_column(
    kernel: Stationary, name: str, columns: int, stacked: int | None = None
) -> list[Any]:
    """Parameter `name` for each column: a single number, or (*b, 1, 1) to go over matrices."""
    parameter = getattr(kernel, name)
    if parameter is None:
        raise InputError(f"`{name}` is not set: give a number, or fit the model")
    shape = np.shape(parameter)
    if len(shape) in (0, stacked):
        return [over_matrix(parameter)] * columns
    if shape[-1] != columns or stacked not in (None, len(shape) - 1):  # or it would broadcast
        raise InputError(f"`{name}` has shape {shape}, but the kernel sees {columns} columns")
    return [parameter[..., j, None, None] for j in range(columns)]


def _over(differences: list[Any], kernel: Stationary, name: str, stacked: int | None) -> list[Any]:
    """The differences divided by parameter `name`."""
    parameters = each_column(kernel, name, len(differences), stacked)
    pairs = (aligned(*pair) for pair in zip(differences, parameters, strict=True))
    return [difference / parameter for difference, parameter in pairs]


class RBF(Stationary):
    r"""exp(−½ r²), r = |(x − z)/ℓ|"""

    def of_squared(self, squared: Matrix) -> Matrix:
        return namespace(squared).exp(-0.5 * squared)


class Matern12(Stationary):
    r"""exp(−r), r = |(x − z)/ℓ|"""

    def of_squared(self, squared: Matrix) -> Matrix:
        return namespace(squared).exp(-_safe_sqrt(squared))


class Matern32(Stationary):
    r"""(1 + √3 r) exp(−√3 r), r = |(x − z)/ℓ|"""

    def of_squared(self, squared: Matrix) -> Matrix:
        r = math.sqrt(3.0) * _safe_sqrt(squared)
        return (1.0 + r) * namespace(r).exp(-r)


class Matern52(Stationary):
    r"""(1 + √5 r + 5r²/3) exp(−√5 r), r = |(x − z)/ℓ|"""

    def of_squared(self, squared: Matrix) -> Matrix:
        r = math.sqrt(5.0) * _safe_sqrt(squared)
        return (1.0 + r + r * r / 3.0) * namespace(r).exp(-r)


class RationalQuadratic(Stationary):
    r"""(1 + r²/2α)^(−α), r = |(x − z)/ℓ|"""

    alpha: Any = eqx.field(default=1.0, converter=lambda v: _given(v, "alpha"))

    def of_squared(self, squared: Matrix) -> Matrix:
        # By log1p: a power of 1 + tiny has an error of α times the rounding, and K is then not PSD.
        squared, alpha = aligned(squared, over_matrix(self.alpha))
        xp = namespace(squared, alpha)
        return xp.exp(-alpha * xp.log1p(0.5 * squared / alpha))


class Periodic(Stationary):
    r"""exp(−2 Σ_j sin²(π (x_j − z_j)/p_j)/ℓ_j²); ℓ is relative to the wave, not to the inputs."""

    lengthscale: Any = eqx.field(default=1.0, converter=lambda v: _given(v, "lengthscale"))
    period: Any = eqx.field(default=None, kw_only=True, converter=lambda v: _positive(v, "period"))

    def of_squared(self, squared: Matrix) -> Matrix:
        return namespace(squared).exp(-2.0 * squared)


KERNELS: dict[str, type[Stationary]] = dict(
    zip(
        choices.KERNELS,
        (RBF, Matern12, Matern32, Matern52, Periodic, RationalQuadratic),
        strict=True,
    )
)
"""The kernels that have a name in settings."""


class Sum(Kernel):
    r"""Σ_s w_s k_s with weights on the simplex: w ∝ [1, ratios]."""

    kernels: tuple[Kernel, ...] = eqx.field(converter=lambda v: _parts(v, "kernels"))
    ratios: Any = eqx.field(converter=lambda v: _given(v, "ratios"))

    def __check_init__(self) -> None:
        if np.shape(self.ratios)[-1:] != (len(self.kernels) - 1,):
            raise InputError(
                f"`ratios` must have one number for each kernel after the first: {len(self.kernels) - 1}"
            )

    @staticmethod
    def of(kernels: Sequence[Kernel], weights: Sequence[Any]) -> Sum:
        """The sum of `kernels` with `weights` up to scale; sums inside it are spliced in."""
        flat: list[Kernel] = []
        scale: list[Any] = []
        for kernel, weight in zip(kernels, weights, strict=True):
            if isinstance(kernel, Sum):
                flat += kernel.kernels
                scale += list(weight * kernel.weights)
            else:
                flat.append(kernel)
                scale.append(weight)
        return Sum(tuple(flat), np.asarray(scale[1:], np.float64) / scale[0])

    @property
    def weights(self) -> Any:
        """The S weights along the last axis, which add up to one."""
        xp = namespace(self.ratios)
        one = xp.ones((*self.ratios.shape[:-1], 1), self.ratios.dtype)
        raw = xp.concatenate([one, self.ratios], axis=-1)
        return raw / raw.sum(axis=-1, keepdims=True)

    def __call__(self, X: Inputs, Z: Inputs, *, stacked: int | None = None) -> Matrix:
        weights = self.weights[..., None, None]
        parts = (kernel(X, Z, stacked=stacked) for kernel in self.kernels)
        pairs = (aligned(weights[..., s, :, :], K) for s, K in enumerate(parts))
        first, *others = (weight * K for weight, K in pairs)
        return sum(others, start=first)


class Product(Kernel):
    r"""Π_s k_s"""

    kernels: tuple[Kernel, ...] = eqx.field(converter=lambda v: _parts(v, "kernels"))

    def __call__(self, X: Inputs, Z: Inputs, *, stacked: int | None = None) -> Matrix:
        parts = aligned(*(kernel(X, Z, stacked=stacked) for kernel in self.kernels))
        return math.prod(parts[1:], start=parts[0])


class Stacks(Kernel):
    r"""Stacked kernels of several layers on the same inputs: the latents of one layer after the other's."""

    kernels: tuple[Kernel, ...] = eqx.field(converter=lambda v: _parts(v, "kernels"))

    def __call__(self, X: Inputs, Z: Inputs, *, stacked: int | None = None) -> Matrix:
        parts = [kernel(X, Z, stacked=stacked) for kernel in self.kernels]
        return namespace(*parts).concatenate(parts, axis=-3)


class Scaled(Kernel):
    r"""variance · k"""

    kernel: Kernel = eqx.field(converter=lambda v: _parts((v,), "kernel")[0])
    variance: Any = eqx.field(converter=lambda v: _given(v, "variance"))

    def __call__(self, X: Inputs, Z: Inputs, *, stacked: int | None = None) -> Matrix:
        K, variance = aligned(self.kernel(X, Z, stacked=stacked), over_matrix(self.variance))
        return variance * K

    def diagonal(self, X: Inputs) -> Float[Array, "*b n"]:
        variance = self.variance[..., None] if np.ndim(self.variance) else self.variance
        variance, ones = aligned(variance, self.kernel.diagonal(X))
        return variance * ones


def _parts(kernels: Any, name: str) -> tuple[Kernel, ...]:
    """The parts of a combination. A scale in it would make k(x, x) other than one there."""
    listed = tuple(kernels) if isinstance(kernels, Sequence) else ()
    if not listed or not all(isinstance(kernel, Kernel) for kernel in listed):
        raise refusal(name, "made of kernels, at least one", kernels)
    if any(isinstance(kernel, Scaled) for kernel in listed):
        raise InputError("`Scaled` must be outermost: combine kernels with + and *")
    return listed


def refuse_unknown(kernel: Kernel, name: str) -> None:
    """Refuses base kernels without lengthscales: what is fitted is a tree of the kernels here."""
    if isinstance(kernel, Sum | Product | Scaled):
        for part in parts_of(kernel):
            refuse_unknown(part, name)
    elif not isinstance(kernel, Stationary):
        kind = type(kernel).__name__
        raise InputError(
            f"`{name}`: a {kind} cannot be fitted; it must be made of pfedhgp's kernels"
        )


def split_scale(kernel: Kernel) -> tuple[Any, Kernel]:
    """(variance, unit kernel) of any kernel."""
    if isinstance(kernel, Scaled):
        return kernel.variance, kernel.kernel
    return np.float64(1.0), kernel


def _factors(kernel: Kernel) -> tuple[Kernel, ...]:
    return kernel.kernels if isinstance(kernel, Product) else (kernel,)


def parts_of(kernel: Sum | Product | Stacks | Scaled) -> tuple[Kernel, ...]:
    """The kernels that a combination is made of."""
    return (kernel.kernel,) if isinstance(kernel, Scaled) else kernel.kernels


def leaves_of(kernel: Kernel) -> list[Stationary]:
    """The base kernels of a tree, left to right."""
    if isinstance(kernel, Sum | Product | Stacks | Scaled):
        return [leaf for part in parts_of(kernel) for leaf in leaves_of(part)]
    assert isinstance(kernel, Stationary)
    return [kernel]


def map_leaves(change: Callable[[Stationary], Stationary], kernel: Kernel) -> Kernel:
    """The same tree with each base kernel replaced by `change(base)`."""
    if isinstance(kernel, Scaled):
        return Scaled(map_leaves(change, kernel.kernel), kernel.variance)
    if isinstance(kernel, Sum):
        return Sum(tuple(map_leaves(change, part) for part in kernel.kernels), kernel.ratios)
    if isinstance(kernel, Product | Stacks):
        return type(kernel)(tuple(map_leaves(change, part) for part in kernel.kernels))
    assert isinstance(kernel, Stationary)
    return change(kernel)


def stack(kernels: Sequence[Kernel]) -> Kernel:
    """One kernel with a leading axis on every leaf: the R latents of a layer."""
    return jax.tree.map(lambda *leaves: namespace(*leaves).stack(leaves), *kernels)


def unstack(kernels: Kernel, index: int) -> Kernel:
    """Latent `index` of a stacked kernel, or of several stacks of one height."""
    if isinstance(kernels, Stacks):
        size = len(jax.tree.leaves(kernels)[0])
        return unstack(kernels.kernels[index // size], index % size)
    return jax.tree.map(lambda leaf: leaf[index], kernels)

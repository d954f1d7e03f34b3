"""Many independent programs, one compiled step: equal calls of several programs are computed as one batch.

A study fits hundreds of federations whose arrays have equal shapes. Each fit is an ordinary sequential
program and runs in a thread of its own. When a program calls a `batchable` function, it waits until every
program of its run waits too. Calls of one function with equal shapes are then stacked, mapped by vmap and
computed at once. Programs need not agree: one that calls something else, or ends early, forms a batch of
its own. Outside `run_batched` a batchable function is plain `jax.jit`.

A function marked `host` is written for both array libraries (see `arrays_of`): on a CPU, and for few numbers
also beside another device, it is simply called, with NumPy arrays, and nothing is compiled.

A function that runs only a few times in a fit takes longer to compile than to run if its arguments are
small. Mark it with a lower `effort`, and the compiler spends less time on it.

Results come back as NumPy views of the stacked result. So everything between two calls is host memory, and
only batchable functions run on the device. Whole numbers (counts of evaluations) are shared by a batch and
not mapped, so that loops keep one trip count; calls with different ones are computed apart.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

import jax
import numpy as np

T = TypeVar("T")
Options = tuple[tuple[str, bool | int], ...]
Effort = Literal["low", "lowest"]

_LEAN: tuple[str, bool] = ("xla_cpu_use_fusion_emitters", False)
_LEVEL = "xla_backend_optimization_level"
EFFORTS: dict[Effort, Options] = {"low": (_LEAN, (_LEVEL, 1)), "lowest": (_LEAN, (_LEVEL, 0))}
"""XLA's options on a CPU. `batched_average` in the study takes 15 s of CPU to compile and 0.95 s to run; with
low effort 5.6 s and 0.91 s, with the lowest 2.3 s and 1.8 s."""
SMALL = 500_000
"""With at most this many numbers in the arguments, compiling takes longer than running."""

_here = threading.local()
_DEVICE = "jax_default_device"
"""JAX's name of the setting that `jax.default_device` changes; type checkers do not know it."""


class Batchable:
    """A compiled function; inside `run_batched` it is computed for all callers at once."""

    def __init__(
        self,
        function: Callable[..., Any],
        static: int,
        order: int,
        effort: Effort | None = None,
        host: bool = False,
    ) -> None:
        self.function, self.static, self.order, self.host = function, static, order, host
        self.options: Options = () if effort is None else EFFORTS[effort]
        self.__doc__, self.__name__ = function.__doc__, function.__name__
        self.__wrapped__ = function
        self.alone: Any = jax.jit(function, static_argnums=tuple(range(static)))
        self.stacked = jax.jit(self._mapped, static_argnums=(0, 1))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        scheduler: _Scheduler | None = getattr(_here, "scheduler", None)
        if kwargs or _traced(args):  # the options are for what is compiled by itself
            return self.alone(*args, **kwargs)
        if self.host and (on_host() or (scheduler is None and self._few(args))):
            # NaN and infinities come back as from JAX, without a warning.
            with np.errstate(all="ignore"):
                return self.function(*on_numpy(args))
        if scheduler is not None:
            return scheduler.call(self, args)
        if self.options and self._few(args):
            return self.small(*args)
        return self.alone(*args)

    def _few(self, args: tuple) -> bool:
        return _numbers(args[self.static :]) <= SMALL

    @functools.cached_property
    def small(self) -> Any:
        """The function for small arguments; `alone` if XLA does not know the options."""
        if not _known(self.options):
            return self.alone
        return jax.jit(
            self.function,
            static_argnums=tuple(range(self.static)),
            compiler_options=dict(self.options),
        )

    def _mapped(self, fixed: tuple, layout: tuple, common: list, mapped: list) -> Any:
        """The function over the leading axis of `mapped`; `common` leaves are the same for all."""
        treedef, is_common = layout

        def one(leaves: list) -> Any:
            own, shared = iter(leaves), iter(common)
            every = [next(shared) if same else next(own) for same in is_common]
            return self.function(*fixed, *jax.tree.unflatten(treedef, every))

        return jax.vmap(one)(mapped)


def batchable(
    *, static: int = 0, order: int = 0, effort: Effort | None = None, host: bool = False
) -> Callable[[Callable[..., Any]], Batchable]:
    """Compiles a function and lets `run_batched` batch its calls; the first `static` arguments are fixed.

    A function of a higher `order` waits until no program asks for one of a lower order. So a program that
    fell behind (it had to repeat a step) joins the others at the next heavy step (1), and programs that stop
    early wait for the others before what comes after training (2). `effort` is the compiler's: "low" for
    functions that run a few times in a fit, "lowest" for those that run once. A `host` function runs in NumPy
    on a CPU.
    """
    return lambda function: Batchable(function, static, order, effort, host)


def on_host() -> bool:
    """Whether we compute on a CPU now: then NumPy does what JAX would first have to compile."""
    scheduler: _Scheduler | None = getattr(_here, "scheduler", None)
    device = scheduler.device if scheduler is not None else getattr(jax.config, _DEVICE)
    if device is None:
        return jax.default_backend() == "cpu"
    return str(getattr(device, "platform", device)) == "cpu"


def on_numpy(tree: T) -> T:
    """The same tree with NumPy arrays for JAX's."""
    if not any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(tree)):
        return tree
    return jax.tree.map(lambda a: np.asarray(a) if isinstance(a, jax.Array) else a, tree)


@dataclass(eq=False)
class _Ticket:
    """One program's call: what is asked, and what came of it."""

    function: Batchable
    fixed: tuple
    treedef: Any
    leaves: list
    result: Any = None
    error: BaseException | None = None
    done: bool = False
    key: tuple = field(init=False)

    def __post_init__(self) -> None:
        shapes = tuple(
            int(leaf) if _whole(leaf) else (np.shape(leaf), np.dtype(leaf.dtype).str)
            for leaf in self.leaves
        )
        self.key = (self.function, self.fixed, self.treedef, shapes)


class _Scheduler:
    """Collects the calls of all programs, and computes them when every program waits."""

    def __init__(self, programs: int, device: Any, pad: bool) -> None:
        self.live, self.device = programs, device
        self.least = programs if pad else 1
        """Groups are filled up to this many calls."""
        self.pending: list[_Ticket] = []
        self.change = threading.Condition()

    def call(self, function: Batchable, args: tuple) -> Any:
        leaves, treedef = jax.tree.flatten(args[function.static :])
        arrays = [leaf if hasattr(leaf, "dtype") else np.asarray(leaf) for leaf in leaves]
        ticket = _Ticket(function, args[: function.static], treedef, arrays)
        with self.change:
            self.pending.append(ticket)
            self._compute_if_all_wait()
            while not ticket.done:
                self.change.wait()
        if ticket.error is not None:
            raise ticket.error
        return ticket.result

    def leave(self) -> None:
        with self.change:
            self.live -= 1
            self._compute_if_all_wait()

    def _compute_if_all_wait(self) -> None:
        if not self.pending or len(self.pending) < self.live:
            return
        order = min(ticket.function.order for ticket in self.pending)
        chosen = [ticket for ticket in self.pending if ticket.function.order == order]
        self.pending = [ticket for ticket in self.pending if ticket.function.order > order]
        groups: dict[tuple, list[_Ticket]] = {}
        for ticket in chosen:
            groups.setdefault(ticket.key, []).append(ticket)
        for group in groups.values():
            try:
                _compute(group, self.device, self.least)
            except BaseException as error:
                for ticket in group:
                    ticket.error = error
            for ticket in group:
                ticket.done = True
        self.change.notify_all()


def _compute(group: list[_Ticket], device: Any, least: int) -> None:
    """Computes a group of equal calls, filled up to `least` of them by repeating the first.

    On a GPU a compilation takes longer than all the work of a group: one that lost some of its programs,
    which stopped early or repeat a step, must not be compiled for its own size.
    """
    first = group[0]
    extra = max(least - len(group), 0)
    is_common = tuple(_whole(leaf) for leaf in first.leaves)
    common = [np.asarray(leaf) for leaf, same in zip(first.leaves, is_common, strict=True) if same]
    mapped = [
        stack([ticket.leaves[i] for ticket in (*group, *[first] * extra)])
        for i, same in enumerate(is_common)
        if not same
    ]
    with jax.default_device(device) if device is not None else nullcontext():
        found = first.function.stacked(first.fixed, (first.treedef, is_common), common, mapped)
        found = jax.device_get(found)
    for i, ticket in enumerate(group):
        ticket.result = jax.tree.map(lambda leaf, i=i: leaf[i, ...], found)


@functools.cache
def _known(options: Options) -> bool:
    """Whether this XLA has the options. They come and go with its versions, and are a CPU's."""
    if jax.default_backend() != "cpu":
        return False
    try:
        jax.jit(lambda: np.float64(0.0), compiler_options=dict(options))()
    except (RuntimeError, ValueError):
        return False
    return True


def _numbers(args: tuple) -> int:
    """How many numbers the arguments hold."""
    return sum(int(np.size(leaf)) for leaf in jax.tree.leaves(args))


def _traced(args: tuple) -> bool:
    """Whether the call is part of another function's compilation."""
    return any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(args))


def _whole(leaf: Any) -> bool:
    """Whether a leaf is a single whole number."""
    return np.ndim(leaf) == 0 and np.issubdtype(leaf.dtype, np.integer)


def stack(leaves: list) -> np.ndarray:
    """One array with a leading axis; without a copy if the leaves follow each other in memory."""
    arrays = [np.asarray(leaf) for leaf in leaves]
    first = arrays[0]
    in_a_row = (
        first.base is not None
        and first.size > 0
        and all(a.base is first.base and a.flags.c_contiguous for a in arrays)
        and all(a.ctypes.data == first.ctypes.data + i * first.nbytes for i, a in enumerate(arrays))
    )
    if not in_a_row:
        return np.stack(arrays)
    shape, strides = (len(arrays), *first.shape), (first.nbytes, *first.strides)
    return np.lib.stride_tricks.as_strided(first, shape, strides, writeable=False)


def run_batched(
    programs: Sequence[Callable[[], T]], *, device: Any = None, pad: bool | None = None
) -> list[T]:
    """Runs the programs side by side, their `batchable` calls batched on `device`; results in order.

    One program alone is simply called. The first error of a program is raised when all have ended. With
    `pad` (by default on any device but a CPU) every group is filled up to the number of programs, so that a
    function is compiled once for each shape of its arguments.
    """
    if len(programs) == 1 and device is None:
        return [programs[0]()]
    if pad is None:
        pad = device is not None and device.platform != "cpu"
    scheduler = _Scheduler(len(programs), device, pad)
    results: list[Any] = [None] * len(programs)
    errors: list[BaseException] = []

    def run(i: int) -> None:
        _here.scheduler = scheduler
        with jax.enable_x64(True):  # a setting of each thread's own, and `leave` may compute
            try:
                results[i] = programs[i]()
            except BaseException as error:
                errors.append(error)
            finally:
                scheduler.leave()

    threads = [
        threading.Thread(target=run, args=(i,), daemon=True, name=f"program {i}")
        for i in range(len(programs))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results

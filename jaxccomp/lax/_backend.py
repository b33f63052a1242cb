"""`jaxccomp.register_backend`: operations that a program moves by means of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from jaxccomp._primitives import backends
from jaxccomp._primitives.backends import BackendCall

__all__ = ["BackendCall", "register_backend"]

T = TypeVar("T")


def register_backend(name: str) -> Callable[[T], T]:
    """Registers an object whose functions run operations: ``backend=name`` then takes them.

    The object, a class or a module for instance, has a function for each operation that it offers,
    of the operation's name: ``allreduce(x, call) -> y`` and so on, of one array and a
    `BackendCall`. A class is never instantiated; it only holds the functions. They are traced, in
    the place of the operation, for each leaf of a pytree; so they are written in `jax.numpy`, with
    collectives of `jax.lax` or of another package.

    Operations: bcast, allreduce, reduce, allgather, gather, scatter, reduce_scatter, alltoall,
      their v-variants, permute (``ppermute``, and ``sendrecv`` along an axis), scan, exscan. Shapes
      are those of `jaxccomp.ops`: ``call.result_shape`` is that of the result, and the dtype is
      that of ``x``; the roots' results count, elsewhere ``reduce`` and ``gather`` give zeros. With
      a codec an operation is composed of the backend's own alltoall, allgather, bcast and so on,
      which move the codes; codecs of a fixed rate can be used. Derivatives are those of the
      operation, and need its transpose: those of ``bcast`` need ``reduce``.

    On the wire is what the functions do. Nothing is matched, compared between ranks, given a
    deadline or counted by `jaxccomp.stats`; docs/extending.md has what a backend promises.

    Args:
      name: what ``backend=`` takes: of a to z, 0 to 9 and ``_``. With ``communicators = True`` the
        object also takes calls between processes, whose communicator is ``call.comm``.

    Raises:
      NameTakenError: where the name is taken, or none.
      BackendError: where the object has no operation; from operations, where it lacks one, or gives
        another shape or dtype.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from jax.sharding import Mesh, PartitionSpec
      >>> @jaxccomp.register_backend("gathering")
      ... class Gathering:
      ...     '''Sums what all ranks have gathered.'''
      ...     def allreduce(x, call):
      ...         return jax.lax.all_gather(x, call.axis_names).sum(0).astype(x.dtype)
      >>> total = jax.shard_map(
      ...     lambda x: jaxccomp.allreduce(x, axis_name="i", backend="gathering"),
      ...     mesh=Mesh(jax.devices()[:1], ("i",)),
      ...     in_specs=PartitionSpec("i"),
      ...     out_specs=PartitionSpec("i"),
      ...     check_vma=False,
      ... )
      >>> total(jnp.arange(3.0)).tolist()
      [0.0, 1.0, 2.0]
    """

    def register(functions: T) -> T:
        own = getattr(functions, "__qualname__", getattr(functions, "__name__", repr(functions)))
        found = {each: getattr(functions, each, None) for each in backends.OPERATIONS}
        backends.add(
            backends.Backend(
                name,
                {each: function for each, function in found.items() if callable(function)},
                bool(getattr(functions, "communicators", False)),
                f"{getattr(functions, '__module__', '')}.{own}".lstrip("."),
            )
        )
        return functions

    return register

"""`jaxccomp.register_backend`: operations that the program itself implements."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from jaxccomp._primitives import extensions
from jaxccomp._primitives.extensions import BackendCall

__all__ = ["BackendCall", "register_backend"]

T = TypeVar("T")


def register_backend(name: str) -> Callable[[T], T]:
    """Registers an object whose functions run operations with ``backend=name``.

    The object, such as a class or a module, has a function for each supported operation, with the
    operation's name: ``allreduce(x, call) -> y`` and so on, for one array and a `BackendCall`. A
    class only holds the functions, and is never instantiated. The functions are traced in place of
    the operation, for each leaf of a pytree: they are written in `jax.numpy`, with collectives of
    `jax.lax` or of another package.

    Operations: bcast, allreduce, reduce, allgather, gather, scatter, reduce_scatter, alltoall,
      their v-variants, permute (``ppermute``, and ``sendrecv`` along an axis), scan, exscan. Shapes
      are the ones of `jaxccomp.ops`: the result has ``call.result_shape`` and the dtype of ``x``.
      Only the root's result of ``reduce`` and ``gather`` is used; other ranks get zeros. With a
      codec an operation is composed of the backend's own alltoall, allgather, bcast and so on,
      which send the encoded values; the codec must have a fixed rate. A derivative uses the
      operation's transpose: for ``bcast`` the backend needs ``reduce``.

    On the wire: the functions' messages. The engine does not match or compare these calls between
    ranks, has no deadline for them, and does not count them in `jaxccomp.stats`. docs/extending.md
    has the requirements for a backend.

    Args:
      name: the value for ``backend=``; characters a to z, 0 to 9 and ``_``. If the object has
        ``communicators = True``, it also runs calls between processes, and ``call.comm`` is the
        communicator.

    Raises:
      NameTakenError: when the name is taken or invalid.
      BackendError: when the object has no operation; from operations, when it lacks one, or returns
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
        found = {each: getattr(functions, each, None) for each in extensions.OPERATIONS}
        extensions.add(
            extensions.Backend(
                name,
                {each: function for each, function in found.items() if callable(function)},
                bool(getattr(functions, "communicators", False)),
                f"{getattr(functions, '__module__', '')}.{own}".lstrip("."),
            )
        )
        return functions

    return register

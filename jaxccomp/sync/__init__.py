"""Weight synchronisation: training ranks send weights to the ranks that use them, asynchronously.

Training ranks make a :class:`Publisher`, all other ranks of the communicator a :class:`Receiver`;
the two sides may run different programs. ``publish`` copies a version and returns; a receiver polls
for the latest version. Each version is sent as the difference to the previous one, encoded with the
codec ``"delta"``: the less has changed, the fewer bytes are sent::

    trainer                                     actors
    publisher = sync.Publisher(params)          receiver = sync.Receiver(params)
    for step in range(1000):                    while acting:
        params = train(params)                      weights = receiver.latest()
        publisher.publish(params)                   act(weights.params)
    publisher.close()

Versions are atomic: a receiver never sees arrays of two versions, and receivers with the same
version have the same bits. A background thread on each rank runs the operations, in program order
on communicators of its own, so they never match the program's operations.

Each side may shard its weights over its ranks: ``mesh=`` names the axes over the side's ranks, and
``specs=`` says which dimension of an array is sharded over which axes, as for ``jax.sharding``.
One rank that holds a part sends it to the ranks that need it.

Memory: each rank keeps the last version (the delta base), and the next one while it is in flight;
64 MiB more if the two sides shard arrays differently.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxccomp import codecs, errors
from jaxccomp import comm as _comm
from jaxccomp.comm import Communicator
from jaxccomp.sync import _layout as layout
from jaxccomp.sync import _transfer as replicas
from jaxccomp.sync._control import own_settings
from jaxccomp.sync._session import Session, meet
from jaxccomp.sync._transfer import Arrays
from jaxccomp.sync._versions import Incoming, Outgoing, Version

__all__ = ["Publisher", "Receiver", "Weights", "replicate"]


class Weights(NamedTuple):
    """One version of the weights.

    Attributes:
      version: the version's number, at least 1.
      params: the tree of arrays, or of this rank's parts of them.
      published_at: the Unix time of the `Publisher.publish` call, by the first publisher's clock.
    """

    version: int
    params: Any
    published_at: float


def replicate(
    tree: Any, *, root: int = 0, comm: Communicator | None = None, codec: str = "lossless"
) -> Any:
    """Broadcasts a tree from the root and checks that all ranks have the same bits. Collective.

    Use it after processes have joined a group (`jaxccomp.Communicator.admit`; its rank 0 is an old
    member), or after one rank has read a checkpoint.

    On the wire: a broadcast of all arrays, and a hash of them from each rank.

    Args:
      tree: arrays of any dtypes. Values matter on ``root`` only; other ranks may pass
        ``jax.ShapeDtypeStruct``.
      root: the rank whose values are broadcast.
      comm: the communicator; default: the world.
      codec: a bit-exact codec.

    Returns:
      The tree, with the same bits on all ranks.

    Raises:
      InvalidArgumentError: for a codec that is not bit-exact; on all ranks, for trees that differ
        in their structure, shapes or dtypes.
      SyncError: if a rank's result has other bits than the root's.

    Example:
      >>> from jaxccomp import sync
      >>> sync.replicate({"step": jnp.int32(3)})
      {'step': Array(3, dtype=int32)}
    """
    comm = _comm.resolve(comm)
    codec = _exact(codec)
    with own_settings():
        return replicas.replicate(tree, root, comm, codec)


class _Side:
    def __init__(
        self,
        tree: Any,
        publishes: bool,
        versions: Outgoing | Incoming,
        comm: Communicator | None,
        specs: Any,
        mesh: Mapping[str, int] | None,
        codec: str,
        name: str,
        rounded: Any = None,
    ):
        with own_settings():
            meeting = meet(comm, name, publishes)
            leaves: tuple[layout.Leaf, ...] = ()
            trouble = ""
            try:
                what = "make a Publisher" if publishes else "make a Receiver"
                axes = layout.check_mesh(mesh, meeting.ranks, what)
                leaves = layout.leaves_of(tree, specs, axes, meeting.part, rounded)
                codec = _exact(codec)
            except (errors.InvalidArgumentError, TypeError) as error:
                trouble = str(error)
            self._leaves = leaves
            self._structure = jax.tree.structure(tree)
            self._versions = versions
            self._session = Session(meeting, name, publishes, leaves, trouble, versions, codec)

    def __enter__(self) -> Any:
        return self

    def close(self) -> None:
        """Leaves the sync at the next round; keeps the last version."""
        self._session.close()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self._session.close()


def _exact(codec: str) -> str:
    codec = codecs.canonical(codec)
    bound = codecs.error_bound(codec, "float32")
    if bound.relative or bound.block or bound.absolute:
        raise errors.InvalidArgumentError(
            f"codec={codec!r} does not go with a sync, whose versions are the same bits on all "
            "ranks: take 'delta', 'lossless', 'raw' or another bit-exact codec. dtype= of a "
            "Publisher rounds."
        )
    return codec


class Publisher(_Side):
    """A training rank. Collective: all training ranks make one, all other ranks a `Receiver`.

    If there are several publishers, all publish the same versions, each its part of the weights.

    Closing the first publisher (the lowest rank) ends the sync for all; receivers keep their last
    version. Use it as a context manager, or call ``close``; otherwise it is closed at exit.

    On the wire: the first version, and the version after a failed exchange, are sent in full with
    ``"lossless"``; all others as differences. Each part is sent along a chain of the receivers that
    need it (see `jaxccomp.bcast`). Each version takes four small messages to all ranks; between
    versions there is one about every two seconds.

    Args:
      params: this rank's weights, or their shapes and dtypes: a tree of arrays. Values do not
        matter.
      comm: the communicator; default: the world.
      specs: which dimension of each array is sharded over which axes of ``mesh``: a tree of
        ``jax.sharding.PartitionSpec`` like ``params``, or one for all arrays. Default: not sharded.
        The arrays are this rank's parts; all parts have the same size.
      mesh: names and sizes of the axes over the publishers, in the order of their ranks, the last
        axis changing fastest.
      dtype: the dtype to which floating-point weights are rounded when they are published, for
        instance ``jnp.bfloat16``. Default: no rounding.
      codec: the codec of the differences; it must be bit-exact. "raw": all versions are sent in
        full, uncompressed.
      name: distinguishes syncs that several threads create at once on a communicator; the same on
        all ranks.

    Raises:
      InvalidArgumentError: on all ranks, if the sides' arrays differ or do not fit the mesh.

    Example:
      >>> from jaxccomp import sync
      >>> with sync.Publisher({"w": jnp.zeros(3)}) as publisher:         # doctest: +SKIP
      ...     publisher.publish({"w": jnp.ones(3)})
      1
    """

    def __init__(
        self,
        params: Any,
        *,
        comm: Communicator | None = None,
        specs: Any = None,
        mesh: Mapping[str, int] | None = None,
        dtype: Any = None,
        codec: str = "delta",
        name: str = "sync",
    ):
        """See the class."""
        self._dtype = dtype
        self._last = 0
        self._outgoing = Outgoing()
        super().__init__(params, True, self._outgoing, comm, specs, mesh, codec, name, dtype)

    def publish(self, params: Any, *, version: int | None = None) -> int:
        """Publishes the next version; blocks until all receivers have the previous one.

        Values are copied, so ``params`` may be donated afterwards.

        Args:
          params: arrays of the structure, shapes and dtypes given to the `Publisher`.
          version: its number, greater than all earlier ones. Default: the last number plus 1.

        Returns:
          The version's number.

        Raises:
          InvalidArgumentError: for other arrays, or a version that is not greater.
          SyncError: if the sync has ended, with the reason: for instance, the only publisher of a
            part has died.
        """
        if version is None:
            version = self._last + 1
        if isinstance(version, bool) or not isinstance(version, int) or version >= 2**31:
            raise errors.InvalidArgumentError(
                f"version must be an integer less than 2**31, not {version!r}."
            )
        if version <= self._last:
            raise errors.InvalidArgumentError(
                f"version {version} is published after version {self._last}: versions must grow."
            )
        arrays = self._checked(params)
        at = time.time()
        with own_settings():
            self._outgoing.put(lambda: Version(version, self._copied(arrays), at))
        if self._versions.closed:
            raise errors.SyncError("this Publisher, or the first one, has been closed.")
        self._last = version
        return version

    def flush(self) -> None:
        """Waits until all receivers have the last published version.

        Raises:
          SyncError: if the sync has failed, with the reason.
        """
        versions = self._outgoing
        with versions.changed:
            versions.changed.wait_for(lambda: versions.pending is None or versions.closed)
            versions.check()

    def close(self) -> None:
        """Waits until all receivers have the last published version, then ends the sync.

        Raises:
          SyncError: if a receiver may lack the last version, with the reason.
        """
        if not self._session.close():
            raise errors.SyncError(
                "the sync has not ended within timeout_seconds; receivers may lack its last version"
            )
        self._versions.check()

    def _checked(self, params: Any) -> list[Any]:
        arrays, structure = jax.tree.flatten(params)
        if structure != self._structure:
            raise errors.InvalidArgumentError(
                f"publish() is given another tree than the Publisher: {structure}, not "
                f"{self._structure}."
            )
        for leaf, array in zip(self._leaves, arrays, strict=True):
            dtype = layout.dtype_of(leaf.path, array, self._dtype)
            if (dtype, tuple(array.shape)) != (leaf.dtype, leaf.local_shape):
                raise errors.InvalidArgumentError(
                    f"{leaf.path} is {dtype}{list(array.shape)}, but the Publisher was made "
                    f"for {leaf.dtype}{list(leaf.local_shape)}."
                )
        return arrays

    def _copied(self, arrays: list[Any]) -> Arrays:
        device = jax.local_devices()[0]
        copies = [
            jnp.array(jax.device_put(array, device), leaf.dtype, copy=True)
            for leaf, array in zip(self._leaves, arrays, strict=True)
        ]
        return jax.block_until_ready(copies)


class Receiver(_Side):
    """A rank that uses weights; made by all ranks that do not make a `Publisher`.

    Receivers may shard their weights differently. A receiver that never calls ``latest``, is closed
    or dies does not delay others. After a failed exchange the next version is sent in full.

    Args:
      like: tree of arrays, or of ``jax.ShapeDtypeStruct``, of the shapes and dtypes of this rank's
        parts. If a leaf is an array on several devices of this process, each version is also copied
        to those devices.
      comm: as for `Publisher`.
      specs: as for `Publisher`, of this side's arrays.
      mesh: as for `Publisher`, over the receivers.
      codec: the publishers' codec.
      name: the publishers' name.

    Raises:
      InvalidArgumentError: as `Publisher`.

    Example:
      >>> from jaxccomp import sync
      >>> receiver = sync.Receiver({"w": jnp.zeros(3)})                  # doctest: +SKIP
      >>> version, params, _ = receiver.wait()                           # doctest: +SKIP
    """

    def __init__(
        self,
        like: Any,
        *,
        comm: Communicator | None = None,
        specs: Any = None,
        mesh: Mapping[str, int] | None = None,
        codec: str = "delta",
        name: str = "sync",
    ):
        """See the class."""
        self._shardings = [_sharding_of(leaf) for leaf in jax.tree.leaves(like)]
        versions = Incoming(self._zeros, self._presented)
        super().__init__(like, False, versions, comm, specs, mesh, codec, name)

    def latest(self) -> Weights | None:
        """Returns the last complete version, or None before the first; does not block.

        Raises:
          SyncError: if the sync has failed, with the reason: for instance, the publisher has died.
            ``last`` still returns the last version then.
        """
        self._versions.check()
        return self.last

    @property
    def last(self) -> Weights | None:
        """Returns the last complete version, also after a failure."""
        whole = self._versions.whole
        return None if whole is None else Weights(whole.number, whole.params, whole.published_at)

    @property
    def closed(self) -> bool:
        """Returns whether the sync is closed or has failed; then no further version arrives."""
        return self._versions.closed

    def wait(self, newer_than: int = 0, timeout: float | None = None) -> Weights:
        """Waits for a version and returns it.

        Args:
          newer_than: returns only a version with a greater number.
          timeout: seconds to wait at most. Default: until the sync ends.

        Raises:
          TimeoutError: if no newer version has arrived in time.
          SyncError: if the sync ends first.
        """
        versions = self._versions
        with versions.changed:
            came = versions.changed.wait_for(
                lambda: versions.closed or versions.number > newer_than, timeout
            )
            if versions.number > newer_than:
                found = self.last
                assert found is not None
                return found
            versions.check()
        if not came:
            raise TimeoutError(
                f"no version newer than {newer_than} has come in {timeout:g} s; the last one is "
                f"{versions.number}."
            )
        raise errors.SyncError(
            f"the sync has been closed; its last version is {versions.number}, and one newer than "
            f"{newer_than} was asked for."
        )

    def _zeros(self) -> Arrays:
        return [jnp.zeros(leaf.local_shape, leaf.dtype) for leaf in self._leaves]

    def _presented(self, arrays: Arrays) -> Any:
        placed = [
            array if sharding is None else jax.device_put(array, sharding)
            for array, sharding in zip(arrays, self._shardings, strict=True)
        ]
        return jax.tree.unflatten(self._structure, placed)


def _sharding_of(leaf: Any) -> jax.sharding.Sharding | None:
    several = isinstance(leaf, jax.Array) and len(leaf.sharding.device_set) > 1
    return leaf.sharding if several else None

"""Weights from ranks that train to ranks that use them, beside what both compute.

Ranks that train make a :class:`Publisher`, all others of the communicator a :class:`Receiver`; they
run different programs otherwise. ``publish`` hands over a version and returns; the receivers'
programs ask for the latest one when it suits them. What travels is the difference to the version
before, with the codec ``"delta"``, whose size follows how much has changed::

    trainer                                     actors
    publisher = sync.Publisher(params)          receiver = sync.Receiver(params)
    for step in range(1000):                    while acting:
        params = train(params)                      weights = receiver.latest()
        publisher.publish(params)                   act(weights.params)
    publisher.close()

A version is whole or not there: receivers never see arrays of two versions, and those that have the
same version have the same bits. A thread of this library does the work, on each rank. It goes
through operations in program order on communicators of its own, so it does not meet the program's.

Each side may spread its weights over its ranks: ``mesh=`` names the axes over the ranks of a side,
and ``specs=`` says which dimension of an array is cut along which of them, as for ``jax.sharding``.
Each part goes from one rank that holds it to those that need it.

Publishers and receivers keep one version each, against which the next one is sent, and the next one
while it travels. Where arrays are cut on one side otherwise than on the other, 64 MiB more.
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
from jaxccomp.sync import _replicas as replicas
from jaxccomp.sync._control import own_settings
from jaxccomp.sync._session import Session, meet
from jaxccomp.sync._transfer import Arrays
from jaxccomp.sync._versions import Incoming, Outgoing, Version

__all__ = ["Publisher", "Receiver", "Weights", "replicate"]


class Weights(NamedTuple):
    """One version of the weights.

    Attributes:
      version: its number, from 1 on.
      params: the tree of arrays, or of this rank's parts of them.
      published_at: when `Publisher.publish` was called, in Unix time by the first publisher's
        clock.
    """

    version: int
    params: Any
    published_at: float


def replicate(
    tree: Any, *, root: int = 0, comm: Communicator | None = None, codec: str = "lossless"
) -> Any:
    """Gives all ranks what one of them has, and checks that they have it.

    For processes that have joined a group (`jaxccomp.Communicator.admit`), whose rank 0 is one of
    those that were there before, and after a start from a checkpoint that one rank has read. Called
    by all ranks.

    On the wire: a broadcast of all arrays, and a hash of them from each rank.

    Args:
      tree: of arrays, of any dtypes; on other ranks than ``root`` values do not matter, and
        ``jax.ShapeDtypeStruct`` will do.
      root: whose values these are.
      comm: whose ranks these are; default: the world.
      codec: a bit-exact one.

    Returns:
      The tree, with the same bits on all ranks.

    Raises:
      InvalidArgumentError: for a codec that is not bit-exact; on all ranks, for trees that differ
        in their structure, shapes or dtypes.
      SyncError: where a rank has other bits in the end.

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
                axes = layout.check_mesh(mesh, meeting.count, what)
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

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self._session.close()


def _exact(codec: str) -> str:
    codec = codecs.canonical(codec)
    bound = codecs.error_bound(codec, "float32")
    if codec == "raw" or bound.relative or bound.block or bound.absolute:
        raise errors.InvalidArgumentError(
            f"codec={codec!r} does not go with a sync, whose versions are the same bits on all "
            "ranks: take 'delta', 'lossless' or another bit-exact codec. dtype= of a Publisher "
            "rounds."
        )
    return codec


class Publisher(_Side):
    """A rank that trains; called by all of these, while all others make a `Receiver`.

    With several of them, all publish the same versions, each its part of the weights.

    Closing the first one (the lowest rank) ends the sync for all; receivers keep what they have.
    Use it as a context manager, or call ``close``; at the end of the program this happens by
    itself.

    On the wire: the first version, and the next one after a receiver has been found to have
    something else, with ``"lossless"``; all others as differences. Each part travels along a chain
    of the receivers that need it (see `jaxccomp.bcast`). Four small messages go to all ranks for
    each version, and one about every two seconds while there is none.

    Args:
      params: this rank's weights, or their shapes and dtypes: a tree of arrays. Values do not
        matter.
      comm: whose ranks these are; default: the world.
      specs: which dimension of each array is cut along which axes of ``mesh``: a tree of
        ``jax.sharding.PartitionSpec`` like ``params``, or one for all arrays. Default: each
        publisher has all. Arrays are this rank's parts, and cut evenly.
      mesh: names and sizes of the axes over the publishers, in the order of their ranks, the last
        axis changing fastest.
      dtype: floating-point weights are rounded to it when they are published, for instance
        ``jnp.bfloat16`` of float32 ones. Default: they stay as they are.
      codec: of the differences; a bit-exact one.
      name: tells several syncs of a communicator apart where threads make them at once; the same on
        all ranks.

    Raises:
      InvalidArgumentError: on all ranks, where the sides' arrays differ, or do not fit the mesh.

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
        super().__init__(params, True, Outgoing(), comm, specs, mesh, codec, name, dtype)

    def publish(self, params: Any, *, version: int | None = None) -> int:
        """Hands over the next version; waits while the one before is not with all receivers.

        Values are copied, so ``params`` may be donated afterwards.

        Args:
          params: like those that the `Publisher` was made with.
          version: its number, greater than all before. Default: the last one and 1.

        Returns:
          The version's number.

        Raises:
          InvalidArgumentError: for other arrays, or a version that is not greater.
          SyncError: where the sync has ended, with the reason: a publisher that held a part alone
            has died, for instance.
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
            self._versions.put(lambda: Version(version, self._copied(arrays), at))
        if self._versions.closed:
            raise errors.SyncError("this Publisher, or the first one, has been closed.")
        self._last = version
        return version

    def flush(self) -> None:
        """Waits until all receivers have what has been published.

        Raises:
          SyncError: where they do not get it.
        """
        versions = self._versions
        with versions.changed:
            versions.changed.wait_for(lambda: versions.pending is None or versions.closed)
            versions.check()

    def close(self) -> None:
        """Ends the sync when all receivers have what has been published.

        Raises:
          SyncError: where they have not got it, with the reason.
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

    Receivers may differ in how their weights are cut, ask when they like, and never hold up others
    by not asking. One that is closed or dies leaves the others as they are. One that was found to
    have something else than the publisher gets the next version in full.

    Args:
      like: tree of arrays, or of ``jax.ShapeDtypeStruct``, of the shapes and dtypes of this rank's
        parts. Where a leaf is an array on several devices of this process, versions are put there
        as well, which takes memory once more.
      comm: as for `Publisher`.
      specs: as for `Publisher`, of this side's arrays.
      mesh: as for `Publisher`, over the receivers.
      codec: as for `Publisher`, and the same.
      name: as for `Publisher`, and the same.

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
        """The last version that has come whole; None where none has. Does not wait.

        Raises:
          SyncError: where no further one comes because of a failure, with the reason: the publisher
            has died, for instance. ``last`` still has the last version then.
        """
        self._versions.check()
        return self.last

    @property
    def last(self) -> Weights | None:
        """The last version that has come whole, also after a failure."""
        whole = self._versions.whole
        return None if whole is None else Weights(whole.number, whole.params, whole.published_at)

    @property
    def closed(self) -> bool:
        """Whether no further version comes: the sync has been closed, or has failed."""
        return self._versions.closed

    def wait(self, newer_than: int = 0, timeout: float | None = None) -> Weights:
        """Waits for a version.

        Args:
          newer_than: the number of one that is not enough.
          timeout: seconds to wait at most. Default: as long as the publisher lives.

        Raises:
          TimeoutError: where none has come in time.
          SyncError: where none comes any more.
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

    def close(self) -> None:
        """Takes no further part, from the next round on; keeps the last version."""
        self._session.close()

    def _zeros(self) -> Arrays:
        return [jnp.zeros(leaf.local_shape, leaf.dtype) for leaf in self._leaves]

    def _presented(self, arrays: Arrays) -> Any:
        placed = [
            array if sharding is None else jax.device_put(array, sharding)
            for array, sharding in zip(arrays, self._shardings, strict=True)
        ]
        return jax.tree.unflatten(self._structure, placed)


def _sharding_of(leaf: Any) -> jax.sharding.Sharding | None:
    sharding = getattr(leaf, "sharding", None)
    several = isinstance(leaf, jax.Array) and len(sharding.device_set) > 1
    return sharding if several else None

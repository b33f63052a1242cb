"""The key-value store of ``jax.distributed``, over which processes meet that have no MPI.

Small rows are exchanged by ``Store.share``, as MPI does it elsewhere. Threads here put the
engine's own messages into the store and fetch them (csrc/transport/store/). All waits have a
deadline; what lies in the store is not trusted.

A message to process P has the key ``jaxccomp/P/N``, where N counts all messages to P. Who sends one
draws N from a counter of the store, so P waits for one key at a time, and messages of one sender
come in its order.
"""

from __future__ import annotations

import functools
import queue
import threading
import time
import zlib
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

import jax
import numpy as np

from jaxccomp import _compat, errors
from jaxccomp._native.version import __version__

_PREFIX = "jaxccomp"
# So long the store is asked at once where nothing comes. A message is there when it comes.
_PATIENCE_SECONDS = 10.0
# A message that has a number and does not come for so many questions has lost its sender.
_LOST_AFTER = 3


class Store:
    """This process's use of the store.

    Args:
      client: of ``jax.distributed`` (_compat.distributed_client).
      process: this process's number, which is JAX's.
      processes: how many there are.
    """

    def __init__(self, client: Any, process: int, processes: int):
        self._client = client
        self._process = process
        self._processes = processes
        self._shared: dict[str, int] = {}  # how often, by name
        self._threads: list[threading.Thread] = []
        self._ends = False
        # How many milliseconds to wait for the others' end; None: not at all.
        self._parting: queue.SimpleQueue[int | None] = queue.SimpleQueue()

    # --- rows ---------------------------------------------------------------------------------

    def share(
        self, members: Sequence[int], rank: int, name: str, row: Sequence[int], timeout: float
    ) -> np.ndarray:
        """All members' rows of integers, in the members' order, on every member.

        The first member gathers them and hands them all out.

        Raises:
          InitializationError: with the processes that have not come, or whose row cannot be read.
        """
        number = self._shared.get(name, 0)
        mine = np.array([zlib.crc32(f"{__version__} {name}".encode()), *row], np.int64)
        folder = f"{_PREFIX}/rows/{quote(name, safe='')}/{number}"
        deadline = time.monotonic() + timeout

        def fetch(key: str, rows: int, of: int) -> np.ndarray:
            left = max(deadline - time.monotonic(), 1e-3)
            found = _compat.stored(self._client, f"{folder}/{key}", left)
            if found is None:
                raise self._missing(folder, members, timeout)
            if len(found) != rows * mine.nbytes:
                raise errors.InitializationError(_unreadable(of))
            return np.frombuffer(found, np.int64).reshape(rows, mine.size)

        self._client.key_value_set_bytes(f"{folder}/{rank}", mine.tobytes(), True)
        if rank == 0:
            table = np.concatenate([fetch(str(r), 1, of) for r, of in enumerate(members)])
            self._client.key_value_set_bytes(f"{folder}/all", table.tobytes(), True)
        else:
            table = fetch("all", len(members), members[0])
        for member, each in zip(members, table, strict=True):
            if each[0] != mine[0]:
                raise errors.InitializationError(_unreadable(member))
        self._shared[name] = number + 1
        return table[:, 1:]

    def _missing(
        self, folder: str, members: Sequence[int], timeout: float
    ) -> errors.InitializationError:
        here = {key.rsplit("/", 1)[-1] for key, _ in self._client.key_value_dir_get_bytes(folder)}
        missing = [member for rank, member in enumerate(members) if str(rank) not in here]
        who = f"processes {missing} have not come"
        if not missing:
            who = f"process {members[0]} has not answered"
        return errors.InitializationError(
            f"all processes of jax.distributed (here {list(members)}) must take part in "
            f"jaxccomp.init() and in split(), but after {timeout:g} s {who}. Call it on every "
            "process near the start of the program (operations call it when the program has not), "
            "or raise the option init_timeout_seconds."
        )

    # --- messages ------------------------------------------------------------------------------

    def carry(self, mailbox: Any) -> None:
        """Starts to carry the engine's messages, until its mailbox is closed."""
        # All start here: Python 3.12 lets none start when a program ends.
        for work in (self._send, self._receive, self._part):
            thread = threading.Thread(
                target=self._until_the_store_fails,
                args=(work, mailbox),
                name=f"jaxccomp{work.__name__}",
                daemon=True,
            )
            thread.start()
            self._threads.append(thread)

    def stop(self) -> None:
        """Waits for the threads, once the engine has been shut down."""
        for thread in self._threads:
            thread.join(2.0)  # they end at once, unless the store does not answer

    def _until_the_store_fails(self, work: Any, mailbox: Any) -> None:
        try:
            work(mailbox)
        except Exception as error:  # noqa: BLE001 - whatever it is, the engine has to know
            mailbox.fail(f"the store of jax.distributed does not answer: {error}")

    def _send(self, mailbox: Any) -> None:
        try:
            while (message := mailbox.take()) is not None:
                process, text = message
                if process == mailbox.PARTING:
                    self._parting.put(int(text))
                else:
                    self._put(process, text)
        finally:
            self._ends = True
            self._parting.put(None)
        self._put(self._process, b"")  # so that nobody waits for another one

    def _put(self, process: int, text: bytes) -> None:
        folder = f"{_PREFIX}/{process}"
        number = self._client.key_value_increment(f"{folder}/count", 1)
        self._client.key_value_set_bytes(f"{folder}/{number}", text)

    def _receive(self, mailbox: Any) -> None:
        folder = f"{_PREFIX}/{self._process}"
        number, vain = 1, 0
        while not self._ends:
            key = f"{folder}/{number}"
            message = _compat.stored(self._client, key, _PATIENCE_SECONDS)
            if self._ends:
                return
            if message is None:
                vain = vain + 1 if self._count(folder) >= number else 0
                if vain < _LOST_AFTER:
                    continue
                message = b""  # which cannot be, and so is an error of all that wait
            else:
                self._client.key_value_delete(key)
            mailbox.deliver(message)
            number, vain = number + 1, 0

    def _count(self, folder: str) -> int:
        found = _compat.stored(self._client, f"{folder}/count", 1.0)
        return int(found) if found is not None and found.isdigit() else 0

    def _part(self, mailbox: Any) -> None:
        """Tells the mailbox when all processes have come to their end; messages go on meanwhile."""
        milliseconds = self._parting.get()
        if milliseconds is None:
            return
        try:
            self._client.wait_at_barrier(f"{_PREFIX}/end", milliseconds)
        except jax.errors.JaxRuntimeError:
            pass  # others were lost, or take longer: nobody waits any more
        mailbox.end_parting()


@functools.cache
def of(client: Any, process: int, processes: int) -> Store:
    """The one `Store` of these: where joining fails and is tried again, rows get new keys."""
    return Store(client, process, processes)


def _unreadable(process: int) -> str:
    return (
        f"what process {process} has put into jax.distributed's store is not a row of jaxccomp "
        f"{__version__} for this call: all processes must have the same version, and call split() "
        "on their communicators in the same order."
    )

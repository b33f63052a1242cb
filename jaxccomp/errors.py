"""What can go wrong, as exception classes, and the sentences that say what to do about it.

Every exception of the package is a :class:`JaxccompError` and also the built-in that a caller
would expect (``ValueError`` for an argument, ``RuntimeError`` for the environment).
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class JaxccompError(Exception):
    """Base of every error that jaxccomp raises itself."""


class InvalidArgumentError(JaxccompError, ValueError):
    """An argument that no operation could accept; found while tracing."""


class UnknownNameError(InvalidArgumentError):
    """A codec, backend, algorithm, option or operation that does not exist."""


class UnknownKeywordError(UnknownNameError, TypeError):
    """A keyword argument that no operation has."""


class UnknownAxisError(UnknownNameError, NameError):
    """An ``axis_name`` that no surrounding shard_map, pmap or vmap has."""


class NameTakenError(InvalidArgumentError):
    """A codec, algorithm or backend is registered under a name that is taken, or no name."""


class UnsupportedDTypeError(JaxccompError, TypeError):
    """An operation that is not defined for the dtype given."""


class CodecError(InvalidArgumentError):
    """A codec that the program has registered does not do what codecs must (`jaxccomp.toolkit`)."""


class ScheduleError(InvalidArgumentError):
    """A schedule that the program has registered is not its collective (docs/extending.md)."""


class BackendError(InvalidArgumentError):
    """A backend that the program has registered lacks an operation, or gives something else."""


class CommunicatorError(InvalidArgumentError):
    """A communicator that cannot be used here: foreign, empty, or without this process."""


class CutOffError(CommunicatorError):
    """This process is no member of its group any more: others may go on without it."""


class NotDifferentiableError(JaxccompError, NotImplementedError):
    """A derivative was asked of an operation that has none."""


class CorruptDataError(JaxccompError, ValueError):
    """Bytes that are not what the codec, or the frame, says they are: cut, altered or foreign."""


class EngineUnavailableError(JaxccompError, RuntimeError):
    """The native engine, or a part of it such as MPI, is needed and cannot be used."""


class MissingPackageError(JaxccompError, ImportError):
    """A Python package that only some of jaxccomp needs is not installed."""


class InitializationError(JaxccompError, RuntimeError):
    """``jaxccomp.init`` could not join the processes that the environment announces."""


class OperationFailedError(JaxccompError, RuntimeError):
    """An operation on a device failed after the program that it belongs to was dispatched."""


class SyncError(JaxccompError, RuntimeError):
    """Weights no longer come, or cannot be published any more (`jaxccomp.sync`)."""


class LaunchError(JaxccompError, RuntimeError):
    """Ranks that ``python -m jaxccomp run`` or ``tune`` should start, and why they cannot be."""


def listed(names: Iterable[object]) -> str:
    """Formats ``names`` for an error text: quoted, separated by commas."""
    return ", ".join(repr(str(name)) for name in names) or "(none)"


def unknown(kind: str, given: object, valid: Iterable[str], hint: str = "") -> UnknownNameError:
    """An error for a name that is not in a table, with the names that are.

    Args:
      kind: what the name names, such as ``"codec"``.
      given: what the caller wrote.
      valid: the names that exist.
      hint: one more sentence, such as how to get what is missing.
    """
    valid = sorted(map(str, valid))
    close = difflib.get_close_matches(str(given), valid, n=1)
    guess = f" Did you mean {close[0]!r}?" if close else ""
    tail = f" {hint}" if hint else ""
    return UnknownNameError(f"unknown {kind} {given!r}; valid: {listed(valid)}.{guess}{tail}")

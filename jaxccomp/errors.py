"""The package's exception classes, and helpers for error texts.

Every exception is a :class:`JaxccompError` and also the built-in class that a caller expects
(``ValueError`` for an argument, ``RuntimeError`` for the environment).
"""

from __future__ import annotations

import difflib
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Sequence

__all__ = [
    "ArgumentTypeError",
    "BackendError",
    "CodecError",
    "CollectiveError",
    "CommunicatorError",
    "CorruptDataError",
    "CutOffError",
    "EngineUnavailableError",
    "InitializationError",
    "InvalidArgumentError",
    "JaxHookError",
    "JaxHookWarning",
    "JaxccompError",
    "LaunchError",
    "MissingPackageError",
    "NameTakenError",
    "NotDifferentiableError",
    "ScheduleError",
    "SyncError",
    "UnknownAxisError",
    "UnknownKeywordError",
    "UnknownNameError",
    "UnsupportedDTypeError",
    "of",
]


class JaxccompError(Exception):
    """Base class of all errors that jaxccomp raises itself."""


class InvalidArgumentError(JaxccompError, ValueError):
    """An invalid argument; found while tracing."""


class UnknownNameError(InvalidArgumentError):
    """A codec, backend, algorithm, option or operation that does not exist."""


class UnknownKeywordError(UnknownNameError, TypeError):
    """An unknown keyword argument."""


class ArgumentTypeError(InvalidArgumentError, TypeError):
    """An argument of a type that is not allowed."""


class UnknownAxisError(UnknownNameError, NameError):
    """An ``axis_name`` that no surrounding shard_map, pmap or vmap has."""


class NameTakenError(InvalidArgumentError):
    """A codec, algorithm or backend was registered under a name that is taken or invalid."""


class UnsupportedDTypeError(JaxccompError, TypeError):
    """An operation that is not defined for the dtype given."""


class CodecError(InvalidArgumentError):
    """A registered codec breaks the contract of codecs (`jaxccomp.toolkit`)."""


class ScheduleError(InvalidArgumentError):
    """A registered schedule does not compute its collective (docs/extending.md)."""


class BackendError(InvalidArgumentError):
    """A registered backend lacks an operation, or returns wrong shapes or dtypes."""


class CommunicatorError(InvalidArgumentError):
    """A communicator that cannot be used here: foreign, empty, or without this process."""


class CutOffError(CommunicatorError):
    """This process is no longer a member of its group; the others may continue without it."""


class NotDifferentiableError(JaxccompError, NotImplementedError):
    """The operation has no derivative."""


class CorruptDataError(JaxccompError, ValueError):
    """Bytes that are no valid encoded buffer or frame: truncated, altered or of another format."""


class EngineUnavailableError(JaxccompError, RuntimeError):
    """The native engine, or a part of it such as MPI, is needed and cannot be used."""


class JaxHookError(JaxccompError, RuntimeError):
    """JAX lacks or has changed a private API that jaxccomp uses; the text names the hook."""


class JaxHookWarning(RuntimeWarning):
    """A feature does not work because JAX has changed a private API that jaxccomp uses."""


class MissingPackageError(JaxccompError, ImportError):
    """An optional Python package is needed and not installed."""


class InitializationError(JaxccompError, RuntimeError):
    """``jaxccomp.init`` could not join the processes that the environment announces."""


class CollectiveError(JaxccompError, RuntimeError):
    """A collective or a message that failed while a program ran; made by `of`.

    Attributes:
      code: the status code, such as "DEADLINE_EXCEEDED", "ABORTED" or "FAILED_PRECONDITION"; "" if
        it is not known.
      operation: the first operation that the text names, such as "allreduce(sum, float32[4])"; ""
        if it names none.
      where: the line of that call, such as "train.py:41"; "" if it is not known.
    """

    def __init__(self, text: str, code: str = "", operation: str = "", where: str = ""):
        super().__init__(text)
        self.code: str = code
        self.operation: str = operation
        self.where: str = where


class SyncError(JaxccompError, RuntimeError):
    """A weight synchronisation has ended or failed (`jaxccomp.sync`)."""


class LaunchError(JaxccompError, RuntimeError):
    """``python -m jaxccomp run`` or ``tune`` cannot start its ranks."""


# Returns the texts of the last errors of operations, the latest first. The engine sets it.
recent_errors: Callable[[], Sequence[str]] = tuple
# XLA limits the length of an error's text, so the beginnings are compared.
_COMPARED_LENGTH = 200
# An operation and its line in an error's text (OpSpec::ToString).
_OPERATION = re.compile(r"\b([a-z_]+\([^()]*\))(?: at (\S+:\d+))?")
_CODE = re.compile(r"\b([A-Z]+(?:_[A-Z]+)+|ABORTED|UNAVAILABLE|INTERNAL|UNIMPLEMENTED): ")


def of(exception: BaseException | None) -> CollectiveError | None:
    """Return the failure of an operation that an exception reports; None if it reports none.

    JAX raises ``JaxRuntimeError`` or ``ValueError`` for an operation that fails in a program. This
    function recognises such an exception by its text, also if it is the cause or the context of
    ``exception``.

    Args:
      exception: the exception, of any class.

    Example:
      >>> try:                                                           # doctest: +SKIP
      ...     step(params).block_until_ready()
      ... except Exception as exception:
      ...     failure = jaxccomp.errors.of(exception)
      ...     if failure is None:
      ...         raise  # not of a collective
      ...     print(failure.code, failure.operation, failure.where)
    """
    seen: set[int] = set()
    while exception is not None and id(exception) not in seen:
        seen.add(id(exception))
        if isinstance(exception, CollectiveError):
            return exception
        text = str(exception)
        for message in recent_errors():
            place = text.find(message[:_COMPARED_LENGTH]) if message else -1
            if place >= 0:
                code = _CODE.findall(text[:place])
                named = _OPERATION.search(message)
                operation, where = named.groups("") if named else ("", "")
                found = CollectiveError(message, code[-1] if code else "", operation, where)
                found.__cause__ = exception
                return found
        exception = exception.__cause__ or exception.__context__
    return None


def listed(names: Iterable[object]) -> str:
    """Formats ``names`` for an error text: quoted, separated by commas."""
    return ", ".join(repr(str(name)) for name in names) or "(none)"


# Names in other libraries, and ours for the same thing.
_ELSEWHERE = {
    "add": "sum",
    "average": "mean",
    "avg": "mean",
    "bfloat16": "bf16",
    "float16": "fp16",
    "float32": "raw",
    "float8": "fp8_e4m3",
    "fp32": "raw",
    "fp8": "fp8_e4m3",
    "gloo": "xla",
    "gzip": "zstd",
    "half": "fp16",
    "identity": "raw",
    "land": "and",
    "lor": "or",
    "nccl": "xla",
    "none": "raw",
    "product": "prod",
    "signsgd": "onebit",
    "uncompressed": "raw",
    "zlib": "zstd",
}


def _meant(given: object, valid: Sequence[str]) -> str | None:
    """The valid name that the caller probably meant."""
    name = str(given).lower()
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is not None and isinstance(given, mpi.Op):  # such as MPI.SUM
        names = (
            each
            for each, value in vars(mpi).items()
            if isinstance(value, mpi.Op) and value == given
        )
        name = next(names, "").lower()
    if (ours := _ELSEWHERE.get(name)) in valid:
        return ours
    return next(iter(difflib.get_close_matches(name, valid, n=1)), None)


def unknown(kind: str, given: object, valid: Iterable[str], hint: str = "") -> UnknownNameError:
    """Makes the error for an unknown name, with the valid names.

    Args:
      kind: the kind of name, such as ``"codec"``.
      given: the caller's argument.
      valid: the names that exist.
      hint: one more sentence, such as a remedy.
    """
    valid = sorted(map(str, valid))
    meant = _meant(given, valid)
    guess = f" Did you mean {meant!r}?" if meant else ""
    tail = f" {hint}" if hint else ""
    return UnknownNameError(f"unknown {kind} {given!r}; valid: {listed(valid)}.{guess}{tail}")


def warn_renamed(old: str, new: str, stacklevel: int = 3) -> None:
    """Warn that a name of version 0.1 will be removed in 0.3.

    Args:
      old: the name.
      new: the expression that replaces it.
      stacklevel: as for `warnings.warn`; by default the caller of the function that calls this.
    """
    warnings.warn(
        f"{old} is deprecated, and will be removed in version 0.3: use {new}",
        DeprecationWarning,
        stacklevel=stacklevel,
    )


def __getattr__(name: str) -> type[Exception]:
    if name == "OperationFailedError":  # in version 0.1
        warn_renamed(f"errors.{name}", "errors.CollectiveError", stacklevel=2)
        return CollectiveError
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

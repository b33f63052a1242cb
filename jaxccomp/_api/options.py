"""The keyword arguments that all operations share, and their documentation."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TypedDict, TypeVar

from jaxccomp._api.arguments import AxisName, Groups
from jaxccomp.codecs import CodecLike
from jaxccomp.comm import Communicator

F = TypeVar("F", bound=Callable[..., object])


class How(TypedDict, total=False):
    """Keyword arguments that say how to communicate."""

    codec: CodecLike
    cotangent_codec: CodecLike
    backend: str
    algorithm: str


class Options(How, total=False):
    """Keyword arguments of every operation of `jaxccomp.ops`."""

    axis_name: AxisName | None
    comm: Communicator | None
    axis_index_groups: Groups | None


# name: (default, meaning)
_OPTIONS = {
    "axis_name": (
        None,
        """the axis, or a tuple of axes, of the surrounding ``shard_map``, ``pmap`` or ``vmap``;
  ranks are indices along it. Not together with ``comm``.""",
    ),
    "comm": (
        None,
        """the communicator whose processes take part; ranks are its ranks. Default, when no
  ``axis_name`` is given either: the world.""",
    ),
    "axis_index_groups": (
        None,
        """lists of indices along the axis, each index in one of them; every group
  communicates among itself, and ranks are places in the group.""",
    ),
    "codec": (
        None,
        """what is done to values before they travel: None (nothing), ``"auto"`` (bit-exact:
  with ``ref=`` what suits a difference, else nothing or, where a profile says that it is faster,
  ``"lossless"``) or a spec such as ``"bf16"``. ``"auto:bf16"`` leaves it out where a profile says
  that it does not pay. Lossy only when asked for; dtypes that a codec does not know travel as they
  are.""",
    ),
    "cotangent_codec": (
        "same",
        """what is done to cotangents when they travel back, in derivatives of all
  orders: ``"same"`` as ``codec``, None, or a spec. Tangents travel as values do.""",
    ),
    "backend": (
        "auto",
        """``"native"`` (the engine), ``"xla"`` (collectives of ``jax.lax``; needs ``axis_name``),
  ``"mpi"`` (MPI's own collectives, on the host, without codecs and for the operations that MPI has:
  docs/backends.md), ``"auto"``: the engine where it can, or one that is registered
  (`jaxccomp.register_backend`).""",
    ),
    "algorithm": (
        "auto",
        """a name that ``python -m jaxccomp doctor`` lists, or ``"auto"``: the one that is fastest
  by a profile (the option ``profile``), else one by a static rule. Names may have options after a
  colon, such as ``"ring:chunk=131072"`` (bytes worked on at a time) or
  ``"parameter_server:partitions=2"``. `jaxccomp.register_algorithm` registers others.""",
    ),
}

_RAISES = """\
InvalidArgumentError: for arguments that do not fit each other or the shapes.
UnknownNameError: for an axis, op, codec, backend or algorithm that does not exist; the
  text lists those that do.
UnsupportedDTypeError: for leaves that are no arrays, or cannot be reduced like this.
EngineUnavailableError: when only the native engine could run it, and it is not there."""


def operation(function: F) -> F:
    """Decorate a function with ``**options: Unpack[Options]``; see `_spell_out`."""
    return _spell_out(function, tuple(_OPTIONS))


def parallel(function: F) -> F:
    """Decorate a function with ``**how: Unpack[How]``; see `_spell_out`."""
    return _spell_out(function, ("codec", "cotangent_codec", "backend", "algorithm"))


def _spell_out(function: F, names: tuple[str, ...]) -> F:
    """Add the common arguments to signature and docstring, and the common errors."""
    signature = inspect.signature(function)
    given = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    common = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=_OPTIONS[name][0])
        for name in names
    ]
    function.__signature__ = signature.replace(parameters=[*given, *common])  # type: ignore
    described = "\n".join(f"{name}: {_OPTIONS[name][1]}" for name in names)
    text = inspect.cleandoc(function.__doc__ or "")
    text = _insert(text, "\nReturns:", _indent(described))
    function.__doc__ = _insert(text, "\nExample:", "\nRaises:\n" + _indent(_RAISES))
    return function


def _insert(text: str, before: str, more: str) -> str:
    head, marker, tail = text.partition(before)
    return f"{head.rstrip()}\n{more}\n{marker}{tail}"


def _indent(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())

"""The keyword arguments that all operations share, and their documentation."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TypedDict, TypeVar, get_type_hints

from jaxccomp._api.arguments import AxisName, Groups
from jaxccomp.codecs import CodecLike
from jaxccomp.comm import Communicator

F = TypeVar("F", bound=Callable[..., object])


class How(TypedDict, total=False):
    """Keyword arguments for the implementation of an operation."""

    codec: CodecLike
    cotangent_codec: CodecLike
    backend: str
    algorithm: str


class Options(How, total=False):
    """Keyword arguments of every operation of `jaxccomp.ops`."""

    axis_name: AxisName | None
    comm: Communicator | None
    axis_index_groups: Groups | None


_TYPES = get_type_hints(Options)
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
        """lists of indices along the axis, each index in one list. Each group
  communicates separately, and a rank is an index in its group.""",
    ),
    "codec": (
        None,
        """how values are encoded before they are sent: None (not at all), ``"auto"`` (bit-exact:
  with ``ref=`` a codec for differences; else ``"lossless"`` if a profile predicts that it is
  faster, or no codec) or a spec such as ``"bf16"``. ``"auto:bf16"`` uses ``"bf16"`` only if a
  profile predicts that it is faster. Lossy codecs are used only if named. Leaves of dtypes that a
  codec does not support are sent unencoded.""",
    ),
    "cotangent_codec": (
        "same",
        """how derivatives of all orders encode cotangents: ``"same"`` as
  ``codec``, None, or a spec. Tangents use ``codec``.""",
    ),
    "backend": (
        "auto",
        """``"native"`` (the engine), ``"xla"`` (collectives of ``jax.lax``; needs ``axis_name``),
  ``"mpi"`` (MPI's own collectives, on the host, without codecs and for the operations that MPI has:
  docs/backends.md), the name of a registered backend (`jaxccomp.register_backend`), or ``"auto"``:
  the engine if it can run the call, else ``jax.lax``.""",
    ),
    "algorithm": (
        "auto",
        """a name that ``python -m jaxccomp doctor`` lists, or ``"auto"``: the algorithm that a
  profile (the option ``profile``) predicts to be fastest, without a profile one by a static rule.
  Names may have options after a colon, such as ``"ring:chunk=131072"`` (bytes of a chunk) or
  ``"parameter_server:partitions=2"``. `jaxccomp.register_algorithm` registers others.""",
    ),
}

_RAISES = """\
InvalidArgumentError: if arguments contradict each other or do not fit the shapes.
UnknownNameError: for an axis, op, codec, backend or algorithm that does not exist; the
  text lists the valid names.
UnsupportedDTypeError: for leaves that are not arrays, or whose dtype ``op`` cannot reduce.
EngineUnavailableError: if the call needs the native engine, and it cannot be loaded."""


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
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=_OPTIONS[name][0],
            annotation=_TYPES[name],
        )
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

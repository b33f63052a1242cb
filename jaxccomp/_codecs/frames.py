"""Frames: self-describing encoded tensors. See :mod:`jaxccomp.codecs`."""

from __future__ import annotations

import dataclasses
from typing import Any

import ml_dtypes  # noqa: F401 - registers bfloat16 and float8 with NumPy
import numpy as np

from jaxccomp import errors
from jaxccomp._codecs import specs
from jaxccomp._native import engine

_MAX_CHUNK_VALUES = 1 << 24


@dataclasses.dataclass(frozen=True)
class FrameInfo:
    """The header of a frame.

    Attributes:
      spec: the codec, in canonical form.
      dtype: of the values.
      shape: of the array.
      value_bytes: bytes of the array.
      frame_bytes: bytes of the frame.
      chunks: number of independently encoded parts.
      chunk_values: values per chunk; the last chunk may have fewer.
      checksum: whether payloads and header have checksums (CRC-32C).
      delta: whether it was encoded with a reference.
    """

    spec: str
    dtype: np.dtype
    shape: tuple[int, ...]
    value_bytes: int
    frame_bytes: int
    chunks: int
    chunk_values: int
    checksum: bool
    delta: bool


def encode(
    codec: specs.CodecLike,
    array: Any,
    ref: Any = None,
    *,
    key: tuple[int, int, int] = (0, 0, 0),
    chunk_bytes: int = 1 << 20,
    checksum: bool = True,
) -> bytes:
    """Encodes an array to self-describing bytes.

    Args:
      codec: a spec, such as ``"lossless"`` or ``"int8:block=64"``.
      array: an array or a value that NumPy can convert, of a dtype of the codec and any shape.
      ref: an array of the same shape and dtype that the decoder also has, such as the parameters
        before an update. The difference is encoded: with a lossless codec the XOR, which is exact;
        otherwise the numerical difference, whose error is within the codec's bound.
      key: step, tensor and rank: the seed of stochastic codecs. Equal keys give equal bytes.
      chunk_bytes: bytes of values per chunk; each chunk can be decoded alone.
      checksum: whether to add checksums, which detect altered bytes before decoding (4 bytes per
        chunk and 4 more, at the speed of reading memory). By default `decode` refuses frames
        without checksums: omit them only if the transport or file format has its own.

    Returns:
      The frame (docs/wire_format.md).

    Raises:
      InvalidArgumentError: for an invalid spec, dtype, reference or chunk size.
      EngineUnavailableError: when the codec's library, or the native engine, is missing.

    Example:
      >>> import numpy as np, jaxccomp
      >>> x = np.linspace(0, 1, 1000, dtype=np.float32)
      >>> data = jaxccomp.codecs.encode("lossless", x)
      >>> bool((jaxccomp.codecs.decode(data) == x).all())
      True
    """
    text = specs.canonical(codec)
    if (own := specs.find_custom(text)) is not None:
        raise errors.InvalidArgumentError(
            f"codec {text!r} is the registered codec {own.source}, which encodes only inside "
            "operations; a frame needs a codec of this package."
        )
    values = _contiguous(array)
    reference = None if ref is None else _reference(ref, values.dtype, values.shape)
    if chunk_bytes < 1:
        raise errors.InvalidArgumentError(f"chunk_bytes must be at least 1, not {chunk_bytes}.")
    chunk_values = min(max(chunk_bytes // values.dtype.itemsize, 1), _MAX_CHUNK_VALUES)
    try:
        return engine.load().encode_frame(
            text,
            values.dtype.name,
            list(values.shape),
            _bytes(values),
            None if reference is None else _bytes(reference),
            key,
            chunk_values,
            checksum,
        )
    except (ValueError, TypeError) as error:
        raise errors.InvalidArgumentError(f"encode: {error}.") from None


def decode(
    data: Any,
    ref: Any = None,
    *,
    max_bytes: int | None = None,
    require_checksum: bool = True,
) -> np.ndarray:
    """Decodes a frame of :func:`encode`.

    The data may be untrusted: an invalid frame raises, checksums detect altered bytes, and a small
    frame cannot allocate more memory than its codec could have encoded in it.

    Args:
      data: a frame, as bytes or any contiguous buffer.
      ref: the reference, if it was encoded with one; checked against a checksum.
      max_bytes: the largest array to accept; by default any that the frame can contain.
      require_checksum: whether to refuse frames without checksums. Without a checksum, altered
        bytes may decode to other values.

    Returns:
      A new NumPy array of the encoded shape and dtype.

    Raises:
      CorruptDataError: when the data is not a complete, unaltered frame, or has no checksums.
      InvalidArgumentError: when the reference is missing, superfluous or a different one, or the
        array is larger than ``max_bytes``.
      EngineUnavailableError: when the codec's library, or the native engine, is missing.

    Example:
      >>> import numpy as np, jaxccomp
      >>> old = np.zeros(1000, np.float32)
      >>> new = old + np.float32(1e-3)
      >>> data = jaxccomp.codecs.encode("lossless", new, ref=old)
      >>> len(data) < 200
      True
      >>> bool((jaxccomp.codecs.decode(data, ref=old) == new).all())
      True
    """
    data = _as_buffer(data)
    info = inspect(data)
    if require_checksum and not info.checksum:
        raise errors.CorruptDataError(
            "decode: the frame has no checksums, so altered bytes would not be found. Encode with "
            "checksum=True, the default; require_checksum=False decodes it all the same."
        )
    if max_bytes is not None and info.value_bytes > max_bytes:
        raise errors.InvalidArgumentError(
            f"decode: the frame holds {info.value_bytes} bytes of values, max_bytes is {max_bytes}."
        )
    reference = None if ref is None else _bytes(_reference(ref, info.dtype, info.shape))
    try:
        values = np.empty(info.shape, info.dtype)
    except (MemoryError, ValueError) as error:
        raise errors.InvalidArgumentError(
            f"decode: there is no memory for the frame's {info.value_bytes} bytes of values."
        ) from error
    try:
        engine.load().decode_frame(data, reference, _bytes(values))
    except BufferError as error:
        raise errors.CorruptDataError(f"decode: {error}.") from None
    except ValueError as error:
        raise errors.InvalidArgumentError(f"decode: {error}.") from None
    return values


def inspect(data: Any) -> FrameInfo:
    """Reads the header of a frame, without decoding it.

    Args:
      data: a frame, as bytes or any contiguous buffer.

    Raises:
      CorruptDataError: when header and index do not fit a frame of this length.

    Example:
      >>> import numpy as np, jaxccomp
      >>> jaxccomp.codecs.inspect(jaxccomp.codecs.encode("bf16", np.ones((2, 3)))).shape
      (2, 3)
    """
    data = _as_buffer(data)
    try:
        row = engine.load().read_frame(data)
    except BufferError as error:
        raise errors.CorruptDataError(f"inspect: {error}.") from None
    except RuntimeError as error:
        raise errors.EngineUnavailableError(f"inspect: {error}.") from None
    row["dtype"] = np.dtype(row["dtype"])
    return FrameInfo(frame_bytes=len(data), **row)


def _contiguous(array: Any) -> np.ndarray:
    values = np.asarray(array)
    if not values.dtype.isnative:
        values = values.astype(values.dtype.newbyteorder("="))
    # ascontiguousarray makes scalars one-dimensional.
    return np.ascontiguousarray(values).reshape(values.shape)


def _reference(ref: Any, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    reference = _contiguous(ref)
    if reference.dtype != dtype or reference.shape != shape:
        raise errors.InvalidArgumentError(
            f"ref must have the shape and dtype of the values, {dtype.name}{list(shape)}, not "
            f"{reference.dtype.name}{list(reference.shape)}."
        )
    return reference


def _bytes(values: np.ndarray) -> np.ndarray:
    """The same memory as bytes: the buffer protocol has no name for bfloat16."""
    return values.reshape(-1).view(np.uint8)


def _as_buffer(data: Any) -> memoryview:
    try:
        return memoryview(data).cast("B")
    except TypeError as error:
        raise errors.InvalidArgumentError(
            f"data must be bytes or a contiguous buffer, not {type(data).__name__}: {error}."
        ) from None

"""Frames: encoded tensors that say by themselves what they are. See :mod:`jaxccomp.codecs`."""

from __future__ import annotations

import dataclasses
from typing import Any

import ml_dtypes  # noqa: F401 - teaches NumPy the names of bfloat16 and its like
import numpy as np

from jaxccomp import errors
from jaxccomp._codecs import specs
from jaxccomp._native import engine

_MOST_CHUNK_VALUES = 1 << 24


@dataclasses.dataclass(frozen=True)
class FrameInfo:
    """What a frame says of itself.

    Attributes:
      spec: the codec, in canonical form.
      dtype: of the values.
      shape: of the array.
      value_bytes: bytes of the array.
      frame_bytes: bytes of the frame.
      chunks: how many parts were encoded independently.
      chunk_values: values of each but the last.
      checksum: whether payloads and header carry checksums (CRC-32C).
      delta: whether it was made with a reference.
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
      array: what NumPy can make an array of, of a dtype that the codec codes; any shape.
      ref: an array of the same shape and dtype that whoever decodes has as well, such as the
        parameters before an update. The difference is encoded: the XOR with a lossless codec, which
        stays exact, else the numerical difference, whose error is within the codec's bound.
      key: step, tensor and rank, which choose the random numbers of stochastic codecs: equal keys
        give equal bytes.
      chunk_bytes: bytes of values that are encoded together; each such part decodes alone.
      checksum: whether to add checksums, with which altered bytes are found before they are
        decoded (4 bytes per chunk and 4 more, at the speed of reading memory). `decode` refuses
        frames without them by default: leave them out only where the bytes travel by something
        that checks them itself.

    Returns:
      The frame (docs/wire_format.md).

    Raises:
      InvalidArgumentError: for a spec, dtype, reference or chunk that is not possible.
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
            f"codec {text!r} is {own.source}, which codes arrays inside of operations; a frame "
            "needs a codec of this package."
        )
    values = _contiguous(array)
    reference = None if ref is None else _reference(ref, values.dtype, values.shape)
    if chunk_bytes < 1:
        raise errors.InvalidArgumentError(f"chunk_bytes must be at least 1, not {chunk_bytes}.")
    chunk_values = min(max(chunk_bytes // values.dtype.itemsize, 1), _MOST_CHUNK_VALUES)
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
    """Decodes what :func:`encode` made.

    The data may come from anywhere: what is not a valid frame raises, and no more memory is taken
    than the codec could have made so few bytes of. Altered bytes raise, too, by the checksums.

    Args:
      data: a frame, as bytes or any contiguous buffer.
      ref: the reference, when it was encoded with one; checked against a checksum.
      max_bytes: the largest array to accept; by default whatever the frame can hold.
      require_checksum: whether to refuse frames without checksums, whose altered bytes may decode
        to other values.

    Returns:
      A new NumPy array of the shape and dtype that were encoded.

    Raises:
      CorruptDataError: when the data is not a whole, unaltered frame, or has no checksums.
      InvalidArgumentError: when the reference is missing, not wanted or another one, or the array
        would be larger than ``max_bytes``.
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
    """Reads what a frame says of itself, without decoding it.

    Args:
      data: a frame, as bytes or any contiguous buffer.

    Raises:
      CorruptDataError: when header and index are not those of a frame of this length.

    Example:
      >>> import numpy as np, jaxccomp
      >>> jaxccomp.codecs.inspect(jaxccomp.codecs.encode("bf16", np.ones((2, 3)))).shape
      (2, 3)
    """
    data = _as_buffer(data)
    try:
        row = engine.load().read_frame(data)
    except BufferError as error:
        raise errors.CorruptDataError(f"decode: {error}.") from None
    except RuntimeError as error:
        raise errors.EngineUnavailableError(f"decode: {error}.") from None
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

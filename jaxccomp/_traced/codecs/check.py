"""`jaxccomp.toolkit.check`: tests a codec on values."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxccomp import errors
from jaxccomp._codecs import specs
from jaxccomp._traced import codecs
from jaxccomp._traced.codecs.codec import Array, Codec

_SHAPES = ((), (1,), (7,), (33, 65), (4096,), (10007,))
_KEYS = 64
# A mean over keys of 0 deviates by more than this many standard deviations once in a million.
_DEVIATIONS = 5


@dataclasses.dataclass(frozen=True)
class Report:
    """The properties that `check` measured.

    Attributes:
      spec: of the codec.
      dtype: of the values.
      ratio: bytes of the values / bytes of the payload, for 10007 values.
      exact: whether all decoded values equal the encoded values.
      contraction: the minimum of ``1 - |x - decode(encode(x))|^2 / |x|^2`` over kinds of values,
        for random codecs of its mean over keys. Above 0, error feedback sends all values
        eventually; the nearer to 1, the sooner (Karimireddy et al. 2019).
      unbiased: whether the mean of decoded values over keys equals the encoded values.
    """

    spec: str
    dtype: str
    ratio: float
    exact: bool
    contraction: float
    unbiased: bool


def check(codec: specs.CodecLike, dtype: Any = "float32") -> Report:
    """Test a codec on values of many kinds, and raise if it violates a requirement of operations.

    The requirements: the codec restores shapes and dtypes of scalars, vectors and matrices. It
    returns the same payload each time, also for a row that is batched with other rows. It decodes
    zeros to zeros, and NaN and infinity to non-finite values: that value, or its whole block. It is
    exact, a contraction or unbiased; otherwise sums over steps drift.

    Args:
      codec: the spec of a registered codec, or of a codec of this package with fixed output size.
      dtype: the dtype of the test values.

    Returns:
      The measured properties.

    Raises:
      CodecError: for the first requirement that fails, with an example.

    Example:
      >>> import jaxccomp
      >>> jaxccomp.toolkit.check("int8").contraction > 0.99
      True
    """
    text, dtype = specs.canonical(codec), jnp.dtype(dtype)
    found = codecs.find_for(text, dtype.name)
    if found is None:
        raise errors.CodecError(
            f"codec {text!r} sends {dtype.name} unencoded, so there is nothing to check."
        )
    trial = _Trial(text, found, dtype)
    for shape in _SHAPES:
        trial.round_trip(trial.normal(shape))
    trial.check_repeats()
    trial.check_zeros()
    for value in (math.nan, math.inf, -math.inf):
        trial.check_not_hidden(value)
    return trial.measure()


class _Trial:
    def __init__(self, spec: str, codec: Codec, dtype: Any):
        self.spec, self.codec, self.dtype = spec, codec, dtype
        self.encode = jax.jit(codec.encode)
        self.decode = jax.jit(codec.decode, static_argnums=(1, 2))
        self.generator = np.random.default_rng(0)

    def normal(self, shape: tuple[int, ...]) -> Array:
        return jnp.asarray(self.generator.standard_normal(shape), self.dtype)

    def key(self, number: int) -> Array | None:
        return _random_key(number) if self.codec.random else None

    def fail(self, what: str) -> errors.CodecError:
        return errors.CodecError(f"codec {self.spec!r}, {self.dtype.name}: {what}")

    def round_trip(self, x: Array) -> np.ndarray:
        return np.asarray(self.decode(self.encode(x, self.key(0)), x.shape, self.dtype))

    def round_trips(self, x: Array) -> np.ndarray:
        """Return decoded values as float64, a row per key; one row if the codec takes no key."""
        if not self.codec.random:
            return self.round_trip(x)[None].astype(np.float64)
        keys = jax.random.split(_random_key(0), _KEYS)
        payloads = jax.jit(jax.vmap(self.codec.encode, (None, 0)))(x, keys)
        decoded = jax.jit(self.codec.decode_rows, static_argnums=(1, 2))(
            payloads, x.shape, self.dtype
        )
        return np.asarray(decoded).astype(np.float64)

    def check_repeats(self) -> None:
        rows = self.normal((3, 4096))
        keys = jnp.stack([_random_key(i) for i in range(3)]) if self.codec.random else None
        together = jax.jit(jax.vmap(self.codec.encode))(rows, keys)
        for i in range(3):
            alone = self.encode(rows[i], self.key(i))
            again = self.encode(rows[i], self.key(i))
            mine = jax.tree.map(lambda leaf, i=i: leaf[i], together)
            for name, other in {"encoded again": again, "encoded with other rows": mine}.items():
                if not _same(alone, other):
                    raise self.fail(
                        f"the payload differs when the same values are {name}. It must be a "
                        "function of values, options and key."
                    )

    def check_zeros(self) -> None:
        decoded = self.round_trip(jnp.zeros(4096, self.dtype))
        if decoded.any():
            raise self.fail(
                f"zeros decode to {decoded[decoded != 0][0]}, and each step would add this error."
            )

    def check_not_hidden(self, value: float) -> None:
        place = 1234
        x = self.normal((4096,)).at[place].set(value)
        decoded = self.round_trip(x).astype(np.float64)
        if np.isfinite(decoded[place]):
            raise self.fail(
                f"{value} decodes to {decoded[place]}. It, or its whole block, must decode to NaN "
                "or infinity; otherwise dynamic loss scaling never detects an overflow."
            )

    def is_unbiased(self, losses: np.ndarray, truth: np.ndarray) -> bool:
        """Return whether mean errors over keys are 0, along the values, signs and directions."""
        directions = [truth, np.sign(truth), *self.generator.choice([-1.0, 1.0], (8, truth.size))]
        along = losses @ np.stack(directions, axis=1)
        deviation = along.std(axis=0, ddof=1) / math.sqrt(len(along))
        rounding = float(jnp.finfo(self.dtype).eps) * np.abs(directions) @ np.abs(truth)
        return bool((np.abs(along.mean(axis=0)) <= _DEVIATIONS * deviation + rounding).all())

    def measure(self) -> Report:
        shape = (10007,)
        kinds = {
            "normal values": self.normal(shape),
            "values of many magnitudes": self.normal(shape) ** 5,
            "a few values among zeros": jnp.where(self.normal(shape) > 2.5, self.normal(shape), 0),
            "equal values": jnp.full(shape, 0.7, self.dtype),
        }
        contraction, worst, exact, unbiased = 1.0, "", True, True
        for kind, x in kinds.items():
            truth = np.asarray(x).astype(np.float64)
            losses = self.round_trips(x) - truth
            exact &= not losses.any()
            lost = float((losses**2).sum(axis=1).mean() / (truth**2).sum())
            if 1 - lost < contraction:
                contraction, worst = 1 - lost, kind
            unbiased &= self.codec.random and self.is_unbiased(losses, truth)
        if contraction <= 0 and not unbiased:
            raise self.fail(
                f"for {worst} its squared error is {1 - contraction:.2g} times the sum of squares: "
                "it is neither a contraction (less than 1) nor unbiased, so residuals of error "
                "feedback grow, and sums without error feedback are wrong."
            )
        payload = jax.eval_shape(self.codec.encode, kinds["normal values"], self.key(0))
        sent = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(payload))
        ratio = math.prod(shape) * self.dtype.itemsize / max(sent, 1)
        return Report(self.spec, self.dtype.name, ratio, exact, contraction, unbiased or exact)


def _same(one: Any, other: Any) -> bool:
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return all(np.asarray(a).tobytes() == np.asarray(b).tobytes() for a, b in pairs)


def _random_key(number: int) -> Array:
    return jax.random.key(number, impl="threefry2x32")

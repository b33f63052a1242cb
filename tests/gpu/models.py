"""Small and medium networks in plain JAX, for accdp.py.

None normalises over the batch, so that any division of a batch gives the same training.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Params = Any
Batch = tuple[np.ndarray, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Model:
    """A network and its inputs.

    Attributes:
      about: its description.
      batch: samples per step on the whole device.
      make: makes parameters from a key.
      loss: the mean loss of a batch.
      sample: shapes and dtypes of one sample's input and label.
      labels: number of labels.
      from_host: whether batches come from the host's memory, as from an input pipeline.
    """

    about: str
    batch: int
    make: Callable[[jax.Array], Params]
    loss: Callable[[Params, jax.Array, jax.Array], jax.Array]
    sample: tuple[tuple[tuple[int, ...], str], tuple[tuple[int, ...], str]]
    labels: int
    from_host: bool = False

    def data(self, count: int, seed: int) -> Batch:
        """Random inputs and labels of ``count`` samples; speed does not depend on their values."""
        random = np.random.default_rng(seed)
        (shape, dtype), (label_shape, _) = self.sample
        if dtype == "int32":
            inputs = random.integers(0, self.labels, (count, *shape), np.int32)
        else:
            inputs = random.standard_normal((count, *shape), np.float32)
        return inputs, random.integers(0, self.labels, (count, *label_shape), np.int32)


def _dense(key: jax.Array, inputs: int, outputs: int) -> Params:
    return {
        "w": jax.random.normal(key, (inputs, outputs)) * (2 / inputs) ** 0.5,
        "b": jnp.zeros(outputs),
    }


def _apply(layer: Params, x: jax.Array) -> jax.Array:
    return x @ layer["w"] + layer["b"]


def _cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    logits = jax.nn.log_softmax(logits.astype(jnp.float32))
    return -jnp.mean(jnp.take_along_axis(logits, labels[..., None], axis=-1))


def mlp(width: int, depth: int, inputs: int = 784, labels: int = 10) -> dict[str, Any]:
    """Dense layers with ReLU, for inputs like MNIST."""
    sizes = [inputs, *[width] * depth, labels]

    def make(key: jax.Array) -> Params:
        keys = jax.random.split(key, len(sizes) - 1)
        return [_dense(k, a, b) for k, a, b in zip(keys, sizes, sizes[1:], strict=False)]

    def loss(params: Params, x: jax.Array, y: jax.Array) -> jax.Array:
        for layer in params[:-1]:
            x = jax.nn.relu(_apply(layer, x))
        return _cross_entropy(_apply(params[-1], x), y)

    return {
        "make": make,
        "loss": loss,
        "sample": (((inputs,), "float32"), ((), "int32")),
        "labels": labels,
    }


def _conv(key: jax.Array, inputs: int, outputs: int, size: int = 3) -> jax.Array:
    scale = (2 / (size * size * inputs)) ** 0.5
    return jax.random.normal(key, (size, size, inputs, outputs)) * scale


def _convolved(x: jax.Array, w: jax.Array, stride: int = 1) -> jax.Array:
    dims = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(x, w, (stride, stride), "SAME", dimension_numbers=dims)


def _normalised(x: jax.Array, groups: int = 8) -> jax.Array:
    """Group normalisation, without parameters."""
    *front, channels = x.shape
    parts = x.reshape(front[0], -1, groups, channels // groups)
    mean = parts.mean((1, 3), keepdims=True)
    spread = jax.lax.rsqrt(parts.var((1, 3), keepdims=True) + 1e-5)
    return ((parts - mean) * spread).reshape(x.shape)


def resnet(widths: tuple[int, ...], blocks: int, side: int = 32, labels: int = 10) -> dict:
    """Residual blocks of two convolutions, for inputs like CIFAR."""

    def make(key: jax.Array) -> Params:
        keys = iter(jax.random.split(key, 3 + 3 * blocks * len(widths)))
        params: dict[str, Any] = {"first": _conv(next(keys), 3, widths[0]), "blocks": []}
        inputs = widths[0]
        for width in widths:
            for _ in range(blocks):
                block = [_conv(next(keys), inputs, width), _conv(next(keys), width, width)]
                skip = _conv(next(keys), inputs, width, 1) if inputs != width else None
                params["blocks"].append({"convs": block, "skip": skip})
                inputs = width
        params["head"] = _dense(next(keys), inputs, labels)
        return params

    def loss(params: Params, x: jax.Array, y: jax.Array) -> jax.Array:
        x = _convolved(x, params["first"])
        for block in params["blocks"]:
            skip = block["skip"]
            stride = 1 if skip is None else 2
            inner = _convolved(jax.nn.relu(_normalised(x)), block["convs"][0], stride)
            inner = _convolved(jax.nn.relu(_normalised(inner)), block["convs"][1])
            x = inner + (x if skip is None else _convolved(x, skip, stride))
        return _cross_entropy(_apply(params["head"], jax.nn.relu(_normalised(x)).mean((1, 2))), y)

    return {
        "make": make,
        "loss": loss,
        "sample": (((side, side, 3), "float32"), ((), "int32")),
        "labels": labels,
    }


def transformer(width: int, depth: int, length: int, heads: int = 4, tokens: int = 1024) -> dict:
    """A decoder that predicts the next token; a sample is a sequence."""

    def make(key: jax.Array) -> Params:
        keys = iter(jax.random.split(key, 2 + 4 * depth))
        layers = [
            {
                "qkv": _dense(next(keys), width, 3 * width),
                "out": _dense(next(keys), width, width),
                "up": _dense(next(keys), width, 4 * width),
                "down": _dense(next(keys), 4 * width, width),
            }
            for _ in range(depth)
        ]
        names = {"embed": jax.random.normal(next(keys), (tokens, width)) * 0.02}
        return names | {
            "places": jax.random.normal(next(keys), (length, width)) * 0.02,
            "layers": layers,
        }

    def normal(x: jax.Array) -> jax.Array:
        return (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)

    def attended(layer: Params, x: jax.Array) -> jax.Array:
        shape = (*x.shape[:2], heads, width // heads)
        q, k, v = (each.reshape(shape) for each in jnp.split(_apply(layer["qkv"], x), 3, -1))
        mixed = jax.nn.dot_product_attention(q, k, v, is_causal=True)
        return _apply(layer["out"], mixed.reshape(x.shape))

    def loss(params: Params, x: jax.Array, y: jax.Array) -> jax.Array:
        h = params["embed"][x] + params["places"]
        for layer in params["layers"]:
            h = h + attended(layer, normal(h))
            h = h + _apply(layer["down"], jax.nn.gelu(_apply(layer["up"], normal(h))))
        return _cross_entropy(normal(h) @ params["embed"].T, y)

    return {
        "make": make,
        "loss": loss,
        "sample": (((length,), "int32"), ((length,), "int32")),
        "labels": tokens,
    }


# In order of importance: if time is short, the last ones do not run.
MODELS = {
    "mlp-small": Model("MLP, 3 x 512", 1024, **mlp(512, 3)),
    "resnet-small": Model("ResNet, 3 x 1 blocks of 16 to 64", 256, **resnet((16, 32, 64), 1)),
    "transformer-small": Model(
        "transformer, 4 layers of 256, 128 tokens", 64, **transformer(256, 4, 128)
    ),
    "resnet-small-host": Model(
        "the same, fed from the host", 256, **resnet((16, 32, 64), 1), from_host=True
    ),
    "mlp-medium": Model("MLP, 4 x 4096", 1024, **mlp(4096, 4)),
    "resnet-medium": Model("ResNet, 3 x 3 blocks of 64 to 256", 256, **resnet((64, 128, 256), 3)),
    "transformer-medium": Model(
        "transformer, 8 layers of 512, 256 tokens", 64, **transformer(512, 8, 256, heads=8)
    ),
    "tiny": Model("an MLP to check this program", 64, **mlp(16, 1, inputs=8)),
}

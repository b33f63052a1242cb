"""The models in JAX."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from testbed.training.data import TASKS


def loss(name: str, params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
    """The mean cross entropy."""
    logits = _mlp(params, x) if name == "mlp" else _transformer(params, x)
    chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), y[..., None], axis=-1)
    return -jnp.mean(chosen)


def _apply(layer: Any, x: jax.Array) -> jax.Array:
    return x @ layer["kernel"] + layer["bias"]


def _mlp(params: Any, x: jax.Array) -> jax.Array:
    last = len(params) - 1
    for i in range(last):
        x = jax.nn.relu(_apply(params[f"layer_{i}"], x))
    return _apply(params[f"layer_{last}"], x)


def _normal(x: jax.Array) -> jax.Array:
    x = x - x.mean(-1, keepdims=True)
    return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5)


def _transformer(params: Any, tokens: jax.Array) -> jax.Array:
    _, depth, heads, context = TASKS["transformer"].layers
    x = params["embed"][tokens] + params["place"]
    mask = jnp.tril(jnp.ones((context, context), bool))
    for i in range(depth):
        layer = params[f"layer_{i}"]
        q, k, v = jnp.split(_apply(layer["qkv"], _normal(x)), 3, axis=-1)
        q, k, v = (z.reshape(*z.shape[:2], heads, -1) for z in (q, k, v))
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(q.shape[-1])
        weights = jax.nn.softmax(jnp.where(mask, scores, -1e9))
        mixed = jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(x.shape)
        x = x + _apply(layer["out"], mixed)
        x = x + _apply(layer["down"], jax.nn.gelu(_apply(layer["up"], _normal(x))))
    return _apply(params["readout"], _normal(x))

"""The table of contexts of JAX for operations.

Programs take the operation ``f``, three arrays of the calling rank (``x`` and ``d`` with the
operand's shape, ``w`` with the result's) and a flag that is true. Their expected results follow
from the operation's definition ``F`` and its transpose ``T``, applied to the stacked arrays
``X``, ``D``, ``W``. A new context needs a new row."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Array = Any
Function = Callable[[Any], Any]


@dataclasses.dataclass(frozen=True)
class Transform:
    """One row.

    Attributes:
      name: of the row, used in names of tests.
      program: ``(f, x, d, w, flag) -> results``.
      expected: ``(F, T, X, D, W) -> results``.
      derives: whether it differentiates; operations without a derivative must then raise an error.
      once: whether one number of ranks suffices, because it only combines other rows.
      alone: "": together with other contexts in one compiled program; "eager": alone; "donated":
        alone, compiled with donated inputs.
    """

    name: str
    program: Callable[[Function, Array, Array, Array, Array], Any]
    expected: Callable[[Function, Function, np.ndarray, np.ndarray, np.ndarray], Any]
    derives: bool = False
    once: bool = False
    alone: str = ""


def _weighed(f: Function, w: Array) -> Function:
    return lambda x: jnp.sum(w * f(x))


def _scan(f: Function, x: Array, d: Array, **options: Any) -> Array:
    return lax.scan(lambda carry, _: (carry + d, f(carry)), x, length=4, **options)[1]


def _scanned(F: Function, X: np.ndarray, D: np.ndarray) -> np.ndarray:
    return np.stack([F(X + np.asarray(i, X.dtype) * D) for i in range(4)], axis=1)


def _while(f: Function, x: Array, d: Array) -> Array:
    def body(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        i, x, _ = state
        return i + 1, x + d, f(x + d)

    return lax.while_loop(lambda state: state[0] < 3, body, (jnp.int32(0), x, f(x)))[2]


def _cond(f: Function, x: Array, d: Array, flag: Array) -> tuple[Array, Array]:
    def choose(flag: Array) -> Array:
        return lax.cond(flag, f, lambda x: f(x + d), x)

    return choose(flag), choose(~flag)


def _grad_of_remat(f: Function, x: Array, w: Array) -> Array:
    # The square needs f(x) again in the backward pass.
    return jax.grad(lambda x: jnp.sum(jax.checkpoint(lambda x: w * f(x) ** 2)(x)))(x)


def _grad_of_scan(f: Function, x: Array, d: Array, w: Array) -> Array:
    def loss(x: Array) -> Array:
        def step(carry: Array, i: Array) -> tuple[Array, Array]:
            return carry + d, jnp.sum(i * w * f(carry))

        return jnp.sum(lax.scan(step, x, jnp.arange(1, 4, dtype=w.dtype))[1])

    return jax.grad(loss)(x)


def _grad_of_cond(f: Function, x: Array, w: Array, flag: Array) -> Array:
    return jax.grad(lambda x: jnp.sum(lax.cond(flag, lambda x: w * f(x), lambda x: w - f(x), x)))(x)


def _vmap_of_grad(f: Function, x: Array, w: Array) -> Array:
    each = jax.vmap(lambda w: jax.grad(_weighed(f, w))(x), in_axes=-1, out_axes=-1)
    return each(jnp.stack([w, 2 * w], axis=-1))


def _custom_vjp(f: Function, x: Array, w: Array) -> Array:
    @jax.custom_vjp
    def doubled(x: Array) -> Array:
        return f(x)

    def forward(x: Array) -> tuple[Array, Array]:
        return f(x), x

    def backward(x: Array, ct: Array) -> tuple[Array]:
        return (2 * jax.vjp(f, x)[1](ct)[0],)

    doubled.defvjp(forward, backward)
    return jax.grad(_weighed(doubled, w))(x)


def _twice(f: Function, x: Array, d: Array) -> tuple[Array, Array]:
    inner = jax.jit(f)
    return inner(x), inner(x + d)


def _several(f: Function, x: Array, d: Array) -> list[Array]:
    """Runs independent operations: only matching orders them."""
    return [f(x), f(d), f(x + d), f(x)]


TRANSFORMS: tuple[Transform, ...] = (
    Transform("eager", lambda f, x, d, w, flag: f(x), lambda F, T, X, D, W: F(X), alone="eager"),
    Transform(
        "donated", lambda f, x, d, w, flag: f(x), lambda F, T, X, D, W: F(X), alone="donated"
    ),
    Transform("jit", lambda f, x, d, w, flag: f(x), lambda F, T, X, D, W: F(X)),
    Transform(
        "several",
        lambda f, x, d, w, flag: _several(f, x, d),
        lambda F, T, X, D, W: [F(X), F(D), F(X + D), F(X)],
        once=True,
    ),
    Transform(
        "inner-jit-twice",
        lambda f, x, d, w, flag: _twice(f, x, d),
        lambda F, T, X, D, W: (F(X), F(X + D)),
    ),
    Transform(
        "vmap",
        lambda f, x, d, w, flag: jax.vmap(f, in_axes=-1, out_axes=-1)(jnp.stack([x, d, x + d], -1)),
        lambda F, T, X, D, W: np.stack([F(X), F(D), F(X + D)], -1),
    ),
    Transform(
        "scan",
        lambda f, x, d, w, flag: _scan(f, x, d),
        lambda F, T, X, D, W: _scanned(F, X, D),
    ),
    Transform(
        "scan-unroll",
        lambda f, x, d, w, flag: _scan(f, x, d, unroll=2),
        lambda F, T, X, D, W: _scanned(F, X, D),
    ),
    Transform(
        "while",
        lambda f, x, d, w, flag: _while(f, x, d),
        lambda F, T, X, D, W: F(X + np.asarray(3, X.dtype) * D),
    ),
    Transform(
        "cond",
        lambda f, x, d, w, flag: _cond(f, x, d, flag),
        lambda F, T, X, D, W: (F(X), F(X + D)),
    ),
    Transform(
        "remat",
        lambda f, x, d, w, flag: jax.checkpoint(f)(x),
        lambda F, T, X, D, W: F(X),
    ),
    Transform(
        "jvp",
        lambda f, x, d, w, flag: jax.jvp(f, (x,), (d,)),
        lambda F, T, X, D, W: (F(X), F(D)),
        derives=True,
    ),
    Transform(
        "grad",
        lambda f, x, d, w, flag: jax.grad(_weighed(f, w))(x),
        lambda F, T, X, D, W: T(W),
        derives=True,
    ),
    Transform(
        "grad-of-remat",
        lambda f, x, d, w, flag: _grad_of_remat(f, x, w),
        lambda F, T, X, D, W: T(2 * W * F(X)),
        derives=True,
        once=True,
    ),
    Transform(
        "grad-of-scan",
        lambda f, x, d, w, flag: _grad_of_scan(f, x, d, w),
        lambda F, T, X, D, W: 6 * T(W),
        derives=True,
        once=True,
    ),
    Transform(
        "grad-of-cond",
        lambda f, x, d, w, flag: _grad_of_cond(f, x, w, flag),
        lambda F, T, X, D, W: T(W),
        derives=True,
        once=True,
    ),
    Transform(
        "vmap-of-grad",
        lambda f, x, d, w, flag: _vmap_of_grad(f, x, w),
        lambda F, T, X, D, W: np.stack([T(W), 2 * T(W)], -1),
        derives=True,
        once=True,
    ),
    Transform(
        "custom-vjp",
        lambda f, x, d, w, flag: _custom_vjp(f, x, w),
        lambda F, T, X, D, W: 2 * T(W),
        derives=True,
        once=True,
    ),
)

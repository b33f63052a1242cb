"""Makes test tensors for codec benchmarks by training a small transformer.

    python -m jaxccomp.bench.tensors FOLDER [--steps 300]

A byte-level language model is trained on the source text of the standard library. Saved as flat
``.npy`` files (all parameters concatenated): weights after the last step, one and four steps
before, gradients, both Adam moments and activations. The model is trained once, with bfloat16
weights and a float32 master copy, from which the float32 files are made. ``.npy`` has no bfloat16:
files named ``*_bfloat16.npy`` hold its bits as ``uint16``.
"""

from __future__ import annotations

import argparse
import pathlib
import sysconfig
from collections.abc import Iterator
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

__all__ = [
    "Training",
    "flat",
    "save",
    "train",
]

WIDTH, LAYERS, HEADS, CONTEXT, BATCH = 192, 4, 4, 64, 8
INIT = nn.initializers.normal(0.02)  # usual for language models


class _Block(nn.Module):
    """Attention and a feed-forward layer, each after a layer normalisation."""

    @nn.compact
    def __call__(self, x: jax.Array, mask: jax.Array) -> jax.Array:
        """One layer; ``x`` has the shape (batch, place, width)."""
        attend = nn.MultiHeadDotProductAttention(
            num_heads=HEADS, dtype=jnp.bfloat16, kernel_init=INIT
        )
        x = x + attend(nn.LayerNorm(dtype=jnp.bfloat16)(x), mask=mask)
        h = nn.Dense(4 * WIDTH, dtype=jnp.bfloat16, kernel_init=INIT)(
            nn.LayerNorm(dtype=jnp.bfloat16)(x)
        )
        self.sow("intermediates", "hidden", h)
        return x + nn.Dense(WIDTH, dtype=jnp.bfloat16, kernel_init=INIT)(nn.gelu(h))


class _Model(nn.Module):
    """Next-byte prediction; computes in bfloat16."""

    @nn.compact
    def __call__(self, text: jax.Array) -> jax.Array:
        """Logits of the next byte after each of ``text``, of shape (batch, place, 256)."""
        x = nn.Embed(256, WIDTH, dtype=jnp.bfloat16, embedding_init=INIT)(text)
        place = nn.Embed(CONTEXT, WIDTH, dtype=jnp.bfloat16, embedding_init=INIT)
        x = x + place(jnp.arange(text.shape[1]))
        mask = nn.make_causal_mask(text)
        for layer in range(LAYERS):
            x = _Block(name=f"Block_{layer}")(x, mask)
        return nn.Dense(256, dtype=jnp.bfloat16, kernel_init=INIT)(
            nn.LayerNorm(dtype=jnp.bfloat16)(x)
        )


def _corpus() -> np.ndarray:
    folder = pathlib.Path(sysconfig.get_paths()["stdlib"])
    text = b"".join(path.read_bytes() for path in sorted(folder.glob("[a-f]*.py")))
    return np.frombuffer(text, np.uint8).astype(np.int32)


def _batches(seed: int) -> Iterator[np.ndarray]:
    corpus, random = _corpus(), np.random.default_rng(seed)
    while True:
        starts = random.integers(0, len(corpus) - CONTEXT - 1, BATCH)
        yield np.stack([corpus[start : start + CONTEXT + 1] for start in starts])


def _cast(tree: Any, dtype: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf.astype(dtype), tree)


def flat(tree: Any) -> np.ndarray:
    """All leaves, flat and concatenated."""
    return np.concatenate([np.asarray(leaf).reshape(-1) for leaf in jax.tree.leaves(tree)])


class Training:
    """A model and the optimizer's state; callers may save and restore both."""

    def __init__(self, seed: int = 0) -> None:
        """Initialises weights and draws text from a seed."""
        self.model: Any = _Model()
        self._batches = _batches(seed)
        self.first: np.ndarray = next(self._batches)[:, :-1]
        self._optimizer = optax.inject_hyperparams(optax.adamw)(learning_rate=0.0)
        self.master: Any = self.model.init(jax.random.key(seed), self.first)["params"]
        self.state: Any = self._optimizer.init(self.master)
        self._jitted = jax.jit(self._step)

    def _loss(self, params: Any, text: jax.Array) -> jax.Array:
        logits = jnp.asarray(self.model.apply({"params": params}, text[:, :-1]), jnp.float32)
        return optax.softmax_cross_entropy_with_integer_labels(logits, text[:, 1:]).mean()

    def _step(
        self, master: Any, state: Any, text: jax.Array, rate: jax.Array
    ) -> tuple[Any, Any, Any, jax.Array]:
        loss, grads = jax.value_and_grad(self._loss)(_cast(master, jnp.bfloat16), text)
        state.hyperparams["learning_rate"] = rate
        updates, state = self._optimizer.update(_cast(grads, jnp.float32), state, master)
        return optax.apply_updates(master, updates), state, grads, loss

    def step(self, rate: float) -> tuple[Any, float]:
        """Runs a step with this learning rate; returns gradients, and the loss before the step."""
        self.master, self.state, grads, loss = self._jitted(
            self.master, self.state, next(self._batches), jnp.float32(rate)
        )
        return grads, float(loss)


def _rate(step: int, steps: int) -> float:
    # High at first, so that a few hundred steps give realistic weights, then as low as at the end
    # of a long run.
    return 1e-3 * (1 - 0.94 * min(1.0, step / max(1, steps * 3 // 4)))


def train(steps: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Trains for ``steps`` steps; returns the tensors by name, which ends with the dtype."""
    training = Training(seed)
    before = earlier = grads = training.master
    for number in range(steps):
        before = training.master
        if number == steps - 4:
            earlier = before
        grads, loss = training.step(_rate(number, steps))
        if number % 50 == 0 or number == steps - 1:
            print(f"step {number}: loss {loss:.3f}")

    master = training.master
    _, sown = training.model.apply({"params": master}, training.first, mutable="intermediates")
    adam = training.state.inner_state[0]
    weights, previous = flat(master), flat(before)
    return {
        "weights_float32": weights,
        "previous_weights_float32": previous,
        "gradients_float32": flat(_cast(grads, jnp.float32)),  # bfloat16 values, as JAX casts do
        "adam_mu_float32": flat(adam.mu),
        "adam_nu_float32": flat(adam.nu),
        "weights_bfloat16": weights.astype(jnp.bfloat16),
        "previous_weights_bfloat16": previous.astype(jnp.bfloat16),
        "weights_4_steps_before_bfloat16": flat(earlier).astype(jnp.bfloat16),
        "gradients_bfloat16": flat(grads),
        "activations_bfloat16": flat(sown),
        "weights_float16": weights.astype(np.float16),
        "weights_float64": weights.astype(np.float64),
    }


def save(tensors: dict[str, np.ndarray], folder: pathlib.Path) -> None:
    """Writes one ``.npy`` per tensor."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, values in tensors.items():
        bits = values.view(np.uint16) if values.dtype == jnp.bfloat16 else values
        np.save(folder / f"{name}.npy", bits)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Makes test tensors by training a transformer.")
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--steps", type=int, default=300)
    arguments = parser.parse_args()
    save(train(arguments.steps), arguments.folder)


if __name__ == "__main__":
    main()

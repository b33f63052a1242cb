r"""Trains a transformer with pipeline and tensor parallelism.

    mpiexec -n 4 python examples/tensor_pipeline.py
    mpiexec -n 4 python examples/tensor_pipeline.py --tensor 4 --codec lossless
    XLA_FLAGS=--xla_force_host_platform_device_count=4 python examples/tensor_pipeline.py --mesh

Pipeline: ranks form stages with equal numbers of layers. `jaxccomp.sendrecv` passes micro-batches
to the next stage, and cotangents back (GPipe: Huang et al. 2019, arXiv 1811.06965). Tensor: each
rank of a stage has a part of the heads and hidden units, and between the matrix products a part of
the tokens (Megatron-LM: Korthikanti et al. 2022, arXiv 2205.05198). `jaxccomp.allgather` collects
all tokens before a product, `jaxccomp.reduce_scatter` sums the products. Embeddings and readout are
replicated; `jaxccomp.allreduce` sums their gradients.

All ranks run the same program, between processes or, with --mesh, along the axes of a mesh of all
devices. It trains without compression and with it, and compares the two.
"""

import argparse
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import byte_transformer
import digits
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxccomp as jcc

Exchange = Callable[[jax.Array], jax.Array]
# How each parameter's axes are divided; the first axis is the layers.
OWN = {
    "qkv": P("stage", None, None, "part"),
    "out": P("stage", "part"),
    "up": P("stage", None, "part"),
    "down": P("stage", "part"),
}
SPECS = {"own": OWN, "shared": {"embed": P(), "places": P(), "readout": P()}}


class Ranks(NamedTuple):
    """The numbers of stages and parts, and keyword arguments that select groups of ranks.

    Attributes:
      stages: number of stages.
      parts: number of parts of each layer.
      of_stage: arguments for the ranks with the same layers.
      of_part: arguments for the ranks with the same heads, one per stage, in stage order.
      everyone: arguments for all ranks.
    """

    stages: int
    parts: int
    of_stage: dict[str, Any]
    of_part: dict[str, Any]
    everyone: dict[str, Any]


def init(options: argparse.Namespace) -> dict[str, Any]:
    """The parameters of all ranks."""
    features, width, heads, depth = options.features, options.width, options.heads, options.depth
    random = np.random.default_rng(0)

    def normal(scale: float, *shape: int) -> np.ndarray:
        return (scale * random.standard_normal(shape)).astype(np.float32)

    of_features, size = features**-0.5, features // heads
    return {
        "own": {
            "qkv": normal(of_features, depth, features, 3, heads, size),
            "out": normal(0.3 * of_features, depth, heads, size, features),
            "up": normal(of_features, depth, features, width),
            "down": normal(0.3 * width**-0.5, depth, width, features),
        },
        "shared": {
            "embed": normal(0.5, 256, features),
            "places": normal(0.1, options.length, features),
            "readout": normal(of_features, features, 256),
        },
    }


def normalized(x: jax.Array) -> jax.Array:
    """Normalises the last axis to mean 0 and variance 1."""
    x = x - x.mean(-1, keepdims=True)
    return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5)


def layer(x: jax.Array, weights: Any, all_tokens: Exchange, added_up: Exchange) -> jax.Array:
    """A transformer layer: causal attention and two dense layers.

    Args:
      x: (batch, tokens of this rank, features).
      weights: weights of this rank's heads and hidden units.
      all_tokens: gathers x from all ranks of the stage, to (batch, tokens, features).
      added_up: sums such values over the ranks of the stage; returns this rank's tokens.
    """
    query, key, value = jnp.einsum("bnf,fkhd->kbhnd", all_tokens(normalized(x)), weights["qkv"])
    scores = jnp.einsum("bhqd,bhkd->bhqk", query, key) * query.shape[-1] ** -0.5
    past = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    mixed = jnp.einsum("bhqk,bhkd->bqhd", jax.nn.softmax(jnp.where(past, scores, -1e9)), value)
    x = x + added_up(jnp.einsum("bqhd,hdf->bqf", mixed, weights["out"]))
    hidden = jax.nn.gelu(all_tokens(normalized(x)) @ weights["up"])
    return x + added_up(hidden @ weights["down"])


def logits_of(
    params: Any, text: jax.Array, place: Any, ranks: Ranks, codec: str | None
) -> jax.Array:
    """Logits of this rank's tokens of each micro-batch; only meaningful in the last stage.

    Args:
      params: this rank's parameters.
      text: (micro-batches, batch, tokens of this rank), the same in all stages.
      place: the numbers of this rank's stage and part.
      ranks: the groups of ranks.
      codec: the codec of all exchanges.
    """
    number, part = place
    stages, parts = ranks.stages, ranks.parts
    batches, batch, mine = text.shape

    def all_tokens(x: jax.Array) -> jax.Array:
        whole = jcc.allgather(x, codec=codec, **ranks.of_stage)
        return jnp.moveaxis(whole, 0, 1).reshape(batch, parts * mine, -1)

    def added_up(x: jax.Array) -> jax.Array:
        rows = jnp.moveaxis(x.reshape(batch, parts, mine, -1), 1, 0)
        return jcc.reduce_scatter(rows, codec=codec, **ranks.of_stage)

    def stage(x: jax.Array) -> jax.Array:
        def body(x: jax.Array, weights: Any) -> tuple[jax.Array, None]:
            return layer(x, weights, all_tokens, added_up), None

        return jax.lax.scan(body, x, params["own"])[0]

    def to_next(x: jax.Array) -> Any:
        return jcc.sendrecv(
            x,
            dest=lambda rank: rank + 1 if rank + 1 < stages else None,
            source=lambda rank: rank - 1 if rank else None,
            codec=codec,
            **ranks.of_part,
        )

    shared = params["shared"]
    places = jax.lax.dynamic_slice_in_dim(shared["places"], part * mine, mine)
    begun = shared["embed"][text] + places
    results = []
    arrived = jnp.zeros_like(begun[0])
    for tick in range(batches + stages - 1):
        # After the last micro-batch the first stage repeats it; the results are never used.
        x = stage(jnp.where(number == 0, begun[min(tick, batches - 1)], arrived))
        if tick >= stages - 1:
            results.append(normalized(x) @ shared["readout"])
        if tick < batches + stages - 2 and stages > 1:
            arrived = to_next(x)
    return jnp.stack(results)


def programs_of(
    ranks: Ranks, optimizer: Any, codec: str | None
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The functions of a rank: a training epoch, and a test.

    Both take this rank's parameters and the numbers of its stage and part. These numbers must be
    operands: with constants XLA would see that the first stage ignores received values, and would
    remove an operation there for which other ranks wait.
    """

    def seen_by_last(
        params: Any,
        place: Any,
        text: jax.Array,
        following: jax.Array,
        measure: Callable[[jax.Array, jax.Array], jax.Array],
    ) -> jax.Array:
        """This rank's share of a mean over all tokens; zero except in the last stage."""
        stage, part = place
        mine = text.shape[2] // ranks.parts
        own = functools.partial(
            jax.lax.dynamic_slice_in_dim, start_index=part * mine, slice_size=mine, axis=2
        )
        logits = logits_of(params, own(text), place, ranks, codec)
        values = measure(logits, own(following))
        return jnp.where(stage == ranks.stages - 1, values.sum(), 0.0) / text.size

    def epoch(params: Any, state: Any, place: Any, batches: Any) -> tuple[Any, Any, jax.Array]:
        def step(carry: Any, batch: Any) -> tuple[Any, jax.Array]:
            params, state = carry
            # The objective is the sum of all ranks' shares. For "own" parameters, the transposes of
            # the collectives already give the full gradient; "shared" ones need a sum over ranks.
            loss, grads = jax.value_and_grad(seen_by_last)(
                params, place, *batch, optax.softmax_cross_entropy_with_integer_labels
            )
            grads["shared"] = jcc.allreduce(grads["shared"], codec=codec, **ranks.everyone)
            updates, state = optimizer.update(grads, state, params)
            return (optax.apply_updates(params, updates), state), loss

        (params, state), losses = jax.lax.scan(step, (params, state), batches)
        return params, state, jcc.allreduce(losses.mean(), **ranks.everyone)

    def accuracy(params: Any, place: Any, text: jax.Array, following: jax.Array) -> jax.Array:
        right = seen_by_last(
            params, place, text, following, lambda logits, y: logits.argmax(-1) == y
        )
        return jcc.allreduce(right, **ranks.everyone)

    return epoch, accuracy


def train(
    world: jcc.Communicator, data: Any, options: argparse.Namespace, codec: str | None
) -> digits.Results:
    """Yields loss and accuracy after every epoch; communicates between processes."""
    stages, parts = divided(options, world.size)
    stage, part = divmod(world.rank, parts)
    of_stage, of_part = world.split(stage), world.split(part)
    ranks = Ranks(stages, parts, {"comm": of_stage}, {"comm": of_part}, {"comm": world})
    shares = {"stage": (stages, stage), "part": (parts, part)}

    def own(x: np.ndarray, spec: P) -> jax.Array:
        for axis, name in enumerate(spec):
            if name:
                count, number = shares[name]
                x = np.split(x, count, axis)[number]
        return jnp.asarray(x)

    optimizer = optax.adam(3e-3)
    params = jax.tree.map(own, init(options), SPECS)
    epoch, accuracy = map(jax.jit, programs_of(ranks, optimizer, codec))
    place = jnp.asarray([stage, part])
    yield from epochs(
        lambda *state: epoch(*state, place, data[0]),
        lambda params: accuracy(params, place, *data[1]),
        params,
        optimizer.init(params),
    )


def train_on_mesh(
    world: jcc.Communicator, data: Any, options: argparse.Namespace, codec: str | None
) -> digits.Results:
    """Like `train`, along the axes of a mesh of all devices of all processes."""
    del world
    stages, parts = divided(options, jax.device_count())
    mesh = jax.make_mesh((stages, parts), ("stage", "part"), (AxisType.Auto,) * 2)
    of_stage, of_part, everyone = (
        {"axis_name": name} for name in ("part", "stage", ("stage", "part"))
    )
    ranks = Ranks(stages, parts, of_stage, of_part, everyone)
    optimizer = optax.adam(3e-3)
    placed_as = functools.partial(jax.tree.map, functools.partial(NamedSharding, mesh))
    # Each process makes only its devices' shards.
    params = jax.tree.map(
        lambda x, s: jax.make_array_from_callback(x.shape, s, lambda part: x[part]),
        init(options),
        placed_as(SPECS),
    )
    of_state = optax.tree.map_params(
        optimizer,
        lambda _, spec: spec,
        jax.eval_shape(optimizer.init, params),
        SPECS,
        transform_non_params=lambda _: P(),
    )

    def along(program: Callable[..., Any], in_specs: Any, out_specs: Any) -> Callable[..., Any]:
        def placed(params: Any, *others: Any) -> Any:
            place = [jax.lax.axis_index(axis) for axis in mesh.axis_names]
            *state, values = others
            return program(params, *state, place, *values)

        return jax.jit(
            jax.shard_map(
                placed, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False
            )
        )

    epoch, accuracy = programs_of(ranks, optimizer, codec)
    epoch = along(epoch, (SPECS, of_state, P()), (SPECS, of_state, P()))
    accuracy = along(accuracy, (SPECS, P()), P())
    yield from epochs(
        lambda *state: epoch(*state, [data[0]]),
        lambda params: accuracy(params, list(data[1])),
        params,
        jax.jit(optimizer.init, out_shardings=placed_as(of_state))(params),
    )


def epochs(
    epoch: Callable[..., Any], accuracy: Callable[[Any], jax.Array], params: Any, state: Any
) -> digits.Results:
    """Yields loss and accuracy for `digits.compare`."""
    while True:
        params, state, loss = epoch(params, state)
        yield {"loss": loss, "accuracy": accuracy(params)}


def divided(options: argparse.Namespace, size: int) -> tuple[int, int]:
    """The numbers of stages, and of ranks of a stage; exits if the options do not fit ``size``."""
    parts = options.tensor or (2 if size % 2 == 0 else 1)
    if parts < 1 or size % parts:
        parser().error(f"--tensor must divide the {size} ranks, {parts} does not")
    stages = size // parts
    for name, count in (("heads", parts), ("width", parts), ("length", parts), ("depth", stages)):
        if getattr(options, name) % count:
            parser().error(
                f"--{name} must be a multiple of {count}, with {stages} stages of {parts} ranks"
            )
    if options.features % options.heads:
        parser().error(f"--features must be a multiple of the {options.heads} heads")
    return stages, parts


def load(world: jcc.Communicator, options: argparse.Namespace) -> tuple[Any, Any]:
    """Micro-batches for training and for the test, the same on all ranks."""
    del world
    text = byte_transformer.library()
    training, test = text[: -len(text) // 10], text[-len(text) // 10 :]
    random = np.random.default_rng(0)

    def pieces(part: np.ndarray, *shape: int) -> tuple[np.ndarray, ...]:
        begins = random.integers(0, len(part) - options.length - 1, int(np.prod(shape)))
        x, y = byte_transformer.windows(part, begins, options.length)
        return tuple(each.reshape(*shape, options.length) for each in (x, y))

    shape = (options.micro_batches, options.batch)
    return pieces(training, options.steps, *shape), pieces(test, *shape)


def parser() -> argparse.ArgumentParser:
    """The program's options."""
    parser = digits.parser(__doc__, codec="bf16")
    parser.add_argument("--tensor", type=int, help="ranks of a stage (2 where they are even)")
    parser.add_argument("--micro-batches", type=int, default=4, help="of a step (%(default)s)")
    parser.add_argument("--steps", type=int, default=20, help="of an epoch (%(default)s)")
    parser.add_argument("--features", type=int, default=64, help="of a byte (%(default)s)")
    parser.add_argument("--heads", type=int, default=4, help="of attention (%(default)s)")
    parser.add_argument("--depth", type=int, default=4, help="layers (%(default)s)")
    parser.add_argument("--length", type=int, default=32, help="bytes of a piece (%(default)s)")
    parser.add_argument("--mesh", action="store_true", help="along axes, on all devices")
    return parser


def main() -> None:
    """Trains without compression and with it."""
    options = parser().parse_args()
    world = jcc.init()
    data = load(world, options)
    run = train_on_mesh if options.mesh else train
    programs = {
        "uncompressed": lambda: run(world, data, options, None),
        options.codec: lambda: run(world, data, options, options.codec),
    }
    digits.compare(world, options.epochs, programs)


if __name__ == "__main__":
    main()

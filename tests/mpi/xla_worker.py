"""Programs of jit with shardings: `python xla_worker.py CASE`, in processes of jax.distributed.

XLA_WORKER gives "address process processes devices". The results are printed as JSON: for each
array the CRC of its local shards, so that runs with different collectives can be compared.
"""

import json
import os
import signal
import sys
import time
import zlib

import jax

ADDRESS, PROCESS, PROCESSES, DEVICES = os.environ["XLA_WORKER"].split()
jax.config.update("jax_num_cpu_devices", int(DEVICES))
jax.config.update("jax_enable_x64", True)
jax.distributed.initialize(ADDRESS, int(PROCESSES), int(PROCESS))

import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax.sharding import Mesh, NamedSharding  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402

FOUND = {}


def report(name, array):
    """Record the values of an array's local shards."""
    shards = sorted(array.addressable_shards, key=lambda shard: shard.device.id)
    FOUND[name] = [zlib.crc32(np.ascontiguousarray(shard.data).tobytes()) for shard in shards]


def put(values, sharding):
    return jax.make_array_from_callback(values.shape, sharding, lambda index: values[index])


def meshes():
    devices = np.array(jax.devices())
    yield "line", Mesh(devices, ("x",))
    if len(devices) >= 4:
        yield "square", Mesh(devices.reshape(2, -1), ("x", "y"))
        yield "turned", Mesh(devices.reshape(2, -1)[::-1].T, ("x", "y"))


def values(dtype, shape, seed=0):
    random = np.random.default_rng(seed)
    if np.issubdtype(dtype, np.complexfloating):
        return (random.integers(-9, 9, shape) + 1j * random.integers(-9, 9, shape)).astype(dtype)
    return random.integers(0, 9, shape).astype(dtype)


def resharding():
    """Every pair of layouts of a matrix: gathers, permutes and all-to-all.

    On a line of devices each pair is a program of its own.
    """
    for rows in (48, 3072):  # small programs run on the main thread, large ones on a pool
        matrix = values(np.float32, (rows, 96))
        for mesh_name, mesh in meshes():
            names = [None, *mesh.axis_names]
            specs = [P(a, b) for a in names for b in names if a is None or a != b]
            for number, before in enumerate(specs):
                x = put(matrix, NamedSharding(mesh, before))
                others = specs[:number] + specs[number + 1 :]
                programs = [others] if len(mesh.axis_names) > 1 else [[each] for each in others]
                for together in programs:
                    move = jax.jit(
                        lambda x, together=together: [x + i for i, _ in enumerate(together, 1)],
                        out_shardings=[NamedSharding(mesh, after) for after in together],
                    )
                    for after, moved in zip(together, move(x), strict=True):
                        report(f"{mesh_name} {rows} {before} to {after}", moved)


def reductions():
    """Sums, products, minima and maxima of every type, whole and scattered."""
    for dtype in ("float32", "float64", "int8", "int32", "uint8", "uint64", "complex64", "bool_"):
        matrix = values(np.dtype(dtype), (48, 96))
        for mesh_name, mesh in meshes():
            x = put(matrix, NamedSharding(mesh, P("x")))
            kinds = {"sum": jnp.sum, "any": jnp.any}
            if dtype not in ("complex64", "bool_"):
                kinds |= {"prod": jnp.prod, "min": jnp.min, "max": jnp.max}
            cases = [(kind, after) for kind in kinds for after in (P(), P("x"))]
            totals = jax.jit(
                lambda x, cases=cases, kinds=kinds: [kinds[kind](x, axis=0) for kind, _ in cases],
                out_shardings=[NamedSharding(mesh, after) for _, after in cases],
            )
            for (kind, after), total in zip(cases, totals(x), strict=True):
                report(f"{mesh_name} {dtype} {kind} {after}", total)


def training():
    """A network with two layers: data and tensor parallel, for some steps."""
    for mesh_name, mesh in meshes():
        second = mesh.axis_names[-1]
        random = np.random.default_rng(1)
        first = put(random.normal(size=(64, 256)), NamedSharding(mesh, P(None, second)))
        last = put(random.normal(size=(256, 64)), NamedSharding(mesh, P(second, None)))
        data = put(random.normal(size=(128, 64)), NamedSharding(mesh, P("x")))

        @jax.jit
        def step(weights, x):
            def loss(weights):
                return jnp.mean((jnp.tanh(x @ weights[0]) @ weights[1] - x) ** 2)

            gradients = jax.grad(loss)(weights)
            return [w - 0.01 * g for w, g in zip(weights, gradients, strict=True)]

        weights = [first, last]
        for _ in range(5):
            weights = step(weights, data)
        for number, each in enumerate(weights):
            # The order of a sum differs between implementations.
            rounded = jax.jit(lambda w: jnp.round(w, 6), out_shardings=each.sharding)(each)
            report(f"{mesh_name} weights {number}", rounded)


def summing():
    """Return a sum over all devices as a program of jit with shardings, and its operand."""
    mesh = Mesh(np.array(jax.devices()), ("x",))
    x = put(np.ones((len(jax.devices()), 1000), np.float32), NamedSharding(mesh, P("x")))
    return jax.jit(lambda x: jnp.sum(x, axis=0), out_shardings=NamedSharding(mesh, P())), x


def hears(program, x, others=()):
    """Record the error with which the program fails, and the seconds until then.

    Process 0, whose end would end the others by JAX's service, waits for these others.
    """
    begun = time.monotonic()
    try:
        while True:
            program(x).block_until_ready()
    except Exception as error:  # noqa: BLE001 - only its text is used
        FOUND["error"] = str(error)
    FOUND["seconds"] = time.monotonic() - begun
    print(json.dumps(FOUND) + "\n", end="", flush=True)
    if others:
        from jaxccomp import _jax

        client = _jax.distributed_client()
        if PROCESS != "0":
            client.key_value_set(f"heard by {PROCESS}", "an error")
        for each in others if PROCESS == "0" else ():
            _jax.stored(client, f"heard by {each}", 60)
    os._exit(7)  # JAX's own exit waits for the lost process


def killed():
    program, x = summing()
    program(x).block_until_ready()
    if PROCESS == "1":
        os.kill(os.getpid(), signal.SIGKILL)
    hears(program, x, others=(2,))


def paused():
    """Process 1 is stopped from outside while the program runs, and continued later."""
    program, x = summing()
    program(x).block_until_ready()
    if PROCESS == "1":
        print("ready", flush=True)
    hears(program, x, others=(1,))


def raises():
    program, x = summing()
    program(x).block_until_ready()
    if PROCESS == "1":
        raise ValueError("on purpose")
    hears(program, x)


def exits():
    program, x = summing()
    program(x).block_until_ready()
    if PROCESS == "1":
        return
    hears(program, x)


def differs():
    """The processes sum arrays of different sizes."""
    mesh = Mesh(np.array(jax.devices()), ("x",))
    size = 1000 + 8 * int(PROCESS)
    x = put(np.ones((len(jax.devices()), size), np.float32), NamedSharding(mesh, P("x")))
    add = jax.jit(lambda x: jnp.sum(x, axis=0), out_shardings=NamedSharding(mesh, P()))
    hears(add, x, others=(1,))


def fails():
    """The program raises an error before it computes."""
    try:
        summing()[0](summing()[1])
    except Exception as error:  # noqa: BLE001 - only its text is used
        FOUND["error"] = str(error)


def kinds():
    """One process gathers where the other one sums."""
    mesh = Mesh(np.array(jax.devices()), ("x",))
    x = put(np.ones((len(jax.devices()), 1000), np.float32), NamedSharding(mesh, P("x")))
    of_one = [lambda x: jnp.sum(x, axis=0), lambda x: x + 1][int(PROCESS) % 2]
    hears(jax.jit(of_one, out_shardings=NamedSharding(mesh, P())), x, others=(1,))


def stopped():
    """Process 1 computes, and is late for its deadline."""
    program, x = summing()
    program(x).block_until_ready()
    if PROCESS == "1":
        time.sleep(30)
        os._exit(0)
    hears(program, x)


def unconnected():
    """Without `import jaxccomp`, the first collective says what to do."""
    assert "jaxccomp" not in sys.modules
    hears(*summing(), others=(1,))


def late():
    """`import jaxccomp` after the first collective."""
    program, x = summing()
    try:
        program(x).block_until_ready()
    except Exception as error:  # noqa: BLE001 - only its text is used
        FOUND["before"] = str(error)
    import jaxccomp  # noqa: F401

    hears(program, x, others=(1,))


def records():
    """The engine's statistics have the operations."""
    import jaxccomp

    training()
    FOUND.clear()
    for row in jaxccomp.stats.log().rows:
        name = " ".join([row.operation, row.operands, row.codec])
        ratio = row.remote_bytes / row.operand_bytes
        FOUND[name] = {"ratio": ratio, "where": row.where, "calls": row.calls}


def large():
    """A block of 2 GiB: XLA's counts overflow."""
    mesh = Mesh(np.array(jax.devices()), ("x",))
    shape = jax.ShapeDtypeStruct(
        (len(jax.devices()) << 31,), np.int8, sharding=NamedSharding(mesh, P("x"))
    )
    gather = jax.jit(lambda x: x + 1, out_shardings=NamedSharding(mesh, P()))
    try:
        gather.lower(shape).compile()
    except Exception as error:  # noqa: BLE001 - only its text is used
        FOUND["error"] = str(error)


for case in sys.argv[1].split(","):
    globals()[case]()
print(json.dumps(FOUND) + "\n", end="", flush=True)

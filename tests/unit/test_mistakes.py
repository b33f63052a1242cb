"""Mistakes of a first hour: each is a clear error, which names what was given and what to do.

A row has the mistake, the class of the error, and words of its text: the function or option, what
was given, and what is allowed or the remedy. tests/golden/errors.txt has the whole texts. Mistakes
that need several ranks are in tests/mpi/ranks/test_errors.py.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from golden_errors import check_text, raises
from jax.experimental import sparse
from jax.sharding import Mesh, PartitionSpec

import jaxccomp as jcc
from jaxccomp import codecs, config, errors, optim, sync
from jaxccomp.cli import main
from jaxccomp.compat import mpi4jax

optax = pytest.importorskip("optax")

X = jnp.ones(4, jnp.float32)
PARAMS = {"layer": {"w": jnp.ones((4, 3), jnp.float32), "b": jnp.ones(3, jnp.float32)}}


def mesh():
    return Mesh(np.asarray(jax.devices()[:1]), ("d",))


def along(function, x=X):
    """Run a function along the axis "d" of one device."""
    jax.shard_map(
        function,
        mesh=mesh(),
        in_specs=PartitionSpec(),
        out_specs=PartitionSpec(),
        check_vma=False,
    )(x)


def bcoo():
    return sparse.BCOO.fromdense(X)


def ended_handle():
    handle = jcc.nonblocking(jcc.bcast)(X)
    handle.wait()
    return handle


def updated(transformation, state=None, updates=PARAMS):
    state = transformation.init(PARAMS) if state is None else state
    return transformation.update(updates, state)


OPERATIONS = {
    "op of torch": (
        lambda: jcc.allreduce(X, op="avg"),
        errors.UnknownNameError,
        ("allreduce", "'avg'", "Did you mean 'mean'?"),
    ),
    "op in capitals": (
        lambda: jcc.allreduce(X, op="SUM"),
        errors.UnknownNameError,
        ("allreduce", "'SUM'", "Did you mean 'sum'?"),
    ),
    "codec in the place of op": (
        lambda: jcc.allreduce(X, "int8"),
        errors.UnknownNameError,
        ("allreduce", "'int8' is a codec", "codec='int8'"),
    ),
    "mean of a scan": (
        lambda: jcc.scan(X, op="mean"),
        errors.UnknownNameError,
        ("scan", "'mean'", "'sum'"),
    ),
    "codec fp8": (
        lambda: jcc.bcast(X, codec="fp8"),
        errors.UnknownNameError,
        ("codec", "'fp8'", "Did you mean 'fp8_e4m3'?"),
    ),
    "codec none": (
        lambda: jcc.bcast(X, codec="none"),
        errors.UnknownNameError,
        ("codec", "'none'", "Did you mean 'raw'?"),
    ),
    "codec of a number": (
        lambda: jcc.bcast(X, codec=8),
        errors.InvalidArgumentError,
        ("codec", "8 (int)", "None, a string or a codec spec"),
    ),
    "cotangent_codec": (
        lambda: jcc.allreduce(X, cotangent_codec="int9"),
        errors.UnknownNameError,
        ("'int9'", "Did you mean 'int8'?"),
    ),
    "backend nccl": (
        lambda: jcc.allreduce(X, backend="nccl"),
        errors.UnknownNameError,
        ("backend", "'nccl'", "Did you mean 'xla'?"),
    ),
    "backend xla between processes": (
        lambda: jcc.allreduce(X, backend="xla"),
        errors.InvalidArgumentError,
        ("allreduce", 'backend="xla"', "axis_name="),
    ),
    "backend mpi with a codec": (
        lambda: jcc.allreduce(X, backend="mpi", codec="int8"),
        errors.InvalidArgumentError,
        ('backend="mpi"', "codec=None", "'int8'", '"native"'),
    ),
    "backend mpi with a reference": (
        lambda: jcc.bcast(X, backend="mpi", ref=X, codec="lossless"),
        errors.InvalidArgumentError,
        ('backend="mpi"', "ref=", '"native"'),
    ),
    "algorithm": (
        lambda: jcc.allreduce(X, algorithm="rign"),
        errors.UnknownNameError,
        ("algorithm of allreduce", "'rign'", "Did you mean 'ring'?"),
    ),
    "algorithm of another operation": (
        lambda: jcc.allreduce(X, algorithm="chain"),
        errors.UnknownNameError,
        ("algorithm of allreduce", "'chain'", "'ring'"),
    ),
    "option of an algorithm": (
        lambda: jcc.allreduce(X, algorithm="ring:chunk=x"),
        errors.InvalidArgumentError,
        ("allreduce", "ring:chunk=x", "number of bytes from 64"),
    ),
    "algorithm with xla": (
        lambda: along(lambda x: jcc.bcast(x, axis_name="d", backend="xla", algorithm="chain")),
        errors.UnknownNameError,
        ("algorithm of bcast", "'chain'", "XLA chooses the algorithm"),
    ),
    "keyword codecs": (
        lambda: jcc.allreduce(X, codecs="int8"),
        errors.UnknownKeywordError,
        ("allreduce", "'codecs'", "Did you mean 'codec'?"),
    ),
    "keyword axis": (
        lambda: jcc.allreduce(X, axis="d"),
        errors.UnknownKeywordError,
        ("allreduce", "'axis'", "Did you mean 'axis_name'?"),
    ),
    "keyword name": (
        lambda: jcc.allreduce(X, name="grads"),
        errors.UnknownKeywordError,
        ("allreduce", "'name'"),
    ),
    "axis and communicator": (
        lambda: along(lambda x: jcc.bcast(x, axis_name="d", comm=jcc.world())),
        errors.InvalidArgumentError,
        ("bcast", "axis_name=", "comm=", "not both"),
    ),
    "unknown axis": (
        lambda: jcc.allreduce(X, axis_name="data"),
        errors.UnknownAxisError,
        ("allreduce", "'data'", "(none)", "jax.shard_map"),
    ),
    "no axis": (
        lambda: along(lambda x: jcc.allreduce(x, axis_name=())),
        errors.InvalidArgumentError,
        ("allreduce", "axis_name", "one or more", "not ()"),
    ),
    "groups without an axis": (
        lambda: jcc.allreduce(X, axis_index_groups=[[0]]),
        errors.InvalidArgumentError,
        ("allreduce", "axis_index_groups=", "comm.split"),
    ),
    "incomplete groups": (
        lambda: along(lambda x: jcc.bcast(x, axis_name="d", axis_index_groups=[[1]])),
        errors.InvalidArgumentError,
        ("bcast", "axis_index_groups", "0 to 0", "[[1]]"),
    ),
    "root out of range": (
        lambda: jcc.bcast(X, root=1),
        errors.InvalidArgumentError,
        ("bcast", "root=1", "1 ranks"),
    ),
    "root of a bool": (
        lambda: jcc.bcast(X, root=True),
        errors.InvalidArgumentError,
        ("bcast", "root", "integer", "True"),
    ),
    "root of a float": (
        lambda: jcc.reduce(X, root=0.5),
        errors.InvalidArgumentError,
        ("reduce", "root", "integer", "0.5"),
    ),
    "root that is computed": (
        lambda: jax.jit(lambda root: jcc.bcast(X, root=root))(0),
        errors.InvalidArgumentError,
        ("bcast", "root", "known when tracing"),
    ),
    "comm of a number": (
        lambda: jcc.allreduce(X, comm=7),
        errors.CommunicatorError,
        ("comm", "jaxccomp.Communicator", "not 7"),
    ),
    "comm of a name": (
        lambda: jcc.allreduce(X, comm="world"),
        errors.CommunicatorError,
        ("comm", "jaxccomp.Communicator", "None for the world", "'world'"),
    ),
    "text as a leaf": (
        lambda: jcc.bcast({"a": X, "name": "model"}),
        errors.UnsupportedDTypeError,
        ("bcast", "'model'", "take it out"),
    ),
    "function as a leaf": (
        lambda: jcc.allreduce([X, len]),
        errors.UnsupportedDTypeError,
        ("allreduce", "builtin_function_or_method", "take it out"),
    ),
    "mean of integers": (
        lambda: jcc.allreduce(jnp.ones(3, jnp.int32), op="mean"),
        errors.UnsupportedDTypeError,
        ("allreduce", "'mean'", "int32", 'op="sum"'),
    ),
    "and of floats": (
        lambda: jcc.allreduce(X, op="and"),
        errors.UnsupportedDTypeError,
        ("allreduce", "'and'", "float32", "'sum'"),
    ),
    "sum of bool": (
        lambda: jcc.allreduce(jnp.ones(3, bool)),
        errors.UnsupportedDTypeError,
        ("allreduce", "'sum'", "bool", "integer type to count"),
    ),
    "sparse gradients": (
        lambda: jcc.allreduce({"w": bcoo()}, op="mean"),
        errors.ArgumentTypeError,
        ("allreduce", "['w']", "BCOO", "todense()"),
    ),
    "rows of alltoall": (
        lambda: jcc.alltoall(X),
        errors.InvalidArgumentError,
        ("alltoall", "one row per rank", "(4,)"),
    ),
    "rows of reduce_scatter": (
        lambda: jcc.reduce_scatter(X),
        errors.InvalidArgumentError,
        ("reduce_scatter", "one row per rank", "(4,)"),
    ),
    "rows of scatter": (
        lambda: jcc.scatter(jnp.float32(1)),
        errors.InvalidArgumentError,
        ("scatter", "one row per rank", "()"),
    ),
    "reference without a codec": (
        lambda: jcc.bcast(X, ref=X),
        errors.InvalidArgumentError,
        ("bcast", "ref=", "codec='lossless'"),
    ),
    "reference of another structure": (
        lambda: jcc.bcast({"w": X}, ref={"v": X}, codec="lossless"),
        errors.InvalidArgumentError,
        ("bcast", "ref=", "['w']", "not in ref"),
    ),
    "reference of another shape": (
        lambda: jcc.bcast(X, ref=X[:3], codec="lossless"),
        errors.InvalidArgumentError,
        ("bcast", "ref", "float32[4]", "float32[3]"),
    ),
    "counts of other ranks": (
        lambda: jcc.allgatherv(X, [2, 2]),
        errors.InvalidArgumentError,
        ("allgatherv", "counts", "(1,)", "[2, 2]"),
    ),
    "negative counts": (
        lambda: jcc.allgatherv(X, [-4]),
        errors.InvalidArgumentError,
        ("allgatherv", "counts", "non-negative", "[-4]"),
    ),
    "counts that are computed": (
        lambda: jax.jit(lambda counts: jcc.allgatherv(X, counts))(jnp.array([4])),
        errors.InvalidArgumentError,
        ("allgatherv", "counts", "ragged_all_to_all"),
    ),
    "rows that do not fit the counts": (
        lambda: jcc.allgatherv(X, [3]),
        errors.InvalidArgumentError,
        ("allgatherv", "3", "4"),
    ),
    "destination out of range": (
        lambda: jcc.send(X, dest=5),
        errors.InvalidArgumentError,
        ("send", "dest=5", "1 ranks"),
    ),
    "a list of destinations": (
        lambda: jcc.sendrecv(X, dest=[0, 1], source=0),
        errors.InvalidArgumentError,
        ("sendrecv", "dest", "one entry per rank", "2"),
    ),
    "second wait": (
        lambda: ended_handle().wait(),
        errors.InvalidArgumentError,
        ("wait()", "bcast", "keep the result"),
    ),
    "feedback of a maximum": (
        lambda: jcc.allreduce_with_feedback(X, jnp.zeros(4), op="max", codec="int8"),
        errors.InvalidArgumentError,
        ("allreduce_with_feedback", "'max'", "'sum'"),
    ),
    "residuals of another tree": (
        lambda: jcc.allreduce_with_feedback([X], [X, X], codec="int8"),
        errors.InvalidArgumentError,
        ("allreduce_with_feedback", "residual"),
    ),
}

LAX = {
    "psum of a constant over an unknown axis": (
        lambda: jcc.lax.psum(1, "q"),
        errors.UnknownAxisError,
        ("psum", "'q'", "(none)", "jax.shard_map"),
    ),
    "psum over an unknown axis": (
        lambda: along(lambda x: jcc.lax.psum(x, "q")),
        errors.UnknownAxisError,
        ("psum", "'q'", "'d'"),
    ),
    "pmean over an unknown axis": (
        lambda: along(lambda x: jcc.lax.pmean(x, "q")),
        errors.UnknownAxisError,
        ("'q'", "'d'"),
    ),
    "all_gather over an unknown axis": (
        lambda: along(lambda x: jcc.lax.all_gather(x, "q")),
        errors.UnknownAxisError,
        ("all_gather", "'q'", "'d'"),
    ),
    "keyword of psum": (
        lambda: along(lambda x: jcc.lax.psum(x, "d", codecs="int8")),
        errors.UnknownKeywordError,
        ("psum", "'codecs'", "Did you mean 'codec'?"),
    ),
    "codec of psum": (
        lambda: along(lambda x: jcc.lax.psum(x, "d", codec="int7")),
        errors.UnknownNameError,
        ("'int7'", "Did you mean 'int8'?"),
    ),
    "destination twice": (
        lambda: along(lambda x: jcc.lax.ppermute(x, "d", [(0, 0), (0, 0)])),
        (errors.InvalidArgumentError, ValueError),
        ("ppermute", "(0, 0)"),
    ),
    "rank of ppermute": (
        lambda: along(lambda x: jcc.lax.ppermute(x, "d", [(0, 3)])),
        errors.InvalidArgumentError,
        ("ppermute", "rank=3", "1 ranks"),
    ),
    "shape of all_to_all": (
        lambda: along(lambda x: jcc.lax.all_to_all(x, "d", 0, 0)),
        errors.InvalidArgumentError,
        ("all_to_all", "dimension 0", "(4,)", "number of ranks, 1"),
    ),
    "dimension of psum_scatter": (
        lambda: along(lambda x: jcc.lax.psum_scatter(x, "d", scatter_dimension=2)),
        errors.InvalidArgumentError,
        ("psum_scatter", "2", "1 dimensions"),
    ),
    "axis of all_gather": (
        lambda: along(lambda x: jcc.lax.all_gather(x, "d", axis=5)),
        errors.InvalidArgumentError,
        ("all_gather", "axis=5", "2 dimensions"),
    ),
    "type of all_gather": (
        lambda: along(lambda x: jcc.lax.all_gather(x, "d", to="all")),
        errors.UnknownNameError,
        ("to=", "'all'", "'varying'"),
    ),
    "compress with an unknown codec": (
        lambda: jcc.compress(lambda x: x, "int9")(X),
        errors.UnknownNameError,
        ("'int9'", "Did you mean 'int8'?"),
    ),
    "compress with other rules": (
        lambda: jcc.compress(lambda x: x, [7])(X),
        errors.InvalidArgumentError,
        ("CollectiveRule", "7"),
    ),
    "a backend without operations": (
        lambda: jcc.register_backend("mine")(object()),
        errors.BackendError,
        ("backend 'mine'", "no operation", "'allreduce'"),
    ),
    "a backend's name": (
        lambda: jcc.register_backend("xla")(jcc),
        errors.NameTakenError,
        ("'xla'",),
    ),
    "a codec without functions": (
        lambda: jcc.register_codec("mine")(object),
        errors.CodecError,
        ("codec 'mine'", "encode(x, options, key)"),
    ),
    "on_shards without an axis": (
        lambda: jcc.on_shards(jcc.allreduce, PartitionSpec(), PartitionSpec())(X),
        errors.InvalidArgumentError,
        ("on_shards", "data_parallel(step, axis, mesh=mesh)"),
    ),
    "data_parallel's axis": (
        lambda: jcc.data_parallel(lambda p, x: p, "data", mesh=mesh()),
        errors.UnknownNameError,
        ("data_parallel", "'data'", "'d'"),
    ),
    "data_parallel's arguments": (
        lambda: jcc.data_parallel(lambda p, x: p, "d", mesh=mesh(), batch_argnums=2)(X, X),
        errors.InvalidArgumentError,
        ("data_parallel", "batch_argnums=2", "2 arguments"),
    ),
    "data_parallel's batch": (
        lambda: jcc.data_parallel(lambda p, x: p, "d", mesh=mesh())(X, {"n": jnp.ones(())}),
        errors.InvalidArgumentError,
        ("data_parallel", "argument 1", "1 devices", "['n']", "[]", "batch_argnums="),
    ),
}

OPTIM = {
    "feedback without a codec": (
        lambda: optim.allreduce_gradients(error_feedback=True),
        errors.InvalidArgumentError,
        ("allreduce_gradients", "error_feedback=True", "lossy", "'topk'"),
    ),
    "feedback of a maximum": (
        lambda: optim.allreduce_gradients(op="max", codec="int8", error_feedback=True),
        errors.InvalidArgumentError,
        ("allreduce_gradients", "'max'", "'sum'"),
    ),
    "size of buckets": (
        lambda: optim.allreduce_gradients(bucket_bytes="4MiB"),
        errors.InvalidArgumentError,
        ("bucket_bytes", "positive integer", "'4MiB'"),
    ),
    "policy of codecs": (
        lambda: optim.allreduce_gradients(policy=["bf16"]),
        errors.InvalidArgumentError,
        ("policy", "jaxccomp.optim.Rule", "'bf16'"),
    ),
    "rule for no leaf": (
        lambda: optim.allreduce_gradients(policy=optim.Rule("bf16", pattern="*bais")).init(PARAMS),
        errors.InvalidArgumentError,
        ("allreduce_gradients", "'*bais'", "'layer/b'"),
    ),
    "codec of a rule": (
        lambda: optim.Rule("int9"),
        errors.UnknownNameError,
        ("'int9'", "Did you mean 'int8'?"),
    ),
    "step of a rule": (
        lambda: optim.Rule("int8", from_step=-1),
        errors.InvalidArgumentError,
        ("Rule", "from_step", "at least 0", "-1"),
    ),
    "residuals' dtype": (
        lambda: optim.allreduce_gradients(codec="topk", error_feedback=True, residual_dtype="fp8"),
        errors.InvalidArgumentError,
        ("residual_dtype", "'fp8'", '"float32"'),
    ),
    "powersgd's rank": (
        lambda: optim.powersgd(rank=0),
        errors.InvalidArgumentError,
        ("powersgd", "rank", "at least 1", "0"),
    ),
    "dgc's codec": (
        lambda: optim.dgc(codec="int8"),
        errors.InvalidArgumentError,
        ("dgc", '"topk"', "'int8'"),
    ),
    "onebit_adam's warm-up": (
        lambda: optim.onebit_adam(1e-3, warmup_steps=0),
        errors.InvalidArgumentError,
        ("onebit_adam", "warmup_steps", "at least 1", "0"),
    ),
    "adacomp's codec": (
        lambda: optim.adacomp(codec="int8"),
        errors.InvalidArgumentError,
        ("adacomp", '"lossless"', "'int8'"),
    ),
    "integers as parameters": (
        lambda: optim.dgc().init({"n": jnp.ones(3, jnp.int32)}),
        errors.UnsupportedDTypeError,
        ("dgc", "floating", "int32", "optax.masked"),
    ),
    "sparse gradients": (
        lambda: updated(optim.allreduce_gradients(), optax.EmptyState(), {"w": bcoo()}),
        errors.ArgumentTypeError,
        ("allreduce_gradients", "['w']", "BCOO", "todense()"),
    ),
    "sparse parameters": (
        lambda: optim.powersgd(rank=2).init({"w": bcoo()}),
        errors.ArgumentTypeError,
        ("powersgd", "['w']", "BCOO", "todense()"),
    ),
    "another state": (
        lambda: updated(
            optim.allreduce_gradients(codec="topk", error_feedback=True), optax.EmptyState()
        ),
        errors.InvalidArgumentError,
        ("allreduce_gradients", "FeedbackState", "init(params)", "EmptyState"),
    ),
    "the state of other parameters": (
        lambda: updated(
            optim.allreduce_gradients(codec="topk", error_feedback=True),
            updates={"layer": {"w": jnp.ones((4, 4), jnp.float32), "b": X}},
        ),
        errors.InvalidArgumentError,
        ("allreduce_gradients", "the gradient", "init(params)"),
    ),
    "axis without a mesh": (
        lambda: optim.train_step(lambda p: 0.0, optax.sgd(1.0), axis_name="d"),
        errors.InvalidArgumentError,
        ("train_step", "axis_name=", "mesh="),
    ),
    "fragments of a stream": (
        lambda: optim.Streaming(optim.local_sgd(), fragments=0, every=2, delay=1),
        errors.InvalidArgumentError,
        ("Streaming", "fragments", "at least 1", "0"),
    ),
    "an optimiser for the outer step": (
        lambda: optim.Streaming(optax.sgd(1.0), fragments=1, every=2, delay=1),
        errors.InvalidArgumentError,
        ("Streaming", "outer", "jaxccomp.optim.diloco"),
    ),
    "density": (
        lambda: optim.sparse_loco(density=2),
        errors.InvalidArgumentError,
        ("sparse_loco", "density", "(0, 1]", "2"),
    ),
    "checkpoint for no ranks": (
        lambda: optim.state_shapes(optax.sgd(1.0), PARAMS, ranks=0),
        errors.InvalidArgumentError,
        ("state_shapes", "ranks", "at least 1", "0"),
    ),
}

SETTINGS = {
    "coordinator after an operation": (
        lambda: (jcc.barrier(), jcc.init(coordinator="localhost:4711", rank=0, size=2)),
        errors.InitializationError,
        ("init(", "coordinator='localhost:4711'", "rank=0", "size=2", "before any operation"),
    ),
    "rank after an operation": (
        lambda: (jcc.barrier(), jcc.init(rank=1)),
        errors.InitializationError,
        ("init(rank=1)", "before any operation"),
    ),
    "mpi": (
        lambda: jcc.init(mpi="yes"),
        errors.UnknownNameError,
        ("mpi", "'yes'", "'always'"),
    ),
    "unknown option": (
        lambda: config.set("timeout", 3),
        errors.UnknownNameError,
        ("option", "'timeout'", "'timeout_seconds'"),
    ),
    "number of an option": (
        lambda: config.set("chunk_bytes", "512KiB"),
        errors.InvalidArgumentError,
        ("'chunk_bytes'", "int", "'512KiB'"),
    ),
    "minimum of an option": (
        lambda: config.set("chunk_bytes", 1),
        errors.InvalidArgumentError,
        ("'chunk_bytes'", "at least 64", "1"),
    ),
    "truth of an option": (
        lambda: config.set("huge_pages", "maybe"),
        errors.InvalidArgumentError,
        ("'huge_pages'", "'true'", "'maybe'"),
    ),
    "choice of an option": (
        lambda: config.set("transport", "tcp"),
        errors.UnknownNameError,
        ("'transport'", "'tcp'", "'ucx'"),
    ),
    "an option in override": (
        lambda: config.override(chunks=3).__enter__(),
        errors.UnknownNameError,
        ("option", "'chunks'", "'chunk_bytes'"),
    ),
    "negative color": (
        lambda: jcc.world().split(-1),
        errors.InvalidArgumentError,
        ("color", "at least 0", "-1", "None"),
    ),
    "color of a name": (
        lambda: jcc.world().split("red"),
        errors.InvalidArgumentError,
        ("color", "integer", "'red'"),
    ),
    "a process twice": (
        lambda: jcc.Communicator("pair", (0, 0)),
        errors.CommunicatorError,
        ("'pair'", "twice", "(0, 0)"),
    ),
    "order": (
        lambda: jcc.Communicator("all", (0,), "mpi"),
        errors.UnknownNameError,
        ("order", "'mpi'", "'program'"),
    ),
    "processes that do not exist": (
        lambda: jcc.allreduce(X, comm=jcc.Communicator("large", (0, 7))),
        errors.CommunicatorError,
        ("'large'", "[7]"),
    ),
    "name of a duplicate": (
        lambda: jcc.world().duplicate(""),
        errors.InvalidArgumentError,
        ("name", "not empty", "''"),
    ),
    "freeing the world": (
        lambda: jcc.world().free(),
        errors.CommunicatorError,
        ("world", "freed", "split()"),
    ),
    "admit without a coordinator": (
        lambda: jcc.world().admit(),
        errors.CommunicatorError,
        ("jaxccomp.init(coordinator=...)",),
    ),
    "Quorum's fraction": (
        lambda: optim.Quorum(optim.local_sgd(), fraction=0.3),
        errors.InvalidArgumentError,
        ("Quorum", "fraction", "above 0.5", "0.3"),
    ),
}

CODECS = {
    "value of an option": (
        lambda: jcc.bcast(X, codec="int8:block=65"),
        errors.InvalidArgumentError,
        ("codec 'int8:block=65'", "block=65", "'64'"),
    ),
    "value of an option in stage": (
        lambda: codecs.stage("int8", block=65),
        errors.InvalidArgumentError,
        ("codec 'int8:block=65'", "block=65", "'64'"),
    ),
    "option of stage": (
        lambda: codecs.stage("int8", blocks=64),
        errors.UnknownNameError,
        ("'int8'", "'blocks'", "Did you mean 'block'?"),
    ),
    "name of stage": (
        lambda: codecs.stage("int9"),
        errors.UnknownNameError,
        ("'int9'", "Did you mean 'int8'?"),
    ),
    "density": (
        lambda: codecs.parse("topk:density=2"),
        errors.InvalidArgumentError,
        ("codec 'topk:density=2'", "1e-06 to 1"),
    ),
    "three stages": (
        lambda: codecs.parse("bf16|lossless|zstd"),
        errors.InvalidArgumentError,
        ("codec 'bf16|lossless|zstd'", "two stages at most"),
    ),
    "lossy second stage": (
        lambda: codecs.parse("lossless|int8"),
        errors.InvalidArgumentError,
        ("codec 'lossless|int8'", "'int8' is lossy", "first stage"),
    ),
    "no value": (
        lambda: codecs.parse("int8:block"),
        errors.InvalidArgumentError,
        ("codec 'int8:block'", "key=value"),
    ),
    "auto in a pair": (
        lambda: codecs.parse("auto|bf16"),
        errors.InvalidArgumentError,
        ("'auto|bf16'", '"auto:int8"'),
    ),
    "dtype of a bound": (
        lambda: codecs.error_bound("bf16", "int32"),
        errors.UnknownNameError,
        ("'bf16'", "'int32'", "'float32'"),
    ),
    "bytes that are no frame": (
        lambda: codecs.decode(b"no frame"),
        errors.CorruptDataError,
        ("frame",),
    ),
    "encoding a text": (
        lambda: codecs.encode("text", "int8"),
        (errors.UnsupportedDTypeError, errors.InvalidArgumentError),
        (),
    ),
}

SYNC = {
    "a lossy codec": (
        lambda: sync.Publisher({"w": X}, codec="int8"),
        errors.InvalidArgumentError,
        ("codec='int8'", "'delta'", "dtype="),
    ),
    "a mesh of other ranks": (
        lambda: sync.Publisher({"w": X}, mesh={"data": 3}),
        errors.InvalidArgumentError,
        ("mesh", "3"),
    ),
    "replicate along no axis": (
        lambda: sync.replicate({"w": X}, root=3),
        errors.InvalidArgumentError,
        ("root=3", "1 ranks"),
    ),
}

COMPAT = {
    "op of a text": (
        lambda: mpi4jax.allreduce(X, op="sum"),
        errors.ArgumentTypeError,
        ("allreduce", '"op"', "str"),
    ),
    "root of a float": (
        lambda: mpi4jax.bcast(X, 0.0),
        errors.ArgumentTypeError,
        ("bcast", '"root"', "float"),
    ),
    "token": (
        lambda: mpi4jax.barrier(token=X),
        errors.InvalidArgumentError,
        ("token=", "mpi4jax 0.9", "leave token= out"),
    ),
    "rows of alltoall": (
        lambda: mpi4jax.alltoall(X),
        errors.InvalidArgumentError,
        ("Alltoall", "(nproc, ...)", "(4,)"),
    ),
    "merging no traces": (
        lambda: jcc.trace.merge("all.json"),
        errors.InvalidArgumentError,
        ("merge", "traces of one rank or more"),
    ),
    "an algorithm to simulate": (
        lambda: jcc.schedules.simulate("allreduce", "rign", cluster="2x1gbit", size_bytes=1),
        errors.JaxccompError,
        ("rign", "ring"),
    ),
}

CALLS = {
    f"{area}: {name}": row
    for area, rows in {
        "operations": OPERATIONS,
        "lax": LAX,
        "optim": OPTIM,
        "settings": SETTINGS,
        "codecs": CODECS,
        "sync": SYNC,
        "compat and tools": COMPAT,
    }.items()
    for name, row in rows.items()
}

# Arguments of the command, its exit status, and words of what it says.
COMMANDS = {
    "unknown": (["infos"], 2, ("'infos'", "'doctor'")),
    "of version 0.1": (["info"], 2, ("'info'", "'doctor'")),
    "size": (["bench", "--sizes", "1kb"], 2, ("'1kb'", "64KiB")),
    "operation": (["bench", "--ops", "psum"], 2, ("'psum'", "'allreduce'")),
    "cluster": (
        ["simulate", "--cluster", "4x1parsec", "--op", "bcast"],
        2,
        ("4x1parsec", "4x1gbit"),
    ),
    "no ranks": (["run", "-n", "0", "train.py"], 2, ("-n", "0")),
    "no program": (["run", "-n", "2"], 2, ("script",)),
    "hosts": (["run", "-n", "2", "--hosts", "a:x", "train.py"], 2, ("a:x",)),
    "algorithm": (["schedule", "allreduce", "--algorithm", "rign"], 2, ("rign", "ring")),
    "traces": (["trace", "merge", "out.json"], 2, ("IN",)),
    "no trace": (["trace", "merge", "out.json", "none.json"], 2, ("none.json", "Timeline.save")),
    "plans": (["plan", "diff", "a.json", "b.json"], 2, ("a.json", "jaxccomp.plan")),
    "flights": (["flight", "nowhere"], 2, ("nowhere", "JAXCCOMP_FLIGHT_FOLDER")),
    "tune": (["tune", "network"], 2, ("'network'", "links")),
}


def test_mistake_table_has_at_least_88_rows():
    assert len(CALLS) + len(COMMANDS) >= 88


@pytest.mark.parametrize("name", CALLS)
def test_mistaken_call_raises_an_error_with_the_remedy(name):
    mistake, kind, facts = CALLS[name]
    with raises(kind, facts) as caught:
        jax.block_until_ready(mistake())
    assert isinstance(caught.value, errors.JaxccompError)
    text = str(caught.value)
    assert text.count("codec '") <= 1 and len(text) > 30


@pytest.mark.parametrize("name", COMMANDS)
def test_mistaken_command_prints_an_error_with_the_remedy(name, capsys, tmp_path, monkeypatch):
    arguments, status, facts = COMMANDS[name]
    monkeypatch.chdir(tmp_path)
    try:
        found = main.main(arguments)
    except SystemExit as ended:
        found = ended.code
    assert found == status
    check_text(capsys.readouterr().err.splitlines()[-1], facts, golden=False)

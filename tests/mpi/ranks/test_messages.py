"""Messages between two ranks on an ordered communicator; each rank has its own program."""

import itertools
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from golden_errors import raises

import jaxccomp as jcc

LARGE = 300_000  # float32: above any MPI's eager limit


colors = itertools.count(5000)


@pytest.fixture
def ordered(world):
    if world.size < 2:
        pytest.skip("needs more than one rank")
    return world.split(next(colors)).ordered()


def values(rank, size=4):
    return jnp.arange(size, dtype=jnp.float32) + 1000 * rank


def check(got, rank, size=4):
    np.testing.assert_array_equal(got, values(rank, size))


@pytest.mark.parametrize("size", [4, LARGE])
def test_sendrecv_exchanges_values_along_a_chain(ordered, size):
    """Ranks 0 and 1, then 1 and 2, and so on: a rank calls sendrecv once or twice."""
    for other in (ordered.rank - 1, ordered.rank + 1):
        if 0 <= other < ordered.size:
            x = values(ordered.rank, size)
            check(jcc.sendrecv(x, dest=other, source=other, comm=ordered), other, size)


def test_sendrecv_of_two_ranks_needs_no_call_on_others(ordered):
    if ordered.rank < 2:
        other = 1 - ordered.rank
        check(jcc.sendrecv(values(ordered.rank), dest=other, source=other, comm=ordered), other)
    assert jcc.allreduce(jnp.ones(3), comm=ordered)[0] == ordered.size


@pytest.mark.parametrize("size", [1, LARGE])
def test_repeated_sendrecv_shifts_values_around_a_ring(ordered, size):
    n, rank = ordered.size, ordered.rank
    x = values(rank, size)
    for step in range(1, n + 1):
        x = jcc.sendrecv(x, dest=(rank + 1) % n, source=(rank - 1) % n, comm=ordered)
        check(x, (rank - step) % n, size)


@pytest.mark.parametrize("codec", ["lossless", None])
def test_sendrecv_sends_before_it_receives_along_a_chain(ordered, codec):
    """A sendrecv sends before it has received: here rank 0 first receives, then sends to rank 1."""
    n, rank = ordered.size, ordered.rank
    size = 8 * LARGE if rank >= 0 else 0
    how = {"comm": ordered, "codec": codec}
    if rank == 0:
        check(jcc.recv(values(0, size), source=n - 1, **how), n - 1, size)
        jcc.send(values(0, size), dest=1, **how)
    else:
        got = jcc.sendrecv(values(rank, size), dest=(rank + 1) % n, source=rank - 1, **how)
        check(got, rank - 1, size)


def test_sendrecv_matches_send_and_recv(ordered):
    """A recv receives from a sendrecv, and the other way round."""
    if ordered.rank == 0:
        check(jcc.sendrecv(values(0), dest=1, source=1, comm=ordered, send_tag=3), 1)
        jcc.send(values(10), dest=1, comm=ordered, tag=5)
        check(jcc.recv(values(0), source=1, comm=ordered, tag=6), 11)
    elif ordered.rank == 1:
        jcc.send(values(1), dest=0, comm=ordered)
        check(jcc.recv(values(0), source=0, comm=ordered, tag=3), 0)
        x = values(11)
        check(jcc.sendrecv(x, 0, 0, comm=ordered, send_tag=6, recv_tag=5), 10)


def test_recv_selects_messages_by_tag_in_any_order(ordered):
    if ordered.rank == 0:
        for tag in range(40):
            jcc.send(values(tag, 1 + 997 * (tag % 3)), dest=1, tag=tag, comm=ordered)
    elif ordered.rank == 1:
        for tag in reversed(range(40)):
            size = 1 + 997 * (tag % 3)
            check(jcc.recv(values(0, size), source=0, tag=tag, comm=ordered), tag, size)


def test_hundreds_of_unreceived_messages_are_matched_by_tag(ordered):
    """Hundreds of messages with two tags are sent before the first is received."""
    if ordered.rank == 0:
        for number in range(300):
            jcc.send(values(number, 3), dest=1, tag=number % 2, comm=ordered)
        assert jcc.recv(jnp.int8(0), source=1, comm=ordered) == 7
    elif ordered.rank == 1:
        for number in [*range(1, 300, 2), *range(0, 300, 2)]:
            got = jcc.recv(values(0, 3), source=0, tag=number % 2, comm=ordered)
            check(got, number, 3)
        jcc.send(jnp.int8(7), dest=0, comm=ordered)


def test_sendrecv_with_like_receives_other_shapes_and_dtypes(ordered):
    x = {"a": jnp.arange(5.0), "b": jnp.int8(3)}
    like = (jnp.zeros((2, 3), jnp.int32), jnp.zeros(LARGE, jnp.bfloat16))
    answer = (jnp.arange(6, dtype=jnp.int32).reshape(2, 3), jnp.ones(LARGE, jnp.bfloat16))
    how = {"comm": ordered, "send_tag": ordered.rank, "recv_tag": 1 - ordered.rank}
    if ordered.rank == 0:
        got = jcc.sendrecv(x, dest=1, source=1, like=like, **how)
        jax.tree.map(np.testing.assert_array_equal, got, answer)
    elif ordered.rank == 1:
        got = jax.jit(lambda y: jcc.sendrecv(y, dest=0, source=0, like=x, **how))(answer)
        jax.tree.map(np.testing.assert_array_equal, got, x)
        assert got["b"].dtype == jnp.int8


@pytest.mark.parametrize("codec", ["lossless", "bf16"])
def test_codec_applies_to_the_supported_direction_of_sendrecv(ordered, codec):
    """Two dtypes; the codec supports only one of them."""
    x, y = jnp.arange(256.0), jnp.arange(LARGE, dtype=jnp.int32) % 2 == 0
    how = {"comm": ordered, "codec": codec, "dest": 1 - ordered.rank, "source": 1 - ordered.rank}
    if ordered.rank == 0:
        np.testing.assert_array_equal(jcc.sendrecv(x, like=y, **how), y)
    elif ordered.rank == 1:
        np.testing.assert_array_equal(jcc.sendrecv(y, like=x, **how), x)


def test_sendrecv_of_an_empty_array_sends_no_message(ordered):
    nothing = jnp.zeros((0, 3))
    if ordered.rank == 0:
        assert jcc.sendrecv(values(0), dest=1, source=1, like=nothing, comm=ordered).shape == (0, 3)
    elif ordered.rank == 1:
        check(jcc.sendrecv(nothing, dest=0, source=0, like=values(0), comm=ordered), 0)


@pytest.mark.parametrize("size", [3, LARGE])
def test_rank_exchanges_messages_with_itself_in_order(ordered, size):
    me = ordered.rank
    jcc.send(values(1, size), dest=me, comm=ordered)
    jcc.send(values(2, size), dest=me, comm=ordered)
    check(jcc.recv(values(0, size), source=me, comm=ordered), 1, size)
    # The earlier message is received first, as between any two ranks.
    check(jcc.sendrecv(values(3, size), dest=me, source=me, comm=ordered), 2, size)
    check(jcc.recv(values(0, size), source=me, comm=ordered), 3, size)
    jcc.send(values(5, size), dest=me, comm=ordered, tag=1)
    got = jcc.sendrecv(values(4, size), me, me, comm=ordered, send_tag=2, recv_tag=1)
    check(got, 5, size)
    check(jcc.recv(values(0, size), source=me, comm=ordered, tag=2), 4, size)


def test_sendrecv_in_scan_shifts_values_each_step(ordered):
    n, rank = ordered.size, ordered.rank

    @jax.jit
    def around(x):
        def step(x, _):
            x = jcc.sendrecv(x, dest=(rank + 1) % n, source=(rank - 1) % n, comm=ordered)
            return x + 1, x[0]

        return jax.lax.scan(step, x, length=10)

    last, firsts = around(values(rank))
    check(last - 10, (rank - 10) % n)
    np.testing.assert_array_equal(firsts, [1000 * ((rank - i) % n) + i - 1 for i in range(1, 11)])


def test_gradient_of_sendrecv_has_the_shape_of_the_sent_array(ordered):
    """y = received * w on each side; cotangents have the shapes of the sent arrays."""
    if ordered.rank > 1:
        return
    other = 1 - ordered.rank
    mine, theirs = (3, 5) if ordered.rank == 0 else (5, 3)
    x = jnp.arange(float(mine)) + 1
    how = {"comm": ordered, "dest": other, "source": other}
    how |= {"send_tag": ordered.rank, "recv_tag": other}

    def objective(x):
        like = jnp.zeros(theirs) + 0 * x[0]
        return (2 + ordered.rank) * jnp.sum(jcc.sendrecv(x, like=like, **how))

    value, slope = jax.jit(jax.value_and_grad(objective))(x)
    assert value == (2 + ordered.rank) * theirs * (theirs + 1) / 2
    np.testing.assert_array_equal(slope, np.full(mine, 2.0 + other))


def test_gradient_of_sendrecv_matches_explicit_send_and_recv(ordered):
    if ordered.rank > 1:
        return
    x = jnp.arange(3.0)
    if ordered.rank == 0:

        def objective(x):
            like = jnp.zeros(2) + 0 * x[0]
            return jnp.sum(3 * jcc.sendrecv(x, dest=1, source=1, like=like, comm=ordered))

        np.testing.assert_array_equal(jax.grad(objective)(x), np.full(3, 5.0))
    else:

        def objective(w):
            got = jcc.recv(0 * w[0] + jnp.zeros(3), source=0, comm=ordered)
            sent = jcc.send(w, dest=0, comm=ordered)
            return jnp.sum(5 * got) + 0 * jnp.sum(sent)

        np.testing.assert_array_equal(jax.grad(objective)(jnp.ones(2)), np.full(2, 3.0))


def test_vmap_of_sendrecv_exchanges_batches(ordered):
    if ordered.rank > 1:
        return
    other = 1 - ordered.rank
    mine, theirs = (3, 5) if ordered.rank == 0 else (5, 3)

    def exchange(x):
        like = jnp.zeros(theirs) + x[0]
        return jcc.sendrecv(x, dest=other, source=other, like=like, comm=ordered)

    got = jax.vmap(exchange)(jnp.arange(4.0 * mine).reshape(4, mine))
    np.testing.assert_array_equal(got, np.arange(4.0 * theirs).reshape(4, theirs))


def test_recv_from_any_source_receives_each_message_once_in_order(ordered):
    n, count = ordered.size, 7
    if ordered.rank != 0:
        for number in range(count):
            jcc.send(values(100 * ordered.rank + number), dest=0, tag=number, comm=ordered)
        return
    seen = {rank: [] for rank in range(1, n)}
    for _ in range(count * (n - 1)):
        got, source, tag = jcc.recv(
            values(0), jcc.ANY_SOURCE, tag=jcc.ANY_TAG, with_status=True, comm=ordered
        )
        assert source.dtype == tag.dtype == jnp.int32 and source.shape == tag.shape == ()
        check(got, 100 * int(source) + int(tag))
        seen[int(source)].append(int(tag))
    assert seen == {rank: list(range(count)) for rank in range(1, n)}


@pytest.mark.parametrize("size", [3, LARGE])
def test_jitted_recv_from_any_source_returns_the_source(ordered, size):
    """A server in a loop answers the source of each message."""
    n = ordered.size
    if ordered.rank != 0:
        x = values(ordered.rank, size)
        check(jcc.sendrecv(x, dest=0, source=0, comm=ordered) - 1, ordered.rank, size)
        return

    @jax.jit
    def serve(total):
        got, source, _ = jcc.recv(total, jcc.ANY_SOURCE, with_status=True, comm=ordered)
        return got, source

    waiting = set(range(1, n))
    for _ in range(1, n):
        got, source = serve(values(0, size))
        check(got, int(source), size)
        jcc.send(got + 1, dest=int(source), comm=ordered)
        waiting.remove(int(source))
    assert not waiting


def test_recv_from_a_named_source_returns_source_and_tag(ordered):
    if ordered.rank == 1:
        jcc.send(values(3), dest=0, tag=12, comm=ordered)
        jcc.send(values(4), dest=0, tag=9, comm=ordered)
    elif ordered.rank == 0:
        got, source, tag = jcc.recv(values(0), 1, tag=9, with_status=True, comm=ordered)
        check(got, 4)
        assert (int(source), int(tag)) == (1, 9)
        got, source, tag = jcc.recv(values(0), 1, tag=jcc.ANY_TAG, with_status=True, comm=ordered)
        check(got, 3)
        assert (int(source), int(tag)) == (1, 12)


@pytest.mark.parametrize("likes", [False, True])
def test_sendrecv_with_any_tag_returns_the_status(ordered, likes):
    rank, n = ordered.rank, ordered.size
    after, before = (rank + 1) % n, (rank - 1) % n
    size = 3 + rank if likes else 3
    other = 3 + before if likes else 3

    @jax.jit
    def exchange(x):
        return jcc.sendrecv(
            x,
            after,
            before,
            like=values(0, other) if likes else None,
            send_tag=rank,
            recv_tag=jcc.ANY_TAG,
            with_status=True,
            comm=ordered,
        )

    got, source, tag = exchange(values(rank, size))
    check(got, before, other)
    assert source.dtype == tag.dtype == jnp.int32 and source.shape == tag.shape == ()
    assert (int(source), int(tag)) == (before, before)


def test_gradient_of_sendrecv_with_any_tag_is_sent_with_the_received_tag(ordered):
    """The cotangent goes back with the tag of the sent message."""
    rank, n = ordered.rank, ordered.size
    after, before = (rank + 1) % n, (rank - 1) % n

    def loss(x):
        tags = {"send_tag": rank, "recv_tag": jcc.ANY_TAG}
        got, _, _ = jcc.sendrecv(x, after, before, with_status=True, comm=ordered, **tags)
        return (rank + 1) * got.sum()

    np.testing.assert_array_equal(jax.jit(jax.grad(loss))(jnp.ones(3)), np.full(3, after + 1.0))


def test_receives_from_any_and_named_sources_alternate(ordered):
    if ordered.rank == 1:
        for number in range(6):
            jcc.send(values(number), dest=0, tag=number % 2, comm=ordered)
    elif ordered.rank == 0:
        expected = [(1, 1, 1), (jcc.ANY_SOURCE, jcc.ANY_TAG, 0), (1, jcc.ANY_TAG, 2)]
        expected += [(jcc.ANY_SOURCE, 1, 3), (1, 0, 4), (jcc.ANY_SOURCE, jcc.ANY_TAG, 5)]
        for source, tag, number in expected:
            check(jcc.recv(values(0), source, tag=tag, comm=ordered), number)


@pytest.mark.parametrize(
    "call,facts",
    [
        (lambda x, c: jcc.sendrecv(x, 0, 0, like=x[:1]), ("like=", "ordered()")),
        (lambda x, c: jcc.sendrecv(x, 0, 0, send_tag=1), ("send_tag=", "ordered()")),
        (
            lambda x, c: jcc.sendrecv(x, jcc.ANY_SOURCE, 0, comm=c),
            ("sendrecv", f"dest={jcc.ANY_SOURCE} "),
        ),
        (lambda x, c: jcc.sendrecv(x, 0, 0, with_status=True), ("with_status=True", "ordered()")),
        (lambda x, c: jcc.sendrecv(x, 0, 0, recv_tag=jcc.ANY_TAG), ("recv_tag=", "ordered()")),
        (lambda x, c: jcc.sendrecv(x, 0, 0, send_tag=jcc.ANY_TAG, comm=c), ("sendrecv", "tag")),
        (
            lambda x, c: jcc.sendrecv(x, 0, None, with_status=True, comm=c),
            ("with_status=True", "source=None"),
        ),
        (lambda x, c: jcc.send(x, 0, tag=jcc.ANY_TAG, comm=c), ("send", "tag")),
        (lambda x, c: jcc.recv(x, jcc.ANY_TAG, comm=c), ("recv", "source=")),
        (lambda x, c: jcc.recv(x, 0, tag=jcc.ANY_SOURCE, comm=c), ("recv", "tag")),
        (
            lambda x, c: jcc.recv(x[:0], 0, with_status=True, comm=c),
            ("recv", "with_status=True", "like="),
        ),
        (
            lambda x, c: jax.grad(lambda y: jcc.recv(y, jcc.ANY_SOURCE, comm=c).sum())(x),
            ("recv", "derivative"),
        ),
    ],
)
def test_invalid_arguments_of_messages_raise_while_tracing(ordered, call, facts):
    with raises(jcc.errors.JaxccompError, facts):
        jax.eval_shape(lambda x: call(x, ordered), jnp.ones(3))


def test_sendrecv_along_an_axis_refuses_like():
    with raises(jcc.errors.JaxccompError, "sendrecv", "like=", "axis"):
        jax.vmap(lambda x: jcc.sendrecv(x, [1, 0], like=x, axis_name="i"), axis_name="i")(
            jnp.ones((2, 3))
        )


def test_communicator_of_one_rank_sends_to_itself(world):
    part = world.split(world.rank).ordered()
    jcc.send(jnp.arange(LARGE), dest=0, comm=part)
    got, source, tag = jcc.recv(jnp.arange(LARGE), jcc.ANY_SOURCE, with_status=True, comm=part)
    np.testing.assert_array_equal(got, np.arange(LARGE))
    assert (int(source), int(tag)) == (0, 0)


DEADLOCKS = {
    "both receive": (lambda x, **how: jcc.recv(x, **how),) * 2,
    "one receives under another tag": (
        lambda x, source, comm: jcc.send(jnp.tile(x, LARGE), dest=source, comm=comm),
        lambda x, **how: jcc.recv(jnp.tile(x, LARGE), tag=4, **how),
    ),
}


@pytest.mark.parametrize("name", DEADLOCKS)
def test_deadlock_of_two_ranks_raises_on_both(ordered, ranks, name):
    if ordered.rank < 2:
        call = DEADLOCKS[name][ordered.rank]
        with pytest.raises(jax.errors.JaxRuntimeError) as caught:
            jax.block_until_ready(call(jnp.ones(3), source=1 - ordered.rank, comm=ordered))
        text = str(caught.value)
        assert "deadlock" in text, text
        assert "rank 0" in text and "rank 1" in text, text
        assert text.count("test_messages.py:") >= 2, text
    ranks.barrier()


def test_no_deadlock_is_reported_if_another_thread_sends(ordered, ranks):
    """Both ranks wait in recv until the deadlock check; then a thread of one rank sends."""
    if ordered.rank < 2:
        other = 1 - ordered.rank

        def send_later():
            time.sleep(2)
            jax.block_until_ready(jcc.send(values(0), dest=1, comm=ordered))

        thread = threading.Thread(target=send_later)
        if ordered.rank == 0:
            thread.start()
        check(jcc.recv(values(0), source=other, comm=ordered), 0 if ordered.rank == 1 else 1)
        if ordered.rank == 1:
            jax.block_until_ready(jcc.send(values(1), dest=0, comm=ordered))
        else:
            thread.join()
    ranks.barrier()


def test_message_of_another_shape_raises_with_both_lines(ordered, ranks):
    if ordered.rank == 0:
        with pytest.raises(jax.errors.JaxRuntimeError) as caught:
            jax.block_until_ready(jcc.recv(values(0, 5), source=1, comm=ordered))
        text = str(caught.value)
        assert "mismatch" in text and text.count("test_messages.py:") >= 2, text
        assert "ordered()" not in text, text
    elif ordered.rank == 1:
        with raises(jax.errors.JaxRuntimeError, "mismatch", "test_messages.py:"):
            jax.block_until_ready(jcc.send(values(1, LARGE), dest=0, comm=ordered))
    ranks.barrier()

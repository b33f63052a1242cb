"""Schedules compared with NumPy: all ranks' tasks run on arrays, without transport and engine."""

import doctest

import numpy as np
import pytest
from golden_errors import raises

from jaxccomp import errors, schedules
from jaxccomp._native import engine

ALGORITHMS = [
    (row["collective"], row["name"])
    for row in engine.load().describe()["algorithms"]
    if row["collective"] in schedules.COLLECTIVES
]
PER_RANK_IN = ("scatter", "reduce_scatter", "alltoall")
PER_RANK_OUT = ("allgather", "gather", "alltoall")
WIDTH = 4  # bytes of an int32
SIZES = (1, 2, 3, 5, 8, 11, 16)  # of the team


class World:
    """The memory of all ranks; encoded buffers hold the values themselves."""

    def __init__(self, collective, algorithm, ranks, values, root, **how):
        self.schedules = [
            schedules.make(collective, algorithm, rank=rank, ranks=ranks, root=root, **how)
            for rank in range(ranks)
        ]
        self.memory = [{} for _ in range(ranks)]
        blocks = ranks if collective in PER_RANK_OUT else 1
        for rank, memory in enumerate(self.memory):
            for block, row in enumerate(values[rank]):
                memory["input", block] = row.copy()
            for block in range(blocks):
                memory["output", block] = np.zeros_like(values[0][0])
            for block, (begin, end) in enumerate(self.schedules[rank].scratch):
                memory["scratch", block] = np.zeros((end - begin + WIDTH - 1) // WIDTH, np.int32)
        self.messages = {}

    def view(self, rank, slot):
        begin = self.schedules[rank].scratch[slot.block][0] if slot.space == "scratch" else 0
        whole = self.memory[rank][slot.space, slot.block]
        return whole[(slot.begin - begin) // WIDTH : (slot.end - begin + WIDTH - 1) // WIDTH]

    def read(self, rank, slot):
        if slot.space == "code":
            return self.memory[rank]["code", slot.block]
        return self.view(rank, slot).copy()

    def run(self):
        """Loops over the ranks until none can progress."""
        todo = [dict(enumerate(made.tasks)) for made in self.schedules]
        going = True
        while going:
            going = False
            for rank, tasks in enumerate(todo):
                for number, task in list(tasks.items()):
                    if any(dep in tasks for dep in task.deps):
                        continue
                    if task.kind == "recv" and (task.peer, rank, task.tag) not in self.messages:
                        continue
                    self.execute(rank, task)
                    del tasks[number]
                    going = True
        assert not any(todo), "stuck"
        assert not self.messages

    def execute(self, rank, task):
        if task.kind == "send":
            key = (rank, task.peer, task.tag)
            assert key not in self.messages
            self.messages[key] = self.read(rank, task.sources[0])
            return
        if task.kind == "recv":
            result = self.messages.pop((task.peer, rank, task.tag))
        elif task.kind == "merge":
            result = np.sum(
                [self.read(rank, each) for each in task.sources], axis=0, dtype=np.int32
            )
        else:
            result = self.read(rank, task.sources[0])
        if task.dst.space == "code":
            self.memory[rank]["code", task.dst.block] = result
        else:
            self.view(rank, task.dst)[...] = result


def expected(collective, values, rank, root):
    ranks = len(values)
    whole = [each[0] for each in values]
    zeros = np.zeros_like(whole[0])
    results = {
        "bcast": lambda: [whole[root]],
        "allreduce": lambda: [np.sum(whole, axis=0)],
        "reduce": lambda: [np.sum(whole, axis=0) if rank == root else zeros],
        "allgather": lambda: whole,
        "gather": lambda: whole if rank == root else [zeros] * ranks,
        "scatter": lambda: [values[root][rank]],
        "reduce_scatter": lambda: [np.sum([each[rank] for each in values], axis=0)],
        "alltoall": lambda: [each[rank] for each in values],
        "scan": lambda: [np.sum(whole[: rank + 1], axis=0)],
        "exscan": lambda: [np.sum(whole[:rank], axis=0) if rank else zeros],
    }
    return results[collective]()


@pytest.mark.parametrize(("collective", "algorithm"), ALGORITHMS)
@pytest.mark.parametrize("encoded", [False, True])
@pytest.mark.parametrize(
    "sizes", [SIZES, pytest.param(range(1, 18), marks=pytest.mark.slow)], ids=["some", "all"]
)
def test_every_algorithm_computes_its_collective(collective, algorithm, encoded, sizes):
    check(collective, algorithm, encoded, sizes)


def check(collective, algorithm, encoded, sizes):
    for ranks in sizes:
        # No values, fewer than a chunk, several chunks, odd sizes; two segments of hosts.
        for count in (0, 1, 37, 333) if ranks < 9 else (333,):
            root = (ranks * 2) // 3
            random = np.random.default_rng(ranks)
            blocks = ranks if collective in PER_RANK_IN else 1
            values = random.integers(-99, 99, (ranks, blocks, count)).astype(np.int32)
            world = World(
                collective,
                algorithm,
                ranks,
                values,
                root,
                block_bytes=count * WIDTH,
                chunk_bytes=256,
                encoded=encoded,
                hosts=[rank // 3 for rank in range(ranks)],
            )
            world.run()
            for rank in range(ranks):
                wanted = expected(collective, values, rank, root)
                for block, row in enumerate(wanted):
                    got = world.memory[rank]["output", block]
                    np.testing.assert_array_equal(got, row, f"{ranks} ranks, {count}, rank {rank}")


def test_chain_bcast_encodes_once_and_forwards_the_encoding():
    made = [
        schedules.make("bcast", "chain", rank=rank, ranks=4, block_bytes=1 << 20, encoded=True)
        for rank in range(4)
    ]
    encodings = [sum(task.kind == "encode" for task in each.tasks) for each in made]
    assert encodings == [2, 0, 0, 0]
    assert sum(task.kind == "decode" for each in made for task in each.tasks) == 8


def test_auto_selects_hierarchical_allreduce_between_hosts():
    given = {"rank": 1, "ranks": 4, "block_bytes": 4 << 20}
    assert schedules.make("allreduce", hosts=[0] * 4, **given).algorithm == "two_shot"
    made = schedules.make("allreduce", hosts=[0, 0, 1, 1], **given)
    assert made.algorithm == "hierarchical"
    assert {task.peer for task in made.tasks if task.kind in ("send", "recv")} == {0}


def test_feedback_schedule_has_a_residual_task_for_every_encoding():
    given = {"rank": 1, "ranks": 4, "block_bytes": 1 << 20, "encoded": True, "feedback": True}
    kinds = [task.kind for task in schedules.make("allreduce", "two_shot", **given).tasks]
    assert kinds.count("residual") == kinds.count("encode") > 0


def test_algorithm_options_set_partitions_and_chunk_size():
    made = schedules.make(
        "allreduce", "parameter_server:partitions=1,chunk=65536", rank=2, ranks=4,
        block_bytes=128 << 10,
    )  # fmt: skip
    assert {task.peer for task in made.tasks if task.kind == "send"} == {0}
    assert {task.lane for task in made.tasks} == {0, 1, 2, 3}  # chunks are halved


@pytest.mark.parametrize(
    ("change", "facts"),
    [
        ({"collective": "bcats"}, ("'bcats'", "'bcast'")),
        ({"algorithm": "rong"}, ("allreduce", "rong", "two_shot")),
        ({"algorithm": "ring:depth=3"}, ("option", "chunk=BYTES", "partitions=K")),
        ({"rank": 4}, ("rank", "0..3", "4")),
        ({"block_bytes": -1}, ("block_bytes", "0..1125899906842623", "-1")),
        ({"hosts": [1, 2]}, ("hosts", "4", "2")),
        ({"algorithm": "hierarchical:level=gpu"}, ("option", "chunk=BYTES", "partitions=K")),
        ({"feedback": True}, ("feedback", "allreduce", "reduce_scatter")),
    ],
)
def test_invalid_arguments_raise_errors_that_name_allowed_values(change, facts):
    given = {"collective": "allreduce", "rank": 0, "ranks": 4, "block_bytes": 8} | change
    with raises(errors.JaxccompError, facts):
        schedules.make(given.pop("collective"), given.pop("algorithm", "auto"), **given)


def test_docstring_example_of_make_runs():
    import jaxccomp

    assert doctest.run_docstring_examples(schedules.make, {"jaxccomp": jaxccomp}) is None
    finder = doctest.DocTestFinder().find(schedules.make, globs={"jaxccomp": jaxccomp})
    assert doctest.DocTestRunner().run(finder[0]).failed == 0

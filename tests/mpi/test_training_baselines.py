"""The baselines of the testbed's training, each on two ranks without links."""

import dataclasses
import json
import pathlib

import patience
import pytest
import testbed
from golden_errors import raises
from testbed import workers
from testbed.training.ways import WAYS, Way

TESTBED = pathlib.Path(testbed.__file__).parent


@pytest.mark.slow
@pytest.mark.parametrize(
    "way",
    [
        Way("mpi"),
        Way("jaxccomp", "onebit", feedback=True, bucket_bytes=4 << 20),
        Way("jaxccomp", "int8", per_tensor=True),
        Way("jaxccomp", "int4", feedback=True, per_tensor=True),
        Way("jaxccomp", "dgc:density=0.01", warmup=8),
        Way("jaxccomp", "bf16", algorithm="chain", broadcasts=True),
    ],
    ids=lambda way: way.name,
)
def test_every_baseline_reduces_the_loss(way):
    """After some steps the loss on unseen data is better than chance."""
    worker = TESTBED / "training/worker.py"
    told = [json.dumps(dataclasses.asdict(way)), "--task", "mlp", "--steps", "24", "--loss"]
    found = workers.run([str(worker), *told], 2, timeout_seconds=patience.seconds(240)).said
    assert all(len(each["seconds"]) == 24 and each["loss"] < 2.3 for each in found), found


SAYS = """
from mpi4py import MPI
from testbed import workers
rank = MPI.COMM_WORLD.rank
if {condition}:
    workers.say({{"rank": rank}})
"""


def script(folder, condition, then=""):
    path = folder / "says.py"
    path.write_text(SAYS.format(condition=condition) + then)
    return [str(path)]


def test_reports_of_all_workers_are_collected(tmp_path):
    found = workers.run(script(tmp_path, "True"), 3, timeout_seconds=patience.seconds(60))
    assert sorted(each["rank"] for each in found.said) == [0, 1, 2]
    assert found.received_bytes == 0


@pytest.mark.parametrize(
    "condition,then,facts",
    [
        ("rank", "", ("2 ranks",)),
        ("True", "raise SystemExit('boom!')", ("exit status", "boom!")),
    ],
)
def test_worker_that_reports_nothing_or_fails_raises(tmp_path, condition, then, facts):
    with raises(workers.FailedError, facts, golden=False):
        workers.run(script(tmp_path, condition, then), 2, timeout_seconds=patience.seconds(60))


def test_names_of_baselines_are_unique():
    assert len({way.name for way in WAYS}) == len(WAYS)

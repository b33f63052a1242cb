"""The contenders of the testbed's training, each on two ranks without links."""

import dataclasses
import json
import pathlib

import pytest
import testbed
from testbed import workers
from testbed.training.ways import WAYS, Way

from jaxccomp.bench import launch

TOOLS = pathlib.Path(testbed.__file__).parents[1]


@pytest.mark.parametrize(
    "way",
    [
        Way("mpi"),
        Way("jaxccomp", "onebit", feedback=True, bucket_bytes=4 << 20),
        pytest.param(Way("jaxccomp", "int8", per_tensor=True), marks=pytest.mark.slow),
        pytest.param(
            Way("jaxccomp", "int4", feedback=True, per_tensor=True), marks=pytest.mark.slow
        ),
        pytest.param(
            Way("jaxccomp", "bf16", algorithm="chain", broadcasts=True), marks=pytest.mark.slow
        ),
    ],
    ids=lambda way: way.name,
)
def test_every_way_trains(way):
    """After some steps what no rank has seen is known better than by chance."""
    worker = TOOLS / "testbed/training/worker.py"
    told = [json.dumps(dataclasses.asdict(way)), "--task", "mlp", "--steps", "12", "--loss"]
    done = launch.run(2, [str(worker), *told], env={"PYTHONPATH": str(TOOLS)}, timeout_seconds=240)
    assert not done.error, done.output
    found = workers.said(done.output, 2)
    assert found is not None, done.output
    assert all(len(each["seconds"]) == 12 and each["loss"] < 2.3 for each in found), found


def test_names_of_ways_are_their_own():
    assert len({way.name for way in WAYS}) == len(WAYS)

"""Weights from ranks that train to ranks that act."""

import pathlib

import patience
import pytest
from stress import survivors

from jaxccomp.bench import launch

WORKER = str(pathlib.Path(__file__).with_name("sync_worker.py"))
LIMITS = {
    f"JAXCCOMP_{name}": f"{patience.seconds(40):g}"
    for name in ("TIMEOUT_SECONDS", "INIT_TIMEOUT_SECONDS")
}
slow = pytest.mark.slow


@pytest.mark.parametrize(
    "case,text,count,error",
    [
        ("values", "is right", 3, ""),
        ("raw", "is right", 3, ""),
        ("sharded", "is right", 2, ""),
        pytest.param("rounded", "is right", 3, "", marks=slow),
        pytest.param("leaves", "is right", 2, "", marks=slow),
        pytest.param("raises", "is right", 3, "exit status 1", marks=slow),
        pytest.param("publisher_raises", "was told", 3, "exit status 1", marks=slow),
        ("corrupted", "is right", 3, ""),
        pytest.param("fails_once", "is right", 3, "", marks=slow),
        pytest.param("stopped", "is right", 3, "", marks=slow),
        pytest.param("refusals", "is right", 4, "", marks=pytest.mark.slow),
        pytest.param("apart", "was told", 4, "", marks=slow),
    ],
)
def test_weights_reach_all_actors_or_raise(case, text, count, error):
    done = launch.run(4, [WORKER, case], env=LIMITS, timeout_seconds=patience.seconds(120))
    assert done.error == error, done.output
    assert done.output.count(text) == count, done.output


@slow
@pytest.mark.parametrize(
    "case,settings",
    [
        ("checked", {"JAXCCOMP_CHECK_LAUNCHES": "1"}),
        ("values", {"XLA_FLAGS": "--xla_force_host_platform_device_count=3"}),
        ("sharded", {"JAX_ENABLE_X64": "0"}),
    ],
)
def test_sync_works_with_launch_checks_several_devices_and_x32(case, settings):
    done = launch.run(
        4, [WORKER, case], env=LIMITS | settings, timeout_seconds=patience.seconds(120)
    )
    assert not done.error and "is right" in done.output, done.output


@slow
@pytest.mark.parametrize("case,text", [("dies", "is right"), ("publisher_dies", "was told")])
def test_killed_actor_is_dropped_and_killed_publisher_is_reported(case, text):
    if reason := survivors.why_not():
        pytest.skip(reason)
    output = survivors.run(4, [WORKER, case], LIMITS, timeout_seconds=patience.seconds(120))
    assert output.count(text) == 3, output

"""Programs that were compiled in other processes."""

import pathlib

import patience

from jaxccomp.bench import launch

WORKER = str(pathlib.Path(__file__).with_name("saved_worker.py"))


def test_executables_saved_by_another_process_run(tmp_path):
    for what in ("save", "load"):
        done = launch.run(2, [WORKER, what, str(tmp_path)], timeout_seconds=patience.seconds(100))
        assert not done.error, done.output

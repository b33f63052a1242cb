"""Files of the flight recorder in a job in which one rank does not come to an operation."""

import pathlib

import patience
import pytest

from jaxccomp.bench import launch
from jaxccomp.cli import main

WORKER = str(pathlib.Path(__file__).with_name("flight_worker.py"))


@pytest.mark.parametrize("case", ["signal", "deadline"])
def test_flight_command_names_the_rank_that_does_not_come(case, tmp_path, capsys):
    limit = 40 if case == "signal" else 1
    done = launch.run(
        3,
        [WORKER, str(tmp_path), case],
        env={
            "JAXCCOMP_FLIGHT_FOLDER": str(tmp_path),
            "JAXCCOMP_TIMEOUT_SECONDS": f"{patience.seconds(limit):g}",
        },
        timeout_seconds=patience.seconds(80),
    )
    assert done.output.count(" ends") == 3, done.output
    assert main.main(["flight", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert text.startswith("files of 3 of 3 ranks\n"), text
    operation = "allreduce(mean, float32[3], algorithm=one_shot) at flight_worker.py:"
    (title,) = [line for line in text.splitlines() if line.startswith(operation)]
    assert title.endswith(" on 'world'"), text
    assert "  rank 1 has never reached it" in text, text
    assert "wait for rank 1, which is in no operation that waits" in text, text
    assert f"the last one, {operation}" in text and "py-spy dump --pid" in text, text
    if case == "signal":
        assert "  ranks 0, 2 wait for rank 1, since" in text, text
    else:
        assert "DEADLINE_EXCEEDED" in text, text

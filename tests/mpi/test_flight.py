"""Files of the flight recorder in a job in which one rank does not come to an operation."""

import os
import pathlib
import re
import signal
import threading

import pages
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


def shape(text):
    """Return a report without line ends, times, and what identifies a process."""
    text = re.sub(r"[\d.]+ s\b", "N s", " ".join(text.split()))
    return re.sub(r"--pid \d+ on \S+", "--pid N on HOST", text)


@pytest.mark.slow
def test_debugging_page_shows_the_report_of_its_program(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    page = (pages.ROOT / "docs/debugging.md").read_text(encoding="utf-8")
    (program,) = [
        each for each in pages.programs("docs/debugging.md") if "time.sleep(3600)" in each.code
    ]
    # Each rank writes its pid; rank 1 once the other ranks have what they need to begin the step.
    pid = "open(f'pid-{world.rank}', 'w').write(str(__import__('os').getpid()))"
    code = program.code.replace("jcc.init()\n", f"jcc.init(); world.rank == 1 or {pid}\n")
    code = code.replace("time.sleep(3600)", f"{pid}; time.sleep(3600)")
    pathlib.Path("train.py").write_text(code, encoding="utf-8")
    flights = [pathlib.Path(f"flight/flight-{rank}.json") for rank in range(3)]
    running = []

    def interrupt():
        def pids():
            texts = [path.read_text() for path in map(pathlib.Path, names) if path.exists()]
            return [int(text) for text in texts if text]

        names = [f"pid-{rank}" for rank in range(3)]
        if patience.wait_for(lambda: len(pids()) == 3, 60):
            running.extend(pids())
            patience.wait_for(lambda: False, 1)  # until the others wait
            for each in running:
                os.kill(each, signal.SIGUSR1)
            patience.wait_for(lambda: all(path.exists() for path in flights), 20)
            for each in running:
                os.kill(each, signal.SIGKILL)

    thread = threading.Thread(target=interrupt)
    thread.start()
    launch.run(
        3,
        ["train.py"],
        env={"JAXCCOMP_FLIGHT_FOLDER": "flight", "JAX_ENABLE_X64": "0", "XLA_FLAGS": ""},
        timeout_seconds=patience.seconds(80),
    )
    thread.join()
    assert len(running) == 3
    assert main.main(["flight", "flight"]) == 0
    shown = page.partition("and which rank never came:\n\n```text\n")[2].partition("```")[0]
    assert shape(capsys.readouterr().out) == shape(shown)

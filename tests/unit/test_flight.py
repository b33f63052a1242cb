"""The flight recorder: its record of this process, and reports from the files of all ranks."""

import json

import jax
import jax.numpy as jnp
import pytest
from golden_errors import check_text, raises

import jaxccomp as jcc
from jaxccomp import config, errors
from jaxccomp.cli import main
from jaxccomp.trace import _flight

NOW = 1_800_000_000 * 10**9
SECOND = 10**9


def operation(text, begin, end=None, status=None, match="a1", sequence=1, waits=(), **changes):
    """An operation; times are seconds before the file was written."""
    return {
        "text": text,
        "communicator": 0,
        "thread": "0" * 16,
        "sequence": sequence,
        "match": match,
        "operand_bytes": 12,
        "sent_bytes": 0,
        "begin_ns": NOW - round(begin * SECOND),
        "end_ns": None if end is None else NOW - round(end * SECOND),
        "status": status or ("OPEN" if end is None else "OK"),
        "error": "",
        "waits_for": list(waits),
        **changes,
    }


def content(rank, size, *operations, **changes):
    return {
        "format": "jaxccomp.flight",
        "version": 1,
        "rank": rank,
        "size": size,
        "host": f"node{rank}",
        "pid": 100 + rank,
        "unix_ns": NOW,
        "reason": "SIGUSR1",
        "communicators": [{"name": "world", "id": "0" * 16, "ranks": list(range(size))}],
        "operations": list(operations),
        **changes,
    }


def report(folder, *files):
    for each in files:
        (folder / f"flight-{each['rank']}.json").write_text(json.dumps(each))
    return _flight.report(_flight.read_folder(folder))


STEP = "allreduce(mean, float32[3]) at train.py:9"
START = "bcast(float32[3], root=0) at train.py:3"


def test_flight_report_names_the_rank_that_never_began_the_operation(tmp_path):
    before = operation(START, 20, 19, match="a0", sequence=0)
    waiting = operation(STEP, 12.25, waits=[1])
    text = report(
        tmp_path,
        content(0, 3, before, waiting),
        content(1, 3, before),
        content(2, 3, before, operation(STEP, 12, waits=[0])),
    )
    check_text(
        text,
        "allreduce(mean, float32[3]) at train.py:9 on 'world'",
        "rank 0 waits for rank 1, since 12.2 s",
        "rank 2 waits for rank 0, since 12.0 s",
        "rank 1 has never reached it",
        "rank 0 waits for rank 1, which is in no operation that waits",
        START,
        "py-spy dump --pid 101 on node1",
    )


def test_flight_report_distinguishes_ended_and_passed_operations(tmp_path):
    text = report(
        tmp_path,
        content(0, 4, operation(STEP, 3, waits=[2])),
        content(1, 4, operation(STEP, 3, 2)),
        content(2, 4, operation(STEP, 3, 2, match="b7", sequence=9)),
    )
    check_text(
        text,
        "files of 3 of 4 ranks; none of rank 3",
        "ranks 1, 2 have ended it",
        "rank 3 has written no file",
    )


def test_flight_report_shows_ranks_that_wait_for_each_other(tmp_path):
    text = report(
        tmp_path,
        content(0, 2, operation(STEP, 3, waits=[1], match="")),
        content(1, 2, operation(START, 3, waits=[0], match="")),
    )
    check_text(text, STEP, START, "ranks 0, 1 wait for each other", "in the same order")


def test_flight_report_shows_the_error_of_a_failed_operation(tmp_path):
    why = "no progress for 10.0 s; rank 0 of 'world' waits for rank 1 of 'world'"
    failed = operation(STEP, 12, 2, "DEADLINE_EXCEEDED", waits=[1], error=why)
    text = report(tmp_path, content(0, 2, failed, reason=why), content(1, 2))
    check_text(
        text,
        "rank 0 waited for rank 1, and failed after 10.0 s: DEADLINE_EXCEEDED",
        why,
        "rank 1 has never reached it",
        "it has called no operation",
    )


def test_flight_report_shows_refused_calls(tmp_path):
    refused = operation(STEP, 1, 1, "ABORTED", match="", communicator=None, error="world is broken")
    check_text(report(tmp_path, content(0, 1, refused)), STEP, "refused", "world is broken")


def test_flight_report_names_missing_files(tmp_path):
    text = report(tmp_path, content(0, 2, operation(STEP, 3, waits=[1])))
    check_text(text, "rank 1, which has written no file", "SIGUSR1")


def test_flight_report_says_that_no_operation_is_open(tmp_path):
    old = content(1, 2, unix_ns=NOW - 300 * SECOND)
    text = report(tmp_path, content(0, 2, operation(STEP, 3, 2)), old)
    check_text(text, "no operation is open", "the file of rank 1 is 300 s older")


def test_flight_report_joins_ranks_in_the_same_state(tmp_path):
    files = [content(rank, 40, operation(STEP, 3, waits=[7])) for rank in range(40) if rank != 7]
    text = report(tmp_path, *files, content(7, 40))
    assert "  ranks 0-6, 8-39 wait for rank 7, since 3.0 s" in text.splitlines()
    assert len(text.splitlines()) < 10


def test_flight_report_escapes_control_characters(tmp_path):
    evil = operation("allreduce(\x1b[2J) at \x07x.py:1", 1, waits=[])
    assert "\x1b" not in report(tmp_path, content(0, 1, evil, host="\x1b]0;x"))


def changed(**changes):
    return lambda good: good.update(changes)


def changed_operation(**changes):
    return lambda good: good["operations"][0].update(changes)


BAD = {
    "format": (changed(format="jaxccomp.trace"), "no record of operations"),
    "version": (changed(version=2), ("version 2", "version 1")),
    "rank": (changed(rank=2), ("rank", "0 to 1", "not 2")),
    "rank of another file": (changed(rank=1), ("is of rank 1", "flight-1.json")),
    "size": (changed(size=0), ("size", "1 to")),
    "bool": (changed(rank=False), ("rank", "whole number")),
    "no host": (changed(host=None), ("host", "text")),
    "long": (changed(reason="x" * 5000), ("reason", "4096 characters")),
    "operations": (changed(operations={}), ("operations", "a list")),
    "operation": (changed(operations=[7]), ("operations[0]", "no object")),
    "communicator": (
        changed_operation(communicator=1),
        ("operations[0]", "communicator", "0 to 0"),
    ),
    "negative": (changed_operation(operand_bytes=-1), ("operations[0]", "operand_bytes", "not -1")),
    "end": (changed_operation(end_ns=1.5), ("operations[0]", "end_ns", "not 1.5")),
    "status": (changed_operation(status="\x1b[2J"), ("operations[0]", "status")),
    "waits for": (changed_operation(waits_for=[2]), ("operations[0]", "waits_for[0]", "0 to 1")),
    "no list": (changed_operation(waits_for=1), ("operations[0]", "waits_for", "a list")),
    "ranks": (
        lambda good: good["communicators"][0].update(ranks=["0"]),
        ("communicators[0]", "ranks[0]", "'0'"),
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_flight_report_refuses_and_names_invalid_files(name, tmp_path):
    change, facts = BAD[name]
    made = content(0, 2, operation(STEP, 3, waits=[1]))
    change(made)
    path = tmp_path / "flight-0.json"
    path.write_text(json.dumps(made))
    with raises(errors.InvalidArgumentError, path, facts):
        _flight.read_folder(tmp_path)


def test_flight_report_refuses_every_truncated_file(tmp_path):
    whole = json.dumps(content(0, 1, operation(STEP, 3))).encode()
    path = tmp_path / "flight-0.json"
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with raises(errors.InvalidArgumentError, "flight-0.json", golden=False):
            _flight.read_folder(tmp_path)
    path.write_bytes(b"[" * 100_000)
    with raises(errors.InvalidArgumentError, "flight-0.json", golden=False):
        _flight.read_folder(tmp_path)


def test_flight_command_refuses_folders_without_files(tmp_path, capsys):
    (tmp_path / "flight-0.json.part").touch()
    with raises(errors.InvalidArgumentError, tmp_path, "JAXCCOMP_FLIGHT_FOLDER", "SIGUSR1"):
        _flight.read_folder(tmp_path)
    assert main.main(["flight", str(tmp_path / "none")]) == 2
    check_text(capsys.readouterr().err, tmp_path / "none", "JAXCCOMP_FLIGHT_FOLDER")


def test_flight_report_refuses_files_of_different_runs(tmp_path):
    for each in (content(0, 2), content(1, 3)):
        (tmp_path / f"flight-{each['rank']}.json").write_text(json.dumps(each))
    with raises(errors.InvalidArgumentError, "of 3 ranks", "of 2", "earlier runs"):
        _flight.read_folder(tmp_path)


def test_flight_returns_the_operations_of_this_process():
    step = jax.jit(lambda x: jcc.allreduce(x, op="max"))
    for _ in range(3):
        step(jnp.ones(5, jnp.float32)).block_until_ready()
    record = jcc.trace.flight()
    *_, before, last = record.operations
    assert last.operation == "allreduce(max, float32[5])"
    assert last.where.startswith("test_flight.py:")
    assert (last.status, last.operand_bytes, last.communicator) == ("OK", 20, "world")
    assert before.begin <= before.end <= last.begin <= last.end <= record.time
    assert last.ranks == tuple(range(record.size)) and last.waits_for == ()
    assert len(record.operations) <= 1000
    assert last.text in str(record) and f"rank {record.rank} of {record.size}" in str(record)


def test_flight_folder_that_cannot_be_created_is_refused(tmp_path):
    (tmp_path / "file").touch()
    jcc.init()
    with raises(errors.InvalidArgumentError, "flight_folder", tmp_path / "file" / "sub"):
        config.set("flight_folder", str(tmp_path / "file" / "sub"))
    assert config.get("flight_folder") == ""

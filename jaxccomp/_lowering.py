"""How an operation becomes part of an XLA program: a call of the engine, or traced collectives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from jaxccomp import _compat, _engine, _registry, _xla, comm, errors
from jaxccomp._call import Call, split_references

# How results may take over the memory of operands or references (_compat.lower_ffi): not where
# an operand is still being sent when the result of the same shape arrives.
_ALIAS = {
    **dict.fromkeys(("bcast", "allreduce", "reduce", "scan", "exscan"), "free"),
    **dict.fromkeys(("barrier", "send"), "always"),
}


def lower(ctx: Any, *operands: Any, call: Call) -> Any:
    """The lowering rule of every collective's primitive."""
    if call.comm is not None:
        _check_one_device(ctx, call)
        native = _wants_engine(ctx, call)
        groups: list[list[int]] | None = []
    else:
        native = _wants_engine(ctx, call)
        groups = _compat.replica_groups(ctx, call.axes, call.groups) if native else None
        native = native and _reaches(call, groups)
    if not native:
        return _compat.lower_traced(
            ctx, lambda *xs: _xla.run(call, xs), operands, ordered=call.ordered
        )
    _registry.ensure_registered()
    return _compat.lower_ffi(
        ctx,
        _registry.TARGET,
        operands,
        _attributes(call, groups or [])
        | {
            "shapes": _shapes(ctx, call),
            "site": _compat.call_site_number(ctx, call.comm or (call.axes, call.groups)),
            "where": _compat.where(ctx)[-55:],
        },
        alias=_ALIAS.get(call.collective, "never"),
        ordered=call.ordered,
    )


def _shapes(ctx: Any, call: Call) -> str:
    """The operands as text that is the same on every rank: ``float32[8,4], int32[]``."""

    def text(aval: Any) -> str:
        # The rows of the v-variants are each rank's own; what must agree is in ``counts``.
        dims = ["?", *aval.shape[1:]] if call.counts else aval.shape
        return f"{aval.dtype.name}[{','.join(map(str, dims))}]"

    sent, _ = split_references(call, ctx.avals_in)
    return ", ".join(text(aval) for aval in sent if hasattr(aval, "dtype"))


def _attributes(call: Call, groups: Sequence[Sequence[int]]) -> dict[str, Any]:
    return {
        "collective": call.collective,
        "reduce_op": call.reduce_op,
        "root": call.root,
        "codec": call.codec,
        "backend": "auto" if call.backend == "native" else call.backend,
        "algorithm": call.algorithm,
        "communicator": call.comm.name if call.comm is not None else "",
        "groups": [device for group in groups for device in group],
        "group_size": call.size,
        "counts": call.counts,
        "pairs": call.pairs,
        "tag": call.tag,
        "reverse": int(call.reverse),
        "ordered": int(call.ordered),
        "referenced": int(call.referenced),
        "feedback": int(call.feedback),
    }


def _wants_engine(ctx: Any, call: Call) -> bool:
    """Whether the engine should run ``call``; raises when only it could and it cannot."""
    if call.backend == "xla":
        return False
    if _compat.platforms(ctx) != (_registry.PLATFORM,):
        reason = f"it has no handlers for platform {'/'.join(_compat.platforms(ctx))!r}"
    elif not _engine.available():
        reason = _engine.why_missing()
    else:
        return True
    alone = call.comm is not None and call.comm.size == 1
    if call.backend != "auto" or not (alone or call.comm is None):
        what = f'backend="{call.backend}"' if call.comm is None else f"comm={call.comm.name!r}"
        raise errors.EngineUnavailableError(
            f"{call.collective} with {what} needs the native engine, and {reason}. Run on CPU "
            "devices with the package installed, or name an axis (axis_name=) and use "
            'backend="xla".'
        )
    return False


def _reaches(call: Call, groups: list[list[int]] | None) -> bool:
    """Whether the engine can run ``call`` between the devices of ``groups``."""
    if groups is None:
        reason = "the mesh is abstract, so its devices are not known"
    elif any(len(group) != call.size for group in groups):
        reason = f"its groups differ in size ({[len(group) for group in groups]})"
    elif _crosses_processes(groups) and comm.why_unreachable():
        reason = comm.why_unreachable()
    else:
        return True
    if call.backend != "auto":
        raise errors.EngineUnavailableError(
            f"{call.collective} over {call.axes} cannot run on the native engine: {reason}"
        )
    return False


def _crosses_processes(groups: list[list[int]]) -> bool:
    process_of = {device.id: device.process_index for device in jax.devices(_registry.PLATFORM)}
    return any(len({process_of[device] for device in group}) > 1 for group in groups)


def _check_one_device(ctx: Any, call: Call) -> None:
    assert call.comm is not None
    count = _compat.device_count(ctx)
    if count > 1:
        raise errors.CommunicatorError(
            f"{call.collective} with comm={call.comm.name!r} at {_compat.where(ctx)}: a "
            f"communicator's ranks are processes, but this program runs on {count} devices. "
            "Inside shard_map or pmap name the axis to communicate over (axis_name=...), or run "
            "one process per device and keep the arrays on one device."
        )

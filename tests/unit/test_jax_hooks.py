"""The parts of JAX that the package relies on, and what happens where JAX lacks one."""

import ast
import contextlib
import logging
import pathlib
import subprocess
import sys
import types
import warnings

import jax
import numpy as np
import patience
import pytest
from jax._src import core, dispatch, effects
from jax._src.lax import parallel

import jaxccomp as jcc
from jaxccomp import _jax, errors
from jaxccomp._jax import (
    axes,
    equations,
    events,
    hooks,
    internals,
    lowering,
    primitives,
    source_lines,
)
from jaxccomp.cli import doctor, main

HOOKS = {hook.name: hook for hook in hooks.HOOKS}
_REMOVED = object()


def change(patch, user, module, **values):
    """Changes names of JAX's ``module`` as the file ``user`` of the package sees it."""
    original = getattr(user, module)
    changed = types.ModuleType(original.__name__)
    changed.__dict__.update({**vars(original), **values})
    for name in [name for name, value in values.items() if value is _REMOVED]:
        del changed.__dict__[name]
    patch.setattr(user, module, changed)


def keep_failed_tokens(patch):
    of_jax = dispatch.RuntimeTokenSet.get_token_input

    def get_token_input(self, effect, devices):
        if isinstance(token := self.current_tokens.get(effect), core.Token):
            token.block_until_ready()
        return of_jax(self, effect, devices)

    patch.setattr(dispatch.RuntimeTokenSet, "get_token_input", get_token_input)


def ignore_side_effects(patch):
    of_jax = jax.ffi.ffi_lowering
    patch.setattr(
        jax.ffi, "ffi_lowering", lambda name, has_side_effect, **rest: of_jax(name, **rest)
    )


def report_no_names(patch):
    monitoring, listeners = events.monitoring, {}

    def register(listener):
        listeners[listener] = lambda event, seconds, **about: listener(event, seconds)
        monitoring.register_event_duration_secs_listener(listeners[listener])

    def unregister(listener):
        monitoring.unregister_event_duration_listener(listeners.pop(listener))

    change(
        patch,
        events,
        "monitoring",
        register_event_duration_secs_listener=register,
        unregister_event_duration_listener=unregister,
    )


def cache_lowerings(patch):
    register = primitives.mlir.register_lowering
    change(
        patch, primitives, "mlir", register_lowering=lambda p, rule, cacheable: register(p, rule)
    )


# By hook: changes of JAX that break it.
REMOVALS = {
    "primitives": [
        lambda patch: change(patch, primitives, "dispatch", apply_primitive=_REMOVED),
        cache_lowerings,
    ],
    "derivatives": [
        lambda patch: change(patch, primitives, "ad", is_undefined_primal=lambda x: False),
        lambda patch: change(patch, primitives, "ad", p2tz=_REMOVED),
    ],
    "effects": [
        lambda patch: patch.setattr(effects, "lowerable_effects", effects.EffectTypeSet()),
        lambda patch: patch.setattr(
            effects, "control_flow_allowed_effects", effects.EffectTypeSet()
        ),
    ],
    "failed tokens": [keep_failed_tokens],
    "eager calls": [
        lambda patch: change(patch, primitives, "shard_map", ShardMapTrace=types.ModuleType),
    ],
    "named axes": [lambda patch: change(patch, axes, "core", get_axis_env=_REMOVED)],
    "varying types": [
        lambda patch: change(patch, axes, "config", _check_vma=types.SimpleNamespace(value=False)),
        lambda patch: change(patch, axes, "core", pvary=_REMOVED),
    ],
    "lowering context": [lambda patch: change(patch, lowering, "ir", StringAttr=_REMOVED)],
    "mesh devices": [lambda patch: change(patch, lowering, "pxla", axis_groups=_REMOVED)],
    "lowering to jax.lax": [lambda patch: change(patch, lowering, "mlir", lower_fun=_REMOVED)],
    "FFI calls": [ignore_side_effects],
    "reusable buffers": [lambda patch: change(patch, lowering, "ir", BlockArgument=_REMOVED)],
    "source lines": [
        lambda patch: change(patch, source_lines, "source_info", user_frame=lambda _: None),
        lambda patch: change(patch, source_lines, "source_info", user_context=_REMOVED),
    ],
    "collectives in jaxprs": [
        lambda patch: patch.setattr(parallel.ppermute_p, "name", "ppermute_renamed"),
        lambda patch: patch.setattr(parallel.psum_p, "name", "psum_renamed"),
    ],
    "functions in jaxprs": [
        lambda patch: patch.setattr(equations, "SCAN", "scan_renamed"),
        lambda patch: change(patch, equations, "linear_util", transformation2=_REMOVED),
    ],
    "compilation events": [
        lambda patch: change(patch, events, "dispatch", BACKEND_COMPILE_EVENT="/renamed"),
        lambda patch: change(patch, events, "dispatch", BACKEND_COMPILE_EVENT=_REMOVED),
        report_no_names,
    ],
    "loaded executables": [
        lambda patch: change(patch, events, "serialize_executable", _JaxPjrtUnpickler=_REMOVED),
        lambda patch: change(
            patch, events, "serialize_executable", _JaxPjrtUnpickler=type("Renamed", (), {})
        ),
    ],
    "compiled programs": [
        lambda patch: change(patch, events, "compiler", compile_or_get_cached=_REMOVED),
        lambda patch: change(patch, events, "hlo", HloPrintOptions=_REMOVED),
    ],
    "callback errors": [
        lambda patch: change(patch, events, "callback", logger=logging.getLogger("renamed")),
        lambda patch: change(patch, events, "debugging", logger=_REMOVED),
    ],
    "profiles": [
        lambda patch: patch.setattr(
            jax.profiler, "TraceAnnotation", lambda name: contextlib.nullcontext()
        ),
    ],
    "jax.distributed": [lambda patch: change(patch, events, "distributed", global_state=_REMOVED)],
    "unknown values": [lambda patch: patch.setattr(primitives, "_TEXTS_OF_DEPENDENCE", ())],
}


@pytest.fixture(autouse=True)
def no_earlier_results():
    """Forgets results of self-tests, and the warnings given."""
    yield
    doctor._hooks.cache_clear()
    hooks.require.cache_clear()
    internals._warned.clear()


@pytest.mark.parametrize("name", HOOKS)
def test_each_hook_works_with_the_installed_jax(name):
    assert HOOKS[name].problem() is None


@pytest.mark.parametrize(
    "setting, value",
    [
        ("jax_disable_jit", True),
        ("jax_debug_nans", True),
        ("jax_numpy_rank_promotion", "raise"),
        ("jax_enable_x64", True),
    ],
)
def test_self_tests_pass_with_changed_jax_settings(setting, value):
    before = getattr(jax.config, setting)
    jax.config.update(setting, value)
    try:
        for name in ("functions in jaxprs", "collectives in jaxprs", "eager calls"):
            assert HOOKS[name].problem() is None
    finally:
        jax.config.update(setting, before)


@pytest.mark.parametrize(
    "name, remove",
    [
        pytest.param(name, remove, id=f"{name}-{i}")
        for name, removals in REMOVALS.items()
        for i, remove in enumerate(removals)
    ],
)
def test_doctor_names_a_removed_hook(name, remove, monkeypatch, capsys):
    with monkeypatch.context() as patch:
        remove(patch)
        patch.setattr(hooks, "HOOKS", (HOOKS[name],))
        doctor._hooks.cache_clear()
        assert main.main(["doctor"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("error    " + name)
    assert f"JAX {jax.__version__}: 0 of 1 hooks work" in lines
    assert HOOKS[name].used_for in " ".join(" ".join(lines[:5]).split())


def test_removal_cases_cover_every_hook():
    assert set(REMOVALS) == set(HOOKS)


def test_errors_and_warnings_name_only_known_hooks():
    """Finds the first argument of ``uses``, ``at_import`` and ``warn``, and constants ``hook``."""
    named = set()
    for path in pathlib.Path(internals.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            value = None
            if isinstance(node, ast.Call) and node.args:
                function = node.func
                called = getattr(function, "id", getattr(function, "attr", ""))
                value = node.args[0] if called in ("uses", "at_import", "warn") else None
            elif isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "hook":
                value = node.value
            if isinstance(value, ast.Constant):
                named.add(value.value)
    silent = {"unknown values"}  # JAX's own error is shown in place of ours
    assert named == set(HOOKS) - silent


def test_removed_hook_raises_jax_hook_error_at_its_use(monkeypatch):
    change(monkeypatch, axes, "core", get_axis_env=_REMOVED)
    with pytest.raises(errors.JaxHookError, match="'named axes'.*get_axis_env.*doctor"):
        _jax.axes_in_scope()


def test_removed_primitive_hook_raises_jax_hook_error_at_its_use(monkeypatch):
    change(monkeypatch, primitives, "dispatch", apply_primitive=_REMOVED)
    rules = dict.fromkeys(("abstract_eval", "jvp", "transpose", "batcher", "lowering"))
    primitive = _jax.new_primitive("unusable", **rules)
    with pytest.raises(errors.JaxHookError, match="'primitives'.*apply_primitive"):
        primitive.bind(1)


def test_exceptions_of_user_functions_propagate_unchanged():
    def branch():
        raise TypeError("of the caller")

    with pytest.raises(TypeError, match="^of the caller$"):
        _jax.at_this_line(branch)()


def compile_something():
    jax.jit(lambda x: x + 1).lower(1.0).compile()


@pytest.mark.parametrize(
    "remove, install, name",
    [
        (REMOVALS["compilation events"][1], _jax.on_compiled, "compilation events"),
        (REMOVALS["compilation events"][2], _jax.on_compiled, "compilation events"),
        (REMOVALS["loaded executables"][0], _jax.on_loaded, "loaded executables"),
        (REMOVALS["loaded executables"][1], _jax.on_loaded, "loaded executables"),
        (REMOVALS["callback errors"][1], _jax.on_callback_error, "callback errors"),
    ],
)
def test_removed_silent_hook_warns_once_at_its_use(remove, install, name, monkeypatch):
    remove(monkeypatch)
    with pytest.warns(errors.JaxHookWarning, match=f"'{name}'") as given:
        for _ in range(2):
            stop = install(lambda text: None)
            compile_something()
            stop()
    assert len([each for each in given if each.category is errors.JaxHookWarning]) == 1


def test_missing_compilation_events_warn(monkeypatch):
    change(monkeypatch, events, "dispatch", BACKEND_COMPILE_EVENT="/renamed")
    monkeypatch.setattr(events, "_SILENT_PROGRAMS", 2)
    collectives = []
    stop = _jax.on_compiled(lambda text: None, has_run=lambda: bool(collectives))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):  # programs that are only lowered
            compile_something()
    collectives.append("allreduce")
    with pytest.warns(errors.JaxHookWarning, match="4 programs and not one event '/renamed'"):
        compile_something()
    stop()


def test_compress_refuses_if_a_collective_primitive_is_renamed(monkeypatch):
    monkeypatch.setattr(parallel.psum_p, "name", "psum_renamed")
    hooks.require.cache_clear()
    with pytest.raises(errors.JaxHookError, match="'collectives in jaxprs'"):
        jcc.compress(lambda x: x, "lossless")(np.ones(3))


REMOVED_BEFORE_IMPORT = """
import sys
import warnings
import jax.extend.core
from jax._src import source_info_util, xla_bridge
from jax.experimental import serialize_executable
del source_info_util.register_exclusion
del serialize_executable._JaxPjrtUnpickler
with warnings.catch_warnings(record=True) as given:
    warnings.simplefilter("always")
    import jaxccomp.ops
    from jaxccomp.cli import main
assert ["'source lines'" in str(each.message) for each in given] == [True], given
assert not xla_bridge.backends_are_initialized()
sys.exit(main.main(["doctor"]))
"""


def test_doctor_works_without_parts_of_jax():
    done = subprocess.run(
        [sys.executable, "-P", "-c", REMOVED_BEFORE_IMPORT],
        capture_output=True,
        text=True,
        timeout=patience.seconds(120),
    )
    assert done.returncode == 1, done.stderr
    found = [line.split("  ")[0] for line in done.stdout.splitlines() if line.startswith("error")]
    assert found == ["error", "error"], done.stdout
    assert "error    source lines" in done.stdout and "error    loaded executables" in done.stdout
    assert f"{len(HOOKS) - 2} of {len(HOOKS)} hooks work" in done.stdout

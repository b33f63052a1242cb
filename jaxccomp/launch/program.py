"""Runs a script or ``-m MODULE`` as Python does, and reports a failure to the launcher.

With mpi4py, a rank that raises an exception waits at exit in MPI_Finalize for all other ranks, and
they wait for its messages: a deadlock. The rank therefore reports its failure before exit, and the
launcher ends all ranks. This file imports only modules that Python imports for any script.
"""

import os
import sys
import types

_RANK = os.getpid()


def main() -> None:
    """Run the program of the command line in a new module ``__main__``."""
    del sys.argv[0]
    sys.excepthook = _hook
    module = types.ModuleType("__main__")
    module.__dict__["__builtins__"] = __builtins__
    if sys.argv[0] == "-m":
        del sys.argv[0]
        code = _module_code(module)
    else:
        script = sys.argv[0]
        if not sys.flags.safe_path:
            sys.path[0] = os.path.dirname(os.path.realpath(script))
        with open(script, "rb") as file:
            code = compile(file.read(), script, "exec")
        module.__file__ = script
    if os.environ.pop("JAXCCOMP_LIVE", ""):  # not in programs that this program starts
        from jaxccomp.launch import lines

        lines.start_reports()
    if os.path.basename(os.environ.get("MPITRAMPOLINE_LIB", "")) == "libjaxccomp_xla.so":
        import jaxccomp  # noqa: F401  (runs XLA's own collectives on the engine: jaxccomp/_primitives/xla_collectives.py)
    # Keep this module alive: its functions are called at the end.
    sys.modules["jaxccomp_program"] = sys.modules["__main__"]
    sys.modules["__main__"] = module
    try:
        exec(code, module.__dict__)
    except SystemExit as end:
        if end.code not in (None, 0):
            _tell(end.code if isinstance(end.code, int) else 1)
        raise


def _module_code(main: types.ModuleType) -> types.CodeType:
    """Return the code of the module ``sys.argv[0]``; set the attributes of ``main`` as Python does.

    ``sys.argv[0]`` becomes the module's file, and the working folder is searched for modules.
    """
    import importlib.abc  # scripts do not need these modules
    import importlib.util

    name = sys.argv[0]
    if not sys.flags.safe_path:
        sys.path[0] = os.getcwd()
    try:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            name = f"{name}.__main__"
            spec = importlib.util.find_spec(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # the module's package fails to import another module
        spec = None
    loader = None if spec is None else spec.loader
    code = loader.get_code(name) if isinstance(loader, importlib.abc.InspectLoader) else None
    if spec is None or code is None:
        what = "is a package without __main__.py" if name != sys.argv[0] else "is not found"
        sys.exit(f"{sys.executable}: module {sys.argv[0]!r} {what}")
    main.__spec__, main.__loader__, main.__package__ = spec, loader, spec.parent
    main.__file__ = sys.argv[0] = spec.origin or name
    return code


def _hook(kind: type, value: BaseException, trace: types.TracebackType | None) -> None:
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next  # the traceback is the program's own
    value.__traceback__ = trace
    sys.__excepthook__(kind, value, trace)
    # The launcher forwarded the Ctrl-C: no report needed.
    if not issubclass(kind, KeyboardInterrupt):
        _tell(1)


def _tell(status: int) -> None:
    if os.getpid() != _RANK:  # a forked child of the program
        return
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    # The line format of jaxccomp.launch.lines.
    os.write(2, b'\x1ejaxccomp {"status": %d}\n' % (status & 255))


if __name__ == "__main__":
    main()

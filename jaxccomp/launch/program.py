"""Runs a script as ``python SCRIPT ARGUMENT...`` does, and reports a failure to the launcher.

With mpi4py, a rank that raises an exception waits at exit in MPI_Finalize for all other ranks, and
they wait for its messages: a deadlock. The rank therefore reports its failure before exit, and the
launcher ends all ranks. This file imports only modules that Python imports for any script.
"""

import os
import sys
import types

_RANK = os.getpid()


def main() -> None:
    """Run the script of the command line in a new module ``__main__``."""
    del sys.argv[0]
    script = sys.argv[0]
    if not sys.flags.safe_path:
        sys.path[0] = os.path.dirname(os.path.realpath(script))
    sys.excepthook = _hook
    with open(script, "rb") as file:
        code = compile(file.read(), script, "exec")
    module = types.ModuleType("__main__")
    module.__file__ = script
    module.__dict__["__builtins__"] = __builtins__
    # Keep this module alive: its functions are called at the end.
    sys.modules["jaxccomp_program"] = sys.modules["__main__"]
    sys.modules["__main__"] = module
    try:
        exec(code, module.__dict__)
    except SystemExit as end:
        if end.code not in (None, 0):
            _tell(end.code if isinstance(end.code, int) else 1)
        raise


def _hook(kind: type, value: BaseException, trace: types.TracebackType | None) -> None:
    if trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next and trace.tb_next.tb_next  # omit this file's two frames
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

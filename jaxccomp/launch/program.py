"""Runs a script as ``python SCRIPT ARGUMENT...`` would, and tells at once when it has failed.

At its end a rank with mpi4py waits in MPI_Finalize for all others, even when an exception has ended
it and the others wait for it. So the launcher hears of the failure before that, and ends them all.
This file imports nothing that a script would not find imported anyway.
"""

import os
import sys
import types

_RANK = os.getpid()


def main() -> None:
    """Runs the script that the command line names, in a module ``__main__`` of its own."""
    del sys.argv[0]
    script = sys.argv[0]
    if not sys.flags.safe_path:
        sys.path[0] = os.path.dirname(os.path.realpath(script))
    sys.excepthook = _hook
    with open(script, "rb") as file:
        code = compile(file.read(), script, "exec")
    module = types.ModuleType("__main__")
    module.__file__ = script
    module.__builtins__ = __builtins__
    # This module must live on, as its functions are called at the end.
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
        trace = trace.tb_next and trace.tb_next.tb_next  # this file's two frames say nothing
    value.__traceback__ = trace
    sys.__excepthook__(kind, value, trace)
    # Ctrl-C comes by way of the launcher, which knows.
    if not issubclass(kind, KeyboardInterrupt):
        _tell(1)


def _tell(status: int) -> None:
    if os.getpid() != _RANK:  # a child that the program has forked, whose end is not the rank's
        return
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    # A line as jaxccomp.launch.lines reads it.
    os.write(2, b'\x1ejaxccomp {"status": %d}\n' % (status & 255))


if __name__ == "__main__":
    main()

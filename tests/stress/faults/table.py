"""The faults, their places, and the errors that the ranks must get."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

OPERATIONS = ("bcast", "allreduce", "alltoall", "send/recv")
PLACES = ("mpich", "openmpi", "8 devices")
PROCESSES = ("mpich", "openmpi")
ONE_PROGRAM = "the devices of one process run one program"
ONE_PROCESS = "the devices of one process share its memory"
ENDS_ALL = "the process ends with all its devices"


@dataclasses.dataclass(frozen=True)
class Fault:
    """One row.

    Attributes:
      name: of the fault.
      others: pattern of the error on every other rank; {victim} is the victim's rank. Empty: all
        values must be right.
      victim: the same for the victim; None: any error, or none.
      seconds: the deadline of an operation while the fault lasts.
      options: environment of the job.
      not_on_devices: why it cannot happen between devices of one process.
      not_for: excluded operations, and why.
      ends_process: whether the victim dies.
      ends_job: whether the launcher then ends all others, as Open MPI's always does.
    """

    name: str
    others: str
    victim: str | None
    seconds: float = 10.0
    options: Mapping[str, str] = dataclasses.field(default_factory=dict)
    not_on_devices: str = ""
    not_for: Mapping[str, str] = dataclasses.field(default_factory=dict)
    ends_process: bool = False
    ends_job: bool = False


_CHECKED = {"JAXCCOMP_CHECK_LAUNCHES": "1"}
_LEFT = "rank {victim} .*left|come apart.*rank {victim} |rank {victim} .*come apart|bad batch"
_DIFFERS = "rank {victim} "
_DIED = "rank {victim} of the world has died"

FAULTS = (
    Fault("exception, caught", _LEFT, "bad batch|come apart",
          not_for={"send/recv": "as in MPI, the next message is taken (docs/sharp_bits.md)"}),
    Fault("exception, caught, check_launches", _LEFT + "|rank {victim} has sent in step",
          "bad batch|come apart|step", options=_CHECKED, not_on_devices="the row above"),
    Fault("shape", _DIFFERS, "rank", not_on_devices=ONE_PROGRAM),
    Fault("dtype", _DIFFERS, "rank", not_on_devices=ONE_PROGRAM),
    Fault("codec", _DIFFERS, "rank", not_on_devices=ONE_PROGRAM),
    Fault("order", _DIFFERS, "rank", not_on_devices=ONE_PROGRAM),
    Fault("skip", _DIFFERS, "rank", options=_CHECKED, not_on_devices=ONE_PROGRAM),
    Fault("re-run", _DIFFERS, "rank", options=_CHECKED, not_on_devices=ONE_PROGRAM),
    Fault("Ctrl-C", r"rank {victim} .*was interrupted \(SIGINT\)",
          r"was interrupted \(SIGINT\)|^KeyboardInterrupt$"),
    Fault("SIGSTOP, SIGCONT in time", "", ""),
    Fault("SIGSTOP, SIGCONT too late", "rank {victim} ", None, seconds=1.5,
          not_on_devices=ENDS_ALL.replace("ends", "stops")),
    Fault("late payload", "rank {victim} ", None, seconds=3.0,
          not_on_devices=ONE_PROCESS),
    Fault("SIGKILL", _DIED, None, ends_process=True),
    Fault("SIGKILL, the launcher ends the job", _DIED, None, ends_process=True, ends_job=True),
    Fault("exit status 3", _DIED, None, ends_process=True),
    Fault("exception, uncaught",
          "rank {victim} of the world has ended with RuntimeError: boom", None,
          ends_process=True),
    Fault("early exception",
          "rank {victim} of the world has ended with RuntimeError: boom", None,
          ends_process=True),
    Fault("early exit", _DIED, None, ends_process=True),
)  # fmt: skip

BY_NAME = {fault.name: fault for fault in FAULTS}

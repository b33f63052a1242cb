"""The kinds of faults on a testbed's hosts."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from typing import NamedTuple

from testbed import plan as plans


class Fault(NamedTuple):
    """A kind of fault.

    Attributes:
      about: its name in tables.
      begin: starts the fault on a host and the process that runs there.
      end: ends the fault.
      seconds: its duration.
    """

    about: str
    begin: Callable[[plans.Plan, int, int], None]
    end: Callable[[plans.Plan, int, int], None]
    seconds: float


def _signal(number: signal.Signals) -> Callable[[plans.Plan, int, int], None]:
    def send(plan: plans.Plan, host: int, pid: int) -> None:  # noqa: ARG001 - as others
        os.kill(pid, number)

    return send


def _link(state: str) -> Callable[[plans.Plan, int, int], None]:
    def change(plan: plans.Plan, host: int, pid: int) -> None:  # noqa: ARG001 - as others
        port = plan.hosts[host].name
        subprocess.run(["ip", "-n", plan.switch.namespace, "link", "set", port, state], check=True)

    return change


def _rate(factor: float) -> Callable[[plans.Plan, int, int], None]:
    def change(plan: plans.Plan, host: int, pid: int) -> None:  # noqa: ARG001 - as others
        shape = plan.shape
        rate = f"rate {int(shape.rate * factor)}bit burst {shape.burst} limit {shape.limit}"
        for namespace, device in (
            (plan.hosts[host].namespace, "eth0"),
            (plan.switch.namespace, plan.hosts[host].name),
        ):
            command = ["tc", "-n", namespace, "qdisc", "change", "dev", device, "root", "tbf"]
            subprocess.run([*command, *rate.split()], check=True)

    return change


def _nothing(plan: plans.Plan, host: int, pid: int) -> None:
    pass


KINDS = {
    "kill": Fault("process killed", _signal(signal.SIGKILL), _nothing, 0.0),
    "stop": Fault("process stopped", _signal(signal.SIGSTOP), _signal(signal.SIGCONT), 6.0),
    "cable": Fault("cable pulled", _link("down"), _link("up"), 6.0),
    "slow": Fault("link ten times as slow", _rate(0.1), _rate(1.0), 5.0),
}

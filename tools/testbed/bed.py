"""The testbed: a context manager that creates the hosts on entry and removes them on exit."""

from __future__ import annotations

import contextlib
import pathlib
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Self

from jaxccomp import errors
from jaxccomp.bench import launch
from jaxccomp.launch import signals
from testbed import launchers, network
from testbed import plan as plans

TIMED_OUT = 124  # exit status, as of timeout(1)
_STREAM = str(pathlib.Path(__file__).with_name("stream.py"))
_PORT = "5001"


class Testbed:
    """Several emulated hosts with slow links, on this machine.

    Example:
      >>> with Testbed(hosts=4, link="1gbit") as bed:                    # doctest: +SKIP
      ...     bed.run(["python", "train.py"])
    """

    __test__ = False  # pytest must not collect this class

    def __init__(self, hosts: int = 4, link: str = "1gbit"):
        """Checks the arguments and the machine; creates nothing yet.

        Args:
          hosts: number of hosts, 2 to 8.
          link: rate of each host's link, in each direction: "100mbit" to "5gbit".

        Raises:
          TestbedError: when this machine cannot run a testbed; names the reason.
        """
        self.plan = plans.make(hosts, link, network.own_name())
        if reason := network.why_not():
            raise network.TestbedError(reason)
        self._cleanup = contextlib.ExitStack()

    def __enter__(self) -> Self:
        network.remove_stale()
        with contextlib.ExitStack() as stack:
            # The folder's name begins with a namespace's name, which names the owner. A later
            # testbed removes the folder if the owner has ended.
            prefix = f"{self.plan.switch.namespace}-"
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix=prefix))
            self._agent = launchers.write_agent(self.plan, pathlib.Path(folder))
            stack.callback(self._remove)
            network.make(self.plan)
            self._cleanup = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._cleanup.close()

    def _remove(self) -> None:
        with signals.uninterrupted():
            network.remove(self._namespaces)

    def run(
        self,
        program: Sequence[str],
        *,
        ranks_per_host: int = 1,
        mpi: str | None = None,
        python: str = sys.executable,
        env: Mapping[str, str] | None = None,
        flags: Sequence[str] = (),
        timeout_seconds: float | None = None,
        capture: bool = False,
    ) -> subprocess.CompletedProcess[str]:
        """Runs a program as MPI ranks, in host order, and waits for it.

        Args:
          program: the command.
          ranks_per_host: number of ranks on each host.
          mpi: "mpich" or "openmpi"; by default the MPI that ``python``'s mpi4py loads.
          python: the interpreter whose environment has the MPI.
          env: added to this process's environment.
          flags: more options of mpiexec.
          timeout_seconds: time after which to kill it; by default never.
          capture: return the output (both streams as one) instead of showing it.

        Returns:
          ``returncode`` is mpiexec's, or 124 after a timeout; ``stdout`` is the captured output.
        """
        if ranks_per_host < 1:
            raise errors.InvalidArgumentError(
                f"ranks per host must be at least 1, not {ranks_per_host}."
            )
        name = launchers.find(mpi, python)
        command = launchers.command(
            name,
            self.plan,
            self._agent,
            program,
            python=python,
            ranks_per_host=ranks_per_host,
            flags=flags,
        )
        environment = launchers.environment(name, ranks_per_host) | dict(env or {})
        # mpiexec runs on the switch, which all hosts can reach.
        return self._wait(
            subprocess.Popen(
                [self._agent, self.plan.switch.name, f"exec {shlex.join(command)}"],
                env=launch.environment(environment),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if capture else None,
                stderr=subprocess.STDOUT if capture else None,
                text=True,
                start_new_session=True,
            ),
            timeout_seconds,
        )

    def received_bytes(self) -> int:
        """Bytes that all hosts have received over their links so far, including headers."""
        return network.received_bytes(self.plan)

    def measure_goodput(
        self, *, all_pairs: bool = False, seconds: float = 0.5
    ) -> dict[tuple[int, int], float]:
        """Bytes per second of a TCP stream between hosts, by (sender, receiver), one at a time.

        Args:
          all_pairs: measure every ordered pair; otherwise the first two hosts, in both directions.
          seconds: duration of each stream.
        """
        count = len(self.plan.hosts) if all_pairs else 2
        pairs = [(a, b) for a in range(count) for b in range(count) if a != b]
        return {pair: self._stream(*pair, seconds) for pair in pairs}

    def _stream(self, sender: int, receiver: int, seconds: float) -> float:
        def start(host: plans.Host, *arguments: str) -> subprocess.Popen[str]:
            command = ["ip", "netns", "exec", host.namespace, sys.executable, "-IS", _STREAM]
            return subprocess.Popen([*command, *arguments], stdout=subprocess.PIPE, text=True)

        to = self.plan.hosts[receiver]
        with start(to, "receive", to.address, _PORT) as server:
            try:
                server.stdout.readline()
                arguments = ("send", to.address, _PORT, str(seconds))
                with start(self.plan.hosts[sender], *arguments) as client:
                    client.wait()
                rate, _ = server.communicate()
            except BaseException:
                server.kill()
                raise
        if server.returncode or client.returncode:
            raise network.TestbedError(f"the stream from host {sender} to {receiver} broke off.")
        return float(rate)

    def _wait(
        self, process: subprocess.Popen[str], timeout_seconds: float | None
    ) -> subprocess.CompletedProcess[str]:
        try:
            output, _ = process.communicate(timeout=timeout_seconds)
            status = process.returncode
        except subprocess.TimeoutExpired:
            self.kill()
            output, _ = process.communicate()
            status = TIMED_OUT
        finally:
            # Leave no process of this run to disturb the next.
            with signals.uninterrupted():
                self.kill()
                process.wait()
        return subprocess.CompletedProcess(process.args, status, output)

    def kill(self) -> None:
        """Kills all processes on the hosts and the switch."""
        network.kill(self._namespaces)

    @property
    def _namespaces(self) -> list[str]:
        return [each.namespace for each in (*self.plan.hosts, self.plan.switch)]

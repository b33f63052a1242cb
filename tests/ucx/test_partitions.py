"""Partitions of a group whose processes are in network namespaces of their own, one host each."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import threading
import time

import patience
import pytest

WORKER = pathlib.Path(__file__).with_name("partition_worker.py")
SILENCE_SECONDS = min(patience.seconds(1), 6.0)
PORT = 4321
# A MAC address that no interface of the bridge has.
NOWHERE = "02:00:00:00:00:99"
RUNS = int(os.environ.get("JAXCCOMP_TEST_PARTITIONS", "1"))

HAS_NAMESPACES = (
    bool(shutil.which("ip"))
    and not subprocess.run(["unshare", "--net", "--uts", "true"], capture_output=True).returncode
)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not HAS_NAMESPACES, reason="takes root and network namespaces"),
]


def ip(*words):
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


def mac_of(namespace):
    command = ["ip", "-n", namespace, "-j", "link", "show", "eth0"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(shown.stdout)[0]["address"]


class Bed:
    """A bridge, and a namespace for each host."""

    def __init__(self, size):
        self.size = size
        self._prefix = f"jcp{os.getpid()}"
        self.switch = f"{self._prefix}-switch"
        self.hosts = [f"{self._prefix}-{host}" for host in range(size)]
        self.members, self.firewalls = [], []
        self.ended = {}  # by host: when its member's process had ended

    def __enter__(self):
        for name in (self.switch, *self.hosts):
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
        ip("-n", self.switch, "link", "add", "br0", "type", "bridge")
        ip("-n", self.switch, "address", "add", "10.9.0.254/24", "dev", "br0")
        ip("-n", self.switch, "link", "set", "br0", "up")
        for host, name in enumerate(self.hosts):
            link = f"h{host}"
            ip(
                *("-n", self.switch, "link", "add", link, "type", "veth"),
                *("peer", "name", "eth0", "netns", name),
            )
            ip("-n", self.switch, "link", "set", link, "master", "br0", "up")
            ip("-n", name, "address", "add", f"{self.address(host)}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "eth0", "up")
        return self

    def __exit__(self, *_):
        for member in self.members:
            member.kill()
            member.wait()
        for name in (self.switch, *self.hosts, *self.firewalls):
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)

    def address(self, host):
        return f"10.9.0.{host + 1}"

    def start(self, seconds):
        for host, name in enumerate(self.hosts):
            env = {k: v for k, v in os.environ.items() if not k.startswith(("PMI", "OMPI_COMM"))}
            env |= {
                "JAX_PLATFORMS": "cpu",
                "JAXCCOMP_SECRET": "a secret of the tests",
                "JAXCCOMP_COORDINATOR": f"{self.address(0)}:{PORT}",
                "JAXCCOMP_RANK": str(host),
                "JAXCCOMP_SIZE": str(self.size),
                "JAXCCOMP_PEER_TIMEOUT_SECONDS": str(SILENCE_SECONDS),
            }
            inside = f"hostname {name}; exec {sys.executable} -P {WORKER} {seconds}"
            command = ["ip", "netns", "exec", name, "unshare", "--uts", "sh", "-c", inside]
            self.members.append(
                subprocess.Popen(
                    command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env
                )
            )
            threading.Thread(target=self._watch, args=(host,), daemon=True).start()

    def _watch(self, host):
        self.members[host].wait()
        self.ended[host] = time.time()

    def wait_until_all_work(self):
        for member in self.members:
            line = ""
            while '"works"' not in line:
                line = member.stdout.readline()
                assert line, "a member ended before all had met"

    def _firewall(self, source, destination):
        """The MAC of a host with the destination's address, which answers the source by RST."""
        name, link = f"{self._prefix}-fw{destination}", f"f{destination}"
        if name not in self.firewalls:
            self.firewalls.append(name)
            ip("netns", "add", name)
            ip(
                *("-n", self.switch, "link", "add", link, "type", "veth"),
                *("peer", "name", "eth0", "netns", name),
            )
            ip("-n", self.switch, "link", "set", link, "master", "br0", "up")
            ip("-n", name, "address", "add", f"{self.address(destination)}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "eth0", "arp", "off", "up")
        ip(
            *("-n", name, "neigh", "replace", self.address(source), "lladdr"),
            *(mac_of(self.hosts[source]), "nud", "permanent", "dev", "eth0"),
        )
        return mac_of(name)

    def cut(self, source, destination, how):
        """Packets of one host to another one are lost, or answered by RST."""
        mac = self._firewall(source, destination) if how == "refused" else NOWHERE
        ip(
            *("-n", self.hosts[source], "neigh", "replace", self.address(destination)),
            *("lladdr", mac, "nud", "permanent", "dev", "eth0"),
        )


CUTS = {
    "two and two": ([(0, 2), (0, 3), (1, 2), (1, 3)], [{0, 1}]),
    "first alone": ([(0, 1), (0, 2), (0, 3)], [{1, 2, 3}]),
    "star": ([(0, 2), (0, 3), (2, 3)], [{0, 1}, {1, 2}, {1, 3}]),
    "ring": ([(0, 1), (2, 3)], [{0, 2}, {0, 3}, {1, 2}, {1, 3}]),
}


def events(member):
    lines = [json.loads(x) for x in member.stdout.read().splitlines() if x.startswith('{"event')]
    return lines


@pytest.mark.parametrize("run", range(RUNS))
@pytest.mark.parametrize("how", ["silent", "refused", "one way"])
@pytest.mark.parametrize("name", CUTS)
def test_network_partition_leaves_one_working_group(name, how, run):
    pairs, expected = CUTS[name]
    with Bed(4) as bed:
        bed.start(120)
        bed.wait_until_all_work()
        cut_at = time.time()
        for one, other in pairs:
            bed.cut(one, other, "refused" if how == "refused" else "silent")
            if how != "one way":
                bed.cut(other, one, "refused" if how == "refused" else "silent")
        time.sleep(4 * SILENCE_SECONDS + 5)
        for host, member in enumerate(bed.members):
            if host not in bed.ended:
                os.kill(member.pid, signal.SIGTERM)
        found = [events(member) for member in bed.members]
        codes = [member.wait() for member in bed.members]
        assert patience.wait_for(lambda: len(bed.ended) == 4, 10)
    works = {
        rank: [e for e in each if e["event"] == "works"][-1]["members"]
        for rank, each in enumerate(found)
        if any(e["event"] == "works" for e in each) and codes[rank] == -signal.SIGTERM
    }
    ends = {
        rank: (e["kind"], round(e["time"] - cut_at, 1), round(bed.ended[rank] - e["time"], 1))
        for rank, each in enumerate(found)
        for e in each
        if e["event"] == "ends"
    }
    print(json.dumps({"cut": name, "how": how, "works": works, "ends": ends, "codes": codes}))
    groups = {tuple(members) for members in works.values()}
    assert len(groups) == 1, (works, ends, found)
    assert set(groups.pop()) == set(works) and set(works) in expected, (works, ends)
    assert {kind for kind, *_ in ends.values()} == {"CutOffError"}
    assert set(works) | set(ends) == set(range(4))
    assert all(after_cut < 3 * SILENCE_SECONDS + 2 for _, after_cut, _ in ends.values()), ends
    assert all(exit_took < patience.seconds(2) for *_, exit_took in ends.values()), ends
    assert not any(code == -signal.SIGABRT for code in codes), codes


@pytest.mark.parametrize("stopped", [0, 3])
def test_resumed_member_that_was_dropped_exits(stopped):
    with Bed(4) as bed:
        bed.start(120)
        bed.wait_until_all_work()
        os.kill(bed.members[stopped].pid, signal.SIGSTOP)
        time.sleep(3 * SILENCE_SECONDS + 5)
        os.kill(bed.members[stopped].pid, signal.SIGCONT)
        assert patience.wait_for(lambda: bed.members[stopped].poll() is not None, 30)
        ended = events(bed.members[stopped])[-1]
        assert (ended["event"], ended["kind"]) == ("ends", "CutOffError")
        for rank in set(range(4)) - {stopped}:
            os.kill(bed.members[rank].pid, signal.SIGTERM)
            last = [e for e in events(bed.members[rank]) if e["event"] == "works"][-1]
            assert last["members"] == sorted(set(range(4)) - {stopped})


def test_group_survives_if_three_of_four_members_are_paused_and_resumed():
    """The fourth member has marked the others as failed, and has reported this to them."""
    with Bed(4) as bed:
        bed.start(120)
        bed.wait_until_all_work()
        for member in bed.members[:3]:
            os.kill(member.pid, signal.SIGSTOP)
        time.sleep(3 * SILENCE_SECONDS)
        for member in bed.members[:3]:
            os.kill(member.pid, signal.SIGCONT)
        assert patience.wait_for(lambda: bed.members[3].poll() is not None, 30)
        assert events(bed.members[3])[-1]["kind"] == "CutOffError"
        time.sleep(2 * SILENCE_SECONDS)
        for member in bed.members[:3]:
            os.kill(member.pid, signal.SIGTERM)
            last = [e for e in events(member) if e["event"] == "works"][-1]
            assert last["members"] == [0, 1, 2]

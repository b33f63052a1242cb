"""Measures collectives of jaxccomp and of other packages side by side."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from testbed import scenario

from bench import compare, contenders, report
from jaxccomp import errors
from jaxccomp._native.terminal import names, parse_size

_ALWAYS = ("jaxccomp", "empty", "memory")


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line.

    Returns:
      The exit status of `scenario.run`.
    """
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    add = parser.add_argument
    peers = ",".join(contenders.PEERS)
    add("--peers", default=peers, help="peers to compare with (default: %(default)s)")
    ops = ",".join(compare.OPERATIONS)
    add("--ops", default=ops, help="operations, also of --table (default: %(default)s)")
    sizes = "1KiB,64KiB,1MiB,16MiB,64MiB"
    add("--sizes", default=sizes, help="bytes that each rank passes in (default: %(default)s)")
    add("-n", "--ranks", type=int, default=2, help="default: %(default)s")
    add("--rounds", type=int, default=5, help="default: %(default)s")
    bind = "bind ranks to cores; auto: the faster setting of each contender (default: %(default)s)"
    add("--bind", choices=("auto", "core", "none"), default="auto", help=bind)
    python = "the interpreter of another environment, for a peer installed there"
    add("--python", action="append", default=[], metavar="PEER=PATH", help=python)
    given = parser.parse_known_args(arguments)[0]
    return scenario.run(
        parser,
        _measure,
        table=lambda lines: report.markdown(report.parse(lines, given.ops.split(","))),
        arguments=arguments,
    )


def _measure(given: argparse.Namespace) -> list[scenario.Line]:
    operations = names(given.ops, "operation", compare.OPERATIONS)
    peers = names(given.peers, "peer", contenders.PEERS)
    if given.ranks < 1 or given.rounds < 1:
        raise errors.InvalidArgumentError("--ranks and --rounds must be at least 1.")
    sizes = tuple(parse_size(text) for text in given.sizes.split(","))
    pythons = _pythons(given.python)
    wanted = [*_ALWAYS, *(name for peer in peers for name in contenders.PEERS[peer])]
    reasons = {
        name: contenders.why_missing(contenders.find(name), pythons[name]) for name in wanted
    }
    missing = {name: reason for name, reason in reasons.items() if reason}
    if "jaxccomp" in missing:
        raise errors.EngineUnavailableError(missing["jaxccomp"])
    plan = compare.Plan(
        names=tuple(name for name in wanted if name not in missing),
        operations=operations,
        sizes=sizes,
        ranks=given.ranks,
        rounds=given.rounds,
        pythons=pythons,
        bind=given.bind,
    )
    results = compare.run(plan, scenario.say)
    print(report.markdown(results))
    lines = report.lines(plan, results, missing)
    for line in lines:
        if said := line.get("error") or line.get("missing"):
            what = " ".join(str(line[name]) for name in ("op", "size_bytes") if name in line)
            print(f"{line['contender']} {what}: {said}")
    return lines


def _pythons(given: Sequence[str]) -> dict[str, str]:
    pythons = {row.name: sys.executable for row in contenders.TABLE}
    for text in given:
        peer, equals, path = text.partition("=")
        if not equals or peer not in contenders.PEERS:
            raise errors.unknown("peer in --python PEER=PATH:", text, contenders.PEERS)
        for name in contenders.PEERS[peer]:
            pythons[name] = path
    return pythons


if __name__ == "__main__":
    sys.exit(main())

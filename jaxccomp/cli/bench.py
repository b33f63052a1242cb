"""Measures collectives of jaxccomp and its peers side by side, or codecs (bench codecs)."""

from __future__ import annotations

import argparse
import sys

from jaxccomp import errors
from jaxccomp.bench import compare, contenders, report
from jaxccomp.cli import bench_codecs
from jaxccomp.cli.terminal import parse_size, progress


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    others = parser.add_subparsers(dest="what", metavar="[codecs]")
    summary = bench_codecs.__doc__.splitlines()[0]
    bench_codecs.add_arguments(others.add_parser("codecs", help=summary, description=summary))
    parser.add_argument(
        "--peers",
        default=",".join(contenders.PEERS),
        help=f"who to compare with, of {', '.join(contenders.PEERS)} (default: all)",
    )
    parser.add_argument(
        "--ops",
        default=",".join(compare.OPERATIONS),
        help="operations (default: %(default)s)",
    )
    parser.add_argument(
        "--sizes",
        default="1KiB,64KiB,1MiB,16MiB,64MiB",
        help="bytes that each rank passes in (default: %(default)s)",
    )
    parser.add_argument("-n", "--ranks", type=int, default=2, help="default: %(default)s")
    parser.add_argument("--rounds", type=int, default=5, help="default: %(default)s")
    parser.add_argument(
        "--bind",
        choices=("auto", "core", "none"),
        default="auto",
        help="bind ranks to cores; auto takes what is best for each contender",
    )
    parser.add_argument(
        "--python",
        action="append",
        default=[],
        metavar="PEER=PATH",
        help="the interpreter of another environment, for a peer installed there",
    )
    parser.add_argument("--json", metavar="FILE", help="also write the measurements there")
    parser.add_argument(
        "--table",
        metavar="FILE",
        help="measure nothing; print the operations (--ops) of such a file as a Markdown table",
    )


def run(arguments: argparse.Namespace) -> int:
    """Runs the comparison and shows it."""
    if arguments.what == "codecs":
        return bench_codecs.run(arguments)
    operations = _names(arguments.ops, "operation", compare.OPERATIONS)
    if arguments.table:
        print(report.markdown(report.read(arguments.table, operations)))
        return 0
    if arguments.ranks < 1 or arguments.rounds < 1:
        raise errors.InvalidArgumentError("--ranks and --rounds must be at least 1.")
    peers = _names(arguments.peers, "peer", contenders.PEERS)
    sizes = tuple(parse_size(text) for text in arguments.sizes.split(","))
    pythons = _pythons(arguments.python)
    always = ("jaxccomp", "empty", "memory")
    wanted = [*always, *(name for peer in peers for name in contenders.PEERS[peer])]
    missing = {}
    for name in wanted:
        reason = contenders.why_missing(contenders.find(name), pythons[name])
        if reason:
            missing[name] = reason
    if "jaxccomp" in missing:
        raise errors.EngineUnavailableError(f"bench: {missing['jaxccomp']}")
    plan = compare.Plan(
        names=tuple(name for name in wanted if name not in missing),
        operations=operations,
        sizes=sizes,
        ranks=arguments.ranks,
        rounds=arguments.rounds,
        pythons=pythons,
        bind=arguments.bind,
    )
    with progress() as tell:
        results = compare.run(plan, tell)
    report.show(plan, results, missing)
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            report.write(plan, results, missing, file)
    return int(any(row.error for row in results.values() if row.contender == "jaxccomp"))


def _names(text: str, kind: str, valid: object) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    for name in names:
        if name not in valid:
            raise errors.unknown(kind, name, valid)
    return names


def _pythons(given: list[str]) -> dict[str, str]:
    pythons = {row.name: sys.executable for row in contenders.TABLE}
    for text in given:
        peer, equals, path = text.partition("=")
        if not equals or peer not in contenders.PEERS:
            raise errors.unknown("peer in --python PEER=PATH:", text, contenders.PEERS)
        for name in contenders.PEERS[peer]:
            pythons[name] = path
    return pythons

"""Prints what a rank does in a collective, task by task; nothing runs."""

from __future__ import annotations

import argparse

from jaxccomp import schedules
from jaxccomp.cli.terminal import parse_size


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument("collective", choices=schedules.COLLECTIVES, metavar="COLLECTIVE")
    parser.add_argument("--algorithm", default="auto", help="default: %(default)s")
    parser.add_argument("--ranks", type=int, default=4, help="default: %(default)s")
    parser.add_argument("--rank", type=int, default=0, help="whose (default: %(default)s)")
    parser.add_argument("--root", type=int, default=0, help="default: %(default)s")
    parser.add_argument("--bytes", default="1MiB", help="of a block (default: %(default)s)")
    parser.add_argument("--chunk", help="default: the option chunk_bytes")
    parser.add_argument("--coded", action="store_true", help="with a codec")
    parser.add_argument("--lossless", action="store_true", help="which is a lossless one")
    parser.add_argument("--hosts", default="", help="by rank, a number for its host: 0,0,1,1")


def run(arguments: argparse.Namespace) -> int:
    """Prints the schedule."""
    made = schedules.make(
        arguments.collective,
        arguments.algorithm,
        rank=arguments.rank,
        ranks=arguments.ranks,
        root=arguments.root,
        block_bytes=parse_size(arguments.bytes),
        chunk_bytes=parse_size(arguments.chunk) if arguments.chunk else None,
        coded=arguments.coded or arguments.lossless,
        lossless=arguments.lossless,
        hosts=[int(host) for host in arguments.hosts.split(",") if host],
    )
    print(f"{arguments.collective} {made.algorithm}, rank {arguments.rank} of {arguments.ranks}")
    print(made, end="")
    return 0

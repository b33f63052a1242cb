"""Times broadcasts over a slow link between ranks that share this GPU: compressed and raw.

    python tests/gpu/broadcast.py BUILD_FOLDER [--device cpu] [--mib 256] [--cases 8@1gbit,2@5gbit]
                                  [--seconds S] [--dry-run]

A case HOSTS@LINK is a testbed (docs/testbed.md) with one rank per host and links of that rate; it
needs root, `ip` and `tc`. Prints one JSON object per line: the lines of broadcast_rank.py, and for
each case the speedup of the codecs over the raw broadcast. Exits with 77 without a GPU.
`--device cpu` runs on the CPU, to test this program.
"""

from __future__ import annotations

import argparse
import pathlib
import sys

import links
import process
import ranks

MIN_SECONDS = 30


def cases(text: str) -> list[tuple[int, str]]:
    """(hosts, link) of each case."""
    pairs = [each.partition("@") for each in text.split(",")]
    if not all(count.isdigit() and link for count, _, link in pairs):
        raise SystemExit(f"--cases reads like 8@1gbit,2@5gbit, not {text!r}")
    return [(int(count), link) for count, _, link in pairs]


def cost(link: str, mib: int) -> float:
    """Estimated seconds of a case: ranks start, then the wire is the bottleneck."""
    return 20 + 40 * (mib << 20) / (links.rate(link) / 8)


def gains(rows: list[dict]) -> dict[str, object]:
    """The speedup of each codec over raw, from the lines of one case."""
    seconds = {row["name"]: row["seconds"] for row in rows if "seconds" in row}
    if "raw" not in seconds:
        return {}
    faster = {
        name: round(seconds["raw"] / each, 3)
        for name, each in seconds.items()
        if name != "raw" and each
    }
    return {"times_as_fast_as_raw": faster}


def measure(hosts: int, link: str, asked: argparse.Namespace, seconds: float) -> int:
    """Runs a case and prints its lines; returns 1 after a failure."""
    clock, name = process.Clock(seconds), f"{hosts} ranks, {link}"
    build = pathlib.Path(asked.build).resolve()
    env = ranks.environment(build, asked.device, hosts)
    with links.testbed(hosts, link) as made:
        goodput = min(made.measure_goodput().values())
        bound = (asked.mib << 20) / goodput
        ranks.say(case=name, goodput_bytes_per_second=round(goodput), raw_bound_seconds=bound)
        # Ranks skip cases that would not end within this time.
        left = clock.left - 2 * links.SLACK_SECONDS
        program = process.python("broadcast_rank.py", asked.device, asked.mib, link, left)
        rows, wrong = links.run(made, program, env, name, clock.left)
    for row in rows:
        ranks.say(**row)
    if found := gains(rows):
        ranks.say(case=name, **found)
    return wrong


def main() -> int:
    """Runs all cases that can run, and reports the others with the reason."""
    parser = ranks.parser(__doc__, 290.0)
    parser.add_argument("--mib", type=int, default=256, help="of bfloat16 (default: %(default)s)")
    parser.add_argument(
        "--cases",
        default="8@1gbit,2@5gbit,8@5gbit,2@1gbit",
        help="in order of importance (default: %(default)s)",
    )
    asked = parser.parse_args()
    todo, clock = cases(asked.cases), process.Clock(asked.seconds)
    if asked.dry_run:
        for hosts, link in todo:
            ranks.say(would_run=f"{hosts} ranks, {link}, {asked.mib} MiB")
        return 0
    if why := ranks.no_gpu(asked.device):
        print(f"broadcast: {why}", file=sys.stderr)
        return ranks.NO_DEVICE
    env = ranks.environment(pathlib.Path(asked.build).resolve(), asked.device)
    if missing := ranks.why_not(asked.device, env) or links.why_not():
        ranks.say(not_run="broadcast", reason=missing)
        return 0
    worst = 0
    for number, (hosts, link) in enumerate(todo):
        rest = sum(cost(each, asked.mib) for _, each in todo[number:])
        seconds = clock.left * cost(link, asked.mib) / rest
        name = f"{hosts} ranks, {link}"
        if seconds < MIN_SECONDS:
            seconds = clock.left  # enough for this case, at the cost of later ones
        if seconds < MIN_SECONDS:
            ranks.say(not_run=name, reason=f"{max(clock.left, 0):.0f} s were left")
            continue
        try:
            worst |= measure(hosts, link, asked, seconds)
        except links.errors.JaxccompError as error:
            ranks.say(not_run=name, reason=f"the testbed: {error}")
    return worst


if __name__ == "__main__":
    process.end_on_signals()
    sys.exit(main())

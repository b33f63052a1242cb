"""Checks codecs of backend="xla" on this machine's GPU: bits, capture in CUDA graphs, and rates.

    python tests/gpu/traced.py BUILD_FOLDER [--seconds S]

Runs traced_rank.py and prints its lines. Uses the engine in BUILD_FOLDER (`make gpu-module`) if
there is one, else the installed one. Exits with 77 without a GPU.
"""

from __future__ import annotations

import pathlib
import sys

import process
import ranks


def main() -> int:
    """Runs traced_rank.py, or reports why it cannot run."""
    asked = ranks.parser(__doc__, 235.0, device=False, dry_run=False).parse_args()
    clock = process.Clock(asked.seconds)
    if why := ranks.no_gpu("cuda"):
        print(f"traced: {why}", file=sys.stderr)
        return ranks.NO_DEVICE
    env = ranks.environment(pathlib.Path(asked.build).resolve(), "cuda")
    if missing := ranks.why_not("cuda", env):
        ranks.say(not_run="traced", reason=missing)
        return 0
    return ranks.run(process.python("traced_rank.py"), env, "traced", clock.left)


if __name__ == "__main__":
    process.end_on_signals()
    sys.exit(main())

"""Mutation test: plants one fault at a time, and records which command of the suite finds it.

    python tools/breaks.py --work FOLDER --output docs/results/breaks.json [--only WORD] [--new]

Each row of BREAKS replaces a text of one file in a clone of this checkout, and runs the command
that must fail. If that command passes, the other commands of `make test` run. The output file keeps
the results of rows that do not run. A row whose text is no longer in its file is an error: update
the table when sources change.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import time
from typing import NamedTuple

ROOT = pathlib.Path(__file__).parents[1]
COMMANDS = (
    *("test-cpp", "test-gpu-host", "test-unit", "test-mpi", "test-openmpi", "test-spmd"),
    "test-newest-spmd",
)


class Break(NamedTuple):
    """A planted fault, and the command that should find it."""

    name: str
    command: str
    path: str
    old: str
    new: str


BREAKS = (
    # collective/
    Break("a forwarded chunk goes one rank too far", "test-cpp", "csrc/collective/bcast.cc",
          "const int next = flow.Peer(1), previous", "const int next = flow.Peer(2), previous"),
    Break("one rank reduces another rank's part of an allreduce", "test-cpp",
          "csrc/collective/allreduce.cc", "owned[Shifted(first, i % ranks, ranks)]",
          "owned[Shifted(first, (i + (flow.rank == 4)) % ranks, ranks)]"),
    Break("the default of a collective is another algorithm", "test-cpp",
          "csrc/collective/defaults.cc",
          '{.collective = kBcast, .algorithm = "binomial", .max_bytes = 32 * kKiB}',
          '{.collective = kBcast, .algorithm = "binomial", .max_bytes = 64 * kKiB}'),
    # codec/ and reduce/
    Break("a sparse code is not checked for ascending positions", "test-cpp",
          "csrc/codec/sparse/largest.cc", "if (!ascending || ", "if ("),
    Break("the bound of int8's error is too small", "test-cpp",
          "csrc/codec/quantize/quantize.cc", "{.block = 0.5 * (1 + 0x1p-7) / 127,",
          "{.block = 0.4 * (1 + 0x1p-7) / 127,"),
    Break("a checksum of another polynomial", "test-cpp", "csrc/common/crc32c.cc",
          "0x82f63b78", "0x82f63b79"),
    Break("a bitwise or is an exclusive one", "test-cpp", "csrc/reduce/kernels.inl",
          "static_cast<T>(a | b)", "static_cast<T>(a ^ b)"),
    Break("a residual omits the residual before it", "test-cpp", "csrc/reduce/residual.cc",
          "if (before != nullptr) widen(old, At(before, offset_bytes), n);", ""),
    Break("a codec of a small range codes partial sums", "test-cpp", "csrc/collective/flow.cc",
          "codes_partial_(problem.encoded && !problem.bounded)", "codes_partial_(problem.encoded)"),
    # matching/
    Break("launches that were skipped are not counted", "test-cpp", "csrc/matching/launches.cc",
          "const uint32_t skipped = Distance(last, run_id) - 1;", "const uint32_t skipped = 0;"),
    Break("different programs compare as equal", "test-cpp", "csrc/matching/program.cc",
          "ForEachIn(comm, [&](const Member& m) { sum += m.id; });",
          "ForEachIn(comm, [&](const Member&) { sum += 1; });"),
    Break("the last unexpected message of a launch does not remove the launch", "test-cpp",
          "csrc/matching/early_messages.cc",
          "if (--found->second.count == 0) launches_.erase(found);", "--found->second.count;"),
    # execution/ and engine/
    Break("tasks ignore the memory limit", "test-cpp", "csrc/execution/memory_budget.cc",
          "return bytes == 0 ||", "return bytes >= 0 ||"),
    Break("a failed operation never forces its transfers to end", "test-cpp",
          "csrc/engine/watchdog.cc", "kFailureGrace = std::chrono::seconds(1)",
          "kFailureGrace = std::chrono::seconds(600)"),
    Break("the watchdog checks deadlines before it reads arrived messages", "test-cpp",
          "csrc/engine/watchdog.cc", "  if (!late.empty()) failures_.ReadNews();\n", ""),
    Break("a report by a third process marks a process as failed", "test-cpp",
          "csrc/engine/failures.cc",
          "if (!itself && group_agrees_) return Report", "if (false) return Report"),
    Break("failure notices of a failed process are accepted", "test-cpp", "csrc/engine/failures.cc",
          "if (teller != nullptr && teller->dead) return;", "static_cast<void>(teller);"),
    Break("a dropped process stays connected", "test-cpp", "csrc/engine/failures.cc",
          "  if (router_.HasRemote()) router_.remote()->Disconnect(process);\n", ""),
    Break("no probe asks whether a message is missing", "test-cpp",
          "csrc/engine/deadlock_detector.cc", "  SendProbes(op, /*alone=*/false);\n", ""),
    Break("memory is freed while a transfer uses it", "test-cpp", "csrc/execution/executor.cc",
          "if (op->in_flight > 0 || (!op->failed() &&",
          "if (!op->failed() && (op->in_flight > 0 ||"),
    # transport/
    Break("small messages need no credit", "test-openmpi", "csrc/transport/credit.h",
          "return spent_.messages < limit_.messages &&", "return spent_.messages >= 0 || "),
    Break("credit for payloads is never given back", "test-openmpi",
          "csrc/transport/mpi/mpi_payloads.cc",
          "control_.SendControl(process, MessageType::kCredit, 0, returned_bytes);", ""),
    Break("a payload is received under another tag", "test-openmpi",
          "csrc/transport/mpi/mpi_transfers.cc",
          "static_cast<int>(first + number % config.payload_tags)",
          "static_cast<int>(first + (number + transfer->receives * (number == 40)) % "
          "config.payload_tags)"),
    Break("a payload overtakes a cancelled one of its tag", "test-openmpi",
          "csrc/transport/mpi/mpi_payloads.cc",
          "{ return IsHeld(process, number); };", "{ return number == ~0u; };"),
    Break("payloads of a newer operation are sent first", "test-openmpi",
          "csrc/transport/transport.h", "return operation << 20", "return ~operation << 20"),
    Break("MPI sends all payloads at a time", "test-openmpi",
          "csrc/transport/mpi/mpi_world.h",
          "return IsRemote(peer) ? config.remote_window_bytes :", "return false ? 0 :"),
    # GPUs
    Break("operands of a part overlap in pinned memory", "test-gpu-host",
          "csrc/cuda/stage/stage.cc",
          "memory += RoundUp(staged.bytes(), kSlotAlignment);", "memory += staged.bytes() / 2;"),
    Break("reductions on GPUs are not composed", "test-unit", "jaxccomp/_primitives/on_cuda.py",
          "moves = codecs.is_raw(call.codec) or call.collective in _MOVES", "moves = True"),
    # Python
    Break("the gradient of a permutation goes the same way", "test-spmd",
          "jaxccomp/_primitives/transpose.py",
          "zip(call.pairs[1::2], call.pairs[::2], strict=True)",
          "zip(call.pairs[::2], call.pairs[1::2], strict=True)"),
    Break("vmap moves the batch dimension to the front", "test-spmd",
          "jaxccomp/_primitives/batching.py", "x = jnp.moveaxis(x, dim, place)",
          "x = jnp.moveaxis(x, dim, 0)"),
    Break("error feedback accepts operations other than sums", "test-spmd",
          "jaxccomp/_api/error_feedback.py", "if op not in _REDUCTIONS:", "if not op:"),
    Break("partial sums of half types are not sent as float32", "test-spmd",
          "jaxccomp/_primitives/wide_sums.py", "return halves and sums_partially",
          "return False and sums_partially"),
    Break("each rank draws its own places of randomk", "test-spmd",
          "csrc/codec/sparse/random_k.cc", "/*draws_alike=*/!Unbiased(options)",
          "/*draws_alike=*/false"),
    Break("a state keeps a step that is not finite", "test-spmd",
          "jaxccomp/_api/error_feedback.py", "return jnp.where(finite, after, before)",
          "return after"),
    Break("the rounding error of a result is not in the residual", "test-spmd",
          "jaxccomp/_api/error_feedback.py", "return x - x.astype(dtype).astype(x.dtype)",
          "return jnp.zeros_like(x)"),
    Break("processes of a job are not killed", "test-mpi", "jaxccomp/launch/leftovers.py",
          "os.kill(pid, signal.SIGKILL)", "os.kill(pid, 0)"),
    # Architecture
    Break("matching includes a header of the engine", "test-unit", "csrc/matching/registry.cc",
          '#include "matching/registry.h"\n',
          '#include "matching/registry.h"\n#include "engine/awaited.h"\n'),
    Break("an API is not exported", "test-unit", "jaxccomp/__init__.py", '"barrier",', ""),
)  # fmt: skip


def run(command: str, folder: pathlib.Path) -> tuple[bool, str]:
    """Whether the command failed, and the first line that names a failure."""
    environment = os.environ | {"PYTEST_ADDOPTS": "-x", "JAXCCOMP_TEST_FAIL_FAST": "1"}
    done = subprocess.run(
        ["make", command], cwd=folder, env=environment, text=True, capture_output=True
    )
    text = done.stdout + done.stderr
    if "subprocess-exited-with-error" in text or "ninja: build stopped" in text:
        raise SystemExit(f"the fault does not compile: correct its row\n{text[-2000:]}")
    said = re.search(r"^(FAILED .*|.*error: .*|\S+:\d+: .*|ERROR .*)$", text, re.MULTILINE)
    shown = said[0][:200] if said else text[-200:]
    return done.returncode != 0, shown.replace(f"{folder}/", "")


def try_one(each: Break, folder: pathlib.Path) -> dict[str, object]:
    """Plants the fault, runs commands until one fails, and restores the file."""
    path = folder / each.path
    whole = path.read_text(encoding="utf-8")
    if each.old not in whole:
        raise SystemExit(f"{each.name}: {each.path} has no {each.old!r}: correct the row")
    begun = time.monotonic()
    path.write_text(whole.replace(each.old, each.new, 1), encoding="utf-8")
    try:
        for command in (each.command, *(c for c in COMMANDS if c != each.command)):
            found, said = run(command, folder)
            if found:
                break
        else:
            command, said = "none", ""
    finally:
        path.write_text(whole, encoding="utf-8")
    return {
        "path": each.path,
        "found_by": command,
        "said": said,
        "seconds": round(time.monotonic() - begun),
    }


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--work", type=pathlib.Path, required=True, help="folder of the clone")
    parser.add_argument("--output", type=pathlib.Path, required=True)
    parser.add_argument("--only", default="", help="text in the name, path or command of a row")
    parser.add_argument("--new", action="store_true", help="only rows without a result")
    arguments = parser.parse_args()
    if not arguments.work.exists():
        subprocess.run(["git", "clone", "-q", str(ROOT), str(arguments.work)], check=True)
        # Everything must pass without a planted fault.
        for command in COMMANDS:
            subprocess.run(["make", command], cwd=arguments.work, check=True)
    rows = json.loads(arguments.output.read_text()) if arguments.output.exists() else {}
    for each in BREAKS:
        if not any(arguments.only in text for text in (each.name, each.path, each.command)):
            continue
        if arguments.new and each.name in rows:
            continue
        rows[each.name] = try_one(each, arguments.work)
        print(each.name, rows[each.name], flush=True)
        arguments.output.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    sys.exit(any(row["found_by"] == "none" for row in rows.values()))


if __name__ == "__main__":
    main()

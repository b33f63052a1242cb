"""Writes registers, spills and code size of each CUDA kernel and architecture as JSON lines.

    python tests/gpu/report_kernels.py BUILD_FOLDER OUTPUT

BUILD_FOLDER must be configured by CMake with JAXCCOMP_BUILD_CUDA. This script compiles the kernels
again with its flags, to one binary per file and architecture. The first line names the compiler.
Exits with 1 if a kernel spills registers or uses local memory.
"""

from __future__ import annotations

import json
import pathlib
import re
import shlex
import struct
import subprocess
import sys
import tempfile

ARCHITECTURES = (80, 90, 100)
# Lines of ptxas -v for a kernel.
FUNCTION = re.compile(r"Compiling entry function '(\w+)' for 'sm_\d+'")
FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers(?:.*?(\d+) bytes smem)?")


def commands(build: pathlib.Path) -> dict[str, tuple[list[str], str]]:
    """For each .cu file its command without output and architectures, and its folder."""
    found = {}
    for entry in json.loads((build / "compile_commands.json").read_text()):
        if not entry["file"].endswith(".cu"):
            continue
        words = shlex.split(entry["command"])
        kept = []
        skip = False
        for word in words:
            if skip or word.startswith(("--generate-code", "-gencode")):
                skip = False
            elif word in ("-o", "-MF", "-MT"):
                skip = True
            elif word not in ("-c", "-MD"):
                kept.append(word)
        found[pathlib.Path(entry["file"]).name] = (kept, entry["directory"])
    return found


def code_bytes(cubin: bytes) -> dict[str, int]:
    """The size of each kernel's machine code: a section .text.NAME of a 64-bit ELF file."""
    (table,) = struct.unpack_from("<Q", cubin, 40)
    entry_bytes, count, names_index = struct.unpack_from("<HHH", cubin, 58)
    sections = [struct.unpack_from("<IIQQQQ", cubin, table + i * entry_bytes) for i in range(count)]
    names = sections[names_index][4]
    sizes = {}
    for name_offset, _, _, _, _, size in sections:
        name = cubin[names + name_offset :].split(b"\0", 1)[0].decode()
        if name.startswith(".text."):
            sizes[name.removeprefix(".text.")] = size
    return sizes


def readable(names: list[str]) -> dict[str, str]:
    """The template arguments of kernels, as written in the source."""
    output = subprocess.run(
        ["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True
    ).stdout.splitlines()
    bodies = {}
    for name, text in zip(names, output, strict=True):
        body = re.sub(r"^void jaxccomp::cuda::Kernel<(.*) ?>\(.*\)$", r"\1", text).strip()
        body = re.sub(r"jaxccomp::(cuda::)?", "", body)
        bodies[name] = re.sub(r"\((?:int|bool)\)", "", body)
    return bodies


def compile_file(file: str, words: list[str], folder: str, architecture: int) -> list[dict]:
    """The kernels of one file for one architecture."""
    with tempfile.TemporaryDirectory() as temporary:
        cubin = pathlib.Path(temporary, "kernels.cubin")
        target = f"-gencode=arch=compute_{architecture},code=sm_{architecture}"
        text = subprocess.run(
            [*words, target, "-cubin", "-Xptxas=-v", "-o", cubin],
            cwd=folder, capture_output=True, text=True, check=True,
        ).stderr  # fmt: skip
        sizes = code_bytes(cubin.read_bytes())
    rows = []
    for part in re.split(r"(?=ptxas info\s+: Compiling entry function)", text)[1:]:
        name = FUNCTION.search(part)[1]
        # Maximum over the kernel and the functions that it calls.
        stack, stores, loads = (max(map(int, of)) for of in zip(*FRAME.findall(part), strict=True))
        registers, shared = USED.search(part).groups()
        rows.append(
            {
                "kernel": name,
                "file": file,
                "architecture": architecture,
                "registers": int(registers),
                "shared_bytes": int(shared or 0),
                "stack_bytes": stack,
                "spill_bytes": stores + loads,
                "code_bytes": sizes[name],
            }
        )
    names = readable([row["kernel"] for row in rows])
    return [{**row, "kernel": names[row["kernel"]]} for row in rows]


def main(build: str, output: str) -> int:
    files = commands(pathlib.Path(build))
    rows = [
        row
        for file, (words, folder) in sorted(files.items())
        for architecture in ARCHITECTURES
        for row in compile_file(file, words, folder, architecture)
    ]
    compiler = next(iter(files.values()))[0][0]
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True)
    release = re.search(r"V(\d\S+)", version.stdout)[1]
    rows.sort(key=lambda row: (row["file"], row["kernel"], row["architecture"]))
    lines = [{"nvcc": release, "kernels": len(rows)}, *rows]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    pathlib.Path(output).write_text(text, encoding="utf-8")
    spilling = [row for row in rows if row["spill_bytes"] or row["stack_bytes"]]
    for row in spilling:
        print(f"spills or uses local memory: {row}", file=sys.stderr)
    print(f"{len(rows)} kernels, {max(row['registers'] for row in rows)} registers at most")
    return 1 if spilling else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

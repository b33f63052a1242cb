"""Runs the machine code of a kernel, as nvdisasm prints it for sm_90, and counts what it issues.

A warp is 32 lanes of NumPy arrays. Only what the kernels of the codec `lossless` are made of is
known; anything else ends the run, as does an address that is not aligned or outside its memory.
NVIDIA does not document what instructions do: that the right bytes come out is the check.
"""

from __future__ import annotations

import collections
import re
from collections.abc import Callable

import numpy as np

LANES = 32
REGISTERS, UNIFORM = 256, 64  # a uniform register is kept in each lane
GLOBAL_BASE = 1 << 32
SHARED_BASE = 0x400  # where a block's shared memory begins in the window
SHARED_WINDOW = 0x7F00  # the upper half of a generic address in shared memory
PARAMETERS = 0x210  # of constant bank 0

_INSTRUCTION = re.compile(r"^\s+/\*([0-9a-f]{4,})\*/\s+(?:@(!?U?P\w+)\s+)?([\w.]+)\s*(.*?)\s*;")
_LABEL = re.compile(r"^(\S+):$")
_U64 = np.uint64
_LOW = _U64(0xFFFFFFFF)

Step = Callable[["Warp", "Counts"], None]


class Memory:
    """Bytes that kernels read and write in units of their own."""

    def __init__(self, size: int, base: int):
        """Of `size` bytes at address `base`."""
        self.bytes = np.zeros((size + 15) // 16 * 16, np.uint8)
        self.base = base
        self.words = self.bytes.view(np.uint32)
        self.halves = self.bytes.view(np.uint16)

    def _places(self, at: np.ndarray, size: int) -> np.ndarray:
        at = at - self.base
        if at.size and (at.min() < 0 or at.max() + size > len(self.bytes) or (at % size).any()):
            raise ValueError(f"bad address: {at + self.base}, {size} bytes")
        return at

    def load(self, at: np.ndarray, size: int) -> list[np.ndarray]:
        """Registers of each lane."""
        at = self._places(at, size)
        if size == 1:
            return [self.bytes[at].astype(np.uint32)]
        if size == 2:
            return [self.halves[at >> 1].astype(np.uint32)]
        return [self.words[(at >> 2) + i] for i in range(size // 4)]

    def store(self, at: np.ndarray, size: int, values: list[np.ndarray]) -> None:
        """Of lanes that write to the same place the last one wins."""
        at = self._places(at, size)
        if size == 1:
            self.bytes[at] = values[0].astype(np.uint8)
        elif size == 2:
            self.halves[at >> 1] = values[0].astype(np.uint16)
        else:
            for i, value in enumerate(values):
                self.words[(at >> 2) + i] = value


class Warp:
    """The lanes of a warp: a group of them is at `pc`, others wait elsewhere."""

    def __init__(self, block: Block, index: int):
        self.block = block
        self.index = index
        self.r = np.zeros((REGISTERS + UNIFORM, LANES), np.uint32)
        self.p = np.zeros((16, LANES), bool)
        self.p[7] = self.p[15] = True
        self.alive = np.ones(LANES, bool)
        self.mask = np.ones(LANES, bool)
        self.group = self.mask  # who is at `pc`; `mask`: who executes the instruction
        self.pc = 0
        self.elsewhere: list[tuple[int, np.ndarray]] = []
        self.joins: dict[str, np.ndarray] = {}  # the lanes that a BSYNC waits for
        self.joined: dict[str, np.ndarray] = {}
        self.at_barrier = np.zeros(LANES, bool)
        self.barrier_pc = 0

    def put(self, register: int | None, value) -> None:
        """Writes a register, in the lanes that execute."""
        if register is not None:
            np.copyto(self.r[register], value, where=register >= REGISTERS or self.mask)

    def put_predicate(self, predicate: int, value) -> None:
        """Writes a predicate, in the lanes that execute."""
        if predicate not in (7, 15):
            np.copyto(self.p[predicate], value, where=predicate >= 8 or self.mask)

    def jump(self, target: int) -> None:
        """The lanes that execute go on at `target`."""
        rest = self.group & ~self.mask
        if rest.any():
            self.elsewhere.append((self.pc, rest))
        self.group, self.pc = self.mask, target

    def next_group(self) -> bool:
        """Goes on with the lanes that are furthest behind; False if no lane can go on."""
        if not self.elsewhere:
            return bool(self.group.any()) or self._let_go()
        groups: dict[int, np.ndarray] = {}
        if self.group.any():
            groups[self.pc] = self.group
        for pc, lanes in self.elsewhere:
            groups[pc] = groups[pc] | lanes if pc in groups else lanes
        self.pc = min(groups)
        self.group = groups.pop(self.pc)
        self.elsewhere = list(groups.items())
        return True

    def wait(self, name: str) -> None:
        """BSYNC."""
        arrived, _ = self.joined.pop(name, (np.zeros(LANES, bool), 0))
        self.joined[name] = arrived | self.group, self.pc
        self.group = np.zeros(LANES, bool)
        self._let_go(name)

    def _let_go(self, *names: str) -> bool:
        """Lanes at a BSYNC go on when all that it waits for are there, or gone."""
        for name in names or tuple(self.joined):
            arrived, pc = self.joined[name]
            if not (self.joins[name] & self.alive & ~arrived).any():
                del self.joined[name]
                self.group, self.pc = arrived, pc
                return True
        return False


class Block:
    """A block of threads."""

    def __init__(self, code: Code, memory: Memory, constants: bytes, threads: int, shared: int):
        """Runs `code` with `constants` as bank 0."""
        self.code = code
        self.memory = memory
        self.shared = Memory(shared, SHARED_BASE)
        self.constants = np.frombuffer(constants, np.uint8)
        self.index = 0
        self.warps = [Warp(self, i) for i in range(threads // LANES)]

    def run(self, index: int, counts: Counts) -> None:
        """All of the block's threads, to their end."""
        self.index = index
        waiting = list(self.warps)
        while waiting:
            for warp in waiting:
                self._run_to_barrier(warp, counts)
            waiting = [warp for warp in waiting if warp.alive.any()]
            for warp in waiting:
                if (warp.alive & ~warp.at_barrier).any():
                    raise ValueError(f"lanes wait for each other near {warp.pc:x}")
                warp.at_barrier[:] = False
                warp.group, warp.pc = warp.alive.copy(), warp.barrier_pc

    def _run_to_barrier(self, warp: Warp, counts: Counts) -> None:
        code, issued = self.code.steps, counts.issued
        while warp.next_group():
            at = warp.pc
            step, guard = code[at]
            issued[at] += 1
            warp.pc = at + 1
            warp.mask = warp.group
            if guard is not None:
                holds = warp.p[guard[0]]
                warp.mask = warp.group & (~holds if guard[1] else holds)
                if not warp.mask.any():
                    continue
            counts.at = at
            step(warp, counts)


class Counts:
    """What a run has issued."""

    def __init__(self, code: Code):
        self.code = code
        self.issued = np.zeros(len(code.steps), np.int64)
        self.passes = np.zeros(len(code.steps), np.int64)  # of shared memory
        self.at = 0

    def shared(self, at: np.ndarray, lanes: np.ndarray, size: int) -> None:
        """Passes of an access: each of the 32 banks gives one word of four bytes a pass."""
        part = LANES * 4 // max(size, 4)  # lanes that are served together
        for first in range(0, LANES, part):
            mine = (lanes >= first) & (lanes < first + part)
            if not mine.any():
                continue
            words = (at[mine] >> 2)[:, None] + np.arange(max(size // 4, 1))
            self.passes[self.at] += np.bincount(np.unique(words) & 31).max()

    def by_kind(self) -> collections.Counter:
        """Instructions of all warps, by what executes them."""
        kinds = collections.Counter()
        for name, times in zip(self.code.names, self.issued, strict=True):
            kinds[kind_of(name)] += int(times)
        return kinds


_KINDS = (
    ("xu", r"POPC|FLO|BREV|MUFU|I2F|F2I"),
    ("memory", r"LD|ST|ATOM|SHFL|RED|MEMBAR|CCTL"),
    ("uniform", r"U[A-Z]|S2UR|R2UR|VOTEU|REDUX"),
    ("control", r"B(RA|SSY|SYNC|REAK|AR)|EXIT|CALL|RET|WARPSYNC|NOP|YIELD|ERRBAR|CGAERRBAR|NANO"),
    ("fma", r"IMAD|IDP"),
    ("alu", r""),
)


def kind_of(name: str) -> str:
    """The kind of unit that executes an instruction."""
    return next(kind for kind, names in _KINDS if re.match(names, name))


class Code:
    """A kernel's instructions, as functions of a warp."""

    def __init__(self, text: str):
        """Of a section of nvdisasm's output."""
        self.names: list[str] = []
        self.texts: list[str] = []
        self.places: list[int] = []
        rows, labels = [], {}
        for line in text.splitlines():
            if match := _INSTRUCTION.match(line):
                place, guard, name, operands = match.groups()
                rows.append((guard, name, operands))
                self.places.append(int(place, 16))
                self.texts.append(f"{'@' + guard + ' ' if guard else ''}{name} {operands}")
            elif match := _LABEL.match(line):
                labels[match[1]] = len(rows)
        self.index_of = {place: i for i, place in enumerate(self.places)}
        self.labels = labels
        self.steps = []
        for guard, name, operands in rows:
            self.names.append(name)
            self.steps.append((_compile(self, name, operands), guard and _predicate(guard)))


def sections(text: str) -> dict[str, str]:
    """The kernels of nvdisasm's output, by their mangled names."""
    parts = re.split(r"^\.text\.(\S+):$", text, flags=re.M)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


# Operands.


def _predicate(text: str) -> tuple[int, bool]:
    """Its place among the warp's, and whether it is negated."""
    match = re.fullmatch(r"(!?)(U?)P([0-6T])", text)
    number = 7 if match[3] == "T" else int(match[3])
    return number + (8 if match[2] else 0), bool(match[1])


def _is_predicate(text: str) -> bool:
    return re.fullmatch(r"!?U?P[0-6T]", text) is not None


def _register(text: str) -> int | None:
    """Its place among the warp's; None for the one that is always 0."""
    text = text.removesuffix(".reuse").removesuffix(".64")
    if text in ("RZ", "URZ", "SRZ"):
        return None
    return REGISTERS + int(text[2:]) if text.startswith("UR") else int(text[1:])


def _value(text: str, half: int = 0) -> Callable[[Warp], np.ndarray]:
    """32 bits of each lane; of a pair of registers the upper ones with half = 1."""
    text = text.removesuffix(".reuse")
    if text[0] in "-~" and not re.match(r"-0x", text):
        plain = _value(text[1:], half)
        if text[0] == "~":
            return lambda w: ~plain(w)
        return lambda w: (-plain(w).astype(np.int64)).astype(np.uint32)
    if re.match(r"-?0x", text):
        number = np.full(LANES, int(text, 16) & 0xFFFFFFFF, np.uint32)
        return lambda w: number
    if match := re.fullmatch(r"c\[0x0\]\[(0x[0-9a-f]+)\]", text):
        at = int(match[1], 16) + 4 * half
        return lambda w: np.full(
            LANES, int.from_bytes(w.block.constants[at : at + 4].tobytes(), "little"), np.uint32
        )
    register = _register(text)
    if register is None:
        zero = np.zeros(LANES, np.uint32)
        return lambda w: zero
    return lambda w: w.r[register + half]


def _wide(text: str) -> Callable[[Warp], np.ndarray]:
    """As a summand whose carry counts: a negated one is 2^32 less it."""
    text = text.removesuffix(".reuse")
    if text[0] == "-" and not text.startswith("-0x"):
        plain = _value(text[1:])
        return lambda w: _U64(1 << 32) - plain(w).astype(_U64)
    plain = _value(text)
    return lambda w: plain(w).astype(_U64)


def _condition(text: str) -> Callable[[Warp], np.ndarray]:
    at, negated = _predicate(text)
    return (lambda w: ~w.p[at]) if negated else (lambda w: w.p[at])


def _address(text: str) -> Callable[[Warp], np.ndarray]:
    """Of a shared access, or a generic one: the lanes' addresses."""
    match = re.fullmatch(r"(?:desc\[\w+\])?\[(.*)\]", text)
    parts = match[1].split("+")
    terms, offset = [], 0
    for part in parts:
        if re.match(r"-?0x", part):
            offset += int(part, 16)
        elif part.endswith(".64"):
            low, high = _value(part[:-3]), _value(part[:-3], 1)
            terms.append(
                lambda w, low=low, high=high: (
                    low(w).astype(np.int64) | high(w).astype(np.int64) << 32
                )
            )
        else:
            plain = _value(part)
            terms.append(lambda w, plain=plain: plain(w).astype(np.int64))
    if ".64" in text:
        return lambda w: sum(term(w) for term in terms) + offset
    return lambda w: (sum(term(w) for term in terms) + offset) & 0xFFFFFFFF


# Instructions.


def _signed(value: np.ndarray) -> np.ndarray:
    return value.view(np.int32)


def _sum(name: str, o: list[str]) -> Step:
    """IADD3, LEA and their kin: up to two carries out, behind .X as many in."""
    target = _register(o[0])
    outs, rest = [], o[1:]
    while _is_predicate(rest[0]):
        outs.append(_predicate(rest.pop(0))[0])
    ins = []
    while _is_predicate(rest[-1]):
        ins.append(_condition(rest.pop()))
    if "LEA" in name:
        terms = _lea_terms(name, rest)
    else:
        terms = [_wide(each) for each in rest]

    def step(w: Warp, _: Counts) -> None:
        total = sum(term(w) for term in terms) + sum(carry(w).astype(_U64) for carry in ins)
        for least, out in enumerate(outs, 1):
            w.put_predicate(out, (total >> _U64(32)) >= least)
        w.put(target, (total & _LOW).astype(np.uint32))

    return step


def _lea_terms(name: str, o: list[str]) -> list:
    shift = int(o[-1], 16)
    addend = _wide(o[1])
    if ".HI" not in name:
        plain = _value(o[0].removeprefix("-"))
        if o[0].startswith("-"):
            shifted = lambda w: _U64(1 << 32) - ((plain(w).astype(_U64) << _U64(shift)) & _LOW)  # noqa: E731
        else:
            shifted = lambda w: (plain(w).astype(_U64) << _U64(shift)) & _LOW  # noqa: E731
        return [shifted, addend]
    low = _value(o[0])
    if ".SX32" in name:
        return [
            lambda w: ((_signed(low(w)).astype(np.int64) << shift >> 32) & 0xFFFFFFFF).astype(_U64),
            addend,
        ]
    high = _value(o[2])
    return [
        lambda w: (
            ((low(w).astype(_U64) | high(w).astype(_U64) << _U64(32)) << _U64(shift)) >> _U64(32)
        ),
        addend,
    ]


def _multiply(name: str, o: list[str]) -> Step:
    target, a, b, c = _register(o[0]), _value(o[1]), _value(o[2]), _wide(o[3])
    carry = _condition(o[4]) if ".X" in name else None
    if ".WIDE" in name:
        high = _value(o[3], 1)

        def wide(w: Warp, _: Counts) -> None:
            if name.endswith("U32"):
                product = a(w).astype(_U64) * b(w).astype(_U64)
            else:
                product = _signed(a(w)).astype(np.int64) * _signed(b(w)).astype(np.int64)
                product = product.view(_U64)
            total = product + (c(w) | high(w).astype(_U64) << _U64(32))
            w.put(target, (total & _LOW).astype(np.uint32))
            w.put(target + 1, (total >> _U64(32)).astype(np.uint32))

        return wide

    def step(w: Warp, _: Counts) -> None:
        total = a(w).astype(_U64) * b(w).astype(_U64) + c(w)
        if carry is not None:
            total = total + carry(w).astype(_U64)
        w.put(target, (total & _LOW).astype(np.uint32))

    return step


def _dot(name: str, o: list[str]) -> Step:
    """IDP.2A: two halves of a register times two bytes of another, and a sum."""
    if ".2A." not in name or ".S" in name:
        raise ValueError(f"not known: {name}")
    target, a, b, c = _register(o[0]), _value(o[1]), _value(o[2]), _value(o[3])
    first = np.uint32(0 if ".LO" in name else 16)

    def step(w: Warp, _: Counts) -> None:
        x, y = a(w), b(w) >> first
        low = (x & np.uint32(0xFFFF)) * (y & np.uint32(0xFF))
        high = (x >> np.uint32(16)) * (y >> np.uint32(8) & np.uint32(0xFF))
        w.put(target, low + high + c(w))

    return step


def _shift(name: str, o: list[str]) -> Step:
    target, low, by, high = _register(o[0]), _value(o[1]), _value(o[2]), _value(o[3])
    upper, left, wraps = ".HI" in name, ".L" in name, ".W" in name
    wide = "64" in name
    signed = ".S" in name

    def step(w: Warp, _: Counts) -> None:
        amount = by(w).astype(_U64)
        amount = amount & _U64(31) if wraps else np.minimum(amount, _U64(63 if wide else 32))
        pair = low(w).astype(_U64) | high(w).astype(_U64) << _U64(32)
        if left:
            pair = pair << amount
        elif signed:
            pair = (pair.view(np.int64) >> amount.astype(np.int64)).view(_U64)
        else:
            pair = pair >> amount
        w.put(target, ((pair >> _U64(32)) if upper else pair & _LOW).astype(np.uint32))

    return step


def _logic(a: np.ndarray, b: np.ndarray, c: np.ndarray, table: int) -> np.ndarray:
    """A bit of `table` for each three bits of the operands."""
    out = np.zeros_like(a)
    for row in range(8):
        if table >> row & 1:
            out |= (a if row & 4 else ~a) & (b if row & 2 else ~b) & (c if row & 1 else ~c)
    return out


def _lop3(name: str, o: list[str]) -> Step:
    out = _predicate(o.pop(0))[0] if _is_predicate(o[0]) else 7
    target, table, other = _register(o[0]), int(o[4], 16), _condition(o[5])
    a, b, c = (_value(each) for each in o[1:4])

    def step(w: Warp, _: Counts) -> None:
        value = _logic(a(w), b(w), c(w), table)
        w.put_predicate(out, (value != 0) | other(w))
        w.put(target, value)

    return step


def _plop3(name: str, o: list[str]) -> Step:
    first, second = _predicate(o[0])[0], _predicate(o[1])[0]
    a, b, c = (_condition(each) for each in o[2:5])
    tables = int(o[5], 16), int(o[6], 16)

    def step(w: Warp, _: Counts) -> None:
        operands = a(w), b(w), c(w)
        values = [_logic(*operands, table) for table in tables]
        w.put_predicate(first, values[0])
        w.put_predicate(second, values[1])

    return step


_COMPARE = {
    "EQ": np.equal, "NE": np.not_equal, "LT": np.less, "LE": np.less_equal,
    "GT": np.greater, "GE": np.greater_equal,
}  # fmt: skip


def _compare(name: str, o: list[str]) -> Step:
    parts = name.split(".")
    function = _COMPARE[parts[1]]
    signed = "U32" not in parts
    both = "AND" in parts
    first, second = _predicate(o[0])[0], _predicate(o[1])[0]
    a, b, other = _value(o[2]), _value(o[3]), _condition(o[4])
    below = _condition(o[5]) if "EX" in parts else None

    def step(w: Warp, _: Counts) -> None:
        x, y = a(w), b(w)
        if signed:
            x, y = _signed(x), _signed(y)
        holds = function(x, y)
        if below is not None:
            equal = x == y
            # What lower words say counts where these are equal.
            holds = np.where(equal, below(w), _COMPARE[parts[1]](x, y) & ~equal)
        given = other(w)
        results = [(each & given) if both else (each | given) for each in (holds, ~holds)]
        w.put_predicate(first, results[0])
        w.put_predicate(second, results[1])

    return step


def _permute(name: str, o: list[str]) -> Step:
    target, a, selector, b = _register(o[0]), _value(o[1]), _value(o[2]), _value(o[3])

    def step(w: Warp, _: Counts) -> None:
        pair = a(w).astype(_U64) | b(w).astype(_U64) << _U64(32)
        chosen = selector(w)
        out = np.zeros(LANES, np.uint32)
        for i in range(4):
            nibble = chosen >> np.uint32(4 * i) & np.uint32(15)
            byte = (pair >> ((nibble & np.uint32(7)) * np.uint32(8)).astype(_U64)) & _U64(255)
            byte = byte.astype(np.uint32)
            sign = np.where(byte & np.uint32(128), np.uint32(255), np.uint32(0))
            out |= np.where(nibble & np.uint32(8), sign, byte) << np.uint32(8 * i)
        w.put(target, out)

    return step


def _select(name: str, o: list[str]) -> Step:
    target, a, b, chosen = _register(o[0]), _value(o[1]), _value(o[2]), _condition(o[3])
    return lambda w, _: w.put(target, np.where(chosen(w), a(w), b(w)))


def _extreme(name: str, o: list[str]) -> Step:
    """VIMNMX, VIMNMX3 and VIADDMNMX: the least with PT, the greatest with !PT."""
    target, least = _register(o[0]), _condition(o[-1])
    values = [_value(each) for each in o[1:-1]]
    signed = ".U32" not in name

    def step(w: Warp, _: Counts) -> None:
        numbers = [value(w) for value in values]
        if name.startswith("VIADD"):
            numbers = [numbers[0] + numbers[1], numbers[2]]
        if signed:
            numbers = [_signed(each) for each in numbers]
        low, high = numbers[0], numbers[0]
        for each in numbers[1:]:
            low, high = np.minimum(low, each), np.maximum(high, each)
        out = np.where(least(w), low, high)
        if ".RELU" in name:
            out = np.maximum(out, 0)
        w.put(target, out.astype(np.int32).view(np.uint32) if signed else out)

    return step


def _bits(name: str, o: list[str]) -> Step:
    target, value = _register(o[0]), _value(o[1])

    def one(x: int) -> int:
        if "POPC" in name:
            return x.bit_count()
        if "BREV" in name:
            return int(f"{x:032b}"[::-1], 2)
        if x == 0:
            return 0xFFFFFFFF
        return 32 - x.bit_length() if ".SH" in name else x.bit_length() - 1

    def step(w: Warp, _: Counts) -> None:
        w.put(target, np.array([one(int(x)) for x in value(w)], np.uint32))

    return step


def _move(name: str, o: list[str]) -> Step:
    """Moves, and loads of constants, of one register or two."""
    target, value, upper = _register(o[0]), _value(o[1]), _value(o[1], 1)
    cut = {"U8": 0xFF, "U16": 0xFFFF}.get(name.rpartition(".")[2], 0xFFFFFFFF)
    pair = name.endswith(".64") or name.startswith("CS2R")

    def step(w: Warp, _: Counts) -> None:
        w.put(target, value(w) & np.uint32(cut))
        if pair:
            w.put(target + 1, upper(w))

    return step


def _special(name: str, o: list[str]) -> Step:
    target, what = _register(o[0]), o[1]
    lanes = np.arange(LANES, dtype=np.uint32)
    constant = {
        "SR_LANEID": lanes, "SR_LTMASK": ((_U64(1) << lanes.astype(_U64)) - _U64(1)),
        "SR_CgaCtaId": lanes * 0, "SR_SWINHI": lanes * 0 + np.uint32(SHARED_WINDOW),
    }  # fmt: skip

    def step(w: Warp, _: Counts) -> None:
        if what == "SR_TID.X":
            value = lanes + np.uint32(LANES * w.index)
        elif what == "SR_CTAID.X":
            value = np.full(LANES, w.block.index, np.uint32)
        else:
            value = constant[what].astype(np.uint32)
        w.put(target, value)

    return step


def _vote(name: str, o: list[str]) -> Step:
    given = _condition(o[-1])
    everyone = ".ALL" in name
    target = None if _is_predicate(o[0]) else _register(o[0])
    out = next((_predicate(each)[0] for each in o[:-1] if _is_predicate(each)), 7)

    def step(w: Warp, _: Counts) -> None:
        holds = given(w) & w.mask
        if target is not None:
            w.put(target, np.uint32(int(np.packbits(holds, bitorder="little").view("<u4")[0])))
        answer = not (w.mask & ~holds).any() if everyone else bool(holds.any())
        w.put_predicate(out, answer)

    return step


def _uniform_value(name: str, o: list[str]) -> Step:
    """R2UR and REDUX: one number of all lanes."""
    target, value = _register(o[0]), _value(o[1])
    reduce = {
        "R2UR": lambda lanes: lanes[0],
        "REDUX.MAX": np.max,
        "REDUX.MIN": np.min,
        "REDUX.SUM": lambda lanes: lanes.sum(dtype=np.uint32),
    }[name]
    return lambda w, _: w.r[target].fill(reduce(value(w)[w.mask]))


def _shuffle(name: str, o: list[str]) -> Step:
    out, target, value = _predicate(o[0])[0], _register(o[1]), _value(o[2])
    by = _value(o[3])
    lanes = np.arange(LANES)

    def step(w: Warp, _: Counts) -> None:
        if "UP" in name:
            source = lanes - by(w).astype(np.int64)
        elif "DOWN" in name:
            source = lanes + by(w).astype(np.int64)
        else:
            source = by(w).astype(np.int64) & 31 if "IDX" in name else lanes ^ by(w)
        inside = (source >= 0) & (source < LANES)
        source = np.where(inside, source, lanes)
        if not w.mask[source[w.mask]].all():
            raise ValueError("a lane reads from one that is not there")
        w.put_predicate(out, inside)
        w.put(target, value(w)[source])

    return step


def _access(name: str, o: list[str]) -> Step:
    """Loads and stores."""
    load = name.startswith("LD")
    size = next((n for text, n in ((".U8", 1), (".U16", 2), (".64", 8), (".128", 16))
                 if text in name), 4)  # fmt: skip
    registers = max(size // 4, 1)
    where = _address(o[1] if load else o[0])
    first = _register(o[0] if load else o[1])
    always_shared, generic = name[2] == "S", name[2] not in "SG"

    def step(w: Warp, counts: Counts) -> None:
        mask = w.mask
        at = where(w)[mask]
        shared = always_shared
        if generic:
            above = at >> 32
            shared = bool((above == SHARED_WINDOW).all())
            if not shared and (above == SHARED_WINDOW).any():
                raise ValueError("some lanes read shared memory, some do not")
            at = at & 0xFFFFFFFF if shared else at
        memory = w.block.shared if shared else w.block.memory
        if shared:
            counts.shared(at, np.flatnonzero(mask), size)
        if load:
            for i, value in enumerate(memory.load(at, size)):
                w.r[first + i][mask] = value
        else:
            zero = np.zeros(len(at), np.uint32)
            memory.store(
                at,
                size,
                [zero if first is None else w.r[first + i][mask] for i in range(registers)],
            )

    return step


def _atomic(name: str, o: list[str]) -> Step:
    """Additions only."""
    shared = name.startswith("ATOMS")
    operands = o[1:] if _is_predicate(o[0]) else o
    target, where = _register(operands[0]), _address(operands[1])
    amount = _value("0x1") if "INC" in name else _value(operands[2])

    def step(w: Warp, _: Counts) -> None:
        memory = w.block.shared if shared else w.block.memory
        at, amounts = where(w), amount(w)
        for lane in np.flatnonzero(w.mask):
            place = at[lane : lane + 1]
            (before,) = memory.load(place, 4)
            memory.store(place, 4, [before + amounts[lane]])
            if target is not None:
                w.r[target][lane] = before[0]

    return step


def _predicates(name: str, o: list[str]) -> Step:
    """P2R: predicates as bits of a register."""
    target, value, chosen = _register(o[0]), _value(o[2]), int(o[3], 16)

    def step(w: Warp, _: Counts) -> None:
        out = value(w) & np.uint32(~chosen & 0xFFFFFFFF)
        for i in range(7):
            if chosen >> i & 1:
                out = out | w.p[i].astype(np.uint32) << np.uint32(i)
        w.put(target, out)

    return step


def _from_register(name: str, o: list[str]) -> Step:
    """R2P: the inverse."""
    value, chosen = _value(o[1]), int(o[2], 16)

    def step(w: Warp, _: Counts) -> None:
        bits = value(w)
        for i in range(7):
            if chosen >> i & 1:
                w.put_predicate(i, bits >> np.uint32(i) & np.uint32(1) != 0)

    return step


def _control(code: Code, name: str, o: list[str]) -> Step:
    target = next((each[2:-1] for each in o if each.startswith("`(")), None)
    if name.startswith("BRA"):
        extra = [_condition(each) for each in o if _is_predicate(each)]
        divergent = name == "BRA.DIV"

        def branch(w: Warp, _: Counts) -> None:
            for each in extra:
                w.mask = w.mask & each(w)
            if divergent and w.group.all():
                return
            if w.mask.any():
                w.jump(code.labels[target])

        return branch
    if name.startswith("CALL"):
        return lambda w, _: w.jump(code.labels[target])
    if name.startswith("RET"):
        where = _value(o[0].split()[0])
        return lambda w, _: w.jump(code.index_of[int(where(w)[w.mask][0])])
    if name.startswith("BSSY"):
        return lambda w, _: w.joins.__setitem__(o[0], w.mask.copy())
    if name.startswith("BSYNC"):
        return lambda w, _: w.wait(o[0])
    if name.startswith("BREAK"):
        return lambda w, _: w.joins.__setitem__(o[-1], w.joins[o[-1]] & ~w.mask)
    if name.startswith("EXIT"):

        def leave(w: Warp, _: Counts) -> None:
            w.alive = w.alive & ~w.mask
            w.group = w.group & ~w.mask

        return leave
    if name.startswith("BAR"):

        def barrier(w: Warp, _: Counts) -> None:
            w.at_barrier = w.at_barrier | w.mask
            w.barrier_pc = w.pc
            w.group = np.zeros(LANES, bool)

        return barrier
    raise ValueError(f"not known: {name}")


_FUNCTIONS = (
    (r"U?IADD3|VIADD$|U?LEA", _sum),
    (r"U?IMAD(?!\.HI)", _multiply),
    (r"IDP", _dot),
    (r"U?SHF\.", _shift),
    (r"U?LOP3", _lop3),
    (r"U?PLOP3", _plop3),
    (r"U?ISETP", _compare),
    (r"U?PRMT", _permute),
    (r"U?SEL", _select),
    (r"VIMNMX|VIADDMNMX", _extreme),
    (r"U?POPC|U?FLO|U?BREV", _bits),
    (r"U?MOV|U?LDC|CS2R", _move),
    (r"S2U?R", _special),
    (r"VOTE", _vote),
    (r"R2UR|REDUX", _uniform_value),
    (r"SHFL", _shuffle),
    (r"ATOM", _atomic),
    (r"LD|ST", _access),
    (r"P2R", _predicates),
    (r"R2P", _from_register),
)
_NOTHING = r"NOP|YIELD|MEMBAR|ERRBAR|CGAERRBAR|CCTL|NANOSLEEP|WARPSYNC\.ALL"
_REFUSED = r"WARPSYNC\.COLLECTIVE|ENDCOLLECTIVE"  # where lanes of a warp have parted


def _compile(code: Code, name: str, text: str) -> Step:
    operands = [each.strip() for each in text.split(",")] if text else []
    if re.match(_NOTHING, name):
        return lambda w, _: None
    if re.match(_REFUSED, name):

        def refuse(w: Warp, _: Counts) -> None:
            raise ValueError(f"not known: {name} {text}")

        return refuse
    for pattern, function in _FUNCTIONS:
        if re.match(pattern, name):
            return function(name, operands)
    return _control(code, name, operands)

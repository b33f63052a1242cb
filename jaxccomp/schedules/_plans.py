"""Plan files: how the calls of a program run; saved, pinned and compared (docs/planner.md).

Files are untrusted: types, lengths and names are checked.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from jaxccomp import errors
from jaxccomp._native import algorithms, json_files, terminal
from jaxccomp._native.version import __version__

VERSION = 1
BACKENDS = ("native", "mpi", "xla")
# The options for a call that is not in the file.
MISSING = ("error", "auto")

_KEYS = ("version", "jaxccomp", "world", "missing", "calls")
_MAX_CALLS, _MAX_LINES, _MAX_TEXT = 4096, 8, 1000
_SHOWN_TEXT = 300
_MAX_RANKS = 1 << 13
_WRITE = (
    "`jaxccomp.explain(fn)(*args).plans.save(FILE)`, or `with jaxccomp.plan.record() as plans:` "
    "around what compiles the program, writes one that fits"
)


@dataclasses.dataclass(frozen=True)
class PlannedCall:
    """The key of a call in a plan file; the same on all its ranks.

    Attributes:
      collective: "bcast", for instance.
      reduce_op: "sum", for instance; empty without a reduction.
      root: of rooted collectives, else -1.
      ranks: the number of ranks.
      members: for a call along axes, the processes of its ranks, group by group; for a
        communicator's call, which ranks share a host.
      operands: shapes and dtypes of the operands.
      details: further properties of the call, such as "feedback".
      platform: the platform of its devices, such as "cpu".
      backend: the program's argument.
      algorithm: the program's argument.
      codec: the program's argument.
    """

    collective: str
    reduce_op: str
    root: int
    ranks: int
    members: str
    operands: str
    details: str
    platform: str
    backend: str
    algorithm: str
    codec: str

    @classmethod
    def of(cls, site: Mapping[str, Any]) -> PlannedCall:
        """Makes a call from its fields; long texts are cut, and their digest appended."""
        texts = {name: _short(each) for name, each in site.items() if isinstance(each, str)}
        fields: dict[str, Any] = dict(site) | texts
        return cls(**fields)

    def __str__(self) -> str:
        text = f"{self.collective} of {self.operands} on {self.ranks} ranks ({self.members})"
        given = [self.reduce_op, f"root {self.root}" if self.root >= 0 else "", self.details]
        given += [
            f"{name}={value}"
            for name, value, usual in (
                ("platform", self.platform, "cpu"),
                ("backend", self.backend, "auto"),
                ("algorithm", self.algorithm, "auto"),
                ("codec", self.codec, "raw"),
            )
            if value != usual
        ]
        return ", ".join([text, *filter(None, given)])


@dataclasses.dataclass(frozen=True)
class Plan:
    """How a call runs.

    Attributes:
      backend: "native", "mpi" or "xla".
      algorithm: the operation's argument, with the chunk: "ring:chunk=524288".
      codec: a spec; "raw" for none.
    """

    backend: str
    algorithm: str
    codec: str

    def __str__(self) -> str:
        return f"{self.backend}, {self.algorithm}, {self.codec}"


@dataclasses.dataclass(eq=False)
class Plans:
    """The plans of a program's calls; ``str()`` is a table.

    Attributes:
      world: the number of processes of each host, in the order of ranks.
      missing: what pinned plans do with a call that they lack: "error", or "auto" (plan it).
      calls: how each call runs.
      lines: for each call, up to 8 source lines with the call.
    """

    world: tuple[int, ...]
    missing: str = "error"
    calls: dict[PlannedCall, Plan] = dataclasses.field(default_factory=dict)
    lines: dict[PlannedCall, tuple[str, ...]] = dataclasses.field(default_factory=dict)

    def add(self, call: PlannedCall, plan: Plan, line: str) -> None:
        """Adds a call.

        Raises:
          InvalidArgumentError: if the call already has another plan.
        """
        known = self.calls.setdefault(call, plan)
        if known != plan:
            raise errors.InvalidArgumentError(
                f"{call} at {line} was planned in two ways, {known} (at "
                f"{', '.join(self.lines[call])}) and {plan}: options such as chunk_bytes changed "
                "in between, or communicators of different hosts made it. One file holds one plan "
                "for a call: record them apart."
            )
        lines = self.lines.get(call, ())
        if line not in lines:
            self.lines[call] = (*lines, line)[:_MAX_LINES]

    def find(self, site: Mapping[str, Any], line: str) -> Plan | None:
        """Returns how a call runs; None if it must be planned.

        Args:
          site: the arguments of its `PlannedCall`.
          line: the source line of the call.

        Raises:
          InvalidArgumentError: if the plans lack the call and `missing` is "error".
        """
        call = PlannedCall.of(site)
        plan = self.calls.get(call)
        if plan is not None or self.missing == "auto":
            return plan
        near = [str(each) for each in self.calls if each.collective == call.collective]
        has = (
            f"It has {call.collective} of other kinds, such as: {'; '.join(near[:3])}."
            if near
            else f"It has no {call.collective} at all."
        )
        raise errors.InvalidArgumentError(
            f"the pinned plan (option plan) lacks a call of this program, which has outgrown it: "
            f'{call}, at {line}. {has} {_WRITE}; or set its "missing" to "auto", and calls that '
            "it lacks are planned afresh."
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes a file for the option ``plan``, atomically.

        Args:
          path: the file.

        Raises:
          InvalidArgumentError: if the file cannot be written, or the plans exceed its limits.
        """
        content = {
            "version": VERSION,
            "jaxccomp": __version__,
            "world": list(self.world),
            "missing": self.missing,
            "calls": [
                dataclasses.asdict(call)
                | {"plan": dataclasses.asdict(plan), "lines": list(self.lines.get(call, ()))}
                for call, plan in self.calls.items()
            ],
        }
        data = json.dumps(content, indent=1).encode() + b"\n"
        if len(data) > json_files.MAX_BYTES:
            raise errors.InvalidArgumentError(
                f"the plans of {len(self.calls)} calls take {len(data)} bytes, and ranks share at "
                f"most {json_files.MAX_BYTES}: record a part of the program, and write "
                '"missing": "auto" into its file.'
            )
        parse(data, "what would be written")
        json_files.write(path, data)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Plans):
            return NotImplemented
        return not diff(self, other) and self.missing == other.missing

    __hash__: ClassVar[None] = None  # type: ignore[assignment]

    def __str__(self) -> str:
        rows = [
            (", ".join(self.lines.get(call, ())), str(call), str(plan))
            for call, plan in self.calls.items()
        ]
        return "\n".join(terminal.lines(rows)) or "no calls"


@dataclasses.dataclass(frozen=True)
class Difference:
    """A call with different plans in two files.

    Attributes:
      call: the call.
      lines: its source lines in the second file; if the second lacks the call, in the first.
      before: its plan in the first file; None if the first file lacks the call.
      after: its plan in the second file; None if the second file lacks the call.
    """

    call: PlannedCall
    lines: tuple[str, ...]
    before: Plan | None
    after: Plan | None

    def __str__(self) -> str:
        where = f"{', '.join(self.lines)}: {self.call}" if self.lines else str(self.call)
        if self.before is None:
            return f"+ {where}: {self.after}"
        if self.after is None:
            return f"- {where}: {self.before}"
        changed = [
            f"{name} {old} -> {getattr(self.after, name)}"
            for name, old in dataclasses.asdict(self.before).items()
            if old != getattr(self.after, name)
        ]
        return f"! {where}: {', '.join(changed)}"


@dataclasses.dataclass(frozen=True)
class PlanDiff:
    """The differences of two files; false if there are none. ``str()`` has a line for each.

    Attributes:
      worlds: the worlds of both files if they differ; else None.
      calls: the calls in only one of them (+, -), or with different plans (!).
    """

    worlds: tuple[tuple[int, ...], tuple[int, ...]] | None
    calls: tuple[Difference, ...]

    def __bool__(self) -> bool:
        return bool(self.worlds or self.calls)

    def __str__(self) -> str:
        lines = [str(each) for each in self.calls]
        if self.worlds:
            old, new = map(json_files.layout, self.worlds)
            lines.insert(0, f"! world: {old} -> {new}")
        return "\n".join(lines)


def diff(before: Plans, after: Plans) -> PlanDiff:
    """Returns the differences, in the order of the first file, then of the second file."""
    both = dict.fromkeys((*before.calls, *after.calls))
    found = [
        Difference(
            call,
            after.lines.get(call) or before.lines.get(call, ()),
            before.calls.get(call),
            after.calls.get(call),
        )
        for call in both
    ]
    return PlanDiff(
        (before.world, after.world) if before.world != after.world else None,
        tuple(each for each in found if each.before != each.after),
    )


# --- files -----------------------------------------------------------------------------------


def read(path: str | os.PathLike[str]) -> bytes:
    """Returns the unchecked bytes of a file.

    Raises:
      InvalidArgumentError: if the file is missing, or exceeds the size that ranks can exchange.
    """
    return json_files.read(path, "plan", _WRITE)


def load(path: str | os.PathLike[str]) -> Plans:
    """Returns the plans of a file.

    Raises:
      InvalidArgumentError: if it cannot be read, or has an invalid value.
      UnknownNameError: for a key or a name that does not exist.
    """
    return parse(read(path), os.path.basename(path))


def parse(data: bytes, place: str) -> Plans:
    """Parses the bytes of a plan file.

    Args:
      data: the bytes.
      place: the file's name, for errors.

    Raises:
      InvalidArgumentError: if it is no JSON, or has an invalid value.
      UnknownNameError: for a key or a name that does not exist.
    """
    content = _object(json_files.loads(data, place), place, _KEYS)
    if content["version"] != VERSION:
        raise errors.InvalidArgumentError(
            f"{place} has version {content['version']!r:.40}; this release reads version "
            f"{VERSION}: write it anew. {_WRITE}."
        )
    world = content["world"]
    good = isinstance(world, list) and 1 <= len(world) <= _MAX_RANKS
    if not good or not all(_is_whole(each, 1, _MAX_RANKS) for each in world):
        raise errors.InvalidArgumentError(
            f"{place}: world is a list with the processes of each host, such as [2, 2]."
        )
    if content["missing"] not in MISSING:
        raise errors.unknown(f"missing of {place}:", f"{content['missing']!s:.40}", MISSING)
    calls = content["calls"]
    if not isinstance(calls, list) or len(calls) > _MAX_CALLS:
        raise errors.InvalidArgumentError(f"{place}: calls is a list of at most {_MAX_CALLS}.")
    made = Plans(tuple(world), content["missing"])
    for i, each in enumerate(calls):
        call, plan, lines = _call(each, f"{place}: calls[{i}]")
        if call in made.calls:
            raise errors.InvalidArgumentError(f"{place}: calls[{i}] is there twice: {call}.")
        made.calls[call], made.lines[call] = plan, lines
    return made


def _short(text: str) -> str:
    cut = text[: _SHOWN_TEXT // 2]
    return text if len(text) <= _SHOWN_TEXT else f"{cut} ... #{json_files.digest(text.encode())}"


def _call(content: Any, place: str) -> tuple[PlannedCall, Plan, tuple[str, ...]]:
    fields = [field.name for field in dataclasses.fields(PlannedCall)]
    content = _object(content, place, (*fields, "plan", "lines"))
    for name, minimum, maximum in (("root", -1, _MAX_RANKS - 1), ("ranks", 1, 1 << 20)):
        if not _is_whole(content[name], minimum, maximum):
            raise errors.InvalidArgumentError(
                f"{place}: {name} must be a whole number from {minimum} to {maximum}, not "
                f"{content[name]!r:.40}."
            )
    texts = [name for name in fields if name not in ("root", "ranks")]
    _check_texts(content, texts, place)
    lines = content["lines"]
    if not isinstance(lines, list) or len(lines) > _MAX_LINES:
        raise errors.InvalidArgumentError(f"{place}: lines is a list of at most {_MAX_LINES}.")
    _check_texts(dict(enumerate(lines)), range(len(lines)), f"{place}: lines")
    call = PlannedCall(**{name: content[name] for name in fields})
    inside = f"{place}: plan"
    names = tuple(field.name for field in dataclasses.fields(Plan))
    given = _object(content["plan"], inside, names)
    _check_texts(given, names, inside)
    plan = Plan(**given)
    _check_plan(call, plan, inside)
    return call, plan, tuple(lines)


def _check_plan(call: PlannedCall, plan: Plan, place: str) -> None:
    """Raises unless the plan keeps the backend and the algorithm that the program sets."""
    if plan.backend not in BACKENDS:
        raise errors.unknown(f"backend of {place}:", plan.backend, BACKENDS)
    allowed = ("native", "xla") if call.backend == "auto" else (call.backend,)
    if plan.backend not in allowed:
        raise errors.InvalidArgumentError(
            f"{place}: the program has backend={call.backend!r}, which may be "
            f"{errors.listed(allowed)}, not {plan.backend!r}."
        )
    if not algorithms.has(call.collective, plan.algorithm):
        raise errors.InvalidArgumentError(
            f"{place}: {call.collective} has no algorithm {plan.algorithm!r}; "
            "`python -m jaxccomp doctor` lists its algorithms."
        )
    name = call.algorithm.partition(":")[0]
    if name not in ("auto", plan.algorithm.partition(":")[0]):
        raise errors.InvalidArgumentError(
            f"{place}: the program has algorithm={call.algorithm!r}, so it cannot be "
            f"{plan.algorithm!r}."
        )


def _check_texts(content: Mapping[Any, Any], names: Iterable[Any], place: str) -> None:
    for name in names:
        if not isinstance(content[name], str) or len(content[name]) > _MAX_TEXT:
            raise errors.InvalidArgumentError(
                f"{place}: {name} must be a text of at most {_MAX_TEXT} characters, not "
                f"{content[name]!r:.40}."
            )


def _object(content: Any, place: str, keys: Sequence[str]) -> Mapping[str, Any]:
    content = json_files.keys_of(content, place, keys)
    lacking = [key for key in keys if key not in content]
    # Files of another version may lack many keys: let the caller report the version.
    if "version" in keys and content.get("version", VERSION) != VERSION:
        return {key: content.get(key) for key in keys}
    if lacking:
        raise errors.InvalidArgumentError(f"{place} lacks {errors.listed(lacking)}.")
    return content


def _is_whole(value: Any, minimum: int, maximum: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and minimum <= value <= maximum

"""Reads files of `Timeline.save`; their contents are untrusted and checked."""

from __future__ import annotations

import dataclasses
import math
import os
import re
from collections.abc import Mapping
from typing import Any

from jaxccomp import errors
from jaxccomp._native import json_files
from jaxccomp.trace._timeline import FORMAT, KINDS, VERSION, Origin, Task, Timeline

_SAVE = (
    "Give files that `Timeline.save` has written, within "
    "`with jaxccomp.trace.record() as timeline:`"
)
_MOST = 1 << 62  # the limit of integers: nanoseconds, bytes
_MOST_TEXT = 4096
_MOST_RANKS = 1 << 24
_NUMBER = re.compile("[0-9a-f]{16}")


def read(path: str | os.PathLike[str]) -> Timeline:
    """Reads a saved timeline.

    Raises:
      InvalidArgumentError: if the file is missing, cut, altered or of another format.
    """
    place = f"the trace {os.fspath(path)!r}"
    content = json_files.loads(json_files.read(path, "trace", _SAVE, None), place)
    about = content.get("otherData") if isinstance(content, dict) else None
    if not isinstance(about, dict) or about.get("format") != FORMAT:
        found = about.get("format") if isinstance(about, dict) else None
        what = f", but of format {found!r:.40}" if found else ""
        raise errors.InvalidArgumentError(f"{place} is no trace of one rank{what}. {_SAVE}.")
    if about.get("version") != VERSION:
        raise errors.InvalidArgumentError(
            f"{place} has version {about.get('version')!r:.20}, and this release reads {VERSION}; "
            "record it anew."
        )
    events = content.get("traceEvents")
    if not isinstance(events, list):
        raise errors.InvalidArgumentError(f"{place} has no list of traceEvents.")
    tasks = [
        _task(event, f"{place}: traceEvents[{i}]")
        for i, event in enumerate(events)
        if not (isinstance(event, dict) and event.get("ph") == "M")  # names of rows
    ]
    return Timeline(tasks, _origin(about, place))


def _origin(about: Mapping[str, Any], place: str) -> Origin:
    values = {field.name: about.get(field.name) for field in dataclasses.fields(Origin)}
    for name in ("host", "clock"):
        _text(values, name, place)
    _whole(values, "size", 1, _MOST_RANKS, place)
    _whole(values, "rank", 0, values["size"] - 1, place)
    for name in ("begin_ns", "unix_ns"):
        _whole(values, name, 0, _MOST, place)
    return Origin(**values)


def _task(event: Any, place: str) -> Task:
    args = event.get("args") if isinstance(event, dict) else None
    if not isinstance(args, dict) or event.get("ph") != "X":
        raise errors.InvalidArgumentError(f"{place} is no task: its ph is 'X', and it has args.")
    for name in ("ts", "dur"):
        value = event.get(name)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not 0 <= value < _MOST or not math.isfinite(value):
            raise errors.InvalidArgumentError(
                f"{place}: {name} is a number of microseconds from 0 on, not {value!r:.40}."
            )
    _text(event, "cat", place)
    _whole(event, "tid", 0, len(KINDS) - 1, place)
    _whole(args, "peer", -1, _MOST_RANKS, place)
    for name in ("operation", "lane", "bytes"):
        _whole(args, name, 0, _MOST, place)
    message = args.get("message", "0" * 16)
    if not isinstance(message, str) or not _NUMBER.fullmatch(message):
        raise errors.InvalidArgumentError(
            f"{place}: message is 16 hexadecimal digits, not {message!r:.40}."
        )
    begin = event["ts"] * 1e-6
    return Task(
        begin=begin,
        end=begin + event["dur"] * 1e-6,
        operation=args["operation"],
        collective=event["cat"],
        kind=KINDS[event["tid"]],
        peer=args["peer"],
        lane=args["lane"],
        value_bytes=args["bytes"],
        message=int(message, 16),
    )


def _text(values: Mapping[str, Any], name: str, place: str) -> None:
    value = values.get(name)
    if not isinstance(value, str) or len(value) > _MOST_TEXT:
        raise errors.InvalidArgumentError(
            f"{place}: {name} is a text of at most {_MOST_TEXT} characters, not {value!r:.40}."
        )


def _whole(values: Mapping[str, Any], name: str, least: int, most: int, place: str) -> None:
    value = values.get(name)
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    if not is_whole or not least <= value <= most:
        raise errors.InvalidArgumentError(
            f"{place}: {name} is a whole number from {least} to {most}, not {value!r:.40}."
        )

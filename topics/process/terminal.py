"""Readable log lines for a terminal: the time, the level and one sentence.

    22:58:46 info     ready  http://127.0.0.1:4000  data topics-data (0 topics)
    22:59:02 error    process died: child shard 1, signal SIGKILL, uptime 16.2 s, retry in 0.0 s

Process ids are omitted, and so are events that occur at every successful startup and shutdown.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import structlog

COLORS: Final = {"warning": 33, "error": 31, "critical": 31}
DIM: Final = 2
UNLABELED: Final = ("reason", "error", "effect")  # phrases, shown first and without names
UNITS: Final = {"s": "s", "ms": "ms", "bytes": "bytes", "percent": "%"}
NOT_SHOWN: Final = {
    *("event", "level", "time", "process", "pid", "child_pid", "exception"),
    *UNLABELED,
}

Event = Mapping[str, Any]


class LineRenderer:
    """Renders the events of one process as lines.

    Raises `structlog.DropEvent` for an event that is omitted.
    """

    def __init__(self, *, is_colored: bool) -> None:
        self._is_colored = is_colored
        self._url, self._data_dir, self._interrupts = "", "", 0
        self._own: dict[str, Callable[[Event], str | None]] = {
            "file limit set": lambda _: None,
            "listening": self._listening,
            "ready": self._ready,
            "ready with damaged shards": self._ready,
            "signal received": self._signal,
            "process started": lambda event: None if event["spawns"] == 1 else _render_event(event),
            "process ended": lambda event: (
                None if not event.get("exit_code", 1) else _render_event(event)
            ),
        }

    def __call__(self, event: Event) -> str:
        """Return the line for an event without its line end. A traceback follows on new lines."""
        name, level = event.get("event"), str(event["level"])
        try:
            text = self._own.get(str(name), _render_event)(event)
        except KeyError:  # The event lacks a field that its own renderer uses.
            text = _render_event(event)
        if text is None:
            raise structlog.DropEvent
        if event["process"] != "supervisor":
            text = f"{event['process']} {text.removeprefix('shard ')}"
        now = self._colored(f"{datetime.now(UTC).astimezone():%H:%M:%S}", DIM)
        line = f"{now} {self._colored(level.ljust(8), COLORS.get(level, 0))} {text}"
        return f"{line}\n{event['exception']}" if "exception" in event else line

    def _colored(self, text: str, color: int) -> str:
        return f"\x1b[{color}m{text}\x1b[0m" if self._is_colored and color else text

    def _listening(self, event: Event) -> str:
        location = Path(event["data_dir"])
        self._url = event["url"]
        self._data_dir = str(
            location.relative_to(Path.cwd()) if location.is_relative_to(Path.cwd()) else location
        )
        keys = f"{event['keys']} keys" if event["auth"] == "keys" else "no keys"
        return f"starting  {_shown(self._url)}  {event['shards']} shards, {keys}"

    def _ready(self, event: Event) -> str:
        count = event["topics"]
        topics = "1 topic" if count == 1 else f"{count} topics"
        damaged = "".join(f", shard {number} is damaged" for number in event.get("damaged", ()))
        return f"ready  {_shown(self._url)}  data {_shown(self._data_dir)} ({topics}){damaged}"

    def _signal(self, event: Event) -> str:
        if event["signal"] != "SIGINT":
            return _render_event(event)
        self._interrupts += 1
        if self._interrupts > 1:
            return "Ctrl-C again: the server is killed"
        return "Ctrl-C: the server stops; press it again to kill the server"


def _render_event(event: Event) -> str:
    """Render an event, its `UNLABELED` fields, and its other fields."""
    fields = [_field(name, value) for name, value in event.items() if name not in NOT_SHOWN]
    parts = [_shown(event[name]) for name in UNLABELED if event.get(name) is not None]
    rest = ", ".join(parts + fields)
    return _shown(event.get("event")) + (f": {rest}" if rest else "")


def _field(name: str, value: Any) -> str:
    """Render a field as ``name value``, followed by the unit if the name ends with one."""
    label, _, unit = name.rpartition("_")
    if label and unit in UNITS:
        return f"{label.replace('_', ' ')} {_shown(value)} {UNITS[unit]}"
    return f"{name.replace('_', ' ')} {_shown(value)}"


def _shown(value: Any) -> str:
    """Render a value. Text with control characters is escaped as a JSON string.

    So a value from a client cannot forge a log line or move the terminal's cursor.
    """
    if isinstance(value, list | tuple):
        return " ".join(map(_shown, value)) or "none"
    return str(value) if str(value).isprintable() else json.dumps(str(value))

"""Units: converts times, sizes and counts from and to the text that users write and read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from time import time
from typing import Final

import click

MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
SIZES: Final = ("B", "KiB", "MiB", "GiB", "TiB")
NUMBER: Final = r"\d{1,30}(?:\.\d{1,30})?"
MULTIPLES: Final = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def size(count: int) -> str:
    """Return a number of bytes as ``512 B`` or ``1.5 MiB``."""
    value, unit = float(count), 0
    while value >= 1024 and unit + 1 < len(SIZES):
        value, unit = value / 1024, unit + 1
    return f"{count} B" if not unit else f"{value:.3g} {SIZES[unit]}"


def counted(count: int, noun: str = "record") -> str:
    """Return a count as ``1 record`` or ``12,000 records``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def printable(text: str) -> str:
    """Escape characters that a terminal would interpret."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def local_time(ts_ms: int) -> str:
    """Return a local time: ``2026-11-25 22:31:48``."""
    return datetime.fromtimestamp(ts_ms / 1000).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def iso(ts_ms: int) -> str:
    """Return a time in ISO 8601, in UTC: ``2026-11-25T21:31:48.123Z``."""
    seconds = datetime.fromtimestamp(ts_ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{seconds}.{ts_ms % 1000:03}Z"


def duration(span_ms: float) -> str:
    """Return a time span in its largest unit: ``850 ms``, ``3 m``, ``2 d``."""
    unit = next(unit for unit in ("d", "h", "m", "s", "ms") if span_ms >= MS[unit] or unit == "ms")
    return f"{span_ms / MS[unit]:.0f} {unit}"


def age(ts_ms: float) -> str:
    """Return how long ago a time was."""
    return duration(max(0.0, 1000 * time() - ts_ms))


def remaining(ts_ms: float) -> str:
    """Return the remaining time until a time."""
    return duration(max(0.0, ts_ms - 1000 * time()))


class Duration(click.ParamType[int]):
    """``500ms``, ``10m``, ``7d``. A number without a unit is seconds. The value is in ms and at
    least ``least``.
    """

    name = "duration"

    def __init__(self, least: int = 0) -> None:
        self._least = least

    def convert(
        self, value: object, parameter: click.Parameter | None, context: click.Context | None
    ) -> int:
        """Parse a value."""
        found = re.fullmatch(rf"({NUMBER})\s*(ms|[smhdw]?)", str(value))
        if found is None:
            what = f"{value!r} is not a duration such as 500ms, 30s, 10m, 2h or 7d"
            self.fail(what, parameter, context)
        span_ms = round(float(found[1]) * MS[found[2] or "s"])
        if span_ms < self._least:
            self.fail(f"must be at least {self.exact(self._least)}", parameter, context)
        return span_ms

    def exact(self, value: int) -> str:
        """Return the value in the largest unit that divides it: ``7d``."""
        return _exact(value, {unit: ms for unit, ms in MS.items() if unit != "w"})


class Time(click.ParamType[datetime]):
    """A date with an optional time in ISO 8601, which is local time without an offset, or an age:
    ``10m``.
    """

    name = "time"

    def convert(
        self, value: object, parameter: click.Parameter | None, context: click.Context | None
    ) -> datetime:
        """Parse a value."""
        try:
            return datetime.fromisoformat(str(value)).astimezone()
        except (ValueError, OverflowError):
            pass
        try:
            ago_s = DURATION.convert(value, parameter, context) / 1000
        except click.BadParameter:
            what = f"{value!r} is neither a date in ISO 8601 nor an age such as 10m or 7d"
            self.fail(what, parameter, context)
        return datetime.fromtimestamp(max(time() - ago_s, 0)).astimezone()


class Amount(click.ParamType[int]):
    """A count (``base`` 1000: ``1M`` is a million) or bytes (``base`` 1024: ``1M`` is a MiB)."""

    name = "amount"

    def __init__(self, base: int) -> None:
        self._base = base

    def convert(
        self, value: object, parameter: click.Parameter | None, context: click.Context | None
    ) -> int:
        """Parse a value."""
        found = re.fullmatch(rf"({NUMBER})\s*([kmgt]?)(?:i?b)?", str(value).lower())
        if found is None:
            what = f"{value!r} is not an amount such as 5000, 10k, 1M or 2G"
            self.fail(what, parameter, context)
        multiple: int = self._base ** MULTIPLES[found[2]]
        return round(float(found[1]) * multiple)

    def exact(self, value: int) -> str:
        """Return the value in the largest unit that divides it: ``1M``."""
        return _exact(value, {unit.upper(): self._base**power for unit, power in MULTIPLES.items()})


def _exact(value: int, steps: Mapping[str, int]) -> str:
    step, unit = max((step, unit) for unit, step in steps.items() if value % step == 0)
    return f"{value // step}{unit}"


DURATION: Final = Duration()
TIME: Final = Time()
COUNT: Final = Amount(1000)
BYTES: Final = Amount(1024)

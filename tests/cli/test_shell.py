"""What all commands share: options in both places, errors, exit codes, output."""

from __future__ import annotations

import click
import pytest

from tests.cli.conftest import Run
from topics.cli import units


def test_a_usage_error_is_a_line_or_an_object(topics: Run) -> None:
    assert topics("fly").code == 2
    assert topics("--json", "fly").error["code"] == "usage"


@pytest.mark.parametrize(
    ("text", "ms"), [("500ms", 500), ("30", 30_000), ("1.5h", 5_400_000), ("7d", 604_800_000)]
)
def test_durations(text: str, ms: int) -> None:
    assert units.DURATION.convert(text, None, None) == ms


@pytest.mark.parametrize("text", ["", "d", "1 fortnight", "-1s", "1e3"])
def test_what_is_no_duration_and_no_amount(text: str) -> None:
    for kind in (units.DURATION, units.COUNT):
        with pytest.raises(click.BadParameter):
            kind.convert(text, None, None)


def test_amounts_of_records_and_of_bytes() -> None:
    assert units.COUNT.convert("1M", None, None) == 1_000_000
    assert units.BYTES.convert("1M", None, None) == 1 << 20
    assert units.BYTES.convert("1.5GiB", None, None) == 3 << 29


def test_what_people_read() -> None:
    assert [units.size(count) for count in (0, 1023, 1536, 1 << 30)] == [
        "0 B",
        "1023 B",
        "1.5 KiB",
        "1 GiB",
    ]
    assert [units.duration(ms) for ms in (5, 1500, 180_000, 172_800_000)] == [
        "5 ms",
        "2 s",
        "3 m",
        "2 d",
    ]

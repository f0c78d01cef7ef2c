"""A data directory under inspection: sample segments, findings, and the commands."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.formats.disk.segment_support import Write, plain
from topics.storage.data_dir import locked_for_reading
from topics.storage.verify import Finding, verify_directory

MIXED = [
    (
        1,
        5,
        [
            plain(40, tag="t%d"),
            Write([("n", "t", b"1", b"{}"), (None, None, b"2", b'{"a":1}')], key="k"),
        ],
    ),
    (2, 9, [Write([("a", None, b"1", None)] * 3, ts_ms=5), plain(2)]),
    (3, 1, [Write([("a", "x", b"1", None)] * 3)]),
]


def findings(data: Path) -> list[str]:
    """Return the findings of a verification of a data directory."""
    with locked_for_reading(data) as shards:
        return [
            f"{found.path.name}: {found.reason}"
            for found in verify_directory(data, shards)
            if isinstance(found, Finding)
        ]


def topics(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command of `topics`."""
    return subprocess.run(
        [sys.executable, "-m", "topics", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

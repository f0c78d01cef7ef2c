"""The client for threads is generated from the asynchronous one."""

from __future__ import annotations

from pathlib import Path

from tests.client import unasync


def test_the_generated_client_is_current(tmp_path: Path) -> None:
    """If this fails, run `python -m tests.client.unasync`."""
    unasync.generate(tmp_path)
    assert texts(unasync.RESULTS) == texts(tmp_path)


def texts(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.glob("*.py")}

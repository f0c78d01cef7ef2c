"""Transcripts of engine rules: text files of commands and their output.

A line that begins with ``> `` is a command of `queue_shell`, the lines below it are its output, and
``#`` begins a comment. After a change of the rules, ``python -m tests.engine.test_transcripts``
rewrites the output for review.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine.queue_shell import QueueShell

TRANSCRIPTS = sorted((Path(__file__).parent / "transcripts").glob("*.txt"))


def played(text: str) -> Iterator[str]:
    """Yield the lines of a transcript with the output of the current engine."""
    shell = QueueShell()
    for line in text.splitlines():
        if line.startswith("> "):
            yield line
            yield from shell.answer(line.removeprefix("> "))
        elif not line or line.startswith("#"):
            yield line


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
def test_the_engine_reproduces_the_output_of_the_transcript(path: Path) -> None:
    text = path.read_text()
    assert [*played(text)] == text.splitlines()


def test_every_transcript_contains_commands_and_output() -> None:
    assert len(TRANSCRIPTS) >= 6
    for path in TRANSCRIPTS:
        lines = path.read_text().splitlines()
        commands = [line for line in lines if line.startswith("> ")]
        assert commands
        assert len(commands) < len([line for line in lines if line and line[0] != "#"])


if __name__ == "__main__":
    for each in TRANSCRIPTS:
        each.write_text("".join(f"{line}\n" for line in played(each.read_text())))

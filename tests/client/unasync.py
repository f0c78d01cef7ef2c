"""Generate `topics/client/sync`: the client of `topics/client/aio` without ``async`` and ``await``.

    python -m tests.client.unasync --write

Names lose their ``Async``; `NAMES` has the others that differ. What tasks and threads do each in
their way is written twice, under such names: `topics/client/tasks.py` and `threads.py`.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
from itertools import accumulate
from pathlib import Path
from tokenize import COMMENT, NAME, STRING, generate_tokens

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "topics/client/aio"
RESULTS = ROOT / "topics/client/sync"
HEADER = "# Generated from topics/client/aio/{} by tests/client/unasync.py. Change that one.\n"

NAMES = {
    "async": "",
    "await": "",
    "aio": "sync",
    "tasks": "threads",
    "anyio": "time",  # of which `sleep` is imported
    "StopAsyncIteration": "StopIteration",
    "AnyIOBackend": "SyncBackend",
    "AbstractAsyncContextManager": "AbstractContextManager",
    **{f"__a{name}__": f"__{name}__" for name in ("enter", "exit", "iter", "next")},
    **{f"a{name}": name for name in ("close", "closing", "next", "read")},
}
TEXTS = {
    r"\basync (?=with|for)|\bawait |\bAsync(?=[A-Z])": "",
    r"for asyncio and trio\b": "for threads",
    r"\btasks\b": "threads",
}
OURS = "lint.isort.known-first-party=['topics']"  # also of files that are not there yet
RUFF = (
    ["check", "--quiet", "--fix", "--unsafe-fixes", "--select", "I,UP028", "--config", OURS],
    ["format", "--quiet"],
)


def converted(source: str) -> str:
    """The source without ``async``, not yet formatted."""
    lines = [0, *accumulate(map(len, source.splitlines(keepends=True)))]
    for token in reversed([*generate_tokens(io.StringIO(source).readline)]):
        if token.type == NAME:
            text = NAMES.get(token.string, token.string.removeprefix("Async"))
        elif token.type in (STRING, COMMENT):
            text = token.string
            for pattern, replacement in TEXTS.items():
                text = re.sub(pattern, replacement, text)
        else:
            continue
        first, last = (lines[row - 1] + column for row, column in (token.start, token.end))
        last += not text  # the space behind a word that is left out
        source = source[:first] + text + source[last:]
    return source


def generated(name: str) -> str:
    """The file of this name."""
    text = HEADER.format(name) + converted((SOURCES / name).read_text())
    for arguments in RUFF:
        command = [sys.executable, "-m", "ruff", *arguments]
        command += ["--stdin-filename", str(RESULTS / name), "-"]
        text = subprocess.run(
            command, input=text, capture_output=True, text=True, check=True, cwd=ROOT
        ).stdout
    return text


def results() -> dict[Path, str]:
    """All files with their texts."""
    return {RESULTS / path.name: generated(path.name) for path in sorted(SOURCES.glob("*.py"))}


if __name__ == "__main__":
    for path, text in results().items():
        if sys.argv[1:] == ["--write"]:
            path.write_text(text)
        else:
            sys.stdout.write(text)

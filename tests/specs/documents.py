"""Generates the specification documents that the server publishes.

python -m tests.specs.documents --write
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from tests.specs.asyncapi import asyncapi
from tests.specs.openapi import openapi
from topics.front.data.specs import FOLDER

DOCUMENTS: Final[dict[Path, Callable[[], Any]]] = {
    FOLDER / "openapi.json": openapi,
    FOLDER / "asyncapi.json": asyncapi,
}
LINE_MAX: Final = 100


def text_of(document: Any) -> str:
    """Format JSON. A value that fits into a line is on one line."""
    return _shown(document, 0, 0) + "\n"


def _shown(value: Any, depth: int, used: int) -> str:
    line = json.dumps(value, ensure_ascii=False)
    if depth + used + len(line) < LINE_MAX or not isinstance(value, dict | list) or not value:
        return line
    if isinstance(value, dict):
        names = [f"{json.dumps(name)}: " for name in value]
        parts = [
            name + _shown(each, depth + 1, len(name))
            for name, each in zip(names, value.values(), strict=True)
        ]
    else:
        parts = [_shown(each, depth + 1, 0) for each in value]
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    inner = f",\n{' ' * (depth + 1)}".join(parts)
    return f"{opening}\n{' ' * (depth + 1)}{inner}\n{' ' * depth}{closing}"


if __name__ == "__main__":
    for path, make in DOCUMENTS.items():
        if sys.argv[1:] == ["--write"]:
            path.write_text(text_of(make()))
        else:
            sys.stdout.write(text_of(make()))

"""Check that the paths that ARCHITECTURE.md and the decisions name exist, and that no file name is
used too often.
"""

from __future__ import annotations

import re
import tokenize
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [
    ROOT / "topics/ARCHITECTURE.md",
    ROOT / "topics/PROMISES.md",
    ROOT / "topics/SECURITY.md",
    *sorted((ROOT / "topics/decisions").glob("*.md")),
]
PATH = re.compile(r"`((?:[\w*]+/)+(?:[\w*]+\.(?:py|md))?|(?:[\w*]+/)+[\w*]+)`")
FOLDERS = {path.name for path in (ROOT / "topics").iterdir() if path.is_dir()} | {"tests", "topics"}


def pattern(path: str) -> str:
    """Return the pattern of a path. A decision is named by its number."""
    return f"{path}-*" if path.startswith("decisions/") else path.rstrip("/")


def missing(page: Path) -> list[str]:
    """Return the paths that a page names, relative to the root or to topics/, and that do not
    exist.
    """
    named = [path for path in PATH.findall(page.read_text()) if path.split("/")[0] in FOLDERS]
    return [
        path
        for path in named
        if not any(found for root in (ROOT, ROOT / "topics") for found in root.glob(pattern(path)))
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_path_that_a_page_names_exists(page: Path) -> None:
    assert missing(page) == []


def test_a_missing_path_is_reported(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("`engine/reading.py`, `tests/engine`, `engine/nowhere.py`")
    assert missing(page) == ["engine/nowhere.py"]


def test_no_file_name_is_used_three_times() -> None:
    names = Counter(path.name for path in (ROOT / "topics").rglob("*.py"))
    del names["__init__.py"]
    assert [name for name, count in names.items() if count > 2] == []


def test_every_file_that_a_docstring_or_comment_names_exists() -> None:
    existing = {path.name for path in ROOT.rglob("*.py") if ".venv" not in path.parts}
    wrong = []
    for path in [*(ROOT / "topics").rglob("*.py"), *(ROOT / "workers").glob("*.py")]:
        with path.open("rb") as file:
            for token in tokenize.tokenize(file.readline):
                if token.type in (tokenize.COMMENT, tokenize.STRING):
                    named = re.findall(r"\b([a-z]\w*\.py)\b", token.string)
                    wrong += [f"{path}: {name}" for name in named if name not in existing]
    assert wrong == []

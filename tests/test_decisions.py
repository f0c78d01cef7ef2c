"""Check that every decision page has the same form and is at most about one page long."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = sorted((ROOT / "topics" / "decisions").glob("*.md"))
SECTIONS = ["Context", "Decision", "Alternatives", "Consequences"]
LINES_MAX = 60


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_has_title_date_status_and_four_sections(page: Path) -> None:
    lines = page.read_text().splitlines()
    assert re.fullmatch(rf"# {page.name[:4]} \S.*", lines[0])
    assert lines[1] == ""
    assert re.fullmatch(r"Date: 20\d\d-\d\d-\d\d", lines[2])
    assert re.fullmatch(r"Status: (accepted|superseded by \d{4})", lines[3])
    assert [line[3:] for line in lines if line.startswith("## ")] == SECTIONS
    assert len(lines) <= LINES_MAX
    assert all(len(line) <= 100 for line in lines if not line.startswith("|"))


def test_each_decision_number_is_used_once() -> None:
    numbers = [page.name[:4] for page in PAGES]
    assert len(set(numbers)) == len(numbers)

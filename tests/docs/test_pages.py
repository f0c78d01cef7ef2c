"""README and the pages of topics/docs: their code runs and prints the shown output."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from tests.docs import client as client_page
from tests.docs import pages, reference
from tests.docs.pages import PAGES, Block, Reader, agrees, sections
from topics import client
from topics.cli import root

LANGUAGES = {"sh", "python", "py", "text", "js", "html", "toml", "ini", "nginx", "yaml", "sql"}
HOW = re.compile(r"|exit-[1-9]\d*|until-ctrl-c|no-run: \S.{9,}")
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")
COMMAND = re.compile(r"(?:^|`)topics ([a-z]+)", re.MULTILINE)
DO_NOT_RUN_MAX = 6


def blocks(page: Path) -> list[Block]:
    return [block for section in sections(page) for block in section]


def case(page: Path) -> object:
    is_spark = page.stem == "spark"
    marks = (
        [pytest.mark.timeout(1800), pytest.mark.spark] if is_spark else [pytest.mark.timeout(300)]
    )
    return pytest.param(page, id=page.stem, marks=marks)


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", [case(page) for page in PAGES if any(block.runs for block in blocks(page))]
)
def test_the_code_of_a_page_prints_the_output_that_the_page_shows(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if page.stem == "spark":
        monkeypatch.setattr(pages, "BLOCK_MAX_S", 600.0)  # JVMs on a busy machine
        pytest.importorskip("pyspark", reason="pyspark is not installed (the spark extra has it)")
    Reader(tmp_path).read(page)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_block_of_a_page_is_of_a_known_kind(page: Path) -> None:
    text = page.read_text()
    found = blocks(page)
    assert {block.language for block in found} <= LANGUAGES
    assert [block.how for block in found if not HOW.fullmatch(block.how)] == []
    fences = 2 * len(found) + 2 * sum(block.shown is not None for block in found)
    assert len(re.findall("^ *```", text, re.MULTILINE)) == fences, "each fence is found"


def test_only_a_few_blocks_are_not_run() -> None:
    found = [block for page in PAGES for block in blocks(page)]
    assert sum(block.how.startswith("no-run") for block in found) <= DO_NOT_RUN_MAX


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_targets_of_links_exist(page: Path) -> None:
    links = LINK.findall(page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page != reference.PAGE], ids=lambda page: page.stem
)
def test_every_command_that_a_page_names_exists(page: Path) -> None:
    known = {*root.list_commands(click.Context(root))}
    assert {*COMMAND.findall(page.read_text())} <= known


def test_shown_output_is_compared_without_its_numbers_and_widths() -> None:
    shown = 'orders   12  "A1"\n...\n{"epoch":1,...}'
    assert agrees(shown, 'orders 7 "A2"\nmore\n{"epoch":2,"wid":"w"}\n')
    assert not agrees(shown, 'orders 7 "B1"\nmore\n{"epoch":2,"wid":"w"}')
    assert not agrees("one\ntwo", "one\ntwo\nthree")


def test_the_reference_page_is_current() -> None:
    made = reference.reference()
    assert reference.PAGE.read_text() == made, "python -m tests.docs.reference --write"


def test_the_page_of_the_client_is_current() -> None:
    made = client_page.page()
    assert client_page.PAGE.read_text() == made, "python -m tests.docs.client --write"
    shown = {*re.findall(r"^### (\w+)|^\| `(\w+)` \|", made, re.M)}
    assert {*client.__all__} <= {name for pair in shown for name in pair} | {"TAIL", "Event"}

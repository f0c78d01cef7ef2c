"""The client for threads is generated from that for tasks."""

from __future__ import annotations

from tests.client import unasync


def test_the_generated_files_are_current() -> None:
    """After a change: python -m tests.client.unasync --write."""
    found = {path: path.read_text() for path in unasync.RESULTS.glob("*.py")}
    assert found == unasync.results()


def test_words_of_code_comments_and_docstrings_are_converted() -> None:
    source = '''
from anyio import sleep
async def f(x: AsyncThing) -> None:
    """``async with f()`` of `AsyncThing`, to be used by several tasks."""
    async with aclosing(x) as y:  # as async for
        async for z in y:
            await (await z.aread()).wait("§ await us", awaited=True)
'''
    assert (
        unasync.converted(source)
        == '''
from time import sleep
def f(x: Thing) -> None:
    """``with f()`` of `Thing`, to be used by several threads."""
    with closing(x) as y:  # as for
        for z in y:
            (z.read()).wait("§ us", awaited=True)
'''
    )

"""Origins (decisions 0019, 0033): a page of another site reaches nothing through a visitor's
browser, with keys or without.
"""

from __future__ import annotations

import pytest

from tests.support.front import running


@pytest.mark.parametrize(
    "line", ["GET /v0/topics/a/work?node=n", "POST /v0/topics/a/redrive"], ids=["work", "redrive"]
)
async def test_a_page_of_another_site_leases_and_moves_no_jobs(line: str) -> None:
    """Browsers send both without a preflight."""
    method, path = line.split()
    async with running() as run:
        client = await run.connect()
        answer = await client.ask(method, path, origin="http://elsewhere")
        assert (answer.status, answer.code, run.backend.calls) == (403, "forbidden", [])
        assert (await client.ask(method, path, origin="http://localhost:3000")).status == 404

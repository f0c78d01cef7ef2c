"""The code in README.md about routers does what the text says."""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import Any

import pytest

from tests.contract.test_readme_queue import TIMEOUT_S, blocks
from tests.support.api import Api, data, ok
from tests.support.copies import kept

(EXAMPLE,) = blocks("Routers")


def answers(printed: str) -> list[Any]:
    """The JSON bodies that follow each other without anything in between."""
    found: list[Any] = []
    at, decoder = 0, json.JSONDecoder()
    while at < len(printed):
        body, at = decoder.raw_decode(printed, at)
        assert "error" not in body
        found.append(body)
    return found


def test_the_example_of_routers_prints_what_its_comments_say(api: Api, topic: str) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    host, port = api.address
    code = EXAMPLE.code.replace("127.0.0.1:4000", f"{host}:{port}")
    for name in ("orders", "audit"):
        code = code.replace(f"/{name}", f"/{topic}.{name}").replace(
            f'"{name}"', f'"{topic}.{name}"'
        )
    code = code.replace("source=orders", f"source={topic}.orders")
    done = subprocess.run(
        ["sh", "-c", code], check=True, capture_output=True, timeout=TIMEOUT_S, text=True
    )
    made, appended, copies, mine, shown, listed, deleted = answers(done.stdout)
    assert (made["created"], appended["count"]) == (True, 2)
    assert data(copies["records"]) == [{"sku": "A1"}]
    assert mine["records"] == []
    assert (shown["forwarded_total"], shown["lag_records"], shown["lag_ms"]) == (1, 0, 0)
    assert [router["router"] for router in listed["routers"]] == [made["router"]]
    assert deleted["deleted"] is True
    assert data(kept(api, f"{topic}.audit")) == [{"sku": "A1"}], "its copies stay"
    for name in ("orders", "audit"):
        assert ok(api.delete(f"{topic}.{name}"))["routers_removed"] == []

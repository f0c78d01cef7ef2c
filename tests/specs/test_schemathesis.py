"""Requests that schemathesis generates from the document: the server must respond as documented.
Invalid and random requests take minutes, so they need ``run`` with other phases.
`tests.campaigns.schema_fuzz` mutates requests continuously with the same judge.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.api import Api, create
from tests.support.server import Server
from topics.front.data.specs import OPENAPI

ROOT = Path(__file__).resolve().parents[2]
KEY = "fuzz-key"
CHECKS = (
    *("not_a_server_error", "status_code_conformance", "content_type_conformance"),
    *("response_headers_conformance", "response_schema_conformance"),
)
ENDLESS = ("queue.work", "watch.open", "watch.topics")  # endless streams; other tests request these
CONFIG = """
hooks = "tests.specs.hooks"
[parameters]
"path.topic" = "orders"
[[operations]]
include-path-regex = "/(claim|ack|nack|extend|leases)$"
parameters = { "path.topic" = "jobs" }
"""


def run(folder: Path, address: tuple[str, int], *more: str) -> subprocess.CompletedProcess[str]:
    """Run all operations with finite responses."""
    (folder / "schemathesis.toml").write_text(CONFIG)
    command = [
        *(sys.executable, "-m", "schemathesis.cli", "run", "--no-color"),
        *(f"http://{address[0]}:{address[1]}{OPENAPI}", "--checks", ",".join(CHECKS)),
        *("--header", f"Authorization: Bearer {KEY}", "--suppress-health-check", "all"),
        *("--request-timeout", "40", "--warnings", "off", "--seed", "30"),
        *(word for name in ENDLESS for word in ("--exclude-operation-id", name)),
        *more,
    ]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=570
    )


@pytest.mark.slow
@pytest.mark.timeout(600)  # 12 s of a full core
def test_schemathesis_finds_no_undocumented_response(tmp_path: Path) -> None:
    with Server(tmp_path / "data", shards=2, api_keys=KEY) as server:
        with Api(server.address, token=KEY) as api:
            create(api, "orders", *range(20))
            create(api, "jobs", *range(200), type="queue")
        done = run(tmp_path, server.address, "--phases", "coverage", "--mode", "positive")
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    found = re.search(r"(\d+) generated, (\d+) passed", done.stdout)
    assert found is not None, done.stdout
    assert int(found[1]) > 200

"""The npm package of topics.js, and its types."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import topics
from tests.client.subscribing import MODULE, node

FOLDER = MODULE.parent
LIVE = Path(__file__).parents[2] / "contract/live"


def npm(*arguments: str, cwd: Path) -> str:
    program = shutil.which("npm")
    if program is None:
        pytest.skip("npm is not installed")
    command = [program, *arguments, "--offline", "--no-audit", "--no-fund", "--loglevel=error"]
    done = subprocess.run(command, cwd=cwd, check=True, capture_output=True, text=True, timeout=60)
    return done.stdout


def exported() -> set[str]:
    return {*re.findall(r"^export (?:async )?function (\w+)", MODULE.read_text(), re.MULTILINE)}


@pytest.mark.slow
def test_the_package_can_be_packed_installed_and_imported(tmp_path: Path) -> None:
    (packed,) = json.loads(npm("pack", "--json", str(FOLDER), cwd=tmp_path))
    assert {file["path"] for file in packed["files"]} == {path.name for path in FOLDER.iterdir()}
    npm("init", "--yes", cwd=tmp_path)
    npm("install", f"./{packed['filename']}", cwd=tmp_path)
    lines = 'console.log(JSON.stringify(Object.keys(await import("topics-engine"))))'
    command = [node(), "--input-type=module", "--eval", lines]
    done = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, timeout=60)
    assert {*json.loads(done.stdout)} == exported() == {"append", "subscribe", "publish", "work"}


def test_the_package_has_the_version_of_the_server() -> None:
    package = json.loads((FOLDER / "package.json").read_text())
    assert package["version"] == topics.__version__
    assert "dependencies" not in package


USE = """
import { append, publish, subscribe, work } from "topics-engine";
import type { Receipt, Status } from "topics-engine";

interface Order { sku: string }
const signal = new AbortController().signal;
const records = [{ data: 1, tag: "t" }];
const receipt: Receipt = await append({ topic: "orders", records, signal });
const subscription = subscribe<Order>({
  topics: ["orders"], tail: true, node: ["a"], parse: JSON.parse,
  on: {
    record: async ({ $seq, data }) => console.log($seq + 1, data.sku.length),
    tombstone: ({ gap_from, reason }) => console.log(gap_from + 1, reason.length),
    status: (event: Status) => {
      if (event.state === "waiting") console.log(event.pause_ms, event.error.code);
      // @ts-expect-error: "open" has no error
      if (event.state === "open") console.log(event.error);
    },
  },
});
const id: string | undefined = subscription.id;
const publisher = publish({ topic: "orders", max_pending: 10, WebSocket });
await publisher.ready;
const { last_seq } = await publisher.send({ records: [{ data: { sku: "A1" } }] });
const worker = work<Order>({ queue: "jobs", concurrency: 4, on: {
  job: async (job, lost) => { console.log(job.deliveries, job.data.sku, lost.aborted); },
} });
await worker.close();
console.log(receipt.last_seq + last_seq, id);
// @ts-expect-error: a topic is missing
await append({ records: [] });
// @ts-expect-error: a record needs data
await publisher.send({ records: [{ tag: "t" }] });
// @ts-expect-error: a worker needs a handler
work({ queue: "jobs", on: {} });
// @ts-expect-error: an unknown option
subscribe({ topics: "orders", topic: "orders" });
"""


@pytest.mark.slow
def test_the_types_match_the_functions_of_the_module(tmp_path: Path) -> None:
    compiler = LIVE / "node_modules/typescript/bin/tsc"
    if not compiler.exists():
        pytest.skip("TypeScript is not installed: npm ci --prefix tests/contract/live")
    (tmp_path / "node_modules").mkdir()
    (tmp_path / "node_modules/topics-engine").symlink_to(FOLDER, target_is_directory=True)
    (tmp_path / "package.json").write_text('{"type": "module"}')
    (tmp_path / "use.ts").write_text(USE)
    options = {
        "strict": True,
        "noEmit": True,
        "target": "es2022",
        "module": "nodenext",
        "types": [],
    }
    config = {"compilerOptions": options, "files": ["use.ts"]}
    (tmp_path / "tsconfig.json").write_text(json.dumps(config))
    command = [node(), str(compiler)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout) == (0, "")
    declared = re.findall(r"^export function (\w+)", (FOLDER / "topics.d.ts").read_text(), re.M)
    assert {*declared} == exported()

"""The end of a campaign of workers: wait until nobody holds anything, count, claim all, ack all,
restart, and count again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.campaigns.killer import BACK_S
from tests.campaigns.worker_history import History, Journal, notes_of, row_of
from tests.campaigns.worker_judge import Copy, Counted, End
from tests.support.api import Api, ok
from tests.support.server import Server

NODE = "the-end"
SETTLED_S = 15.0  # the longest lease and delay are shorter
CLAIM_MAX = 1000
LEASE_MS = 600_000
POLL_S = 0.05


class Ending:
    """Brings every queue of a campaign to its end. Jobs that are not due yet stay."""

    def __init__(self, server: Server, journals: Path, history: History) -> None:
        self._server, self._history = server, history
        self._path = journals / "end.jsonl"
        self._journal = Journal(self._path)

    def run(self) -> dict[str, End]:
        """Each queue's end; what was claimed and acked is added to the history."""
        self._server.wait_ready(BACK_S)
        with Api(self._server.address, timeout_s=60) as api:
            parts = {queue: self._end_of(api, queue) for queue in self._history.queues}
        self._journal.close()
        self._history.take(notes_of(self._path))
        self._server.restart("stop")
        with Api(self._server.address, timeout_s=60) as api:
            ends = {
                queue: End(**part, restarted=_counted(api, queue), copies=self._copies(api, queue))
                for queue, part in parts.items()
            }
        self._server.stop()
        return ends

    def _end_of(self, api: Api, queue: str) -> dict[str, Any]:
        before = _settled(api, queue, lambda c: not c.in_flight and c.ready + c.delayed == c.count)
        at = time.monotonic_ns()
        live = _live(api, queue)
        claimed = self._claim_all(api, queue)
        # The exhausted ones are neither ready nor held on their way to the dead-letter topic.
        held = _settled(api, queue, lambda now: now.count == now.delayed + len(claimed))
        self._ack(api, queue, claimed)
        found = {"at": at, "before": before, "live": live, "claimed": len(claimed), "held": held}
        return found | {"acked": _counted(api, queue), "left": _live(api, queue)}

    def _claim_all(self, api: Api, queue: str) -> list[tuple[int, str]]:
        held: list[tuple[int, str]] = []
        deadline = time.monotonic() + SETTLED_S
        while time.monotonic() < deadline:
            call, body = self._ask(api, "claim", queue, {"max": CLAIM_MAX, "lease_ms": LEASE_MS})
            rows = [row_of(job) for job in body["claimed"]]
            self._journal.note("jobs", call=call, at=time.monotonic_ns(), jobs=rows)
            held += [(row[0], row[1]) for row in rows]
            if not rows and not body["ready"]:
                break
        return held

    def _ack(self, api: Api, queue: str, held: list[tuple[int, str]]) -> None:
        for at in range(0, len(held), CLAIM_MAX):
            some = held[at : at + CLAIM_MAX]
            seqs, tokens = [seq for seq, _ in some], [token for _, token in some]
            asked = {"seqs": seqs, "lease_ids": tokens}
            call, body = self._ask(api, "ack", queue, asked, seqs=seqs, tokens=tokens)
            done = {"at": time.monotonic_ns(), "skipped": body["skipped"], "deadlines": {}}
            self._journal.note("done", call=call, **done)

    def _ask(
        self, api: Api, do: str, queue: str, body: dict[str, Any], **noted: Any
    ) -> tuple[str, Any]:
        call, sent = self._journal.call(), time.monotonic_ns()
        self._journal.note(do, call=call, node=NODE, queue=queue, sent=sent, **noted)
        return call, ok(api.call("POST", f"/v0/topics/{queue}/{do}", {"node": NODE, **body}))

    def _copies(self, api: Api, queue: str) -> list[Copy]:
        """What stands in its dead-letter topic."""
        topic = self._history.queues[queue].dead_letter
        if topic is None or api.get(topic).status == 404:
            return []
        names, copies = [f"$dead_letter_{name}" for name in ("from", "src_seq", "deliveries")], []
        for record in api.read(topic, max_batch_bytes=8 << 20):
            meta = record.get("meta", {})
            told = [meta.get(name, other) for name, other in zip(names, ("", 0, 0), strict=True)]
            copies.append(Copy._make([*told, record["data"]]))
        return copies


def _settled(api: Api, queue: str, is_settled: Callable[[Counted], bool]) -> Counted:
    """The counters once they are as they should be, or what they are after a while."""
    deadline = time.monotonic() + SETTLED_S
    while not is_settled(now := _counted(api, queue)) and time.monotonic() < deadline:
        time.sleep(POLL_S)
    return now


def _counted(api: Api, queue: str) -> Counted:
    state = api.state(queue)
    told = state["queue"]
    names = "ready", "in_flight", "delayed", "dead_lettered"
    return Counted(state["count"], *(told[name] for name in names))


def _live(api: Api, queue: str) -> dict[int, Any]:
    return {record["$seq"]: record["data"] for record in api.read(queue, max_batch_bytes=8 << 20)}

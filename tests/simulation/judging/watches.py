"""The position of the client of a watch in each topic, derived from the received events."""

from __future__ import annotations

from typing import Any

from tests.simulation.history import Call, StreamEvent
from tests.simulation.judging.base import JudgeBase
from tests.simulation.model import Reading, route_of


class Watch:
    """One stream of a watch: the position of its client in each topic."""

    def __init__(
        self,
        judge: JudgeBase,
        call: Call,
        session: Call | None,
        positions: dict[str, dict[str, int]],
    ) -> None:
        self._judge, self._call, self._positions = judge, call, positions
        self._body = (session.body if session else None) or {}
        self._query = route_of(call).query
        last_id = call.headers.get("Last-Event-ID", "")
        self._at: dict[str, int] = {**positions.get(last_id, {})}
        # A new session gets its positions from the response. An older session has later ones.
        key = f"session {route_of(call).name}"
        if not last_id and session is not None and key not in positions:
            starts = session.answer["topics"]
            self._at = {topic: one["from_seq"] for topic, one in starts.items()}
        positions[key] = {}
        if "from_seq" in self._query and not last_id:
            names = self._query.get("topic", ())
            self._at = dict.fromkeys(names, int(self._query["from_seq"][0]))
        self._epochs: dict[str, int] = {}
        self._fresh = set(self._at)  # topics without a received event
        self._anew: set[str] = set()  # topics that were just recreated

    def _option(self, name: str, default: Any) -> Any:
        values = self._query.get(name)
        return self._body.get(name, default) if values is None else values[0] == "true"

    def follow(self) -> None:
        """Check each event against the position of the client."""
        for event in self._judge.model.stream_events[self._call.began]:
            if event.event in ("record", "tombstone", "caught-up"):
                self._take(event)
                if event.id:
                    self._positions[event.id] = dict(self._at)
            elif event.event == "topic-deleted":
                self._at.pop(event.data["topic"], None)
                self._epochs.pop(event.data["topic"], None)

    def _take(self, event: StreamEvent) -> None:
        name, data = event.data["topic"], event.data
        is_first = name in self._fresh
        self._fresh.discard(name)
        model = self._judge.model
        if event.event == "tombstone" and data["reason"] == "recreated":
            self._epochs.pop(name, None)
            self._at[name] = min(data["earliest_seq"] - 1, data["head_seq"])
            self._anew.add(name)
            return
        epoch = self._epochs.get(name) or model.epoch_at(name, self._call.began, event.number)
        if epoch is None:
            self._at.pop(name, None)
        else:
            self._epochs[name] = epoch
        if is_first and model.topic(name).deletes:
            self._at.pop(name, None)
        at, gap = self._at.get(name), None
        if event.event == "record":
            begin, end, records = data["from_seq"], data["to_seq"], data["records"]
        elif event.event == "tombstone":
            begin, end, records, gap = data["gap_from"] - 1, data["gap_to"], [], data
        else:
            begin, end, records = data["head_seq"], data["head_seq"], []
        if name in self._anew:  # records below the earliest seq are reported as a gap
            self._anew.discard(name)
            begin = max(begin, at or 0)
        if at is not None and begin < at and not is_first:
            sentence = f"a stream at {at} receives {event.event} from {begin}"
            self._judge.report("readers", name, sentence, self._call.began, event.number)
        self._at[name] = end
        low = begin if at is None else min(at, begin)
        node: Any = self._body.get("node") or self._query.get("node", ())
        reading = Reading(
            *(name, epoch, event.client, event.number, self._call.began, event.number, event.at),
            *(low, end, max(data["head_seq"], end), records),
            nodes=frozenset((node,) if isinstance(node, str) else node),
            has_tags=self._option("include_tags", False),
            has_data=self._option("include_data", True),
            has_meta=self._option("include_meta", True) and self._option("include_data", True),
            is_live=True,
        )
        self._judge.readings.append(reading)
        if gap is None:
            self._judge.check_page(reading)
        else:
            # The seqs before the gap are skipped without a report.
            reading.gap = {**gap, "gap_from": begin + 1}

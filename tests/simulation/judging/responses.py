"""Checks of single responses: status, code, access, settings and the seqs of appends."""

from __future__ import annotations

from typing import Any

from tests.simulation.history import Call
from tests.simulation.judging.base import JudgeBase
from tests.simulation.model import DEFAULTS, DONE, Topic, fate_of, resolved, route_of

REDRIVE_LIMIT, REDRIVE_MAX_S = 1000, 20.0
# an added or removed key takes effect within this time, because the simulated ticks are slow
KEY_S = 60.0
CODES = {
    400: "invalid_request batch_too_large record_too_large",
    401: "unauthorized",
    403: "forbidden",
    413: "payload_too_large",
    415: "unsupported_media_type",
    429: "throttled",
    503: "not_ready shutting_down",
}
QUEUE = {404: "topic_not_found not_found", 409: "not_a_queue"}
TOPIC = {404: "topic_not_found not_found"}
ROUTES: dict[str, dict[int, str]] = {
    "PUT topics/x": {201: "", 404: "not_found", 409: "topic_exists_incompatible"},
    "GET topics/x": TOPIC,
    "DELETE topics/x": {404: "not_found", 409: "topic_not_empty"},
    "POST topics/x": {**TOPIC, 201: "", 422: "topic_full"},
    "POST topics/x/diff": TOPIC,
    "POST topics/x/delete": TOPIC,
    "POST topics/x/redrive": TOPIC,
    **{f"POST topics/x/{what}": QUEUE for what in ("claim", "ack", "nack", "extend")},
    "GET topics/x/leases": QUEUE,
    "GET topics/x/work": {**QUEUE, 406: "not_acceptable"},
    "GET topics": {},
    "PUT routers/x": {**TOPIC, 201: "", 409: "topic_exists_incompatible router_cycle"},
    "GET routers/x": {404: "router_not_found not_found"},
    "DELETE routers/x": {404: "not_found"},
    "GET routers": {},
    "POST watch": {404: "topic_not_found"},
    "GET watch": {404: "topic_not_found", 406: "not_acceptable"},
    "GET watch/x": {404: "not_found", 406: "not_acceptable"},
    "GET metrics": {},
    "GET backup": {},
}


class ResponseChecks(JudgeBase):
    """Checks each response on its own, and against known facts."""

    def check_response(self, call: Call) -> None:
        """Check that status and code belong to the route and that nothing contradicts a
        known fact.
        """
        if call.status is None:
            return
        route = route_of(call)
        what = f"{call.method} {call.path} responds with {call.status}"
        answer = call.answer if isinstance(call.answer, dict) else {}
        code = answer.get("error", {}).get("code", "")
        if route.kind in ROUTES:
            allowed = {200: "", **CODES, **ROUTES[route.kind]}
            if call.status not in allowed or (code not in allowed[call.status].split() and code):
                self.report("responses", "", f"{what} {code}, which is not documented", call.began)
                return
            if call.status >= 400 and not code:
                self.report("responses", "", f"{what} without a code", call.began)
        elif call.status >= 500 and call.status != 503:
            self.report("responses", "", f"{what} {code}", call.began)
        self.check_access(call, what)
        topic = self.model.topics.get(route.name)
        if topic is None or "topics/x" not in route.kind:
            return
        shown = self.model.exists(route.name, call.began, call.ended)
        is_going = any(
            one.began < call.ended and call.began < one.ended for one in topic.refused_deletes
        )
        if code == "topic_not_found" and shown is not None and not is_going:
            sentence = f"{what}, although the topic exists"
            self.report("responses", route.name, sentence, shown.began, call.began)
        if route.kind == "PUT topics/x" and answer.get("created") and shown is not None:
            sentence = "it is created although it exists"
            self.report("epochs", route.name, sentence, shown.began, call.began)
        kinds = topic.may("type", call.began, call.ended)
        if code == "not_a_queue" and kinds == {"queue"} and shown is not None:
            self.report("responses", route.name, f"{what}, although it is a queue", call.began)
        own = call.body.get("config") or {} if isinstance(call.body, dict) else {}
        discards = topic.may("discard", 0, call.ended) | {own.get("discard", "old")}
        if code == "topic_full" and discards == {"old"}:
            self.report(
                "responses", route.name, f"{what} although it discards old records", call.began
            )
        if fate_of(call) == DONE and route.kind in ("PUT topics/x", "GET topics/x"):
            self.check_config(topic, call, answer)
        if fate_of(call) == DONE and route.kind == "POST topics/x":
            self.check_appended(call, answer)
        if fate_of(call) == DONE and route.kind == "POST topics/x/redrive":
            self.check_redrive(topic, call, answer)

    def check_redrive(self, topic: Topic, call: Call, answer: dict[str, Any]) -> None:
        """Check that a redrive of a log ends after it has moved or tried all permitted records."""
        body = call.body if isinstance(call.body, dict) else {}
        has_reached_limit = answer["moved"] >= body.get("limit", REDRIVE_LIMIT)
        is_timeout = call.ended_at - call.at >= REDRIVE_MAX_S
        is_log = topic.may("type", call.began, call.ended) == {"log"}
        if (
            answer["remaining"]
            and is_log
            and not (has_reached_limit or is_timeout or self.may_fail(call))
        ):
            sentence = f"{call.path} moves {answer['moved']}, and {answer['remaining']} remain"
            self.report("redrives", topic.name, sentence, call.began)

    def check_access(self, call: Call, what: str) -> None:
        """Check that a valid key is accepted, that a removed key is refused, and that the streams
        of a removed key are closed (§0.2).
        """
        key = call.headers.get("Authorization", "").removeprefix("Bearer ")
        added, removed = (self.model.keys.get((key, how)) for how in ("added", "removed"))
        may_be_old = removed is not None and call.ended > removed.number
        may_be_new = added is not None and call.at < added.at + KEY_S
        # a session has the key of the client that created it
        is_of_session = route_of(call).kind == "GET watch/x"
        if call.status == 401 and not (may_be_old or may_be_new or is_of_session):
            self.report("access", "", f"{what}, although the key is valid", call.began)
        # a work stream reports jobs late
        is_watch = route_of(call).kind in ("GET watch", "GET watch/x")
        received = [
            event
            for event in self.model.stream_events[call.began]
            if is_watch and event.event not in ("end", "error")
        ]
        is_requested = route_of(call).kind != "GET ready"
        if removed is not None and is_requested and call.status not in (401, 429, 503):
            until_s = removed.at + KEY_S
            if call.at > until_s or any(event.at > until_s for event in received):
                sentence = f"{what}, although its key was removed"
                self.report("access", "", sentence, removed.number, call.began)

    def check_config(self, topic: Topic, call: Call, answer: dict[str, Any]) -> None:
        """Check that a response contains the settings that were made."""
        config = answer.get("config", {})
        body = call.body if call.method == "PUT" and isinstance(call.body, dict) else {}
        requested = resolved(body)
        for name in DEFAULTS.keys() & config.keys():
            may = (
                {requested[name]} if name in requested else topic.may(name, call.began, call.ended)
            )
            if config[name] not in may:
                sentence = f"{name} is {config[name]!r}, it was set to {sorted(map(repr, may))}"
                self.report("config", topic.name, sentence, call.began)
        caps = topic.may("cap_records", call.began, call.ended)
        is_cut = 0 not in caps and topic.may("discard", 0, call.ended) == {"old"}
        if is_cut and answer.get("count", 0) > max(caps):
            sentence = f"its count of {answer['count']} records exceeds its cap {max(caps)}"
            self.report("config", topic.name, sentence, call.began)

    def check_appended(self, call: Call, answer: dict[str, Any]) -> None:
        """Check that the response to an append is consistent with itself and with its request."""
        first, last = answer.get("first_seq", 0), answer.get("last_seq", 0)
        count, seqs = answer.get("count"), answer.get("seqs")
        requested = len(call.body["records"])
        is_contiguous = count == last - first + 1 and answer.get("head_seq") == last
        if not is_contiguous or (seqs is not None and seqs != [*range(first, last + 1)]):
            fields = {name: answer.get(name) for name in ("first_seq", "last_seq", "count", "seqs")}
            sentence = f"the seqs of an append are not contiguous: {fields}"
            self.report("seqs", answer["topic"], sentence, call.began)
        if count != requested and not answer.get("deduped"):
            sentence = f"the response to an append of {requested} records has {count}"
            self.report("seqs", answer["topic"], sentence, call.began)

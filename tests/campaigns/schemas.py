"""Generators of valid requests from the documented schemas of all routes. The source of randomness
determines the requests, and `schema_mutations` mutates them.

A value is anything that `json` can write, or a `Raw`. Topics are drawn from a small pool, so that
requests interact: ``log-0`` .. are logs and ``queue-0`` .. are queues, unless a mutation created
them.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Source = random.Random
Make = Callable[[Source], Any]
TOPICS, ROUTERS = 24, 24
NODES = ("w1", "w2", "é-node", "n" * 128)
TAGS = ("a", "a:1", "a:2", "b:x", "public:1", "t" * 256, "*")
DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class Raw:
    """JSON text that is sent unchanged."""

    text: str


@dataclass(frozen=True, slots=True)
class Row:
    """One route. ``valid_statuses``: the statuses that a valid request may get.
    ``required_members``: the members that every success has. ``waits``: the client may request that
    the response is delayed.
    """

    name: str
    method: str
    path: Make
    query: Make
    body: Make | None
    valid_statuses: frozenset[int]
    required_members: frozenset[str] = frozenset()
    waits: bool = False


@dataclass(slots=True)
class Request:
    """A request before serialization. ``spoiled`` names the parts that were mutated."""

    row: Row
    method: str
    path: str
    query: list[tuple[str, str]]
    body: Any
    headers: list[tuple[str, str]] = field(default_factory=list)
    spoiled: list[str] = field(default_factory=list)


# --- values


def one_of(*values: Any) -> Make:
    return lambda source: source.choice(values)


def number(low: int, high: int, *others: int) -> Make:
    """Return a generator of both bounds, ``others``, and numbers between the bounds."""
    return lambda source: source.choice((low, high, *others, source.randint(low, high)))


BOOL = one_of(True, False)
NODE = one_of(*NODES)
TAG = one_of(*TAGS)
SEQ = number(0, 40, 2**53, 2**64 - 1)


def log(source: Source) -> str:
    return f"log-{source.randrange(TOPICS)}"


def queue(source: Source) -> str:
    return f"queue-{source.randrange(TOPICS)}"


def topic(source: Source) -> str:
    return source.choice((log, log, queue))(source)


def router(source: Source) -> str:
    return f"log-{source.randrange(ROUTERS)}->x"


def anything(source: Source, depth: int = 0) -> Any:
    """Return any JSON value, including numbers that no double can represent."""
    kind = source.randrange(8 if depth < 4 else 5)
    if kind == 0:
        return source.choice((None, True, False))
    if kind == 1:
        return Raw(
            source.choice(("1.10", "-0", "1E400", "9" * 40, "0.1e-7", "18446744073709551616"))
        )
    if kind in (2, 3):
        return source.choice(("", "é😀", "\x7f", '"\\/', "x" * source.randrange(300), "$seq"))
    if kind == 4:
        return source.randint(-(2**63), 2**64)
    if kind == 5:
        return [anything(source, depth + 1) for _ in range(source.randrange(4))]
    return {f"k{n}": anything(source, depth + 1) for n in range(source.randrange(4))}


def members(required: Mapping[str, Make], optional: Mapping[str, Make], share: float = 0.3) -> Make:
    """Return an object with its members in any order."""

    def make(source: Source) -> dict[str, Any]:
        found = {name: make_value(source) for name, make_value in required.items()}
        found |= {
            n: make_value(source) for n, make_value in optional.items() if source.random() < share
        }
        order = [*found.items()]
        source.shuffle(order)
        return dict(order)

    return make


def some(make_value: Make, low: int, high: int) -> Make:
    return lambda source: [make_value(source) for _ in range(source.randint(low, high))]


def match(source: Source) -> Any:
    text = source.choice(TAGS)
    return source.choice((text, ["tag", "Eq", text], ["tag", "Glob", text.rstrip("*") + "*"]))


# --- bodies

CONFIG_FIELDS: dict[str, Make] = {
    "ttl_ms": number(0, 100_000, 50, 2**53),
    "cap_records": number(0, 1000, 1),
    "cap_bytes": number(0, 100_000, 1),
    "discard": one_of("old", "reject"),
    "durable": BOOL,
    "durability": one_of("ephemeral", "memory", "disk", "fsync"),
    "priority": one_of(None, -1000, 1000, 0, 1, -1, 5000, -5000),
    "auto_priority": BOOL,
    "auto_create": BOOL,
    "idempotency_window_ms": number(0, 120_000),
    "dedupe_node": BOOL,
    "lease_ms": number(0, DAY_MS, 100, 2**40),
    "claim_jitter_ms": number(0, 20),
    "max_deliveries": number(0, 5),
    "dead_letter": one_of(None, "dead-0", "dead-1"),
    "leases_durable": BOOL,
}
RECORD = members({"data": anything}, {"tag": TAG, "node": NODE, "meta": lambda s: _meta(s)})
JOB = members(
    {"data": anything},
    {"tag": TAG, "delay_ms": number(0, 1000), "deliver_at": number(0, 10**12)},
)
APPEND_FIELDS: dict[str, Make] = {
    "node": NODE,
    "idempotency_key": one_of("k1", "k2", "k" * 256),
    "create": BOOL,
    "disable_backpressure": BOOL,
}
START = members({}, {"from_seq": SEQ, "tail": BOOL, "epoch": number(0, 2**63)})
VIEW: dict[str, Make] = {
    "node": lambda s: s.choice((NODE, some(NODE, 0, 3)))(s),
    "limit": number(0, 5000),
    "max_batch_bytes": number(0, 2**24),
    "include_meta": BOOL,
    "include_tags": BOOL,
    "include_data": BOOL,
}
DIFF = members({}, {"from_seq": SEQ, "wait_ms": number(0, 30), "epoch": number(0, 2**63), **VIEW})
WATCH_FIELDS = VIEW | {
    "heartbeat_ms": number(0, 100_000),
    "consistency": one_of("eventual", "strong"),
}
SETTLE: dict[str, Make] = {"node": NODE, "seqs": some(number(1, 40), 1, 5)}
ROUTER = members(
    {"source": log, "dest": lambda source: f"log-{source.randrange(TOPICS)}"},
    {
        "preserve_node": BOOL,
        "preserve_tag": BOOL,
        "create_dest": BOOL,
        "filter": lambda source: source.choice((None, match(source))),
        "allow_cycle": BOOL,
        "guarantee": one_of("at_least_once", "exactly_once"),
    },
)


def _meta(source: Source) -> dict[str, Any]:
    return {f"m{n}": anything(source, 2) for n in range(source.choice((0, 1, 2, 64)))}


def config(kind: str) -> Make:
    """Return the config of a topic. A log has no dead letters, but may name a dead-letter topic."""
    typed: dict[str, Make] = {"type": one_of(kind)}
    return members(typed if kind == "queue" else {}, CONFIG_FIELDS, 0.15)


def append(source: Source, into: str) -> dict[str, Any]:
    is_queue = into.startswith("queue")
    record = JOB if is_queue and source.random() < 0.3 else RECORD
    body: dict[str, Any] = members({"records": some(record, 1, 6)}, APPEND_FIELDS, 0.2)(source)
    if is_queue:
        body["config"] = config("queue")(source)
    elif source.random() < 0.1:
        body["config"] = config("log")(source)
    return body


def starts(source: Source) -> dict[str, Any]:
    return {topic(source): START(source) for _ in range(source.randint(1, 5))}


# --- routes


def no_query(_: Source) -> list[tuple[str, str]]:
    return []


def query(**fields: Make) -> Make:
    """Return a query in which each of the parameters may be present."""

    def make(source: Source) -> list[tuple[str, str]]:
        chosen = [name for name in fields if source.random() < 0.4]
        return [(name, _plain(fields[name](source))) for name in chosen]

    return make


def _plain(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


PATH_VALUES = {"topic": topic, "queue": queue, "router": router, "dead": one_of("dead-0", "dead-1")}


def at(template: str) -> Make:
    """Return a generator of paths. ``|`` separates alternatives."""
    paths = template.split("|")
    return lambda source: re.sub(
        r"{(\w+)}", lambda parameter: PATH_VALUES[parameter[1]](source), source.choice(paths)
    )


def _row(
    name: str,
    line: str,
    valid_statuses: str,
    required_members: str = "",
    body: Make | None = None,
    **more: Any,
) -> Row:
    """Return a row. ``more`` may contain ``query_of``, which makes the query, and ``waits``."""
    method, _, path = line.partition(" ")
    members_of_success = frozenset(required_members.split()) | (
        {"performance"} if required_members else set()
    )
    query_of, waits = more.get("query_of", no_query), more.get("waits", False)
    return Row(
        name,
        method,
        at(path),
        query_of,
        body,
        frozenset(map(int, valid_statuses.split())),
        members_of_success,
        waits,
    )


def nothing(_: Source) -> dict[str, Any]:
    """Return no body. A body that needs the name of the topic is created in `valid_request`."""
    return {}


PAGE: dict[str, Make] = {"page_size": number(1, 1000)}
TOPICS_PAGE = query(prefix=one_of("log", "q", ""), touch=BOOL, **PAGE)
ROUTERS_PAGE = query(prefix=one_of("log", ""), source=log, dest=log, **PAGE)
STATE = "topic type head_seq earliest_seq next_seq count bytes config effective_priority"
READ = "topic records next_from_seq head_seq earliest_seq caught_up tombstone lag"
ROUTED = "router created source dest preserve_node preserve_tag filter allow_cycle guarantee"
SETTLED = "topic skipped ready in_flight"
LEASE = number(0, DAY_MS)
_WATCH_QUERY = query(from_seq=SEQ, tail=BOOL, limit=number(0, 5000), include_data=BOOL, node=NODE)


def watch_query(source: Source) -> list[tuple[str, str]]:
    return [("topic", topic(source)), *_WATCH_QUERY(source)]


WATCH = members({"topics": starts}, WATCH_FIELDS)
CLAIMED = {"max": number(1, 2000), "lease_ms": LEASE, "wait_ms": number(0, 30)}
CLAIM = members({"node": NODE}, CLAIMED)
MOVED = {"to": queue, "match": match, "before_seq": SEQ, "limit": number(1, 20_000)}
REDRIVE = members({}, MOVED)
DELETES = one_of(members({"before_seq": SEQ}, {"match": match}), members({"match": match}, {}))
REDRIVE_AT, NODE_1 = "POST /v0/topics/{dead}/redrive|/v0/topics/{queue}/redrive", ("node", "w1")
TOPIC, QUEUE, ROUTER_AT = "/v0/topics/{topic}", "/v0/topics/{queue}", "/v0/routers/{router}"
JOBS, APPENDED = "200 404 409", "topic first_seq last_seq head_seq count created deduped"
LAG = "router source dest forwarded_total lag_records lag_ms"
DELETED = "topic deleted earliest_seq head_seq count bytes"
SESSION = "wid stream_url session_ttl_ms topics"
RETURN, TOUCH, EMPTY = query(return_seqs=BOOL), query(touch=BOOL), query(if_empty=BOOL)
LEASES = query(node=one_of("w1", "w2"), **PAGE)
HELD, FREED = members(SETTLE, {}), members(SETTLE, {"delay_ms": number(0, 2 * DAY_MS)})
EXTENDED = members(SETTLE | {"lease_ms": LEASE}, {})
WORK_QUERY = query(max=number(1, 2000), lease_ms=LEASE)
APPEND = _row("append", f"POST {TOPIC}", "200 201 404 422 429", APPENDED, nothing, query_of=RETURN)
PUT = _row("put", f"PUT {TOPIC}", "200 201 409 429", "topic created config", nothing)
REMOVED = "topic deleted routers_removed"
ROWS = (
    APPEND,
    APPEND,
    PUT,
    _row("state", f"GET {TOPIC}", "200 404", STATE, query_of=TOUCH),
    _row("list", "GET /v0/topics", "200", "topics", query_of=TOPICS_PAGE),
    _row("delete a topic", f"DELETE {TOPIC}", "200 409", REMOVED, query_of=EMPTY),
    _row("diff", f"POST {TOPIC}/diff", "200 404", READ, DIFF, waits=True),
    _row("delete records", f"POST {TOPIC}/delete", "200 404", DELETED, lambda s: DELETES(s)(s)),
    # 400: both ends are the same topic
    _row("put a router", f"PUT {ROUTER_AT}", "200 201 400 404 409 429", ROUTED, ROUTER),
    _row("get a router", f"GET {ROUTER_AT}", "200 404", LAG),
    _row("list routers", "GET /v0/routers", "200", "routers", query_of=ROUTERS_PAGE),
    _row("delete a router", f"DELETE {ROUTER_AT}", "200", "router deleted"),
    _row("watch", "POST /v0/watch", "200 404 429", SESSION, WATCH, query_of=query(lenient=BOOL)),
    _row("watch with one request", "GET /v0/watch", "200 404 429", query_of=watch_query),
    _row("claim", f"POST {QUEUE}/claim", JOBS, "topic claimed count ready", CLAIM, waits=True),
    _row("ack", f"POST {QUEUE}/ack", JOBS, f"{SETTLED} acked", HELD),
    _row("nack", f"POST {QUEUE}/nack", JOBS, f"{SETTLED} nacked", FREED),
    _row("extend", f"POST {QUEUE}/extend", JOBS, "topic extended skipped deadlines", EXTENDED),
    _row("leases", f"GET {QUEUE}/leases", JOBS, "leases", query_of=LEASES),
    # 400: source and dest are the same topic
    _row("redrive", REDRIVE_AT, "200 400 404", "topic moved remaining skipped", REDRIVE),
    _row("work", f"GET {QUEUE}/work", f"{JOBS} 429", query_of=lambda s: [NODE_1, *WORK_QUERY(s)]),
    _row("health", "GET /v0/health|/healthz", "200", "status version uptime_ms"),
    _row("ready", "GET /v0/ready|/readyz", "200", "status topics"),
    _row("root", "GET /|/v0", "200", "name version"),
    _row("metrics", "GET /v0/metrics|/metrics", "200"),
    _row("specifications", "GET /v0/openapi.json|/v0/asyncapi.json", "200"),
)


def valid_request(source: Source) -> Request:
    """Return a valid request to any route."""
    row = source.choice(ROWS)
    path = row.path(source)
    body = row.body(source) if row.body is not None else None
    name = path.rpartition("/")[2]
    if row is APPEND:
        body = append(source, name)
    elif row is PUT:
        body = config("queue" if name.startswith("queue") else "log")(source)
    return Request(row, row.method, path, row.query(source), body)


# --- commands of a WebSocket


def command(source: Source, number_of: int) -> dict[str, Any]:
    """Return a valid command."""
    name = topic(source)
    kind = source.randrange(8)
    body: dict[str, Any]
    if kind < 4:
        body = {"op": "publish", "topic": name, **append(source, name)}
        if source.random() < 0.3:
            body["return_seqs"] = source.choice((True, False))
    elif kind == 4:
        body = {"op": "subscribe", "topic": name, **START(source), **members({}, VIEW)(source)}
    elif kind == 5:
        body = {"op": "subscribe", "topics": starts(source), **members({}, VIEW)(source)}
    else:
        body = {"op": "unsubscribe", "topic": name} if kind == 6 else {"op": "ping"}
    body["request_id"] = f"r{number_of}"
    return body

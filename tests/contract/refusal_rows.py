"""The invalid requests of each route: the rows of `test_refusals`.

`ROUTES` has a valid request for each route. The topics ``new`` and ``x`` do not exist. ``log`` has
two records. ``queue`` has a leased and a ready job. Two spaces separate the JSON texts of a list of
values. ``record.tag`` is a field of the second of two records.
"""

from __future__ import annotations

import base64
import json
from typing import Any, NamedTuple


class Route(NamedTuple):
    """A request. The ``method`` "WS" denotes a command on a WebSocket."""

    method: str
    path: str
    body: dict[str, Any]


ONE = {"records": [{"data": 1}]}
JOB = {"node": "w", "seqs": [1]}
ROUTES = {
    "put": Route("PUT", "/v0/topics/new", {}),
    "append": Route("POST", "/v0/topics/new", ONE),
    "diff": Route("POST", "/v0/topics/log/diff", {}),
    "delete": Route("POST", "/v0/topics/log/delete", {"match": "a"}),
    "claim": Route("POST", "/v0/topics/queue/claim", {"node": "w"}),
    "ack": Route("POST", "/v0/topics/queue/ack", JOB),
    "nack": Route("POST", "/v0/topics/queue/nack", JOB),
    "extend": Route("POST", "/v0/topics/queue/extend", JOB | {"lease_ms": 1000}),
    "redrive": Route("POST", "/v0/topics/queue/redrive", {}),
    "router": Route("PUT", "/v0/routers/r", {"source": "new", "dest": "x"}),
    "watch": Route("POST", "/v0/watch", {"topics": {"log": {}}}),
    "subscribe": Route("WS", "", {"op": "subscribe", "topic": "log"}),
    "unsubscribe": Route("WS", "", {"op": "unsubscribe", "topic": "log"}),
    "publish": Route("WS", "", {"op": "publish", "topic": "new", **ONE}),
}
HTTP = [name for name, route in ROUTES.items() if route.method != "WS"]
LONG = {tag: f'"{"x" * size}"' for tag, size in (("node", 129), ("tag", 257), ("name", 256))}
U64_MORE = f"{2**64}  {'9' * 40}"
UNSIGNED = '-1  "5"  1.5  1.0  1e3  true  []  {}'
FLAG = '0  1  "true"  "yes"  null  []  {}  1.0'
SEQ = f'-1  "1"  1.5  1.0  true  null  []  {2**64}'
EPOCH = "{}  []  true  1.5"
NODES = '5  true  {}  [1]  [null]  ["a",5]  [["a"]]'
TEXT = f'5  true  null  {{}}  []  ["a"]  ""  {LONG["node"]}  "{"é" * 65}"'
TOPIC = f'null  5  true  []  {{}}  ""  "-x"  "a b"  "a/b"  "é"  "a\\n"  "a->b"  {LONG["name"]}'
NAMES = ("", "-x", "a b", "a/b", "é", "x" * 256, "a\\n")
CONSISTENCY = '5  true  "weak"  "STRONG"  ""  []'
GUARANTEE = '5  true  null  []  ""  "exactly-once"  "AT_LEAST_ONCE"  "at_most_once"'
MATCH = (
    '5  true  {}  {"tag":"a"}  []  ["tag"]  ["tag","Eq"]  ["tag","Eq","a","b"]  ["tag","Eq",5]  '
    '["tag","Eq",null]  ["tag","Eq",["a"]]  ["tag","eq","a"]  ["tag","glob","a*"]  '
    '["tag","Regex","a"]  ["tag","In",["a"]]  ["tag","","a"]  ["tag",5,"a"]  ["tag",["Eq"],"a"]  '
    '["node","Eq","a"]  ["$tag","Eq","a"]  ["Tag","Eq","a"]  [5,"Eq","a"]  ["tag","Glob","a"]  '
    '["tag","Glob",""]  ["tag","Glob","*a"]  ["tag","Glob","a*b"]  ["tag","Glob","a*b*"]  '
    '["tag","Glob","**"]  ["tag","Glob","a**"]  ["tag","Glob",5]  ["tag","Glob",null]  '
    '["tag","Glob","a?"]  ["And",["tag","Eq","a"],["tag","Eq","b"]]  [["tag","Eq","a"]]'
)
SEQS = "null  5  " + "  ".join(f"[{text}]  [1,{text}]" for text in SEQ.split("  "))
TOKENS = '5  "x"  true  {}  []  [5]  [null]  [[]]  ["a","b"]'
STARTS = [
    f'{{"{field}":{text}}}'
    for field, texts in (("from_seq", SEQ), ("tail", FLAG), ("epoch", EPOCH))
    for text in texts.split("  ")
]
TOPICS = "  ".join(
    [
        *("{}", "[]", '"log"', "5", "true", '["log"]'),
        *(f'{{"log":{start}}}' for start in (*STARTS, "5", "[]", '"x"', "true")),
        *(f'{{"{name}":{{}}}}' for name in NAMES),
        json.dumps({f"log.{number}": {} for number in range(257)}, separators=(",", ":")),
    ]
)
VIEW = (("limit max_batch_bytes", UNSIGNED), ("include_meta include_tags", FLAG), ("node", NODES))
LIVE_VIEW = (*VIEW, ("include_data", FLAG), ("consistency", CONSISTENCY))
CONFIG = (
    ("ttl_ms cap_records cap_bytes idempotency_window_ms", f"{UNSIGNED}  null  {U64_MORE}"),
    ("max_deliveries", f"{UNSIGNED}  null  {U64_MORE}"),
    ("lease_ms claim_jitter_ms", f"{UNSIGNED}  null"),
    ("durable auto_priority auto_create dedupe_node leases_durable", FLAG),
    ("type discard durability", '"nope"  ""  1  null  true  []  "LOG"  "stream"'),
    ("priority", 'true  "high"  1.5  1.0  []  {}'),
    ("dead_letter", '5  true  {}  []  ""  "bad name"  "x\\n"  "new"'),
)
CONFIGS = "  ".join(
    [
        '5  "x"  []',
        *(
            f'{{"{config[0].split()[0]}":{text}}}'
            for config in CONFIG
            for text in config[1].split("  ")
        ),
    ]
)
RECORDS = (
    ("records", '[]  null  {}  "x"  [1]  [null]  [[]]  [{}]  [{"data":1},{}]  [{"tag":"t"}]'),
    ("record.tag", f'5  ["a"]  {LONG["tag"]}'),
    ("record.node", f"5  {{}}  {LONG['node']}"),
    ("record.meta", '[]  "x"  5'),
    ("record.delay_ms", UNSIGNED),
    ("record.deliver_at", f"{UNSIGNED}  {2**64}"),
    ("record.deliver_at,delay_ms", '5,"delay_ms":5  0,"delay_ms":0'),
    ("node", f'5  ["a"]  {LONG["node"]}'),
    ("idempotency_key", f'5  ""  {LONG["tag"]}'),
    ("create disable_backpressure", '"yes"  1'),
    ("config", CONFIGS),
)
FIELDS: dict[str, tuple[tuple[str, str], ...]] = {
    "put": CONFIG,
    "append": RECORDS,
    "publish": (
        *RECORDS,
        ("topic", '5  "a b"  "a/b"'),
        ("return_seqs", '"no"'),
        ("op", '"PUB"  5'),
    ),
    "diff": (
        *VIEW,
        ("from_seq", SEQ),
        ("epoch", EPOCH),
        ("wait_ms", f"{UNSIGNED}  null"),
        ("limit", "null"),
    ),
    "delete": (
        ("match", f"null  {MATCH}"),
        ("before_seq", f"{UNSIGNED}  {2**64}  NaN"),
        ("match,before_seq", 'null,"before_seq":null'),
        ("unknown,match", '1,"match":5  1,"before_seq":-1'),
    ),
    "claim": (("node", TEXT), ("max lease_ms wait_ms", UNSIGNED), ("max", "0")),
    "ack": (("node", TEXT), ("seqs", SEQS), ("lease_ids", TOKENS)),
    "nack": (
        *(("node", TEXT), ("seqs", SEQS), ("lease_ids", TOKENS), ("delay_ms", UNSIGNED)),
        ("error", f'5  true  []  {{}}  "{"x" * 1025}"  "{"é" * 513}"'),
    ),
    "extend": (
        *(("node", TEXT), ("seqs", SEQS), ("lease_ids", TOKENS)),
        ("lease_ms", f"{UNSIGNED}  null"),
    ),
    "redrive": (
        ("limit before_seq", UNSIGNED),
        ("limit", "0"),
        ("to", '5  true  []  ""  "-x"  "a b"  "queue"'),
        ("match", MATCH),
    ),
    "router": (
        ("source dest", TOPIC),
        ("preserve_node preserve_tag create_dest allow_cycle", FLAG),
        ("guarantee", GUARANTEE),
        ("filter", f'{MATCH}  {"[" * 40_000}  "\\ud800"  1e999  NaN'),
        ("dest,source", '"same","source":"same"'),
    ),
    "watch": (
        *LIVE_VIEW,
        *(("heartbeat_ms", UNSIGNED), ("topics", f"{TOPICS}  null  NaN")),
    ),
    "subscribe": (
        *LIVE_VIEW,
        *(("from_seq", SEQ), ("tail", FLAG), ("epoch", EPOCH)),
        *(("topic", '5  "a b"'), ("topics", TOPICS), ("op", '"nope"  "SUBSCRIBE"  5  null')),
    ),
    "unsubscribe": (("topic", "5"),),
}
FIELD_ROWS = [
    (name, field, texts.split("  "))
    for name, rows in FIELDS.items()
    for fields, texts in rows
    for field in ([fields] if "," in fields else fields.split(" "))
]

# --- complete bodies

NOT_OBJECTS = [
    *(b"[]", b"null", b"5", b'"x"', b"true", b"{", b"{}{}", b"{} x", b"{,}", b"{'a':1}", b"\xff"),
    *(b'{"a":1,}', b'{"a":NaN}', b"{a:1}", b'{"a":}', b'{"unknown":"\xff"}', b'{"\xed\xa0\x80":1}'),
]
MEDIA_TYPES = [
    *("", "text/plain", "application/x-www-form-urlencoded", "application/jsonx", "*/*", "json"),
    *("application/json-seq", "xapplication/json", "multipart/form-data; boundary=x"),
]
CODINGS = ["br", "deflate", "zstd", "nonsense", "gzip, br"]

# --- names, paths, methods

BAD_NAMES = [
    *("a%0A", "a%0a", "%0Aa", "a%0D", "a%00", "a%20b", "a+b", "-a", ".a", "_a", ":a", "%2E%2E"),
    *("a@b", "a*", "a~b", "a!b", "a%25b", "a%C3%A9", "%C3%A9", "a%EF%BC%A1", "%D9%A1", "a%FF"),
    *("a%C3", "a" * 256, "x" * 5000),
]
BAD_TOPIC_NAMES = [*BAD_NAMES, "a%3Eb"]
BAD_ROUTER_NAMES = [*BAD_NAMES, "", "%3Ea", "-%3Ea", "a-%3Eb%0A"]
MALFORMED_NAMES = ["a%2Fb", "a%", "a%zz", "a%2", "%2F", ".."]  # may also be refused as paths
TOPIC_CALLS = [  # of every route with a topic in its path: a request that names TOPIC
    *(("GET", "", None), ("PUT", "", {}), ("POST", "", ONE), ("DELETE", "", None)),
    *(("GET", "/leases", None), ("GET", "/work?node=w", None)),
    *(("POST", f"/{name}", ROUTES[name].body) for name in ("diff", "delete", "claim", "ack")),
    *(("POST", f"/{name}", ROUTES[name].body) for name in ("nack", "extend", "redrive")),
]
GET = {"GET"}
METHODS = {
    **dict.fromkeys(("/v0/topics", "/v0/routers", "/v0/metrics", "/metrics", "/v0/ws"), GET),
    **dict.fromkeys(("/v0/health", "/healthz", "/v0/ready", "/readyz", "/", "/v0"), GET),
    **dict.fromkeys(("/v0/openapi.json", "/v0/asyncapi.json"), GET),
    **dict.fromkeys(("/v0/topics/log/leases", "/v0/topics/log/work", "/v0/watch/wid_A"), GET),
    **{f"/v0/topics/log/{verb}": {"POST"} for verb in ("diff", "delete", "claim", "redrive")},
    **{f"/v0/topics/log/{verb}": {"POST"} for verb in ("ack", "nack", "extend")},
    "/v0/watch": {"GET", "POST"},
    "/v0/topics/log": {"GET", "PUT", "POST", "DELETE"},
    "/v0/routers/r": {"GET", "PUT", "DELETE"},
}
UNKNOWN_PATHS = [
    *("/v0/", "/v0/nope", "/v1/topics", "/topics", "/v0/Topics", "/v0/topic/x", "//v0/topics"),
    *("/v0/health/x", "/health", "/v0/topics/x/nope", "/v0/topics/x/y/z", "/v0/topics/x/diff/"),
    *("/v0/topics/x/diff/more", "/v0/topics/x/delete/x", "/v0/topics/x/Delete"),
    *("/v0/topics/x/deletes", "/v0/topics/x/claim/", "/v0/topics/x/claims", "/v0/topics/x/Claim"),
    *("/v0/topics/x/leases/1", "/v0/topics/x/work/", "/v0/routers/a/b", "/v0/routers/a%2Fb"),
]

# --- queries and heads

BAD_CURSORS = [
    *("!!!!", "a", "%00", "e30", "bnVsbA", "x" * 3000),
    base64.urlsafe_b64encode(b'{"after":5}').decode(),
    base64.urlsafe_b64encode(bytes(40)).decode(),
]
SIZES = ["-1", "abc", "1.5", "true", "1e2", "9" * 40 + "x"]
PAGED = [*(f"page_size={size}" for size in SIZES), *(f"cursor={text}" for text in BAD_CURSORS)]
BOOLS = ["banana", "2", ""]
WORK = [
    *("", "max=1", "node=", "node", f"node={'x' * 129}", "node=%FF"),
    *(f"node=w&max={text}" for text in ("0", "-1", "1.5", "x", "", "true", "1e1")),
    *(f"node=w&lease_ms={text}" for text in ("-1", "1.5", "x", "", "true")),
]
WATCH = [
    *("", "topic", "topic=", "topic=-x", "topics=log", "topic=log&topic="),
    *("topic=log&from_seq=-1", "topic=log&from_seq=x", f"topic=log&from_seq={2**64}"),
    *("topic=log&tail=1", "topic=log&limit=x", "topic=log&include_data=yes"),
    "topic=log&heartbeat_ms=1.5",
]
QUERIES: list[tuple[str, str, dict[str, Any] | None, list[str]]] = [
    ("GET", "/v0/topics", None, PAGED),
    ("GET", "/v0/routers", None, PAGED),
    (
        "GET",
        "/v0/topics/queue/leases",
        None,
        [*PAGED[:6], "cursor=%21", "cursor=nonsense", "cursor=AAAA"],
    ),
    ("GET", "/v0/topics/log", None, [f"touch={text}" for text in BOOLS]),
    ("DELETE", "/v0/topics/log", None, ["if_empty=banana"]),
    ("POST", "/v0/topics/new", ONE, ["return_seqs=banana"]),
    ("GET", "/v0/topics/queue/work", None, WORK),
    ("GET", "/v0/watch", None, WATCH),
]
NO_STREAM = [
    *("application/json", "text/html", "text/event-stream;q=0", "text/event-stream;q=0, */*"),
    "image/*",
]
WIDS = ["wid_" + "A" * 22, "wid_", "wid", "x", "wid_BuRguGorNdVFWNQULz-rrw", "wid_%00", "A" * 4000]

# --- the order of checks: key, method, path, body, media type, status, code

PLAIN = "text/plain"
_TOPIC, _MINE = "/v0/topics/other", "/v0/topics/t42:absent"
_ENDS = {"source": "t43:x", "dest": "t43:y"}
KEYS = "full,reader:read,tenant::t42:"
ORDER: list[tuple[str | None, str, str, Any, str, int, str]] = [
    (None, "GET", "/v0/nope", None, "", 401, "unauthorized"),
    (None, "PATCH", _TOPIC, b"{", PLAIN, 401, "unauthorized"),
    (None, "POST", _TOPIC, b"x", PLAIN, 401, "unauthorized"),
    ("reader", "GET", "/v0/nope", None, "", 404, "not_found"),
    ("reader", "POST", "/v0/nope", b"x", PLAIN, 404, "not_found"),
    ("reader", "PATCH", _TOPIC, b"x", PLAIN, 405, "method_not_allowed"),
    *(
        ("reader", method, path, b"{", PLAIN, 403, "forbidden")
        for method, path in (
            *(("POST", _TOPIC), ("POST", "/v0/topics/absent"), ("POST", f"{_TOPIC}/claim")),
            *(("POST", f"{_TOPIC}/delete"), ("PUT", "/v0/routers/a%20b")),
        )
    ),
    ("tenant", "PUT", f"{_TOPIC}/delete", b"{", PLAIN, 405, "method_not_allowed"),
    ("tenant", "POST", f"{_TOPIC}/delete", b"{", PLAIN, 403, "forbidden"),
    ("tenant", "PUT", "/v0/routers/t43:r", b"{", PLAIN, 403, "forbidden"),
    *(
        row
        for path in (f"{_MINE}/delete", f"{_MINE}/diff", f"{_MINE}/ack", "/v0/routers/t42:r")
        for method in ("PUT" if "routers" in path else "POST",)
        for row in (
            ("tenant", method, path, b"{", PLAIN, 415, "unsupported_media_type"),
            ("tenant", method, path, b"{", "", 400, "invalid_request"),
        )
    ),
    ("tenant", "POST", f"{_MINE}/diff", {"limit": -1}, "", 400, "invalid_request"),
    ("tenant", "POST", _MINE, {"create": False, "records": [{}]}, "", 400, "invalid_request"),
    ("tenant", "POST", f"{_MINE}/delete", {"match": "x"}, "", 404, "topic_not_found"),
    (
        "tenant",
        "PUT",
        "/v0/routers/t42:r",
        _ENDS | {"guarantee": "once"},
        "",
        400,
        "invalid_request",
    ),
    ("tenant", "PUT", "/v0/routers/t42:r", _ENDS | {"create_dest": False}, "", 403, "forbidden"),
]

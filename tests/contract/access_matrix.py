"""The access rules of §0.2: the rows of `test_matrix`, and the keys that the tests use.

A row is a valid request. In its path and body, each name that must match the prefixes of a key
begins with a placeholder ``<0>``, ``<1>``, and so on. The tests send each row with `INSIDE` in all
placeholders, and once for each placeholder with `OUTSIDE` in that one. ``<a>`` becomes one letter
for each placeholder (``ioi``), so that each assignment has names of its own. ``<n>`` becomes a
number that is used only once.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass

READ, WRITE, DELETE, ADMIN = "read", "write", "delete", "admin"
SCOPES = (READ, WRITE, DELETE, ADMIN)
INSIDE, OUTSIDE = "in.", "out."
PREFIXES = f"{INSIDE}|also."
ADMIN_KEY = "boss-key"
_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class Key:
    """One configured key. A ``limited`` key is valid only for names with one of the `PREFIXES`."""

    scopes: frozenset[str]
    limited: bool

    @property
    def secret(self) -> str:
        letters = "".join(sorted(scope[0] for scope in self.scopes))
        return f"key-{letters}-{'few' if self.limited else 'all'}"

    @property
    def entry(self) -> str:
        """The key in the syntax of TOPICS_API_KEYS."""
        return f"{self.secret}:{'+'.join(sorted(self.scopes))}:{PREFIXES if self.limited else ''}"


KEYS = tuple(
    Key(frozenset(scopes), limited)
    for count in range(1, len(SCOPES) + 1)
    for scopes in itertools.combinations(SCOPES, count)
    for limited in (False, True)
)
ENTRIES = ",".join([ADMIN_KEY, *(key.entry for key in KEYS)])


@dataclass(frozen=True, slots=True)
class Assignment:
    """The values of ``<0>``, ``<1>``, ..."""

    outside: int | None
    names: int

    @property
    def letters(self) -> str:
        return "".join("o" if at == self.outside else "i" for at in range(self.names))

    def fill(self, text: str) -> str:
        for at in range(self.names):
            text = text.replace(f"<{at}>", OUTSIDE if at == self.outside else INSIDE)
        return text.replace("<a>", self.letters).replace("<n>", str(next(_numbers)))


def assignments(names: int) -> Iterator[Assignment]:
    """Yield the assignment with all names inside the prefixes, then each with one name outside."""
    for outside in (None, *range(names)):
        yield Assignment(outside, names)


def allows(scopes: frozenset[str], key: Key, assignment: Assignment) -> bool:
    """Return whether the key has the scopes and its prefixes match all names."""
    return scopes <= key.scopes and not (key.limited and assignment.outside is not None)


@dataclass(frozen=True, slots=True)
class Row:
    """One kind of request.

    ``fine`` contains the possible statuses if the key permits the request. ``names`` is the number
    of names that must match the prefixes. ``token``: the query may contain the key. ``open``: no
    key is required. ``all_names``: the request concerns all names, so a key with prefixes is
    refused.
    """

    name: str
    scopes: frozenset[str]
    method: str
    path: str
    body: str | None = None
    fine: frozenset[int] = frozenset({200})
    names: int = 0
    token: bool = False
    open: bool = False
    all_names: bool = False

    @property
    def served_by(self) -> tuple[str, str]:
        """Method and path in the route table."""
        path = self.path.partition("?")[0]
        for part, name in (
            (r"topics/[^/]+", "topics/:topic"),
            (r"routers/[^/]+", "routers/:router"),
        ):
            path = re.sub(part, name, path)
        return self.method, path


def names_in(text: str) -> int:
    """Return the number of placeholders in a template."""
    return len(set(re.findall(r"<\d>", text)))


def _row(
    name: str,
    scopes: str,
    line: str,
    body: str | None = None,
    *,
    fine: int | tuple[int, ...] = 200,
    names: int | None = None,
    token: bool = False,
    is_open: bool = False,
    all_names: bool = False,
) -> Row:
    method, path = line.split(" ")
    names = names_in(path + (body or "")) if names is None else names
    statuses = frozenset((fine,) if isinstance(fine, int) else fine)
    needed = frozenset(scopes.split("+")) if scopes else frozenset[str]()
    return Row(
        *(name, needed, method, path, body, statuses, names),
        token=token,
        open=is_open,
        all_names=all_names,
    )


_LOG, _QUEUE = "/v0/topics/<0>log", "/v0/topics/<0>queue"
_RECORD = '"records":[{"data":1}]'
_SETTLE = '"node":"w","seqs":[999]'
_ENDS = '{"source":"<1>source-<a>","dest":"<2>dest-<a>"}'
_PUT_ROUTER = _row("put a router", ADMIN, "PUT /v0/routers/<0>router-<a>", _ENDS, fine=(200, 201))

HTTP = (
    # read
    _row("list topics", READ, "GET /v0/topics"),
    _row("state", READ, f"GET {_LOG}"),
    _row("state without a touch", READ, f"GET {_LOG}?touch=false"),
    _row("diff", READ, f"POST {_LOG}/diff", "{}"),
    _row("diff without a body", READ, f"POST {_LOG}/diff"),
    _row("list routers", READ, "GET /v0/routers"),
    # The ends of the router must match the prefixes, too.
    _row("get a router", READ, "GET /v0/routers/<0>router-<a>", names=_PUT_ROUTER.names),
    _row("watch", READ, "POST /v0/watch", '{"topics":{"<0>log":{},"<1>queue":{}}}'),
    _row("watch a missing topic", READ, "POST /v0/watch", '{"topics":{"<0>gone":{}}}', fine=404),
    _row(
        "watch leniently",
        READ,
        "POST /v0/watch?lenient=true",
        '{"topics":{"<0>log":{},"<1>gone":{}}}',
    ),
    _row("leases", READ, f"GET {_QUEUE}/leases"),
    _row("metrics", READ, "GET /v0/metrics"),
    _row("metrics at the root", READ, "GET /metrics"),
    # write
    _row("append", WRITE, f"POST {_LOG}", f"{{{_RECORD}}}"),
    _row(
        "append with a config",
        "write+admin",
        f"POST {_LOG}",
        f'{{{_RECORD},"config":{{}}}}',
    ),
    _row(
        "append with a config that creates a topic",
        "write+admin",
        "POST /v0/topics/<0>fresh-<n>",
        f'{{{_RECORD},"config":{{"type":"queue","dead_letter":"<1>dead"}}}}',
        fine=201,
    ),
    _row("ack", WRITE, f"POST {_QUEUE}/ack", f"{{{_SETTLE}}}"),
    _row("nack", WRITE, f"POST {_QUEUE}/nack", f"{{{_SETTLE}}}"),
    _row("extend", WRITE, f"POST {_QUEUE}/extend", f'{{{_SETTLE},"lease_ms":1000}}'),
    # read and write
    _row("claim", "read+write", f"POST {_QUEUE}/claim", '{"node":"w"}'),
    _row("redrive", "read+write", "POST /v0/topics/<0>dead/redrive"),
    _row("redrive to", "read+write", "POST /v0/topics/<0>dead/redrive", '{"to":"<1>queue"}'),
    # delete
    _row("delete a topic", DELETE, "DELETE /v0/topics/<0>gone"),
    _row("delete records", DELETE, f"POST {_LOG}/delete", '{"match":["tag","Eq","none"]}'),
    _row("delete a router", DELETE, "DELETE /v0/routers/<0>gone"),
    # admin
    _row("put a topic", ADMIN, f"PUT {_LOG}", "{}"),
    _row(
        "put a queue with dead letters",
        ADMIN,
        "PUT /v0/topics/<0>queue-<a>",
        '{"type":"queue","dead_letter":"<1>dead"}',
        fine=(200, 201),
    ),
    _PUT_ROUTER,
    # Only one backup runs at a time, and the server may still be sending the previous one.
    _row("backup", ADMIN, "GET /v0/backup", fine=(200, 429), all_names=True),
    _row("backup.changes", ADMIN, "POST /v0/backup", fine=(200, 429), all_names=True),
    # without a key
    _row("health", "", "GET /v0/health", is_open=True),
    _row("health at the root", "", "GET /healthz", is_open=True),
    _row("OpenAPI", "", "GET /v0/openapi.json", is_open=True),
    _row("AsyncAPI", "", "GET /v0/asyncapi.json", is_open=True),
    _row("ready", "", "GET /v0/ready", is_open=True),
    _row("ready at the root", "", "GET /readyz", is_open=True),
    _row("root", "", "GET /", is_open=True),
    _row("root of the version", "", "GET /v0", is_open=True),
)
STREAMS = (
    _row("watch in one request", READ, "GET /v0/watch?topic=<0>log&topic=<1>queue", token=True),
    _row(
        "watch a missing topic in one request",
        READ,
        "GET /v0/watch?topic=<0>gone",
        fine=404,
        token=True,
    ),
    _row("work", "read+write", f"GET {_QUEUE}/work?node=w", token=True),
    _row(
        "work on a missing queue",
        "read+write",
        "GET /v0/topics/<0>gone/work?node=w",
        fine=404,
        token=True,
    ),
)


@dataclass(frozen=True, slots=True)
class Command:
    """A message on a WebSocket. ``done`` is the ``op`` of the reply if the key permits it."""

    name: str
    scopes: frozenset[str]
    text: str
    done: str

    @property
    def names(self) -> int:
        return names_in(self.text)


COMMANDS = (
    Command("ping", frozenset(), '{"op":"ping","request_id":"<n>"}', "pong"),
    Command(
        "subscribe",
        frozenset({READ}),
        '{"op":"subscribe","request_id":"<n>","topic":"<0>log","tail":true}',
        "subscribed",
    ),
    Command(
        "subscribe to several",
        frozenset({READ}),
        '{"op":"subscribe","request_id":"<n>","topics":{"<0>queue":{"tail":true},'
        '"<1>log":{"tail":true}}}',
        "subscribed",
    ),
    Command(
        "publish",
        frozenset({WRITE}),
        f'{{"op":"publish","request_id":"<n>","topic":"<0>log",{_RECORD}}}',
        "ack",
    ),
    Command(
        "publish with a config",
        frozenset({WRITE, ADMIN}),
        f'{{"op":"publish","request_id":"<n>","topic":"<0>log",{_RECORD},"config":{{}}}}',
        "ack",
    ),
    Command(
        "publish with dead letters",
        frozenset({WRITE, ADMIN}),
        f'{{"op":"publish","request_id":"<n>","topic":"<0>fresh-<n>-ws",{_RECORD},'
        '"config":{"type":"queue","dead_letter":"<1>dead"}}',
        "ack",
    ),
)

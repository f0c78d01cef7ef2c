"""Every route with every kind of key (§0.2): scopes and prefixes of the names in path and body, in
both planes, event streams and WebSockets. `access_matrix` has the rows.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.contract.access_matrix import (
    ADMIN_KEY,
    COMMANDS,
    ENTRIES,
    HTTP,
    INSIDE,
    KEYS,
    OUTSIDE,
    READ,
    STREAMS,
    Assignment,
    Key,
    Row,
    allows,
    assignments,
)
from tests.support.api import Api, Wire, ok, refused, request
from tests.support.server import Server
from tests.support.sse import session
from tests.support.ws import KEY, Socket, handshake, shake
from topics.front.table import ROUTES

ROWS = (*HTTP, *STREAMS)
EVENTS = "Accept: text/event-stream"
INVALID_CREDENTIALS = {
    "no key": [],
    "an unknown key": ["Authorization: Bearer nobody"],
    "a key cut short": [f"Authorization: Bearer {ADMIN_KEY[:-1]}"],
    "a longer key": [f"Authorization: Bearer {ADMIN_KEY}x"],
    "another scheme": [f"Authorization: Basic {ADMIN_KEY}"],
    "a bare key": [f"Authorization: {ADMIN_KEY}"],
    "a complete entry": [f"Authorization: Bearer {KEYS[0].entry}"],
    "two keys": [f"Authorization: Bearer {ADMIN_KEY}"] * 2,
    "a cookie": [f"Cookie: Authorization={ADMIN_KEY}", f"X-Api-Key: {ADMIN_KEY}"],
}


class Sender:
    """A client with one connection, which it replaces after a stream."""

    def __init__(self, server: Server) -> None:
        self._server, self._wire = server, Wire(server.address)

    def send(self, line: tuple[str, str], body: str | None, *headers: str) -> tuple[int, str]:
        """Return the status and the error code. A stream that opens is closed immediately."""
        method, path = line
        sent = None if body is None else body.encode()
        self._wire.send(request(method, path, sent, EVENTS, *headers))
        status, fields = self._wire.head()
        if "content-length" not in fields:
            self.close()
            self._wire = Wire(self._server.address)
            return status, ""
        content = self._wire._take(int(fields["content-length"]))
        found: dict[str, Any] = json.loads(content) if content.startswith(b"{") else {}
        return status, str(found.get("error", {}).get("code", ""))

    def close(self) -> None:
        self._wire.socket.close()


def prepare(server: Server) -> None:
    """Create the topics and routers that the rows refer to."""
    with Api(server.address, token=ADMIN_KEY) as api:
        for name in (INSIDE, OUTSIDE):
            ok(api.append(f"{name}log", 1), 201)
            ok(api.put(f"{name}queue", {"type": "queue"}), 201)
            ok(api.append(f"{name}dead", 1), 201)
        [row] = [row for row in HTTP if row.name == "put a router"]
        for assignment in assignments(row.names):
            path, body = assignment.fill(row.path), assignment.fill(row.body or "")
            ok(api.call(row.method, path, body.encode()), 201)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    path = tmp_path_factory.mktemp("matrix") / "data"
    with Server(path, api_keys=ENTRIES, shards=2) as server:
        prepare(server)
        yield server


@pytest.fixture
def sender(guarded: Server) -> Iterator[Sender]:
    sender = Sender(guarded)
    yield sender
    sender.close()


def bearer(key: Key) -> str:
    return f"Authorization: Bearer {key.secret}"


def allowed_results(row: Row, key: Key, assignment: Assignment) -> set[tuple[int, str]] | None:
    """Return the allowed responses, or None if those of the row are allowed."""
    is_covered = not (row.all_names and key.limited)
    if row.open or (is_covered and allows(row.scopes, key, assignment)):
        return None
    return {(403, "forbidden")}


def request_row(
    sender: Sender, row: Row, assignment: Assignment, *headers: str, query: str = ""
) -> Any:
    path = assignment.fill(row.path)
    if query:
        path += ("&" if "?" in path else "?") + query
    body = None if row.body is None else assignment.fill(row.body)
    return sender.send((row.method, path), body, *headers)


def is_right(row: Row, allowed: set[tuple[int, str]] | None, got: tuple[int, str]) -> bool:
    return got in allowed if allowed is not None else got[0] in row.fine


def by_name(row: Row) -> str:
    return row.name


@pytest.mark.parametrize("row", ROWS, ids=by_name)
def test_a_key_permits_exactly_its_scopes_and_prefixes(sender: Sender, row: Row) -> None:
    wrong = []
    for key in KEYS:
        for assignment in assignments(row.names):
            got = request_row(sender, row, assignment, bearer(key))
            if not is_right(row, allowed_results(row, key, assignment), got):
                wrong.append((key.secret, assignment.letters, got))
    assert not wrong, f"{row.method} {row.path}: (key, names, answer)"


@pytest.mark.parametrize("row", ROWS, ids=by_name)
def test_a_request_without_a_valid_key_always_gets_401(sender: Sender, row: Row) -> None:
    wrong = []
    for name, headers in INVALID_CREDENTIALS.items():
        for assignment in assignments(row.names):
            got = request_row(sender, row, assignment, *headers)
            if got != (401, "unauthorized") and not (row.open and got[0] in row.fine):
                wrong.append((name, assignment.letters, got))
    assert not wrong, f"{row.method} {row.path}: (credentials, names, answer)"


@pytest.mark.parametrize("row", ROWS, ids=by_name)
def test_a_key_in_the_query_is_valid_only_for_streams(sender: Sender, row: Row) -> None:
    wrong = []
    for key in KEYS:
        for assignment in assignments(row.names):
            got = request_row(sender, row, assignment, query=f"token={key.secret}")
            right = allowed_results(row, key, assignment)
            if not row.token and not row.open:
                right = {(401, "unauthorized")}
            if not is_right(row, right, got):
                wrong.append((key.secret, assignment.letters, got))
    assert not wrong, f"{row.method} {row.path}: (key, names, answer)"


@pytest.mark.parametrize("row", ROWS, ids=by_name)
def test_a_key_in_the_query_is_ignored_if_the_header_has_one(sender: Sender, row: Row) -> None:
    wrong = []
    for key in KEYS:
        for assignment in assignments(row.names):
            got = request_row(sender, row, assignment, bearer(key), query=f"token={ADMIN_KEY}")
            if not is_right(row, allowed_results(row, key, assignment), got):
                wrong.append((key.secret, assignment.letters, got))
    got = request_row(
        sender,
        row,
        Assignment(None, row.names),
        "Authorization: Bearer no",
        query=f"token={ADMIN_KEY}",
    )
    if not row.open and got != (401, "unauthorized"):
        wrong.append(("unknown", "", got))
    assert not wrong, f"{row.method} {row.path}: (key, names, answer)"


# --- watch streams: only the key that created the session is valid


def test_a_session_can_be_opened_only_with_its_own_key(guarded: Server, sender: Sender) -> None:
    readers = [key for key in KEYS if READ in key.scopes]
    wrong = []
    for owner in (readers[0], readers[1], readers[-1]):
        with Api(guarded.address, token=owner.secret) as api:
            url = session(api, [f"{INSIDE}log"])["stream_url"]
        for key in KEYS:
            right = (200, "") if key == owner else (401, "unauthorized")
            for query, headers in (("", [bearer(key)]), (f"?token={key.secret}", [])):
                got = sender.send(("GET", url + query), None, *headers)
                if got != right:
                    wrong.append((owner.secret, key.secret, query, got))
        for name, headers in INVALID_CREDENTIALS.items():
            got = sender.send(("GET", url), None, *headers)
            if got != (401, "unauthorized"):
                wrong.append((owner.secret, name, "", got))
    assert not wrong, "(owner, key, query, answer)"


# --- WebSockets


@pytest.mark.parametrize("key", KEYS, ids=lambda key: key.secret)
def test_each_command_on_a_socket_needs_its_scopes(guarded: Server, key: Key) -> None:
    wrong = []
    with Socket(guarded.address, token=key.secret) as socket:
        for command in COMMANDS:
            for assignment in assignments(command.names):
                socket.text(assignment.fill(command.text))
                answer = _reply(socket)
                got = answer.get("code", answer["op"])
                may = allows(command.scopes, key, assignment)
                if got != (command.done if may else "forbidden"):
                    wrong.append((command.name, assignment.letters, answer))
    assert not wrong, "(command, names, answer)"


def _reply(socket: Socket) -> Any:
    """Return the next reply to a command."""
    while (answer := socket.message())["op"] in ("caught_up", "record"):
        pass
    return answer


@pytest.mark.parametrize("case", INVALID_CREDENTIALS)
def test_a_socket_needs_a_key_in_a_header(guarded: Server, case: str) -> None:
    refused(shake(guarded, handshake(KEY, *INVALID_CREDENTIALS[case])), 401, "unauthorized")
    path = f"/v0/ws?token={ADMIN_KEY}"
    refused(
        shake(guarded, handshake(KEY, *INVALID_CREDENTIALS[case], path=path)), 401, "unauthorized"
    )


# --- the table itself


def test_every_route_of_the_server_has_a_row() -> None:
    protected = [route for route in ROUTES if not route.is_public]  # the console's files are public
    served = {(method, route.path) for route in protected for method in route.methods}
    rows = {row.served_by for row in ROWS} | {("GET", "/v0/watch/:wid"), ("GET", "/v0/ws")}
    assert rows == {(method, path) for method, path in served if method != "HEAD"}

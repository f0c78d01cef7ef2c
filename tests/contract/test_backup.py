"""Backups: required rights, one at a time, and detection of incomplete backups."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import io
import json
import socket
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.api import Answer, Api, ok, refused
from tests.support.server import Server
from topics.formats.disk.backup_archive import identity_ranges
from topics.storage.backup_restore import NotABackup, restore

pytestmark = pytest.mark.slow

KEYS = "admin,reader:read+write+delete,narrow::in."
WAIT_S = 30.0
RECEIVE_BYTES = 1 << 18


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    data = tmp_path_factory.mktemp("backup") / "data"
    with Server(data, shards=2, api_keys=KEYS, access_log="audit") as server:
        with Api(server.address, token="admin") as api:
            for number in range(4):
                ok(api.append(f"t{number}", *range(10)), 201)
            ok(api.append("large", *("x" * 100_000 for _ in range(300))), 201)
        yield server


@pytest.fixture
def admin(own: Server) -> Iterator[Api]:
    with Api(own.address, token="admin") as api:
        yield api


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def raw(server: Server, token: str = "admin") -> socket.socket:
    """Start a backup and read only the start of its response."""
    client = socket.socket()
    client.settimeout(WAIT_S)
    # This must be set before the connection announces its window. If the window shrinks later,
    # 4 MB take 100 s.
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)
    client.connect(server.address)
    head = f"GET /v0/backup HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\r\n"
    client.sendall(head.encode())
    assert client.recv(12) == b"HTTP/1.1 200"
    return client


def is_truncated(client: socket.socket) -> bool:
    """Read the rest and return whether it has neither a manifest nor the last chunk."""
    answer = bytearray()
    with client, contextlib.suppress(ConnectionResetError):
        while data := client.recv(1 << 20):
            answer += data
    return not answer.endswith(b"\r\n0\r\n\r\n") and b'{"manifest"' not in answer


def ends(api: Api) -> dict[str, int]:
    """Return the number of backups by how they ended."""
    text = ok(api.call("GET", "/v0/metrics", headers={"Accept": "application/json"}))
    series = text["topics_backups_total"]
    return {each["end"]: each["value"] for each in series}


def test_a_backup_is_a_complete_tar_of_the_acknowledged_records(
    own: Server, admin: Api, tmp_path: Path
) -> None:
    answer = admin.call("GET", "/v0/backup")
    assert (answer.status, answer.headers["content-type"]) == (200, "application/x-tar")
    assert answer.headers["transfer-encoding"] == "chunked"
    assert answer.headers["cache-control"] == "no-store, no-transform"
    with tarfile.open(fileobj=io.BytesIO(answer.body)) as tar:
        names = tar.getnames()
        content = tar.extractfile("manifest.json")
        assert content is not None
        manifest = json.load(content)["manifest"]
    assert names[-1] == "manifest.json"
    assert [member["path"] for member in manifest["members"]] == names[:-1]
    assert len(manifest["cuts"]) == manifest["shards"] == 2
    folder = tmp_path / "data"
    restore(io.BytesIO(answer.body), folder, as_new=False, with_damage=False)
    with Server(folder, shards=2) as again, Api(again.address) as api:
        for topic in ("t0", "t1", "t2", "t3", "large"):
            assert api.read(topic) == admin.read(topic)


def test_a_backup_requires_the_scope_admin_and_a_key_without_prefixes(own: Server) -> None:
    for token, status, code in (
        (None, 401, "unauthorized"),
        ("reader", 403, "forbidden"),
        ("narrow", 403, "forbidden"),
    ):
        with Api(own.address, token=token) as api:
            refused(api.call("GET", "/v0/backup"), status, code)
            refused(api.call("POST", "/v0/backup"), status, code)
    with Api(own.address, token="reader") as api:
        assert api.call("GET", "/v0/backup").json()["error"]["detail"]["scope"] == "admin"


@pytest.mark.parametrize("padding", [0, 300_000])  # short, and read in fragments
def test_an_incremental_backup_lacks_the_files_that_the_client_has(
    own: Server, admin: Api, padding: int
) -> None:
    ok(admin.append("t0", "known"))
    answer = admin.call("POST", "/v0/backup", {"files": []})
    first, runs = members_of(answer), manifest_of(answer)["runs"]
    known = []
    for name, (data, kept) in first.items():
        assert kept == 0
        ranges = identity_ranges(name, len(data))
        bytes_of = b"".join(data[at : at + size] for at, size in ranges)
        run = str(runs[int(name.split("/")[1])]) if name.startswith("wal/") else ""
        identity = hashlib.sha256(run.encode() + bytes_of).hexdigest()
        known.append({"path": name, "bytes": len(data), "identity": identity})
    known.append({"path": "x" * padding, "bytes": 0, "identity": ""})
    again = members_of(admin.call("POST", "/v0/backup", {"files": known}))
    assert not any(data for data, _ in again.values())
    assert {name: kept for name, (_, kept) in again.items()} == {
        name: len(data) for name, (data, _) in first.items()
    }
    ok(admin.append("t0", "new"))
    changed = {
        name: (data, kept)
        for name, (data, kept) in members_of(
            admin.call("POST", "/v0/backup", {"files": known})
        ).items()
        if data
    }
    ((name, (data, kept)),) = changed.items()
    assert name.startswith("wal/")
    assert kept == len(first[name][0])
    assert b'"new"' in data
    assert len(data) < 1000
    # A log file whose known bytes differ is sent from its beginning.
    other = [each | {"identity": "0" * 64} for each in known]
    assert members_of(admin.call("POST", "/v0/backup", {"files": other}))[name][1] == 0


def manifest_of(answer: Answer) -> dict[str, Any]:
    with tarfile.open(fileobj=io.BytesIO(answer.body)) as tar:
        content = tar.extractfile("manifest.json")
        assert content is not None
        found: dict[str, Any] = json.load(content)["manifest"]
    return found


def members_of(answer: Answer) -> dict[str, tuple[bytes, int]]:
    """Return the sent bytes of each file, and the number of bytes before them."""
    assert answer.status == 200, answer
    found = {}
    with tarfile.open(fileobj=io.BytesIO(answer.body)) as tar:
        sent = {
            member.name: content.read()
            for member in tar
            if (content := tar.extractfile(member)) is not None
        }
    for each in manifest_of(answer)["members"]:
        kept = each.get("kept", 0)
        data = sent.get(f"{each['path']}@{kept}" if kept else each["path"], b"")
        assert len(data) == each["bytes"] - kept
        assert hashlib.sha256(data).hexdigest() == each["sha256"]
        found[each["path"]] = data, kept
    return found


def test_a_restore_refuses_an_incremental_backup(admin: Api, tmp_path: Path) -> None:
    first = members_of(admin.call("POST", "/v0/backup"))
    meta = first["meta"][0]
    identity = hashlib.sha256(meta + meta).hexdigest()
    files = [{"path": "meta", "bytes": len(meta), "identity": identity}]
    answer = admin.call("POST", "/v0/backup", {"files": files})
    with pytest.raises(NotABackup, match="meta is missing"):
        restore(io.BytesIO(answer.body), tmp_path / "data", as_new=False, with_damage=False)
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    "body", [{"files": 1}, {"files": [{"path": "meta"}]}, {"files": [{"path": "x", "bytes": -1}]}]
)
def test_an_incremental_backup_rejects_an_invalid_body(admin: Api, body: object) -> None:
    refused(admin.call("POST", "/v0/backup", body), 400, "invalid_request")
    until(lambda: admin.call("GET", "/v0/backup").status == 200)


@pytest.mark.parametrize("method", ["HEAD", "PUT", "DELETE"])
def test_only_get_and_post_are_allowed(admin: Api, method: str) -> None:
    answer = admin.call(method, "/v0/backup")
    assert (answer.status, answer.headers["allow"]) == (405, "GET, POST")


def test_http_1_0_is_refused_because_it_cannot_signal_an_incomplete_body(own: Server) -> None:
    with socket.create_connection(own.address, timeout=WAIT_S) as client:
        client.sendall(b"GET /v0/backup HTTP/1.0\r\nAuthorization: Bearer admin\r\n\r\n")
        answer = http.client.HTTPResponse(client)
        answer.begin()
        assert answer.status == 400
        assert "HTTP/1.1" in json.load(answer)["error"]["message"]


def test_one_backup_runs_at_a_time_and_a_disconnect_frees_the_slot(own: Server, admin: Api) -> None:
    before = ends(admin)
    client = raw(own)
    answer = admin.call("GET", "/v0/backup")
    refused(answer, 429, "throttled")
    assert answer.json()["error"]["detail"]["limit"] == "max_backups"
    assert answer.headers["retry-after"]
    client.close()
    until(lambda: admin.call("GET", "/v0/backup").status == 200)
    until(lambda: ends(admin)["failed"] == before["failed"] + 1)
    until(lambda: ends(admin)["finished"] > before["finished"])
    assert own.log is not None
    audit = [
        each
        for each in own.log.events()
        if (each["event"], each.get("route")) == ("request", "backup")
    ]
    assert {each["status"] for each in audit} >= {200, 429}
    assert any(each.get("cut") for each in audit)


def test_the_refusal_names_a_shard_that_does_not_respond(tmp_path: Path) -> None:
    with Server(tmp_path / "data", shards=2) as server, Api(server.address) as api:
        with server.stopped("shard 1"):
            answer = api.call("GET", "/v0/backup")
        refused(answer, 503, "not_ready")
        assert "shard 1" in answer.json()["error"]["message"]
        until(lambda: api.call("GET", "/v0/backup").status == 200)


def test_a_shard_crash_and_a_server_stop_abort_a_backup(tmp_path: Path) -> None:
    with Server(tmp_path / "data", shards=2) as server:
        with Api(server.address) as api:
            ok(api.append("large", *("x" * 100_000 for _ in range(300))), 201)
        for end in ("shard 0", "stop"):
            client = raw(server)
            if end == "stop":
                server.terminate()
            else:
                server.replace(end)
            assert is_truncated(client)
        server.wait_stopped()

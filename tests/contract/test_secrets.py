"""Secrets never appear in the log, in responses, in lists of processes or in the data (§0.2, §12).

A server with keys gets requests with valid and invalid keys in every possible place, including
malformed requests. Then all of its output is searched for the keys, their halves and encoded forms.
"""

from __future__ import annotations

import base64
import hashlib
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.support.api import Api, Wire, ok, refused, request
from tests.support.server import ROOT, Server
from tests.support.sse import Stream, session
from tests.support.ws import KEY, Socket, handshake

pytestmark = pytest.mark.usefixtures("started_servers")


def new_secret(name: str) -> str:
    """Return a unique key. A query must encode its ``+/=``."""
    return f"{name}+{secrets.token_hex(16)}/="


@dataclass(frozen=True, slots=True)
class Guarded:
    """A server, its keys, and keys that it does not know. ``received`` contains every received
    byte.
    """

    server: Server
    known: tuple[str, ...]
    unknown: tuple[str, ...] = field(
        default_factory=lambda: (new_secret("wrong"), new_secret("no"))
    )
    received: list[bytes] = field(default_factory=list)

    @property
    def all(self) -> tuple[str, ...]:
        return self.known + self.unknown

    def send(self, content: bytes, *, reads_response: bool = True) -> None:
        """Send raw bytes on a new connection, and record the response."""
        with Wire(self.server.address, timeout_s=5) as wire:
            wire.send(content)
            wire.half_close()
            self.received.append(wire.rest() if reads_response else b"")


def traces(secret: str) -> set[bytes]:
    """Return forbidden bytes: both halves of the key, and forms that reveal it."""
    half = len(secret) // 2
    digest = hashlib.sha256(secret.encode())
    revealing = {secret[2:half], secret[half:-2], quote(secret, safe=""), digest.hexdigest()}
    coded = {
        base64.b64encode(text.encode()).rstrip(b"=")
        for text in (secret, f":{secret}", f"user:{secret}", digest.hexdigest())
    }
    return {text.encode() for text in revealing} | coded | {digest.digest()}


def assert_no_trace(secrets_of: tuple[str, ...], content: bytes, where: str) -> None:
    for secret in secrets_of:
        for trace in traces(secret):
            at = content.find(trace)
            assert at < 0, f"in {where}: …{content[max(at - 200, 0) : at]!r} and then {trace!r}"


@pytest.fixture(scope="module", params=["environment", "file"])
def guarded(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Guarded]:
    known = tuple(new_secret(name) for name in ("boss", "reader", "tenant"))
    entries = (known[0], f"{known[1]}:read", f"{known[2]}:rw:t42:")
    folder = tmp_path_factory.mktemp(f"secrets-{request.param}")
    env = {"api_keys": ",".join(entries)}
    if request.param == "file":
        path = folder / "keys"
        path.write_text("# keys\n" + "\n".join(entries))
        env = {"api_keys_file": str(path)}
    env |= {"log_level": "debug", "access_log": "all", "allowed_hosts": "localhost"}
    env["wal_file_bytes"] = str(1 << 20)  # small log files, which are soon read to seal them
    with Server(folder / "data", shards=2, **env) as server:
        guarded = Guarded(server, known)
        send_keys(guarded)
        yield guarded


def send_keys(guarded: Guarded) -> None:
    """Send keys in every possible place of a request."""
    with Api(guarded.server.address, token=guarded.known[0]) as api:
        ok(api.append("t42:a", 1), 201)
        ok(api.put("t42:q", {"type": "queue"}), 201)
        ok(api.call("PUT", "/v0/routers/t42:r", {"source": "t42:a", "dest": "t42:b"}), 201)
        url = session(api, ["t42:a"])["stream_url"]
    for secret in guarded.all:
        for line in LINES:
            for headers in credentials(secret):
                guarded.send(request(*line, b"{}", *headers, "Connection: close"))
            for query in queries(secret):
                path = f"{line[1]}{'&' if '?' in line[1] else '?'}{query}"
                guarded.send(request(line[0], path, b"{}", "Connection: close"))
        for content in malformed(secret):
            guarded.send(content)
        guarded.send(handshake(KEY, f"Authorization: Bearer {secret}"))
        guarded.send(handshake(KEY, path=f"/v0/ws?token={quote(secret)}"))
        guarded.send(request("GET", f"{url}?token={quote(secret)}", None, "Accept: text/plain"))
    stream_with(guarded, url)


def stream_with(guarded: Guarded, url: str) -> None:
    """Open streams, and send commands that are refused."""
    boss, reader = guarded.known[:2]
    with Stream(guarded.server.address, f"{url}?token={quote(boss, safe='')}") as stream:
        stream.read_until_caught_up(["t42:a"])
    with Socket(guarded.server.address, token=reader) as socket:
        for text in ('{"op":"publish","topic":"t42:a","records":[]}', "{", '{"op":"no"}'):
            socket.text(text)
            guarded.received.append(repr(socket.message()).encode())


LINES = [
    ("GET", "/v0/health"),
    ("GET", "/v0/topics"),
    ("GET", "/v0/topics?page_size=x"),
    ("GET", "/v0/topics/absent"),
    ("PUT", "/v0/topics/t43:x?y=%ff"),
    ("POST", "/v0/topics/t42:a"),
    ("POST", "/v0/topics/t42:a/diff"),
    ("POST", "/v0/topics/t42:q/claim"),
    ("DELETE", "/v0/topics/t42:absent"),
    ("PATCH", "/v0/routers/t42:r"),
    ("GET", "/v0/routers/t42:r"),
    ("POST", "/v0/watch"),
    ("GET", "/v0/watch/wid_AAAAAAAAAAAAAAAAAAAAAA"),
    ("GET", "/v0/topics/t42:a/work?node=w"),
    ("GET", "/v0/metrics"),
    ("GET", "/v0/nowhere"),
]


def credentials(secret: str) -> list[list[str]]:
    """Return valid and invalid header lines with the key."""
    basic = base64.b64encode(f"user:{secret}".encode()).decode()
    return [
        [f"Authorization: Bearer {secret}"],
        [f"Authorization: bearer  {secret}:rw"],
        [f"Authorization: Basic {basic}"],
        [f"Authorization: {secret}", f"X-Request-Id: {'x' * 200}"],
        [f"Authorization: Bearer {secret}", f"Authorization: Bearer {secret}"],
        [f"Proxy-Authorization: Bearer {secret}", f"Cookie: key={secret}"],
    ]


def queries(secret: str) -> list[str]:
    """Return query strings with the key."""
    encoded = quote(secret, safe="")
    return [
        f"token={encoded}",
        f"token={secret}",
        f"token={encoded}%zz&token=%ff",
        f"t=1&{encoded}",
    ]


def malformed(secret: str) -> list[bytes]:
    """Return invalid requests that contain the key."""
    bearer = f"Authorization: Bearer {secret}\r\n"
    line = "POST /v0/topics/t42:a HTTP/1.1\r\nHost: localhost\r\n"
    texts = [
        f"{line}Authorization : Bearer {secret}\r\n\r\n",
        f"{line}Authorization: Bearer\r\n {secret}\r\n\r\n",
        f"{line}Authorization: Bearer {secret}\0\r\n\r\n",
        f"{line}Authorization: Bearer {secret}\x1b[31m\r\n\r\n",
        f"{line}Authorization Bearer {secret}\r\n\r\n",
        f"{line}{bearer}Content-Length: 2\r\nContent-Length: 3\r\n\r\n{{}}",
        f"{line}{bearer}Content-Length: x\r\n\r\n",
        f"{line}{bearer}Transfer-Encoding: gzip\r\n\r\n",
        f"{line}{bearer}Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        f"{line}{bearer}Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{{",
        f"{line}{bearer}X-Long: {'x' * 70_000}\r\n\r\n",
        f"{line}{bearer}",
        f"POST /v0/topics/t42:a HTTP/1.2\r\nHost: localhost\r\n{bearer}\r\n",
        f"POST /v0/topics/t42:a HTTP/1.1\r\n{bearer}\r\n",
        f"GET /v0/topics?token={secret} x HTTP/1.1\r\nHost: localhost\r\n\r\n",
        f"GET /v0/topics?token={secret}\r\nHost: localhost\r\n\r\n",
        f"GET http://user:{secret}@localhost/v0/topics HTTP/1.1\r\nHost: localhost\r\n\r\n",
        f"GET http://localhost/v0/topics?token={secret} HTTP/1.1\r\nHost: foreign\r\n{bearer}\r\n",
        f"{bearer}{line}\r\n",
        f"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n{secret}",
        f"\x16\x03\x01\x02\0\x01\0{secret}",
        f"{secret}\r\n\r\n",
    ]
    return [text.encode("latin-1") for text in texts]


# --- searched output


@pytest.mark.slow
def test_no_response_contains_a_key(guarded: Guarded) -> None:
    assert sum(map(bool, guarded.received)) > 800
    assert_no_trace(guarded.all, b"\n".join(guarded.received), "a response")


@pytest.mark.slow
def test_no_log_line_contains_a_key(guarded: Guarded) -> None:
    assert guarded.server.log is not None
    assert len(guarded.server.log.events()) > 2
    assert_no_trace(guarded.all, guarded.server.logged.encode(), "the log")


@pytest.mark.slow
def test_no_key_is_visible_in_proc(guarded: Guarded) -> None:
    pids = [guarded.server.pid, *guarded.server.roles().values()]
    assert len(pids) == 4
    for pid in pids:
        for name in ("cmdline", "environ", "comm", "status", "maps"):
            try:
                content = Path(f"/proc/{pid}/{name}").read_bytes()
            except PermissionError:  # not even the owner may read it
                continue
            assert_no_trace(guarded.known, content, f"/proc/PID/{name}")


@pytest.mark.slow
def test_no_data_file_contains_a_key(guarded: Guarded) -> None:
    files = [path for path in guarded.server.data_dir.rglob("*") if path.is_file()]
    assert files
    for path in files:
        assert_no_trace(guarded.all, path.read_bytes(), path.name)


@pytest.mark.slow
def test_the_metrics_contain_no_key(guarded: Guarded) -> None:
    with Api(guarded.server.address, token=guarded.known[1]) as api:
        for accept in ("text/plain", "application/json"):
            answer = api.call("GET", "/v0/metrics", headers={"Accept": accept})
            assert_no_trace(guarded.all, answer.body + repr(answer.headers).encode(), "the metrics")


@pytest.mark.slow
def test_only_the_configured_keys_are_accepted_in_the_header(guarded: Guarded) -> None:
    for secret in guarded.known:
        with Api(guarded.server.address, token=secret) as api:
            ok(api.get("t42:a"))
    for secret in guarded.unknown:
        with Api(guarded.server.address, token=secret) as api:
            refused(api.get("t42:a"), 401, "unauthorized")


# --- the command


def command(*arguments: str, **env: str) -> subprocess.CompletedProcess[bytes]:
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith("TOPICS_")
    }
    return subprocess.run(
        [sys.executable, "-m", "topics", *arguments],
        cwd=ROOT,
        env=inherited | {f"TOPICS_{name.upper()}": value for name, value in env.items()},
        capture_output=True,
        check=False,
        timeout=30,
    )


@pytest.mark.parametrize("by_file", [False, True])
def test_the_settings_are_printed_without_keys(tmp_path: Path, by_file: bool) -> None:
    secret = new_secret("boss")
    (tmp_path / "keys").write_text(secret)
    given = {"api_keys_file": str(tmp_path / "keys")} if by_file else {"api_keys": secret}
    shown = command("serve", "--print-config", **given)
    assert shown.returncode == 0
    assert b"TOPICS_PORT=" in shown.stdout
    assert_no_trace((secret,), shown.stdout + shown.stderr, "the settings")


@pytest.mark.parametrize(
    "entry", ["{}:nonsense", "{}:rw:r|", ":{}", "a b{}", "{},{}", "{}:r:*", "sha256:{}", "x:{}:y"]
)
def test_the_error_about_an_invalid_key_does_not_contain_it(tmp_path: Path, entry: str) -> None:
    """Both sources contain the invalid key, and each of them is refused separately."""
    secret = new_secret("boss")
    text = entry.format(secret, secret)
    (tmp_path / "keys").write_text(text)
    given = {"api_keys_file": str(tmp_path / "keys"), "api_keys": text, "port": "70000"}
    shown = command("serve", "--print-config", **given)
    assert shown.returncode == 2
    for variable in (b"TOPICS_PORT=", b"TOPICS_API_KEYS:", b"TOPICS_API_KEYS_FILE"):
        assert variable in shown.stderr
    assert_no_trace((secret,), shown.stdout + shown.stderr, "the refusal")

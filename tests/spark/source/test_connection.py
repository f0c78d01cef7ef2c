"""The connection of the options: servers, API key, certificates and retries."""

from __future__ import annotations

import pickle
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from tests.spark.client.stub_server import StubServer
from tests.spark.live import located
from tests.support.proxies import certificate
from topics.client import ConnectionLost
from topics.client.calls import Attempts
from topics.spark.client.http import RequestError
from topics.spark.client.servers import Server, Servers
from topics.spark.interface import DEFAULTS
from topics.spark.source.connection import (
    BadOption,
    Connection,
    Given,
    RetryBudget,
    ServerError,
    errors_of,
    is_away,
    label,
)

URL = "http://127.0.0.1:4000"
RETRIES = int(DEFAULTS["numRetries"])


def test_the_options_have_the_defaults_of_the_table() -> None:
    connection = Connection.parse({"servers": URL})
    assert connection.servers.members == (Server(URL, URL),)
    assert (connection.api_key, connection.retries) == (None, RETRIES)
    assert (connection.connect_s, connection.read_s) == (5, 120)


@pytest.mark.parametrize("value", [None, ""])
def test_a_server_must_be_named(monkeypatch: pytest.MonkeyPatch, value: str | None) -> None:
    if value is not None:
        monkeypatch.setenv("TOPICS_URL", value)
    with pytest.raises(BadOption, match="no server is named: give the option servers, for example"):
        Connection.parse({})


def test_missing_options_are_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOPICS_URL", "http://host:1")
    monkeypatch.setenv("TOPICS_API_KEY", "from-environment")
    connection = Connection.parse({})
    assert connection.servers.members == (Server("http://host:1", "http://host:1"),)
    assert connection.api_key == "from-environment"
    named = Connection.parse({"servers": "a=http://h:2", "apiKey": "k"})
    assert (named.servers.members, named.api_key) == ((Server("a", "http://h:2"),), "k")


def test_names_of_options_are_not_case_sensitive() -> None:
    given = {"SERVERS": URL, "NumRetries": "3", "connecttimeoutms": "250", "READTIMEOUTMS": "1_500"}
    connection = Connection.parse(given)
    assert (connection.retries, connection.connect_s, connection.read_s) == (3, 0.25, 1.5)


def test_a_key_is_read_from_its_file(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("secret\n")
    assert Connection.parse({"servers": URL, "apiKeyFile": str(file)}).api_key == "secret"


def test_a_key_in_the_environment_and_user_info_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TOPICS_API_KEY", "k")
    with pytest.raises(BadOption, match="both given, and a request has one Authorization header"):
        Connection.parse({"servers": "http://u:p@h:1"})


def test_the_password_of_an_address_is_sent_but_never_printed() -> None:
    connection = Connection.parse({"servers": "http://user:password@h:1,b=http://b:password@h:2"})
    first, second = sorted(connection.servers.members)[::-1]
    assert (first.name, second.name) == ("http://h:1", "b")
    assert first.url == "http://user:password@h:1"
    shown = repr(connection) + repr(first) + label(first) + label(second)
    assert "password" not in shown
    unreachable = Connection.parse({"servers": "http://u:s3cret@127.0.0.1:1", "numRetries": "0"})
    (server,) = unreachable.servers.members
    with (
        pytest.raises(ServerError, match=r"//127\.0\.0\.1:1: topic") as caught,
        errors_of(server),
        unreachable.client(server) as client,
    ):
        client.state("t")
    assert "s3cret" not in str(caught.value) + str(caught.value.__cause__)
    assert Servers.parse(",".join(s.entry for s in connection.servers.members)).members == (
        connection.servers.members
    )


def test_the_key_is_pickled_but_never_printed() -> None:
    assert Connection.parse({"servers": URL, "apiToken": "secret-key"}).api_key == "secret-key"
    connection = Connection.parse({"servers": URL, "apiKey": "secret-key"})
    assert "secret" not in repr(connection)
    assert pickle.loads(pickle.dumps(connection)) == connection


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kafka.bootstrap.servers": "h:9092"}, "option servers, for example http://127.0.0.1:"),
        ({"servers": "host:4000"}, "address of a server; it looks like"),
        ({"servers": " , "}, "servers names no server"),
        ({"servers": "http://h:1?x=1"}, "address of a server; it looks like"),
        ({"url": URL, "servers": URL}, "options servers and url are both given"),
        ({"apiKey": "k", "apiKeyFile": "f"}, "give one of them"),
        ({"apiKey": "k", "apiToken": "f"}, "options apiToken and apiKey are both given"),
        ({"servers": "http://u:clé@h", "apiToken": "k"}, "one Authorization header"),
        ({"servers": "http://u:clé@h:x"}, "an address with user info is no"),
        ({"servers": "http://u:clé,clé@h"}, "an address with user info is no"),
        ({"apiKeyFile": "/nowhere/key"}, "/nowhere/key cannot be read: No such file"),
        ({"apiKey": "clé"}, "the API key has a character that is not"),
        ({"numRetries": "many"}, "option numRetries is 'many', which is not an integer"),
        ({"numRetries": "-1"}, "option numRetries is -1; it is at least 0"),
        ({"readTimeoutMs": "0"}, "option readTimeoutMs is 0; it is at least 1"),
    ],
)
def test_an_invalid_option_is_reported_in_one_line(options: dict[str, str], message: str) -> None:
    with pytest.raises(BadOption) as caught:
        Connection.parse({"servers": URL} | options if "url" not in options else options)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "clé" not in str(caught.value)


def test_an_empty_key_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "key").write_text(" \n")
    with pytest.raises(BadOption, match="is empty"):
        Connection.parse({"servers": URL, "apiKeyFile": str(tmp_path / "key")})


def test_numbers_flags_and_choices_are_parsed_and_have_defaults() -> None:
    options = {"minpartitions": " 7", "failondataloss": "FALSE", "durability": "Fsync"}
    options["createtopic"] = "maybe"
    assert (Given(options).number("minPartitions"), Given({}).number("minPartitions")) == (7, 1)
    assert not Given(options).flag("failOnDataLoss")
    assert Given({}).flag("failOnDataLoss")
    assert Given(options).choice("durability", ("disk", "fsync")) == "fsync"
    with pytest.raises(BadOption, match="option createTopic is 'maybe'; it is one of: true, false"):
        Given(options).flag("createTopic")


@pytest.mark.parametrize(
    ("code", "expected"), [("unreachable", True), ("not_ready", True), ("unauthorized", False)]
)
def test_a_server_is_away_if_it_may_reply_later(code: str, expected: bool) -> None:
    server = Server("a", "http://h:1")
    with pytest.raises(ServerError) as caught, errors_of(server):
        raise RequestError("t", 0, code, "no")
    assert is_away(caught.value) is expected
    assert not is_away(ServerError("of another kind"))


def test_a_server_is_found_by_its_name() -> None:
    connection = Connection.parse({"servers": "a=http://h:1,b=http://h:2"})
    assert connection.server("b").url == "http://h:2"
    with pytest.raises(BadOption, match='no server "c"; there are: a, b'):
        connection.server("c")
    assert label(Server("a", URL)) == f"a ({URL})"
    assert label(Server(URL, URL)) == URL


def test_an_error_names_the_server(stub: StubServer) -> None:
    server = Server("a", stub.url)
    connection = Connection.parse({"servers": f"a={stub.url}"})
    with (
        pytest.raises(ServerError, match=rf'^server a \({stub.url}\): topic "t": 404') as caught,
        errors_of(server),
        connection.client(server) as client,
    ):
        client.append("t", b'{"create":false,"records":[{"data":1}]}', 1, "k")
    assert "\n" not in str(caught.value)


def test_planning_fails_within_seconds_if_no_server_listens() -> None:
    connection = Connection.parse({"servers": "http://127.0.0.1:9"})
    (server,) = connection.servers.members
    with (
        pytest.raises(ServerError, match=r"unreachable.*is the server running"),
        errors_of(server),
        connection.client(server, RetryBudget.PLANNING) as client,
    ):
        client.state("t")


def test_a_topic_is_located_on_any_server_and_created_by_its_name(stub: StubServer) -> None:
    with StubServer() as other:
        text = f"a={stub.url},b={other.url}"
        connection = Connection.parse({"servers": text, "numRetries": "0"})
        owners = {name: connection.servers.owner(name).name for name in ("t1", "t2", "t3", "t4")}
        assert {located(connection, name).name for name in owners} == {"a", "b"}
        assert {name: located(connection, name).name for name in owners} == owners
        for name, owner in owners.items():
            (stub if owner == "b" else other).make(name)
        assert all(located(connection, name).name != owner for name, owner in owners.items())
        stub.make("t1")
        other.make("t1")
        with pytest.raises(RequestError, match=r'"t1": 409 topic_on_two_servers: .* a .* b '):
            located(connection, "t1")
    # Without b, topics on a can be used, but no topic can be created.
    stub.make("t9")
    assert located(connection, "t9").name == "a"
    with pytest.raises(ServerError, match=r"server b .*unreachable"):
        located(connection, "t10")
    lone = Connection.parse({"servers": "http://127.0.0.1:9"})
    assert located(lone, "t") == lone.servers.members[0]


def test_the_default_retries_last_almost_ten_minutes() -> None:
    connection = Connection.parse({"servers": URL})
    attempts = Attempts(connection.retry())
    refused = ConnectionLost("refused", was_sent=False)
    pauses = sum(attempts.pause_after(refused) for _ in range(RETRIES))
    assert 8 * 60 < pauses < 11 * 60
    with pytest.raises(ConnectionLost):
        attempts.pause_after(refused)


@pytest.fixture
def tls(tmp_path: Path) -> Iterator[str]:
    """A server with TLS that requires the same certificate as its own, topics.pem."""
    file = certificate(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=file)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(file, file.with_suffix(".key"))

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(404)
            self.end_headers()
            self.wfile.write(b'{"error":{"code":"topic_not_found","message":"none"}}')

        def log_message(self, *_line: object) -> None:
            """Log nothing."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    server.handle_error = lambda *_request: None  # type: ignore[method-assign]
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"https://localhost:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_certificates_are_read_from_the_files_of_the_options(tls: str, tmp_path: Path) -> None:
    files = {"caFile": "topics.pem", "certFile": "topics.pem", "keyFile": "topics.key"}
    given = {name: str(tmp_path / file) for name, file in files.items()}
    given |= {"servers": tls, "numRetries": "0"}
    connection = pickle.loads(pickle.dumps(Connection.parse(given)))
    (server,) = connection.servers.members
    with errors_of(server), connection.client(server) as client:
        assert client.state("t") is None
    for missing in ({"caFile"}, {"certFile", "keyFile"}):
        fewer = {name: value for name, value in given.items() if name not in missing}
        with (
            pytest.raises(ServerError, match=r"unreachable|tls_failed"),
            errors_of(server),
            Connection.parse(fewer).client(server) as client,
        ):
            client.state("t")
    (tmp_path / "topics.key").unlink()
    with pytest.raises(BadOption, match=r"option certFile: .*topics.key cannot be read: No such"):
        connection.client(server)  # of an executor


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"caFile": "/nowhere"}, "option caFile: /nowhere cannot be read: No such file"),
        ({"caFile": __file__}, "test_connection.py cannot be read: "),
        ({"keyFile": "/nowhere"}, "option keyFile is given without the option certFile"),
        ({"certFile": "/nowhere"}, "option certFile: /nowhere cannot be read"),
        ({"certFile": "/nowhere", "servers": URL}, "servers with https:// addresses"),
    ],
)
def test_invalid_certificate_files_are_reported_in_one_line(
    options: dict[str, str], message: str
) -> None:
    with pytest.raises(BadOption) as caught:
        Connection.parse({"servers": "https://h:1"} | options)
    assert message in str(caught.value)

"""Connection: servers, key and retries from options."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from tests.spark.client.stub_server import StubServer
from topics.client import ConnectionLost
from topics.client.calls import Tries
from topics.spark.client.request_error import RequestError
from topics.spark.client.servers import Server, Servers
from topics.spark.source.connection import (
    RETRIES,
    BadOption,
    Connection,
    RetryBudget,
    ServerError,
    choice,
    errors_of,
    flag,
    is_away,
    label,
    number,
)

URL = "http://127.0.0.1:4000"


def test_without_options_it_is_the_local_server_without_a_key() -> None:
    connection = Connection.parse({})
    (server,) = connection.servers.members
    target = connection.target(server)
    assert (target.url, target.api_key, target.retries) == (URL, None, RETRIES)
    assert (target.connect_s, target.read_s) == (5, 120)


def test_the_environment_gives_what_options_leave_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOPICS_URL", "http://host:1")
    monkeypatch.setenv("TOPICS_API_KEY", "from-environment")
    connection = Connection.parse({})
    assert connection.servers.members == (Server("http://host:1", "http://host:1"),)
    assert connection.api_key == "from-environment"
    named = Connection.parse({"servers": "a=http://h:2", "apiKey": "k"})
    assert (named.servers.members, named.api_key) == ((Server("a", "http://h:2"),), "k")


def test_names_of_options_have_no_case() -> None:
    given = {"SERVERS": URL, "NumRetries": "3", "connecttimeoutms": "250", "READTIMEOUTMS": "1_500"}
    connection = Connection.parse(given)
    target = connection.target(connection.servers.members[0])
    assert (target.retries, target.connect_s, target.read_s) == (3, 0.25, 1.5)


def test_a_key_is_read_from_its_file(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("secret\n")
    assert Connection.parse({"apiKeyFile": str(file)}).api_key == "secret"


def test_a_key_in_the_environment_does_not_join_user_info(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOPICS_API_KEY", "k")
    with pytest.raises(BadOption, match="both given, and a request has one Authorization header"):
        Connection.parse({"servers": "http://u:p@h:1"})


def test_the_password_of_an_address_is_sent_and_never_shown() -> None:
    connection = Connection.parse({"servers": "http://user:password@h:1,b=http://b:password@h:2"})
    first, second = sorted(connection.servers.members)[::-1]
    assert (first.name, second.name) == ("http://h:1", "b")
    assert connection.target(first).url == "http://user:password@h:1"
    shown = repr(connection) + repr(connection.target(first)) + label(first) + label(second)
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


def test_the_key_travels_and_is_never_shown() -> None:
    assert Connection.parse({"apiToken": "secret-key"}).api_key == "secret-key"
    connection = Connection.parse({"apiKey": "secret-key"})
    assert "secret" not in repr(connection)
    assert "secret" not in str(connection.target(connection.servers.members[0]))
    assert pickle.loads(pickle.dumps(connection)) == connection


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"kafka.bootstrap.servers": "h:9092"}, "option servers, for example http://127.0.0.1:"),
        ({"servers": "host:4000"}, "'host:4000' is not an address of a server"),
        ({"servers": " , "}, "servers names no server"),
        ({"servers": "http://h:1?x=1"}, "is not an address of a server"),
        ({"servers": URL, "url": URL}, "the same; give one of them"),
        ({"apiKey": "k", "apiKeyFile": "f"}, "give one of them"),
        ({"apiKey": "k", "apiToken": "f"}, "options apiToken and apiKey are both given"),
        ({"servers": "http://u:clé@h", "apiToken": "k"}, "one Authorization header"),
        ({"servers": "http://u:clé@h:x"}, "an address with user info is not an address"),
        ({"servers": "http://u:clé,clé@h"}, "an address with user info is not an address"),
        ({"apiKeyFile": "/nowhere/key"}, "/nowhere/key cannot be read: No such file"),
        ({"apiKey": "clé"}, "API key has a character that is not visible"),
        ({"numRetries": "many"}, "option numRetries is 'many', which is no whole number"),
        ({"numRetries": "-1"}, "option numRetries is -1; it is at least 0"),
        ({"readTimeoutMs": "0"}, "option readTimeoutMs is 0; it is at least 1"),
    ],
)
def test_a_mistake_is_one_clear_line(options: dict[str, str], said: str) -> None:
    with pytest.raises(BadOption) as caught:
        Connection.parse(options)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "clé" not in str(caught.value)


def test_an_empty_key_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "key").write_text(" \n")
    with pytest.raises(BadOption, match="is empty"):
        Connection.parse({"apiKeyFile": str(tmp_path / "key")})


def test_numbers_flags_and_choices() -> None:
    options = {"n": "7", "f": "TRUE", "c": "failfast", "bad": "maybe"}
    assert (number(options, "n", 1), number(options, "absent", 1)) == (7, 1)
    assert flag(options, "f", default=False)
    assert flag(options, "absent", default=True)
    assert choice(options, "c", ("FAILFAST", "PERMISSIVE"), default="") == "FAILFAST"
    with pytest.raises(BadOption, match="option bad is 'maybe'; it is one of: true, false"):
        flag(options, "bad", default=True)


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


def test_a_refusal_names_the_server(stub: StubServer) -> None:
    server = Server("a", stub.url)
    connection = Connection.parse({"servers": f"a={stub.url}"})
    with (
        pytest.raises(ServerError, match=rf'^server a \({stub.url}\): topic "t": 404') as caught,
        errors_of(server),
        connection.client(server) as client,
    ):
        client.append("t", b'{"create":false,"records":[{"data":1}]}', 1, "k")
    assert "\n" not in str(caught.value)


def test_a_quick_client_gives_up_on_a_dead_address_in_seconds() -> None:
    connection = Connection.parse({"servers": "http://127.0.0.1:9"})
    (server,) = connection.servers.members
    with (
        pytest.raises(ServerError, match=r"unreachable.*is the server running"),
        errors_of(server),
        connection.client(server, RetryBudget.PLANNING) as client,
    ):
        client.state("t")


def test_a_topic_is_located_wherever_it_is_and_made_where_its_name_says(stub: StubServer) -> None:
    with StubServer() as other:
        text = f"a={stub.url},b={other.url}"
        connection = Connection.parse({"servers": text, "numRetries": "0"})
        owners = {name: connection.servers.owner(name).name for name in ("t1", "t2", "t3", "t4")}
        assert {connection.locate(name).name for name in owners} == {"a", "b"}
        assert {name: connection.locate(name).name for name in owners} == owners
        for name, owner in owners.items():
            (stub if owner == "b" else other).make(name)
        assert all(connection.locate(name).name != owner for name, owner in owners.items())
        stub.make("t1")
        other.make("t1")
        with pytest.raises(RequestError, match=r'"t1": 409 topic_on_two_servers: .* a .* b '):
            connection.locate("t1")
    # b is gone now: what a has goes on, and nothing new is made.
    stub.make("t9")
    assert connection.locate("t9").name == "a"
    with pytest.raises(ServerError, match=r"server b .*unreachable"):
        connection.locate("t10")
    lone = Connection.parse({"servers": "http://127.0.0.1:9"})
    assert lone.locate("t") == lone.servers.members[0]


def test_a_restart_of_some_minutes_is_awaited() -> None:
    connection = Connection.parse({"servers": URL})
    tries = Tries(connection.target(connection.servers.members[0]).retry())
    nobody = ConnectionLost("refused", was_sent=False)
    pauses = sum(tries.pause_after(nobody) for _ in range(RETRIES))
    assert 8 * 60 < pauses < 11 * 60
    with pytest.raises(ConnectionLost):
        tries.pause_after(nobody)

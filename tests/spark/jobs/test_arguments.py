"""What the subcommands share."""

from __future__ import annotations

import argparse

import pytest

from tests.spark.client.stub_server import StubServer
from topics.spark.errors import JobError
from topics.spark.jobs.arguments import add_servers, target_of


def parsed(*line: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_servers(parser)
    return parser.parse_args(line)


def test_a_topic_goes_to_the_server_that_has_it(
    stub: StubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOPICS_API_KEY", "secret")
    with StubServer() as other:
        options = parsed("--url", f"a={stub.url},b={other.url}", "--retries", "3")
        assert {target_of(options, f"t{number}").url for number in range(9)} == {
            stub.url,
            other.url,
        }
        other.make("t0")
        target = target_of(options, "t0")
        assert (target.url, target.api_key, target.retries) == (other.url, "secret", 3)
        assert "secret" not in repr(target)
    with pytest.raises(JobError, match=r"server b .*unreachable"):
        target_of(options, "absent")


def test_the_environment_names_the_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOPICS_URL", "http://h:9")
    assert target_of(parsed(), "t").url == "http://h:9"
    monkeypatch.setenv("TOPICS_URL", "")
    with pytest.raises(SystemExit):
        parsed()


@pytest.mark.parametrize("text", ["x", "a=http://x,a=http://y", "http://x:0", "http://x/?y"])
def test_what_is_no_list_of_servers_is_a_usage_error(
    text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parsed("--url", text)
    assert "argument --url: " in capsys.readouterr().err

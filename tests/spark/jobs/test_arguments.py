"""What the subcommands share."""

from __future__ import annotations

import argparse

import pytest

from topics.spark.jobs.arguments import add_servers, target_of


def parsed(*line: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_servers(parser)
    return parser.parse_args(line)


def test_a_topic_goes_to_the_server_that_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOPICS_API_KEY", "secret")
    options = parsed("--url", "a=http://x:1,b=http://x:2", "--retries", "3")
    targets = [target_of(options, f"topic-{number}") for number in range(20)]
    assert {target.url for target in targets} == {"http://x:1", "http://x:2"}
    assert all(target == target_of(options, f"topic-{n}") for n, target in enumerate(targets))
    assert (targets[0].api_key, targets[0].retries) == ("secret", 3)
    assert "secret" not in repr(targets[0])


def test_the_environment_names_the_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOPICS_URL", "http://h:9")
    assert target_of(parsed(), "t").url == "http://h:9"
    monkeypatch.setenv("TOPICS_URL", "")
    with pytest.raises(SystemExit):
        parsed()


@pytest.mark.parametrize("text", ["x", "a=http://x,a=http://y", "http://x:0"])
def test_what_is_no_list_of_servers_is_a_usage_error(
    text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parsed("--url", text)
    assert "argument --url: " in capsys.readouterr().err

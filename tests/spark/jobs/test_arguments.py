"""Arguments of several subcommands."""

from __future__ import annotations

import argparse

import pytest

from topics.spark.client.http import DEFAULT_URL
from topics.spark.client.servers import Servers
from topics.spark.jobs.arguments import add_common


def parsed(*line: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_common(parser)
    return parser.parse_args(line)


@pytest.mark.parametrize(
    ("name", "text"),
    [("PYSPARK_GATEWAY_PORT", "1"), ("PYSPARK_SUBMIT_ARGS", "--master yarn pyspark-shell")],
)
def test_a_job_on_a_cluster_must_name_its_servers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str, text: str
) -> None:
    monkeypatch.delenv("TOPICS_URL", raising=False)
    monkeypatch.setenv(name, text)
    with pytest.raises(SystemExit):
        parsed()
    assert "required: --url" in capsys.readouterr().err
    assert parsed("--url", "http://h:9").url == Servers.parse("http://h:9")


def test_the_environment_names_the_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOPICS_URL", "http://h:9")
    assert parsed().url == Servers.parse("http://h:9")
    monkeypatch.setenv("TOPICS_URL", "")
    assert parsed().url == Servers.parse(DEFAULT_URL)


@pytest.mark.parametrize("text", ["x", "a=http://x,a=http://y", "http://x:0"])
def test_an_invalid_list_of_servers_is_a_usage_error(
    text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parsed("--url", text)
    assert "argument --url: " in capsys.readouterr().err

"""The error of a request: one line with the topic, the status, the code and advice."""

from __future__ import annotations

import dataclasses
import re

import pytest

from topics.config import Settings
from topics.spark.client.http import ADVICE, RequestError


@pytest.mark.parametrize(("code", "advice"), ADVICE.items())
def test_the_error_of_a_known_code_contains_its_advice(code: str, advice: str) -> None:
    assert str(RequestError("t", 500, code, "no")) == f'topic "t": 500 {code}: no ({advice})'


def test_the_error_of_an_unknown_code_contains_no_advice() -> None:
    assert str(RequestError("t", 418, "teapot", "short")) == 'topic "t": 418 teapot: short'


def test_a_message_of_several_lines_becomes_one_line() -> None:
    error = RequestError("t", 400, "x", " one\n\ttwo  three\r\n")
    assert error.message == "one two three"
    assert "\n" not in str(error)


def test_the_error_of_a_request_without_a_response_contains_its_fields() -> None:
    error = RequestError("t", 0, "unreachable", "refused")
    assert str(error).startswith('topic "t": no answer unreachable: refused (is the server running')
    assert (error.topic, error.status, error.code) == ("t", 0, "unreachable")


def test_every_limit_in_an_advice_is_a_setting() -> None:
    named = set(re.findall(r"TOPICS_MAX_\w+", " ".join(ADVICE.values())))
    assert named == {"TOPICS_MAX_RECORD_BYTES", "TOPICS_MAX_META_BYTES"}
    fields = {f"TOPICS_{field.name.upper()}" for field in dataclasses.fields(Settings)}
    assert named <= fields

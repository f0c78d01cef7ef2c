"""Setting values: exactly the documented forms are accepted, and an error states what is
allowed.
"""

from __future__ import annotations

import pytest

from topics.formats.setting_values import Bound, Host, HostNames, Networks, Origins, boolean


@pytest.mark.parametrize(
    "text", ["1e6", "+5", "-1", "1_000", "64MiB", "", " 5", "0x10", "٣", "1.0"]
)
def test_a_number_consists_of_decimal_digits_only(text: str) -> None:
    with pytest.raises(ValueError, match="must be an integer of at least 0"):
        Bound(0).parse(text)


def test_a_bound_includes_both_ends_and_excludes_everything_outside() -> None:
    bound = Bound(2, 4)
    assert [bound.parse(text) for text in ("2", "3", "04")] == [2, 3, 4]
    for text in ("1", "5", "9" * 19, "9" * 30):
        with pytest.raises(ValueError, match="must be an integer from 2 to 4"):
            bound.parse(text)


def test_a_power_of_two_accepts_no_other_number() -> None:
    bound = Bound(1, 1 << 20, power_of_two=True)
    assert [bound.parse(text) for text in ("1", "2", "1024")] == [1, 2, 1024]
    with pytest.raises(ValueError, match="must be a power of two from 1 to 1048576"):
        bound.parse("3")


def test_host_names_become_a_list_in_lower_case() -> None:
    text = "A.example, .b.example,*,fd00::1,[::1],a_b"
    assert HostNames().parse(text) == (
        *("a.example", ".b.example", "*", "[fd00::1]", "[::1]", "a_b"),
    )


def test_origins_are_normalized_as_browsers_send_them() -> None:
    text = "HTTPS://App.example:443, http://a:80,http://b:08080,https://[FD00:0::1]:8443,app://x"
    assert Origins().parse(text) == (
        "https://app.example",
        "http://a",
        "http://b:8080",
        "https://[fd00::1]:8443",
        "app://x",
    )
    assert Origins().parse("*") == ("*",)


@pytest.mark.parametrize(
    "text",
    [
        *("", "app.example", "//app.example", "https://", "https://app.example/"),
        *("https://app.example/path", "https://app.example?x", "https://user@app.example"),
        *("https://*.example", "https://a..b", "https://a:65536", "https://a:", "https://[::1"),
        *("https://[1.2.3.4]", "https://é.example"),
        *("https://a,,https://b", ",".join(["https://a"] * 65)),
    ],
)
def test_an_invalid_list_of_origins_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="must be \\* or at most 64 origins"):
        Origins().parse(text)


@pytest.mark.parametrize(
    ("text", "rule"),
    [("null", "must not contain null"), ("*,https://a", "alone"), ("https://a, *", "alone")],
)
def test_null_and_a_star_among_others_are_rejected_with_their_own_rules(
    text: str, rule: str
) -> None:
    with pytest.raises(ValueError, match=rule):
        Origins().parse(text)


def test_networks_are_addresses_and_networks_of_both_versions() -> None:
    parsed = Networks().parse("127.0.0.1, 10.1.0.0/16,FD00::/8,::1")
    assert [*map(str, parsed)] == ["127.0.0.1/32", "10.1.0.0/16", "fd00::/8", "::1/128"]


@pytest.mark.parametrize(
    "text",
    [
        *("", "proxy.example", "127.0.0.1:80", "[::1]", "10.1.0.1/16", "10.0.0.0/33", "unix:"),
        *("127.0.0.1,,::1", "010.0.0.1", "*", ",".join(["::1"] * 65)),
    ],
)
def test_an_invalid_list_of_networks_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="must be at most 64 IP addresses or networks"):
        Networks().parse(text)


def test_booleans_accept_only_the_usual_spellings() -> None:
    for text, value in {
        "1": True,
        "true": True,
        "YES": True,
        "On": True,
        "0": False,
        "False": False,
        "no": False,
        "off": False,
    }.items():
        assert boolean(text) is value
    for text in ("2", ""):
        with pytest.raises(ValueError, match="true or false"):
            boolean(text)


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", "a,,b", "a.example:4000", "http://a", "*.a", "a..b", "a b", "[::1"),
        *("é", ",".join("a" * 65)),
    ],
)
def test_an_invalid_list_of_host_names_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="host names without ports"):
        HostNames().parse(text)


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("[::1]", "::1"),
        ("::1", "::1"),
        ("[127.0.0.1]", "127.0.0.1"),
        ("localhost", "localhost"),
        ("fe80::1%eth0", "fe80::1%eth0"),
        ("b\u00fccher.example", "b\u00fccher.example"),
    ],
)
def test_a_host_is_a_name_or_an_address_with_or_without_brackets(text: str, host: str) -> None:
    assert Host().parse(text) == host


@pytest.mark.parametrize(
    "text",
    [
        *("http://localhost", "127.0.0.1:4000", "localhost:80", "a b", "...", "a" * 70),
        *("a\udcffb", "[::1", "[::1]:4000", "[name]", "", "[]"),
    ],
)
def test_an_invalid_host_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="must be a host name or an IP address"):
        Host().parse(text)

"""Keys, scopes and prefixes: every rule of §0.2 about them."""

from __future__ import annotations

import hashlib
import hmac

import pytest

from topics.engine.access import ALL_SCOPES, ANYONE, Access, Principal, Scope

READ, WRITE, DELETE, ADMIN = Scope.READ, Scope.WRITE, Scope.DELETE, Scope.ADMIN


def key(text: str, secret: bytes = b"key") -> Principal:
    found = Access.parse(text).authenticate(secret)
    assert found is not None
    return found


# Entry syntax


@pytest.mark.parametrize(
    ("field", "scopes"),
    [
        *(("read", READ), ("r", READ), ("write", WRITE), ("w", WRITE), ("delete", DELETE)),
        *(("d", DELETE), ("admin", ADMIN), ("a", ADMIN), ("rw", READ | WRITE)),
        *(("read+write", READ | WRITE), ("rw+d", READ | WRITE | DELETE)),
        *(("r+write+d+admin", ALL_SCOPES), ("r+read", READ), ("", ALL_SCOPES)),
    ],
)
def test_scopes_are_words_letters_and_the_alias_joined_by_plus(field: str, scopes: Scope) -> None:
    assert key(f"key:{field}").scopes == scopes
    assert key(f"key:{field}").prefixes is None
    assert key(f"key:{field}:tenant42:").scopes == scopes


def test_prefixes_are_joined_by_a_bar_and_may_contain_colons() -> None:
    principal = key("key:read:tenant42:|shared.")
    assert principal.prefixes == ("tenant42:", "shared.")
    assert principal.covers("tenant42:jobs")
    assert principal.covers("tenant42:")
    assert principal.covers("shared.news")
    assert key("key::a>b").covers("a>b:all"), "a router"
    assert not principal.covers("tenant42")
    assert not principal.covers("tenant421:jobs")
    assert not principal.covers("shared")
    assert not principal.covers("Tenant42:jobs")
    assert not principal.covers("")


@pytest.mark.parametrize("text", ["key::", "key:", "key:r+w+d+a:"])
def test_an_empty_prefixes_field_means_any_name(text: str) -> None:
    assert key(text).scopes == ALL_SCOPES
    assert key(text).prefixes is None


def test_entries_are_separated_by_commas_and_surrounding_white_space_is_ignored() -> None:
    access = Access.parse(" one , two:r ,,\tthree\n,")
    assert [
        bool(access.authenticate(secret)) for secret in (b"one", b"two", b"three", b" one ", b"")
    ] == [True] * 3 + [False] * 2


HEX = hashlib.sha256(b"se:cret,").hexdigest()


@pytest.mark.parametrize("digits", [HEX, HEX.upper()])
def test_a_digest_represents_a_secret_that_may_contain_any_visible_character(
    digits: str,
) -> None:
    principal = key(f"other,sha256:{digits}:r:tenant42:|shared.", secret=b"se:cret,")
    assert (principal.scopes, principal.prefixes) == (READ, ("tenant42:", "shared."))
    assert key(f"sha256:{digits}", b"se:cret,").scopes == ALL_SCOPES
    assert Access.parse(f"sha256:{digits}").authenticate(f"sha256:{digits}".encode()) is None


# Malformed entries are rejected


@pytest.mark.parametrize(
    "text",
    [
        "sha256:",
        "sha256:read",
        f"sha256:{HEX[1:]}",
        f"sha256:{HEX}0",
        f"sha256:{HEX[1:]}g:read",
        f"sha256:{HEX} :read",
        f"sha256::{HEX}",
    ],
)
def test_a_malformed_digest_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="entry 1: 'sha256:' is not followed by exactly 64 hex"):
        Access.parse(text)


@pytest.mark.parametrize(
    "text",
    [
        *("key:fly", "key:READ", "key:read+", "key:+", "key:read++write", "key: read", "key:rwd"),
        *("key:r|w", "key:*"),
    ],
)
def test_a_malformed_scope_token_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="entry 1: a scope is not one of read, r, write"):
        Access.parse(text)


@pytest.mark.parametrize(
    "text",
    [
        *("key:r:|", "key:r:a|", "key:r:|a", "key:r:a||b", "key:r:.a", "key:r:a b"),
        *("key:r:a*", "key:r:é"),
    ],
)
def test_a_prefix_that_is_empty_or_can_never_match_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="entry 1: a name prefix"):
        Access.parse(text)


@pytest.mark.parametrize(
    "text", [":read", "::", ":", "ok,:r:x", "two words", "tab\tinside", "schlüssel", "nul\0"]
)
def test_a_key_that_a_header_cannot_carry_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match=r"entry [12]: the key must be"):
        Access.parse(text)


@pytest.mark.parametrize("duplicate", ["key:write", f"sha256:{hashlib.sha256(b'key').hexdigest()}"])
def test_a_duplicate_key_is_rejected(duplicate: str) -> None:
    with pytest.raises(ValueError, match="twice"):
        Access.parse(f"key:read,other,{duplicate}")


def test_a_list_of_only_commas_is_rejected_instead_of_disabling_authentication() -> None:
    with pytest.raises(ValueError, match="only commas, no key"):
        Access.parse(" , ,")


def test_an_error_names_the_position_of_the_entry_and_shows_none_of_its_text() -> None:
    with pytest.raises(ValueError, match="entry 2") as refused:
        Access.parse("fine,se:cret:oops")
    assert not any(part in str(refused.value) for part in ("se:", "cret", "oops", "fine"))


# Authentication


def test_only_digests_of_keys_are_kept() -> None:
    access = Access.parse("hunter2:read:tenant42:")
    assert access.principals[0].digest == hashlib.sha256(b"hunter2").digest()
    held = [getattr(access.principals[0], name) for name in Principal.__slots__]
    assert "hunter2" not in repr(held)


def test_the_text_of_the_keys_is_overwritten_after_parsing_even_if_it_is_malformed() -> None:
    for text in (b"key:read", b"key:fly"):
        buffer = bytearray(text)
        try:
            Access.parse(buffer)
        except ValueError:
            assert text.endswith(b"fly")
        assert buffer == bytes(len(text))


def test_a_token_is_compared_with_every_key_even_after_a_match(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    access = Access.parse("first,second,third")
    compared: list[bytes] = []

    def counting(left: bytes, right: bytes) -> bool:
        compared.append(right)
        return left == right

    monkeypatch.setattr(hmac, "compare_digest", counting)
    for token in (b"first", b"second", b"third", b"unknown"):
        compared.clear()
        access.authenticate(token)
        assert compared == [principal.digest for principal in access.principals]


def test_without_keys_authentication_is_off_and_every_token_is_accepted() -> None:
    for access in (Access(), Access.parse(""), Access.parse(" \n")):
        assert not access.enabled
        assert access.authenticate(b"any token") is ANYONE
    assert ANYONE.allows(ALL_SCOPES)
    assert ANYONE.covers("any")


# Reloads of the keys


def test_a_key_is_found_after_a_reload_even_if_its_rights_have_changed() -> None:
    before = Access.parse("kept:r:a|b,changed:r,removed")
    after = Access.parse("changed:r:a,kept:read:b|a,new")
    kept, changed, removed = (after.current(one) for one in before.principals)
    assert removed is None
    assert kept is after.principals[1]
    assert kept.has_rights_of(before.principals[0])
    assert changed is after.principals[0]
    assert not changed.has_rights_of(before.principals[1])
    assert Access().current(ANYONE) is ANYONE


@pytest.mark.parametrize("other", ["k:w", "k:r+w", "k", "k:r:a", "k:r:b", "k:r:a|b|c", "k::a|b"])
def test_keys_with_different_scopes_or_prefixes_have_different_rights(other: str) -> None:
    assert not key("key:r:a|b").has_rights_of(key(other, b"k"))
    assert not key(other, b"k").has_rights_of(key("key:r:a|b"))


def test_the_alias_is_derived_from_the_digest_of_the_digest() -> None:
    digest = hashlib.sha256(b"hunter2").digest()
    assert key("hunter2:r", b"hunter2").alias == hashlib.sha256(digest).hexdigest()[:8]
    assert ANYONE.alias == ""


# Authorization


def test_a_key_is_allowed_exactly_its_scopes() -> None:
    for mask in range(1, 16):
        principal = Principal(b"", Scope(mask))
        for requested in range(1, 16):
            assert principal.allows(Scope(requested)) == (requested & mask == requested)

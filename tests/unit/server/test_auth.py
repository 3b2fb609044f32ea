"""API keys: the grammar of the setting, and the credentials of a request."""

from __future__ import annotations

import gc
import hashlib

import pytest

from headrace.core.errors import ConfigError
from headrace.core.settings import Settings
from headrace.server.auth import ApiKey, KeyRing, bearer_token, query_token, redacted

EVERYTHING = {"read", "write", "delete", "admin"}


def only_key(text: str, token: bytes = b"k") -> ApiKey:
    ring = KeyRing.parse(text)
    assert len(ring) == 1
    key = ring.find(token)
    assert key is not None
    return key


@pytest.mark.parametrize(
    ("text", "scopes"),
    [
        ("k", EVERYTHING),
        (" k ", EVERYTHING),
        ("k:", EVERYTHING),
        ("k: ", EVERYTHING),
        ("k::p", EVERYTHING),
        ("k:read", {"read"}),
        ("k:R", {"read"}),
        ("k:w", {"write"}),
        ("k:WRITE", {"write"}),
        ("k:del", {"delete"}),
        ("k:d", {"delete"}),
        ("k:delete", {"delete"}),
        ("k:a", {"admin"}),
        ("k:admin", {"admin"}),
        ("k:rw", {"read", "write"}),
        ("k: r + Admin ", {"read", "admin"}),
        ("k:rw+d+a", EVERYTHING),
        ("k:r+read", {"read"}),
    ],
)
def test_scopes_and_their_short_names(text: str, scopes: set[str]) -> None:
    key = only_key(text)
    assert key.scopes == scopes
    for scope in EVERYTHING:
        assert key.allows_scope(scope) == (scope in scopes)


@pytest.mark.parametrize(
    ("text", "allowed", "refused"),
    [
        ("k", ["anything", ""], []),
        ("k:r:", ["anything"], []),
        ("k::orders", ["orders", "orders:1", "ordersx"], ["order", "xorders", "Orders"]),
        ("k:r:a:b|c:", ["a:b", "a:bc", "c:", "c:d"], ["a", "a:", "c", "b"]),
        ("k:r:a||b", ["a", "b"], ["c", ""]),
        ("k:r: a | b ", ["a1", "b1"], ["c"]),
        ("k:r:é", ["é1"], ["e"]),
    ],
)
def test_prefixes(text: str, allowed: list[str], refused: list[str]) -> None:
    key = only_key(text)
    assert key.has_prefixes == bool(refused)
    assert all(key.allows_name(name) for name in allowed)
    assert not any(key.allows_name(name) for name in refused)


def test_a_prefix_is_of_bytes_and_may_end_inside_a_character() -> None:
    # As the environment gives the bytes c3, the first half of an é.
    key = only_key("k:r:\udcc3")
    assert key.allows_name("é")
    assert not key.allows_name("a")


@pytest.mark.parametrize("text", ["", " ", ",", " , ,", "\t,\n"])
def test_no_entry_is_no_auth(text: str) -> None:
    assert not KeyRing.parse(text)


def test_empty_entries_are_skipped_between_others() -> None:
    ring = KeyRing.parse(" , a:r, ,b:w,")
    assert len(ring) == 2
    one, two = ring.find(b"a"), ring.find(b"b")
    assert one is not None and one.scopes == {"read"}
    assert two is not None and two.scopes == {"write"}


@pytest.mark.parametrize(
    "text",
    [
        "sesame:nonsense",
        "sesame:read+nonsense",
        "sesame:read+",
        "sesame:+",
        "sesame:read write",
        ":read",
        " :read:sesame",
        "::sesame",
        "sesame:r:|",
        "sesame,sesame:r",
        "ok,sesame:open",
    ],
)
def test_a_wrong_entry_refuses_to_start_and_is_not_repeated(text: str) -> None:
    with pytest.raises(ConfigError, match="HEADRACE_API_KEYS: entry") as caught:
        KeyRing.parse(text)
    assert "sesame" not in f"{caught.value!r} {caught.value} {caught.value.detail}"
    assert "nonsense" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_the_entry_at_fault_is_named_by_its_place() -> None:
    with pytest.raises(ConfigError, match="entry 3"):
        KeyRing.parse("a,,b:x")


def test_only_the_exact_token_is_found() -> None:
    ring = KeyRing.parse("abc:r,abd:w")
    for wrong in (b"", b"ab", b"abcd", b"ABC", b"abc ", b"abc:r", b"abe"):
        assert ring.find(wrong) is None
    assert ring.find(b"abc") is not ring.find(b"abd")


def test_a_key_is_kept_as_its_digest_only() -> None:
    secret = "sesame-of-the-test"
    ring = KeyRing.parse(f"{secret}:r:p")
    held = [ring, *gc.get_referents(ring)]
    for _ in range(3):
        held += [part for one in held for part in gc.get_referents(one)]
    assert not any(isinstance(one, str | bytes) and secret in str(one) for one in held)
    key = ring.find(secret.encode())
    assert key is not None and key.digest == hashlib.sha256(secret.encode()).digest()


def test_every_key_is_compared_whichever_matches(monkeypatch: pytest.MonkeyPatch) -> None:
    import headrace.server.auth as module

    compared: list[bytes] = []
    real = module.compare_digest

    def counting(left: bytes, right: bytes) -> bool:
        compared.append(left)
        return real(left, right)

    monkeypatch.setattr(module, "compare_digest", counting)
    ring = KeyRing.parse("a,b,c")
    for token in (b"a", b"b", b"c", b"nobody"):
        compared.clear()
        ring.find(token)
        assert len(set(compared)) == 3


@pytest.mark.parametrize(
    ("header", "token"),
    [
        (b"Bearer k", b"k"),
        (b"Bearer   k\t", b"k"),
        (b"Bearer ", b""),
        (b"Bearer", None),
        (b"bearer k", None),
        (b"BEARER k", None),
        (b" Bearer k", None),
        (b"Basic azpr", None),
        (b"", None),
        (b"Bearer a, Bearer b", b"a, Bearer b"),
    ],
)
def test_the_authorization_header(header: bytes, token: bytes | None) -> None:
    assert bearer_token(header) == token


@pytest.mark.parametrize(
    ("query", "token"),
    [
        ("token=k", b"k"),
        ("a=1&token=k&b=2", b"k"),
        ("token=k&token=other", b"k"),
        ("token=&token=k", b""),
        ("token", b""),
        ("token=a%2Bb+c%25", b"a+b c%"),
        ("%74oken=k", b"k"),
        ("Token=k", None),
        ("xtoken=k", None),
        ("", None),
        ("token=%C3%A9", "é".encode()),
        ("token=%zz", b"%zz"),
        ("token=a=b", b"a=b"),
    ],
)
def test_the_token_of_a_query(query: str, token: bytes | None) -> None:
    assert query_token(query) == token


@pytest.mark.parametrize("query", ["", "a=1", "a=1&b=2&", "tokens=1", "x"])
def test_a_query_without_a_token_is_logged_as_it_is(query: str) -> None:
    assert redacted(query) == query


@pytest.mark.parametrize(
    "query", ["token=hush", "a=1&%74%6Fken=hush&token=hush", "token=a&token=hush"]
)
def test_a_token_is_not_logged(query: str) -> None:
    assert "hush" not in redacted(query)
    assert "(secret)" in redacted(query)


def test_what_keys_may_hold() -> None:
    """Native §1.9d: one entry, and all of them; neither refusal repeats what is in an entry."""
    settings = Settings(api_key_bytes_max=1_024, api_keys_bytes_max=2_000)
    long = "s3cret:read:" + "|".join(f"prefix-{n}" for n in range(200))
    with pytest.raises(ConfigError, match=r"entry 2 .*HEADRACE_API_KEY_BYTES_MAX") as refused:
        KeyRing.parse(f"k,{long[:1_100]}", settings)
    assert "prefix-" not in str(refused.value)
    with pytest.raises(ConfigError, match="HEADRACE_API_KEYS_BYTES_MAX"):
        KeyRing.parse(",".join(f"key-{n}" for n in range(300)), settings)
    assert KeyRing.parse("a,b:read:orders:|audit.").held_bytes == 2 * 32 + len("orders:audit.")

"""What the fuzz of the HTTP layer is made of: a server without sockets, damage, odd JSON.

The server is whole: every route, behind access control, on an engine whose disk is simulated.  A
request goes to `App.handle`, or as bytes to the protocol of a connection.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from typing import Any

from headrace.cli.compose import compose
from headrace.core.clock import ManualClock, SeededRandom
from headrace.core.errors import HeadraceError
from headrace.core.runtime import StepRuntime
from headrace.core.settings import Settings
from headrace.engine.engine import Engine
from headrace.server.auth import KeyRing
from headrace.testing.simdisk import SimDisk
from tests.support.exchanges import ListExchange

JSON_TYPE = {b"content-type": b"application/json"}
LOCAL = {b"host": b"localhost"}
STEPS_MAX = 10_000
MUTATIONS_MAX = 4
SLICE_MAX = 24

NUMBERS = [b"0", b"-1", b"1.5", b"1e400", b"255", b"256", b"1000000"] + [
    b"%d" % (sign * (1 << bits) + more)
    for bits in (31, 32, 53, 63, 64, 128)
    for more in (-1, 0, 1)
    for sign in (1, -1)
]
WORDS = [
    *NUMBERS,
    *b"null true false {} [] \"\" {\"a\":1} [[[[]]]] , : \" \\ \\u0000 \\ud800 \\\" NaN".split(),
    b"\x00", b"\xff", b"\xed\xa0\x80", b"\xc3\xa9", b"\xf0\x9f\x98\x80", b"\xef\xbb\xbf",
    b"\r\n", b" ", b"\t", b"%", b"%00", b"%ff", b"&", b"=", b"+", b"*", b"$",
    b"a" * 300, b"[" * 300, b"[" * 3_000,
]  # fmt: skip


class Damage:
    """Bytes like those of a corpus, damaged; one in eight is left as it is."""

    def __init__(self, seed: int, corpus: Sequence[bytes], words: Sequence[bytes] = ()) -> None:
        self.draw = random.Random(seed)
        self._corpus = corpus
        self._words = [*WORDS, *words]

    def next(self) -> bytes:
        return self.of(self.draw.choice(self._corpus))

    def of(self, base: bytes) -> bytes:
        draw = self.draw
        if draw.random() < 0.125:
            return base
        data = bytearray(base)
        for _ in range(draw.randint(1, MUTATIONS_MAX)):
            self._once(data)
        return bytes(data)

    def _once(self, data: bytearray) -> None:
        draw = self.draw
        at = draw.randrange(len(data) + 1)
        end = min(len(data), at + draw.randint(1, SLICE_MAX))
        kind = draw.randrange(7)
        if kind == 0 and at < len(data):
            data[at] ^= 1 << draw.randrange(8)
        elif kind == 1:
            data[at:at] = bytes([draw.randrange(256)])
        elif kind == 2:
            del data[at:end]
        elif kind == 3:
            data[at:at] = data[at:end] * draw.randint(1, 3)
        elif kind == 4:
            data[at:end] = draw.choice(self._words)
        elif kind == 5:
            data[at:at] = draw.choice(self._words)
        else:
            other = draw.choice(self._corpus)
            cut = draw.randrange(len(other) + 1)
            data[at:] = other[cut:]


class OddJson:
    """JSON that is valid and spelled as nobody would."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)

    def space(self) -> str:
        return self.draw.choice(["", "", "", " ", "\n", "\t\r "])

    def text(self) -> str:
        pieces = [
            "a",
            "é",
            "😀",
            "\\u00e9",
            "\\ud83d\\ude00",
            "\\/",
            "\\\\",
            '\\"',
            "\x7f",
            "\\u0000",
        ]
        return '"' + "".join(self.draw.choices(pieces, k=self.draw.randrange(5))) + '"'

    def number(self) -> str:
        return self.draw.choice(
            ["0", "-0", "-0.0", "1E5", "1e-7", "1.10", "9" * 40, "0.1e+1", "123456789.987654321"]
        )

    def word(self) -> str:
        return self.draw.choice(["null", "true", "false"])

    def value(self, depth: int = 4) -> str:
        draw = self.draw
        kind = draw.randrange(6) if depth else draw.randrange(3)
        if kind < 3:
            return [self.number, self.text, self.word][kind]()
        if kind == 3:
            items = [self._spaced(self.value(depth - 1)) for _ in range(draw.randrange(4))]
            return f"[{','.join(items) or self.space()}]"
        return self.object(depth)

    def object(self, depth: int = 2) -> str:
        # Keys repeat: what is kept as it came keeps them too.
        fields = [
            f"{self._spaced(self.text())}:{self._spaced(self.value(depth - 1))}"
            for _ in range(self.draw.randrange(4))
        ]
        return "{" + (",".join(fields) or self.space()) + "}"

    def _spaced(self, value: str) -> str:
        return self.space() + value + self.space()

    def record(self) -> str:
        fields = [f'"data":{self._spaced(self.value())}']
        if self.draw.random() < 0.3:
            fields.append(f'"meta":{self._spaced(self.draw.choice([self.object(), "null"]))}')
        if self.draw.random() < 0.3:
            fields.append(f'"tag":{self.text()}')
        if self.draw.random() < 0.3:
            fields.append(f'"node":{self.text()}')
        if self.draw.random() < 0.2:
            fields.append(f'"unknown":{self.value()}')
        self.draw.shuffle(fields)
        return "{" + ",".join(map(self._spaced, fields)) + "}"

    def append(self) -> bytes:
        records = ",".join(self._spaced(self.record()) for _ in range(self.draw.randint(1, 3)))
        fields = [f'"records":{self.space()}[{records}]']
        if self.draw.random() < 0.2:
            fields.append(f'"more":{self.value()}')
        return (self.space() + "{" + ",".join(fields) + "}" + self.space()).encode()


# A second reader of JSON, which knows where in the text each value is.

_PARSER = json.JSONDecoder(parse_int=str, parse_float=str)


def _skip(text: str, at: int) -> int:
    while text[at] in " \t\n\r":
        at += 1
    return at


def _walk(text: str, at: int, end: str, item: Callable[[str, int], int]) -> None:
    """Calls `item` at each item of the array or object that begins at `at`."""
    at = _skip(text, at + 1)
    while text[at] != end:
        at = _skip(text, item(text, at))
        if text[at] == ",":
            at = _skip(text, at + 1)


def fields_of(text: str) -> dict[str, str]:
    """The fields of an object, each as it is spelled; of a repeated one the last."""
    found: dict[str, str] = {}

    def field(text: str, at: int) -> int:
        key, at = _PARSER.raw_decode(text, at)
        at = _skip(text, _skip(text, at) + 1)
        _, end = _PARSER.raw_decode(text, at)
        found[key] = text[at:end]
        return end

    _walk(text, _skip(text, 0), "}", field)
    return found


def items_of(text: str) -> list[str]:
    """The items of an array, each as it is spelled."""
    found: list[str] = []

    def item(text: str, at: int) -> int:
        _, end = _PARSER.raw_decode(text, at)
        found.append(text[at:end])
        return end

    _walk(text, _skip(text, 0), "]", item)
    return found


class World:
    """A server without sockets."""

    def __init__(self, **settings: Any) -> None:
        self.clock = ManualClock()
        self.runtime = StepRuntime(self.clock)
        self.settings = Settings(
            **{
                "wait_ms_max": 50,
                "wal_file_bytes": 1 << 20,
                "wal_batch_bytes_max": 1 << 18,
                **settings,
            }
        )
        self.engine = Engine(SimDisk(), self.runtime, self.settings, random=SeededRandom(1))
        self.engine.recover()
        self.server = compose(self.settings, self.engine, KeyRing.parse(self.settings.api_keys))
        self.server.app.go_live()
        self.ask("POST", "/v0/topics/t", b'{"records":[{"data":1,"tag":"x"},{"data":2}]}')
        self.ask("POST", "/v0/topics/q", b'{"records":[{"data":1}],"config":{"type":"queue"}}')

    def __enter__(self) -> World:
        return self

    def __exit__(self, *_: object) -> None:
        self.engine.abandon()

    def ask(
        self,
        method: str,
        target: str,
        body: bytes = b"",
        headers: dict[bytes, bytes] | None = None,
        upgrade: bytes = b"",
    ) -> ListExchange:
        """The answer to a request; nothing but a refusal of ours, or a success, is one."""
        path, _, query = target.partition("?")
        sent = {**LOCAL, **(JSON_TYPE if headers is None else headers)}
        now_ns = self.clock.monotonic_ns()
        exchange = ListExchange(self.clock, method, path, query, sent, now_ns)
        exchange.body = body
        exchange.upgraded = upgrade
        self.server.app.handle(exchange)
        steps = 0
        while self.runtime.step():
            steps += 1
            assert steps < STEPS_MAX, f"no end: {method} {target} {body!r}"
        if not exchange.answered:  # a long poll
            self.clock.advance(self.settings.wait_ms_max + 1)
            self.runtime.run()
        told = f"{method} {target} {sent} {body!r}: {exchange.status} {exchange.reply!r}"
        assert exchange.answered, told
        assert 100 <= exchange.status < 500, told
        if exchange.status >= 400:
            code, message = _refusal(exchange)
            assert code != "internal" and message, told
        return exchange


def _refusal(exchange: ListExchange) -> tuple[str, str]:
    """The code and the message of a refusal, in the form of its dialect."""
    route = exchange.route
    if route is not None and route.dialect.name == "s2":
        if exchange.status in (404, 405) and not exchange.reply:
            return "not_found", "nothing, as its protocol wants it"
        error = json.loads(exchange.reply)
    else:
        error = json.loads(exchange.reply)["error"]
    return error["code"], error["message"]


def only_refusals(function: Callable[[], object]) -> bool:
    """Whether it went well; an error of ours is a refusal, and any other is raised."""
    try:
        function()
    except HeadraceError:
        return False
    return True

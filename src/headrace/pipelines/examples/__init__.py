"""Five pipelines that are ready to run, and events for them.

`headrace pipelines example NAME` appends the events and declares the pipeline; a worker does the
rest.  The declarations are the TOML files beside this one, to be copied and changed.
"""

from __future__ import annotations

import tomllib
from datetime import UTC, datetime, timedelta
from importlib import resources
from typing import Any, Final

from headrace.api.records import Draft

NAMES: Final = ("per-minute", "sessions", "join", "dedup", "dead-letters")
START: Final = datetime(2026, 1, 31, 12, tzinfo=UTC)


def declaration(name: str) -> dict[str, Any]:
    """The declaration of an example, as it is put.

    >>> declaration("dedup")["dest"]
    {'topic': 'example.readings.once'}
    """
    return tomllib.loads(text(name))


def text(name: str) -> str:
    """The same as its file has it."""
    return resources.files(__name__).joinpath(f"{name}.toml").read_text(encoding="utf-8")


def events(name: str) -> dict[str, list[Draft]]:
    """What to append, by topic: the same each time.

    >>> {topic: len(drafts) for topic, drafts in events("join").items()}
    {'example.orders': 40, 'example.payments': 30}
    """
    return {
        "per-minute": lambda: {"example.clicks": clicks()},
        "sessions": lambda: {"example.visits": clicks()},
        "join": lambda: {"example.orders": orders(), "example.payments": payments()},
        "dedup": lambda: {"example.readings": readings()},
        "dead-letters": lambda: {"example.jobs.dead": dead_letters()},
    }[name]()


def at(seconds: int) -> str:
    """A time of the examples.

    >>> at(90)
    '2026-01-31T12:01:30Z'
    """
    return (START + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


def clicks() -> list[Draft]:
    """A hundred clicks of four users in a quarter of an hour, and one an hour later.

    Each user pauses now and then; every seventh click is reported ten seconds late.
    """
    found = []
    for n in range(100):
        late = 10 if n % 7 == 0 else 0
        pause = 400 * (n // 40)
        found.append({"user": f"user-{n % 4}", "page": f"/{n % 9}", "at": at(8 * n + pause - late)})
    found.append({"user": "user-0", "page": "/", "at": at(8 * 100 + 4_600)})
    return [Draft(click) for click in found]


def orders() -> list[Draft]:
    """An order every half a minute."""
    return [
        Draft({"id": n, "total": 10 + n, "at": at(30 * n)}, tag=f"customer-{n % 5}")
        for n in range(40)
    ]


def payments() -> list[Draft]:
    """Three of four orders are paid, each fifth of those too late."""
    found = [n for n in range(40) if n % 4 != 3]
    return [
        Draft({"order": n, "amount": 10 + n, "at": at(30 * n + (3_000 if n % 5 == 0 else 45))})
        for n in found
    ]


def readings() -> list[Draft]:
    """Readings of three sensors, of which every third is sent twice."""
    found = []
    for n in range(60):
        reading = Draft({"id": f"r{n}", "sensor": f"s{n % 3}", "value": n * 0.5, "at": at(n)})
        found += [reading, reading] if n % 3 == 0 else [reading]
    return found


def dead_letters() -> list[Draft]:
    """Jobs as a queue gives them up: `meta` says whose they were."""
    return [
        Draft(
            {"job": n},
            meta={
                "$dead_letter_from": "mails" if n % 3 else "invoices",
                "$dead_letter_deliveries": str(3 + n % 2),
                "$dead_letter_src_seq": str(n + 1),
            },
        )
        for n in range(20)
    ]

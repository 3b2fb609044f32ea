"""A producer's name and epoch are read once, and mean what they would if they were read again."""

from __future__ import annotations

import pytest

from headrace.core.errors import InvalidRequest
from headrace.engine.appending.producers import ProducerClaim
from headrace.wire import producer_headers
from headrace.wire.durable_streams.request_headers import producer_of, producer_seq
from headrace.wire.exchange import Repeated
from headrace.wire.producer_headers import ProducerHeaders


def sent(id: bytes = b"p", epoch: bytes = b"7", number: bytes = b"0") -> dict[bytes, bytes]:
    return {b"producer-id": id, b"producer-epoch": epoch, b"producer-seq": number}


def test_each_request_has_its_own_number() -> None:
    headers = ProducerHeaders(producer_of, producer_seq)
    for number in range(3):
        for id in ("p", "q"):
            found = headers.claim_of(sent(id.encode(), number=b"%d" % number))
            assert found == ProducerClaim(id, 7, number)
            assert type(found) is ProducerClaim
    assert headers.claim_of({}) is None


@pytest.mark.parametrize(
    "wrong",
    [
        sent(number=b""), sent(number=b"-1"), sent(number=b"9" * 16), sent(number=b"1 "),
        sent(number=Repeated(b"1, 2")), sent(id=Repeated(b"p")), sent(epoch=Repeated(b"7, 7")),
        {b"producer-id": b"p", b"producer-epoch": b"7"}, {b"producer-seq": b"1"},
    ],
)  # fmt: skip
def test_what_is_wrong_is_refused_however_well_its_producer_is_known(
    wrong: dict[bytes, bytes],
) -> None:
    headers = ProducerHeaders(producer_of, producer_seq)
    headers.claim_of(sent())
    with pytest.raises(InvalidRequest) as found:
        headers.claim_of(wrong)
    with pytest.raises(InvalidRequest) as wanted:
        producer_of(wrong)
    assert str(found.value) == str(wanted.value)


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer_headers, "PRODUCERS_MAX", 2)
    headers = ProducerHeaders(producer_of, producer_seq)
    for id in (b"a", b"b" * 1_000, b"c", b"d"):
        headers.claim_of(sent(id))
    assert list(headers._known) == [(b"c", b"7"), (b"d", b"7")]

"""What the native API has beyond the older contract, in JSON (native §12)."""

from __future__ import annotations

import pytest

from tests.support.seqs import json_seqs

# Epochs


def test_a_stale_cursor_within_the_new_head_is_noticed(speak, topic) -> None:
    """§12, E7: with its epoch, a cursor of a former topic gets `recreated`."""
    speak.append(topic, 1, 2)
    epoch = speak.diff(topic)["epoch"]
    assert speak.state(topic)["epoch"] == epoch
    speak.ok("DELETE", f"/v0/topics/{topic}")
    speak.append(topic, "a", "b", "c")
    silent = speak.diff(topic, 2)
    assert (silent["tombstone"], json_seqs(silent)) == (None, [3])
    page = speak.diff(topic, 2, epoch=epoch)
    assert page["tombstone"]["reason"] == "recreated"
    assert (page["tombstone"]["gap_from"], page["tombstone"]["gap_to"]) == (1, 3)
    assert json_seqs(page) == [1, 2, 3]
    assert page["epoch"] != epoch
    assert speak.diff(topic, 2, epoch=page["epoch"])["tombstone"] is None


def test_a_put_says_the_epoch(speak, topic) -> None:
    """§12: in state, diff and watch answers; ours also where a topic is made."""
    created = speak.ok("PUT", f"/v0/topics/{topic}")
    assert created["epoch"] == speak.state(topic)["epoch"]


# from_ts and last


def test_the_last_so_many(speak, topic) -> None:
    """§12: `last`, as an alternative to `from_seq`."""
    speak.append(topic, *range(10))

    def last(n: int):
        return speak.ok("POST", f"/v0/topics/{topic}/diff", {"last": n})

    assert json_seqs(last(3)) == [8, 9, 10]
    assert json_seqs(last(1)) == [10]
    nothing = last(0)
    assert (json_seqs(nothing), nothing["next_from_seq"], nothing["caught_up"]) == ([], 10, True)
    assert json_seqs(last(99)) == list(range(1, 11))
    assert last(99)["tombstone"] is None


def test_the_last_of_a_topic_that_lost_some(speak, topic) -> None:
    """§12: records that are gone are not counted, and a shorter tail is no loss."""
    speak.ok("PUT", f"/v0/topics/{topic}", {"cap_records": 3})
    speak.append(topic, *range(6))
    found = speak.ok("POST", f"/v0/topics/{topic}/diff", {"last": 2})
    assert (json_seqs(found), found["tombstone"]) == ([5, 6], None)


def wait_past(speak, clock: str, stamp: int) -> None:
    """Until the server's clock has moved on."""
    speak.append(clock, 0)
    while speak.state(clock)["last_write_ts"] <= stamp:
        speak.append(clock, 0)


def test_from_a_time(speak, topic) -> None:
    """§12: `from_ts`: the first record of that time or later."""
    for n in range(3):
        speak.append(topic, n, n)
        wait_past(speak, f"{topic}-clock", speak.state(topic)["last_write_ts"])
    stamps = {record["$seq"]: record["$ts"] for record in speak.diff(topic)["records"]}

    def since(ts: int):
        return speak.ok("POST", f"/v0/topics/{topic}/diff", {"from_ts": ts})

    assert json_seqs(since(0)) == [1, 2, 3, 4, 5, 6]
    assert json_seqs(since(stamps[3])) == [3, 4, 5, 6]
    assert json_seqs(since(stamps[4] + 1)) == [5, 6]
    after = since(stamps[6] + 100_000)
    assert (json_seqs(after), after["next_from_seq"], after["caught_up"]) == ([], 6, True)


# expected_head_seq


def test_an_append_on_condition(speak, topic) -> None:
    """§12: 409 `head_mismatch` with detail.head_seq; nothing is appended."""
    assert speak.append(topic, 1, expected_head_seq=0)["created"] is True
    assert speak.append(topic, 2, expected_head_seq=1)["first_seq"] == 2
    for wrong in (0, 1, 3):
        body = {"records": [{"data": 3}], "expected_head_seq": wrong}
        detail = speak.refused(409, "head_mismatch", "POST", f"/v0/topics/{topic}", body)
        assert detail["head_seq"] == 2
    assert speak.state(topic)["head_seq"] == 2


def test_a_wrong_condition_creates_nothing(speak, topic) -> None:
    """§12: a topic that is not there has head 0."""
    body = {"records": [{"data": 3}], "expected_head_seq": 5}
    detail = speak.refused(409, "head_mismatch", "POST", f"/v0/topics/{topic}", body)
    assert detail["head_seq"] == 0
    speak.refused(404, "topic_not_found", "GET", f"/v0/topics/{topic}")


def test_a_repeat_is_answered_before_the_condition(speak, topic) -> None:
    """§3.5, §12: the key is looked up first, so that a retry of a conditional append is safe."""
    body = {"expected_head_seq": 0, "idempotency_key": "k"}
    assert speak.append(topic, 1, **body)["deduped"] is False
    assert speak.append(topic, 1, **body)["deduped"] is True


# Producers


def produce(speak, topic: str, epoch: object, seq: object, *, who: str = "p1"):
    return speak(
        "POST",
        f"/v0/topics/{topic}",
        {"records": [{"data": [epoch, seq]}]},
        {"producer-id": who, "producer-epoch": str(epoch), "producer-seq": str(seq)},
    )


def test_a_producer_counts(speak, topic) -> None:
    """§12: 0, 1, 2, … within an epoch; a repeat is stored once."""
    assert produce(speak, topic, 0, 0).status == 201
    assert produce(speak, topic, 0, 1).json["first_seq"] == 2
    for _ in range(2):
        again = produce(speak, topic, 0, 1)
        assert (again.status, again.json["deduped"], again.json["first_seq"]) == (200, True, 2)
    assert speak.state(topic)["head_seq"] == 2


def test_a_producers_repeat_has_its_own_seqs_or_none(speak, topic) -> None:
    """§12g: never those of another append."""
    count = 18  # of which the newest 16 are remembered
    first = [produce(speak, topic, 0, number).json for number in range(count)]
    assert "producer_seq" not in first[0]
    given = ("first_seq", "last_seq", "seqs", "count", "head_seq")
    for number in (count - 1, 2, 9, 1, 0):
        again = produce(speak, topic, 0, number)
        assert (again.status, again.json["deduped"]) == (200, True)
        assert again.json["producer_seq"] == count - 1
        found = {name: again.json[name] for name in given if name in again.json}
        due = {name: first[number][name] for name in given}
        assert found == (due if number > 1 else {"head_seq": count})


def test_a_producer_skips_a_number(speak, topic) -> None:
    """§12: 409 with what was expected; also the very first."""
    first = produce(speak, topic, 0, 3)
    assert (first.status, first.error["code"]) == (409, "producer_gap")
    assert (first.error["detail"]["expected"], first.error["detail"]["received"]) == (0, 3)
    produce(speak, topic, 0, 0)
    second = produce(speak, topic, 0, 2)
    assert (second.status, second.error["detail"]["expected"]) == (409, 1)


def test_a_producer_is_fenced(speak, topic) -> None:
    """§12: an older epoch is 403; a newer one starts at 0, else 400."""
    produce(speak, topic, 1, 0)
    old = produce(speak, topic, 0, 1)
    assert (old.status, old.error["code"]) == (403, "producer_fenced")
    late = produce(speak, topic, 2, 5)
    assert (late.status, late.error["code"]) == (400, "invalid_request")
    assert produce(speak, topic, 2, 0).json["deduped"] is False
    assert produce(speak, topic, 1, 1).status == 403


def test_producers_do_not_know_each_other(speak, topic) -> None:
    """§12: state is per topic and producer."""
    produce(speak, topic, 5, 0)
    assert produce(speak, topic, 0, 0, who="p2").json["deduped"] is False
    assert produce(speak, f"{topic}-2", 0, 0).status == 201


@pytest.mark.parametrize("value", ["1abc", "1e3", "-1", "", "9007199254740992", "1 2"])
@pytest.mark.parametrize("field", ["producer-epoch", "producer-seq"])
def test_numbers_of_producers_are_strict(speak, topic, field, value) -> None:
    """§12: digits only, at most 2^53 - 1, else 400."""
    headers = {"producer-id": "p", "producer-epoch": "0", "producer-seq": "0", field: value}
    reply = speak("POST", f"/v0/topics/{topic}", {"records": [{"data": 1}]}, headers)
    assert (reply.status, reply.error["code"]) == (400, "invalid_request")


@pytest.mark.parametrize("missing", ["producer-id", "producer-epoch", "producer-seq"])
def test_all_three_or_none(speak, topic, missing) -> None:
    """§12: else 400; an empty id as well."""
    headers = {"producer-id": "p", "producer-epoch": "0", "producer-seq": "0"}
    body = {"records": [{"data": 1}]}
    without = {k: v for k, v in headers.items() if k != missing}
    reply = speak("POST", f"/v0/topics/{topic}", body, without)
    assert (reply.status, reply.error["code"]) == (400, "invalid_request")
    reply = speak("POST", f"/v0/topics/{topic}", body, {**headers, "producer-id": ""})
    assert reply.status == 400


def test_a_refused_append_does_not_advance_a_producer(speak, topic) -> None:
    """§12."""
    headers = {"producer-id": "p", "producer-epoch": "0", "producer-seq": "0"}
    reply = speak("POST", f"/v0/topics/{topic}", {"records": []}, headers)
    assert reply.status == 400
    reply = speak("POST", f"/v0/topics/{topic}", {"records": [{"data": 1}]}, headers)
    assert (reply.status, reply.json["deduped"]) == (201, False)

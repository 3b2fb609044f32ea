"""The read cache: bounded, least recently used first, safe from several threads."""

from __future__ import annotations

from threading import Thread

from headrace.storage.files.block_cache import BlockCache


def test_a_block_that_was_put_is_found_and_counted() -> None:
    cache = BlockCache(100)
    cache.put(1, 3, [b"aaa", b"bb"])
    assert cache.get(1, 2, 6) == [None, b"aaa", b"bb", None]
    assert (cache.hits, cache.misses, cache.bytes, len(cache)) == (2, 2, 5, 2)
    assert cache.get(2, 3, 4) == [None]


def test_the_least_recently_used_goes_first_and_the_bound_holds() -> None:
    cache = BlockCache(30)
    for number in range(3):
        cache.put(1, number, [bytes(10)])
    cache.get(1, 0, 1)  # makes block 1 the oldest
    cache.put(1, 3, [bytes(10)])
    present = [block is not None for block in cache.get(1, 0, 4)]
    assert present == [True, False, True, True]
    assert cache.bytes == 30


def test_putting_a_block_again_counts_its_bytes_once() -> None:
    cache = BlockCache(100)
    cache.put(1, 0, [bytes(10)])
    cache.put(1, 0, [bytes(10)])
    assert (cache.bytes, len(cache)) == (10, 1)


def test_a_block_larger_than_the_cache_is_not_kept() -> None:
    cache = BlockCache(9)
    cache.put(1, 0, [bytes(10)])
    assert (cache.bytes, len(cache)) == (0, 0)


def test_dropping_a_file_leaves_the_others() -> None:
    cache = BlockCache(100)
    cache.put(1, 0, [bytes(10)] * 3)
    cache.put(2, 0, [bytes(10)])
    cache.drop(1, 3)
    assert cache.get(1, 0, 3) == [None] * 3
    assert cache.get(2, 0, 1) == [bytes(10)]
    assert cache.bytes == 10


def test_threads_leave_the_count_of_bytes_exact() -> None:
    cache = BlockCache(50)

    def work(file_id: int) -> None:
        for number in range(2_000):
            cache.put(file_id, number % 7, [bytes(number % 11)])
            cache.get(file_id, 0, 7)

    threads = [Thread(target=work, args=(file_id,)) for file_id in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    kept = [b for file_id in range(4) for b in cache.get(file_id, 0, 7) if b is not None]
    assert cache.bytes == sum(map(len, kept)) <= 50

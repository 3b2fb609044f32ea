"""The Python SDK of S2 manages basins, streams and tokens of a real server (s2 §3 to §5, §16)."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.support.s2_sdk import Account, new_basin_name

WEEK_SECONDS = 7 * 86400


def full_config(sdk: Any) -> Any:
    return sdk.StreamConfig(
        storage_class="standard",
        retention_policy=86400,
        timestamping=sdk.Timestamping(mode=sdk.TimestampingMode.CLIENT_REQUIRE, uncapped=True),
        delete_on_empty_min_age=3600,
    )


def test_a_basin_is_created_listed_reconfigured_and_deleted(account: Account) -> None:
    """§4: what is set comes back, what is not set stays away."""
    sdk, name = account.sdk, new_basin_name()

    async def story(client: Any) -> None:
        made = await client.create_basin(name)
        assert made.name == name and made.created_at is not None and made.deleted_at is None
        config = await client.get_basin_config(name)
        assert (config.create_stream_on_append, config.create_stream_on_read) == (False, False)
        assert config.default_stream_config is None and config.stream_cipher is None
        wanted = sdk.BasinConfig(
            default_stream_config=full_config(sdk), create_stream_on_append=True
        )
        changed = await client.reconfigure_basin(name, config=wanted)
        assert changed.default_stream_config == full_config(sdk)
        assert changed.create_stream_on_append is True
        assert changed == await client.get_basin_config(name)
        # What a reconfiguration does not name stays.
        short = sdk.BasinConfig(default_stream_config=sdk.StreamConfig(retention_policy=60))
        kept = (await client.reconfigure_basin(name, config=short)).default_stream_config
        assert (kept.retention_policy, kept.storage_class) == (60, "standard")
        with pytest.raises(sdk.S2ServerError) as twice:
            await client.create_basin(name)
        assert (twice.value.code, twice.value.status_code) == ("resource_already_exists", 409)
        await client.delete_basin(name)
        await client.delete_basin(name, ignore_not_found=True)

    account.tell(story)


def test_basins_are_listed_in_pages(account: Account) -> None:
    """§4: sorted by name, by prefix, behind a name."""

    async def story(client: Any) -> None:
        names = sorted(f"{new_basin_name()}-page" for _ in range(3))
        for name in names:
            await client.create_basin(name)
        page = await client.list_basins(prefix=names[0][:10], limit=1)
        assert len(page.items) == 1 and page.has_more
        behind = await client.list_basins(start_after=names[0])
        listed = [info.name for info in behind.items]
        assert names[0] not in listed and set(names[1:]) <= set(listed)
        assert listed == sorted(listed)
        every = [info.name async for info in client.list_all_basins(prefix="interop-")]
        assert set(names) <= set(every)

    account.tell(story)


def test_a_basin_is_ensured(account: Account) -> None:
    """§4: created, then unchanged, then updated."""
    sdk, name = account.sdk, new_basin_name()

    async def story(client: Any) -> None:
        statuses = [(await client.ensure_basin(name)).status for _ in range(2)]
        config = sdk.BasinConfig(create_stream_on_read=True)
        statuses += [(await client.ensure_basin(name, config=config)).status for _ in range(2)]
        assert statuses == [
            sdk.EnsureStatus.CREATED,
            sdk.EnsureStatus.CONFIG_UNCHANGED,
            sdk.EnsureStatus.CONFIG_UPDATED,
            sdk.EnsureStatus.CONFIG_UNCHANGED,
        ]

    account.tell(story)


def test_a_stream_has_what_it_was_given_then_what_its_basin_says(account: Account) -> None:
    """§5: resolved at its creation; later changes of the basin do not touch it."""
    sdk, name = account.sdk, new_basin_name()

    async def story(client: Any) -> None:
        defaults = sdk.StreamConfig(retention_policy="infinite")
        await client.create_basin(name, config=sdk.BasinConfig(default_stream_config=defaults))
        basin = client.basin(name)
        made = await basin.create_stream("given", config=full_config(sdk))
        assert (made.name, made.deleted_at, made.cipher) == ("given", None, None)
        assert await basin.get_stream_config("given") == full_config(sdk)
        await basin.create_stream("inherited")
        config = await basin.get_stream_config("inherited")
        assert (config.retention_policy, config.storage_class) == ("infinite", "express")
        assert config.timestamping.mode is sdk.TimestampingMode.CLIENT_PREFER
        assert config.timestamping.uncapped is False
        later = sdk.BasinConfig(default_stream_config=sdk.StreamConfig(retention_policy=60))
        await client.reconfigure_basin(name, config=later)
        assert await basin.get_stream_config("inherited") == config
        await client.create_basin(f"{name}-x")
        await client.basin(f"{name}-x").create_stream("plain")
        plain = await client.basin(f"{name}-x").get_stream_config("plain")
        assert plain.retention_policy == WEEK_SECONDS

    account.tell(story)


def test_a_stream_is_reconfigured_field_by_field(account: Account) -> None:
    """§5: what is not named stays."""
    sdk, basin_name = account.sdk, new_basin_name()

    async def story(client: Any) -> None:
        await client.create_basin(basin_name)
        basin = client.basin(basin_name)
        await basin.create_stream("events")
        before = await basin.get_stream_config("events")

        async def changed(**fields: Any) -> Any:
            return await basin.reconfigure_stream("events", config=sdk.StreamConfig(**fields))

        one = await changed(retention_policy=86400)
        assert (one.retention_policy, one.storage_class) == (86400, before.storage_class)
        assert await changed() == one
        mode = sdk.Timestamping(mode=sdk.TimestampingMode.ARRIVAL)
        two = await changed(timestamping=mode, delete_on_empty_min_age=60)
        assert two.timestamping.mode is sdk.TimestampingMode.ARRIVAL
        assert (two.delete_on_empty_min_age, two.retention_policy) == (60, 86400)
        assert await basin.get_stream_config("events") == two

    account.tell(story)


@pytest.mark.parametrize("name", ["a/b c", "ü%2F", "x" * 512, "...", "?#&"])
def test_streams_have_any_name(account: Account, name: str) -> None:
    """§3a: percent-encoded as one segment of the path."""
    sdk, basin_name = account.sdk, new_basin_name()

    async def story(client: Any) -> None:
        await client.create_basin(basin_name)
        basin = client.basin(basin_name)
        await basin.create_stream(name)
        ack = await basin.stream(name).append(sdk.AppendInput([sdk.Record(b"there")]))
        assert ack.end.seq_num == 1
        assert [info.name async for info in basin.list_all_streams()] == [name]
        batch = await basin.stream(name).read(start=sdk.SeqNum(0))
        assert [record.body for record in batch.records] == [b"there"]
        await basin.delete_stream(name)

    account.tell(story)


def test_streams_are_listed_ensured_and_deleted(account: Account) -> None:
    """§4, §14c: by prefix, behind a name; a deleted one can be created again."""
    sdk, basin_name = account.sdk, new_basin_name()

    async def story(client: Any) -> None:
        await client.create_basin(basin_name)
        basin = client.basin(basin_name)
        for name in ("b-2", "a-1", "b-1"):
            await basin.create_stream(name)
        assert [info.name for info in (await basin.list_streams()).items] == ["a-1", "b-1", "b-2"]
        page = await basin.list_streams(prefix="b-", limit=1)
        assert [info.name for info in page.items] == ["b-1"] and page.has_more
        page = await basin.list_streams(prefix="b-", start_after="b-1")
        assert [info.name for info in page.items] == ["b-2"] and not page.has_more
        assert (await basin.list_streams(start_after="z")).items == []
        with pytest.raises(sdk.S2ServerError) as twice:
            await basin.create_stream("a-1")
        assert twice.value.code == "resource_already_exists"
        statuses = [(await basin.ensure_stream("c")).status for _ in range(2)]
        statuses += [(await basin.ensure_stream("c", config=full_config(sdk))).status]
        assert statuses == [
            sdk.EnsureStatus.CREATED,
            sdk.EnsureStatus.CONFIG_UNCHANGED,
            sdk.EnsureStatus.CONFIG_UPDATED,
        ]
        await basin.delete_stream("c")
        ensured = await retried(sdk, lambda: basin.ensure_stream("c"))
        assert ensured.status is sdk.EnsureStatus.CREATED
        with pytest.raises(sdk.S2ServerError) as absent:
            await basin.delete_stream("absent")
        assert (absent.value.code, absent.value.status_code) == ("stream_not_found", 404)

    account.tell(story)


async def retried(sdk: Any, call: Any) -> Any:
    """The call's result, once what is deleted is gone."""
    while True:
        try:
            return await call()
        except sdk.S2ServerError as error:
            if error.code not in ("stream_deletion_pending", "basin_deletion_pending"):
                raise


def test_streams_come_to_be_with_their_first_append_or_read(account: Account) -> None:
    """§4f, §18: with the configuration that the request brings."""
    sdk, basin_name = account.sdk, new_basin_name()

    async def story(client: Any) -> None:
        config = sdk.BasinConfig(create_stream_on_append=True, create_stream_on_read=True)
        await client.create_basin(basin_name, config=config)
        basin = client.basin(basin_name)
        brought = sdk.StreamConfig(retention_policy=120)
        first = sdk.AppendInput([sdk.Record(b"a")], stream_config=brought)
        assert (await basin.stream("appended").append(first)).end.seq_num == 1
        assert (await basin.get_stream_config("appended")).retention_policy == 120
        with pytest.raises(sdk.ReadUnwrittenError):
            await basin.stream("read").read(start=sdk.SeqNum(0), stream_config=brought)
        assert (await basin.get_stream_config("read")).retention_policy == 120
        async with basin.stream("session").append_session(stream_config=brought) as session:
            ticket = await session.submit(sdk.AppendInput([sdk.Record(b"b")]))
            assert (await ticket).end.seq_num == 1
        assert (await basin.get_stream_config("session")).retention_policy == 120
        assert (await basin.stream("tailed").check_tail()).seq_num == 0

    account.tell(story)


def test_unknown_basins_and_streams_are_named(account: Account) -> None:
    """§2: each error has its code."""
    sdk, name = account.sdk, new_basin_name()

    async def code_of(call: Any) -> tuple[str, int]:
        with pytest.raises(sdk.S2ServerError) as caught:
            await call
        return caught.value.code, caught.value.status_code

    async def story(client: Any) -> None:
        absent = client.basin(name)
        assert await code_of(client.delete_basin(name)) == ("basin_not_found", 404)
        assert await code_of(client.get_basin_config(name)) == ("basin_not_found", 404)
        assert await code_of(absent.list_streams()) == ("basin_not_found", 404)
        assert await code_of(absent.create_stream("s")) == ("basin_not_found", 404)
        assert await code_of(absent.get_stream_config("s")) == ("stream_not_found", 404)
        assert await code_of(absent.delete_stream("s")) == ("stream_not_found", 404)
        await client.create_basin(name)
        assert await code_of(absent.stream("s").check_tail()) == ("stream_not_found", 404)

    account.tell(story)


def test_tokens_are_issued_listed_held_to_their_scope_and_revoked(
    account: Account,
) -> None:
    """§16: with auth off too, an issued token is held to its scope."""
    sdk, basin_name = account.sdk, new_basin_name()
    scope = sdk.AccessTokenScope(
        basins=sdk.ExactMatch(basin_name),
        streams=sdk.PrefixMatch("tenant/"),
        op_groups=sdk.OperationGroupPermissions(
            basin=sdk.Permission.READ_WRITE, stream=sdk.Permission.READ_WRITE
        ),
    )
    token_id = f"token-{basin_name}"
    expires = datetime.now(UTC) + timedelta(hours=1)

    async def issue(client: Any) -> str:
        await client.create_basin(basin_name)
        token = await client.issue_access_token(
            token_id, scope=scope, expires_at=expires, auto_prefix_streams=True
        )
        page = await client.list_access_tokens(prefix=token_id, limit=1)
        assert [info.id for info in page.items] == [token_id]
        assert page.items[0].auto_prefix_streams is True
        assert page.items[0].expires_at == expires
        assert page.items[0].scope.streams == sdk.PrefixMatch("tenant/")
        with pytest.raises(sdk.S2ServerError) as twice:
            await client.issue_access_token(token_id, scope=scope)
        assert twice.value.code == "resource_already_exists"
        assert isinstance(token, str)
        return token

    async def use(client: Any) -> None:
        basin = client.basin(basin_name)
        await basin.create_stream("orders")
        await basin.stream("orders").append(sdk.AppendInput([sdk.Record(b"mine")]))
        assert [info.name for info in (await basin.list_streams()).items] == ["orders"]
        for refused in (client.list_basins(), client.create_basin(new_basin_name())):
            with pytest.raises(sdk.S2ServerError) as caught:
                await refused
            assert (caught.value.code, caught.value.status_code) == ("permission_denied", 403)

    async def revoke(client: Any) -> None:
        streams = (await client.basin(basin_name).list_streams()).items
        assert [info.name for info in streams] == ["tenant/orders"]
        await client.revoke_access_token(token_id)
        with pytest.raises(sdk.S2ServerError) as again:
            await client.revoke_access_token(token_id)
        assert (again.value.code, again.value.status_code) == ("access_token_not_found", 404)

    async def refused(client: Any) -> None:
        with pytest.raises(sdk.S2ServerError) as caught:
            await client.basin(basin_name).list_streams()
        assert caught.value.status_code in (401, 403)

    token = account.tell(issue)
    Account(account.url, token).tell(use)
    account.tell(revoke)
    Account(account.url, token).tell(refused)


def test_tokens_that_permit_nothing_are_refused(account: Account) -> None:
    """§16: in the words that the publisher's tests compare."""
    sdk = account.sdk
    group = sdk.OperationGroupPermissions(stream=sdk.Permission.READ_WRITE)
    cases = [
        (sdk.AccessTokenScope(), False, "Access token permissions cannot be empty"),
        (
            sdk.AccessTokenScope(op_groups=group),
            True,
            "Auto prefixing is only allowed for streams with prefix matching",
        ),
    ]

    async def story(client: Any) -> None:
        for scope, auto, message in cases:
            with pytest.raises(sdk.S2ServerError) as caught:
                await client.issue_access_token("empty", scope=scope, auto_prefix_streams=auto)
            assert (caught.value.code, caught.value.message) == ("invalid", message)

    account.tell(story)


def test_locations_and_metrics_have_their_shapes(account: Account) -> None:
    """§16: from real counters; a new basin is in the default location."""
    sdk, name = account.sdk, new_basin_name()

    async def story(client: Any) -> None:
        locations = await client.list_locations()
        default = await client.get_default_location()
        assert default in locations
        assert await client.set_default_location(default.name) == default
        with pytest.raises(sdk.S2ServerError) as unknown:
            await client.set_default_location("no-such-place")
        assert unknown.value.code == "invalid"
        made = await client.create_basin(name, location=default.name)
        assert made.location == default.name
        await client.basin(name).create_stream("events")
        stream = client.basin(name).stream("events")
        for _ in range(3):
            await stream.append(sdk.AppendInput([sdk.Record(b"x" * 100)]))
        now = int(time.time())
        active = await client.account_metrics(
            set=sdk.AccountMetricSet.ACTIVE_BASINS, start=now - 60, end=now + 30
        )
        assert [type(metric) for metric in active] == [sdk.Label]
        assert name in active[0].values
        ops = await client.basin_metrics(
            name,
            set=sdk.BasinMetricSet.APPEND_OPS,
            start=now - 120,
            end=now + 30,
            interval=sdk.TimeseriesInterval.MINUTE,
        )
        assert sum(value for metric in ops for _, value in metric.values) == 3
        gauges = await client.stream_metrics(
            name, "events", set=sdk.StreamMetricSet.STORAGE, start=now - 120, end=now + 30
        )
        assert all(isinstance(metric, sdk.Gauge) for metric in gauges)

    account.tell(story)

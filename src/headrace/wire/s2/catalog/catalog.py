"""The catalog of one server: basins, tokens and locations, loaded after a start and kept on disk.

The rules this file owns.  Changes of the catalog happen one after the other, and what is answered
has been kept.  A basin's delete is kept first; then its streams are deleted, in portions, and then
the basin itself is; a start goes on with what a stop interrupted.  Until the catalog is loaded
nothing of this API is answered (`when_ready`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from msgspec.structs import replace

from headrace.core.errors import ConfigError, HeadraceError, NotReady
from headrace.core.runtime import Ticket
from headrace.core.steps import Line, Steps, follow, pause
from headrace.engine.engine import Engine
from headrace.engine.topics.names import NameIndex
from headrace.wire.s2.catalog.entries import (
    ENCODER,
    TOKEN_ENTRY_BYTES_MAX,
    Basin,
    DefaultLocation,
    Token,
)
from headrace.wire.s2.catalog.issued_tokens import IssuedTokens, new_token
from headrace.wire.s2.catalog.records import CatalogRecords
from headrace.wire.s2.catalog.streams import (
    CREATED,
    NOOP,
    UPDATED,
    BasinStreams,
    DataOp,
    OpenStream,
)
from headrace.wire.s2.configs import BasinConfig
from headrace.wire.s2.errors import (
    S2Refusal,
    access_token_not_found,
    basin_deletion_pending,
    basin_not_found,
    invalid,
    quota_exhausted,
    resource_already_exists,
)
from headrace.wire.s2.names import location_name
from headrace.wire.s2.token_scopes import ACCOUNT_OPS
from headrace.wire.s2.usage import Usage

log = logging.getLogger("headrace.s2")

# Changes that wait for the one in progress.
CHANGES_MAX: Final = 1_024
# A delete of a basin that failed is tried again after so long.
RETRY_MS: Final = 1_000
# How often tokens that have expired are looked for.
EXPIRY_LOOK_MS: Final = 60_000


class Provisioned(NamedTuple):
    """A basin, and what a call has done to it."""

    basin: Basin
    result: str


class Catalog:
    """All basins, tokens and locations of one server, and the streams of the basins."""

    def __init__(self, engine: Engine, usage: Usage) -> None:
        self._engine = engine
        self.usage = usage
        settings = engine.settings
        self._basins_max, self._tokens_max = settings.s2_basins_max, settings.s2_tokens_max
        self._records = CatalogRecords(engine)
        self._changes = Line(
            engine.runtime, waiting_max=CHANGES_MAX, what="changes of basins and tokens"
        )
        self._basins: dict[str, Basin] = {}
        self._names = NameIndex()
        self.tokens = IssuedTokens(engine.clock)
        self.streams = BasinStreams(engine, self.basin)
        self.locations = _locations(settings.s2_locations)
        self._default_location = ""
        self.loaded = False
        self._failure: HeadraceError | None = None  # why it cannot be loaded, ever
        self._loading: Ticket[None] | None = None
        self._looked_ms = 0  # for tokens that have expired

    # A start, and time

    def tick(self, now_ms: int) -> None:
        """Load once the engine is there; forget tokens that have expired."""
        if not self.loaded:
            if self._failure is None and self._engine.ready and not self._engine.loading:
                self.when_ready(lambda _error: None)
            return
        self.streams.tick()
        if now_ms - self._looked_ms >= EXPIRY_LOOK_MS:
            self._looked_ms = now_ms
            for token in self.tokens.expired():
                self._changes.run(self._forget(token))

    def when_ready(self, then: Callable[[BaseException | None], None]) -> None:
        """Call when the catalog is loaded, or with why it cannot be."""
        if self.loaded or self._failure is not None:
            then(self._failure)
            return
        if self._loading is None:
            loading = self._loading = follow(self._engine.runtime, self._load())
            loading.when_done(self._load_ended)
        else:
            loading = self._loading
        loading.when_done(lambda done: then(done.error))

    @property
    def basins(self) -> int:
        """How many basins there are."""
        return len(self._basins)

    @property
    def problem(self) -> str:
        """Why the catalog cannot be loaded; empty while it can."""
        return "" if self._failure is None else f"the catalog cannot be read: {self._failure}"

    def _load_ended(self, ticket: Ticket[None]) -> None:
        self._loading = None
        error = ticket.error
        if isinstance(error, HeadraceError) and not error.retryable:
            # Once: whoever asks for anything hears of it, and so does a probe.
            log.error("the catalog of the S2 API cannot be read: %s", error)
            self._failure = error

    def _load(self) -> Steps[None]:
        if not self._engine.ready:
            raise NotReady("recovery is running", fix="retry")
        entries = yield from self._records.load()
        yield from self.streams.start()
        for entry in entries:
            if isinstance(entry, Basin):
                self._keep(entry)
            elif isinstance(entry, Token):
                self.tokens.add(entry)
            else:
                self._default_location = entry.name
        self.loaded = True
        for basin in list(self._basins.values()):
            if basin.deleted_ms:
                follow(self._engine.runtime, self._empty(basin))

    def _keep(self, basin: Basin) -> None:
        self._basins[basin.name] = basin
        self._names.add(basin.name)

    # Basins

    def basin(self, name: str) -> Basin:
        """A basin that can be used."""
        found = self.find_basin(name)
        if found.deleted_ms:
            raise basin_deletion_pending(name)
        return found

    def find_basin(self, name: str) -> Basin:
        """A basin, also one that is being deleted."""
        found = self._basins.get(name)
        if found is None:
            raise basin_not_found(name)
        return found

    def basins_after(self, name: str, prefix: str) -> Iterator[Basin]:
        """The basins beyond a name that start with a prefix, in order."""
        return (self._basins[found] for found in self._names.after(name, prefix))

    def knows(self, name: str | None) -> bool:
        """Whether there is a basin of this name."""
        return name in self._basins

    def count_op(self, op: str, basin: str | None) -> None:
        """Count an operation: of the account, or of a basin if there is one."""
        if op in ACCOUNT_OPS:
            self.usage.count_op(op, None)
        elif basin in self._basins:
            self.usage.count_op(op, basin)

    # Streams

    def stream(self, basin: str, stream: str) -> OpenStream:
        """A stream that is there."""
        self.basin(basin)
        return self.streams.find(basin, stream)

    def open_for(
        self, op: DataOp, basin: str, stream: str, config_header: bytes | None
    ) -> OpenStream | Ticket[OpenStream]:
        """The stream that is to be appended to or read, created where its basin says so.

        `config_header` is the header `s2-stream-config`, which is read in any case.
        """
        return self.streams.open_for(op, basin, stream, config_header)

    # Changes of basins

    def create_basin(
        self, name: str, config: BasinConfig, location: str | None, key: str
    ) -> Ticket[Provisioned]:
        """Create a basin; the creation with this key (not "") again is fine."""
        return self._changes.run(self._create(name, config, location, key))

    def ensure_basin(
        self,
        name: str,
        config: BasinConfig,
        location: str | None,
        replacing: Callable[[], None] = lambda: None,
    ) -> Ticket[Provisioned]:
        """Create a basin, or give the one that is there this config.

        `replacing` is called in the second case, and may refuse it.
        """
        return self._changes.run(self._ensure(name, config, location, replacing))

    def change_basin(
        self, name: str, change: Callable[[BasinConfig], BasinConfig]
    ) -> Ticket[Provisioned]:
        """Change the config of a basin."""
        return self._changes.run(self._change(name, change))

    def delete_basin(self, name: str) -> Ticket[None]:
        """Begin to delete a basin with all its streams."""
        return self._changes.run(self._delete(name))

    def _create(
        self, name: str, config: BasinConfig, location: str | None, key: str
    ) -> Steps[Provisioned]:
        known = self._basins.get(name)
        if known is not None:
            if known.deleted_ms:
                raise basin_deletion_pending(name)
            if not key or key != known.creation_key:
                raise resource_already_exists(f"basin {name!r}")
            return Provisioned(known, NOOP)
        if len(self._basins) >= self._basins_max:
            raise quota_exhausted(f"{self._basins_max} basins exist, the most allowed")
        now_ms = self._engine.clock.now_ms()
        basin = Basin(name, now_ms, config, location or self.default_location, key)
        yield from self._records.put(basin)
        self._keep(basin)
        return Provisioned(basin, CREATED)

    def _ensure(
        self,
        name: str,
        config: BasinConfig,
        location: str | None,
        replacing: Callable[[], None],
    ) -> Steps[Provisioned]:
        known = self._basins.get(name)
        if known is None:
            return (yield from self._create(name, config, location, ""))
        replacing()
        if location is not None and location != known.location:
            raise invalid(f"basin {name!r} is in {known.location!r}: a basin never moves")
        return (yield from self._change(name, lambda _config: config))

    def _change(
        self, name: str, change: Callable[[BasinConfig], BasinConfig]
    ) -> Steps[Provisioned]:
        known = self.basin(name)
        config = change(known.config)
        if config == known.config:
            return Provisioned(known, NOOP)
        changed = replace(known, config=config)
        yield from self._records.put(changed)
        self._keep(changed)
        return Provisioned(changed, UPDATED)

    def _delete(self, name: str) -> Steps[None]:
        known = self.find_basin(name)
        if known.deleted_ms:
            return
        deleted = replace(known, deleted_ms=self._engine.clock.now_ms())
        yield from self._records.put(deleted)
        self._keep(deleted)
        follow(self._engine.runtime, self._empty(deleted))

    def _empty(self, basin: Basin) -> Steps[None]:
        """Delete the streams of a basin, however many there are, and then the basin."""
        told = False
        while True:
            try:
                yield from self.streams.delete_all(basin.name)
                yield self._changes.run(self._end(basin))
                return
            except HeadraceError as error:
                if not told:
                    log.warning("the basin %r is still being deleted: %s", basin.name, error)
                told = True
            yield pause(self._engine.runtime, RETRY_MS)

    def _end(self, basin: Basin) -> Steps[None]:
        yield from self._records.remove(basin)
        del self._basins[basin.name]
        self._names.remove(basin.name)

    # Tokens

    def issue(self, token: Token, issuing: Callable[[], object] = lambda: None) -> Ticket[str]:
        """Keep a token, whose digest is filled in here; return what is handed out.

        `issuing` is called behind the changes before it, and may refuse: who issues it may have
        been revoked by one of them.
        """
        return self._changes.run(self._issue(token, issuing))

    def revoke(self, id: str) -> Ticket[None]:
        """Let a token count no more."""
        return self._changes.run(self._revoke(id))

    def _issue(self, token: Token, issuing: Callable[[], object]) -> Steps[str]:
        issuing()
        known = self.tokens.find(token.id)
        if known is not None:
            if not self.tokens.has_expired(known):
                raise resource_already_exists(f"access token {token.id!r}")
            yield from self._forget(known)
        if len(self.tokens) >= self._tokens_max:
            raise quota_exhausted(f"{self._tokens_max} access tokens exist, the most allowed")
        handed_out, digest = new_token(self._engine.random)
        kept = replace(token, digest=digest)
        assert len(ENCODER.encode(kept)) <= TOKEN_ENTRY_BYTES_MAX, token.id
        yield from self._records.put(kept)
        self.tokens.add(kept)
        return handed_out

    def _revoke(self, id: str) -> Steps[None]:
        known = self.tokens.find(id)
        if known is None:
            raise access_token_not_found(id)
        yield from self._forget(known)

    def _forget(self, token: Token) -> Steps[None]:
        if self.tokens.find(token.id) is token:
            yield from self._records.remove(token)
            self.tokens.remove(token)

    # Locations

    @property
    def default_location(self) -> str:
        """Where basins are that name no location."""
        kept = self._default_location
        return kept if kept in self.locations else self.locations[0]

    def set_default_location(self, name: str) -> Ticket[None]:
        """Let basins that name no location be there from now on."""
        return self._changes.run(self._set_default(name))

    def _set_default(self, name: str) -> Steps[None]:
        if name != self.default_location:
            yield from self._records.put(DefaultLocation(name))
            self._default_location = name


def _locations(setting: str) -> tuple[str, ...]:
    """The names of the locations that a setting lists; the first is the default one."""
    names = dict.fromkeys(name.strip() for name in setting.split(",") if name.strip())
    try:
        found = tuple(location_name(name, invalid) for name in names)
    except S2Refusal as error:
        raise ConfigError(f"s2_locations: {error}", fix="list names, by commas") from None
    if not found:
        raise ConfigError("s2_locations names no location", fix="list at least one")
    return found

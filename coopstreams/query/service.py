"""The answers to queries: each query is routed, read here or sent to the owner, and
retried briefly while a task moves.

    key          -> partition, hash -> owner -> read here | ask it (one hop) | TASK_MOVING
    range        -> every instance that has a part -> do they cover the store? -> merge
    global table -> read here: every instance has all of it
    max_staleness -> what an owner does not answer, a standby does that is fresh enough

Invariant: only the instance that the client asked retries; an instance that another one
asked answers at once.
Relies on: `router` (which instance), `peers` (asking it), `local_reads` (reading here).
Turned down: caching answers or the last owner (the placement is local, and the group
has agreed on it).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import (
    Awaitable,
    Callable,
    Iterable,
    Mapping,
    Sequence,
)
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias, TypeVar

import msgspec
import orjson

from coopstreams.common.budget import CpuBudget
from coopstreams.query import reports
from coopstreams.query.backend import Backend, Peer, Placement, StoreInfo
from coopstreams.query.formats import parse_key
from coopstreams.query.local_reads import LocalReader, Lookup, instance_to_ask
from coopstreams.query.parameters import KeyQuery, RequestLimits, What
from coopstreams.query.paths import (
    STALE,
    key_batches,
    keys_path,
    path_text,
    store_path,
)
from coopstreams.query.peers import (
    PART,
    ROW,
    STORES,
    Expected,
    Peers,
    entries,
    part_of,
    status_of,
    unexpected,
)
from coopstreams.query.problems import bad_request, moving, unknown_store
from coopstreams.query.range_pages import (
    Page,
    PartialPage,
    Query,
    page_of,
)
from coopstreams.query.router import (
    Asked,
    Moving,
    coverage_gap,
    locate,
    scatter,
    stand_in,
    standbys_of,
)
from coopstreams.status.model import Kind, Status
from coopstreams.topology.errors import QueryError
from coopstreams.topology.graph.drawing import drawn
from coopstreams.topology.schemas import RegistryNeededError, promptly

T = TypeVar("T")

FIRST_PAUSE_S = 0.02
LONGEST_PAUSE_S = 0.2

_Place: TypeAlias = Peer | QueryError | None
"""The instance to ask for keys; None: this one; an error: there is none."""
_NO_OWNER = ("TASK_MOVING", "NOT_OWNER")
"""The errors of a request for which a standby may answer."""
_KINDS: Mapping[What, tuple[Kind, ...]] = {
    "keys": ("key_value", "versioned", "global"),
    "windows": ("window",),
    "sessions": ("session",),
    "versions": ("versioned",),
}
"""The kinds of stores whose keys have a value, windows, sessions or versions."""


class QueryService:
    """The answers to all routes. Coroutines run on the server's loop, reads in thread
    pools.

    Scans have a thread pool of their own, so that they never delay a read by key. Calls
    that wait for a schema registry have a third one, and delay neither.
    """

    def __init__(
        self,
        backend: Backend,
        peers: Peers,
        limits: RequestLimits,
        budget: CpuBudget,
    ) -> None:
        self.backend = backend
        self.limits = limits
        self._peers = peers
        self._budget = budget
        self._local = LocalReader(backend)
        self._gets = ThreadPoolExecutor(4, "coopstreams-get")
        self._scans = ThreadPoolExecutor(2, "coopstreams-scan")
        self._asks = ThreadPoolExecutor(4, "coopstreams-registry")

    async def read(self, parse: Callable[[], T]) -> T:
        """Return the result of `parse`, which reads keys: on this thread or, if a
        registry must be asked, on another one.
        """
        try:
            return promptly(parse)
        except RegistryNeededError:
            return await asyncio.get_running_loop().run_in_executor(self._asks, parse)

    async def by_key(self, query: KeyQuery) -> bytes:
        """Return the JSON of one key: its value, or its windows, sessions or versions."""
        store = query.store
        (wanted,) = await self.read(lambda: lookups(query, self.limits.max_keys))

        async def ask(instance: Peer | None, stale_ms: int | None = None) -> bytes:
            if instance is None:
                return await self._run(
                    self._gets,
                    lambda: self._local.one(query, wanted, stale_ms),
                )
            suffix = query.suffix if stale_ms is None else query.stale_suffix
            path = f"{query.what}/{path_text(wanted.text)}{suffix}"
            return await self._peers.ask(
                instance,
                store_path(store.name, path),
                self.limits.forward_s,
                ROW,
            )

        async def attempt() -> bytes:
            placement = self.backend.placement()
            try:
                owner = instance_to_ask(placement, store, wanted.at, query.asked)
                return await ask(owner)
            except QueryError as error:
                return await self._or_stale(
                    query,
                    wanted,
                    error,
                    lambda instance: ask(instance, query.max_staleness_ms),
                )

        return await self._settled(attempt, query.asked)

    async def points(self, query: KeyQuery) -> bytes:
        """Return the JSON of several keys, in the order of the request. If one of them
        moves, the request fails.
        """
        store = query.store
        wanted = await self.read(lambda: lookups(query, self.limits.max_keys))

        async def entries_of(
            instance: Peer | None,
            indices: Sequence[int],
            stale_ms: int | None = None,
        ) -> list[bytes]:
            mine = [wanted[index] for index in indices]
            if instance is None:
                return await self._run(
                    self._gets,
                    lambda: self._local.entries(store, mine, stale_ms),
                )
            texts = [one.text for one in mine]
            return await self._ask_points(store, instance, texts, stale_ms)

        async def attempt() -> bytes:
            placement = self.backend.placement()
            shown: list[Any] = [None] * len(wanted)

            async def fill(place: _Place, indices: list[int]) -> None:
                try:
                    if isinstance(place, QueryError):
                        raise place
                    found = await entries_of(place, indices)
                except QueryError as error:
                    found = await self._or_stale(
                        query,
                        wanted[indices[0]],
                        error,
                        lambda instance: entries_of(
                            instance,
                            indices,
                            query.max_staleness_ms,
                        ),
                    )
                for index, entry in zip(indices, found, strict=True):
                    shown[index] = orjson.Fragment(entry)

            groups = self._by_place(placement, query, wanted)
            await _all_or_none([fill(place, indices) for place, indices in groups])
            return orjson.dumps({"store": store.name, "entries": shown})

        return await self._settled(attempt, query.asked)

    def _by_place(
        self,
        placement: Placement,
        query: KeyQuery,
        wanted: Sequence[Lookup],
    ) -> list[tuple[_Place, list[int]]]:
        """Return the numbers of keys by the instance to ask for them (None: this one), or
        by why there is none. If standbys may answer, keys of one place have the same.
        """
        groups: dict[object, tuple[_Place, list[int]]] = {}
        for index, one in enumerate(wanted):
            place: _Place
            try:
                place = instance_to_ask(placement, query.store, one.at, query.asked)
                name = None if place is None else place.id
            except QueryError as error:
                if query.max_staleness_ms is None:
                    raise
                place = error
                name = error.code
            others: list[str] = []
            if query.max_staleness_ms is not None:
                standing = standbys_of(placement, query.store, one.at, query.asked)
                others = [instance.id for instance in standing]
            groups.setdefault((name, *others), (place, []))[1].append(index)
        return list(groups.values())

    async def _or_stale(
        self,
        query: KeyQuery,
        wanted: Lookup,
        error: QueryError,
        ask: Callable[[Peer | None], Awaitable[T]],
    ) -> T:
        """Return what a standby answers for an owner that does not (None: one of this
        instance), if the query allows it.

        Raises:
            QueryError: the owner's error; TASK_MOVING: no standby is fresh enough.
        """
        if query.max_staleness_ms is None or error.code not in _NO_OWNER:
            raise error
        placement = self.backend.placement()
        said = [str(error)]
        for instance in standbys_of(placement, query.store, wanted.at, query.asked):
            here = instance.id == placement.here
            try:
                return await ask(None if here else instance)
            except QueryError as refusal:
                if refusal.code != "TASK_MOVING":
                    raise
                said.append(str(refusal))
        if len(said) == 1:
            raise error
        raise moving("; ".join(said)) from error

    async def page(
        self,
        store: StoreInfo,
        query: Query,
        asked: Asked,
    ) -> Page:
        """Return a page of a range query over all instances; if `asked` is `local`, of
        this instance only.
        """

        async def attempt() -> Page:
            placement = self.backend.placement()
            instances = scatter(placement, store)
            if isinstance(instances, Moving):
                raise moving(instances.reason)
            parts = await _all_or_none(
                [
                    self._part_of(instance, store, query, self.limits.ask_part_s)
                    for instance in instances
                ]
            )
            return await self._run(
                self._scans,
                lambda: _put_together(store, query, parts),
            )

        async def stale() -> Page:
            parts = await self._stale_parts(store, query, asked)
            return await self._run(
                self._scans,
                lambda: _put_together(store, query, parts),
            )

        async def alone() -> Page:
            if query.max_staleness_ms is None or store.kind == "global":
                return page_of([await self._part(store, query)], query)
            return page_of(await self._stale_parts(store, query, asked), query)

        if store.kind == "global":
            return await self._settled(alone, asked)
        if asked == "local":
            return await alone()
        return await self._settled(
            attempt if query.max_staleness_ms is None else stale,
            asked,
        )

    async def _part_of(
        self,
        instance: Peer,
        store: StoreInfo,
        query: Query,
        timeout_s: float,
    ) -> PartialPage:
        """Return an instance's part of a range query."""
        if instance.id == self.backend.placement().here:
            return await self._part(store, query)
        path = store_path(
            store.name,
            f"range?query={msgspec.msgpack.encode(query).hex()}",
        )
        packed = await self._peers.ask(instance, path, timeout_s, PART)
        return await self._run(self._scans, lambda: _unpacked(instance, packed))

    async def _stale_parts(
        self,
        store: StoreInfo,
        query: Query,
        asked: Asked,
    ) -> list[PartialPage]:
        """Return the parts of all owners that answer, and of standbys for the others;
        if `asked` is `local`, of this instance only.

        An owner for which no standby could answer has as long as in any other scan.
        """
        placement = self.backend.placement()
        in_all_s = self.limits.ask_part_s
        stands = bool(stand_in(placement, store, (), asked))
        owner_s = min(self.limits.forward_s, in_all_s / 2) if stands else in_all_s

        async def part(instance: Peer, of: Query, timeout_s: float) -> PartialPage:
            try:
                return await self._part_of(instance, store, of, timeout_s)
            except QueryError as error:
                if error.code != "TASK_MOVING":
                    raise
                return PartialPage([], [], False, [str(error)])

        owners = {
            owner.instance.id: owner.instance
            for (subtopology, _), owned in placement.by_partition.items()
            if subtopology == store.subtopology
            for owner in owned
            if asked == "any" or owner.instance.id == placement.here
        }
        parts = await _all_or_none(
            [part(each, query, owner_s) for each in owners.values()]
        )
        covered = [
            (cover.partition, cover.key_range)
            for each in parts
            for cover in each.covers
        ]
        standing = stand_in(placement, store, covered, asked)
        parts += await _all_or_none(
            [
                part(
                    instance,
                    msgspec.structs.replace(
                        query,
                        standing=tuple(
                            (partition, key_range.start, key_range.end)
                            for partition, key_range in ranges
                        ),
                    ),
                    in_all_s - owner_s,
                )
                for instance, ranges in standing.values()
            ]
        )
        return parts

    async def packed_part(self, store: StoreInfo, query: Query) -> bytes:
        """Return this instance's part of a range query, packed for the instance that
        merges the parts.
        """
        return msgspec.msgpack.encode(await self._part(store, query))

    def known_stores(self) -> bytes:
        """Return the JSON of all stores, without their sizes. No other instance is
        asked.
        """
        stores = self.backend.stores()
        return msgspec.json.encode(reports.store_list(stores, None, []))

    async def stores(self, asked: Asked) -> bytes:
        """Return the JSON of all stores. Their sizes and misplaced topics are those of
        all instances that answer.
        """
        stores = dict(self.backend.stores())
        sizes = await self._settled(
            lambda: self._run(self._scans, self._local.sizes),
            asked,
        )
        unreachable = []
        if asked == "any":
            for instance, answer in await self._ask_all("/v1/stores", lambda _: STORES):
                if isinstance(answer, QueryError):
                    unreachable.append(instance.id)
                    continue
                for store in answer:
                    name = store.name
                    if store.kind != "global":  # this instance has all of it, too
                        sizes[name] = sizes.get(name, 0) + store.approximate_entries
                    if name in stores:  # an instance of another version may have others
                        seen = {*stores[name].misplaced, *store.misplaced}
                        stores[name] = replace(
                            stores[name],
                            misplaced=tuple(sorted(seen)),
                        )
        return msgspec.json.encode(reports.store_list(stores, sizes, unreachable))

    async def status(self, asked: Asked) -> bytes:
        """Return the JSON of the instances' status; an instance that does not answer is
        listed as unreachable.
        """
        placement = self.backend.placement()
        here = placement.here
        mine = (peer.url for peer in placement.instances if peer.id == here)
        url = next(mine, None)
        # The answers of others are passed on as they are.
        found: dict[str, Any] = {
            here: msgspec.structs.replace(self.backend.status(), url=url)
        }
        if asked == "any":

            def expected(instance: Peer) -> Expected[bytes]:
                return status_of(instance.id)

            for instance, answer in await self._ask_all("/v1/status", expected):
                found[instance.id] = (
                    reports.unreachable_status(instance, answer)
                    if isinstance(answer, QueryError)
                    else msgspec.Raw(answer)
                )
        status = Status(
            application=self.backend.application,
            generation=placement.generation,
            here=here,
            at=int(time.time() * 1000),
            instances=tuple(found[id_] for id_ in sorted(found)),
        )
        return msgspec.json.encode(status)

    def metadata(self) -> bytes:
        """Return the JSON of instances, tasks and key ranges."""
        backend = self.backend
        told = reports.metadata(
            backend.application,
            backend.placement(),
            backend.stores(),
            backend.status(),
            backend.sources,
        )
        return msgspec.json.encode(told)

    def topology(self) -> bytes:
        """Return the JSON of the topology as a drawing."""
        return orjson.dumps(drawn(self.backend.topology))

    async def key_metadata(self, store: StoreInfo, text: str) -> bytes:
        """Return the JSON of a key's location and owner."""
        if store.kind == "global":
            raise bad_request(
                "WRONG_KIND",
                f"{store.name} is a global table: every instance has all of it",
            )

        def report() -> bytes:
            key = parse_key(store.key, text)
            placement = self.backend.placement()
            location = locate(store, key)
            return msgspec.json.encode(
                reports.key_metadata(placement, store, key, location)
            )

        return await self.read(report)

    async def close(self) -> None:
        """Shut the thread pools down after the running reads; reads that have not begun
        are cancelled.
        """
        for pool in (self._gets, self._scans, self._asks):
            await asyncio.to_thread(pool.shutdown, cancel_futures=True)

    async def _settled(self, attempt: Callable[[], Awaitable[T]], asked: Asked) -> T:
        """Return the first result that is not TASK_MOVING; raise TASK_MOVING after
        `retry_s`. Only a request that may be forwarded is tried again.
        """
        deadline = time.monotonic() + (self.limits.retry_s if asked == "any" else 0.0)
        pause = FIRST_PAUSE_S
        while True:
            try:
                return await attempt()
            except QueryError as error:
                if error.code != "TASK_MOVING" or time.monotonic() + pause > deadline:
                    raise
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)

    async def _ask_points(
        self,
        store: StoreInfo,
        owner: Peer,
        texts: Sequence[str],
        stale_ms: int | None = None,
    ) -> list[bytes]:
        """Ask an instance for keys, by their texts in the request; as many at a time as
        fit into a URL.
        """
        found: list[bytes] = []
        for batch in key_batches(texts):
            path = keys_path(store.name, batch)
            if stale_ms is not None:
                path += f"&{STALE}={stale_ms}"
            answer = await self._peers.ask(
                owner,
                path,
                self.limits.forward_s,
                entries(len(batch)),
            )
            found.extend(answer)
        return found

    async def _part(self, store: StoreInfo, query: Query) -> PartialPage:
        return await self._run(
            self._scans,
            lambda: self._local.part(store, query, self.limits.read_part_s),
        )

    async def _ask_all(
        self,
        path: str,
        expected: Callable[[Peer], Expected[T]],
    ) -> list[tuple[Peer, T | QueryError]]:
        """Ask all other instances; return what each answers, or its error."""
        placement = self.backend.placement()

        async def ask(instance: Peer) -> tuple[Peer, T | QueryError]:
            try:
                return instance, await self._peers.ask(
                    instance,
                    path,
                    self.limits.forward_s,
                    expected(instance),
                )
            except QueryError as error:
                return instance, error

        return await asyncio.gather(
            *(
                ask(instance)
                for instance in placement.instances
                if instance.id != placement.here
            )
        )

    async def _run(self, pool: ThreadPoolExecutor, read: Callable[[], T]) -> T:
        """Return the result of a read in a thread pool, within the budget; in the third
        pool if it waits for a registry.
        """
        loop = asyncio.get_running_loop()
        prompt = partial(promptly, read)
        try:
            return await loop.run_in_executor(pool, self._budget.counted(prompt))
        except RegistryNeededError:
            return await loop.run_in_executor(self._asks, self._budget.counted(read))


async def _all_or_none(parts: Iterable[Awaitable[T]]) -> list[T]:
    """Return the results of all parts. The first error is raised, and cancels the other
    parts.
    """
    found = [asyncio.ensure_future(part) for part in parts]
    try:
        return await asyncio.gather(*found)
    finally:
        for part in found:
            part.cancel()
        if found:
            await asyncio.wait(
                found
            )  # a read that still waits for a thread is off its queue then


def _unpacked(instance: Peer, packed: bytes) -> PartialPage:
    try:
        return part_of(packed)
    except ValueError as error:
        raise unexpected(instance, str(error)) from error


def _put_together(
    store: StoreInfo,
    query: Query,
    parts: Sequence[PartialPage],
) -> Page:
    """Return the page that these parts make up; slow if they are large.

    Raises:
        QueryError: TASK_MOVING: the parts do not cover the store, or two of them have
            the same range.
    """
    gap = coverage_gap(
        store,
        ((cover.partition, cover.key_range) for part in parts for cover in part.covers),
    )
    if gap is not None:
        reasons = [reason for part in parts for reason in part.closed]
        raise moving(f"{gap}: {'; '.join(reasons) or 'moving or being restored'}")
    return page_of(parts, query)


def store_named(backend: Backend, name: str) -> StoreInfo:
    """Return the store of a name.

    Raises:
        QueryError: UNKNOWN_STORE.
    """
    stores = backend.stores()
    if name not in stores:
        raise unknown_store(name, list(stores))
    return stores[name]


def lookups(query: KeyQuery, most: int) -> list[Lookup]:
    """Return the keys of a query, parsed, with their locations.

    Raises:
        QueryError: WRONG_KIND; BAD_PARAMETER: no key, or more than `most`; BAD_KEY.
    """
    store = query.store
    count = len(query.texts)
    expect(store, *_KINDS[query.what])
    if query.many and not 1 <= count <= most:
        raise bad_request(
            "BAD_PARAMETER",
            f"give 1 to {most} keys as ?key=a&key=b, not {count}",
        )
    keys = [parse_key(store.key, text) for text in query.texts]
    return [
        Lookup(text, key, locate(store, key))
        for text, key in zip(query.texts, keys, strict=True)
    ]


def expect(store: StoreInfo, *kinds: Kind) -> None:
    """Raise WRONG_KIND unless the store is of one of these kinds; the message names the
    request that fits it.
    """
    if store.kind not in kinds:
        kind = (
            "global table"
            if store.kind == "global"
            else f"{store.kind.replace('_', '-')} store"
        )
        forms: Mapping[Kind, str] = {
            "window": "windows/{key}",
            "session": "sessions/{key}",
            "versioned": "versions/{key}, keys/{key}",
        }
        ask = forms.get(store.kind, "keys/{key}")
        raise bad_request(
            "WRONG_KIND",
            f"{store.name} is a {kind}: ask /v1/stores/{store.name}/{ask}, or /range",
        )

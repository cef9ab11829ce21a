"""The synchronous face: ``Checkpointer``. What its methods do is written once for both faces, in ``flows``."""

from __future__ import annotations

import builtins
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self

from sqlalchemy import Connection, Engine
from typing_extensions import TypeVar

from clew.codec import Codec
from clew.drivers import Driver
from clew.engine import BoundDatabase, EngineOptions, SyncDatabase, bound_sync, open_sync, parse, wrap_sync
from clew.errors import InvalidInput
from clew.flows import Flows, HostMemories, Leases, core_for, repeatable
from clew.flows.recording import RecordingFlows
from clew.groups.retention import Retention
from clew.groups.runs import Runs
from clew.groups.timeline import Timeline
from clew.recorder import DEFAULT_PENDING, Recorder
from clew.records import (
    Checkpoint,
    CheckpointConfig,
    CheckpointMetadata,
    CheckpointSource,
    CheckpointTuple,
    DurabilityMode,
    Page,
    PendingWrite,
    Thread,
    ThreadStatistics,
)
from clew.repository import DEFAULT_MEMORY_BYTES, NOT_CHECKED, ExpectedHead, Filters

if TYPE_CHECKING:
    from sqlalchemy.orm import Session, scoped_session

__all__ = ["Checkpointer"]

State = TypeVar("State", default=Any)


class Checkpointer(Generic[State]):
    """Keeps checkpoints in Postgres or SQLite. Safe to share between threads; see ``AsyncCheckpointer`` for tasks.

    Use ``Checkpointer.open(url)``, or ``Checkpointer(engine)`` around an engine of your own, whose settings are not
    touched and which stays open. Either is a context manager.

    Every method raises ``StorageUnavailable`` where the database cannot be reached or answers too late, ``Contention``
    where other transactions kept getting in the way, ``SchemaMismatch`` where the schema is not this version's,
    ``InvalidInput`` for an id or a namespace that cannot be stored and for a limit out of range, and ``WrongContext``
    after ``close()`` or in a forked child; the methods name only what is theirs.
    """

    def __init__(
        self,
        engine: Engine | SyncDatabase,
        *,
        migrate: bool = False,
        schema: str | None = None,
        state_type: type[State] | None = None,
        types: Iterable[type] = (),
        codec: Codec | None = None,
        leases: Leases = "strict",
        memory_bytes: int = DEFAULT_MEMORY_BYTES,
        timeout_s: float | None = None,
    ) -> None:
        """Around ``engine``; nothing is connected yet. The options are those of ``open``."""
        database = engine if isinstance(engine, SyncDatabase) else wrap_sync(engine, timeout_s=timeout_s)
        core = core_for(
            database.dialect,
            schema=schema,
            state_type=state_type,
            types=types,
            codec=codec,
            leases=leases,
            memory_bytes=memory_bytes,
        )
        self._use(Driver(database, core, migrate=migrate))

    def _use(self, driver: Driver) -> None:
        self._driver = driver
        self._flows = Flows(driver.core)
        self._hosts = HostMemories(driver.core)

    @classmethod
    def open(
        cls,
        url: str,
        *,
        migrate: bool = False,
        schema: str | None = None,
        state_type: type[State] | None = None,
        types: Iterable[type] = (),
        codec: Codec | None = None,
        leases: Leases = "strict",
        memory_bytes: int = DEFAULT_MEMORY_BYTES,
        pool_size: int = 10,
        max_overflow: int = 10,
        pool_recycle_s: float | None = None,
        pre_ping: bool = False,
        timeout_s: float | None = None,
        pgbouncer: bool | None = None,
    ) -> Self:
        """Open a checkpointer of its own pool, and make sure that the schema is this version's.

        ``url`` is ``sqlite://`` (in memory, one database for this checkpointer, migrated by itself),
        ``sqlite:///file.db`` or ``postgresql://…``, also as hosted databases hand it out. ``migrate`` brings the
        database to this version's schema first. ``schema`` is a Postgres schema, None the connection's default.
        ``state_type`` is what states are read back as; its enums, dataclasses and models are registered with the
        codec, and so are ``types``; ``codec`` takes a registry of your own instead. ``leases="advisory"`` lets writes
        without a token pass while somebody holds the thread's lease. ``memory_bytes`` bounds what is remembered of the
        threads written last. ``timeout_s`` bounds each wait for a lock, a statement, SQLite's busy state and a free
        connection (None: Postgres' own limits, 30 seconds for the rest). ``pgbouncer`` says that PgBouncer in
        transaction mode stands in between. The pool's options are SQLAlchemy's.

        Raises:
            InvalidUrl: the URL cannot be honoured as written.
            SchemaMismatch: the database is behind, ahead of, or not clew's, or the SQLite file is not there, and
                ``migrate`` was not given. No file is created then.
        """
        options = EngineOptions(
            pool_size=pool_size,
            max_overflow=max_overflow,
            pool_recycle_s=pool_recycle_s,
            pre_ping=pre_ping,
            timeout_s=timeout_s,
            pgbouncer=pgbouncer,
            create=migrate,
        )
        database = open_sync(url, options)
        try:
            opened = cls(
                database,
                migrate=migrate or parse(url).in_memory,
                schema=schema,
                state_type=state_type,
                types=types,
                codec=codec,
                leases=leases,
                memory_bytes=memory_bytes,
            )
            opened._driver.make_ready()
        except BaseException:
            database.close()
            raise
        return opened

    def __enter__(self) -> Self:
        self._driver.make_ready()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the pool, if it is the checkpointer's own. Closing twice is fine."""
        self._driver.database.close()

    def bind(self, connection: Connection | Session | scoped_session[Any]) -> Checkpointer[State]:
        """A checkpointer whose methods work inside the transaction of ``connection``, which the caller ends.

        What it stores and the caller's own rows are committed or rolled back together. It commits nothing, repeats
        nothing, and an error that it raises leaves the transaction usable and as it was before the call. It is good
        for as long as the connection or the session is, for one thread at a time, and need not be closed. A thread
        that was put to stays locked until the transaction ends, so keep that short.

        The transaction has to be READ COMMITTED on Postgres, of any kind on SQLite, where one that has read before
        it first writes should be begun with ``BEGIN IMMEDIATE``. Time limits are the connection's. Savepoints are
        to be SQLAlchemy's (``begin_nested``), not made by hand: it has to know when one is rolled back.

        Every method of it also raises ``InvalidInput`` on a connection in AUTOCOMMIT or above READ COMMITTED.

        Raises:
            InvalidInput: neither a ``Connection`` nor a ``Session``, for the other kind of database, or bound already.
        """
        if isinstance(self._driver.database, BoundDatabase):
            raise InvalidInput("this checkpointer is bound already; bind the one that it came from")
        target, pool = bound_sync(connection)
        core, staged = self._hosts.staged(pool, self._driver.database.engine.pool)
        bound = object.__new__(type(self))
        bound._use(self._driver.bound(BoundDatabase(target, staged, core.store.dialect.name), core))
        return bound

    def ping(self) -> None:
        """Ask the database for a sign of life, for a health check."""
        self._driver.database.ping()

    @property
    def runs(self) -> Runs:
        """Agent runs, their boundaries, and leases."""
        return Runs(self._driver)

    @property
    def retention(self) -> Retention:
        """Cleaning up and moving: pruning, expiry, verifying, compacting, export and import."""
        return Retention(self._driver)

    @property
    def timeline(self) -> Timeline:
        """Looking back, lineage and changing course: snapshots, diffs, forks, updates, copies."""
        return Timeline(self._driver)

    def recorder(
        self,
        thread_id: str,
        namespace: Iterable[str] = (),
        *,
        run_id: str | None = None,
        durability: DurabilityMode | str = DurabilityMode.SYNC,
        lease_token: int | None = None,
        max_pending: int = DEFAULT_PENDING,
    ) -> Recorder:
        """A recorder of the boundaries of a run in one namespace, to be entered with ``with``.

        It gives out ids up front, each boundary the child of the last one, beginning from the namespace's latest.
        ``durability`` is ``sync`` (durable before ``record`` returns), ``async`` (written in the background, in order)
        or ``exit`` (the last boundary alone, and each that interrupts). ``lease_token`` is what every write presents.
        ``max_pending`` bounds what is queued in ``async``.

        Raises:
            InvalidInput: an id or namespace that cannot be stored, an unknown durability.
        """
        flows = RecordingFlows(self._driver.core, thread_id, namespace, run_id, lease_token)
        return Recorder(self._driver, flows, durability, max_pending)

    def put(
        self,
        checkpoint: Checkpoint[State],
        *,
        expected_head: ExpectedHead = NOT_CHECKED,
        lease_token: int | None = None,
    ) -> CheckpointConfig:
        """Store a checkpoint and the writes it carries, atomically; its address is returned once it is durable.

        The state is matched against the parent's, or against the namespace's latest where no parent is given or there,
        and only what is new is stored. The state may be changed by the caller as soon as the call returns.

        Repeating a put exactly succeeds, whatever lease or head says, and changes nothing but when the thread was last
        active. A different checkpoint under an id that exists replaces it and becomes the latest; its later writes and
        its children stay. Without a parent a thread that does not exist is created. ``expected_head`` is the id that
        the namespace's latest must have, None for a namespace that must be empty. ``lease_token`` comes from
        ``acquire_lease``.

        Raises:
            InvalidInput: an id or namespace that cannot be stored, its own parent, a state that was never loaded.
            Unserializable: a value that would not come back as it is; ``path`` says where.
            NotFound: a parent is named, but the thread does not exist: it was deleted.
            StaleHead: the latest is not ``expected_head``.
            StaleFence: the lease is somebody else's, or the token's lease has lapsed.
        """
        return self._driver.drive(self._flows.put(checkpoint, expected_head, lease_token))

    def put_writes(
        self, config: CheckpointConfig, writes: Iterable[PendingWrite], *, lease_token: int | None = None
    ) -> None:
        """Add writes to the ledger of a checkpoint, which may come later; atomically.

        A write is identified by (task_id, idx): a negative ``idx`` replaces the stored one in its old place, any other
        keeps the first that came. Repeating a batch changes nothing. An empty batch is fine.

        Raises:
            InvalidInput: no ``checkpoint_id``, or a label that cannot be stored.
            Unserializable: a payload that would not come back as it is.
            StaleFence: see ``put``.
        """
        self._driver.drive(self._flows.put_writes(config, writes, lease_token))

    def get_writes(self, config: CheckpointConfig) -> builtins.list[PendingWrite]:
        """All writes of a checkpoint, in order of arrival, whether or not the checkpoint is there yet."""
        return self._driver.run(self._flows.get_writes(config))

    def get(self, config: CheckpointConfig) -> Checkpoint[State] | None:
        """The checkpoint with its state, or None. Without an id the latest of the namespace.

        Raises:
            CorruptData: naming the checkpoint, where a stored row cannot be read.
        """
        return self._driver.drive(self._flows.get(config))

    def get_tuple(
        self, config: CheckpointConfig, *, load_state: bool = True, channels: Collection[str] | None = None
    ) -> CheckpointTuple[State] | None:
        """The checkpoint with all its writes, its parent's address and its listing record, or None.

        With ``load_state=False`` its state is ``clew.NOT_LOADED`` and nothing of it is read. With ``channels`` only
        these top-level keys are read, and the state is a plain dict of those that are there; a mapping of more than 64
        keys is read whole for it, and a state that is no mapping is given as it is.

        Raises:
            InvalidInput: ``channels`` is a single string.
            CorruptData: naming the checkpoint, where a stored row cannot be read.
        """
        return self._driver.run(self._flows.get_tuple(config, load_state, channels))

    def list(
        self,
        thread_id: str,
        *,
        limit: int = 100,
        cursor: str | None = None,
        newest_first: bool = True,
        namespace: Iterable[str] | None = None,
        under: Iterable[str] | None = None,
        run_id: str | None = None,
        source: CheckpointSource | str | None = None,
        step: int | None = None,
        metadata: Mapping[str, Any] | None = None,
        before: str | None = None,
        after: str | None = None,
        created_before: datetime | None = None,
        created_after: datetime | None = None,
    ) -> Page[CheckpointMetadata]:
        """A page of the thread's checkpoints in the order of their commits, without reading any state.

        At most ``limit`` (1 to 10,000); ``next_cursor`` continues, also after other writes. All filters hold at once:
        ``namespace`` is exact, ``under`` is a namespace with everything below it, and None means all of them.
        ``before`` and ``after`` are checkpoint ids (of ``namespace``, else of the root one), excluded like the instants
        ``created_before`` and ``created_after``. ``metadata`` names top-level keys and whole values: ``True`` is not
        ``1``, ``1`` is not ``1.0``, and None matches a stored null only. Of an unknown thread, and around an id that is
        not there, the page is empty.

        Raises:
            InvalidInput: a limit out of range, a cursor of another thread or order, an instant without a time zone.
        """
        filters = Filters(
            namespace, under, run_id, source, step, metadata, before, after, created_before, created_after
        )
        return self._driver.run(self._flows.list(thread_id, limit, cursor, newest_first, filters))

    def iterate(self, thread_id: str, *, page_size: int = 100, **filters: Any) -> Iterator[CheckpointMetadata]:
        """Every record that ``list`` would give, page by page. No lock and no connection is held in between.

        Takes the filters of ``list`` and ``newest_first``.
        """
        filters, cursor = repeatable(filters), None
        while True:
            page = self.list(thread_id, limit=page_size, cursor=cursor, **filters)
            yield from page.items
            if (cursor := page.next_cursor) is None:
                return

    def history(self, config: CheckpointConfig, limit: int = 100) -> builtins.list[CheckpointMetadata]:
        """The checkpoint and its ancestors in its namespace, itself first, at most ``limit`` (1 to 10,000).

        It ends at a root, at a parent that is not there, and at a cycle. No state is read.
        """
        return self._driver.run(self._flows.history(config, limit))

    def get_thread(self, thread_id: str) -> Thread | None:
        """The thread with its number of checkpoints, or None where it never had one."""
        return self._driver.run(self._flows.get_thread(thread_id))

    def list_threads(self, *, limit: int = 100, cursor: str | None = None) -> Page[Thread]:
        """A page of threads, the last active first, at most ``limit`` (1 to 10,000). Checkpoints are not counted.

        Raises:
            InvalidInput: a limit out of range, or a cursor of another listing.
        """
        return self._driver.run(self._flows.list_threads(limit, cursor))

    def statistics(self, thread_id: str) -> ThreadStatistics | None:
        """How much information the thread holds, and the bytes it is stored in; None where there is no such thread.

        Every row of the thread is read for it, and nothing is locked: while it is written to, this is an estimate.

        Raises:
            CorruptData: a stored row cannot be read.
        """
        return self._driver.run(self._flows.statistics(thread_id))

    def delete_thread(self, thread_id: str, *, lease_token: int | None = None) -> bool:
        """Delete a thread with everything of it, atomically; False where there was none.

        Its id may be used again; nothing that was written or leased before is valid then.

        Raises:
            StaleFence: see ``put``.
        """
        return self._driver.drive(self._flows.delete_thread(thread_id, lease_token))

    def delete_checkpoints(
        self,
        thread_id: str,
        checkpoint_ids: Iterable[str],
        *,
        namespace: Iterable[str] = (),
        lease_token: int | None = None,
    ) -> int:
        """Delete these checkpoints of ``namespace`` with their writes, atomically; how many there were.

        Every other checkpoint still reads back in full. Surviving children get the nearest surviving ancestor as their
        parent, and what nobody names any more is removed. Unknown ids are passed over.

        Raises:
            InvalidInput: ``checkpoint_ids`` is a single string.
            StaleFence: see ``put``.
        """
        return self._driver.run(self._flows.delete_checkpoints(thread_id, checkpoint_ids, namespace, lease_token))

    def delete_by_run(self, run_id: str, *, thread_id: str | None = None, lease_token: int | None = None) -> int:
        """Delete a run's checkpoints, in one thread or (None) in all; how many there were. See ``delete_checkpoints``.

        Each thread is one transaction. Checkpoints without a run are never meant.

        Raises:
            StaleFence: see ``put``; threads done before stay done.
        """
        return self._driver.drive(self._flows.delete_by_run(run_id, thread_id, lease_token))

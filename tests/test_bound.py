"""``bind`` where the databases, the drivers or the host's settings differ. What is alike: ``contract/test_bound``."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, scoped_session, sessionmaker

import clew
from clew import Checkpoint, CheckpointConfig, Checkpointer, Contention, InvalidInput, StorageUnavailable

from hosting import host_engine
from probe import Probe

LATEST = CheckpointConfig.latest("t")


def said(*words: str) -> Checkpoint[Any]:
    return Checkpoint(thread_id="t", checkpoint_id=words[-1], state={"messages": list(words)})


def words_of(checkpointer: Checkpointer[Any], checkpoint_id: str | None = None) -> Any:
    found = checkpointer.get(CheckpointConfig(thread_id="t", checkpoint_id=checkpoint_id))
    return None if found is None else found.state["messages"]


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    engine = host_engine(database_url, "sync")
    yield engine
    engine.dispose()


@pytest.fixture
def postgres_engine(postgres_url: str) -> Iterator[Engine]:
    engine = host_engine(postgres_url, "sync")
    yield engine
    engine.dispose()


# What is refused


def test_autocommit_is_refused_by_name(engine: Engine) -> None:
    checkpointer = Checkpointer[Any](engine)
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        bound = checkpointer.bind(connection)
        with pytest.raises(InvalidInput, match="AUTOCOMMIT"):
            bound.put(said("a"))
        with pytest.raises(InvalidInput, match="AUTOCOMMIT"):
            bound.get(LATEST)
    assert checkpointer.get(LATEST) is None


async def test_autocommit_is_refused_on_async_drivers(database_url: str) -> None:
    engine = host_engine(database_url, "async", isolation_level="AUTOCOMMIT")
    checkpointer = clew.AsyncCheckpointer[Any](engine)
    async with engine.connect() as connection:
        with pytest.raises(InvalidInput, match="AUTOCOMMIT"):
            await checkpointer.bind(connection).put(said("a"))
    await checkpointer.put(said("a"))  # its own transactions are its own
    await engine.dispose()


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
@pytest.mark.parametrize("how", ["engine", "connection", "statement", "default"])
def test_a_transaction_above_read_committed_is_refused_however_it_came_to_be(
    postgres_url: str, level: Any, how: str
) -> None:
    options: dict[str, Any] = {}
    if how == "engine":
        options["isolation_level"] = level
    if how == "default":
        escaped = level.lower().replace(" ", "\\ ")
        options["connect_args"] = {"options": f"-c default_transaction_isolation={escaped}"}
    engine = host_engine(postgres_url, "sync", **options)
    checkpointer = Checkpointer[Any](engine)
    with engine.connect() as connection:
        if how == "connection":
            connection = connection.execution_options(isolation_level=level)
        if how == "statement":
            connection.execute(text(f"SET TRANSACTION ISOLATION LEVEL {level}"))
        with pytest.raises(InvalidInput, match=level):
            checkpointer.bind(connection).put(said("a"))
        assert connection.scalar(text("SELECT 1")) == 1  # the transaction goes on
    checkpointer.put(said("a"))
    assert words_of(checkpointer) == ["a"]
    engine.dispose()


def test_a_translated_schema_is_refused(engine: Engine) -> None:
    with engine.connect().execution_options(schema_translate_map={None: "tenant"}) as connection:
        bound = Checkpointer[Any](engine).bind(connection)
        with pytest.raises(InvalidInput, match="schema_translate_map"):
            bound.get(LATEST)


def test_a_connection_to_the_other_kind_of_database_is_refused(postgres_url: str, sqlite_url: str) -> None:
    here, there = host_engine(sqlite_url, "sync"), host_engine(postgres_url, "sync")
    with there.connect() as connection, pytest.raises(InvalidInput, match="is for sqlite"):
        Checkpointer[Any](here).bind(connection)
    here.dispose()
    there.dispose()


async def test_each_face_refuses_what_belongs_to_the_other(sqlite_url: str) -> None:
    engine, aengine = host_engine(sqlite_url, "sync"), host_engine(sqlite_url, "async")
    async with aengine.connect() as connection:
        with pytest.raises(InvalidInput, match="AsyncConnection"):
            Checkpointer[Any](engine).bind(connection)  # type: ignore[arg-type]
    with engine.connect() as plain, pytest.raises(InvalidInput, match="not Connection"):
        clew.AsyncCheckpointer[Any](aengine).bind(plain)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="not connected yet"):
        clew.AsyncCheckpointer[Any](aengine).bind(aengine.connect())
    engine.dispose()
    await aengine.dispose()


def test_a_session_without_an_engine_of_its_own_is_refused(engine: Engine) -> None:
    class Base(DeclarativeBase):
        pass

    class Order(Base):
        __tablename__ = "orders"
        id: Mapped[int] = mapped_column(primary_key=True)

    with Session(binds={Order: engine}) as session:
        with pytest.raises(InvalidInput, match="bind a connection of it"):
            Checkpointer[Any](engine).bind(session)
        Checkpointer[Any](engine).bind(session.connection({"mapper": Order})).put(said("a"))
        session.commit()
    assert words_of(Checkpointer[Any](engine)) == ["a"]


# Sessions


async def test_scoped_sessions_are_bound_by_what_they_stand_for(database_url: str) -> None:
    engine, aengine = host_engine(database_url, "sync"), host_engine(database_url, "async")
    registry = scoped_session(sessionmaker(engine))
    Checkpointer[Any](engine).bind(registry).put(said("a"))
    registry.commit()
    registry.remove()
    aregistry: Any = async_scoped_session(async_sessionmaker(aengine), scopefunc=lambda: 1)
    await clew.AsyncCheckpointer[Any](aengine).bind(aregistry).put(said("a", "b"))
    await aregistry.commit()
    await aregistry.remove()
    assert words_of(Checkpointer[Any](engine)) == ["a", "b"]
    engine.dispose()
    await aengine.dispose()


def test_a_session_stays_bound_over_its_transactions(engine: Engine) -> None:
    checkpointer = Checkpointer[Any](engine)
    with Session(engine) as session:
        bound = checkpointer.bind(session)
        with session.begin():
            bound.put(said("a"))
        bound.put(said("a", "lost"))
        session.rollback()
        with session.begin():
            bound.put(said("a", "b"))
    assert words_of(checkpointer) == ["a", "b"]
    assert words_of(checkpointer, "lost") is None


def test_a_tests_outer_transaction_keeps_what_a_session_commits_from_being_remembered(engine: Engine) -> None:
    checkpointer = Checkpointer[Any](engine)
    checkpointer.put(said("a"))
    with engine.connect() as connection, connection.begin() as outer:
        with Session(connection, join_transaction_mode="create_savepoint") as session:
            checkpointer.bind(session).put(said("a", "lost"))
            session.commit()
        outer.rollback()
    checkpointer.put(said("a", "b"))
    checkpointer.put(said("a", "b", "c"))
    assert words_of(checkpointer) == ["a", "b", "c"]


# Databases


def test_versions_of_another_database_are_not_taken_for_this_ones(
    tmp_path: Path, sqlite_template: Path, sqlite_url: str
) -> None:
    other_path = tmp_path / "other.db"
    other_path.write_bytes(sqlite_template.read_bytes())
    here, there = host_engine(sqlite_url, "sync"), host_engine(f"sqlite:///{other_path}", "sync")
    checkpointer, other = Checkpointer[Any](here), Checkpointer[Any](there)
    checkpointer.put(said("a"))
    other.put(said("z"))  # the same thread, key and version, and something else in it
    with there.begin() as connection:
        checkpointer.bind(connection).put(said("a", "b"))
    assert words_of(other) == ["a", "b"]
    assert Probe(f"sqlite:///{other_path}").problems() == []
    here.dispose()
    there.dispose()


def test_a_host_that_does_not_enforce_foreign_keys_gets_the_same(sqlite_url: str) -> None:
    engine = create_engine(sqlite_url)  # SQLite's default
    checkpointer = Checkpointer[Any](engine)
    for words in (["a"], ["a", "b"], ["x"]):
        checkpointer.put(said(*words))
    checkpointer.put_writes(
        CheckpointConfig(thread_id="t", checkpoint_id="a"), [clew.PendingWrite(node="n", payload=1, task_id="k")]
    )
    with engine.begin() as connection:
        bound = checkpointer.bind(connection)
        bound.delete_checkpoints("t", ["a"])
        bound.put(said("a", "b", "c"))
    assert Probe(sqlite_url).problems() == []
    with engine.begin() as connection:
        checkpointer.bind(connection).delete_thread("t")
    with engine.connect() as connection:
        for table in checkpointer._driver.core.store.tables.metadata.sorted_tables:
            if "version" not in table.name or table.name == "clew_thread_versions":
                assert connection.scalar(text(f"SELECT count(*) FROM {table.name}")) == 0, table.name
    engine.dispose()


def test_a_bound_put_on_an_empty_database_migrates_it_where_that_was_asked_for(empty_database_url: str) -> None:
    engine = host_engine(empty_database_url, "sync")
    with engine.begin() as connection:
        Checkpointer[Any](engine, migrate=True).bind(connection).put(said("a"))
    with engine.connect() as connection:
        assert words_of(Checkpointer[Any](engine).bind(connection)) == ["a"]
    engine.dispose()


def test_a_bound_put_on_an_empty_database_names_the_command(empty_database_url: str) -> None:
    engine = host_engine(empty_database_url, "sync")
    with engine.begin() as connection:
        with pytest.raises(clew.SchemaMismatch, match="clew migrate"):
            Checkpointer[Any](engine).bind(connection).put(said("a"))
        assert connection.scalar(text("SELECT 1")) == 1
    engine.dispose()


# SQLite


def begun_plainly(url: str) -> Engine:
    """The recipe of SQLAlchemy's manual for SQLite: transactions begin with BEGIN, as readers."""
    engine = create_engine(url)

    @event.listens_for(engine, "connect")
    def connect(driver: Any, _: Any) -> None:
        driver.isolation_level = None

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN")

    return engine


def test_a_reading_transaction_becomes_a_writing_one(sqlite_url: str) -> None:
    engine = begun_plainly(sqlite_url)
    checkpointer = Checkpointer[Any](engine)
    checkpointer.put(said("a"))
    with engine.begin() as connection:
        bound = checkpointer.bind(connection)
        assert words_of(bound) == ["a"]
        bound.put(said("a", "b"))
    assert words_of(checkpointer) == ["a", "b"]
    engine.dispose()


def test_a_transaction_that_has_read_what_is_out_of_date_is_told_to_start_over(sqlite_url: str) -> None:
    engine = begun_plainly(sqlite_url)
    checkpointer = Checkpointer[Any](engine)
    checkpointer.put(said("a"))
    with engine.connect() as connection:
        bound = checkpointer.bind(connection)
        assert words_of(bound) == ["a"]
        checkpointer.put(said("a", "b"))
        with pytest.raises(Contention, match="repeat it as a whole"):
            bound.put(said("a", "c"))
        assert words_of(bound) == ["a"]  # what it had read, it still reads
        connection.rollback()
        bound.put(said("a", "b", "c"))
        connection.commit()
    assert words_of(checkpointer) == ["a", "b", "c"]
    assert Probe(sqlite_url).problems() == []
    engine.dispose()


def test_a_transaction_takes_the_lock_with_its_first_write_and_not_before(sqlite_url: str) -> None:
    engine = host_engine(sqlite_url, "sync")
    checkpointer = Checkpointer[Any](engine)
    with engine.connect() as one, engine.connect() as two:
        assert words_of(checkpointer.bind(one)) is None
        checkpointer.bind(two).put(said("a"))
        two.commit()
        checkpointer.bind(one).put(said("a", "b"))
        one.commit()
    assert words_of(checkpointer) == ["a", "b"]
    engine.dispose()


# Postgres


def test_a_limit_that_is_reached_leaves_the_transaction_usable(postgres_engine: Engine) -> None:
    checkpointer = Checkpointer[Any](postgres_engine)
    checkpointer.put(said("a"))
    with postgres_engine.connect() as one, postgres_engine.connect() as two:
        checkpointer.bind(one).put(said("a", "b"))
        two.execute(text("SET LOCAL lock_timeout = '100ms'"))
        with pytest.raises(StorageUnavailable, match="55P03"):
            checkpointer.bind(two).put(said("a", "c"))
        assert words_of(checkpointer.bind(two)) == ["a"]
        two.commit()
        one.commit()
    assert words_of(checkpointer) == ["a", "b"]


def test_a_lost_connection_is_unavailable_and_nothing_of_it_is_remembered(
    postgres_engine: Engine, postgres_url: str
) -> None:
    checkpointer = Checkpointer[Any](postgres_engine)
    checkpointer.put(said("a"))
    with postgres_engine.connect() as connection:
        bound = checkpointer.bind(connection)
        bound.put(said("a", "lost"))
        pid = connection.scalar(text("SELECT pg_backend_pid()"))
        with psycopg.connect(postgres_url, autocommit=True) as killer:
            killer.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])
        with pytest.raises(StorageUnavailable, match="nothing was stored"):
            bound.put(said("a", "lost", "too"))
        connection.rollback()
        bound.put(said("a", "b"))
        connection.commit()
    checkpointer.put(said("a", "b", "c"))
    assert words_of(checkpointer) == ["a", "b", "c"]
    assert Probe(postgres_url).problems() == []


def test_two_transactions_on_one_thread_follow_each_other(postgres_engine: Engine, postgres_url: str) -> None:
    checkpointer = Checkpointer[Any](postgres_engine)
    checkpointer.put(said("a"))
    with postgres_engine.connect() as one:
        checkpointer.bind(one).put(said("a", "b"))

        def second() -> None:
            with postgres_engine.begin() as two:
                checkpointer.bind(two).put(said("a", "b", "c"), expected_head="b")

        waiting = threading.Thread(target=second)
        waiting.start()
        time.sleep(0.2)
        assert waiting.is_alive()
        one.commit()
        waiting.join(10)
    assert words_of(checkpointer) == ["a", "b", "c"]
    assert Probe(postgres_url).problems() == []


def test_a_transaction_in_two_phases_is_not_remembered_for_its_end_is_out_of_sight(postgres_engine: Engine) -> None:
    checkpointer = Checkpointer[Any](postgres_engine)
    checkpointer.put(said("a"))
    known = checkpointer._driver.core.memory.get("t")
    with postgres_engine.connect() as connection:
        transaction = connection.begin_twophase()
        checkpointer.bind(connection).put(said("a", "b"))
        transaction.commit()
    assert words_of(checkpointer) == ["a", "b"]
    assert checkpointer._driver.core.memory.get("t") is known


async def test_a_put_that_was_cut_off_takes_the_hosts_transaction_with_it(postgres_url: str) -> None:
    engine = create_async_engine(postgres_url.replace("postgresql:", "postgresql+asyncpg:"))
    checkpointer = clew.AsyncCheckpointer[Any](engine)
    await checkpointer.put(said("a"))
    async with AsyncSession(engine) as one, AsyncSession(engine) as two:
        await checkpointer.bind(one).put(said("a", "b"))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(checkpointer.bind(two).put(said("a", "c")), 0.2)
        await two.rollback()
        await one.commit()
        await checkpointer.bind(two).put(said("a", "b", "d"))
        await two.commit()
    found = await checkpointer.get(LATEST)
    assert found is not None
    assert found.state == {"messages": ["a", "b", "d"]}
    await engine.dispose()


def test_a_bound_put_takes_one_statement_and_its_savepoint(postgres_engine: Engine) -> None:
    checkpointer = Checkpointer[Any](postgres_engine)
    checkpointer.put(said("a"))
    sent: list[str] = []
    with postgres_engine.connect() as connection:
        event.listen(connection, "before_cursor_execute", lambda *given: sent.append(given[2].split()[0]))
        bound = checkpointer.bind(connection)
        bound.put(said("a", "b"))
        assert sent == ["SHOW", "SAVEPOINT", "WITH", "RELEASE"]
        bound.put(said("a", "b", "c"))
        assert sent[4:] == ["SAVEPOINT", "WITH", "RELEASE"]
        connection.commit()
    assert words_of(checkpointer) == ["a", "b", "c"]

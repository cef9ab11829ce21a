"""The interface as a whole: two faces that are one, everything documented, nothing foreign let through."""

from __future__ import annotations

import inspect
import socket
import sqlite3
import threading
import typing
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import create_engine

import clew
from clew import AsyncCheckpointer, Checkpoint, CheckpointConfig, Checkpointer, PendingWrite


@pytest.fixture
def postgres_url(shared_postgres_url: str) -> str:
    return shared_postgres_url


# Two faces


def members(face: type) -> dict[str, Any]:
    return {name: inspect.getattr_static(face, name) for name in dir(face) if not name.startswith("_")}


def groups(face: type) -> dict[str, type]:
    return {
        name: typing.get_type_hints(member.fget)["return"]
        for name, member in members(face).items()
        if isinstance(member, property)
        and typing.get_type_hints(member.fget)["return"].__module__.startswith("clew.groups")
    }


PAIRS = [(Checkpointer, AsyncCheckpointer)]
PAIRS += [(group, groups(AsyncCheckpointer)[name]) for name, group in groups(Checkpointer).items()]
PAIRS += [(group, groups(two)[name]) for one, two in PAIRS[1:] for name, group in groups(one).items()]
METHODS = [
    (one, two, name)
    for one, two in PAIRS
    for name, member in members(one).items()
    if name != "close" and not isinstance(member, property)
]


def test_the_faces_have_the_same_groups() -> None:
    assert groups(Checkpointer).keys() == groups(AsyncCheckpointer).keys()
    assert set(groups(Checkpointer)) <= {"timeline", "retention", "runs"}


@pytest.mark.parametrize(("one", "two"), PAIRS, ids=lambda face: face.__name__)
def test_the_faces_have_the_same_names(one: type, two: type) -> None:
    renamed = {"close": "aclose"} if one is Checkpointer else {}
    assert {renamed.get(name, name) for name in members(one)} == set(members(two))


def plain(face: type, name: str) -> list[tuple[Any, ...]]:
    """Names, kinds and defaults of the parameters; what they are annotated with is compared but for the driver."""
    signature = inspect.signature(getattr(face, name))
    return [(each.name, each.kind, each.default) for each in signature.parameters.values()]


@pytest.mark.parametrize(("one", "two", "name"), METHODS, ids=lambda value: value if isinstance(value, str) else "")
def test_the_faces_have_the_same_signatures(one: type, two: type, name: str) -> None:
    assert plain(one, name) == plain(two, name)


@pytest.mark.parametrize(("one", "two", "name"), METHODS, ids=lambda value: value if isinstance(value, str) else "")
def test_what_the_one_face_does_the_other_is_awaited_for(one: type, two: type, name: str) -> None:
    sync, awaited = getattr(one, name), getattr(two, name)
    assert not inspect.iscoroutinefunction(sync)
    hints = inspect.signature(sync).return_annotation
    if name in ("open", "bind", "recorder", "lease"):
        return
    assert inspect.iscoroutinefunction(awaited) or inspect.isasyncgenfunction(awaited), hints
    assert inspect.isasyncgenfunction(awaited) == inspect.isgeneratorfunction(sync)


@pytest.mark.parametrize("face", [Checkpointer, AsyncCheckpointer])
def test_only_the_subject_of_a_call_is_positional(face: type) -> None:
    allowed = {
        "put": 1, "put_writes": 2, "get_writes": 1, "get": 1, "get_tuple": 1, "list": 1, "iterate": 1, "history": 2,
        "get_thread": 1, "list_threads": 0, "delete_thread": 1, "delete_checkpoints": 2, "delete_by_run": 1, "open": 1,
    }  # fmt: skip
    for name, most in allowed.items():
        parameters = inspect.signature(getattr(face, name)).parameters.values()
        positional = [p for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD and p.name != "self"]
        assert len(positional) <= most, name


# Names and documentation


@pytest.mark.parametrize("face", [Checkpointer, AsyncCheckpointer])
def test_a_checkpointer_without_a_state_type_is_one_of_any_state(face: Any) -> None:
    # Else mypy asks for an annotation at every `checkpointer = clew.Checkpointer.open(url)`.
    (state,) = face.__parameters__
    assert state.__default__ is Any


def test_all_is_sorted_and_every_name_is_there() -> None:
    def order(name: str) -> tuple[int, str]:
        return (0 if name.isupper() else 1 if name[0].isupper() else 2, name)

    assert list(clew.__all__) == sorted(clew.__all__, key=order)
    assert len(set(clew.__all__)) == len(clew.__all__)
    assert all(hasattr(clew, name) for name in clew.__all__)


def test_every_record_error_and_function_is_public() -> None:
    from clew import errors, records

    missing = [
        name
        for module in (errors, records)
        for name in module.__all__
        if name[0].isupper() and name not in clew.__all__
    ]
    # What a caller meets only as the type of something else has no need to be named at the top.
    internal = {name for name in missing if not name.isupper() and not isinstance(getattr(records, name, None), type)}
    assert sorted(set(missing) - internal - {"NotLoaded", "Record"}) == []


PUBLIC = [
    getattr(clew, name)
    for name in clew.__all__
    if inspect.isclass(getattr(clew, name)) or inspect.isfunction(getattr(clew, name))
]


@pytest.mark.parametrize("thing", PUBLIC, ids=lambda thing: thing.__name__)
def test_everything_public_has_a_docstring(thing: Any) -> None:
    assert (thing.__doc__ or "").strip(), thing
    if not inspect.isclass(thing):
        return
    for name, member in vars(thing).items():
        if name.startswith("_") or not (callable(member) or isinstance(member, property | classmethod | staticmethod)):
            continue
        if inspect.isclass(member) or typing.get_origin(member) is not None:
            continue
        assert (inspect.getdoc(getattr(thing, name)) or "").strip(), f"{thing.__name__}.{name}"


@pytest.mark.parametrize(("one", "two", "name"), METHODS, ids=lambda value: value if isinstance(value, str) else "")
def test_every_method_of_both_faces_has_a_docstring(one: type, two: type, name: str) -> None:
    assert (getattr(one, name).__doc__ or "").strip()
    assert (getattr(two, name).__doc__ or "").strip()


def test_every_error_is_a_clew_error_and_can_be_pickled() -> None:
    import pickle

    from clew import errors

    for name in errors.__all__:
        assert issubclass(getattr(errors, name), errors.ClewError)
    given = [
        errors.Unserializable("state.a", "no"),
        errors.UnknownType("T"),
        errors.StaleHead("m", expected="a", actual=None),
        errors.StorageUnavailable("m", maybe_stored=True),
        errors.SchemaMismatch("m", found=None, expected="x"),
        errors.StaleFence("m", token=1, current=2),
        errors.LeaseHeld("m", owner="o", until=datetime.now(UTC)),
    ]
    for error in given:
        copied = pickle.loads(pickle.dumps(error))
        assert (type(copied), str(copied), vars(copied)) == (type(error), str(error), vars(error))


# Nothing foreign gets through


def write(payload: Any = 1, **fields: Any) -> PendingWrite:
    return PendingWrite(node="n", payload=payload, **fields)


def at(checkpoint_id: str | None = "c1") -> CheckpointConfig:
    return CheckpointConfig(thread_id="t", checkpoint_id=checkpoint_id)


def made(state: Any = 0, **fields: Any) -> Checkpoint[Any]:
    return Checkpoint(thread_id="t", checkpoint_id="c1", state=state, **fields)


FAR = datetime.max.replace(tzinfo=timezone(timedelta(hours=-12)))
NEAR = datetime.min.replace(tzinfo=timezone(timedelta(hours=12)))
CALLS: dict[str, Callable[[Any], Any]] = {
    "a state of a foreign type": lambda c: c.put(made(socket)),
    "a state that is a class": lambda c: c.put(made(Checkpointer)),
    "metadata with a NUL and a surrogate": lambda c: c.put(made(metadata={"a\0": "\ud800"})),
    "labels with a NUL": lambda c: c.put(made(next_nodes=["a\0\ud800"], completed_tasks=["\0\ud800"])),
    "an interrupt with a surrogate": lambda c: c.put(
        made(interrupts=[clew.Interrupt(id="\ud800", node="\0", payload=0)])
    ),
    "a barrier with a surrogate": lambda c: c.put(
        made(barrier_arrivals=[clew.BarrierArrivals(node="\ud800", arrived=["\0"])])
    ),
    "a step that is too large": lambda c: c.put(made(metadata={"step": 2**200, "source": "\0"})),
    "an index that is too large": lambda c: c.put_writes(at(), [write(idx=2**64)]),
    "a write that is none": lambda c: c.put_writes(at(), [{"node": "n"}]),
    "writes that are none": lambda c: c.put_writes(at(), None),
    "a config that is none": lambda c: c.get("t"),
    "a checkpoint that is none": lambda c: c.put(None),
    "a thread id that is none": lambda c: c.get_thread(None),
    "a limit of a thousand digits": lambda c: c.list("t", limit=10**1000),
    "a step of a thousand digits": lambda c: c.list("t", step=10**1000),
    "a cursor that is none": lambda c: c.list("t", cursor="\ud800"),
    "a cursor that is a number": lambda c: c.list_threads(cursor=5),
    "an instant behind the last": lambda c: c.list("t", created_after=FAR),
    "an instant before the first": lambda c: c.list("t", created_before=NEAR),
    "an instant that is a text": lambda c: c.list("t", created_before="2026-01-01"),
    "a filter that is a list": lambda c: c.list("t", metadata=["a"]),
    "a filter with a foreign value": lambda c: c.list("t", metadata={"a": socket}),
    "a filter with a foreign key": lambda c: c.list("t", metadata={1: 1}),
    "a namespace that is a number": lambda c: c.list("t", namespace=5),
    "a namespace of numbers": lambda c: c.list("t", under=[5]),
    "a source that is a number": lambda c: c.list("t", source=5),
    "a run that is a number": lambda c: c.delete_by_run(5),
    "ids that are numbers": lambda c: c.delete_checkpoints("t", [1]),
    "a hundred thousand ids": lambda c: c.delete_checkpoints("t", [f"c{number}" for number in range(100_000)]),
    "channels that are numbers": lambda c: c.get_tuple(at(), channels=[5]),
    "a head that is a number": lambda c: c.put(made(1), expected_head=5),
    "a token that is a text": lambda c: c.put(made(2), lease_token="x"),
    "a token that is too large": lambda c: c.put(made(2), lease_token=2**70),
}


@pytest.mark.parametrize("call", CALLS)
async def test_no_error_of_a_lower_library_escapes(opener: Any, call: str) -> None:
    async with opener() as checkpointer:
        await checkpointer.put(made({"n": 1}))
        # TypeError and AttributeError say that the call is wrong as Python: a kind of thing that is not taken there.
        with suppress(clew.ClewError, TypeError, AttributeError):
            await CALLS[call](checkpointer)
        await checkpointer.put(Checkpoint(thread_id="t", checkpoint_id="after", state={"n": 2}))
        assert (await checkpointer.get(at("after"))).state == {"n": 2}


def test_a_closed_checkpointer_says_so(database_url: str) -> None:
    checkpointer = Checkpointer.open(database_url)
    checkpointer.close()
    checkpointer.close()
    with pytest.raises(clew.WrongContext, match="closed"):
        checkpointer.get_thread("t")


@pytest.mark.parametrize(
    "url", ["", "x", "mysql://h/d", "sqlite:///no/such/folder/x.db", "postgresql://h:port/d", "postgresql://u:sEcRet@/d?nonsense=1"]
)  # fmt: skip
def test_a_url_that_cannot_be_honoured_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(clew.ClewError) as refused:
        Checkpointer.open(url)
    assert "sEcRet" not in str(refused.value)


def test_a_database_without_the_schema_names_the_command(empty_database_url: str) -> None:
    with pytest.raises(clew.SchemaMismatch, match="clew migrate"):
        Checkpointer.open(empty_database_url)


def test_a_file_that_is_no_database_is_an_error_of_clew(tmp_path: Path) -> None:
    (tmp_path / "x.db").write_bytes(b"this is no database at all, but it is long enough" * 100)
    with pytest.raises(clew.ClewError):
        Checkpointer.open(f"sqlite:///{tmp_path / 'x.db'}")


def test_a_server_that_is_not_there_is_unavailable_and_the_password_is_not_told() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        with pytest.raises(clew.StorageUnavailable) as refused:
            Checkpointer.open(f"postgresql://someone:sEcRet@127.0.0.1:{port}/d")
    assert "sEcRet" not in str(refused.value)


OWNED = ("pending_writes", "runs", "checkpoints", "segments")


def test_tables_that_vanish_are_an_error_that_names_the_command(sqlite_url: str) -> None:
    with Checkpointer.open(sqlite_url) as checkpointer:
        checkpointer.put(made(1))
        engine = create_engine(sqlite_url)
        with engine.begin() as connection:
            for table in ("checkpoint_metadata", "resume_evidence", *OWNED, "thread_versions", "threads"):
                connection.exec_driver_sql(f"DROP TABLE clew_{table}")
        engine.dispose()
        with pytest.raises(clew.SchemaMismatch, match="clew migrate"):
            checkpointer.get(at())


def test_a_lock_that_somebody_else_holds_is_waited_for_no_longer_than_asked(database_url: str) -> None:
    with Checkpointer.open(database_url, timeout_s=0.3) as checkpointer:
        checkpointer.put(made(1))
        with locked(database_url):
            with pytest.raises((clew.StorageUnavailable, clew.Contention)):
                checkpointer.put(Checkpoint(thread_id="t", checkpoint_id="c2", state=2))
            assert checkpointer.get(at()).state == 1
        checkpointer.put(Checkpoint(thread_id="t", checkpoint_id="c2", state=2))
        assert checkpointer.get(at("c2")).state == 2


def locked(url: str) -> Any:
    """A transaction of somebody else's that holds what a put needs."""

    @contextmanager
    def held() -> Iterator[None]:
        if url.startswith("sqlite"):
            connection = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
            connection.execute("BEGIN IMMEDIATE")
            yield
            connection.execute("ROLLBACK")
            connection.close()
        else:
            with psycopg.connect(url) as other:
                other.execute("SELECT 1 FROM clew_thread_versions FOR UPDATE")
                yield
                other.rollback()

    return held()


def test_a_connection_that_the_server_cuts_is_replaced_or_named(postgres_url: str) -> None:
    with Checkpointer.open(postgres_url) as checkpointer:
        checkpointer.put(made({"n": 1}))
        for number in range(3):
            with psycopg.connect(postgres_url, autocommit=True) as other:
                other.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                    " WHERE datname = current_database() AND pid <> pg_backend_pid()"
                )
            try:
                checkpointer.put(Checkpoint(thread_id="t", checkpoint_id=f"d{number}", state=number))
            except clew.StorageUnavailable:
                checkpointer.put(Checkpoint(thread_id="t", checkpoint_id=f"d{number}", state=number))
            assert checkpointer.get(at(f"d{number}")).state == number
        assert checkpointer.get_thread("t").checkpoint_count == 4


def test_one_checkpointer_serves_many_threads(database_url: str) -> None:
    with Checkpointer.open(database_url) as checkpointer:
        failed: list[BaseException] = []

        def work(name: str) -> None:
            try:
                for step in range(15):
                    checkpointer.put(
                        Checkpoint(thread_id=name, checkpoint_id=f"c{step}", state={"items": [name * 50] * step})
                    )
                    assert checkpointer.get(CheckpointConfig.latest(name)).state == {"items": [name * 50] * step}
            except BaseException as error:  # noqa: BLE001
                failed.append(error)

        threads = [threading.Thread(target=work, args=(f"thread-{number % 6}-{number}",)) for number in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failed == []
        assert len(checkpointer.list_threads().items) == 12

"""What a process remembers of its threads, and how much of it."""

from __future__ import annotations

from clew.repository.memory import Logs, Memory, Remembered, ThreadMemory
from clew.structure import Kind, Row, Run, Span


def remembered(seq: int, *sizes: int) -> Remembered:
    return Remembered.of(seq, Run(Kind.LIST, None, [bytes(size) for size in sizes]))


def thread(*forms: Remembered, version: int = 1, key: int = 1) -> ThreadMemory:
    return ThreadMemory(
        key,
        version,
        {"[]": f"c{forms[-1].seq}"},
        {("[]", f"c{form.seq}"): form for form in forms},
    )


def test_a_thread_of_large_states_is_remembered_by_its_newest() -> None:
    memory = Memory(max_bytes=100_000)
    memory.publish("t", thread(*(remembered(seq, 20_000) for seq in range(1, 5))))
    kept = memory.get("t")
    assert kept is not None
    assert list(kept.forms) == [("[]", "c4")]
    assert kept.base("[]", None) is not None


def test_a_thread_takes_a_quarter_of_the_memory_and_64_mib_are_the_memory() -> None:
    memory = Memory(max_bytes=100_000)
    memory.publish("t", thread(*(remembered(seq, 11_000) for seq in (1, 2, 3))))
    kept = memory.get("t")
    assert kept is not None
    assert [name for _, name in kept.forms] == ["c2", "c3"]
    assert Memory().max_bytes == 67_108_864


def test_a_thread_takes_memory_though_it_holds_no_elements() -> None:
    memory = Memory(max_bytes=10_000)
    for number in range(20):
        memory.publish(f"t{number}", ThreadMemory(1, 1))
    assert list(memory) == [f"t{number}" for number in range(10, 20)]


def test_a_state_larger_than_all_memory_is_not_remembered() -> None:
    memory = Memory(max_bytes=100_000)
    memory.publish("t", thread(remembered(1, 200_000)))
    assert memory.get("t") is None


def test_a_thread_that_is_forgotten_gives_its_bytes_back() -> None:
    memory = Memory(max_bytes=100_000)
    memory.publish("t", thread(remembered(1, 90_000)))
    memory.forget("t")
    assert memory.get("t") is None
    memory.publish("u", thread(remembered(1, 90_000)))
    assert memory.get("u") is not None


def test_an_older_state_of_a_thread_does_not_replace_a_newer_one() -> None:
    memory = Memory()
    newer = thread(remembered(2, 10), version=2)
    memory.publish("t", newer)
    memory.publish("t", thread(remembered(1, 10), version=1))
    assert memory.get("t") is newer


def test_the_threads_written_last_stay() -> None:
    memory = Memory(max_bytes=100_000)
    for name in ("a", "b", "c", "d", "e"):
        memory.publish(name, thread(remembered(1, 22_000)))
    assert [name for name in "abcde" if memory.get(name)] == ["b", "c", "d", "e"]


def test_an_older_version_never_replaces_a_newer_one() -> None:
    memory = Memory()
    memory.publish("t", thread(remembered(2, 10), version=2))
    memory.publish("t", thread(remembered(1, 10), version=1))
    kept = memory.get("t")
    assert kept is not None
    assert kept.version == 2


def test_a_form_that_was_used_as_a_base_is_not_the_next_to_go() -> None:
    memory = thread(*(remembered(seq, 10) for seq in range(1, 9)))
    after = memory.advanced(2, "[]", "c9", remembered(9, 10), Logs(), parent_id="c1")
    assert [name for _, name in after.forms] == ["c3", "c4", "c5", "c6", "c7", "c8", "c1", "c9"]


def test_elements_of_rows_that_wait_to_be_merged_count() -> None:
    rows = (Row(0, 1, 5_000, (bytes(5_000),)), Row(1, 1, 7_000, None))
    assert ThreadMemory(1, 1, logs=Logs({1: rows})).size == ThreadMemory(1, 1).size + 5_000


def test_rows_of_more_than_64_logs_are_remembered_only_where_a_remembered_form_names_them() -> None:
    form = Remembered.of(1, Run(Kind.LIST, None, [b"x"], spans=(Span(7, 0, 1), Span(60, 0, 1))))

    def after(count: int) -> list[int]:
        logs = Logs({log: (Row(0, 1, 10),) for log in range(count)})
        return list(ThreadMemory(1, 1).advanced(2, "[]", "c1", form, logs).logs.rows)

    assert after(64) == [*range(64)]
    assert after(65) == [7, 60]

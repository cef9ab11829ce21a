"""Ids sort by time, never repeat, and increase within a process whatever its clock does."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import clew.ids
from clew.ids import SortableIds, new_checkpoint_id, new_id

ALPHABET = frozenset("0123456789ABCDEFGHJKMNPQRSTVWXYZ")
SOURCE = Path(clew.ids.__file__).parents[1]


def standing_at(*instants: datetime) -> Callable[[], datetime]:
    remaining = iter(instants)
    return lambda: next(remaining)


def zeros(size: int) -> bytes:
    return bytes(size)


def ones(size: int) -> bytes:
    return b"\xff" * size


def run_python(program: str) -> list[str]:
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_an_id_is_26_characters_of_crockford_base_32() -> None:
    made = new_id()
    assert len(made) == 26
    assert set(made) <= ALPHABET


def test_an_agents_checkpoint_id_says_what_it_is() -> None:
    made = new_checkpoint_id()
    assert made.startswith("ckpt_")
    assert len(made) == 31


def test_an_id_holds_its_milliseconds_and_its_random_bits() -> None:
    # The instant of the example in the ULID specification, 01ARZ3NDEKTSV4RRFFQ69G5FAV.
    moment = datetime(2016, 7, 30, 23, 54, 10, 259000, tzinfo=UTC)
    assert SortableIds(lambda: moment, zeros)() == "01ARZ3NDEK0000000000000000"
    assert SortableIds(lambda: moment, ones)() == "01ARZ3NDEKZZZZZZZZZZZZZZZZ"


def test_a_later_millisecond_sorts_behind_whatever_the_random_bits_are() -> None:
    first = datetime(2026, 1, 1, tzinfo=UTC)
    earlier = SortableIds(lambda: first, ones)()
    later = SortableIds(lambda: first + timedelta(milliseconds=1), zeros)()
    assert earlier < later


def test_an_id_holds_the_milliseconds_of_its_own_moment_whatever_id_came_before() -> None:
    first = datetime(2016, 7, 30, 23, 54, 10, 259000, tzinfo=UTC)
    ids = SortableIds(standing_at(first, first + timedelta(milliseconds=1)), ones)
    assert [ids(), ids()] == ["01ARZ3NDEKZZZZZZZZZZZZZZZZ", "01ARZ3NDEMZZZZZZZZZZZZZZZZ"]


def test_a_clock_before_1970_counts_as_its_beginning() -> None:
    made = SortableIds(lambda: datetime(1969, 12, 31, tzinfo=UTC), zeros)()
    assert made[:10] == "0000000000"


def test_ids_increase_while_the_clock_stands_still() -> None:
    ids = SortableIds(lambda: datetime(2026, 1, 1, tzinfo=UTC), zeros)
    assert [ids()[-3:] for _ in range(3)] == ["000", "001", "002"]


def test_random_bits_that_run_over_carry_into_the_milliseconds() -> None:
    moment = datetime(2016, 7, 30, 23, 54, 10, 259000, tzinfo=UTC)
    ids = SortableIds(lambda: moment, ones)
    assert [ids(), ids()] == ["01ARZ3NDEKZZZZZZZZZZZZZZZZ", "01ARZ3NDEM0000000003ZZZZZZ"]


@given(st.lists(st.datetimes(timezones=st.just(UTC)), max_size=50))
def test_ids_increase_also_when_the_clock_jumps_back(instants: list[datetime]) -> None:
    ids = SortableIds(standing_at(*instants))
    made = [ids() for _ in instants]
    assert made == sorted(set(made))


def test_a_clock_without_a_time_zone_is_refused() -> None:
    naive = datetime(2026, 1, 1, tzinfo=UTC).replace(tzinfo=None)
    with pytest.raises(TypeError):
        SortableIds(lambda: naive)()


def test_no_id_wraps_around_to_sort_in_front() -> None:
    ids = SortableIds(lambda: datetime(2026, 1, 1, tzinfo=UTC), ones)
    ids._last = 2**128 - 1
    with pytest.raises(OverflowError):
        ids()


def test_the_last_of_all_ids_is_given() -> None:
    ids = SortableIds(lambda: datetime(2026, 1, 1, tzinfo=UTC), zeros)
    ids._last = 2**128 - 2
    assert ids() == "7ZZZZZZZZZZZZZZZZZZZZZZZZZ"
    with pytest.raises(OverflowError):
        ids()


def test_threads_that_share_a_source_get_different_ids() -> None:
    made: list[str] = []

    def make() -> None:
        made.extend([new_id() for _ in range(500)])

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(made)) == 4000


def test_a_forked_child_does_not_go_on_from_its_parents_last_id() -> None:
    # The clock stands still, and a step is one: without the child's fresh start both would print the same ids.
    program = """
import os, sys
from datetime import UTC, datetime
import clew.ids
ids = clew.ids._process_ids
ids._clock = lambda: datetime(2026, 1, 1, tzinfo=UTC)
ids._randomness = lambda size: os.urandom(size) if size == 10 else bytes(size)
clew.ids.new_id()
child = os.fork()
if child:
    os.waitpid(child, 0)  # one after the other: both write to the same pipe
print(*[clew.ids.new_id() for _ in range(3)], flush=True)
"""
    made = run_python(program)
    assert len(made) == 6
    assert len(set(made)) == 6


def test_a_child_that_was_forked_while_a_thread_made_an_id_is_not_stuck() -> None:
    ids = SortableIds()
    with ids._lock:  # held by a thread that the child does not have
        ids.forget()
        assert ids()


def test_two_processes_make_different_ids() -> None:
    program = "import clew.ids; print(*[clew.ids.new_id() for _ in range(1000)])"
    assert len({*run_python(program), *run_python(program)}) == 2000

"""What is staged for a host's transaction, and where it goes when that ends."""

from __future__ import annotations

from clew.repository import Memory, StagedMemory
from clew.repository.memory import ThreadMemory


def test_what_is_staged_is_seen_over_what_was_committed_and_handed_on_by_the_commit() -> None:
    below = Memory()
    below.publish("t", ThreadMemory(1, 4))
    staged = StagedMemory(below)
    assert staged.get("t") == ThreadMemory(1, 4)
    staged.publish("t", ThreadMemory(1, 5))
    assert (staged.get("t"), below.get("t")) == (ThreadMemory(1, 5), ThreadMemory(1, 4))
    staged.settle()
    assert below.get("t") == staged.get("t") == ThreadMemory(1, 5)


def test_what_was_rolled_back_is_forgotten_and_its_number_is_given_out_again() -> None:
    staged = StagedMemory(Memory())
    staged.publish("t", ThreadMemory(1, 6))
    staged.undo()
    assert staged.get("t") is None
    staged.publish("t", ThreadMemory(1, 7))
    staged.publish("t", ThreadMemory(1, 5))  # lower, and newer all the same
    assert staged.get("t") == ThreadMemory(1, 5)


def test_a_thread_that_was_deleted_is_forgotten_below_once_that_is_committed() -> None:
    below = Memory()
    below.publish("t", ThreadMemory(1, 4))
    staged = StagedMemory(below)
    staged.forget("t")
    assert staged.get("t") is None
    assert below.get("t") is not None
    staged.undo()
    assert staged.get("t") is not None
    staged.forget("t")
    staged.settle()
    assert below.get("t") is None


def test_what_others_have_published_since_is_not_replaced_by_what_is_older() -> None:
    below = Memory()
    staged = StagedMemory(below)
    staged.publish("t", ThreadMemory(1, 5))
    below.publish("t", ThreadMemory(1, 9))
    staged.settle()
    assert below.get("t") == ThreadMemory(1, 9)

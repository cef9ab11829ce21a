"""Expiry and sweeping: which threads go, which writes go, and who is left in peace."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from sqlalchemy import select

from clew import Checkpoint, CheckpointConfig, InvalidInput, NotFound, PendingWrite, StaleFence, SweepReport

from probe import Probe

HOUR = timedelta(hours=1)
DAY = timedelta(days=1)


def soon(delay: timedelta = HOUR) -> datetime:
    return datetime.now(UTC) + delay


async def put(checkpointer: Any, thread_id: str = "t", checkpoint_id: str = "c1") -> None:
    await checkpointer.put(Checkpoint(thread_id=thread_id, checkpoint_id=checkpoint_id, state={"n": ["x" * 300]}))


async def write(checkpointer: Any, thread_id: str, checkpoint_id: str) -> None:
    config = CheckpointConfig(thread_id=thread_id, checkpoint_id=checkpoint_id)
    await checkpointer.put_writes(config, [PendingWrite(node="n", payload=1, task_id="a")])


async def test_an_expired_thread_is_swept_with_everything_of_it(checkpointer: Any, probe: Probe) -> None:
    await put(checkpointer)
    await put(checkpointer, "kept")
    moment = soon()
    assert await checkpointer.retention.set_expiry("t", at=moment) == moment
    assert (await checkpointer.get_thread("t")).expires_at == moment
    assert await checkpointer.retention.sweep() == SweepReport()
    assert await checkpointer.retention.sweep(now=moment) == SweepReport(expired=("t",))
    assert await checkpointer.get_thread("t") is None
    assert await checkpointer.get_thread("kept") is not None
    assert probe.count("segments") == 1


async def test_a_time_to_live_counts_from_now(checkpointer: Any) -> None:
    await put(checkpointer)
    moment = await checkpointer.retention.set_expiry("t", ttl=HOUR)
    assert abs(moment - soon()) < timedelta(minutes=1)
    assert (await checkpointer.retention.sweep(now=moment - timedelta(seconds=1))).expired == ()
    assert (await checkpointer.retention.sweep(now=moment)).expired == ("t",)


async def test_without_an_instant_a_sweep_goes_by_the_databases_clock(checkpointer: Any) -> None:
    await put(checkpointer)
    await checkpointer.retention.set_expiry("t", ttl=timedelta(milliseconds=1))
    await asyncio.sleep(0.02)
    assert await checkpointer.retention.sweep() == SweepReport(expired=("t",))


async def test_activity_puts_the_expiry_off_where_that_is_asked_for(checkpointer: Any) -> None:
    await put(checkpointer)
    first = await checkpointer.retention.set_expiry("t", ttl=HOUR, refresh_on_activity=True)
    await asyncio.sleep(0.02)
    await put(checkpointer, checkpoint_id="c2")
    thread = await checkpointer.get_thread("t")
    assert thread.expires_at == thread.updated_at + HOUR > first
    assert (await checkpointer.retention.sweep(now=first)).expired == ()
    assert (await checkpointer.get_thread("t")).expires_at == thread.expires_at
    assert (await checkpointer.retention.sweep(now=thread.expires_at)).expired == ("t",)


async def test_cleaning_up_does_not_put_the_expiry_off(checkpointer: Any) -> None:
    await put(checkpointer)
    await put(checkpointer, checkpoint_id="c2")
    moment = await checkpointer.retention.set_expiry("t", ttl=HOUR, refresh_on_activity=True)
    await checkpointer.retention.prune("t", keep_last=1)
    await checkpointer.retention.compact("t")
    assert (await checkpointer.get_thread("t")).expires_at == moment


async def test_neither_instant_nor_time_to_live_keeps_a_thread_for_good(checkpointer: Any) -> None:
    await put(checkpointer)
    await checkpointer.retention.set_expiry("t", ttl=HOUR)
    assert await checkpointer.retention.set_expiry("t") is None
    assert (await checkpointer.retention.sweep(now=soon(365 * DAY))).expired == ()


@pytest.mark.parametrize(
    "expiry",
    [
        {"at": datetime(2026, 1, 1, tzinfo=UTC), "ttl": HOUR},
        {"at": datetime(2026, 1, 1)},
        {"at": "2026-01-01"},
        {"at": datetime.max.replace(tzinfo=timezone(-HOUR))},
        {"ttl": 3600},
        {"ttl": timedelta(0)},
        {"ttl": timedelta.max},
        {"ttl": timedelta(days=365_000, microseconds=1)},
        {"refresh_on_activity": True},
        {"ttl": HOUR, "refresh_on_activity": 1},
    ],
    ids=str,
)
async def test_an_expiry_that_makes_no_sense_is_refused(checkpointer: Any, expiry: dict[str, Any]) -> None:
    await put(checkpointer)
    with pytest.raises(InvalidInput):
        await checkpointer.retention.set_expiry("t", **expiry)
    assert (await checkpointer.get_thread("t")).expires_at is None


async def test_a_thread_can_be_kept_for_a_thousand_years(checkpointer: Any) -> None:
    await put(checkpointer)
    moment = await checkpointer.retention.set_expiry("t", ttl=timedelta(days=365_000))
    assert moment > soon(timedelta(days=364_999))


async def test_only_a_thread_that_is_there_expires(checkpointer: Any) -> None:
    with pytest.raises(NotFound, match="nobody"):
        await checkpointer.retention.set_expiry("nobody", ttl=HOUR)
    await write(checkpointer, "unborn", "c1")
    with pytest.raises(NotFound, match="unborn"):
        await checkpointer.retention.set_expiry("unborn", ttl=HOUR)


async def test_a_leased_thread_is_left_alone(checkpointer: Any) -> None:
    await put(checkpointer)
    await checkpointer.retention.set_expiry("t", ttl=HOUR)
    lease = await checkpointer.runs.acquire_lease("t", "me", ttl_s=60)
    assert await checkpointer.retention.sweep(now=soon(2 * HOUR)) == SweepReport(skipped=1)
    with pytest.raises(StaleFence):
        await checkpointer.retention.set_expiry("t")
    await checkpointer.retention.set_expiry("t", ttl=HOUR, lease_token=lease)
    await checkpointer.runs.release_lease("t", lease)
    assert (await checkpointer.retention.sweep(now=soon(2 * HOUR))).expired == ("t",)


async def test_every_expired_thread_goes_however_small_the_batch(checkpointer: Any) -> None:
    for number in range(7):
        await put(checkpointer, f"t{number}")
        await checkpointer.retention.set_expiry(f"t{number}", at=soon(timedelta(minutes=7 - number % 2)))
    report = await checkpointer.retention.sweep(now=soon(), batch=2)
    assert sorted(report.expired) == [f"t{number}" for number in range(7)]


async def test_threads_that_expire_at_one_moment_go_together_however_small_the_batch(checkpointer: Any) -> None:
    moment = soon()
    for thread_id in "abc":
        await put(checkpointer, thread_id)
        await checkpointer.retention.set_expiry(thread_id, at=moment)
    assert await checkpointer.retention.sweep(now=moment, batch=1) == SweepReport(expired=("a", "b", "c"))


async def test_a_thread_that_is_passed_over_is_not_met_again_in_the_next_batch(checkpointer: Any) -> None:
    for thread_id, delay in (("later", 2 * HOUR), ("leased", HOUR)):
        await put(checkpointer, thread_id)
        await checkpointer.retention.set_expiry(thread_id, ttl=delay)
    await checkpointer.runs.acquire_lease("leased", "me", ttl_s=60)
    report = await checkpointer.retention.sweep(now=soon(3 * HOUR), batch=1)
    assert report == SweepReport(expired=("later",), skipped=1)


async def test_threads_on_which_nothing_is_due_are_not_looked_at_though_they_are_leased(checkpointer: Any) -> None:
    await put(checkpointer, "expires later")
    await checkpointer.retention.set_expiry("expires later", ttl=2 * DAY)
    await put(checkpointer, "with writes")
    await write(checkpointer, "with writes", "c1")
    await checkpointer.runs.acquire_lease("expires later", "me", ttl_s=60)
    await checkpointer.runs.acquire_lease("with writes", "me", ttl_s=60)
    assert await checkpointer.retention.sweep(now=soon(DAY)) == SweepReport()
    await write(checkpointer, "young", "never")
    for thread_id in ("young", "unborn"):
        await checkpointer.runs.acquire_lease(thread_id, "me", ttl_s=60)
    assert await checkpointer.retention.sweep() == SweepReport()
    assert await checkpointer.retention.sweep(now=soon(DAY)) == SweepReport(skipped=2)


async def test_an_old_thread_with_young_writes_is_not_looked_at_though_it_is_leased(
    checkpointer: Any, probe: Probe
) -> None:
    lease = await checkpointer.runs.acquire_lease("t", "me", ttl_s=60)
    await asyncio.sleep(0.02)
    config = CheckpointConfig(thread_id="t", checkpoint_id="c1")
    await checkpointer.put_writes(config, [PendingWrite(node="n", payload=1, task_id="a")], lease_token=lease)
    [(born,)] = probe.rows(select(probe.tables.threads.c.created_at))
    [(written,)] = probe.rows(select(probe.tables.pending_writes.c.created_at))
    assert await checkpointer.retention.sweep(now=born + (written - born) / 2 + DAY) == SweepReport()


async def test_a_thread_whose_checkpoints_are_all_gone_stays_for_it_has_used_up_their_numbers(
    checkpointer: Any, probe: Probe
) -> None:
    await put(checkpointer)
    await checkpointer.delete_checkpoints("t", ["c1"])
    await write(checkpointer, "t", "never")
    assert await checkpointer.retention.sweep(now=soon(DAY)) == SweepReport(writes=1)
    await put(checkpointer)
    assert probe.seqs() == [2]


async def test_no_thread_is_missed_or_met_twice_where_each_batch_is_one(checkpointer: Any) -> None:
    async def unborn(thread_id: str) -> int:
        return int(await checkpointer.runs.acquire_lease(thread_id, "me", ttl_s=60))

    async def waits(thread_id: str) -> None:
        await put(checkpointer, thread_id)
        await write(checkpointer, thread_id, "never")

    await waits("1")
    await waits("2")
    await checkpointer.runs.release_lease("3", await unborn("3"))
    await unborn("4 is leased")
    await waits("5 is leased")
    await checkpointer.runs.acquire_lease("5 is leased", "me", ttl_s=60)
    await waits("6")
    report = await checkpointer.retention.sweep(now=soon(DAY), batch=1)
    assert report == SweepReport(writes=3, unborn=1, skipped=2)


async def test_a_thread_as_old_as_a_sweep_forgives_is_left_and_goes_a_moment_later(
    checkpointer: Any, probe: Probe
) -> None:
    await checkpointer.runs.release_lease("t", await checkpointer.runs.acquire_lease("t", "me"))
    [(born,)] = probe.rows(select(probe.tables.threads.c.created_at))
    assert await checkpointer.retention.sweep(now=born + DAY) == SweepReport()
    moment = timedelta(microseconds=1)
    assert await checkpointer.retention.sweep(now=born + DAY + moment) == SweepReport(unborn=1)


async def test_writes_whose_checkpoint_never_came_go_after_a_day(checkpointer: Any, probe: Probe) -> None:
    await put(checkpointer)
    await write(checkpointer, "t", "c1")
    await write(checkpointer, "t", "never")
    assert await checkpointer.retention.sweep() == SweepReport()
    assert await checkpointer.retention.sweep(now=soon(DAY)) == SweepReport(writes=1)
    left = probe.rows(select(probe.tables.pending_writes.c.checkpoint_id))
    assert [row.checkpoint_id for row in left] == ["c1"]


async def test_how_old_a_forlorn_write_may_grow_is_the_callers_to_say(checkpointer: Any) -> None:
    await put(checkpointer)
    await write(checkpointer, "t", "never")
    await asyncio.sleep(0.02)
    report = await checkpointer.retention.sweep(writes_older_than=timedelta(milliseconds=1))
    assert report == SweepReport(writes=1)


async def test_a_thread_that_never_was_anything_goes_too(checkpointer: Any, probe: Probe) -> None:
    await write(checkpointer, "unborn", "c1")
    assert await checkpointer.retention.sweep(now=soon(DAY), batch=1) == SweepReport(writes=1, unborn=1)
    assert probe.count("threads") == 0


async def test_a_thread_that_nobody_ever_wrote_to_goes_too(checkpointer: Any, probe: Probe) -> None:
    await checkpointer.runs.release_lease("t", await checkpointer.runs.acquire_lease("t", "me"))
    assert await checkpointer.retention.sweep() == SweepReport()
    assert await checkpointer.retention.sweep(now=soon(DAY)) == SweepReport(unborn=1)
    assert probe.count("threads") == 0


async def test_a_thread_stays_for_the_youngest_of_its_writes(checkpointer: Any, probe: Probe) -> None:
    await write(checkpointer, "another", "c1")
    await write(checkpointer, "t", "c1")
    await asyncio.sleep(0.02)
    await write(checkpointer, "t", "c2")
    *_, old, young = sorted(row.created_at for row in probe.rows(probe.tables.pending_writes.select()))
    between = old + (young - old) / 2
    assert await checkpointer.retention.sweep(now=between + DAY) == SweepReport(writes=2, unborn=1)
    assert await checkpointer.get_writes(CheckpointConfig(thread_id="t", checkpoint_id="c1")) == []
    assert await checkpointer.get_writes(CheckpointConfig(thread_id="t", checkpoint_id="c2")) != []


async def test_the_writes_of_a_thread_that_is_passed_over_stay(checkpointer: Any) -> None:
    for thread_id in ("leased", "t"):
        await write(checkpointer, thread_id, "never")
    await checkpointer.runs.acquire_lease("leased", "me", ttl_s=60)
    assert await checkpointer.retention.sweep(now=soon(DAY)) == SweepReport(writes=1, unborn=1, skipped=1)
    assert await checkpointer.get_writes(CheckpointConfig(thread_id="leased", checkpoint_id="never")) != []


async def test_many_sweep_at_once_and_each_thread_goes_once(opener: Any) -> None:
    async with opener() as one, opener() as other:
        for number in range(12):
            await put(one, f"t{number}")
            await one.retention.set_expiry(f"t{number}", ttl=HOUR)
        later = soon(2 * HOUR)
        reports = await asyncio.gather(*(each.retention.sweep(now=later) for each in (one, other, one, other)))
        swept = [name for report in reports for name in report.expired]
        assert sorted(swept) == sorted(set(swept))
        again = await one.retention.sweep(now=later)
        assert sorted([*swept, *again.expired]) == sorted(f"t{number}" for number in range(12))


@pytest.mark.parametrize(
    "options",
    [
        {"batch": 0},
        {"now": datetime(2026, 1, 1)},
        {"now": "2026-01-01"},
        {"writes_older_than": -HOUR},
        {"writes_older_than": 3600},
    ],
    ids=str,
)
async def test_a_sweep_that_makes_no_sense_is_refused(checkpointer: Any, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        await checkpointer.retention.sweep(**options)

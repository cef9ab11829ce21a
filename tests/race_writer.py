"""One writer of the soak in ``test_races``: run as a program, it works on shared threads, and reports.

Arguments: URL, seed, seconds. Each state's hash stands in its checkpoint's metadata, so that any reader can tell a
wrong read. Prints one JSON object: puts, reads, wrong reads, ids that it was told were stored, ids that it asked to
delete.
"""

from __future__ import annotations

import hashlib
import json
import random
import sys
import time
from contextlib import suppress
from typing import Any

import clew
from clew import Checkpoint, CheckpointConfig

THREADS = ("shared-0", "shared-1", "volatile")


def fingerprint(checkpoint_id: str, state: Any) -> str:
    return hashlib.sha256(json.dumps([checkpoint_id, state]).encode()).hexdigest()


def edited(chance: random.Random, items: list[str]) -> list[str]:
    fresh = [f"{chance.random()}-" + "x" * chance.choice([20, 200, 900]) for _ in range(chance.choice([1, 1, 1, 3]))]
    roll = chance.random()
    if roll < 0.55:
        return [*items, *fresh]
    if roll < 0.7:
        return [*items[:-2], *fresh]
    if roll < 0.8 and items:
        spot = chance.randrange(len(items))
        return [*items[:spot], *fresh, *items[spot + 1 :]]
    if roll < 0.9:
        return [*items[len(items) // 2 :], *fresh]
    return [*chance.sample(items, len(items)), *fresh] if len(items) < 60 else fresh


def work(url: str, seed: int, seconds: float) -> dict[str, Any]:
    chance = random.Random(seed)
    report: dict[str, Any] = {"puts": 0, "reads": 0, "wrong": [], "stored": [], "repeated": [], "deleted": []}
    with clew.Checkpointer.open(url) as checkpointer, clew.Checkpointer.open(url, memory_bytes=0) as cold:
        deadline, number = time.monotonic() + seconds, 0

        def read(thread_id: str, checkpoint_id: str | None) -> Checkpoint[Any] | None:
            config = CheckpointConfig(thread_id=thread_id, checkpoint_id=checkpoint_id)
            try:
                found = chance.choice([checkpointer, cold]).get(config)
            except clew.CorruptData as damaged:
                report["wrong"].append(f"{thread_id} {checkpoint_id}: {damaged}")
                return None
            report["reads"] += 1
            if found is not None and fingerprint(found.checkpoint_id, found.state) != found.metadata["fingerprint"]:
                report["wrong"].append(f"{thread_id} {found.checkpoint_id}: not what was put")
            return found

        while time.monotonic() < deadline or min(report["puts"], report["reads"]) < 10:
            thread_id = chance.choices(THREADS, [5, 5, 1])[0]
            known = [item.checkpoint_id for item in cold.list(thread_id, limit=30).items]
            picked = chance.choice(known) if known else None
            roll = chance.random()
            if roll < 0.6:
                parent = read(thread_id, None if chance.random() < 0.6 else picked)
                number += 1
                checkpoint_id = f"{seed}-{number}"
                state = {
                    "agent": {"items": edited(chance, parent.state["agent"]["items"] if parent else [])},
                    "n": number,
                }
                made = Checkpoint(
                    thread_id=thread_id,
                    checkpoint_id=checkpoint_id,
                    parent_checkpoint_id=parent.checkpoint_id if parent else None,
                    state=state,
                    metadata={"fingerprint": fingerprint(checkpoint_id, state)},
                )
                try:
                    checkpointer.put(made)
                except clew.NotFound:
                    continue  # the thread was deleted since
                report["puts"] += 1
                report["stored"].append([thread_id, checkpoint_id])
                if chance.random() < 0.2:
                    with suppress(clew.NotFound):
                        checkpointer.put(made)  # stores it anew where somebody has deleted it since
                    report["repeated"].append([thread_id, checkpoint_id])
            elif roll < 0.85:
                read(thread_id, picked)
            elif roll < 0.97 and len(known) > 3:
                doomed = chance.sample(known, chance.choice([1, 1, 3]))
                report["deleted"] += [[thread_id, checkpoint_id] for checkpoint_id in doomed]
                checkpointer.delete_checkpoints(thread_id, doomed)
            elif thread_id == "volatile":
                checkpointer.delete_thread(thread_id)
    return report


if __name__ == "__main__":
    print(json.dumps(work(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))))

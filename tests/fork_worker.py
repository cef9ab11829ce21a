"""A server that opens a checkpointer, then forks: what parent and children can do afterwards. Prints JSON."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from clew import Checkpoint, CheckpointConfig, Checkpointer


def made(name: str) -> Checkpoint[Any]:
    return Checkpoint(thread_id="t", checkpoint_id=name, state={"name": name})


def in_child(call: Callable[[], Any]) -> Any:
    """What the call returns or raises in a forked child, which then ends as any process does."""
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        signal.alarm(20)
        try:
            said = [call(), None]
        except Exception as exc:  # noqa: BLE001  it is what is told
            said = [None, f"{type(exc).__name__}: {exc}"]
        os.write(writing, json.dumps(said).encode())
        sys.exit()
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        said = json.loads(pipe.read() or b'[null, "nothing was said"]')
    os.waitpid(child, 0)
    return said[0] if said[1] is None else said[1]


def main(url: str) -> None:
    parent = Checkpointer.open(url)
    parent.put(made("before"))

    def opened_anew() -> str:
        with Checkpointer.open(url) as own:
            own.put(made("child"))
            return str(own.get(CheckpointConfig.latest("t")).state["name"])

    recorder = parent.recorder("r", durability="async")
    recorder.__enter__()
    recorder.record({"n": 0})
    turn = parent._driver._turns.want("t")
    with turn:  # as if another thread were putting
        told = {
            "put": in_child(lambda: parent.put(made("never"))),
            "get": in_child(lambda: parent.get(CheckpointConfig.latest("t"))),
        }
    told |= {
        "record": in_child(lambda: recorder.record({"n": 1})),
        "drain": in_child(lambda: (recorder._queue.append(None), recorder.drain())),
        "close": in_child(parent.close),
        "anew": in_child(opened_anew),
    }
    recorder.__exit__(None, None, None)
    parent.put(made("after"))
    told["parent"] = [item.checkpoint_id for item in parent.list("t").items]
    told["sound"] = parent.retention.verify().problems == ()
    parent.close()
    print(json.dumps(told))


if __name__ == "__main__":
    main(sys.argv[1])

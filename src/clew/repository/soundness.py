"""What a checkpoint's row has to look like to be read: asked of what is stored, and of what is to be imported.

And what is said where it looks otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from clew.codec import Codec
from clew.errors import ClewError, CorruptData
from clew.structure import Inline, Node, Record, decode_manifest

__all__ = ["UNREADABLE", "located", "naming", "read", "readable", "reason", "unpacked"]

_PACKED: Final[dict[str, type | tuple[type, ...]]] = {
    "completed_tasks": str,
    "interrupts": (str, str, object),
    "activations": (str, object, str),
    "barriers": (str, list),
}
"""Of what each of these columns is a list."""
UNREADABLE: Final = (ClewError, ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError)
"""What reading damaged bytes may raise."""


def readable(codec: Codec, row: Any) -> Node:
    """The form of a checkpoint's row, once everything that is encoded in the row has been read; values are let go of.

    Raises:
        CorruptData: saying what cannot be read.
    """
    root: Node = read("manifest", lambda: decode_manifest(row.manifest, row.spans))
    read("manifest", lambda: _decode_inline(codec, root))
    for name in _PACKED:
        unpacked(codec, row, name)
    if (row.fork_checkpoint_id is None) != (row.fork_thread_id is None):
        raise CorruptData("only a half of its fork's origin is there")
    return root


def unpacked(codec: Codec, row: Any, name: str) -> list[Any] | None:
    """What one of the row's columns ``completed_tasks``, ``interrupts``, ``activations`` and ``barriers`` lists.

    Raises:
        CorruptData: it is not a list of what it should hold.
    """
    data = getattr(row, name)
    if data is None:
        return None
    listed: list[Any] = read(name, lambda: codec.decode(data))
    if not _fits(listed, _PACKED[name]):
        raise CorruptData(f"{name} is not a list of what it should hold")
    return listed


def _decode_inline(codec: Codec, node: Node) -> None:
    if isinstance(node, Inline):
        codec.decode(node.data)
    elif isinstance(node, Record):
        for child in node.children:
            _decode_inline(codec, child)


def _fits(value: Any, kind: type | tuple[type, ...]) -> bool:
    """Whether it is a list of these, or of lists of just these; any list in them is of strings."""
    if not isinstance(value, list):
        return False
    if not isinstance(kind, tuple):
        return all(isinstance(item, kind) for item in value)
    return all(
        isinstance(item, list)
        and len(item) == len(kind)
        and all(
            isinstance(part, of) and (of is not list or _fits(part, str)) for part, of in zip(item, kind, strict=True)
        )
        for item in value
    )


def read(name: str, decode: Callable[[], Any]) -> Any:
    """What ``decode`` gives. Raises CorruptData, saying that ``name`` cannot be read."""
    try:
        return decode()
    except UNREADABLE as exc:
        raise CorruptData(f"{name} cannot be read: {reason(exc)}") from exc


def reason(exc: BaseException) -> str:
    """What a message may say: ours names no payload, another library's might."""
    return str(exc) if isinstance(exc, ClewError) else type(exc).__name__


class naming:  # noqa: N801  it is used as a function is
    """Whatever damaged rows raise in the ``with`` block becomes corrupt data that says in which thread or checkpoint.

    Only for blocks that do nothing but read rows: elsewhere the same errors mean something else.
    A class, since a history takes two for each of its states: 0.5 µs, against 2 for a generator.
    """

    __slots__ = ("_checkpoint_id", "_thread_id")

    def __init__(self, thread_id: str, checkpoint_id: str | None = None) -> None:
        self._thread_id = thread_id
        self._checkpoint_id = checkpoint_id

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, UNREADABLE):
            which = f"checkpoint {self._checkpoint_id!r} of " if self._checkpoint_id else ""
            raise located(error, f"{which}thread {self._thread_id!r}") from _cause_of(error)


def located(exc: Exception, where: str) -> Exception:
    """What to raise for ``exc``, which came of reading a row: ``CorruptData`` that says where, unless it does already.

    Other errors of ours are not about the row, and stay as they are.
    """
    if not isinstance(exc, ClewError):
        exc = CorruptData(f"what is stored cannot be read ({type(exc).__name__}); verify says what is wrong")
    if isinstance(exc, CorruptData) and exc.where is None:
        exc.where = where
        exc.args = (f"{where}: {exc}", *exc.args[1:])
    return exc


def _cause_of(exc: BaseException) -> BaseException | None:
    """The cause of what ``located`` makes of ``exc``: the other library's error."""
    return exc.__cause__ if isinstance(exc, ClewError) else exc

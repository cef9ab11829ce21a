"""What a checkpoint's row has to look like to be read: asked of what is stored, and of what is to be imported."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from clew.codec import Codec
from clew.errors import ClewError, CorruptData
from clew.structure import Inline, Kind, Node, Run, decode_manifest, decode_spans, spans_of

__all__ = ["UNREADABLE", "read", "readable", "reason"]

_PACKED: Final[dict[str, type | tuple[type, ...]]] = {
    "completed_tasks": str,
    "interrupts": (str, str, object),
    "activations": (str, object, str),
    "barriers": (str, list),
}
"""Of what each of these columns is a list."""
UNREADABLE: Final = (ClewError, ValueError, TypeError, KeyError, OverflowError, RuntimeError)
"""What reading damaged bytes may raise."""


def readable(codec: Codec, row: Any) -> Node:
    """The form of a checkpoint's row, once everything that is encoded in the row has been read; values are let go of.

    Raises:
        CorruptData: saying what cannot be read.
    """
    root: Node = read("manifest", lambda: decode_manifest(row.manifest, row.spans))
    spans = decode_spans(row.spans)
    if any(span.start < 0 or span.end <= span.start or span.log < 0 for span in spans) or spans_of(root) != spans:
        raise CorruptData("its manifest and its spans do not fit together")
    read("manifest", lambda: _check_node(codec, root))
    for name, kind in _PACKED.items():
        data = getattr(row, name)
        if data is not None and not _fits(read(name, lambda data=data: codec.decode(data)), kind):  # type: ignore[misc]
            raise CorruptData(f"{name} is not a list of what it should hold")
    if (row.fork_checkpoint_id is None) != (row.fork_thread_id is None):
        raise CorruptData("only a half of its fork's origin is there")
    return root


def _check_node(codec: Codec, node: Node) -> None:
    if isinstance(node, Inline):
        codec.decode(node.data)
    elif isinstance(node, Run):
        if node.kind is Kind.LEAF and node.count != 1:
            raise CorruptData("a leaf has not exactly one element")
    else:
        if len(node.keys) != len(node.children) or not all(isinstance(key, str) for key in node.keys):
            raise CorruptData("the keys of a record do not fit")
        for child in node.children:
            _check_node(codec, child)


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

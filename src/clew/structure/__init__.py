"""Structural state: a checkpoint names where the parts of its state lie, and only what changed is stored.

Pure functions, in the order in which a put and a read take them: ``encoding`` (value to form), ``placing`` (form
against base to manifest and new elements), ``segments`` (elements to rows, merging), ``manifest`` (its bytes),
``reading`` (back to the value), ``live`` (what is still named). Then what looking back needs: ``pool`` (many states at
once), ``gaps`` and ``diff`` (what two forms do not share). They all speak in ``nodes``.
"""

from clew.structure.diff import differences, places, same
from clew.structure.encoding import digest_of, encode
from clew.structure.gaps import gaps_between
from clew.structure.live import SpanSet
from clew.structure.manifest import decode_manifest, decode_spans, log_bytes, spans_within
from clew.structure.nodes import Inline, Kind, Node, Record, Run, Span, runs_of, spans_of
from clew.structure.placing import Append, Placement, place
from clew.structure.pool import ElementPool
from clew.structure.reading import SegmentMap, decode, select_channels, wanted, with_elements
from clew.structure.segments import Row, Segment, chunked, decode_payload, due, encode_payload

__all__ = [
    "Append",
    "ElementPool",
    "Inline",
    "Kind",
    "Node",
    "Placement",
    "Record",
    "Row",
    "Run",
    "Segment",
    "SegmentMap",
    "Span",
    "SpanSet",
    "chunked",
    "decode",
    "decode_manifest",
    "decode_payload",
    "decode_spans",
    "differences",
    "digest_of",
    "due",
    "encode",
    "encode_payload",
    "gaps_between",
    "log_bytes",
    "place",
    "places",
    "runs_of",
    "same",
    "select_channels",
    "spans_of",
    "spans_within",
    "wanted",
    "with_elements",
]

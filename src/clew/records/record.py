"""What all records have in common: frozen, strict scalars, one rule for keys left out of the JSON. No record is here.

The two source systems leave a key out of what they write where the field holds a certain value, and read the key's
absence as that value. Each record says so in one table, ``left_out``; it holds for ``model_dump`` in both modes and for
``model_dump_json``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Self, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, Strict, model_serializer

__all__ = ["Count", "Flag", "JsonObject", "LeftOut", "Number", "Record", "Str"]

Str: TypeAlias = Annotated[str, Strict()]
"""A string; bytes are not taken for one."""

Flag: TypeAlias = Annotated[bool, Strict()]
"""A bool; 0, 1 and "yes" are not taken for one."""

Number: TypeAlias = Annotated[int, Strict()]
"""An integer; bool, float and numeric strings are not taken for one."""

Count: TypeAlias = Annotated[int, Strict(), Field(ge=0, le=2**64 - 1)]
"""An unsigned integer of 64 bits, which is what a ``usize`` of the source systems holds."""

JsonObject: TypeAlias = dict[Str, Any]
"""A JSON object; its values come back untouched."""

LeftOut: TypeAlias = Mapping[str, object]
"""Field → the value, which is its default too, for which the key is left out of what is written."""


class Record(BaseModel):
    """A frozen record. Unknown keys beside its fields are ignored when read, as serde does in both source systems."""

    model_config = ConfigDict(
        frozen=True,
        extra="ignore",
        defer_build=True,  # an application that imports clew does not use every record
        # pydantic would write null for NaN and the infinities: a value would change without a word.
        ser_json_inf_nan="constants",
        # Payloads never stand in an error's message.
        hide_input_in_errors=True,
        # "model_" is no prefix of ours to protect: a field is called model_request_attempt.
        protected_namespaces=(),
    )

    left_out: ClassVar[LeftOut] = {}

    @model_serializer(mode="wrap")
    def _write(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        written: dict[str, Any] = write(self)
        for name, value in self.left_out.items():
            held = getattr(self, name)
            # An application's own payload is not asked whether it equals None: an array would answer with an array.
            if held is value or (value is not None and held == value):
                written.pop(name, None)
        return written

    @classmethod
    def built(cls, **fields: Any) -> Self:
        """A record of all these fields, which have to be valid: in a fifth of ``model_construct``'s time."""
        record = cls.__new__(cls)
        put = object.__setattr__
        put(record, "__dict__", fields)
        put(record, "__pydantic_fields_set__", set(fields))
        put(record, "__pydantic_extra__", None)
        put(record, "__pydantic_private__", None)
        return record

    def _replaced(self, **changes: Any) -> Self:
        """A copy with ``changes``, validated, unlike what ``model_copy(update=…)`` gives."""
        return self.model_validate({**dict(self), **changes})

"""Dataclasses and pydantic models taken apart into fields, and put together again without running their code.

How they are named, and what their bytes look like, stands elsewhere.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from inspect import getattr_static
from typing import Any, Final, Protocol

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from clew.codec.extensions import Refused

__all__ = ["ATTRIBUTES", "EXTRA", "HIDDEN", "DataclassShape", "ModelShape", "Shape"]

ATTRIBUTES: Final = "__dict__"
_FIELDS_SET: Final = "__pydantic_fields_set__"
EXTRA: Final = "__pydantic_extra__"
_PRIVATE: Final = "__pydantic_private__"
HIDDEN: Final = frozenset({ATTRIBUTES, _FIELDS_SET, EXTRA, _PRIVATE})
"""Keys beside the fields that hold what else an instance carries. None of them can be a field's name."""


class Shape(Protocol):
    """How instances of one class are taken apart and put together."""

    def take(self, instance: Any) -> dict[str, Any]:
        """The fields in declaration order, then what is `HIDDEN`, where there is any."""

    def give(self, fields: Mapping[str, Any]) -> Any:
        """The instance; what is missing takes the class's default, what the class no longer has is left out."""


class DataclassShape:
    """Any dataclass: frozen, slots, keyword-only and ``init=False`` fields make no difference."""

    def __init__(self, cls: type) -> None:
        self._cls = cls
        self._fields = dataclasses.fields(cls)
        self._names = {field.name for field in self._fields}

    def take(self, instance: Any) -> dict[str, Any]:
        taken = {}
        for field in self._fields:
            try:
                taken[field.name] = getattr(instance, field.name)
            except AttributeError:
                if _dataclass_default(field) is not None:
                    raise _unset(field.name) from None
        attributes = getattr(instance, "__dict__", {})
        if not attributes.keys() <= self._names:
            taken |= _undeclared(self._cls, attributes, self._names)
        return taken

    def give(self, fields: Mapping[str, Any]) -> Any:
        instance: Any = object.__new__(self._cls)
        for field in self._fields:
            if field.name in fields:
                object.__setattr__(instance, field.name, fields[field.name])
            elif default := _dataclass_default(field):
                object.__setattr__(instance, field.name, default())
        if hasattr(instance, "__dict__"):
            instance.__dict__.update(fields.get(ATTRIBUTES, {}))
        return instance


class ModelShape:
    """Any pydantic model; as ``model_construct`` does, nothing is validated. Aliases play no part."""

    def __init__(self, cls: type[BaseModel]) -> None:
        self._cls = cls
        self._fields = dict(cls.model_fields)
        self._private = {
            name: attribute
            for name, attribute in cls.__private_attributes__.items()
            if attribute.default_factory is not None or attribute.default is not PydanticUndefined
        }
        self._no_extra: dict[str, Any] | None = {} if cls.model_config.get("extra") == "allow" else None

    def take(self, instance: BaseModel) -> dict[str, Any]:
        values = instance.__dict__
        taken = {}
        for name, field in self._fields.items():
            if name in values:
                taken[name] = values[name]
            elif not field.is_required():
                raise _unset(name)
        extra: dict[str, Any] | None = instance.__pydantic_extra__
        fields_set = instance.__pydantic_fields_set__
        private: dict[str, Any] = instance.__pydantic_private__ or {}
        hidden: dict[str, Any] = {}
        if fields_set != taken.keys() | (extra or {}).keys():
            hidden[_FIELDS_SET] = sorted(fields_set)
        if extra != self._no_extra:
            hidden[EXTRA] = extra
        if private:
            hidden[_PRIVATE] = private
        for name in self._private.keys() - private.keys():
            raise _unset(name)
        if not values.keys() <= self._fields.keys():
            hidden |= _undeclared(self._cls, values, self._fields)
        return taken | hidden

    def give(self, fields: Mapping[str, Any]) -> BaseModel:
        instance = self._cls.__new__(self._cls)
        values: dict[str, Any] = {}
        for name, field in self._fields.items():
            if name in fields:
                values[name] = fields[name]
            elif not field.is_required():
                values[name] = _model_default(field, values)
        extra = fields.get(EXTRA, self._no_extra)
        known = self._fields.keys() | (extra or {}).keys()
        private = {name: attribute.get_default() for name, attribute in self._private.items()}
        private |= fields.get(_PRIVATE, {})
        state: dict[str, Any] = {
            "__dict__": values | fields.get(ATTRIBUTES, {}),
            _FIELDS_SET: known & set(fields.get(_FIELDS_SET, fields.keys() | (extra or {}).keys())),
        }
        # On a root model these two are attributes of the class; set in vain they would end up among its values.
        if not self._cls.__pydantic_root_model__ or extra is not None:
            state[EXTRA] = extra
        if not self._cls.__pydantic_root_model__ or private:
            state[_PRIVATE] = private if self._cls.__private_attributes__ else None
        for name, value in state.items():
            object.__setattr__(instance, name, value)
        return instance


def _dataclass_default(field: dataclasses.Field[Any]) -> Callable[[], Any] | None:
    if field.default is not dataclasses.MISSING:
        default = field.default
        return lambda: default
    return None if field.default_factory is dataclasses.MISSING else field.default_factory


def _model_default(field: FieldInfo, earlier: dict[str, Any]) -> Any:
    if field.default_factory is None:
        return field.get_default()
    factory: Callable[..., Any] = field.default_factory
    return factory(earlier) if getattr(field, "default_factory_takes_validated_data", False) else factory()


def _unset(name: str) -> Refused:
    return Refused("is not set, and would come back as the class's default", f".{name}")


def _undeclared(cls: type, attributes: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Attributes that are no fields. Caches are left out, as are a generic's traces of how it was called."""
    rest = {
        name: value
        for name, value in attributes.items()
        if name not in names
        and name not in ("__orig_class__", _PRIVATE, EXTRA)
        and not isinstance(getattr_static(cls, name, None), cached_property)
    }
    return {ATTRIBUTES: rest} if rest else {}

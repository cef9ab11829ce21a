"""Docstrings for the face that has none of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

__all__ = ["documented_by"]

Face = TypeVar("Face", bound=type)


def documented_by(other: type) -> Callable[[Face], Face]:
    """Give each public method without a docstring that of ``other``'s method of the same name."""

    def document(face: Face) -> Face:
        for name, member in vars(face).items():
            if not name.startswith("_") and callable(member) and not member.__doc__:
                member.__doc__ = getattr(other, name).__doc__
        return face

    return document

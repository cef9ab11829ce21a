"""One value to bytes and back, exactly, or refused by path. What a state's elements are is decided elsewhere."""

from clew.codec.codec import Codec
from clew.codec.serialized import Serialized
from clew.codec.untyped import UntypedCodec, as_json, json_text
from clew.codec.writing import MAX_DEPTH, child_path

__all__ = ["MAX_DEPTH", "Codec", "Serialized", "UntypedCodec", "as_json", "child_path", "json_text"]

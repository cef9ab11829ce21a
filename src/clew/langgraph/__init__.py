"""LangGraph's checkpoints in clew: ``ClewSaver`` and ``AsyncClewSaver``, and the way in from LangGraph's own savers.

Needs the extra ``langgraph``. Nothing else in clew imports LangGraph.
"""

try:
    from clew.langgraph.async_saver import AsyncClewSaver
    from clew.langgraph.importing import Imported, import_langgraph
    from clew.langgraph.saver import ClewSaver
except ModuleNotFoundError as missing:
    if (missing.name or "").partition(".")[0] not in ("langgraph", "langchain_core"):
        raise
    raise ModuleNotFoundError(
        "clew.langgraph needs an extra; run: pip install 'clew[langgraph]'", name=missing.name
    ) from missing

__all__ = ["AsyncClewSaver", "ClewSaver", "Imported", "import_langgraph"]

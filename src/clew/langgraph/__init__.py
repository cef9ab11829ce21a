"""LangGraph's checkpoints in clew: ``ClewSaver`` and ``AsyncClewSaver``, and the way in from LangGraph's own savers.

Needs the extra ``langgraph``. Nothing else in clew imports LangGraph.
"""

from clew.langgraph.async_saver import AsyncClewSaver
from clew.langgraph.importing import Imported, import_langgraph
from clew.langgraph.saver import ClewSaver

__all__ = ["AsyncClewSaver", "ClewSaver", "Imported", "import_langgraph"]

"""LangGraph's checkpoints in clew: ``ClewSaver`` and ``AsyncClewSaver``, and the way in from LangGraph's own savers.

Needs the extra ``langgraph``. Nothing else in clew imports LangGraph.
"""


from clew.langgraph.saver import AsyncClewSaver, ClewSaver

__all__ = ["AsyncClewSaver", "ClewSaver"]

"""The benchmark: clew and LangGraph's released savers over the same threads, in one run, durable on both sides.

``python -m benchmarks`` runs all of it. Each subject is a module with a ``run``; what they share is in ``course`` (a
thread that grows on both sides at once), ``sides``, ``databases``, ``timing`` and ``report``.
"""

"""The command line, ``clew``: one module a subject, put together in ``app``. It uses what any user of clew could."""

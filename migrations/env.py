"""Alembic's entry in a checkout: ``alembic upgrade head``, ``alembic check``, ``alembic revision``.

``clew.migrate`` does not come through here: a host may call it from a revision of its own, and Alembic's environment
is one per process.
"""

from __future__ import annotations

import asyncio
import os
from logging.config import fileConfig

from alembic import context
from alembic.operations import Operations
from sqlalchemy import Connection, create_engine, make_url
from sqlalchemy.ext.asyncio import create_async_engine

from clew import migrate

config = context.config
arguments = context.get_x_argument(as_dictionary=True)
schema = config.attributes.get("schema") or arguments.get("schema")
# Plain engines: clew.engine's decode JSON otherwise than the reflection behind `alembic check` needs.
url = make_url(arguments.get("url") or os.environ.get("CLEW_URL") or config.get_main_option("sqlalchemy.url", ""))
if url.drivername in ("postgres", "postgresql"):
    url = url.set(drivername="postgresql+asyncpg")

if config.config_file_name is not None:
    fileConfig(config.config_file_name, disable_existing_loggers=False)


def run(connection: Connection) -> None:
    migrate.prepare(connection, schema)
    context.configure(connection=connection, **migrate.options(schema))
    with context.begin_transaction():
        context.run_migrations(op=Operations(context.get_context()), schema=schema)


def offline() -> None:
    context.configure(dialect_name=url.get_backend_name(), as_sql=True, literal_binds=True, **migrate.options(schema))
    with context.begin_transaction():
        context.run_migrations(op=Operations(context.get_context()), schema=schema)


async def online_async() -> None:
    engine = create_async_engine(url)
    try:
        async with engine.begin() as connection:
            await connection.run_sync(run)
    finally:
        await engine.dispose()


def online_sync() -> None:
    engine = create_engine(url)
    try:
        with engine.begin() as connection:
            run(connection)
    finally:
        engine.dispose()


if context.is_offline_mode():
    offline()
elif (given := config.attributes.get("connection")) is not None:
    run(given)
elif url.get_dialect().is_async:
    asyncio.run(online_async())
else:
    online_sync()

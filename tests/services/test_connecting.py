"""URLs to real servers: TLS, Unix sockets, several hosts; the same on asyncpg and psycopg."""

from __future__ import annotations

from typing import Any

import pytest

import clew
from clew import AsyncCheckpointer, Checkpoint, Checkpointer, StorageUnavailable

from debian import Postgres, free_port

pytestmark = pytest.mark.services


async def both_work(url: str) -> None:
    """Both faces connect, and TLS is on where it should be."""
    async with AsyncCheckpointer[Any].open(url, migrate=True) as checkpointer:
        await checkpointer.put(Checkpoint(thread_id="t", state=1))
    with Checkpointer[Any].open(url) as checkpointer:
        checkpointer.put(Checkpoint(thread_id="t", state=2))


async def both_are_refused(url: str) -> None:
    with pytest.raises(StorageUnavailable):
        async with AsyncCheckpointer[Any].open(url):
            pass
    with pytest.raises(StorageUnavailable):
        Checkpointer[Any].open(url)


def named(server: Postgres, parameters: str, host: str = "localhost") -> str:
    return f"postgres://postgres@{host}:{server.port}/postgres?{parameters}"


@pytest.mark.parametrize("mode", ["allow", "prefer", "require"])
async def test_tls_without_a_certificate_to_check_against(tls_server: Postgres, mode: str) -> None:
    await both_work(named(tls_server, f"sslmode={mode}", "127.0.0.1"))


async def test_tls_is_not_given_up_where_it_is_asked_for(server: Postgres) -> None:
    await both_are_refused(named(server, "sslmode=require", "127.0.0.1"))


async def test_a_server_that_insists_on_tls_refuses_plain_connections(tls_server: Postgres) -> None:
    await both_are_refused(named(tls_server, "sslmode=disable", "127.0.0.1"))


@pytest.mark.parametrize("mode", ["verify-ca", "verify-full"])
async def test_a_certificate_is_checked(tls_server: Postgres, mode: str) -> None:
    await both_work(named(tls_server, f"sslmode={mode}&sslrootcert={tls_server.root}/server.crt"))
    await both_are_refused(named(tls_server, f"sslmode={mode}&sslrootcert={tls_server.root}/stranger.crt"))


async def test_the_certificates_name_is_checked_by_verify_full_only(tls_server: Postgres) -> None:
    root = f"sslrootcert={tls_server.root}/server.crt"
    await both_work(named(tls_server, f"sslmode=verify-ca&{root}", "127.0.0.1"))
    await both_are_refused(named(tls_server, f"sslmode=verify-full&{root}", "127.0.0.1"))


@pytest.mark.parametrize(
    "form", ["postgresql://postgres@/postgres?host={}&port={}", "postgres://postgres@{}:{}/postgres"]
)
async def test_a_unix_socket(server: Postgres, form: str) -> None:
    folder = str(server.root) if "?" in form else str(server.root).replace("/", "%2F")
    await both_work(form.format(folder, server.port))


async def test_a_dead_host_before_a_living_one(server: Postgres) -> None:
    await both_work(f"postgresql://postgres@127.0.0.1:{free_port()},127.0.0.1:{server.port}/postgres")


async def test_only_a_server_that_writes_will_do(server: Postgres) -> None:
    dead = free_port()
    url = f"postgresql://postgres@127.0.0.1:{dead},127.0.0.1:{server.port}/postgres?target_session_attrs=read-write"
    await both_work(url)
    await both_are_refused(f"{url.removesuffix('read-write')}standby")


async def test_an_error_of_the_server_names_no_password(server: Postgres) -> None:
    with pytest.raises(clew.ClewError) as caught:
        Checkpointer[Any].open(f"postgresql://postgres:s3cret@127.0.0.1:{server.port}/missing")
    assert "s3cret" not in str(caught.value)

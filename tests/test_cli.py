"""The command ``clew``: what it prints, where it ends with 1, and that it never shows a traceback or a password."""

from __future__ import annotations

import io
import json
import os
import shlex
import subprocess
import sys
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import pydantic
import pytest
from rich.console import Console
from typer.testing import CliRunner

import clew
from clew import migrate as migrations
from clew.cli.__main__ import app, main
from clew.cli.demo import sample_checkpoints
from clew.cli.output import progress, size
from clew.cli.transcripts import read_runs

RUNS: Final = Path(__file__).parents[2] / "shared" / "data" / "airline_runs.jsonl"
CHAT: Final = [
    {"role": "user", "content": "What is on the list?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c1", "function": {"name": "read", "arguments": "{}"}}],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "bread"},
    {"role": "assistant", "content": "Bread."},
]


@dataclass
class Owner:
    name: str
    budget: Decimal


@dataclass(frozen=True)
class Place:
    x: int


class Loose(pydantic.BaseModel, extra="allow"):
    a: int = 1


class Cli:
    """Runs commands on one database, in this process."""

    def __init__(self, url: str | None) -> None:
        self.url = url

    def __call__(self, *words: str, code: int = 0, answer: str | None = None) -> Any:
        environment = {"CLEW_URL": self.url, "COLUMNS": None}
        result = CliRunner().invoke(app, list(words), input=answer, env=environment)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == code, result.output
        return result

    def out(self, *words: str) -> str:
        return str(self(*words).stdout)

    def refusal(self, *words: str) -> str:
        """The one line of an error."""
        result = self(*words, code=1)
        assert result.stdout == ""
        assert result.stderr.startswith("clew: ")
        assert result.stderr.count("\n") == 1
        return str(result.stderr).removeprefix("clew: ").strip()

    def json(self, *words: str) -> list[Any]:
        return [json.loads(line) for line in self.out(*words, "--json").splitlines()]


@pytest.fixture
def cli(database_url: str) -> Cli:
    return Cli(database_url)


@pytest.fixture
def on_sqlite(sqlite_url: str) -> Cli:
    return Cli(sqlite_url)


@pytest.fixture
def chat(tmp_path: Path) -> str:
    """A file with one run, called `chat`."""
    path = tmp_path / "chat.json"
    path.write_text(json.dumps(CHAT))
    return str(path)


def test_a_list_of_messages_becomes_a_thread_called_after_the_file(cli: Cli, chat: str) -> None:
    assert cli.out("record", chat) == "recorded 4 checkpoints of 1 run\n"
    assert [(item["checkpoint_id"], item["next_nodes"]) for item in cli.json("history", "chat")] == [
        ("chat.3", []),
        ("chat.2", ["agent"]),
        ("chat.1", ["tools"]),
        ("chat.0", ["agent"]),
    ]
    [shown] = cli.json("show", "chat")
    assert shown["state"] == {"messages": CHAT}


def test_recording_a_file_again_changes_nothing(cli: Cli, chat: str) -> None:
    cli("record", chat)
    before = cli.json("history", "chat")
    assert cli.out("record", chat) == "recorded 0 checkpoints of 1 run; 4 were there already\n"
    assert cli.json("history", "chat") == before


def test_a_run_that_has_grown_gains_its_new_messages_alone(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "chat.json"
    path.write_text(json.dumps(CHAT[:2]))
    cli("record", str(path))
    path.write_text(json.dumps(CHAT))
    [recorded] = cli.json("record", str(path))
    assert recorded == {"thread_id": "chat", "run_id": "chat", "messages": 4, "new_checkpoints": 2}
    assert cli.json("show", "chat")[0]["state"] == {"messages": CHAT}


def test_runs_keep_their_run_id_and_their_details(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    runs = [{"run_id": f"r{number}", "reward": number / 2, "messages": CHAT[:2]} for number in (1, 2)]
    path.write_text("".join(json.dumps(run) + "\n" for run in runs))
    assert [item["thread_id"] for item in cli.json("record", str(path))] == ["r1", "r2"]
    [shown] = cli.json("show", "r1")
    assert (shown["run_id"], shown["metadata"]) == ("r1", {"reward": 0.5, "source": "loop", "step": 1})
    assert cli.json("show", "r1", "--step", "0")[0]["metadata"] == {"source": "input", "step": 0}


def test_the_thread_can_be_named_for_a_file_with_one_run(cli: Cli, chat: str, tmp_path: Path) -> None:
    cli("record", chat, "--thread", "kitchen")
    assert [thread["thread_id"] for thread in cli.json("threads")] == ["kitchen"]
    assert cli.json("show", "kitchen")[0]["run_id"] == "chat"
    two = tmp_path / "two.json"
    two.write_text(json.dumps([CHAT, CHAT]))
    assert cli.refusal("record", str(two), "--thread", "x") == f"--thread names one thread, and {two} holds 2 runs"


@pytest.mark.parametrize(
    ("text", "threads"),
    [
        (json.dumps({"messages": CHAT}), ["runs"]),
        (json.dumps(CHAT, indent=2), ["runs"]),
        (json.dumps([{"run_id": "a", "messages": CHAT}, {"run_id": 7, "messages": CHAT}], indent=1), ["a", "7"]),
        (json.dumps([CHAT, CHAT]), ["runs-1", "runs-2"]),
        ("\n\n".join(map(json.dumps, [CHAT, CHAT])), ["runs-1", "runs-2"]),
        ("\n".join(map(json.dumps, CHAT)), ["runs"]),
        ("\ufeff" + json.dumps(CHAT), ["runs"]),
        (
            "\r\n".join(json.dumps({"messages": CHAT, "note": "a\u2028b\x85c"}, ensure_ascii=False) for _ in "ab"),
            ["runs-1", "runs-2"],
        ),
    ],
    ids=["object", "list", "objects", "lists", "lists in lines", "messages in lines", "byte order mark", "separators"],
)
def test_every_accepted_form_of_a_file(tmp_path: Path, text: str, threads: list[str]) -> None:
    path = tmp_path / "runs.json"
    path.write_text(text, encoding="utf-8")
    assert [run.run_id for run in read_runs(path)] == threads
    assert all(run.messages == CHAT for run in read_runs(path))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", ": holds no run"),
        ("[]", ": the run has no messages"),
        ("hello", ": not JSON: Expecting value (column 1)"),
        ('{"messages":\n  [1,\n  }', ":3: not JSON: Expecting value (column 3)"),
        ('[{"role": "user"}]\n{"run_id": ', ":2: not JSON: Expecting value (column 12)"),
        ('{"messages": []}', ": the run has no messages"),
        ('{"run_id": "r"}', ": neither a list of messages nor an object with `messages`"),
        ("[" * 100_000, ": nested too deeply"),
        ("3", ": neither a list of messages nor an object with `messages`"),
        ('[{"role": "user"}, {"content": "x"}]', ": message 2 is no object with a `role`"),
        ('[{"role": "user"}]\n[{"role": 1}]', ":2: message 1 is no object with a `role`"),
        ('[[{"role": "user"}], [3]]', ": run 2: message 1 is no object with a `role`"),
        (
            '[{"role": "user"}]\n[{"role": "user", "n": 1' + "0" * 5000 + "}]",
            ":2: holds an integer of more digits than Python converts",
        ),
        ('{"run_id": [], "messages": [{"role": "user"}]}', ": run_id must be a string"),
        (
            '{"run_id": "a", "messages": [{"role": "u"}]}\n' * 2,
            ":2: run_id 'a' was there before, at PATH:1",
        ),
    ],
)
def test_a_bad_file_is_refused_by_the_place_where_it_is_bad(
    on_sqlite: Cli, tmp_path: Path, text: str, said: str
) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(text)
    assert on_sqlite.refusal("record", str(path)) == f"{path}{said}".replace("PATH", str(path))
    assert on_sqlite.json("threads") == []


def test_a_file_that_cannot_be_read_is_refused(on_sqlite: Cli, tmp_path: Path) -> None:
    assert "cannot be read: No such file" in on_sqlite.refusal("record", str(tmp_path / "none.json"))
    assert "cannot be read: Is a directory" in on_sqlite.refusal("record", str(tmp_path))
    binary = tmp_path / "binary.json"
    binary.write_bytes(b'["\xff"]')
    assert "not UTF-8 text" in on_sqlite.refusal("record", str(binary))


@pytest.mark.skipif(not RUNS.exists(), reason="the published runs are not beside this checkout")
def test_the_published_runs_end_up_alike_in_both_databases(sqlite_url: str, postgres_url: str) -> None:
    def contents(url: str) -> tuple[list[Any], list[Any]]:
        cli = Cli(url)
        assert cli.out("record", str(RUNS)) == "recorded 3202 checkpoints of 120 runs\n"
        shown = []
        with clew.Checkpointer.open(url) as checkpointer:
            for run in read_runs(RUNS):
                for listed in checkpointer.iterate(run.run_id):
                    record = listed.model_dump()
                    created = record.pop("created_at")
                    assert created is not None
                    shown.append(record)
                latest = checkpointer.get(clew.CheckpointConfig.latest(run.run_id))
                assert latest is not None
                assert latest.state == {"messages": run.messages}
                shown.append(latest.model_dump())
        measured = [{**item, "stored_bytes": 0, "ratio": 0} for item in cli.json("stats")]
        return shown, sorted(measured, key=lambda item: item["thread_id"])

    assert contents(sqlite_url) == contents(postgres_url)


def test_threads_are_listed_the_last_active_first(cli: Cli, chat: str) -> None:
    assert cli.out("threads") == "no threads\n"
    for name in ("a", "b", "c"):
        cli("record", chat, "--thread", name)
    assert [thread["thread_id"] for thread in cli.json("threads")] == ["c", "b", "a"]
    limited = cli("threads", "--limit", "2")
    assert [line.split()[0] for line in limited.stdout.splitlines()] == ["thread", "c", "b"]
    assert limited.stderr == "there are more than 2; --limit shows them\n"


def test_history_begins_where_it_is_told_and_ends_at_its_limit(cli: Cli, chat: str) -> None:
    cli("record", chat)
    found = cli.json("history", "chat", "--at", "chat.2", "--limit", "2")
    assert [item["checkpoint_id"] for item in found] == ["chat.2", "chat.1"]
    assert [line.split()[0] for line in cli.out("history", "chat").splitlines()] == [
        "checkpoint",
        "chat.3",
        "chat.2",
        "chat.1",
        "chat.0",
    ]


def test_show_finds_a_checkpoint_by_id_by_step_and_by_channel(cli: Cli) -> None:
    assert cli.url
    with clew.Checkpointer.open(cli.url) as checkpointer:
        for checkpoint in sample_checkpoints("t"):
            checkpointer.put(checkpoint)
    [latest] = cli.json("show", "t", "--channel", "plan")
    assert [item["done"] for item in latest["state"]["plan"]] == [True] * 5
    assert list(latest["state"]) == ["plan"]
    assert cli.json("show", "t", "--at", "boat-hire.2")[0]["state"]["plan"][0]["done"] is False
    assert len(cli.json("show", "t", "--step", "5")[0]["state"]["messages"]) == 6
    printed = cli.out("show", "t", "--step", "5")
    assert "boat-hire.5" in printed
    assert "→ get_forecast(" in printed
    assert '{"task":"read booking B-2071","done":false}' in printed


def test_all_threads_are_measured_however_many_pages_they_are(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clew.cli.looking._PAGE", 2)
    assert cli.url is not None
    with clew.Checkpointer.open(cli.url) as checkpointer:
        for name in "abcde":
            checkpointer.put(clew.Checkpoint(thread_id=name, checkpoint_id="c", state={"n": 1}))
    assert [item["thread_id"] for item in cli.json("stats")] == ["e", "d", "c", "b", "a"]


def test_calls_of_whatever_form_are_shown_with_the_message(on_sqlite: Cli) -> None:
    calls: list[Any] = [
        {"function": {"name": "read", "arguments": '{"a": 1}'}},
        {"name": "look", "args": {"b": 2}},
        {"function": "nameless"},
        "no call",
    ]
    assert on_sqlite.url is not None
    with clew.Checkpointer.open(on_sqlite.url) as checkpointer:
        state = {"messages": [{"role": "assistant", "content": "Now.", "tool_calls": calls}]}
        checkpointer.put(clew.Checkpoint(thread_id="t", checkpoint_id="c", state=state))
    lines = [line.rstrip() for line in on_sqlite.out("show", "t").splitlines()]
    assert lines[-1] == '    0 assistant Now. → read({"a": 1}) → look({"b":2})'


def test_namespaces_are_looked_into_by_their_parts(cli: Cli) -> None:
    assert cli.url
    with clew.Checkpointer.open(cli.url) as checkpointer:
        for namespace in ((), ("child",), ("child", "x")):
            checkpointer.put(
                clew.Checkpoint(thread_id="t", checkpoint_id="c", namespace=namespace, state=list(namespace))
            )
    assert cli.json("show", "t")[0]["state"] == []
    assert cli.json("show", "t", "--namespace", "child", "-n", "x")[0]["state"] == ["child", "x"]
    assert cli.json("history", "t", "-n", "child")[0]["namespace"] == ["child"]
    assert cli.refusal("show", "t", "-n", "y") == "thread 't' has no checkpoint in namespace ['y']"


def test_states_of_an_applications_classes_are_shown_without_the_classes(cli: Cli) -> None:
    assert cli.url
    with clew.Checkpointer.open(cli.url, types=[Owner, clew.RunStatus]) as checkpointer:
        state = {"owner": Owner("Ada", Decimal("1.50")), "status": clew.RunStatus.RUNNING, "seen": {(1, 2)}}
        checkpointer.put(clew.Checkpoint(thread_id="t", state=state))
    assert cli.json("show", "t")[0]["state"] == {
        "owner": {"name": "Ada", "budget": "1.50"},
        "status": "RUNNING",
        "seen": [[1, 2]],
    }
    assert cli.json("stats", "t")[0]["information_bytes"] > 0


def test_objects_in_sets_and_as_keys_are_shown_without_their_classes_too(cli: Cli) -> None:
    assert cli.url
    with clew.Checkpointer.open(cli.url, types=[Place, Loose]) as checkpointer:
        state = {"seen": {Place(1)}, "names": {Place(2): "home"}, "loose": Loose(more=3), "long": 16**600}
        checkpointer.put(clew.Checkpoint(thread_id="t", state=state))
    assert cli.json("show", "t")[0]["state"] == {
        "seen": [{"x": 1}],
        "names": {'{"x":2}': "home"},
        "loose": {"a": 1, "more": 3},
        "long": "0x1" + "0" * 600,
    }
    assert cli.json("verify", "t")[0]["problems"] == []


@pytest.mark.invariant(35)
def test_what_was_stored_can_neither_style_nor_steer_the_terminal(cli: Cli) -> None:
    assert cli.url
    with clew.Checkpointer.open(cli.url) as checkpointer:
        messages = [{"role": "user", "content": "[red]\x1b[2J\x07 \udc80 ☃"}]
        checkpointer.put(clew.Checkpoint(thread_id="[b]\x1b[1m", state={"messages": messages, "x": "\x1b"}))
    printed = cli.out("show", "[b]\x1b[1m") + cli.out("threads")
    assert "[red]\\x1b[2J\\x07 \\udc80 ☃" in printed
    assert "[b]\\x1b[1m" in printed
    assert "\x1b" not in printed
    assert cli.json("show", "[b]\x1b[1m")[0]["state"]["messages"] == messages


def test_json_holds_no_control_character_that_a_terminal_would_obey(cli: Cli) -> None:
    assert cli.url
    with clew.Checkpointer.open(cli.url) as checkpointer:
        checkpointer.put(clew.Checkpoint(thread_id="t", state="\x1b[2J\x9b2J\x7f"))
    assert cli.json("show", "t")[0]["state"] == "\x1b[2J\x9b2J\x7f"
    assert not {"\x1b", "\x9b", "\x7f"} & set(cli.out("show", "t", "--json"))


def test_stats_count_what_is_new_in_each_state(cli: Cli) -> None:
    assert cli.url
    with clew.Checkpointer.open(cli.url) as checkpointer:
        messages: list[str] = []
        for number in range(10):
            messages = [*messages, f"{number}" * 998]
            checkpointer.put(clew.Checkpoint(thread_id="t", state={"messages": messages, "kind": "test"}))
        checkpointer.put(clew.Checkpoint(thread_id="u", state=[1]))
    [one] = cli.json("stats", "t")
    # 10 messages of 998 characters and their quotes, and "test" once.
    assert (one["thread_id"], one["checkpoints"], one["information_bytes"]) == ("t", 10, 10_006)
    assert one["ratio"] == one["stored_bytes"] / 10_006
    assert [item["thread_id"] for item in cli.json("stats")] == ["u", "t"]
    assert cli.out("stats").splitlines()[-1].split()[:4] == ["2", "threads", "11", "10.0"]


def test_delete_run_says_how_many_went(cli: Cli, chat: str) -> None:
    for name in ("a", "b"):
        cli("record", chat, "--thread", name)
    assert cli.out("delete-run", "chat", "--thread", "a") == "deleted 4 checkpoints of run chat\n"
    assert cli.refusal("delete-run", "chat", "--thread", "a") == "run 'chat' has no checkpoints in thread 'a'"
    assert len(cli.json("history", "b")) == 4
    assert cli.out("delete-run", "chat") == "deleted 4 checkpoints of run chat\n"


def test_delete_thread_asks_first(cli: Cli, chat: str) -> None:
    cli("record", chat)
    assert "Delete thread 'chat' with 4 checkpoints?" in cli("delete-thread", "chat", code=1, answer="n\n").output
    cli("delete-thread", "chat", code=1, answer="")
    assert len(cli.json("history", "chat")) == 4
    cli("delete-thread", "chat", answer="y\n")
    assert cli.json("threads") == []
    cli("record", chat)
    assert cli.out("delete-thread", "chat", "--yes") == "deleted thread chat\n"
    assert cli.refusal("delete-thread", "chat", "--yes").startswith("thread 'chat' is not stored")


def test_migrate_goes_there_says_where_it_is_and_goes_back(empty_database_url: str) -> None:
    cli = Cli(empty_database_url)
    assert cli.out("migrate", "--current") == "none\n"
    assert "run `clew migrate`" in cli.refusal("migrate", "--check")
    assert "run `clew migrate`" in cli.refusal("threads")
    head = migrations.HEAD
    assert cli.out("migrate") == f"migrated none → {head}\n"
    assert cli.out("migrate") == f"at {head} already\n"
    assert cli.out("migrate", "--to", head) == f"at {head} already\n"
    assert cli.out("migrate", "--check") == f"up to date, at {head}\n"
    assert cli.out("migrate", "--current") == f"{head}\n"
    cli("migrate", "--to", "base", code=1, answer="n\n")
    assert cli.out("migrate", "--current") == f"{head}\n"
    assert cli.out("migrate", "--to", "base", "--yes") == f"migrated {head} → none\n"
    assert cli.refusal("migrate", "--to", "9999").startswith("no revision '9999'")


def test_migrate_prints_the_statements_of_either_dialect() -> None:
    cli = Cli(None)
    assert "CREATE TABLE clew_checkpoints" in cli.out("migrate", "--sql", "--dialect", "sqlite")
    assert "CREATE TABLE here.clew_checkpoints" in cli.out(
        "migrate", "--sql", "--dialect", "postgresql", "--schema", "here"
    )
    assert "BYTEA" in cli.out("migrate", "--sql", "--url", "postgresql://nobody@nowhere/x")
    assert "no migrations for 'oracle'" in cli.refusal("migrate", "--sql", "--dialect", "oracle")
    assert cli.refusal("migrate", "--sql", "--check") == "--sql, --check and --current exclude each other"
    assert cli.refusal("migrate", "--dialect", "sqlite") == "--dialect belongs to --sql"
    assert cli.refusal("migrate", "--to", "base", "--check").startswith("--to names where to go")


def test_a_schema_of_ones_own_is_used_by_every_command(empty_postgres_url: str, chat: str) -> None:
    cli = Cli(empty_postgres_url)
    schema = ("--schema", "house")
    cli("migrate", *schema)
    cli("migrate", "--check", *schema)
    cli("record", chat, *schema)
    assert [item["thread_id"] for item in cli.json("threads", *schema)] == ["chat"]
    assert len(cli.json("history", "chat", *schema)) == 4
    assert len(cli.json("show", "chat", *schema)) == 1
    assert cli.json("stats", *schema)[0]["checkpoints"] == 4
    assert "no clew tables" in cli.refusal("threads")
    cli("delete-run", "chat", *schema)
    cli("delete-thread", "chat", "--yes", *schema)


@pytest.mark.parametrize(
    "words", ["history nope", "show nope", "show nope --step 1", "stats nope", "delete-thread nope"]
)
def test_an_unknown_thread_is_an_error(cli: Cli, words: str) -> None:
    assert cli.refusal(*words.split()) == "thread 'nope' is not stored; `clew threads` lists those that are"


def test_an_unknown_checkpoint_step_or_channel_is_an_error(on_sqlite: Cli, chat: str) -> None:
    on_sqlite("record", chat)
    here = "in the root namespace"
    assert on_sqlite.refusal("show", "chat", "--at", "x") == f"thread 'chat' has no checkpoint 'x' {here}"
    assert on_sqlite.refusal("history", "chat", "--at", "x") == f"thread 'chat' has no checkpoint 'x' {here}"
    assert on_sqlite.refusal("show", "chat", "--step", "9") == f"thread 'chat' has no checkpoint of step 9 {here}"
    assert on_sqlite.refusal("show", "chat", "--channel", "plan") == "the state has no channel 'plan'"
    assert "give one of them" in on_sqlite.refusal("show", "chat", "--at", "x", "--step", "1")


def test_without_a_url_a_command_says_how_to_give_one(chat: str) -> None:
    said = "which database? Give --url or set CLEW_URL: sqlite:///run.db or postgresql://user@host/name"
    for words in ("threads", f"record {chat}", "show t", "stats", "migrate", "migrate --sql", "delete-run r"):
        assert Cli(None).refusal(*words.split()) == said


@pytest.mark.invariant(35)
def test_no_password_is_ever_printed() -> None:
    for url in (
        "postgresql://me:hunter2@127.0.0.1:1/x",
        "postgres://me:hunter2@127.0.0.1:1/x?nonsense=1",
        "mysql://me:hunter2@localhost/x",
    ):
        for words in ("threads", "migrate"):
            result = Cli(None)(words, "--url", url, code=1)
            assert "hunter2" not in result.output


def test_the_demo_shows_its_run_in_a_temporary_file_and_in_one_of_ones_own(tmp_path: Path) -> None:
    cli = Cli(None)
    printed = cli.out("demo")
    assert "Recorded 18 checkpoints" in printed
    assert [line.split()[:2] for line in printed.splitlines() if "tasks done" in line] == [
        ["2", "boat-hire.2"],
        ["9", "boat-hire.9"],
        ["15", "boat-hire.15"],
    ]
    mine = tmp_path / "mine.db"
    assert f"clew show demo --step 9 --url sqlite:///{mine}" in cli.out("demo", "--file", str(mine))
    assert len(cli.json("history", "demo", "--url", f"sqlite:///{mine}")) == 18
    assert "exists already" in cli.refusal("demo", "--file", str(mine))


def process(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if name != "CLEW_URL"}
    return subprocess.run(
        [sys.executable, "-m", "clew.cli", *words],
        env={**clean, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_as_a_process_it_records_and_shows(database_url: str, chat: str) -> None:
    recorded = process("record", chat, CLEW_URL=database_url)
    assert (recorded.returncode, recorded.stdout) == (0, "recorded 4 checkpoints of 1 run\n"), recorded.stderr
    shown = process("show", "chat", "--json", "--url", database_url)
    assert json.loads(shown.stdout)["state"] == {"messages": CHAT}


def test_as_a_process_an_error_is_one_line_and_ends_with_1(database_url: str) -> None:
    done = process("show", "nope", CLEW_URL=database_url)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "clew: thread 'nope' is not stored; `clew threads` lists those that are\n"


def test_a_terminal_without_unicode_is_no_obstacle(sqlite_url: str, tmp_path: Path) -> None:
    path = tmp_path / "chat.json"
    path.write_text(json.dumps([{"role": "user", "content": "☃"}]))
    assert process("record", str(path), CLEW_URL=sqlite_url).returncode == 0
    shown = process("show", "chat", CLEW_URL=sqlite_url, PYTHONIOENCODING="ascii")
    assert shown.returncode == 0, shown.stderr
    assert "\\u2603" in shown.stdout


def test_a_reader_that_stops_early_is_no_failure_worth_a_traceback(sqlite_url: str, chat: str) -> None:
    assert process("record", chat, CLEW_URL=sqlite_url).returncode == 0
    piped = f"{sys.executable} -m clew.cli show chat --url {sqlite_url} | head -c 1"
    done = subprocess.run(piped, shell=True, capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr == ""


@pytest.mark.parametrize("words", [["show", "chat"], ["threads", "--json"], ["export", "chat"]])
def test_a_full_disk_behind_the_output_is_told_in_one_line(sqlite_url: str, chat: str, words: list[str]) -> None:
    assert process("record", chat, CLEW_URL=sqlite_url).returncode == 0
    line = shlex.join([sys.executable, "-m", "clew.cli", *words, "--url", sqlite_url])
    done = subprocess.run(f"{line} > /dev/full", shell=True, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (1, "clew: could not write: No space left on device\n")


@pytest.mark.parametrize("words", [["threads"], ["history", "t"], ["migrate", "--check"]])
def test_looking_into_a_file_that_is_not_there_makes_none(tmp_path: Path, words: list[str]) -> None:
    done = Cli(f"sqlite:///{tmp_path / 'typo.db'}")(*words, code=1)
    assert "typo.db: there is no such file" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_revision_of_a_file_that_is_not_there_is_none_and_makes_none(tmp_path: Path) -> None:
    assert Cli(f"sqlite:///{tmp_path / 'new.db'}").out("migrate", "--current") == "none\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_without_the_extra_it_says_what_to_install(missing: str) -> None:
    script = (
        f"import sys; sys.modules[{missing!r}] = None\n"
        "from clew.cli.__main__ import main\n"
        "sys.argv = ['clew', 'demo']; main()"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "clew: the command line needs its extra; run: pip install 'clew[cli]'\n"


def test_a_module_that_is_missing_otherwise_is_not_put_down_to_the_extra() -> None:
    script = "import sys; sys.modules['clew.cli.demo'] = None\nimport clew.cli.__main__"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.endswith("ModuleNotFoundError: import of clew.cli.demo halted; None in sys.modules\n")


def test_the_command_runs_where_its_output_is_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a notebook, whose output cannot be told what to do with a character that it has not."""
    output = io.StringIO()
    monkeypatch.setattr(sys, "stdout", output)
    monkeypatch.setattr(sys, "argv", ["clew", "--version"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert (ended.value.code, output.getvalue()) == (0, f"clew {clew.__version__}\n")


def test_import_langgraph_without_its_extra_says_what_to_install(tmp_path: Path) -> None:
    script = (
        "import sys; sys.modules['langgraph'] = None\n"
        "from clew.cli.__main__ import main\n"
        f"sys.argv = ['clew', 'import-langgraph', '--from', 'sqlite:///x', '--to', 'sqlite:///{tmp_path / 'y'}']\n"
        "main()"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "clew: import-langgraph needs an extra; run: pip install 'clew[langgraph]'\n"


def test_progress_is_shown_where_somebody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.StringIO()
    monkeypatch.setattr("clew.cli.output._ERR", Console(file=shown, force_terminal=True, width=80))
    with progress("importing", None) as advance:
        advance(7)
        advance(7, by=3)
    assert "importing" in shown.getvalue()
    assert "4/7" in shown.getvalue()


def test_sizes_are_told_in_the_largest_unit_that_fits() -> None:
    counts = (999, 10**3, 10**6, 10**9, 10**12, 10**16)
    assert [*map(size, counts)] == ["999 B", "1.0 kB", "1.0 MB", "1.0 GB", "1.0 TB", "10000.0 TB"]


def test_the_version_is_printed() -> None:
    assert Cli(None).out("--version") == f"clew {clew.__version__}\n"

"""What subcommands share of their command line: how a lock and a server are named, and what each help shows."""

import pytest
import typer
from typer.main import get_command
from typer.testing import CliRunner

from pgelect import LockKey
from pgelect.cli.app import app
from pgelect.cli.options import AsJson, Dsn, Key1, Key2, Name, lock_key, lock_key_or_all

COMMANDS = [command.name or command.callback.__name__ for command in app.registered_commands if command.callback]


def probe() -> typer.Typer:
    """A command that prints what it was given."""
    shown = typer.Typer(rich_markup_mode=None)

    def show(
        name: Name = None, key1: Key1 = None, key2: Key2 = None, *, dsn: Dsn = "", as_json: AsJson = False
    ) -> None:
        typer.echo(f"{lock_key_or_all(name, key1, key2)} {dsn!r} {as_json}")

    shown.command()(show)
    return shown


def shown(*arguments: str, **environment: str) -> str:
    done = CliRunner().invoke(probe(), arguments, env={"PGELECT_DSN": "", "PG_DSN": "", **environment})
    assert done.exit_code == 0, done.output
    return done.output.strip()


def test_a_lock_is_named_by_its_name_or_its_keys_or_not_at_all() -> None:
    assert shown("job") == f"{LockKey.from_name('job')} '' False"
    assert shown("--key1", "-5", "--key2", "7", "--json") == "(-5, 7) '' True"
    assert shown() == "None '' False"


@pytest.mark.parametrize(
    ("name", "key1", "key2", "complaint"),
    [
        (None, None, None, "say which lock"),
        ("job", 1, None, "give one of them"),
        ("job", 1, 2, "give one of them"),
        (None, 1, None, "needs both"),
        (None, None, 2, "needs both"),
        (None, 2**31, 0, "outside the signed 32-bit range"),
        ("", None, None, "must not be empty"),
    ],
)
def test_anything_else_is_a_usage_error_that_says_what_is_wanted(
    name: str | None, key1: int | None, key2: int | None, complaint: str
) -> None:
    with pytest.raises(typer.BadParameter, match=complaint):
        lock_key(name, key1, key2)


def test_the_server_is_the_option_or_the_first_variable_that_is_set() -> None:
    assert shown("--dsn", "host=a", PGELECT_DSN="host=b", PG_DSN="host=c") == "None 'host=a' False"
    assert shown(PGELECT_DSN="host=b", PG_DSN="host=c") == "None 'host=b' False"
    assert shown(PG_DSN="host=c") == "None 'host=c' False"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_help_fits_80_columns_has_an_example_and_shows_no_secret(command: str) -> None:
    done = CliRunner().invoke(app, [command, "--help"], env={"PGELECT_DSN": "password=hush", "COLUMNS": "80"})
    assert done.exit_code == 0
    assert "hush" not in done.output
    assert f"pgelect {command}" in done.output.partition("Example")[2]
    assert [line for line in done.output.splitlines() if len(line) > 80] == []


def test_completion_is_offered() -> None:
    assert "--install-completion" in CliRunner().invoke(app, ["--help"]).output


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--", "./worker"], "say which lock"),
        (["job", "./worker", "--once"], "'./worker' stands before --"),
        (["job", "./worker", "--", "--once"], "'./worker' stands before --"),
        (["job", "--"], "no command follows --"),
    ],
)
def test_the_command_of_run_is_what_follows_the_dashes_and_nothing_is_taken_for_it(
    words: list[str], complaint: str
) -> None:
    """A forgotten NAME made the command the name of a lock, and ``--once`` of a command was taken for ours."""
    done = CliRunner().invoke(app, ["run", *words])
    assert done.exit_code == 2
    assert complaint in done.output


@pytest.mark.parametrize("options", [["job", "--once"], ["--once", "job"], ["--key1", "-1", "--key2", "2"]])
def test_the_words_of_a_command_are_left_as_they_are(options: list[str]) -> None:
    run = get_command(app).commands["run"]  # type: ignore[attr-defined] # the application is a group
    with run.make_context("run", [*options, "--", "worker", "--json", "--", "x"]) as context:
        assert context.params["command"] == ["worker", "--json", "--", "x"]
        assert context.params["as_json"] is False


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["run", "job", "--retry-base", "-5"], "base_s is from --retry-base"),
        (["run", "job", "--retry-base", "5", "--retry-max", "1"], "max_s is from --retry-max"),
        (["key", "\udcff"], "name '\\udcff' is not text in UTF-8"),
        (["status", "--dsn", "host=\udcff"], "dsn cannot be parsed"),
    ],
)
def test_a_value_that_is_refused_is_told_with_where_it_stands(words: list[str], complaint: str) -> None:
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 2
    assert complaint in done.output

"""The README is true: its programs run, print what it says they print, and its tables are those of the code.

Every Python block is a complete program. It runs as it stands, but for the database that it names. Comments before a
block say what else is to be done with it:

- ``<!-- until: TEXT -->``: it runs until it prints this, then gets Ctrl-C; afterwards the lock must be free.
- ``<!-- until: TEXT; then SIGTERM -->``: it gets SIGTERM instead, and must end by itself with exit status 0.
- ``<!-- sql: NAME -->``: the SQL block runs in the test of that name.
- ``<!-- recipe: NAME -->``: the block is run by the tests in ``test_recipes*.py``.

A text block after a program is what it prints.
"""

import inspect
import re
import signal
from collections.abc import Callable

import psycopg
import pytest

import pgelect
from pgelect import LeaderLock, LockKey, LockState
from pgelect._engine.hooks import Hook
from pgelect._group_settings import GroupSettings
from pgelect._postgres.install import FUNCTIONS, RELATIONS
from pgelect.metrics import alert_rules
from pgelect.metrics._series import EVENTS, GAUGES
from pgelect.metrics.prometheus import name_of
from pgelect.testing import Postgres
from tests.support.processes import Worker
from tests.support.readme import BLOCKS, DSN, PROGRAMS, README, RECIPES, ROOT, Block
from tests.support.server import eventually_sync, lock_holders, query, sessions

NOWHERE = '"postgresql://localhost:1/app"'
SQL = {block.marker.removeprefix("sql: "): block.code for block in BLOCKS if block.language == "sql"}
UNTIL = re.compile(r"until: (?P<text>.*?)(?P<sigterm>; then SIGTERM)?$")


def section(title: str) -> str:
    return README.split(f"\n## {title}\n", 1)[1].split("\n## ", 1)[0]


def table(title: str) -> list[list[str]]:
    """The cells of the first table under a heading, without its head; names in backquotes lose them."""
    rows = re.search(r"^\|.*\n\|[-|]+\|\n((?:\|.*\n)+)", section(title), re.MULTILINE)
    assert rows is not None, f"no table under {title}"
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]] for row in rows[1].splitlines()]


def names(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


# Its programs


@pytest.mark.parametrize("block", PROGRAMS, ids=lambda block: f"line {block.line}")
def test_a_program_runs_and_prints_what_the_readme_says(
    block: Block, database: str, worker: Callable[..., Worker]
) -> None:
    until = UNTIL.fullmatch(block.marker)
    program = worker("-W", "error", "-c", block.code.replace(DSN, repr(database)))
    if until is not None:
        program.wait_line(re.escape(until["text"]))
        program.signal(signal.SIGTERM if until["sigterm"] else signal.SIGINT)
    status = program.wait(30)
    loser = "'retries'" if NOWHERE in block.code else "'reports'" if "local_election" in block.code else None
    if loser is not None:
        assert status == 0
        assert all(line.startswith(loser) for line in program.errors), "nothing but lines of the log"
    elif until is None or until["sigterm"]:
        assert (status, program.errors) == (0, [])
    else:
        assert program.errors[-1] == "KeyboardInterrupt"
        assert query(database, "SELECT released_at IS NOT NULL FROM pgelect.token") == [(True,)]
    if block.output is not None:
        assert program.lines == block.output.splitlines()
    name = re.search(r'name="(\w+)"', block.code)
    if name is not None:
        key = LockKey.from_name(name[1])
        assert lock_holders(database, key.key1, key.key2) == []
    eventually_sync(lambda: not sessions(database), message="no session is left")


def test_the_programs_that_are_meant_to_run_are_found() -> None:
    """Holds off a vacuous test: a change of the README's form that hides its programs."""
    assert len(PROGRAMS) + len(RECIPES) == README.count("```python\n") >= 10
    assert sum(bool(block.marker) for block in PROGRAMS) == 2
    assert sum(block.output is not None for block in PROGRAMS) == len(PROGRAMS) - 1
    places = set(re.findall(r'"postgresql:[^"\n]*"', "".join(block.code for block in PROGRAMS)))
    assert places == {DSN, NOWHERE}


def test_the_first_program_ends_before_line_40() -> None:
    first = PROGRAMS[0]
    assert first.line + first.code.count("\n") < 40


# Its SQL


async def test_the_sql_for_any_driver_writes_under_the_current_token_and_not_under_an_old_one(database: str) -> None:
    async with LeaderLock(database, name="ledger") as lock:
        await lock.wait_for_leadership(timeout_s=10)
        async with await psycopg.AsyncConnection.connect(database, autocommit=True) as conn:
            await conn.execute("CREATE TABLE ledger (entry text)")
            await pgelect.guard_table(conn, "ledger", lock.key)
            await conn.execute(SQL["fenced"].encode())
            assert query(database, "SELECT entry FROM ledger") == [("from any language",)]
            await lock.step_down(cooldown_s=0)
            await lock.wait_for_leadership(timeout_s=10)
            with pytest.raises(psycopg.Error) as refused:
                await conn.execute(SQL["fenced"].encode())
            assert refused.value.sqlstate == "PGE01"
    assert len(query(database, "SELECT entry FROM ledger")) == 1


async def test_the_grants_are_enough_for_electors_and_writers_and_a_writer_cannot_lead(own_server: Postgres) -> None:
    for role in ("app_elector", "app_writer"):
        query(own_server.dsn(), f"CREATE ROLE {role} LOGIN")
    async with await psycopg.AsyncConnection.connect(own_server.dsn()) as admin:
        await pgelect.install(admin)
        await admin.execute("CREATE TABLE work (x int); GRANT INSERT, SELECT ON work TO app_writer")
        await admin.commit()
        with pytest.raises(pgelect.SchemaError):
            await LeaderLock(own_server.dsn(user="app_elector"), name="rights").start()
        await admin.execute(SQL["grants"].encode())
        await admin.commit()
    with pytest.raises(pgelect.SchemaError):
        await LeaderLock(own_server.dsn(user="app_writer"), name="rights").start()
    async with LeaderLock(own_server.dsn(user="app_elector"), name="rights") as lock:
        await lock.wait_for_leadership(timeout_s=10)
        async with await psycopg.AsyncConnection.connect(own_server.dsn(user="app_writer")) as conn, lock.fence(conn):
            await conn.execute("INSERT INTO work VALUES (1)")
        assert query(own_server.dsn(), "SELECT x FROM work") == [(1,)]


async def test_the_sql_for_looking_shows_the_leader_and_who_waits(database: str) -> None:
    leaders, holders, history = SQL["seeing"].split(";")[:3]
    leader, follower = (LeaderLock(database, name="seeing", identity=name) for name in ("one", "two"))
    async with leader:
        await leader.wait_for_leadership(timeout_s=10)
        async with follower:
            assert [row[:4] for row in query(database, leaders)] == [("seeing", 1, "one", True)]

            def seen() -> list[tuple[object, ...]]:
                return [row[:3] for row in query(database, holders)]

            eventually_sync(lambda: len(seen()) == 2, message="the follower waits in the server's queue")
            assert seen() == [("seeing", True, "pgelect:seeing:one"), ("seeing", False, "pgelect:seeing:two")]
            eventually_sync(lambda: [row[:3] for row in query(database, history)] == [("seeing", 1, "one")])


def test_the_keys_in_the_sql_are_those_of_the_name_it_gives() -> None:
    assert (LockKey.from_name("ledger").key1, LockKey.from_name("ledger").key2) == (-32243445, 1340617475)
    assert "check_token(-32243445, 1340617475, " in SQL["fenced"]


# Its tables


def test_the_table_of_settings_has_all_settings_with_their_defaults() -> None:
    said = {name: names(default)[0] for setting, default, _ in table("Settings") for name in names(setting)}
    parameters = inspect.signature(LeaderLock).parameters.values()
    real = {p.name: _shown(p.default) for p in parameters}
    assert said == real


def test_the_settings_of_a_group_are_all_named_and_those_of_a_lock_are_a_locks() -> None:
    of_locks = re.search(r"beside those of a lock \(([^)]*)\)", section("Groups"))
    assert of_locks is not None
    own = {name for setting, *_ in table("Groups") for name in names(setting)}
    shared = set(names(of_locks[1]))
    assert own | shared == {*GroupSettings.__annotations__, "names", "keys"}
    assert shared == set(GroupSettings.__annotations__) & set(inspect.signature(LeaderLock).parameters)


def _shown(default: object) -> str:
    return (
        "ExponentialBackoff()" if isinstance(default, pgelect.ExponentialBackoff) else repr(default).replace("'", '"')
    )


def test_the_table_of_callbacks_has_all_callbacks_with_their_arguments() -> None:
    said = {names(callback)[0]: names(arguments)[0].count(",") + 1 for callback, _, arguments in table("Callbacks")}
    assert said == {hook.label: hook.arity for hook in Hook}


def test_the_table_of_states_has_all_states() -> None:
    assert [names(state)[0] for state, _ in table("How it works")] == [state.value for state in LockState]


def test_the_table_of_errors_has_all_errors() -> None:
    assert sorted(names(error)[0] for error, _, _ in table("Errors")) == sorted(
        {*pgelect.errors.__all__} - {"PgElectError"}
    )


def test_the_table_of_strategies_shows_their_defaults() -> None:
    for (shown, _), strategy in zip(
        table("Trying again"),
        (pgelect.ExponentialBackoff(), pgelect.FixedInterval(), pgelect.DecorrelatedJitter()),
        strict=True,
    ):
        assert names(shown) == [repr(strategy)]


def test_troubleshooting_names_symptom_cause_and_remedy() -> None:
    rows = table("Troubleshooting")
    assert len(rows) >= 10
    assert all(len(row) == 3 and all(row) for row in rows)


# Its words


def test_names_that_it_says_are_importable_are() -> None:
    elsewhere = README.replace(section("Metrics"), "")  # where OpenTelemetry's names look the same
    said = set(re.findall(r"\bpgelect\.([A-Za-z]\w*)", elsewhere)) - {*RELATIONS, *FUNCTIONS}
    assert [name for name in sorted(said) if not hasattr(pgelect, name) and not _is_module(name)] == []


def _is_module(name: str) -> bool:
    return (ROOT / "pgelect" / name).is_dir() or (ROOT / "pgelect" / f"{name}.py").is_file()


def test_attributes_of_the_lock_that_it_names_exist() -> None:
    said = set(re.findall(r"\block\.([a-z]\w*)", README))
    assert [name for name in sorted(said) if not hasattr(LeaderLock, name)] == []


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)]+)\)", README):
        if target.startswith("#"):
            headings = re.findall(r"^#+ (.+)$", README, re.MULTILINE)
            assert target[1:] in {re.sub(r"[^\w -]", "", text).lower().replace(" ", "-") for text in headings}
        else:
            assert (ROOT / target).exists(), target


def test_messages_that_it_quotes_are_messages_of_the_code() -> None:
    code = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "pgelect").rglob("*.py"))
    joined = re.sub(r'"\s*\n\s*f?"', "", code)
    quoted = re.findall(r'"([^"`]+)" in the log', README)
    assert len(quoted) >= 3
    assert [text for text in quoted if text not in joined and text != "too many clients"] == []


def test_the_table_of_series_is_that_of_the_code() -> None:
    listed = {names(row[0])[0]: (row[1], names(row[2])) for row in table("Metrics")}
    assert listed == {
        f"{name_of(of)}{'_total' if of.kind.value == 'counter' else ''}": (of.kind.value, list(of.labels))
        for of in (*GAUGES, *EVENTS)
    }


def test_every_alert_is_explained() -> None:
    explained = re.findall(r"^\| `(PgElect\w+)`", section("Alerts"), re.MULTILINE)
    assert explained == re.findall(r"alert: (\w+)", alert_rules())

"""What the doctor thinks of the role's rights and of the schema."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pgelect._postgres import install
from pgelect.cli.doctor_facts import Finding, Rights, Server, Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

_CORE = ("schema_version", "token", "token_seq", "closed", "check_token", "guard")


def check_advisory(rights: Rights, server: Server) -> Iterator[Finding]:
    """Judge whether the role may lock at all."""
    if rights.advisory:
        yield Finding(
            Severity.ERROR,
            "locking",
            f"the role {server.user} may not call {', '.join(rights.advisory)}",
            install.lock_grants_sql(server.user),
        )
    else:
        yield Finding(Severity.OK, "locking", f"the role {server.user} may use advisory locks")
    if server.user != server.login:
        yield Finding(
            Severity.NOTE,
            "role",
            f"{server.login} logs in and works as {server.user}, whose rights are the ones that count",
        )


def check_rights(rights: Rights, server: Server) -> Iterator[Finding]:
    """Judge whether the role can write tokens, and see and do what goes with that."""
    if not set(_CORE) <= set(rights.parts):
        if rights.creates and rights.schema is None:
            yield Finding(
                Severity.NOTE,
                "rights",
                f"the schema pgelect is not there yet; the role {server.user} may make it, and the first lock will",
                "Run 'pgelect init' to have it made now.",
            )
        else:
            yield Finding(
                Severity.ERROR,
                "rights",
                f"the schema pgelect is missing or incomplete, and the role {server.user} may not make it",
                f"Have the owner of the database run 'pgelect init', then:\n{install.grants_sql(server.user)}",
            )
        return
    missing = [
        what
        for what, may in (
            ("use the schema", rights.schema),
            ("read and write the tables token and closed", rights.tables),
            ("use the sequence token_seq", rights.sequence),
        )
        if not may
    ]
    if missing:
        yield Finding(
            Severity.ERROR,
            "rights",
            f"the role {server.user} may not {', '.join(missing)}: it cannot lead",
            install.grants_sql(server.user),
        )
        return
    yield Finding(Severity.OK, "rights", f"the role {server.user} may lead")
    if not rights.fence:
        yield Finding(
            Severity.NOTE,
            "rights",
            f"the role {server.user} may not execute check_token: fenced writes need another role",
            install.writer_grants_sql(server.user),
        )
    if rights.announcing is False:
        yield Finding(
            Severity.WARNING,
            "rights",
            f"the role {server.user} leads without writing its terms down: no history, and no step-down on request",
            install.grants_sql(server.user),
        )
    if not rights.ends_all:
        yield Finding(
            Severity.NOTE,
            "rights",
            f"the role {server.user} may end only sessions of roles that it is a member of: where other roles write "
            "fenced transactions, a new term waits for those that are open",
            f"Grant the writers' role to {server.user}, or pg_signal_backend.",
        )


def check_schema(rights: Rights, version: int | None) -> Iterator[Finding]:
    """Judge who made the schema, what was added to it, and how old it is."""
    if rights.stranger is not None:
        error = install.foreign_schema(rights.stranger)
        yield Finding(Severity.ERROR, "schema", str(error).removesuffix(error.sql).split(". Let ")[0], error.sql)
    if rights.intruder is not None:
        error = install.meddled_schema(rights.intruder)
        yield Finding(Severity.ERROR, "schema", str(error).removesuffix(error.sql).split(". Let ")[0], error.sql)
    if rights.schema is None or not set(_CORE) <= set(rights.parts):
        return  # said with the rights
    whole = {*install.RELATIONS, *install.FUNCTIONS} <= set(rights.parts)
    ours = install.SCHEMA_VERSION
    if version is not None and version > ours:
        yield Finding(
            Severity.WARNING,
            "schema",
            f"the schema is of version {version}, and this pgelect of {ours}: locks lead, without what is newer",
            "Upgrade pgelect.",
        )
    elif not whole or (version is not None and version < ours):
        lost = "what is newer" if whole else "history and step-down on request"
        yield Finding(
            Severity.WARNING,
            "schema",
            f"the schema is of version {version or 'an earlier one'}, and this pgelect of {ours}: locks lead, without "
            f"{lost}",
            "Run 'pgelect init' as the owner of the schema; leaders may go on meanwhile.",
        )
    elif rights.stranger is None and rights.intruder is None:
        yield Finding(Severity.OK, "schema", f"version {ours}, complete, and nothing foreign acts on it")

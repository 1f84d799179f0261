"""Why something happened, in one of a few words: for labels that must stay bounded."""

from __future__ import annotations

import re

from pgelect.errors import PgElectError, SessionLostError

_BEFORE_CAPITAL = re.compile(r"(?<!^)(?=[A-Z])")


def cause_of(error: Exception) -> str:
    """Give the word for an error: how a session was lost, or the kind of any other error of this library."""
    if isinstance(error, SessionLostError):
        return error.reason
    return words_of(error, "_").removesuffix("_error") if isinstance(error, PgElectError) else "unexpected"


def words_of(thing: object, separator: str) -> str:
    """Give the words that the name of a thing's class is made of, in lower case."""
    return words_of_class(type(thing), separator)


def words_of_class(kind: type, separator: str) -> str:
    """Give the words that the name of a class is made of, in lower case."""
    return _BEFORE_CAPITAL.sub(separator, kind.__name__).lower()

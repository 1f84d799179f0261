"""All that the library said: log lines, errors with those behind them, and how its objects show themselves."""

import logging
import traceback
from collections.abc import Iterable, Iterator


def all_said(records: Iterable[logging.LogRecord], *things: object) -> str:
    """Every text of these records of the logger `pgelect`, and of these objects and the errors behind them.

    The local variables of a traceback's frames are not among it: they are the caller's as well as ours.
    """
    texts: list[str] = []
    for record in records:
        if record.name.split(".")[0] != "pgelect":
            continue
        texts += [logging.Formatter().format(record), repr(record.args)]
        if record.exc_info:
            texts += _texts(record.exc_info[1])
        for argument in record.args if isinstance(record.args, tuple) else ():
            texts += _texts(argument)
    for thing in things:
        texts += _texts(thing)
    return "\n".join(texts)


def _texts(thing: object) -> Iterator[str]:
    seen: list[object] = []
    left = [thing]
    while left:
        one = left.pop()
        if one is None or any(one is other for other in seen):
            continue
        seen.append(one)
        yield from (str(one), repr(one), f"{one}")
        if isinstance(one, BaseException):
            yield from (*traceback.format_exception(one), repr(one.args), repr(vars(one)))
            left += [one.__cause__, one.__context__, *one.args, *vars(one).values()]

"""Settings of a lock from environment variables: ``PGELECT_LEASE_S``, or ``PGELECT_<NAME>_LEASE_S`` for one lock only.

The rules:

- <NAME> is the name of the lock in capitals, with everything but A-Z and 0-9 as ``_``. Its variable goes before the one
  for all locks. A variable that is empty counts as not set.
- A value that cannot be read is a ValueError that names the variable and says what is allowed; so is one that the
  constructor refuses. What a DSN holds is never shown: there may be a password in it.
- A variable that is no setting, but looks like one, is a ValueError, too: a misspelt setting must not be ignored. Not
  meant are settings of other locks (``PGELECT_OTHER_LEASE_S``), what ``pgelect run`` tells its command
  (``PGELECT_TOKEN``), and what Kubernetes sets for a Service whose name begins with pgelect
  (``PGELECT_APP_SERVICE_HOST``, ``PGELECT_PORT_5432_TCP``). Anything else with this prefix is somebody else's.
"""

from __future__ import annotations

import json
import math
import re
from contextlib import contextmanager
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, NamedTuple

from pgelect.retry import DecorrelatedJitter, ExponentialBackoff, FixedInterval

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pgelect.retry import RetryStrategy

PREFIX = "PGELECT_"
ALSO_DSN = "PG_DSN"
"""Asked last for the DSN: many a program has it already."""
TOLD_BY_RUN = frozenset({"NAME", "KEY1", "KEY2", "TOKEN", "HOLDER", "ACQUIRED_AT"})
"""What ``pgelect run`` tells its command. A lock of that command must not mistake them for settings of its own."""
SERVICE_LINK = re.compile(r"(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)")
"""What Kubernetes puts into every pod for each Service, after the service's name."""
UNIT = re.compile(r"_(S|MS|SECS?|SECONDS?)$")
ALIKE = 0.65
"""From here on two names look alike to ``difflib``: FENCE and FENCING do, HTTP_HOST is like none."""
SHOWN = 60
"""Characters of a value that an error shows."""


@dataclass(frozen=True, slots=True)
class Found:
    """Arguments for ``LeaderLock``, and where they come from.

    Attributes:
        arguments: by name, ready to be passed on.
        variables: by argument: the variable that it was read from.
    """

    arguments: dict[str, Any] = field(repr=False)  # there may be a password in the DSN
    variables: dict[str, str]

    @contextmanager
    def naming_variables(self) -> Iterator[None]:
        """Have a ValueError about an argument say which variable it was read from."""
        try:
            yield
            return
        except ValueError as error:
            said = str(error)
            named = [f"{a} is from {v}" for a, v in self.variables.items() if re.search(rf"\b{a}\b", said)]
            if not named:
                raise
        raise ValueError(f"{said} ({', '.join(named)})")  # outside the handler: it keeps no other error as its context


def settings_from_env(name: str, environ: Mapping[str, str], overrides: Mapping[str, Any] | None = None) -> Found:
    """Read the settings of the lock of that name.

    Args:
        name: of the lock; its keys follow from it unless ``PGELECT_<NAME>_KEY1`` and ``..._KEY2`` are set.
        environ: the environment, such as ``os.environ``.
        overrides: arguments that are given otherwise; they go before variables.

    Raises:
        ValueError: a variable cannot be read, or looks like a setting and is none.
        TypeError: the name is not a str.
    """
    if not isinstance(name, str):
        raise TypeError(f"name must be a str, not {type(name).__name__}")
    own = prefix_of(name)
    for variable in environ:
        _refuse_misspelt(variable, own)
    given = overrides or {}
    found: dict[str, Any] = {}
    variables: dict[str, str] = {}
    for setting in SETTINGS:
        for variable in _variables(setting, own):
            if text := environ.get(variable, "").strip():
                found[setting.argument], variables[setting.argument] = _read(variable, text, setting), variable
                break
    if "retry_strategy" not in given and (strategy := _strategy(found, variables)) is not None:
        found["retry_strategy"] = strategy
    merged = {argument: value for argument, value in {**found, **given}.items() if argument not in RETRY}
    if "key1" not in merged and "key2" not in merged:
        merged = {"name": name, **merged}
    return Found(merged, {argument: variable for argument, variable in variables.items() if argument not in given})


def prefix_of(name: str) -> str:
    """Return what the variables of one lock begin with: ``PGELECT_MY_JOB_`` for ``my-job``."""
    return f"{PREFIX}{re.sub('[^A-Z0-9]', '_', name.upper())}_"


def _variables(setting: _Setting, own: str) -> list[str]:
    """Name the variables that a setting may stand in; the first one that is set counts."""
    every = [f"{own}{setting.suffix}", f"{PREFIX}{setting.suffix}"]
    if setting.argument in KEYS:  # of one lock only: two locks with one key would exclude each other
        return every[:1]
    return [*every, ALSO_DSN] if setting.argument == "dsn" else every


def _read(variable: str, text: str, setting: _Setting) -> object:
    try:
        text.encode()  # bytes that are not UTF-8 stand in an environment as lone surrogates
        return setting.read(text)
    except (ValueError, RecursionError):  # the latter: JSON of too great a depth
        shown = "" if setting.argument == "dsn" else f"={text if len(text) <= SHOWN else text[: SHOWN - 3] + '...'!r}"
    raise ValueError(f"{variable}{shown} is not {setting.allowed}")


def _strategy(found: Mapping[str, Any], variables: Mapping[str, str]) -> RetryStrategy | None:
    """Make the retry strategy; None when nothing is said of it."""
    if not RETRY & found.keys():
        return None
    base = {"base_s": found["retry_base_s"]} if "retry_base_s" in found else {}
    both = {**base, "max_s": found["retry_max_s"]} if "retry_max_s" in found else base
    names = {"base_s": "retry_base_s", "interval_s": "retry_base_s", "max_s": "retry_max_s"}
    with Found({}, {a: variables[of] for a, of in names.items() if of in variables}).naming_variables():
        match found.get("retry"):
            case "fixed":
                return FixedInterval(*base.values())
            case "decorrelated":
                return DecorrelatedJitter(**both)
            case _:
                return ExponentialBackoff(**both)


# -- what looks like a setting and is none -----------------------------------------------------------------------------


def _refuse_misspelt(variable: str, own: str) -> None:
    if not variable.startswith(PREFIX):
        return
    of_all = variable.removeprefix(PREFIX)
    if of_all in SUFFIXES or of_all in TOLD_BY_RUN or SERVICE_LINK.fullmatch(of_all):
        return  # first of all: the lock may be called lease, or health
    rest = variable.removeprefix(own) if variable.startswith(own) else of_all
    if rest in SUFFIXES or any(rest.endswith(f"_{suffix}") for suffix in SUFFIXES):  # the latter: of another lock
        return
    if variable.startswith(own):
        raise ValueError(f"{variable} is no setting. After {own} may stand: {', '.join(SUFFIXES)}")
    if (meant := _alike(rest)) is not None:
        raise ValueError(f"{variable} is no setting, but looks like one. Did you mean {PREFIX}{meant}?")


def _alike(rest: str) -> str | None:
    """Find a setting that may be meant: by its letters, in another unit, with words left out, or with more after it."""
    bare = UNIT.sub("", rest)
    known = {UNIT.sub("", setting.suffix): setting.suffix for setting in SETTINGS if setting.argument not in KEYS}
    for name in get_close_matches(bare, known, 1, ALIKE):
        return known[name]
    words = set(bare.split("_"))
    return next(
        (suffix for name, suffix in known.items() if words <= set(name.split("_")) or bare.startswith(f"{name}_")), None
    )


# -- the settings ------------------------------------------------------------------------------------------------------


class _Setting(NamedTuple):
    """One argument of the constructor that text can say, or a part of its retry strategy."""

    argument: str
    allowed: str
    read: Callable[[str], object]

    @property
    def suffix(self) -> str:
        return self.argument.upper()


def _seconds(text: str) -> float:
    seconds = float(text)
    if not math.isfinite(seconds):
        raise ValueError(text)
    return seconds


def _seconds_or_none(text: str) -> float | None:
    return None if text.lower() == "none" else _seconds(text)


def _bool(text: str) -> bool:
    low = text.lower()
    if low not in {"true", "false", "1", "0", "yes", "no", "on", "off"}:
        raise ValueError(text)
    return low in {"true", "1", "yes", "on"}


def _mapping(text: str) -> dict[str, Any]:
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError(text)  # noqa: TRY004 -- text of the wrong form, to be told as every other
    return value


def _one_of(*words: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text.lower() not in words:
            raise ValueError(text)
        return text.lower()

    return read


SECONDS, OR_NONE = "a number of seconds, such as 15 or 0.5", "a number of seconds, such as 15 or 0.5, or none"
YES_OR_NO = "true or false"

SETTINGS = (
    _Setting("dsn", "text in UTF-8", str),
    _Setting("key1", "a whole number", int),
    _Setting("key2", "a whole number", int),
    _Setting("identity", "text in UTF-8", str),
    _Setting("metadata", 'an object in JSON, such as {"zone": "a"}', _mapping),
    _Setting("health_interval_s", SECONDS, _seconds),
    _Setting("health_timeout_s", OR_NONE, _seconds_or_none),
    _Setting("lease_s", SECONDS, _seconds),
    _Setting("reconnect_grace_s", OR_NONE, _seconds_or_none),
    _Setting("acquire", "queue or poll", _one_of("queue", "poll")),
    _Setting("takeover_delay_s", SECONDS, _seconds),
    _Setting("drain_timeout_s", SECONDS, _seconds),
    _Setting("auto_reacquire", YES_OR_NO, _bool),
    _Setting("fencing", YES_OR_NO, _bool),
    _Setting("allow_pooler", YES_OR_NO, _bool),
    _Setting("retry", "exponential, decorrelated or fixed", _one_of("exponential", "decorrelated", "fixed")),
    _Setting("retry_base_s", SECONDS, _seconds),
    _Setting("retry_max_s", SECONDS, _seconds),
)
SUFFIXES = tuple(setting.suffix for setting in SETTINGS)
KEYS = frozenset({"key1", "key2"})
RETRY = frozenset({"retry", "retry_base_s", "retry_max_s"})
"""Not arguments themselves: ``retry_strategy`` is made of them."""

"""An elector under observation, in the process of the test: its lock, all that it told, and when it said it leads."""

from contextlib import AsyncExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from pgelect import FixedInterval, LeaderLock, LockState, Term
from tests.support.looks import Looks, now
from tests.support.waiting import eventually

LEASE_S = 1.0
RETRY_S = 0.1
ENDS = ("lost", "released")


@dataclass(frozen=True, slots=True)
class Told:
    """One callback: `what` it was, when it ran, and the token of the term, the pair of states or the error."""

    what: str
    at: float
    detail: Any


class Elector:
    """`async with Elector(dsn, key, lease_s=...) as a:` runs a LeaderLock with short times; `settings` are its own."""

    def __init__(self, dsn: Any, key: tuple[int, int] | str, **settings: Any) -> None:
        keys = {"name": key} if isinstance(key, str) else {"key1": key[0], "key2": key[1]}
        lease_s = settings.get("lease_s", LEASE_S)
        defaults = {"lease_s": lease_s, "health_interval_s": lease_s / 5, "retry_strategy": FixedInterval(RETRY_S)}
        self.lock = LeaderLock(dsn, **{**keys, **defaults, **settings})
        self.told: list[Told] = []
        self.looks = Looks(lambda: self.lock.is_leader)
        self._stack = AsyncExitStack()
        self.lock.on_acquired(lambda term: self._tell("acquired", term))
        self.lock.on_lost(lambda term: self._tell("lost", term))
        self.lock.on_released(lambda term: self._tell("released", term))
        self.lock.on_state_change(lambda before, after: self._tell("state", (before, after)))
        self.lock.on_error(lambda error: self._tell("error", error))

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            stack.enter_context(self.looks)
            await stack.enter_async_context(self.lock)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._stack.__aexit__(exc_type, exc, traceback)

    @property
    def is_leader(self) -> bool:
        """As the lock says."""
        return self.lock.is_leader

    @property
    def terms(self) -> list[tuple[str, int]]:
        """The begins and ends of terms: ("acquired", token), then ("lost", token) or ("released", token)."""
        return [(told.what, told.detail) for told in self.told if told.what in ("acquired", *ENDS)]

    @property
    def states(self) -> list[LockState]:
        """The states that were passed through."""
        changes = [told.detail for told in self.told if told.what == "state"]
        return [LockState.STOPPED, *(after for _, after in changes)]

    @property
    def errors(self) -> list[Exception]:
        """What on_error heard."""
        return [told.detail for told in self.told if told.what == "error"]

    def tokens(self, what: str) -> list[int]:
        """The tokens of all terms "acquired", "lost" or "released"."""
        return [token for kind, token in self.terms if kind == what]

    def when(self, what: str, token: int) -> float:
        """When a callback told of this token."""
        return next(told.at for told in self.told if told.what == what and told.detail == token)

    def check_pairs(self) -> None:
        """Each acquired is followed by one end of the same token before the next, and tokens grow."""
        begins, ends = self.terms[::2], self.terms[1::2]
        assert all(what == "acquired" for what, _ in begins), self.terms
        assert all(what in ENDS for what, _ in ends), self.terms
        assert [token for _, token in ends] == [token for _, token in begins][: len(ends)], self.terms
        tokens = [token for _, token in begins]
        assert tokens == sorted(set(tokens)), self.terms

    async def leads(self, *, above: int = 0, timeout_s: float = 15.0) -> Term:
        """Wait until it leads with a token above that one, has said so, and was seen; return the term."""

        def term() -> list[Term]:
            found = self.lock.term
            if found is None or found.token <= above or found.token not in self.tokens("acquired"):
                return []
            return [found] if self.looks.was_true(self.when("acquired", found.token), now()) else []

        return (await eventually(term, timeout_s, f"{self.lock!r} leads"))[0]

    async def proved(self, number: int, timeout_s: float = 30.0) -> None:
        """Wait for so many more successful proofs of leadership."""
        seen = {self.lock._runner.snapshot.proved_at}  # no public name counts them

        def enough() -> bool:
            seen.add(self.lock._runner.snapshot.proved_at)
            return len(seen) > number

        await eventually(enough, timeout_s, f"{number} proofs")

    async def has_lost(self, token: int, timeout_s: float = 15.0) -> None:
        """Wait until on_lost has told of this token."""
        await eventually(lambda: token in self.tokens("lost"), timeout_s, f"{self.lock!r} has lost term {token}")

    async def hears(self, kind: type[Exception], text: str = "", timeout_s: float = 15.0) -> Exception:
        """Wait for an error of that kind with that text in it."""

        def found() -> list[Exception]:
            return [error for error in self.errors if isinstance(error, kind) and text in str(error)]

        try:
            return (await eventually(found, timeout_s, f"on_error hears {kind.__name__} {text!r}"))[0]
        except AssertionError as late:
            raise AssertionError(f"{late}; it heard {self.errors!r} and is {self.lock!r}") from None

    def _tell(self, what: str, detail: Any) -> None:
        self.told.append(Told(what, now(), detail.token if isinstance(detail, Term) else detail))


async def one_leads(*electors: Elector, above: int = 0, timeout_s: float = 15.0) -> Elector:
    """Wait until exactly one leads, with a token above that one; return it."""

    def one() -> list[Elector]:
        leading = [elector for elector in electors if (elector.lock.token or 0) > above]
        return leading if len(leading) == 1 else []

    (leader,) = await eventually(one, timeout_s, "one of them leads")
    await leader.leads(above=above)
    return leader

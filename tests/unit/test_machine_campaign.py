"""What each rule does on the way to a token: STOPPED, FOLLOWER, and ACQUIRING before the minting is over."""

from dataclasses import replace
from math import inf
from unittest.mock import ANY

import pytest

from pgelect._engine.events import (
    Abort,
    AttemptFailed,
    Changed,
    Close,
    Do,
    Failed,
    Halt,
    Io,
    LockGranted,
    LockRefused,
    Opened,
    Shutdown,
    Start,
    Tick,
)
from pgelect.errors import ConfigurationError, KeyCollisionError, SessionLostError
from tests.support.machines import (
    ACQUIRING,
    ASIDE,
    BACKEND,
    BACKING_OFF,
    CONNECTING,
    DROPPED,
    EPOCH,
    FOLLOWER,
    IDLE,
    MINTING,
    NOW,
    OTHER_BACKEND,
    POLLING,
    RULES,
    STOPPED,
    TRYING,
    WAITING,
    Case,
    cases,
    ruled,
)

DOWN = SessionLostError("connect", "connection refused")
REFUSED_HERE = KeyCollisionError(RULES.key, "billing", "mail")
STRANGE = ValueError("something else")

STARTING = [
    Case(
        "a start opens a session of a new epoch",
        IDLE,
        Start(),
        {"state": FOLLOWER, "epoch": EPOCH + 1, "io": Io.OPEN},
        (Changed(STOPPED, FOLLOWER, "start"), Do(Io.OPEN, EPOCH + 1)),
    ),
    Case(
        "a start after a stop forgets all but epoch and number",
        replace(IDLE, settled=True, ghost=BACKEND),
        Start(),
        {"state": FOLLOWER, "epoch": EPOCH + 1, "io": Io.OPEN, "settled": False, "ghost": None},
        (Changed(STOPPED, FOLLOWER, "start"), Do(Io.OPEN, EPOCH + 1)),
    ),
]

FOLLOWING = [
    Case(
        "once connected, the lock is tried without waiting",
        CONNECTING,
        Opened(EPOCH),
        {"state": ACQUIRING, "connected": True, "io": Io.TRY},
        (Changed(FOLLOWER, ACQUIRING, "opened"), Do(Io.TRY, EPOCH)),
    ),
    Case("a tick before the back-off is over does nothing", BACKING_OFF, Tick(), at=NOW + 2.9),
    Case(
        "when the back-off is over, a new session is opened",
        BACKING_OFF,
        Tick(),
        {"epoch": EPOCH + 1, "io": Io.OPEN, "wake_at": inf},
        (Do(Io.OPEN, EPOCH + 1),),
        at=NOW + 3,
    ),
    Case(
        "when it is time to poll, the lock is tried on the same session",
        POLLING,
        Tick(),
        {"state": ACQUIRING, "io": Io.TRY, "wake_at": inf},
        (Changed(FOLLOWER, ACQUIRING, "tick"), Do(Io.TRY, EPOCH)),
        at=NOW + 3,
    ),
    Case("a tick while waiting in the queue does nothing", WAITING, Tick()),
    Case(
        "a slice of waiting that ends is followed by the next",
        WAITING,
        LockRefused(EPOCH, 0.0),
        {},
        (Do(Io.WAIT, EPOCH),),
    ),
    Case(
        "who is not needed in the queue after a slice stands aside",
        WAITING,
        LockRefused(EPOCH, 0.0, 3.5),
        {"io": Io.ASIDE, "aside_s": 3.5},
        (Do(Io.ASIDE, EPOCH),),
    ),
    Case(
        "who looks and is still not needed stands aside again",
        ASIDE,
        LockRefused(EPOCH, 0.0, 1.5),
        {"aside_s": 1.5},
        (Do(Io.ASIDE, EPOCH),),
    ),
    Case(
        "who looks and sees a free place in the queue takes it",
        ASIDE,
        LockRefused(EPOCH, 0.0),
        {"io": Io.WAIT},
        (Do(Io.WAIT, EPOCH),),
    ),
    Case(
        "who looks and finds the lock free has it, and has the token minted",
        ASIDE,
        LockGranted(EPOCH, OTHER_BACKEND),
        {"state": ACQUIRING, "io": Io.MINT, "ghost": OTHER_BACKEND},
        (Changed(FOLLOWER, ACQUIRING, "lock granted"), Do(Io.MINT, EPOCH)),
    ),
    Case("a tick while standing aside does nothing", ASIDE, Tick()),
    Case(
        "who stands aside and is told to stop has nothing on the server to cancel",
        ASIDE,
        Shutdown(5.0),
        {**DROPPED, "state": STOPPED},
        (Changed(FOLLOWER, STOPPED, "shutdown"), Close(EPOCH, orderly=False)),
    ),
    Case(
        "a lock granted in the queue is followed by the minting of its token",
        replace(WAITING, ghost=BACKEND),
        LockGranted(EPOCH, OTHER_BACKEND),
        {"state": ACQUIRING, "io": Io.MINT, "ghost": OTHER_BACKEND},
        (Changed(FOLLOWER, ACQUIRING, "lock granted"), Do(Io.MINT, EPOCH)),
    ),
    Case(
        "a wait that fails drops its session and backs off",
        WAITING,
        Failed(EPOCH, DOWN, 2.0),
        {**DROPPED, "wake_at": NOW + 2},
        (Close(EPOCH, orderly=False), AttemptFailed(DOWN)),
    ),
    Case(
        "a failed connect backs off",
        CONNECTING,
        Failed(EPOCH, DOWN, 2.0),
        {**DROPPED, "wake_at": NOW + 2},
        (Close(EPOCH, orderly=False), AttemptFailed(DOWN)),
    ),
    Case(
        "a ghost is remembered over failed attempts",
        replace(CONNECTING, ghost=BACKEND),
        Failed(EPOCH, DOWN, 2.0),
        {**DROPPED, "wake_at": NOW + 2},
        (Close(EPOCH, orderly=False), AttemptFailed(DOWN)),
    ),
    Case(
        "when the retry strategy gives up, the lock stops and says so",
        CONNECTING,
        Failed(EPOCH, DOWN, None),
        {**DROPPED, "state": STOPPED},
        (
            Changed(FOLLOWER, STOPPED, "connection refused"),
            Close(EPOCH, orderly=False),
            AttemptFailed(DOWN),
            Halt(DOWN, exhausted=True),
        ),
    ),
    Case(
        "a permanent mistake at the first connect stops the lock, whatever the retry strategy says",
        CONNECTING,
        Failed(EPOCH, REFUSED_HERE, 2.0),
        {**DROPPED, "state": STOPPED},
        (
            Changed(FOLLOWER, STOPPED, str(REFUSED_HERE)),
            Close(EPOCH, orderly=False),
            AttemptFailed(REFUSED_HERE),
            Halt(REFUSED_HERE, exhausted=False),
        ),
    ),
    Case(
        "the same mistake after the server has answered once is tried again: servers are swapped under names",
        replace(CONNECTING, settled=True),
        Failed(EPOCH, REFUSED_HERE, 2.0),
        {**DROPPED, "wake_at": NOW + 2},
        (Close(EPOCH, orderly=False), AttemptFailed(REFUSED_HERE)),
    ),
    Case(
        "a shutdown while waiting in the queue closes in an orderly way, so the wait is cancelled on the server",
        WAITING,
        Shutdown(5.0),
        {**DROPPED, "state": STOPPED},
        (Changed(FOLLOWER, STOPPED, "shutdown"), Close(EPOCH, orderly=True)),
    ),
    Case(
        "a shutdown ends a back-off at once",
        BACKING_OFF,
        Shutdown(5.0),
        {"state": STOPPED, "wake_at": inf},
        (Changed(FOLLOWER, STOPPED, "shutdown"),),
    ),
    Case(
        "an abort of a follower drops the link",
        WAITING,
        Abort(STRANGE),
        {**DROPPED, "state": STOPPED},
        (
            Changed(FOLLOWER, STOPPED, "something else"),
            Close(EPOCH, orderly=False),
            Halt(STRANGE, exhausted=False),
        ),
    ),
]

TRYING_IT = [
    Case(
        "a lock that was granted at once is followed by the minting of its token",
        TRYING,
        LockGranted(EPOCH, BACKEND),
        {"settled": True, "io": Io.MINT, "ghost": BACKEND},
        (Do(Io.MINT, EPOCH),),
    ),
    Case(
        "a lock that is taken sends the follower into the server's queue",
        replace(TRYING, ghost=BACKEND),
        LockRefused(EPOCH, 0.0),
        {"state": FOLLOWER, "settled": True, "io": Io.WAIT, "ghost": None},
        (Changed(ACQUIRING, FOLLOWER, "lock refused"), AttemptFailed(None), Do(Io.WAIT, EPOCH)),
    ),
    Case(
        "where enough others wait in the queue, the follower stands aside",
        TRYING,
        LockRefused(EPOCH, 0.0, 2.0),
        {"state": FOLLOWER, "settled": True, "io": Io.ASIDE, "aside_s": 2.0},
        (Changed(ACQUIRING, FOLLOWER, "lock refused"), AttemptFailed(None), Do(Io.ASIDE, EPOCH)),
    ),
    Case(
        "a lock that is taken is polled for later, on the same session",
        ruled(TRYING, queue=False),
        LockRefused(EPOCH, 2.5),
        {"state": FOLLOWER, "settled": True, "io": None, "wake_at": NOW + 2.5},
        (Changed(ACQUIRING, FOLLOWER, "lock refused"), AttemptFailed(None)),
    ),
    Case(
        "when the retry strategy gives up polling, the lock stops and says so",
        ruled(TRYING, queue=False),
        LockRefused(EPOCH, None),
        {**DROPPED, "state": STOPPED, "settled": True},
        (
            Changed(ACQUIRING, STOPPED, "lock refused"),
            Close(EPOCH, orderly=True),
            AttemptFailed(None),
            Halt(None, exhausted=True),
        ),
    ),
    Case(
        "an attempt that fails drops its session: the lock may have been granted",
        TRYING,
        Failed(EPOCH, DOWN, 2.0),
        {**DROPPED, "state": FOLLOWER, "wake_at": NOW + 2},
        (Changed(ACQUIRING, FOLLOWER, "connection refused"), Close(EPOCH, orderly=False), AttemptFailed(DOWN)),
    ),
    Case(
        "a name that collides at the first attempt stops the lock",
        TRYING,
        Failed(EPOCH, REFUSED_HERE, 2.0),
        {**DROPPED, "state": STOPPED},
        (
            Changed(ACQUIRING, STOPPED, str(REFUSED_HERE)),
            Close(EPOCH, orderly=False),
            AttemptFailed(REFUSED_HERE),
            Halt(REFUSED_HERE, exhausted=False),
        ),
    ),
    Case(
        "a token that cannot be minted releases the lock with its session",
        MINTING,
        Failed(EPOCH, ConfigurationError("no right to write the row"), 2.0),
        {**DROPPED, "state": FOLLOWER, "wake_at": NOW + 2},
        (Changed(ACQUIRING, FOLLOWER, "no right to write the row"), Close(EPOCH, orderly=False), AttemptFailed(ANY)),
    ),
    Case(
        "a session whose minting failed may still hold the lock: it is the ghost to be ended then",
        replace(MINTING, ghost=OTHER_BACKEND),
        Failed(EPOCH, DOWN, 2.0),
        {**DROPPED, "state": FOLLOWER, "wake_at": NOW + 2, "ghost": OTHER_BACKEND},
        (Changed(ACQUIRING, FOLLOWER, "connection refused"), Close(EPOCH, orderly=False), AttemptFailed(DOWN)),
    ),
    Case(
        "a shutdown during a minting has the server cancel it: it may be waiting for a standby, with the lock held",
        MINTING,
        Shutdown(5.0),
        {**DROPPED, "state": STOPPED},
        (Changed(ACQUIRING, STOPPED, "shutdown"), Close(EPOCH, orderly=True)),
    ),
    Case(
        "a shutdown during an attempt drops the link without a word: the answer is not waited for",
        TRYING,
        Shutdown(5.0),
        {**DROPPED, "state": STOPPED},
        (Changed(ACQUIRING, STOPPED, "shutdown"), Close(EPOCH, orderly=False)),
    ),
    Case(
        "an abort during a minting drops the link, and ends no term: none had begun",
        MINTING,
        Abort(None),
        {**DROPPED, "state": STOPPED},
        (Changed(ACQUIRING, STOPPED, "abort"), Close(EPOCH, orderly=False), Halt(None, exhausted=False)),
    ),
]

CASES = [*STARTING, *FOLLOWING, *TRYING_IT]


@pytest.mark.parametrize("case", cases(*CASES))
def test_on_the_way_to_a_token(case: Case) -> None:
    after, effects = case.run()
    assert after == case.then
    assert effects == case.effects

"""A program that runs one member of a group, prints as JSON what it leads, and ends on SIGTERM as a service does.

`python -m tests.support.group_member '{"dsn": ..., "names": [...], "group": ..., ...}'`; further members are arguments
of LeaderGroup. One object a line: `{"event": "acquired"|"lost"|"released", "partition": ..., "token": ..., "at": ...}`,
and `{"event": "look", "leading": n}` whenever the number that it says it leads has changed, also after a pause.
"""

import asyncio
import json
import signal
import sys
from typing import Any

from pgelect import FixedInterval, LeaderGroup, Term
from tests.support.looks import now


def tell(event: str, **details: Any) -> None:
    sys.stdout.write(json.dumps({"event": event, "at": now(), **details}) + "\n")


async def main(settings: dict[str, Any]) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    group = LeaderGroup(settings.pop("dsn"), retry_strategy=FixedInterval(0.1), shutdown_event=stop, **settings)

    def told(event: str, term: Term) -> None:
        tell(event, partition=term.key.name, token=term.token)

    group.on_acquired(lambda term: told("acquired", term))
    group.on_lost(lambda term: told("lost", term))
    group.on_released(lambda term: told("released", term))
    looking = asyncio.create_task(look(group))
    await group.run()
    looking.cancel()
    tell("ended")


async def look(group: LeaderGroup[str]) -> None:
    seen = -1
    while True:
        if (leading := len(group.leading)) != seen:
            seen = leading
            tell("look", leading=leading)
        await asyncio.sleep(0.002)


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))

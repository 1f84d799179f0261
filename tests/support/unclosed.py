"""Says where a connection was made that is deleted while it is still open: the driver only says that it was."""

import logging
import os
import traceback
from typing import Any

from psycopg import BaseConnection
from psycopg.pq.abc import PGconn

log = logging.getLogger("tests")
_FRAMES = 14


def name_the_makers() -> None:
    """From now on. It shows in the log that is captured with the failure."""
    init, delete = BaseConnection.__init__, BaseConnection.__del__

    def made(self: BaseConnection[Any], pgconn: PGconn) -> None:
        init(self, pgconn)
        self._made_at = traceback.extract_stack(limit=_FRAMES)  # type: ignore[attr-defined]
        self._made_in = os.environ.get("PYTEST_CURRENT_TEST")  # type: ignore[attr-defined]

    def deleted(self: BaseConnection[Any]) -> None:
        frames = getattr(self, "_made_at", None)
        if frames is not None and not self.closed and not hasattr(self, "_pool"):
            made_at = "".join(traceback.format_list(frames))
            log.error("a connection that is still open is deleted; %s made it at\n%s", self._made_in, made_at)  # type: ignore[attr-defined]
        delete(self)

    BaseConnection.__init__ = made  # type: ignore[method-assign]
    BaseConnection.__del__ = deleted  # type: ignore[method-assign, assignment]

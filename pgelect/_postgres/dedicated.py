"""A dedicated connection from connect to close: what the session of a lock and that of a group have in common."""

from __future__ import annotations

import os
import secrets
from typing import TYPE_CHECKING

from pgelect._postgres.connect import Connector
from pgelect._postgres.guards import admit
from pgelect._postgres.link import Deadline, check_owner
from pgelect._postgres.opened import Opened
from pgelect.errors import NotPrimaryError, SessionLostError

if TYPE_CHECKING:
    from pgelect._postgres.link import Link
    from pgelect._postgres.options import SessionOptions


class DedicatedSession:
    """One server session that nobody else uses."""

    def __init__(self, options: SessionOptions) -> None:
        self._options = options
        self._owner_pid = os.getpid()
        self._nonce = secrets.token_hex(16)  # proves that this is still the server session we set up
        self._connector = Connector(options)
        self._link: Link | None = None
        self._opened: Opened | None = None  # set once the guards are passed
        self._closed = False

    def __repr__(self) -> str:
        backend = f"backend {self._opened.facts.backend.pid}" if self._opened else "not open"
        return f"<{type(self).__name__} {self._options.key} {'closed' if self._closed else backend}>"

    async def open(self, within_s: float) -> None:
        """Connect, set every setting relied on, and pass the guards."""
        check_owner(self._owner_pid)
        deadline = Deadline.after(within_s)
        try:
            try:
                await self._connect(deadline)
            except NotPrimaryError as standby:
                # One name may have several addresses, and this was the first that answered: each has its turn now.
                await self._connect_to_primary(deadline, standby)
        except BaseException:
            self.abandon()
            raise

    def abandon(self) -> None:
        """Drop the link at once, waiting for nothing. Never raises; harmless when repeated or in a fork."""
        if os.getpid() != self._owner_pid:
            return
        self._closed = True
        self._connector.abandon()
        if self._link is not None:
            self._link.drop()

    async def _connect(self, deadline: Deadline, *, primary: bool = False) -> None:
        self._check_wanted()
        self._link = link = await self._connector.connect(deadline, primary=primary)
        self._check_wanted()
        facts = await admit(link, self._options, self._nonce, deadline)
        self._opened = Opened(link, self._options, facts)

    async def _connect_to_primary(self, deadline: Deadline, standby: NotPrimaryError) -> None:
        if self._link is not None:
            self._link.drop()
        if self._options.connect_fn is not None:
            raise standby
        try:
            await self._connect(deadline, primary=True)
        except SessionLostError:
            raise standby from None

    def _check_wanted(self) -> None:
        if self._closed:
            if self._link is not None:
                self._link.drop()
            raise SessionLostError("closed", "the session was closed while it was being opened")

    def _open_session(self) -> Opened:
        check_owner(self._owner_pid)
        if self._opened is None:
            raise SessionLostError("closed", "the session is not open")
        return self._opened

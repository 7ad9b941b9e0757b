"""Connections of the explorer's server: one that sends no request is closed."""

from asyncio import BaseTransport, TimerHandle
from typing import ClassVar
from weakref import WeakKeyDictionary

from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_SECONDS, SILENT = 20.0, 128
"""Time limit of the first request's headers, and how many connections may have sent none; one more
closes the oldest of them."""


class Connection(H11Protocol):
    """A connection with a time limit until its first request."""

    _silent: ClassVar["WeakKeyDictionary[Connection, TimerHandle]"] = WeakKeyDictionary()
    """Connections without a request, the oldest first, by the timers that close them."""

    def connection_made(self, transport: BaseTransport) -> None:
        super().connection_made(transport)  # pyright: ignore[reportArgumentType]
        self._silent[self] = self.loop.call_later(HEAD_SECONDS, self._give_up)
        if len(self._silent) > SILENT:
            next(iter(self._silent))._give_up()

    def connection_lost(self, exc: Exception | None) -> None:
        self._heard()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is not None:  # the headers are complete
            self._heard()

    def _heard(self) -> None:
        if timer := self._silent.pop(self, None):
            timer.cancel()

    def _give_up(self) -> None:
        self._heard()
        self.transport.abort()

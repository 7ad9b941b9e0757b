"""Who may ask, and how much: pages of this machine's own server, bodies of a few megabytes.

Plain ASGI, before everything else: a page of another site can reach a server on this machine, so a
foreign Host (a name that was made to point here), Origin or fetch from elsewhere is turned away.
"""

import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from starlette.exceptions import HTTPException

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

LARGEST = 4 * 2**20
"""Bytes of a body."""
TOO_LARGE = f"A body has at most {LARGEST:,} bytes."
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; style-src 'self'; "
        "img-src 'self' data: blob:; connect-src 'self'; worker-src 'self'; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "referrer-policy": "no-referrer",
}
OWN_HEADER = "x-torchcaps"
"""What no form of another site can send."""


class Guard:
    def __init__(self, app: Callable[[Scope, Receive, Send], Awaitable[None]], hosts: set[str]):
        self.app, self.hosts = app, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return
        heard = {k.decode("latin1").lower(): v.decode("latin1") for k, v in scope["headers"]}
        reason = self._refused(scope["method"], heard)
        if reason:
            return await answer(send, *reason)

        read = 0

        async def counted() -> MutableMapping[str, Any]:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            if read > LARGEST:  # a body that did not say how long it is
                raise HTTPException(413, TOO_LARGE)
            return message

        async def sent(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                own = [(k.encode(), v.encode()) for k, v in HEADERS.items()]
                message["headers"] = [*message.get("headers", []), *own]
            await send(message)

        await self.app(scope, counted, sent)

    def _refused(self, method: str, heard: dict[str, str]) -> tuple[int, str, str] | None:
        host = heard.get("host", "")
        if host not in self.hosts:
            return 421, "host", "This server answers under its own address alone."
        origin = heard.get("origin")
        if origin is not None and origin != f"http://{host}":
            return 403, "origin", "Pages of other sites may not ask here."
        if heard.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            return 403, "origin", "Pages of other sites may not ask here."
        if method not in ("GET", "HEAD") and heard.get(OWN_HEADER) != "1":
            return 403, "header", f"Requests that change or compute carry {OWN_HEADER}: 1."
        length = heard.get("content-length", "0")
        if not length.isdecimal() or int(length) > LARGEST:
            return 413, "large", TOO_LARGE
        return None


async def answer(send: Send, status: int, code: str, error: str) -> None:
    """A sentence in place of what was asked for."""
    body = json.dumps({"error": error, "code": code}).encode()
    headers = {"content-type": "application/json", "content-length": str(len(body)), **HEADERS}
    pairs = [(k.encode(), v.encode()) for k, v in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": pairs})
    await send({"type": "http.response.body", "body": body})

"""ASGI middleware that rejects cross-site requests and large bodies.

Pages of other sites can reach a server on this machine. The guard therefore rejects a foreign Host
(DNS rebinding), a foreign Origin and cross-site fetches before the application sees them.
"""

import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from starlette.exceptions import HTTPException

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

LARGEST = 4 * 2**20
"""Largest request body in bytes."""
TOO_LARGE = f"The body is too large; at most {LARGEST:,} bytes are allowed."
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
"""A header that a form of another site cannot send."""


class Guard:
    """Check requests before `app`, and add security headers to its answers."""

    def __init__(self, app: Callable[[Scope, Receive, Send], Awaitable[None]], hosts: set[str]):
        self.app, self.hosts = app, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return
        headers = {k.decode("latin1").lower(): v.decode("latin1") for k, v in scope["headers"]}
        error = self._check(scope["method"], headers)
        if error:
            return await send_error(send, *error)

        size = 0

        async def limited_receive() -> MutableMapping[str, Any]:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > LARGEST:  # a body without a Content-Length
                raise HTTPException(413, TOO_LARGE)
            return message

        async def send_with_headers(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), *_encode(HEADERS)]
            await send(message)

        await self.app(scope, limited_receive, send_with_headers)

    def _check(self, method: str, headers: dict[str, str]) -> tuple[int, str, str] | None:
        """Status, code and message of the error for these request headers; None: no error."""
        host, origin = headers.get("host", ""), headers.get("origin")
        if host not in self.hosts:
            return 421, "host", f"Unknown host {host!r}; use the address that torchcaps printed."
        same_site = headers.get("sec-fetch-site", "none") in ("none", "same-origin")
        if not same_site or (origin is not None and origin != f"http://{host}"):
            return 403, "origin", "Requests from other sites are not allowed."
        if method not in ("GET", "HEAD") and headers.get(OWN_HEADER) != "1":
            return 403, "header", f"This request needs the header {OWN_HEADER}: 1."
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > LARGEST:
            return 413, "large", TOO_LARGE
        return None


def _encode(headers: dict[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode(), value.encode()) for name, value in headers.items()]


async def send_error(send: Send, status: int, code: str, error: str) -> None:
    """Send an error as JSON."""
    body = json.dumps({"error": error, "code": code}).encode()
    headers = {"content-type": "application/json", "content-length": str(len(body)), **HEADERS}
    await send({"type": "http.response.start", "status": status, "headers": _encode(headers)})
    await send({"type": "http.response.body", "body": body})

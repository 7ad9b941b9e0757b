"""ASGI middleware that lets in only the page of the person who started the server.

Pages of other sites and other accounts of this machine can reach the server. The guard therefore
rejects a foreign Host (DNS rebinding), a foreign Origin, cross-site fetches, and paths that do not
begin with the token of the printed address, before the application sees them. It reads bodies
itself, with a limit on their size, their time and on how many are awaited at once.
"""

import asyncio
import hmac
import json
from collections import deque
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

LARGEST = 4 * 2**20
"""Largest request body in bytes."""
BODY_SECONDS, BODIES = 10.0, 32
"""Time limit of a body, and how many are awaited at once; one more ends the wait for the oldest."""
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

    def __init__(
        self,
        app: Callable[[Scope, Receive, Send], Awaitable[None]],
        hosts: set[str],
        token: str,
    ):
        self.app, self.hosts, self.token = app, hosts, token.encode()
        self._awaited: deque[asyncio.Timeout] = deque()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return
        headers = {k.decode("latin1").lower(): v.decode("latin1") for k, v in scope["headers"]}
        token, _, path = scope["path"].removeprefix("/").partition("/")
        error = self._check(scope["method"], headers, token)
        if error:
            return await send_error(send, *error)
        try:
            body = await self._body(receive)
        except TimeoutError:
            return await send_error(send, 408, "slow", "The body of this request did not arrive.")
        if body is None:
            return
        if len(body) > LARGEST:  # a body without a Content-Length
            return await send_error(send, 413, "large", TOO_LARGE)
        unread = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive_body() -> MutableMapping[str, Any]:
            return unread.pop() if unread else await receive()

        async def send_with_headers(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), *_encode(HEADERS)]
            await send(message)

        inside = {**scope, "path": f"/{path}", "raw_path": f"/{path}".encode()}
        await self.app(inside, receive_body, send_with_headers)

    async def _body(self, receive: Receive) -> bytes | None:
        """The body of a request; one that is too large is not read to its end. None: the client
        has gone. Raise TimeoutError if it does not arrive in time.
        """
        body = b""
        async with asyncio.timeout(BODY_SECONDS) as deadline:
            self._awaited.append(deadline)
            if len(self._awaited) > BODIES and not (oldest := self._awaited.popleft()).expired():
                oldest.reschedule(asyncio.get_running_loop().time())
            try:
                while len(body) <= LARGEST:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return None
                    body += message.get("body", b"")
                    if not message.get("more_body", False):
                        break
            finally:
                if deadline in self._awaited:
                    self._awaited.remove(deadline)
        return body

    def _check(
        self, method: str, headers: dict[str, str], token: str
    ) -> tuple[int, str, str] | None:
        """Status, code and message of the error for this request; None: no error."""
        host, origin = headers.get("host", ""), headers.get("origin")
        if host not in self.hosts:
            return 421, "host", f"Unknown host {host!r}; use the address that torchcaps printed."
        same_site = headers.get("sec-fetch-site", "none") in ("none", "same-origin")
        if not same_site or (origin is not None and origin != f"http://{host}"):
            return 403, "origin", "Requests from other sites are not allowed."
        if not hmac.compare_digest(token.encode(), self.token):
            return 403, "token", "Open the whole address that torchcaps printed, with its token."
        if method not in ("GET", "HEAD") and headers.get(OWN_HEADER) != "1":
            return 403, "header", f"This request needs the header {OWN_HEADER}: 1."
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > LARGEST:
            return 413, "large", TOO_LARGE
        return None


def _encode(headers: dict[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode(), value.encode()) for name, value in headers.items()]


async def send_error(send: Send, status: int, code: str, error: str) -> None:
    """Send an error as JSON and close the connection, whatever else it would send."""
    body = json.dumps({"error": error, "code": code}).encode()
    headers = {"content-type": "application/json", "content-length": str(len(body)),
               "connection": "close", **HEADERS}  # fmt: skip
    await send({"type": "http.response.start", "status": status, "headers": _encode(headers)})
    await send({"type": "http.response.body", "body": body})

"""Fixture: an explorer server."""

import socket
import threading
import time

import pytest


@pytest.fixture(scope="session")
def served():
    """The address, with its token, of a server with the models that come with torchcaps."""
    from torchcaps.explorer.server import make_server
    from torchcaps.explorer.shelf import Shelf

    sock = socket.socket(proto=socket.IPPROTO_TCP)
    sock.bind(("127.0.0.1", 0))
    host = f"127.0.0.1:{sock.getsockname()[1]}"
    server = make_server(Shelf([]), sock.getsockname()[1], "token-for-tests")
    thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.02)
    yield f"{host}/token-for-tests"
    server.should_exit = True
    thread.join(10)
    sock.close()

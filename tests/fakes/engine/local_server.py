"""A web server of a test, in a thread of its own, that ends whatever its test does."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from http.server import ThreadingHTTPServer


@contextmanager
def run_server(handler):
    """Serve by `handler` on a port of this machine, and yield the address."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            # A server that is closed and not stopped asks its socket for ever, as fast as it can.
            server.shutdown()

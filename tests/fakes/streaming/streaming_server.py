"""A small server with SGLang's streaming /generate that fails one request: real HTTP, for the real load generator.

    python -m streaming_server --port PORT

STREAM_FAULT says what becomes of its request number STREAM_AT (50 by default; bench_serving's own warm-up request is the
first) after some tokens: drop (the connection is closed), garbage (a chunk is the page of a proxy) or stall (nothing comes for
STREAM_STALL_S seconds, then the rest). Left out, every request is answered in full, a token every 5 ms. The file STREAM_RECORD
gets a line for each request: when it came, its tokens, and how many it asks for.
"""

import json
import os
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

FAULT = os.environ.get("STREAM_FAULT", "")
AT = int(os.environ.get("STREAM_AT", "50"))
RECORD = os.environ.get("STREAM_RECORD", "")
STALL_S = float(os.environ.get("STREAM_STALL_S", "10"))
# So many tokens of the failing request are sent before it fails.
SENT = 3
TOKEN_S = 0.005


class Server(ThreadingHTTPServer):
    """All requests of a window arrive at once."""

    request_queue_size = 128
    requests = 0
    lock = threading.Lock()


class Handler(BaseHTTPRequestHandler):
    """Answer what a session and bench_serving ask of SGLang."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.tell({"internal_states": [{"avg_spec_accept_length": 1.0}]})

    def do_POST(self):
        came_s = time.monotonic()
        question = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        if self.path != "/generate":
            self.tell({})
            return
        with Server.lock:
            Server.requests += 1
            fault = FAULT if Server.requests == AT else ""
        asked = json.loads(question)
        tokens = asked["sampling_params"]["max_new_tokens"]
        if RECORD:
            told = {"at_s": came_s, "input_ids": asked.get("input_ids"), "max_new_tokens": tokens}
            with Server.lock, open(RECORD, "a", encoding="utf-8") as file:
                file.write(f"{json.dumps(told)}\n")
        self.stream(tokens, fault)

    def stream(self, tokens, fault):
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for token in range(1, tokens + 1):
            if token > SENT and fault == "drop":
                self.close_connection = True
                self.connection.close()
                return
            if token == SENT + 1 and fault == "stall":
                time.sleep(STALL_S)
            answer = {"text": " word" * token, "meta_info": {"completion_tokens": token}}
            is_page = token == SENT + 1 and fault == "garbage"
            self.send(b"<html>502 Bad Gateway</html>" if is_page else json.dumps(answer).encode())
            time.sleep(TOKEN_S)
        self.send(b"[DONE]")
        self.wfile.write(b"0\r\n\r\n")

    def send(self, data):
        """Send an event as a chunk of its own."""
        event = b"data: " + data + b"\n\n"
        self.wfile.write(b"%x\r\n%s\r\n" % (len(event), event))
        self.wfile.flush()

    def tell(self, content):
        body = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        """Stay silent."""


if __name__ == "__main__":
    Server(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Handler).serve_forever()

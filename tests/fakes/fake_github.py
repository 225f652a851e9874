"""GitHub's REST interface as far as perfgate uses it, as a process of its own that keeps state and misbehaves on request.

`python fake_github.py` prints its port. `POST /_control` replaces or adds state and faults, `GET /_control` returns everything.
A fault is {"method", "path" (a pattern), "status", "headers", "body", "times", "after"}: with "after" the request is carried
out first and the answer is lost, as a gateway does. "drop" closes the connection without an answer.
"""

from __future__ import annotations

import base64
import json
import re
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

LOCK = threading.Lock()
STATE = {
    "token": "t0ken",
    "login": "github-actions[bot]",
    "pulls": {},
    "comments": [],
    "statuses": [],
    "permissions": {},
    "dispatches": [],
    "runs": {},
    "jobs": {},
    "files": {},
    "store_saw": [],
    "app_tokens": [],
    "artifacts": {},
    "run_facts": {},
    "merge_bases": {},
    "runner_status": 201,
    "faults": [],
    "log": [],
    "delay_s": 0.0,
    "next": 1000,
}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        return

    def do_GET(self):
        self.serve("GET")

    def do_POST(self):
        self.serve("POST")

    def do_PATCH(self):
        self.serve("PATCH")

    def do_DELETE(self):
        self.serve("DELETE")

    def serve(self, method):
        length = int(self.headers.get("Content-Length") or 0)
        raw = self.rfile.read(length)
        body = json.loads(raw) if raw else None
        url = urlsplit(self.path)
        query = {key: values[0] for key, values in parse_qs(url.query).items()}
        if url.path == "/_control":
            return self.control(method, body)
        time.sleep(STATE["delay_s"])
        with LOCK:
            STATE["log"].append({"method": method, "path": url.path, "query": query, "body": body})
            fault = self.find_fault(method, url.path)
            if fault is None or fault.get("after"):
                status, answer, headers = self.answer(method, url.path, query, body)
            if fault is not None:
                status, answer, headers = fault.get("status", 502), fault.get("body", {}), fault.get("headers", {})
                answer = fault["raw"].encode() if "raw" in fault else answer
        if fault is not None and fault.get("drop"):
            self.close_connection = True
            return None
        return self.reply(status, answer, headers)

    def find_fault(self, method, path):
        for fault in STATE["faults"]:
            if fault.get("times", 1) > 0 and fault.get("method", method) == method and re.search(fault.get("path", ""), path):
                fault["times"] = fault.get("times", 1) - 1
                return fault
        return None

    def control(self, method, body):
        with LOCK:
            if method == "POST":
                STATE.update(body)
            self.reply(200, STATE, {})

    def reply(self, status, answer, headers):
        raw = answer if isinstance(answer, bytes) else b"" if status == 204 else json.dumps(answer).encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def answer(self, method, path, query, body):
        if path.startswith("/store/"):
            STATE["store_saw"].append(self.headers.get("Authorization"))
            found = STATE["files"].get(path)
            return (
                (404, {}, {})
                if found is None
                else (200, base64.b64decode(found[7:]) if found[:7] == "base64:" else found.encode(), {})
            )
        if path.startswith("/app/"):
            STATE["app_tokens"].append(self.headers.get("Authorization"))
        elif self.headers.get("Authorization") != f"Bearer {STATE['token']}":
            return 401, {"message": "Bad credentials"}, {}
        for verb, pattern, handler in ROUTES:
            if verb == method and (match := re.fullmatch(pattern, path)):
                return handler(self, match, query, body)
        return 404, {"message": "Not Found"}, {}

    def page(self, elements, path, query):
        size, number = int(query.get("per_page", 30)), int(query.get("page", 1))
        begin = (number - 1) * size
        headers = {}
        if begin + size < len(elements):
            host = self.headers["Host"]
            headers["Link"] = f'<http://{host}{path}?per_page={size}&page={number + 1}>; rel="next"'
        return 200, elements[begin : begin + size], headers

    def get_pull(self, match, _query, _body):
        pull = STATE["pulls"].get(match["number"])
        return (200, pull, {}) if pull else (404, {"message": "Not Found"}, {})

    def list_pulls(self, match, query, _body):
        owner, _, branch = query.get("head", ":").partition(":")
        found = [
            pull
            for pull in STATE["pulls"].values()
            if pull["head"]["ref"] == branch and pull["head"]["repo"]["full_name"].split("/")[0] == owner
        ]
        return self.page(found, match[0], query)

    def compare(self, match, _query, _body):
        """`merge_bases` maps base...head to a commit; GitHub answers 404 for unrelated histories too."""
        found = STATE["merge_bases"].get(unquote(match["pair"]))
        commits = {"commits": [], "status": "ahead"}
        return (200, {**commits, "merge_base_commit": {"sha": found}}, {}) if found else (404, {"message": "Not Found"}, {})

    def list_comments(self, match, query, _body):
        mine = [comment for comment in STATE["comments"] if comment["issue"] == match["number"]]
        return self.page(mine, match[0], query)

    def create_comment(self, match, _query, body):
        if len(body["body"]) > 65536:
            return 422, {"message": "Validation Failed", "errors": [{"message": "body is too long"}]}, {}
        STATE["next"] += 1
        number = STATE["next"]
        url = f"https://github.example/{number}"
        user = {"login": STATE["login"], "type": "Bot"}
        comment = {"id": number, "issue": match["number"], "body": body["body"], "user": user, "html_url": url}
        STATE["comments"].append(comment)
        return 201, comment, {}

    def find_comment(self, match):
        return next((comment for comment in STATE["comments"] if comment["id"] == int(match["id"])), None)

    def edit_comment(self, match, _query, body):
        comment = self.find_comment(match)
        if comment is None:
            return 404, {"message": "Not Found"}, {}
        if len(body["body"]) > 65536:
            return 422, {"message": "Validation Failed", "errors": [{"message": "body is too long"}]}, {}
        comment["body"] = body["body"]
        return 200, comment, {}

    def delete_comment(self, match, _query, _body):
        comment = self.find_comment(match)
        if comment is None:
            return 404, {"message": "Not Found"}, {}
        STATE["comments"].remove(comment)
        return 204, None, {}

    def set_status(self, match, _query, body):
        STATE["statuses"].append({"sha": match["sha"], **body})
        return 201, body, {}

    def list_statuses(self, match, query, _body):
        return self.page([found for found in reversed(STATE["statuses"]) if found["sha"] == match["sha"]], match[0], query)

    def get_permission(self, match, _query, _body):
        permission = STATE["permissions"].get(match["user"])
        return (200, {"permission": permission}, {}) if permission else (404, {"message": "Not a collaborator"}, {})

    def dispatch(self, match, _query, body):
        STATE["dispatches"].append({"workflow": match["file"], **body})
        return 204, None, {}

    def get_artifact(self, match, _query, _body):
        location = STATE["artifacts"].get(match["id"])
        return (
            (302, b"", {"Location": f"http://{self.headers['Host']}{location}"}) if location else (410, {"message": "Gone"}, {})
        )

    def get_run(self, match, _query, _body):
        found = STATE["run_facts"].get(match["run"])
        return (200, found, {}) if found else (404, {"message": "Not Found"}, {})

    def list_artifacts(self, match, query, _body):
        status, page, headers = self.page(STATE["runs"].get(match["run"], []), match[0], query)
        return status, {"total_count": len(page), "artifacts": page}, headers

    def list_jobs(self, match, query, _body):
        status, page, headers = self.page(STATE["jobs"].get(match["run"], []), match[0], query)
        return status, {"total_count": len(page), "jobs": page}, headers

    def create_runner(self, _match, _query, body):
        if "runner_group_id" not in body:
            return 422, {"message": 'Invalid request.\n\n"runner_group_id" wasn\'t supplied.'}, {}
        if STATE["runner_status"] != 201:
            return STATE["runner_status"], {"message": "Resource not accessible by integration"}, {}
        STATE["next"] += 1
        return 201, {"runner": {"id": STATE["next"], "name": body["name"]}, "encoded_jit_config": "and0LWNvbmZpZw=="}, {}

    def create_app_token(self, _match, _query, _body):
        return 201, {"token": STATE["token"]}, {}


REPO = r"/repos/[^/]+/[^/]+"
ROUTES = [
    ("GET", REPO + r"/pulls/(?P<number>\d+)", Handler.get_pull),
    ("GET", REPO + r"/pulls", Handler.list_pulls),
    ("GET", REPO + r"/compare/(?P<pair>[^/]+)", Handler.compare),
    ("GET", REPO + r"/issues/(?P<number>\d+)/comments", Handler.list_comments),
    ("POST", REPO + r"/issues/(?P<number>\d+)/comments", Handler.create_comment),
    ("PATCH", REPO + r"/issues/comments/(?P<id>\d+)", Handler.edit_comment),
    ("DELETE", REPO + r"/issues/comments/(?P<id>\d+)", Handler.delete_comment),
    ("POST", REPO + r"/statuses/(?P<sha>[0-9a-f]{40})", Handler.set_status),
    ("GET", REPO + r"/commits/(?P<sha>[0-9a-f]{40})/statuses", Handler.list_statuses),
    ("GET", REPO + r"/collaborators/(?P<user>[^/]+)/permission", Handler.get_permission),
    ("POST", REPO + r"/actions/workflows/(?P<file>[^/]+)/dispatches", Handler.dispatch),
    ("GET", REPO + r"/actions/artifacts/(?P<id>\d+)/zip", Handler.get_artifact),
    ("GET", REPO + r"/actions/runs/(?P<run>\d+)", Handler.get_run),
    ("GET", REPO + r"/actions/runs/(?P<run>\d+)/artifacts", Handler.list_artifacts),
    ("GET", REPO + r"/actions/runs/(?P<run>\d+)/attempts/\d+/jobs", Handler.list_jobs),
    ("POST", r"(/orgs/[^/]+|" + REPO + r")/actions/runners/generate-jitconfig", Handler.create_runner),
    ("POST", r"/app/installations/\d+/access_tokens", Handler.create_app_token),
]


def main():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    print(server.server_port, flush=True)
    threading.Thread(target=lambda: (sys.stdin.read(), server.shutdown()), daemon=True).start()
    server.serve_forever()


if __name__ == "__main__":
    main()

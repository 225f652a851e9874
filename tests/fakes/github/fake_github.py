"""GitHub's REST interface as far as perfgate uses it, as a process of its own that keeps state and misbehaves on request.

`python fake_github.py` prints its port. `POST /_control` replaces or adds state and faults, `GET /_control` returns everything.
It holds what GitHub does that a client must bear: a limit of requests an hour ("limit": {"remaining", "reset"}), rights of a
token ("rights": a mapping as `permissions:` has it), groups of concurrency ("workflows": by file the `run-name` and
`concurrency` that it has, which what is dispatched then keeps to), jobs of several attempts with their labels and runners,
several pull requests of one head, artifacts in whatever order they were given.
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

from concurrency import Group, fill

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
    "limit": None,
    "rights": None,
    "reactions": [],
    "reruns": [],
    "rerun_runs": [],
    "refs": {},
    "commits": {},
    "ahead_by": 3,
    "changed": [],
    "cancelled": [],
    "issues": [],
    "labels": [],
    "workflows": {},
    "variables": {},
}
GROUPS = {}
FREE = ("/app/", "/store/")
"""Paths that cost no request of the hour."""


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

    def do_PUT(self):
        self.serve("PUT")

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
                if "workflows" in body:
                    GROUPS.clear()
            self.reply(200, STATE, {})

    def reply(self, status, answer, headers):
        raw = answer if isinstance(answer, bytes) else b"" if status == 204 else json.dumps(answer).encode()
        self.send_response_only(status)
        for name, value in {"Date": self.date_time_string(), **headers}.items():
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
        if (refusal := self.find_limit(path)) is not None:
            return refusal
        for verb, pattern, handler, *right in ROUTES:
            if verb == method and (match := re.fullmatch(pattern, path)):
                return self.find_missing(*right) or handler(self, match, query, body)
        return 404, {"message": "Not Found"}, {}

    def find_limit(self, path):
        """The limit of an hour: a request that is one too many is not carried out, whatever it would do."""
        limit = STATE["limit"]
        if limit is None or path.startswith(FREE):
            return None
        if time.time() >= limit["reset"]:
            STATE["limit"] = None
            return None
        headers = {"X-RateLimit-Remaining": str(max(limit["remaining"] - 1, 0)), "X-RateLimit-Reset": str(int(limit["reset"]))}
        if limit["remaining"] > 0:
            limit["remaining"] -= 1
            return None
        return 403, {"message": "API rate limit exceeded for installation."}, headers

    def find_missing(self, right="", level="read"):
        """A token holds what its job's `permissions` name, and GitHub says which one a request would have taken."""
        if STATE["rights"] is None or not right:
            return None
        held = STATE["rights"].get(right)
        if held == "write" or (held == "read" and level == "read"):
            return None
        headers = {"X-Accepted-GitHub-Permissions": f"{right.replace('-', '_')}={level}"}
        return 403, {"message": "Resource not accessible by integration"}, headers

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
            if pull["head"]["ref"] == branch
            and pull["head"]["repo"]["full_name"].split("/")[0] == owner
            and query.get("state", "open") in {"all", pull.get("state", "open")}
        ]
        return self.page(found, match[0], query)

    def compare(self, match, _query, _body):
        """`merge_bases` maps base...head to a commit; GitHub answers 404 for unrelated histories too."""
        found = STATE["merge_bases"].get(unquote(match["pair"]))
        commits = {"commits": [], "status": "ahead"}
        ahead = STATE["ahead_by"]
        files = [path if isinstance(path, dict) else {"filename": path} for path in STATE["changed"]]
        answer = {**commits, "ahead_by": ahead, "merge_base_commit": {"sha": found}, "files": files}
        return (200, answer, {}) if found else (404, {"message": "Not Found"}, {})

    def get_commit(self, match, _query, _body):
        """By a commit, or by heads/NAME or tags/NAME; `refs` maps names, and a commit that no ref holds has to be in it too."""
        name = unquote(match["ref"])
        found = STATE["refs"].get(name)
        return (200, {"sha": found}, {}) if found else (404, {"message": f"No commit found for SHA: {name}"}, {})

    def list_pull_commits(self, match, query, _body):
        return self.page([{"sha": sha} for sha in STATE["commits"].get(match["number"], [])], match[0], query)

    def list_workflow_runs(self, match, query, _body):
        """Of one workflow file, the newest first."""
        mine = [run for run in STATE["run_facts"].values() if str(run.get("path", "")).endswith("/" + match["file"])]
        mine = [run for run in mine if query.get("event", run.get("event")) == run.get("event")]
        mine = [run for run in mine if query.get("head_sha", run.get("head_sha")) == run.get("head_sha")]
        status, page, headers = self.page(sorted(mine, key=lambda run: -run["id"]), match[0], query)
        return status, {"total_count": len(mine), "workflow_runs": page}, headers

    def rerun_failed(self, match, _query, _body):
        """A run that has not ended, or is older than a month, is refused."""
        if STATE["run_facts"].get(match["run"], {}).get("status", "completed") != "completed":
            return 403, {"message": "The workflow run cannot be rerun because it is already running"}, {}
        STATE["rerun_runs"].append(int(match["run"]))
        return 201, {}, {}

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
        coarse = {"maintain": "write", "triage": "read"}.get(permission, permission)
        return (
            (200, {"permission": coarse, "role_name": permission}, {})
            if permission
            else (404, {"message": "Not a collaborator"}, {})
        )

    def dispatch(self, match, _query, body):
        STATE["dispatches"].append({"workflow": match["file"], **body})
        if rules := STATE["workflows"].get(match["file"]):
            self.begin(match["file"], rules, body["inputs"])
        return 204, None, {}

    def begin(self, file, rules, inputs):
        """A run takes its place in its group, and may push another one out."""
        STATE["next"] += 1
        number, group = STATE["next"], fill(rules["concurrency"]["group"], inputs)
        facts = {"id": number, "event": "workflow_dispatch", "path": f".github/workflows/{file}", "group": group}
        STATE["run_facts"][str(number)] = {**facts, "display_title": fill(rules["run-name"], inputs)}
        queue = GROUPS.setdefault(group, Group(rules["concurrency"]))
        queue.enter(number)
        self.settle(queue)

    def settle(self, queue):
        for place, number in enumerate(queue.runs):
            STATE["run_facts"][str(number)]["status"] = "queued" if place else "in_progress"
        for number in queue.cancelled:
            STATE["run_facts"][str(number)] |= {"status": "completed", "conclusion": "cancelled"}

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
        """`filter=latest` lists the jobs of the last attempt alone, which need not be all; an attempt's own list neither."""
        jobs = [fill_job(job) for job in STATE["jobs"].get(match["run"], [])]
        last = max((job["run_attempt"] for job in jobs), default=1)
        wanted = int(match.groupdict().get("attempt") or 0) or (last if query.get("filter", "latest") == "latest" else 0)
        found = [job for job in jobs if wanted in (0, job["run_attempt"])]
        status, page, headers = self.page(found, match[0], query)
        return status, {"total_count": len(found), "jobs": page}, headers

    def react(self, match, _query, body):
        STATE["reactions"].append({"comment": int(match["id"]), **body})
        return 201, body, {}

    def rerun(self, match, _query, _body):
        STATE["reruns"].append(int(match["id"]))
        return 201, {}, {}

    def cancel(self, match, _query, _body):
        """A run that has ended is refused."""
        if STATE["run_facts"].get(match["run"], {}).get("status") == "completed":
            return 409, {"message": "Cannot cancel a workflow run that is completed."}, {}
        STATE["cancelled"].append(int(match["run"]))
        queue = GROUPS.get(STATE["run_facts"].get(match["run"], {}).get("group"))
        if queue is not None:
            queue.leave(int(match["run"]))
            queue.cancelled.append(int(match["run"]))
            self.settle(queue)
        return 202, {}, {}

    def list_runs(self, match, query, _body):
        found = [
            run for run in STATE["run_facts"].values() if query.get("head_sha", run.get("head_sha")) == run.get("head_sha")
        ]
        found = [run for run in found if query.get("status", run.get("status")) == run.get("status")]
        status, page, headers = self.page(found, match[0], query)
        return status, {"total_count": len(found), "workflow_runs": page}, headers

    def list_issues(self, match, query, _body):
        wanted = set(query.get("labels", "").split(",")) - {""}
        found = [
            issue
            for issue in STATE["issues"]
            if issue["state"] == query.get("state", "open")
            and wanted <= {label["name"] for label in issue["labels"]}
            and query.get("creator", issue["user"]["login"]) == issue["user"]["login"]
        ]
        return self.page(found, match[0], query)

    def create_issue(self, _match, _query, body):
        STATE["next"] += 1
        labels = [{"name": name} for name in body.get("labels", [])]
        user = {"login": STATE["login"], "type": "Bot"}
        issue = {"number": STATE["next"], "state": "open", "user": user, **body, "labels": labels}
        issue["html_url"] = f"https://github.example/issues/{issue['number']}"
        STATE["issues"].append(issue)
        return 201, issue, {}

    def edit_issue(self, match, _query, body):
        issue = next((issue for issue in STATE["issues"] if issue["number"] == int(match["number"])), None)
        if issue is None:
            return 404, {"message": "Not Found"}, {}
        issue.update(body)
        return 200, issue, {}

    def create_label(self, _match, _query, body):
        if any(label["name"].lower() == body["name"].lower() for label in STATE["labels"]):
            return 422, {"message": "Validation Failed", "errors": [{"code": "already_exists", "field": "name"}]}, {}
        STATE["labels"].append(body)
        return 201, body, {}

    def create_runner(self, _match, _query, body):
        if "runner_group_id" not in body:
            return 422, {"message": 'Invalid request.\n\n"runner_group_id" wasn\'t supplied.'}, {}
        if STATE["runner_status"] != 201:
            return STATE["runner_status"], {"message": "Resource not accessible by integration"}, {}
        STATE["next"] += 1
        return 201, {"runner": {"id": STATE["next"], "name": body["name"]}, "encoded_jit_config": "and0LWNvbmZpZw=="}, {}

    def create_app_token(self, _match, _query, _body):
        return 201, {"token": STATE["token"]}, {}


def fill_job(job):
    """What GitHub says of every job beside what a test says of this one."""
    name = job.get("name", "").rpartition(" / ")[2]
    words = name.split(" ")
    is_bench = words[0] in {"bench", "search"} and len(words) == 3
    labels = ["self-hosted", "linux", "perfgate", words[1]] if is_bench else ["ubuntu-24.04"]
    runner = "perfgate-host-0-0a1b2c3d" if is_bench else "GitHub Actions 17"
    return {"run_attempt": 1, "labels": labels, "runner_name": runner, "steps": [], **job}


REPO = r"/repos/[^/]+/[^/]+"
ROUTES = [
    ("GET", REPO + r"/pulls/(?P<number>\d+)", Handler.get_pull, "pull-requests"),
    ("GET", REPO + r"/pulls", Handler.list_pulls, "pull-requests"),
    ("GET", REPO + r"/compare/(?P<pair>[^/]+)", Handler.compare, "contents"),
    ("GET", REPO + r"/issues/(?P<number>\d+)/comments", Handler.list_comments, "pull-requests"),
    ("POST", REPO + r"/issues/(?P<number>\d+)/comments", Handler.create_comment, "pull-requests", "write"),
    ("POST", REPO + r"/issues/comments/(?P<id>\d+)/reactions", Handler.react, "pull-requests", "write"),
    ("PATCH", REPO + r"/issues/comments/(?P<id>\d+)", Handler.edit_comment, "pull-requests", "write"),
    ("DELETE", REPO + r"/issues/comments/(?P<id>\d+)", Handler.delete_comment, "pull-requests", "write"),
    ("GET", REPO + r"/issues", Handler.list_issues, "issues"),
    ("POST", REPO + r"/issues", Handler.create_issue, "issues", "write"),
    ("PATCH", REPO + r"/issues/(?P<number>\d+)", Handler.edit_issue, "issues", "write"),
    ("POST", REPO + r"/labels", Handler.create_label, "issues", "write"),
    ("POST", REPO + r"/statuses/(?P<sha>[0-9a-f]{40})", Handler.set_status, "statuses", "write"),
    ("GET", REPO + r"/commits/(?P<sha>[0-9a-f]{40})/statuses", Handler.list_statuses, "statuses"),
    ("GET", REPO + r"/collaborators/(?P<user>[^/]+)/permission", Handler.get_permission),
    ("POST", REPO + r"/actions/workflows/(?P<file>[^/]+)/dispatches", Handler.dispatch, "actions", "write"),
    ("GET", REPO + r"/actions/artifacts/(?P<id>\d+)/zip", Handler.get_artifact, "actions"),
    ("GET", REPO + r"/actions/runs", Handler.list_runs, "actions"),
    ("GET", REPO + r"/actions/runs/(?P<run>\d+)", Handler.get_run, "actions"),
    ("GET", REPO + r"/actions/runs/(?P<run>\d+)/artifacts", Handler.list_artifacts, "actions"),
    ("GET", REPO + r"/actions/runs/(?P<run>\d+)/jobs", Handler.list_jobs, "actions"),
    ("GET", REPO + r"/actions/runs/(?P<run>\d+)/attempts/(?P<attempt>\d+)/jobs", Handler.list_jobs, "actions"),
    ("POST", REPO + r"/actions/runs/(?P<run>\d+)/cancel", Handler.cancel, "actions", "write"),
    ("POST", REPO + r"/actions/jobs/(?P<id>\d+)/rerun", Handler.rerun, "actions", "write"),
    ("POST", REPO + r"/actions/runs/(?P<run>\d+)/rerun-failed-jobs", Handler.rerun_failed, "actions", "write"),
    ("GET", REPO + r"/actions/workflows/(?P<file>[^/]+)/runs", Handler.list_workflow_runs, "actions"),
    ("GET", REPO + r"/commits/(?P<ref>.+)", Handler.get_commit, "contents"),
    ("GET", REPO + r"/pulls/(?P<number>\d+)/commits", Handler.list_pull_commits, "pull-requests"),
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

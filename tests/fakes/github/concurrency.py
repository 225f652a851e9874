"""A group of concurrency as GitHub runs one, from the rules that a workflow's file gives."""

from __future__ import annotations

import re


class Group:
    """One run at work, and behind it one that waits, or with `queue: max` a hundred. Who is pushed out is cancelled."""

    def __init__(self, rules):
        self.most = 100 if rules.get("queue") == "max" else 1
        self.cancels = rules["cancel-in-progress"] is True
        self.runs = []
        self.cancelled = []

    def enter(self, run):
        at_work, waiting = self.runs[:1], self.runs[1:]
        if self.cancels:
            at_work, waiting, out = [run], [], at_work
        elif at_work:
            waiting = [*waiting, run]
            waiting, out = waiting[-self.most :], waiting[: -self.most]
        else:
            at_work, out = [run], []
        self.runs = [*at_work, *waiting]
        self.cancelled += out

    def leave(self, run):
        self.runs = [one for one in self.runs if one != run]


def fill(template, inputs):
    """The text of a group or a title, whose only expressions are inputs."""
    return re.sub(r"\$\{\{ *(?:github\.event\.)?inputs\.(\w+) *\}\}", lambda match: inputs.get(match[1], ""), template)

"""`perfgate github`: what the workflows run, one command a step."""

from __future__ import annotations

import click

from perfgate.cli.lazy_group import LazyGroup

PARTS = {
    "admit": "ci.speaking:admit",
    "answer": "ci.speaking:answer",
    "command": "ci.speaking:handle_comment",
    "init": "ci.planning:init",
    "jobs": "ci.planning:jobs",
    "learn": "ci.deciding:learn",
    "plan": "ci.planning:plan",
    "publish": "ci.speaking:publish",
    "report": "ci.speaking:report",
    "umbrella": "ci.speaking:umbrella",
    "verdict": "ci.deciding:verdict",
}
"""Where each sub-command lies: a step loads what it needs, for a plan is made of every event."""


@click.group(name="github", cls=LazyGroup, places=PARTS, above="github")
def command() -> None:
    """Plan, admit, judge and publish measurements of pull requests. The token comes from GITHUB_TOKEN."""

"""Which releases the package registry has, as pip sees it."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence

from perfgate.engines.insides import order_version
from perfgate.errors import EngineError, InputError
from perfgate.machine.tools import Tool

_PIP = Tool(timeout_s=120.0, missing=EngineError, failed=EngineError, hint="install pip in the Python that runs perfgate")
_VERSIONS = re.compile(r"^Available versions: (.+)$", re.MULTILINE)
_REQUIREMENT = re.compile(r"^([\w-]+)==([\w.]+)$")


def list_versions(package: str) -> list[str]:
    """The releases that this Python could install, the oldest first. Raise EngineError where pip finds none."""
    done = _PIP.call([sys.executable, "-m", "pip", "index", "versions", package], name=f"pip index versions {package}")
    found = _VERSIONS.search(done.text)
    if found is None:
        raise EngineError(f"pip index versions {package}: told no versions; look at the package index that pip is set to")
    return sorted(found[1].split(", "), key=order_version)


def find_next(versions: Sequence[str], known: str) -> str | None:
    """The release that came after `known`; None where there is none yet."""
    return next((version for version in versions if order_version(version) > order_version(known)), None)


def require_release(versions: Sequence[str], version: str) -> None:
    """Raise InputError for a release that is not there."""
    if version not in versions:
        raise InputError(f"{version}: no such release; the newest is {versions[-1]}")


def find_previous(versions: Sequence[str], version: str) -> str:
    """The release before `version`. Raise InputError for one that is not there, or the first."""
    require_release(versions, version)
    place = versions.index(version)
    if place == 0:
        raise InputError(f"{version}: is the first release, so there is none to compare it with")
    return versions[place - 1]


def parse_requirement(text: str, package: str) -> str:
    """The version of `PACKAGE==VERSION`. Raise InputError for anything else."""
    match = _REQUIREMENT.match(text)
    if match is None or match[1] != package:
        raise InputError(f"{text}: give a release as {package}==VERSION, for example {package}==0.5.23")
    return match[2]

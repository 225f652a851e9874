"""Hand-offs as result folders of this side: its scenarios, its names, the other side's numbers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from perfgate.errors import HandoffError
from perfgate.github.handoff.handoff import Handoff
from perfgate.github.handoff.packing import unpack_folder
from perfgate.scenario.catalog import list_scenarios, read_scenario_text
from perfgate.scenario.schema import parse_scenario


def unpack_handoffs(
    handoffs: Sequence[Handoff],
    scenarios: tuple[str, ...],
    out: Path,
    *,
    scenarios_in_pr: int = 1,
    has_base: bool = True,
) -> list[Path]:
    """Write each hand-off as a result folder named after its scenario, and return the folders.

    `scenarios` are names or files of this side; without any, those that ship with perfgate. `scenarios_in_pr` of them share one
    error budget, and `has_base` says whether a base can be built here. Raise HandoffError for a scenario that is none of them.
    """
    texts = read_scenarios(scenarios)
    folders = []
    for handoff in handoffs:
        if handoff.scenario not in texts:
            known = ", ".join(sorted(texts))
            raise HandoffError(f"scenario {handoff.scenario} is not one of this side's ({known}); nothing else is judged")
        folders.append(out / handoff.scenario)
        unpack_folder(handoff, texts[handoff.scenario], folders[-1], scenarios_in_pr=scenarios_in_pr, has_base=has_base)
    return folders


def read_scenarios(given: tuple[str, ...]) -> dict[str, str]:
    """Read the texts of the scenarios that may be judged here, by name: those given, else those that ship with perfgate."""
    read = [read_scenario_text(name) for name in given or list_scenarios()]
    return {parse_scenario(text, source).name: text for text, source in read}


def find_scenario(given: Sequence[str], name: str) -> str:
    """What a command of this side calls a scenario: the file that was given for it, or the name under which it ships."""
    return next((word for word in given if name in read_scenarios((word,))), name)

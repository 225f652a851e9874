"""The pages that a comment's link leads to: one a scenario, beside the result folder that it was made of."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from perfgate.errors import InputError
from perfgate.gate.case import keep_noise, load_case
from perfgate.gate.pages import write_page
from perfgate.github.handoff.packing import unpack_handoffs
from perfgate.github.runs.collecting import MachineResult
from perfgate.github.settings import JudgingOptions

WORST_PAGE = "perfgate-page.html"
"""The page of the worst session, in the folder of all; the workflows upload it unpacked, so that a browser opens it."""


def write_pages(results: Iterable[MachineResult], options: JudgingOptions, out: Path) -> Iterator[str]:
    """Open what each machine handed over and write its pages; yield a line for each, as it was written.

    Each folder keeps the stored noise that it was judged by: whoever downloads it has the verdict of the comment.
    What cannot be shown is left out, with a line that says why; the comment says it too. WORST_PAGE comes last.
    """
    ranks: dict[Path, int] = {}
    for result in results:
        place = out / result.hardware
        for handoff in result.handoffs:
            try:
                (folder,) = unpack_handoffs((handoff,), options.scenarios, place, scenarios_in_pr=options.scenarios_in_pr)
                case = load_case(folder, options.baselines)
                keep_noise(folder, case)
                write_page(folder, place / f"{handoff.scenario}.html", options.baselines)
                ranks[folder] = case.verdict.outcome.order
            except InputError as error:
                yield f"{result.hardware}: no page: {error}"
                continue
            yield f"{folder}.html"
    if ranks:
        write_page(min(ranks, key=ranks.__getitem__), out / WORST_PAGE, options.baselines)
        yield str(out / WORST_PAGE)

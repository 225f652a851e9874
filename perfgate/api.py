"""Results in Python: load a folder, read the verdict, take the windows as a frame.

>>> import perfgate
>>> result = perfgate.load("perfgate-demo/regression")
>>> result.verdict.outcome
<Outcome.REGRESSION: 'REGRESSION'>
>>> windows = result.windows.query("metric == 'median_itl_ms' and role == 'measured'")
>>> {str(arm): round(float(value), 2) for arm, value in windows.groupby("arm")["value"].median().items()}
{'base': 7.23, 'candidate': 7.66}
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from pandas import DataFrame

from perfgate.check import Case
from perfgate.core import Judgement, Verdict
from perfgate.gate.case import load_case
from perfgate.gate.reports import build_report
from perfgate.report.render import render_text
from perfgate.results.frame import build_frame
from perfgate.results.rows import rows_of_sessions


@dataclass(frozen=True, kw_only=True)
class Result:
    """A result folder that was judged. `case` holds session, scenario, stored noise and verdict."""

    folder: Path
    case: Case

    @property
    def verdict(self) -> Verdict:
        """The verdict, computed from the raw windows when the folder was loaded; `verdict.json` is not asked."""
        return self.case.verdict

    def __getitem__(self, metric: str) -> Judgement:
        """What was judged of a metric, such as "p99_itl_ms". KeyError for one that the scenario does not judge."""
        return {judgement.metric: judgement for judgement in self.verdict.judgements}[metric]

    @cached_property
    def windows(self) -> DataFrame:
        """One row for each window and number, with its arm, block, start, role, metric, unit and value."""
        return build_frame(rows_of_sessions([self.case.session]))

    def __str__(self) -> str:
        """The verdict as `perfgate check` prints it."""
        return render_text(build_report(self.folder, self.case))


def load(folder: Path | str, baselines: tuple[Path | str, ...] = ()) -> Result:
    """Load a result folder and judge it, as `perfgate check` does.

    `baselines` are folders of stored noise, as for `--baselines`. Raise EvidenceError for a folder that is broken, InputError
    where no given folder has a baseline, BaselineError where one cannot be this session's.
    """
    path = Path(folder)
    return Result(folder=path, case=load_case(path, tuple(map(Path, baselines))))

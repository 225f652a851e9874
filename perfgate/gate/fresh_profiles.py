"""Profile both arms after the verdict, in servers of their own: those that were measured are gone by then.

Costs one more start of each arm, and only where a regression asks for it.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from pathlib import Path

from perfgate.core import Arm, Outcome
from perfgate.engines.table import ENGINES
from perfgate.errors import RunnerError, ServerError
from perfgate.machine.folder_lock import lock_folder
from perfgate.machine.lock import find_lock_folder, hold_machine
from perfgate.results.folders import read_progressed
from perfgate.results.profiling.profiles import FRESH, PROFILE_DIR, Profile, load_profiles, read_attribution
from perfgate.results.records import read_record
from perfgate.results.writer import ResultWriter
from perfgate.serving.engine.reaper import Reaper
from perfgate.serving.engine.server import Server
from perfgate.serving.measure import Request, raise_on_signals
from perfgate.serving.profiling import profile_server
from perfgate.serving.progress import Progress
from perfgate.serving.watch.telemetry import find_measured


def profile_arms(request: Request, progress: Progress) -> bool:
    """Profile a fresh server of each arm into the session's folder and say whether both gave their traces.

    An arm that was profiled so before the gate was cut off is not profiled again. A server that fails costs the profile, not
    the verdict: what happened is an event of the folder.
    """
    model = Path(read_record(request.folder).model["path"])
    with ExitStack() as stack:
        lock = stack.enter_context(lock_folder(request.folder))
        writer = ResultWriter(request.folder)
        found = read_progressed(request.folder)
        stack.enter_context(raise_on_signals())
        launches = {arm: spec.build_launch(request.scenario, model) for arm, spec in request.arms.items()}
        try:
            machine = stack.enter_context(hold_machine(find_measured(launches.values()), find_lock_folder()))
        except RunnerError as error:
            progress.step(f"no profile: {error}")
            return False
        reaper = stack.enter_context(Reaper(lock, *machine))
        names = (path.name.removeprefix("start-") for path in (request.folder / PROFILE_DIR).glob("start-*"))
        used = (int(name) for name in names if name.isdecimal())
        for number, arm in enumerate(list_missing(request.folder), start=max(found.starts, *used, 0) + 1):
            log = writer.logs / f"server-{number:02d}-{arm.value}.log"
            try:
                with Server(launches[arm], log, reaper) as server:
                    server.wait_ready(partial(_tell, progress, arm))
                    progress.wait(f"{arm.value} server: one profiled batch")
                    place = Profile(arm=arm, block=FRESH, start=number)
                    profile_server(server, request.scenario.load, request.folder, place)
            except ServerError as error:
                writer.add_event("profile_failed", found.elapsed_s, arm=arm.value, start=number, message=str(error))
                progress.step(f"no profile of the {arm.value}: {error}")
                return False
            progress.step(f"{arm.value} profiled")
    return True


def is_profile_due(folder: Path, engine: str, outcome: Outcome) -> bool:
    """Whether a verdict asks for profiles of both arms that the folder does not hold, and the engine can give."""
    return ENGINES[engine].is_profiled and outcome is Outcome.REGRESSION and read_attribution(folder) is None


def list_missing(folder: Path) -> list[Arm]:
    """The arms of which no fresh server was profiled yet."""
    done = {profile.arm for profile in load_profiles(folder) if profile.block == FRESH}
    return [arm for arm in Arm if arm not in done]


def _tell(progress: Progress, arm: Arm, waited_s: float) -> None:
    progress.wait(f"{arm.value} server loading for its profile, {waited_s:.0f} s")

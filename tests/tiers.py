"""Which tests `make test` runs, and what the others need: read from the folder, the file and the name of a test.

The quick tier needs neither the engine nor a browser nor a quiet machine, and takes five minutes on two cores at most. The rest
is what `make test-all` adds to it.
"""

from __future__ import annotations

from pathlib import Path

QUICK, REST, ALL = "quick", "rest", "all"

FOLDERS = {"e2e": "engine", "kernels": "kernels"}
"""The mark of each folder whose tests all need the same. The quick tier does not import them: torch alone takes seconds."""

FILES = {
    "test_adopting_walk.py": "act",
    "test_html_browser.py": "browser",
    "test_error_rates.py": "evidence",
    "test_idle_share.py": "evidence",
    "test_recorded_calibration.py": "evidence",
    "test_recorded_outcomes.py": "evidence",
    "test_routed_sessions.py": "evidence",
    "test_runner_cleaning.py": "machine",
    "test_runner_harvest.py": "machine",
    "test_runner_slot.py": "machine",
    "test_runner_trees.py": "machine",
    "test_workflow_callers.py": "act",
    "test_workflow_comments.py": "act",
    "test_workflow_runs.py": "act",
    "test_docs.py": "docs",
    "test_docs_history.py": "docs",
    "test_docs_pictures.py": "docs",
    "test_printed_commands.py": "docs",
    "test_recipes.py": "docs",
}
"""The mark of each file whose tests all need the same."""

SESSION_FILES = frozenset(
    f"test_{name}.py"
    for name in (
        *("cli_ab", "cli_bisect", "cli_matrix", "engines", "footprint", "gsm8k", "session", "session_chaos"),
        *("session_equivalence", "session_other_work", "session_proof", "session_rerun", "session_resume", "session_routing"),
        *("startup", "tuned_choices"),
    )
)
MEASURING = ("ab", "bisect", "calibrate", "gate", "load_matrix", "matrix", "measure", "profile", "run", "run_gate")
"""In these files, a test of one of these functions runs a session: servers, a load generator and what watches over them."""

NOT_QUICK = frozenset({"act", "browser", "docs", "engine", "evidence", "kernels", "machine", "session"})

QUICK_SESSIONS = frozenset(
    {
        "test_ab__a_slower_candidate_is_a_regression",
        "test_matrix__one_table_from_one_start_a_server_and_round",
        "test_measure__a_stalled_window_is_measured_once_more",
        "test_measure__alternates_arms_over_fresh_starts",
        "test_measure__failing_load_generator_voids_the_session_and_keeps_its_windows",
        "test_measure__goes_on_after_a_cut",
        "test_measure__keeps_what_each_start_took_and_resolved_to",
        "test_measure__never_steady_voids_the_session",
        "test_measure__one_server_at_a_time",
        "test_measure__session_of_vllm",
        "test_measure__stops_at_the_look_that_decides",
        "test_measure__wrong_kernels_cost_no_machine_time",
        "test_measure__wrong_model_starts_nothing",
        "test_run__two_at_once_in_one_folder",
        "test_run_gate__calibrates_measures_judges_and_reports",
    }
)
"""Sessions that the quick tier runs all the same: one for each kind, and for each way in which one ends."""


def find_marks(folders: tuple[str, ...], file: str, function: str) -> set[str]:
    """The marks of a test: `folders` it lies in, its file, and its name without parameters."""
    marks = {mark for folder, mark in FOLDERS.items() if folder in folders}
    if file in FILES:
        marks.add(FILES[file])
    tested = function.removeprefix("test_").partition("__")[0]
    if file in SESSION_FILES and tested in MEASURING:
        marks.add("session")
    return marks


def has_rest(path: Path) -> bool:
    """Whether a file may hold a test that is not quick: by its folder and name, or by a mark that its text sets."""
    if not FOLDERS.keys().isdisjoint(path.parts) or path.name in FILES or path.name in SESSION_FILES:
        return True
    text = path.read_text(encoding="utf-8")
    return any(f"pytest.mark.{mark}" in text for mark in NOT_QUICK)


def is_quick(marks: set[str], function: str) -> bool:
    """Whether the quick tier runs a test with these marks."""
    return not marks & NOT_QUICK or (function in QUICK_SESSIONS and marks & NOT_QUICK == {"session"})

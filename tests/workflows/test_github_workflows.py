"""The workflow files: what may hold a right, what may run foreign code, and that the two never meet."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path

import click
import pytest
import yaml

from perfgate.cli import program
from perfgate.github.adoption import write_workflows
from perfgate.github.asked.commands import CHECK
from perfgate.github.events import LABEL
from perfgate.github.runs.collecting import name_artifact
from perfgate.github.runs.control import DISPATCH, DispatchedRun, Task, read_run
from perfgate.github.runs.jobs import HEALTH_STEP, JOB, MEASURE_STEP
from perfgate.github.settings import MatrixJob, load_settings
from perfgate.resolution.table import LAST
from perfgate.scenario.catalog import list_scenarios
from tests.fakes.github.concurrency import Group

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".github" / "workflows"
FILES = sorted(FOLDER.glob("*.yml"))
TRUSTED_REFS = {
    "${{ job.workflow_sha }}",
    "${{ github.event.repository.default_branch }}",
    "${{ github.sha }}",
}
# Events whose github.sha is a commit of the main branch.
MAIN_EVENTS = {"schedule", "workflow_dispatch"}


def load(path):
    text = path.read_text()
    data = yaml.safe_load(text)
    # YAML 1.1 reads the key `on` as true.
    return text, {**data, "on": data[True]}


WORKFLOWS = {path.name: load(path) for path in FILES}
JOBS = [(name, key, job) for name, (_, data) in WORKFLOWS.items() for key, job in data["jobs"].items()]
STEPS = [(name, key, step) for name, key, job in JOBS for step in job.get("steps", [])]


def by_job(jobs):
    return {"argvalues": jobs, "ids": [f"{name}:{key}" for name, key, _ in jobs]}


def is_self_hosted(job):
    return "ubuntu" not in str(job.get("runs-on", "ubuntu"))


def writes(job):
    return [name for name, level in job.get("permissions", {}).items() if level == "write"]


def test_workflows__are_all_here():
    assert [path.stem for path in FILES] == [
        "ci",
        *(
            f"perfgate-{name}"
            for name in ("baseline", "bisect", "command", "dispatch", "engines", "gpu", "pr", "report", "resolve", "runners")
        ),
    ]


@pytest.mark.parametrize("name", WORKFLOWS)
def test_workflow__has_no_rights_but_those_of_its_jobs(name):
    assert WORKFLOWS[name][1]["permissions"] == {}


@pytest.mark.parametrize("name", WORKFLOWS)
def test_workflow__never_runs_foreign_code_with_rights(name):
    assert "pull_request_target" not in WORKFLOWS[name][0]


@pytest.mark.parametrize("name", WORKFLOWS)
def test_workflow__passes_no_secrets_on(name):
    text = WORKFLOWS[name][0]

    assert "secrets: inherit" not in text
    assert not re.search(r"\$\{\{[^}]*\bsecrets\b", text)


@pytest.mark.parametrize(("name", "key", "job"), **by_job(JOBS))
def test_job__says_its_rights_and_its_time(name, key, job):
    assert "permissions" in job, f"{name}: {key}"
    assert "uses" in job or 0 < job["timeout-minutes"] <= 90


@pytest.mark.parametrize(("name", "key", "job"), **by_job([entry for entry in JOBS if "uses" in entry[2]]))
def test_job__calls_only_a_measuring_workflow_of_its_own_commit(name, key, job):
    file = {"search": "bisect", "resolve": "resolve"}.get(key, "gpu")
    assert job["uses"] == f"./.github/workflows/perfgate-{file}.yml", f"{name}: {key}"
    assert job["permissions"] == {"contents": "read"}
    assert "secrets" not in job


def runs_foreign_code(job):
    """A measuring job does, on a machine of ours, and so does the one that asks both arms what they choose."""
    return is_self_hosted(job) or any("perfgate resolve " in str(step.get("run")) for step in job.get("steps", ()))


@pytest.mark.parametrize(("name", "key", "job"), **by_job([entry for entry in JOBS if runs_foreign_code(entry[2])]))
def test_job__that_runs_a_changes_code_holds_nothing(name, key, job):
    text = yaml.safe_dump(job)

    assert set(job["permissions"].items()) <= {("contents", "read")}, f"{name}: {key}"
    for word in ("github.token", "GITHUB_TOKEN", "GH_TOKEN", "secrets"):
        assert word not in text
    if is_self_hosted(job):
        assert job["runs-on"] in {"${{ fromJSON(inputs.runs_on) }}", "${{ matrix.runs_on }}"}


def test_resolve__asks_by_the_last_release_that_is_known():
    (job,) = WORKFLOWS["perfgate-resolve.yml"][1]["jobs"].values()
    (release,) = (step["env"]["RELEASE"] for step in job["steps"] if "RELEASE" in step.get("env", {}))

    assert release == LAST
    assert runs_foreign_code(job)
    for caller in ("perfgate-pr.yml", DISPATCH):
        gpu = WORKFLOWS[caller][1]["jobs"]["gpu"]
        assert "resolve" in gpu["needs"]
        # A job that failed must keep nothing from being measured.
        assert gpu["if"].startswith("${{ !cancelled() && ")
        assert gpu["with"]["choices"] == "${{ needs.resolve.outputs.choices }}"


@pytest.mark.parametrize(("name", "key", "job"), **by_job([entry for entry in JOBS if runs_foreign_code(entry[2])]))
def test_attack__a_measured_job_fills_the_main_branch_s_caches(name, key, job):
    """A dispatched run goes under the main branch's name, and so would what it puts into GitHub's cache."""
    assert job["cache-mode"] == "none", f"{name}: {key}"


def list_concurrency():
    for name, (_, data) in WORKFLOWS.items():
        for key, part in (("workflow", data), *data["jobs"].items()):
            if "concurrency" in part:
                yield pytest.param(part["concurrency"], id=f"{name}:{key}")


@pytest.mark.parametrize("rules", list(list_concurrency()))
def test_concurrency__what_waits_is_not_pushed_out(rules):
    """By default one may wait and the next pushes it out: a verdict would be lost to an announcement."""
    group = Group(rules)
    for number in range(4):
        group.enter(number)

    assert group.runs == ([3] if rules["cancel-in-progress"] is True else [0, 1, 2, 3] if "queue" in rules else [0, 3])
    assert sorted([*group.runs, *group.cancelled]) == [0, 1, 2, 3]
    assert "queue" in rules or rules["cancel-in-progress"] is True or "-say-" not in rules["group"]


def test_concurrency__all_writers_of_a_comment_share_a_group():
    report = WORKFLOWS["perfgate-report.yml"][1]["concurrency"]
    publish = WORKFLOWS["perfgate-dispatch.yml"][1]["jobs"]["report"]["concurrency"]

    assert report["group"].partition("${{")[0] == publish["group"].partition("${{")[0] == "perfgate-say-"
    assert report["queue"] == publish["queue"] == "max"


def test_concurrency__a_comment_that_is_no_command_takes_no_place():
    command = WORKFLOWS["perfgate-command.yml"][1]

    assert "concurrency" not in command
    assert command["jobs"]["command"]["concurrency"]["queue"] == "max"


@pytest.mark.parametrize("name", [name for name, (_, data) in WORKFLOWS.items() if "pull_request" in data["on"]])
def test_workflow__of_a_pull_request_holds_no_right_to_write(name):
    for job in WORKFLOWS[name][1]["jobs"].values():
        assert writes(job) == []


@pytest.mark.parametrize("name", [f"perfgate-{name}.yml" for name in ("report", "command", "dispatch", "baseline", "engines")])
def test_workflow__with_rights_checks_out_only_what_was_reviewed(name):
    # A called workflow sees its caller's commit, so it must ask for the branch itself.
    events = set(WORKFLOWS[name][1]["on"]) - {"workflow_call"}
    asks = WORKFLOWS[name][1]["jobs"].get("plan", {}).get("if") == "${{ github.ref == 'refs/heads/main' }}"
    for _, key, step in (entry for entry in STEPS if entry[0] == name and "checkout" in str(entry[2].get("uses"))):
        ref = step["with"]["ref"]
        assert ref in TRUSTED_REFS, f"{key}: {ref}"
        assert ref != "${{ github.sha }}" or (events <= MAIN_EVENTS and asks)


@pytest.mark.parametrize(("name", "key", "job"), **by_job([entry for entry in JOBS if writes(entry[2])]))
def test_job__with_rights_runs_only_reviewed_code(name, key, job):
    """Python without its current folder, the harness by path, dependencies by hash."""
    assert "pull_request" not in WORKFLOWS[name][1]["on"]
    for step in job["steps"]:
        run = step.get("run", "")
        allowed = (
            "python -P -m perfgate github ",
            "python -m pip install --quiet --require-hashes ",
            "bash ../harness/.github/",
        )
        assert not run or run.startswith(allowed), f"{name}: {key}: {run}"
        assert "perfgate" not in run or "harness" in run or step["env"]["PYTHONPATH"] == "harness"


@pytest.mark.parametrize(
    ("name", "key", "step"), **by_job([entry for entry in STEPS if "checkout@" in str(entry[2].get("uses"))])
)
def test_step__a_checkout_leaves_no_token_behind(name, key, step):
    assert step["with"]["persist-credentials"] is False, f"{name}: {key}"


@pytest.mark.parametrize(("name", "key", "step"), **by_job([entry for entry in STEPS if "uses" in entry[2]]))
def test_step__uses_github_s_own_actions_at_a_commit(name, key, step):
    line = next(line for line in WORKFLOWS[name][0].splitlines() if step["uses"] in line)

    assert re.fullmatch(r"actions/[a-z-]+@[0-9a-f]{40}", step["uses"]), f"{name}: {key}: {step['uses']}"
    assert re.search(r" # v\d+\.\d+\.\d+$", line)


def test_step__one_commit_an_action():
    used = {step["uses"] for _, _, step in STEPS if "uses" in step}

    assert len({action.partition("@")[0] for action in used}) == len(used)


@pytest.mark.parametrize(("name", "key", "step"), **by_job([entry for entry in STEPS if "run" in entry[2]]))
def test_step__no_expression_stands_in_a_script(name, key, step):
    """A value from outside reaches a script through the environment, where it is data."""
    assert "${{" not in step["run"], f"{name}: {key}"
    assert "eval" not in step["run"]


@pytest.mark.parametrize(("name", "key", "step"), **by_job([entry for entry in STEPS if "run" in entry[2]]))
def test_step__quotes_every_variable(name, key, step):
    for found in re.finditer(r"\$\{?[A-Z_]+\}?", step["run"]):
        before, after = step["run"][: found.start()], step["run"][found.end() :]
        assert before.count('"') % 2 == 1, f"{name}: {key}: {found[0]} stands outside quotes"
        assert '"' in after


def list_commands():
    for name, key, step in STEPS:
        for line in step.get("run", "").replace("\\\n", " ").splitlines():
            for part in re.split(r" -- (?=perfgate)", line):
                words = shlex.split(re.split(r" >>? | \|\| ", part)[0])
                words += ["--", "true"] if words[1:3] == ["runner", "lock"] else []
                if words[:4] == ["python", "-P", "-m", "perfgate"]:
                    yield pytest.param(words[4:], id=f"{name}:{key}:{words[4]} {words[5]}")
                elif words[:1] == ["perfgate"]:
                    yield pytest.param(words[1:], id=f"{name}:{key}:{words[1]} {words[2]}")


def test_step__locks_all_gpus_of_its_slot():
    """A slot of several has one job, whose server needs them all; the label says how many."""
    locks = re.findall(r"perfgate runner lock .*?-- ", "\n".join(step.get("run", "") for _, _, step in STEPS))

    assert set(locks) == {'perfgate runner lock --hardware "$HARDWARE" -- '}


VALUES = {
    "$HARDWARE": "h20",
    "$PULL_REQUEST": "7",
    "$HEAD_SHA": "a" * 40,
    "$BASE_SHA": "b" * 40,
    "$GITHUB_SHA": "a" * 40,
    "$ACTION": "run",
    "$RESULT": "success",
    "$MATRIX": "[]",
    "$NUMBER": "7",
    "$TASK": "compare",
    "$RELEASE": "0.5.23",
    "$GPUS": "h20,h200",
}
ENVIRONMENT = {"GITHUB_REPOSITORY": "o/r", "GITHUB_RUN_ID": "1", "GITHUB_RUN_ATTEMPT": "1", "GITHUB_REF": "refs/heads/main"}


@pytest.mark.parametrize("words", list(list_commands()))
def test_step__its_command_and_options_exist(words, monkeypatch):
    for variable, value in {**ENVIRONMENT, "GITHUB_EVENT_PATH": "event.json", "GITHUB_EVENT_NAME": "pull_request"}.items():
        monkeypatch.setenv(variable, value)
    name, *arguments = [VALUES.get(word, word) for word in words]
    command = program.get_command(click.Context(program), name)
    while isinstance(command, click.Group):
        name, *arguments = arguments
        command = command.get_command(click.Context(command), name)
        assert command is not None, name

    command.make_context(name, arguments)


def test_names__that_code_and_workflows_share():
    gpu = WORKFLOWS["perfgate-gpu.yml"][1]["jobs"]["bench"]
    expanded = gpu["name"].replace("${{ inputs.hardware }}", "h20").replace("${{ inputs.scenario }}", "closed")

    assert JOB.fullmatch(f"gpu / {expanded}").groupdict() == {"hardware": "h20", "scenario": "closed"}
    assert gpu["steps"][0]["name"] == HEALTH_STEP
    (upload,) = (step for step in gpu["steps"] if "upload-artifact" in str(step.get("uses")))
    artifact = upload["with"]["name"].replace("${{ inputs.hardware }}", "h20").replace("${{ inputs.scenario }}", "closed")
    assert artifact.replace("${{ github.run_attempt }}", "2") == name_artifact(MatrixJob(hardware="h20", scenario="closed"), 2)
    assert WORKFLOWS["perfgate-report.yml"][1]["on"]["workflow_run"]["workflows"][0] == WORKFLOWS["perfgate-pr.yml"][1]["name"]
    assert f"github.event.label.name == '{LABEL}'" in WORKFLOWS["perfgate-pr.yml"][0]
    assert MEASURE_STEP in [step.get("name") for step in gpu["steps"]]
    search = WORKFLOWS["perfgate-bisect.yml"][1]["jobs"]["search"]
    assert search["name"].startswith("search ${{ inputs.hardware }} ")
    assert WORKFLOWS["perfgate-report.yml"][1]["on"]["workflow_run"]["workflows"][1] == WORKFLOWS[DISPATCH][1]["name"]
    assert f"'{CHECK}' }}}}" in WORKFLOWS["perfgate-pr.yml"][1]["jobs"]["verdict"]["name"]


@pytest.mark.parametrize("text", [WORKFLOWS[DISPATCH][0], write_workflows("c" * 40)[DISPATCH]], ids=["ours", "a caller's"])
@pytest.mark.parametrize("task", Task)
def test_dispatch__its_title_says_what_it_measures(text, task):
    """GitHub tells no inputs of a run, so what may be cancelled is read from its title."""
    data = yaml.safe_load(text)
    inputs = {"task": task.value, "pr": "7", "head_sha": "a" * 40}
    title = re.sub(r"\$\{\{ inputs\.(\w+) \}\}", lambda match: inputs[match[1]], data["run-name"])
    run = {"id": 5, "event": "workflow_dispatch", "status": "queued", "display_title": title}

    assert read_run(run) == DispatchedRun(run_id=5, task=task, pull_request=7, head_sha="a" * 40)
    assert data[True]["workflow_dispatch"]["inputs"].keys() == {*inputs, "hardware", "scenario", "base_sha", "asked_by"}
    assert data[True]["workflow_dispatch"]["inputs"]["task"]["options"] == [*Task]


def test_dispatch__only_a_measurement_of_the_pull_request_sets_a_status():
    """A comparison with an easier base, or a search, must not pass its check."""
    jobs = WORKFLOWS[DISPATCH][1]["jobs"]
    steps = {step["run"].split()[5]: step["if"] for step in jobs["report"]["steps"] if "-m perfgate" in step.get("run", "")}

    assert steps["publish"] == "${{ needs.admit.outputs.task == 'measure' }}"
    assert steps["answer"] == "${{ needs.admit.outputs.task != 'measure' }}"
    assert (jobs["gpu"]["if"], jobs["search"]["if"]) == (
        "${{ !cancelled() && needs.admit.result == 'success' && needs.admit.outputs.task != 'bisect' }}",
        "${{ needs.admit.outputs.task == 'bisect' }}",
    )


def test_verdict__is_never_skipped_and_never_answers_for_another_label():
    """A job that is skipped counts as passed, and a later check of the same name replaces an earlier one."""
    job = WORKFLOWS["perfgate-pr.yml"][1]["jobs"]["verdict"]

    assert "always()" in job["if"]
    assert job["needs"] == ["plan", "gpu"]
    assert job["name"].endswith("&& 'perfgate (nothing to measure)' || 'perfgate verdict' }}")
    assert "github.event.pull_request.draft" in job["name"]


def test_pull_request__another_base_branch_is_another_measurement():
    """`edited` says that the title changed, or the branch that it goes into; GitHub itself moves stacked pull requests."""
    data = WORKFLOWS["perfgate-pr.yml"][1]
    plan, verdict = data["jobs"]["plan"], data["jobs"]["verdict"]

    assert "edited" in data["on"]["pull_request"]["types"]
    for text in (plan["if"], verdict["if"]):
        assert "(github.event.action != 'edited' || github.event.changes.base)" in text
    for text in (data["concurrency"]["group"], verdict["name"]):
        assert "github.event.action == 'edited' && !github.event.changes.base" in text


def test_settings__come_from_the_default_branch():
    """A pull request chooses its base branch, and so would choose the rules that it is judged by."""
    for name, _, step in (entry for entry in STEPS if str(entry[2].get("with", {}).get("path")) == "trusted"):
        assert step["with"]["ref"] in {"${{ github.event.repository.default_branch }}", "${{ github.sha }}"}, name


def test_upload__happens_for_a_regression_too():
    """Measuring ends with 0 whatever the verdict would be; what fails later must not keep the numbers back."""
    steps = WORKFLOWS["perfgate-gpu.yml"][1]["jobs"]["bench"]["steps"]

    after = [step for step in steps if "note" in str(step) or "handoff" in str(step)]
    assert len(after) == 3
    for step in after:
        assert step["if"] == "${{ !cancelled() && steps.measure.outcome != 'skipped' }}"


def test_caches__each_arm_has_a_copy_and_only_main_leaves_one():
    """What a pull request compiled goes nowhere; the machine asks GitHub all the same."""
    steps = WORKFLOWS["perfgate-gpu.yml"][1]["jobs"]["bench"]["steps"]
    names = [step.get("name") for step in steps]
    callers = {name for name, _, job in JOBS if job.get("with", {}).get("offers_cache")}

    assert names.index("Each arm compiles into its own copy of the machine's seed") < names.index("Measure")
    assert next(step for step in steps if "cache offer" in str(step.get("run")))["if"] == "${{ inputs.offers_cache }}"
    assert callers == {"perfgate-baseline.yml"}


def test_settings__name_scenarios_that_ship():
    jobs = load_settings(ROOT / ".github" / "perfgate.toml").list_jobs()

    assert {job.scenario for job in jobs} <= set(list_scenarios())
    assert {job.hardware for job in jobs} == {"h100", "h20"}


def test_requirements__are_exact_and_hashed():
    lines = [line for line in (ROOT / ".github" / "requirements.txt").read_text().splitlines() if not line.startswith("#")]
    names = {line.partition("==")[0].replace("_", "-") for line in lines}
    declared = re.search(r"^dependencies = \[\n(.*?)^\]", (ROOT / "pyproject.toml").read_text(), re.MULTILINE | re.DOTALL)[1]

    assert all(re.fullmatch(r"[a-z0-9_-]+==[0-9][0-9a-z.]* --hash=sha256:[0-9a-f]{64}", line) for line in lines)
    assert {re.match(r'\s*"([a-z0-9-]+)', line)[1] for line in declared.splitlines()} <= names


def run_tool(name, *arguments):
    tool = shutil.which(name) or shutil.which(name, path=str(ROOT / ".venv" / "bin"))
    if tool is None:
        pytest.skip(f"{name} is not installed; the test extra has it")
    done = subprocess.run([tool, *arguments], capture_output=True, text=True, cwd=ROOT, check=False)

    assert done.returncode == 0, done.stdout + done.stderr


def find_installs(text):
    return re.findall(r"pip install[^\n]*", text)


def test_requirements__name_every_test_tool():
    """What `.ci/run` installs is that list and nothing beside it, so a tool that it lacks is missing there."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    listed = (ROOT / ".github" / "requirements-test.txt").read_text()
    found = {name.replace("_", "-") for name in re.findall(r"^([a-z0-9._-]+)==", listed, re.MULTILINE)}
    wanted = {re.split(r"[\[<>=]", spec)[0] for spec in (*project["dependencies"], *project["optional-dependencies"]["test"])}

    assert wanted - found == set()
    assert "export TEST_LOCK=.github/requirements-test.txt" in (ROOT / ".ci" / "run").read_text()


def test_requirements__of_the_engine_agree_with_the_test_tools():
    """CI puts both lists into one environment: what the second one changed would be tested by half."""
    pins = [
        dict(re.findall(r"^([a-z0-9._-]+)==(\S+)", (ROOT / ".github" / name).read_text(), re.MULTILINE))
        for name in ("requirements-test.txt", "requirements-cpu-engine.txt")
    ]

    assert {name: (version, pins[1][name]) for name, version in pins[0].items() if pins[1].get(name, version) != version} == {}


@pytest.mark.parametrize("name", WORKFLOWS)
def test_install__is_by_hash_in_every_workflow(name):
    installs = find_installs(WORKFLOWS[name][0])

    assert [line for line in installs if "--require-hashes" not in line and "--no-index" not in line] == []
    assert find_installs("- run: python -m pip install .") == ["pip install ."]


def test_ci__takes_the_engine_by_hash():
    """Its index is a second one, from which another file of the same version could come."""
    [step] = [step for name, _, step in STEPS if name.startswith("ci") and ".ci/run" in step.get("run", "")]

    assert step["env"]["ENGINE_LOCK"] == ".github/requirements-cpu-engine.txt"


def test_ci__runs_what_only_root_can():
    """The job that lints and tests is no root, so there these tests are skipped."""
    (run,) = (step["run"] for name, _, step in STEPS if name == "ci.yml" and "pytest" in str(step.get("run")))
    asks = re.compile(r"os\.getuid\(\) != 0|tests\.fakes\.machines")
    needy = [str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("test_*.py") if asks.search(path.read_text())]

    assert "sudo " in run
    assert [path for path in needy if not any(path.startswith(word) for word in run.split() if "tests/" in word)] == []


def test_zizmor__finds_nothing():
    run_tool("zizmor", "--offline", "--no-progress", "--persona", "auditor", ".github/workflows")


def test_actionlint__finds_nothing():
    run_tool("actionlint", "-shellcheck", "", *(str(path) for path in FILES))


def test_check_jsonschema__knows_every_key():
    run_tool("check-jsonschema", "--builtin-schema", "vendor.github-workflows", *(str(path) for path in FILES))


def test_shellcheck__of_scripts():
    folders = (".github", "deploy", "deploy/hooks", "benchmarks/*")
    run_tool("shellcheck", ".ci/run", *(str(path) for name in folders for path in ROOT.glob(f"{name}/*.sh")))


def test_ci__runs_every_static_check():
    """A test of a tool is skipped where the tool is not; `make lint`, which CI runs, is not."""
    recipe = (ROOT / "Makefile").read_text().partition("\nlint:")[2].partition("\n\n")[0]

    assert "make lint" in (ROOT / ".ci" / "run").read_text()
    for tool in ("ruff check", "mypy", "zizmor --offline", "actionlint", "check-jsonschema", "shellcheck"):
        assert f"$(BIN)/{tool}" in recipe


@pytest.mark.parametrize("number", range(len([step for _, _, step in STEPS if "run" in step])))
def test_shellcheck__of_steps(tmp_path, number):
    step = [step for _, _, step in STEPS if "run" in step][number]
    script = tmp_path / "step.sh"
    script.write_text("#!/usr/bin/env bash\nset -euo pipefail\n" + step["run"] + "\n")

    run_tool("shellcheck", "--exclude", "SC2154", str(script))

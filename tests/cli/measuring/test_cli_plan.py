"""perfgate plan: the commands that it prints, its list of paths on standard input, and its document."""

import io
import json

from perfgate.cli import main

PATH = "python/sglang/srt/managers/scheduler.py"


def test_plan__prints_commands_to_paste(capsys):
    assert main(["plan", "--changed", PATH, "--minutes", "20"]) == 0

    said = capsys.readouterr().out.splitlines()
    assert "perfgate gate gpt-oss-20b-shape-mxfp4-mixed-c16 --blocks 2 --scenarios-in-pr 3" in said
    assert any(line.startswith("not measured: gpt-oss-20b-shape-mxfp4-saturation: its first look takes") for line in said)
    assert any(line.startswith("no touched path asks for ") for line in said)


def test_plan__reads_the_list_of_git_diff(capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(f"{PATH}\n\nREADME.md\n".encode())))

    assert main(["plan", "--changed", "-", "--format", "json"]) == 0

    found = json.loads(capsys.readouterr().out)
    assert [one["scenario"] for one in found["selected"]][-1] == "gpt-oss-20b-shape-mxfp4-mixed-c64"
    assert found["unknown"] == ["README.md"]
    assert {one["scenario"] for one in found["unselected"] if one["is_wanted"]} >= {"gpt-oss-20b-shape-mxfp4-saturation"}


def test_plan__paths_that_are_no_text(capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"a.py\nb\xff.py\n")))

    assert main(["plan", "--changed", "-"]) == 2
    assert capsys.readouterr().err == "perfgate: --changed -: byte 6 is no UTF-8; give the paths as `git diff` quotes them\n"


def test_plan__what_takes_two_gpus_costs_twice_the_gpu_minutes(capsys):
    model = ["--changed", PATH, "--model"]
    assert main(["plan", *model, "gpt-oss-20b-shape-mxfp4-tp2", "--format", "json"]) == 0
    [found] = json.loads(capsys.readouterr().out)["selected"]
    said = []
    for name in ("gpt-oss-20b-shape-mxfp4-tp2", "gpt-oss-20b-shape-mxfp4"):
        assert main(["plan", *model, name]) == 0
        said.append(capsys.readouterr().out)

    assert (found["scenario"], found["gpus"]) == ("gpt-oss-20b-shape-mxfp4-tp2-closed-c16", 2)
    assert f"{found['minutes']:.1f} of 20 minutes, {2 * found['minutes']:.1f} GPU-minutes;" in said[0]
    assert "GPU-minutes" not in said[1]


def test_plan__table_of_ones_own_that_is_wrong(tmp_path, capsys):
    path = tmp_path / "mine.toml"
    path.write_text("always = 3\n")

    assert main(["plan", "--table", str(path)]) == 2
    assert "mine.toml: always" in capsys.readouterr().err

from __future__ import annotations

import pytest

from perfgate.cli import main
from tests.fakes.sessions import make_scenario, make_session, write_folder
from tests.rule.test_layer_check import draw_file, write_files


@pytest.fixture
def slower(tmp_path):
    return write_folder(tmp_path / "slower", make_session(make_scenario(), worse=0.08, blocks=3))


def test_report__comment_of_a_regression_is_exit_0(slower, capsys):
    code = main(["report", str(slower)])

    out = capsys.readouterr().out
    assert code == 0
    assert "REGRESSION" in out.splitlines()[0]
    assert f"perfgate check {slower}" in out


def test_report__says_what_check_says(slower, capsys):
    codes = [main(["check", str(slower), "--format", "markdown"])]
    checked = capsys.readouterr().out
    codes.append(main(["report", str(slower)]))

    assert codes == [1, 0]
    assert capsys.readouterr().out == checked


def test_report__into_a_file(slower, tmp_path, capsys):
    code = main(["report", str(slower), "--format", "text", "--output", str(tmp_path / "report.txt")])

    assert (code, capsys.readouterr().out) == (0, "")
    assert (tmp_path / "report.txt").read_text(encoding="utf-8").startswith("REGRESSION")


def test_report__layers_timed_beside_the_session_get_a_section(slower, capsys):
    write_files(slower / "layers", [draw_file(number, slower=0.05, only="gpt-oss-20b M=1024") for number in range(4)])

    main(["report", str(slower)])

    first, *rest = capsys.readouterr().out.splitlines()
    (kernels,) = (line for line in rest if line.startswith("- **Kernels:**"))
    assert first.endswith("; MoE layer slower in 1 timing")
    assert "REGRESSION: " in kernels
    assert "slower: gpt-oss-20b M=1024 +5." in kernels or "slower: gpt-oss-20b M=1024 +4." in kernels
    assert "<details><summary>Kernels</summary>" in rest


@pytest.mark.parametrize("option", ["--output", "--html"])
def test_report__over_a_record_of_the_session(slower, capsys, option):
    index = slower / "windows.jsonl"
    before = index.read_bytes()

    assert main(["report", str(slower), option, str(index)]) == 2
    assert f"perfgate: {option} {index}: is read or written by the same command" in capsys.readouterr().err
    assert index.read_bytes() == before


def test_report__names_the_full_report(slower, capsys):
    main(["report", str(slower), "--link", "https://example.org/a/report.html"])

    assert capsys.readouterr().out.count("[report](https://example.org/a/report.html)") == 1


@pytest.mark.parametrize("asked", [["--format", "json"], ["--format", "markdown"], ["--link", "https://example.org/a"]])
def test_report__a_page_alone_takes_nothing_of_a_comment(slower, tmp_path, capsys, asked):
    page = ["report", str(slower), "--html", str(tmp_path / "page.html")]

    assert main([*page, *asked]) == 2
    assert capsys.readouterr().err == (
        f"perfgate: {asked[0]}: is for the comment, which --html alone does not write; give --output FILE too\n"
    )
    assert not (tmp_path / "page.html").exists()
    assert main([*page, *asked, "--output", str(tmp_path / "comment")]) == 0
    assert (tmp_path / "comment").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["{tmp}/nowhere"], "nowhere"),
        (
            ["{slower}", "--output", "{tmp}/no/such/folder"],
            "cannot be written (No such file or directory); choose another place",
        ),
        (["{slower}", "--baselines", "{tmp}/none"], "no such folder"),
        (["{slower}", "--format", "html"], "'html' is not one of"),
        (["{slower}", "--link", "javascript:x"], "--link 'javascript:x': no address"),
        (["{slower}", "--link", "https://e.example/) [x"], "no address"),
        ([], "no results in perfgate-results yet"),
    ],
)
def test_report__bad_input_is_exit_2(slower, tmp_path, monkeypatch, capsys, *, arguments, words):
    # Where the gate has run, the checkout has results.
    monkeypatch.chdir(tmp_path)
    code = main(["report", *(word.format(tmp=tmp_path, slower=slower) for word in arguments)])

    captured = capsys.readouterr()
    assert (code, captured.out, words in captured.err, "Traceback" in captured.err) == (2, "", True, False)

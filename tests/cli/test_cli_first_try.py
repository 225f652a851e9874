"""What people type first: near names, pairs, streams, lists, narrow terminals, and an example under every help."""

import json
import re
import shutil
from xml.etree import ElementTree as ET

import click
import pytest

from perfgate.cli import COMMANDS, main, program
from perfgate.cli.sections import SectionOption
from tests.fakes.recorded import EQUAL, ROOT, SLOWER, UNDECIDED, VOID

RUNS = ROOT / "tests" / "fixtures" / "runs"
MANY = 10


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PERFGATE_STATE", str(tmp_path / "state"))


def list_commands(command=program, words=()):
    """Every command, the groups among them, by what is typed for it."""
    yield words, command
    if isinstance(command, click.Group):
        for name in command.list_commands(click.Context(command)):
            yield from list_commands(command.get_command(click.Context(command), name), (*words, name))


def list_options(command):
    return [one for one in command.params if isinstance(one, click.Option)]


@pytest.mark.parametrize("words", [words for words, _ in list_commands()], ids=" ".join)
def test_help__has_an_example_and_fits_a_terminal(words, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    code = main([*words, "--help"])
    said = capsys.readouterr().out

    assert code == 0
    assert " ".join(("perfgate", *words)) in said.partition("Example")[2]
    assert max(map(len, said.splitlines())) <= 80


@pytest.mark.parametrize(
    ("words", "command"), [pair for pair in list_commands() if len(list_options(pair[1])) > MANY], ids=lambda one: str(one)[:40]
)
def test_help__many_options_stand_in_sections(words, command, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    code = main([*words, "--help"])
    said = capsys.readouterr().out
    titles = re.findall(r"^(\S.*):$", said, flags=re.MULTILINE)
    options = [option for option in list_options(command) if "--format" not in option.opts]

    assert code == 0
    assert len(titles) >= 3
    assert "Options" not in titles
    assert all(isinstance(option, SectionOption) for option in options)
    assert all(re.search(rf"^  (-\w, )?{option.opts[-1]}\b", said, flags=re.MULTILINE) for option in options)


def test_help__names_each_command_in_a_section(capsys):
    main(["--help"])
    said = capsys.readouterr().out

    assert "CI plumbing:" in said
    assert all(f"\n  {name} " in said for name in COMMANDS)
    assert said.index("\n  demo ") < said.index("\n  gate ") < said.index("CI plumbing")


@pytest.mark.parametrize(("typed", "meant"), [("repport", "report"), ("diff", "compare"), ("results", "list")])
def test_program__near_name(typed, meant, capsys):
    code = main([typed])

    assert code == 2
    assert f"Did you mean '{meant}'" in capsys.readouterr().err


def test_compare__a_pair_is_base_and_candidate(capsys):
    pair = [str(RUNS / "fusion_off_1.txt"), str(RUNS / "fusion_on_1.txt")]
    codes = [main(["compare", *pair]), main(["compare", "--base", pair[0], "--candidate", pair[1]])]
    said = capsys.readouterr().out

    assert codes == [3, 3]
    assert said[: len(said) // 2] == said[len(said) // 2 :]


def test_compare__result_folders_by_the_starts_of_their_candidates(capsys):
    code = main(["compare", str(EQUAL), str(SLOWER)])
    said = capsys.readouterr().out

    assert code == 3
    assert "Not enough data" in said.splitlines()[0] or "warm runs" in said.splitlines()[0]
    assert "candidate: 2 runs compared" in said


@pytest.mark.parametrize("arguments", [["a", "b", "c"], ["a"], ["a", "b", "--base", "c"]])
def test_compare__neither_a_pair_nor_lists(arguments, capsys):
    assert main(["compare", *arguments]) == 2
    assert "compare: give A B" in capsys.readouterr().err


def test_compare__void_folder(capsys):
    assert main(["compare", str(VOID), str(EQUAL)]) == 2
    assert "holds no measured window of the candidate" in capsys.readouterr().err


def test_export__to_standard_output(tmp_path, capsysbinary):
    code = main(["export", str(SLOWER), "--csv", "-"])
    out, _ = capsysbinary.readouterr()

    assert code == 0
    assert out.startswith(b"session,scenario,")
    assert list(tmp_path.iterdir()) == []


def test_show__files_side_by_side(capsys):
    code = main(["show", str(RUNS / "fusion_off_1.txt"), str(RUNS / "fusion_on_1.txt")])
    said = capsys.readouterr().out

    assert code == 0
    assert {"fusion_off_1.txt", "fusion_on_1.txt"} <= set(said.replace("/", " ").split())


def test_explain__without_a_metric_takes_the_one_that_decided(capsys):
    main(["explain", str(SLOWER)])
    main(["explain", str(UNDECIDED)])
    first, *_, last = capsys.readouterr().out.split("Find the cause")

    assert first.startswith("Median ITL")
    assert "INCONCLUSIVE" in last


@pytest.mark.parametrize("folder", [EQUAL, UNDECIDED, SLOWER], ids=lambda folder: folder.name)
def test_explain__without_a_metric_takes_the_one_of_the_headline(folder, capsys):
    main(["check", str(folder)])
    headline = capsys.readouterr().out.splitlines()[0]
    main(["explain", str(folder)])
    title = capsys.readouterr().out.partition(" went from ")[0]

    assert re.search(rf": (worst is )?{title}\b", headline)


def test_check__invalid_has_the_whole_cause_and_counts_the_rest(capsys):
    main(["check", str(VOID)])
    first, *rest = capsys.readouterr().out.splitlines()
    main(["explain", str(VOID)])
    told = capsys.readouterr().out

    assert first.endswith("serve weights whose router looks at the token")
    assert [line for line in rest if line.startswith("why")] == [
        f"why       4 more that may follow from it; `perfgate explain {VOID}` prints them"
    ]
    assert told.count("Also found: ") == 4


def test_explain__inconclusive_never_says_that_nothing_is_to_be_done(capsys):
    main(["explain", str(UNDECIDED)])
    said = capsys.readouterr().out

    assert "INCONCLUSIVE" in said.splitlines()[0]
    assert "Nothing has to be done" not in said


def test_explain__invalid_names_the_cause_and_the_remedies(capsys):
    main(["explain", str(VOID)])
    said = capsys.readouterr().out

    assert "Cause: this model cannot measure a MoE kernel" in said
    assert said.endswith("docs/troubleshooting.md#the-model-is-not-a-mixture-of-experts\n")
    assert "Plain dummy weights send every token to the same experts" in said


def test_list__newest_first(tmp_path, capsys):
    for name in ("a", "b"):
        shutil.copytree(UNDECIDED if name == "a" else SLOWER, tmp_path / "perfgate-results" / name)
    main(["list", "--format", "json"])
    found = json.loads(capsys.readouterr().out)

    assert [one["folder"] for one in found] == ["perfgate-results/b", "perfgate-results/a"]


def test_list__names_what_it_cannot_read(tmp_path, capsys):
    for name in ("a", "b", "c"):
        shutil.copytree(SLOWER, tmp_path / "perfgate-results" / name)
    (tmp_path / "perfgate-results" / "a" / "session.json").write_text("{")
    (tmp_path / "perfgate-results" / "c" / "events.jsonl").write_text("[]\n")

    assert main(["list", "--format", "json"]) == 0
    captured = capsys.readouterr()

    assert [one["folder"] for one in json.loads(captured.out)] == ["perfgate-results/b"]
    assert captured.err == (
        "perfgate: perfgate-results/a, perfgate-results/c: cannot be read and left out; `perfgate check` says why\n"
    )


def test_list__without_a_store(capsys):
    assert main(["list"]) == 0
    assert "no results in perfgate-results yet; `perfgate gate` measures" in capsys.readouterr().out
    assert main(["list", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == []
    assert main(["list", "elsewhere"]) == 2
    assert "elsewhere: no such folder" in capsys.readouterr().err


@pytest.mark.parametrize(("command", "code"), [("list", 0), ("explain", 2), ("report", 2)])
def test_command__after_the_demo_says_where_its_results_lie(tmp_path, command, code, capsys):
    shutil.copytree(SLOWER, tmp_path / "perfgate-demo" / "regression")

    assert main([command]) == code
    captured = capsys.readouterr()
    assert "those of the demo lie in perfgate-demo: `perfgate list perfgate-demo`" in captured.out + captured.err
    assert main(["list", "perfgate-demo"]) == 0
    assert "perfgate-demo/regression" in capsys.readouterr().out


def test_report__opens_the_newest(tmp_path, monkeypatch, capsys):
    opened = []
    monkeypatch.setattr("webbrowser.open", lambda address: opened.append(address) or True)
    shutil.copytree(SLOWER, tmp_path / "perfgate-results" / "a")
    code = main(["report", "--open"])

    assert code == 0
    assert opened == [(tmp_path / "perfgate-results/a/report.html").as_uri()]
    assert "page: perfgate-results/a/report.html" in capsys.readouterr().err


def test_scenarios__new_measures_what_it_was_copied_from(capsys):
    codes = [main(["scenarios", "new", "my own.toml"]), main(["scenarios", "show", "my own.toml"])]
    said = capsys.readouterr()

    assert codes == [0, 0]
    assert 'name = "my-own"' in said.out
    assert "perfgate gate" in said.err
    assert main(["scenarios", "new", "my own.toml"]) == 2


def test_scenarios__new_writes_a_file_that_no_shipped_name_hides(tmp_path, capsys):
    codes = [main(["scenarios", "new", "mine"]), main(["scenarios", "new", "cpu-moe"])]

    assert codes == [0, 2]
    assert (tmp_path / "mine.toml").exists()
    assert not (tmp_path / "cpu-moe.toml").exists()
    assert "cpu-moe is a shipped scenario" in capsys.readouterr().err


def test_check__a_folder_that_holds_no_result(tmp_path, capsys):
    (tmp_path / "else.json").write_text("[]")

    assert main(["check", str(tmp_path)]) == 2
    assert "so it is no result folder; give one that `perfgate gate`, `run` or `demo` wrote" in capsys.readouterr().err


def test_schema__says_what_every_field_means(capsys):
    main(["schema"])
    schema = json.loads(capsys.readouterr().out)
    tables = [schema, *(part for part in schema["$defs"].values() if "properties" in part)]

    assert [name for table in tables for name, field in table["properties"].items() if "description" not in field] == []


def test_schema__holds_for_every_outcome(capsys):
    jsonschema = pytest.importorskip("jsonschema", reason="jsonschema comes with the extra test")
    main(["schema"])
    schema = json.loads(capsys.readouterr().out)
    for folder in (SLOWER, EQUAL, VOID, UNDECIDED):
        main(["check", str(folder), "--format", "json"])
        jsonschema.validate(json.loads(capsys.readouterr().out), schema)


def test_schema__one_scale(capsys):
    main(["check", str(SLOWER), "--format", "json"])
    judgements = {one["metric"]: one for one in json.loads(capsys.readouterr().out)["judgements"]}

    throughput, median = judgements["output_tok_per_s"], judgements["median_itl_ms"]
    assert throughput["margin"] < 0
    assert throughput["fails_from"] < throughput["change"] < 0
    assert 0 < median["margin"] / 2 < median["fails_from"] < median["change"]


def test_check__junit(capsys):
    code = main(["check", str(SLOWER), "--format", "junit"])
    suite = ET.fromstring(capsys.readouterr().out)[0]  # noqa: S314 - what was written a line ago

    assert code == 1
    assert {case.get("name"): [child.tag for child in case] for case in suite} == {
        "verdict": ["failure"],
        "Output throughput": ["error"],
        "P99 ITL": ["error"],
        "Median ITL": ["failure"],
        "Mean ITL": ["skipped"],
        "Mean E2E": ["skipped"],
    }
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("6", "2", "2")


def test_doctor__tells_what_can_be_done_without_an_engine(capsys):
    assert main(["doctor"]) == 0
    assert "perfgate demo" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("run cpu", "plain,cpu-moe"),
        ("scenarios show cpu", "plain,cpu-moe"),
        ("bisect GOOD BAD --scenario cpu", "plain,cpu-moe"),
        ("deps base.lock head.lock --scenario cpu", "plain,cpu-moe"),
        ("power --scenario cpu", "plain,cpu-moe"),
        ("model verify --scenario cpu", "plain,cpu-moe"),
        ("matrix gpt", "plain,gpt-oss-20b-shape-backends"),
        ("matrix ./mine", "file,./mine"),
        ("explain results p99_i", "plain,p99_itl_ms"),
    ],
)
def test_completion__of_a_name_that_ships(typed, offered, monkeypatch, capsys):
    monkeypatch.setenv("COMP_WORDS", f"perfgate {typed}")
    monkeypatch.setenv("COMP_CWORD", str(len(typed.split())))
    monkeypatch.setenv("_PERFGATE_COMPLETE", "bash_complete")
    with pytest.raises(SystemExit):
        main([])

    assert offered in capsys.readouterr().out.splitlines()

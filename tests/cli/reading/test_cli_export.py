"""`perfgate export` as typed."""

import re
from pathlib import Path

import pandas as pd
import pytest

from perfgate.cli import main
from tests.fakes.sessions import make_scenario, make_session, write_folder

RUNS = Path(__file__).parents[2] / "fixtures" / "runs"


def export(capsys, *args):
    code = main(["export", *map(str, args)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_attack__a_formula_in_a_table(capsys, tmp_path, monkeypatch):
    """A folder of that name in an artifact, opened in a spreadsheet."""
    monkeypatch.chdir(tmp_path)
    source = Path("=HYPERLINK(1)")
    source.write_text((RUNS / "fusion_off_2.txt").read_text())

    code, _, _ = export(capsys, source, "--csv", "runs.csv")

    assert code == 0
    assert "'=HYPERLINK(1)" in Path("runs.csv").read_text()
    assert not re.search(r"(^|,)\"?[=+@]", Path("runs.csv").read_text(), re.MULTILINE)


def test_command__files_to_csv(capsys, tmp_path):
    target = tmp_path / "runs.csv"

    code, out, err = export(capsys, RUNS / "fusion_off_2.txt", RUNS / "matrix.log", "--csv", target)
    frame = pd.read_csv(target)

    assert (code, out) == (0, "")
    assert err == f"{target}: {len(frame)} rows\n"
    assert frame["source"].nunique() == 5
    assert frame[frame.metric == "output_tok_per_s"]["value"].tolist() == [614.08, 1002.94, 635.64, 915.43, 583.99]


def test_command__both_formats_hold_the_same(capsys, tmp_path):
    pytest.importorskip("pyarrow", reason="pyarrow comes with the extras history and test")
    csv, parquet = tmp_path / "runs.csv", tmp_path / "runs.parquet"

    code, _, _ = export(capsys, RUNS / "fusion_off_2.txt", "--csv", csv, "--parquet", parquet)

    assert code == 0
    assert pd.read_parquet(parquet)["value"].tolist() == pd.read_csv(csv)["value"].tolist()


def test_command__result_folder(capsys, tmp_path):
    session = make_session(make_scenario(), blocks=2)
    folder = write_folder(tmp_path / "results", session)
    target = tmp_path / "windows.csv"

    code, _, _ = export(capsys, folder, "--csv", target)
    frame = pd.read_csv(target)

    assert code == 0
    assert frame["session"].unique().tolist() == [str(folder)]
    assert set(frame["arm"]) == {"base", "candidate"}
    assert len(frame[frame.metric == "output_tok_per_s"]) == len(session.windows)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([RUNS / "fusion_off_2.txt"], "give --csv, --parquet, --openmetrics, --samples or --expert-use with a FILE"),
        ([RUNS, "--csv", "OUT"], "holds no session.json"),
        ([RUNS, RUNS / "matrix.log", "--csv", "OUT"], "do not mix"),
        (["nowhere.txt", "--csv", "OUT"], "no such file"),
        ([RUNS / "fusion_off_2.txt", "--csv", "OUT/missing/x.csv"], "cannot be written"),
    ],
)
def test_command__bad_input(capsys, tmp_path, args, message):
    target = tmp_path / "out"

    code, out, err = export(capsys, *[str(arg).replace("OUT", str(target)) for arg in args])

    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err
    assert not target.exists()


def test_command__output_over_what_is_read(capsys, tmp_path):
    runs = tmp_path / "runs.txt"
    runs.write_text(before := (RUNS / "fusion_off_2.txt").read_text())
    (tmp_path / "link.csv").symlink_to(runs)
    session = write_folder(tmp_path / "session", make_session(make_scenario()))
    index = (session / "windows.jsonl").read_bytes()

    for source, *words in (
        (runs, "--csv", runs),
        (runs, "--csv", tmp_path / "link.csv"),
        (runs, "--csv", tmp_path / "new", "--parquet", tmp_path / "new"),
        (session, "--csv", session / "windows.jsonl"),
    ):
        code, _, err = export(capsys, source, *words)
        assert (code, err) == (
            2,
            f"perfgate: {words[-2]} {words[-1]}: is read or written by the same command; choose another place\n",
        )

    assert (runs.read_text(), (session / "windows.jsonl").read_bytes()) == (before, index)
    assert not (tmp_path / "new").exists()

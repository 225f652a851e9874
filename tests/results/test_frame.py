"""The tidy frame of windows and runs."""

import sys
from io import BytesIO

import pandas as pd
import pytest

from perfgate.core import Arm, Fingerprint, Remark, RemarkKind, Role, Run, Window
from perfgate.errors import InputError
from perfgate.evidence import Session
from perfgate.results.frame import build_frame, dump_parquet
from perfgate.results.rows import COLUMNS, dump_csv, rows_of_runs, rows_of_sessions


def make_run(source="run.jsonl", **changes):
    facts = {
        "source": source,
        "values": {"output_tok_per_s": 1000.0, "p99_itl_ms": 12.5},
        "workload": {},
        "requested": None,
        "completed": 4,
        "input_tokens": 64,
        "output_tokens": 40,
        "duration_s": 2.0,
        "estimators": {"p99_itl_ms": "harrell-davis"},
    }
    return Run(**facts | changes)


def make_session():
    def place(arm, index):
        return Window(
            run=make_run(f"{index}.jsonl.gz"),
            arm=arm,
            block=1,
            start=1 + index,
            index=0,
            role=Role.MEASURED,
            begun_s=10.0 * index,
            ended_s=10.0 * index + 5,
            telemetry={"sm_clock_mhz": 1980.0},
        )

    return Session(
        source="results",
        scenario="tiny",
        workload_hash="abc",
        fingerprints={Arm.BASE: Fingerprint(facts={"hardware": "h200"})},
        windows=(place(Arm.BASE, 0), place(Arm.CANDIDATE, 1)),
    )


def test_rows_of_runs__one_row_a_number():
    problems = tuple(Remark(kind=kind) for kind in (RemarkKind.CANCELLED, RemarkKind.NO_DURATION))
    frame = build_frame(rows_of_runs([make_run(), make_run("other.jsonl", problems=problems)]))

    assert list(frame.columns) == list(COLUMNS)
    assert frame["metric"].tolist() == ["output_tok_per_s", "p99_itl_ms"] * 2
    assert frame["value"].tolist() == [1000.0, 12.5] * 2
    assert frame["unit"].tolist()[:2] == ["tok/s", "ms"]
    assert frame["problems"].tolist() == [0, 0, 2, 2]
    assert frame["arm"].isna().all()
    assert frame["requested"].isna().all()


def test_rows_of_runs__none_at_all():
    frame = build_frame(rows_of_runs([]))

    assert (len(frame), list(frame.columns)) == (0, list(COLUMNS))


def test_rows_of_sessions__windows_have_their_place():
    frame = build_frame(rows_of_sessions([make_session()]))
    row = frame[(frame.arm == "candidate") & (frame.metric == "p99_itl_ms")].iloc[0]

    assert (row["session"], row["scenario"], row["start"], row["role"], row["begun_s"]) == (
        "results",
        "tiny",
        2,
        "measured",
        10.0,
    )
    assert row["estimator"] == "harrell-davis"
    assert frame[frame.arm == "base"]["hardware"].unique().tolist() == ["h200"]


def test_rows_of_sessions__telemetry_is_of_another_kind():
    frame = build_frame(rows_of_sessions([make_session()]))
    telemetry = frame[frame.kind == "telemetry"]

    assert telemetry["metric"].tolist() == ["sm_clock_mhz"] * 2
    assert telemetry["unit"].tolist() == ["MHz"] * 2


def test_rows_of_sessions__wide_again():
    frame = build_frame(rows_of_sessions([make_session()]))

    wide = frame[frame.kind == "metric"].pivot_table(
        index=["session", "arm", "block", "start", "index"], columns="metric", values="value"
    )

    assert wide.shape == (2, 2)
    assert wide.loc[("results", "base", 1, 1, 0), "output_tok_per_s"] == 1000.0


def test_dump_csv__reads_back():
    content = dump_csv(rows_of_runs([make_run()]))

    assert pd.read_csv(BytesIO(content))["value"].tolist() == [1000.0, 12.5]


def test_dump_parquet__reads_back_with_types():
    pytest.importorskip("pyarrow", reason="pyarrow comes with the extras history and test")
    content = dump_parquet(build_frame(rows_of_runs([make_run()])))

    assert pd.read_parquet(BytesIO(content))["value"].tolist() == [1000.0, 12.5]
    assert str(pd.read_parquet(BytesIO(content))["completed"].dtype) == "Int64"


def test_dump_parquet__without_pyarrow(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)

    with pytest.raises(InputError, match=r"Parquet needs pyarrow; pip install pyarrow, or use CSV"):
        dump_parquet(build_frame(rows_of_runs([make_run()])))

"""The store: what is appended twice counts once, files are whole or not there, what is broken is named in a line."""

import shutil
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from perfgate.errors import EvidenceError, InputError
from perfgate.history.database import HistoryQuestion
from perfgate.history.entries import Partition
from perfgate.history.query import find_session, read_history
from perfgate.history.schema import OVERRIDES, VERDICTS, WINDOWS
from perfgate.history.store import Store
from perfgate.history.trends import Provenance
from tests.fakes.history import draw_levels, make_entry


@pytest.fixture
def store(tmp_path):
    return Store(f"file://{tmp_path}/store")


def fill(store, count: int = 40):
    return store.append([make_entry(day, value) for day, value in enumerate(draw_levels([1000, 950], each=count // 2))])


def list_files(store):
    return sorted(str(path.relative_to(store.root)) for path in Path(store.root).rglob("*") if path.is_file())


def test_append__writes_a_file_a_table_in_hive_partitions(store):
    (entry,) = store.append([make_entry(3, 1000.0)])

    place = "scenario=nightly/hardware=test-gpu-80gb/month=2026-01"
    assert list_files(store) == [f"{table}/{place}/{entry.session}.parquet" for table in (VERDICTS, WINDOWS)]


def test_append__twice_counts_once(store):
    fill(store)
    before = {name: Path(store.root, name).read_bytes() for name in list_files(store)}

    assert fill(store) == ()
    assert store.append([make_entry(0, draw_levels([1000, 950])[0])]) == ()
    assert {name: Path(store.root, name).read_bytes() for name in list_files(store)} == before


def test_append__a_copy_with_another_date_counts_once(store):
    store.append([make_entry(3, 1000.0)])

    assert store.append([make_entry(90, 1000.0, told={"commit": f"{3:07x}"})]) == ()


def test_append__after_a_crash_between_the_tables_completes_the_session(store):
    (entry,) = store.append([make_entry(3, 1000.0)])
    verdict = next(Path(store.root, VERDICTS).rglob("*.parquet"))
    verdict.unlink()

    assert store.append([make_entry(3, 1000.0)]) == (entry,)
    assert verdict.exists()
    assert len(read_history(store, HistoryQuestion()).series[0].points) == 1


def test_append__refuses_another_commit_for_the_same_session(store):
    entry = make_entry(3, 1000.0)
    store.append([entry])

    with pytest.raises(InputError, match=rf"session {entry.session} is in the store with commit 0000003, not abcdef1"):
        store.append([replace(entry, verdict={**entry.verdict, "commit": "abcdef1"})])


def test_append__leaves_no_half_file_where_nothing_can_be_written(tmp_path):
    (tmp_path / "store").write_text("a file, where a folder should be")

    with pytest.raises(EvidenceError, match=r"--store .*: .*check the place") as caught:
        Store(str(tmp_path / "store")).append([make_entry(3, 1000.0)])

    assert "\n" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


@pytest.mark.parametrize("name", ["../evil", "a/b", "", "A", "x" * 81, "a=b", ".hidden", "a b"])
def test_attack__a_place_outside_of_the_store(name):
    with pytest.raises(InputError, match="names a folder of the store"):
        Partition(scenario=name, hardware="h", month="2026-01")
    with pytest.raises(InputError, match="names a folder of the store"):
        Partition(scenario="s", hardware=name, month="2026-01")


@pytest.mark.parametrize(
    ("field", "text"),
    [
        *(("commit", "main"), ("commit", "ABCDEF1"), ("base_commit", "1" * 41), ("runner", "a b"), ("release", "../x")),
        *(("commit", "1234567'; DROP TABLE sessions; --"), ("runner", "h20'); --"), ("release", "v1' OR '1'='1")),
    ],
)
def test_attack__a_provenance_that_is_no_name(field, text):
    with pytest.raises(InputError, match=f"--{field.replace('_', '-')} .*: give"):
        Provenance(**{field: text})


@pytest.mark.parametrize("url", ["nonsense://x", "s4://bucket/x"])
def test_store__refuses_an_unknown_protocol(url):
    with pytest.raises(InputError, match="cannot be opened"):
        Store(url)


def test_ask__of_an_empty_store_says_how_to_fill_it(store):
    with pytest.raises(InputError, match="no session that fits; `perfgate history append`"):
        read_history(store, HistoryQuestion())


def test_ask__a_metric_that_no_session_has_is_a_mistake_and_no_empty_table(store):
    fill(store)

    with pytest.raises(InputError, match="--metric 'p99_itl': no session that fits has it"):
        read_history(store, HistoryQuestion(metrics=("p99_itl_ms", "p99_itl")))


def test_ask__keeps_to_the_question(store):
    fill(store)
    store.append([make_entry(5, 500.0, scenario="other")])

    history = read_history(store, HistoryQuestion(scenarios=("nightly",), metrics=("p99_itl_ms",), last=25))

    (series,) = history.series
    assert (series.subject.metric, len(series.points)) == ("p99_itl_ms", 25)
    assert len(read_history(store, HistoryQuestion(last=0)).series) == 4
    assert read_history(store, HistoryQuestion()).spending == ()


def test_ask__counts_no_invalid_session_as_one_that_raised_no_alarm(store):
    entries = [make_entry(day, 1000.0 + day) for day in range(4)]
    judged = zip(entries, ("ab", "ab", "aa", "aa"), ("REGRESSION", "INVALID", "PASS", "INVALID"), strict=True)
    store.append([replace(one, verdict={**one.verdict, "kind": kind, "outcome": outcome}) for one, kind, outcome in judged])

    ledger = read_history(store, HistoryQuestion()).ledger

    assert (ledger.judged, ledger.regressions) == (1, 1)
    assert (ledger.equal_arms, ledger.alarms_of_equal_arms) == (1, 0)


def test_ask__shows_a_release_however_old(store):
    store.append([make_entry(day, 1000.0 + day, told={"release": "v1" if day == 1 else ""}) for day in range(30)])

    (series, _) = read_history(store, HistoryQuestion(last=5)).series

    assert [point.release for point in series.points] == ["v1", *[""] * 5]
    assert series.creep.anchor == "v1"


def test_ask__since_leaves_earlier_sessions_out(store):
    entries = fill(store)
    since = entries[30].verdict["begun"]

    (series, _) = read_history(store, HistoryQuestion(since=since)).series

    assert [point.at for point in series.points] == [entry.verdict["begun"] for entry in entries[30:]]


@pytest.mark.parametrize("table_name", [VERDICTS, WINDOWS])
def test_ask__refuses_a_store_of_a_newer_perfgate(store, table_name):
    (entry,) = store.append([make_entry(3, 1000.0)])
    path = next(Path(store.root, table_name).rglob("*.parquet"))
    table = pq.read_table(path, partitioning=None)
    pq.write_table(table.set_column(0, "schema", pa.array([2], pa.int16())), path)

    with pytest.raises(InputError, match=r"written by a newer perfgate \(schema 2, not 1\)"):
        read_history(store, HistoryQuestion())
    assert entry.session in str(path)


@pytest.mark.parametrize(
    ("table_name", "column", "value", "words"),
    [
        (VERDICTS, "runner", None, "NOT NULL constraint failed: sessions.runner"),
        (WINDOWS, "commit", None, "NOT NULL constraint failed: levels.ran"),
        (WINDOWS, "output_tok_per_s", float("inf"), "isfinite"),
        (WINDOWS, "schema", "one", "casting from source column schema"),
        (OVERRIDES, "ruled", None, "NOT NULL constraint failed: overrides.ruled"),
        (OVERRIDES, "schema", "one", "casting from source column schema"),
    ],
)
def test_ask__names_the_column_of_a_store_that_others_wrote(store, table_name, column, value, words):
    (entry,) = store.append([make_entry(3, 1000.0)])
    told = {"person": "ada", "ruling": "accepted", "reason": "known"}
    store.add_override({"schema": 1, "session": entry.session, "ruled": entry.verdict["begun"], **told})
    path = next(Path(store.root, table_name).rglob("*.parquet"))
    table = pq.read_table(path, partitioning=None)
    found = pa.array([value] * len(table))
    pq.write_table(table.set_column(table.column_names.index(column), column, found), path)

    with pytest.raises(EvidenceError, match=words) as caught:
        read_history(store, HistoryQuestion())

    assert "\n" not in str(caught.value)


def test_ask__names_a_file_that_is_no_parquet(store):
    store.append([make_entry(3, 1000.0)])
    next(Path(store.root, WINDOWS).rglob("*.parquet")).write_bytes(b"PAR1 and then nothing")

    with pytest.raises(EvidenceError, match=r"cannot be read \(.*parquet.*\); take the file away") as caught:
        read_history(store, HistoryQuestion())

    assert "\n" not in str(caught.value)


def test_ask__files_that_are_not_the_stores_are_left_alone(store):
    store.append([make_entry(3, 1000.0)])
    folder = next(Path(store.root, WINDOWS).rglob("*.parquet")).parent
    (folder / ".x.parquet.1.part").write_bytes(b"half")
    (folder / "notes.parquet").write_bytes(b"not ours")

    assert len(read_history(store, HistoryQuestion()).series) == 2


def test_find_session__by_its_first_digits(store):
    entries = fill(store, 4)

    assert find_session(store, entries[0].session[:10]) == entries[0].session
    for prefix in ("", "nothing"):
        with pytest.raises(InputError, match="sessions begin so"):
            find_session(store, prefix)


def test_compact__merges_and_changes_no_answer(store):
    for day, value in enumerate(draw_levels([1000, 950], each=5)):
        store.append([make_entry(day, value)])
    before = read_history(store, HistoryQuestion())

    assert store.compact() == (20, 2)
    assert read_history(store, HistoryQuestion()) == before
    assert store.compact() == (2, 2)
    assert store.append([make_entry(0, draw_levels([1000, 950], each=5)[0])]) == ()


def test_compact__cut_off_before_it_deleted_counts_once(store, tmp_path):
    for day in range(6):
        store.append([make_entry(day, 1000.0 + day)])
    before = read_history(store, HistoryQuestion())
    shutil.copytree(store.root, tmp_path / "copy")
    store.compact()
    shutil.copytree(tmp_path / "copy", store.root, dirs_exist_ok=True)

    assert len(list_files(store)) == 14
    assert read_history(store, HistoryQuestion()) == before
    assert store.compact() == (14, 2)
    assert read_history(store, HistoryQuestion()) == before
    assert [pq.read_table(path, partitioning=None).num_rows for path in Path(store.root).rglob("*.parquet")] == [6, 6]


def test_compact__gives_older_files_the_columns_that_came_later(store):
    store.append([make_entry(1, 1000.0)])
    path = next(Path(store.root, WINDOWS).rglob("*.parquet"))
    pq.write_table(pq.read_table(path, partitioning=None).drop_columns(["max_itl_ms", "telemetry"]), path)
    store.append([make_entry(2, 1010.0)])

    assert store.compact() == (4, 2)
    assert len(read_history(store, HistoryQuestion()).series[0].points) == 2


@pytest.mark.parametrize(
    ("column", "value", "words"),
    [
        ("schema", pa.array([2], pa.int16()), "was written by a newer perfgate; upgrade"),
        ("later", pa.array([7]), "was written by a newer perfgate; upgrade"),
        ("block", pa.array(["x"]), "is no file of a history store .*; take it away"),
    ],
)
def test_compact__a_file_that_is_not_ours_stays(store, column, value, words):
    for day in (1, 2):
        store.append([make_entry(day, 1000.0)])
    path = next(Path(store.root, WINDOWS).rglob("*.parquet"))
    table = pq.read_table(path, partitioning=None)
    others = [name for name in table.column_names if name != column]
    pq.write_table(table.select(others).append_column(column, pa.array(value.to_pylist() * len(table), value.type)), path)
    before = {file: Path(store.root, file).read_bytes() for file in list_files(store)}

    with pytest.raises(InputError, match=rf"{path.name}: {words}"):
        store.compact()
    assert {file: Path(store.root, file).read_bytes() for file in list_files(store)} == before


def test_store__writes_are_deterministic(tmp_path):
    stores = [Store(str(tmp_path / name)) for name in "ab"]
    for store in stores:
        fill(store)

    assert list_files(stores[0]) == list_files(stores[1])
    assert all(
        Path(stores[0].root, name).read_bytes() == Path(stores[1].root, name).read_bytes() for name in list_files(stores[0])
    )

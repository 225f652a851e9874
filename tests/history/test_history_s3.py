"""The same files on S3: appended through s3fs, read by DuckDB, and unchanged by ClickHouse. The stand-in speaks real HTTP."""

import json
import os
import socket
import subprocess
import sys
import time
from dataclasses import replace
from statistics import median

import pytest

from perfgate.errors import EvidenceError
from perfgate.history.database import HistoryQuestion
from perfgate.history.query import read_history
from perfgate.history.store import Store
from tests.fakes.history import FACTS, draw_levels, make_entry

KEY = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}
# ClickHouse in a process of its own: it is half a gigabyte of code that wants its own threads.
CLICKHOUSE = """
import sys
from chdb import session
print(session.Session().query(sys.argv[1], "JSONCompact"))
"""


def find_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def wait_for(port):
    for _ in range(1200):
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.1)
        else:
            return
    pytest.fail("the stand-in for S3 did not start within two minutes")


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory):
    port = find_port()
    with (tmp_path_factory.mktemp("moto") / "log").open("wb") as log:
        # Its own session, and no settings of this machine: a stand-in that forwards to the real thing would be one no more.
        server = subprocess.Popen(
            [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
            stdout=log,
            stderr=log,
            env={**os.environ, **KEY},
        )
        try:
            wait_for(port)
            yield f"http://127.0.0.1:{port}"
        finally:
            server.terminate()
            server.wait(timeout=300)


@pytest.fixture
def bucket(endpoint, monkeypatch):
    import s3fs

    for name, value in {**KEY, "AWS_ENDPOINT_URL": endpoint}.items():
        monkeypatch.setenv(name, value)
    s3fs.S3FileSystem.clear_instance_cache()
    s3fs.S3FileSystem().mkdir("history")
    yield "s3://history/perfgate"
    s3fs.S3FileSystem().rm("history", recursive=True)
    s3fs.S3FileSystem.clear_instance_cache()


def fill(store):
    return store.append([make_entry(day, value) for day, value in enumerate(draw_levels([1000, 950]))])


def run_clickhouse(query):
    done = subprocess.run([sys.executable, "-c", CLICKHOUSE, query], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["data"]


def test_store__on_s3_gives_the_answers_of_a_folder(bucket, tmp_path):
    here, there = Store(str(tmp_path / "store")), Store(bucket)
    for store in (here, there):
        fill(store)
        for day in (70, 71):
            store.append([make_entry(day, 951.0 + day)])

    mine, theirs = read_history(here, HistoryQuestion()), read_history(there, HistoryQuestion())

    assert theirs.series == mine.series
    assert len(theirs.series[0].changes) == 1
    assert fill(there) == ()
    assert there.compact() == here.compact()
    assert read_history(there, HistoryQuestion()).series == mine.series


def test_store__on_s3_is_read_unchanged_by_clickhouse(bucket, endpoint):
    entries = fill(Store(bucket))
    values = [window["output_tok_per_s"] for entry in entries for window in entry.windows]

    table = f"s3('{endpoint}/history/perfgate/windows/**/*.parquet', 'test', 'test', 'Parquet')"
    columns = "toString(min(month)), toUInt32(count()), quantileExactInclusive(0.5)(output_tok_per_s), toUInt32(max(schema))"
    judged = "judged AND arm = 'base'"
    data = run_clickhouse(f"SELECT scenario, hardware, {columns} FROM {table} WHERE {judged} GROUP BY ALL")  # noqa: S608

    assert data == [["nightly", "test-gpu-80gb", "2026-01", 40, pytest.approx(median(values)), 1]]


def test_store__verdicts_with_their_maps_and_lists_are_read_by_clickhouse(bucket, endpoint):
    judged = {"environment": FACTS, "judgements": [{"metric": name, "change": -0.03} for name in ("p99_itl_ms", "mean_itl_ms")]}
    entries = [make_entry(day, 1000.0 + day) for day in range(3)]
    Store(bucket).append([replace(entry, verdict={**entry.verdict, **judged}) for entry in entries])

    table = f"s3('{endpoint}/history/perfgate/verdicts/**/*.parquet', 'test', 'test', 'Parquet')"
    columns = "toUInt32(count()), toUInt32(sum(length(judgements))), min(judgements[2].change), any(environment['driver'])"
    data = run_clickhouse(f"SELECT {columns} FROM {table}")  # noqa: S608

    assert data == [[3, 6, -0.03, "570"]]


def test_store__on_s3_without_its_bucket_says_so_in_a_line(bucket):
    with pytest.raises(EvidenceError, match=r"--store s3://nowhere/x: .*check the place") as caught:
        Store("s3://nowhere/x").append([make_entry(1, 1000.0)])

    assert "\n" not in str(caught.value)
    assert bucket


def test_store__on_s3_that_does_not_answer_says_so_in_a_line(bucket, monkeypatch):
    import s3fs

    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{find_port()}")
        elsewhere.setenv("AWS_MAX_ATTEMPTS", "1")
        s3fs.S3FileSystem.clear_instance_cache()
        with pytest.raises(EvidenceError, match=r"--store s3://history/x: .*check the place") as caught:
            Store("s3://history/x").append([make_entry(1, 1000.0)])

    s3fs.S3FileSystem.clear_instance_cache()
    assert "\n" not in str(caught.value)
    assert bucket

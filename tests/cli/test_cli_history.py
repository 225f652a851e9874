"""`perfgate history` on results that were measured on an H200, and what it does with folders that it must refuse."""

import hashlib
import json
import re
import shutil
import subprocess
import sys
from base64 import b64encode
from datetime import UTC, datetime
from html.parser import HTMLParser

import pytest

from perfgate.cli import main
from perfgate.history.dashboard import link_places
from perfgate.history.store import Store
from perfgate.history.trends import SeriesPoint
from tests.fakes.history import draw_levels, make_entry
from tests.fakes.recorded import ROUTED, SLOWER, UNDECIDED, bring_cut_off


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setenv("PERFGATE_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("PERFGATE_HISTORY", str(tmp_path / "store"))
    monkeypatch.delenv("RUNNER_NAME", raising=False)
    return tmp_path / "store"


def test_history__without_a_store_is_kept_in_the_machines_own(tmp_path, store, monkeypatch, capsys):
    monkeypatch.delenv("PERFGATE_HISTORY")

    assert main(["history", "append", str(SLOWER)]) == 0
    assert main(["history", "show", "--format", "json"]) == 0
    assert str(tmp_path / "state" / "history") in capsys.readouterr().out
    assert list((tmp_path / "state" / "history").rglob("*.parquet"))
    assert not store.exists()


def fill(url, **changes):
    Store(str(url)).append([make_entry(day, value, **changes) for day, value in enumerate(draw_levels([1000, 950]))])


def read_error(capsys):
    captured = capsys.readouterr()
    assert captured.err.startswith("perfgate: ")
    assert captured.err.count("\n") == 1, captured.err
    return captured.err


def test_append__real_results_twice_count_once(store, capsys):
    arguments = ["history", "append", str(SLOWER), str(UNDECIDED), "--commit", "2a6dff7", "--runner", "h200-1"]

    assert main(arguments) == 0
    first = capsys.readouterr().out
    assert main(arguments) == 0
    assert re.search(r"mxfp4-mixed-c16-graphs-gpu-15: session [0-9a-f]{16}, 29 windows, REGRESSION\n", first)
    assert capsys.readouterr().out.count("already there") == 2
    assert len(list(store.rglob("*.parquet"))) == 4


def test_append__a_broken_folder_leaves_the_store_as_it_was(store, tmp_path, capsys):
    broken = tmp_path / "broken"
    shutil.copytree(UNDECIDED, broken)
    record = json.loads((broken / "session.json").read_text())

    for change, problem in [
        ({"scenario": "../../evil"}, "scenario '../../evil': names a folder of the store"),
        ({"begun_utc": "yesterday"}, "session.json: begun_utc: Value error, 'yesterday' is no time such as"),
    ]:
        (broken / "session.json").write_text(json.dumps(record | change))
        assert main(["history", "append", str(SLOWER), str(broken)]) == 2
        assert problem in read_error(capsys)
    for arm in record["arms"].values():
        arm["facts"]["hardware"] = "../../../etc"
    (broken / "session.json").write_text(json.dumps(record))
    assert main(["history", "append", str(broken)]) == 2
    assert "hardware '../../../etc': no plain name" in read_error(capsys)
    assert not store.exists()


@pytest.mark.parametrize(
    ("find", "problem"),
    [
        (bring_cut_off, "the session was cut off or still runs"),
        (lambda: ROUTED, "is no result folder"),
        (lambda: ROUTED / "x", "no such result folder"),
    ],
)
def test_append__refuses_what_is_no_whole_session(store, capsys, find, problem):
    assert main(["history", "append", str(find())]) == 2
    assert problem in read_error(capsys)
    assert not store.exists()


@pytest.mark.usefixtures("store")
def test_show__counts_the_base_arm_and_both_of_equal_ones(capsys):
    main(["history", "append", str(SLOWER), "--commit", "2a6dff7", "--base-commit", "5a0e201"])
    main(["history", "append", str(UNDECIDED), "--commit", "93934a3", "--release", "v0.5.16"])
    capsys.readouterr()

    assert main(["history", "show", "--format", "json", "--metric", "output_tok_per_s"]) == 0
    content = json.loads(capsys.readouterr().out)

    levels = {one["subject"]["scenario"]: one for one in content["series"]}
    (slow,) = levels["gpt-oss-20b-shape-mxfp4-mixed-c16"]["points"]
    # The candidate was slowed down on purpose: 1,595.8 tok/s. Its base was not.
    assert slow["value"] == pytest.approx(1685, rel=0.01)
    assert slow["commit"] == "5a0e201"
    assert slow["environment"]["gpu"] == "NVIDIA H200"
    assert levels["gpt-oss-20b-shape-mxfp4-closed-c16"]["points"][0]["commit"] == "93934a3"
    assert content["ledger"]["judged"] == content["ledger"]["regressions"] == content["ledger"]["equal_arms"] == 1
    assert sum(one["minutes"] for one in content["spending"]) == pytest.approx((263.96 + 403.58) / 60, abs=0.01)


def test_show__prints_plain_lines_in_a_pipe(store, capsys):
    fill(store)

    assert main(["history", "show"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"Output throughput -4\.9 % \(worse\): .* tok/s -> .* tok/s, after commit 0000013, by 0000014", out)
    assert "first measured" in out
    assert "OVER THE LIMIT" in out
    assert "\x1b" not in out


@pytest.mark.usefixtures("store")
def test_override__stands_in_the_ledger(capsys):
    main(["history", "append", str(SLOWER)])
    session = re.search(r"session ([0-9a-f]{16})", capsys.readouterr().out)[1]

    assert main(["history", "override", session[:8], "--reason", "the clock was\nlocked", "--by", "a maintainer"]) == 0
    assert main(["history", "show"]) == 0
    out = capsys.readouterr().out
    assert "ended in REGRESSION: 1; verdicts called a false alarm: 1" in out
    subject = "gpt-oss-20b-shape-mxfp4-mixed-c16 on nvidia-h200-141gb"
    assert f"{session} {subject}: REGRESSION ruled false alarm by a maintainer" in out

    assert main(["history", "override", session, "--reason", "we want it", "--by", "a maintainer", "--accepted"]) == 0
    assert main(["history", "show"]) == 0
    assert "called a false alarm: 0" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["show"], "no session that fits"),
        (["show", "--since", "soon"], "'soon' is no date"),
        (["show", "--output", "x.json"], "--output: is for --format json"),
        (["show", "--store", "nonsense://x"], "--store nonsense://x: cannot be opened"),
        (["show", "--store", ""], "--store: is empty"),
        (["override", "abc", "--reason", " ", "--by", "x"], "--reason: is empty"),
        (["override", "abc", "--reason", "x", "--by", "x"], "no session that fits"),
        (["import", "nothing.txt", "--hardware", "h20"], "nothing.txt: no such file"),
        (["import", "x", "--hardware", "h20", "--pattern", "("], "is no regular expression"),
        (["import", "x", "--hardware", "h20", "--metric", "x"], "give THEIRS=OURS"),
        (["append", str(UNDECIDED), "--commit", "main"], "--commit 'main': give 7 to 40"),
    ],
)
def test_history__says_in_a_line_what_is_wrong(store, capsys, arguments, problem):
    assert main(["history", *arguments]) == 2
    assert problem in read_error(capsys)
    assert not store.exists()


class Page(HTMLParser):
    """Counts what a page draws, and collects what it loads from elsewhere."""

    def __init__(self, content):
        super().__init__()
        self.tags, self.loads, self.open = [], [], []
        self.feed(content)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.loads += [value for name, value in attrs if name in ("src", "href", "xlink:href", "style", "onload", "onclick")]


def test_show__the_dashboard_draws_every_session_and_loads_nothing(store, tmp_path):
    fill(store)

    assert main(["history", "show", "--html", str(tmp_path / "history.html")]) == 0
    content = (tmp_path / "history.html").read_text()
    page = Page(content)
    assert [place for place in page.loads if not place.startswith("#")] == ["data:,"]
    assert page.tags.count("script") == 1
    for kind in ("style", "script"):
        (own,) = re.findall(rf"<{kind}>(.*?)</{kind}>", content, flags=re.DOTALL)
        assert f"{kind}-src 'sha256-{b64encode(hashlib.sha256(own.encode()).digest()).decode()}'" in content
    assert "default-src 'none'" in content
    # Each of two charts stands there twice, for wide and for narrow screens.
    assert page.tags.count("circle") == 2 * 80
    assert (page.tags.count("figure"), page.tags.count("svg")) == (2, 4)
    assert content.count('class="rule worse"') == 4
    assert "url(" not in content
    assert main(["history", "show", "--html", str(tmp_path / "again.html")]) == 0
    assert (tmp_path / "again.html").read_bytes() == (tmp_path / "history.html").read_bytes()


@pytest.mark.usefixtures("store")
def test_show__the_dashboard_escapes_what_others_wrote(tmp_path):
    data = {"entries": {"suite": [_hostile(day) for day in range(3)]}}
    (tmp_path / "data.js").write_text("window.BENCHMARK_DATA = " + json.dumps(data))

    assert main(["history", "import", str(tmp_path / "data.js"), "--hardware", "h20"]) == 0
    assert main(["history", "show", "--html", str(tmp_path / "history.html")]) == 0
    content = (tmp_path / "history.html").read_text()
    assert content.count("<script") == content.count("<script>") == 1
    assert "<script>alert" not in content
    assert "<img" not in content
    assert "&lt;script&gt;" in content


@pytest.mark.usefixtures("store")
def test_append__the_dashboard_links_commit_pull_request_and_run(tmp_path):
    told = ["--commit", "ab" * 20, "--repository", "https://github.com/o/r", "--pull-request", "7", "--run", "42"]

    assert main(["history", "append", str(UNDECIDED), *told]) == 0
    assert main(["history", "show", "--html", str(tmp_path / "history.html")]) == 0
    content = (tmp_path / "history.html").read_text()
    for path in (f"commit/{'ab' * 20}", "pull/7", "actions/runs/42"):
        assert f'href="https://github.com/o/r/{path}"' in content


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ("--repository", "javascript:alert(1)"),
        ("--repository", "https://github.com/o"),
        ("--pull-request", "0"),
        ("--run", "x"),
    ],
)
def test_append__what_cannot_be_linked(store, capsys, option, text):
    assert main(["history", "append", str(UNDECIDED), option, text]) == 2
    assert f"{option} {text!r}: give" in read_error(capsys)
    assert not store.exists()


def test_link_places__of_a_store_that_others_wrote():
    point = SeriesPoint(
        session="s",
        at=datetime(2026, 1, 1, tzinfo=UTC),
        value=1.0,
        commit="ab" * 20,
        runner="",
        release="",
        environment={},
        repository="javascript:alert(1)",
        pull_request='7" onclick="x',
        run="42",
    )

    assert list(link_places(point)) == [("ababababa", ""), ("n/a", ""), ("42", "")]


def _hostile(day):
    bench = {"name": "<script>alert(1)</script>", "value": day + 1, "unit": '"><img src=x onerror=alert(1)>'}
    return {"commit": {"id": f"{day:040x}"}, "date": 1.7e12 + day, "tool": "cargo", "benches": [bench]}


def test_compact__says_how_many_files_there_were(store, capsys):
    for day in range(3):
        Store(str(store)).append([make_entry(day, 1000.0 + day)])

    assert main(["history", "compact"]) == 0
    assert capsys.readouterr().out == f"{store}: 6 files, now 2\n"


def test_history__without_the_extra_names_it_and_help_works():
    code = """
import importlib.util, sys
known = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name in ("duckdb", "otava", "pyarrow") else known(name, *rest)
sys.modules |= dict.fromkeys(("duckdb", "otava", "pyarrow"))
from perfgate.cli import main
main(["history", "show", "--help"])
sys.exit(main(["history", "show", "--store", "x"]))
"""

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert done.returncode == 2
    assert done.stderr == (
        "perfgate: perfgate history needs duckdb, otava, pyarrow: pip install '.[history]' in perfgate's checkout"
        " (beside the CPU engine as docs/how-to/history.md says)\n"
    )

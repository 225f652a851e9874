"""Pages of every outcome and folder: what they say, what they escape, and that they fetch nothing. No browser is needed."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from base64 import b64encode
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from perfgate.check import Case, judge
from perfgate.cli import main
from perfgate.core import Arm, Role
from perfgate.report.html.arms import group_arguments, tabulate_arguments, tabulate_differences
from perfgate.report.html.distributions import pick_quantile, tabulate_quantiles
from perfgate.report.html.files import RawData
from perfgate.report.html.places import WindowUse, pick_evidence, place_windows
from perfgate.report.html.verdict_parts import draw_forest, draw_strip
from perfgate.results.readings import KV_CAPACITY
from perfgate.results.records import read_record
from tests.fakes import folders
from tests.fakes.recorded import EQUAL, UNDECIDED
from tests.fakes.sessions import change_window, make_baseline, make_scenario, make_session, write_folder
from tests.fakes.verdicts import p99

VOID = {"meta", "link", "img", "br", "input"}


class Reader(HTMLParser):
    """Collect tags with their attributes, and check that every tag is closed."""

    def __init__(self):
        super().__init__()
        self.tags, self.open = [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def read(html):
    reader = Reader()
    reader.feed(html)
    reader.close()
    assert reader.open == []
    return reader.tags


@pytest.fixture
def write(tmp_path, capsys):
    """Write the page of a folder, and return it."""

    def write(folder, *options):
        code = main(["report", str(folder), "--html", str(tmp_path / "page.html"), *map(str, options)])
        assert (code, capsys.readouterr().out) == (0, "")
        return (tmp_path / "page.html").read_text(encoding="utf-8")

    return write


LATENCIES = ("itl", "itl-difference", "ttft", "ttft-difference")


@pytest.mark.parametrize(
    ("make", "title", "figures"),
    [
        (folders.write_profiled, "REGRESSION", {"verdict", "timeline", *LATENCIES, "attribution"}),
        (folders.write_faster, "IMPROVED", {"verdict", "timeline"}),
        (folders.write_failed, "INVALID", {"timeline"}),
        (lambda _: UNDECIDED, "INCONCLUSIVE", {"verdict", "timeline", *LATENCIES}),
        (lambda _: EQUAL, "PASS", {"verdict", "timeline", *LATENCIES}),
        (folders.write_matrix, "Matrix", {"servers", "rounds"}),
        (lambda path: folders.write_timings(path, slower=0.05), "REGRESSION", {"layers-1"}),
        (folders.write_timings, "PASS", {"layers-1"}),
        (lambda _: folders.SURVEY, "MoE layers", {"layers-1"}),
    ],
)
def test_report__every_kind_and_outcome(write, tmp_path, make, title, figures):
    html = write(make(tmp_path / "folder"))
    tags = read(html)

    assert re.search(r"<title>(.*)</title>", html)[1].startswith(title)
    assert {attrs["id"] for tag, attrs in tags if tag == "figure"} == figures
    assert sum("mark" in attrs.get("class", "").split() for _, attrs in tags) > 4
    levels = [int(tag[1]) for tag, _ in tags if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in pairwise(levels)), "a heading skips a level"
    assert len(html.encode()) < 1_000_000


def test_report__says_the_answer_and_shows_each_metric(write, tmp_path):
    html = write(folders.write_profiled(tmp_path / "folder"))
    text = re.sub(r"<[^>]+>", " ", html).replace("\N{NO-BREAK SPACE}", " ")

    for words in ("Output throughput", "-5.3 %", "1,595.8 tok/s", "PERFGATE_INJECT", "gpu:15", "fused_moe_kernel", "+118.0 us"):
        assert words in text
    assert f"perfgate check {tmp_path / 'folder'}" in text


def test_report__a_matrix_says_first_which_server_is_the_best(write, tmp_path):
    html = write(folders.write_matrix(tmp_path / "folder"))
    text = re.sub(r"<[^>]+>", " ", html).replace("\N{NO-BREAK SPACE}", " ")

    assert "highest throughput: plain under 1 of 2 loads; levels of 2 servers, without a verdict" in text
    assert "closed: plain has the highest throughput, " in text
    assert text.count("a difference smaller than that between starts means nothing") == 1


def test_report__counters_that_the_scenario_can_move(write, tmp_path):
    session = make_session(make_scenario())
    levels = {Arm.BASE: 65536.0, Arm.CANDIDATE: 60000.0}
    windows = tuple(replace(one, telemetry={KV_CAPACITY: levels[one.arm]}) for one in session.windows)
    html = write(write_folder(tmp_path / "folder", replace(session, windows=windows)))
    section = html.partition('id="counters"')[2].partition("<section")[0]
    rows = re.sub(r"<[^>]+>", " ", section).replace("\N{NO-BREAK SPACE}", " ")

    assert re.search(r"KV capacity\s+65,536 tokens\s+60,000 tokens\s+-8.4 %\s+-1.0 %\s+lost", rows)
    assert re.search(r"Accept length\s+not reported\s+not reported\s+-2.0 %\s+not known: no window reports it", rows)
    assert 'id="counters"' not in write(write_folder(tmp_path / "untold", session))


def test_report__layers_beside_a_session(write):
    html = write(EQUAL, "--layers", folders.SURVEY)

    assert 'id="layers-1"' in html
    assert "share of the roofline reached" in html


def test_report__fetches_nothing_and_runs_its_own_script_alone(write, tmp_path):
    html = write(folders.write_profiled(tmp_path / "folder"))
    tags = read(html)
    style = re.search(r"<style>(.*)</style>", html, flags=re.DOTALL)[1]
    scripts = re.findall(r"<script>(.*?)</script>", html, flags=re.DOTALL)
    policy = next(attrs["content"] for tag, attrs in tags if attrs.get("http-equiv") == "Content-Security-Policy")

    assert [attrs for tag, attrs in tags if tag == "script"] == [{}]
    assert not {tag for tag, _ in tags} & {"img", "iframe", "object", "embed", "base", "form", "video", "audio"}
    assert not [name for _, attrs in tags for name in attrs if name.startswith("on") or name in {"src", "srcset", "style"}]
    assert "url(" not in style
    assert "@import" not in style
    for kind, text in (("style", style), ("script", *scripts)):
        assert f"{kind}-src 'sha256-{b64encode(hashlib.sha256(text.encode()).digest()).decode()}';" in policy
    assert policy.startswith("default-src 'none'")
    assert all(re.match(r"(#|\./|data:,$)", attrs["href"]) for _, attrs in tags if "href" in attrs)


def test_report__links_lead_to_the_raw_files(write, tmp_path):
    tags = read(write(folders.write_profiled(tmp_path / "folder")))
    links = [attrs["href"] for _, attrs in tags if attrs.get("href", "").startswith("./")]

    assert len(links) > 20
    assert all((tmp_path / link).is_file() for link in links)


def test_report__same_folder_same_bytes(write):
    assert write(UNDECIDED) == write(UNDECIDED)


@pytest.mark.parametrize("make", [folders.write_hostile, folders.write_matrix, folders.write_timings])
def test_report__hostile_text_stays_text(write, tmp_path, make):
    html = write(make(tmp_path / "folder"))
    tags = read(html)

    assert "alert(" in html
    assert [tag for tag, _ in tags if tag in {"script", "img"}] == ["script"]
    assert not [name for _, attrs in tags for name in attrs if name.startswith("on")]
    assert html.count("<style>") == html.count("</style>") == 1
    assert "\u202e" not in html


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda folder: (folder / "windows" / "0005.jsonl.gz").write_bytes(b"torn"), "does not match its digest"),
        (lambda folder: (folder / "windows.jsonl").write_bytes((folder / "windows.jsonl").read_bytes()[:-40]), None),
        (lambda folder: shutil.rmtree(folder / "windows"), "is missing although the index names it"),
    ],
)
def test_report__of_a_torn_folder(write, tmp_path, damage, words):
    folder = folders.write_profiled(tmp_path / "folder")
    damage(folder)
    html = write(folder)

    assert words is None or "INVALID" in html
    assert (words or "figure") in html


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["{tmp}/nowhere", "--html", "{tmp}/page.html"], "no such result folder"),
        (["{tmp}", "--html", "{tmp}/page.html"], "holds no session.json"),
        (["{pass}", "--html", "{tmp}/no/page.html"], "--html {tmp}/no/page.html: cannot be written"),
        (["{pass}", "--layers", "{tmp}"], "--layers: only a page shows timings of layers"),
        (["{pass}", "--layers", "{tmp}", "--html", "{tmp}/page.html"], "holds no timings of layers"),
        (["{survey}", "--layers", "{survey}", "--html", "{tmp}/page.html"], "holds no session"),
        (["{bad}", "--html", "{tmp}/page.html"], "cells.0.tokens: Input should be greater than or equal to 1"),
        (["{broken}", "--html", "{tmp}/page.html"], "not valid JSON"),
    ],
)
def test_report__what_cannot_be_shown_is_one_line(tmp_path, capsys, arguments, words):
    (tmp_path / "logs").mkdir()
    bad, broken = tmp_path / "logs" / "bad.json", tmp_path / "logs" / "broken.json"
    places = {"tmp": tmp_path, "pass": EQUAL, "survey": folders.SURVEY, "bad": bad, "broken": broken}
    if "{bad}" in arguments:
        bad.write_text('{"cells": [{"shape": "x", "tokens": 0, "samples_us": {"a": [1.0]}}]}')
    if "{broken}" in arguments:
        broken.write_text("{")
    code = main(["report", *(word.format(**places) for word in arguments)])

    captured = capsys.readouterr()
    assert (code, captured.out) == (2, "")
    assert words.format(**places) in captured.err
    assert captured.err.count("\n") == 1
    assert not (tmp_path / "page.html").exists()


@pytest.mark.parametrize(
    ("session", "words"),
    [
        (make_session(make_scenario(), arms=(Arm.CANDIDATE,)), "One arm was measured"),
        (make_session(make_scenario(), windows=()), "no window finished"),
        (replace(make_session(make_scenario()), windows=make_session(make_scenario()).windows[:1]), "timeline"),
    ],
    ids=["candidate alone", "nothing", "one window"],
)
def test_report__of_less_than_a_comparison(write, tmp_path, session, words):
    assert words in write(write_folder(tmp_path / "folder", session))


@pytest.mark.parametrize("seed", range(6))
def test_report__absurd_numbers_are_drawn_at_the_edge(write, tmp_path, seed):
    html = write(folders.write_absurd(tmp_path / "folder", seed))

    assert "INVALID" in html
    assert not re.search(r'="[^"]*\b(nan|inf)\b', html)


def test_report__with_output_writes_both(write, tmp_path):
    write(EQUAL, "--output", tmp_path / "comment.md")

    assert "PASS" in (tmp_path / "comment.md").read_text().splitlines()[0]


def test_place_windows__knows_cold_judged_and_left_out():
    scenario = make_scenario()
    session = make_session(scenario, worse=0.08, blocks=3)
    baseline = make_baseline(scenario)
    verdict = judge(session, scenario, baseline)
    placed = place_windows(Case(session=session, scenario=scenario, baseline=baseline, verdict=verdict))

    assert verdict.blocks == 2
    assert {one.use for one in placed if one.window.block == 3} == {WindowUse.COLD, WindowUse.UNUSED}
    assert {one.use for one in placed if one.window.role is Role.WARMUP} == {WindowUse.COLD}
    assert sum(one.use is WindowUse.JUDGED for one in placed) == verdict.windows
    assert [one.number for one in placed] == list(range(1, len(placed) + 1))


def test_place_windows__of_nothing_judged_shows_what_was_measured():
    scenario = make_scenario()
    session = change_window(make_session(scenario), 3, completed=1)
    verdict = judge(session, scenario, None)
    placed = place_windows(Case(session=session, scenario=scenario, baseline=None, verdict=verdict))

    assert {one.use for one in pick_evidence(placed)} == {WindowUse.UNUSED}


def test_pick_quantile__is_the_smallest_value_that_covers_the_share():
    values = np.arange(1.0, 101.0)

    assert [pick_quantile(values, share) for share in (0.0, 0.5, 0.99, 0.999, 1.0)] == [1, 50, 99, 100, 100]


def test_tabulate_quantiles__says_nothing_that_the_samples_do_not_show():
    table = tabulate_quantiles({Arm.BASE: np.full(200, 2.0), Arm.CANDIDATE: np.full(200, 3.0)})

    assert [row[0] for row in table.rows] == ["P50", "P90", "P95", "slowest"]
    assert table.rows[0] == ("P50", "2.00", "3.00", "+50.0 %")


def test_group_arguments__keeps_all_words_of_an_option():
    argv = ("python", "-m", "server", "--sizes", "1", "2", "--flag", "--name=a b", "--name", "c")

    assert group_arguments(argv) == {"program": "python -m server", "--sizes": "1 2", "--flag": "on", "--name": "'a b' c"}


def test_link__cannot_become_a_scheme(tmp_path, monkeypatch):
    folder = tmp_path / "javascript:alert(1)"
    folder.mkdir()
    monkeypatch.chdir(tmp_path)
    link = RawData(folder=Path(folder.name), home=Path()).link('a"b#c?.log')

    assert link == "./javascript%3Aalert%281%29/a%22b%23c%3F.log"
    assert os.sep not in link.removeprefix("./").replace("/a%22", "")


def build_record(folder, **changes):
    record = read_record(write_folder(folder, make_session(make_scenario())))
    candidate = replace(record.arms[Arm.CANDIDATE], env={"SGLANG_X": "2"})
    return replace(record, arms={**record.arms, Arm.CANDIDATE: candidate}, **changes)


def test_tabulate_differences__what_the_base_inherits(tmp_path):
    record = build_record(tmp_path / "out", inherited={"SGLANG_X": "1", "OMP_NUM_THREADS": "4"})

    assert tabulate_differences(record).rows == [("variable SGLANG_X", "1 (inherited)", "2")]
    assert tabulate_arguments(record).rows == [
        ("variable SGLANG_X", "1 (inherited)", "2"),
        ("variable OMP_NUM_THREADS", "4 (inherited)", "4 (inherited)"),
    ]


def test_tabulate_differences__folder_from_before_inherited_variables_were_kept(tmp_path):
    record = build_record(tmp_path / "out")

    assert record.inherited is None
    assert tabulate_arguments(record).rows == [("variable SGLANG_X", "not set", "2")]


def test_draw_forest__a_long_gain_leaves_a_phone_no_room_for_the_margin_s_name():
    shown = {
        change: [
            "margin" in [shape.text for shape in drawing.shapes] for drawing in draw_forest([p99(change, margin=0.1)]).drawings
        ]
        for change in (-0.01, -0.4)
    }

    assert shown == {-0.01: [True, True], -0.4: [True, False]}


@pytest.mark.parametrize(("fails_from", "label"), [(0.25, []), (0.9, []), (2.0, ["fails from +200.0 %"])])
def test_draw_forest__the_line_beyond_the_axis_is_an_arrow_with_its_number(fails_from, label):
    for drawing in draw_forest([replace(p99(0.05, margin=0.1), fails_from=fails_from)]).drawings:
        limits = [shape for shape in drawing.shapes if shape.hint.startswith("fails from")]

        assert [shape.tag for shape in limits] == ["path" if label else "line"]
        told = [shape.text for shape in drawing.shapes if shape.text.startswith("fails from")]
        assert told == [f"fails from {fails_from:+.1%}, margin +10.0 %".replace("%,", " %,"), *label]


def test_draw_forest__each_row_tells_its_limits_in_the_reader_s_sense():
    """A loss of throughput is a fall; where no line is known the margin stands alone."""
    known = replace(p99(0.05, margin=0.25), metric="output_tok_per_s", fails_from=0.6)
    for drawing in draw_forest([known, replace(p99(0.05, margin=0.1), fails_from=None)]).drawings:
        told = [shape for shape in drawing.shapes if "margin " in shape.text]

        assert [shape.text for shape in told] == ["fails from -37.5 %, margin -20.0 %", "margin +10.0 %"]
        assert len({shape.at["x"] for shape in told}) == 1


@pytest.mark.parametrize(("fails_from", "tag"), [(0.25, "line"), (0.6, "path")])
def test_draw_strip__the_line_beyond_the_scale_is_an_arrow(fails_from, tag):
    judgement = replace(p99(0.05, margin=0.1), fails_from=fails_from)

    (limit,) = (shape for shape in draw_strip(judgement, (0.0, 0.05, 0.1)).shapes if shape.hint.startswith("fails from"))

    assert limit.tag == tag

"""Golden reports, and what a stranger must be able to read from each.

Refresh them after an intended change with `PERFGATE_REFRESH_GOLDEN=1 pytest tests/unit/test_render.py`, then read the diff.
"""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from perfgate.core import Arm, Fingerprint, Judgement, Outcome, Role, Run, Session, Timing, Verdict, Window
from perfgate.report.render import render_markdown, render_text
from perfgate.scenario import parse_scenario

GOLDEN = Path(__file__).parents[1] / "golden"
HOSTILE = (
    "</details><script>x</script>",
    "<!-- hidden",
    "&lt;b&gt; &amp;",
    "`a` ``b`` ``` c",
    "a | b \\| c",
    "a\n# b\n- c",
    "# heading",
    "- item",
    "+ item",
    "* item",
    "12. item",
    "12) item",
    "--- ",
    "===",
    "> quote",
    "[text](http://e.example) ![image](x)",
    "[label]: http://e.example",
    "*a* **b** _c_ __d__ ~~e~~",
    "trailing backslash \\",
    "\x1b[2J\u202etxt",
)

SCENARIO = parse_scenario(
    """
    schema = 1
    name = "cpu-moe"
    title = "Tiny Qwen3-MoE on the CPU"
    model = {path = "generated:tiny-qwen3-moe", architecture = "Qwen3MoeForCausalLM", experts = 8, top_k = 2, layers = 4, \
weights = "random"}
    server = {engine = "sglang-cpu"}
    load = {num_prompts = 48, input_len = 32, output_len = 32, max_concurrency = 4}
    [gates]
    output_tok_per_s = {margin = 0.25}
    p99_itl_ms = {margin = 0.5}
    median_itl_ms = {margin = 0.25}
    mean_ttft_ms = {margin = 0.4, advisory = true}
    """,
    "scenario.toml",
)
GPU_SCENARIO = replace(
    SCENARIO, name="moe-decode", title="gpt-oss-20b, decode-bound", model=replace(SCENARIO.model, weights="checkpoint")
)
CPU_FACTS = {
    "hardware": "cpu-intel-xeon-2.50ghz-2c",
    "cpu": "Intel(R) Xeon(R)",
    "cores": "2",
    "gpu": "absent",
    "sglang": "0.5.15",
}
GPU_FACTS = {"hardware": "nvidia-h200-141gb", "gpu": "NVIDIA H200", "driver": "580.159", "cuda": "13.0", "sglang": "0.5.16"}
POLICY = {"alpha": 0.01, "looks": "2, 3, 4", "scenarios": 1}


def make_window(arm=Arm.BASE, role=Role.MEASURED, begun_s=0.0):
    run = Run(
        source="0001.jsonl",
        values={},
        workload={},
        requested=48,
        completed=48,
        input_tokens=1536,
        output_tokens=1536,
        duration_s=20.0,
    )
    return Window(run=run, arm=arm, block=1, start=1, index=0, role=role, begun_s=begun_s, ended_s=begun_s + 20.0)


def make_session(facts, candidate_facts=None, scenario="cpu-moe"):
    windows = [make_window(role=Role.WARMUP)] * 4 + [make_window(), make_window(Arm.CANDIDATE)] * 6
    return Session(
        source="results/2026-11-20-1",
        scenario=scenario,
        workload_hash="0123456789ab",
        fingerprints={Arm.BASE: Fingerprint(facts=facts), Arm.CANDIDATE: Fingerprint(facts=facts | (candidate_facts or {}))},
        windows=tuple(windows),
        timing=Timing(took_s=600.0, starting_s=180.0, warming_s=80.0, measuring_s=240.0),
    )


def judge(metric, base, change, half_width, margin, *, outcome=Outcome.PASS, sign=1.0, **more):
    """Make a judgement whose interval is symmetric around `change`; `sign` is -1 where higher is better."""
    numbers = {
        "base": base,
        "candidate": base * (1 + change),
        "change": change,
        "low": change - half_width,
        "high": change + half_width,
        "worse": sign * change,
        "band": 0.04,
        "smallest_effect": half_width * 1.5,
        "gating": True,
    }
    return Judgement(metric=metric, outcome=outcome, margin=margin, **numbers | more)


def make_verdict(outcome, judgements, **more):
    fields = {
        "scenario": "cpu-moe",
        "hardware": "cpu-intel-xeon-2.50ghz-2c",
        "reasons": (),
        "warnings": (),
        "advisory": False,
        "blocks": 2,
        "windows": 12,
        "policy": POLICY,
    }
    return Verdict(outcome=outcome, judgements=tuple(judgements), **fields | more)


def throughput(change, half_width=0.03, margin=0.25, **more):
    return judge("output_tok_per_s", 321.4, change, half_width, margin, sign=-1.0, **more)


def p99(change, half_width=0.08, margin=0.5, **more):
    return judge("p99_itl_ms", 19.02, change, half_width, margin, **more)


def median(change, half_width=0.03, margin=0.25, **more):
    return judge("median_itl_ms", 11.13, change, half_width, margin, **more)


def ttft(change, half_width=0.1, **more):
    note = "mean TTFT is shown only: the scenario says advisory"
    return judge("mean_ttft_ms", 31.0, change, half_width, 0.4, gating=False, notes=(note,), **more)


def unjudged(metric, margin):
    none = dict.fromkeys(("base", "candidate", "change", "low", "high", "worse"))
    return Judgement(metric=metric, outcome=Outcome.INVALID, gating=True, margin=margin, **none)


def case_pass():
    verdict = make_verdict(Outcome.PASS, [ttft(0.05), median(-0.004), p99(0.021), throughput(0.004)])
    return verdict, make_session(CPU_FACTS), SCENARIO, object()


def case_improved():
    judgements = [throughput(0.082, 0.006, 0.03), p99(-0.061, 0.016, 0.1), median(-0.075, 0.004, 0.03)]
    judgements = [replace(item, outcome=Outcome.IMPROVED) for item in judgements]
    verdict = make_verdict(Outcome.IMPROVED, judgements, scenario="moe-decode", hardware="nvidia-h200-141gb")
    return verdict, make_session(GPU_FACTS, {"sglang": "0.5.17.dev3"}, "moe-decode"), GPU_SCENARIO, object()


def case_regression():
    verdict = make_verdict(
        Outcome.REGRESSION,
        [
            throughput(-0.011, 0.009, 0.03),
            p99(0.022, 0.03, 0.1),
            median(0.048, 0.006, 0.03, outcome=Outcome.REGRESSION, p_value=0.0001),
        ],
        reasons=("median ITL rose by 4.8 %, more than half its margin of 3 %, and Holm rejects it at alpha 0.0025",),
        warnings=("one window of the base was run again after a stall of 1.2 s",),
        scenario="moe-decode",
        hardware="nvidia-h200-141gb",
        blocks=3,
        windows=18,
    )
    return verdict, make_session(GPU_FACTS, {"sglang": "0.5.17.dev3"}, "moe-decode"), GPU_SCENARIO, object()


def case_inconclusive():
    doubt = Outcome.INCONCLUSIVE
    verdict = make_verdict(
        doubt,
        [throughput(-0.11, 0.19, outcome=doubt), p99(0.27, 0.41, outcome=doubt), median(0.06, 0.12)],
        reasons=("output throughput may be up to 30 % lower, which is beyond its limit, and may be unchanged",),
        blocks=4,
        windows=24,
    )
    return verdict, make_session(CPU_FACTS), SCENARIO, object()


def case_invalid():
    reason = "candidate, block 1, window 2: 47 of 48 requests completed; see logs/candidate-1.log and measure again"
    verdict = make_verdict(
        Outcome.INVALID,
        [unjudged("output_tok_per_s", 0.25), unjudged("p99_itl_ms", 0.5)],
        reasons=(reason,),
        blocks=0,
        windows=0,
    )
    return verdict, make_session(CPU_FACTS), SCENARIO, None


def case_calibrating():
    warning = "calibrating: 4 of 20 A/A blocks are stored for this machine"
    judgements = [replace(item, band=None) for item in (throughput(-0.012), p99(0.033))]
    verdict = make_verdict(Outcome.PASS, judgements, warnings=(warning,), advisory=True)
    return verdict, make_session(CPU_FACTS), SCENARIO, None


CASES = {
    "pass": case_pass,
    "improved": case_improved,
    "regression": case_regression,
    "inconclusive": case_inconclusive,
    "invalid": case_invalid,
    "calibrating": case_calibrating,
}


@pytest.mark.parametrize("suffix", ["md", "txt"])
@pytest.mark.parametrize("name", CASES)
def test_render__matches_the_golden_file(name, suffix):
    render = render_markdown if suffix == "md" else render_text
    path = GOLDEN / f"{name}.{suffix}"

    rendered = render(*CASES[name]())
    if os.environ.get("PERFGATE_REFRESH_GOLDEN"):
        path.write_text(rendered, encoding="utf-8")

    assert path.read_text(encoding="utf-8") == rendered


# What a stranger asks, and the words that answer: did it get slower, by how much, how sure, where, what now.
ANSWERS = {
    "pass": (
        "PASS: not slower",
        "Output throughput +0.4 % (limit -20.0 %)",
        "2 blocks of fresh servers, 12 judged windows",
        "`cpu-intel-xeon-2.50ghz-2c`",
        "nothing stands in the way of a merge",
    ),
    "improved": (
        "IMPROVED: faster",
        "P99 ITL -6.1 % (limit +10.0 %)",
        "at most 1 % of unchanged builds",
        "`nvidia-h200-141gb`",
        "perfgate baseline add results/2026-11-20-1",
    ),
    "regression": (
        "REGRESSION: slower in Median ITL.",
        "Median ITL +4.8 % (limit +3.0 %)",
        "10.0 GPU-minutes: 40 % measuring",
        "`moe-decode`",
        "--accept-slower",
    ),
    "inconclusive": (
        "INCONCLUSIVE: too little evidence",
        "P99 ITL +27.0 % (limit +50.0 %)",
        "Smallest loss that this run finds 9 times in 10:** Output throughput -22.2 %",
        "CPU result: it tests plumbing and relative change, not GPU speed.",
        "perfgate power --scenario cpu-moe",
    ),
    "invalid": (
        "INVALID: the measurement cannot be trusted",
        "47 of 48 requests completed",
        "0 blocks",
        "candidate, block 1, window 2",
        "then measure again",
    ),
    "calibrating": (
        "PASS (advisory)",
        "Output throughput -1.2 %",
        "4 of 20 A/A blocks are stored",
        "No baseline is stored for this machine",
        "too few A/A blocks are stored for this machine",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_render_markdown__answers_a_stranger(name):
    comment = (GOLDEN / f"{name}.md").read_text(encoding="utf-8")

    assert [words for words in ANSWERS[name] if words not in comment] == []


@pytest.mark.parametrize("name", CASES)
def test_render_markdown__first_line_is_the_verdict_with_its_numbers(name):
    verdict, *rest = CASES[name]()

    first = render_markdown(verdict, *rest).splitlines()[0]

    assert verdict.outcome.value in first
    assert verdict.outcome is Outcome.INVALID or ("Output throughput" in first and "P99 ITL" in first)


def test_render_markdown__says_random_weights_and_cpu_only_where_they_are():
    cpu, gpu = render_markdown(*case_pass()), render_markdown(*case_improved())

    assert ("random weights" in cpu, "not GPU speed" in cpu) == (True, True)
    assert ("random weights" in gpu, "not GPU speed" in gpu) == (False, False)


def shape(comment):
    """Reduce markdown to what a reader's browser makes of it: its tokens, with the text left out and the HTML kept."""
    tokens = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).parse(comment)
    inner = [child for token in tokens for child in [token, *(token.children or ())]]
    return [(token.type, token.content if token.type.startswith("html") else "") for token in inner if "text" not in token.type]


@pytest.mark.parametrize("name", CASES)
def test_render_markdown__table_rows_have_as_many_cells_as_the_header(name):
    kinds = [kind for kind, _ in shape(render_markdown(*CASES[name]()))]

    tables = "".join({"table_open": "T", "tr_open": "R", "th_open": "h", "td_open": "d"}.get(kind, "") for kind in kinds)

    for table in tables.split("T")[1:]:
        assert {len(row) for row in table.split("R")[1:]} == {table.split("R")[1].count("h")}


def with_outside_text(text):
    verdict, _, scenario, baseline = case_regression()
    notes = tuple(replace(item, notes=(text,)) for item in verdict.judgements)
    verdict = replace(verdict, judgements=notes, reasons=(text, text), warnings=(text,), policy={text: text}, scenario=text)
    session = replace(make_session(GPU_FACTS, {"sglang": text, text: text}), source=text, scenario=text)
    return render_markdown(verdict, session, replace(scenario, title=text), baseline)


@pytest.mark.parametrize("text", HOSTILE)
def test_render_markdown__hostile_text_changes_nothing_around_it(text):
    benign, comment = with_outside_text("a plain value"), with_outside_text(text)

    assert shape(benign) == shape(comment)


@pytest.mark.parametrize("text", ["@team", "see #12", "http://e.example", "www.e.example", "HTTPS://e.example"])
def test_render_markdown__outside_text_notifies_nobody_and_links_nowhere(text):
    comment = with_outside_text(f"value {text}")

    prose = re.sub(r"```.*?```|`[^`\n]*`", "", comment, flags=re.DOTALL)
    assert re.findall(r"@\w|#\d|://e|www\.e", prose) == []


def test_render_text__hostile_text_cannot_drive_the_terminal():
    verdict, session, scenario, baseline = case_regression()
    hostile = "\x1b[2J\x9b0m\r\n# c\x07"

    text = render_text(replace(verdict, reasons=(hostile,)), replace(session, source=hostile), scenario, baseline)

    assert re.findall(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", text) == []
    assert "\n# c" not in text


def test_render_markdown__thousand_reasons_fit_into_a_comment():
    verdict, *rest = case_invalid()

    comment = render_markdown(replace(verdict, reasons=tuple(f"reason {n} {'x' * 500}" for n in range(1000))), *rest)

    assert "and 988 more of the kind" in comment
    assert len(comment) < 60_000


def test_render_text__says_in_what_the_arms_differ():
    text = render_text(*case_regression())

    assert "arms differ in sglang: 0.5.16 (base), 0.5.17.dev3 (candidate)" in text


def test_render_text__session_without_windows_or_fingerprints():
    verdict, session, scenario, _ = case_invalid()
    empty = replace(session, windows=(), fingerprints={})

    text = render_text(replace(verdict, judgements=(), reasons=("the server never became ready",)), empty, scenario, None)

    assert "no window finished" in text
    assert text.startswith("INVALID")


def test_render__candidate_alone_is_held_against_the_stored_base():
    verdict, session, scenario, baseline = case_pass()
    alone = replace(session, fingerprints={Arm.CANDIDATE: session.fingerprints[Arm.CANDIDATE]})

    text, comment = (render(verdict, alone, scenario, baseline) for render in (render_text, render_markdown))

    assert "the candidate alone against stored noise" in text
    assert "arms differ" not in text
    assert "| metric | stored base | candidate |" in comment
    assert "| sglang | not measured | same |" not in comment

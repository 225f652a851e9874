"""Verdicts of every outcome, as the golden reports show them."""

from __future__ import annotations

from dataclasses import replace

from perfgate.core import Arm, Fingerprint, Judgement, Outcome, Role, Run, Verdict, Window
from perfgate.evidence import Session, Timing
from perfgate.github.comment.reproduction import Reproduction
from perfgate.github.comment.sections import build_section, find_room, find_words
from perfgate.github.comment.states import find_state
from perfgate.github.handoff.subject import HandoffSubject
from perfgate.report.comment import build_comment
from perfgate.report.render import ReportedCase
from perfgate.results.profiling.attribution import Attribution, KernelDifference
from perfgate.results.records import ArmRecord, SessionRecord, list_options
from perfgate.scenario.schema import parse_scenario
from perfgate_moe.proof.values import Build, Exam, KernelFinding, KernelProof

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
POLICY = {"aa_blocks": 4, "alpha": 0.01, "looks": "2, 3, 4", "scenarios": 1}
LINK = "https://github.com/o/r/actions/runs/11"


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


def make_options(*, is_handed_over=False):
    """What a result folder would say sets two builds apart, with their paths or without."""
    arms = {
        arm: ArmRecord(
            label=arm.value,
            python=f"/opt/{arm.value}/bin/python",
            argv=() if is_handed_over else (f"/opt/{arm.value}/bin/python", "-m", "sglang.launch_server"),
            env={},
            facts={},
        )
        for arm in Arm
    }
    fields = {"perfgate": "test", "scenario": "unit", "workload_hash": "0123456789ab", "begun_utc": "2026-11-20T10:00:00Z"}
    return list_options(SessionRecord(schema=1, purpose="ab", arms=arms, model={}, **fields))


def make_session(facts, candidate_facts=None, scenario="cpu-moe"):
    windows = [make_window(role=Role.WARMUP)] * 4 + [make_window(), make_window(Arm.CANDIDATE)] * 6
    return Session(
        source="results/2026-11-20-1",
        scenario=scenario,
        workload_hash="0123456789ab",
        fingerprints={Arm.BASE: Fingerprint(facts=facts), Arm.CANDIDATE: Fingerprint(facts=facts | (candidate_facts or {}))},
        windows=tuple(windows),
        timing=Timing(took_s=600.0, starting_s=180.0, warming_s=80.0, measuring_s=240.0),
        reproduce=(scenario, *make_options()),
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
        "smallest_effect": half_width * 1.5 + margin / 2,
        "fails_from": max(margin / 2, half_width),
        "excluded": sign * change + half_width * 1.3,
        "gating": True,
    }
    return Judgement(metric=metric, outcome=outcome, margin_ratio=margin, **numbers | more)


def make_verdict(outcome, judgements, **more):
    fields = {
        "scenario": "cpu-moe",
        "hardware": "cpu-intel-xeon-2.50ghz-2c",
        "reasons": (),
        "warnings": (),
        "uncalibrated": False,
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
    note = "mean TTFT is shown only: the scenario asks for that (advisory = true)"
    return judge("mean_ttft_ms", 31.0, change, half_width, 0.4, gating=False, notes=(note,), **more)


def unjudged(metric, margin):
    none = dict.fromkeys(("base", "candidate", "change", "low", "high", "worse"))
    return Judgement(metric=metric, outcome=Outcome.INVALID, gating=True, margin_ratio=margin, **none)


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
        reasons=("Median ITL is worse by 4.8 %: it fails from 1.5 %, surely above zero and more than half its margin",),
        warnings=("one window of the base was run again after a stall of 1.2 s",),
        scenario="moe-decode",
        hardware="nvidia-h200-141gb",
        blocks=3,
        windows=18,
    )
    return verdict, make_session(GPU_FACTS, {"sglang": "0.5.17.dev3"}, "moe-decode"), GPU_SCENARIO, object()


def case_inconclusive():
    undecided = Outcome.INCONCLUSIVE
    verdict = make_verdict(
        undecided,
        [throughput(-0.11, 0.19, outcome=undecided), p99(0.27, 0.41, outcome=undecided), median(0.06, 0.12)],
        reasons=("output throughput may be up to 30 % lower, which is beyond its limit, and may be unchanged",),
        blocks=4,
        windows=24,
    )
    return verdict, make_session(CPU_FACTS), SCENARIO, object()


def case_invalid():
    reason = "candidate, block 1, window 2: 47 of 48 requests completed; read the server's log, then measure again"
    verdict = make_verdict(
        Outcome.INVALID,
        [unjudged("output_tok_per_s", 0.25), unjudged("p99_itl_ms", 0.5)],
        reasons=(reason,),
        blocks=0,
        windows=0,
    )
    return verdict, make_session(CPU_FACTS), SCENARIO, None


def case_calibrating():
    warning = "uncalibrated: 4 of the 20 A/A blocks that vouch for the rate of false alarms are stored"
    judgements = [replace(item, band=None) for item in (throughput(-0.012), p99(0.033))]
    verdict = make_verdict(Outcome.PASS, judgements, warnings=(warning,), uncalibrated=True)
    return verdict, make_session(CPU_FACTS), SCENARIO, None


def case_alone():
    """A candidate that was measured without a base, and is within what is stored."""
    verdict = make_verdict(Outcome.PASS, [throughput(-0.004), p99(0.01)], blocks=1, windows=3)
    session = make_session(CPU_FACTS)
    alone = {Arm.CANDIDATE: session.fingerprints[Arm.CANDIDATE]}
    return verdict, replace(session, fingerprints=alone, reproduce=session.reproduce[:1]), SCENARIO, object()


def make_part(name, base_us=30.0, candidate_us=36.0, share=0.5, **counts):
    calls = {"base_count": 2.0, "candidate_count": 2.0, **counts}
    return KernelDifference(name=name, base_us=base_us, candidate_us=candidate_us, share=share, **calls)


def make_attribution(*parts, kind="kernel", rest_us=0.0):
    base, candidate = sum(part.base_us for part in parts) + rest_us, sum(part.candidate_us for part in parts) + rest_us
    return Attribution(kind=kind, parts=parts, base_us=base, candidate_us=candidate)


def make_layers(*changes, outcome=Outcome.REGRESSION):
    """A verdict on layers, one for each change."""
    judgements = tuple(
        Judgement(
            metric=f"gpt-oss-20b M={4**place}",
            outcome=Outcome.REGRESSION if change > 0.01 else Outcome.PASS,
            gating=True,
            base=100.0,
            candidate=100.0 * (1 + change),
            change=change,
            low=change - 0.002,
            high=change + 0.002,
            worse=change,
            margin_ratio=0.02,
            fails_from=0.01,
        )
        for place, change in enumerate(changes)
    )
    fields = {"scenario": "MoE layers, ours against sglang", "hardware": "NVIDIA H200", "blocks": 4, "windows": 800}
    return make_verdict(outcome, judgements, reasons=("a layer is slower",), **fields)


CASES = {
    "pass": case_pass,
    "improved": case_improved,
    "regression": case_regression,
    "inconclusive": case_inconclusive,
    "invalid": case_invalid,
    "calibrating": case_calibrating,
    "alone": case_alone,
}


KERNELS = KernelProof(
    builds=(Build(arm="candidate", arch="sm_90", kernels=30),),
    exams=(
        Exam(
            arm="candidate",
            implementation="sglang",
            sound=53,
            worst=0.92,
            left_out=tuple(KernelFinding(name=f"case {number}", problem="not covered") for number in range(77)),
        ),
    ),
)


def make_case(name, *, kernels=None, **more):
    """A case of the table as `render_comment` takes it."""
    verdict, session, scenario, baseline = CASES[name]()
    session = replace(session, kernels=kernels)
    return replace(build_case(verdict, session, scenario, baseline), link=LINK, **more)


def build_case(verdict, session, scenario, baseline):
    return ReportedCase(verdict=verdict, session=session, scenario=scenario, baseline=baseline)


def make_several():
    """Every outcome, each in a scenario of its own, as one pull request's comment."""
    several = []
    for name in CASES:
        case = make_case(name)
        several.append(rename(case, name))
    return several


def rename(case, name):
    """The same case of another scenario."""
    words = (name, *case.session.reproduce[1:])
    session = replace(case.session, scenario=name, reproduce=words)
    return replace(case, verdict=replace(case.verdict, scenario=name), session=session)


HEAD, BASE = "4f" * 20, "b5" * 20
ARTIFACT = "https://github.com/o/r/actions/runs/12/artifacts/5"


def make_section(hardware, *cases, link=ARTIFACT, machines=1):
    """What the comment of a pull request says of one of its `machines`, as the job that publishes puts it together."""
    subject = HandoffSubject(repository="o/r", pull_request=7, head_sha=HEAD, run_id=11, run_attempt=1, hardware=hardware)
    reproduction = Reproduction(subject=subject, base_sha=BASE, link=link)
    handed = []
    for case in cases:
        words = (case.session.scenario, *make_options(is_handed_over=True))
        session = replace(
            case.session, source=reproduction.name_folder(case.session.scenario), reproduce=words, is_handed_over=True
        )
        links = {
            "link": reproduction.address,
            "link_title": reproduction.title,
            "trees": reproduction.trees,
            "fetch": reproduction.fetch,
            "span": reproduction.span,
        }
        handed.append(replace(case, session=session, **links))
    comment = build_comment(handed, find_room(machines), find_words(machines))
    state = find_state([case.verdict.outcome for case in cases])
    return build_section(subject, state, "2026-11-21T10:00:00Z", headline=comment.headline, body=comment.body.strip())

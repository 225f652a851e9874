"""Two readings against each other: one line a difference, what is a loss, what is accepted, what could not be read."""

from dataclasses import replace

import pytest

from perfgate.core import Arm
from perfgate.resolution.diff import compare
from perfgate.resolution.report import describe_cases, describe_unread, write_document, write_lines
from perfgate.resolution.rules import RULES, is_loss
from perfgate.resolution.values import EXIT_CODES, ArmReading, Kind, Resolution, ResolveAnswer, TunedTable, Unread, UnreadKind

CASES = tuple((model, gpu) for model in ("qwen3-30b", "deepseek-v3") for gpu in ("h100", "h200"))
FILE = "E=128,N=768,device_name=NVIDIA_H200.json"
TILES = (TunedTable(name=FILE, triton="3.6.0", is_own=True, digest="0a1b2c3d"),)
NO_TILES = (TunedTable(name=FILE),)
CHOICES = {
    "moe_runner": "triton",
    "moe_tiles": TILES,
    "attention_prefill": "fa3",
    "all_reduce": "FlashInfer fusion, custom, NCCL",
    "graph_decode": "full",
    "graph_decode_sizes": [1, 2, 4, 8, 16, 24, 32, 40],
    "fp8_gemm": None,
    "pool_tokens": 700_000,
}
FLAGS = {"page_size": 1, "disable_overlap_schedule": False, "schedule_policy": "fcfs"}


def make_arm(*, cases=CASES, choices=(), flags=(), unverified=()):
    reading = ArmReading(choices=CHOICES | dict(choices), flags=FLAGS | dict(flags), unverified=dict(unverified))
    return Resolution(name="tree", version="0.5.23", torch="2.14.1", triton="3.6.0", readings=dict.fromkeys(cases, reading))


def compare_one(key, value, accepted=None):
    return compare(make_arm(), make_arm(choices={key: value}), accepted or {})


def test_compare__equal_arms_have_not_one_line():
    comparison = compare(make_arm(), make_arm(), {})

    assert comparison.differences == ()
    assert comparison.answer is ResolveAnswer.SAME
    assert EXIT_CODES[comparison.answer] == 0
    assert len(list(write_lines(comparison))) == 2  # what was compared, and the answer


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("moe_tiles", (TunedTable(name=FILE, triton="3.5.1", digest="0a1b2c3d"),)),
        ("moe_tiles", NO_TILES),
        ("attention_prefill", "torch_native"),
        ("all_reduce", "custom, NCCL"),
        ("graph_decode", "disabled"),
        ("pool_tokens", 692_000),
    ],
)
def test_compare__what_is_lost_is_one_line_and_fails(key, value):
    comparison = compare_one(key, value)

    assert [(one.key, one.kind, one.cases) for one in comparison.differences] == [(key, Kind.LOST, CASES)]
    assert EXIT_CODES[comparison.answer] == 1


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("moe_tiles", (replace(TILES[0], digest="ffffffff"),)),
        ("moe_tiles", None),
        ("moe_runner", "flashinfer_trtllm"),
        ("graph_decode_sizes", [1, 2, 4]),
        ("fp8_gemm", "triton_w8a8_block_fp8_linear"),
        ("pool_tokens", 693_001),
        ("pool_tokens", 800_000),
    ],
)
def test_compare__what_is_only_other_never_fails(key, value):
    comparison = compare_one(key, value)

    assert [one.kind for one in comparison.differences] == [Kind.CHANGED]
    assert EXIT_CODES[comparison.answer] == 0


def test_compare__a_table_that_is_found_again_is_no_loss():
    worse = {"moe_tiles": NO_TILES}

    comparison = compare(make_arm(choices=worse), make_arm(), {})

    assert comparison.answer is ResolveAnswer.CHANGED


def test_compare__one_line_for_a_pool_that_each_model_has_its_own_of():
    base, candidate = make_arm(), make_arm()
    pools = dict(zip(CASES, (100_000, 200_000, 300_000, 400_000), strict=True))
    shares = dict(zip(CASES, (0.95, 0.97, 0.96, 0.95), strict=True))
    base = replace(
        base, readings={c: replace(r, choices=r.choices | {"pool_tokens": pools[c]}) for c, r in base.readings.items()}
    )
    candidate = replace(
        candidate,
        readings={
            c: replace(r, choices=r.choices | {"pool_tokens": int(pools[c] * shares[c])}) for c, r in candidate.readings.items()
        },
    )

    (line,) = compare(base, candidate, {}).differences

    assert (line.kind, line.base) == (Kind.LOST, "100000")
    assert line.candidate == "95000 (-5.0 to -3.0 %; the first is shown)"


def test_compare__flags_come_and_go():
    base = make_arm(flags={"old_off": False, "old_on": 3})
    candidate = make_arm(flags={"new_off": None, "new_on": "auto", "page_size": 64})

    lines = {one.key: (one.base, one.candidate, one.kind) for one in compare(base, candidate, {}).differences}

    assert lines == {
        "flag page_size": ("1", "64", Kind.CHANGED),
        "arguments that are gone": ("old_on=3", "none", Kind.CHANGED),
        "arguments that are new": ("none", "new_on=auto", Kind.CHANGED),
    }


def test_compare__a_fast_path_that_is_switched_off_is_lost():
    comparison = compare(make_arm(), make_arm(flags={"disable_overlap_schedule": True}), {})

    assert [(one.key, one.kind) for one in comparison.differences] == [("flag disable_overlap_schedule", Kind.LOST)]


@pytest.mark.parametrize("key", ["moe_tiles", "moe_tiles@qwen3-30b"])
def test_compare__an_accepted_loss_stands_there_with_its_reason(key):
    base = make_arm(cases=CASES[:2])
    candidate = make_arm(cases=CASES[:2], choices={"moe_tiles": NO_TILES})

    comparison = compare(base, candidate, {key: "tuned next week"})

    assert [(one.kind, one.reason) for one in comparison.differences] == [(Kind.ACCEPTED, "tuned next week")]
    assert EXIT_CODES[comparison.answer] == 0
    assert "accepted: tuned next week" in "\n".join(write_lines(comparison))


def test_compare__an_acceptance_of_another_model_does_not_count():
    comparison = compare_one("moe_tiles", NO_TILES, {"moe_tiles@deepseek-v3": "known"})

    assert [(one.kind, one.cases) for one in comparison.differences] == [
        (Kind.LOST, CASES[:2]),
        (Kind.ACCEPTED, CASES[2:]),
    ]
    assert comparison.answer is ResolveAnswer.LOST


def test_compare__what_could_not_be_read_is_no_difference_and_no_pass():
    candidate = make_arm(unverified={"pool": "AttributeError: no such thing"})
    readings = {
        case: replace(reading, choices={k: v for k, v in reading.choices.items() if k != "pool_tokens"})
        for case, reading in candidate.readings.items()
    }

    comparison = compare(make_arm(), replace(candidate, readings=readings), {})

    assert comparison.differences == ()
    assert [describe_unread(one, comparison) for one in comparison.unverified] == [
        "candidate: pool could not be verified: AttributeError: no such thing (all models on all GPUs)"
    ]
    assert (comparison.answer, EXIT_CODES[comparison.answer]) == (ResolveAnswer.UNVERIFIED, 3)


def test_compare__a_case_that_one_arm_did_not_answer_is_not_verified():
    comparison = compare(make_arm(), make_arm(cases=CASES[:3]), {})

    assert comparison.answer is ResolveAnswer.UNVERIFIED
    assert comparison.unverified == (Unread(arm=Arm.CANDIDATE, kind=UnreadKind.NO_ANSWER, cases=CASES[3:]),)
    assert write_document(comparison)["unverified"] == ["candidate: no answer (deepseek-v3 on h200)"]


def test_compare__a_choice_that_only_one_arm_has_is_not_verified():
    comparison = compare(make_arm(choices={"kv_dtype": "bfloat16"}), make_arm(), {})

    assert comparison.unverified == (Unread(arm=Arm.CANDIDATE, kind=UnreadKind.UNTOLD, cases=CASES, part="kv_dtype"),)
    assert "unverified  candidate: kv_dtype was not told (all models on all GPUs)" in write_lines(comparison)


def test_compare__a_loss_weighs_more_than_what_could_not_be_read():
    comparison = compare(make_arm(unverified={"pool": "x"}), make_arm(choices={"graph_decode": "disabled"}), {})

    assert comparison.answer is ResolveAnswer.LOST


@pytest.mark.parametrize(
    ("cases", "words"),
    [
        (CASES, "all models on all GPUs"),
        (CASES[:2], "qwen3-30b on h100, h200"),
        ((CASES[0], CASES[2]), "qwen3-30b, deepseek-v3 on h100"),
        (CASES[:3], "qwen3-30b on h100, h200; deepseek-v3 on h100"),
    ],
)
def test_describe_cases__in_few_words(cases, words):
    assert describe_cases(cases, CASES) == words


def test_write_document__has_lines_and_choices():
    document = write_document(compare_one("graph_decode_sizes", [1, 2, 4]))

    assert document["answer"] == "changed"
    assert document["differences"][0]["candidate"] == "[1, 2, 4] (-[8, 16, 24, 32, 40])"
    assert document["base"]["choices"]["qwen3-30b@h100"]["moe_tiles"] == f"{FILE} of its own Triton 3.6.0 (0a1b2c3d)"


@pytest.mark.parametrize(
    ("key", "base", "candidate", "is_lost"),
    [
        ("moe_runner", "triton_kernel", "triton", True),
        ("moe_runner", "flashinfer_mxfp4", "triton_kernel", False),
        ("moe_runner", "triton", "deep_gemm", False),
        ("moe_method", "Mxfp4MoEMethod", "UnquantizedFusedMoEMethod", True),
        ("fp8_gemm", "deepgemm_w8a8_block_fp8_linear_with_fallback", "triton_w8a8_block_fp8_linear", True),
        ("fp8_gemm", None, "triton_w8a8_block_fp8_linear", False),
        ("attention_decode", "trtllm_mla", "triton", True),
        ("attention_decode", "triton", "torch_native", False),
        ("sampling", "flashinfer", "pytorch", True),
        ("fused_shared_experts", 1, 0, True),
        ("all_reduce", "custom, NCCL", "FlashInfer fusion, custom, NCCL", False),
        ("all_reduce", "FlashInfer fusion, custom, NCCL", "one GPU", True),
        ("flag enable_fused_qk_norm_rope", True, None, True),
        ("flag enable_fused_qk_norm_rope", None, True, False),
        ("no such key", "a", "b", False),
    ],
)
def test_is_loss__by_direction(key, base, candidate, is_lost):
    assert is_loss(key, base, candidate) is is_lost


@pytest.mark.parametrize("key", RULES)
def test_is_loss__equal_values_never_are(key):
    value = CHOICES.get(key, 1)

    assert not is_loss(key, value, value)

"""Ahead-of-time compilation without a GPU, and the gates on machine code."""

import json
from collections import Counter
from dataclasses import replace

import pytest

pytest.importorskip("triton", reason="the kernels need triton: install the extra cpu-engine or gpu")

import triton
import triton.language as tl
from click.testing import CliRunner

from perfgate.cli.moe.kernels import command
from perfgate.errors import InputError
from perfgate_moe.build.build import SHARED_BYTES, build, judge, parse_arch
from perfgate_moe.build.recipes import KernelRecipe, find_archs, recipes
from perfgate_moe.build.sass import MachineCode, inspect
from perfgate_moe.errors import BuildError, MoeInputError
from perfgate_moe.layer.tables import table_path
from perfgate_moe.timing.search import SPACES

SOUND = MachineCode(registers=128, stack_bytes=0, local_bytes=0, opcodes=Counter({"HGMMA.64x128x16": 4, "REDG.E.ADD.F32": 2}))
PRODUCT = KernelRecipe(name="product", kernel=None, types={}, constants={}, rows=64, is_product=True)
ATOMIC = replace(PRODUCT, is_atomic=True)


def named(part):
    return next(recipe for recipe in recipes() if part in recipe.name)


@triton.jit
def fenced_sum(target, values, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.atomic_add(target + at, tl.load(values + at))


@pytest.mark.parametrize(
    ("part", "arch", "opcode"),
    [
        ("gate_up/swiglu/bfloat16/64x128", 90, "HGMMA"),
        ("gate_up/swiglu/bfloat16/128x256x64g8w8s4tmashort", 90, "UTMALDG"),
        ("down/atomic32/bias/bfloat16/64x128x64g4w4s4tma", 90, "UTMALDG"),
        ("down/slots/bias/bfloat16/16x64x128g1w4s4/uneven", 90, "HMMA"),
        ("gate_up/swiglu/bfloat16/64x128x64g4w4s4tma/uneven", 90, "UTMALDG"),
        ("down/atomic32/bias/bfloat16/16x64", 90, "HMMA"),
        ("down/atomic32/bias/bfloat16/128x128x64g8w8s4", 80, "HMMA"),
        ("down/atomic32/bias/float16/128x128x64g8w8s4", 100, "UTCHMMA"),
        ("down/owner/bias/float16", 90, "HMMA"),
        ("gate_up/silu/bfloat16/16x64", 80, "HMMA"),
        ("down/slots/bias/bfloat16/16x64", 100, "HMMA"),
        ("fp8/gate_up/swiglu/bfloat16/64x128", 90, "QGMMA"),
        ("fp8/gate_up/silu/bfloat16/64x128", 90, "QGMMA"),  # gates and ups as products by themselves
        ("fp8/gate_up/silu/bfloat16/16x256", 90, "QGMMA"),  # ends with rounding
        ("fp8/down/silu/bfloat16/16x128", 90, "QGMMA"),
        ("fp8/down/silu/bfloat16/64x128g8w4s2/walking", 90, "QGMMA"),
        ("fp8/down/silu/bfloat16/16x32", 90, "HMMA"),
        ("mxfp4/gate_up/swiglu/bfloat16/64x128", 90, "HGMMA"),
        ("mxfp4/down/swiglu/bfloat16/16x64", 90, "HGMMA"),
        ("mxfp4/gate_up/swiglu/bfloat16/16x64x128", 90, "HGMMA"),
        ("mxfp4/down/swiglu/bfloat16/128x128x64", 90, "HGMMA"),
        ("mxfp4/down/swiglu/bfloat16/64x128x64g8w4s4/unwoven", 80, "HMMA"),
        ("mxfp4/gate_up/swiglu/bfloat16/16x64x128g1w4s4/unwoven", 100, "UTCHMMA"),
        ("choose/32/4", 90, "SHFL"),
    ],
)
def test_build__accepts_our_kernels_on_each_architecture(part, arch, opcode):
    built = build(named(part), arch)

    assert built.problems == ()
    assert any(name.startswith(opcode) for name in built.machine.opcodes)


@pytest.mark.parametrize(
    "part", ["down/slots/bias/bfloat16/16x64x128g1w4s4/uneven", "down/owner/bias/bfloat16/16x32x128g8w4s5/uneven"]
)
def test_build__rows_that_8_divides_are_copied_as_those_that_16_divides(part):
    recipe = named(part)

    built = build(replace(recipe, name="eighths", constants=recipe.constants | {"EIGHTHS": True}), 90)

    wide = [
        sum(count for name, count in one.machine.opcodes.items() if name.startswith("LDGSTS") and "128" in name)
        for one in (build(recipe, 90), built)
    ]
    assert built.problems == ()
    assert wide[0] == wide[1] > 0


def test_build__second_time_comes_from_the_cache():
    build(named("sum/bfloat16"), 90)

    assert build(named("sum/bfloat16"), 90).is_cached


def test_build__refuses_an_atomic_that_waits():
    """Triton's default order puts a fence round each atomic: the gate must see it in real machine code."""
    recipe = KernelRecipe(
        name="fenced", kernel=fenced_sum, types={"target": "*fp32", "values": "*fp32"}, constants={"BLOCK": 256}, is_atomic=True
    )

    built = build(recipe, 90)

    assert any("not relaxed" in problem for problem in built.problems), built


@pytest.mark.parametrize(
    ("machine", "shared", "message"),
    [
        (replace(SOUND, registers=300), 0, "300 registers"),
        (replace(SOUND, stack_bytes=16), 0, "spills"),
        (replace(SOUND, opcodes=SOUND.opcodes | Counter({"STL.64": 1})), 0, "spills"),
        (SOUND, SHARED_BYTES[90] + 1, "shared memory"),
        (replace(SOUND, opcodes=Counter({"FFMA": 9, "REDG.E": 1})), 0, "no matrix instruction"),
        (replace(SOUND, opcodes=Counter({"HMMA.16816": 9, "REDG.E": 1})), 0, "no matrix instruction"),
        (replace(SOUND, opcodes=SOUND.opcodes | Counter({"MEMBAR.ALL.GPU": 1})), 0, "not relaxed"),
        (replace(SOUND, opcodes=Counter({"HGMMA.64": 1})), 0, "no reduction"),
    ],
)
def test_judge__names_what_is_wrong(machine, shared, message):
    problems = list(judge(ATOMIC, 90, shared, machine))

    assert any(message in problem for problem in problems), problems


@pytest.mark.parametrize("harmless", ["LDG.E", "MEMBAR.ALL.CTA"])
def test_judge__accepts_a_sound_kernel(harmless):
    machine = replace(SOUND, opcodes=SOUND.opcodes | Counter({harmless: 1}))

    assert list(judge(ATOMIC, 90, SHARED_BYTES[90], machine)) == []


def test_judge__wants_8_bit_matrix_units_for_8_bit_weights():
    recipe = replace(PRODUCT, is_fp8=True)

    assert list(judge(recipe, 90, 0, SOUND)) == ["no matrix instruction (QGMMA)"]
    assert list(judge(recipe, 90, 0, replace(SOUND, opcodes=Counter({"QGMMA.64": 4})))) == []


def test_build__bricks_bring_a_thread_its_own_bytes():
    """Bytes that lie in shared memory for other threads would be read one by one, and permuted."""
    machine = build(named("mxfp4/gate_up/swiglu/bfloat16/16x64x128g1w4"), 90).machine

    assert machine.count("LDS.U8") == 0
    assert machine.count("PRMT") <= 8 * machine.count("HGMMA")


def test_parse_arch__refuses_an_unknown_one():
    with pytest.raises(MoeInputError, match="sm_80, sm_90, sm_100"):
        parse_arch("sm_70")


def test_inspect__refuses_a_file_that_is_no_cubin(tmp_path):
    (tmp_path / "kernel.cubin").write_bytes(b"not one")

    with pytest.raises(BuildError, match="cuobjdump"):
        inspect(tmp_path / "kernel.cubin")


def test_recipes__have_names_of_their_own_and_every_variant():
    names = [recipe.name for recipe in recipes()]

    assert len(names) == len(set(names))
    assert all(any(part in name for name in names) for part in ("slots", "atomic32", "owner", "align/place", "sum/", "float16"))


def test_recipes__cover_every_tiling_that_may_be_searched_for_quantised_weights():
    names = [recipe.name for recipe in recipes()]

    for quant, parts in SPACES.items():
        if quant == "none":
            continue
        for tiles in {each for part in parts for each in part}:
            depth = "" if quant == "fp8" else f"x{tiles.k}"
            label = f"bfloat16/{tiles.m}x{tiles.n}{depth}g{tiles.group_m}w{tiles.warps}s{tiles.stages}"
            found = [name for name in names if name.startswith(f"{quant}/") and label in name]
            assert {name.split("/")[1] for name in found} == {"gate_up", "down"}, (quant, tiles)
            assert any(name.endswith("/direct") for name in found) == (tiles.m == 16)


def searched_recipes():
    """The largest tilings of the search spaces of quantised weights: what fits least."""
    parts = ("fp8/gate_up/silu/bfloat16/128x128", "fp8/down/silu/bfloat16/128x128", "fp8/down/silu/bfloat16/64x256")
    parts += (
        "mxfp4/gate_up/swiglu/bfloat16/16x64x256",
        "mxfp4/down/swiglu/bfloat16/128x128",
        "mxfp4/down/swiglu/bfloat16/64x256",
        "mxfp4/gate_up/swiglu/bfloat16/128x128",
        "mxfp4/gate_up/swiglu/bfloat16/256x",
    )
    return [recipe for recipe in recipes() if any(part in recipe.name for part in parts)]


@pytest.mark.parametrize("recipe", searched_recipes(), ids=lambda recipe: recipe.name)
def test_build__accepts_the_largest_tilings_of_the_search(recipe):
    assert build(recipe, 90).problems == ()


def test_recipes__hold_what_the_shipped_plans_launch():
    """gpt-oss-20b at one token has depths of 2880, which tiles of 128 do not divide."""
    by_name = {recipe.name: recipe for recipe in recipes()}

    for name in ("gate_up/swiglu/bfloat16/16x64x128g1w4s4/uneven", "down/slots/bias/bfloat16/16x32x128g1w4s5/uneven"):
        assert by_name[name].constants["EVEN_K"] is False
        assert by_name[name].suits(90)
    assert {recipe.constants["EVEN_K"] for recipe in by_name.values() if "EVEN_K" in recipe.constants} == {True, False}
    assert any(recipe.constants.get("SHORT_BLOCKS") for recipe in by_name.values())


@pytest.mark.parametrize(
    ("part", "archs"),
    [
        ("down/slots/bias/bfloat16/16x32x128g1w4s5/uneven", [90]),
        ("down/slots/bias/bfloat16/16x64x128g1w4s4", [80, 90, 100]),
        ("gate_up/swiglu/bfloat16/128x256x64g8w8s4tmashort", [90]),
        ("gate_up/swiglu/bfloat16/128x128x64g8w8s4", [80, 100]),
    ],
)
def test_recipes__tuned_plans_are_built_for_their_own_device_and_defaults_where_they_are_taken(part, archs):
    assert [arch for arch in (80, 90, 100) if named(part).suits(arch)] == archs


def test_find_archs__every_shipped_table_and_common_names():
    shipped = [path.stem for path in table_path("any").parent.glob("*.json")]

    assert all(len(find_archs(name)) == 1 for name in shipped)
    assert [*map(find_archs, ("NVIDIA_A100-SXM4-80GB", "NVIDIA_H100_80GB_HBM3", "NVIDIA_B200"))] == [{80}, {90}, {100}]
    assert find_archs("NVIDIA_GeForce_RTX_4090") == {80, 90, 100}


def test_build_command__prints_a_line_for_each_kernel_and_counts():
    done = CliRunner().invoke(command, ["build", "--only", "align/"], standalone_mode=False)

    assert done.return_value == 0, done.output
    assert "3 of 3 kernels accepted" in done.output


def test_build_command__leaves_out_what_an_architecture_has_no_machine_for():
    done = CliRunner().invoke(
        command, ["build", "--only", "fp8/round/bfloat16", "--arch", "sm_80", "--arch", "sm_90"], standalone_mode=False
    )

    assert "2 of 2 kernels accepted" in done.output


def test_build_command__tells_one_document():
    done = CliRunner().invoke(command, ["build", "--only", "align/", "--format", "json"], standalone_mode=False)

    told = json.loads(done.stdout)
    assert (told["total"], told["accepted"], len(told["kernels"])) == (3, 3, 3)
    assert {"kernel", "arch", "registers", "shared_bytes", "problems"} < told["kernels"][0].keys()
    assert done.stderr.count("align/") == 3


def test_build_command__nothing_to_build_is_no_success():
    done = CliRunner().invoke(command, ["build", "--only", "fp8/round/bfloat16", "--arch", "sm_80"], standalone_mode=False)

    assert done.return_value == 1
    assert "0 of 0 kernels accepted" in done.output


def test_build_command__refuses_a_filter_that_matches_nothing():
    done = CliRunner().invoke(command, ["build", "--only", "nothing"], standalone_mode=False)

    assert isinstance(done.exception, InputError)
    assert "--only nothing" in str(done.exception)

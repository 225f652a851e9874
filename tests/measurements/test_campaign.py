"""benchmarks/h200/campaign: what a call begins, where it stops, what travels; the recorder's figures; what is packed."""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from contextlib import suppress
from dataclasses import fields, replace
from importlib.util import find_spec
from io import BytesIO
from math import log
from pathlib import Path
from types import SimpleNamespace
from zipfile import ZipFile

import psutil
import pytest

from benchmarks.h200.campaign import bundle, campaign, compiled, cutlass, keep, killed, recorder, releases, symbols
from benchmarks.h200.campaign.campaign import (
    Campaign,
    Place,
    Wanted,
    build_argv,
    choose,
    count_blocks,
    has_ended,
    read_state,
    read_table,
)
from benchmarks.h200.serving import host_waits
from perfgate.cli import program
from perfgate.scenario.catalog import load_scenario
from perfgate.scenario.matrix import Matrix
from perfgate.serving.engine.arms import build_injection_environment

HERE = Path(campaign.__file__).parent
# A session in little: it writes events as perfgate does, each block once a file allows it, and ends when it is told to.
SESSION = """
import json, pathlib, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(9))
folder = pathlib.Path(sys.argv[sys.argv.index("--out") + 1])
folder.mkdir(parents=True, exist_ok=True)
def tell(**event):
    with (folder / "events.jsonl").open("a") as file:
        file.write(json.dumps(event) + "\\n")
(folder / "session.json").write_text("{}")
done = (folder / "events.jsonl").read_text().count("block_ended") if "--resume" in sys.argv else 0
for block in range(done + 1, int(sys.argv[2]) + 1):
    while not (folder.parent / f"go-{block}").exists():
        time.sleep(0.02)
    tell(event="block_ended", block=block)
tell(event="session_ended")
print("a folder")
"""


@pytest.fixture
def place(tmp_path):
    (tmp_path / "home" / "results").mkdir(parents=True)
    return Place(home=tmp_path / "home", number=1, python=sys.executable, root=tmp_path)


@pytest.fixture
def little(monkeypatch, tmp_path):
    """Sessions are the little ones, with `--blocks` of a row's command."""
    script = tmp_path / "session.py"
    script.write_text(SESSION)

    def build(wanted, place, folder):
        resume = ["--resume"] if (folder / "session.json").exists() else []
        return [place.python, str(script), *wanted.command, "--out", str(folder), *resume]

    monkeypatch.setattr(campaign, "build_argv", build)
    monkeypatch.setattr(campaign, "POLL_S", 0.02)


def allow(place, *blocks):
    for block in blocks:
        (place.home / "results" / f"go-{block}").touch()


def make_row(name="aa", total=2, **changes):
    row = {"name": name, "reason": "a test", "command": ("--blocks", str(total)), "block_s": 10.0, "first_s": 10.0}
    return Wanted(**{**row, **changes})


def make_call(place, state=None):
    begun = state or {"machines": 1, "done": {}, "warm": [], "sent": {}}
    return Campaign(place=place, ends=time.monotonic() + 3600.0, state=begun)


@pytest.mark.usefixtures("little")
def test_run__goes_through_the_table_in_order(place):
    allow(place, 1, 2)
    call = make_call(place)
    call.run([make_row("one"), make_row("two")])
    done = call.state["done"]

    assert [(name, found["blocks"], found["is_whole"]) for name, found in done.items()] == [("one", 2, True), ("two", 2, True)]
    assert done["one"]["last_words"] == "a folder"
    assert json.loads((place.home / campaign.STATE).read_text()) == call.state


@pytest.mark.usefixtures("little")
def test_run__every_machine_ends_with_equal_arms(place):
    rows = choose([make_row("aa", closes=True), make_row("one")], ["one"], 1)
    allow(place, 1, 2)
    call = make_call(place)
    call.run(rows)

    assert list(call.state["done"]) == ["one", "aa"]

    call.run(rows)
    assert (place.home / campaign.LOG).read_text().count("aa: done") == 1

    there = replace(place, number=2)
    make_call(there, call.state).run(rows)
    assert [call.state["done"][name]["folder"] for name in ("one", "aa")] == ["one", "aa-m2"]


@pytest.mark.usefixtures("little")
def test_run__keeps_time_for_a_block_of_the_equal_arms(place):
    allow(place, 1, 2)
    call = make_call(place)
    closing = make_row("aa", first_s=2000.0, closes=True)
    call.run([make_row("one", first_s=2000.0, command=("run", "other", "--blocks", "2")), closing])

    assert list(call.state["done"]) == ["aa"]

    # What serves the same scenario warms the caches for it.
    call = make_call(place)
    call.run([make_row("one", first_s=2000.0), closing])

    assert list(call.state["done"]) == ["one", "aa"]


def test_choose__equal_arms_come_last_unless_a_campaign_follows():
    table = [make_row("aa", closes=True), make_row("aa-2", closes=True, gpus=2), make_row("one"), make_row("two")]

    assert [row.name for row in choose(table, ["two", "one"], 1)] == ["two", "one", "aa"]
    assert [row.name for row in choose(table, [], 1)] == ["one", "two", "aa"]
    assert [row.name for row in choose(table, ["two"], 1, has_more=True)] == ["two"]
    assert [row.name for row in choose(table, ["two", "aa"], 1, has_more=True)] == ["two", "aa"]


@pytest.mark.usefixtures("little")
def test_run__stops_between_blocks_and_goes_on_in_the_next_call(place, monkeypatch):
    row = make_row(total=3)
    folder = place.find_folder(row)
    allow(place, 1)
    call = make_call(place)
    with monkeypatch.context() as patch:
        patch.setattr(Campaign, "left_s", property(lambda _: 0.0 if count_blocks(folder) else 60.0))
        call.run([row])

    assert (count_blocks(folder), has_ended(folder), call.state["done"]) == (1, False, {})

    allow(place, 2, 3)
    again = make_call(place, call.state)
    again.run([row])
    assert (again.state["done"]["aa"]["blocks"], has_ended(folder)) == (3, True)
    assert "block 1 took" in (place.home / campaign.LOG).read_text()


@pytest.mark.usefixtures("little")
def test_run__a_block_that_outlasts_the_call_is_cut_off(place, monkeypatch):
    row = make_row()
    begun = place.find_folder(row) / "session.json"
    monkeypatch.setattr(Campaign, "left_s", property(lambda _: -1.0 if begun.exists() else 60.0))
    call = make_call(place)
    call.run([row])

    assert call.state["done"] == {}
    assert "cut off, goes on in the next call" in (place.home / campaign.LOG).read_text()


@pytest.mark.usefixtures("little")
def test_run__skips_what_needs_more_than_is_left_for_what_does_not(place):
    allow(place, 1, 2)
    call = make_call(place)
    call.run([make_row("long", block_s=9000.0, first_s=9000.0), make_row("short")])

    assert list(call.state["done"]) == ["short"]


@pytest.mark.usefixtures("little")
def test_run__enough_blocks_are_enough(place):
    allow(place, 1)
    call = make_call(place)
    call.run([make_row(total=9, blocks=1)])

    assert (call.state["done"]["aa"]["is_whole"], call.state["done"]["aa"]["blocks"]) == (True, 1)


def test_run__what_fails_is_told_and_not_tried_again(place, monkeypatch):
    monkeypatch.setattr(campaign, "build_argv", lambda *_: [sys.executable, "-c", "import sys; sys.exit('no such model')"])
    call = make_call(place)
    for _ in range(2):
        call.run([make_row()])
    expected = {"folder": "aa", "blocks": 0, "exit_code": 1, "is_whole": False, "last_words": "no such model"}

    assert call.state["done"]["aa"] == expected
    assert (place.home / campaign.LOG).read_text().count("FAILED") == 1


@pytest.mark.parametrize(("module", "below"), [("", "caches"), ("a.module", "caches/base")])
def test_build_argv__a_modules_caches_are_those_that_the_next_machine_gets(place, module, below):
    argv = build_argv(make_row(module=module), place, place.home / "results" / "aa")

    assert argv[argv.index("--caches") + 1] == str(place.home / below)


def test_run__row_that_is_there_twice_is_tried_again_where_it_failed(place, monkeypatch):
    tell = "import sys; print(sys.argv[1]); sys.exit(sys.argv[1] == 'void')"
    words = iter(["void", "whole"])
    monkeypatch.setattr(campaign, "build_argv", lambda *_: [sys.executable, "-c", tell, next(words)])
    call = make_call(place)
    call.run([make_row(module="a.module")] * 3)

    assert (call.state["done"]["aa"]["is_whole"], call.state["done"]["aa"]["last_words"]) == (True, "whole")


@pytest.mark.usefixtures("little")
def test_run__session_that_ended_as_void_is_kept_aside_and_measured_anew(place):
    row = make_row()
    folder = place.find_folder(row)
    for name in (f"{folder.name}-void-1", folder.name):
        (folder.with_name(name)).mkdir()
    (folder / "session.json").write_text("{}")
    (folder / "events.jsonl").write_text('{"event": "problem"}\n{"event": "session_ended"}\n')
    allow(place, 1, 2)
    call = make_call(place)
    call.run([row])

    assert (call.state["done"]["aa"]["blocks"], call.state["done"]["aa"]["is_whole"]) == (2, True)
    assert "problem" in (folder.with_name("aa-void-2") / "events.jsonl").read_text()
    assert "problem" not in (folder / "events.jsonl").read_text()
    assert "ended as void and is kept as aa-void-2" in (place.home / campaign.LOG).read_text()


@pytest.mark.usefixtures("little")
def test_run__session_that_was_cut_off_before_its_first_block_goes_on(place):
    row = make_row()
    folder = place.find_folder(row)
    folder.mkdir()
    (folder / "session.json").write_text("{}")
    (folder / "events.jsonl").write_text('{"event": "server_started"}\n')
    allow(place, 1, 2)
    make_call(place).run([row])

    assert "server_started" in (folder / "events.jsonl").read_text()
    assert not folder.with_name("aa-void-1").exists()


@pytest.mark.parametrize(("before", "is_stopped"), [(["cell_ended"], False), (["cell_failed"], False), ([], True)])
def test_watch__matrix_is_stopped_between_cells_and_ends_by_itself_after_the_last(place, monkeypatch, before, is_stopped):
    row = make_row(command=("matrix", "a.toml"))
    folder = place.find_folder(row)
    folder.mkdir()
    (folder / "matrix.toml").write_text("rounds = 1\n[servers.one]\n[loads.many]\n[loads.few]\n")
    (folder / "events.jsonl").write_text("".join(f'{{"event": "{event}"}}\n' for event in before))
    polls = iter([None, 0])

    def end_cell():
        with (folder / "events.jsonl").open("a") as events:
            events.write('{"event": "cell_ended"}\n')
        return next(polls)

    monkeypatch.setattr(campaign, "POLL_S", 0.0)
    monkeypatch.setattr(campaign, "stop", lambda *_, **__: None)
    monkeypatch.setattr(Campaign, "left_s", property(lambda _: 0.0))

    assert make_call(place).watch(SimpleNamespace(poll=end_cell), row, folder) is is_stopped


def test_rounds__as_perfgate_takes_them():
    assert {entry.name: entry.default for entry in fields(Matrix)}["rounds"] == campaign.ROUNDS


def test_count_blocks__cells_of_a_matrix(tmp_path):
    (tmp_path / "events.jsonl").write_text('{"event": "cell_ended"}\n{"event": "cell_ended"}\n{"event": "matrix_ended"}\n')

    assert (count_blocks(tmp_path), has_ended(tmp_path)) == (2, True)


@pytest.mark.parametrize(("begun", "resume"), [(None, False), ("session.json", True), ("matrix.json", True)])
def test_build_argv__goes_on_with_what_was_begun(place, begun, resume):
    folder = place.find_folder(make_row())
    folder.mkdir()
    if begun:
        (folder / begun).touch()

    assert ("--resume" in campaign.build_argv(make_row(), place, folder)) is resume


def test_stop__kills_what_does_not_end():
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", deaf], stdout=subprocess.PIPE, start_new_session=True)
    process.stdout.readline()
    campaign.stop(process, grace_s=0.2)
    process.stdout.close()

    assert process.returncode == -signal.SIGKILL


def test_prepare__machine_without_an_engine_is_refused_before_anything_counts_as_tried(tmp_path):
    (tmp_path / "home" / "results").mkdir(parents=True)
    bare = tmp_path / "python"
    bare.write_text("#!/bin/sh\nexit 1\n")
    bare.chmod(0o755)

    with pytest.raises(SystemExit, match="finds no SGLang: give --bundle"):
        campaign.prepare(Place(home=tmp_path / "home", number=1, python=str(bare)), None, None)


def test_prepare__unpacks_once_and_takes_carried_caches_for_both_arms(place, tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(
        campaign.subprocess, "run", lambda argv, **_: calls.append(argv) or subprocess.CompletedProcess(argv, 0, "", "")
    )
    (tmp_path / "sglang.py").write_text("version = 1\n")
    (tmp_path / "caches" / "base").mkdir(parents=True)
    (tmp_path / "caches" / "base" / "kernel").write_text("cubin")
    campaign.pack(tmp_path / "bundle.tar.xz", tmp_path, ["sglang.py"])
    campaign.pack(tmp_path / campaign.CACHES, tmp_path, ["caches/base"])
    for _ in range(2):
        campaign.prepare(place, tmp_path / "bundle.tar.xz", tmp_path, [tmp_path / "other.tar.xz"])
        (tmp_path / "bundle.tar.xz").unlink(missing_ok=True)

    assert (place.site / "sglang.py").read_text() == "version = 1\n"
    assert (place.home / "caches" / "candidate" / "kernel").read_text() == "cubin"
    assert sum("plug-in" in argv for argv in calls) == 2
    assert [str(place.home), str(tmp_path / "bundle.tar.xz"), str(tmp_path / "other.tar.xz")] in [argv[3:] for argv in calls]


def test_read_state__another_machine_knows_what_is_done_and_keeps_its_own_folders(tmp_path):
    carried = tmp_path / "carried"
    carried.mkdir()
    done = {"one": {"folder": "one", "blocks": 2, "exit_code": 0, "is_whole": True, "last_words": ""}}
    (carried / campaign.STATE).write_text(json.dumps({"machines": 1, "done": done, "warm": ["x"], "sent": {"one": "3 4"}}))

    state, is_new = read_state(tmp_path / "home", carried)

    assert (state["machines"], state["done"], state["sent"], is_new) == (2, done, {}, True)
    assert Place(home=tmp_path, number=2, python="python").find_folder(make_row("two")) == tmp_path / "results" / "two-m2"
    assert read_state(tmp_path / "home", None)[0]["machines"] == 1


def list_names(archive):
    with tarfile.open(archive) as tar:
        return set(tar.getnames())


def keep_result(place, name, content):
    (place.home / "results" / name).mkdir()
    (place.home / "results" / name / "events.jsonl").write_bytes(content)


@pytest.fixture
def out(tmp_path):
    (tmp_path / "out").mkdir()
    return tmp_path / "out"


def test_bring_back__what_is_new_and_nothing_twice(place, out):
    keep_result(place, "one", b"1" * 5000)
    keep_result(place, "two", b"2")
    call = make_call(place)
    call.say("begun")
    campaign.bring_back(call, out)
    first = {path.name for path in out.iterdir()}
    inside = list_names(out / campaign.RESULTS)
    for path in out.iterdir():
        path.unlink()
    (place.home / "results" / "two" / "more").write_text("3")
    (place.home / "caches" / "base").mkdir(parents=True)
    (place.home / "caches" / "base" / "kernel").write_text("cubin")
    campaign.bring_back(call, out)

    assert first == {campaign.RESULTS, campaign.STATE, campaign.LOG}
    assert inside == {"one", "one/events.jsonl", "two", "two/events.jsonl"}
    assert list_names(out / campaign.RESULTS) == {"two", "two/events.jsonl", "two/more"}
    assert "caches/base/kernel" in list_names(out / campaign.CACHES)


def test_bring_back__an_archive_above_the_limit_of_a_file_comes_in_pieces(place, out, tmp_path, monkeypatch):
    keep_result(place, "matrix", os.urandom(4000))
    monkeypatch.setattr(campaign, "MAX_FILE_BYTES", 1000)
    call = make_call(place)
    call.say("begun")
    campaign.bring_back(call, out)
    pieces = sorted(out.glob(f"{campaign.RESULTS}*"))
    joined = tmp_path / "joined"
    joined.write_bytes(b"".join(piece.read_bytes() for piece in pieces))

    assert [piece.name for piece in pieces] == [f"{campaign.RESULTS}.{number:02}" for number in range(5)]
    assert max(piece.stat().st_size for piece in pieces) <= 1000
    assert list_names(joined) == {"matrix", "matrix/events.jsonl"}
    assert list(call.state["sent"]) == ["matrix"]


def test_bring_back__what_needs_more_files_than_may_travel_stays_and_the_rest_does_not(place, out, monkeypatch):
    keep_result(place, "large", os.urandom(9000))
    keep_result(place, "small", b"2")
    monkeypatch.setattr(campaign, "MAX_FILE_BYTES", 1000)
    call = make_call(place)
    campaign.bring_back(call, out)

    assert list_names(out / campaign.RESULTS) == {"small", "small/events.jsonl"}
    assert list(call.state["sent"]) == ["small"]
    assert "large is too large to travel and stays here" in (place.home / campaign.LOG).read_text()


@pytest.mark.parametrize("table", ["wanted.toml", "wanted-cpu.toml"])
def test_read_table__every_row_is_a_command_that_exists(table, place):
    rows = read_table(HERE / table)

    assert len({row.name for row in rows}) == len(rows)
    for row in rows:
        argv = build_argv(row, place, place.find_folder(row))
        if row.module and row.module != killed.__name__:
            assert row.module in {recorder.__name__, keep.__name__, host_waits.__name__}
        else:
            # What kills a rank hands its words to `perfgate run`.
            name = "run" if row.module else row.command[0]
            command = program.get_command(None, name)
            context = command.make_context(name, argv[3 if row.module else 4 :])
            build_injection_environment(context.params.get("candidate_inject"))
        if row.module == keep.__name__:
            words = row.command[2:] if row.command[0] == "--python" else row.command
            script = campaign.ROOT / words[0].removeprefix("{root}/")
            assert find_spec(words[1]) if words[0] == "-m" else script.is_file()
        elif row.command[0] == "run":
            scenario = load_scenario(row.scenario.replace("{root}", str(campaign.ROOT)))
            assert scenario.blocks.windows >= 3
            assert row.gpus == max(1, scenario.server.gpus)
        assert row.block_s <= row.first_s


def test_keep__what_a_command_printed_and_how_it_ended(tmp_path):
    words = ["-c", "import os, sys; print(os.environ['TRITON_CACHE_DIR']); sys.exit(3)"]
    told = keep.keep(words, tmp_path / "kept", tmp_path / "caches")

    assert (told["exit_code"], told["argv"]) == (3, words)
    assert str(tmp_path / "caches") in (tmp_path / "kept" / "output.txt").read_text()
    assert json.loads((tmp_path / "kept" / "run.json").read_text()) == told


def test_keep__a_command_may_name_the_python_of_a_release(tmp_path):
    python = tmp_path / "python"
    python.symlink_to(sys.executable)
    keep.keep(["--python", str(python), "-c", "import sys; print(sys.executable)"], tmp_path / "kept", None)

    assert (tmp_path / "kept" / "output.txt").read_text() == f"{python}\n"


SGLANG_NAMES = """
_QUOTED_INCLUDE_RE = re.compile(r'#include "([^"]+)"')
OTHER = torch.device("cuda")
def _local_jit_source_hash(source_files: List[str]) -> str:
    text = pathlib.Path(source_files[0]).read_text()
    return hashlib.sha256((text + str(_QUOTED_INCLUDE_RE.findall(text))).encode()).hexdigest()[:16]
"""


def test_compiled__a_module_has_the_name_by_which_sglang_finds_it(tmp_path):
    kernels = tmp_path / "sglang" / "jit_kernel"
    source = kernels / "csrc" / "gemm" / "marlin" / "gptq_marlin_repack.cuh"
    for path, text in ((kernels / "utils" / "compile.py", SGLANG_NAMES), (source, '#include "marlin.cuh"')):
        path.parent.mkdir(parents=True)
        path.write_text(text)
    (tmp_path / "tvm_ffi").mkdir()
    (tmp_path / "tvm_ffi" / "_version.py").write_text("version: str\n__version__ = version = '0.1.11'\n")

    module, place = compiled.name_module(tmp_path, "gptq_marlin_repack")

    digest = hashlib.sha256(b"#include \"marlin.cuh\"['marlin.cuh']").hexdigest()[:16]
    assert module == f"sgl_kernel_jit_gptq_marlin_repack_{digest}"
    assert place == f"{module}__arch_9.0a__tvmffi_0.1.11"


PRODUCT = SimpleNamespace(
    act_type=SimpleNamespace(name="bf16"), weight_type=SimpleNamespace(name="e2m1"), cta_shape=(64, 16, 128),
    cga_shape=(1, 1, 1), mainloop_schedule=SimpleNamespace(name="TmaWarpSpecializedCooperative"),
)  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "is_asked"),
    [
        ({}, True),
        ({"cta_shape": (64, 16, 256)}, False),
        ({"cta_shape": (128, 64, 256)}, True),
        ({"cta_shape": (128, 64, 256), "cga_shape": (1, 2, 1)}, False),
        ({"cta_shape": (128, 64, 256), "mainloop_schedule": SimpleNamespace(name="TmaWarpSpecializedPingpong")}, False),
        ({"act_type": SimpleNamespace(name="f16")}, False),
        ({"weight_type": SimpleNamespace(name="u4")}, False),
    ],
)
def test_cutlass__compiles_the_products_that_the_layer_calls(changes, is_asked):
    assert cutlass.is_called(SimpleNamespace(**vars(PRODUCT) | changes)) is is_asked


def test_cutlass__products_of_one_height_lie_together(tmp_path):
    products = [SimpleNamespace(**vars(PRODUCT) | {"cta_shape": (rows, 16, 128)}) for rows in (64, 128) for _ in range(9)]
    written = {}
    generator = SimpleNamespace(
        generate_sm90_mixed_type_grouped_gemm_operations=lambda *, is_arch_enabled: products * is_arch_enabled,
        write_file=lambda _, operations, path: written.update({Path(path).name: {one.cta_shape[0] for one in operations}}),
    )

    assert [path.name for path in cutlass.write_products(generator, tmp_path)] == list(written)
    assert written == {f"products_{rows}_{number}.cu": {rows} for rows in (64, 128) for number in (0, 1)}


FLASHINFER = """
struct __nv_bfloat16 {}; struct __nv_fp4_e2m1 {}; struct half {};
namespace tensorrt_llm { template <class A, class W> struct Runner { static int run(); }; }
"""
CALLS = """using namespace tensorrt_llm;
int bind() { return Runner<half, half>::run() + Runner<__nv_bfloat16, __nv_fp4_e2m1>::run(); }"""
HOLDS = "template <class A, class W> int tensorrt_llm::Runner<A, W>::run() { return 1; }"


@pytest.mark.parametrize("is_whole", [True, False])
def test_cutlass__what_is_of_other_types_is_null_and_what_the_layer_calls_is_there(tmp_path, monkeypatch, is_whole):
    instance = f"{HOLDS} template struct tensorrt_llm::Runner<__nv_bfloat16, __nv_fp4_e2m1>;" if is_whole else ""
    codes = {"flashinfer_cutlass_fused_moe_binding": CALLS, "layer": instance, "logger": "", "libcudart": ""}
    (tmp_path / "lib64").mkdir()
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    for name, code in codes.items():
        target = tmp_path / f"{name}.o" if name != "libcudart" else tmp_path / "lib64" / "libcudart.so.13"
        (tmp_path / f"{name}.cpp").write_text(FLASHINFER + code + "\n")
        how = "-c" if target.suffix == ".o" else "-shared"
        cutlass.build(["c++", "-fPIC", how, str(tmp_path / f"{name}.cpp"), "-o", str(target)], target)
    objects, library = sorted(tmp_path.glob("*.o")), tmp_path / "fused.so"

    if not is_whole:
        with pytest.raises(SystemExit, match=r"lacks tensorrt_llm::Runner<__nv_bfloat16, __nv_fp4_e2m1>::run\(\), and 0 more"):
            cutlass.link(objects, library)
        return
    cutlass.link(objects, library)
    cutlass.pack(library, "0.6.14", tmp_path / "archive.tar.xz")
    with tarfile.open(tmp_path / "archive.tar.xz") as tar:
        tar.extractall(tmp_path / "site", filter="data")
    words = "import ctypes, flashinfer_jit_cache as c; ctypes.CDLL(c.get_jit_cache_dir() + '/fused_moe_90/fused_moe_90.so', 2)"
    subprocess.run([sys.executable, "-c", words], check=True, cwd=tmp_path / "site")


def test_keep__the_last_out_is_its_own(tmp_path, monkeypatch, capsys):
    words = ["-c", "import sys; print(sys.argv[1:])", "--out", "of the command"]
    monkeypatch.setattr(sys, "argv", ["keep.py", *words, "--out", str(tmp_path / "kept"), "--caches", str(tmp_path)])
    monkeypatch.setattr(keep.signal, "signal", lambda *_: None)
    keep.main()

    assert json.loads(capsys.readouterr().out)["argv"] == words
    assert (tmp_path / "kept" / "output.txt").read_text() == "['--out', 'of the command']\n"


def test_keep__ends_what_a_command_that_hangs_has_spawned(tmp_path, monkeypatch):
    monkeypatch.setattr(keep, "LIMIT_S", 2.0)
    sleep = "import time; time.sleep(60)"
    spawn = f"import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', sys.argv[1]]).pid, flush=True); {sleep}"
    told = keep.keep(["-c", spawn, sleep], tmp_path, None)
    spawned = int((tmp_path / "output.txt").read_text())

    assert told["exit_code"] == "ended after 2 s"
    with suppress(psutil.NoSuchProcess):
        while psutil.Process(spawned).status() != psutil.STATUS_ZOMBIE:
            time.sleep(0.02)


def test_main__dry_run_starts_nothing(tmp_path, capsys):
    code = campaign.main(["--seconds", "1", "--out", str(tmp_path / "out"), "--home", str(tmp_path / "home"), "--dry-run"])

    assert code == 0
    assert campaign.read_table(campaign.HERE / "wanted.toml")[0].name in capsys.readouterr().out
    assert not (tmp_path / "home").exists()


def test_main__measures_the_rows_that_are_named_in_their_order(tmp_path, capsys):
    names = [row.name for row in read_table(HERE / "wanted.toml") if row.gpus == 1][2::-2]
    folders = ["--out", str(tmp_path / "out"), "--home", str(tmp_path / "home")]
    rows = [word for name in names for word in ("--row", name)]

    assert campaign.main(["--seconds", "1", *folders, *rows, "--more", "--dry-run"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == names
    with pytest.raises(SystemExit, match="--row none: the table has no such row of 1 GPU"):
        campaign.main(["--seconds", "1", *folders, "--row", "none", "--dry-run"])


def test_main__rows_of_two_gpus_are_measured_by_a_campaign_of_the_whole_machine_alone(tmp_path, capsys):
    shown = {}
    for gpus in ("1", "2", "3"):
        folders = ["--out", str(tmp_path / "out"), "--home", str(tmp_path / "home")]
        assert campaign.main(["--seconds", "1", *folders, "--gpus", gpus, "--dry-run"]) == 0
        shown[gpus] = [line.split()[0] for line in capsys.readouterr().out.splitlines() if line]

    rows = read_table(HERE / "wanted.toml")
    assert shown["1"] == [row.name for row in rows if row.gpus == 1]
    assert shown["2"] == [row.name for row in rows if row.gpus == 2] != []
    assert shown["3"] == []


def test_describe_layers__a_collapsed_layer_and_one_that_routes():
    even, collapsed = [1] * 8, [4, 4, 0, 0, 0, 0, 0, 0]
    routed, stuck = recorder.describe_layers([[even, collapsed], [even, collapsed]])

    assert routed == {"experts": 8, "used": 8, "effective": 8.0, "imbalance": 1.0, "distinct": 8}
    assert stuck == {"experts": 8, "used": 2, "effective": 2.0, "imbalance": 4.0, "distinct": 2}
    uneven = recorder.describe_layers([[[3, 1]]])[0]
    assert uneven["effective"] == round(2.718281828459045 ** (-0.75 * log(0.75) - 0.25 * log(0.25)), 2)
    assert recorder.summarise([routed, stuck]).endswith("fewest used 2")


def test_read_steps__of_what_the_recorder_wrote(tmp_path):
    torch = pytest.importorskip("torch", reason="the engine brings it")
    counts = torch.zeros((4, 2, 4), dtype=torch.int32)
    counts[0] = 2  # 4 tokens of 2 experts each
    counts[1] = 100  # 200 tokens: a prefill
    torch.save({"logical_count": counts}, tmp_path / "expert_distribution_recorder_1.0.pt")

    steps = recorder.read_steps(tmp_path, top_k=2)

    assert {name: len(found) for name, found in steps.items()} == {"all": 2, "decode": 1}
    assert steps["decode"] == [[[2] * 4] * 2]


@pytest.mark.parametrize(
    ("name", "is_left_out"),
    [
        ("sgl_kernel/flash_ops.abi3.so", True),
        ("sgl_kernel/sm90/common_ops.abi3.so", False),
        ("sglang/multimodal_gen/runtime/server.py", True),
        ("sglang/srt/server_args.py", False),
        ("xgrammar/lib/libxgrammar.a", True),
        ("triton_kernels/matmul_ogs.py", False),
        ("flashinfer/data/cutlass/include/cute/tensor.hpp", True),
        ("vllm/vllm-rs", True),
        ("vllm/vllm_flash_attn/_vllm_fa3_C.abi3.so", True),
        ("vllm/_C_stable_libtorch.abi3.so", False),
        (".nixl_cu13.mesonpy.libs/plugins/libplugin_OBJ.so", True),
        (".nixl_cu13.mesonpy.libs/plugins/libplugin_UCX.so", False),
        ("nixl_cu13.libs/ucx/libuct_cuda.so.0.0.0", False),
        ("sglang_router/sglang_router_rs.abi3.so", True),
    ],
)
def test_bundle__leaves_out_what_the_triton_path_never_loads(name, is_left_out):
    assert bundle.is_any(name, bundle.LEFT_OUT) is is_left_out


def test_bundle__every_requirement_is_pinned():
    lines = [line for line in bundle.PINS.read_text().splitlines() if not line.startswith("#")]

    assert {"sglang==0.5.16", "sglang-kernel==0.4.5"} <= set(lines)
    assert all(line.count("==") == 1 for line in lines)


RELEASES = [name for name in bundle.OVERLAYS if name[0].isdigit()]


@pytest.mark.parametrize("release", RELEASES)
def test_overlays__other_releases_pin_what_the_bundle_has_otherwise(release):
    named = {line.partition("==")[0] for line in bundle.PINS.read_text().splitlines()}
    wheels = bundle.OVERLAYS[release].wheels

    assert f"sglang=={release}" in wheels
    assert {pin.partition("==")[0] for pin in wheels} <= named


@pytest.mark.parametrize("name", bundle.OVERLAYS)
def test_overlays__each_pins_what_the_bundle_lacks_or_has_otherwise(name):
    lines = bundle.PINS.read_text().splitlines()

    pins = (*bundle.OVERLAYS[name].wheels, *bundle.OVERLAYS[name].parts)
    assert all(pin.count("==") == 1 and pin not in lines for pin in pins)


def test_overlays__another_engine_comes_first_and_keeps_its_code():
    assert bundle.OVERLAYS["vllm-0.26.0"].wheels[0] == "vllm==0.26.0"
    assert bundle.is_any("vllm/_moe_C_stable_libtorch.abi3.so", bundle.FAT)


def write_wheel(folder, package, version, files):
    """A wheel of some files, with the metadata by which its version and its files are known."""
    about = f"{package}-{version}.dist-info"
    record = "".join(f"{name},,\n" for name in (*files, f"{about}/METADATA", f"{about}/RECORD"))
    own = {f"{about}/METADATA": f"Name: {package}\nVersion: {version}\n", f"{about}/RECORD": record}
    path = folder / f"{package}-{version}-py3-none-any.whl"
    with ZipFile(path, "w") as wheel:
        for name, content in {**files, **own}.items():
            wheel.writestr(name, content)
    return path


@pytest.fixture
def archives(tmp_path):
    """A bundle of two packages, and a release over it in which one of them differs."""
    folder = tmp_path / "archives"
    folder.mkdir()
    same = write_wheel(folder, "torchlet", "1", {"torchlet/__init__.py": ""})
    files = {"sglang/__init__.py": "number = 16\n", "sglang/same.py": "", "sglang/old/only.py": ""}
    first = write_wheel(folder, "sglang", "0.5.16", files)
    files = {"sglang/__init__.py": "number = 17\n", "sglang/same.py": "", "sglang/new.py": ""}
    second = write_wheel(folder, "sglang", "0.5.17", files)
    bundle.write(folder / "sglang-0.5.16.tar.xz", [first, same])
    bundle.write_over(folder / "sglang-0.5.17.tar.xz", [second], folder / "sglang-0.5.16.tar.xz", bundle.Overlay(wheels=()))
    return folder / "sglang-0.5.16.tar.xz", folder / "sglang-0.5.17.tar.xz"


def test_write_over__holds_what_differs_and_names_what_is_gone(archives):
    first, second = archives
    again = second.with_name("again.tar.xz")
    bundle.write_over(again, [second.with_name("sglang-0.5.17-py3-none-any.whl")], first, bundle.Overlay(wheels=()))

    assert again.read_bytes() == second.read_bytes()
    with tarfile.open(second) as tar:
        about = "sglang-0.5.17.dist-info"
        assert set(tar.getnames()) == {
            bundle.GONE,
            "sglang/__init__.py",
            "sglang/new.py",
            f"{about}/METADATA",
            f"{about}/RECORD",
        }
        gone = tar.extractfile(bundle.GONE).read().decode().split()
    assert gone == ["sglang-0.5.16.dist-info/METADATA", "sglang-0.5.16.dist-info/RECORD", "sglang/old/only.py"]


def test_write_over__hides_packages_and_brings_files_of_no_wheel(archives):
    first, second = archives
    again = second.with_name("again.tar.xz")
    wheels = [second.with_name("sglang-0.5.17-py3-none-any.whl")]
    overlay = bundle.Overlay(wheels=(), hidden=("torchlet/*",), stand_ins={"sglang/router.py": b"number = 7\n"})
    bundle.write_over(again, wheels, first, overlay)

    with tarfile.open(again) as tar:
        assert tar.extractfile("sglang/router.py").read() == b"number = 7\n"
        gone = tar.extractfile(bundle.GONE).read().decode().split()
    assert gone[-2:] == ["sglang/old/only.py", "torchlet/__init__.py"]


def test_write_over__takes_part_of_a_wheel_and_leaves_its_package(archives):
    first, second = archives
    files = {"sglang/__init__.py": "number = 18\n", "sglang/same.py": "", "sglang/new.py": "new = 1\n"}
    wheel = write_wheel(second.parent, "sglang", "0.5.18", files)
    overlay = bundle.Overlay(wheels=(), parts={"sglang==0.5.18": "sglang/[!_]*"}, hidden=("sglang/old/*", "sglang/same.py"))
    part = second.with_name("part.tar.xz")
    bundle.write_over(part, [wheel], first, overlay)

    with tarfile.open(part) as tar:
        assert tar.getnames() == [bundle.GONE, "sglang/new.py"]
        assert tar.extractfile(bundle.GONE).read().decode().split() == ["sglang/old/only.py"]


def write_library(folder, wheel, name, code):
    """A wheel with one library, compiled from `code`."""
    (folder / "code.c").write_text(code)
    library = folder / "library.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(folder / "code.c")], check=True)  # noqa: S607
    with ZipFile(folder / wheel, "w") as archive:
        archive.write(library, name)
    return folder / wheel


@pytest.mark.skipif(not (shutil.which("cc") and shutil.which("nm")), reason="no C compiler, or no nm")
def test_symbols__names_what_a_torch_lacks(tmp_path, capsys):
    torch = write_library(tmp_path, "torch-2.whl", "torch/lib/libtorch.so", "int aoti_torch_old(void) { return 7; }")
    code = "int aoti_torch_old(), aoti_torch_new(), other(); int f() { return aoti_torch_old() + aoti_torch_new() + other(); }"
    wheel = write_library(tmp_path, "sglang_kernel-9-cp310-abi3.whl", "sgl_kernel/sm90/common_ops.abi3.so", code)

    symbols.main(torch, [wheel])

    assert capsys.readouterr().out.split("\n") == [
        "sglang_kernel-9 sgl_kernel/sm90/common_ops.abi3.so: 1 of 2 missing",
        "  aoti_torch_new",
        "",
    ]


ASK = """
import importlib.metadata, sglang, subprocess, sys, torchlet
print(sglang.number, importlib.metadata.version("sglang"))
if sys.argv[1:]:
    sys.stdout.flush()
    subprocess.run([sys.executable, *sys.argv[1:]], check=True)
"""


def test_lay__each_release_has_a_python_whose_processes_find_it_first(archives, place):
    with tarfile.open(archives[0]) as tar:
        tar.extractall(place.site, filter="data")
    stale = place.site / "sglang" / "__pycache__" / "stale.pyc"
    stale.parent.mkdir()
    stale.touch()
    releases.lay(place.home, archives)
    releases.lay(place.home, archives)

    found = {}
    script = place.home / "ask.py"
    script.write_text(ASK)
    for version in ("0.5.16", "0.5.17"):
        python = place.home / "releases" / version / "bin" / "python"
        argv = [str(python), str(script), str(script)]
        found[version] = subprocess.run(argv, env=place.environment, check=True, capture_output=True, text=True).stdout.split()
    assert found == {"0.5.16": ["16", "0.5.16"] * 2, "0.5.17": ["17", "0.5.17"] * 2}
    over = place.home / "releases" / "0.5.17" / "site"
    assert (place.site / "sglang" / "__init__.py").read_text() == "number = 16\n"
    assert (over / "sglang" / "same.py").samefile(place.site / "sglang" / "same.py")
    assert not any((over / name).exists() for name in ("sglang/old", "sglang-0.5.16.dist-info", bundle.GONE))
    assert not list(over.rglob("stale.pyc"))


def test_make_python__finds_what_the_running_one_has(tmp_path):
    (tmp_path / "empty").mkdir()
    releases.make_python(tmp_path / "release", tmp_path / "empty")
    argv = [str(tmp_path / "release" / "bin" / "python"), "-c", "import pytest; print(pytest.__file__)"]

    assert subprocess.run(argv, check=True, capture_output=True, text=True).stdout.strip() == pytest.__file__


@pytest.mark.usefixtures("little")
def test_run__row_of_a_release_that_is_not_there_waits(place):
    allow(place, 1, 2)
    python = place.home / "releases" / "0.5.17" / "bin" / "python"
    row = make_row(command=("--blocks", "2", "--candidate-python", "{home}/releases/0.5.17/bin/python"))
    call = make_call(place)
    call.run([row])

    assert call.state["done"] == {}
    assert f"aa: not begun, {python} is not there" in (place.home / campaign.LOG).read_text()

    python.parent.mkdir(parents=True)
    python.touch()
    call.run([row])
    assert call.state["done"]["aa"]["is_whole"]


def test_parse__refuses_a_release_without_the_bundle_that_it_is_laid_over(capsys):
    with pytest.raises(SystemExit):
        campaign.parse(["--seconds", "1", "--out", "out", "--release", "sglang-0.5.17.tar.xz"])
    assert "--release needs --bundle" in capsys.readouterr().err


def collect_slots(tmp_path, slots):
    """What `slots.sh wait` does about slots that have ended: each a home by what lies in it."""
    home, out = tmp_path / "slots", tmp_path / "out"
    out.mkdir()
    for number, files in enumerate(slots):
        for name, text in files.items():
            path = home / f"slot-{number}" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    # Neither the home of a real machine nor a campaign that another session runs here.
    script = (
        (HERE / "slots.sh").read_text().replace("/tmp/perfgate-slots", str(home)).replace("campaign/campaign.py", "no/one.py")
    )
    (tmp_path / "slots.sh").write_text(script)
    environment = {**os.environ, "OUT": str(out)}
    done = subprocess.run(
        ["/bin/bash", tmp_path / "slots.sh", "wait", "1"], check=False, capture_output=True, text=True, env=environment
    )
    return done, out


def list_packed(out, name):
    packed = b"".join(path.read_bytes() for path in sorted(out.glob(f"{name}.tar.xz.*")))
    with tarfile.open(fileobj=BytesIO(packed), mode="r:xz") as archive:
        return sorted(member.name for member in archive if member.isfile())


def test_slots__without_caches_bring_what_they_measured(tmp_path):
    files = {"campaign.log": "begun\n", "out.log": "begun\n", "state.json": "{}", "results/a/session.json": "{}", "tree/x": ""}

    done, out = collect_slots(tmp_path, [files, {"out.log": "Traceback (most recent call last):\nKeyError: 'a'\n"}])

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("begun") == 1
    assert "KeyError" in done.stdout
    assert list_packed(out, "lease") == ["slot-0/campaign.log", "slot-0/results/a/session.json", "slot-0/state.json"]
    assert not list(out.glob("caches*"))


def test_slots__merge_the_caches_of_all(tmp_path):
    slots = [{"campaign.log": "", "out.log": "", f"caches/{arm}/kernel-{arm}": ""} for arm in ("base", "candidate")]

    done, out = collect_slots(tmp_path, slots)

    assert (done.returncode, done.stderr) == (0, "")
    assert list_packed(out, "caches") == ["caches/base/kernel-base", "caches/base/kernel-candidate"]

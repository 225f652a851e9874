"""Slow-downs as the server's hooks apply them, what they say they spent, and how a calibration reads it."""

import asyncio
import json
import re
import sys
import types
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from perfgate.errors import CalibrationError, InputError, ServerError
from perfgate.gate.calibrate import choose_injection, find_injected, find_shares, read_step_ms
from perfgate.results.results import load_results
from perfgate.scenario.injections import Injection, parse_injection
from perfgate.serving.injection import injection as module
from perfgate.serving.injection.injection import (
    SpinHooks,
    delay_batches,
    delay_requests,
    folder_name,
    register,
    slow_down,
)
from perfgate.serving.injection.injection_log import MEASURED, PERIOD, PROOF, Tally, read_injected_us
from tests.fakes.sessions import make_scenario, make_session, write_folder


@pytest.mark.parametrize(
    ("text", "kind", "amount", "period", "is_ratio"),
    [
        ("step:0.25", "step", 0.25, 1, True),
        ("step:0.25/10", "step", 0.25, 10, False),
        ("tail:4", "tail", 4.0, 200, False),
        ("tail:4/50", "tail", 4.0, 50, False),
        ("host:500", "host", 500.0, 1, False),
        ("host:8000/50", "host", 8000.0, 50, False),
        ("gpu:1.5", "gpu", 1.5, 1, False),
        ("rank:15", "rank", 15.0, 1, False),
        ("allreduce:5", "allreduce", 5.0, 1, False),
        ("prefill:10000", "prefill", 10_000.0, 1, False),
        ("decode:500/20", "decode", 500.0, 20, False),
        ("request:80000", "request", 80_000.0, 1, False),
    ],
)
def test_parse_injection__every_kind(text, kind, amount, period, is_ratio):
    assert parse_injection(text) == Injection(kind=kind, amount=amount, period=period)
    assert parse_injection(text).is_ratio is is_ratio


@pytest.mark.parametrize(
    "text",
    [
        "gpu:10/50",
        "rank:10/50",
        "allreduce:5/2",
        "host:500/",
        "host:500/1",
        "host:500/10001",
        "host:5/1e3",
        "tail:4/-2",
        "host:5/²",
    ],
)
def test_parse_injection__one_step_in_so_many_refused(text):
    with pytest.raises(InputError, match="in how many steps one is slowed, 2 to 10000"):
        parse_injection(text)


@pytest.mark.parametrize("text", ["rank:15\n", "rank: 15", "allreduce:1_5", "allreduce:\uff15", "rank:5\u2028", "rank:5/../x"])
def test_attack__an_injection_that_writes_a_line(text):
    """Its text names a folder, and stands in a server's log as the proof of what was injected."""
    with pytest.raises(InputError, match="is no injection"):
        parse_injection(text)


def test_folder_name__has_no_path_in_it():
    assert folder_name("host:8000/50") == "host-8000-in-50"


@pytest.mark.parametrize("text", ["gpu", "gpu:0", "host:-1", "host:100001", "step:101", "gpu:nan", "gpu:inf", "nap:1", ""])
def test_parse_injection__refused(text):
    with pytest.raises(InputError, match="host:MICROSECONDS or gpu:MICROSECONDS"):
        parse_injection(text)


@pytest.fixture
def slept(monkeypatch):
    """The seconds that were slept, on a clock that only sleeping moves."""
    clock = types.SimpleNamespace(now=100.0, naps=[])

    def sleep(seconds):
        clock.naps.append(seconds)
        clock.now += seconds

    monkeypatch.setattr(module.time, "sleep", sleep)
    monkeypatch.setattr(module.time, "perf_counter", lambda: clock.now)
    return clock


def test_delay_batches__sleeps_before_each_batch(slept, capsys):
    hook = delay_batches(Injection(kind="host", amount=500.0))
    answers = [hook(lambda value: value + slept.now, 1.0) for _ in range(PERIOD)]

    assert answers[0] == pytest.approx(101.0005)
    assert slept.naps == pytest.approx([500e-6] * PERIOD)
    assert capsys.readouterr().out.splitlines() == [
        f"{PROOF}: host:500",
        f'{MEASURED}{{"kind": "host", "steps": 100, "injected_us": 50000.0}}',
    ]


def test_slow_down__a_share_of_what_the_step_took(slept):
    def take(seconds):
        slept.now += seconds
        return seconds

    hook = slow_down(Injection(kind="step", amount=0.25))

    assert [hook(take, 0.4), hook(take, 0.8)] == [0.4, 0.8]
    assert slept.naps == pytest.approx([0.1, 0.2])


def test_slow_down__one_step_in_two_hundred(slept):
    hook = slow_down(parse_injection("tail:4.0"))
    for _ in range(400):
        hook(lambda: None)

    assert len(slept.naps) == 2


def test_delay_batches__one_batch_in_fifty(slept, capsys):
    hook = delay_batches(parse_injection("host:8000/50"))
    for _ in range(PERIOD):
        hook(lambda: None)

    assert slept.naps == pytest.approx([8e-3, 8e-3])
    assert capsys.readouterr().out.splitlines()[1] == f'{MEASURED}{{"kind": "host", "steps": 100, "injected_us": 16000.0}}'


@pytest.mark.parametrize(("text", "naps"), [("prefill:10000", 4), ("decode:10000", 96), ("decode:10000/4", 24)])
def test_delay_batches__of_one_kind(slept, capsys, text, naps):
    hook = delay_batches(parse_injection(text))
    for step in range(100):
        mode = types.SimpleNamespace(is_extend=lambda step=step: step % 25 == 0)
        hook(lambda *_: None, "scheduler", types.SimpleNamespace(forward_mode=mode))

    assert slept.naps == pytest.approx([10e-3] * naps)
    assert capsys.readouterr().out == f"{PROOF}: {text.partition('/')[0]}\n"


def test_delay_requests__others_are_served_while_one_waits(capsys):
    hook, begun = delay_requests(Injection(kind="request", amount=20_000.0)), []

    async def tokenise(name):
        begun.append(name)
        return name

    async def serve():
        requests = [asyncio.ensure_future(hook(tokenise, name)) for name in ("one", "two")]
        await asyncio.sleep(0)
        return list(begun), await asyncio.gather(*requests)

    assert asyncio.run(serve()) == ([], ["one", "two"])
    assert capsys.readouterr().out == f"{PROOF}: request:20000\n"


def test_delay_requests__tells_what_a_hundred_spent(capsys):
    hook = delay_requests(Injection(kind="request", amount=1.0, period=2))

    async def serve():
        for _ in range(PERIOD):
            await hook(asyncio.sleep, 0)

    asyncio.run(serve())
    told = json.loads(capsys.readouterr().out.splitlines()[1].removeprefix(MEASURED))
    assert (told["kind"], told["steps"]) == ("request", PERIOD)
    assert told["injected_us"] >= PERIOD / 2


def test_read_injected_us__over_all_servers(tmp_path, capsys):
    for name, spent in (("one", 10.0), ("two", 40.0)):
        tally = Tally(kind="host", amount=1.0)
        for _ in range(PERIOD if name == "one" else 2 * PERIOD):
            tally.add(injected_us=spent)
        (tmp_path / name).write_text("INFO noise\n[prefix] " + capsys.readouterr().out + MEASURED + '{"kind": "ho\n')

    assert read_injected_us([tmp_path / "one", tmp_path / "two"]) == pytest.approx(30.0)


def test_choose_injection__a_share_of_the_step_over_all_layers():
    gpu = make_scenario()
    cpu = replace(gpu, server=replace(gpu.server, engine="sglang-cpu"))

    assert choose_injection(0.03, cpu, 3.6) == "step:0.03"
    # 3 % of 3.6 ms are 108 us, over the layers of the model.
    assert gpu.model.layers == 4
    assert choose_injection(0.03, gpu, 3.6) == "gpu:27"
    assert parse_injection(choose_injection(0.0101, gpu, 3.577)).amount == pytest.approx(9.032, rel=1e-3)


def test_read_step_ms__no_window_tells(tmp_path):
    folder = write_slowed(tmp_path / "out", told="")
    (folder / "windows.jsonl").write_text("")

    with pytest.raises(CalibrationError, match="no window of the base has a median_itl_ms"):
        read_step_ms(load_results(folder)[1])


def test_read_injected_us__nothing_told(tmp_path):
    (tmp_path / "log").write_text(f"{PROOF}: gpu:10\n")

    assert read_injected_us([tmp_path / "log"]) is None
    assert read_injected_us([]) is None


def write_slowed(folder, *, told):
    """A session whose base takes 10 ms a step, with the logs of two slowed servers."""
    write_folder(folder, make_session(make_scenario(), noise=1e-9))
    for number in (2, 4):
        (folder / "logs" / f"server-{number:02d}-candidate.log").write_text(told)
    (folder / "logs" / "server-01-base.log").write_text(f'{MEASURED}{{"steps": 100, "injected_us": 1e9}}\n')
    return folder


def test_find_injected__microseconds_over_the_bases_step(tmp_path):
    folder = write_slowed(tmp_path / "out", told=f'{MEASURED}{{"kind": "gpu", "steps": 100, "injected_us": 30000.0}}\n')

    assert find_injected(parse_injection("gpu:10"), load_results(folder)[1]) == pytest.approx(0.03, rel=1e-6)
    assert find_injected(parse_injection("step:0.25"), load_results(folder)[1]) == 0.25


def test_find_injected__a_rare_ratio_is_what_was_spent(tmp_path):
    folder = write_slowed(tmp_path / "out", told=f'{MEASURED}{{"kind": "tail", "steps": 100, "injected_us": 30000.0}}\n')

    assert find_injected(parse_injection("tail:4"), load_results(folder)[1]) == pytest.approx(0.03, rel=1e-6)


def test_find_injected__what_the_session_noted_goes_before_logs(tmp_path):
    folder = write_slowed(tmp_path / "out", told=f'{MEASURED}{{"kind": "gpu", "steps": 100, "injected_us": 30000.0}}\n')
    with (folder / "events.jsonl").open("a") as file:
        for steps, spent in ((100, 10_000.0), (300, 70_000.0)):
            file.write(json.dumps({"event": "injected", "arm": "candidate", "steps": steps, "injected_us": spent}) + "\n")

    assert find_injected(parse_injection("gpu:10"), load_results(folder)[1]) == pytest.approx(0.02, rel=1e-6)


def test_find_injected__logs_that_tell_nothing(tmp_path):
    folder = write_slowed(tmp_path / "out", told="")

    with pytest.raises(CalibrationError, match="did not say what the host injection spent"):
        find_injected(parse_injection("host:100"), load_results(folder)[1])


def test_find_injected__what_makes_no_step_longer(tmp_path):
    folder = write_slowed(tmp_path / "out", told=f'{MEASURED}{{"kind": "request", "steps": 100, "injected_us": 8e6}}\n')

    with pytest.raises(CalibrationError, match="request:80000 makes requests wait and no step longer"):
        find_injected(parse_injection("request:80000"), load_results(folder)[1])


def test_find_shares__a_longer_interval_is_moved_by_less():
    levels = {"median_itl_ms": 6.0, "mean_itl_ms": 9.0, "p99_itl_ms": 24.0, "output_tok_per_s": 10_000.0}

    assert find_shares(0.03, levels) == pytest.approx(
        {"median_itl_ms": 0.03, "mean_itl_ms": 0.02, "p99_itl_ms": 0.0075, "output_tok_per_s": 0.02}
    )


def test_find_shares__without_a_mean_all_are_moved_alike():
    assert find_shares(0.03, {"median_itl_ms": 6.0, "mean_e2e_ms": 900.0}) == {"median_itl_ms": 0.03, "mean_e2e_ms": 0.03}


class FakeSpin:
    """Counts what a spin on a device would do."""

    made = 0

    def __init__(self, **_):
        FakeSpin.made += 1
        self.enqueued = self.steps = 0

    def enqueue(self):
        self.enqueued += 1

    def count_step(self):
        self.steps += 1


def fake_server(monkeypatch, rank=0, ranks=1):
    """What hooks import in a server: a spin that counts, and the engine's own account of this process's tensor rank."""
    parallel = types.SimpleNamespace(tp_rank=rank, tp_size=ranks)
    monkeypatch.setitem(sys.modules, "perfgate.serving.injection.spin", types.SimpleNamespace(Spin=FakeSpin))
    for name in ("sglang", "sglang.srt"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, "sglang.srt.runtime_context", types.SimpleNamespace(get_parallel=lambda: parallel))


def test_spin_hooks__one_spin_behind_every_block(monkeypatch, capsys):
    fake_server(monkeypatch)
    FakeSpin.made = 0
    hooks = SpinHooks(kind="gpu", microseconds=10.0)
    before = hooks.enqueue(lambda value: value, 3)
    for _ in range(2):  # a draft model loads too
        hooks.load(None, types.SimpleNamespace(device="cuda", gpu_id=0))
    answers = [hooks.enqueue(lambda value: value, number) for number in range(24)]
    hooks.count(lambda: None)

    assert before == 3
    assert FakeSpin.made == 1
    assert answers == list(range(24))
    assert (hooks.spin.enqueued, hooks.spin.steps) == (24, 1)
    assert capsys.readouterr().out == f"{PROOF}: gpu:10\n"


def slow_ranks(monkeypatch, kind, ranks):
    """What each of so many tensor ranks, a process of its own in a server, enqueued behind three calls."""
    found = []
    for rank in range(ranks):
        fake_server(monkeypatch, rank, ranks)
        hooks = SpinHooks(kind=kind, microseconds=5.0)
        hooks.load(None, types.SimpleNamespace(device="cuda", gpu_id=rank))
        found.append([hooks.enqueue(lambda value: value, number) for number in range(3)])
        hooks.count(lambda: None)
        found[-1] = (found[-1], hooks.spin.enqueued if hooks.spin else 0)
    return found


def test_spin_hooks__one_rank_or_every_one(monkeypatch, capsys):
    answers = [0, 1, 2]

    assert slow_ranks(monkeypatch, "rank", 2) == [(answers, 0), (answers, 3)]
    assert capsys.readouterr().out == f"{PROOF}: rank:5\n"
    assert slow_ranks(monkeypatch, "allreduce", 2) == [(answers, 3), (answers, 3)]
    assert capsys.readouterr().out == f"{PROOF}: allreduce:5\n" * 2


@pytest.mark.parametrize("kind", ["rank", "allreduce"])
def test_spin_hooks__a_single_rank_has_none_to_wait_for(monkeypatch, kind):
    with pytest.raises(ServerError, match=f"the {kind} injection needs two tensor ranks, this server has one"):
        slow_ranks(monkeypatch, kind, 1)


def run_register(monkeypatch, text):
    """Register against a registry that only notes, and return the hooked targets."""
    noted = []
    registry = types.SimpleNamespace(register=lambda target, _, kind: noted.append((target, kind)))
    fake = types.SimpleNamespace(HookRegistry=registry, HookType=types.SimpleNamespace(AROUND="around", AFTER="after"))
    for name in ("sglang", "sglang.srt", "sglang.srt.plugins"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, "sglang.srt.plugins.hook_registry", fake)
    monkeypatch.setenv(module.VARIABLE, text)
    register()
    return noted


def test_register__hooks_only_what_is_asked_for(monkeypatch):
    assert run_register(monkeypatch, "") == []
    assert run_register(monkeypatch, "step:1") == [(module.FORWARD, "around")]
    for text in ("host:5", "prefill:5", "decode:5"):
        assert run_register(monkeypatch, text) == [(module.BATCH, "around")]
    assert run_register(monkeypatch, "request:5") == [(module.TOKENISE, "around")]
    for text, target in (("gpu:5", module.MOE), ("rank:5", module.MOE), ("allreduce:5", module.ALL_REDUCE)):
        assert run_register(monkeypatch, text) == [(module.LOAD, "after"), (target, "around"), (module.BATCH, "around")]


@pytest.mark.engine
@pytest.mark.parametrize("target", [module.FORWARD, module.BATCH, module.LOAD, module.TOKENISE, module.MOE, module.ALL_REDUCE])
def test_targets__exist_in_the_installed_engine(target):
    found = find_spec("sglang") or pytest.skip("needs the CPU engine")
    path, owner, method = re.fullmatch(r"sglang\.(.+)\.(\w+)\.(\w+)", target).groups()
    source = (Path(found.origin).parent / path.replace(".", "/")).with_suffix(".py").read_text()

    body = re.search(rf"^class {owner}\b.*?(?=^class |\Z)", source, re.DOTALL | re.MULTILINE)
    assert re.search(rf"^    (async )?def {method}\(", body[0], re.MULTILINE)


def test_spin__needs_a_gpu():
    pytest.importorskip("triton", reason="needs the CPU engine")
    from perfgate.serving.injection.spin import Spin

    with pytest.raises(ServerError, match="needs a CUDA device, this server runs on cpu"):
        Spin(kind="gpu", device="cpu", index=0, microseconds=1.0)


def test_spin__compiles_to_a_loop_over_the_clock():
    triton = pytest.importorskip("triton", reason="needs the CPU engine")
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from perfgate.serving.injection.spin import spin

    if triton.knobs.runtime.interpret:
        pytest.skip("Triton interprets here")
    made = triton.compile(ASTSource(spin, {"state": "*i64"}, {}), target=GPUTarget("cuda", 90, 32), options={"num_warps": 1})
    body = made.asm["ptx"]

    assert body.count("%globaltimer") == 2
    assert len(re.findall(r"atom\S*\.add\.u64", body)) == 2
    assert re.search(r"\bbra", body)


@pytest.mark.gpu
@pytest.mark.parametrize("microseconds", [5.0, 50.0])
def test_spin__spends_what_is_asked_in_graphs(microseconds, capsys):
    torch = pytest.importorskip("torch", reason="needs PyTorch")
    if not torch.cuda.is_available():
        pytest.skip("needs an NVIDIA GPU")
    from perfgate.serving.injection.spin import Spin

    made = Spin(kind="gpu", device="cuda", index=0, microseconds=microseconds)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(24):
            made.enqueue()
    for _ in range(4 * PERIOD):
        graph.replay()
        made.count_step()
        torch.cuda.synchronize()
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith(MEASURED)]

    assert len(lines) == 2
    assert all('"calls": 2400' in line for line in lines)
    assert made.overhead_us < microseconds

"""What a start took, by its own log, and what its server resolved to."""

import json
from dataclasses import replace

import pytest

from perfgate.cli import main
from perfgate.core import Arm
from perfgate.errors import EvidenceError, ServerError
from perfgate.results.footprint import read_cold_starts
from perfgate.results.results import load_results
from perfgate.results.server_info import ServerInfo, compare_infos, load_infos
from perfgate.serving.engine.arms import ArmSpec
from perfgate.serving.engine.startup import count_cached, read_cache, read_phases, read_sums, require_switches
from perfgate.serving.measure import measure
from tests.fakes.requests import KeptProgress, build_request, list_problems, make_launch, use_fake_engine

# As SGLang 0.5.15 writes them; the older form of the last line is that of 0.5.9.
SGLANG = """[2026-11-21 10:00:00 TP0] Load weight begin. avail mem=138.59 GB
[2026-11-21 10:00:02 TP0] Load weight end. elapsed=2.31 s, type=GptOssForCausalLM, avail mem=125.06 GB, mem usage=13.53 GB.
[2026-11-21 10:00:02 TP1] Load weight end. elapsed=9.99 s, type=GptOssForCausalLM, avail mem=125.06 GB, mem usage=13.53 GB.
[2026-11-21 10:00:09 TP0] Capture decode cuda graph end. elapsed=5.75 s, mem usage=0.49 GB, avail mem=23.80 GB.
[2026-11-21 10:00:11 TP0] Capture prefill CUDA graph end. elapsed=1.25 s, mem usage=0.49 GB, avail mem=23.80 GB.
"""
OLDER = "Capture cuda graph end. Time elapsed: 7.23 s. mem usage=0.49 GB. avail mem=23.80 GB.\n"
VLLM = """(EngineCore pid=7) INFO [default_loader.py:308] Loading weights took 1.50 seconds
(EngineCore pid=7) INFO [monitor.py:34] torch.compile takes 12.25 s in total
(EngineCore pid=7) INFO [gpu_model_runner.py:4587] Graph capturing finished in 4 secs, took 0.53 GiB
"""


@pytest.mark.parametrize(
    ("engine", "text", "phases"),
    [
        ("sglang", SGLANG, {"weights_s": 2.31, "capture_s": 7.0}),
        ("sglang", OLDER, {"capture_s": 7.23}),
        ("vllm", VLLM, {"weights_s": 1.5, "compile_s": 12.25, "capture_s": 4.0}),
        ("sglang", "loading\n", {}),
    ],
)
def test_read_phases__as_engines_write_them(tmp_path, engine, text, phases):
    (tmp_path / "log").write_text(text)

    assert read_phases(make_launch(engine), tmp_path / "log") == phases


LINKED = """host:1:9 [0] NCCL INFO Channel 00/24 : 0 1
host:1:9 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM
host:1:9 [0] NCCL INFO Channel 01/0 : 0[0] -> 1[1] via P2P/CUMEM
"""
SHARED = "host:1:9 [1] NCCL INFO Channel 01 : 1[1] -> 0[0] via SHM/direct/direct\n"
OLD = "host:1:9 [7] NCCL INFO Channel 00/0 : 7[7] -> 0[0] via P2P/direct pointer\n"
OTHER_NODE = "host:1:9 [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [receive] via NET/Socket/0\n"
REFUSED = "[2026-11-28 10:00:00 TP0] Setup Custom allreduce failed with invalid literal for int() with base 10: 'GPU-1'. To"
DISABLED = "WARNING CustomAllreduce is disabled because this process group spans across nodes."


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (LINKED, {"nccl_transports": "P2P/CUMEM"}),
        (LINKED + SHARED, {"nccl_transports": "P2P/CUMEM + SHM/direct/direct"}),
        (OLD + OTHER_NODE, {"nccl_transports": "NET/Socket/0 + P2P/direct"}),
        ("loading\n", {"nccl_transports": "unknown"}),
        (REFUSED, {"nccl_transports": "unknown", "custom_all_reduce": REFUSED[26:]}),
        (LINKED + DISABLED, {"nccl_transports": "P2P/CUMEM", "custom_all_reduce": DISABLED[8:]}),
    ],
)
def test_read_sums__as_nccl_and_engines_write_them(tmp_path, text, told):
    (tmp_path / "log").write_text(text)

    assert read_sums(replace(make_launch("sglang"), args=("--tp-size", "2")), tmp_path / "log") == told
    assert read_sums(make_launch("sglang"), tmp_path / "log") == {}


def make_cache(folder, **kernels):
    for name, code in kernels.items():
        (folder / name).mkdir(parents=True)
        (folder / name / "kernel.cubin").write_bytes(code)
    return read_cache(make_launch(TRITON_CACHE_DIR=str(folder)))


def test_read_cache__tells_arms_with_other_machine_code_apart(tmp_path):
    one = make_cache(tmp_path / "one", a=b"code", b=b"more")
    same = make_cache(tmp_path / "same", c=b"more", d=b"code")
    other = make_cache(tmp_path / "other", a=b"code", b=b"other")

    assert one.kernels == 2
    assert one == same
    assert one.digest != other.digest


def test_read_cache__only_where_the_arm_has_one_of_its_own():
    assert read_cache(make_launch()) is None


def test_measure__keeps_what_each_start_took_and_resolved_to(tmp_path, monkeypatch):
    use_fake_engine(monkeypatch, tmp_path)
    says = "Load weight end. elapsed=2.50 s, type=Fake"
    candidate = ArmSpec(env={"FAKE_BACKEND": "fa3", "FAKE_SAYS": says})
    alone = {'resident = "both"': 'resident = "one"'}
    measure(build_request(tmp_path / "out", candidate=candidate, **alone), KeptProgress())
    _, session = load_results(tmp_path / "out")
    infos = load_infos(tmp_path / "out")

    assert list_problems(session) == ()
    assert [info.start for info in infos] == [1, 2, 3, 4]
    assert list(compare_infos(infos)) == [("attention_backend", "triton", "fa3")]
    told = [window.run.values.get("weights_s") for window in session.windows if window.arm is Arm.CANDIDATE]
    assert set(told) == {2.5}
    assert main(["report", str(tmp_path / "out"), "--html", str(tmp_path / "page.html")]) == 0
    assert "Settings that the servers resolved differently" in (tmp_path / "page.html").read_text()


def test_measure__a_server_that_tells_no_settings_is_measured_all_the_same(tmp_path, monkeypatch):
    use_fake_engine(monkeypatch, tmp_path)
    measure(build_request(tmp_path / "out", candidate=ArmSpec(env={"FAKE_ENGINE": "no_info"})), KeptProgress())
    _, session = load_results(tmp_path / "out")

    assert list_problems(session) == ()
    assert {info.arm for info in load_infos(tmp_path / "out")} == {Arm.BASE}


def test_compare_infos__what_differs_among_the_starts_of_an_arm_sets_none_apart():
    infos = [
        ServerInfo(arm=Arm.BASE, start=1, settings={"port": "1", "page_size": "1"}),
        ServerInfo(arm=Arm.CANDIDATE, start=2, settings={"port": "2", "page_size": "64", "new": "x"}),
        ServerInfo(arm=Arm.BASE, start=3, settings={"port": "3", "page_size": "1"}),
    ]

    assert list(compare_infos(infos)) == [("new", "", "x"), ("page_size", "1", "64")]
    assert list(compare_infos(infos[:1])) == []


@pytest.mark.parametrize("content", ["{", "[]", json.dumps({"arm": "other", "start": 1, "settings": {}})])
def test_load_infos__a_broken_file(tmp_path, content):
    (tmp_path / "servers").mkdir()
    (tmp_path / "servers" / "start-01.json").write_text(content)

    with pytest.raises(EvidenceError, match=r"start-01\.json: "):
        load_infos(tmp_path)


def test_count_cached__only_where_the_arm_has_a_cache_of_its_own(tmp_path):
    make_cache(tmp_path / "warm", a=b"code", b=b"more")

    assert count_cached(make_launch()) == {}
    assert count_cached(make_launch(TRITON_CACHE_DIR=str(tmp_path / "cold"))) == {"cached_kernels": 0}
    assert count_cached(make_launch(TRITON_CACHE_DIR=str(tmp_path / "warm"))) == {"cached_kernels": 2}


def tell_start(number, arm, cached, ready_s, compiled=812):
    return [
        {"event": "server_started", "start": number, "arm": arm, "cached_kernels": cached},
        {"event": "server_ready", "start": number, "ready_s": ready_s, "compiled_kernels": compiled},
    ]


def test_read_cold_starts__first_start_beside_the_median_of_the_warm_ones():
    events = [
        *tell_start(1, "base", 0, 61.5),
        *tell_start(2, "candidate", 790, 24.0),
        *tell_start(3, "candidate", 812, 22.0),
        *tell_start(4, "base", 812, 20.0),
        *tell_start(5, "base", 812, 21.0),
    ]
    [found] = read_cold_starts(events)

    assert (found.arm, found.start, found.kernels) == ("base", 1, 812)
    assert (found.cold_ready_s, found.warm_ready_s) == (61.5, 20.5)


def test_read_cold_starts__without_warm_ones_and_without_caches():
    [found] = read_cold_starts(tell_start(1, "base", 0, 61.5))
    unknown = [
        {key: value for key, value in event.items() if key != "cached_kernels"} for event in tell_start(1, "base", 0, 9.0)
    ]

    assert found.warm_ready_s is None
    assert read_cold_starts(unknown) == ()
    # A server that died while it loaded has no time to ready.
    assert read_cold_starts(tell_start(1, "base", 0, 61.5)[:1]) == ()


@pytest.mark.parametrize(
    ("place", "name", "value"),
    [
        (0, "start", []),
        (0, "cached_kernels", "many"),
        (1, "ready_s", "soon"),
        (1, "ready_s", None),
        (1, "compiled_kernels", {}),
    ],
)
def test_read_cold_starts__of_a_number_that_is_none(place, name, value):
    events = tell_start(1, "base", 0, 61.5)
    events[place][name] = value

    with pytest.raises(EvidenceError, match=rf"events\.jsonl: {name}: .* is no number; the folder was damaged"):
        read_cold_starts(events)


def test_measure__cold_start_is_told_in_the_report(tmp_path, monkeypatch):
    use_fake_engine(monkeypatch, tmp_path)
    arms = {arm: ArmSpec(caches=tmp_path / "caches" / arm.value) for arm in Arm}
    make_cache(tmp_path / "caches" / "candidate" / "triton", a=b"code")
    measure(build_request(tmp_path / "out", fields={"arms": arms}), KeptProgress())
    assert main(["report", str(tmp_path / "out"), "--html", str(tmp_path / "page.html")]) == 0
    page = (tmp_path / "page.html").read_text()

    assert "Cold start, base" in page
    assert "Cold start, candidate" not in page
    assert "0 kernels compiled" in page


ON = {"enable_metrics": "True", "disable_cuda_graph": "True", "sleep_on_idle": "True"}


@pytest.mark.parametrize("engine", ["sglang-cpu", "vllm"])
def test_require_switches__that_are_on(engine):
    args = ("--max-total-tokens", "64", "--tokenizer-fast", "--load-format=dummy")

    require_switches(
        replace(make_launch(engine), args=args), ON if engine == "sglang-cpu" else {"enable_prefix_caching": "False"}
    )


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (ON | {"sleep_on_idle": "False"}, "--sleep-on-idle, and by its own settings sleep_on_idle is False"),
        (
            {"disable_cuda_graph": "True", "sleep_on_idle": "True"},
            "--enable-metrics, and by its own settings there is no enable_m",
        ),
    ],
)
def test_require_switches__one_that_is_not(settings, told):
    with pytest.raises(ServerError, match="use a version that perfgate knows") as caught:
        require_switches(make_launch("sglang-cpu"), settings)

    assert f"was started with {told}" in str(caught.value)


def test_measure__a_switch_that_a_server_did_not_take_voids_the_session(tmp_path, monkeypatch):
    use_fake_engine(monkeypatch, tmp_path)
    candidate = ArmSpec(args=("--enable-metrics",), env={"FAKE_LEFT_OUT": "--enable-metrics"})
    measure(build_request(tmp_path / "out", candidate=candidate), KeptProgress())
    _, session = load_results(tmp_path / "out")

    assert [problem for problem in list_problems(session) if "--enable-metrics, and by its own settings there is no" in problem]

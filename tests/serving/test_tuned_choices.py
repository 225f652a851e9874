"""What compilers chose by timing: equal kernels of both arms run with equal settings."""

import json
import shutil
from dataclasses import replace

import pytest

from perfgate.core import Arm
from perfgate.errors import ServerError
from perfgate.results.results import load_results
from perfgate.serving.engine.arms import ArmSpec
from perfgate.serving.measure import measure
from perfgate.serving.tuned_choices import Adopted, adopt, has_to_choose
from perfgate.storage.journal import read_lines
from tests.fakes.requests import KeptProgress, build_request, make_launch, use_fake_engine


def choose(folder, **kernels):
    for name, content in kernels.items():
        path = folder / "ab" / f"{name}.best_config"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    return folder


def read(folder):
    return {path.stem: path.read_text() for path in folder.rglob("*.best_config")}


def test_adopt__the_candidate_takes_over_what_the_base_chose(tmp_path):
    base = choose(tmp_path / "base", kernel={"XBLOCK": 256}, another={"XBLOCK": 512}, third={"XBLOCK": 8})
    candidate = choose(tmp_path / "candidate", kernel={"XBLOCK": 1024}, third={"XBLOCK": 8}, own={"XBLOCK": 1})

    assert adopt(keep_in(base), keep_in(candidate)) == Adopted(kernels=3, missing=1, differing=1)
    assert read(candidate) == read(base) | {"own": '{"XBLOCK": 1}'}
    assert adopt(keep_in(base), keep_in(candidate)) == Adopted(kernels=3, missing=0, differing=0)
    assert not [path for path in candidate.rglob("*") if path.is_file() and path.suffix != ".best_config"]


def test_adopt__how_long_the_winner_took_is_no_choice(tmp_path):
    base = choose(tmp_path / "base", kernel={"XBLOCK": 256, "time_taken_ms": 3})
    candidate = choose(tmp_path / "candidate", kernel={"XBLOCK": 256, "time_taken_ms": 9})

    assert adopt(keep_in(base), keep_in(candidate)).differing == 0


@pytest.mark.parametrize("content", ["", "{", "[]", "7"])
def test_adopt__a_choice_that_is_no_table_is_replaced(tmp_path, content):
    base = choose(tmp_path / "base", kernel={"XBLOCK": 256})
    candidate = choose(tmp_path / "candidate", kernel=content)

    assert adopt(keep_in(base), keep_in(candidate)).differing == 1
    assert read(candidate) == read(base)


def test_adopt__a_base_that_has_chosen_nothing(tmp_path):
    base, candidate = keep_in(tmp_path / "base"), keep_in(tmp_path / "candidate")

    assert adopt(base, candidate) == Adopted(kernels=0, missing=0, differing=0)
    assert has_to_choose(base)
    assert not (tmp_path / "candidate").exists()


@pytest.mark.parametrize(("base", "candidate"), [(None, None), ("base", None), (None, "candidate"), ("one", "one")])
def test_adopt__only_where_each_arm_has_a_folder_of_its_own(base, candidate):
    assert adopt(keep_in(base), keep_in(candidate)) is None


def test_adopt__one_folder_by_two_names_is_one(tmp_path):
    choose(tmp_path / "one", kernel={"XBLOCK": 256})
    (tmp_path / "other").symlink_to(tmp_path / "one")

    assert adopt(keep_in(tmp_path / "one"), keep_in(tmp_path / "other")) is None


def test_adopt__a_folder_that_cannot_be_written_is_named(tmp_path):
    choose(tmp_path / "base", kernel={"XBLOCK": 256})
    (tmp_path / "candidate").write_text("a file where a folder belongs")

    with pytest.raises(
        ServerError, match=r"candidate.*: the base's compile choices cannot be copied .*; check the folder that --caches"
    ):
        adopt(keep_in(tmp_path / "base"), keep_in(tmp_path / "candidate"))


def test_has_to_choose__a_folder_with_a_choice_and_none_at_all(tmp_path):
    choose(tmp_path, kernel={"XBLOCK": 256})

    assert not has_to_choose(keep_in(tmp_path))
    assert not has_to_choose(keep_in())


def test_adopt__an_engine_that_keeps_choices_below_its_own_cache(tmp_path):
    base, candidate = (make_launch("vllm", VLLM_CACHE_ROOT=str(tmp_path / arm)) for arm in ("base", "candidate"))
    assert has_to_choose(base)
    choose(tmp_path / "base" / "torch_compile_cache" / "torch_aot_compile" / "709b" / "inductor_cache", kernel={"XBLOCK": 256})

    assert not has_to_choose(base)
    assert adopt(base, candidate) == Adopted(kernels=1, missing=1, differing=0)
    assert read(tmp_path / "candidate") == read(tmp_path / "base")


def keep_in(folder=None):
    return make_launch() if folder is None else make_launch(TORCHINDUCTOR_CACHE_DIR=str(folder))


@pytest.mark.parametrize("resident", ["both", "one"])
def test_measure__both_arms_go_by_what_the_base_chose(tmp_path, monkeypatch, resident):
    use_fake_engine(monkeypatch, tmp_path)
    monkeypatch.setenv("FAKE_START_S", "0.3")
    arms = {arm: ArmSpec(caches=tmp_path / arm.value) for arm in Arm}
    request = build_request(tmp_path / "out", fields={"arms": arms}, **{'resident = "both"': f'resident = "{resident}"'})
    measure(request, KeptProgress())

    [chosen] = read(tmp_path / "base" / "inductor").values()
    logs = sorted((tmp_path / "out" / "logs").glob("server-*.log"))
    assert len(logs) == 4
    assert all(f"chosen by {json.loads(chosen)['num_warps']}\n" in log.read_text() for log in logs)
    adopted = [event for event in read_lines(tmp_path / "out" / "events.jsonl") if event["event"] == "choices_adopted"]
    assert [(event["kernels"], event["missing"], event["differing"]) for event in adopted] == [(1, 1, 0), (1, 0, 0)]


def test_measure__a_candidate_that_had_chosen_otherwise(tmp_path, monkeypatch):
    use_fake_engine(monkeypatch, tmp_path)
    for name in ("base", "candidate"):
        choose(tmp_path / name / "inductor", kernel={"num_warps": f"that of {name}"})
    arms = {arm: ArmSpec(caches=tmp_path / arm.value) for arm in Arm}
    measure(build_request(tmp_path / "out", fields={"arms": arms}), KeptProgress())

    adopted = [event for event in read_lines(tmp_path / "out" / "events.jsonl") if event["event"] == "choices_adopted"]
    assert [event["differing"] for event in adopted] == [1, 0]
    assert "that of base" in read(tmp_path / "candidate" / "inductor")["kernel"]


def test_measure__arms_that_share_a_cache_do_not_choose_side_by_side(tmp_path, monkeypatch):
    use_fake_engine(monkeypatch, tmp_path)
    monkeypatch.setenv("FAKE_START_S", "0.3")
    measure(
        build_request(tmp_path / "out", fields={"arms": dict.fromkeys(Arm, ArmSpec(caches=tmp_path / "both"))}), KeptProgress()
    )

    assert len({log.read_text() for log in (tmp_path / "out" / "logs").glob("server-*.log")}) == 1
    assert not [event for event in read_lines(tmp_path / "out" / "events.jsonl") if event["event"] == "choices_adopted"]


class Cutting(KeptProgress):
    """Ends the run, as a crash would, when the second block begins."""

    def step(self, text):
        super().step(text)
        if text.startswith("block 2"):
            raise KeyboardInterrupt


def test_measure__caches_that_were_lost_before_it_goes_on(tmp_path, monkeypatch):
    use_fake_engine(monkeypatch, tmp_path)
    monkeypatch.setenv("FAKE_START_S", "0.3")
    request = build_request(tmp_path / "out", fields={"arms": {arm: ArmSpec(caches=tmp_path / arm.value) for arm in Arm}})
    with pytest.raises(KeyboardInterrupt):
        measure(request, Cutting())
    for arm in Arm:
        shutil.rmtree(tmp_path / arm.value)

    measure(replace(request, resume=True), KeptProgress())

    # The second block is the candidate's to begin; its server starts second all the same, with what the base has chosen.
    logs = [(tmp_path / "out" / "logs" / f"server-0{start}.log") for start in ("3-base", "4-candidate")]
    assert logs[0].read_text() == logs[1].read_text()
    windows = [window.arm for window in load_results(tmp_path / "out")[1].windows if window.block == 2]
    assert windows[0] is Arm.CANDIDATE

"""Co-tenants beside recorded sessions: what is caught, what is wrongly void, and how sure that is."""

from dataclasses import replace

import orjson
import pytest

from benchmarks.error_rates.co_tenant_study import read_co_tenants, study_co_tenants
from benchmarks.h200.serving.co_tenants import Share, count_controls, list_voided, main
from perfgate.errors import InputError
from tests.fakes.recorded import OTHERS, ROOT
from tests.fakes.sessions import make_scenario, make_session, write_folder

SCENARIO = make_scenario()


def watch(session, *foreign, cpu=0.1):
    """The session with a number of foreign processes for each of its first windows, none for the others."""
    counts = [*foreign, *([0] * (len(session.windows) - len(foreign)))]
    windows = tuple(
        replace(
            window,
            telemetry={"foreign_processes": float(count), "foreign_cpu_share": cpu, "sm_clock_mhz": 1980.0},
        )
        for window, count in zip(session.windows, counts, strict=True)
    )
    return replace(session, windows=windows)


def test_share__exact_bounds():
    # 0.05 ** (1/5), and 1 - 0.05 ** (1/11).
    assert Share(count=5, windows=5).lower95 == pytest.approx(0.549, abs=1e-3)
    assert Share(count=0, windows=11).upper95 == pytest.approx(0.238, abs=1e-3)
    assert (Share(count=0, windows=0).lower95, Share(count=0, windows=0).upper95) == (0.0, 1.0)


def test_list_voided__each_window_by_itself():
    session = watch(make_session(SCENARIO, blocks=1), 0, 2)

    assert [is_void for _, is_void in list_voided(session, SCENARIO)][:3] == [False, True, False]
    assert all(is_void for _, is_void in list_voided(watch(session, cpu=0.8), SCENARIO))
    assert list_voided(make_session(SCENARIO, blocks=1), SCENARIO) == []


def test_count_controls__a_session_without_telemetry_counts_for_nothing():
    watched = watch(make_session(SCENARIO, blocks=1), 1, 0, 1)

    found = count_controls([(SCENARIO, watched), (SCENARIO, make_session(SCENARIO, blocks=1))])

    assert found.sessions == 1
    assert (found.foreign.count, found.foreign.windows) == (2, len(watched.windows))
    assert found.voided.count == 2


def test_main__of_the_recorded_process_on_the_gpu(capsys):
    main(OTHERS / "closed-foreign", OTHERS / "foreign-bursts.json", [OTHERS / "closed-hostload"])

    told = capsys.readouterr().out
    assert "| during the window | 5 | 5 | at least 55% |" in told
    assert "| not | 11 | 0 | at most 24% |" in told
    assert "with a foreign process: 0 of 21 windows of 1 controls, at most 13.29%" in told
    assert told.count("INVALID") == 1


def test_main__of_the_recorded_load_on_the_host(capsys):
    main(OTHERS / "closed-hostload", None, [])

    told = capsys.readouterr().out
    assert "at most 52.4%; void above 75%" in told
    assert "void: 0 of 21 windows" in told


def test_study_co_tenants__a_control_that_is_void_for_others_counts(tmp_path):
    write_folder(tmp_path / "quiet", make_session(SCENARIO, blocks=1))
    lines = [orjson.loads(line) for line in (tmp_path / "quiet/windows.jsonl").read_bytes().splitlines()]
    lines[0]["telemetry"] = {"foreign_processes": 1.0}
    lines[1]["telemetry"] = {"foreign_processes": 0.0}
    (tmp_path / "quiet/windows.jsonl").write_bytes(b"".join(orjson.dumps(line) + b"\n" for line in lines))

    found = study_co_tenants((), [tmp_path / "quiet", tmp_path / "nowhere"])

    assert found["gpu_controls"]["sessions"] == 1
    assert (found["gpu_controls"]["voided"]["count"], found["gpu_controls"]["voided"]["windows"]) == (1, 2)
    assert found["host_controls"]["voided"]["count"] == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('folder = "a"\nkind = "disk"', "co_tenant 1: kind: 'disk' is none of gpu, host"),
        ('folder = "a"\nkind = "gpu"', "co_tenant 1: one that used the gpu has the keys bursts, folder, kind"),
        ('folder = "a"\nkind = "host"\nbursts = "b"', "co_tenant 1: one that used the host has the keys folder, kind"),
    ],
)
def test_read_co_tenants__names_what_is_wrong(tmp_path, text, words):
    (tmp_path / "list.toml").write_text(f"[[co_tenant]]\n{text}\n")

    with pytest.raises(InputError, match=words):
        read_co_tenants(tmp_path / "list.toml")


def test_read_co_tenants__of_the_page():
    found = read_co_tenants(ROOT / "benchmarks/error_rates/sessions.toml")

    assert [(one.kind, one.folder.name) for one in found] == [("gpu", "closed-foreign"), ("host", "closed-hostload")]

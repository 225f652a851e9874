"""A machine prepared for real, below a folder, by systemd's own tools: users, folders, hooks, units, admission policy."""

from __future__ import annotations

import os
import shutil
import stat

import pytest

from perfgate.errors import InputError
from perfgate.runner.settings import load_runner
from perfgate.runner.setup.host import Board, Site, plan_host
from perfgate.runner.setup.host_setup import read_resolvers
from perfgate.runner.setup.topology import Share, read_shares
from tests.fakes.sick_gpu import build_library, run_with_gpu

TOOLS = ("systemd-sysusers", "systemd-tmpfiles", "systemctl")
needs_systemd = pytest.mark.skipif(
    os.getuid() != 0 or not all(map(shutil.which, TOOLS)), reason="root prepares a machine, with systemd's tools"
)
RUN = """
import sys
from perfgate.cli import main
set_gpu(name="NVIDIA H200", count={count})
sys.exit(main(["runner", "init-host", {words}]))
"""


def build_site(slots, **changes):
    shares = {name: Share(cpus="0-3 8-11", nodes="1", memory_bytes=2**36) for name in slots}
    return Site(slots=slots, shares=shares, repositories=["o/r"], **changes)


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return build_library(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def root(tmp_path):
    (tmp_path / "root").mkdir()
    return tmp_path / "root"


def prepare(library, tmp_path, *words, count=2):
    every = ["--root", str(tmp_path / "root"), *words]
    return run_with_gpu(library, tmp_path, RUN.format(count=count, words=", ".join(map(repr, every))))


def read_tree(root):
    """Everything below a folder: mode, owner's number, content."""
    return {
        str(path.relative_to(root)): (
            stat.filemode(path.lstat().st_mode),
            path.lstat().st_gid,
            path.read_bytes() if path.is_file() and not path.is_symlink() else b"",
        )
        for path in sorted(root.rglob("*"))
    }


@needs_systemd
def test_init_host__from_nothing_to_a_machine(library, tmp_path, root):
    done = prepare(library, tmp_path, "--repository", "o/r", "--clock-mhz", "1500")

    assert done.returncode == 0, done.stdout + done.stderr
    passwd = (root / "etc/passwd").read_text()
    assert "ghr0:x:" in passwd
    assert "ghr1:x:" in passwd
    assert passwd.count("/usr/sbin/nologin") == 2
    assert "perfgate:x:" in (root / "etc/group").read_text()
    modes = {
        name: stat.filemode((root / name).stat().st_mode)
        for name in ("var/lib/perfgate", "run/perfgate", "opt/perfgate/hooks/job-started.sh")
    }
    assert modes == {
        "var/lib/perfgate": "drwxr-xr-x",
        "run/perfgate": "drwxr-x---",
        "opt/perfgate/hooks/job-started.sh": "-rwxr-xr-x",
    }
    assert stat.filemode((root / "var/cache/perfgate").stat().st_mode) == "drwxr-xr-x"
    wanted = root / "etc/systemd/system/multi-user.target.wants"
    assert sorted(path.name for path in wanted.iterdir()) == [
        "perfgate-runner@0.service",
        "perfgate-runner@1.service",
    ]
    locks = {path.name: stat.filemode(path.stat().st_mode) for path in (root / "run/perfgate").iterdir()}
    assert locks == dict.fromkeys(("gate.lock", "host.lock", "gpu-GPU-0000.lock", "gpu-GPU-0001.lock"), "-rw-r-----")
    users = dict(line.split(":")[0:3:2] for line in passwd.splitlines())
    for name in ("ghr0", "ghr1"):
        assert str((root / f"etc/systemd/system/user@{users[name]}.service").readlink()) == "/dev/null"
    assert "/var/lib" not in passwd
    assert "Result.NO" in (root / "etc/polkit-1/rules.d/10-perfgate.rules").read_text()
    drop_in = (root / "etc/systemd/system/perfgate-runner@1.service.d/gpu.conf").read_text()
    assert "DeviceAllow=/dev/nvidia1 rw" in drop_in
    assert load_runner(root / "etc/perfgate/runner.toml").clock_mhz == 1500


@needs_systemd
def test_init_host__the_policy_lets_in_whom_it_names(library, tmp_path, root):
    prepare(library, tmp_path, "--repository", "o/r")
    runner = load_runner(root / "etc/perfgate/runner.toml")

    assert runner.rules.repositories == {"o/r"}
    assert {name: (slot.user, slot.gpu) for name, slot in runner.slots.items()} == {
        "0": ("ghr0", ("GPU-0000",)),
        "1": ("ghr1", ("GPU-0001",)),
    }


@needs_systemd
def test_init_host__twice_is_once(library, tmp_path, root):
    prepare(library, tmp_path, "--repository", "o/r")
    before = read_tree(root)
    done = prepare(library, tmp_path, "--repository", "o/r")

    assert read_tree(root) == before
    assert [line for line in done.stdout.splitlines() if line.startswith(("write", "rewrite"))] == []
    assert f"keep {root}/etc/perfgate/runner.toml" in done.stdout


@needs_systemd
def test_init_host__mends_its_own_files_and_keeps_the_administrators(library, tmp_path, root):
    prepare(library, tmp_path, "--repository", "o/r")
    hook, policy = root / "opt/perfgate/hooks/job-started.sh", root / "etc/perfgate/runner.toml"
    hook.write_text("#!/bin/sh\nexit 0\n")
    hook.chmod(0o666)
    policy.write_text(policy.read_text().replace('"o/r"', '"o/r", "o/other"'))
    kept = policy.read_text()

    done = prepare(library, tmp_path)

    assert done.returncode == 0, done.stderr
    assert f"rewrite {hook}" in done.stdout
    assert "kill -KILL" in hook.read_text()
    assert stat.filemode(hook.stat().st_mode) == "-rwxr-xr-x"
    assert policy.read_text() == kept


@needs_systemd
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze reads the units")
@pytest.mark.usefixtures("root")
def test_init_host__systemd_reads_what_was_written(library, tmp_path):
    done = prepare(library, tmp_path, "--repository", "o/r")

    assert "verify 3 units: systemd understands them" in done.stdout


@needs_systemd
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze reads the units")
def test_init_host__a_unit_that_systemd_does_not_understand(library, tmp_path, root):
    broken = root / "etc/systemd/system/perfgate-runner@0.service.d/local.conf"
    broken.parent.mkdir(parents=True)
    broken.write_text("[Service]\nKillMode=sometimes\n")
    done = prepare(library, tmp_path, "--repository", "o/r")

    assert done.returncode == 3
    assert "perfgate: systemd-analyze verify: " in done.stderr
    assert "Failed to parse kill mode" in done.stderr


@needs_systemd
def test_init_host__says_what_a_person_has_to_bring(library, tmp_path, root):
    (root / "etc/perfgate").mkdir(parents=True)
    (root / "etc/perfgate/app.pem").write_text("key")
    (root / "etc/perfgate/app.pem").chmod(0o644)
    done = prepare(library, tmp_path, "--repository", "o/r")

    numbered = [line.partition(". ") for line in done.stdout.splitlines() if line[:1].isdecimal()]
    assert [number for number, _, _ in numbered] == [str(number) for number in range(1, 9)]
    missing = [line.split(":")[0] for _, _, line in numbered]
    assert missing == [
        "missing /opt/perfgate/bin/perfgate",
        "missing /opt/actions-runner/run.sh",
        "missing /srv/models/hub",
        f"open {root}/etc/perfgate/app.pem",
        f"missing [registration] in {root}/etc/perfgate/runner.toml",
        "start",
        "see that it is fit",
        "calibrate",
    ]


def test_init_host__a_folder_in_place_of_a_file(library, tmp_path, root):
    (root / "opt/perfgate/hooks/job-started.sh").mkdir(parents=True)
    done = prepare(library, tmp_path, "--repository", "o/r", "--dry-run")

    assert done.returncode == 3
    assert done.stderr == f"perfgate: {root}/opt/perfgate/hooks/job-started.sh: is no file; move it away, then run this again\n"


@needs_systemd
def test_init_host__names_that_are_no_utf_8(library, tmp_path, root):
    """Accounts of people on a machine that is older than UTF-8."""
    (root / "etc").mkdir()
    (root / "etc/passwd").write_bytes(b"jose:x:1000:1000:Jos\xe9:/home/jose:/bin/sh\n")

    assert prepare(library, tmp_path, "--repository", "o/r").returncode == 0


def test_init_host__a_dry_run_changes_nothing(library, tmp_path, root):
    done = prepare(library, tmp_path, "--repository", "o/r", "--dry-run")

    assert done.returncode == 0, done.stderr
    assert list(root.iterdir()) == []
    assert f"write {root}/etc/systemd/system/perfgate-runner@.service" in done.stdout
    assert f"run systemd-sysusers --root={root} perfgate.conf" in done.stdout


@pytest.mark.parametrize(
    "case",
    [
        (["--repository", "o/r"], 0, "no GPU and no slot: nothing to prepare"),
        ([], 1, "--repository: name at least one"),
        (["--repository", 'o/r"]\nengine = "/tmp/evil'], 1, "--repository: give OWNER/NAME"),
        (["--repository", "o/r", "--gpu", "GPU-9999"], 1, "--gpu GPU-9999: is not in this machine"),
    ],
)
def test_init_host__what_it_cannot_do(library, tmp_path, root, case):
    words, count, reason = case
    done = prepare(library, tmp_path, *words, count=count)

    assert (done.returncode, reason in done.stderr) == (2, True), done.stderr
    assert list(root.iterdir()) == []


@pytest.mark.parametrize(
    "case",
    [
        ('user = "ada"\ngpu = "GPU-0000"', [], "slots.0.user: is ada, but the unit runs slot 0 as ghr0"),
        ('user = "ghr0"\ngpu = "GPU-abcd"', [], "slots.0.gpu: GPU-abcd is not in this machine"),
        ('user = "ghr0"', [], "slots.0.gpu: "),
        ('user = "ghr0"\ngpu = "GPU-0000"', ["--repository", "o/other"], "--repository: "),
        ('user = "ghr0"\ngpu = "GPU-0000"', ["--clock-mhz", "1500"], "edit `clock_mhz` there"),
        ('user = "ghr0"\ngpu = "GPU-0000"', ["--gpu", "GPU-0000,GPU-0001"], "edit `gpu` of the slots there"),
        ('user = "ghr0"\ngpu = ["GPU-0000", "GPU-abcd"]', [], "slots.0.gpu: GPU-abcd is not in this machine"),
        ('user = "ghr0"\ngpu = ["GPU-0000", "GPU-0000"]', [], "the same gpu is named twice"),
        ('user = "ghr0"\ngpu = []', [], "slots.0.gpu: "),
        ('user = "ghr0"\ngpu = "0"', [], "slots.0.gpu.0: "),
    ],
)
def test_init_host__settings_that_this_machine_cannot_serve(library, tmp_path, root, case):
    slot, words, reason = case
    (root / "etc/perfgate").mkdir(parents=True)
    (root / "etc/perfgate/runner.toml").write_text(f'repositories = ["o/r"]\n[slots.0]\n{slot}\n')
    done = prepare(library, tmp_path, *words)

    assert (done.returncode, reason in done.stderr) == (2, True), done.stderr


@pytest.mark.usefixtures("root")
def test_init_host__slots_of_some_gpus(library, tmp_path):
    done = prepare(library, tmp_path, "--repository", "o/r", "--gpu", "GPU-0003", "--dry-run", count=8)

    assert done.stdout.count("/gpu.conf") == 1
    assert "enable perfgate-runner@0.service perfgate-status.timer" in done.stdout


@needs_systemd
def test_init_host__a_slot_of_two_gpus(library, tmp_path, root):
    done = prepare(library, tmp_path, "--repository", "o/r", "--gpu", "GPU-0001,GPU-0000")
    drop_in = (root / "etc/systemd/system/perfgate-runner@0.service.d/gpu.conf").read_text()
    locks = (root / "etc/tmpfiles.d/perfgate-slots.conf").read_text()

    assert done.returncode == 0, done.stdout + done.stderr
    assert drop_in.count("DeviceAllow=/dev/nvidia1 rw\nDeviceAllow=/dev/nvidia0 rw\n") == 1
    assert [line.split()[1::3] for line in locks.splitlines()[1:]] == [
        ["/run/perfgate/gpu-GPU-0001.lock", "ghr0"],
        ["/run/perfgate/gpu-GPU-0000.lock", "ghr0"],
    ]
    slots = load_runner(root / "etc/perfgate/runner.toml").slots
    assert {name: slot.gpu for name, slot in slots.items()} == {"0": ("GPU-0001", "GPU-0000")}
    before = read_tree(root)
    assert prepare(library, tmp_path).returncode == 0
    assert read_tree(root) == before


@pytest.mark.parametrize(
    ("gpu", "reason"),
    [
        ("GPU-0000,GPU-0000", "--gpu GPU-0000: is named twice"),
        ("GPU-0000,GPU-0009", "--gpu GPU-0009: is not in this machine"),
        ("GPU-0000,GPU-0001", "--gpu GPU-0000,GPU-0001: 4 GPUs are in this machine; a slot has one GPU, or all"),
    ],
)
@pytest.mark.usefixtures("root")
def test_init_host__a_set_that_cannot_be(library, tmp_path, gpu, reason):
    done = prepare(library, tmp_path, "--repository", "o/r", "--gpu", gpu, count=4)

    assert (done.returncode, reason in done.stderr) == (2, True), done.stderr


def test_plan_host__a_slot_owns_its_device_alone():
    plan = plan_host({}, build_site({"0": [Board(uuid="GPU-a", minor=5, bus="00000000:17:00.0")]}))
    texts = {str(planned.path): planned.content for planned in plan.files}

    assert "/dev/nvidia5 rw" in texts["/etc/systemd/system/perfgate-runner@0.service.d/gpu.conf"]
    assert "\n# clock_mhz" in texts["/etc/perfgate/runner.toml"]
    with pytest.raises(InputError, match="nothing to prepare"):
        plan_host({}, build_site({}))


def test_plan_host__a_slot_has_its_cores_memory_and_networks():
    slots = {"0": [Board(uuid="GPU-a", minor=5, bus="00000000:17:00.0")]}
    plan = plan_host({}, build_site(slots, networks=["10.1.2.0/24"], resolvers=["10.0.0.53"]))
    texts = {str(planned.path): planned.content for planned in plan.files}
    lines = texts["/etc/systemd/system/perfgate-runner@0.service.d/gpu.conf"].splitlines()

    assert {"AllowedCPUs=0-3 8-11", "AllowedMemoryNodes=1", f"MemoryMax={2**36}"} <= set(lines)
    assert {"IPAddressAllow=10.0.0.53", "IPAddressAllow=10.1.2.0/24", "SupplementaryGroups=ghr0"} <= set(lines)
    assert 'networks = ["10.1.2.0/24"]' in texts["/etc/perfgate/runner.toml"]


@pytest.fixture
def sockets(tmp_path):
    """Two sockets of four cores with two threads each: 0-3 and 8-11 lie on the first; four GPUs, three of them there."""
    for place, node in {"17:00.0": 0, "3d:00.0": 0, "60:00.0": 0, "b1:00.0": 1}.items():
        folder = tmp_path / "bus/pci/devices" / f"0000:{place}"
        folder.mkdir(parents=True)
        (folder / "local_cpulist").write_text("4-7,12-15\n" if node else "0-3,8-11\n")
        (folder / "numa_node").write_text(f"{node}\n")
    for number in range(16):
        folder = tmp_path / f"devices/system/cpu/cpu{number}/topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{number % 8},{number % 8 + 8}\n")
    return tmp_path


def test_read_shares__whole_cores_of_the_gpus_own_node(sockets):
    buses = {"0": ["00000000:17:00.0"], "1": ["00000000:3D:00.0"], "2": ["00000000:60:00.0"], "3": ["00000000:B1:00.0"]}
    shares = read_shares(buses, sockets)

    assert {name: (share.cpus, share.nodes) for name, share in shares.items()} == {
        "0": ("0 8", "0"),
        "1": ("1 9", "0"),
        "2": ("2 10", "0"),
        "3": ("4-7 12-15", "1"),
    }
    unknown = read_shares({"0": ["00000000:FF:00.0"]}, sockets)["0"]
    assert (unknown.cpus, unknown.nodes) == (None, None)
    assert unknown.memory_bytes > 0


def test_read_shares__several_gpus_have_what_each_would(sockets):
    buses = {"0": ["00000000:17:00.0", "00000000:60:00.0"], "1": ["00000000:3D:00.0", "00000000:B1:00.0"]}
    shares = read_shares(buses, sockets)

    assert {name: (share.cpus, share.nodes) for name, share in shares.items()} == {
        "0": ("0-1 8-9", "0"),
        "1": ("2 4-7 10 12-15", "0-1"),
    }
    one_more = read_shares({**buses, "2": ["00000000:FF:00.0"]}, sockets)
    assert one_more["0"].memory_bytes == 2 * one_more["2"].memory_bytes


def test_read_resolvers__those_that_are_not_here(tmp_path):
    path = tmp_path / "resolv.conf"
    path.write_text("# x\nnameserver 127.0.0.53\nnameserver 10.0.0.53\nnameserver fe80::1%eth0\nnameserver\nnameserver no\n")

    assert read_resolvers(path) == ("10.0.0.53", "fe80::1")
    assert read_resolvers(tmp_path / "none") == ()


@pytest.mark.parametrize("network", ["10.1.2.3/24", "example.com", "0.0.0.0/0\nExecStartPre=/bin/evil"])
@pytest.mark.usefixtures("root")
def test_init_host__a_network_that_is_none(library, tmp_path, network):
    done = prepare(library, tmp_path, "--repository", "o/r", "--allow-network", network)

    assert (done.returncode, "--allow-network: give a network" in done.stderr) == (2, True), done.stderr

"""One measurement for a set of GPUs, or for the machine: a second one is refused at once and told whose it is."""

import contextlib
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from perfgate.cli import main
from perfgate.errors import InputError, RunnerError
from perfgate.machine import lock as machine_lock
from perfgate.machine.lock import LockHolder, find_lock_folder, hold_machine, list_holders, open_lock
from perfgate.results.results import load_results
from perfgate.serving.engine.arms import ArmSpec
from perfgate.serving.measure import measure
from perfgate.serving.watch.telemetry import find_measured
from tests.fakes.requests import KeptProgress, build_request, list_problems, use_fake_engine

ROOT = Path(__file__).parents[2]
HOLD = """
import sys
from pathlib import Path
from perfgate.machine.lock import hold_machine
devices = sys.argv[2].split(",") if sys.argv[2] else None
with hold_machine(devices, Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@contextlib.contextmanager
def another(folder, devices=""):
    """Another process that holds `devices`, or the whole machine."""
    with start(HOLD, folder, devices) as process:
        assert process.stdout.readline().strip() == "held"
        yield process


def start(code, folder, devices=""):
    """A process that ends when its input is closed, as the end of a `with` does."""
    return subprocess.Popen(
        [sys.executable, "-c", code, str(folder), devices],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


@pytest.mark.parametrize(
    ("theirs", "mine"),
    [("", None), ("", ["GPU-1"]), ("GPU-1", None), ("GPU-1", ["GPU-1"]), ("GPU-1,GPU-2", ["GPU-2", "GPU-3"])],
)
def test_hold_machine__what_overlaps_is_refused_by_the_process_that_holds_it(tmp_path, theirs, mine):
    with another(tmp_path, theirs) as other:
        with pytest.raises(RunnerError) as caught, hold_machine(mine, tmp_path):
            pass

        assert str(caught.value).startswith(f"process {other.pid} measures on ")
        assert "perfgate runner lock" in str(caught.value)
        assert "\n" not in str(caught.value)
    with hold_machine(mine, tmp_path):
        assert "host" in list_holders(tmp_path)
    assert list_holders(tmp_path) == {}


def test_hold_machine__eight_slots_of_a_host_work_side_by_side(tmp_path):
    with contextlib.ExitStack() as stack:
        for index in range(8):
            stack.enter_context(another(tmp_path, f"GPU-{index}"))
        held = list_holders(tmp_path)

        assert set(held) == {"host", *(f"gpu-GPU-{index}" for index in range(8))}
        assert len(set(held.values())) == 8


def test_hold_machine__refused_session_leaves_what_it_could_take_free(tmp_path):
    """Of two GPUs the second is not free: the first must not stay locked."""
    with another(tmp_path, "GPU-2"):
        with pytest.raises(RunnerError), hold_machine(["GPU-1", "GPU-2"], tmp_path):
            pass
        with another(tmp_path, "GPU-1"):
            assert set(list_holders(tmp_path)) == {"host", "gpu-GPU-1", "gpu-GPU-2"}


def test_hold_machine__killed_gate_is_waited_for(tmp_path):
    """Its lock is still with the process that ends its servers; one that lives would be refused at once."""
    done = tmp_path / "done"
    keep = f"import os, time\nwhile not os.path.exists({str(done)!r}): time.sleep(0.02)"
    begin = HOLD.replace(
        "with hold_machine(devices, Path(sys.argv[1])):", "with hold_machine(devices, Path(sys.argv[1])) as files:"
    )
    begin = begin.replace(
        '    print("held"',
        f'    import subprocess; subprocess.Popen([sys.executable, "-c", {keep!r}], pass_fds=files)\n    print("held"',
    )
    with start(begin, tmp_path) as process:
        assert process.stdout.readline().strip() == "held"
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert list(list_holders(tmp_path)) == ["host"]

        # Ends while it is waited for, or just before on a busy machine.
        threading.Timer(0.5, done.touch).start()
        with hold_machine(None, tmp_path):
            assert list_holders(tmp_path) == {"host": LockHolder(process=os.getpid())}


@pytest.mark.parametrize("mine", [None, ["GPU-1"]])
def test_hold_machine__lock_of_a_parent_counts(tmp_path, mine):
    """`perfgate runner lock -- perfgate gate`: the command is not kept out by the lock that it runs under."""
    devices = ",".join(mine or ())
    with hold_machine(mine, tmp_path), another(tmp_path, devices):
        assert list_holders(tmp_path)["host"] == LockHolder(process=os.getpid())


def test_hold_machine__lock_of_a_parent_on_one_gpu_is_not_the_machine(tmp_path):
    code = HOLD.replace("sys.stdin.read()", "pass")
    with hold_machine(["GPU-1"], tmp_path):
        done = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path), ""],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )

    assert done.returncode == 1
    assert f"process {os.getpid()} measures on this machine" in done.stderr


def test_hold_machine__folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")

    with pytest.raises(InputError, match="set PERFGATE_LOCKS to a folder"), hold_machine(None, tmp_path / "file" / "locks"):
        pass


def test_attack__link_in_place_of_a_session_lock(tmp_path):
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "host.lock").symlink_to(tmp_path / "victim")

    with pytest.raises(RunnerError, match="cannot be opened"), hold_machine(None, tmp_path):
        pass
    assert (tmp_path / "victim").read_text() == "precious"


def test_find_lock_folder__first_place_that_all_users_share(monkeypatch, tmp_path):
    shared, private = tmp_path / "shared", tmp_path / "private"
    for place, mode in ((shared, 0o1777), (private, 0o755)):
        place.mkdir()
        place.chmod(mode)
    monkeypatch.delenv("PERFGATE_LOCKS")
    monkeypatch.setattr(machine_lock, "PREPARED", tmp_path / "prepared")
    monkeypatch.setattr(machine_lock, "SHARED", (private, shared))

    assert find_lock_folder() == shared / "perfgate"
    with hold_machine(None, find_lock_folder()):
        pass
    assert stat.S_IMODE((shared / "perfgate").stat().st_mode) == 0o1777
    assert stat.S_IMODE((shared / "perfgate" / "host.lock").stat().st_mode) == 0o666

    (tmp_path / "prepared").mkdir()
    assert find_lock_folder() == tmp_path / "prepared"
    with open_lock(tmp_path / "prepared" / "host.lock"):
        assert stat.S_IMODE((tmp_path / "prepared" / "host.lock").stat().st_mode) == 0o660


def test_find_measured__cpu_engine_takes_the_whole_machine(tmp_path):
    request = build_request(tmp_path / "out")

    assert find_measured([ArmSpec().build_launch(request.scenario, tmp_path)]) is None


def test_measure__second_session_is_refused_and_measures_nothing(monkeypatch, tmp_path):
    use_fake_engine(monkeypatch, tmp_path)
    with another(find_lock_folder()) as other:
        with pytest.raises(RunnerError, match=f"process {other.pid} measures on this machine"):
            measure(build_request(tmp_path / "out"), KeptProgress())
        assert not (tmp_path / "out").exists()

    measure(build_request(tmp_path / "out"), KeptProgress())
    _, session = load_results(tmp_path / "out")
    assert list_problems(session) == ()


def test_lock__without_a_gpu_the_machine_is_held_alone(monkeypatch, tmp_path):
    monkeypatch.setenv("PERFGATE_LOCKS", str(tmp_path))
    with another(tmp_path, "GPU-1"):
        # It came back at all: the other one would have been waited for without end.
        assert main(["runner", "lock", "--timeout", "0", "--", "true"]) == 3
    assert main(["runner", "lock", "--timeout", "0", "--", "true"]) == 0


SLOT_UID, NEIGHBOUR_UID, SLOTS_GID = 54325, 54326, 54327
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="root makes the locks of a prepared machine")
TRY = """
import os, sys
from pathlib import Path
from perfgate.errors import PerfgateError
from perfgate.machine.lock import hold_machine
os.setgroups([{uid}]), os.setgid({gid}), os.setuid({uid})
try:
    with hold_machine(sys.argv[2].split(",") if sys.argv[2] else None, Path(sys.argv[1])):
        print("held", flush=True)
        sys.stdin.read()
except PerfgateError as error:
    print(error, flush=True)
"""
# Every way to lock a file that its owner may only read, and to be rid of it.
HOSTILE = """
import fcntl, os, sys
from pathlib import Path
os.setgroups([{uid}]), os.setgid({gid}), os.setuid({uid})
folder, told, files = Path(sys.argv[1]), [], []
for path in sorted(folder.iterdir()):
    for name, call in (
        ("unlink", lambda: path.unlink()),
        ("replace", lambda: (folder / "x").mkdir()),
        ("write", lambda: os.open(path, os.O_WRONLY)),
        ("lock alone", lambda: fcntl.lockf(files[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)),
    ):
        try:
            if name == "lock alone":
                files.append(path.open())
                fcntl.flock(files[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
            call()
            told.append(path.name + " " + name)
        except OSError:
            pass
print(",".join(told), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def prepared():
    """The locks of two slots as `perfgate runner init-host` has systemd-tmpfiles make them; in /tmp, where other users get."""
    folder = Path(tempfile.mkdtemp(prefix="perfgate-locks-"))
    os.chown(folder, 0, SLOTS_GID)
    folder.chmod(0o750)
    for name, group in (("host", SLOTS_GID), ("gate", SLOTS_GID), ("gpu-GPU-1", SLOT_UID), ("gpu-GPU-2", NEIGHBOUR_UID)):
        path = folder / f"{name}.lock"
        path.touch()
        os.chown(path, 0, group)
        path.chmod(0o640)
    yield folder
    shutil.rmtree(folder)


@contextlib.contextmanager
def as_slot(uid, code, folder, devices=""):
    """A process that becomes a slot's user, in the groups of its unit."""
    with start(code.format(uid=uid, gid=SLOTS_GID), folder, devices) as process:
        yield process


@needs_root
def test_attack__a_neighbour_who_takes_every_lock_that_it_may_read(prepared):
    with as_slot(NEIGHBOUR_UID, HOSTILE, prepared) as hostile:
        told = hostile.stdout.readline().strip()
        assert told == ""
        with as_slot(SLOT_UID, TRY, prepared, "GPU-1") as mine:
            assert mine.stdout.readline().strip() == "held"
        with as_slot(SLOT_UID, TRY, prepared, "GPU-2") as theirs:
            assert "cannot be opened" in theirs.stdout.readline()
    assert list_holders(prepared) == {}


@needs_root
def test_hold_machine__root_alone_has_a_prepared_machine_for_itself(prepared):
    with as_slot(SLOT_UID, TRY, prepared) as slot:
        assert "root alone has it for itself" in slot.stdout.readline()
    with as_slot(SLOT_UID, TRY, prepared, "GPU-1") as slot:
        assert slot.stdout.readline().strip() == "held"
        with pytest.raises(RunnerError, match=f"process {slot.pid} measures on this machine"), hold_machine(None, prepared):
            pass
    with hold_machine(None, prepared), as_slot(SLOT_UID, TRY, prepared, "GPU-1") as slot:
        assert f"process {os.getpid()} measures on GPU GPU-1" in slot.stdout.readline()


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_attack__no_file_in_place_of_a_lock(tmp_path, make):
    """Root's status names it and goes on; a session is refused, and waits for nothing."""
    make(tmp_path / "x.lock")
    make(tmp_path / "gpu-GPU-1.lock")

    assert set(list_holders(tmp_path)) == {"x", "gpu-GPU-1"}
    with pytest.raises(RunnerError, match=r"gpu-GPU-1\.lock: is no file"), hold_machine(["GPU-1"], tmp_path):
        pass


def test_attack__a_lock_signed_with_the_number_of_a_parent(tmp_path):
    """What stands in the file says nothing: the kernel is asked whether a parent holds it."""
    with another(tmp_path, "GPU-1") as other:
        for name in ("host", "gpu-GPU-1"):
            (tmp_path / f"{name}.lock").write_text(f'{{"pid": {os.getppid()}, "exclusive": true}}')
        with pytest.raises(RunnerError, match=f"process {other.pid} measures"), hold_machine(["GPU-1"], tmp_path):
            pass

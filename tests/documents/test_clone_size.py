"""What a clone carries stays small: recorded sessions are packed, and what can be made again is not tracked."""

import pytest

from tests.documents.tracked import ROOT, list_tracked

LIMIT_BYTES = 15_500_000
ADVICE = (
    "pack recorded sessions (`perfgate pack DIR`), and leave out what a command makes again: docs/explanation/sessions.md, "
    "'What the repository keeps'"
)


def measure_tracked():
    """Each tracked file that lies in the working tree, with its size; none where this is no clone."""
    paths = [ROOT / name for name in list_tracked()]
    return {path.relative_to(ROOT).as_posix(): path.lstat().st_size for path in paths if path.is_symlink() or path.is_file()}


def find_excess(sizes, limit_bytes):
    """Say by how much files are too large together, which are the largest, and what to do; None within the limit."""
    total = sum(sizes.values())
    if total <= limit_bytes:
        return None
    largest = sorted(sizes, key=sizes.get, reverse=True)[:5]
    shown = ", ".join(f"{name} {sizes[name] / 1e6:.2f} MB" for name in largest)
    return f"tracked files take {total / 1e6:.1f} MB where {limit_bytes / 1e6:.1f} MB are allowed ({shown}): {ADVICE}"


def test_tracked_files__stay_within_the_limit():
    sizes = measure_tracked()
    if not sizes:
        pytest.skip("no git clone, so nothing says which files are tracked")

    assert find_excess(sizes, LIMIT_BYTES) is None


def test_tracked_files__raw_files_of_recorded_sessions_are_packed():
    loose = sorted(name for name in measure_tracked() if name.startswith("benchmarks/") and "/windows/" in name)

    assert loose == [], ADVICE


def test_find_excess__names_the_largest():
    told = find_excess({"small": 1, "large": LIMIT_BYTES}, LIMIT_BYTES)

    assert "large 15.50 MB, small" in told
    assert "perfgate pack" in told
    assert find_excess({"large": LIMIT_BYTES}, LIMIT_BYTES) is None

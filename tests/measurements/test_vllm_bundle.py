"""benchmarks/vllm: one architecture's code is left in a library, all else stays where it was, and the page has what came."""

import json
import tarfile
from pathlib import Path
from statistics import median
from zipfile import ZipFile

import pytest

from perfgate.cli import main
from perfgate.core import Outcome
from perfgate.gate.case import load_case
from perfgate.results.raw.pack import read_raw
from tests.fakes.recorded import bring_back
from tests.kernels.scripts import loaded

FOLDER = Path(__file__).parents[2] / "benchmarks" / "vllm"
PTX, ELF = 1, 2
HEAD = 64
SESSIONS = ["vllm-mxfp4-mixed-c16-aa-2", "vllm-mxfp4-mixed-c16-aa-3"]


@pytest.fixture
def bundle():
    with loaded("bundle", FOLDER) as module:
        yield module


def entry(bundle, kind, architecture, code):
    return bundle.ENTRY.pack(kind, 1, HEAD, len(code), 0, 9, architecture).ljust(HEAD, b"h") + code


def container(bundle, *entries):
    return bundle.CONTAINER.pack(bundle.MAGIC, 1, bundle.CONTAINER.size, sum(map(len, entries))) + b"".join(entries)


def codes(bundle, library, place=0):
    """Kind, architecture and code of each entry of the container at a place."""
    size = bundle.CONTAINER.unpack_from(library, place)[3]
    begin = place + bundle.CONTAINER.size
    return [(e.kind, e.architecture, library[e.code : e.end]) for e in bundle.entries(library, begin, begin + size)]


def test_prune__keeps_the_code_of_one_architecture_and_moves_nothing_else(bundle):
    first = container(
        bundle, entry(bundle, PTX, 80, b"p" * 8), entry(bundle, ELF, 90, b"ours"), entry(bundle, ELF, 120, b"x" * 32)
    )
    library = b"text" + first + b"data" + container(bundle, entry(bundle, ELF, 90, b"also")) + b"end"

    pruned = bundle.prune(library)

    assert len(pruned) == len(library)
    assert codes(bundle, pruned, 4) == [(ELF, 90, b"ours")]
    after = 4 + len(first)
    assert pruned[after : after + 4] == b"data"
    assert codes(bundle, pruned, after + 4) == [(ELF, 90, b"also")]
    assert pruned.endswith(b"end")


def test_prune__a_container_without_it_keeps_another_architecture_in_name_only(bundle):
    others = entry(bundle, ELF, 120, b"x" * 32), entry(bundle, ELF, 75, b"y" * 16), entry(bundle, PTX, 80, b"p" * 4)

    assert codes(bundle, bundle.prune(container(bundle, *others))) == [(ELF, 75, bytes(16))]


def test_prune__portable_code_alone_stays(bundle):
    library = container(bundle, entry(bundle, PTX, 80, b"p" * 8))

    assert bundle.prune(library) == library


def test_entries__that_do_not_fill_their_container(bundle):
    data = entry(bundle, ELF, 90, b"code")

    with pytest.raises(ValueError, match="entries end at 68, and it at 60"):
        list(bundle.entries(data, 0, 60))


def test_write__same_bytes_from_the_same_wheels(bundle, tmp_path):
    names = {
        "vllm/a.py": True,
        "vllm/vllm_flash_attn/_vllm_fa3_C.abi3.so": False,
        "vllm/third_party/deep_gemm/x.py": False,
        f"{bundle.CONFIGS}E=8,N=1,device_name=NVIDIA_H200.json": True,
        f"{bundle.CONFIGS}E=8,N=1,device_name=NVIDIA_A100.json": False,
        "other/native.so": True,
    }
    with ZipFile(tmp_path / "x.whl", "w") as wheel:
        for name in names:
            wheel.writestr(name, "content")

    archives = [tmp_path / f"{index}.tar.xz" for index in range(2)]
    for archive in archives:
        bundle.write(archive, [tmp_path / "x.whl"])

    assert archives[0].read_bytes() == archives[1].read_bytes()
    with tarfile.open(archives[0]) as tar:
        assert set(tar.getnames()) == {bundle.PLACEHOLDER, *(name for name, is_kept in names.items() if is_kept)}


@pytest.fixture(scope="module")
def results():
    return bring_back(FOLDER / "results")


@pytest.fixture(scope="module")
def page():
    return (FOLDER / "README.md").read_text(encoding="utf-8")


def list_gaps(folder):
    """The gaps between tokens, in ms, of each window that counts towards a verdict and compiled nothing."""
    for text in (folder / "windows.jsonl").read_text(encoding="utf-8").splitlines():
        line = json.loads(text)
        if line["role"] != "warmup" and not line["telemetry"]["kernels_compiled"]:
            run = json.loads(read_raw(folder / line["file"]).splitlines()[-1])
            yield [1000 * gap_s for gaps in run["itls"] for gap_s in gaps]


@pytest.mark.parametrize("name", SESSIONS)
def test_equal_arms__page_holds_what_check_says(results, page, capsys, name):
    main(["check", str(results / name)])
    told, _, _ = capsys.readouterr().out.partition("\n\nscenario")

    assert f"\n```\n{told}\n```\n" in page


def test_equal_arms__first_session_is_void(results):
    verdict = load_case(results / "mxfp4-mixed-c16-aa-1").verdict

    assert (verdict.outcome, verdict.blocks) == (Outcome.INVALID, 0)


@pytest.mark.parametrize("name", ["mxfp4-mixed-c16-aa-1", *SESSIONS])
def test_equal_arms__page_holds_the_gaps_of_each_session(results, page, name):
    windows = list(list_gaps(results / name))
    gaps = [gap for window in windows for gap in window]
    long = [gap for gap in gaps if gap > 10]

    counts = f"{len(windows)} | {len(gaps):,} | {100 * len(long) / len(gaps):.1f} %"
    assert f"| `{name}` | {counts} | {median(long):.1f} ms | {median(gaps):.1f} ms |" in page

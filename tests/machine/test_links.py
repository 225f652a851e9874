"""How several GPUs are linked, asked of the real nvidia-ml-py over a shared library that plays them."""

import json
import sys

import pytest

from perfgate.core import Fingerprint
from perfgate.machine.fingerprint import read_nccl
from perfgate.machine.links import read_links
from tests.fakes.sick_gpu import build_library, run_with_gpu

CASES = [
    ({}, "NV18"),
    ({"links_down": 2}, "NV16"),
    ({"p2p_nvlink": 5, "topology": 30}, "PHB"),
    ({"p2p_nvlink": 5, "p2p_read": 5}, "SYS without peer access"),
    ({"links": 0, "topology_error": 3}, "unknown"),
    ({"p2p_error": 3, "topology": 40}, "NODE"),
    ({"init_error": 15}, "absent"),
    ({"init_error": 9}, "absent"),
]


def test_read_links__as_the_driver_tells(tmp_path):
    code = """
from perfgate.machine.links import read_links
found = []
for values in json.loads(os.environ["CASES"]):
    set_gpu(count=2, **values)
    found.append(read_links(["0", "GPU-0001"]))
print(json.dumps(found))
"""
    cases = json.dumps([values for values, _ in CASES])
    done = run_with_gpu(build_library(tmp_path), tmp_path, code, CASES=cases)

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [{"gpus": "2", "link": link} for _, link in CASES]


@pytest.mark.parametrize("devices", [(), ("0",)])
def test_read_links__a_single_gpu_has_none(devices):
    assert read_links(devices) == {}


@pytest.mark.parametrize(("installed", "version"), [(("cu12", "cu13"), "2.27.cu13"), (("cu12",), "2.27.cu12"), ((), "absent")])
def test_read_nccl__of_the_newest_cuda(tmp_path, monkeypatch, installed, version):
    for cuda in installed:
        folder = tmp_path / f"nvidia_nccl_{cuda}-2.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: nvidia-nccl-{cuda}\nVersion: 2.27.{cuda}\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    assert read_nccl(sys.executable) == version


@pytest.mark.parametrize(
    ("facts", "gpus"), [({}, 1), ({"gpus": "2"}, 2), ({"gpus": "0"}, 1), ({"gpus": "two"}, 1), ({"gpus": "²"}, 1)]
)
def test_gpus__of_a_fingerprint(facts, gpus):
    assert Fingerprint(facts=facts).gpus == gpus

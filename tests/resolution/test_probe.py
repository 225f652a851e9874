"""The parts of the probe that need no engine: pins, toolkits, names of arguments through the releases."""

import sys
from types import SimpleNamespace

import pytest

from perfgate.resolution.probe.answer import choose_toolkit, is_absent, read_pins, run_apart
from perfgate.resolution.probe.arguments import describe_graphs, describe_reduce, list_choices, list_flags, to_plain

OLD = {
    "attention_backend": "fa3",
    "prefill_attention_backend": None,
    "decode_attention_backend": "flashinfer",
    "sampling_backend": "flashinfer",
    "chunked_prefill_size": 8192,
    "tp_size": 8,
    "disable_custom_all_reduce": False,
    "enable_flashinfer_allreduce_fusion": True,
    "disable_cuda_graph": False,
    "disable_piecewise_cuda_graph": True,
    "cuda_graph_bs": [1, 2],
    "piecewise_cuda_graph_tokens": [4],
    "page_size": 1,
}
NEW = {name: value for name, value in OLD.items() if "graph" not in name} | {
    "cuda_graph_config": {"decode": {"backend": "full", "bs": [1, 2]}, "prefill": {"backend": "disabled", "bs": [4]}}
}


def test_list_choices__old_and_new_names_of_one_choice_are_equal():
    assert list_choices(OLD) == list_choices(NEW)
    assert list_choices(OLD) == {
        "attention_prefill": "fa3",
        "attention_decode": "flashinfer",
        "sampling": "flashinfer",
        "chunked_prefill": 8192,
        "all_reduce": "FlashInfer fusion, custom, NCCL",
        "graph_decode": "full",
        "graph_decode_sizes": [1, 2],
        "graph_prefill": "disabled",
        "graph_prefill_sizes": None,
    }


def test_list_choices__an_argument_that_is_gone_is_named():
    with pytest.raises(KeyError, match="sampling_backend"):
        list_choices({name: value for name, value in OLD.items() if name != "sampling_backend"})


def test_describe_graphs__no_graphs_at_all_up_to_0_5_13():
    assert describe_graphs(OLD | {"disable_cuda_graph": True})["graph_decode"] == "disabled"


def test_describe_reduce__one_gpu_sums_nothing():
    assert describe_reduce(OLD | {"tp_size": 1}) == "one GPU"


def test_describe_reduce__ways_and_backends():
    values = OLD | {"flashinfer_allreduce_fusion_backend": "mnnvl", "disable_custom_all_reduce": True, "enable_symm_mem": True}

    assert describe_reduce(values) == "FlashInfer fusion (mnnvl), symmetric memory, NCCL"


def test_list_flags__leaves_of_nested_ones_and_nothing_that_a_choice_tells():
    assert list_flags(NEW | {"nested": {"a": 1, "b": {"c": []}}}) == {
        "page_size": 1,
        "tp_size": 8,
        "nested.a": 1,
        "nested.b.c": [],
    }


def test_to_plain__what_is_no_json_is_its_type():
    assert to_plain({"a": (1, {2}), "b": object()}) == {"a": [1, ["2"]], "b": "object"}


def test_is_absent__a_single_file_stands_in_for_a_package(tmp_path, monkeypatch):
    (tmp_path / "one_file.py").touch()
    (tmp_path / "a_folder").mkdir()
    (tmp_path / "a_folder" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)

    assert [is_absent(name) for name in ("one_file", "not_there", "a_folder")] == [True, True, False]


def test_read_pins__names_extras_and_markers():
    lines = [
        "torch==2.14.1",
        "flashinfer_python[cu13]==0.7.2",
        "torch_memory_saver>=0.0.9",
        'x==1; extra == "test"',
        "torchvision",
    ]

    assert read_pins(lines) == {
        "torch": "2.14.1",
        "flashinfer-python": "0.7.2",
        "torch-memory-saver": "",
        "torchvision": "",
    }


KITS = {"2.11.0": {"triton": "3.6.0", "cuda": "13.0"}, "2.14.1": {"triton": "3.8.0", "cuda": "13.0"}}


@pytest.fixture
def installed(monkeypatch):
    modules = {
        "torch": SimpleNamespace(__version__="2.15.0+cu130", version=SimpleNamespace(cuda="13.1")),
        "triton": SimpleNamespace(__version__="3.9.0"),
    }
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)


@pytest.mark.parametrize(
    ("pin", "asked", "triton", "unknown"),
    [
        ("2.11.0", "", "3.6.0", ""),
        ("2.11.0", "3.7.1", "3.7.1", ""),
        ("2.15.0", "", "3.9.0", ""),  # the very torch that is here
        ("2.16.0", "", "3.9.0", "the release asks for torch 2.16.0, whose Triton is not known"),
        ("", "", "3.9.0", "the release asks for no one torch, whose Triton is not known"),
    ],
)
@pytest.mark.usefixtures("installed")
def test_choose_toolkit__by_the_torch_that_a_release_pins(pin, asked, triton, unknown):
    toolkit, why = choose_toolkit(pin, {"triton": asked, "toolkits": KITS})

    assert (toolkit["triton"], why) == (triton, unknown)


def test_run_apart__a_process_that_dies_says_nothing():
    assert run_apart(list, (1, 2)) == [1, 2]
    assert run_apart(exit, 3) == []

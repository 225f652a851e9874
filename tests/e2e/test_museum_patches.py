"""The functions that the museum's patches go around are in the installed SGLang, and have the parameters that they rely on."""

import ast
import importlib.util
from pathlib import Path

import pytest

from benchmarks.museum.hooks import Variant
from benchmarks.museum.patches import LAUNCH, PATCHES

SGLANG = Path(importlib.util.find_spec("sglang").submodule_search_locations[0])
TARGETS = sorted({hook.target for build in PATCHES.values() for variant in Variant for hook in build(variant)} | {LAUNCH})
PARAMETERS = {
    "add_one_req": ["self", "req"],
    "can_run": ["self", "forward_batch", "shape_key"],
    "evict": ["self", "params"],
    "fill_vocab_mask": ["self", "vocab_mask", "idx"],
    "_apply": ["self", "logits"],
    "_apply_war_barrier": ["self"],
    "_decode_batch_token_id_output": ["self", "recv_obj"],
    "_update_leaf_status": ["self", "node"],
    "run_batch": ["self", "batch"],
    "update_regex_vocab_mask": ["self"],
}


def find_function(target):
    """The definition that a dotted name means: a function of a module, or a method of a class in one."""
    parts = target.split(".")[1:]
    module = next(
        length for length in range(len(parts), 0, -1) if (SGLANG.joinpath(*parts[:length]).with_suffix(".py")).is_file()
    )
    found = ast.parse(SGLANG.joinpath(*parts[:module]).with_suffix(".py").read_text(encoding="utf-8"))
    for name in parts[module:]:
        found = next((node for node in found.body if getattr(node, "name", "") == name), None)
        assert found is not None, f"{target}: SGLang has no {name}"
    return found


@pytest.mark.parametrize("target", TARGETS)
def test_patches__go_around_what_sglang_has(target):
    function = find_function(target)

    assert isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
    wanted = PARAMETERS.get(function.name, [])
    assert [argument.arg for argument in function.args.args][: len(wanted)] == wanted


def test_patches__the_detokenizer_is_started_by_the_function_that_is_replaced():
    names = [argument.arg for argument in find_function(LAUNCH).args.args]

    assert "run_detokenizer_process_func" in names

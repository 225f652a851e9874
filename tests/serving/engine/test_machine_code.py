"""What of a compiled kernel runs, told apart from the path of its source.

`tests/fixtures/cubins/add_one.cubin` adds one to each of some floats; Triton compiled it for an H100 from /tmp/one/k.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from perfgate.serving.engine.machine_code import combine, digest_code, read_codes

CUBIN = (Path(__file__).parents[2] / "fixtures" / "cubins" / "add_one.cubin").read_bytes()
CODE = CUBIN.index(bytes.fromhex("827b01ff000a0000"))
"""Where its instructions begin: the first load of a constant."""


def change(at, content=CUBIN):
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


def test_digest_code__the_path_of_the_source_is_no_code():
    moved = CUBIN.replace(b"/tmp/one", b"/tmp/two")

    assert moved != CUBIN
    assert digest_code(moved) == digest_code(CUBIN)


def test_digest_code__one_bit_of_an_instruction():
    assert digest_code(change(CODE + 16)) != digest_code(CUBIN)


@pytest.mark.parametrize("size", [0, 5, 40, 64, 1000, 3000])
def test_digest_code__a_file_that_was_cut_counts_whole(size):
    cut = CUBIN[:size]

    assert digest_code(cut) != digest_code(CUBIN)
    assert size == 0 or digest_code(change(size - 1, cut)) != digest_code(cut)


@pytest.mark.parametrize("at", [40, 45, 58, 60, 62])
def test_digest_code__a_broken_table_of_sections(at):
    """Nothing of a damaged file may end a start: it is another file, and no more."""
    broken = CUBIN[:at] + b"\xff" + CUBIN[at + 1 :]

    assert digest_code(broken) != digest_code(CUBIN)


def test_read_codes__by_name_with_a_digest_for_each_variant(tmp_path):
    for folder, name, content in (("A", "add_one", CUBIN), ("B", "add_one", change(CODE)), ("C", "moe", b"no ELF file")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / f"{name}.cubin").write_bytes(content)
        (tmp_path / folder / f"{name}.json").write_text("{}")

    found = read_codes({"TRITON_CACHE_DIR": str(tmp_path)})

    assert {name: len(digests) for name, digests in found.items()} == {"add_one": 2, "moe": 1}
    assert found["add_one"] == tuple(sorted((digest_code(CUBIN), digest_code(change(CODE)))))
    assert read_codes({"TRITON_CACHE_DIR": str(tmp_path / "none")}) == {}
    assert read_codes({}) is None


def test_combine__what_was_compiled_twice_counts_once():
    assert combine(["b" * 16, "a" * 16, "b" * 16]) == combine(["a" * 16, "b" * 16])
    assert combine(["a" * 16]) != combine(["a" * 16, "b" * 16])

"""Traces of requests in the formats in which they are published, and what is wrong with a line."""

import pytest

from perfgate.errors import InputError
from perfgate.readers.arrivals import Arrival, read_arrivals
from perfgate.scenario.load import Load

MOONCAKE = """{"timestamp": 100, "input_length": 600, "output_length": 4, "hash_ids": [0, 1]}

{"timestamp": 1600, "input_length": 30, "output_length": 1}
{"timestamp": 2100, "input_length": 512, "output_length": 9, "hash_ids": [0]}
"""
BURST_GPT = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45.5,GPT-4,1087,230,1317,API log
"""
AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,4808,10
2023-11-16 18:17:04.0319600,3180,8
"""
AZURE_2024 = """TIMESTAMP,ContextTokens,GeneratedTokens
2024-05-10 23:59:59.500000+00:00,2162,5
2024-05-11 00:00:01.750000+00:00,2399,6
"""


@pytest.fixture
def read(tmp_path):
    """Read a text as the trace of a load with these fields."""

    def read(text, **fields):
        path = tmp_path / "trace"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        given = {"num_prompts": 2, "max_concurrency": 9, **fields}
        return read_arrivals(Load(dataset="trace", dataset_path=str(path), dataset_sha256="0" * 64, **given))

    return read


def test_read_arrivals__of_mooncake_with_its_shared_blocks(read):
    assert read(MOONCAKE, num_prompts=3) == (
        Arrival(at_s=0.0, input_len=600, output_len=4, hash_ids=(0, 1)),
        Arrival(at_s=1.5, input_len=30, output_len=1),
        Arrival(at_s=2.0, input_len=512, output_len=9, hash_ids=(0,)),
    )


@pytest.mark.parametrize(
    ("text", "second_s", "lengths"),
    [
        (BURST_GPT, 40.5, [(472, 18), (1087, 230)]),
        ("\ufeff" + BURST_GPT, 40.5, [(472, 18), (1087, 230)]),
        (AZURE, 0.052, [(4808, 10), (3180, 8)]),
        (AZURE_2024, 2.25, [(2162, 5), (2399, 6)]),
    ],
)
def test_read_arrivals__of_tables(read, text, second_s, lengths):
    first, second = read(text)

    assert [(one.input_len, one.output_len, one.hash_ids) for one in (first, second)] == [(*pair, ()) for pair in lengths]
    assert (first.at_s, second.at_s) == (0.0, pytest.approx(second_s, abs=1e-6))


def test_read_arrivals__a_slice_with_its_times_scaled(read):
    first, second = read(MOONCAKE, trace_from_s=1.0, trace_slowdown=3.0)

    assert [(one.at_s, one.input_len) for one in (first, second)] == [(0.0, 30), (1.5, 512)]


def test_read_arrivals__what_lies_behind_the_slice_is_not_read(read):
    assert len(read(MOONCAKE + "rubbish\n", num_prompts=3)) == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (MOONCAKE.replace("30,", "-3,"), "trace:3: input_length: Input should be greater than 0; correct or leave out"),
        (MOONCAKE.replace("1600", "true"), "trace:3: timestamp: Input should be a valid number"),
        (MOONCAKE.replace('"timestamp": 1600, ', ""), "trace:3: timestamp: Field required"),
        (MOONCAKE.replace("1600", "99"), "trace:3: its time is before that of the line above; sort the trace"),
        (MOONCAKE.replace("[0, 1]", "[0]"), "trace:1: hash_ids: has 1 blocks of 512 tokens where input_length 600 has 2"),
        (MOONCAKE.replace("[0, 1]", '[0, "a"]'), "trace:1: hash_ids.1: Input should be a valid integer"),
        (MOONCAKE.replace("1600", "1600,,"), "trace:3: not valid JSON ("),
        (MOONCAKE.encode().replace(b"1600", b"16\xff0"), "trace:3: not valid JSON ("),
        (BURST_GPT.replace(",230,", ",0,"), "trace:3: Response tokens: Input should be greater than 0"),
        (
            BURST_GPT.replace(",230,", f",{'9' * 400},"),
            "trace:3: Response tokens: Input should be less than or equal to 100000000",
        ),
        (MOONCAKE.replace("30,", f"{10**15},"), "trace:3: input_length: Input should be less than or equal to"),
        (BURST_GPT.replace("45.5", "4.5"), "trace:3: its time is before"),
        (AZURE.replace(",8\n", "\n"), "trace:3: GeneratedTokens: Input should be a valid integer"),
        (AZURE.replace("2023-11-16 18:17:04", "soon"), "trace:3: TIMESTAMP: Input should be a valid datetime"),
        (AZURE.replace("ContextTokens", "Tokens"), "trace:2: ContextTokens: Field required"),
        ("id,tokens\n1,2\n", "trace:1: is no trace of requests; give Mooncake's JSONL, or CSV with the columns of"),
        ("", "trace:1: is no trace of requests"),
    ],
)
def test_read_arrivals__a_wrong_line_is_named(read, text, message):
    with pytest.raises(InputError) as caught:
        read(text)

    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_prompts": 9}, "holds 3 requests from 0 s on; send fewer, or begin earlier by load.trace_from_s"),
        ({"trace_from_s": 1.7}, "holds 1 requests from 1.7 s on"),
        ({"timeout_s": 1.5}, "load.timeout_s: 1.5 s are over before the trace's last request comes, at 2 s; raise it"),
    ],
)
def test_read_arrivals__a_slice_that_cannot_be_sent(read, fields, message):
    with pytest.raises(InputError) as caught:
        read(MOONCAKE, **fields)

    assert message in str(caught.value)

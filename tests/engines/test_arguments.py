"""What a server's arguments say: options, and over how many GPUs they spread a model."""

import pytest

from perfgate.engines.arguments import Layout, read_layout, read_option


def test_read_option__the_last_one_counts():
    args = ["--quantization", "fp8", "--other", "--quantization=mxfp4", "--load-format"]

    assert read_option(args, "--quantization") == "mxfp4"
    assert read_option(args, "--load-format") == ""
    assert read_option(args, "--model") is None


@pytest.mark.parametrize(
    ("args", "layout", "gpus"),
    [
        ((), Layout(), 1),
        (("--tp-size", "2", "--ep-size", "2"), Layout(tensor=2, expert=2), 2),
        (("--tp=4", "--pp-size", "2"), Layout(tensor=4, pipeline=2), 8),
        (("--tensor-parallel-size", "2", "--enable-expert-parallel"), Layout(tensor=2), 2),
        (("--tp", "2", "--dp", "2"), Layout(tensor=2, data=2), 4),
        (("--tp", "8", "--dp", "4", "--enable-dp-attention"), Layout(tensor=8, data=4, is_attention_data=True), 8),
        (("--tp", "2", "--tp-size", "4", "--base-gpu-id", "1"), Layout(tensor=4, first_gpu=1), 4),
        (("--tp", "auto", "--dp", "0"), Layout(), 1),
        (("--tp", "2", "--disaggregation-transfer-backend", "nixl"), Layout(tensor=2, is_disaggregated=True), 4),
    ],
)
def test_read_layout__gpus_of_one_server(args, layout, gpus):
    assert read_layout(args) == layout
    assert layout.gpus == gpus


def test_layout__dp_attention_divides_attention_less_than_experts():
    layout = read_layout(("--tp", "8", "--dp", "4", "--enable-dp-attention"))

    assert (layout.weight_parts, layout.attention_ranks) == (8, 2)

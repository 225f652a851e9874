"""benchmarks/museum/placement.py: a moved expert is found where the dispatcher looks, and answers as before."""

import re
from types import SimpleNamespace

import pytest
import torch

from benchmarks.museum.hooks import Variant
from benchmarks.museum.placement import find_layers, move_experts, order_experts

EXPERTS, RANKS, WIDTH = 8, 2, 3
COUNT = EXPERTS // RANKS


class Layer(torch.nn.Module):
    """One rank's experts, as SGLang's layer holds them: a matrix and a bias of each, and a scale of the whole layer."""

    def __init__(self, rank):
        super().__init__()
        self.num_local_experts, self.moe_ep_rank, self.moe_ep_size = COUNT, rank, RANKS
        self.dispatcher = SimpleNamespace(local_expert_mapping=None)
        first = rank * COUNT
        self.matrix = torch.nn.Parameter(EVERY_MATRIX[first : first + COUNT].clone())
        self.bias = torch.nn.Parameter(EVERY_BIAS[first : first + COUNT].clone())
        self.scale = torch.nn.Parameter(torch.tensor(2.0))

    def answer(self, token, expert):
        """What this rank adds for one token and one chosen expert; zeros where the expert lies on another rank."""
        place = expert if self.dispatcher.local_expert_mapping is None else int(self.dispatcher.local_expert_mapping[expert])
        return torch.zeros(WIDTH) if place < 0 else self.scale * (self.matrix[place] @ token + self.bias[place])


torch.manual_seed(3)
EVERY_MATRIX, EVERY_BIAS = torch.randn(EXPERTS, WIDTH, WIDTH), torch.randn(EXPERTS, WIDTH)


@pytest.mark.parametrize("variant", Variant)
def test_move_experts__each_expert_answers_as_before_from_its_new_place(variant):
    ranks, token = [Layer(rank) for rank in range(RANKS)], torch.randn(WIDTH)
    order = order_experts([1.0, 5.0, 2.0, 8.0, 3.0, 7.0, 4.0, 6.0], RANKS, variant)
    whole = {part.ndim: part for part in (EVERY_MATRIX, EVERY_BIAS)}

    for layer in ranks:
        move_experts(layer, order, lambda part: whole[part.ndim])

    for expert in range(EXPERTS):
        found = torch.stack([layer.answer(token, expert) for layer in ranks])
        assert torch.equal(found.sum(dim=0), 2.0 * (EVERY_MATRIX[expert] @ token + EVERY_BIAS[expert]))
        assert int(found.any(dim=1).sum()) == 1
    held = [sorted(order[rank * COUNT : (rank + 1) * COUNT]) for rank in range(RANKS)]
    assert held == ([[1, 3, 5, 7], [0, 2, 4, 6]] if variant is Variant.BROKEN else [[0, 1, 3, 6], [2, 4, 5, 7]])


def test_find_layers__each_with_the_router_beside_it():
    model = torch.nn.Module()
    model.block = torch.nn.Module()
    model.block.router = torch.nn.Linear(WIDTH, EXPERTS)
    model.block.experts = Layer(0)

    assert list(find_layers(model)) == [(model.block.experts, model.block.router)]


def test_find_layers__a_dense_model_has_none():
    with pytest.raises(RuntimeError, match=re.escape("this model has no layer whose experts could be placed")):
        list(find_layers(torch.nn.Linear(2, 2)))

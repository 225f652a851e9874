"""Patches of what a server does on its CPU: scheduler, cache of prefixes, tokenizer and detokenizer."""

from __future__ import annotations

import copy
import heapq
import logging
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from benchmarks.museum.hooks import BROKEN, Hook, Variant, call_through

BATCH = "sglang.srt.managers.scheduler.Scheduler.run_batch"
FLUSH = "sglang.srt.managers.scheduler.Scheduler.flush_cache"
EVICT = "sglang.srt.mem_cache.radix_cache.RadixCache.evict"
LEAF = "sglang.srt.mem_cache.radix_cache.RadixCache._update_leaf_status"
ADMIT = "sglang.srt.managers.schedule_policy.PrefillAdder.add_one_req"
DETOKENIZE = "sglang.srt.managers.detokenizer_manager.DetokenizerManager._decode_batch_token_id_output"
TOKENIZE = "sglang.srt.managers.tokenizer_manager.TokenizerManager._tokenize_one_request"
LOG = logging.getLogger("perfgate.museum")
THIN = 2
"""Tokens of a leaf that minutes of short requests without a shared prefix leave behind."""
KEPT_BYTES = 512 * 1024
"""What a request leaves in memory; the report counts 7.8 MiB."""
VOCABULARY = 151_936
"""Tokens of the vocabulary that the report counts over."""
IMPORT_S = 6.0


def evict_lazily(variant: Variant) -> Sequence[Hook]:
    """SGLang builds a heap of all leaves at each eviction; the fixed one keeps a heap and looks at what it pops."""
    if variant is BROKEN:
        return (Hook(target=EVICT, around=call_through), *_fill_pool())
    heap = LazyHeap()
    return (
        Hook(target=EVICT, around=heap.evict),
        Hook(target=LEAF, around=heap.watch, is_proof=False),
        *_fill_pool(heap.clear),
    )


def evict_by_walk(variant: Variant) -> Sequence[Hook]:
    """The tree is walked from its root for leaves at each eviction; the fixed one is SGLang's own set of leaves."""
    return (Hook(target=EVICT, around=_evict_by_walk if variant is BROKEN else call_through), *_fill_pool())


def _fill_pool(clear: Callable[[], None] | None = None) -> Sequence[Hook]:
    """After each flush the pool is full of thin leaves, as after minutes of short requests; alike in all variants."""

    def fill(original: Callable[..., Any], scheduler: Any, *args: Any, **kwargs: Any) -> Any:
        is_flushed = original(scheduler, *args, **kwargs)
        if is_flushed:
            if clear is not None:
                clear()
            _insert_leaves(scheduler.tree_cache, scheduler.token_to_kv_pool_allocator)
        return is_flushed

    return (Hook(target=FLUSH, around=fill, is_proof=False),)


def _insert_leaves(cache: Any, pool: Any) -> None:
    from sglang.srt.mem_cache.base_prefix_cache import InsertParams
    from sglang.srt.mem_cache.radix_cache import RadixKey

    # No prompt has such tokens, so that nothing finds these leaves.
    for number in range(pool.available_size() // THIN):
        key = RadixKey(array("q", [-2 - number, *[-1] * (THIN - 1)]))
        cache.insert(InsertParams(key=key, value=pool.alloc(THIN)))


class LazyHeap:
    """Leaves by priority, kept from one eviction to the next; what left the tree or was used since shows when it is popped."""

    def __init__(self) -> None:
        """Begin empty."""
        self._entries: list[tuple[Any, int, Any]] = []
        self._queued: set[int] = set()
        self._count = 0

    def clear(self) -> None:
        """Forget all leaves: the tree was emptied."""
        self._entries.clear()
        self._queued.clear()

    def watch(self, original: Callable[..., Any], cache: Any, node: Any) -> None:
        """AROUND hook of what keeps the set of leaves: one that enters it enters the heap."""
        original(cache, node)
        if node in cache.evictable_leaves and node.id not in self._queued:
            self._push(cache, node)

    def _push(self, cache: Any, node: Any) -> None:
        self._count += 1
        self._queued.add(node.id)
        heapq.heappush(self._entries, (cache.eviction_strategy.get_priority(node), self._count, node))

    def evict(self, _original: Callable[..., Any], cache: Any, params: Any) -> Any:
        """AROUND hook of an eviction."""
        begun = time.perf_counter()
        return _finish_eviction(cache, self.free(cache, params.num_tokens), begun)

    def free(self, cache: Any, tokens: int) -> int:
        """Free leaves in SGLang's own order until `tokens` are free, and return how many are."""
        evicted = 0
        while evicted < tokens and self._entries:
            priority, _, node = heapq.heappop(self._entries)
            self._queued.discard(node.id)
            if node not in cache.evictable_leaves:
                continue
            if cache.eviction_strategy.get_priority(node) != priority:
                self._push(cache, node)
                continue
            evicted += _free(cache, node)
        return evicted


def _free(cache: Any, node: Any) -> int:
    cache.token_to_kv_pool_allocator.free(node.value)
    cache._delete_leaf(node)  # noqa: SLF001 - what the engine's own eviction calls
    cache._record_remove_event(node)  # noqa: SLF001 - what the engine's own eviction calls
    return len(node.value)


def _finish_eviction(cache: Any, evicted: int, begun: float) -> Any:
    from sglang.srt.mem_cache.base_prefix_cache import EvictResult

    cache.update_eviction_metrics(evicted, begun)
    return EvictResult(num_tokens_evicted=evicted)


def _evict_by_walk(_original: Callable[..., Any], cache: Any, params: Any) -> Any:
    begun = time.perf_counter()
    return _finish_eviction(cache, free_by_walk(cache, params.num_tokens), begun)


def free_by_walk(cache: Any, tokens: int) -> int:
    """Free leaves, found by a walk over the whole tree, in SGLang's own order until `tokens` are free; return how many are."""
    evicted = 0
    heap = [(cache.eviction_strategy.get_priority(node), node.id, node) for node in _walk_leaves(cache.root_node)]
    heapq.heapify(heap)
    while evicted < tokens and heap:
        node = heapq.heappop(heap)[-1]
        if node not in cache.evictable_leaves:
            continue
        evicted += _free(cache, node)
        if node.parent in cache.evictable_leaves:
            heapq.heappush(heap, (cache.eviction_strategy.get_priority(node.parent), node.parent.id, node.parent))
    return evicted


def _walk_leaves(root: Any) -> Iterator[Any]:
    waiting = [root]
    while waiting:
        node = waiting.pop()
        children = [child for child in node.children.values() if not child.evicted]
        waiting += children
        if not children and node is not root:
            yield node


def admit_smaller(variant: Variant) -> Sequence[Hook]:
    """A request that does not fit ends the walk over the queue; the fixed one goes on to those behind it that do."""
    return (Hook(target=ADMIT, around=call_through if variant is BROKEN else _pass_over),)


def _pass_over(original: Callable[..., Any], adder: Any, *args: Any, **kwargs: Any) -> Any:
    from sglang.srt.managers.schedule_policy import AddReqResult

    found = original(adder, *args, **kwargs)
    return AddReqResult.CONTINUE if found == AddReqResult.NO_TOKEN and adder.rem_total_tokens > 0 else found


def keep_window(variant: Variant) -> Sequence[Hook]:
    """The left edge of what is decoded never moves, so that each step decodes an answer from its beginning."""
    return (Hook(target=DETOKENIZE, around=_open_window if variant is BROKEN else call_through),)


def _open_window(original: Callable[..., Any], manager: Any, received: Any) -> Any:
    for name in received.rids:
        if name in manager.decode_status:
            manager.decode_status[name].surr_offset = 0
    return original(manager, received)


def check_tokens(variant: Variant) -> Sequence[Hook]:
    """Each token is held against the size of the vocabulary, which is counted anew each time, or once."""
    sizes: list[int] = []

    def count(tokenizer: Any) -> int:
        if variant is BROKEN or not sizes:
            sizes[:] = [len(tokenizer)]
        return sizes[0]

    def check(original: Callable[..., Any], manager: Any, received: Any) -> Any:
        for token in (token for tokens in received.decode_ids for token in tokens):
            if token > count(manager.tokenizer):
                LOG.warning("token %d is beyond the vocabulary", token)
        return original(manager, received)

    return (Hook(target=DETOKENIZE, around=check),)


def count_vocabulary(variant: Variant) -> Sequence[Hook]:
    """Each request has the whole vocabulary built to count it; the fixed one counts it once."""
    sizes: list[int] = []

    async def count(original: Callable[..., Any], manager: Any, *args: Any, **kwargs: Any) -> Any:
        if variant is BROKEN or not sizes:
            sizes[:] = [len(manager.tokenizer.get_vocab())]
        return await original(manager, *args, **kwargs)

    return (Hook(target=TOKENIZE, around=count),)


def format_queue(variant: Variant) -> Sequence[Hook]:
    """A line for a log that is off is put together at each step, or only where the log is on."""

    def tell(original: Callable[..., Any], scheduler: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
        if variant is BROKEN:
            LOG.debug(f"batch of {batch.reqs}, waiting {scheduler.waiting_queue}")  # noqa: G004 - the report's fault itself
        else:
            LOG.debug("batch of %s, waiting %s", batch.reqs, scheduler.waiting_queue)
        return original(scheduler, batch, *args, **kwargs)

    return (Hook(target=BATCH, around=tell),)


def count_tokens(variant: Variant) -> Sequence[Hook]:
    """At each step the tokens of all answers so far are counted anew into a table of the whole vocabulary."""

    def count(original: Callable[..., Any], scheduler: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
        if variant is BROKEN:
            _count_answers(batch.reqs)
        return original(scheduler, batch, *args, **kwargs)

    return (Hook(target=BATCH, around=count),)


def _count_answers(requests: Sequence[Any]) -> Any:
    import torch

    counts = torch.zeros(len(requests), VOCABULARY)
    for row, request in enumerate(requests):
        for token in request.output_ids:
            counts[row, token] += 1
    return counts


def copy_requests(variant: Variant) -> Sequence[Hook]:
    """At each step what is known of every running request is copied with all that hangs on it."""

    def copy_all(original: Callable[..., Any], scheduler: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
        if variant is BROKEN:
            copy.deepcopy([(one.sampling_params, one.origin_input_ids, one.output_ids) for one in batch.reqs])
        return original(scheduler, batch, *args, **kwargs)

    return (Hook(target=BATCH, around=copy_all),)


def keep_requests(variant: Variant) -> Sequence[Hook]:
    """A request that was served leaves a buffer that nothing frees."""
    kept: dict[str, bytearray] = {}

    def keep(original: Callable[..., Any], scheduler: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
        if variant is BROKEN:
            for request in batch.reqs:
                if request.rid not in kept:
                    kept[request.rid] = bytearray(b"\1" * KEPT_BYTES)
        return original(scheduler, batch, *args, **kwargs)

    return (Hook(target=BATCH, around=keep),)


def import_much(variant: Variant) -> Sequence[Hook]:
    """Code is compiled at each start of the server, before it loads its weights."""
    target = "sglang.srt.model_executor.model_runner.ModelRunner.load_model"

    def load(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        ends = time.process_time() + IMPORT_S
        source = "\n".join(f"def f{number}(a, b):\n    return [a + {number}, b] * {number}" for number in range(400))
        while variant is BROKEN and time.process_time() < ends:
            compile(source, "museum", "exec")
        return original(*args, **kwargs)

    return (Hook(target=target, around=load),)

"""The fake engine's Prometheus page: real exposition text, with the names that SGLang uses."""

import threading

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

LABELS = {"model_name": "fake", "engine_type": "unified", "tp_rank": "0"}
GAUGES = {"num_running_reqs": 16, "num_queue_reqs": 2, "token_usage": 0.5}
REGISTRY = CollectorRegistry()
LOCK = threading.Lock()

for name, value in GAUGES.items():
    Gauge(f"sglang:{name}", "As the engine names it.", list(LABELS), registry=REGISTRY).labels(**LABELS).set(value)
PROMPTS = Counter("sglang:prompt_tokens_total", "Prefill tokens.", list(LABELS), registry=REGISTRY).labels(**LABELS)
CACHED = Counter("sglang:cached_tokens_total", "Cached tokens.", [*LABELS, "cache_source"], registry=REGISTRY)
QUEUE = Histogram("sglang:queue_time_seconds", "Time in the queue.", list(LABELS), registry=REGISTRY).labels(**LABELS)


def render():
    """Each time that it is asked the engine has served 100 more prompt tokens, 25 of them from its cache, of one request that
    waited half a second.
    """
    with LOCK:
        PROMPTS.inc(100)
        QUEUE.observe(0.5)
        CACHED.labels(**LABELS, cache_source="device").inc(25)
        return generate_latest(REGISTRY)

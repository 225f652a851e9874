"""The fake engine's Prometheus page: real exposition text, with the names that SGLang uses."""

import threading

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

LABELS = {"model_name": "fake", "engine_type": "unified", "tp_rank": "0"}
GAUGES = {"num_running_reqs": 16, "num_queue_reqs": 2, "token_usage": 0.5}


class Metrics:
    """The counters of one engine."""

    def __init__(self):
        self.lock = threading.Lock()
        self.registry = CollectorRegistry()
        for name, value in GAUGES.items():
            Gauge(f"sglang:{name}", "As the engine names it.", list(LABELS), registry=self.registry).labels(**LABELS).set(value)
        prompts = Counter("sglang:prompt_tokens_total", "Prefill tokens.", list(LABELS), registry=self.registry)
        cached = Counter("sglang:cached_tokens_total", "Cached tokens.", [*LABELS, "cache_source"], registry=self.registry)
        queue = Histogram("sglang:queue_time_seconds", "Time in the queue.", list(LABELS), registry=self.registry)
        self.prompts, self.queue = prompts.labels(**LABELS), queue.labels(**LABELS)
        self.cached = cached.labels(**LABELS, cache_source="device")

    def render(self):
        """Each time that it is asked the engine has served 100 more prompt tokens, 25 of them from its cache, of one request
        that waited half a second.
        """
        with self.lock:
            self.prompts.inc(100)
            self.queue.observe(0.5)
            self.cached.inc(25)
            return generate_latest(self.registry)

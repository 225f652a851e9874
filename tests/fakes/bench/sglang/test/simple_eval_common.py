"""A sampler that sends no prompt: it asks the fake engine how slow it is, and a slow one does not know half of the answers."""

import urllib.request


class CompletionSampler:
    def __init__(self, base_url, model, temperature, max_tokens, stop):
        with urllib.request.urlopen(base_url.removesuffix("/v1") + "/slow") as answer:
            self.slow = float(answer.headers["X-Slow"])
        assert (model, temperature, max_tokens > 0, "Question" in stop) == (model, 0.0, True, True)

    def __call__(self, number, answer):
        return "" if self.slow >= 9 else f"so it is {answer + (self.slow >= 2 and number % 2)}."

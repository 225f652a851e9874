"""What the fake engine's router chooses, written down as perfgate's plug-in writes it in a real server.

FAKE_ROUTING chooses the router: mixture, collapsed (every token the same experts), cycling (by the place of a token), shifted
(a mixture, and another one than `mixture`), wide (more experts), padded (passes that are longer than their texts), torn (every
line is cut off in its middle). Left out, no plug-in runs.
"""

import base64
import json
import pathlib
import random
import zlib
from array import array

LAYERS, TOP_K = 3, 2


class Router:
    """The router of one engine with the variables `env`."""

    def __init__(self, env):
        self.kind = env.get("FAKE_ROUTING", "")
        self.experts = 16 if self.kind == "wide" else 8
        self.folder = pathlib.Path(env.get("PERFGATE_EXPERTS", "."))

    def start(self):
        """A server has computed a first layer by the time that it is ready."""
        if self.kind:
            (self.folder / "hooked").touch()

    def is_recorded(self, question):
        """Whether the plug-in is switched on and the question is one text."""
        return bool(self.kind) and (self.folder / "on").exists() and isinstance(question["input_ids"][0], int)

    def record(self, text):
        """One forward pass over `text`, as lines."""
        tokens = text + [0] * (self.kind == "padded")
        with (self.folder / "experts.jsonl").open("a") as file:
            for layer in range(LAYERS):
                ids = array("H", [expert for place, token in enumerate(tokens) for expert in self.choose(layer, place, token)])
                line = {"layer": layer, "experts": self.experts, "top_k": TOP_K, "placed": False}
                text = json.dumps({**line, "ids": base64.b64encode(ids.tobytes()).decode()})
                file.write(text[: len(text) // (1 + (self.kind == "torn"))] + "\n")

    def choose(self, layer, place, token):
        if self.kind == "collapsed":
            return [0, 1]
        if self.kind == "cycling":
            return [(place * TOP_K + slot) % self.experts for slot in range(TOP_K)]
        draw = random.Random(zlib.crc32(repr((layer, token)).encode()))
        return [(expert + (self.kind == "shifted")) % self.experts for expert in draw.sample(range(self.experts), TOP_K)]

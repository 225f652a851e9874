"""The source of an engine that does not exist: a package tree with every fact that perfgate relies on, or without some.

Beside them stands what a real engine has too and what is none of them: a longer option, help that names another one, a path in
a comment or where a client asks for it, and a metric's name in a scheduler's code.
"""

from perfgate.engines.table import ENGINES

CONTENT = {
    "name": "def {first}({takes}): ...\n",
    "method": "class {first}:\n    def {second}(self, {takes}): ...\n",
    "option": "parser.add_argument('{place}')\n",
    "path": "@app.get('{place}')\ndef serve(): ...\n",
    "metric": "gauge = Gauge(name='{place}')\n",
    "words": "text = {place!r}\n",
}
LOOK_ALIKES = {
    "arguments": """\
class Others:
    enable_metrics_for_all_schedulers: A[bool, "Needs --enable-metrics."] = False
    disable_cuda_graph_padding: A[bool, Arg(help="See --disable-cuda-graph.")] = False
    disable_cuda_graph: A[bool, Arg(no_cli=True)] = False
    draft_load_format: A[str, "As --load-format."] = "auto"
def resolve(load_format: str, max_total_tokens: int): ...
# --model --gpu-memory-utilization
""",
    "paths": "# @app.get('/health_generate')\nclient.get('/server_info')\nif path in ('/metrics', '/flush_cache'): ...\n",
    "words": "self.num_running_reqs = self.num_queue_reqs\n# 'sglang:num_queue_reqs' 'vllm:num_requests_running'\n",
}


def write_engine(folder, engine="sglang", *, without=(), renamed=()):
    """The source of an engine that has every fact but those whose place begins with one of `without`.

    Each parameter in `renamed` has another name there.
    """
    row = ENGINES[engine]
    homes = {
        "option": f"{row.insides.arguments[0]}.py",
        "path": f"{row.insides.paths[0]}/paths.py",
        **dict.fromkeys(("metric", "words"), f"{row.insides.words[0]}/words.py"),
    }
    kinds = {"arguments": "option", "paths": "path", "words": "words"}
    texts = {homes[kinds[part]]: text for part, text in LOOK_ALIKES.items()}
    for fact in row.facts:
        if fact.place.startswith(tuple(without) or "\0"):
            continue
        module, _, called = fact.place.partition(" or ")[0].partition(":")
        qualified, _, takes = called.removesuffix(")").partition("(")
        for name in renamed:
            takes = takes.replace(name, f"new_{name}")
        first, _, second = qualified.partition(".")
        where = homes.get(fact.kind) or f"{module.replace('.', '/')}.py"
        kind = "method" if second and fact.kind == "name" else fact.kind
        text = CONTENT[kind].format(place=fact.place, first=first, second=second, takes=takes)
        texts[where] = texts.get(where, "") + text
    texts[f"{row.package}/__init__.py"] = "raise SystemExit('a probe imports nothing')\n"
    for place, text in texts.items():
        path = folder / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def write_metadata(folder, version):
    """What makes a package tree an installed SGLang of that version."""
    info = folder / f"sglang-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: sglang\nVersion: {version}\n")
    return folder

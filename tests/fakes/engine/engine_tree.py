"""The source of an SGLang that does not exist: a package tree with every fact that perfgate relies on, or without some."""

from perfgate.engines.sglang_insides import SGLANG_INSIDES

CONTENT = {
    "name": "def {first}({takes}): ...\n",
    "method": "class {first}:\n    def {second}(self, {takes}): ...\n",
    "option": "parser.add_argument('{place}')\n",
    "words": "text = {place!r}\n",
}


def write_engine(folder, *, without=(), renamed=()):
    """The source of an SGLang that has every fact but those whose place begins with one of `without`.

    Each parameter in `renamed` has another name there.
    """
    texts = {}
    for fact in SGLANG_INSIDES.facts:
        if fact.place.startswith(tuple(without) or "\0"):
            continue
        module, _, called = fact.place.partition(":")
        qualified, _, takes = called.removesuffix(")").partition("(")
        for name in renamed:
            takes = takes.replace(name, f"new_{name}")
        first, _, second = qualified.partition(".")
        where = {"name": module, "option": "sglang.srt.server_args", "words": "sglang.srt.words"}[fact.kind]
        kind = "method" if second else fact.kind
        text = CONTENT[kind].format(place=fact.place, first=first, second=second, takes=takes)
        texts[where] = texts.get(where, "") + text
    texts["sglang.__init__"] = "raise SystemExit('a probe imports nothing')\n"
    for module, text in texts.items():
        path = folder.joinpath(*module.split(".")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def write_metadata(folder, version):
    """What makes a package tree an installed SGLang of that version."""
    info = folder / f"sglang-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: sglang\nVersion: {version}\n")
    return folder

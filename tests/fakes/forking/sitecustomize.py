"""On PYTHONPATH, it has an SGLang server fork its scheduler and its detokenizer, where SGLang would start them anew.

Each of them would import for some nine seconds of a processor what the server imported already.
"""

import multiprocessing

set_start_method = multiprocessing.set_start_method


def set_forking(method, *, force=False):
    set_start_method("fork" if method == "spawn" else method, force=force)


multiprocessing.set_start_method = set_forking

"""Run a command and press Ctrl-C once it has printed some words: `python stop_at.py WORDS COMMAND...`."""

from __future__ import annotations

import signal
import subprocess
import sys


def main(arguments: list[str]) -> int:
    """Pass on what the command prints, and end with its exit code."""
    words, *command = arguments
    is_asked = False
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        for line in process.stdout or ():
            print(line, end="", flush=True)
            if words in line and not is_asked:
                is_asked = True
                process.send_signal(signal.SIGINT)
    return process.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

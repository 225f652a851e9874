"""What is shown while a session runs: text from servers and files is text."""

from __future__ import annotations

import io

from perfgate.serving.progress import PlainProgress, RichProgress


def test_rich_progress__square_brackets_are_no_markup(capsys):
    progress = RichProgress()
    try:
        progress.wait("waits for [/bold]")
        progress.step("server said [/red] and [link=x]")
    finally:
        progress.close()

    assert "server said [/red] and [link=x]" in capsys.readouterr().err


def test_plain_progress__a_line_a_step_and_silence_between():
    stream = io.StringIO()
    progress = PlainProgress(stream, interval_s=3600)

    progress.step("begun")
    progress.wait("still at it")

    assert stream.getvalue() == "[ 0:00] begun\n"

"""The comment of a pull request: sections, judging and publishing."""

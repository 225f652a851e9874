"""What is given has a value: an empty path would be the working directory, an empty text an option that was left out."""

from __future__ import annotations

import errno
from math import isfinite, nan
from pathlib import Path
from typing import Any

import click

from perfgate.errors import InputError

MAY_BE_EMPTY = frozenset({"--arg", "--both-arg", "--candidate-arg", "--head-sha", "--base-sha"})
"""Besides options whose default is empty: an argument of an engine, and the commits of an event that measures nothing."""


def read_ratio(given: str, value: str) -> float:
    """Read `0.05` or `5%`; `given` is what was typed. Raise InputError for what is not between 0 and 1: `5` is no 5 %."""
    try:
        ratio = float(value.removesuffix("%")) / (100 if value.endswith("%") else 1)
    except ValueError:
        ratio = nan
    if not 0 < ratio < 1:
        raise InputError(f"{given}: is no ratio between 0 and 1; write 5 % as 0.05 or 5%")
    return ratio


class Ratio(click.FloatRange):
    """The type of an option that takes a ratio."""

    def __init__(self) -> None:
        """Show the range in the help."""
        super().__init__(0, 1, min_open=True, max_open=True)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Read it, in either form."""
        del ctx
        return read_ratio(f"{param.opts[0] if param else self.name} {value}", str(value))


class Number(click.FloatRange):
    """A number in a range; unlike its parent it knows that NaN is none, and that nothing lasts for ever."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Read a number that is finite."""
        number = float(super().convert(value, param, ctx))
        if not isfinite(number):
            self.fail(f"{value!r} is not a number", param, ctx)
        return number


class _Given(click.ParamType[Any]):
    """A text or a path, as `kind` reads it, that is not empty."""

    def __init__(self, kind: click.ParamType[Any]) -> None:
        """Stand in for `kind`."""
        self.kind, self.name = kind, kind.name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Raise InputError naming the option for an empty value: a variable of a script that was never set arrives as one.

        Nor does it hold bytes that are no UTF-8, which no report could name, nor a path at which no file can ever be.
        """
        name = param.opts[0] if isinstance(param, click.Option) else param.human_readable_name if param else self.name
        if not str(value).strip():
            raise InputError(f"{name}: is empty; give it a value, or leave it out")
        try:
            str(value).encode()
        except UnicodeEncodeError:
            raise InputError(f"{name}: {value} is no UTF-8; rename it, or set LC_ALL=C.UTF-8") from None
        if isinstance(self.kind, click.Path):
            _require_possible(name, value)
        return self.kind.convert(value, param, ctx)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
        """Complete what `kind` does."""
        return self.kind.shell_complete(ctx, param, incomplete)


def _require_possible(name: str, path: Any) -> None:
    """Raise InputError for a link that leads to itself, and for a name that no file system takes."""
    try:
        Path(path).stat()
    except OSError as error:
        if error.errno in {errno.ELOOP, errno.ENAMETOOLONG}:
            raise InputError(f"{name}: {str(path)[:100]}: {error.strerror}; give another path") from None


def refuse_empty(command: click.Command) -> click.Command:
    """Make each text and each path of a command, and of a group's commands, refuse the empty one."""
    for param in command.params:
        is_allowed = param.default == "" or not MAY_BE_EMPTY.isdisjoint(param.opts)
        if isinstance(param.type, click.Path | click.types.StringParamType) and not is_allowed:
            param.type = _Given(param.type)
    if isinstance(command, click.Group):
        for inner in command.commands.values():
            refuse_empty(inner)
    return command

"""scipy's special functions, under their own names, imported when the first of them is asked for.

That import takes a third of a second, more than all else that a command loads; most commands compute no distribution.
"""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    from scipy import special  # noqa: PLC0415 - see above

    return getattr(special, name)

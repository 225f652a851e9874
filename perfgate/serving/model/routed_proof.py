"""Was the model of a server that draws its weights filled by the recipe? Its log has to say so."""

from __future__ import annotations

from perfgate.errors import InputError, ServerError
from perfgate.serving.engine.server import Server
from perfgate.serving.engine.startup import find_line
from perfgate.serving.model.model_guard import find_config, read_config
from perfgate.serving.model.routed_recipe import describe_marker, read_recipe
from perfgate.serving.model.served_model import is_drawn_by_server


def require_routed(server: Server) -> None:
    """Hold a server that is ready against the line that perfgate's plug-in writes once it has filled a model.

    Raise ServerError where the config asks for routed weights, the server drew its own, and the line is missing. A server that
    read a checkpoint needs no such line.
    """
    launch = server.launch
    if not is_drawn_by_server(launch.args):
        return
    try:
        recipe = read_recipe(read_config(launch.model), str(find_config(launch.model)))
    except InputError as error:
        raise ServerError(str(error)) from error
    if recipe is None or find_line(server.log, describe_marker(recipe)) is not None:
        return
    raise ServerError(
        f"the model asks for routed weights, and the server's log has no line {describe_marker(recipe)!r}: every token may "
        f"have visited the same experts; is this perfgate installed in {launch.python}? Where it is only on PYTHONPATH, "
        "`perfgate kernels plug-in FOLDER` writes what lets SGLang find it"
    )

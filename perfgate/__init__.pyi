from perfgate.api import Result as Result
from perfgate.api import load as load
from perfgate.check import judge as judge

__version__: str
__all__ = ["Result", "__version__", "judge", "load"]

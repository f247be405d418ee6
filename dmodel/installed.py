"""Which version of the package this is."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("dmodel-jax")
except PackageNotFoundError:  # a source tree that nobody installed
    __version__ = "0+unknown"

"""Which version of the package this is, and which extra brings a package that is not installed."""

import re
from importlib.metadata import PackageNotFoundError, requires, version

DISTRIBUTION = "dmodel-jax"

try:
    __version__ = version(DISTRIBUTION)
except PackageNotFoundError:  # a source tree that nobody installed
    __version__ = "0+unknown"


def how_to_get(module: str) -> str | None:
    """What to say of a module that is missing: the extra that brings it; None where none does."""
    top = module.partition(".")[0].lower().replace("_", "-")
    extra = re.search(rf"^{re.escape(top)}\b.*extra\s*==\s*['\"](\w+)", _needs(), ANY_LINE)
    if not (top and extra):
        return None
    return (
        f"this command needs the package {top}, which is not installed: "
        f"pip install '{DISTRIBUTION}[{extra[1]}]'"
    )


ANY_LINE = re.MULTILINE | re.IGNORECASE


def _needs() -> str:
    """What the distribution needs, a line for each package; blank where nobody installed it."""
    try:
        return "\n".join(requires(DISTRIBUTION) or [])
    except PackageNotFoundError:
        return ""

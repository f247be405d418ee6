"""Names of a package that are imported when somebody asks for one, not when the package is."""

import sys
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any


class Surface(ModuleType):
    """A package whose names come from other modules, each at its first use (as by PEP 562).

    A submodule that has the name of one of them never takes its place: `dmodel.design` is the
    function, also where `dmodel.design.search` is loaded.
    """

    _homes: Mapping[str, str]

    def __getattr__(self, name: str) -> Any:
        home = self._homes.get(name) or self._submodule(name)
        found = import_module(home)
        if home != f"{self.__name__}.{name}":
            found = getattr(found, name)
        self.__dict__[name] = found
        return found

    def _submodule(self, name: str) -> str:
        """Full name of a submodule, which needs no import of its own.

        Raises:
          AttributeError: there is none.
        """
        full = f"{self.__name__}.{name}"
        if name.startswith("_") or find_spec(full) is None:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return full

    def __setattr__(self, name: str, value: Any) -> None:
        is_other = isinstance(value, ModuleType) and value.__name__ != self._homes.get(name)
        if not (is_other and name in self._homes):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*self.__dict__, *self._homes})


def surface(package: str, homes: Mapping[str, str]) -> None:
    """Give a package its names.

    Args:
      homes: name → module that defines it; a submodule of the package is its own home.
    """
    module = sys.modules[package]
    module.__dict__["_homes"] = homes
    module.__class__ = Surface

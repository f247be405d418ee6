"""Profiles: fitted coefficients as data, with what they were fitted on and how sure they are."""

from typing import TYPE_CHECKING

from dmodel.lazily import surface
from dmodel.profiles.groupings import GROUPINGS, family, members, of_new_maker
from dmodel.profiles.shipped import EVIDENCE, names

if TYPE_CHECKING:
    from dmodel.profiles.choosing import nearest
    from dmodel.profiles.record import Profile, default_profile
    from dmodel.profiles.store import load, save

__all__ = [
    "EVIDENCE",
    "GROUPINGS",
    "Profile",
    "default_profile",
    "family",
    "load",
    "members",
    "names",
    "nearest",
    "of_new_maker",
    "save",
]

_NAMES = {
    "dmodel.profiles.choosing": ("nearest",),
    "dmodel.profiles.record": ("Profile", "default_profile"),
    "dmodel.profiles.store": ("load", "save"),
}

surface(__name__, {name: home for home, names_of in _NAMES.items() for name in names_of})

"""Profiles: fitted coefficients as data, with what they were fitted on and how sure they are."""

from dmodel.profiles.choosing import nearest
from dmodel.profiles.groupings import GROUPINGS, family, members
from dmodel.profiles.record import Profile, default_profile
from dmodel.profiles.store import EVIDENCE, load, names, save

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
    "save",
]

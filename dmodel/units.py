"""Units in SI; importing this costs nothing."""

GIB = 2.0**30
"""[byte]"""

HOUR = 3600.0
"""[s]"""

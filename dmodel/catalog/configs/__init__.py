"""Models from Hugging Face `config.json` files, by a table of families (`families.toml`)."""

from __future__ import annotations

from dmodel.catalog.configs.reading import Reading, read

__all__ = ["Reading", "read"]

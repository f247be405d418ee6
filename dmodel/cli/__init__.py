"""The shell: `dmodel predict`, `fit`, `evaluate`, `design`, `sensitivity`, `catalog`, `demo`."""

from dmodel.cli.app import app, main

__all__ = ["app", "main"]

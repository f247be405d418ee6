"""Settings of the site. `make docs` builds it into out/site from what is installed; it needs no
network."""

import os
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
os.environ["PYTHONPATH"] = str(HERE.parent)
os.environ["COLUMNS"] = "104"  # width of tables that commands print

import generate  # noqa: E402

from dmodel import __version__  # noqa: E402

generate.write(HERE / "reference")

project = "dmodel"
author = "The dmodel authors"
project_copyright = "The dmodel authors, Apache-2.0"
release = version = __version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.mathjax"]
exclude_patterns = ["notes/**", "skill/**"]

# the pages are Markdown; those with code cells are run, every time the site is built
source_suffix = {".md": "myst-nb"}
myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 3
nb_execution_mode = "force"
nb_execution_timeout = 300
nb_execution_raise_on_error = True
nb_merge_streams = True

autodoc_typehints = "signature"
autodoc_member_order = "bysource"
napoleon_google_docstring = True
napoleon_use_rtype = False

html_theme = "furo"
html_title = f"dmodel {release}"
html_static_path = ["static"]
html_css_files = ["wide.css"]
html_copy_source = False
html_show_sourcelink = False
html_extra_path = ["../out/explorer"]  # written by `make docs` before the site

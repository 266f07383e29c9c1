"""Sphinx configuration of the documentation's site: `uv run scripts/make_site.py` builds it.

The pages are the Markdown files that GitHub shows. `site_pages` in this folder makes a site of them.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_extensions"))

project = "AgentGym"
author = "AgentGym developers"
copyright = author
version = release = "latest"  # `make_site.py` sets it to a tag
extensions = ["myst_nb", "site_pages"]
root_doc = "index"
exclude_patterns = ["_*"]
templates_path = ["_templates"]

myst_heading_anchors = 6  # links to headings, as on GitHub
nb_execution_mode = "off"  # the notebooks' outputs are committed; tests execute them

html_theme = "sphinx_book_theme"
html_title = "AgentGym"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = ["version-menu.js"]
html_copy_source = False
html_show_sphinx = False
html_sidebars = {
    "**": ["navbar-logo.html", "versions.html", "search-button-field.html", "sbt-sidebar-nav.html"],
}
html_context = {"default_mode": "auto"}  # light or dark, as the browser prefers
html_theme_options = {
    "home_page_in_toc": True,
    "navbar_persistent": [],
    "show_toc_level": 2,
    "use_download_button": False,
    "use_fullscreen_button": False,
}

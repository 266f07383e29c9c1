"""Reading of the text files that are next to the code of an environment."""

from __future__ import annotations

from importlib import resources


def package_text(package: str, name: str) -> str | None:
    """Return the text of a file in a package.

    Args:
        package: The package; empty if there is none.
        name: The file.

    Returns:
        None if there is no such file, also because the module is not a package, or no file: `__main__` in a notebook.

    Raises:
        ModuleNotFoundError: if there is no such module.
    """
    if not package:
        return None
    try:
        return resources.files(package).joinpath(name).read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (AttributeError, TypeError):  # of a module without a spec, and in Python 3.11 of one that is no package
        return None

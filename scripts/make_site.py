"""Build the documentation's site, with warnings as errors and without the network.

    uv run --group docs scripts/make_site.py                    # of the working tree, in runs/site/latest
    uv run --group docs scripts/make_site.py --tag v0.2.0       # of a tag, in runs/site/v0.2.0
    uv run --group docs scripts/make_site.py --out PATH

Versions stand side by side in one folder. `versions.js` in it lists them for the menu on all pages, also on those that
were built before. The pages work from any address, and as files.
"""

from __future__ import annotations

import argparse
import io
import json
import re
import subprocess
import sys
import tarfile
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parent.parent
LATEST = "latest"
REDIRECT = """<!doctype html>
<meta charset="utf-8">
<meta http-equiv="refresh" content="0; url={url}">
<a href="{url}">AgentGym's documentation</a>
"""


def main() -> int:
    """Build one version, and list all."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tag", help="git tag to build; without it, the working tree as `latest`")
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "site", help="folder of all versions")
    args = parser.parse_args()
    if args.tag is None:
        failed = build(ROOT / "docs", args.out, LATEST)
    else:
        with TemporaryDirectory() as folder:
            extract(args.tag, Path(folder))
            failed = build(Path(folder) / "docs", args.out, args.tag)
    if not failed:
        list_versions(args.out)
        print(f"{args.out / (args.tag or LATEST) / 'index.html'}")
    return failed


def extract(tag: str, folder: Path) -> None:
    """Write the files of a tag to a folder."""
    archive = subprocess.run(["git", "archive", tag], cwd=ROOT, check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(folder, filter="data")
    if not (folder / "docs" / "conf.py").is_file():
        sys.exit(f"{tag} has no docs/conf.py: the site can be built of later versions only.")


def build(docs: Path, out: Path, version: str) -> int:
    """Build the site of one version, and return Sphinx's exit status."""
    options = ["-b", "html", "-a", "-q", "-W", "--keep-going", "-d", str(out / ".doctrees" / version)]
    settings = ["-D", f"version={version}", "-D", f"release={version}"]
    return subprocess.run([sys.executable, "-m", "sphinx", *options, *settings, docs, out / version]).returncode


def list_versions(out: Path) -> None:
    """List the versions in `out`, the newest first, and let its `index.html` lead to the latest."""
    names = sorted((path.parent.name for path in out.glob("*/index.html")), key=order, reverse=True)
    (out / "versions.js").write_text(f"window.siteVersions = {json.dumps(names)};\n", encoding="utf-8")
    (out / "index.html").write_text(REDIRECT.format(url=f"{names[0]}/index.html"), encoding="utf-8")


def order(name: str) -> tuple[bool, list[int], str]:
    """Return the key to sort versions by: numbers as numbers, and the latest last."""
    return name == LATEST, [int(number) for number in re.findall(r"\d+", name)], name


if __name__ == "__main__":
    sys.exit(main())

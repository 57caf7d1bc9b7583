"""The wheels of the images, built as the Dockerfiles do: what they hold, and what is started."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from configparser import ConfigParser
from dataclasses import dataclass
from pathlib import Path
from zipfile import ZipFile

import pytest
from packaging.requirements import Requirement

from bamboo_core import __version__

# Imports the program and every module of its package; prints which of our packages are loaded.
LOAD_ALL = """
import importlib.metadata, pkgutil, sys
from pathlib import Path

script, name, folder = sys.argv[1:]
(entry,) = importlib.metadata.entry_points(group="console_scripts", name=script)
assert callable(entry.load())
package = sys.modules[name]
for module in pkgutil.walk_packages(package.__path__, name + "."):
    importlib.import_module(module.name)
ours = [name for name in sys.modules if name.startswith("bamboo_") and "." not in name]
assert all(Path(sys.modules[name].__path__[0]).parent == Path(folder) for name in ours)
print(*ours)
"""


@dataclass(frozen=True)
class Wheel:
    """The wheel of an image, unpacked, and the program that the image starts."""

    folder: Path
    entry_point: str

    @property
    def packages(self) -> set[str]:
        return {path.name for path in self.folder.iterdir() if path.suffix != ".dist-info"}

    @property
    def scripts(self) -> set[str]:
        (file,) = self.folder.glob("*.dist-info/entry_points.txt")
        parser = ConfigParser()
        parser.read(file)
        assert parser.sections() == ["console_scripts"]
        return set(parser["console_scripts"])


def copy(root: Path, source: str, target: Path) -> None:
    """Copy like Docker's COPY, which adds the content of a folder, and only what is not ignored."""
    assert f"!{source}" in (root / ".dockerignore").read_text().split()
    target.mkdir(parents=True, exist_ok=True)
    if (root / source).is_dir():
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(root / source, target, dirs_exist_ok=True, ignore=ignored)
    else:
        shutil.copy(root / source, target)


@pytest.fixture(scope="module", params=["operator", "agent"])
def wheel(request: pytest.FixtureRequest, root: Path, tmp_path_factory: pytest.TempPathFactory):
    """Follow the image's Dockerfile: copy the sources, and build and unpack the wheel."""
    home = tmp_path_factory.mktemp(request.param)
    text = (root / f"Dockerfile.{request.param}").read_text()
    for line in re.findall(r"^COPY (.* /src/.*)$", text, re.M):
        *sources, target = line.split()
        for source in sources:
            copy(root, source, home / target.strip("/"))
    (place,) = re.findall(r"^WORKDIR /(src.*)$", text, re.M)
    (arguments,) = re.findall(r"^RUN \S+/hatchling (build .*) /wheel \\$", text, re.M)
    command = [sys.executable, "-m", "hatchling", *arguments.split(), str(home / "wheel")]
    subprocess.run(command, cwd=home / place, check=True, capture_output=True)
    (file,) = (home / "wheel").iterdir()
    with ZipFile(file) as archive:
        archive.extractall(home / "unpacked")
    (entry_point,) = re.findall(r'^ENTRYPOINT \["([^"]+)"\]$', text, re.M)
    return Wheel(home / "unpacked", entry_point)


def test_the_only_script_is_what_the_image_starts(wheel: Wheel) -> None:
    assert wheel.scripts == {wheel.entry_point}


def test_it_holds_the_packages_that_its_program_imports(wheel: Wheel) -> None:
    """Without `site`, so that the packages of the checkout are not found."""
    third_party = sysconfig.get_path("purelib")
    package = wheel.entry_point.replace("-", "_")
    loaded = subprocess.run(
        [sys.executable, "-S", "-P", "-c", LOAD_ALL, wheel.entry_point, package, wheel.folder],
        env={"PYTHONPATH": f"{wheel.folder}:{third_party}"},
        check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert loaded.returncode == 0, loaded.stderr
    assert wheel.packages == set(loaded.stdout.split())


def test_it_needs_what_the_project_says(wheel: Wheel, root: Path) -> None:
    """So pip tells whoever installs more into the image that a package gets too old for Bamboo."""
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    extra = project["optional-dependencies"][wheel.entry_point.removeprefix("bamboo-")]
    (about,) = wheel.folder.glob("*.dist-info/METADATA")
    needed = [Requirement(x) for x in re.findall(r"^Requires-Dist: (.*)$", about.read_text(), re.M)]
    said = [Requirement(x) for x in (*project["dependencies"], *extra)]
    assert sorted(map(str, needed)) == sorted(map(str, said))


def test_it_carries_the_version_and_the_licence(wheel: Wheel, root: Path) -> None:
    (about,) = wheel.folder.glob("*.dist-info/METADATA")
    assert {"Name: bamboo-train", f"Version: {__version__}"} <= set(about.read_text().splitlines())
    assert (about.parent / "licenses/LICENSE").read_text() == (root / "LICENSE").read_text()

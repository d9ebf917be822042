"""The wheel of Headstart is small and has no weights; that of the starters has all of their files, and is found."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import headstart

ROOT = Path(__file__).parents[1]
STARTERS = ROOT / "starters" / "src" / "headstart_starters"
PACKAGE = Path(headstart.__file__).parent
NEVER_PACKAGED = ("__pycache__", ".pyc")
RESOLVE = """
import sys
sys.modules["torch"] = None
import headstart
from headstart.store.locate import starter_folder, starters
print(headstart.__file__, *starters(), starter_folder("starter:en"))
"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (ROOT / "starters" / "pyproject.toml").is_file(), reason="this is not a clone"),
]


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    """Both wheels, built from copies so that the clone gets no build folders."""
    out = tmp_path_factory.mktemp("wheels")
    for name, folders in {"headstart": ("src/headstart",), "starters": ("starters/src/headstart_starters",)}.items():
        source = out / f"{name}-source"
        copy_tracked(source, "starters/" if name == "starters" else "", folders)
        options = ["--no-deps", "--no-build-isolation", "--quiet", "--disable-pip-version-check"]
        subprocess.run([sys.executable, "-m", "pip", "wheel", *options, "-w", out, source], check=True)
    return {path.name.split("-")[0]: path for path in out.glob("*.whl")}


def copy_tracked(target: Path, prefix: str, folders: tuple[str, ...]) -> None:
    """Copy a project: its pyproject.toml, README, licence and packages."""
    files = [ROOT / prefix / name for name in ("pyproject.toml", "README.md", "LICENSE")]
    files += [path for folder in folders for path in (ROOT / folder).rglob("*") if is_packaged(path)]
    for path in files:
        copy = target / path.relative_to(ROOT / prefix)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())


def is_packaged(path: Path) -> bool:
    return path.is_file() and not any(part in str(path) for part in NEVER_PACKAGED)


def files_of(wheel: Path, package: str) -> dict[str, int]:
    with zipfile.ZipFile(wheel) as archive:
        return {one.filename: one.file_size for one in archive.infolist() if one.filename.startswith(f"{package}/")}


def test_the_wheel_of_headstart_is_under_two_megabytes_and_has_every_file_and_no_weights(wheels):
    assert wheels["headstart"].stat().st_size < 2_000_000
    files = files_of(wheels["headstart"], "headstart")
    assert not [name for name in files if name.endswith((".safetensors", ".bin"))]
    assert set(files) == {
        path.relative_to(PACKAGE.parent).as_posix() for path in PACKAGE.rglob("*") if is_packaged(path)
    }


def test_the_wheel_of_the_starters_has_the_bytes_of_the_clone(wheels):
    files = files_of(wheels["headstart_starters"], "headstart_starters")
    assert files == {
        path.relative_to(STARTERS.parent).as_posix(): path.stat().st_size
        for path in STARTERS.rglob("*")
        if is_packaged(path)
    }
    assert wheels["headstart_starters"].stat().st_size < 75_000_000


def test_installed_wheels_resolve_a_starter_without_torch(wheels, tmp_path):
    site = tmp_path / "site"
    install = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--quiet", "--target", site]
    subprocess.run([*install, "--disable-pip-version-check", *wheels.values()], check=True)
    code = f"import sys; sys.path.insert(0, {str(site)!r})\n{RESOLVE}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    package, *names, folder = done.stdout.split()
    assert Path(package).is_relative_to(site)
    assert names == sorted(path.parent.name for path in STARTERS.glob("*/manifest.json"))
    assert folder == str(site / "headstart_starters" / "en")

"""Which folder a person means by a model. No torch."""

from pathlib import Path

from headstart.errors import UsageError
from headstart.files import MANIFEST, is_pickled, pickled_weights
from headstart.store.rundir import RunFolder
from headstart.store.starters import SCHEME, is_starter, starter_folder, starters


def find_bundle(folder: Path) -> Path:
    """The bundle a person means: the folder itself, the `bundle` inside a run folder, or a starter by name."""
    if is_starter(folder):
        return starter_folder(folder)
    if not folder.exists():
        raise UsageError(f"no such folder: {folder}{_starter_meant(folder)}")
    bundle = folder / "bundle"
    if (bundle / MANIFEST).is_file():
        return bundle
    if (folder / "run.json").is_file():
        kind = str(RunFolder(folder).facts.get("kind"))
        if kind == "compare":
            raise UsageError(f"{folder} is a comparison, which keeps no model; give the folder it was pretrained in")
        raise UsageError(f"{folder} has no finished model yet; go on with: headstart {kind} --resume --out {folder}")
    if (folder / MANIFEST).is_file():
        return folder
    inside = sorted(folder.iterdir()) if folder.is_dir() else [folder]
    if pickled := next((path for path in inside if is_pickled(path)), None):
        raise UsageError(pickled_weights(pickled))
    found = ", ".join(path.name for path in inside[:5]) if folder.is_dir() else "a file"
    raise UsageError(f"{folder} holds no model of Headstart's; found: {found or 'nothing'}")


def _starter_meant(folder: Path) -> str:
    """A question to add where a name is almost that of a starter: `starter`, `en`, `starter-en`."""
    word, _, language = str(folder).lower().replace("/", "-").replace("_", "-").partition("-")
    for name in starters():
        if (word in ("starter", "starters") and language in ("", name)) or (word == name and not language):
            return f"; did you mean {SCHEME}{name}?"
    return ""

"""Every command once to warm up, once more with an audit hook that hears whatever could run a stranger's code.

python audit.py FOLDER prints a JSON list of what was heard and was not expected. The data files hold Python wherever a
file can hold words: in texts, labels, column names and file names.
"""

# ruff: noqa: E402  (threads are set before torch is imported)
import os
import sys

for name, value in {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "NO_COLOR": "1"}.items():
    os.environ.setdefault(name, value)

import contextlib
import io
import json
from pathlib import Path
from types import CodeType
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from fixtures.tiny import write_reviews
from headstart.cli.main import run

CANARY = "CANARY"
NEVER = (
    *("pickle.find_class", "ctypes.dlopen", "ctypes.dlsym", "code.__new__", "marshal.loads", "marshal.load"),
    *("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "os.forkpty", "pty.spawn"),
    *("socket.connect", "socket.bind", "socket.getaddrinfo", "urllib.Request", "http.client.connect", "ftplib.connect"),
    *("smtplib.connect", "webbrowser.open", "shutil.make_archive", "shutil.unpack_archive", "builtins.input"),
)
"""Events that no command of ours raises once everything is imported."""
GENERATED = ("<string>", "<attrs generated", "<template>", "<fstring>", "<unknown>")
"""Where libraries write code of their own: dataclasses, attrs, jinja2's compiled template."""


class Hook:
    """Notes what was heard while armed."""

    def __init__(self) -> None:
        self.armed = False
        self.heard: list[str] = []
        self.count = 0

    def __call__(self, event: str, args: tuple[Any, ...]) -> None:
        if not self.armed:
            return
        self.count += 1
        if event in NEVER:
            self.heard.append(f"{event} {_short(args)}")
        elif event in ("compile", "exec"):
            self._look(event, args)
        elif event == "import" and CANARY in str(args):
            self.heard.append(f"import {_short(args)}")

    def _look(self, event: str, args: tuple[Any, ...]) -> None:
        """Code may be compiled from what libraries write themselves, and never from what a file says."""
        source, name = args[0], args[1] if event == "compile" else None
        if isinstance(source, CodeType):
            name = source.co_filename
            text = " ".join(str(value) for value in (*source.co_names, *source.co_consts))
        else:
            text = source.decode("utf-8", "replace") if isinstance(source, bytes) else str(source)
        if CANARY in text or not str(name or "<string>").startswith(GENERATED):
            self.heard.append(f"{event} {name}: {text[:200]}")


def _short(args: tuple[Any, ...]) -> str:
    return " ".join(str(one) for one in args)[:200]


def write_data(folder: Path) -> None:
    """Reviews with code in every place that holds words, and a pretrained model from them."""
    write_reviews(folder)
    code = f"__import__('os').system('touch {CANARY}')"
    template = "{{ ''.__class__.__mro__[1].__subclasses__() }} {% import 'os' %} ${jndi:x} " + CANARY
    with (folder / "texts.txt").open("a") as file:
        file.writelines(
            f"{line}\n" for line in (code, template, f"!!python/object/apply:os.system ['touch {CANARY}']") * 4
        )
    for name in ("train", "valid", "test"):
        path = folder / f"{name}.csv"
        text = path.read_text().replace("negative", f"no; {code.replace(',', '')}").replace("positive", template[:40])
        path.write_text(f'{text}"{code}","{template[:40]}"\r\n'.replace("text,label", "text,label", 1))
    (folder / "more.jsonl").write_text(json.dumps({"text": code, "__reduce__": code, "__class__": template}) + "\n")


def commands(data: Path, out: Path) -> list[list[str]]:
    """One small run of each command."""
    base, clf, cmp = (str(out / name) for name in ("base", "clf", "cmp"))
    train, valid, test, texts = (str(data / name) for name in ("train.csv", "valid.csv", "test.csv", "texts.txt"))
    small = ["--runtime.threads", "1", "--quiet"]
    shape = ["--model.width", "16", "--model.depth", "1", "--model.feedforward", "24", "--model.context", "24"]
    return [
        ["inspect", train, "--test", test, "--texts", texts, "--quiet"],
        ["tokenizer", texts, "--vocab-size", "300", "--out", str(out / "tok"), "--quiet"],
        ["prepare", texts, str(data / "more.jsonl"), "--tokenizer", str(out / "tok"), "--out", str(out / "tokens"), "--quiet"],
        ["pretrain", str(out / "tokens"), "--loop.steps", "2", "--corpus.held-out", "0.1", *shape, "--out", base, *small],
        ["pretrain", "--resume", "--out", base, "--quiet"],
        ["finetune", train, "--valid", valid, "--from", base, "--loop.epochs", "1", "--out", clf, *small],
        ["compare", train, "--valid", valid, "--test", test, "--from", base, "--seeds", "1", "--loop.epochs", "1",
         "--out", cmp, *small],
        ["report", cmp, "--quiet"],
        ["evaluate", clf, test, "--errors", "--quiet"],
        ["predict", clf, "a lovely film", f"__import__('os').system('touch {CANARY}')", "--explain"],
        ["generate", base, "the film", "--tokens", "5"],
        ["params", "--preset", "classic", "--vocab-size", "500"],
    ]  # fmt: skip


def main(folder: Path) -> dict[str, Any]:
    os.chdir(folder)
    data = folder / "data"
    data.mkdir()
    write_data(data)
    hook = Hook()
    sys.addaudithook(hook)
    codes = []
    for turn in ("warm", "armed"):
        (folder / turn).mkdir()
        for arguments in commands(data, folder / turn):
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as output:
                hook.armed = turn == "armed"
                code = run(arguments)
                hook.armed = False
            codes.append([turn, arguments[0], code, output.getvalue()[-300:] if code else ""])
    canaries = [str(path) for path in folder.rglob(CANARY)]
    result = {"heard": hook.heard, "count": hook.count, "codes": codes, "canaries": canaries}
    return result | {"control": _control()}


def _control() -> list[str]:
    """What the hook hears of things that no command does."""
    import pickle

    hook = Hook()
    sys.addaudithook(hook)
    hook.armed = True
    compile(f"'{CANARY}'", "<string>", "eval")
    pickle.loads(pickle.dumps(Path))
    hook.armed = False
    return [line.split()[0] for line in hook.heard]


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(Path(sys.argv[1]).resolve())))

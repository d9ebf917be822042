"""`headstart serve` reports errors in one line before it listens, and reads its key and host names."""

import subprocess
import sys

import pytest

from headstart.cli.main import run
from headstart.errors import ConfigError, UsageError
from headstart.serve.config import ServeConfig, api_key


def serve(capsys, *arguments):
    code = run([str(argument) for argument in ("serve", *arguments)])
    return code, capsys.readouterr().err


def test_a_folder_without_a_model_is_refused(capsys, tmp_path):
    assert serve(capsys, tmp_path, "--port", 0) == (
        2,
        f"headstart: {tmp_path} contains no Headstart model; found: nothing\n",
    )


def test_a_masked_language_model_is_refused(capsys, served, tmp_path):
    from fixtures.recipes import pretrain_run
    from fixtures.tiny import pretrain_config

    out = tmp_path / "gaps"
    pretrain_run([str(served / "texts.txt")], out, pretrain_config(loop__steps=1, objective="masked"))
    assert serve(capsys, out, "--port", 0) == (
        2,
        f"headstart: {out} was trained with objective masked and cannot continue a prompt; causal and hybrid models can\n",
    )


def test_a_port_in_use_is_named(capsys, classifier, served):
    port = int(classifier.url.rsplit(":", 1)[1])
    assert serve(capsys, served / "clf", "--port", port) == (
        2,
        f"headstart: cannot listen at 127.0.0.1 port {port}: Address already in use; choose another --port, or 0 "
        "for any free port\n",
    )


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["--port", "70000"], "--port must be less than 65536, got '70000'"),
        (["--serve.deadline", "0"], "--serve.deadline must be greater than 0, got '0'"),
        (["--serve.texts", "9", "--serve.queue", "5"], "--serve.texts must be at most --serve.queue, got 9 and 5"),
        (["--api-key-file", "nowhere"], "--api-key-file nowhere cannot be read: No such file or directory"),
    ],
)
def test_a_wrong_option_is_named_as_it_was_typed(capsys, served, options, line):
    assert serve(capsys, served / "clf", *options) == (2, f"headstart: {line}\n")


def test_settings_are_read_from_headstart_toml(capsys, served, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "headstart.toml").write_text("[serve]\nport = 1\ntexts = 9\nqueue = 5\n")
    assert serve(capsys, served / "clf")[1] == "headstart: --serve.texts must be at most --serve.queue, got 9 and 5\n"
    assert run(["params", "--preset", "classic", "--vocab-size", "300"]) == 0  # control: other commands ignore them


def test_the_key_comes_from_a_file_or_an_environment_variable(monkeypatch, tmp_path):
    monkeypatch.setenv("HEADSTART_API_KEY", "from-the-variable")
    (tmp_path / "key").write_text("from-the-file\n")
    assert api_key(ServeConfig()) == "from-the-variable"
    assert api_key(ServeConfig(api_key_file=str(tmp_path / "key"))) == "from-the-file"
    monkeypatch.setenv("HEADSTART_API_KEY", "")
    assert api_key(ServeConfig()) is None
    (tmp_path / "key").write_text("\n")
    with pytest.raises(UsageError, match="key is empty"):
        api_key(ServeConfig(api_key_file=str(tmp_path / "key")))
    monkeypatch.setenv("HEADSTART_API_KEY", "two words")
    with pytest.raises(ConfigError, match="printable ASCII"):
        api_key(ServeConfig())


@pytest.mark.parametrize(
    ("host", "extra", "names"),
    [
        ("127.0.0.1", None, {"127.0.0.1", "::1", "localhost"}),
        ("127.0.0.1", "app.example, other", {"127.0.0.1", "::1", "localhost", "app.example", "other"}),
        ("0.0.0.0", None, None),
        ("0.0.0.0", "app.example", {"app.example"}),
    ],
)
def test_allowed_host_names_follow_from_host_and_allow_hosts(host, extra, names):
    assert ServeConfig(host=host, allow_hosts=extra).hosts() == names


def test_without_the_serve_extra_the_error_says_what_to_install(served):
    code = "import sys; sys.modules['fastapi'] = None; from headstart.cli.main import run; "
    code += f"sys.exit(run(['serve', {str(served / 'clf')!r}]))"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (process.returncode, process.stderr) == (
        2,
        "headstart: serve needs fastapi, which is not installed; pip install 'headstart[serve]'\n",
    )

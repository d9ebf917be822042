"""Atomic folders are complete or absent, and a damaged one is named."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstart.errors import StoreError, UsageError
from headstart.files import _checksum, atomic_folder, atomic_write, read_json, read_manifest, write_json


def write_folder(folder, content=b"weights"):
    with atomic_folder(folder, kind="bundle", about={"head_type": "classify"}) as draft:
        (draft / "a.bin").write_bytes(content)
        (draft / "inner").mkdir()
        (draft / "inner" / "b.json").write_text("{}")
    return folder


def test_a_folder_is_read_as_it_was_written(tmp_path):
    assert read_manifest(write_folder(tmp_path / "x"), kind="bundle") == {"head_type": "classify"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x"]


def test_a_failure_while_writing_leaves_the_old_folder_and_no_draft(tmp_path):
    folder = write_folder(tmp_path / "x", b"old")
    with pytest.raises(RuntimeError, match="power"), atomic_folder(folder, kind="bundle") as draft:
        (draft / "a.bin").write_bytes(b"new")
        raise RuntimeError("power")
    assert (folder / "a.bin").read_bytes() == b"old"
    read_manifest(folder, kind="bundle")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x"]


def test_a_folder_is_replaced_as_a_unit(tmp_path):
    folder = write_folder(tmp_path / "x", b"old")
    with atomic_folder(folder, kind="bundle") as draft:
        (draft / "c.bin").write_bytes(b"new")
    assert sorted(path.name for path in folder.iterdir()) == ["c.bin", "manifest.json"]


@pytest.mark.parametrize("name", ["a.bin", "inner/b.json"])
def test_a_missing_truncated_or_changed_file_is_named(tmp_path, name):
    folder = write_folder(tmp_path / "x")
    path = folder / name
    content = path.read_bytes()
    path.write_bytes(content[:-1])
    assert refusal(folder) == f"{path} is damaged: {len(content) - 1} bytes where {len(content)} were written"
    path.write_bytes(bytes([content[0] ^ 1]) + content[1:])
    assert refusal(folder) == f"{path} is damaged: its bytes are not those that were written (sha256)"
    path.unlink()
    assert refusal(folder) == f"{path} is missing; {folder} is damaged"


def test_a_link_instead_of_a_file_is_refused(tmp_path):
    folder = write_folder(tmp_path / "x")
    (tmp_path / "elsewhere").write_bytes(b"weights")
    (folder / "a.bin").unlink()
    (folder / "a.bin").symlink_to(tmp_path / "elsewhere")
    assert refusal(folder) == f"{folder / 'a.bin'} is missing; {folder} is damaged"


def test_a_folder_of_another_kind_or_format_is_refused(tmp_path):
    folder = write_folder(tmp_path / "x")
    with pytest.raises(UsageError) as caught:
        read_manifest(folder, kind="shards")
    assert str(caught.value) == f"{folder} is a Headstart folder of kind bundle; this needs shards"
    manifest = read_json(folder / "manifest.json")
    write_json(folder / "manifest.json", manifest | {"format": 99})
    assert (
        refusal(folder)
        == f"{folder} has format 99, this version of Headstart reads 2; update Headstart, or create it again"
    )
    (folder / "manifest.json").unlink()
    assert refusal(folder) == f"{folder} is not a Headstart bundle: it has no manifest.json"


@pytest.mark.parametrize("name", ["../outside", "/etc/passwd", "inner/../../outside"])
def test_a_manifest_cannot_reach_out_of_its_folder(tmp_path, name):
    folder = write_folder(tmp_path / "x")
    manifest = read_json(folder / "manifest.json")
    manifest["files"][name] = {"size": 1, "sha256": "0"}
    write_manifest(folder, manifest)
    assert refusal(folder) == f"{folder / 'manifest.json'} is damaged: it lists {name!r}"


@given(st.data())
def test_any_flipped_bit_of_any_file_is_noticed(tmp_path_factory, data):
    folder = write_folder(tmp_path_factory.mktemp("flip") / "x")
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    path = data.draw(st.sampled_from(paths))
    content = bytearray(path.read_bytes())
    position = data.draw(st.integers(0, len(content) - 1))
    content[position] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(bytes(content))
    assert str(path) in refusal(folder) or refusal(folder).startswith(f"{folder} has format")


def test_a_file_is_replaced_atomically(tmp_path):
    atomic_write(tmp_path / "x", b"one")
    atomic_write(tmp_path / "x", b"two")
    assert (tmp_path / "x").read_bytes() == b"two"
    assert os.listdir(tmp_path) == ["x"]


def test_nan_is_refused_in_json(tmp_path):
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "x.json", {"loss": float("nan")})
    assert os.listdir(tmp_path) == []


@given(st.binary(max_size=200))
def test_any_bytes_instead_of_json_give_a_one_line_error(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("json") / "x.json"
    path.write_bytes(content)
    message = None
    try:
        read_json(path)
    except StoreError as error:
        message = str(error)
    assert message is None or message.startswith(f"{path} is damaged: ")


def write_manifest(folder, manifest):
    """Write a manifest as a malicious program would: with a valid checksum."""
    manifest.pop("seal")
    write_json(folder / "manifest.json", manifest | {"seal": _checksum(manifest)})


def refusal(folder, kind="bundle"):
    with pytest.raises(StoreError) as caught:
        read_manifest(folder, kind=kind)
    return str(caught.value)

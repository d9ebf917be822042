"""Corpora prepared file by file, in processes, and on several machines: the same shards, and nothing finished is repeated."""

import gzip
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import headstart
from faults import worker_kills
from fixtures.tiny import Listener, review
from fixtures.waiting import wait_until
from headstart.cli.main import run
from headstart.config.schema import CorpusConfig, TokenizerConfig
from headstart.data.decontamination import Membership
from headstart.data.shards import Shards
from headstart.errors import DataError, UsageError
from headstart.files import read_json
from headstart.recipes.prepare import PrepareRequest, parts_folder, run_merge, run_prepare, run_tokenizer

SMALL = TokenizerConfig(vocab_size=300)


def write_files(folder: Path, files: int, lines: int) -> list[str]:
    """Files of reviews, one of them gzipped, one of them empty but for a blank line."""
    chance = random.Random(3)
    names = []
    for number in range(files):
        rows = [review(chance, bool(row % 2)) for row in range(lines)]
        content = "".join(f"{row}\n" for row in rows) if number != 2 else "\n"
        name = f"{number}.txt" + (".gz" if number == 1 else "")
        (folder / name).write_bytes(gzip.compress(content.encode()) if number == 1 else content.encode())
        names.append(name)
    return names


@pytest.fixture(autouse=True)
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = write_files(tmp_path, files=5, lines=40)
    run_tokenizer(names[:1], Path("tok"), SMALL, CorpusConfig(), Listener())
    return names


def prepare(paths, out, jobs=None, corpus=None, tokenizer=Path("tok"), progress=None):
    progress = progress or Listener()
    corpus = corpus or CorpusConfig()
    return run_prepare(PrepareRequest(paths, Path(out), corpus, SMALL, tokenizer, jobs), progress)


def content(folder) -> dict[str, bytes]:
    folder = Path(folder)
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("jobs", [1, 2])
def test_several_processes_write_the_shards_of_one_byte_for_byte(files, jobs):
    prepare(files, "whole")
    prepare(files, "parts", jobs)
    assert content("parts") == content("whole")
    assert {"tokens.bin", "offsets.bin", "manifest.json", "tokenizer/tokenizer.json"} <= content("whole").keys()
    assert not parts_folder(Path("parts")).exists()
    prepare(files[1:], "others", jobs)
    assert content("others")["tokens.bin"] != content("whole")["tokens.bin"]


def test_a_file_named_twice_and_a_tokenizer_trained_on_the_way_make_no_difference(files):
    twice = [*files, files[0]]
    prepare(twice, "whole", tokenizer=None)
    prepare(twice, "parts", 2, tokenizer=None)
    assert content("parts") == content("whole")


def test_parts_exclude_the_same_texts_as_one_pass(files):
    lines = Path(files[0]).read_text().splitlines()
    Path("test.txt").write_text("\n".join(lines[:7]) + "\n")
    corpus = CorpusConfig(exclude="test.txt")
    listener = Listener()
    whole = prepare(files, "whole", corpus=corpus)
    prepare(files, "parts", 2, corpus=corpus, progress=listener)
    assert whole.about["excluded"]["exact"] >= 7
    assert content("parts") == content("whole")
    assert listener.lines[-1].startswith("excluded 7 exact duplicates and ")


def test_a_fully_excluded_corpus_is_refused_by_parts(files):
    for jobs in (None, 2):
        with pytest.raises(DataError) as caught:
            prepare([files[0], files[0]], "out", jobs, corpus=CorpusConfig(exclude=files[0]))
        assert str(caught.value) == ("corpus.exclude 0.txt excludes every document; no text is left for training")
    for jobs in (None, 2):
        with pytest.raises(DataError) as caught:
            prepare([files[2], files[2]], "out", jobs)
        assert str(caught.value) == "2.txt, 2.txt: contains no text; every document is empty"


def test_urls_are_read_by_every_process(files, tmp_path):
    urls = [f"file://{tmp_path}/{name}" for name in files]
    prepare(files, "paths")
    prepare(urls, "urls", 2)
    for name in ("tokens.bin", "offsets.bin", "bytes.bin", "digests.bin"):
        assert content("urls")[name] == content("paths")[name]


def test_a_bad_line_is_named_from_whichever_process_met_it(files):
    Path("bad.txt").write_bytes(b"fine\n\xff\n")
    with pytest.raises(DataError) as caught:
        prepare([*files, "bad.txt"], "out", 2)
    assert str(caught.value).startswith("bad.txt, line 2: not UTF-8 (byte 1 is 0xff)")


def test_halves_prepared_apart_merge_to_the_whole(files):
    whole = prepare(files, "whole")
    prepare(files[:2], "one", 2)
    prepare(files[2:], "two")
    merged = headstart.merge(["one", "two"], out="merged")
    assert content("merged") == content("whole")
    assert Membership.from_digests(merged.digests).to_bytes() == Membership.from_digests(whole.digests).to_bytes()
    listener = Listener()
    prepare(files, "merged", progress=listener)
    assert listener.lines == [
        f"merged is up to date: {whole.num_documents} documents, {whole.num_tokens:,} tokens; reused"
    ]
    headstart.merge(["two", "one"], out="turned")
    assert content("turned")["tokens.bin"] != content("whole")["tokens.bin"]


def test_only_shards_of_one_tokenizer_merge(files):
    prepare(files[:2], "one")
    prepare(files[3:], "two", tokenizer=None)
    with pytest.raises(UsageError) as caught:
        run_merge([Path("one"), Path("two")], Path("merged"), Listener())
    assert str(caught.value) == "one and two have different tokenizers; prepare them with the same --tokenizer"
    with pytest.raises(UsageError) as caught:
        run_merge([Path("one"), Path("one")], Path("one"), Listener())
    assert str(caught.value) == "one is one of the folders to merge; choose another --out"
    with pytest.raises(UsageError) as caught:
        run_merge([Path("one"), Path("tok")], Path("merged"), Listener())
    assert str(caught.value) == "tok is a Headstart folder of kind tokenizer; this needs shards"
    assert not Path("merged").exists()


def test_exclusions_of_some_folders_are_not_claimed_for_the_merged_one(files):
    Path("test.txt").write_text(Path(files[0]).read_text())
    prepare(files[:2], "one", corpus=CorpusConfig(exclude="test.txt"))
    prepare(files[3:], "two")
    listener = Listener()
    merged = run_merge([Path("one"), Path("two")], Path("merged"), listener)
    assert "excluded" not in merged.about
    assert listener.lines == [
        "these folders did not exclude the same files, so the merged folder does not record exclusions"
    ]


def command(files, *more):
    return [sys.executable, "-m", "headstart", "prepare", *files, "--tokenizer", "tok", "--out", "out", *more]


def finished_parts() -> dict[str, int]:
    """The parts that stand whole, and when they were written."""
    return {path.parent.name: path.stat().st_mtime_ns for path in Path("out.parts").glob("part-*/manifest.json")}


@pytest.fixture
def many(tmp_path):
    chance = random.Random(5)
    lines = [review(chance, bool(row % 2)) for row in range(20_000)]
    for number in range(8):
        chance.shuffle(lines)
        (tmp_path / f"long-{number}.txt").write_text("\n".join(lines) + "\n")
    (tmp_path / "long-0.txt").write_text("\n".join(lines[:1000]) + "\n")  # done first, long before the others
    return [f"long-{number}.txt" for number in range(8)]


def test_a_kill_repeats_no_finished_file(many):
    killed = worker_kills.Group(command(many, "--jobs", "2"), Path("killed.txt"))
    wait_until(finished_parts, killed.process)
    killed.process.kill()
    assert killed.end() == (-signal.SIGKILL, [])  # its processes notice, and end
    before = finished_parts()
    assert 0 < len(before) < 8
    stopped = worker_kills.Group(command(many, "--jobs", "2"), Path("stopped.txt"))
    wait_until(lambda: len(finished_parts()) > len(before), stopped.process)
    stopped.process.send_signal(signal.SIGTERM)
    code, remaining = stopped.end()
    progress = Path("stopped.txt").read_text()
    after = finished_parts()
    assert (code, remaining) == (143, []), progress
    assert f"{len(before)} of 8 files are already done; continuing" in progress
    assert progress.splitlines()[-1] == (
        f"headstart: SIGTERM: {len(after)} of 8 files are done and saved in out.parts; run the same command to continue"
    )
    assert before.items() <= after.items()  # not one was written again
    last = subprocess.run(command(many, "--jobs", "1", "-q"), capture_output=True, text=True)
    assert (last.stdout, last.stderr) == (
        f"out: 141,000 documents, {Shards.open(Path('out')).num_tokens:,} tokens\n",
        "",
    )
    prepare(many, "whole")
    assert content("out") == content("whole")
    assert not Path("out.parts").exists()


def test_numbers_of_processes_that_make_no_sense_are_refused(files, capsys):
    assert run(command(files, "--jobs", "0")[3:]) == 2
    assert capsys.readouterr().err == "headstart: --jobs must be at least 1, got 0\n"


PEAK = """
import resource, sys
from pathlib import Path
from headstart.cli.main import run
from headstart.config.schema import CorpusConfig, TokenizerConfig
from headstart.progress import SilentProgress
from headstart.recipes.prepare import PrepareRequest, run_merge, run_prepare
files = sys.argv[2:]
for out, some in (("a", files[:2]), ("b", files[2:])):
    request = PrepareRequest(some, Path(sys.argv[1] + out), CorpusConfig(), TokenizerConfig(), Path("tok"), jobs=1)
    run_prepare(request, SilentProgress())
run_merge([Path(sys.argv[1] + "a"), Path(sys.argv[1] + "b")], Path(sys.argv[1]), SilentProgress())
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="memory is counted in kilobytes on Linux")
def test_memory_does_not_grow_with_the_text(many):
    """Four times the text; the arrays alone would be several megabytes more."""

    def peak(out, times):
        files = [f"{out}-{number}.txt" for number in range(4)]
        for name in files:
            Path(name).write_text(Path(many[1]).read_text() * times)
        done = subprocess.run([sys.executable, "-c", PEAK, out, *files], capture_output=True, text=True, check=True)
        return int(done.stdout) / 1000

    assert sum(os.path.getsize(name) for name in many[1:2]) > 1e6
    small, large = peak("small", 1), peak("large", 4)
    assert large < small + 5, (small, large)
    tokens = np.fromfile("large/tokens.bin", "<u2")
    assert len(tokens) == read_json(Path("large/manifest.json"))["about"]["tokens"]
    assert tokens.nbytes > 5e6

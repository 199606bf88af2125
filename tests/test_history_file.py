"""The file itself: older and newer versions, damage, disks that will not write, processes that die or meet."""

from __future__ import annotations

import os
import platform
import re
import sqlite3
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from specchat.history import HistoryError, Store, schema
from tests.history_crash import ROOT, check_kept, kill_writer, start_writer
from tests.history_model import check_integrity


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "folder" / "history.db"


def fill(file: Path, turns: int = 3) -> str:
    """A history of one conversation about zebras; its id."""
    with Store(file) as store:
        talk, leaf = store.create(pair="small").id, None
        for number in range(turns):
            question = store.send(talk, f"zebra {number}", after=leaf).message
            leaf = store.begin_reply(question.id).id
            store.append_to(leaf, f"answer {number} " + "stripes " * 200)
            store.finish(leaf)
        return talk


# Versions


@pytest.mark.parametrize("steps", range(len(schema.STEPS) + 1))
def test_a_file_of_any_older_version_is_brought_up_to_date(
    file: Path, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.parent.mkdir()
    taken = [step.name for step in schema.STEPS[:steps]]
    with closing(sqlite3.connect(file, isolation_level=None)) as db, monkeypatch.context() as older:
        older.setattr(schema, "STEPS", schema.STEPS[:steps])
        schema.migrate(db)
        if "conversations" in taken:
            db.execute("INSERT INTO conversations(id, created, updated, leaf, title) VALUES ('2aaaaa', 1, 2, 3, 'old')")
        if "messages as trees" in taken:
            db.executemany(
                """INSERT INTO messages(id, conversation, parent, depth, role, state, created, updated, content)
                VALUES (?, '2aaaaa', ?, ?, ?, 'complete', 1, 1, ?)""",
                [(1, None, 0, "user", "zebra"), (2, 1, 1, "assistant", "left"), (3, 1, 1, "assistant", "right")],
            )
        if "branch last shown below each message" in taken:
            db.execute("UPDATE messages SET next = 3 WHERE id = 1")
    with Store(file) as store:
        check_integrity(store)
        assert schema.applied(store._db) == {step.name for step in schema.STEPS}
        if "conversations" in taken:
            assert (store.find("2a").title, store.find("2a").unsent) == ("old", "")
        if "messages as trees" in taken:
            assert [hit.message for hit in store.search("zebra")] == [1]
            assert [message.content for message in store.path(3)] == ["zebra", "right"]
            assert store.switch(1).leaf == 3
        # What is new works as well.
        talk = store.create().id
        question = store.send(talk, "new zebra", after=None, unsent="box").message
        assert store.conversation(talk).unsent == "box"
        assert question.id in {hit.message for hit in store.search("zebra")}


def test_a_step_that_fails_leaves_the_file_as_it_was(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    talk = fill(file)
    broken = schema.Step("broken", ("ALTER TABLE messages ADD COLUMN extra TEXT", "INSERT INTO nowhere VALUES (1)"))
    with monkeypatch.context() as newer:
        newer.setattr(schema, "STEPS", (*schema.STEPS, broken))
        with pytest.raises(sqlite3.OperationalError, match="nowhere"):
            Store(file)
    with Store(file) as store:
        assert store.counts().messages == 6
        assert store.find(talk).pair == "small"


def test_a_newer_file_is_refused_untouched(file: Path) -> None:
    fill(file)
    with closing(sqlite3.connect(file)) as db:
        db.execute("INSERT INTO migrations VALUES ('telepathy', 1)")
        db.commit()
    before = file.read_bytes()
    with pytest.raises(HistoryError, match=r"history\.db was written by a newer specchat: update this one"):
        Store(file)
    assert file.read_bytes() == before
    assert not list(file.parent.glob("*damaged*"))


def test_another_programs_database_is_refused_untouched(file: Path) -> None:
    file.parent.mkdir()
    with closing(sqlite3.connect(file)) as db:
        db.execute("CREATE TABLE bookmarks(url)")
    before = file.read_bytes()
    with pytest.raises(HistoryError, match="another program's database"):
        Store(file)
    assert file.read_bytes() == before
    assert {path.name for path in file.parent.iterdir()} == {"history.db", "history.db.lock"}


def test_the_history_is_private(file: Path) -> None:
    fill(file)
    with Store(file) as store:
        store.create()
        kept = list(file.parent.iterdir())
        assert {path.name for path in kept} == {f"history.db{end}" for end in ("", "-wal", "-shm", ".lock")}
        for path in (*kept, file.parent):
            assert not path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO), path


# Damage


def overwrite(at: int, length: int) -> Callable[[bytes], bytes]:
    return lambda data: data[:at] + b"\xa5" * length + data[at + length :]


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "not a database": lambda _: b"Dear diary,\n" * 100,
    "header gone": overwrite(0, 100),
    "a page of the schema": overwrite(100, 2000),
    "cut short": lambda data: data[: len(data) // 2],
    "a stretch of pages": overwrite(8 * 4096, 8 * 4096),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_set_aside_whole_and_said(file: Path, damage: str) -> None:
    fill(file, turns=30)
    file.write_bytes(DAMAGES[damage](file.read_bytes()))
    before = file.read_bytes()
    with Store(file) as store:
        aside = store.set_aside
        assert aside is not None
        assert aside.path.read_bytes() == before
        assert aside.path.name in aside.sentence
        assert "damaged" in aside.sentence
        assert "\n" not in aside.sentence
        assert store.conversations() == ()
        store.create()
    with Store(file) as store:
        assert store.set_aside is None
    fill(file)


def test_the_log_of_a_damaged_file_goes_with_it(file: Path) -> None:
    fill(file, turns=30)
    command = "from specchat.history import Store; from pathlib import Path; import os, sys\n"
    command += "s = Store(Path(sys.argv[1])); s.send(s.create().id, 'in the log', after=None); os._exit(0)"
    subprocess.run([sys.executable, "-c", command, str(file)], check=True, cwd=ROOT)
    log = file.with_name("history.db-wal")
    kept = log.read_bytes()
    assert b"in the log" in kept
    file.write_bytes(DAMAGES["a stretch of pages"](file.read_bytes()))
    before = file.read_bytes()
    with Store(file) as store:
        assert store.set_aside is not None
        aside = store.set_aside.path
        assert (aside.read_bytes(), aside.with_name(f"{aside.name}-wal").read_bytes()) == (before, kept)
        assert store.counts().messages == 0


def test_damage_twice_in_a_second_keeps_both(file: Path) -> None:
    file.parent.mkdir()
    kept = set()
    for text in (b"one " * 300, b"two " * 300):
        file.write_bytes(text)
        with Store(file) as store:
            assert store.set_aside is not None
            kept.add(store.set_aside.path.read_bytes())
    assert kept == {b"one " * 300, b"two " * 300}


def test_an_empty_file_is_a_new_history(file: Path) -> None:
    file.parent.mkdir()
    file.touch()
    with Store(file) as store:
        assert store.set_aside is None
        assert store.conversations() == ()


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE message_index_data SET block = x'00' WHERE id > 10",
        "DELETE FROM message_index_data",
        "DELETE FROM message_index_data WHERE id = 10",
        "DELETE FROM message_index_docsize",
    ],
)
def test_a_damaged_search_index_is_made_anew(file: Path, damage: str) -> None:
    fill(file)
    with closing(sqlite3.connect(file)) as db:
        db.execute(damage)
        db.commit()
    with Store(file) as store:
        assert store.set_aside is None
        with pytest.raises(HistoryError, match="search index was damaged and has been rebuilt: try again"):
            store.search("zebra")
        assert len(store.search("zebra")) == 3
        check_integrity(store)


# Disks and rights


def test_a_full_disk_is_said_and_nothing_kept_is_lost(file: Path) -> None:
    with Store(file) as store:
        question = store.send(store.create().id, "one", after=None).message
        reply = store.begin_reply(question.id)
        store.append_to(reply.id, "kept ")
        pages = store._db.execute("PRAGMA page_count").fetchone()[0]
        store._db.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(HistoryError, match=r"the disk that holds .*history\.db is full"):
            store.append_to(reply.id, "lost" * 100_000)
        assert store.message(reply.id).content == "kept "
        store._db.execute(f"PRAGMA max_page_count = {pages * 1000}")
        store.append_to(reply.id, "and more")
        assert store.finish(reply.id).content == "kept and more"


def in_a_process_without_rights(action: Callable[[], object]) -> str:
    """What `action` fails with for a user who may only read; root would be allowed to write anyway."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            if os.geteuid() == 0:
                os.setuid(65534)
            said = f"fine: {action()}"
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(write, said.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    return said


@pytest.fixture
def shared_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        yield folder
        folder.chmod(0o755)


@pytest.mark.parametrize(
    ("there", "folder", "rights"),
    [
        ("nothing", 0o555, 0),
        ("a history", 0o555, 0o444),
        ("a history", 0o555, 0o666),
        ("a history", 0o777, 0o444),
        ("a history", 0o777, 0),
        ("a history in use", 0o555, 0o444),
        ("a history in use", 0o777, 0o444),
    ],
)
def test_what_may_not_be_written_is_said(shared_folder: Path, there: str, folder: int, rights: int) -> None:
    file = shared_folder / "history.db"
    with ExitStack() as stack:
        if there != "nothing":
            fill(file)
        if there == "a history in use":
            stack.enter_context(Store(file)).create()
        for path in shared_folder.iterdir():
            path.chmod(rights)
        shared_folder.chmod(folder)
        said = in_a_process_without_rights(lambda: Store(file))
    assert re.match(f"HistoryError: cannot .*{file}.*(read-only|Permission denied)", said), said


def test_a_folder_or_a_file_in_the_way_is_said(tmp_path: Path) -> None:
    with pytest.raises(HistoryError, match="it is a folder"):
        Store(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(HistoryError, match="cannot keep conversations in"):
        Store(tmp_path / "file" / "history.db")


def test_a_lock_that_is_never_given_back_is_said(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specchat.history.database.BUSY_TIMEOUT", 0.05)
    talk = fill(file)
    with closing(sqlite3.connect(file, isolation_level=None)) as rude, Store(file) as store:
        rude.execute("BEGIN IMMEDIATE")
        with pytest.raises(HistoryError, match=r"another program keeps .* locked"):
            store.keep_unsent(talk, "text")
        assert len(store.search("zebra")) == 3
        rude.execute("ROLLBACK")
        store.keep_unsent(talk, "text")


def test_only_the_first_call_waits_long_for_a_lock(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specchat.history.database.BUSY_TIMEOUT", 1.0)
    talk = fill(file)

    def patience(store: Store) -> int:
        return int(store._db.execute("PRAGMA busy_timeout").fetchone()[0])

    with closing(sqlite3.connect(file, isolation_level=None)) as rude, Store(file) as store:
        rude.execute("BEGIN IMMEDIATE")
        assert patience(store) == 1000
        for _ in range(2):
            with pytest.raises(HistoryError, match="locked"):
                store.keep_unsent(talk, "text")
            assert patience(store) < 100
        rude.execute("ROLLBACK")
        store.keep_unsent(talk, "text")
        assert patience(store) == 1000


def test_a_locked_file_with_an_abandoned_reply_can_be_read(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specchat.history.database.BUSY_TIMEOUT", 0.05)
    talk = fill(file)
    with closing(sqlite3.connect(file, isolation_level=None)) as rude, Store(file) as store:
        rude.execute("UPDATE messages SET state = 'streaming', owner = '1/0.0/1/' || ?", (platform.node(),))
        rude.execute("BEGIN IMMEDIATE")
        assert store.conversation(talk).id == talk
        rude.execute("ROLLBACK")
        assert {message.state for message in store.tree(talk)} == {"stopped"}


@pytest.mark.parametrize("what", ["deleted", "moved", "replaced"])
def test_a_file_that_goes_away_is_said_at_every_call_and_not_written(file: Path, tmp_path: Path, what: str) -> None:
    talk = fill(file)
    with Store(file) as store:
        if what == "deleted":
            file.unlink()
        else:
            file.rename(tmp_path / "elsewhere.db")
        if what == "replaced":
            Store(file).close()
        calls: tuple[Callable[[], object], ...] = (
            lambda: store.keep_unsent(talk, "text"),
            lambda: store.conversation(talk),
            lambda: store.search("zebra"),
            store.version,
        )
        for call in calls:
            with pytest.raises(HistoryError, match=r"history\.db was moved or deleted while it was in use"):
                call()
    with Store(file) as store:
        assert store.conversations() == ()


# Processes


def test_whatever_was_done_survives_being_killed(file: Path) -> None:
    for seed in range(6):
        check_kept(file, kill_writer(file, seed, seconds=0.3))


def test_two_processes_write_one_conversation_without_mixing(file: Path) -> None:
    with Store(file) as store:
        talk = store.create().id
        shared = store.send(talk, "shared", after=None).message
    script = """
import sys
from pathlib import Path
from specchat.history import Store
with Store(Path(sys.argv[1])) as store:
    leaf, forks = int(sys.argv[3]), []
    print("ready", flush=True)
    sys.stdin.readline()
    for number in range(30):
        turn = store.send(sys.argv[2], f"{sys.argv[4]}{number}", after=leaf)
        forks += [number] * turn.forked
        leaf = store.begin_reply(turn.message.id).id
        for _ in range(5):
            store.append_to(leaf, sys.argv[4])
        store.finish(leaf)
    print(leaf, *forks)
"""
    windows = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(file), talk, str(shared.id), name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        for name in "AB"
    ]
    for window in windows:
        assert window.stdout is not None
        assert window.stdout.readline() == "ready\n"
    ends = [[int(word) for word in window.communicate("go\n", timeout=60)[0].split()] for window in windows]
    # Exactly one of the two came second, and was told so once, at its first turn.
    assert sorted(forks for _, *forks in ends) == [[], [0]]
    with Store(file) as store:
        check_integrity(store)
        for name, (leaf, *_) in zip("AB", ends, strict=True):
            expected = [text for number in range(30) for text in (f"{name}{number}", name * 5)]
            assert [message.content for message in store.path(leaf)] == ["shared", *expected]


@pytest.mark.parametrize("before", ["nothing", "a damaged file"])
def test_windows_that_open_at_once_share_one_new_file(file: Path, before: str) -> None:
    if before == "a damaged file":
        file.parent.mkdir()
        file.write_bytes(b"Dear diary,\n" * 100)
    start, opened, failed = threading.Barrier(8), [], []

    def window() -> None:
        start.wait()
        try:
            with Store(file) as store:
                opened.append(store.create().id)
        except HistoryError as error:
            failed.append(error)

    threads = [threading.Thread(target=window) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    with Store(file) as store:
        assert store.counts().conversations == len(set(opened)) == 8
    aside = [path.read_bytes() for path in file.parent.glob("*damaged*")]
    assert aside == ([b"Dear diary,\n" * 100] if before == "a damaged file" else [])


def test_a_writer_ends_by_itself_after_its_steps(file: Path) -> None:
    """The process that the other tests kill does run to its end if nobody does."""
    with tempfile.TemporaryFile("w+") as said:
        assert start_writer(file, said, 1, "30").wait(60) == 0
        said.seek(0)
        assert said.read().count('"did"') > 20

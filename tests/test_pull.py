"""Downloads against a hub that misbehaves in every way it can: what is installed is right, or is not there."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from specchat.errors import SpecchatError
from specchat.pairs import crew
from specchat.pairs.catalog import HubSource, ModelFile, Pair, Shard
from specchat.pairs.discovery import Place
from specchat.pairs.library import State
from specchat.pairs.progress import Phase, Plan, Progress
from tests.fakehub import COMMIT, FakeHub, model
from tests.promptly import promptly
from tests.pulling import QUICK, REPO, SIZE, Bench


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with FakeHub() as hub:
        yield hub


@pytest.fixture
def bench(hub: FakeHub, tmp_path: Path) -> Bench:
    return Bench(hub, tmp_path)


@pytest.fixture
def solo(bench: Bench) -> Pair:
    """A pair of one file, where a test is about one transfer."""
    return bench.pair("target.gguf")


# -- a good connection ------------------------------------------------------------------------------------


def test_a_pair_arrives_whole_verified_and_recorded(bench: Bench) -> None:
    bench.pull()
    bench.assert_whole()
    assert bench.plan().missing == 2 * SIZE
    for name in ("target.gguf", "draft.gguf"):
        phases = list(dict.fromkeys(p.phase for p in bench.progress(file=name)))
        assert phases == [Phase.ASKING, Phase.DOWNLOADING, Phase.VERIFYING, Phase.INSTALLING, Phase.DONE]


def test_the_plan_comes_before_the_first_byte(bench: Bench) -> None:
    for event in bench.start():
        if isinstance(event, Plan):
            break
        assert event.phase in (Phase.ASKING, Phase.WAITING)
    assert not bench.hub.requests("GET")


def test_a_second_pull_asks_nobody_anything(bench: Bench) -> None:
    bench.pull()
    seen = len(bench.hub.log)
    assert bench.pull() == []
    assert len(bench.hub.log) == seen


def test_both_files_are_on_their_way_at_once(bench: Bench) -> None:
    bench.hub.knobs.pace = 1e6
    bench.pull()
    order = [p.file for p in bench.progress(Phase.DOWNLOADING)]
    first_end = min(len(order) - 1 - order[::-1].index(name) for name in ("target.gguf", "draft.gguf"))
    assert {"target.gguf", "draft.gguf"} <= set(order[: first_end + 1])


def test_a_shared_draft_is_fetched_and_stored_once(bench: Bench) -> None:
    bench.hub.files[REPO, "other.gguf"] = model(SIZE, 7)
    bench.pull(bench.pair(), bench.pair("other.gguf", "draft.gguf", called="more"))
    bench.assert_whole("target.gguf", "draft.gguf", "other.gguf")
    assert bench.sent("draft.gguf") == SIZE


def test_shards_arrive_side_by_side(bench: Bench) -> None:
    names = [f"big-{n:05}-of-00003.gguf" for n in (1, 2, 3)]
    for number, name in enumerate(names):
        bench.hub.files[REPO, name] = model(1000 + number, number)
    file = ModelFile("big", HubSource(REPO, tuple(Shard(name) for name in names)))
    bench.pull(Pair("split", file, None))
    assert [bench.installed(name).read_bytes() for name in names] == [bench.content(name) for name in names]
    assert bench.library.status(file).state is State.READY


def test_a_missing_shard_is_all_that_is_fetched(bench: Bench) -> None:
    test_shards_arrive_side_by_side(bench)
    names = [f"big-{n:05}-of-00003.gguf" for n in (1, 2, 3)]
    bench.installed(names[1]).unlink()
    bench.hub.log.clear()
    file = ModelFile("big", HubSource(REPO, tuple(Shard(name) for name in names)))
    bench.pull(Pair("split", file, None))
    assert [r.path.rpartition("/")[2] for r in bench.hub.requests()] == [names[1]]


def test_two_files_of_one_name_are_told_apart(bench: Bench) -> None:
    bench.hub.files["other/repo", "target.gguf"] = model(999, 5)
    other = ModelFile("far", HubSource("other/repo", (Shard("target.gguf"),)))
    bench.pull(Pair("twins", bench.file("target.gguf"), other))
    assert {f.file for f in bench.plan().files} == {f"{REPO}/target.gguf", "other/repo/target.gguf"}


def test_the_bytes_are_asked_for_at_the_commit_that_was_described(bench: Bench, solo: Pair) -> None:
    bench.pull(solo)
    assert all(f"/resolve/{COMMIT}/" in r.path for r in bench.hub.requests("GET"))
    assert all("/resolve/main/" in r.path for r in bench.hub.requests("HEAD"))


def test_a_pinned_commit_is_asked_for(bench: Bench) -> None:
    bench.revision = "abc123"
    bench.pull(bench.pair("target.gguf"))
    assert all("/resolve/abc123/" in r.path for r in bench.hub.requests("HEAD"))


def test_a_body_without_a_length_is_taken(bench: Bench, solo: Pair) -> None:
    bench.hub.knobs.chunked = True
    bench.pull(solo)
    bench.assert_whole("target.gguf")


# -- going on ---------------------------------------------------------------------------------------------


def test_a_part_is_gone_on_with(bench: Bench, solo: Pair) -> None:
    bench.leave_part("target.gguf", bench.content("target.gguf")[:300_000])
    bench.pull(solo)
    bench.assert_whole("target.gguf")
    assert bench.starts("target.gguf") == [300_000]
    assert bench.sent("target.gguf") == SIZE - 300_000
    assert bench.plan().files[0].here == 300_000
    assert bench.plan().missing == SIZE - 300_000


def test_a_complete_part_is_installed_without_a_byte(bench: Bench, solo: Pair) -> None:
    bench.leave_part("target.gguf", bench.content("target.gguf"))
    bench.pull(solo)
    bench.assert_whole("target.gguf")
    assert not bench.hub.requests("GET")


def test_a_line_cut_again_and_again_is_gone_on_with_in_the_same_run(bench: Bench, solo: Pair) -> None:
    bench.hub.knobs.drop_after = 50_000
    bench.pull(solo)
    bench.assert_whole("target.gguf")
    assert len(bench.starts("target.gguf")) >= SIZE // 50_000 > QUICK.tries
    assert bench.sent("target.gguf") <= SIZE + len(bench.starts("target.gguf")) * 16 * 1024
    assert "broke" in bench.notes()


def test_a_server_that_always_cuts_is_given_up_and_the_part_kept(bench: Bench, solo: Pair) -> None:
    bench.hub.knobs.drop_after = 0
    bench.leave_part("target.gguf", bench.content("target.gguf")[:1000])
    with pytest.raises(SpecchatError, match="broke"):
        bench.pull(solo)
    assert bench.parts()[0].stat().st_size == 1000
    assert bench.state("target.gguf") is State.PARTIAL


def test_a_stalled_server_is_noticed_and_gone_on_with(bench: Bench, solo: Pair) -> None:
    bench.hub.knobs.stall_after, bench.hub.knobs.stalls = 100_000, 1
    bench.pull(solo)
    bench.assert_whole("target.gguf")
    assert len(bench.starts("target.gguf")) == 2
    assert bench.starts("target.gguf")[1] > 0
    assert "does not answer" in bench.notes()


def test_a_slow_server_is_not_a_stalled_one(bench: Bench, solo: Pair) -> None:
    bench.hub.knobs.pace = SIZE / 1.2  # longer in all than the stall time-out, never as long without a byte
    bench.pull(solo)
    bench.assert_whole("target.gguf")
    assert len(bench.starts("target.gguf")) == 1


def test_a_server_that_ignores_ranges_starts_again(bench: Bench, solo: Pair) -> None:
    bench.hub.knobs.ignore_range = True
    bench.leave_part("target.gguf", b"x" * 1000)
    bench.pull(solo)
    bench.assert_whole("target.gguf")
    assert bench.starts("target.gguf") == [1000]
    assert "cannot resume" in bench.notes()


def test_a_wrong_content_range_starts_again(bench: Bench, solo: Pair) -> None:
    bench.hub.knobs.shift_range = 10
    bench.leave_part("target.gguf", bench.content("target.gguf")[:1000])
    bench.pull(solo)
    bench.assert_whole("target.gguf")
    assert bench.starts("target.gguf") == [1000, 0]


def test_a_refused_range_starts_again(bench: Bench, solo: Pair) -> None:
    bench.hub.knobs.refuse_ranges = True
    bench.leave_part("target.gguf", bench.content("target.gguf")[:1000])
    bench.pull(solo)
    bench.assert_whole("target.gguf")
    assert bench.starts("target.gguf") == [1000, 0]


def test_a_part_longer_than_the_file_starts_again(bench: Bench, solo: Pair) -> None:
    bench.leave_part("target.gguf", bench.content("target.gguf") + b"more")
    bench.pull(solo)
    bench.assert_whole("target.gguf")
    assert bench.plan().files[0].here == 0


def test_a_damaged_part_starts_again(bench: Bench, solo: Pair) -> None:
    bench.leave_part("target.gguf", b"garbage" * 1000)
    bench.pull(solo)
    bench.assert_whole("target.gguf")
    assert bench.starts("target.gguf") == [7000, 0]
    assert "damaged" in bench.notes()


def test_a_file_that_changed_on_the_hub_starts_again(bench: Bench, solo: Pair) -> None:
    bench.leave_part("target.gguf", bench.content("target.gguf")[:1000])
    bench.hub.files[REPO, "target.gguf"] = model(SIZE + 5, 99)
    bench.pull(solo)
    bench.assert_whole("target.gguf")
    assert bench.starts("target.gguf") == [0]
    assert "changed on the hub" in bench.notes()


# -- damage -----------------------------------------------------------------------------------------------


def test_wrong_bytes_of_the_right_size_are_never_installed(bench: Bench, solo: Pair) -> None:
    bench.hub.knobs.wrong_bytes = 10
    with pytest.raises(SpecchatError, match=r"damaged.*pull again"):
        bench.pull(solo)
    assert not bench.installed("target.gguf").exists()
    assert not bench.parts()  # nothing of it is worth going on with
    bench.hub.knobs.wrong_bytes = 0
    bench.pull(solo)
    bench.assert_whole("target.gguf")


def test_bytes_past_the_end_are_not_the_files(bench: Bench, solo: Pair) -> None:
    bench.hub.knobs.chunked, bench.hub.knobs.extra = True, b"trailing"
    bench.pull(solo)
    bench.assert_whole("target.gguf")


def test_an_empty_body_is_asked_for_again(bench: Bench, solo: Pair) -> None:
    bench.hub.knobs.empty_bodies = 1
    bench.pull(solo)
    bench.assert_whole("target.gguf")


def test_only_empty_bodies_are_an_error(bench: Bench, solo: Pair) -> None:
    bench.hub.knobs.empty_bodies = 100
    with pytest.raises(SpecchatError, match="too early"):
        bench.pull(solo)
    assert bench.state("target.gguf") is State.MISSING


def test_the_catalogues_hash_decides(bench: Bench) -> None:
    bench.sha256["target.gguf"] = hashlib.sha256(b"another file").hexdigest()
    with pytest.raises(SpecchatError, match="no longer the file the catalogue describes"):
        bench.pull(bench.pair("target.gguf"))
    assert not bench.hub.requests("GET")


def test_the_catalogues_hash_verifies_where_the_hub_gives_none(bench: Bench) -> None:
    bench.hub.knobs.etag = "0123456789abcdef0123456789abcdef01234567"
    bench.sha256["target.gguf"] = hashlib.sha256(bench.content("target.gguf")).hexdigest()
    bench.pull(bench.pair("target.gguf"))
    bench.assert_whole("target.gguf")


def test_an_entry_with_another_size_than_the_hubs_is_said_before_the_first_byte(bench: Bench) -> None:
    file = ModelFile("t", HubSource(REPO, (Shard("target.gguf", SIZE - 1),)), SIZE - 1)
    with pytest.raises(SpecchatError, match=r"has 400,000 bytes, but \[files.t\] of the catalogue says 399,999"):
        bench.pull(Pair("wrong", file, None))
    assert not bench.hub.requests("GET")


def test_what_cannot_be_verified_is_not_fetched(bench: Bench, solo: Pair) -> None:
    bench.hub.knobs.etag = "0123456789abcdef0123456789abcdef01234567"
    with pytest.raises(SpecchatError, match="gives no sha256"):
        bench.pull(solo)
    assert not bench.hub.requests("GET")


def test_force_finds_a_flipped_byte_and_heals_it(bench: Bench) -> None:
    bench.pull()
    path = bench.installed("target.gguf")
    stat = path.stat()
    damaged = bytearray(path.read_bytes())
    damaged[1234] ^= 1
    path.write_bytes(damaged)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))  # as a failing disk would: nothing tells
    assert bench.pull() == []
    bench.hub.log.clear()
    bench.pull(force=True)
    bench.assert_whole()
    assert {r.path.rpartition("/")[2] for r in bench.hub.log} == {"target.gguf"}


def test_force_fetches_nothing_that_is_right(bench: Bench) -> None:
    bench.pull()
    bench.hub.log.clear()
    bench.pull(force=True)
    assert {p.phase for p in bench.progress()} == {Phase.VERIFYING, Phase.DONE}
    assert not bench.hub.log


def test_a_file_of_the_wrong_size_is_fetched_again(bench: Bench) -> None:
    bench.pull()
    bench.installed("draft.gguf").write_bytes(b"short")
    bench.pull()
    bench.assert_whole()


def test_a_file_that_was_never_checked_is_hashed_not_fetched(bench: Bench) -> None:
    bench.pull()
    for record in bench.library.records.iterdir():
        record.unlink()
    bench.sha256 |= {name: hashlib.sha256(bench.content(name)).hexdigest() for name in ("target.gguf", "draft.gguf")}
    bench.hub.log.clear()
    bench.pull()
    bench.assert_whole()
    assert not bench.hub.log


def test_a_file_another_program_has_is_used_where_it_is(bench: Bench, tmp_path: Path) -> None:
    bench.sha256["target.gguf"] = hashlib.sha256(bench.content("target.gguf")).hexdigest()
    theirs = tmp_path / "lm-studio" / "target.gguf"
    theirs.parent.mkdir()
    theirs.write_bytes(bench.content("target.gguf"))
    bench.places = (Place("LM Studio", theirs.parent),)
    bench.pull(bench.pair("target.gguf"))
    assert not bench.hub.log
    assert bench.library.path(bench.file("target.gguf")) == theirs
    damaged = b"x" + bench.content("target.gguf")[1:]
    theirs.write_bytes(damaged)
    bench.pull(bench.pair("target.gguf"), force=True)
    bench.assert_whole("target.gguf")
    assert theirs.read_bytes() == damaged  # theirs is theirs


# -- limits and trouble that passes -----------------------------------------------------------------------


def test_a_rate_limit_counts_down_and_passes(bench: Bench, solo: Pair) -> None:
    bench.hub.knobs.limited, bench.hub.knobs.limited_headers = 1, {"Retry-After": "2"}
    begun = time.monotonic()
    bench.pull(solo)
    assert time.monotonic() - begun >= 2
    left = [p.seconds for p in bench.progress(Phase.WAITING) if p.seconds is not None]
    assert len(left) >= 2
    assert left[0] > left[-1]
    assert "limits how often" in bench.notes()
    bench.assert_whole("target.gguf")


def test_the_hubs_own_header_says_how_long(bench: Bench, solo: Pair) -> None:
    bench.hub.knobs.limited, bench.hub.knobs.limited_headers = 1, {"RateLimit": '"resolvers";r=0;t=1'}
    bench.pull(solo)
    assert any(0 < (p.seconds or 0) <= 1 for p in bench.progress(Phase.WAITING))
    bench.assert_whole("target.gguf")


def test_a_limit_in_the_middle_keeps_what_is_here(bench: Bench, solo: Pair) -> None:
    bench.hub.knobs.drop_after, bench.hub.knobs.drops = 150_000, 1
    for event in bench.start(solo):
        bench.events.append(event)
        if isinstance(event, Plan):  # the HEAD is answered: the limit meets the GETs
            bench.hub.knobs.limited, bench.hub.knobs.limited_headers = 1, {"Retry-After": "1"}
    bench.assert_whole("target.gguf")
    assert bench.sent("target.gguf") <= SIZE + 16 * 1024


def test_a_limit_longer_than_patience_is_said(bench: Bench, solo: Pair) -> None:
    bench.hub.knobs.limited, bench.hub.knobs.limited_headers = 1, {"Retry-After": "7200"}
    with pytest.raises(SpecchatError, match="120 minutes"):
        bench.pull(solo)


def test_a_server_in_trouble_is_asked_again(bench: Bench, solo: Pair) -> None:
    bench.hub.knobs.unavailable, bench.hub.knobs.unavailable_on = 2, "GET"
    bench.pull(solo)
    bench.assert_whole("target.gguf")


def test_a_hub_that_answers_slowly_or_not_is_asked_once(bench: Bench, solo: Pair) -> None:
    bench.hub.knobs.unavailable = 9
    with pytest.raises(SpecchatError, match="having trouble"):
        bench.pull(solo)
    assert len(bench.hub.log) == QUICK.asks
    bench.hub.log.clear()
    with pytest.raises(SpecchatError, match="having trouble"):
        bench.pull(solo, patience=replace(QUICK, quick=0))
    assert len(bench.hub.log) == 1


# -- where the bytes come from ----------------------------------------------------------------------------


def test_redirects_to_another_host_are_followed_without_the_token(bench: Bench) -> None:
    bench.token, bench.hub.knobs.gated_for = "hf_secret", {"hf_secret"}
    bench.hub.knobs.cdn = True
    bench.pull()
    bench.assert_whole()
    assert bench.hub.requests("GET", "cdn")
    assert all(r.headers["authorization"] == "Bearer hf_secret" for r in bench.hub.log if r.server == "hub")
    assert not any("hf_secret" in str(r.headers) + r.path for r in bench.hub.log if r.server == "cdn")


def test_resuming_goes_through_a_redirect(bench: Bench, solo: Pair) -> None:
    bench.hub.knobs.cdn = True
    bench.leave_part("target.gguf", bench.content("target.gguf")[:399_000])
    bench.pull(solo)
    bench.assert_whole("target.gguf")
    assert [r.start for r in bench.hub.requests("GET", "cdn")] == [399_000]


def test_an_expired_link_is_asked_for_anew(bench: Bench, solo: Pair) -> None:
    bench.hub.knobs.cdn, bench.hub.knobs.link_uses = True, 1
    bench.hub.knobs.drop_after, bench.hub.knobs.drops = 150_000, 1
    bench.pull(solo)
    bench.assert_whole("target.gguf")
    addresses = [r.path for r in bench.hub.requests("GET", "cdn")]
    assert len(addresses) == len(set(addresses)) == 2


def test_a_link_that_is_never_good_is_an_error(bench: Bench, solo: Pair) -> None:
    bench.hub.knobs.cdn, bench.hub.knobs.link_uses = True, 0
    with pytest.raises(SpecchatError, match="download address") as caught:
        bench.pull(solo)
    assert "s3cret" not in str(caught.value)


# -- stopping ---------------------------------------------------------------------------------------------


def test_closing_stops_promptly_and_keeps_the_part(bench: Bench, solo: Pair) -> None:
    bench.hub.knobs.pace = SIZE / 20
    events = bench.start(solo)
    for event in events:
        if isinstance(event, Progress) and event.phase is Phase.DOWNLOADING and event.done > 20_000:
            break
    with promptly():
        events.close()
    time.sleep(0.5)  # what was on its way has arrived
    here = bench.parts()[0].stat().st_size
    time.sleep(0.5)
    assert bench.parts()[0].stat().st_size == here > 20_000
    assert bench.state("target.gguf") is State.PARTIAL
    bench.hub.knobs.pace = None
    bench.hub.log.clear()
    bench.pull(solo)
    bench.assert_whole("target.gguf")
    assert bench.starts("target.gguf") == [here]


def test_closing_ends_a_countdown(bench: Bench, solo: Pair) -> None:
    bench.hub.knobs.limited, bench.hub.knobs.limited_headers = 100, {"Retry-After": "50"}
    events = bench.start(solo)
    assert any(isinstance(event, Progress) and event.phase is Phase.WAITING for event in events)
    events.close()
    threads = [thread for thread in threading.enumerate() if thread.name == crew.THREAD]
    for thread in threads:
        thread.join(1)
    assert threads
    assert not any(thread.is_alive() for thread in threads)


def test_the_other_file_goes_on_when_one_fails(bench: Bench) -> None:
    bench.hub.knobs.wrong_bytes = 1
    with pytest.raises(SpecchatError, match="damaged"):
        bench.pull()
    states = {bench.state("target.gguf"), bench.state("draft.gguf")}
    assert states == {State.READY, State.MISSING}
    assert len(bench.progress(Phase.FAILED)) == 1
    bench.pull()
    bench.assert_whole()


# -- room -------------------------------------------------------------------------------------------------


def test_too_little_room_is_said_before_the_first_byte(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specchat.pairs.pull.free_space", lambda _: 500_000)
    with pytest.raises(SpecchatError, match=r"800 kB.*500 kB"):
        bench.pull()
    assert not bench.hub.requests("GET")


def test_a_part_counts_as_room_already_taken(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specchat.pairs.pull.free_space", lambda _: 500_000)
    bench.leave_part("target.gguf", bench.content("target.gguf")[:350_000])
    bench.pull()
    bench.assert_whole()


def test_patience_is_a_value(bench: Bench, solo: Pair) -> None:
    bench.hub.knobs.drop_after = 0
    with pytest.raises(SpecchatError):
        bench.pull(solo, patience=replace(QUICK, tries=1))
    assert len(bench.starts("target.gguf")) == 1

"""Names become the same pair of keys everywhere, for ever: golden vectors, computed with sha256sum."""

import os
import subprocess
import sys

import pytest

from pgelect._engine.model import INT32_MAX, INT32_MIN, LockKey

# name, key1, key2, classid, objid. From `printf %s NAME | sha256sum`, first 16 hexadecimal digits; never to be changed.
GOLDEN = [
    ("scheduler", -1607753373, -207606350, 0xA02BA163, 0xF3A02DB2),
    ("billing/scheduler", 571530952, 81384356, 0x2210DEC8, 0x04D9D3A4),
    ("größe/日本", -294074678, 1981071559, 0xEE78C6CA, 0x7614C0C7),
    ("job-1", 40547897, -1038223190, 0x026AB639, 0xC21DF8AA),
    ("job-10", 1277648490, 871907868, 0x4C275E6A, 0x33F8421C),
    ("job-8", -1945724627, -1315879868, 0x8C06992D, 0xB1914444),
]


@pytest.mark.parametrize(("name", "key1", "key2", "classid", "objid"), GOLDEN)
def test_a_name_maps_to_its_golden_pair(name: str, key1: int, key2: int, classid: int, objid: int) -> None:
    key = LockKey.from_name(name)
    assert (key.key1, key.key2, key.name) == (key1, key2, name)
    assert (key.classid, key.objid) == (classid, objid)


def test_the_golden_pairs_cover_each_sign_in_each_half() -> None:
    assert {(key1 < 0, key2 < 0) for _, key1, key2, _, _ in GOLDEN} == {
        (False, False),
        (False, True),
        (True, False),
        (True, True),
    }


@pytest.mark.parametrize("seed", ["0", "1", "random"])
def test_the_pair_does_not_depend_on_the_hash_seed_of_the_process(seed: str) -> None:
    code = (
        "from pgelect._engine.model import LockKey\n"
        "for name in ('scheduler', 'gr\\u00f6\\u00dfe/\\u65e5\\u672c'):\n"
        "    key = LockKey.from_name(name); print(key.key1, key.key2)"
    )
    environment = os.environ | {"PYTHONHASHSEED": seed}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["-1607753373", "-207606350", "-294074678", "1981071559"]


def test_two_hundred_thousand_names_do_not_collide() -> None:
    pairs = {(key.key1, key.key2) for key in map(LockKey.from_name, (f"service-{n}/leader" for n in range(200_000)))}
    assert len(pairs) == 200_000


def test_classid_and_objid_are_the_same_bits_without_a_sign() -> None:
    key = LockKey(INT32_MIN, -1)
    assert (key.classid, key.objid) == (2**31, 2**32 - 1)
    key = LockKey(INT32_MAX, 0)
    assert (key.classid, key.objid) == (2**31 - 1, 0)


def test_keys_are_equal_when_their_pairs_are() -> None:
    named = LockKey.from_name("scheduler")
    assert named == LockKey(named.key1, named.key2)
    assert hash(named) == hash(LockKey(named.key1, named.key2, "other"))
    assert named != LockKey(named.key2, named.key1)


def test_a_key_shows_its_name_and_its_pair() -> None:
    assert str(LockKey(1, -2)) == "(1, -2)"
    assert str(LockKey(1, -2, "jobs")) == "'jobs' (1, -2)"


@pytest.mark.parametrize("name", ["", "a\0b", "\ud800"])
def test_a_name_that_cannot_be_stored_is_refused(name: str) -> None:
    with pytest.raises(ValueError):
        LockKey.from_name(name)


@pytest.mark.parametrize("name", [None, 7, b"scheduler"])
def test_a_name_that_is_no_text_is_refused(name: str) -> None:
    with pytest.raises(TypeError, match="name must be a str"):
        LockKey.from_name(name)


@pytest.mark.parametrize("value", [INT32_MIN - 1, INT32_MAX + 1, 2**63])
def test_a_number_outside_32_bits_is_refused_by_name(value: int) -> None:
    with pytest.raises(ValueError, match=rf"^key1={value} is outside"):
        LockKey(value, 0)
    with pytest.raises(ValueError, match=rf"^key2={value} is outside"):
        LockKey(0, value)


@pytest.mark.parametrize("value", [True, 1.0, "1", None])
def test_a_key_that_is_no_int_is_refused(value: int) -> None:
    with pytest.raises(TypeError, match=r"^key1 must be an int"):
        LockKey(value, 0)
    with pytest.raises(TypeError, match=r"^key2 must be an int"):
        LockKey(0, value)

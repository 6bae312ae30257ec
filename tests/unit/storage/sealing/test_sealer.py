"""Sealing: round trips, what does not authenticate, nonces, and the keys file."""

from __future__ import annotations

from random import Random

import pytest

from bookies.errors import ConfigError, CorruptRecord
from bookies.kernels import Records
from bookies.lab.sim.world.disk import SimDisk
from bookies.storage.sealing import sealed_format as layout
from bookies.storage.sealing import sealer as module
from bookies.storage.sealing.keys_file import add_key, read_opener
from bookies.storage.sealing.sealer import Nonces, Recoder, Sealer

KEY, OTHER = b"k" * 32, b"o" * 32
BODIES = [
    ledger.to_bytes(8, "big") + entry.to_bytes(8, "big") + b"x" * entry for ledger in (1, 2) for entry in range(3)
]


def sealer_of(*keys: bytes, plain: bool = False) -> Sealer:
    by_id = {layout.id_of(key): key for key in keys}
    return Sealer(layout.Keys(None if plain else layout.id_of(keys[0]), by_id), Random(1))


def sealed_bodies(sealer: Sealer, bodies: list[bytes]) -> list[bytes]:
    records = sealer.seal(Records.of(bodies))
    return [records.body(index) for index in range(len(records))]


@pytest.mark.parametrize("bodies", [BODIES, BODIES[:1], [BODIES[1]] * 4])
@pytest.mark.parametrize("first", [0, 1])
def test_what_is_sealed_is_opened(bodies: list[bytes], first: int) -> None:
    sealer, records = sealer_of(KEY), Records.of([b"y" * 16] * first + bodies).slice(first, first + len(bodies))
    sealed = sealer.seal(records)
    assert [len(sealed.body(index)) for index in range(len(bodies))] == [len(body) + layout.OVERHEAD for body in bodies]
    opened = sealer.open_leading(sealed.data, sealed.starts)
    assert [opened.body(index) for index in range(len(opened))] == bodies
    assert sealer.open_records(sealed.data, path="f", offset=0) == Records.of(bodies).data
    assert [sealed.body(index)[:16] for index in range(len(bodies))] == [body[:16] for body in bodies]


def test_equal_sizes_stay_a_range() -> None:
    records = sealer_of(KEY).seal(Records(Records.of([BODIES[1]] * 3).data, range(0, 3 * 21 + 1, 21)))
    assert records.starts == range(0, 3 * 53 + 1, 53)


def test_every_changed_bit_and_every_other_place_does_not_authenticate() -> None:
    sealer = sealer_of(KEY, OTHER)
    one, two = sealed_bodies(sealer, [BODIES[1], BODIES[2]])
    for bit in range(8 * len(one)):
        changed = bytearray(one)
        changed[bit // 8] ^= 1 << bit % 8
        assert sealer.open_body(bytes(changed)) is None, bit
    assert sealer.open_body(two[:16] + one[16:]) is None  # moved to the place of another entry
    assert sealer.open_body(one[:16] + layout.KEY_ID.pack(layout.id_of(OTHER)) + one[20:]) is None
    assert all(sealer.open_body(one[:size]) is None for size in range(len(one)))
    assert sealer_of(OTHER).open_body(one) is None


def test_records_are_opened_up_to_the_first_that_is_damaged() -> None:
    sealer = sealer_of(KEY)
    good, bad = sealed_bodies(sealer, BODIES[:2])
    data = Records.of([good, bad[:-1] + b"!"]).data
    assert sealer.open_records(data, path="f", offset=0) == Records.of(BODIES[:1]).data
    with pytest.raises(CorruptRecord, match="it was changed"):
        sealer.open_records(Records.of([bad[:-1] + b"!"]).data, path="f", offset=0)
    with pytest.raises(CorruptRecord, match=f"unknown key {layout.label_of(layout.id_of(KEY))}"):
        sealer_of(OTHER).open_records(data, path="f", offset=0)


def test_no_nonce_repeats_when_the_counter_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "COUNT_MAX", 3)
    nonces = Nonces(Random(1))
    taken = [nonce for count in (2, 1, 2, 2, 3) for nonce in nonces.take(count)]
    assert len(set(taken)) == 10
    assert len({nonce[:8] for nonce in taken}) == 4
    assert {len(nonce) for nonce in taken} == {layout.NONCE_SIZE}


def test_a_rotation_keeps_both_keys_in_play_until_it_is_settled() -> None:
    sealer = sealer_of(KEY)
    new, old = layout.id_of(OTHER), layout.id_of(KEY)
    sealer.use(layout.Keys(new, {new: OTHER}))
    assert sealer.in_play == (new, old)
    assert sealer.has(old)  # E-5
    sealer.settle(old)  # a checkpoint that began before the rotation
    assert sealer.in_play == (new, old)
    sealer.settle(new)
    assert sealer.in_play == (new,)
    with pytest.raises(ConfigError, match="restart"):
        sealer.use(layout.Keys(None, {old: KEY}))


@pytest.mark.parametrize(("target", "is_sealed"), [((OTHER, KEY), True), ((OTHER, KEY), False), ((KEY,), True)])
def test_entries_are_recoded(target: tuple[bytes, ...], is_sealed: bool) -> None:
    records = sealer_of(KEY).seal(Records.of(BODIES)) if is_sealed else Records.of(BODIES)
    sealer = sealer_of(*target)
    recoder = Recoder(sealer, Random(2))
    assert recoder.begin() == (layout.id_of(target[0]),)
    recoded = recoder.recoded(records, is_sealed=is_sealed, path="f", offset=0)
    assert (recoded is records) == (target == (KEY,))
    assert {layout.key_id_of(recoded.body(index)) for index in range(len(BODIES))} == {layout.id_of(target[0])}
    plain = Recoder(sealer_of(*target, plain=True), Random(3))
    assert plain.begin() == ()
    assert plain.recoded(recoded, is_sealed=True, path="f", offset=0).data == Records.of(BODIES).data


def test_a_damaged_entry_is_not_recoded() -> None:
    records = sealer_of(KEY).seal(Records.of(BODIES))
    recoder = Recoder(sealer_of(OTHER, KEY), Random(2))
    damaged = Records(records.data[:-1] + b"!", records.starts)
    with pytest.raises(CorruptRecord, match=f"byte {100 + records.starts[-2]:,}"):
        recoder.recoded(damaged, is_sealed=True, path="f", offset=100)


# -- keys ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "it has no key"),
        ("# none\n\n", "it has no key"),
        ("secret", "line 1 is not a key"),
        (layout.pack_line(KEY).replace(" a2", " a3"), "line 1: the key is not"),
        (f"# first\n{layout.pack_line(KEY)}plain\n", "line 3 is not a key"),
    ],
)
def test_a_keys_file_that_cannot_be_used(text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem) as caught:
        layout.parse_keys(text)
    assert "secret" not in str(caught.value)
    assert "a2tr" not in str(caught.value)


def test_the_first_line_decides() -> None:
    keys = layout.parse_keys(f"# head\n{layout.pack_line(OTHER)}\n{layout.pack_line(KEY)}")
    assert (keys.current, list(keys.by_id.values())) == (layout.id_of(OTHER), [OTHER, KEY])
    assert layout.parse_keys(f"plain\n{layout.pack_line(KEY)}").current is None
    assert layout.parse_keys("plain\n").by_id == {}


def test_a_new_key_becomes_the_first_one() -> None:
    disk = SimDisk(Random(1))
    disk.make_directories("/k")
    assert read_opener(disk, "") is None
    for key in (KEY, OTHER):
        assert add_key(disk, "/k/keys", key) == layout.id_of(key)
    text = disk.read_bytes("/k/keys").decode()
    assert layout.parse_keys(text) == layout.Keys(layout.id_of(OTHER), {layout.id_of(k): k for k in (OTHER, KEY)})
    disk.replace_bytes("/k/keys", b"rubbish")
    with pytest.raises(ConfigError, match="Nothing was changed"):
        add_key(disk, "/k/keys", KEY)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_opener(disk, "/k/none")


@pytest.mark.parametrize("change", [4, 8, 9])
def test_a_key_list_has_a_checksum(change: int) -> None:
    data = bytearray(layout.pack_key_list([1, 2]))
    assert layout.parse_key_list(bytes(data) + bytes(8), path="f", offset=20) == (1, 2)
    data[change] ^= 1
    with pytest.raises(CorruptRecord):
        layout.parse_key_list(bytes(data), path="f", offset=20)
    with pytest.raises(ValueError, match="65 keys"):
        layout.pack_key_list(range(1, 66))


def test_more_keys_than_a_file_can_name_are_refused_before_they_seal() -> None:
    keys = {layout.id_of(bytes([number]) * 32): bytes([number]) * 32 for number in range(layout.KEYS_MAX + 1)}
    first, *others = keys
    sealer = module.Sealer(layout.Keys(first, keys), Random(0))
    for key_id in others[:-1]:
        sealer.use(layout.Keys(key_id, keys))
    with pytest.raises(ConfigError, match="--re-encrypt"):
        sealer.use(layout.Keys(others[-1], keys))
    assert sealer.current == others[-2]
    assert layout.pack_key_list(sealer.in_play)

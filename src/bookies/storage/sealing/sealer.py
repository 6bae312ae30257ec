"""Sealing of entries before they are stored, and opening of what is read.

Theory of operation. An add is sealed once, when the storage accepts it: write cache, journal and entry log have the
same bytes, and flush, checkpoint, compaction and index do not know about it. Readers of an entry open it.

Invariants
- E-1: a file says in its header whether its entries are sealed, so no reader guesses from bytes. A process writes only
  one kind; its write cache has only that kind.
- E-2: no nonce repeats under a key. A nonce is 64 random bits, drawn for each `Nonces`, and a counter of 32 bits. A
  crash loses the counter, and the next process draws new bits. Under one key 90,000 draws, of all bookies together,
  collide with a probability below 2**-32; random nonces for each entry would reach that after 2**32 entries.
- E-3: a key seals only after it is in `in_play`, which the header of each new entry log names. So the headers name
  every key that the log needs.
- E-4: a body that does not authenticate is damage. It is never returned, and never reported as missing.
- E-5: a running process forgets no key. Only a start uses a keys file without a key, and it checks what is stored.

Sealing happens on the loop and on the collection's worker, each with its own `Nonces`; opening on every thread.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from itertools import pairwise
from random import Random
from typing import Protocol

from bookies import kernels
from bookies.errors import ConfigError, CorruptRecord
from bookies.kernels import Adds, Records
from bookies.storage.records.record_scan import RECORD_SIZE_MAX, WORD
from bookies.storage.sealing import sealed_format as layout
from bookies.storage.sealing.sealed_format import HEAD_SIZE, KEY_ID, NONCE_SIZE, OVERHEAD, Keys

CIPHER_TEXT_AT = HEAD_SIZE + NONCE_SIZE
COUNT_MAX = 1 << 32  # nonces of one draw


class Cipher(Protocol):
    """An AEAD, as `cryptography` has it. `decrypt` raises its own error for what does not authenticate."""

    def encrypt(self, nonce: bytes, data: bytes, additional: bytes) -> bytes: ...

    def decrypt(self, nonce: bytes, data: bytes, additional: bytes) -> bytes: ...


def _cipher_of() -> tuple[Callable[[bytes], Cipher], type[Exception]]:
    """Return AES-GCM, and the error for what does not authenticate. Raises ConfigError."""
    try:
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError as error:
        raise ConfigError("encryption_keys_file needs `pip install 'bookies[encryption]'`") from error
    return AESGCM, InvalidTag


class Nonces:
    """Nonces that never repeat (E-2). Confined to one thread."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._prefix = b""
        self._next = COUNT_MAX

    def take(self, count: int) -> Sequence[bytes]:
        """Return `count` nonces, at most `COUNT_MAX`. They are used up by the call, even if the caller fails."""
        assert count <= COUNT_MAX
        if self._next + count > COUNT_MAX:
            self._prefix, self._next = self._random.randbytes(NONCE_SIZE - KEY_ID.size), 0
        prefix, first, pack = self._prefix, self._next, KEY_ID.pack
        self._next = first + count
        return [prefix + pack(number) for number in range(first, first + count)]


class Opener:
    """The keys that open sealed entries. Used on every thread."""

    def __init__(self, keys: Keys) -> None:
        self._new_cipher, self._invalid = _cipher_of()
        self._ciphers: dict[int, Cipher] = {}
        self.learn(keys)

    def learn(self, keys: Keys) -> None:
        """Know these keys too."""
        self._ciphers = self._ciphers | {key_id: self._new_cipher(key) for key_id, key in keys.by_id.items()}

    @property
    def key_ids(self) -> Sequence[int]:
        """Return the ids of all keys."""
        return list(self._ciphers)

    def has(self, key_id: int) -> bool:
        return key_id in self._ciphers

    def open_body(self, body: bytes) -> bytes | None:
        """Return the body as the client sent it; None if it does not authenticate, or its key is unknown."""
        cipher = self._ciphers.get(layout.key_id_of(body))
        if cipher is None:
            return None
        head = body[:HEAD_SIZE]
        try:
            return head[:16] + cipher.decrypt(body[HEAD_SIZE:CIPHER_TEXT_AT], body[CIPHER_TEXT_AT:], head)
        except self._invalid:
            return None

    def has_renamed(self, body: bytes) -> bool:
        """Report whether the body authenticates under a known key, and only the id in it is that of another."""
        names = map(KEY_ID.pack, self._ciphers)
        return any(self.open_body(body[:16] + name + body[HEAD_SIZE:]) is not None for name in names)

    def open_leading(self, data: bytes, starts: Sequence[int]) -> Records:
        """Return the records before the first one that does not authenticate, as the client sent them."""
        bodies: list[bytes] = []
        for at, end in pairwise(starts):
            body = self.open_body(data[at + 4 : end])
            if body is None:
                break
            bodies.append(body)
        return Records.of(bodies)

    def open_records(self, data: bytes, *, path: str, offset: int) -> bytes:
        """Return records, length words included, from the first one to the last that authenticates.

        Raises CorruptRecord if the first does not. `path`, `offset`: where it is.
        """
        starts, _ = kernels.scan_records(data, 0, len(data), RECORD_SIZE_MAX)
        records = self.open_leading(data, starts)
        if not len(records):
            key_id = layout.key_id_of(data[4:])
            reason = "it was changed" if self.has(key_id) else f"it names the unknown key {layout.label_of(key_id)}"
            raise CorruptRecord(f"an encrypted entry does not authenticate: {reason}", path=path, offset=offset)
        return records.data


class Sealer(Opener):
    """The keys of a bookie. `seals`: whether this process seals; False: it only opens what was sealed before.

    `in_play`: keys that entries may have which are not in an entry log yet; the current one first.
    """

    def __init__(self, keys: Keys, random: Random) -> None:
        super().__init__(keys)
        self._nonces = Nonces(random)  # of the loop
        self.seals = keys.current is not None
        self.in_play: tuple[int, ...] = ()
        self.use(keys)

    @property
    def current(self) -> int | None:
        """Return the id of the key that seals now."""
        return self.in_play[0] if self.in_play else None

    def use(self, keys: Keys) -> None:
        """Use these keys from now on, beside those known before (E-5). Raises ConfigError if the kind would change."""
        if (keys.current is not None) != self.seals:
            raise ConfigError("encryption starts and ends with a start of the bookie: restart it")
        in_play = self.in_play
        if keys.current is not None and keys.current != self.current:
            in_play = (keys.current, *(key_id for key_id in in_play if key_id != keys.current))
        if len(in_play) > layout.KEYS_MAX:
            raise ConfigError(
                f"{len(in_play)} keys in use at once: re-encrypt (bk bookie encryption --re-encrypt) first"
            )
        self.learn(keys)
        self.in_play = in_play

    def settle(self, key_id: int | None) -> None:
        """Note that entries outside of entry logs have only this key, if it is still the current one."""
        if key_id is not None and key_id == self.current:
            self.in_play = (key_id,)

    def seal(self, records: Records, nonces: Nonces | None = None, key_id: int | None = None) -> Records:
        """Return the records sealed, in a buffer of their own. `nonces`: None: on the loop. `key_id`: None: current."""
        nonces, key_id = nonces or self._nonces, key_id or self.in_play[0]
        encrypt, key_name = self._ciphers[key_id].encrypt, KEY_ID.pack(key_id)
        data, starts, pack = records.data, records.starts, WORD.pack
        pieces: list[bytes] = []
        for (at, end), nonce in zip(pairwise(starts), nonces.take(len(records)), strict=True):
            head = data[at + 4 : at + 20] + key_name
            pieces += pack(end - at - 4 + OVERHEAD), head, nonce, encrypt(nonce, data[at + 20 : end], head)
        return Records(b"".join(pieces), _shifted(starts, OVERHEAD))

    def seal_adds(self, adds: Adds) -> Adds:
        """Return the adds with sealed records. On the loop."""
        return Adds(adds.table, adds.entry_ids, self.seal(adds.records))


class Recoder:
    """Brings entries into the form in which the bookie stores them now, for copies of entry logs.

    Confined to one thread. `key_id`: of the key for the present log; None: entries are stored as they are.
    """

    def __init__(self, sealer: Sealer, random: Random) -> None:
        self.key_id = sealer.current
        self._sealer = sealer
        self._nonces = Nonces(random)

    def begin(self) -> Sequence[int]:
        """Choose the key for the next log, and return the keys for its header."""
        self.key_id = self._sealer.current
        return () if self.key_id is None else (self.key_id,)

    def recoded(self, records: Records, *, is_sealed: bool, path: str, offset: int) -> Records:
        """Return the records in the form of the present log; those that have it already stay as they are.

        `is_sealed`: whether they are sealed. `path`, `offset`: where their buffer was read. Raises CorruptRecord for
        one that does not authenticate.
        """
        key_id, data, starts = self.key_id, records.data, records.starts
        if not is_sealed:
            return records if key_id is None else self._sealer.seal(records, self._nonces, key_id)
        if key_id is not None and all(KEY_ID.unpack_from(data, at + 20)[0] == key_id for at in starts[:-1]):
            return records
        opened = self._sealer.open_leading(data, starts)
        if len(opened) < len(records):
            at = offset + starts[len(opened)]
            raise CorruptRecord("an encrypted entry does not authenticate", path=path, offset=at)
        return opened if key_id is None else self._sealer.seal(opened, self._nonces, key_id)


def _shifted(starts: Sequence[int], growth: int) -> Sequence[int]:
    """Return the starts, from 0 on, of records that have grown by `growth` bytes each."""
    if isinstance(starts, range):
        return range(0, (starts.step + growth) * (len(starts) - 1) + 1, starts.step + growth)
    first = starts[0]
    return array("q", [at - first + growth * index for index, at in enumerate(starts)])

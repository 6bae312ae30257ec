# cython: language_level=3, boundscheck=True, wraparound=False, initializedcheck=False
"""The compiled twin of `_python.py`: the same functions, the same answers, checked by the same tests.

Every pointer is taken after a range check against the buffer it points into; scans count first and then fill, so
nothing is allocated by a number that came from outside. HMAC digests stay with the Python twin, whose time goes into C
code anyway. So do CRC32 digests on a processor that has no instruction for them.
"""

cimport cython
from cpython cimport array as c_array
from cpython.buffer cimport PyBuffer_FillInfo
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.long cimport PyLong_AsLongLongAndOverflow, PyLong_CheckExact
from cpython.ref cimport Py_DECREF, Py_INCREF, PyObject
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, qsort, realloc
from libc.string cimport memcmp, memcpy

from array import array

from bookies.kernels import _python
from bookies.kernels._python import Records, digest

cdef extern from "_crc32c.h":
    void bookies_crc_init() nogil
    int bookies_crc_has_instruction
    uint32_t bookies_crc32(uint32_t value, const uint8_t *data, size_t size) nogil
    uint32_t bookies_crc32c(uint32_t value, const uint8_t *data, size_t size) nogil
    uint32_t bookies_get32(const uint8_t *at) nogil
    int64_t bookies_get64(const uint8_t *at) nogil
    void bookies_put32(uint8_t *at, uint32_t value) nogil
    void bookies_put64(uint8_t *at, int64_t value) nogil

cdef extern from *:
    """
    /* A tuple of a named tuple's type whose items are not set yet; NULL with an error set. The collector does not look
     * at it: its items are in no cycle. */
    static PyObject *bookies_tuple(PyObject *type, Py_ssize_t size) {
        PyTupleObject *made = PyObject_GC_NewVar(PyTupleObject, (PyTypeObject *)type, size);
    #if PY_VERSION_HEX >= 0x030E0000
        if (made != NULL) made->ob_hash = -1;
    #endif
        return (PyObject *)made;
    }
    /* Tuples of three and four items; all references are taken. */
    static PyObject *bookies_three(PyObject *type, PyObject *a, PyObject *b, PyObject *c) {
        PyObject *made = bookies_tuple(type, 3);
        if (made == NULL) return NULL;
        Py_INCREF(a); PyTuple_SET_ITEM(made, 0, a);
        Py_INCREF(b); PyTuple_SET_ITEM(made, 1, b);
        Py_INCREF(c); PyTuple_SET_ITEM(made, 2, c);
        return made;
    }
    static PyObject *bookies_four(PyObject *type, PyObject *a, PyObject *b, PyObject *c, PyObject *d) {
        PyObject *made = bookies_tuple(type, 4);
        if (made == NULL) return NULL;
        Py_INCREF(a); PyTuple_SET_ITEM(made, 0, a);
        Py_INCREF(b); PyTuple_SET_ITEM(made, 1, b);
        Py_INCREF(c); PyTuple_SET_ITEM(made, 2, c);
        Py_INCREF(d); PyTuple_SET_ITEM(made, 3, d);
        return made;
    }
    /* An object of a type that adds nothing to its compiled base class: its `__init__` is not called. */
    static PyObject *bookies_new(PyObject *type, PyObject *nothing) {
        return ((PyTypeObject *)type)->tp_new((PyTypeObject *)type, nothing, NULL);
    }
    static void bookies_set_send(PyObject *type, sendfunc send) {
        ((PyTypeObject *)type)->tp_as_async->am_send = send;
    }
    """
    ctypedef enum PySendResult:
        PYGEN_RETURN
    void bookies_set_send(object type, PySendResult (*send)(object, object, PyObject **) noexcept)
    object bookies_three(object type, object a, object b, object c)
    object bookies_four(object type, object a, object b, object c, object d)
    object bookies_new(object type, object nothing)
    PyObject *PyIter_Next(object) except? NULL

bookies_crc_init()

cdef int CRC32 = 1, CRC32C = 3, DUMMY = 4
cdef int GIL_RUNS = 1000
cdef c_array.array _INT64 = array("q")
cdef c_array.array _INT32 = array("i")


def crc32c(data, uint32_t value=0):
    """See `_python.crc32c`."""
    cdef const uint8_t[::1] view = data
    if view.shape[0] == 0:
        return value
    return bookies_crc32c(value, &view[0], view.shape[0])


cdef object _range_of(const int64_t *value, Py_ssize_t count):
    """These numbers as a range when they are equally spaced with a step other than 0, else None."""
    cdef Py_ssize_t index
    cdef int64_t step
    if count < 2:
        return range(value[0], <object>value[0] + 1) if count else None
    step = value[1] - value[0]
    if step == 0:
        return None
    for index in range(2, count):
        if value[index] - value[index - 1] != step:
            return None
    # In Python's integers, and checked: near the ends of int64 the step may have wrapped around.
    last = <object>value[count - 1]
    found = range(value[0], last + (1 if step > 0 else -1), step)
    return found if len(found) == count and found[count - 1] == last else None


cdef object _numbers(c_array.array numbers):
    """A range when the numbers are equally spaced with a step other than 0, else the array."""
    found = _range_of(<int64_t *>numbers.data.as_longlongs, len(numbers))
    return numbers if found is None else found


cdef object _part(c_array.array numbers, Py_ssize_t first, Py_ssize_t stop):
    """As `_numbers`, of some of them: the array itself only when they are all."""
    cdef c_array.array part
    cdef int64_t *value = <int64_t *>numbers.data.as_longlongs
    found = _range_of(value + first, stop - first)
    if found is not None:
        return found
    if first == 0 and stop == len(numbers):
        return numbers
    part = c_array.clone(_INT64, stop - first, zero=False)
    memcpy(part.data.as_longlongs, value + first, (stop - first) * sizeof(int64_t))
    return part


def scan_frames(const uint8_t[::1] buffer, Py_ssize_t start, int64_t frame_size_max):
    """See `_python.scan_frames`."""
    cdef Py_ssize_t end = buffer.shape[0], at = start, count = 0, index
    cdef int64_t size, need = 0
    cdef c_array.array starts
    if start < 0 or start > end:
        raise IndexError("start outside the buffer")
    while end - at >= 4:
        size = <int64_t>bookies_get32(&buffer[at]) + 4
        if size == 4 or size > frame_size_max:
            if count == 0:
                raise ValueError(f"frame of {size - 4:,} bytes")
            need = -1
            break
        if end - at < size:
            need = size
            break
        at += size
        count += 1
    starts = c_array.clone(_INT64, count + 1, zero=False)
    at = start
    for index in range(count):
        starts.data.as_longlongs[index] = at
        at += <Py_ssize_t>bookies_get32(&buffer[at]) + 4
    starts.data.as_longlongs[count] = at
    return _numbers(starts), need


def scan_records(const uint8_t[::1] buffer, Py_ssize_t start, Py_ssize_t end, int64_t size_max):
    """See `_python.scan_records`."""
    cdef Py_ssize_t at = start, count = 0, index
    cdef int64_t size
    cdef c_array.array starts
    reason = None
    if start < 0 or end > buffer.shape[0]:
        raise IndexError("range outside the buffer")
    while end - at >= 4:
        size = bookies_get32(&buffer[at])
        if size == 0:
            reason = "zero"
        elif size >= (<int64_t>1) << 31:
            reason = "negative"
        elif size > size_max:
            reason = "large"
        elif at + 4 + size > end:
            reason = "short"
        if reason is not None:
            break
        at += 4 + size
        count += 1
    if reason is None:
        reason = "end" if at == end else "short"
    starts = c_array.clone(_INT64, count + 1, zero=False)
    at = start
    for index in range(count):
        starts.data.as_longlongs[index] = at
        at += 4 + <Py_ssize_t>bookies_get32(&buffer[at])
    starts.data.as_longlongs[count] = at
    return _numbers(starts), reason


cdef c_array.array _offsets(object starts, Py_ssize_t limit):
    """The starts as int64; every one of them within 0..limit and ascending."""
    cdef Py_ssize_t count = len(starts), index
    cdef c_array.array numbers
    cdef int64_t previous = 0, step
    if isinstance(starts, range):
        numbers = c_array.clone(_INT64, count, zero=False)
        step = starts.step
        previous = starts.start
        for index in range(count):
            numbers.data.as_longlongs[index] = previous
            previous += step
    elif isinstance(starts, array) and starts.typecode == "q":
        numbers = starts
    else:
        numbers = array("q", starts)
    previous = 0
    for index in range(count):
        if numbers.data.as_longlongs[index] < previous or numbers.data.as_longlongs[index] > limit:
            raise IndexError("starts outside the buffer")
        previous = numbers.data.as_longlongs[index]
    return numbers


cdef class _Starts:
    """Starts that are looked at one by one: a call that takes a few frames of many must not pay for all of them."""

    cdef bint is_range
    cdef int64_t first, step, limit
    cdef Py_ssize_t count
    cdef c_array.array numbers

    def __cinit__(self, starts, int64_t limit):
        self.count = len(starts)
        self.limit = limit
        self.is_range = isinstance(starts, range)
        if self.is_range:
            self.first, self.step = starts.start, starts.step
        elif isinstance(starts, array) and starts.typecode == "q":
            self.numbers = starts
        else:
            self.numbers = array("q", starts)

    cdef int64_t at(self, Py_ssize_t index) except -1:
        """One of them, checked to lie within the buffer."""
        cdef int64_t value
        if index < 0 or index >= self.count:
            raise IndexError("no such frame")
        value = self.first + index * self.step if self.is_range else <int64_t>self.numbers.data.as_longlongs[index]
        if value < 0 or value > self.limit:
            raise IndexError("starts outside the buffer")
        return value


cdef Py_ssize_t _end_of_adds(
    const uint8_t[::1] buffer, _Starts frames, Py_ssize_t index, Py_ssize_t count_max, int64_t *size
) except -1:
    """The first frame that is not an add like that of frame `index`, `count_max` behind that at most; `size` grows by
    what the records take."""
    cdef Py_ssize_t count = frames.count - 1, last = index
    cdef int64_t at, end
    cdef const uint8_t *head
    if not 0 <= index < count or frames.at(index + 1) - frames.at(index) < 52:
        raise IndexError("no add at that frame")
    end = frames.at(index)
    head = &buffer[end + 4]
    count = min(count, index + count_max)
    while last < count:
        at = end
        end = frames.at(last + 1)
        if end - at < 52 or memcmp(&buffer[at + 4], head, 24) != 0:
            break
        size[0] += end - at - 24
        last += 1
    return last


cdef int64_t _step_of(const int64_t *value, Py_ssize_t count) noexcept:
    """The step of equally spaced numbers of one sign, 1 for a single one, 0 for others.

    Differences of numbers with one sign cannot overflow.
    """
    cdef Py_ssize_t index
    cdef int64_t step
    if count < 2:
        return 1
    if (value[0] ^ value[1]) < 0:
        return 0
    step = value[1] - value[0]
    for index in range(2, count):
        if (value[0] ^ value[index]) < 0 or value[index] - value[index - 1] != step:
            return 0
    return step


cdef void _put_row(
    int64_t *row, int64_t ledger_id, const int64_t *entry_ids, Py_ssize_t first, Py_ssize_t stop, int64_t lac
) noexcept:
    """Write a row of a table of stretches: see `adds.Adds`."""
    cdef Py_ssize_t index
    row[0] = ledger_id
    row[1] = stop
    row[2] = lac
    row[3] = row[5] = entry_ids[first]
    row[4] = _step_of(entry_ids + first, stop - first)
    for index in range(first + 1, stop):
        row[5] = max(row[5], entry_ids[index])


def gather_adds(const uint8_t[::1] buffer, starts, Py_ssize_t index):
    """See `_python.gather_adds`."""
    cdef _Starts frames = _Starts(starts, buffer.shape[0])
    cdef int64_t total = 0, size, at, end, lac, entry_lac, ledger_id, entry_ledger, least, entry_id, step
    cdef Py_ssize_t last = _end_of_adds(buffer, frames, index, frames.count, &total), item, first = 0, rows = 0
    cdef uint8_t *target
    cdef int64_t *ids
    cdef bytes data = PyBytes_FromStringAndSize(NULL, total)
    cdef c_array.array entry_ids = c_array.clone(_INT64, last - index, zero=False)
    cdef c_array.array records = c_array.clone(_INT64, last - index + 1, zero=False)
    cdef c_array.array table = c_array.clone(_INT64, 6 * (last - index), zero=False)
    target = <uint8_t *>PyBytes_AS_STRING(data)
    ids = <int64_t *>entry_ids.data.as_longlongs
    total = 0
    end = frames.at(index)
    ledger_id = least = bookies_get64(&buffer[end + 28])
    lac = bookies_get64(&buffer[end + 44])
    for item in range(last - index):
        at = end
        end = frames.at(index + item + 1)
        size = end - at - 28
        entry_ledger = bookies_get64(&buffer[at + 28])
        entry_id = bookies_get64(&buffer[at + 36])
        entry_lac = bookies_get64(&buffer[at + 44])
        if entry_ledger != ledger_id:
            _put_row(<int64_t *>table.data.as_longlongs + 6 * rows, ledger_id, ids, first, item, lac)
            rows += 1
            ledger_id, first, lac = entry_ledger, item, entry_lac
            least = min(least, ledger_id)
        elif entry_lac > lac:
            lac = entry_lac
        least = min(least, entry_id)
        ids[item] = entry_id
        records.data.as_longlongs[item] = total
        bookies_put32(target + total, <uint32_t>size)
        memcpy(target + total + 4, &buffer[at + 28], size)
        total += 4 + size
    item = last - index
    records.data.as_longlongs[item] = total
    _put_row(<int64_t *>table.data.as_longlongs + 6 * rows, ledger_id, ids, first, item, lac)
    rows += 1
    c_array.resize(table, 6 * rows)
    step = table.data.as_longlongs[4]
    spaced = range(ids[0], <object>ids[0] + step * <object>(last - index), step) if rows == 1 and step else entry_ids
    return last, table, spaced, Records(data, _numbers(records)), least


def find_ledger(list runs, Py_ssize_t first, int64_t ledger_id):
    """See `_python.find_ledger`."""
    cdef list found = []
    cdef c_array.array ledger_ids
    cdef const int64_t *ids
    cdef int64_t number
    cdef Py_ssize_t index, count
    if first < 0:
        raise IndexError("no such run")
    for number in range(first, len(runs)):
        ledger_ids = runs[number]
        ids, count = <const int64_t *>ledger_ids.data.as_longlongs, len(ledger_ids)
        for index in range(count):
            if ids[index] == ledger_id:
                found.append(number << 32 | index)
    return found


cdef struct _Entry:
    int64_t ledger_id
    int64_t entry_id
    int64_t place  # run << 32 | index


cdef struct _Run:
    const uint8_t *data
    const int64_t *starts
    int64_t size


cdef int _compare(const void *one, const void *other) noexcept nogil:
    """By ledger, entry and place; no two are alike."""
    cdef const _Entry *a = <const _Entry *>one
    cdef const _Entry *b = <const _Entry *>other
    if a.ledger_id != b.ledger_id:
        return -1 if a.ledger_id < b.ledger_id else 1
    if a.entry_id != b.entry_id:
        return -1 if a.entry_id < b.entry_id else 1
    return -1 if a.place < b.place else 1


cdef class SortedEntries:
    """See `_python.SortedEntries`."""

    cdef list _held  # what `_runs` points into
    cdef _Run *_runs
    cdef _Entry *_entries
    cdef Py_ssize_t _count

    def __cinit__(self, runs):
        cdef c_array.array ledger_ids, entry_ids, starts
        cdef bytes data
        cdef Py_ssize_t count = 0, size, item
        cdef int64_t run = 0
        cdef _Entry *entry
        self._held = []
        for ledger_ids, entry_ids, records in runs:
            data, starts = records.data, records.starts
            size = len(ledger_ids)
            if len(entry_ids) != size or len(starts) != size + 1:
                raise ValueError("a ledger id and an entry id for each record")
            self._held.append((ledger_ids, entry_ids, data, starts))
            count += size
            if not len(self._held) % GIL_RUNS:
                with nogil:
                    pass  # others have their turn: there may be very many small runs
        self._runs = <_Run *>malloc((len(self._held) or 1) * sizeof(_Run))
        self._entries = <_Entry *>malloc((count or 1) * sizeof(_Entry))
        if self._runs == NULL or self._entries == NULL:
            raise MemoryError
        entry = self._entries
        for ledger_ids, entry_ids, data, starts in self._held:
            self._runs[run].data = <const uint8_t *>PyBytes_AS_STRING(data)
            self._runs[run].starts = <const int64_t *>starts.data.as_longlongs
            self._runs[run].size = len(data)
            for item in range(len(ledger_ids)):
                entry.ledger_id = ledger_ids.data.as_longlongs[item]
                entry.entry_id = entry_ids.data.as_longlongs[item]
                entry.place = run << 32 | item
                entry += 1
            run += 1
            if not run % GIL_RUNS:
                with nogil:
                    pass
        self._count = self._sorted(count)

    cdef Py_ssize_t _sorted(self, Py_ssize_t count):
        """Sort the entries and keep the last copies; how many they are."""
        cdef _Entry *entries = self._entries
        cdef Py_ssize_t item, kept = 0
        with nogil:
            qsort(entries, count, sizeof(_Entry), _compare)
            for item in range(count):
                if (
                    item + 1 == count
                    or entries[item].entry_id != entries[item + 1].entry_id
                    or entries[item].ledger_id != entries[item + 1].ledger_id
                ):
                    entries[kept] = entries[item]
                    kept += 1
        return kept

    def __dealloc__(self):
        free(self._runs)
        free(self._entries)

    def __len__(self):
        return self._count

    def take(self, Py_ssize_t first, int64_t size_max):
        """See `_python.SortedEntries.take`."""
        cdef Py_ssize_t left = self._count - first, taken = 0, item
        cdef int64_t total = 0, size, at, index
        cdef const _Entry *entry
        cdef const _Run *run
        cdef uint8_t *target
        if first < 0 or left <= 0:
            raise IndexError("nothing is left")
        while taken < left:
            entry = &self._entries[first + taken]
            run = &self._runs[entry.place >> 32]
            index = <uint32_t>entry.place
            at, size = run.starts[index], run.starts[index + 1] - run.starts[index]
            if taken and total + size > size_max:
                break
            if (
                at < 0
                or size < 20
                or at > run.size - size
                or bookies_get64(run.data + at + 4) != entry.ledger_id
                or bookies_get64(run.data + at + 12) != entry.entry_id
            ):
                raise ValueError("a record that is another entry")
            total += size
            taken += 1
        cdef bytes data = PyBytes_FromStringAndSize(NULL, total)
        cdef c_array.array ledger_ids = c_array.clone(_INT64, taken, zero=False)
        cdef c_array.array entry_ids = c_array.clone(_INT64, taken, zero=False)
        cdef c_array.array starts = c_array.clone(_INT64, taken + 1, zero=False)
        target = <uint8_t *>PyBytes_AS_STRING(data)
        total = 0
        for item in range(taken):
            entry = &self._entries[first + item]
            run = &self._runs[entry.place >> 32]
            index = <uint32_t>entry.place
            size = run.starts[index + 1] - run.starts[index]
            memcpy(target + total, run.data + run.starts[index], size)
            ledger_ids.data.as_longlongs[item] = entry.ledger_id
            entry_ids.data.as_longlongs[item] = entry.entry_id
            starts.data.as_longlongs[item] = total
            total += size
        starts.data.as_longlongs[taken] = total
        return Records(data, starts), ledger_ids, entry_ids


cdef bint _has_digest(int digest_type) noexcept:
    return digest_type == CRC32C or digest_type == DUMMY or (digest_type == CRC32 and bookies_crc_has_instruction)


cdef inline uint32_t _crc(int digest_type, const uint8_t *header, const uint8_t *payload, Py_ssize_t size) noexcept nogil:
    """The CRC over 32 bytes of a header and the payload."""
    if digest_type == CRC32:
        return bookies_crc32(bookies_crc32(0, header, 32), payload, size)
    return bookies_crc32c(bookies_crc32c(0, header, 32), payload, size)


def pack_add_frames(
    bytes head, int64_t ledger_id, int64_t first_entry_id, int64_t last_add_confirmed, int64_t length, payloads,
    int digest_type, bytes mac_key,
):
    """See `_python.pack_add_frames`."""
    if not _has_digest(digest_type):
        return _python.pack_add_frames(
            head, ledger_id, first_entry_id, last_add_confirmed, length, payloads, digest_type, mac_key
        )
    if len(head) != 24:
        raise ValueError("the head of an add frame has 24 bytes")
    cdef Py_ssize_t digest_size = 8 if digest_type == CRC32 else 4 if digest_type == CRC32C else 0
    cdef Py_ssize_t count = len(payloads), index = 0
    cdef int64_t total = 0, size
    cdef c_array.array starts = c_array.clone(_INT64, count + 1, zero=False)
    cdef const uint8_t *key = <const uint8_t *>PyBytes_AS_STRING(head)
    cdef const uint8_t *source
    cdef uint8_t *target
    cdef uint32_t crc
    cdef bytes payload
    for payload in payloads:
        starts.data.as_longlongs[index] = total
        total += 60 + digest_size + len(payload)
        index += 1
    starts.data.as_longlongs[count] = total
    cdef bytes frames = PyBytes_FromStringAndSize(NULL, total)
    target = <uint8_t *>PyBytes_AS_STRING(frames)
    index = 0
    for payload in payloads:
        size = len(payload)
        length += size
        source = <const uint8_t *>PyBytes_AS_STRING(payload)
        bookies_put32(target, <uint32_t>(56 + digest_size + size))
        memcpy(target + 4, key, 24)
        bookies_put64(target + 28, ledger_id)
        bookies_put64(target + 36, first_entry_id + index)
        bookies_put64(target + 44, last_add_confirmed)
        bookies_put64(target + 52, length)
        if digest_size:
            crc = _crc(digest_type, target + 28, source, size)
            bookies_put32(target + 60, 0)  # CRC32 has 8 bytes
            bookies_put32(target + 56 + digest_size, crc)
        memcpy(target + 60 + digest_size, source, size)
        target += 60 + digest_size + size
        index += 1
    return frames, _numbers(starts), length


def pack_answers(int version, int status, c_array.array table, entry_ids):
    """See `_python.pack_answers`."""
    cdef Py_ssize_t count = len(entry_ids), rows = len(table), row, index = 0
    cdef uint32_t header = 1 if version == 0 else <uint32_t>version << 24 | 1 << 16
    cdef bytes frames = PyBytes_FromStringAndSize(NULL, 28 * count)
    cdef uint8_t *target = <uint8_t *>PyBytes_AS_STRING(frames)
    cdef int64_t ledger_id, stop, entry_id, step
    cdef c_array.array ids = None
    if isinstance(entry_ids, array):
        ids = entry_ids
    for row in range(0, rows - rows % 6, 6):
        ledger_id, stop = table.data.as_longlongs[row], table.data.as_longlongs[row + 1]
        entry_id, step = table.data.as_longlongs[row + 3], table.data.as_longlongs[row + 4]
        if stop < index or stop > count or (step == 0 and ids is None):
            raise ValueError("stretches that do not cover the entries in order")
        while index < stop:
            bookies_put32(target, 24)
            bookies_put32(target + 4, header)
            bookies_put32(target + 8, <uint32_t>status)
            bookies_put64(target + 12, ledger_id)
            bookies_put64(target + 20, entry_id if step else <int64_t>ids.data.as_longlongs[index])
            entry_id += step
            target += 28
            index += 1
    return frames if index == count else frames[:28 * index]


def scan_add_responses(const uint8_t[::1] buffer, starts, Py_ssize_t index):
    """See `_python.scan_add_responses`."""
    cdef _Starts frames = _Starts(starts, buffer.shape[0])
    cdef Py_ssize_t count = frames.count - 1, last = index, item, first = 0
    cdef int64_t at, end
    cdef const uint8_t *same
    if not 0 <= index < count or frames.at(index + 1) - frames.at(index) < 28:
        raise IndexError("no add response at that frame")
    at = frames.at(index)
    end = at
    same = &buffer[at]
    while last < count:
        at = end
        end = frames.at(last + 1)
        if end - at < 28 or memcmp(&buffer[at], same, 8) != 0:
            break
        last += 1
    cdef c_array.array entry_ids = c_array.clone(_INT64, last - index, zero=False)
    cdef list runs = []
    for item in range(last - index):
        at = frames.at(index + item)
        if memcmp(&buffer[at + 8], same + 8, 12) != 0:
            runs.append(
                (<int32_t>bookies_get32(same + 8), bookies_get64(same + 12), _part(entry_ids, first, item))
            )
            same = &buffer[at]
            first = item
        entry_ids.data.as_longlongs[item] = bookies_get64(&buffer[at + 20])
    runs.append(
        (<int32_t>bookies_get32(same + 8), bookies_get64(same + 12), _part(entry_ids, first, last - index))
    )
    return last, runs


def verify_records(
    const uint8_t[::1] buffer, Py_ssize_t start, Py_ssize_t end, int64_t ledger_id, int64_t first_entry_id,
    int64_t count_max, int digest_type, bytes mac_key,
):
    """See `_python.verify_records`."""
    if not _has_digest(digest_type):
        return _python.verify_records(
            bytes(buffer), start, end, ledger_id, first_entry_id, count_max, digest_type, mac_key
        )
    if start < 0 or end > buffer.shape[0]:
        raise IndexError("range outside the buffer")
    cdef Py_ssize_t digest_size = 8 if digest_type == CRC32 else 4 if digest_type == CRC32C else 0
    cdef Py_ssize_t at = start, stop, count = 0, index
    cdef const uint8_t *record
    cdef uint32_t crc
    cdef str problem = ""
    while at < end and count < count_max:
        if end - at < 4:
            problem = "short"
            break
        record = &buffer[at]
        stop = at + 4 + <Py_ssize_t>bookies_get32(record)
        if stop > end:
            problem = "short"
            break
        if at + 36 + digest_size > stop:
            problem = "size"
            break
        if digest_size:
            crc = _crc(digest_type, record + 4, record + 36 + digest_size, stop - at - 36 - digest_size)
            if crc != bookies_get32(record + 32 + digest_size) or (digest_size == 8 and bookies_get32(record + 36)):
                problem = "digest"
                break
        if bookies_get64(record + 4) != ledger_id or bookies_get64(record + 12) != first_entry_id + count:
            problem = "ids"
            break
        at = stop
        count += 1
    cdef c_array.array starts = c_array.clone(_INT64, count + 1, zero=False)
    at = start
    for index in range(count):
        starts.data.as_longlongs[index] = at
        at += 4 + <Py_ssize_t>bookies_get32(&buffer[at])
    starts.data.as_longlongs[count] = at
    return _numbers(starts), problem


def gather_payloads(parts, Py_ssize_t header_size):
    """See `_python.gather_payloads`."""
    cdef list checked = [(buffer, _offsets(starts, len(buffer))) for buffer, starts in parts]
    cdef Py_ssize_t count = 0, done = 0, index, skip = 4 + header_size
    cdef int64_t total = 0, size
    cdef int64_t *start
    cdef c_array.array offsets
    cdef const uint8_t[::1] view
    for _, offsets in checked:
        count += len(offsets) - 1
    cdef c_array.array ends = c_array.clone(_INT32, count + 1, zero=False)
    cdef int32_t *end = <int32_t *>ends.data.as_ints
    end[0] = 0
    for _, offsets in checked:
        start = <int64_t *>offsets.data.as_longlongs
        for index in range(len(offsets) - 1):
            size = start[index + 1] - start[index] - skip
            if size < 0:
                raise IndexError("a record is shorter than its header")
            total += size
            if total > 0x7fffffff:
                raise OverflowError("payloads of 2 GiB or more")
            done += 1
            end[done] = <int32_t>total
    cdef bytes data = PyBytes_FromStringAndSize(NULL, total)
    cdef uint8_t *target = <uint8_t *>PyBytes_AS_STRING(data)
    done = 0
    for view, offsets in checked:
        start = <int64_t *>offsets.data.as_longlongs
        for index in range(len(offsets) - 1):
            size = end[done + 1] - end[done]
            if size:
                memcpy(target + end[done], &view[start[index] + skip], size)
            done += 1
    return data, ends


cdef class Frame:
    """See `_python.Frame`. Here it is written into the `bytes` that it becomes, which nobody has seen before `take`."""

    cdef bytes data
    cdef readonly Py_ssize_t missing, filled

    def __cinit__(self, Py_ssize_t size):
        if size < 0:
            raise ValueError("negative size")
        self.data = PyBytes_FromStringAndSize(NULL, size)
        self.missing = size
        self.filled = 0

    def __getbuffer__(self, Py_buffer *view, int flags):
        # The view holds on to this object, and this object to the bytes.
        PyBuffer_FillInfo(view, self, PyBytes_AS_STRING(self.data) + self.filled, self.missing, False, flags)

    def rest(self):
        return memoryview(self)

    def advance(self, Py_ssize_t count):
        if not 0 <= count <= self.missing:
            raise ValueError(f"{count} bytes where {self.missing} are missing")
        self.filled += count
        self.missing -= count

    def take(self):
        if self.missing:
            raise ValueError(f"{self.missing} bytes are missing")
        return self.data


cdef class _Entries:
    """The iterator of `entries`."""

    cdef object entry_type, ledger_id
    cdef const uint8_t[::1] data
    cdef _Starts starts
    cdef Py_ssize_t index, skip
    cdef int64_t first_entry_id

    def __iter__(self):
        return self

    def __next__(self):
        cdef Py_ssize_t start, end
        if self.index + 1 >= self.starts.count:
            raise StopIteration
        start = self.starts.at(self.index)
        end = self.starts.at(self.index + 1)
        if end - start < self.skip:
            raise IndexError("a record is shorter than its header")
        entry_id = self.first_entry_id + self.index
        payload = PyBytes_FromStringAndSize(<const char *>&self.data[start] + self.skip, end - start - self.skip)
        length = bookies_get64(&self.data[start + 28])
        self.index += 1
        return bookies_four(self.entry_type, entry_id, payload, length, self.ledger_id)


def entries(entry_type, int64_t ledger_id, int64_t first_entry_id, data, starts, Py_ssize_t header_size):
    """See `_python.entries`."""
    cdef _Entries made = _Entries.__new__(_Entries)
    assert issubclass(entry_type, tuple)
    assert header_size >= 32
    made.entry_type, made.ledger_id, made.first_entry_id = entry_type, ledger_id, first_entry_id
    made.data = data
    made.starts = _Starts(starts, len(data))
    made.skip = 4 + header_size
    return made


@cython.freelist(8)
cdef class _Ready:
    """Awaits nothing: its value is there."""

    cdef object value

    def __await__(self):
        return self

    def __iter__(self):
        return self

    def __next__(self):
        value, self.value = self.value, None
        raise StopIteration(value)


cdef PySendResult _send(object ready, object sent, PyObject **result) noexcept:
    """What `await` calls instead of `__next__`: an exception for each item would cost more than the item."""
    Py_INCREF((<_Ready>ready).value)
    result[0] = <PyObject *>(<_Ready>ready).value
    (<_Ready>ready).value = None
    return PYGEN_RETURN


bookies_set_send(_Ready, _send)


cdef class Steps:
    """See `_python.Steps`. A step to an item that is at hand makes no coroutine."""

    cdef public object _items

    def __init__(self):
        self._items = iter(())

    def __class_getitem__(cls, item):
        return cls

    def __aiter__(self):
        return self

    def __anext__(self):
        cdef _Ready ready
        cdef PyObject *item = PyIter_Next(self._items)
        if item == NULL:
            return self._more()
        ready = _Ready.__new__(_Ready)
        ready.value = <object>item
        Py_DECREF(ready.value)
        return ready


def pack_locations(int64_t log_id, int64_t position, starts):
    """See `_python.pack_locations`."""
    cdef c_array.array offsets = _offsets(starts, 0x7fffffffffffffff)
    cdef Py_ssize_t count = len(offsets) - 1, index
    cdef int64_t base = (log_id << 32) + position + 4 - offsets.data.as_longlongs[0]
    cdef bytes slots = PyBytes_FromStringAndSize(NULL, 8 * count)
    cdef uint8_t *target = <uint8_t *>PyBytes_AS_STRING(slots)
    for index in range(count):
        bookies_put64(target + 8 * index, base + offsets.data.as_longlongs[index])
    return slots


def cut_runs(const uint8_t[::1] buffer, starts):
    """See `_python.cut_runs`."""
    cdef c_array.array checked = _offsets(starts, buffer.shape[0])
    cdef int64_t *start = <int64_t *>checked.data.as_longlongs
    cdef Py_ssize_t index
    cdef int64_t ledger_id, entry_id, ledger_of_run = -1, first = 0, count = 0
    cdef list runs = []
    for index in range(len(checked) - 1):
        if start[index + 1] - start[index] < 20:
            return None
        ledger_id = bookies_get64(&buffer[start[index] + 4])
        entry_id = bookies_get64(&buffer[start[index] + 12])
        if ledger_id < 0 or entry_id < 0:
            return None
        if ledger_id == ledger_of_run and entry_id - first == count:
            count += 1
            continue
        if count:
            runs.append((ledger_of_run, first, count))
        ledger_of_run, first, count = ledger_id, entry_id, 1
    if count:
        runs.append((ledger_of_run, first, count))
    return runs


def greatest_lac(const uint8_t[::1] buffer, starts):
    """See `_python.greatest_lac`."""
    cdef c_array.array checked = _offsets(starts, buffer.shape[0])
    cdef int64_t *start = <int64_t *>checked.data.as_longlongs
    cdef Py_ssize_t index
    cdef int64_t lac, greatest = -1
    for index in range(len(checked) - 1):
        if start[index + 1] - start[index] >= 28:
            lac = bookies_get64(&buffer[start[index] + 20])
            if greatest < lac < bookies_get64(&buffer[start[index] + 12]):
                greatest = lac
    return greatest


cdef int HAS_KEY = 1, HAS_TIMESTAMP = 2, HAS_HEADERS = 4, HAS_VALUE = 8, TIMES = 16, MIXED = 32
cdef int PLAIN = HAS_VALUE | HAS_TIMESTAMP
cdef int ROW_SIZE = 21, PLAIN_ROW_SIZE = 4


cdef class _Bytes:
    """A buffer that grows at its end and keeps its memory."""

    cdef uint8_t *data
    cdef Py_ssize_t size, room

    def __dealloc__(self):
        free(self.data)

    cdef uint8_t *grow(self, Py_ssize_t size) except NULL:
        """Return where `size` more bytes begin."""
        cdef Py_ssize_t room
        cdef uint8_t *data
        if self.size + size > self.room or self.data == NULL:
            room = max(2 * self.room, self.size + size, 1024)
            data = <uint8_t *>realloc(self.data, room)
            if data == NULL:
                raise MemoryError()
            self.data, self.room = data, room
        self.size += size
        return self.data + self.size - size

    cdef int add(self, bytes piece) except -1:
        cdef Py_ssize_t size = len(piece)
        memcpy(self.grow(size), PyBytes_AS_STRING(piece), size)
        return 0


cdef class SetBuilder:
    """See `record_sets.SetBuilder`."""

    cdef public Py_ssize_t size_max
    cdef object _token
    cdef int64_t _time_us
    cdef Py_ssize_t _count, _size
    cdef bint _has_rows
    cdef _Bytes _flags, _times, _key_sizes, _headers_sizes, _value_sizes, _keys, _headers, _values

    def __init__(self, Py_ssize_t size_max):
        self.size_max = size_max
        self._token = None
        self._flags, self._times, self._key_sizes, self._headers_sizes = _Bytes(), _Bytes(), _Bytes(), _Bytes()
        self._value_sizes, self._keys, self._headers, self._values = _Bytes(), _Bytes(), _Bytes(), _Bytes()
        self._clear()

    cdef int _clear(self) except -1:
        self._flags.size = self._times.size = self._key_sizes.size = self._headers_sizes.size = 0
        self._value_sizes.size = self._keys.size = self._headers.size = self._values.size = 0
        self._count = self._size = self._time_us = 0
        self._has_rows = False
        return 0

    def __len__(self):
        return self._count

    @property
    def time_us(self):
        return self._time_us

    def begin(self, token, int64_t time_us):
        """See `record_sets.SetBuilder`."""
        self._clear()
        self._token = token
        self._time_us = time_us

    cdef int _put(self, int flags, int64_t time_us, Py_ssize_t key_size, Py_ssize_t headers_size) except -1:
        """Write the row of one record that has more than a value, or follows one."""
        self._flags.grow(1)[0] = flags
        bookies_put64(self._times.grow(8), <uint64_t>time_us)
        bookies_put32(self._key_sizes.grow(4), <uint32_t>key_size)
        bookies_put32(self._headers_sizes.grow(4), <uint32_t>headers_size)
        return 0

    def add_plain(self, value):
        """See `record_sets.SetBuilder`."""
        cdef Py_ssize_t size, row_size = ROW_SIZE if self._has_rows else PLAIN_ROW_SIZE
        if type(value) is not bytes or self._token is None:
            return None
        size = len(<bytes>value)
        if self._count and self._size + row_size + size > self.size_max:
            return None
        if self._has_rows:
            self._put(PLAIN, self._time_us, 0, 0)
        bookies_put32(self._value_sizes.grow(4), <uint32_t>size)
        memcpy(self._values.grow(size), PyBytes_AS_STRING(<bytes>value), size)
        self._count += 1
        self._size += row_size + size
        return self._token

    def add(self, bytes value, bytes key, bytes headers, time_us):
        """See `record_sets.SetBuilder`."""
        cdef Py_ssize_t size, past, index
        cdef int flags
        if self._token is None:
            return None
        if key is None and headers is None and value is not None and time_us == self._time_us:
            return self.add_plain(value)
        size = (len(value) if value is not None else 0) + (len(key) if key is not None else 0)
        size += len(headers) if headers is not None else 0
        past = 0 if self._has_rows else (ROW_SIZE - PLAIN_ROW_SIZE) * self._count
        if self._count and self._size + past + ROW_SIZE + size > self.size_max:
            return None
        if not self._has_rows:
            self._has_rows = True
            for index in range(self._count):
                self._put(PLAIN, self._time_us, 0, 0)
        flags = (HAS_KEY if key is not None else 0) | (HAS_TIMESTAMP if time_us is not None else 0)
        flags |= (HAS_HEADERS if headers is not None else 0) | (HAS_VALUE if value is not None else 0)
        self._put(
            flags,
            time_us if time_us is not None else 0,
            len(key) if key is not None else 0,
            len(headers) if headers is not None else 0,
        )
        bookies_put32(self._value_sizes.grow(4), <uint32_t>(len(value) if value is not None else 0))
        if key is not None:
            self._keys.add(key)
        if headers is not None:
            self._headers.add(headers)
        if value is not None:
            self._values.add(value)
        self._count += 1
        self._size += past + ROW_SIZE + size
        return self._token

    def take(self):
        """See `record_sets.SetBuilder`."""
        cdef int flags = PLAIN, bits
        cdef bint is_mixed = False, has_times = False
        cdef Py_ssize_t index, count = self._count
        cdef list parts = []
        if self._has_rows:
            flags = 0
            for index in range(count):
                bits = self._flags.data[index]
                flags |= bits
                is_mixed = is_mixed or bits != self._flags.data[0]
                if bits & HAS_TIMESTAMP and bookies_get64(self._times.data + 8 * index) != self._time_us:
                    has_times = True
            if is_mixed:
                parts.append(self._flags)
            if has_times:
                parts.append(self._times)
        bits = flags | (MIXED if is_mixed else 0) | (TIMES if has_times else 0)
        if flags & HAS_KEY:
            parts.append(self._key_sizes)
        if flags & HAS_HEADERS:
            parts.append(self._headers_sizes)
        parts.append(self._value_sizes)
        if flags & HAS_KEY:
            parts.append(self._keys)
        if flags & HAS_HEADERS:
            parts.append(self._headers)
        parts.append(self._values)
        taken = bits, count, self._time_us, _joined(parts)
        self._clear()
        self._token = None
        return taken


cdef bytes _joined(list parts):
    cdef Py_ssize_t size = 0
    cdef _Bytes part
    cdef bytes joined
    cdef uint8_t *target
    for part in parts:
        size += part.size
    joined = PyBytes_FromStringAndSize(NULL, size)
    target = <uint8_t *>PyBytes_AS_STRING(joined)
    for part in parts:
        if part.size:
            memcpy(target, part.data, part.size)
            target += part.size
    return joined


cdef int64_t _check_column(const uint8_t[::1] data, Py_ssize_t at, Py_ssize_t count, int64_t start) except -1:
    """Return the end of the pieces whose lengths are a column. Raises ValueError as `record_sets.offsets_of`."""
    cdef Py_ssize_t size = data.shape[0], index
    cdef int64_t end = start
    if at < 0 or count < 0 or start < 0 or at > size or count > (size - at) // 4:
        raise ValueError("the column of lengths is outside the data")
    for index in range(count):
        end += bookies_get32(&data[at + 4 * index])
    if end > min(size, <int64_t>0x7fffffff):
        raise ValueError("a piece is outside the data")
    return end


def offsets_of(const uint8_t[::1] data, Py_ssize_t at, Py_ssize_t count, int64_t start):
    """See `record_sets.offsets_of`."""
    cdef Py_ssize_t index
    cdef int64_t end = start
    cdef c_array.array offsets
    _check_column(data, at, count, start)
    offsets = c_array.clone(_INT32, count + 1, zero=False)
    offsets.data.as_ints[0] = <int>end
    for index in range(count):
        end += bookies_get32(&data[at + 4 * index])
        offsets.data.as_ints[index + 1] = <int>end
    return offsets


def cut_column(bytes data, Py_ssize_t at, Py_ssize_t count, int64_t start):
    """See `record_sets.cut_column`."""
    cdef const uint8_t[::1] view = data
    cdef const char *source = PyBytes_AS_STRING(data)
    cdef Py_ssize_t index, size
    cdef int64_t end = start
    cdef list pieces
    _check_column(view, at, count, start)
    pieces = []
    for index in range(count):
        size = bookies_get32(<const uint8_t *>source + at + 4 * index)
        pieces.append(PyBytes_FromStringAndSize(source + end, size))
        end += size
    return pieces, end


cdef int SET = 4, UNCOUNTED = 3
cdef Py_ssize_t RECORD_SIZE = 20, PAYLOAD_MAX = (1 << 20) - (8 << 10) - 20
cdef int64_t TXID_MAX = 0x7fffffffffffffff


@cython.no_gc
cdef class SlotAppend:
    """See `dlog_entries.SlotAppend`. The collector does not look at it: an entry's outcome lets go of its records."""

    cdef readonly object entry
    cdef readonly Py_ssize_t slot


cdef class EntryBuilder:
    """See `dlog_entries.EntryBuilder`."""

    cdef public int64_t last_txid
    cdef public bint is_shut
    cdef object _type, _token
    cdef Py_ssize_t _size_max, _count
    cdef int64_t _first_txid, _end_txid
    cdef _Bytes _body

    def __cinit__(self, *_):
        self._body = _Bytes()

    def __init__(self, append_type, Py_ssize_t size_max, int64_t last_txid):
        assert issubclass(append_type, SlotAppend)
        self.last_txid = last_txid
        self.is_shut = False
        self._type = append_type
        self._size_max = size_max
        self._token = None
        self._clear()

    cdef int _clear(self) except -1:
        self._body.size = 0
        self._count = 0
        self._first_txid = self._end_txid = 0
        return 0

    def __len__(self):
        return self._count

    @property
    def size(self):
        return self._body.size

    @property
    def first_txid(self):
        return self._first_txid

    def begin(self, token):
        """See `dlog_entries.EntryBuilder`."""
        self._clear()
        self._token = token

    def add_next(self, payload, txid):
        """See `dlog_entries.EntryBuilder`."""
        cdef int overflow = 0
        cdef int64_t number, least = max(self.last_txid, <int64_t>0)
        if self.is_shut or type(payload) is not bytes or len(<bytes>payload) > PAYLOAD_MAX:
            return None
        if txid is None:
            if least == TXID_MAX:
                return None
            number = least + 1
        elif PyLong_CheckExact(txid):
            number = PyLong_AsLongLongAndOverflow(txid, &overflow)
        else:
            return None
        if overflow or number < least or number == TXID_MAX:
            return None
        append = self._add(<bytes>payload, number, 0, 1)
        if append is not None:
            self.last_txid = number
        return append

    def add(self, bytes payload not None, int64_t txid, int flags, Py_ssize_t count):
        """See `dlog_entries.EntryBuilder`."""
        return self._add(payload, txid, flags, count)

    cdef object _add(self, bytes payload, int64_t txid, int flags, Py_ssize_t count):
        cdef Py_ssize_t size = len(payload)
        cdef SlotAppend append
        cdef uint8_t *target
        if self._token is None or (self._body.size and self._body.size + RECORD_SIZE + size > self._size_max):
            return None
        append = <SlotAppend>bookies_new(self._type, ())
        target = self._body.grow(RECORD_SIZE + size)
        if self._count == 0:
            self._first_txid = txid
        bookies_put64(target, (<int64_t>self._count + 1) << 16 | flags)
        bookies_put64(target + 8, txid)
        bookies_put32(target + 16, <uint32_t>size)
        memcpy(target + RECORD_SIZE, PyBytes_AS_STRING(payload), size)
        self._end_txid = txid
        self._count += count
        append.entry = self._token
        append.slot = self._count - 1
        return append

    def take(self):
        """See `dlog_entries.EntryBuilder`."""
        body = PyBytes_FromStringAndSize(<const char *>self._body.data, self._body.size)
        taken = self._token, body, self._count, self._first_txid, self._end_txid
        self._clear()
        self._token = None
        return taken


def placed(bytes head not None, bytes body not None, int64_t written):
    """See `dlog_entries.placed`."""
    cdef Py_ssize_t at = len(head), size = at + len(body)
    cdef bytes data = PyBytes_FromStringAndSize(NULL, size)
    cdef uint8_t *target = <uint8_t *>PyBytes_AS_STRING(data)
    memcpy(target, PyBytes_AS_STRING(head), at)
    memcpy(target + at, PyBytes_AS_STRING(body), size - at)
    while at + RECORD_SIZE <= size:
        bookies_put64(target + at, <int64_t>(<uint64_t>bookies_get64(target + at) + (<uint64_t>written << 16)))
        at += RECORD_SIZE + <Py_ssize_t>bookies_get32(target + at + 16)
    return data


def cut_records(types, body, entry, sequence, Py_ssize_t least_slot):
    """See `dlog_entries.cut_records`."""
    cdef bytes data = body[0]
    cdef Py_ssize_t start = body[1], end = body[2], at = start, slot = 0, size
    cdef const uint8_t *source = <const uint8_t *>PyBytes_AS_STRING(data)
    cdef int64_t word, position = -1, base
    cdef int flags = 0
    cdef list records = []
    if start < 0 or end > len(data):
        raise IndexError("range outside the data")
    record_type, place_type = types
    lssn, entry_id = entry
    assert issubclass(record_type, tuple) and issubclass(place_type, tuple)
    try:
        base = sequence
    except OverflowError:
        return None
    if base >= 0x4000000000000000:
        return None
    while at < end:
        if end - at < RECORD_SIZE:
            return None
        word = bookies_get64(source + at)
        size = <int32_t>bookies_get32(source + at + 16)
        flags = word & 0xffff
        position = <uint32_t>(word >> 16)
        if flags & SET or size < 0 or size > end - at - RECORD_SIZE:
            return None
        if slot >= least_slot and not flags & UNCOUNTED:
            txid = bookies_get64(source + at + 8)
            payload = PyBytes_FromStringAndSize(<const char *>source + at + RECORD_SIZE, size)
            place = bookies_three(place_type, lssn, entry_id, slot)
            records.append(bookies_four(record_type, payload, txid, place, base + position))
        slot += 1
        at += RECORD_SIZE + size
    return records, position, flags

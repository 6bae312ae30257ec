/* CRC-32C (Castagnoli, reflected 0x82F63B78), CRC-32 (reflected 0xEDB88320), and big-endian access for the compiled
 * kernels.
 *
 * CRC-32C uses the processor's instruction where it has one, else eight tables. The instruction takes three cycles and
 * one can begin in each, so three thirds of the data are done side by side and then combined: the CRC of `a` followed by
 * N bytes is that of `a` times x^8N modulo the polynomial, plus that of the N bytes from 0.
 *
 * CRC-32 is folded: 16 bytes times x^8N modulo the polynomial are added to the 16 bytes that follow N bytes later, four
 * such in turn, until 16 bytes are left that have the CRC of all. Without the instruction for it, use zlib's. */
#ifndef BOOKIES_CRC32C_H
#define BOOKIES_CRC32C_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define BOOKIES_CRC32C_POLYNOMIAL 0x82F63B78u
#define BOOKIES_CRC32_POLYNOMIAL 0xEDB88320u

typedef uint32_t bookies_crc_tables[8][256];

static bookies_crc_tables bookies_crc32c_tables, bookies_crc32_tables;

static inline uint32_t bookies_crc_times_x(uint32_t crc, uint32_t polynomial) {
    return (crc >> 1) ^ (polynomial & (0u - (crc & 1)));
}

static void bookies_crc_tables_init(bookies_crc_tables tables, uint32_t polynomial) {
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++) crc = bookies_crc_times_x(crc, polynomial);
        tables[0][byte] = crc;
    }
    for (uint32_t byte = 0; byte < 256; byte++)
        for (int table = 1; table < 8; table++) {
            uint32_t crc = tables[table - 1][byte];
            tables[table][byte] = (crc >> 8) ^ tables[0][crc & 0xff];
        }
}

static uint32_t bookies_crc_tabled(bookies_crc_tables tables, uint32_t crc, const uint8_t *data, size_t size) {
    for (; size >= 8; data += 8, size -= 8) {
        uint32_t low = crc ^ ((uint32_t)data[0] | (uint32_t)data[1] << 8 | (uint32_t)data[2] << 16 | (uint32_t)data[3] << 24);
        crc = tables[7][low & 0xff] ^ tables[6][(low >> 8) & 0xff] ^ tables[5][(low >> 16) & 0xff] ^ tables[4][low >> 24] ^
              tables[3][data[4]] ^ tables[2][data[5]] ^ tables[1][data[6]] ^ tables[0][data[7]];
    }
    while (size--) crc = (crc >> 8) ^ tables[0][(crc ^ *data++) & 0xff];
    return crc;
}

#if defined(__x86_64__) && defined(__GNUC__)
#include <nmmintrin.h>
#include <wmmintrin.h>

#ifdef __clang__ /* has the instruction's feature apart */
#define BOOKIES_CRC_TARGET __attribute__((target("sse4.2,crc32,pclmul")))
#else
#define BOOKIES_CRC_TARGET __attribute__((target("sse4.2,pclmul")))
#endif
#define BOOKIES_CRC_WORDS 256 /* most that one of the three does in one go */
#define BOOKIES_CRC_WORDS_MIN 8 /* below, combining costs more than it saves */

/* [n]: the factor that moves a CRC over 8n bytes. The product of two reflected polynomials of 32 bits, taken as 64 bits
 * of data, comes out of the instruction as their product times x^33. */
static uint32_t bookies_crc_factors[2 * BOOKIES_CRC_WORDS + 1];

static void bookies_crc_factors_init(void) {
    uint32_t power = 0x80000000u; /* x^0 */
    for (int exponent = 0; exponent <= 128 * BOOKIES_CRC_WORDS - 33; exponent++) {
        if ((exponent + 33) % 64 == 0) bookies_crc_factors[(exponent + 33) / 64] = power;
        power = bookies_crc_times_x(power, BOOKIES_CRC32C_POLYNOMIAL);
    }
}

static inline uint64_t bookies_crc_word(const uint8_t *data) {
    uint64_t word;
    memcpy(&word, data, 8);
    return word;
}

BOOKIES_CRC_TARGET
static inline uint64_t bookies_crc_moved(uint64_t crc, size_t words) {
    __m128i product = _mm_clmulepi64_si128(
        _mm_cvtsi64_si128((int64_t)crc), _mm_cvtsi64_si128((int64_t)bookies_crc_factors[words]), 0);
    return _mm_crc32_u64(0, (uint64_t)_mm_cvtsi128_si64(product));
}

BOOKIES_CRC_TARGET
static uint32_t bookies_crc_instruction(uint32_t crc, const uint8_t *data, size_t size) {
    uint64_t first = crc;
    while (size >= 24 * BOOKIES_CRC_WORDS_MIN) {
        size_t words = size / 24 < BOOKIES_CRC_WORDS ? size / 24 : BOOKIES_CRC_WORDS;
        uint64_t second = 0, third = 0;
        for (size_t index = 0; index < words; index++) {
            first = _mm_crc32_u64(first, bookies_crc_word(data + 8 * index));
            second = _mm_crc32_u64(second, bookies_crc_word(data + 8 * (words + index)));
            third = _mm_crc32_u64(third, bookies_crc_word(data + 8 * (2 * words + index)));
        }
        first = bookies_crc_moved(first, 2 * words) ^ bookies_crc_moved(second, words) ^ third;
        data += 24 * words, size -= 24 * words;
    }
    for (; size >= 8; data += 8, size -= 8) first = _mm_crc32_u64(first, bookies_crc_word(data));
    crc = (uint32_t)first;
    while (size--) crc = _mm_crc32_u8(crc, *data++);
    return crc;
}

/* What moves 16 bytes over 64 and over 16 bytes: x^n for their first half, and for their second, which is x^64 less. The
 * product of 64 and 32 bits of reflected polynomials, both taken as 64 bits, is their product times x^33. */
static uint32_t bookies_fold_factors[4];

static void bookies_fold_factors_init(void) {
    static const int exponents[4] = {512 + 64 - 33, 512 - 33, 128 + 64 - 33, 128 - 33};
    for (int index = 0; index < 4; index++) {
        uint32_t power = 0x80000000u; /* x^0 */
        for (int bit = 0; bit < exponents[index]; bit++) power = bookies_crc_times_x(power, BOOKIES_CRC32_POLYNOMIAL);
        bookies_fold_factors[index] = power;
    }
}

BOOKIES_CRC_TARGET
static inline __m128i bookies_folded(__m128i block, __m128i factors, const uint8_t *data) {
    __m128i first = _mm_clmulepi64_si128(block, factors, 0x00), second = _mm_clmulepi64_si128(block, factors, 0x11);
    return _mm_xor_si128(_mm_xor_si128(first, second), _mm_loadu_si128((const __m128i *)data));
}

BOOKIES_CRC_TARGET
static uint32_t bookies_crc32_folding(uint32_t crc, const uint8_t *data, size_t size) {
    if (size >= 64) {
        const __m128i far = _mm_set_epi64x(bookies_fold_factors[1], bookies_fold_factors[0]);
        const __m128i near = _mm_set_epi64x(bookies_fold_factors[3], bookies_fold_factors[2]);
        __m128i block[4];
        uint8_t left[16];
        for (int index = 0; index < 4; index++) block[index] = _mm_loadu_si128((const __m128i *)(data + 16 * index));
        block[0] = _mm_xor_si128(block[0], _mm_cvtsi32_si128((int)crc));
        for (data += 64, size -= 64; size >= 64; data += 64, size -= 64)
            for (int index = 0; index < 4; index++) block[index] = bookies_folded(block[index], far, data + 16 * index);
        for (int index = 1; index < 4; index++) {
            _mm_storeu_si128((__m128i *)left, block[index]);
            block[0] = bookies_folded(block[0], near, left);
        }
        for (; size >= 16; data += 16, size -= 16) block[0] = bookies_folded(block[0], near, data);
        _mm_storeu_si128((__m128i *)left, block[0]);
        crc = bookies_crc_tabled(bookies_crc32_tables, 0, left, 16);
    }
    return bookies_crc_tabled(bookies_crc32_tables, crc, data, size);
}
#endif

static int bookies_crc_has_instruction;

/* Once, before the first CRC. */
static void bookies_crc_init(void) {
    bookies_crc_tables_init(bookies_crc32c_tables, BOOKIES_CRC32C_POLYNOMIAL);
    bookies_crc_tables_init(bookies_crc32_tables, BOOKIES_CRC32_POLYNOMIAL);
#if defined(__x86_64__) && defined(__GNUC__)
    bookies_crc_factors_init();
    bookies_fold_factors_init();
    bookies_crc_has_instruction = __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul");
#endif
}

/* Continues from the finished CRC `value`. Reads exactly `size` bytes. */
static uint32_t bookies_crc32c(uint32_t value, const uint8_t *data, size_t size) {
#if defined(__x86_64__) && defined(__GNUC__)
    if (bookies_crc_has_instruction) return ~bookies_crc_instruction(~value, data, size);
#endif
    return ~bookies_crc_tabled(bookies_crc32c_tables, ~value, data, size);
}

/* The same with the polynomial of zlib's `crc32`. */
static uint32_t bookies_crc32(uint32_t value, const uint8_t *data, size_t size) {
#if defined(__x86_64__) && defined(__GNUC__)
    if (bookies_crc_has_instruction) return ~bookies_crc32_folding(~value, data, size);
#endif
    return ~bookies_crc_tabled(bookies_crc32_tables, ~value, data, size);
}

static inline uint32_t bookies_get32(const uint8_t *at) {
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

static inline int64_t bookies_get64(const uint8_t *at) {
    return (int64_t)((uint64_t)bookies_get32(at) << 32 | bookies_get32(at + 4));
}

static inline void bookies_put32(uint8_t *at, uint32_t value) {
    at[0] = value >> 24, at[1] = value >> 16, at[2] = value >> 8, at[3] = value;
}

static inline void bookies_put64(uint8_t *at, int64_t value) {
    bookies_put32(at, (uint32_t)((uint64_t)value >> 32));
    bookies_put32(at + 4, (uint32_t)value);
}

#endif

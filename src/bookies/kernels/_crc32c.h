/* CRC-32C (Castagnoli, reflected 0x82F63B78) and big-endian access for the compiled kernels.
 *
 * Uses the processor's instruction where it has one, else eight tables. The instruction takes three cycles and one can
 * begin in each, so three thirds of the data are done side by side and then combined: the CRC of `a` followed by N
 * bytes is that of `a` times x^8N modulo the polynomial, plus that of the N bytes from 0. */
#ifndef BOOKIES_CRC32C_H
#define BOOKIES_CRC32C_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

static uint32_t bookies_crc_tables[8][256];

static void bookies_crc_tables_init(void) {
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++) crc = (crc >> 1) ^ (0x82F63B78u & (0u - (crc & 1)));
        bookies_crc_tables[0][byte] = crc;
    }
    for (uint32_t byte = 0; byte < 256; byte++)
        for (int table = 1; table < 8; table++) {
            uint32_t crc = bookies_crc_tables[table - 1][byte];
            bookies_crc_tables[table][byte] = (crc >> 8) ^ bookies_crc_tables[0][crc & 0xff];
        }
}

static uint32_t bookies_crc_tabled(uint32_t crc, const uint8_t *data, size_t size) {
    for (; size >= 8; data += 8, size -= 8) {
        uint32_t low = crc ^ ((uint32_t)data[0] | (uint32_t)data[1] << 8 | (uint32_t)data[2] << 16 | (uint32_t)data[3] << 24);
        crc = bookies_crc_tables[7][low & 0xff] ^ bookies_crc_tables[6][(low >> 8) & 0xff] ^
              bookies_crc_tables[5][(low >> 16) & 0xff] ^ bookies_crc_tables[4][low >> 24] ^
              bookies_crc_tables[3][data[4]] ^ bookies_crc_tables[2][data[5]] ^
              bookies_crc_tables[1][data[6]] ^ bookies_crc_tables[0][data[7]];
    }
    while (size--) crc = (crc >> 8) ^ bookies_crc_tables[0][(crc ^ *data++) & 0xff];
    return crc;
}

#if defined(__x86_64__) && defined(__GNUC__)
#include <nmmintrin.h>
#include <wmmintrin.h>

#define BOOKIES_CRC_WORDS 256 /* most that one of the three does in one go */
#define BOOKIES_CRC_WORDS_MIN 8 /* below, combining costs more than it saves */

/* [n]: the factor that moves a CRC over 8n bytes. The product of two reflected polynomials of 32 bits, taken as 64 bits
 * of data, comes out of the instruction as their product times x^33. */
static uint32_t bookies_crc_factors[2 * BOOKIES_CRC_WORDS + 1];

static void bookies_crc_factors_init(void) {
    uint32_t power = 0x80000000u; /* x^0 */
    for (int exponent = 0; exponent <= 128 * BOOKIES_CRC_WORDS - 33; exponent++) {
        if ((exponent + 33) % 64 == 0) bookies_crc_factors[(exponent + 33) / 64] = power;
        power = (power >> 1) ^ (0x82F63B78u & (0u - (power & 1)));
    }
}

static inline uint64_t bookies_crc_word(const uint8_t *data) {
    uint64_t word;
    memcpy(&word, data, 8);
    return word;
}

__attribute__((target("sse4.2,pclmul")))
static inline uint64_t bookies_crc_moved(uint64_t crc, size_t words) {
    __m128i product = _mm_clmulepi64_si128(
        _mm_cvtsi64_si128((int64_t)crc), _mm_cvtsi64_si128((int64_t)bookies_crc_factors[words]), 0);
    return _mm_crc32_u64(0, (uint64_t)_mm_cvtsi128_si64(product));
}

__attribute__((target("sse4.2,pclmul")))
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
#endif

static int bookies_crc_has_instruction;

/* Once, before the first `bookies_crc32c`. */
static void bookies_crc_init(void) {
    bookies_crc_tables_init();
#if defined(__x86_64__) && defined(__GNUC__)
    bookies_crc_factors_init();
    bookies_crc_has_instruction = __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul");
#endif
}

/* Continues from the finished CRC `value`. Reads exactly `size` bytes. */
static uint32_t bookies_crc32c(uint32_t value, const uint8_t *data, size_t size) {
#if defined(__x86_64__) && defined(__GNUC__)
    if (bookies_crc_has_instruction) return ~bookies_crc_instruction(~value, data, size);
#endif
    return ~bookies_crc_tabled(~value, data, size);
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

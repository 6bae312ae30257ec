/* CRC-32C (Castagnoli, reflected 0x82F63B78) and big-endian access for the compiled kernels.
 * Uses the processor's instruction where it has one, else eight tables. */
#ifndef BOOKIES_CRC32C_H
#define BOOKIES_CRC32C_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

static uint32_t bookies_crc_tables[8][256];

static void bookies_crc_init(void) {
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
__attribute__((target("sse4.2")))
static uint32_t bookies_crc_instruction(uint32_t crc, const uint8_t *data, size_t size) {
    uint64_t wide = crc;
    for (; size >= 8; data += 8, size -= 8) {
        uint64_t word;
        memcpy(&word, data, 8);
        wide = __builtin_ia32_crc32di(wide, word);
    }
    crc = (uint32_t)wide;
    while (size--) crc = __builtin_ia32_crc32qi(crc, *data++);
    return crc;
}
#endif

/* Continues from the finished CRC `value`. Reads exactly `size` bytes. */
static uint32_t bookies_crc32c(uint32_t value, const uint8_t *data, size_t size) {
#if defined(__x86_64__) && defined(__GNUC__)
    static int has_instruction = -1;
    if (has_instruction < 0) has_instruction = __builtin_cpu_supports("sse4.2") ? 1 : 0;
    if (has_instruction) return ~bookies_crc_instruction(~value, data, size);
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

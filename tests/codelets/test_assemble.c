/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Splitting fp32 weights into their stored halves and putting them together again:
 * every kind of bit pattern, all alignments and short counts. */
#include "codelets/deliver/assemble.h"
#include "tests/sdp_test.h"

#define COUNT 4099

static uint16_t weight[COUNT];
static int16_t remainders[COUNT];
static float out[COUNT + 1];

/* All 2^16 weights, each with some remainders: as sdp_master_join. */
static void test_values(void)
{
    size_t wrong = 0;
    for (uint32_t first = 0; first < 0x10000u; first += 4096) {
        for (uint32_t i = 0; i < COUNT; i++) {
            weight[i] = (uint16_t)(first + i);
            remainders[i] = (int16_t)(uint16_t)sdp_random_u64(3, first * 2 + i);
        }
        remainders[0] = INT16_MIN;
        remainders[1] = INT16_MAX;
        remainders[2] = -1;
        remainders[3] = 0;
        sdp_assemble(weight, remainders, out, COUNT);
        for (size_t i = 0; i < COUNT; i++)
            wrong += sdp_bits_from_float(out[i]) !=
                     sdp_bits_from_float(sdp_master_join(weight[i], remainders[i]));
    }
    CHECK_EQ(wrong, 0);
}

/* fp32 bits in, the same bits out; NaN becomes the one NaN. */
static void test_round_trip(void)
{
    static uint32_t bits[COUNT];
    static const uint32_t special[] = {0x00000000, 0x80000000, 0x00000001, 0x00007fff, 0x00008000,
                                       0x007fffff, 0x7f7fffff, 0xff7fffff, 0x7f800000, 0xff800000,
                                       0x3f808000, 0x3f818000, 0x3f807fff, 0x7fc00000, 0xffffffff,
                                       0x7f800001, 0xff800001};
    for (size_t i = 0; i < COUNT; i++) {
        bits[i] = i < SDP_COUNT_OF(special) ? special[i] : (uint32_t)sdp_random_u64(5, i);
        sdp_master_split(sdp_float_from_bits(bits[i]), &weight[i], &remainders[i]);
    }
    sdp_assemble(weight, remainders, out, COUNT);
    size_t wrong = 0;
    for (size_t i = 0; i < COUNT; i++) {
        uint32_t want = (bits[i] & 0x7fffffffu) > 0x7f800000u ? 0x7fc00000u : bits[i];
        wrong += sdp_bits_from_float(out[i]) != want;
    }
    CHECK_EQ(wrong, 0);
}

static void test_places(void)
{
    size_t wrong = 0;
    for (size_t offset = 0; offset < 20; offset++) {
        for (size_t count = 0; count < 70; count++) {
            size_t at = (offset * 7) % 20; /* out is aligned otherwise than the sources */
            for (size_t i = 0; i < 100; i++)
                out[i] = -77.0f;
            sdp_assemble(weight + offset, remainders + offset, out + at, count);
            for (size_t i = 0; i < 100; i++) {
                bool inside = i >= at && i < at + count;
                size_t from = inside ? offset + i - at : 0;
                float want = inside ? sdp_master_join(weight[from], remainders[from]) : -77.0f;
                wrong += sdp_bits_from_float(out[i]) != sdp_bits_from_float(want);
            }
        }
    }
    CHECK_EQ(wrong, 0);
}

/* Long enough for another way to memory, with out aligned and not. */
static void test_long(void)
{
    const size_t count = ((size_t)1 << 18) + 13;
    uint16_t *w = sdp_xcalloc(count, sizeof *w);
    int16_t *r = sdp_xcalloc(count, sizeof *r);
    float *long_out = sdp_xcalloc(count + 8, sizeof *long_out);
    for (size_t i = 0; i < count; i++) {
        w[i] = (uint16_t)sdp_random_u64(7, i);
        r[i] = (int16_t)(uint16_t)sdp_random_u64(9, i);
    }
    for (size_t at = 0; at < 5; at++) {
        size_t wrong = 0;
        long_out[at + count] = -77.0f;
        sdp_assemble(w, r, long_out + at, count);
        for (size_t i = 0; i < count; i++)
            wrong += sdp_bits_from_float(long_out[at + i]) !=
                     sdp_bits_from_float(sdp_master_join(w[i], r[i]));
        CHECK_EQ(wrong, 0);
        CHECK(long_out[at + count] == -77.0f);
    }
    free(w);
    free(r);
    free(long_out);
}

int main(void)
{
    test_values();
    test_round_trip();
    test_places();
    test_long();
    return sdp_test_end();
}

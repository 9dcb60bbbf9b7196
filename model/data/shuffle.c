/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A Feistel network of ROUNDS rounds permutes the numbers of 2h bits: each round swaps
 * the halves and adds to one a random function of the other, which can be undone,
 * whatever the function. Numbers that come out at `count` or above are put in again until
 * one is below (cycle walking), which permutes 0 .. count-1: the cycle of a number below
 * `count` always comes back below it. 2^2h is less than 4 count (or 256, so that small
 * sets are mixed well too), hence about 4 times through the network at most on average.
 */
#include "model/data/shuffle.h"

#include "graph/base/util.h"

#define ROUNDS     6u
#define LEAST_HALF 4u /* bits */

uint64_t sdp_shuffle(uint64_t seed, uint64_t epoch, uint64_t count, uint64_t index)
{
    uint64_t key = sdp_random_u64(sdp_random_key(seed, "shuffle"), epoch), mask;
    unsigned half = LEAST_HALF;

    while (half < 31 && (uint64_t)1 << 2 * half < count)
        half++;
    mask = ((uint64_t)1 << half) - 1;
    do {
        uint64_t left = index >> half, right = index & mask;

        for (uint64_t round = 0; round < ROUNDS; round++) {
            uint64_t mixed = left ^ (sdp_random_u64(key, round << 32 | right) & mask);

            left = right;
            right = mixed;
        }
        index = left << half | right;
    } while (index >= count);
    return index;
}

/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Dtypes, bookkeeping memory, sizes as text, time and random numbers. Files are
 * in file.c. */
#define _GNU_SOURCE
#include "graph/base/util.h"

#include "graph/base/log_internal.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>
#include <time.h>

/* -- dtypes ------------------------------------------------------------- */

static const struct {
    const char *name;
    size_t size;
} dtypes[] = {
    [SDP_FP32] = {"fp32", 4},     [SDP_BF16] = {"bf16", 2},
    [SDP_FP16] = {"fp16", 2},     [SDP_INT32] = {"int32", 4},
    [SDP_INT64] = {"int64", 8},   [SDP_UINT16] = {"uint16", 2},
    [SDP_UINT32] = {"uint32", 4},
};

size_t sdp_dtype_size(enum sdp_dtype dtype)
{
    return (size_t)dtype < SDP_COUNT_OF(dtypes) ? dtypes[dtype].size : 0;
}

const char *sdp_dtype_name(enum sdp_dtype dtype)
{
    return (size_t)dtype < SDP_COUNT_OF(dtypes) ? dtypes[dtype].name : "unknown";
}

float sdp_fp16_to_float(uint16_t x)
{
    uint32_t sign = (uint32_t)(x & 0x8000u) << 16;
    uint32_t exponent = (x >> 10) & 0x1fu, fraction = x & 0x3ffu;

    if (exponent == 0x1fu) /* infinity, NaN */
        return sdp_float_from_bits(sign | 0x7f800000u | (fraction << 13));
    if (exponent == 0) { /* zero, denormal: fraction * 2^-24, exact in fp32 */
        float value = ldexpf((float)fraction, -24);
        return sign ? -value : value;
    }
    return sdp_float_from_bits(sign | ((exponent + 112u) << 23) | (fraction << 13));
}

/* -- memory ------------------------------------------------------------- */

static void *need(void *pointer)
{
    if (!pointer) {
        sdpi_log_write(
            "out of host memory for bookkeeping; free some memory and start again");
        abort();
    }
    return pointer;
}

void *sdp_xcalloc(size_t count, size_t size)
{
    if (count == 0 || size == 0)
        count = size = 1;
    return need(calloc(count, size));
}

void *sdp_xrealloc(void *pointer, size_t size)
{
    return need(realloc(pointer, size ? size : 1));
}

char *sdp_xstrdup(const char *text)
{
    size_t size = strlen(text) + 1;
    char *copy = sdp_xcalloc(size, 1);

    memcpy(copy, text, size);
    return copy;
}

char *sdp_xprintf(const char *format, ...)
{
    va_list args;
    char *text = NULL;
    int length;

    va_start(args, format);
    length = vasprintf(&text, format, args);
    va_end(args);
    return need(length < 0 ? NULL : text);
}

bool sdp_size_mul(size_t a, size_t b, size_t *out)
{
    if (b != 0 && a > SIZE_MAX / b)
        return false;
    *out = a * b;
    return true;
}

/* -- sizes as text -------------------------------------------------------- */

char *sdp_format_flops(double per_second, char *buffer)
{
    bool tera = per_second >= 1e12;

    snprintf(buffer, 32, "%.1f %s", per_second / (tera ? 1e12 : 1e9), tera ? "TFLOP/s" : "GFLOP/s");
    return buffer;
}

char *sdp_format_bytes(size_t bytes, char *buffer)
{
    static const char *const units[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    double value = (double)bytes / 1024.0;
    size_t unit = 0;

    if (bytes < 1024) {
        snprintf(buffer, 32, "%zu B", bytes);
        return buffer;
    }
    /* 1023.995 would print as 1024.00 of the smaller unit. */
    while (value >= 1023.995 && unit + 1 < SDP_COUNT_OF(units)) {
        value /= 1024.0;
        unit++;
    }
    snprintf(buffer, 32, "%.2f %s", value, units[unit]);
    return buffer;
}

/* Factor of a unit; 0 if it is none. */
static size_t unit_factor(const char *unit)
{
    static const struct {
        const char *name;
        size_t factor;
    } units[] = {
        {"", 1},
        {"B", 1},
        {"KB", 1000},
        {"MB", 1000000},
        {"GB", 1000000000},
        {"TB", 1000000000000},
        {"KiB", (size_t)1 << 10},
        {"MiB", (size_t)1 << 20},
        {"GiB", (size_t)1 << 30},
        {"TiB", (size_t)1 << 40},
    };

    for (size_t i = 0; i < SDP_COUNT_OF(units); i++)
        if (strcasecmp(unit, units[i].name) == 0)
            return units[i].factor;
    return 0;
}

/* The digits by hand: strtod would read "inf", hexadecimal, and the locale's comma. */
bool sdp_parse_bytes(const char *text, size_t *out)
{
    size_t whole = 0, factor, bytes;
    double fraction = 0.0, place = 0.1, extra;

    if (!isdigit((unsigned char)*text))
        return false;
    for (; isdigit((unsigned char)*text); text++) {
        size_t digit = (size_t)(*text - '0');
        if (whole > (SIZE_MAX - digit) / 10)
            return false;
        whole = whole * 10 + digit;
    }
    if (*text == '.') {
        if (!isdigit((unsigned char)*++text))
            return false;
        for (; isdigit((unsigned char)*text); text++, place /= 10.0)
            fraction += place * (*text - '0');
    }
    while (*text == ' ')
        text++;
    factor = unit_factor(text);
    if (factor == 0 || !sdp_size_mul(whole, factor, &bytes))
        return false;
    extra = floor(fraction * (double)factor + 0.5);
    if (extra > 0.0 && extra >= (double)(SIZE_MAX - bytes))
        return false;
    *out = bytes + (size_t)extra;
    return true;
}

/* -- time and random numbers -------------------------------------------- */

double sdp_now(void)
{
    struct timespec now;

    if (clock_gettime(CLOCK_MONOTONIC, &now) != 0)
        return 0.0;
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

#define GOLDEN 0x9e3779b97f4a7c15u /* 2^64 / golden ratio: the step of splitmix64 */

/* The finaliser of splitmix64: every input bit reaches every output bit. */
static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* The key is mixed too, else the keys k and k + GOLDEN would share a stream. */
uint64_t sdp_random_u64(uint64_t key, uint64_t counter)
{
    return mix(mix(key + GOLDEN) + (counter + 1) * GOLDEN);
}

double sdp_random_uniform(uint64_t key, uint64_t counter)
{
    return (double)(sdp_random_u64(key, counter) >> 11) * 0x1p-53;
}

float sdp_random_normal(uint64_t key, uint64_t counter)
{
    const double two_pi = 6.283185307179586476925286766559;
    double u = 1.0 - sdp_random_uniform(key, 2 * counter); /* (0, 1]: log is finite */
    double angle = two_pi * sdp_random_uniform(key, 2 * counter + 1);

    return (float)(sqrt(-2.0 * log(u)) * cos(angle));
}

uint64_t sdp_random_key(uint64_t seed, const char *text)
{
    uint64_t hash = 0xcbf29ce484222325u; /* FNV-1a */

    for (; *text; text++)
        hash = (hash ^ (unsigned char)*text) * 0x100000001b3u;
    return mix(hash ^ mix(seed + GOLDEN));
}

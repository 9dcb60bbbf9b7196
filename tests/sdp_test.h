/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Test macros: print both sides, count failures, never compiled out. A test is
 * one program: checks, then `return sdp_test_end();`. Exit 77 means skipped. */
#ifndef SDP_TEST_H
#define SDP_TEST_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int sdp_test_failures, sdp_test_checks;

#define SDP_TEST_FAIL(...)                                                                         \
    do {                                                                                           \
        sdp_test_failures++;                                                                       \
        fprintf(stderr, "%s:%d: ", __FILE__, __LINE__);                                            \
        fprintf(stderr, __VA_ARGS__);                                                              \
        fputc('\n', stderr);                                                                       \
    } while (0)

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        sdp_test_checks++;                                                                         \
        if (!(condition))                                                                          \
            SDP_TEST_FAIL("CHECK(%s) failed", #condition);                                         \
    } while (0)

/* For what the rest of the test cannot go on without. */
#define REQUIRE(condition)                                                                         \
    do {                                                                                           \
        sdp_test_checks++;                                                                         \
        if (!(condition)) {                                                                        \
            SDP_TEST_FAIL("REQUIRE(%s) failed", #condition);                                       \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

/* For enum sdp_status results with a struct sdp_error: prints the message. */
#define REQUIRE_OK(expression, err)                                                                \
    do {                                                                                           \
        sdp_test_checks++;                                                                         \
        int sdp_rc = (int)(expression);                                                            \
        if (sdp_rc != 0) {                                                                         \
            SDP_TEST_FAIL("%s = %d: %s %s: %s", #expression, sdp_rc, (err)->file, (err)->pointer,  \
                          (err)->text);                                                            \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

#define CHECK_EQ(a, b)                                                                             \
    do {                                                                                           \
        long long sdp_a = (long long)(a), sdp_b = (long long)(b);                                  \
        sdp_test_checks++;                                                                         \
        if (sdp_a != sdp_b)                                                                        \
            SDP_TEST_FAIL("%s is %lld, %s is %lld", #a, sdp_a, #b, sdp_b);                         \
    } while (0)

#define CHECK_NEAR(a, b, tolerance)                                                                \
    do {                                                                                           \
        double sdp_a = (double)(a), sdp_b = (double)(b), sdp_t = (double)(tolerance);              \
        sdp_test_checks++;                                                                         \
        if (!(fabs(sdp_a - sdp_b) <= sdp_t)) /* NaN fails */                                       \
            SDP_TEST_FAIL("%s is %.9g, %s is %.9g, tolerance %.3g", #a, sdp_a, #b, sdp_b, sdp_t);  \
    } while (0)

#define CHECK_STR(a, b)                                                                            \
    do {                                                                                           \
        const char *sdp_a = (a), *sdp_b = (b);                                                     \
        sdp_test_checks++;                                                                         \
        if (strcmp(sdp_a, sdp_b) != 0)                                                             \
            SDP_TEST_FAIL("%s is \"%s\", wanted \"%s\"", #a, sdp_a, sdp_b);                        \
    } while (0)

#define CHECK_CONTAINS(text, part)                                                                 \
    do {                                                                                           \
        const char *sdp_a = (text), *sdp_b = (part);                                               \
        sdp_test_checks++;                                                                         \
        if (!strstr(sdp_a, sdp_b))                                                                 \
            SDP_TEST_FAIL("%s is \"%s\", which lacks \"%s\"", #text, sdp_a, sdp_b);                \
    } while (0)

#define SKIP(reason)                                                                               \
    do {                                                                                           \
        fprintf(stderr, "skipped: %s\n", reason);                                                  \
        exit(77);                                                                                  \
    } while (0)

static inline int sdp_test_end(void)
{
    if (sdp_test_checks == 0)
        SDP_TEST_FAIL("the test checked nothing");
    if (sdp_test_failures)
        fprintf(stderr, "%d of %d checks failed\n", sdp_test_failures, sdp_test_checks);
    return sdp_test_failures ? 1 : 0;
}

#endif

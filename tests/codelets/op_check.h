/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Holds the twins of all operations against the reference (reference.h) on the cases of
 * their folders (op_cases.h): the same checks for the CPU and for a device. */
#ifndef SDP_TESTS_CODELETS_OP_CHECK_H
#define SDP_TESTS_CODELETS_OP_CHECK_H

#include "graph/op.h"

struct sdp_op_check {
    bool cuda; /* which twins */
    enum sdp_dtype dtype;
    double tolerance; /* of ||got - wanted|| / ||wanted|| */
    const struct sdp_op_device *device;
    /* Memory that the twins use. download waits for what was enqueued. */
    void *(*allocate)(size_t bytes); /* aligned to 256 bytes */
    void (*release)(void *memory);
    void (*upload)(void *memory, const void *from, size_t bytes);
    void (*download)(void *to, const void *memory, size_t bytes);
};

/** Runs every case of every operation:
 *  - what the twins compute, forward and backward, against the reference, and the
 * reference's gradients against central differences of it;
 *  - every output NaN before, and once more with what is added to; gradients that are not
 *    wanted; gradients that share memory with dout;
 *  - what backward does not declare as needed is not there;
 *  - guards around every buffer, scratch filled with NaN and with other bytes;
 *  - the same bits in every run, also of two threads at a time on the CPU.
 * Failures go to stderr. \return the exit status of a test: 0 or 1 */
int sdp_op_check_all(const struct sdp_op_check *check);

#endif

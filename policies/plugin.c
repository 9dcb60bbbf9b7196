/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* libslidedp-policies.so: StarPU's two entry points (STARPU_SCHED_LIB). */
#include "policies/policy.h"

#include <string.h>

#define EXPORT __attribute__((visibility("default")))

EXPORT struct starpu_sched_policy *starpu_get_sched_lib_policy(const char *name);
EXPORT struct starpu_sched_policy **starpu_get_sched_lib_policies(void);

struct starpu_sched_policy *starpu_get_sched_lib_policy(const char *name)
{
    for (size_t i = 0; sdp_policies[i]; i++)
        if (strcmp(sdp_policies[i]->policy_name, name) == 0)
            return sdp_policies[i];
    return NULL;
}

/* NULL-ended: StarPU walks it to list the policies. */
struct starpu_sched_policy **starpu_get_sched_lib_policies(void)
{
    return (struct starpu_sched_policy **)sdp_policies;
}

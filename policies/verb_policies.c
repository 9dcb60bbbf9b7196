/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* slidedp policies: what runtime.policy may name. */
#include "graph/options.h"
#include "policies/policy.h"

#include <stdio.h>

extern const struct sdp_verb sdp_verb_policies;

static int run(int argc, char **argv)
{
    const struct sdp_option table[] = {{NULL, SDP_OPTION_FLAG, NULL, NULL, NULL, NULL}};
    int rc = sdp_options_parse(&sdp_verb_policies, table, argc, argv, 0, 0, NULL, NULL);
    if (rc >= 0)
        return rc;
    printf("slidedp's policies (libslidedp-policies.so):\n");
    for (size_t i = 0; sdp_policies[i]; i++)
        printf("  %-12s %s\n", sdp_policies[i]->policy_name, sdp_policies[i]->policy_description);
    printf("StarPU's own policies:\n");
    struct starpu_sched_policy **own = starpu_sched_get_predefined_policies();
    for (size_t i = 0; own && own[i]; i++)
        if (own[i]->policy_name)
            printf("  %-12s %s\n", own[i]->policy_name, own[i]->policy_description ? own[i]->policy_description : "");
    printf("A policy of your own: STARPU_SCHED_LIB=FILE.so slidedp run JOB --policy NAME\n");
    return 0;
}

const struct sdp_verb sdp_verb_policies = {"policies", "list the scheduling policies", "", run};

#include "base/str.h"
#include "harness/tap.h"
#include "tool/lib/diagnosis.h"
#include <string.h>

TEST(every_reason_has_a_cause_and_a_remedy_of_its_own)
{
    for (int i = REASON_NONE + 1; i < REASON_COUNT; i++) {
        const struct diagnosis *d = diagnose((enum reason)i, NULL);

        if (d->kind == DIAGNOSIS_GENERAL)
            tap_fail(__FILE__, __LINE__, "no row for %s", reason_name((enum reason)i));
        ASSERT(d->cause && d->cause[0] && d->remedy && d->remedy[0]);
        for (int k = REASON_NONE + 1; k < i; k++)
            ASSERT(!str_eq(d->cause, diagnose((enum reason)k, NULL)->cause));
    }
}

TEST(a_request_that_does_not_fit_the_state_is_not_a_failure_of_the_sandbox)
{
    ASSERT_EQ(diagnose(REASON_NOT_FOUND, "Delete")->kind, DIAGNOSIS_ASKED);
    ASSERT_EQ(diagnose(REASON_QEMU_KILLED, NULL)->kind, DIAGNOSIS_CAUSE);
    ASSERT_EQ(diagnose(REASON_GUEST_LOST, NULL)->kind, DIAGNOSIS_AFTERMATH);
}

TEST(without_a_reason_there_is_a_general_answer_by_the_request)
{
    ASSERT_STR(diagnose(REASON_NONE, "StartSandbox")->cause, "the pod's VM could not be started");
    ASSERT_STR(diagnose(REASON_NONE, "Create")->cause, "a container could not be created");
    ASSERT_STR(diagnose(REASON_COUNT, "Frobnicate")->cause, "a request to the shim failed");
    ASSERT_STR(diagnose(REASON_NONE, NULL)->cause, "the shim met an error of its own");
    ASSERT_HAS(diagnose(REASON_NONE, "Start")->remedy, "lcow logs");
}

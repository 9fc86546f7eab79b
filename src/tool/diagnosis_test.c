#include "base/mem.h"
#include "harness/tap.h"
#include "tool/diagnosis.h"

/* Texts as they were seen in journals. */
TEST(each_failure_has_its_stage_and_a_remedy)
{
    static const struct {
        const char *text, *stage;
    } seen[] = {
        { "request failed: create: boot the VM: this machine has no KVM; set 'allow_emulation = "
          "true' in /etc/lcow/lcow.conf",
          "boot: acceleration" },
        { "vm exited: the host's OOM killer ended QEMU", "VM: memory on the host" },
        { "vm exited: QEMU was killed by signal 9", "VM" },
        { "vm exited: the guest kernel rebooted, as it does after a panic; see its console",
          "guest kernel" },
        { "request failed: boot the VM: boot stopped at stage 'kernel': deadline exceeded",
          "boot: guest kernel" },
        { "request failed: boot the VM: boot stopped at stage 'init': deadline", "boot: agent" },
        { "request failed: write /x/scratch.img: No space left on device", "storage" },
        { "request failed: start: executable file `/no` not found in $PATH", "container: start" },
        { "request failed: network of the pod: open netns /run/netns/x: not there", "network" },
        { "request failed: Create: create container c1: mount /no/such/path: open /no/such/path: "
          "No "
          "such file or directory",
          "container: mounts" },
        { "the guest does not take a SIGKILL; its VM is ended now", "guest" },
    };

    for (size_t i = 0; i < ARRAY_LEN(seen); i++) {
        const struct diagnosis *d = diagnose(seen[i].text);

        ASSERT(d);
        ASSERT_STR(d->stage, seen[i].stage);
        ASSERT(d->meaning[0] && d->remedy[0]);
    }
    ASSERT(!diagnose("all is well"));
}

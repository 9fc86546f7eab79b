/* registry_host.c - the real host. */
#include "host/control/registry_host.h"
#include "base/clock_step.h"
#include "host/device/network_host.h"
#include "host/jail/pci.h"

static int find_pci(const char *name, struct pci_function *ret, struct err *err)
{
    return pci_find(PCI_SYS, name, ret, err);
}

const struct registry_host registry_host_linux = {
    .network = &network_host_linux,
    .clock_open = clock_step_open,
    .clock_wait = clock_step_wait,
    .pci_find = find_pci,
    .turn_take = turn_take,
    .turn_give = turn_give,
    .rootfs_open = rootfs_open,
    .pause_open = pause_open,
    .tree_open = tree_open,
    .emptydir_look = emptydir_look,
    .blockimage_open = blockimage_open,
    .blockimage_open_number = blockimage_open_number,
    .scratch_make = scratch_make,
    .scratch_room = scratch_room,
    .scratch_fd = scratch_fd,
    .scratch_remove = scratch_remove,
    .scratch_free = scratch_free,
    .cgroup_make = cgroup_make,
    .cgroup_join = cgroup_join,
    .cgroup_set_cpu = cgroup_set_cpu,
    .cgroup_remove = cgroup_remove,
    .cgroup_free = cgroup_free,
    .oom_score_adj_set = oom_score_adj_set,
    .anchor_spawn = anchor_spawn,
    .anchor_pid = anchor_pid,
    .anchor_wait = anchor_wait,
    .anchor_end = anchor_end,
    .anchor_free = anchor_free,
    .io_open = io_open,
    .io_attach = io_attach,
    .io_wants = io_wants,
    .io_drain = io_drain,
    .io_close_stdin = io_close_stdin,
    .io_close = io_close,
    .io_lost_bytes = io_lost_bytes,
    .io_free = io_free,
};

/* shim.h - the actions of containerd-shim-lcow-v2: start, serve, delete, -info, -v. The caller
 * chooses the backend that runs VMs. docs/reference/containerd-contract.md §2. */
#pragma once
#include "host/control/template_build.h"

struct guest;
struct loop;
struct timeline;
struct vmm;

#define SHIM_NAME "containerd-shim-lcow-v2"
#define SHIM_RUNTIME "io.containerd.lcow.v2"

struct shim_backend {
    struct vmm *(*vmm_new)(struct loop *loop);
    struct guest *(*guest_new)(struct loop *loop, struct vmm *vmm, struct timeline *timeline);
    template_builder *template_build; /* NULL: the backend has no templates */
};

/* argv is NULL-terminated and has the program's name first. Returns the exit status. */
int shim_main(const struct shim_backend *backend, char **argv);

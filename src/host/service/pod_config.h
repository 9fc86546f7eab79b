/* pod_config.h - what CreateSandbox says of a pod, as the little of an OCI spec that
 * control/sandbox.h takes. CRI sends a PodSandboxConfig and puts no config.json into the bundle;
 * others send nothing and do. Never waits. */
#pragma once
#include "base/mem.h"

struct err;
typedef struct CreateSandboxRequest CreateSandboxRequest;

struct pod_config {
    char *json;                             /* NULL: the bundle's config.json, if there is one */
    const char **dns_servers, **dns_search; /* NULL-terminated, or NULL */
    void *config;                           /* what these point into */
};

/* ERR_INVALID: options of a type that nobody sends, or that cannot be read; what a VM cannot be:
 * the host's network, processes or IPC. */
int pod_config_read(const CreateSandboxRequest *req, struct pod_config *ret, struct err *err);
void pod_config_release(struct pod_config *s);
AUTO_VALUE(struct pod_config, pod_config_release);

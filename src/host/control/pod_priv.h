/* pod_priv.h - the inside of a pod, for pod*.c. */
#pragma once
#include "host/config/volumes.h"
#include "host/control/pod.h"
#include "host/device/network.h"

struct pod_volume {
    struct list node;
    char *dir, *key;
    bool local;
};

struct pod_disk {
    struct list node;
    struct volumes_record v;
    int fd;
};

/* Without ids and containers yet. The caller unrefs. */
struct pod *pod_empty(struct registry *r);
struct network_opts pod_network_opts(struct pod *pod);

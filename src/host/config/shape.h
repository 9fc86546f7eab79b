/* shape.h - what annotations make of a VM beyond its size: from texts and numbers to a checked
 * vm_shape. Nothing of a pod reaches QEMU's command line but numbers, and kernel parameters of a
 * list. Pure. */
#pragma once
#include "host/config/sizing.h"
#include "host/vmm/vmm.h"

struct annotations;
struct err;
struct sbuf;

/* For a VM of that size. ret->kernel_args is o's. ERR_INVALID names annotation, value and bounds.
 */
int shape_of(const struct annotations *o, const struct sizing *size, struct vm_shape *ret,
             struct err *err);
/* The list of kernel parameters, as Markdown. */
void shape_print_kernel(struct sbuf *out);

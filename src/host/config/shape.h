/* shape.h - turns annotations about a VM, other than its size, into a checked vm_shape. From a pod,
 * only numbers and kernel parameters of a fixed list reach QEMU's command line. Pure. */
#pragma once
#include "host/config/sizing.h"
#include "host/vmm/vmm.h"

struct annotations;
struct err;
struct sbuf;

/* For a VM of that size. ret->kernel_args borrows from o. ERR_INVALID names annotation, value and
 * bounds. */
int shape_of(const struct annotations *o, const struct sizing *size, struct vm_shape *ret,
             struct err *err);
/* The list of kernel parameters, as Markdown. */
void shape_print_kernel(struct sbuf *out);

/* on_fiber.h - runs a fuzz target's body as a fiber, so that its stack is the one it has in
 * production: a decoder that needs too much of it hits the guard page here first. */
#pragma once
#include "base/fiber.h"
#include "base/loop.h"
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

struct fuzz_input {
    const uint8_t *data;
    size_t size;
    struct loop *loop; /* virtual time */
};

/* fn gets a struct fuzz_input. Whatever it waits for and starts must come to an end. */
static inline int fuzz_on_fiber(void (*fn)(void *input), const uint8_t *data, size_t size)
{
    static struct loop *loop; /* one for all inputs: its stacks are reused */
    struct fuzz_input input = { .data = data, .size = size };

    if (!loop)
        loop = loop_new(&(struct loop_opts){ .virtual_time = true });
    input.loop = loop;
    fiber_go(loop, fn, &input, "fuzz");
    if (loop_run(loop) != 0)
        abort(); /* still parked */
    return 0;
}

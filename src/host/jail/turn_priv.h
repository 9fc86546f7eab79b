/* turn_priv.h - for turn.c and its test only. */
#pragma once
#include "base/clock.h"
#include <stdint.h>

/* The bytes whose locks are the queues: behind all turns. */
#define TURN_QUEUE_BYTE (INT64_C(1) << 30)
#define TURN_QUEUES 4u

/* Whoever waits looks that often whether the first has moved, and goes to the next queue when it
 * has not for so many looks. They are counted, not the time: after the whole host stood still, the
 * first may be the last to run again. */
#define TURN_WATCH_NS (500 * NS_PER_MS)
#define TURN_WATCH_LOOKS 6u

/* events_save.c - TO WRITE */
#include "base/saved.h"
#include "host/control/events.h"

void events_saved(struct saved *s, struct events *q)
{
    saved_fail(s, "a queue of events cannot be saved");
}

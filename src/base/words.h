/* words.h - the words of an error or log message, which are for people only. In a build with
 * -Dscramble=true (build/words, `scripts/check --only words`) each letter of a message's constant
 * part is replaced, while data, codes and reasons stay: a test that passes there depends on no
 * wording. Golden lines (ASSERT_MSG) are not compared there. */
#pragma once

#ifndef WORDS_SCRAMBLED
#define words_of(text) (text)
#else
#include <stdbool.h>
#include <string.h>
/* The text or format in other letters, conversions kept. Valid until the thread's next call. */
static inline const char *words_of(const char *text)
{
    static _Thread_local char room[1024];
    bool conversion = false;
    size_t n = 0;

    for (; *text && n < sizeof(room) - 1; text++) {
        char lower = (char)(*text | 0x20);
        bool letter = lower >= 'a' && lower <= 'z';

        room[n++] = (char)(letter && !conversion ? *text + (lower < 'n' ? 13 : -13) : *text);
        if (*text == '%')
            conversion = !conversion;
        else if (letter && !strchr("lzhj", lower))
            conversion = false;
    }
    room[n] = '\0';
    return room;
}
#endif

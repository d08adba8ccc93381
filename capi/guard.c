#include <string.h>
#include <unistd.h>

#include "_cgo_export.h"
#include "guard.h"

static pid_t home; /* the process that loaded the library */

__attribute__((constructor)) static void remember_home(void) {
    home = getpid();
}

int glue_forked(void) {
    return getpid() != home;
}

size_t glue_text(char *dst, size_t size, const char *text, size_t len) {
    if (len >= size) {
        len = size - 1;
        while (len > 0 && ((unsigned char)text[len] & 0xC0) == 0x80) { /* inside a character */
            len--;
        }
    }
    memcpy(dst, text, len);
    dst[len] = 0;
    return len;
}

int32_t glue_fail(rp_error *err, int32_t code, int32_t retryable, const char *text,
                  size_t len) {
    if (err != NULL) {
        err->code = code;
        err->retryable = retryable;
        glue_text(err->message, sizeof err->message, text, len);
    }
    return code;
}

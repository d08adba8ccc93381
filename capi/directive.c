/*
 * What an agent asks of a worker through its progress record: directives (docs/directives.md).
 * Nothing here enters Go.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "progress.h"
#include "world.h"

/* The bit at `knows` of a worker that lets itself be held. */
#define KNOWS_DIRECTIVES 1

/* The first byte of the agent's word is the phase, that of the answer the worker's state;
 * after it both have the same: kind, whether the node is named, number. */
#define FIRST_BYTE UINT64_C(0xff)

enum { PHASE_HOLD = 1, PHASE_RELEASE = 2 };
enum { STATE_NONE = 0, STATE_HELD = 1, STATE_TAKEN = 2, STATE_SAVED = 3 };

/* A worker whose agent has died continues after this time. */
#define HOLD_LIMIT_NS (10 * INT64_C(1000000000))
#define FIRST_PAUSE_NS 50000
#define LONGEST_PAUSE_NS 2000000

/* The agent's word with what belongs to it. */
typedef struct asked_word {
    uint64_t phase;
    uint64_t about; /* the word without its phase */
    int64_t reach;
} asked_word;

static asked_word read_asked(progress_record *record) {
    asked_word w;
    uint64_t word;
    do { /* the step belongs to the word that stands before and after it */
        word = __atomic_load_n(&record->asked, __ATOMIC_ACQUIRE);
        w.reach = __atomic_load_n(&record->reach, __ATOMIC_ACQUIRE);
    } while (__atomic_load_n(&record->asked, __ATOMIC_ACQUIRE) != word);
    w.phase = word & FIRST_BYTE;
    w.about = word & ~FIRST_BYTE;
    return w;
}

/* A kind that is no directive: leave the world. */
#define KIND_DEPARTURE 255

static int is_departure(asked_word w) {
    return (w.about >> 8 & 0xff) == KIND_DEPARTURE;
}

static uint64_t read_answer(progress_record *record) {
    return __atomic_load_n(&record->answer, __ATOMIC_ACQUIRE);
}

static void write_answer(progress_record *record, uint64_t answer) {
    __atomic_store_n(&record->answer, answer, __ATOMIC_RELEASE);
}

static int64_t monotonic(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Waits while the agent holds its workers; returns what it asks for then. */
static asked_word await_release(progress_record *record) {
    int64_t limit = 0, pause = FIRST_PAUSE_NS;
    uint64_t held = 0;
    asked_word w;
    for (;;) {
        struct timespec time;
        int64_t now;
        w = read_asked(record);
        if (w.phase != PHASE_HOLD) {
            break;
        }
        now = monotonic();
        if (read_answer(record) == w.about || (held != 0 && now >= limit)) {
            w.phase = 0; /* it was held for as long as it lets itself be */
            break;
        }
        if (held == 0) {
            limit = now + HOLD_LIMIT_NS;
        }
        if (held != w.about) {
            held = w.about;
            write_answer(record, held | STATE_HELD);
        }
        time.tv_sec = 0;
        time.tv_nsec = (long)pause;
        nanosleep(&time, NULL);
        pause = 2 * pause < LONGEST_PAUSE_NS ? 2 * pause : LONGEST_PAUSE_NS;
    }
    if (held != 0 && read_answer(record) == (held | STATE_HELD)) {
        write_answer(record, held | STATE_NONE);
    }
    return w;
}

/* The last directive that this process has been given, and its step: it may be saved when
 * the agent asks for the next one already. */
static uint64_t given_about;
static int64_t given_reach;

/* Another process may have taken it; and what another thread saves for the one before is
 * written over this one's answer. */
static int has_taken(progress_record *record, uint64_t about) {
    uint64_t answer = read_answer(record);
    return __atomic_load_n(&given_about, __ATOMIC_ACQUIRE) == about ||
           answer == (about | STATE_TAKEN) || answer == (about | STATE_SAVED);
}

static void take(progress_record *record, asked_word w) {
    __atomic_store_n(&given_about, UINT64_C(0), __ATOMIC_RELEASE);
    __atomic_store_n(&given_reach, w.reach, __ATOMIC_RELEASE);
    __atomic_store_n(&given_about, w.about, __ATOMIC_RELEASE);
    write_answer(record, w.about | STATE_TAKEN);
}

/* Finds the value of a field in the file, which is a flat object that the agent wrote: a
 * quote inside of a text has a backslash before it, so that a name is found as one only. */
static const char *find_field(const char *json, const char *name) {
    char quoted[32];
    const char *found;
    snprintf(quoted, sizeof quoted, "\"%s\": ", name);
    found = strstr(json, quoted);
    return found != NULL ? found + strlen(quoted) : "";
}

/* Appends a character as UTF-8 if it fits with a NUL after it. */
static char *append_character(char *at, const char *end, unsigned long c) {
    char bytes[4];
    size_t n = 0;
    if (c < 0x80) {
        bytes[n++] = (char)c;
    } else if (c < 0x800) {
        bytes[n++] = (char)(0xc0 | c >> 6);
        bytes[n++] = (char)(0x80 | (c & 0x3f));
    } else { /* JSON's escapes of the agent are of one unit */
        bytes[n++] = (char)(0xe0 | c >> 12);
        bytes[n++] = (char)(0x80 | (c >> 6 & 0x3f));
        bytes[n++] = (char)(0x80 | (c & 0x3f));
    }
    if ((size_t)(end - at) <= n) {
        return at;
    }
    memcpy(at, bytes, n);
    return at + n;
}

/* The bytes of a character of UTF-8 from this one on: its first, or a later one. */
static int character_length(unsigned char byte) {
    return byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : byte >= 0xc0 ? 2 : 1;
}

/* A time in seconds, as milliseconds, 0 if it cannot be meant; strtod would want the locale's
 * point. */
static int64_t find_milliseconds(const char *json, const char *name) {
    char *at;
    int64_t ms = strtoll(find_field(json, name), &at, 10);
    if (ms < 0 || ms > INT64_MAX / 1000 - 1) {
        return 0;
    }
    ms *= 1000;
    if (*at == '.') {
        at++;
        for (int digit = 100; digit > 0 && *at >= '0' && *at <= '9'; digit /= 10) {
            ms += (int64_t)(*at++ - '0') * digit;
        }
    }
    return ms;
}

/* Copies the text of a field, cut if it is too long. */
static void copy_text(const char *json, const char *name, char *text, size_t size) {
    const char *from = find_field(json, name);
    char *at = text;
    const char *const end = text + size;
    int cut = 0;
    if (*from != '"') {
        return;
    }
    for (from++; *from != 0 && *from != '"'; from++) {
        if (*from != '\\') {
            cut |= end - at <= character_length((unsigned char)*from);
            if (!cut) {
                *at++ = *from;
            }
            continue;
        }
        from++;
        switch (*from) {
        case 'u': {
            char digits[5] = "";
            size_t n = strspn(from + 1, "0123456789abcdefABCDEF");
            n = n < 4 ? n : 4; /* fewer where the file was cut */
            memcpy(digits, from + 1, n);
            at = append_character(at, end, strtoul(digits, NULL, 16));
            from += n;
            break;
        }
        case 'n':
        case 'r':
        case 't':
        case 'b':
        case 'f':
            at = append_character(at, end, ' ');
            break;
        case 0:
            from--;
            break;
        default:
            at = append_character(at, end, (unsigned char)*from);
        }
    }
    *at = 0;
}

/* Reads what the directive file holds beyond the record. */
static void read_file(rp_directive *directive, uint64_t number) {
    const char *path = getenv("RALLYPOINT_DIRECTIVE_FILE");
    char json[8192];
    ssize_t n, length = 0;
    int fd;
    if (path == NULL || path[0] == 0) {
        return;
    }
    fd = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd < 0) {
        return;
    }
    do {
        n = read(fd, json + length, sizeof json - 1 - (size_t)length);
        length += n > 0 ? n : 0;
    } while (n > 0 || (n < 0 && errno == EINTR));
    close(fd);
    json[length] = 0;
    if (strtoull(find_field(json, "number"), NULL, 10) != number) {
        return;
    }
    directive->deadline_ms = find_milliseconds(json, "deadline");
    directive->target = (int32_t)strtol(find_field(json, "target"), NULL, 10);
    copy_text(json, "id", directive->id, sizeof directive->id);
    copy_text(json, "by", directive->by, sizeof directive->by);
    copy_text(json, "reason", directive->reason, sizeof directive->reason);
}

static void fill_directive(rp_directive *directive, asked_word w) {
    directive->kind = (int32_t)(w.about >> 8 & 0xff);
    directive->named = (int32_t)(w.about >> 16 & 1);
    directive->step = w.reach;
    directive->deadline_ms = 0;
    directive->target = 0;
    directive->id[0] = directive->by[0] = directive->reason[0] = 0;
    read_file(directive, w.about >> 24);
}

/* The slow half of rp_progress_directive: the agent asks for something. */
static __attribute__((noinline)) int32_t report(progress_record *record, int64_t step,
                                                rp_directive *directive) {
    asked_word w = await_release(record);
    if (w.phase == PHASE_RELEASE && !has_taken(record, w.about) && step >= w.reach) {
        if (is_departure(w)) {
            write_answer(record, w.about | STATE_TAKEN);
            world_depart();
            return RP_OK;
        }
        take(record, w);
        fill_directive(directive, w);
    }
    return RP_OK;
}

int32_t rp_progress_directive(int64_t step, rp_directive *directive, rp_error *err) {
    progress_record *record;
    TRY(writable(directive, sizeof *directive, err));
    directive->kind = 0;
    TRY(rp_progress(step, err));
    record = progress_get_target()->record;
    if (__builtin_expect((record->knows & KNOWS_DIRECTIVES) == 0, 0)) {
        /* From here on: a program that calls rp_progress alone is never held. */
        __atomic_fetch_or(&record->knows, KNOWS_DIRECTIVES, __ATOMIC_ACQ_REL);
    }
    if (__builtin_expect(__atomic_load_n(&record->asked, __ATOMIC_ACQUIRE) != 0, 0)) {
        return report(record, step, directive);
    }
    return RP_OK;
}

/* Whether the worker has been given the directive of a word, or no report of it returns one. */
static int may_have(progress_record *record, asked_word w) {
    int64_t step = __atomic_load_n(&record->step, __ATOMIC_ACQUIRE);
    return w.phase == PHASE_RELEASE && !is_departure(w) &&
           (has_taken(record, w.about) || step < 0 ||
            ((record->knows & KNOWS_DIRECTIVES) == 0 && step >= w.reach));
}

int32_t rp_get_directive(rp_directive *directive, rp_error *err) {
    progress_record *record = progress_get_target()->record;
    asked_word w;
    if (err != NULL && err->struct_size < sizeof *err) {
        return RP_ERR_INVALID;
    }
    TRY(writable(directive, sizeof *directive, err));
    directive->kind = 0;
    w = read_asked(record);
    if (may_have(record, w)) {
        if (!has_taken(record, w.about)) {
            take(record, w);
        }
        fill_directive(directive, w);
    }
    return RP_OK;
}

int32_t rp_saved(int64_t step, rp_error *err) {
    progress_record *record = progress_get_target()->record;
    asked_word w;
    if (err != NULL && err->struct_size < sizeof *err) {
        return RP_ERR_INVALID;
    }
    if (step < 0) {
        return fail(err, RP_ERR_INVALID, "a step is negative");
    }
    w = read_asked(record);
    if (!may_have(record, w)) {
        w.about = w.phase != 0 ? __atomic_load_n(&given_about, __ATOMIC_ACQUIRE) : 0;
        w.reach = __atomic_load_n(&given_reach, __ATOMIC_ACQUIRE);
    }
    if (w.about == 0 || step < w.reach) {
        return RP_PENDING;
    }
    write_answer(record, w.about | STATE_SAVED);
    return RP_OK;
}

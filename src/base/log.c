/* log.c: one line, one write(2). The line is built on the stack (longer text is cut and marked), control characters
 * become spaces so that nobody can forge a second line. Sink and level are the program's only process-wide values. */
#include "base/log.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static atomic_int current_level = LOG_INFO;
static pthread_mutex_t sink_lock = PTHREAD_MUTEX_INITIALIZER;
static log_sink_fn current_sink;
static void *current_ctx;

void log_set_level(enum log_level level)
{
    atomic_store_explicit(&current_level, (int)level, memory_order_relaxed);
}

enum log_level log_get_level(void)
{
    return (enum log_level)atomic_load_explicit(&current_level, memory_order_relaxed);
}

void log_set_sink(log_sink_fn sink, void *ctx)
{
    pthread_mutex_lock(&sink_lock);
    current_sink = sink;
    current_ctx = ctx;
    pthread_mutex_unlock(&sink_lock);
}

static void write_stderr(enum log_level level, const char *area, const char *text)
{
    static const char *const names[] = { "error", "warn", "info", "debug" };
    char line[2200];
    time_t now = time(NULL);
    struct tm tm;
    localtime_r(&now, &tm);
    int n = snprintf(line, sizeof line - 1, "%02d:%02d:%02d %s %s: %s", tm.tm_hour, tm.tm_min, tm.tm_sec,
                     names[level], area, text);
    if (n < 0) return;
    size_t len = (size_t)n < sizeof line - 1 ? (size_t)n : sizeof line - 2;
    line[len++] = '\n';
    /* A log line that cannot be written has nowhere else to go. */
    if (write(STDERR_FILENO, line, len) < 0) return;
}

void log_msg(enum log_level level, const char *area, const char *fmt, ...)
{
    if (level < LOG_ERROR) level = LOG_ERROR;
    if (level > LOG_DEBUG) level = LOG_DEBUG;
    if (level > log_get_level()) return;
    char text[2048];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (n < 0) return;
    if ((size_t)n >= sizeof text) { /* cut at a character, say so */
        size_t len = sizeof text - 4;
        while (len > 0 && ((unsigned char)text[len] & 0xC0) == 0x80) len--;
        memcpy(text + len, "...", 4);
    }
    for (char *c = text; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7F) *c = ' ';
    pthread_mutex_lock(&sink_lock);
    log_sink_fn sink = current_sink;
    void *ctx = current_ctx;
    pthread_mutex_unlock(&sink_lock);
    if (sink) sink(ctx, level, area, text);
    else write_stderr(level, area, text);
}

/* log.h: lines to stderr, one write a line. The log sink is the only process-wide value of this program.
 * A line is "HH:MM:SS level area: text". Library users may set their own sink. Threads: any. Never called from a
 * compute kernel. Request text is never logged below debug. */
#ifndef BASE_LOG_H
#define BASE_LOG_H

#include "base/status.h"

enum log_level { LOG_ERROR = 0, LOG_WARN = 1, LOG_INFO = 2, LOG_DEBUG = 3 };

typedef void (*log_sink_fn)(void *ctx, enum log_level level, const char *area, const char *text);

void log_set_level(enum log_level level);
enum log_level log_get_level(void);
void log_set_sink(log_sink_fn sink, void *ctx); /* NULL = stderr */
void log_msg(enum log_level level, const char *area, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

#define LOGE(area, ...) log_msg(LOG_ERROR, area, __VA_ARGS__)
#define LOGW(area, ...) log_msg(LOG_WARN, area, __VA_ARGS__)
#define LOGI(area, ...) log_msg(LOG_INFO, area, __VA_ARGS__)
#define LOGD(area, ...) do { if (log_get_level() >= LOG_DEBUG) log_msg(LOG_DEBUG, area, __VA_ARGS__); } while (0)

#endif

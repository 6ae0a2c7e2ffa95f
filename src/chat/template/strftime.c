/* strftime.c: datetime.strftime in the C locale, from Unix seconds. The moment is broken down as UTC: the caller adds
 * the offset of the zone it wants, so that a render depends on its input alone. %Z and %z are empty, as for a naive
 * datetime. Unknown directives stay as they are. */
#include <stdio.h>
#include <string.h>

#include "chat/template/tmpl_rt.h"

static const char *const days[] = { "Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday" };
static const char *const months[] = { "January", "February", "March", "April", "May", "June", "July", "August",
                                      "September", "October", "November", "December" };

struct moment { int64_t year, unix_s; int month, day, hour, min, sec, wday, yday; };

static bool is_leap(int64_t y) { return (y % 4 == 0 && y % 100 != 0) || y % 400 == 0; }

/* Civil date of a day number (days since 1970-01-01), proleptic Gregorian. */
static struct moment moment_of(int64_t s)
{
    static const int cumulative[] = { 0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334 };
    struct moment m = { .unix_s = s };
    int64_t day = s / 86400, rest = s % 86400;
    if (rest < 0) { rest += 86400; day--; }
    m.hour = (int)(rest / 3600);
    m.min = (int)(rest / 60 % 60);
    m.sec = (int)(rest % 60);
    m.wday = (int)(((day + 4) % 7 + 7) % 7);
    int64_t z = day + 719468, era = (z >= 0 ? z : z - 146096) / 146097, doe = z - era * 146097;
    int64_t yoe = (doe - doe / 1460 + doe / 36524 - doe / 146096) / 365, doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    int64_t mp = (5 * doy + 2) / 153;
    m.day = (int)(doy - (153 * mp + 2) / 5 + 1);
    m.month = (int)(mp < 10 ? mp + 3 : mp - 9);
    m.year = yoe + era * 400 + (m.month <= 2);
    m.yday = cumulative[m.month - 1] + m.day + (m.month > 2 && is_leap(m.year));
    return m;
}

/* ISO 8601 year and week. */
static void iso_week(const struct moment *m, int64_t *year, int *week)
{
    int wday = m->wday ? m->wday : 7, w = (m->yday - wday + 10) / 7;
    *year = m->year;
    if (w < 1) {
        int64_t y = --*year;
        int jan1 = ((wday - m->yday) % 7 + 7 + 7) % 7; /* weekday (Monday 0) of Jan 1 of m->year */
        int last = (jan1 + 6) % 7;                     /* of Dec 31 of the year before */
        w = last == 3 || (last == 4 && is_leap(y)) ? 53 : 52;
    } else if (w == 53) {
        int days_in_year = 365 + is_leap(m->year);
        if (days_in_year - m->yday < 4 - wday) { w = 1; ++*year; }
    }
    *week = w;
}

static void number(char *out, int64_t v, int width, char pad, char flag)
{
    if (flag == '-') snprintf(out, 64, "%lld", (long long)v);
    else if (flag == '_' || (pad == ' ' && flag != '0')) snprintf(out, 64, "%*lld", width, (long long)v);
    else snprintf(out, 64, "%0*lld", width, (long long)v);
}

static bool directive(const struct moment *m, char d, char flag, char out[160])
{
    int h12 = m->hour % 12 ? m->hour % 12 : 12, week;
    int64_t year;
    iso_week(m, &year, &week);
    switch (d) {
    case 'a': snprintf(out, 64, "%.3s", days[m->wday]); break;
    case 'A': strcpy(out, days[m->wday]); break;
    case 'b': case 'h': snprintf(out, 64, "%.3s", months[m->month - 1]); break;
    case 'B': strcpy(out, months[m->month - 1]); break;
    case 'd': number(out, m->day, 2, '0', flag); break;
    case 'e': number(out, m->day, 2, ' ', flag); break;
    case 'H': number(out, m->hour, 2, '0', flag); break;
    case 'k': number(out, m->hour, 2, ' ', flag); break;
    case 'I': number(out, h12, 2, '0', flag); break;
    case 'l': number(out, h12, 2, ' ', flag); break;
    case 'j': number(out, m->yday, 3, '0', flag); break;
    case 'm': number(out, m->month, 2, '0', flag); break;
    case 'M': number(out, m->min, 2, '0', flag); break;
    case 'S': number(out, m->sec, 2, '0', flag); break;
    case 'f': strcpy(out, "000000"); break;
    case 's': snprintf(out, 64, "%lld", (long long)m->unix_s); break;
    case 'p': strcpy(out, m->hour < 12 ? "AM" : "PM"); break;
    case 'P': strcpy(out, m->hour < 12 ? "am" : "pm"); break;
    case 'u': number(out, m->wday ? m->wday : 7, 1, '0', flag); break;
    case 'w': number(out, m->wday, 1, '0', flag); break;
    case 'U': number(out, (m->yday + 6 - m->wday) / 7, 2, '0', flag); break;
    case 'W': number(out, (m->yday + 6 - (m->wday + 6) % 7) / 7, 2, '0', flag); break;
    case 'V': number(out, week, 2, '0', flag); break;
    case 'G': snprintf(out, 64, "%lld", (long long)year); break;
    case 'g': number(out, year % 100, 2, '0', flag); break;
    case 'y': number(out, m->year % 100, 2, '0', flag); break;
    case 'Y': snprintf(out, 64, "%lld", (long long)m->year); break;
    case 'C': number(out, m->year / 100, 2, '0', flag); break;
    case 'D': case 'x': snprintf(out, 160, "%02d/%02d/%02d", m->month, m->day, (int)(m->year % 100)); break;
    case 'F': snprintf(out, 160, "%lld-%02d-%02d", (long long)m->year, m->month, m->day); break;
    case 'R': snprintf(out, 160, "%02d:%02d", m->hour, m->min); break;
    case 'T': case 'X': snprintf(out, 160, "%02d:%02d:%02d", m->hour, m->min, m->sec); break;
    case 'r': snprintf(out, 160, "%02d:%02d:%02d %s", h12, m->min, m->sec, m->hour < 12 ? "AM" : "PM"); break;
    case 'c': snprintf(out, 160, "%.3s %.3s %2d %02d:%02d:%02d %lld", days[m->wday], months[m->month - 1], m->day,
                       m->hour, m->min, m->sec, (long long)m->year); break;
    case 'n': strcpy(out, "\n"); break;
    case 't': strcpy(out, "\t"); break;
    case 'z': case 'Z': out[0] = 0; break;
    case '%': strcpy(out, "%"); break;
    default: return false;
    }
    if (flag == '^')
        for (char *p = out; *p; p++) if (*p >= 'a' && *p <= 'z') *p = (char)(*p - 32);
    return true;
}

struct tv strftime_value(struct render *r, struct tv fmt, int64_t unix_s)
{
    struct tsb b;
    tsb_init(&b, r);
    if (unix_s < -62135596800 || unix_s > 253402300799) unix_s = 0; /* years 1 to 9999, as datetime */
    struct moment m = moment_of(unix_s);
    const char *p = fmt.u.s->ptr, *end = p + fmt.u.s->len;
    while (p < end && render_step(r, 1)) {
        char out[160];
        const char *d = p + 1;
        char flag = 0;
        if (*p == '%' && d < end && strchr("-_0^", *d) && *d) flag = *d++;
        if (*p == '%' && d < end && directive(&m, *d, flag, out)) {
            tsb_lit(&b, out);
            p = d + 1;
        } else {
            tsb_add(&b, p, 1, ORG_TEMPLATE);
            p++;
        }
    }
    return tsb_take(&b);
}

/* schema_format.c: the values of `format` that are enforced, each as an expression over plain characters.
 *
 * They are written as regular expressions in one table. Dates know the lengths of months and the leap years; times take
 * the second 60 only where RFC 3339 could (23:59:60Z); names of hosts have labels of at most 63 and, because a count
 * over all labels would need a counter beside, at most 8 labels; those in an email may be of any length. `regex`, `uri-template` and the pointers are
 * annotations.
 */
#include <string.h>

#include "grammar/schema_int.h"

#define YEAR "[0-9]{4}"
#define LEAP "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)"
#define DATE "(?:" YEAR "-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)" \
             "|02-(?:0[1-9]|1[0-9]|2[0-8]))|" LEAP "-02-29)"
#define CLOCK "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]{1,9})?"
#define ZONE "(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
#define OCTET "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
#define IPV4 OCTET "(?:\\." OCTET "){3}"
#define H16 "[0-9a-fA-F]{1,4}"
#define LS32 "(?:" H16 ":" H16 "|" IPV4 ")"
#define LABEL "[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
#define HOST LABEL "(?:\\." LABEL "){0,7}"
#define FREE_HOST "[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?(?:\\.[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?)*"
#define ATOM "[a-zA-Z0-9!#$%&'*+/=?^_`{|}~-]+"
#define PCT "%[0-9A-Fa-f]{2}"
#define PCHAR "(?:[a-zA-Z0-9._~!$&'()*+,;=:@-]|" PCT ")"
#define AUTHORITY "(?:(?:[a-zA-Z0-9._~!$&'()*+,;=:-]|" PCT ")*@)?(?:[a-zA-Z0-9._~!$&'()*+,;=-]|" PCT ")*(?::[0-9]{0,5})?"
#define TAIL "(?:\\?(?:" PCHAR "|[/?])*)?(?:#(?:" PCHAR "|[/?])*)?"

static const struct { const char *name, *pattern; } formats[] = {
    { "date-time", DATE "[Tt ]" CLOCK ZONE },
    { "date", DATE },
    { "time", CLOCK ZONE },
    { "duration", "P(?:[0-9]{1,9}W|(?:[0-9]{1,9}Y(?:[0-9]{1,9}M(?:[0-9]{1,9}D)?)?|[0-9]{1,9}M(?:[0-9]{1,9}D)?|[0-9]{1,9}D)"
                  "(?:T(?:[0-9]{1,9}H(?:[0-9]{1,9}M(?:[0-9]{1,9}S)?)?|[0-9]{1,9}M(?:[0-9]{1,9}S)?|[0-9]{1,9}S))?"
                  "|T(?:[0-9]{1,9}H(?:[0-9]{1,9}M(?:[0-9]{1,9}S)?)?|[0-9]{1,9}M(?:[0-9]{1,9}S)?|[0-9]{1,9}S))" },
    { "uuid", "[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}" },
    { "ipv4", IPV4 },
    { "ipv6", "(?:" H16 ":){6}" LS32 "|::(?:" H16 ":){5}" LS32 "|(?:" H16 ")?::(?:" H16 ":){4}" LS32
              "|(?:(?:" H16 ":){0,1}" H16 ")?::(?:" H16 ":){3}" LS32 "|(?:(?:" H16 ":){0,2}" H16 ")?::(?:" H16 ":){2}" LS32
              "|(?:(?:" H16 ":){0,3}" H16 ")?::" H16 ":" LS32 "|(?:(?:" H16 ":){0,4}" H16 ")?::" LS32
              "|(?:(?:" H16 ":){0,5}" H16 ")?::" H16 "|(?:(?:" H16 ":){0,6}" H16 ")?::" },
    { "email", ATOM "(?:\\." ATOM ")*@" FREE_HOST },
    { "hostname", HOST },
    { "uri", "[a-zA-Z][a-zA-Z0-9+.-]*:(?://" AUTHORITY "(?:/" PCHAR "*)*|/(?:" PCHAR "+(?:/" PCHAR "*)*)?|" PCHAR "+(?:/" PCHAR
             "*)*)" TAIL },
    { "uri-reference", "(?:(?:[a-zA-Z][a-zA-Z0-9+.-]*:)?(?://" AUTHORITY "(?:/" PCHAR "*)*|/(?:" PCHAR "+(?:/" PCHAR "*)*)?))" TAIL
                       "|(?:[a-zA-Z0-9._~!$&'()*+,;=@-]|" PCT ")+(?:/" PCHAR "*)*" TAIL },
};
enum { N_FORMATS = sizeof formats / sizeof *formats };

const char *const *grammar_formats(void)
{
    static const char *names[N_FORMATS + 1];
    for (size_t i = 0; i < N_FORMATS; i++) names[i] = formats[i].name;
    return names;
}

const char *format_pattern(const char *name)
{
    for (size_t i = 0; i < N_FORMATS; i++)
        if (!strcmp(formats[i].name, name)) return formats[i].pattern;
    return NULL;
}

struct expr *format_expr(struct build *b, const char *name)
{
    const char *pattern = format_pattern(name);
    /* their characters need no escape in JSON, so one form serves both */
    return pattern ? regex_parse(b, pattern, strlen(pattern), FORM_JSON, false, name) : NULL;
}

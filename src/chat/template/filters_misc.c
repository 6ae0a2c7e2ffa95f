/* filters_misc.c: numbers, defaults and attributes; the search in the filter tables. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "chat/template/tmpl_rt.h"

#define F(f) static struct tv f(struct render *r, struct tv self, struct tv *arg)

F(f_default)
{
    struct tv dflt = arg[0].type == TV_ABSENT ? tv_str(r, "", 0, ORG_TEMPLATE) : arg[0];
    if (self.type == TV_UNDEF) return dflt;
    return arg_bool(r, arg[1], false) && !tv_truth(r, self) ? dflt : self;
}

F(f_abs)
{
    (void)arg;
    if (tv_is_int(self)) return tv_negate(r, self, tv_as_int(self) < 0);
    if (self.type == TV_FLOAT) return tv_float(fabs(self.u.f));
    if (self.type == TV_BIG) return tv_negate(r, self, self.u.big[0] == '-');
    return render_type_error(r, "bad operand type for abs(): '%s'", tv_type_name(self));
}

static struct tv undefined_error(struct render *r, struct tv v)
{
    return render_fail(r, MB_INVALID, "%s", v.u.hint ? v.u.hint : "a value is undefined");
}

static struct tv float_to_int(struct render *r, double d)
{
    if (fabs(d) < 9.2e18) return tv_int((int64_t)d);
    char *text = arena_printf(r->a, "%.0f", d);
    if (!text) return render_fail(r, MB_NO_MEMORY, "no memory");
    return (struct tv){ .type = TV_BIG, .u.big = text };
}

F(f_int)
{
    struct tv dflt = arg[0].type == TV_ABSENT ? tv_int(0) : arg[0], v = tv_none();
    int64_t base = arg_int(r, arg[1], 10);
    double d;
    bool ok = false;
    if (self.type == TV_UNDEF) return undefined_error(r, self);
    if (tv_is_int(self)) v = tv_int(tv_as_int(self));
    else if (self.type == TV_BIG) v = self;
    else if (self.type == TV_FLOAT && isinf(self.u.f))
        return render_type_error(r, "cannot convert float infinity to integer");
    else if (self.type == TV_FLOAT && !isnan(self.u.f)) v = float_to_int(r, self.u.f);
    else if (tv_is_str(self)) {
        if (base != 0 && (base < 2 || base > 36)) ok = false;
        else v = tv_int_parse(r, self.u.s->ptr, self.u.s->len, (int)base, &ok);
        if (!ok && tv_float_parse(self.u.s->ptr, self.u.s->len, &d) && isfinite(d)) v = float_to_int(r, d);
    }
    if (v.type == TV_NONE) return dflt;
    v.org = self.org;
    return v;
}

F(f_float)
{
    double d = 0;
    struct tv v = arg[0].type == TV_ABSENT ? tv_float(0) : arg[0];
    if (self.type == TV_UNDEF) return undefined_error(r, self);
    if (self.type == TV_FLOAT) return self;
    if (tv_is_int(self)) v = tv_float((double)tv_as_int(self));
    else if (self.type == TV_BIG) v = tv_float(strtod(self.u.big, NULL));
    else if (tv_is_str(self) && tv_float_parse(self.u.s->ptr, self.u.s->len, &d)) v = tv_float(d);
    v.org = self.org;
    return v;
}

/* Decimal rounding of the exact binary value, half to even: what printf does. */
static double round_decimal(double d, int64_t digits)
{
    char text[400];
    if (!isfinite(d) || digits > 300) return d;
    if (digits < 0) {
        double p = pow(10, (double)-digits);
        return isfinite(p) ? rint(d / p) * p : 0;
    }
    snprintf(text, sizeof text, "%.*f", (int)digits > 60 ? 60 : (int)digits, d);
    return strtod(text, NULL);
}

static struct tv round_int(struct render *r, int64_t v, int64_t digits)
{
    (void)r;
    if (digits >= 0) return tv_int(v);
    if (digits < -18) return tv_int(0);
    int64_t p = 1;
    for (int64_t i = 0; i < -digits; i++) p *= 10;
    int64_t q = v / p, rest = v % p;
    if (rest < 0) { rest += p; q--; }
    if (rest > p - rest || (rest == p - rest && (q & 1))) q++;
    return tv_int(q * p);
}

F(f_round)
{
    bool ceiling = tv_str_is(arg[1], "ceil"), flooring = tv_str_is(arg[1], "floor");
    int64_t digits = arg_int(r, arg[0], 0);
    if (!ceiling && !flooring && arg[1].type != TV_ABSENT && !tv_str_is(arg[1], "common"))
        return render_type_error(r, "method must be common, ceil or floor");
    if (self.type == TV_UNDEF) return undefined_error(r, self);
    if (!tv_is_int(self) && self.type != TV_FLOAT)
        return render_type_error(r, "type %s doesn't define __round__ method", tv_type_name(self));
    if (!ceiling && !flooring)
        return tv_is_int(self) ? round_int(r, tv_as_int(self), digits) : tv_float(round_decimal(self.u.f, digits));
    struct tv scale = tv_binary(r, T_POW, tv_int(10), tv_int(digits)), v = tv_binary(r, T_MUL, self, scale);
    if (r->status) return tv_undef(NULL);
    double d = v.type == TV_FLOAT ? v.u.f : (double)tv_as_int(v);
    if (!isfinite(d)) return render_type_error(r, "cannot convert float %s to integer", isnan(d) ? "NaN" : "infinity");
    return tv_binary(r, T_DIV, float_to_int(r, ceiling ? ceil(d) : floor(d)), scale);
}

F(f_attr)
{
    struct tv name = arg_str(r, arg[0], "attr's name"), out;
    if (r->status) return tv_undef(NULL);
    struct str s = { name.u.s->ptr, name.u.s->len };
    if (self.type == TV_UNDEF) return undefined_error(r, self);
    if (self.type != TV_DICT) return tv_getattr(r, self, s);
    /* No entries: attributes of the dict itself only. */
    struct tv empty = tv_dict_new(r, self.org);
    out = r->status ? tv_undef(NULL) : tv_getattr(r, empty, s);
    if (out.type == TV_METHOD) out.u.method->self = self;
    return out;
}

F(f_random)
{
    (void)arg;
    (void)self;
    return render_type_error(r, "the filter random is not supported: a prompt must come out the same each time");
}

static const struct filter_row rows[] = {
    { { "abs", "", f_abs, NULL } },
    { { "attr", "*name", f_attr, NULL } },
    { { "d", "default_value boolean", f_default, NULL } },
    { { "default", "default_value boolean", f_default, NULL } },
    { { "float", "default", f_float, NULL } },
    { { "int", "default base", f_int, NULL } },
    { { "random", "", f_random, NULL } },
    { { "round", "precision method", f_round, NULL } },
    { { NULL, NULL, NULL, NULL } },
};

const struct filter_row *filter_find(struct str name)
{
    static const struct filter_row *const tables[] = { filters_text, filters_seq, rows };
    for (int t = 0; t < 3; t++)
        for (const struct filter_row *f = tables[t]; f->f.name; f++)
            if (str_eq(name, str_of(f->f.name))) return f;
    return NULL;
}

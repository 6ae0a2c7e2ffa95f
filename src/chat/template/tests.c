/* tests.c: what stands after "is". */
#include <string.h>

#include "chat/template/tmpl_rt.h"

#define T(f) static struct tv f(struct render *r, struct tv self, struct tv *arg)

static struct tv mod(struct render *r, struct tv v, struct tv by, int64_t want)
{
    return tv_bool(tv_eq(r, tv_binary(r, T_MOD, v, by), tv_int(want)));
}

T(t_odd) { (void)arg; return mod(r, self, tv_int(2), 1); }
T(t_even) { (void)arg; return mod(r, self, tv_int(2), 0); }
T(t_divisibleby) { return mod(r, self, arg[0], 0); }
T(t_defined) { (void)r; (void)arg; return tv_bool(self.type != TV_UNDEF); }
T(t_undefined) { (void)r; (void)arg; return tv_bool(self.type == TV_UNDEF); }
T(t_none) { (void)r; (void)arg; return tv_bool(self.type == TV_NONE); }
T(t_boolean) { (void)r; (void)arg; return tv_bool(self.type == TV_BOOL); }
T(t_true) { (void)r; (void)arg; return tv_bool(self.type == TV_BOOL && self.u.b); }
T(t_false) { (void)r; (void)arg; return tv_bool(self.type == TV_BOOL && !self.u.b); }
T(t_integer) { (void)r; (void)arg; return tv_bool(self.type == TV_INT || self.type == TV_BIG); }
T(t_float) { (void)r; (void)arg; return tv_bool(self.type == TV_FLOAT); }
T(t_number) { (void)r; (void)arg; return tv_bool(tv_is_number(self)); }
T(t_string) { (void)r; (void)arg; return tv_bool(tv_is_str(self)); }
T(t_mapping) { (void)r; (void)arg; return tv_bool(self.type == TV_DICT); }
T(t_iterable) { (void)r; (void)arg; return tv_bool(tv_is_iterable(self)); }
T(t_escaped) { (void)r; (void)arg; return tv_bool(tv_is_str(self) && self.u.s->safe); }
T(t_sameas) { (void)r; return tv_bool(tv_same(self, arg[0])); }
T(t_in) { return tv_bool(tv_contains(r, arg[0], self)); }
T(t_eq) { return tv_bool(tv_eq(r, self, arg[0])); }
T(t_ne) { return tv_bool(!tv_eq(r, self, arg[0])); }
T(t_lt) { return tv_bool(tv_order(r, T_LT, self, arg[0])); }
T(t_le) { return tv_bool(tv_order(r, T_LE, self, arg[0])); }
T(t_gt) { return tv_bool(tv_order(r, T_GT, self, arg[0])); }
T(t_ge) { return tv_bool(tv_order(r, T_GE, self, arg[0])); }

T(t_sequence)
{
    (void)r;
    (void)arg;
    return tv_bool(tv_is_str(self) || tv_is_seq(self) || self.type == TV_DICT || self.type == TV_RANGE ||
                   self.type == TV_UNDEF);
}

T(t_callable)
{
    (void)r;
    (void)arg;
    /* Undefined defines __call__, loops are called to recurse. */
    return tv_bool(self.type == TV_FUNC || self.type == TV_METHOD || self.type == TV_MACRO || self.type == TV_LOOP ||
                   self.type == TV_JOINER || self.type == TV_UNDEF);
}

static struct tv is_case(struct render *r, struct tv v, bool upper)
{
    struct func_call none = { 0 };
    struct tv s = tv_to_str(r, v);
    if (r->status) return tv_undef(NULL);
    return func_call_row(r, method_find(s, upper ? STR_LIT("isupper") : STR_LIT("islower")), s, &none);
}

T(t_lower) { (void)arg; return is_case(r, self, false); }
T(t_upper) { (void)arg; return is_case(r, self, true); }

T(t_filter)
{
    (void)arg;
    if (!tv_hashable(self)) return render_type_error(r, "unhashable type: '%s'", tv_type_name(self));
    return tv_bool(tv_is_str(self) && filter_find((struct str){ self.u.s->ptr, self.u.s->len }));
}

T(t_test)
{
    (void)arg;
    if (!tv_hashable(self)) return render_type_error(r, "unhashable type: '%s'", tv_type_name(self));
    return tv_bool(tv_is_str(self) && test_find((struct str){ self.u.s->ptr, self.u.s->len }));
}

static const struct test_row rows[] = {
    { { "odd", "", t_odd, NULL } }, { { "even", "", t_even, NULL } },
    { { "divisibleby", "*num", t_divisibleby, NULL } },
    { { "defined", "", t_defined, NULL } }, { { "undefined", "", t_undefined, NULL } },
    { { "filter", "", t_filter, NULL } }, { { "test", "", t_test, NULL } },
    { { "none", "", t_none, NULL } }, { { "boolean", "", t_boolean, NULL } },
    { { "false", "", t_false, NULL } }, { { "true", "", t_true, NULL } },
    { { "integer", "", t_integer, NULL } }, { { "float", "", t_float, NULL } },
    { { "lower", "", t_lower, NULL } }, { { "upper", "", t_upper, NULL } },
    { { "string", "", t_string, NULL } }, { { "mapping", "", t_mapping, NULL } },
    { { "number", "", t_number, NULL } }, { { "sequence", "", t_sequence, NULL } },
    { { "iterable", "", t_iterable, NULL } }, { { "callable", "", t_callable, NULL } },
    { { "sameas", "*other", t_sameas, NULL } }, { { "escaped", "", t_escaped, NULL } },
    { { "in", "*seq", t_in, NULL } },
    { { "==", "*other", t_eq, NULL } }, { { "eq", "*other", t_eq, NULL } }, { { "equalto", "*other", t_eq, NULL } },
    { { "!=", "*other", t_ne, NULL } }, { { "ne", "*other", t_ne, NULL } },
    { { ">", "*other", t_gt, NULL } }, { { "gt", "*other", t_gt, NULL } }, { { "greaterthan", "*other", t_gt, NULL } },
    { { "ge", "*other", t_ge, NULL } }, { { ">=", "*other", t_ge, NULL } },
    { { "<", "*other", t_lt, NULL } }, { { "lt", "*other", t_lt, NULL } }, { { "lessthan", "*other", t_lt, NULL } },
    { { "<=", "*other", t_le, NULL } }, { { "le", "*other", t_le, NULL } },
    { { NULL, NULL, NULL, NULL } },
};

const struct test_row *test_find(struct str name)
{
    for (const struct test_row *t = rows; t->f.name; t++)
        if (str_eq(name, str_of(t->f.name))) return t;
    return NULL;
}

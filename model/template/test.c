/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Tests: value is name(argument). Each gives true or false. */
#include "model/template/template_internal.h"

#define TEST(name, condition)                                                            \
    static bool test_##name(struct sdpi_render *r, const struct sdpi_node *at,           \
                            const struct sdpi_value *self, const struct sdpi_args *args, \
                            struct sdpi_value *out)                                      \
    {                                                                                    \
        if (!sdpi_take_args(r, at, args, NULL, 0, NULL))                                 \
            return false;                                                                \
        *out = sdpi_bool(condition);                                                     \
        return true;                                                                     \
    }

TEST(defined, self->kind != SDPI_UNDEFINED)
TEST(undefined, self->kind == SDPI_UNDEFINED)
TEST(none, self->kind == SDPI_NONE)
TEST(string, self->kind == SDPI_STRING)
TEST(mapping, self->kind == SDPI_DICT)
TEST(sequence, self->kind == SDPI_STRING || self->kind == SDPI_DICT ||
                   self->kind == SDPI_UNDEFINED || sdpi_is_list(self))
TEST(number, sdpi_is_number(self))
TEST(integer, self->kind == SDPI_INT)
TEST(float, self->kind == SDPI_REAL)
TEST(boolean, self->kind == SDPI_BOOL)
TEST(true, self->kind == SDPI_BOOL && self->u.truth)
TEST(false, self->kind == SDPI_BOOL && !self->u.truth)
TEST(callable, self->kind == SDPI_MACRO || self->kind == SDPI_METHOD ||
                   self->kind == SDPI_GLOBAL || self->kind == SDPI_UNDEFINED)

static bool remainder_is(struct sdpi_render *r, const struct sdpi_node *at,
                         const struct sdpi_value *self, int64_t divisor, int64_t wanted,
                         struct sdpi_value *out)
{
    struct sdpi_value by = sdpi_int(divisor), rest, other = sdpi_int(wanted);
    bool same = false;

    if (self->kind == SDPI_STRING)
        return sdpi_fail(r, at, "\"%.*s\" wants a number, not str", (int)at->length,
                         at->text);
    if (!sdpi_binary(r, at, SDPI_MODULO, self, &by, &rest) ||
        !sdpi_equal(r, &rest, &other, &same))
        return false;
    *out = sdpi_bool(same);
    return true;
}

static bool test_odd(struct sdpi_render *r, const struct sdpi_node *at,
                     const struct sdpi_value *self, const struct sdpi_args *args,
                     struct sdpi_value *out)
{
    return sdpi_take_args(r, at, args, NULL, 0, NULL) &&
           remainder_is(r, at, self, 2, 1, out);
}

static bool test_even(struct sdpi_render *r, const struct sdpi_node *at,
                      const struct sdpi_value *self, const struct sdpi_args *args,
                      struct sdpi_value *out)
{
    return sdpi_take_args(r, at, args, NULL, 0, NULL) &&
           remainder_is(r, at, self, 2, 0, out);
}

static bool one_argument(struct sdpi_render *r, const struct sdpi_node *at,
                         const struct sdpi_args *args)
{
    return (args->count == 1 && args->keyword_count == 0) ||
           sdpi_fail(r, at, "the test \"%.*s\" takes one argument", (int)at->length,
                     at->text);
}

static bool test_divisibleby(struct sdpi_render *r, const struct sdpi_node *at,
                             const struct sdpi_value *self, const struct sdpi_args *args,
                             struct sdpi_value *out)
{
    if (!one_argument(r, at, args))
        return false;
    if (args->items[0].kind != SDPI_INT)
        return sdpi_fail(r, at, "divisibleby wants an integer");
    return remainder_is(r, at, self, args->items[0].u.integer, 0, out);
}

/* Jinja iterates to find out. */
static bool test_iterable(struct sdpi_render *r, const struct sdpi_node *at,
                          const struct sdpi_value *self, const struct sdpi_args *args,
                          struct sdpi_value *out)
{
    if (!sdpi_take_args(r, at, args, NULL, 0, NULL))
        return false;
    *out = sdpi_bool(self->kind == SDPI_STRING || self->kind == SDPI_DICT ||
                     self->kind == SDPI_UNDEFINED || sdpi_is_list(self) ||
                     self->kind == SDPI_LOOP);
    return true;
}

static bool by_order(struct sdpi_render *r, const struct sdpi_node *at,
                     const struct sdpi_value *self, const struct sdpi_args *args,
                     int *sign)
{
    return one_argument(r, at, args) && sdpi_order(r, self, &args->items[0], sign);
}

#define ORDER(name, condition)                                                           \
    static bool test_##name(struct sdpi_render *r, const struct sdpi_node *at,           \
                            const struct sdpi_value *self, const struct sdpi_args *args, \
                            struct sdpi_value *out)                                      \
    {                                                                                    \
        int sign = 0;                                                                    \
                                                                                         \
        if (!by_order(r, at, self, args, &sign))                                         \
            return false;                                                                \
        *out = sdpi_bool(condition);                                                     \
        return true;                                                                     \
    }

ORDER(lt, sign < 0)
ORDER(le, sign <= 0)
ORDER(gt, sign > 0)
ORDER(ge, sign >= 0)

static bool equals(struct sdpi_render *r, const struct sdpi_node *at,
                   const struct sdpi_value *self, const struct sdpi_args *args,
                   bool wanted, struct sdpi_value *out)
{
    bool same = false;

    if (!one_argument(r, at, args) || !sdpi_equal(r, self, &args->items[0], &same))
        return false;
    *out = sdpi_bool(same == wanted);
    return true;
}

static bool test_eq(struct sdpi_render *r, const struct sdpi_node *at,
                    const struct sdpi_value *self, const struct sdpi_args *args,
                    struct sdpi_value *out)
{
    return equals(r, at, self, args, true, out);
}

static bool test_ne(struct sdpi_render *r, const struct sdpi_node *at,
                    const struct sdpi_value *self, const struct sdpi_args *args,
                    struct sdpi_value *out)
{
    return equals(r, at, self, args, false, out);
}

static bool test_in(struct sdpi_render *r, const struct sdpi_node *at,
                    const struct sdpi_value *self, const struct sdpi_args *args,
                    struct sdpi_value *out)
{
    bool found = false;

    if (!one_argument(r, at, args) || !sdpi_contains(r, &args->items[0], self, &found))
        return false;
    *out = sdpi_bool(found);
    return true;
}

static const struct sdpi_filter tests[] = {
    {"defined", test_defined},
    {"undefined", test_undefined},
    {"none", test_none},
    {"string", test_string},
    {"mapping", test_mapping},
    {"sequence", test_sequence},
    {"iterable", test_iterable},
    {"number", test_number},
    {"integer", test_integer},
    {"float", test_float},
    {"boolean", test_boolean},
    {"true", test_true},
    {"false", test_false},
    {"callable", test_callable},
    {"odd", test_odd},
    {"even", test_even},
    {"divisibleby", test_divisibleby},
    {"eq", test_eq},
    {"equalto", test_eq},
    {"ne", test_ne},
    {"lt", test_lt},
    {"lessthan", test_lt},
    {"le", test_le},
    {"gt", test_gt},
    {"greaterthan", test_gt},
    {"ge", test_ge},
    {"in", test_in},
    {"==", test_eq},
    {"!=", test_ne},
    {"<", test_lt},
    {"<=", test_le},
    {">", test_gt},
    {">=", test_ge},
};

const struct sdpi_filter *sdpi_find_test(const char *name, size_t length)
{
    for (size_t i = 0; i < SDP_COUNT_OF(tests); i++)
        if (strlen(tests[i].name) == length && memcmp(tests[i].name, name, length) == 0)
            return &tests[i];
    return NULL;
}

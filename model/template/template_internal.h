/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What the files of the template renderer share: lex.c makes tokens, parse.c and
 * parse_expression.c a tree of nodes, render.c runs statements, eval.c expressions;
 * filter.c, test.c, method.c hold what templates can call; value.c, text.c, write.c are
 * about values, UTF-8, and how values are written out. All memory of a template, and of a
 * rendering, comes from an arena that is freed at once. */
#ifndef SDP_MODEL_TEMPLATE_INTERNAL_H
#define SDP_MODEL_TEMPLATE_INTERNAL_H

#include "model/template/template.h"

#define SDPI_MAX_TEMPLATE ((size_t)1 << 20) /* bytes of a template */
#define SDPI_MAX_PARSE    200               /* nesting of expressions and blocks */
#define SDPI_MAX_DEPTH    1000              /* nesting while rendering */
#define SDPI_MAX_VALUE    2100              /* nesting of lists; jansson reads 2048 */
#ifdef SDP_FUZZ /* inputs that reach a limit must do so soon */
#define SDPI_MAX_STEPS  ((size_t)100000)
#define SDPI_MAX_ARENA  ((size_t)16 << 20)
#define SDPI_MAX_OUTPUT ((size_t)1 << 20)
#else
#define SDPI_MAX_STEPS  ((size_t)20000000)
#define SDPI_MAX_ARENA  ((size_t)512 << 20)
#define SDPI_MAX_OUTPUT ((size_t)256 << 20)
#endif
#define SDPI_MAX_RANGE 100000

/* -- arena and growing text ---------------------------------------------------- */

struct sdpi_block {
    struct sdpi_block *next;
    size_t used, room;
};

struct sdpi_arena {
    struct sdpi_block *blocks;
    size_t total, limit;
};

/* Zeroed memory, or NULL beyond the arena's limit. */
void *sdpi_arena_take(struct sdpi_arena *arena, size_t size);
void sdpi_arena_free(struct sdpi_arena *arena);

struct sdpi_out {
    char *text;
    size_t length, room;
    bool full; /* something did not fit below SDPI_MAX_OUTPUT */
};

void sdpi_out_add(struct sdpi_out *out, const char *text, size_t length);
void sdpi_out_string(struct sdpi_out *out, const char *text);

/* -- values -------------------------------------------------------------------- */

enum sdpi_kind {
    SDPI_UNDEFINED,
    SDPI_NONE,
    SDPI_BOOL,
    SDPI_INT,
    SDPI_REAL,
    SDPI_STRING,
    SDPI_LIST,
    SDPI_TUPLE,
    SDPI_DICT,
    SDPI_NAMESPACE,
    SDPI_LOOP,
    SDPI_MACRO,
    SDPI_METHOD,
    SDPI_GLOBAL
};

struct sdpi_render;
struct sdpi_node;
struct sdpi_loop;
struct sdpi_macro;
struct sdpi_method;
struct sdpi_global;

struct sdpi_value {
    enum sdpi_kind kind;
    union {
        bool truth;
        int64_t integer;
        double real;
        size_t length; /* of text */
    } u;
    union {
        const char *text; /* of a string; of an undefined value its name, or NULL */
        struct sdpi_list *list;
        struct sdpi_dict *dict; /* also of a namespace */
        struct sdpi_loop *loop;
        const struct sdpi_macro *macro;
        const struct sdpi_method *method;
        const struct sdpi_global *global;
    } p;
};

struct sdpi_list {
    struct sdpi_value *items;
    size_t count, room;
};

struct sdpi_dict {
    struct sdpi_entry {
        struct sdpi_value key, value;
    } * entries;
    size_t count, room;
};

struct sdpi_loop {
    const struct sdpi_list *items;
    size_t at;
};

struct sdpi_method { /* a method and what it is of */
    struct sdpi_value self;
    const struct sdpi_method_entry *entry;
};

struct sdpi_args {
    struct sdpi_value *items;
    size_t count;
    struct sdpi_keyword {
        const char *name;
        size_t length;
        struct sdpi_value value;
    } * keywords;
    size_t keyword_count;
};

typedef bool sdpi_call(struct sdpi_render *r, const struct sdpi_node *at,
                       const struct sdpi_value *self, const struct sdpi_args *args,
                       struct sdpi_value *out);

struct sdpi_filter {
    const char *name;
    sdpi_call *call;
};
struct sdpi_method_entry {
    enum sdpi_kind of;
    const char *name;
    sdpi_call *call;
};
struct sdpi_global {
    const char *name;
    sdpi_call *call;
};

const struct sdpi_filter *sdpi_find_filter(const char *name, size_t length);
/* Tests are filters that give a truth value. */
const struct sdpi_filter *sdpi_find_test(const char *name, size_t length);
const struct sdpi_method_entry *sdpi_find_method(const struct sdpi_value *self,
                                                 const char *name, size_t length);
const struct sdpi_global *sdpi_find_global(const char *name, size_t length);

struct sdpi_value sdpi_undefined(const char *name);
struct sdpi_value sdpi_none(void);
struct sdpi_value sdpi_bool(bool truth);
struct sdpi_value sdpi_int(int64_t integer);
struct sdpi_value sdpi_real(double real);
struct sdpi_value sdpi_string(const char *text, size_t length); /* [borrowed] text */
/* A list or tuple; its items are added with sdpi_list_add. */
bool sdpi_new_list(struct sdpi_render *r, enum sdpi_kind kind, struct sdpi_value *out);
bool sdpi_list_add(struct sdpi_render *r, struct sdpi_list *list,
                   const struct sdpi_value *item);
bool sdpi_new_dict(struct sdpi_render *r, enum sdpi_kind kind, struct sdpi_value *out);
bool sdpi_dict_set(struct sdpi_render *r, struct sdpi_dict *dict,
                   const struct sdpi_value *key, const struct sdpi_value *value);
const struct sdpi_value *sdpi_dict_find(const struct sdpi_dict *dict, const char *name,
                                        size_t length);
/* A copy of text in the rendering's arena. */
bool sdpi_copy_string(struct sdpi_render *r, const char *text, size_t length,
                      struct sdpi_value *out);

bool sdpi_truth(const struct sdpi_value *value);
bool sdpi_is_list(const struct sdpi_value *value); /* list or tuple */
bool sdpi_is_number(const struct sdpi_value *value);
double sdpi_number(const struct sdpi_value *value);
/* "str", "list", ... as Python names types. */
const char *sdpi_type_name(const struct sdpi_value *value);
bool sdpi_is_text(const struct sdpi_value *value, const char *text);

bool sdpi_equal(struct sdpi_render *r, const struct sdpi_value *a,
                const struct sdpi_value *b, bool *out);
/* -1, 0, 1; fails where Python has no order. */
bool sdpi_order(struct sdpi_render *r, const struct sdpi_value *a,
                const struct sdpi_value *b, int *out);
bool sdpi_contains(struct sdpi_render *r, const struct sdpi_value *in,
                   const struct sdpi_value *what, bool *out);
/* What a loop over the value goes through, as a list. */
bool sdpi_iterate(struct sdpi_render *r, const struct sdpi_value *value,
                  const struct sdpi_list **out);
bool sdpi_length(struct sdpi_render *r, const struct sdpi_value *value, size_t *out);
bool sdpi_from_json(struct sdpi_render *r, const json_t *json, struct sdpi_value *out);

/* str(value), and Python's repr inside lists; *out may be the value's own text. */
bool sdpi_to_text(struct sdpi_render *r, const struct sdpi_value *value,
                  struct sdpi_value *out);
struct sdpi_json_style {
    bool ascii, sorted;
    const char *item, *key; /* separators, with their lengths */
    size_t item_length, key_length;
    const char *indent; /* of one level; NULL: on one line */
    size_t indent_length;
};
bool sdpi_to_json(struct sdpi_render *r, const struct sdpi_value *value,
                  const struct sdpi_json_style *style, struct sdpi_value *out);
/* Shortest digits that give the number back, as Python writes them. */
void sdpi_real_text(double real, char *buffer, size_t size);

/* -- UTF-8 ----------------------------------------------------------------------- */

/* One character at text[0..length); returns its bytes, 0 where it is not valid UTF-8. */
size_t sdpi_character_read(const char *text, size_t length, uint32_t *character);
size_t sdpi_character_write(uint32_t character, char *out); /* at most 4 bytes */
bool sdpi_characters_valid(const char *text, size_t length, size_t *where);
size_t sdpi_characters_count(const char *text, size_t length);
/* Byte offset of a character. */
size_t sdpi_character_offset(const char *text, size_t length, size_t character);
bool sdpi_is_space(uint32_t character); /* Python's str.isspace */
/* Bounds without leading (trailing) characters of `set`, white space where it is NULL. */
void sdpi_strip(const char **text, size_t *length, const struct sdpi_value *set,
                bool left, bool right);

/* -- tree -------------------------------------------------------------------------- */

enum sdpi_token_kind {
    SDPI_T_DATA,
    SDPI_T_OPEN_BLOCK,
    SDPI_T_CLOSE_BLOCK,
    SDPI_T_OPEN_OUTPUT,
    SDPI_T_CLOSE_OUTPUT,
    SDPI_T_NAME,
    SDPI_T_STRING,
    SDPI_T_INT,
    SDPI_T_REAL,
    SDPI_T_OP,
    SDPI_T_END
};

struct sdpi_token {
    enum sdpi_token_kind kind;
    int line, column;
    const char *text;
    size_t length;
    int64_t integer;
    double real;
};

enum sdpi_node_kind {
    SDPI_N_CONST,
    SDPI_N_NAME,
    SDPI_N_LIST,     /* items */
    SDPI_N_TUPLE,    /* items */
    SDPI_N_DICT,     /* items: key, value, key, value */
    SDPI_N_ATTR,     /* a.text */
    SDPI_N_ITEM,     /* a[b] */
    SDPI_N_SLICE,    /* a[items[0]:items[1]:items[2]], each may be NULL */
    SDPI_N_CALL,     /* a(items) */
    SDPI_N_FILTER,   /* a | filter(items) */
    SDPI_N_TEST,     /* a is filter(items); negated: not */
    SDPI_N_NOT,      /* a */
    SDPI_N_NEGATIVE, /* a */
    SDPI_N_POSITIVE, /* a */
    SDPI_N_AND,      /* a, b */
    SDPI_N_OR,       /* a, b */
    SDPI_N_COMPARE,  /* a, items: SDPI_N_OPERAND */
    SDPI_N_OPERAND,  /* op, a */
    SDPI_N_BINARY,   /* a op b */
    SDPI_N_CONCAT,   /* items */
    SDPI_N_IF_ELSE,  /* a if b else c */
    SDPI_N_KEYWORD,  /* text = a, of a call; of a macro a parameter and its default */
    SDPI_N_BODY,     /* items: statements */
    SDPI_N_DATA,     /* text */
    SDPI_N_OUTPUT,   /* a */
    SDPI_N_IF,       /* items: condition, body, condition, body; a: else body or NULL */
    SDPI_N_FOR,      /* for a in b if c: items[0], else items[1] (or NULL) */
    SDPI_N_SET,      /* a = b */
    SDPI_N_CAPTURE,  /* set a to what body b writes */
    SDPI_N_MACRO,    /* text(items: keywords): body b */
    SDPI_N_BREAK,
    SDPI_N_CONTINUE,
    SDPI_N_GENERATION /* body a */
};

enum sdpi_operator {
    SDPI_ADD,
    SDPI_SUBTRACT,
    SDPI_MULTIPLY,
    SDPI_DIVIDE,
    SDPI_FLOOR_DIVIDE,
    SDPI_MODULO,
    SDPI_POWER,
    SDPI_EQUAL,
    SDPI_NOT_EQUAL,
    SDPI_LESS,
    SDPI_LESS_EQUAL,
    SDPI_GREATER,
    SDPI_GREATER_EQUAL,
    SDPI_IN,
    SDPI_NOT_IN
};

struct sdpi_node {
    enum sdpi_node_kind kind;
    enum sdpi_operator op;
    bool negated;
    int line, column;
    const char *text;
    size_t length;
    struct sdpi_value constant;
    const struct sdpi_filter *filter;
    struct sdpi_node *a, *b, *c;
    struct sdpi_node **items;
    size_t count, room;
};

struct sdp_template {
    char *name;
    char *text; /* with newlines made alike */
    size_t length;
    struct sdpi_arena arena; /* of the nodes and their texts */
    struct sdpi_node *body;
    bool has_generation;
};

/* [new] *tokens: free() it. */
enum sdp_status sdpi_template_lex(struct sdp_template *t, struct sdpi_token **tokens,
                                  struct sdp_error *err);
enum sdp_status sdpi_template_tree(struct sdp_template *t,
                                   const struct sdpi_token *tokens,
                                   struct sdp_error *err);

/* -- parsing: shared by parse.c and parse_expression.c ------------------------------ */

struct sdpi_parser {
    struct sdp_template *t;
    const struct sdpi_token *at;
    struct sdp_error *err;
    int depth; /* of nesting */
    int loops; /* open for loops within the macro or file */
};

bool sdpi_parse_fail(struct sdpi_parser *p, const struct sdpi_token *at,
                     const char *format, ...) SDP_PRINTF(3, 4);
bool sdpi_parse_is(const struct sdpi_parser *p, const char *operator_text);
bool sdpi_parse_is_name(const struct sdpi_parser *p, const char *name);
bool sdpi_parse_accept(struct sdpi_parser *p, const char *operator_text);
bool sdpi_parse_accept_name(struct sdpi_parser *p, const char *name);
bool sdpi_parse_expect(struct sdpi_parser *p, const char *operator_text);
struct sdpi_node *sdpi_parse_node(struct sdpi_parser *p, enum sdpi_node_kind kind);
bool sdpi_parse_add(struct sdpi_parser *p, struct sdpi_node *to, struct sdpi_node *item);
/* An expression, or several with commas between them: a tuple. */
bool sdpi_parse_expression(struct sdpi_parser *p, bool with_if, struct sdpi_node **out);
bool sdpi_parse_tuple(struct sdpi_parser *p, bool with_if, struct sdpi_node **out);

/* -- rendering --------------------------------------------------------------------- */

struct sdpi_scope {
    struct sdpi_scope *parent;
    struct sdpi_binding {
        const char *name;
        size_t length;
        struct sdpi_value value;
    } * items;
    size_t count, room;
};

struct sdpi_macro {
    const struct sdpi_node *node;
    struct sdpi_scope *scope; /* where it was defined */
};

struct sdpi_render {
    const struct sdp_template *t;
    struct sdpi_arena arena;
    struct sdp_error *err;
    const struct sdpi_node *at; /* for messages of what has no node of its own */
    struct sdpi_out *out;
    bool nested; /* out is a macro's or a capture's */
    size_t steps;
    int depth;
    int64_t now;
    struct sdp_template_span *spans;
    size_t span_count;
};

bool sdpi_fail(struct sdpi_render *r, const struct sdpi_node *at, const char *format, ...)
    SDP_PRINTF(3, 4);
/* Counts work; fails when it is too much. */
bool sdpi_charge(struct sdpi_render *r, size_t steps);
void *sdpi_take(struct sdpi_render *r, size_t size);
bool sdpi_eval(struct sdpi_render *r, struct sdpi_scope *scope,
               const struct sdpi_node *node, struct sdpi_value *out);
bool sdpi_call_macro(struct sdpi_render *r, const struct sdpi_node *at,
                     const struct sdpi_macro *macro, const struct sdpi_args *args,
                     struct sdpi_value *out);
bool sdpi_scope_set(struct sdpi_render *r, struct sdpi_scope *scope, const char *name,
                    size_t length, const struct sdpi_value *value);
const struct sdpi_value *sdpi_scope_find(const struct sdpi_scope *scope, const char *name,
                                         size_t length);
/* Whether out has become too long, as a message. */
bool sdpi_check_out(struct sdpi_render *r, const struct sdpi_out *out);

/* Sorts the arguments of a call into `count` parameters with these names; what is not
 * given is undefined and without a name (sdpi_given). */
bool sdpi_take_args(struct sdpi_render *r, const struct sdpi_node *at,
                    const struct sdpi_args *args, const char *const *names, size_t count,
                    struct sdpi_value *values);
bool sdpi_given(const struct sdpi_value *argument);
/* obj.name and obj[key]; nothing there gives an undefined value. */
bool sdpi_get_attribute(struct sdpi_render *r, const struct sdpi_node *at,
                        const struct sdpi_value *of, const char *name, size_t length,
                        struct sdpi_value *out);
bool sdpi_get_item(struct sdpi_render *r, const struct sdpi_node *at,
                   const struct sdpi_value *of, const struct sdpi_value *key,
                   struct sdpi_value *out);
bool sdpi_binary(struct sdpi_render *r, const struct sdpi_node *at, enum sdpi_operator op,
                 const struct sdpi_value *a, const struct sdpi_value *b,
                 struct sdpi_value *out);

/* Works of methods that filters share. */
bool sdpi_replace(struct sdpi_render *r, const struct sdpi_value *self,
                  const struct sdpi_value *old, const struct sdpi_value *new_text,
                  int64_t count, struct sdpi_value *out);
enum sdpi_case { SDPI_UPPER, SDPI_LOWER, SDPI_CAPITALIZE, SDPI_TITLE, SDPI_FILTER_TITLE };
bool sdpi_change_case(struct sdpi_render *r, const struct sdpi_node *at,
                      const struct sdpi_value *self, enum sdpi_case how,
                      struct sdpi_value *out);
bool sdpi_join(struct sdpi_render *r, const struct sdpi_list *list, const char *between,
               size_t length, bool strict, struct sdpi_value *out);

#endif

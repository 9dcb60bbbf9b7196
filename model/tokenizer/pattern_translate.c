/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* From Oniguruma's Ruby syntax, in which tokenizers are written, to PCRE2. Most of the
 * two is one language; what differs in meaning is written out (\s, \w, \h, \u, ^, $,
 * scripts), and what has no equal, or is not known, is refused by name. */
#include "model/tokenizer/pattern.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>

#define SPACES "\\t-\\r\\x{85}\\p{Z}" /* PCRE2's own \s has U+180E too */
#define WORDS  "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}"
#define DIGITS "\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}" /* of \w, but not within brackets  \
                                                       */
#define NEWEST "\xf0\x90\x97\x80" /* U+105C0, a letter since Unicode 16 */
#define HEX    "0-9a-fA-F"

struct reader {
    const char *text;
    size_t length, at;
    struct sdpi_text *out;
    char *wrong;
    size_t wrong_size;
    bool in_class;
    bool old;          /* PCRE2's Unicode is older than the reference's, which is 16 */
    bool differs;      /* and there is something that this matters for */
    uint64_t any_case; /* of each group that is open, the innermost one lowest */
    unsigned depth;
};

static const struct {
    uint32_t first, last;
    char category[3];
} newer[] = {
#include "model/tokenizer/unicode_new.h"
};

SDP_PRINTF(2, 3) static bool fail(struct reader *r, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    if (vsnprintf(r->wrong, r->wrong_size, format, args) < 0)
        r->wrong[0] = '\0';
    va_end(args);
    return false;
}

static void put(struct reader *r, const char *text)
{
    sdpi_text_add(r->out, text, strlen(text));
}

static char peek(const struct reader *r, size_t ahead)
{
    return r->at + ahead < r->length ? r->text[r->at + ahead] : '\0';
}

static void copy(struct reader *r, size_t length)
{
    sdpi_text_add(r->out, r->text + r->at, length);
    r->at += length;
}

/* -- what PCRE2 is too old for -------------------------------------------- */

static bool is_old(void)
{
    static const char regex[] = "\\p{Lo}";
    pcre2_match_data *data = pcre2_match_data_create(1, NULL);
    char wrong[128];
    pcre2_code *code = sdpi_pattern_code(regex, sizeof regex - 1, wrong, sizeof wrong);
    bool old =
        code && data &&
        pcre2_match(code, (PCRE2_SPTR)NEWEST, sizeof NEWEST - 1, 0, 0, data, NULL) < 0;

    pcre2_match_data_free(data);
    pcre2_code_free(code);
    return old;
}

/* Whether a category is one of a list such as "L Nd". */
static bool is_among(const char *category, const char *list)
{
    for (; *list; list += *list == ' ') {
        size_t length = strcspn(list, " ");

        if (strncmp(category, list, length) == 0)
            return true;
        list += length;
    }
    return false;
}

/* The new characters of some categories, as ranges within brackets. */
static void put_news(struct reader *r, const char *categories)
{
    char range[48];

    r->differs = true;
    for (size_t i = 0; r->old && i < SDP_COUNT_OF(newer); i++) {
        if (!is_among(newer[i].category, categories))
            continue;
        snprintf(range, sizeof range, "\\x{%x}-\\x{%x}", (unsigned)newer[i].first,
                 (unsigned)newer[i].last);
        put(r, range);
    }
    if (r->old && strcmp(categories, "sc:Han") == 0) /* the one script that grows much */
        put(r, "\\x{2b739}\\x{2ebf0}-\\x{2ee5d}\\x{31350}-\\x{323af}");
}

/* A set of characters and the new ones of its categories. Within brackets a negative set
 * cannot be narrowed: there the new characters stay in it. */
static void put_set(struct reader *r, bool negative, const char *set,
                    const char *categories)
{
    if (!r->in_class)
        put(r, negative ? "[^" : "[");
    put(r, set);
    if (!r->in_class || !negative)
        put_news(r, categories);
    if (!r->in_class)
        put(r, "]");
}

/* -- properties ----------------------------------------------------------- */

/* Whether PCRE2 knows a property, such as "sc:Han". */
static bool is_known(const char *property)
{
    char regex[96], wrong[128];
    pcre2_code *code;

    snprintf(regex, sizeof regex, "\\p{%s}", property);
    code = sdpi_pattern_code(regex, strlen(regex), wrong, sizeof wrong);
    pcre2_code_free(code);
    return code != NULL;
}

/* What a property is called there; scripts must be meant as such, not as extensions. */
static bool find_property(const char *name, char *out, size_t size)
{
    static const char *const renamed[][2] = {
        {"Letter", "L"},        {"Mark", "M"},           {"Number", "N"},
        {"Punctuation", "P"},   {"Symbol", "S"},         {"Separator", "Z"},
        {"Other", "C"},         {"Alpha", "Alphabetic"}, {"Digit", "Nd"},
        {"Upper", "Uppercase"}, {"Lower", "Lowercase"},  {"Space", "White_Space"}};
    static const char *const refused[] = {"Punct", "Graph", "Print",  "Word",  "Alnum",
                                          "Blank", "Cntrl", "XDigit", "ASCII", "Any"};

    for (size_t i = 0; i < SDP_COUNT_OF(refused); i++)
        if (strcasecmp(refused[i], name) == 0)
            return false;
    if (strlen(name) > 2) {
        snprintf(out, size, "sc:%s", name);
        if (is_known(out))
            return true;
    }
    snprintf(out, size, "%s", name);
    for (size_t i = 0; i < SDP_COUNT_OF(renamed); i++)
        if (strcasecmp(renamed[i][0], name) == 0)
            snprintf(out, size, "%s", renamed[i][1]);
    return is_known(out);
}

/* \p{Name}, \P{Name}, \p{^Name}; `at` stands on the p. */
static bool read_property(struct reader *r)
{
    bool negative = r->text[r->at] == 'P';
    char name[48], property[64], set[80];
    size_t length = 0, start = r->at + 2;

    if (peek(r, 1) != '{')
        return fail(r, "\\p without braces");
    if (peek(r, 2) == '^') {
        negative = !negative;
        start++;
    }
    while (start + length < r->length && r->text[start + length] != '}' &&
           length + 1 < sizeof name) {
        name[length] = r->text[start + length];
        if (!isalnum((unsigned char)name[length]) && !strchr(" _-&", name[length]))
            break;
        length++;
    }
    name[length] = '\0';
    if (start + length >= r->length || r->text[start + length] != '}' || length == 0)
        return fail(r, "the property behind \\p");
    if (!find_property(name, property, sizeof property))
        return fail(r, "the property \"%s\"", name);
    snprintf(set, sizeof set, "\\%c{%s}", negative && r->in_class ? 'P' : 'p', property);
    put_set(r, negative, set, property);
    r->at = start + length + 1;
    return true;
}

/* -- escapes -------------------------------------------------------------- */

/* \xHH, \x{H...}, \uHHHH; `at` stands on the letter. */
static bool read_code(struct reader *r)
{
    bool braces = r->text[r->at] == 'x' && peek(r, 1) == '{';
    size_t start = r->at + (braces ? 2 : 1), most = braces ? 8 : 2, length = 0;
    char text[32];

    if (r->text[r->at] == 'u')
        most = 4;
    while (length < most && start + length < r->length &&
           isxdigit((unsigned char)r->text[start + length]))
        length++;
    if (length == 0 || (most == 4 && length < 4) ||
        (braces && (start + length >= r->length || r->text[start + length] != '}')))
        return fail(r, "an incomplete \\%c", r->text[r->at]);
    snprintf(text, sizeof text, "\\x{%.*s}", (int)length, r->text + start);
    if (most == 2 && strtoul(text + 3, NULL, 16) > 127)
        return fail(r, "a byte (\\x with more than 7f)");
    put(r, text);
    r->at = start + length + (braces ? 1 : 0);
    return true;
}

/* What a letter behind a backslash means; NULL: it is not in this table. */
static const char *shorthand(char letter, bool in_class)
{
    static const struct {
        char letter;
        const char *plain, *in_class;
    } known[] = {
        {'s', "[" SPACES "]", SPACES},
        {'S', "[^" SPACES "]", "\\S\\x{180e}"},
        {'h', "[" HEX "]", HEX},
        {'H', "[^" HEX "]", NULL},
        {'v', "\\x0b", "\\x0b"},
        {'t', "\\t", "\\t"},
        {'n', "\\n", "\\n"},
        {'r', "\\r", "\\r"},
        {'f', "\\f", "\\f"},
        {'a', "\\x07", "\\x07"},
        {'e', "\\x1b", "\\x1b"},
        {'A', "\\A", NULL},
        {'z', "\\z", NULL},
        {'Z', "\\Z", NULL},
    };

    for (size_t i = 0; i < SDP_COUNT_OF(known); i++)
        if (known[i].letter == letter)
            return in_class ? known[i].in_class : known[i].plain;
    return NULL;
}

static bool read_escape(struct reader *r)
{
    char letter = peek(r, 1);
    const char *meaning = shorthand(letter, r->in_class);

    if (r->at + 1 >= r->length)
        return fail(r, "a backslash at the end");
    if (meaning) {
        put(r, meaning);
        r->at += 2;
        return true;
    }
    if (letter == 'd' || letter == 'D' || letter == 'w' ||
        (letter == 'W' && !r->in_class)) {
        const char *digits = letter == 'D' && r->in_class ? "\\P{Nd}" : "\\p{Nd}";
        bool words = letter == 'w' || letter == 'W';

        put_set(r, letter == 'D' || letter == 'W',
                words ? (r->in_class ? WORDS : WORDS DIGITS) : digits,
                words ? "L M Nd Nl Pc" : "Nd");
        r->at += 2;
        return true;
    }
    if (isalnum((unsigned char)letter)) {
        r->at++;
        if (letter == 'p' || letter == 'P')
            return read_property(r);
        if (letter == 'x' || letter == 'u')
            return read_code(r);
        return fail(r, "\\%c%s", letter, r->in_class ? " within brackets" : "");
    }
    copy(r, 2); /* a sign as itself; of a longer character, its first byte */
    return true;
}

/* -- brackets ------------------------------------------------------------- */

/* Where case does not matter, Oniguruma has some characters equal two others, which PCRE2
 * has not: refuses them. */
static bool check_case(struct reader *r)
{
    static const char *const pairs[] = {"ss", "ff", "fi", "fl", "st", "\xc3\x9f"};
    size_t left = r->length - r->at;

    if (!(r->any_case & 1))
        return true;
    for (size_t i = 0; i < SDP_COUNT_OF(pairs); i++)
        if (left >= 2 && strncasecmp(r->text + r->at, pairs[i], 2) == 0)
            return fail(r, "\"%s\" in any case", pairs[i]);
    if (left >= 3 && (memcmp(r->text + r->at, "\xef\xac", 2) == 0 ||
                      memcmp(r->text + r->at, "\xe1\xba\x9e", 3) == 0))
        return fail(r, "\"%.3s\" in any case", r->text + r->at);
    return true;
}

static bool read_class(struct reader *r)
{
    size_t start;

    copy(r, peek(r, 1) == '^' ? 2 : 1);
    start = r->at;
    r->in_class = true;
    while (r->at < r->length) {
        char c = r->text[r->at];

        if (c == ']' && r->at > start) {
            r->in_class = false;
            copy(r, 1);
            return true;
        }
        if (c == ']')
            return fail(r, "an empty pair of brackets");
        if (c == '[')
            return fail(r, "brackets within brackets");
        if (c == '&' && peek(r, 1) == '&')
            return fail(r, "&& within brackets");
        if (c == '\\') {
            if (!read_escape(r))
                return false;
            continue;
        }
        if ((c & 0x80) && !check_case(r))
            return false;
        copy(r, 1);
    }
    return fail(r, "a bracket that is not closed");
}

/* -- the rest ------------------------------------------------------------- */

static bool open_group(struct reader *r, bool any_case)
{
    if (++r->depth > 60)
        return fail(r, "more than 60 groups within each other");
    r->any_case = r->any_case << 1 | any_case;
    return true;
}

static bool read_group(struct reader *r)
{
    static const char *const known[] = {
        "(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i:", "(?-i:"};

    if (peek(r, 1) != '?') { /* a group of which nobody asks what it matched */
        put(r, "(?:");
        r->at++;
        return open_group(r, r->any_case & 1);
    }
    for (size_t i = 0; i < SDP_COUNT_OF(known); i++) {
        size_t length = strlen(known[i]);

        if (r->length - r->at >= length &&
            memcmp(r->text + r->at, known[i], length) == 0) {
            copy(r, length);
            return open_group(r, known[i][2] == 'i' ||
                                     (known[i][2] != '-' && r->any_case & 1));
        }
    }
    if (r->at == 0 && r->length >= 4 && memcmp(r->text, "(?i)", 4) == 0) {
        r->any_case = 1;
        copy(r, 4); /* for all of the expression; elsewhere the two languages differ */
        return true;
    }
    return fail(r, "the group %.*s", (int)SDP_MIN(r->length - r->at, (size_t)4),
                r->text + r->at);
}

/* {n}, {n,}, {n,m}, {,m}; other braces are themselves. */
static bool read_interval(struct reader *r)
{
    size_t low = 0, high = 0, length;
    const char *at = r->text + r->at + 1, *end = r->text + r->length;
    bool comma;
    char after;

    while (at + low < end && isdigit((unsigned char)at[low]))
        low++;
    comma = at + low < end && at[low] == ',';
    while (comma && at + low + 1 + high < end &&
           isdigit((unsigned char)at[low + 1 + high]))
        high++;
    length = low + (comma ? 1 + high : 0);
    if (at + length >= end || at[length] != '}' || low + high == 0) {
        put(r, "\\{");
        r->at++;
        return true;
    }
    after = peek(r, length + 2);
    if (after == '+' || (after == '?' && !comma) || low > 4 || high > 4)
        return fail(r, "the interval %.*s%c", (int)SDP_MIN(length + 2, (size_t)24),
                    at - 1, after ? after : ' ');
    if (low == 0) {
        put(r, "{0");
        r->at++;
        copy(r, length + 1);
        return true;
    }
    copy(r, length + 2);
    return true;
}

static bool read_one(struct reader *r)
{
    switch (r->text[r->at]) {
    case '\\':
        return read_escape(r);
    case '[':
        return read_class(r);
    case '(':
        return read_group(r);
    case '{':
        return read_interval(r);
    case '^':
        put(r, "(?m:^)"); /* of each line */
        break;
    case '$':
        put(r, "(?m:$)");
        break;
    case ']':
        put(r, "\\]");
        break;
    case '}':
        put(r, "\\}");
        break;
    case ')':
        r->depth -= r->depth > 0;
        r->any_case >>= 1;
        copy(r, 1);
        return true;
    default:
        if (!check_case(r))
            return false;
        copy(r, 1);
        return true;
    }
    r->at++;
    return true;
}

bool sdpi_pattern_translate(const char *regex, size_t length, bool news, bool *differs,
                            struct sdpi_text *out, char *wrong, size_t size)
{
    const bool old = is_old();
    struct reader r = {regex, length,      0,     out, wrong, size,
                       false, news && old, false, 0,   0};

    sdpi_text_reserve(out, 1);
    while (r.at < r.length)
        if (!read_one(&r))
            return false;
    *differs = old && r.differs;
    return true;
}

/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Text between tags, and the tokens within them. White space around tags goes as Jinja's
 * trim_blocks and lstrip_blocks say: a newline right behind a block or comment is
 * dropped, so is the indent before one that is alone on its line; a minus in a tag drops
 * all white space on its side, a plus keeps it. Newlines of all kinds become "\n" first,
 * and one at the end of the template is dropped. */
#include "model/template/template_internal.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

struct lexer {
    struct sdp_template *t;
    struct sdp_error *err;
    size_t at;
    size_t counted, line_start; /* where line and line_start hold */
    int line;
    bool line_starting; /* the last tag took its newline along */
    struct sdpi_token *tokens;
    size_t count, room;
    char open[SDPI_MAX_PARSE]; /* brackets within the tag */
    size_t open_count;
};

static void place(struct lexer *l, size_t offset, int *line, int *column)
{
    if (offset < l->counted) { /* back to where a tag begins */
        l->counted = l->line_start = 0;
        l->line = 1;
    }
    for (; l->counted < offset; l->counted++)
        if (l->t->text[l->counted] == '\n') {
            l->line++;
            l->line_start = l->counted + 1;
        }
    *line = l->line;
    *column =
        (int)sdpi_characters_count(l->t->text + l->line_start, offset - l->line_start) +
        1;
}

SDP_PRINTF(3, 4)
static bool fail_lex(struct lexer *l, size_t offset, const char *format, ...)
{
    char text[512];
    int line, column;
    va_list args;

    va_start(args, format);
    if (vsnprintf(text, sizeof text, format, args) < 0)
        text[0] = '\0';
    va_end(args);
    place(l, offset, &line, &column);
    sdp_fail_at(l->err, SDP_INPUT, l->t->name, NULL, line, column, "%s", text);
    return false;
}

static struct sdpi_token *push(struct lexer *l, enum sdpi_token_kind kind, size_t offset,
                               const char *text, size_t length)
{
    struct sdpi_token *token;

    if (l->count == l->room) {
        l->room = l->room * 2 + 64;
        l->tokens = sdp_xrealloc(l->tokens, l->room * sizeof *l->tokens);
    }
    token = &l->tokens[l->count++];
    *token = (struct sdpi_token){.kind = kind, .text = text, .length = length};
    place(l, offset, &token->line, &token->column);
    return token;
}

static bool has(const struct lexer *l, size_t at, const char *word)
{
    size_t length = strlen(word);

    return l->t->length - at >= length && memcmp(l->t->text + at, word, length) == 0;
}

/* -- white space around tags -------------------------------------------------------- */

static void skip_spaces(struct lexer *l)
{
    const char *text = l->t->text + l->at;
    size_t length = l->t->length - l->at;

    sdpi_strip(&text, &length, NULL, true, false);
    l->at = (size_t)(text - l->t->text);
}

/* The text from l->at to `end`, where a tag begins; `sign` is that of the tag. */
static void push_data(struct lexer *l, size_t end, char sign, bool is_output)
{
    const char *text = l->t->text + l->at;
    size_t length = end - l->at, line = length;

    if (sign == '-') {
        sdpi_strip(&text, &length, NULL, false, true);
    } else if (sign != '+' && !is_output) {
        const char *indent;
        size_t left;

        while (line > 0 && text[line - 1] != '\n')
            line--;
        indent = text + line;
        left = length - line;
        sdpi_strip(&indent, &left, NULL, true, false);
        if (left == 0 && (line > 0 || l->line_starting))
            length = line;
    }
    if (length > 0)
        push(l, SDPI_T_DATA, l->at, text, length);
}

/* Behind the end of a tag. */
static void end_tag(struct lexer *l, char sign, bool is_output)
{
    if (sign == '-')
        skip_spaces(l);
    else if (sign != '+' && !is_output && has(l, l->at, "\n"))
        l->at++;
    l->line_starting = l->t->text[l->at - 1] == '\n';
}

/* -- tokens
 * ------------------------------------------------------------------------------ */

static int hex_value(const char *text, size_t count, uint32_t *out)
{
    *out = 0;
    for (size_t i = 0; i < count; i++) {
        if (!isxdigit((unsigned char)text[i]))
            return 0;
        *out = *out << 4 |
               (uint32_t)(isdigit((unsigned char)text[i]) ? text[i] - '0'
                                                          : (text[i] | 32) - 'a' + 10);
    }
    return 1;
}

/* The escape at text[0..length), behind its backslash; returns the characters it takes, 0
 * if it is none. *out has room for 4 bytes. */
static size_t read_escape(const char *text, size_t length, char *out, size_t *written)
{
    static const char names[] = "ntr\\'\"abfv", meant[] = "\n\t\r\\'\"\a\b\f\v";
    const char *found = text[0] ? strchr(names, text[0]) : NULL;
    size_t digits = text[0] == 'x' ? 2 : text[0] == 'u' ? 4 : text[0] == 'U' ? 8 : 0;
    uint32_t character = 0;

    *written = 1;
    if (found) {
        *out = meant[found - names];
        return 1;
    }
    if (text[0] == '\n') {
        *written = 0;
        return 1;
    }
    if (text[0] >= '0' && text[0] <= '7') {
        for (digits = 0;
             digits < 3 && digits < length && text[digits] >= '0' && text[digits] <= '7';
             digits++)
            character = character * 8 + (uint32_t)(text[digits] - '0');
        *written = sdpi_character_write(character, out);
        return character ? digits : 0;
    }
    if (digits == 0 || length <= digits || !hex_value(text + 1, digits, &character) ||
        character == 0 || character > 0x10ffff ||
        (character >= 0xd800 && character <= 0xdfff))
        return 0;
    *written = sdpi_character_write(character, out);
    return digits + 1;
}

static bool lex_string(struct lexer *l)
{
    const char *text = l->t->text;
    size_t start = l->at, end = start + 1, used = 0;
    char quote = text[start], *out;

    while (end < l->t->length && text[end] != quote)
        end += text[end] == '\\' ? 2 : 1;
    if (end >= l->t->length)
        return fail_lex(l, start, "a text begins here and does not end");
    out = sdpi_arena_take(&l->t->arena, end - start);
    if (!out)
        return fail_lex(l, start, "the template is too large");
    for (size_t i = start + 1; i < end;) {
        size_t written = 1, taken;

        if (text[i] != '\\') {
            out[used++] = text[i++];
            continue;
        }
        taken = read_escape(text + i + 1, end - i - 1, out + used, &written);
        if (taken == 0 && (isalnum((unsigned char)text[i + 1])) &&
            strchr("xuUN01234567", text[i + 1]))
            return fail_lex(
                l, i, "the escape \\%c here is not supported; write the character itself",
                text[i + 1]);
        if (taken == 0) { /* no escape: the backslash stays */
            out[used++] = text[i++];
            continue;
        }
        used += written;
        i += 1 + taken;
    }
    l->at = end + 1;
    push(l, SDPI_T_STRING, start, out, used);
    return true;
}

static bool lex_number(struct lexer *l)
{
    const char *text = l->t->text;
    size_t start = l->at, end = start;
    char digits[64], *stop;
    bool real = false;
    struct sdpi_token *token;

    while (isdigit((unsigned char)text[end]) || text[end] == '_')
        end++;
    if (text[end] == '.' && isdigit((unsigned char)text[end + 1])) {
        real = true;
        for (end++; isdigit((unsigned char)text[end]) || text[end] == '_';)
            end++;
    }
    if ((text[end] == 'e' || text[end] == 'E') &&
        (isdigit((unsigned char)text[end + 1]) ||
         (strchr("+-", text[end + 1]) && text[end + 1] &&
          isdigit((unsigned char)text[end + 2])))) {
        real = true;
        for (end += 2; isdigit((unsigned char)text[end]);)
            end++;
    }
    if (end - start >= sizeof digits || isalpha((unsigned char)text[end]) ||
        memchr(text + start, '_', end - start))
        return fail_lex(
            l, start, "this number is not supported; write it with decimal digits alone");
    memcpy(digits, text + start, end - start);
    digits[end - start] = '\0';
    token = push(l, real ? SDPI_T_REAL : SDPI_T_INT, start, text + start, end - start);
    errno = 0;
    if (real)
        token->real = strtod(digits, &stop);
    else
        token->integer = strtoll(digits, &stop, 10);
    if (errno == ERANGE)
        return fail_lex(l, start, "this number is too large");
    l->at = end;
    return true;
}

static bool lex_operator(struct lexer *l)
{
    static const char *const words[] = {"==", "!=", ">=", "<=", "//", "**", "+", "-", "*",
                                        "/",  "%",  "~",  "<",  ">",  "=",  "(", ")", "[",
                                        "]",  "{",  "}",  ".",  ":",  "|",  ",", NULL};
    size_t i = 0;
    char c = l->t->text[l->at];

    while (words[i] && !has(l, l->at, words[i]))
        i++;
    if (!words[i])
        return fail_lex(l, l->at, "a character that has no meaning in a tag");
    if (strchr("([{", c)) {
        if (l->open_count == sizeof l->open)
            return fail_lex(l, l->at, "is nested too deeply");
        l->open[l->open_count++] = c == '(' ? ')' : c == '[' ? ']' : '}';
    } else if (strchr(")]}", c)) {
        if (l->open_count == 0 || l->open[l->open_count - 1] != c)
            return fail_lex(l, l->at, "\"%c\" closes nothing that is open", c);
        l->open_count--;
    }
    push(l, SDPI_T_OP, l->at, words[i], strlen(words[i]));
    l->at += strlen(words[i]);
    return true;
}

static bool is_name_byte(char c)
{
    return isalnum((unsigned char)c) || c == '_';
}

static bool lex_token(struct lexer *l)
{
    const char *text = l->t->text;
    size_t start = l->at;

    if (text[start] == '\'' || text[start] == '"')
        return lex_string(l);
    if (isdigit((unsigned char)text[start]))
        return lex_number(l);
    if (!isalpha((unsigned char)text[start]) && text[start] != '_')
        return lex_operator(l);
    while (is_name_byte(text[l->at]))
        l->at++;
    push(l, SDPI_T_NAME, start, text + start, l->at - start);
    return true;
}

/* Tokens up to the end of a tag, whose end is `end`. */
static bool lex_tag(struct lexer *l, size_t start, const char *end, bool is_output)
{
    l->open_count = 0;
    for (;;) {
        char sign;

        skip_spaces(l);
        if (l->at >= l->t->length)
            return fail_lex(l, start, "a tag begins here and does not end with \"%s\"",
                            end);
        sign = l->t->text[l->at];
        if (sign != '-' && (sign != '+' || is_output))
            sign = '\0';
        if (l->open_count == 0 && has(l, l->at + (sign != '\0'), end)) {
            push(l, is_output ? SDPI_T_CLOSE_OUTPUT : SDPI_T_CLOSE_BLOCK, l->at, end, 2);
            l->at += 2 + (sign != '\0');
            end_tag(l, sign, is_output);
            return true;
        }
        if (!lex_token(l))
            return false;
    }
}

static bool lex_comment(struct lexer *l, size_t start)
{
    const char *end = memmem(l->t->text + l->at, l->t->length - l->at, "#}", 2);
    char sign;

    if (!end)
        return fail_lex(l, start, "a comment begins here and does not end with \"#}\"");
    sign = end > l->t->text + l->at ? end[-1] : '\0';
    l->at = (size_t)(end - l->t->text) + 2;
    end_tag(l, sign, false);
    return true;
}

static size_t find_tag(const struct lexer *l)
{
    size_t at = l->at;

    for (; at + 1 < l->t->length; at++)
        if (l->t->text[at] == '{' && strchr("{%#", l->t->text[at + 1]) &&
            l->t->text[at + 1])
            return at;
    return l->t->length;
}

static bool is_raw(const struct lexer *l)
{
    size_t at = l->at;

    while (at < l->t->length && isspace((unsigned char)l->t->text[at]))
        at++;
    return has(l, at, "raw") && !is_name_byte(l->t->text[at + 3]);
}

static bool lex_all(struct lexer *l)
{
    while (l->at < l->t->length) {
        size_t start = find_tag(l);
        char kind, sign;
        bool good;

        if (start == l->t->length) {
            push(l, SDPI_T_DATA, l->at, l->t->text + l->at, start - l->at);
            break;
        }
        kind = l->t->text[start + 1];
        sign = l->t->text[start + 2];
        push_data(l, start, sign, kind == '{');
        l->at = start + 2 + (sign == '-' || sign == '+');
        if (kind == '#') {
            good = lex_comment(l, start);
        } else {
            push(l, kind == '{' ? SDPI_T_OPEN_OUTPUT : SDPI_T_OPEN_BLOCK, start,
                 l->t->text + start, 2);
            if (kind == '%' && is_raw(l))
                return fail_lex(
                    l, start,
                    "{%% raw %%} is not supported; write the text as {{ '...' }}");
            good = lex_tag(l, start, kind == '{' ? "}}" : "%}", kind == '{');
        }
        if (!good)
            return false;
    }
    push(l, SDPI_T_END, l->t->length, "", 0);
    return true;
}

enum sdp_status sdpi_template_lex(struct sdp_template *t, struct sdpi_token **tokens,
                                  struct sdp_error *err)
{
    struct lexer l = {.t = t, .err = err, .line = 1, .line_starting = true};

    if (!lex_all(&l)) {
        free(l.tokens);
        return SDP_INPUT;
    }
    *tokens = l.tokens;
    return SDP_OK;
}

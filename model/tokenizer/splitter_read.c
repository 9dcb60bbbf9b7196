/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The part "pre_tokenizer" of a tokenizer.json. */
#include "model/tokenizer/part.h"
#include "model/tokenizer/splitter.h"

#include <stdlib.h>

static const char *const behaviors[] = {
    "Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous", NULL};

static struct sdpi_split_stage *add_stage(void *out, enum sdpi_split_kind kind,
                                          enum sdpi_split_behavior behavior)
{
    struct sdpi_splitter *s = out;
    struct sdpi_split_stage *stage;

    s->stages = sdp_xrealloc(s->stages, (s->count + 1) * sizeof *s->stages);
    stage = &s->stages[s->count++];
    *stage = (struct sdpi_split_stage){.kind = kind, .behavior = behavior};
    return stage;
}

/* Begins a part: where the part before it made bytes of the text, these have to become
 * characters now. */
static bool begin(struct sdpi_splitter *s, const struct sdp_json *at,
                  const char *const *keys)
{
    if (s->bytes)
        add_stage(s, SDPI_SPLIT_ALPHABET, SDPI_ISOLATED);
    s->bytes = false;
    return sdp_json_only_keys(at, keys);
}

static bool read_bytes(void *out, const struct sdp_json *at, unsigned depth)
{
    static const char *const keys[] = {"type", "add_prefix_space", "trim_offsets",
                                       "use_regex", NULL};
    struct sdpi_splitter *s = out;
    struct sdpi_split_stage *stage;
    bool prefix = true, regex = true;

    (void)depth;
    if (!begin(s, at, keys) || !sdpi_part_flag(at, "add_prefix_space", &prefix) ||
        !sdpi_part_flag(at, "use_regex", &regex))
        return false;
    s->bytes = true;
    if (prefix)
        add_stage(out, SDPI_SPLIT_SPACE, SDPI_ISOLATED);
    if (!regex)
        return true;
    stage = add_stage(out, SDPI_SPLIT_PATTERN, SDPI_ISOLATED);
    return sdpi_pattern_compile(&stage->pattern, SDPI_GPT2_PATTERN, at->err) == SDP_OK;
}

static bool read_behavior(const struct sdp_json *at, struct sdpi_split_stage *stage)
{
    int behavior = (int)stage->behavior;

    if (!sdp_json_get_choice(at, "behavior", behaviors, &behavior))
        return false;
    stage->behavior = (enum sdpi_split_behavior)behavior;
    return true;
}

static bool read_split(void *out, const struct sdp_json *at, unsigned depth)
{
    static const char *const keys[] = {"type", "pattern", "behavior", "invert", NULL};
    struct sdpi_split_stage *stage;
    struct sdp_json pattern = sdp_json_member(at, "pattern");

    (void)depth;
    if (!begin(out, at, keys))
        return false;
    if (!pattern.value)
        return sdp_json_missing(at, "pattern");
    if (!json_object_get(at->value, "behavior"))
        return sdp_json_missing(at, "behavior");
    stage = add_stage(out, SDPI_SPLIT_PATTERN, SDPI_ISOLATED);
    return read_behavior(at, stage) && sdpi_part_flag(at, "invert", &stage->invert) &&
           sdpi_pattern_read(&stage->pattern, &pattern);
}

static bool read_digits(void *out, const struct sdp_json *at, unsigned depth)
{
    static const char *const keys[] = {"type", "individual_digits", NULL};
    bool single = false;

    (void)depth;
    if (!begin(out, at, keys) || !sdpi_part_flag(at, "individual_digits", &single))
        return false;
    add_stage(out, SDPI_SPLIT_FLAGS, single ? SDPI_ISOLATED : SDPI_CONTIGUOUS)->flags =
        SDPI_NUMBER;
    return true;
}

static bool read_punctuation(void *out, const struct sdp_json *at, unsigned depth)
{
    static const char *const keys[] = {"type", "behavior", NULL};
    struct sdpi_split_stage *stage;

    (void)depth;
    if (!begin(out, at, keys))
        return false;
    stage = add_stage(out, SDPI_SPLIT_FLAGS, SDPI_ISOLATED);
    stage->flags = SDPI_PUNCTUATION;
    return read_behavior(at, stage);
}

static bool read_whitespace_split(void *out, const struct sdp_json *at, unsigned depth)
{
    static const char *const keys[] = {"type", NULL};

    (void)depth;
    if (!begin(out, at, keys))
        return false;
    add_stage(out, SDPI_SPLIT_FLAGS, SDPI_REMOVED)->flags = SDPI_SPACE;
    return true;
}

/* Words, and what is neither word nor white space. */
static bool read_whitespace(void *out, const struct sdp_json *at, unsigned depth)
{
    if (!read_whitespace_split(out, at, depth))
        return false;
    add_stage(out, SDPI_SPLIT_FLAGS, SDPI_CONTIGUOUS)->flags = SDPI_WORD;
    return true;
}

static bool read_delimiter(void *out, const struct sdp_json *at, unsigned depth)
{
    static const char *const keys[] = {"type", "delimiter", NULL};
    uint32_t point = 0;

    (void)depth;
    if (!begin(out, at, keys) || !sdpi_part_point(at, "delimiter", &point))
        return false;
    add_stage(out, SDPI_SPLIT_POINT, SDPI_REMOVED)->point = point;
    return true;
}

/* Older files say add_prefix_space, newer ones prepend_scheme. */
static bool read_scheme(const struct sdp_json *at, enum sdpi_prepend *out)
{
    static const char *const schemes[] = {"always", "first", "never", NULL};
    struct sdp_json prefix = sdp_json_member(at, "add_prefix_space");
    int scheme = SDPI_PREPEND_ALWAYS;
    bool add = true;

    if (!sdp_json_get_choice(at, "prepend_scheme", schemes, &scheme) ||
        !sdpi_part_flag(at, "add_prefix_space", &add))
        return false;
    if (!add && json_object_get(at->value, "prepend_scheme") &&
        scheme != SDPI_PREPEND_NEVER)
        return sdp_json_fail(&prefix,
                             "is false, which the prepend_scheme \"%s\" "
                             "contradicts",
                             schemes[scheme]);
    *out = add ? (enum sdpi_prepend)scheme : SDPI_PREPEND_NEVER;
    return true;
}

static bool read_metaspace(void *out, const struct sdp_json *at, unsigned depth)
{
    static const char *const keys[] = {"type",  "replacement", "add_prefix_space",
                                       "split", "str_rep",     "prepend_scheme",
                                       NULL};
    struct sdpi_split_stage *stage;
    enum sdpi_prepend prepend = SDPI_PREPEND_ALWAYS;
    uint32_t point = 0;
    bool split = true;

    (void)depth;
    if (!begin(out, at, keys) || !sdpi_part_point(at, "replacement", &point) ||
        !read_scheme(at, &prepend) || !sdpi_part_flag(at, "split", &split))
        return false;
    stage = add_stage(out, SDPI_SPLIT_META, SDPI_ISOLATED);
    stage->point = point;
    stage->prepend = prepend;
    if (split)
        add_stage(out, SDPI_SPLIT_POINT, SDPI_MERGED_WITH_NEXT)->point = point;
    return true;
}

static bool read_sequence(void *out, const struct sdp_json *at, unsigned depth);

static const struct sdpi_part_kind kinds[] = {
    {"ByteLevel", read_bytes},
    {"Split", read_split},
    {"Digits", read_digits},
    {"Metaspace", read_metaspace},
    {"Punctuation", read_punctuation},
    {"Whitespace", read_whitespace},
    {"WhitespaceSplit", read_whitespace_split},
    {"CharDelimiterSplit", read_delimiter},
    {"Sequence", read_sequence},
    {NULL, NULL},
};

static bool read_sequence(void *out, const struct sdp_json *at, unsigned depth)
{
    static const char *const keys[] = {"type", "pretokenizers", NULL};

    return sdp_json_only_keys(at, keys) &&
           sdpi_part_read_all(kinds, "pre-tokenizer", out, at, "pretokenizers", depth);
}

bool sdpi_splitter_read(struct sdpi_splitter *splitter, const struct sdp_json *at)
{
    return !at->value || sdp_json_is_null(at) ||
           sdpi_part_read(kinds, "pre-tokenizer", splitter, at, 0);
}

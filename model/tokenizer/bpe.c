/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Short words are merged by searching a list, long pieces with a heap of pairs and a
 * linked list of symbols: n log n whatever the text. */
#include "model/tokenizer/bpe.h"

#include <stdlib.h>

#define SHORT     48 /* symbols of a short word */
#define WORDS     ((size_t)1 << 15)
#define NO_SYMBOL UINT32_MAX
#define DELIMITER 0x2581u /* stands for a space */

/* -- bytes as characters ---------------------------------------------------------- */

static bool stands_for_itself(uint32_t point)
{
    return (point >= 0x21 && point <= 0x7e) || (point >= 0xa1 && point <= 0xac) ||
           (point >= 0xae && point <= 0xff);
}

/* The n-th byte that does not stand for itself is the character 256 + n. */
uint32_t sdpi_byte_character(uint8_t byte)
{
    if (stands_for_itself(byte))
        return byte;
    return byte <= 0x20   ? 256u + byte
           : byte <= 0xa0 ? 256u + 33 + byte - 0x7f
                          : 256u + 67;
}

int sdpi_character_byte(uint32_t point)
{
    if (point < 256)
        return stands_for_itself(point) ? (int)point : -1;
    if (point <= 256 + 32)
        return (int)point - 256;
    if (point <= 256 + 66)
        return (int)point - 256 - 33 + 0x7f;
    return point == 256 + 67 ? 0xad : -1;
}

/* -- the first symbols ------------------------------------------------------------- */

static void reserve(struct sdpi_bpe_scratch *s, size_t symbols)
{
    size_t room = SDP_MAX(s->room, (size_t)256);

    while (room < symbols)
        room *= 2;
    if (room == s->room)
        return;
    s->ids = sdp_xrealloc(s->ids, room * sizeof *s->ids);
    s->previous = sdp_xrealloc(s->previous, room * sizeof *s->previous);
    s->next = sdp_xrealloc(s->next, room * sizeof *s->next);
    s->room = room;
}

static int32_t character_id(const struct sdpi_bpe *bpe, uint32_t point)
{
    const int32_t *page = bpe->pages[point >> 8];

    return page ? page[point & 255] : -1;
}

/* The bytes of a character as tokens of their own, if there is one for each. */
static size_t fall_back(const struct sdpi_bpe *bpe, uint32_t point, int32_t *ids)
{
    char bytes[4];
    size_t length = sdpi_utf8_write(point, bytes);

    for (size_t i = 0; i < length; i++) {
        ids[i] = bpe->fallback_id[(uint8_t)bytes[i]];
        if (ids[i] < 0)
            return 0;
    }
    return length;
}

/* One symbol for each character; characters that have none become bytes, the unknown
 * token or nothing. Unknown tokens wait until the next known character, as they may be
 * fused. */
static size_t first_symbols(const struct sdpi_bpe *bpe, const char *text, size_t length,
                            int32_t *ids)
{
    const uint8_t *bytes = (const uint8_t *)text;
    size_t count = 0, step = 1;
    bool waiting = false;

    for (size_t at = 0; at < length; at += step) {
        uint32_t point = bpe->bytes ? bytes[at] : sdpi_utf8_point(bytes + at, &step);
        int32_t id = bpe->bytes ? bpe->byte_id[point] : character_id(bpe, point);
        size_t more = 0;

        if (id >= 0) {
            if (waiting)
                ids[count++] = bpe->unknown;
            waiting = false;
            ids[count++] = id;
            continue;
        }
        if (bpe->bytes)
            point = sdpi_byte_character((uint8_t)point);
        if (bpe->byte_fallback)
            more = fall_back(bpe, point, ids + count);
        count += more;
        if (more > 0 || bpe->unknown < 0)
            continue;
        if (waiting && !bpe->fuse_unknown)
            ids[count++] = bpe->unknown;
        waiting = true;
    }
    if (waiting)
        ids[count++] = bpe->unknown;
    return count;
}

/* -- merging ------------------------------------------------------------------------- */

/* Merges in place; returns how many symbols are left. */
static size_t merge_short(const struct sdpi_bpe *bpe, int32_t *ids, size_t count)
{
    uint32_t ranks[SHORT];
    int32_t merged[SHORT];

    for (size_t i = 0; i + 1 < count; i++) {
        const struct sdpi_merge *merge = sdpi_bpe_merge(bpe, ids[i], ids[i + 1]);

        ranks[i] = merge ? merge->rank : UINT32_MAX;
        merged[i] = merge ? merge->id : -1;
    }
    while (count > 1) {
        size_t best = 0;

        for (size_t i = 1; i + 1 < count; i++)
            if (ranks[i] < ranks[best])
                best = i;
        if (ranks[best] == UINT32_MAX)
            break;
        ids[best] = merged[best];
        count--;
        memmove(ids + best + 1, ids + best + 2, (count - best - 1) * sizeof *ids);
        if (best + 1 < count) {
            memmove(ranks + best + 1, ranks + best + 2,
                    (count - best - 2) * sizeof *ranks);
            memmove(merged + best + 1, merged + best + 2,
                    (count - best - 2) * sizeof *merged);
        }
        for (size_t i = best ? best - 1 : 0; i <= best && i + 1 < count; i++) {
            const struct sdpi_merge *merge = sdpi_bpe_merge(bpe, ids[i], ids[i + 1]);

            ranks[i] = merge ? merge->rank : UINT32_MAX;
            merged[i] = merge ? merge->id : -1;
        }
    }
    return count;
}

static void sift_down(uint64_t *heap, size_t count, size_t at)
{
    uint64_t value = heap[at];

    for (size_t child; (child = at * 2 + 1) < count; at = child) {
        if (child + 1 < count && heap[child + 1] < heap[child])
            child++;
        if (heap[child] >= value)
            break;
        heap[at] = heap[child];
    }
    heap[at] = value;
}

static void heap_add(struct sdpi_bpe_scratch *s, uint64_t value)
{
    size_t at;

    if (s->heap_count == s->heap_room) {
        s->heap_room = SDP_MAX(s->heap_room * 2, (size_t)1024);
        s->heap = sdp_xrealloc(s->heap, s->heap_room * sizeof *s->heap);
    }
    at = s->heap_count++;
    for (; at > 0 && s->heap[(at - 1) / 2] > value; at = (at - 1) / 2)
        s->heap[at] = s->heap[(at - 1) / 2];
    s->heap[at] = value;
}

static uint64_t heap_take(struct sdpi_bpe_scratch *s)
{
    uint64_t top = s->heap[0];

    s->heap[0] = s->heap[--s->heap_count];
    if (s->heap_count > 0)
        sift_down(s->heap, s->heap_count, 0);
    return top;
}

/* Puts the pair that begins at a symbol into the heap, if it can be merged. */
static void offer(const struct sdpi_bpe *bpe, struct sdpi_bpe_scratch *s, uint32_t at)
{
    const struct sdpi_merge *merge;

    if (at == NO_SYMBOL || s->next[at] == NO_SYMBOL)
        return;
    merge = sdpi_bpe_merge(bpe, s->ids[at], s->ids[s->next[at]]);
    if (merge)
        heap_add(s, (uint64_t)merge->rank << 32 | at);
}

static size_t merge_long(const struct sdpi_bpe *bpe, struct sdpi_bpe_scratch *s,
                         size_t count)
{
    size_t left = 0;

    s->heap_count = 0;
    for (size_t i = 0; i < count; i++) {
        s->previous[i] = i ? (uint32_t)i - 1 : NO_SYMBOL;
        s->next[i] = i + 1 < count ? (uint32_t)i + 1 : NO_SYMBOL;
    }
    for (size_t i = 0; i + 1 < count; i++)
        offer(bpe, s, (uint32_t)i);
    while (s->heap_count > 0) {
        uint64_t top = heap_take(s);
        uint32_t at = (uint32_t)top, right = s->next[at];
        const struct sdpi_merge *merge;

        if (s->ids[at] < 0 || right == NO_SYMBOL)
            continue;
        merge = sdpi_bpe_merge(bpe, s->ids[at], s->ids[right]);
        if (!merge || merge->rank != top >> 32)
            continue; /* a neighbour was merged since */
        s->ids[at] = merge->id;
        s->ids[right] = -1;
        s->next[at] = s->next[right];
        if (s->next[at] != NO_SYMBOL)
            s->previous[s->next[at]] = at;
        offer(bpe, s, s->previous[at]);
        offer(bpe, s, at);
    }
    for (uint32_t at = count ? 0 : NO_SYMBOL; at != NO_SYMBOL; at = s->next[at])
        s->ids[left++] = s->ids[at];
    return left;
}

static void encode_piece(const struct sdpi_bpe *bpe, struct sdpi_bpe_scratch *s,
                         const char *text, size_t length, struct sdp_ids *out)
{
    int32_t id = -1;
    size_t count;

    if (bpe->ignore_merges && !bpe->can_cut)
        id = sdpi_names_id(bpe->bytes ? &bpe->raw : &bpe->names, text, length);
    if (id >= 0) {
        sdp_ids_add(out, &id, 1);
        return;
    }
    reserve(s, length * (bpe->bytes && bpe->byte_fallback ? 2 : 1) + 1);
    count = first_symbols(bpe, text, length, s->ids);
    count = count <= SHORT ? merge_short(bpe, s->ids, count) : merge_long(bpe, s, count);
    sdp_ids_add(out, s->ids, count);
}

/* -- words that were seen before ------------------------------------------ */

/* The bytes of a word as three numbers, with zeros behind its end. */
static inline void word_key(const char *text, size_t length, const char *end,
                            uint64_t key[3])
{
    key[0] = key[1] = key[2] = 0;
    if ((size_t)(end - text) < SDPI_WORD_SIZE) {
        memcpy(key, text, length);
        return;
    }
    memcpy(key, text, SDPI_WORD_SIZE);
    for (size_t i = 0; i < 3; i++) {
        size_t mine = length > i * 8 ? length - i * 8 : 0;

        key[i] &= mine >= 8 ? UINT64_MAX : ((uint64_t)1 << mine * 8) - 1;
    }
}

static inline size_t word_slot(const uint64_t key[3])
{
    uint64_t h = key[0] * 0x9e3779b97f4a7c15u;

    h = (h ^ h >> 32 ^ key[1]) * 0xff51afd7ed558ccdu;
    h = (h ^ h >> 32 ^ key[2]) * 0xc4ceb9fe1a85ec53u;
    return (size_t)(h >> 40) & (WORDS - 1);
}

static void encode_word(const struct sdpi_bpe *bpe, struct sdpi_bpe_scratch *s,
                        const char *text, size_t length, const char *end,
                        struct sdp_ids *out)
{
    uint64_t key[3];
    struct sdpi_word *word;
    size_t first;

    if (length > SDPI_WORD_SIZE) {
        encode_piece(bpe, s, text, length, out);
        return;
    }
    if (!s->words)
        s->words = sdp_xcalloc(WORDS, sizeof *s->words);
    word_key(text, length, end, key);
    word = &s->words[word_slot(key)];
    if (out->room - out->count < SDPI_WORD_IDS)
        sdp_ids_reserve(out, SDPI_WORD_IDS);
    first = out->count;
    if (word->length == length && word->key[0] == key[0] && word->key[1] == key[1] &&
        word->key[2] == key[2]) {
        memcpy(out->ids + first, word->ids, sizeof word->ids);
        out->count += word->count;
        return;
    }
    encode_piece(bpe, s, text, length, out);
    if (out->count - first > SDPI_WORD_IDS)
        return;
    memcpy(word->key, key, sizeof key);
    memcpy(word->ids, out->ids + first, (out->count - first) * sizeof *word->ids);
    word->length = (uint8_t)length;
    word->count = (uint8_t)(out->count - first);
}

/* -- pieces --------------------------------------------------------------- */

static bool joins(const struct sdpi_bpe *bpe, uint32_t point)
{
    for (size_t i = 0; i < bpe->joined_count; i++)
        if (bpe->joined[i] == point)
            return true;
    return false;
}

/* The end of the part that begins at `from`: where the next delimiter stands behind a
 * character that it cannot be merged with. */
static size_t cut(const struct sdpi_bpe *bpe, const char *text, size_t length,
                  size_t from)
{
    size_t at = from + sdpi_utf8_length((uint8_t)text[from]), step;

    while (at < length) {
        const char *found = memchr(text + at, 0xe2, length - at);

        if (!found)
            return length;
        at = (size_t)(found - text);
        if (text[at + 1] == '\x96' && text[at + 2] == '\x81' &&
            !joins(bpe, sdpi_utf8_point(
                            (const uint8_t *)text + sdpi_utf8_before(text, at), &step)))
            return at;
        at += 3;
    }
    return length;
}

void sdpi_bpe_encode(const struct sdpi_bpe *bpe, struct sdpi_bpe_scratch *scratch,
                     const char *text, size_t length, const char *end,
                     struct sdp_ids *out)
{
    int32_t id = -1;

    if (!bpe->can_cut) {
        encode_word(bpe, scratch, text, length, end, out);
        return;
    }
    if (bpe->ignore_merges) /* the parts are no pieces: this is for the whole */
        id = sdpi_names_id(&bpe->names, text, length);
    if (id >= 0) {
        sdp_ids_add(out, &id, 1);
        return;
    }
    for (size_t from = 0, to; from < length; from = to) {
        to = cut(bpe, text, length, from);
        encode_word(bpe, scratch, text + from, to - from, end, out);
    }
}

void sdpi_bpe_scratch_free(struct sdpi_bpe_scratch *s)
{
    free(s->words);
    free(s->ids);
    free(s->previous);
    free(s->next);
    free(s->heap);
    *s = (struct sdpi_bpe_scratch){.words = NULL};
}

/* -- what follows from the vocabulary ------------------------------------- */

static void add_character(struct sdpi_bpe *bpe, uint32_t point, int32_t id)
{
    int32_t **page = &bpe->pages[point >> 8];

    if (!*page) {
        *page = sdp_xcalloc(256, sizeof **page);
        memset(*page, 0xff, 256 * sizeof **page);
    }
    (*page)[point & 255] = id;
}

/* The token's characters as the bytes that they stand for; false if one stands for none.
 */
static bool raw_token(const char *token, size_t length, struct sdpi_text *out)
{
    size_t step;

    out->length = 0;
    for (size_t at = 0; at < length; at += step) {
        int byte =
            sdpi_character_byte(sdpi_utf8_point((const uint8_t *)token + at, &step));
        char one = (char)byte;

        if (byte < 0)
            return false;
        sdpi_text_add(out, &one, 1);
    }
    return true;
}

static void prepare_bytes(struct sdpi_bpe *bpe)
{
    struct sdpi_text raw = {NULL, 0, 0};

    for (size_t i = 0; i < 256; i++)
        bpe->byte_id[i] = -1;
    for (size_t i = 0; i < bpe->names.count; i++) {
        const struct sdpi_name *name = &bpe->names.items[i];

        if (!raw_token(bpe->names.text.data + name->offset, name->length, &raw))
            continue;
        if (raw.length == 1)
            bpe->byte_id[(uint8_t)raw.data[0]] = name->id;
        if (bpe->ignore_merges && raw.length > 0)
            sdpi_names_add(&bpe->raw, raw.data, raw.length, name->id);
    }
    sdpi_text_free(&raw);
}

static void prepare_characters(struct sdpi_bpe *bpe)
{
    for (size_t i = 0; i < bpe->names.count; i++) {
        const struct sdpi_name *name = &bpe->names.items[i];
        const char *token = bpe->names.text.data + name->offset;
        size_t length;

        if (name->length > 0 && name->length == sdpi_utf8_length((uint8_t)token[0]))
            add_character(bpe, sdpi_utf8_point((const uint8_t *)token, &length),
                          name->id);
    }
}

static void prepare_fallback(struct sdpi_bpe *bpe)
{
    static const char digits[] = "0123456789ABCDEF";

    for (size_t i = 0; i < 256; i++) {
        char token[] = {'<', '0', 'x', digits[i >> 4], digits[i & 15], '>'};

        bpe->fallback_id[i] = sdpi_names_id(&bpe->names, token, sizeof token);
    }
}

/* Whether a merge may touch symbols that are not what the text has there. */
static bool is_stand_in(const struct sdpi_bpe *bpe, int32_t id)
{
    bool found = id == bpe->unknown;

    for (size_t i = 0; i < 256 && bpe->byte_fallback; i++)
        found = found || bpe->fallback_id[i] == id;
    return found;
}

static bool add_joined(struct sdpi_bpe *bpe, uint32_t point)
{
    if (joins(bpe, point))
        return true;
    if (bpe->joined_count == SDP_COUNT_OF(bpe->joined))
        return false;
    bpe->joined[bpe->joined_count++] = point;
    return true;
}

static const uint8_t *token_of(const struct sdpi_bpe *bpe, uint32_t id, size_t *length)
{
    const struct sdpi_name *name = sdpi_bpe_name(bpe, (int32_t)id);

    *length = name->length; /* merges are of tokens of the vocabulary */
    return (const uint8_t *)bpe->names.text.data + name->offset;
}

/* Finds out behind which characters a delimiter can be merged with what is before it. */
static bool find_joined(struct sdpi_bpe *bpe)
{
    size_t left_length, right_length, step;

    for (size_t i = 0; i <= bpe->merge_mask; i++) {
        uint64_t pair = bpe->merges[i].pair;
        const uint8_t *left, *right;

        if (pair == UINT64_MAX)
            continue;
        left = token_of(bpe, (uint32_t)(pair >> 32), &left_length);
        right = token_of(bpe, (uint32_t)pair, &right_length);
        if (left_length == 0 || right_length == 0 ||
            is_stand_in(bpe, (int32_t)(pair >> 32)) || is_stand_in(bpe, (int32_t)pair))
            return false;
        if (sdpi_utf8_point(right, &step) != DELIMITER)
            continue;
        left += sdpi_utf8_before((const char *)left, left_length);
        if (!add_joined(bpe, sdpi_utf8_point(left, &step)))
            return false;
    }
    return true;
}

void sdpi_bpe_prepare(struct sdpi_bpe *bpe, bool bytes)
{
    bpe->bytes = bytes;
    prepare_fallback(bpe);
    if (bytes) {
        prepare_bytes(bpe);
        return;
    }
    prepare_characters(bpe);
    bpe->can_cut = character_id(bpe, DELIMITER) >= 0 && find_joined(bpe);
}

void sdpi_bpe_free(struct sdpi_bpe *bpe)
{
    sdpi_names_free(&bpe->names);
    sdpi_names_free(&bpe->raw);
    free(bpe->merges);
    free(bpe->by_id);
    for (size_t i = 0; i < SDP_COUNT_OF(bpe->pages); i++)
        free(bpe->pages[i]);
    *bpe = (struct sdpi_bpe){.merges = NULL};
}

/* call_openings.h - what may begin a tool call, or ends fenced code, at a place of the text of an
 * answer. The finder of api_tools.h asks for each place outside of calls.
 *
 * Thread: the engine's; it may change `open.name` and the fences of the finder. Stage: 8. */
#pragma once

#include "engine/api/api_tools.h"
#include "engine/text/call_marks.h"

#define CN_CALL_FENCE "```"

/* More text may decide; no; yes. */
typedef enum cn_verdict { CN_WAIT, CN_NO, CN_YES } cn_verdict;

typedef struct cn_opening {
    const cn_call_mark *mark;
    enum { CN_AT_OBJECT, CN_AT_TAG, CN_AT_LIST, CN_AT_FENCE_END } kind; /* without a mark */
    size_t n;       /* bytes of <function=NAME>, or of the bracket of a list NAME(... */
    size_t n_fence; /* bytes of the fence before the mark, tag, object or list */
} cn_opening;

bool cn_is_call_name_byte(char c);
size_t cn_count_space(const char *text, size_t n);
bool cn_is_tool(const cn_tool_finder *f, const json_t *name);

/* Whether text[n] begins with a mark other than those inside of calls. */
cn_verdict cn_match_call_mark(const char *text, size_t n, const cn_call_mark **out);

/* Reads "NAME>" or, if `is_tagged` is false, NAME with what the Mistral models write before the
 * arguments, or "(", or NAME and white space before what GLM-4.5 writes. *len: its bytes. The name
 * is then f->open.name. */
cn_verdict cn_match_call_name(cn_tool_finder *f, const char *text, size_t n, bool is_tagged,
                              size_t *len);

/* Reads the opening of fenced code, with its language. *len: its bytes. */
cn_verdict cn_match_fence(const char *text, size_t n, size_t *len);

/* Whether text[n] begins with a fence without a language. */
cn_verdict cn_match_fence_end(const char *text, size_t n, bool end);

/* Decides what the held text from byte i on is. `end`: nothing follows it. */
cn_verdict cn_match_opening(cn_tool_finder *f, size_t i, bool end, cn_opening *out);

/* call_marks.c - see call_marks.h. */
#include "engine/text/call_marks.h"

const cn_call_mark cn_call_marks[CN_N_CALL_MARKS] = {
    {CN_TOOL_CALL_OPEN, CN_MARK_OPENS}, {CN_TOOL_CALL_CLOSE, CN_MARK_CLOSES},
    {"<|python_tag|>", CN_MARK_OPENS},  {CN_MISTRAL_CALLS, CN_MARK_OPENS},
    {"[/TOOL_CALLS]", CN_MARK_CLOSES},  {"</function>", CN_MARK_CLOSES_CALL},
    {CN_CALL_ARGUMENTS, CN_MARK_INSIDE}, {CN_CALL_ID, CN_MARK_INSIDE},
};

bool cn_is_call_mark(const char *text, size_t n)
{
    for (size_t i = 0; i < CN_N_CALL_MARKS; i++)
        if (strlen(cn_call_marks[i].text) == n && memcmp(cn_call_marks[i].text, text, n) == 0)
            return true;
    return false;
}

/* chat_family.c - the table of chat templates. See chat_family.h. */
#include "engine/text/chat_family.h"

#include <string.h>

#define CHATML_SYSTEM "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."

/* ---- parts of the Qwen templates ---- */

/* The system message with the list of tools, around SYSTEM, which writes the system text. */
#define QWEN_TOOLS(SYSTEM)                                                                         \
    "{%- if tools %}\n"                                                                            \
    "    {{- '<|im_start|>system\\n' }}\n" SYSTEM                                                  \
    "    {{- '# Tools\\n\\nYou may call one or more functions to assist with the user query.\\n"   \
    "\\nYou are provided with function signatures within <tools></tools> XML tags:\\n<tools>' }}\n"\
    "    {%- for tool in tools %}\n"                                                               \
    "        {{- '\\n' ~ (tool | tojson) }}\n"                                                     \
    "    {%- endfor %}\n"                                                                          \
    "    {{- '\\n</tools>\\n\\nFor each function call, return a json object with function name "   \
    "and arguments within <tool_call></tool_call> XML tags:\\n<tool_call>\\n{\"name\": "           \
    "<function-name>, \"arguments\": <args-json-object>}\\n</tool_call><|im_end|>\\n' }}\n"

/* The tool calls of an assistant message. A newline comes before those where BEFORE holds. */
#define QWEN_CALLS(BEFORE)                                                                         \
    "        {%- for call in message.tool_calls or [] %}\n"                                        \
    "            {%- set call = call.function if call.function else call %}\n"                     \
    "            {%- if " BEFORE " %}\n"                                                           \
    "                {{- '\\n' }}\n"                                                               \
    "            {%- endif %}\n"                                                                   \
    "            {{- '<tool_call>\\n{\"name\": \"' ~ call.name ~ '\", \"arguments\": ' }}\n"       \
    "            {{- call.arguments if call.arguments is string else call.arguments | tojson }}\n" \
    "            {{- '}\\n</tool_call>' }}\n"                                                      \
    "        {%- endfor %}\n"                                                                      \
    "        {{- '<|im_end|>\\n' }}\n"

/* Results of tools: consecutive ones share a user turn. */
#define QWEN_RESULTS                                                                               \
    "    {%- elif message.role == 'tool' %}\n"                                                     \
    "        {%- if loop.first or loop.previtem.role != 'tool' %}\n"                               \
    "            {{- '<|im_start|>user' }}\n"                                                      \
    "        {%- endif %}\n"                                                                       \
    "        {{- '\\n<tool_response>\\n' ~ message.content ~ '\\n</tool_response>' }}\n"           \
    "        {%- if loop.last or loop.nextitem.role != 'tool' %}\n"                                \
    "            {{- '<|im_end|>\\n' }}\n"                                                         \
    "        {%- endif %}\n"                                                                       \
    "    {%- endif %}\n"                                                                           \
    "{%- endfor %}\n"

static const char chatml[] =
    "{%- for message in messages %}\n"
    "    {{- '<|im_start|>' ~ message.role ~ '\\n' ~ message.content ~ '<|im_end|>\\n' }}\n"
    "{%- endfor %}\n"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}\n";

static const char qwen2[] =
    "{%- set given = messages[0].content if messages[0].role == 'system' else '" CHATML_SYSTEM
    "' %}\n" QWEN_TOOLS("    {{- given ~ '\\n\\n' }}\n")
    "{%- else %}\n"
    "    {{- '<|im_start|>system\\n' ~ given ~ '<|im_end|>\\n' }}\n"
    "{%- endif %}\n"
    "{%- for message in messages %}\n"
    "    {%- if message.role == 'user' or (message.role == 'system' and not loop.first) or "
    "(message.role == 'assistant' and not message.tool_calls) %}\n"
    "        {{- '<|im_start|>' ~ message.role ~ '\\n' ~ message.content ~ '<|im_end|>\\n' }}\n"
    "    {%- elif message.role == 'assistant' %}\n"
    "        {{- '<|im_start|>assistant' }}\n"
    "        {%- if message.content %}{{- '\\n' ~ message.content }}{%- endif %}\n"
    QWEN_CALLS("true") QWEN_RESULTS
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}\n";

static const char qwen3[] =
    QWEN_TOOLS("    {%- if messages[0].role == 'system' %}\n"
               "        {{- messages[0].content ~ '\\n\\n' }}\n"
               "    {%- endif %}\n")
    "{%- elif messages[0].role == 'system' %}\n"
    "    {{- '<|im_start|>system\\n' ~ messages[0].content ~ '<|im_end|>\\n' }}\n"
    "{%- endif %}\n"
    /* Reasoning before the last question is dropped. A tool result is not a question. */
    "{%- set last = namespace(query=messages | length - 1, seen=false) %}\n"
    "{%- for message in messages[::-1] %}\n"
    "    {%- if not last.seen and message.role == 'user' and not "
    "(message.content.startswith('<tool_response>') and "
    "message.content.endswith('</tool_response>')) %}\n"
    "        {%- set last.seen = true %}\n"
    "        {%- set last.query = loop.revindex0 %}\n"
    "    {%- endif %}\n"
    "{%- endfor %}\n"
    "{%- for message in messages %}\n"
    "    {%- set content = message.content if message.content is string else '' %}\n"
    "    {%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}\n"
    "        {{- '<|im_start|>' ~ message.role ~ '\\n' ~ content ~ '<|im_end|>\\n' }}\n"
    "    {%- elif message.role == 'assistant' %}\n"
    "        {%- set reasoning = '' %}\n"
    "        {%- if message.reasoning_content is string %}\n"
    "            {%- set reasoning = message.reasoning_content %}\n"
    "        {%- elif '</think>' in content %}\n"
    "            {%- set reasoning = content.split('</think>')[0].rstrip('\\n')"
    ".split('<think>')[-1].lstrip('\\n') %}\n"
    "            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}\n"
    "        {%- endif %}\n"
    "        {{- '<|im_start|>assistant\\n' }}\n"
    "        {%- if loop.index0 > last.query and (loop.last or reasoning) %}\n"
    "            {{- '<think>\\n' ~ reasoning.strip('\\n') ~ '\\n</think>\\n\\n' }}\n"
    "            {%- set content = content.lstrip('\\n') %}\n"
    "        {%- endif %}\n"
    "        {{- content }}\n" QWEN_CALLS("content or not loop.first") QWEN_RESULTS
    "{%- if add_generation_prompt %}\n"
    "    {{- '<|im_start|>assistant\\n' }}\n"
    "    {%- if enable_thinking is defined and enable_thinking is false %}\n"
    "        {{- '<think>\\n\\n</think>\\n\\n' }}\n"
    "    {%- endif %}\n"
    "{%- endif %}\n";

static const char llama3[] =
    "{{- bos_token }}\n"
    "{%- for message in messages %}\n"
    "    {{- '<|start_header_id|>' ~ message.role ~ '<|end_header_id|>\\n\\n' ~ message.content | "
    "trim ~ '<|eot_id|>' }}\n"
    "{%- endfor %}\n"
    "{%- if add_generation_prompt %}\n"
    "    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}\n"
    "{%- endif %}\n";

static const char deepseek_r1[] =
    "{%- set system = messages | selectattr('role', 'equalto', 'system') | list %}\n"
    "{{- bos_token }}\n"
    "{%- if system %}{{- system[-1].content }}{%- endif %}\n"
    "{%- for message in messages %}\n"
    "    {%- if message.role == 'user' %}\n"
    "        {{- '<｜User｜>' ~ message.content }}\n"
    "    {%- elif message.role == 'assistant' %}\n"
    "        {{- '<｜Assistant｜>' ~ message.content.split('</think>')[-1] ~ "
    "'<｜end▁of▁sentence｜>' }}\n"
    "    {%- elif message.role != 'system' %}\n"
    "        {{- raise_exception('the chat template deepseek-r1 has no role \"' ~ message.role ~ "
    "'\"') }}\n"
    "    {%- endif %}\n"
    "{%- endfor %}\n"
    "{%- if add_generation_prompt %}{{- '<｜Assistant｜><think>\\n' }}{%- endif %}\n";

static const char none[] = "{{- messages | map(attribute='content') | join('\\n') }}\n";

static const cn_chat_family families[] = {
    {"chatml", chatml, false},
    {"qwen2", qwen2, false},
    {"qwen3", qwen3, false},
    {"llama3", llama3, false},
    {"deepseek-r1", deepseek_r1, false},
    {"none", none, true},
};

const cn_chat_family *cn_chat_family_find(const char *name)
{
    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        if (strcmp(families[i].name, name) == 0) return &families[i];
    return NULL;
}

size_t cn_chat_family_count(void) { return sizeof families / sizeof *families; }

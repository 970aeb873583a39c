/* xml_arguments.h - the arguments of a call in tags, as a JSON object. Qwen3-Coder writes them:
 *
 *   <function=f>
 *   <parameter=city>
 *   Paris
 *   </parameter>
 *   </function>
 *
 * GLM-4.5 writes them without a tag of the function, which ends with the call:
 *
 *   <arg_key>city</arg_key>
 *   <arg_value>Paris</arg_value>
 *   </tool_call>
 *
 * The schema of a parameter says whether its text is a string. Without a schema, text that is JSON
 * is a value, and other text is a string.
 *
 * </function> or </tool_call> in a value is part of it if its own closing tag follows before
 * another call begins. Otherwise it ends the call, whose closing tags the model left out.
 *
 * Owner: cn_tool_finder. Thread: the engine's. Stage: 8. */
#pragma once

#include <jansson.h>

#include "engine/base/base.h"

/* Zero, then set the first. Free with cn_xml_args_free. */
typedef struct cn_xml_args {
    const json_t *parameters; /* borrowed: the schema of the function's parameters, or not one */
    cn_buf key, text;         /* the parameter, and its text or a tag so far */
    cn_buf rest;           /* text that was read and follows the function: the caller clears it */
    bool in_key, in_value; /* in_key: of <arg_key> */
    bool is_pair;          /* the value is in <arg_value> */
    uint32_t n_open;       /* <tool_call> and <function= in the value that are not closed there */
    size_t ends_at, closed_at; /* where in `text` a tag that closes none of them begins and ends */
    uint32_t n;                /* parameters so far */
} cn_xml_args;

typedef enum cn_xml_step { CN_XML_GO_ON, CN_XML_ENDED, CN_XML_NONE } cn_xml_step;

/* Takes a byte of what follows <function=NAME> and appends JSON. *step: whether the function has
 * ended, or the text cannot be its arguments, which is so before the first parameter only. */
cn_status cn_xml_args_add(cn_xml_args *x, char c, cn_buf *out, cn_xml_step *step);
/* The text ends early. `is_whole`: the model ended it, so the arguments are closed. Otherwise
 * appends what there is of a value. */
cn_status cn_xml_args_cut(cn_xml_args *x, bool is_whole, cn_buf *out);
void cn_xml_args_free(cn_xml_args *x);

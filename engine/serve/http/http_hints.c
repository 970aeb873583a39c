/* http_hints.c - what to use in place of paths that other servers have. See http_state.h. */

#include "engine/serve/http/http_state.h"

#define CHAT "use POST /v1/chat/completions"
#define COMPLETION "use POST /v1/completions"
#define MODELS "use GET /v1/models"
#define HEALTH "use GET /health"
#define STATS "use GET /stats, or GET /metrics for Prometheus"
#define BASE "the base URL of the client must end with /v1"
#define NOT_SERVED "are not served: use a server that has them"

/* Paths, or their beginnings before a *. The first that fits counts. */
static const struct hint {
    const char *path, *text;
} hints[] = {
    /* The base URL is wrong. */
    {"/v1/v1/*", "the base URL of the client has /v1 twice: use it once"},
    {"/v1", "this is a base URL: use the paths that begin with it, such as /v1/chat/completions"},
    {"/chat/completions", CHAT ": " BASE},
    {"/completions", COMPLETION ": " BASE},
    {"/responses", "use POST /v1/responses: " BASE},
    {"/models*", MODELS ": " BASE},
    {"/files*", "use /v1/files: " BASE},
    {"/batches*", "use /v1/batches: " BASE},
    {"/v1/tokenize", "use POST /tokenize"},
    {"/v1/detokenize", "use POST /detokenize"},
    {"/v1/chat", CHAT},
    {"/v1/chat/completion", CHAT},
    {"/v1/completion", COMPLETION},
    {"/v1/model", MODELS},
    /* OpenAI: what is not served, and earlier names. */
    {"/v1/responses/*", "responses are not stored: use POST /v1/responses with the whole input"},
    {"/v1/conversations*", "conversations are not stored: use POST /v1/responses with the whole "
                           "input"},
    {"/v1/chat/completions/*", "chats are not stored: " CHAT " with all messages"},
    {"/v1/engines", MODELS},
    {"/v1/engines/*", COMPLETION " with the name of the model as model"},
    {"/v1/edits", CHAT},
    {"/v1/assistants*", "assistants are not served: " CHAT},
    {"/v1/threads*", "threads are not stored: " CHAT " with all messages"},
    {"/v1/embeddings", "embeddings " NOT_SERVED},
    {"/embeddings", "embeddings " NOT_SERVED},
    {"/v1/audio*", "speech and transcription " NOT_SERVED},
    {"/v1/images*", "images " NOT_SERVED},
    {"/v1/moderations", "moderations " NOT_SERVED},
    {"/v1/realtime*", "realtime sessions are not served: " CHAT " with \"stream\": true"},
    {"/v1/uploads*", "uploads in parts are not served: use POST /v1/files"},
    {"/v1/vector_stores*", "vector stores " NOT_SERVED},
    {"/v1/fine_tuning*", "fine-tuning jobs " NOT_SERVED},
    /* Azure, Anthropic, Cohere, Google */
    {"/openai/*", CHAT " with the name of the model as model: " BASE},
    {"/v1/messages*", CHAT ": Anthropic's messages are not served"},
    {"/v1/complete", COMPLETION},
    {"/v2/chat", CHAT},
    {"/v1beta/*", CHAT ": Google's paths are not served"},
    /* vLLM, SGLang, TGI, llama.cpp, Triton, SageMaker, Vertex AI */
    {"/generate*", COMPLETION ", with \"stream\": true for a stream"},
    {"/completion", COMPLETION},
    {"/infill", COMPLETION ": text after the gap is not supported"},
    {"/invocations", CHAT},
    {"/predict", CHAT},
    {"/v1/rerank", "reranking is not served: use a server that has it"},
    {"/rerank", "reranking is not served: use a server that has it"},
    {"/v2/rerank", "reranking is not served: use a server that has it"},
    {"/v2/*", CHAT ": the inference protocol of Triton is not served"},
    {"/score", "scores of pairs " NOT_SERVED},
    {"/v1/score", "scores of pairs " NOT_SERVED},
    {"/pooling", "embeddings " NOT_SERVED},
    {"/classify", "classes " NOT_SERVED},
    {"/embed*", "embeddings " NOT_SERVED},
    {"/apply-template", "use POST /tokenize with messages"},
    {"/load", STATS},
    {"/props", STATS},
    {"/slots", STATS},
    {"/info", MODELS},
    {"/get_model_info", MODELS},
    {"/server_info", STATS},
    {"/get_server_info", STATS},
    /* Ollama */
    {"/api/chat", CHAT},
    {"/api/generate", COMPLETION},
    {"/api/tags", MODELS},
    {"/api/ps", MODELS},
    {"/api/show", MODELS},
    {"/api/version", "use GET /version"},
    {"/api/embed*", "embeddings " NOT_SERVED},
    {"/api/pull", "models are not loaded at run time: start the server with --model"},
    {"/api/*", "Ollama's paths are not served: " CHAT},
    /* Checks and descriptions */
    {"/ping", HEALTH},
    {"/healthz", HEALTH},
    {"/livez", HEALTH},
    {"/readyz", HEALTH},
    {"/health/*", HEALTH},
    {"/health_generate", HEALTH},
    {"/v1/health*", HEALTH},
    {"/status", STATS},
    {"/v1/metrics", "use GET /metrics"},
    {"/v1/version", "use GET /version"},
    {"/docs*", "use GET /openapi.json"},
    {"/redoc", "use GET /openapi.json"},
    {"/swagger*", "use GET /openapi.json"},
    {"/v1/openapi.json", "use GET /openapi.json"},
};

const char *http_hint(const char *path)
{
    for (size_t i = 0; i < sizeof hints / sizeof *hints; i++) {
        const size_t n = strlen(hints[i].path);
        const bool begins = hints[i].path[n - 1] == '*';
        if (begins ? strncmp(path, hints[i].path, n - 1) == 0 : strcmp(path, hints[i].path) == 0)
            return hints[i].text;
    }
    return NULL;
}

/* isotherm info: what a model is, what its cache costs, and what fits in this machine. No weights are packed.
 */
#include "engine/cli.h"
#include "engine/runtime/sizing.h"
#include "formats/gguf.h"
#include "kernels/kernels.h"
#include <stdio.h>

static void print_model(const struct eng_model_desc *d, uint64_t file_bytes)
{
    char a[32];
    char b[32];
    printf("model          %s · %s · %.1fM parameters\n", d->name, d->architecture,
           (double)d->parameters / 1e6);
    printf("file           %s · weights %s\n", sizing_text(file_bytes, a), sizing_text(d->weight_bytes, b));
    printf("layers         %u · hidden %u · ffn %u\n", d->n_layers, d->hidden, d->ffn);
    printf("attention      %u heads · %u kv heads · head dim %u · rope %u dims, theta %g%s%s\n", d->n_heads,
           d->n_kv_heads, d->head_dim, d->rot_dims, (double)d->rope_theta, d->qkv_bias ? " · qkv bias" : "",
           d->qk_norm ? " · q/k norm" : "");
    printf("vocabulary     %u%s\n", d->n_vocab, d->tied_head ? " · head tied to the embedding" : "");
}

static void print_cache(const struct cli_options *o, const struct eng_model_desc *d)
{
    char a[32];
    char b[32];
    struct kn_kv_layout kv = {(enum kn_kv_dtype)o->kv_dtype, d->n_layers, d->n_kv_heads, d->head_dim};
    static const char *const dtype[] = {"f16", "bf16", "f32"};
    uint64_t page = kn_kv_page_bytes(&kv);
    uint64_t stride = (page + 4095) / 4096 * 4096;
    uint32_t context = o->context ? o->context : d->context_trained;
    uint32_t concurrency = o->max_concurrency ? o->max_concurrency : SIZING_CONCURRENCY_DEFAULT;
    const char *reason = "as asked";
    uint64_t arena = o->kv_cache_bytes
                         ? o->kv_cache_bytes
                         : sizing_kv_bytes(stride, context, concurrency, (enum eng_kv_limit)o->kv_limit,
                                           d->weight_bytes, &reason);
    uint64_t tokens = arena / stride * KN_PAGE_TOKENS;
    struct sizing_memory memory = sizing_memory_available();

    printf("context        %u trained · %u used%s\n", d->context_trained, context,
           context > d->context_trained ? " (beyond the trained length)" : "");
    printf("kv bytes       %llu a token (%s)\n", (unsigned long long)(page / KN_PAGE_TOKENS),
           dtype[o->kv_dtype]);
    printf("page           %u tokens · %s · stride %s\n", KN_PAGE_TOKENS, sizing_text(page, a),
           sizing_text(stride, b));
    printf("checkpoint     0 B (all layers are full attention: pages hold all there is)\n");
    printf("one context    %s\n",
           sizing_text(((uint64_t)context + KN_PAGE_TOKENS - 1) / KN_PAGE_TOKENS * stride, a));
    printf("memory         %s available%s\n", sizing_text(memory.available_bytes, a),
           memory.limited_by_cgroup ? " (control group)" : "");
    printf("what fits      %s of pages · %llu tokens · %.1f full contexts · %s\n", sizing_text(arena, a),
           (unsigned long long)tokens, context ? (double)tokens / context : 0.0, reason);
}

int cli_info(const struct cli_options *o)
{
    char err[400] = "";
    struct fmt_gguf *gguf = NULL;
    struct eng_model_desc desc;
    int rc = fmt_gguf_open(o->model, &gguf, err, sizeof err);
    if (rc == FMT_OK)
        rc = eng_model_describe(gguf, &desc, err, sizeof err);
    if (rc != 0) {
        fprintf(stderr, "isotherm info: %s\n", err);
        fmt_gguf_close(gguf);
        return CLI_FAILED;
    }
    print_model(&desc, fmt_gguf_file_bytes(gguf));
    print_cache(o, &desc);
    fmt_gguf_close(gguf);
    return CLI_OK;
}

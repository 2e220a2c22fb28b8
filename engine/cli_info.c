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
    printf("layers         %u", d->n_layers);
    if (d->n_full < d->n_layers) {
        printf(" (%u full", d->n_full);
        if (d->n_window)
            printf(", %u of the last %u tokens", d->n_window, d->window);
        if (d->n_recurrent)
            printf(", %u recurrent", d->n_recurrent);
        putchar(')');
    }
    printf(" · hidden %u · ffn %u\n", d->hidden, d->n_experts ? d->expert_ffn : d->ffn);
    if (d->n_experts)
        printf("experts        %u · %u used · shared %u\n", d->n_experts, d->n_experts_used,
               d->shared_expert_ffn);
    printf("attention      %u heads · %u kv heads · head dim %u · rope %u dims, theta %g%s%s\n", d->n_heads,
           d->n_kv_heads, d->head_dim, d->rot_dims, (double)d->rope_theta, d->qkv_bias ? " · qkv bias" : "",
           d->qk_norm ? " · q/k norm" : "");
    printf("vocabulary     %u%s\n", d->n_vocab, d->tied_head ? " · head tied to the embedding" : "");
}

/* What a sequence needs beside its pages to be resumed, and what that costs. */
static void print_checkpoint(const struct eng_state_desc *s, uint64_t stride)
{
    char a[32];
    char b[32];
    uint64_t blocks = sizing_checkpoint_blocks(s, stride);
    uint64_t window_blocks = blocks - sizing_state_blocks(s, stride);
    if (blocks == 0) {
        printf("checkpoint     0 B (all layers are full attention: pages hold all there is)\n");
        return;
    }
    printf("checkpoint     %s · as much as pages of %llu tokens · every %u tokens\n",
           sizing_text(blocks * stride, a), (unsigned long long)blocks * KN_PAGE_TOKENS, s->grid);
    if (window_blocks)
        printf("  windows      %s · %u groups of %u layers · the last %u tokens, shared between neighbours\n",
               sizing_text(window_blocks * stride, a), s->window_groups, s->group_layers, s->window);
    if (s->state_bytes)
        printf("  state        %s · live %s a sequence\n", sizing_text(s->state_bytes, a),
               sizing_text(sizing_live_bytes(s), b));
    if (s->replay_tokens)
        printf("  without it   the %u tokens before it computed again give the same\n", s->replay_tokens);
    else
        printf("  without it   only the whole prefix computed again gives the same\n");
}

static void print_cache(const struct cli_options *o, const struct eng_model_desc *d)
{
    char a[32];
    char b[32];
    struct eng_state_desc s;
    eng_model_state_of(d, (enum kn_kv_dtype)o->kv_dtype, &s);
    struct kn_kv_layout kv = {(enum kn_kv_dtype)o->kv_dtype, s.group_layers, d->n_kv_heads, d->head_dim};
    static const char *const dtype[] = {"f16", "bf16", "f32"};
    uint64_t page = kn_kv_page_bytes(&kv);
    uint64_t stride = (page + 4095) / 4096 * 4096;
    uint64_t region = sizing_live_bytes(&s);
    uint32_t context = o->context ? o->context : d->context_trained;
    uint32_t concurrency = o->max_concurrency ? o->max_concurrency : SIZING_CONCURRENCY_DEFAULT;
    uint64_t blocks = sizing_context_blocks(&s, stride, context);
    uint64_t one = blocks > (UINT64_MAX - region) / stride ? UINT64_MAX : blocks * stride + region;
    const char *reason = "as asked";
    uint64_t kv_bytes = o->kv_cache_bytes ? o->kv_cache_bytes
                                          : sizing_kv_bytes(one, concurrency, (enum eng_kv_limit)o->kv_limit,
                                                            d->weight_bytes, &reason);
    uint64_t live = region * sizing_concurrency(kv_bytes, region, concurrency);
    uint64_t arena = kv_bytes > live ? kv_bytes - live : 0;
    uint64_t tokens = sizing_tokens(&s, arena / stride);
    uint64_t checkpoint = sizing_checkpoint_blocks(&s, stride);
    struct cs_memory memory = cs_memory_available();

    printf("context        %u trained · %u used%s\n", d->context_trained, context,
           context > d->context_trained ? " (beyond the trained length)" : "");
    printf("kv bytes       %llu a token (%s)\n", (unsigned long long)(page / KN_PAGE_TOKENS),
           dtype[o->kv_dtype]);
    printf("page           %u tokens · %s · stride %s\n", KN_PAGE_TOKENS, sizing_text(page, a),
           sizing_text(stride, b));
    print_checkpoint(&s, stride);
    printf("one context    %s\n", sizing_text(one, a));
    printf("memory         %s available%s\n", sizing_text(memory.available_bytes, a),
           memory.limited_by_cgroup ? " (control group)" : "");
    printf("what fits      %s of pages · %llu tokens · %.1f full contexts · %s\n", sizing_text(arena, a),
           (unsigned long long)tokens, (double)kv_bytes / (double)one, reason);
    if (checkpoint)
        printf("               or %llu checkpoints, or any mix of both\n",
               (unsigned long long)(arena / stride / checkpoint));
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

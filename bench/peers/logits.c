// Logits of the last of some tokens, from llama.cpp: `logits MODEL OUT TOKEN...` writes them as raw f32.

#include "llama.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char ** argv) {
    if (argc < 4) {
        fprintf(stderr, "usage: logits MODEL OUT TOKEN...\n");
        return 2;
    }
    llama_token tokens[512];
    int count = 0;
    for (int i = 3; i < argc && count < 512; i++) {
        tokens[count++] = atoi(argv[i]);
    }

    llama_backend_init();
    struct llama_model * model = llama_model_load_from_file(argv[1], llama_model_default_params());
    if (!model) {
        return 1;
    }
    struct llama_context_params params = llama_context_default_params();
    params.n_ctx = 512;
    struct llama_context * context = llama_init_from_model(model, params);
    if (!context || llama_decode(context, llama_batch_get_one(tokens, count)) != 0) {
        return 1;
    }

    int vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
    const float * logits = llama_get_logits_ith(context, -1);
    for (int i = 0; i < vocab; i++) {
        if (!isfinite(logits[i])) {
            fprintf(stderr, "logit %d is not finite\n", i);
            return 1;
        }
    }
    FILE * out = fopen(argv[2], "wb");
    if (!out || fwrite(logits, sizeof(float), vocab, out) != (size_t) vocab || fclose(out) != 0) {
        perror(argv[2]);
        return 1;
    }
    return 0;
}

"""Writes a tiny model of random weights as a GGUF file: it talks nonsense, and its server is real.

usage: make_model.py FILE

The vocabulary has the 256 bytes and all pairs of lower-case letters and spaces, so that a token is about two bytes.
"""

import string
import sys

import gguf
import numpy as np

EMBEDDING, HEADS, LAYERS, FEED_FORWARD = 64, 4, 2, 128
TRAINED_ON = 32768


def vocabulary():
    tokens = [("<unk>", 2), ("<s>", 3), ("</s>", 3)]
    tokens += [(f"<0x{byte:02X}>", 6) for byte in range(256)]
    # The marker that this kind of tokenizer puts for a space.
    letters = "\u2581" + string.ascii_lowercase
    singles = letters + string.ascii_uppercase + string.digits + ".,:;-_'\"()[]{}#*/<>\n"
    tokens += [(single, 1) for single in singles]
    tokens += [(first + second, 1) for first in letters for second in letters]
    return tokens


def main(path):
    random = np.random.default_rng(7)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("random")
    writer.add_context_length(TRAINED_ON)
    writer.add_embedding_length(EMBEDDING)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(EMBEDDING // HEADS)
    tokens = vocabulary()
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("llama")
    writer.add_token_list([text.encode() for text, _ in tokens])
    # Longer tokens are merged first.
    writer.add_token_scores([float(len(text)) if kind == 1 else 0.0 for text, kind in tokens])
    writer.add_token_types([kind for _, kind in tokens])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)

    def weights(*shape):
        return (random.standard_normal(shape) * 0.05).astype(np.float32)

    writer.add_tensor("token_embd.weight", weights(len(tokens), EMBEDDING))
    writer.add_tensor("output.weight", weights(len(tokens), EMBEDDING))
    writer.add_tensor("output_norm.weight", np.ones(EMBEDDING, np.float32))
    for layer in range(LAYERS):
        name = f"blk.{layer}."
        for part in ("attn_q", "attn_k", "attn_v", "attn_output"):
            writer.add_tensor(f"{name}{part}.weight", weights(EMBEDDING, EMBEDDING))
        writer.add_tensor(f"{name}ffn_gate.weight", weights(FEED_FORWARD, EMBEDDING))
        writer.add_tensor(f"{name}ffn_up.weight", weights(FEED_FORWARD, EMBEDDING))
        writer.add_tensor(f"{name}ffn_down.weight", weights(EMBEDDING, FEED_FORWARD))
        writer.add_tensor(f"{name}attn_norm.weight", np.ones(EMBEDDING, np.float32))
        writer.add_tensor(f"{name}ffn_norm.weight", np.ones(EMBEDDING, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])

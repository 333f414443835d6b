"""Tiny classifiers of pairs of texts, with random weights."""

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import (
    BartConfig,
    BartForSequenceClassification,
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2ForSequenceClassification,
    LlamaConfig,
    LlamaForSequenceClassification,
    PreTrainedTokenizerFast,
    RobertaConfig,
    RobertaForSequenceClassification,
    XLNetConfig,
    XLNetForSequenceClassification,
)

SENTENCES = "What is the capital of France , Spain ? It was not Paris London Madrid a city . ! 1 2"
WORDS = SENTENCES.lower().split()
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
LABELS = ("contradiction", "neutral", "entailment")


def build_pair_tokenizer(longest=None):
    """One token a word, as BERT's: [CLS] premise [SEP] hypothesis [SEP]."""
    vocabulary = {token: i for i, token in enumerate([*SPECIAL, *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, "[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    options = {} if longest is None else {"model_max_length": longest}
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        **{f"{token[1:4].lower()}_token": token for token in SPECIAL},
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
        **options,
    )


def build_classifier(labels=LABELS, longest=64, n_ids=None):
    """A BERT with random weights, whose classes are about equally likely."""
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=n_ids or len(SPECIAL) + len(WORDS),
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=longest,
        initializer_range=1.0,
        id2label=dict(enumerate(labels)),
        label2id={label: i for i, label in enumerate(labels)},
    )
    model = BertForSequenceClassification(config).eval()
    ids = torch.randint(len(SPECIAL), config.vocab_size, (32, 8))
    with torch.no_grad():
        model.classifier.bias -= model(input_ids=ids).logits.mean(dim=0)
    return model


def settings_of(pad_token_id):
    """What the configurations of the other classifiers have in common."""
    torch.manual_seed(0)
    return {
        "vocab_size": len(SPECIAL) + len(WORDS),
        "initializer_range": 1.0,
        "pad_token_id": pad_token_id,
        "id2label": dict(enumerate(LABELS)),
        "label2id": {label: i for i, label in enumerate(LABELS)},
    }


def build_decoder_classifier(pad_token_id):
    """A Llama that classifies by its last token."""
    config = LlamaConfig(
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=64,
        **settings_of(pad_token_id),
    )
    return LlamaForSequenceClassification(config).eval()


def build_absolute_decoder(pad_token_id):
    """A GPT-2, which numbers positions from the left and classifies by its last token."""
    config = GPT2Config(n_embd=16, n_layer=1, n_head=2, n_positions=64, **settings_of(pad_token_id))
    return GPT2ForSequenceClassification(config).eval()


def build_last_place_classifier(pad_token_id):
    """An XLNet, which classifies by its last place."""
    config = XLNetConfig(d_model=16, n_layer=1, n_head=2, d_inner=16, **settings_of(pad_token_id))
    return XLNetForSequenceClassification(config).eval()


def build_end_classifier(eos_token_id):
    """A BART, which classifies by its last end of a text, of which all of a batch have as many."""
    ends = {"eos_token_id": eos_token_id, "decoder_start_token_id": eos_token_id}
    layers = {f"{side}_layers": 1 for side in ("encoder", "decoder")}
    heads = {f"{side}_attention_heads": 2 for side in ("encoder", "decoder")}
    config = BartConfig(d_model=16, **layers, **heads, **settings_of(0) | ends)
    return BartForSequenceClassification(config).eval()


def build_one_type_classifier():
    """A RoBERTa, which has one type of tokens, and positions that no token has."""
    config = RobertaConfig(
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=18,
        type_vocab_size=1,
        **settings_of(0) | {"initializer_range": 0.02},
    )
    return RobertaForSequenceClassification(config).eval()


def save_classifier(path, model=None, tokenizer=None):
    """A directory like those on the Hub."""
    (model or build_classifier()).save_pretrained(path)
    (tokenizer or build_pair_tokenizer()).save_pretrained(path)
    return path

"""A sequence classifier as a model of inference: labels, batches, long texts, what is refused."""

import json
from itertools import permutations, product

import numpy as np
import pytest
import torch
from classifiers import (
    LABELS,
    WORDS,
    build_absolute_decoder,
    build_classifier,
    build_decoder_classifier,
    build_end_classifier,
    build_last_place_classifier,
    build_one_type_classifier,
    build_pair_tokenizer,
    save_classifier,
)
from safetensors.torch import load_file, save_file

from store import NotFoundError, SchemaError
from store.sources.huggingface.load import load_classifier
from store.sources.huggingface.nli import HuggingFaceNli, find_labels

CPU = torch.device("cpu")
TEXTS = ["Paris", "It is Paris .", "London", "what is the capital of France ?", "", "unknown words"]
PAIRS = list(product(TEXTS, TEXTS))


@pytest.fixture(scope="module")
def tokenizer():
    return build_pair_tokenizer()


@pytest.fixture(scope="module")
def model():
    return build_classifier()


def infer_by_hand(model, tokenizer, premise, hypothesis):
    """One pair by itself, through the labels' names."""
    ids = tokenizer(premise, hypothesis, return_tensors="pt")
    with torch.no_grad():
        logits = model(**ids).logits[0].double().numpy()
    by_label = {model.config.id2label[i].lower(): value for i, value in enumerate(logits)}
    e, c = np.exp(by_label["entailment"]), np.exp(by_label["contradiction"])
    return max(by_label, key=by_label.get) == "entailment", c / (e + c)


def assert_alike(found, expected):
    for one, other in zip(found, expected, strict=True):
        assert one.entails == other.entails
        assert one.contradiction == pytest.approx(other.contradiction, rel=1e-4)


@pytest.mark.parametrize(
    "labels", [*list(permutations(LABELS))[::3], ("CONTRADICTION", "Entailment")]
)
def test_pairs_are_classified_as_one_by_one(tokenizer, labels):
    """In any order of the labels, in batches of pairs of different lengths; neutral does not count
    for the contradiction."""
    model = build_classifier(labels)
    found = HuggingFaceNli(model, tokenizer, batch_size=5).infer(PAIRS)
    for pair, inference in zip(PAIRS, found, strict=True):
        entails, contradiction = infer_by_hand(model, tokenizer, *pair)
        assert inference.entails == entails
        assert inference.contradiction == pytest.approx(contradiction, rel=1e-4)
    assert len({inference.entails for inference in found}) == 2


def test_equal_pairs_are_asked_once(model, tokenizer):
    nli = HuggingFaceNli(model, tokenizer)
    one, other, again = nli.infer([("Paris", "London"), ("London", "Paris"), ("Paris", "London")])
    assert one == again
    assert one.contradiction != other.contradiction
    assert (nli.n_pairs, nli.n_cut) == (2, 0)
    assert nli.infer([]) == []


@pytest.mark.parametrize("n_positions, of_tokenizer", [(16, None), (64, 12)])
def test_long_texts_are_cut_and_counted(n_positions, of_tokenizer):
    """To what the tokenizer says, or the number of positions; the shorter text stays whole."""
    tokenizer = build_pair_tokenizer(of_tokenizer)
    nli = HuggingFaceNli(build_classifier(longest=n_positions), tokenizer)
    assert nli.longest == (of_tokenizer or n_positions - 2)
    long = " ".join(WORDS * 6)
    pairs = [(long, "paris"), ("paris", long), ("paris", "london")]
    cut = " ".join((WORDS * 6)[: nli.longest - 4])
    found = nli.infer(pairs)
    assert (nli.n_pairs, nli.n_cut) == (3, 2)
    assert_alike(found, nli.infer([(cut, "paris"), ("paris", cut), ("paris", "london")]))
    assert nli.n_cut == 2


def test_a_decoder_without_padding_is_asked_pair_by_pair(tokenizer):
    """It finds the last token by the padding."""
    bare = build_pair_tokenizer()
    bare.pad_token = None
    alone = HuggingFaceNli(build_decoder_classifier(None), bare)
    together = HuggingFaceNli(build_decoder_classifier(tokenizer.pad_token_id), tokenizer)
    assert_alike(alone.infer(PAIRS), together.infer(PAIRS))


def test_the_size_of_a_batch_decides_nothing():
    """Whatever side a tokenizer pads, and whatever the configuration says of the padding."""
    padding_left = build_pair_tokenizer()
    padding_left.padding_side = "left"
    for build in (build_absolute_decoder, build_last_place_classifier):
        model = build(pad_token_id=padding_left.unk_token_id)
        alone, together = (
            HuggingFaceNli(model, padding_left, batch_size=n).infer(PAIRS) for n in (1, 8)
        )
        assert_alike(alone, together)


def test_a_special_token_in_a_text_is_text(tokenizer):
    """It neither ends a text, nor does one text of a batch then have more ends than another."""
    nli = HuggingFaceNli(build_end_classifier(tokenizer.sep_token_id), tokenizer)
    pairs = [("paris", "london"), ("paris [SEP]", "london"), ("paris [ sep ]", "london")]
    plain, marked, spelled = nli.infer(pairs)
    assert marked == spelled != plain


def test_a_model_of_one_type_of_tokens(tokenizer):
    """Whose tokenizer tells two; the longest input leaves out the positions that it reserves."""
    nli = HuggingFaceNli(build_one_type_classifier(), tokenizer)
    found = nli.infer([("paris", " ".join(WORDS)), ("paris", "london")])
    assert nli.n_cut == 1
    ids = tokenizer("paris", "london", return_tensors="pt")
    del ids["token_type_ids"]
    with torch.no_grad():
        logits = nli.model(**ids).logits[0].double()
    assert found[1].contradiction == pytest.approx(logits[[2, 0]].softmax(0)[1].item(), rel=1e-4)


@pytest.mark.parametrize("fits", [0, 1])
def test_batches_are_halved_where_memory_does_not_suffice(tokenizer, fits):
    """Down to one pair, for which there has to be memory."""
    model = build_classifier()
    expected = HuggingFaceNli(model, tokenizer).infer(PAIRS)

    def refuse(_, arguments, inputs):
        if len(inputs["input_ids"]) > fits:
            raise torch.OutOfMemoryError

    model.register_forward_pre_hook(refuse, with_kwargs=True)
    nli = HuggingFaceNli(model, tokenizer, batch_size=8)
    if not fits:
        with pytest.raises(SchemaError, match="one pair of texts does not fit on cpu"):
            nli.infer(PAIRS)
        return
    assert_alike(nli.infer(PAIRS), expected)


def test_logits_that_are_not_finite_entail_nothing(tokenizer):
    """As of a model that overflows."""
    model = build_classifier()
    with torch.no_grad():
        model.classifier.bias.fill_(float("nan"))
    (found,) = HuggingFaceNli(model, tokenizer).infer([("paris", "paris")])
    assert not found.entails
    assert np.isnan(found.contradiction)


@pytest.mark.parametrize(
    "labels",
    [
        ("LABEL_0", "LABEL_1", "LABEL_2"),
        ("entailment", "neutral"),
        ("entailment", "entailment", "contradiction"),
        ("entailment", "contradiction", "other"),
    ],
)
def test_other_labels_are_named(labels):
    """A classifier of something else, or one whose labels have no names."""
    with pytest.raises(SchemaError, match="labels entailment, contradiction and neutral") as raised:
        find_labels(dict(enumerate(labels)), "m")
    assert repr(labels[0]) in str(raised.value)
    assert f"found {len(labels)}: " in str(raised.value)


def test_a_tokenizer_of_another_model_is_refused(tokenizer):
    nli = HuggingFaceNli(build_classifier(n_ids=6), tokenizer)
    with pytest.raises(SchemaError, match="expected a tokenizer of its 6 tokens"):
        nli.infer([("madrid", "spain")])


def test_a_directory_is_loaded(tmp_path, model, tokenizer):
    """With the same numbers; the description tells other weights and other limits apart."""
    save_classifier(tmp_path / "m", model)
    nli = HuggingFaceNli(*load_classifier(str(tmp_path / "m"), CPU))
    assert nli.infer(PAIRS) == HuggingFaceNli(model, tokenizer).infer(PAIRS)
    described = json.loads(json.dumps(nli.describe()))
    assert described["model"] == str(tmp_path / "m")
    assert described["architecture"] == "BertForSequenceClassification"
    with torch.no_grad():
        nli.model.classifier.bias[0] += 1
    changed = HuggingFaceNli(nli.model, nli.tokenizer).describe()
    assert changed["weights_crc32c"] != described["weights_crc32c"]


def test_what_is_no_classifier_is_refused(tmp_path, model):
    """No such model, no tokenizer, weights that are missing or no safetensors, code to run."""
    with pytest.raises(NotFoundError, match="found no such directory"):
        load_classifier("./nothing", CPU)
    with pytest.raises(NotFoundError, match="where hf download puts it, found: "):
        load_classifier("no/such-model", CPU)
    path = save_classifier(tmp_path / "m", model)
    weights = load_file(path / "model.safetensors")
    headless = {name: one for name, one in weights.items() if "classifier" not in name}
    save_file(headless, path / "model.safetensors", {"format": "pt"})
    with pytest.raises(SchemaError, match=r"2 missing, first 'classifier\.bias'"):
        load_classifier(str(path), CPU)
    (path / "model.safetensors").rename(path / "weights")
    torch.save(weights, path / "pytorch_model.bin")
    with pytest.raises(SchemaError, match="expected a sequence classifier in safetensors, found: "):
        load_classifier(str(path), CPU)
    for file in path.glob("tokenizer*"):
        file.unlink()
    with pytest.raises(NotFoundError, match="expected a tokenizer with it"):
        load_classifier(str(path), CPU)

"""A text that just fits is not reported as truncated; one token more is."""

from fixtures.tiny import CPU, SHAPE
from headstart.config.schema import TokenizerConfig
from headstart.model.heads import Model, build_classifier_head
from headstart.model.transformer import build_backbone
from headstart.predict.predictor import Predictor
from headstart.store.bundle import Bundle, load_bundle, save_bundle
from headstart.tasks import SingleLabel
from headstart.tokenization.bpe import train_tokenizer


def test_a_text_that_just_fits_is_not_cut(tmp_path):
    tokenizer = train_tokenizer(["ab"], TokenizerConfig(vocab_size=260))  # bytes alone: a letter is a token
    model = Model(build_backbone(SHAPE, tokenizer.vocab_size, 0), build_classifier_head(SHAPE, 2, 0))
    save_bundle(tmp_path / "b", Bundle(model, tokenizer, SingleLabel(("no", "yes"))))
    predictor = Predictor(load_bundle(tmp_path / "b"), CPU)
    fits = "a" * (SHAPE.context - 1)
    assert [answer.truncated for answer in predictor.predict([fits, fits + "a"])] == [False, True]

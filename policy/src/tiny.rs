//! The embedded policy: a small Qwen3 with its own tokenizer, kept in `embedded/`, and the
//! training of that tokenizer.
//!
//! Invariant: the text is plain Hermes, as with any Qwen3; only its tokenization is special. The
//! pieces of the format that every episode repeats (`FUSED`) are
//! one token each, which shortens an episode from some 250 to some 90 tokens. The weights are drawn
//! at random and trained by the learner.

use tokenizers::decoders::byte_level::ByteLevel as ByteLevelDecoder;
use tokenizers::models::bpe::{BPE, BpeTrainer};
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{
    AddedToken, DecoderWrapper, Model as _, NormalizerWrapper, OffsetReferential, OffsetType,
    PostProcessorWrapper, PreTokenizer, SplitDelimiterBehavior, TokenizerImpl, Trainer,
};

use crate::error::{PolicyError, Result};
use crate::model::{Model, config_of};
use crate::weights::Weights;

/// The vocabulary size of the embedded tokenizer, and so the logit columns of the embedded model.
pub const VOCABULARY_SIZE: usize = 1024;

/// Words with their leading space, single digits, single signs with their leading space, single
/// whitespace characters. Names of several words (`singer_id`) are split into pieces that other
/// names share.
const PIECES: &str = r" ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]|\s";

/// Control tokens, hidden by transformers' `skip_special_tokens`.
const CONTROL: [&str; 2] = ["<|endoftext|>", "<|im_start|>"];
/// The end of a turn, the last entry of the vocabulary.
const TURN_END: &str = "<|im_end|>";

/// The pieces of the format that are one token each. They never merge with their neighbours, and of
/// two that match the longer wins. The last one ends a completion that is a tool call, so it is a
/// stop token.
const FUSED: [&str; 43] = [
    // Prompt.
    "<|im_start|>system\nAnswer the question with SQL tools, one call per turn.<|im_end|>\n",
    "<|im_start|>user\n",
    "\nAvailable tables:\n- ",
    "\n- ",
    "<|im_end|>\n<|im_start|>assistant\n",
    // Tool results.
    "\n<|im_start|>user\n<tool_response>\n",
    "\n<|im_start|>user\n<tool_response>\n1. ",
    "\n<|im_start|>user\n<tool_response>\nTable '",
    "\n<|im_start|>user\n<tool_response>\nError: ",
    "' columns:\n- ",
    ": INTEGER\n- ",
    ": TEXT\n- ",
    ": REAL\n- ",
    ": INTEGER\nRow count: ",
    ": TEXT\nRow count: ",
    ": REAL\nRow count: ",
    // The numbers of result rows.
    "\n2. ",
    "\n3. ",
    "\n4. ",
    "\n5. ",
    "\n6. ",
    "\n7. ",
    "\n8. ",
    "\n9. ",
    "\n10. ",
    "\n11. ",
    "\n12. ",
    "\n13. ",
    "\n14. ",
    "\n15. ",
    "\n16. ",
    "\n17. ",
    "\n18. ",
    "\n19. ",
    "\n20. ",
    // The end of a tool result.
    "\n</tool_response><|im_end|>\n<|im_start|>assistant\n",
    // Tool calls. A line break inside of an argument is `\n` in JSON.
    "<tool_call>\n{\"name\": \"describe\", \"arguments\": {\"table_name\": \"",
    "<tool_call>\n{\"name\": \"sample\", \"arguments\": {\"table_name\": \"",
    "<tool_call>\n{\"name\": \"query\", \"arguments\": {\"sql\": \"",
    "<tool_call>\n{\"name\": \"answer\", \"arguments\": {\"value\": \"",
    "\\n",
    "\"}}\n</tool_call>",
    "\"}}\n</tool_call><|im_end|>",
];

/// Builds the embedded policy with random weights.
pub fn model(seed: u64) -> Result<Model> {
    let files = files();
    let weights = Weights::random(&config_of(&files)?, seed)?;
    Model::from_files(files, weights)
}

/// Returns the embedded policy's files by name, all but its weights.
pub fn files() -> Vec<(String, Vec<u8>)> {
    macro_rules! embedded {
        ($($name:literal),*) => {
            vec![$((
                $name.to_string(),
                include_bytes!(concat!("../embedded/", $name)).to_vec(),
            )),*]
        };
    }
    embedded!(
        "chat_template.jinja",
        "config.json",
        "tokenizer.json",
        "tokenizer_config.json"
    )
}

/// Trains a byte-level BPE of `vocabulary_size` entries on `texts` (whole rendered conversations)
/// and returns its `tokenizer.json`. The bytes are a function of the texts, whatever their order.
///
/// # Errors
/// [`PolicyError::Text`] if the texts are too few for so many entries.
pub fn train_tokenizer(
    texts: impl Iterator<Item = String> + Send,
    vocabulary_size: usize,
) -> Result<Vec<u8>> {
    train(texts, vocabulary_size)
        .map_err(|error| PolicyError::Text(format!("tokenizer training: {error}")))
}

type ByteLevelBpe = TokenizerImpl<
    BPE,
    NormalizerWrapper,
    PreTokenizerWrapper,
    PostProcessorWrapper,
    DecoderWrapper,
>;

fn train(
    texts: impl Iterator<Item = String> + Send,
    vocabulary_size: usize,
) -> tokenizers::Result<Vec<u8>> {
    let merged_size = vocabulary_size.saturating_sub(added_tokens().count());
    let mut trainer = BpeTrainer::builder()
        .vocab_size(merged_size)
        .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
        .show_progress(false)
        .build();
    let mut counting = byte_level(BPE::default())?;
    counting.add_tokens(added_tokens())?;
    trainer.feed(texts, |text| words(&counting, text))?;
    let mut model = BPE::default();
    trainer.train(&mut model)?;
    let reached = model.get_vocab_size();
    if reached != merged_size {
        return Err(format!(
            "the texts yield {reached} entries, need {merged_size}: give more texts"
        )
        .into());
    }
    // The added tokens get the ids after the merges.
    let mut tokenizer = byte_level(model)?;
    tokenizer.add_tokens(added_tokens())?;
    Ok(tokenizer.to_string(true)?.into_bytes())
}

/// Returns the pieces of `text` within which merges are counted: those between the added tokens.
fn words(tokenizer: &ByteLevelBpe, text: &str) -> tokenizers::Result<Vec<String>> {
    let mut pieces = tokenizer
        .get_added_vocabulary()
        .extract_and_normalize(tokenizer.get_normalizer(), text);
    if let Some(pre_tokenizer) = tokenizer.get_pre_tokenizer() {
        pre_tokenizer.pre_tokenize(&mut pieces)?;
    }
    let splits = pieces
        .get_splits(OffsetReferential::Original, OffsetType::Byte)
        .into_iter();
    Ok(splits
        .filter(|(_, _, added)| added.is_none())
        .map(|(piece, ..)| piece.to_string())
        .collect())
}

fn byte_level(model: BPE) -> tokenizers::Result<ByteLevelBpe> {
    let pieces = Split::new(
        SplitPattern::Regex(PIECES.into()),
        SplitDelimiterBehavior::Isolated,
        false,
    )?;
    let bytes = ByteLevel::new(false, false, false);
    let mut tokenizer = ByteLevelBpe::new(model);
    tokenizer.with_pre_tokenizer(Some(Sequence::new(vec![pieces.into(), bytes.into()])));
    tokenizer.with_decoder(Some(ByteLevelDecoder::default()));
    Ok(tokenizer)
}

fn added_tokens() -> impl Iterator<Item = AddedToken> {
    let control = |text: &str| AddedToken::from(text, true);
    let fused = |text: &str| AddedToken::from(text, false).normalized(false);
    CONTROL
        .into_iter()
        .map(control)
        .chain(FUSED.into_iter().map(fused))
        .chain([control(TURN_END)])
}

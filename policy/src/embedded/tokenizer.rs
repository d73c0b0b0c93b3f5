//! The training of a tokenizer for small policies: byte-level BPE within words, and whole pieces of
//! the format, of SQL and of questions as single tokens.

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

/// Words without the blank before them, at a capital letter divided (`netPrice`), single digits,
/// single signs, single whitespace characters. So a word has the same pieces in a question, in a
/// name of several words (`net_price`) and after a quote in SQL, and can be copied as it is.
const PIECES: &str = r"\p{Lu}?\p{Ll}+|\p{Lu}+(?!\p{Ll})|\p{L}|\p{N}|[^\s\p{L}\p{N}]|\s";

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

/// The pieces of SQL that are one token each. A value or a name always begins a token of its own.
const SQL: [&str; 46] = [
    "SELECT ",
    "SELECT count(*) FROM ",
    "SELECT count(DISTINCT ",
    "SELECT avg(",
    "SELECT max(",
    "SELECT min(",
    "SELECT sum(",
    "SELECT DISTINCT ",
    " FROM ",
    ") FROM ",
    " WHERE ",
    " = '",
    " != '",
    "' AND ",
    "' OR ",
    " AND ",
    " OR ",
    " > ",
    " < ",
    " >= ",
    " <= ",
    " BETWEEN ",
    " LIKE '%",
    "%'",
    " IS NULL",
    " IS NOT NULL",
    " NOT IN (SELECT ",
    " IN (SELECT ",
    " > (SELECT avg(",
    " > (SELECT max(",
    " GROUP BY ",
    " HAVING count(*) > ",
    " HAVING count(*) >= ",
    " ORDER BY ",
    " ORDER BY count(*) DESC LIMIT 1",
    " ORDER BY count(*) LIMIT 1",
    " DESC",
    " DESC LIMIT 1",
    " LIMIT 1",
    " JOIN ",
    " USING (",
    " ON ",
    " AS INTEGER)",
    " UNION SELECT ",
    " INTERSECT SELECT ",
    " EXCEPT SELECT ",
];

/// The pieces of questions that are one token each: the phrases of the query grammar that shorten
/// generated questions most, found by merging the most frequent neighbours.
const QUESTION: [&str; 64] = [
    " the ",
    " of ",
    " of the ",
    " with the ",
    " whose ",
    " is ",
    " me the ",
    "How many ",
    " is the ",
    " have",
    " and the ",
    " with ",
    "Which ",
    " than ",
    "number of ",
    " how many ",
    " in ",
    " are there",
    " have a ",
    " has the ",
    " each ",
    " you ",
    " and ",
    "What are the ",
    " does the ",
    " what is the ",
    "I would like",
    " of all ",
    " Give me the ",
    " show the ",
    "most ",
    " with a ",
    " do ",
    "I would like to ",
    " have ",
    " me their ",
    " that",
    " all ",
    "What is the ",
    " number of ",
    " you tell me the ",
    "List the ",
    " or ",
    " for",
    "at least ",
    " by ",
    " among the ",
    "highest ",
    "Count the ",
    " in the ",
    " of each ",
    "For the ",
    "Show the ",
    "Find the ",
    "average ",
    "What ",
    "Please tell me the ",
    " by the ",
    "Could you tell me",
    "Give the ",
    " a ",
    " do we have",
    " number",
    " are",
];

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
        .chain(SQL.into_iter().chain(QUESTION).chain(FUSED).map(fused))
        .chain([control(TURN_END)])
}

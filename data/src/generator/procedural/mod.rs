//! Procedural databases: schemas that the seed composes of random words.
//!
//! A policy that has met thousands of them must read DESCRIBE and copy names, because nothing that
//! it remembers about other databases helps.

mod alphabet;
mod column_kind;
mod columns;
mod compose;
mod lexicon;
mod naming;
mod types;

pub(crate) use compose::{Size, compose};
pub use lexicon::WordShare;
pub(crate) use lexicon::{Lexicon, sources};
pub(crate) use naming::Tidiness;

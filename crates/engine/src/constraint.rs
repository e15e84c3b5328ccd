//! What an answer may look like: a hook that allows or forbids each next token.

use std::sync::Arc;

/// The form that an answer must have, and how far the answer has come in it.
///
/// Sentences in errors are for the person who asked; the engine adds which request it was.
pub trait Constraint: Send {
    /// The tokens that may come next: bit `t % 32` of word `t / 32` is set for token `t`, one word for each 32 tokens of
    /// the model's vocabulary. End tokens are no part of it: the engine adds those of the request while
    /// [`is_complete`](Constraint::is_complete).
    ///
    /// # Errors
    /// When the form is too complex to go on.
    fn mask(&mut self) -> Result<Arc<[u32]>, String>;

    /// Takes the next token of the answer.
    ///
    /// # Errors
    /// When the form does not allow it.
    fn accept(&mut self, token: u32) -> Result<(), String>;

    /// The answer may end here.
    fn is_complete(&self) -> bool;

    /// The same form at the same place, for another answer.
    fn fork(&self) -> Box<dyn Constraint>;
}

impl Constraint for onebit_text::TokenConstraint {
    fn mask(&mut self) -> Result<Arc<[u32]>, String> {
        self.mask()
    }
    fn accept(&mut self, token: u32) -> Result<(), String> {
        self.accept(token)
    }
    fn is_complete(&self) -> bool {
        self.is_complete()
    }
    fn fork(&self) -> Box<dyn Constraint> {
        Box::new(self.fork())
    }
}

/// Where the mask of a sequence's next token comes from.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Allowed {
    /// These tokens.
    Mask(Arc<[u32]>),
    /// Nothing is left to say.
    Nothing,
}

/// The tokens that a constraint allows next, the end tokens with it where it may end.
pub(crate) fn allowed(constraint: &mut dyn Constraint, vocab: usize, eos: &[u32]) -> Result<Allowed, String> {
    let mask = constraint.mask()?;
    let words = vocab.div_ceil(32);
    if mask.len() != words {
        return Err(format!("a mask of {} words for {vocab} tokens", mask.len()));
    }
    let any = (0..vocab).any(|t| onebit_ops::allows(&mask, t));
    if !constraint.is_complete() {
        return if any { Ok(Allowed::Mask(mask)) } else { Err("no token can follow".to_owned()) };
    }
    if !any {
        return Ok(Allowed::Nothing);
    }
    let mut mask = mask.to_vec();
    eos.iter().filter(|t| (**t as usize) < vocab).for_each(|t| mask[*t as usize / 32] |= 1 << (t % 32));
    Ok(Allowed::Mask(mask.into()))
}

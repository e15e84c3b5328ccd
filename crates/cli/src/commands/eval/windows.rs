//! Cutting a text into documents, and documents into windows that count every token once.

use anyhow::Result;
use onebit_text::{Specials, Tokenizer};

/// The tokens of one document. Before the first word stands what a model expects there: its beginning-of-text token if
/// it asks for one, else the separator where that is a token. A separator token also ends the document where the file
/// has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Document {
    pub(super) tokens: Vec<u32>,
}

/// A stretch of a document that is read from an empty context.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Window {
    /// Index of the document.
    pub(super) document: usize,
    /// First token that is read.
    pub(super) start: usize,
    /// First token whose successor counts; those before it are context.
    pub(super) counted: usize,
    /// One past the last token that is read.
    pub(super) end: usize,
}

/// The documents of a text, in order; those of white space only are none. Line breaks next to a separator belong to
/// no document.
///
/// # Errors
/// Text that cannot be encoded.
pub(super) fn documents(text: &str, separator: &str, tokenizer: &Tokenizer) -> Result<Vec<Document>> {
    let mark = tokenizer.id_of(separator);
    let pieces: Vec<&str> = text.split(separator).collect();
    let mut documents = Vec::new();
    for (i, piece) in pieces.iter().enumerate() {
        let piece = piece.trim_matches(['\n', '\r']);
        if piece.trim().is_empty() {
            continue;
        }
        let mut tokens: Vec<u32> = tokenizer.bos_to_add().or(mark).into_iter().collect();
        tokens.extend(tokenizer.encode(piece, Specials::Parse)?);
        tokens.extend(mark.filter(|_| i + 1 < pieces.len()));
        documents.push(Document { tokens });
    }
    Ok(documents)
}

/// Windows of `window` tokens, `stride` apart, over every document. The last token of a document is not read: nothing
/// follows it.
pub(super) fn windows(documents: &[Document], window: usize, stride: usize) -> Vec<Window> {
    let mut out = Vec::new();
    for (document, tokens) in documents.iter().map(|d| d.tokens.len()).enumerate() {
        let rows = tokens.saturating_sub(1);
        let (mut start, mut counted) = (0, 0);
        while counted < rows {
            let end = (start + window).min(rows);
            out.push(Window { document, start, counted, end });
            (start, counted) = (start + stride, end);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(lengths: &[usize], window: usize, stride: usize) -> Vec<(usize, usize, usize, usize)> {
        let documents: Vec<Document> = lengths.iter().map(|n| Document { tokens: vec![0; *n] }).collect();
        let windows = windows(&documents, window, stride);
        windows.into_iter().map(|w| (w.document, w.start, w.counted, w.end)).collect()
    }

    #[test]
    fn windows_without_overlap() {
        assert_eq!(of(&[9, 1, 0, 3], 4, 4), [(0, 0, 0, 4), (0, 4, 4, 8), (3, 0, 0, 2)]);
        assert_eq!(of(&[10], 4, 4), [(0, 0, 0, 4), (0, 4, 4, 8), (0, 8, 8, 9)]);
    }

    #[test]
    fn what_windows_share_counts_once() {
        assert_eq!(of(&[10], 4, 2), [(0, 0, 0, 4), (0, 2, 4, 6), (0, 4, 6, 8), (0, 6, 8, 9)]);
        for (window, stride) in [(1, 1), (5, 1), (7, 3), (8, 8), (100, 50)] {
            let windows = of(&[40, 2, 17], window, stride);
            let counted: Vec<(usize, usize)> =
                windows.iter().flat_map(|(d, _, counted, end)| (*counted..*end).map(|at| (*d, at))).collect();
            let all: Vec<(usize, usize)> =
                [(0, 39), (1, 1), (2, 16)].iter().flat_map(|(d, n)| (0..*n).map(|at| (*d, at))).collect();
            assert_eq!(counted, all, "{window} {stride}");
            assert!(windows.iter().all(|(_, start, counted, end)| start <= counted && end - start <= window));
        }
    }
}
